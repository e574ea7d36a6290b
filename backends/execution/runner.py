"""What runs a loop nest, and what runs it again on arrays of a known layout: the interface of a backend's runtime."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from backends.execution.memory import Memory

#: The sizes of the loops, and for each array its steps along them, in elements.
Layout = tuple[Sequence[int], Sequence[int]]

_SIGNED, _UNSIGNED, _FLOAT = struct.Struct("q"), struct.Struct("Q"), struct.Struct("d")


class FastCall(Protocol):
    """A kernel's call for arrays of one layout among the values of a program, which only looks whether they have it."""

    @property
    def run(self) -> Callable[[list[Any]], int]:
        """0 if the arrays among these values have the layout, and the kernel has run on them."""

    def bind(self, values: list[Any]) -> Callable[[list[Any]], int]:
        """`run` for lists with the numbers of this one."""


class Runner(Protocol):
    """What runs a nest."""

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
        """The fast call for arrays that are laid out as these are; None where there is none.

        Parameters
        ----------
        reads, writes : dict
            The arrays, each under its place in the list of values.
        in_place : sequence of bool
            For each write and, within it, each read, whether the write may be at exactly the read's place.
        numbers : sequence of (int, numpy.dtype)
            The places of the numbers, and the dtypes that they are taken in.
        memory : Memory
            Of the arrays.
        """


def bits(number: Any, dtype: np.dtype) -> int:
    """A Python number's 8 bytes, as the signed integer that they are."""
    if dtype.kind == "f":
        return _SIGNED.unpack(_FLOAT.pack(number))[0]
    if dtype.kind == "u":
        return _SIGNED.unpack(_UNSIGNED.pack(number))[0]
    return int(number) if dtype.kind == "i" else int(bool(number))
