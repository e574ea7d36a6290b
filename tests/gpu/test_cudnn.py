"""Convolutions by cuDNN, on a stand-in for its front end, against the op's own value."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from harness.emulated import emulated_cupy
from harness.fake_cudnn import FakeCuDNN
from harness.homes import stand_in
from harness.windowed import CONVOLUTIONS

from backends import gen_backend
from optree import function, grad
from optree.errors import BackendError


def made(**options: Any) -> tuple[Any, FakeCuDNN]:
    """A backend whose convolutions are a stand-in's, and that."""
    cupy = emulated_cupy()
    library = FakeCuDNN(cupy.machine)
    return stand_in(cupy, jit=True, cudnn=library, **options), library


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
        "conv_dgrad": (op.by_input()(tensors[2], tensors[1], tensors[0]), op.spread(wide[2], wide[1], x.shape)),
        "conv_wgrad": (
            op.by_weights()(tensors[0], tensors[2], tensors[1]),
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


def test_kernels_compute_what_has_no_plan() -> None:
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
    assert gpu.kernels.counts.launches == 3


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


def test_a_missing_library_is_named() -> None:
    cupy = emulated_cupy()
    modules = {"cupy": cupy, "cupyx": cupy.linalg.cupyx, "cudnn": None}

    with patch.dict(sys.modules, modules):
        with pytest.raises(BackendError, match="nvidia-cudnn-frontend, which do not load"):
            gen_backend("gpu", cudnn=True)
        be = gen_backend("gpu")
        assert "cuDNN" not in be.info()
        with pytest.raises(BackendError, match="cudnn is True, False or None, not 'yes'"):
            gen_backend("gpu", cudnn="yes")
