"""What only a device can show: faults, streams, other libraries. On the stand-in too, but for what that has not.

``make test-gpu`` runs it on a real device; without one, its tests are skipped there, and say so.
"""

from __future__ import annotations

import gc
import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from harness.homes import home

from backends import gen_backend
from optree import function, grad
from optree.errors import BackendError, DeviceMemoryError


def pytest_generate_tests(metafunc: Any) -> None:
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", ["stand-in", "gpu"])


@pytest.fixture
def gpu(kind: str) -> Any:
    return home(kind)


@pytest.fixture
def real() -> Any:
    return home("gpu")


def test_out_of_memory_and_after(gpu: Any) -> None:
    x = gpu.ones(1000, name="x")
    total = gpu.stats()["memory"]["total"]
    column = gpu.ones((math.isqrt(total // 4) + 1000, 1))
    with pytest.raises(DeviceMemoryError, match="were asked for"):
        gpu.empty(total, np.float64)
    with pytest.raises(DeviceMemoryError):
        x[:] = gpu.slice(gpu.dot(column, column.T), np.s_[0, :1000])
    gc.collect()
    assert x.get().tolist() == [1] * 1000
    x[:] = x * 2 + 1
    assert x.get().tolist() == [3] * 1000


def test_streams(gpu: Any) -> None:
    x, z = gpu.ones(1 << 16), gpu.zeros(1 << 16)
    stream = gpu.cupy.cuda.Stream(non_blocking=True)
    gpu.synchronize()
    with stream:
        for _ in range(4):
            z[:] = gpu.exp(x) + z * 0
        values = z.get(blocking=False)
    stream.synchronize()
    np.testing.assert_allclose(values, np.e, rtol=1e-6)


def test_the_same_call_gives_the_same_bits(gpu: Any) -> None:
    rng = np.random.RandomState(0)
    x = gpu.array(rng.standard_normal((300, 77)))
    places = gpu.array(rng.randint(0, 50, 300))
    w = gpu.array(rng.standard_normal((50, 77)), name="w")
    cost = gpu.sum(gpu.softmax(w[places] * x)) + gpu.sum(gpu.var(x, axis=0))
    found = [gpu.evaluate([cost, *grad(cost, [w])]) for _ in range(3)]
    for other in found[1:]:
        for first, second in zip(found[0], other, strict=True):
            assert first.get().tobytes() == second.get().tobytes()


def test_a_training_step_is_the_cpus(gpu: Any) -> None:
    rng = np.random.RandomState(1)
    images, labels = rng.rand(32, 20), rng.randint(0, 5, 32)
    first, second = rng.standard_normal((20, 16)) * 0.3, rng.standard_normal((16, 5)) * 0.3
    curves = []
    for be in (gen_backend("cpu", datatype=np.float64), gpu):
        x, y = be.array(images, np.float64), be.array(labels)
        weights = [be.array(w, np.float64) for w in (first, second)]
        scores = be.dot(be.tanh(be.dot(x, weights[0])), weights[1])
        right = be.sum(scores * be.onehot(y, 5, dtype=np.float64), axis=1)
        cost = be.mean(be.logsumexp(scores, axis=1) - right)
        updates = {w: w - 0.5 * g for w, g in zip(weights, grad(cost, weights), strict=True)}
        step = function([], cost, updates=updates)
        curves.append([step().item() for _ in range(10)])
    np.testing.assert_allclose(*curves, rtol=1e-9)
    assert curves[0][-1] < curves[0][0]


def test_pytorchs_tensors_come_and_go(real: Any) -> None:
    torch: Any = pytest.importorskip("torch")
    theirs = torch.arange(6, dtype=torch.float32, device="cuda").reshape(2, 3)
    x = real.from_dlpack(theirs)
    x[:] = x * 2
    assert torch.from_dlpack(x).data_ptr() == theirs.data_ptr()
    assert theirs.cpu().numpy().tolist() == [[0, 2, 4], [6, 8, 10]]
    assert torch.as_tensor(real.ones(3), device="cuda").cpu().numpy().tolist() == [1, 1, 1]


def test_pycuda_launches_kernels_and_shares_its_arrays(real: Any) -> None:
    pytest.importorskip("pycuda.driver")
    be = gen_backend("gpu", launcher="pycuda")
    import_module("pycuda.autoprimaryctx")
    array = import_module("pycuda.gpuarray").to_gpu(np.arange(4, dtype=np.float32))
    x = be.adopt(array)
    x[:] = be.exp(x) * 0 + x + 1
    assert array.get().tolist() == [1, 2, 3, 4]


def test_the_asynchronous_allocator(real: Any) -> None:
    be = gen_backend("gpu", allocator="async")
    z = be.empty(1 << 20)
    for _ in range(10):
        z[:] = be.sin(be.ones(1 << 20)) * 2
    np.testing.assert_allclose(z.get(), 2 * np.sin(1), rtol=1e-6)
    assert be.stats()["memory"]["used"] >= z.nbytes


def test_large_arrays(real: Any) -> None:
    if real.stats()["memory"]["free"] < 12 << 30:
        pytest.skip("needs 12 GB")
    size = (1 << 31) + 64
    x = real.full(size, 1, np.int8)
    x[-3:] = 5
    assert real.sum(x, keepdims=False).asnumpyarray() == size + 12
    z = real.empty(size, np.int8)
    z[:] = x + x
    assert z[-4:].get().tolist() == [2, 10, 10, 10]


def test_a_device_that_is_not_there(real: Any) -> None:
    with pytest.raises(BackendError, match="are numbered from 0"):
        gen_backend("gpu", device_id=99)
