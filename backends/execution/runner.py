"""The interface of a backend's runtime: compiled loop nests, and fast calls for arrays of a known layout."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from backends.execution.memory import Memory

#: The sizes of the loops, and for each array its strides along them, in elements.
Layout = tuple[Sequence[int], Sequence[int]]

_SIGNED, _UNSIGNED, _FLOAT = struct.Struct("q"), struct.Struct("Q"), struct.Struct("d")


class FastCall(Protocol):
    """A call of a kernel for arrays of one layout among the values of a program, which checks the layout alone."""

    @property
    def run(self) -> Callable[[list[Any]], int]:
        """Run the kernel on the arrays among these values.

        Returns
        -------
        int
            0 if it has run, 1 if an array has another layout, 2 if a write overlaps a read,
            and 3 if there is no memory for scratch arrays.
        """

    def bind(self, values: list[Any]) -> Callable[[list[Any]], int]:
        """`run`, bound to the numbers among these values."""


class Runner(Protocol):
    """A compiled loop nest."""

    def __call__(self, pointers: Sequence[int], numbers: Sequence[int], layout: Layout) -> None:
        """Run it on arrays at these addresses and on numbers, 8 bytes each as integers."""

    def entry(
        self,
        reads: dict[int, Any],
        writes: dict[int, Any],
        in_place: Sequence[bool],
        numbers: Sequence[tuple[int, np.dtype]],
        layout: Layout,
        memory: Memory,
    ) -> FastCall | None:
        """The fast call for arrays of the same layout as these; None where the runtime has none.

        Parameters
        ----------
        reads, writes : dict
            The arrays, each under its index in the list of values.
        in_place : sequence of bool
            For each write and, within it, each read, whether the two may begin at the same address.
        numbers : sequence of (int, numpy.dtype)
            The numbers' indices in the list of values, and the dtypes that they are converted to.
        layout : tuple
        memory : Memory
            The memory of the arrays.
        """


def as_int64(number: Any, dtype: np.dtype) -> int:
    """The 8 bytes of a Python number in a dtype, as a signed integer."""
    if dtype.kind == "f":
        return _SIGNED.unpack(_FLOAT.pack(number))[0]
    if dtype.kind == "u":
        return _SIGNED.unpack(_UNSIGNED.pack(number))[0]
    return int(number) if dtype.kind == "i" else int(bool(number))
