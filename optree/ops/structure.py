"""Structural ops: one output of several, and copies."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from numbers import Number
from typing import Any

import numpy as np

from optree.arrays import Array, portable
from optree.errors import OperandError, describe
from optree.op.apply import Apply
from optree.op.traits import ElementwiseOperator, MorphOperator, UnaryOperator
from optree.registry import numpy_function
from optree.tree.gradient_types import DisconnectedType, sum_of_deltas
from optree.tree.types import Shape, TupleType
from optree.tree.variable import Variable


@numpy_function(np.copy)
class Copy(MorphOperator, ElementwiseOperator):
    """A copy of x, in memory of its own.

    Examples
    --------
    >>> be.copy(be.array([1.0, 2.0])).get()
    array([1., 2.], dtype=float32)
    """

    name = "copy"
    takes_complex = True
    raises = False
    kernel = "{0}"

    def by_parts(self, x: Any) -> Any:
        return x

    @portable
    def numpy(self, x: Array) -> Any:
        return np.array(x) if isinstance(x, np.ndarray | np.generic | Number) else deepcopy(x)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return list(output_gradients)


class Output(UnaryOperator):
    """One output of an op with several."""

    name = "output"
    __props__ = ("index",)
    index: Any = 0
    view_map = {0: [0]}
    raises = False

    def _apply(self, operands: list[Any], specs: tuple[Any, ...]) -> Any:
        (operand,) = operands
        type = getattr(operand, "type", None)
        if not isinstance(type, TupleType):
            raise OperandError(f"output: {describe(operand)} has no outputs to pick from")
        return self.op_dict(type.types[self.index], operand.backend)

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Shape]:
        return [shapes[0][self.index]]

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        return inputs[0][self.index]

    def application_of(self, node: Any) -> Apply:
        """The operand's application, or the node's own if the operand is a leaf."""
        return node[1].owner or Apply.of_node(node)

    def output_index(self, node: Variable) -> int:
        """Its index among the outputs."""
        return self.index

    @portable
    def numpy(self, values: Array) -> Any:
        return values[self.index]

    def generate_adjoints(self, adjoints: dict[Variable, Any], delta: Variable | list[Any], *args: Variable) -> None:
        """Add the delta to the list of the outputs' deltas; those without one are of DisconnectedType."""
        (operand,) = args
        deltas = adjoints.setdefault(operand, [DisconnectedType()() for _ in operand.type.types])
        deltas[self.index] = sum_of_deltas(deltas[self.index], delta)
