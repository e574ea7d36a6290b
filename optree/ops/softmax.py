"""Softmax, log-softmax, logsumexp and the cross entropy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.arrays import Array
from optree.dtypes import wide_dtype
from optree.errors import DTypeError, ShapeError
from optree.op.examples import Examples
from optree.op.index_map import STACKED, IndexMap
from optree.op.op import Op
from optree.op.traits import (
    Accumulator,
    BinaryOperator,
    CompositeOperator,
    GivenAxisOperator,
    ReductionOperator,
    given_axes,
)
from optree.ops.reduction import WITH_IDENTITY, MeanDtypeOperator, Sum, is_of_one, mean_dtype, supremum, widened
from optree.ops.summation import accurate_sum
from optree.registry import f, numpy_function
from optree.tree.types import Axis, Shape, TensorType, may_equal, promote
from optree.tree.variable import Operand, Variable, in_dtype


def _shift(x: Array, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The operand minus its maximum over axes, in a new array, and the maximum.

    Where the maximum is inf, elements of inf become 0; where it is -inf, all elements remain -inf.
    """
    x = np.asarray(x)
    x = x.astype(wide_dtype(mean_dtype(x.dtype)), copy=False)
    top = np.maximum.reduce(x, axis=axes, keepdims=True, initial=-np.inf)
    if np.isfinite(top).all():
        return np.asarray(x - top), top
    shifted = np.asarray(x - np.where(top == -np.inf, 0, top))
    shifted[(x == np.inf) & (top == np.inf)] = 0
    return shifted, top


def _exp_sum(shifted: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The sum of exponentials over axes; they overwrite the exponents."""
    return accurate_sum(np.exp(shifted, out=shifted), axes, True, shifted.dtype)


class ExponentialSum(Sum):
    """The sum of exponentials relative to their maximum over the same axes; not registered."""

    accumulator = Accumulator(
        "0", "{0} + {1}", sums=True, rescaled="({0} == 0 || {1} == {2} ? {0} : {0} * exp({1} - {2}))"
    )


class OtherExponentialSum(Sum):
    """The sum of exponentials relative to their maximum, but for those of the maximum; not registered.

    Relative to another maximum none is left out.
    """

    accumulator = Accumulator(
        "0", "{0} + {1}", sums=True, rescaled="({3} == 0 || {1} == {2} ? {0} : {3} * exp({1} - {2}))"
    )


def _exponential_sum(exponentials: Variable, axis: Axis) -> Variable:
    if is_of_one(exponentials, axis):
        return exponentials
    return ExponentialSum.make(axis=axis, keepdims=True)(exponentials)


def _shifted(x: Variable, axis: Axis, part: Variable | None = None) -> Variable:
    """The first value of `_shift` as a tree, or that of some of its elements."""
    top = supremum(x, axis)
    top = f.where(f.eq(top, -np.inf), 0, top)
    part = x if part is None else part
    return f.where(f.eq(part, top), 0, part - top)


def _total(exponentials: Variable, axis: Axis) -> Variable:
    """The sum of exponentials, with 0 replaced by 1."""
    total = _exponential_sum(exponentials, axis)
    return f.where(f.eq(total, 0), 1, total)


class LogSumExp(MeanDtypeOperator, CompositeOperator, ReductionOperator):
    """The logarithm of the sum of exponentials over axes, without overflow.

    It is -inf for empty axes or elements of -inf only, and inf if there is an inf. The gradient is the softmax.

    Examples
    --------
    >>> be.logsumexp(be.zeros((1, 4)), axis=1).get().round(3)
    array([[1.386]], dtype=float32)
    """

    name = "logsumexp"
    # Not of one element alone: there it is linear, but for infinities.
    examples = tuple(case for case in WITH_IDENTITY if case[0] not in (((1, 3),), ((),)))

    def numpy(self, *arrays: Array) -> Any:
        axes = self.axes(np.ndim(arrays[0]))
        shifted, top = _shift(arrays[0], axes)
        value = np.log(_exp_sum(shifted, axes)) + top
        value = value.astype(mean_dtype(np.asarray(arrays[0]).dtype), copy=False)
        return value if self.keepdims else value.squeeze(axes)

    def decompose(self, *inputs: Variable) -> Variable:
        x = widened(inputs[0])
        total = _exponential_sum(f.exp(_shifted(x, self.axis)), self.axis)
        return self.squeezed(in_dtype(f.log(total) + supremum(x, self.axis), mean_dtype(inputs[0].dtype)))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [self.restore(delta, x) * f.softmax(x, self.axes(x.ndim))]


@numpy_function(np.logaddexp.reduce)
def _sum_of_logarithms(x: Operand, axis: Axis, keepdims: bool = False) -> Any:
    return f.logsumexp(x, axis=axis, keepdims=keepdims)


class Softmax(MeanDtypeOperator, CompositeOperator, GivenAxisOperator):
    """exp(x) divided by its sum over axes, without overflow.

    Parameters
    ----------
    x : operand
        Of any shape, which is that of the value. Integers become floats, as in `np.exp`.
    axis : int or tuple of int
        It must be given, except for a vector: ``axis=-1`` normalises the rows of a matrix. SciPy's default is all axes,
        neon's (and that of neon's mode) 0.

    Returns
    -------
    tree
        0 for elements of -inf, even if all are; elements of inf share 1 evenly. (SciPy's are nan.)

    Examples
    --------
    >>> be.softmax(be.array([[0.0, 0.0], [1000.0, -np.inf]]), axis=-1).get()
    array([[0.5, 0.5],
           [1. , 0. ]], dtype=float32)
    """

    name = "softmax"
    examples = Examples(
        (
            (((4,),), {}),
            (((3, 4),), {"axis": (0, 1)}),
            (((3, 4),), {"axis": 0}),
            (((3, 4),), {"axis": -1}),
            (((2, 3, 4),), {"axis": (0, 2)}),
            (((2, 1, 3),), {"axis": (-1, 1)}),
            (((0, 3),), {"axis": 1}),
        ),
        random_props=given_axes,
    )

    def numpy(self, *arrays: Array) -> Any:
        axes = self.axes(np.ndim(arrays[0]))
        value, _ = _shift(arrays[0], axes)
        total = _exp_sum(value, axes)
        value /= total + (total == 0)
        return value.astype(mean_dtype(np.asarray(arrays[0]).dtype), copy=False)

    def decompose(self, *inputs: Variable) -> Variable:
        exponentials = f.exp(_shifted(widened(inputs[0]), self.axis))
        inverse = f.reciprocal(_total(exponentials, self.axis))  # of 1 at least; a division takes ten instructions
        return in_dtype(exponentials * inverse, mean_dtype(inputs[0].dtype))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        weighted = delta * self(x)
        return [weighted - self(x) * f.sum(weighted, axis=self.axis, keepdims=True)]


class LogSoftmax(MeanDtypeOperator, CompositeOperator, GivenAxisOperator):
    """The logarithm of the softmax over axes, accurate where the softmax rounds to 0 or 1.

    The axis of a matrix must be given, as of `softmax`. The exponential of the maximum is 1, to
    which small ones would be lost: the others are summed separately, for log1p.

    Examples
    --------
    >>> be.log_softmax(be.zeros((1, 4)), axis=1).get().round(3)
    array([[-1.386, -1.386, -1.386, -1.386]], dtype=float32)
    """

    name = "log_softmax"
    examples = Softmax.examples

    def numpy(self, *arrays: Array) -> Any:
        axes = self.axes(np.ndim(arrays[0]))
        value, _ = _shift(arrays[0], axes)
        is_top = value == 0
        others = np.exp(value) * ~is_top
        ties = np.count_nonzero(is_top, axis=axes, keepdims=True).astype(value.dtype)
        value -= np.log1p(accurate_sum(others, axes, True, value.dtype) + np.maximum(ties - 1, 0))
        return value.astype(mean_dtype(np.asarray(arrays[0]).dtype), copy=False)

    def decompose(self, *inputs: Variable) -> Variable:
        shifted = _shifted(widened(inputs[0]), self.axis)
        exponentials = f.exp(shifted)
        total = _exponential_sum(exponentials, self.axis)
        others = f.where(f.eq(shifted, 0), 0, exponentials)
        others = OtherExponentialSum.make(axis=self.axis, keepdims=True)(others)
        ties = f.rint(total - others)  # not a count: the total is shared with the gradient's softmax
        return in_dtype(shifted - f.log1p(others + f.maximum(ties - 1, 0)), mean_dtype(inputs[0].dtype))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta - f.softmax(x, self.axis) * f.sum(delta, axis=self.axis, keepdims=True)]


class CrossEntropy(MeanDtypeOperator, CompositeOperator, BinaryOperator):
    """Minus the logarithm of the softmax along the last axis at integer labels, without making one-hot rows of them.

    The labels have the shape of x without its last axis, or with 1 there, and the value has theirs. A label that is
    no class has nan, and a gradient of nan. With its gradient it is one kernel, which reads x once.

    Examples
    --------
    >>> be.cross_entropy(be.array([[0.0, 0.0], [0.0, 9.0]]), np.array([0, 1])).get().round(3)
    array([0.693, 0.   ], dtype=float32)
    """

    name = "cross_entropy"
    index_map = IndexMap(STACKED)
    operands = ("x", "labels")
    examples = (
        (((3, 4), [0, 3, 1]), {}),
        (((3, 4), [[2], [0], [2]]), {}),
        (((2, 3, 4), [[0, 1, 3], [2, 2, 0]]), {}),
        (((5,), 2), {}),
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        kind = types[1].dtype.kind
        if kind not in "iu":
            raise DTypeError(
                f"cross_entropy: labels are integers, not {types[1]}; labels.astype('int64') makes them so"
            )
        return self

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return promote(dtypes[0]), np.dtype("int64"), mean_dtype(dtypes[0])

    def output_shape(self, *shapes: Shape) -> Shape:
        x, labels = shapes
        if not x:
            raise ShapeError("x has no axis of classes")
        rows = labels[:-1] if len(labels) == len(x) and labels[-1:] == (1,) else labels
        if not may_equal(rows, x[:-1]):
            raise ShapeError(f"the labels of x are of shape {x[:-1]} or {(*x[:-1], 1)}, not {labels}")
        return labels

    def plan_sizes(self, *shapes: Shape) -> Any:
        return shapes[0][-1]  # the number of classes

    def numpy(self, *arrays: Array) -> Any:
        x, labels = map(np.asarray, arrays)
        shifted, _ = _shift(x, (x.ndim - 1,))
        hit = np.arange(x.shape[-1]) == labels.reshape(*x.shape[:-1], 1)
        chosen = np.max(shifted, axis=-1, initial=-np.inf, where=hit, keepdims=True)
        value = np.where(np.any(hit, axis=-1, keepdims=True), np.log(_exp_sum(shifted, (x.ndim - 1,))) - chosen, np.nan)
        return value.astype(mean_dtype(x.dtype)).reshape(labels.shape)

    def decompose(self, *inputs: Variable) -> Variable:
        x, labels = inputs
        wide = widened(x)
        total = _exponential_sum(f.exp(_shifted(wide, -1)), -1)
        chosen = _shifted(wide, -1, supremum(f.where(_hits(x, labels), wide, -np.inf), -1))
        if labels.ndim < x.ndim:
            total, chosen = f.squeeze(total, -1), f.squeeze(chosen, -1)
        return in_dtype(f.where(_are_classes(x, labels), f.log(total) - chosen, np.nan), mean_dtype(x.dtype))

    def grad_inputs(self, inputs: Sequence[Variable]) -> list[Variable]:
        return [*super().grad_inputs(inputs[:1]), inputs[1]]  # labels stay integers

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, labels), (delta,) = inputs, output_gradients
        column = f.where(_are_classes(x, labels), widened(delta), np.nan)
        column = column if labels.ndim == x.ndim else f.expand_dims(column, -1)
        probabilities = f.softmax(widened(x), axis=-1)  # narrow ones would be rounded before they cancel
        return [in_dtype((probabilities - f.cast(_hits(x, labels), probabilities.dtype)) * column, x.dtype), None]


def _are_classes(x: Variable, labels: Variable) -> Variable:
    """Whether each label is one of the classes."""
    size = x.type.shape[-1]
    count = f.cast(f.count(x, -1), np.int64) if size is None else np.int64(size)
    return f.logical_and(f.ge(labels, np.int64(0)), f.lt(labels, count))


def _hits(x: Variable, labels: Variable) -> Variable:
    """Whether each element is that of its row's label: compared in 32 bits where they suffice, four times as quick."""
    size, indices = x.type.shape[-1], f.flat_indices(x, axis=-1)
    if size is not None and size < 2**31:
        indices = f.cast(indices, np.int32)
        if labels.dtype.itemsize >= 4:
            labels = f.cast(f.clip(f.cast(labels, np.int64), -1, size), np.int32)
    return f.equal(indices, labels if labels.ndim == x.ndim else f.expand_dims(labels, -1))
