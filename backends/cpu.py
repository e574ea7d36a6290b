"""The CPU backend: NumPy memory, and assignments run by NumPy's own loops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from backends.backend import Backend
from optree.errors import BackendError, describe
from optree.node import OpTreeNode
from optree.program import Instruction, Program, flatten
from optree.reference import performer
from optree.tensor import Tensor
from optree.traits import ElementwiseOperator
from optree.variable import Constant, Input


class CPUBackend(Backend):
    """Tensors in NumPy arrays."""

    name = "cpu"

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return np.empty(shape, dtype)

    def from_host(self, array: np.ndarray) -> np.ndarray:
        return np.array(array, order="C")

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array.copy(order="C")

    def from_dlpack(self, source: Any, name: str | None = None) -> Tensor:
        return self.adopt(np.from_dlpack(source), name)

    def compile(self, tree: OpTreeNode) -> Callable[[list[Any], OpTreeNode], None]:
        program = flatten([tree])
        steps = _steps(program)
        open_registers = [None] * len(program.instructions)

        def run(leaves: list[Any], tree: OpTreeNode) -> None:
            registers = [leaf.array if type(leaf) is Tensor else _value_of(leaf) for leaf in leaves]
            registers += open_registers
            step = None
            try:
                for step in steps:
                    call, take, output, buffer, dead, _ = step
                    if buffer is None:
                        registers[output] = call(*take(registers))
                    else:
                        registers[output] = call(*take(registers), out=registers[buffer])
                    for i in dead:
                        registers[i] = None
            except Exception as error:
                if step is not None:  # the node of the tree that failed, not of the one that was compiled
                    node = flatten([tree]).instructions[step.output - len(leaves)].node
                    error.add_note(f"while running {describe(node)}")
                raise

        return lambda leaves, tree: _quietly(run, leaves, tree)


class _Quiet(threading.local):
    """A context for each thread in which NumPy does not warn, entered in a tenth of np.errstate's time."""

    def __init__(self) -> None:
        self.context = copy_context()
        self.context.run(np.seterr, all="ignore")
        self.context.run(_is_quiet.set, True)


_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)
_quiet = _Quiet()


def _quietly(run: Callable[..., None], *args: Any) -> None:
    """Run with NumPy's floating-point warnings off; an op's `perform` may itself run an assignment."""
    if _is_quiet.get():
        run(*args)
    else:
        _quiet.context.run(run, *args)


class Step(NamedTuple):
    """One call of a plan, on numbered registers.

    Attributes
    ----------
    call : callable
    take : callable
        Takes the call's arguments from the registers.
    output : int
    buffer : int or None
        The register whose memory the value is written into.
    dead : tuple of int
        Registers that nothing needs after this step.
    node : OpTreeNode
        What it computes, for errors.
    """

    call: Callable[..., Any]
    take: Callable[[list[Any]], Sequence[Any]]
    output: int
    buffer: int | None
    dead: tuple[int, ...]
    node: OpTreeNode


def _steps(program: Program) -> list[Step]:
    """A program's steps: elementwise values go into memory that is done with, what is assigned into its target."""
    first, last = len(program.leaves), program.last_uses()
    steps: list[Step] = []
    for place, instruction in enumerate(program.instructions):
        dead = tuple(i for i in dict.fromkeys(instruction.inputs) if last[i] == place and i >= first)
        if _writes_target(steps, instruction, first + place - 1):
            producer = steps.pop()
            steps.append(producer._replace(buffer=instruction.inputs[0]))
            continue
        if _writes_part(program, place):
            steps[-1] = steps[-1]._replace(call=steps[-1].node.op.write)
            continue
        buffer = next((i for i in dead if _is_reusable(program, i - first, instruction)), None)
        take = _taker(instruction.inputs)
        steps.append(Step(_call_of(instruction), take, first + place, buffer, dead, instruction.node))
    return steps


def _taker(numbers: tuple[int, ...]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function that takes these registers from a list, as a tuple."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return itemgetter(slice(numbers[0], numbers[0] + 1)) if numbers else itemgetter(slice(0, 0))


def _call_of(instruction: Instruction) -> Callable[..., Any]:
    """The function of arrays that computes an instruction."""
    op = instruction.op
    if op.defines("perform") or op.defines("make_thunk"):
        return performer(instruction)
    return op.numpy if _is_ufunc(op) else op.value


def _is_ufunc(op: Any) -> bool:
    return isinstance(op.numpy, np.ufunc) and not op.defines("value") and not op.props


def _is_reusable(program: Program, producer: int, instruction: Instruction) -> bool:
    """Whether an elementwise ufunc may write over an operand that it is the last to need."""
    op = instruction.op
    if producer < 0 or not isinstance(op, ElementwiseOperator) or not _is_ufunc(op):
        return False
    made = program.instructions[producer]
    return made.type is instruction.type and bool(made.type.shape) and not made.op.view_map


def _writes_target(steps: list[Step], assign: Instruction, before: int) -> bool:
    """Whether the value that an assignment copies can be computed in its target at once.

    Only ufuncs that cannot fail half-way: an integer power can.
    """
    if assign.op.name != "assign" or not steps:
        return False
    producer = steps[-1]
    return (
        producer.output == before == assign.inputs[1]
        and _is_ufunc(producer.node.op)
        and producer.node.type is assign.type
        and assign.type.dtype.kind in "fb"
    )


def _writes_part(program: Program, place: int) -> bool:
    """Whether an instruction assigns to a tensor what scatter makes of it: ``target[indices] = value``."""
    assign, producer = program.instructions[place], program.instructions[place - 1]
    return (
        assign.op.name == "assign"
        and place > 0
        and producer.op.name == "scatter"
        and assign.inputs == (producer.inputs[0], len(program.leaves) + place - 1)
    )


def _value_of(leaf: Any) -> Any:
    if isinstance(leaf, Input):
        raise BackendError(f"{leaf.label} is an input: only a function can give it a value")
    return leaf.value if isinstance(leaf, Constant) else leaf
