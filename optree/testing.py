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
from optree.promises import central_difference, check_op, weighted_sum, where_off
from optree.random_trees import random_tree
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
        If they differ: it says which element of which input is furthest off. Or
        if there is nothing to compare: no input is floating, or the function
        gives another value each time.

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
    value = function(*points)
    if not isinstance(value, Variable):
        raise OperandError(f"check_grad: the function returns a tree, not {describe(value)}")
    cost = weighted_sum(value)
    moved = [(i, x) for i, x in enumerate(points) if x.dtype.kind == "f"]
    if not moved:
        raise GradientError(f"check_grad: no input is floating: {', '.join(map(describe, points))} cannot be moved")
    first, again = cost.item(), cost.item()
    if first != again and not first != first:  # a nan differs from itself
        raise GradientError(
            f"check_grad: the function draws random numbers: it gives {first!r}, and then {again!r}; "
            "draw them before, as an input that stays the same"
        )
    gradients = grad(cost, [x for _, x in moved], disconnected_inputs="ignore")
    for (i, x), gradient in zip(moved, gradients, strict=True):
        wrong = where_off(gradient.asnumpyarray(), _difference(cost, x, eps), rtol, atol)
        if wrong is not None:
            raise GradientError(f"the gradient is wrong for input {i} ({x.label}) of shape {x.shape} {wrong}")


def _difference(cost: Variable, x: Tensor, eps: float) -> np.ndarray:
    """How the cost changes with each element of a tensor, which is left as it was."""
    values = x.get()

    def cost_at(moved: list[np.ndarray]) -> float:
        x.set(moved[0])
        return cost.item()

    try:
        return central_difference(cost_at, [values], 0, eps)
    finally:
        x.set(values)
