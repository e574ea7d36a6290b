"""What one's own ops and trees are tested with.

`check_op` checks all that an op promises, `check_grad` the gradient of any
function of tensors, and `random_tree` makes trees that nobody thought of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from optree.autodiff import grad
from optree.errors import GradientError, OperandError, describe
from optree.promises import check_op
from optree.random_trees import random_tree
from optree.registry import f
from optree.tensor import Tensor
from optree.variable import Variable

__all__ = ["check_grad", "check_op", "random_tree"]


def check_grad(
    function: Callable[..., Any], inputs: Any, eps: float = 1e-5, rtol: float = 1e-5, atol: float = 1e-6
) -> None:
    """Compare the gradient of a function with central differences, in float64.

    A value of several elements is summed with fixed random weights first, so
    that each of them counts.

    Parameters
    ----------
    function : callable
        Takes as many tensors as there are inputs, and returns a tree.
    inputs : Tensor, or list of Tensor
        Where to compare. Floating ones are copied as float64 and moved by
        `eps` times their size, one element at a time; others stay as they are.
    eps, rtol, atol : float
        The step, and how far the two may differ.

    Raises
    ------
    GradientError
        If they differ: it says which element of which input is furthest off.

    Examples
    --------
    >>> from backends import gen_backend
    >>> be = gen_backend("cpu")
    >>> check_grad(lambda x: be.tanh(x) * x, be.array([0.5, -1.5]))
    """
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    for x in given:
        if not isinstance(x, Tensor):
            raise OperandError(f"check_grad: an input is a tensor, not {describe(x)}")
    points = [x.backend.array(x, np.float64 if x.dtype.kind == "f" else x.dtype, x.name) for x in given]
    cost = _weighted_sum(function(*points))
    moved = [(f"input {i} ({x.label})", x) for i, x in enumerate(points) if x.dtype.kind == "f"]
    gradients = grad(cost, [x for _, x in moved])
    for (name, x), gradient in zip(moved, gradients, strict=True):
        _compare(name, gradient.asnumpyarray(), _central_difference(cost, x, eps), rtol, atol)


def _weighted_sum(value: Variable) -> Variable:
    """The value as a scalar that changes with each of its elements in its own way."""
    if not isinstance(value, Variable):
        raise OperandError(f"check_grad: the function returns a tree, not {describe(value)}")
    weights = np.random.RandomState(0).uniform(0.5, 1.5, value.shape)
    return f.sum(value * weights)


def _central_difference(cost: Variable, x: Tensor, eps: float) -> np.ndarray:
    """How the cost changes with each element of a tensor, which is left as it was."""
    values = x.get()
    result = np.empty_like(values)
    for place in np.ndindex(values.shape):
        step = eps * max(1.0, abs(float(values[place])))
        ends = []
        for end in (values[place] + step, values[place] - step):
            moved = values.copy()
            moved[place] = end
            x.set(moved)
            ends.append((end, cost.asnumpyarray().item()))
        (high, above), (low, below) = ends
        result[place] = (above - below) / (high - low)
    x.set(values)
    return result


def _compare(name: str, gradient: np.ndarray, difference: np.ndarray, rtol: float, atol: float) -> None:
    error = np.abs(gradient - difference)
    off = ~(error <= atol + rtol * np.abs(difference))  # a nan is off too
    if not off.any():
        return
    furthest = np.where(off, np.where(np.isnan(error), np.inf, error), -1.0)
    place = np.unravel_index(np.argmax(furthest), error.shape)
    raise GradientError(
        f"the gradient is wrong for {name} of shape {gradient.shape} at element {tuple(map(int, place))}: "
        f"grad says {gradient[place]!r}, central differences {difference[place]!r}; "
        f"{int(off.sum())} of {gradient.size} elements are off"
    )
