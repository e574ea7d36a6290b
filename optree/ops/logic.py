"""Elementwise ops whose derivative is zero: comparisons, logic, tests of a number's kind, rounding, signs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ClassVar

import numpy as np

from optree.dtypes import is_floating, is_inexact
from optree.errors import DTypeError, describe
from optree.op.op import for_complex
from optree.op.traits import (
    BinaryOperator,
    ElementwiseOperator,
    LogicalOperator,
    NonDifferentiableOperator,
    UnaryOperator,
)
from optree.registry import NUMPY_FUNCTIONS, alias, associative, f, function, numpy_function
from optree.tree.types import integer_of, may_equal, promote
from optree.tree.variable import Operand, Variable, is_complex_operand, number_of, variable_of

# Comparisons

#: NumPy's ufuncs that are wrong for an `out` of any strides: NumPy 2.4, on processors with AVX-512.
CONTIGUOUS_ONLY = frozenset({np.isfinite, np.isnan, np.isinf, np.signbit, np.negative})


class Comparison(BinaryOperator, ElementwiseOperator, LogicalOperator):
    """A comparison; a Python integer may be out of range of x's dtype."""

    #: The comparison in C.
    sign: ClassVar[str]
    takes_complex = False  # there is no order of them

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        for i, y in enumerate(inputs if len(inputs) == 2 else ()):
            number, x = y if type(y) is int else number_of(y), inputs[1 - i]
            if type(number) is int and isinstance(x, Variable) and _is_beyond(number, x.dtype):
                known = bool(self.numpy(number, 0) if i == 0 else self.numpy(0, number))
                return f.fill_like(super().__call__(*(0 if k == i else x for k in range(2))), known)
        return super().__call__(*inputs, **kwargs)

    def kernel(self, *dtypes: np.dtype) -> str | None:
        """The kernel, which compares a negative integer with an unsigned one by value."""
        compared, kinds = f"{{0}} {self.sign} {{1}}", [dtype.kind for dtype in dtypes]
        if sorted(kinds) != ["i", "u"]:
            return compared
        signed, holds = ("{0}", self.numpy(-1, 0)) if kinds[0] == "i" else ("{1}", self.numpy(0, -1))
        return f"{signed} < 0 || {compared}" if holds else f"{signed} >= 0 && {compared}"


def _is_beyond(number: int, dtype: np.dtype) -> bool:
    """Whether an integer is out of range of an integer dtype."""
    return dtype.kind in "iu" and not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max


@alias("equal")
class Equal(Comparison):
    """Whether x equals y."""

    name = "eq"
    commutative = True
    takes_complex = True
    numpy = np.equal
    sign = "=="

    def by_parts(self, x: Any, y: Any) -> Any:
        return f.logical_and(f.eq(x[0], y[0]), f.eq(x[1], y[1]))


@alias("not_equal")
class NotEqual(Comparison):
    """Whether x differs from y; nan differs from everything."""

    name = "ne"
    commutative = True
    takes_complex = True
    numpy = np.not_equal
    sign = "!="

    def by_parts(self, x: Any, y: Any) -> Any:
        return f.logical_or(f.ne(x[0], y[0]), f.ne(x[1], y[1]))


@alias("less")
class Less(Comparison):
    """Whether x is less than y."""

    name = "lt"
    numpy = np.less
    sign = "<"


@alias("less_equal")
class LessEqual(Comparison):
    """Whether x is less than y or equal to it."""

    name = "le"
    numpy = np.less_equal
    sign = "<="


@alias("greater")
class Greater(Comparison):
    """Whether x is greater than y."""

    name = "gt"
    numpy = np.greater
    sign = ">"


@alias("greater_equal")
class GreaterEqual(Comparison):
    """Whether x is greater than y or equal to it."""

    name = "ge"
    numpy = np.greater_equal
    sign = ">="


# Logic; every number but 0 is true


class Connective(BinaryOperator, ElementwiseOperator, LogicalOperator):
    """A logical op of two operands."""

    commutative = True

    def by_parts(self, x: Any, y: Any) -> Any:
        return self(_is_true(x), _is_true(y))


@associative
class LogicalAnd(Connective):
    """Whether x and y are both true, that is, not zero; nan is true."""

    name = "logical_and"
    numpy = np.logical_and
    kernel = "{0} != 0 && {1} != 0"


@associative
class LogicalOr(Connective):
    """Whether x or y is true, that is, not zero; nan is true."""

    name = "logical_or"
    numpy = np.logical_or
    kernel = "{0} != 0 || {1} != 0"


@associative
class LogicalXor(Connective):
    """Whether exactly one of x and y is true, that is, not zero; nan is true."""

    name = "logical_xor"
    numpy = np.logical_xor
    kernel = "({0} != 0) != ({1} != 0)"


class LogicalNot(UnaryOperator, ElementwiseOperator, LogicalOperator):
    """Whether x is zero."""

    name = "logical_not"
    numpy = np.logical_not
    kernel = "{0} == 0"

    def by_parts(self, x: Any) -> Any:
        return self(_is_true(x))


def _is_true(x: Any) -> Any:
    """Whether a number of two parts is not zero; the first part where the other is the number 0."""
    return x[0] if isinstance(x[1], float) else f.logical_or(*x)


# Classification


@alias("isfinite")
class Finite(UnaryOperator, ElementwiseOperator, LogicalOperator):
    """Whether x is neither infinite nor nan."""

    name = "finite"
    numpy = np.isfinite
    kernel = "{0} - {0} == 0"  # C's isfinite is for floats only

    def by_parts(self, x: Any) -> Any:
        return f.logical_and(self(x[0]), self(x[1]))


class IsNan(UnaryOperator, ElementwiseOperator, LogicalOperator):
    """Whether x is nan."""

    name = "isnan"
    numpy = np.isnan
    kernel = "{0} != {0}"

    def by_parts(self, x: Any) -> Any:
        return f.logical_or(self(x[0]), self(x[1]))


class IsInf(UnaryOperator, ElementwiseOperator, LogicalOperator):
    """Whether x is infinite."""

    name = "isinf"
    numpy = np.isinf
    kernel = "({0} == {0}) != ({0} - {0} == 0)"  # without a branch, so that compilers vectorise it

    def by_parts(self, x: Any) -> Any:
        return f.logical_or(self(x[0]), self(x[1]))


class SignBit(UnaryOperator, ElementwiseOperator, LogicalOperator):
    """Whether x has a minus sign, as -0.0 and some nans have too."""

    name = "signbit"
    numpy = np.signbit

    def kernel(self, *dtypes: np.dtype) -> str | None:
        if not is_floating(dtypes[0]):
            return "{0} < 0" if dtypes[0].kind == "i" else "(T)0"
        # Of float32 where that has the value: compilers vectorise copysign, unlike signbit.
        return "copysign(1.0, {0}) < 0" if dtypes[0].itemsize == 8 else "copysign(1.0f, {0}) < 0"


# Rounding and sign


class Rounding(UnaryOperator, ElementwiseOperator, NonDifferentiableOperator):
    """Rounding to a whole number; integers are unchanged."""

    def kernel(self, *dtypes: np.dtype) -> str | None:
        return f"{self.name}({{0}})" if is_floating(dtypes[0]) else "{0}"


class Floor(Rounding):
    """The largest whole number not above x."""

    name = "floor"
    numpy = np.floor


class Ceil(Rounding):
    """The smallest whole number not below x."""

    name = "ceil"
    numpy = np.ceil


@numpy_function(np.fix)
class Trunc(Rounding):
    """x without its fraction."""

    name = "trunc"
    numpy = np.trunc


class Rint(Rounding):
    """The nearest whole number, ties to even."""

    name = "rint"
    numpy = np.rint


@alias("sign")
class Sgn(UnaryOperator, ElementwiseOperator, NonDifferentiableOperator):
    """-1, 0 or 1 by the sign of x; nan where x is nan. Of complex numbers their direction, x / abs(x), and 0 of 0."""

    name = "sgn"
    numpy = np.sign

    @for_complex
    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        is_direction = len(inputs) == 1 and is_complex_operand(inputs[0])
        return Direction.make()(*inputs) if is_direction else super().__call__(*inputs, **kwargs)

    def kernel(self, *dtypes: np.dtype) -> str | None:
        """The kernel; for integers without a conditional, which not all compilers vectorise."""
        of_floats = "{0} > 0 ? (T)1 : {0} < 0 ? (T)-1 : {0} == 0 ? (T)0 : {0}"
        return {"u": "{0} != 0", "i": "({0} > 0) - ({0} < 0)"}.get(dtypes[0].kind, of_floats)


class Direction(UnaryOperator, ElementwiseOperator):
    """`sgn` of complex numbers, which has a derivative; without a name."""

    numpy = np.sign

    def by_parts(self, x: Any) -> Any:
        size = f.hypot(*x)
        divisor = f.where(f.eq(size, 0), 1, size)
        are_infinite = f.logical_and(f.isinf(x[0]), f.isinf(x[1]))
        signs = [f.where(f.isinf(part), f.where(are_infinite, math.nan, f.copysign(1.0, part)), 0) for part in x]
        return tuple(f.where(f.isinf(size), sign, part / divisor) for part, sign in zip(x, signs, strict=True))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        size, sign = f.abs(x), self(x)
        across = delta - f.conjugate(sign) * f.real(delta * sign)
        return [f.where(f.eq(size, 0), 0, across / f.where(f.eq(size, 0), 1, size))]


@numpy_function(np.around)
@function(numpy=np.round)
def round(x: Operand, decimals: int = 0) -> Any:
    """The operand rounded to a number of decimals, ties to even; its derivative is zero.

    Examples
    --------
    >>> be.round(be.array([0.5, 1.25, 2.75]), 1).get()
    array([0.5, 1.2, 2.8], dtype=float32)
    """
    x, decimals = variable_of(x, "round"), integer_of(decimals, "round: decimals")
    if x.dtype.kind == "c":
        return f.complex(round(f.real(x), decimals), round(f.imag(x), decimals))
    if x.dtype.kind == "b" and decimals:
        raise DTypeError(f"round: {describe(x)} is bool, and has no decimals")
    if x.dtype.kind in "iu" and decimals >= 0:
        return f.copy(x)
    power = 10.0 ** abs(decimals)
    rounded = f.rint(x) if not decimals else f.rint(x * power) / power if decimals > 0 else f.rint(x / power) * power
    return f.cast(rounded, x.dtype) if x.dtype.kind in "iu" else rounded


# Approximate equality


@function(numpy=np.isclose)
def isclose(x: Operand, y: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """Whether abs(x - y) <= atol + rtol * abs(y), or x == y; with `equal_nan`, nans are close.

    Examples
    --------
    >>> be.isclose(be.array([1.0, 2.0]), be.array([1.000001, 2.1])).get()
    array([ True, False])
    """
    x, y = (variable_of(operand, "isclose") for operand in (x, y))
    wide = y if is_inexact(y.dtype) else f.cast(y, promote(y.dtype, float))
    near = (f.abs(x - wide) <= atol + rtol * f.abs(wide)) & f.finite(wide) | (x == y)
    return near | (f.isnan(x) & f.isnan(y)) if equal_nan else near


@function()
def allclose(x: Operand, y: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """Whether all elements are close (`isclose`), as a 0-d bool. ``np.allclose`` runs it, for a Python bool.

    Examples
    --------
    >>> be.allclose(be.array([1.0, 2.0]), be.array([1.000001, 2.0])).item()
    True
    """
    return f.all(isclose(x, y, rtol, atol, equal_nan), keepdims=False)


@function()
def array_equal(x: Operand, y: Operand, equal_nan: bool = False) -> Any:
    """Whether x and y have equal shapes and elements, as a 0-d bool. ``np.array_equal`` runs it, for a Python bool.

    Examples
    --------
    >>> be.array_equal(be.ones(2), be.ones(3)).item()
    False
    """
    x, y = (variable_of(operand, "array_equal") for operand in (x, y))
    if not may_equal(x.shape, y.shape):
        return f.fill_like(f.all(x, keepdims=False), False)
    same = x == y
    return f.all(same | (f.isnan(x) & f.isnan(y)) if equal_nan else same, keepdims=False)


def _run(function: Callable[..., Any]) -> Callable[..., bool]:
    """A function of one element, run at once for a Python bool, as NumPy's are."""

    @wraps(function)
    def run(*args: Any, **options: Any) -> bool:
        return bool(function(*args, **options).item())

    return run


NUMPY_FUNCTIONS[np.allclose], NUMPY_FUNCTIONS[np.array_equal] = _run(allclose), _run(array_equal)


@numpy_function(np.array_equiv)
def _numpy_array_equiv(x: Operand, y: Operand) -> bool:
    """Whether two operands broadcast together and all elements are equal, run at once."""
    x, y = (variable_of(operand, "array_equiv") for operand in (x, y))
    pairs = zip(x.shape[::-1], y.shape[::-1], strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs) and bool(f.all(x == y, keepdims=False).item())
