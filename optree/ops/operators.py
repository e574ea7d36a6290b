"""What Metadiff's guide asks of an operator ("AbstractOperator"), with its defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.dtypes import is_floating
from optree.errors import DefinitionError, GradientError, describe
from optree.tree.deltas import zero_gradient
from optree.tree.gradient_types import is_disconnected, is_null
from optree.tree.node import OpTreeNode, operands_of
from optree.tree.types import TensorType, TupleType
from optree.tree.variable import Input, Variable, as_variable


class AbstractOperator:
    """The part of `Op` that answers Metadiff's questions about a node; traits answer some in its place.

    Where an answer follows from those for the node's operands, it is given
    them: `optree.metadiff` walks the tree.
    """

    #: Whether all operands are parents, but for those whose shape alone counts.
    takes_parents: bool = False

    def is_input_dependent(self, ancestors: Sequence[bool]) -> bool:
        """Whether any of the ancestors is."""
        return any(ancestors)

    def is_differentiable(self, parents: Sequence[bool]) -> bool:
        """Whether any of the parents is."""
        return any(parents)

    def get_grad_level(self, ancestors: Sequence[int]) -> int:
        """The highest of the ancestors'."""
        return max(ancestors, default=0)

    def get_data_type(self, node: Any) -> Any:
        """The dtype that `resolve_dtypes` found for the parents' dtypes; the type of what is no array."""
        return node.dtype if isinstance(node.type, TensorType) else node.type

    def get_shape(self, node: Any) -> Any:
        """The shape that `output_shape` found for the parents' shapes."""
        return node.shape

    def get_ancestors(self, node: Any) -> list[Variable]:
        """The operands; a leaf has none."""
        return [as_variable(x) for x in operands_of(node)] if isinstance(node, OpTreeNode) else []

    def get_parents(self, node: Any) -> list[Variable]:
        """The operands that the value changes smoothly with."""
        arguments = self.argument_places(node)
        return [x for i, x in enumerate(self.get_ancestors(node)) if i not in arguments]

    def get_arguments(self, node: Any) -> list[Variable]:
        """The operands that the value changes with otherwise."""
        arguments = self.argument_places(node)
        return [x for i, x in enumerate(self.get_ancestors(node)) if i in arguments]

    def argument_places(self, node: Any) -> set[int]:
        """The places of the operands that are arguments: those that `grad` has no gradient for, or always zero."""
        if self.takes_parents:
            return set(self.shape_only)  # type: ignore[attr-defined]
        stand_ins = [Input(x.type) for x in self.get_ancestors(node)]
        try:
            sent = self._sent(stand_ins, _delta_like(node.type))
        except DefinitionError:  # there is no grad at all
            return set(range(len(stand_ins)))
        return {i for i, x in enumerate(stand_ins) if _is_none_or_zero(sent.get(x))}

    def get_parent_grad(self, node: Any, my_grad: Any, index: int) -> Any:
        """The gradient of a parent, given that of the node."""
        arguments = self.argument_places(node)
        operands = self.get_ancestors(node)
        places = [i for i in range(len(operands)) if i not in arguments]
        if not 0 <= index < len(places):
            raise GradientError(f"{describe(node)} has {len(places)} parents; there is none at {index}")
        wanted = operands[places[index]]
        # An operand that stands in two places would be sent the sum of both: the others get a stand-in.
        copies = {i: x.astype(x.dtype) for i, x in enumerate(operands) if x is wanted and i != places[index]}
        sent = self._sent([copies.get(i, x) for i, x in enumerate(operands)], my_grad)
        found = sent.get(wanted)
        return zero_gradient(wanted, my_grad.dtype) if found is None else found

    def _sent(self, operands: Sequence[Any], delta: Any) -> dict[Variable, Any]:
        """What the op sends operands, given the gradient of its value."""
        adjoints: dict[Variable, Any] = {}
        self.generate_adjoints(adjoints, delta, *operands)  # type: ignore[attr-defined]
        return adjoints


def _is_none_or_zero(gradient: Any) -> bool:
    if gradient is None or is_null(gradient) or is_disconnected(gradient):
        return True
    op = getattr(gradient, "op", None)  # of what `zero_gradient` makes
    return op is not None and op.name == "fill_like" and type(gradient[2]) is float and gradient[2] == 0


def _delta_like(type: Any) -> Any:
    """What stands for the gradient of a value of a type; a list for several."""
    if isinstance(type, TupleType):
        return [_delta_like(each) for each in type.types]
    if isinstance(type, TensorType) and not is_floating(type.dtype):
        type = TensorType(np.float64, type.shape)
    return Input(type)
