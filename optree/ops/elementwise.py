"""Elementwise ops: arithmetic and powers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import finfo, is_complex, is_floating, is_inexact, is_narrow, rounded, ufunc_dtypes
from optree.errors import DTypeError, describe
from optree.op.examples import Examples
from optree.op.op import sorted_arguments
from optree.op.traits import (
    BinaryOperator,
    BlockOperator,
    ElementwiseOperator,
    FloatOperator,
    NonDifferentiableOperator,
    NumberOperator,
    UnaryOperator,
    blocks_of_equal_shapes,
)
from optree.ops.complex import quotient
from optree.registry import alias, associative, f, function, numpy_function
from optree.tree.gradient_types import zero_gradient
from optree.tree.types import weak_dtype
from optree.tree.variable import Operand, Variable, as_variable, check_real, in_dtype, number_of, variable_of

# Arithmetic


@associative
class Add(BinaryOperator, ElementwiseOperator):
    """x + y."""

    name = "add"
    commutative = True
    numpy = np.add

    def kernel(self, *dtypes: np.dtype) -> str | None:
        return "{0} | {1}" if dtypes[0] == np.bool_ else "{0} + {1}"  # a sum of bools is an int in C, four bytes

    def by_parts(self, x: Any, y: Any) -> Any:
        return x[0] + y[0], x[1] + y[1]

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [delta, delta]


@alias("subtract")
class Sub(BinaryOperator, ElementwiseOperator):
    """x - y."""

    name = "sub"
    numpy = np.subtract
    kernel = "{0} - {1}"

    def by_parts(self, x: Any, y: Any) -> Any:
        return x[0] - y[0], x[1] - y[1]

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [delta, -delta]


@associative
@alias("multiply")
class Mul(BinaryOperator, ElementwiseOperator):
    """x * y."""

    name = "mul"
    commutative = True
    numpy = np.multiply
    kernel = "{0} * {1}"

    def by_parts(self, x: Any, y: Any) -> Any:
        """NumPy's product: of infinities and nan, and of a real number as one with an imaginary part of 0."""
        return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        return [delta * y, delta * x]


@alias("divide", "true_divide")
class Div(BinaryOperator, ElementwiseOperator, FloatOperator):
    """x / y, floating for integers too."""

    name = "div"
    numpy = np.true_divide
    kernel = "{0} / {1}"
    examples = Examples(sample=(0.5, 3.0))

    def by_parts(self, x: Any, y: Any) -> Any:
        return quotient(x, y)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        return [delta / y, -(delta * (x / y) / y)]  # x / y is the value; y * y could overflow


#: C's remainder, which has the dividend's sign.
_REMAINDER = "fmod({0}, {1})"
#: Whether the remainder needs one divisor more to have the divisor's sign.
_MOVES = f"({_REMAINDER} != 0 && ({{1}} < 0) != ({_REMAINDER} < 0))"
#: The quotient, a whole number up to rounding.
_QUOTIENT = f"(({{0}} - {_REMAINDER}) / {{1}} - (T){_MOVES})"


#: The floor of the quotient by Python's algorithm for floats, so that it is bitwise NumPy's.
_FLOAT_QUOTIENT = (
    f"{_QUOTIENT} == 0 ? copysign((T)0, {{0}} / {{1}}) : {{1}} == 0 ? {{0}} / {{1}} : "
    f"floor({_QUOTIENT}) + (T)({_QUOTIENT} - floor({_QUOTIENT}) > (T)0.5)"
)
#: The remainder of floats with the divisor's sign.
_FLOAT_REMAINDER = f"{_REMAINDER} == 0 ? copysign((T)0, {{1}}) : {_MOVES} ? {_REMAINDER} + {{1}} : {_REMAINDER}"

#: Integers of 64 bits, and those whose least one divided by -1 overflows in C.
_LONG, _WIDE_SIGNED = (np.int64, np.uint64), (np.int32, np.int64)


def _integer_quotient(dtype: np.dtype) -> str:
    """``floor({0} / {1})`` of integers of up to 32 bits as C, for a nonzero divisor.

    Processors have no SIMD division of integers. They are divided as floats of more than twice the precision,
    which is exact: a fractional quotient does not round up to a whole number.
    """
    quotient = "((double){0} / (double){1})" if dtype.itemsize == 4 else "((float){0} / (float){1})"
    if dtype.kind == "i":
        return f"(int)floor{quotient}"
    return f"(unsigned int){quotient}" if dtype.itemsize == 4 else f"(int){quotient}"


#: ``floor({0} / {1})`` of bytes by products of 16 bits with a reciprocal, which is 0 for 0 and 1.
_BYTE_QUOTIENT = (
    "(unsigned short)((unsigned int){0} * (unsigned short)(65535 / ({1} + ({1} == 0)) + 1) >> 16) | ({0} & -({1} == 1))"
)


def _reciprocal_quotient(dtype: np.dtype) -> str:
    """``floor({0} / {1})`` of integers by a reciprocal, which is computed once for a number; 0 if that is 0.

    Those of up to 32 bits are multiplied as floats. A half is added, so that the product is further from whole numbers
    than its rounding error.
    """
    if dtype in _LONG:
        return f"quotient_of_{'' if dtype.kind == 'i' else 'u'}int64({{0}}, {{1}})"
    wide = "double" if dtype.itemsize == 4 else "float"
    whole = "unsigned int" if dtype == np.uint32 else "int"
    half = f"({{1}} < 0 ? ({wide})-0.5 : ({wide})0.5)" if dtype.kind == "i" else f"({wide})0.5"
    return f"({whole})floor((({wide}){{0}} + {half}) * ({{1}} == 0 ? ({wide})0 : ({wide})1 / ({wide}){{1}}))"


class FloorDivide(NumberOperator, BinaryOperator, ElementwiseOperator, NonDifferentiableOperator):
    """The floor of x / y; for integers divided by zero 0, as in NumPy."""

    name = "floor_divide"
    numpy = np.floor_divide

    def kernel(self, *dtypes: np.dtype) -> str | None:
        (dtype, *_) = dtypes
        if is_floating(dtype):
            return _FLOAT_QUOTIENT
        # The quotient of the least integer and -1 overflows.
        zero = "{1} == 0 ? 0 : {1} == -1 ? -{0} : " if dtype in _WIDE_SIGNED else "{1} == 0 ? 0 : "
        if dtype == np.int64:
            return f"{zero}{{0}} / {{1}} - (T)(({{0}} % {{1}} != 0) & (({{0}} ^ {{1}}) < 0))"
        return zero + ("{0} / {1}" if dtype == np.uint64 else _integer_quotient(dtype))

    def kernel_by_number(self, *dtypes: np.dtype) -> str | None:
        if dtypes[0] == np.uint8:
            return _BYTE_QUOTIENT
        if is_floating(dtypes[0]):
            return _FLOAT_QUOTIENT
        return f"{'{1} == -1 ? -{0} : ' * (dtypes[0] == np.int32)}{_reciprocal_quotient(dtypes[0])}"


@alias("remainder")
class Mod(NumberOperator, BinaryOperator, ElementwiseOperator):
    """The remainder x - y * floor(x / y), with the sign of y; for integers by zero 0, as in NumPy."""

    name = "mod"
    numpy = np.remainder
    examples = Examples(sample=(0.5, 3.0))

    def kernel(self, *dtypes: np.dtype) -> str | None:
        (dtype, *_) = dtypes
        if is_floating(dtype):
            return _FLOAT_REMAINDER
        zero = "{1} == 0 || {1} == -1 ? 0 : " if dtype in _WIDE_SIGNED else "{1} == 0 ? 0 : "
        if dtype == np.int64:
            return f"{zero}{{0}} % {{1}} + ({{1}} & -(T)(({{0}} % {{1}} != 0) & (({{0}} ^ {{1}}) < 0)))"
        return zero + ("{0} % {1}" if dtype == np.uint64 else f"{{0}} - {{1}} * {_integer_quotient(dtype)}")

    def kernel_by_number(self, *dtypes: np.dtype) -> str | None:
        if is_floating(dtypes[0]):
            return _FLOAT_REMAINDER
        # Without a conditional on a divisor of 0, so that GCC hoists the reciprocal.
        found = f"({{0}} & -(T)({{1}} != 0)) - {{1}} * {_reciprocal_quotient(dtypes[0])}"
        return f"{'{1} == -1 ? 0 : ' * (dtypes[0] == np.int32)}{found}"

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        return [delta, -(delta * f.floor_divide(x, y))]


class Fmod(BinaryOperator, ElementwiseOperator):
    """The remainder x - y * trunc(x / y), with the sign of x; for integers by zero 0, as in NumPy."""

    name = "fmod"
    numpy = np.fmod
    examples = Examples(sample=(0.5, 3.0))

    def kernel(self, *dtypes: np.dtype) -> str | None:
        if is_floating(dtypes[0]):
            return _REMAINDER
        divides = f"{{1}} == 0{' || {1} == -1' if dtypes[0].kind == 'i' else ''}"
        if dtypes[0].itemsize == 8:
            return f"{divides} ? 0 : {{0}} % {{1}}"
        wide = "double" if dtypes[0].itemsize == 4 else "float"  # as in `_integer_quotient`
        whole = "unsigned int" if dtypes[0] == np.uint32 else "int"
        return f"{divides} ? 0 : {{0}} - {{1}} * ({whole})(({wide}){{0}} / ({wide}){{1}})"

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        return [delta, -(delta * f.rint((x - f.fmod(x, y)) / y))]  # a whole number up to rounding


@numpy_function(np.divmod)
@function()
def divmod(x: Operand, y: Operand) -> tuple[Any, Any]:
    """The quotient and remainder of floor division: `floor_divide` and `mod`.

    Examples
    --------
    >>> quotient, remainder = be.divmod(be.array([7.0, -7.0]), 3)
    >>> quotient.get(), remainder.get()
    (array([ 2., -3.], dtype=float32), array([1., 2.], dtype=float32))
    """
    return f.floor_divide(x, y), f.mod(x, y)


@function(numpy=np.modf)
def modf(x: Operand) -> tuple[Any, Any]:
    """The fraction and the whole part, each with the sign of x; of infinities the fraction is 0.

    Examples
    --------
    >>> fraction, whole = be.modf(be.array([1.5, -1.5]))
    >>> fraction.get(), whole.get()
    (array([ 0.5, -0.5], dtype=float32), array([ 1., -1.], dtype=float32))
    """
    x = variable_of(x, "modf")
    x = in_dtype(x, floating_of(np.modf, x))
    whole = f.trunc(x)
    fraction = f.where(f.signbit(x), -(whole - x), x - whole)  # -0.0 of -2.0, and a derivative of 1 there
    return f.where(f.isinf(x), f.copysign(0.0, x), fraction), whole


class CopySign(BinaryOperator, ElementwiseOperator, FloatOperator):
    """The magnitude of x with the sign of y; the derivative at x = 0 is 0."""

    name = "copysign"
    numpy = np.copysign
    kernel = "copysign({0}, {1})"

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        return [delta * f.copysign(1.0, y) * f.sgn(x), zero_gradient(y, delta.dtype)]


@numpy_function(np.nextafter)
class NextAfter(BinaryOperator, ElementwiseOperator, FloatOperator, BlockOperator):
    """The next number of the value's dtype after x in the direction of y.

    Examples
    --------
    >>> be.nextafter(be.array([1.0]), 2.0).get() > 1
    array([ True])
    """

    name = "nextafter"
    widened = ()  # the next float32 would round back to x

    def kernel(self, *dtypes: np.dtype) -> str | None:
        return None if is_narrow(dtypes[0]) else "nextafter({0}, {1})"

    blocks = blocks_of_equal_shapes

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return ufunc_dtypes(np.nextafter, dtypes)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        dtype = self.resolve_dtypes(*(a.dtype if hasattr(a, "dtype") else weak_dtype(type(a)) for a in arrays))[-1]
        if not is_narrow(dtype):
            return np.nextafter(*arrays)
        x, y = (rounded(as_array(a, *arrays), dtype, copy=False) for a in arrays)
        return np.nextafter(x, y) if isinstance(x, np.ndarray | np.generic) else _narrow_after(x, y)

    @portable
    def fill(self, out: Array, *arrays: Array) -> None:
        if isinstance(out, np.ndarray):
            x, y = (rounded(as_array(a, *arrays), out.dtype, copy=False) for a in arrays)
            np.nextafter(x, y, out=out)
        else:
            out[...] = self.value(*arrays)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (_, y), (delta,) = inputs, output_gradients
        return [delta, zero_gradient(y, delta.dtype)]


#: Whether the next number after a float16 equal to y is y, as in C: before NumPy 2.5 it is x, which may be -0.0 or 0.0.
_IS_SECOND = bool(np.signbit(np.nextafter(np.float16(0.0), np.float16(-0.0))))


def _narrow_after(x: Array, y: Array) -> Any:
    """`nextafter` of 16 bits, by the bits: CuPy has none of bfloat16, and its of an infinite float16 is nan."""
    is_half = x.dtype == np.float16
    infinity = 0x7C00 if is_half else 0x7F80
    bits, towards = (a.view(np.int16) for a in (x, y))
    rank, goal = (np.where(b < 0, -(b & 0x7FFF), b) for b in (bits, towards))  # in the order of the numbers
    after = rank + (goal > rank) - (goal < rank)
    magnitude = np.abs(after)
    found = np.where((after < 0) | ((after == 0) & (bits < 0)), magnitude | -0x8000, magnitude)
    found = np.where(rank == goal, bits if is_half and not _IS_SECOND else towards, found)
    found = np.where(np.abs(goal) > infinity, towards, found)
    return np.where(np.abs(rank) > infinity, bits, found).view(x.dtype)


class ScaleB(BinaryOperator, ElementwiseOperator, FloatOperator):
    """x * 2**trunc(y), rounded once; the derivative by y is 0.

    Examples
    --------
    >>> be.scalb(be.array([0.75, -1.0]), be.array([2.0, 5.0])).get()
    array([  3., -32.], dtype=float32)
    """

    name = "scalb"
    widened = ("float16", "bfloat16")
    kernel = "{1} != {1} ? {1} : ldexp({0}, (int)({1} > 9999 ? 9999 : {1} < -9999 ? -9999 : {1}))"

    @portable
    def numpy(self, *arrays: Array) -> Any:
        dtype = self.resolve_dtypes(*(a.dtype if hasattr(a, "dtype") else weak_dtype(type(a)) for a in arrays))[-1]
        x, y = (rounded(as_array(a, *arrays), dtype, copy=False) for a in arrays)
        powers = np.trunc(np.clip(np.where(np.isnan(y), 0, y), -9999, 9999)).astype(np.int32)
        return np.where(np.isnan(y), y, np.ldexp(x, powers))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (_, y), (delta,) = inputs, output_gradients
        return [f.scalb(delta, y), zero_gradient(y, delta.dtype)]


class LogB(UnaryOperator, ElementwiseOperator, FloatOperator, NonDifferentiableOperator):
    """floor(log2(abs(x))), exactly; -inf for 0.

    Examples
    --------
    >>> be.logb(be.array([0.75, -9.0])).get()
    array([-1.,  3.], dtype=float32)
    """

    name = "logb"
    widened = ("float16", "bfloat16")
    kernel = "logb({0})"

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        x = x.astype(self.resolve_dtypes(x.dtype)[-1], copy=False)
        whole = np.frexp(x)[1].astype(x.dtype) - 1
        return np.where(x == 0, x.dtype.type(-np.inf), np.where(np.isfinite(x), whole, np.abs(x)))


@function(numpy=np.ldexp)
def ldexp(x: Operand, exponent: Operand) -> Any:
    """X * 2**exponent, of integer exponents and rounded once; the derivative by x is 2**exponent.

    Raises
    ------
    DTypeError
        If the exponent is floating or uint64.

    Examples
    --------
    >>> be.ldexp(be.array([0.75, -1.0]), be.array([2, 5], dtype="int32")).get()
    array([  3., -32.], dtype=float32)
    """
    x, exponent = (variable_of(operand, "ldexp") for operand in (x, exponent))
    if not np.can_cast(exponent.dtype, np.int64):
        raise DTypeError(f"ldexp: the exponent {describe(exponent)} is not of integers that int64 has")
    dtype = floating_of(np.ldexp, x, exponent)
    return f.scalb(*(in_dtype(operand, dtype) for operand in (x, exponent)))


@function(numpy=np.frexp)
def frexp(x: Operand) -> tuple[Any, Any]:
    """The mantissa, from 0.5 below 1 in magnitude, and the int32 exponent, so that x = mantissa * 2**exponent.

    Of 0, infinities and nan, the mantissa is x and the exponent 0. The derivative of the mantissa is 2**-exponent.

    Examples
    --------
    >>> [part.get() for part in be.frexp(be.array([3.0, -32.0]))]
    [array([ 0.75, -0.5 ], dtype=float32), array([2, 6], dtype=int32)]
    """
    x = variable_of(x, "frexp")
    x = in_dtype(x, floating_of(np.log2, x))
    exponent = f.where(f.logical_and(f.finite(x), f.ne(x, 0)), f.logb(x) + 1, 0)
    return f.scalb(x, -exponent), f.cast(exponent, np.dtype("int32"))


@alias("negative")
class Neg(UnaryOperator, ElementwiseOperator):
    """-x."""

    name = "neg"
    numpy = np.negative
    kernel = "-{0}"

    def by_parts(self, x: Any) -> Any:
        return -x[0], -x[1]

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [-delta]


@alias("absolute")
class Abs(UnaryOperator, ElementwiseOperator):
    """The absolute value, of complex numbers the magnitude; its derivative at 0 is 0."""

    name = "abs"
    numpy = np.absolute

    def kernel(self, *dtypes: np.dtype) -> str | None:
        if is_floating(dtypes[0]):
            return "fabs({0})"
        return "{0} < 0 ? -{0} : {0}" if dtypes[0].kind == "i" else "{0}"

    def by_parts(self, x: Any) -> Any:
        return f.hypot(*x)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        if is_complex(x.dtype):
            size = f.abs(x)
            return [f.conjugate(x) * (delta / f.where(f.eq(size, 0), 1, size))]
        return [delta * f.sgn(in_dtype(x, delta.dtype))]  # there is no sgn of bools


def floating_of(ufunc: np.ufunc, *operands: Variable) -> np.dtype:
    """The dtype of a ufunc's value for operands."""
    dtypes = [x.dtype if (n := number_of(x)) is None else weak_dtype(type(n)) for x in operands]
    try:
        return ufunc_dtypes(ufunc, dtypes)[-1]
    except TypeError:
        for x in operands:
            check_real(x, ufunc.__name__)
        listed = ", ".join(map(describe, operands))
        raise DTypeError(f"{ufunc.__name__}: there is no {ufunc.__name__} for {listed}") from None


@function(numpy=np.fabs)
def fabs(x: Operand) -> Any:
    """The absolute value, floating for integers too.

    Examples
    --------
    >>> be.fabs(be.array([-1.5, 2.0])).get()
    array([1.5, 2. ], dtype=float32)
    """
    x = variable_of(x, "fabs")
    return f.abs(in_dtype(x, floating_of(np.fabs, x)))


@function(numpy=np.positive)
def positive(x: Operand) -> Any:
    """+x, a copy; refuses bools, as NumPy does.

    Examples
    --------
    >>> be.positive(be.array([-1.5, 2.0])).get()
    array([-1.5,  2. ], dtype=float32)
    """
    x = variable_of(x, "positive")
    if x.dtype.kind == "b":
        raise DTypeError(f"positive: {describe(x)} is bool, and has no sign")
    return f.copy(x)


@function(numpy=np.isposinf)
def isposinf(x: Operand) -> Any:
    """Whether each element is infinity.

    Examples
    --------
    >>> be.isposinf(be.array([-np.inf, 0.0, np.inf])).get()
    array([False, False,  True])
    """
    return f.eq(check_real(variable_of(x, "isposinf"), "isposinf"), math.inf)


@function(numpy=np.isneginf)
def isneginf(x: Operand) -> Any:
    """Whether each element is -infinity.

    Examples
    --------
    >>> be.isneginf(be.array([-np.inf, 0.0, np.inf])).get()
    array([ True, False, False])
    """
    return f.eq(check_real(variable_of(x, "isneginf"), "isneginf"), -math.inf)


@function(numpy=np.heaviside)
def heaviside(x: Operand, y: Operand) -> Any:
    """0 where x is negative, 1 where it is positive, and y where it is 0; nan where it is nan.

    Examples
    --------
    >>> be.heaviside(be.array([-1.0, 0.0, 1.0]), 0.5).get()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    x, y = (variable_of(operand, "heaviside") for operand in (x, y))
    dtype = floating_of(np.heaviside, x, y)
    at_zero = in_dtype(y, dtype) if number_of(y) is None else f.fill_like(in_dtype(x, dtype), y)
    step = f.where(f.lt(x, 0), 0.0, f.where(f.gt(x, 0), 1.0, at_zero))
    return f.where(f.isnan(x), math.nan, step) if is_floating(x.dtype) else step


@function(numpy=np.nan_to_num)
def nan_to_num(x: Operand, nan: float = 0.0, posinf: Operand | None = None, neginf: Operand | None = None) -> Any:
    """The operand with nan replaced by `nan`, and infinities by finite numbers, by default the largest.

    Examples
    --------
    >>> be.nan_to_num(be.array([1.0, np.nan, np.inf]), posinf=9.0).get()
    array([1., 0., 9.], dtype=float32)
    """
    x = variable_of(x, "nan_to_num")
    if is_complex(x.dtype):
        return f.complex(*(nan_to_num(part, nan, posinf, neginf) for part in (f.real(x), f.imag(x))))
    if not is_floating(x.dtype):
        return f.copy(x)
    most = float(finfo(x.dtype).max)
    known = f.where(f.isnan(x), nan, x)
    known = f.where(f.eq(x, math.inf), most if posinf is None else posinf, known)
    return f.where(f.eq(x, -math.inf), -most if neginf is None else neginf, known)


# Powers


class Square(UnaryOperator, ElementwiseOperator):
    """x * x."""

    name = "square"
    numpy = np.square
    kernel = "{0} * {0}"

    def by_parts(self, x: Any) -> Any:
        return x[0] * x[0] - x[1] * x[1], x[0] * x[1] + x[1] * x[0]

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta * 2 * x]


class Reciprocal(UnaryOperator, ElementwiseOperator):
    """1 / x; of an integer it is an integer, as in NumPy."""

    name = "reciprocal"
    numpy = np.reciprocal
    examples = Examples(sample=(0.5, 3.0))

    def kernel(self, *dtypes: np.dtype) -> str | None:
        if is_floating(dtypes[0]):
            return "(T)1 / {0}"
        with np.errstate(all="ignore"):
            found = int(np.reciprocal(np.zeros(1, dtypes[0]))[0])  # differs between integer dtypes, and processors
        of_zero = f"(T){found}u" if found >= 0 else f"(T)({found + 1} - (T)1)"  # there is no literal of the least one
        whole = "{0} == 1 ? (T)1 : {0} == 0 ? " + of_zero + " : (T)0"
        return whole if dtypes[0].kind == "u" else "{0} == -1 ? (T)-1 : " + whole

    def by_parts(self, x: Any) -> Any:
        """Smith's algorithm, as NumPy's."""
        is_wide = f.ge(f.abs(x[0]), f.abs(x[1]))
        long, short = f.where(is_wide, x[0], x[1]), f.where(is_wide, x[1], x[0])
        ratio = short / long
        divisor = long + short * ratio
        return f.where(is_wide, 1, ratio) / divisor, -(f.where(is_wide, ratio, 1) / divisor)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [-(delta * f.square(f.reciprocal(x)))]


@function(numpy=np.float_power)
def float_power(x: Operand, y: Operand) -> Any:
    """The power y of x in float64, of integers too.

    Examples
    --------
    >>> be.float_power(np.array([2, 3]), -1).get()
    array([0.5       , 0.33333333])
    """
    operands = [variable_of(operand, "float_power") for operand in (x, y)]
    wide = np.dtype("complex128" if any(is_complex(x.dtype) for x in operands) else "float64")
    return f.pow(*(wide.type(n).item() if (n := number_of(x)) is not None else in_dtype(x, wide) for x in operands))


class HalfPower(UnaryOperator, ElementwiseOperator, FloatOperator):
    """x to the power ``numerator / 2``, computed by a root; `numerator` is -3, -1, 3 or 5.

    The power of -inf and -0.0 is that of `pow`, and so is the derivative at 0.

    Examples
    --------
    >>> be.half_power(be.array([4.0])).get()
    array([8.], dtype=float32)
    """

    name = "half_power"
    __props__ = ("numerator",)
    numerator: int = 3
    kernels: ClassVar[dict[int, str]] = {
        -3: "{0} == -(T)INFINITY ? (T)0 : (T)1 / {0} / sqrt({0})",
        -1: "{0} == -(T)INFINITY ? (T)0 : (T)1 / sqrt({0} + (T)0)",
        3: "{0} == -(T)INFINITY ? (T)INFINITY : {0} * sqrt({0})",
        5: "{0} == -(T)INFINITY ? (T)INFINITY : {0} * {0} * sqrt({0} + (T)0)",
    }
    examples = Examples(tuple((((2, 3),), {"numerator": numerator}) for numerator in kernels), sample=(0.5, 3.0))

    def kernel(self, *dtypes: np.dtype) -> str | None:
        return self.kernels[self.numerator]

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        return np.power(x.astype(self.resolve_dtypes(x.dtype)[-1], copy=False), self.numerator / 2)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta * (self.numerator / 2) * f.pow(x, self.numerator / 2 - 1)]


#: Powers that are computed as products, reciprocals and roots, which are vectorised. For -1, 0.5 and 2 they are
#: bitwise those of NumPy's operator (sqrt(-inf) is nan), for others within 3 ulp. The reciprocal is squared, because
#: the square may overflow where the power does not.
_PRODUCTS: dict[Any, Any] = {
    -2: lambda x: f.square(f.reciprocal(x)),
    -1.5: lambda x: f.half_power(x, numerator=-3),
    -1: lambda x: f.reciprocal(x),
    -0.5: lambda x: f.half_power(x, numerator=-1),
    0.5: lambda x: f.sqrt(x),
    1.5: lambda x: f.half_power(x, numerator=3),
    2: lambda x: f.square(x),
    2.5: lambda x: f.half_power(x, numerator=5),
    3: lambda x: f.mul(f.square(x), x),
    4: lambda x: f.square(f.square(x)),
}


def _power_of_bools(x: Variable, number: float) -> Any:
    """A power of bools that is 0 or 1, or by a negative float 1 or inf; None for others."""
    dtype = ufunc_dtypes(np.power, (x.dtype, type(number)))[-1]  # type: ignore[index]
    if number > 0:
        return f.cast(x, dtype)
    return f.reciprocal(f.cast(x, dtype)) if number < 0 and type(number) is float else None


@alias("power")
@numpy_function(np.power)
class Pow(BinaryOperator, ElementwiseOperator):
    """x to the power y.

    For the exponents -2, -1.5, -1, -0.5, 0.5, 1.5, 2, 2.5, 3 and 4 it is a tree of products, reciprocals and roots.

    The derivative by y is 0 where x is 0 and y >= 0, and where x is inf and y < 0; nan where x < 0,
    where the power is nan for almost every y.

    Examples
    --------
    >>> be.pow(be.array([2.0, 3.0]), 2).get()
    array([4., 9.], dtype=float32)
    """

    name = "pow"
    takes_complex = True
    examples = Examples(sample=(0.5, 3.0))

    def kernel(self, *dtypes: np.dtype) -> str | None:
        return "pow({0}, {1})" if is_floating(dtypes[0]) else None  # integer powers need a loop, and may raise

    @classmethod
    def function(cls, *args: Any, **kwargs: Any) -> Any:
        """The power, as products for the exponents of `_PRODUCTS`."""
        (x, y), props = sorted_arguments(cls, args, kwargs)
        number = y if type(y) in (int, float) else number_of(y)
        number = None if number.__class__ is complex else number  # a complex number equals a real one
        product = _PRODUCTS.get(number)
        base = getattr(x, "dtype", None)
        if number in (-1.5, -0.5, 1.5, 2.5) and is_complex(base):
            product = None
        if number is not None and base is not None and base.kind == "b":
            product = _power_of_bools(x, number)
            return cls.make(**props)(x, y) if product is None else product
        if product is None or base is None:
            return cls.make(**props)(x, y)
        if base.kind in "fc" or is_floating(base) or (type(number) is int and number > 0):
            return product(x)
        if type(number) is int:  # a negative power of integers, which raises
            return cls.make(**props)(x, y)
        return product(f.cast(x, ufunc_dtypes(np.power, (base, float))[-1]))

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return ufunc_dtypes(np.power, dtypes)

    @portable
    def numpy(self, x: Array, y: Array) -> Any:
        if not isinstance(x, np.ndarray) and not isinstance(y, np.ndarray):
            _check_power(x, y)
        return np.power(x, y)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        return [_delta_of_base(x, y, delta), _delta_of_exponent(x, y, delta)]


def _check_power(x: Array, y: Array) -> None:
    """Raise NumPy's error for a negative integer power of integers, which CuPy does not."""
    is_real = any(is_inexact(a.dtype if hasattr(a, "dtype") else np.asarray(a).dtype) for a in (x, y))
    if not is_real and bool(np.any(y < 0)):
        raise ValueError("Integers to negative integer powers are not allowed.")


def _delta_of_base(x: Variable, y: Variable, delta: Variable) -> Any:
    number = number_of(y)
    if number is None:
        # 0 ** 0 is flat in x, but y * x ** (y - 1) would be 0 * inf there.
        flat = f.logical_and(f.eq(x, 0), f.eq(y, 0))
        return delta * y * f.pow(x, f.where(flat, 0, y - 1.0))
    if number == 0:
        return f.fill_like(delta, 0)
    if number == 1:
        return delta
    return delta * 2 * x if number == 2 else delta * number * f.pow(x, number - 1)


def _delta_of_exponent(x: Variable, y: Variable, delta: Variable) -> Any:
    if number_of(y) is not None:
        return None
    number = number_of(x)
    if is_complex(delta.dtype):
        base = x if number is None else f.fill_like(delta, number)
        return delta * f.pow(x, y) * f.log(f.where(f.eq(base, 0), 1, base))
    if number is None:
        flat = f.where(f.ge(y, 0), f.eq(x, 0), f.eq(x, math.inf))  # where 0 times an infinite logarithm would be nan
        return delta * f.pow(x, y) * f.log(f.where(flat, 1, x))
    if number == 0:
        return f.where(f.ge(y, 0), 0, -(delta * f.pow(number, y)))
    return delta * f.pow(number, y) * (math.log(number) if number > 0 else math.nan)


@function()
def shift(a: Operand, b: Operand, value: bool = True) -> Any:
    """The first operand shifted by the second, as bits are: positive exponents make it larger.

    Parameters
    ----------
    a, b : operand
    value : bool
        True: b is the factor, taken to the nearest power of two (by its
        logarithm) with its sign. False: b is the exponent of the factor 2 ** b.

    Examples
    --------
    >>> be.shift(np.array([1, 2]), 3).get()
    array([4., 8.])
    """
    number = number_of(as_variable(b))
    if number is None:
        exponent = f.rint(f.log2(f.abs(b))) if value else b
        factor = f.exp2(exponent)
        return f.mul(a, f.mul(factor, f.sgn(b)) if value else factor)
    if not value:
        return f.mul(a, 2.0**number)
    return f.mul(a, math.copysign(2.0 ** round(math.log2(abs(number))), number) if number else 0.0)
