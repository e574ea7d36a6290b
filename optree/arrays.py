"""Arrays of NumPy and of libraries that implement its protocols (NEP 13, NEP 18), such as CuPy.

NumPy's ufuncs and functions dispatch such an array to its library. Portable code
avoids the calls that do not: ``np.zeros(shape, like=x)`` instead of
``np.zeros(shape)``, ``np.max`` instead of ``np.maximum.reduce``, and no ``np.asarray(x)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided

from optree.errors import Labelled, OperandError, describe

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: An array of NumPy's, or of a library with the same protocols, attributes and methods.
Array = np.ndarray

#: The types of NumPy's functions that dispatch on their arguments.
_DISPATCHED = (np.ufunc, type(np.transpose))


def portable(function: _Function) -> _Function:
    """Mark an op's `numpy`, `fill` or `perform` as portable.

    It takes arrays of any library, as this module says. Without the mark it runs on the host, on NumPy arrays, wherever
    the tensors are stored.
    """
    function.is_portable = True  # type: ignore[attr-defined]
    return function


def is_portable(op: Any) -> bool:
    """Whether an op runs on its operands' device."""
    if op.defines("make_thunk"):
        return False
    function = op.perform if op.defines("perform") else op.fill if op.numpy is None else op.numpy
    if isinstance(function, _DISPATCHED):  # NumPy's own, not another library's ufunc
        return getattr(np, function.__name__, None) is function
    return getattr(function, "is_portable", False)


def stored(value: Any, out: Any) -> Any:
    """Write a value into `out` and return that; the value itself if `out` is None."""
    if out is None or value is out:
        return value
    out[...] = value
    return out


#: The most frequent classes of values, for a fast path.
_COMMON = frozenset((np.ndarray, bool, int, float, complex, list, tuple))

#: The protocols by which other libraries' arrays are read: NumPy's, DLPack, and that of CUDA's devices.
_PROTOCOLS = ("__array__", "__array_interface__", "__dlpack__", "__cuda_array_interface__")


def is_foreign(value: object) -> bool:
    """Whether a value is another library's array that does not compute by NumPy's functions, as torch's are."""
    kind = type(value)
    if kind in _COMMON or issubclass(kind, np.ndarray | np.generic) or hasattr(kind, "__array_function__"):
        return False
    return any(hasattr(kind, name) for name in _PROTOCOLS)


#: What a library gives to NumPy, for errors.
GIVEN = "an array on the CPU of a dtype that NumPy has, as x.detach().cpu().float() is in torch"


def on_host(value: Any, what: str) -> np.ndarray:
    """Another library's array as NumPy's, over the same memory where the library shares it.

    Raises OperandError if the library does not give it, as memory of a device, or a tensor of torch's that records
    gradients.
    """
    kind = type(value)
    try:
        if hasattr(kind, "__array__") or hasattr(kind, "__array_interface__"):
            return np.asarray(value)
        return np.from_dlpack(value)
    except Exception as error:  # it is that library's, of any class
        raise OperandError(
            f"{what}: {describe(value)} is not given to NumPy ({error}); convert it to {GIVEN}"
        ) from error


def is_array(value: object) -> bool:
    """Whether a value is an array of NumPy's, or of a library that implements its protocols."""
    return hasattr(type(value), "__array_function__")  # of the type: a foreign object's own attributes may raise


def has(value: object, name: str) -> bool:
    """Whether a value has an attribute; an object whose attributes raise has none."""
    try:
        return hasattr(value, name)
    except Exception:  # it is that object's, of any class
        return False


def is_value(x: object) -> bool:
    """Whether it is a number or an array of any library, which a constant can be made of."""
    return isinstance(x, int | float | complex | np.generic) or is_array(x) or hasattr(type(x), "__array_namespace__")


def check_unmasked(values: object, what: object) -> None:
    """Refuse a masked array, or a list of them: tensors have no masks, so masked elements would count.

    `what`: the function and its operand, for the error.

    Raises OperandError.
    """
    if values.__class__ is np.ndarray or isinstance(values, Labelled):  # a tree is a tuple
        return
    given = values if isinstance(values, list | tuple) else (values,)
    # np.ma is imported lazily by NumPy: ask for it only where the array is of a subclass.
    if any(
        isinstance(x, np.ndarray) and x.__class__ is not np.ndarray and isinstance(x, np.ma.MaskedArray) for x in given
    ):
        raise OperandError(
            f"{what}: a masked array would lose its mask; x.filled(value) replaces the masked elements by a number, "
            "and x.compressed() leaves them out"
        )


def overlaps_itself(array: Any) -> bool:
    """Whether several elements of an array may share an address, as a broadcast array's do.

    Conservative: it is also true of arrays whose rows interleave.
    """
    axes = sorted((abs(step), size) for step, size in zip(array.strides, array.shape, strict=True) if size != 1)
    extent = array.dtype.itemsize
    for step, size in axes:
        if step < extent:
            return bool(array.size)
        extent += step * (size - 1)
    return False


def as_array(value: object, *others: object) -> Any:
    """A value as an array: an array as it is, a number in the library of the first other that is an array."""
    if hasattr(value, "__array_function__"):
        return value
    for other in others:
        if hasattr(other, "__array_function__"):
            return np.asarray(value, like=other)
    return np.asarray(value)


def filled(shape: Sequence[int], value: object, dtype: Any, like: Any) -> Any:
    """An array of a shape with every element `value`, in the library of another array.

    CuPy's ``full_like`` takes a shape of ``()`` for none, and its ``full`` no ``like`` of NumPy's.
    """
    out = np.empty(shape, dtype, like=like)
    out[...] = value
    return out


def strided(x: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """A view of an array from its first element, with strides in bytes."""
    if isinstance(x, np.ndarray):
        return as_strided(x, shape, strides, writeable=False)
    return type(x)(shape, x.dtype, x.data, strides)


_deferred: ContextVar[list[Any] | None] = ContextVar("deferred", default=None)


@contextmanager
def deferring_checks() -> Iterator[list[Any]]:
    """Defer checks: within it, `is_any` appends to this list instead of waiting for the device, and returns False."""
    found: list[Any] = []
    token = _deferred.set(found)
    try:
        yield found
    finally:
        _deferred.reset(token)


def defers_checks() -> bool:
    """Whether `deferring_checks` defers checks here, as where work is captured."""
    return _deferred.get() is not None


def is_any(wrong: Any) -> bool:
    """Whether any element of an array is true; False while `deferring_checks` defers the answer."""
    found = _deferred.get()
    if found is None or isinstance(wrong, np.ndarray | np.generic):
        return bool(wrong.any())
    found.append(wrong.any())
    return False


def overlap(x: object, y: object) -> bool:
    """Whether two values may be aliased: whether the bounds of their memory overlap."""
    return type(x) is type(y) and is_array(x) and bool(np.may_share_memory(x, y))


def frozen(value: object) -> Any:
    """A value that nobody else can change: a NumPy array becomes a read-only copy."""
    if not isinstance(value, np.ndarray | np.generic):
        return value
    own = np.array(value)
    own.flags.writeable = False
    return own
