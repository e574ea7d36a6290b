"""Polynomials by their coefficients, the highest power's first, as `numpy.polyval` and its kin have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from optree.dtypes import finfo
from optree.errors import ShapeError, describe
from optree.ops.shape import strong
from optree.registry import f, function, numpy_function
from optree.tree.types import integer_of, promote
from optree.tree.variable import Operand, Variable, in_dtype, variable_of


def _coefficients(given: object, what: str) -> Variable:
    p = strong(given, f"{what}: the coefficients")
    if p.ndim != 1 or p.shape[0] is None:
        raise ShapeError(f"{what}: the coefficients {describe(p)} are no vector of known size")
    return p


@function(numpy=np.polyval)
def polyval(p: Operand, x: Operand) -> Any:
    """A polynomial at x, from its coefficients, the highest power's first, by Horner's rule.

    Examples
    --------
    >>> be.polyval(be.array([1.0, 0.0, 2.0]), be.array([3.0])).get()
    array([11.], dtype=float32)
    """
    p, x = _coefficients(p, "polyval"), variable_of(x, "polyval")
    value = f.fill_like(x, False if x.dtype.kind == "b" else 0)
    for i in range(p.shape[0]):
        value = value * x + p.at[i]
    return value


@function(numpy=np.polyder)
def polyder(p: Any, m: int = 1) -> Any:
    """The coefficients of the m-th derivative of a polynomial.

    Examples
    --------
    >>> be.polyder(be.array([1.0, 0.0, 2.0])).get()
    array([2., 0.])
    """
    p = _coefficients(p, "polyder")
    for _ in range(integer_of(m, "polyder: m", 0)):
        p = in_dtype(p, promote(p.dtype, np.dtype("int64")))  # first: integers have no derivative
        p = f.slice(p, (slice(None, -1),)) * np.arange(max(p.shape[0] - 1, 0), 0, -1)
    return p


@function(numpy=np.polyint)
def polyint(p: Any, m: int = 1, k: Any = 0) -> Any:
    """The coefficients of the m-th antiderivative of a polynomial; `k` is the constants, or one for all.

    Examples
    --------
    >>> be.polyint(be.array([2.0, 0.0])).get()
    array([1., 0., 0.])
    """
    p, count = _coefficients(p, "polyint"), integer_of(m, "polyint: m", 0)
    constants = np.broadcast_to(0 if k is None else k, count)
    for constant in constants:
        p = f.concatenate([p / np.arange(p.shape[0], 0, -1), np.atleast_1d(constant)], 0)
    return p


@function(numpy=np.polyadd)
def polyadd(a1: Any, a2: Any) -> Any:
    """The coefficients of the sum of two polynomials.

    Examples
    --------
    >>> be.polyadd(be.array([1.0, 2.0]), be.array([1.0])).get()
    array([1., 3.], dtype=float32)
    """
    return f.add(*_of_one_degree(a1, a2, "polyadd"))


@function(numpy=np.polysub)
def polysub(a1: Any, a2: Any) -> Any:
    """The coefficients of the difference of two polynomials.

    Examples
    --------
    >>> be.polysub(be.array([1.0, 2.0]), be.array([1.0])).get()
    array([1., 1.], dtype=float32)
    """
    return f.sub(*_of_one_degree(a1, a2, "polysub"))


def _of_one_degree(a1: Any, a2: Any, what: str) -> list[Variable]:
    found = [_coefficients(x, what) for x in (a1, a2)]
    count = max(x.shape[0] for x in found)
    return [f.pad(x, ((count - x.shape[0], 0),)) if x.shape[0] < count else x for x in found]


@function(numpy=np.roots)
def roots(p: Any) -> Any:
    """The roots of a polynomial, complex and in no order: the eigenvalues of its companion matrix.

    The first coefficient is not 0; NumPy drops leading zeros, which depend on values.

    Examples
    --------
    >>> np.sort(be.roots(be.array([1.0, 0.0, 4.0])).get().imag)
    array([-2.,  2.], dtype=float32)
    """
    p = _coefficients(p, "roots")
    count = p.shape[0]
    if count < 2:
        raise ShapeError(f"roots: {describe(p)} is no polynomial of degree 1 or more, which has roots")
    p = in_dtype(p, promote(p.dtype, np.dtype("float64"))) if p.dtype.kind in "biu" else p
    first = f.expand_dims(-f.slice(p, (slice(1, None),)) / f.slice(p, (slice(0, 1),)), 0)
    return f.eigvals(f.concatenate([first, np.eye(count - 2, count - 1, dtype=p.dtype)], 0))


@function(numpy=np.vander)
def vander(x: Operand, N: int | None = None, increasing: bool = False) -> Any:
    """The Vandermonde matrix: the powers of a vector as columns, decreasing unless `increasing`.

    Examples
    --------
    >>> be.vander(be.array([1.0, 2.0]), 3).get()
    array([[1., 1., 1.],
           [4., 2., 1.]])
    """
    x = variable_of(x, "vander")
    count = x.shape[0] if x.ndim == 1 and N is None else N
    if x.ndim != 1 or count is None:
        raise ShapeError(f"vander: {describe(x)} is no vector of a known size, by default the number of columns")
    x = in_dtype(x, promote(x.dtype, np.dtype("int64")))
    count, powers = integer_of(count, "vander: N", 0), [f.fill_like(x, 1)]
    while len(powers) < count:
        powers.append(powers[-1] * x if len(powers) > 1 else x)
    powers = powers[:count]
    if not powers:
        return f.slice(f.expand_dims(x, 1), (slice(None), slice(0, 0)))
    return f.stack(powers if increasing else powers[::-1], 1)


@numpy_function(np.polyfit)
def _numpy_polyfit(x: Operand, y: Operand, deg: object, rcond: object = None, w: Operand | None = None) -> Any:
    return polyfit(x, y, deg, rcond, w)


@function()
def polyfit(x: Any, y: Any, deg: int, rcond: float | None = None, weights: Any = None) -> Any:
    """The coefficients of the polynomial of a degree through points, by least squares; of columns y, as columns.

    Examples
    --------
    >>> be.polyfit(be.array([0.0, 1.0, 2.0]), be.array([1.0, 3.0, 5.0]), 1).get().round(3)
    array([2., 1.])
    """
    x, y = (in_dtype(v, promote(v.dtype, np.dtype("float64"))) for v in (variable_of(z, "polyfit") for z in (x, y)))
    if x.ndim != 1 or y.ndim not in (1, 2) or (None not in (x.shape[0], y.shape[0]) and x.shape[0] != y.shape[0]):
        raise ShapeError(f"polyfit: {describe(x)} and {describe(y)} are no points: a vector, and one or columns")
    columns = vander(x, integer_of(deg, "polyfit: deg", 0) + 1)
    if weights is not None:
        w = f.expand_dims(strong(weights, "polyfit"), 1)
        columns, y = columns * w, y * (w if y.ndim == 2 else f.squeeze(w, 1))
    if rcond is None:
        if x.shape[0] is None:
            raise ShapeError(f"polyfit: with an open number of points {describe(x)}, give rcond")
        rcond = x.shape[0] * float(finfo(x.dtype).eps)
    scale = f.norm(columns, 0, False)
    found = f.lstsq(columns / scale, y, rcond)[0]
    return found / (f.expand_dims(scale, 1) if y.ndim == 2 else scale)
