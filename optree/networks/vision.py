"""Pooling of regions of interest, and non-maximum suppression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, is_any, portable
from optree.dtypes import wide_dtype
from optree.errors import OperandError, ShapeError, brief
from optree.networks.resizing import INT64, NOWHERE, factors_of
from optree.networks.windows import ImageOperator, arranged, layout_of, order_of, per_axis, spatial_of
from optree.op.examples import Examples
from optree.op.index_map import LIKE, OPAQUE, SHAPE, IndexMap
from optree.op.op import Op
from optree.op.traits import CompositeOperator, NonDifferentiableOperator
from optree.ops.reduction import mean_dtype
from optree.registry import f, function
from optree.tree.types import Shape, TensorType, may_equal, promote
from optree.tree.variable import Operand, Variable, in_dtype, is_neon, variable_of

#: The columns of a box: the number of its image, and the first and last coordinates.
BOX = ("image", "x0", "y0", "x1", "y1")


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
            scale=factors_of(self.scale, 1, what)[0],
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


def image_numbers(boxes: Array, count: int, what: str) -> Any:
    """The number of the image of each box; OperandError for `wrong_boxes`."""
    is_wrong = wrong_boxes(boxes, count)
    if is_any(is_wrong):
        wrong = int(is_wrong.argmax())
        box = [float(number) for number in boxes[wrong]]
        if np.isfinite(box).all():
            raise OperandError(f"{what}: box {wrong} is of image {box[0]:g}, and there are {count}")
        raise OperandError(f"{what}: box {wrong} is {box}, which is not finite")
    return boxes[:, 0].astype(INT64)


class ArgmaxRoi(RegionOperator, NonDifferentiableOperator):
    """The index of each maximum of `roi_pool` in the images, flattened in C order; -1 for an empty bin.

    The parameters are those of `roi_pool`.

    Examples
    --------
    >>> image = be.array(np.arange(16.0).reshape(1, 1, 4, 4))
    >>> be.argmax_roi(image, be.array([[0.0, 0.0, 0.0, 3.0, 3.0]])).get()
    array([[[[ 5,  7],
             [13, 15]]]])
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
    return f.lookup(f.reshape(x, (-1,)), op(x, boxes))


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

    def table(self, boxes: Array, limit: int, axis: int) -> tuple[Array, Array]:
        """The elements of an axis, rows or columns, that are in each bin of each box, and their weights.

        Both are (taps, boxes, bins); -1 is none. Points more than one element beyond the image are.
        """
        offset, count = 0.5 if self.aligned else 0.0, self.size[axis] * self.samples
        begin, end = (boxes[:, column, None] * self.scale - offset for column in (2 - axis, 4 - axis))
        extent = end - begin if self.aligned else np.maximum(end - begin, 1.0)
        point = begin + extent * np.asarray((np.arange(count) + 0.5) / count, like=boxes)
        is_inside = (point >= -1.0) & (point <= limit)
        point = np.clip(point, 0.0, limit - 1.0)
        low = np.floor(point)
        found = np.where(is_inside, low, -1), np.where(is_inside & (point > low), low + 1, -1)
        weights = (1 - (point - low)) / self.samples, (point - low) / self.samples
        shape = len(boxes), self.size[axis], 2 * self.samples
        index, weight = (np.stack(each, axis=-1).reshape(shape).transpose(2, 0, 1) for each in (found, weights))
        return index.astype(INT64), weight

    def matrix(self, boxes: Array, limit: int, axis: int, dtype: np.dtype) -> Any:
        """The weight of each element of an axis in each bin: (boxes, bins, elements)."""
        index, weight = self.table(boxes, limit, axis)
        is_it = index[..., None] == np.asarray(np.arange(limit), like=boxes)
        return np.where(is_it, weight[..., None], 0.0).sum(axis=0).astype(dtype)


class RoiTable(AlignOperator, NonDifferentiableOperator):
    """The flat indices in images `like` of the elements that bins of boxes are of, or the weights.

    Parameters
    ----------
    size, scale, layout, samples, aligned
        As of `roi_align`.
    along : {'H', 'W', 'C'}
        Whether it is along rows, with the images' own, along columns, both (taps, boxes, bins), or along channels,
        (channels, 1).
    kind : {'indices', 'weights', 'matrix'}
        With ``"matrix"``, the weight of each row of all images, or column, in each bin: (boxes, bins, elements).
    """

    name = "roi_table"
    operands = ("boxes", "like")
    index_map = IndexMap(OPAQUE, SHAPE)
    images = 1
    __props__ = (*(AlignOperator.__props__ or ()), "along", "kind")
    along: str = "H"
    kind: str = "indices"
    examples = (
        (([[0, 0, 0, 4, 3], [1, 1, 1, 2, 2], [1, 3, 2, 9, 9]], (2, 2, 4, 5)), {}),
        (([[0, 2, 2, 8, 6]], (1, 5, 4, 2)), {"scale": 0.3, "layout": "NHWC", "along": "W", "aligned": False}),
        (([[0, 0, 0, 4, 3]], (2, 2, 4, 5)), {"along": "W", "kind": "weights"}),
        (([[1, 0, 0, 4, 3], [0, 1, 1, 2, 2]], (2, 2, 4, 5)), {"kind": "matrix"}),
        (([[1, 0, 0, 4, 3]], (2, 2, 4, 5)), {"along": "W", "kind": "matrix", "size": (2, 3)}),
        (([[0, 0, 0, 4, 3]], (2, 2, 4, 5)), {"along": "C"}),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        boxes, images = shapes
        if self.along == "C":
            return (images[self.order[1]], 1)
        which = "HW".index(self.along)
        if self.kind != "matrix":
            return (2 * self.samples, boxes[0], self.size[which])
        n, _, *sizes = (images[axis] for axis in self.order)
        limit = None if which == 0 and (n is None or sizes[0] is None) else sizes[1] if which else n * sizes[0]  # type: ignore[operator]
        return (boxes[0], self.size[which], limit)

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return (*map(promote, dtypes), INT64 if self.kind == "indices" else wide_dtype(mean_dtype(dtypes[1])))

    @portable
    def numpy(self, *arrays: Array) -> Any:
        boxes, like = (as_array(a, *arrays) for a in arrays)
        steps = np.cumprod([1, *like.shape[:0:-1]])[::-1].tolist()
        n, c, *image = self.order
        if self.along == "C":
            return np.asarray(np.arange(like.shape[c])[:, None] * steps[c], like=boxes)
        boxes, which = boxes.astype(np.float64, copy=False), "HW".index(self.along)
        limit, dtype = like.shape[image[which]], self.resolve_dtypes(boxes.dtype, like.dtype)[-1]
        numbers = image_numbers(boxes, like.shape[n], "roi_align") if which == 0 else np.zeros(1, INT64, like=boxes)
        if self.kind == "matrix":
            matrix = self.matrix(boxes, limit, which, dtype)[:, :, None]
            is_own = numbers[:, None] == np.asarray(np.arange(1 if which else like.shape[n]), like=boxes)
            found = np.where(is_own[:, None, :, None], matrix, dtype.type(0))
            return found.reshape(*matrix.shape[:2], found.shape[2] * limit)
        index, weight = self.table(boxes, limit, which)
        if self.kind == "weights":
            return weight.astype(dtype)
        return np.where(index < 0, NOWHERE, index * steps[image[which]] + numbers[:, None] * steps[n])


class RoiAlign(AlignOperator, CompositeOperator):
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
    for_kernels = "windows"
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

    def decompose(self, *inputs: Variable) -> Any:
        x, boxes = inputs
        dtype, make = mean_dtype(x.dtype), self.other(RoiTable)

        def placed(along: str, kind: str = "indices") -> Any:  # boxes, channels, rows, columns, and the taps of each
            table = f.transpose(make.with_props(along=along, kind=kind)(boxes, x), (1, 2, 0))
            return f.expand_dims(table, (1, 3, 5) if along == "H" else (1, 2, 4))

        channels = f.expand_dims(make.with_props(along="C")(boxes, x), (2, 3, 4))
        found = f.lookup(f.reshape(in_dtype(x, wide_dtype(dtype)), (-1,)), placed("H") + placed("W") + channels)
        found = f.sum(found * placed("H", "weights") * placed("W", "weights"), axis=(4, 5), keepdims=False)
        return in_dtype(f.transpose(found, order_of("NC" + spatial_of(self.layout), self.layout)), dtype)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, boxes = (as_array(a, *arrays) for a in arrays)
        dtype, boxes = mean_dtype(x.dtype), boxes.astype(np.float64, copy=False)
        images = x.transpose(self.order).astype(wide_dtype(dtype), copy=False)
        rows, columns = (self.matrix(boxes, n, axis, images.dtype) for axis, n in enumerate(images.shape[2:]))
        taken = images[image_numbers(boxes, len(images), "roi_align")]
        found = np.matmul(np.matmul(rows[:, None], taken), columns[:, None].swapaxes(-1, -2))
        return found.transpose(order_of("NC" + spatial_of(self.layout), self.layout)).astype(dtype, copy=False)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, boxes), (delta,) = inputs, output_gradients
        return [self.other(RoiAlignInput)(delta, boxes, x), None]


class RoiAlignInput(AlignOperator, CompositeOperator):
    """The derivative of `roi_align` by its images `like`, whose shape alone is read, times delta."""

    name = "roi_align_input"
    for_kernels = "devices"
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

    def decompose(self, *inputs: Variable) -> Any:
        delta, boxes, like = inputs
        dtype, make, (n, c, h, w) = mean_dtype(delta.dtype), self.other(RoiTable).with_props(kind="matrix"), self.order
        deltas = f.expand_dims(f.transpose(in_dtype(delta, wide_dtype(dtype)), (n, h, c, w)), 3)
        columns = f.expand_dims(f.transpose(make.with_props(along="W")(boxes, like), (0, 2, 1)), (1, 2))
        along_rows = f.sum(deltas * in_dtype(columns, deltas.dtype), axis=-1, keepdims=False)
        rows = in_dtype(make(boxes, like), deltas.dtype)
        found = f.tensordot(rows, along_rows, ((0, 1), (0, 1)))  # rows of images, channels, columns
        found = f.reshape_like(found, f.transpose(like, (n, h, c, w)))
        return in_dtype(f.transpose(found, tuple(np.argsort((n, h, c, w)).tolist())), dtype)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        delta, boxes, like = (as_array(a, *arrays) for a in arrays)
        dtype, boxes = mean_dtype(delta.dtype), boxes.astype(np.float64, copy=False)
        deltas = delta.transpose(self.order).astype(wide_dtype(dtype), copy=False)
        out = np.zeros(like.shape, deltas.dtype, like=deltas)
        images, numbers = out.transpose(self.order), image_numbers(boxes, like.shape[self.order[0]], "roi_align")
        rows, columns = (self.matrix(boxes, n, axis, deltas.dtype) for axis, n in enumerate(images.shape[2:]))
        along_rows = np.matmul(deltas.swapaxes(1, 2), columns[:, None])  # boxes, bins, channels, columns
        for n in range(len(images)):
            own = numbers == n
            images[n] = np.tensordot(rows[own], along_rows[own], ((0, 1), (0, 1))).swapaxes(0, 1)
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
