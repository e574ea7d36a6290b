"""The activations that are composed of ops: how to call each, and what NumPy says to the same arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from harness.cases import Case, in_double, in_floating
from optree.registry import f


def _log_sigmoid(x: Any) -> Any:
    """In the dtype of np.logaddexp from the first: -x of unsigned integers wraps, and of bools is refused."""
    return -np.logaddexp(-np.asarray(x, np.logaddexp(x, 0).dtype), 0)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + _erf(x / np.sqrt(2)))


def _gelu_by_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: dict[str, list[Case]] = {
    "gelu": [
        Case(((2, 3),), lambda x: f.gelu(x), in_floating(_gelu)),
        Case(((2, 3),), lambda x: f.gelu(x, approximate=True), in_floating(_gelu_by_tanh)),
        Case(((3,),), lambda x: f.gelu(x, approximate="none"), in_floating(_gelu)),
    ],
    "silu": [Case(((2, 3),), lambda x: f.silu(x), in_floating(lambda x: x / (1 + np.exp(-x))))],
    "swish": [Case(((2, 3),), lambda x: f.swish(x), in_floating(lambda x: x / (1 + np.exp(-x))))],
    "leaky_relu": [
        Case(((2, 3),), lambda x: f.leaky_relu(x), in_floating(lambda x: np.where(x > 0, x, 0.01 * x))),
        Case(((2, 3),), lambda x: f.leaky_relu(x, 0.3), in_floating(lambda x: np.where(x > 0, x, 0.3 * x))),
    ],
    "elu": [
        Case(((2, 3),), lambda x: f.elu(x), in_floating(lambda x: np.where(x > 0, x, np.expm1(x)))),
        Case(((2, 3),), lambda x: f.elu(x, 0.5), in_floating(lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)))),
    ],
    "selu": [
        Case(
            ((2, 3),),
            lambda x: f.selu(x),
            in_floating(lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))),
        )
    ],
    "celu": [
        Case(((2, 3),), lambda x: f.celu(x, 2.0), in_floating(lambda x: np.where(x > 0, x, 2 * np.expm1(x / 2)))),
    ],
    "mish": [Case(((2, 3),), lambda x: f.mish(x), in_floating(lambda x: x * np.tanh(np.logaddexp(x, 0))))],
    "relu6": [Case(((2, 3),), lambda x: f.relu6(x * 9.0), lambda x: np.clip(x * 9.0, 0, 6))],
    "hardsigmoid": [
        Case(((2, 3),), lambda x: f.hardsigmoid(x * 9.0), in_double(lambda x: np.clip(x * 9.0 + 3, 0, 6) / 6))
    ],
    "hardswish": [
        Case(((2, 3),), lambda x: f.hardswish(x * 9.0), in_double(lambda x: x * 9 * np.clip(x * 9.0 + 3, 0, 6) / 6))
    ],
    "softsign": [Case(((2, 3),), lambda x: f.softsign(x), in_floating(lambda x: x / (1 + np.abs(x))))],
    "hardtanh": [
        Case(((2, 3),), lambda x: f.hardtanh(x * 2.0), lambda x: np.clip(x * 2.0, -1.0, 1.0)),
        Case(((2, 3),), lambda x: f.hardtanh(x, -0.3, 0.2), lambda x: np.clip(x, -0.3, 0.2)),
    ],
    "glu": [
        Case(((2, 4),), lambda x: f.glu(x), in_floating(lambda x: x[:, :2] / (1 + np.exp(-x[:, 2:])))),
        Case(((4, 3),), lambda x: f.glu(x, axis=0), in_floating(lambda x: x[:2] / (1 + np.exp(-x[2:])))),
    ],
    "softplus": [
        Case(((2, 3),), lambda x: f.softplus(x), lambda x: np.logaddexp(x, 0)),
        Case(((2, 3),), lambda x: f.softplus(x * 100), lambda x: np.logaddexp(x * 100, 0)),
    ],
    "log_sigmoid": [
        Case(((2, 3),), lambda x: f.log_sigmoid(x), _log_sigmoid),
        Case(((2, 3),), lambda x: f.log_sigmoid(x * 100), lambda x: _log_sigmoid(x * 100)),
    ],
}
