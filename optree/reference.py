"""Programs run op by op, by `perform`, on NumPy: what everything means.

Every backend and every rewrite is tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.errors import DefinitionError
from optree.program import Instruction, Program
from optree.types import TensorType
from optree.variable import Constant


def evaluate(program: Program, values: Sequence[Any]) -> list[Any]:
    """The outputs of a program whose leaves have these values.

    Raises
    ------
    DefinitionError
        If an op's `perform` leaves its output empty, or of another shape or
        dtype than the op said.
    """
    computed = list(values)
    with np.errstate(all="ignore"):
        for instruction in program.instructions:
            computed.append(perform(instruction, [computed[i] for i in instruction.inputs]))
    return [computed[number] for number in program.outputs]


def value_of(leaf: Any) -> Any:
    """A leaf's value for NumPy: an array, or a Python number as it is."""
    if isinstance(leaf, Constant):
        return leaf.value
    return leaf.get() if hasattr(leaf, "get") else leaf


def perform(instruction: Instruction, inputs: Sequence[Any]) -> Any:
    """The value of one instruction, by its op's `perform`, checked against the type it promised."""
    storage: list[Any] = [None]
    instruction.op.perform(instruction.node, inputs, [storage])
    value = storage[0]
    if value is None:
        raise DefinitionError(f"{instruction.op}: perform left its output empty")
    # The instruction's own sizes are those of the tree it was made for, and a plan serves others too.
    array, shape = np.asarray(value), instruction.op.output_shape(*map(np.shape, inputs))
    if array.shape != shape or array.dtype != instruction.type.dtype:
        wanted = TensorType(instruction.type.dtype, shape)
        raise DefinitionError(f"{instruction.op}: perform gave {array.shape} {array.dtype}, not {wanted}")
    return value
