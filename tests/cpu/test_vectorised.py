"""Compilers take the loop of every op's kernel into vectors, by their own report."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.compiling import in_one_file

from backends import source
from backends.cpu.compiler import FLAGS, OPTIONAL_FLAGS, find_compiler
from optree import grad
from optree.dtypes import is_floating
from optree.errors import OptreeError
from optree.op.examples import examples_in
from optree.op.traits import ElementwiseOperator, NumberOperator, ReductionOperator, kernel_of
from optree.ops.elementwise import FloorDivide, Fmod, LogB, Mod, NextAfter, ScaleB
from optree.registry import OPS, f
from optree.tree.types import TensorType, as_dtype

#: Of all dtypes, one of each size and kind that kernels treat alike.
DTYPES = ("bool", "uint8", "int32", "int64", "uint64", "float16", "bfloat16", "float32", "float64")

#: A processor that there are many of. With AVX2 alone, GCC takes no conversions of 64-bit integers into vectors.
TARGET = ["-march=x86-64-v4"] if platform.machine().lower() in ("x86_64", "amd64") else []

#: What a compiler is to tell of, and how it tells that a loop is in vectors, and that one is not.
REPORTS = {
    "gcc": ("-fopt-info-vec-optimized-missed", "optimized: loop vectorized", "missed: couldn't vectorize loop"),
    "clang": ("-Rpass=loop-vectorize -Rpass-missed=loop-vectorize", "remark: vectorized loop", "remark: loop not vec"),
}


def _compiler() -> tuple[str, str]:
    """The command of the C compiler, and which of those that report it is."""
    found = find_compiler()
    if found is None:
        pytest.skip("there is no C compiler")
    told = subprocess.run([*found.command, "--version"], capture_output=True, text=True).stdout
    kind = "clang" if "clang" in told else "gcc" if "Free Software Foundation" in told else ""
    if not kind:
        pytest.skip("neither GCC nor clang")
    if kind == "gcc" and int(re.search(r"\) (\d+)", told)[1]) < 12:  # type: ignore[index]
        pytest.skip("GCC older than 12, which vectorises less")
    return str(found), kind


def _end(lines: list[str], start: int) -> int:
    """The number of the last line of the loop below line `start`, both from 1."""
    margin = len(lines[start]) - len(lines[start].lstrip())
    for number, line in enumerate(lines[start + 1 :], start + 2):
        if line.strip() and line.strip() != "{" and len(line) - len(line.lstrip()) <= margin:
            return number if line.strip() == "}" else number - 1
    return len(lines)


def scalar_loops(text: str, folder: Path) -> list[str]:
    """The loops that are meant for vectors, each by the line in its middle, and that the compiler leaves scalar."""
    command, kind = _compiler()
    flags, done, missed = REPORTS[kind]
    (folder / "kernel.c").write_text(text)
    optional = [
        flag for flag, *_ in OPTIONAL_FLAGS if flag != "-march=native" and (kind == "gcc" or "-fno-" not in flag)
    ]
    arguments = [*command.split(), *FLAGS, *TARGET, *optional, *flags.split(), "-c", "kernel.c", "-o", "kernel.o"]
    ran = subprocess.run(arguments, cwd=folder, capture_output=True, text=True)
    if "unknown value" in ran.stderr or "bad value" in ran.stderr or "-march" in ran.stderr:
        pytest.skip("the compiler does not know the processor")
    assert ran.returncode == 0, ran.stderr
    lines = text.splitlines()
    meant = [i for i, line in enumerate(lines, 1) if "#pragma omp simd" in line]

    ends = {start: _end(lines, start) for start in meant}

    def loops(said: str) -> set[int]:
        told = map(int, re.findall(rf"kernel\.c:(\d+):\d+: {re.escape(said)}", ran.stderr))
        return {max((start for start in meant if start <= line <= ends[start]), default=0) for line in told}

    # What is neither has become a call of memset, or nothing at all.
    return [lines[start + 2].strip() for start in sorted((loops(missed) - loops(done)) & set(meant))]


def _kernels(op: Any, dtype: str, wanted: str) -> dict[str, Any]:
    """A tree of one op: on arrays, or with a number in the place of the last of two."""
    operands = [TensorType(dtype, (64,))(name) for name in "xyz"[: len(op.operands)]]
    number = True if dtype == "bool" else 7 if dtype[0] in "iu" else 3.5
    trees = {}
    for form, given in (("arrays", operands), ("a number", [*operands[:-1], number])):
        if form == (wanted if len(operands) == 2 else "arrays"):
            try:
                trees[form] = op(*given)
            except OptreeError:  # there is none for the dtype
                continue
    return trees


def _calls(op: Any, dtype: str) -> bool:
    """Whether the kernel calls the C library, of whose vector variants clang is not told."""
    expression = kernel_of(op, [np.dtype(dtype)] * len(op.operands)) or ""
    return bool(re.search(r"\b(?!fabs|floor|ceil|trunc|rint|sqrt|copysign)[a-z]\w*\(", expression))


def _why_scalar(op: Any, dtype: np.dtype, by_number: bool) -> str:
    """The reason why C compilers do not vectorise an op's kernel for operands of a dtype; empty if they do."""
    if isinstance(op, NextAfter | ScaleB | LogB):
        return f"the C library's {op.name}, as NumPy's, is not vectorised"
    divides = isinstance(op, FloorDivide | Mod | Fmod) and not (by_number and isinstance(op, NumberOperator))
    is_wide = not is_floating(dtype) and dtype.itemsize == 8
    return "there is no SIMD division of 64-bit integers" if divides and is_wide else ""


@pytest.mark.matrix
@pytest.mark.parametrize(
    "name", [n for n, op in sorted(OPS.items()) if issubclass(op, ElementwiseOperator) and op.kernel]
)
def test_the_loop_of_an_ops_kernel_is_in_vectors(name: str, tmp_path: Path) -> None:
    cls = OPS[name]
    is_clang = _compiler()[1] == "clang"
    kernels: list[str] = []
    others: dict[str, str] = {}
    for props in {str(props): props for _, props in examples_in(cls).cases}.values() if cls.prop_names() else [{}]:
        op = cls.make(**props)
        for turn, dtype in enumerate(DTYPES, len(name)):  # ops in turn take a number in every second dtype
            for form, tree in _kernels(op, dtype, ("arrays", "a number")[turn % 2]).items():
                why = _why_scalar(op, as_dtype(dtype), form == "a number")
                if why:
                    others |= dict.fromkeys(source(tree), why)
                elif not (is_clang and _calls(op, dtype)):
                    kernels += source(tree)
    assert not scalar_loops(in_one_file(kernels), tmp_path)
    for reason in set(others.values()):
        told = [text for text, why in others.items() if why == reason]
        assert scalar_loops(in_one_file(told), tmp_path), f"{name} is in vectors, and says: {reason}"


@pytest.mark.parametrize(
    "name", [n for n, op in sorted(OPS.items()) if issubclass(op, ReductionOperator) and op.accumulator]
)
def test_the_loop_of_a_reduction_is_in_vectors(name: str, tmp_path: Path) -> None:
    dtypes = ("bool", "uint8", "int32", "int64", "float16", "float32", "float64")
    text = in_one_file([kernel for d in dtypes for kernel in source(OPS[name].make()(TensorType(d, (64, 64))("x")))])
    loops = text.replace("#pragma omp simd\n", "#pragma of a loop that accumulates nothing\n")
    assert not scalar_loops(loops, tmp_path)


#: Lines that users write, in which an op's loop was in vectors alone and not beside others.
IDIOMS: dict[str, Callable[[Any], Any]] = {
    "clip": lambda x: np.clip(x, -1, 1),
    "relu6": lambda x: np.minimum(np.maximum(x, 0), 6),
    "median of three": lambda x: np.maximum(np.minimum(x, x + 1), np.minimum(np.maximum(x, x * 2), 1.5)),
    "maxima": lambda x: np.maximum(np.maximum(x, 0.5), x * 2),
    "sin and cos": lambda x: np.sin(x) * np.cos(x),
    "powers": lambda x: x**2 + x**3 - (x - 1) ** 4,
    "roots and reciprocals": lambda x: x**0.5 + x**-1,
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "gelu": lambda x: x * 0.5 * (1 + f.erf(x / 1.4142135)),
    "softplus": lambda x: f.softplus(x),
    "sign of a sign": lambda x: np.sign(np.sign(x) - 0.5),
    "no nan": lambda x: np.where(np.isnan(x) | np.isinf(x), 0, x),
    "one function or another": lambda x: np.where(x > 0, np.tanh(x), np.arctan(x)),
    "one condition for operand and value": lambda x: np.where(x > 1, np.log(np.where(x > 1, x, 2)) / x, x * x),
    "sinc": lambda x: np.sinc(x),
    "half powers": lambda x: x**-0.5 + x**1.5 + x**2.5,
    "huber": lambda x: np.where(abs(x) < 1, x**2 / 2, abs(x) - 0.5),
    "the gradient of clip": lambda x: grad(np.sum(np.clip(x, -1, 1)), x),
    "the gradient of sin": lambda x: grad(np.sum(np.sin(x)), x),
    "the gradient of a square": lambda x: grad(np.mean((x - 1) ** 2), x),
}


@pytest.mark.matrix(least=2)
@pytest.mark.parametrize("idiom", IDIOMS)
def test_the_loop_of_an_idiom_is_in_vectors(idiom: str, tmp_path: Path) -> None:
    if _compiler()[1] == "clang":
        pytest.skip("clang is told of no vector variants of the C library's functions")
    trees = (IDIOMS[idiom](TensorType(dtype, (64,))("x")) for dtype in ("float16", "float32", "float64"))
    assert not scalar_loops(in_one_file([kernel for tree in trees for kernel in source(tree)]), tmp_path)


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint32", "int64", "uint64"])
def test_the_loop_of_an_idiom_of_integers_is_in_vectors(dtype: str, tmp_path: Path) -> None:
    x = TensorType(dtype, (64,))("x")
    kernels = [kernel for tree in (x // 7, x % 7, np.clip(x, 1, 9), x**3) for kernel in source(tree)]
    assert not scalar_loops(in_one_file(kernels), tmp_path)


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_the_searches_for_extremes_are_in_vectors(dtype: str, tmp_path: Path) -> None:
    x = TensorType(dtype, (1024, 1024))("x")
    for axis in (None, 0, 1):
        (text,) = source(np.argmin(x, axis=axis))
        plain = text.replace("#pragma omp simd\n", "#pragma of a loop that accumulates nothing\n")
        assert not scalar_loops(text if axis == 0 else plain, tmp_path)


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_loops_of_extremes_of_columns_are_in_vectors(dtype: str, tmp_path: Path) -> None:
    x = TensorType(dtype, (1024, 1024))("x")
    kernels = [kernel for tree in (np.max(x, axis=0), np.nanmin(x, axis=0)) for kernel in source(tree)]
    assert not scalar_loops(in_one_file(kernels), tmp_path)


def test_a_scalar_loop_is_found(tmp_path: Path) -> None:
    (text,) = source(np.sin(TensorType("float32", (64,))("x")))
    scalar = "extern float lgammaf(float);\n" + text.replace("(sin(v0))", "(lgammaf(v0))")
    assert scalar_loops(scalar, tmp_path)
