"""The workspace of a function's library calls on a GPU: scratch memory, and plans of Fourier transforms that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from backends.gpu.cublaslt import WORKSPACE
from optree.cache import Cache

#: Maximum entries of a cache of plans of Fourier transforms.
PLANS = 128


class Workspace:
    """The workspace of a function's library calls, shared by all of its graphs, because calls run in order.

    If a product needs more, it grows to at least twice the size; earlier captures hold the old one.

    `empty`: from a size and a dtype to a new array.
    """

    def __init__(self, empty: Callable[[int, Any], Any]) -> None:
        self._empty = empty
        self._memories: list[Any] = []
        #: cuFFT's plans, which have it for their work area, and what a capture's plans are added to.
        self.plans = Cache("plans of transforms", PLANS)
        self.held: list[Any] | None = None

    def of(self, size: int) -> Any:
        """An array of at least a size in bytes."""
        held = self._memories[-1].nbytes if self._memories else 0
        if size > held:
            self._memories.append(self._empty(max(size, min(2 * held, WORKSPACE)), np.uint8))
        return self._memories[-1]

    @contextmanager
    def shared(self, held: list[Any] | None = None) -> Iterator[None]:
        """A block in which this thread's library calls use this workspace; `held` as for a capture."""
        token, self.held = _shared.set(self), held
        try:
            yield
        finally:
            _shared.reset(token)


_shared: ContextVar[Workspace | None] = ContextVar("_shared", default=None)


def shared_workspace() -> Workspace | None:
    """The workspace of the function that this thread runs; None outside of functions."""
    return _shared.get()
