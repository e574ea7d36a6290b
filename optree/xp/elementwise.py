"""The standard's elementwise functions: this project's, by NumPy's functions of the standard's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from optree.dtypes import is_floating
from optree.errors import OperandError
from optree.registry import NUMPY_FUNCTIONS, f
from optree.xp.array import Array, built, of, operand

UNARY = """
abs acos acosh asin asinh atan atanh bitwise_invert ceil cos cosh exp expm1 floor isfinite isinf isnan log log1p log2
log10 logical_not negative positive reciprocal round sign signbit sin sinh square sqrt tan tanh trunc
""".split()

BINARY = """
add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide equal floor_divide
greater greater_equal hypot less less_equal logaddexp logical_and logical_or logical_xor maximum minimum multiply
nextafter not_equal pow remainder subtract
""".split()


def _unary(name: str) -> Callable[..., Any]:
    theirs = getattr(np, name)

    def function(x: Array, /) -> Any:
        return built(NUMPY_FUNCTIONS[theirs](of(x, name).tree))

    return _named(function, name)


def _binary(name: str) -> Callable[..., Any]:
    theirs = getattr(np, name)

    def function(x1: Array, x2: Array, /) -> Any:
        if not isinstance(x1, Array):
            of(x2, name)  # one of the two may be a number
        return built(NUMPY_FUNCTIONS[theirs](operand(x1), operand(x2)))

    return _named(function, name)


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = NUMPY_FUNCTIONS[getattr(np, name)].__doc__
    return function


globals().update({name: _unary(name) for name in UNARY} | {name: _binary(name) for name in BINARY})


def clip(x: Array, /, min: object = None, max: object = None) -> Array:
    """The elements limited to an interval, whose bounds are numbers or arrays, in the dtype of the first.

    Floating bounds of integers promote them, as in NumPy.
    """
    x = of(x, "clip")
    found = f.clip(x.tree, operand(min), operand(max))
    is_promoted = is_floating(found.dtype) and not is_floating(x.dtype)
    return built(found if is_promoted or found.dtype == x.dtype else f.cast(found, x.dtype))


def conj(x: Array, /) -> Array:
    """The complex conjugates: of real arrays, copies."""
    return built(f.conjugate(of(x, "conj").tree))


def real(x: Array, /) -> Array:
    """The real parts: of real arrays, copies."""
    return built(f.real(of(x, "real").tree))


def imag(x: Array, /) -> Array:
    """The imaginary parts: of real arrays, zeros."""
    return built(f.imag(of(x, "imag").tree))


def where(condition: Array, x1: Any, x2: Any, /) -> Array:
    """The elements of x1 where a condition holds, and of x2 elsewhere."""
    if not isinstance(x1, Array) and not isinstance(x2, Array):
        raise OperandError("where: of the two an array at least is wanted, whose dtype the other takes")
    return built(f.where(of(condition, "where").tree, operand(x1), operand(x2)))
