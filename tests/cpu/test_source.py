"""The source of kernels: as it was reviewed, without warnings, and clean under the sanitizers."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.compiling import ROOT, in_one_file, needs_compiler, program
from harness.golden import TREES, check_golden
from harness.memory import without_limit

from backends import gen_backend, source
from backends.cpu import compiler
from backends.cpu.codegen import printer as c
from backends.cpu.codegen.halves import CONVERSIONS
from backends.cpu.codegen.vector_math import WIDE_VECTORS
from backends.cpu.compiler import FLAGS, find_compiler
from backends.cpu.routines.vectors import struct
from optree import OpTreeNode
from optree.errors import BackendError, OperandError, OptreeError
from optree.op.traits import ElementwiseOperator
from optree.registry import OPS
from optree.settings import override
from optree.tree.types import TensorType

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.__name__)
def test_the_source_is_the_one_that_was_reviewed(be, tree, request):
    kernels = source(tree(be))
    heads, bodies = zip(*(kernel.split(c.SHARED) for kernel in kernels), strict=True)
    assert all(head.removeprefix(WIDE_VECTORS).startswith("#include <stdint.h>\n") for head in heads)
    wide = [WIDE_VECTORS * head.startswith(WIDE_VECTORS) for head in heads]
    text = "\n".join(f"{before}{body.lstrip()}" for before, body in zip(wide, bodies, strict=True))
    check_golden(text, GOLDEN / f"{tree.__name__}.c", request)


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.glob("*.c")} == {tree.__name__ for tree in TREES}


# What source gives


def test_a_kernel_each_and_none_for_calls(be):
    x, y = be.ones((5, 7)), be.ones((7, 5))
    assert len(source(be.exp(x))) == 1
    assert len(source(be.exp(be.dot(x * 2, y + 1)) * 3)) == 3
    assert source(be.dot(x, y)) == []


@needs_compiler
def test_it_is_what_runs(capfd, folder):
    be = gen_backend("cpu", jit=True)
    x, row, number = be.ones((5, 7)), be.ones((7,)), math.pi * 1e-3
    tree = be.sinh(x * number + row) / x - be.arctan(row)
    with override(show="source"):
        compiler._loaded.forget()  # so that the kernel is made, whatever ran before
        tree.asnumpyarray()
    shown = capfd.readouterr().err
    assert all(kernel in shown for kernel in source(tree)) and len(source(tree)) == 2


@needs_compiler
def test_the_setting_is_read_from_the_environment(tmp_path):
    code = "from backends import gen_backend as g; be = g(jit=True); (be.ones(9) + 1).asnumpyarray()"
    environment = {"OPTREE_SHOW": "source", "OPTREE_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "" and f"void {c.NAME}(" in ran.stderr and "v0 + v" in ran.stderr


def test_no_compiler_is_asked_and_nothing_runs(be, counted, monkeypatch):
    monkeypatch.setenv("CC", "/nowhere/cc")
    tree = be.log(be.ones((1000,))) + 1
    before = be.stats()["executions"]
    assert source(tree)
    assert counted() == {"hits": 0, "disk_hits": 0, "misses": 0} and be.stats()["executions"] == before


def test_memory_is_asked_for_no_size(be):
    x = TensorType("float32", (1 << 20, 1 << 20))("x")
    assert len(source(x * 2 + 1)) == 1


def test_sizes_that_are_not_known(be):
    x, row = TensorType("float32", (None, None))("x"), TensorType("float32", (1, None))("row")
    assert source(x * row) == source(be.ones((2, 3)) * be.ones((1, 3)))
    assert source(be.exp(x)) == source(be.exp(be.ones((2, 3))))


def test_an_assignment_is_its_value(be):
    x, z = be.ones((4, 6)), be.empty((4, 6))
    assert source(OpTreeNode.build("assign", z, be.cos(x) * 2)) == source(be.cos(x) * 2)


def test_wrong_arguments(be):
    with pytest.raises(BackendError, match="no target 'fortran'; there are c"):
        source(be.ones(3) + 1, "fortran")
    with pytest.raises(OperandError, match="a tree or a function is wanted"):
        source(3.0)


# Warnings and sanitizers


@needs_compiler
def test_the_golden_trees_compile_without_a_warning(be, tmp_path):
    _compile_all([kernel for tree in TREES for kernel in source(tree(be))], tmp_path, ())


#: What GCC finds odd in an op's expression only because of the dtype that it is for: x < 0 of unsigned integers, say.
ODD = ("type-limits", "bool-compare", "int-in-bool-context", "tautological-compare")


@needs_compiler
def test_every_op_compiles_without_a_warning(be, tmp_path, sample):
    kernels: dict[str, None] = {}
    ops = sample([cls for cls in OPS.values() if issubclass(cls, ElementwiseOperator) and not cls.prop_names()])
    for cls in ops:
        for dtype in ("bool", "int8", "int32", "int64", "uint8", "uint64", *CONVERSIONS, "float32", "float64"):
            try:
                tree = cls.make()(*(be.ones((5,), dtype) for _ in cls.operands or "xy"))
            except OptreeError:
                continue
            kernels.update(dict.fromkeys(source(tree)))
    assert len(kernels) > 2 * len(ops)
    _compile_all(list(kernels), tmp_path, ODD)


def _compile_all(kernels: list[str], folder: Path, but: Any) -> None:
    """Compile kernels as one file."""
    (folder / "all.c").write_text(in_one_file(kernels))
    warnings = ["-Wall", "-Wextra", "-Werror", *(f"-Wno-{kind}" for kind in but)]
    command = [*find_compiler().command, *FLAGS, "-O1", "-fopenmp-simd", *warnings, "-c", "all.c", "-o", "all.o"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def _sanitized(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with kernels that end the process where they reach beyond their arrays, or do what C leaves open.

    The compiler itself runs without what is loaded first, which would make it several times slower.
    """
    found = find_compiler()
    names = [
        subprocess.run([*found.command, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(Path(name).is_absolute() for name in names):
        pytest.skip("the compiler has no sanitizers that can be loaded first")
    checks = "-O1 -fsanitize=address,undefined -fno-sanitize-recover=all"
    environment = {
        **os.environ,
        "CC": str(program(folder / "cc", f'unset LD_PRELOAD; exec {found} "$@" {checks}')),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself frees not everything
        "PYTHONPATH": str(ROOT),
    }
    command = without_limit("env", f"LD_PRELOAD={' '.join(names)}", sys.executable, *arguments)
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)


BEYOND = """
import numpy as np
from backends.cpu.compiler import compile_source
compile_source("void f(float *x) { x[3000] = 1; }", "f")(np.zeros(3000, np.float32).ctypes.data)
"""

UNDEFINED = """
import numpy as np
from backends.cpu.compiler import compile_source
compile_source("void f(int *x) { x[0] = 1 << x[1]; }", "f")(np.array([0, 40], np.int32).ctypes.data)
"""


@pytest.mark.matrix(least=0)
@needs_compiler
def test_kernels_are_clean_under_the_sanitizers(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("OPTREE_CACHE_DIR", str(folder))
    for faulty, said in ((BEYOND, "heap-buffer-overflow"), (UNDEFINED, "shift exponent 40 is too large")):
        ran = _sanitized(tmp_path, "-c", faulty)
        assert ran.returncode != 0 and said in ran.stderr
    files = ["tests/execution/test_kernels.py", "tests/cpu/test_runtime.py", "tests/execution/test_stages.py"]
    tests = "layout or alignment or every_dtype or read_elsewhere or shape0-several or special_values and not stages"
    options = ["--memory", "0", "-q", "-x", "-p", "no:cacheprovider"]
    ran = _sanitized(tmp_path, "-m", "pytest", *options, *files, "-k", tests)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"^\d\d passed", ran.stdout, re.M), ran.stdout


def test_words_of_a_struct_are_in_the_order_of_its_declaration() -> None:
    declared = struct("convolution.c", "panels")
    values = {field: n for n, field in enumerate(declared.fields)} | {"offsets": [100, 101]}
    words = declared.words(**dict(reversed(values.items())))
    assert words.tolist() == [*range(len(declared.fields) - 1), 100, 101]
    declared.set(words, threads=7)
    assert words[:3].tolist() == [0, 7, 2]
    with pytest.raises(TypeError, match="panels has the fields"):
        declared.words(share=0)
