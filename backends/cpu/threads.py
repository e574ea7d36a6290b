"""How many threads a kernel may use."""

from __future__ import annotations

import os
from functools import cache

from optree import settings

#: The most threads that a kernel uses: each may have memory of its own.
MOST = 256


def thread_count() -> int:
    """How many threads a kernel may use."""
    return min(settings.value("num_threads") or _usual_count(), MOST)


@cache
def _usual_count() -> int:
    """OMP_NUM_THREADS, of which the first number counts, or the processors that this process may run on."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdecimal() and int(first) > 0:
        return int(first)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
