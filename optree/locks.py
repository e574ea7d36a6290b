"""Locks that are free in a forked child, where the threads that held them do not exist."""

from __future__ import annotations

import functools
import os
from threading import RLock
from typing import Any, TypeVar
from weakref import WeakSet

_Value = TypeVar("_Value")


class Locked:
    """Base of objects with a lock, taken by ``with x.lock:``.

    Attributes
    ----------
    lock : threading.RLock
        Its `_is_owned` tells whether this thread holds it, and so detects reentry.
    """

    lock: Any

    def __init__(self) -> None:
        self.lock = RLock()
        _living.add(self)


class cached_property(functools.cached_property[_Value]):
    """`functools.cached_property` without a lock.

    Python 3.11's holds one lock for all objects while it computes: a child forked
    meanwhile would deadlock. Here two threads may both compute, and the first value stays.
    """

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        value = instance.__dict__.get(self.attrname, self)
        return instance.__dict__.setdefault(self.attrname, self.func(instance)) if value is self else value


_living: WeakSet[Locked] = WeakSet()


def _renew() -> None:
    for each in _living:
        each.lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
