"""A third dialect of kernels, ISO C99, over the golden trees and others: what it computes is NumPy's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import plain_c
from harness.compiling import needs_compiler
from harness.golden import TREES, adam
from harness.staged import REDUCTIONS, SPECIAL
from harness.staged import TREES as STAGED

from backends import gen_backend
from backends.cpu import backend as cpu
from backends.execution.specialize import FusedKernel
from optree import Input, function
from optree.compile.program import flatten

pytestmark = needs_compiler


@pytest.fixture
def printed(monkeypatch: Any) -> list[str]:
    """The C99 sources of all kernels that run, in the place of C's."""
    found: list[str] = []

    class Kernel(plain_c.PlainKernel):
        def __init__(self, nest: Any) -> None:
            super().__init__(nest)
            found.append(plain_c.source(nest))

    monkeypatch.setattr(cpu, "ALWAYS", cpu.ALWAYS._replace(executor=partial(FusedKernel, compile=Kernel)))
    return found


def drawn(be: Any, rng: np.random.Generator, shape: Any, dtype: Any = np.float32) -> Any:
    return be.array(rng.uniform(1, 9, shape).astype(dtype), dtype)


def both(of: Any) -> tuple[Any, Any]:
    """The results of a backend's function by kernels and by NumPy; the backend's `ones` are drawn numbers."""
    found = []
    for jit in (True, False):
        be: Any = gen_backend("cpu", rng_seed=0, jit=jit)
        be.ones = partial(drawn, be, np.random.default_rng(0))
        found.append(of(be))
    return found[0], found[1]


def check(printed: list[str], ours: Any, numpys: Any) -> None:
    assert printed and not any("#pragma" in text or "__" in text for text in printed)
    assert ours.dtype == numpys.dtype and ours.shape == numpys.shape
    np.testing.assert_allclose(ours, numpys, rtol=2e-5 if ours.dtype == np.float32 else 1e-12, atol=1e-6)


def value(tree: Any) -> np.ndarray:
    """A tree's value, drawn numbers for its inputs."""
    inputs = [leaf for leaf in flatten([tree]).leaves if isinstance(leaf, Input)]
    if not inputs:
        return tree.asnumpyarray()
    rng = np.random.default_rng(1)
    return np.asarray(function(inputs, tree)(*(rng.uniform(1, 9, x.shape).astype(x.dtype) for x in inputs)))


@pytest.mark.parametrize("tree", [tree for tree in TREES if tree is not adam], ids=lambda tree: tree.__name__)
def test_golden_trees(printed, tree):
    check(printed, *both(lambda be: value(tree(be))))


def test_several_outputs(printed):
    def run(be: Any) -> np.ndarray:
        step = adam(be)
        for rate in (0.1, 0.2):
            step(np.linspace(-1, 1, 64, dtype=np.float32), np.float32(rate))
        return np.concatenate([target.asnumpyarray() for target, _ in step.updates])

    check(printed, *both(run))


@pytest.mark.matrix
@pytest.mark.parametrize("tree", STAGED, ids=lambda tree: tree.__name__)
@pytest.mark.parametrize(("axis", "dtype"), [(0, "float32"), (1, "float64"), ((0, 2), "float64"), (None, "float32")])
def test_stages(printed, tree, axis, dtype):
    x = np.random.default_rng(2).uniform(0.5, 2, (5, 70, 9)).astype(dtype)
    for array in (x, x[::-1, ::2, ::-1]):
        check(printed, *both(lambda be, array=array: tree(be, be.array(array, dtype), axis).asnumpyarray()))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_special_values(printed, name):
    v = np.arange(4, dtype=np.float32)
    with np.errstate(all="ignore"):
        check(printed, *both(lambda be: REDUCTIONS[name](be, be.array(SPECIAL), be.array(v)).asnumpyarray()))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_indices_of_extremes(printed, axis):
    for x in (SPECIAL, SPECIAL.T, np.abs(SPECIAL) > 1):
        check(printed, *both(lambda be, x=x: np.argmax(be.array(x, x.dtype), axis=axis).asnumpyarray()))
        check(printed, *both(lambda be, x=x: np.argmin(be.array(x, x.dtype), axis=axis).asnumpyarray()))


def test_random_numbers_are_the_same(printed):
    ours, numpys = both(lambda be: (be.rand((5, 7)) * 2).asnumpyarray())
    assert any("philox" in text for text in printed)
    np.testing.assert_array_equal(ours, numpys)


def test_a_dialect_is_small():
    assert len(Path(plain_c.__file__).read_text().splitlines()) <= 150
