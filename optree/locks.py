"""Fork-safe locks and lazy imports: a forked child has a free lock and no import in progress."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from threading import Condition, RLock, get_ident
from typing import Any, TypeVar
from weakref import WeakSet

_Value = TypeVar("_Value")


class Locked:
    """Base of objects with a lock, taken by ``with x.lock:``."""

    #: Its `_is_owned` tells whether this thread holds it, and so detects reentry.
    lock: Any

    def __init__(self) -> None:
        self.lock = RLock()
        _living.add(self)


class cached_property(functools.cached_property[_Value]):
    """`functools.cached_property` without a lock.

    Python 3.11's holds one lock for all objects while it computes: a child forked
    meanwhile would deadlock. Here two threads may both compute, and the first value stays.
    """

    def __get__(self, instance: Any, owner: object = None) -> Any:
        if instance is None:
            return self
        value = instance.__dict__.get(self.attrname, self)
        return instance.__dict__.setdefault(self.attrname, self.func(instance)) if value is self else value


#: Seconds that a fork waits for the lazy imports of other threads, one of which may wait for the thread that forks.
PATIENCE = 10.0

_living: WeakSet[Locked] = WeakSet()

#: Threads with lazy imports in progress, and how many each has. It is held throughout a fork.
_importing: Counter[int] = Counter()
_imported = Condition()


def import_later(name: str) -> Any:
    """Import a module lazily, safe against forks.

    A fork waits for the end of the import. Otherwise the child would have a module lock
    that none of its threads releases, and hang at the next import.
    """
    thread = get_ident()
    with _imported:
        _importing[thread] += 1
    try:
        return import_module(name)
    finally:
        with _imported:
            _importing[thread] -= 1
            if not _importing[thread]:
                del _importing[thread]
            _imported.notify_all()


def modules_of(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose modules are imported lazily."""

    def found(name: str) -> Any:
        try:
            return import_later(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{name}":
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None

    return found


def _before_fork() -> None:
    _imported.acquire()
    _imported.wait_for(lambda: not _importing.keys() - {get_ident()}, PATIENCE)


def _in_child() -> None:
    global _imported
    _imported = Condition()
    for thread in _importing.keys() - {get_ident()}:
        del _importing[thread]
    for each in _living:
        each.lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=lambda: _imported.release(), after_in_child=_in_child)
