"""The C library's mathematics on vectors, for loops that compilers vectorise.

glibc's `<math.h>` declares its vector variants (libmvec) only under -ffast-math,
which gives up NaN and infinities. The variants themselves do not: measured over 148
million float32 numbers of every magnitude and samples of float64, with AVX2 and
AVX-512, their values for NaN, infinities, signed zeros, denormals and huge arguments
are those of the scalar functions, and others within 4 units in the last place. So
`VECTOR_MATH` declares them to GCC, and as functions of their arguments alone, which
GCC does not know of functions that `FLAGS` make no builtins. Other compilers and
libraries skip it.

The remainder of a loop uses the scalar functions, so the last bits of an element
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
#: a square, for its root is no denormal where the result is one. What is 0 is chosen, not computed: processors take a
#: hundred cycles for a result that underflows, and half of the scores of causal attention are -inf.
EXP = """
#ifdef FP_FAST_FMAF
#define multiply_add(a, b, c) __builtin_fmaf(a, b, c)
#else
#define multiply_add(a, b, c) ((a) * (b) + (c))
#endif

static inline float exp_of_float(float x)
{
    const float t = x < -104.0f ? 0.0f : x > 89.0f ? 89.0f : x;
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
    return x < -104.0f ? 0.0f : root * root;
}

#undef exp
#define exp(x) _Generic((x), float: exp_of_float, default: exp)(x)
"""
