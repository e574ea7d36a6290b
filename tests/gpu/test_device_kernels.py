"""The GPU backend's kernels, on the stand-in for CuPy: compiled, kept, launched, and run on the CPU."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness.compiling import private
from harness.cuda import needs_gxx
from harness.emulated import emulated_cupy
from harness.fake_cuda import CUDADriverError
from harness.fake_cupy import fake_cupy
from harness.homes import stand_in
from harness.messages import message_of

from backends import gen_backend
from backends.execution.specialize import CheckedCall, FusedKernel
from backends.gpu.launch_config import Launch
from backends.gpu.launchers import LAUNCHERS
from backends.gpu.runtime import KernelHost, target_of
from optree import TensorType, function, grad
from optree.errors import BackendError, CompilerError, DeviceMemoryError
from optree.settings import override

KERNEL = 'extern "C" __global__ void kernel() {}'


@pytest.fixture
def cupy() -> Any:
    return fake_cupy()


@pytest.fixture
def host(cupy: Any) -> KernelHost:
    return KernelHost(cupy, LAUNCHERS["cupy"](cupy))


# Compiled and kept


def test_a_kernel_is_compiled_once_and_then_found_on_disk(cupy: Any, host: KernelHost, folder: Any) -> None:
    for _ in range(2):
        host.load(KERNEL, ["kernel"])
    assert (host.counts.misses, host.counts.disk_hits, host.counts.hits) == (1, 0, 1)
    (options,) = cupy.cuda.nvrtc.options
    assert "--gpu-architecture=sm_90" in options and "--fmad=false" in options
    assert cupy.cuda.nvrtc.open == 0
    other = KernelHost(cupy, LAUNCHERS["cupy"](cupy))
    (kernel,) = other.load(KERNEL, ["kernel"])
    assert kernel.function.cubin == KERNEL.encode()
    assert (other.counts.misses, other.counts.disk_hits) == (0, 1)
    for file in private(folder).iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    third = KernelHost(cupy, LAUNCHERS["cupy"](cupy))
    third.load(KERNEL, ["kernel"])
    assert third.counts.misses == 1, "what was cut short is compiled again"


def test_an_image_is_loaded_once_for_all_its_kernels(cupy: Any, host: KernelHost, folder: Any) -> None:
    first, second = host.load(KERNEL + KERNEL.replace("kernel", "end"), ["kernel", "end"])
    assert (first.function.name, second.function.name) == ("kernel", "end") and cupy.machine.loads == 1


def test_an_image_that_the_driver_refuses_is_compiled_again(cupy: Any, host: KernelHost, folder: Any) -> None:
    host.load(KERNEL, ["kernel"])
    (file,) = private(folder).iterdir()
    stored = file.read_bytes()
    for status in (200, 209):
        other, refused = KernelHost(cupy, LAUNCHERS["cupy"](cupy)), iter((status, 0))
        cupy.machine.refuses = lambda image, refused=refused: next(refused)
        (kernel,) = other.load(KERNEL, ["kernel"])
        assert kernel.function.cubin == KERNEL.encode()
        assert (other.counts.misses, other.counts.disk_hits) == (1, 1)
        assert file.read_bytes() == stored, "what is compiled takes the place of what was refused"
    cupy.machine.refuses = lambda image: 209
    for source in (KERNEL, KERNEL + "\n"):  # one that is there, and one that is not
        said = message_of(CompilerError, lambda source=source: host_of(cupy).load(source, ["kernel"]))
        for part in ("NO_BINARY_FOR_GPU", "sm_90", "newer driver"):
            assert part in said


def host_of(cupy: Any) -> KernelHost:
    return KernelHost(cupy, LAUNCHERS["cupy"](cupy))


def test_want_of_memory_for_a_kernel_is_told_as_such(cupy: Any, folder: Any) -> None:
    be = stand_in(cupy, jit=True)
    x, z = be.ones(3), be.empty(3)
    cupy.machine.refuses = lambda image: 2
    said = message_of(DeviceMemoryError, lambda: z.__setitem__(slice(None), x + 1))
    assert "out of memory" in said and "are free" in said
    cupy.machine.refuses = lambda image: 0
    z[:] = x + 1

    def no_memory(*args: Any) -> None:
        raise CUDADriverError(2)  # as where a launch needs more local memory than there is

    cupy.machine.do, do = no_memory, cupy.machine.do
    assert "are free" in message_of(DeviceMemoryError, lambda: z.__setitem__(slice(None), x + 1))
    cupy.machine.do = do
    z[:] = x + 1


def test_a_source_that_does_not_compile_says_why(cupy: Any, host: KernelHost, folder: Any) -> None:
    said = message_of(CompilerError, lambda: host.load("#error no", ["kernel"]))
    for part in ("sm_90", "catastrophic error", "OPTREE_SHOW=source"):
        assert part in said
    assert cupy.cuda.nvrtc.open == 0


def test_sources_are_shown_where_that_is_asked(host: KernelHost, folder: Any, capsys: Any) -> None:
    with override(show="source"):
        host.load(KERNEL, ["kernel"])
    assert KERNEL in capsys.readouterr().err


def test_headers_are_looked_for_only_where_they_are_included(cupy: Any, host: KernelHost, folder: Any) -> None:
    host.load("#include <cuda_fp16.h>\n" + KERNEL, ["kernel"])
    assert any(option.startswith("--include-path=") for option in cupy.cuda.nvrtc.options[-1])
    if find_spec("cuda") is None:
        cupy.cuda.get_cuda_path = lambda: None
        said = message_of(CompilerError, lambda: host.load("#include <cuda_fp16.h>\n" + KERNEL * 2, ["kernel"]))
        assert "headers" in said and "pip install" in said


@pytest.mark.parametrize(
    ("capability", "target"), [("90", "sm_90"), ("75", "sm_75"), ("86", "compute_80"), ("121", "compute_90")]
)
def test_what_is_compiled_for(capability: str, target: str) -> None:
    nvrtc = fake_cupy().cuda.nvrtc
    assert target_of(capability, nvrtc) == target
    assert "compute capability 6.0" in message_of(BackendError, lambda: target_of("60", nvrtc))


def test_more_shared_memory_is_asked_for(cupy: Any, host: KernelHost, folder: Any) -> None:
    (kernel,) = host.load(KERNEL, ["kernel"])
    for shared in (0, 16, 64 << 10, 32 << 10, 100 << 10):
        host.bound(kernel, Launch("kernel", (3, 2), 128, shared), [1])()
    assert cupy.machine.launches[-1] == ("kernel", (3, 2, 1), (128, 1, 1), [1], 100 << 10, None)
    assert host.counts.launches == 5 and cupy.machine.asked[kernel.function.ptr, 8] == 100 << 10


def test_scratch_is_the_devices(cupy: Any, host: KernelHost) -> None:
    address, memory = host.scratch(64)
    assert address == memory.data.ptr and memory.nbytes == 64


# Run, by the emulator


@pytest.fixture(scope="module")
def gpu() -> Any:
    return stand_in(emulated_cupy(), jit=True)


@needs_gxx
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


@needs_gxx
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


@needs_gxx
def test_sizes_and_numbers_compile_nothing_anew(gpu: Any) -> None:
    x, factor = TensorType("float32", (None,))("x"), 2.0
    run = function([x], gpu.zeros(()) + x * factor)
    first = run(np.ones(4, np.float32)).get()
    before = gpu.kernels.counts.misses + gpu.kernels.counts.disk_hits
    assert run(np.ones(8, np.float32)).get().tolist() == [2] * 8 and first.tolist() == [2] * 4
    assert gpu.kernels.counts.misses + gpu.kernels.counts.disk_hits == before


@needs_gxx
def test_what_has_no_elements_launches_nothing(gpu: Any) -> None:
    before = gpu.kernels.counts.launches
    assert (gpu.zeros((0, 3)) + 1).asnumpyarray().shape == (0, 3)
    assert gpu.sum(gpu.zeros((0, 3)), axis=0).asnumpyarray().tolist() == [[0, 0, 0]]
    assert gpu.kernels.counts.launches == before


@needs_gxx
def test_a_repeated_assignment_launches_and_does_no_more(gpu: Any, monkeypatch: Any) -> None:
    x, y, z = (gpu.array(np.arange(6.0) + n) for n in range(3))
    looked: list[Any] = []
    bound: list[Any] = []
    specialize, bind = FusedKernel.specialize, KernelHost.bound
    monkeypatch.setattr(FusedKernel, "specialize", lambda *args: looked.append(args) or specialize(*args))
    monkeypatch.setattr(KernelHost, "bound", lambda *args: bound.append(args) or bind(*args))
    launches, allocations = gpu.kernels.counts.launches, gpu.cupy.machine.allocations
    for n in range(5):
        z[:] = x * 2 + y
        assert z.get().tolist() == [3.0 * i + 2 * n + 1 for i in range(6)]
        x += 1
    assert len(looked) == 2, "the first assignment of each kind finds how its arrays lie, and the others take it"
    assert len(bound) == 2, "and its arguments: those after it launch, and do no more"
    assert gpu.kernels.counts.launches - launches == 10
    assert gpu.cupy.machine.allocations == allocations


@needs_gxx
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


@needs_gxx
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


@needs_gxx
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


@needs_gxx
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


@needs_gxx
def test_a_kernel_of_another_thread_goes_to_its_stream(gpu: Any) -> None:
    x, z = gpu.ones(4), gpu.empty(4)
    z[:] = x + 1
    z[:] = x + 1
    launches, stream = gpu.cupy.machine.launches, gpu.cupy.cuda.Stream()
    with stream:
        stream.begin_capture()
        z[:] = x + 1
        assert launches and len(stream.end_capture().work) == 1


# By CuPy's own NVRTC, which needs no GPU


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_cupys_nvrtc_compiles_a_kernel(folder: Any) -> None:
    real: Any = import_module("cupy")
    try:
        real.cuda.nvrtc.getVersion()
    except RuntimeError as error:
        pytest.skip(str(error).splitlines()[0])
    cupy = fake_cupy()
    cupy.cuda.nvrtc = real.cuda.nvrtc
    host = KernelHost(cupy, SimpleNamespace(load=lambda image, names, source: [image for _ in names], launch=None))
    (image,) = host.load(KERNEL, ["kernel"])
    assert image[:4] == b"\x7fELF"
    assert "error" in message_of(CompilerError, lambda: host.load("no source", ["kernel"]))
    assert sys.modules["cupy"] is real
