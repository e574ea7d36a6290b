"""An ONNX model as trees: each operator is a composition of op-tree's functions, so a loaded model can be trained.

``load`` reads a file, and ``python examples/onnx_model.py model.onnx`` tells what a model takes and gives. It needs the
package onnx. Files come from strangers: nothing in one is executed, and what is malformed or unknown is refused with
the node's name. Operators that change their meaning with values, such as NonZero, and those with graphs inside, such as
Loop, are not among the known ones.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from math import prod
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

import optree
from backends import gen_backend
from optree import Tensor, TensorType, Variable
from optree.dtypes import is_floating

#: The oldest version of ONNX's operators that is read.
OLDEST = 11

#: The most elements of a constant that a model computes from its own constants.
LARGEST = 1 << 24

#: Operators that are functions of NumPy's, which build trees of trees.
AS_NUMPY: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name.lower()) for name in "Abs Add Ceil Cos Cosh Equal Exp Floor Greater IsNaN Less".split()},
    **{name: getattr(np, name.lower()) for name in "Log MatMul Reciprocal Sign Sin Sinh Sqrt Tan Tanh Where".split()},
    **{f"A{name}": getattr(np, f"arc{name}") for name in "cos cosh sin sinh tan tanh".split()},
    **{name: getattr(np, f"logical_{name.lower()}") for name in "And Or Xor Not".split()},
    **{f"Bitwise{name}": getattr(np, f"bitwise_{name.lower()}") for name in "And Or Xor".split()},
    "BitwiseNot": np.invert,
    "GreaterOrEqual": np.greater_equal,
    "LessOrEqual": np.less_equal,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Round": np.rint,
    "Sub": np.subtract,
}

#: Operators that are reductions of NumPy's.
REDUCTIONS = {f"Reduce{name}": getattr(np, name.lower()) for name in "Sum Mean Max Min Prod".split()}

#: Operators that are methods of a backend.
AS_BACKEND = {"Erf": "erf", "Sigmoid": "sig", "Softplus": "softplus", "Softsign": "softsign", "Det": "det"}


class ModelError(ValueError):
    """A model that is malformed, or has what op-tree cannot compute."""


class Model(NamedTuple):
    """A loaded model.

    Attributes
    ----------
    inputs : list of Input
    outputs : list of Variable
        Trees of the inputs and weights: ``optree.function(model.inputs, model.outputs)``.
    weights : list of Tensor
        The floating initializers, by their names in the file.
    """

    inputs: list[Any]
    outputs: list[Any]
    weights: list[Tensor]


def load(
    path: str | Path | onnx.ModelProto,
    be: Any,
    sizes: Mapping[str, int] | None = None,
    known: Mapping[str, np.ndarray] | None = None,
) -> Model:
    """Read a model.

    Parameters
    ----------
    path : str, Path or onnx.ModelProto
    be : Backend
        The backend of the weights.
    sizes : dict, optional
        Fixed sizes of named dimensions; others stay open.
    known : dict, optional
        Values of inputs that are constants, such as a shape.

    Raises
    ------
    ModelError
        If the file is no valid model, or a node cannot be computed; the error names it.
    """
    try:
        model = path if isinstance(path, onnx.ModelProto) else onnx.load(str(path))
        onnx.checker.check_model(model)
        versions = {x.domain: x.version for x in model.opset_import}
        graph, values = model.graph, {x.name: numpy_helper.to_array(x) for x in model.graph.initializer}
    except (DecodeError, onnx.checker.ValidationError, OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{path if isinstance(path, str | Path) else 'the model'}: {error}") from error
    if versions.get("", 0) < OLDEST or model.functions:
        raise ModelError(
            f"the model has operators of version {versions.get('')}, or functions; {OLDEST} or newer are read"
        )
    weights = {name: be.array(x, x.dtype, name) for name, x in values.items() if is_floating(x.dtype) and x.size > 1}
    environment: dict[str, Any] = {"": None, **values, **weights, **(known or {})}
    inputs = [_input(x, sizes or {}) for x in graph.input if x.name not in environment]
    environment |= {x.name: x for x in inputs}
    operators = Operators(be, versions[""])
    for node in graph.node:
        try:
            found = _applied(operators, node, [environment[name] for name in node.input])
        except (optree.errors.OptreeError, ValueError, TypeError, IndexError, KeyError, MemoryError) as error:
            name = node.name or ", ".join(node.output)
            raise ModelError(f"node {name} ({node.op_type}): {error}") from error
        environment |= {name: x for name, x in zip(node.output, found, strict=False) if name}
    outputs = [environment[x.name] for x in graph.output]
    return Model(inputs, [x if isinstance(x, Variable) else be.array(x, x.dtype) for x in outputs], [*weights.values()])


def _input(x: Any, sizes: Mapping[str, int]) -> Any:
    """An input of a graph, its sizes open where the model has no number."""
    if not x.type.HasField("tensor_type"):
        raise ModelError(f"input {x.name}: it is no tensor")
    dims = x.type.tensor_type.shape.dim
    shape = tuple(
        sizes.get(d.dim_param, None) if d.HasField("dim_param") else d.dim_value if d.HasField("dim_value") else None
        for d in dims
    )
    try:
        return TensorType(onnx.helper.tensor_dtype_to_np_dtype(x.type.tensor_type.elem_type), shape)(x.name)
    except (optree.errors.OptreeError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"input {x.name}: {error}") from error


def _applied(operators: Operators, node: Any, given: Sequence[Any]) -> Sequence[Any]:
    """The outputs of a node; those of constants alone are arrays."""
    if node.domain not in ("", "ai.onnx"):
        raise ModelError(f"operators of {node.domain} are unknown")
    operator = operators.get(node.op_type)
    if operator is None:
        raise ModelError("the operator is not among the known ones")
    attributes = {a.name: _attribute(a) for a in node.attribute}
    parameters = inspect.signature(operator).parameters if isinstance(operator, MethodType | partial) else {}
    unknown = attributes.keys() - parameters.keys()
    if unknown:
        raise ModelError(f"its attribute {min(unknown)} is not among the known ones")
    given_by_us = {"outputs": len(node.output), "version": operators.version}
    attributes |= {name: x for name, x in given_by_us.items() if name in parameters}
    given = [*given]
    while given and given[-1] is None:
        given.pop()
    found = operator(*given, **attributes)
    found = found if isinstance(found, list) else [found]
    if len(found) < len(node.output):
        raise ModelError(f"its output {node.output[len(found)]} is not computed")
    if any(isinstance(x, Variable) for x in given):
        return found
    arrays = [x if isinstance(x, Variable) else np.asarray(x) for x in found]
    _check_size(max(x.size for x in arrays))
    return [x.asnumpyarray() if isinstance(x, Variable) else x for x in arrays]


def _attribute(attribute: Any) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == onnx.AttributeProto.TENSOR:
        return numpy_helper.to_array(value)
    return value.decode() if isinstance(value, bytes) else value


def _check_size(size: int) -> None:
    """Raise an error for a constant that would take too much memory."""
    if size > LARGEST:
        raise ValueError(f"a constant would have {size} elements, and {LARGEST} are the most")


def _fixed(x: Any, what: str) -> np.ndarray:
    """The value of an operand that decides shapes."""
    if isinstance(x, Tensor):
        return x.get()
    if isinstance(x, Variable):
        raise ModelError(
            f"{what} is computed when the model runs, and must be a constant; known={{...}} makes an input one"
        )
    return np.asarray(x)


def _ints(x: Any, what: str) -> tuple[int, ...]:
    return tuple(int(n) for n in _fixed(x, what).reshape(-1))


class OpenSize:
    """An open size among the sizes that a model computes with: it may be moved, and be one of a new shape."""

    def __int__(self) -> int:
        raise ModelError("a size is open, and must be known here; sizes={...} fixes it")


OPEN = OpenSize()


def _size(x: Any, axis: int) -> int:
    """A size that must be known."""
    return int(OPEN if x.shape[axis] is None else x.shape[axis])


def _part(x: Any, index: Any) -> Any:
    return x.at[index] if isinstance(x, Variable) else x[index]


class Operators:
    """ONNX's operators: methods of their names, which take their inputs and, by name, attributes."""

    def __init__(self, be: Any, version: int) -> None:
        self.be, self.version = be, version

    def get(self, name: str) -> Callable[..., Any] | None:
        """The function of an operator; None for an unknown one."""
        if name in AS_NUMPY:
            return AS_NUMPY[name]
        if name in AS_BACKEND:
            return getattr(self.be, AS_BACKEND[name])  # type: ignore[no-any-return]
        if name in REDUCTIONS:
            return partial(self._reduced, REDUCTIONS[name])
        return getattr(self, name, None) if name[:1].isupper() else None

    # Elementwise

    def Identity(self, x: Any) -> Any:
        return x

    def Div(self, x: Any, y: Any) -> Any:
        if is_floating(x.dtype):
            return np.divide(x, y)
        if x.dtype.kind == "u":
            return np.floor_divide(x, y)
        return np.floor_divide(np.abs(x), np.abs(y)) * np.sign(x) * np.sign(y)  # towards zero

    def Mod(self, x: Any, y: Any, fmod: int = 0) -> Any:
        return np.fmod(x, y) if fmod else np.remainder(x, y)

    def Pow(self, x: Any, y: Any) -> Any:
        return self._cast(np.power(x, y), x.dtype)

    def Sum(self, *operands: Any) -> Any:
        return reduce(np.add, operands)

    def Mean(self, *operands: Any) -> Any:
        return reduce(np.add, operands) / len(operands)

    def Max(self, *operands: Any) -> Any:
        return reduce(np.maximum, operands)

    def Min(self, *operands: Any) -> Any:
        return reduce(np.minimum, operands)

    def Clip(self, x: Any, min: Any = None, max: Any = None) -> Any:
        x = x if min is None else np.maximum(x, min)
        return x if max is None else np.minimum(x, max)

    def Relu(self, x: Any) -> Any:
        return np.maximum(x, 0)

    def LeakyRelu(self, x: Any, alpha: float = 0.01) -> Any:
        return np.where(x >= 0, x, x * alpha)

    def PRelu(self, x: Any, slope: Any) -> Any:
        return np.where(x >= 0, x, x * slope)

    def ThresholdedRelu(self, x: Any, alpha: float = 1.0) -> Any:
        return np.where(x > alpha, x, 0)

    def Elu(self, x: Any, alpha: float = 1.0) -> Any:
        return np.where(x > 0, x, np.expm1(np.minimum(x, 0)) * alpha)

    def Celu(self, x: Any, alpha: float = 1.0) -> Any:
        return np.where(x > 0, x, np.expm1(np.minimum(x, 0) / alpha) * alpha)

    def Selu(self, x: Any, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Any:
        return self.Elu(x, alpha) * gamma

    def HardSigmoid(self, x: Any, alpha: float = 0.2, beta: float = 0.5) -> Any:
        return np.clip(x * alpha + beta, 0, 1)

    def HardSwish(self, x: Any) -> Any:
        return x * self.HardSigmoid(x, 1 / 6)

    def Mish(self, x: Any) -> Any:
        return x * np.tanh(self.be.softplus(x))

    def Swish(self, x: Any, alpha: float = 1.0) -> Any:
        return x * self.be.sig(x * alpha)

    def Gelu(self, x: Any, approximate: str = "none") -> Any:
        return self.be.gelu(x, approximate=approximate == "tanh")

    def Shrink(self, x: Any, bias: float = 0.0, lambd: float = 0.5) -> Any:
        return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))

    def IsInf(self, x: Any, detect_negative: int = 1, detect_positive: int = 1) -> Any:
        return np.logical_or(np.isneginf(x) * bool(detect_negative), np.isposinf(x) * bool(detect_positive))

    def BitShift(self, x: Any, y: Any, direction: str) -> Any:
        return np.left_shift(x, y) if direction == "LEFT" else np.right_shift(x, y)

    def Cast(self, x: Any, to: int, saturate: int = 1) -> Any:
        return self._cast(x, onnx.helper.tensor_dtype_to_np_dtype(to))

    def CastLike(self, x: Any, like: Any, saturate: int = 1) -> Any:
        return self._cast(x, like.dtype)

    def _cast(self, x: Any, dtype: Any) -> Any:
        if is_floating(x.dtype) and np.dtype(dtype).kind in "iu":
            x = np.trunc(x)
        return x if x.dtype in (dtype, object) else self.be.cast(x, dtype)

    def Dropout(self, x: Any, ratio: Any = None, training_mode: Any = None, seed: int = 0) -> Any:
        if training_mode is not None and _fixed(training_mode, "training_mode"):
            raise ModelError("Dropout in training is not read")
        return [x, self.be.cast(np.ones_like(x), "bool")]

    # Shapes

    def Constant(
        self,
        value: Any = None,
        value_float: Any = None,
        value_floats: Any = None,
        value_int: Any = None,
        value_ints: Any = None,
    ) -> Any:
        if value is not None:
            return value
        integers = value_ints if value_int is None else value_int
        if integers is not None:
            return np.array(integers, np.int64)
        return np.array(value_floats if value_float is None else value_float, np.float32)

    def ConstantOfShape(self, shape: Any, value: Any = None) -> Any:
        sizes = _ints(shape, "the shape")
        _check_size(prod(sizes))
        return np.full(sizes, np.float32(0) if value is None else value.reshape(()))

    def Shape(self, x: Any, start: int = 0, end: int | None = None) -> Any:
        axes = range(len(x.shape))[slice(start, end)]
        sizes = [OPEN if x.shape[i] is None else x.shape[i] for i in axes]
        return np.array(sizes, object if OPEN in sizes else np.int64)

    def Size(self, x: Any) -> Any:
        return np.array(prod(_size(x, i) for i in range(len(x.shape))), np.int64)

    def Range(self, start: Any, limit: Any, delta: Any) -> Any:
        start, limit, delta = (_fixed(x, "a bound of Range") for x in (start, limit, delta))
        _check_size(int((float(limit) - float(start)) / float(delta)))
        return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)

    def Expand(self, x: Any, shape: Any) -> Any:
        return np.broadcast_to(x, np.broadcast_shapes(tuple(x.shape), _ints(shape, "the shape")))

    def Reshape(self, x: Any, shape: Any, allowzero: int = 0) -> Any:
        given = [-1 if n is OPEN else int(n) for n in _fixed(shape, "the shape")]
        sizes = [x.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(given)]
        return np.reshape(x, tuple(-1 if n is None else n for n in sizes))

    def Flatten(self, x: Any, axis: int = 1) -> Any:
        axis = axis % len(x.shape) if axis < len(x.shape) else axis
        before, after = x.shape[:axis], x.shape[axis:]
        return np.reshape(
            x, (-1, prod(after)) if None in before else (prod(before), -1 if None in after else prod(after))
        )

    def Squeeze(self, x: Any, axes: Any = None) -> Any:
        return np.squeeze(x, None if axes is None else _ints(axes, "axes"))

    def Unsqueeze(self, x: Any, axes: Any) -> Any:
        return np.expand_dims(x, _ints(axes, "axes"))

    def Transpose(self, x: Any, perm: Any = None) -> Any:
        return np.transpose(x, perm)

    def Concat(self, *operands: Any, axis: int) -> Any:
        return np.concatenate(operands, axis)

    def Split(
        self, x: Any, split: Any = None, axis: int = 0, num_outputs: int | None = None, outputs: int = 0
    ) -> list[Any]:
        size, count = _size(x, axis), num_outputs or outputs
        sizes = [-(-size // count)] * (count - 1) if split is None else _ints(split, "split")[:-1]
        return list(np.split(x, np.cumsum(sizes).tolist(), axis))

    def Slice(self, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
        begin, end = _ints(starts, "starts"), _ints(ends, "ends")
        along = range(len(begin)) if axes is None else _ints(axes, "axes")
        step = (1,) * len(begin) if steps is None else _ints(steps, "steps")
        index = [slice(None)] * len(x.shape)
        for axis, first, last, by in zip(along, begin, end, step, strict=True):
            size = _size(x, axis) if x.shape[axis] is not None or by < 0 or last < 1 << 31 else 1 << 31
            stop = None if by < 0 and last < -size else max(min(last, size), -size - 1)
            index[axis] = slice(max(min(first, size), -size), stop, by)
        return _part(x, tuple(index))

    def Gather(self, x: Any, indices: Any, axis: int = 0) -> Any:
        return np.take(x, indices, axis)

    def GatherElements(self, x: Any, indices: Any, axis: int = 0) -> Any:
        axis %= len(x.shape)
        own = tuple(slice(None) if i == axis else slice(0, n) for i, n in enumerate(indices.shape))
        return np.take_along_axis(_part(x, own), indices, axis)

    def Pad(self, x: Any, pads: Any, value: Any = None, axes: Any = None, mode: str = "constant") -> Any:
        given = _ints(pads, "pads")
        along = range(len(x.shape)) if axes is None else [i % len(x.shape) for i in _ints(axes, "axes")]
        widths = [(0, 0)] * len(x.shape)
        for n, axis in enumerate(along):
            widths[axis] = given[n], given[n + len(given) // 2]
        options = {"constant_values": 0 if value is None else _fixed(value, "the value").item()}
        _check_size(sum(map(abs, given)))
        return np.pad(x, widths, mode, **(options if mode == "constant" else {}))  # type: ignore[call-overload]

    def Tile(self, x: Any, repeats: Any) -> Any:
        counts = _ints(repeats, "repeats")
        _check_size(prod(counts) * (1 if isinstance(x, Variable) else x.size))
        return np.tile(x, counts)

    def OneHot(self, indices: Any, depth: Any, values: Any, axis: int = -1) -> Any:
        (count,) = _ints(depth, "depth")
        _check_size(count)
        axis %= len(indices.shape) + 1
        each = np.arange(count).reshape(-1, *[1] * (len(indices.shape) - axis))
        found = np.where(indices < 0, indices + count, indices)
        return np.where(np.equal(np.expand_dims(found, axis), each), _part(values, 1), _part(values, 0))

    def Trilu(self, x: Any, k: Any = None, upper: int = 1) -> Any:
        (offset,) = (0,) if k is None else _ints(k, "k")
        return np.triu(x, offset) if upper else np.tril(x, offset)

    def EyeLike(self, x: Any, dtype: int | None = None, k: int = 0) -> Any:
        wanted = x.dtype if dtype is None else onnx.helper.tensor_dtype_to_np_dtype(dtype)
        return np.eye(_size(x, 0), _size(x, 1), k, dtype=wanted)

    def DepthToSpace(self, x: Any, blocksize: int, mode: str = "DCR") -> Any:
        (n, _, h, w), b = (_size(x, i) for i in range(4)), blocksize
        parts, order = ((b, b, -1), (0, 3, 4, 1, 5, 2)) if mode == "DCR" else ((-1, b, b), (0, 1, 4, 2, 5, 3))
        return np.reshape(np.transpose(np.reshape(x, (n, *parts, h, w)), order), (n, -1, h * b, w * b))

    def SpaceToDepth(self, x: Any, blocksize: int, mode: str = "DCR") -> Any:
        (n, c, h, w), b = (_size(x, i) for i in range(4)), blocksize
        order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
        return np.reshape(np.transpose(np.reshape(x, (n, c, h // b, b, w // b, b)), order), (n, -1, h // b, w // b))

    # Reductions and orders

    def _reduced(
        self, function: Any, x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Any:
        along = () if axes is None else _ints(axes, "axes")
        if not along and noop_with_empty_axes:
            return x
        return self._cast(function(x, axis=along or None, keepdims=bool(keepdims)), x.dtype)

    def ReduceLogSumExp(self, x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        return self._reduced(self.be.logsumexp, x, axes, keepdims, noop_with_empty_axes)

    def ReduceL1(self, x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        return self._reduced(np.sum, np.abs(x), axes, keepdims, noop_with_empty_axes)

    def ReduceSumSquare(self, x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        return self._reduced(np.sum, np.square(x), axes, keepdims, noop_with_empty_axes)

    def ReduceL2(self, x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        return np.sqrt(self.ReduceSumSquare(x, axes, keepdims, noop_with_empty_axes))

    def ReduceLogSum(self, x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        return np.log(self._reduced(np.sum, x, axes, keepdims, noop_with_empty_axes))

    def _best(self, function: Any, x: Any, axis: int, keepdims: int, is_last: int) -> Any:
        found = function(np.flip(x, axis) if is_last else x, axis, keepdims=bool(keepdims))
        return _size(x, axis) - 1 - found if is_last else found

    def ArgMax(self, x: Any, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
        return self._best(np.argmax, x, axis, keepdims, select_last_index)

    def ArgMin(self, x: Any, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
        return self._best(np.argmin, x, axis, keepdims, select_last_index)

    def TopK(self, x: Any, k: Any, axis: int = -1, largest: int = 1, sorted: int = 1) -> list[Any]:
        (count,) = _ints(k, "k")
        if largest:
            return list(self.be.topk(x, count, axis))
        index = [slice(None)] * len(x.shape)
        index[axis] = slice(0, count)
        indices = _part(np.argsort(x, axis, stable=True), tuple(index))
        return [np.take_along_axis(x, indices, axis), indices]

    def _cumulated(self, function: Any, x: Any, axis: Any, exclusive: int, reverse: int, first: int) -> Any:
        (along,) = _ints(axis, "the axis")
        x = np.flip(x, along) if reverse else x
        if exclusive:
            index: list[Any] = [slice(None)] * len(x.shape)
            index[along] = slice(0, _size(x, along) - 1)
            widths = [(int(i == along % len(x.shape)), 0) for i in range(len(x.shape))]
            x = np.pad(_part(x, tuple(index)), widths, constant_values=first)
        found = self._cast(function(x, along), x.dtype)
        return np.flip(found, along) if reverse else found

    def CumSum(self, x: Any, axis: Any, exclusive: int = 0, reverse: int = 0) -> Any:
        return self._cumulated(np.cumsum, x, axis, exclusive, reverse, 0)

    def CumProd(self, x: Any, axis: Any, exclusive: int = 0, reverse: int = 0) -> Any:
        return self._cumulated(np.cumprod, x, axis, exclusive, reverse, 1)

    # Products and windows

    def Gemm(
        self, a: Any, b: Any, c: Any = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
    ) -> Any:
        found = np.matmul(np.transpose(a) if transA else a, np.transpose(b) if transB else b)
        found = found if alpha == 1 else found * alpha
        return found if c is None else found + (c if beta == 1 else c * beta)

    def Einsum(self, *operands: Any, equation: str) -> Any:
        return self.be.einsum(equation.replace(" ", ""), *operands)

    def _padding(self, auto_pad: str, pads: Any, count: int) -> Any:
        if auto_pad == "SAME_LOWER":
            raise ModelError("auto_pad SAME_LOWER is not computed; SAME_UPPER is")
        if auto_pad == "SAME_UPPER":
            return "same"
        pads = [0] * (2 * count) if pads is None or auto_pad == "VALID" else pads
        return tuple(zip(pads[:count], pads[count:], strict=True))

    def _biased(self, found: Any, bias: Any) -> Any:
        return found if bias is None else found + np.reshape(bias, (1, -1, *[1] * (len(found.shape) - 2)))

    def Conv(
        self,
        x: Any,
        w: Any,
        b: Any = None,
        auto_pad: str = "NOTSET",
        dilations: Any = 1,
        group: int = 1,
        kernel_shape: Any = None,
        pads: Any = None,
        strides: Any = 1,
    ) -> Any:
        padding = self._padding(auto_pad, pads, len(x.shape) - 2)
        return self._biased(self.be.conv(x, w, _step(strides), padding, _step(dilations), group), b)

    def ConvTranspose(
        self,
        x: Any,
        w: Any,
        b: Any = None,
        dilations: Any = 1,
        group: int = 1,
        kernel_shape: Any = None,
        output_padding: Any = 0,
        pads: Any = None,
        strides: Any = 1,
    ) -> Any:
        padding = self._padding("NOTSET", pads, len(x.shape) - 2)
        options = {"output_padding": _step(output_padding)}
        found = self.be.conv_transpose(x, w, _step(strides), padding, _step(dilations), group, **options)
        return self._biased(found, b)

    def MaxPool(
        self,
        x: Any,
        kernel_shape: Any,
        auto_pad: str = "NOTSET",
        ceil_mode: int = 0,
        dilations: Any = 1,
        pads: Any = None,
        storage_order: int = 0,
        strides: Any = 1,
    ) -> Any:
        padding = self._padding(auto_pad, pads, len(x.shape) - 2)
        if is_floating(x.dtype) and {*np.atleast_1d(dilations)} == {1}:
            return self.be.max_pool(x, tuple(kernel_shape), _step(strides), padding, ceil=bool(ceil_mode))
        least = -np.inf if is_floating(x.dtype) else np.iinfo(x.dtype).min
        options = {"ceil": bool(ceil_mode), "dilation": _step(dilations), "outside": least}
        windows = self.be.windows(x, tuple(kernel_shape), _step(strides), padding, **options)
        return np.max(windows, axis=tuple(range(len(x.shape), len(windows.shape))))

    def AveragePool(
        self,
        x: Any,
        kernel_shape: Any,
        auto_pad: str = "NOTSET",
        ceil_mode: int = 0,
        count_include_pad: int = 0,
        dilations: Any = 1,
        pads: Any = None,
        strides: Any = 1,
    ) -> Any:
        if {*np.atleast_1d(dilations)} != {1}:
            raise ModelError("dilations of AveragePool are not computed")
        padding = self._padding(auto_pad, pads, len(x.shape) - 2)
        options = {"ceil": bool(ceil_mode), "count_padding": bool(count_include_pad)}
        return self.be.avg_pool(x, tuple(kernel_shape), _step(strides), padding, **options)

    def GlobalAveragePool(self, x: Any) -> Any:
        return np.mean(x, axis=tuple(range(2, len(x.shape))), keepdims=True)

    def GlobalMaxPool(self, x: Any) -> Any:
        return np.max(x, axis=tuple(range(2, len(x.shape))), keepdims=True)

    def Resize(
        self,
        x: Any,
        roi: Any = None,
        scales: Any = None,
        sizes: Any = None,
        coordinate_transformation_mode: str = "half_pixel",
        cubic_coeff_a: float = -0.75,
        mode: str = "nearest",
        nearest_mode: str = "round_prefer_floor",
    ) -> Any:
        known = [_size(x, i) for i in range(len(x.shape))]
        wanted = (
            [n * s for n, s in zip(known, _fixed(scales, "the scales"), strict=True)]
            if sizes is None
            else (_ints(sizes, "the sizes"))
        )
        way = mode, coordinate_transformation_mode, nearest_mode if mode == "nearest" else ""
        methods = {
            ("nearest", "asymmetric", "floor"): ("nearest", False),
            ("linear", "half_pixel", ""): ("bilinear", False),
            ("linear", "align_corners", ""): ("bilinear", True),
        }
        if way not in methods or known[:2] != [*wanted[:2]] or any(int(n) != n for n in wanted):
            raise ModelError(f"resizing {known} to {[*wanted]} by {' '.join(filter(None, way))} is not computed")
        method, corners = methods[way]
        return self.be.resize(x, tuple(map(int, wanted[2:])), method=method, align_corners=corners)

    # Normalisations

    def _axis(self, x: Any, axis: int | None, version: int) -> int:
        """The axis of a softmax; before version 13, all axes from the given one on were flattened."""
        axis = (-1 if version >= 13 else 1) if axis is None else axis
        if version < 13 and axis % len(x.shape) != len(x.shape) - 1:
            raise ModelError("over several axes at once, as before version 13, is not computed")
        return axis

    def Softmax(self, x: Any, axis: int | None = None, version: int = OLDEST) -> Any:
        return self.be.softmax(x, self._axis(x, axis, version))

    def LogSoftmax(self, x: Any, axis: int | None = None, version: int = OLDEST) -> Any:
        return self.be.log_softmax(x, self._axis(x, axis, version))

    def Hardmax(self, x: Any, axis: int | None = None, version: int = OLDEST) -> Any:
        axis = self._axis(x, axis, version)
        best = np.argmax(x, axis, keepdims=True)
        each = np.arange(_size(x, axis)).reshape(-1, *[1] * (len(x.shape) - 1 - axis % len(x.shape)))
        return self._cast(np.equal(best, each), x.dtype)

    def BatchNormalization(
        self,
        x: Any,
        scale: Any,
        bias: Any,
        mean: Any,
        variance: Any,
        epsilon: float = 1e-5,
        momentum: float = 0.9,
        training_mode: int = 0,
    ) -> Any:
        if training_mode:
            raise ModelError("BatchNormalization in training is not read")
        return self.be.batch_norm(x, scale, bias, mean, variance, epsilon=epsilon, training=False).value

    def InstanceNormalization(self, x: Any, scale: Any, bias: Any, epsilon: float = 1e-5) -> Any:
        return self.be.instance_norm(x, scale, bias, epsilon=epsilon)

    def LayerNormalization(
        self, x: Any, scale: Any, bias: Any = None, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
    ) -> list[Any]:
        axes = tuple(range(axis % len(x.shape), len(x.shape)))
        inverse = 1 / np.sqrt(np.var(x, axis=axes, keepdims=True) + epsilon)
        return [self.be.layer_norm(x, scale, bias, axes, epsilon), np.mean(x, axis=axes, keepdims=True), inverse]

    def RMSNormalization(self, x: Any, scale: Any, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
        return self.be.rms_norm(x, scale, tuple(range(axis % len(x.shape), len(x.shape))), epsilon)

    def GroupNormalization(
        self, x: Any, scale: Any, bias: Any, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
    ) -> Any:
        return self.be.group_norm(x, num_groups, scale, bias, epsilon=epsilon)

    def LRN(self, x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
        return self.be.lrn(x, size, alpha, beta, bias)

    def LpNormalization(self, x: Any, axis: int = -1, p: int = 2) -> Any:
        norm = np.sum(np.abs(x), axis, keepdims=True) if p == 1 else np.sqrt(np.sum(np.square(x), axis, keepdims=True))
        return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm))

    def MeanVarianceNormalization(self, x: Any, axes: Any = (0, 2, 3)) -> Any:
        centred = x - np.mean(x, axis=tuple(axes), keepdims=True)
        return centred / (np.sqrt(np.mean(np.square(centred), axis=tuple(axes), keepdims=True)) + 1e-9)

    # Recurrent networks

    def LSTM(
        self,
        x: Any,
        w: Any,
        r: Any,
        b: Any = None,
        lengths: Any = None,
        state: Any = None,
        cell: Any = None,
        peepholes: Any = None,
        hidden_size: int = 0,
        direction: str = "forward",
        layout: int = 0,
    ) -> list[Any]:
        if lengths is not None or peepholes is not None or layout:
            raise ModelError("lengths, peepholes and layout 1 are not computed")

        def run(n: int, reverse: bool) -> Any:
            inner, outer, bias = (_gates(None if y is None else _part(y, n), (0, 2, 3, 1)) for y in (w, r, b))
            first = [None if y is None else _part(y, n) for y in (state, cell)]
            return self.be.lstm(x, inner, outer, bias, *first, reverse=reverse)

        return _directions(run, direction)

    def GRU(
        self,
        x: Any,
        w: Any,
        r: Any,
        b: Any = None,
        lengths: Any = None,
        state: Any = None,
        hidden_size: int = 0,
        direction: str = "forward",
        layout: int = 0,
        linear_before_reset: int = 0,
    ) -> list[Any]:
        if lengths is not None or layout or not linear_before_reset:
            raise ModelError("lengths, layout 1 and linear_before_reset=0 are not computed")

        def run(n: int, reverse: bool) -> Any:
            inner, outer = (_gates(_part(y, n), (1, 0, 2)) for y in (w, r))
            bias = late = None
            if b is not None:
                own = np.reshape(_part(b, n), (2, 3, -1))
                z, reset, new = (_part(own, (slice(None), i)) for i in range(3))
                late = _part(new, 1)
                bias = np.concatenate([np.sum(reset, axis=0), np.sum(z, axis=0), _part(new, 0)])
            first = None if state is None else _part(state, n)
            return self.be.gru(x, inner, outer, bias, late, first, reverse=reverse)

        return _directions(run, direction)


def _step(value: Any) -> Any:
    return value if isinstance(value, int) else tuple(value)


def _gates(x: Any, order: Sequence[int]) -> Any:
    """The weights of gates in another order, as columns; both biases are added."""
    if x is None:
        return None
    if len(x.shape) == 1:
        x = np.sum(np.reshape(x, (2, -1)), axis=0)
    parts = np.split(x, len(order), 0)
    return np.transpose(np.concatenate([parts[i] for i in order]))


def _directions(run: Callable[[int, bool], Any], direction: str) -> list[Any]:
    """The outputs and last states of a recurrent network, of each direction."""
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    found = [run(n, reverse) for n, reverse in enumerate(ways)]
    return [np.stack(parts, axis=1 - (i > 0)) for i, parts in enumerate(zip(*found, strict=True))]


def main() -> None:
    """Print what a model takes and gives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="an .onnx file")
    model = load(parser.parse_args().model, gen_backend("cpu"))
    for title, found in (("input", model.inputs), ("weight", model.weights), ("output", model.outputs)):
        for x in found:
            print(f"{title} {x.label}: {x.type}")


if __name__ == "__main__":
    main()
