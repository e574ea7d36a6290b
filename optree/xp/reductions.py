"""The standard's statistics and sums, and its functions of truth."""

from __future__ import annotations

from typing import Any

from optree.registry import FUNCTIONS, f
from optree.tree.types import as_dtype, normalise_axis
from optree.tree.variable import in_dtype
from optree.xp.array import Array, built, of


def _reduced(name: str, x: Array, axis: Any, keepdims: bool, **options: Any) -> Any:
    """A reduction of an array."""
    return built(FUNCTIONS[name](of(x, name).tree, axis=axis, keepdims=keepdims, **options))


def _accumulated(name: str, x: Array, axis: Any, keepdims: bool, dtype: Any) -> Any:
    """A reduction of an array, in a dtype."""
    wanted = of(x, name).dtype if dtype is None else as_dtype(dtype)
    found = FUNCTIONS[name](in_dtype(x.tree, wanted), axis=axis, keepdims=keepdims)
    return built(found if dtype is None else in_dtype(found, wanted))


def sum(x: Array, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """The sum over axes; small integers are added up in 64 bits."""
    return _accumulated("sum", x, axis, keepdims, dtype)


def prod(x: Array, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """The product over axes; small integers are multiplied in 64 bits."""
    return _accumulated("prod", x, axis, keepdims, dtype)


def max(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """The largest element over axes; nan if there is one."""
    return _reduced("max", x, axis, keepdims)


def min(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """The smallest element over axes; nan if there is one."""
    return _reduced("min", x, axis, keepdims)


def mean(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """The mean over axes."""
    return _reduced("mean", x, axis, keepdims)


def var(x: Array, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The variance over axes: the sum of squared deviations over the number of elements less `correction`."""
    return _reduced("var", x, axis, keepdims, ddof=correction)


def std(x: Array, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The standard deviation over axes, the root of `var`."""
    return _reduced("std", x, axis, keepdims, ddof=correction)


def all(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """Whether every element over axes is true: not zero."""
    return _reduced("all", x, axis, keepdims)


def any(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """Whether some element over axes is true: not zero."""
    return _reduced("any", x, axis, keepdims)


def cumulative_sum(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """The sums of the elements so far along an axis, which a vector may leave out; with a 0 first, if asked for."""
    return _scanned("cumulative_sum", "cumsum", 0, x, axis, dtype, include_initial)


def cumulative_prod(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """The products of the elements so far along an axis, which a vector may leave out; with a 1 first, if asked for."""
    return _scanned("cumulative_prod", "cumprod", 1, x, axis, dtype, include_initial)


def _scanned(what: str, name: str, first: int, x: Array, axis: Any, dtype: Any, include_initial: bool) -> Array:
    axis = normalise_axis(_only_axis(x, axis, what), of(x, what).ndim, what)
    wanted = x.dtype if dtype is None else as_dtype(dtype)
    found = FUNCTIONS[name](in_dtype(x.tree, wanted), axis)
    if dtype is not None:
        found = in_dtype(found, wanted)
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
