"""The C library's mathematics on vectors, for loops that compilers vectorise.

glibc's `<math.h>` tells GCC of its vector variants (libmvec) only under
-ffast-math, which gives up NaN and infinities. The variants themselves keep
them: measured over 148 million float32 numbers of every size and samples of float64, with AVX2 and with
AVX-512, NaN, infinities, signed zeros, denormals and huge arguments come out as
the scalar functions', and other values within 4 units in the last place. So
`VECTOR_MATH` tells GCC of them itself, and that they are functions of their
arguments alone, which it does not know where `FLAGS` hide what they are from it.
Other compilers and libraries skip it.

A loop's remainder goes through the scalar functions, so an element's last bits
depend on its index.
"""

from __future__ import annotations

#: In glibc since 2.22, and since 2.35.
FIRST = ("sin", "cos", "exp", "log")
LATER = (
    "tan asin acos atan sinh cosh tanh asinh acosh atanh exp2 expm1 log2 log10 log1p erf erfc cbrt"  # of one argument
).split()


def _declare(name: str, arguments: int) -> str:
    return "\n".join(
        f'__attribute__((simd("notinbranch"), const)) {dtype} {name}{suffix}({", ".join([dtype] * arguments)});'
        for dtype, suffix in (("double", ""), ("float", "f"))
    )


#: Declarations of the vector variants, which replace ``#include <math.h>``.
VECTOR_MATH = "\n".join(
    (
        "#include <math.h>",
        "#if defined __x86_64__ && defined __GLIBC__ && defined __GNUC__ && !defined __clang__",
        "#if __GLIBC_PREREQ(2, 22)",
        *(_declare(name, 1) for name in FIRST),
        _declare("pow", 2),
        "#endif",
        "#if __GLIBC_PREREQ(2, 35)",
        *(_declare(name, 1) for name in LATER),
        *(_declare(name, 2) for name in ("atan2", "hypot")),
        "#endif",
        "#endif",
        "",
    )
)

#: exp of float32 within 3 units in the last place, which any compiler vectorises; it follows `<tgmath.h>`. In vector
#: loops, the C library's takes forty times as long where an element is below -87, one element after the other.
#: exp(x) = (2**n * exp(s))**2 for x / 2 = n * log(2) + s, with a polynomial for s between -log(2) / 2 and log(2) / 2;
#: a square, for its root is no denormal where the result is one.
EXP = """
#ifdef FP_FAST_FMAF
#define multiply_add(a, b, c) __builtin_fmaf(a, b, c)
#else
#define multiply_add(a, b, c) ((a) * (b) + (c))
#endif

static inline float exp_of_float(float x)
{
    const float t = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
    union { float x; uint32_t bits; } shifted = {multiply_add(t, 0x1.715476p-1f, 0x1.8p23f)}, scale;
    const float n = shifted.x - 0x1.8p23f;
    const float s = multiply_add(n, -0x1.7f7d1cp-20f, multiply_add(n, -0x1.62e4p-1f, t * 0.5f));
    float p = multiply_add(s, 0x1.6850e4p-10f, 0x1.123bccp-7f);
    p = multiply_add(p, s, 0x1.555b98p-5f);
    p = multiply_add(p, s, 0x1.55548ep-3f);
    p = multiply_add(p, s, 0x1.fffff8p-2f);
    p = multiply_add(p * s, s, s) + 1.0f;
    scale.bits = (shifted.bits << 23) + 0x3f800000u;
    const float root = p * scale.x;
    return root * root;
}

#undef exp
#define exp(x) _Generic((x), float: exp_of_float, default: exp)(x)
"""
