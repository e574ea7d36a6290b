"""The counter of an optimizer's steps."""

from __future__ import annotations

from typing import Any

from optree.errors import OperandError
from optree.tree.tensor import Tensor


class StepCounter(Tensor):
    """An optimizer's count of steps: no method that takes one, as torch's ``opt.step()``."""

    __slots__ = ()

    def __call__(self, *args: Any, **options: Any) -> Any:
        raise OperandError(
            "opt.step is the number of steps taken, and no method; step = optree.function([x, y], loss, "
            "updates=opt.updates(loss)) makes a function that takes one: step(x, y)"
        )
