"""Standardization over axes, and the normalisations composed of it: batch, layer, instance, group and RMS norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import wide_dtype
from optree.errors import OperandError, ShapeError, brief, describe
from optree.op.op import Op
from optree.op.traits import CompositeOperator, GivenAxisOperator
from optree.ops.reduction import MeanDtypeOperator, as_floats, mean_dtype, widened
from optree.records import NamedTuple
from optree.registry import f, function
from optree.tree.types import Axis, TensorType, integer_of, may_equal, normalise_axes, normalise_axis, promote
from optree.tree.variable import Operand, Variable, as_variable, check_real, in_dtype, variable_of

#: The default addend of variances, so that constant values divide by no zero.
EPSILON = 1e-5


def _number(value: Operand, what: str) -> float:
    """A number of 0 or more as a float; OperandError, which names `what`, for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not value >= 0:
        raise OperandError(f"{what} is a number of 0 or more, not {brief(value)}")
    return float(value)


def _moments(x: Variable, axis: Axis) -> tuple[Variable, Variable, Variable]:
    """The mean over axes, the operand less that, and its variance."""
    x = widened(x)
    mean = f.mean(x, axis=axis, keepdims=True)
    centred = x - mean
    return mean, centred, f.mean(f.square(centred), axis=axis, keepdims=True)


class Standardize(MeanDtypeOperator, CompositeOperator, GivenAxisOperator):
    """(x - mean) / sqrt(variance + epsilon), with mean and variance over axes.

    The axis of a matrix must be given, as of `softmax`. The gradient takes both of its sums in one
    pass; one composed of those of the mean, the difference and the root takes two.

    Examples
    --------
    >>> be.standardize(be.array([[1.0, 3.0]]), axis=1).get().round(3)
    array([[-1.,  1.]], dtype=float32)
    """

    name = "standardize"
    __props__ = ("axis", "epsilon")
    epsilon: float = EPSILON
    examples = (
        (((4,),), {}),
        (((3, 4),), {"axis": (0, 1)}),
        (((3, 4),), {"axis": 0}),
        (((3, 4),), {"axis": -1, "epsilon": 0.1}),
        (((2, 3, 4),), {"axis": (0, 2)}),
        (((2, 1, 3),), {"axis": (-1, 1), "epsilon": 1.0}),
        (((0, 3),), {"axis": 1}),
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        _number(self.epsilon, "standardize: epsilon")
        return super().bind(types, backend)

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        dtype, axes = mean_dtype(x.dtype), self.axes(x.ndim)
        x = x.astype(wide_dtype(dtype), copy=False)
        x = x - np.mean(x, axis=axes, keepdims=True)
        x = x / np.sqrt(np.mean(np.square(x), axis=axes, keepdims=True) + self.epsilon)
        return x.astype(dtype, copy=False)

    def decompose(self, *inputs: Variable) -> Variable:
        _, centred, variance = _moments(inputs[0], self.axis)
        return in_dtype(centred / f.sqrt(variance + self.epsilon), mean_dtype(inputs[0].dtype))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        _, _, variance = _moments(x, self.axis)
        value = in_dtype(self(x), variance.dtype)
        delta = in_dtype(delta, variance.dtype)
        along = f.mean(delta * value, axis=self.axis, keepdims=True)
        centred = delta - f.mean(delta, axis=self.axis, keepdims=True)
        return [in_dtype((centred - value * along) / f.sqrt(variance + self.epsilon), x.dtype)]


class BatchNorm(NamedTuple):
    """The normalised value, and the new running statistics: a mean and a variance for each channel."""

    value: Any
    mean: Any
    variance: Any


@function()
def batch_norm(
    x: Operand,
    gain: Operand | None = None,
    bias: Operand | None = None,
    mean: Any = None,
    variance: Any = None,
    axis: int = 1,
    epsilon: float = EPSILON,
    momentum: float = 0.1,
    training: bool = True,
    over: Any = None,
) -> Any:
    """Each channel, along `axis`, standardized over the other axes, times a gain, plus a bias; and new statistics.

    It returns the value and the new running statistics; without running statistics, the batch's own.

    Parameters
    ----------
    gain, bias, mean, variance : operand, optional
        One element for each channel; `mean` and `variance` are the running statistics.
    momentum : float
        The share of this batch in the new running statistics, whose variance is over count - 1.
    training : bool
        Whether the batch's own statistics are used, and the running ones become new. Else the running ones are used.
    over : optree.distributed.Group, optional
        The processes that each have a part of the batch: statistics are of all parts, gradients of the sum of costs.

    Raises
    ------
    ShapeError, OperandError
        If an operand has not one element for each channel, a running statistic is missing, or `over` is no group.

    Examples
    --------
    >>> x, mean, variance = be.array([[1.0, 10.0], [3.0, 30.0]]), be.zeros(2), be.ones(2)
    >>> value, new_mean, new_variance = be.batch_norm(x, mean=mean, variance=variance)
    >>> be.update({mean: new_mean, variance: new_variance})
    >>> mean.get(), variance.get()
    (array([0.2, 2. ], dtype=float32), array([ 1.1, 20.9], dtype=float32))
    """
    x = variable_of(x, "batch_norm")
    epsilon = _number(epsilon, "batch_norm: epsilon")
    if not isinstance(momentum, Variable):
        momentum = _number(momentum, "batch_norm: momentum")
    channels = (normalise_axis(axis, x.ndim, "batch_norm"),)
    others = tuple(i for i in range(x.ndim) if i not in channels)
    given = {"gain": gain, "bias": bias, "mean": mean, "variance": variance}
    whole = {name: _along(y, x, channels, "batch_norm", name) for name, y in given.items()}
    if (mean is None) is not (variance is None) or (mean is None and not training):
        missing = "mean" if mean is None else "variance"
        raise OperandError(f"batch_norm: its running {missing} is missing; give mean and variance, or train without")
    if not training:
        value = (as_floats(x) - whole["mean"]) / f.sqrt(whole["variance"] + epsilon)
        return BatchNorm(_scaled(value, whole["gain"], whole["bias"]), as_variable(mean), as_variable(variance))
    value, *own = _standardized(x, others, epsilon, over, unbiased=mean is not None)
    value = _scaled(value, whole["gain"], whole["bias"])
    if mean is None:
        return BatchNorm(value, *own)
    pairs = [(as_variable(y), new) for y, new in zip((mean, variance), own, strict=True)]
    return BatchNorm(value, *(in_dtype(y * (1 - momentum) + new * momentum, y.dtype) for y, new in pairs))


def _standardized(x: Variable, axes: tuple[int, ...], epsilon: float, over: Any, unbiased: bool) -> list[Variable]:
    """The value of `standardize`, the mean and the variance over axes, which go.

    If `unbiased`, the divisor of the variance is count - 1; with a group, all are of its processes' parts together.
    """
    if over is not None and not callable(getattr(over, "all_reduce", None)):
        raise OperandError(f"batch_norm: over is a group of processes, from optree.distributed.init, not {brief(over)}")
    if over is None or over.size == 1:
        value, (mean, _, variance) = f.standardize(x, axes, epsilon), _moments(x, axes)
        count = in_dtype(f.count(x, axes), variance.dtype)
    else:
        mean, centred, variance, count = _joint_moments(x, axes, over)
        value = in_dtype(centred / f.sqrt(variance + epsilon), mean_dtype(x.dtype))
    if unbiased:
        variance = variance * (count / f.maximum(count - 1, 1))
    return [value, *(in_dtype(f.squeeze(y, axes), mean_dtype(x.dtype)) for y in (mean, variance))]


def _joint_moments(x: Variable, axes: tuple[int, ...], over: Any) -> tuple[Variable, Variable, Variable, Variable]:
    """As `_moments`, of the parts that all processes of a group have; and the number of elements of a mean."""
    x = widened(x)
    # Parts may have other sizes, so their means would not do.
    count = over.all_reduce(in_dtype(f.count(x, axes), x.dtype))
    mean = over.all_reduce(f.sum(x, axis=axes, keepdims=True)) / count
    centred = x - mean
    return mean, centred, over.all_reduce(f.sum(f.square(centred), axis=axes, keepdims=True)) / count, count


@function()
def layer_norm(x: Any, gain: Any = None, bias: Any = None, axis: Axis = -1, epsilon: float = EPSILON) -> Any:
    """The operand standardized over axes, times a gain, plus a bias, each of the size of these axes.

    Parameters
    ----------
    x : operand
        Such as (batch, steps, features).
    gain, bias : operand, optional
        Of the shape of the axes, such as (features,).
    axis : int or tuple of int
        The axes over which mean and variance are taken; torch's `normalized_shape` gives their sizes instead.
    epsilon : float
        Added to the variance.

    Raises
    ------
    ShapeError
        If gain or bias have other sizes than these axes.

    Examples
    --------
    >>> be.layer_norm(be.array([[1.0, 3.0], [10.0, 30.0]]), bias=be.array([0.0, 5.0])).get().round(2)
    array([[-1.,  6.],
           [-1.,  6.]], dtype=float32)
    """
    x = variable_of(x, "layer_norm")
    epsilon = _number(epsilon, "layer_norm: epsilon")
    axes = normalise_axes(axis, x.ndim, "layer_norm")
    gain, bias = _along(gain, x, axes, "layer_norm", "gain"), _along(bias, x, axes, "layer_norm", "bias")
    return _scaled(f.standardize(x, axes, epsilon), gain, bias)


@function()
def rms_norm(x: Any, gain: Any = None, axis: Axis = -1, epsilon: float = EPSILON) -> Any:
    """The operand over its root mean square over axes, times a gain of the size of these axes.

    Raises
    ------
    ShapeError
        If the gain has other sizes than these axes.

    Examples
    --------
    >>> be.rms_norm(be.array([[3.0, 4.0]])).get().round(3)
    array([[0.849, 1.131]], dtype=float32)
    """
    x = check_real(variable_of(x, "rms_norm"), "rms_norm")
    epsilon = _number(epsilon, "rms_norm: epsilon")
    axes = normalise_axes(axis, x.ndim, "rms_norm")
    wide = widened(x)
    square = f.mean(f.square(wide), axis=axes, keepdims=True)
    value = in_dtype(wide / f.sqrt(square + epsilon), mean_dtype(x.dtype))
    return _scaled(value, _along(gain, x, axes, "rms_norm", "gain"), None)


@function()
def instance_norm(x: Any, gain: Any = None, bias: Any = None, axis: int = 1, epsilon: float = EPSILON) -> Any:
    """Each channel of each sample standardized, times a gain, plus a bias, each with one element for each channel.

    The first axis counts the samples, `axis` the channels.

    Raises
    ------
    ShapeError
        If there are no other axes, or gain or bias have not one element for each channel.

    Examples
    --------
    >>> be.instance_norm(be.array([[[1.0, 3.0], [10.0, 30.0]]])).get().round(2)
    array([[[-1.,  1.],
            [-1.,  1.]]], dtype=float32)
    """
    x = variable_of(x, "instance_norm")
    epsilon = _number(epsilon, "instance_norm: epsilon")
    channels = _channels(x, axis, "instance_norm")
    others = tuple(i for i in range(1, x.ndim) if i not in channels)
    if not others:
        raise ShapeError(
            f"instance_norm: {describe(x)} has no axes but those of samples and channels, and standardizes over the "
            "others; layer_norm standardizes over channels"
        )
    gain, bias = (_along(y, x, channels, "instance_norm", name) for y, name in ((gain, "gain"), (bias, "bias")))
    return _scaled(f.standardize(x, others, epsilon), gain, bias)


@function()
def group_norm(x: Any, groups: int, gain: Any = None, bias: Any = None, axis: int = 1, epsilon: float = EPSILON) -> Any:
    """Each group of neighbouring channels of each sample standardized, times a gain, plus a bias, of each channel.

    The first axis counts the samples, `axis` the channels.

    Raises
    ------
    ShapeError
        If the channels do not divide into that number of groups, or gain or bias have not one element for each channel.

    Examples
    --------
    >>> be.group_norm(be.array([[[1.0, 3.0], [1.0, 3.0]]]), groups=1).get().round(2)
    array([[[-1.,  1.],
            [-1.,  1.]]], dtype=float32)
    """
    x = variable_of(x, "group_norm")
    epsilon = _number(epsilon, "group_norm: epsilon")
    (channel,) = channels = _channels(x, axis, "group_norm")
    size = x.shape[channel]
    groups = integer_of(groups, "group_norm: groups", 1)
    if size is None or size % groups:
        raise ShapeError(f"group_norm: the {size} channels of {describe(x)} do not divide into {groups} groups")
    split = (*x.shape[:channel], groups, size // groups, *x.shape[channel + 1 :])
    if split.count(None) > 1:
        raise ShapeError(f"group_norm: more than one size of {describe(x)} is unknown; give x a type with the others")
    parts = f.reshape(as_floats(x), tuple(-1 if n is None else n for n in split))
    value = f.standardize(parts, tuple(i for i in range(1, len(split)) if i != channel), epsilon)
    gain, bias = (_along(y, x, channels, "group_norm", name) for y, name in ((gain, "gain"), (bias, "bias")))
    return _scaled(f.reshape_like(value, x), gain, bias)


def _channels(x: Variable, axis: int, what: str) -> tuple[int]:
    """The axis of channels, which is not that of samples."""
    found = normalise_axis(axis, x.ndim, what)
    if found == 0:
        raise ShapeError(f"{what}: axis 0 of {describe(x)} counts its samples, and `axis` its channels")
    return (found,)


def _along(value: Operand, x: Variable, axes: Sequence[int], what: str, name: str) -> Any:
    """An operand with the sizes of some axes of another, broadcast along these; ShapeError if it has other sizes."""
    if value is None:
        return None
    value = variable_of(value, f"{what}: {name}")
    wanted = tuple(x.shape[i] for i in axes)
    if not may_equal(value.shape, wanted):
        raise ShapeError(
            f"{what}: {name} is {describe(value)}; for {describe(x)} along the axes {tuple(axes)} it has the shape "
            f"{wanted}"
        )
    if tuple(axes) == tuple(range(x.ndim - len(axes), x.ndim)):  # it broadcasts as it is
        return value
    floats = in_dtype(value, promote(mean_dtype(x.dtype), value.dtype))  # another shape of integers has no derivative
    return f.expand_dims(floats, tuple(i for i in range(x.ndim) if i not in axes))


def _scaled(x: Variable, gain: Variable | None, bias: object) -> Variable:
    """The value times a gain, plus a bias, where there are any."""
    x = x if gain is None else x * gain
    return x if bias is None else x + bias
