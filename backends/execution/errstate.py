"""Calls with NumPy's floating-point warnings off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

import numpy as np


class _Quiet(threading.local):
    """A context of each thread with the warnings off, entered in a tenth of np.errstate's time."""

    def __init__(self) -> None:
        self.context = copy_context()
        self.context.run(np.seterr, all="ignore")
        self.context.run(_is_quiet.set, True)


_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)
_quiet = _Quiet()


def quietly(run: Callable[..., Any], *args: Any) -> Any:
    """Call a function with NumPy's floating-point warnings off; calls may be nested."""
    return run(*args) if _is_quiet.get() else _quiet.context.run(run, *args)
