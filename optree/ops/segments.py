"""Reductions of segments of an axis, which begin at given indices: `reduceat` of NumPy's ufuncs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.arrays import as_array, portable
from optree.dtypes import wide_dtype
from optree.errors import AxisError, DTypeError, OperandError, ShapeError, brief, describe
from optree.ops.indexing import as_positions, check_indices
from optree.ops.op import Op
from optree.ops.reduction import sum_dtype
from optree.registry import FUNCTIONS, NUMPY_FUNCTIONS, f
from optree.tree.types import Shape, TensorType, normalise_axis, promote
from optree.tree.variable import Variable, in_dtype, variable_of

#: The ufunc of each reduction.
UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class SegmentReduce(Op):
    """The sums, maxima or minima (`reduce`) of segments of an axis, which begin at ascending indices `starts`.

    Each ends where the next begins, and the last with the axis. Equal extremes share the gradient. Starts
    that do not ascend give what `reduceat` does, and no gradient of it.
    """

    name = "segment_reduce"
    operands = ("x", "starts")
    __props__ = ("reduce", "axis")
    reduce: str = "sum"
    axis: int = 0
    examples = (
        (((5,), [0, 2, 3]), {}),
        (((2, 5), [1, 4]), {"axis": -1}),
        (((4, 2), [0]), {}),
        (((3, 2), [0, 2]), {"reduce": "max"}),
        (((2, 6), [0, 1, 4]), {"reduce": "min", "axis": 1}),
    )

    def bind(self, types: Sequence[TensorType], backend: Any) -> Op:
        if self.reduce not in UFUNCS:
            raise OperandError(f"segment_reduce: reduce is 'sum', 'max' or 'min', not {self.reduce!r}")
        check_indices(types[1:], "segment_reduce")
        return self.make(reduce=self.reduce, axis=normalise_axis(self.axis, types[0].ndim, "segment_reduce"))

    def output_shape(self, *shapes: Shape) -> Shape:
        x, starts = shapes
        if len(starts) != 1:
            raise ShapeError("starts is a vector")
        return (*x[: self.axis], starts[0], *x[self.axis + 1 :])

    def resolve_dtypes(self, *dtypes: Any) -> tuple[np.dtype, ...]:
        x, starts = map(promote, dtypes)
        return x, starts, sum_dtype(x) if self.reduce == "sum" else x

    @portable
    def value(self, *arrays: Any) -> Any:
        x, starts = as_array(arrays[0], *arrays), as_positions(as_array(arrays[1], *arrays))
        dtype = self.resolve_dtypes(x.dtype, starts.dtype)[-1]
        x = x.astype(wide_dtype(dtype), copy=False)
        if starts.size and not (starts.min() >= 0 and starts.max() < x.shape[self.axis]):
            raise AxisError(f"segment_reduce: starts are beyond axis {self.axis} of {x.shape}: {brief(starts)}")
        if isinstance(x, np.ndarray):
            return UFUNCS[self.reduce].reduceat(x, starts, self.axis).astype(dtype, copy=False)
        found = _in_rows(np.moveaxis(x, self.axis, 0), starts, self.reduce)
        return np.moveaxis(found, 0, self.axis).astype(dtype, copy=False)

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        op = self.make(reduce=self.reduce, axis=self.axis + 1)
        return self.batch_in_loop(inputs, batched) if batched[1] else op(*inputs)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, starts), (delta,) = inputs, output_gradients
        along = f.flat_indices(f.slice(x, tuple(slice(None) if i == self.axis else 0 for i in range(x.ndim))))
        segment = f.searchsorted(starts, along, "right") - 1
        is_in_one = f.expand_dims(f.ge(segment, 0), tuple(i for i in range(x.ndim) if i != self.axis))

        def of_elements(each: Any) -> Any:
            """A value of each segment, for each element in it."""
            return f.where(is_in_one, f.take(each, f.maximum(segment, 0), axis=self.axis), 0)

        if self.reduce == "sum":
            return [of_elements(delta), None]
        is_extreme = f.cast(f.eq(x, of_elements(self(x, starts))), delta.dtype)
        count = self.make(reduce="sum", axis=self.axis)(is_extreme, starts)
        return [of_elements(delta / f.maximum(count, 1)) * is_extreme, None]


def _rows_of(starts: Any, size: int) -> tuple[Any, Any]:
    """The indices in segments, in rows as long as the longest, filled by their last; and which are a segment's own."""
    stops = np.maximum(np.append(starts[1:], np.full_like(starts[:1], size)), starts + 1)
    within = np.arange(int((stops - starts).max()) if starts.size else 1, like=starts)
    return np.minimum(starts[:, None] + within, stops[:, None] - 1), within < (stops - starts)[:, None]


def _in_rows(x: Any, starts: Any, reduce: str) -> Any:
    """Reductions of segments of the first axis by libraries without `reduceat`."""
    positions, is_there = _rows_of(starts, len(x))
    rows = x[positions]
    if reduce == "sum":
        rows = np.where(is_there.reshape(*is_there.shape, *(1,) * (x.ndim - 1)), rows, rows.dtype.type(0))
    return getattr(np, reduce)(rows, axis=1)


def _reduceat(name: str) -> Callable[..., Any]:
    """A reduction of segments, with the parameters of a ufunc's ``reduceat``."""

    def ours(array: Any, indices: Any, axis: int = 0) -> Any:
        what = f"{name} by reduceat"
        x = variable_of(array, what)
        axis = normalise_axis(axis, x.ndim, what)
        if isinstance(indices, Variable):
            return NotImplemented  # whether they ascend is known only when it has run
        starts = np.asarray(indices)
        size = x.shape[axis]
        if starts.size and starts.dtype.kind not in "iu":
            raise DTypeError(f"{what}: indices are integers, not of {starts.dtype}")
        starts = starts.astype(np.int64)
        if size is None or starts.ndim != 1 or not np.all((starts >= 0) & (starts < size)):
            raise ShapeError(f"{what}: a vector of indices of axis {axis} of {describe(x)} is wanted, not {indices!r}")
        if name != "prod" and np.all(np.diff(starts) > 0):
            return f.segment_reduce(x, starts, name, axis)
        positions, is_there = _rows_of(starts, size)  # of segments that overlap, or products
        rows = f.take(x, positions, axis=axis)
        if name in ("sum", "prod"):
            is_there = np.expand_dims(is_there, tuple(range(2, x.ndim + 1 - axis)))
            rows = f.where(is_there, in_dtype(rows, sum_dtype(x.dtype)), int(name == "prod"))
        return FUNCTIONS[name](rows, axis=axis + 1, keepdims=False)

    return ours


for _name, _ufunc in (*UFUNCS.items(), ("prod", np.multiply)):
    NUMPY_FUNCTIONS[_ufunc.reduceat] = _reduceat(_name)
