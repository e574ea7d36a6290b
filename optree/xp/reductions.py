"""The standard's statistics and sums, and its functions of truth."""

from __future__ import annotations

from typing import Any

import numpy as np

from optree.registry import NUMPY_FUNCTIONS, f
from optree.tree.numpy_protocol import call_function
from optree.tree.types import as_dtype, normalise_axis
from optree.xp.array import Array, built, of


def _reduced(function: Any, x: Array, **options: Any) -> Any:
    """A function of NumPy's on an array's tree."""
    return built(call_function(function, (of(x, function.__name__).tree,), options))


def sum(x: Array, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """The sum over axes; small integers are added up in 64 bits."""
    return _reduced(np.sum, x, axis=axis, dtype=dtype, keepdims=keepdims)


def prod(x: Array, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """The product over axes; small integers are multiplied in 64 bits."""
    return _reduced(np.prod, x, axis=axis, dtype=dtype, keepdims=keepdims)


def max(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """The largest element over axes; nan if there is one."""
    return _reduced(np.max, x, axis=axis, keepdims=keepdims)


def min(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """The smallest element over axes; nan if there is one."""
    return _reduced(np.min, x, axis=axis, keepdims=keepdims)


def mean(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """The mean over axes."""
    return _reduced(np.mean, x, axis=axis, keepdims=keepdims)


def var(x: Array, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The variance over axes: the sum of squared deviations over the number of elements less `correction`."""
    return _reduced(np.var, x, axis=axis, ddof=correction, keepdims=keepdims)


def std(x: Array, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The standard deviation over axes, the root of `var`."""
    return _reduced(np.std, x, axis=axis, ddof=correction, keepdims=keepdims)


def all(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """Whether every element over axes is true: not zero."""
    return _reduced(np.all, x, axis=axis, keepdims=keepdims)


def any(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """Whether some element over axes is true: not zero."""
    return _reduced(np.any, x, axis=axis, keepdims=keepdims)


def cumulative_sum(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """The sums of the elements so far along an axis, which a vector may leave out; with a 0 first, if asked for."""
    return _scanned("cumulative_sum", np.cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """The products of the elements so far along an axis, which a vector may leave out; with a 1 first, if asked for."""
    return _scanned("cumulative_prod", np.cumprod, 1, x, axis, dtype, include_initial)


def _scanned(what: str, function: Any, first: int, x: Array, axis: Any, dtype: Any, include_initial: bool) -> Array:
    axis = normalise_axis(_only_axis(x, axis, what), of(x, what).ndim, what)
    given = x.tree if dtype is None else f.cast(x.tree, as_dtype(dtype))
    found = NUMPY_FUNCTIONS[function](given, axis)
    if dtype is not None and found.dtype != as_dtype(dtype):
        found = f.cast(found, as_dtype(dtype))
    if include_initial:
        before = tuple((1, 0) if i == axis else (0, 0) for i in range(x.ndim))
        found = f.pad(found, before, first)
    return built(found)


def _only_axis(x: Array, axis: int | None, what: str) -> int:
    if axis is None and of(x, what).ndim != 1:
        raise ValueError(f"{what}: an array of shape {x.shape} needs an axis")
    return -1 if axis is None else axis


def diff(x: Array, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Array:
    """The differences of neighbours along an axis, `n` times over, with arrays before and behind."""
    joined = [part.tree for part in (prepend, of(x, "diff"), append) if part is not None]
    return built(f.diff(f.concatenate(joined, axis) if len(joined) > 1 else x.tree, n, axis))
