"""The memory of arrays: allocation, alignment, addresses, and layout in BLAS's terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from optree.compile.aliasing import address, byte_span
from optree.records import NamedTuple


def unallocated_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """A NumPy array in C order with memory for one element, for its layout alone."""
    dtype = np.dtype(dtype)
    strides = [dtype.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return as_strided(np.empty(1, dtype), shape, strides)


class Memory(NamedTuple):
    """The type, conversion, allocator and addresses of a backend's arrays."""

    #: The type of the arrays.
    kind: type[Any]
    #: From any value of a plan to an array.
    array: Callable[[Any], Any]
    #: From a shape and a dtype to an uninitialised array.
    empty: Callable[[Any, Any], Any]
    #: From an array to the address of its first element.
    address: Callable[[Any], int]
    #: From a shape and a dtype to an array in C order with memory for one element, for its layout alone.
    unallocated: Callable[[Any, Any], Any] = unallocated_array
    #: The alignment in bytes up to which an array's address is part of its layout.
    alignment: int = 1

    def maker(self, shape: tuple[int, ...], dtype: np.dtype) -> Callable[[], Any]:
        """A function that makes such an array."""
        is_small = self.empty is empty_array and prod(shape) * dtype.itemsize < SMALL
        return partial(np.empty if is_small else self.empty, shape, dtype)

    def shaped(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An array that is used for its shape alone: one element, broadcast."""
        return np.broadcast_to(self.empty((), dtype), shape)


#: The bytes of a cache line, to which scratch arrays are aligned, against false sharing.
LINE = 64

#: The least bytes of an array that is aligned to a cache line.
SMALL = 1 << 15


def empty_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised NumPy array, aligned to a cache line if it is not small.

    NumPy's own large arrays begin 16 bytes after a line, so that each vectorised access touches two lines.
    """
    dtype = np.dtype(dtype)
    size = prod(shape) * dtype.itemsize
    if size < SMALL:
        return np.empty(shape, dtype)
    memory = np.empty(size + LINE, np.uint8)
    start = -address(memory) % LINE
    return memory[start : start + size].view(dtype).reshape(shape)


class Overlaps:
    """Whether a write overlaps a read at given addresses, other than one that it may be over.

    `reads`, `writes` (sequence of array): of the layouts of all that are asked about.
    `in_place`: for each write and, within it, each read, whether the two may begin at the same address.
    """

    def __init__(self, reads: Sequence[Any], writes: Sequence[Any], in_place: Sequence[bool]) -> None:
        self._spans = [byte_span(x) for x in (*reads, *writes)]
        pairs = [(len(reads) + n, m) for n in range(len(writes)) for m in range(len(reads))]
        self._pairs = [(*pair, may_be_over) for pair, may_be_over in zip(pairs, in_place, strict=True)]

    def at(self, addresses: Sequence[int]) -> bool:
        """Whether one does, at the addresses of all reads and writes."""
        for write, read, may_be_over in self._pairs:
            written, loaded = addresses[write], addresses[read]
            (low, high), (start, end) = self._spans[write], self._spans[read]
            is_over = may_be_over and written == loaded
            if not is_over and written + low < loaded + end and loaded + start < written + high:
                return True
        return False


class Reused:
    """Memory of a call's outputs, the same from call to call for those that are returned to no caller.

    Pages that a function frees after each call, and takes again, are cleared by the system each time.

    `is_returned`: of each output, as of `optree.compile.aliasing.given_away`; None where memory is always new.
    """

    def __init__(self, is_returned: Sequence[bool] | None) -> None:
        self._is_returned = is_returned
        self._arrays: dict[int, np.ndarray] = {}

    def __call__(self, output: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        found = self._arrays.get(output)
        if found is None or found.shape != shape or found.dtype != dtype:
            found = empty_array(shape, dtype)
            if self._is_returned is not None and not self._is_returned[output]:
                self._arrays[output] = found
        return found


class _Buffer:
    """Memory that is free again after a `with` statement."""

    def __init__(self, free: list[_Buffer], size: int) -> None:
        self._free, self.size = free, size
        self._memory = np.empty(size + LINE, np.uint8)
        start = address(self._memory)
        self._address = start + -start % LINE

    def __enter__(self) -> int:
        return self._address

    def __exit__(self, *error: object) -> None:
        self._free.append(self)


class Scratch:
    """Scratch memory, used again by later calls; several threads may call at once."""

    def __init__(self) -> None:
        self._free: list[_Buffer] = []

    def of(self, size: int) -> _Buffer:
        """A context with the address of a number of bytes, aligned to a cache line."""
        try:
            buffer = self._free.pop()
        except IndexError:
            return _Buffer(self._free, size)
        return buffer if buffer.size >= size else _Buffer(self._free, size)


def element_strides(x: Any) -> tuple[int, ...]:
    """An array's strides in elements."""
    return tuple([stride // x.itemsize for stride in x.strides])


#: The memory of NumPy's arrays.
HOST = Memory(np.ndarray, np.asarray, empty_array, address)


def order_and_leading_dimension(x: Any) -> tuple[str | None, int]:
    """A matrix's order, 'C' or 'F', and its leading dimension; None and 0 where it is strided both ways.

    Of a stack, those of each matrix.
    """
    (rows, columns), (down, along) = x.shape[-2:], x.strides[-2:]
    for order, size, near, count, far in (("C", columns, along, rows, down), ("F", rows, down, columns, along)):
        is_contiguous = near == x.itemsize or size <= 1
        if is_contiguous and count <= 1:
            return order, max(size, 1)
        if is_contiguous and far >= size * x.itemsize and far % x.itemsize == 0:
            return order, far // x.itemsize
    return None, 0
