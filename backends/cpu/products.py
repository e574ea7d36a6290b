"""Products of NumPy's arrays: a stack of matrices times one matrix is one product, of all their rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np


def merging(product: Callable[..., Any]) -> Callable[..., Any]:
    """A function of matrix products, from one that multiplies stacks matrix by matrix.

    BLAS packs its operands in each call, and reaches its speed with many rows alone: 64 products of 32 rows take
    half as long again as one of 2,048.

    Examples
    --------
    >>> x, y = np.arange(12.0).reshape(2, 3, 2), np.ones((2, 4))
    >>> bool((merging(np.matmul)(x, y) == x @ y).all())
    True
    """

    def multiply(x: Any, y: Any, out: Any = None) -> Any:
        if y.ndim != 2 or x.ndim < 3 or not _is_one_matrix(x) or not (out is None or _is_one_matrix(out)):
            return product(x, y, out=out)
        rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])
        if out is None:
            return product(rows, y).reshape(*x.shape[:-1], y.shape[1])
        product(rows, y, out=out.reshape(len(rows), out.shape[-1]))
        return out

    return multiply


def _is_one_matrix(x: np.ndarray) -> bool:
    """Whether the rows of a stack of matrices are those of one matrix: equal steps lead through all of them."""
    if x.flags.c_contiguous:
        return True
    rows = [(size, stride) for size, stride in zip(x.shape[:-1], x.strides, strict=False) if size != 1]
    return all(outer == size * inner for (_, outer), (size, inner) in pairwise(rows))
