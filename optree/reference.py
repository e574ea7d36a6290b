"""Programs run op by op, by `perform`, on NumPy: what everything means.

Every backend and every rewrite is tested against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
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
        If an op's `perform` breaks its contract.
    """
    computed = list(values)
    with np.errstate(all="ignore"):
        for instruction in program.instructions:
            computed.append(performer(instruction)(*(computed[i] for i in instruction.inputs)))
    return [computed[number] for number in program.outputs]


def value_of(leaf: Any) -> Any:
    """A leaf's value for NumPy: an array, or a Python number as it is."""
    if isinstance(leaf, Constant):
        return leaf.value
    return leaf.get() if hasattr(leaf, "get") else leaf


def performer(instruction: Instruction, given_away: Sequence[bool] | None = None) -> Callable[..., Any]:
    """A function that computes one instruction as its op says, and checks what comes of it.

    Parameters
    ----------
    given_away : sequence of bool, optional
        For each output whether a caller gets it. What nobody gets stays in its
        cell, for the op to use again in the next call. Without it nothing stays,
        and several threads may call at once.

    Raises
    ------
    DefinitionError
        When it is called, if a cell is left empty, resized, or filled with what
        its type refuses.
    """
    op, apply = instruction.op, instruction.node.owner
    types = [output.type.any_size for output in apply.outputs]
    if op.defines("make_thunk"):
        return _thunk(instruction, types)
    if given_away is None:

        def run(*values: Any) -> Any:
            cells: list[list[Any]] = [[None] for _ in types]
            op.perform(apply, list(values), cells)
            return _taken(op, _promised(op, types, values), cells)

        return run
    cells: list[list[Any]] = [[None] for _ in types]

    def run_again(*values: Any) -> Any:
        op.perform(apply, list(values), cells)
        taken = _taken(op, _promised(op, types, values), cells)
        hidden = [cell[0] for cell, given in zip(cells, given_away, strict=True) if not given]
        for cell, given in zip(cells, given_away, strict=True):
            if given:
                cell[0] = None
        if len(types) == 1:
            return taken
        return tuple(_apart(x, hidden) if given else x for x, given in zip(taken, given_away, strict=True))

    return run_again


def _apart(value: Any, hidden: Sequence[Any]) -> Any:
    """A value that is given away, copied if it lies in memory that the op keeps."""
    if isinstance(value, np.ndarray) and any(
        isinstance(other, np.ndarray) and np.may_share_memory(value, other) for other in hidden
    ):
        return value.copy()
    return value


def _thunk(instruction: Instruction, types: Sequence[Any]) -> Callable[..., Any]:
    """The performer of an op that makes its own thunk: one call at a time, for the cells are shared."""
    op, apply = instruction.op, instruction.node.owner
    storage_map: dict[Any, list[Any]] = {x: [None] for x in (*apply.inputs, *apply.outputs)}
    compute_map: dict[Any, list[Any]] = {x: [True] for x in apply.inputs}
    thunk = op.make_thunk(apply, storage_map, compute_map, apply.outputs)
    lock = Lock()

    def run(*values: Any) -> Any:
        with lock:
            compute_map.update({x: [False] for x in apply.outputs})
            for x, value in zip(apply.inputs, values, strict=True):
                storage_map[x][0] = value
            thunk()
            return _taken(op, types, [storage_map[x] for x in apply.outputs])

    return run


def taken(instruction: Instruction, inputs: Sequence[Any], cells: Sequence[list[Any]]) -> Any:
    """What `perform` put into the cells for these inputs: one value, or a tuple.

    Raises
    ------
    DefinitionError
        If a cell is empty, resized, or holds what its type refuses.
    """
    types = [output.type.any_size for output in instruction.node.owner.outputs]
    return _taken(instruction.op, _promised(instruction.op, types, inputs), cells)


def _promised(op: Any, types: Sequence[Any], values: Sequence[Any]) -> Sequence[Any]:
    """The types of an op's outputs, with the sizes that it says they have for these values."""
    if len(types) > 1 or not op.defines("output_shape"):
        return types
    return [TensorType(types[0].dtype, op.output_shape(*map(np.shape, values)))]


def _taken(op: Any, types: Sequence[Any], cells: Sequence[list[Any]]) -> Any:
    """The values in the cells, one alone or a tuple."""
    values = []
    for number, (wanted, cell) in enumerate(zip(types, cells, strict=True)):
        if not isinstance(cell, list) or len(cell) != 1:
            raise DefinitionError(f"{op}: perform resized the cell of output {number}; it sets its one element")
        if cell[0] is None:
            raise DefinitionError(f"{op}: perform left the cell of output {number} empty")
        try:
            values.append(wanted.filter(cell[0], strict=True))
        except (TypeError, ValueError) as error:
            raise DefinitionError(
                f"{op}: perform gave output {number} a value that its type refuses: {error}"
            ) from None
    return values[0] if len(values) == 1 else tuple(values)
