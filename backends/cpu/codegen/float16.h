
typedef uint16_t half;

#if defined __x86_64__ && defined __AVX2__ && defined __F16C__ && defined __GNUC__ && !defined __clang__
#define VARIANTS __attribute__((simd("notinbranch"), const, visibility("hidden")))
VARIANTS float half_widened(uint32_t);
VARIANTS uint32_t half_narrowed(float);
VARIANTS float half_rounded(float);
#include "instructions.h"
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
