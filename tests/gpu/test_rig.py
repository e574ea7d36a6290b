"""Real CuPy on simulated devices: what runs, in which orders, and the driver's rules, each broken by a test."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import pytest
from harness.device import DEFAULT, OPTIN
from harness.rig.driver import Module
from harness.rig.install import Rig, rig, why_no_rig

from backends import gen_backend
from backends.gpu import cupy_device
from backends.gpu.launch_config import Launch
from optree import debugprint, function, grad
from optree.errors import BackendError
from optree.ops.indexing import Take

pytestmark = pytest.mark.skipif(why_no_rig() is not None, reason=str(why_no_rig()))


@pytest.fixture
def cupy(on: Rig) -> Any:
    return on.cupy


SOURCE = """
extern "C" {
__global__ void __launch_bounds__(256) fill(float* x, int n, float value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = value;
}
__global__ void wide(float4* x) { x[threadIdx.x] = make_float4(1, 2, 3, 4); }
__global__ void beyond(float* x, long long by) { x[by] = 1; }
__global__ void any(int n) {}
}
"""

SHARED = """
extern "C" __global__ void shared(float* x)
{
    __shared__ float own[96];
    extern __shared__ float others[];
    own[threadIdx.x] = others[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = own[31 - threadIdx.x] + others[31 - threadIdx.x];
}
"""
STATIC = 96 * 4


def kernel(cupy: Any, name: str, source: str = SOURCE) -> Any:
    return cupy.RawModule(code=source).get_function(name)


# What runs


def test_cupys_own_kernels(cupy: Any) -> None:
    x = cupy.arange(10)
    assert x.sum().item() == 45 and isinstance(x, cupy.ndarray) and cupy.__version__[0].isdigit()
    values = np.random.RandomState(0).standard_normal((5, 7))
    y = cupy.asarray(values)
    for name, wanted in {"max": values.max(1), "mean": values.mean(1), "argmin": values.argmin(1)}.items():
        np.testing.assert_allclose(getattr(y, name)(axis=1).get(), wanted)
    np.testing.assert_array_equal(cupy.sort(y, axis=1).get(), np.sort(values, axis=1))
    np.testing.assert_array_equal(cupy.argsort(y, axis=1).get(), np.argsort(values, axis=1))
    np.testing.assert_array_equal(cupy.concatenate([y, y[:, ::-1].T.copy().T]).get()[5:], values[:, ::-1])
    assert cupy.nonzero(cupy.asarray([0, 3, 0, 5]))[0].get().tolist() == [1, 3]
    halves = cupy.asarray(values, np.float16)
    np.testing.assert_array_equal((halves + halves).get(), (values.astype(np.float16) * 2))


@pytest.mark.matrix(least=0)
@pytest.mark.parametrize("lead", [(), (2,)], ids=["one", "stacked"])
def test_cupys_linear_algebra(cupy: Any, lead: tuple[int, ...]) -> None:
    random = np.random.RandomState(0)
    a, b, wide = (random.standard_normal((*lead, *shape)) for shape in ((4, 4), (4, 2), (3, 5)))
    positive = a @ np.swapaxes(a, -1, -2) + np.eye(4)
    x, y, z, p = map(cupy.asarray, (a, b, wide, positive))
    linalg = cupy.linalg
    for found, wanted in (
        (x @ y, a @ b),
        (linalg.solve(x, y), np.linalg.solve(a, b)),
        (linalg.inv(x), np.linalg.inv(a)),
        (linalg.det(x), np.linalg.det(a)),
        (linalg.cholesky(p), np.linalg.cholesky(positive)),
        (linalg.eigvalsh(p), np.linalg.eigvalsh(positive)),
        (linalg.svd(z, compute_uv=False), np.linalg.svd(wide, compute_uv=False)),
    ):
        np.testing.assert_allclose(found.get(), wanted, rtol=1e-10)
    for matrix, values in ((z, wide), (x, a)):
        for whole in (False, True):
            q, r = (each.get() for each in linalg.qr(matrix, "complete" if whole else "reduced"))
            np.testing.assert_allclose(q @ r, values, atol=1e-12)
            u, s, v = (each.get() for each in linalg.svd(matrix, full_matrices=whole))
            count = s.shape[-1]
            np.testing.assert_allclose(u[..., :count] * s[..., None, :] @ v[..., :count, :], values, atol=1e-12)
    for side in "LU":
        s, u = (each.get() for each in linalg.eigh(p, side))
        np.testing.assert_allclose(u * s[..., None, :] @ np.swapaxes(u, -1, -2), positive, atol=1e-12)


def test_what_has_no_value_is_told_where_that_is_asked(cupy: Any) -> None:
    singular, negative = cupy.ones((3, 3)), -cupy.eye(3)
    for run in (lambda: cupy.linalg.inv(singular), lambda: cupy.linalg.cholesky(negative)):
        run()
        with import_module("cupyx").errstate(linalg="raise"), pytest.raises(np.linalg.LinAlgError):
            run()


def test_every_function_that_is_redirected_is_there(on: Rig) -> None:
    assert not on.missing


def test_a_softmax(on: Rig) -> None:
    be = gen_backend("gpu")
    values = np.random.RandomState(0).standard_normal((3, 8192))  # rows whose shared memory is all that a block has
    found = be.softmax(be.array(values, np.float16), axis=1).asnumpyarray()
    wanted = np.exp(values) / np.exp(values).sum(1, keepdims=True)
    np.testing.assert_allclose(found, wanted, rtol=5e-3, atol=1e-6)
    assert any(shared > DEFAULT - 1024 for *_, shared in on.driver.launches)


def test_a_training_function_is_captured_and_replayed(on: Rig) -> None:
    found = []
    for kind in ("gpu", "cpu"):
        be = gen_backend(kind, rng_seed=5)
        x, w = be.empty((4, 6), name="x"), be.array(np.linspace(-1, 1, 36).reshape(6, 6), name="w")
        cost = be.mean(be.square(be.tanh(be.dot(x, w)) * (be.rand((4, 6)) < 0.8)))
        step = function([], cost, updates={w: w - 0.1 * grad(cost, w)})
        costs = []
        for batch in np.random.RandomState(2).standard_normal((5, 4, 6)):
            x[:] = batch
            costs.append(step().item())
        found.append([*costs, *w.get().ravel()])
        if kind == "gpu":
            assert "captured as a CUDA graph" in debugprint(step, file="str")
            assert be.stats()["graphs"] == {"captures": 1, "replays": 4}
    np.testing.assert_allclose(*found, rtol=2e-4, atol=1e-5)


def test_two_devices(on: Rig) -> None:
    first, second = (gen_backend("gpu", device_id=number) for number in (0, 1))
    x = first.array([1.0, 2.0])
    y = second.array(x.raw())
    assert x.raw().device.id == 0 and y.raw().device.id == 1
    assert (y * 2 + 1).asnumpyarray().tolist() == [3, 5]
    assert on.cupy.cuda.runtime.getDevice() == 0


def test_copies_between_devices_are_in_the_order_of_their_streams(on: Rig) -> None:
    stream = on.cupy.cuda.Stream(non_blocking=True)
    first, second = (gen_backend("gpu", device_id=number) for number in (0, 1))
    for seed in range(8):
        on.machine.random.seed(seed)
        x = first.zeros(4)
        first.synchronize()
        with stream:
            x[:] = x + 3
            y = second.array(x)
            x[:] = x + 1
        stream.synchronize()
        assert (y.get().tolist(), x.get().tolist()) == ([3] * 4, [4] * 4)


def test_a_constant_is_there_on_every_stream(on: Rig) -> None:
    be, streams = gen_backend("gpu"), [on.cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    for seed in range(20):
        on.machine.random.seed(seed)
        x, results = be.ones(3), [be.empty(3) for _ in streams]
        be.synchronize()
        tree = x + np.arange(3, dtype=np.float32)
        for stream, result in zip(streams, results, strict=True):
            with stream:
                result[:] = tree
        streams[1].synchronize()
        assert results[1].get().tolist() == [1, 2, 3]


def test_without_it_there_is_no_driver() -> None:
    rig()
    with pytest.raises(BackendError, match="no driver is installed"):
        gen_backend("gpu")


def test_no_image_enters_another_cache(on: Rig, tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from harness.rig.install import rig\n"
        "from backends import gen_backend\n"
        "with rig().on() as on:\n"
        "    be = gen_backend('gpu')\n"
        "    print((be.exp(be.zeros(3)) + be.sort(be.ones(3))).asnumpyarray().tolist())\n"
        "    print(*sorted(path.name.split('-')[0] for path in on.folder.rglob('*') if path.is_file()))\n"
        "print(on.folder)\n"
    )
    homes = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CUPY_", "OPTREE_"))}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**environment, **homes}, capture_output=True, text=True, check=True
    )
    values, files, folder = done.stdout.splitlines()
    assert values == "[2.0, 2.0, 2.0]" and "cuda" in files.split()
    assert not Path(folder).exists()
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in left if b"CUDA-ON-CPU" in path.read_bytes()], left


# Orders of work


def copied(cupy: Any, waits: bool) -> float:
    """An element that one stream writes and another copies."""
    writing, copying = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    x, y = cupy.zeros(4, np.float32), cupy.zeros(4, np.float32)
    cupy.cuda.Device().synchronize()
    with writing:
        kernel(cupy, "fill")((1,), (4,), (x, 4, np.float32(7)))
        event = writing.record()
    if waits:
        copying.wait_event(event)
    with copying:
        y.data.copy_from_device_async(x.data, x.nbytes, copying)
    copying.synchronize()
    return float(y.get()[0])


def test_streams_that_do_not_wait_run_in_any_order(on: Rig) -> None:
    found = set()
    for seed in range(12):
        on.machine.random.seed(seed)
        found.add(copied(on.cupy, waits=False))
        assert copied(on.cupy, waits=True) == 7
    assert found == {0, 7}


def test_nothing_runs_before_the_host_waits(cupy: Any) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(16), np.float32, 4)
    pinned[:] = 1
    x = cupy.zeros(4, np.float32)
    cupy.cuda.Device().synchronize()
    with stream:
        kernel(cupy, "fill")((1,), (4,), (x, 4, np.float32(7)))
        x.get(out=pinned, blocking=False)
    assert pinned[0] == 1
    stream.synchronize()
    assert pinned[0] == 7


def test_default_streams_wait_for_blocking_ones_and_these_for_them(cupy: Any) -> None:
    blocking, x = cupy.cuda.Stream(), cupy.zeros(4, np.float32)
    with blocking:
        kernel(cupy, "fill")((1,), (4,), (x, 4, np.float32(7)))
    y = x + 1  # on the legacy stream
    with blocking:
        z = y + 1
    cupy.cuda.Stream.null.synchronize()
    with cupy.cuda.Stream.ptds:
        w = y * 2
    assert (z.get()[0], w.get()[0]) == (9, 16)


def test_new_memory_is_full_of_nans(cupy: Any) -> None:
    for dtype in (np.float64, np.float32, np.float16):
        assert np.isnan(cupy.empty(100, dtype).get()).all()
    x = cupy.ones(100)
    cupy.cuda.Device().synchronize()
    address, size = x.data.ptr, x.nbytes
    del x
    again = cupy.empty(100)
    assert again.data.ptr == address and again.nbytes == size and np.isnan(again.get()).all()


def test_memory_that_another_thread_frees_is_reused_in_the_order_of_its_stream(cupy: Any) -> None:
    stream, made = cupy.cuda.Stream(non_blocking=True), [cupy.ones(3)]  # the default stream has had work, too

    def fill(value: int) -> None:
        with stream:
            made.append(cupy.full(64, value))

    for value in range(8):
        for each in (-1, value):
            made.clear()  # frees in this thread what another thread has allocated
            thread = Thread(target=fill, args=(each,))
            thread.start()
            thread.join()
        stream.synchronize()
        cupy.cuda.runtime.deviceSynchronize()
        assert (made[0].get() == value).all()


def test_a_captured_graph_reads_memory_as_it_is_then(cupy: Any) -> None:
    stream, x = cupy.cuda.Stream(non_blocking=True), cupy.zeros(4, np.float32)
    add = cupy.ElementwiseKernel("", "float32 x", "x = x + 1", "add_one")
    add(x)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        add(x)
        add(x)
        graph = stream.end_capture()
        assert x.get()[0] == 1
        for _ in range(3):
            graph.launch()
    stream.synchronize()
    assert x.get()[0] == 7


# The driver's rules


class Rule(NamedTuple):
    """A rule of the driver's: what it says, where NVIDIA's documentation says so, and the status of a call against it.

    Attributes
    ----------
    breaks : callable
        Takes CuPy, and breaks the rule.
    """

    says: str
    source: str
    status: int
    breaks: Callable[[Any], Any]


def launch(cupy: Any, name: str, grid: Any, block: Any, *args: Any, shared: int = 0) -> None:
    kernel(cupy, name)(grid, block, args, shared_mem=shared)


def with_shared(cupy: Any, dynamic: int, asked: int | None = None) -> None:
    # CuPy keeps a module by its source, and a function keeps what was once asked for it.
    function = kernel(cupy, "shared", f"{SHARED}\n// asked for: {asked}")
    if asked is not None:
        function.max_dynamic_shared_size_bytes = asked
    function((1,), (32,), (cupy.ones(32, np.float32),), shared_mem=dynamic)


def with_registers(cupy: Any) -> None:
    rig().compiler.registers["many"] = 128
    try:
        source = 'extern "C" __global__ void many(int n) {}'
        kernel(cupy, "many", source)((1,), (512,), (1,))
        kernel(cupy, "many", source)((1,), (1024,), (1,))
    finally:
        del rig().compiler.registers["many"]


def in_capture(then: Callable[[Any, Any], Any], mode: int = 2, non_blocking: bool = True) -> Callable[[Any], Any]:
    """Break a rule while a stream is captured; the capture is ended after it."""

    def breaks(cupy: Any) -> None:
        runtime, stream = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=non_blocking)
        runtime.streamBeginCapture(stream.ptr, mode)
        try:
            then(cupy, stream)
        finally:
            try:
                runtime.graphDestroy(runtime.streamEndCapture(stream.ptr))
            except runtime.CUDARuntimeError as error:
                assert error.status in (901, 904)

    return breaks


def end_after(then: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """Calls that invalidate a capture, whose end then is refused."""

    def breaks(cupy: Any) -> None:
        runtime, stream = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=True)
        runtime.streamBeginCapture(stream.ptr, 2)
        try:
            then(cupy, stream)
        except runtime.CUDARuntimeError as error:
            assert error.status in (900, 905)
        runtime.streamEndCapture(stream.ptr)

    return breaks


def end_in_another_thread(cupy: Any) -> None:
    runtime, stream, found = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=True), list[Exception]()

    def end() -> None:
        try:
            runtime.streamEndCapture(stream.ptr)
        except runtime.CUDARuntimeError as error:
            found.append(error)

    runtime.streamBeginCapture(stream.ptr, 1)
    thread = Thread(target=end)
    thread.start()
    thread.join()
    runtime.graphDestroy(runtime.streamEndCapture(stream.ptr))
    raise found[0]


def merge(cupy: Any, stream: Any) -> None:
    other, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event()
    event.record(stream)
    cupy.cuda.runtime.streamBeginCapture(other.ptr, 2)
    try:
        other.wait_event(event)
    finally:
        cupy.cuda.runtime.streamEndCapture(other.ptr)


def fork(cupy: Any, stream: Any, joins: bool = False) -> None:
    other = cupy.cuda.Stream(non_blocking=True)
    other.wait_event(stream.record())
    with other:
        launch(cupy, "any", (1,), (1,), 1)
    if joins:
        stream.wait_event(other.record())


def wait_for_outside(cupy: Any, stream: Any) -> None:
    other = cupy.cuda.Stream(non_blocking=True)
    stream.wait_event(other.record())


def dead_stream(cupy: Any) -> None:
    runtime = cupy.cuda.runtime
    handle = runtime.streamCreate()
    runtime.streamDestroy(handle)
    runtime.streamSynchronize(handle)


def dead_event(cupy: Any) -> None:
    runtime = cupy.cuda.runtime
    handle = runtime.eventCreate()
    runtime.eventDestroy(handle)
    runtime.eventRecord(handle, 0)


def dead_graph(cupy: Any) -> None:
    runtime, stream = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=True)
    runtime.streamBeginCapture(stream.ptr, 2)
    graph = runtime.streamEndCapture(stream.ptr)
    runtime.graphDestroy(graph)
    runtime.graphInstantiate(graph)


def freed_twice(cupy: Any) -> None:
    runtime = cupy.cuda.runtime
    address = runtime.malloc(512)
    runtime.free(address)
    runtime.free(address)


def check(cupy: Any, status: int) -> None:
    cupy.cuda.runtime.check_status(status)


def launch_none(cupy: Any) -> None:
    function = kernel(cupy, "any")
    function((1,), (1,), (1,))
    cupy.cuda.driver.launchKernel(function.kernel.ptr, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0)


def another_devices_stream(cupy: Any) -> None:
    with cupy.cuda.Device(1):
        stream = cupy.cuda.Stream()
    function = kernel(cupy, "any")
    function((1,), (1,), (1,))
    cupy.cuda.driver.launchKernel(function.kernel.ptr, 1, 1, 1, 1, 1, 1, 0, stream.ptr, 0, 0)


def another_devices_memory(cupy: Any) -> None:
    with cupy.cuda.Device(1):
        x = cupy.zeros(4, np.float32)
        cupy.cuda.Device(1).synchronize()
    launch(cupy, "fill", (1,), (4,), np.int64(x.data.ptr), 4, np.float32(1))
    cupy.cuda.Device().synchronize()


def freed_memory(cupy: Any) -> None:
    address = cupy.cuda.runtime.malloc(512)
    cupy.cuda.runtime.free(address)
    launch(cupy, "fill", (1,), (4,), np.int64(address), 4, np.float32(1))
    cupy.cuda.Device().synchronize()


def beyond_memory(cupy: Any) -> None:
    launch(cupy, "beyond", (1,), (1,), cupy.zeros(4, np.float32), np.int64(1 << 24))
    cupy.cuda.Device().synchronize()


def misaligned(cupy: Any) -> None:
    launch(cupy, "wide", (1,), (2,), cupy.zeros(16, np.float32)[1:])
    cupy.cuda.Device().synchronize()


def sticky(cupy: Any) -> None:
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
        misaligned(cupy)
    cupy.cuda.runtime.malloc(512)


def without_context(cupy: Any) -> None:
    function, found = kernel(cupy, "shared", SHARED), list[Exception]()

    def ask() -> None:
        try:
            cupy.cuda.driver.funcSetAttribute(function.kernel.ptr, 8, 1024)
        except cupy.cuda.driver.CUDADriverError as error:
            found.append(error)

    thread = Thread(target=ask)
    thread.start()
    thread.join()
    raise found[0]


def foreign_image(cupy: Any) -> None:
    cupy.cuda.function.Module().load(b"\x7fELF" + bytes(60))


GUIDE = "CUDA C++ Programming Guide, "
TYPES, RUNTIME, DRIVER = "driver_types.h, ", "cuda_runtime_api.h, ", "cuda.h, "
CAPABILITIES = GUIDE + "Compute Capabilities, Technical Specifications"

RULES = (
    Rule(
        "static and dynamic shared memory have 48 KiB together where no more was asked for",
        DRIVER + "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
        1,
        lambda cupy: with_shared(cupy, DEFAULT - STATIC + 1),
    ),
    Rule(
        "what may be asked for is the most of a block less the static part",
        DRIVER + "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
        1,
        lambda cupy: with_shared(cupy, 0, OPTIN - STATIC + 1),
    ),
    Rule("a block has at most 1,024 threads", CAPABILITIES, 1, lambda c: launch(c, "any", (1,), (1025,), 1)),
    Rule("a block is at most 64 deep", CAPABILITIES, 1, lambda c: launch(c, "any", (1,), (1, 1, 65), 1)),
    Rule("a grid is at most 65,535 high", CAPABILITIES, 1, lambda c: launch(c, "any", (1, 65536), (1,), 1)),
    Rule("a grid has blocks", CAPABILITIES, 1, launch_none),
    Rule(
        "a block has no more threads than the kernel is compiled for",
        GUIDE + "Launch Bounds",
        1,
        lambda cupy: launch(cupy, "fill", (1,), (257,), cupy.zeros(1, np.float32), 1, np.float32(1)),
    ),
    Rule("threads share the registers of a block", TYPES + "cudaErrorLaunchOutOfResources", 701, with_registers),
    Rule(
        "the host does not wait for a captured stream",
        GUIDE + "Prohibited and Unhandled Operations",
        900,
        in_capture(lambda cupy, stream: stream.synchronize()),
    ),
    Rule(
        "a captured stream is not asked whether it is done",
        GUIDE + "Prohibited and Unhandled Operations",
        900,
        in_capture(lambda cupy, stream: check(cupy, cupy.cuda.runtime.streamQuery(stream.ptr))),
    ),
    Rule(
        "the host does not wait for a device of which a stream is captured",
        GUIDE + "Prohibited and Unhandled Operations",
        900,
        in_capture(lambda cupy, stream: cupy.cuda.Device().synchronize()),
    ),
    Rule(
        "a captured event is not waited for",
        TYPES + "cudaErrorCapturedEvent",
        907,
        in_capture(lambda cupy, stream: stream.record().synchronize()),
    ),
    Rule(
        "memory is not allocated while a capture forbids it",
        RUNTIME + "cudaThreadExchangeStreamCaptureMode",
        900,
        in_capture(lambda cupy, stream: cupy.cuda.runtime.malloc(512), mode=0),
    ),
    Rule(
        "the legacy stream is not used while a blocking stream is captured",
        TYPES + "cudaErrorStreamCaptureImplicit",
        906,
        in_capture(lambda cupy, stream: launch(cupy, "any", (1,), (1,), 1), non_blocking=False),
    ),
    Rule(
        "the legacy stream is not captured",
        RUNTIME + "cudaStreamBeginCapture",
        900,
        lambda cupy: cupy.cuda.runtime.streamBeginCapture(0, 2),
    ),
    Rule(
        "a stream is captured once at a time",
        RUNTIME + "cudaStreamBeginCapture",
        401,
        in_capture(lambda cupy, stream: cupy.cuda.runtime.streamBeginCapture(stream.ptr, 2)),
    ),
    Rule(
        "a captured stream waits for nothing outside of the capture",
        TYPES + "cudaErrorStreamCaptureIsolation",
        905,
        in_capture(wait_for_outside),
    ),
    Rule("captures stay apart", TYPES + "cudaErrorStreamCaptureMerge", 902, in_capture(merge)),
    Rule(
        "what goes wrong in a capture is seen at its end",
        TYPES + "cudaErrorStreamCaptureInvalidated",
        901,
        end_after(wait_for_outside),
    ),
    Rule("streams of a capture are joined", TYPES + "cudaErrorStreamCaptureUnjoined", 904, end_after(fork)),
    Rule(
        "the thread that begins a capture ends it",
        TYPES + "cudaErrorStreamCaptureWrongThread",
        908,
        end_in_another_thread,
    ),
    Rule("a stream that was destroyed is none", TYPES + "cudaErrorInvalidResourceHandle", 400, dead_stream),
    Rule("an event that was destroyed is none", TYPES + "cudaErrorInvalidResourceHandle", 400, dead_event),
    Rule("a graph that was destroyed is none", TYPES + "cudaErrorInvalidResourceHandle", 400, dead_graph),
    Rule("memory is freed once", RUNTIME + "cudaFree", 1, freed_twice),
    Rule(
        "a kernel runs on a stream of the device that it was loaded on",
        GUIDE + "Stream and Event Behavior",
        400,
        another_devices_stream,
    ),
    Rule(
        "a kernel does not reach another device's memory",
        GUIDE + "Peer-to-Peer Memory Access",
        700,
        another_devices_memory,
    ),
    Rule("a kernel does not reach freed memory", TYPES + "cudaErrorIllegalAddress", 700, freed_memory),
    Rule("a kernel does not reach beyond memory", TYPES + "cudaErrorIllegalAddress", 700, beyond_memory),
    Rule("vectors are aligned by their size", TYPES + "cudaErrorMisalignedAddress", 716, misaligned),
    Rule("after a fault, everything fails", TYPES + "cudaErrorMisalignedAddress", 716, sticky),
    Rule(
        "the driver wants a context of the thread",
        DRIVER + "CUDA_ERROR_INVALID_CONTEXT",
        201,
        without_context,
    ),
    Rule("an image is this compiler's", TYPES + "cudaErrorInvalidKernelImage", 200, foreign_image),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.says.replace(" ", "_"))
def test_rules(cupy: Any, rule: Rule) -> None:
    errors = cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError
    with pytest.raises(errors) as found:
        rule.breaks(cupy)
    assert found.value.status == rule.status, rule.source


def test_what_is_just_within_the_rules(cupy: Any) -> None:
    with_shared(cupy, DEFAULT - STATIC)
    with_shared(cupy, OPTIN - STATIC, OPTIN - STATIC)
    launch(cupy, "any", (1, 65535), (1,), 1)
    launch(cupy, "any", (1,), (1024,), 1)
    in_capture(lambda cupy, stream: cupy.cuda.runtime.malloc(512), mode=2)(cupy)
    in_capture(lambda cupy, stream: launch(cupy, "any", (1,), (1,), 1))(cupy)
    runtime, stream = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=True)
    runtime.streamBeginCapture(stream.ptr, 0)
    fork(cupy, stream, joins=True)
    runtime.graphDestroy(runtime.streamEndCapture(stream.ptr))
    cupy.cuda.Device().synchronize()


def test_draws_of_streams_that_nothing_orders_are_those_of_one_stream(on: Rig) -> None:
    def drawn(streams: Any) -> Any:
        be = gen_backend("gpu", rng_seed=3)
        found = [be.empty(64) for _ in range(6)]
        step = function([], be.uniform(size=(64,)))
        be.synchronize()  # all but the draws is ordered
        for number, to in enumerate(found):
            with streams(number):
                to[:] = step() if number > 2 else be.uniform(size=(64,))
        on.cupy.cuda.Device().synchronize()
        return [x.get() for x in found]

    two = [on.cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    wanted = drawn(lambda number: two[0])
    for seed in range(3):
        on.machine.random.seed(seed)
        np.testing.assert_array_equal(drawn(lambda number: two[number % 2]), wanted)


def test_a_constant_that_is_dropped_is_there_as_long_as_other_streams_read_it(on: Rig) -> None:
    be, cupy = gen_backend("gpu"), on.cupy
    x, outs = be.zeros(5000, name="x"), [be.zeros(5000) for _ in range(2)]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    for number in range(1, 7):
        be.synchronize()
        tree = x + np.full(5000, number, "float32")
        for stream, out in zip(streams, outs, strict=True):
            with stream:  # the first has the memory, and both read it
                out[:] = tree
        del tree
        gc.collect()
        with streams[0]:
            others = [cupy.full(5000, -1, "float32") for _ in range(3)]
        be.synchronize()
        for out in outs:
            np.testing.assert_array_equal(out.get(), np.full(5000, number, "float32"))
        del others


def test_dropped_constants_are_freed_when_they_are_many(on: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy_device, "MOST_DROPPED", 10000)
    constants = cupy_device.Constants(on.cupy)
    for number in range(8):
        constants.uploaded(np.full(1000, number, "float32"))
        constants.uploaded(np.full(1000, number, "float32"), is_kept=False)  # of one stream: freed at once
    assert len(constants._found) == 0 and len(constants._dropped) <= 3


def test_kernels_of_a_graph_stay_loaded_and_others_do_not(on: Rig) -> None:
    be = gen_backend("gpu")
    be.kernels._loaded.size = 1
    x = be.array(np.arange(64.0).reshape(8, 8), name="x")
    step = function([], be.max_pool(be.avg_pool(x, 2, 1, axes=(0, 1)) * 2, 2, axes=1))
    wanted, *_ = (step().get() for _ in range(3))
    assert be.stats()["graphs"]["replays"] >= 1
    text = 'extern "C" __global__ void own@(float *x) { extern __shared__ float s[]; s[0] = @; x[0] = s[0]; }'
    sources = [text.replace("@", str(n)) for n in range(3)]
    before = sum(isinstance(each, Module) for each in on.machine.handles.values())
    target = be.zeros(1)
    for n, source in enumerate(sources):
        (kernel,) = be.kernels.load(source, (f"own{n}",))
        be.kernels.bound(kernel, Launch(f"own{n}", (1, 1), 1, 60000), [target.array.data.ptr])()
        del kernel
    be.synchronize()
    assert target.item() == 2
    gc.collect()
    after = sum(isinstance(each, Module) for each in on.machine.handles.values())
    assert after <= before + 1, "kernels that only the cache had are unloaded"
    np.testing.assert_array_equal(step().get(), wanted)
    assert not on.recovered()


def test_cupy_compiles_its_kernels_to_flush_denormals_and_ours_keep_them(on: Rig) -> None:
    be, tiny = gen_backend("gpu"), np.float32(1e-40)
    options = on.compiler.options
    x = be.array(np.full(3, tiny))
    del options[:]
    assert (x * 1.5).asnumpyarray().tolist() == [float(tiny * np.float32(1.5))] * 3
    assert options and not any("ftz" in option for given in options for option in given)
    del options[:]
    on.cupy.ElementwiseKernel("float32 x", "float32 y", "y = x + 3", "no_other_test_makes_this")(x.raw())
    assert options and all("-ftz=true" in given for given in options), "docs/gpu.md says so"


def test_cupys_kernels_flush_denormal_float32_and_no_others(on: Rig) -> None:
    be, tiny = gen_backend("gpu"), np.float32(1e-40)
    assert be.full(3, tiny).get().tolist() == [tiny] * 3, "what copies does not compute, docs/gpu.md says so"
    x = be.array([tiny, -tiny, 1e-30]).raw()
    times = on.cupy.ElementwiseKernel("T x, T y", "T z", "z = x * y", "times")
    found = times(x, on.cupy.asarray(np.float32([4e10, 1, 1e-10]))).get()
    np.testing.assert_array_equal(found, np.float32([0, 0, 0]))
    np.testing.assert_array_equal(np.signbit(found), [False, True, False])
    assert not times(x, on.cupy.asarray(np.float32(2.0**60))).get()[:2].any(), "what it reads is zero"
    assert times(on.cupy.asarray(1e-310), on.cupy.asarray(1.0)).get() == 1e-310
    assert (np.float32(tiny) * np.float32(2)).item() > 0, "the host keeps them"
    np.testing.assert_array_equal(x.get()[:2], [tiny, -tiny])
    assert not on.recovered()


def test_values_are_added_at_indices_by_so_many_kernels(on: Rig) -> None:
    """Beside sorting: six more for each doubling of how often the most frequent index comes up."""
    be, launches = gen_backend("gpu"), on.driver.launches
    rows, table = be.array(np.arange(32.0).reshape(8, 4)), be.zeros((8, 4))
    for indices, most in ((np.arange(8), 18), (np.arange(8) % 2, 18 + 2 * 6)):
        tree = be.index_add(rows, table, be.array(indices, "int64"), indexing=Take.make(axis=0))
        table[:] = tree
        be.synchronize()
        launches.clear()
        table[:] = tree
        be.synchronize()
        assert len(launches) == most
        wanted = np.zeros((8, 4))
        np.add.at(wanted, indices, rows.get())
        np.testing.assert_array_equal(table.get(), wanted)
    assert not on.recovered()
