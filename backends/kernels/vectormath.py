"""The C library's mathematics on vectors, for loops that compilers vectorise.

glibc's `<math.h>` tells GCC of its vector variants (libmvec) only under
-ffast-math, which gives up NaN and infinities. The variants themselves keep
them: measured over 148 million float32 numbers of every size and samples of float64, with AVX2 and with
AVX-512, NaN, infinities, signed zeros, denormals and huge arguments come out as
the scalar functions', and other values within 4 units in the last place. So
`VECTOR_MATH` tells GCC of them itself. Other compilers and libraries skip it.

A loop's last elements go through the scalar functions, so an element's last
bits depend on its place in the array.
"""

from __future__ import annotations

#: In glibc since 2.22, and since 2.35.
FIRST = ("sin", "cos", "exp", "log")
LATER = (
    "tan asin acos atan sinh cosh tanh asinh acosh atanh exp2 expm1 log2 log10 log1p erf erfc cbrt"  # of one argument
).split()


def _declare(name: str, arguments: int) -> str:
    return "\n".join(
        f'__attribute__((simd("notinbranch"))) {dtype} {name}{suffix}({", ".join([dtype] * arguments)});'
        for dtype, suffix in (("double", ""), ("float", "f"))
    )


#: To stand at the top of a source, in the place of its ``#include <math.h>``.
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
