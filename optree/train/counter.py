"""The step counter of optimizers, their numbers, and the check of schedules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from optree.errors import OperandError, ParameterError, brief
from optree.tree.tensor import Tensor
from optree.tree.variable import Operand

#: A number of an optimizer: a Python number, a tree of one element, or a function of the step.
Number = Operand | Callable[[Any], Any]

#: Tensors, or groups of them: dicts of "weights" and numbers.
Weights = Sequence[Any]


class StepCounter(Tensor):
    """The number of steps that an optimizer has taken; calling it, as torch's ``opt.step()``, is an error."""

    __slots__ = ()

    def __call__(self, *args: Any, **options: Any) -> Any:
        raise OperandError(
            "opt.step is the number of steps taken, and no method; step = optree.function([x, y], loss, "
            "updates=opt.updates(loss)) makes a function that takes one: step(x, y)"
        )


def check_schedule(what: str, schedule: Any) -> None:
    """Raise ParameterError unless a function takes the step alone; ``schedules.cosine`` itself does not."""
    try:
        signature = inspect.signature(schedule)
    except (TypeError, ValueError):  # of a function in C
        return
    try:
        signature.bind(0)
    except TypeError as error:
        raise ParameterError(
            f"{what} is a function of the step alone, and {brief(schedule)} takes {signature} ({error}); "
            "optree.train.schedules.cosine(0.1, 1000) is such a function"
        ) from None
