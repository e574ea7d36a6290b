"""Comparison of values and of derivatives within tolerances, central differences, and the scalars that they take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from optree.arrays import Array
from optree.dtypes import finfo, is_floating, real_dtype
from optree.op.traits import ElementwiseOperator
from optree.registry import f
from optree.testing.examples import Example
from optree.tree.node import OpTreeNode, post_order
from optree.tree.types import TensorType
from optree.tree.variable import Variable, constant

#: The minimum step of central differences, relative to the perturbed value.
STEP = 2e-4

#: The relative and absolute tolerances of the current `check_op`.
_tolerance: ContextVar[tuple[float, float]] = ContextVar("tolerance", default=(0.0, 0.0))


@contextmanager
def tolerating(rtol: float | None, atol: float | None) -> Iterator[None]:
    """Set tolerances within a block, in addition to that for rounding."""
    token = _tolerance.set((rtol or 0.0, atol or 0.0))
    try:
        yield
    finally:
        _tolerance.reset(token)


def is_near(got: object, wanted: Any) -> Any:
    """Whether each element is within the tolerances of `tolerating`."""
    rtol, atol = _tolerance.get()
    if not rtol and not atol:
        return np.zeros(np.shape(wanted), bool)
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    return np.isclose(got, wanted, rtol=rtol, atol=atol, equal_nan=True)


def is_tolerated(got: Array, wanted: Array) -> bool:
    """Whether two floating arrays of equal shape and dtype are within the tolerances of `tolerating`."""
    arrays = all(isinstance(x, np.ndarray | np.generic) for x in (got, wanted))
    alike = arrays and got.shape == wanted.shape and got.dtype == wanted.dtype
    return alike and is_floating(got.dtype) and bool(np.all(is_near(got, wanted)))


def compare(got: Array, wanted: Array, what: object, note: str, ulps: float = 4, scale: Any = 0.0) -> None:
    """Raise unless two arrays have equal shapes, dtypes and special values, and numbers within a tolerance.

    `what`, `note` (object, str): the subject and its circumstances, with which the error begins.
    `ulps`: the tolerance of floating numbers in units in the last place of `wanted`.
    `scale`: the magnitude of the terms of a sum, by which its rounding error is measured.
    """
    got, wanted = np.asarray(got), np.asarray(wanted)
    expect(got.shape == wanted.shape, what, f"{note}: the shape is {got.shape}, not {wanted.shape}")
    expect(got.dtype == wanted.dtype, what, f"{note}: the dtype is {got.dtype}, not {wanted.dtype}")
    same = got == wanted
    if got.dtype.kind == "c":
        scale = np.maximum(scale, np.where(np.isfinite(wanted), np.abs(wanted), 0))
        got, wanted = (np.stack([x.real, x.imag]) for x in (got, wanted))
        same = got == wanted
    if is_floating(got.dtype):
        info = finfo(got.dtype)
        with np.errstate(all="ignore"):
            unit = info.eps * np.maximum(np.abs(wanted), scale) + float(info.smallest_subnormal)
            near = np.isfinite(got) & np.isfinite(wanted) & (np.abs(got - wanted) <= ulps * unit)
        zero = (got == 0) & (wanted == 0) & (np.signbit(got) == np.signbit(wanted))
        same = np.where(wanted == 0, zero | (near & (scale > 0)), same | near) | (np.isnan(got) & np.isnan(wanted))
        same = same | is_near(got, wanted)
    if not np.all(same):
        at = tuple(map(int, np.argwhere(~np.asarray(same))[0]))
        expect(False, what, f"{note}: at {at} it is {got[at]!r}, not {wanted[at]!r}")


def expect(holds: object, example: object, message: str) -> None:
    """Raise AssertionError of an example unless something holds."""
    if not holds:
        raise AssertionError(f"{example}: {message}")


def weighted_sum(tree: Variable, seed: int = 0) -> Variable:
    """A scalar cost: the sum of the value's elements with random weights, of complex ones of both parts."""
    if tree.dtype.kind == "c":
        return weighted_sum(f.real(tree), seed) + weighted_sum(f.imag(tree), seed + 1)
    return f.sum(tree * constant(sum_weights(tree, seed)), axis=None, keepdims=False)


def sum_weights(tree: Variable, seed: int = 0) -> np.ndarray:
    """The weights of `weighted_sum`: those of complex elements' parts as complex numbers."""
    weights = np.random.RandomState(seed).uniform(0.5, 1.5, tree.shape)
    if tree.dtype.kind == "c":
        return weights + 1j * np.random.RandomState(seed + 1).uniform(0.5, 1.5, tree.shape)
    return np.asarray(weights, tree.dtype if is_floating(tree.dtype) else np.dtype("float64"))


def nodes_of(trees: Sequence[Any]) -> Iterator[OpTreeNode]:
    """The distinct nodes of trees, but for those of several values."""
    for entry in post_order(trees, lambda x: x.inputs if isinstance(x, OpTreeNode) else ()):
        if isinstance(entry, OpTreeNode) and isinstance(entry.type, TensorType):
            yield entry


def central_difference(
    function: Callable[[list[Any]], float], values: Sequence[Any], index: int, step: float = STEP, order: int = 4
) -> np.ndarray:
    """The derivative of a function by each element of one array, by central differences of second or fourth order.

    That by complex numbers is d/dx + i d/dy, as `optree.grad` has it.
    """
    x = values[index]
    if x.dtype.kind == "c":

        def of_parts(moved: list[Any]) -> float:
            return function([*values[:index], moved[0].view(x.dtype).reshape(x.shape), *values[index + 1 :]])

        parts = np.ascontiguousarray(x).reshape(-1).view(real_dtype(x.dtype))
        return central_difference(of_parts, [parts], 0, step, order).view(x.dtype).reshape(x.shape)
    result = np.empty_like(x)
    moved = list(values)
    for at in np.ndindex(result.shape):
        size = step * max(1.0, abs(values[index][at]))
        ends = []
        for steps in (1, -1, 2, -2)[:order]:
            moved[index] = values[index].copy()
            moved[index][at] += steps * size
            ends.append(function(moved))
        near, far = ends[0] - ends[1], ends[-2] - ends[-1]
        result[at] = near / (2 * size) if order == 2 else (8 * near - far) / (12 * size)
    return result


def difference_along(
    function: Callable[[list[Any]], Sequence[Any]], values: Sequence[Any], moves: Sequence[Any], step: float
) -> list[np.ndarray]:
    """The derivatives of a function's values along a direction, of which `moves` are a step, by fourth order."""
    ends = [
        function([x if move is None else x + times * move for x, move in zip(values, moves, strict=True)])
        for times in (1, -1, 2, -2)
    ]
    return [np.asarray((8 * (a - b) - (c - d)) / (12 * step)) for a, b, c, d in zip(*ends, strict=True)]


def precision(unit: float) -> tuple[float, float]:
    """The step of central differences, and their tolerance, for values with a machine epsilon.

    A value of a narrow dtype changes in steps, so its differences are less accurate.
    """
    step = max(STEP, 4 * unit**0.5)
    return step, max(1e-7, 8 * unit / step)


def where_off(gradient: np.ndarray, difference: np.ndarray, rtol: float, atol: float) -> str | None:
    """The element with the largest error of a gradient, in words; None where all are within the tolerances."""
    error = np.abs(gradient - difference)
    off = ~(error <= atol + rtol * np.abs(difference)) & ~is_near(gradient, difference)  # a nan is off too
    if not off.any():
        return None
    furthest = np.where(off, np.where(np.isnan(error), np.inf, error), -1.0)
    at = np.unravel_index(np.argmax(furthest), error.shape)
    return (
        f"at element {tuple(map(int, at))}: it is {gradient[at]!r}, and central differences give "
        f"{difference[at]!r}; {int(off.sum())} of {gradient.size} elements are off"
    )


def scale_of(example: Example, values: Sequence[Any]) -> float:
    """The magnitude of the terms that an op sums: 0 for an elementwise op."""
    if isinstance(example.op, ElementwiseOperator):
        return 0.0
    sizes = [
        np.max(np.abs(x), initial=1.0, where=np.isfinite(x))
        for x in values
        if isinstance(x, np.ndarray) and is_floating(x.dtype)
    ]
    return float(max(sizes, default=0.0))
