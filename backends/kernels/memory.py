"""What kernels need of the memory that arrays lie in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Memory(NamedTuple):
    """How arrays of one kind are made and looked at.

    Attributes
    ----------
    array : callable
        From any value of a plan to an array.
    empty : callable
        From a shape and a dtype to a new array.
    address : callable
        From an array to where its first element lies.
    """

    array: Callable[[Any], Any]
    empty: Callable[[Any, Any], Any]
    address: Callable[[Any], int]

    def shaped(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An array of a shape, whose elements nobody reads."""
        return np.broadcast_to(self.empty((), dtype), shape)


#: NumPy's arrays.
HOST = Memory(np.asarray, np.empty, lambda x: x.__array_interface__["data"][0])
