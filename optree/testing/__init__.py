"""What one's own ops and trees are tested with.

`check_op` checks all that an op promises, `check_grad` the gradient of any
function of tensors, and `random_tree` makes trees that nobody thought of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.autodiff.api import grad
from optree.dtypes import is_floating
from optree.errors import GradientError, OperandError, describe
from optree.ops.op import Op
from optree.run.function import last_backend
from optree.testing.conformance import check_on
from optree.testing.examples import examples_of
from optree.testing.promises import PROMISES, central_difference, tolerating, weighted_sum, where_off
from optree.testing.random_trees import random_tree
from optree.tree.node import find_op
from optree.tree.tensor import Tensor
from optree.tree.variable import Variable

__all__ = ["check_grad", "check_op", "random_tree"]


def check_op(
    op: str | type[Op] | Op, inputs: Sequence[Any] | None = None, rtol: float | None = None, atol: float | None = None
) -> None:
    """Check each part of the contract that an op claims, on inputs.

    Of any op, in any style: equality and hash, `make_node`, the maps, all that
    debug mode asks of `perform` and `infer_shape`, functions of it, pickling
    where its parts pickle; its gradient and `R_op` against central differences.

    Parameters
    ----------
    op : Op, type or str
        The op, its class if that needs no parameters, or a registered op's name.
    inputs : sequence, optional
        What it is applied to: arrays, tensors, numbers, and ``Constant(type,
        value)`` for a value of a type of one's own. Without them it is held to all
        that this project's own ops are, on its `examples`, and for an elementwise
        one on each way to broadcast. Its values are compared with those of the
        tensors' backend; without tensors, with those of the last backend made.
    rtol, atol : float, optional
        How far, relative to them and at all, floating values may differ from those that they are compared with, and
        derivatives from central differences: for an op that approximates. By default no more than rounding explains.

    Raises
    ------
    ContractError, AssertionError, OptreeError
        If a part is broken: it names the op and the part.

    Examples
    --------
    >>> from backends import gen_backend
    >>> be = gen_backend("cpu")
    >>> check_op("sin")
    >>> check_op("dot", [np.ones((2, 3)), np.ones((3, 4))])
    """
    with tolerating(rtol, atol):
        _check_op(op, inputs)


def _check_op(op: str | type[Op] | Op, inputs: Sequence[Any] | None) -> None:
    if inputs is not None:
        check_on(op, inputs)
        return
    kind = find_op(op) if isinstance(op, str) else op if isinstance(op, type) else type(op)
    examples, backend = examples_of(kind), last_backend()
    if backend is None:
        raise OperandError(f"check_op: make a backend, with which {kind.__name__} is compared: gen_backend('cpu')")
    for example in examples:
        for check in PROMISES.values():
            check(example, backend)


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
    points = [x.backend.array(x, np.float64 if is_floating(x.dtype) else x.dtype, x.name) for x in given]
    value = function(*points)
    if not isinstance(value, Variable):
        raise OperandError(f"check_grad: the function returns a tree, not {describe(value)}")
    cost = weighted_sum(value)
    moved = [(i, x) for i, x in enumerate(points) if is_floating(x.dtype)]
    if not moved:
        raise GradientError(f"check_grad: no input is floating: {', '.join(map(describe, points))} cannot be moved")
    first, again = cost.item(), cost.item()
    if first != again and not first != first:  # a nan differs from itself
        raise GradientError(
            f"check_grad: the function draws random numbers: it gives {first!r}, and then {again!r}; "
            "draw them before, as an input that stays the same"
        )
    gradients = grad(cost, [x for _, x in moved], disconnected_inputs="ignore")
    found = [gradient.asnumpyarray() for gradient in gradients]  # before the first point is moved
    for (i, x), gradient in zip(moved, found, strict=True):
        wrong = where_off(gradient, _difference(cost, x, eps), rtol, atol)
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
