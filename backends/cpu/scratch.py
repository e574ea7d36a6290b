"""Scratch memory of compiled functions."""

from __future__ import annotations

import numpy as np

from backends.execution.memory import HOST, LINE


class _Buffer:
    """Memory that is free again after a `with` statement."""

    def __init__(self, free: list[_Buffer], size: int) -> None:
        self._free, self.size = free, size
        self._memory = np.empty(size + LINE, np.uint8)
        start = HOST.address(self._memory)
        self._address = start + -start % LINE

    def __enter__(self) -> int:
        return self._address

    def __exit__(self, *error: object) -> None:
        self._free.append(self)


class Scratch:
    """Scratch memory, used again by later calls; several threads may call at once."""

    def __init__(self) -> None:
        self._free: list[_Buffer] = []

    def of(self, size: int) -> _Buffer:
        """A context with the address of a number of bytes, aligned to a cache line."""
        try:
            buffer = self._free.pop()
        except IndexError:
            return _Buffer(self._free, size)
        return buffer if buffer.size >= size else _Buffer(self._free, size)
