"""Peak memory of a call."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any


def allocated(call: Callable[[], Any], before: int = 4) -> int:
    """The most bytes that a call holds beyond those that there are after some calls before, NumPy's among them."""
    tracemalloc.start()
    try:
        for _ in range(before):
            call()
        tracemalloc.reset_peak()
        there, _ = tracemalloc.get_traced_memory()
        call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - there
