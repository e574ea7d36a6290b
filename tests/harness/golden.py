"""The trees whose kernels' source is kept in tests/golden/."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from optree import function
from optree.types import TensorType


def chain(be: Any) -> Any:
    a, b, c, d = (be.ones((4, 6)) for _ in range(4))
    return a * b + c * be.sin(d)


def gelu(be: Any) -> Any:
    x = be.ones((4, 6))
    return x * 0.5 * (1 + be.erf(x * math.sqrt(0.5)))


def broadcast(be: Any) -> Any:
    matrix, row, column = be.ones((4, 6)), be.ones((6,)), be.ones((4, 1))
    return (matrix - row) * column


def three_loops(be: Any) -> Any:
    return be.maximum(be.ones((3, 1, 5)), be.ones((3, 4, 1))) / be.ones((1, 4, 5))


def mixed_dtypes(be: Any) -> Any:
    bytes_, longs, doubles = be.ones((7,), np.uint8), be.ones((7,), np.int64), be.ones((7,), np.float64)
    return be.cast(bytes_ + longs, np.float32) * 2.5 + doubles


def conditions(be: Any) -> Any:
    x, y = be.ones((7,)), be.ones((7,))
    return be.where(be.logical_and(x > y, x != 0), be.sqrt(x), -y)


def two_kernels(be: Any) -> Any:
    x, y = be.ones((4, 6)), be.ones((6, 3))
    return be.tanh(be.dot(x * 2, y)) + 1


def adam(be: Any) -> Any:
    w, m, v = be.ones((64,)), be.zeros((64,)), be.zeros((64,))
    g, rate = TensorType("float32", (None,))("g"), TensorType("float32", ())("rate")
    mean, square = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return function([g, rate], updates={m: mean, v: square, w: w - rate * mean / (be.sqrt(square) + 1e-8)})


def softmax(be: Any) -> Any:
    x = be.ones((4, 6))
    exponentials = be.exp(x - be.max(x, axis=1))
    return exponentials / be.sum(exponentials, axis=1)


def squared_error(be: Any) -> Any:
    return be.mean(be.square(be.ones((4, 6)) - be.ones((4, 6))))


def layer_norm(be: Any) -> Any:
    x, gain = be.ones((4, 6)), be.ones((6,))
    return (x - np.expand_dims(np.mean(x, axis=1), 1)) / be.sqrt(be.var(x, axis=1) + 1e-5) * gain


def batch_norm(be: Any) -> Any:
    x = be.ones((4, 6))
    return (x - be.mean(x, axis=0)) / be.sqrt(be.var(x, axis=0) + 1e-5)


def long_columns(be: Any) -> Any:
    return be.sum(be.square(be.ones((1 << 20, 6))), axis=0) * 2


TREES = (
    chain,
    gelu,
    broadcast,
    three_loops,
    mixed_dtypes,
    conditions,
    two_kernels,
    adam,
    softmax,
    squared_error,
    layer_norm,
    batch_norm,
    long_columns,
)
