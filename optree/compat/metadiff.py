"""Metadiff's methods of nodes ("A guide to operators"), on every variable.

A node's op answers, by its traits. A tensor or input answers as an
`InputOperator`, a constant as a `ConstantOperator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from optree.errors import GradientError, describe
from optree.ops.traits import ConstantOperator, InputOperator
from optree.registry import METADIFF
from optree.tree import equality
from optree.tree.node import OpTreeNode
from optree.tree.traversal import post_order
from optree.tree.types import TensorType
from optree.tree.variable import Constant, Variable, as_operand, as_variable


def operator_of(variable: Variable) -> Any:
    """The op that answers for a variable."""
    if isinstance(variable, OpTreeNode):
        return variable.op
    if isinstance(variable, Constant):
        return ConstantOperator.make(dtype=variable.dtype if isinstance(variable.type, TensorType) else None)
    return InputOperator.make()


class Metadiff:
    """The methods as functions of a variable: `Variable`'s of these names call them."""

    def is_input_dependent(self) -> bool:
        """Whether the value depends on a tensor or an input."""
        return _answers(self, get_ancestors, lambda op, node, found: op.is_input_dependent(found))

    def is_differentiable(self) -> bool:
        """Whether a derivative can be had by something that the value is made from."""
        return _answers(self, get_parents, lambda op, node, found: op.is_differentiable(found))

    def get_grad_level(self) -> int:
        """How often what the value is made from has been differentiated: 0, 1 for a gradient, 2 for one of a gradient.

        A gradient is told by the 1.0 that `grad` starts from; one that starts from
        a tensor given as ``next_error`` is of that tensor's level, 0.
        """
        return _answers(self, get_ancestors, lambda op, node, found: op.get_grad_level(found) + _starts_gradient(node))

    def get_data_type(self) -> Any:
        """The value's dtype."""
        return operator_of(_node(self)).get_data_type(self)

    def get_shape(self) -> Any:
        """The value's shape."""
        return operator_of(_node(self)).get_shape(self)

    def get_parents(self) -> list[Variable]:
        """The operands that affect the value in a differentiable manner, in order."""
        return get_parents(_node(self))

    def get_arguments(self) -> list[Variable]:
        """The operands that affect it otherwise: indices, conditions, what only a shape is taken of."""
        return operator_of(_node(self)).get_arguments(_node(self))

    def get_ancestors(self) -> list[Variable]:
        """All the operands, in order."""
        return get_ancestors(_node(self))

    def get_parent_grad(self, my_grad: Any, index: int) -> Any:
        """The gradient of a parent, by its place among them, given this node's own.

        Raises
        ------
        GradientError
            If there is no such parent, or no derivative.
        """
        return operator_of(_node(self)).get_parent_grad(_node(self), as_variable(my_grad), index)

    def send_grad_message(self, parent: Variable, message: Variable, messages: dict[Variable, Any]) -> None:
        """Add a gradient to what a parent has been sent, or begin with it.

        Raises
        ------
        GradientError
            If it is no parent, or the gradient has not its shape.
        """
        if not any(parent is x for x in self.get_parents()):
            raise GradientError(f"{describe(parent)} is no parent of {describe(self)}")
        parent.generate_add_delta(messages, message)

    def generate_gradients(self, my_grad: Any, messages: dict[Variable, Any] | None = None) -> dict[Variable, Any]:
        """The gradients of all parents, given this node's own, added to those in `messages`.

        A parent that is not differentiable is sent nothing.
        """
        messages = {} if messages is None else messages
        for index, parent in enumerate(self.get_parents()):
            if parent.is_differentiable():
                self.send_grad_message(parent, self.get_parent_grad(my_grad, index), messages)
        return messages

    def equals(self, other: Any) -> bool:
        """Whether this is the same expression, up to associativity and commutativity."""
        return equality.equal(self, other)

    def copy_to(self, ancestors: Sequence[Any] = ()) -> Any:
        """The node's op on other ancestors, as many as it has; a leaf is itself."""
        node = _node(self)
        if not isinstance(node, OpTreeNode):
            return node
        if len(ancestors) != len(get_ancestors(node)):
            raise GradientError(f"{describe(node)} has {len(get_ancestors(node))} ancestors, not {len(ancestors)}")
        return node.op.node_of(*ancestors)


def get_parents(node: Variable) -> list[Variable]:
    """The operands that affect a node in a differentiable manner."""
    return operator_of(node).get_parents(node)


def get_ancestors(node: Variable) -> list[Variable]:
    """The operands of a node."""
    return operator_of(node).get_ancestors(node)


def _node(variable: Any) -> Any:
    """The variable; for an output of an `Apply` the node that it stands for."""
    return variable if isinstance(variable, Constant) else as_operand(variable, "Metadiff")


def _answers(variable: Any, inputs_of: Callable[[Any], list[Any]], answer: Callable[..., Any]) -> Any:
    """The op's answer for a variable, from those for what it is made from."""
    node = _node(variable)
    inputs: dict[int, list[Any]] = {}

    def remembered(entry: Any) -> list[Any]:
        return inputs.setdefault(id(entry), inputs_of(entry))

    known: dict[int, Any] = {}
    for entry in post_order([node], remembered):
        known[id(entry)] = answer(operator_of(entry), entry, [known[id(x)] for x in remembered(entry)])
    return known[id(node)]


def _starts_gradient(node: Any) -> bool:
    return bool(getattr(node, "starts_gradient", False))


METADIFF.update((name, method) for name, method in vars(Metadiff).items() if not name.startswith("_"))
