"""Products, convolutions and pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.arrays import Array
from optree.dtypes import is_floating
from optree.errors import ModelError
from optree.onnx.values import Operators, as_tree, fixed, integers, known_size
from optree.registry import f


class Windows(Operators):
    """Operators that multiply, or slide over images."""

    def Gemm(
        self,
        a: Array,
        b: Array,
        c: Array | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        transA: int = 0,
        transB: int = 0,
    ) -> Any:
        found = np.matmul(np.transpose(a) if transA else a, np.transpose(b) if transB else b)
        found = found if alpha == 1 else found * alpha
        return found if c is None else found + (c if beta == 1 else c * beta)

    def Conv(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        group: int = 1,
        kernel_shape: Sequence[int] | None = None,
        **sliding: Any,
    ) -> Any:
        way = _Windows(x, w.shape[2:], **sliding)
        return _biased(f.conv(x, w, way.strides, way.padding, way.dilations, group), b)

    def ConvTranspose(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        group: int = 1,
        kernel_shape: Sequence[int] | None = None,
        output_padding: Sequence[int] | None = None,
        output_shape: Sequence[int] | None = None,
        auto_pad: str = "NOTSET",
        **sliding: Any,
    ) -> Any:
        way = _Windows(x, w.shape[2:], auto_pad="VALID" if auto_pad == "VALID" else "NOTSET", **sliding)
        further = tuple(output_padding or [0] * way.count)
        if output_shape is not None or auto_pad.startswith("SAME"):
            lower = auto_pad == "SAME_LOWER"
            sizes = [known_size(x, 2 + i) for i in range(way.count)]
            wanted = output_shape or [n * s for n, s in zip(sizes, way.strides, strict=True)]
            own = zip(sizes, way.strides, way.spans, further, strict=True)
            whole = [(n - 1) * stride + span + more for n, stride, span, more in own]
            total = [most - n for most, n in zip(whole, wanted[-way.count :], strict=True)]
            further = tuple(more + max(-n, 0) for more, n in zip(further, total, strict=True))
            way.padding = tuple(_halves(max(n, 0), lower) for n in total)
        found = f.conv_transpose(x, w, way.strides, way.padding, way.dilations, group, output_padding=further)
        return _biased(found, b)

    def MaxPool(
        self, x: Array, kernel_shape: Sequence[int], ceil_mode: int = 0, storage_order: int = 0, **sliding: Any
    ) -> Any:
        way = _Windows(x, kernel_shape, **sliding)
        if is_floating(x.dtype) and not way.is_dilated:
            return f.max_pool(x, way.window, way.strides, way.padding, ceil=bool(ceil_mode))
        least = -np.inf if is_floating(x.dtype) else np.iinfo(x.dtype).min
        windows = way.windows(x, ceil_mode, least)
        return np.max(windows, axis=tuple(range(len(x.shape), len(windows.shape))))

    def AveragePool(
        self, x: Array, kernel_shape: Sequence[int], ceil_mode: int = 0, count_include_pad: int = 0, **sliding: Any
    ) -> Any:
        way = _Windows(x, kernel_shape, **sliding)
        if not way.is_dilated:
            options = {"ceil": bool(ceil_mode), "count_padding": bool(count_include_pad)}
            return f.avg_pool(x, way.window, way.strides, way.padding, **options)
        if count_include_pad:
            x, way.padding = np.pad(x, ((0, 0), (0, 0), *way.padding)), 0
        windows, inside = (way.windows(y, ceil_mode, 0) for y in (x, f.fill_like(x, 1)))
        axes = tuple(range(len(x.shape), len(windows.shape)))
        return np.sum(windows, axis=axes) / np.sum(inside, axis=axes)

    def LpPool(self, x: Array, kernel_shape: Sequence[int], ceil_mode: int = 0, p: int = 2, **sliding: Any) -> Any:
        way = _Windows(x, kernel_shape, **sliding)
        if way.is_dilated:
            raise ModelError("dilations of LpPool are not computed")
        return f.lp_pool(x, way.window, p, way.strides, way.padding, ceil=bool(ceil_mode))

    def Col2Im(self, x: Array, image: Array, block: Array, **sliding: Any) -> Any:
        size, window = integers(image, "the image's shape"), integers(block, "the block's shape")
        way = _Windows(x, window, **sliding)
        return f.fold(x, size, window, way.strides, way.padding, way.dilations)

    def RoiAlign(
        self,
        x: Array,
        rois: Array,
        batch_indices: Array,
        coordinate_transformation_mode: str = "",
        mode: str = "avg",
        output_height: int = 1,
        output_width: int = 1,
        sampling_ratio: int = 0,
        spatial_scale: float = 1.0,
    ) -> Any:
        if mode != "avg" or not sampling_ratio:
            raise ModelError("mode max and sampling_ratio 0 are not computed")
        boxes = np.concatenate([np.expand_dims(f.cast(batch_indices, rois.dtype), 1), as_tree(rois)], 1)
        mode = coordinate_transformation_mode or ("half_pixel" if self.version >= 16 else "output_half_pixel")
        options = {"samples": sampling_ratio, "aligned": mode == "half_pixel"}
        return f.roi_align(x, boxes, (output_height, output_width), spatial_scale, **options)

    def Upsample(self, x: Array, scales: Array, mode: str = "nearest") -> Any:
        return self.Resize(x, None, scales, None, None, "asymmetric", mode=mode, nearest_mode="floor")

    def Resize(
        self,
        x: Array,
        roi: Array | None = None,
        scales: Array | None = None,
        sizes: Array | None = None,
        axes: Sequence[int] | None = None,
        coordinate_transformation_mode: str = "half_pixel",
        cubic_coeff_a: float = -0.75,
        mode: str = "nearest",
        nearest_mode: str = "round_prefer_floor",
        antialias: int = 0,
        exclude_outside: int = 0,
        extrapolation_value: float = 0.0,
        keep_aspect_ratio_policy: str = "stretch",
    ) -> Any:
        if self.version < 11:
            roi, scales = None, roi if scales is None else scales
        along = [*range(len(x.shape))] if axes is None else [axis % len(x.shape) for axis in axes]
        known = [known_size(x, axis) for axis in along]
        if sizes is not None:
            wanted = list(integers(sizes, "the sizes"))
            factors = [n / m for n, m in zip(wanted, known, strict=True)]
            if keep_aspect_ratio_policy != "stretch":
                one = (min if keep_aspect_ratio_policy == "not_larger" else max)(factors)
                factors, wanted = [one] * len(known), [int(one * m + 0.5) for m in known]
        else:
            factors = [float(s) for s in fixed(scales, "the scales").reshape(-1)]
            wanted = [int(m * s) for m, s in zip(known, factors, strict=True)]
        bounds = np.zeros(2 * len(along)) if roi is None else fixed(roi, "the region")
        for i, (axis, before, after, factor) in enumerate(zip(along, known, wanted, factors, strict=True)):
            if (before, factor) == (after, 1):
                continue
            start, end = bounds[i], bounds[i + len(along)]
            at = _positions(coordinate_transformation_mode, before, after, factor, float(start), float(end))
            if mode == "nearest":
                found = np.take(x, np.clip(ROUNDED[nearest_mode](at), 0, before - 1).astype(int), axis)
            else:
                stretch = min(factor, 1.0) if antialias else 1.0
                table = _table(at, before, cubic_coeff_a if mode == "cubic" else None, stretch, exclude_outside)
                found = np.moveaxis(np.matmul(np.moveaxis(x, axis, -1), table.astype(x.dtype)), -1, axis)
            if coordinate_transformation_mode == "tf_crop_and_resize":
                inside = ((at >= 0) & (at <= before - 1)).reshape(-1, *[1] * (len(x.shape) - 1 - axis))
                found = np.where(inside, found, np.asarray(extrapolation_value, x.dtype))
            x = found
        return x


#: The roundings of positions to the nearest element.
ROUNDED: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


class _Windows:
    """The windows of a convolution or pool, by ONNX's attributes, of each axis that they slide along."""

    def __init__(
        self,
        x: Array,
        window: Sequence[int],
        strides: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
        auto_pad: str = "NOTSET",
        pads: Sequence[int] | None = None,
    ) -> None:
        self.window, self.count = tuple(window), len(window)
        self.strides, self.dilations = (tuple(y or [1] * self.count) for y in (strides, dilations))
        self.is_dilated = {*self.dilations} != {1}
        self.spans = [(n - 1) * by + 1 for n, by in zip(self.window, self.dilations, strict=True)]
        pads = pads or [0] * (2 * self.count)
        self.padding: Any = tuple(zip(pads[: self.count], pads[self.count :], strict=True))
        if auto_pad == "VALID":
            self.padding = 0
        elif auto_pad == "SAME_UPPER":
            self.padding = "same"
        elif auto_pad == "SAME_LOWER":
            sizes = [known_size(x, 2 + i) for i in range(self.count)]
            own = zip(sizes, self.strides, self.spans, strict=True)
            total = [max((-(-n // by) - 1) * by + span - n, 0) for n, by, span in own]
            self.padding = tuple(_halves(n, True) for n in total)

    def windows(self, x: Array, ceil: int, outside: float) -> Any:
        """The windows on x, whose elements are the last axes."""
        options = {"ceil": bool(ceil), "dilation": self.dilations, "outside": outside}
        return f.windows(x, self.window, self.strides, self.padding, **options)


def _halves(total: int, lower: bool) -> tuple[int, int]:
    """The padding before and after, the larger one first if `lower`."""
    small, large = total // 2, total - total // 2
    return (large, small) if lower else (small, large)


def _biased(found: Array, bias: Array | None) -> Any:
    return found if bias is None else found + np.reshape(bias, (1, -1, *[1] * (len(found.shape) - 2)))


def _positions(mode: str, before: int, after: int, factor: float, start: float, end: float) -> np.ndarray:
    """The position of each resized element among those before."""
    i, whole = np.arange(after, dtype=float), factor * before
    if mode == "align_corners":
        return i * (before - 1) / (whole - 1) if whole > 1 else i * 0
    if mode == "asymmetric":
        return i / factor
    if mode == "tf_crop_and_resize":
        if whole <= 1:
            return i * 0 + 0.5 * (start + end) * (before - 1)
        return (before - 1) * (start + i * (end - start) / (whole - 1))
    if mode == "pytorch_half_pixel" and whole <= 1:
        return i * 0
    moved = before / 2 * (1 - after / whole) if mode == "half_pixel_symmetric" else 0.0
    if mode not in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"):
        raise ModelError(f"coordinates by {mode} are not computed")
    return moved + (i + 0.5) / factor - 0.5


def _table(at: np.ndarray, before: int, cubic: float | None, stretch: float, exclude_outside: int) -> np.ndarray:
    """The weights by which the elements before, the rows, are summed for each position, the columns."""
    reach = int(np.ceil(2 / stretch)) + 1
    near = np.floor(at)[:, None] + np.arange(-reach, reach + 1)
    far = np.abs(near - at[:, None]) * stretch
    if cubic is None:
        weights = np.maximum(1 - far, 0)
    else:
        inner = ((cubic + 2) * far - (cubic + 3)) * far * far + 1
        outer = ((cubic * far - 5 * cubic) * far + 8 * cubic) * far - 4 * cubic
        weights = np.where(far <= 1, inner, np.where(far < 2, outer, 0))
    if exclude_outside:
        weights = np.where((near >= 0) & (near < before), weights, 0)
    weights = weights / weights.sum(1, keepdims=True)
    table = np.zeros((before, len(at)))
    columns = np.broadcast_to(np.arange(len(at))[:, None], near.shape)
    np.add.at(table, (np.clip(near, 0, before - 1).astype(int), columns), weights)
    return table
