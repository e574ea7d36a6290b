"""Elementwise ops that select, clip, cast and broadcast values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, is_array, portable
from optree.dtypes import is_floating, is_inexact, real_dtype, rounded
from optree.errors import DTypeError, OperandError, ShapeError, describe
from optree.op.batching import aligned, spread, spread_all
from optree.op.examples import Examples
from optree.op.index_map import LIKE, REPEATED, IndexMap, indexed, per_op
from optree.op.op import Op, for_complex
from optree.op.traits import (
    BinaryOperator,
    ElementwiseOperator,
    FirstDtypeOperator,
    IntegerOperator,
    MorphOperator,
    UnaryOperator,
    no_props,
)
from optree.registry import NUMPY_FUNCTIONS, alias, associative, f, function, numpy_function
from optree.tree.gradient_types import zero_gradient
from optree.tree.types import NUMBERS, Shape, TensorType, as_dtype, broadcast, normalise_axis, promote, weak_dtype
from optree.tree.variable import (
    Operand,
    Variable,
    any_neon,
    as_operand,
    as_variable,
    check_real,
    for_dtype,
    in_dtype,
    number_of,
    spec_of,
    variable_of,
)

# Maximum and minimum


@associative
class ExtremeOfTwo(BinaryOperator, ElementwiseOperator):
    """Elementwise maximum or minimum."""

    commutative = True
    #: The C condition on which ``{1}`` replaces ``{0}``; false if ``{0}`` is nan.
    further: ClassVar[str]
    #: The kernel for bools.
    bits: ClassVar[str]
    #: The function that tells where the first operand is selected.
    wins: ClassVar[str]
    takes_complex = False

    def kernel(self, *dtypes: np.dtype) -> str | None:
        """The kernel, which adds the nan: GCC does not vectorise nested choices, and x + -0.0 is x."""
        if dtypes[0].kind == "b":
            return self.bits
        chosen = f"{self.further} ? {{1}} : {{0}}"
        return f"({chosen}) + ({{1}} != {{1}} ? {{1}} : (T)-0.0)" if is_floating(dtypes[0]) else chosen

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        tied = f.where(f.eq(x, y), delta if any_neon([*inputs, delta]) else delta * 0.5, 0)
        wins = getattr(f, self.wins)
        return [f.where(wins(x, y), delta, tied), f.where(wins(y, x), delta, tied)]


class Maximum(ExtremeOfTwo):
    """Elementwise maximum of x and y; nan where either is nan.

    At ties each operand gets half of the gradient; in neon's mode, all of it.

    Examples
    --------
    >>> be.maximum(be.array([1.0, 5.0]), 2.0).get()
    array([2., 5.], dtype=float32)
    """

    name = "maximum"
    numpy = np.maximum
    further = "{0} < {1}"
    bits = "{0} | {1}"
    wins = "gt"


class Minimum(ExtremeOfTwo):
    """Elementwise minimum of x and y; nan where either is nan.

    At ties each operand gets half of the gradient; in neon's mode, all of it.

    Examples
    --------
    >>> be.minimum(be.array([1.0, 5.0]), 2.0).get()
    array([1., 2.], dtype=float32)
    """

    name = "minimum"
    numpy = np.minimum
    further = "{0} > {1}"
    bits = "{0} & {1}"
    wins = "lt"


class Relu(MorphOperator, ElementwiseOperator):
    """Rectified linear unit, max(x, 0); nan where x is nan. The derivative at 0 is 0.

    Examples
    --------
    >>> be.relu(be.array([-1.0, 2.0])).get()
    array([0., 2.], dtype=float32)
    """

    name = "relu"
    kernel = "{0} > 0 || {0} != {0} ? {0} : (T)0"

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        if x.dtype in (np.float32, np.float64):
            # np.maximum with a number is four times slower; adding 0 turns -0.0 into 0.0.
            return np.clip(x, 0.0, np.inf) + x.dtype.type(0)
        return np.maximum(x, x.dtype.type(0))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [f.where(f.gt(x, 0), delta, 0)]


@function(numpy=np.fmax)
def fmax(x: Operand, y: Operand) -> Any:
    """Elementwise maximum of x and y that ignores nan; ties share the gradient.

    Examples
    --------
    >>> be.fmax(be.array([1.0, np.nan]), 0.5).get()
    array([1. , 0.5], dtype=float32)
    """
    return _of_numbers(f.maximum, x, y, "fmax")


@function(numpy=np.fmin)
def fmin(x: Operand, y: Operand) -> Any:
    """Elementwise minimum of x and y that ignores nan; ties share the gradient.

    Examples
    --------
    >>> be.fmin(be.array([1.0, np.nan]), 0.5).get()
    array([0.5, 0.5], dtype=float32)
    """
    return _of_numbers(f.minimum, x, y, "fmin")


def _of_numbers(extreme: Any, x: Operand, y: Operand, what: str) -> Any:
    x, y = (as_operand(operand, what) for operand in (x, y))
    found = extreme(x, y)
    for one, other in ((x, y), (y, x)):
        if isinstance(one, float) or is_floating(as_variable(one).dtype):
            found = f.where(f.isnan(one), other, found)
    return found


@function()
def clip(x: Operand, lo: Operand | None = None, hi: Operand | None = None) -> Any:
    """Limit x to the interval from `lo` to `hi`; None is no bound.

    It is ``minimum(maximum(x, lo), hi)``, in value and in derivative. A Python integer out of
    range of x's integer dtype is no bound either.

    Examples
    --------
    >>> be.clip(be.array([-2.0, 0.5, 3.0]), -1, 1).get()
    array([-1. ,  0.5,  1. ], dtype=float32)
    """
    x = variable_of(x, "clip")
    lo, hi = (None if bound is None else as_operand(bound, "clip") for bound in (lo, hi))
    limits = np.iinfo(x.dtype) if x.dtype.kind in "iu" else None
    lo = None if limits and type(lo) is int and lo < limits.min else lo
    hi = None if limits and type(hi) is int and hi > limits.max else hi
    if lo is not None and hi is not None and number_of(x) is None:  # a weak bound takes the dtype of the other two
        x = in_dtype(x, promote(x.dtype, *(weak_dtype(spec_of(bound)) for bound in (lo, hi))))
    x = x if lo is None else f.maximum(x, lo)
    return x if hi is None else f.minimum(x, hi)


@numpy_function(np.clip)
def _numpy_clip(
    a: Operand,
    a_min: Operand | None = None,
    a_max: Operand | None = None,
    *,
    min: Operand | None = None,
    max: Operand | None = None,
) -> Any:
    """`clip` with the parameters of `numpy.clip`, to which a number that it clips is an array."""
    return clip(
        np.asarray(a) if type(a) in NUMBERS else a, a_min if min is None else min, a_max if max is None else max
    )


# Selecting, casting, broadcasting


class Where(ElementwiseOperator):
    """x where the condition is true, that is, not zero, and y elsewhere.

    Parameters
    ----------
    condition, x, y : operand
        All three are given, unlike NumPy's: the number of true elements is a shape that depends on values. For indices,
        there is ``np.nonzero(condition.get())``.

    Examples
    --------
    >>> x = be.array([-1.0, 2.0])
    >>> be.where(x > 0, x, 0).get()
    array([0., 2.], dtype=float32)
    """

    name = "where"
    takes_complex = True
    operands = ("condition", "x", "y")
    __props__ = ()
    examples = (
        (([[True, False, True], [False, True, False]], (2, 3), (2, 3)), {}),
        (([True, False], (2, 1), ()), {}),
        (([0, 1, 2], 1.5, (3,)), {}),
    )

    def kernel(self, *dtypes: np.dtype) -> str | None:
        """The kernel; for bools without a conditional, which compilers do not vectorise."""
        return "(({0} != 0) & {1}) | (({0} == 0) & {2})" if dtypes[1].kind == "b" else "{0} != 0 ? {1} : {2}"

    def by_parts(self, condition: Any, x: Any, y: Any) -> Any:
        is_true = condition[0] if isinstance(condition[1], float) else f.logical_or(*condition)
        return self(is_true, x[0], y[0]), self(is_true, x[1], y[1])

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        condition, x, y = dtypes
        common = promote(x, y)
        return promote(condition), common, common, common

    @portable
    def numpy(self, condition: Array, x: Array, y: Array) -> Any:
        return np.where(as_array(condition, x, y), x, y)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (condition, _, _), (delta,) = inputs, output_gradients
        flat = zero_gradient(condition, delta.dtype)  # the derivative by a condition is 0
        return [flat, f.where(condition, delta, 0), f.where(condition, 0, delta)]

    def generate_adjoints(self, adjoints: dict[Variable, Any], delta: Variable | list[Any], *args: Variable) -> None:
        """Send deltas to x and y only: for the condition, 0 times an infinite slope would be nan."""
        for operand, gradient in list(zip(args, self.grad(args, [delta]), strict=True))[1:]:
            if number_of(operand) is None:
                operand.generate_add_delta(adjoints, gradient)


@numpy_function(np.where)
def _numpy_where(condition: Operand, x: Operand | None = None, y: Operand | None = None) -> Any:
    if x is None or y is None:
        raise OperandError(
            f"np.where: {describe(condition)} alone selects as many elements as are true, which is known only when it "
            "has run; np.where(condition, x, y) chooses, and np.where(condition.asnumpyarray()) runs it on the host"
        )
    return f.where(condition, x, y)


@function(numpy=np.select)
def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Operand = 0) -> Any:
    """For each element the choice of the first condition that is true there, and the default where none is.

    Examples
    --------
    >>> x = be.array([1.0, 5.0, 9.0])
    >>> be.select([x < 2, x < 8], [x, -x], default=0).get()
    array([ 1., -5.,  0.], dtype=float32)
    """
    if len(condlist) != len(choicelist) or not len(condlist):
        raise OperandError(
            f"select: as many choices as conditions are wanted, one at least; there are {len(choicelist)} choices "
            f"and {len(condlist)} conditions"
        )
    *choices, found = (as_operand(each, "select") for each in (*choicelist, default))
    dtype = promote(*(weak_dtype(spec_of(each)) for each in (*choices, found)))  # of all: the default may be weak
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        condition = variable_of(condition, "select")
        if condition.dtype.kind != "b":
            raise DTypeError(f"select: the condition {describe(condition)} is not bool")
        found = f.where(condition, in_dtype(choice, dtype) if isinstance(choice, Variable) else choice, found)
    return found


class Cast(UnaryOperator, ElementwiseOperator):
    """x in another dtype, converted as `numpy.ndarray.astype` does, with its warning where an imaginary part is lost.

    A negative float wraps in an unsigned integer dtype, as in NumPy on x86-64, if the signed dtype of that size
    holds it: -50.0 is 206 in uint8. The value for nan, inf and other floats out of range is undefined, as in NumPy
    and C.

    Examples
    --------
    >>> be.cast(be.array([1.7]), "int32").get()
    array([1], dtype=int32)
    """

    name = "cast"
    takes_complex = True
    __props__ = ("dtype",)
    dtype: Any = None
    examples = Examples(
        (
            (((2, 3),), {"dtype": np.dtype("float64")}),
            (((2, 0),), {"dtype": np.dtype("int32")}),
            (((),), {"dtype": np.dtype("bool")}),
            (([0, 1, 2],), {"dtype": np.dtype("float64")}),
            (([3],), {"dtype": np.dtype("float32")}),
            *((([3],), {"dtype": np.dtype(name)}) for name in ("uint8", "uint32", "uint64")),
        ),
        random_props=lambda choose, x: {"dtype": np.dtype(choose(("float64", "float32")))},
    )

    @for_complex
    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        if len(inputs) == 1 and self.dtype is not None:
            inputs = (for_dtype(inputs[0], as_dtype(self.dtype), "cast"),)
        return super().__call__(*inputs, **kwargs)

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        if self.dtype is None:
            raise DTypeError("cast: give the dtype to convert to, as in be.cast(x, 'float32')")
        return self.make(dtype=as_dtype(self.dtype))

    def kernel(self, *dtypes: np.dtype) -> str | None:
        if self.dtype.kind == "b":
            return "{0} != 0"
        if self.dtype.kind == "u" and is_floating(dtypes[0]):  # undefined in C for negative floats
            if self.dtype.itemsize < 8:
                return "(long long){0}" if self.dtype.itemsize == 4 else "(int){0}"
            limit = "0x1p63" if dtypes[0].itemsize == 8 else "0x1p63f"
            return f"{{0}} >= {limit} ? (unsigned long long){{0}} : (unsigned long long)(long long){{0}}"
        return "(int){0}" if dtypes[0].kind == "b" else "{0}"  # GCC does not vectorise _Bool

    def by_parts(self, x: Any) -> Any:
        if self.dtype.kind == "b":
            return f.logical_or(*x)
        dtype = real_dtype(self.dtype)
        return f.cast(x[0], dtype), x[1] if isinstance(x[1], float) else f.cast(x[1], dtype)

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return promote(dtypes[0]), as_dtype(self.dtype)

    @portable
    def numpy(self, x: Array) -> Any:
        return rounded(as_array(x), self.dtype)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return output_gradients  # in the operand's dtype by `generate_add_delta`


class FillLike(BinaryOperator):
    """An array of x's shape and dtype filled with `value`, a number or an array of one element.

    Only x's shape and dtype are used, not its values.

    Examples
    --------
    >>> be.fill_like(be.ones((2, 2)), 0.5).get()
    array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float32)
    """

    name = "fill_like"
    index_map = IndexMap(LIKE, REPEATED)
    view_map: ClassVar[dict[int | None, list[int]]] = {}  # a new array
    raises = False
    operands = ("x", "value")
    kernel = "{1}"

    def by_parts(self, x: Any, value: Any) -> Any:
        return self(x[0], value[0]), self(x[0], value[1])

    examples = (
        (((2, 3), ()), {}),
        (((2, 3), 2.5), {}),
        (((2, 3), (1, 1)), {}),
        (((0, 3), ()), {}),
        (((), ()), {}),
        (([1, 2], 3), {}),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        x, value = shapes
        if any(size != 1 for size in value) or len(value) > len(x):
            raise ShapeError(f"the value has shape {value}; a number or one element is wanted")
        return x

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        dtype = promote(dtypes[0])
        if _rank(promote(dtypes[1])) > _rank(dtype):
            raise TypeError(f"a value of {dtypes[1]} does not go into {dtype}")
        return dtype, dtype, dtype

    @portable
    def numpy(self, x: Array, value: Array) -> Any:
        return np.full_like(as_array(x, value), value.reshape(()) if is_array(value) else value, order="C")

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        x, value = inputs
        if not batched[1]:
            return self(x, value)
        value = f.cast(f.reshape(value, (-1,)) if value.ndim != 1 else value, x.dtype)
        (x, _) = spread_all(inputs, batched)
        (value,) = aligned([value], [True], x.ndim - 1)
        return f.broadcast_like(value, x)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [None, delta]


def _weak(number: int, x: Operand) -> int:
    """A number, as a bool for bools."""
    return bool(number) if as_variable(x).dtype.kind == "b" else number


def _rank(dtype: np.dtype) -> int:
    """The kind of a dtype as a number: 0 for bool, 1 for integers, 2 for floats, 3 for complex numbers."""
    return 2 if is_floating(dtype) else "bu.c".find(dtype.kind.replace("i", "u"))


@numpy_function(np.full_like)
def _full_like(a: Operand, fill_value: Operand) -> Any:
    """A value of another kind is cast to the dtype of `a`, as by NumPy, which refuses an integer that overflows it."""
    dtype = as_variable(a).dtype
    if isinstance(fill_value, Variable):
        fill_value = f.cast(fill_value, dtype) if _rank(fill_value.dtype) > _rank(dtype) else fill_value
    elif not is_inexact(dtype):
        with np.errstate(all="ignore"):
            found = np.full(np.shape(fill_value), fill_value, dtype)
        fill_value = found if found.ndim else found.item()
    return f.fill_like(a, fill_value)


class BroadcastLike(FirstDtypeOperator, BinaryOperator):
    """x broadcast to the shape of `like`, whose values are not used."""

    name = "broadcast_like"
    index_map = IndexMap(REPEATED, LIKE)
    operands = ("x", "like")
    kernel = "{0}"
    examples = Examples(
        (
            (((3,), (2, 3)), {}),
            (((), (2, 3)), {}),
            (((2, 1), (2, 3)), {}),
            (((2, 3), (2, 3)), {}),
            (((1, 3), (0, 3)), {}),
            ((2.5, (2, 3)), {}),
        ),
        random_props=no_props,
    )

    def by_parts(self, x: Any, like: Any) -> Any:
        return self(x[0], like[0]), self(x[1], like[0])

    def output_shape(self, *shapes: Shape) -> Shape:
        x, like = shapes
        found = broadcast(x, like)
        if len(found) > len(like) or any(want not in (None, got) for got, want in zip(found, like, strict=True)):
            raise ShapeError(f"{x} does not broadcast to {like}")
        return found

    @portable
    def numpy(self, x: Array, like: Array) -> Any:
        return np.broadcast_to(as_array(x, like), np.shape(like))

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        x, like = inputs
        if not batched[1]:
            like = spread(like, x)
        return self(aligned([x], [batched[0]], like.ndim - 1)[0], like)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [delta, None]


@alias("places")
class FlatIndices(UnaryOperator, IntegerOperator):
    """The flat index, in C order, of each element of an operand, whose values are not used; or its index along an axis.

    Attributes
    ----------
    axis : int, optional
        The axis; None for the flat index.
    """

    name = "flat_indices"
    takes_complex = True
    raises = False
    operands = ("like",)
    __props__ = ("axis",)
    axis: int | None = None
    examples = (
        (((3, 4),), {}),
        (((5,),), {}),
        (((),), {}),
        (((0, 3),), {}),
        (((3, 4),), {"axis": -1}),
        (((2, 3, 4),), {"axis": 1}),
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        axis = None if self.axis is None else normalise_axis(self.axis, types[0].ndim, "flat_indices")
        return self.make(axis=axis)

    def numpy(self, x: Array) -> Any:
        shape = np.shape(x)
        if self.axis is None:
            return np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
        others = tuple(axis for axis in range(len(shape)) if axis != self.axis)
        return np.broadcast_to(np.expand_dims(np.arange(shape[self.axis], dtype=np.int64), others), shape).copy()

    @per_op(indexed())
    def index_map(self) -> IndexMap:
        return IndexMap(indexed(self.axis))


NUMPY_FUNCTIONS[np.zeros_like] = NUMPY_FUNCTIONS[np.empty_like] = lambda a: f.fill_like(a, _weak(0, a))
NUMPY_FUNCTIONS[np.ones_like] = lambda a: f.fill_like(a, _weak(1, a))
NUMPY_FUNCTIONS[np.isreal] = lambda x: f.eq(f.imag(x), 0)
NUMPY_FUNCTIONS[np.real_if_close] = lambda a, tol=100: f.copy(check_real(a, "real_if_close"))
NUMPY_FUNCTIONS[np.iscomplex] = lambda x: f.ne(f.imag(x), 0)
NUMPY_FUNCTIONS[np.astype] = lambda x, dtype, copy=True: f.cast(x, np.dtype(dtype))
