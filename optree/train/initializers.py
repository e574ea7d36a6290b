"""Initializers: new tensors of first weights, drawn from the backend's random state (Philox).

Each is a function of a backend and a shape, and runs at once. The inputs and outputs of a weight are counted as for
``be.dot(x, w)``: a matrix has a row for each input and a column for each output. Of more axes, the last two are these,
and the others (a kernel's height and width) multiply both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.errors import ParameterError
from optree.registry import f
from optree.tree.tensor import Tensor

#: The deviation of a normal distribution's draws of at most 2 deviations, as a share of its own.
TRUNCATED = 0.87962566103423978

#: Gains by name: the factor that makes up for a nonlinearity's shrinking of the deviation of its operand.
GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}


def zeros(be: Any, shape: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    """Zeros, as biases begin with."""
    return _new(be, shape, dtype, name).fill(0)


def ones(be: Any, shape: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    """Ones, as a normalisation's gains begin with."""
    return _new(be, shape, dtype, name).fill(1)


def uniform(
    be: Any, shape: Any, low: float = -0.05, high: float = 0.05, dtype: Any = None, name: str | None = None
) -> Tensor:
    """Uniform draws of [low, high)."""
    found = _new(be, shape, dtype, name)
    found[...] = be.uniform(low, high, size=found.shape, dtype=found.dtype)
    return found


def normal(
    be: Any, shape: Any, mean: float = 0.0, deviation: float = 0.05, dtype: Any = None, name: str | None = None
) -> Tensor:
    """Normal draws."""
    found = _new(be, shape, dtype, name)
    found[...] = be.normal(mean, deviation, size=found.shape, dtype=found.dtype)
    return found


def truncated_normal(
    be: Any,
    shape: Any,
    mean: float = 0.0,
    deviation: float = 0.05,
    bound: float = 2.0,
    dtype: Any = None,
    name: str | None = None,
) -> Tensor:
    """Normal draws of at most `bound` deviations from the mean: what is beyond is drawn again.

    Their own deviation is less, of 2 by a factor of 0.88.

    Raises
    ------
    ParameterError
        If `bound` is less than 0.1, beyond which nearly all draws are.
    """
    if bound < 0.1:
        raise ParameterError(f"truncated_normal: bound is 0.1 deviations or more, not {bound}")
    found = _new(be, shape, dtype, name)
    draw = be.standard_normal(found.shape, found.dtype)
    beyond = f.gt(f.abs(found), bound)
    found[...] = draw
    again = f.where(beyond, be.standard_normal(found.shape, found.dtype), found)
    is_beyond = f.any(beyond, keepdims=False)
    while found.size and is_beyond.item():
        found[...] = again
    found[...] = found * deviation + mean
    return found


def glorot_uniform(be: Any, shape: Any, gain: Any = 1.0, dtype: Any = None, name: str | None = None) -> Tensor:
    """Uniform draws of variance ``gain**2 * 2 / (inputs + outputs)`` (Glorot and Bengio, 2010; also Xavier's)."""
    inputs, outputs = _fans(shape, "glorot_uniform")
    bound = _gain(gain) * math.sqrt(6 / (inputs + outputs))
    return uniform(be, shape, -bound, bound, dtype, name)


def glorot_normal(be: Any, shape: Any, gain: Any = 1.0, dtype: Any = None, name: str | None = None) -> Tensor:
    """Normal draws of variance ``gain**2 * 2 / (inputs + outputs)`` (Glorot and Bengio, 2010; also Xavier's)."""
    inputs, outputs = _fans(shape, "glorot_normal")
    return normal(be, shape, 0.0, _gain(gain) * math.sqrt(2 / (inputs + outputs)), dtype, name)


def kaiming_uniform(
    be: Any, shape: Any, gain: Any = "relu", fan: str = "inputs", dtype: Any = None, name: str | None = None
) -> Tensor:
    """Uniform draws of variance ``gain**2 / inputs`` (He et al., 2015).

    Parameters
    ----------
    gain : float or str
        ``'relu'`` is the root of 2; see `GAINS`.
    fan : {'inputs', 'outputs'}
        The divisor: ``'outputs'`` preserves the variance of the backward pass.
    """
    bound = _gain(gain) * math.sqrt(3 / _fan(shape, fan, "kaiming_uniform"))
    return uniform(be, shape, -bound, bound, dtype, name)


def kaiming_normal(
    be: Any, shape: Any, gain: Any = "relu", fan: str = "inputs", dtype: Any = None, name: str | None = None
) -> Tensor:
    """Normal draws of variance ``gain**2 / inputs`` (He et al., 2015); parameters as of `kaiming_uniform`."""
    return normal(be, shape, 0.0, _gain(gain) / math.sqrt(_fan(shape, fan, "kaiming_normal")), dtype, name)


def lecun_normal(be: Any, shape: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    """Truncated normal draws of variance ``1 / inputs`` (LeCun et al., 1998)."""
    deviation = 1 / math.sqrt(_fan(shape, "inputs", "lecun_normal")) / TRUNCATED
    return truncated_normal(be, shape, 0.0, deviation, 2.0, dtype, name)


def orthogonal(be: Any, shape: Any, gain: Any = 1.0, dtype: Any = None, name: str | None = None) -> Tensor:
    """Matrices with orthonormal rows or columns, whichever are fewer, uniform over all such (Saxe et al., 2014).

    Of more than two axes, all but the last are one.
    """
    found = _new(be, shape, dtype, name)
    if found.ndim < 2:
        raise ParameterError(f"orthogonal: a matrix has two axes or more, and the shape is {found.shape}")
    rows, columns = math.prod(found.shape[:-1]), found.shape[-1]
    wide = np.dtype(np.float32) if found.dtype.itemsize < 4 else found.dtype
    draws = be.standard_normal((max(rows, columns), min(rows, columns)), wide)
    q, r = f.qr(draws)
    signs = f.where(f.lt(f.diagonal(r), 0), -1, 1)  # without them, LAPACK's choice of signs is not uniform
    matrix = q * f.cast(signs, wide)
    matrix = f.transpose(matrix) if rows < columns else matrix
    found[...] = f.cast(f.reshape(matrix, found.shape) * _gain(gain), found.dtype)
    return found


def _new(be: Any, shape: Any, dtype: Any, name: str | None) -> Tensor:
    return be.empty(shape, be.datatype if dtype is None else dtype, name)


def _gain(gain: Any) -> float:
    if isinstance(gain, str):
        if gain not in GAINS:
            raise ParameterError(f"gain is a number or one of {', '.join(GAINS)}, not {gain!r}")
        return GAINS[gain]
    return float(gain)


def _fans(shape: Any, what: str) -> tuple[float, float]:
    """The numbers of inputs and outputs of a weight."""
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if len(sizes) < 2:
        raise ParameterError(f"{what}: a weight has inputs and outputs, two axes or more, and the shape is {sizes}")
    others = math.prod(sizes[:-2])
    return max(sizes[-2] * others, 1), max(sizes[-1] * others, 1)


def _fan(shape: Any, fan: str, what: str) -> float:
    if fan not in ("inputs", "outputs"):
        raise ParameterError(f"{what}: fan is 'inputs' or 'outputs', not {fan!r}")
    return _fans(shape, what)[fan == "outputs"]
