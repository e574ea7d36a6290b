"""Diagonals, triangles, rotations, splits and grids, composed of other ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from optree.errors import AxisError, OperandError, ShapeError, brief, clock, describe
from optree.op.batching import batched_trees, spread
from optree.ops.indexing import rows_and_columns
from optree.ops.shape import sizes_for_reshape, sizes_of, slice_along, strong
from optree.registry import NUMPY_FUNCTIONS, f, function, numpy_function
from optree.tree.types import Axis, Spec, TensorType, broadcast, integer_of, normalise_axis
from optree.tree.variable import Input, Operand, Variable, in_dtype, variable_of


def zero_of(x: Variable) -> Any:
    """A weak zero, which keeps an operand's dtype."""
    return False if x.dtype.kind == "b" else 0


# Diagonals and triangles


def _triangle(x: Any, k: Any, what: str, lower: bool) -> Any:
    x, k = variable_of(x, what), integer_of(k, f"{what}: k")
    if x.ndim < 2:
        if not x.ndim:
            raise ShapeError(f"{what}: {describe(x)} has no axis, and no triangle")
        x = f.broadcast_like(x, f.expand_dims(x, 0) * f.expand_dims(x, 1))  # as NumPy, each row is the vector
    rows, columns = rows_and_columns(x)
    return f.where(columns - rows <= k if lower else columns - rows >= k, x, zero_of(x))


@function(numpy=np.tril)
def tril(x: Operand, k: int = 0) -> Any:
    """The lower triangle of matrices: zeros above the k-th diagonal; k > 0 is above the main one.

    Examples
    --------
    >>> be.tril(be.ones((2, 2))).get()
    array([[1., 0.],
           [1., 1.]], dtype=float32)
    """
    return _triangle(x, k, "tril", lower=True)


@function(numpy=np.triu)
def triu(x: Operand, k: int = 0) -> Any:
    """The upper triangle of matrices: zeros below the k-th diagonal; k > 0 is above the main one.

    Examples
    --------
    >>> be.triu(be.ones((2, 2)), k=1).get()
    array([[0., 1.],
           [0., 0.]], dtype=float32)
    """
    return _triangle(x, k, "triu", lower=False)


@function(numpy=np.diagonal)
def diagonal(x: Operand, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The diagonals ``x[i, i + offset]`` along two axes, as the last axis.

    Examples
    --------
    >>> be.diagonal(be.array([[1.0, 2.0], [3.0, 4.0]])).get()
    array([1., 4.], dtype=float32)
    """
    x, offset = variable_of(x, "diagonal"), integer_of(offset, "diagonal: offset")
    if x.ndim < 2:
        raise ShapeError(f"diagonal: two axes are wanted; {describe(x)} has {x.ndim}; diag makes a matrix of a vector")
    first, second = (normalise_axis(axis, x.ndim, "diagonal") for axis in (axis1, axis2))
    if first == second:
        raise AxisError(f"diagonal: axis1 and axis2 are two axes, not {axis1} and {axis2}")
    moved = x if (first, second) == (x.ndim - 2, x.ndim - 1) else f.moveaxis(x, (first, second), (-2, -1))
    rows, columns = moved.shape[-2:]
    if rows is None or columns is None:
        raise ShapeError(f"diagonal: the sizes of the axes {axis1} and {axis2} of {describe(x)} must be known")
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    start = offset if offset >= 0 else -offset * columns
    if not count:
        return f.slice(moved, (Ellipsis, 0, slice(0, 0))) if rows else f.slice(moved, (Ellipsis, slice(0, 0), 0))
    flat = f.reshape(moved, sizes_for_reshape((*moved.shape[:-2], rows * columns), x, "diagonal"))
    return f.slice(flat, (Ellipsis, slice(start, start + (count - 1) * (columns + 1) + 1, columns + 1)))


@function(numpy=np.diag)
def diag(x: Operand, k: int = 0) -> Any:
    """The k-th diagonal of a matrix; for a vector, the matrix with this k-th diagonal.

    Examples
    --------
    >>> be.diag(be.array([1.0, 2.0])).get()
    array([[1., 0.],
           [0., 2.]], dtype=float32)
    """
    x, k = variable_of(x, "diag"), integer_of(k, "diag: k")
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ShapeError(f"diag: {describe(x)} is neither a vector nor a matrix; diagonal takes more axes")
    index = f.flat_indices(x)
    matrix = f.where(f.eq(f.expand_dims(index, 1), f.expand_dims(index, 0)), f.expand_dims(x, 1), zero_of(x))
    return f.pad(matrix, ((max(-k, 0), max(k, 0)), (max(k, 0), max(-k, 0)))) if k else matrix


@function(numpy=np.diagflat)
def diagflat(x: Operand, k: int = 0) -> Any:
    """The matrix with all elements, flattened, as its k-th diagonal.

    Examples
    --------
    >>> be.diagflat(be.array([1.0, 2.0]), k=1).shape
    (3, 3)
    """
    return diag(f.ravel(variable_of(x, "diagflat")), k)


@function(numpy=np.trace)
def trace(x: Operand, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The sum of a diagonal (`diagonal`).

    Examples
    --------
    >>> be.trace(be.array([[1.0, 2.0], [3.0, 4.0]])).item()
    5.0
    """
    return f.sum(diagonal(x, offset, axis1, axis2), axis=-1, keepdims=False)


# Rotations


@function(numpy=np.fliplr)
def fliplr(x: Operand) -> Any:
    """The operand reversed along its second axis.

    Examples
    --------
    >>> be.fliplr(be.array([[1.0, 2.0]])).get()
    array([[2., 1.]], dtype=float32)
    """
    x = variable_of(x, "fliplr")
    if x.ndim < 2:
        raise ShapeError(f"fliplr: two axes are wanted, and {describe(x)} has {x.ndim}")
    return f.flip(x, 1)


@function(numpy=np.flipud)
def flipud(x: Operand) -> Any:
    """The operand reversed along its first axis.

    Examples
    --------
    >>> be.flipud(be.array([[1.0], [2.0]])).get()
    array([[2.],
           [1.]], dtype=float32)
    """
    x = variable_of(x, "flipud")
    if x.ndim < 1:
        raise ShapeError(f"flipud: an axis is wanted, and {describe(x)} has none")
    return f.flip(x, 0)


@function(numpy=np.rot90)
def rot90(x: Operand, k: int = 1, axes: Sequence[int] = (0, 1)) -> Any:
    """The operand rotated k times by 90 degrees, from the first of two axes towards the second.

    Examples
    --------
    >>> be.rot90(be.array([[1.0, 2.0], [3.0, 4.0]])).get()
    array([[2., 4.],
           [1., 3.]], dtype=float32)
    """
    x, turns = variable_of(x, "rot90"), integer_of(k, "rot90: k") % 4
    plane = [normalise_axis(axis, x.ndim, "rot90") for axis in axes]
    if len(plane) != 2 or plane[0] == plane[1]:
        raise AxisError(f"rot90: axes are two axes, not {axes!r}")
    first, second = plane
    if turns == 0:
        return f.slice(x, Ellipsis)
    if turns == 2:
        return f.flip(x, tuple(plane))
    turned = f.swapaxes(x, first, second)
    return f.flip(turned, first if turns == 1 else second)


def _shifted(x: Variable, axes: Axis, what: str, forward: bool) -> Any:
    """The operand rolled along axes by half their size, which moves frequency 0 to the middle, or back."""
    x = variable_of(x, what)
    axes = range(x.ndim) if axes is None else axes if isinstance(axes, tuple | list) else (axes,)
    for axis in axes:
        size = x.shape[normalise_axis(axis, x.ndim, what)]
        x = f.roll(x, (size or 0) // 2 if forward else -((size or 0) // 2), axis)
    return x


@numpy_function(np.lib.stride_tricks.sliding_window_view)
def _sliding_window_view(x: Any, window_shape: object, axis: Axis = None) -> Any:
    """All windows of a shape along axes, as further axes."""
    x = variable_of(x, "sliding_window_view")
    widths = sizes_of(window_shape, "sliding_window_view")
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple | list) else (axis,)
    if len(widths) != len(axes):
        raise ShapeError(f"sliding_window_view: {len(widths)} widths are given for {len(axes)} axes of {describe(x)}")
    ndim = x.ndim
    for each, width in zip(axes, widths, strict=True):
        along = normalise_axis(each, ndim, "sliding_window_view")
        size = x.shape[along]
        if size is None or not 0 < width <= size:
            raise ShapeError(f"sliding_window_view: axis {each} of {describe(x)} has no windows of {width} elements")
        x = f.windows(x, width, 1, axes=along)
    return x


# Splits


@function(numpy=np.array_split)
def array_split(x: Operand, indices_or_sections: int | Sequence[int] | np.ndarray, axis: int = 0) -> list[Any]:
    """Split the operand along an axis into a number of nearly equal parts, or at indices.

    Examples
    --------
    >>> [part.shape for part in be.array_split(be.ones(5), 2)]
    [(3,), (2,)]
    """
    return _parts(variable_of(x, "array_split"), indices_or_sections, axis, "array_split")


@function(numpy=np.split)
def split(x: Operand, indices_or_sections: int | Sequence[int] | np.ndarray, axis: int = 0) -> list[Any]:
    """Split the operand along an axis into a number of equal parts, or at indices.

    Examples
    --------
    >>> [part.shape for part in be.split(be.ones((4, 2)), 2)]
    [(2, 2), (2, 2)]
    """
    x = variable_of(x, "split")
    if not np.ndim(indices_or_sections):
        size, count = x.shape[normalise_axis(axis, x.ndim, "split")], integer_of(indices_or_sections, "split: sections")
        if size is not None and count > 0 and size % count:
            raise ShapeError(
                f"split: axis {axis} of {describe(x)} is no multiple of {count}; array_split makes unequal parts"
            )
    return _parts(x, indices_or_sections, axis, "split")


def _parts(x: Variable, indices_or_sections: Any, axis: Axis, what: str) -> list[Any]:
    axis = normalise_axis(axis, x.ndim, what)
    if np.ndim(indices_or_sections):
        inner: Sequence[int] = sizes_of(list(indices_or_sections), what)
    else:
        count, size = integer_of(indices_or_sections, f"{what}: the number of sections"), x.shape[axis]
        if count < 1:
            raise ShapeError(f"{what}: there is one part or more, not {count}")
        if size is None:
            raise ShapeError(
                f"{what}: axis {axis} of {describe(x)} is of open size; give the indices between the parts"
            )
        each, extra = divmod(size, count)
        inner = [i * each + min(i, extra) for i in range(1, count)]
    ends = [0, *inner, None]
    return [slice_along(x, axis, start, stop) for start, stop in pairwise(ends)]


@function(numpy=np.hsplit)
def hsplit(x: Operand, indices_or_sections: int | Sequence[int] | np.ndarray) -> list[Any]:
    """Split horizontally: `split` along the second axis, of a vector along its only one.

    Examples
    --------
    >>> [part.shape for part in be.hsplit(be.ones((2, 4)), 2)]
    [(2, 2), (2, 2)]
    """
    return split(x, indices_or_sections, 0 if variable_of(x, "hsplit").ndim == 1 else 1)


@function(numpy=np.vsplit)
def vsplit(x: Operand, indices_or_sections: int | Sequence[int] | np.ndarray) -> list[Any]:
    """Split vertically: `split` along the first of two axes or more.

    Examples
    --------
    >>> [part.shape for part in be.vsplit(be.ones((4, 2)), [1])]
    [(1, 2), (3, 2)]
    """
    x = variable_of(x, "vsplit")
    if x.ndim < 2:
        raise ShapeError(f"vsplit: two axes are wanted, and {describe(x)} has {x.ndim}; split takes one")
    return split(x, indices_or_sections, 0)


@function(numpy=np.dsplit)
def dsplit(x: Operand, indices_or_sections: int | Sequence[int] | np.ndarray) -> list[Any]:
    """Split in depth: `split` along the third axis.

    Examples
    --------
    >>> [part.shape for part in be.dsplit(be.ones((2, 2, 4)), 2)]
    [(2, 2, 2), (2, 2, 2)]
    """
    return split(x, indices_or_sections, 2)


@function(numpy=np.unstack)
def unstack(x: Operand, axis: int = 0) -> tuple[Any, ...]:
    """The parts of the operand at each index along an axis, without that axis.

    Examples
    --------
    >>> [part.shape for part in be.unstack(be.ones((2, 3)))]
    [(3,), (3,)]
    """
    x = variable_of(x, "unstack")
    axis = normalise_axis(axis, x.ndim, "unstack")
    size = x.shape[axis]
    if size is None:
        raise ShapeError(f"unstack: the size of axis {axis} of {describe(x)} must be known")
    return tuple(f.slice(x, (*(slice(None),) * axis, i)) for i in range(size))


# Deletions and insertions at indices that are known when the tree is built


def _along(x: Operand, axis: Axis, obj: object, what: str) -> tuple[Variable, int, int]:
    """An operand, flattened without an axis, the axis, and its size; the indices along it are no tensor."""
    if isinstance(obj, Variable):
        raise OperandError(
            f"{what}: the indices {describe(obj)} are known only when the tree runs; give {obj.label}.get(), or numbers"
        )
    if isinstance(obj, bool | np.bool_):
        raise OperandError(f"{what}: an index is an integer, or a mask of one axis, not {obj!r}")
    x = variable_of(x, what)
    x, axis = (f.ravel(x), 0) if axis is None else (x, normalise_axis(axis, x.ndim, what))
    size = x.shape[axis]
    if size is None:
        raise ShapeError(f"{what}: the size of axis {axis} of {describe(x)} must be known")
    return x, axis, size


def _order(by_numpy: Callable[..., Any], *given: object, x: Variable, axis: int, what: str) -> Any:
    """The indices that NumPy's function makes of those along an axis; AxisError if one is out of range."""
    try:
        return by_numpy(*given)
    except IndexError as error:
        raise AxisError(f"{what}: {error}, in axis {axis} of {describe(x)}") from None
    except ValueError as error:
        raise OperandError(f"{what}: {error}, for axis {axis} of {describe(x)}") from None


#: The most runs that are joined, where take is slower.
FEW_RUNS = 16


def rearranged(parts: Sequence[Variable], order: np.ndarray, axis: int, size: int) -> Any:
    """The elements of one or two arrays at indices along an axis; those of the second follow the first's, of `size`."""
    runs = _runs_of(order, size)
    if not runs or not size:
        return f.take(f.concatenate(parts, axis) if len(parts) > 1 else parts[0], order, axis)
    found = []
    for first, step, count in runs:
        part, first = (parts[0], first) if first < size else (parts[1], first - size)
        if step == 0:
            found.append(f.repeat(slice_along(part, axis, first, first + 1), count, axis))
            continue
        start = first if step > 0 else first - count + 1
        piece = part if count == part.shape[axis] else slice_along(part, axis, start, start + count)
        found.append(piece if step > 0 else f.flip(piece, axis))
    return f.concatenate(found, axis) if len(found) > 1 else f.copy(found[0])


def _runs_of(order: np.ndarray, size: int) -> list[tuple[int, int, int]]:
    """The runs of indices that rise or fall by 1, or repeat: the first, the step and the count; none if they are many.

    None has indices below a size and others.
    """
    steps, start, found = np.diff(order), 0, list[tuple[int, int, int]]()
    while start < order.size:
        if len(found) == FEW_RUNS:
            return []
        first, step = int(order[start]), int(steps[start]) if start < steps.size else 1
        step, others = (step, np.flatnonzero(steps[start:] != step)) if abs(step) <= 1 else (1, [0])
        count = int(others[0]) + 1 if len(others) else order.size - start
        if step > 0 and first < size:
            count = min(count, size - first)
        elif step < 0 and first >= size:
            count = min(count, first - size + 1)
        found.append((first, step, count))
        start += count
    return found


@function(numpy=np.delete)
def delete(x: Operand, obj: int | slice | Sequence[int] | np.ndarray, axis: Axis = None) -> Any:
    """The operand without the elements at indices along an axis; of the flattened operand without one.

    The indices are known when the tree is built: an integer, a slice, a sequence of integers, or a mask.

    Examples
    --------
    >>> be.delete(be.array([1.0, 2.0, 3.0]), 1).get()
    array([1., 3.], dtype=float32)
    """
    x, axis, size = _along(x, axis, obj, "delete")
    return rearranged([x], _order(np.delete, np.arange(size), obj, x=x, axis=axis, what="delete"), axis, size)


@function(numpy=np.insert)
def insert(x: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    """The operand with values, cast to its dtype, before indices along an axis; flattened without one.

    The indices are known when the tree is built: an integer, a slice, a sequence of integers, or a mask.

    Examples
    --------
    >>> be.insert(be.array([1.0, 3.0]), 1, 2.0).get()
    array([1., 2., 3.], dtype=float32)
    """
    x, axis, size = _along(x, axis, obj, "insert")
    given = strong(values, "insert")
    if given.ndim > x.ndim:
        raise ShapeError(f"insert: the values {describe(given)} have more axes than {describe(x)}")
    # Numbers and NumPy's arrays are arranged here, by the same functions, and not in each run.
    values = in_dtype(given, x.dtype) if isinstance(values, Variable) else np.asarray(values).astype(x.dtype)
    indices = np.arange(size)[obj] if isinstance(obj, slice) else np.asarray(obj)
    count = np.count_nonzero(indices) if indices.dtype == bool else indices.size
    if indices.dtype.kind in "iu" and ((indices < -size) | (indices > size)).any():
        raise AxisError(f"insert: {brief(obj)} is out of range for axis {axis} of {describe(x)}")
    values = np.expand_dims(values, tuple(range(x.ndim - values.ndim)))
    if count == 1:  # as in NumPy, all of the values go there, and to a lone index those of the first axis
        values = values if indices.ndim else np.moveaxis(values, 0, axis)
        count = values.shape[axis]
    if None in (*x.shape, count):
        raise ShapeError(f"insert: the sizes of {describe(x)} and of the values {describe(values)} must be known")
    wanted = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    if not all(m in (1, n) for m, n in zip(values.shape, wanted, strict=True)):
        raise ShapeError(
            f"insert: the values {describe(given)} do not broadcast to {wanted}, their places in {describe(x)}"
        )
    values = np.broadcast_to(values, wanted)
    places = np.arange(size, size + count)
    order = _order(np.insert, np.arange(size), obj, places, x=x, axis=axis, what="insert")
    return rearranged([x, values], order, axis, size)


# Grids


@function()
def broadcast_arrays(*operands: Operand) -> tuple[Any, ...]:
    """The operands, each broadcast to the shape of all.

    Examples
    --------
    >>> [x.shape for x in be.broadcast_arrays(be.ones((2, 1)), be.ones(3))]
    [(2, 3), (2, 3)]
    """
    found = [variable_of(x, "broadcast_arrays") for x in operands]
    if all(None not in x.shape for x in found):
        sizes = broadcast(*(x.shape for x in found))
        return tuple(f.broadcast_to(x, sizes) for x in found)
    like = f.flat_indices(found[0])  # only the sum's shape is used, so it is never computed
    for x in found[1:]:
        like = like + f.flat_indices(x)
    return tuple(f.broadcast_like(x, like) for x in found)


@function()
def meshgrid(*xi: Operand, indexing: str = "xy", sparse: bool = False) -> list[Any]:
    """Coordinate matrices from coordinate vectors, broadcast to one shape unless `sparse`.

    With ``indexing="xy"`` the second vector varies along the first axis, and the first along
    the second; with ``"ij"`` they are in order.

    Examples
    --------
    >>> [x.shape for x in be.meshgrid(be.ones(2), be.ones(3))]
    [(3, 2), (3, 2)]
    """
    if indexing not in ("xy", "ij"):
        raise OperandError(f"meshgrid: indexing is 'xy' or 'ij', not {indexing!r}")
    vectors = [f.ravel(variable_of(x, "meshgrid")) for x in xi]
    order = list(range(len(vectors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    spread = [
        f.expand_dims(x, tuple(j for j in range(len(order)) if j != order[i])) if len(order) > 1 else x
        for i, x in enumerate(vectors)
    ]
    return spread if sparse or len(spread) < 2 else list(broadcast_arrays(*spread))


# Functions of vectors


@numpy_function(np.apply_along_axis)
def _apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Operand, args: tuple[Any, ...] = ()) -> Any:
    """A function of vectors, traced once and applied to all vectors along an axis together."""
    x = variable_of(arr, "apply_along_axis")
    axis = normalise_axis(axis, x.ndim, "apply_along_axis")
    if x.ndim == 1:
        return variable_of(func1d(x, *args), "apply_along_axis")
    moved = f.moveaxis(x, axis, -1)
    rows = f.reshape(moved, sizes_for_reshape((math.prod(moved.shape[:-1]), moved.shape[-1]), x, "apply_along_axis"))
    row = Input(TensorType(x.dtype, rows.shape[1:]), "row")
    row.spec = Spec(row.type, x.backend)
    clock[0] += 1  # nodes built from here on, random draws too, are each row's own
    value = variable_of(func1d(row, *args), "apply_along_axis")
    ((found, is_batched),) = batched_trees([value], {row: rows}, clock[0])
    found = f.reshape(found if is_batched else spread(found, rows), (*moved.shape[:-1], *value.shape))
    last = range(x.ndim - 1, x.ndim - 1 + value.ndim)
    return f.moveaxis(found, tuple(last), tuple(range(axis, axis + value.ndim))) if value.ndim else found


NUMPY_FUNCTIONS[np.fft.fftshift] = lambda x, axes=None: _shifted(x, axes, "fftshift", forward=True)
NUMPY_FUNCTIONS[np.fft.ifftshift] = lambda x, axes=None: _shifted(x, axes, "ifftshift", forward=False)
NUMPY_FUNCTIONS[np.broadcast_arrays] = lambda args: broadcast_arrays(*args)
# Trees are never writable views, so that `copy` does not matter.
NUMPY_FUNCTIONS[np.meshgrid] = lambda xi, copy=True, sparse=False, indexing="xy": meshgrid(
    *xi, indexing=indexing, sparse=sparse
)
