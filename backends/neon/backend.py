"""NeonBackend, neon's surface over a backend of ours, and the class attribute that its front end reads it by."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from backends.neon.measures import Measures


class NeonBackend(Measures):
    """A backend in neon's mode, with all of the methods of neon's backends.

    neon's CPU and GPU backends differ in places. This is one rule for both, on every device.
    """


class NervanaObject:
    """Base of objects that use the current backend, the last one that `gen_backend` made, as ``self.be``."""

    be: ClassVar[Any] = None


class Block:
    """The phases of training, by neon's numbers."""

    epoch = 0
    minibatch = 1
    fprop = 2
    bprop = 3
    update = 4


@cache
def neon_class(base: type[Any]) -> type[Any]:
    """A backend's class in neon's mode."""
    return type(base.__name__, (NeonBackend, base), {"__doc__": base.__doc__, "__module__": base.__module__})
