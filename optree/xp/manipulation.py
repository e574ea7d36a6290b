"""The standard's manipulation, indexing, searching, sorting and set functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.errors import AxisError, OperandError, ShapeError
from optree.registry import NUMPY_FUNCTIONS, f
from optree.tree.types import Axis, normalise_axis
from optree.xp.array import Array, built, of, operand, viewed
from optree.xp.dtypes import result_type

# Shapes


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Arrays joined along an existing axis; flattened and joined, if that is None."""
    trees = _several(arrays, "concat")
    if axis is None:
        trees, axis = [f.ravel(x) for x in trees], 0
    return built(f.concatenate(trees, axis))


def _several(arrays: Sequence[Array], what: str) -> list[Any]:
    """The operands of arrays, in the dtype that they have together."""
    if isinstance(arrays, Array) or not arrays:
        raise OperandError(f"{what}: a list of arrays is wanted, of one at least")
    dtype = result_type(*(of(x, what) for x in arrays))
    return [x.tree if x.dtype == dtype else f.cast(x.tree, dtype) for x in arrays]


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """Arrays of one shape, joined along a new axis."""
    return built(f.stack(_several(arrays, "stack"), axis))


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The array split along an axis into views without that axis."""
    axis = normalise_axis(axis, of(x, "unstack").ndim, "unstack")
    return tuple(x[(slice(None),) * axis + (i,)] for i in range(x.shape[axis]))


def expand_dims(x: Array, /, axis: Axis = 0) -> Array:
    """A view with new axes of size 1 at the given positions."""
    return viewed(of(x, "expand_dims"), f.expand_dims(x.tree, axis))


def squeeze(x: Array, /, axis: Axis) -> Array:
    """A view without the given axes, whose sizes are 1."""
    return viewed(of(x, "squeeze"), f.squeeze(x.tree, axis))


def flip(x: Array, /, *, axis: Axis = None) -> Array:
    """A view with the elements in reverse order along axes, or along all of them."""
    return viewed(of(x, "flip"), f.flip(x.tree, axis))


def moveaxis(x: Array, source: object, destination: object, /) -> Array:
    """A view with axes moved to new positions."""
    return viewed(of(x, "moveaxis"), f.moveaxis(x.tree, source, destination))


def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    """A view with the axes permuted."""
    return viewed(of(x, "permute_dims"), f.transpose(x.tree, tuple(axes)))


def matrix_transpose(x: Array, /) -> Array:
    """A view with the last two axes transposed."""
    return of(x, "matrix_transpose").mT


def reshape(x: Array, /, shape: int | Sequence[int], *, copy: bool | None = None) -> Array:
    """The array in another shape, one size of which may be -1: a view where it can be, unless `copy`.

    Raises
    ------
    ValueError
        If the sizes do not fit, or it must be copied and `copy` is False.
    """
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    tree = f.reshape(of(x, "reshape").tree, sizes)
    if copy:
        return built(f.copy(tree))
    view = x.view_by(tree)
    if view is None and copy is False:
        raise ShapeError(f"reshape: the memory of an array of shape {x.shape} cannot be viewed as {sizes}")
    return built(tree) if view is None else view  # type: ignore[return-value]


def repeat(x: Array, repeats: object, /, *, axis: int | None = None) -> Array:
    """Each element repeated along an axis, by a number or by an array of counts; of the flattened array without axis.

    An array of them runs, because the shape depends on it.
    """
    x = of(x, "repeat")
    return built(f.repeat(x.tree, repeats.get() if isinstance(repeats, Array) else repeats, axis))


def roll(x: Array, /, shift: object, *, axis: Axis = None) -> Array:
    """The elements rolled along axes; in the flattened array, without axis."""
    return built(f.roll(of(x, "roll").tree, shift, axis))


def tile(x: Array, repetitions: Sequence[int], /) -> Array:
    """The array repeated along each axis."""
    return built(f.tile(of(x, "tile").tree, tuple(repetitions)))


def tril(x: Array, /, *, k: int = 0) -> Array:
    """The lower triangles of matrices, with zeros above the k-th diagonal."""
    return built(f.tril(_matrices(x, "tril"), k))


def triu(x: Array, /, *, k: int = 0) -> Array:
    """The upper triangles of matrices, with zeros below the k-th diagonal."""
    return built(f.triu(_matrices(x, "triu"), k))


def _matrices(x: Array, what: str) -> Any:
    if of(x, what).ndim < 2:
        raise ShapeError(f"{what}: matrices are wanted, not an array of shape {x.shape}")
    return x.tree


def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """Coordinate arrays from coordinate vectors."""
    return list(map(built, f.meshgrid(*(of(x, "meshgrid").tree for x in arrays), indexing=indexing)))


# Indices


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """The elements at indices along an axis; a vector needs no axis."""
    if axis is None and of(x, "take").ndim != 1:
        raise AxisError(f"take: an array of shape {x.shape} needs an axis")
    return built(f.take(of(x, "take").tree, operand(indices), -1 if axis is None else axis))


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """The elements at indices along an axis, with an index for each element of the result."""
    return built(f.take_along_axis(of(x, "take_along_axis").tree, operand(indices), axis))


# Searching


def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The index of the maximum along an axis, or in the flattened array."""
    return built(f.argmax(of(x, "argmax").tree, axis, keepdims))


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The index of the minimum along an axis, or in the flattened array."""
    return built(f.argmin(of(x, "argmin").tree, axis, keepdims))


def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The number of nonzero elements over axes."""
    return built(f.count_nonzero(of(x, "count_nonzero").tree, axis, keepdims))


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """The indices of the nonzero elements, an array for each axis. The array runs: its values determine the shape."""
    if not of(x, "nonzero").ndim:
        raise ShapeError("nonzero: an array with a dimension at least is wanted")
    count = int(f.count_nonzero(x.tensor, None, False).item())
    return tuple(map(built, f.nonzero(x.tensor, count)))


def searchsorted(x1: Array, x2: Any, /, *, side: str = "left", sorter: Array | None = None) -> Array:
    """The indices where a number or elements of x2 go into x1, a vector in ascending order, or that `sorter` sorts."""
    ordered = of(x1, "searchsorted").tree
    if sorter is not None:
        ordered = f.take(ordered, operand(sorter), -1)
    return built(f.searchsorted(ordered, operand(x2), side))


# Order


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The elements sorted along an axis; stable but for zeros of both signs in descending order."""
    found = f.sort(of(x, "sort").tree, axis)
    return built(f.flip(found, axis) if descending else found)


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The indices that sort an array along an axis, stable."""
    x = of(x, "argsort")
    if not descending:
        return built(f.argsort(x.tree, axis))
    size = x.shape[normalise_axis(axis, x.ndim, "argsort")]
    return built(size - 1 - f.flip(f.argsort(f.flip(x.tree, axis), axis), axis))


# Sets: for `unique` the arrays run, because the shapes depend on them


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Whether each element of x1, or with `invert` none, is among those of x2; one of the two may be a number."""
    if not isinstance(x1, Array):
        of(x2, "isin")
    return built(NUMPY_FUNCTIONS[np.isin](operand(x1), operand(x2), invert=invert))


def unique_all(x: Array, /) -> Any:
    """The distinct elements in ascending order, nans distinct from each other, with indices and counts.

    Returns
    -------
    values, indices, inverse_indices, counts : Array
        In a named tuple. NumPy finds them: the array goes to the host.
    """
    return _unique("unique_all", x)


def unique_counts(x: Array, /) -> Any:
    """The distinct elements in ascending order, nans distinct from each other, with counts: `values`, `counts`."""
    return _unique("unique_counts", x)


def unique_inverse(x: Array, /) -> Any:
    """The distinct elements in ascending order, with inverse indices, nans distinct: `values`, `inverse_indices`."""
    return _unique("unique_inverse", x)


def unique_values(x: Array, /) -> Array:
    """The distinct elements in ascending order, nans distinct from each other."""
    return unique_all(x).values


def _unique(name: str, x: Array) -> Any:
    """The named tuple that a function of NumPy's gives, of arrays."""
    found = getattr(np, name)(of(x, name).get())
    return type(found)(*map(x.device.xp.asarray, found))
