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


#: The elements in all, and along the axis, from which `_argsorted` is quicker than NumPy's stable sort of indices.
LEAST, SHORT = 1024, 16


class ArgSort(OneAxisOperator, IntegerOperator):
    """The indices that sort the operand along an axis, stably; nan sorts last."""

    name = "argsort"
    axis: Any = -1
    examples = EXAMPLES

    @portable
    def value(self, *arrays: Any) -> Any:
        x = as_array(arrays[0])
        if not (isinstance(x, np.ndarray) and _is_quick(x) and x.size >= LEAST and SHORT < x.shape[self.axis] < 2**32):
            return np.argsort(x, axis=self.axis, kind="stable")
        return np.moveaxis(_argsorted(np.moveaxis(x, self.axis, -1)), -1, self.axis)


def _is_quick(x: np.ndarray) -> bool:
    """Whether the dtype has keys of `_argsorted`; NumPy's stable sort of narrower integers is a radix sort."""
    return (x.dtype.kind == "f" and x.dtype.itemsize <= 8) or (x.dtype.kind in "iu" and x.dtype.itemsize >= 4)


def _argsorted(x: np.ndarray) -> np.ndarray:
    """The indices that sort along the last axis, stably, by sorts that need not be."""
    if x.dtype.itemsize == 8:
        order = np.argsort(x)
        found = np.take_along_axis(x, order, -1)
        is_new = found[..., 1:] != found[..., :-1]
        if x.dtype.kind == "f":
            is_new &= ~np.isnan(found[..., :-1])  # nan is not nan
        if is_new.all():
            return order
        keys = np.zeros(x.shape, np.int64)
        np.cumsum(is_new, axis=-1, out=keys[..., 1:])
        return _sorted_with(keys, order)
    keys = x.astype(np.uint64 if x.dtype.kind == "u" else np.int64) if x.dtype.kind != "f" else _keys_of(x)
    return _sorted_with(keys, np.arange(x.shape[-1]))


def _keys_of(x: np.ndarray) -> np.ndarray:
    """Integers in the order of float16 or float32; equal for 0.0 and -0.0, and for all nans."""
    whole = np.dtype(f"int{8 * x.dtype.itemsize}")
    bits = np.where(np.isnan(x), x.dtype.type(np.nan), x + x.dtype.type(0)).view(whole)
    return (bits ^ (bits >> (8 * whole.itemsize - 1) & np.iinfo(whole).max)).astype(np.int64)


def _sorted_with(keys: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Indices below 2**32, sorted by keys of 32 bits and among equal ones by themselves, as parts of one integer."""
    keys = keys << keys.dtype.type(32) | order.astype(keys.dtype)
    keys.sort(axis=-1)
    return (keys & keys.dtype.type(2**32 - 1)).astype(np.int64)


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
