"""PyCUDA launches op-tree's kernels, and shares arrays and streams: on a device, or on the rig (make test-rig)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import cuda_trials as trials
from harness.each import for_each
from harness.nvrtc import compile_cuda, needs_nvrtc

from backends import gen_backend
from optree import function, grad
from optree.dtypes import bfloat16

#: Trees of every kind of kernel: by ops, dtypes, layouts and reductions.
TREES = {
    f"{kind} {name}": trial
    for kind, found in {
        "op": trials.ops(),
        "elementwise": trials.elementwise(),
        "reduction": trials.reductions(),
        "softmax": trials.softmaxes((5, 5001)),
        "float16": trials.narrow(np.dtype("float16")),
        "bfloat16": trials.narrow(bfloat16()),
    }.items()
    for name, trial in found.items()
}


@pytest.fixture
def pycuda(real: Any) -> Iterator[Any]:
    """PyCUDA's driver, in the device's primary context."""
    driver = pytest.importorskip("pycuda.driver")
    driver.init()
    context = driver.Device(0).retain_primary_context()
    context.push()
    yield driver
    context.pop()


@pytest.fixture
def by_pycuda(pycuda: Any) -> Any:
    return gen_backend("gpu", launcher="pycuda", rng_seed=0)


@for_each("name", TREES, sampled=True)
def test_trees_are_right(by_pycuda: Any, name: str) -> None:
    TREES[name].check(TREES[name].run(by_pycuda))


def test_a_step_of_training_is_the_cpus(by_pycuda: Any) -> None:
    found = []
    for be in (by_pycuda, gen_backend("cpu")):
        x, w = be.array(np.linspace(-1, 1, 24).reshape(4, 6)), be.array(np.linspace(-1, 1, 18).reshape(6, 3), name="w")
        cost = be.mean(be.square(be.tanh(be.dot(x, w)) - 0.5))
        step = function([], cost, updates={w: w - 0.1 * grad(cost, w)})
        found.append([*(step().item() for _ in range(3)), *w.get().ravel()])
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert by_pycuda.kernels.counts.launches >= 3


@pytest.mark.parametrize("launcher", ["cupy", "pycuda"])
def test_arrays_are_shared_both_ways(pycuda: Any, launcher: str) -> None:
    gpuarray = pytest.importorskip("pycuda.gpuarray")
    be = gen_backend("gpu", launcher=launcher)
    theirs = gpuarray.to_gpu(np.arange(4, dtype=np.float32))
    x = be.adopt(theirs)
    x[:] = be.exp(x) * 0 + x + 1
    assert theirs.get().tolist() == [1, 2, 3, 4]
    ours = be.zeros((2, 3))
    seen = gpuarray.GPUArray((2, 3), np.float32, gpudata=ours.raw().data.ptr)
    seen.set(np.full((2, 3), 5, np.float32))
    assert (ours + 1).asnumpyarray().tolist() == [[6] * 3] * 2


@pytest.mark.parametrize("launcher", ["cupy", "pycuda"])
def test_streams_are_shared_both_ways(pycuda: Any, launcher: str) -> None:
    be = gen_backend("gpu", launcher=launcher)
    cuda = be.cupy.cuda
    values = pycuda.pagelocked_empty(4096, np.float32)
    values[:] = np.arange(4096)
    x, result = be.empty(4096), pycuda.pagelocked_empty(4096, np.float32)
    be.synchronize()
    theirs = pycuda.Stream()
    same = cuda.Stream.from_external(SimpleNamespace(__cuda_stream__=lambda: (0, theirs.handle)))
    with same:  # op-tree between two copies of PyCUDA's
        pycuda.memcpy_htod_async(x.raw().data.ptr, values, theirs)
        x[:] = x * 2 + 1
        pycuda.memcpy_dtoh_async(result, x.raw().data.ptr, theirs)
    theirs.synchronize()
    np.testing.assert_array_equal(result, np.arange(4096) * 2 + 1)
    with cuda.Stream(non_blocking=True) as ours:  # PyCUDA's stream waits for op-tree's
        x[:] = x * 2
        same.wait_event(ours.record())
    pycuda.memcpy_dtoh_async(result, x.raw().data.ptr, theirs)
    theirs.synchronize()
    np.testing.assert_array_equal(result, np.arange(4096) * 4 + 2)


@needs_nvrtc
def test_the_real_nvrtc_compiles_beside_the_simulated_driver(pycuda: Any, simulated: Any) -> None:
    """It calls functions of the driver that PyCUDA does not."""
    source = f'extern "C" __global__ void k(float *x) {{ x[0] = {random.random()}f; }}'  # one that no cache has
    assert compile_cuda(source).usage["k"].registers > 0
