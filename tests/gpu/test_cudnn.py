"""Convolutions by cuDNN, on a stand-in for its front end, against the op's own value."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from harness.fake_cudnn import FakeCuDNN
from harness.rig.install import rig
from harness.windowed import CONVOLUTIONS

from backends import gen_backend
from optree import function, grad
from optree.errors import BackendError
from optree.networks.convolution import ConvInput, ConvWeights

pytestmark = pytest.mark.on_the_rig


def made(**options: Any) -> tuple[Any, FakeCuDNN]:
    """A backend whose convolutions are a stand-in's, and that."""
    library = FakeCuDNN(rig().desk)
    with patch.dict(sys.modules, cudnn=library):
        return gen_backend("gpu", cudnn=True, **options), library


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_and_its_derivatives(case: str, dtype: str) -> None:
    gpu, library = made(graphs=False)
    shape, filters, props = CONVOLUTIONS[case]
    rng = np.random.RandomState(0)
    x, w = (rng.normal(size=s).astype(dtype) for s in (shape, filters))
    op = gpu.conv(gpu.array(x, dtype), gpu.array(w, dtype), **props).op
    wanted = op.value(x.astype("float64"), w.astype("float64"))
    delta = rng.normal(size=wanted.shape).astype(dtype)
    wide = [a.astype("float64") for a in (x, w, delta)]
    tensors = [gpu.array(a, dtype) for a in (x, w, delta)]
    trees = {
        "conv_fprop": (op(*tensors[:2]), wanted),
        "conv_dgrad": (op.other(ConvInput)(tensors[2], tensors[1], tensors[0]), op.spread(wide[2], wide[1], x.shape)),
        "conv_wgrad": (
            op.other(ConvWeights)(tensors[0], tensors[2], tensors[1]),
            op.gather_weights(wide[0], wide[2], w.shape),
        ),
    }
    for name, (tree, expected) in trees.items():
        got = tree.asnumpyarray()
        error = np.abs(got.astype("float64") - expected).max() / np.abs(expected).max()
        assert got.dtype == dtype
        assert error < {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3}[dtype], f"{name}: {error}"
    assert library.executed == list(trees)
    assert gpu.kernels.counts.launches == 0, "no kernel of ours ran, and nothing was copied"
    assert gpu.stats()["host_calls"] == 0


@pytest.mark.parametrize(("dtype", "tf32"), [("float32", False), ("float32", True), ("float16", False)])
def test_plans_are_deterministic_and_of_the_precision_asked_for(dtype: str, tf32: bool) -> None:
    gpu, library = made(tf32=tf32)
    x, w = gpu.ones((1, 2, 5, 5), dtype), gpu.ones((3, 2, 3, 3), dtype)
    gpu.conv(x, w).execute()
    (plan,) = library.plans
    assert {"NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION"} <= plan.refused
    assert ("TENSOR_CORE" in plan.refused) is (dtype == "float32" and not tf32)


def test_a_plan_is_made_once_for_its_layouts() -> None:
    gpu, library = made()
    x, y = (gpu.ones((n, 2, 5, 5)) for n in (1, 3))
    w = gpu.ones((3, 2, 3, 3))
    for images in (x, x, y, x, y):
        gpu.conv(images, w).execute()
    assert len(library.plans) == 2
    assert len(library.executed) == 5


def test_products_compute_what_has_no_plan() -> None:
    gpu, library = made(graphs=False)
    library.unsupported.add("conv_fprop")
    x, w = gpu.ones((1, 2, 6, 6)), gpu.ones((3, 2, 3, 3))
    plain = gpu.conv(x, w).asnumpyarray()
    assert (plain == 18).all()
    library.unsupported.clear()
    mirrored = gpu.conv(x[:, :, ::-1], w).asnumpyarray()
    unaligned = gpu.conv(x[:, :, :, 1:], w).asnumpyarray()
    assert (mirrored == 18).all()
    assert (unaligned == 18).all()
    assert library.executed == []


def test_a_step_is_one_cuda_graph_with_its_workspace() -> None:
    gpu, library = made()
    rng = np.random.RandomState(0)
    x, w = gpu.array(rng.normal(size=(2, 1, 6, 6))), gpu.array(rng.normal(size=(2, 1, 3, 3)))
    cost = gpu.mean(gpu.square(gpu.relu(gpu.conv(x, w, padding=1)) - 1))
    step = function([], cost, updates={w: w - 0.1 * grad(cost, w)})
    losses = [float(step().item()) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert gpu.stats()["graphs"]["replays"] >= 3
    assert {plan.name for plan in library.plans} == {"conv_fprop", "conv_wgrad"}
    assert "cuDNN 9.28.1" in gpu.info()


#: What follows a convolution, of the bias b and the array r, for a backend and for NumPy.
FOLLOWING: dict[str, Any] = {
    "a bias": lambda y, b, r: y + b,
    "a bias and an array": lambda y, b, r: y + b + r,
    "an activation": lambda y, b, r: np.maximum(y + b, 0),
    "both values": lambda y, b, r: (y + b) * np.mean(y),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_what_follows_is_a_kernel(name: str) -> None:
    gpu, library = made(graphs=False)
    rng = np.random.RandomState(0)
    x, w, b, r = (rng.normal(size=s) for s in ((2, 3, 6, 6), (4, 3, 3, 3), (4, 1, 1), (2, 4, 4, 4)))
    conv = gpu.conv(gpu.array(x, "float64"), gpu.array(w, "float64"))
    tree, wanted = FOLLOWING[name](conv, *(gpu.array(z, "float64") for z in (b, r))), conv.op.value(x, w)
    np.testing.assert_allclose(tree.asnumpyarray(), FOLLOWING[name](wanted, b, r), rtol=1e-9)
    assert library.executed == ["conv_fprop"]
    assert gpu.kernels.counts.launches == 1


def test_a_graph_replays_a_plan_and_what_follows() -> None:
    gpu, library = made()
    rng = np.random.RandomState(0)
    x, w, b, t = (
        gpu.array(rng.normal(size=s), "float64") for s in ((2, 1, 6, 6), (2, 1, 3, 3), (2, 1, 1), (2, 2, 4, 4))
    )
    y = gpu.conv(x, w) + b
    step = function([], y, updates={w: w - 0.01 * gpu.conv_weights(x, t, w)})
    for _ in range(5):
        wanted = gpu.conv(x, w).op.value(x.get(), w.get()) + b.get()
        np.testing.assert_allclose(step().get(), wanted, rtol=1e-9)
    assert gpu.stats()["graphs"]["replays"] >= 3
    assert "conv_fprop" in library.executed


def test_a_missing_library_is_named() -> None:
    with patch.dict(sys.modules, cudnn=None):
        with pytest.raises(BackendError, match="nvidia-cudnn-frontend, which do not load"):
            gen_backend("gpu", cudnn=True)
        assert "cuDNN" not in gen_backend("gpu").info()
        with patch("backends.gpu.backend.find_spec", lambda name: name):
            assert gen_backend("gpu")._uses_cudnn
            with patch("backends.gpu.backend.CUDNN_CAPABILITY", 91):
                assert not gen_backend("gpu")._uses_cudnn, "cuDNN has dropped the card"
        with pytest.raises(BackendError, match="cudnn is True, False or None, not 'yes'"):
            gen_backend("gpu", cudnn="yes")
