"""CuPy and its devices: detection, the current device, and memory that streams use."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from weakref import finalize

import numpy as np

from backends.gpu.arrays import DeviceArray
from optree.errors import BackendError, DeviceFault, DeviceMemoryError
from optree.locks import Locked

REQUIREMENT = "gen_backend('gpu') needs an NVIDIA driver, a device and CuPy"
INSTALL = "pip install 'cupy-cuda13x[ctk]' installs it"

#: CUDA's error codes (`cudaError_t`); the first is also the driver's (`CUresult`).
ALLOCATION_FAILED, OLD_DRIVER = 2, 35

#: CUDA's errors after which every call of the process fails, and the first of them that came.
FAULTS = frozenset((214, 220, 226, 700, 702, 710, *range(714, 720), 721, 810, 911, 999))
faults: list[str] = []

#: The remedy of a fault.
FIND_FAULT = (
    "no call of this process can use the device any more: restart the process. To find the kernel, set OPTREE_SYNC=1, "
    "so that each step waits for the device, and run: compute-sanitizer --tool memcheck python program.py"
)

#: `cudaStreamPerThread`: one handle for the default streams of all threads.
PER_THREAD = 2

#: The maximum bytes of dropped constants that are not yet freed.
MOST_DROPPED = 16 << 20

#: The minimum compute capabilities for TensorFloat-32, and for cuDNN since 9.11.
TF32_CAPABILITY, CUDNN_CAPABILITY = 80, 75


def check_no_fault() -> None:
    """Raise DeviceFault if a device has failed in this process, without a call of CUDA's."""
    if faults:
        raise DeviceFault(faults[0])


def fault_of(error: BaseException, ran: str) -> DeviceFault:
    """The error for a device's fault, with what ran before; every later call raises it."""
    notes = getattr(error, "__notes__", ())
    faults.append(f"a device has failed ({error}), found {', '.join(notes) or 'by a later call'}{ran}; {FIND_FAULT}")
    return DeviceFault(faults[0])


class Active:
    """A context that sets the current device and the allocator, and describes its errors.

    Every assignment enters one, and a generator-based context manager takes three times as long.

    `cuda`: ``cupy.cuda``.
    `malloc`: the allocator, if it is not CuPy's current one.
    `described`: from an error of CUDA's to the one that is raised instead, or None.
    """

    __slots__ = ("_allocating", "_before", "_cuda", "_described", "_device_id", "_malloc")

    def __init__(
        self, cuda: ModuleType, device_id: int, malloc: Any, described: Callable[[Any], Exception | None]
    ) -> None:
        self._cuda, self._device_id, self._malloc, self._described = cuda, device_id, malloc, described

    def __enter__(self) -> None:
        if faults:
            check_no_fault()
        runtime = self._cuda.runtime
        self._before = runtime.getDevice()
        if self._before != self._device_id:
            runtime.setDevice(self._device_id)
        if self._malloc is not None:
            self._allocating = self._cuda.using_allocator(self._malloc)
            self._allocating.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._malloc is not None:
            self._allocating.__exit__(None, None, None)
        found = None if error is None else self._described(error)
        if self._before != self._device_id and not faults:
            self._cuda.runtime.setDevice(self._before)
        if found is not None:
            raise found from error


def status_of(cuda: ModuleType, error: BaseException) -> int:
    """The number of an error of CUDA's; 0 of any other."""
    is_cudas = isinstance(error, cuda.runtime.CUDARuntimeError | cuda.driver.CUDADriverError)
    return int(error.status) if is_cudas else 0  # type: ignore[attr-defined]


def is_want_of_memory(cuda: ModuleType, error: BaseException) -> bool:
    """Whether an error means that the device is out of memory, for an array, a kernel's code or its launch."""
    is_memorys = isinstance(error, cuda.memory.OutOfMemoryError | DeviceMemoryError)
    return is_memorys or status_of(cuda, error) == ALLOCATION_FAILED


class InFlight(Locked):
    """References to objects that queued work uses, released when their events are done."""

    def __init__(self, cupy: ModuleType) -> None:
        super().__init__()
        self.cupy = cupy
        self._pending: deque[tuple[Any, Any]] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def keep(self, event: Any, used: object) -> None:
        """Hold an object until an event, and those of earlier calls, are done."""
        released = []  # freed outside the lock
        with self.lock:
            while self._pending and self._pending[0][0].done:
                released.append(self._pending.popleft())
            self._pending.append((event, used))

    def sent(self, array: Any) -> tuple[Any, np.ndarray]:
        """Copy an array to pinned host memory asynchronously; the event of the copy, and the copy."""
        pinned = self.cupy.cuda.alloc_pinned_memory(array.nbytes)  # copies into pageable memory are synchronous
        copy = array.get(out=np.ndarray(array.shape, array.dtype, buffer=pinned), blocking=False)
        event = self.cupy.cuda.get_current_stream().record()
        self.keep(event, copy)
        return event, copy


class InOrder(Locked):
    """A context that orders an object's work on several streams, because it uses the same memory."""

    def __init__(self, cupy: ModuleType) -> None:
        super().__init__()
        self._current = cupy.cuda.get_current_stream
        #: The stream of the last work, and the event of its end if the stream is a per-thread one.
        self._last: Any = None
        self._done: Any = None

    def __enter__(self) -> Any:
        """The current stream, after it waits for the last stream's work."""
        stream = self._current()
        with self.lock:
            if self._done is not None:
                stream.wait_event(self._done)
                self._done = None
            elif self._last is not None and self._last is not stream and self._last != stream:
                stream.wait_event(self._last.record())
            self._last = stream
        return stream

    def __exit__(self, *error: object) -> None:
        stream = self._current()
        if stream.ptr == PER_THREAD:  # of which only this thread can record an event
            self._done = stream.record()


@dataclass
class _Constant:
    """An array on the device, the stream that its memory belongs to, and whether other streams may read it."""

    array: DeviceArray
    stream: int
    is_shared: bool


class Constants:
    """Host arrays that are copied to the device once; the copy lives as long as the host array.

    Several streams may read a copy without an order between them. So its memory is freed
    only when the device is idle, which is waited for if there is too much of it.
    """

    def __init__(self, cupy: ModuleType) -> None:
        self._cupy = cupy
        self._found: dict[int, _Constant] = {}
        self._dropped: list[Any] = []

    def uploaded(self, value: np.ndarray, is_kept: bool = True) -> Any:
        """The array on the current device: copied there before it returns, as other streams read it.

        `is_kept`: whether it is used after this call, and so by any stream.
        """
        found, stream = self._found.get(id(value)), self._cupy.cuda.get_current_stream().ptr
        if found is None:
            if sum(array.nbytes for array in self._dropped) > MOST_DROPPED:
                count = len(self._dropped)
                self._cupy.cuda.Device().synchronize()
                del self._dropped[:count]
            array = self._cupy.array(value, order="C", blocking=True)
            found = self._found[id(value)] = _Constant(array, stream, False)
            finalize(value, _drop, self._found, id(value), self._dropped)
        found.is_shared |= is_kept or stream != found.stream or stream == PER_THREAD
        return found.array


def _drop(found: dict[int, _Constant], key: int, dropped: list[Any]) -> None:
    """Drop a constant, in whatever thread the collector of garbage runs."""
    constant = found.pop(key)
    if constant.is_shared:
        dropped.append(constant.array)


class Uploads:
    """Copies arrays to the device, from pinned memory, on a separate stream.

    The thread that constructs it computes with the copies, on its current stream.
    """

    def __init__(self, cupy: ModuleType, in_flight: InFlight) -> None:
        self._cupy, self._in_flight = cupy, in_flight
        self._compute, self._stream = cupy.cuda.get_current_stream(), cupy.cuda.Stream(non_blocking=True)

    def __call__(self, array: np.ndarray) -> tuple[Any, Callable[[], None]]:
        """The copy, and a function that makes the computing stream wait for it."""
        is_current = self._cupy.cuda.get_current_stream() == self._compute
        with nullcontext() if is_current else self._compute:
            # Its memory may be that of an earlier array, which is still read.
            found = self._cupy.empty(array.shape, array.dtype)
            self._stream.wait_event(self._compute.record())
        pinned = np.ndarray(array.shape, array.dtype, buffer=self._cupy.cuda.alloc_pinned_memory(array.nbytes))
        pinned[...] = array
        found.set(pinned, stream=self._stream)
        event = self._stream.record()
        self._in_flight.keep(event, pinned)
        return found, lambda: self._compute.wait_event(event)


def driver_files(platform: str = sys.platform) -> tuple[str, ...]:
    """The names by which the driver is loaded; the loader may not know the folder of Windows Subsystem for Linux."""
    return ("nvcuda.dll",) if platform == "win32" else ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")


def load_driver() -> Any:
    """The driver, under its own name for CuPy, too; None if there is none."""
    for name in driver_files():
        with suppress(OSError):
            return ctypes.CDLL(name)
    return None


def find_cupy() -> tuple[Any, int]:
    """CuPy and its number of devices, at least one; BackendError if CuPy, a driver or a device is missing."""
    check_no_fault()
    load_driver()
    try:
        cupy = import_module("cupy")
    except Exception as error:  # CuPy raises any error of the libraries that it loads
        installed = not isinstance(error, ImportError) or find_spec("cupy") is not None
        raise _unmet(*_driver_refusals(), f"CuPy does not load: {error}" if installed else _no_cupy()) from error
    runtime = cupy.cuda.runtime
    if runtime.is_hip:
        raise _unmet(f"CuPy {cupy.__version__} is built for AMD's ROCm, and not for CUDA")
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise _unmet(*(_driver_refusals() or [_refusal(cupy, error)])) from error
    if not count:
        raise _unmet("the driver finds no device")
    try:
        major, minor = cupy.cuda.nvrtc.getVersion()
    except Exception as error:
        raise _unmet(f"NVRTC, which compiles kernels, does not load ({error}); {INSTALL}") from error
    driven = runtime.driverGetVersion()
    if major > driven // 1000:  # CuPy takes the first one that it finds among the wheels that are installed
        raise _unmet(
            f"NVRTC {major}.{minor} compiles kernels that the driver, which is for CUDA {_version(driven)} at most, "
            f"does not load: install a newer driver, or CuPy and its libraries for that version ({_cupy_for(driven)}) "
            "in an environment without newer ones"
        )
    return cupy, count


def _unmet(*faults: str) -> BackendError:
    return BackendError(f"{REQUIREMENT}: {', and '.join(faults)}; gen_backend('cpu') runs the same program on the CPU")


def _no_cupy() -> str:
    return f"CuPy is not installed ({INSTALL})"


def _driver_refusals() -> list[str]:
    """The driver's own fault, at most one."""
    driver = load_driver()
    if driver is None:
        return [f"no driver is installed (no {' and no '.join(driver_files())} is found)"]
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return [f"the driver finds no device (CUDA error {status})"] if status or not count.value else []


def _refusal(cupy: ModuleType, error: Any) -> str:
    """The reason why CuPy finds no device where the driver does."""
    runtime = cupy.cuda.runtime
    if error.status != OLD_DRIVER:
        return f"CuPy cannot ask for devices: {error}"
    driven = runtime.driverGetVersion()
    built = _version(cupy.cuda.driver.get_build_version())
    return (
        f"CuPy {cupy.__version__} is built for CUDA {built}, and the driver is for {_version(driven)} at most: "
        f"install a newer driver, or the CuPy for that version ({_cupy_for(driven)})"
    )


def _cupy_for(version: int) -> str:
    """The command that installs CuPy for a driver's version of CUDA."""
    major = version // 1000
    return f"pip install 'cupy-cuda{major}x{'[ctk]' if major >= 12 else ''}'"


def _version(number: int) -> str:
    """CUDA's number for a version, such as 12090, as text."""
    return f"{number // 1000}.{number % 1000 // 10}"
