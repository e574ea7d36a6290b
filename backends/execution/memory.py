"""What kernels need of the memory that arrays lie in."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np


class Memory(NamedTuple):
    """How arrays of one kind are made and looked at.

    Attributes
    ----------
    kind : type
        The arrays'.
    array : callable
        From any value of a plan to an array.
    empty : callable
        From a shape and a dtype to a new array.
    address : callable
        From an array to where its first element lies.
    """

    kind: type[Any]
    array: Callable[[Any], Any]
    empty: Callable[[Any, Any], Any]
    address: Callable[[Any], int]

    def shaped(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An array of a shape, whose elements nobody reads."""
        return np.broadcast_to(self.empty((), dtype), shape)


#: Scratch arrays begin at multiples of so many bytes, so that no two threads' share a line of the cache.
LINE = 64

#: Arrays of fewer bytes are not worth the trouble.
SMALL = 1 << 15


def empty_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """A new array of NumPy's that begins where a line of the cache does, if it is not small.

    NumPy's own large ones begin 16 bytes after that, so that each access to a whole line is one to two of them.
    """
    dtype = np.dtype(dtype)
    size = prod(shape) * dtype.itemsize
    if size < SMALL:
        return np.empty(shape, dtype)
    memory = np.empty(size + LINE, np.uint8)
    start = -_address(memory) % LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


#: NumPy's arrays.
HOST = Memory(np.ndarray, np.asarray, empty_array, _address)
