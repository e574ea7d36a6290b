"""Pools: maxima, means and norms of windows, their derivatives, and normalisation across neighbouring channels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from optree.arrays import Array, as_array, filled, portable
from optree.dtypes import is_floating, wide_dtype
from optree.errors import OperandError, ShapeError
from optree.networks.window_elements import (
    INT32,
    LONGEST,
    UNROLLED,
    PoolOperator,
    WindowElement,
    WindowFacts,
    WindowStep,
)
from optree.networks.windows import layout_of, per_axis
from optree.op.index_map import LIKE, OPAQUE, IndexMap
from optree.op.op import Op
from optree.op.traits import CompositeOperator, FirstDtypeOperator, MorphOperator, NonDifferentiableOperator
from optree.ops.reduction import MeanDtypeOperator, as_floats, mean_dtype, widened
from optree.registry import f, function
from optree.tree.types import Shape, TensorType, promote
from optree.tree.variable import Operand, Variable, constant, in_dtype, variable_of

_POOLS: tuple[Any, ...] = (
    (((1, 2, 4, 5),), {}),
    (((1, 2, 4, 5),), {"window": (2, 3), "stride": (1, 2), "padding": ((1, 0), (1, 2))}),
    (((1, 5, 2),), {"window": 3, "stride": 2, "padding": "same", "layout": "NWC"}),
    (((2, 5, 2),), {"window": 2, "ceil": True, "layout": "CWN"}),
    (((1, 1, 3, 3, 2),), {"window": 2, "stride": 1}),
    (((4, 3),), {"window": 3, "stride": 1, "padding": 1, "axes": 0}),
    (((0, 1, 4),), {}),
)


class MaxPool(PoolOperator, MorphOperator, CompositeOperator):
    """The maximum of each window of images; nan where one is in it.

    Parameters
    ----------
    x : images
    window : int or tuple of int
    stride : int or tuple of int, optional
        By default the window's size: windows then do not overlap.
    padding : str, int, or sequence
        ``"same"``, ``"valid"``, or room around the image, of which no maximum is taken: a number, or for each axis
        one or a pair (before, after).
    layout : str, optional
        The axes of images, such as ``"NHWC"``: windows slide along the spatial ones. By default N, C, and the others.
    axes : int or tuple of int, optional
        The axes along which windows slide, instead of a layout.
    ceil : bool
        Whether a last window may reach beyond the padding.

    The first of equal maxima gets the gradient.

    Examples
    --------
    >>> be.max_pool(be.array([[[1.0, 3.0, 2.0, 5.0, 4.0]]]), 2).asnumpyarray()
    array([[[3., 5.]]], dtype=float32)
    >>> be.max_pool(be.ones((8, 32, 32, 3)), 3, stride=2, padding=1, layout="NHWC").shape
    (8, 16, 16, 3)
    """

    name = "max_pool"
    for_kernels = "windows"
    examples = _POOLS

    def decompose(self, *inputs: Variable) -> Any:
        (x,) = inputs
        found = widened(x)
        for pool in self.one_after_another():
            windows = pool.in_loops(found, _least(x.dtype))
            if windows is not None:
                found = f.max(windows, axis=-1, keepdims=False)
            else:
                found = _greatest(pool.unrolled(WindowElement, found, outside=_least(x.dtype)))
        return in_dtype(found, x.dtype)

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        out = filled(self.pooled_shape(x.shape), _least(x.dtype), x.dtype, x)  # type: ignore[arg-type]
        for _, windows, slices in self.parts(x.shape):
            out[windows] = np.maximum(out[windows], x[slices])
        return out

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        is_heavy = len(self.laps()) > UNROLLED
        pools, values = self.by_axis()[::-1] if is_heavy else [self], [x]  # the last axis first, as of `ArgmaxPool`
        for pool in pools[:-1]:
            values.append(pool(values[-1]))
        for pool, value in zip(reversed(pools), reversed(values), strict=True):
            delta = pool.other(MaxUnpool)(delta, pool.other(ArgmaxPool)(value), value)
        return [delta]


def _greatest(values: Sequence[Any]) -> Any:
    """The maximum of values, nan where one is; nan is looked for apart, in two at once, which takes half the time."""
    found = reduce(lambda best, new: f.where(f.gt(new, best), new, best), values)
    if not is_floating(found.dtype) or len(values) == 1:
        return found
    tests = [f.ne(x, x) for x in values]
    pairs = [reduce(f.logical_or, tests[n : n + 2]) for n in range(0, len(tests), 2)]
    return f.where(reduce(f.logical_or, pairs), np.nan, found)


def _least(dtype: np.dtype) -> Any:
    """The value that no maximum of a dtype is below."""
    if is_floating(dtype):
        return -np.inf
    return False if dtype.kind == "b" else np.iinfo(dtype).min


class ArgmaxPool(PoolOperator, NonDifferentiableOperator, CompositeOperator):
    """The index of each maximum of `max_pool` within its window, the first of equal ones: int32, in C order.

    Elements are counted in the whole window, those in the padding too. The parameters are those of `max_pool`.

    Examples
    --------
    >>> be.argmax_pool(be.array([[[[1.0, 2.0], [4.0, 3.0]]]]), 2).get()
    array([[[[2]]]], dtype=int32)
    """

    name = "argmax_pool"
    operands = ("x",)
    for_kernels = "windows"
    examples = _POOLS

    def decompose(self, *inputs: Variable) -> Any:
        (x,) = inputs
        best, found, after = widened(x), None, 1
        for pool in reversed(self.one_after_another()):  # the last axis first: of equal ones, the first in C order
            windows = pool.in_loops(best, _least(x.dtype))
            if windows is not None:
                best, found = pool.first_in_loops(windows, found, after)
            else:
                best, found = pool.first_unrolled(best, found, after)
            after *= prod(pool.window)
        if not self.is_padded:
            return found
        first = self.other(WindowFacts).with_props(fact="first")(x)  # what is outside may have come before
        return f.where(f.eq(best, _least(x.dtype)), first, found)

    def first_unrolled(self, x: Any, indices: Any, after: int) -> tuple[Any, Any]:
        """The maximum of each window, and the index of the first, from indices of a window of `after` elements."""
        values = self.unrolled(WindowElement, x, outside=_least(x.dtype))
        places: list[Any] = [] if indices is None else self.unrolled(WindowElement, indices)
        best = values[0]
        found = places[0] if places else f.cast(f.ne(best, best), INT32) * 0
        first_nan: Any = -1
        for number in range(len(values) - 1, -1, -1):
            place = places[number] + number * after if places else number
            first_nan = f.where(f.ne(values[number], values[number]), place, first_nan)
        for number, new in enumerate(values[1:], 1):
            better, place = f.gt(new, best), places[number] + number * after if places else number
            best, found = f.where(better, new, best), f.where(better, place, found)
        if not is_floating(best.dtype):
            return best, found
        has_nan = f.ge(first_nan, 0)
        return f.where(has_nan, np.nan, best), f.cast(f.where(has_nan, first_nan, found), INT32)

    def first_in_loops(self, windows: Any, indices: Any, after: int) -> tuple[Any, Any]:
        """The same, of windows as `in_loops`."""
        place = f.argmax(windows, axis=-1, keepdims=True)
        found = f.squeeze(place, -1) * after
        if indices is not None:
            is_first = f.eq(f.flat_indices(windows, axis=-1), place)
            found = found + f.sum(f.where(is_first, self.in_loops(indices), 0), axis=-1, keepdims=False)
        return f.max(windows, axis=-1, keepdims=False), f.cast(found, INT32)

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return promote(dtypes[0]), INT32

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        shape: Any = self.pooled_shape(x.shape)
        best, found = np.zeros(shape, x.dtype, like=x), filled(shape, -1, INT32, x)
        for number, windows, slices in self.parts(x.shape):
            old, new = best[windows], x[slices]
            better = (found[windows] < 0) | (new > old) | ((new != new) & (old == old))
            best[windows] = np.where(better, new, old)
            found[windows] = np.where(better, INT32.type(number), found[windows])
        return found


class MaxUnpool(PoolOperator, FirstDtypeOperator, CompositeOperator):
    """The derivative of `max_pool` by its images `like`, times delta: each delta added where its maximum was.

    `indices` are those of `argmax_pool`, with the same parameters; of `like` only the shape is read.
    """

    name = "max_unpool"
    operands = ("delta", "indices", "like")
    for_kernels = "windows"
    index_map = IndexMap(OPAQUE, OPAQUE, LIKE)
    images = 2
    examples = (
        (((1, 1, 2, 2), [[[[0, 3], [2, 1]]]], (1, 1, 4, 5)), {}),
        (((1, 4), [[1, 0, 1, 1]], (1, 5)), {"window": 2, "stride": 1, "axes": 1}),
        (((3, 1), [[1], [2], [0]], (3, 2)), {"window": 3, "stride": 2, "padding": ((1, 0),), "axes": 1}),
    )

    def decompose(self, *inputs: Variable) -> Any:
        delta, indices, like = inputs
        laps, windows = self.laps(), self.around(widened(delta))
        if windows is not None:
            numbers = np.flip(np.arange(prod(self.window)).reshape(self.window))
            found = f.where(f.eq(self.around(indices, -1), numbers), windows, 0)
            return in_dtype(f.sum(found, axis=tuple(range(like.ndim, found.ndim)), keepdims=False), delta.dtype)
        if len(laps) > 2 * LONGEST:
            return None
        weights = [prod(self.window[n + 1 :]) for n in range(len(self.window))]
        steps = np.zeros([dict(zip(self.axes, self.stride, strict=True)).get(n, 1) for n in range(like.ndim)], INT32)
        for axis, stride, weight in zip(self.axes, self.stride, weights, strict=True):
            steps += np.arange(stride, dtype=INT32).reshape(-1, *[1] * (like.ndim - axis - 1)) * weight
        number = self.other(WindowStep)(constant(steps), like) if steps.size > 1 else 0
        terms = []
        for op in laps:
            place = number + sum(e * weight for e, weight in zip(op.element, weights, strict=True))
            terms.append(f.where(f.eq(op(indices, like), place), op(widened(delta), like), 0))
        return in_dtype(reduce(f.add, terms), delta.dtype)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        delta, indices, like = (as_array(a, *arrays) for a in arrays)
        out = np.zeros(like.shape, wide_dtype(delta.dtype), like=delta)
        for number, windows, slices in self.parts(like.shape):
            out[slices] += np.where(indices[windows] == number, delta[windows], delta.dtype.type(0))
        return out.astype(delta.dtype, copy=False)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (_, indices, _), (upon,) = inputs, output_gradients
        return [self.other(TakePool)(upon, indices), None, None]


class TakePool(PoolOperator, FirstDtypeOperator, CompositeOperator):
    """The element of each window of x that `indices`, as of `argmax_pool`, tell; 0 where there is none.

    The parameters are those of `max_pool`.

    Examples
    --------
    >>> x = be.array([[[[1.0, 2.0], [4.0, 3.0]]]])
    >>> be.take_pool(x, be.argmax_pool(x, 2), 2).get()
    array([[[[4.]]]], dtype=float32)
    """

    name = "take_pool"
    operands = ("x", "indices")
    for_kernels = "windows"
    examples = (
        (((1, 1, 4, 5), [[[[0, 3], [2, 1]]]]), {}),
        (((1, 5), [[1, 0, 1, 1]]), {"window": 2, "stride": 1, "axes": 1}),
        (((3, 2), [[1], [2], [0]]), {"window": 3, "stride": 2, "padding": ((1, 0),), "axes": 1}),
    )

    def decompose(self, *inputs: Variable) -> Any:
        x, indices = inputs
        windows = self.in_loops(widened(x))
        if windows is not None:
            axes = tuple(range(x.ndim, windows.ndim))
            is_it = f.eq(np.arange(prod(self.window)).reshape(self.window), f.expand_dims(indices, axes))
            return in_dtype(f.sum(f.where(is_it, windows, 0), axis=axes, keepdims=False), x.dtype)
        found: Any = 0
        for number, each in enumerate(self.unrolled(WindowElement, widened(x))):
            found = f.where(f.eq(indices, number), each, found)
        return in_dtype(found, x.dtype)

    def output_shape(self, *shapes: Shape) -> Shape:
        x, indices = shapes
        self.check_pooled([indices], x)
        return indices if None not in indices else self.pooled_shape(x)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, indices = (as_array(a, *arrays) for a in arrays)
        out = np.zeros(indices.shape, x.dtype, like=x)
        for number, windows, slices in self.parts(x.shape):
            out[windows] = np.where(indices[windows] == number, x[slices], out[windows])
        return out

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, indices), (delta,) = inputs, output_gradients
        return [self.other(MaxUnpool)(delta, indices, x), None]


class MeanOperator(MeanDtypeOperator, PoolOperator, CompositeOperator):
    """The mean of windows, or its derivative, computed in float32 at the least, with the parameters of `avg_pool`."""

    __props__ = (*(PoolOperator.__props__ or ()), "count_padding")
    for_kernels = "windows"
    count_padding: bool = False

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        return super().bind(types, backend).with_props(count_padding=bool(self.count_padding))

    def mean_of(self, total: Any, images: Any) -> Any:
        """A tree of numbers for each window on images, divided by the windows' elements."""
        if self.count_padding or not self.is_padded:
            return total / float(prod(self.window))
        return total / f.cast(self.other(WindowFacts)(images), total.dtype)

    def divided(self, total: Any, images: Array) -> Any:
        """Numbers for each window on images, divided by the windows' elements."""
        count = prod(self.window) if self.count_padding else self.other(WindowFacts).numpy(images).astype(total.dtype)
        return total / count


class AvgPool(MeanOperator):
    """The mean of each window of images.

    Parameters
    ----------
    x : images
    window, stride, padding, layout, axes, ceil
        As of `max_pool`.
    count_padding : bool
        Whether a window's sum is divided by all of its elements, of which those outside the image are 0; or else by
        those inside.

    Examples
    --------
    >>> x = be.array([[[1.0, 3.0, 5.0, 7.0]]])
    >>> be.avg_pool(x, 3, stride=2, padding=1).asnumpyarray()
    array([[[2., 5.]]], dtype=float32)
    >>> be.avg_pool(x, 3, stride=2, padding=1, count_padding=True).asnumpyarray()
    array([[[1.3333334, 5.       ]]], dtype=float32)
    """

    name = "avg_pool"
    operands = ("x",)
    examples = (
        *_POOLS,
        (((1, 1, 3, 4),), {"window": 3, "stride": 2, "padding": 1, "ceil": True, "count_padding": True}),
    )

    def decompose(self, *inputs: Variable) -> Any:
        (x,) = inputs
        dtype = mean_dtype(x.dtype)
        total = in_dtype(x, wide_dtype(dtype))
        for pool in self.one_after_another():
            windows = pool.in_loops(total)
            if windows is not None:
                total = f.sum(windows, axis=-1, keepdims=False)
            else:
                total = reduce(f.add, pool.unrolled(WindowElement, total))
        return in_dtype(self.mean_of(total, x), dtype)

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        dtype = mean_dtype(x.dtype)
        shape: Any = self.pooled_shape(x.shape)
        total = np.zeros(shape, wide_dtype(dtype), like=x)
        for _, windows, slices in self.parts(x.shape):
            total[windows] += x[slices]
        return self.divided(total, x).astype(dtype, copy=False)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [self.other(AvgUnpool)(delta, x)]

    def R_op(self, inputs: Sequence[Any], eval_points: Sequence[Any]) -> Sequence[Any]:
        return [self(eval_points[0])]


class AvgUnpool(MeanOperator):
    """The derivative of `avg_pool` by its images `like`, whose shape alone is read, times delta.

    The parameters are those of `avg_pool`.
    """

    name = "avg_unpool"
    operands = ("delta", "like")
    index_map = IndexMap(OPAQUE, LIKE)
    images = 1
    examples = (
        (((1, 2, 2, 2), (1, 2, 4, 5)), {}),
        (((1, 2, 4, 3), (1, 2, 4, 5)), {"window": (2, 3), "stride": (1, 2), "padding": ((1, 0), (1, 1))}),
        (((1, 3, 2), (1, 5, 2)), {"window": 3, "stride": 2, "padding": "same", "layout": "NWC", "count_padding": True}),
        (((4, 3), (4, 3)), {"window": 3, "stride": 1, "padding": 1, "axes": 0}),
    )

    def decompose(self, *inputs: Variable) -> Any:
        delta, like = inputs
        dtype = mean_dtype(delta.dtype)
        total, after = in_dtype(delta, wide_dtype(dtype)), float(prod(self.window))
        if self.is_padded and not self.count_padding:
            total, after = self.mean_of(total, like), 1.0
        pools = self.by_axis() if len(self.laps()) > UNROLLED else [self]
        likes = [like]
        for pool in pools[:-1]:
            likes.append(pool.other(WindowElement)(likes[-1]))  # of its shape alone
        for pool, under in zip(reversed(pools), reversed(likes), strict=True):
            total = pool.spread(total, under)
        return in_dtype(total / after, dtype)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        delta, like = (as_array(a, *arrays) for a in arrays)
        dtype = mean_dtype(delta.dtype)
        share = self.divided(delta.astype(wide_dtype(dtype)), like)
        out = np.zeros(like.shape, share.dtype, like=delta)
        for _, windows, slices in self.parts(like.shape):
            out[slices] += share[windows]
        return out.astype(dtype, copy=False)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [self.other(AvgPool)(output_gradients[0]), None]


# Composed of means


@function()
def lp_pool(
    x: Operand,
    window: Any,
    p: float = 2.0,
    stride: Any = None,
    padding: Any = 0,
    layout: Any = None,
    axes: Any = None,
    ceil: bool = False,
) -> Any:
    """The p-norm of each window of images: the p-th root of the sum of its elements' absolute values to the p.

    Its gradient is 0 where all of a window is 0. The other parameters are those of `max_pool`.

    Examples
    --------
    >>> be.lp_pool(be.array([[[3.0, -4.0, 0.0, 2.0]]]), 2).asnumpyarray()
    array([[[5., 2.]]], dtype=float32)
    """
    if isinstance(p, bool) or not isinstance(p, int | float) or p <= 0:
        raise OperandError(f"lp_pool: p is a number above 0, not {p!r}")
    x = as_floats(variable_of(x, "lp_pool"))
    pool = AvgPool.make(
        window=window, stride=stride, padding=padding, layout=layout, axes=axes, ceil=ceil, count_padding=True
    )
    pool.check_in("lp_pool", x)
    mean = pool((x if p % 2 == 0 else f.absolute(x)) ** p)  # the absolute value has a second derivative of 0 at 0
    total = mean * float(prod(mean.op.window))
    is_some = f.gt(total, 0)
    inner = f.where(is_some, total, 1)  # keeps the infinite slope of a root at 0 out of the gradient
    return f.where(is_some, f.sqrt(inner) if p == 2 else inner ** (1.0 / p), total)


@function()
def lrn(x: Operand, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, layout: Any = None) -> Any:
    """Images divided by ``(k + alpha * m) ** beta``, m being the mean of squares over `size` neighbouring channels.

    Local response normalisation. Channels beyond the first and the last count as 0.

    Parameters
    ----------
    size : int
        The channels of a window: ``size // 2`` before a channel, ``(size - 1) // 2`` after it, and itself.
    alpha, beta, k : float
    layout : str, optional
        As of `conv`.

    Examples
    --------
    >>> be.lrn(be.array([[[3.0], [4.0]]]), size=1, alpha=1.0, beta=0.5, k=0.0).asnumpyarray()
    array([[[1.],
            [1.]]], dtype=float32)
    """
    x = as_floats(variable_of(x, "lrn"))
    (size,) = per_axis(size, 1, "lrn: size")
    if x.ndim < 2:
        raise ShapeError(f"lrn: images have a batch and channels, and this has {x.ndim} dimensions")
    for name, factor in (("alpha", alpha), ("beta", beta), ("k", k)):
        variable_of(factor, f"lrn: {name}")
    channels = layout_of(layout, x.ndim, "NC", "lrn: layout").index("C")
    around = ((size // 2, (size - 1) // 2),)
    mean = f.avg_pool(f.square(x), size, 1, around, axes=channels, count_padding=True)
    return x * (k + alpha * mean) ** -beta
