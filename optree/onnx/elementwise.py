"""Elementwise operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from optree.dtypes import is_floating
from optree.errors import ModelError
from optree.onnx.values import Operators, cast, dtype_of, fixed
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


class Elementwise(Operators):
    """Elementwise operators that are more than a function of the same name."""

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
        return cast(np.power(x, y), x.dtype)

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

    def Elu(self, x: Any, alpha: float = 1.0) -> Any:
        return f.elu(x, alpha)

    def Celu(self, x: Any, alpha: float = 1.0) -> Any:
        return np.where(x > 0, x, np.expm1(np.minimum(x, 0) / alpha) * alpha)

    def Selu(self, x: Any, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Any:
        return f.elu(x, alpha) * gamma

    def Gelu(self, x: Any, approximate: str = "none") -> Any:
        return f.gelu(x, approximate=approximate == "tanh")

    def IsInf(self, x: Any, detect_negative: int = 1, detect_positive: int = 1) -> Any:
        return np.logical_or(np.isneginf(x) * bool(detect_negative), np.isposinf(x) * bool(detect_positive))

    def BitShift(self, x: Any, y: Any, direction: str) -> Any:
        return np.left_shift(x, y) if direction == "LEFT" else np.right_shift(x, y)

    def Cast(self, x: Any, to: int, saturate: int = 1) -> Any:
        return cast(x, dtype_of(to))

    def CastLike(self, x: Any, like: Any, saturate: int = 1) -> Any:
        return cast(x, like.dtype)

    def Dropout(self, x: Any, ratio: Any = None, training_mode: Any = None, seed: int = 0) -> Any:
        if training_mode is not None and fixed(training_mode, "training_mode"):
            raise ModelError("Dropout in training is not read")
        return [x, f.cast(np.ones_like(x), "bool")]
