"""Elementwise functions of calculus: roots, exponentials, logarithms, trigonometry, and those of networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.registry import f
from optree.traits import BinaryOperator, ElementwiseOperator, FloatOperator, UnaryOperator

LN2 = math.log(2)


class FloatFunction(UnaryOperator, ElementwiseOperator, FloatOperator):
    """A function of one number; `slope` is its derivative, as a tree."""

    def slope(self, x: Any) -> Any:
        raise NotImplementedError

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta * self.slope(x)]


class OwnFunction(FloatFunction):
    """A function that NumPy lacks: `compute` gives it on float32 and float64 arrays."""

    def compute(self, x: np.ndarray) -> Any:
        raise NotImplementedError

    def value(self, *arrays: Any) -> Any:
        x = np.asarray(arrays[0])
        dtype = self.resolve_dtypes(x.dtype)[-1]
        wide = np.promote_types(dtype, np.float32)  # float16 is computed in float32, as kernels do
        return np.asarray(self.compute(x.astype(wide, copy=False))).astype(dtype, copy=False)


# Roots, exponentials, logarithms


class Sqrt(FloatFunction):
    """The square root."""

    name = "sqrt"
    numpy = np.sqrt
    kernel = "sqrt({0})"
    sample = (0.5, 3.0)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta * 0.5 / f.sqrt(x)]


class Exp(FloatFunction):
    """e to the power x."""

    name = "exp"
    numpy = np.exp
    kernel = "exp({0})"

    def slope(self, x: Any) -> Any:
        return f.exp(x)


class Exp2(FloatFunction):
    """2 to the power x."""

    name = "exp2"
    numpy = np.exp2
    kernel = "exp2({0})"

    def slope(self, x: Any) -> Any:
        return f.exp2(x) * LN2


class Expm1(FloatFunction):
    """exp(x) - 1, exact near zero."""

    name = "expm1"
    numpy = np.expm1
    kernel = "expm1({0})"

    def slope(self, x: Any) -> Any:
        return f.exp(x)


class Log(FloatFunction):
    """The natural logarithm."""

    name = "log"
    numpy = np.log
    kernel = "log({0})"
    sample = (0.5, 3.0)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta / x]


class Log2(FloatFunction):
    """The logarithm to base 2."""

    name = "log2"
    numpy = np.log2
    kernel = "log2({0})"
    sample = (0.5, 3.0)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta / x * (1 / LN2)]


class Log10(FloatFunction):
    """The logarithm to base 10."""

    name = "log10"
    numpy = np.log10
    kernel = "log10({0})"
    sample = (0.5, 3.0)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta / x * (1 / math.log(10))]


class Log1p(FloatFunction):
    """log(1 + x), exact near zero."""

    name = "log1p"
    numpy = np.log1p
    kernel = "log1p({0})"
    sample = (-0.5, 2.0)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta / (x + 1.0)]


class Safelog(OwnFunction):
    """log(max(x, exp(-50))): never below -50, nan where x is nan; its derivative is 0 up to exp(-50)."""

    name = "safelog"
    least = math.exp(-50)
    kernel = f"log({{0}} > (T){least!r} || {{0}} != {{0}} ? {{0}} : (T){least!r})"
    sample = (0.5, 3.0)

    def compute(self, x: np.ndarray) -> Any:
        return np.log(np.maximum(x, self.least))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        rises = f.gt(x, self.least)
        # The inner choice keeps 1 / 0 out of the second derivative.
        return [f.where(rises, delta / f.where(rises, x, 1), 0)]


# Trigonometry


class Sin(FloatFunction):
    """Sine."""

    name = "sin"
    numpy = np.sin
    kernel = "sin({0})"

    def slope(self, x: Any) -> Any:
        return f.cos(x)


class Cos(FloatFunction):
    """Cosine."""

    name = "cos"
    numpy = np.cos
    kernel = "cos({0})"

    def slope(self, x: Any) -> Any:
        return -f.sin(x)


class Tan(FloatFunction):
    """Tangent."""

    name = "tan"
    numpy = np.tan
    kernel = "tan({0})"
    sample = (-1.2, 1.2)

    def slope(self, x: Any) -> Any:
        return 1 + f.square(f.tan(x))


class Arcsin(FloatFunction):
    """The inverse of sine, between -pi/2 and pi/2."""

    name = "arcsin"
    numpy = np.arcsin
    kernel = "asin({0})"
    sample = (-0.9, 0.9)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta / f.sqrt((1.0 - x) * (1.0 + x))]  # 1 - x * x would lose digits near 1


class Arccos(FloatFunction):
    """The inverse of cosine, between 0 and pi."""

    name = "arccos"
    numpy = np.arccos
    kernel = "acos({0})"
    sample = (-0.9, 0.9)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [-(delta / f.sqrt((1.0 - x) * (1.0 + x)))]


class Arctan(FloatFunction):
    """The inverse of tangent, between -pi/2 and pi/2."""

    name = "arctan"
    numpy = np.arctan
    kernel = "atan({0})"

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta / (f.square(x) + 1.0)]


class Sinh(FloatFunction):
    """Hyperbolic sine."""

    name = "sinh"
    numpy = np.sinh
    kernel = "sinh({0})"

    def slope(self, x: Any) -> Any:
        return f.cosh(x)


class Cosh(FloatFunction):
    """Hyperbolic cosine."""

    name = "cosh"
    numpy = np.cosh
    kernel = "cosh({0})"

    def slope(self, x: Any) -> Any:
        return f.sinh(x)


class Tanh(FloatFunction):
    """Hyperbolic tangent."""

    name = "tanh"
    numpy = np.tanh
    kernel = "tanh({0})"

    def slope(self, x: Any) -> Any:
        return 1 - f.square(f.tanh(x))


class Arcsinh(FloatFunction):
    """The inverse of the hyperbolic sine."""

    name = "arcsinh"
    numpy = np.arcsinh
    kernel = "asinh({0})"

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta / f.hypot(x, 1.0)]  # x * x could overflow


class Arccosh(FloatFunction):
    """The inverse of the hyperbolic cosine."""

    name = "arccosh"
    numpy = np.arccosh
    kernel = "acosh({0})"
    sample = (1.2, 3.0)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta / (f.sqrt(x - 1.0) * f.sqrt(x + 1.0))]


class Arctanh(FloatFunction):
    """The inverse of the hyperbolic tangent."""

    name = "arctanh"
    numpy = np.arctanh
    kernel = "atanh({0})"
    sample = (-0.9, 0.9)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta / ((1.0 - x) * (1.0 + x))]


def _or_one(length: Any) -> Any:
    """A length to divide by: 1 where it is 0, which makes the derivatives at the origin 0."""
    return f.where(f.eq(length, 0), 1, length)


class Arctan2(BinaryOperator, ElementwiseOperator, FloatOperator):
    """The angle of the point (y, x), its ordinate first; the derivatives at the origin are 0."""

    name = "arctan2"
    numpy = np.arctan2
    kernel = "atan2({0}, {1})"
    sample = (0.5, 3.0)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        length = _or_one(f.hypot(x, y))
        return [delta * (y / length) / length, -(delta * (x / length) / length)]


class Hypot(BinaryOperator, ElementwiseOperator, FloatOperator):
    """The length of (x, y), without overflow on the way; the derivatives at the origin are 0."""

    name = "hypot"
    numpy = np.hypot
    kernel = "hypot({0}, {1})"
    sample = (0.5, 3.0)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        length = _or_one(f.hypot(x, y))
        return [delta * (x / length), delta * (y / length)]


# Functions of networks


class Sig(OwnFunction):
    """The logistic function 1 / (1 + exp(-x)), accurate at both ends."""

    name = "sig"
    kernel = "({0} < 0 ? exp(-fabs({0})) : (T)1) / ((T)1 + exp(-fabs({0})))"

    def compute(self, x: np.ndarray) -> Any:
        small = np.exp(-np.abs(x))
        return np.where(x < 0, small, 1) / (1 + small)

    def slope(self, x: Any) -> Any:
        value = f.sig(x)
        return value * (1 - value)


class Sig2(OwnFunction):
    """The logistic function to base 2, 1 / (1 + 2 ** -x), accurate at both ends."""

    name = "sig2"
    kernel = "({0} < 0 ? exp2(-fabs({0})) : (T)1) / ((T)1 + exp2(-fabs({0})))"

    def compute(self, x: np.ndarray) -> Any:
        small = np.exp2(-np.abs(x))
        return np.where(x < 0, small, 1) / (1 + small)

    def slope(self, x: Any) -> Any:
        value = f.sig2(x)
        return value * (1 - value) * LN2


class Tanh2(OwnFunction):
    """The hyperbolic tangent to base 2, (2 ** 2x - 1) / (2 ** 2x + 1), which is tanh(x log 2)."""

    name = "tanh2"
    kernel = f"tanh({{0}} * (T){LN2!r})"

    def compute(self, x: np.ndarray) -> Any:
        return np.tanh(x * LN2)

    def slope(self, x: Any) -> Any:
        return (1 - f.square(f.tanh2(x))) * LN2


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


#: The error function is computed on so many elements at a time, which stay in the processor's cache.
ERF_BLOCK = 4096


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

    The value on NumPy arrays is by the rational approximations of W. J. Cody,
    "Rational Chebyshev approximations for the error function", Math. Comp. 23
    (1969), computed in float64. Beyond 4 the second one serves on: all of it is
    less there than 2e-8, and it has still eight digits.
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

    def slope(self, x: Any) -> Any:
        return f.exp(-f.square(x)) * (2 / math.sqrt(math.pi))
