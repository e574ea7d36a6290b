"""Taps: the reads of a kernel at affine indices, for arrays of one layout."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from optree.compile.loopnest import FLOATS, LoopNest, Tap, stages_of
from optree.op.traits import Along
from optree.records import NamedTuple

#: The elements between two taps from which on a source does not state them.
MOST_BESIDE = 8

#: The rows that are computed together, the most that fit first; the maximum statements of them all, which take time to
#: compile; and the maximum of their loads over those of rows by themselves.
JAMMED, MOST_STATEMENTS, FEWER_LOADS = (4, 2), 400, 0.8

#: The bytes of zeros on both sides of the pointer to a row out of bounds; longer rows than half of that are not jammed.
MOST_ZEROS = 1 << 20


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


class TapRows(NamedTuple):
    """The rows of a tap: its reads along the loop around the vector loop."""

    #: Equal for taps of the same array, strides, value out of bounds and bounds along other loops.
    key: Any
    offset: int
    #: The step in elements from row to row, and the bounds of the rows at which it reads.
    step: int
    bounds: tuple[int, int]

    def later(self, other: TapRows, count: int) -> int | None:
        """After how many rows another tap reads what this one reads, of a number of rows; None if it does not."""
        if self.key != other.key or not self.step or (self.offset - other.offset) % self.step:
            return None
        rows = (self.offset - other.offset) // self.step
        first, last = max(0, -rows), min(count, count - rows)
        low, high, low_other, high_other = (
            min(max(each, first), last) for each in (*self.bounds, other.bounds[0] - rows, other.bounds[1] - rows)
        )
        are_equal = (low, high) == (low_other, high_other) or (low >= high and low_other >= high_other)
        return rows if first < last and are_equal else None


def shared_rows(taps: Sequence[TapRows], count: int) -> list[tuple[int, int]]:
    """For each tap the first that reads the same some rows later or before, itself if there is none, and the rows."""
    found = list[tuple[int, int]]()
    for number, tap in enumerate(taps):
        others = [n for n in range(number) if found[n][0] == n]
        pairs = ((n, tap.later(taps[n], count)) for n in others)
        found.append(next(((n, rows) for n, rows in pairs if rows is not None), (number, 0)))
    return found


def jammed_rows(shared: Sequence[tuple[int, int]], fixed: int, varying: int, statements: int, count: int) -> int:
    """How many rows of a count are computed together: 1 where they share few loads, or have many statements.

    `shared`: as of `shared_rows`, of the taps that vary from row to row.
    `fixed`, `varying`: the numbers of other reads that are the same in all rows, and that are not.
    """
    for rows in JAMMED:
        loads = fixed + varying * rows + len({(n, later + row) for n, later in shared for row in range(rows)})
        is_less = loads <= FEWER_LOADS * rows * (fixed + varying + len(shared))
        if count >= rows and is_less and rows * statements <= MOST_STATEMENTS:
            return rows
    return 1


def rows_together(
    nest: LoopNest,
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
    offsets: Sequence[int],
    bounds: Sequence[Any],
) -> LoopNest:
    """The nest with several rows together, if its taps then share many loads; or whose rows are summed up together.

    `offsets`, `bounds`: of each tap.
    """
    first, narrow = len(nest.reads) - len(nest.taps), np.dtype("float16") in nest.arrays
    lengths = [sizes[-1] * abs(strides[n][-1]) * dtype.itemsize for n, dtype in enumerate(nest.reads) if n >= first]
    are_zeros = all(tap.outside.rstrip("fuUL") in ("0", "0.0") for tap in nest.taps) and max(lengths) <= MOST_ZEROS // 2
    if narrow or not are_zeros:
        return nest
    if nest.reductions:
        return in_lanes(nest, strides, offsets)
    loop = nest.rank - 2
    count, rows, reads = sizes[loop], list[TapRows](), range(first)
    for array, (tap, offset, ends) in enumerate(zip(nest.taps, offsets, bounds, strict=True), first):
        others = tuple(sorted(each for each in ends.items() if each[0] != loop))
        key = (tap.array, tap.outside, *strides[array], *others)
        rows.append(TapRows(key, offset, strides[array][loop], ends.get(loop, (0, count))))
    shared, inner = shared_rows(rows, count), [array for array in reads if nest.levels[array] == "inner"]
    fixed = sum(not strides[array][loop] for array in inner)
    together = jammed_rows(shared, fixed, len(inner) - fixed, len(nest.statements), count)
    if together == 1:
        return nest
    taps = zip(with_distances(nest, strides, offsets), shared, strict=True)
    made = tuple([tap._replace(shared=(first + n, later)) for tap, (n, later) in taps])
    return nest._replace(taps=made, rows=tuple([not steps[loop] for steps in strides]), jammed=together)


def in_lanes(nest: LoopNest, strides: Sequence[Sequence[int]], offsets: Sequence[int]) -> LoopNest:
    """The nest whose rows are summed up together, if all that it computes are sums of floats along rows."""
    first = len(nest.reads) - len(nest.taps)
    are_sums = all(r.accumulator.sums and r.dtype in FLOATS for r in nest.reductions)
    is_plain = not (nest.columns or "inner" in nest.levels[len(nest.reads) :]) and nest.rank > nest.outer + 1
    is_plain &= all(abs(steps[-1]) <= 1 for steps in strides[first : len(nest.reads)])
    if not (are_sums and is_plain and len(stages_of(nest)) == 1):
        return nest
    return nest._replace(taps=with_distances(nest, strides, offsets), lanes=True)


def with_distances(nest: LoopNest, strides: Sequence[Sequence[int]], offsets: Sequence[int]) -> tuple[Tap, ...]:
    """The taps of a nest, with the distances of those that are beside others."""
    first, taps = len(nest.reads) - len(nest.taps), list[Tap]()
    alike = [first + n if tap.like is None else tap.like for n, tap in enumerate(nest.taps)]
    for number, tap in enumerate(nest.taps):
        like = [n for n in range(number) if alike[n] == alike[number]]
        distance, nearest = min(((abs(offsets[number] - offsets[n]), n) for n in like), default=(inf, 0))
        beside = (first + nearest, offsets[number] - offsets[nearest]) if distance < MOST_BESIDE else None
        taps.append(tap._replace(beside=beside, is_of_pairs=strides[first + number][-1] == 2))
    return tuple(taps)
