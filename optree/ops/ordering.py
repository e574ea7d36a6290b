"""Functions by order: sorting, searchsorted, histograms, top k, partitions, nonzero, unique."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, ClassVar, Literal

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import is_floating, is_inexact
from optree.errors import OperandError, ShapeError, describe
from optree.op.examples import Cases, Examples
from optree.op.index_map import BROADCAST, OPAQUE, IndexMap
from optree.op.op import Op
from optree.op.traits import (
    AxisOperator,
    BinaryOperator,
    BlockOperator,
    Blocks,
    IntegerOperator,
    LogicalOperator,
    MorphOperator,
    UnaryOperator,
    blocks_along,
    longest_axis,
    one_axis,
)
from optree.ops.indexing import Embedding, TakeAlongAxis
from optree.ops.reduction import INFINITY
from optree.ops.scan import OneAxisOperator
from optree.ops.scattering import IndexAdd
from optree.ops.shape import strong
from optree.registry import f, function, numpy_function
from optree.tree.types import Axis, Shape, TensorType, integer_of, normalise_axis, promote
from optree.tree.variable import Operand, Variable, check_real, constant, in_dtype, variable_of

# Sorting

_SORTED: tuple[Any, ...] = (
    (((3, 4),), {}),
    (((3, 4),), {"axis": 0}),
    (((2, 3, 2),), {"axis": 1}),
    (((5,),), {}),
    (([3, 1, 2, 1],), {}),
    (((0, 3),), {"axis": 0}),
)


#: The elements in all, and along the axis, from which `_argsorted` is quicker than NumPy's stable sort of indices.
LEAST, SHORT = 1024, 16

#: The most elements with which `isin` compares: 16 comparisons of a million take 1.4 ms, np.isin 4 to 20.
FEW_MEMBERS = 16

#: The most bits of a dtype whose values are counted one by one.
NARROW = 16


@numpy_function(np.argsort)
class ArgSort(OneAxisOperator, IntegerOperator):
    """The indices that sort the operand along an axis, stably; nan sorts last, complex numbers as `sort` does.

    Examples
    --------
    >>> be.argsort(be.array([3.0, 1.0, 2.0])).get()
    array([1, 2, 0])
    """

    name = "argsort"
    takes_complex = True
    axis: Any = -1
    examples = _SORTED

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        if not (isinstance(x, np.ndarray) and _is_quick(x) and x.size >= LEAST and SHORT < x.shape[self.axis] < 2**32):
            return np.argsort(x, axis=self.axis, kind="stable")
        return np.moveaxis(_argsorted(np.moveaxis(x, self.axis, -1)), -1, self.axis)

    def fill(self, out: Array, *arrays: Array) -> None:
        # An op with `fill` has smaller blocks: the index arrays of larger ones need new pages each time.
        out[...] = self.value(*arrays)


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


def _kind_for(x: np.ndarray, axis: int) -> Literal["stable"] | None:
    """The kind of NumPy's sort: its stable one of bytes is a radix sort, its other takes up to twenty times as long."""
    return "stable" if x.dtype.itemsize == 1 and x.shape[axis] > SHORT else None


def _in_keys(x: np.ndarray, order: Callable[[np.ndarray], None]) -> None:
    """Order a float16 array in place by integer keys; nans are the largest."""
    bits = x.view(np.int16)
    bits ^= bits >> 15 & 0x7FFF  # of a negative number all bits but its sign's
    if bits.size and bits.min() < ~INFINITY:
        bits[bits < ~INFINITY] ^= -1  # nans whose sign is set
    order(bits)
    bits ^= bits >> 15 & 0x7FFF


class OrderOperator(OneAxisOperator, MorphOperator):
    """The elements along an axis in another order, computed in place on a copy."""

    axis: Any = -1

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        if not isinstance(x, np.ndarray):
            return np.sort(x, axis=self.axis)
        out = x.copy()
        self.put_in_order(out)
        return out

    def fill(self, out: Array, *arrays: Array) -> None:
        out[...] = arrays[0]
        self.put_in_order(out)

    def put_in_order(self, x: np.ndarray) -> None:
        """Put an array's own elements in order."""
        raise NotImplementedError


@numpy_function(np.sort)
class Sort(OrderOperator):
    """The elements along an axis in ascending order; nan sorts last.

    Complex numbers are ordered by their real parts, and those of equal ones by their imaginary parts, as NumPy's.

    Examples
    --------
    >>> be.sort(be.array([3.0, 1.0, 2.0])).get()
    array([1., 2., 3.], dtype=float32)
    """

    name = "sort"
    takes_complex = True
    examples = _SORTED

    def put_in_order(self, x: np.ndarray) -> None:
        if x.dtype == np.float16:
            # NumPy's own is wrong for repeated negative values where the processor has AVX-512 (seen in NumPy 2.4).
            _in_keys(x, lambda keys: keys.sort(axis=self.axis, kind="stable"))
        else:
            x.sort(axis=self.axis, kind=_kind_for(x, self.axis))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        indexing = TakeAlongAxis.make(axis=self.axis)
        return [IndexAdd.make(indexing=indexing)(delta, x, f.argsort(x, self.axis))]


@numpy_function(np.lexsort)
def _lexsort(keys: Any, axis: int = -1) -> Any:
    """The indices that sort by several keys; the last is the primary one."""
    listed = f.unstack(keys) if isinstance(keys, Variable) else [variable_of(key, "lexsort") for key in keys]
    if not listed:
        raise OperandError("lexsort: there is no key")
    order = f.argsort(listed[0], axis)
    for key in listed[1:]:
        order = f.take_along_axis(order, f.argsort(f.take_along_axis(key, order, axis), axis), axis)
    return order


# Bins


class SearchSorted(BinaryOperator, IntegerOperator, BlockOperator):
    """The indices at which to insert elements of y into x, a sorted vector; nan sorts last.

    With ``side="left"`` before equal elements, with ``"right"`` after them.

    Examples
    --------
    >>> be.searchsorted(be.array([1.0, 2.0, 3.0]), be.array([2.0, 2.5])).get()
    array([1, 2])
    """

    name = "searchsorted"
    takes_complex = True
    index_map = IndexMap(OPAQUE, BROADCAST)
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

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        if self.side not in ("left", "right"):
            raise OperandError(f"searchsorted: side is 'left' or 'right', not {self.side!r}")
        return self

    def output_shape(self, *shapes: Shape) -> Shape:
        x, y = shapes
        if len(x) != 1 and not (len(x) == 2 and 1 in x):  # in neon's mode a vector is a column
            raise ShapeError("the first operand is a sorted vector, of one dimension")
        return y

    def blocks(self, *shapes: tuple[int, ...]) -> Blocks | None:
        axis = longest_axis(shapes[1])
        return None if axis is None else (axis, (None, axis), 1)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, y = (as_array(a, *arrays) for a in arrays)
        dtype = np.result_type(x.dtype, y.dtype)
        # CuPy takes 1-D arrays of one dtype.
        ordered, flat = (a.astype(dtype, order="C", copy=False).reshape(-1) for a in (x, y))
        found: Any = np.searchsorted(ordered, flat, "left" if self.side == "left" else "right")
        return found.astype(np.int64, copy=False).reshape(y.shape)


class IsIn(BinaryOperator, LogicalOperator):
    """Whether each element of x is among those of y; nan is not.

    With few elements in y, its function compares x with each.

    Examples
    --------
    >>> be.isin(np.array([1, 2, 3]), np.array([3, 1])).get()
    array([ True, False,  True])
    """

    name = "isin"
    takes_complex = True
    index_map = IndexMap(BROADCAST, OPAQUE)
    examples = (
        (((2, 3), [-1.0, -0.25, 0.5]), {}),
        (([[0, 2, 3], [5, 6, 1]], [[1, 2], [2, 5]]), {}),
        (([1, 2], 2), {}),
        (((3,), (0,)), {}),
        (((0, 2), (3,)), {}),
    )

    @classmethod
    def function(cls, x: Operand, y: Operand) -> Any:  # type: ignore[override]
        x, y = (strong(v, "isin") for v in (x, y))
        if None in y.shape or not 0 < y.size <= FEW_MEMBERS:
            return cls.make()(x, y)
        members = f.reshape(y, (-1,))
        found = [f.eq(x, f.slice(members, (i,))) for i in range(y.size)]
        return reduce(f.logical_or, found)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, y = (as_array(a, *arrays) for a in arrays)
        if "c" in x.dtype.kind + y.dtype.kind:  # CuPy's compares those of one dtype alone
            common = promote(x.dtype, y.dtype)
            x, y = x.astype(common, copy=False), y.astype(common, copy=False)
        return as_array(np.isin(x, y), x)


class CountInBins(BinaryOperator, IntegerOperator):
    """The number of elements of y between each two of the edges x in ascending order, the last of which is in a bin.

    Attributes
    ----------
    even : bool
        Whether all bins are as wide, which is quicker.

    Examples
    --------
    >>> be.count_in_bins(be.array([0.0, 1.0, 2.0]), be.array([0.5, 2.0, 2.0])).get()
    array([1, 2])
    """

    name = "count_in_bins"
    __props__ = ("even",)
    even: bool = False
    examples = (
        (([-1.0, -0.25, 0.5, 0.5, 1.0], (9,)), {}),
        (([-1.0, 0.0, 1.0], (9,)), {"even": True}),
        (([1, 2, 2, 5], [0, 2, 3, 5, 6, 1]), {}),
        (([1, 3, 5], (0,)), {}),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        edges, y = shapes
        if len(edges) != len(y) or edges[0] == 0:  # in neon's mode vectors are columns
            raise ShapeError("the operands are vectors: one edge or more, and elements")
        return (None if edges[0] is None else edges[0] - 1, *edges[1:])

    batch = Op.batch_in_loop

    @portable
    def numpy(self, *arrays: Array) -> Any:
        edges, y = (as_array(a, *arrays) for a in arrays)
        flat, shape, edges = y.reshape(-1), (-1, *edges.shape[1:]), np.sort(edges.reshape(-1))
        if not isinstance(y, np.ndarray):
            found = np.where(flat == edges[-1], len(edges) - 1, np.searchsorted(edges, flat, side="right"))
            return np.bincount(found, minlength=len(edges) + 2)[1 : len(edges)].reshape(shape)
        flat = flat.view(np.uint8) if y.dtype.kind == "b" else flat
        bits = 8 * y.dtype.itemsize
        if bits <= NARROW and y.size > 2**bits:  # counted by their bits
            whole = np.dtype(f"uint{bits}")
            counts = np.bincount(flat.view(whole), minlength=2**bits)
            values = np.arange(2**bits, dtype=whole).view(flat.dtype)
            found = np.histogram(values, edges, weights=counts)[0]
        elif self.even:
            found = np.histogram(flat, len(edges) - 1, (edges[0], edges[-1]))[0]
        else:
            found = np.histogram(flat, edges)[0]
        return found.astype(np.int64, copy=False).reshape(shape)


@numpy_function(np.isin)
def _numpy_isin(element: Operand, test_elements: Operand, invert: bool = False) -> Any:
    found = f.isin(element, test_elements)
    return f.logical_not(found) if invert else found


@numpy_function(np.searchsorted)
def _numpy_searchsorted(a: Operand, v: Operand, side: str = "left", sorter: Operand | None = None) -> Any:
    return f.searchsorted(a if sorter is None else f.take(a, sorter, axis=0), v, side)


@function(numpy=np.digitize)
def digitize(x: Operand, bins: Any, right: bool = False) -> Any:
    """The bin index of each element, for monotonic edges; with `right`, bins include their right edges.

    Examples
    --------
    >>> be.digitize(be.array([0.5, 1.5]), np.array([0.0, 1.0, 2.0])).get()
    array([1, 2])
    """
    x, edges = check_real(variable_of(x, "digitize"), "digitize"), check_real(strong(bins, "digitize"), "digitize")
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


def _size(x: Variable, axis: int) -> Any:
    """The size of an axis: a number if it is known, or else a tree."""
    size = x.shape[axis]
    return f.cast(f.count(f.flat_indices(x), axis), "int64") if size is None else size


@function()
def bincount(x: Operand, weights: Operand | None = None, size: int | None = None) -> Any:
    """The number of occurrences of each integer below `size`, or the sum of its weights.

    NumPy derives the size from the largest element; here it is a parameter, because a tree's shape is
    known before it runs. A negative or larger integer is an error when it runs.

    Examples
    --------
    >>> be.bincount(np.array([0, 1, 1]), size=3).get()
    array([1, 2, 0])
    """
    x = variable_of(x, "bincount")
    if size is None:
        raise OperandError(
            "bincount: give size=, the number of bins, for a tree's shape is known before it runs; "
            "np.bincount(x.asnumpyarray()) has as many as the largest element says"
        )
    if weights is None:
        return _totals(x, None, size)
    w = check_real(variable_of(weights, "bincount: weights"), "bincount: weights")
    if None not in (*w.shape, *x.shape) and w.shape != x.shape:
        raise ShapeError(f"bincount: {describe(w)} has no weight for each element of {describe(x)}")
    return _totals(x, in_dtype(w, np.dtype("float64")), size)


def _totals(x: Variable, weights: Variable | None, size: int) -> Variable:
    """The number of occurrences of each integer below a size, or the sum of its weights."""
    flat = f.reshape(x, (-1,))
    # In neon's mode a vector is a column, and so are the bins.
    like = f.broadcast_to(constant(np.zeros((), np.int64)), (integer_of(size, "bincount: size"), *flat.shape[1:]))
    added = constant(np.ones((), np.int64)) if weights is None else f.reshape(weights, (-1,))
    return IndexAdd.make(indexing=Embedding.make())(added, like, flat)  # which refuses negative ones


@function(numpy=np.histogram_bin_edges)
def histogram_bin_edges(x: Operand, bins: Operand = 10, range: Any = None) -> Any:
    """The edges of a histogram's bins: a number of equal bins from minimum to maximum, or those given.

    Examples
    --------
    >>> be.histogram_bin_edges(be.array([0.0, 4.0]), bins=2).get()
    array([0., 2., 4.], dtype=float32)
    """
    x = variable_of(check_real(x, "histogram"), "histogram")
    if isinstance(bins, str):
        raise OperandError(
            f"histogram: the number of bins of {bins!r} is known only when it runs; give a number, or edges"
        )
    if not isinstance(bins, Variable) and np.ndim(bins) == 1 and np.any(np.diff(bins) < 0):
        raise OperandError("histogram: the edges are to ascend")
    if isinstance(bins, Variable) or np.ndim(bins):
        return bins if isinstance(bins, Variable) else _known(np.asarray(bins), x)
    count = integer_of(bins, "histogram: bins")
    if count < 1:
        raise OperandError(f"histogram: bins is 1 or more, not {bins}")
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
    """Constant values as a tensor of an operand's backend, if it has one."""
    return f.copy(values) if x.backend is None else x.backend.array(values, values.dtype)


@function(numpy=np.histogram)
def histogram(
    x: Operand, bins: Any = 10, range: Any = None, density: bool = False, weights: Operand | None = None
) -> tuple[Any, Any]:
    """The number of elements in each bin, the sum of their weights or, with `density`, their density; and the edges.

    Bins include their left edges, the last one its right edge too; nan is in no bin.

    Examples
    --------
    >>> counts, edges = be.histogram(be.array([0.0, 1.0, 4.0]), bins=2)
    >>> counts.get(), edges.get()
    (array([2, 1]), array([0., 2., 4.], dtype=float32))
    """
    x = variable_of(check_real(x, "histogram"), "histogram")
    edges = histogram_bin_edges(x, bins, range)
    count = edges.shape[0]
    if count is None:
        raise ShapeError(f"histogram: the number of edges {describe(edges)} must be known")
    flat = f.reshape(x, (-1,))
    if weights is None:
        found = f.count_in_bins(edges, flat, even=not isinstance(bins, Variable) and not np.ndim(bins))
    else:
        w = variable_of(weights, "histogram: weights")
        w = in_dtype(w, np.dtype("float64")) if w.dtype.kind == "b" else w
        bin = f.searchsorted(edges, flat, "right")  # 0 below, count above and at the last edge
        bin = f.where(f.eq(flat, f.slice(edges, (-1,))), count - 1, bin)
        # The totals at 0 and at `count` are of elements in no bin.
        found = f.slice(_totals(bin, w, count + 1), (slice(1, count),))
    if density:
        widths = f.diff(in_dtype(edges, np.dtype("float64")))
        found = found / widths / f.sum(found, keepdims=False)
    return found, edges


# Top k and partitions


@function()
def topk(x: Operand, k: int, axis: int = -1) -> tuple[Any, Any]:
    """The k largest elements along an axis in descending order, and their indices; of ties the first.

    A nan counts as larger than any number.

    Examples
    --------
    >>> [x.get().tolist() for x in be.topk(be.array([1.0, 3.0, 2.0]), 2)]
    [[3.0, 2.0], [1, 2]]
    """
    x = variable_of(x, "topk")
    axis, k = normalise_axis(axis, x.ndim, "topk"), integer_of(k, "topk: k")
    indices = f.top_indices(x, k, axis)
    return f.take_along_axis(x, indices, axis), indices


class TopIndices(AxisOperator, UnaryOperator, IntegerOperator, BlockOperator):
    """The indices of the k largest elements along an axis in descending order; of ties the first, nan the largest.

    Examples
    --------
    >>> be.top_indices(be.array([1.0, 3.0, 2.0]), k=2).get()
    array([1, 2])
    """

    name = "top_indices"
    __props__ = ("k", "axis")
    index_map = IndexMap()
    k: int = 1
    axis: Any = -1
    examples = (
        (((3, 5),), {"k": 2}),
        (((3, 5),), {"k": 3, "axis": 0}),
        (((2, 9),), {"k": 0}),
        (([3, 1, 2, 3, 1, 1],), {"k": 4, "axis": 0}),
        (((0, 3),), {"k": 2}),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        (shape,) = shapes
        size = shape[self.axis]
        if self.k < 0 or (size is not None and self.k > size):
            raise ShapeError(f"k is from 0 to {size}, not {self.k}")
        return (*shape[: self.axis], self.k, *shape[self.axis + 1 :])

    def blocks(self, *shapes: tuple[int, ...]) -> Blocks | None:
        return blocks_along(shapes[0], self.axis)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x = np.moveaxis(as_array(arrays[0]), self.axis, -1)
        is_quick = isinstance(x, np.ndarray) and x.dtype.kind in "biuf" and x.size and 0 < self.k < x.shape[-1]
        return np.moveaxis(_top(x, self.k) if is_quick else _in_descending_order(x)[..., : self.k], -1, self.axis)


def _in_descending_order(x: Array) -> Any:
    """The indices that sort along the last axis in descending order, stably: flipped before and after."""
    return x.shape[-1] - 1 - np.flip(ArgSort.make(axis=-1).value(np.flip(x, -1)), -1)


def _top(x: np.ndarray, k: int) -> np.ndarray:
    """The indices of the k largest elements along the last axis, of which there are more, by a partition."""
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
    least = np.partition(rows, -k, axis=-1)[:, -k, None]
    chosen = rows >= least
    if np.count_nonzero(chosen) != k * len(rows):  # ties with the least one, or nan
        chosen = ~(rows < least)
        ties = (rows == least) | ((rows != rows) & (least != least))
        above = chosen & ~ties & (least == least)
        chosen = above | (ties & (np.cumsum(ties, axis=-1) <= k - np.sum(above, axis=-1, keepdims=True)))
    indices = np.flatnonzero(chosen).reshape(-1, k) % rows.shape[-1]
    order = _in_descending_order(np.take_along_axis(rows, indices, -1))
    return np.take_along_axis(indices, order, -1).reshape(*x.shape[:-1], k)


class PartitionOperator(OneAxisOperator):
    """Base of the partition along an axis around the kth smallest, a number or several, and of its indices."""

    __props__: ClassVar[tuple[str, ...] | None] = ("kth", "axis")
    axis: Any = -1
    kth: Any = 0
    examples: ClassVar[Examples | Cases] = Examples(
        (  # whose order is unique
            (((3, 4),), {"kth": (1, 2)}),
            (((3, 4),), {"kth": (0, -1), "axis": 0}),
            (((2, 3, 2),), {"kth": 1, "axis": 1}),
            (((5,),), {"kth": (1, 3)}),
            (([3, 1, 2],), {"kth": 1}),
            (((2, 0),), {"kth": 0, "axis": 0}),
        ),
        random_props=False,
    )

    @classmethod
    def function(cls, x: Operand, kth: object, axis: Axis = -1) -> Any:  # type: ignore[override]
        return cls.make(kth=kth, axis=axis)(variable_of(x, str(cls.name)))

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        places = tuple(integer_of(k, f"{self.name}: kth") for k in np.atleast_1d(self.kth).tolist())
        return self.make(kth=places, axis=normalise_axis(self.axis, types[0].ndim, str(self.name)))

    def output_shape(self, *shapes: Shape) -> Shape:
        size = shapes[0][self.axis]
        for k in self.kth:
            if size is not None and not -size <= k < size:
                raise ShapeError(f"of {size} elements there is none at {k}")
        return shapes[0]


def _partition_props(choose: Any, x: Variable) -> dict[str, Any]:
    """All positions: the order of other elements depends on the library."""
    chosen = one_axis(choose, x)
    return {"kth": tuple(range(x.shape[chosen["axis"]] or 0 if x.ndim else 0)), **chosen}


@numpy_function(np.partition)
class Partition(PartitionOperator, OrderOperator):
    """The elements along an axis partitioned around the kth smallest, a number or several; nan counts as the largest.

    The kth is where it is in order, none before it is larger, and none after it is smaller.

    Examples
    --------
    >>> be.partition(be.array([4.0, 1.0, 3.0, 2.0]), 1).get()[1]
    np.float32(2.0)
    """

    name = "partition"

    examples = Examples(random_props=_partition_props)

    def put_in_order(self, x: np.ndarray) -> None:
        kind, places = _kind_for(x, self.axis), np.asarray(self.kth, np.intp)
        if kind is not None:
            x.sort(axis=self.axis, kind=kind)
        elif x.dtype == np.float16:
            _in_keys(x, lambda keys: keys.partition(places, axis=self.axis))
        else:
            x.partition(places, axis=self.axis)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        # The i-th smallest of the value is the i-th smallest of x, wherever the two are.
        in_order = f.take_along_axis(delta, f.argsort(self(x), self.axis), self.axis)
        return [IndexAdd.make(indexing=TakeAlongAxis.make(axis=self.axis))(in_order, x, f.argsort(x, self.axis))]


@numpy_function(np.argpartition)
class ArgPartition(PartitionOperator, IntegerOperator):
    """The indices that `partition` the operand along an axis; of equal elements in any order.

    Examples
    --------
    >>> be.argpartition(be.array([4.0, 1.0, 3.0, 2.0]), 1).get()[1]
    np.int64(3)
    """

    name = "argpartition"
    examples = (  # of different elements
        (([[3, 1, 2, 0], [7, 9, 6, 8], [5, 6, 4, 7]],), {"kth": (1, 2)}),
        (([[3, 1, 2], [0, 9, 6], [5, 6, 4]],), {"kth": (0, -1), "axis": 0}),
        (([[[3], [1]], [[0], [2]]],), {"kth": 1, "axis": 1}),
        (([3, 1, 2],), {"kth": 1}),
        (((2, 0),), {"kth": 0, "axis": 0}),
    )

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        if not isinstance(x, np.ndarray) or _kind_for(x, self.axis) is not None:
            return np.argsort(x, axis=self.axis, kind="stable")  # CuPy's partition sorts, too
        keys = _keys_of(x) if x.dtype == np.float16 else x
        return np.argpartition(keys, np.asarray(self.kth, np.intp), axis=self.axis)


# Functions whose size depends on values: at most `size` results, then a fill value


def _first_true(flat: Variable, size: int, what: str) -> tuple[Variable, Variable]:
    """The indices of the first `size` true elements, and a mask of the valid ones."""
    size = integer_of(size, f"{what}: size")
    count = flat.shape[0]
    if size < 0 or (size and count == 0):
        raise ShapeError(f"{what}: size is 0 or more, and 0 for an empty operand; not {size} for {describe(flat)}")
    order = f.argsort(f.logical_not(flat), 0)  # true ones first, stably
    indices = f.take(order, np.minimum(np.arange(size), count - 1) if count is not None else np.arange(size), axis=0)
    return indices, f.lt(np.arange(size), f.sum(flat, keepdims=False))


@function()
def flatnonzero(x: Operand, size: int | None = None, fill_value: int = 0) -> Any:
    """The flat indices of the first `size` nonzero elements, in C order, padded with `fill_value`.

    Examples
    --------
    >>> be.flatnonzero(be.array([0.0, 5.0, 7.0]), size=2).get()
    array([1, 2])
    """
    x = variable_of(x, "flatnonzero")
    if size is None:
        raise _needs_size("flatnonzero")
    indices, valid = _first_true(f.ne(f.reshape(x, (-1,)), 0), size, "flatnonzero")
    return f.where(valid, indices, fill_value)


@function()
def nonzero(x: Operand, size: int | None = None, fill_value: int = 0) -> tuple[Any, ...]:
    """The indices of the first `size` nonzero elements, in C order: an array for each axis, padded.

    Examples
    --------
    >>> (rows,) = be.nonzero(be.array([0.0, 5.0, 7.0]), size=2)
    >>> rows.get()
    array([1, 2])
    """
    x = variable_of(x, "nonzero")
    if size is None:
        raise _needs_size("nonzero")
    if not x.ndim:
        raise ShapeError(f"nonzero: {describe(x)} has no axis")
    indices, valid = _first_true(f.ne(f.reshape(x, (-1,)), 0), size, "nonzero")
    found = []
    for axis in reversed(range(x.ndim)):
        each = _size(x, axis)
        if isinstance(each, int):
            each = max(each, 1)
        found.append(f.where(valid, f.mod(indices, each), fill_value))
        indices = f.floor_divide(indices, each)
    return tuple(reversed(found))


@function()
def unique(x: Operand, size: int | None = None, fill_value: Operand | None = None) -> Any:
    """The first `size` distinct elements in ascending order, with nans merged, padded with `fill_value`.

    The default fill value is the smallest element. NumPy's result has no fixed size.

    Examples
    --------
    >>> be.unique(be.array([3.0, 1.0, 3.0]), size=2).get()
    array([1., 3.], dtype=float32)
    """
    x = variable_of(x, "unique")
    if size is None:
        raise _needs_size("unique")
    ordered = f.sort(f.reshape(x, (-1,)), 0)
    before, after = (f.slice(ordered, (part,)) for part in (slice(None, -1), slice(1, None)))
    differs = f.ne(before, after)
    if is_inexact(x.dtype):
        differs = f.logical_and(differs, f.logical_not(f.logical_and(f.isnan(before), f.isnan(after))))
    first = f.slice(ordered, (slice(0, 1),))
    indices, valid = _first_true(f.concatenate([f.eq(f.flat_indices(first), 0), differs], 0), size, "unique")
    return f.where(valid, f.take(ordered, indices, axis=0), first if fill_value is None else fill_value)


def _needs_size(name: str) -> OperandError:
    return OperandError(
        f"{name}: give size=, the maximum number of results, for a tree's shape is known before it runs; "
        f"np.{name}(x.asnumpyarray()) needs none"
    )
