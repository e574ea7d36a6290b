"""NumPy's functions on bfloat16, computed in float32 and rounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from optree.dtypes import bfloat16, is_bfloat16


def of_any_dtype(meaning: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy arrays as one of arrays that may be bfloat16.

    Its dtype is what NumPy makes of float16 there, and its value that in
    float32, rounded, but for `numpy.nextafter`; beside float16, bfloat16 is float32.
    """

    def meant(*values: Any, **props: Any) -> Any:
        dtypes = [getattr(x, "dtype", None) for x in values]
        if not any(map(is_bfloat16, dtypes)):
            return meaning(*values, **props)
        stand_in = np.dtype("float32" if np.dtype("float16") in dtypes else "float16")
        with np.errstate(all="ignore"):
            wide = [x.astype(np.float32) if is_bfloat16(dtype) else x for x, dtype in zip(values, dtypes, strict=True)]
            dtype = np.asarray(meaning(*(_cast(x, stand_in) for x in values), **props)).dtype
            if dtype != np.float16 or stand_in != np.float16:
                return np.asarray(meaning(*wide, **props)).astype(dtype)
            if getattr(meaning, "func", meaning) is np.nextafter:  # of ml_dtypes
                return np.nextafter(*(np.asarray(x).astype(bfloat16()) for x in values))
            numbers = [np.float32(np.asarray(x).astype(bfloat16())) if type(x) is float else x for x in wide]
            return np.asarray(meaning(*numbers, **props)).astype(bfloat16())

    return meant


def _cast(x: Any, dtype: np.dtype) -> Any:
    return x.astype(dtype) if is_bfloat16(getattr(x, "dtype", None)) else x
