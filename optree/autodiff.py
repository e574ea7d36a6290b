"""Derivatives: adjoints of a tree's operands, as trees.

Adjoints travel as in Nervana graph ("Computing Derivatives"): each op sends
its operands their deltas, and what an operand has received when all that use
it have sent is its adjoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from optree.errors import BackendError, DisconnectedError, GradientError, OperandError, ShapeError, describe
from optree.node import OpTreeNode, operands_of, post_order
from optree.registry import f
from optree.tensor import Tensor
from optree.types import TensorType, TupleType
from optree.variable import Variable, as_variable


def grad(cost: Variable, wrt: Any) -> Any:
    """The derivative of a scalar with respect to one operand or several, as trees.

    Parameters
    ----------
    cost : Variable
        A tree of one element and a floating dtype.
    wrt : Variable, or list or tuple of them
        Tensors, inputs or nodes that the cost is made of, by identity; views and
        what they are views of share their derivative.

    Returns
    -------
    OpTreeNode, or list of them
        One for each operand, of its shape and dtype; zeros where the cost does
        not change with it.

    Raises
    ------
    GradientError
        If the cost is no floating scalar, if an operand is not floating, or if
        an op's derivative is of a wrong shape or dtype.
    DisconnectedError
        If the cost does not hold an operand.

    Examples
    --------
    >>> from backends import gen_backend
    >>> be = gen_backend("cpu")
    >>> x = be.array([1.0, 2.0, 3.0], name="x")
    >>> grad(be.sum(x * x), x).asnumpyarray()
    array([2., 4., 6.], dtype=float32)
    """
    return _gradients(cost, wrt, None)


class Autodiff:
    """neon's interface to derivatives.

    Parameters
    ----------
    op_tree : Variable
        What is differentiated.
    be : Backend
        Where it runs.
    next_error : Variable or number, optional
        The derivative of the final cost by `op_tree`'s value, of its shape.
        Without it `op_tree` must be a scalar, except on a backend in neon's
        mode, where it is then ones, as in neon.

    Examples
    --------
    >>> from backends import gen_backend
    >>> be = gen_backend("cpu")
    >>> x = be.array([[1.0, 2.0]], name="x")
    >>> ad = Autodiff(x * x, be, next_error=be.ones((1, 2)))
    >>> ad.get_grad_asnumpyarray([x])
    [array([[2., 4.]], dtype=float32)]
    """

    def __init__(self, op_tree: Variable, be: Any, next_error: Any = None) -> None:
        if getattr(op_tree, "backend", None) not in (None, be):
            raise BackendError(f"Autodiff: {describe(op_tree)} is of {op_tree.backend}, not {be}")
        self.op_tree, self.be, self.next_error = op_tree, be, next_error

    def get_grad_op_tree(self, tensors: Any) -> Any:
        """The derivatives as trees: a list for a list or tuple, one for one tensor."""
        return _gradients(self.op_tree, tensors, self.next_error)

    def get_grad_tensor(self, tensors: Any) -> Any:
        """The derivatives as new tensors: a list for a list or tuple, one for one tensor."""
        trees = self.get_grad_op_tree(tensors)
        return self.be.evaluate(trees) if isinstance(trees, list) else self.be.evaluate([trees])[0]

    def get_grad_asnumpyarray(self, tensors: Any) -> Any:
        """The derivatives as NumPy arrays: a list for a list or tuple, one for one tensor."""
        return _map(Tensor.get, self.get_grad_tensor(tensors))

    def back_prop_grad(self, tensors: Any, gradients: Any) -> None:
        """Write the derivatives into buffers, which may be tensors that `op_tree` or `next_error` reads.

        All are computed, together, before the first is written.

        Parameters
        ----------
        tensors, gradients : Tensor, or lists of as many
            What to differentiate by, and where the derivative goes.

        Raises
        ------
        ShapeError
            If a buffer has not its tensor's shape; nothing has been written then.
        """
        tensors, buffers = _as_list(tensors), _as_list(gradients)
        if len(tensors) != len(buffers):
            raise ShapeError(f"back_prop_grad: {len(tensors)} tensors and {len(buffers)} gradients")
        for tensor, buffer in zip(tensors, buffers, strict=True):
            if buffer.shape != tensor.shape:
                raise ShapeError(f"back_prop_grad: {describe(buffer)} is not of the shape of {describe(tensor)}")
        trees = self.get_grad_op_tree(tensors)
        for buffer, value in zip(buffers, self.be.evaluate(trees), strict=True):
            buffer[...] = value


def _gradients(cost: Any, wrt: Any, next_error: Any) -> Any:
    """The derivatives of a cost by one operand or several, `next_error` the cost's own adjoint."""
    if not isinstance(cost, Variable) or cost.dtype.kind != "f":
        raise GradientError(f"the cost is a tree of a floating dtype, not {describe(cost)}")
    operands = _as_list(wrt)
    for operand in operands:
        if not isinstance(operand, Variable):
            raise OperandError(f"a derivative is by a tensor, an input or a node, not {describe(operand)}")
        if operand.dtype.kind != "f":
            raise GradientError(f"a derivative is by an operand of a floating dtype, not {describe(operand)}")
    found = _backpropagate(cost, operands, _seed(cost, next_error))
    return found[0] if isinstance(wrt, Variable) else found


def _seed(cost: Variable, next_error: Any) -> Variable:
    """The adjoint of the cost itself."""
    if next_error is None:
        neon = cost.backend is not None and cost.backend.compat_mode == "neon"
        if not neon and any(size != 1 for size in cost.shape):
            raise GradientError(
                f"the cost is a scalar, not {describe(cost)}: reduce it, as be.sum(cost) does, "
                "or give its own adjoint: Autodiff(cost, be, next_error=...)"
            )
        return f.fill_like(cost, 1.0)
    error = as_variable(next_error)
    if not isinstance(next_error, Variable | np.ndarray) and error.shape == ():
        return f.fill_like(cost, next_error)
    if error.shape != cost.shape:
        raise ShapeError(f"next_error {describe(error)} is not of the shape {cost.shape} of the cost {describe(cost)}")
    return error if error.dtype == cost.dtype else error.astype(cost.dtype)


def _backpropagate(cost: Variable, wrt: Sequence[Variable], seed: Variable) -> list[Any]:
    """The adjoint of each operand."""
    order = post_order([cost], _inputs_of)
    reached = {id(variable) for variable in order}
    targets = [_target(operand, order) for operand in wrt]
    for operand, target in zip(wrt, targets, strict=True):
        if id(target) not in reached:
            raise DisconnectedError(
                f"the cost {cost.label} does not hold {describe(operand)}; operands are told apart by identity, "
                "so one must be the very object that the cost was built from"
            )
    adjoints = _adjoints(order, targets, seed)
    return [
        _view_of(adjoints[target], operand, target) if target in adjoints else f.fill_like(operand, 0.0)
        for operand, target in zip(wrt, targets, strict=True)
    ]


def _adjoints(order: Sequence[Variable], targets: Sequence[Variable], seed: Variable) -> dict[Variable, Any]:
    """The adjoints of the targets: those of all that depends on them, walked from the cost down."""
    wanted = {id(target) for target in targets}
    dependent: set[int] = set()
    for variable in order:
        # Nothing changes smoothly with what passes through integers or bools.
        if _is_smooth(variable.type) and (
            id(variable) in wanted or any(id(x) in dependent for x in _inputs_of(variable))
        ):
            dependent.add(id(variable))
    adjoints: dict[Variable, Any] = {order[-1]: seed}
    for variable in reversed(order):
        if id(variable) in dependent and variable in adjoints:
            delta = adjoints[variable] if id(variable) in wanted else adjoints.pop(variable)
            if any(id(x) in dependent for x in _inputs_of(variable)):
                _send(variable, adjoints, delta)
    return adjoints


def _is_smooth(type: Any) -> bool:
    """Whether values of a type change smoothly: floating ones, and tuples, whose parts are told apart later."""
    return type.dtype.kind == "f" if isinstance(type, TensorType) else isinstance(type, TupleType)


def _send(variable: Any, adjoints: dict[Variable, Any], delta: Any) -> None:
    """Send the operands of a node, or the base of a view, their deltas."""
    if isinstance(variable, Tensor):
        op, operands = variable.view, [as_variable(variable.base)]
    else:
        op, operands = variable.op, [as_variable(x) for x in operands_of(variable)]
    try:
        op.generate_adjoints(adjoints, delta, *operands)
    except GradientError as error:
        raise GradientError(f"{op}: its derivative is wrong at {describe(variable)}: {error}") from error
    except Exception as error:
        error.add_note(f"in the derivative of {describe(variable)}")
        raise


def _inputs_of(variable: Any) -> list[Any]:
    """What a variable is made from: a node's operands, a view's base."""
    if isinstance(variable, Tensor):
        return [] if variable.base is None else [variable.base]
    return _operands(variable)


def _operands(variable: Any) -> list[Any]:
    if not isinstance(variable, OpTreeNode):
        return []
    return [x for x in operands_of(variable) if isinstance(x, Variable)]


def _target(operand: Variable, order: Iterable[Variable]) -> Variable:
    """The operand whose adjoint tells this one's: itself, or where other views overlap it, its root."""
    if not isinstance(operand, Tensor) or operand.base is None:
        return operand
    root = operand.root
    read = {id(x): x for node in order for x in _operands(node) if isinstance(x, Tensor) and x.root is root}
    return operand if read and all(_looks_into(x, operand) for x in read.values()) else root


def _looks_into(tensor: Tensor | None, other: Tensor) -> bool:
    """Whether a tensor is the other, or a view made from it."""
    while tensor is not None and tensor is not other:
        tensor = tensor.base
    return tensor is other


def _view_of(adjoint: Any, operand: Variable, target: Variable) -> Any:
    """The part of a target's adjoint that a view of it sees."""
    views = []
    while operand is not target:
        views.append(operand.view)  # type: ignore[attr-defined]
        operand = operand.base  # type: ignore[attr-defined]
    for view in reversed(views):
        adjoint = view(adjoint)
    return adjoint


def _as_list(given: Any) -> list[Any]:
    return [given] if isinstance(given, Variable) or not isinstance(given, list | tuple) else list(given)


def _map(function: Any, given: Any) -> Any:
    return [function(x) for x in given] if isinstance(given, list) else function(given)
