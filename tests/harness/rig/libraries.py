"""CUDA's libraries on a simulated machine: for cuBLASLt's stand-in, of cuBLAS, and Thrust's sorts as NumPy's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.fake_cuda import CUFFT, LETTERS, transformed
from harness.rig.entry import Refused, call, entries, put
from harness.rig.machine import Machine


class Desk:
    """The machine of `FakeCuBLASLt` on the rig: work goes to CuPy's current stream.

    Attributes
    ----------
    products : list of dict
        What was multiplied.
    """

    def __init__(self, machine: Machine, current_stream: Callable[[], Any]) -> None:
        self._machine, self._current_stream = machine, current_stream
        self.products: list[dict[str, Any]] = []
        self.kernels = 0

    @property
    def stream(self) -> Any:
        """CuPy's current stream: its handle, and what is not None while it is captured."""
        handle = self._current_stream().ptr
        return SimpleNamespace(ptr=handle, recorded=self._machine.stream(handle).capture)

    @property
    def is_broken(self) -> bool:
        """Whether the current device has failed."""
        return bool(self._machine.device.broken)

    def do(self, work: Callable[[], None], *hosts: np.ndarray) -> None:
        """Work on the current stream."""
        with self._machine.lock:
            self._machine.submit(self._machine.stream(self._current_stream().ptr), work, "a product")


class CuBLAS:
    """The cuBLAS functions of handles, which CuPy calls before its own product of integers, too."""

    def entries(self) -> dict[str, Any]:
        """The functions as C's."""
        return entries(self, lambda name, method: lambda *given: method(*given) or 0)

    @call("P")
    def cublasCreate_v2(self, to: int) -> None:
        put(ctypes.c_size_t, to, 0xB1A5)

    @call("P")
    def cublasDestroy_v2(self, handle: int) -> None:
        pass

    @call("PI")
    def cublasSetMathMode(self, handle: int, mode: int) -> None:
        pass

    @call("PP")
    def cublasGetMathMode(self, handle: int, to: int) -> None:
        put(ctypes.c_int, to, 0)


class CuFFT:
    """cuFFT's plans of rows: work on their streams, which writes over the work area, by NumPy."""

    #: The bytes of a work area.
    AREA = 512

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        #: By handle: the size, kind and number of a plan's transforms, and its work area and stream.
        self.plans: dict[int, dict[str, Any]] = {}
        self._numbers = count(1)

    def entries(self) -> dict[str, Any]:
        """The functions as C's."""
        return entries(self, self._guarded)

    def _guarded(self, name: str, method: Any) -> Callable[..., int]:
        def guarded(*given: Any) -> int:
            try:
                with self._machine.lock:
                    return method(*given) or 0
            except (Refused, KeyError):
                return _FFT_FAILED

        return guarded

    @call("P")
    def cufftCreate(self, to: int) -> None:
        number = next(self._numbers)
        self.plans[number] = {}
        put(ctypes.c_int, to, number)

    @call("I")
    def cufftDestroy(self, plan: int) -> None:
        del self.plans[plan]

    @call("II")
    def cufftSetAutoAllocation(self, plan: int, is_automatic: int) -> None:
        self.plans[plan]["is_automatic"] = is_automatic

    @call("IIIIP")
    def cufftMakePlan1d(self, plan: int, size: int, kind: int, count: int, area: int) -> None:
        self._machine.check_unsafe("cufftMakePlan1d")
        self.plans[plan].update(size=size, kind=kind, count=count)
        put(ctypes.c_size_t, area, self.AREA)

    @call("IP")
    def cufftSetWorkArea(self, plan: int, area: int) -> None:
        self.plans[plan]["area"] = area

    @call("IP")
    def cufftSetStream(self, plan: int, stream: int) -> None:
        self.plans[plan]["stream"] = stream

    @call("IPPI")
    def cufftExecC2C(self, plan: int, x: int, made: int, direction: int) -> None:
        self._transform(plan, x, made, direction)

    @call("IPP")
    def cufftExecR2C(self, plan: int, x: int, made: int) -> None:
        self._transform(plan, x, made, -1)

    @call("IPP")
    def cufftExecC2R(self, plan: int, x: int, made: int) -> None:
        self._transform(plan, x, made, 1)

    cufftExecZ2Z, cufftExecD2Z, cufftExecZ2D = cufftExecC2C, cufftExecR2C, cufftExecC2R

    def _transform(self, plan: int, x: int, made: int, direction: int) -> None:
        told = dict(self.plans[plan])
        (name,) = (name for name, number in CUFFT.items() if number == told["kind"])
        kinds, half = {letter: kind for kind, letter in LETTERS.items()}, told["size"] // 2 + 1
        is_whole = not {*name} & {*"RD"}

        def rows(address: int, letter: str) -> np.ndarray:
            shape = told["count"], told["size"] if is_whole or letter in "RD" else half
            kind = np.dtype(kinds[letter])
            raw = (ctypes.c_char * (shape[0] * shape[1] * kind.itemsize)).from_address(address)
            return np.frombuffer(raw, kind).reshape(shape)

        def work() -> None:
            ctypes.memset(told["area"], 0xCD, self.AREA)
            given = rows(x, name[6])
            transformed(given, rows(made, name[8]), direction)
            if name[8] in "RD":
                given[...] = np.nan

        self._machine.submit(self._machine.stream(told["stream"]), work, "cuFFT")


#: `CUFFT_EXEC_FAILED`.
_FFT_FAILED = 6

#: CuPy's numbers for dtypes, as Thrust's part of it takes them.
_DTYPES = [
    *(np.dtype(kind + size) for size in "1248" for kind in "iu"),
    *map(np.dtype, ("f2", "f4", "f8", "c8", "c16", "?")),
]


class Thrust:
    """CuPy's functions of Thrust's: sorting, as work on the stream that they are given."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def entries(self) -> dict[str, Any]:
        """The functions as C++'s, by their symbols."""
        return entries(self, lambda name, method: method)

    @call("IPPPPP", result=None)
    def _Z11thrust_sortiPvPmRKSt6vectorIlSaIlEElS_(
        self, dtype: int, data: int, keys: int, shape: int, stream: int, memory: int
    ) -> None:
        rows = self._rows(dtype, data, shape)
        self._do(stream, lambda: rows.sort(axis=-1))

    @call("IPPPPPP", result=None)
    def _Z14thrust_argsortiPmPvS0_RKSt6vectorIlSaIlEElS0_(
        self, dtype: int, index: int, data: int, keys: int, shape: int, stream: int, memory: int
    ) -> None:
        rows, found = self._rows(dtype, data, shape), self._rows(_DTYPES.index(np.dtype("u8")), index, shape)

        def work() -> None:
            found[...] = np.argsort(rows, axis=-1, kind="stable")
            rows.sort(axis=-1)  # what is sorted is a copy, and is sorted too

        self._do(stream, work)

    def _rows(self, dtype: int, data: int, shape: int) -> np.ndarray:
        """The array at an address; its shape is a vector of C++'s."""
        begin, end = (ctypes.c_size_t * 2).from_address(shape)
        sizes = list((ctypes.c_ssize_t * ((end - begin) // 8)).from_address(begin))
        kind = _DTYPES[dtype]
        raw = (ctypes.c_char * (int(np.prod(sizes)) * kind.itemsize)).from_address(data)
        return np.frombuffer(raw, kind).reshape(sizes)

    def _do(self, stream: int, work: Callable[[], None]) -> None:
        with self._machine.lock:
            self._machine.submit(self._machine.stream(stream), work, "Thrust")
