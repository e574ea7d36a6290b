"""Trees that reduce, in one stage or in several, for the tests of every executor of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np


def _given(x: Any, axis: Any) -> Any:
    """An axis, or all of them."""
    return tuple(range(x.ndim)) if axis is None else axis


def softmax(b: Any, x: Any, axis: Any) -> Any:
    return b.softmax(x, axis=_given(x, axis))


def log_softmax(b: Any, x: Any, axis: Any) -> Any:
    return b.log_softmax(x * 2, axis=_given(x, axis))


def logsumexp(b: Any, x: Any, axis: Any) -> Any:
    return b.logsumexp(x, axis=axis, keepdims=False) * 2


def normalised(b: Any, x: Any, axis: Any) -> Any:
    return (x - b.mean(x, axis=axis)) / b.sqrt(b.var(x, axis=axis) + 1e-5)


def deviation(b: Any, x: Any, axis: Any) -> Any:
    return b.std(x, axis=axis) + b.norm(x, axis=axis)


def several(b: Any, x: Any, axis: Any) -> Any:
    return b.max(x, axis=axis) * b.sum(b.square(x - b.min(x, axis=axis)), axis=axis) - b.prod(x / 3, axis=axis)


def restored(b: Any, x: Any, axis: Any) -> Any:
    """The mean without its axes, and with them again."""
    mean = b.mean(x, axis=axis, keepdims=False)
    return x - (b.expand_dims(mean, axis) if axis is not None else mean)


TREES = (softmax, log_softmax, logsumexp, normalised, deviation, several, restored)

REDUCTIONS = {
    "all": lambda b, x, v: b.sum(x * x),
    "rows": lambda b, x, v: b.sum(b.exp(x) * v, axis=1),
    "rows dropped": lambda b, x, v: b.mean(x * v, axis=1, keepdims=False) * 0.5 + 1,
    "several": lambda b, x, v: b.max(x, axis=1) - b.min(x, axis=1) * b.mean(x, axis=1),
    "columns": lambda b, x, v: b.sum(x * 2, axis=0),
    "transposed": lambda b, x, v: b.sum(b.transpose(x) * 2, axis=0),
    "flipped": lambda b, x, v: b.sum(b.flip(x, 1) * v, axis=1),
    "with its elements": lambda b, x, v: b.sum(x * 2, axis=1) + (x * 2),
    "softmax": lambda b, x, v: b.exp(x - b.max(x, axis=1)) / b.sum(b.exp(x - b.max(x, axis=1)), axis=1),
}

SPECIAL = np.array(
    [[-np.inf] * 4, [np.inf, 1, np.inf, -np.inf], [np.nan, 0, 1, 2], [0, -0.0, 0, 0], [1e30, -1e30, 3e38, 1e-45]],
    np.float32,
)
