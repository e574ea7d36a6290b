"""Modules that are loaded when something of them is first asked for: what few programs need, none waits for."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Later:
    """A module that may not be loaded yet."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


def later(name: str) -> Any:
    """A module, to stand at the top of a file as its import would."""
    return _Later(name)
