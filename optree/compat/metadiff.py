"""Metadiff's methods of nodes ("A guide to operators"), for every variable.

They follow from a node's op and its traits; a tensor or input counts as an
`InputOperator`, a constant as a `ConstantOperator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.dtypes import is_floating
from optree.errors import DefinitionError, GradientError, describe
from optree.op.traits import (
    AssociativeOperator,
    BinaryOperator,
    ConstantOperator,
    InputOperator,
    LogicalOperator,
    NonDifferentiableOperator,
    OrphanOperator,
    UnaryOperator,
)
from optree.registry import METADIFF
from optree.tree import equality
from optree.tree.gradient_types import is_disconnected, is_null, zero_gradient
from optree.tree.node import OpTreeNode, operands_of, parts_of, post_order
from optree.tree.types import TensorType, TupleType
from optree.tree.variable import Constant, Input, Operand, Variable, as_operand, as_variable


def operator_of(variable: Variable) -> Any:
    """The op of a variable, of a leaf too."""
    if isinstance(variable, OpTreeNode):
        return variable.op
    if isinstance(variable, Constant):
        return ConstantOperator.make(dtype=variable.dtype if isinstance(variable.type, TensorType) else None)
    return InputOperator.make()


class Metadiff:
    """The methods as functions of a variable. `Variable`'s methods of these names call them, and document them."""

    def is_input_dependent(self) -> bool:
        return _answers(self, get_ancestors, lambda op, node, found: isinstance(op, InputOperator) or any(found))

    def is_differentiable(self) -> bool:
        return _answers(
            self,
            get_parents,
            lambda op, node, found: (
                isinstance(op, InputOperator) or (any(found) and not isinstance(op, NonDifferentiableOperator))
            ),
        )

    def get_grad_level(self) -> int:
        """The order of differentiation in the tree: 0, 1 for a gradient, 2 for a gradient of one.

        A gradient is recognised by its seed, the 1.0 of `grad`; one that is seeded with a
        tensor as ``next_error`` has that tensor's level, 0.
        """
        return _answers(
            self,
            get_ancestors,
            lambda op, node, found: max(found, default=0) + getattr(node, "starts_gradient", False),
        )

    def get_parents(self) -> list[Variable]:
        return get_parents(_node(self))

    def get_arguments(self) -> list[Variable]:
        node = _node(self)
        arguments = _argument_indices(node)
        return [x for i, x in enumerate(get_ancestors(node)) if i in arguments]

    def get_ancestors(self) -> list[Variable]:
        return get_ancestors(_node(self))

    def get_parent_grad(self, my_grad: object, index: int) -> Any:
        """The gradient of a parent, by its index among the parents, given this node's own.

        Raises
        ------
        GradientError
            If there is no such parent, or no derivative.
        """
        node, my_grad = _node(self), as_variable(my_grad)
        arguments, operands = _argument_indices(node), get_ancestors(node)
        parents = [i for i in range(len(operands)) if i not in arguments]
        if not 0 <= index < len(parents):
            raise GradientError(f"{describe(node)} has {len(parents)} parents; there is none at {index}")
        if isinstance(node.op, LogicalOperator):
            raise GradientError(f"{describe(node)} is bool, and has no gradient")
        wanted = operands[parents[index]]
        # Other uses of the same operand are replaced by copies, whose deltas are separate.
        copies = {i: x.astype(x.dtype) for i, x in enumerate(operands) if x is wanted and i != parents[index]}
        found = _deltas(node.op, [copies.get(i, x) for i, x in enumerate(operands)], my_grad).get(wanted)
        return zero_gradient(wanted, my_grad.dtype) if found is None else found

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

    def generate_gradients(self, my_grad: object, messages: dict[Variable, Any] | None = None) -> dict[Variable, Any]:
        """The gradients of all parents, given this node's own, added to those in `messages`.

        A parent that is not differentiable is sent nothing.
        """
        messages = {} if messages is None else messages
        for index, parent in enumerate(self.get_parents()):
            if parent.is_differentiable():
                self.send_grad_message(parent, self.get_parent_grad(my_grad, index), messages)
        return messages

    def equals(self, other: Operand) -> bool:
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
    arguments = _argument_indices(node)
    return [x for i, x in enumerate(get_ancestors(node)) if i not in arguments]


def get_ancestors(node: Variable) -> list[Variable]:
    """The operands of a node; a leaf has none."""
    return [as_variable(x) for x in operands_of(node)] if isinstance(node, OpTreeNode) else []


def _argument_indices(node: Any) -> set[int]:
    """The indices of the operands that are no parents: their gradient is undefined or always zero."""
    op, operands = operator_of(node), get_ancestors(node)
    if isinstance(op, OrphanOperator):
        return set(range(len(operands)))
    if isinstance(op, UnaryOperator | BinaryOperator | AssociativeOperator):
        return set(op.index_map.shape_only)
    inputs = [Input(x.type) for x in operands]
    try:
        deltas = _deltas(op, inputs, _delta_like(node.type))
    except DefinitionError:  # there is no grad at all
        return set(range(len(inputs)))
    return {i for i, x in enumerate(inputs) if _is_none_or_zero(deltas.get(x))}


def _deltas(op: Any, operands: Sequence[Any], delta: Operand) -> dict[Variable, Any]:
    """The deltas of an op's operands, from the gradient of its value."""
    adjoints: dict[Variable, Any] = {}
    op.generate_adjoints(adjoints, delta, *operands)
    return adjoints


def _is_none_or_zero(gradient: object) -> bool:
    if gradient is None or is_null(gradient) or is_disconnected(gradient):
        return True
    # The result of `zero_gradient`: 0.0 broadcast to an operand's shape.
    if not isinstance(gradient, OpTreeNode) or gradient.op.index_map.repeats != (1, 0):
        return False
    _, _, value = parts_of(gradient)
    return type(value) is float and value == 0


def _delta_like(type: object) -> Any:
    """A placeholder for the gradient of a value of a type; a list for several outputs."""
    if isinstance(type, TupleType):
        return [_delta_like(each) for each in type.types]
    if isinstance(type, TensorType) and not is_floating(type.dtype):
        type = TensorType(np.float64, type.shape)
    return Input(type)


def _node(variable: object) -> Any:
    """The variable; for an output of an `Apply`, its node."""
    return variable if isinstance(variable, Constant) else as_operand(variable, "Metadiff")


def _answers(variable: object, inputs_of: Callable[[Any], list[Any]], answer: Callable[..., Any]) -> Any:
    """The op's answer for a variable, computed from its operands' answers in topological order."""
    node = _node(variable)
    inputs: dict[int, list[Any]] = {}

    def cached_inputs(entry: object) -> list[Any]:
        return inputs.setdefault(id(entry), inputs_of(entry))

    known: dict[int, Any] = {}
    for entry in post_order([node], cached_inputs):
        known[id(entry)] = answer(operator_of(entry), entry, [known[id(x)] for x in cached_inputs(entry)])
    return known[id(node)]


METADIFF.update((name, method) for name, method in vars(Metadiff).items() if not name.startswith("_"))
