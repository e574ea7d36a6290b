"""The arrays of a loop's steps: what each reads, and what it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from optree.records import NamedTuple
from optree.tree.types import Shape

#: Steps of a loop from which its constants are worth a copy.
MANY = 8


def new_array(like: Any, _: int, shape: Shape, dtype: Any) -> Any:
    """An array of the kind of another, for an output of any number."""
    return np.empty(shape, dtype, like=like)


class Argument(NamedTuple):
    """An argument of a loop's step: an array, or in each step its slice at an index along an axis."""

    #: An array.
    array: Any
    axis: int | None = None
    #: Of each step.
    indices: Any = ()
    #: The arrays of the first step and of the last one, where they are no slices.
    first: Any = None
    last: Any = None
    #: Whether it is a state, before a step or after it.
    is_state: bool = False

    def at(self, step: int, length: int) -> Any:
        """The array in one of `length` steps."""
        if self.axis is None:
            return self.array
        if step == 0 and self.first is not None:
            return self.first
        if step == length - 1 and self.last is not None:
            return self.last
        return _at(self.array, self.axis, self.indices[step])


class Steps:
    """The arrays of each step of a loop, called with its number.

    `arguments`: list of Argument.
    `length`: int.
    `given`: from a list of arrays, or of arguments, to what a step takes in their place.
    `flag`: the number of the argument that tells whether a step runs.
    """

    def __init__(
        self,
        arguments: list[Argument],
        length: int,
        given: Callable[[Any], Any] | None = None,
        flag: int | None = None,
    ) -> None:
        self.arguments, self.length, self.given, self.flag = arguments, length, given, flag
        self._ordered: list[Argument] | None = None

    def __call__(self, step: int) -> Any:
        found = [x.at(step, self.length) for x in self._laid_out()]
        return found if self.given is None else self.given(found)

    def runs(self, step: int) -> bool:
        """Whether a step runs."""
        return self.flag is None or bool(self.arguments[self.flag].at(step, self.length))

    def _laid_out(self) -> list[Argument]:
        """The arguments, with constants in C order, where there are steps enough."""
        if self._ordered is None:
            is_long = self.length > MANY
            self._ordered = [
                x._replace(array=_in_order(x.array)) if is_long and x.axis is None else x for x in self.arguments
            ]
        return self._ordered

    def after(self, given: Callable[[Any], Any]) -> Steps:
        """The same, of which `given` makes what a step takes."""
        return Steps(self.arguments, self.length, given, self.flag)


def carried_state(begun: Any, before: Any, final: Any, order: np.ndarray) -> tuple[Argument, Argument]:
    """A state before each step and after it: each step writes it where the next reads it, and the last one the output.

    Parameters
    ----------
    before : array or None
        Where the states before each step are wanted; the first of them is not copied yet.
    """
    if before is not None:
        return Argument(before, 0, order, is_state=True), Argument(before, 0, np.roll(order, -1), None, final, True)
    pair, turns = np.empty((2, *begun.shape), begun.dtype, like=begun), np.arange(len(order) + 1) % 2
    return Argument(pair, 0, turns, begun, is_state=True), Argument(pair, 0, turns[1:], None, final, True)


def _in_order(x: Any) -> Any:
    """An array of the host in C order: BLAS packs a transposed matrix again in each step, at a third of its time."""
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) and x.ndim else x


def _at(array: Any, axis: int, index: int) -> Any:
    """The view of an array at an index along an axis; of its last one, too, it is an array."""
    return array[(*(slice(None),) * axis, index, Ellipsis)]
