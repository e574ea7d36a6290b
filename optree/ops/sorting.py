"""Sorting and argsort along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.arrays import as_array, portable
from optree.ops.indexing import TakeAlongAxis
from optree.ops.scan import OneAxisOperator
from optree.ops.scattering import IndexAdd
from optree.ops.traits import IntegerOperator, MorphOperator
from optree.registry import NUMPY_FUNCTIONS, f

EXAMPLES: tuple[Any, ...] = (
    (((3, 4),), {}),
    (((3, 4),), {"axis": 0}),
    (((2, 3, 2),), {"axis": 1}),
    (((5,),), {}),
    (([3, 1, 2, 1],), {}),
    (((0, 3),), {"axis": 0}),
)


class ArgSort(OneAxisOperator, IntegerOperator):
    """The indices that sort the operand along an axis, stably; nan sorts last."""

    name = "argsort"
    axis: Any = -1
    examples = EXAMPLES

    @portable
    def value(self, *arrays: Any) -> Any:
        return np.argsort(as_array(arrays[0]), axis=self.axis, kind="stable")


class Sort(OneAxisOperator, MorphOperator):
    """The elements along an axis in ascending order; nan sorts last."""

    name = "sort"
    axis: Any = -1
    examples = EXAMPLES

    @portable
    def value(self, *arrays: Any) -> Any:
        return np.sort(as_array(arrays[0]), axis=self.axis)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        indexing = TakeAlongAxis.make(axis=self.axis)
        return [IndexAdd.make(indexing=indexing)(delta, x, f.argsort(x, self.axis))]


def _numpys(name: str) -> Callable[..., Any]:
    """The function with NumPy's parameters. It is stable, so `kind` does not matter."""

    def ours(a: Any, axis: Any = -1, kind: Any = None, *, stable: Any = None) -> Any:
        return getattr(f, name)(a, axis)

    ours.__name__ = name
    return ours


NUMPY_FUNCTIONS[np.sort] = _numpys("sort")
NUMPY_FUNCTIONS[np.argsort] = _numpys("argsort")
