"""NervanaObject and Block, what neon's front end is made of."""

from __future__ import annotations

from typing import Any, ClassVar


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
