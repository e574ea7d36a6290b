"""Operators that are functions of NumPy's or of op-tree's, or one expression of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from optree.arrays import Array
from optree.dtypes import is_floating
from optree.errors import ModelError
from optree.onnx.values import cast, dtype_of, fixed, integers, known_size
from optree.registry import f

#: Operators that are functions of NumPy's, which build trees of trees.
AS_NUMPY: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name.lower()) for name in "Abs Add Ceil Cos Cosh Equal Exp Floor Greater IsNaN Less".split()},
    **{name: getattr(np, name.lower()) for name in "Log MatMul Reciprocal Sign Sin Sinh Sqrt Tan Tanh Where".split()},
    **{name: getattr(np, f"arc{name[1:]}") for name in "Acos Acosh Asin Asinh Atan Atanh".split()},
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

#: Operators that are functions of op-tree's.
AS_FUNCTIONS = {"Erf": "erf", "Sigmoid": "sig", "Softplus": "softplus", "Softsign": "softsign", "Det": "det"}


def _divided(x: Array, y: Array) -> Any:
    if is_floating(x.dtype):
        return np.divide(x, y)
    if x.dtype.kind == "u":
        return np.floor_divide(x, y)
    return np.floor_divide(np.abs(x), np.abs(y)) * np.sign(x) * np.sign(y)  # towards zero


def _clipped(x: Array, min: Array | None = None, max: Array | None = None) -> Any:
    x = x if min is None else np.maximum(x, min)
    return x if max is None else np.minimum(x, max)


def _kept(x: Array, ratio: Array | None = None, training_mode: Array | None = None, seed: int = 0) -> list[Any]:
    if training_mode is not None and fixed(training_mode, "training_mode"):
        raise ModelError("Dropout in training is not read")
    return [x, f.cast(np.ones_like(x), "bool")]


def _eye_like(x: Array, dtype: int | None = None, k: int = 0) -> Any:
    return np.eye(known_size(x, 0), known_size(x, 1), k, dtype=x.dtype if dtype is None else dtype_of(dtype))


def _spatial(x: Array) -> tuple[int, ...]:
    return tuple(range(2, len(x.shape)))


def _normed(x: Array, axis: int = -1, p: int = 2) -> Any:
    norm = np.sum(np.abs(x), axis, keepdims=True) if p == 1 else np.sqrt(np.sum(np.square(x), axis, keepdims=True))
    return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm))


#: Operators as functions of their inputs and, by name, attributes.
EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "BitShift": lambda x, y, direction: (np.left_shift if direction == "LEFT" else np.right_shift)(x, y),
    "Cast": lambda x, to, saturate=1: cast(x, dtype_of(to)),
    "CastLike": lambda x, like, saturate=1: cast(x, like.dtype),
    "Clip": _clipped,
    "Concat": lambda *operands, axis: np.concatenate(operands, axis),
    "Div": _divided,
    "Dropout": _kept,
    "Einsum": lambda *operands, equation: f.einsum(equation.replace(" ", ""), *operands),
    "Elu": lambda x, alpha=1.0: f.elu(x, alpha),
    "EyeLike": _eye_like,
    "Gather": lambda x, indices, axis=0: np.take(x, indices, axis),
    "Gelu": lambda x, approximate="none": f.gelu(x, approximate=approximate),
    "GlobalAveragePool": lambda x: np.mean(x, axis=_spatial(x), keepdims=True),
    "GlobalMaxPool": lambda x: np.max(x, axis=_spatial(x), keepdims=True),
    "GroupNormalization": lambda x, scale, bias, num_groups, epsilon=1e-5, stash_type=1: f.group_norm(
        x, num_groups, scale, bias, epsilon=epsilon
    ),
    "Identity": lambda x: x,
    "InstanceNormalization": lambda x, scale, bias, epsilon=1e-5: f.instance_norm(x, scale, bias, epsilon=epsilon),
    "IsInf": lambda x, detect_negative=1, detect_positive=1: np.logical_or(
        np.isneginf(x) * bool(detect_negative), np.isposinf(x) * bool(detect_positive)
    ),
    "LRN": lambda x, size, alpha=1e-4, beta=0.75, bias=1.0: f.lrn(x, size, alpha, beta, bias),
    "LpNormalization": _normed,
    "Max": lambda *operands: reduce(np.maximum, operands),
    "Mean": lambda *operands: reduce(np.add, operands) / len(operands),
    "Min": lambda *operands: reduce(np.minimum, operands),
    "Mod": lambda x, y, fmod=0: np.fmod(x, y) if fmod else np.remainder(x, y),
    "NonZero": lambda x: np.array(np.nonzero(fixed(x, "the operand")), np.int64),
    "Pow": lambda x, y: cast(np.power(x, y), x.dtype),
    "Relu": lambda x: np.maximum(x, 0),
    "Selu": lambda x, alpha=1.6732632423543772, gamma=1.0507009873554805: f.elu(x, alpha) * gamma,
    "Squeeze": lambda x, axes=None: np.squeeze(x, None if axes is None else integers(axes, "axes")),
    "Sum": lambda *operands: reduce(np.add, operands),
    "Transpose": lambda x, perm=None: np.transpose(x, perm),
    "Trilu": lambda x, k=None, upper=1: (np.triu if upper else np.tril)(x, 0 if k is None else integers(k, "k")[0]),
    "Unsqueeze": lambda x, axes: np.expand_dims(x, integers(axes, "axes")),
}
