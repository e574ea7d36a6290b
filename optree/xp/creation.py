"""The standard's functions that make arrays, on the current backend or on the one that is named as a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.arrays import has
from optree.dtypes import complex_dtype, rounded
from optree.errors import DTypeError, OperandError, brief, describe
from optree.registry import f
from optree.tree.lazy import own
from optree.tree.node import OpTreeNode, post_order
from optree.tree.substitution import inputs_of
from optree.tree.tensor import Tensor
from optree.tree.types import DType, array_of, as_dtype, check_fits
from optree.tree.variable import Constant, Variable
from optree.xp.array import Array, built, of
from optree.xp.devices import backend_of

Shape = int | Sequence[int]


def _default(value: object, device: object) -> np.dtype:
    """The dtype of Python's numbers: bool, int64, or the backend's floating or complex one."""
    kind = np.asarray(value).dtype.kind
    if kind not in "biufc":
        raise DTypeError(f"xp: a number is wanted that an array can hold, not {brief(value)}")
    known = {"b": np.dtype(bool), "i": np.dtype("int64"), "u": np.dtype("uint64")}
    floating = backend_of(device).datatype
    return known.get(kind, complex_dtype(floating) if kind == "c" else floating)


def asarray(obj: object, /, *, dtype: DType = None, device: object = None, copy: bool | None = None) -> Array:
    """The array of another, of a tensor or a tree, of NumPy's arrays, or of numbers in nested lists.

    A tensor is not copied unless `copy`, so that what is written to the array is written to it. A tree is lazy, or runs
    at once where it draws random numbers. An array of NumPy's keeps its dtype, floats in lists take the backend's.

    Raises
    ------
    ValueError
        If `copy` is False, and there must be a copy.
    """
    if isinstance(obj, Variable) and not isinstance(obj, Constant):
        obj, copy = _array_of(obj), copy if isinstance(obj, Tensor) else None
    if isinstance(obj, Array):
        return _again(obj, dtype, device, copy)
    backend = backend_of(device)
    given = array_of(obj, "asarray")
    is_array = isinstance(obj, np.ndarray | np.generic) or hasattr(obj, "__array__") or hasattr(obj, "dtype")
    wanted = as_dtype(dtype if dtype is not None else given.dtype if is_array else _default(given, backend))
    if copy is False:
        if given is not obj or given.dtype != wanted:
            raise ValueError(f"asarray: {brief(obj)} becomes an array of {wanted} by a copy alone")
        return _shared(_adopted(backend, given))
    if given.dtype.kind not in "biufc" and given.dtype != wanted:
        raise DTypeError(f"asarray: {given.dtype} values are no numbers that an array can hold: {brief(obj)}")
    if not is_array:
        check_fits(given, wanted, "asarray")
    return Array(backend.over(backend.from_host(rounded(given, wanted, copy=False))))


def _adopted(backend: Any, given: np.ndarray) -> Tensor:
    try:
        return backend.adopt(given)
    except (OperandError, DTypeError) as error:
        raise ValueError(f"asarray: without a copy, {error}") from error


def _shared(tensor: Tensor) -> Array:
    """The array of memory that others may write to."""
    tensor.root.is_shared = True
    return Array(tensor)


def _array_of(given: Any) -> Array:
    """The array of a tensor or a tree."""
    if given.backend is None:
        raise OperandError(
            f"asarray: {describe(given)} has no tensor, and so no backend; be.array makes one of numbers"
        )
    backend_of(given.backend)
    found = Array(given if isinstance(given, Tensor) else own(given))
    entries = post_order([given], inputs_of) if isinstance(given, OpTreeNode) else []
    if any(entry.op.destroy_map for entry in entries if isinstance(entry, OpTreeNode)):
        found.tensor.is_contiguous  # noqa: B018 it runs
    return found


def _again(x: Array, dtype: object, device: object, copy: bool | None) -> Array:
    moves = device is not None and backend_of(device) is not x.device
    casts = dtype is not None and as_dtype(dtype) != x.dtype
    if (moves or casts) and copy is False:
        raise ValueError(f"asarray: an array of {x.dtype} on {x.device} is copied to be of {dtype} on {device}")
    found = x.to_device(device) if moves else x
    if casts:
        return built(f.cast(found.tree, as_dtype(dtype)))
    return built(f.copy(found.tree)) if copy and not moves else found


def from_dlpack(x: Array, /, *, device: object = None, copy: bool | None = None) -> Array:
    """An array over the memory of another library's, by DLPack; with `copy`, or where it must, a copy.

    Raises
    ------
    BufferError
        If `copy` is False and the memory cannot be shared.
    AttributeError
        If it has no DLPack.
    """
    backend = backend_of(device)
    if isinstance(x, Array):
        return _again(x, None, device, copy)
    try:
        tensor = backend.from_dlpack(x)
    except OperandError as error:
        if not has(x, "__dlpack__"):
            raise AttributeError(str(error)) from error
        if copy is False:
            raise BufferError(str(error)) from error
        return asarray(np.from_dlpack(x), device=device)
    return Array(tensor.copy()) if copy else _shared(tensor)


def empty(shape: Shape, *, dtype: DType = None, device: object = None) -> Array:
    """An uninitialised array."""
    return Array(backend_of(device).empty(shape, dtype))


def zeros(shape: Shape, *, dtype: DType = None, device: object = None) -> Array:
    """An array of zeros."""
    return Array(backend_of(device).zeros(shape, dtype))


def ones(shape: Shape, *, dtype: DType = None, device: object = None) -> Array:
    """An array of ones."""
    return Array(backend_of(device).ones(shape, dtype))


def full(shape: Shape, fill_value: object, *, dtype: DType = None, device: object = None) -> Array:
    """An array filled with a number, which determines the dtype if none is given."""
    if isinstance(fill_value, Array):
        dtype, fill_value = fill_value.dtype if dtype is None else dtype, fill_value.item()
    return Array(backend_of(device).full(shape, fill_value, _default(fill_value, device) if dtype is None else dtype))


def empty_like(x: Array, /, *, dtype: DType = None, device: object = None) -> Array:
    """An uninitialised array of another array's shape, dtype and device."""
    return empty(of(x, "empty_like").shape, **_like(x, dtype, device))


def zeros_like(x: Array, /, *, dtype: DType = None, device: object = None) -> Array:
    """An array of zeros, of another array's shape, dtype and device."""
    return zeros(of(x, "zeros_like").shape, **_like(x, dtype, device))


def ones_like(x: Array, /, *, dtype: DType = None, device: object = None) -> Array:
    """An array of ones, of another array's shape, dtype and device."""
    return ones(of(x, "ones_like").shape, **_like(x, dtype, device))


def full_like(x: Array, /, fill_value: object, *, dtype: DType = None, device: object = None) -> Array:
    """An array filled with a number, of another array's shape, dtype and device."""
    return full(of(x, "full_like").shape, fill_value, **_like(x, dtype, device))


def _like(x: Array, dtype: object, device: object) -> dict[str, Any]:
    return {"dtype": x.dtype if dtype is None else dtype, "device": x.device if device is None else device}


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Array:
    """Evenly spaced numbers in the half-open interval from `start`, or 0, to `stop`."""
    given = [x for x in (start, stop, step) if x is not None]
    wanted = _default(sum(given), device) if dtype is None else dtype
    return Array(backend_of(device).arange(start, stop, step, wanted))


def linspace(
    start: object, stop: object, /, num: int, *, dtype: DType = None, device: object = None, endpoint: bool = True
) -> Array:
    """`num` evenly spaced numbers from `start` to `stop`, inclusive unless `endpoint` is False."""
    return Array(backend_of(device).linspace(start, stop, num, dtype, endpoint=endpoint))


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DType = None, device: object = None) -> Array:
    """A matrix with ones on the k-th diagonal."""
    return Array(backend_of(device).eye(n_rows, n_cols, k, dtype))
