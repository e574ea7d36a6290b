"""Tiles of attention on a backend: products by its library, and each elementwise step as a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from optree.ops.attention import Step, Tiles
from optree.tree.types import TensorType


class BackendTiles(Tiles):
    """Tiles that a backend computes.

    Parameters
    ----------
    backend : Backend
    product : callable
        Multiplies stacks of matrices.
    share : callable, optional
        Shares tasks among threads.
    """

    def __init__(
        self, backend: Any, product: Callable[..., Any], share: Callable[[Sequence[Any], Any], None] | None = None
    ) -> None:
        self._backend = backend
        self.multiply = product  # type: ignore[method-assign]
        if share is not None:
            self.share = share  # type: ignore[method-assign, assignment]

        #: The steps that have run, by what else is compiled into them.
        self._known: dict[Any, Callable[[Sequence[Any]], None]] = {}

    def update(self, step: Step, *arrays: Any) -> None:
        key = (step.function, *[(x.dtype, x.ndim) for x in arrays])
        run = self._known.get(key)
        if run is None:
            run = self._known[key] = self._compiled(step, arrays)
        run(arrays)

    def _compiled(self, step: Step, arrays: Sequence[Any]) -> Callable[[Sequence[Any]], None]:
        types = [
            TensorType(x.dtype, (None,) * (x.ndim - 1) + (1 if i in step.columns else None,))
            for i, x in enumerate(arrays)
        ]

        def build(*tensors: Any) -> list[tuple[Any, Any]]:
            return list(zip([tensors[i] for i in step.writes], step.function(*tensors), strict=True))

        return self._backend.updates_within(step, build, types)  # type: ignore[no-any-return]
