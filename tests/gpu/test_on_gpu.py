"""Tests that say most of a device: memory, streams, graphs, other libraries; without a real one, on a simulated one."""

from __future__ import annotations

import gc
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.homes import home

from backends import gen_backend
from optree import debugprint, function, grad
from optree.errors import BackendError, DeviceMemoryError

#: Kernels of every layout, on memory of their own each, so that compute-sanitizer sees where it ends.
SAMPLE = """
import cupy
import numpy as np

cupy.cuda.set_allocator(None)
from backends import gen_backend
from optree import function

be, rng = gen_backend("gpu", graphs=False), np.random.RandomState(0)
for rows, columns in ((3, 5), (70, 33), (5, 3001), (2, 70000), (300000, 3)):
    values = rng.standard_normal((rows, columns))
    x = be.array(values, np.float32)
    for tree, wanted in (
        (be.exp(x.T.copy().T * 2) + x[:, ::-1], np.exp(values * 2) + values[:, ::-1]),
        (np.sum(x, axis=0), values.sum(0)),
        (np.sum(x, axis=1), values.sum(1)),
        (np.sum(x * x), (values**2).sum()),
        (be.softmax(x, axis=1), np.exp(values) / np.exp(values).sum(1, keepdims=True)),
        (np.var(x, axis=0), values.var(0)),
        (be.dot(x.T, x), values.T @ values if columns < 100 else None),
    ):
        if wanted is not None:
            np.testing.assert_allclose(tree.asnumpyarray(), wanted, rtol=2e-3, atol=2e-3)
print("as NumPy")
"""


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
    cost = gpu.sum(gpu.softmax(w[places] * x, axis=1)) + gpu.sum(gpu.var(x, axis=0))
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


def test_graphs_are_captured_and_replayed(gpu: Any) -> None:
    be, cpu, rng = gpu, gen_backend("cpu", rng_seed=0), np.random.RandomState(2)
    start, batches = rng.standard_normal((6, 6)) / 3, rng.standard_normal((5, 4, 6))
    found = []
    for each in (be, cpu):
        x, w = each.empty((4, 6), name="x"), each.array(start, name="w")
        cost = each.mean(each.square(each.tanh(each.dot(x, w)) * (each.rand((4, 6)) < 0.8)))
        step = function([], cost, updates={w: w - 0.1 * grad(cost, w)})
        costs = []
        for batch in batches:
            x[:] = batch
            costs.append(step().item())
        found.append([*costs, *w.get().ravel()])
    np.testing.assert_allclose(*found, rtol=2e-4, atol=1e-5)
    t = be.zeros(8, name="t")
    add = function([], updates={t: t + 1})
    for _ in range(4):
        add()
    assert t.get().tolist() == [4] * 8
    assert "captured as a CUDA graph" in debugprint(add, file="str")
    assert be.stats()["graphs"]["captures"] >= 2 and be.stats()["graphs"]["replays"] >= 6


def test_complex_numbers_are_as_numpys(gpu: Any) -> None:
    rng = np.random.RandomState(4)
    z, v = (rng.standard_normal((3, 4)) + 1j * rng.standard_normal((3, 4)) for _ in range(2))
    a, b = gpu.array(z, np.complex128, name="a"), gpu.array(v, np.complex128)
    for function_ in (
        lambda a, b: np.exp(a) * b + np.abs(a) - np.conj(b) / a,
        lambda a, b: np.sum(a * b, axis=0) + np.prod(b),
        lambda a, b: np.where(np.abs(a) > 1, a, b) ** 2,
        lambda a, b: np.logical_and(a, b) | (a == b),
        lambda a, b: np.flip(np.concatenate([a, b]), 0),
    ):
        np.testing.assert_allclose(function_(a, b).get(), function_(z, v), rtol=1e-12)
    cost = gpu.sum(gpu.abs(a * b) ** 2)
    np.testing.assert_allclose(grad(cost, a).get(), 2 * z * np.abs(v) ** 2, rtol=1e-12)
    a.imag[:] = 1
    assert (a.get() == z.real + 1j).all() and gpu.array(gpu.cupy.asarray(z)).dtype == np.complex64


def test_transforms_and_complex_products_are_captured(gpu: Any) -> None:
    """Each call has the values of its own operands: the plans of a function have its workspace."""
    rng = np.random.RandomState(5)
    start, other = (rng.standard_normal((6, 8)) @ np.diag([1, 1j] * 4) for _ in range(2))
    w, v = gpu.array(start, np.complex128, name="w"), gpu.array(other, np.complex128)
    step = function(
        [], [np.fft.ifft(np.fft.fft(w), axis=0), gpu.dot(w, v.T), np.fft.irfft(w, n=9, norm="ortho")], updates={w: v}
    )
    for now in (start, other, other, other):
        spectrum, product, real = (x.get() for x in step())
        np.testing.assert_allclose(spectrum, np.fft.ifft(np.fft.fft(now), axis=0), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(product, now @ other.T, rtol=1e-10)
        np.testing.assert_allclose(real, np.fft.irfft(now, n=9, norm="ortho"), rtol=1e-10, atol=1e-12)
    text = debugprint(step, file="str")
    assert "captured as a CUDA graph" in text and "uncaptured between" not in text
    assert gpu.stats()["graphs"]["captures"] and not len(gpu.transform._plans)


def test_transforms_on_two_streams_have_plans_of_their_own(gpu: Any) -> None:
    x = np.random.RandomState(6).standard_normal((4, 16))
    tensor, found = gpu.array(x, np.float64), []
    gpu.synchronize()
    for stream in (gpu.cupy.cuda.Stream(non_blocking=True), gpu.cupy.cuda.Stream(non_blocking=True)):
        with stream:
            found += [np.fft.rfft(tensor).astensor(), np.fft.rfft(tensor * 2).astensor()]
    gpu.synchronize()
    for got, by in zip(found, (1, 2, 1, 2), strict=True):
        np.testing.assert_allclose(got.get(), np.fft.rfft(x * by), rtol=1e-10, atol=1e-12)
    assert len(gpu.transform._plans) == 2


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_compute_sanitizer_finds_nothing(real: Any, tool: str) -> None:
    program = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if program is None:
        pytest.skip("compute-sanitizer, which comes with the CUDA toolkit, is not there")
    command = [
        program,
        "--tool",
        tool,
        "--error-exitcode",
        "7",
        "--target-processes",
        "all",
        sys.executable,
        "-c",
        SAMPLE,
    ]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent.parent, capture_output=True, text=True, timeout=600)
    if "Device not supported" in done.stdout + done.stderr:
        pytest.skip("compute-sanitizer does not support this device here")
    assert done.returncode == 0 and "as NumPy" in done.stdout, (done.stdout + done.stderr)[-4000:]


def test_pytorchs_tensors_come_and_go(real: Any) -> None:
    torch: Any = pytest.importorskip("torch")
    theirs = torch.arange(6, dtype=torch.float32, device="cuda").reshape(2, 3)
    x = real.from_dlpack(theirs)
    x[:] = x * 2
    assert torch.from_dlpack(x).data_ptr() == theirs.data_ptr()
    assert theirs.cpu().numpy().tolist() == [[0, 2, 4], [6, 8, 10]]
    assert torch.as_tensor(real.ones(3), device="cuda").cpu().numpy().tolist() == [1, 1, 1]


def test_a_copy_to_the_host_need_not_be_waited_for(gpu: Any) -> None:
    x = gpu.array([1.0, 2.0])
    values = x.get(blocking=False)
    assert len(gpu._in_flight) == 1, "the memory that is copied into is kept"
    gpu.synchronize()
    assert values.tolist() == [1, 2]
    assert gpu.zeros((0, 2)).get(blocking=False).shape == (0, 2)
    (x + 1).astensor().T.get(blocking=False)
    assert len(gpu._in_flight) == 1, "and no longer than that"
    assert gen_backend("cpu").ones(1).get(blocking=False).tolist() == [1]


def test_memory_is_given_back_and_counted(gpu: Any) -> None:
    gc.collect()  # of tests before
    before = gpu.stats()["memory"]["used"]
    x = gpu.ones(1 << 12)
    z = gpu.empty_like(x)
    assert abs(gpu.stats()["memory"]["used"] - before - 2 * x.nbytes) <= 1024
    for _ in range(8):
        z[:] = gpu.exp(x) * 2 + x
        z[:] = x + np.ones(1 << 12)
    del x, z
    gc.collect()
    assert gpu.stats()["memory"]["used"] <= before + 4096


def test_the_asynchronous_allocator(device_kind: str) -> None:
    be = home(device_kind, allocator="async")
    z = be.empty(1 << 12)
    for _ in range(4):
        z[:] = be.sin(be.ones(1 << 12)) * 2
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
