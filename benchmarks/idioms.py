"""Every function that NumPy has too, in each dtype, and common lines of several operations with their gradients.

Each row is one Python function, called with NumPy's arrays and with tensors. The tensors' tree is built once and
assigned repeatedly, as in a loop; NumPy allocates its result in each call, as it does for users. Results are compared
first. The two take turns, and a figure is the ratio of medians. Before each turn the threads of the other side have
gone to sleep (NumPy's BLAS threads spin for 0.1 seconds after a product), and one untimed call wakes its own threads.
NumPy's side of a gradient runs the gradient's operations one by one. The worst ratios are listed first: the benchmark
looks for cliffs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from timing import rounds_of, seconds_of

from backends import gen_backend
from optree import grad
from optree.compile.program import flatten
from optree.compile.reference import evaluate
from optree.errors import OptreeError
from optree.registry import FUNCTIONS, NUMPY_FUNCTIONS, f
from optree.settings import override

ELEMENTS = 1 << 20

#: Seconds of pause between turns; then they wait for threads that are still awake.
PAUSE = 0.001

#: The dtypes of the rows; a dtype that NumPy refuses is left out.
DTYPES = ("float32", "float64", "float16", "int32", "int64", "uint8", "bool")

#: Minimum seconds of a turn: a short line is called repeatedly, as in a loop.
TURN = 0.002

#: A ratio above this is listed, with its reason.
LISTED = 1.0

#: Why a line takes longer than NumPy's: the reason of the first pattern that matches its name and dtype.
REASONS: dict[str, str] = {
    r"^(diag|diagonal|trace)\(": "a call, 2 us: NumPy's is a view, or 1,024 elements",
    r"^((nan)?arg(max|min)|vecdot).* bool": "a call: the first element decides",
    r"^(power\(x, y\)|x\*\*y).* float64": "the C library's on vectors: 1.1 on one thread",
    r"^(power\(x, y\)|x\*\*y).* float32": "in float64, 0.54 units in the last place; NumPy's 1.0, in float32",
    r"^(exp|exp2|log)\(.* float16": "computed in float32; NumPy's in float16, on processors that can",
    r"^floor_divide.* int64": "a corrected reciprocal; NumPy has one product and a shift",
    r"^linalg.norm\(x\) float": "squares neither overflow nor vanish; NumPy's, BLAS's dot, may",
    r"^(nan)?cumprod.* float16": "in float32, whose conversion by NumPy is slow for what overflows in float16",
    r"^fftshift": "rolled along one axis after the other, so that each element is copied twice",
    r"^mean of sliding windows": "the windows are copied; NumPy's are views",
    r"^lexsort": "keys are gathered in the order so far; NumPy sorts narrow ones by their digits",
    r"^block": "joined along one axis after the other, so that each element is copied twice",
    r"^[a-z]+.reduceat": "a call, 10 us, and NumPy's beside it",
    r"^cumulative_sum": "copied behind its initial 0",
    r"^exclusive_prod": "without division, so that it is right at zeros",
    r"^repeat\(x, 2.*64": "two strided copies by NumPy, where np.repeat is one loop",
    r"^heat": "temporaries of 32 MB are in new pages in each call; not in a function, which takes half of NumPy's time",
    r"^scatter": "a copy as NumPy's, and a call of 20 us",
    r"^convolve.* int": "NumPy's correlate in blocks, whose values are copied",
    r"^(corrcoef|cov)\(": "of 65,536 elements, too few to wake a thread; on one thread 0.9 to 1.05",
    r"^topk.* float32": "NumPy's line sorts as quickly as it partitions; ties and nan are looked for",
    r"^x - max": "in tiles of 64 columns, whose rows threads share from 1,025 on",
    r"^(isin|partition|histogram|linalg\.(solve|inv|cholesky|\w+vals\w*|slogdet))\b": "NumPy's routine, 0.95 to 1.05",
    r"^(dot|tensordot|matvec|vecmat)\(.* (u?int\d+|bool)": "NumPy's routine, 0.95 to 1.05",
    r"^(take\(x, rows|insert|delete)": "a copy as NumPy's, and a call of 5 to 12 us",
    r"^(append|concatenate|tile|roll|[vhd]?stack)\(": "a copy as NumPy's, 1.0 to 1.1 on one thread",
    r"^(copy|nan_to_num|isinf|(f|nan)?(min|max)|m(in|ax)imum)\(": "as quick as the cache, and a call of 2 to 5 us",
}

Line = Callable[..., Any]


class Row(NamedTuple):
    """One line in one dtype.

    Attributes
    ----------
    name : str
    dtype : str
    line : callable
        Of as many arrays or tensors as there are operands.
    operands : int
    by_numpy : callable, optional
        NumPy's line, where it is another.
    """

    name: str
    dtype: str
    line: Line
    operands: int
    by_numpy: Line | None = None


def _in_order(x: Any) -> Any:
    """A transposed array in C order, as tensors are."""
    return np.ascontiguousarray(x) if type(x) is np.ndarray else x + 0


def _rows(x: Any, count: int) -> Any:
    return x[:count]


def _columns(x: Any, count: int) -> Any:
    return x[:, :count]


def _row(x: Any) -> Any:
    return x[0]


def _matrices(x: Any) -> Any:
    """Symmetric, positive definite matrices of 16 rows."""
    stack = np.reshape(x, (-1, 16, 16))
    return stack + np.swapaxes(stack, 1, 2) + 200 * np.eye(16, dtype=x.dtype)


#: Functions of arrays that are no ufuncs, as they are called; `x` is a matrix of 1,024 columns.
CALLS: dict[str, Line] = {
    **{
        f"{name}{suffix}": lambda x, name=name, along=along: getattr(np, name)(x, **along)
        for name in (
            "sum",
            "mean",
            "max",
            "min",
            "prod",
            "any",
            "all",
            "var",
            "std",
            "argmax",
            "argmin",
            "count_nonzero",
        )
        for suffix, along in (("(x)", {}), ("(x, axis=0)", {"axis": 0}), ("(x, axis=1)", {"axis": 1}))
    },
    **{
        f"{name}(x, axis=1)": lambda x, name=name: getattr(np, name)(x, axis=1)
        for name in ("cumsum", "cumprod", "sort", "nancumsum", "nancumprod", "median", "nanmedian", "ptp", "average")
    },
    **{
        f"{name}(x{comma})": lambda x, name=name, along=along: getattr(np, name)(x, **along)
        for name in ("nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd", "nanargmax", "nanargmin")
        for comma, along in (("", {}), (", axis=0", {"axis": 0}), (", axis=1", {"axis": 1}))
    },
    # NumPy's quick sort is quicker; the order of ties is not that of the stable one.
    "argsort(x, axis=1, stable)": lambda x: np.argsort(x, axis=1, kind="stable"),
    "partition(x, 512, axis=1)": lambda x: np.sum(np.partition(x, 512, axis=1), axis=1),
    "argpartition(x, 512, axis=1)": lambda x: np.argpartition(x, 512, axis=1),
    "quantile(x, 0.3, axis=1)": lambda x: np.quantile(x, 0.3, axis=1),
    "nanquantile(x, 0.3, axis=1)": lambda x: np.nanquantile(x, 0.3, axis=1),
    "percentile(x, 30, axis=1)": lambda x: np.percentile(x, 30, axis=1),
    "nanpercentile(x, 30, axis=1)": lambda x: np.nanpercentile(x, 30, axis=1),
    "triu(x)": lambda x: np.triu(x),
    "diag(x)": lambda x: np.diag(x) + 0,
    "diagonal(x)": lambda x: np.diagonal(x) + 0,
    "trace(x)": lambda x: np.trace(x),
    "fliplr(x)": lambda x: np.fliplr(x) + 0,
    "flipud(x)": lambda x: np.flipud(x) + 0,
    "rot90(x)": lambda x: np.ascontiguousarray(np.rot90(x)) if type(x) is np.ndarray else np.rot90(x) + 0,
    "swapaxes(x, 0, 1)": lambda x: _in_order(np.swapaxes(x, 0, 1)),
    "moveaxis(x, 0, 1)": lambda x: _in_order(np.moveaxis(x, 0, 1)),
    "broadcast_to(x[0], x.shape)": lambda x: np.broadcast_to(_row(x), (1024, 1024)) + 0,
    "zeros_like(x)": lambda x: np.zeros_like(x),
    "ones_like(x)": lambda x: np.ones_like(x),
    "full_like(x, 1)": lambda x: np.full_like(x, 1),
    "copy(x)": lambda x: np.copy(x),
    "nan_to_num(x)": lambda x: np.nan_to_num(x),
    "sinc(x)": lambda x: np.sinc(x),
    "convolve(x, 31)": lambda x: np.convolve(np.ravel(x), np.arange(31, dtype=x.dtype)),
    "delete(x, 1, axis=1)": lambda x: np.delete(x, 1, axis=1),
    "insert(x, 1, 0, axis=0)": lambda x: np.insert(x, 1, 0, axis=0),
    "repeat(x, counts)": lambda x: np.repeat(np.ravel(x), np.arange(1 << 20) % 3),
    "isin(x, three)": lambda x: np.isin(x, np.arange(3, dtype=x.dtype)),
    "isin(x, thousand)": lambda x: np.isin(x, np.arange(1000).astype(x.dtype)),
    "interp(x, points)": lambda x: np.interp(x, np.linspace(0, 100, 50), np.linspace(1, 2, 50) ** 2),
    "gradient(x, axis=1)": lambda x: np.gradient(x, axis=1),
    "cov(x[:64])": lambda x: np.cov(_rows(x, 64)),
    "corrcoef(x[:64])": lambda x: np.corrcoef(_rows(x, 64)),
    "dot(x[:64], x)": lambda x: np.dot(_rows(x, 64), x),
    "matvec(x, x[:64])": lambda x: np.matvec(x, _rows(x, 64)),
    "vecmat(x[:64], x)": lambda x: np.vecmat(_rows(x, 64), x),
    "vecdot(x, x)": lambda x: np.vecdot(x, x),
    "tensordot(x[:64], x, 1)": lambda x: np.tensordot(_rows(x, 64), x, 1),
    "cross(x)": lambda x: np.cross(np.reshape(_columns(x, 1023), (-1, 3)), np.reshape(_columns(x, 1023), (-1, 3))),
    "searchsorted(edges, x)": lambda x: np.searchsorted(np.arange(0, 100, 7, dtype=x.dtype), x),
    "digitize(x, edges)": lambda x: np.digitize(x, np.arange(0, 100, 7, dtype=x.dtype)),
    "histogram(x, edges)": lambda x: np.histogram(x, np.arange(0, 100, 7.0))[0],
    "take_along_axis(x, order, 1)": lambda x: np.take_along_axis(x, np.arange(1023, -1, -1)[None, :], 1),
    "maximum.accumulate(x, axis=1)": lambda x: np.maximum.accumulate(x, axis=1),
    "minimum.accumulate(x, axis=0)": lambda x: np.minimum.accumulate(x, axis=0),
    "add.reduceat(x, thousand)": lambda x: np.add.reduceat(np.ravel(x), np.arange(0, 1 << 20, 1049)),
    "maximum.reduceat(x, thousand)": lambda x: np.maximum.reduceat(np.ravel(x), np.arange(0, 1 << 20, 1049)),
    "vander(x, 4)": lambda x: np.vander(np.ravel(x), 4),
    "polyval(coefficients, x)": lambda x: np.polyval([0.5, -1.0, 2.0, 3.0], x),
    "linspace(x[0], x[0] + 1, 1024)": lambda x: np.linspace(_row(x), _row(x) + 1, 1024),
    "mean of sliding windows": lambda x: np.mean(np.lib.stride_tricks.sliding_window_view(x, 8, axis=1), axis=-1),
    "apply_along_axis(sum, 1, x)": lambda x: np.apply_along_axis(np.sum, 1, x),
    "unravel_index(x, shape)": lambda x: np.unravel_index(x.astype(int), (32, 64))[1],
    "lexsort((x, x > 3))": lambda x: np.lexsort((x, x > 3)),
    "weighted median of rows": lambda x: np.quantile(x, 0.5, axis=1, weights=x, method="inverted_cdf"),
    "fftshift(x)": lambda x: np.fft.fftshift(x),
    "unwrap(x, axis=1)": lambda x: np.unwrap(x, axis=1),
    "ediff1d(x)": lambda x: np.ediff1d(x),
    "cumulative_sum(x, axis=1)": lambda x: np.cumulative_sum(x, axis=1, include_initial=True),
    "block([[x, x], [x, x]])": lambda x: np.block([[x, x], [x, x]]),
    "resize(x, (512, 1000))": lambda x: np.resize(x, (512, 1000)),
    "vstack([x, x])": lambda x: np.vstack([x, x]),
    "hstack([x, x])": lambda x: np.hstack([x, x]),
    "dstack([x, x])": lambda x: np.dstack([x, x]),
    "column_stack([x, x])": lambda x: np.column_stack([x, x]),
    "append(x, x)": lambda x: np.append(x, x),
    "allclose(x, x)": lambda x: np.all(np.isclose(x, x)),
    "array_equal(x, x)": lambda x: np.all(x == x),
    "linalg.inv": lambda x: np.linalg.inv(_matrices(x)),
    "linalg.det": lambda x: np.linalg.det(_matrices(x)),
    "linalg.slogdet": lambda x: np.linalg.slogdet(_matrices(x))[1],
    "linalg.solve": lambda x: np.linalg.solve(_matrices(x), np.reshape(x, (-1, 16, 16))),
    "linalg.cholesky": lambda x: np.linalg.cholesky(_matrices(x)),
    "linalg.eigvalsh": lambda x: np.linalg.eigvalsh(_matrices(x)),
    "linalg.svdvals": lambda x: np.linalg.svdvals(_matrices(x)),
    "linalg.matrix_power": lambda x: np.linalg.matrix_power(np.reshape(x, (-1, 16, 16)) / 16, 3),
    "linalg.vector_norm(x, axis=1)": lambda x: np.linalg.vector_norm(x, axis=1),
    "linalg.matrix_norm": lambda x: np.linalg.matrix_norm(np.reshape(x, (-1, 16, 16))),
    "clip(x, 1, 3)": lambda x: np.clip(x, 1, 3),
    "where(x > 1, x, 2)": lambda x: np.where(x > 1, x, 2),
    "round(x)": lambda x: np.round(x),
    "transpose(x)": lambda x: _in_order(np.transpose(x)),
    "reshape(x, -1)": lambda x: np.reshape(x, -1) + 0,
    "flip(x, 1)": lambda x: np.flip(x, 1) + 0,
    "roll(x, 3, axis=1)": lambda x: np.roll(x, 3, axis=1),
    "concatenate([x, x])": lambda x: np.concatenate([x, x]),
    "stack([x, x])": lambda x: np.stack([x, x]),
    "repeat(x, 2, axis=1)": lambda x: np.repeat(x, 2, axis=1),
    "tile(x, 2)": lambda x: np.tile(x, 2),
    "pad(x, 1)": lambda x: np.pad(x, 1),
    "take(x, rows, axis=0)": lambda x: np.take(x, np.arange(1023, -1, -1), axis=0),
    "take(x, columns, axis=1)": lambda x: np.take(x, np.arange(1023, -1, -1), axis=1),
    "tril(x)": lambda x: np.tril(x),
    "diff(x, axis=1)": lambda x: np.diff(x, axis=1),
    "einsum('ij,ij->i', x, x)": lambda x: np.einsum("ij,ij->i", x, x),
    "linalg.norm(x)": lambda x: np.linalg.norm(x),
    "outer(x[0], x[0])": lambda x: np.outer(_row(x), _row(x)),
    "isclose(x, x + 1)": lambda x: np.isclose(x, x + 1),
    "x.astype(float64)": lambda x: x.astype("float64"),
    "x.astype(float32)": lambda x: x.astype("float32"),
    "x.astype(int32)": lambda x: x.astype("int32"),
}

#: Python's operators with numbers, whose lines have no function.
OPERATORS: dict[str, Line] = {
    **{f"x ** {n}": lambda x, n=n: x**n for n in (2, 3, 4, 0.5, -1, -2, -0.5, 1.5, 2.5)},
    "x // 7": lambda x: x // 7,
    "x % 7": lambda x: x % 7,
    "x / 7": lambda x: x / 7,
    "7 / x": lambda x: 7 / x,
    "x + 1": lambda x: x + 1,
    "x * 2": lambda x: x * 2,
    "1 - x": lambda x: 1 - x,
    "x > 1": lambda x: x > 1,
    "x == 1": lambda x: x == 1,
}


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _softmax(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=1, keepdims=True))
    return e / np.sum(e, axis=1, keepdims=True)


def _normalised(x: Any) -> Any:
    centred = x - np.mean(x, axis=1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + 1e-5)


def _d1(s: Any, k: Any) -> Any:
    return (np.log(s / k) + 0.03 * 0.5) / (0.2 * 0.5**0.5)


#: Lines of several operations, of up to three matrices of floats.
IDIOMS: dict[str, Line] = {
    "a*x + y": lambda x, y: 2.5 * x + y,
    "x*y + z": lambda x, y, z: x * y + z,
    "(x - y)**2": lambda x, y: (x - y) ** 2,
    "mean((x - 1)**2)": lambda x: np.mean((x - 1) ** 2),
    "mean((x - y)**2)": lambda x, y: np.mean((x - y) ** 2),
    "mean(abs(x - y))": lambda x, y: np.mean(np.abs(x - y)),
    "sqrt(x**2 + y**2)": lambda x, y: np.sqrt(x**2 + y**2),
    "sqrt(sum(x**2))": lambda x: np.sqrt(np.sum(x**2)),
    "x / sqrt(sum(x**2, 1))": lambda x: x / np.sqrt(np.sum(x**2, axis=1, keepdims=True)),
    "sin(x) * cos(x)": lambda x: np.sin(x) * np.cos(x),
    "sin(x)**2 + cos(x)**2": lambda x: np.sin(x) ** 2 + np.cos(x) ** 2,
    "exp(-x**2 / 2)": lambda x: np.exp(-(x**2) / 2),
    "exp(-x) * sin(y)": lambda x, y: np.exp(-x) * np.sin(y),
    "log(1 + exp(x))": lambda x: np.log(1 + np.exp(x)),
    "log(x / y)": lambda x, y: np.log(x / y),
    "x * log(x)": lambda x: x * np.log(x),
    "1 / (1 + x**2)": lambda x: 1 / (1 + x**2),
    "x / (1 + abs(x))": lambda x: x / (1 + np.abs(x)),
    "sigmoid": _sigmoid,
    "x * sigmoid(x)": lambda x: x * _sigmoid(x),
    "tanh(x) * y": lambda x, y: np.tanh(x) * y,
    "GELU by tanh": lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.minimum(np.maximum(x, 0), 6),
    "leaky relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "ELU": lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1),
    "clip(x, -1, 1)": lambda x: np.clip(x, -1, 1),
    "clip(x * 2, -1, 1) + y": lambda x, y: np.clip(x * 2, -1, 1) + y,
    "hard sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "Huber's loss": lambda x, y: np.where(np.abs(x - y) < 1, (x - y) ** 2 / 2, np.abs(x - y) - 0.5),
    "hinge loss": lambda x, y: np.mean(np.maximum(0, 1 - x * y)),
    "log cosh": lambda x, y: np.mean(np.log(np.cosh(x - y))),
    "cross entropy": lambda x, y: -np.mean(y * np.log(x) + (1 - y) * np.log(1 + x)),
    "softmax": _softmax,
    "log softmax": lambda x: (
        x - np.max(x, 1, keepdims=True) - np.log(np.sum(np.exp(x - np.max(x, 1, keepdims=True)), 1, keepdims=True))
    ),
    "entropy of softmax": lambda x: -np.sum(_softmax(x) * np.log(_softmax(x) + 1e-9), axis=1),
    "layer norm": _normalised,
    "RMS norm": lambda x: x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + 1e-5),
    "batch norm": lambda x: (x - np.mean(x, 0)) / np.sqrt(np.var(x, 0) + 1e-5),
    "standardised columns": lambda x: (x - np.mean(x, 0)) / np.std(x, 0),
    "standardised": lambda x: (x - np.mean(x)) / np.std(x),
    "to [0, 1]": lambda x: (x - np.min(x)) / (np.max(x) - np.min(x)),
    "cosine of rows": lambda x, y: np.sum(x * y, 1) / np.sqrt(np.sum(x**2, 1) * np.sum(y**2, 1)),
    "squared distances of rows": lambda x, y: np.sum((x - y) ** 2, axis=1),
    "largest distance of rows": lambda x, y: np.max(np.abs(x - y), axis=1),
    "weighted mean": lambda x, y: np.sum(x * y, axis=1) / np.sum(y, axis=1),
    "variance by hand": lambda x: np.mean(x**2) - np.mean(x) ** 2,
    "covariance": lambda x, y: np.mean((x - np.mean(x)) * (y - np.mean(y))),
    "Horner's polynomial": lambda x: ((0.5 * x + 0.25) * x - 1.5) * x + 2,
    "powers' polynomial": lambda x: 0.5 * x**3 + 0.25 * x**2 - 1.5 * x + 2,
    "x**2.5": lambda x: x**2.5,
    "x**y": lambda x, y: x**y,
    "x**3 - 2*x + 1": lambda x: x**3 - 2 * x + 1,
    "Lennard-Jones": lambda x: 4 * (x**-2) ** 3 * ((x**-2) ** 3 - 1),
    "gravity": lambda x, y: x / (x**2 + y**2 + 0.01) ** 1.5,
    "Gauss's bell": lambda x: np.exp(-((x - 1) ** 2) / (2 * 0.5**2)) / (0.5 * 2.5066282746),
    "damped wave": lambda x, y: np.exp(-0.1 * x) * np.cos(2 * x + y),
    "haversine": lambda x, y: np.sin((x - y) / 2) ** 2 + np.cos(x) * np.cos(y) * np.sin(x / 2) ** 2,
    "polar": lambda x, y: np.arctan2(y, x) + np.hypot(x, y),
    "angle wrapped": lambda x: (x + np.pi) % (2 * np.pi) - np.pi,
    "Mandelbrot's step": lambda x, y: x * x - y * y + 0.3,
    "logistic map": lambda x: 3.7 * x * (1 - x),
    "Van der Pol": lambda x, y: 1.5 * (1 - x**2) * y - x,
    "Lotka and Volterra": lambda x, y: x * (1.1 - 0.4 * y),
    "heat, one step": lambda x: (
        x + 0.1 * (np.roll(x, 1, 0) + np.roll(x, -1, 0) + np.roll(x, 1, 1) + np.roll(x, -1, 1) - 4 * x)
    ),
    "d1 of Black and Scholes": _d1,
    "logistic of d1": lambda x, y: x * _sigmoid(1.702 * _d1(x, y)),
    "Michaelis and Menten": lambda x: 2.5 * x / (0.7 + x),
    "Hill": lambda x: x**2 / (0.5 + x**2),
    "Planck": lambda x: x**3 / (np.exp(x) - 1),
    "decibels": lambda x: 20 * np.log10(np.abs(x) + 1e-9),
    "gamma correction": lambda x: np.clip(x, 0, 1) ** 0.45,
    "luminance": lambda x, y, z: 0.2126 * x + 0.7152 * y + 0.0722 * z,
    "alpha blending": lambda x, y, z: z * x + (1 - z) * y,
    "threshold": lambda x: np.where(x > 0.5, 1.0, 0.0),
    "soft threshold": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    "count above": lambda x: np.sum(x > 1),
    "share above": lambda x: np.mean(x > 1),
    "mean of the positive": lambda x: np.sum(np.where(x > 1, x, 0)) / np.sum(x > 1),
    "no nan": lambda x: np.where(np.isnan(x), 0, x),
    "any nan": lambda x: np.any(np.isnan(x)),
    "all finite": lambda x: np.all(np.isfinite(x)),
    "all equal": lambda x, y: np.all(x == y),
    "between": lambda x: (x > 1) & (x < 2),
    "largest of three": lambda x, y, z: np.maximum(np.maximum(x, y), z),
    "median of three": lambda x, y, z: np.maximum(np.minimum(x, y), np.minimum(np.maximum(x, y), z)),
    "x - mean(x, 1)": lambda x: x - np.mean(x, axis=1, keepdims=True),
    "x - max(x, 0)": lambda x: x - np.max(x, axis=0),
    "x.T + y": lambda x, y: x.T + y,
    "momentum": lambda x, y: 0.9 * x - 0.01 * y,
    "second moment": lambda x, y: 0.999 * x + 0.001 * y**2,
    "Adam's step": lambda x, y, z: x - 0.001 * y / (np.sqrt(z) + 1e-8),
    "weight decay": lambda x, y: x - 0.01 * (y + 0.0005 * x),
    "L2 penalty": lambda x: 0.5 * np.sum(x**2),
    "L1 penalty": lambda x: np.sum(np.abs(x)),
    "Poisson's loss": lambda x, y: np.mean(x - y * np.log(x)),
    "Kullback and Leibler": lambda x, y: np.sum(x * np.log(x / y)),
    "geometric mean": lambda x: np.exp(np.mean(np.log(x))),
    "harmonic mean": lambda x: 1 / np.mean(1 / x),
    "signal to noise": lambda x: np.mean(x) / np.std(x),
    "smooth step": lambda x: np.clip(x, 0, 1) ** 2 * (3 - 2 * np.clip(x, 0, 1)),
}


#: Functions of ours, beside NumPy's formulas.
FORMULAS: dict[str, tuple[Line, Line]] = {
    "sig": (lambda x: f.sig(x), lambda x: _sigmoid(x)),
    "sig2": (lambda x: f.sig2(x), lambda x: 1 / (1 + np.exp2(-x))),
    "tanh2": (lambda x: f.tanh2(x), lambda x: 1 - 2 / (1 + np.exp2(2 * x))),
    "sech2": (lambda x: f.sech2(x), lambda x: 1 / np.cosh(x) ** 2),
    "safelog": (lambda x: f.safelog(x), lambda x: np.log(np.maximum(x, np.exp(-50.0)))),
    "relu": (lambda x: f.relu(x), lambda x: np.maximum(x, 0)),
    "softplus": (lambda x: f.softplus(x), lambda x: np.logaddexp(x, 0)),
    "log_sigmoid": (lambda x: f.log_sigmoid(x), lambda x: -np.logaddexp(-x, 0)),
    "softmax": (lambda x: f.softmax(x, axis=1), lambda x: _softmax(x)),
    "log_softmax": (lambda x: f.log_softmax(x, axis=1), lambda x: np.log(_softmax(x))),
    "logsumexp": (lambda x: f.logsumexp(x, axis=1), lambda x: np.log(np.sum(np.exp(x), axis=1, keepdims=True))),
    "standardize": (lambda x: f.standardize(x, axis=1), lambda x: _normalised(x)),
    "layer_norm": (lambda x: f.layer_norm(x), lambda x: _normalised(x)),
    "rms_norm": (lambda x: f.rms_norm(x), lambda x: x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + 1e-5)),
    "exclusive_prod": (
        lambda x: f.exclusive_prod(1 + x * 1e-4, axis=1),
        lambda x: np.prod(1 + x * 1e-4, axis=1, keepdims=True) / (1 + x * 1e-4),
    ),
    "max_pool": (
        lambda x: f.max_pool(f.reshape(x, (1, 1, 1024, 1024)), 2),
        lambda x: x.reshape(1, 1, 512, 2, 512, 2).max((3, 5)),
    ),
    "avg_pool": (
        lambda x: f.avg_pool(f.reshape(x, (1, 1, 1024, 1024)), 2),
        lambda x: x.reshape(1, 1, 512, 2, 512, 2).mean((3, 5)),
    ),
    "topk": (lambda x: f.topk(x, 8, axis=1)[0], lambda x: np.sort(x, axis=1)[:, :-9:-1]),
    "onehot": (
        lambda x: f.onehot(f.cast(x.at[0], "int64"), 1024),
        lambda x: np.eye(1024, dtype="float32")[x[0].astype("int64")],
    ),
    "gather": (
        lambda x: f.gather(x, (np.arange(1023, -1, -1), slice(None))),
        lambda x: x[np.arange(1023, -1, -1)],
    ),
    "embedding": (lambda x: f.embedding(x, np.arange(1023, -1, -1)), lambda x: x[np.arange(1023, -1, -1)]),
    "scatter": (lambda x: f.scatter(x, (np.arange(9),), 1), lambda x: _written(x, np.arange(9))),
}


def _written(x: Any, rows: Any) -> Any:
    copy = x.copy()
    copy[rows] = 1
    return copy


def without_rows() -> list[str]:
    """The functions of docs/functions.md without a row: views, and functions that NumPy cannot write in a line."""
    known = {function.__name__ for function in NUMPY_FUNCTIONS if isinstance(function, np.ufunc)}
    known |= {re.split(r"[( ]", name.removeprefix("linalg."))[0] for name in (*CALLS, *FORMULAS)}
    ours = {function.__name__ for function in NUMPY_FUNCTIONS} | set(FUNCTIONS)
    aliases = {name for name in ours if name in FUNCTIONS and any(FUNCTIONS[name] is FUNCTIONS.get(k) for k in known)}
    return sorted(ours - known - aliases)


def functions() -> Iterator[tuple[str, Line, int]]:
    """Rows of ufuncs, on arrays and with a number; then of other functions, and of operators."""
    for function in NUMPY_FUNCTIONS:
        if not isinstance(function, np.ufunc) or function.signature:  # products are rows of CALLS
            continue
        name = function.__name__
        if function.nin == 1 and function.nout == 1:
            yield f"{name}(x)", lambda x, function=function: function(x), 1
        elif function.nin == 2 and function.nout == 1:
            yield f"{name}(x, y)", lambda x, y, function=function: function(x, y), 2
            yield f"{name}(x, 3)", lambda x, function=function: function(x, 3), 1
    for table in (CALLS, OPERATORS):
        for name, line in table.items():
            yield name, line, 1


def rows() -> Iterator[Row]:
    """All rows; the names of gradients begin with "grad"."""
    for name, line, operands in functions():
        for dtype in DTYPES:
            yield Row(name, dtype, line, operands)
    for name, (line, by_numpy) in FORMULAS.items():
        for dtype in ("float32", "float64"):
            yield Row(f"{name} beside its formula", dtype, line, 1, by_numpy)
    for name, line in IDIOMS.items():
        operands = line.__code__.co_argcount
        yield Row(name, "float32", line, operands)
        yield Row(name, "float64", line, operands)
        yield Row(f"grad {name}", "float32", lambda *xs, line=line: grad(np.sum(line(*xs)), xs[0]), operands)


def operands_of(row: Row) -> list[np.ndarray]:
    """Operands between 1 and 3, where all functions but a few inverse ones are real; integers up to 100."""
    rng, shape = np.random.default_rng(1), (ELEMENTS // 1024, 1024)
    if row.dtype == "bool":
        return [rng.random(shape) < 0.5 for _ in range(row.operands)]
    if row.dtype[0] in "iu":
        return [
            rng.integers(1, 7 if "shift" in row.name else 100, shape).astype(row.dtype) for _ in range(row.operands)
        ]
    low, high = (0.1, 0.9) if any(part in row.name for part in ("arcsin(", "arccos(", "arctanh(")) else (1.0, 3.0)
    return [rng.uniform(low, high, shape).astype(row.dtype) for _ in range(row.operands)]


def processor_seconds_of(function: Callable[[], Any], calls: int) -> float:
    """CPU seconds of a call, of all threads of this process, averaged over `calls` calls."""
    start = time.process_time()
    for _ in range(calls):
        function()
    return (time.process_time() - start) / calls


def compare(found: np.ndarray, wanted: np.ndarray, dtype: np.dtype) -> None:
    """Compare with NumPy's result, within the rounding of the result's or the operands' dtype, whichever is coarser.

    Raises
    ------
    AssertionError
        If they differ.
    """
    relative = 0.0
    if wanted.dtype.kind == "f":
        relative = 4000 * float(max(np.finfo(each).eps for each in (wanted.dtype, dtype) if each.kind == "f"))
    if wanted.dtype == np.float16:  # NumPy's sums of squares overflow there
        found, wanted = (each[np.isfinite(wanted)] for each in (found, wanted))
    # A sum of many numbers that cancel is 0, but for rounding.
    np.testing.assert_allclose(found, wanted, rtol=relative, atol=relative)


def measured(row: Row, be: Any, rounds: int, is_busy: bool = False) -> dict[str, Any] | None:
    """The seconds of NumPy and of op-tree; None if NumPy cannot run the line.

    On a busy machine (`is_busy`) they are CPU seconds, and the minimum of the rounds.

    Raises
    ------
    AssertionError
        If the results differ.
    """
    arrays = operands_of(row)
    tensors = [be.array(x, row.dtype) for x in arrays]
    is_gradient, numpys_line = row.name.startswith("grad "), row.by_numpy or row.line
    if not is_gradient:
        try:
            numpys_line(*arrays)
        except (TypeError, ValueError, OverflowError, np.exceptions.AxisError, np.linalg.LinAlgError):
            return None
    tree = row.line(*tensors)
    program = flatten([tree])

    def by_numpy() -> Any:
        if is_gradient:
            return evaluate(program, [be.value_of(x) for x in program.leaves])[0]
        return numpys_line(*arrays)

    wanted = np.asarray(by_numpy())
    out = be.empty(wanted.shape, wanted.dtype)
    assignment = f.assign(out, tree)
    for _ in range(3):
        be.execute(assignment)
    compare(out.get(), wanted, arrays[0].dtype)
    clock = processor_seconds_of if is_busy else seconds_of
    calls = max(1, round(TURN / seconds_of(by_numpy, 1)))
    seconds = rounds_of([lambda: be.execute(assignment), by_numpy], rounds, calls, PAUSE, clock=clock)
    ours, numpys = (min(each) if is_busy else statistics.median(each) for each in seconds)
    return {"line": row.name, "dtype": row.dtype, "seconds": ours, "numpy": numpys, "ratio": ours / numpys}


def reason_of(result: dict[str, Any]) -> str:
    """Why a line takes longer than NumPy's, if it is known."""
    name = f"{result['line']} {result['dtype']}"
    return next((reason for pattern, reason in REASONS.items() if re.search(pattern, name)), "")


def table(be: Any, rounds: int, wanted: str, is_busy: bool = False) -> tuple[list[dict[str, Any]], list[str]]:
    """The measured rows whose name matches a pattern, worst first; and the other ones, with the reason."""
    found, left_out = [], []
    with np.errstate(all="ignore"):
        for row in rows():
            if not re.search(wanted, f"{row.name} {row.dtype}"):
                continue
            try:
                result = measured(row, be, rounds, is_busy)
            except (OptreeError, AssertionError, TypeError, ValueError, IndexError, AttributeError) as error:
                left_out.append(
                    f"{row.name} of {row.dtype}: {type(error).__name__}: {' '.join(str(error).split())[:90]}"
                )
                continue
            if result is not None:
                found.append(result)
    return sorted(found, key=lambda result: -result["ratio"]), left_out


def main(arguments: list[str] | None = None) -> None:
    """Measure and print, and write what was measured."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each line (15)")
    parser.add_argument("--only", default="", help="a pattern that names and dtypes have: --only 'clip.*float32'")
    parser.add_argument(
        "--busy", action="store_true", help="on a busy machine: one thread, its processor time, the least of the rounds"
    )
    parser.add_argument("--save", type=Path, help="write the table as JSON into this folder")
    options = parser.parse_args(arguments)
    if options.save and not options.save.is_dir():
        parser.error(f"--save: {options.save} is no folder")
    be = gen_backend("cpu", jit=True)
    with override(**{"num_threads": 1} if options.busy else {}):
        found, left_out = table(be, options.rounds, options.only, options.busy)
    above = [result for result in found if result["ratio"] > LISTED]
    unexplained = sum(not reason_of(result) for result in above)
    print(f"{len(found)} lines at {ELEMENTS:,} elements, in multiples of NumPy's time")
    print(f"{len(above)} take longer, {unexplained} of them for no known reason")
    for result in found if options.only else above:
        times = f"{result['ratio']:6.2f}  {result['seconds'] * 1e3:8.3f} ms"
        reason = reason_of(result) if result["ratio"] > LISTED else ""
        print(f"  {times}  {result['dtype']:<8} {result['line']:<30}  {reason}".rstrip())
    for line in left_out:
        print(f"  not measured: {line}")
    if not options.only:
        print("  without a row: " + ", ".join(without_rows()))
    if options.save:
        today = datetime.date.today().isoformat()
        facts = {"numpy": np.__version__, "machine": platform.machine(), "elements": ELEMENTS, "rounds": options.rounds}
        facts["seconds"] = "processor, one thread, least" if options.busy else "median"
        path = options.save / f"idioms-{today}.json"
        facts["not measured"] = left_out
        lines = ",\n".join(json.dumps(result) for result in found)
        path.write_text(f'{json.dumps(facts, indent=1)[:-2]},\n "rows": [\n{lines}\n]}}\n')
        print(f"written to {path}")


if __name__ == "__main__":
    main()
