"""Convolutions on a GPU by our own kernels, run by the emulation, against the op's own value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.emulated import emulated_cupy
from harness.homes import stand_in
from harness.windowed import CONVOLUTIONS

from optree import function, grad


@pytest.fixture(scope="module")
def gpu() -> Any:
    return stand_in(emulated_cupy(), jit=True, graphs=False)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_and_its_derivatives_by_kernels(case: str, dtype: str, gpu: Any) -> None:
    shape, filters, props = CONVOLUTIONS[case]
    rng = np.random.RandomState(0)
    x, w = (rng.normal(size=s).astype(dtype) for s in (shape, filters))
    tensors = [gpu.array(a, dtype) for a in (x, w)]
    node = gpu.conv(*tensors, **props)
    op, before = node.op, gpu.kernels.counts.launches
    wide = [a.astype("float64") for a in (x, w)]
    wanted = op.value(*wide)
    delta = rng.normal(size=wanted.shape).astype(dtype)
    tensors.append(gpu.array(delta, dtype))
    wide.append(delta.astype("float64"))
    results = {
        "value": (node, wanted),
        "images": (op.by_input()(tensors[2], tensors[1], tensors[0]), op.by_input().value(wide[2], wide[1], x)),
        "weights": (op.by_weights()(tensors[0], tensors[2], tensors[1]), op.by_weights().value(wide[0], wide[2], w)),
    }
    for what, (tree, expected) in results.items():
        got = tree.asnumpyarray()
        assert got.dtype == dtype
        error = np.abs(got.astype("float64") - expected).max() / np.abs(expected).max()
        assert error < {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3}[dtype], f"{what}: {error}"
    assert gpu.kernels.counts.launches >= before + 3
    assert gpu.stats()["host_calls"] == 0


def test_sums_by_weights_are_split_and_the_same_each_time(gpu: Any) -> None:
    rng = np.random.RandomState(0)
    x, delta, w = (rng.normal(size=s).astype("float32") for s in ((3, 2, 30, 30), (3, 3, 28, 28), (3, 2, 3, 3)))
    tensors = [gpu.array(a) for a in (x, delta, w)]
    before = gpu.kernels.counts.launches
    first, second = (gpu.conv_weights(*tensors).asnumpyarray() for _ in range(2))
    assert gpu.kernels.counts.launches == before + 4, "products, and the sums of their parts"
    assert (first == second).all()
    wanted = gpu.conv_weights(*tensors).op.value(*(a.astype("float64") for a in (x, delta, w)))
    np.testing.assert_allclose(first, wanted, rtol=1e-4, atol=1e-3)


def test_a_small_network_learns_in_one_cuda_graph() -> None:
    gpu = stand_in(emulated_cupy(), jit=True)
    rng = np.random.RandomState(0)
    x = gpu.array(rng.normal(size=(2, 1, 6, 6)), name="x")
    w = gpu.array(rng.normal(size=(2, 1, 3, 3)), name="w")
    y = gpu.max_pool(gpu.relu(gpu.conv(x, w, padding=1)), 2)
    cost = gpu.mean(gpu.square(y - 1))
    step = function([], cost, updates={w: w - 0.1 * grad(cost, w)})
    losses = [float(step().item()) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert gpu.stats()["graphs"]["replays"] >= 3
    assert gpu.stats()["host_calls"] == 0
