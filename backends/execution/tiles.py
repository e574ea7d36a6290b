"""Tiles of attention on a backend: products by its library, and each elementwise step as a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from optree.networks.attention import Step, Tiles
from optree.run.updates import assignments
from optree.tree.types import TensorType


class BackendTiles(Tiles):
    """Tiles that a backend computes.

    `backend`: a `Backend`.
    `share`: shares tasks among threads.
    """

    def __init__(self, backend: Any, share: Callable[[Sequence[Any], Any], None] | None = None) -> None:
        self._backend, self.product = backend, backend.product
        if share is not None:
            self.share = share  # type: ignore[method-assign, assignment]

    def update(self, step: Step, *arrays: Any) -> None:
        key = (step.function, *[(x.dtype, x.ndim) for x in arrays])
        self._backend.within(key, lambda: self._step(step, arrays)).run(arrays)

    def _step(self, step: Step, arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Leaves for arrays, and a step's assignments to some of them."""
        types = [
            TensorType(x.dtype, (None,) * (x.ndim - 1) + (1 if i in step.columns else None,))
            for i, x in enumerate(arrays)
        ]
        leaves = [self._backend.target(each) if i in step.writes else each() for i, each in enumerate(types)]
        values = step.function(*leaves)
        return leaves, assignments(list(zip([leaves[i] for i in step.writes], values, strict=True)))
