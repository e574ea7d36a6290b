"""Convolutions on a GPU without cuDNN, by products, against the op's own value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.windowed import CONVOLUTIONS

from backends import gen_backend
from backends.gpu.matmul import Products
from optree import function, grad
from optree.networks.convolution import ConvInput, ConvWeights


@pytest.mark.matrix(least=4)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_and_its_derivatives_by_products(case: str, dtype: str, gpu: Any) -> None:
    shape, filters, props = CONVOLUTIONS[case]
    rng = np.random.RandomState(0)
    x, w = (rng.normal(size=s).astype(dtype) for s in (shape, filters))
    tensors = [gpu.array(a, dtype) for a in (x, w)]
    node = gpu.conv(*tensors, **props)
    op = node.op
    wide = [a.astype("float64") for a in (x, w)]
    wanted = op.value(*wide)
    delta = rng.normal(size=wanted.shape).astype(dtype)
    tensors.append(gpu.array(delta, dtype))
    wide.append(delta.astype("float64"))
    results = {
        "value": (node, wanted),
        "images": (
            op.other(ConvInput)(tensors[2], tensors[1], tensors[0]),
            op.other(ConvInput).value(wide[2], wide[1], x),
        ),
        "weights": (
            op.other(ConvWeights)(tensors[0], tensors[2], tensors[1]),
            op.other(ConvWeights).value(wide[0], wide[2], w),
        ),
    }
    for what, (tree, expected) in results.items():
        got = tree.asnumpyarray()
        assert got.dtype == dtype
        error = np.abs(got.astype("float64") - expected).max() / np.abs(expected).max()
        assert error < {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3}[dtype], f"{what}: {error}"
    assert gpu.stats()["host_calls"] == 0


def test_a_small_network_learns_in_one_cuda_graph(gpu: Any) -> None:
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


def test_halves_are_multiplied_as_they_are_and_summed_in_float32(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each product has half operands and a float32 value; the sum of all is rounded once."""
    multiplied: list[tuple[str, str]] = []
    product = Products.__call__

    def recorded(self: Products, x: Any, y: Any, *others: Any, **options: Any) -> Any:
        found = product(self, x, y, *others, **options)
        multiplied.append((str(x.dtype), str(found.dtype)))
        return found

    monkeypatch.setattr(Products, "__call__", recorded)
    rng = np.random.RandomState(0)
    x, w = (rng.uniform(0.5, 1, size).astype("float16") for size in ((2, 64, 9, 9), (5, 64, 3, 3)))
    node = gpu.conv(gpu.array(x, "float16"), gpu.array(w, "float16"))
    exact = node.op.value(x.astype("float64"), w.astype("float64"))
    found = node.asnumpyarray()
    assert multiplied == [("float16", "float32")] * 9
    assert (np.abs(found - exact) <= 0.5001 * np.spacing(exact.astype("float16")).astype("float64")).all()


def test_what_follows_reads_its_operands_before_they_are_written(gpu: Any) -> None:
    rng = np.random.RandomState(0)
    x, w = rng.normal(size=(3, 5, 10, 10)), rng.normal(size=(5, 5, 3, 3))
    for target in ("images", "addend", "strided", "numbers"):
        tx, tw, h = gpu.array(x, "float64", name="x"), gpu.array(w, "float64"), gpu.array(x * 2, "float64", name="h")
        value = gpu.conv(tx, tw, padding=1).op.value(x, w)
        out = {"images": tx, "addend": h}.get(target, gpu.zeros((3, 5, 20, 10), "float64"))
        view = out[:, :, ::-2] if target == "strided" else out if target != "numbers" else out[:, :, :10]
        for number in (0.5, 2.0):
            tx[:], h[:] = x, x * 2
            view[:] = gpu.relu(gpu.conv(tx, tw, padding=1) * number + h)
            np.testing.assert_allclose(view.asnumpyarray(), np.maximum(value * number + x * 2, 0), atol=1e-11)


def test_gradients_and_second_gradients_are_those_without_kernels(gpu: Any) -> None:
    rng = np.random.RandomState(0)
    values = [rng.normal(size=s) for s in ((2, 3, 7, 7), (4, 3, 3, 3), (4, 1, 1), (2, 4, 3, 3), (2, 1, 1))]
    found = []
    for be in (gpu, gen_backend("cpu", jit=False)):
        x, *weights = (be.array(v, "float64", name=f"v{i}") for i, v in enumerate(values))
        w, b, u, c = weights
        y = be.tanh(be.conv(be.tanh(be.conv(x, w, padding=1, stride=2) + b), u, padding=1) + c)
        cost = be.sum(y * y)
        first = grad(cost, weights)
        second = grad(sum((be.sum(g * g) for g in first), start=be.sum(y)), weights)
        found.append([r.asnumpyarray() for r in function([], [cost, *first, *second])()])
    for ours, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-9)


def test_arrays_without_elements_have_convolutions(gpu: Any) -> None:
    x, w = gpu.ones((2, 0, 5, 5)), gpu.ones((3, 0, 3, 3))
    assert (gpu.relu(gpu.conv(x, w) + 2).asnumpyarray() == 2).all()
    none = gpu.relu(gpu.conv(gpu.ones((0, 2, 5, 5)), gpu.ones((3, 2, 3, 3))) + 2).asnumpyarray()
    assert none.shape == (0, 3, 3, 3)
