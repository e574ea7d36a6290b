"""Parts of complex numbers, and complex numbers of parts.

Their derivatives are by the adjoints of the reverse pass, d/dx - i d/dy of x + iy (`optree.autodiff.reverse`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import complex_dtype, is_complex, real_dtype
from optree.op.traits import BinaryOperator, ElementwiseOperator, PartOperator, UnaryOperator
from optree.registry import alias, f, function, numpy_function
from optree.tree.types import promote
from optree.tree.variable import Operand, in_dtype, variable_of


@numpy_function(np.conjugate)
@alias("conj")
class Conjugate(UnaryOperator, ElementwiseOperator):
    """The complex conjugate: of real numbers a copy.

    Examples
    --------
    >>> be.conjugate(be.array([1 + 2j])).get()
    array([1.-2.j], dtype=complex64)
    """

    name = "conjugate"
    numpy = np.conjugate
    kernel = "{0}"  # of real numbers

    def by_parts(self, z: Any) -> Any:
        re, im = z
        return re, -im

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [f.conjugate(delta)]


class PartView(PartOperator):
    """The two parts; without a name, for `real` and `imag`."""

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        given = promote(*dtypes)
        return given, real_dtype(given)


class Real(PartView):
    """The real part of complex numbers."""

    kernel = "{0}.re"
    part = 0

    @portable
    def numpy(self, x: Array) -> Any:
        return as_array(x).real

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return output_gradients


class Imag(PartView):
    """The imaginary part of complex numbers."""

    kernel = "{0}.im"
    part = 1

    @portable
    def numpy(self, x: Array) -> Any:
        return as_array(x).imag

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [delta * -1j]


class Complex(BinaryOperator, ElementwiseOperator):
    """The complex numbers with a real and an imaginary part.

    Parameters
    ----------
    re, im : operand
        Of real numbers. The value is complex64, or complex128 where they promote to float64 or integers of 32 bits.

    Examples
    --------
    >>> be.complex(be.array([1.0, 2.0]), 3.0).get()
    array([1.+3.j, 2.+3.j], dtype=complex64)
    """

    name = "complex"
    operands = ("re", "im")

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        made = complex_dtype(promote(*dtypes))
        return real_dtype(made), real_dtype(made), made

    def kernel(self, *dtypes: np.dtype) -> str | None:
        return f"complex{16 * dtypes[0].itemsize}_of({{0}}, {{1}})"

    @portable
    def fill(self, out: Array, *arrays: Array) -> None:
        out.real, out.imag = arrays

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [delta, delta * 1j]  # of which the operands, which are real, take the real part


def quotient(x: tuple[Any, Any], y: tuple[Any, Any]) -> tuple[Any, Any]:
    """The parts of x / y by Smith's algorithm, as NumPy's: without overflow of intermediate values."""
    if isinstance(y[1], float):  # of a real divisor, which has few operations for each element
        is_zero, ratio = f.eq(y[0], 0), f.copysign(0.0, y[0])
        scale = f.reciprocal(f.where(is_zero, f.abs(y[0]), y[0]))
        re, im = x[0] + x[1] * ratio, x[1] - x[0] * ratio
        return f.where(is_zero, x[0], re) * scale, f.where(is_zero, x[1], im) * scale
    is_wide = f.ge(f.abs(y[0]), f.abs(y[1]))
    long, short = f.where(is_wide, y[0], y[1]), f.where(is_wide, y[1], y[0])
    is_zero = f.logical_and(is_wide, f.eq(long, 0))
    ratio = f.where(is_zero, 0, short / f.where(is_zero, 1, long))
    scale = f.reciprocal(f.where(is_zero, 0, long + short * ratio))
    re = f.where(is_wide, x[0] + x[1] * ratio, x[0] * ratio + x[1])
    im = f.where(is_wide, x[1] - x[0] * ratio, x[1] * ratio - x[0])
    return f.where(is_zero, x[0], re) * scale, f.where(is_zero, x[1], im) * scale


@function(numpy=np.real)
def real(x: Operand) -> Any:
    """The real part: of real numbers a copy.

    Examples
    --------
    >>> be.real(be.array([1 + 2j])).get()
    array([1.], dtype=float32)
    """
    x = variable_of(x, "real")
    return Real.make()(x) if is_complex(x.dtype) else f.copy(x)


@function(numpy=np.imag)
def imag(x: Operand) -> Any:
    """The imaginary part: of real numbers zeros.

    Examples
    --------
    >>> be.imag(be.array([1 + 2j])).get()
    array([2.], dtype=float32)
    """
    x = variable_of(x, "imag")
    return Imag.make()(x) if is_complex(x.dtype) else f.fill_like(x, False if x.dtype.kind == "b" else 0)


@function(numpy=np.angle)
def angle(x: Operand, deg: bool = False) -> Any:
    """The angle of the complex argument: of real numbers 0, or pi where they are negative or -0.0.

    Its derivative at 0 is 0.

    Examples
    --------
    >>> be.angle(be.array([1j, -1.0]), deg=True).get()
    array([ 90., 180.], dtype=float32)
    """
    x = variable_of(x, "angle")
    if is_complex(x.dtype):
        found = f.arctan2(f.imag(x), f.real(x))
        return found * (180 / math.pi) if deg else found
    x = in_dtype(x, f.arctan2(0, x).dtype)
    negative = f.fill_like(x, 180.0 if deg else math.pi)
    return f.where(f.isnan(x), math.nan, f.where(f.signbit(x), negative, 0.0))
