"""Quantised operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from optree.arrays import Array
from optree.errors import ModelError
from optree.onnx.values import Operators, cast, dtype_of
from optree.onnx.windows import Windows


class Quantisation(Operators):
    """Operators on integers that stand for floats: (x - zero) * scale."""

    def DequantizeLinear(
        self,
        x: Array,
        scale: Array,
        zero: Array | None = None,
        axis: int = 1,
        block_size: int = 0,
        output_dtype: int = 0,
    ) -> Any:
        dtype = dtype_of(output_dtype) if output_dtype else scale.dtype
        scale, zero = (_along(y, x, axis, block_size) for y in (scale, zero))
        found = cast(x, dtype) if zero is None else cast(x, dtype) - cast(zero, dtype)
        return found * cast(scale, dtype)

    def QuantizeLinear(
        self,
        x: Array,
        scale: Array,
        zero: Array | None = None,
        axis: int = 1,
        block_size: int = 0,
        output_dtype: int = 0,
        precision: int = 0,
        saturate: int = 1,
    ) -> Any:
        dtype = dtype_of(output_dtype) if output_dtype else np.dtype("uint8") if zero is None else zero.dtype
        if dtype.kind not in "iu":
            raise ModelError(f"quantising to {dtype} is not computed")
        scale, zero = (_along(y, x, axis, block_size) for y in (scale, zero))
        return _quantised(cast(x, np.float32) / cast(scale, np.float32), zero, dtype)

    def MatMulInteger(self, x: Array, y: Array, x_zero: Array | None = None, y_zero: Array | None = None) -> Any:
        x, y = _centred(x, x_zero, -2), _centred(y, y_zero, -1)
        return np.matmul(x, y)

    def ConvInteger(
        self, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None, **options: Any
    ) -> Any:
        found = Windows(self.version).Conv(_exact(x, x_zero), _exact(w, w_zero, len(w.shape)), **options)
        return cast(found, np.int32)

    def QLinearMatMul(
        self,
        x: Array,
        x_scale: Array,
        x_zero: Array,
        y: Array,
        y_scale: Array,
        y_zero: Array,
        scale: Array,
        zero: Array,
    ) -> Any:
        found = cast(self.MatMulInteger(x, y, x_zero, y_zero), np.float32)
        factor = cast(_end(x_scale, -2), np.float32) * cast(_end(y_scale, -1), np.float32) / cast(scale, np.float32)
        return _quantised(found * factor, zero, zero.dtype)

    def QLinearConv(
        self,
        x: Array,
        x_scale: Array,
        x_zero: Array,
        w: Array,
        w_scale: Array,
        w_zero: Array,
        scale: Array,
        zero: Array,
        b: Array | None = None,
        **options: Any,
    ) -> Any:
        bias = None if b is None else cast(b, np.float64)
        found = Windows(self.version).Conv(_exact(x, x_zero), _exact(w, w_zero, len(w.shape)), bias, **options)
        factor = np.reshape(x_scale * w_scale / scale, (-1, *[1] * (len(x.shape) - 2)))
        return _quantised(cast(found, np.float32) * cast(factor, np.float32), zero, zero.dtype)


def _quantised(x: Array, zero: Array | None, dtype: np.dtype) -> Any:
    """Quotients, rounded, moved by the zero point, and saturated."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    found = np.rint(x) if zero is None else np.rint(x) + cast(zero, np.float32)
    return cast(np.minimum(np.maximum(found, np.float32(least)), np.float32(most)), dtype)


def _along(y: Array | None, x: Array, axis: int, block: int) -> Any:
    """A scale or zero point for each element along an axis of x, or for each block of elements."""
    if y is None or len(y.shape) == 0 or tuple(y.shape) == (1,):
        return y
    if block:
        return np.repeat(y, block, axis)
    return np.reshape(y, (-1, *[1] * (len(x.shape) - 1 - axis % len(x.shape))))


def _end(y: Array, axis: int) -> Any:
    """Scales of rows (-2) or columns (-1)."""
    return np.reshape(y, (-1, 1)) if axis == -2 and len(y.shape) == 1 else y


def _centred(x: Array, zero: Array | None, axis: int) -> Any:
    """Integers less their zero point."""
    x = cast(x, np.int32)
    return x if zero is None else x - cast(_end(zero, axis), np.int32)


def _exact(x: Array, zero: Array | None, ndim: int = 0) -> Any:
    """Integers less their zero point, as floats in which sums of products are exact."""
    if zero is not None and ndim and len(zero.shape) == 1:
        zero = np.reshape(zero, (-1, *[1] * (ndim - 1)))
    return cast(x, np.float64) if zero is None else cast(x, np.float64) - cast(zero, np.float64)
