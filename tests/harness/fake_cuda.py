"""`cupy.cuda` for the stand-in: devices that are counters, and streams whose work is done when it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any
from weakref import finalize

import numpy as np

from harness.device import ATTRIBUTES, OPTIN, PIECE

#: CuPy's numbers for how matrices are multiplied.
DEFAULT, TF32 = 1, 7


class CUDARuntimeError(RuntimeError):
    """CuPy's error for a call of CUDA's that failed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class CUDADriverError(RuntimeError):
    """CuPy's error for a call of the driver's that failed."""


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
    products : list of dict
        What cuBLASLt was asked for: alpha, beta, whether there was a bias, and how many matrices.
    compute_type : int
        How CuPy multiplies float32 matrices, by its numbers: `DEFAULT` or `TF32`.
    """

    def __init__(self, devices: int = 1, memory: int = 1 << 32) -> None:
        self.devices, self.memory = devices, memory
        self.compute_type = DEFAULT
        self.used = dict.fromkeys(range(devices), 0)
        self.to_host = self.to_device = self.kernels = self.allocations = 0
        self.products: list[dict[str, Any]] = []
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
        return getattr(self._local, "stream", Stream.null)

    @stream.setter
    def stream(self, stream: Any) -> None:
        self._local.stream = stream

    def allocate(self, array: np.ndarray) -> None:
        """Count memory for an array that has it from now on, until it goes."""
        size, device = -(-array.nbytes // PIECE) * PIECE, self.device
        if self.used[device] + size > self.memory:
            raise OutOfMemoryError(size, self.used[device])
        self.allocations += 1
        self.used[device] += size

        def free() -> None:
            self.used[device] -= size

        finalize(array, free)

    def do(self, work: Callable[[], None], *hosts: np.ndarray) -> None:
        """Work of the current stream."""
        work()


class Event:
    """A place in a stream's work, which is done."""

    done = True

    def record(self, stream: Any) -> None:
        """Put it behind what the stream has done."""
        self.of = stream

    def synchronize(self) -> None:
        """Wait for what is done."""


class Stream:
    """An order of work."""

    null: Any

    #: What `FakeCuBLASLt` takes for a capture.
    recorded = None

    def __init__(self, machine: Machine | None = None, ptr: int = 0) -> None:
        self._machine, self.ptr = machine, ptr
        self.waited: list[Stream] = []

    def __enter__(self) -> Stream:
        assert self._machine is not None
        self._before, self._machine.stream = self._machine.stream, self
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._machine is not None
        self._machine.stream = self._before

    def synchronize(self) -> None:
        """Wait for what is done."""

    def record(self) -> Event:
        event = Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        self.waited.append(event.of)


Stream.null = Stream()


class Plan1d:
    """`cupy.cuda.cufft.Plan1d`: rows of a size, which transforms to real numbers overwrite."""

    def __init__(self, nx: int, fft_type: int, batch: int) -> None:
        self.nx, self.fft_type, self.batch = nx, fft_type, batch

    def fft(self, a: Any, out: Any, direction: int) -> None:
        x, made = a.host.reshape(self.batch, -1), out.host.reshape(self.batch, -1)
        assert a.host.flags.c_contiguous and out.host.flags.c_contiguous and not np.may_share_memory(x, made)
        assert self.fft_type == CUFFT[f"CUFFT_{LETTERS[x.dtype.char]}2{LETTERS[made.dtype.char]}"]
        transformed(x, made, direction)
        if made.dtype.kind == "f":
            x[...] = np.nan


#: cuFFT's numbers of transforms, and its letters of dtypes.
CUFFT = {"CUFFT_C2C": 0x29, "CUFFT_R2C": 0x2A, "CUFFT_C2R": 0x2C}
CUFFT |= {"CUFFT_Z2Z": 0x69, "CUFFT_D2Z": 0x6A, "CUFFT_Z2D": 0x6C}
LETTERS = {"f": "R", "F": "C", "d": "D", "D": "Z"}


def transformed(x: np.ndarray, made: np.ndarray, direction: int) -> None:
    """Write the transforms of rows, without a scale."""
    if x.dtype.kind == "f":
        made[...] = np.fft.rfft(x)
    elif made.dtype.kind == "f":
        made[...] = np.fft.irfft(x, made.shape[-1], norm="forward")
    else:
        made[...] = np.fft.fft(x) if direction == -1 else np.fft.ifft(x, norm="forward")


class MemoryPointer:
    """`cupy.cuda.MemoryPointer`, to the first element of an array."""

    def __init__(self, array: Any) -> None:
        self.array, self.ptr = array, array.host.ctypes.data


def cuda_of(machine: Machine) -> Any:
    """`cupy.cuda` on a simulated machine."""

    def new_stream(null: bool = False, non_blocking: bool = False) -> Stream:
        return Stream(machine, 1 << 8)

    class Device:
        """A device; within it, the current one."""

        def __init__(self, number: int | None = None) -> None:
            self.id = machine.device if number is None else number

        def __enter__(self) -> Device:
            self._before, machine.device = machine.device, self.id
            return self

        def __exit__(self, *error: Any) -> None:
            machine.device = self._before

        def synchronize(self) -> None:
            """Wait for what is done."""

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

    def used_bytes() -> int:
        return machine.used[machine.device]

    new_stream.null = Stream.null  # type: ignore[attr-defined]
    return SimpleNamespace(
        Device=Device,
        Stream=new_stream,
        Event=Event,
        default_pool=SimpleNamespace(used_bytes=used_bytes, total_bytes=used_bytes),
        get_current_stream=lambda: machine.stream,
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        function=SimpleNamespace(CIntptr=int),
        alloc_pinned_memory=bytearray,
        nvrtc=SimpleNamespace(getVersion=lambda: (12, 9), getSupportedArchs=lambda: (75, 80, 90)),
        driver=SimpleNamespace(CUDADriverError=CUDADriverError, get_build_version=lambda: 12090),
        runtime=_runtime_of(machine),
        cufft=SimpleNamespace(Plan1d=Plan1d, **CUFFT),
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
