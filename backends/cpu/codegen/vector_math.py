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


def _horner(name: str, variable: str, coefficients: Sequence[str], dtype: str = "double") -> str:
    """C that evaluates a polynomial, whose coefficients are in ascending order, into a new variable."""
    *rest, last = [each + "f" * (dtype == "float") for each in coefficients]
    call = "multiply_add_double" if dtype == "double" else "multiply_add"
    steps = [f"    {name} = {call}({name}, {variable}, {each});" for each in reversed(rest)]
    return "\n".join([f"    {dtype} {name} = {last};", *steps])


#: Coefficients of (exp(s) - 1 - s) / s**2 for s between -log(2) / 2 and log(2) / 2, of float32 and float64.
_EXP_OF_FLOAT = "0x1.fffff8p-2 0x1.55548ep-3 0x1.555b98p-5 0x1.123bccp-7 0x1.6850e4p-10".split()
_EXP_OF_DOUBLE = (
    "0x1.0000000000001p-1 0x1.5555555555556p-3 0x1.5555555553d63p-5 0x1.11111111109b3p-7 0x1.6c16c1788bd90p-10 "
    "0x1.a01a01a7c41d5p-13 0x1.a019b90d2ae7ap-16 0x1.71de0dae63bb3p-19 0x1.289185613a3d6p-22 0x1.af38a9b0ec855p-26"
).split()

#: exp of float32 and float64 within 3 and 2 units in the last place, which any compiler vectorises; it follows
#: `<tgmath.h>`. In vector loops, the C library's takes ten to a hundred times as long where an element is not finite,
#: overflows or underflows, one element after the other. exp(x) = 2**n * exp(s) for x = n * log(2) + s, with a
#: polynomial for s between -log(2) / 2 and log(2) / 2; of float32 it is the square of that for x / 2, for its root is
#: no denormal where the result is one. A denormal is computed scaled, and rounded to its unit by the addition of a
#: power of two, whose last bit is its unit: processors take a hundred cycles for a result that underflows.
EXP = f"""
#ifdef FP_FAST_FMAF
#define multiply_add(a, b, c) __builtin_fmaf(a, b, c)
#else
#define multiply_add(a, b, c) ((a) * (b) + (c))
#endif
#ifdef FP_FAST_FMA
#define multiply_add_double(a, b, c) __builtin_fma(a, b, c)
#else
#define multiply_add_double(a, b, c) ((a) * (b) + (c))
#endif

static inline float exp_of_float(float x)
{{
    const float t = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
    union {{ float x; uint32_t bits; }} shifted = {{multiply_add(t, 0x1.715476p-1f, 0x1.8p23f)}}, scale, found;
    const float n = shifted.x - 0x1.8p23f;
    const float s = multiply_add(n, -0x1.7f7d1cp-20f, multiply_add(n, -0x1.62e4p-1f, t * 0.5f));
{_horner("q", "s", _EXP_OF_FLOAT, "float")}
    const int is_small = t < -0x1.5d58ap6f;
    scale.bits = (shifted.bits << 23) + ((is_small ? 127u + 75u : 127u) << 23);
    const float root = (multiply_add(q * s, s, s) + 1.0f) * scale.x;
    found.x = root * root + (is_small ? 0x1p24f : 0);
    found.bits -= is_small ? (127u + 24u) << 23 : 0;
    return found.x;
}}

static inline double exp_of_double(double x)
{{
    const double t = x < -746.0 ? -746.0 : x;
    union {{ double x; uint64_t bits; }} shifted = {{multiply_add_double(t, 0x1.71547652b82fep+0, 0x1.8p52)}}, found;
    const double n = shifted.x - 0x1.8p52;
    const double s = multiply_add_double(n, -0x1.cf79abc9e3b3ap-40, multiply_add_double(n, -0x1.62e42fefap-1, t));
{_horner("q", "s", _EXP_OF_DOUBLE)}
    const int is_small = t < -0x1.6232bdd7abcd2p9;
    found.x = multiply_add_double(q * s, s, s) + 1.0;
    found.bits += (shifted.bits << 52) + (is_small ? 1076ull << 52 : 0);
    found.x += is_small ? 0x1p54 : 0;
    found.bits -= is_small ? (1023ull + 54ull) << 52 : 0;
    return x <= 0x1.62e42fefa39efp9 ? found.x : x + INFINITY;
}}

#undef exp
#define exp(x) _Generic((x), float: exp_of_float, default: exp_of_double)(x)
"""

#: Coefficients of (log(1 + f) - f) / f**2 for 1 + f between sqrt(1 / 2) and sqrt(2); and, in powers of s**2, of
#: (log((1 + s) / (1 - s)) / s - 2) / s**2 for s = f / (2 + f).
_LOG_OF_FLOAT = (
    "-0x1.fffff8p-2 0x1.555550p-2 -0x1.000428p-2 0x1.99a3fcp-3 -0x1.54275ap-3 0x1.2270fcp-3 -0x1.0f3748p-3 "
    "0x1.084bdep-3 -0x1.3838e4p-4"
).split()
_LOG_OF_DOUBLE = (
    "0x1.5555555555558p-1 0x1.99999999952e2p-2 0x1.2492492df148dp-2 0x1.c71c62e5800a1p-3 0x1.7462b4ab2ef6bp-3 "
    "0x1.39fe606542ddep-3 0x1.2b584aae78a57p-3"
).split()

#: log of float32 and float64 within 2 units in the last place, as `EXP`, which it follows. The C library's takes
#: twenty times as long where an element is 0, negative, infinite or nan. log(x) = k * log(2) + log(1 + f) for
#: x = 2**k * (1 + f). A denormal's bits are an integer, which as a number is the denormal over its unit. For numbers
#: that are not positive and finite, f is finite, and k the result.
LOG = f"""
static inline float log_of_float(float x)
{{
    union {{ float x; uint32_t bits; }} whole = {{x}}, integer;
    const int is_small = whole.bits < 1u << 23;
    integer.x = (float)(int32_t)whole.bits;
    whole.bits = is_small ? integer.bits : whole.bits;
    const uint32_t above = whole.bits - 0x3f3504f3u;
    float k = (float)((int32_t)above >> 23) - (is_small ? 149.0f : 0.0f);
    whole.bits -= above & 0xff800000u;
    const float f = whole.x - 1.0f;
{_horner("q", "f", _LOG_OF_FLOAT, "float")}
    k = x < INFINITY ? k : x;
    k = x < 0 ? NAN : k;
    k = x == 0 ? -INFINITY : k;
    return multiply_add(k, 0x1.62e4p-1f, multiply_add(k, 0x1.7f7d1cp-20f, q * (f * f)) + f);
}}

static inline double log_of_double(double x)
{{
    union {{ double x; uint64_t bits; }} whole = {{x}}, integer = {{x}}, power;
    const int is_small = whole.bits < 1ull << 52;
    integer.bits |= (1023ull + 52ull) << 52;
    integer.x -= 0x1p52;
    whole.bits = is_small ? integer.bits : whole.bits;
    const uint64_t above = whole.bits - 0x3fe6a09e667f3bcdu + (2048ull << 52);
    power.bits = (1023ull + 52ull) << 52 | above >> 52;
    whole.bits -= (above & 0xfff0000000000000u) - (2048ull << 52);
    double k = power.x - (is_small ? 0x1p52 + 2048 + 1074 : 0x1p52 + 2048);
    const double f = whole.x - 1, square = 0.5 * f * f, s = f / (2 + f), z = s * s;
{_horner("q", "z", _LOG_OF_DOUBLE)}
    k = x < INFINITY ? k : x;
    k = x < 0 ? NAN : k;
    k = x == 0 ? -INFINITY : k;
    const double rest = multiply_add_double(s, multiply_add_double(q, z, square), k * 0x1.cf79abc9e3b3ap-40) - square;
    return multiply_add_double(k, 0x1.62e42fefap-1, rest + f);
}}

#undef log
#define log(x) _Generic((x), float: log_of_float, default: log_of_double)(x)
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


#: pow of float32 within 0.6 units in the last place, in float64, which any compiler vectorises; it follows `EXP`. The
#: C library's on vectors takes twice as long. x**y = 2**(y * (k + log2(1 + f))) for abs(x) = 2**k * (1 + f); a
#: denormal's bits are an integer, as in `LOG`. As many of the steps as are exact are taken in float32, on vectors of
#: twice as many elements: f and k, and special values, which are all put into the exponent. For 0, infinity and nan,
#: k and f are finite and k is not 0, so an infinite or nan exponent decides; the exponent is 0 where the power's size
#: is 1 whatever the other operand is. With branches, GCC would not vectorise it.
POW = f"""
static inline float pow_of_float(float x, float y)
{{
    const float size = fabsf(x), end = size == 0 ? INFINITY : size;
    const float grown = (size > 0) & (size < INFINITY) ? y : y * end;
    const float exponent = (y == 0) | (size == 1) ? 0 : grown;
    union {{ float x; uint32_t bits; }} whole = {{size}}, integer;
    const int is_small = whole.bits < 1u << 23;
    integer.x = (float)(int32_t)whole.bits;
    whole.bits = is_small ? integer.bits : whole.bits;
    const uint32_t above = whole.bits - 0x3f3504f3u;
    const int32_t k = ((int32_t)above >> 23) - (is_small ? 149 : 0);
    whole.bits -= above & 0xff800000u;
    const double f = whole.x - 1.0f;
{_horner("p", "f", _LOG2)}
    const double t = exponent * multiply_add_double(p, f, k), limited = t > 130 ? 130 : t;
    const double e = limited < -160 ? -160 : limited;
    union {{ double x; uint64_t bits; }} shifted = {{e + 0x1.8p52}}, power;
    const double r = e - (shifted.x - 0x1.8p52);
{_horner("q", "r", _EXP2)}
    power.x = q;
    power.bits += shifted.bits << 52;
    const float middle = y * 0.5f;
    const int is_whole = truncf(y) == y;
    const uint32_t odd = is_whole & (truncf(middle) != middle) ? 1u << 31 : 0;
    whole.x = x;
    integer.x = (float)power.x;
    integer.bits ^= whole.bits & odd;
    return (x < 0) & (size != INFINITY) & !is_whole ? NAN : integer.x;
}}

#undef pow
#define pow(x, y) _Generic((x), float: pow_of_float, default: pow)(x, y)
"""

#: The variants of a function on vectors, by the prefixes of the names under which GCC calls them: the processor's
#: feature, and the bytes of a vector.
_VARIANTS = (("b", "", 16), ("c", "", 32), ("d", "", 32), ("e", "__AVX512F__", 64))


def _fmod_of(dtype: str, suffix: str, bits: int) -> str:
    """The remainder of one dtype: of scalars, and of vectors."""
    name, size = f"fmod_of_{dtype}", {"float": 4, "double": 8}[dtype]
    word = {"float": "int", "double": "long long"}[dtype]  # as wide, or GCC leaves the loops over lanes scalar
    lines = [
        f"static inline {word} is_near_{dtype}({dtype} x, {dtype} y)",
        "{",
        f"    return fabs{suffix}(x / y) < 0x1p{bits}{suffix};",
        "}",
        "",
        f"static inline {dtype} near_{dtype}({dtype} x, {dtype} y)",
        "{",
        f"    const {dtype} q = trunc{suffix}(x / y), r = __builtin_fma{suffix}(-q, y, x);",
        f"    const {dtype} less = __builtin_fma{suffix}(copysign{suffix}(1, q) - q, y, x);",
        f"    const {word} is_over = (r != 0) & ((r < 0) != (x < 0));",
        f"    return q == 0 ? x : copysign{suffix}(is_over ? less : r, x);",
        "}",
        "",
        f'__attribute__((simd("notinbranch"), const, visibility("hidden"))) {dtype} {name}({dtype}, {dtype});',
        f'__attribute__((used, visibility("hidden"))) {dtype} {name}_alone({dtype}, {dtype}) __asm__("{name}");',
        f"{dtype} {name}_alone({dtype} x, {dtype} y)",
        "{",
        f"    return is_near_{dtype}(x, y) ? near_{dtype}(x, y) : fmod{suffix}(x, y);",
        "}",
    ]
    for letter, feature, width in _VARIANTS:
        lanes = width // size
        vector, variant = f"{dtype}_{letter}", f"{name}_{letter}"
        found = [
            f"typedef {dtype} {vector} __attribute__((vector_size({width})));",
            f'__attribute__((used, visibility("hidden"))) {vector} {variant}({vector}, {vector})',
            f'    __asm__("_ZGV{letter}N{lanes}vv_{name}");',
            f"{vector} {variant}({vector} x, {vector} y)",
            "{",
            f"    {vector} r;",
            f"    {word} far = 0;",
            f"    for (int i = 0; i < {lanes}; i++) {{",
            f"        r[i] = near_{dtype}(x[i], y[i]);",
            f"        far |= !is_near_{dtype}(x[i], y[i]);",
            "    }",
            f"    for (int i = 0; far && i < {lanes}; i++)",
            f"        r[i] = fmod{suffix}(x[i], y[i]);",
            "    return r;",
            "}",
        ]
        lines += ["", *([f"#ifdef {feature}", *found, "#endif"] if feature else found)]
    return "\n".join(lines)


#: fmod of float32 and float64, every bit as the C library's, which has no variants on vectors; it follows
#: `<tgmath.h>`. x - q * y of a whole q is exact by a fused multiplication and addition; where the quotient is rounded
#: up to a whole number, q is less by one. Where it is not below 2**24 or 2**53, or nan, all of the vector is the
#: library's. GCC calls the variants by their names, as it does the library's.
FMOD = f"""
#if defined __x86_64__ && defined __AVX2__ && defined __FMA__ && defined __GNUC__ && !defined __clang__
{_fmod_of("float", "f", 24)}

{_fmod_of("double", "", 53)}

#undef fmod
#define fmod(x, y) _Generic((x), float: fmod_of_float, default: fmod_of_double)(x, y)
#endif
"""
