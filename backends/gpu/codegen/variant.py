"""Variants of CUDA kernels, which depend on sizes and alignment, and the rows that they cache from stage to stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from optree.compile.loopnest import LoopNest, Stage, stages_of

#: The bytes of loads that a thread has under way before it uses the first, where it has as many to load.
FLIGHT = 64


@dataclass(frozen=True)
class Variant:
    """How a nest is printed: what depends on more than its types, and is part of a compiled kernel's key.

    Attributes
    ----------
    vector : int
        The elements of a vectorised load or store; in a team of columns, the columns of a thread.
    wide : bool
        Whether indices have 64 bits.
    team : {'', 'tiles', 'warp', 'block', 'columns'}
        Who reduces; in a nest without reductions nobody, or blocks transpose tiles.
    cache : {'', 'shared', 'part', 'registers'}
        Where a row is cached that several stages need. In registers each thread has all of its part of a row at once;
        'part' is shared memory that holds the row's first accesses, of what is read alone.
    split : bool
        Whether the inner loops are shared out to blocks.
    accesses : int
        The loads under way before a thread uses the first; where registers cache rows, the accesses of a row it has.
    whole : bool
        Whether each access has all of its elements; otherwise the last of a row may have fewer.
    shifted : bool
        Whether rows may begin within an access, at the same offset in all arrays: the first, too, may have fewer.
    threads : int
        The threads of a block; at most, where a team is a block.
    width : int
        The lanes of a team that is a part of a warp; the threads of a block of columns that are side by side.
    """

    vector: int = 1
    wide: bool = False
    team: str = ""
    cache: str = ""
    split: bool = False
    accesses: int = 1
    whole: bool = True
    shifted: bool = False
    threads: int = 256
    width: int = 1

    @property
    def rest(self) -> int:
        """The number added to the size of a row before it is divided by that of an access."""
        return (self.vector - 1) * (1 + self.shifted)

    def chunks(self, size: int) -> int:
        """The most accesses that a row of some size takes."""
        return (size + self.rest) // self.vector


def slot_bytes(nest: LoopNest, cache: bool = True) -> list[int]:
    """The bytes of an element in each of the rows in which a nest caches values for later stages.

    Parameters
    ----------
    cache : bool
        Whether what is dear to compute again is among them, or only what is read.
    """
    return [size for _, size in sorted(set(slots_of(nest, stages_of(nest, cache)).values()))]


def held_bytes(nest: LoopNest) -> int:
    """The most bytes of each element that a nest needs from one stage to the next."""
    spans, count = _spans(nest, stages_of(nest)), len(stages_of(nest))
    return max(sum(span.size for span in spans if span.first <= stage < span.last) for stage in range(count))


def loaded_bytes(nest: LoopNest) -> list[int]:
    """The bytes of each element that stages load, those that load any."""
    reads = ([place for place in stage.reads if not nest.is_counted(place)] for stage in stages_of(nest))
    return [found for places in reads if (found := sum(nest.reads[place].itemsize for place in places))] or [0]


def along(nest: LoopNest) -> list[int]:
    """The arrays whose elements are contiguous along the vector loop."""
    found = (place for place, step in enumerate(nest.steps) if step == 1 and nest.levels[place] == "inner")
    return [place for place in found if not nest.is_counted(place)]


class Span(NamedTuple):
    """A value that several stages need: the first and the last of them, and the bytes of an element."""

    first: int
    last: int
    value: int
    size: int


def _spans(nest: LoopNest, found: Sequence[Stage]) -> list[Span]:
    """The values that several stages need, in the order in which they are first needed."""
    needed: dict[int, tuple[int, int]] = {}
    for number, stage in enumerate(found):
        arrays = {place for place in stage.reads if not nest.is_counted(place)}
        for value in {*arrays, *stage.loads, *stage.stores}:
            needed[value] = needed.get(value, (number, number))[0], number
    spans = (Span(first, last, value, nest.dtype_of(value).itemsize) for value, (first, last) in needed.items())
    return sorted(span for span in spans if span.last > span.first)


def slots_of(nest: LoopNest, found: Sequence[Stage]) -> dict[int, tuple[int, int]]:
    """For each value that several stages need, the row of shared memory that caches it, and its element's size.

    A value that a stage computes may take the row of one that no later stage needs.
    """
    rows: list[tuple[int, int]] = []  # until which stage each is taken, and its element's size
    slots: dict[int, tuple[int, int]] = {}
    for first, last, value, size in _spans(nest, found):
        is_read = value < len(nest.reads)
        reusable = (i for i, (until, other) in enumerate(rows) if until <= first and other == size and not is_read)
        row = next(reusable, len(rows))
        rows[row : row + 1] = [(last, size)]
        slots[value] = row, size
    return slots
