"""Arrays for tests, and what is expected of trees."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from optree.dtypes import is_bfloat16


def array_of(shape: Any) -> np.ndarray:
    return np.arange(1.0, 1.0 + math.prod(shape)).reshape(shape)


def check(tree: Any, wanted: Any) -> None:
    """The tree's promise, and its value, are the array's shape, dtype and elements."""
    wanted = np.asarray(wanted)
    assert tree.shape == wanted.shape and tree.dtype == wanted.dtype
    np.testing.assert_array_equal(tree.asnumpyarray(), wanted)


def comparable(array: np.ndarray) -> np.ndarray:
    """An array whose nans NumPy's comparisons find: those of bfloat16, no dtype of its own, as float32."""
    return array.astype(np.float32) if is_bfloat16(array.dtype) else array
