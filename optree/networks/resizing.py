"""Resizing of images: sums of look-ups, by tables of each axis's indices and weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from itertools import product
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import wide_dtype
from optree.errors import OperandError, ShapeError, brief
from optree.networks.windows import ImageOperator, layout_of, order_of, per_axis, spatial_of
from optree.op.batching import with_images
from optree.op.index_map import LIKE, OPAQUE, SHAPE, IndexMap
from optree.op.op import Op
from optree.op.traits import CompositeOperator, NonDifferentiableOperator
from optree.ops.reduction import MeanDtypeOperator, mean_dtype
from optree.registry import f
from optree.tree.types import Shape, TensorType, may_equal, normalise_axis, promote
from optree.tree.variable import Variable, in_dtype

INT64 = np.dtype("int64")

#: Maximum tables of resized axes that are kept, and a flat index beyond any array, also when others are added.
TABLES, NOWHERE = 256, -(1 << 60)


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
        scale = None if self.scale is None else factors_of(self.scale, ndim - 2, what)
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

    def taps(self, shape: Shape, axis: int) -> int | None:
        """The number of taps of an axis's table for images of a shape; None where sizes are unknown."""
        before, after = shape[axis], self.resized_shape(shape)[axis]
        known = before is not None and after is not None
        return _taps(before, after, self.method, self.align_corners, self.is_transposed) if known else None  # type: ignore[arg-type]

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


def factors_of(value: Any, count: int, what: str) -> tuple[float, ...]:
    """Numbers above 0 for some axes, from one or as many; OperandError if they are none."""
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
    for_kernels = "windows"
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

    def decompose(self, *inputs: Variable) -> Any:
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
    for_kernels = "windows"
    is_transposed = True
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

    def plan_sizes(self, *shapes: Shape) -> Any:
        return tuple(self.taps(shapes[1], axis) == 1 for axis in self.axes)

    def decompose(self, *inputs: Variable) -> Any:
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
        size = shape[self.axis] if self.transposed else self.resized_shape(shape)[self.axis]
        return (self.taps(shape, self.axis), size)

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
