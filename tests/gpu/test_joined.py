"""Independent small kernels are one launch, with the bits of each by itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from harness.cuda import ORDERS
from harness.emulated import Emulator

from backends import gen_backend, launches, source
from backends.execution.specialize import collecting
from backends.gpu import joined
from backends.gpu.joined import Together, divided, source_of
from optree import debugprint, function
from optree.train import Adam
from tests.harness.nvrtc import compile_cuda, needs_nvrtc


def trees(be: Any) -> list[Any]:
    """Trees whose kernels have all kinds of blocks: elementwise, rows of warps and blocks, columns, tiles, parts."""
    rng = np.random.RandomState(0)
    x, y = be.array(rng.rand(40, 50).astype(np.float32)), be.array(rng.rand(7, 3000).astype(np.float32))
    half, long = be.array(rng.rand(333), dtype="float16"), be.array(rng.rand(1 << 16).astype(np.float32))
    pairs = [be.array((rng.rand(99) + 1j).astype(dtype)) for dtype in ("complex64", "complex128")]
    return [
        *(x * 2 + 1, half * 3, be.softmax(x, axis=1), be.softmax(y, axis=1), be.sum(x, axis=0), be.sum(long)),
        *(x.T.copy() + 1, be.sum(long * 2), be.exp(y), x + x.T[:1, :1]),
        *(pairs[0] * 2, pairs[1] * pairs[1] + 1, be.real(pairs[1] * 2)),
    ]


def collected(given: list[Any]) -> tuple[list[Any], list[Any], Any]:
    """Targets, the values of trees, and the launches that compute these in the targets."""
    be = given[0].backend
    wanted = [(+tree).get() for tree in given]
    targets = [be.zeros(x.shape, dtype=x.dtype) for x in wanted]
    with collecting() as found:
        for target, tree in zip(targets, given, strict=True):
            target[:] = tree
    return targets, wanted, found


@pytest.mark.parametrize("order", ORDERS)
def test_parts_have_the_bits_of_each_kernel_by_itself(order: str) -> None:
    host = Emulator(order=order, seed=1)
    given = trees(host.backend())
    targets, wanted, found = collected(given)
    before = len(host.launches)
    Together(host).launch(found)
    assert sum(len(launches) for launches, _ in found) > 2 * (len(host.launches) - before)
    for target, value in zip(targets, wanted, strict=True):
        np.testing.assert_array_equal(target.get(), value)


@needs_nvrtc
def test_nvrtc_compiles_them_without_spills() -> None:
    host = Emulator()
    _, _, found = collected(trees(host.backend()))
    groups = [group for group in divided([launches for launches, _ in found]) if len(group) > 1]
    assert {len(group) for group in groups} > {2}
    for group in groups:
        (usage,) = compile_cuda(source_of(group)).usage.values()
        assert not usage.spill_stores


def test_large_kernels_and_those_with_other_blocks_and_barriers_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Emulator()
    _, _, found = collected(trees(host.backend()))
    parts = [launches for launches, _ in found]
    for group in divided(parts):
        block = max(part.launch.block for part in group)
        assert all(part.launch.block == block or not part.has_barriers for part in group)
    monkeypatch.setattr(joined, "SMALL", 0)
    assert all(len(group) == 1 for group in divided(parts))


def training(be: Any) -> tuple[Any, list[Any]]:
    """A step by Adam: sums of gradients and updates wait for nothing but the gradients."""
    rng = np.random.RandomState(0)
    sizes = (5, 8, 6, 3)
    weights = [be.array(rng.rand(*pair).astype(np.float32) / 4) for pair in pairwise(sizes)]
    biases = [be.array(rng.rand(n).astype(np.float32)) for n in sizes[1:]]
    value = be.array(rng.rand(4, 5).astype(np.float32))
    for weight, bias in zip(weights, biases, strict=True):
        value = be.tanh(be.dot(value, weight) + bias)
    cost = be.mean(be.square(value))
    weights += biases
    return function([], cost, updates=Adam(weights, 0.1).updates(cost)), weights


def in_turn(be: Any) -> tuple[Any, list[Any]]:
    """Updates that read each other's targets, and one that reads a value before it is written."""
    a, b, c, d = weights = [be.array(np.arange(n, n + 6.0).astype(np.float32)) for n in range(4)]
    updates = [
        (a, b + 1),
        (b, be.sum(a, keepdims=False) * b),
        (c, c[::-1] + a),
        (d, be.max(be.softmax(be.reshape(c, (2, 3)), axis=1), keepdims=False) + d),
    ]
    return function([], [be.sum(a), be.max(c)], updates=updates), weights


@pytest.mark.parametrize("make", [training, in_turn])
def test_steps_are_right_in_any_order(gpu: Any, make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncaptured and captured, beside the CPU; with kernels that are launched one by one, in all bits."""
    found, counts = [], []
    for be, small in ((gen_backend("cpu"), 0), (gpu, joined.SMALL), (gpu, 0)):
        monkeypatch.setattr(joined, "SMALL", small)
        step, weights = make(be)
        before = be.kernels.counts.launches if be is gpu else 0
        for _ in range(4):
            step()
        counts.append(be.kernels.counts.launches - before if be is gpu else 0)
        found.append([weight.get() for weight in weights])
    cpu, together, apart = found
    for one, other, third in zip(cpu, together, apart, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
        np.testing.assert_array_equal(other, third)
    assert counts[1] < counts[2]


def test_listings_show_them(gpu: Any) -> None:
    step, _ = training(gpu)
    plan = debugprint(step, stage="plan", file="str")
    assert plan.count("    and kernel(") >= 3
    step()
    assert len(launches(step)) == len(source(step, "cuda")) == gpu.kernels.counts.launches
