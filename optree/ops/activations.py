"""Activations of neural networks, composed of other ops: their kernels and derivatives follow."""

from __future__ import annotations

import math
from typing import Any

from optree.dtypes import floating
from optree.errors import ParameterError, brief
from optree.registry import f, function
from optree.tree.variable import Operand, Variable, in_dtype, variable_of


def _floating(x: Operand, what: str) -> Variable:
    x = variable_of(x, what)
    return in_dtype(x, floating(x.dtype))


@function()
def gelu(x: Operand, approximate: bool | str = False) -> Any:
    """X times the standard normal distribution function of x (Gaussian error linear unit).

    Parameters
    ----------
    x : operand
    approximate : bool, "tanh" or "none"
        Whether tanh approximates the distribution function, as GPT-2's does; by default it does not. The words are
        torch's. JAX approximates by default.

    Returns
    -------
    tree of x's shape

    Raises
    ------
    ParameterError
        If `approximate` is something else.

    Examples
    --------
    >>> be.gelu(be.array([-1.0, 0.0, 1.0])).get().round(3)
    array([-0.159,  0.   ,  0.841], dtype=float32)
    """
    x = _floating(x, "gelu")
    if not isinstance(approximate, bool | str) or approximate not in (True, False, "tanh", "none"):
        raise ParameterError(f'gelu: approximate is True, False, "tanh" or "none", not {brief(approximate)}')
    if approximate and approximate != "none":
        return 0.5 * x * (1 + f.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + f.erf(x * math.sqrt(0.5)))


@function(names=("swish",))
def silu(x: Operand) -> Any:
    """X * sig(x), also named swish.

    Examples
    --------
    >>> be.silu(be.array([-1.0, 0.0, 1.0])).get().round(3)
    array([-0.269,  0.   ,  0.731], dtype=float32)
    """
    x = _floating(x, "silu")
    return x * f.sig(x)


@function()
def leaky_relu(x: Operand, negative_slope: float = 0.01) -> Any:
    """X where it is positive, and `negative_slope` times x elsewhere; that is the derivative at 0, too.

    Examples
    --------
    >>> be.leaky_relu(be.array([-1.0, 2.0]), 0.1).get()
    array([-0.1,  2. ], dtype=float32)
    """
    x = _floating(x, "leaky_relu")
    return f.where(x > 0, x, negative_slope * x)


@function()
def elu(x: Operand, alpha: float = 1.0) -> Any:
    """X where it is positive, and alpha * (exp(x) - 1) elsewhere; the derivative at 0 is `alpha`.

    Examples
    --------
    >>> be.elu(be.array([-1.0, 2.0])).get().round(3)
    array([-0.632,  2.   ], dtype=float32)
    """
    x = _floating(x, "elu")
    # The inner where keeps exp from overflowing in the branch that is not taken.
    return f.where(x > 0, x, alpha * f.expm1(f.where(x > 0, 0, x)))


@function()
def selu(x: Operand) -> Any:
    """`elu` scaled so that layers keep mean 0 and variance 1 (Klambauer et al., 2017).

    Examples
    --------
    >>> be.selu(be.array([-1.0, 2.0])).get().round(3)
    array([-1.111,  2.101], dtype=float32)
    """
    return 1.0507009873554805 * f.elu(x, 1.6732632423543772)


@function()
def softsign(x: Operand) -> Any:
    """X / (1 + abs(x)).

    Examples
    --------
    >>> be.softsign(be.array([-1.0, 3.0])).get()
    array([-0.5 ,  0.75], dtype=float32)
    """
    x = _floating(x, "softsign")
    return x / (1 + f.abs(x))


@function()
def celu(x: Operand, alpha: float = 1.0) -> Any:
    """`elu` whose derivative is continuous for each alpha: alpha * (exp(x / alpha) - 1) where x is negative.

    Examples
    --------
    >>> be.celu(be.array([-1.0, 2.0]), alpha=2.0).get().round(3)
    array([-0.787,  2.   ], dtype=float32)
    """
    x = _floating(x, "celu")
    return f.where(x > 0, x, alpha * f.expm1(f.where(x > 0, 0, x) / alpha))


@function()
def mish(x: Operand) -> Any:
    """X * tanh(softplus(x)).

    Examples
    --------
    >>> be.mish(be.array([-1.0, 2.0])).get().round(3)
    array([-0.303,  1.944], dtype=float32)
    """
    x = _floating(x, "mish")
    return x * f.tanh(f.softplus(x))


@function()
def relu6(x: Operand) -> Any:
    """X between 0 and 6, and the nearer bound elsewhere.

    Examples
    --------
    >>> be.relu6(be.array([-1.0, 2.0, 9.0])).get()
    array([0., 2., 6.], dtype=float32)
    """
    return f.clip(x, 0, 6)


@function(names=("hard_sigmoid",))
def hardsigmoid(x: Operand) -> Any:
    """A piecewise linear `sig`: relu6(x + 3) / 6, as torch's and JAX's. Keras' has another slope.

    Examples
    --------
    >>> be.hardsigmoid(be.array([-4.0, 0.0, 1.5])).get()
    array([0.  , 0.5 , 0.75], dtype=float32)
    """
    return relu6(_floating(x, "hardsigmoid") + 3) / 6


@function(names=("hard_swish", "hard_silu"))
def hardswish(x: Operand) -> Any:
    """X * hardsigmoid(x).

    Examples
    --------
    >>> be.hardswish(be.array([-4.0, 1.5, 4.0])).get()
    array([-0.   ,  1.125,  4.   ], dtype=float32)
    """
    x = _floating(x, "hardswish")
    return x * hardsigmoid(x)


@function(names=("hard_tanh",))
def hardtanh(x: Operand, lo: float = -1.0, hi: float = 1.0) -> Any:
    """X between two bounds, and the nearer bound elsewhere.

    Examples
    --------
    >>> be.hardtanh(be.array([-4.0, 0.5, 4.0])).get()
    array([-1. ,  0.5,  1. ], dtype=float32)
    """
    return f.clip(x, lo, hi)


@function()
def glu(x: Operand, axis: int = -1) -> Any:
    """The first half of x along an axis times `sig` of the second (gated linear unit).

    Raises
    ------
    ShapeError
        If the size of that axis is odd.

    Examples
    --------
    >>> be.glu(be.array([1.0, 2.0, 0.0, 0.0])).get()
    array([0.5, 1. ], dtype=float32)
    """
    gated, gate = f.split(_floating(x, "glu"), 2, axis)
    return gated * f.sig(gate)
