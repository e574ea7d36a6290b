"""Scatter ops: writing and adding at index arrays, and the derivatives of gather ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import wide_dtype
from optree.errors import ShapeError, describe
from optree.op.batching import spread_all
from optree.op.index_map import LIKE, OPAQUE, IndexMap, windowed
from optree.op.op import Op
from optree.op.traits import FirstDtypeOperator, LogicalOperator, UpdateOperator
from optree.ops.indexing import (
    ArraysOperator,
    Gather,
    Take,
    TakeAlongAxis,
    TemplateOperator,
    as_positions,
    batched_template,
    check_bounds,
    check_indices,
    flat_positions,
    out_of_range,
    parsed,
    pick,
    taken_whole,
)
from optree.ops.shape import Unslice, aligned_value, broadcasts_to, with_leading_axes
from optree.registry import f, function
from optree.tree import indexing as indices
from optree.tree.types import Shape, TensorType, promote, weak_dtype, without_lead
from optree.tree.variable import Operand, Variable, as_operand, as_variable, constant

#: Maximum ratio of the result's elements to the values at which `np.bincount` is faster than `np.add.at`.
SPARSE = 4

#: Values in a block of rows that are added up at the same flat indices.
BLOCK = 1 << 15


class IndexAdd(FirstDtypeOperator, ArraysOperator):
    """Zeros of the shape of `like`, with x added at the indices of an indexing op, whose derivative this is.

    Repeated indices add up, in order, in float64 if x is dense and floating, and float16 in
    float32 at least; on a GPU pairwise. The result is deterministic on both.

    Attributes
    ----------
    indexing : Op
        The indexing op: `gather`, `take` or `take_along_axis`.
    """

    name = "index_add"
    takes_complex = True
    index_map = IndexMap(OPAQUE, LIKE, OPAQUE)
    __props__ = ("indexing",)
    leading = 2
    indexing: Any = Gather.make(index=(indices.ARRAY,))
    examples = (
        (((3, 2), (5, 2), [2, 0, 2]), {}),
        (((2, 1, 2), (4, 3), [[0, -1]]), {"indexing": Gather.make(index=((None, None, 2), "array"))}),
        (((3,), (4, 3), [1, 1, 0], [2, 2, 0]), {"indexing": Gather.make(index=("array", "array"))}),
        (((5, 2), (5, 3), [1, 1]), {"indexing": Take.make(axis=1)}),
        (((2, 4), (2, 3), [[2, 0, 2, 1], [0, 0, -1, 1]]), {"indexing": TakeAlongAxis.make(axis=1)}),
        (((), (6,), [5]), {"indexing": Take.make(axis=0)}),
        (((3, 2, 3), (3, 2, 4), [[[2, 0, -1], [0, 0, 3]]]), {"indexing": TakeAlongAxis.make(axis=2)}),
    )

    @classmethod
    def function(cls, x: Operand, like: Operand, *arrays: Operand, indexing: object = indexing) -> Any:  # type: ignore[override]
        return cls.make(indexing=indexing)(x, like, *arrays)

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        check_indices(types[2:], "index_add")
        return self.make(indexing=self.indexing.bind(types[1:], backend))

    def output_shape(self, *shapes: Shape) -> Shape:
        x, like, *arrays = shapes
        selected = self.indexing.output_shape(like, *arrays)
        if not broadcasts_to(x, selected):
            raise ShapeError(f"{x} does not broadcast to the selected shape {selected}")
        return like

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, like, *rest = (as_array(a, *arrays) for a in arrays)
        places = [as_positions(a) for a in rest]
        if not isinstance(x, np.ndarray):
            return _add_rows(like.shape, self.indexing.index_of(like.shape, places), x, str(self.indexing.name))
        rows, positions = self.indexing.in_rows(like.shape, *places)
        selected = (*like.shape[:rows], *positions.shape)
        # NumPy copies the weights of bincount that may not be written, as those of broadcast_to may not be.
        return add_at(like.shape, positions, x if x.shape == selected else np.broadcast_to(x, selected))

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        (x, like), arrays = spread_all(inputs, batched, 2), [as_variable(y) for y in inputs[2:]]
        shapes = [tuple(y.shape[each:]) for y, each in zip((like, *arrays), (True, *batched[2:]), strict=True)]
        op, given, order = self.indexing.batched(like, arrays, batched[2:])
        value = _in_order(aligned_value(x, len(self.indexing.output_shape(*shapes))), order)
        return self.make(indexing=op)(value, like, *given)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (_, _, *arrays), (delta,) = inputs, output_gradients
        return [self.indexing(delta, *arrays), None] + [None] * len(arrays)


def _in_order(values: Variable, order: tuple[int, ...] | None) -> Variable:
    """A batch of values with its axes in the order of an indexing op's value, which `order` transposes to a batch's."""
    return values if order is None else f.transpose(values, tuple(order.index(i) for i in range(len(order))))


def add_at(shape: tuple[int, ...], positions: Array, values: Array) -> Any:
    """Zeros of a shape with values added at flat indices, in order; in a row each, where the values have more axes."""
    lead = values.ndim - positions.ndim
    size, rows, dtype = math.prod(shape), math.prod(values.shape[:lead]), values.dtype
    width = size // max(rows, 1)
    indices = positions.reshape(-1)
    if dtype.kind in "iu" and values.size and not any(values.strides):  # one number, as in a histogram
        counts = np.bincount(indices, minlength=width).astype(dtype, copy=False)
        return np.tile(counts * values[(0,) * values.ndim], rows).reshape(shape)
    flat = values.reshape(rows, positions.size)
    if not _fits_doubles(flat) or flat.size * SPARSE < size:
        whole = np.zeros(size, wide_dtype(dtype))  # float16 cannot count past 2048
        np.add.at(whole, _in_each(rows, width, indices), flat.reshape(-1).astype(whole.dtype, copy=False))
        return whole.astype(dtype, copy=False).reshape(shape)
    total = np.empty((rows, width), dtype)
    count = min(rows, max(1, BLOCK // max(width, indices.size, 1)))
    indices = _in_each(count, width, indices)
    for row in range(0, rows, count):  # in blocks, which stay in cache as float64
        part = flat[row : row + count]
        sums = np.bincount(indices[: part.size], weights=part.reshape(-1), minlength=len(part) * width)
        if dtype.kind != "f":
            sums = sums.astype(np.int64)  # narrower integers take its low bits, as their own sums wrap
        total[row : row + count] = sums.reshape(len(part), width)
    return total.reshape(shape)


def _fits_doubles(values: Any) -> bool:
    """Whether float64 holds all sums as well as the dtype does: those of floats, and of integers small enough."""
    if values.dtype.kind not in "iu":
        return bool(values.dtype.kind == "f")
    return max(-int(values.min(initial=0)), int(values.max(initial=0))) * values.size < 1 << 53


def _in_each(rows: int, width: int, indices: Array) -> Any:
    """Flat indices in each of some rows of a width."""
    return indices if rows == 1 else (np.arange(rows)[:, None] * width + indices).reshape(-1)


def _in_groups(positions: Array) -> tuple[Any, Any, Any]:
    """Sort positions stably, so that equal ones are adjacent.

    Returns
    -------
    order, sorted : array
    first : array
        For each sorted position, the index at which its group of equal ones begins.
    """
    count = positions.size
    # Distinct keys, so that an unstable sort keeps the order of equal positions.
    order = np.argsort(positions * max(count, 1) + np.arange(count, like=positions))
    found = positions[order]
    return order, found, np.searchsorted(found, found)


def _add_rows(shape: tuple[int, ...], index: tuple[Any, ...], values: Array, what: str) -> Any:
    """Zeros of a shape with values added at a NumPy index, pairwise, for libraries whose scatter is unordered.

    The trailing axes that the index selects whole form rows, which are sorted and added as a whole.
    """
    whole = taken_whole(index)
    outer, inner = shape[: len(shape) - whole], shape[len(shape) - whole :]
    rows = flat_positions(outer, index[: len(index) - whole], what)
    values = np.broadcast_to(values, (*rows.shape, *inner)).reshape(rows.size, math.prod(inner))
    total = np.zeros((math.prod(outer), math.prod(inner)), values.dtype, like=values)
    if values.size:
        order, found, first = _in_groups(rows.ravel())
        sums = values[order].astype(wide_dtype(values.dtype), copy=False)
        rank = np.arange(rows.size, like=rows) - first
        step, most = 1, int(rank.max()) + 1
        while step < most:
            joins = (found[step:] == found[:-step]) & (rank[:-step] % (2 * step) == 0)
            sums[:-step] = sums[:-step] + np.where(joins[:, None], sums[step:], sums.dtype.type(0))
            step *= 2
        total[found] = sums[first].astype(values.dtype, copy=False)
    return total.reshape(shape)


@function()
def scatter_add(x: Operand, index: object, value: Operand) -> Any:
    """The operand with a value added at a NumPy index, as by np.add.at: repeated indices add up.

    Examples
    --------
    >>> labels = be.array([0, 2, 2], "int64")
    >>> be.scatter_add(be.zeros(3), labels, be.ones(3)).asnumpyarray()
    array([1., 0., 2.], dtype=float32)
    """
    x, template, arrays = parsed(x, index, "scatter_add")
    value = as_operand(value, "scatter_add")
    if not isinstance(value, Variable):
        value = constant(np.asarray(value, promote(as_variable(x).dtype, weak_dtype(type(value)))))
    if not arrays:
        return f.add(x, Unslice.make(index=template)(value, x))
    return f.add(x, IndexAdd.make(indexing=Gather.make(index=template))(value, x, *arrays))


class Scatter(TemplateOperator, UpdateOperator):
    """x with a value written at a NumPy index: x after ``x[index] = value`` in NumPy.

    Of repeated indices the last value is written. The value is cast to x's dtype. The op's
    own `index` is a template, as that of `gather`.

    Examples
    --------
    >>> be.scatter(be.zeros(4), slice(2, None), 7).asnumpyarray()
    array([0., 0., 7., 7.], dtype=float32)
    >>> be.scatter(be.zeros((2, 3)), ([0, 1], [2, 0]), be.array([5, 6])).asnumpyarray()
    array([[0., 0., 5.],
           [6., 0., 0.]], dtype=float32)
    """

    name = "scatter"
    index_map = IndexMap(windowed(), OPAQUE)
    leading = 2
    examples = (
        (((5, 3), (2, 3), [3, 0]), {}),
        (((5, 3), (3, 3), [2, 0, 2]), {}),
        (((5, 3), (), [2, 0, 2]), {}),
        (((4, 3), (3,), [3, 0, 3], [1, 1, 1]), {"index": ("array", "array")}),
        (((2, 3, 4), (2, 1), [1, 1]), {"index": (0, (1, None, None), "array")}),
        (((5, 3), (2, 1)), {"index": ((None, None, 3), (1, None, None))}),
        (((5, 3), (3,)), {"index": (-1,)}),
    )

    @classmethod
    def function(cls, x: Operand, index: object, value: Operand) -> Any:  # type: ignore[override]
        x, template, arrays = parsed(x, index, "scatter")
        return cls.make(index=template)(x, value, *arrays)

    def __call__(self, *inputs: Any) -> Any:
        try:
            return super().__call__(*inputs)
        except ShapeError as error:  # name the user's operand: x[mask] = value has made others
            reason = error.__context__ or error
            raise ShapeError(f"scatter: {describe(inputs[0])} takes no such value: {reason}") from None

    def output_shape(self, *shapes: Shape) -> Shape:
        x, value, *rest = shapes
        selected = indices.shape_of(self.index, x, rest)
        if not broadcasts_to(without_lead(value, selected), selected):
            raise ShapeError(f"the mask or index selects {_elements(selected)}, the value has {_elements(value)}")
        return x

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        x, _, *rest = map(promote, dtypes)
        return (x, x, *rest, x)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, *rest = (as_array(a, *arrays) for a in arrays)
        return self.update(x.copy(), *rest)

    def fill(self, out: Array, *arrays: Array) -> None:
        x, value, *rest = (as_array(a) for a in arrays)
        self.output_shape(x.shape, value.shape, *(a.shape for a in rest))
        check_bounds("scatter", x.shape, indices.to_numpy(self.index, [as_positions(a) for a in rest]))
        np.copyto(out, x)
        self.update(out, value, *rest)

    def update(self, out: Array, value: Array, *arrays: Array) -> Any:
        """Write the value into an array and return it; nothing is written if an index is out of range."""
        if not isinstance(out, np.ndarray):
            return self._write_in_groups(out, value, arrays)
        # All in C order, because NumPy writes in memory order, and the last value counts.
        value, *positions = (np.asarray(a, order="C") for a in (value, *map(as_positions, arrays)))
        index = indices.to_numpy(self.index, positions)
        try:
            out[index] = value
        except IndexError as error:
            raise out_of_range("scatter", out.shape, index, error) from None
        return out

    def _write_in_groups(self, out: Array, value: Any, arrays: Sequence[Any]) -> Any:
        """The same for libraries whose writes are unordered: of repeated indices only the last is written."""
        index = indices.to_numpy(self.index, [as_positions(a) for a in arrays])
        if not arrays:
            out[index] = value
            return out
        positions = flat_positions(out.shape, index, "scatter")
        value = value.reshape(without_lead(value.shape, positions.shape))
        if positions.size:
            order, found, _ = _in_groups(positions.ravel())
            last = order[np.searchsorted(found, found, side="right") - 1]
            flat = np.broadcast_to(value, positions.shape).ravel()
            out.reshape(-1)[found] = flat[last].astype(out.dtype)
        return out

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        (x, value), arrays = spread_all(inputs, batched, 2), [as_variable(y) for y in inputs[2:]]
        shapes = [tuple(y.shape[each:]) for y, each in zip((x, *arrays), (True, *batched[2:]), strict=True)]
        template, given, order = batched_template(self.index, x, arrays, batched[2:])
        value = _in_order(aligned_value(value, len(indices.shape_of(self.index, shapes[0], shapes[1:]))), order)
        return self.make(index=template)(x, value, *given)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, value, *arrays), (delta,) = inputs, output_gradients
        picked = pick(delta, self.index, arrays)
        if arrays:
            picked = f.where(IsLast.make(index=self.index)(x, *arrays), picked, 0)
        lost = Scatter.make(index=self.index)(delta, 0, *arrays)
        # The value's extra leading axes of size 1.
        return [lost, with_leading_axes(picked, value.ndim)] + [None] * len(arrays)


def _elements(shape: Shape) -> str:
    return f"the shape {shape}" if None in shape else f"{math.prod(shape)} elements {shape}"  # type: ignore[arg-type]


class IsLast(TemplateOperator, LogicalOperator):
    """For each value that `scatter` writes at index arrays, whether it is the last one for its element."""

    name = "is_last"
    takes_complex = True
    examples = (
        (((5, 3), [2, 0, 2]), {}),
        (((4, 3), [3, 0, 3], [1, 1, 1]), {"index": ("array", "array")}),
    )

    @classmethod
    def function(cls, x: Operand, index: object) -> Any:  # type: ignore[override]
        x, template, arrays = parsed(x, index, "is_last")
        return cls.make(index=template)(x, *arrays)

    def output_shape(self, *shapes: Shape) -> Shape:
        x, *rest = shapes
        return indices.shape_of(self.index, x, rest)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, *rest = (as_array(a, *arrays) for a in arrays)
        index = indices.to_numpy(self.index, [as_positions(a) for a in rest])
        positions = flat_positions(x.shape, index, "is_last")
        stays = np.zeros(positions.size, bool, like=positions)
        if positions.size:
            order, found, _ = _in_groups(positions.ravel())
            stays[order[:-1]] = found[1:] != found[:-1]
            stays[order[-1:]] = True
        return stays.reshape(positions.shape)

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        (x,), arrays = spread_all(inputs, batched, 1), [as_variable(y) for y in inputs[1:]]
        template, given, order = batched_template(self.index, x, arrays, batched[1:])
        found = self.make(index=template)(x, *given)
        return found if order is None else f.transpose(found, order)
