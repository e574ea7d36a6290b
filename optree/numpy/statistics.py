"""Statistics composed of reductions: masked, nan-ignoring, quantiles, weighted averages, covariances."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import is_floating, is_inexact, real_dtype, wide_dtype
from optree.errors import OperandError, ShapeError, describe
from optree.op.traits import ElementwiseOperator, FloatOperator, UnaryOperator
from optree.ops.reduction import mean_dtype, squares
from optree.ops.shape import sizes_for_reshape, strong
from optree.registry import FUNCTIONS, NUMPY_FUNCTIONS, f, function, numpy_function
from optree.tree.types import Axis, check_fits, normalise_axes, normalise_axis, promote
from optree.tree.variable import Operand, Variable, as_variable, check_real, in_dtype, variable_of

# Reductions with NumPy's `where` and `initial`

#: The identity of each reduction, which replaces masked elements.
IDENTITIES = {"sum": 0, "prod": 1, "all": True, "any": False}


def _of_some(name: str, a: Operand, axis: Axis, keepdims: bool, initial: object, where: object) -> Any:
    """A reduction with NumPy's `where` and `initial`."""
    x = variable_of(a, name)
    if initial is not None:
        adds = name in ("sum", "prod")
        initial = _initial(initial, FUNCTIONS[name](x, axis=axis, keepdims=keepdims).dtype if adds else x.dtype, name)
    if where is not None:
        if name not in IDENTITIES and initial is None:
            raise OperandError(f"{name}: with where= give initial=, the {name} of no elements")
        missing = IDENTITIES.get(name, initial)
        x = f.where(where, x, bool(missing) if x.dtype.kind == "b" else missing)
    if initial is None:
        return FUNCTIONS[name](x, axis=axis, keepdims=keepdims)
    if name in ("sum", "prod"):
        reduced = FUNCTIONS[name](x, axis=axis, keepdims=keepdims)
        return (f.add if name == "sum" else f.mul)(reduced, initial)
    if any(x.shape[i] == 0 for i in normalise_axes(axis, x.ndim, name)):
        return f.fill_like(in_dtype(f.sum(x, axis=axis, keepdims=keepdims), x.dtype), initial)
    extreme = f.maximum if name == "max" else f.minimum
    return extreme(FUNCTIONS[name](x, axis=axis, keepdims=keepdims), initial)


def _initial(value: Any, dtype: np.dtype, name: str) -> Any:
    """A reduction's `initial` cast to the reduction's dtype, as by NumPy: it promotes nothing."""
    if isinstance(value, Variable):
        return in_dtype(value, dtype)
    check_fits(value, dtype, f"{name}: initial")
    return dtype.type(value).item() if dtype.kind in "bc" else float(value) if is_floating(dtype) else int(value)


def _with_some(name: str) -> Callable[..., Any]:
    """A reduction with NumPy's parameters."""

    def ours(
        a: Operand, axis: Axis = None, keepdims: bool = False, initial: object = None, where: object = None
    ) -> Any:
        where = None if where is True else where
        if where is None and initial is None:
            return FUNCTIONS[name](a, axis=axis, keepdims=keepdims)
        return _of_some(name, a, axis, keepdims, initial, where)

    ours.__name__ = name
    return ours


def _with_where(name: str) -> Callable[..., Any]:
    """The same for a reduction without `initial`."""
    of_some = _with_some(name)

    def ours(a: Operand, axis: Axis = None, keepdims: bool = False, where: object = None) -> Any:
        return of_some(a, axis, keepdims, None, where)

    ours.__name__ = name
    return ours


for _function in (np.sum, np.prod, np.max, np.amax, np.min, np.amin):
    NUMPY_FUNCTIONS[_function] = _with_some(NUMPY_FUNCTIONS[_function].__name__)
NUMPY_FUNCTIONS[np.all] = _with_where("all")
NUMPY_FUNCTIONS[np.any] = _with_where("any")


def _mean_of(x: Variable, counts: Variable, axis: Axis, keepdims: bool) -> tuple[Variable, Variable]:
    """The mean of the elements selected by a mask, and their number, in the accumulator's dtype."""
    dtype = wide_dtype(mean_dtype(x.dtype))
    counts = f.broadcast_like(counts, x)
    number = f.sum(f.cast(counts, real_dtype(dtype)), axis=axis, keepdims=keepdims)
    total = f.sum(f.where(counts, in_dtype(x, dtype), 0), axis=axis, keepdims=keepdims)
    return total / number, number


def _deviation(
    x: Variable, counts: Variable, axis: Axis, ddof: float, keepdims: bool, root: bool, mean: Variable | None = None
) -> Variable:
    """The variance of the elements selected by a mask, or its square root, about their mean or another number."""
    mean = _mean_of(x, counts, axis, True)[0] if mean is None else in_dtype(mean, wide_dtype(mean_dtype(x.dtype)))
    _, number = _mean_of(x, counts, axis, keepdims)
    centred = f.where(counts, in_dtype(x, mean.dtype) - mean, 0)
    freedom = f.maximum(number - ddof, 0) if ddof else number
    if root:
        return f.norm(centred, axis=axis, keepdims=keepdims) / f.sqrt(freedom)
    return f.sum(squares(centred), axis=axis, keepdims=keepdims) / freedom


@numpy_function(np.mean)
def _numpy_mean(a: Operand, axis: Axis = None, keepdims: bool = False, where: Operand | None = None) -> Any:
    if where is None or where is True:
        return f.mean(a, axis=axis, keepdims=keepdims)
    x = variable_of(a, "mean")
    return in_dtype(_mean_of(x, as_variable(where), axis, keepdims)[0], mean_dtype(x.dtype))


_numpy_mean.__name__ = "mean"


def _with_freedom(name: str) -> Callable[..., Any]:
    """``var`` or ``std`` with NumPy's parameters."""

    def ours(
        a: Operand,
        axis: Axis = None,
        ddof: float = 0,
        keepdims: bool = False,
        where: object = None,
        mean: Operand | None = None,
        correction: Any = None,
    ) -> Any:
        ddof = ddof if correction is None else correction
        where = None if where is True else where
        if where is None and mean is None:
            return FUNCTIONS[name](a, axis=axis, ddof=ddof, keepdims=keepdims)
        x, mean = variable_of(a, name), None if mean is None else as_variable(mean)
        found = _deviation(x, as_variable(True if where is None else where), axis, ddof, keepdims, name == "std", mean)
        return in_dtype(found, real_dtype(mean_dtype(x.dtype)))

    ours.__name__ = name
    return ours


NUMPY_FUNCTIONS[np.var] = _with_freedom("var")
NUMPY_FUNCTIONS[np.std] = _with_freedom("std")


@function(numpy=np.count_nonzero)
def count_nonzero(x: Operand, axis: Axis = None, keepdims: bool = True) -> Any:
    """The number of elements over axes that are not zero; a nan is not.

    Examples
    --------
    >>> be.count_nonzero(be.array([[1.0, 0.0], [2.0, 3.0]]), axis=1).get()
    array([[1],
           [2]])
    """
    x = variable_of(x, "count_nonzero")
    return f.sum(x if x.dtype.kind == "b" else f.ne(x, 0), axis=axis, keepdims=keepdims)


@function(numpy=np.ptp)
def ptp(x: Operand, axis: Axis = None, keepdims: bool = True) -> Any:
    """The range over axes: maximum minus minimum.

    Examples
    --------
    >>> be.ptp(be.array([[1.0, 4.0], [2.0, 3.0]]), axis=1).get()
    array([[3.],
           [1.]], dtype=float32)
    """
    return f.max(x, axis=axis, keepdims=keepdims) - f.min(x, axis=axis, keepdims=keepdims)


# Ignoring nans


def _without_nans(x: Operand, what: str, instead: float) -> Variable:
    x = variable_of(x, what)
    return f.where(f.isnan(x), instead, x) if is_inexact(x.dtype) else x


def _register_without_nans(made: Callable[..., Any], name: str, doc: str) -> None:
    """Register a function as NumPy's of this name, with an example of it."""
    example = f">>> np.allclose(be.{name}(x, axis=1).get().ravel(), np.{name}(x.get(), axis=1).ravel())\nTrue"
    given = ">>> x = be.array([[1.0, np.nan], [2.0, 4.0]])"
    made.__name__ = made.__qualname__ = name
    made.__doc__ = f"{doc}\n\nExamples\n--------\n{given}\n{example}"
    function(numpy=getattr(np, name))(made)


def _ignoring_nans(name: str, instead: float, of_none: float | None, doc: str) -> None:
    """A reduction, or a scan along one axis, with nans replaced by `instead`; `of_none` where all elements are nan."""
    of_numbers = name.removeprefix("nan")

    def scanned(x: Operand, axis: Axis = None) -> Any:
        return FUNCTIONS[of_numbers](_without_nans(x, name, instead), axis)

    def reduced(x: Operand, axis: Axis = None, keepdims: bool = True) -> Any:
        if of_none is None:
            return FUNCTIONS[of_numbers](_without_nans(x, name, instead), axis=axis, keepdims=keepdims)
        x = variable_of(x, name)
        found = FUNCTIONS[of_numbers](_without_nans(x, name, instead), axis=axis, keepdims=keepdims)
        if not is_inexact(x.dtype):
            return found
        # A sum in the operand's own dtype, which kernels reduce in the same vectors.
        numbers = f.sum(f.cast(f.logical_not(f.isnan(x)), x.dtype), axis=axis, keepdims=keepdims)
        return f.where(f.eq(numbers, 0), of_none, found)

    _register_without_nans(scanned if of_numbers.startswith("cum") else reduced, name, doc)


for _row in (
    ("nansum", 0.0, None, "The sum over axes, ignoring nans."),
    ("nanprod", 1.0, None, "The product over axes, ignoring nans."),
    ("nancumsum", 0.0, None, "The cumulative sum along an axis, with nans as 0."),
    ("nancumprod", 1.0, None, "The cumulative product along an axis, with nans as 1."),
    ("nanmax", -math.inf, math.nan, "The maximum over axes, ignoring nans; nan where all elements are nan."),
    ("nanmin", math.inf, math.nan, "The minimum over axes, ignoring nans; nan where all elements are nan."),
    (
        *("nanargmax", -math.inf, -1),
        "The index of the maximum, ignoring nans; -1 where all elements are nan, for which NumPy raises.",
    ),
    (
        *("nanargmin", math.inf, -1),
        "The index of the minimum, ignoring nans; -1 where all elements are nan, for which NumPy raises.",
    ),
):
    _ignoring_nans(*_row)

NUMPY_FUNCTIONS[np.fmax.reduce], NUMPY_FUNCTIONS[np.fmin.reduce] = FUNCTIONS["nanmax"], FUNCTIONS["nanmin"]


@function(numpy=np.nanmean)
def nanmean(x: Operand, axis: Axis = None, keepdims: bool = True) -> Any:
    """The mean over axes, ignoring nans; nan where all elements are nan.

    Examples
    --------
    >>> be.nanmean(be.array([[1.0, np.nan], [2.0, 4.0]]), axis=1).get()
    array([[1.],
           [3.]], dtype=float32)
    """
    x = variable_of(x, "nanmean")
    if not is_inexact(x.dtype):
        return f.mean(x, axis=axis, keepdims=keepdims)
    return in_dtype(_mean_of(x, f.logical_not(f.isnan(x)), axis, keepdims)[0], x.dtype)


def _nan_deviation(name: str, doc: str) -> None:
    """The variance or the standard deviation without nans."""
    root = name == "nanstd"

    def deviation(x: Operand, axis: Axis = None, ddof: float = 0, keepdims: bool = True) -> Any:
        x = variable_of(x, name)
        if not is_inexact(x.dtype):
            return (f.std if root else f.var)(x, axis=axis, ddof=ddof, keepdims=keepdims)
        counts = f.logical_not(f.isnan(x))
        _, number = _mean_of(x, counts, axis, keepdims)
        found = _deviation(x, counts, axis, ddof, keepdims, root)
        return in_dtype(f.where(number <= ddof, math.nan, found), real_dtype(x.dtype))

    _register_without_nans(deviation, name, doc)


_nan_deviation("nanvar", "The variance over axes, ignoring nans; nan where at most ddof elements remain.")
_nan_deviation("nanstd", "The standard deviation over axes, ignoring nans; nan where at most ddof elements remain.")


# Quantiles

#: The alpha and beta of each interpolating method of `numpy.quantile`.
METHODS = {
    "linear": (1.0, 1.0),
    "interpolated_inverted_cdf": (0.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}

#: The methods that take one element, and those that average two.
TAKING = ("lower", "higher", "nearest", "inverted_cdf", "closest_observation")
AVERAGING = ("midpoint", "averaged_inverted_cdf")


@function(numpy=np.median)
def median(x: Operand, axis: Axis = None, keepdims: bool = True) -> Any:
    """The median over axes; nan where there is a nan.

    Examples
    --------
    >>> be.median(be.array([[1.0, 4.0, 2.0], [2.0, 3.0, 9.0]]), axis=1).get()
    array([[2.],
           [3.]], dtype=float32)
    """
    return _ranked(x, None, axis, "median", keepdims, "median", False)


@function(numpy=np.nanmedian)
def nanmedian(x: Operand, axis: Axis = None, keepdims: bool = True) -> Any:
    """The median over axes, ignoring nans; nan where all elements are nan.

    Examples
    --------
    >>> be.nanmedian(be.array([[1.0, np.nan], [2.0, 4.0]]), axis=1).get()
    array([[1.],
           [3.]], dtype=float32)
    """
    return _ranked(x, None, axis, "median", keepdims, "nanmedian", True)


@function(numpy=np.quantile)
def quantile(
    x: Operand,
    q: Any,
    axis: Axis = None,
    method: str = "linear",
    keepdims: bool = True,
    weights: Any = None,
) -> Any:
    """The quantiles `q`, from 0 to 1, over axes; nan where there is a nan.

    If `q` is 1-D, its axis is the first of the result. The methods are NumPy's, and so are dtypes: those that
    interpolate promote x with an array or list `q`, and not with a Python number. A list makes float64 of float32.
    Elements may have `weights`, of x's shape or a vector along one axis, by the method ``'inverted_cdf'``.

    Examples
    --------
    >>> be.quantile(be.array([1.0, 2.0, 3.0, 4.0]), 0.25).get()
    array([1.75], dtype=float32)
    """
    if weights is not None:
        return _weighted(x, q, axis, method, keepdims, weights, "quantile")
    return _ranked(x, q, axis, method, keepdims, "quantile", False)


@function(numpy=np.nanquantile)
def nanquantile(x: Operand, q: Any, axis: Axis = None, method: str = "linear", keepdims: bool = True) -> Any:
    """The quantiles over axes, ignoring nans; nan where all elements are nan.

    Examples
    --------
    >>> be.nanquantile(be.array([1.0, 2.0, 3.0, np.nan]), 0.5).get()
    array([2.], dtype=float32)
    """
    return _ranked(x, q, axis, method, keepdims, "nanquantile", True)


@function(numpy=np.percentile)
def percentile(
    x: Operand,
    q: Any,
    axis: Axis = None,
    method: str = "linear",
    keepdims: bool = True,
    weights: Any = None,
) -> Any:
    """The percentiles `q`, from 0 to 100, over axes; nan where there is a nan. `weights` are `quantile`'s.

    Examples
    --------
    >>> be.percentile(be.array([1.0, 2.0, 3.0, 4.0]), 25).get()
    array([1.75], dtype=float32)
    """
    if weights is not None:
        return _weighted(x, _fractions(q), axis, method, keepdims, weights, "percentile")
    return _ranked(x, _fractions(q), axis, method, keepdims, "percentile", False)


@function(numpy=np.nanpercentile)
def nanpercentile(x: Operand, q: Any, axis: Axis = None, method: str = "linear", keepdims: bool = True) -> Any:
    """The percentiles over axes, ignoring nans; nan where all elements are nan.

    Examples
    --------
    >>> be.nanpercentile(be.array([1.0, 2.0, 3.0, np.nan]), 50).get()
    array([2.], dtype=float32)
    """
    return _ranked(x, _fractions(q), axis, method, keepdims, "nanpercentile", True)


def _fractions(q: Any) -> Any:
    return q / 100 if isinstance(q, Variable) or type(q) in (int, float) else np.asarray(q) / 100


def _ranked(x: Operand, q: Any, axis: Axis, method: str, keepdims: bool, what: str, omits: bool) -> Any:
    """Quantiles over axes; without a `q`, the median."""
    x = variable_of(check_real(x, what), what)
    if method not in (*METHODS, *TAKING, *AVERAGING, "median"):
        raise OperandError(f"{what}: method is one of {', '.join((*METHODS, *TAKING, *AVERAGING))}, not {method!r}")
    dtype = mean_dtype(x.dtype)
    if q is not None:
        weak = type(q) in (int, float)
        q = check_real(q if isinstance(q, Variable) else np.asarray(q), what)
        if not is_floating(q.dtype):
            method = "lower" if method == "linear" else method  # the elements themselves, as in NumPy
            q = q.astype("float64")
        dtype = dtype if weak else promote(x.dtype, q.dtype)
        if q.ndim > 1 or (not isinstance(q, Variable) and not (np.all(q >= 0) and np.all(q <= 1))):
            raise OperandError(f"{what}: parts are from 0 to 1 (percentages / 100), in one dimension at most; not {q}")
    axes = normalise_axes(axis, x.ndim, what)
    omits = omits and is_floating(x.dtype)
    taken = x if method in TAKING else in_dtype(x, mean_dtype(x.dtype))
    rows = f.sort(_in_rows(taken, axes, what), -1)
    if rows.shape[-1] == 0:
        raise ShapeError(f"{what}: the reduced axes are empty")
    if omits or rows.shape[-1] is None or isinstance(q, Variable):
        if q is not None and weak and method in METHODS:  # the others decide by whether an index is whole
            q = q.astype(wide_dtype(dtype))
        found = _at_computed_indices(rows, q, method, omits, dtype)
    else:
        found = _at_known_indices(rows, q, method, dtype)
    if is_floating(rows.dtype) and not omits:
        found = f.where(f.isnan(_last(rows, found.ndim == rows.ndim)), math.nan, found)
    return _in_place(found, found.ndim == rows.ndim, axes, keepdims)


def _in_place(found: Variable, has_parts: bool, axes: tuple[int, ...], keepdims: bool) -> Variable:
    """Quantiles with the axis of the parts, if there is one, moved from the end to the front, and the reduced axes."""
    if has_parts:
        found, axes = f.moveaxis(found, -1, 0), tuple(i + 1 for i in axes)
    return f.expand_dims(found, axes) if keepdims and axes else found


def _weighted(x: Operand, q: Operand, axis: Axis, method: str, keepdims: bool, weights: Operand, what: str) -> Any:
    """Quantiles over axes of elements with weights: the first whose share of the weights so far is as large."""
    if method != "inverted_cdf":
        raise OperandError(f"{what}: with weights, the method is 'inverted_cdf', as NumPy's, not {method!r}")
    x, w = variable_of(check_real(x, what), what), check_real(strong(weights, what), what)
    axes = normalise_axes(axis, x.ndim, what)
    if w.shape != x.shape and w.ndim == len(axes) == 1:
        w = f.expand_dims(w, tuple(i for i in range(x.ndim) if i not in axes))
    rows, heavy = (_in_rows(each, axes, what) for each in (x, f.broadcast_like(w, x)))
    order = f.argsort(rows, -1)
    rows, share = f.take_along_axis(rows, order, -1), f.cumsum(f.take_along_axis(heavy, order, -1), -1)
    share = in_dtype(share, promote(share.dtype, np.dtype("float64")))
    share = share / _last(share, True)
    share = f.where(f.eq(share, 0), -1, share)  # an element without weight is no quantile
    parts = as_variable(q if isinstance(q, Variable) else np.asarray(q, np.float64))
    is_before = f.expand_dims(share, -2) < f.reshape(parts, (*(1,) * (rows.ndim - 1), -1, 1))
    index = f.minimum(f.sum(is_before, axis=-1, keepdims=False), f.count(f.flat_indices(rows), -1) - 1)
    found = f.take_along_axis(rows, f.cast(index, "int64"), -1)
    if is_floating(rows.dtype):
        found = f.where(f.isnan(_last(rows, True)), math.nan, found)
    return _in_place(found if parts.ndim else f.squeeze(found, -1), parts.ndim > 0, axes, keepdims)


def _last(rows: Variable, keeps_axis: bool) -> Variable:
    """The last element of each row; the axis that is kept is known to have size 1, also where that of rows is open."""
    last: Variable = f.slice(rows, (Ellipsis, -1))
    return f.expand_dims(last, -1) if keeps_axis else last


def _in_rows(x: Variable, axes: tuple[int, ...], what: str) -> Variable:
    """An operand with the reduced axes moved to the end and merged."""
    others = [i for i in range(x.ndim) if i not in axes]
    if not axes:
        return f.expand_dims(x, -1)
    moved = f.transpose(x, (*others, *axes))
    if len(axes) == 1:
        return moved
    sizes = [x.shape[i] for i in axes]
    shape = [*(x.shape[i] for i in others), None if None in sizes else math.prod(sizes)]  # type: ignore[arg-type]
    return f.reshape(moved, sizes_for_reshape(shape, x, what))


def _at_known_indices(rows: Variable, q: Any, method: str, dtype: np.dtype) -> Variable:
    """Quantiles of sorted rows of known size, at constant indices; in a dtype, if they are not elements."""
    count = rows.shape[-1]
    if method == "median":
        low, high = (count - 1) // 2, count // 2
        first = f.slice(rows, (Ellipsis, low))
        return first if low == high else _midpoint(first, f.slice(rows, (Ellipsis, high)), dtype)
    indices = np.clip(_fractional_index(method, count, q), 0, count - 1)
    whole = [np.clip(index, 0, count - 1).astype(np.int64) for index in _whole_indices(method, count, q, indices, np)]
    elements = [f.take(rows, i, axis=-1) if i.ndim else f.slice(rows, (Ellipsis, int(i))) for i in whole]
    if method in TAKING:
        return elements[0]
    first, second = elements
    if method in AVERAGING:
        return _midpoint(first, second, dtype)
    return _between(first, second, np.asarray(indices - whole[0], dtype))


def _at_computed_indices(rows: Variable, q: Any, method: str, omits: bool, dtype: np.dtype) -> Variable:
    """The same for rows of unknown size, or without their nans, which are sorted last."""
    if omits:
        count = f.sum(f.logical_not(f.isnan(rows)), axis=-1, keepdims=True)
    else:
        number = f.count(f.flat_indices(rows), axis=-1)
        count = f.reshape(f.cast(number, "int64"), (1,) * rows.ndim)
    one = q is None or q.ndim == 0
    if method == "median":
        low, high = (f.maximum(f.floor_divide(n, 2), 0) for n in (count - 1, count))
        high = f.minimum(high, f.maximum(count - 1, 0))
        first, second = (f.take_along_axis(rows, index, -1) for index in (low, high))
        return f.squeeze(_midpoint(first, second, dtype), -1)
    wide = wide_dtype(q.dtype)
    parts = in_dtype(as_variable(q), wide) if isinstance(q, Variable) else as_variable(f.copy(np.asarray(q, wide)))
    parts = f.reshape(parts, (*(1,) * (rows.ndim - 1), -1))
    number, last = f.cast(count, wide), f.cast(count - 1, wide)
    indices = f.maximum(f.minimum(_fractional_index(method, number, parts), last), 0)
    whole = [f.maximum(f.minimum(x, last), 0) for x in _whole_indices(method, number, parts, indices, f)]
    elements = [f.take_along_axis(rows, f.cast(index, "int64"), -1) for index in whole]
    found = elements[0]
    if method not in TAKING:
        second = elements[1]
        if method in AVERAGING:
            found = _midpoint(found, second, dtype)
        else:
            found = _between(found, second, in_dtype(indices - whole[0], dtype))
    return f.squeeze(found, -1) if one else found


def _fractional_index(method: str, count: Any, q: Any) -> Any:
    """The fractional index of a quantile in `count` sorted elements."""
    alpha, beta = METHODS.get(method, METHODS["linear"])
    if alpha == beta == 1.0:
        return (count - 1) * q
    return count * q + (q * (1.0 - alpha - beta) + alpha) - 1.0


def _whole_indices(method: str, count: Any, q: Any, index: Any, library: Any) -> list[Any]:
    """The index of the element that a method takes, or of the two that it is between; they may be out of range.

    Those that invert the distribution function are Hyndman and Fan's (1996) definitions 1 to 3.
    """
    if method == "inverted_cdf":
        return [library.ceil(count * q) - 1]
    if method == "closest_observation":
        return [library.rint(count * q) - 1]
    if method == "averaged_inverted_cdf":
        return [library.ceil(count * q) - 1, library.floor(count * q)]
    if method in TAKING:
        return [{"lower": library.floor, "higher": library.ceil, "nearest": library.rint}[method](index)]
    return [library.floor(index), library.ceil(index)]


def _midpoint(first: Variable, second: Variable, dtype: np.dtype) -> Variable:
    wide = wide_dtype(first.dtype)
    return in_dtype((in_dtype(first, wide) + in_dtype(second, wide)) * 0.5, dtype)


def _between(first: Variable, second: Variable, weight: Any) -> Variable:
    """Linear interpolation from the nearer end, so that both ends are exact."""
    step = second - first
    found = f.where(f.lt(weight, 0.5), first + step * weight, second - step * (1 - weight))
    return in_dtype(found, weight.dtype)


# Weighted averages and covariances


@function(numpy=np.average)
def average(x: Operand, axis: Axis = None, weights: Any = None, returned: bool = False, keepdims: bool = True) -> Any:
    """The weighted mean over axes; with `returned`, the sum of weights too.

    Examples
    --------
    >>> be.average(be.array([1.0, 4.0]), weights=be.array([3.0, 1.0])).get()
    array([1.75], dtype=float32)
    """
    x = variable_of(x, "average")
    if weights is None:
        mean = f.mean(x, axis=axis, keepdims=keepdims)
        return (mean, f.broadcast_like(in_dtype(f.count(x, axis), mean.dtype), mean)) if returned else mean
    w = strong(weights, "average")
    floats = [d for d in (x.dtype, w.dtype) if is_inexact(d)]
    dtype = promote(x.dtype, w.dtype) if is_inexact(x.dtype) else promote(*floats, np.dtype("float64"))
    if w.shape != x.shape:
        if w.ndim != 1 or axis is None or isinstance(axis, tuple | list):
            raise ShapeError(
                f"average: {describe(w)} is neither of the shape of {describe(x)}, nor a vector along one axis"
            )
        axis = normalise_axis(axis, x.ndim, "average")
        if None not in (w.shape[0], x.shape[axis]) and w.shape[0] != x.shape[axis]:
            raise ShapeError(f"average: {describe(w)} has no weight for each of axis {axis} of {describe(x)}")
        w = f.expand_dims(w, tuple(i for i in range(x.ndim) if i != axis)) if x.ndim > 1 else w
    w = in_dtype(w, dtype)
    total = f.sum(f.broadcast_like(w, x), axis=axis, keepdims=keepdims)
    mean = f.sum(in_dtype(x, dtype) * w, axis=axis, keepdims=keepdims) / total
    return (mean, total) if returned else mean


@function(numpy=np.cov)
def cov(
    x: Operand,
    y: Operand | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: float | None = None,
    fweights: Any = None,
    aweights: Any = None,
) -> Any:
    """The covariance matrix of variables, the rows of a matrix, or with ``rowvar=False`` its columns.

    `fweights` are frequencies of the observations, `aweights` their relative weights.

    Examples
    --------
    >>> be.cov(be.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])).get()
    array([[1., 2.],
           [2., 4.]])
    """
    rows = _observations(x, rowvar)
    if y is not None:
        rows = f.concatenate([rows, _observations(y, rowvar)], 0)
    freedom = ddof if ddof is not None else 0 if bias else 1
    weights, weighted = None, None
    if fweights is not None:
        weights = in_dtype(variable_of(fweights, "cov: fweights"), real_dtype(rows.dtype))
    if aweights is not None:
        weighted = in_dtype(variable_of(aweights, "cov: aweights"), real_dtype(rows.dtype))
        weights = weighted if weights is None else weights * weighted
    if weights is None:
        centred = rows - f.mean(rows, axis=1)
        divisor = f.count(rows, 1) - freedom
        right = centred
    else:
        total = f.sum(weights, keepdims=False)
        centred = rows - f.sum(rows * weights, axis=1) / total
        spent: Any = freedom if weighted is None else freedom * f.sum(weights * weighted, keepdims=False) / total
        divisor = total - spent
        right = centred * weights
    right = f.conjugate(right) if right.dtype.kind == "c" else right
    found = f.dot(centred, f.transpose(right)) / f.maximum(divisor, 0.0)
    return f.squeeze(found, tuple(i for i in range(2) if found.shape[i] == 1))


def _observations(x: Operand, rowvar: bool) -> Variable:
    """A matrix with a row for each variable, in float64 at least, as NumPy's."""
    x = variable_of(x, "cov")
    if x.ndim > 2:
        raise ShapeError(f"cov: {describe(x)} has more than two dimensions")
    x = in_dtype(x, promote(x.dtype, np.dtype("float64")))
    if x.ndim < 2:
        return f.reshape(x, (1, -1))
    return x if rowvar else f.transpose(x)


class Correlation(UnaryOperator, ElementwiseOperator, FloatOperator):
    """x limited to [-1, 1], which it leaves by rounding alone: its derivative is 1 there too; not registered."""

    kernel = "{0} > 1 ? (T)1 : {0} < -1 ? (T)-1 : {0}"

    @portable
    def numpy(self, x: Array) -> Any:
        return np.clip(as_array(x), -1.0, 1.0)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return output_gradients


@function(numpy=np.corrcoef)
def corrcoef(x: Operand, y: Operand | None = None, rowvar: bool = True) -> Any:
    """The Pearson correlation matrix of variables.

    Examples
    --------
    >>> be.corrcoef(be.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).get().round(3)
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    found = check_real(cov(x, y, rowvar), "corrcoef")
    if found.ndim == 0:
        return found / found
    scale = f.sqrt(f.diag(found))
    return Correlation.make()(found / f.expand_dims(scale, 1) / f.expand_dims(scale, 0))
