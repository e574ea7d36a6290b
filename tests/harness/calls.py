"""The Python functions that a call enters, by which small calls are measured where clocks would not agree."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


def calls_of(run: Callable[[], Any]) -> list[str]:
    """The names of the Python functions that run, without the first.

    The garbage collector runs before and not meanwhile: it would enter the weak references' callbacks of what other
    tests have left in reference cycles, and lazy values among these count as living until then.
    """
    found: list[str] = []
    gc.collect()
    gc.disable()
    sys.setprofile(lambda frame, event, _: found.append(frame.f_code.co_name) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found[1:]
