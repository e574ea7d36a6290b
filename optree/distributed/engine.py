"""Engines of collective operations: the interface, and the engine of a single process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from optree.dtypes import is_narrow, rounded


class Engine:
    """The operations on this rank's arrays; values are new arrays, the same bits on all ranks where they are one value.

    The engine of a process alone is this class; `optree.distributed.mpi` and `optree.distributed.nccl` have others.

    Attributes
    ----------
    rank, size : int
    name : str
    timeout : float
        The seconds after which a rank that waits for others raises.
    """

    name = "alone"
    rank = 0
    size = 1
    timeout = 45.0
    #: Whether operations that `begin` starts run beside others.
    overlaps = False

    def agree(self, words: str) -> None:
        """Raise DistributedError on every rank unless all of them say the same."""

    def begin(self, method: str, x: Any, *args: Any, out: Any = None) -> tuple[Any, Callable[[], None]]:
        """Begin `all_reduce`, `all_gather` or `reduce_scatter`, which runs after those that have begun before.

        Parameters
        ----------
        method : str
        x : array
        *args
            What the method takes beside that.
        out : array, optional
            Contiguous, of the value's shape and the operand's dtype.

        Returns
        -------
        array
            In which the value will be: `out`, if that is given.
        callable
            It waits until the value is there, and raises what the operation does. The operand must not change before.
        """
        found = getattr(self, method)(x, *args)
        if out is not None:
            out[...] = found
        return found if out is None else out, lambda: None

    def all_reduce(self, x: Any, kind: str) -> Any:
        """The sum, mean, max or min of all ranks' arrays."""
        return x.copy()

    def all_gather(self, x: Any) -> Any:
        """All ranks' arrays, stacked."""
        return x[None].copy()

    def reduce_scatter(self, parts: Any) -> Any:
        """The sum of all ranks' parts for this one; the first axis has one for each rank."""
        return parts[0].copy()

    def broadcast(self, x: Any, root: int) -> Any:
        """The array of one rank."""
        return x.copy()

    def reduce(self, x: Any, root: int) -> Any:
        """The sum of all ranks' arrays on one rank, zeros on the others."""
        return x.copy()

    def all_to_all(self, parts: Any) -> Any:
        """The parts that all ranks have for this one."""
        return parts.copy()

    def exchange(self, x: Any, to: int | None, source: int | None) -> Any:
        """The array of the rank `source`, or zeros; this rank's is sent to the rank `to`."""
        return np.zeros_like(x) if source is None else x.copy()

    def split(self, color: int) -> Engine:
        """The engine of the ranks that give the same color."""
        return self


def spec_of(x: Any) -> str:
    """An array's dtype and shape, by which ranks compare what they are about to do."""
    return f"{x.dtype} {x.shape}"


def exchange_of(x: Any, to: int | None, source: int | None) -> str:
    """An exchange in words, for errors."""
    ends = [f"to rank {to}"] * (to is not None) + [f"from rank {source}"] * (source is not None)
    return f"send or recv of {spec_of(x)} {' and '.join(ends)}"


def as_bytes(x: Any) -> Any:
    """An array's elements as one vector of bytes, which engines move whatever the dtype is."""
    return contiguous(x).reshape(-1).view(np.uint8)


def contiguous(x: Any) -> Any:
    """An array, or a copy of it, in C order."""
    return x if x.flags.c_contiguous else x.copy(order="C")


def wide(x: Any) -> Any:
    """A contiguous array of a dtype that engines reduce: of halves, in float32; of bools, as bytes."""
    if is_narrow(x.dtype):
        return contiguous(x.astype(np.float32))
    return contiguous(x).view(np.uint8) if x.dtype.kind == "b" else contiguous(x)


def narrowed(made: Any, x: Any) -> Any:
    """A reduction's result in the dtype of the operand."""
    if made.dtype == x.dtype:
        return made
    return made.view(x.dtype) if x.dtype.kind == "b" else rounded(made, x.dtype)
