"""Convolutions of one to three dimensions, and their derivatives, which are ops like them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import NARROW, is_complex, is_floating, wide_dtype
from optree.errors import OperandError, ShapeError, describe
from optree.networks.windows import (
    ImageOperator,
    Sliding,
    arranged,
    elements,
    layout_of,
    order_of,
    padding_of,
    paddings,
    per_axis,
    slidings,
    spatial_of,
)
from optree.op.batching import with_images
from optree.op.index_map import LIKE, OPAQUE, IndexMap, contracted, per_op
from optree.op.op import Op
from optree.op.traits import CompositeOperator
from optree.ops.reduction import widened
from optree.ops.shape import strong
from optree.registry import f, function
from optree.tree.types import Shape, TensorType, may_equal, promote
from optree.tree.variable import Operand, Variable, conjugated, in_dtype

#: The product of matrices, and of stacks of them: `numpy.matmul`, or a backend's.
Matmul = Callable[[Any, Any], Any]

#: The most spatial dimensions.
MOST = 3

#: The positions from which sums of products of floats are quicker than `numpy.correlate`.
FEW_POSITIONS = 1 << 16

#: The positions of a block of the correlation of two vectors.
BLOCK = 1 << 15


class ConvolutionOperator(ImageOperator):
    """A convolution or a derivative of one: of images x, weights and delta, two give the third.

    Its parameters are those of `conv`.
    """

    widened = NARROW
    raises = False
    __props__: ClassVar[tuple[str, ...] | None] = (
        "stride",
        "padding",
        "dilation",
        "groups",
        "layout",
        "weights_layout",
    )
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1
    weights_layout: Any = None
    #: The indices, among operands and value, of the images, the weights, and their convolution or its delta.
    roles: ClassVar[tuple[int, int, int]] = (0, 1, 2)
    #: The maximum elements of a filter by which it is a sum of shifted images: with a stride of 1, and with others.
    few: ClassVar[tuple[int, int]] = (49, 49)
    #: The same where channels are contiguous.
    few_last: ClassVar[tuple[int, int]] = (49, 49)

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        what, ndims = str(self.name), {t.ndim for t in types}
        if len(ndims) > 1 or not 3 <= min(ndims) <= MOST + 2:
            raise ShapeError(
                f"images and weights have 3 to {MOST + 2} dimensions, as many each: a batch or outputs, channels, and "
                f"1 to {MOST} spatial axes"
            )
        (ndim,) = ndims
        layout = layout_of(self.layout, ndim, "NC", f"{what}: layout")
        return self.with_props(
            layout=layout,
            weights_layout=layout_of(self.weights_layout, ndim, "OI", f"{what}: weights_layout", spatial_of(layout)),
            stride=per_axis(self.stride, ndim - 2, f"{what}: stride"),
            padding=padding_of(self.padding, ndim - 2, what),
            dilation=per_axis(self.dilation, ndim - 2, f"{what}: dilation"),
            groups=per_axis(self.groups, 1, f"{what}: groups")[0],
        )

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        axis, (_, weights, _) = self.layout.index("N"), self.roles
        axes = [None if i == weights else axis for i in range(len(inputs))]
        return with_images(self, inputs, batched, axes, axis)

    # Geometry

    @property
    def weights_order(self) -> tuple[int, ...]:
        """The axes of weights in the order O, I, spatial."""
        return order_of(self.weights_layout, "OI" + spatial_of(self.layout))

    def image(self, shape: Shape) -> Shape:
        """An image's shape as (N, C, spatial)."""
        return tuple(shape[i] for i in self.order)

    def filters(self, shape: Shape) -> Shape:
        """The weights' shape as (O, I, spatial)."""
        return tuple(shape[i] for i in self.weights_order)

    def slidings(self, image: Shape, window: Shape) -> list[Any]:
        """The windows along each spatial axis, as of `optree.networks.windows.slidings`."""
        return slidings(image, window, self.stride, self.dilation, self.padding)

    def convolved_shape(self, x: Shape, weights: Shape) -> Shape:
        """The shape of the convolution of images with weights; ShapeError if they do not fit."""
        (n, c, *image), (o, i, *window) = self.image(x), self.filters(weights)
        self.check_channels(c, o, i)
        sizes = [each and each.positions for each in self.slidings(tuple(image), tuple(window))]
        return arranged((n, o, *sizes), self.layout, "NC" + spatial_of(self.layout))

    def check_channels(self, c: int | None, o: int | None, i: int | None) -> None:
        """Raise ShapeError for images of c channels for weights of o outputs and i inputs in each group."""
        if o is not None and o % self.groups:
            raise ShapeError(f"the {o} outputs of the weights are no multiple of {self.groups} groups")
        if None not in (c, i) and c != i * self.groups:  # type: ignore[operator]
            groups = f" in each of {self.groups} groups, {i * self.groups} in all" if self.groups > 1 else ""  # type: ignore[operator]
            hint = ""
            if c and o and i and not c % i and not o % (c // i):  # type: ignore[operator]
                hint = f"; groups={c // i} would fit"  # type: ignore[operator]
            raise ShapeError(f"images of {c} channels meet weights of {i}{groups}{hint}")

    # Values

    def as_image(self, array: object) -> Any:
        """A view of images with axes (N, C, spatial)."""
        return as_array(array).transpose(self.order)

    def as_filters(self, array: object) -> Any:
        """A view of weights with axes (O, I, spatial)."""
        return as_array(array).transpose(self.weights_order)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        return self.by_products(*arrays)

    def by_products(self, *arrays: Any, matmul: Matmul = np.matmul) -> Any:
        """The value by a matrix product for each element of a filter; of halves, the sum in float32."""
        raise NotImplementedError

    def correlate(self, x: Any, weights: Any, matmul: Matmul = np.matmul) -> Any:
        """The convolution of images with weights."""
        shape: Any = self.convolved_shape(x.shape, weights.shape)
        dtype, groups = wide_dtype(np.result_type(x.dtype, weights.dtype)), self.groups
        if self._is_of_vectors(x, weights, shape, dtype):
            (sliding,) = self.slidings(self.image(x.shape)[2:], self.filters(weights.shape)[2:])
            return _slid(x.reshape(-1), weights.reshape(-1), sliding, dtype).reshape(shape)
        out = np.zeros(shape, dtype, like=as_array(x))
        x, weights, target = self.as_image(x), self.as_filters(weights), self.as_image(out)
        for element, windows, slices in elements(self.slidings(x.shape[2:], weights.shape[2:])):
            part = target[(..., *windows)]
            part += _matched(_factors(weights, element, groups), _grouped(x[(..., *slices)], groups), part, matmul)
        return out

    def _is_of_vectors(self, x: Any, weights: Any, shape: Any, dtype: np.dtype) -> bool:
        """Whether one image meets one filter, both vectors, and `numpy.correlate` is quicker than a sum of products."""
        props = self.stride, self.dilation, self.layout, self.weights_layout
        if not isinstance(x, np.ndarray) or props != ((1,), (1,), "NCW", "OIW"):
            return False
        is_vector = all(0 < v.size == v.shape[-1] for v in (x, weights))
        return is_vector and (prod(shape) < FEW_POSITIONS or (dtype.kind != "f" and dtype.itemsize > 2))

    def spread(self, delta: Any, weights: Any, shape: Any, matmul: Matmul = np.matmul) -> Any:
        """The derivative of a convolution by its images, which have a shape, times delta."""
        out = np.zeros(shape, wide_dtype(np.result_type(delta.dtype, weights.dtype)), like=as_array(delta))
        delta, weights, target = self.as_image(delta), self.as_filters(weights), self.as_image(out)
        for element, windows, slices in elements(self.slidings(target.shape[2:], weights.shape[2:])):
            factors, part = _factors(weights, element, self.groups).swapaxes(-1, -2), target[(..., *slices)]
            part += _matched(factors, _grouped(delta[(..., *windows)], self.groups), part, matmul)
        return out

    def gather_weights(self, x: Any, delta: Any, shape: Any, matmul: Matmul = np.matmul) -> Any:
        """The derivative of a convolution by its weights, which have a shape, times delta."""
        out = np.zeros(shape, wide_dtype(np.result_type(x.dtype, delta.dtype)), like=as_array(x))
        x, delta, target = self.as_image(x), self.as_image(delta), self.as_filters(out)
        for element, windows, slices in elements(self.slidings(x.shape[2:], target.shape[2:])):
            rows = _by_groups(delta[(..., *windows)], self.groups)
            columns = _by_groups(x[(..., *slices)], self.groups)
            total = matmul(rows, columns.swapaxes(-1, -2))
            target[(..., *element)] += total.reshape(target.shape[:2])
        return out

    def by_elements(self, element_of: Any, x: Any, weights: Any, *like: Any) -> Any:
        """A depthwise convolution with few elements as the sum of shifted images, or its derivative by images.

        None where that is slower, as of wide windows.

        `element_of`: `window_element`, or its derivative.
        """
        window = self.plan_sizes(*(each.shape for each in (x, weights, *like)))
        dtype = self.resolve_dtypes(x.dtype, weights.dtype, *(each.dtype for each in like))[-1]
        if window is None or not is_floating(dtype):
            return None
        spatial, behind = spatial_of(self.layout), x.ndim - 1 - self.layout.index("C")
        axes, terms = order_of(self.layout, spatial), []
        x, filters = widened(x), f.transpose(widened(weights), order_of(self.weights_layout, spatial + "IO"))
        # Vectors along channels read each element's weights side by side.
        filters = f.expand_dims(filters, tuple(range(x.ndim, x.ndim + behind))) if behind else f.copy(filters)
        for element in product(*map(range, window)):
            shifted = element_of(x, *like, window, self.stride, self.padding, axes=axes, element=element)
            terms.append(shifted * f.slice(filters, (*element, 0)))
        return in_dtype(reduce(f.add, terms), dtype)

    def unrolled_window(self, *shapes: Shape) -> Shape | None:
        """The window whose elements `by_elements` has as terms; None where there is no such sum."""
        o, i, *window = self.filters(shapes[self.roles[1]])
        is_last = self.layout[-1] == "C"
        few = (self.few_last if is_last else self.few)[set(self.stride) != {1}]
        is_few = None not in window and prod(window) <= few and set(self.dilation) == {1}  # type: ignore[arg-type]
        is_depthwise = i == 1 and o == self.groups > 1
        pairs = zip(paddings(self.padding, len(window)), window, strict=True)
        if not is_few or not is_depthwise or any(pair != "same" and max(pair) >= size for pair, size in pairs):
            return None
        return tuple(window)

    def flops(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
        """A multiplication and an addition for each element of the convolution and of a filter."""
        shapes, (_, weights, convolved) = (*inputs, *outputs), self.roles
        return 2 * prod(shapes[convolved]) * prod(self.filters(shapes[weights])[1:])  # type: ignore[arg-type]


def _slid(x: np.ndarray, weights: np.ndarray, sliding: Sliding, dtype: np.dtype) -> np.ndarray:
    """The correlation of two vectors, one of them padded with zeros, in blocks that fit a core's cache."""
    found = np.empty(sliding.positions, dtype)
    for start in range(0, sliding.positions, BLOCK):
        stop = min(start + BLOCK, sliding.positions)
        first, last = start - sliding.before, stop - sliding.before + sliding.window - 1
        part = x[max(first, 0) : max(last, 0)]
        if first < 0 or last > x.size:
            inside, part = part, np.zeros(last - first, dtype)
            part[max(-first, 0) :][: inside.size] = inside
        found[start:stop] = np.correlate(part, weights)
    return found


def _grouped(x: Array, groups: int) -> Any:
    """Images as (N, groups, channels of a group, positions)."""
    n, c, *sizes = x.shape
    return x.reshape(n, groups, c // groups, prod(sizes))


def _by_groups(x: Array, groups: int) -> Any:
    """Images as (groups, channels of a group, positions of all images)."""
    n, c, *sizes = x.shape
    return _grouped(x, groups).transpose(1, 2, 0, 3).reshape(groups, c // groups, n * prod(sizes))


def _factors(weights: Any, element: tuple[int, ...], groups: int) -> Any:
    """One element of each filter, as (groups, outputs, inputs) of a group."""
    part = weights[(slice(None), slice(None), *element)]
    return part.reshape(groups, part.shape[0] // groups, part.shape[1])


def _matched(factors: Any, x: Any, part: Any, matmul: Matmul) -> Any:
    """The products of matrices and images, as images of the shape and dtype of others."""
    if x.shape[-2] == 1:  # one channel: no sum, and NumPy's product of matrices of integers has no BLAS
        return (factors.astype(part.dtype, copy=False) * x.astype(part.dtype, copy=False)).reshape(part.shape)
    return matmul(factors, x).reshape(part.shape)


class Conv(ConvolutionOperator, CompositeOperator):
    """The convolution of images with weights, as networks have it: the weights are not flipped.

    Images have N, C and 1 to 3 spatial axes, and weights O, I and as many.

    Parameters
    ----------
    x : images
    weights : filters
    stride, dilation : int or tuple of int
        The steps from window to window, and between the elements of a window.
    padding : str, int, or sequence
        ``"same"``, ``"valid"``, or zeros around the image: a number, or for each axis one or a pair (before, after).
    groups : int
        The parts that channels are divided into; each part of the output sees one of the input.
    layout : str, optional
        The axes of images, N the batch, C the channels and others spatial: ``"NCHW"``, ``"NHWC"``, ``"CHWN"``, or any
        other order; by default N, C, and the others.
    weights_layout : str, optional
        The axes of weights, O the output's channels and I those of the input in a group: ``"OIHW"``, the default, or
        ``"HWIO"``. neon's are ``"IHWO"``.

    Examples
    --------
    >>> image = be.array([[[1.0, 2.0, 4.0, 8.0]]])
    >>> be.conv(image, be.array([[[1.0, -1.0]]])).asnumpyarray()
    array([[[-1., -2., -4.]]], dtype=float32)
    >>> be.conv(image, be.ones((2, 1, 3)), stride=2, padding="same").shape
    (1, 2, 2)
    >>> be.conv(be.ones((8, 32, 32, 3)), be.ones((3, 3, 3, 16)), layout="NHWC", weights_layout="HWIO").shape
    (8, 30, 30, 16)
    """

    name = "conv"
    for_kernels = "windows"
    operands = ("x", "weights")
    examples = (
        (((2, 2, 3, 3), (2, 2, 3, 3)), {"padding": 1}),
        (((1, 2, 7), (3, 2, 3)), {"stride": 2, "padding": "same"}),
        (((1, 5, 4, 4), (3, 2, 2, 4)), {"layout": "NHWC", "weights_layout": "HWIO", "groups": 2, "dilation": 2}),
        (((2, 4, 3, 2), (2, 2, 2, 3)), {"layout": "CHWN", "weights_layout": "IHWO", "padding": ((1, 0), (0, 2))}),
        (((1, 2, 3, 3, 2), (2, 1, 2, 2, 2)), {"groups": 2, "stride": (1, 2, 1), "padding": (0, 1, 0)}),
        (((2, 0, 4), (3, 0, 2)), {}),
        (((0, 2, 4), (3, 2, 2)), {}),
    )

    @per_op(OPAQUE, OPAQUE)
    def index_map(self) -> IndexMap:
        if self.groups != 1:
            return IndexMap(OPAQUE, OPAQUE)
        return IndexMap(contracted(self.order[1]), contracted(self.weights_order[1]))

    def output_shape(self, *shapes: Shape) -> Shape:
        x, weights = shapes
        return self.convolved_shape(x, weights)

    plan_sizes = ConvolutionOperator.unrolled_window

    def decompose(self, *inputs: Variable) -> Any:
        return self.by_elements(f.window_element, *inputs)

    def by_products(self, *arrays: Any, matmul: Matmul = np.matmul) -> Any:
        x, weights = arrays
        return self.correlate(x, weights, matmul)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, weights), (delta,) = inputs, output_gradients
        return [self.other(ConvInput)(delta, weights, x), self.other(ConvWeights)(x, delta, weights)]

    def R_op(self, inputs: Sequence[Any], eval_points: Sequence[Any]) -> Sequence[Any]:
        (x, weights), (along_x, along_weights) = inputs, eval_points
        from_x = None if along_x is None else self(along_x, weights)
        from_weights = None if along_weights is None else self(x, along_weights)
        return [from_weights if from_x is None else from_x if from_weights is None else from_x + from_weights]


class ConvDerivative(ConvolutionOperator):
    """A derivative of a convolution by its last operand, whose values are not used."""

    index_map = IndexMap(OPAQUE, OPAQUE, LIKE)

    def output_shape(self, *shapes: Shape) -> Shape:
        images, weights, delta = (shapes[i] for i in self.roles)
        wanted = self.convolved_shape(images, weights)
        if not may_equal(delta, wanted):
            raise ShapeError(f"the convolution has the shape {wanted}, and the delta {delta}")
        return shapes[-1]

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        *loop, out = super().resolve_dtypes(*dtypes[:2])
        return (*loop, super().resolve_dtypes(dtypes[2])[0], out)


class ConvInput(ConvDerivative, CompositeOperator):
    """The derivative of a convolution by its images `like`, whose shape alone is read, times delta.

    The parameters are those of `conv`, and so are the weights.
    """

    name = "conv_input"
    for_kernels = "windows"
    operands = ("delta", "weights", "like")
    roles = (2, 1, 0)
    few, few_last = (49, 9), (49, 0)
    examples = (
        (((2, 2, 3, 3), (2, 2, 3, 3), (2, 2, 3, 3)), {"padding": 1}),
        (((1, 3, 4), (3, 2, 3), (1, 2, 8)), {"stride": 2, "padding": "same"}),
        (
            ((1, 2, 2, 4), (2, 2, 1, 4), (1, 4, 3, 2)),
            {"layout": "NHWC", "weights_layout": "HWIO", "groups": 2, "stride": 2, "padding": (0, 1)},
        ),
        (
            ((3, 3, 3, 2), (2, 2, 2, 3), (2, 5, 3, 2)),
            {"layout": "CHWN", "weights_layout": "IHWO", "stride": 2, "padding": ((1, 0), (2, 2))},
        ),
        (((1, 2, 2, 1, 1), (2, 1, 1, 2, 2), (1, 2, 2, 2, 2)), {"groups": 2}),
        (((2, 3, 3), (3, 0, 2), (2, 0, 4)), {}),
    )

    plan_sizes = ConvolutionOperator.unrolled_window

    def decompose(self, *inputs: Variable) -> Any:
        return self.by_elements(f.window_element_input, *inputs)

    def by_products(self, *arrays: Any, matmul: Matmul = np.matmul) -> Any:
        delta, weights, like = arrays
        return self.spread(delta, weights, like.shape, matmul)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta, weights, _), (upon,) = inputs, output_gradients
        return [self.other(Conv)(upon, weights), self.other(ConvWeights)(upon, delta, weights), None]


class ConvWeights(ConvDerivative, CompositeOperator):
    """The derivative of a convolution by its weights `like`, whose shape alone is read, times delta.

    The parameters are those of `conv`, and so are the images x.
    """

    name = "conv_weights"
    for_kernels = "hosts"
    operands = ("x", "delta", "like")
    batch = Op.batch_in_loop
    roles = (0, 2, 1)
    few, few_last = (49, 0), (0, 0)
    examples = (
        (((2, 2, 3, 3), (2, 2, 3, 3), (2, 2, 3, 3)), {"padding": 1}),
        (((1, 2, 8), (1, 3, 4), (3, 2, 3)), {"stride": 2, "padding": "same"}),
        (
            ((1, 4, 3, 2), (1, 2, 2, 4), (2, 2, 1, 4)),
            {"layout": "NHWC", "weights_layout": "HWIO", "groups": 2, "stride": 2, "padding": (0, 1)},
        ),
        (
            ((2, 4, 3, 2), (3, 3, 2, 2), (2, 2, 2, 3)),
            {"layout": "CHWN", "weights_layout": "IHWO", "dilation": (1, 2), "padding": ((0, 0), (1, 0))},
        ),
        (((1, 2, 2, 2, 2), (1, 2, 2, 1, 1), (2, 1, 1, 2, 2)), {"groups": 2}),
        (((0, 2, 4), (0, 3, 3), (3, 2, 2)), {}),
    )

    plan_sizes = ConvolutionOperator.unrolled_window

    def decompose(self, *inputs: Variable) -> Any:
        x, delta, like = inputs
        window: Any = self.plan_sizes(x.shape, delta.shape, like.shape)
        dtype = self.resolve_dtypes(x.dtype, delta.dtype, like.dtype)[-1]
        if window is None or not is_floating(dtype):
            return None
        x, delta, spatial = widened(x), widened(delta), spatial_of(self.layout)
        others = tuple(axis for axis in range(x.ndim) if axis != self.layout.index("C"))
        props = {
            "window": window,
            "stride": self.stride,
            "padding": self.padding,
            "axes": order_of(self.layout, spatial),
        }
        shifted = [f.window_element(x, element=element, **props) for element in product(*map(range, window))]
        sums = f.concatenate([f.sum(each * delta, axis=others, keepdims=False) for each in shifted])
        groups = f.reshape(sums, (*window, -1, 1))
        return in_dtype(f.transpose(groups, order_of(spatial + "OI", self.weights_layout)), dtype)

    def by_products(self, *arrays: Any, matmul: Matmul = np.matmul) -> Any:
        x, delta, like = arrays
        return self.gather_weights(x, delta, like.shape, matmul)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, delta, _), (upon,) = inputs, output_gradients
        return [self.other(ConvInput)(delta, upon, x), self.other(Conv)(x, upon), None]


class ConvTranspose(ConvolutionOperator):
    """The transposed convolution: the derivative by its images of `conv` with the same parameters and weights.

    A stride multiplies the sizes of the image: along each axis of size m the value
    has (m - 1) * stride + dilation * (window - 1) + 1, less the padding, and more by
    `output_padding`; m * stride with ``padding="same"``.

    Parameters
    ----------
    x : images
        Their channels are the weights' O, and the value's are I of each group.
    weights : filters
    stride, padding, dilation, groups, layout, weights_layout
        As of `conv`.
    output_padding : int or tuple of int
        Further rows at the end, fewer than the stride: a convolution with a stride leaves them out.

    Examples
    --------
    >>> be.conv_transpose(be.array([[[1.0, 2.0]]]), be.array([[[1.0, 10.0]]]), stride=2).asnumpyarray()
    array([[[ 1., 10.,  2., 20.]]], dtype=float32)
    """

    name = "conv_transpose"
    operands = ("x", "weights")
    roles = (2, 1, 0)
    __props__ = (*(ConvolutionOperator.__props__ or ()), "output_padding")
    output_padding: Any = 0
    examples = (
        (((2, 2, 3, 3), (2, 2, 3, 3)), {"padding": 1}),
        (((1, 3, 4), (3, 2, 3)), {"stride": 2, "padding": "same"}),
        (
            ((1, 2, 2, 4), (2, 2, 1, 4)),
            {"layout": "NHWC", "weights_layout": "HWIO", "groups": 2, "stride": 2, "output_padding": (0, 1)},
        ),
        (
            ((3, 2, 2, 2), (2, 2, 2, 3)),
            {"layout": "CHWN", "weights_layout": "IHWO", "padding": ((1, 0), (0, 1)), "dilation": 2},
        ),
        (((1, 2, 2, 1, 1), (2, 1, 1, 2, 2)), {"groups": 2}),
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        bound: Any = super().bind(types, backend)
        more = per_axis(self.output_padding, types[0].ndim - 2, "conv_transpose: output_padding", 0)
        if bound.padding == "same" and any(more):
            raise OperandError("conv_transpose: output_padding is for numbers of padding; 'same' fixes the sizes")
        for count, stride in zip(more, bound.stride, strict=True):
            if count >= stride:
                raise OperandError(f"conv_transpose: output_padding {more} is not below the stride {bound.stride}")
        return bound.with_props(output_padding=more)

    def output_shape(self, *shapes: Shape) -> Shape:
        x, weights = shapes
        (n, c, *image), (o, i, *window) = self.image(x), self.filters(weights)
        if None not in (c, o) and c != o:
            raise ShapeError(f"images of {c} channels meet weights of {o} outputs, which are their channels here")
        self.check_channels(None, o, None)
        rooms = paddings(self.padding, len(image))
        each = zip(image, window, self.stride, self.dilation, rooms, self.output_padding, strict=True)
        sizes = [self._size_before(*known) for known in each]
        channels = None if i is None else i * self.groups
        return arranged((n, channels, *sizes), self.layout, "NC" + spatial_of(self.layout))

    @staticmethod
    def _size_before(
        count: int | None, window: int | None, stride: int, dilation: int, padding: Any, more: int
    ) -> int | None:
        """The size of an axis that has `count` windows."""
        if count is None or window is None:
            return None
        if window < 1:
            raise ShapeError(f"a window of {window} has no elements for an axis of {count}")
        if padding == "same":
            return count * stride
        size = (count - 1) * stride + dilation * (window - 1) + 1 - sum(padding) + more
        if count < 1 or size < 1:
            raise ShapeError(f"an axis of {count} with a window of {window} and a padding of {padding} leaves nothing")
        return size

    def by_products(self, *arrays: Any, matmul: Matmul = np.matmul) -> Any:
        x, weights = arrays
        return self.spread(x, weights, self.output_shape(x.shape, weights.shape), matmul)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, weights), (delta,) = inputs, output_gradients
        return [self.other(Conv)(delta, weights), self.other(ConvWeights)(delta, x, weights)]


# Correlations of vectors


def _vector_of(value: Operand, what: str) -> Variable:
    """An operand as a vector: numbers and lists have NumPy's dtype, and a number is a vector of one."""
    x = f.atleast_1d(strong(value, what))
    if x.ndim != 1:
        raise ShapeError(f"{what}: vectors are wanted, and {describe(x)} has {x.ndim} axes")
    if x.shape[0] == 0:
        raise ShapeError(f"{what}: {describe(x)} is empty")
    return x  # type: ignore[no-any-return]


def _correlation(x: Variable, weights: Variable, mode: str, what: str, flipped: bool) -> Any:
    """The correlation of two vectors, or the convolution, whose weights are flipped."""
    if is_complex(promote(x.dtype, weights.dtype)):
        (re, im), (of_re, of_im) = ((f.real(v), f.imag(v)) for v in (x, weights if flipped else conjugated(weights)))
        a, b, c, d = (
            _correlation(*pair, mode, what, flipped) for pair in ((re, of_re), (im, of_im), (re, of_im), (im, of_re))
        )
        return f.complex(a - b, c + d)
    size, window = x.shape[0], weights.shape[0]
    if mode not in ("full", "same", "valid"):
        raise OperandError(f"{what}: mode is 'full', 'same' or 'valid', not {mode!r}")
    if window is None or (size is None and mode != "full"):
        unknown = weights if window is None else x
        raise ShapeError(f"{what}: the size of {describe(unknown)} must be known")
    is_swapped = size is not None and size < window
    if is_swapped:  # as in NumPy, the shorter one slides
        x, weights, window = weights, x, size
    weights = f.flip(weights, 0) if flipped else weights
    before = {"full": window - 1, "same": window // 2, "valid": 0}[mode]
    after = {"full": window - 1, "same": window - 1 - before, "valid": 0}[mode]
    image, filters = (f.expand_dims(v, (0, 1)) for v in (x, weights))
    found = f.reshape(f.conv(image, filters, padding=((before, after),)), (-1,))
    return f.flip(found, 0) if is_swapped and not flipped else found


@function(numpy=np.convolve)
def convolve(a: Operand, v: Operand, mode: str = "full") -> Any:
    """The convolution of two vectors: `full`, of the longer's size (`same`), or where they overlap wholly (`valid`).

    Examples
    --------
    >>> be.convolve(be.array([1.0, 2.0]), be.array([1.0, 1.0, 1.0])).get()
    array([1., 3., 3., 2.], dtype=float32)
    """
    x, weights = (_vector_of(value, "convolve") for value in (a, v))
    return _correlation(x, weights, mode, "convolve", flipped=True)


@function(numpy=np.correlate)
def correlate(a: Operand, v: Operand, mode: str = "valid") -> Any:
    """The cross-correlation of two vectors: where they overlap wholly (`valid`), of the longer's size, or `full`.

    The second is conjugated where it is complex.

    Examples
    --------
    >>> be.correlate(be.array([1.0, 2.0, 3.0]), be.array([1.0, 1.0])).get()
    array([3., 5.], dtype=float32)
    """
    x, weights = (_vector_of(value, "correlate") for value in (a, v))
    return _correlation(x, weights, mode, "correlate", flipped=False)
