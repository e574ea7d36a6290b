"""The standard's dtypes, its functions of dtypes, and its constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from optree import dtypes
from optree.errors import DTypeError, OperandError, names
from optree.records import NamedTuple
from optree.registry import f
from optree.tree.types import NUMBERS, as_dtype, promote
from optree.tree.variable import check_real
from optree.xp.array import Array, built, of

e, pi, inf, nan, newaxis = math.e, math.pi, math.inf, math.nan, None

#: The standard's dtypes by name; float16 and bfloat16 are there beside them.
DTYPES = {
    name: np.dtype(name)
    for name in """
    bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128
    """.split()
}

#: The standard's names of kinds of dtypes -> the kinds as NumPy and ml_dtypes have them.
KINDS = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "f",
    "complex floating": "c",
    "numeric": "iufc",
}


class FloatInfo(NamedTuple):
    """The limits of a floating dtype; those of a complex one are its parts'."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: Any


class IntegerInfo(NamedTuple):
    """The limits of a dtype of integers."""

    bits: int
    max: int
    min: int
    dtype: Any


def _dtype_of(given: object) -> np.dtype:
    return given.dtype if isinstance(given, Array) else as_dtype(given)


def finfo(type: object, /) -> FloatInfo:
    """The limits of a floating dtype, or of an array's; of a complex one those of its parts."""
    dtype = dtypes.real_dtype(_dtype_of(type))
    if not dtypes.is_floating(dtype):
        raise DTypeError(f"finfo: a floating or complex dtype is wanted, not {dtype}")
    found = dtypes.finfo(dtype)
    eps, most, least, normal = (float(x) for x in (found.eps, found.max, found.min, found.smallest_normal))
    return FloatInfo(int(found.bits), eps, most, least, normal, dtype)


def iinfo(type: object, /) -> IntegerInfo:
    """The limits of a dtype of integers, or of an array's."""
    dtype = _dtype_of(type)
    if dtype.kind not in "iu":
        raise DTypeError(f"iinfo: a dtype of integers is wanted, not {dtype}")
    found = np.iinfo(dtype)
    return IntegerInfo(found.bits, int(found.max), int(found.min), dtype)


def isdtype(dtype: DTypeLike, kind: object) -> Any:
    """Whether a dtype is of a kind: a dtype, the name of a kind such as ``"integral"``, or one of a tuple of them."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, each) for each in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise OperandError(f"isdtype: kind is one of {names(KINDS)}, a dtype, or a tuple of them, not {kind!r}")
        return as_dtype(dtype).kind in KINDS[kind] or ("f" in KINDS[kind] and dtypes.is_floating(as_dtype(dtype)))
    return as_dtype(dtype) == as_dtype(kind)


def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """The dtype to which arrays, dtypes and Python numbers promote."""
    if not arrays_and_dtypes:
        raise OperandError("result_type: an array, a dtype or a number is wanted")
    weak = [type(x) for x in arrays_and_dtypes if type(x) in NUMBERS]
    strong = [_dtype_of(x) for x in arrays_and_dtypes if type(x) not in NUMBERS]
    if not strong:
        raise OperandError("result_type: of Python numbers at least one array or dtype tells what they are")
    return promote(*strong, *(np.dtype(kind) if kind is bool else kind for kind in weak))


def can_cast(from_: object, to: object, /) -> Any:
    """Whether a dtype, or an array's, casts safely to another."""
    return dtypes.can_cast(_dtype_of(from_), as_dtype(to), "safe")


def astype(x: Array, dtype: DTypeLike, /, *, copy: object = True, device: object = None) -> Array:
    """The array cast to a dtype; without `copy`, the array itself if it has that dtype.

    Raises
    ------
    DTypeError
        If a complex array would lose its imaginary parts: `real` drops them.
    """
    found, dtype = of(x, "astype"), as_dtype(dtype)
    if dtype.kind not in "cb":
        check_real(found.tree, f"astype to {dtype}")
    if copy or found.dtype != dtype:
        found = built(f.cast(found.tree, dtype) if found.dtype != dtype else f.copy(found.tree))
    return found if device is None else found.to_device(device)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which shapes broadcast."""
    return np.broadcast_shapes(*shapes)


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """Arrays broadcast against each other."""
    shape = np.broadcast_shapes(*(of(x, "broadcast_arrays").shape for x in arrays))
    return [broadcast_to(x, shape) for x in arrays]


def broadcast_to(x: Array, /, shape: Any) -> Array:
    """The array broadcast to a shape."""
    return built(f.broadcast_to(of(x, "broadcast_to").tree, tuple(shape)))
