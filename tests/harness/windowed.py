"""Meanings of the ops on windows: loops over every element, in float64, written from the formulas."""

from __future__ import annotations

from itertools import product
from math import ceil, floor, prod
from typing import Any

import numpy as np

#: Images, weights and parameters: every rank and layout, several tiles along each side, and what is left of them.
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 9, 8), (70, 3, 3, 3), {"padding": 1}),
    "strides": ((1, 5, 11, 10), (4, 5, 3, 2), {"stride": (2, 3), "padding": ((0, 1), (2, 0))}),
    "groups": ((2, 6, 7, 7), (8, 3, 3, 3), {"groups": 2, "dilation": 2, "padding": "same"}),
    "channels last": ((2, 6, 7, 5), (3, 3, 5, 6), {"layout": "NHWC", "weights_layout": "HWIO", "stride": 2}),
    "batch last": ((4, 6, 6, 3), (4, 3, 3, 5), {"layout": "CHWN", "weights_layout": "IHWO"}),
    "line": ((2, 4, 40), (3, 4, 5), {"stride": 2, "padding": 2}),
    "volume": ((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), {"padding": (1, 0, 1), "stride": (1, 2, 1)}),
}


def _floating(dtype: Any) -> np.dtype:
    return np.dtype(dtype) if np.dtype(dtype).kind == "f" else np.dtype("float64")


def _each(value: Any, count: int) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value] * count


def _paddings(padding: Any, sizes: Any, window: Any, stride: Any, dilation: Any) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * len(sizes)
    if padding == "same":
        pairs = []
        for size, k, s, d in zip(sizes, window, stride, dilation, strict=True):
            total = max((ceil(size / s) - 1) * s + d * (k - 1) + 1 - size, 0)
            pairs.append((total // 2, total - total // 2))
        return pairs
    return [tuple(p) if isinstance(p, tuple | list) else (p, p) for p in _each(padding, len(sizes))]


def _order(layout: str | None, ends: str, ndim: int) -> list[int]:
    """The axes in the order of the ends, then spatial."""
    if layout is None:
        return list(range(ndim))
    return [layout.index(x) for x in (*ends, *(x for x in layout if x not in ends))]


def _filters_order(layout: str | None, weights_layout: str | None, ndim: int) -> list[int]:
    if weights_layout is None:
        return list(range(ndim))
    spatial = [x for x in (layout or "NC" + "DHW"[5 - ndim :]) if x not in "NC"]
    return [weights_layout.index(x) for x in ("O", "I", *spatial)]


class _Conv:
    """Each product of a convolution: the indices of x, of the weights and of the value."""

    def __init__(self, x: Any, w: Any, props: dict[str, Any]) -> None:
        self.x_order = _order(props.get("layout"), "NC", x.ndim)
        self.w_order = _filters_order(props.get("layout"), props.get("weights_layout"), x.ndim)
        (n, _, *sizes), (o, i, *window) = x.transpose(self.x_order).shape, w.transpose(self.w_order).shape
        rank = len(sizes)
        stride, dilation = _each(props.get("stride", 1), rank), _each(props.get("dilation", 1), rank)
        pads = _paddings(props.get("padding", 0), sizes, window, stride, dilation)
        counts = [
            floor((size + a + b - d * (k - 1) - 1) / s) + 1
            for size, k, s, d, (a, b) in zip(sizes, window, stride, dilation, pads, strict=True)
        ]
        self.shape = (n, o, *counts)
        groups = props.get("groups", 1)
        self.terms = []
        for image, out, place, element, inner in product(
            range(n), range(o), np.ndindex(*counts), np.ndindex(*window), range(i)
        ):
            at = [p * s + e * d - a for p, e, s, d, (a, _) in zip(place, element, stride, dilation, pads, strict=True)]
            if all(0 <= p < size for p, size in zip(at, sizes, strict=True)):
                channel = out // (o // groups) * i + inner
                self.terms.append(((image, channel, *at), (out, inner, *element), (image, out, *place)))

    def run(self, into: int, x: Any, w: Any, y: Any) -> Any:
        """The one of the three that the sum of products goes into."""
        arrays = [x, w, y]
        dtype = np.result_type(*(a for k, a in enumerate(arrays) if k != into))
        orders = [self.x_order, self.w_order, self.x_order]
        shape = [a.shape for a in arrays][into]
        out = np.zeros(shape)
        views = [np.asarray(a, np.float64).transpose(order) for a, order in zip(arrays, orders, strict=True)]
        views[into] = out.transpose(orders[into])
        first, second = (k for k in range(3) if k != into)
        for indices in self.terms:
            views[into][indices[into]] += views[first][indices[first]] * views[second][indices[second]]
        return out.astype(dtype)

    def value_shape(self) -> tuple[int, ...]:
        return tuple(self.shape[self.x_order.index(axis)] for axis in range(len(self.shape)))


def conv(x: Any, weights: Any, **props: Any) -> Any:
    """The convolution."""
    terms = _Conv(x, weights, props)
    return terms.run(2, x, weights, np.zeros(terms.value_shape()))


def conv_input(delta: Any, weights: Any, like: Any, **props: Any) -> Any:
    """Its derivative by x."""
    return _Conv(like, weights, props).run(0, like, weights, delta)


def conv_weights(x: Any, delta: Any, like: Any, **props: Any) -> Any:
    """Its derivative by the weights."""
    return _Conv(x, like, props).run(1, x, like, delta)


def conv_transpose(x: Any, weights: Any, output_padding: Any = 0, **props: Any) -> Any:
    """The transposed convolution, by the formula of its sizes."""
    order = _order(props.get("layout"), "NC", x.ndim)
    w_order = _filters_order(props.get("layout"), props.get("weights_layout"), x.ndim)
    (n, _, *sizes), (_, i, *window) = x.transpose(order).shape, weights.transpose(w_order).shape
    rank = len(sizes)
    stride, dilation = _each(props.get("stride", 1), rank), _each(props.get("dilation", 1), rank)
    more = _each(output_padding, rank)
    if props.get("padding") == "same":
        large = [m * s for m, s in zip(sizes, stride, strict=True)]
    else:
        pads = _paddings(props.get("padding", 0), sizes, window, stride, dilation)
        large = [
            (m - 1) * s - a - b + d * (k - 1) + 1 + e
            for m, s, k, d, (a, b), e in zip(sizes, stride, window, dilation, pads, more, strict=True)
        ]
    shape = [n, i * props.get("groups", 1), *large]
    like = np.zeros([shape[order.index(axis)] for axis in range(len(shape))])
    return conv_input(x, weights, like, **props)


# Pools


class _Windows:
    """The windows on an array: for each its index, and (number, index) of each of its elements."""

    def __init__(self, shape: Any, props: dict[str, Any]) -> None:
        layout, axes = props.get("layout"), props.get("axes")
        if axes is None:
            axes = _order(layout, "NC", len(shape))[2:]
        axes = [axes] if isinstance(axes, int) else list(axes)
        rank = len(axes)
        window = _each(props.get("window", 2), rank)
        stride = window if props.get("stride") is None else _each(props["stride"], rank)
        dilation = _each(props.get("dilation", 1), rank)
        sizes = [shape[a] for a in axes]
        pads = _paddings(props.get("padding", 0), sizes, window, stride, dilation)
        counts = list(shape)
        for axis, size, k, s, d, (a, b) in zip(axes, sizes, window, stride, dilation, pads, strict=True):
            room = size + a + b - d * (k - 1) - 1
            counts[axis] = (ceil(room / s) if props.get("ceil") else floor(room / s)) + 1
            if props.get("ceil") and (counts[axis] - 1) * s >= size + a:
                counts[axis] -= 1
        self.counts, self.full, self.window = tuple(counts), prod(window), tuple(window)
        self.axes, self.stride, self.before = axes, stride, [a for a, _ in pads]
        self.found = []
        for index in np.ndindex(*counts):
            cells = []
            for number, element in enumerate(np.ndindex(*window)):
                at = list(index)
                for axis, e, s, d, (a, _) in zip(axes, element, stride, dilation, pads, strict=True):
                    at[axis] = index[axis] * s - a + e * d
                if all(0 <= at[axis] < shape[axis] for axis in axes):
                    cells.append((number, tuple(at)))
            self.found.append((index, cells))


def _number(element: Any, props: dict[str, Any]) -> int:
    if not np.any(element):
        return 0
    window = _each(props.get("window", 2), np.size(element))
    return int(np.ravel_multi_index(tuple(np.reshape(element, -1)), tuple(window)))


def window_element(x: Any, element: Any = 0, outside: Any = 0, **props: Any) -> Any:
    """The element of each window at an index within it."""
    number, windows = _number(element, props), _Windows(x.shape, props)
    out = np.full(windows.counts, outside, x.dtype)
    for index, cells in windows.found:
        for n, at in cells:
            out[index] = x[at] if n == number else out[index]
    return out


def window_element_input(delta: Any, like: Any, element: Any = 0, cells: Any = 1, **props: Any) -> Any:
    """Each delta where the elements of its window are."""
    windows, out = _Windows(like.shape, props), np.zeros(like.shape, delta.dtype)
    rank = len(windows.window)
    lows, counts = _each(0 if element is None else element, rank), _each(cells, rank)
    for index, found in windows.found:
        for n, at in found:
            places = zip(np.unravel_index(n, windows.window), lows, counts, strict=True)
            out[at] += delta[index] * all(low <= place < low + count for place, low, count in places)
    return out


def window_step(x: Any, like: Any, **props: Any) -> Any:
    """The element at the steps since a window could have begun."""
    windows, out = _Windows(like.shape, props), np.zeros(like.shape, x.dtype)
    x = np.broadcast_to(x, [n if a in windows.axes else like.shape[a] for a, n in enumerate(x.shape)])
    for index in np.ndindex(*like.shape):
        at = list(index)
        for axis, stride, before in zip(windows.axes, windows.stride, windows.before, strict=True):
            at[axis] = (index[axis] + before) % stride
        out[index] = x[tuple(at)]
    return out


def window_facts(like: Any, fact: str = "cells", **props: Any) -> Any:
    """The number of each window's elements, or the first."""
    axes = _order(props.get("layout"), "NC", like.ndim)[2:]
    windows = _Windows([n if axis in axes else 1 for axis, n in enumerate(like.shape)], props)
    out = np.zeros([n if axis in axes else 1 for axis, n in enumerate(windows.counts)], np.int32)
    for index, cells in windows.found:
        at = tuple(i if axis in axes else 0 for axis, i in enumerate(index))
        out[at] = len(cells) if fact == "cells" else cells[0][0]
    return out


def max_pool(x: Any, **props: Any) -> Any:
    """The maximum of each window."""
    windows = _Windows(x.shape, props)
    out = np.empty(windows.counts, x.dtype)
    for index, cells in windows.found:
        out[index] = np.max([x[at] for _, at in cells])
    return out


def argmax_pool(x: Any, **props: Any) -> Any:
    """Where it is."""
    windows = _Windows(x.shape, props)
    out = np.empty(windows.counts, np.int32)
    for index, cells in windows.found:
        out[index] = cells[int(np.argmax([x[at] for _, at in cells]))][0]
    return out


def max_unpool(delta: Any, indices: Any, like: Any, **props: Any) -> Any:
    """Each delta added where its maximum was."""
    out = np.zeros(like.shape)
    for index, cells in _Windows(like.shape, props).found:
        for number, at in cells:
            out[at] += float(delta[index]) * (number == indices[index])
    return out.astype(delta.dtype)


def take_pool(x: Any, indices: Any, **props: Any) -> Any:
    """The element that an index tells."""
    out = np.zeros(indices.shape, x.dtype)
    for index, cells in _Windows(x.shape, props).found:
        for number, at in cells:
            if number == indices[index]:
                out[index] = x[at]
    return out


def avg_pool(x: Any, count_padding: bool = False, **props: Any) -> Any:
    """The mean of each window."""
    windows = _Windows(x.shape, props)
    out = np.zeros(windows.counts)
    for index, cells in windows.found:
        out[index] = sum(float(x[at]) for _, at in cells) / (windows.full if count_padding else len(cells))
    return out.astype(_floating(x.dtype))


def avg_unpool(delta: Any, like: Any, count_padding: bool = False, **props: Any) -> Any:
    """Each delta, divided among the elements of its window."""
    windows = _Windows(like.shape, props)
    out = np.zeros(like.shape)
    for index, cells in windows.found:
        for _, at in cells:
            out[at] += float(delta[index]) / (windows.full if count_padding else len(cells))
    return out.astype(_floating(delta.dtype))


def lp_pool(x: Any, p: float, **props: Any) -> Any:
    """The p-norm of each window."""
    windows = _Windows(x.shape, props)
    out = np.zeros(windows.counts)
    for index, cells in windows.found:
        out[index] = sum(abs(float(x[at])) ** p for _, at in cells) ** (1 / p)
    return out.astype(_floating(x.dtype))


def lrn(x: Any, size: int, alpha: float, beta: float, k: float, layout: str | None = None) -> Any:
    """Local response normalisation."""
    wide = np.moveaxis(x.astype(np.float64), _order(layout, "NC", x.ndim)[1], 0)
    out = np.empty_like(wide)
    for c in range(len(wide)):
        near = wide[max(0, c - size // 2) : c + (size - 1) // 2 + 1]
        out[c] = wide[c] * (k + alpha / size * (near**2).sum(0)) ** -beta
    return np.moveaxis(out, 0, _order(layout, "NC", x.ndim)[1]).astype(_floating(x.dtype))


# Columns


def _columns(shape: Any, props: dict[str, Any]) -> tuple[list[Any], tuple[int, ...]]:
    """The index in the columns and that in the images of each element, and the columns' shape."""
    order = _order(props.get("layout"), "NC", len(shape))
    n, c, *sizes = (shape[axis] for axis in order)
    rank = len(sizes)
    window, stride, dilation = (
        _each(props.get(k, d), rank) for k, d in (("window", 2), ("stride", 1), ("dilation", 1))
    )
    pads = _paddings(props.get("padding", 0), sizes, window, stride, dilation)
    counts = [
        floor((size + a + b - d * (k - 1) - 1) / s) + 1
        for size, k, s, d, (a, b) in zip(sizes, window, stride, dilation, pads, strict=True)
    ]
    found = []
    for image, channel in product(range(n), range(c)):
        for row, element in enumerate(np.ndindex(*window)):
            for column, place in enumerate(np.ndindex(*counts)):
                at = [
                    p * s + e * d - a for p, e, s, d, (a, _) in zip(place, element, stride, dilation, pads, strict=True)
                ]
                if all(0 <= p < size for p, size in zip(at, sizes, strict=True)):
                    where = [image, channel, *at]
                    there = tuple(where[order.index(axis)] for axis in range(len(shape)))
                    found.append(((image, channel * prod(window) + row, column), there))
    return found, (n, c * prod(window), prod(counts))


def unfold(x: Any, **props: Any) -> Any:
    """The columns of images."""
    found, shape = _columns(x.shape, props)
    out = np.zeros(shape, x.dtype)
    for column, at in found:
        out[column] = x[at]
    return out


def fold(x: Any, size: Any, **props: Any) -> Any:
    """The sums of columns, as images of a size."""
    window = _each(props.get("window", 2), len(size))
    shape = [x.shape[0], x.shape[1] // prod(window), *size]
    order = _order(props.get("layout"), "NC", len(shape))
    out = np.zeros([shape[order.index(axis)] for axis in range(len(shape))])
    for column, at in _columns(out.shape, props)[0]:
        out[at] += float(x[column])
    return out.astype(x.dtype)


def windows(x: Any, outside: Any = 0, **props: Any) -> Any:
    """The elements of each window."""
    found = _Windows(x.shape, props)
    out = np.full((*found.counts, found.full), outside, x.dtype)
    for index, cells in found.found:
        for n, at in cells:
            out[(*index, n)] = x[at]
    return out.reshape(*found.counts, *found.window)


def windows_input(delta: Any, like: Any, **props: Any) -> Any:
    """The sums of what is at an element of several windows."""
    found, out = _Windows(like.shape, props), np.zeros(like.shape, np.result_type(delta, float))
    columns = delta.reshape(*found.counts, found.full)
    for index, cells in found.found:
        for n, at in cells:
            out[at] += columns[(*index, n)]
    return out.astype(delta.dtype)


# Images


def _weights(before: int, after: int, method: str, align_corners: bool) -> np.ndarray:
    """The weight of each element of an axis in each of the resized one."""
    out = np.zeros((after, before))
    for i in range(after):
        if align_corners:
            at = i * (before - 1) / (after - 1) if after > 1 else 0.0
        else:
            at = (i + 0.5) * before / after - 0.5
        if method == "nearest":
            out[i, min(max(floor(at + 0.5), 0), before - 1)] = 1
        else:
            at = min(max(at, 0.0), before - 1.0)
            out[i, floor(at)] += 1 - (at - floor(at))
            out[i, min(floor(at) + 1, before - 1)] += at - floor(at)
    return out


def _resizing(shape: Any, props: dict[str, Any]) -> list[tuple[int, np.ndarray]]:
    axes = _order(props.get("layout"), "NC", len(shape))[2:]
    rank = len(axes)
    if props.get("size") is not None:
        sizes = _each(props["size"], rank)
    else:
        sizes = [int(shape[a] * s) for a, s in zip(axes, _each(props["scale"], rank), strict=True)]
    method, corners = props.get("method", "bilinear"), props.get("align_corners", False)
    return [(a, _weights(shape[a], size, method, corners)) for a, size in zip(axes, sizes, strict=True)]


def resize(x: Any, **props: Any) -> Any:
    """Images resized, by a matrix for each axis."""
    out = x.astype(np.float64)
    for axis, matrix in _resizing(x.shape, props):
        out = np.moveaxis(np.tensordot(matrix, out, (1, axis)), 0, axis)
    return out.astype(x.dtype if props.get("method") == "nearest" else _floating(x.dtype))


def resize_table(
    like: Any, axis: int | None = None, weights: bool = False, transposed: bool = False, **props: Any
) -> Any:
    """The elements that each element of a resized axis is of, or each element of the image is in, and their weights."""
    matrices = dict(_resizing(like.shape, props))
    source = [len(matrices[a]) if transposed and a in matrices else n for a, n in enumerate(like.shape)]
    if axis is None:
        indices = np.arange(prod(source)).reshape(source)
        return indices[tuple(slice(1 if a in matrices else None) for a in range(like.ndim))]
    matrix = matrices[axis].T if transposed else matrices[axis]
    reach = 1 if props.get("method") == "nearest" else 2
    before, after = matrices[axis].shape[::-1]
    ratio = (after - 1, before - 1) if props.get("align_corners") else (after, before)
    taps = (after if 1 in (before, after) else ceil(reach * ratio[0] / ratio[1])) if transposed else reach
    wide = np.dtype("float32") if like.dtype.itemsize == 2 and like.dtype.kind == "f" else _floating(like.dtype)
    step, dtype = prod(source[axis + 1 :]), wide if weights else np.int64
    out = np.full((taps, len(matrix)), 0 if weights else -(1 << 60), dtype)
    for n, row in enumerate(matrix):
        for tap, at in enumerate(np.flatnonzero(row)):
            out[tap, n] = row[at] if weights else at * step
    return out


def resize_input(delta: Any, like: Any, **props: Any) -> Any:
    """The derivative of that."""
    out = delta.astype(np.float64)
    for axis, matrix in _resizing(like.shape, props):
        out = np.moveaxis(np.tensordot(matrix.T, out, (1, axis)), 0, axis)
    return out.astype(_floating(delta.dtype))


def _bins(box: Any, size: Any, scale: float, limits: Any) -> Any:
    x0, y0, x1, y1 = (int(np.rint(v * scale)) for v in np.asarray(box, np.float64)[1:])
    height, width = max(y1 - y0 + 1, 1), max(x1 - x0 + 1, 1)
    for i, j in np.ndindex(*_each(size, 2)):
        rows, columns = (
            range(
                min(max(begin + floor(k * whole / count), 0), limit),
                min(max(begin + ceil((k + 1) * whole / count), 0), limit),
            )
            for k, begin, whole, count, limit in (
                (i, y0, height, _each(size, 2)[0], limits[0]),
                (j, x0, width, _each(size, 2)[1], limits[1]),
            )
        )
        yield i, j, rows, columns


def _region(images: Any, boxes: Any, props: dict[str, Any]) -> tuple[list[int], list[int]]:
    order = _order(props.get("layout"), "NC", 4)
    shape = [len(boxes), images.transpose(order).shape[1], *_each(props.get("size", 2), 2)]
    return order, [shape[order.index(axis)] for axis in range(4)]


def argmax_roi(x: Any, boxes: Any, **props: Any) -> Any:
    """Where the maximum of each bin is."""
    order, shape = _region(x, boxes, props)
    out = np.full(shape, -1)
    target, images = out.transpose(order), x.transpose(order)
    flat = np.arange(x.size).reshape(x.shape).transpose(order)
    for b, box in enumerate(boxes):
        n = int(box[0])
        for i, j, rows, columns in _bins(box, props.get("size", 2), props.get("scale", 1.0), images.shape[2:]):
            for c in range(images.shape[1]):
                best = None
                for r, q in product(rows, columns):
                    if best is None or images[n, c, r, q] > images[n, c, best[0], best[1]]:
                        best = r, q
                if best is not None:
                    target[b, c, i, j] = flat[n, c, best[0], best[1]]
    return out


def roi_pool(x: Any, boxes: Any, **props: Any) -> Any:
    """The maximum of each bin."""
    places = argmax_roi(x, boxes, **props)
    return np.where(places >= 0, x.ravel()[np.maximum(places, 0)], np.zeros((), x.dtype))


def _bilinear(limits: Any, y: float, x: float) -> list[tuple[int, int, float]]:
    if not (-1 <= y <= limits[0] and -1 <= x <= limits[1]):
        return []
    found = [[]]
    ends = []
    for at, limit in ((y, limits[0]), (x, limits[1])):
        at = min(max(at, 0.0), limit - 1.0)
        ends.append([(floor(at), 1 - (at - floor(at))), (min(floor(at) + 1, limit - 1), at - floor(at))])
    found = [(r, q, u * v) for (r, u), (q, v) in product(*ends)]
    return found


def _samples(box: Any, props: dict[str, Any], limits: Any) -> Any:
    size, samples, aligned = _each(props.get("size", 2), 2), props.get("samples", 2), props.get("aligned", True)
    x0, y0, x1, y1 = np.asarray(box, np.float64)[1:] * props.get("scale", 1.0) - 0.5 * aligned
    height, width = y1 - y0, x1 - x0
    if not aligned:
        height, width = max(height, 1.0), max(width, 1.0)
    for i, j in np.ndindex(*size):
        for u, v in np.ndindex(samples, samples):
            y = y0 + height / size[0] * (i + (u + 0.5) / samples)
            x = x0 + width / size[1] * (j + (v + 0.5) / samples)
            for r, q, weight in _bilinear(limits, y, x):
                yield i, j, r, q, weight / samples**2


def roi_align(x: Any, boxes: Any, **props: Any) -> Any:
    """The means of samples."""
    order, shape = _region(x, boxes, props)
    out = np.zeros(shape)
    target, images = out.transpose(order), x.astype(np.float64).transpose(order)
    for b, box in enumerate(boxes):
        for i, j, r, q, weight in _samples(box, props, images.shape[2:]):
            target[b, :, i, j] += weight * images[int(box[0]), :, r, q]
    return out.astype(_floating(x.dtype))


def roi_align_input(delta: Any, boxes: Any, like: Any, **props: Any) -> Any:
    """The derivative of that."""
    order = _order(props.get("layout"), "NC", 4)
    out = np.zeros(like.shape)
    target, deltas = out.transpose(order), delta.astype(np.float64).transpose(order)
    for b, box in enumerate(boxes):
        for i, j, r, q, weight in _samples(box, props, target.shape[2:]):
            target[int(box[0]), :, r, q] += weight * deltas[b, :, i, j]
    return out.astype(_floating(delta.dtype))


def roi_table(boxes: Any, like: Any, along: str = "H", kind: str = "indices", **props: Any) -> Any:
    """The elements that each sampled point of a box is between along an axis, as flat indices, or their weights."""
    order = _order(props.get("layout"), "NC", 4)
    steps = [prod(like.shape[axis + 1 :]) for axis in order]
    if along == "C":
        return np.arange(like.shape[order[1]])[:, None] * steps[1]
    which, samples = "HW".index(along), props.get("samples", 2)
    limit, bins = like.shape[order[2 + which]], _each(props.get("size", 2), 2)[which]
    scale, is_aligned = props.get("scale", 1.0), props.get("aligned", True)
    count = like.shape[order[0]]
    matrix = np.zeros((len(boxes), bins, limit * (1 if which else count)))
    found = np.full((2 * samples, len(boxes), bins), 0.0 if kind == "weights" else -float(1 << 60))
    for b, box in enumerate(boxes):
        first, last = (box[i] * scale - 0.5 * is_aligned for i in (2 - which, 4 - which))
        extent = last - first if is_aligned else max(last - first, 1.0)
        for k in range(bins * samples):
            point = first + extent * (k + 0.5) / (bins * samples)
            at = min(max(point, 0.0), limit - 1.0)
            for tap, (element, weight) in enumerate(((floor(at), 1 - at % 1), (floor(at) + 1, at % 1))):
                place = 2 * (k % samples) + tap, b, k // samples
                if kind == "weights":
                    found[place] = weight / samples
                elif -1 <= point <= limit and weight:
                    found[place] = element * steps[2 + which] + (0 if which else box[0] * steps[0])
                    matrix[b, place[2], int(element + (0 if which else box[0] * limit))] += weight / samples
    wide = np.dtype("float32") if like.dtype.itemsize == 2 and like.dtype.kind == "f" else _floating(like.dtype)
    return matrix.astype(wide) if kind == "matrix" else found.astype(wide if kind == "weights" else np.int64)


def nms(boxes: Any, threshold: float = 0.5, normalized: bool = False, keepdims: bool = False) -> Any:
    """Greedily, box by box."""
    rows = [tuple(map(float, row)) for row in boxes]
    more = 0 if normalized else 1

    def overlap(a: Any, b: Any) -> float:
        width = max(min(a[2], b[2]) - max(a[0], b[0]) + more, 0)
        height = max(min(a[3], b[3]) - max(a[1], b[1]) + more, 0)
        areas = [(r[2] - r[0] + more) * (r[3] - r[1] + more) for r in (a, b)]
        union = sum(areas) - width * height
        return width * height / union if union else float("nan")

    left = sorted((i for i, row in enumerate(rows) if row[4] != 0), key=lambda i: -rows[i][4])
    found = []
    while left:
        best, *left = left
        found.append(best)
        left = [i for i in left if not overlap(rows[best], rows[i]) > threshold]
    out = np.array([*found, *[-1] * (len(rows) - len(found))], np.int64)
    return out[:, None] if keepdims else out


MEANINGS = {
    "conv": conv,
    "conv_input": conv_input,
    "conv_weights": conv_weights,
    "conv_transpose": conv_transpose,
    "window_element": window_element,
    "window_element_input": window_element_input,
    "window_facts": window_facts,
    "window_step": window_step,
    "max_pool": max_pool,
    "argmax_pool": argmax_pool,
    "max_unpool": max_unpool,
    "take_pool": take_pool,
    "avg_pool": avg_pool,
    "avg_unpool": avg_unpool,
    "windows": windows,
    "windows_input": windows_input,
    "resize": resize,
    "resize_table": resize_table,
    "resize_input": resize_input,
    "argmax_roi": argmax_roi,
    "roi_align": roi_align,
    "roi_table": roi_table,
    "roi_align_input": roi_align_input,
    "nms": nms,
}
