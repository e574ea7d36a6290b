"""The order in which a program may run where ops destroy their inputs (Aesara, "Destroyers and viewers").

An op that destroys an input runs after all else that reads that memory; where
there is no such order, or the memory is not the program's to destroy, it gets
a copy. A tensor is state: the ops that destroy one, such as random ones their
state, do so one after another, each for the next to see. Assignments come after
all that may fail, so that either all are made or none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from optree.compile.aliasing import spread
from optree.compile.program import Instruction, Program, owners_of
from optree.ops.assignment import Assign
from optree.registry import OPS
from optree.tree.node import OpTreeNode, applied
from optree.tree.tensor import Tensor
from optree.tree.traversal import in_order
from optree.tree.variable import Input, as_variable


def schedule(program: Program) -> Program:
    """The program in an order in which nothing is read after it has been destroyed, with the copies that takes."""
    if not any(instruction.op.destroy_map for instruction in program.instructions):
        return program
    draft = _Draft(program)
    for step in [step for step in draft.steps if step.op.destroy_map]:
        for position in step.op.destroyed_inputs():
            if draft.needs_copy(step, position):
                draft.copy_before(step, position)
    while True:
        waits, places = draft.waits(), draft.memory().place
        order = in_order([[places[x] for x in waits[step]] for step in draft.steps], range(len(draft.steps)))
        if len(order) == len(draft.steps):
            return draft.program([draft.steps[i] for i in order])
        ran = set(order)
        waiting = [step for i, step in enumerate(draft.steps) if i not in ran and step.op.destroy_map]
        stuck = next(step for step in waiting if not _is_assignment(step))
        for position in stuck.op.destroyed_inputs():  # two destroyers wait for each other
            draft.copy_before(stuck, position)


def apart(program: Program) -> Program:
    """The program with each output in memory of its own, not a leaf's or another output's.

    What an assignment gives is its target, and stays that.
    """
    draft = _Draft(program)
    memories = draft.memories()
    taken: set[Any] = set()
    for place, value in enumerate(draft.outputs):
        if _is_assignment(value):
            continue
        owners = memories[value]
        if not isinstance(value, _Step) or owners & taken or any(not isinstance(owner, _Step) for owner in owners):
            draft.outputs[place] = draft.copy(value, len(draft.steps))
        taken |= owners
    return draft.program(draft.steps)


def may_fail(op: Any, node: OpTreeNode) -> bool:
    """Whether a node's op may refuse operands whose types and sizes are right."""
    if not op.can_fail:
        return False
    dtypes = [x.type.dtype for x in node.inputs if hasattr(x.type, "dtype")]
    return len(dtypes) < len(node.inputs) or bool(op.may_fail(*dtypes))


class _Step:
    """An instruction whose inputs are steps, or the numbers of leaves."""

    def __init__(self, op: Any, inputs: list[Any], node: Any) -> None:
        self.op, self.inputs, self.node = op, inputs, node


class _Memory(NamedTuple):
    """Where the values of a draft lie.

    Attributes
    ----------
    of : dict
        The memories that each value may lie in.
    readers : dict
        For each memory the steps that take a value in it, in order.
    destroyed : dict
        The memories that each step destroys.
    place : dict
        Where each step stands.
    """

    of: dict[Any, frozenset[Any]]
    readers: dict[Any, dict[_Step, None]]
    destroyed: dict[_Step, frozenset[Any]]
    place: dict[_Step, int]

    def readers_of(self, mine: frozenset[Any], new: set[Any]) -> list[_Step]:
        """The steps that take a value in these memories which is not among the new ones."""
        steps = dict.fromkeys(step for owner in mine for step in self.readers.get(owner, ()))
        return [step for step in steps if any(self.of[x] & mine and x not in new for x in step.inputs)]


def _is_assignment(value: Any) -> bool:
    return isinstance(value, _Step) and isinstance(value.op, Assign)


class _Draft:
    """A program while copies are put into it.

    Attributes
    ----------
    steps : list of _Step
        In an order in which each comes after its inputs.
    """

    def __init__(self, program: Program) -> None:
        self.leaves, self.owners = program.leaves, program.owners
        self._lying_in = owners_of(program.leaves)
        values: list[Any] = list(range(len(program.leaves)))
        for op, inputs, node in program.instructions:
            values.append(_Step(op, [values[i] for i in inputs], node))
        self.steps: list[_Step] = values[len(program.leaves) :]
        self.outputs = [values[i] for i in program.outputs]
        self._known: _Memory | None = None

    def memory(self) -> _Memory:
        """Who lies in, reads and destroys what, until a copy changes it."""
        if self._known is None:
            memories = self.memories()
            readers: dict[Any, dict[_Step, None]] = {}
            destroyed: dict[_Step, frozenset[Any]] = {}
            for step in self.steps:
                for x in step.inputs:
                    for owner in memories[x]:
                        readers.setdefault(owner, {})[step] = None
                destroyed[step] = frozenset().union(*(memories[step.inputs[i]] for i in step.op.destroyed_inputs()))
            self._known = _Memory(memories, readers, destroyed, {step: i for i, step in enumerate(self.steps)})
        return self._known

    def memories(self) -> dict[Any, frozenset[Any]]:
        """The memories that each value may lie in: its own, or those of what it looks into or was written over."""
        found: dict[Any, frozenset[Any]] = {
            i: frozenset([owner if isinstance(owner, Tensor) else i if self.owners is None else self.owners[i]])
            for i, owner in enumerate(self._lying_in)
        }
        spread(found, ((step, step.op, step.inputs) for step in self.steps))
        return found

    def needs_copy(self, step: _Step, position: int) -> bool:
        """Whether there is no order in which a step may destroy one of its inputs."""
        memory = self.memory()
        mine = memory.of[step.inputs[position]]
        if any(not isinstance(owner, _Step | Tensor) for owner in mine):
            return True  # a constant, a number, or what a caller handed in
        after, new = self._after(step)
        if any(memory.of[x] & mine and x not in new for x in self.outputs if not _is_assignment(x)):
            return True
        is_state = all(isinstance(owner, Tensor) for owner in mine)
        for other in memory.readers_of(mine, new):
            destroys = memory.destroyed[other] & mine
            if other is step or (is_state and destroys):  # what destroys a tensor sees it as it is by then
                continue
            if other in after or (
                destroys and memory.place[step] < memory.place[other]
            ):  # of two, the last goes without
                return True
        return False

    def _after(self, step: _Step) -> tuple[set[_Step], set[Any]]:
        """The steps that need a step's value, and the values that lie in what it has destroyed, and have seen that."""
        after, new, memory = {step}, {step}, self.memory()
        mine = memory.destroyed[step]
        is_state = all(isinstance(owner, Tensor) for owner in mine)
        for other in self.steps[memory.place[step] + 1 :]:
            if is_state and memory.destroyed[other] & mine:  # runs next, and sees it
                new.add(other)
            if not after.isdisjoint(other.inputs):
                after.add(other)
                if any(other.inputs[i] in new for i in other.op.shared_inputs()):
                    new.add(other)
        return after, new

    def copy_before(self, step: _Step, position: int) -> None:
        """Let a step destroy a copy of its input."""
        step.inputs[position] = self.copy(step.inputs[position], self.steps.index(step))

    def copy(self, value: Any, place: int) -> _Step:
        """A new step at a place that copies a value."""
        type = value.node.type if isinstance(value, _Step) else as_variable(self.leaves[value]).type
        op, stand_in = OPS["copy"].make(), Input(type)
        copy = _Step(op, [value], applied(op.op_dict(type, None), [stand_in]))
        self.steps.insert(place, copy)
        self._known = None
        return copy

    def waits(self) -> dict[_Step, list[_Step]]:
        """For each step those that it must come after."""
        memory = self.memory()
        waits = {step: [x for x in step.inputs if isinstance(x, _Step)] for step in self.steps}
        failing = [step for step in self.steps if may_fail(step.op, step.node)]
        for step in self.steps:
            if not step.op.destroy_map:
                continue
            after, new = self._after(step)
            if _is_assignment(step):
                waits[step] += [other for other in failing if other not in after]
            mine = memory.destroyed[step]
            for other in memory.readers_of(mine, new):
                later = memory.destroyed[other] & mine and memory.place[other] > memory.place[step]
                if other is not step and not later:
                    waits[step].append(other)
        return waits

    def program(self, order: list[_Step]) -> Program:
        """The program with the steps in this order."""
        numbers: dict[Any, int] = {i: i for i in range(len(self.leaves))}
        numbers.update({step: i for i, step in enumerate(order, len(self.leaves))})
        instructions = [Instruction(s.op, tuple(numbers[x] for x in s.inputs), s.node) for s in order]
        return Program(self.leaves, instructions, [numbers[x] for x in self.outputs])
