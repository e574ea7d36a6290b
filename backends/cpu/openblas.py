"""NumPy's OpenBLAS in one thread, where tasks that multiply are shared among threads of the process's own.

Its threads wait for each other by spinning: with two callers, or on a busy machine,
products of small matrices take many times as long as in one thread.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from backends.execution.thread_pool import share
from optree.records import NamedTuple


class _Threads(NamedTuple):
    """The library's functions that give and set the number of its threads."""

    get: Callable[[], int]
    set: Callable[[int], None]


@cache
def threads() -> _Threads | None:
    """The thread controls of the OpenBLAS in NumPy's wheel; None where NumPy has another BLAS."""
    for path in sorted((Path(np.__file__).parent.parent / "numpy.libs").glob("libscipy_openblas*")):
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(path))
            suffix = "64_" if "openblas64" in path.name else ""
            found = (getattr(library, f"scipy_openblas_{verb}_num_threads{suffix}") for verb in ("get", "set"))
            return _Threads(*found)
    return None


class _Callers:
    """The number of callers within `one_thread`, and the number of threads before the first of them."""

    def __init__(self) -> None:
        self.count = self.before = 0
        self.lock = Lock()


_callers = _Callers()


def _begin_in_child() -> None:
    """Leave `one_thread` in a fork's child: the threads that were within it are not there, and a lock may be held."""
    found = threads() if _callers.count else None
    if found is not None:
        found.set(_callers.before)
    _callers.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it, OpenBLAS multiplies in the thread that calls it."""
    found = threads()
    if found is None:
        yield
        return
    with _callers.lock:
        _callers.count += 1
        if _callers.count == 1:
            _callers.before = found.get()
            found.set(1)
    try:
        yield
    finally:
        with _callers.lock:
            _callers.count -= 1
            if not _callers.count:
                found.set(_callers.before)


def share_products(tasks: Sequence[Any], worker: Callable[[], Callable[[Any], None]]) -> None:
    """Run tasks that multiply matrices, as `share` does."""
    with one_thread():
        share(tasks, worker)
