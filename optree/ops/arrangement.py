"""Diagonals, triangles, quarter turns, splits and grids, composed of slices, reshapes and choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.errors import AxisError, OperandError, ShapeError, describe
from optree.ops.shape import sizes_of
from optree.registry import NUMPY_FUNCTIONS, f, function
from optree.tree.types import normalise_axis
from optree.tree.variable import Variable, as_operand, as_variable


def variable_of(x: Any, what: str) -> Variable:
    """An operand as a variable; `what` names the function that it is given to."""
    return as_variable(as_operand(x, what))


def zero_of(x: Variable) -> Any:
    """The zero that leaves an operand's dtype as it is."""
    return False if x.dtype.kind == "b" else 0


def integer_of(value: Any, what: str) -> int:
    """An integer that a user gave; `what` names the parameter.

    Raises
    ------
    OperandError
        If it is none.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or np.ndim(value):
        raise OperandError(f"{what} is an integer, not {value!r}")
    return int(value.__index__())


# Diagonals and triangles


def _rows_and_columns(x: Variable) -> tuple[Variable, Variable]:
    """The row and the column of each element of matrices, in shapes that broadcast to theirs."""
    lead = (slice(0, 1),) * (x.ndim - 2)
    return f.places(f.slice(x, (*lead, slice(None), slice(0, 1)))), f.places(f.slice(x, (*lead, slice(0, 1))))


def _triangle(x: Any, k: Any, what: str, lower: bool) -> Any:
    x, k = variable_of(x, what), integer_of(k, f"{what}: k")
    if x.ndim < 2:
        if not x.ndim:
            raise ShapeError(f"{what}: {describe(x)} has no axis, and no triangle")
        x = f.broadcast_like(x, f.expand_dims(x, 0) * f.expand_dims(x, 1))  # NumPy's, of each row the vector
    rows, columns = _rows_and_columns(x)
    return f.where(columns - rows <= k if lower else columns - rows >= k, x, zero_of(x))


@function(numpy=np.tril)
def tril(x: Any, k: int = 0) -> Any:
    """Matrices with zeros above the k-th diagonal, which for a positive k is right of the main one."""
    return _triangle(x, k, "tril", lower=True)


@function(numpy=np.triu)
def triu(x: Any, k: int = 0) -> Any:
    """Matrices with zeros below the k-th diagonal, which for a positive k is right of the main one."""
    return _triangle(x, k, "triu", lower=False)


@function(numpy=np.diagonal)
def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements whose index along `axis2` is `offset` more than that along `axis1`, as a last axis."""
    x, offset = variable_of(x, "diagonal"), integer_of(offset, "diagonal: offset")
    if x.ndim < 2:
        raise ShapeError(f"diagonal: two axes are wanted; {describe(x)} has {x.ndim}; diag makes a matrix of a vector")
    first, second = (normalise_axis(axis, x.ndim, "diagonal") for axis in (axis1, axis2))
    if first == second:
        raise AxisError(f"diagonal: axis1 and axis2 are two axes, not {axis1} and {axis2}")
    moved = f.moveaxis(x, (first, second), (-2, -1))
    rows, columns = moved.shape[-2:]
    if rows is None or columns is None:
        raise ShapeError(f"diagonal: the sizes of the axes {axis1} and {axis2} of {describe(x)} must be known")
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    start = offset if offset >= 0 else -offset * columns
    if not count:
        return f.slice(moved, (Ellipsis, 0, slice(0, 0))) if rows else f.slice(moved, (Ellipsis, slice(0, 0), 0))
    flat = f.reshape(moved, _sizes((*moved.shape[:-2], rows * columns), x, "diagonal"))
    return f.slice(flat, (Ellipsis, slice(start, start + (count - 1) * (columns + 1) + 1, columns + 1)))


def _sizes(sizes: Sequence[int | None], x: Variable, what: str) -> tuple[int, ...]:
    """A shape for `reshape`, of which one size may be open."""
    if sum(n is None for n in sizes) > 1:
        raise ShapeError(f"{what}: of {describe(x)} more than one size is open; a function's input may name the others")
    return tuple(-1 if n is None else n for n in sizes)


@function(numpy=np.diag)
def diag(x: Any, k: int = 0) -> Any:
    """The k-th diagonal of a matrix; of a vector, the matrix that has it there, and zeros elsewhere."""
    x, k = variable_of(x, "diag"), integer_of(k, "diag: k")
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ShapeError(f"diag: {describe(x)} is neither a vector nor a matrix; diagonal takes more axes")
    place = f.places(x)
    matrix = f.where(f.eq(f.expand_dims(place, 1), f.expand_dims(place, 0)), f.expand_dims(x, 1), zero_of(x))
    return f.pad(matrix, ((max(-k, 0), max(k, 0)), (max(k, 0), max(-k, 0)))) if k else matrix


@function(numpy=np.trace)
def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The sum of a diagonal (`diagonal`)."""
    return f.sum(diagonal(x, offset, axis1, axis2), axis=-1, keepdims=False)


# Turns


@function(numpy=np.fliplr)
def fliplr(x: Any) -> Any:
    """The operand with its second axis in reverse order."""
    x = variable_of(x, "fliplr")
    if x.ndim < 2:
        raise ShapeError(f"fliplr: two axes are wanted, and {describe(x)} has {x.ndim}")
    return f.flip(x, 1)


@function(numpy=np.flipud)
def flipud(x: Any) -> Any:
    """The operand with its first axis in reverse order."""
    x = variable_of(x, "flipud")
    if x.ndim < 1:
        raise ShapeError(f"flipud: an axis is wanted, and {describe(x)} has none")
    return f.flip(x, 0)


@function(numpy=np.rot90)
def rot90(x: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    """The operand turned k times by a right angle, from the first of two axes towards the second."""
    x, turns = variable_of(x, "rot90"), integer_of(k, "rot90: k") % 4
    places = [normalise_axis(axis, x.ndim, "rot90") for axis in axes]
    if len(places) != 2 or places[0] == places[1]:
        raise AxisError(f"rot90: axes are two axes, not {axes!r}")
    first, second = places
    if turns == 0:
        return f.slice(x, Ellipsis)
    if turns == 2:
        return f.flip(x, tuple(places))
    turned = f.swapaxes(x, first, second)
    return f.flip(turned, first if turns == 1 else second)


# Splits


@function(numpy=np.array_split)
def array_split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """The parts of the operand along an axis: so many, equal or nearly, or those between indices."""
    return _parts(variable_of(x, "array_split"), indices_or_sections, axis, "array_split")


@function(numpy=np.split)
def split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """The parts of the operand along an axis: so many equal ones, or those between indices."""
    x = variable_of(x, "split")
    if not np.ndim(indices_or_sections):
        size, count = x.shape[normalise_axis(axis, x.ndim, "split")], integer_of(indices_or_sections, "split: sections")
        if size is not None and count > 0 and size % count:
            raise ShapeError(
                f"split: axis {axis} of {describe(x)} is no multiple of {count}; array_split makes unequal parts"
            )
    return _parts(x, indices_or_sections, axis, "split")


def _parts(x: Variable, indices_or_sections: Any, axis: Any, what: str) -> list[Any]:
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
    kept = (slice(None),) * axis
    return [f.slice(x, (*kept, slice(*ends[i : i + 2]))) for i in range(len(ends) - 1)]


@function(numpy=np.hsplit)
def hsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """The parts of the operand side by side: `split` along its second axis, of a vector along its only one."""
    return split(x, indices_or_sections, 0 if variable_of(x, "hsplit").ndim == 1 else 1)


@function(numpy=np.vsplit)
def vsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """The parts of the operand one below the other: `split` along the first of two axes or more."""
    x = variable_of(x, "vsplit")
    if x.ndim < 2:
        raise ShapeError(f"vsplit: two axes are wanted, and {describe(x)} has {x.ndim}; split takes one")
    return split(x, indices_or_sections, 0)


@function(numpy=np.dsplit)
def dsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """The parts of the operand along its third axis."""
    return split(x, indices_or_sections, 2)


# Grids


@function()
def meshgrid(*xi: Any, indexing: str = "xy", sparse: bool = False) -> list[Any]:
    """Each of several vectors along an axis of its own, broadcast to all of them unless `sparse`.

    With ``indexing="xy"`` the second vector is along the first axis, and the
    first along the second; with ``"ij"`` they are in order.
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
    if sparse or len(spread) < 2:
        return spread
    sizes = [spread[order.index(j)].shape[j] for j in range(len(order))]
    if None not in sizes:
        return [f.broadcast_to(x, tuple(sizes)) for x in spread]
    place = f.places(spread[0])  # a sum of places has the shape of all, and is never computed
    for x in spread[1:]:
        place = place + f.places(x)
    return [f.broadcast_like(x, place) for x in spread]


def _numpy_meshgrid(xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Any]:
    """`meshgrid` with NumPy's parameters; a tree is no view of its operands that anybody could write into."""
    return meshgrid(*xi, indexing=indexing, sparse=sparse)


NUMPY_FUNCTIONS[np.meshgrid] = _numpy_meshgrid
