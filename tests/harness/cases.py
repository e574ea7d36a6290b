"""Calls of functions that are composed of ops, with their meanings, and the dtypes in which NumPy computes those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """A call of a composed function, and its meaning.

    Attributes
    ----------
    operands : tuple
        As in an op's examples: shapes, lists of integers, numbers.
    build, meaning : callable
        Of the operands: the tree, and its value on arrays.
    """

    operands: tuple[Any, ...]
    build: Callable[..., Any]
    meaning: Callable[..., Any]


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    def meaning(x: Any) -> Any:
        dtype = x.dtype if x.dtype.kind == "f" else np.float64
        return np.asarray(function(x.astype(np.float64))).astype(dtype)

    return meaning


def wide(x: Any) -> Any:
    return x.astype(np.float64)


def floating(x: Any) -> Any:
    return x.dtype if x.dtype.kind == "f" else np.float64


def in_floating(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of float64 values, in the dtype that NumPy's functions such as exp give."""

    def meaning(x: Any) -> Any:
        return np.asarray(function(x.astype(np.float64))).astype(np.exp(x[:0] if x.ndim else x).dtype)

    return meaning


def in_double_of_all(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same of several operands."""

    def meaning(*values: Any) -> Any:
        return np.asarray(function(*map(wide, values))).astype(np.result_type(*map(floating, values)))

    return meaning


def mean_floats(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of float64 values, in the dtype of a mean of them all."""

    def meaning(*values: Any) -> Any:
        dtypes = [np.mean(np.ones(1, x.dtype)).dtype for x in values[:1]] + [x.dtype for x in values[1:]]
        return np.asarray(function(*map(wide, values))).astype(np.result_type(*dtypes))

    return meaning
