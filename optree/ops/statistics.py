"""Statistics composed of reductions: of some elements, of numbers but nans, by rank, weighted, in pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from optree.dtypes import is_floating
from optree.errors import OperandError, ShapeError, describe
from optree.ops.arrangement import variable_of
from optree.ops.reduction import mean_dtype, wide_dtype
from optree.registry import FUNCTIONS, NUMPY_FUNCTIONS, f, function
from optree.tree.types import normalise_axes, normalise_axis, promote
from optree.tree.variable import Variable, as_variable, in_dtype

# Reductions of the elements where a condition holds, and from a first value on

#: What stands in the place of an element that does not count.
IDENTITIES = {"sum": 0, "prod": 1, "all": True, "any": False}


def _of_some(name: str, a: Any, axis: Any, keepdims: bool, initial: Any, where: Any) -> Any:
    """A reduction with NumPy's `where` and `initial`."""
    x = variable_of(a, name)
    if where is not None:
        if name not in IDENTITIES and initial is None:
            raise OperandError(f"{name}: with where= give initial=, for what the {name} of no element is")
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


def _with_some(name: str) -> Callable[..., Any]:
    """A reduction with NumPy's parameters."""

    def ours(a: Any, axis: Any = None, keepdims: bool = False, initial: Any = None, where: Any = None) -> Any:
        where = None if where is True else where
        if where is None and initial is None:
            return FUNCTIONS[name](a, axis=axis, keepdims=keepdims)
        return _of_some(name, a, axis, keepdims, initial, where)

    ours.__name__ = name
    return ours


def _with_where(name: str) -> Callable[..., Any]:
    """The same of a reduction that begins with nothing."""
    of_some = _with_some(name)

    def ours(a: Any, axis: Any = None, keepdims: bool = False, where: Any = None) -> Any:
        return of_some(a, axis, keepdims, None, where)

    ours.__name__ = name
    return ours


for _function in (np.sum, np.prod, np.max, np.amax, np.min, np.amin):
    NUMPY_FUNCTIONS[_function] = _with_some(NUMPY_FUNCTIONS[_function].__name__)
NUMPY_FUNCTIONS[np.all] = _with_where("all")
NUMPY_FUNCTIONS[np.any] = _with_where("any")


def _mean_of(x: Variable, counts: Variable, axis: Any, keepdims: bool) -> tuple[Variable, Variable]:
    """The mean of the elements that count, and how many they are; in the dtype that means are added up in."""
    dtype = wide_dtype(mean_dtype(x.dtype))
    counts = f.broadcast_like(counts, x)
    number = f.sum(f.cast(counts, dtype), axis=axis, keepdims=keepdims)
    total = f.sum(f.where(counts, in_dtype(x, dtype), 0), axis=axis, keepdims=keepdims)
    return total / number, number


def _deviation(x: Variable, counts: Variable, axis: Any, ddof: float, keepdims: bool, root: bool) -> Variable:
    """The variance of the elements that count, or its root."""
    mean, _ = _mean_of(x, counts, axis, True)
    _, number = _mean_of(x, counts, axis, keepdims)
    centred = f.where(counts, in_dtype(x, mean.dtype) - mean, 0)
    freedom = f.maximum(number - ddof, 0) if ddof else number
    if root:
        return f.norm(centred, axis=axis, keepdims=keepdims) / f.sqrt(freedom)
    return f.sum(f.square(centred), axis=axis, keepdims=keepdims) / freedom


def _numpy_mean(a: Any, axis: Any = None, keepdims: bool = False, where: Any = None) -> Any:
    if where is None or where is True:
        return f.mean(a, axis=axis, keepdims=keepdims)
    x = variable_of(a, "mean")
    return in_dtype(_mean_of(x, as_variable(where), axis, keepdims)[0], mean_dtype(x.dtype))


_numpy_mean.__name__ = "mean"


def _with_freedom(name: str) -> Callable[..., Any]:
    """The variance, or its root, with NumPy's parameters."""

    def ours(
        a: Any, axis: Any = None, ddof: float = 0, keepdims: bool = False, where: Any = None, correction: Any = None
    ) -> Any:
        ddof = ddof if correction is None else correction
        if where is None or where is True:
            return FUNCTIONS[name](a, axis=axis, ddof=ddof, keepdims=keepdims)
        x = variable_of(a, name)
        return in_dtype(_deviation(x, as_variable(where), axis, ddof, keepdims, name == "std"), mean_dtype(x.dtype))

    ours.__name__ = name
    return ours


NUMPY_FUNCTIONS[np.mean] = _numpy_mean
NUMPY_FUNCTIONS[np.var] = _with_freedom("var")
NUMPY_FUNCTIONS[np.std] = _with_freedom("std")


@function(numpy=np.count_nonzero)
def count_nonzero(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
    """How many elements over axes are not zero; a nan is not."""
    return f.sum(f.ne(variable_of(x, "count_nonzero"), 0), axis=axis, keepdims=keepdims)


@function(numpy=np.ptp)
def ptp(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
    """The largest element over axes less the smallest."""
    return f.max(x, axis=axis, keepdims=keepdims) - f.min(x, axis=axis, keepdims=keepdims)


# Of numbers, without the nans


def _without_nans(x: Any, what: str, instead: float) -> Variable:
    x = variable_of(x, what)
    return f.where(f.isnan(x), instead, x) if is_floating(x.dtype) else x


@function(numpy=np.nansum)
def nansum(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
    """The sum over axes of the elements that are no nan."""
    return f.sum(_without_nans(x, "nansum", 0.0), axis=axis, keepdims=keepdims)


@function(numpy=np.nanprod)
def nanprod(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
    """The product over axes of the elements that are no nan."""
    return f.prod(_without_nans(x, "nanprod", 1.0), axis=axis, keepdims=keepdims)


@function(numpy=np.nancumsum)
def nancumsum(x: Any, axis: Any = None) -> Any:
    """The sums so far along an axis (`cumsum`), to which a nan adds nothing."""
    return f.cumsum(_without_nans(x, "nancumsum", 0.0), axis)


@function(numpy=np.nancumprod)
def nancumprod(x: Any, axis: Any = None) -> Any:
    """The products so far along an axis (`cumprod`), which a nan leaves as they are."""
    return f.cumprod(_without_nans(x, "nancumprod", 1.0), axis)


@function(numpy=np.nanmax)
def nanmax(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
    """The largest element over axes that is no nan; nan where all are."""
    return _over_numbers(f.max, x, "nanmax", -math.inf, math.nan, axis, keepdims)


@function(numpy=np.nanmin)
def nanmin(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
    """The smallest element over axes that is no nan; nan where all are."""
    return _over_numbers(f.min, x, "nanmin", math.inf, math.nan, axis, keepdims)


def _over_numbers(reduce: Any, x: Any, what: str, instead: float, of_none: float, axis: Any, keepdims: bool) -> Any:
    """A reduction with nan taken as another number; `of_none` where all elements are nan."""
    x = variable_of(x, what)
    found = reduce(_without_nans(x, what, instead), axis=axis, keepdims=keepdims)
    if not is_floating(x.dtype):
        return found
    return f.where(f.all(f.isnan(x), axis=axis, keepdims=keepdims), of_none, found)


@function(numpy=np.nanargmax)
def nanargmax(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
    """Where the largest element that is no nan stands; -1 where all are, for which NumPy raises."""
    return _over_numbers(f.argmax, x, "nanargmax", -math.inf, -1, axis, keepdims)


@function(numpy=np.nanargmin)
def nanargmin(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
    """Where the smallest element that is no nan stands; -1 where all are, for which NumPy raises."""
    return _over_numbers(f.argmin, x, "nanargmin", math.inf, -1, axis, keepdims)


@function(numpy=np.nanmean)
def nanmean(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
    """The mean over axes of the elements that are no nan; nan where all are."""
    x = variable_of(x, "nanmean")
    if not is_floating(x.dtype):
        return f.mean(x, axis=axis, keepdims=keepdims)
    return in_dtype(_mean_of(x, f.logical_not(f.isnan(x)), axis, keepdims)[0], x.dtype)


@function(numpy=np.nanvar)
def nanvar(x: Any, axis: Any = None, ddof: float = 0, keepdims: bool = True) -> Any:
    """The variance over axes of the elements that are no nan; nan where there are no more than ddof."""
    return _nan_deviation(x, axis, ddof, keepdims, "nanvar")


@function(numpy=np.nanstd)
def nanstd(x: Any, axis: Any = None, ddof: float = 0, keepdims: bool = True) -> Any:
    """The standard deviation over axes of the elements that are no nan; nan where there are no more than ddof."""
    return _nan_deviation(x, axis, ddof, keepdims, "nanstd")


def _nan_deviation(x: Any, axis: Any, ddof: float, keepdims: bool, what: str) -> Any:
    x = variable_of(x, what)
    root = what == "nanstd"
    if not is_floating(x.dtype):
        return (f.std if root else f.var)(x, axis=axis, ddof=ddof, keepdims=keepdims)
    counts = f.logical_not(f.isnan(x))
    _, number = _mean_of(x, counts, axis, keepdims)
    found = _deviation(x, counts, axis, ddof, keepdims, root)
    return in_dtype(f.where(number <= ddof, math.nan, found), x.dtype)


# By rank

#: For each method of `numpy.quantile` that lies between elements the alpha and beta of its place.
METHODS = {
    "linear": (1.0, 1.0),
    "interpolated_inverted_cdf": (0.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}

#: The methods that take one element, or the mean of two, at the place of `linear`.
ROUNDED = ("lower", "higher", "nearest", "midpoint")


@function(numpy=np.median)
def median(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
    """The element in the middle over axes, or the mean of the two there; nan where there is a nan."""
    return _ranked(x, None, axis, "median", keepdims, "median", False)


@function(numpy=np.nanmedian)
def nanmedian(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
    """The median over axes of the elements that are no nan; nan where all are."""
    return _ranked(x, None, axis, "median", keepdims, "nanmedian", True)


@function(numpy=np.quantile)
def quantile(x: Any, q: Any, axis: Any = None, method: str = "linear", keepdims: bool = True) -> Any:
    """The elements over axes below which the parts `q` of them are, 0.5 for the median; nan where there is a nan.

    Several `q` make a first axis. The methods are NumPy's, but for the three
    that are no function of the place alone.
    """
    return _ranked(x, q, axis, method, keepdims, "quantile", False)


@function(numpy=np.nanquantile)
def nanquantile(x: Any, q: Any, axis: Any = None, method: str = "linear", keepdims: bool = True) -> Any:
    """The quantiles over axes of the elements that are no nan; nan where all are."""
    return _ranked(x, q, axis, method, keepdims, "nanquantile", True)


@function(numpy=np.percentile)
def percentile(x: Any, q: Any, axis: Any = None, method: str = "linear", keepdims: bool = True) -> Any:
    """The quantiles over axes, of parts given in hundredths."""
    return _ranked(x, _hundredths(q), axis, method, keepdims, "percentile", False)


@function(numpy=np.nanpercentile)
def nanpercentile(x: Any, q: Any, axis: Any = None, method: str = "linear", keepdims: bool = True) -> Any:
    """The percentiles over axes of the elements that are no nan; nan where all are."""
    return _ranked(x, _hundredths(q), axis, method, keepdims, "nanpercentile", True)


def _hundredths(q: Any) -> Any:
    return q / 100 if isinstance(q, Variable) else np.asarray(q) / 100


def _ranked(x: Any, q: Any, axis: Any, method: str, keepdims: bool, what: str, omits: bool) -> Any:
    """Elements by their ranks over axes; without a `q`, the median."""
    x = variable_of(x, what)
    if method not in (*METHODS, *ROUNDED, "median"):
        raise OperandError(f"{what}: method is one of {', '.join((*METHODS, *ROUNDED))}, not {method!r}")
    if q is not None:
        q = q if isinstance(q, Variable) else np.asarray(q, np.float64)
        if q.ndim > 1 or (not isinstance(q, Variable) and not (np.all(q >= 0) and np.all(q <= 1))):
            raise OperandError(f"{what}: parts are numbers from 0 to 1, or of 100, in one dimension at most; not {q}")
    axes = normalise_axes(axis, x.ndim, what)
    omits = omits and is_floating(x.dtype)
    taken = x if method in ("lower", "higher", "nearest") else in_dtype(x, mean_dtype(x.dtype))
    rows = f.sort(_in_rows(taken, axes, what), -1)
    if omits or rows.shape[-1] is None or isinstance(q, Variable):
        found = _at_computed_places(rows, q, method, omits)
    else:
        found = _at_known_places(rows, q, method, what)
    if is_floating(rows.dtype) and not omits:
        last = f.slice(rows, (Ellipsis, slice(-1, None)))
        last = last if found.ndim == rows.ndim else f.squeeze(last, -1)
        found = f.where(f.isnan(last), math.nan, found)
    if found.ndim == rows.ndim:  # the parts' axis
        found = f.moveaxis(found, -1, 0)
        return f.expand_dims(found, tuple(i + 1 for i in axes)) if keepdims else found
    return f.expand_dims(found, axes) if keepdims and axes else found


def _in_rows(x: Variable, axes: tuple[int, ...], what: str) -> Variable:
    """An operand with axes moved to the end, as one."""
    kept = [i for i in range(x.ndim) if i not in axes]
    if not axes:
        return f.expand_dims(x, -1)
    moved = f.transpose(x, (*kept, *axes))
    if len(axes) == 1:
        return moved
    sizes = [x.shape[i] for i in axes]
    shape = [*(x.shape[i] for i in kept), None if None in sizes else math.prod(sizes)]  # type: ignore[arg-type]
    if shape.count(None) > 1:
        raise ShapeError(f"{what}: of {describe(x)} more than one size is open; a function's input may name the others")
    return f.reshape(moved, tuple(-1 if n is None else n for n in shape))


def _at_known_places(rows: Variable, q: Any, method: str, what: str) -> Variable:
    """Elements of sorted rows of known size, by constants."""
    count = rows.shape[-1]
    if not count:
        raise ShapeError(f"{what}: of nothing there is none; the axes reduced are empty")
    if method == "median":
        low, high = np.asarray((count - 1) // 2), np.asarray(count // 2)
        first = f.take(rows, low, axis=-1)
        return first if low == high else _midpoint(first, f.take(rows, high, axis=-1))
    places = np.clip(_place(method, count, q), 0, count - 1)
    if method in ("lower", "higher", "nearest"):
        return f.take(rows, _rounding(method, np)(places).astype(np.int64), axis=-1)
    low, high = np.floor(places), np.ceil(places)
    first, second = (f.take(rows, place.astype(np.int64), axis=-1) for place in (low, high))
    if method == "midpoint":
        return _midpoint(first, second)
    return _between(first, second, np.asarray(places - low, rows.dtype))


def _at_computed_places(rows: Variable, q: Any, method: str, omits: bool) -> Variable:
    """The same of rows whose sizes the tree knows when it runs, or of which the nans at the end are left out."""
    wide = wide_dtype(mean_dtype(rows.dtype))
    if omits:
        count = f.sum(f.logical_not(f.isnan(rows)), axis=-1, keepdims=True)
    else:
        number = f.count(f.places(rows), axis=-1)
        count = f.reshape(f.cast(number, "int64"), (1,) * rows.ndim)
    one = q is None or q.ndim == 0
    if method == "median":
        low, high = (f.maximum(f.floor_divide(n, 2), 0) for n in (count - 1, count))
        high = f.minimum(high, f.maximum(count - 1, 0))
        found = _midpoint(*(f.take_along_axis(rows, place, -1) for place in (low, high)))
        return f.squeeze(found, -1)
    parts = in_dtype(as_variable(q), wide) if isinstance(q, Variable) else as_variable(_constant(q, wide))
    parts = f.reshape(parts, (*(1,) * (rows.ndim - 1), -1))
    places = _place(method, f.cast(count, wide), parts)
    places = f.maximum(f.minimum(places, f.cast(count - 1, wide)), 0)
    if method in ("lower", "higher", "nearest"):
        found = f.take_along_axis(rows, f.cast(_rounding(method, f)(places), "int64"), -1)
    else:
        low = f.floor(places)
        first, second = (f.take_along_axis(rows, f.cast(p, "int64"), -1) for p in (low, f.ceil(places)))
        found = _midpoint(first, second) if method == "midpoint" else _between(first, second, places - low)
    return f.squeeze(found, -1) if one else found


def _constant(values: Any, dtype: np.dtype) -> Any:
    return f.copy(np.asarray(values, dtype))


def _place(method: str, count: Any, q: Any) -> Any:
    """Where in a sorted row of so many elements the quantile is, as a number that is not whole."""
    alpha, beta = METHODS.get(method, METHODS["linear"])
    if alpha == beta == 1.0:
        return (count - 1) * q
    return count * q + (q * (1.0 - alpha - beta) + alpha) - 1.0


def _rounding(method: str, library: Any) -> Callable[..., Any]:
    return {"lower": library.floor, "higher": library.ceil, "nearest": library.rint}[method]


def _midpoint(first: Variable, second: Variable) -> Variable:
    wide = wide_dtype(first.dtype)
    return in_dtype((in_dtype(first, wide) + in_dtype(second, wide)) * 0.5, first.dtype)


def _between(first: Variable, second: Variable, weight: Any) -> Variable:
    """A point between two numbers, from the nearer of them, so that the ends are exact."""
    apart = second - first
    return in_dtype(f.where(f.lt(weight, 0.5), first + apart * weight, second - apart * (1 - weight)), first.dtype)


# Weighted, and in pairs


@function(numpy=np.average)
def average(x: Any, axis: Any = None, weights: Any = None, returned: bool = False, keepdims: bool = True) -> Any:
    """The mean over axes, by weights of the operand's shape or along the axis; with `returned`, their sum too."""
    x = variable_of(x, "average")
    if weights is None:
        mean = f.mean(x, axis=axis, keepdims=keepdims)
        return (mean, f.broadcast_like(in_dtype(f.count(x, axis), mean.dtype), mean)) if returned else mean
    w = variable_of(
        np.asarray(weights) if isinstance(weights, list | tuple) and not isinstance(weights, Variable) else weights,
        "average",
    )
    floats = [d for d in (x.dtype, w.dtype) if is_floating(d)]
    dtype = promote(x.dtype, w.dtype) if is_floating(x.dtype) else promote(*floats, np.dtype("float64"))
    if w.shape != x.shape:
        if w.ndim != 1 or axis is None or isinstance(axis, tuple | list):
            raise ShapeError(
                f"average: {describe(w)} is neither of the shape of {describe(x)}, nor a vector along one axis"
            )
        place = normalise_axis(axis, x.ndim, "average")
        if None not in (w.shape[0], x.shape[place]) and w.shape[0] != x.shape[place]:
            raise ShapeError(f"average: {describe(w)} has no weight for each of axis {place} of {describe(x)}")
        w = f.expand_dims(w, tuple(i for i in range(x.ndim) if i != place)) if x.ndim > 1 else w
    w = in_dtype(w, dtype)
    total = f.sum(f.broadcast_like(w, x), axis=axis, keepdims=keepdims)
    mean = f.sum(in_dtype(x, dtype) * w, axis=axis, keepdims=keepdims) / total
    return (mean, total) if returned else mean


@function(numpy=np.cov)
def cov(
    x: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: float | None = None,
    fweights: Any = None,
    aweights: Any = None,
) -> Any:
    """The covariances of variables, which are the rows of a matrix, or with ``rowvar=False`` its columns.

    `fweights` are how often each observation was made, `aweights` how much it counts.
    """
    rows = _observations(x, rowvar, "cov")
    if y is not None:
        rows = f.concatenate([rows, _observations(y, rowvar, "cov")], 0)
    freedom = ddof if ddof is not None else 0 if bias else 1
    weights, weighted = None, None
    if fweights is not None:
        weights = in_dtype(variable_of(fweights, "cov: fweights"), rows.dtype)
    if aweights is not None:
        weighted = in_dtype(variable_of(aweights, "cov: aweights"), rows.dtype)
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
    found = f.dot(centred, f.transpose(right)) / f.maximum(divisor, 0.0)
    return f.squeeze(found, tuple(i for i in range(2) if found.shape[i] == 1))


def _observations(x: Any, rowvar: bool, what: str) -> Variable:
    """A matrix with a row for each variable, in float64 at the least, as NumPy's."""
    x = variable_of(x, what)
    if x.ndim > 2:
        raise ShapeError(f"{what}: {describe(x)} has more than two dimensions")
    x = in_dtype(x, promote(x.dtype, np.dtype("float64")))
    if x.ndim < 2:
        return f.reshape(x, (1, -1))
    return x if rowvar else f.transpose(x)


@function(numpy=np.corrcoef)
def corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Any:
    """The correlations of variables: their covariances over their standard deviations."""
    found = cov(x, y, rowvar)
    if found.ndim == 0:
        return found / found
    scale = f.sqrt(f.diag(found))
    return f.clip(found / f.expand_dims(scale, 1) / f.expand_dims(scale, 0), -1.0, 1.0)
