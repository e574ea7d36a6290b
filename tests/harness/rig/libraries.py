"""CUDA's libraries on a simulated machine: for cuBLASLt's stand-in, of cuBLAS, and Thrust's sorts as NumPy's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.rig.entry import call, entries, put
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
