"""Searching, counting and choosing by order: bins, the largest, parts of a sort, distinct elements, places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.arrays import as_array, portable
from optree.dtypes import is_floating
from optree.errors import OperandError, ShapeError, describe
from optree.ops.arrangement import integer_of, variable_of
from optree.ops.indexing import Take
from optree.ops.op import Op
from optree.ops.scattering import IndexAdd
from optree.ops.traits import BinaryOperator, IntegerOperator
from optree.registry import NUMPY_FUNCTIONS, f, function
from optree.tree.types import Shape, TensorType, normalise_axis
from optree.tree.variable import Variable, constant, in_dtype

# Bins


class SearchSorted(BinaryOperator, IntegerOperator):
    """Where elements of y go into x, a vector in ascending order, so that it stays in order; nan goes behind numbers.

    With ``side="left"`` in front of those that are equal, with ``"right"`` behind them.
    """

    name = "searchsorted"
    __props__ = ("side",)
    side: str = "left"
    examples = (
        (([-1.0, -0.25, 0.5, 0.5, 1.0], (2, 3)), {}),
        (([-1.0, -0.25, 0.5, 0.5, 1.0], (4,)), {"side": "right"}),
        (([1, 2, 2, 5], [[0, 2, 3], [5, 6, 1]]), {}),
        (([1, 2, 2, 5], [[0, 2, 3], [5, 6, 1]]), {"side": "right"}),
        (([1.5], ()), {}),
        (((0,), (3,)), {}),
    )

    def bind(self, types: Sequence[TensorType], backend: Any) -> Op:
        if self.side not in ("left", "right"):
            raise OperandError(f"searchsorted: side is 'left' or 'right', not {self.side!r}")
        return self

    def output_shape(self, *shapes: Shape) -> Shape:
        x, y = shapes
        if len(x) != 1 and not (len(x) == 2 and 1 in x):  # in neon's mode a vector is a column
            raise ShapeError("what is searched is a vector in ascending order, of one dimension")
        return y

    @portable
    def value(self, *arrays: Any) -> Any:
        x, y = (as_array(a, *arrays) for a in arrays)
        dtype = np.result_type(x.dtype, y.dtype)
        # In one dimension, of one dtype: other libraries take no other.
        ordered, flat = (a.astype(dtype, order="C", copy=False).reshape(-1) for a in (x, y))
        found: Any = np.searchsorted(ordered, flat, "left" if self.side == "left" else "right")
        return found.astype(np.int64, copy=False).reshape(y.shape)


def _numpy_searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    return f.searchsorted(a if sorter is None else f.take(a, sorter, axis=0), v, side)


NUMPY_FUNCTIONS[np.searchsorted] = _numpy_searchsorted


@function(numpy=np.digitize)
def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """The number of the bin of each element, between edges that rise or fall; with `right` a bin has its upper edge."""
    x, edges = variable_of(x, "digitize"), variable_of(_as_vector(bins), "digitize")
    if edges.ndim != 1:
        raise ShapeError(f"digitize: the edges are a vector, and {describe(edges)} is none")
    rising = f.searchsorted(edges, x, "left" if right else "right")
    if isinstance(bins, Variable):
        first, last = (f.slice(edges, (i,)) for i in (0, -1))
        falls = f.gt(first, last)
    else:
        falls = bool(len(bins) and bins[0] > bins[-1])
        steps = np.diff(np.asarray(bins))
        if not ((steps >= 0).all() or (steps <= 0).all()):
            raise OperandError("digitize: the edges neither rise nor fall throughout")
        if not falls:
            return rising
    size = _size(edges, 0)
    falling = size - f.searchsorted(f.flip(edges, 0), x, "left" if right else "right")
    return f.where(falls, falling, rising) if isinstance(falls, Variable) else falling


def _as_vector(values: Any) -> Any:
    is_list = isinstance(values, list | tuple | range) and not isinstance(values, Variable)
    return np.asarray(values) if is_list else values


def _size(x: Variable, axis: int) -> Any:
    """The size of an axis: a number where it is known, or else a tree."""
    size = x.shape[axis]
    return f.cast(f.count(f.places(x), axis), "int64") if size is None else size


def _of_size(size: int, dtype: Any) -> Variable:
    """A vector of which nothing but its size and dtype counts."""
    return f.broadcast_to(constant(np.zeros((), dtype)), (size,))


@function()
def bincount(x: Any, weights: Any = None, size: int | None = None) -> Any:
    """How often each integer from 0 up to `size` is there, or the sum of its weights.

    NumPy's has as many numbers as the largest says; here the size is given, for
    a tree's shape is known before it runs. A larger or a negative integer is an
    error when it runs.
    """
    x = variable_of(x, "bincount")
    if size is None:
        raise OperandError(
            "bincount: give size=, the number of bins, for a tree's shape is known before it runs; "
            "np.bincount(x.asnumpyarray()) has as many as the largest element says"
        )
    if weights is None:
        return _totals(x, None, size)
    w = variable_of(weights, "bincount: weights")
    if None not in (*w.shape, *x.shape) and w.shape != x.shape:
        raise ShapeError(f"bincount: {describe(w)} has no weight for each element of {describe(x)}")
    return _totals(x, in_dtype(w, np.dtype("float64")), size)


def _totals(x: Variable, weights: Variable | None, size: int) -> Variable:
    """How often each integer below a size is there, or the sum of its weights."""
    flat, like = f.reshape(x, (-1,)), _of_size(integer_of(size, "bincount: size"), np.int64)
    added = f.fill_like(f.places(flat), 1) if weights is None else f.reshape(weights, (-1,))
    return IndexAdd.make(place=Take.make(axis=0))(added, like, flat)


@function(numpy=np.histogram_bin_edges)
def histogram_bin_edges(x: Any, bins: Any = 10, range: Any = None) -> Any:
    """The edges of a histogram's bins: so many of one width, from the least element to the largest, or those given."""
    x = variable_of(x, "histogram")
    if isinstance(bins, str):
        raise OperandError(f"histogram: how many bins {bins!r} makes is known when it runs; give a number, or edges")
    if isinstance(bins, Variable) or np.ndim(bins):
        return bins if isinstance(bins, Variable) else _known(np.asarray(bins), x)
    count = integer_of(bins, "histogram: bins")
    if count < 1:
        raise OperandError(f"histogram: there is one bin or more, not {bins}")
    dtype = x.dtype if is_floating(x.dtype) else np.dtype("float64")
    if range is not None:
        first, last = range
        if not first <= last or not math.isfinite(last - first):
            raise OperandError(f"histogram: range is two finite numbers, the lesser first, not {range!r}")
        first, last = (first - 0.5, last + 0.5) if first == last else (first, last)
        return _known(np.linspace(first, last, count + 1).astype(dtype), x)
    if x.size == 0 and None not in x.shape:
        return _known(np.linspace(0, 1, count + 1).astype(dtype), x)
    first, last = (end(in_dtype(x, dtype), keepdims=False) for end in (f.min, f.max))
    half = f.cast(f.eq(first, last), dtype) * 0.5
    first, last = first - half, last + half
    steps = np.arange(count + 1)
    inner = first + in_dtype((last - first) / count, dtype) * steps.astype(dtype)
    return f.where(steps == count, last, inner)  # as np.linspace, whose end is exact


def _known(values: np.ndarray, x: Variable) -> Variable:
    """Values that are known ahead, on an operand's backend where it has one, so that they can be asked for alone."""
    return f.copy(values) if x.backend is None else x.backend.array(values, values.dtype)


@function(numpy=np.histogram)
def histogram(x: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None) -> tuple[Any, Any]:
    """How many elements are in each bin, or their weights, or with `density` their density; and the bins' edges.

    Each bin has its lower edge, and the last one its upper edge too; what is in none, nan too, does not count.
    """
    x = variable_of(x, "histogram")
    edges = histogram_bin_edges(x, bins, range)
    count = edges.shape[0]
    if count is None:
        raise ShapeError(f"histogram: the number of edges {describe(edges)} must be known")
    flat = f.reshape(x, (-1,))
    last = f.slice(edges, (-1,))
    place = f.searchsorted(edges, flat, "right")  # 0 below, count above and at the last edge
    place = f.where(f.eq(flat, last), count - 1, place)
    # The totals at 0 and at `count` are of what is in no bin.
    w = None if weights is None else variable_of(weights, "histogram: weights")
    if w is not None and w.dtype.kind == "b":
        w = in_dtype(w, np.dtype("float64"))
    found = f.slice(_totals(place, w, count + 1), (slice(1, count),))
    if density:
        widths = f.diff(in_dtype(edges, np.dtype("float64")))
        found = found / widths / f.sum(found, keepdims=False)
    return found, edges


# The largest, and parts of a sort


@function()
def topk(x: Any, k: int, axis: int = -1) -> tuple[Any, Any]:
    """The k largest elements along an axis in descending order, and where they stand; of equal ones the first.

    A nan counts as larger than every number.
    """
    x = variable_of(x, "topk")
    axis, k = normalise_axis(axis, x.ndim, "topk"), integer_of(k, "topk: k")
    size = x.shape[axis]
    if k < 0 or (size is not None and k > size):
        raise ShapeError(f"topk: of axis {axis} of {describe(x)} there are 0 to {size} largest, not {k}")
    # Sorted from the other end and read backwards, so that of equal ones the first comes first.
    backwards = f.flip(f.argsort(f.flip(x, axis), axis), axis)
    places = _size(x, axis) - 1 - f.slice(backwards, (*(slice(None),) * axis, slice(0, k)))
    return f.take_along_axis(x, places, axis), places


@function()
def partition(x: Any, kth: Any, axis: Any = -1) -> Any:
    """The elements along an axis, the kth in its place in order, no larger ones before it: here, all in order."""
    return f.sort(_checked(x, kth, axis, "partition"), axis)


@function()
def argpartition(x: Any, kth: Any, axis: Any = -1) -> Any:
    """Where the elements of `partition` stand."""
    return f.argsort(_checked(x, kth, axis, "argpartition"), axis)


def _checked(x: Any, kth: Any, axis: Any, what: str) -> Variable:
    x = variable_of(x, what)
    size = x.size if axis is None else x.shape[normalise_axis(axis, x.ndim, what)]
    for k in np.atleast_1d(kth).tolist():
        if size is not None and not -size <= integer_of(k, f"{what}: kth") < size:
            raise ShapeError(f"{what}: of {size} elements there is none at {k}")
    return x


def _numpy_partition(a: Any, kth: Any, axis: Any = -1, kind: Any = None) -> Any:
    return partition(a, kth, axis)


def _numpy_argpartition(a: Any, kth: Any, axis: Any = -1, kind: Any = None) -> Any:
    return argpartition(a, kth, axis)


NUMPY_FUNCTIONS[np.partition] = _numpy_partition
NUMPY_FUNCTIONS[np.argpartition] = _numpy_argpartition


# As many as there are, up to a size that is given


def _first_true(flat: Variable, size: int, what: str) -> tuple[Variable, Variable]:
    """The places of the first true elements, and which of these there are."""
    size = integer_of(size, f"{what}: size")
    count = flat.shape[0]
    if size < 0 or (size and count == 0):
        raise ShapeError(f"{what}: size is 0 or more, and 0 of nothing; not {size} of {describe(flat)}")
    order = f.argsort(f.logical_not(flat), 0)  # the true ones first, each kind in its order
    places = f.take(order, np.minimum(np.arange(size), count - 1) if count is not None else np.arange(size), axis=0)
    return places, f.lt(np.arange(size), f.sum(flat, keepdims=False))


@function()
def flatnonzero(x: Any, size: int | None = None, fill_value: int = 0) -> Any:
    """Where the first `size` elements stand that are not zero, in C order; `fill_value` beyond the last."""
    x = variable_of(x, "flatnonzero")
    if size is None:
        raise _needs_size("flatnonzero")
    places, there = _first_true(f.ne(f.reshape(x, (-1,)), 0), size, "flatnonzero")
    return f.where(there, places, fill_value)


@function()
def nonzero(x: Any, size: int | None = None, fill_value: int = 0) -> tuple[Any, ...]:
    """Where the first `size` elements stand that are not zero, in C order: an array of indices for each axis."""
    x = variable_of(x, "nonzero")
    if size is None:
        raise _needs_size("nonzero")
    if not x.ndim:
        raise ShapeError(f"nonzero: {describe(x)} has no axis")
    places, there = _first_true(f.ne(f.reshape(x, (-1,)), 0), size, "nonzero")
    found = []
    for axis in reversed(range(x.ndim)):
        each = _size(x, axis)
        if isinstance(each, int):
            each = max(each, 1)
        found.append(f.where(there, f.mod(places, each), fill_value))
        places = f.floor_divide(places, each)
    return tuple(reversed(found))


@function()
def unique(x: Any, size: int | None = None, fill_value: Any = None) -> Any:
    """The first `size` of the distinct elements in ascending order, all nans as one; beyond the last `fill_value`.

    That is the smallest element, if it is not given. NumPy's has as many as there are.
    """
    x = variable_of(x, "unique")
    if size is None:
        raise _needs_size("unique")
    ordered = f.sort(f.reshape(x, (-1,)), 0)
    before, after = (f.slice(ordered, (part,)) for part in (slice(None, -1), slice(1, None)))
    differs = f.ne(before, after)
    if is_floating(x.dtype):
        differs = f.logical_and(differs, f.logical_not(f.logical_and(f.isnan(before), f.isnan(after))))
    first = f.slice(ordered, (slice(0, 1),))
    places, there = _first_true(f.concatenate([f.eq(f.places(first), 0), differs], 0), size, "unique")
    return f.where(there, f.take(ordered, places, axis=0), first if fill_value is None else fill_value)


def _needs_size(name: str) -> OperandError:
    return OperandError(
        f"{name}: give size=, the most there can be, for a tree's shape is known before it runs; "
        f"np.{name}(x.asnumpyarray()) has as many as there are"
    )
