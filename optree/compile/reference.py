"""The reference interpreter: programs run op by op, by `perform`, on NumPy.

Backends and rewrites are tested against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from optree.arrays import overlap
from optree.cache import Cache
from optree.compile.program import Instruction, Program, RegisterCall, run_steps, taker
from optree.dtypes import in_float32, widens
from optree.errors import DefinitionError, ReentryError, describe
from optree.locks import Locked
from optree.op.op import Op
from optree.tree.node import OpTreeNode
from optree.tree.tensor import Tensor
from optree.tree.types import DTYPES, TensorType
from optree.tree.variable import Constant

#: Classes of values that need no conversion by `Type.filter`.
_ARRAYS = frozenset((np.ndarray, *(dtype.type for dtype in DTYPES)))

#: Maximum entries of a step's cache of valid shapes.
SHAPES = 64


def evaluate(program: Program, values: Sequence[Any]) -> list[Any]:
    """The outputs of a program whose leaves have these values.

    Raises DefinitionError if an op's `perform` breaks its contract.
    """
    return run_each(program, values, lambda instruction, *inputs: performer(instruction)(*inputs))


def prepared(program: Program) -> Callable[..., list[Any]]:
    """`evaluate` of a program that runs repeatedly, from the values of its leaves: performers are made once."""

    def call_of(instruction: Instruction) -> Callable[..., Any]:
        if instruction.op.defines("make_thunk"):  # whose cells are shared by its calls
            return lambda *inputs: performer(instruction)(*inputs)
        return performer(instruction)

    return _runner(program, [*map(call_of, program.instructions)])


def run_each(program: Program, values: Sequence[Any], compute: Callable[..., Any]) -> list[Any]:
    """The outputs of a program whose leaves have these values; `compute` takes an instruction and its operands."""
    return _runner(program, [partial(compute, instruction) for instruction in program.instructions])(values)


def _runner(program: Program, calls: Sequence[Callable[..., Any]]) -> Callable[..., list[Any]]:
    """A function of the leaves' values to the outputs, by a call for each instruction."""
    first, instructions = len(program.leaves), program.instructions
    steps = [
        RegisterCall(call, taker(instruction.inputs), first + index, None, (), index)
        for index, (call, instruction) in enumerate(zip(calls, instructions, strict=True))
    ]
    outputs = taker(program.outputs)

    def note(error: Exception, index: int, roots: object) -> None:
        error.add_note(f"while running {describe(instructions[index].node)}")

    def run(values: Sequence[Any]) -> list[Any]:
        with np.errstate(all="ignore"):
            return list(run_steps(steps, [None] * len(steps), outputs, note, list(values)))

    return run


def value_of(leaf: object) -> Any:
    """A leaf's value: an array or a Python number."""
    if isinstance(leaf, Constant):
        return leaf.value
    return leaf.get() if isinstance(leaf, Tensor) else leaf


def is_widened(node: OpTreeNode) -> bool:
    """Whether a node is computed in float32 and rounded: NumPy's function is slow, or missing, for its dtypes."""
    types = [getattr(x, "type", None) for x in (*node.inputs, node)]
    return any(widens(node.op, getattr(type, "dtype", None)) for type in types)


def value_of_op(instruction: Instruction) -> Callable[..., Any]:
    """An op's `value`, widened to float32 if NumPy's function needs it."""
    op = instruction.op
    if is_widened(instruction.node):
        return in_float32(op, instruction.type.dtype)
    numpy: Callable[..., Any] = op.numpy
    alone = numpy is not None and not op.__props__ and not op.defines("value")  # `value` would only call it
    return numpy if alone or getattr(numpy, "__self__", None) is op else op.value


def checked(instruction: Instruction, value: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """An op's `value`, or another function for it, with its result checked as by `performer`.

    Shapes that were valid once are cached.

    Raises DefinitionError when it is called, if the value is not of the node's type.
    """
    op, types = instruction.op, [instruction.type.any_size]
    dtype, loose = instruction.type.dtype, _undeclared(op, len(instruction.inputs))
    right = Cache("shapes of ops' values", SHAPES)
    value = value or value_of_op(instruction)

    def run(*values: object) -> Any:
        result = value(*values)
        if result.__class__ not in _ARRAYS or result.dtype is not dtype or result.shape not in right:
            result = _accepted(op, 0, _promised(op, types, values)[0], result)
            right[result.shape] = None
        for i in loose:
            if result is values[i] or result.base is not None:
                return _own(result, [values[i] for i in loose])
        return result

    return run


def performer(instruction: Instruction, given_away: Sequence[bool] | None = None) -> Callable[..., Any]:
    """A function that computes one instruction by `perform`, and checks its outputs.

    `given_away`: for each output, whether it is returned to a caller. Others stay in their cells, where the op may
    reuse them in the next call. Without it, cells are new in each call, and several threads may call at once.

    Raises DefinitionError when it is called, if a cell is left empty, resized, or filled with a value that its type
    refuses.
    """
    op = instruction.op
    if not (op.defines("perform") or op.defines("make_thunk")) and isinstance(instruction.type, TensorType):
        return checked(instruction)
    apply = instruction.node.owner
    types = [output.type.any_size for output in apply.outputs]
    if op.defines("make_thunk"):
        return _thunk(instruction, types)
    loose = _undeclared(op, len(instruction.inputs))
    promised = _promise(op, types)
    if given_away is None:

        def run(*values: object) -> Any:
            cells: list[list[Any]] = [[None] for _ in types]
            op.perform(apply, list(values), cells)
            return _taken(op, promised(values), cells, [values[i] for i in loose])

        return run
    cells: list[list[Any]] = [[None] for _ in types]

    def run_again(*values: object) -> Any:
        op.perform(apply, list(values), cells)
        taken = _taken(op, promised(values), cells, [values[i] for i in loose])
        hidden = [cell[0] for cell, given in zip(cells, given_away, strict=True) if not given]
        for cell, given in zip(cells, given_away, strict=True):
            if given:
                cell[0] = None
        if len(types) == 1:
            return taken
        return tuple(_own(x, hidden) if given else x for x, given in zip(taken, given_away, strict=True))

    return run_again


def _undeclared(op: Op, count: int) -> list[int]:
    """The inputs that the op does not declare its outputs to alias; none for an op that destroys an input."""
    return [] if op.destroy_map else [i for i in range(count) if i not in op.shared_inputs()]


def _own(value: Any, others: Sequence[Any]) -> Any:
    """A value, copied if it aliases others."""
    return value.copy() if any(overlap(value, other) for other in others) else value


def _thunk(instruction: Instruction, types: Sequence[Any]) -> Callable[..., Any]:
    """The performer of an op with a thunk, whose cells are shared, so that calls are serialised."""
    op, apply = instruction.op, instruction.node.owner
    storage_map: dict[Any, list[Any]] = {x: [None] for x in (*apply.inputs, *apply.outputs)}
    compute_map: dict[Any, list[Any]] = {x: [True] for x in apply.inputs}
    thunk = op.make_thunk(apply, storage_map, compute_map, apply.outputs)
    loose, cells = _undeclared(op, len(instruction.inputs)), Locked()

    def run(*values: object) -> Any:
        if cells.lock._is_owned():
            raise ReentryError(f"{op}: it runs a tree that contains it, while its cells are in use")
        with cells.lock:
            compute_map.update({x: [False] for x in apply.outputs})
            for x, value in zip(apply.inputs, values, strict=True):
                storage_map[x][0] = value
            thunk()
            return _taken(op, types, [storage_map[x] for x in apply.outputs], [values[i] for i in loose])

    return run


def taken(instruction: Instruction, inputs: Sequence[Any], cells: Sequence[list[Any]]) -> Any:
    """The values in the cells after `perform` on these inputs: one, or a tuple.

    Raises DefinitionError if a cell is empty, resized, or holds what its type refuses.
    """
    types = [output.type.any_size for output in instruction.node.owner.outputs]
    return _taken(instruction.op, _promised(instruction.op, types, inputs), cells)


def _promised(op: Op, types: Sequence[Any], values: Sequence[Any]) -> Sequence[Any]:
    """The types of an op's outputs, with the sizes of its `output_shape` for these values."""
    if len(types) > 1 or not op.gives_shape:
        return types
    return [TensorType(types[0].dtype, op.output_shape(*map(np.shape, values)))]


def _promise(op: Op, types: Sequence[Any]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """`_promised` as a function of the values, which computes types anew only for other shapes than the last."""
    if len(types) > 1 or not op.gives_shape:
        return lambda values: types
    last: tuple[Any, Sequence[Any]] = None, types

    def promised(values: Sequence[Any]) -> Sequence[Any]:
        nonlocal last
        shapes, known = [*map(np.shape, values)], last
        if shapes != known[0]:
            known = last = shapes, _promised(op, types, values)
        return known[1]

    return promised


def _taken(op: Op, types: Sequence[Any], cells: Sequence[list[Any]], undeclared: Sequence[Any] = ()) -> Any:
    """The values in the cells, one or a tuple; copied if they alias inputs undeclared by the op."""
    values = []
    for number, (wanted, cell) in enumerate(zip(types, cells, strict=True)):
        if not isinstance(cell, list) or len(cell) != 1:
            raise DefinitionError(f"{op}: perform resized the cell of output {number}; it sets its one element")
        if cell[0] is None:
            raise DefinitionError(f"{op}: perform left the cell of output {number} empty")
        values.append(_own(_accepted(op, number, wanted, cell[0]), undeclared))
    return values[0] if len(values) == 1 else tuple(values)


def _accepted(op: Op, number: int, wanted: Any, value: Any) -> Any:
    """An output's value, as its type's `filter` returns it."""
    try:
        return wanted.filter(value, strict=True)
    except (TypeError, ValueError) as error:
        method = "perform" if op.defines("perform") else "fill" if op.numpy is None else "numpy"
        raise DefinitionError(f"{op}: {method} gave output {number} a value that its type refuses: {error}") from None
