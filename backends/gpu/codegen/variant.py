"""Variants of CUDA kernels, specialised to sizes and alignment, and the shared memory that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backends.execution.printer_common import accumulator_dtype
from optree.compile.loopnest import LoopNest, Reduction, Stage, stages_of, strided_reads
from optree.dtypes import FLOAT32, is_floating, is_narrow
from optree.records import NamedTuple

#: The bytes that a thread loads before it uses the first of them, where it has as many to load.
BYTES_IN_FLIGHT = 64

#: The size of a transposed tile along each of its loops.
TILE = 32


@dataclass(frozen=True)
class Variant:
    """The specialisation of a nest's kernels, part of a compiled kernel's key."""

    #: The elements of a vectorised load or store; in a team of columns, the columns of a thread.
    vector: int = 1
    #: Whether indices have 64 bits.
    wide_index: bool = False
    #: The threads that reduce together: 'warp', 'block' or 'columns'; '' and 'tiles' are elementwise, 'tiles' with
    #: transposes in shared memory.
    team: str = ""
    #: The memory that caches a row for several stages: '', 'shared', 'part' or 'registers'. In registers each thread
    #: has all of its accesses to a row; 'part' caches the row's first accesses in shared memory, of reads alone.
    cache: str = ""
    #: Whether several blocks share the reduction of a row.
    split: bool = False
    #: The loads in flight before a thread uses the first; where registers cache rows, a thread's accesses to a row.
    accesses: int = 1
    #: Whether each access has all of its elements; otherwise the last of a row may be partial.
    whole: bool = True
    #: Whether rows may begin unaligned, at the same offset in all arrays: the first access, too, may be partial.
    shifted: bool = False
    #: The reads whose rows have other offsets from an aligned address than the rest.
    unaligned: tuple[int, ...] = ()
    #: The threads of a block; the maximum, where a team is a block.
    threads: int = 256
    #: The lanes of a team within a warp; in a team of columns, the threads of a block along the columns.
    width: int = 1
    #: Whether the first two stages are one traversal (`optree.compile.loopnest.online_of`).
    online: bool = False

    @property
    def rest(self) -> int:
        """The number added to a row's size, for its division by an access's to round up."""
        return (self.vector - 1) * (1 + self.shifted)

    def chunks(self, size: int) -> int:
        """The maximum number of accesses to a row of some size."""
        return (size + self.rest) // self.vector

    def accumulator_dtype(self, nest: LoopNest, reduction: Reduction) -> np.dtype:
        """The dtype of an accumulator: float32 in lanes of a warp, which add a few dozen numbers, for a narrow result.

        Cards but those for data centres have two float64 units for 128 of float32.
        """
        dtypes = {reduction.dtype} if is_narrow(reduction.dtype) else {*nest.stored}
        is_rounded = reduction.dtype.itemsize <= FLOAT32.itemsize and all(map(is_narrow, dtypes))
        is_short = self.team == "warp" and is_floating(reduction.dtype) and is_rounded
        return FLOAT32 if is_short else accumulator_dtype(reduction)


def kernel_names(nest: LoopNest, variant: Variant) -> list[str]:
    """The names of a nest's kernels, in the order in which they are launched."""
    if not variant.split:
        return ["kernel"]
    found = traversals(stages_of(nest, cache=False), variant.online)
    needs_end = found[-1].reductions or nest.writes_at("outer") or nest.writes_at("once")
    return [*(f"stage{number}" for number in range(len(found))), *(["end"] if needs_end else [])]


def part_arrays(nest: LoopNest) -> dict[int, int]:
    """For each reduction, the one whose array in shared memory it uses.

    Two arrays of a type alternate, so that a block needs a few kilobytes at most, for any number of reductions.
    """
    found: dict[int, int] = {}
    first: dict[tuple[np.dtype, int], int] = {}
    for number, r in enumerate(r for stage in stages_of(nest) for r in stage.reductions):
        found[r.value] = first.setdefault((accumulator_dtype(r), number % 2), r.value)
    return found


def parts_size(team: str, threads: int) -> int:
    """The elements of a team's array in shared memory."""
    return {"block": 32, "columns": threads}.get(team, 0)


def static_bytes(nest: LoopNest, team: str, threads: int) -> int:
    """The static shared memory of a block in bytes; of a split nest, that of the last kernel."""
    if team == "tiles":
        return sum(nest.reads[array].itemsize for array in strided_reads(nest)) * TILE * (TILE + 1)
    arrays = set(part_arrays(nest).values())
    return parts_size(team, threads) * sum(accumulator_dtype(r).itemsize for r in nest.reductions if r.value in arrays)


def traversals(stages: Sequence[Stage], online: bool) -> list[Stage]:
    """The stages, of which the first two are one where they share a traversal."""
    if not online:
        return list(stages)
    first, second, *others = stages
    both = Stage([*first.statements, *second.statements], count=2)
    both.reads = sorted({*first.reads, *second.reads})
    return [both, *others]


def slot_bytes(nest: LoopNest, cache: bool = True, online: bool = False) -> list[int]:
    """The bytes of an element in each row that a nest caches for later stages.

    `cache`: whether values that are expensive to recompute are cached, or reads alone.
    `online`: whether the first two stages are one traversal.
    """
    found = slots_of(nest, traversals(stages_of(nest, cache), online))
    return [size for _, size in sorted(set(found.values()))]


def live_bytes(nest: LoopNest) -> int:
    """The maximum bytes of each element that are live between two stages."""
    lifetimes, count = _lifetimes(nest, stages_of(nest)), len(stages_of(nest))
    return max(
        sum(lifetime.size for lifetime in lifetimes if lifetime.first <= stage < lifetime.last)
        for stage in range(count)
    )


def loaded_bytes(nest: LoopNest) -> list[int]:
    """For each stage that loads arrays, the bytes that it loads of each element."""
    reads = ([array for array in stage.reads if not nest.is_flat_index(array)] for stage in stages_of(nest))
    sizes = (sum(nest.reads[array].itemsize for array in arrays) for arrays in reads)
    return [size for size in sizes if size] or [0]


def contiguous_arrays(nest: LoopNest) -> list[int]:
    """The arrays that are contiguous along the vector loop."""
    arrays = (i for i, stride in enumerate(nest.vector_strides) if stride == 1 and nest.levels[i] == "inner")
    return [array for array in arrays if not nest.is_flat_index(array) and nest.tap_of(array) is None]


class Lifetime(NamedTuple):
    """The first and the last stage that need a value, and the bytes of an element."""

    first: int
    last: int
    value: int
    size: int


def _lifetimes(nest: LoopNest, stages: Sequence[Stage]) -> list[Lifetime]:
    """The lifetimes of values that several stages need, in the order of their first stages."""
    stages_of_value: dict[int, tuple[int, int]] = {}
    for number, stage in enumerate(stages):
        arrays = {array for array in stage.reads if not nest.is_flat_index(array)}
        for value in {*arrays, *stage.loads, *stage.stores}:
            stages_of_value[value] = stages_of_value.get(value, (number, number))[0], number
    lifetimes = (
        Lifetime(first, last, value, nest.dtype_of(value).itemsize) for value, (first, last) in stages_of_value.items()
    )
    return sorted(lifetime for lifetime in lifetimes if lifetime.last > lifetime.first)


def slots_of(nest: LoopNest, stages: Sequence[Stage]) -> dict[int, tuple[int, int]]:
    """For each value that several stages need, the row that caches it, and its element's size.

    A value that a stage computes may reuse the row of one whose lifetime is over.
    """
    rows: list[tuple[int, int]] = []  # the last stage that needs each, and its element's size
    slots: dict[int, tuple[int, int]] = {}
    for first, last, value, size in _lifetimes(nest, stages):
        is_read = value < len(nest.reads)
        reusable = (i for i, (until, other) in enumerate(rows) if until <= first and other == size and not is_read)
        row = next(reusable, len(rows))
        rows[row : row + 1] = [(last, size)]
        slots[value] = row, size
    return slots
