"""Kernels run by NumPy in blocks, however small they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from backends import gen_backend
from backends.cpu.backend import BLOCKS
from optree.settings import override


def small(block_bytes: int = 64, num_threads: int = 1) -> AbstractContextManager[None]:
    """Settings with which kernels run in blocks of an element or a few."""
    return override(block_bytes=block_bytes, num_threads=num_threads)


@contextmanager
def in_blocks(block_bytes: int = 64, num_threads: int = 1, **given: Any) -> Iterator[Any]:
    """A backend that runs all it can in blocks of `block_bytes`, by default of an element or a few."""
    with small(block_bytes, num_threads):
        backend = gen_backend("cpu", jit=False, **given)
        backend.when = BLOCKS._replace(small=0)
        yield backend
