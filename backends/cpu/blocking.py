"""How a kernel's domain is cut into blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

#: For each axis which part of it is in a block.
Block = tuple[slice, ...]

#: So many elements at least lie in a row of a block, or as many as there are: NumPy is slow on shorter ones.
RUN = 512

#: Where it takes several blocks to reduce elements, so many rows at least are in each.
ROWS = 8


class Grid:
    """A domain cut into blocks.

    Parameters
    ----------
    sizes : sequence of int
        Of the axes, the outermost in memory first.
    reduced : sequence of int
        The axes that are reduced.
    room : int
        How many elements a block should have.
    whole : bool
        Whether reduced axes must not be cut.

    Attributes
    ----------
    cuts : set of int
        The axes that are cut.
    """

    def __init__(self, sizes: Sequence[int], reduced: Sequence[int], room: int, whole: bool) -> None:
        self.sizes, self.reduced = tuple(sizes), tuple(reduced)
        takes = _takes(sizes, self.reduced, max(1, room), whole)
        # As equal as can be: a last block of a few elements costs as many calls as the others.
        counts = [-(-size // take) for size, take in zip(sizes, takes, strict=True)]
        self.takes = [-(-size // count) for size, count in zip(sizes, counts, strict=True)]
        self.cuts = {place for place, (size, take) in enumerate(zip(sizes, self.takes, strict=True)) if take < size}

    @property
    def everything(self) -> Block:
        """The whole domain."""
        return tuple(slice(0, size) for size in self.sizes)

    @property
    def cuts_reduced(self) -> bool:
        """Whether it takes several blocks to reduce elements."""
        return not self.cuts.isdisjoint(self.reduced)

    @property
    def count(self) -> int:
        """How many elements are reduced together."""
        return prod(self.sizes[place] for place in self.reduced)

    @property
    def largest(self) -> int:
        """How many elements there are in the largest block."""
        return prod(self.takes)

    def blocks(self) -> list[Block]:
        """All blocks, in order."""
        along = [
            [slice(start, min(start + take, size)) for start in range(0, size, take)]
            for size, take in zip(self.sizes, self.takes, strict=True)
        ]
        return list(product(*along))

    @staticmethod
    def shape(block: Block) -> tuple[int, ...]:
        """The sizes of a block."""
        return tuple([part.stop - part.start for part in block])

    def cut(self, array: np.ndarray, block: Block) -> np.ndarray:
        """What an array has in a block: all of it along the axes that it does not run along."""
        if not self.cuts:
            return array
        if array.shape == self.sizes:
            return array[block]
        return array[tuple([part if size != 1 else slice(None) for part, size in zip(block, array.shape, strict=True)])]

    @property
    def parts(self) -> tuple[int, ...]:
        """The shape of what blocks have reduced: along a reduced axis, a place for each cut of it."""
        return tuple(
            -(-size // take) if place in self.reduced else size
            for place, (size, take) in enumerate(zip(self.sizes, self.takes, strict=True))
        )

    def part(self, block: Block) -> Block:
        """The places of what a block has reduced."""
        return tuple(
            slice(part.start // take, part.start // take + 1) if place in self.reduced else part
            for place, (part, take) in enumerate(zip(block, self.takes, strict=True))
        )


def _takes(sizes: Sequence[int], reduced: Sequence[int], room: int, whole: bool) -> list[int]:
    """How much of each axis is in a block.

    If all that is reduced together fits, in rows that are long enough, or must
    not be cut, it is in one block. If not, blocks take what lies together in
    memory, and `ROWS` rows of it at least.
    """
    takes = [1] * len(sizes)
    inner = len(sizes)  # axes from here on are kept
    while inner and inner - 1 not in reduced:
        inner -= 1
    run = min(RUN, room, prod(sizes[inner:]))
    together = prod(sizes[place] for place in reduced)
    if whole or together * run <= room:
        for place in reduced:
            takes[place] = sizes[place]
        kept = [place for place in range(len(sizes)) if place not in reduced]
        _fill(takes, sizes, kept, max(room // together, run))
    else:
        rows = min(ROWS, room) if inner < len(sizes) else 1
        _fill(takes, sizes, range(inner, len(sizes)), room // rows)
        _fill(takes, sizes, range(inner), room // prod(takes[inner:]))
    return takes


def _fill(takes: list[int], sizes: Sequence[int], axes: Sequence[int], room: int) -> None:
    """Take as much of axes as there is room for, of the innermost first."""
    for place in reversed(axes):
        takes[place] = min(sizes[place], max(1, room))
        room //= takes[place]
