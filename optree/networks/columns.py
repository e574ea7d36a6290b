"""Windows of images as columns (im2col), and the sums of columns as images (col2im)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import wide_dtype
from optree.errors import ShapeError
from optree.networks.windows import (
    Sliding,
    WindowOperator,
    arranged,
    elements,
    layout_of,
    padding_of,
    per_axis,
    slidings,
    spatial_of,
    window_counts,
)
from optree.op.batching import with_images
from optree.op.index_map import LIKE, OPAQUE, IndexMap
from optree.op.op import Op
from optree.op.traits import FirstDtypeOperator, MorphOperator
from optree.registry import alias
from optree.tree.types import Shape, TensorType, may_equal


class ColumnsOperator(WindowOperator):
    """An op between images and columns of shape (N, C * elements of a window, windows), as `unfold` has them."""

    raises = False
    __props__: ClassVar[tuple[str, ...] | None] = ("window", "stride", "padding", "dilation", "layout")
    window: Any = 2
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        return self.bound_to(types[self.images].ndim)

    def bound_to(self, ndim: int) -> Op:
        """The op with its parameters in their normal form for images of `ndim` dimensions."""
        what = str(self.name)
        if ndim < 3:
            raise ShapeError(f"images have a batch, channels and spatial axes, and this has {ndim} dimensions")
        return self.with_props(
            window=per_axis(self.window, ndim - 2, f"{what}: window"),
            stride=per_axis(self.stride, ndim - 2, f"{what}: stride"),
            padding=padding_of(self.padding, ndim - 2, what),
            dilation=per_axis(self.dilation, ndim - 2, f"{what}: dilation"),
            layout=layout_of(self.layout, ndim, "NC", f"{what}: layout"),
        )

    def columns_shape(self, images: Shape) -> Shape:
        """The shape of the columns of images; ShapeError if a window is larger than its padded axis."""
        n, c, *sizes = (images[i] for i in self.order)
        counts = window_counts(tuple(sizes), self.window, self.stride, self.dilation, self.padding)
        columns = None if None in counts else prod(counts)  # type: ignore[arg-type]
        return (n, None if c is None else c * prod(self.window), columns)

    def slidings(self, sizes: Sequence[int]) -> list[Sliding]:
        """The windows along each spatial axis."""
        return slidings(sizes, self.window, self.stride, self.dilation, self.padding)

    def check_columns(self, given: Shape, images: Shape) -> None:
        """Raise ShapeError for columns that are not those of images."""
        wanted = self.columns_shape(images)
        if not may_equal(given, wanted):
            raise ShapeError(f"images of {images} have columns of {wanted}, not {given}")

    def unfolded(self, x: Any) -> Any:
        """The columns of images."""
        x = x.transpose(self.order)
        slidings = self.slidings(x.shape[2:])
        out: Any = np.zeros((*x.shape[:2], *self.window, *(s.positions for s in slidings)), x.dtype, like=x)
        for element, windows, slices in elements(slidings):
            out[(slice(None), slice(None), *element, *windows)] = x[(..., *slices)]
        return out.reshape(x.shape[0], x.shape[1] * prod(self.window), prod(s.positions for s in slidings))

    def folded(self, columns: Any, shape: Any) -> Any:
        """The sums of columns, as images of a shape."""
        out = np.zeros(shape, wide_dtype(columns.dtype), like=columns)
        target: Any = out.transpose(self.order)
        slidings = self.slidings(target.shape[2:])
        columns = columns.reshape(*target.shape[:2], *self.window, *(s.positions for s in slidings))
        for element, windows, slices in elements(slidings):
            target[(..., *slices)] += columns[(slice(None), slice(None), *element, *windows)]
        return out.astype(columns.dtype, copy=False)


@alias("im2col")
class Unfold(ColumnsOperator, MorphOperator):
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

    name = "unfold"
    examples = (
        (((2, 2, 4),), {"window": 2}),
        (((1, 2, 4, 5),), {"window": (2, 3), "stride": (2, 1), "padding": ((0, 1), (1, 0))}),
        (((1, 5, 4, 2),), {"window": 2, "layout": "NHWC", "dilation": 2, "padding": "same"}),
        (((1, 1, 2, 3, 2),), {"window": (1, 2, 2)}),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        return self.columns_shape(shapes[0])

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        return with_images(self, inputs, batched, (self.layout.index("N"),), 0)

    @portable
    def numpy(self, x: Array) -> Any:
        return self.unfolded(as_array(x))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [self.other(FoldLike)(output_gradients[0], inputs[0])]


class FoldLike(ColumnsOperator, FirstDtypeOperator):
    """The sums of columns where `unfold` takes them from images `like`, whose shape alone is read: its derivative."""

    name = "fold_like"
    operands = ("x", "like")
    index_map = IndexMap(OPAQUE, LIKE)
    images = 1
    examples = (
        (((2, 4, 3), (2, 2, 4)), {"window": 2}),
        (((1, 12, 10), (1, 2, 4, 5)), {"window": (2, 3), "stride": (2, 1), "padding": ((0, 1), (1, 1))}),
        (((1, 8, 20), (1, 5, 4, 2)), {"window": 2, "layout": "NHWC", "dilation": 2, "padding": "same"}),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        columns, like = shapes
        if len(columns) != 3:
            raise ShapeError(f"columns have 3 dimensions, (N, C * elements of a window, windows), not {len(columns)}")
        self.check_columns(columns, like)
        return like

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        axis = self.layout.index("N")
        return with_images(self, inputs, batched, (0, axis), axis)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        columns, like = (as_array(a, *arrays) for a in arrays)
        return self.folded(columns, like.shape)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [self.other(Unfold)(output_gradients[0]), None]


@alias("col2im")
class Fold(ColumnsOperator, MorphOperator):
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

    name = "fold"
    __props__ = ("size", *(ColumnsOperator.__props__ or ()))
    required = ("size", "window")
    size: Any = (2, 2)
    examples = (
        (((2, 4, 3),), {"size": (4,), "window": 2}),
        (((1, 12, 10),), {"size": (4, 5), "window": (2, 3), "stride": (2, 1), "padding": ((0, 1), (1, 1))}),
        (((1, 8, 20),), {"size": (5, 4), "window": 2, "layout": "NHWC", "dilation": 2, "padding": "same"}),
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        if types[0].ndim != 3:
            raise ShapeError(f"columns have 3 dimensions, (N, C * elements of a window, windows), not {types[0].ndim}")
        size = self.size if isinstance(self.size, tuple | list) else (self.size,)
        return self.bound_to(len(size) + 2).with_props(size=per_axis(size, len(size), "fold: size"))

    def output_shape(self, *shapes: Shape) -> Shape:
        (columns,) = shapes
        n, rows, _ = columns
        if rows is not None and rows % prod(self.window):
            raise ShapeError(f"{rows} rows are no multiple of the {prod(self.window)} elements of a window")
        channels = None if rows is None else rows // prod(self.window)
        images = arranged((n, channels, *self.size), self.layout, "NC" + spatial_of(self.layout))
        self.check_columns(columns, images)
        return images

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        return with_images(self, inputs, batched, (0,), self.layout.index("N"))

    @portable
    def numpy(self, x: Array) -> Any:
        columns = as_array(x)
        return self.folded(columns, self.output_shape(columns.shape))  # type: ignore[arg-type]

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [self.other(Unfold)(output_gradients[0])]
