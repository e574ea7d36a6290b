"""The modes of `numpy.pad`, one axis after the other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from optree.dtypes import is_inexact
from optree.errors import OperandError, ShapeError, describe
from optree.numpy.arrangement import rearranged
from optree.ops.joining import widths_of
from optree.ops.shape import slice_along
from optree.registry import f, function, numpy_function
from optree.tree.types import integer_of, normalise_axis
from optree.tree.variable import Operand, Variable, in_dtype, variable_of

#: The modes that pad with elements of the operand, gathered by index.
GATHERED = ("edge", "reflect", "symmetric", "wrap")

#: Those of them that may reflect in the point at the edge instead, with ``reflect_type="odd"``.
REFLECTED = ("reflect", "symmetric")

#: The modes that pad with statistics of the elements along the axis.
STATISTICS: dict[str, Callable[..., Any]] = {
    "maximum": lambda x, axis: f.max(x, axis=axis),
    "mean": lambda x, axis: f.mean(x, axis=axis),
    "median": lambda x, axis: f.median(x, axis=axis),
    "minimum": lambda x, axis: f.min(x, axis=axis),
}

#: Each mode's own parameter.
OPTIONS = {
    "constant": ("constant_values",),
    "empty": (),
    "linear_ramp": ("end_values",),
    **dict.fromkeys(GATHERED, ()),
    **dict.fromkeys(REFLECTED, ("reflect_type",)),
    **dict.fromkeys(STATISTICS, ("stat_length",)),
}


@function()
def pad_by(
    x: Any,
    pad_width: Any,
    mode: str = "constant",
    constant_values: Any = 0,
    end_values: Any = 0,
    stat_length: Any = None,
    reflect_type: str = "even",
) -> Any:
    """The operand padded by a mode of `numpy.pad`; ``"empty"`` pads with zeros.

    Parameters
    ----------
    pad_width : int, pair, sequence of pairs, or dict
        Before and after, for each axis, or by axis.
    mode : str
        constant, edge, empty, linear_ramp, maximum, mean, median, minimum, reflect, symmetric, or wrap.
    constant_values, end_values, stat_length
        A number, a pair, or a pair for each axis.
    reflect_type : {'even', 'odd'}
        Of the modes reflect and symmetric: ``"odd"`` subtracts the reflected elements from twice the edge.

    Examples
    --------
    >>> be.pad_by(be.array([1.0, 2.0]), 1).get()
    array([0., 1., 2., 0.], dtype=float32)
    """
    x = variable_of(x, "pad")
    if mode not in OPTIONS:
        raise OperandError(f"pad: mode is one of {', '.join(sorted(OPTIONS))}, not {mode!r}")
    if reflect_type not in ("even", "odd") or (reflect_type == "odd" and mode not in REFLECTED):
        raise OperandError(f"pad: reflect_type is 'even', or 'odd' in modes {REFLECTED}, not {reflect_type!r}")
    if isinstance(pad_width, dict):
        pad_width = _by_axis(pad_width, x.ndim)
    widths = widths_of(pad_width, x.ndim)
    values = _pairs(end_values if mode == "linear_ramp" else constant_values, x.ndim)
    lengths = _pairs(stat_length, x.ndim)
    for axis, width in enumerate(widths):
        if width == (0, 0):
            continue
        if reflect_type == "odd":
            x = _odd(x, axis, width, mode)
        elif mode in GATHERED:
            x = rearranged([x], _gathered(x, axis, width, mode), axis, x.shape[axis])
        else:
            sides = [
                _side(x, axis, count, after, mode, values[axis][after], lengths[axis][after])
                for after, count in enumerate(width)
            ]
            x = f.concatenate([sides[0], x, sides[1]], axis)
    return f.slice(x, Ellipsis) if all(width == (0, 0) for width in widths) else x


def _by_axis(widths: dict[Any, Any], ndim: int) -> list[Any]:
    found = [(0, 0)] * ndim
    for axis, width in widths.items():
        (found[normalise_axis(axis, ndim, "pad")],) = widths_of(width, 1)
    return found


def _pairs(values: object, ndim: int) -> list[tuple[Any, Any]]:
    """A parameter of np.pad as pairs (before, after), one for each axis."""
    if values is None:
        return [(None, None)] * ndim
    try:
        pairs = np.broadcast_to(np.asarray(values), (ndim, 2))
    except ValueError:
        raise ShapeError(f"pad: {values!r} is no (before, after) for each of {ndim} axes") from None
    if pairs.dtype.kind not in "biuf":
        raise OperandError(f"pad: {values!r} are no numbers")
    return [(before, after) for before, after in pairs.tolist()]


def _gathered(x: Variable, axis: int, width: tuple[int, int], mode: str) -> np.ndarray:
    """The index along an axis of each element of the padded axis: NumPy's padding of ``arange``."""
    size = x.shape[axis]
    if size is None:
        raise ShapeError(f"pad: axis {axis} of {describe(x)} is of open size; mode {mode} needs a known one")
    _expect_elements(x, axis, mode)
    how: Any = mode
    return np.pad(np.arange(size), width, mode=how)


def _expect_elements(x: Variable, axis: int, mode: str) -> None:
    """Raise ShapeError for an axis without elements, which modes other than constant and empty need."""
    if x.shape[axis] == 0:
        raise ShapeError(f"pad: axis {axis} of {describe(x)} is empty, and has no {mode}; mode='constant' pads it")


def _odd(x: Variable, axis: int, width: tuple[int, int], mode: Any) -> Variable:
    """The operand with odd reflections along an axis, which are linear combinations of an element and both edges."""
    index = _gathered(x, axis, width, mode)
    last = x.shape[axis] - 1
    if not last:
        return rearranged([x], index, axis, x.shape[axis])
    # Of two vectors NumPy's padding tells the coefficients, which together are 1.
    indices = np.arange(last + 1)
    of_index, of_squares = (np.pad(v, width, mode=mode, reflect_type="odd") for v in (indices, indices**2))
    sign = np.where(of_squares == index**2 + (of_index - index) * last, 1, -1)
    of_last = (of_index - sign * index) // last
    coefficients = np.stack([sign, 1 - sign - of_last, of_last])
    changes = np.flatnonzero((np.diff(coefficients) != 0).any(axis=0)) + 1
    ends = [0, *changes.tolist(), len(index)]
    given = in_dtype(x, np.dtype("int8")) if x.dtype.kind == "b" else x
    edges = [slice_along(given, axis, 0, 1), slice_along(given, axis, -1, None)]
    pieces = []
    for start, end in pairwise(ends):
        of_element, *of_edges = coefficients[:, start].tolist()
        piece = rearranged([given], index[start:end], axis, given.shape[axis])
        added = [edge * count for count, edge in zip(of_edges, edges, strict=True) if count > 0]
        if added:
            piece = sum(added[1:], added[0]) + piece if of_element > 0 else sum(added[1:], added[0]) - piece
        for count, edge in zip(of_edges, edges, strict=True):
            piece = piece - edge * -count if count < 0 else piece
        pieces.append(piece)
    return in_dtype(f.concatenate(pieces, axis), x.dtype)


def _side(x: Variable, axis: int, count: int, after: int, mode: str, value: Operand, length: Any) -> Variable:
    """The padding on one side of an axis."""
    if mode in ("constant", "empty"):  # of no elements, so that the axis may be empty
        width = [(0, count if i == axis else 0) for i in range(x.ndim)]
        return f.pad(slice_along(x, axis, 0, 0), width, _fitting(0 if mode == "empty" else value, x.dtype))
    _expect_elements(x, axis, mode)
    sizes = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    if mode == "linear_ramp":
        edge = f.expand_dims(f.slice(x, (*(slice(None),) * axis, -after)), axis)  # of size 1, also of an open axis
        steps = np.linspace(0, 1, count, endpoint=False).reshape(-1, *(1,) * (x.ndim - 1 - axis))
        if after:
            steps = steps[::-1].copy()
        wide = x.dtype if is_inexact(x.dtype) else np.dtype("float64")
        ramp = (in_dtype(edge, wide) - value) * steps.astype(wide) + value
        return in_dtype(ramp if wide == x.dtype else f.floor(ramp), x.dtype)
    whole = x.shape[axis]
    if length is not None and (whole is None or length < whole):
        length = integer_of(length, "pad: stat_length")
        if not length and mode in ("maximum", "minimum"):
            raise ShapeError(f"pad: mode {mode} needs a stat_length of 1 or more")
        x = slice_along(x, axis, -length, None) if after else slice_along(x, axis, 0, length)
    found = STATISTICS[mode](x, axis)
    found = in_dtype(f.rint(found) if x.dtype.kind in "iu" and found.dtype != x.dtype else found, x.dtype)
    return f.repeat(found, count, axis) if None in sizes else f.broadcast_to(found, sizes)


def _fitting(value: Any, dtype: np.dtype) -> Any:
    """A number cast to a dtype as NumPy does, as a Python number."""
    return np.asarray(value).astype(dtype).item() if dtype.kind in "biuc" else float(value)


@numpy_function(np.pad)
def _numpy_pad(
    x: Operand,
    pad_width: object,
    mode: str = "constant",
    constant_values: object = None,
    end_values: object = None,
    stat_length: object = None,
    reflect_type: object = None,
) -> Any:
    given = {
        name: value
        for name, value in (
            ("constant_values", constant_values),
            ("end_values", end_values),
            ("stat_length", stat_length),
            ("reflect_type", reflect_type),
        )
        if value is not None
    }
    wrong = [name for name in given if name not in OPTIONS.get(mode, OPTIONS["constant"])]
    if wrong:
        raise TypeError(f"np.pad with mode={mode!r} does not take {', '.join(wrong)}")
    return f.pad(x, pad_width, mode=mode, **given)
