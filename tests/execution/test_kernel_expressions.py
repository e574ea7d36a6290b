"""Every op's kernel expression, compiled by a C compiler and run, gives what its NumPy value gives.

All expressions go into one file, a function for each op and operand dtypes, that
is compiled once with the warning for floats that silently become doubles as an error.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.expressions import CASES, Case, compare, operands_for

from backends.cpu.codegen.halves import CONVERSIONS, narrow_functions
from backends.cpu.codegen.printer import C
from backends.execution.printer_common import complex_type, quotients

#: The types that expressions of complex numbers use.
TYPES = "\n".join([line for name in ("complex64", "complex128") for line in complex_type(np.dtype(name), C)])

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
CPP_COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
FLAGS = [
    *("-O2", "-std=c11", "-shared", "-fPIC"),
    "-fwrapv",  # integers wrap, as NumPy's do
    "-ffp-contract=off",
    *("-Wall", "-Wdouble-promotion", "-Werror=double-promotion", "-Werror=implicit-function-declaration"),
]

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler: cc, gcc or clang")


def compile_cases(cases: list[Case], folder: Path) -> ctypes.CDLL:
    """A library of the cases' functions.

    Raises
    ------
    subprocess.CalledProcessError
        If the compiler refuses one; its output tells why.
    """
    path = folder / "kernels.c"
    path.write_text(
        "#include <stdint.h>\n#include <math.h>\n"
        + narrow_functions(list(CONVERSIONS))
        + "#include <tgmath.h>\n"
        + quotients("static inline")
        + TYPES
        + "\n".join(case.source() for case in cases)
    )
    library = folder / "kernels.so"
    command = [str(COMPILER), *FLAGS, str(path), "-o", str(library), "-lm"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(library))


def check_as_cpp(cases: list[Case], folder: Path) -> None:
    """Let a C++ compiler read the cases' functions, which it must find without a doubt which overload is meant."""
    path = folder / "kernels.cpp"
    head = "#include <cmath>\n#include <cstdint>\nusing namespace std;\ntypedef bool _Bool;\n"
    for x in ("half", "bfloat"):
        head += (
            f"struct {x} {{}};\nfloat from_{x}({x});\n{x} to_{x}(float);\ntemplate <class T> float rounded_{x}(T);\n"
        )
    path.write_text(head + quotients("inline") + TYPES + "\n".join(case.source() for case in cases))
    command = [str(CPP_COMPILER), "-std=c++17", "-fsyntax-only", "-Werror=double-promotion", str(path)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def run(case: Case, library: ctypes.CDLL, arrays: list[np.ndarray]) -> np.ndarray:
    """The value of the compiled expression."""
    out = np.empty(arrays[0].shape, case.result)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*arrays, out)]
    getattr(library, str(case))(*pointers, ctypes.c_int64(out.size))
    return out


def check(case: Case, library: ctypes.CDLL) -> None:
    """Raise unless the compiled expression gives the op's NumPy value."""
    arrays = operands_for(case)
    got = run(case, library, arrays)
    compare(case, arrays, got)


# Tests


def test_kernels_give_the_values_that_numpy_gives(sample: Any, tmp_path: Path) -> None:
    cases = sample(CASES)
    try:
        library = compile_cases(cases, tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the compiler refuses a kernel expression:\n{error.stderr[-4000:]}")
    wrong = []
    for case in cases:
        try:
            check(case, library)
        except AssertionError as error:
            wrong.append(f"{case}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(CPP_COMPILER is None, reason="no C++ compiler: c++, g++ or clang++")
def test_the_expressions_are_cpp_too_with_overloads_as_in_cuda(tmp_path: Path) -> None:
    try:
        check_as_cpp(CASES, tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the compiler refuses a kernel expression:\n{error.stderr[-4000:]}")


def test_every_elementwise_op_of_floats_has_a_kernel() -> None:
    names = {case.op.name for case in CASES if case.operands[0] == np.float32}
    wanted = """neg abs sgn sqrt square reciprocal exp exp2 expm1 log log2 log10 log1p safelog sig sig2 sech2 tanh tanh2
        sin cos tan arcsin arccos arctan sinh cosh arcsinh arccosh arctanh erf floor ceil trunc rint finite isnan isinf
        logical_not relu add sub mul div floor_divide mod pow arctan2 hypot logaddexp maximum minimum eq ne lt le gt ge
        logical_and logical_or logical_xor where cast fill_like broadcast_like"""
    assert set(wanted.split()) <= names


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("maximum", "{0} > {1} ? {0} : {1}"),  # loses a nan
        ("sgn", "({0} > 0) - ({0} < 0)"),  # makes a number of a nan
        ("neg", "0 - {0}"),  # loses the sign of a zero
        ("sig", "(T)1 / ((T)1 + exp(-{0}))"),  # is 0 too early
        ("mod", "fmod({0}, {1})"),  # has the wrong sign
    ],
)
def test_a_wrong_expression_is_found(name: str, expression: str, tmp_path: Path) -> None:
    case = next(c for c in CASES if c.op.name == name and c.operands[0] == np.float32)._replace(expression=expression)
    with pytest.raises(AssertionError, match="differs at"):
        check(case, compile_cases([case], tmp_path))


def test_a_literal_that_makes_doubles_of_floats_is_refused(tmp_path: Path) -> None:
    case = next(c for c in CASES if str(c) == "square_float32")._replace(expression="{0} * 1.5")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        compile_cases([case], tmp_path)
    assert "double-promotion" in caught.value.stderr
