"""Kernels of several stages, by rows and by columns, whole and in parts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from harness.compiling import needs_compiler
from harness.each import for_each
from harness.staged import SPECIAL, TREES, deviation, log_softmax, logsumexp, normalised, softmax

import optree
from backends import gen_backend, source
from backends.cpu.compiler import compile_counts
from backends.execution import specialize as fused
from optree.compile.fusion import Kernel, fuse
from optree.compile.pipeline import decompose
from optree.compile.program import Sizes, flatten

pytestmark = [pytest.mark.slow, needs_compiler]


@pytest.fixture
def compiled() -> Any:
    return gen_backend("cpu", rng_seed=0, jit=True)


@pytest.fixture
def plain() -> Any:
    return gen_backend("cpu", rng_seed=0, jit=False)


def kernels_of(*trees: Any) -> list[list[str]]:
    """The ops of each kernel, calls left out."""
    program = decompose(flatten(trees))
    steps = fuse(program, Sizes(program))
    return [[program.instructions[i].op.name for i in s.instructions] for s in steps if isinstance(s, Kernel)]


AXES = (0, 1, -1, (0, 2), (0, 1), None)


@pytest.mark.matrix
@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.__name__)
@pytest.mark.parametrize("axis", AXES)
def test_kernels_give_what_the_ops_give(compiled, plain, tree, axis):
    """Each tree and each axis in both dtypes."""
    dtype = ("float32", "float64")[(TREES.index(tree) + AXES.index(axis)) % 2]
    x = np.random.RandomState(0).uniform(0.5, 2, (5, 70, 9)).astype(dtype)
    for array in (x, np.asfortranarray(x), x[::-1, ::2, ::-1], x.transpose(2, 0, 1)[:, :, :1]):
        ours, wanted = (tree(b, b.array(x, dtype), axis).asnumpyarray() for b, x in ((compiled, array), (plain, array)))
        assert ours.dtype == wanted.dtype and ours.shape == wanted.shape
        np.testing.assert_allclose(ours, wanted, rtol=2e-4 if dtype == "float32" else 1e-12, atol=1e-6)


@pytest.mark.matrix
@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.__name__)
@pytest.mark.parametrize("shape", [(4, 300), (300, 4), (70, 130), (1, 5), (600,)])
def test_parts_of_reduced_loops_give_the_same(compiled, plain, tree, shape, monkeypatch):
    monkeypatch.setattr(fused, "LARGE", 2)  # so that the smallest sizes are shared out
    x = np.random.RandomState(1).uniform(0.5, 2, shape).astype(np.float32)
    for axis in range(len(shape)):
        ours, wanted = (tree(b, b.array(x), axis).asnumpyarray() for b in (compiled, plain))
        np.testing.assert_allclose(ours, wanted, rtol=2e-4, atol=1e-6)


def test_parts_are_added_up_the_same_whatever_the_threads(compiled, monkeypatch):
    x = compiled.array(np.random.RandomState(2).randn(3, 1 << 20).astype(np.float32))
    y = compiled.array(np.random.RandomState(2).randn(1 << 20, 3).astype(np.float32))
    found = []
    for threads in (1, 2, 3):
        with optree.settings.override(num_threads=threads):
            found.append([normalised(compiled, x, 1).asnumpyarray(), normalised(compiled, y, 0).asnumpyarray()])
    for other in found[1:]:
        np.testing.assert_array_equal(found[0][0], other[0])
        np.testing.assert_array_equal(found[0][1], other[1])


def _compare(backends: Any, x: np.ndarray, names: Any, axis: Any, rtol: float) -> None:
    """Compare reductions of one array, which are few kernels together."""
    functions = [
        optree.function([], [getattr(b, n)(y, axis=axis) for n in names])
        for b in backends
        for y in [b.array(x, x.dtype)]
    ]
    for name, ours, wanted in zip(names, *(f() for f in functions), strict=True):
        assert ours.dtype == wanted.dtype, name
        np.testing.assert_allclose(ours.get(), wanted.get(), rtol=rtol, err_msg=name)


@pytest.mark.parametrize("axis", [0, 1])
def test_special_values(compiled, plain, axis):
    names = ("softmax", "log_softmax", "logsumexp", "norm", "max", "min", "prod", "any", "all")
    for x in (SPECIAL, SPECIAL.T, SPECIAL.astype(np.float64)):
        _compare((compiled, plain), x, names, axis, rtol=2e-6)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "norm", "sum", "mean"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_of_nothing(compiled, plain, name, shape):
    for axis in (0, 1):
        ours, wanted = (getattr(b, name)(b.ones(shape), axis=axis).asnumpyarray() for b in (compiled, plain))
        np.testing.assert_array_equal(ours, wanted)


INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint64")


@for_each(("dtype", "axis"), product(INTEGERS, (0, 1, None)), sampled=True)
def test_reductions_of_integers(compiled, plain, dtype, axis):
    x = np.random.RandomState(3).randint(0, 2 if dtype == "bool" else 100, (6, 9)).astype(dtype)
    _compare((compiled, plain), x, ("sum", "mean", "max", "min", "prod", "any", "all"), axis, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_maximum_of_columns_beside_what_is_written_in_them(compiled, plain, dtype):
    def found(be):
        x, y, z, w = (be.array(np.arange(9).reshape(3, 3) % 5 + i, dtype) for i in range(4))
        step = optree.function([], [be.max(x, axis=0)], updates=[(z, z + y), (y, w), (x, x - be.max(x, axis=0))])
        return [step()[0].get(), *(t.get() for t in (x, y, z))]

    for ours, wanted in zip(found(compiled), found(plain), strict=True):
        np.testing.assert_array_equal(ours, wanted)


# How many kernels


def test_what_a_row_needs_is_one_kernel(compiled):
    x = compiled.ones((5, 7))
    for tree in (softmax, log_softmax, logsumexp, normalised, deviation):
        for axis in (0, 1, None):
            assert len(kernels_of(tree(compiled, x, axis))) == 1, tree.__name__


def test_cross_entropy_and_its_gradient_are_one_kernel_and_the_sum_of_its_rows(compiled):
    x, y = compiled.ones((8, 10)), compiled.ones((8, 10))
    loss = -compiled.sum(y * compiled.log_softmax(x, axis=1)) / 8
    kernels = kernels_of(loss, optree.grad(loss, x))
    assert len(kernels) == 2 and kernels[0].count("exp") == 1 and len(kernels[1]) < 5


def test_dear_values_are_made_once_and_cheap_ones_again(compiled):
    x = compiled.ones((5, 700))
    (text,) = source(compiled.softmax(x, axis=1))
    assert text.count("(exp(") == 1
    (text,) = source(normalised(compiled, x, 1))
    assert "w" not in text.split("void kernel")[1].replace("threads", "")  # nothing is cached between stages


def test_scalars_beside_rows_are_computed_once(compiled):
    x, step = compiled.ones((5, 7)), compiled.ones(())
    (text,) = source(x * (1 - 0.9**step))
    assert text.index("pow(") < text.index("for (")


def test_only_shapes_are_waited_for(compiled):
    x = compiled.ones((5, 7))
    loss = compiled.sum(compiled.square(x))
    assert len(kernels_of(loss, optree.grad(loss, x))) == 1


# Targets


def test_a_target_that_is_read_again_in_a_later_stage(compiled, plain):
    results = []
    for b in (compiled, plain):
        x = b.array(np.random.RandomState(4).randn(6, 9).astype(np.float32))
        x[:] = b.softmax(x, axis=1)
        x[:] = x - b.mean(x, axis=0)
        doubled = x * 2
        total = optree.function([], b.sum(doubled * b.max(doubled, axis=1), axis=1), updates={x: doubled})()
        results.append(np.hstack([x.get(), total.get()]))
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


def test_new_sizes_compile_nothing(compiled):
    x = compiled.ones((8, 30))
    compiled.softmax(x, axis=1).asnumpyarray()
    before = compile_counts()["misses"]
    for rows in range(1, 100):
        compiled.softmax(compiled.ones((rows + 1, 31)), axis=1).asnumpyarray()
    assert compile_counts()["misses"] == before


def _wide(b: Any) -> Callable[[Any], Any]:
    return lambda x: b.sum(x, axis=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_columns_are_as_accurate_as_rows(compiled, dtype):
    values = np.random.RandomState(5).uniform(0, 1, (1_000_003, 3)).astype(dtype)
    exact = np.sum(values.astype(np.longdouble), axis=0)
    ours = _wide(compiled)(compiled.array(values, dtype)).asnumpyarray()[0]
    assert np.all(np.abs(ours - exact) <= np.spacing(exact.astype(dtype)))


def test_a_training_step_is_a_kernel_for_each_layer_and_each_matrix(compiled):
    x, target = compiled.ones((8, 6)), compiled.ones((8, 3))
    weights = [compiled.ones(shape) for shape in ((6, 5), (5,), (5, 3), (3,))]
    means = [compiled.zeros(w.shape) for w in weights]
    hidden = compiled.maximum(compiled.dot(x, weights[0]) + weights[1], 0)
    scores = compiled.dot(hidden, weights[2]) + weights[3]
    loss = -compiled.sum(target * compiled.log_softmax(scores, axis=1))
    updates = {}
    for w, mean, gradient in zip(weights, means, optree.grad(loss, weights), strict=True):
        updates[mean] = 0.9 * mean + 0.1 * gradient
        updates[w] = w - 0.1 * updates[mean]
    step = optree.function([], loss, updates=updates)
    program = decompose(step.program)
    kernels = [step for step in fuse(program, Sizes(program)) if isinstance(step, Kernel)]
    assert len(kernels) == 7  # two layers, the rows' sum, the biases' gradients with their updates, two matrices
    text = "\n".join(source(step))
    before = compile_counts()["misses"]
    step()
    assert compile_counts()["misses"] - before <= len(kernels) and "NAN" in text
