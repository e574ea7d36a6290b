"""NumPy's functions with the values that CuPy's have, where those are others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def of_last_nan(function: Callable[..., Any]) -> Callable[..., Any]:
    """An argmax or argmin that finds the last nan where there are several."""

    def find(x: np.ndarray, axis: int | None = None, **how: Any) -> np.ndarray:
        count = x.size if axis is None else x.shape[axis]
        last = count - 1 - np.argmax(np.isnan(np.flip(x, axis)), axis=axis, **how)
        return np.where(np.any(np.isnan(x), axis=axis, **how), last, function(x, axis=axis, **how))

    return find


def in_halves(function: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    """A sum or mean to more digits than its dtype has, rounded to it."""
    return lambda *args, **kwargs: function(*args, **kwargs, dtype=np.longdouble).astype(dtype)


def take(x: np.ndarray, places: Any, axis: Any = None) -> Any:
    """Elements, whatever the index, counted on from the end; NumPy's mode for that goes round a step at a time."""
    return x.take(np.asarray(places) % max(x.size if axis is None else x.shape[axis], 1), axis)
