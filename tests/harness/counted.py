"""The workloads whose counts are kept in tests/golden/counts.txt: those of `bench-gpu`, at sizes beyond all caches."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from harness.golden import CUDA_TREES
from optree import function, grad
from optree.tree.types import TensorType

#: Elements of an array, and rows and columns of a square one.
COUNT, SIDE = 1 << 26, 8192

Tree = Callable[[Any], Any]


def _of(dtype: str, *shape: int, name: str = "x") -> Any:
    return TensorType(dtype, shape)(name)


def line(be: Any, dtype: str) -> Any:
    return _of(dtype, COUNT) * 2 + 1


def add(be: Any, dtype: str) -> Any:
    return _of(dtype, COUNT) + _of(dtype, COUNT, name="y")


def add_row(be: Any, dtype: str) -> Any:
    return _of(dtype, SIDE, SIDE) - _of(dtype, SIDE, name="y")


def chain(be: Any, dtype: str) -> Any:
    a, b, c, d = (_of(dtype, COUNT, name=name) for name in "abcd")
    return a * b + c * be.sin(d)


def gelu(be: Any, dtype: str) -> Any:
    x = _of(dtype, COUNT)
    return x * 0.5 * (1 + be.erf(x * math.sqrt(0.5)))


def activations(be: Any, dtype: str) -> Any:
    x = _of(dtype, COUNT)
    gelu = 0.5 * x * (1.0 + be.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return gelu + be.log1p(be.exp(-abs(x))) + be.relu(x)


def black_scholes(be: Any, dtype: str) -> Any:
    price, strike, time = (_of(dtype, COUNT, name=name) for name in "pst")
    deviation = 0.3 * be.sqrt(time)
    first = (be.log(price / strike) + 0.065 * time) / deviation
    later = strike * be.exp(-0.02 * time)
    below, above = (0.5 + 0.5 * be.erf(x * math.sqrt(0.5)) for x in (first, first - deviation))
    call = price * below - later * above
    return function([price, strike, time], [call, call - price + later])


def dropout(be: Any, dtype: str) -> Any:
    x = _of(dtype, COUNT)
    return x * be.dropout_mask(x, 0.9)


def adam(be: Any, dtype: str) -> Any:
    w, m, v, g = (_of(dtype, COUNT, name=name) for name in "wmvg")
    mean, square = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return function([w, m, v, g], [mean, square, w - 0.01 * mean / (be.sqrt(square) + 1e-8)])


def transposed_add(be: Any, dtype: str) -> Any:
    return be.square(_of(dtype, SIDE, SIDE)).T + _of(dtype, SIDE, SIDE, name="y")


def complex_line(be: Any, dtype: str) -> Any:
    return _of(dtype, COUNT) * _of(dtype, COUNT, name="y") + 1


def quotient(be: Any, dtype: str) -> Any:
    return _of(dtype, COUNT) / _of(dtype, COUNT, name="y")


def intensity(be: Any, dtype: str) -> Any:
    return be.abs(_of(dtype, COUNT)) ** 2


def wave(be: Any, dtype: str) -> Any:
    real = {"complex64": "float32", "complex128": "float64"}[dtype]
    phase, amplitude = _of(real, COUNT), _of(real, COUNT, name="y")
    return function([phase, amplitude], be.exp(1j * phase) * amplitude)


def complex_layer_norm(be: Any, dtype: str) -> Any:
    x = _of(dtype, COUNT // 1024, 1024)
    return (x - be.mean(x, axis=1)) / be.sqrt(be.var(x, axis=1) + 1e-5)


def total(be: Any, dtype: str) -> Any:
    return be.sum(_of(dtype, COUNT))


def squared_error(be: Any, dtype: str) -> Any:
    return be.mean(be.square(_of(dtype, COUNT) - _of(dtype, COUNT, name="y")))


def column_sums(be: Any, dtype: str) -> Any:
    return be.sum(_of(dtype, SIDE, SIDE), axis=0)


def row_sums(be: Any, dtype: str) -> Any:
    return be.sum(_of(dtype, SIDE, SIDE), axis=1)


def batch_norm(be: Any, dtype: str) -> Any:
    x = _of(dtype, SIDE, SIDE)
    return (x - be.mean(x, axis=0)) / be.sqrt(be.var(x, axis=0) + 1e-5)


def column_softmax(be: Any, dtype: str) -> Any:
    return be.softmax(_of(dtype, SIDE, SIDE), axis=0)


def softmax(be: Any, dtype: str, length: int) -> Any:
    return be.softmax(_of(dtype, COUNT // length, length), axis=1)


def log_softmax(be: Any, dtype: str, length: int) -> Any:
    return be.log_softmax(_of(dtype, COUNT // length, length), axis=1)


def layer_norm(be: Any, dtype: str, length: int) -> Any:
    x = _of(dtype, COUNT // length, length)
    gain, bias = _of(dtype, length, name="gain"), _of(dtype, length, name="bias")
    return (x - be.mean(x, axis=1)) / be.sqrt(be.var(x, axis=1) + 1e-5) * gain + bias


def labelled(be: Any, dtype: str, length: int) -> Any:
    """Cross entropy with labels, and its gradient."""
    rows = COUNT // length
    x, labels = _of(dtype, rows, length), TensorType("int32", (rows,))("labels")
    loss = be.mean(be.cross_entropy(x, labels))
    return function([x, labels], [loss, grad(loss, x)])


DTYPES, COMPLEX = ("float32", "float16", "bfloat16"), ("complex64", "complex128")
WORKLOADS = (
    *(line, add, add_row, chain, gelu, activations, black_scholes, dropout, adam, transposed_add),
    *(total, squared_error, column_sums, row_sums, batch_norm, column_softmax),
)

OF_COMPLEX = (complex_line, quotient, intensity, wave, complex_layer_norm)

#: Rows in registers of warps and blocks, at the limits of shared memory, beyond it, and of two models' vocabularies.
VOCABULARIES = (50257, 128256)
SOFTMAX = (32, 256, 1024, 8192, 12288, 32768, 50257, 65536, 128256)
LAYER_NORM = (32, 256, 1024, 8192, 12288, 50257, 65536, 128256)

#: What is counted, by name.
COUNTED: dict[str, Tree] = {
    **{tree.__name__: tree for tree in CUDA_TREES},
    **{f"{workload.__name__}-{dtype}": partial(workload, dtype=dtype) for workload in WORKLOADS for dtype in DTYPES},
    **{f"{each.__name__}-{dtype}": partial(each, dtype=dtype) for each in OF_COMPLEX for dtype in COMPLEX},
    **{
        f"{workload.__name__}-{length}-{dtype}": partial(workload, dtype=dtype, length=length)
        for workload, lengths in (
            (softmax, SOFTMAX),
            (log_softmax, VOCABULARIES),
            (layer_norm, LAYER_NORM),
            (labelled, VOCABULARIES),
        )
        for length in lengths
        for dtype in DTYPES
    },
}
