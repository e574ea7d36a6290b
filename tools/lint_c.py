"""Check the C files of the routines with a compiler's warnings, in every configuration that a driver compiles.

    python tools/lint_c.py

It prints the warnings, and exits with 1 if there are any; without a C compiler it says so and exits with 0.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from backends.cpu.codegen.halves import CONVERSIONS, narrow_functions
from backends.cpu.codegen.vector_math import EXP, FMOD, LOG, MULTIPLY_ADD, POW, TANH, VECTOR_MATH
from backends.cpu.compiler import c_text, find_compiler
from backends.cpu.routines import attention
from backends.cpu.routines.vectors import FOLDER, vector_source
from backends.cpu.runtime import entry_source, sharing_source

#: A configuration need not use all functions of a file, nor a function all parameters of its role.
WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-function", "-Wno-unused-parameter", "-Wno-unknown-pragmas", "-Wno-psabi")


def sources() -> Iterator[tuple[str, str]]:
    """The names of configurations, and their sources."""
    yield (
        "exp.h, log.h, tanh.h, pow.h",
        f"#include <stdint.h>\n{VECTOR_MATH}#include <tgmath.h>\n{MULTIPLY_ADD}{EXP}{LOG}{TANH}{POW}{FMOD}",
    )
    yield "float16.h, bfloat16.h", f"#include <stdint.h>\n#include <math.h>\n{narrow_functions([*CONVERSIONS])}"
    yield "workers.c", sharing_source()
    yield "enter.c", entry_source()
    yield "loops.c", c_text(FOLDER / "loops.c", {})
    yield "small_matrices.c", c_text(FOLDER / "small_matrices.c", {"T": "float"})
    for number in ("float", "double"):
        for name in ("products.c", "stacked_products.c"):
            yield f"{name}, {number}", vector_source(name, number)
        for panel in (1, 2):
            yield f"convolution.c, {number}, {panel}", vector_source("convolution.c", number, PANEL=panel, DIRECT=0)
        yield f"convolution.c, {number}, direct", vector_source("convolution.c", number, PANEL=2, DIRECT=1)
        for is_gradient in (False, True):
            yield f"attention.c, {number}, {is_gradient}", attention.source(number, is_gradient)


def main() -> int:
    """Check all of them; return the exit status."""
    found = find_compiler()
    if found is None:
        print("there is no C compiler: the routines are not checked")
        return 0
    failed = 0
    for name, text in sources():
        command = [*found.command, "-fsyntax-only", "-march=native", *WARNINGS, "-x", "c", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        if done.stderr:
            failed = 1
            print(f"{name}:\n{done.stderr}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
