"""Windows that slide along axes: sizes, paddings, layouts, and the slices that meet at each element of a window.

Convolutions and pools are loops over the elements of the window, each of which
is one strided slice of the operand: no copy of all windows is ever made.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, ClassVar

import numpy as np

from optree.errors import OperandError, ShapeError, brief, describe
from optree.op.op import Op, sorted_arguments
from optree.records import NamedTuple
from optree.tree.types import Shape
from optree.tree.variable import Variable

#: The letters of the spatial axes, the last first where there are fewer.
SPATIAL = "DHW"

#: A padding before and after each axis, or the word for one that depends on the sizes.
Padding = str | tuple[tuple[int, int], ...]


class Sliding(NamedTuple):
    """Windows along one axis."""

    #: Of the axis and of the window, and the steps from window to window and within one.
    size: int
    window: int
    stride: int
    dilation: int
    #: The padding before the axis.
    before: int
    #: The number of windows.
    positions: int

    def slices(self, element: int) -> tuple[slice, slice]:
        """The windows whose element of this number is inside the axis, and where it is."""
        offset = element * self.dilation - self.before
        first = max(0, -(offset // self.stride))
        last = min(self.positions, (self.size - 1 - offset) // self.stride + 1)
        if last <= first:
            return slice(0, 0), slice(0, 0)
        begin = first * self.stride + offset
        return slice(first, last), slice(begin, begin + (last - first - 1) * self.stride + 1, self.stride)

    def inside(self) -> tuple[np.ndarray, np.ndarray]:
        """The first element of each window that is inside the axis, and the one after the last."""
        begin = np.arange(self.positions) * self.stride - self.before
        ends = (-(begin // self.dilation), (self.size - 1 - begin) // self.dilation + 1)
        first, last = (np.clip(each, 0, self.window) for each in ends)
        return first, np.maximum(first, last)


def elements(slidings: Sequence[Sliding]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
    """Each element of a window, with the slices of the windows that have it inside, and of the axes that it is at."""
    for element in product(*(range(s.window) for s in slidings)):
        pairs = [s.slices(i) for s, i in zip(slidings, element, strict=True)]
        windows, slices = zip(*pairs, strict=True) if pairs else ((), ())
        if all(part.stop for part in windows):
            yield element, tuple(windows), tuple(slices)


# Parameters


def per_axis(value: Any, count: int, what: str, least: int = 1) -> tuple[int, ...]:
    """A number for each of some axes, from one or as many.

    It raises OperandError if it is neither, or one is less than it may be.
    """
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    if len(values) != count or not all(_is_integer(x) and x >= least for x in values):
        several = f", or {count} of them" if count > 1 else ""
        raise OperandError(f"{what} is an integer of {least} or more{several}, not {brief(value)}")
    return tuple(map(int, values))


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def padding_of(value: Any, count: int, what: str) -> Padding:
    """A padding in its normal form: ``"same"``, or a pair for each axis; OperandError if it is none."""
    if value == "valid":
        return ((0, 0),) * count
    if isinstance(value, str):
        if value != "same":
            raise OperandError(f"{what}: padding is 'same', 'valid' or numbers, not {value!r}")
        return value
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    pairs = [tuple(x) if isinstance(x, tuple | list) else (x, x) for x in values]
    flat = [x for pair in pairs for x in pair]
    if len(pairs) != count or any(len(p) != 2 for p in pairs) or not all(_is_integer(x) and x >= 0 for x in flat):
        raise OperandError(
            f"{what}: padding is 'same', 'valid', an integer of 0 or more, or for each of the {count} axes one or a "
            f"pair (before, after), not {brief(value)}"
        )
    return tuple((int(a), int(b)) for a, b in pairs)


def sliding(size: int, window: int, stride: int, dilation: int, padding: Any, ceil: bool = False) -> Sliding:
    """Windows along an axis.

    `padding` (pair of int, or ``"same"``): with ``"same"`` there are size / stride windows, rounded up, and as much
    padding after the axis as before it, or one more.
    `ceil`: whether a last window may reach beyond the padding, so long as it begins before the end of the axis.

    Raises ShapeError if a window is empty, or larger than the padded axis.
    """
    if window < 1:
        raise ShapeError(f"a window of {window} has no elements for an axis of {size}")
    extent = dilation * (window - 1) + 1
    if padding == "same":
        count = -(-size // stride)
        return Sliding(size, window, stride, dilation, max((count - 1) * stride + extent - size, 0) // 2, count)
    before, after = padding
    room = size + before + after - extent
    if room < 0:
        padded = f", {size + before + after} with its padding" if before + after else ""
        raise ShapeError(f"a window of {_extent(window, dilation)} is larger than an axis of {size}{padded}")
    count = room // stride + 1
    if ceil and room % stride and count * stride < size + before:
        count += 1
    return Sliding(size, window, stride, dilation, before, count)


def _extent(window: int, dilation: int) -> str:
    return f"{window}" + (f" that spans {dilation * (window - 1) + 1}" if dilation > 1 else "")


def paddings(padding: Padding, count: int) -> Sequence[Any]:
    """The padding of each of some axes, as of `sliding`."""
    return [padding] * count if isinstance(padding, str) else padding


def slidings(
    sizes: Sequence[int | None],
    window: Sequence[int | None],
    stride: Sequence[int],
    dilation: Sequence[int],
    padding: Padding,
    ceil: bool = False,
) -> list[Any]:
    """Windows along each of some axes, as `sliding`; None where a size is open."""
    each = zip(sizes, window, stride, dilation, paddings(padding, len(window)), strict=True)
    return [None if None in known[:2] else sliding(*known, ceil) for known in each]  # type: ignore[arg-type]


# Layouts


def layout_of(given: Any, ndim: int, ends: str, what: str, spatial: str | None = None) -> str:
    """A layout, as a letter for each axis; by default the two `ends`, then the spatial axes.

    `ends`: the letters that are not spatial: ``"NC"`` of images, ``"OI"`` of weights.
    `spatial`: the letters of the spatial axes, if they are known.

    Raises OperandError if it does not name the axes.
    """
    if given is None:
        return ends + (spatial if spatial is not None else SPATIAL[-(ndim - 2) :] if ndim > 2 else "")
    wanted = f"{ends} and {' '.join(spatial)}" if spatial is not None else f"{ends} and the spatial axes"
    if not isinstance(given, str) or len(set(given)) != len(given) or not set(ends) <= set(given):
        raise OperandError(f"{what} is a text with each of {wanted} once, such as {f'{ends}HW'!r}, not {brief(given)}")
    if len(given) != ndim:
        raise OperandError(f"{what} {given!r} names {len(given)} axes, and the operand has {ndim}")
    if spatial is not None and {*given} != {*ends, *spatial}:
        raise OperandError(f"{what} {given!r} does not have {wanted}")
    return given


def spatial_of(layout: str) -> str:
    """The letters of the spatial axes of images' layout, in order."""
    return "".join(letter for letter in layout if letter not in "NC")


def order_of(layout: str, letters: str) -> tuple[int, ...]:
    """The axis of each letter."""
    return tuple(map(layout.index, letters))


def arranged(shape: Shape, layout: str, letters: str) -> Shape:
    """A shape in a layout, from the sizes of these letters."""
    sizes = dict(zip(letters, shape, strict=True))
    return tuple(sizes[letter] for letter in layout)


class ImageOperator(Op):
    """An op on images, or the derivative of one."""

    #: The axes of images, as of `conv`.
    layout: Any = None
    #: The operand that is the images, or has their shape.
    images: ClassVar[int] = 0

    @property
    def order(self) -> tuple[int, ...]:
        """The images' axes in the order N, C, spatial."""
        return order_of(self.layout, "NC" + spatial_of(self.layout))

    def check_in(self, what: str, *operands: Variable) -> Any:
        """The op with parameters for these operands, for functions composed of an op of another name.

        Raises ShapeError or OperandError if the operands do not fit; it names the function `what` and the operands.
        """
        types = [x.type for x in operands]
        try:
            bound: Any = self.bound(types, what)
            bound.output_shape(*(t.shape for t in types))
        except ShapeError as error:
            raise ShapeError(f"{what}: {' and '.join(map(describe, operands))}: {error}") from None
        return bound

    def bound(self, types: Sequence[Any], what: str) -> Op:
        """The op with parameters for operands of these types; errors name the function `what`."""
        return self

    def other(self, cls: type[Op]) -> Any:
        """An op of another class with those of the parameters that it has."""
        return cls.make(**{name: value for name, value in self.props.items() if name in cls.prop_names()})


def missing(what: str, name: str) -> OperandError:
    """The error of a call without a parameter that is a number, or one for each axis."""
    return OperandError(f"{what}: {name} is missing: a number, or one for each axis")


class WindowOperator(ImageOperator):
    """An op on windows of images, whose size a call must give."""

    @classmethod
    def function(cls, *args: Any, **kwargs: Any) -> Any:
        if "window" not in sorted_arguments(cls, args, kwargs)[1]:
            raise missing(str(cls.name), "window")
        return super().function(*args, **kwargs)

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        found = super().parameters()
        return [p.replace(default=inspect.Parameter.empty) if p.name == "window" else p for p in found]
