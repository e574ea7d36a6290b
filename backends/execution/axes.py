"""Collapsing of contiguous axes, and the strides of arrays along a domain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: For each array, its stride in elements along each axis of the domain.
Strides = list[list[int]]


def collapsed_axes(sizes: Sequence[int], strides: Strides) -> tuple[list[int], Strides]:
    """The domain without axes of size 1, and with axes that are contiguous together in all arrays collapsed.

    Examples
    --------
    >>> collapsed_axes([2, 3, 4], [[12, 4, 1], [12, 4, 1]])
    ([24], [[1], [1]])
    >>> collapsed_axes([2, 3], [[3, 1], [0, 1]])
    ([2, 3], [[3, 1], [0, 1]])
    """
    axes = [axis for axis, size in enumerate(sizes) if size != 1]
    found_sizes: list[int] = []
    found: Strides = [[] for _ in strides]
    for axis in axes:
        is_contiguous = bool(found_sizes) and all(
            own[-1] == given[axis] * sizes[axis] for own, given in zip(found, strides, strict=True)
        )
        if is_contiguous:
            found_sizes[-1] *= sizes[axis]
            for own, given in zip(found, strides, strict=True):
                own[-1] = given[axis]
        else:
            found_sizes.append(sizes[axis])
            for own, given in zip(found, strides, strict=True):
                own.append(given[axis])
    if not found_sizes:
        return [1], [[0] for _ in strides]
    return found_sizes, found


def strides_along(array: np.ndarray, axes: Sequence[int | None], rank: int) -> list[int]:
    """An array's stride in elements along each axis of a domain."""
    found = [0] * rank
    for axis, size, stride in zip(axes, array.shape, array.strides, strict=True):
        if axis is not None and size != 1:
            found[axis] = stride // array.itemsize
    return found


def c_order_strides(axes: Sequence[int | None], sizes: Sequence[int]) -> list[int]:
    """The strides in elements of an array in C order with some axes of the domain, and so those of its flat index."""
    found, stride = [0] * len(sizes), 1
    for axis in reversed(axes):
        if axis is not None and sizes[axis] != 1:
            found[axis] = stride
            stride *= sizes[axis]
    return found
