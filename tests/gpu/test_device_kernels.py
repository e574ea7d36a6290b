"""The GPU backend's kernels: compiled, cached, launched, and what a repeated assignment does."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness.compiling import private
from harness.messages import message_of
from harness.rig.install import Rig, refusing

from backends import gen_backend
from backends.execution.specialize import CheckedCall, FusedKernel
from backends.gpu.launch_config import DEVICES, Launch
from backends.gpu.launchers import LAUNCHERS, SHARED_CARVEOUT, SHARED_LIMIT
from backends.gpu.runtime import KernelHost, target_of
from optree import Op, TensorType, debugprint, function, grad
from optree.errors import BackendError, CompilerError, DeviceMemoryError
from optree.op.traits import ElementwiseOperator, FloatOperator, UnaryOperator
from optree.settings import override
from optree.train import Adam

KERNEL = 'extern "C" __global__ void kernel() {}'


def host_of(cupy: Any) -> KernelHost:
    return KernelHost(cupy, LAUNCHERS["cupy"](cupy))


@pytest.fixture
def host(simulated: Rig) -> KernelHost:
    return host_of(simulated.cupy)


# Compiled and cached


def test_a_kernel_is_compiled_once_and_then_found_on_disk(simulated: Rig, host: KernelHost, folder: Any) -> None:
    simulated.compiler.options.clear()
    for _ in range(2):
        host.load(KERNEL, ["kernel"])
    assert (host.counts.misses, host.counts.disk_hits, host.counts.hits) == (1, 0, 1)
    (options,) = simulated.compiler.options
    assert "--gpu-architecture=sm_90" in options and "--fmad=false" in options
    assert not simulated.compiler.programs
    other = host_of(simulated.cupy)
    other.load(KERNEL, ["kernel"])
    assert (other.counts.misses, other.counts.disk_hits) == (0, 1)
    for file in private(folder).iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    third = host_of(simulated.cupy)
    third.load(KERNEL, ["kernel"])
    assert third.counts.misses == 1, "what was cut short is compiled again"


def test_an_image_is_loaded_once_for_all_its_kernels(simulated: Rig, host: KernelHost, folder: Any) -> None:
    before = simulated.driver.calls["cuModuleLoadData"]
    assert len(host.load(KERNEL + KERNEL.replace("kernel", "end"), ["kernel", "end"])) == 2
    assert simulated.driver.calls["cuModuleLoadData"] == before + 1


def test_an_image_that_the_driver_refuses_is_compiled_again(simulated: Rig, host: KernelHost, folder: Any) -> None:
    host.load(KERNEL, ["kernel"])
    (file,) = private(folder).iterdir()
    stored = file.read_bytes()
    for status in (200, 209):
        other, answers = host_of(simulated.cupy), iter((status, 0))
        with refusing(simulated, lambda name, answers=answers: name == "cuModuleLoadData" and next(answers)):
            other.load(KERNEL, ["kernel"])
        assert (other.counts.misses, other.counts.disk_hits) == (1, 1)
        assert file.read_bytes() == stored, "what is compiled takes the place of what was refused"
    with refusing(simulated, lambda name: 209 * (name == "cuModuleLoadData")):
        for source in (KERNEL, KERNEL + "\n"):  # one that is there, and one that is not
            said = message_of(CompilerError, lambda source=source: host_of(simulated.cupy).load(source, ["kernel"]))
            for part in ("NO_BINARY_FOR_GPU", "sm_90", "newer driver"):
                assert part in said


def test_want_of_memory_for_a_kernel_is_told_as_such(simulated: Rig, gpu: Any, folder: Any) -> None:
    x, z = gpu.ones(3), gpu.empty(3)
    gpu.synchronize()
    for wanting in ("cuModuleLoadData", "cuLaunchKernel"):  # a launch needs local memory, too
        with refusing(simulated, lambda name, wanting=wanting: 2 * (name == wanting)):
            said = message_of(DeviceMemoryError, lambda: z.__setitem__(slice(None), x + 1))
        assert "out of memory" in said and "are free" in said
        z[:] = x + 1
        assert z.get().tolist() == [2] * 3


def test_a_source_that_does_not_compile_says_why(simulated: Rig, host: KernelHost, folder: Any) -> None:
    said = message_of(CompilerError, lambda: host.load("#error no", ["kernel"]))
    for part in ("sm_90", "#error no", "OPTREE_SHOW=source"):
        assert part in said
    assert not simulated.compiler.programs


def test_sources_are_shown_where_that_is_asked(host: KernelHost, folder: Any, capsys: Any) -> None:
    with override(show="source"):
        host.load(KERNEL, ["kernel"])
    assert KERNEL in capsys.readouterr().err


def test_headers_are_looked_for_only_where_they_are_included(simulated: Rig, host: KernelHost, folder: Any) -> None:
    for head, is_included in (("", False), ("#include <cuda_fp16.h>\n", True)):
        host.load(head + KERNEL, ["kernel"])
        options = simulated.compiler.options[-1]
        assert any(option.startswith("--include-path=") for option in options) is is_included


@pytest.mark.parametrize(
    ("capability", "target"), [("90", "sm_90"), ("75", "sm_75"), ("86", "compute_80"), ("121", "compute_90")]
)
def test_what_is_compiled_for(capability: str, target: str) -> None:
    nvrtc: Any = SimpleNamespace(getSupportedArchs=lambda: (75, 80, 90), getVersion=lambda: (12, 9))
    assert target_of(capability, nvrtc) == target
    assert "compute capability 6.0" in message_of(BackendError, lambda: target_of("60", nvrtc))


def test_more_shared_memory_is_asked_for(simulated: Rig, host: KernelHost, folder: Any) -> None:
    kernel, plain = host.load(KERNEL + KERNEL.replace("kernel", "end"), ["kernel", "end"])
    for shared in (0, 16, 64 << 10, 32 << 10, 100 << 10):
        host.bound(kernel, Launch("kernel", (3, 2), 128, shared), [])()
    assert simulated.driver.launches[-1] == ("kernel", (3, 2, 1), (128, 1, 1), 100 << 10)
    assert host.counts.launches == 5
    asked = simulated.cupy.cuda.driver.funcGetAttribute
    assert asked(SHARED_LIMIT, kernel.function.ptr) == 100 << 10
    # All of it, where blocks are counted by it: else the driver divides it between shared memory and the L1 cache.
    assert (asked(SHARED_CARVEOUT, kernel.function.ptr), asked(SHARED_CARVEOUT, plain.function.ptr)) == (100, 0)


def test_scratch_is_the_devices(host: KernelHost) -> None:
    address, memory = host.scratch(64)
    assert address == memory.data.ptr and memory.nbytes == 64


# Run


def test_late_updates_of_equal_shapes_are_one_launch(gpu: Any) -> None:
    """Updates by Adam, after the gradient of an embedding, which may fail."""
    found = []
    for be in (gen_backend("cpu", jit=False), gpu):
        table, *layers = weights = [be.array(np.random.RandomState(i).rand(n, 2)) for i, n in enumerate((3, 2, 2))]
        x = be.embedding(table, be.array(np.array([2, 0])))
        cost = be.sum(be.square(be.dot(be.dot(x, layers[0]), layers[1])))
        step = function([], cost, updates=Adam(weights, 0.1).updates(cost))
        found.append([step().item(), *(w.get() for w in weights)])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    assert gpu.stats()["kernels"]["launches"] == 3, "those of both layers are one kernel, in the launch of the others"
    plan = debugprint(step, file="str", stage="plan")
    assert plan.count("kernel(") == 4 and plan.count("and kernel(") == 1


def test_softmax_is_one_launch_and_writes_over_its_operand(gpu: Any) -> None:
    x = np.random.RandomState(0).randn(6, 300).astype(np.float32)
    tensor = gpu.array(x)
    tensor[:] = gpu.softmax(tensor, axis=1)
    exponentials = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(tensor.get(), exponentials / exponentials.sum(1, keepdims=True), rtol=2e-6)
    assert gpu.stats()["kernels"]["launches"] == 1


def test_a_kernel_that_does_not_compile_names_the_assignment(gpu: Any, folder: Any) -> None:
    class Wrong(UnaryOperator, ElementwiseOperator, FloatOperator, Op):
        numpy = np.sqrt
        kernel = "\n#error {0}\n"

    x, out = gpu.ones((3,), name="x"), gpu.zeros((3,))
    with pytest.raises(BackendError, match="refuses a kernel for sm_90") as error:
        out[:] = Wrong()(x) * 2
    assert any("while running" in note for note in error.value.__notes__)
    np.testing.assert_array_equal(out.get(), 0)
    out[:] = x + 1  # the backend works on
    assert out.get().tolist() == [2, 2, 2]


def test_assignments_are_fused_kernels(gpu: Any) -> None:
    rng = np.random.RandomState(0)
    a, b = (rng.rand(6, 5).astype(np.float32) for _ in range(2))
    x, y, z = gpu.array(a), gpu.array(b), gpu.empty((6, 5))
    before = gpu.kernels.counts.launches
    z[:] = x * y + 6 - x
    assert gpu.kernels.counts.launches == before + 1
    np.testing.assert_allclose(z.get(), a * b + 6 - a, rtol=1e-6)
    z[:] = z.T.copy().T + gpu.sum(x, axis=0)
    np.testing.assert_allclose(z.get(), a * b + 6 - a + a.sum(0), rtol=1e-6)
    z[1:] = z[:-1] * 2
    wanted = a * b + 6 - a + a.sum(0)
    np.testing.assert_allclose(z.get()[1:], wanted[:-1] * 2, rtol=1e-6)


def test_kernels_and_calls_in_one_program(gpu: Any) -> None:
    rng = np.random.RandomState(1)
    a, w = rng.rand(4, 3).astype(np.float32), rng.rand(3, 2).astype(np.float32)
    cpu = gen_backend("cpu")
    found = []
    for be in (cpu, gpu):
        x, v, b = be.array(a), be.array(w, name="w"), be.zeros(2, name="b")
        scores = be.tanh(be.dot(x, v) + b)
        right = be.sum(scores * be.onehot(be.array(np.array([0, 1, 1, 0])), 2), axis=1)
        cost = be.mean(be.logsumexp(scores, axis=1) - right)
        step = function([], cost, updates={p: p - 0.5 * g for p, g in zip((v, b), grad(cost, [v, b]), strict=True)})
        costs = [step().get() for _ in range(3)]
        found.append([np.ravel(costs), v.get(), b.get()])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    assert gpu.stats()["host_calls"] == 0
    assert gpu.stats()["kernels"]["launches"] > 0


def test_sizes_and_numbers_compile_nothing_anew(gpu: Any) -> None:
    x, factor = TensorType("float32", (None,))("x"), 2.0
    run = function([x], gpu.zeros(()) + x * factor)
    first = run(np.ones(4, np.float32)).get()
    before = gpu.kernels.counts.misses + gpu.kernels.counts.disk_hits
    assert run(np.ones(8, np.float32)).get().tolist() == [2] * 8 and first.tolist() == [2] * 4
    assert gpu.kernels.counts.misses + gpu.kernels.counts.disk_hits == before


def test_what_has_no_elements_launches_nothing(gpu: Any) -> None:
    before = gpu.kernels.counts.launches
    assert (gpu.zeros((0, 3)) + 1).asnumpyarray().shape == (0, 3)
    assert gpu.sum(gpu.zeros((0, 3)), axis=0).asnumpyarray().tolist() == [[0, 0, 0]]
    assert gpu.kernels.counts.launches == before


def test_a_repeated_assignment_launches_and_does_no_more(gpu: Any, simulated: Rig, monkeypatch: Any) -> None:
    x, y, z = (gpu.array(np.arange(6.0) + n) for n in range(3))
    looked: list[Any] = []
    bound: list[Any] = []
    specialize, bind = FusedKernel.specialize, KernelHost.bound
    monkeypatch.setattr(FusedKernel, "specialize", lambda *args: looked.append(args) or specialize(*args))
    monkeypatch.setattr(KernelHost, "bound", lambda *args: bound.append(args) or bind(*args))
    launches, allocations = gpu.kernels.counts.launches, simulated.allocations
    for n in range(5):
        z[:] = x * 2 + y
        assert z.get().tolist() == [3.0 * i + 2 * n + 1 for i in range(6)]
        x += 1
    assert len(looked) == 2, "the first assignment of each kind finds how its arrays lie, and the others take it"
    assert len(bound) == 2, "and its arguments: those after it launch, and do no more"
    assert gpu.kernels.counts.launches - launches == 10
    assert simulated.allocations == allocations


def test_tensors_of_many_shapes_take_turns(gpu: Any, monkeypatch: Any) -> None:
    tensors = [gpu.array(np.arange(128.0 * n).reshape(-1, n)) for n in (2, 3, 4, 5, 6, 7) for _ in range(3)]
    bound: list[Any] = []
    bind = KernelHost.bound
    monkeypatch.setattr(KernelHost, "bound", lambda *args: bound.append(args) or bind(*args))
    for _ in range(2):
        for x in tensors:
            x[:] = x * 2 + 1
    once = len(bound)
    for x in tensors:
        x[:] = x * 2 + 1
    assert len(bound) == once, "what was launched on an array before is launched as it is"
    for x in tensors:
        np.testing.assert_array_equal(x.get().ravel(), np.arange(float(x.size)) * 8 + 7)


def test_another_number_is_no_other_layout(gpu: Any, monkeypatch: Any) -> None:
    x, row, z, total = gpu.ones(4), gpu.ones(1 << 20), gpu.empty(4), gpu.empty(1)
    looked: list[Any] = []
    look = CheckedCall.addresses
    monkeypatch.setattr(CheckedCall, "addresses", lambda *args: looked.append(args) or look(*args))
    for n in range(6):
        z[:] = x * (n + 0.5)
        total[:] = gpu.sum(row)  # in memory that it needs anew each time
        assert z.get().tolist() == [n + 0.5] * 4 and total.item() == 1 << 20
    assert len(looked) == 2


def test_arrays_and_numbers_of_a_repeated_assignment_may_be_others(gpu: Any) -> None:
    z = gpu.empty(4)
    for values in (np.ones(4), np.full(4, 3.0), np.ones(4)):
        x = gpu.array(values)  # where the one before was, perhaps
        z[:] = x + 1
        assert z.get().tolist() == (values + 1).tolist()
    for number in (0.0, 1.0, 0.0, -0.0, 0.0, 2, True, 2.0, float("inf"), float("nan"), 1.0):
        z[:] = x * number
        np.testing.assert_array_equal(z.get(), values * number)
        assert np.signbit(z.get()).tolist() == np.signbit(values * number).tolist()
    whole = gpu.array(np.arange(512.0))
    for start in (0, 1, 2, 64, 0):  # of other alignments, and of the same
        z[:] = whole[start : start + 4] * 2
        assert z.get().tolist() == [2.0 * (start + n) for n in range(4)]
    for start in (256, 320, 64, 128, 0, 192):  # some of them where it is read
        values = whole.get()
        values[start : start + 192] = values[:192] + 1
        whole[start : start + 192] = whole[:192] + 1
        assert whole.get().tolist() == values.tolist()
    row, total = gpu.ones(1 << 20), gpu.empty(1)
    for n in range(4):
        total[:] = gpu.sum(row)
        row += 1
        assert total.item() == (n + 1) << 20, "blocks hand over in memory that is there"


def test_what_assignments_remember_keeps_no_memory(gpu: Any) -> None:
    x, z = gpu.ones(1 << 16), gpu.empty(1 << 16)
    assert gpu._unallocated((3,), np.float32).size == 3  # all such arrays share one element, made with the first
    used = gpu.stats()["memory"]["used"]
    y = gpu.ones(1 << 16)
    for _ in range(3):
        z[:] = x * 2 + y
        (gpu.sum(y, axis=0) * 2 + x).asnumpyarray()
    del y
    assert gpu.stats()["memory"]["used"] <= used


def test_a_kernel_goes_to_the_current_stream(gpu: Any, simulated: Rig) -> None:
    x, z = gpu.ones(4), gpu.empty(4)
    z[:] = x + 1
    z[:] = x + 1
    gpu.synchronize()
    with gpu.cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        z[:] = x + 1
        assert len(simulated.machine.captures[-1].nodes) == 1
        stream.end_capture()


# By CuPy's own NVRTC, which needs no GPU


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_cupys_nvrtc_compiles_a_kernel(folder: Any) -> None:
    real: Any = import_module("cupy")
    try:
        real.cuda.nvrtc.getVersion()
    except RuntimeError as error:
        pytest.skip(str(error).splitlines()[0])
    of = DEVICES["sm_90"]
    names = "MultiProcessorCount", "MaxSharedMemoryPerBlockOptin", "MaxThreadsPerMultiProcessor"
    limits = dict(zip(names, (of.multiprocessors, of.shared, of.threads), strict=True))
    device = SimpleNamespace(attributes=limits, compute_capability="90")
    cupy: Any = SimpleNamespace(cuda=SimpleNamespace(Device=lambda: device, nvrtc=real.cuda.nvrtc))
    host = KernelHost(cupy, SimpleNamespace(load=lambda image, names, source: [image for _ in names], launch=None))
    (image,) = host.load(KERNEL, ["kernel"])
    assert image[:4] == b"\x7fELF"
    assert "error" in message_of(CompilerError, lambda: host.load("no source", ["kernel"]))
    assert sys.modules["cupy"] is real
