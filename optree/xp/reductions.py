"""The standard's statistical functions, and its `all`, `any` and `diff`."""

from __future__ import annotations

from typing import Any

from optree.registry import FUNCTIONS, f
from optree.tree.types import Axis, DType, as_dtype
from optree.tree.variable import in_dtype
from optree.xp.array import Array, built, of


def _reduced(name: str, x: Array, axis: Axis, keepdims: bool, **options: Any) -> Any:
    """A reduction of an array."""
    return built(FUNCTIONS[name](of(x, name).tree, axis=axis, keepdims=keepdims, **options))


def _accumulated(name: str, x: Array, dtype: DType, **options: Any) -> Any:
    """A reduction or a scan of an array, in a dtype."""
    tree = of(x, name).tree
    if dtype is None:
        return built(FUNCTIONS[name](tree, **options))
    wanted = as_dtype(dtype)
    return built(in_dtype(FUNCTIONS[name](in_dtype(tree, wanted, f"{name} in {wanted}"), **options), wanted))


def sum(x: Array, /, *, axis: Axis = None, dtype: DType = None, keepdims: bool = False) -> Array:
    """The sum over axes; small integers accumulate in 64 bits."""
    return _accumulated("sum", x, dtype, axis=axis, keepdims=keepdims)


def prod(x: Array, /, *, axis: Axis = None, dtype: DType = None, keepdims: bool = False) -> Array:
    """The product over axes; small integers accumulate in 64 bits."""
    return _accumulated("prod", x, dtype, axis=axis, keepdims=keepdims)


def max(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The maximum over axes; nan if there is a nan."""
    return _reduced("max", x, axis, keepdims)


def min(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The minimum over axes; nan if there is a nan."""
    return _reduced("min", x, axis, keepdims)


def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The mean over axes."""
    return _reduced("mean", x, axis, keepdims)


def var(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The variance over axes, with `correction` subtracted from the number of elements."""
    return _reduced("var", x, axis, keepdims, ddof=correction)


def std(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The standard deviation over axes, the root of `var`."""
    return _reduced("std", x, axis, keepdims, ddof=correction)


def all(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether all elements over axes are nonzero."""
    return _reduced("all", x, axis, keepdims)


def any(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether an element over axes is nonzero."""
    return _reduced("any", x, axis, keepdims)


def cumulative_sum(
    x: Array, /, *, axis: int | None = None, dtype: DType = None, include_initial: bool = False
) -> Array:
    """The cumulative sum along an axis, with an initial 0 if `include_initial`; a vector needs no axis."""
    return _accumulated("cumulative_sum", x, dtype, axis=axis, include_initial=include_initial)


def cumulative_prod(
    x: Array, /, *, axis: int | None = None, dtype: DType = None, include_initial: bool = False
) -> Array:
    """The cumulative product along an axis, with an initial 1 if `include_initial`; a vector needs no axis."""
    return _accumulated("cumulative_prod", x, dtype, axis=axis, include_initial=include_initial)


def diff(x: Array, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Array:
    """The n-th differences along an axis, of the array with others prepended and appended."""
    joined = [part.tree for part in (prepend, of(x, "diff"), append) if part is not None]
    return built(f.diff(f.concatenate(joined, axis) if len(joined) > 1 else x.tree, n, axis))
