"""Threads that run at once, and take turns often."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any


def in_threads(work: Callable[[int], Any], count: int) -> list[Any]:
    """The values of `work` at 0 to `count` - 1, called by as many threads at once; an error of one is raised."""
    begin = Barrier(count, timeout=60)

    def run(number: int) -> Any:
        begin.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@contextmanager
def switching_often() -> Iterator[None]:
    """A block in which threads take turns at every few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
