"""Floating dtypes, bfloat16 among them: NumPy does not have it, the package ml_dtypes gives it.

bfloat16 has the range of float32 and 8 bits of its precision. What NumPy says
of float16 is said of it: operations are computed in float32 and rounded once,
and promotion is float16's, so that a Python number and an int8 leave it as it
is and an int16 makes it float32. The two together, neither of which holds the
other, are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from optree.errors import DTypeError

FLOAT16, FLOAT32 = np.dtype("float16"), np.dtype("float32")


@cache
def bfloat16() -> np.dtype:
    """The dtype, from ml_dtypes, which is imported when it is first asked for.

    Raises
    ------
    DTypeError
        If that is not installed.
    """
    try:
        return np.dtype(import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise DTypeError("bfloat16 needs the package ml_dtypes: pip install ml_dtypes") from None


def is_bfloat16(dtype: Any) -> bool:
    """Whether a dtype is bfloat16; it may also stand for a weak number, as in `optree.tree.types.promote`."""
    return getattr(dtype, "kind", "") == "V" and str(dtype) == "bfloat16"


def is_floating(dtype: np.dtype) -> bool:
    """Whether a dtype is floating."""
    return dtype.kind == "f" or is_bfloat16(dtype)


def is_narrow(dtype: np.dtype) -> bool:
    """Whether a dtype is a floating one that is computed with in float32."""
    return dtype.itemsize == 2 and is_floating(dtype)


def finfo(dtype: np.dtype) -> Any:
    """The limits of a floating dtype, as `numpy.finfo` has them."""
    return import_module("ml_dtypes").finfo(dtype) if is_bfloat16(dtype) else np.finfo(dtype)


def by_float16(rule: Callable[[Sequence[Any]], Sequence[Any]], dtypes: Sequence[Any]) -> tuple[Any, ...]:
    """What a rule of NumPy's makes of dtypes, of bfloat16 what it makes of float16; of both, of float32."""
    if not any(map(is_bfloat16, dtypes)):
        return tuple(rule(dtypes))
    both = any(getattr(dtype, "char", "") == "e" for dtype in dtypes)
    made = rule([(FLOAT32 if both else FLOAT16) if is_bfloat16(dtype) else dtype for dtype in dtypes])
    return tuple(bfloat16() if dtype == FLOAT16 else dtype for dtype in made)


def ufunc_dtypes(ufunc: np.ufunc, dtypes: Sequence[Any]) -> tuple[np.dtype, ...]:
    """The dtypes that a ufunc of one output computes operands in, and its value's after them."""
    return by_float16(lambda known: ufunc.resolve_dtypes((*known, None)), dtypes)


def floating(*dtypes: np.dtype) -> np.dtype:
    """The floating dtype that dtypes have in common."""
    (found,) = by_float16(lambda known: [np.result_type(FLOAT16, *known)], dtypes)
    return np.dtype(found)


def can_cast(given: np.dtype, wanted: np.dtype, casting: Any) -> bool:
    """As `numpy.can_cast`; bfloat16 and float16 go into each other as float32 goes into either."""
    if is_bfloat16(given) == is_bfloat16(wanted):
        return given == wanted or bool(np.can_cast(given, wanted, casting))
    if FLOAT16 in (given, wanted):
        return bool(np.can_cast(FLOAT32, FLOAT16, casting))
    given, wanted = (FLOAT16 if is_bfloat16(dtype) else dtype for dtype in (given, wanted))
    return bool(np.can_cast(given, wanted, casting))


def rounded(x: Any, dtype: np.dtype, copy: bool = True) -> Any:
    """An array or number in another dtype, rounded once: into bfloat16 ml_dtypes goes by way of float32."""
    if not hasattr(x, "dtype"):
        x = np.float64(x)
    if is_bfloat16(dtype) and x.dtype.itemsize > 2 and x.dtype != FLOAT32:
        x = _to_odd(x.astype(np.float64))
    return x.astype(dtype, copy=copy)


def _to_odd(x: Any) -> Any:
    """float64 as float32: what lies between two numbers goes to the one with an odd last bit.

    Rounded further, it comes out as if it had been rounded once: no such number
    is in the middle between two of fewer bits.
    """
    with np.errstate(over="ignore"):
        near = x.astype(np.float32)
    below = near.view(np.uint32) - (np.abs(near) > np.abs(x))  # towards zero, and from infinity to the largest number
    return (below | (near != x)).view(np.float32)


def widens(op: Any, dtype: Any) -> bool:
    """Whether an op computes in float32 what is of a dtype: bfloat16, and products of float16, for NumPy's are slow."""
    return is_bfloat16(dtype) or (dtype == FLOAT16 and op.widens_halves)


def in_float32(op: Any, dtype: np.dtype) -> Callable[..., Any]:
    """An op's value, of a dtype, as a function of arrays of any: computed in float32 and rounded, where it widens them.

    Of ops that overwrite their operands or look into them, the value itself.
    """
    if op.destroy_map or op.view_map:
        value: Callable[..., Any] = op.value
        return value

    def run(*values: Any) -> Any:
        dtypes = [x.dtype if hasattr(x, "dtype") else type(x) for x in values]
        if any(widens(op, each) for each in dtypes):
            loop = op.resolve_dtypes(*(np.dtype(bool) if each is bool else each for each in dtypes))
            values = tuple(_wide(op, x, each) for x, each in zip(values, loop, strict=False))
        result = op.value(*values)
        return rounded(result, dtype) if result.dtype != dtype and widens(op, dtype) else result

    return run


def _wide(op: Any, x: Any, dtype: np.dtype) -> Any:
    """An operand that is computed with in a dtype: of a narrow one in float32, a number rounded to it before."""
    if hasattr(x, "dtype"):
        return x.astype(FLOAT32) if widens(op, x.dtype) else x
    return float(rounded(x, dtype)) if is_bfloat16(dtype) else x  # weak still
