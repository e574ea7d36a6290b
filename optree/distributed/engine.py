"""Engines of collective operations: the interface, implemented for a single process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from optree.arrays import Array
from optree.dtypes import is_narrow, rounded


class Engine:
    """The collective operations on arrays. Values are new arrays; a value that all ranks receive is bitwise equal.

    This class is the engine of a single process. The others are in `optree.distributed.mpi` and
    `optree.distributed.nccl`.

    `rank`, `size`: int.
    `name`: str.
    `timeout`: the seconds that a rank waits for others before it raises an error.
    """

    name = "alone"
    rank = 0
    size = 1
    timeout = 45.0
    #: Whether operations started by `begin` overlap with other work.
    overlaps = False

    def agree(self, words: str) -> None:
        """Raise DistributedError on every rank unless all ranks pass the same words."""

    def begin(self, method: str, x: Array, *args: Any, out: Array | None = None) -> tuple[Any, Callable[[], None]]:
        """Begin `all_reduce`, `all_gather` or `reduce_scatter`. Operations run in the order in which they begin.

        `*args`: the other arguments of the method.
        `out` (array, optional): a contiguous array of the value's shape and the operand's dtype.

        Returns
        -------
        array
            The array that will hold the value: `out` if that is given.
        callable
            Waits for the end of the operation, and raises its error. The operand must not change before.
        """
        found = getattr(self, method)(x, *args)
        if out is not None:
            out[...] = found
        return found if out is None else out, lambda: None

    def all_reduce(self, x: Array, kind: str) -> Any:
        """The sum, mean, max or min of all ranks' arrays."""
        return x.copy()

    def all_gather(self, x: Array) -> Any:
        """The arrays of all ranks, stacked along a new first axis."""
        return x[None].copy()

    def reduce_scatter(self, parts: Array) -> Any:
        """The sum over all ranks of their parts for this rank; the first axis has a part for each rank."""
        return parts[0].copy()

    def broadcast(self, x: Array, root: int) -> Any:
        """The array of one rank."""
        return x.copy()

    def reduce(self, x: Array, root: int) -> Any:
        """The sum of all ranks' arrays on one rank, zeros on the others."""
        return x.copy()

    def all_to_all(self, parts: Array) -> Any:
        """The parts of all ranks for this rank, stacked."""
        return parts.copy()

    def exchange(self, x: Array, to: int | None, source: int | None) -> Any:
        """Send the array to the rank `to`; returns the array of the rank `source`, or zeros if that is None."""
        return np.zeros_like(x) if source is None else x.copy()

    def split(self, color: int) -> Engine:
        """The engine of the ranks that give the same color."""
        return self


def spec_of(x: Array) -> str:
    """The dtype and shape of an array as text, for the comparison of operations between ranks."""
    return f"{x.dtype} {x.shape}"


def exchange_of(x: Array, to: int | None, source: int | None) -> str:
    """The description of an exchange, for errors."""
    ends = [f"to rank {to}"] * (to is not None) + [f"from rank {source}"] * (source is not None)
    return f"send or recv of {spec_of(x)} {' and '.join(ends)}"


def as_bytes(x: Array) -> Any:
    """An array's elements as a vector of bytes, which engines send for any dtype."""
    return contiguous(x).reshape(-1).view(np.uint8)


def contiguous(x: Array) -> Any:
    """An array, or a copy of it, in C order."""
    return x if x.flags.c_contiguous else x.copy(order="C")


def wide(x: Array) -> Any:
    """A contiguous array of a dtype that engines reduce: float32 for half precision, bytes for bools."""
    if is_narrow(x.dtype):
        return contiguous(x.astype(np.float32))
    return contiguous(x).view(np.uint8) if x.dtype.kind == "b" else contiguous(x)


def narrowed(made: Array, x: Array) -> Any:
    """A reduction's result in the dtype of the operand."""
    if made.dtype == x.dtype:
        return made
    return made.view(x.dtype) if x.dtype.kind == "b" else rounded(made, x.dtype)
