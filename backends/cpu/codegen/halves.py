"""Conversions of float16 and bfloat16 in C, by integers: GCC 12 vectorises none of its own, and others have none.

Those of float16 and float32 are instructions of x86 processors (F16C), which GCC does not use in vector loops either.
So they are functions in assembly, with variants on vectors by the names under which GCC calls them, as it does the C
library's; they take and give 32-bit integers, for GCC calls none with operands of several sizes.

Values are rounded as NumPy rounds them: to nearest, ties to even, with
denormals, and beyond the range to infinity. A nan comes out as a nan, of any
payload. Where they are rounded is `backends.execution.rounding`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optree.compile.loopnest import LoopNest

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


#: The functions by instructions, from float16's bits, to them, and rounded to them: of scalars, and of vectors by the
#: prefixes of their names, which tell the processor and the number of lanes.
_INSTRUCTIONS: dict[str, dict[tuple[str, ...], tuple[str, ...]]] = {
    "half_widened": {
        ("",): ("vmovd %edi, %xmm0", "vcvtph2ps %xmm0, %xmm0"),
        ("_ZGVbN4v_",): ("vpackusdw %xmm0, %xmm0, %xmm0", "vcvtph2ps %xmm0, %xmm0"),
        ("_ZGVcN8v_",): ("vpackusdw %xmm1, %xmm0, %xmm0", "vcvtph2ps %xmm0, %ymm0"),
        ("_ZGVdN8v_",): (
            "vextracti128 $1, %ymm0, %xmm1",
            "vpackusdw %xmm1, %xmm0, %xmm0",
            "vcvtph2ps %xmm0, %ymm0",
        ),
        ("_ZGVeN16v_",): ("vpmovdw %zmm0, %ymm0", "vcvtph2ps %ymm0, %zmm0"),
    },
    "half_narrowed": {
        ("",): ("vcvtps2ph $0, %xmm0, %xmm0", "vmovd %xmm0, %eax", "movzwl %ax, %eax"),
        ("_ZGVbN4v_", "_ZGVcN4v_"): ("vcvtps2ph $0, %xmm0, %xmm0", "vpmovzxwd %xmm0, %xmm0"),
        ("_ZGVdN8v_",): ("vcvtps2ph $0, %ymm0, %xmm0", "vpmovzxwd %xmm0, %ymm0"),
        ("_ZGVeN16v_",): ("vcvtps2ph $0, %zmm0, %ymm0", "vpmovzxwd %ymm0, %zmm0"),
    },
    "half_rounded": {
        ("", "_ZGVbN4v_"): ("vcvtps2ph $0, %xmm0, %xmm0", "vcvtph2ps %xmm0, %xmm0"),
        ("_ZGVcN8v_", "_ZGVdN8v_"): ("vcvtps2ph $0, %ymm0, %xmm0", "vcvtph2ps %xmm0, %ymm0"),
        ("_ZGVeN16v_",): ("vcvtps2ph $0, %zmm0, %ymm0", "vcvtph2ps %ymm0, %zmm0"),
    },
}


def _assembly() -> str:
    """The functions of `_INSTRUCTIONS` as a statement of C, those on 16 lanes for processors that have them."""
    common: list[str] = []
    wide: list[str] = []
    for function, variants in _INSTRUCTIONS.items():
        for prefixes, instructions in variants.items():
            names = [prefix + function for prefix in prefixes]
            lines = [line for name in names for line in (f".hidden {name}", f".globl {name}", f"{name}:")]
            lines += [f"\\t{instruction}" for instruction in (*instructions, "ret")]
            (wide if "_ZGVeN16v_" in prefixes else common).extend(f'    "{line}\\n"' for line in lines)
    first, last = '    ".pushsection .text\\n"', '    ".popsection\\n");'
    return "\n".join(["__asm__(", first, *common, "#ifdef __AVX512F__", *wide, "#endif", last])


#: Conversions by dtype. A number is rounded by adding the power of two whose last bit is the result's; a float to
#: bfloat16, its upper bits, by adding half of the last of these.
CONVERSIONS = {
    "float16": """
typedef uint16_t half;

#if defined __x86_64__ && defined __AVX2__ && defined __F16C__ && defined __GNUC__ && !defined __clang__
#define VARIANTS __attribute__((simd("notinbranch"), const, visibility("hidden")))
VARIANTS float half_widened(uint32_t);
VARIANTS uint32_t half_narrowed(float);
VARIANTS float half_rounded(float);
"""
    + _assembly()
    + """
static inline float from_half(half h)
{
    return half_widened(h);
}

static inline half to_half_float(float x)
{
    return (half)half_narrowed(x);
}

static inline float rounded_half_float(float x)
{
    return half_rounded(x);
}
#else
static inline float from_half(half h)
{
    const uint32_t bits = (uint32_t)h << 13, size = bits & 0x0fffe000u;
    const float small = float_of(size + 0x38800000u) - 0x1p-14f;
    const float large = float_of(size + (size < 0x0f800000u ? 0x38000000u : 0x70000000u));
    return float_of(bits_of(size < 0x00800000u ? small : large) | (bits << 3 & 0x80000000u));
}

static inline float rounded_half_float(float x)
{
    const float size = fabsf(x);
    const uint32_t power = bits_of(size) & 0x7f800000u, least = power > 0x38800000u ? power : 0x38800000u;
    const float unit = float_of((least < 0x47800000u ? least : 0x47800000u) + 0x06800000u);
    const float found = size + unit - unit;
    return copysignf(found < 65536.0f ? found : found + INFINITY, x);
}

static inline half to_half_float(float x)
{
    const uint32_t bits = bits_of(rounded_half_float(x)), size = bits & 0x7fffffffu;
    const uint32_t small = bits_of(float_of(size) + 0.5f) - 0x3f000000u;
    const uint32_t large = ((size < 0x47800000u ? size : 0x47800000u) - 0x38000000u) >> 13;
    return (half)((size < 0x38800000u ? small : large) | (size > 0x7f800000u ? 0x200u : 0u) | (bits >> 16 & 0x8000u));
}
#endif

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

static inline half to_half_double(double x)
{
    return to_half_float(rounded_half_double(x));
}

#define rounded_half(x) _Generic((x), double: rounded_half_double, default: rounded_half_float)(x)
#define to_half(x) _Generic((x), double: to_half_double, default: to_half_float)(x)

#if defined __x86_64__ && defined __AVX2__ && defined __F16C__ && defined __GNUC__
/* Whole vectors by instructions: around calls, no vector stays in its register. */
#ifdef __AVX512F__
enum { HALVES = 16 };
#else
enum { HALVES = 8 };
#endif
typedef float wide_halves __attribute__((vector_size(4 * HALVES), aligned(4), may_alias));
typedef half narrow_halves __attribute__((vector_size(2 * HALVES), aligned(2), may_alias));

static inline void widen_halves(const half *from, float *to, int64_t count)
{
    int64_t i = 0;
    for (; i + HALVES <= count; i += HALVES) {
        wide_halves found;
        __asm__("vcvtph2ps %1, %0" : "=v"(found) : "m"(*(const narrow_halves *)(from + i)));
        *(wide_halves *)(to + i) = found;
    }
    for (; i < count; i++)
        to[i] = from_half(from[i]);
}

static inline void round_to_halves(const float *from, half *to, int64_t count)
{
    int64_t i = 0;
    for (; i + HALVES <= count; i += HALVES) {
        const wide_halves given = *(const wide_halves *)(from + i);
        __asm__("vcvtps2ph $0, %1, %0" : "=m"(*(narrow_halves *)(to + i)) : "v"(given));
    }
    for (; i < count; i++)
        to[i] = to_half_float(from[i]);
}
#else
static inline void widen_halves(const half *from, float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = from_half(from[i]);
}

static inline void round_to_halves(const float *from, half *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = to_half_float(from[i]);
}
#endif
""",
    "bfloat16": """
typedef uint16_t bfloat;

static inline float from_bfloat(bfloat b)
{
    return float_of((uint32_t)b << 16);
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
#define to_bfloat(x) (bfloat)(bits_of(rounded_bfloat(x)) >> 16)
""",
}


def narrow_functions(dtypes: Sequence[str]) -> str:
    """The conversions of some narrow dtypes; they use `<math.h>` and `<stdint.h>`."""
    return "".join([BITS, *(CONVERSIONS[dtype] for dtype in dtypes)])


def contiguous_halves(nest: LoopNest) -> list[int]:
    """The arrays of float16 of an elementwise nest, if all are contiguous along the vector loop; else none.

    Nor where a constant is stored, which is rounded once.
    """
    if nest.reductions or nest.across >= 0 or "inner" not in nest.levels[: len(nest.reads)]:
        return []
    inner = [i for i, dtype in enumerate(nest.arrays) if dtype == np.float16 and nest.levels[i] == "inner"]
    varying = [i for i in inner if nest.vector_strides[i] != 0]
    are_stored = all(i in varying for i in inner if i >= len(nest.reads))
    return varying if are_stored and all(nest.vector_strides[i] == 1 for i in varying) else []
