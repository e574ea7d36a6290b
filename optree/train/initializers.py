"""Initializers: new tensors of initial weights, drawn from the backend's random state (Philox).

Each is a function of a backend and a shape, and runs at once. A matrix has a row for each input and a column for each
output, as for ``be.dot(x, w)``. For more than two axes, `layout` names the axes of inputs (I) and outputs (O), as
`weights_layout` of convolutions does: ``"OIHW"`` is the default of ``be.conv``. The sizes of the other axes multiply
both fans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.errors import OperandError, ParameterError, describe
from optree.networks.windows import layout_of
from optree.op.parameters import complete
from optree.registry import f
from optree.tree.tensor import Tensor
from optree.tree.types import DType

Shape = int | Sequence[int]

#: A factor, or the name of a nonlinearity in `GAINS`.
Gain = float | str

#: The standard deviation of a standard normal distribution truncated at 2 standard deviations.
TRUNCATED = 0.87962566103423978

#: Gains by name of the nonlinearity: the factor that compensates for its reduction of the standard deviation.
GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}


def zeros(be: Any, shape: Shape, dtype: DType = None, name: str | None = None) -> Tensor:
    """A new tensor of zeros, as for biases.

    Examples
    --------
    >>> optree.train.initializers.zeros(be, 2, name="b").get()
    array([0., 0.], dtype=float32)
    """
    return _new(be, shape, dtype, name).fill(0)


def ones(be: Any, shape: Shape, dtype: DType = None, name: str | None = None) -> Tensor:
    """A new tensor of ones, as for the gains of a normalisation.

    Examples
    --------
    >>> optree.train.initializers.ones(be, 2, name="gain").get()
    array([1., 1.], dtype=float32)
    """
    return _new(be, shape, dtype, name).fill(1)


def uniform(
    be: Any, shape: Shape, low: float = -0.05, high: float = 0.05, dtype: DType = None, name: str | None = None
) -> Tensor:
    """Uniform draws from [low, high).

    Examples
    --------
    >>> w = optree.train.initializers.uniform(be, (2, 3), -0.1, 0.1)
    >>> bool(np.all(np.abs(w.get()) <= 0.1))
    True
    """
    found = _new(be, shape, dtype, name)
    found[...] = be.uniform(low, high, size=found.shape, dtype=found.dtype)
    return found


def normal(
    be: Any, shape: Shape, mean: float = 0.0, deviation: float = 0.05, dtype: DType = None, name: str | None = None
) -> Tensor:
    """Normal draws.

    Examples
    --------
    >>> optree.train.initializers.normal(be, (2, 3), deviation=0.02).shape
    (2, 3)
    """
    found = _new(be, shape, dtype, name)
    found[...] = be.normal(mean, deviation, size=found.shape, dtype=found.dtype)
    return found


def truncated_normal(
    be: Any,
    shape: Shape,
    mean: float = 0.0,
    deviation: float = 0.05,
    bound: float = 2.0,
    dtype: DType = None,
    name: str | None = None,
) -> Tensor:
    """Truncated normal draws: values more than `bound` standard deviations from the mean are drawn again.

    Their standard deviation is smaller than that of the normal distribution: 0.88 times for a bound of 2.

    Parameters
    ----------
    bound : float
        In deviations from the mean.

    Raises
    ------
    ParameterError
        If `bound` is less than 0.1, where nearly all draws would be rejected.

    Examples
    --------
    >>> truncated_normal(be, (3, 2), name="w").shape
    (3, 2)
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


def glorot_uniform(
    be: Any, shape: Shape, gain: Gain = 1.0, dtype: DType = None, name: str | None = None, layout: str | None = None
) -> Tensor:
    """Uniform draws of variance ``gain**2 * 2 / (inputs + outputs)`` (Glorot and Bengio, 2010; also Xavier's).

    Examples
    --------
    >>> glorot_uniform(be, (3, 2), name="w").shape
    (3, 2)
    """
    inputs, outputs = _fans(shape, layout, "glorot_uniform")
    bound = _gain(gain) * math.sqrt(6 / (inputs + outputs))
    return uniform(be, shape, -bound, bound, dtype, name)


def glorot_normal(
    be: Any, shape: Shape, gain: Gain = 1.0, dtype: DType = None, name: str | None = None, layout: str | None = None
) -> Tensor:
    """Normal draws of variance ``gain**2 * 2 / (inputs + outputs)`` (Glorot and Bengio, 2010; also Xavier's).

    Examples
    --------
    >>> glorot_normal(be, (3, 2), name="w").shape
    (3, 2)
    """
    inputs, outputs = _fans(shape, layout, "glorot_normal")
    return normal(be, shape, 0.0, _gain(gain) * math.sqrt(2 / (inputs + outputs)), dtype, name)


def kaiming_uniform(
    be: Any,
    shape: Shape,
    gain: Gain = "relu",
    fan: str = "inputs",
    dtype: DType = None,
    name: str | None = None,
    layout: str | None = None,
) -> Tensor:
    """Uniform draws of variance ``gain**2 / inputs`` (He et al., 2015).

    Raises
    ------
    ParameterError, OperandError
        If the shape has fewer than two axes, or more than two and `layout` is not given.

    Examples
    --------
    >>> from backends import gen_backend
    >>> be = gen_backend("cpu", rng_seed=0)
    >>> filters = kaiming_uniform(be, (16, 3, 5, 5), layout="OIHW").get()  # 75 inputs
    >>> bool(abs(filters).max() <= (2 * 3 / 75) ** 0.5)
    True
    """
    bound = _gain(gain) * math.sqrt(3 / _fan(shape, layout, fan, "kaiming_uniform"))
    return uniform(be, shape, -bound, bound, dtype, name)


def kaiming_normal(
    be: Any,
    shape: Shape,
    gain: Gain = "relu",
    fan: str = "inputs",
    dtype: DType = None,
    name: str | None = None,
    layout: str | None = None,
) -> Tensor:
    """Normal draws of variance ``gain**2 / inputs`` (He et al., 2015); for the parameters see `kaiming_uniform`.

    Examples
    --------
    >>> kaiming_normal(be, (3, 2), name="w").shape
    (3, 2)
    """
    return normal(be, shape, 0.0, _gain(gain) / math.sqrt(_fan(shape, layout, fan, "kaiming_normal")), dtype, name)


def lecun_normal(
    be: Any, shape: Shape, dtype: DType = None, name: str | None = None, layout: str | None = None
) -> Tensor:
    """Truncated normal draws of variance ``1 / inputs`` (LeCun et al., 1998).

    Examples
    --------
    >>> lecun_normal(be, (3, 2), name="w").shape
    (3, 2)
    """
    deviation = 1 / math.sqrt(_fan(shape, layout, "inputs", "lecun_normal")) / TRUNCATED
    return truncated_normal(be, shape, 0.0, deviation, 2.0, dtype, name)


def orthogonal(
    be: Any, shape: Shape, gain: Gain = 1.0, dtype: DType = None, name: str | None = None, layout: str | None = None
) -> Tensor:
    """A random matrix with orthonormal rows or columns, whichever are fewer, uniformly drawn (Saxe et al., 2014).

    For more than two axes, all axes but the outputs form the rows.

    Examples
    --------
    >>> w = orthogonal(be, (3, 2)).get()
    >>> np.allclose(w.T @ w, np.eye(2), atol=1e-5)
    True
    """
    outputs = _axes(shape, layout, "orthogonal").index("O")
    found = _new(be, shape, dtype, name)
    columns = found.shape[outputs]
    moved = (*(size for i, size in enumerate(found.shape) if i != outputs), columns)
    rows = math.prod(moved[:-1])
    wide = np.dtype(np.float32) if found.dtype.itemsize < 4 else found.dtype
    draws = be.standard_normal((max(rows, columns), min(rows, columns)), wide)
    q, r = f.qr(draws)
    signs = f.where(f.lt(f.diagonal(r), 0), -1, 1)  # without them, LAPACK's choice of signs is not uniform
    matrix = q * f.cast(signs, wide)
    matrix = f.transpose(matrix) if rows < columns else matrix
    found[...] = f.cast(f.moveaxis(f.reshape(matrix, moved), -1, outputs) * _gain(gain), found.dtype)
    return found


def _new(be: Any, shape: Shape, dtype: object, name: str | None) -> Tensor:
    if not hasattr(be, "empty"):
        raise OperandError(f"initial weights are of a backend, from gen_backend, not of {describe(be)}")
    return be.empty(shape, be.datatype if dtype is None else dtype, name)


def _gain(gain: Gain) -> float:
    if isinstance(gain, str):
        if gain not in GAINS:
            raise ParameterError(f"gain is a number or one of {', '.join(GAINS)}, not {gain!r}")
        return GAINS[gain]
    return float(gain)


def _axes(shape: Any, layout: str | None, what: str) -> str:
    """The layout of a weight, checked: a letter for each axis."""
    ndim = len(shape) if isinstance(shape, Sequence) else 1
    if ndim < 2:
        raise ParameterError(f"{what}: a weight has inputs and outputs, two axes or more, and the shape is {shape}")
    if layout is None and ndim > 2:
        raise ParameterError(
            f"{what}: which axes of {tuple(shape)} count inputs and outputs? layout names them I and O: "
            "'OIHW' for weights of be.conv, 'HWIO' for those with weights_layout='HWIO'"
        )
    return layout_of(layout or "IO", ndim, "OI", f"{what}: layout")


def _fans(shape: Any, layout: str | None, what: str) -> tuple[float, float]:
    """The numbers of inputs and outputs of a weight."""
    sizes = dict(zip(_axes(shape, layout, what), shape, strict=True))
    inputs, outputs = sizes.pop("I"), sizes.pop("O")
    others = math.prod(sizes.values())
    return max(inputs * others, 1), max(outputs * others, 1)


def _fan(shape: Shape, layout: str | None, fan: str, what: str) -> float:
    if fan not in ("inputs", "outputs"):
        raise ParameterError(f"{what}: fan is 'inputs' or 'outputs', not {fan!r}")
    return _fans(shape, layout, what)[fan == "outputs"]


complete("initializers", __name__, globals())
