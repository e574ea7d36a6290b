"""Elements of a variable's value, by index."""

from __future__ import annotations

from typing import Any

from optree.errors import OperandError, describe
from optree.registry import f
from optree.tree.types import TensorType


class Elements:
    """A variable's value, indexed as a NumPy array is."""

    __slots__ = ("_whole",)
    __iter__ = None  # iteration by __getitem__ would not end over an axis of unknown size

    def __init__(self, whole: Any) -> None:
        self._whole = whole

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(self._whole.type, TensorType):
            raise OperandError(f"{describe(self._whole)} is no array, and has no elements to index")
        return f.gather(self._whole, index)
