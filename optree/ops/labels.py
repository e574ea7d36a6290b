"""Checks of labels and ids: integers that name a class or a row of a table, whose values are known when a tree runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

import numpy as np

from optree.arrays import Array, as_array, is_any, portable
from optree.errors import AxisError, DTypeError, OperandError
from optree.op.batching import aligned
from optree.op.index_map import IndexMap, windowed
from optree.op.op import Op
from optree.op.traits import MorphOperator, NonDifferentiableOperator
from optree.tree.types import TensorType

#: The unsigned dtypes by their bytes.
UNSIGNED = {np.dtype(name).itemsize: np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64")}


def first_outside(
    labels: Array, classes: int | tuple[int, ...], ignored: int | None = None, blank: int | None = None
) -> tuple[int, str] | None:
    """The first integer that is no class, and its place in words; None if there is none, or checks are deferred.

    `classes`: the number of classes, which count from 0, or the classes.
    `ignored`, `blank`: a label that is right, too; a class that is no label.
    """
    of_numpy = isinstance(labels, np.ndarray | np.generic)
    is_range = isinstance(classes, int) and blank is None
    if not labels.size or (of_numpy and is_range and _all_below(labels, classes)):  # type: ignore[arg-type]
        return None
    if labels.dtype != np.uint64:
        labels = labels.astype(np.int64, copy=False)
    if isinstance(classes, int):
        wrong = (labels < 0) | (labels >= classes)
    else:
        wrong = reduce(and_, [labels != each for each in classes])
    if blank is not None:
        wrong |= labels == blank
    if ignored is not None:
        wrong &= labels != ignored
    if not is_any(wrong):
        return None
    at = int(wrong.reshape(-1).argmax())
    place = tuple(map(int, np.unravel_index(at, labels.shape)))
    words = f" at row {place[0]}" if len(place) == 1 else f" at {place}" if place else ""
    return int(labels.reshape(-1)[at]), words


def _all_below(labels: Array, count: int) -> bool:
    """Whether integers are from 0 up and below a count: one reduction, as unsigned integers."""
    return bool(np.maximum.reduce(labels.view(UNSIGNED[labels.dtype.itemsize]), axis=None) < count)


class CheckLabels(MorphOperator, NonDifferentiableOperator):
    """Integer `labels` as they are; when it runs, an AxisError names the first that is none of so many classes.

    Attributes
    ----------
    classes : int or tuple of int
        The number of classes, which count from 0, or the classes.
    ignored, blank : int, optional
        A label that is no class and no error; a class that is no label.
    what, kind : str
        The names of a label and of the classes in errors.

    Examples
    --------
    >>> be.check_labels(np.array([0, 2]), classes=3).asnumpyarray()
    array([0, 2])
    """

    name = "check_labels"
    operands = ("labels",)
    __props__ = ("classes", "ignored", "blank", "what", "kind")
    classes: Any = None
    ignored: Any = None
    blank: Any = None
    what: str = "the label"
    kind: str = "classes"
    index_map = IndexMap(windowed())
    examples = (
        (([2, 0, 1],), {"classes": 3}),
        (([[1, -100], [0, 1]],), {"classes": 2, "ignored": -100}),
        (([1, -1, -1],), {"classes": (-1, 1)}),
        (([1, 2, 1],), {"classes": 3, "blank": 0}),
        (([],), {"classes": 2}),
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        (labels,) = types
        if labels.dtype.kind not in "iu":
            raise DTypeError(f"labels are integers, not {labels}; labels.astype('int64') makes them so")
        given = self.classes if isinstance(self.classes, tuple) else (self.classes,)
        if not given or any(isinstance(x, bool) or not isinstance(x, int) for x in given):
            raise OperandError(f"{self.name}: classes are their number, or a tuple of integers, not {self.classes!r}")
        return self

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        return self(*aligned(inputs, batched))

    @portable
    def fill(self, out: Array, *arrays: Array) -> None:
        labels = as_array(arrays[0])
        found = first_outside(labels, self.classes, self.ignored, self.blank)
        if found is not None:
            label, place = found
            raise AxisError(f"{self.what} {label}{place} is {self._wrong(label)}")
        out[...] = labels

    def _wrong(self, label: int) -> str:
        if label == self.blank:
            return "the blank"
        if isinstance(self.classes, tuple):
            return f"none of the {self.kind} {' and '.join(map(str, self.classes))}"
        return f"none of the {self.classes} {self.kind}, 0 to {self.classes - 1}"
