"""Roots, exponentials, logarithms, trigonometric and hyperbolic functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import is_complex, is_inexact
from optree.op.examples import Examples
from optree.op.traits import BinaryOperator, ElementwiseOperator, FloatOperator, UnaryOperator
from optree.ops.elementwise import floating_of
from optree.registry import FUNCTIONS, NUMPY_FUNCTIONS, f, function
from optree.tree.variable import Operand, Variable, in_dtype, variable_of

LN2 = math.log(2)


class FloatFunction(UnaryOperator, ElementwiseOperator, FloatOperator):
    """A function of one variable, with its derivative times a delta, `along`."""

    def along(self, x: Variable, delta: Variable) -> Any:
        raise NotImplementedError

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [self.along(*inputs, *output_gradients)]


class OwnFunction(FloatFunction):
    """A function that NumPy lacks, with its value `compute` on float32 and float64 arrays."""

    def compute(self, x: np.ndarray) -> Any:
        raise NotImplementedError

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        dtype = self.resolve_dtypes(x.dtype)[-1]
        wide = np.promote_types(dtype, np.float32)  # float16 is computed in float32, as kernels do
        return as_array(self.compute(x.astype(wide, copy=False))).astype(dtype, copy=False)


# Roots, exponentials, logarithms


class Sqrt(FloatFunction):
    """The square root.

    Examples
    --------
    >>> be.sqrt(be.array([4.0, 9.0])).get()
    array([2., 3.], dtype=float32)
    """

    name = "sqrt"
    numpy = np.sqrt
    kernel = "sqrt({0})"

    def by_parts(self, z: Any) -> Any:
        x, y = z
        root = f.sqrt(f.abs(x) * 0.5 + f.hypot(x * 0.5, y * 0.5))  # halves, whose length does not overflow
        other = f.where(f.eq(root, 0), 0, f.abs(y) * 0.5 / root)
        is_right, is_infinite = f.ge(x, 0), f.isinf(y)
        re = f.where(is_infinite, math.inf, f.where(is_right, root, other))
        return re, f.copysign(f.where(is_infinite, math.inf, f.where(is_right, other, root)), y)

    examples = Examples(sample=(0.5, 3.0))

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta * 0.5 / f.sqrt(x)


class Cbrt(FloatFunction):
    """The cube root, of negative numbers too."""

    name = "cbrt"
    numpy = np.cbrt
    kernel = "cbrt({0})"
    examples = Examples(sample=(0.5, 3.0))

    def along(self, x: Variable, delta: Variable) -> Any:
        root = f.cbrt(x)
        return delta / 3 / root / root


class Exp(FloatFunction):
    """e to the power x.

    Examples
    --------
    >>> be.exp(be.array([0.0, 1.0])).get().round(3)
    array([1.   , 2.718], dtype=float32)
    """

    name = "exp"
    numpy = np.exp
    kernel = "exp({0})"

    def by_parts(self, z: Any) -> Any:
        x, y = z
        half = f.exp(x * 0.5)  # twice, as exp(x) may overflow where the product does not
        re, im = half * f.cos(y) * half, f.where(f.eq(y, 0), y, half * f.sin(y) * half)
        without_angle = f.logical_and(f.isinf(x), f.logical_not(f.finite(y)))  # as in C99
        re = f.where(without_angle, f.maximum(x, 0), re)
        return re, f.where(f.logical_and(without_angle, f.lt(x, 0)), 0, im)

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta * f.exp(x)


class Exp2(FloatFunction):
    """2 to the power x."""

    name = "exp2"
    numpy = np.exp2
    kernel = "exp2({0})"

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta * (f.exp2(x) * LN2)


class Expm1(FloatFunction):
    """exp(x) - 1, accurate near zero."""

    name = "expm1"
    numpy = np.expm1
    kernel = "expm1({0})"

    def by_parts(self, z: Any) -> Any:
        x, y = z
        return f.expm1(x) * f.cos(y) - 2 * f.square(f.sin(y * 0.5)), f.exp(x) * f.sin(y)

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta * f.exp(x)


class Log(FloatFunction):
    """The natural logarithm.

    Examples
    --------
    >>> be.log(be.array([1.0, 2.0])).get().round(3)
    array([0.   , 0.693], dtype=float32)
    """

    name = "log"
    numpy = np.log
    kernel = "log({0})"

    def by_parts(self, z: Any) -> Any:
        """The logarithm of the length is accurate where that is near 1, and does not overflow."""
        x, y = z
        longer, shorter = f.maximum(f.abs(x), f.abs(y)), f.minimum(f.abs(x), f.abs(y))
        is_near = f.logical_and(f.gt(longer, 0.5), f.lt(longer, 2))
        ratio = f.where(f.eq(longer, shorter), 1, shorter / longer)
        square = f.where(is_near, (longer - 1) * (longer + 1) + shorter * shorter, ratio * ratio)
        length = f.where(is_near, 0, f.log(longer)) + 0.5 * f.log1p(square)
        return f.where(f.logical_or(f.isinf(x), f.isinf(y)), math.inf, length), f.arctan2(y, x)

    examples = Examples(sample=(0.5, 3.0))

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta / x


class Log2(FloatFunction):
    """The logarithm to base 2."""

    name = "log2"
    numpy = np.log2
    kernel = "log2({0})"

    def by_parts(self, z: Any) -> Any:
        re, im = Log.make().by_parts(z)
        return re * (1 / LN2), im * (1 / LN2)

    examples = Examples(sample=(0.5, 3.0))

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta / x * (1 / LN2)


class Log10(FloatFunction):
    """The logarithm to base 10."""

    name = "log10"
    numpy = np.log10
    kernel = "log10({0})"

    def by_parts(self, z: Any) -> Any:
        re, im = Log.make().by_parts(z)
        return re * (1 / math.log(10)), im * (1 / math.log(10))

    examples = Examples(sample=(0.5, 3.0))

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta / x * (1 / math.log(10))


class Log1p(FloatFunction):
    """log(1 + x), accurate near zero."""

    name = "log1p"
    numpy = np.log1p
    kernel = "log1p({0})"
    examples = Examples(sample=(-0.5, 2.0))

    def by_parts(self, z: Any) -> Any:
        x, y = z
        re, im = Log.make().by_parts((x + 1, y))
        is_near = f.lt(f.maximum(f.abs(x), f.abs(y)), 0.5)
        return f.where(is_near, 0.5 * f.log1p(x * (x + 2) + y * y), re), im

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta / (x + 1.0)


# Trigonometry


class Sin(FloatFunction):
    """Sine."""

    name = "sin"
    numpy = np.sin
    kernel = "sin({0})"

    def by_parts(self, z: Any) -> Any:
        x, y = z
        im, re = Sinh.make().by_parts((y, x))
        return re, im

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta * f.cos(x)


class Cos(FloatFunction):
    """Cosine."""

    name = "cos"
    numpy = np.cos
    kernel = "cos({0})"

    def by_parts(self, z: Any) -> Any:
        x, y = z
        return Cosh.make().by_parts((-y, x))

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta * (-f.sin(x))


class Tan(FloatFunction):
    """Tangent."""

    name = "tan"
    numpy = np.tan
    kernel = "tan({0})"

    def by_parts(self, z: Any) -> Any:
        x, y = z
        im, re = Tanh.make().by_parts((y, x))
        return re, im

    examples = Examples(sample=(-1.2, 1.2))

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta * (1 + f.square(f.tan(x)))


class Arcsin(FloatFunction):
    """The inverse of sine, between -pi/2 and pi/2.

    Examples
    --------
    >>> be.arcsin(be.array([0.0, 1.0])).get().round(3)
    array([0.   , 1.571], dtype=float32)
    """

    name = "arcsin"
    numpy = np.arcsin
    kernel = "asin({0})"
    examples = Examples(sample=(-0.9, 0.9))

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta / f.sqrt((1.0 - x) * (1.0 + x))  # 1 - x * x would lose digits near 1


class Arccos(FloatFunction):
    """The inverse of cosine, between 0 and pi.

    Examples
    --------
    >>> be.arccos(be.array([0.0, 1.0])).get().round(3)
    array([1.571, 0.   ], dtype=float32)
    """

    name = "arccos"
    numpy = np.arccos
    kernel = "acos({0})"
    examples = Examples(sample=(-0.9, 0.9))

    def along(self, x: Variable, delta: Variable) -> Any:
        return -(delta / f.sqrt((1.0 - x) * (1.0 + x)))


class Arctan(FloatFunction):
    """The inverse of tangent, between -pi/2 and pi/2."""

    name = "arctan"
    numpy = np.arctan
    kernel = "atan({0})"

    def along(self, x: Variable, delta: Variable) -> Any:
        if is_complex(x.dtype):
            return delta / (1.0 + f.square(x))
        length = f.hypot(x, 1.0)  # the square of an inf would make the second derivative nan, and x * x could overflow
        return delta / length / length


@function(numpy=np.degrees)
def degrees(x: Operand) -> Any:
    """Radians converted to degrees.

    Examples
    --------
    >>> be.degrees(be.array([0.0, np.pi])).get()
    array([  0., 180.], dtype=float32)
    """
    return _turned(np.degrees, x, 180 / math.pi)


@function(numpy=np.radians)
def radians(x: Operand) -> Any:
    """Degrees converted to radians.

    Examples
    --------
    >>> be.radians(be.array([0.0, 180.0])).get()
    array([0.       , 3.1415927], dtype=float32)
    """
    return _turned(np.radians, x, math.pi / 180)


def _turned(ufunc: np.ufunc, x: Operand, factor: float) -> Any:
    x = variable_of(x, ufunc.__name__)
    return in_dtype(x, floating_of(ufunc, x)) * factor


for _ufunc, _same in ((np.rad2deg, degrees), (np.deg2rad, radians)):
    NUMPY_FUNCTIONS[_ufunc] = FUNCTIONS[_ufunc.__name__] = _same


#: The coefficients of sin(y) / y as a polynomial in y * y: exact to rounding for y below 1/2.
SINC = tuple((-1) ** i / math.factorial(2 * i + 1) for i in range(8))


@function(numpy=np.sinc)
def sinc(x: Operand) -> Any:
    """sin(pi x) / (pi x), and 1 at 0; near 0 by a polynomial, which is differentiable there.

    Examples
    --------
    >>> be.sinc(be.array([0.0, 0.5])).get().round(3)
    array([1.   , 0.637], dtype=float32)
    """
    x = variable_of(x, "sinc")
    y = in_dtype(x, x.dtype if is_inexact(x.dtype) else np.dtype("float64")) * math.pi
    near = f.lt(f.abs(y), 0.5)
    small = f.square(f.where(near, y, 0))
    value: Any = SINC[-1]
    for coefficient in SINC[-2::-1]:
        value = value * small + coefficient
    far = f.where(near, 1, y)
    return f.where(near, value, f.sin(far) / far)


class Sinh(FloatFunction):
    """Hyperbolic sine."""

    name = "sinh"
    numpy = np.sinh
    kernel = "sinh({0})"

    def by_parts(self, z: Any) -> Any:
        x, y = z
        is_special = f.logical_and(f.logical_not(f.finite(y)), f.logical_or(f.eq(x, 0), f.isinf(x)))  # as in C99
        return f.where(is_special, x, f.sinh(x) * f.cos(y)), f.where(f.eq(y, 0), y, f.cosh(x) * f.sin(y))

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta * f.cosh(x)


class Cosh(FloatFunction):
    """Hyperbolic cosine."""

    name = "cosh"
    numpy = np.cosh
    kernel = "cosh({0})"

    def by_parts(self, z: Any) -> Any:
        x, y = z
        is_far = f.logical_not(f.finite(y))  # special values as in C99
        is_real = f.logical_or(f.eq(y, 0), f.logical_and(f.eq(x, 0), is_far))
        re = f.where(f.logical_and(f.isinf(x), is_far), math.inf, f.cosh(x) * f.cos(y))
        return re, f.where(is_real, f.copysign(0.0, x) * f.copysign(1.0, y), f.sinh(x) * f.sin(y))

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta * f.sinh(x)


class Tanh(FloatFunction):
    """Hyperbolic tangent.

    Examples
    --------
    >>> x = be.array([0.0, 1.0])
    >>> be.tanh(x).get().round(3), optree.grad(be.sum(be.tanh(x)), x).get().round(3)
    (array([0.   , 0.762], dtype=float32), array([1.  , 0.42], dtype=float32))
    """

    name = "tanh"
    numpy = np.tanh
    kernel = "tanh({0})"

    def by_parts(self, z: Any) -> Any:
        """By sinh(x)**2 + cos(y)**2, which has no cancellation."""
        x, y = z
        near = f.minimum(f.maximum(x, -20), 20)
        sinh, sin, cos = f.sinh(near), f.sin(y), f.cos(y)
        length = sinh * sinh + cos * cos
        is_far, product = f.isinf(x), sin * cos  # special values as in C99
        re = f.where(is_far, f.copysign(1.0, x), f.where(f.eq(x, 0), x, sinh * f.cosh(near) / length))
        zero = f.copysign(0.0, f.where(f.finite(y), product, 1))
        return re, f.where(is_far, zero, f.where(f.eq(y, 0), y, product / length))

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta / f.square(f.cosh(x)) if is_complex(x.dtype) else delta * f.sech2(x)


class Sech2(OwnFunction):
    """1 / cosh(x) ** 2, the derivative of tanh, whose 1 - tanh(x) ** 2 loses the digits of a small slope.

    Examples
    --------
    >>> be.sech2(be.array([0.0, 1.0])).get().round(3)
    array([1.  , 0.42], dtype=float32)
    """

    name = "sech2"
    kernel = "(T)4 * exp((T)-2 * fabs({0})) / (((T)1 + exp((T)-2 * fabs({0}))) * ((T)1 + exp((T)-2 * fabs({0}))))"

    def compute(self, x: np.ndarray) -> Any:
        return np.square(1 / np.cosh(x))

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta * (f.tanh(x) * f.sech2(x) * -2)


class Arcsinh(FloatFunction):
    """The inverse of the hyperbolic sine."""

    name = "arcsinh"
    numpy = np.arcsinh
    kernel = "asinh({0})"

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta / (f.sqrt(1.0 + f.square(x)) if is_complex(x.dtype) else f.hypot(x, 1.0))  # x * x could overflow


class Arccosh(FloatFunction):
    """The inverse of the hyperbolic cosine.

    Examples
    --------
    >>> be.arccosh(be.array([1.0, 2.0])).get().round(3)
    array([0.   , 1.317], dtype=float32)
    """

    name = "arccosh"
    numpy = np.arccosh
    kernel = "acosh({0})"
    examples = Examples(sample=(1.2, 3.0))

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta / f.sqrt(x - 1.0) / f.sqrt(x + 1.0)  # the product of two infs would make a nan


class Arctanh(FloatFunction):
    """The inverse of the hyperbolic tangent.

    Examples
    --------
    >>> be.arctanh(be.array([0.0, 0.5])).get().round(3)
    array([0.   , 0.549], dtype=float32)
    """

    name = "arctanh"
    numpy = np.arctanh
    kernel = "atanh({0})"
    examples = Examples(sample=(-0.9, 0.9))

    def along(self, x: Variable, delta: Variable) -> Any:
        return delta / ((1.0 - x) * (1.0 + x))


def or_one(length: Operand) -> Any:
    """A length as divisor: 1 where it is 0, so that derivatives at the origin are 0."""
    return f.where(f.eq(length, 0), 1, length)


def finite_direction(x: Variable, length: Operand) -> Any:
    """A coordinate of a finite vector with the direction of a vector of this length.

    Where the length is infinite, it is the sign of an infinite coordinate, and 0 for a finite one.
    """
    return f.where(f.isinf(length), f.where(f.isinf(x), f.sgn(x), 0), x)


class Arctan2(BinaryOperator, ElementwiseOperator, FloatOperator):
    """The angle of the point with ordinate x and abscissa y; the derivatives at the origin are 0."""

    name = "arctan2"
    numpy = np.arctan2
    kernel = "atan2({0}, {1})"
    examples = Examples(sample=(0.5, 3.0))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        length = or_one(f.hypot(x, y))
        across, along = _unit(x, y)
        return [delta * along / length, -(delta * across / length)]


class Hypot(BinaryOperator, ElementwiseOperator, FloatOperator):
    """The length of (x, y), without intermediate overflow.

    The derivatives at the origin are 0. The derivative by an infinite operand is its sign, by a
    finite one beside it 0; two infinite operands count as equal.
    """

    name = "hypot"
    commutative = True
    numpy = np.hypot
    kernel = "hypot({0}, {1})"
    examples = Examples(sample=(0.5, 3.0))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        across, along = _unit(x, y)
        return [delta * across, delta * along]


def _unit(x: Variable, y: Variable) -> tuple[Any, Any]:
    """The vector (x, y) divided by its length, or itself if that is 0."""
    length = f.hypot(x, y)
    x, y = finite_direction(x, length), finite_direction(y, length)
    length = or_one(f.hypot(x, y))
    return x / length, y / length
