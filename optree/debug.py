"""Programs run op by op, each op held to its contract: the mode ``'debug'`` of functions.

Each step runs three times: twice on copies of its inputs, the second time with
what the first left in its cells, and then for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from optree.errors import ContractError, NotFiniteError, describe, line_of
from optree.program import Instruction, Program
from optree.reference import performer, taken

#: Values that nobody can change, and that therefore may be shared.
_CONTAINERS = (list, dict, set, bytearray)


def evaluate(program: Program, values: Sequence[Any]) -> list[Any]:
    """The outputs of a program whose leaves have these values.

    Raises
    ------
    ContractError
        If an op leaves a cell empty, resizes it, or fills it with what its type
        refuses; changes an input without a destroy_map; gives an output in an
        input's memory without a view_map, or in what an earlier call gave; gives
        other outputs for equal inputs, or in cells that hold an earlier call's; or
        has another shape than it said.
    NotFiniteError
        If an op makes a nan or an infinity of finite inputs.
    """
    computed = list(values)
    with np.errstate(all="ignore"):
        for instruction in program.instructions:
            computed.append(_step(instruction, [computed[i] for i in instruction.inputs]))
    return [computed[number] for number in program.outputs]


def _step(instruction: Instruction, inputs: list[Any]) -> Any:
    """The value of one instruction."""
    before = deepcopy(inputs)
    cells: list[list[Any]] = [[None] for _ in instruction.node.owner.outputs]
    first = deepcopy(_run(instruction, deepcopy(before), cells))
    second = _run(instruction, deepcopy(before), cells)
    _check_equal(instruction, first, second, "in cells that held the values of the call before")
    value = _run(instruction, inputs, [[None] for _ in cells])
    _check_equal(instruction, first, value, "for equal inputs")
    _check_inputs(instruction, before, inputs)
    _check_memory(instruction, inputs, _as_tuple(instruction, value))
    _check_new(instruction, _as_tuple(instruction, second), _as_tuple(instruction, value))
    _check_shapes(instruction, before, _as_tuple(instruction, value))
    _check_finite(instruction, before, _as_tuple(instruction, value))
    return value


def _run(instruction: Instruction, inputs: list[Any], cells: list[list[Any]]) -> Any:
    op, apply = instruction.op, instruction.node.owner
    if op.defines("make_thunk") and not op.defines("perform"):
        return performer(instruction)(*inputs)
    perform = getattr(op, "debug_perform", None) or op.perform
    perform(apply, inputs, cells)
    return taken(instruction, inputs, cells)


def _check_equal(instruction: Instruction, first: Any, second: Any, when: str) -> None:
    if not instruction.node.type.values_eq(first, second):
        raise ContractError(
            f"{_guilty(instruction)}: perform gives other outputs {when}: {first!r:.80}, {second!r:.80}"
        )


def _check_inputs(instruction: Instruction, before: list[Any], after: list[Any]) -> None:
    """Refuse a change to an input that no destroy_map tells of."""
    destroyed = {i for positions in instruction.op.destroy_map.values() for i in positions}
    for i, variable in enumerate(instruction.node.owner.inputs):
        if i not in destroyed and not variable.type.values_eq(before[i], after[i]):
            raise ContractError(
                f"{_guilty(instruction)}: perform changed input {i}; say so, as in destroy_map = {{0: [{i}]}}, "
                "or work on a copy"
            )


def _check_memory(instruction: Instruction, inputs: list[Any], outputs: Sequence[Any]) -> None:
    """Refuse an output in an input's memory that no map tells of."""
    op = instruction.op
    for place, output in enumerate(outputs):
        allowed = {*op.view_map.get(place, ()), *op.destroy_map.get(place, ())}
        for i, value in enumerate(inputs):
            if i not in allowed and _share(output, value):
                raise ContractError(
                    f"{_guilty(instruction)}: output {place} lies in the memory of input {i}; say so, as in "
                    f"view_map = {{{place}: [{i}]}}, or return a copy"
                )


def _check_new(instruction: Instruction, earlier: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Refuse an output in memory that another call gave away."""
    for place, output in enumerate(outputs):
        if any(_share(output, other) for other in earlier):
            raise ContractError(
                f"{_guilty(instruction)}: output {place} is the same memory in each call; return new memory, "
                "or keep it in its cell, from where it is taken when it is given away"
            )


def _share(x: Any, y: Any) -> bool:
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return np.may_share_memory(x, y)
    return x is y and isinstance(x, _CONTAINERS)


def _check_shapes(instruction: Instruction, inputs: list[Any], outputs: Sequence[Any]) -> None:
    """Refuse an output of another shape than infer_shape says."""
    op = instruction.op
    if op.defines("infer_shape"):
        said = op.infer_shape(instruction.node.owner, [np.shape(x) for x in inputs])
        for place, (shape, output) in enumerate(zip(said, outputs, strict=True)):
            if tuple(shape) != np.shape(output):
                raise ContractError(
                    f"{_guilty(instruction)}: infer_shape says {tuple(shape)} for output {place}, "
                    f"and perform gave {np.shape(output)}"
                )


def _check_finite(instruction: Instruction, inputs: list[Any], outputs: Sequence[Any]) -> None:
    """Refuse a nan or an infinity made of finite inputs."""
    if not all(map(_is_finite, inputs)):
        return
    for place, output in enumerate(outputs):
        if not _is_finite(output):
            array = np.asarray(output)
            where = tuple(map(int, np.argwhere(~np.isfinite(array))[0]))
            raise NotFiniteError(
                f"{_guilty(instruction)}: output {place} is {array[where]} at {where}, of finite inputs"
            )


def _is_finite(value: Any) -> bool:
    if isinstance(value, float | np.ndarray | np.generic) and np.asarray(value).dtype.kind == "f":
        return bool(np.isfinite(value).all())
    return True


def _as_tuple(instruction: Instruction, value: Any) -> tuple[Any, ...]:
    return value if len(instruction.node.owner.outputs) > 1 else (value,)


def _guilty(instruction: Instruction) -> str:
    """The op, and the line that built its node."""
    line = line_of(instruction.node.origin)
    return f"{instruction.op}{f' (built at {line})' if line else ''} of {describe(instruction.node)}"
