"""Which axis of each value of a loop's step counts rows, where each row depends on that row alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from backends.execution.specialize import FusedKernel


class Mixed(Exception):
    """Rows that depend on each other, or of which that is not known."""


class RowAxes:
    """The axes of rows, by relations of a step's values: what is known of one tells those of others.

    `registers`: the arrays of the values, with all rows.
    """

    def __init__(self, registers: list[Any]) -> None:
        self._registers = registers
        self._relations: list[Callable[[], None]] = []
        #: The operand of which a tuple has views.
        self._sources: dict[int, int] = {}
        self._axes: dict[int, int | None] = {}

    def add(self, relation: Callable[..., None], *of: Any) -> None:
        """Add a relation, one of the methods below, between values."""
        self._relations.append(partial(relation, *of))

    def are_views(self, value: int, of: int) -> None:
        """Add a tuple of views, which other views are picked from."""
        self._sources[value] = of

    def solved(self, states: Sequence[int]) -> list[int | None]:
        """The axis of each value, None where it is the same for all rows.

        `states`: the values whose first axis counts rows.

        Raises Mixed if rows depend on each other.
        """
        self._axes = dict.fromkeys(states, 0)
        before = -1
        while before < len(self._axes):
            before = len(self._axes)
            for relation in self._relations:
                relation()
        known = self._axes
        self._axes = {**dict.fromkeys(range(len(self._registers))), **known}
        for relation in self._relations:
            relation()
        return [self._axes[i] for i in range(len(self._registers))]

    def _set(self, value: int, axis: int | None) -> None:
        if self._axes.setdefault(value, axis) != axis:
            raise Mixed

    def equal(self, value: int, other: int) -> None:
        """Two values with the same rows."""
        for known, same in ((value, other), (other, value)):
            if known in self._axes:
                self._set(same, self._axes[known])

    def broadcast(self, value: int, target: int) -> None:
        """A value that is copied to a target, to whose shape it is broadcast."""
        x, y = self._registers[value], self._registers[target]
        before = y.ndim - x.ndim
        if target in self._axes:
            axis = self._axes[target]
            has_rows = axis is not None and axis >= before and x.shape[axis - before] == y.shape[axis]
            self._set(value, axis - before if has_rows else None)
        elif self._axes.get(value) is not None:
            self._set(target, self._axes[value] + before)

    def view(self, value: int, of: int) -> None:
        """A view."""
        of = self._sources.get(of, of)
        x, view = self._registers[of], self._registers[value]
        if of in self._axes:
            axis = self._axes[of]
            self._set(value, None if axis is None else _along(x, axis, x, view))
        elif value in self._axes:
            axis = self._axes[value]
            self._set(of, None if axis is None else _along(view, axis, x, x))

    def kernel(self, kernel: FusedKernel) -> None:
        """The values of a kernel."""
        values = [*kernel.reads, *kernel.writes, *kernel.shape_inputs]
        known = [(i, self._axes[i]) for i in values if self._axes.get(i) is not None]
        found = {kernel.axes[i][axis] for i, axis in known if axis is not None}
        if not found:
            return
        (along, *others) = found
        if others or along is None or along in kernel.reduced or kernel.flat_indices or kernel.taps or kernel.tables:
            raise Mixed
        for i in values:
            axes = list(kernel.axes[i])
            if axes.count(along) > 1:
                raise Mixed
            self._set(i, axes.index(along) if along in axes else None)

    def stacked(self, ranks: Mapping[int, int]) -> None:
        """Stacks that are broadcast together: values, and the number of axes of each one's entries."""
        shapes = {i: self._registers[i].shape for i in ranks}
        found = {axis - len(shapes[i]) + ranks[i] for i in ranks if (axis := self._axes.get(i)) is not None}
        if not found:
            return
        (back, *others) = found
        if others or back >= 0:
            raise Mixed
        for i, rank in ranks.items():
            axis = len(shapes[i]) - rank + back
            self._set(i, axis if axis >= 0 and shapes[i][axis] > 1 else None)

    def product(self, left: int, right: int, value: int) -> None:
        """A product of two matrices."""
        self._set(right, None)
        for known, other in ((left, value), (value, left)):
            if known in self._axes:
                axis = self._axes[known]
                if axis == 1:
                    raise Mixed
                self._set(other, axis)


def _along(x: np.ndarray, axis: int, of: np.ndarray, other: np.ndarray) -> int:
    """The axis of an array with the size and stride of an axis of another, where one is a view of the other.

    Each row of `of` is in memory of its own: so a view with as many rows at the same distance has its rows, in order.
    """
    size, stride = x.shape[axis], x.strides[axis]
    within = sum((n - 1) * abs(step) for n, step in zip(of.shape, of.strides, strict=True)) - (size - 1) * stride
    found = [i for i, each in enumerate(zip(other.shape, other.strides, strict=True)) if each == (size, stride)]
    if len(found) != 1 or within + of.itemsize > stride:
        raise Mixed
    return found[0]
