"""Tiling of a kernel's domain, so that NumPy's temporaries fit in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

#: A tile: for each axis, its range.
Tile = tuple[slice, ...]

#: The least elements of a tile's rows, where the domain has as many: NumPy is slow on shorter ones.
MIN_ROW = 512

#: The least rows of a tile where a reduction spans several tiles.
MIN_ROWS = 8


class Tiling:
    """A domain, cut into tiles.

    Parameters
    ----------
    sizes : sequence of int
        The sizes of the axes, the outermost in memory first.
    reduced : sequence of int
        The axes that are reduced.
    elements : int
        The target size of a tile in elements.
    whole : bool
        Whether reduced axes must not be cut.

    Attributes
    ----------
    tile_sizes : list of int
        The size of a tile along each axis.
    cut_axes : set of int
        The axes that are cut.
    """

    def __init__(self, sizes: Sequence[int], reduced: Sequence[int], elements: int, whole: bool) -> None:
        self.sizes, self.reduced = tuple(sizes), tuple(reduced)
        largest = _tile_sizes(sizes, self.reduced, max(1, elements), whole)
        # Of equal sizes: a last tile of a few elements would cost as many calls as the others.
        counts = [-(-size // tile) for size, tile in zip(sizes, largest, strict=True)]
        self.tile_sizes = [-(-size // count) for size, count in zip(sizes, counts, strict=True)]
        self.cut_axes = {axis for axis, size in enumerate(sizes) if self.tile_sizes[axis] < size}

    @property
    def domain(self) -> Tile:
        """The whole domain, as one tile."""
        return tuple(slice(0, size) for size in self.sizes)

    @property
    def cuts_reduced(self) -> bool:
        """Whether a reduction spans several tiles."""
        return not self.cut_axes.isdisjoint(self.reduced)

    @property
    def count(self) -> int:
        """The number of elements that are reduced to one."""
        return prod(self.sizes[axis] for axis in self.reduced)

    @property
    def largest(self) -> int:
        """The elements of the largest tile."""
        return prod(self.tile_sizes)

    def tiles(self) -> list[Tile]:
        """All tiles, in order."""
        ranges = [
            [slice(start, min(start + tile, size)) for start in range(0, size, tile)]
            for size, tile in zip(self.sizes, self.tile_sizes, strict=True)
        ]
        return list(product(*ranges))

    @staticmethod
    def shape(tile: Tile) -> tuple[int, ...]:
        """The shape of a tile."""
        return tuple([part.stop - part.start for part in tile])

    def cut(self, array: np.ndarray, tile: Tile) -> np.ndarray:
        """The part of an array in a tile, whole along axes of size 1."""
        if not self.cut_axes:
            return array
        if array.shape == self.sizes:
            return array[tile]
        return array[tuple([part if size != 1 else slice(None) for part, size in zip(tile, array.shape, strict=True)])]

    @property
    def parts(self) -> tuple[int, ...]:
        """The shape of the partial results of all tiles: along a reduced axis, one for each tile."""
        return tuple(
            -(-size // tile) if axis in self.reduced else size
            for axis, (size, tile) in enumerate(zip(self.sizes, self.tile_sizes, strict=True))
        )

    def part(self, tile: Tile) -> Tile:
        """The indices of a tile's partial results."""
        return tuple(
            slice(part.start // size, part.start // size + 1) if axis in self.reduced else part
            for axis, (part, size) in enumerate(zip(tile, self.tile_sizes, strict=True))
        )


def _tile_sizes(sizes: Sequence[int], reduced: Sequence[int], elements: int, whole: bool) -> list[int]:
    """The maximum size of a tile along each axis.

    Reduced axes are whole if they must not be cut, or fit in a tile with rows that
    are long enough. Otherwise tiles have contiguous elements first, in at least
    `MIN_ROWS` rows.
    """
    tile = [1] * len(sizes)
    inner = len(sizes)  # the first of the innermost axes that are not reduced
    while inner and inner - 1 not in reduced:
        inner -= 1
    row = min(MIN_ROW, elements, prod(sizes[inner:]))
    together = prod(sizes[axis] for axis in reduced)
    if whole or together * row <= elements:
        for axis in reduced:
            tile[axis] = sizes[axis]
        outer = [axis for axis in range(len(sizes)) if axis not in reduced]
        _extend(tile, sizes, outer, max(elements // together, row))
    else:
        rows = min(MIN_ROWS, elements) if inner < len(sizes) else 1
        _extend(tile, sizes, range(inner, len(sizes)), elements // rows)
        _extend(tile, sizes, range(inner), elements // prod(tile[inner:]))
    return tile


def _extend(tile: list[int], sizes: Sequence[int], axes: Sequence[int], elements: int) -> None:
    """Extend a tile along axes, the innermost first, up to a number of elements."""
    for axis in reversed(axes):
        tile[axis] = min(sizes[axis], max(1, elements))
        elements //= tile[axis]
