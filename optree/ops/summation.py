"""Accurate sums of NumPy arrays over any axes of any layout.

`np.sum` adds pairwise only where the reduced axis is the innermost one in
memory; over other axes, such as axis 0 of a C-ordered matrix, it adds row
after row, and the error grows with their number. Here rows are added in blocks
of `BLOCK`, recursively, and the last ones by halves, so that the error
grows with the logarithm. The array is read once and an eighth of it written, which is faster
than `np.sum` for short rows. Small float32 arrays are summed in float64, which
is faster still.
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

#: Maximum rows that are added by halves.
HALVED = 64

#: Maximum elements of narrower dtypes that are summed in float64.
FEW = 16384


def accurate_sum(array: Array, axes: tuple[int, ...], keepdims: bool, dtype: np.dtype) -> Any:
    """The sum over axes, in the accumulator's dtype.

    Parameters
    ----------
    array : array_like
    axes : tuple of int
        Non-negative, in order.
    keepdims : bool
    dtype : numpy.dtype
        The accumulator's dtype, to which elements are cast.
    """
    array = as_array(array)
    if not isinstance(array, np.ndarray):  # a GPU's sums are tree reductions already
        return array.sum(axis=axes, dtype=dtype, keepdims=keepdims)
    count = prod([array.shape[i] for i in axes])
    if count <= BLOCK or dtype.kind != "f" or array.ndim == 1:
        return _add(array, axis=axes, dtype=dtype, keepdims=keepdims)
    together = array.flags.c_contiguous and axes[-1] - axes[0] == len(axes) - 1
    if together and axes[-1] == array.ndim - 1:
        return _add(array, axis=axes, dtype=dtype, keepdims=keepdims)
    if array.size <= FEW and dtype != np.float64:
        return _add(array, axis=axes, dtype=np.float64, keepdims=keepdims).astype(dtype)
    if together:
        before, after = array.shape[: axes[0]], array.shape[axes[-1] + 1 :]
        total = _add_rows(array.reshape(prod(before), count, prod(after)), 1, dtype)
    else:
        total = _add_any(array, axes, dtype)
    return total.reshape([1 if i in axes else n for i, n in enumerate(array.shape) if keepdims or i not in axes])


def _add_any(array: np.ndarray, axes: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The sum over axes of any layout, by runs of axes, the innermost first."""
    order = sorted(range(array.ndim), key=lambda i: -abs(array.strides[i]))
    outer = [i for i in order if i not in axes]
    runs = _runs(array, order, axes)
    merged = array.transpose(order).reshape([prod(array.shape[i] for i in run) for run in runs])
    for axis in range(len(runs) - 1, -1, -1):
        if runs[axis][0] in axes:
            merged = _add_axis(merged, axis, dtype)
    return merged.reshape([array.shape[i] for i in outer]).transpose(np.argsort(outer))


def _runs(array: np.ndarray, order: list[int], axes: tuple[int, ...]) -> list[list[int]]:
    """The axes from the outermost in, grouped if contiguous together, and all reduced or all not."""
    runs: list[list[int]] = []
    for i in order:
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and (last in axes) == (i in axes)
            and (array.strides[last] == array.strides[i] * array.shape[i])
        ):
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def _add_axis(array: np.ndarray, axis: int, dtype: np.dtype) -> np.ndarray:
    """The sum over one axis of an array whose axes are in the order of their strides."""
    others = [abs(s) for i, (s, n) in enumerate(zip(array.strides, array.shape, strict=True)) if i != axis and n > 1]
    if not others or 0 < abs(array.strides[axis]) < min(others):  # NumPy's inner loop is pairwise
        return _add(array, axis=axis, dtype=dtype)
    return _add_rows(array, axis, dtype)


def _add_rows(array: np.ndarray, axis: int, dtype: np.dtype) -> np.ndarray:
    """The sum over an axis by rows: in blocks, then by halves."""
    before, count, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
    if count <= BLOCK:
        return _add(array, axis=axis, dtype=dtype)
    if array.size <= FEW and dtype != np.float64:
        return _add(array, axis=axis, dtype=np.float64).astype(dtype)
    if count <= HALVED and array.dtype == dtype:
        return _add_halves(array, axis)
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


def _add_halves(array: np.ndarray, axis: int) -> np.ndarray:
    """The sum over an axis, one half added to the other until one row is left."""
    leading: Any = (slice(None),) * axis
    rest = None
    while (count := array.shape[axis]) > 1:
        if count % 2:
            last = array[(*leading, count - 1)]
            rest = last if rest is None else rest + last
        half = count // 2
        array = array[(*leading, slice(half))] + array[(*leading, slice(half, 2 * half))]
    total = array[(*leading, 0)]
    return total if rest is None else total + rest
