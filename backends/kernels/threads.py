"""How many threads a kernel may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from optree import settings

_pool = {"used": False, "lost": False}


def thread_count() -> int:
    """How many threads a kernel may use: 1 in a child that was forked after kernels had been loaded.

    The threads of the parent's OpenMP pool are not in the child, and GNU's
    OpenMP would wait for them for ever; a region of one thread needs no pool.
    """
    if _pool["lost"]:
        return 1
    return settings.value("num_threads") or _usual_count()


@contextmanager
def sleeping_waits() -> Iterator[None]:
    """Within it, a library that brings OpenMP brings one whose threads sleep while they wait, unless asked otherwise.

    Threads that spin use up their share of a processor, and where another process
    wants one too, they keep those that have work from it: measured, a kernel of
    0.1 milliseconds took 8. OpenMP reads the variable once, when it is loaded.
    """
    chosen = {name for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME") if name in os.environ}
    if chosen:
        yield
        return
    os.environ["OMP_WAIT_POLICY"] = "passive"
    try:
        yield
    finally:
        os.environ.pop("OMP_WAIT_POLICY", None)


def pool_used() -> None:
    """To be called before anything that may start OpenMP's threads can run."""
    _pool["used"] = True


@cache
def _usual_count() -> int:
    """OMP_NUM_THREADS, of which the first number counts, or the processors that this process may run on."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdecimal() and int(first) > 0:
        return int(first)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _after_fork() -> None:
    _pool["lost"] = _pool["used"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
