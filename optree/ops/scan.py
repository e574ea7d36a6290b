"""Scans: cumulative sums and products, linear recurrences, differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, filled, portable
from optree.autodiff.reverse import adjoints_of
from optree.dtypes import can_cast, is_floating, is_inexact, wide_dtype
from optree.errors import DTypeError, ShapeError, describe
from optree.op.batching import aligned
from optree.op.examples import Cases, Examples
from optree.op.op import Op
from optree.op.traits import (
    AxisOperator,
    BinaryOperator,
    BlockOperator,
    Blocks,
    UnaryOperator,
    blocks_along,
    longest_axis,
    one_axis,
)
from optree.ops.indexing import TakeAlongAxis
from optree.ops.reduction import SumDtypeOperator, sum_dtype
from optree.ops.scattering import IndexAdd
from optree.ops.shape import slice_along, strong
from optree.registry import f, function, numpy_function
from optree.tree.types import Axis, Shape, TensorType, broadcast, integer_of, normalise_axis
from optree.tree.variable import Operand, Variable, in_dtype, variable_of

#: The rows from which NumPy's accumulations release the interpreter's lock: more than 500.
UNLOCKED = 512


class OneAxisOperator(AxisOperator, UnaryOperator, BlockOperator):
    """An op along one axis that keeps its operand's shape; the operand is flattened if the axis is None."""

    #: The least rows along the axis in a block of those that threads share.
    least_rows: ClassVar[int] = 1
    examples: ClassVar[Examples | Cases] = Examples(random_props=one_axis)

    def __call__(self, *inputs: Any) -> Any:
        if self.axis is None and len(inputs) == 1:
            return self.with_props(axis=0)(f.reshape(inputs[0], (-1,)))
        return super().__call__(*inputs)

    def blocks(self, *shapes: tuple[int, ...]) -> Blocks | None:
        axis = longest_axis(shapes[0], self.axis)
        if axis is None:
            return None
        others = math.prod(size for i, size in enumerate(shapes[0]) if i not in (axis, self.axis))
        return axis, (axis,), -(-self.least_rows // max(others, 1))


class CumulativeOperator(SumDtypeOperator, OneAxisOperator):
    """A cumulative sum or product, with NumPy's dtypes."""

    accumulate: ClassVar[Any]
    takes_complex = True
    least_rows = UNLOCKED
    examples = (
        (((3, 4),), {"axis": 0}),
        (((3, 4),), {"axis": -1}),
        (((2, 3, 2),), {"axis": 1}),
        (((5,),), {"axis": 0}),
        (((1, 3),), {"axis": 0}),
        (((0, 3),), {"axis": 0}),
    )

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        dtype = sum_dtype(x.dtype)
        # Always with an axis: without one CuPy uses CUB, whose sums of floats are not deterministic.
        return self.accumulate(x, axis=self.axis, dtype=wide_dtype(dtype)).astype(dtype, copy=False)

    def fill(self, out: Array, *arrays: Array) -> None:
        if wide_dtype(out.dtype) == out.dtype:
            self.accumulate(arrays[0], axis=self.axis, dtype=out.dtype, out=out)
        else:
            out[...] = self.value(*arrays)


@numpy_function(np.cumsum, np.add.accumulate)
class CumSum(CumulativeOperator):
    """The cumulative sum along an axis; of x flattened, if the axis is None.

    Examples
    --------
    >>> be.cumsum(be.array([1.0, 2.0, 3.0]), axis=0).get()
    array([1., 3., 6.], dtype=float32)
    """

    name = "cumsum"
    accumulate = staticmethod(np.cumsum)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [f.flip(self(f.flip(delta, self.axis)), self.axis)]


@numpy_function(np.cumprod, np.multiply.accumulate)
class CumProd(CumulativeOperator):
    """The cumulative product along an axis. Its gradient does not divide, so it is right at zeros.

    Examples
    --------
    >>> be.cumprod(be.array([1.0, 2.0, 3.0]), axis=0).get()
    array([1., 2., 6.], dtype=float32)
    """

    name = "cumprod"
    accumulate = staticmethod(np.cumprod)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [_used_product(_before(self(x), self.axis, 1), Recurrence.make(axis=self.axis, reverse=True)(x, delta))]


class CumulativeExtreme(OneAxisOperator):
    """The extreme of each element and those before it. The gradient is the latest's of equal ones."""

    least_rows = UNLOCKED
    extreme: ClassVar[np.ufunc]
    examples = CumulativeOperator.examples

    @portable
    def numpy(self, x: Array) -> Any:
        found = as_array(x).copy()
        if isinstance(found, np.ndarray):
            return self.extreme.accumulate(found, axis=self.axis)
        rows = np.moveaxis(found, self.axis, 0)  # CuPy's ufuncs accumulate nothing but sums and products
        step = 1
        while step < len(rows):
            rows[step:] = self.extreme(rows[step:], rows[:-step])
            step *= 2
        return found

    def fill(self, out: Array, *arrays: Array) -> None:
        self.extreme.accumulate(arrays[0], axis=self.axis, out=out)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        latest = f.cummax(f.where(f.eq(x, self(x)), f.flat_indices(x, self.axis), 0), self.axis)
        return [IndexAdd.make(indexing=TakeAlongAxis.make(axis=self.axis))(delta, x, latest)]


@numpy_function(np.maximum.accumulate)
class CumMax(CumulativeExtreme):
    """The cumulative maximum along an axis, of x flattened if the axis is None; nan from the first nan on.

    Examples
    --------
    >>> be.cummax(be.array([1.0, 3.0, 2.0])).get()
    array([1., 3., 3.], dtype=float32)
    """

    name = "cummax"
    extreme = np.maximum


@numpy_function(np.minimum.accumulate)
class CumMin(CumulativeExtreme):
    """The cumulative minimum along an axis, of x flattened if the axis is None; nan from the first nan on.

    Examples
    --------
    >>> be.cummin(be.array([3.0, 1.0, 2.0])).get()
    array([3., 1., 1.], dtype=float32)
    """

    name = "cummin"
    extreme = np.minimum


@numpy_function(np.logical_or.accumulate)
def _any_so_far(x: Operand, axis: Axis) -> Any:
    """Whether an element is true, of each and those before it."""
    return f.cummax(f.ne(x, 0), axis)


@numpy_function(np.logical_and.accumulate)
def _all_so_far(x: Operand, axis: Axis) -> Any:
    """Whether all elements are true, of each and those before it."""
    return f.cummin(f.ne(x, 0), axis)


@function(numpy=np.cumulative_sum)
def cumulative_sum(x: Operand, axis: int | None = None, include_initial: bool = False) -> Any:
    """The cumulative sum along an axis, after a 0 if `include_initial`; a vector needs no axis.

    Examples
    --------
    >>> be.cumulative_sum(be.array([1.0, 2.0, 3.0]), include_initial=True).get()
    array([0., 1., 3., 6.], dtype=float32)
    """
    return _after_first(f.cumsum, x, axis, 0 if include_initial else None, "cumulative_sum")


@function(numpy=np.cumulative_prod)
def cumulative_prod(x: Operand, axis: int | None = None, include_initial: bool = False) -> Any:
    """The cumulative product along an axis, after a 1 if `include_initial`; a vector needs no axis.

    Examples
    --------
    >>> be.cumulative_prod(be.array([1.0, 2.0, 3.0])).get()
    array([1., 2., 6.], dtype=float32)
    """
    return _after_first(f.cumprod, x, axis, 1 if include_initial else None, "cumulative_prod")


def _after_first(scan: Any, x: Operand, axis: int | None, first: int | None, what: str) -> Any:
    x = variable_of(x, what)
    if axis is None and x.ndim != 1:
        raise ShapeError(f"{what}: {describe(x)} of {x.ndim} dimensions needs an axis")
    axis = normalise_axis(-1 if axis is None else axis, x.ndim, what)
    found = scan(x, axis)
    return found if first is None else f.pad(found, tuple((int(i == axis), 0) for i in range(x.ndim)), first)


class Recurrence(BinaryOperator):
    """y[i] = a[i] * y[i - 1] + b[i] along an axis, from y[0] = b[0].

    With `reverse`, y[i] = a[i + 1] * y[i + 1] + b[i] from the other end, which is the derivative by b.
    On the host floats are computed sequentially; integers, and all numbers on a GPU, by recursive
    doubling, in log2 of the size passes.

    Examples
    --------
    >>> be.recurrence(be.array([0.5, 0.5, 0.5]), be.array([1.0, 1.0, 1.0])).get()
    array([1.  , 1.5 , 1.75], dtype=float32)
    """

    name = "recurrence"
    takes_complex = True
    operands = ("a", "b")
    __props__ = ("axis", "reverse")
    axis: Any = -1
    reverse: bool = False
    examples = (
        (((3, 4), (3, 4)), {}),
        (((3, 4), (3, 4)), {"axis": 0, "reverse": True}),
        (((5,), (5,)), {"reverse": True}),
        (((), (2, 7)), {}),
        (((2, 1), (1, 3)), {"axis": 0}),
        (((1,), (1,)), {}),
        (((0, 3), (0, 3)), {"axis": 0}),
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        axis = normalise_axis(self.axis, max(t.ndim for t in types), "recurrence")
        return self.make(axis=axis, reverse=bool(self.reverse))

    def output_shape(self, *shapes: Shape) -> Shape:
        return broadcast(*shapes)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        arrays = tuple(as_array(x, *arrays) for x in arrays)
        dtype = np.result_type(*arrays)
        a, b = (np.moveaxis(x, self.axis, 0).astype(wide_dtype(dtype)) for x in np.broadcast_arrays(*arrays))
        total, links = (b[::-1].copy(), a[:0:-1]) if self.reverse else (b, a[1:])
        if is_inexact(dtype) and isinstance(total, np.ndarray):
            total = _in_order(total, links)
        else:
            total = _by_doubling(total, links)
        return np.moveaxis(total[::-1] if self.reverse else total, 0, self.axis).astype(dtype, copy=False)

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        return self.with_props(axis=self.axis + 1)(*aligned(inputs, batched))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (a, b), (delta,) = inputs, output_gradients
        value, adjoint = self(a, b), self.with_props(reverse=not self.reverse)(a, delta)
        first, second = (adjoint, value) if self.reverse else (value, adjoint)
        return [_used_product(_before(first, self.axis, 0), second), adjoint]


class ExclusiveProd(SumDtypeOperator, AxisOperator, UnaryOperator, BlockOperator):
    """For each element, the product of all others along axes.

    Examples
    --------
    >>> be.exclusive_prod(be.array([2.0, 3.0, 4.0])).get()
    array([12.,  8.,  6.], dtype=float32)
    """

    name = "exclusive_prod"
    takes_complex = True
    examples = (
        (((3, 4),), {}),
        (((3, 5),), {"axis": 1}),
        (((3, 2, 2),), {"axis": (0, -1)}),
        (((1, 3),), {"axis": 0}),
        (((0, 3),), {"axis": 0}),
    )

    def blocks(self, *shapes: tuple[int, ...]) -> Blocks | None:
        return blocks_along(shapes[0], *self.axes(len(shapes[0])))

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        axes = self.axes(x.ndim)
        order = (*(i for i in range(x.ndim) if i not in axes), *axes)
        moved = np.transpose(x, order)
        rows = moved.reshape(*moved.shape[: x.ndim - len(axes)], math.prod(moved.shape[x.ndim - len(axes) :]))
        found = _exclusive(rows.astype(sum_dtype(x.dtype), copy=False))
        return found.reshape(moved.shape).transpose(np.argsort(order).tolist())

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        if not (axes := self.axes(x.ndim)):
            return [f.fill_like(delta, 0)]
        first, *rest = axes
        before, after = (f.cumprod(each, first) for each in (x, f.flip(x, first)))
        value = _before(before, first, 1) * f.flip(_before(after, first, 1), first)
        if rest:
            value = value * f.exclusive_prod(f.prod(x, axis=first), tuple(rest))
        return adjoints_of({value: delta}, [x], delta.dtype)


def _exclusive(terms: np.ndarray) -> np.ndarray:
    """For each element along the last axis, the product of all others, pairwise."""
    count = terms.shape[-1]
    if count % 2 or count == 0:
        one = filled((*terms.shape[:-1], 1), 1, terms.dtype, terms)
        return one[..., :count] if count < 2 else _exclusive(np.concatenate([terms, one], axis=-1))[..., :count]
    half = count // 2  # contiguous, where neighbours would be strided
    left, right = terms[..., :half], terms[..., half:]
    others = _exclusive(left * right)
    value = np.empty_like(terms)
    np.multiply(others, right, out=value[..., :half])
    np.multiply(others, left, out=value[..., half:])
    return value


#: Rows of fewer floats are computed as Python floats, which is faster than a NumPy call for each row.
FEW = 32

#: Bound of exponents: beyond it any product is 0 or infinite, and the sum of two fits an int32.
MOST = 2**20


def _in_order(total: np.ndarray, links: np.ndarray) -> np.ndarray:
    """total[i + 1] += links[i] * total[i], sequentially."""
    shape, count = total.shape, len(total)
    rows, factors = (x.reshape(len(x), math.prod(shape[1:])) for x in (np.ascontiguousarray(total), links))
    if count and rows.shape[1] < FEW:
        for column in range(rows.shape[1]):
            terms = zip(factors[:, column].tolist(), rows[1:, column].tolist(), strict=True)
            first = rows[0, column].item()
            rows[:, column] = list(accumulate(terms, lambda last, pair: pair[0] * last + pair[1], initial=first))
    else:
        for i in range(1, count):
            rows[i] += factors[i - 1] * rows[i - 1]
    return rows.reshape(shape)


def _by_doubling(total: Array, links: Array) -> Any:
    """The same by recursive doubling, with steps of 1, 2, 4, ...

    links[i] is the factor of total[i] in total[i + step]. For floats it is a mantissa and an
    exponent, because a product of many overflows or underflows where its product with total[i] need not.
    """
    step, floats = 1, is_floating(total.dtype)
    powers: Any = None
    if floats:
        links, powers = np.frexp(links)
    while step < len(total):
        moved = links * total[:-step]
        total[step:] = total[step:] + (np.ldexp(moved, powers) if floats else moved)
        links = links[:-step] * links[step:]
        if floats:
            links, more = np.frexp(links)
            powers = np.clip(powers[:-step] + powers[step:] + more, -MOST, MOST)
        step *= 2
    return total


def _used_product(x: Variable, y: Variable) -> Variable:
    """The product of two values, 0 where one is 0 and the other has overflowed."""
    left, right = (f.where(f.logical_and(f.eq(b, 0), f.logical_not(f.finite(a))), 0, a) for a, b in ((x, y), (y, x)))
    return left * right


def _before(x: Variable, axis: int, first: float) -> Variable:
    """The operand shifted by one along an axis, with a number as the first element."""
    widths = tuple((int(i == axis), 0) for i in range(x.ndim))
    return f.head_like(f.pad(x, widths, first), x, axis)


def _end_of(x: Variable, value: object, axis: int) -> Variable:
    """A value to put before or after an operand; a number, of NumPy's dtype, is broadcast over the other axes."""
    value = strong(value, "diff")
    if value.ndim:
        return value
    sizes = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    if None in sizes:
        raise ShapeError(f"diff: the sizes of {describe(x)} must be known to put a number before or after it")
    return f.broadcast_to(value, sizes)


@function(numpy=np.diff)
def diff(x: Any, n: int = 1, axis: int = -1, prepend: object = None, append: object = None) -> Any:
    """The n-th differences along an axis, with values put before and after; for bools, whether neighbours differ.

    Examples
    --------
    >>> be.diff(be.array([1.0, 2.0, 4.0])).get()
    array([1., 2.], dtype=float32)
    """
    x = variable_of(x, "diff")
    axis = normalise_axis(axis, x.ndim, "diff")
    if prepend is not None or append is not None:
        ends = [None if each is None else _end_of(x, each, axis) for each in (prepend, append)]
        x = f.concatenate([each for each in (ends[0], x, ends[1]) if each is not None], axis)
    for _ in range(integer_of(n, "diff: n", 0)):
        later, earlier = slice_along(x, axis, 1, None), slice_along(x, axis, None, -1)
        x = f.ne(later, earlier) if x.dtype.kind == "b" else later - earlier
    return x if n else f.copy(x)


@function(numpy=np.ediff1d)
def ediff1d(x: Any, to_end: object = None, to_begin: object = None) -> Any:
    """The differences of consecutive elements of the operand, flattened, with values put before and after.

    Examples
    --------
    >>> be.ediff1d(be.array([[1.0, 2.0], [4.0, 8.0]])).get()
    array([1., 2., 4.], dtype=float32)
    """
    x = f.ravel(variable_of(x, "ediff1d"))
    parts = [found := slice_along(x, 0, 1, None) - slice_along(x, 0, None, -1)]
    for at, values in ((1, to_end), (0, to_begin)):
        if values is not None:
            ends = f.ravel(strong(values, "ediff1d"))
            if not can_cast(ends.dtype, found.dtype, "same_kind"):
                raise DTypeError(f"ediff1d: {describe(ends)} is put beside differences of {found.dtype}, and not cast")
            parts.insert(at, in_dtype(ends, found.dtype))
    return f.concatenate(parts, 0) if len(parts) > 1 else found


@function(numpy=np.unwrap)
def unwrap(x: Operand, discont: Any = None, axis: int = -1, period: Any = 2 * math.pi) -> Any:
    """Angles with multiples of a period added so that neighbours differ by half a period at most.

    Only neighbours that differ by `discont` at least are moved, by default half a period.

    Examples
    --------
    >>> be.unwrap(be.array([0.0, 5.0, 10.0]), period=6).get()
    array([ 0., -1., -2.], dtype=float32)
    """
    x = variable_of(x, "unwrap")
    steps = diff(x, axis=axis)
    whole = not is_floating(steps.dtype) and isinstance(period, int)
    if whole and steps.dtype.kind == "u":
        raise DTypeError(f"unwrap: {describe(x)} is unsigned, and its differences wrap; x.astype('int64') has them all")
    high = period // 2 if whole else period / 2
    moved = f.mod(steps + high, period) - high
    if not whole or period % 2 == 0:  # half a period up stays one up
        moved = f.where(f.logical_and(f.eq(moved, -high), steps > 0), high, moved)
    jumps = f.where(abs(steps) < (period / 2 if discont is None else discont), 0, moved - steps)
    first = slice_along(x, normalise_axis(axis, x.ndim, "unwrap"), 0, 1)
    later = slice_along(x, normalise_axis(axis, x.ndim, "unwrap"), 1, None) + f.cumsum(jumps, axis)
    dtype = steps.dtype if whole else later.dtype
    return f.concatenate([in_dtype(first, dtype), in_dtype(later, dtype)], axis)
