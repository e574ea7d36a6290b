"""Gradients of samples, and linear interpolation."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import is_complex, is_floating, is_inexact
from optree.errors import OperandError, ShapeError, describe
from optree.op.index_map import BROADCAST, OPAQUE, IndexMap
from optree.op.traits import BlockOperator, Blocks, longest_axis
from optree.ops.indexing import Take
from optree.ops.scattering import IndexAdd
from optree.ops.shape import slice_along, strong
from optree.registry import f, function, numpy_function
from optree.tree.types import NUMBERS, Axis, DType, Shape, integer_of, normalise_axes, normalise_axis, promote
from optree.tree.variable import Operand, Variable, check_real, in_dtype, number_of, variable_of


@function()
def gradient(x: Operand, *spacing: Operand, axis: Axis = None, edge_order: int = 1) -> Any:
    """The gradient of samples along axes, by central differences; at the ends of order `edge_order`.

    Parameters
    ----------
    x : operand
    *spacing : number or operand
        The distance between samples, or their coordinates along an axis: one for
        all axes, or one for each. By default 1.
    axis : int or tuple of int, optional
        By default all of them; of several, the value is a list.
    edge_order : int
        1 or 2.

    Examples
    --------
    >>> be.gradient(be.array([1.0, 2.0, 4.0, 7.0])).get()
    array([1. , 1.5, 2.5, 3. ], dtype=float32)
    """
    x = variable_of(x, "gradient")
    x = x if is_inexact(x.dtype) else in_dtype(x, np.dtype("float64"))
    axes = (
        normalise_axes(axis, x.ndim, "gradient")
        if not isinstance(axis, tuple | list)
        else tuple(normalise_axes(each, x.ndim, "gradient")[0] for each in axis)
    )
    if edge_order not in (1, 2):
        raise OperandError(f"gradient: edge_order is 1 or 2, not {edge_order!r}")
    steps = spacing if len(spacing) != 1 else spacing * len(axes)
    if steps and len(steps) != len(axes):
        raise OperandError(f"gradient: give one spacing, or one for each of {len(axes)} axes, not {len(steps)}")
    found = [_slope(x, i, step, edge_order) for i, step in zip(axes, steps or (1.0,) * len(axes), strict=True)]
    return found[0] if len(axes) == 1 else found


@numpy_function(np.gradient)
def _numpy_gradient(x: Operand, varargs: Any = (), axis: Axis = None, edge_order: int = 1) -> Any:
    found = gradient(x, *varargs, axis=axis, edge_order=edge_order)
    return tuple(found) if isinstance(found, list) else found


def _slope(x: Variable, axis: int, spacing: object, edge_order: int) -> Variable:
    """The gradient along one axis."""
    size = x.shape[axis]
    if size is not None and size < edge_order + 1:
        raise ShapeError(f"gradient: axis {axis} of {describe(x)} has fewer than {edge_order + 1} samples")

    def at(start: Any, stop: Any) -> Any:
        return slice_along(x, axis, start, stop)

    step = variable_of(spacing, "gradient: the spacing")
    if step.ndim > 1:
        raise ShapeError(f"gradient: the spacing {describe(step)} is neither a number nor a vector of coordinates")
    if step.ndim == 0:
        step = number_of(step) if number_of(step) is not None else step
        inner = (at(2, None) - at(None, -2)) / (step * 2.0)
        first, last = (at(1, 2) - at(0, 1)) / step, (at(-1, None) - at(-2, -1)) / step
        if edge_order == 2:
            first = (at(0, 1) * -1.5 + at(1, 2) * 2.0 - at(2, 3) * 0.5) / step
            last = (at(-3, -2) * 0.5 - at(-2, -1) * 2.0 + at(-1, None) * 1.5) / step
        return in_dtype(f.concatenate([first, inner, last], axis), x.dtype)
    if None not in (size, step.shape[0]) and size != step.shape[0]:
        raise ShapeError(f"gradient: {describe(step)} has no coordinate for each of axis {axis} of {describe(x)}")
    wide = f.diff(step if is_floating(step.dtype) else in_dtype(step, np.dtype("float64")))
    wide = f.expand_dims(wide, tuple(i for i in range(x.ndim) if i != axis)) if x.ndim > 1 else wide

    def step_at(start: Any, stop: Any) -> Any:
        return slice_along(wide, axis, start, stop)

    left, right = step_at(None, -1), step_at(1, None)
    both = left + right
    inner = (
        at(2, None) * (left / (right * both))
        + at(1, -1) * ((right - left) / (left * right))
        - at(None, -2) * (right / (left * both))
    )
    first, last = (at(1, 2) - at(0, 1)) / step_at(0, 1), (at(-1, None) - at(-2, -1)) / step_at(-1, None)
    if edge_order == 2:
        one, two = step_at(0, 1), step_at(1, 2)
        first = (
            at(1, 2) * ((one + two) / (one * two))
            - at(0, 1) * ((one * 2.0 + two) / (one * (one + two)))
            - at(2, 3) * (one / (two * (one + two)))
        )
        one, two = step_at(-2, -1), step_at(-1, None)
        last = (
            at(-3, -2) * (two / (one * (one + two)))
            - at(-2, -1) * ((two + one) / (one * two))
            + at(-1, None) * ((two * 2.0 + one) / (two * (one + two)))
        )
    return in_dtype(f.concatenate([first, inner, last], axis), x.dtype)


class Interpolate(BlockOperator):
    """Linear interpolation in float64 at x between points (`xp`, `fp`) with ascending `xp`; constant beyond them.

    Examples
    --------
    >>> be.interpolate(be.array([0.5, 2.0]), be.array([0.0, 1.0]), be.array([10.0, 20.0])).get()
    array([15., 20.])
    """

    name = "interpolate"
    index_map = IndexMap(BROADCAST, OPAQUE, OPAQUE)
    operands = ("x", "xp", "fp")
    __props__ = ()
    examples = (
        (((2, 9), [-1.0, -0.25, 0.5, 1.0], (4,)), {}),
        (((3,), [0.5], (1,)), {}),
        (((0,), [0.0, 1.0], (2,)), {}),
        (((), [-0.5, 0.5], (2,)), {}),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        x, xp, fp = shapes
        if 0 in (*xp, *fp) or (None not in (*xp, *fp) and prod(xp) != prod(fp)):  # type: ignore[arg-type]
            raise ShapeError("the points are two vectors of one size, at least of 1")
        return x

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return (np.dtype("float64"),) * 4

    def blocks(self, *shapes: tuple[int, ...]) -> Blocks | None:
        axis = longest_axis(shapes[0])
        return None if axis is None else (axis, (axis, None, None), 1)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, xp, fp = (as_array(a, *arrays).astype("float64", order="C", copy=False) for a in arrays)  # for CuPy
        return as_array(np.interp(x.reshape(-1), xp.reshape(-1), fp.reshape(-1)), x).reshape(x.shape)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        x, xp, fp = (in_dtype(v, np.dtype("float64")) for v in inputs)
        if xp.shape[0] == 1:
            return [f.fill_like(x, 0.0), f.fill_like(xp, 0.0), f.broadcast_like(f.sum(delta, keepdims=False), fp)]
        left = f.searchsorted(f.slice(xp, (slice(1, -1),)), x, "right")
        x0, x1, y0, y1 = (f.take(v, left + i, axis=0) for v in (xp, fp) for i in (0, 1))
        width = f.where(f.eq(x1, x0), 1.0, x1 - x0)
        is_before, is_after = f.lt(x, f.slice(xp, (0,))), f.gt(x, f.slice(xp, (-1,)))
        part = f.where(is_before, 0.0, f.where(is_after, 1.0, (x - x0) / width))  # at a point, to the right
        by_x = f.where(f.logical_or(is_before, is_after), 0.0, delta * ((y1 - y0) / width))

        def by_points(each: Operand, like: Operand) -> Any:
            added = IndexAdd.make(indexing=Take.make(axis=0))
            return added(each * (1.0 - part), like, left) + added(each * part, like, left + 1)

        return [by_x, by_points(-by_x, xp), by_points(delta, fp)]


@numpy_function(np.trapezoid)
def _trapezoid(y: Operand, x: Operand | None = None, dx: float = 1.0, axis: int = -1) -> Any:
    """The integral of samples along an axis by the trapezoidal rule."""
    y = variable_of(y, "trapezoid")
    axis = normalise_axis(axis, y.ndim, "trapezoid")
    width = dx
    if x is not None:
        x = variable_of(x, "trapezoid: the coordinates")
        width = f.diff(x, axis=axis if x.ndim > 1 else -1)
        width = f.expand_dims(width, tuple(range(1, y.ndim - axis))) if x.ndim == 1 and axis < y.ndim - 1 else width
    both = slice_along(y, axis, 1, None) + slice_along(y, axis, None, -1)
    return f.sum(width * both / 2.0, axis=axis, keepdims=False)


@numpy_function(np.linspace)
def _linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None, axis: int = 0
) -> Any:
    """Evenly spaced numbers from `start` to `stop`, along a new axis; with `retstep`, and the step."""
    ends = [x if type(x) in NUMBERS or isinstance(x, Variable) else np.asarray(x) for x in (start, stop)]
    wide = promote(float, *(type(x) if type(x) in (int, float) else x.dtype for x in ends))
    first, last = (in_dtype(variable_of(x, "linspace"), wide) for x in ends)
    num = integer_of(num, "linspace: num", 0)
    step = (last - first) / (num - 1 if endpoint and num > 1 else max(num, 1))
    places = np.arange(num).astype(wide).reshape(num, *(1,) * step.ndim)
    found = f.expand_dims(step, 0) * places + first
    if endpoint and num > 1:  # exactly
        found = f.where(places == num - 1, last, found)
    found = found if dtype is None else f.cast(f.floor(found) if np.dtype(dtype).kind in "iu" else found, dtype)
    found = f.moveaxis(found, 0, axis) if axis else found
    return (found, step) if retstep else found


@numpy_function(np.logspace)
def _logspace(
    start: Operand,
    stop: Operand,
    num: int = 50,
    endpoint: bool = True,
    base: Operand = 10.0,
    dtype: DType = None,
    axis: int = 0,
) -> Any:
    """Numbers evenly spaced on a logarithmic scale, ``base ** start`` to ``base ** stop``, along a new axis."""
    found = f.pow(base, _linspace(start, stop, num, endpoint, axis=axis))
    return found if dtype is None else f.cast(found, dtype)


@function(numpy=np.interp)
def interp(
    x: Operand, xp: Operand, fp: Operand, left: Operand | None = None, right: Operand | None = None, period: Any = None
) -> Any:
    """Linear interpolation at x between points (`xp`, `fp`) with ascending `xp`; `left` and `right` beyond them.

    It is computed in float64, as in NumPy, and differentiable by x, `xp` and `fp`; at a point, to the right. The
    parts of complex `fp` are interpolated.

    Examples
    --------
    >>> be.interp(be.array([0.5, 2.0]), be.array([0.0, 1.0]), be.array([10.0, 20.0])).get()
    array([15., 20.])
    """
    wide, fp = np.dtype("float64"), strong(fp, "interp")
    if is_complex(fp.dtype):
        ends = [(None, None) if end is None else (f.real(end), f.imag(end)) for end in (left, right)]
        parts = zip((f.real(fp), f.imag(fp)), *ends, strict=True)
        return f.complex(*(interp(x, xp, *given, period) for given in parts))
    x, xp, fp = (in_dtype(check_real(strong(v, "interp"), "interp"), wide) for v in (x, xp, fp))
    left, right = (None if end is None else check_real(end, "interp: an end of real points") for end in (left, right))
    if xp.ndim != 1 or fp.ndim != 1 or (None not in (*xp.shape, *fp.shape) and xp.shape != fp.shape):
        raise ShapeError(f"interp: {describe(xp)} and {describe(fp)} are no two vectors of one size")
    if xp.shape[0] == 0:
        raise ShapeError("interp: there is no point")
    if period is not None:
        period = abs(float(period))
        if not period:
            raise OperandError("interp: a period is not 0")
        x, xp = f.mod(x, period), f.mod(xp, period)
        order = f.argsort(xp, 0)
        xp, fp = f.take(xp, order, axis=0), f.take(fp, order, axis=0)
        first, last = slice(0, 1), slice(-1, None)
        xp = f.concatenate([f.slice(xp, (last,)) - period, xp, f.slice(xp, (first,)) + period], 0)
        fp = f.concatenate([f.slice(fp, (last,)), fp, f.slice(fp, (first,))], 0)
        left = right = None
    low, high = (f.slice(xp, (i,)) for i in (0, -1))
    found = f.interpolate(x, xp, fp)
    found = found if left is None else f.where(f.lt(x, low), left, found)
    return found if right is None else f.where(f.gt(x, high), right, found)
