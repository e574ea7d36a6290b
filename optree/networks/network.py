"""Elementwise functions of neural networks and statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import ufunc_dtypes
from optree.op.examples import Examples
from optree.op.traits import BinaryOperator, ElementwiseOperator, FloatOperator
from optree.ops.elementwise import floating_of
from optree.ops.transcendental import LN2, OwnFunction
from optree.registry import alias, f, function, numpy_function
from optree.tree.variable import Operand, Variable, in_dtype, number_of, variable_of


class Safelog(OwnFunction):
    """log(max(x, exp(-50))): never below -50, nan where x is nan; its derivative is 0 up to exp(-50).

    Examples
    --------
    >>> be.safelog(be.array([0.0, 1.0])).get()
    array([-50.,   0.], dtype=float32)
    """

    name = "safelog"
    least = math.exp(-50)
    kernel = f"log({{0}} > (T){least!r} || {{0}} != {{0}} ? {{0}} : (T){least!r})"
    examples = Examples(sample=(0.5, 3.0))

    def compute(self, x: np.ndarray) -> Any:
        return np.log(np.maximum(x, self.least))

    def along(self, x: Variable, delta: Variable) -> Any:
        rises = f.gt(x, self.least)
        # The inner where avoids 1 / 0 in the second derivative.
        return f.where(rises, delta / f.where(rises, x, 1), 0)


#: The logistic function is 1 in every dtype from here on.
SATURATED = 64.0


def _logistic(exponential: Any, x: np.ndarray) -> np.ndarray:
    """The logistic function by exp or exp2."""
    power = as_array(np.clip(x, -np.inf, SATURATED))  # np.minimum with a number is twice as slow
    exponential(power, out=power)
    return np.divide(power, power + 1, out=power)


@alias("sigmoid")
class Sig(OwnFunction):
    """The logistic function 1 / (1 + exp(-x)), accurate at both ends.

    Examples
    --------
    >>> be.sig(be.array([0.0, 2.0])).get().round(3)
    array([0.5  , 0.881], dtype=float32)
    """

    name = "sig"
    # {0} < 0 ? exp : 1, with exp in the condition, so that compilers compute it once: it is between 0 and 1.
    kernel = "(exp(-fabs({0})) > ({0} < 0 ? (T)-1 : (T)2) ? exp(-fabs({0})) : (T)1) / ((T)1 + exp(-fabs({0})))"

    def compute(self, x: np.ndarray) -> Any:
        return _logistic(np.exp, x)

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta * (f.sig(x) * f.sig(-x))  # 1 - sig(x) would lose the digits of a small slope


class Sig2(OwnFunction):
    """The logistic function to base 2, 1 / (1 + 2 ** -x), accurate at both ends.

    Examples
    --------
    >>> be.sig2(be.array([0.0, 1.0])).get().round(3)
    array([0.5  , 0.667], dtype=float32)
    """

    name = "sig2"
    kernel = "({0} < 0 ? exp2(-fabs({0})) : (T)1) / ((T)1 + exp2(-fabs({0})))"

    def compute(self, x: np.ndarray) -> Any:
        return _logistic(np.exp2, x)

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta * (f.sig2(x) * f.sig2(-x) * LN2)  # 1 - sig2(x) would lose the digits of a small slope


class Tanh2(OwnFunction):
    """The hyperbolic tangent to base 2, (2 ** 2x - 1) / (2 ** 2x + 1), which is tanh(x log 2).

    Examples
    --------
    >>> be.tanh2(be.array([0.0, 1.0])).get().round(3)
    array([0. , 0.6], dtype=float32)
    """

    name = "tanh2"
    kernel = f"tanh({{0}} * (T){LN2!r})"

    def compute(self, x: np.ndarray) -> Any:
        return np.tanh(x * LN2)

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta * (f.sech2(x * LN2) * LN2)


#: Numerator and denominator of erf(x) / x as functions of x * x, from the constant term up, for |x| <= 0.46875.
ERF_NEAR = (
    (3209.37758913846947, 377.485237685302021, 113.864154151050156, 3.16112374387056560, 0.185777706184603153),
    (2844.23683343917062, 1282.61652607737228, 244.024637934444173, 23.6012909523441209, 1.0),
)

#: The same of exp(x * x) * erfc(x) as functions of x, for 0.46875 <= x <= 4.
ERF_FAR = (
    (
        1230.33935479799725,
        2051.07837782607147,
        1712.04761263407058,
        881.952221241769090,
        298.635138197400131,
        66.1191906371416295,
        8.88314979438837594,
        0.564188496988670089,
        2.15311535474403846e-8,
    ),
    (
        1230.33935480374942,
        3439.36767414372164,
        4362.61909014324716,
        3290.79923573345963,
        1621.38957456669019,
        537.181101862009858,
        117.693950891312499,
        15.7449261107098347,
        1.0,
    ),
)


#: Elements of the error function computed at a time, which fit the cache.
ERF_BLOCK = 8192


def _polynomial(x: np.ndarray, coefficients: tuple[float, ...]) -> np.ndarray:
    """A polynomial's value, its coefficients given from the constant term up."""
    value = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value *= x
        value += coefficient
    return value


def _ratio(x: np.ndarray, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> np.ndarray:
    """A quotient of two polynomials."""
    above, below = coefficients
    return _polynomial(x, above) / _polynomial(x, below)


def _erf(x: np.ndarray) -> np.ndarray:
    """The error function on a float64 array."""
    size = np.minimum(np.abs(x), 6.0)  # erf is 1 from there on
    near = x * _ratio(np.square(np.minimum(size, 0.5)), ERF_NEAR)
    far = np.copysign(1 - np.exp(-np.square(size)) * _ratio(size, ERF_FAR), x)
    return np.where(size <= 0.46875, near, far)


class Erf(OwnFunction):
    """The error function, 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to x.

    The value on NumPy arrays is by the rational approximations of W. J. Cody, "Rational Chebyshev approximations for
    the error function", Math. Comp. 23 (1969), computed in float64. The second one is used beyond 4 too, where erfc is
    below 2e-8 and eight digits of it suffice.

    Examples
    --------
    >>> be.erf(be.array([0.0, 1.0])).get().round(3)
    array([0.   , 0.843], dtype=float32)
    """

    name = "erf"
    kernel = "erf({0})"

    def compute(self, x: np.ndarray) -> Any:
        out = np.empty_like(x, order="C")
        source, target = x.reshape(-1), out.reshape(-1)
        for start in range(0, x.size, ERF_BLOCK):
            block = slice(start, start + ERF_BLOCK)
            target[block] = _erf(source[block].astype(np.float64, copy=False))
        return out

    def along(self, x: Variable, delta: Variable) -> Any:
        # Beyond 40 it is 0 in every dtype; the square of an inf would make the second derivative nan.
        return delta * (f.exp(-f.square(f.clip(x, -40.0, 40.0))) * (2 / math.sqrt(math.pi)))


#: The smaller operand less the larger one; 0 for equal infinities.
_GAP = "({0} == {1} ? (T)0 : -fabs({0} - {1}))"


@numpy_function(np.logaddexp)
class LogAddExp(BinaryOperator, ElementwiseOperator, FloatOperator):
    """log(exp(x) + exp(y)), without overflow; equal infinities share the gradient.

    Examples
    --------
    >>> be.logaddexp(be.array([1000.0]), 1000.0).get()
    array([1000.6932], dtype=float32)
    """

    name = "logaddexp"
    commutative = True
    # log1p of a denormal is slow, and of numbers below 1e-18 the number; 1e-37 is lost in others. With exp in the
    # condition, compilers compute it once.
    kernel = f"({{0}} > {{1}} ? {{0}} : {{1}}) + (exp({_GAP}) < (T)1e-18 ? exp({_GAP}) : log1p(exp({_GAP}) + (T)1e-37))"

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return ufunc_dtypes(np.logaddexp, dtypes)

    @portable
    def numpy(self, x: Array, y: Array) -> Any:
        if np.result_type(x, y) != np.float32:
            return np.logaddexp(x, y)
        # By vectorised ufuncs: np.logaddexp is ten times slower.
        gap = np.where(np.equal(x, y), np.float32(0), -np.abs(np.subtract(x, y)))  # equal infinities, too
        return np.maximum(x, y) + np.log1p(np.exp(gap))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        ahead = _lead(x, y)
        return [delta * f.sig(ahead), delta * f.sig(-ahead)]


def _lead(x: Variable, y: Variable) -> Any:
    """X - y, and 0 for equal infinities alone: finite ties have higher derivatives, which a constant would cut."""
    lead = x - y
    if any(number is not None and math.isfinite(number) for number in (number_of(x), number_of(y))):
        return lead
    return f.where(f.logical_and(f.eq(x, y), f.isinf(x)), 0, lead)


@function(numpy=np.logaddexp2)
def logaddexp2(x: Operand, y: Operand) -> Any:
    """log2(2 ** x + 2 ** y), without overflow.

    Examples
    --------
    >>> be.logaddexp2(be.array([1.0]), 1.0).get()
    array([2.], dtype=float32)
    """
    x, y = (variable_of(operand, "logaddexp2") for operand in (x, y))
    dtype = floating_of(np.logaddexp2, x, y)
    numbers = number_of(x), number_of(y)  # weak
    x, y = (in_dtype(v, dtype) * LN2 if n is None else n * LN2 for v, n in zip((x, y), numbers, strict=True))
    return f.logaddexp(x, y) * (1 / LN2)


@function()
def softplus(x: Operand) -> Any:
    """log(1 + exp(x)), without overflow.

    Examples
    --------
    >>> be.softplus(be.array([0.0])).get().round(3)
    array([0.693], dtype=float32)
    """
    return f.logaddexp(x, 0)


@function(names=("logsigmoid",))
def log_sigmoid(x: Operand) -> Any:
    """The logarithm of `sig`, accurate where that rounds to 0 or 1: ``-softplus(-x)``.

    Examples
    --------
    >>> be.log_sigmoid(be.array([-1000.0, 0.0])).get().round(3)
    array([-1.00e+03, -6.93e-01], dtype=float32)
    """
    x = variable_of(x, "log_sigmoid")
    return -softplus(f.neg(in_dtype(x, softplus(x).dtype)))  # an unsigned -x would wrap
