"""Resizing of images, pooling of their regions of interest, and non-maximum suppression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce
from itertools import product
from math import prod
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import wide_dtype
from optree.errors import OperandError, ShapeError, brief
from optree.networks.windows import ImageOperator, arranged, layout_of, order_of, per_axis, spatial_of
from optree.op.batching import with_images
from optree.op.examples import Examples
from optree.op.index_map import LIKE, OPAQUE, SHAPE, IndexMap
from optree.op.op import Op
from optree.op.traits import CompositeOperator, NonDifferentiableOperator
from optree.ops.reduction import MeanDtypeOperator, mean_dtype
from optree.registry import f, function
from optree.tree.types import Shape, TensorType, may_equal, normalise_axis, promote
from optree.tree.variable import Operand, in_dtype, is_neon, variable_of

INT64 = np.dtype("int64")

#: Maximum tables of resized axes that are kept, and a flat index beyond any array, also when others are added.
TABLES, NOWHERE = 256, -(1 << 60)

#: The columns of a box: the number of its image, and the first and last coordinates.
BOX = ("image", "x0", "y0", "x1", "y1")


# Resizing


class ResizeOperator(ImageOperator):
    """Images resized along their spatial axes, or the derivative of that. Its parameters are those of `resize`."""

    raises = False
    __props__: ClassVar[tuple[str, ...] | None] = ("size", "scale", "method", "align_corners", "layout")
    size: Any = None
    scale: Any = None
    method: str = "bilinear"
    align_corners: bool = False
    is_transposed: ClassVar[bool] = False

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        what, ndim = str(self.name), types[self.images].ndim
        if ndim < 3 or len({t.ndim for t in types}) > 1:
            raise ShapeError("images have a batch, channels and spatial axes")
        if self.method not in ("nearest", "bilinear"):
            raise OperandError(f"{what}: method is 'nearest' or 'bilinear', not {self.method!r}")
        if (self.size is None) == (self.scale is None):
            raise OperandError(f"{what}: give a size or a scale, and not both")
        size = None if self.size is None else per_axis(self.size, ndim - 2, f"{what}: size")
        scale = None if self.scale is None else _factors(self.scale, ndim - 2, what)
        layout = layout_of(self.layout, ndim, "NC", f"{what}: layout")
        return self.with_props(size=size, scale=scale, align_corners=bool(self.align_corners), layout=layout)

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        axis = self.layout.index("N")
        return with_images(self, inputs, batched, [axis] * len(inputs), axis)

    @property
    def axes(self) -> tuple[int, ...]:
        """The spatial axes."""
        return order_of(self.layout, spatial_of(self.layout))

    def resized_shape(self, shape: Shape) -> Shape:
        """The shape of resized images."""
        sizes = list(shape)
        for i, axis in enumerate(self.axes):
            known = shape[axis]
            if known == 0:
                raise ShapeError(f"axis {axis} is empty, and has no elements to interpolate")
            if self.size is not None:
                sizes[axis] = self.size[i]
            elif known is not None:
                sizes[axis] = max(1, int(known * self.scale[i]))
        return tuple(sizes)

    def table(self, shape: Sequence[int], axis: int) -> tuple[np.ndarray, np.ndarray]:
        """For each element of an axis of the value the elements that it is of, in order, and their weights.

        Both are (taps, size); a tap that an element does not have is -1. The shape is that of images before.
        """
        after: Any = self.resized_shape(tuple(shape))
        return _table(shape[axis], after[axis], self.method, self.align_corners, self.is_transposed)

    def resampled(self, x: Array, shape: Sequence[int]) -> Any:
        """The value, one axis after the other, in the dtype of x; the shape is that of images before."""
        for axis in self.axes:
            parts = []
            for index, weight in zip(*self.table(shape, axis), strict=True):
                part = np.take(x, np.asarray(np.maximum(index, 0), like=x), axis=axis)
                if self.method != "nearest":
                    part = part * _along(weight.astype(x.dtype), axis, part)
                parts.append(
                    part if index.min() >= 0 else np.where(_along(index >= 0, axis, part), part, x.dtype.type(0))
                )
            x = reduce(np.add, parts)
        return x

    def tables(self, like: Any, weights: bool = False) -> list[Any]:
        """A tree of each resized axis's table of flat indices, or of weights: (taps, size)."""
        make = self.other(ResizeTable).with_props(weights=weights, transposed=self.is_transposed)
        return [make.with_props(axis=axis)(like) for axis in self.axes]

    def others(self, like: Any) -> Any:
        """A tree of the flat indices along the other axes; those that are resized have size 1."""
        return self.other(ResizeTable).with_props(axis=None, transposed=self.is_transposed)(like)


@lru_cache(TABLES)
def _table(
    before: int, after: int, method: str, align_corners: bool, transposed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The table of an axis that is resized (`ResizeOperator.table`)."""
    i = np.arange(after)
    # The centre of each element among those before, as a fraction: so its neighbours are exact.
    center, unit = (i * (before - 1), max(after - 1, 1)) if align_corners else ((2 * i + 1) * before - after, 2 * after)
    if method == "nearest":  # a centre between two elements is the upper one's
        index = np.clip((2 * center + unit) // (2 * unit), 0, before - 1)[None]
        weight = np.ones(index.shape)
    else:
        center = np.clip(center, 0, (before - 1) * unit)
        low = center // unit
        index, weight = np.stack([low, np.where(center > low * unit, low + 1, -1)]), center / unit - low
        weight = np.stack([1 - weight, weight])
    if not transposed:
        return index, weight
    targets, sources = index.T.reshape(-1), np.repeat(i, len(index))
    order = np.argsort(targets, kind="stable")[np.count_nonzero(targets < 0) :]
    there = targets[order]
    rank = np.arange(len(order)) - np.searchsorted(there, there)
    taps = _taps(before, after, method, align_corners, transposed)
    found, weights = np.full((taps, before), -1), np.zeros((taps, before))
    found[rank, there], weights[rank, there] = sources[order], weight.T.reshape(-1)[order]
    return found, weights


def _taps(before: int, after: int, method: str, align_corners: bool, transposed: bool) -> int:
    """The number of taps of `_table`: in a derivative, the most elements of the value that one is of."""
    reach = 1 if method == "nearest" else 2
    if not transposed:
        return reach
    if before == 1 or after == 1:
        return after
    steps, size = (after - 1, before - 1) if align_corners else (after, before)
    return -(-reach * steps // size)


def _factors(value: Any, count: int, what: str) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    if len(values) != count or not all(isinstance(x, int | float | np.number) and 0 < x < np.inf for x in values):
        several = f", or {count} of them" if count > 1 else ""
        raise OperandError(f"{what}: scale is a number above 0{several}, not {brief(value)}")
    return tuple(map(float, values))


def _along(values: np.ndarray, axis: int, like: Array) -> Any:
    """Numbers along an axis of an array, in its library."""
    return np.asarray(values, like=like).reshape(-1, *(1,) * (like.ndim - axis - 1))


class Resize(ResizeOperator, CompositeOperator):
    """Images resized along their spatial axes.

    Parameters
    ----------
    x : images
    size : int or tuple of int, optional
        The spatial sizes of the value.
    scale : float or tuple of float, optional
        The factors of the sizes, instead; sizes are rounded down.
    method : str
        ``"nearest"`` or ``"bilinear"``: linear along each axis.
    align_corners : bool
        Whether the centres of the first and last elements stay where they are, or the outer edges.
    layout : str, optional
        The axes of images, as of `conv`.

    Examples
    --------
    >>> x = be.array([[[1.0, 3.0]]])
    >>> be.resize(x, 4).asnumpyarray()
    array([[[1. , 1.5, 2.5, 3. ]]], dtype=float32)
    >>> be.resize(x, scale=2, method="nearest").asnumpyarray()
    array([[[1., 1., 3., 3.]]], dtype=float32)
    """

    name = "resize"
    of_windows = True
    operands = ("x",)
    examples = (
        (((1, 2, 3, 4),), {"size": (5, 6)}),
        (((1, 5, 2),), {"size": 3, "layout": "NWC", "method": "nearest"}),
        (((1, 1, 4, 3),), {"scale": (0.5, 2.0)}),
        (((1, 1, 4, 3),), {"size": (7, 1), "align_corners": True}),
        (((1, 2, 1, 2, 1),), {"size": 2}),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        return self.resized_shape(shapes[0])

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        x = promote(dtypes[0])
        return x, x if self.method == "nearest" else mean_dtype(x)

    def decompose(self, *inputs: Any) -> Any:
        (x,) = inputs
        dtype = self.resolve_dtypes(x.dtype)[-1]
        is_copy = self.method == "nearest"
        flat, terms = f.reshape(x if is_copy else in_dtype(x, wide_dtype(dtype)), (-1,)), []
        indices, weights = self.tables(x), [] if is_copy else self.tables(x, weights=True)
        each = range(len(self.axes))
        for taps in product((0,) if is_copy else (0, 1), repeat=len(each)):

            def placed(table: Any, n: int, taps: Any = taps) -> Any:
                return _placed(f.slice(table, taps[n]), self.axes[n], x.ndim)

            found = f.lookup(flat, reduce(f.add, map(placed, indices, each), self.others(x)))
            terms.append(reduce(f.mul, map(placed, weights, each), found))
        return in_dtype(reduce(f.add, terms), dtype)

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        dtype = self.resolve_dtypes(x.dtype)[-1]
        wide = x if self.method == "nearest" else x.astype(wide_dtype(dtype), copy=False)
        return self.resampled(wide, x.shape).astype(dtype, copy=False)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [self.other(ResizeInput)(output_gradients[0], inputs[0])]

    def R_op(self, inputs: Sequence[Any], eval_points: Sequence[Any]) -> Sequence[Any]:
        return [self(eval_points[0])]


class ResizeInput(MeanDtypeOperator, ResizeOperator, CompositeOperator):
    """The derivative of `resize` by its images `like`, whose shape alone is read, times delta."""

    name = "resize_input"
    of_windows = is_transposed = True
    operands = ("delta", "like")
    index_map = IndexMap(OPAQUE, LIKE)
    images = 1
    examples = (
        (((1, 2, 5, 6), (1, 2, 3, 4)), {"size": (5, 6)}),
        (((1, 3, 2), (1, 5, 2)), {"size": 3, "layout": "NWC", "method": "nearest"}),
        (((1, 1, 2, 6), (1, 1, 4, 3)), {"scale": (0.5, 2.0)}),
        (((1, 1, 7, 1), (1, 1, 4, 3)), {"size": (7, 1), "align_corners": True}),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        delta, like = shapes
        wanted = self.resized_shape(like)
        if not may_equal(delta, wanted):
            raise ShapeError(f"images of {like} are resized to {wanted}, and the delta has {delta}")
        return like

    def decompose(self, *inputs: Any) -> Any:
        delta, like = inputs
        dtype = mean_dtype(delta.dtype)
        axes = list(zip(self.axes, range(like.ndim, like.ndim + len(self.axes)), strict=True))

        def placed(tables: Sequence[Any]) -> list[Any]:
            return [_placed(table, n, like.ndim + len(axes), at) for table, (n, at) in zip(tables, axes, strict=True)]

        others = f.expand_dims(self.others(like), tuple(at for _, at in axes))
        index = reduce(f.add, placed(self.tables(like)), others)
        found = f.lookup(f.reshape(in_dtype(delta, wide_dtype(dtype)), (-1,)), index)
        if self.method != "nearest":
            found = reduce(f.mul, placed(self.tables(like, weights=True)), found)
        return in_dtype(f.sum(found, axis=tuple(at for _, at in axes), keepdims=False), dtype)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        delta, like = (as_array(a, *arrays) for a in arrays)
        dtype = mean_dtype(delta.dtype)
        return self.resampled(delta.astype(wide_dtype(dtype), copy=False), like.shape).astype(dtype, copy=False)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [self.other(Resize)(output_gradients[0]), None]


def _placed(table: Any, axis: int, ndim: int, taps: int | None = None) -> Any:
    """A table (taps, size), or a row of it, along an axis of `ndim` and one of its taps, to be broadcast."""
    found = table if taps is None else f.transpose(table)
    return f.expand_dims(found, tuple(i for i in range(1, ndim - axis) if i + axis != taps))


class ResizeTable(ResizeOperator, NonDifferentiableOperator):
    """For each element of an axis of resized images `like` the elements that it is of: flat indices, or their weights.

    Parameters
    ----------
    size, scale, method, align_corners, layout
        As of `resize`.
    axis : int, optional
        None for the flat indices along the axes that are not resized; those that are have size 1.
    weights : bool
        Whether it is the weights; or else the flat indices, to be added to those along other axes.
    transposed : bool
        Whether it is of the derivative: for each element of the images those of the value that are of it.
    """

    name = "resize_table"
    operands = ("like",)
    batch = Op.batch
    index_map = IndexMap(SHAPE)
    __props__ = (*(ResizeOperator.__props__ or ()), "axis", "weights", "transposed")
    axis: int | None = None
    weights: bool = False
    transposed: bool = False
    examples = (
        (((1, 2, 3, 4),), {"size": (5, 6), "axis": 2}),
        (((2, 3, 2, 4),), {"size": (5, 6), "layout": "NHWC"}),
        (((1, 5, 2),), {"size": 3, "layout": "NWC", "axis": 1, "weights": True}),
        (((1, 1, 4, 3),), {"scale": 0.5, "axis": 3, "transposed": True}),
    )

    @property
    def is_transposed(self) -> bool:  # type: ignore[override]
        return self.transposed

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        axis = None if self.axis is None else normalise_axis(self.axis, types[0].ndim, "resize_table")
        return (
            super()
            .bind(types, backend)
            .with_props(  # type: ignore[no-any-return]
                axis=axis, weights=bool(self.weights), transposed=bool(self.transposed)
            )
        )

    def output_shape(self, *shapes: Shape) -> Shape:
        (shape,) = shapes
        if self.axis is None:
            return tuple(1 if axis in self.axes else size for axis, size in enumerate(shape))
        before, after = shape[self.axis], self.resized_shape(shape)[self.axis]
        if before is None or after is None:
            return (None, before if self.transposed else after)
        taps = _taps(before, after, self.method, self.align_corners, self.transposed)
        return (taps, before if self.transposed else after)

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return promote(dtypes[0]), wide_dtype(mean_dtype(dtypes[0])) if self.weights else INT64

    @portable
    def numpy(self, *arrays: Array) -> Any:
        like = as_array(arrays[0])
        source: Any = self.resized_shape(like.shape) if self.transposed else like.shape
        steps = np.cumprod([1, *source[:0:-1]])[::-1].tolist()
        if self.axis is None:
            ranges = (range(1 if axis in self.axes else n) for axis, n in enumerate(source))
            each = [np.arange(len(r)) * step for r, step in zip(ranges, steps, strict=True)]
            return np.asarray(reduce(np.add.outer, each), like=like)
        index, weight = self.table(like.shape, self.axis)
        if self.weights:
            return np.asarray(weight.astype(self.resolve_dtypes(like.dtype)[-1]), like=like)
        return np.asarray(np.where(index < 0, NOWHERE, index * steps[self.axis]), like=like)


# Regions of interest


class RegionOperator(ImageOperator):
    """An op on boxes of images. Its parameters are those of `roi_pool`."""

    __props__: ClassVar[tuple[str, ...] | None] = ("size", "scale", "layout")
    size: Any = 2
    scale: float = 1.0
    batch = Op.batch_in_loop

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        return self.bound(types, str(self.name))

    def bound(self, types: Sequence[TensorType], what: str) -> Op:
        ndim = types[self.images].ndim
        if ndim != 4:
            raise ShapeError(f"images have a batch, channels and two spatial axes, and this has {ndim} dimensions")
        return self.with_props(
            size=per_axis(self.size, 2, f"{what}: size"),
            scale=_factors(self.scale, 1, what)[0],
            layout=layout_of(self.layout, ndim, "NC", f"{what}: layout"),
        )

    def regions_shape(self, images: Shape, boxes: Shape) -> Shape:
        """The shape of the regions: that of images, a box for each of the batch; ShapeError if the boxes are none."""
        if len(boxes) != 2 or boxes[1] not in (None, len(BOX)):
            raise ShapeError(f"boxes have the shape (count, {len(BOX)}), columns {', '.join(BOX)}, not {boxes}")
        channels = images[self.layout.index("C")]
        return arranged((boxes[0], channels, *self.size), self.layout, "NC" + spatial_of(self.layout))


def wrong_boxes(boxes: Any, count: int) -> Any:
    """Of each box whether there is no image of its number, or a coordinate is not finite."""
    numbers = boxes[:, 0]
    is_image = (numbers >= 0) & (numbers < count) & (np.floor(numbers) == numbers)
    return ~(is_image & np.isfinite(boxes).all(axis=1))


def image_numbers(boxes: np.ndarray, count: int, what: str) -> np.ndarray:
    """The number of the image of each box; OperandError for `wrong_boxes`."""
    numbers, is_wrong = boxes[:, 0], wrong_boxes(boxes, count)
    if is_wrong.any():
        wrong = int(is_wrong.argmax())
        if np.isfinite(boxes[wrong]).all():
            raise OperandError(f"{what}: box {wrong} is of image {numbers[wrong]:g}, and there are {count}")
        raise OperandError(f"{what}: box {wrong} is {boxes[wrong].tolist()}, which is not finite")
    return numbers.astype(INT64)


class ArgmaxRoi(RegionOperator, NonDifferentiableOperator):
    """The index of each maximum of `roi_pool` in the images, flattened in C order; -1 for an empty bin.

    The parameters are those of `roi_pool`.
    """

    name = "argmax_roi"
    operands = ("x", "boxes")
    examples = (
        (((2, 2, 4, 5), [[0, 0, 0, 4, 3], [1, 1, 1, 2, 2], [1, 3, 2, 9, 9]]), {}),
        (((1, 5, 4, 2), [[0, 2, 2, 8, 6], [0, 7, 1, 3, 5]]), {"size": (3, 2), "scale": 0.5, "layout": "NHWC"}),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        return self.regions_shape(*shapes)

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return (*map(promote, dtypes), INT64)

    def numpy(self, x: Array, boxes: Array) -> Any:
        shape: Any = self.regions_shape(x.shape, boxes.shape)
        out = np.full(shape, -1, INT64)
        target, images = out.transpose(self.order), x.transpose(self.order)
        indices = np.arange(x.size, dtype=INT64).reshape(x.shape).transpose(self.order)
        boxes = np.asarray(boxes, np.float64)
        for box, image in enumerate(image_numbers(boxes, len(images), "roi_pool")):
            for i, j, rows, columns in self._bins(boxes[box], images.shape[2:]):
                part = images[image, :, rows, columns]
                part = part.reshape(len(part), prod(part.shape[1:]))
                if part.size:
                    found = part.argmax(axis=1)[:, None]
                    there = indices[image, :, rows, columns].reshape(part.shape)
                    target[box, :, i, j] = np.take_along_axis(there, found, axis=1)[:, 0]
        return out

    def _bins(self, box: np.ndarray, sizes: Sequence[int]) -> Iterator[tuple[int, int, slice, slice]]:
        """The rows and columns of each bin of a box."""
        x0, y0, x1, y1 = np.rint(box[1:] * self.scale)
        parts = [
            [
                slice(*np.clip([begin + np.floor(i * step), begin + np.ceil((i + 1) * step)], 0, limit).astype(int))
                for i in range(count)
            ]
            for begin, end, limit, count in ((y0, y1, sizes[0], self.size[0]), (x0, x1, sizes[1], self.size[1]))
            for step in (max(end - begin + 1, 1) / count,)
        ]
        for i, rows in enumerate(parts[0]):
            for j, columns in enumerate(parts[1]):
                yield i, j, rows, columns


@function()
def roi_pool(x: Operand, boxes: Operand, size: int | Sequence[int], scale: float = 1.0, layout: Any = None) -> Any:
    """The maxima of boxes of images, each divided into bins of about equal size; 0 of an empty bin.

    Parameters
    ----------
    x : images
        Of two spatial axes.
    boxes : (count, 5)
        A row for each: the number of its image, and x0, y0, x1, y1, the columns and rows of its first and last
        elements, which are multiplied by `scale` and rounded to the nearest, halves to even. No gradient is sent there.
    size : int or pair of int
        The rows and columns of bins.
    scale : float
        The factor from the boxes' coordinates to those of the images.
    layout : str, optional
        The axes of images, as of `conv`; the value's batch are the boxes.

    Examples
    --------
    >>> x = be.reshape(be.arange(16), (1, 1, 4, 4))
    >>> be.roi_pool(x, be.array([[0, 0, 0, 3, 1]]), (1, 2)).asnumpyarray().tolist()
    [[[[5.0, 7.0]]]]
    """
    x, boxes = (variable_of(a, "roi_pool") for a in (x, boxes))
    op = ArgmaxRoi.make(size=size, scale=scale, layout=layout)
    op.check_in("roi_pool", x, boxes)
    indices = op(x, boxes)
    is_some = f.ge(indices, 0)
    values = f.take(f.reshape(x, (-1,)), f.maximum(indices, 0), axis=0)
    return f.where(is_some, values, f.fill_like(values, 0))


class AlignOperator(RegionOperator):
    """A region interpolated at points between the elements of images, or the derivative of that.

    Its parameters are those of `roi_align`.
    """

    __props__ = (*(RegionOperator.__props__ or ()), "samples", "aligned")
    samples: int = 2
    aligned: bool = True

    def bound(self, types: Sequence[TensorType], what: str) -> Op:
        (samples,) = per_axis(self.samples, 1, f"{what}: samples")
        return super().bound(types, what).with_props(samples=samples, aligned=bool(self.aligned))

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return (*map(promote, dtypes), mean_dtype(dtypes[0]))

    def weights(self, box: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        """For rows and for columns, the weight of each element of the image in each bin.

        Points more than one element beyond the image count as 0.
        """
        x0, y0, x1, y1 = box[1:] * self.scale - (0.5 if self.aligned else 0.0)
        found = []
        for begin, end, limit, count in ((y0, y1, sizes[0], self.size[0]), (x0, x1, sizes[1], self.size[1])):
            extent = end - begin if self.aligned else max(end - begin, 1.0)
            points = begin + extent * (np.arange(count * self.samples) + 0.5) / (count * self.samples)
            matrix = np.zeros((count, limit))
            for i, point in enumerate(points):
                if not -1.0 <= point <= limit:
                    continue
                point = min(max(point, 0.0), limit - 1.0)
                low = int(point)
                matrix[i // self.samples, low] += (1 - (point - low)) / self.samples
                matrix[i // self.samples, min(low + 1, limit - 1)] += (point - low) / self.samples
            found.append(matrix)
        return found


class RoiAlign(AlignOperator):
    """The means of bilinear samples of boxes of images, each divided into bins.

    Parameters
    ----------
    x : images
        Of two spatial axes.
    boxes : (count, 5)
        A row for each: the number of its image, and x0, y0, x1, y1, multiplied by `scale` and not rounded. No gradient
        is sent there.
    size : int or pair of int
        The rows and columns of bins.
    scale : float
    layout : str, optional
        The axes of images, as of `conv`; the value's batch are the boxes.
    samples : int
        The sampled points of a bin along each axis; its value is their mean.
    aligned : bool
        Whether coordinates are of the elements' edges, so that half of one is taken off; or else of their centres, and
        a box is at least one element wide.

    Examples
    --------
    >>> x = be.reshape(be.arange(16), (1, 1, 4, 4))
    >>> be.roi_align(x, be.array([[0, 0, 0, 4, 2]]), (1, 2)).asnumpyarray().tolist()
    [[[[2.5, 4.5]]]]
    """

    name = "roi_align"
    operands = ("x", "boxes")
    examples = (
        (((2, 2, 4, 5), [[0, 0, 0, 4, 3], [1, 1, 1, 2, 2], [1, 3, 2, 9, 9]]), {}),
        (
            ((1, 5, 4, 2), [[0, 2, 2, 8, 6], [0, 7, 1, 3, 5]]),
            {"size": (3, 2), "scale": 0.3, "layout": "NHWC", "samples": 1, "aligned": False},
        ),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        return self.regions_shape(*shapes)

    def numpy(self, x: Array, boxes: Array) -> Any:
        dtype = mean_dtype(x.dtype)
        images, boxes = x.transpose(self.order).astype(wide_dtype(dtype)), np.asarray(boxes, np.float64)
        shape: Any = self.regions_shape(x.shape, boxes.shape)
        out = np.zeros(shape, images.dtype)
        target = out.transpose(self.order)
        for box, image in enumerate(image_numbers(boxes, len(images), "roi_align")):
            rows, columns = (m.astype(images.dtype) for m in self.weights(boxes[box], images.shape[2:]))
            target[box] = rows @ images[image] @ columns.T
        return out.astype(dtype, copy=False)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, boxes), (delta,) = inputs, output_gradients
        return [self.other(RoiAlignInput)(delta, boxes, x), None]


class RoiAlignInput(AlignOperator):
    """The derivative of `roi_align` by its images `like`, whose shape alone is read, times delta."""

    name = "roi_align_input"
    operands = ("delta", "boxes", "like")
    index_map = IndexMap(OPAQUE, OPAQUE, LIKE)
    images = 2
    examples = (
        (((3, 2, 2, 2), [[0, 0, 0, 4, 3], [1, 1, 1, 2, 2], [1, 3, 2, 9, 9]], (2, 2, 4, 5)), {}),
        (
            ((2, 3, 2, 2), [[0, 2, 2, 8, 6], [0, 7, 1, 3, 5]], (1, 5, 4, 2)),
            {"size": (3, 2), "scale": 0.3, "layout": "NHWC", "samples": 1, "aligned": False},
        ),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        delta, boxes, like = shapes
        wanted = self.regions_shape(like, boxes)
        if not may_equal(delta, wanted):
            raise ShapeError(f"the regions have the shape {wanted}, and the delta {delta}")
        return like

    def numpy(self, delta: Array, boxes: Array, like: Array) -> Any:
        dtype = mean_dtype(delta.dtype)
        deltas, boxes = delta.transpose(self.order).astype(wide_dtype(dtype)), np.asarray(boxes, np.float64)
        out = np.zeros(like.shape, deltas.dtype)
        target = out.transpose(self.order)
        for box, image in enumerate(image_numbers(boxes, len(target), "roi_align")):
            rows, columns = (m.astype(deltas.dtype) for m in self.weights(boxes[box], target.shape[2:]))
            target[image] += rows.T @ deltas[box] @ columns
        return out.astype(dtype, copy=False)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (_, boxes, _), (upon,) = inputs, output_gradients
        return [self.other(RoiAlign)(upon, boxes), None, None]


# Overlapping boxes


class Nms(NonDifferentiableOperator):
    """The boxes that non-maximum suppression keeps: their row numbers, the best first, then -1 for each other row.

    The best of the remaining boxes is kept, and those of which it covers more than
    `threshold` of the union are dropped. Rows with a score of 0 never count; of
    equal scores the first is the better.

    Parameters
    ----------
    boxes : (count, 5)
        Columns x0, y0, x1, y1, score.
    threshold : float
    normalized : bool
        Whether a side is ``x1 - x0`` long, or else one more: coordinates of the last element inside.
    keepdims : bool
        Whether the value is a column; in neon's mode it is.

    Examples
    --------
    >>> boxes = be.array([[0, 0, 9, 9, 0.5], [1, 1, 9, 9, 0.75], [20, 0, 29, 9, 0.25]])
    >>> be.nms(boxes, 0.5).asnumpyarray()
    array([ 1,  2, -1])
    """

    name = "nms"
    batch = Op.batch_in_loop
    operands = ("boxes",)
    __props__ = ("threshold", "normalized", "keepdims")
    threshold: float = 0.5
    normalized: bool = False
    keepdims: bool = False
    examples = Examples(
        (
            (((6, 5),), {}),
            (((6, 5),), {"threshold": 0.1, "normalized": True, "keepdims": True}),
            (((0, 5),), {}),
        ),
        sample=(0.1, 2.0),
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        is_number = not isinstance(self.threshold, bool) and isinstance(self.threshold, int | float | np.number)
        if not is_number or np.isnan(self.threshold):
            raise OperandError(f"nms: threshold is a number, not {brief(self.threshold)}")
        return self.make(
            threshold=float(self.threshold),
            normalized=bool(self.normalized),
            keepdims=bool(self.keepdims or is_neon(backend)),
        )

    def output_shape(self, *shapes: Shape) -> Shape:
        (boxes,) = shapes
        if len(boxes) != 2 or boxes[1] not in (None, 5):
            raise ShapeError(f"boxes have the shape (count, 5), columns x0, y0, x1, y1, score, not {boxes}")
        return (boxes[0], 1) if self.keepdims else boxes[:1]

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return promote(dtypes[0]), INT64

    def numpy(self, x: Array) -> Any:
        boxes = np.asarray(x, np.float64)
        (x0, y0, x1, y1, score), more = boxes.T, 0.0 if self.normalized else 1.0
        area = (x1 - x0 + more) * (y1 - y0 + more)
        rest = np.argsort(-score, kind="stable")
        rest = rest[score[rest] != 0]
        out, count = np.full(len(boxes), -1, INT64), 0
        while rest.size:
            best, rest = rest[0], rest[1:]
            out[count] = best
            count += 1
            width = np.minimum(x1[best], x1[rest]) - np.maximum(x0[best], x0[rest]) + more
            height = np.minimum(y1[best], y1[rest]) - np.maximum(y0[best], y0[rest]) + more
            common = np.maximum(width, 0) * np.maximum(height, 0)
            with np.errstate(all="ignore"):
                rest = rest[~(common / (area[best] + area[rest] - common) > self.threshold)]
        return out[:, None] if self.keepdims else out
