"""Reductions: sums, products, extremes and their indices, variances, norms."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, filled, portable
from optree.dtypes import is_complex, is_floating, is_inexact, real_dtype, wide_dtype
from optree.errors import OperandError, ShapeError
from optree.op.examples import examples_in
from optree.op.index_map import SHAPE, IndexMap
from optree.op.op import Op, for_complex
from optree.op.traits import (
    Accumulator,
    BlockOperator,
    Blocks,
    CompositeOperator,
    FloatOperator,
    IntegerOperator,
    LogicalOperator,
    NonDifferentiableOperator,
    ReductionOperator,
    UnaryOperator,
    longest_axis,
)
from optree.ops.summation import accurate_sum
from optree.ops.transcendental import finite_direction, or_one
from optree.registry import f, function, numpy_function
from optree.tree.types import Axis, Shape, TensorType, normalise_axes, promote
from optree.tree.variable import Operand, Variable, any_neon, in_dtype, is_complex_operand, is_neon, variable_of

#: C's conjunction of bools: a mask, where ``&`` has GCC make 0 or 1 of each byte before.
AND = "{1} ? {0} : 0"


def sum_dtype(dtype: np.dtype | type) -> np.dtype:
    """The dtype of NumPy's sums and products: narrow integers and bools become 64-bit."""
    found = promote(dtype)
    return found if is_inexact(found) else np.dtype("uint64" if found.kind == "u" else "int64")


def mean_dtype(dtype: np.dtype | type) -> np.dtype:
    """The dtype of NumPy's means: integers and bools become float64."""
    found = promote(dtype)
    return found if is_inexact(found) else np.dtype("float64")


def as_floats(x: Variable) -> Variable:
    """An operand in the dtype of its mean: squares and differences of integers would wrap."""
    return in_dtype(x, mean_dtype(x.dtype))


def widened(x: Variable) -> Variable:
    """An operand in the dtype of its mean's accumulator."""
    return in_dtype(x, wide_dtype(mean_dtype(x.dtype)))


class MeanDtypeOperator(FloatOperator):
    """An op whose value has the dtype of its first operand's mean: float64 for integers."""

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return (*map(promote, dtypes), mean_dtype(dtypes[0]))


class SumDtypeOperator(Op):
    """An op whose value has the dtype of its operand's sum: 64 bits for integers."""

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return promote(dtypes[0]), sum_dtype(dtypes[0])


#: The examples of a reduction that has a value over empty axes.
WITH_IDENTITY = (
    *examples_in(ReductionOperator).cases,
    (((20, 3, 2),), {"axis": (0, 2)}),
    (((0, 3),), {"axis": 0}),
    (((0, 3),), {"axis": 0, "keepdims": False}),
)


class UfuncReduction(ReductionOperator):
    """A reduction by one ufunc, which also combines partial results."""

    takes_complex: ClassVar[bool | None] = True


@numpy_function(np.sum)
class Sum(SumDtypeOperator, ReductionOperator):
    """The sum over axes, as accurate as a pairwise sum over any axis of any layout.

    Parameters
    ----------
    x : operand
    axis : int or tuple of int, optional
        All axes by default.
    keepdims : bool
        Whether reduced axes are kept with size 1. NumPy's default is False.

    Returns
    -------
    tree
        Of the dtype of x; of integers and bools, the widest integers, as `np.sum`.

    Examples
    --------
    >>> x = be.array([[1.0, 2.0], [3.0, 4.0]])
    >>> be.sum(x, axis=0).get(), be.sum(x, axis=0, keepdims=False).get(), np.sum(x, axis=0).get()
    (array([[4., 6.]], dtype=float32), array([4., 6.], dtype=float32), array([4., 6.], dtype=float32))
    """

    name = "sum"
    takes_complex = True
    accumulator = Accumulator("0", "{0} + {1}", sums=True)
    examples = WITH_IDENTITY

    def by_parts(self, x: Any) -> Any:
        return self(x[0]), self(x[1])

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        dtype = sum_dtype(x.dtype)
        total = accurate_sum(x, self.axes(x.ndim), self.keepdims, wide_dtype(dtype))
        return total if total.dtype is dtype else total.astype(dtype, copy=False)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [self.spread(delta, x)]


@numpy_function(np.mean)
class Mean(MeanDtypeOperator, ReductionOperator):
    """The mean over axes; nan for empty axes.

    Examples
    --------
    >>> be.mean(be.array([[1.0, 5.0], [4.0, 2.0]]), axis=1).get()
    array([[3.],
           [3.]], dtype=float32)
    """

    name = "mean"
    takes_complex = True
    accumulator = Accumulator("0", "{0} + {1}", "{0} / {count}", sums=True)

    def by_parts(self, x: Any) -> Any:
        return self(x[0]), self(x[1])

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        dtype, axes = mean_dtype(x.dtype), self.axes(x.ndim)
        total = accurate_sum(x, axes, self.keepdims, wide_dtype(dtype))
        return np.true_divide(total, prod([x.shape[i] for i in axes])).astype(dtype, copy=False)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [self.spread(in_dtype(delta / f.count(x, self.axis), delta.dtype), x)]


class Count(NonDifferentiableOperator, UnaryOperator):
    """The number of elements along axes, as a 0-d value of the operand's floating dtype.

    It is float32 for float16 and bfloat16, which cannot represent large counts, and float64
    for integers. On a backend in neon's mode it is 2-D.

    Examples
    --------
    >>> be.count(be.ones((2, 3)), axis=1).get()
    array(3., dtype=float32)
    """

    name = "count"
    takes_complex = True
    raises = False
    index_map = IndexMap(SHAPE)
    __props__ = ("axis", "ndim")
    axis: Any = None
    ndim: int = 0
    examples = ((((3, 4),), {}), (((3, 4, 5),), {"axis": (0, -1)}), (((3, 4),), {"axis": -1}), (((0, 3),), {"axis": 0}))

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        axis = None if self.axis is None else normalise_axes(self.axis, types[0].ndim, "count")
        return self.make(axis=axis, ndim=max(self.ndim, 2 if is_neon(backend) else 0))

    def output_shape(self, *shapes: Shape) -> Shape:
        return (1,) * self.ndim

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return promote(dtypes[0]), real_dtype(wide_dtype(mean_dtype(dtypes[0])))

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        count = prod([x.shape[i] for i in normalise_axes(self.axis, x.ndim, "count")])
        return filled((1,) * self.ndim, count, real_dtype(wide_dtype(mean_dtype(x.dtype))), x)


# Products


class Prod(SumDtypeOperator, UfuncReduction):
    """The product over axes. Its gradient does not divide, so it is right at zeros.

    Examples
    --------
    >>> be.prod(be.array([[1.0, 5.0], [4.0, 2.0]]), axis=1).get()
    array([[5.],
           [8.]], dtype=float32)
    """

    name = "prod"
    numpy = np.prod
    accumulator = Accumulator("1", "{0} * {1}")
    examples = WITH_IDENTITY

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [self.restore(delta, x) * f.exclusive_prod(x, self.axis)]


# Extremes


def to_extremes(op: ReductionOperator, x: Variable, ties: Variable, delta: Variable) -> Variable:
    """The delta of an extreme, shared evenly among the elements that equal it; in neon's mode, in full to each."""
    delta = op.restore(delta, x)
    if not any_neon([x, delta]):
        delta = delta / f.sum(f.cast(ties, delta.dtype), axis=op.axis, keepdims=True)
    return f.where(ties, delta, 0)


class ExtremeOperator(UfuncReduction):
    """The maximum or minimum over axes; nan if there is one, to which the gradient then goes."""

    takes_complex = False
    has_identity = False
    #: The accumulator's initial value.
    start: ClassVar[str]
    #: The C condition on which ``{1}`` replaces ``{0}``.
    further: ClassVar[str]
    of_bools: ClassVar[Accumulator]

    def accumulator_for(self, dtype: np.dtype) -> Accumulator:
        if dtype == np.bool_:
            return self.of_bools
        of_numbers = f"{self.further} ? {{1}} : {{0}}"
        if not is_floating(dtype):
            return Accumulator(self.start, of_numbers)
        return Accumulator(self.start, f"{self.further} || {{1}} != {{1}} ? {{1}} : {{0}}", of_numbers=of_numbers)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        ties = f.eq(x, self.restore(self(x), x))
        if is_floating(x.dtype):
            ties = f.logical_or(ties, f.isnan(x))
        return [to_extremes(self, x, ties, delta)]


@numpy_function(np.amax)
class Max(ExtremeOperator):
    """The maximum over axes; nan if there is one. Ties share the gradient evenly.

    Examples
    --------
    >>> be.max(be.array([[1.0, 5.0], [4.0, 2.0]]), axis=1).get()
    array([[5.],
           [4.]], dtype=float32)
    """

    name = "max"
    numpy = np.max
    start = "{lowest}"
    further = "{1} > {0}"
    of_bools = Accumulator("0", "{0} | {1}", absorbing="1")


@numpy_function(np.amin)
class Min(ExtremeOperator):
    """The minimum over axes; nan if there is one. Ties share the gradient evenly.

    Examples
    --------
    >>> be.min(be.array([[1.0, 5.0], [4.0, 2.0]]), axis=1).get()
    array([[1.],
           [2.]], dtype=float32)
    """

    name = "min"
    numpy = np.min
    start = "{highest}"
    further = "{1} < {0}"
    of_bools = Accumulator("1", AND, absorbing="0")


#: The bits of float16's infinity, as an integer.
INFINITY = 0x7C00

#: Elements from which the indices of extremes are sought along the axis as it is.
SMALL = 1 << 12


class ArgExtremeOperator(ReductionOperator, IntegerOperator, BlockOperator):
    """The index of the first extreme along axes, flat in C order if there are several."""

    #: The op of the extreme itself.
    extreme: ClassVar[type[ExtremeOperator]]
    #: NumPy's function.
    index_of: ClassVar[Any]
    #: Where nan is among 16-bit integers.
    nan: ClassVar[int]
    has_identity = False

    def accumulator_for(self, dtype: np.dtype) -> Accumulator:
        replaces = self.extreme.further
        if is_floating(dtype):
            replaces = f"{replaces} || ({{1}} != {{1}} && {{0}} == {{0}})"  # the first nan
        return self.extreme.make().accumulator_for(dtype)._replace(replaces=replaces)

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        if not isinstance(self.axis, tuple):
            return self._found(x, axis=self.axis, keepdims=self.keepdims)
        outer = [i for i in range(x.ndim) if i not in self.axis]
        count = prod([x.shape[i] for i in self.axis])
        found = self._found(x.transpose(*outer, *self.axis).reshape([x.shape[i] for i in outer] + [count]), axis=-1)
        return np.expand_dims(found, self.axis) if self.keepdims else found

    def blocks(self, *shapes: tuple[int, ...]) -> Blocks | None:
        reduced = self.axes(len(shapes[0]))
        axis = longest_axis(shapes[0], *reduced)
        if axis is None or len(shapes[0]) - 1 in reduced:  # of rows, they take a fraction of a nanosecond an element
            return None
        return axis - (0 if self.keepdims else sum(each < axis for each in reduced)), (axis,), 1

    def _found(self, x: Array, **along: Any) -> Any:
        if isinstance(x, np.ndarray):
            return self._found_by_numpy(x, **along)
        found = self.index_of(x, **along)
        if not is_floating(x.dtype):
            return found
        nans = x != x  # CuPy finds any nan, NumPy the first
        return np.where(np.any(nans, **along), np.argmax(nans, **along), found)

    def _found_by_numpy(self, x: np.ndarray, axis: int, keepdims: bool = False) -> Any:
        """The index along one axis, or None for all; NumPy transposes to find those along another than the last."""
        if x.dtype == np.float16:
            x = self._ordered(x)
        if axis is None or axis in (-1, x.ndim - 1) or x.size < SMALL:
            return self.index_of(x, axis=axis, keepdims=keepdims)
        x = x.view(np.uint8) if x.dtype.kind == "b" else x
        extreme = self.extreme.numpy(x, axis=axis, keepdims=True)
        is_found = x == extreme
        if np.any(extreme != extreme):
            is_found |= x != x
        count = x.shape[axis]
        later = np.arange(count, 0, -1, dtype=np.min_scalar_type(count)).reshape(-1, *(1,) * (x.ndim - 1 - axis))
        return count - np.max(is_found * later, axis=axis, keepdims=keepdims).astype(np.int64)

    def _ordered(self, x: np.ndarray) -> np.ndarray:
        """Integers in the order of float16, nan the most extreme: they are compared in vectors."""
        bits = x.view(np.int16)
        bits = np.asarray(bits ^ (bits >> 15 & 0x7FFF))  # of one number, NumPy makes a scalar
        bits += bits == -1  # -0.0 is 0.0
        if bits.size and (bits.max() > INFINITY or bits.min() < ~INFINITY):
            bits[(bits > INFINITY) | (bits < ~INFINITY)] = self.nan
        return bits


@numpy_function(np.argmax)
class ArgMax(ArgExtremeOperator):
    """The index of the maximum along axes, the first of ties; of the first nan if there is one.

    Examples
    --------
    >>> be.argmax(be.array([[1.0, 5.0], [4.0, 2.0]]), axis=1).get()
    array([[1],
           [0]])
    """

    name = "argmax"
    index_of = staticmethod(np.argmax)
    extreme = Max
    nan = 0x7FFF


@numpy_function(np.argmin)
class ArgMin(ArgExtremeOperator):
    """The index of the minimum along axes, the first of ties; of the first nan if there is one.

    Examples
    --------
    >>> be.argmin(be.array([[1.0, 5.0], [4.0, 2.0]]), axis=1).get()
    array([[0],
           [1]])
    """

    name = "argmin"
    index_of = staticmethod(np.argmin)
    extreme = Min
    nan = -0x8000


# Logic


class AllTrue(UfuncReduction, LogicalOperator):
    """Whether all elements along axes are true, that is, not zero.

    Examples
    --------
    >>> be.all(be.array([[1.0, 5.0], [0.0, 1.0]]), axis=1).get()
    array([[ True],
           [False]])
    """

    name = "all"
    numpy = np.all
    accumulator = Accumulator("1", AND, absorbing="0")


class AnyTrue(UfuncReduction, LogicalOperator):
    """Whether any element along axes is true, that is, not zero.

    Examples
    --------
    >>> be.any(be.array([[0.0, 5.0], [0.0, 0.0]]), axis=1).get()
    array([[ True],
           [False]])
    """

    name = "any"
    numpy = np.any
    accumulator = Accumulator("0", "{0} | {1}", absorbing="1")


# Statistics


def _centred(x: Variable, axis: Axis) -> Variable:
    """An operand minus its mean, in a dtype wide enough for squares."""
    x = widened(x)
    return x - f.mean(x, axis=axis, keepdims=True)


def squares(x: Variable) -> Variable:
    """The squares of the absolute values."""
    return f.square(f.real(x)) + f.square(f.imag(x)) if is_complex(x.dtype) else f.square(x)


def _freedom(x: Variable, axis: Axis, ddof: float) -> Variable:
    """The divisor of a variance, as NumPy has it."""
    count = f.count(x, axis)
    return f.maximum(count - ddof, 0) if ddof else count


@function(numpy=np.var)
def var(x: Operand, axis: Axis = None, ddof: float = 0, keepdims: bool = True) -> Any:
    """The variance over axes: the sum of the squared deviations from the mean, over count - ddof.

    Examples
    --------
    >>> be.var(be.array([1.0, 3.0])).get()
    array([1.], dtype=float32)
    """
    x = variable_of(x, "var")
    centred = _centred(x, axis)
    value = f.sum(squares(centred), axis=axis, keepdims=keepdims) / _freedom(centred, axis, ddof)
    return in_dtype(value, real_dtype(mean_dtype(x.dtype)))


@function(numpy=np.std)
def std(x: Operand, axis: Axis = None, ddof: float = 0, keepdims: bool = True) -> Any:
    """The standard deviation over axes, the root of the variance; its gradient is 0 where it is 0.

    Examples
    --------
    >>> be.std(be.array([1.0, 3.0])).get()
    array([1.], dtype=float32)
    """
    x = variable_of(x, "std")
    centred = _centred(x, axis)
    value = f.norm(centred, axis=axis, keepdims=keepdims) / f.sqrt(_freedom(centred, axis, ddof))
    return in_dtype(value, real_dtype(mean_dtype(x.dtype)))


# Norms


@portable
def _supremum(x: Array, axis: Axis, keepdims: bool) -> Any:
    x = as_array(x)
    if x.size:
        return np.max(x, axis=axis, keepdims=keepdims)
    return filled(Supremum.make(axis=axis, keepdims=keepdims).output_shape(x.shape), -np.inf, x.dtype, x)


class Supremum(Max):
    """The maximum over axes as `Max`, but -inf for empty axes; not registered, for `supremum`."""

    has_identity = True

    numpy: ClassVar[Any] = _supremum


def supremum(x: Variable, axis: Axis) -> Variable:
    """The maximum over axes, with keepdims; -inf for empty ones."""
    return x if is_of_one(x, axis) else Supremum.make(axis=axis, keepdims=True)(x)


def is_of_one(x: Variable, axis: Axis) -> bool:
    """Whether a reduction over axes has one element each, so that kernels need no loop."""
    return all(x.shape[i] == 1 for i in normalise_axes(axis, x.ndim, "reduction"))


class Norm(MeanDtypeOperator, CompositeOperator, ReductionOperator):
    """The norm of the vectors along axes: Euclidean, or another along one axis; of complex ones, of absolute values.

    Its gradient at 0 is 0; in a vector with infinite elements, these share it and finite ones have 0.
    Intermediate values neither overflow nor underflow.

    Attributes
    ----------
    ord : number or None
        None or 2 for the Euclidean norm, 1 for the sum of absolute values, inf and -inf for their
        maximum and minimum, 0 for the number of nonzero elements, p for the p-norm. Over several axes
        only None is allowed; ``be.linalg.norm`` has matrix norms.

    Examples
    --------
    >>> be.norm(be.array([3.0, 4.0])).item()
    5.0
    """

    name = "norm"
    __props__ = ("axis", "keepdims", "ord")
    ord: Any = None
    examples = (
        *WITH_IDENTITY,
        (((3, 4),), {"axis": -1, "keepdims": False, "ord": 2}),
        (((3, 4),), {"axis": 0, "ord": 1}),
        (((3, 4),), {"axis": 1, "ord": float("inf")}),
        (((3, 4),), {"axis": 1, "ord": float("-inf")}),
        (((3, 4),), {"axis": 0, "ord": 3}),
        (((3, 4),), {"axis": 1, "ord": 2.5, "keepdims": False}),
        (((3, 4),), {"axis": 1, "ord": -1}),
        (((3, 4),), {"axis": 1, "ord": 0}),
    )

    @for_complex
    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        if len(inputs) == 1 and is_complex_operand(inputs[0]):
            inputs = (f.abs(inputs[0]),)
        return super().__call__(*inputs, **kwargs)

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        if self.ord is not None and (isinstance(self.ord, bool) or not isinstance(self.ord, int | float)):
            raise OperandError(f"norm: ord is None or a number, not {self.ord!r}; be.linalg.norm has norms of matrices")
        axes = self.axes(types[0].ndim)
        if self.ord is not None and len(axes) != 1:
            raise OperandError(
                f"norm: with ord={self.ord!r} give one axis, not {self.axis!r} of {types[0].ndim} dimensions; "
                "without ord it is the root of the sum of squares over all of them, and be.linalg.norm has norms of "
                "matrices"
            )
        if self.ord == -np.inf and types[0].shape[axes[0]] == 0:
            raise ShapeError(f"along axis {axes[0]} there are no elements, and so no least one")
        return super().bind(types, backend)

    def numpy(self, x: Array) -> Any:
        x = np.asarray(x)
        dtype, axes = mean_dtype(x.dtype), self.axes(x.ndim)
        wide = wide_dtype(dtype)
        x = x.astype(wide, copy=False)
        if self.ord == np.inf:
            found = np.max(np.abs(x), axis=axes, keepdims=self.keepdims, initial=0)
        elif self.ord == -np.inf:
            found = np.min(np.abs(x), axis=axes, keepdims=self.keepdims)
        elif self.ord == 0:
            found = np.asarray(np.count_nonzero(x, axis=axes, keepdims=self.keepdims))
        elif self.ord == 1:
            found = accurate_sum(np.abs(x), axes, self.keepdims, wide)
        else:
            found = _euclidean(x, axes) if self.ord in (None, 2) else _by_powers(np.abs(x), axes, self.ord)
            found = found if self.keepdims else found.squeeze(axes)
        return found.astype(dtype, copy=False)

    def decompose(self, *inputs: Variable) -> Variable:
        x = widened(inputs[0])
        size = f.absolute(x)
        if self.ord in (None, 2):
            root = self._root_of_squares(x, inputs[0].dtype == np.float64)
            return self.squeezed(in_dtype(root, mean_dtype(inputs[0].dtype)))
        if self.ord == 0:
            found = f.sum(f.cast(f.ne(x, 0), x.dtype), axis=self.axis, keepdims=True)
        elif self.ord == 1:
            found = f.sum(size, axis=self.axis, keepdims=True)
        elif self.ord is not None and self.ord < 0:
            found = f.negative(supremum(f.negative(size), self.axis))
        else:
            found = f.maximum(supremum(size, self.axis), 0)
        if self.ord not in (0, 1, np.inf, -np.inf):  # scaled by the maximum, powers neither overflow nor underflow
            top = f.where(f.logical_and(f.gt(found, 0), f.lt(found, np.inf)), found, 1)
            total = f.sum((size / top) ** float(self.ord), axis=self.axis, keepdims=True)
            found = total ** (1 / self.ord) * top
        return self.squeezed(in_dtype(found, mean_dtype(inputs[0].dtype)))

    def _root_of_squares(self, x: Variable, is_scaled: bool) -> Variable:
        """The root of the sum of squares in float64, with its axes.

        The squares of float64's large and small numbers would overflow and underflow: such numbers are also scaled by
        a power of two and summed separately, in the same traversal. If the plain sum is beyond 2**1000, squares up to
        2**800 are lost in it; if it is below 2**-800, so is each square. Those of other dtypes' numbers are in range.
        """

        def total(values: Variable) -> Variable:
            return f.sum(f.square(values), axis=self.axis, keepdims=True)

        if not is_scaled:
            return f.sqrt(total(f.cast(x, "float64")))
        squares = f.square(x)
        large = total(x * f.where(f.gt(squares, 2.0**800), 2.0**-600, 0.0))
        small = total(x * f.where(f.lt(squares, 2.0**-700), 2.0**600, 0.0))
        plain = f.sum(squares, axis=self.axis, keepdims=True)
        found = f.where(f.lt(plain, 2.0**-800), f.sqrt(small) * 2.0**-600, f.sqrt(plain))
        return f.where(f.gt(plain, 2.0**1000), f.sqrt(large) * 2.0**600, found)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        if self.ord == 0:
            return [f.fill_like(x, 0.0)]
        norm = self.restore(self(x), x)
        if self.ord in (np.inf, -np.inf):
            return [to_extremes(self, x, f.eq(f.absolute(x), norm), delta) * f.sgn(x)]
        delta = self.restore(delta, x)
        if self.ord == 1:
            return [delta * in_dtype(f.sgn(x), delta.dtype)]
        if self.ord not in (None, 2):
            if self.ord > 0 and self.ord % 2 == 0:  # no absolute value, whose powers have derivatives of 0 at 0
                return [delta * (x / or_one(norm)) ** int(self.ord - 1)]
            return [delta * f.sgn(x) * (f.absolute(x) / or_one(norm)) ** (self.ord - 1.0)]
        finite = finite_direction(x, norm)
        return [delta * (finite / or_one(self.restore(self(finite), x)))]


def _by_powers(size: np.ndarray, axes: tuple[int, ...], ord: float) -> np.ndarray:
    """The p-norm of non-negative numbers over axes, with keepdims."""
    extreme, of_none = (np.max, 0) if ord > 0 else (np.min, np.inf)
    top = extreme(size, axis=axes, keepdims=True, initial=of_none)
    top = np.where((top > 0) & (top < np.inf), top, 1).astype(size.dtype)
    return accurate_sum((size / top) ** float(ord), axes, True, size.dtype) ** (1 / ord) * top


def _euclidean(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The Euclidean norm over axes, with keepdims."""
    total = accurate_sum(np.square(x), axes, True, x.dtype)
    limits = np.finfo(x.dtype)
    if np.all((total > limits.tiny / limits.eps) & (total < np.inf)):
        return np.sqrt(total)
    # Squares may have overflowed or underflowed: scale by the maximum.
    top = np.max(np.abs(x), axis=axes, keepdims=True, initial=0)
    top = np.where((top > 0) & (top < np.inf), top, 1)
    return np.sqrt(accurate_sum(np.square(x / top), axes, True, x.dtype)) * top
