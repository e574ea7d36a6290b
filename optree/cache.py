"""Bounded caches, each with a name and statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

_caches: dict[str, WeakSet[Cache]] = {}


class Cache(dict[Any, Any]):
    """A dict of at most `size` entries; a new one evicts the oldest.

    Look-ups are those of dict. Threads may read and write concurrently: an entry that
    another thread has just evicted is computed again.

    `name`: for `cache_stats`, which counts caches of one name together.
    `size`: the maximum number of entries.
    `dropped`: called with the value of each evicted entry.
    """

    __slots__ = ("__weakref__", "dropped", "size")

    def __init__(self, name: str, size: int, dropped: Callable[[Any], None] | None = None) -> None:
        super().__init__()
        self.size, self.dropped = size, dropped
        _caches.setdefault(name, WeakSet()).add(self)

    def __setitem__(self, key: object, value: object) -> None:
        while len(self) >= self.size and key not in self:
            try:
                gone = self.pop(next(iter(self)), None)
            except (RuntimeError, StopIteration):  # another thread has changed it meanwhile
                continue
            if gone is not None and self.dropped is not None:
                self.dropped(gone)
        super().__setitem__(key, value)

    __hash__ = object.__hash__  # type: ignore[assignment]  # by identity, for the set of caches
    __eq__ = object.__eq__


def cache_stats() -> dict[str, tuple[int, int]]:
    """For each name, the entries in its caches now, and their bound."""
    found = {name: _living(caches) for name, caches in list(_caches.items())}
    return {name: (sum(map(len, c)), sum(x.size for x in c)) for name, c in sorted(found.items()) if c}


def _living(caches: WeakSet[Cache]) -> list[Cache]:
    while True:
        try:
            return list(caches)
        except RuntimeError:  # another thread has made one meanwhile
            continue
