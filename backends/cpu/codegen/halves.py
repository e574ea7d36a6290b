"""Conversions of float16 and bfloat16 in C, by integers: GCC 12 vectorises none of its own, and others have none.

Kernels compute in float32 and round after each operation, as NumPy does: to
nearest, ties to even, with denormals, and beyond the range to infinity. A nan
comes out as a nan, of any payload.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Bit casts of float32.
BITS = """
static inline float float_of(uint32_t bits)
{
    union { uint32_t bits; float x; } both = {bits};
    return both.x;
}

static inline uint32_t bits_of(float x)
{
    union { float x; uint32_t bits; } both = {x};
    return both.bits;
}
"""

#: Conversions by dtype. A number is rounded by adding the power of two whose last bit is the result's; a float to
#: bfloat16, its upper bits, by adding half of the last of these.
CONVERSIONS = {
    "float16": """
typedef uint16_t half;

static inline float from_half(half h)
{
    const uint32_t bits = (uint32_t)h << 13, size = bits & 0x0fffe000u;
    const float small = float_of(size + 0x38800000u) - 0x1p-14f;
    const float large = float_of(size + (size < 0x0f800000u ? 0x38000000u : 0x70000000u));
    return float_of(bits_of(size < 0x00800000u ? small : large) | (bits << 3 & 0x80000000u));
}

/* Of a float that is rounded. */
static inline half to_half(float x)
{
    const uint32_t bits = bits_of(x), size = bits & 0x7fffffffu;
    const uint32_t small = bits_of(float_of(size) + 0.5f) - 0x3f000000u;
    const uint32_t large = ((size < 0x47800000u ? size : 0x47800000u) - 0x38000000u) >> 13;
    return (half)((size < 0x38800000u ? small : large) | (size > 0x7f800000u ? 0x200u : 0u) | (bits >> 16 & 0x8000u));
}

static inline float rounded_half_float(float x)
{
    const float size = fabsf(x);
    const uint32_t power = bits_of(size) & 0x7f800000u, least = power > 0x38800000u ? power : 0x38800000u;
    const float unit = float_of((least < 0x47800000u ? least : 0x47800000u) + 0x06800000u);
    const float found = size + unit - unit;
    return copysignf(found < 65536.0f ? found : found + INFINITY, x);
}

static inline float rounded_half_double(double x)
{
    const double size = fabs(x);
    union { double x; int64_t bits; } power = {size}, unit;
    power.bits &= 0x7ff0000000000000;
    const int64_t least = power.bits > 0x3f10000000000000 ? power.bits : 0x3f10000000000000;
    unit.bits = (least < 0x40f0000000000000 ? least : 0x40f0000000000000) + 0x02a0000000000000;
    const float found = (float)(size + unit.x - unit.x);
    return copysignf(found < 65536.0f ? found : found + INFINITY, (float)x);
}

#define rounded_half(x) _Generic((x), double: rounded_half_double, default: rounded_half_float)(x)
""",
    "bfloat16": """
typedef uint16_t bfloat;

static inline float from_bfloat(bfloat b)
{
    return float_of((uint32_t)b << 16);
}

/* Of a float that is rounded. */
static inline bfloat to_bfloat(float x)
{
    return (bfloat)(bits_of(x) >> 16);
}

static inline float rounded_bfloat_float(float x)
{
    const uint32_t bits = bits_of(x), near = bits + (bits >> 16 & 1u) + 0x7fffu;
    return float_of(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x00400000u : near) & 0xffff0000u);
}

static inline float rounded_bfloat_double(double x)
{
    const double size = fabs(x);
    union { double x; int64_t bits; } power = {size}, unit;
    power.bits &= 0x7ff0000000000000;
    const int64_t least = power.bits > 0x3810000000000000 ? power.bits : 0x3810000000000000;
    unit.bits = (least < 0x47f0000000000000 ? least : 0x47f0000000000000) + 0x02d0000000000000;
    return copysignf((float)(size + unit.x - unit.x), (float)x);
}

#define rounded_bfloat(x) _Generic((x), float: rounded_bfloat_float, default: rounded_bfloat_double)(x)
""",
}


def narrow_functions(dtypes: Sequence[str]) -> str:
    """The conversions of some narrow dtypes; they use `<math.h>` and `<stdint.h>`."""
    return "".join([BITS, *(CONVERSIONS[dtype] for dtype in dtypes)]) if dtypes else ""
