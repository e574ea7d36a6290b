"""NeonBackend, neon's surface over a backend of ours."""

from __future__ import annotations

from functools import cache
from typing import Any

from backends.neon.convolution import Convolutions


class NeonBackend(Convolutions):
    """A backend in neon's mode, with all of the methods of neon's backends."""


@cache
def neon_class(base: type[Any]) -> type[Any]:
    """A backend's class in neon's mode."""
    return type(base.__name__, (NeonBackend, base), {"__doc__": base.__doc__, "__module__": base.__module__})
