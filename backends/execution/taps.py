"""Taps: the reads of a kernel at affine indices, for arrays of one layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optree.op.traits import Along
from optree.records import NamedTuple


class Reach(NamedTuple):
    """The elements of an array that a tap reads."""

    #: That of the element at index 0, in elements.
    offset: int
    #: Along the domain's axes, in elements.
    strides: list[int]
    #: Along each axis of the domain that has some, those of the indices at which it reads.
    bounds: dict[int, tuple[int, int]]
    #: Along each axis of the domain where the index is a quotient or remainder: spacing and phase, as of `Quotient`,
    #: whether it is the remainder, and the cells, as of `Spaced`.
    spaced: dict[int, tuple[int, int, bool, int]]


def reach(x: Any, indices: Sequence[Along], axes: Sequence[int | None], sizes: Sequence[int]) -> Reach:
    """The elements of an array that a tap reads.

    `indices`: of the value's axes.
    `axes`: the axis of the domain for each of these.
    `sizes`: those of the domain.
    """
    offset, strides, is_outside = 0, [0] * len(sizes), False
    bounds, spaced = dict[int, tuple[int, int]](), dict[int, tuple[int, int, bool, int]]()
    for axis, along in zip(axes, indices, strict=True):
        size = 1 if axis is None else sizes[axis]
        low, high = max(along.low, 0), min(along.high, size)
        stride = 0 if along.axis is None else x.strides[along.axis] // x.itemsize
        if along.spacing > 1:  # of -i what divides is that of i
            first, phase = divmod(along.offset * (along.step or 1), along.spacing)
            is_outside |= size == 1 and phase >= along.cells
            offset += (phase * (size == 1) if along.is_remainder else first * (along.step or 1)) * stride
            if axis is not None and size > 1:
                spaced[axis] = along.spacing, phase, along.is_remainder, along.cells
        else:
            offset += along.offset * stride
        is_outside |= low >= high
        if axis is not None:
            strides[axis] = along.step * stride * (size > 1)
            if (low, high) != (0, size):
                bounds[axis] = low, high
    if is_outside:
        return Reach(0, strides, {max(range(len(sizes)), key=sizes.__getitem__): (0, 0)}, {})
    return Reach(offset, strides, bounds, spaced)
