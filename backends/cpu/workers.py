"""Work sharing of compiled kernels among threads, in C.

The calling thread works too, and steals ranges that others have not started, so
it does not wait for threads that sleep or are descheduled. OpenMP's regions wait
for all of their threads: on a busy machine, a kernel of 0.1 milliseconds took 8.

To wake a thread takes tens of microseconds, and one that spins where its caller
needs the processor takes as long as it spins: so threads yield while they spin,
a job that may be short (`share_short`) wakes none before it has measured how long
the rest takes, and one that is known to be (`share_known_short`) none before such
jobs follow one another. Threads that spin join both at once. And they run on other
processors than their caller: Linux's scheduler often wakes them on its own, where
they wait for the end of its time slice.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, Literal

from backends.cpu.compiler import c_text, compile_source
from optree.settings import MAX_THREADS

#: What is known of a job's time, beside that to wake a thread.
Length = Literal["long", "unknown", "short"]

_NAMES: dict[Length, str] = {"long": "share", "unknown": "share_short", "short": "share_known_short"}


def source() -> str:
    """The C source."""
    return c_text(Path(__file__).with_suffix(".c"), {"MOST": MAX_THREADS})


@cache
def _functions() -> dict[Length, Any]:
    """The work-sharing functions of one library, never freed, as its threads run in it."""
    return {length: compile_source(source(), name) for length, name in _NAMES.items()}


@cache
def share_address(length: Length = "long") -> int:
    """The address of the work-sharing function, an argument of kernels; that of jobs not known to be long wakes few."""
    return ctypes.cast(_functions()[length], ctypes.c_void_p).value or 0
