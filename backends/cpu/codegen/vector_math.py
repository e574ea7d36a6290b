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

import re
from collections.abc import Sequence

#: In glibc since 2.22, and since 2.35.
FIRST = ("sin", "cos", "exp", "log")
LATER = (
    "tan asin acos atan sinh cosh tanh asinh acosh atanh exp2 expm1 log2 log10 log1p erf erfc cbrt"  # of one argument
).split()
LATER_OF_TWO = ("atan2", "hypot")

#: A call of a function that has vector variants, in a kernel expression.
VECTOR_CALL = re.compile(rf"\b({'|'.join((*FIRST, *LATER, 'pow', *LATER_OF_TWO))})\(")


#: GCC prefers vectors of 256 bits even where there are some of 512. With these the C library's functions take half to a
#: third of the time, and conversions of float16; but loops over short rows take longer, as less of them is vectorised.
WIDE_VECTORS = """#if defined __AVX512F__ && defined __GNUC__ && !defined __clang__
#pragma GCC target("prefer-vector-width=512")
#endif
"""


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
        *(_declare(name, 2) for name in LATER_OF_TWO),
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

#: Coefficients of log2(1 + f) / f for 1 + f between sqrt(1 / 2) and sqrt(2), within 2**-35, and of 2**r for r between
#: -1 / 2 and 1 / 2, within 2**-28.9 and exact at 0, both by the least of the largest relative errors.
_LOG2 = (
    "0x1.71547652a1e8ep+0 -0x1.715476565d308p-1 0x1.ec709ebb934f6p-2 -0x1.71547097a4630p-2 0x1.277651fc80a55p-2 "
    "-0x1.ec72b59549070p-3 0x1.a63f4450b65e9p-3 -0x1.714170dd95ccfp-3 0x1.45291a18ddf89p-3 -0x1.252f39942daf7p-3 "
    "0x1.2871e149f45b6p-3 -0x1.2488e4a6f84f7p-3 0x1.3ce89511a19a3p-4"
).split()
_EXP2 = (
    "1.0 0x1.62e430af274a6p-1 0x1.ebfbdc3c2f3e2p-3 0x1.c6aee88e5a44ep-5 0x1.3b2d4cf2585bap-7 0x1.5f3e530925ea5p-10 "
    "0x1.41fbbbc413930p-13"
).split()


def _horner(name: str, variable: str, coefficients: Sequence[str]) -> str:
    *rest, last = coefficients
    steps = [f"    {name} = multiply_add_double({name}, {variable}, {each});" for each in reversed(rest)]
    return "\n".join([f"    double {name} = {last};", *steps])


#: pow of float32 within 1 unit in the last place, in float64, which any compiler vectorises; it follows `EXP`. The C
#: library's on vectors takes twice as long. x**y = 2**(y * (k + log2(m))) for abs(x) = 2**k * m; k and the whole part
#: of the exponent are read from the bits of doubles to which they are added. With branches, GCC would not vectorise
#: it.
POW = f"""
#ifdef FP_FAST_FMA
#define multiply_add_double(a, b, c) __builtin_fma(a, b, c)
#else
#define multiply_add_double(a, b, c) ((a) * (b) + (c))
#endif

static inline float pow_of_float(float x, float y)
{{
    const float size = fabsf(x);
    union {{ double x; uint64_t bits; }} whole = {{size}}, shifted, scale;
    const uint64_t above = whole.bits - 0x3fe6a09e667f3bcdu + (1024ull << 52);
    shifted.bits = 0x4330000000000000u | above >> 52;
    whole.bits -= (above & 0xfff0000000000000u) - (1024ull << 52);
    const double k = shifted.x - (0x1p52 + 1024), f = whole.x - 1;
{_horner("p", "f", _LOG2)}
    const double end = size == 0 ? -INFINITY : size;
    const double log = (size > 0) & (size < INFINITY) ? multiply_add_double(p, f, k) : end;
    const double t = (fabsf(y) == INFINITY) & (log == 0) ? 0 : y * log;
    const double e = t < -160 ? -160 : t > 130 ? 130 : t;
    shifted.x = e + 0x1.8p52;
    const double r = e - (shifted.x - 0x1.8p52);
{_horner("q", "r", _EXP2)}
    scale.bits = (shifted.bits << 52) + 0x3ff0000000000000u;
    const float power = (float)(q * scale.x);
    const float middle = y * 0.5f;
    const int is_whole = truncf(y) == y, is_odd = is_whole & (truncf(middle) != middle);
    const float found = (x < 0) & (size != INFINITY) & !is_whole ? NAN : copysignf(power, is_odd ? x : 1.0f);
    return (x == 1) | (y == 0) ? 1.0f : found;
}}

#undef pow
#define pow(x, y) _Generic((x), float: pow_of_float, default: pow)(x, y)
"""
