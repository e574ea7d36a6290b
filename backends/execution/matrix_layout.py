"""How matrices lie in memory, as libraries that multiply them ask."""

from __future__ import annotations

from typing import Any


def order_and_lead(x: Any) -> tuple[str | None, int]:
    """Whether a matrix's rows lie together ('C') or its columns ('F'), and how many elements apart; None for neither.

    Of a stack, each of its matrices.
    """
    (rows, columns), (down, along) = x.shape[-2:], x.strides[-2:]
    for order, size, near, count, far in (("C", columns, along, rows, down), ("F", rows, down, columns, along)):
        together = near == x.itemsize or size <= 1
        if together and count <= 1:
            return order, max(size, 1)
        if together and far >= size * x.itemsize and far % x.itemsize == 0:
            return order, far // x.itemsize
    return None, 0
