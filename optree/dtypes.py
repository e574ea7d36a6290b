"""Floating and complex dtypes, including bfloat16, which the package ml_dtypes adds to NumPy.

bfloat16 has the range of float32 and 8 bits of its precision. NumPy's rules for float16 apply to it: operations are
computed in float32 and rounded once, and it is promoted as float16 is. A Python number or an int8 leaves it unchanged,
an int16 promotes it to float32. float16 and bfloat16 together promote to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from optree.errors import DTypeError
from optree.locks import import_later

FLOAT16, FLOAT32 = np.dtype("float16"), np.dtype("float32")

#: The names of the dtypes of 16 bits, which are computed in float32.
NARROW = ("float16", "bfloat16")


@cache
def bfloat16() -> np.dtype:
    """The dtype of ml_dtypes, which is imported at the first call; DTypeError if ml_dtypes is not installed."""
    try:
        return np.dtype(import_later("ml_dtypes").bfloat16)
    except ImportError:
        raise DTypeError("bfloat16 needs the package ml_dtypes: pip install ml_dtypes") from None


def is_bfloat16(dtype: object) -> bool:
    """Whether a dtype is bfloat16; it may also stand for a weak number, as in `optree.tree.types.promote`."""
    return getattr(dtype, "kind", "") == "V" and str(dtype) == "bfloat16"


def is_floating(dtype: np.dtype) -> bool:
    """Whether a dtype is floating, of real numbers."""
    return dtype.kind == "f" or is_bfloat16(dtype)


def is_complex(dtype: Any) -> bool:
    """Whether a dtype is complex; it may also stand for a weak number, as in `optree.tree.types.promote`."""
    return dtype is complex or getattr(dtype, "kind", "") == "c"


def is_inexact(dtype: np.dtype) -> bool:
    """Whether a dtype is floating or complex, so that its values have derivatives."""
    return dtype.kind == "c" or is_floating(dtype)


def real_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of a complex dtype's parts; another dtype as it is."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def complex_dtype(dtype: np.dtype) -> np.dtype:
    """The complex dtype of a real dtype's precision: complex64 of narrower ones."""
    return np.result_type(wide_dtype(dtype), np.complex64)


def is_narrow(dtype: np.dtype) -> bool:
    """Whether a dtype has 16 bits and is therefore computed in float32."""
    return dtype.itemsize == 2 and is_floating(dtype)


#: A dtype's name, as `str` gives it, which builds it anew each time.
name_of: Callable[[np.dtype], str] = lru_cache(str)


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which values of a dtype are computed and accumulated: float32 for narrow ones."""
    return FLOAT32 if is_narrow(dtype) else dtype


def finfo(dtype: np.dtype) -> Any:
    """The limits of a floating dtype, as `numpy.finfo` has them."""
    return import_later("ml_dtypes").finfo(dtype) if is_bfloat16(dtype) else np.finfo(dtype)


def by_float16(rule: Callable[[Sequence[Any]], Sequence[Any]], dtypes: Sequence[Any]) -> tuple[Any, ...]:
    """Apply a promotion rule of NumPy's, with float16 substituted for bfloat16, and float32 where both occur."""
    if not any(map(is_bfloat16, dtypes)):
        return tuple(rule(dtypes))
    both = any(getattr(dtype, "char", "") == "e" for dtype in dtypes)
    made = rule([(FLOAT32 if both else FLOAT16) if is_bfloat16(dtype) else dtype for dtype in dtypes])
    return tuple(bfloat16() if dtype == FLOAT16 else dtype for dtype in made)


def ufunc_dtypes(ufunc: np.ufunc, dtypes: Sequence[Any]) -> tuple[np.dtype, ...]:
    """The dtypes of a ufunc's loop for these operands, its outputs' last."""
    return by_float16(lambda known: ufunc.resolve_dtypes((*known, *(None,) * ufunc.nout)), dtypes)


def own_dtypes(function: object, dtypes: Sequence[Any]) -> tuple[np.dtype, ...] | None:
    """The same of a ufunc; None of another function."""
    return ufunc_dtypes(function, dtypes) if isinstance(function, np.ufunc) else None


def floating(*dtypes: np.dtype) -> np.dtype:
    """The floating dtype that dtypes have in common."""
    (found,) = by_float16(lambda known: [np.result_type(FLOAT16, *known)], dtypes)
    return np.dtype(found)


def can_cast(given: np.dtype, wanted: np.dtype, casting: Any) -> bool:
    """As `numpy.can_cast`; between bfloat16 and float16 the rule is that from float32 to float16."""
    if given is wanted or is_bfloat16(given) == is_bfloat16(wanted):
        return given == wanted or bool(np.can_cast(given, wanted, casting))
    if FLOAT16 in (given, wanted):
        return bool(np.can_cast(FLOAT32, FLOAT16, casting))
    given, wanted = (FLOAT16 if is_bfloat16(dtype) else dtype for dtype in (given, wanted))
    return bool(np.can_cast(given, wanted, casting))


def rounded(x: Any, dtype: np.dtype, copy: bool = True) -> Any:
    """An array or number cast to another dtype, rounded once: ml_dtypes casts to bfloat16 through float32."""
    if not hasattr(x, "dtype"):
        x = np.float64(x)
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        x = x.real  # the op that casts has warned
    if is_bfloat16(dtype) and x.dtype.itemsize > 2 and x.dtype != FLOAT32:
        x = _to_odd(x.astype(np.float64))
    return x.astype(dtype, copy=copy)


def _to_odd(x: Any) -> Any:
    """float64 rounded to odd in float32: an inexact value goes to the neighbour whose last bit is odd.

    A second rounding, to fewer bits, is then exact: no such value is a tie there.
    """
    with np.errstate(over="ignore"):
        near = x.astype(np.float32)
    below = near.view(np.uint32) - (np.abs(near) > np.abs(x))  # towards zero; infinity becomes the largest number
    return (below | (near != x)).view(np.float32)


def widens(op: Any, dtype: Any) -> bool:
    """Whether an op computes a dtype in float32, by `Op.widened`."""
    return (is_bfloat16(dtype) or dtype == FLOAT16) and str(dtype) in op.widened


def in_float32(op: Any, dtype: np.dtype) -> Callable[..., Any]:
    """An op's `value` with narrow operands widened to float32 and the result rounded to a dtype.

    For ops with a destroy_map or view_map it is `value` itself.
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
    """An operand widened to float32 where the op widens it; a number is rounded to the dtype first."""
    if hasattr(x, "dtype"):
        return x.astype(FLOAT32) if widens(op, x.dtype) else x
    return float(rounded(x, dtype)) if is_bfloat16(dtype) else x  # weak still
