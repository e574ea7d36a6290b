"""Reductions, orders and cumulative sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from optree.arrays import Array
from optree.onnx.values import Operators, cast, integers, known_size, part
from optree.registry import f


def _reduction(
    function: Callable[..., Any], before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """The method of a reduction, of elements by which a function comes before and after it."""

    def reduced(
        self: Operators, x: Array, axes: Array | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Any:
        along = () if axes is None else integers(axes, "axes")
        found = x if before is None else before(x)
        if along or not noop_with_empty_axes:
            found = cast(function(found, axis=along or None, keepdims=bool(keepdims)), x.dtype)
        return found if after is None else after(found)

    return reduced


class Reduction(Operators):
    """Operators that reduce, sort or accumulate along axes."""

    ReduceSum = _reduction(np.sum)
    ReduceMean = _reduction(np.mean)
    ReduceMax = _reduction(np.max)
    ReduceMin = _reduction(np.min)
    ReduceProd = _reduction(np.prod)
    ReduceL1 = _reduction(np.sum, np.abs)
    ReduceL2 = _reduction(np.sum, np.square, np.sqrt)
    ReduceSumSquare = _reduction(np.sum, np.square)
    ReduceLogSum = _reduction(np.sum, None, np.log)
    ReduceLogSumExp = _reduction(lambda x, **along: f.logsumexp(x, **along))

    def _best(self, function: Callable[..., Any], x: Array, axis: int, keepdims: int, is_last: int) -> Any:
        found = function(np.flip(x, axis) if is_last else x, axis, keepdims=bool(keepdims))
        return known_size(x, axis) - 1 - found if is_last else found

    def ArgMax(self, x: Array, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
        return self._best(np.argmax, x, axis, keepdims, select_last_index)

    def ArgMin(self, x: Array, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
        return self._best(np.argmin, x, axis, keepdims, select_last_index)

    def TopK(self, x: Array, k: Array, axis: int = -1, largest: int = 1, sorted: int = 1) -> list[Any]:
        (count,) = integers(k, "k")
        if largest:
            return list(f.topk(x, count, axis))
        index = [slice(None)] * len(x.shape)
        index[axis] = slice(0, count)
        indices = part(np.argsort(x, axis, stable=True), tuple(index))
        return [np.take_along_axis(x, indices, axis), indices]

    def _cumulated(
        self, function: Callable[..., Any], x: Array, axis: Array, exclusive: int, reverse: int, first: int
    ) -> Any:
        (along,) = integers(axis, "the axis")
        x = np.flip(x, along) if reverse else x
        if exclusive:
            index: list[Any] = [slice(None)] * len(x.shape)
            index[along] = slice(0, known_size(x, along) - 1)
            widths = [(int(i == along % len(x.shape)), 0) for i in range(len(x.shape))]
            x = np.pad(part(x, tuple(index)), widths, constant_values=first)
        found = cast(function(x, along), x.dtype)
        return np.flip(found, along) if reverse else found

    def CumSum(self, x: Array, axis: Array, exclusive: int = 0, reverse: int = 0) -> Any:
        return self._cumulated(np.cumsum, x, axis, exclusive, reverse, 0)

    def CumProd(self, x: Array, axis: Array, exclusive: int = 0, reverse: int = 0) -> Any:
        return self._cumulated(np.cumprod, x, axis, exclusive, reverse, 1)
