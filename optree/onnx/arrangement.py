"""Operators that make, reshape and pick elements."""

from __future__ import annotations

from functools import reduce
from math import prod
from operator import mul
from typing import Any

import numpy as np

from optree.arrays import Array
from optree.errors import ModelError
from optree.onnx.values import (
    OpenSize,
    Operators,
    as_tree,
    check_size,
    fixed,
    integers,
    known_size,
    of_shape,
    part,
    size_of,
    sizes,
)
from optree.registry import f
from optree.tree.variable import Variable


class Arrangement(Operators):
    """Operators of shapes and indices."""

    def Constant(
        self,
        value: Array | None = None,
        value_float: Array | None = None,
        value_floats: Array | None = None,
        value_int: Array | None = None,
        value_ints: Array | None = None,
    ) -> Any:
        if value is not None:
            return value
        integers = value_ints if value_int is None else value_int
        if integers is not None:
            return np.array(integers, np.int64)
        return np.array(value_floats if value_float is None else value_float, np.float32)

    def ConstantOfShape(self, shape: Array, value: Array | None = None) -> Any:
        found = sizes(shape, "the shape")
        value = np.zeros((), np.float32) if value is None else value.reshape(())
        if any(isinstance(n, OpenSize) for n in found):
            return f.fill_like(f.cast(of_shape(found), value.dtype), value)
        check_size(prod(found))
        return np.full(found, value)

    def Shape(self, x: Array, start: int = 0, end: int | None = None) -> Any:
        found = [size_of(x, axis) for axis in range(len(x.shape))[slice(start, end)]]
        is_open = any(isinstance(n, OpenSize) for n in found)
        return np.array(found, object if is_open else np.int64)

    def Size(self, x: Array) -> Any:
        found = reduce(mul, (size_of(x, axis) for axis in range(len(x.shape))), 1)
        return np.array(found, object if isinstance(found, OpenSize) else np.int64)

    def Range(self, start: Array, limit: Array, delta: Array) -> Any:
        start, limit, delta = (fixed(x, "a bound of Range").reshape(()) for x in (start, limit, delta))
        if isinstance(limit.item(), OpenSize):
            if (start.item(), delta.item()) != (0, 1):
                int(limit.item())
            return np.reshape(f.flat_indices(of_shape([limit.item()])), -1)
        check_size(int((float(limit) - float(start)) / float(delta)))
        return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)

    def Expand(self, x: Array, shape: Array) -> Any:
        wanted = sizes(shape, "the shape")
        if any(isinstance(n, OpenSize) for n in wanted):
            like = of_shape(wanted)
            last = zip(reversed(wanted), reversed(x.shape), strict=False)
            larger = any(not isinstance(n, OpenSize) and n == 1 != m for n, m in last)
            if larger or len(x.shape) > len(wanted):
                like = like + f.fill_like(f.cast(x, "int8"), 0)
            return f.broadcast_like(x, like)
        return np.broadcast_to(x, np.broadcast_shapes(tuple(x.shape), tuple(wanted)))

    def Reshape(self, x: Array, shape: Array, allowzero: int = 0) -> Any:
        given = sizes(shape, "the shape")
        found = [
            size_of(x, i) if not isinstance(n, OpenSize) and n == 0 and not allowzero else n
            for i, n in enumerate(given)
        ]
        unknown = [n for n in found if isinstance(n, OpenSize) or n == -1]
        if len(unknown) > 1:
            return f.reshape_like(x, _shaped(x, found))
        return np.reshape(x, tuple(-1 if isinstance(n, OpenSize) else n for n in found))

    def Flatten(self, x: Array, axis: int = 1) -> Any:
        axis = axis % len(x.shape) if axis < len(x.shape) else axis
        before, after = x.shape[:axis], x.shape[axis:]
        return np.reshape(
            x, (-1, prod(after)) if None in before else (prod(before), -1 if None in after else prod(after))
        )

    def Split(
        self, x: Array, split: Array | None = None, axis: int = 0, num_outputs: int | None = None, outputs: int = 0
    ) -> list[Any]:
        size, count = known_size(x, axis), num_outputs or outputs
        sizes = [-(-size // count)] * (count - 1) if split is None else integers(split, "split")[:-1]
        return list(np.split(x, np.cumsum(sizes).tolist(), axis))

    def Slice(self, x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Any:
        begin, end = integers(starts, "starts"), integers(ends, "ends")
        along = range(len(begin)) if axes is None else integers(axes, "axes")
        step = (1,) * len(begin) if steps is None else integers(steps, "steps")
        index = [slice(None)] * len(x.shape)
        for axis, first, last, by in zip(along, begin, end, step, strict=True):
            size = known_size(x, axis) if x.shape[axis] is not None or by < 0 or last < 1 << 31 else 1 << 31
            stop = None if by < 0 and last < -size else max(min(last, size), -size - 1)
            index[axis] = slice(max(min(first, size), -size), stop, by)
        return part(x, tuple(index))

    def GatherElements(self, x: Array, indices: Array, axis: int = 0) -> Any:
        axis %= len(x.shape)
        own = tuple(slice(None) if i == axis else slice(0, n) for i, n in enumerate(indices.shape))
        return np.take_along_axis(part(x, own), indices, axis)

    def GatherND(self, x: Array, indices: Array, batch_dims: int = 0) -> Any:
        return part(as_tree(x), _index_of(indices, batch_dims))

    def ScatterND(self, x: Array, indices: Array, updates: Array, reduction: str = "none") -> Any:
        return _scattered(x, _index_of(indices), updates, reduction)

    def ScatterElements(self, x: Array, indices: Array, updates: Array, axis: int = 0, reduction: str = "none") -> Any:
        index = [_counted(known_size(indices, i), i, len(x.shape)) for i in range(len(x.shape))]
        size = known_size(x, axis)
        index[axis] = np.where(indices < 0, indices + size, indices)
        return _scattered(x, tuple(index), updates, reduction)

    Scatter = ScatterElements

    def Compress(self, x: Array, condition: Array, axis: int | None = None) -> Any:
        (chosen,) = np.nonzero(fixed(condition, "the condition"))
        return np.take(np.reshape(x, -1) if axis is None else x, chosen, 0 if axis is None else axis)

    def ReverseSequence(self, x: Array, lengths: Array, batch_axis: int = 1, time_axis: int = 0) -> Any:
        each = _counted(known_size(x, time_axis), time_axis, 2)
        lengths = np.reshape(lengths, (-1, 1) if batch_axis == 0 else (1, -1))
        index = np.where(each < lengths, lengths - 1 - each, each)
        return np.take_along_axis(x, np.reshape(index, (*index.shape, *[1] * (len(x.shape) - 2))), time_axis)

    def Pad(
        self, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None, mode: str = "constant"
    ) -> Any:
        given = integers(pads, "pads")
        along = range(len(x.shape)) if axes is None else [i % len(x.shape) for i in integers(axes, "axes")]
        widths = [(0, 0)] * len(x.shape)
        for n, axis in enumerate(along):
            widths[axis] = given[n], given[n + len(given) // 2]
        options = {"constant_values": 0 if value is None else fixed(value, "the value").item()}
        check_size(sum(map(abs, given)))
        return np.pad(x, widths, mode, **(options if mode == "constant" else {}))  # type: ignore[call-overload]

    def Tile(self, x: Array, repeats: Array) -> Any:
        counts = integers(repeats, "repeats")
        check_size(prod(counts) * (1 if isinstance(x, Variable) else x.size))
        return np.tile(x, counts)

    def OneHot(self, indices: Array, depth: Array, values: Array, axis: int = -1) -> Any:
        (count,) = integers(depth, "depth")
        check_size(count)
        axis %= len(indices.shape) + 1
        each = np.arange(count).reshape(-1, *[1] * (len(indices.shape) - axis))
        found = np.where(indices < 0, indices + count, indices)
        return np.where(np.equal(np.expand_dims(found, axis), each), part(values, 1), part(values, 0))

    def DepthToSpace(self, x: Array, blocksize: int, mode: str = "DCR") -> Any:
        (n, _, h, w), b = (known_size(x, i) for i in range(4)), blocksize
        parts, order = ((b, b, -1), (0, 3, 4, 1, 5, 2)) if mode == "DCR" else ((-1, b, b), (0, 1, 4, 2, 5, 3))
        return np.reshape(np.transpose(np.reshape(x, (n, *parts, h, w)), order), (n, -1, h * b, w * b))

    def SpaceToDepth(self, x: Array, blocksize: int, mode: str = "DCR") -> Any:
        (n, c, h, w), b = (known_size(x, i) for i in range(4)), blocksize
        order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
        return np.reshape(np.transpose(np.reshape(x, (n, c, h // b, b, w // b, b)), order), (n, -1, h // b, w // b))


def _shaped(x: Array, wanted: list[Any]) -> Any:
    """A tree of a shape with open sizes, for x; one may be -1, which the axes of x that are not named there have."""
    places = [i for i, n in enumerate(wanted) if not isinstance(n, OpenSize) and n == -1]
    if not places:
        return of_shape(wanted)
    named = [n.axis for n in wanted if isinstance(n, OpenSize) and n.x is x]
    if len(named) < sum(isinstance(n, OpenSize) for n in wanted):
        raise ModelError("of the shape, -1 and a size of another operand are open; sizes={...} fixes one")
    known = prod(n for n in wanted if not isinstance(n, OpenSize) and n != -1)
    rest = part(x, tuple(slice(0, 1) if axis in named else slice(None) for axis in range(len(x.shape))))
    line = part(np.reshape(rest, (-1, known)), (slice(None), 0))
    along = np.reshape(f.fill_like(f.cast(line, "int8"), 0), (-1, *[1] * (len(wanted) - 1 - places[0])))
    return of_shape([1 if i in places else n for i, n in enumerate(wanted)]) + along


def _counted(size: int, axis: int, ndim: int) -> np.ndarray:
    """The indices of an axis of arrays."""
    return np.arange(size).reshape(-1, *[1] * (ndim - 1 - axis))


def _index_of(indices: Array, batch_dims: int = 0) -> tuple[Any, ...]:
    """NumPy's index of tuples of indices, along the last axis."""
    rows = [_counted(known_size(indices, i), i, len(indices.shape) - 1) for i in range(batch_dims)]
    return (*rows, *(part(indices, (..., i)) for i in range(known_size(indices, -1))))


def _scattered(x: Array, index: tuple[Any, ...], updates: Array, reduction: str) -> Any:
    """An array after values are written, or added, at an index."""
    if reduction not in ("none", "add"):
        raise ModelError(f"scattering by {reduction} is not computed")
    return (f.scatter if reduction == "none" else f.scatter_add)(as_tree(x), index, updates)
