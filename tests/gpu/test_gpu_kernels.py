"""The GPU backend's kernels, on a stand-in for CuPy whose compiler and launches are the CPU's (`harness.cuda`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.cuda import needs_gxx
from harness.emulated import emulated_cupy
from harness.fake_cupy import fake_cupy
from harness.homes import stand_in

import optree
from backends import gen_backend
from optree.errors import BackendError
from optree.settings import override

pytestmark = [needs_gxx, pytest.mark.usefixtures("folder")]


@pytest.fixture
def gpu() -> Any:
    return stand_in(emulated_cupy(), jit=True, rng_seed=0)


@pytest.fixture
def cpu() -> Any:
    return gen_backend("cpu", rng_seed=0, jit=False)


def trained(be: Any) -> list[np.ndarray]:
    """The weights and losses of a small network after some steps."""
    random = np.random.RandomState(0)
    x = be.array(random.randn(64, 20))
    y = be.array(np.eye(5)[random.randint(0, 5, 64)])
    first, second = be.array(random.randn(20, 16) * 0.3), be.array(random.randn(16, 5) * 0.3)
    logits = be.dot(be.tanh(be.dot(x, first)), second)
    loss = -be.sum(y * be.log_softmax(logits, axis=1)) / 64
    gradients = optree.grad(loss, [first, second])
    losses = []
    for _ in range(4):
        value, *deltas = be.evaluate([loss, *gradients])
        losses.append(value.get())
        first[:] = first - 0.5 * deltas[0]
        second[:] = second - 0.5 * deltas[1]
    return [np.hstack([x.ravel() for x in losses]), first.get(), second.get()]


def test_a_network_trains_as_on_the_cpu(gpu, cpu):
    for ours, theirs in zip(trained(gpu), trained(cpu), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    stats = gpu.stats()
    assert stats["host_calls"] == 0 and stats["kernels"]["launches"] > 0
    assert stats["kernels"]["misses"] <= 8  # however many steps


def test_an_assignment_is_one_launch(gpu, cpu):
    a, b, c, d = (np.random.RandomState(i).rand(37, 41).astype(np.float32) for i in range(4))
    results = []
    for be in (gpu, cpu):
        w, x, y, z = map(be.array, (a, b, c, d))
        out = be.empty((37, 41))
        out[:] = w * x + y * be.sin(z)
        results.append(out.get())
    np.testing.assert_allclose(*results, rtol=1e-6)
    assert gpu.stats()["kernels"]["launches"] == 1


def test_softmax_is_one_launch_and_writes_over_its_operand(gpu):
    x = np.random.RandomState(0).randn(6, 300).astype(np.float32)
    tensor = gpu.array(x)
    tensor[:] = gpu.softmax(tensor, axis=1)
    exponentials = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(tensor.get(), exponentials / exponentials.sum(1, keepdims=True), rtol=2e-6)
    assert gpu.stats()["kernels"]["launches"] == 1


def test_functions_update_in_place(gpu, cpu):
    results = []
    for be in (gpu, cpu):
        w, m = be.array(np.ones((9, 5))), be.zeros((9, 5))
        g = optree.TensorType("float32", (None, None))("g")
        step = optree.function([g], be.sum(w), updates={m: 0.9 * m + 0.1 * g, w: w - 0.5 * m})
        totals = [step(be.array(np.full((9, 5), i, np.float32))).get().item() for i in range(3)]
        results.append([np.asarray(totals), w.get(), m.get()])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_views_that_overlap_are_read_first(gpu):
    x = gpu.array(np.arange(12.0))
    x[1:] = x[:-1] * 2
    np.testing.assert_array_equal(x.get(), np.hstack([[0], np.arange(11.0) * 2]))


def test_kernels_are_kept_on_disk(gpu):
    x = gpu.ones((5,))
    (x * 3).asnumpyarray()
    again = stand_in(emulated_cupy(), jit=True)
    (again.ones((5,)) * 3).asnumpyarray()
    kernels = again.stats()["kernels"]
    assert (kernels["misses"], kernels["disk_hits"]) == (0, 1)


def test_what_the_compiler_refuses_names_the_assignment(gpu):
    class Wrong(optree.op.traits.UnaryOperator, optree.op.traits.ElementwiseOperator, optree.op.traits.FloatOperator):
        numpy = np.sqrt
        kernel = "\n#error {0}\n"

    x, out = gpu.ones((3,), name="x"), gpu.zeros((3,))
    with pytest.raises(BackendError, match="refuses a kernel for sm_90") as error:
        out[:] = Wrong()(x) * 2
    assert any("while running" in note for note in error.value.__notes__)
    np.testing.assert_array_equal(out.get(), 0)
    out[:] = x + 1  # the backend works on
    assert out.get().tolist() == [2, 2, 2]


def test_sources_are_shown(gpu, capfd):
    with override(show="source"):
        (gpu.ones((3,)) - 7).asnumpyarray()
    assert 'extern "C" __global__' in capfd.readouterr().err


def test_operations_one_by_one(cpu):
    be = stand_in(fake_cupy(), jit=False)
    np.testing.assert_allclose(be.softmax(be.ones((2, 3)), axis=1).asnumpyarray(), 1 / 3, rtol=1e-6)
    assert be.stats()["kernels"] == {} and "one by one" in be.info()
    with pytest.raises(BackendError, match="jit is True or False"):
        stand_in(fake_cupy(), jit="auto")
