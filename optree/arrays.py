"""Arrays of any library that speaks NumPy's protocols (NEP 13, NEP 18), such as CuPy's on a GPU.

NumPy's ufuncs and functions, called on such an array, are that library's. What
NumPy alone has a say in is left out of code that is to run there too:
``np.asarray(x)`` of its arrays, ``np.zeros(shape)`` beside them (but
``np.zeros(shape, like=x)``), the ``reduce`` of a ufunc (but ``np.max``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np

from optree.errors import OperandError

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: What NumPy's own functions are that ask their arguments' library first.
_DISPATCHED = (np.ufunc, type(np.transpose))


def portable(function: _Function) -> _Function:
    """Mark an op's `value`, `numpy` or `perform` as one that takes arrays of any library that speaks NumPy's protocols.

    Without the mark it runs on the host, on NumPy arrays, wherever the tensors live.
    """
    function.is_portable = True  # type: ignore[attr-defined]
    return function


def is_portable(op: Any) -> bool:
    """Whether an op runs where its operands' arrays are."""
    if op.defines("make_thunk"):
        return False
    function = op.perform if op.defines("perform") else op.value if op.defines("value") else op.numpy
    if isinstance(function, _DISPATCHED):  # NumPy's own, and no ufunc of someone else's
        return getattr(np, function.__name__, None) is function
    return getattr(function, "is_portable", False)


def is_array(value: Any) -> bool:
    """Whether a value is an array of NumPy's, or of a library that speaks its protocols."""
    return hasattr(value, "__array_function__")


def check_unmasked(values: Any, what: str) -> None:
    """Refuse a masked array, or a list of them: tensors have no masks, and what is masked would count.

    Raises
    ------
    OperandError
        `what` names the function and its operand.
    """
    if values.__class__ is np.ndarray:
        return
    given = values if isinstance(values, list | tuple) else (values,)
    # NumPy loads its module of masked arrays when it is first asked for, and so an array that is none of it is not.
    if any(
        isinstance(x, np.ndarray) and x.__class__ is not np.ndarray and isinstance(x, np.ma.MaskedArray) for x in given
    ):
        raise OperandError(
            f"{what}: a masked array would lose its mask; x.filled(value) puts a number in the masked places, "
            "and x.compressed() leaves them out"
        )


def overlaps_itself(array: Any) -> bool:
    """Whether several elements of an array may lie in the same memory, as those of a broadcast array do.

    True for few others too: arrays whose rows lie between each other's elements.
    """
    axes = sorted((abs(step), size) for step, size in zip(array.strides, array.shape, strict=True) if size != 1)
    extent = array.dtype.itemsize
    for step, size in axes:
        if step < extent:
            return bool(array.size)
        extent += step * (size - 1)
    return False


def as_array(value: Any, *others: Any) -> Any:
    """A value as an array: an array as it is, a number in the library of the first other that is an array."""
    if hasattr(value, "__array_function__"):
        return value
    for other in others:
        if hasattr(other, "__array_function__"):
            return np.asarray(value, like=other)
    return np.asarray(value)


def filled(shape: Sequence[int], value: Any, dtype: Any, like: Any) -> Any:
    """An array of a shape with every element `value`, in the library of another array.

    CuPy's ``full_like`` takes a shape of ``()`` for none, and its ``full`` no ``like`` of NumPy's.
    """
    out = np.empty(shape, dtype, like=like)
    out[...] = value
    return out


_put_off: ContextVar[list[Any] | None] = ContextVar("put_off", default=None)


@contextmanager
def putting_off() -> Iterator[list[Any]]:
    """Within it `is_any` waits for no device: it puts what it would have looked at into this list, and says no."""
    found: list[Any] = []
    token = _put_off.set(found)
    try:
        yield found
    finally:
        _put_off.reset(token)


def is_any(wrong: Any) -> bool:
    """Whether any element of an array is true."""
    found = _put_off.get()
    if found is None or isinstance(wrong, np.ndarray | np.generic):
        return bool(wrong.any())
    found.append(wrong.any())
    return False


def overlap(x: Any, y: Any) -> bool:
    """Whether two values may lie in the same memory, so far as the bounds of their memory tell."""
    return is_array(x) and is_array(y) and type(x) is type(y) and bool(np.may_share_memory(x, y))
