"""Locks that are free in a forked child, where the threads that held them are not."""

from __future__ import annotations

import os
from threading import RLock
from typing import Any
from weakref import WeakSet


class Locked:
    """What has a lock, to be taken by ``with x.lock:``.

    Attributes
    ----------
    lock : threading.RLock
        Its `_is_owned` tells whether this thread has it, and so whether an op has called what it is a part of.
    """

    lock: Any

    def __init__(self) -> None:
        self.lock = RLock()
        _living.add(self)


_living: WeakSet[Locked] = WeakSet()


def _renew() -> None:
    for each in _living:
        each.lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
