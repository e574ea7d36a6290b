"""Softmax, log-softmax, logsumexp and norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.arrays import as_array, filled, portable
from optree.errors import DTypeError, OperandError, ShapeError
from optree.ops.op import Op
from optree.ops.reduction import Max, mean_dtype, to_extremes, wide_dtype
from optree.ops.summation import accurate_sum
from optree.ops.traits import (
    AxisOperator,
    BinaryOperator,
    CompositeOperator,
    FloatOperator,
    ReductionOperator,
    UnaryOperator,
    any_axes,
)
from optree.ops.transcendental import finite_direction, or_one
from optree.registry import f
from optree.tree.types import Shape, TensorType, promote
from optree.tree.variable import Variable, in_dtype


class MeanDtypeOperator(FloatOperator):
    """An op whose value has the dtype of a mean: float64 for integers."""

    def resolve_dtypes(self, *dtypes: Any) -> tuple[np.dtype, ...]:
        return promote(dtypes[0]), mean_dtype(dtypes[0])


def _shift(x: Any, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
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


class Supremum(Max):
    """The maximum over axes as `Max`, but -inf for empty axes; not registered, for trees of this module."""

    has_identity = True

    @portable
    def value(self, *arrays: Any) -> Any:
        x = as_array(arrays[0])
        shape: Any = self.output_shape(x.shape)
        return super().value(x) if x.size else filled(shape, -np.inf, x.dtype, x)


def _widened(x: Variable) -> Variable:
    """An operand in the dtype of the computation."""
    return in_dtype(x, wide_dtype(mean_dtype(x.dtype)))


def _supremum(x: Variable, axis: Any) -> Variable:
    return Supremum.make(axis=axis, keepdims=True)(x)


def _shifted(x: Variable, axis: Any) -> Variable:
    """The first value of `_shift` as a tree."""
    top = _supremum(x, axis)
    top = f.where(f.eq(top, -np.inf), 0, top)
    return f.where(f.eq(x, top), 0, x - top)


def _total(exponentials: Variable, axis: Any) -> Variable:
    """The sum of exponentials, with 0 replaced by 1."""
    total = f.sum(exponentials, axis=axis, keepdims=True)
    return f.where(f.eq(total, 0), 1, total)


class LogSumExp(MeanDtypeOperator, CompositeOperator, ReductionOperator):
    """The logarithm of the sum of exponentials over axes, without overflow.

    It is -inf for empty axes or elements of -inf only, and inf if there is an inf. The gradient is
    the softmax.
    """

    name = "logsumexp"
    examples = (
        (((3, 4),), {}),
        (((3, 4),), {"axis": 0}),
        (((3, 4),), {"axis": -1, "keepdims": False}),
        (((2, 3, 4),), {"axis": (0, 2)}),
        (((2, 1, 3),), {"axis": (-1, 1)}),
        (((0, 3),), {"axis": 0}),
    )

    def value(self, *arrays: Any) -> Any:
        axes = self.axes(np.ndim(arrays[0]))
        shifted, top = _shift(arrays[0], axes)
        value = np.log(_exp_sum(shifted, axes)) + top
        value = value.astype(mean_dtype(np.asarray(arrays[0]).dtype), copy=False)
        return value if self.keepdims else value.squeeze(axes)

    def decompose(self, *inputs: Variable) -> Variable:
        x = _widened(inputs[0])
        total = f.sum(f.exp(_shifted(x, self.axis)), axis=self.axis, keepdims=True)
        return self.squeezed(in_dtype(f.log(total) + _supremum(x, self.axis), mean_dtype(inputs[0].dtype)))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [self.restore(delta, x) * f.softmax(x, self.axis)]


class Softmax(MeanDtypeOperator, CompositeOperator, AxisOperator, UnaryOperator):
    """exp(x) divided by its sum over axes, without overflow.

    It is 0 for elements of -inf, even if all are; elements of inf share 1 evenly.
    """

    name = "softmax"
    keeps_shape = True
    random_props = staticmethod(any_axes)
    examples = (
        (((3, 4),), {}),
        (((3, 4),), {"axis": 0}),
        (((3, 4),), {"axis": -1}),
        (((2, 3, 4),), {"axis": (0, 2)}),
        (((2, 1, 3),), {"axis": (-1, 1)}),
        (((0, 3),), {"axis": 1}),
    )

    def value(self, *arrays: Any) -> Any:
        axes = self.axes(np.ndim(arrays[0]))
        value, _ = _shift(arrays[0], axes)
        total = _exp_sum(value, axes)
        value /= total + (total == 0)
        return value.astype(mean_dtype(np.asarray(arrays[0]).dtype), copy=False)

    def decompose(self, *inputs: Variable) -> Variable:
        exponentials = f.exp(_shifted(_widened(inputs[0]), self.axis))
        return in_dtype(exponentials / _total(exponentials, self.axis), mean_dtype(inputs[0].dtype))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        weighted = delta * self(x)
        return [weighted - self(x) * f.sum(weighted, axis=self.axis, keepdims=True)]


class LogSoftmax(MeanDtypeOperator, CompositeOperator, AxisOperator, UnaryOperator):
    """The logarithm of the softmax over axes, accurate where the softmax rounds to 0 or 1.

    The exponential of the maximum is 1, to which small ones would be lost: the others are
    summed separately, for log1p.
    """

    name = "log_softmax"
    keeps_shape = True
    random_props = staticmethod(any_axes)
    examples = Softmax.examples

    def value(self, *arrays: Any) -> Any:
        axes = self.axes(np.ndim(arrays[0]))
        value, _ = _shift(arrays[0], axes)
        is_top = value == 0
        others = np.exp(value) * ~is_top
        ties = np.count_nonzero(is_top, axis=axes, keepdims=True).astype(value.dtype)
        value -= np.log1p(accurate_sum(others, axes, True, value.dtype) + np.maximum(ties - 1, 0))
        return value.astype(mean_dtype(np.asarray(arrays[0]).dtype), copy=False)

    def decompose(self, *inputs: Variable) -> Variable:
        shifted = _shifted(_widened(inputs[0]), self.axis)
        exponentials = f.exp(shifted)
        total = f.sum(exponentials, axis=self.axis, keepdims=True)
        others = f.sum(f.where(f.eq(shifted, 0), 0, exponentials), axis=self.axis, keepdims=True)
        ties = f.rint(total - others)  # not a count: the total is shared with the gradient's softmax
        return in_dtype(shifted - f.log1p(others + f.maximum(ties - 1, 0)), mean_dtype(inputs[0].dtype))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta - f.softmax(x, self.axis) * f.sum(delta, axis=self.axis, keepdims=True)]


class CrossEntropy(MeanDtypeOperator, CompositeOperator, BinaryOperator):
    """Minus the logarithm of the softmax along the last axis at integer labels, without making one-hot rows of them.

    The labels have the shape of x without its last axis, or with 1 there, and the value has theirs. A label that is
    no class has an infinite one. With its gradient it is one kernel, which reads x once.
    """

    name = "cross_entropy"
    leads_with_batch = True
    operands = ("x", "labels")
    examples = (
        (((3, 4), [0, 3, 1]), {}),
        (((3, 4), [[2], [0], [2]]), {}),
        (((2, 3, 4), [[0, 1, 3], [2, 2, 0]]), {}),
        (((5,), 2), {}),
    )

    def bind(self, types: Sequence[TensorType], backend: Any) -> Op:
        kind = types[1].dtype.kind
        if kind not in "iu":
            raise DTypeError(
                f"cross_entropy: labels are integers, not {types[1]}; labels.astype('int64') makes them so"
            )
        return self

    def resolve_dtypes(self, *dtypes: Any) -> tuple[np.dtype, ...]:
        return promote(dtypes[0]), np.dtype("int64"), mean_dtype(dtypes[0])

    def output_shape(self, *shapes: Shape) -> Shape:
        x, labels = shapes
        if not x:
            raise ShapeError("x has no axis of classes")
        rows = labels[:-1] if len(labels) == len(x) and labels[-1:] == (1,) else labels
        if len(rows) != len(x) - 1 or any(m != n for m, n in zip(rows, x, strict=False) if None not in (m, n)):
            raise ShapeError(f"the labels of x are of shape {x[:-1]} or {(*x[:-1], 1)}, not {labels}")
        return labels

    def value(self, *arrays: Any) -> Any:
        x, labels = map(np.asarray, arrays)
        shifted, _ = _shift(x, (x.ndim - 1,))
        hit = np.arange(x.shape[-1]) == labels.reshape(*x.shape[:-1], 1)
        chosen = np.max(shifted, axis=-1, initial=-np.inf, where=hit, keepdims=True)
        value = np.log(_exp_sum(shifted, (x.ndim - 1,))) - chosen
        return value.astype(mean_dtype(x.dtype)).reshape(labels.shape)

    def decompose(self, *inputs: Variable) -> Variable:
        x, labels = inputs
        keepdims = labels.ndim == x.ndim  # all beside x has the labels' shape, and joins its kernel
        shifted = _shifted(_widened(x), -1)
        total = f.sum(f.exp(shifted), axis=-1, keepdims=keepdims)
        chosen = Supremum.make(axis=-1, keepdims=keepdims)(f.where(_hits(x, labels), shifted, -np.inf))
        return in_dtype(f.log(total) - chosen, mean_dtype(x.dtype))

    def grad_inputs(self, inputs: Sequence[Variable]) -> list[Variable]:
        return [*super().grad_inputs(inputs[:1]), inputs[1]]  # labels stay integers

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, labels), (delta,) = inputs, output_gradients
        column = delta if labels.ndim == x.ndim else f.expand_dims(delta, -1)
        probabilities = f.softmax(x, axis=-1)
        return [f.where(_hits(x, labels), probabilities - 1, probabilities) * column, None]


def _hits(x: Variable, labels: Variable) -> Variable:
    """Where x has the class of its label, found by its flat index: a label that is no class has none in its row."""
    indices, size = f.flat_indices(x), x.type.shape[-1]
    classes = f.cast(f.count(indices, axis=-1), np.int64) if size is None else size
    wanted = f.flat_indices(labels) * classes + f.cast(labels, np.int64)
    return f.equal(indices, wanted if labels.ndim == x.ndim else f.expand_dims(wanted, -1))


class Norm(MeanDtypeOperator, CompositeOperator, ReductionOperator):
    """The norm of the vectors along axes: Euclidean, or another along one axis.

    Its gradient at 0 is 0; in a vector with infinite elements, these share it and finite ones have 0.
    Intermediate values neither overflow nor underflow.

    Attributes
    ----------
    ord : number or None
        None or 2 for the Euclidean norm, 1 for the sum of absolute values, inf and -inf for their
        maximum and minimum, 0 for the number of nonzero elements, p for the p-norm. Over several axes
        only None is allowed; ``be.linalg.norm`` has matrix norms.
    """

    name = "norm"
    __props__ = ("axis", "keepdims", "ord")
    ord: Any = None
    examples = (
        (((3, 4),), {}),
        (((3, 4),), {"axis": 0}),
        (((3, 4),), {"axis": (0, 1), "keepdims": False}),
        (((2, 3, 4),), {"axis": (0, -1)}),
        (((3, 4),), {"axis": -1, "keepdims": False, "ord": 2}),
        (((3, 4),), {"axis": 0, "ord": 1}),
        (((3, 4),), {"axis": 1, "ord": float("inf")}),
        (((3, 4),), {"axis": 1, "ord": float("-inf")}),
        (((3, 4),), {"axis": 0, "ord": 3}),
        (((3, 4),), {"axis": 1, "ord": 2.5, "keepdims": False}),
        (((3, 4),), {"axis": 1, "ord": -1}),
        (((3, 4),), {"axis": 1, "ord": 0}),
        (((1, 3),), {"axis": 0}),
        (((0, 3),), {"axis": 0}),
    )

    def bind(self, types: Sequence[TensorType], backend: Any) -> Op:
        if self.ord is not None and (isinstance(self.ord, bool) or not isinstance(self.ord, int | float)):
            raise OperandError(f"norm: ord is None or a number, not {self.ord!r}; be.linalg.norm has norms of matrices")
        axes = self.axes(types[0].ndim)
        if self.ord is not None and len(axes) != 1:
            raise OperandError(
                f"norm: with ord={self.ord!r} give one axis, not {self.axis!r} of {types[0].ndim} dimensions; "
                "without ord it is the root of the sum of squares over all of them, and be.linalg.norm has norms of "
                "matrices"
            )
        if self.ord == -np.inf and types[0].shape[axes[0]] == 0:
            raise ShapeError(f"along axis {axes[0]} there are no elements, and so no least one")
        return super().bind(types, backend)

    def value(self, *arrays: Any) -> Any:
        x: Any = np.asarray(arrays[0])
        dtype, axes = mean_dtype(x.dtype), self.axes(x.ndim)
        wide = wide_dtype(dtype)
        x = x.astype(wide, copy=False)
        if self.ord == np.inf:
            found = np.max(np.abs(x), axis=axes, keepdims=self.keepdims, initial=0)
        elif self.ord == -np.inf:
            found = np.min(np.abs(x), axis=axes, keepdims=self.keepdims)
        elif self.ord == 0:
            found = np.asarray(np.count_nonzero(x, axis=axes, keepdims=self.keepdims))
        elif self.ord == 1:
            found = accurate_sum(np.abs(x), axes, self.keepdims, wide)
        else:
            found = _euclidean(x, axes) if self.ord in (None, 2) else _by_powers(np.abs(x), axes, self.ord)
            found = found if self.keepdims else found.squeeze(axes)
        return found.astype(dtype, copy=False)

    def decompose(self, *inputs: Variable) -> Variable:
        x = _widened(inputs[0])
        size = f.absolute(x)
        if self.ord == 0:
            found = f.sum(f.cast(f.ne(x, 0), x.dtype), axis=self.axis, keepdims=True)
        elif self.ord == 1:
            found = f.sum(size, axis=self.axis, keepdims=True)
        elif self.ord is not None and self.ord < 0:
            found = f.negative(_supremum(f.negative(size), self.axis))
        else:
            found = f.maximum(_supremum(size, self.axis), 0)
        if self.ord not in (0, 1, np.inf, -np.inf):  # scaled by the maximum, powers neither overflow nor underflow
            top = f.where(f.logical_and(f.gt(found, 0), f.lt(found, np.inf)), found, 1)
            if self.ord in (None, 2):
                found = f.sqrt(f.sum(f.square(x / top), axis=self.axis, keepdims=True)) * top
            else:
                total = f.sum((size / top) ** float(self.ord), axis=self.axis, keepdims=True)
                found = total ** (1 / self.ord) * top
        return self.squeezed(in_dtype(found, mean_dtype(inputs[0].dtype)))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        if self.ord == 0:
            return [f.fill_like(x, 0.0)]
        norm = self.restore(self(x), x)
        if self.ord in (np.inf, -np.inf):
            return [to_extremes(self, x, f.eq(f.absolute(x), norm), delta) * f.sgn(x)]
        delta = self.restore(delta, x)
        if self.ord == 1:
            return [delta * in_dtype(f.sgn(x), delta.dtype)]
        if self.ord not in (None, 2):
            return [delta * f.sgn(x) * (f.absolute(x) / or_one(norm)) ** (self.ord - 1.0)]
        finite = finite_direction(x, norm)
        return [delta * (finite / or_one(self.restore(self(finite), x)))]


def _by_powers(size: np.ndarray, axes: tuple[int, ...], ord: float) -> np.ndarray:
    """The p-norm of non-negative numbers over axes, which are kept with size 1."""
    top = np.max(size, axis=axes, keepdims=True, initial=0) if ord > 0 else np.min(size, axis=axes, keepdims=True)
    top = np.where((top > 0) & (top < np.inf), top, 1).astype(size.dtype)
    return accurate_sum((size / top) ** float(ord), axes, True, size.dtype) ** (1 / ord) * top


def _euclidean(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The Euclidean norm over axes, which are kept with size 1."""
    total = accurate_sum(np.square(x), axes, True, x.dtype)
    limits = np.finfo(x.dtype)
    if np.all((total > limits.tiny / limits.eps) & (total < np.inf)):
        return np.sqrt(total)
    # Squares may have overflowed or underflowed: scale by the maximum.
    top = np.max(np.abs(x), axis=axes, keepdims=True, initial=0)
    top = np.where((top > 0) & (top < np.inf), top, 1)
    return np.sqrt(accurate_sum(np.square(x / top), axes, True, x.dtype)) * top
