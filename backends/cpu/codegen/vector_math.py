"""The C library's mathematics on vectors, for loops that compilers vectorise.

glibc's `<math.h>` declares its vector variants (libmvec) only under -ffast-math,
which gives up NaN and infinities. The variants themselves do not: measured over 148
million float32 numbers of every magnitude and samples of float64, with AVX2 and
AVX-512, their values for NaN, infinities, signed zeros, denormals and huge arguments
are those of the scalar functions, and others within 4 units in the last place. So
`VECTOR_MATH` declares them to GCC, and as functions of their arguments alone, which
GCC does not know of functions that `FLAGS` make no builtins. Other compilers and
libraries skip it.

The remainder of a loop uses the scalar functions, so the last bits of an element depend on its index.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from backends.cpu.compiler import c_text

FOLDER = Path(__file__).parent

#: In glibc since 2.22, and since 2.35.
FIRST = ("sin", "cos", "exp", "log")
LATER = (
    "tan asin acos atan sinh cosh tanh asinh acosh atanh exp2 expm1 log2 log10 log1p erf erfc cbrt"  # of one argument
).split()
LATER_OF_TWO = ("atan2", "hypot")

#: The functions of `<math.h>` that kernels call: all of these, others of one floating operand, of two, and of one and
#: an int.
OF_ONE = (*FIRST, *LATER, *"fabs sqrt trunc floor ceil rint nearbyint round logb lgamma tgamma".split())
OF_TWO = ("pow", *LATER_OF_TWO, *"copysign fmod nextafter fmin fmax fdim remainder".split())
OF_INT = ("ldexp",)

#: Those for which compilers have instructions on all processors, so that they are no symbols of a library.
INSTRUCTIONS = ("fabs", "sqrt", "copysign")

#: A call of a function that has vector variants, in a kernel expression.
VECTOR_CALL = re.compile(rf"\b({'|'.join((*FIRST, *LATER, 'pow', *LATER_OF_TWO))})\(")

#: A function or macro, named by an expression, that may be one of the C library's that are not declared here.
UNKNOWN = re.compile(
    rf"\b(?!(?:{'|'.join((*OF_ONE, *OF_TWO, *OF_INT))}"
    r"|(?:quotient_of|philox|complex\d+)_\w+|_Generic|sizeof|INFINITY|NAN)\b)"
    r"(?:[a-z]\w*\(|[A-Z]\w)"
)

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


def vector_variants(names: Iterable[str]) -> str:
    """Declarations of the vector variants of some functions, which follow those of the functions."""
    first, later = (
        [_declare(name, 1 + (name in OF_TWO)) for name in names if name in group]
        for group in ((*FIRST, "pow"), (*LATER, *LATER_OF_TWO))
    )
    lines = ["#if defined __x86_64__ && defined __GLIBC__ && defined __GNUC__ && !defined __clang__"]
    for minor, declared in ((22, first), (35, later)):
        lines += [f"#if __GLIBC_PREREQ(2, {minor})", *declared, "#endif"] if declared else []
    return "\n".join([*lines, "#endif", ""]) if first or later else ""


#: All declarations, which replace ``#include <math.h>`` and ``<tgmath.h>``.
VECTOR_MATH = f"#include <math.h>\n{vector_variants((*FIRST, 'pow', *LATER, *LATER_OF_TWO))}"


def _declaration(name: str) -> str:
    """The declarations of one function, its vector variants, and the macro of `<tgmath.h>`, after `<stdint.h>`."""
    second = ", {0}" if name in OF_TWO else ", int" if name in OF_INT else ""
    linkage = "" if name in INSTRUCTIONS else "extern "
    lines = [
        f"{linkage}{dtype} {name}{suffix}({dtype}{second.format(dtype)});"
        for dtype, suffix in (("double", ""), ("float", "f"))
    ]
    parameters = "x, y" if second else "x"
    chosen = f"float: {name}f, default: {name}"
    of_both = f"float: _Generic((y), {chosen}), default: {name}" if name in OF_TWO else chosen
    macro = f"#define {name}({parameters}) _Generic((x), {of_both})({parameters})\n"
    return "\n".join([*lines, vector_variants([name]) + macro])


#: a * b + c with one rounding where the processor has an instruction for it.
MULTIPLY_ADD = c_text(FOLDER / "multiply_add.h", {})

#: exp of float32 and float64 within 3 and 2 units in the last place, which any compiler vectorises; it follows
#: `<tgmath.h>`. In vector loops, the C library's takes ten to a hundred times as long where an element is not finite,
#: overflows or underflows, one element after the other. exp(x) = 2**n * exp(s) for x = n * log(2) + s, with a
#: polynomial for s between -log(2) / 2 and log(2) / 2; of float32 it is the square of that for x / 2, for its root is
#: no denormal where the result is one. A denormal is computed scaled, and rounded to its unit by the addition of a
#: power of two, whose last bit is its unit: processors take a hundred cycles for a result that underflows. The
#: polynomials are of (exp(s) - 1 - s) / s**2.
EXP = c_text(FOLDER / "exp.h", {})

#: log of float32 and float64 within 2 units in the last place, as `EXP`, which it follows. The C library's takes
#: twenty times as long where an element is 0, negative, infinite or nan. log(x) = k * log(2) + log(1 + f) for
#: x = 2**k * (1 + f). A denormal's bits are an integer, which as a number is the denormal over its unit. For numbers
#: that are not positive and finite, f is finite, and k the result. The polynomials are, for 1 + f between
#: sqrt(1 / 2) and sqrt(2), of (log(1 + f) - f) / f**2; and, in powers of s**2, of (log((1 + s) / (1 - s)) / s - 2) /
#: s**2 for s = f / (2 + f).
LOG = c_text(FOLDER / "log.h", {})

#: tanh of float32 and float64 within 2 units in the last place (2.1 of float64), as `EXP`, which it follows. The C
#: library's takes twice as long on numbers; on vectors 0.7 to 0.9 of this one's time with AVX-512 in float32 and with
#: SSE2, and 1.1 to 1.6 of it otherwise.
#: tanh(x) = h / (1 + h) for h = expm1(2 * x) / 2 = 2**n * p + (2**n - 1) / 2, with n = 2 * x / log(2) rounded and
#: p = expm1(2 * s) / 2 for x = n * log(2) / 2 + s. As h - h * h / (1 + h) where h is below 1, and else 1 - 1 / (1 + h),
#: it has no rounded divisor's error. The polynomials are of (p - s) / s**2 by the least of the largest relative errors
#: of p.
TANH = c_text(FOLDER / "tanh.h", {})

#: pow of float32 within 0.6 units in the last place, in float64, which any compiler vectorises; it follows `EXP`. The
#: C library's on vectors takes twice as long. x**y = 2**(y * (k + log2(1 + f))) for abs(x) = 2**k * (1 + f); a
#: denormal's bits are an integer, as in `LOG`. As many of the steps as are exact are taken in float32, on vectors of
#: twice as many elements: f and k, and special values, which are all put into the exponent. For 0, infinity and nan,
#: k and f are finite and k is not 0, so an infinite or nan exponent decides; the exponent is 0 where the power's size
#: is 1 whatever the other operand is. With branches, GCC would not vectorise it. The polynomials are of log2(1 + f) / f
#: for 1 + f between sqrt(1 / 2) and sqrt(2), within 2**-35, and of 2**r for r between -1 / 2 and 1 / 2, within 2**-28.9
#: and exact at 0, both by the least of the largest relative errors.
POW = c_text(FOLDER / "pow.h", {})

#: fmod of float32 and float64, every bit as the C library's, which has no variants on vectors; it follows
#: `<tgmath.h>`. x - q * y of a whole q is exact by a fused multiplication and addition; where the quotient is rounded
#: up to a whole number, q is less by one. Where it is not below 2**24 or 2**53, or nan, all of the vector is the
#: library's. GCC calls the variants by their names, as it does the library's.
FMOD = c_text(FOLDER / "fmod.h", {})


#: op-tree's own definitions, each with the words of a text that calls it. A definition may call those before it.
OWN = (
    (frozenset({"multiply_add(", "multiply_add_double("}), MULTIPLY_ADD),
    *(
        (frozenset({f"{name}("}), made)
        for name, made in (("exp", EXP), ("log", LOG), ("tanh", TANH), ("pow", POW), ("fmod", FMOD))
    ),
)

#: All that kernels call, in place of headers, which with all vector variants would take half of the time to compile a
#: small kernel.
MATHEMATICS = (
    (frozenset({"INFINITY"}), "#define INFINITY __builtin_inff()\n"),
    (frozenset({"NAN"}), '#define NAN __builtin_nanf("")\n'),
    *(
        (frozenset(f"{name}{suffix}(" for suffix in ("", "f", "##S")), _declaration(name))
        for name in (*OF_ONE, *OF_TWO, *OF_INT)
        if name not in ("exp", "log", "tanh")  # which are op-tree's own
    ),
    *OWN,
)

#: The same with all of the headers' functions and macros, for expressions of users' ops.
WITH_HEADERS = ((frozenset[str](), f"{VECTOR_MATH}#include <tgmath.h>\n"), *OWN)
