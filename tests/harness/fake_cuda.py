"""`cupy.cuda` for the stand-in: devices that are counters, streams that remember what is still to be copied."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType, SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np

from harness.device import ATTRIBUTES, DYNAMIC, ERRORS, OPTIN, PIECE, may_ask
from harness.device import DEFAULT as SHARED
from harness.shared import static_shared

#: CuPy's numbers for how matrices are multiplied.
DEFAULT, TF32 = 1, 7


class CUDARuntimeError(RuntimeError):
    """CuPy's error for a call of CUDA's that failed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class CUDADriverError(RuntimeError):
    """CuPy's error for a call of the driver's that failed."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA_ERROR_{ERRORS[status]}")
        self.status = status


class OutOfMemoryError(MemoryError):
    """CuPy's error for memory that there is not."""

    def __init__(self, size: int, total: int) -> None:
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes).")


class Machine:
    """State and counts of the simulated machine.

    Attributes
    ----------
    devices, memory : int
        How many, and the bytes of each.
    used : dict of int
        Bytes in use on each device.
    to_host, to_device, kernels, allocations : int
        Copies either way, calls that would start a kernel, new arrays.
    launches : list
        Of the kernels launched by hand, their arguments.
    streams : list of Stream
        All that were made.
    live : dict of int
        The bytes that there are at addresses.
    graphs : int
        Launches of graphs.
    products : list of dict
        What cuBLASLt was asked for: alpha, beta, whether there was a bias, and how many matrices.
    compute_type : int
        How CuPy multiplies float32 matrices, by its numbers: `DEFAULT` or `TF32`.
    asked : dict
        What has been asked for each kernel, by CUDA's numbers for it: the most dynamic shared memory, and its part.
    loads : int
        Modules that were loaded.
    refuses : callable
        Takes an image, and gives the number of the error with which the driver refuses it; 0 if it does not.
    emulator : callable, optional
        Runs a kernel: takes its source, name, grid, block, the words of its arguments, its shared memory, and what is
        called with each address that it takes.
    """

    def __init__(self, devices: int = 1, memory: int = 1 << 32) -> None:
        self.devices, self.memory = devices, memory
        self.compute_type = DEFAULT
        self.used = dict.fromkeys(range(devices), 0)
        self.to_host = self.to_device = self.kernels = self.allocations = 0
        self.launches: list[Any] = []
        self.streams = [Stream.null]
        self.live: dict[int, int] = {}
        self._addresses: list[np.ndarray] = []
        self.graphs = 0
        self.products: list[dict[str, Any]] = []
        self.asked: dict[tuple[int, int], int] = {}
        self.functions: WeakValueDictionary[int, Function] = WeakValueDictionary()
        self.loads = 0
        self.refuses: Callable[[bytes], int] = lambda image: 0
        self.emulator: Any = None
        self._local = threading.local()

    @property
    def device(self) -> int:
        """The current device of this thread."""
        return getattr(self._local, "device", 0)

    @device.setter
    def device(self, number: int) -> None:
        if number >= self.devices:
            raise CUDARuntimeError(101, "cudaErrorInvalidDevice: invalid device ordinal")
        self._local.device = number

    @property
    def stream(self) -> Any:
        """The current stream of this thread."""
        if not hasattr(self._local, "stream"):
            self._local.stream = Stream.null
        return self._local.stream

    @stream.setter
    def stream(self, stream: Any) -> None:
        self._local.stream = stream

    @property
    def allocator(self) -> Any:
        """Whom this thread asks for memory, if not the machine itself."""
        return getattr(self._local, "allocator", None)

    @allocator.setter
    def allocator(self, malloc: Any) -> None:
        self._local.allocator = malloc

    def allocate(self, array: np.ndarray) -> None:
        """Count memory for an array that has it from now on, until it goes."""
        size, device = -(-array.nbytes // PIECE) * PIECE, self.device
        if self.used[device] + size > self.memory:
            raise OutOfMemoryError(size, self.used[device])
        if self.allocator is not None:
            self.allocator(size).array = array  # who keeps what the allocator gave keeps the memory
        self.allocations += 1
        self.used[device] += size
        address = array.ctypes.data
        self.live[address] = max(size, 1)

        def free() -> None:
            self.used[device] -= size
            self.live.pop(address, None)

        finalize(array, free)

    def captured_memory(self, array: np.ndarray) -> np.ndarray:
        """An array like another, at an address that nothing else gets when it has gone."""
        raw = np.empty(max(array.nbytes, 1), np.uint8)
        self._addresses.append(raw)
        return np.ndarray(array.shape, array.dtype, raw, strides=array.strides)

    def check_live(self, address: int) -> None:
        """Raise unless there is memory at an address."""
        held = any(start <= address < start + size for start, size in self.live.items())
        assert held, "a kernel works on memory that has gone"

    def do(self, work: Callable[[], None], *hosts: np.ndarray) -> None:
        """Work on arrays for the current stream: done at once, or recorded where that is captured."""
        recorded = self.stream.recorded
        if recorded is None:
            work()
            return
        addresses = [x.ctypes.data for x in hosts if x.size]

        def again() -> None:
            for address in addresses:
                self.check_live(address)
            work()

        recorded.append(again)

    def check_waits(self) -> None:
        """Raise for a call that synchronises the device while a stream is captured."""
        if self.stream.recorded is not None:
            raise CUDARuntimeError(900, "cudaErrorStreamCaptureUnsupported: not permitted when stream is capturing")


class Event:
    """A place in a stream's work, and when it was put there."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.time: float | None = None
        self.was_waited_for = False

    def record(self, stream: Any) -> None:
        self.of, self._before = stream, list(stream.pending)
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        self.of.synchronize()
        self.was_waited_for = True

    @property
    def done(self) -> bool:
        return not any(work in self.of.pending for work in self._before)


def get_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds between two events that are over; the last one is known to be when it was waited for."""
    assert start.time is not None and end.time is not None, "an event that was not recorded"
    assert start.done and end.was_waited_for, "an event that may be still to come"
    return (end.time - start.time) * 1e3


class Stream:
    """An order of work; copies to the host that nobody waited for are made when somebody waits."""

    null: Any

    def __init__(self, machine: Machine | None = None, ptr: int = 0) -> None:
        self._machine, self.ptr = machine, ptr
        self.pending: list[Callable[[], None]] = []
        self.waited: list[Any] = []
        self.recorded: list[Callable[[], None]] | None = None

    def begin_capture(self, mode: Any = None) -> None:
        if self._machine is None or self.recorded is not None:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        assert self._machine.stream is self, "work goes to another stream than the captured one"
        self.recorded = []

    def end_capture(self) -> Graph:
        assert self._machine is not None and self.recorded is not None
        work, self.recorded = self.recorded, None
        return Graph(self._machine, work)

    def __enter__(self) -> Stream:
        assert self._machine is not None
        self._before = self._machine.stream
        self._machine.stream = self
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._machine is not None
        self._machine.stream = self._before

    def synchronize(self) -> None:
        if self._machine is not None:
            self._machine.check_waits()
        for work in self.pending:
            work()
        self.pending.clear()

    def record(self) -> Any:
        event = Event()
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        self.waited.append(event.of)
        for work in [work for work in event.of.pending if work in event._before]:
            event.of.pending.remove(work)
            work()


Stream.null = Stream()


class Graph:
    """Captured work, which runs on the memory that it was captured with, whatever is there by now."""

    def __init__(self, machine: Machine, work: list[Callable[[], None]]) -> None:
        self._machine, self.work = machine, work

    def launch(self, stream: Any = None) -> None:
        self._machine.graphs += 1
        for each in self.work:
            self._machine.do(each)


class MemoryPointer:
    """`cupy.cuda.MemoryPointer`, to the first element of an array."""

    def __init__(self, array: Any) -> None:
        self.array, self.ptr = array, array.host.ctypes.data

    def copy_from_device_async(self, src: Any, size: int, stream: Any = None) -> None:
        there, here = self.array.host, src.array.host
        assert there.flags.c_contiguous and here.flags.c_contiguous and size <= min(there.nbytes, here.nbytes)

        def work() -> None:
            there.reshape(-1).view(np.uint8)[:size] = here.reshape(-1).view(np.uint8)[:size]

        self.array.module.machine.do(work, there, here)


class NVRTCError(RuntimeError):
    """CuPy's error for a source that does not compile."""


class NVRTC:
    """A compiler that gives sources back as they are, but refuses those that say ``#error``."""

    NVRTCError = NVRTCError

    def __init__(self) -> None:
        self.options: list[Any] = []
        self.open = 0

    def getVersion(self) -> tuple[int, int]:
        return 12, 9

    def getSupportedArchs(self) -> tuple[int, ...]:
        return 75, 80, 90

    def createProgram(self, source: str, name: str, headers: Any, include_names: Any) -> str:
        self.open += 1
        return source

    def compileProgram(self, program: str, options: Any) -> None:
        self.options.append(options)
        if "#error" in program:
            raise NVRTCError("NVRTC_ERROR_COMPILATION (6)")

    def getProgramLog(self, program: str) -> str:
        return "kernel.cu(1): catastrophic error: #error directive" if "#error" in program else ""

    def getCUBIN(self, program: str) -> bytes:
        return program.encode()

    def getPTX(self, program: str) -> bytes:
        return b"// ptx\n" + program.encode()

    def destroyProgram(self, program: str) -> None:
        self.open -= 1


class CIntptr:
    """8 bytes that a kernel takes, or the first of them."""

    def __init__(self, v: int) -> None:
        if not isinstance(v, int):  # NumPy's are none for Cython
            raise TypeError("an integer is required")
        if not -(1 << 63) <= v < 1 << 63:
            raise OverflowError("Python int too large to convert to C long")
        self.word = v


class Function:
    """A kernel, which runs where the machine has something to run it."""

    def __init__(self, machine: Machine, cubin: bytes, name: str) -> None:
        self._machine, self.cubin, self.name = machine, cubin, name
        self.ptr = id(self)
        machine.functions[self.ptr] = self

    @property
    def static(self) -> int:
        """Bytes of static shared memory."""
        return static_shared(self.cubin.decode()).get(self.name, 0)

    def ask(self, attribute: int, value: int) -> None:
        """`cuFuncSetAttribute`: a limit that leaves room for what is static, or a part in percent."""
        if not may_ask(attribute, value, self.static):
            raise CUDADriverError(1)
        self._machine.asked[self.ptr, attribute] = value

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int = 0, stream: Any = None) -> None:
        machine, words = self._machine, [arg.word for arg in args]
        machine.launches.append((self.name, grid, block, words, shared_mem, stream))
        if shared_mem > machine.asked.get((self.ptr, DYNAMIC), SHARED - self.static):
            raise CUDADriverError(1)

        def work() -> None:
            if machine.emulator is not None:
                machine.emulator(self.cubin.decode(), self.name, grid, block, words, shared_mem, machine.check_live)

        machine.do(work)


class Module:
    """Compiled kernels."""

    machine: Machine

    def load(self, cubin: bytes) -> None:
        status = self.machine.refuses(cubin)
        if status:
            raise CUDADriverError(status)
        self.machine.loads += 1
        self._cubin = cubin

    def get_function(self, name: str) -> Function:
        return Function(self.machine, self._cubin, name)


def _device_of(machine: Machine) -> Any:
    class Device:
        """A device; within it, the current one."""

        def __init__(self, number: int | None = None) -> None:
            self.id = machine.device if number is None else number

        def __enter__(self) -> Device:
            self._before = machine.device
            machine.device = self.id
            return self

        def __exit__(self, *error: Any) -> None:
            machine.device = self._before

        def synchronize(self) -> None:
            for stream in machine.streams:
                stream.synchronize()

        attributes = MappingProxyType(
            {
                "MultiProcessorCount": ATTRIBUTES[16],
                "MaxSharedMemoryPerBlockOptin": OPTIN,
                "MaxThreadsPerMultiProcessor": ATTRIBUTES[39],
            }
        )
        compute_capability = "90"

        @property
        def mem_info(self) -> tuple[int, int]:
            return machine.memory - machine.used[self.id], machine.memory

    return Device


def _pool_of(machine: Machine) -> Any:
    class Pool:
        """A memory pool that holds what is used."""

        def __init__(self) -> None:
            self.asked = 0

        def malloc(self, size: int) -> Any:
            return SimpleNamespace(array=None)  # the memory itself is NumPy's

        def used_bytes(self) -> int:
            return machine.used[machine.device]

        total_bytes = used_bytes

    return Pool


def cuda_of(machine: Machine) -> Any:
    """`cupy.cuda` on a simulated machine."""

    def new_stream(null: bool = False, non_blocking: bool = False) -> Stream:
        machine.streams.append(Stream(machine, len(machine.streams) << 8))
        return machine.streams[-1]

    new_stream.null = Stream.null  # type: ignore[attr-defined]
    new_stream.ptds = Stream(machine, 2)  # type: ignore[attr-defined]
    machine.streams.append(new_stream.ptds)  # type: ignore[attr-defined]

    @contextmanager
    def using_allocator(malloc: Any) -> Iterator[None]:
        pool = getattr(malloc, "__self__", None)
        if pool is not None:
            pool.asked = getattr(pool, "asked", 0) + 1
        before, machine.allocator = machine.allocator, malloc
        try:
            yield
        finally:
            machine.allocator = before

    pool = _pool_of(machine)
    module = type("Module", (Module,), {"machine": machine})
    return SimpleNamespace(
        Device=_device_of(machine),
        Stream=new_stream,
        Event=Event,
        get_elapsed_time=get_elapsed_time,
        MemoryAsyncPool=pool,
        default_pool=pool(),
        using_allocator=using_allocator,
        get_current_stream=lambda: machine.stream,
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        function=SimpleNamespace(Module=module, CIntptr=CIntptr),
        alloc_pinned_memory=bytearray,
        nvrtc=NVRTC(),
        driver=SimpleNamespace(
            CUDADriverError=CUDADriverError,
            funcSetAttribute=lambda kernel, attribute, value: machine.functions[kernel].ask(attribute, value),
            get_build_version=lambda: 12090,
        ),
        get_cuda_path=lambda: "/cuda",
        runtime=_runtime_of(machine),
    )


def _runtime_of(machine: Machine) -> Any:
    properties = {"name": b"stand-in", "major": 9, "minor": 0}
    return SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        is_hip=False,
        getDevice=lambda: machine.device,
        setDevice=lambda number: setattr(machine, "device", number),
        getDeviceCount=lambda: machine.devices,
        getDeviceProperties=lambda number: properties,
        driverGetVersion=lambda: 12090,
        streamQuery=lambda stream: 0,
    )
