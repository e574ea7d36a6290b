"""Locks that are free in a forked child, where the threads that held them are not."""

from __future__ import annotations

import os
from threading import Lock
from weakref import WeakSet


class Locked:
    """What has a lock, to be taken by ``with x.lock:``.

    Attributes
    ----------
    lock : threading.Lock
    """

    def __init__(self) -> None:
        self.lock = Lock()
        _living.add(self)


_living: WeakSet[Locked] = WeakSet()


def _renew() -> None:
    for each in _living:
        each.lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
