"""Test helpers for users' own ops and trees.

`check_op` checks an op's contract, `check_grad` the gradient of any function of
tensors, and `random_tree` generates trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.autodiff.api import grad
from optree.dtypes import is_inexact
from optree.errors import GradientError, OperandError, describe
from optree.op.op import Op
from optree.run.function import last_backend
from optree.testing.comparison import central_difference, tolerating, where_off
from optree.testing.conformance import PROMISES, check_on, weighted_sum
from optree.testing.examples import examples_of
from optree.testing.random_trees import random_tree
from optree.tree.node import find_op
from optree.tree.tensor import Tensor
from optree.tree.variable import Variable

__all__ = ["check_grad", "check_op", "random_tree"]


def check_op(
    op: str | type[Op] | Op, inputs: Sequence[Any] | None = None, rtol: float | None = None, atol: float | None = None
) -> None:
    """Check an op against each clause of the contract that it implements.

    For an op in any style these are equality and hash, `make_node`, the maps, the checks
    of debug mode on `perform` and `infer_shape`, functions of it, pickling where its
    parameters pickle, and its gradient and `R_op` against central differences.

    Parameters
    ----------
    op : Op, type or str
        The op, its class if that needs no parameters, or a registered op's name.
    inputs : sequence, optional
        Its inputs: arrays, tensors, numbers, and ``Constant(type, value)`` for a value of
        a user's type. Without them, every promise of registered ops is checked on its
        `examples`, for an elementwise op on every broadcast pattern. Its values are
        compared with those of the tensors' backend, or else of the last backend made.
    rtol, atol : float, optional
        Tolerances of values and derivatives, for an op that approximates. By default the
        tolerance covers rounding alone.

    Raises
    ------
    ContractError, AssertionError, OptreeError
        If a clause is violated; the error names the op and the clause.

    Examples
    --------
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
    examples, backend = examples_of(kind, op if isinstance(op, Op) else None), last_backend()
    if backend is None:
        raise OperandError(f"check_op: make a backend, with which {kind.__name__} is compared: gen_backend('cpu')")
    for example in examples:
        for check in PROMISES.values():
            check(example, backend)


def check_grad(
    function: Callable[..., Any], inputs: Any, eps: float = 1e-5, rtol: float = 1e-5, atol: float = 1e-6
) -> None:
    """Compare the gradient of a function with central differences, in float64.

    A value of several elements is reduced to its sum with fixed random weights first.

    Parameters
    ----------
    function : callable
        Takes one tensor for each input, and returns a tree.
    inputs : Tensor, or list of Tensor
        The point of comparison. Floating tensors are copied as float64 and perturbed by
        `eps` times their size, one element at a time; others are constant.
    eps, rtol, atol : float
        The step, and the tolerances.

    Raises
    ------
    GradientError
        If they differ; the error names the input and the element with the largest
        difference. Or if no input is floating, or the function is random.

    Examples
    --------
    >>> check_grad(lambda x: be.tanh(x) * x, be.array([0.5, -1.5]))
    """
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    for x in given:
        if not isinstance(x, Tensor):
            raise OperandError(f"check_grad: an input is a tensor, not {describe(x)}")
    wide = [np.result_type(x.dtype, np.float64) if is_inexact(x.dtype) else x.dtype for x in given]
    points = [x.backend.array(x, dtype, x.name) for x, dtype in zip(given, wide, strict=True)]
    value = function(*points)
    if not isinstance(value, Variable):
        raise OperandError(f"check_grad: the function returns a tree, not {describe(value)}")
    cost = weighted_sum(value)
    moved = [(i, x) for i, x in enumerate(points) if is_inexact(x.dtype)]
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
    """The central difference of the cost by each element of a tensor, which is restored afterwards."""
    values = x.get()

    def cost_at(moved: list[np.ndarray]) -> float:
        x.set(moved[0])
        return cost.item()

    try:
        return central_difference(cost_at, [values], 0, eps)
    finally:
        x.set(values)
