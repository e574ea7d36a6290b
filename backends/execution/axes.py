"""From fused kernels and arrays to loop nests: which axes join, and the steps along the innermost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: For each array, its step in elements along each axis of the domain.
Strides = list[list[int]]


def joined(sizes: Sequence[int], strides: Strides) -> tuple[list[int], Strides]:
    """The domain with as few axes as can be: those of size 1 left out, and those that are contiguous together joined.

    Examples
    --------
    >>> joined([2, 3, 4], [[12, 4, 1], [12, 4, 1]])
    ([24], [[1], [1]])
    >>> joined([2, 3], [[3, 1], [0, 1]])
    ([2, 3], [[3, 1], [0, 1]])
    """
    axes = [axis for axis, size in enumerate(sizes) if size != 1]
    found_sizes: list[int] = []
    found: Strides = [[] for _ in strides]
    for axis in axes:
        joins = bool(found_sizes) and all(
            steps[-1] == given[axis] * sizes[axis] for steps, given in zip(found, strides, strict=True)
        )
        if joins:
            found_sizes[-1] *= sizes[axis]
            for steps, given in zip(found, strides, strict=True):
                steps[-1] = given[axis]
        else:
            found_sizes.append(sizes[axis])
            for steps, given in zip(found, strides, strict=True):
                steps.append(given[axis])
    if not found_sizes:
        return [1], [[0] for _ in strides]
    return found_sizes, found


def strides_along(array: np.ndarray, axes: Sequence[int | None], rank: int) -> list[int]:
    """An array's step in elements along each axis of a domain of so many."""
    found = [0] * rank
    for axis, size, step in zip(axes, array.shape, array.strides, strict=True):
        if axis is not None and size != 1:
            found[axis] = step // array.itemsize
    return found


def counting_strides(axes: Sequence[int | None], sizes: Sequence[int]) -> list[int]:
    """How far a place, counted in C order through the axes of some value, goes on along each axis of the domain.

    These are the steps of a new array, too.
    """
    found, step = [0] * len(sizes), 1
    for axis in reversed(axes):
        if axis is not None and sizes[axis] != 1:
            found[axis] = step
            step *= sizes[axis]
    return found
