"""Values of ops without kernels by NumPy, in blocks that fit a core's cache, on several threads (`BlockOperator`)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np

from backends.execution.memory import empty_array
from backends.execution.thread_pool import share
from optree.arrays import overlap
from optree.op.traits import BlockOperator

#: The bytes of a block's operands and value, as a core's cache holds: where one NumPy call fills it, and where several
#: make a value, between which threads wait for the interpreter.
BYTES, BYTES_OF_CALLS = 1 << 20, 1 << 22

#: The blocks from which their overhead, of ten microseconds each, is small beside the work.
LEAST = 2


class InBlocks:
    """An op's value on NumPy arrays, into `out` if that is given.

    `op` (Op): it is a `BlockOperator`, or has `fill`.
    `call`: from arrays to a new value.
    `fill`: it writes the value into an array that shares no memory with the operands.
    `dtype`: the value's.
    """

    def __init__(self, op: Any, call: Callable[..., Any], fill: Callable[..., None] | None, dtype: np.dtype) -> None:
        self._op, self._call, self._fill, self._dtype = op, call, fill, dtype

    def __call__(self, *arrays: Any, out: np.ndarray | None = None) -> Any:
        found = self._blocks(arrays) if isinstance(self._op, BlockOperator) else None
        if out is None:
            if found is None:
                return self._call(*arrays)
            out = empty_array(self._op.output_shape(*map(np.shape, arrays)), self._dtype)
        elif any(map(overlap, arrays, repeat(out))):
            out[...] = self(*arrays)
            return out
        if found is None:
            self._write(out, arrays)
            return out
        axis, axes, count = found
        size = out.shape[axis]

        def write(number: int) -> None:
            block = slice(size * number // count, size * (number + 1) // count)
            parts = [x if along is None else _cut(x, along, block) for x, along in zip(arrays, axes, strict=True)]
            self._write(_cut(out, axis, block), parts)

        share(range(count), lambda: write)
        return out

    def _write(self, out: np.ndarray, arrays: Any) -> None:
        if self._fill is None:
            out[...] = self._call(*arrays)
        else:
            self._fill(out, *arrays)

    def _blocks(self, arrays: Any) -> tuple[int, tuple[int | None, ...], int] | None:
        """The axis of the value and those of the operands along which it is divided, and in how many blocks."""
        size = sum(getattr(x, "size", 1) * (getattr(x, "itemsize", 0) + self._dtype.itemsize) for x in arrays)
        count = size // (BYTES_OF_CALLS if self._fill is None else BYTES)
        if count < LEAST:
            return None
        shapes = [np.shape(x) for x in arrays]
        axis, axes, least = self._op.blocks(*shapes) or (0, (), 1)
        sizes = [shape[along] // least for shape, along in zip(shapes, axes, strict=False) if along is not None]
        count = min(count, *sizes) if sizes else 0
        return (axis, axes, count) if count >= LEAST else None


def _cut(x: np.ndarray, axis: int, block: slice) -> np.ndarray:
    return x[(*(slice(None),) * axis, block)]
