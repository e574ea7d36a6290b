"""Reductions of segments of an axis, which begin at given indices: `reduceat` of NumPy's ufuncs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import wide_dtype
from optree.errors import AxisError, DTypeError, OperandError, ShapeError, brief, describe
from optree.op.batching import spread_all
from optree.op.op import Op
from optree.ops.indexing import Take, as_positions, check_indices
from optree.ops.reduction import sum_dtype
from optree.ops.scattering import IndexAdd
from optree.registry import FUNCTIONS, NUMPY_FUNCTIONS, f
from optree.tree.gradient_types import zero_gradient
from optree.tree.types import Shape, TensorType, normalise_axis, promote
from optree.tree.variable import Operand, Variable, in_dtype, variable_of

#: The ufunc of each reduction.
UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class SegmentReduce(Op):
    """The sums, maxima or minima (`reduce`) of segments of an axis, which begin at ascending indices `starts`.

    Each ends where the next begins, and the last with the axis. Equal extremes share the gradient. Where the next
    start is not larger, a segment has one element, as in NumPy's `reduceat`.

    Examples
    --------
    >>> be.segment_reduce(be.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 3])).get()
    array([6., 4.], dtype=float32)
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
        (((6,), [4, 1, 1, 3, 2]), {}),
        (((6, 2), [5, 1, 1, 3, 0]), {"reduce": "max"}),
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        if self.reduce not in UFUNCS:
            raise OperandError(f"segment_reduce: reduce is 'sum', 'max' or 'min', not {self.reduce!r}")
        check_indices(types[1:], "segment_reduce")
        return self.make(reduce=self.reduce, axis=normalise_axis(self.axis, types[0].ndim, "segment_reduce"))

    def output_shape(self, *shapes: Shape) -> Shape:
        x, starts = shapes
        return _reduced_shape(x, starts, self.axis)

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        x, starts = map(promote, dtypes)
        return x, starts, sum_dtype(x) if self.reduce == "sum" else x

    @portable
    def numpy(self, *arrays: Array) -> Any:
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
        return [SegmentScatter.make(reduce=self.reduce, axis=self.axis)(x, delta, starts), None]


class SegmentScatter(Op):
    """The adjoint of `segment_reduce`: for each element of x, the sum of the deltas of the segments that it is in.

    Those of maxima and minima go to the extremes, in equal parts where several are equal.
    """

    name = "segment_scatter"
    operands = ("x", "delta", "starts")
    __props__ = ("reduce", "axis")
    reduce: str = "sum"
    axis: int = 0
    examples = (
        (((5,), (3,), [0, 2, 3]), {}),
        (((2, 5), (2, 5), [3, 1, 1, 4, 0]), {"axis": 1}),
        (((3, 2), (2, 2), [0, 2]), {"reduce": "max"}),
        (((2, 6), (2, 5), [4, 1, 1, 3, 2]), {"reduce": "min", "axis": 1}),
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        check_indices(types[2:], str(self.name))
        return self

    def output_shape(self, *shapes: Shape) -> Shape:
        x, _, starts = shapes
        _reduced_shape(x, starts, self.axis)
        return x

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        x, delta, starts = map(promote, dtypes)
        return x, delta, starts, delta

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, delta, starts = (as_array(a, *arrays) for a in arrays)
        x, wide = (np.moveaxis(a, self.axis, 0) for a in (x, delta.astype(wide_dtype(delta.dtype), copy=False)))
        found = self._sent(_Pairs(as_positions(starts), len(x)), x, wide)
        return np.moveaxis(found, 0, self.axis).astype(delta.dtype, copy=False)

    def _sent(self, pairs: _Pairs, x: Any, delta: Any) -> Any:
        """The value, with the axis in front."""
        return pairs.added(delta[pairs.segments] * pairs.shares(x, self.reduce))

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        if batched[2]:
            return self.batch_in_loop(inputs, batched)
        return self.make(reduce=self.reduce, axis=self.axis + 1)(*spread_all(inputs[:2], batched[:2]), inputs[2])

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, _, starts), (delta,) = inputs, output_gradients
        adjoint = SegmentScatter if isinstance(self, SegmentGather) else SegmentGather
        of_delta = adjoint.make(reduce=self.reduce, axis=self.axis)(x, delta, starts)
        return [zero_gradient(x, delta.dtype), of_delta, None]


class SegmentGather(SegmentScatter):
    """The adjoint of `segment_scatter`: the sums of delta in segments, or its means at their equal extremes in x."""

    name = "segment_gather"
    examples = (
        (((5,), (5,), [0, 2, 3]), {}),
        (((2, 5), (2, 5), [3, 1, 1, 4, 0]), {"axis": 1}),
        (((3, 2), (3, 2), [0, 2]), {"reduce": "max"}),
        (((2, 6), (2, 6), [4, 1, 1, 3, 2]), {"reduce": "min", "axis": 1}),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        x, _, starts = shapes
        return _reduced_shape(x, starts, self.axis)

    def _sent(self, pairs: _Pairs, x: Any, delta: Any) -> Any:
        return pairs.reduced(delta[pairs.elements] * pairs.shares(x, self.reduce), "sum")


def _reduced_shape(x: Shape, starts: Shape, axis: int) -> Shape:
    """The shape of an array with each segment along an axis reduced."""
    if len(starts) != 1:
        raise ShapeError("starts is a vector")
    return (*x[:axis], starts[0], *x[axis + 1 :])


class _Pairs:
    """The pairs of a segment and an element in it, those of each segment together.

    `segments`, `elements`: the indices of each pair.
    `starts`: the first pair of each segment.
    `size`: the number of elements.
    """

    def __init__(self, starts: Array, size: int) -> None:
        counts = _stops(starts, size) - starts
        ends = np.cumsum(counts)
        numbers = np.arange(int(ends[-1]) if starts.size else 0, like=starts)
        self.size, self.starts = size, ends - counts
        self.segments = np.searchsorted(ends, numbers, side="right")
        self.elements = numbers + (starts - self.starts)[self.segments]

    def reduced(self, values: Any, reduce: str) -> Any:
        """The reductions of the values of pairs over each segment."""
        if isinstance(values, np.ndarray):
            return UFUNCS[reduce].reduceat(values, self.starts, 0)
        return _in_rows(values, self.starts, reduce)

    def added(self, values: Array) -> Any:
        """The sums of the values of pairs over each element's segments."""
        like = np.broadcast_to(np.zeros((), values.dtype, like=values), (self.size, *values.shape[1:]))
        return IndexAdd.make(indexing=Take.make(axis=0)).value(values, like, self.elements)

    def shares(self, x: Array, reduce: str) -> Any:
        """The derivative of each segment's reduction by each element in it."""
        if reduce == "sum":
            return 1
        values = x[self.elements]
        is_extreme = values == self.reduced(values, reduce)[self.segments]
        counts = self.reduced(is_extreme.astype(np.int64), "sum")
        return is_extreme / np.maximum(counts, 1)[self.segments]


def _stops(starts: Array, size: int) -> Any:
    """The end of each segment: where the next one begins, or after one element."""
    return np.maximum(np.append(starts[1:], np.full_like(starts[:1], size)), starts + 1)


def _rows_of(starts: Array, size: int) -> tuple[Any, Any]:
    """The indices in segments, in rows as long as the longest, filled by their last; and which are a segment's own."""
    stops = _stops(starts, size)
    within = np.arange(int((stops - starts).max()) if starts.size else 1, like=starts)
    return np.minimum(starts[:, None] + within, stops[:, None] - 1), within < (stops - starts)[:, None]


def _in_rows(x: Array, starts: Array, reduce: str) -> Any:
    """Reductions of segments of the first axis by libraries without `reduceat`."""
    positions, is_there = _rows_of(starts, len(x))
    rows = x[positions]
    if reduce == "sum":
        rows = np.where(is_there.reshape(*is_there.shape, *(1,) * (x.ndim - 1)), rows, rows.dtype.type(0))
    return getattr(np, reduce)(rows, axis=1)


def _reduceat(name: str) -> Callable[..., Any]:
    """A reduction of segments, with the parameters of a ufunc's ``reduceat``."""

    def ours(array: Operand, indices: Any, axis: int = 0) -> Any:
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
