"""Further workloads on GPUs: sums along an axis, and normalised rows of several lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from reductions import LayerNorm, Softmax
from workloads import Square, Workload

#: The lengths of rows: in the registers of warps and blocks, about the limits of shared memory and beyond it, and those
#: of two models' vocabularies.
LENGTHS = (32, 256, 1024, 8192, 12288, 50257, 65536, 128256)


class Sum(Square):
    """The sum of all elements."""

    title = "sum"
    axis: int | None = None
    moved = 1

    def formula(self, m: Any, *operands: Any) -> list[Any]:
        (x,) = operands
        return [m.sum(x, self.axis)]

    def numpy(self, xp: Any, *operands: Any) -> tuple[Callable[[], Any], Callable[[], list[np.ndarray]]]:
        (x,) = operands
        out = xp.empty_like(x.sum(axis=self.axis, keepdims=True))
        return lambda: xp.sum(x, axis=self.axis, keepdims=True, out=out), lambda: [out]


class ColumnSums(Sum):
    """The sum of each column."""

    title = "sum of columns"
    axis = 0


class RowSums(Sum):
    """The sum of each row."""

    title = "sum of rows"
    axis = 1


def of_rows(cls: type[Workload], length: int) -> type[Workload]:
    """A workload on rows of one length, at sizes of at least one row."""

    class OfRows(cls):  # type: ignore[valid-type, misc]
        title = f"{cls.title}, {length:,} long"

        @classmethod
        def sizes(cls, usual: Sequence[int]) -> Sequence[int]:
            return [elements for elements in usual if elements >= length]

        @property
        def shape(self) -> tuple[int, ...]:
            return self.elements // length, length

    return OfRows


#: A description of each, in the order of the tables.
ROWS: tuple[type[Workload], ...] = (
    Sum,
    ColumnSums,
    RowSums,
    *(of_rows(cls, length) for cls in (Softmax, LayerNorm) for length in LENGTHS),
)
