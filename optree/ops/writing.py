"""NumPy's functions that write into an array: into tensors and lazy arrays, which are assigned to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from optree.dtypes import can_cast
from optree.errors import DTypeError, OperandError, ShapeError, brief, describe
from optree.ops.shape import strong
from optree.registry import NUMPY_FUNCTIONS, f, numpy_function
from optree.tree.types import normalise_axis
from optree.tree.variable import Operand, Variable


def _writer(numpy: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that registers an equivalent of NumPy's that writes into its first argument."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        function.writes = True  # type: ignore[attr-defined]
        return numpy_function(numpy)(function)

    return register


def _value(target: Any, given: object, what: str, casting: str = "same_kind") -> Variable:
    """A value to write into a target, of a dtype that NumPy casts to its own."""
    if not hasattr(target, "copy_from"):
        kind = describe(target) if isinstance(target, Variable) else f"a {type(target).__name__}"
        raise OperandError(f"{what} writes into a tensor, and {kind} is none; of a tree, f.where or x.at tell another")
    value = strong(given, what)
    weak = not value.ndim and not isinstance(given, Variable | np.generic | np.ndarray)
    if not can_cast(value.dtype, target.dtype, "same_kind" if weak and casting == "safe" else casting):
        raise DTypeError(f"{what}: {describe(value)} is not cast to {target.dtype} as {casting!r} casts")
    return value


def _repeated(value: Variable, count: int, what: str) -> Variable:
    """The first elements of a value, which is repeated if it has fewer."""
    if value.size == 0 and count:
        raise ShapeError(f"{what}: {describe(value)} has no element to write")
    return value if not value.ndim else NUMPY_FUNCTIONS[np.resize](value, count)


@_writer(np.copyto)
def _copyto(dst: Any, src: object, casting: str = "same_kind", where: Any = True) -> None:
    """Write values into a tensor, where a mask is true."""
    value = _value(dst, src, "np.copyto", casting)
    dst[...] = value if where is True else f.where(strong(where, "np.copyto"), value, dst)


@_writer(np.putmask)
def _putmask(a: Any, mask: Operand, values: object) -> None:
    """Write values, repeated to the tensor's size, where a mask is true."""
    value = _repeated(_value(a, values, "np.putmask"), math.prod(a.shape), "np.putmask")
    is_there = strong(mask, "np.putmask")
    if is_there.shape != tuple(a.shape):
        raise ShapeError(f"np.putmask: the mask {describe(is_there)} is not of the shape {tuple(a.shape)}")
    a[...] = f.where(is_there, f.reshape(value, a.shape) if value.ndim else value, a)


@_writer(np.place)
def _place(arr: Any, mask: Operand, vals: object) -> None:
    """Write values one after the other, repeated, where a mask is true."""
    value, is_there = f.ravel(_value(arr, vals, "np.place")), f.ne(strong(mask, "np.place"), 0)
    if not value.size:
        raise ShapeError(f"np.place: {describe(value)} has no element to write")
    order = f.mod(f.maximum(f.cumsum(is_there) - 1, 0), value.size)
    arr[...] = f.where(is_there, f.reshape(f.take(value, order, axis=0), arr.shape), arr)


@_writer(np.put)
def _put(a: Any, ind: object, v: object, mode: str = "raise") -> None:
    """Write values, repeated, at indices of the flattened tensor."""
    value = _value(a, v, "np.put")
    at = strong(ind, "np.put")
    size = math.prod(a.shape)
    if mode not in ("raise", "wrap", "clip"):
        raise OperandError(f"np.put: mode is 'raise', 'wrap' or 'clip', not {mode!r}")
    if mode != "raise":
        at = {"wrap": lambda: f.mod(at, size), "clip": lambda: f.clip(at, 0, size - 1)}[mode]()
    written = f.scatter(f.ravel(a), f.ravel(at), _repeated(value, at.size, "np.put"))
    a[...] = f.reshape(written, a.shape)


@_writer(np.fill_diagonal)
def _fill_diagonal(a: Any, val: object, wrap: bool = False) -> None:
    """Write a number, or values repeated, on the main diagonal of a matrix, or of an array of equal axes."""
    shape = np.shape(a)
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
        raise ShapeError(f"np.fill_diagonal: a matrix is wanted, or equal axes, not {shape}")
    step = 1 + sum(math.prod(shape[i:]) for i in range(1, len(shape)))
    end = math.prod(shape) if wrap or len(shape) > 2 else min(shape[0], shape[1]) * shape[1]
    _put(a, np.arange(0, end, step), val)


@_writer(np.put_along_axis)
def _put_along_axis(arr: Any, indices: Any, values: object, axis: int | None) -> None:
    """Write values at indices along an axis, as those of `numpy.argsort`; of the flattened tensor if it is None."""
    value, given = _value(arr, values, "np.put_along_axis"), indices
    if axis is None:
        return _put(arr, indices, values)
    axis = normalise_axis(axis, len(arr.shape), "np.put_along_axis")
    if np.ndim(given) != len(arr.shape):
        raise ShapeError(f"np.put_along_axis: indices {brief(given)} and {describe(arr)} have different dimensions")
    others = np.ix_(*map(np.arange, arr.shape))
    arr[tuple(given if i == axis else other for i, other in enumerate(others))] = value
    return None
