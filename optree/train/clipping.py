"""Clipping of gradients by value and by norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.dtypes import is_complex
from optree.errors import OperandError, describe
from optree.ops.reduction import squares
from optree.registry import f
from optree.tree.variable import in_dtype, variable_of

#: Added to a norm before clipping divides by it.
TINY = 1e-6


def number_in(value: Any, dtype: np.dtype) -> Any:
    """A Python number unchanged, others as a scalar tree of a dtype; OperandError for more than one element."""
    if type(value) in (bool, int, float):
        return value
    tree = variable_of(value, "a number of an optimizer")
    if tree.ndim and tree.size != 1:
        raise OperandError(f"a number of an optimizer has one element, and {describe(tree)} has more")
    tree = f.reshape(tree, ()) if tree.ndim else tree
    return in_dtype(tree, dtype)


def sum_of_squares(trees: Sequence[Any]) -> Any:
    """The sum of the squares of all elements of all trees."""
    total: Any = None
    for tree in reversed(trees):  # a backward pass computes the last gradients first
        part = f.sum(squares(tree), keepdims=False)
        total = part if total is None else total + part
    return total


def bounded(g: Any, bound: Any) -> Any:
    """A gradient with elements, or their parts, of at most a bound."""
    if is_complex(g.dtype):
        return f.complex(bounded(f.real(g), bound), bounded(f.imag(g), bound))
    return f.maximum(f.minimum(g, bound), -bound)


def shrinking(norm: Any, bound: Any) -> Any:
    """The factor that reduces a norm to a bound, 1 if it is below."""
    return f.minimum(number_in(bound, norm.dtype) / (norm + TINY), 1)
