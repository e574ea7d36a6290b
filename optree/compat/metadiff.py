"""Metadiff's methods of nodes ("A guide to operators"), for every variable.

They delegate to a node's op and its traits; for a tensor or input to an
`InputOperator`, for a constant to a `ConstantOperator`.
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
    """The op that a variable's methods delegate to."""
    if isinstance(variable, OpTreeNode):
        return variable.op
    if isinstance(variable, Constant):
        return ConstantOperator.make(dtype=variable.dtype if isinstance(variable.type, TensorType) else None)
    return InputOperator.make()


class Metadiff:
    """The methods as functions of a variable. `Variable`'s methods of these names call them, and document them."""

    def is_input_dependent(self) -> bool:
        return _answers(self, get_ancestors, lambda op, node, found: op.is_input_dependent(found))

    def is_differentiable(self) -> bool:
        return _answers(self, get_parents, lambda op, node, found: op.is_differentiable(found))

    def get_grad_level(self) -> int:
        """The order of differentiation in the tree: 0, 1 for a gradient, 2 for a gradient of one.

        A gradient is recognised by its seed, the 1.0 of `grad`; one that is seeded with a
        tensor as ``next_error`` has that tensor's level, 0.
        """
        return _answers(
            self,
            get_ancestors,
            lambda op, node, found: op.get_grad_level(found) + getattr(node, "starts_gradient", False),
        )

    def get_data_type(self) -> Any:
        return operator_of(_node(self)).get_data_type(self)

    def get_shape(self) -> Any:
        return operator_of(_node(self)).get_shape(self)

    def get_parents(self) -> list[Variable]:
        return get_parents(_node(self))

    def get_arguments(self) -> list[Variable]:
        return operator_of(_node(self)).get_arguments(_node(self))

    def get_ancestors(self) -> list[Variable]:
        return get_ancestors(_node(self))

    def get_parent_grad(self, my_grad: Any, index: int) -> Any:
        """The gradient of a parent, by its index among the parents, given this node's own.

        Raises
        ------
        GradientError
            If there is no such parent, or no derivative.
        """
        return operator_of(_node(self)).get_parent_grad(_node(self), as_variable(my_grad), index)

    def send_grad_message(self, parent: Variable, message: Variable, messages: dict[Variable, Any]) -> None:
        """Add a gradient to a parent's adjoint in `messages`.

        Raises
        ------
        GradientError
            If it is no parent, or the gradient has another shape.
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
        return equality.equal(self, other)

    def copy_to(self, ancestors: Sequence[Any] = ()) -> Any:
        node = _node(self)
        if not isinstance(node, OpTreeNode):
            return node
        if len(ancestors) != len(get_ancestors(node)):
            raise GradientError(f"{describe(node)} has {len(get_ancestors(node))} ancestors, not {len(ancestors)}")
        return node.op.node_of(*ancestors)


def get_parents(node: Variable) -> list[Variable]:
    """The operands by which a node is differentiable."""
    return operator_of(node).get_parents(node)


def get_ancestors(node: Variable) -> list[Variable]:
    """The operands of a node."""
    return operator_of(node).get_ancestors(node)


def _node(variable: Any) -> Any:
    """The variable; for an output of an `Apply`, its node."""
    return variable if isinstance(variable, Constant) else as_operand(variable, "Metadiff")


def _answers(variable: Any, inputs_of: Callable[[Any], list[Any]], answer: Callable[..., Any]) -> Any:
    """The op's answer for a variable, computed from its operands' answers in topological order."""
    node = _node(variable)
    inputs: dict[int, list[Any]] = {}

    def cached_inputs(entry: Any) -> list[Any]:
        return inputs.setdefault(id(entry), inputs_of(entry))

    known: dict[int, Any] = {}
    for entry in post_order([node], cached_inputs):
        known[id(entry)] = answer(operator_of(entry), entry, [known[id(x)] for x in cached_inputs(entry)])
    return known[id(node)]


METADIFF.update((name, method) for name, method in vars(Metadiff).items() if not name.startswith("_"))
