"""The work for which a library's C function is compiled."""

from __future__ import annotations

from typing import Any


class Work:
    """The work of one op so far, by NumPy: when it pays to compile a C function for it.

    Calls and sizes alone decide, so that it is the same in every run.

    Parameters
    ----------
    backend : CPUBackend
    large : int
        The work of a call that pays by itself.
    in_all : int
        The work of all calls that pays.
    least : int
        What a call counts at least.
    """

    def __init__(self, backend: Any, large: int, in_all: int, least: int) -> None:
        self._backend, self._large, self._in_all, self._least = backend, large, in_all, least
        self._done = 0

    def pays(self, work: int) -> bool:
        """Whether a call of this work is for compiled C."""
        if self.pays_alone(work) or self._done >= self._in_all:
            return True
        self._done += max(work, self._least)
        return False

    def pays_alone(self, work: int) -> bool:
        """Whether a call of this work is for compiled C whatever was done before."""
        return bool(self._backend.compiles_at_once or work >= self._large)
