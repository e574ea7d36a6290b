"""The limit of the memory of the tests' processes, so that a fault is a MemoryError in one test.

It is RLIMIT_DATA, memory that a process can write to. The limit of all addresses,
RLIMIT_AS, would count those that simulated devices reserve: a terabyte each.
"""

from __future__ import annotations

import os
import sys

if sys.platform == "linux":
    import resource

#: In GiB; and for each processor, whose threads have stacks and packed matrices of their own.
DEFAULT = 4 + (os.cpu_count() or 1) / 16


def limit_memory(size: float) -> None:
    """Limit the memory of this process, and of each that it starts, to a number of GiB."""
    if sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = int(size * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if most < 0 else min(wanted, most), most))


def without_limit(*command: str) -> list[str]:
    """A command that runs another without the limit: a sanitizer's own memory is terabytes of addresses."""
    return ["sh", "-c", 'ulimit -S -d $(ulimit -H -d); exec "$@"', "sh", *command]
