"""Every op's kernel expression, compiled by a C compiler and run, gives what its NumPy value gives.

All expressions go into one file, a function for each op and operand dtypes, that
is compiled once with the warning for floats that silently become doubles as an error.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import optree.ops  # noqa: F401
from optree.registry import OPS
from optree.types import TensorType

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
CPP_COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
FLAGS = [
    *("-O2", "-std=c11", "-shared", "-fPIC"),
    "-fwrapv",  # integers wrap, as NumPy's do
    "-ffp-contract=off",
    *("-Wall", "-Wdouble-promotion", "-Werror=double-promotion", "-Werror=implicit-function-declaration"),
]

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler: cc, gcc or clang")

C_TYPES = {
    "bool": "_Bool",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int32": "int32_t",
    "uint32": "uint32_t",
    "int64": "int64_t",
    "uint64": "uint64_t",
    "float32": "float",
    "float64": "double",
}

#: Ops whose value the C library and NumPy may round differently, and by how many units in the last place at most.
ROUNDED = """exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh
    arctanh arctan2 hypot pow sig sig2 sech2 tanh2 safelog erf logaddexp"""
ULPS = {**dict.fromkeys(ROUNDED.split(), 4), "sech2": 8}  # which squares the rounding of cosh

#: Ops that may give either zero where 0.0 and -0.0 tie: NumPy's own answer depends on the processor.
EITHER_ZERO = {"maximum", "minimum", "relu"}


class Case(NamedTuple):
    """An op with the dtypes that its operands are computed in, and that of its value."""

    op: Any
    operands: tuple[np.dtype, ...]
    result: np.dtype
    expression: str

    def __str__(self) -> str:
        props = [str(value) for value in self.op.props.values()]
        return "_".join([self.op.name, *props, *map(str, dict.fromkeys(self.operands))])

    def source(self) -> str:
        """The C function that applies the expression to arrays."""
        types = [C_TYPES[str(dtype)] for dtype in self.operands]
        result = C_TYPES[str(self.result)]
        names = [f"x{i}" for i in range(len(types))]
        arrays = "".join(f"const {t} *a{i}, " for i, t in enumerate(types))
        loads = "".join(f"        const {t} x{i} = a{i}[i];\n" for i, t in enumerate(types))
        uses = "".join(f"        (void){x};\n" for x in names)
        return (
            f"void {self}({arrays}{result} *out, int64_t n) {{\n"
            f"    typedef {result} T;\n    for (int64_t i = 0; i < n; i++) {{\n{loads}{uses}"
            f"        out[i] = (T)({self.expression.format(*names)});\n    }}\n}}\n"
        )


def _cases() -> Iterator[Case]:
    for cls in OPS.values():
        if cls.kernel is None or not cls.__module__.startswith("optree."):
            continue
        count = len(cls.operands)
        rows = [(np.dtype(name),) * count for name in C_TYPES]
        if count == 2:
            rows += [tuple(map(np.dtype, row)) for row in (("int64", "uint64"), ("uint64", "int64"))]
        seen = set()
        for props, dtypes in product(_props(cls), rows):
            case = _case(cls.make(**props), dtypes)
            if case is not None and str(case) not in seen:
                seen.add(str(case))
                yield case


def _props(cls: Any) -> list[dict[str, Any]]:
    """The parameters that an op is tried with: those of its examples."""
    found = {str(props): props for _, props in cls.examples} if cls.prop_names() else {}
    return list(found.values()) or [{}]


def _case(op: Any, dtypes: tuple[np.dtype, ...]) -> Case | None:
    """The case of an op on operands of these dtypes; None where it has no value or no kernel for them."""
    bound = op.bind([TensorType(dtype, ()) for dtype in dtypes], None)
    try:
        *operands, result = bound.resolve_dtypes(*dtypes)
    except TypeError:
        return None
    expression = bound.kernel_for(*operands) if hasattr(bound, "kernel_for") else bound.kernel
    if expression is None or any(str(dtype) not in C_TYPES for dtype in (*operands, result)):
        return None
    return Case(bound, tuple(operands), result, expression)


def compile_cases(cases: list[Case], folder: Path) -> ctypes.CDLL:
    """A library of the cases' functions.

    Raises
    ------
    subprocess.CalledProcessError
        If the compiler refuses one; its output tells why.
    """
    path = folder / "kernels.c"
    path.write_text("#include <stdint.h>\n#include <tgmath.h>\n\n" + "\n".join(case.source() for case in cases))
    library = folder / "kernels.so"
    command = [str(COMPILER), *FLAGS, str(path), "-o", str(library), "-lm"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(library))


def check_as_cpp(cases: list[Case], folder: Path) -> None:
    """Let a C++ compiler read the cases' functions, which it must find without a doubt which overload is meant."""
    path = folder / "kernels.cpp"
    head = "#include <cmath>\n#include <cstdint>\nusing namespace std;\ntypedef bool _Bool;\n\n"
    path.write_text(head + "\n".join(case.source() for case in cases))
    command = [str(CPP_COMPILER), "-std=c++17", "-fsyntax-only", "-Werror=double-promotion", str(path)]
    subprocess.run(command, check=True, capture_output=True, text=True)


# Values


def special_values(dtype: np.dtype) -> np.ndarray:
    """Values at which functions have been wrong."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        near = [limits.min, limits.min + 1, limits.max - 1, limits.max, 0, 1, 2, 3, 5, 7, 10, 100]
        return np.array(near + ([-1, -2, -3, -7, -10, -100] if dtype.kind == "i" else []), dtype)
    info = np.finfo(dtype)
    sizes = [0.0, info.smallest_subnormal, 3 * info.smallest_subnormal, info.tiny, 1e-22, info.eps]
    sizes += [0.25, 0.46875, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.5, 6.0, 10.0, 88.0, 95.0, 104.0, 710.0, 735.0, 746.0]
    sizes += [2.0**22 + 0.5, 2.0**31, 2.0**53, info.max, np.inf]
    return np.array([*sizes, *(-size for size in sizes), np.nan], dtype)


def random_values(dtype: np.dtype, count: int, rng: np.random.Generator) -> np.ndarray:
    """Half of the values near zero, half over the whole range."""
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        small = rng.integers(max(limits.min, -20), 20, count, dtype, endpoint=True)
        return np.where(rng.random(count) < 0.5, small, rng.integers(limits.min, limits.max, count, dtype, True))
    wide = rng.standard_normal(count) * 10.0 ** rng.uniform(-8, 8, count)
    return np.where(rng.random(count) < 0.5, rng.standard_normal(count) * 3, wide).astype(dtype)


def operands_for(case: Case) -> list[np.ndarray]:
    """Operands of one length: each special value with each, random ones, and equal ones."""
    rng = np.random.default_rng(7)
    specials = [special_values(dtype) for dtype in case.operands]
    if len(specials) > 2:  # a choice: every pairing is more than is needed
        specials = [rng.choice(values, 400) for values in specials]
    else:
        specials = [grid.ravel() for grid in np.meshgrid(*specials, indexing="ij")]
    drawn = [random_values(dtype, 500, rng) for dtype in case.operands]
    with np.errstate(all="ignore"):
        equal = [drawn[0].astype(dtype) for dtype in case.operands]
    columns = zip(specials, drawn, equal, strict=True)
    arrays = [np.ascontiguousarray(np.concatenate(parts)) for parts in columns]
    keep = _is_defined(case, arrays)
    return [array[keep] for array in arrays]


def _is_defined(case: Case, arrays: list[np.ndarray]) -> np.ndarray:
    """Where C and NumPy say what the value is: a float cast to an integer dtype must fit it."""
    if case.op.name != "cast" or case.operands[0].kind != "f" or case.result.kind not in "iu":
        return np.ones(arrays[0].shape, bool)
    limits = np.iinfo(case.result)
    whole = np.trunc(arrays[0])
    return (whole >= float(limits.min)) & (whole < float(limits.max))


def ulps_between(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The distance in units in the last place; 0 for two nans, inf for a nan or inf that only one has."""
    with np.errstate(all="ignore"):
        unit = np.spacing(np.maximum(np.abs(got), np.abs(wanted)))
        distance = np.abs(got - wanted) / unit
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    distance = np.where(np.isfinite(got) & np.isfinite(wanted), distance, np.inf)
    return np.where(same, 0.0, distance)


def run(case: Case, library: ctypes.CDLL, arrays: list[np.ndarray]) -> np.ndarray:
    """The value of the compiled expression."""
    out = np.empty(arrays[0].shape, case.result)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*arrays, out)]
    getattr(library, str(case))(*pointers, ctypes.c_int64(out.size))
    return out


def _numpy_value(case: Case, arrays: list[np.ndarray]) -> np.ndarray:
    if case.op.name == "fill_like":  # it takes one value for all elements, and here each is tried
        return arrays[1]
    with np.errstate(all="ignore"):
        return np.asarray(case.op.value(*arrays))


def check(case: Case, library: ctypes.CDLL) -> None:
    """Raise unless the compiled expression gives the op's NumPy value."""
    arrays = operands_for(case)
    got = run(case, library, arrays)
    wanted = _numpy_value(case, arrays)
    assert wanted.dtype == case.result
    if case.result.kind == "f":
        wrong = ulps_between(got, wanted) > ULPS.get(case.op.name, 0)
        if case.op.name not in EITHER_ZERO:
            wrong |= (got == 0) & (wanted == 0) & (np.signbit(got) != np.signbit(wanted))
    else:
        wrong = got != wanted
    places = np.flatnonzero(wrong)[:5]
    shown = [f"{tuple(a[i] for a in arrays)}: kernel {got[i]!r}, NumPy {wanted[i]!r}" for i in places]
    assert not shown, f"{case.op.name}: `{case.expression}` differs at " + "; ".join(shown)


# Tests

CASES = list(_cases())


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    try:
        return compile_cases(CASES, tmp_path_factory.mktemp("kernels"))
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the compiler refuses a kernel expression:\n{error.stderr[-4000:]}")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_gives_the_value_that_numpy_gives(case: Case, library: ctypes.CDLL) -> None:
    check(case, library)


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
