"""NervanaObject and Block, what neon's front end is made of, and the current backend as they see it."""

from __future__ import annotations

from typing import Any
from weakref import ref


class WeakBackend:
    """A class attribute that is a backend while that is alive, and None then."""

    def __init__(self, backend: Any) -> None:
        self.backend = ref(backend)

    def __get__(self, instance: object, owner: object = None) -> Any:
        return self.backend()


class NervanaObject:
    """Base of objects that use the current backend, the last one that `gen_backend` made, as ``self.be``."""

    be: Any = None


def make_current(backend: Any) -> None:
    """Set the backend of `NervanaObject`; one in neon's mode is kept alive, as programs may reach it there alone."""
    NervanaObject.be = backend if backend.is_neon else WeakBackend(backend)


class Block:
    """The phases of training, by neon's numbers."""

    epoch = 0
    minibatch = 1
    fprop = 2
    bprop = 3
    update = 4
