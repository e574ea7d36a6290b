"""The memory layout of matrices in BLAS's terms."""

from __future__ import annotations

from typing import Any


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
