"""What runs collective operations: the interface, and the engine of a process alone."""

from __future__ import annotations

from typing import Any

import numpy as np


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

    def agree(self, words: str) -> None:
        """Raise DistributedError on every rank unless all of them say the same."""

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
