"""Pools, normalisation across maps, and regions, by neon's names: layer objects and eager calls on buffers."""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from backends.neon.convolution import blended, check_sizes
from backends.neon.functions import Functions
from backends.neon.replay import Key
from optree.errors import ParameterError, ShapeError, SizeError
from optree.networks.pooling import ArgmaxPool, AvgPool, AvgUnpool, MaxPool, MaxUnpool
from optree.registry import f
from optree.tree.tensor import Tensor
from optree.tree.variable import Operand, Variable

Four = tuple[int, int, int, int]

#: The kinds of pools.
KINDS = ("max", "avg", "l2", "lrn")


class PoolLayer:
    """The geometry of pools of windows J, T, R, S over C, D, H, W, by neon's names.

    Attributes
    ----------
    dimI, dimO : tuple of int
        The shapes of images (C, D, H, W, N) and outputs (K, M, P, Q, N); ``dimI2`` and ``dimO2`` as matrices.
    sizeI, sizeO : int
        Their numbers of elements.
    """

    dimF2 = None

    def __init__(
        self,
        dtype: DTypeLike,
        op: str,
        N: int,
        image: Four,
        output: Four,
        window: Four,
        padding: Four,
        strides: Four,
        ceil: bool = False,
    ) -> None:
        self.dtype, self.op, self.N, self.ceil = dtype, op, N, ceil
        self.C, self.K = image[0], output[0]
        self.M, self.P, self.Q = output[1:]
        self.JTRS, self.DHW, self.MPQ = window, image[1:], output[1:]
        self.padding, self.strides = padding, strides
        self.dimI, self.dimO = (*image, N), (*output, N)
        self.dimI2, self.dimO2 = (prod(image), N), (prod(output), N)
        self.sizeI, self.sizeO, self.nOut = prod(self.dimI), prod(self.dimO), prod(output)
        self.overlap = any(stride < size for stride, size in zip(strides, window, strict=True))

    @cached_property
    def windows(self) -> dict[str, Any]:
        """The parameters of our pools: of the axes along which windows slide, or the last."""
        each = list(zip(self.JTRS, self.strides, self.padding, strict=True))
        axes = [i for i, known in enumerate(each) if known != (1, 1, 0)] or [3]
        parts: Any = list(zip(*(each[i] for i in axes), strict=True))
        return {"window": parts[0], "stride": parts[1], "padding": parts[2], "axes": tuple(axes), "ceil": self.ceil}

    @cached_property
    def geometry(self) -> Any:
        """The kind of pool, its windows, and the shapes of images and outputs."""
        return Key((self.op, tuple(self.windows.items()), self.dimI, self.dimO))


class Pools(Functions):
    """Pools, normalisation across maps, and regions on a backend in neon's mode.

    A tensor of another size than the layer's, or than given, is a SizeError.
    """

    def pool_layer(
        self,
        dtype: DTypeLike,
        op: str,
        N: int,
        C: int,
        D: int = 1,
        H: int = 1,
        W: int = 1,
        J: int = 1,
        T: int = 1,
        R: int = 1,
        S: int = 1,
        pad_c: int = 0,
        pad_d: int = 0,
        pad_h: int = 0,
        pad_w: int = 0,
        str_c: int | None = None,
        str_d: int | None = None,
        str_h: int | None = None,
        str_w: int | None = None,
    ) -> PoolLayer:
        """The geometry of a pool, for `fprop_pool` and `bprop_pool`; strides are by default the windows' sizes.

        Parameters
        ----------
        op : {'max', 'avg', 'l2'}

        Raises
        ------
        ParameterError
            If there is no such pool, or a padding is as large as its window.
        """
        if op not in KINDS:
            raise ParameterError(f"pool_layer: op is one of {KINDS}, not {op!r}")
        image, window, padding = (C, D, H, W), (J, T, R, S), (pad_c, pad_d, pad_h, pad_w)
        given = zip(window, (str_c, str_d, str_h, str_w), strict=True)
        strides: Any = tuple(size if stride is None else stride for size, stride in given)
        each = zip(image, window, padding, strides, strict=True)
        output: Any = tuple(self.output_dim(*known, pooling=True) for known in each)
        return PoolLayer(dtype, op, N, image, output, window, padding, strides, self.check_caffe_compat())

    def fprop_pool(
        self,
        layer: PoolLayer,
        I: Tensor,
        O: Tensor,
        argmax: Tensor | None = None,
        beta: float = 0.0,
        alpha: float = 1.0,
    ) -> None:
        """Write the pools of images `I`, plus `beta` times the old output, into `O`.

        Of maxima, `argmax` gets the index of each within its window, for `bprop_pool`.

        Raises
        ------
        SizeError, ParameterError
            If `argmax` is missing, or of a dtype that does not hold the number of a window's elements.
        """
        check_sizes("fprop_pool", I=(I, layer.sizeI), O=(O, layer.sizeO))
        argmax = self._checked_argmax("fprop_pool", layer, argmax)
        self.replay("fprop_pool", _fprop, layer.geometry, O, I, argmax, alpha, beta)

    def bprop_pool(
        self,
        layer: PoolLayer,
        I: Tensor,
        O: Tensor,
        argmax: Tensor | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """Write the derivative of `fprop_pool` by the images, times errors `I`, into `O`.

        Raises
        ------
        SizeError, ParameterError
            As of `fprop_pool`.
        NotImplementedError
            For pools of kind l2.
        """
        if layer.op == "l2":
            raise NotImplementedError("bprop_pool: neon has no derivative of l2 pools; be.lp_pool has, as a tree")
        check_sizes("bprop_pool", I=(I, layer.sizeO), O=(O, layer.sizeI))
        argmax = self._checked_argmax("bprop_pool", layer, argmax)
        self.replay("bprop_pool", _bprop, layer.geometry, O, I, argmax, alpha, beta)

    @staticmethod
    def _checked_argmax(what: str, layer: PoolLayer, argmax: Any) -> Any:
        if layer.op != "max":
            return None
        if argmax is None:
            raise SizeError(f"{what}: a pool of maxima takes argmax, a tensor of shape {layer.dimO}")
        check_sizes(what, argmax=(argmax, layer.sizeO))
        elements = prod(layer.JTRS)
        if argmax.dtype.kind not in "iu" or elements - 1 > np.iinfo(argmax.dtype).max:
            raise ParameterError(
                f"{what}: argmax of {argmax.dtype} does not hold the indices of the {elements} elements of a window of "
                f"{layer.JTRS}; int32 does"
            )
        return argmax

    # Local response normalisation

    def lrn_layer(self, dtype: DTypeLike, N: int, C: int, D: int = 1, H: int = 1, W: int = 1, J: int = 1) -> PoolLayer:
        """The geometry of windows of J neighbouring maps, for `fprop_lrn` and `bprop_lrn`.

        Raises
        ------
        SizeError
            If J is even.
        """
        if J % 2 == 0:
            raise SizeError(f"lrn_layer: J is odd, not {J}")
        image = (C, D, H, W)
        return PoolLayer(dtype, "lrn", N, image, image, (J, 1, 1, 1), (J // 2, 0, 0, 0), (1, 1, 1, 1))

    def fprop_lrn(
        self,
        layer: PoolLayer,
        I: Tensor,
        O: Tensor,
        denom: Tensor,
        alpha: float | None = None,
        beta: float | None = None,
        ascale: float = 1,
        bpower: float = 1,
        repeat: int = 1,
    ) -> None:
        """Write ``I * denom ** -bpower`` into `O`; `denom` gets 1 + ascale * the mean square of neighbouring maps."""
        check_sizes("fprop_lrn", I=(I, layer.sizeI), O=(O, layer.sizeI), denom=(denom, layer.sizeI))
        key = layer.geometry, ascale, bpower
        self.replay("fprop_lrn", _fprop_lrn, key, O, denom, I, *_blend(alpha, beta))

    def bprop_lrn(
        self,
        layer: PoolLayer,
        I: Tensor,
        O: Tensor,
        E: Tensor,
        delta: Tensor,
        denom: Tensor,
        alpha: float | None = None,
        beta: float | None = None,
        ascale: float = 1,
        bpower: float = 1,
        repeat: int = 1,
    ) -> None:
        """Write the derivative of `fprop_lrn` by the images, times errors `E`, into `delta`."""
        tensors = {"I": I, "O": O, "E": E, "delta": delta, "denom": denom}
        check_sizes("bprop_lrn", **{name: (x, layer.sizeI) for name, x in tensors.items()})
        key = layer.geometry, ascale, bpower
        self.replay("bprop_lrn", _bprop_lrn, key, delta, I, O, E, denom, *_blend(alpha, beta))

    # Regions

    def roipooling_fprop(
        self,
        I: Tensor,
        rois: Tensor,
        O: Tensor,
        argmax: Tensor,
        roi_count: int,
        C: int,
        H: int,
        W: int,
        pooled_height: int,
        pooled_width: int,
        spatial_scale: float,
    ) -> None:
        """Write the maxima of bins of boxes (image, xmin, ymin, xmax, ymax) into `O`, their indices into `argmax`."""
        shapes = self._region_shapes(
            "roipooling_fprop", I, rois, O, argmax, roi_count, C, H, W, pooled_height, pooled_width
        )
        self.replay("roipooling_fprop", _fprop_roi, (shapes, float(spatial_scale)), O, argmax, I, rois)

    def roipooling_bprop(
        self,
        I: Tensor,
        rois: Tensor,
        O: Tensor,
        argmax: Tensor,
        roi_count: int,
        C: int,
        H: int,
        W: int,
        pooled_height: int,
        pooled_width: int,
        spatial_scale: float,
    ) -> None:
        """Write the errors `I` of `roipooling_fprop` into `O`, each added where its maximum was."""
        shapes = self._region_shapes(
            "roipooling_bprop", O, rois, I, argmax, roi_count, C, H, W, pooled_height, pooled_width
        )
        self.replay("roipooling_bprop", _bprop_roi, shapes, O, I, argmax)

    def _region_shapes(
        self, what: str, images: Variable, rois: Variable, regions: Variable, argmax: Variable, count: int, *sizes: int
    ) -> Any:
        c, h, w, *pooled = sizes
        shapes = (c, h, w, self.bsz), (count, 5), (c, *pooled, count)
        pairs = {"images": images, "rois": rois, "regions": regions}
        check_sizes(what, **{name: (x, prod(shape)) for (name, x), shape in zip(pairs.items(), shapes, strict=True)})
        check_sizes(what, argmax=(argmax, regions.size))
        return shapes

    def nms(self, detections: Tensor, threshold: float, normalized: bool = False) -> list[int]:
        """The row numbers of the boxes x1, y1, x2, y2, score that remain, none of which covers much of a better one.

        Examples
        --------
        >>> from backends import gen_backend
        >>> be = gen_backend("cpu", compat_mode="neon")
        >>> be.nms(be.array([[0, 0, 9, 9, 0.75], [1, 1, 9, 9, 0.5], [20, 0, 29, 9, 0.25]]), 0.5)
        [0, 2]
        """
        if detections.ndim != 2 or detections.shape[1] != 5:
            raise SizeError(f"nms: detections have 5 columns x1, y1, x2, y2, score, not the shape {detections.shape}")
        kept = f.nms(detections, float(threshold), normalized).asnumpyarray().reshape(-1)
        return [int(i) for i in kept if i >= 0]


def _blend(alpha: float | None, beta: float | None) -> tuple[float, float]:
    return 1.0 if alpha is None else alpha, 0.0 if beta is None else beta


# The trees, from a key and operands to pairs of a target and a value


def _fprop(key: Any, out: Any, images: Any, argmax: Any, alpha: Any, beta: Any) -> list[tuple[Any, Any]]:
    kind, windows, dim_images, _ = key
    windows, images = dict(windows), f.reshape(images, dim_images)
    written = []
    if kind == "max":
        value = MaxPool.make(**windows)(images)
        written = [(argmax, f.reshape(ArgmaxPool.make(**windows)(images), argmax.shape))]
    else:
        value = AvgPool.make(**windows)(images) if kind == "avg" else f.lp_pool(images, p=2.0, **windows)
    value = f.reshape(_checked(value, key), out.shape)
    return [*written, (out, blended(value, out, alpha, beta))]


def _bprop(key: Any, out: Any, errors: Any, argmax: Any, alpha: Any, beta: Any) -> list[tuple[Any, Any]]:
    kind, windows, dim_images, dim_errors = key
    windows, errors, like = dict(windows), f.reshape(errors, dim_errors), f.reshape(out, dim_images)
    if kind == "max":
        indices = f.cast(f.reshape(argmax, dim_errors), "int32")
        value = MaxUnpool.make(**windows)(errors, indices, like)
    else:
        value = AvgUnpool.make(**windows)(errors, like)
    return [(out, blended(f.reshape(value, out.shape), out, alpha, beta))]


def _checked(value: Any, key: Any) -> Any:
    """The pools; ShapeError if they are not of the layer's sizes: in Caffe's mode a window may be beyond the image."""
    if value.shape != key[3]:
        raise ShapeError(f"pool: windows {dict(key[1])} on {key[2]} give {value.shape}, and the layer has {key[3]}")
    return value


def _around(x: Any, windows: Any) -> Any:
    """The mean over neighbouring maps, those beyond the first and last as 0."""
    return AvgPool.make(**dict(windows), count_padding=True)(x)


def _fprop_lrn(key: Any, out: Any, denom: Any, images: Any, alpha: Any, beta: Any) -> list[tuple[Any, Any]]:
    (_, windows, dim, _), ascale, bpower = key
    x = f.reshape(images, dim)
    value = f.reshape(x * f.reshape(denom, dim) ** -bpower, out.shape)
    mean = _around(f.square(x), windows)
    return [(denom, f.reshape(1 + ascale * mean, denom.shape)), (out, blended(value, out, alpha, beta))]


def _bprop_lrn(
    key: Any, delta: Variable, images: Any, outputs: Any, errors: Any, denom: Any, alpha: Operand, beta: Operand
) -> list[tuple[Any, Any]]:
    (_, windows, dim, _), ascale, bpower = key
    x, y, errors, denom = (f.reshape(each, dim) for each in (images, outputs, errors, denom))
    value = errors * denom**-bpower - 2 * bpower * ascale * x * _around(y * errors / denom, windows)
    return [(delta, blended(f.reshape(value, delta.shape), delta, alpha, beta))]


def _fprop_roi(key: Any, out: Variable, argmax: Variable, images: Any, rois: Any) -> list[tuple[Any, Any]]:
    ((dim_images, dim_rois, dim_out), scale) = key
    x = f.reshape(images, dim_images)
    indices = f.argmax_roi(x, f.reshape(rois, dim_rois), dim_out[1:3], scale, "CHWN")
    found = f.reshape(argmax, (-1, 1))
    values = f.take(f.reshape(x, (-1, 1)), f.maximum(found, 0), axis=0)
    return [
        (argmax, f.reshape(indices, argmax.shape)),
        (out, f.reshape(f.where(found >= 0, values, f.fill_like(values, 0)), out.shape)),
    ]


def _bprop_roi(key: Variable, out: Variable, errors: Variable, argmax: Variable) -> list[tuple[Any, Any]]:
    found, deltas, flat = (f.reshape(x, (-1, 1)) for x in (argmax, errors, out))
    deltas = f.where(found >= 0, deltas, f.fill_like(deltas, 0))
    picked = f.take(flat, f.maximum(found, 0), axis=0)
    added = picked.op.grad(picked.inputs, [deltas])[0]
    return [(out, f.reshape(added, out.shape))]
