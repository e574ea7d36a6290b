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
from optree import debugprint, function, grad
from optree.errors import BackendError
from optree.networks.convolution import ConvInput, ConvWeights
from optree.tree.types import TensorType

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


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_bias_and_a_residual_are_added_in_the_plan(case: str, dtype: str) -> None:
    gpu, library = made(graphs=False)
    shape, filters, props = CONVOLUTIONS[case]
    layout = props.get("layout") or "NC" + "DHW"[5 - len(shape) :]
    rng = np.random.RandomState(0)
    x, w = (rng.normal(size=s).astype(dtype) for s in (shape, filters))
    conv = gpu.conv(gpu.array(x, dtype), gpu.array(w, dtype), **props)
    value = conv.op.value(x.astype("float64"), w.astype("float64"))
    bias = rng.normal(size=[n if axis == "C" else 1 for n, axis in zip(conv.shape, layout, strict=True)]).astype(dtype)
    other = rng.normal(size=conv.shape).astype(dtype)
    b, r = gpu.array(bias, dtype), gpu.array(other, dtype)
    trees = {"bias": (conv + b, value + bias), "addend+bias": ((conv + b) + r, value + bias + other)}
    for name, (tree, wanted) in trees.items():
        got = tree.asnumpyarray()
        error = np.abs(got.astype("float64") - wanted).max() / np.abs(wanted).max()
        assert error < {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3}[dtype], f"{name}: {error}"
        assert library.executed == [f"conv_fprop+{name}"]
        library.executed.clear()
    assert gpu.kernels.counts.launches == 0
    assert f"by cuDNN {library.backend_version_string()} in one plan" in debugprint(tree, stage="plan", file="str")


#: What follows a convolution, of the bias b and the array r, its value by NumPy, the plans, and the kernels.
FOLLOWING: dict[str, tuple[Any, Any, list[str], int]] = {
    "an activation": (lambda be, y, b, r: be.relu(y + b), lambda y, b, r: np.maximum(y + b, 0), ["conv_fprop"], 1),
    "a factor": (lambda be, y, b, r: 2 * y + b, lambda y, b, r: 2 * y + b, ["conv_fprop"], 1),
    "a difference": (lambda be, y, b, r: y - b, lambda y, b, r: y - b, ["conv_fprop"], 1),
    "an array alone": (lambda be, y, b, r: y + r, lambda y, b, r: y + r, ["conv_fprop"], 1),
    "both values": (lambda be, y, b, r: (y + b) * be.mean(y), lambda y, b, r: (y + b) * y.mean(), ["conv_fprop"], 1),
    "a vector along rows": (
        lambda be, y, b, r: y + r[0, 0, 0],
        lambda y, b, r: y + r[0, 0, 0],
        ["conv_fprop"],
        1,
    ),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_what_plans_do_not_take_is_a_kernel(name: str) -> None:
    gpu, library = made(graphs=False)
    tree, wanted, plans, kernels = FOLLOWING[name]
    rng = np.random.RandomState(0)
    x, w, b, r = (rng.normal(size=s) for s in ((2, 3, 6, 6), (4, 3, 3, 3), (4, 1, 1), (2, 4, 4, 4)))
    conv = gpu.conv(gpu.array(x, "float64"), gpu.array(w, "float64"))
    before = gpu.array(b, "float64"), gpu.array(r, "float64")
    np.testing.assert_allclose(tree(gpu, conv, *before).asnumpyarray(), wanted(conv.op.value(x, w), b, r), rtol=1e-9)
    assert library.executed == plans
    assert gpu.kernels.counts.launches == kernels


def test_a_plan_without_an_epilogue_is_followed_by_the_kernel() -> None:
    """Where engines add no bias, where it lies in the memory of the value, and where there is no plan at all."""
    gpu, library = made(graphs=False)
    x, w, b = gpu.ones((1, 2, 6, 6)), gpu.ones((4, 2, 3, 3)), gpu.ones((4, 1, 1))
    h = gpu.ones((1, 4, 4, 4))
    h[:] = gpu.conv(x, w) + h + b
    assert (h.asnumpyarray() == 20).all()
    assert library.executed == ["conv_fprop"]
    library.unsupported.add("conv_fprop+bias")
    gpu.conv(x, w)  # a plan of its own
    assert ((gpu.conv(x, w) + b).asnumpyarray() == 19).all()
    assert library.executed == ["conv_fprop"] * 2
    assert gpu.kernels.counts.launches == 2
    library.unsupported.add("conv_fprop")
    y = gpu.ones((2, 2, 6, 6))
    assert ((gpu.conv(y, w) + b).asnumpyarray() == 19).all()
    assert library.executed == ["conv_fprop"] * 2
    assert gpu.kernels.counts.launches == 3


def test_a_bias_of_an_unknown_number_of_channels_may_have_one() -> None:
    gpu, library = made(graphs=False)
    x, w = TensorType("float32", (None,) * 4)(), TensorType("float32", (None,) * 4)()
    b = TensorType("float32", (None, 1, 1))()
    step = function([x, w, b], gpu.conv(x, w) + b)
    for channels in (1, 2):
        got = step(gpu.ones((1, 2, 6, 6)), gpu.ones((channels, 2, 3, 3)), gpu.ones((channels, 1, 1)))
        assert got.shape == (1, channels, 4, 4) and (got.get() == 19).all()
    assert library.executed == ["conv_fprop+bias"] * 2


def test_a_graph_replays_a_plan_with_its_epilogue() -> None:
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
    assert "conv_fprop+bias" in library.executed


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
