"""Windows of images as axes and as columns (im2col), and the sums of what was made of them (col2im)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, filled, portable, strided
from optree.dtypes import wide_dtype
from optree.errors import ShapeError
from optree.networks.window_elements import PoolOperator
from optree.networks.windows import elements, layout_of, missing, order_of, per_axis, spatial_of
from optree.op.index_map import LIKE, OPAQUE, STRIDED, IndexMap
from optree.op.op import Op
from optree.op.traits import FirstDtypeOperator, MorphOperator
from optree.ops.shape import sizes_for_reshape
from optree.registry import f, function
from optree.tree.types import Shape, TensorType, check_fits, may_equal
from optree.tree.variable import Operand, Variable, variable_of


class WindowsOperator(PoolOperator):
    """Windows as axes, or the derivative. Its parameters are those of `windows`."""

    __props__: ClassVar[tuple[str, ...] | None] = (*(PoolOperator.__props__ or ()), "dilation")
    dilation: Any = 1
    is_covered = False

    def bound(self, types: Sequence[TensorType], what: str) -> Op:
        found: Any = super().bound(types, what)
        return found.with_props(dilation=per_axis(self.dilation, len(found.axes), f"{what}: dilation"))  # type: ignore[no-any-return]

    @property
    def dilations(self) -> tuple[int, ...]:
        return self.dilation  # type: ignore[no-any-return]

    def pooled_shape(self, shape: Shape) -> Shape:
        """The shape of the windows: their positions, then for each axis the elements of one."""
        return (*super().pooled_shape(shape), *self.window)


class Windows(WindowsOperator, MorphOperator):
    """The windows on images: each axis has their positions, and the elements of one are further axes, the last.

    It is a view, of a copy where there is padding.

    Parameters
    ----------
    x : images
    window, stride, padding, layout, axes, ceil
        As of `max_pool`.
    dilation : int or tuple of int
        The step between the elements of a window.
    outside : number
        The elements in the padding.

    Examples
    --------
    >>> be.windows(be.array([[[1.0, 2.0, 3.0]]]), 2, stride=1).asnumpyarray()
    array([[[[1., 2.],
             [2., 3.]]]], dtype=float32)
    """

    name = "windows"
    __props__ = (*(WindowsOperator.__props__ or ()), "outside")
    index_map = IndexMap(STRIDED)
    outside: Any = 0
    examples = (
        (((1, 2, 4, 5),), {"window": (2, 3), "stride": (2, 1), "padding": ((0, 1), (1, 0))}),
        (((1, 5, 4, 2),), {"window": 2, "stride": 1, "layout": "NHWC", "dilation": 2, "padding": "same"}),
        (((5, 2),), {"window": 2, "axes": 0, "ceil": True, "outside": 1}),
        (((0, 4),), {"window": 3, "stride": 1, "axes": 1}),
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        check_fits(self.outside, types[0].dtype, "windows: outside")
        return super().bind(types, backend)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x = as_array(arrays[0])
        room, inside = self.room(x.shape)
        padded = x if room == list(x.shape) else filled(room, self.outside, x.dtype, x)
        if padded is not x:
            padded[inside] = x
        return self.of_padded(padded, x.shape)

    def room(self, shape: Sequence[Any]) -> tuple[list[int], tuple[slice, ...]]:
        """The shape of padded images, and the images' place in them."""
        room, inside = list(shape), [slice(None)] * len(shape)
        for axis, s in zip(self.axes, self.slidings(shape), strict=True):
            room[axis] = max(s.before + s.size, (s.positions - 1) * s.stride + s.dilation * (s.window - 1) + 1)
            inside[axis] = slice(s.before, s.before + s.size)
        return room, tuple(inside)

    def of_padded(self, x: Array, given: Sequence[Any]) -> Any:
        """The windows on padded images, as a view; `given` is the shape without padding."""
        shape, strides, steps = list(given), list(x.strides), []
        for axis, s in zip(self.axes, self.slidings(given), strict=True):
            shape[axis], strides[axis] = s.positions, s.stride * x.strides[axis]
            steps.append(s.dilation * x.strides[axis])
        return strided(x, (*shape, *self.window), (*strides, *steps))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [self.other(WindowsInput)(output_gradients[0], inputs[0])]


class WindowsInput(WindowsOperator, FirstDtypeOperator):
    """The derivative of `windows` by its images `like`, whose shape alone is read, times delta: sums of overlaps.

    The parameters are those of `windows`.
    """

    name = "windows_input"
    takes_complex = True
    operands = ("delta", "like")
    index_map = IndexMap(OPAQUE, LIKE)
    images = 1
    examples = (
        (((1, 2, 3, 4, 2, 3), (1, 2, 4, 5)), {"window": (2, 3), "stride": (2, 1), "padding": ((0, 2), (1, 0))}),
        (((1, 5, 4, 2, 2, 2), (1, 5, 4, 2)), {"stride": 1, "layout": "NHWC", "dilation": 2, "padding": "same"}),
        (((3, 2, 2), (5, 2)), {"axes": 0, "ceil": True}),
    )

    def bound(self, types: Sequence[TensorType], what: str) -> Op:
        return super().bound([types[1]] * 2, what)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        delta, like = (as_array(a, *arrays) for a in arrays)
        out = np.zeros(like.shape, wide_dtype(delta.dtype), like=delta)
        for element, windows, slices in elements(self.slidings(like.shape)):
            out[self.placed(slices, out.ndim)] += delta[(*self.placed(windows, out.ndim), *element)]
        return out.astype(delta.dtype, copy=False)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [self.other(Windows)(output_gradients[0]), None]


# Columns


def _windows(what: str, images: Variable, window: Any, layout: Any, **props: Any) -> tuple[Any, list[int], Shape]:
    """The op of a function on columns; the windows' axes as N, C, elements and positions; and their sizes as those."""
    if window is None:
        raise missing(what, "window")
    letters = layout_of(layout, images.ndim, "NC", f"{what}: layout")
    op = Windows.make(window=window, layout=letters, **props).check_in(what, images)
    n, c, *spatial = order_of(letters, "NC" + spatial_of(letters))
    order = [n, c, *range(images.ndim, images.ndim + len(spatial)), *spatial]
    shape = op.pooled_shape(images.shape)
    return op, order, tuple([shape[axis] for axis in order])


def _columns_shape(sizes: Shape) -> Shape:
    """The shape of columns, from the sizes of windows."""
    rank = len(sizes) // 2
    return (sizes[0], *(None if None in part else prod(part) for part in (sizes[1 : rank + 1], sizes[rank + 1 :])))  # type: ignore[arg-type]


@function(names=("im2col",))
def unfold(
    x: Operand, window: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, layout: Any = None
) -> Any:
    """The windows of images as columns, (N, C * elements of a window, windows): im2col.

    Parameters
    ----------
    x : images
    window, stride, dilation : int or tuple of int
    padding, layout
        As of `conv`. The columns' axes are in the same order for every layout.

    Examples
    --------
    >>> be.unfold(be.array([[[1.0, 2.0, 3.0]]]), 2).asnumpyarray()
    array([[[1., 2.],
            [2., 3.]]], dtype=float32)
    """
    x = variable_of(x, "unfold")
    op, order, sizes = _windows("unfold", x, window, layout, stride=stride, padding=padding, dilation=dilation)
    return f.reshape(f.transpose(op(x), order), sizes_for_reshape(_columns_shape(sizes), x, "unfold"))


@function(names=("col2im",))
def fold(
    x: Operand,
    size: Any = None,
    window: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    layout: Any = None,
) -> Any:
    """The sums of columns, as images of a size: col2im, which adds up where windows overlap.

    Parameters
    ----------
    x : columns
        (N, C * elements of a window, windows), as from `unfold`.
    size : tuple of int
        The sizes of the images' spatial axes.
    window, stride, padding, dilation, layout
        As of `unfold`.

    Examples
    --------
    >>> be.fold(be.array([[[1.0, 2.0], [2.0, 3.0]]]), (3,), 2).asnumpyarray()
    array([[[1., 4., 3.]]], dtype=float32)
    """
    x = variable_of(x, "fold")
    if size is None:
        raise missing("fold", "size")
    if x.ndim != 3:
        raise ShapeError(f"fold: columns have 3 dimensions, (N, C * elements of a window, windows), not {x.ndim}")
    size = per_axis(size, len(size) if isinstance(size, tuple | list) else 1, "fold: size")
    count = prod(per_axis(window, len(size), "fold: window")) if window is not None else 1
    if x.shape[1] is not None and x.shape[1] % count:
        raise ShapeError(f"fold: {x.shape[1]} rows are no multiple of the {count} elements of a window")
    letters = layout_of(layout, len(size) + 2, "NC", "fold: layout")
    spatial = spatial_of(letters)
    # Of the images only the shape is used.
    one = f.expand_dims(f.slice(x, (slice(None), slice(None, None, count), 0)), tuple(range(2, len(size) + 2)))
    like = f.transpose(one + np.zeros((1, 1, *size), bool), order_of("NC" + spatial, letters))
    op, order, sizes = _windows("fold", like, window, layout, stride=stride, padding=padding, dilation=dilation)
    if not may_equal(x.shape, _columns_shape(sizes)):
        raise ShapeError(f"fold: images of {like.shape} have columns of {_columns_shape(sizes)}, not {x.shape}")
    windows = f.transpose(f.reshape(x, sizes_for_reshape(sizes, x, "fold")), np.argsort(order).tolist())
    return op.other(WindowsInput)(windows, like)
