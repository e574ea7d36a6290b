"""The trees whose kernels' source is kept in tests/golden/, and how it is compared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from optree import function, grad
from optree.tree.types import TensorType


def check_golden(text: str, path: Path, request: Any) -> None:
    """Compare a text with what is kept in a file, or keep it there, under ``--update-golden``."""
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert path.exists() and text == path.read_text(), "if the change is meant: pytest --update-golden, and read it"


def _input(*shape: int, name: str = "x", dtype: str = "float32") -> Any:
    return TensorType(dtype, shape)(name)


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


def mandelbrot(be: Any) -> Any:
    z, c = be.ones((7, 5), np.complex64), be.ones((7, 5), np.complex64)
    return be.where(be.abs(z) > 2, z, z * z + c)


def two_kernels(be: Any) -> Any:
    x, y = be.ones((4, 6)), be.ones((6, 3))
    return be.tanh(be.dot(x * 2, y)) + 1


def pool(be: Any) -> Any:
    return be.relu(be.max_pool(be.ones((2, 3, 5, 6)), (2, 3), stride=(1, 2), padding=1))


def spaced(be: Any) -> Any:
    x = be.ones((5, 7))
    even, third = ((None, None, None), (None, None, 2)), ((1, None, 3), (None, None, None))
    return be.unslice(be.ones((5, 4)), x, index=even) + be.unslice(be.ones((2, 7)), x, index=third)


def sum_of_taps(be: Any) -> Any:
    x = be.ones((5, 7))
    return be.sum(
        be.pad(x, ((1, 0), (2, 0)))
        * be.unslice(be.ones((6, 5)), be.ones((6, 9)), index=((0, 6, None), (None, None, 2))),
        axis=1,
    )


def depthwise(be: Any) -> Any:
    return be.conv(be.ones((2, 3, 8, 40)), be.ones((3, 1, 3, 2)), groups=3, padding=1)


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


def transposed(be: Any) -> Any:
    return be.square(_input(300, 200)).T + _input(200, 300, name="y")


def contraction(be: Any) -> Any:
    x, y = _input(300, 40), _input(40, 20, name="y")
    return be.tanh(np.sum(np.expand_dims(x, 2) * np.expand_dims(y, 0), axis=1) + _input(20, name="bias"))


TREES = (
    chain,
    gelu,
    broadcast,
    three_loops,
    mixed_dtypes,
    conditions,
    mandelbrot,
    two_kernels,
    pool,
    spaced,
    sum_of_taps,
    depthwise,
    adam,
    softmax,
    squared_error,
    layer_norm,
    batch_norm,
    long_columns,
    transposed,
    contraction,
)


# For CUDA, which lays kernels out by sizes: of arrays that have no memory. With fewer rows, columns or elements, they
# are the same kernels on a smaller device (tests/gpu/test_ptx.py).


def chain_of_millions(be: Any, count: int = 1 << 24) -> Any:
    a, b, c, d = (_input(count, name=name) for name in "abcd")
    return a * b + c * be.sin(d)


def softmax_by_lanes(be: Any, rows: int = 1 << 16) -> Any:
    return be.softmax(_input(rows, 32), axis=1)


def softmax_by_warps(be: Any, rows: int = 1 << 16) -> Any:
    return be.softmax(_input(rows, 1000), axis=1)


def softmax_by_blocks(be: Any, rows: int = 4096) -> Any:
    return be.softmax(_input(rows, 5000), axis=1)


def softmax_of_long_rows(be: Any, rows: int = 4096) -> Any:
    return be.softmax(_input(rows, 1 << 16), axis=1)


def softmax_of_odd_rows(be: Any, rows: int = 1 << 14) -> Any:
    return be.softmax(_input(rows, 1001, dtype="float16"), axis=1)


def softmax_in_parts(be: Any, columns: int = 1 << 20) -> Any:
    return be.softmax(_input(2, columns), axis=1)


def layer_norm_by_warps(be: Any, rows: int = 1 << 14) -> Any:
    x, gain, bias = _input(rows, 1024), _input(1024, name="gain"), _input(1024, name="bias")
    return (x - be.mean(x, axis=1)) / be.sqrt(be.var(x, axis=1) + 1e-5) * gain + bias


def batch_norm_by_columns(be: Any, columns: int = 1 << 14) -> Any:
    x = _input(128, columns)
    return (x - be.mean(x, axis=0)) / be.sqrt(be.var(x, axis=0) + 1e-5)


def batch_norm_in_parts(be: Any, rows: int = 1 << 16) -> Any:
    x = _input(rows, 256)
    return (x - be.mean(x, axis=0)) / be.sqrt(be.var(x, axis=0) + 1e-5)


def cross_entropy(be: Any, rows: int = 4096) -> Any:
    x, y = _input(rows, 1000), _input(rows, 1000, name="y")
    loss = -be.sum(y * be.log_softmax(x, axis=1)) / rows
    return function([x, y], [loss, grad(loss, x)])


CUDA_TREES = (
    chain_of_millions,
    broadcast,
    mixed_dtypes,
    mandelbrot,
    pool,
    spaced,
    sum_of_taps,
    adam,
    softmax_by_lanes,
    softmax_by_warps,
    softmax_by_blocks,
    softmax_of_long_rows,
    softmax_of_odd_rows,
    softmax_in_parts,
    layer_norm_by_warps,
    batch_norm_by_columns,
    batch_norm_in_parts,
    cross_entropy,
    contraction,
)
