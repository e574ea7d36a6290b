"""Accurate sums of NumPy arrays over any axes of any layout.

`np.sum` adds pairwise only where the reduced axis is the innermost one in
memory; over other axes, such as axis 0 of a C-ordered matrix, it adds row
after row, and the error grows with their number. Here rows are added in blocks
of `BLOCK`, recursively, so that the error grows with the logarithm. The array is
read once and an eighth of it written, which is faster than `np.sum` for short
rows. Small float32 arrays are summed in float64, which is faster still.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from optree.arrays import Array, as_array

_add: Any = np.add.reduce

#: Rows of a block, which are added sequentially.
BLOCK = 8

#: Minimum elements of the rows that are added at a time.
WIDTH = 4096

#: Maximum elements of narrower dtypes that are summed in float64.
FEW = 16384


def accurate_sum(array: Array, axes: tuple[int, ...], keepdims: bool, dtype: np.dtype) -> Any:
    """The sum over axes, in the accumulator's dtype.

    `axes`: non-negative, in order.
    `dtype`: the accumulator's dtype, to which elements are cast.
    """
    array = as_array(array)
    if not isinstance(array, np.ndarray):  # a GPU's sums are tree reductions already
        return array.sum(axis=axes, dtype=dtype, keepdims=keepdims)
    count = prod([array.shape[i] for i in axes])
    if count <= BLOCK or dtype.kind != "f" or array.ndim == 1:
        return _add(array, axis=axes, dtype=dtype, keepdims=keepdims)
    if array.flags.c_contiguous and axes == tuple(range(axes[0], array.ndim)):  # one inner loop, which is pairwise
        return _add(array, axis=axes, dtype=dtype, keepdims=keepdims)
    if array.size <= FEW and dtype != np.float64:
        return _add(array, axis=axes, dtype=np.float64, keepdims=keepdims).astype(dtype)
    order = sorted(range(array.ndim), key=lambda i: -abs(array.strides[i]))
    total, outer = array.transpose(order), [i for i in order if i not in axes]
    inner, step = array.ndim, array.itemsize
    while inner and order[inner - 1] in axes and total.strides[inner - 1] == step:  # together one inner loop
        inner -= 1
        step *= total.shape[inner]
    if inner < array.ndim:
        total = _add(total, axis=tuple(range(inner, array.ndim)), dtype=dtype)
    for position in range(inner - 1, -1, -1):
        if order[position] in axes:
            total = _add_axis(total, position, dtype)
    if keepdims:
        return np.expand_dims(total.transpose(np.argsort(outer)), axes)
    return total.transpose(np.argsort(outer))


def _add_axis(array: np.ndarray, axis: int, dtype: np.dtype) -> np.ndarray:
    """The sum over one axis of an array whose axes are in the order of their strides."""
    others = [abs(s) for i, (s, n) in enumerate(zip(array.strides, array.shape, strict=True)) if i != axis and n > 1]
    if not others or 0 < abs(array.strides[axis]) < min(others):  # NumPy's inner loop is pairwise
        return _add(array, axis=axis, dtype=dtype)
    return _add_rows(array, axis, dtype)


def _add_rows(array: np.ndarray, axis: int, dtype: np.dtype) -> np.ndarray:
    """The sum over an axis by rows, in blocks."""
    before, count, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
    if count <= BLOCK:
        return _add(array, axis=axis, dtype=dtype)
    if array.size <= FEW and dtype != np.float64:
        return _add(array, axis=axis, dtype=np.float64).astype(dtype)
    side_by_side = max(1, min(count // BLOCK, WIDTH // max(1, prod(after))))
    blocks = count // (BLOCK * side_by_side)
    whole = blocks * BLOCK * side_by_side
    leading: Any = (slice(None),) * axis
    split = array[(*leading, slice(whole))].reshape(*before, blocks, BLOCK, side_by_side, *after)
    sums = _add(split, axis=axis + 1, dtype=dtype).reshape(*before, blocks * side_by_side, *after)
    total = _add_rows(sums, axis, dtype)
    if whole == count:
        return total
    return total + _add_rows(array[(*leading, slice(whole, None))], axis, dtype)
