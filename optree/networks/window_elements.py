"""Elements of sliding windows, and the windows of elements: the ops that pools are composed of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, filled, portable
from optree.errors import OperandError, ShapeError, brief
from optree.networks.windows import (
    WindowOperator,
    elements,
    layout_of,
    order_of,
    padding_of,
    paddings,
    per_axis,
    slidings,
    spatial_of,
)
from optree.op.batching import shifted, spread_all
from optree.op.index_map import AFFINE, LIKE, SHAPE, IndexMap
from optree.op.op import Op
from optree.op.traits import AffineOperator, Along, FirstDtypeOperator, MorphOperator, NonDifferentiableOperator
from optree.registry import f
from optree.tree.types import Shape, TensorType, check_fits, may_equal, normalise_axes, promote

INT32 = np.dtype("int32")

#: The maximum elements of a window that are unrolled, and along one axis. A larger window is along one axis after the
#: other; one that is longer along an axis is reduced in loops.
UNROLLED, LONGEST = 16, 32


class PoolOperator(WindowOperator):
    """An op on windows along some axes, or the derivative of one. Its parameters are those of `max_pool`."""

    raises = False
    __props__: ClassVar[tuple[str, ...] | None] = ("window", "stride", "padding", "layout", "axes", "ceil")
    window: Any = 2
    stride: Any = None
    padding: Any = 0
    axes: Any = None
    ceil: bool = False
    #: Whether each window must have an element that is not padding.
    is_covered: ClassVar[bool] = True

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        return self.bound(types, str(self.name))

    def bound(self, types: Sequence[TensorType], what: str) -> Op:
        ndim = types[self.images].ndim
        if len({t.ndim for t in types}) > 1:
            raise ShapeError("the operands have different numbers of dimensions")
        axes = self._axes(ndim, what)
        window = per_axis(self.window, len(axes), f"{what}: window")
        padding = padding_of(self.padding, len(axes), what)
        if self.is_covered and not isinstance(padding, str):
            for pair, size in zip(padding, window, strict=True):
                if max(pair) >= size:
                    raise OperandError(f"{what}: a padding of {max(pair)} leaves a window of {size} without an element")
        return self.with_props(
            window=window,
            stride=window if self.stride is None else per_axis(self.stride, len(axes), f"{what}: stride"),
            padding=padding,
            layout=None,
            axes=axes,
            ceil=bool(self.ceil),
        )

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        return self.with_props(axes=shifted(self.axes))(*spread_all(inputs, batched))

    def _axes(self, ndim: int, what: str) -> tuple[int, ...]:
        if self.axes is not None:
            if self.layout is not None:
                raise OperandError(f"{what}: a layout or axes, not both")
            return normalise_axes(self.axes, ndim, what)
        if ndim < 3:
            raise ShapeError(f"images have a batch, channels and spatial axes, and this has {ndim} dimensions")
        layout = layout_of(self.layout, ndim, "NC", f"{what}: layout")
        return order_of(layout, spatial_of(layout))

    def output_shape(self, *shapes: Shape) -> Shape:
        if not self.images:
            return self.pooled_shape(shapes[0])
        *pooled, like = shapes  # a derivative, of numbers for each window
        self.check_pooled(pooled, like)
        return like

    @property
    def dilations(self) -> tuple[int, ...]:
        """The steps between the elements of a window."""
        return (1,) * len(self.axes)

    def slidings(self, shape: Sequence[int | None]) -> list[Any]:
        """The windows along each pooled axis of an operand of this shape, as of `optree.networks.windows.slidings`."""
        sizes = [shape[axis] for axis in self.axes]
        return slidings(sizes, self.window, self.stride, self.dilations, self.padding, self.ceil)

    def pooled_shape(self, shape: Shape) -> Shape:
        """The shape of one number for each window; ShapeError if a window is larger than its padded axis."""
        sizes = list(shape)
        for axis, each in zip(self.axes, self.slidings(shape), strict=True):
            sizes[axis] = each and each.positions
        return tuple(sizes)

    def check_pooled(self, given: Sequence[Shape], images: Shape) -> None:
        """Raise ShapeError for operands that have not a number for each window."""
        wanted = self.pooled_shape(images)
        for shape in given:
            if not may_equal(shape, wanted):
                raise ShapeError(f"the windows on {images} are {wanted}, and an operand has {shape}")

    @property
    def is_padded(self) -> bool:
        """Whether a window may have elements outside of the images."""
        return self.ceil or self.padding == "same" or any(max(pair) for pair in self.padding)

    def unrolled(self, cls: type[Op], *operands: Any, **props: Any) -> list[Any]:
        """An `ElementOperator` of operands, for each element of a window, in order."""
        make = self.other(cls)
        indices = product(*(range(size) for size in self.window))
        return [make.with_props(element=index, **props)(*operands) for index in indices]

    def laps(self) -> list[Any]:
        """The derivatives of parts of windows, none of which has two windows at an element."""
        each = zip(self.window, self.stride, strict=True)
        starts = [[(e, min(step, size - e)) for e in range(0, size, step)] for size, step in each]
        make = self.other(WindowElementInput)
        return [
            make.with_props(element=tuple([e for e, _ in lap]), cells=tuple([cells for _, cells in lap]))
            for lap in product(*starts)
        ]

    def spread(self, delta: Any, like: Any) -> Any:
        """For each element of images, the sum of delta's elements for the windows that it is in."""
        windows = self.around(delta)
        if windows is None:
            return reduce(f.add, [op(delta, like) for op in self.laps()])
        return f.sum(windows, axis=tuple(range(like.ndim, windows.ndim)), keepdims=False)

    def around(self, x: Any, outside: Any = 0) -> Any:
        """For each element of images, x of the windows that it is in as further axes; None where `laps` are better."""
        if len(self.laps()) <= 2 * LONGEST or {*self.stride} != {1} or self.padding == "same":
            return None
        around = [tuple(size - 1 - each for each in pair) for size, pair in zip(self.window, self.padding, strict=True)]
        return f.windows(x, self.window, 1, tuple(around), axes=self.axes, outside=outside)

    def one_after_another(self) -> list[Any]:
        """The pools along few axes at once that give the same one after another."""
        return [self] if prod(self.window) <= UNROLLED else self.by_axis()

    def by_axis(self) -> list[Any]:
        """The pools along one axis that give the same one after another."""
        padding = paddings(self.padding, len(self.axes))
        each = zip(self.axes, self.window, self.stride, padding, strict=True)
        return [
            self.with_props(axes=(axis,), window=(size,), stride=(step,), padding=room if room == "same" else (room,))
            for axis, size, step, room in each
        ]

    def in_loops(self, x: Any, outside: Any = 0) -> Any:
        """The windows of an operand as further axes, to be reduced; None where they are few enough to be unrolled."""
        if prod(self.window) <= LONGEST:
            return None
        return f.windows(x, self.window, self.stride, self.padding, axes=self.axes, ceil=self.ceil, outside=outside)

    def parts(self, shape: Sequence[int]) -> list[tuple[int, tuple[slice, ...], tuple[slice, ...]]]:
        """Each element of a window: its number, and the indices of windows and of the operand that meet there."""
        found = []
        for element, windows, slices in elements(self.slidings(shape)):
            number = int(np.ravel_multi_index(element, self.window)) if element else 0
            found.append((number, self.placed(windows, len(shape)), self.placed(slices, len(shape))))
        return found

    def placed(self, parts: Sequence[slice], ndim: int) -> tuple[slice, ...]:
        """The index of an array that has these slices along the axes of windows."""
        found = dict(zip(self.axes, parts, strict=True))
        return tuple([found.get(axis, slice(None)) for axis in range(ndim)])


class ElementOperator(PoolOperator, AffineOperator):
    """The element of each window at the same index within it, or the derivative: `element`, one for each axis."""

    __props__ = (*(PoolOperator.__props__ or ()), "element")
    element: Any = None

    def bound(self, types: Sequence[TensorType], what: str) -> Op:
        found: Any = super().bound(types, what)
        window = found.window
        element = (0,) * len(window) if self.element is None else per_axis(self.element, len(window), what, 0)
        if any(i >= size for i, size in zip(element, window, strict=True)):
            raise OperandError(f"{what}: element is an index within a window of {window}, not {brief(self.element)}")
        return found.with_props(element=element)

    def slices(self, shape: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """The indices of windows and of the images that meet at the element."""
        pairs = [s.slices(e) for s, e in zip(self.slidings(shape), self.element, strict=True)]
        windows, index = ([pair[n] for pair in pairs] for n in range(2))
        return self.placed(windows, len(shape)), self.placed(index, len(shape))


class WindowElement(ElementOperator, MorphOperator):
    """The element of each window of images at one index within it; `outside`, a number, where that is padding.

    The other parameters are those of `max_pool`.

    Parameters
    ----------
    x : images
    element : int or tuple of int
        The index. By default the first.
    outside : number

    Examples
    --------
    >>> be.window_element(be.array([[[1.0, 3.0, 2.0, 5.0]]]), 2, element=1).asnumpyarray()
    array([[[3., 5.]]], dtype=float32)
    """

    name = "window_element"
    __props__ = (*(ElementOperator.__props__ or ()), "outside")
    index_map = IndexMap(AFFINE)
    outside: Any = 0  # type: ignore[assignment]
    examples = (
        (((1, 2, 4, 5),), {"element": (1, 0)}),
        (((1, 5, 2),), {"window": 3, "stride": 2, "padding": "same", "layout": "NWC", "outside": 2}),
        (((4, 3),), {"window": 3, "stride": 1, "padding": 1, "axes": 0, "element": 2}),
        (((2, 5, 2),), {"window": 2, "ceil": True, "layout": "CWN", "element": (1,)}),
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        check_fits(self.outside, types[0].dtype, "window_element: outside")
        return super().bind(types, backend)

    def along(self, *shapes: tuple[int, ...]) -> list[Along]:
        (shape,) = shapes
        found = [Along(axis, 1, 0, 0, size) for axis, size in enumerate(shape)]
        for axis, s, e in zip(self.axes, self.slidings(shape), self.element, strict=True):
            windows, _ = s.slices(e)
            found[axis] = Along(axis, s.stride, e - s.before, windows.start, windows.stop)
        return found

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x = as_array(arrays[0])
        out = filled(self.pooled_shape(x.shape), self.outside, x.dtype, x)  # type: ignore[arg-type]
        windows, index = self.slices(x.shape)
        out[windows] = x[index]
        return out

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [self.other(WindowElementInput)(output_gradients[0], inputs[0])]


class WindowElementInput(ElementOperator, FirstDtypeOperator):
    """The derivative of `window_element` by its images `like`, whose shape alone is read, times delta.

    The other parameters are those of `window_element`.

    Parameters
    ----------
    cells : int or tuple of int
        Along each axis, the indices from `element` on to which windows add delta, a stride or less: 1 by default.
    """

    name = "window_element_input"
    operands = ("delta", "like")
    __props__ = (*(ElementOperator.__props__ or ()), "cells")
    cells: Any = 1
    images = 1
    index_map = IndexMap(AFFINE, LIKE)
    examples = (
        (((1, 2, 2, 2), (1, 2, 4, 5)), {"element": (1, 0)}),
        (((1, 3, 2), (1, 5, 2)), {"window": 3, "stride": 2, "padding": "same", "layout": "NWC", "cells": 2}),
        (((4, 3), (4, 3)), {"window": 3, "stride": 1, "padding": 1, "axes": 0, "element": (2,)}),
    )

    def bound(self, types: Sequence[TensorType], what: str) -> Op:
        found: Any = super().bound(types, what)
        cells = per_axis(self.cells, len(found.window), f"{what}: cells")
        most = [min(step, size - e) for step, size, e in zip(found.stride, found.window, found.element, strict=True)]
        if any(own > limit for own, limit in zip(cells, most, strict=True)):
            raise OperandError(f"{what}: cells are at most the stride, within the window: {most}, not {cells}")
        return found.with_props(cells=cells)

    def along(self, *shapes: tuple[int, ...]) -> list[Along]:
        _, like = shapes
        found = [Along(axis, 1, 0, 0, size) for axis, size in enumerate(like)]
        for axis, s, e, cells in zip(self.axes, self.slidings(like), self.element, self.cells, strict=True):
            low = max(e - s.before, 0)
            high = min((s.positions - 1) * s.stride + e - s.before + cells, s.size)
            found[axis] = Along(axis, 1, s.before - e, low, high, s.stride, cells)
        return found

    def each_cell(self, cls: type[Op]) -> list[Any]:
        """An `ElementOperator` at each index."""
        ranges = [range(e, e + cells) for e, cells in zip(self.element, self.cells, strict=True)]
        return [self.other(cls).with_props(element=element) for element in product(*ranges)]

    @portable
    def numpy(self, *arrays: Array) -> Any:
        delta, like = (as_array(a, *arrays) for a in arrays)
        out = np.zeros(like.shape, delta.dtype, like=delta)
        for op in self.each_cell(WindowElement):
            windows, index = op.slices(like.shape)
            out[index] = delta[windows]
        return out

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [reduce(f.add, [op(output_gradients[0]) for op in self.each_cell(WindowElement)]), None]


class WindowStep(PoolOperator, AffineOperator, NonDifferentiableOperator):
    """Of each element of images `like`, whose shape alone is read, the element of x at its steps from a window.

    These are the steps from the beginning of the last window that begins at the element or before. x is of integers; it
    has an element for each step, as many as the stride, along the axes of windows, and is broadcast along others. The
    other parameters are those of `max_pool`.

    Examples
    --------
    >>> be.window_step(be.array([[[5, 6, 7]]], "int32"), be.zeros((1, 1, 5)), 3, padding=1).asnumpyarray()
    array([[[6, 7, 5, 6, 7]]], dtype=int32)
    """

    name = "window_step"
    operands = ("x", "like")
    images = 1
    index_map = IndexMap(AFFINE, LIKE)
    examples = (
        (([[[[0, 1], [3, 2]]]], (1, 2, 4, 5)), {}),
        (([[[7], [8]]], (1, 5, 2)), {"window": 3, "stride": 2, "padding": "same", "layout": "NWC"}),
        (([[2], [4]], (2, 4)), {"window": 3, "stride": 1, "axes": 1}),
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        if types[0].dtype.kind not in "biu":
            raise OperandError(f"window_step: x is of integers, not of {types[0].dtype}")
        return super().bind(types, backend)

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return promote(dtypes[0]), promote(dtypes[1]), promote(dtypes[0])

    def output_shape(self, *shapes: Shape) -> Shape:
        x, like = shapes
        steps = dict(zip(self.axes, self.stride, strict=True))
        wanted = tuple(steps.get(axis, 1 if x[axis] == 1 else size) for axis, size in enumerate(like))
        if not may_equal(x, wanted):
            raise ShapeError(f"an element for each step of the strides is {wanted}, and an operand has {x}")
        return like

    def along(self, *shapes: tuple[int, ...]) -> list[Along]:
        x, like = shapes
        found = [Along(axis if x[axis] > 1 else None, 1, 0, 0, size) for axis, size in enumerate(like)]
        for axis, s in zip(self.axes, self.slidings(like), strict=True):
            if s.stride > 1:
                found[axis] = Along(axis, 1, s.before, 0, s.size, s.stride, s.stride, is_remainder=True)
        return found

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, like = (as_array(a, *arrays) for a in arrays)
        for axis, s in zip(self.axes, self.slidings(like.shape), strict=True):
            x = x.take(np.asarray((np.arange(s.size) + s.before) % s.stride, like=x), axis)
        return np.broadcast_to(x, like.shape).copy()


class WindowFacts(PoolOperator, NonDifferentiableOperator):
    """Of each window on images `like`, whose shape alone is read, a number by its position: of size 1 elsewhere.

    Parameters
    ----------
    fact : {'cells', 'first'}
        The number of its elements that are inside the images, or the index of the first of them, -1 without any.
    """

    name = "window_facts"
    operands = ("like",)
    __props__ = (*(PoolOperator.__props__ or ()), "fact")
    fact: Any = "cells"
    index_map = IndexMap(SHAPE)
    examples = (
        (((1, 2, 4, 5),), {"padding": 1}),
        (((1, 5, 2),), {"window": 3, "stride": 2, "padding": "same", "layout": "NWC", "fact": "first"}),
    )

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return promote(dtypes[0]), INT32

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        (like,) = inputs
        rows = f.flat_indices(f.sum(like, axis=tuple(range(1, like.ndim)), keepdims=True))  # of the batch's shape
        return f.cast(self.with_props(axes=shifted(self.axes))(like) + 0 * rows, INT32)

    def output_shape(self, *shapes: Shape) -> Shape:
        pooled = self.pooled_shape(shapes[0])
        return tuple(size if axis in self.axes else 1 for axis, size in enumerate(pooled))

    @portable
    def numpy(self, *arrays: Array) -> Any:
        like = as_array(arrays[0])
        found = np.ones((1,) * like.ndim, INT32) if self.fact == "cells" else np.zeros((1,) * like.ndim, INT32)
        for axis, window, s in zip(self.axes, self.window, self.slidings(like.shape), strict=True):
            ends = [each.reshape(-1, *(1,) * (like.ndim - axis - 1)) for each in s.inside()]
            if self.fact == "cells":
                found = found * (ends[1] - ends[0])
            else:
                first = np.where((found < 0) | (ends[1] <= ends[0]), -1, ends[0])
                found = np.where((found < 0) | (first < 0), -1, found * window + first)
        return np.asarray(found, INT32, like=like)
