"""Reads at affine indices: pads, and derivatives of slices, within elementwise kernels of each language."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from harness import plain_c, windowed
from harness.compiling import needs_compiler
from harness.cuda import needs_gxx
from harness.emulated import Emulator

from backends import gen_backend
from backends.cpu import backend as cpu
from backends.execution.specialize import FusedKernel
from optree import debugprint, grad, settings

pytestmark = needs_compiler

SHAPES = ((5, 7), (3, 40), (17,), (2, 3, 9), (1, 4), (6, 1), (1,), (0, 3), (2, 1030))


@pytest.fixture(params=["c", "plain", pytest.param("cuda", marks=needs_gxx)])
def be(request: Any, monkeypatch: Any) -> Any:
    if request.param == "cuda":
        return Emulator().backend()
    if request.param == "plain":
        executor = partial(FusedKernel, compile=plain_c.PlainKernel)
        monkeypatch.setattr(cpu, "ALWAYS", cpu.ALWAYS._replace(executor=executor))
    return gen_backend("cpu", jit=True)


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return rng.integers(-9, 9, shape).astype(dtype)


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "bool"])
def test_pads_are_numpys(be: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        width = [tuple(map(int, rng.integers(0, 4, 2))) for _ in shape]
        fill = 1 if dtype == "bool" else float(rng.choice([-np.inf, np.nan, 2, 0])) if dtype[0] == "f" else -3
        x, outer = drawn(rng, shape, dtype), np.pad(np.zeros(shape, dtype), width)
        y = drawn(rng, outer.shape, dtype)
        tree = be.where(be.eq(be.array(y, dtype), 0), be.array(y, dtype), be.pad(be.array(x, dtype), width, fill))
        wanted = np.where(y == 0, y, np.pad(x, width, constant_values=np.asarray(fill).astype(dtype)))
        np.testing.assert_array_equal(tree.asnumpyarray(), wanted)


def test_kernels_that_differ_in_the_sign_of_a_padding_zero_are_two(be: Any) -> None:
    values = np.arange(1, 5, dtype=np.float32)
    x, y, z = be.array(values), be.array(-values), be.array(np.ones((2, 3), np.float32))
    pads = [be.copysign(2 * be.pad(each, 1, fill), be.pad(each, 1, fill)) for each, fill in ((x, 0.0), (y, -0.0))]
    with settings.override(num_threads=2):  # kernels of all three are compiled ahead, those with equal nests once
        found = be.evaluate([*pads, be.sum(z, axis=1)])
    for made, wanted in zip(found, (values, -values), strict=False):
        np.testing.assert_array_equal(made.get(), np.pad(2 * wanted, 1))
        np.testing.assert_array_equal(np.copysign(1, made.get()), np.sign(wanted[0]))


@pytest.mark.matrix(least=3)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_sums_of_derivatives_of_slices(be: Any, is_transposed: bool, sample: Any, request: Any) -> None:
    """By plain C and CUDA, which print the same nests, of fewer random slices."""
    seeds = 4 if request.node.callspec.params["be"] == "c" else 1
    for seed, shape in sample(list(product(range(seeds), SHAPES)), least=3):
        rng = np.random.default_rng([seed, *shape])
        of = shape[::-1] if is_transposed else shape
        index = [tuple(_index(rng, size) for size in of) for _ in range(3)]
        u = np.zeros(of)
        deltas = [rng.standard_normal(u[each].shape) for each in index]
        held = be.array(drawn(rng, shape, "float64"), "float64")
        x = be.transpose(held) if is_transposed else held
        cost = sum((be.sum(be.slice(x, i) * be.array(d, "float64")) for i, d in zip(index, deltas, strict=True)), 0.0)
        for each, delta in zip(index, deltas, strict=True):
            u[each] += delta
        found = grad(cost, held).asnumpyarray()
        np.testing.assert_allclose(found, u.T if is_transposed else u, rtol=1e-12, atol=1e-12)


def test_reductions_of_reads_at_affine_indices(be: Any, sample: Any) -> None:
    for seed, shape in sample(list(enumerate([(5, 7), (17,), (3, 2, 9), (1, 4), (2, 330)])), least=2):
        rng = np.random.default_rng(seed)
        width = [tuple(map(int, rng.integers(0, 4, 2))) for _ in shape]
        x = rng.integers(-9, 9, shape).astype(float)
        wanted = np.pad(x, width, constant_values=-2.0)
        index = tuple(_index(rng, size) for size in wanted.shape)
        delta = rng.integers(-9, 9, wanted[index].shape).astype(float)
        like, read = be.zeros(wanted.shape, dtype="float64"), be.pad(be.array(x, "float64"), width, -2.0)
        read = read + grad(be.sum(be.slice(like, index) * be.array(delta, "float64")), like)
        wanted[index] += delta
        axes = tuple(map(int, np.flatnonzero(rng.integers(0, 2, x.ndim)))) or (0,)
        total, top, place = be.sum(read * read, axis=axes), be.max(read, axis=axes), be.argmax(read, axis=axes[0])
        found = be.evaluate([total, top + be.sum(be.exp(read - 9), axis=axes), place])
        known = {"axis": axes, "keepdims": True}
        ends = [(wanted**2).sum(**known), wanted.max(**known) + np.exp(wanted - 9).sum(**known)]
        for each, end in zip(found, [*ends, wanted.argmax(axes[0], keepdims=True)], strict=True):
            np.testing.assert_allclose(np.asarray(each), end, rtol=1e-12, atol=1e-12)


def test_a_sum_of_a_pool_is_one_kernel_and_so_is_a_pool_of_squares() -> None:
    be = gen_backend("cpu", jit=True)
    x = be.ones((1, 2, 4, 6))
    reductions = be.sum(be.avg_pool(x, 2)), be.max(be.pad(x, 1), axis=(2, 3)), be.mean(be.max_pool(x, 2), axis=1)
    for tree in (*reductions, be.lrn(x), be.lp_pool(x, 2)):
        text = debugprint(tree, stage="fusion", file="str")
        assert text.count("kernel,") == 1 and "call" not in text, text


def _index(rng: np.random.Generator, size: int) -> Any:
    kind = rng.integers(5)
    if kind == 0 and size:
        return int(rng.integers(-size, size))
    if kind == 1:
        return slice(None, None, -1)
    begin, end = sorted(map(int, rng.integers(0, size + 1, 2)))
    if kind == 2:
        return slice(begin, end, int(rng.choice([2, 3, 9])))
    return slice(begin, end) if kind == 3 else slice(end, begin or None, -int(rng.choice([1, 2, 3])))


def test_an_array_is_read_at_its_own_index_and_at_others_and_may_be_the_target(be: Any) -> None:
    rng = np.random.default_rng(2)
    for shape in SHAPES:
        u = drawn(rng, shape, "float32")
        held = be.array(u)
        for _ in range(2):
            around = [(1, 0)] + [(0, 0)] * (len(shape) - 1)
            whole = (slice(None, -1),) + (slice(None),) * (len(shape) - 1)
            held[:] = held + 2 * be.slice(be.pad(held, around) * 1, whole)
            u = u + 2 * np.pad(u, around)[whole]
            np.testing.assert_array_equal(held.asnumpyarray(), u)


def test_a_stencils_gradient_is_one_pass_over_its_terms() -> None:
    be = gen_backend("cpu", jit=True)
    u, weights = be.array(np.arange(9.0)), be.array(np.arange(7.0))
    gradient = grad(be.sum((be.slice(u, np.s_[2:]) - be.slice(u, np.s_[:-2])) * weights), u)
    text = debugprint(gradient, stage="fusion", file="str")
    assert text.count("kernel,") == 2 and "call" not in text, text  # the terms, and the sum of both reads
    wanted = np.pad(np.arange(7.0), (2, 0)) - np.pad(np.arange(7.0), (0, 2))
    np.testing.assert_array_equal(gradient.asnumpyarray(), wanted)


def test_a_pool_and_what_follows_it_are_one_kernel() -> None:
    be = gen_backend("cpu", jit=True)
    x, props = be.ones((1, 2, 4, 6)), {"window": 3, "stride": 2, "padding": 1}
    for tree in (be.relu(be.max_pool(x, **props)), be.max_pool(be.relu(x), **props)):
        text = debugprint(tree, stage="fusion", file="str")
        assert text.count("kernel,") == 1 and "call" not in text, text


def test_the_gradient_of_maxima_of_long_windows_is_a_reduction_in_a_kernel() -> None:
    be, rng = gen_backend("cpu", jit=True), np.random.default_rng(5)
    for shape, props in (
        ((2, 90), {"window": 70, "padding": ((3, 5),), "axes": 1}),
        ((12, 3), {"window": 9, "axes": 0}),
    ):
        x = be.array(rng.integers(-3, 3, shape).astype(float), "float64")
        indices = be.argmax_pool(x, stride=1, **props).astensor()
        delta = rng.integers(-9, 9, indices.shape).astype(float)
        tree = be.max_unpool(be.array(delta, "float64"), indices, x, stride=1, **props)
        wanted = windowed.max_unpool(delta, indices.get(), x.get(), stride=1, **props)
        np.testing.assert_array_equal(tree.asnumpyarray(), wanted)
        assert "max_unpool" not in debugprint(tree, stage="fusion", file="str")


def test_a_new_size_compiles_nothing(counted: Any) -> None:
    be = gen_backend("cpu", jit=True)
    for size in (10, 24, 6):
        before = counted()["misses"] + counted()["hits"]
        x = be.array(np.arange(float(size)).reshape(2, -1))
        np.testing.assert_array_equal((be.pad(x, 1) * 2).asnumpyarray(), np.pad(x.asnumpyarray(), 1) * 2)
        assert size == 10 or counted()["misses"] + counted()["hits"] == before


@pytest.mark.parametrize(("window", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (8, 8, 0), (3, 1, 1)])
def test_the_gradient_of_a_pool_is_one_kernel_of_its_delta(window: int, stride: int, padding: int) -> None:
    be = gen_backend("cpu", jit=True)
    x = be.ones((1, 2, 16, 16))
    props = {"window": window, "stride": stride, "padding": padding}
    delta = be.ones(be.max_pool(x, **props).shape)
    indices = be.argmax_pool(x, **props).astensor()
    for tree in (be.max_unpool(delta, indices, x, **props), be.avg_unpool(delta, x, **props, count_padding=True)):
        text = debugprint(tree, stage="fusion", file="str")
        assert text.count("kernel,") == 1 and "call" not in text, text
