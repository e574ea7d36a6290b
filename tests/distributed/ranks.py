"""The register of checks on several processes, and arrays of one rank that every rank can make."""

from __future__ import annotations

from typing import Any

import numpy as np

from optree.distributed import Group

CHECKS: dict[str, Any] = {}


def check(function: Any) -> Any:
    CHECKS[function.__name__] = function
    return function


def values(rank: int, shape: Any = (4, 3), dtype: str = "float64") -> np.ndarray:
    """The array of one rank; any other can make it too."""
    rng = np.random.default_rng(rank)
    found = rng.normal(size=shape) * 5
    if dtype[0] == "c":
        return (found + 1j * rng.normal(size=shape)).astype(dtype)
    return (found > 0) if dtype == "bool" else np.abs(found).astype(dtype) if dtype[0] == "u" else found.astype(dtype)


def every(group: Group, shape: Any = (4, 3), dtype: str = "float64") -> np.ndarray:
    return np.stack([values(rank, shape, dtype) for rank in range(group.size)])


def tensor(group: Group, shape: Any = (4, 3), dtype: str = "float64") -> Any:
    return group.backend.array(values(group.rank, shape, dtype), dtype=dtype, name="x")


def is_brief(group: Group) -> bool:
    """Whether a check makes one case of its options: they do not depend on the ranks, and three processes make all."""
    return group.engine.name != "mpi" or group.size != 3


def got(tree: Any) -> np.ndarray:
    return tree.astensor().get()
