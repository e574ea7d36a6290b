"""Convolutions by neon's names: layer objects, which know the geometry, and eager calls on buffers."""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Any

from numpy.typing import DTypeLike

from backends.neon.allocation import Allocation
from backends.neon.replay import Key, Replay
from optree.errors import ParameterError, SizeError
from optree.networks.convolution import Conv, ConvInput, ConvWeights
from optree.registry import f
from optree.tree.tensor import Tensor
from optree.tree.variable import Operand, Variable

#: The order of the axes of neon's images, and of its filters.
IMAGES, FILTERS = "CDHWN", "IDHWO"

Three = tuple[int, int, int]


def output_size(size: int, window: int, padding: int, stride: int, dilation: int = 1) -> int:
    """The number of windows along an axis, 0 or less where none fits."""
    return (size - dilation * (window - 1) - 1 + 2 * padding) // stride + 1


def input_size(count: int, window: int, padding: int, stride: int, dilation: int) -> int:
    """The size of an axis that a convolution makes this number of windows of."""
    return (count - 1) * stride - 2 * padding + dilation * (window - 1) + 1


class ConvLayer:
    """The geometry of a convolution, by neon's names: C maps of D, H, W to K maps of M, P, Q, by windows of T, R, S.

    Attributes
    ----------
    dimI, dimF, dimO : tuple of int
        The shapes of images (C, D, H, W, N), filters (C, T, R, S, K) and outputs (K, M, P, Q, N); ``dimI2`` and so on
        as matrices.
    sizeI, sizeF, sizeO : int
        Their numbers of elements.
    """

    is_mklop = False

    def __init__(
        self,
        dtype: DTypeLike,
        N: int,
        C: int,
        K: int,
        image: Three,
        output: Three,
        window: Three,
        steps: tuple[Three, ...],
    ) -> None:
        self.dtype, self.N, self.C, self.K = dtype, N, C, K
        self.M, self.P, self.Q = output
        self.NCK, self.TRS, self.DHW, self.MPQ = (N, C, K), window, image, output
        self.padding, self.strides, self.dilation = steps
        self.dimI, self.dimF, self.dimO = (C, *image, N), (C, *window, K), (K, *output, N)
        self.dimI2, self.dimF2 = (C * prod(image), N), (C * prod(window), K)
        self.dimO2, self.dimS = (K * prod(output), N), (K, 1)
        self.sizeI, self.sizeF, self.sizeO = prod(self.dimI), prod(self.dimF), prod(self.dimO)
        self.nOut = prod(output) * K

    @cached_property
    def geometry(self) -> Any:
        """The op, with the shapes of images, filters and outputs."""
        op = Conv.make(
            stride=self.strides,
            padding=self.padding,
            dilation=self.dilation,
            layout=IMAGES,
            weights_layout=FILTERS,
        )
        return Key((op, self.dimI, self.dimF, self.dimO))

    def get_is_mklop(self) -> bool:
        """Whether a flag of neon's MKL backend is set."""
        return self.is_mklop

    def set_is_mklop(self) -> None:
        """Set that flag."""
        self.is_mklop = True

    def set_not_mklop(self) -> None:
        """Clear that flag."""
        self.is_mklop = False


class DeconvLayer(ConvLayer):
    """The geometry of a transposed convolution: its input are the outputs of `ConvLayer`, its output the images."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.H, self.W = self.DHW[1:]
        self.nOut = prod(self.DHW) * self.C


def check_sizes(what: str, **operands: tuple[Any, int]) -> None:
    """Raise SizeError for tensors of another number of elements than given."""
    for name, (x, size) in operands.items():
        if x.size != size:
            raise SizeError(f"{what}: {name} of shape {x.shape} has {x.size} elements, not {size}")


class Convolutions(Allocation):
    """Convolutions on a backend in neon's mode; SizeError if a tensor has another size than the layer's."""

    @cached_property
    def replay(self) -> Replay:
        """The calls that have been recorded."""
        return Replay(self)

    def output_dim(self, X: int, S: int, padding: int, strides: int, pooling: bool = False, dilation: int = 1) -> int:
        """The number of windows along an axis; of pools in Caffe's mode rounded up.

        Raises
        ------
        ParameterError
            If a pool's padding is as large as its window.
        """
        if not pooling:
            return output_size(X, S, padding, strides, dilation)
        extent = dilation * (S - 1) + 1
        if padding >= extent:
            raise ParameterError(f"output_dim: a padding of {padding} is not below the pool's window of {extent}")
        if not self.check_caffe_compat():
            return output_size(X, S, padding, strides, dilation)
        size = -((extent - X - 2 * padding) // strides) + 1
        return size - 1 if padding > 0 and (size - 1) * strides >= X + padding else size

    def conv_layer(
        self,
        dtype: DTypeLike,
        N: int,
        C: int,
        K: int,
        D: int = 1,
        H: int = 1,
        W: int = 1,
        T: int = 1,
        R: int = 1,
        S: int = 1,
        pad_d: int = 0,
        pad_h: int = 0,
        pad_w: int = 0,
        str_d: int = 1,
        str_h: int = 1,
        str_w: int = 1,
        dil_d: int = 1,
        dil_h: int = 1,
        dil_w: int = 1,
    ) -> ConvLayer:
        """The geometry of a convolution of images (C, D, H, W, N), for `fprop_conv` and the others."""
        steps = (pad_d, pad_h, pad_w), (str_d, str_h, str_w), (dil_d, dil_h, dil_w)
        each = zip((D, H, W), (T, R, S), *steps, strict=True)
        output: Any = tuple(self.output_dim(x, w, p, s, dilation=d) for x, w, p, s, d in each)
        return ConvLayer(dtype, N, C, K, (D, H, W), output, (T, R, S), steps)

    def deconv_layer(
        self,
        dtype: DTypeLike,
        N: int,
        C: int,
        K: int,
        M: int,
        P: int,
        Q: int,
        T: int = 1,
        R: int = 1,
        S: int = 1,
        pad_d: int = 0,
        pad_h: int = 0,
        pad_w: int = 0,
        str_d: int = 1,
        str_h: int = 1,
        str_w: int = 1,
        dil_d: int = 1,
        dil_h: int = 1,
        dil_w: int = 1,
    ) -> DeconvLayer:
        """The geometry of a transposed convolution of K maps of M, P, Q to C maps, whose sizes follow."""
        steps = (pad_d, pad_h, pad_w), (str_d, str_h, str_w), (dil_d, dil_h, dil_w)
        each = zip((M, P, Q), (T, R, S), *steps, strict=True)
        image: Any = tuple(input_size(*known) for known in each)
        return DeconvLayer(dtype, N, C, K, image, (M, P, Q), (T, R, S), steps)

    def fprop_conv(
        self,
        layer: ConvLayer,
        I: Tensor,
        F: Tensor,
        O: Tensor,
        X: Tensor | None = None,
        bias: Tensor | None = None,
        bsum: Tensor | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        relu: bool = False,
        brelu: bool = False,
        slope: float = 0.0,
        layer_op: Tensor | None = None,
        repeat: int = 1,
    ) -> None:
        """Write the convolution of images `I` with filters `F` into `O`.

        The convolution is multiplied by `alpha`. Then the bias is added, a rectifier (`relu`) or its derivative at X
        (`brelu`) is applied, and `beta` times X is added. X is the old output by default. `bsum` gets the sums of the
        stored values over each map.
        """
        check_sizes("fprop_conv", I=(I, layer.sizeI), F=(F, layer.sizeF), O=(O, layer.sizeO))
        key = layer.geometry, bool(relu), bool(brelu)
        self.replay("fprop_conv", _fprop, key, O, I, F, X, bias, bsum, alpha, beta, slope)

    def bprop_conv(
        self,
        layer: ConvLayer,
        F: Tensor,
        E: Tensor,
        grad_I: Tensor,
        X: Tensor | None = None,
        bias: Tensor | None = None,
        bsum: Tensor | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        relu: bool = False,
        brelu: bool = False,
        slope: float = 0.0,
        layer_op: Tensor | None = None,
        repeat: int = 1,
    ) -> None:
        """Write the derivative of `fprop_conv` by the images, times errors `E`, into `grad_I`; the rest is as there."""
        check_sizes("bprop_conv", F=(F, layer.sizeF), E=(E, layer.sizeO), grad_I=(grad_I, layer.sizeI))
        key = layer.geometry, bool(relu), bool(brelu)
        self.replay("bprop_conv", _bprop, key, grad_I, F, E, X, bias, bsum, alpha, beta, slope)

    def update_conv(
        self,
        layer: ConvLayer,
        I: Tensor,
        E: Tensor,
        U: Tensor,
        alpha: float = 1.0,
        beta: float = 0.0,
        grad_bias: Tensor | None = None,
        layer_op: Tensor | None = None,
        repeat: int = 1,
    ) -> None:
        """Write the derivative of `fprop_conv` by the filters, times errors `E`, into `U`.

        Parameters
        ----------
        grad_bias : Tensor, optional
            Gets the sums of E over each map.
        """
        check_sizes("update_conv", I=(I, layer.sizeI), E=(E, layer.sizeO), U=(U, layer.sizeF))
        self.replay("update_conv", _update, layer.geometry, U, I, E, grad_bias, alpha, beta)


# The trees, from a key and operands to pairs of a target and a value


def blended(value: Any, old: Any, alpha: Any, beta: Any) -> Any:
    """``alpha * value + beta * old``; an operand multiplied by 0 is not read."""
    value = value if alpha == 1 else value * alpha
    return value if beta == 0 else value + (old if beta == 1 else old * beta)


def rows_of(x: Any, shape: Any) -> Any:
    """The operand as a matrix, a row for each map of a shape."""
    return f.reshape(x, (shape[0], prod(shape[1:])))


def _fprop(key: Any, out: Any, images: Any, filters: Any, *others: Any) -> list[tuple[Any, Any]]:
    (op, dim_images, dim_filters, dim_out), relu, brelu = key
    value = op(f.reshape(images, dim_images), f.reshape(filters, dim_filters))
    return _finished(value, dim_out, out, relu, brelu, *others)


def _bprop(key: Any, out: Any, filters: Any, errors: Any, *others: Any) -> list[tuple[Any, Any]]:
    (op, dim_images, dim_filters, dim_errors), relu, brelu = key
    like = f.reshape(out, dim_images)  # its shape alone is read
    bound = op(like, f.reshape(filters, dim_filters)).op
    value = bound.other(ConvInput)(f.reshape(errors, dim_errors), f.reshape(filters, dim_filters), like)
    return _finished(value, dim_images, out, relu, brelu, *others)


def _finished(
    value: Any,
    shape: Any,
    out: Any,
    relu: bool,
    brelu: bool,
    other: Any,
    bias: Any,
    bsum: Variable,
    alpha: Operand,
    beta: Operand,
    slope: Any,
) -> list[tuple[Any, Any]]:
    other = rows_of(out if other is None else other, shape)
    value = rows_of(value, shape)
    value = value if alpha == 1 else value * alpha
    value = value if bias is None else value + f.reshape(bias, (shape[0], 1))
    if relu:
        value = f.maximum(value, 0) + (0 if slope == 0 else f.minimum(value, 0) * slope)
    elif brelu:
        value = f.where(other > 0, value, f.where(other < 0, value * slope, 0))
    value = blended(value, other, 1, beta)
    written = [(out, f.reshape(value, out.shape))]
    return written if bsum is None else [*written, (bsum, f.sum(rows_of(out, shape), axis=1))]


def _update(key: Any, out: Any, images: Any, errors: Any, grad_bias: Any, alpha: Any, beta: Any) -> list[Any]:
    op, dim_images, dim_filters, dim_errors = key
    images, errors, like = f.reshape(images, dim_images), f.reshape(errors, dim_errors), f.reshape(out, dim_filters)
    value = op(images, like).op.other(ConvWeights)(images, errors, like)
    written = [(out, blended(f.reshape(value, out.shape), out, alpha, beta))]
    if grad_bias is None:
        return written
    return [*written, (grad_bias, f.sum(rows_of(errors, dim_errors), axis=1))]
