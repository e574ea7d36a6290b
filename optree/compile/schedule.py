"""The order in which a program may run where ops destroy their inputs (Aesara, "Destroyers and viewers").

An op that destroys an input runs after all else that reads that memory; where
there is no such order, or the memory is not the program's to destroy, it gets
a copy. A tensor is state: the ops that destroy one, such as random ones their
state, do so one after another, each for the next to see. Assignments come after
all that may fail, so that either all are made or none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from optree.compile.aliasing import shared_memories
from optree.compile.program import Instruction, Program, owners_of
from optree.ops.assignment import Assign
from optree.registry import OPS
from optree.tree.node import OpTreeNode, applied
from optree.tree.tensor import Tensor
from optree.tree.traversal import in_order
from optree.tree.variable import Input


def schedule(program: Program) -> Program:
    """The program in an order in which nothing is read after it has been destroyed, with the copies that takes."""
    destroyers = [place for place, instruction in enumerate(program.instructions) if instruction.op.destroy_map]
    if not destroyers:
        return program
    draft = _Draft(program)
    for step in destroyers:
        for position in draft.steps[step].op.destroyed_inputs():
            if draft.needs_copy(step, position):
                draft.copy_before(step, position)
    while True:
        order = draft.possible_order()
        if len(order) == len(draft.order):
            return draft.program(order)
        ran = set(order)
        waiting = [step for step in draft.order if step not in ran and draft.steps[step].op.destroy_map]
        stuck = next(step for step in waiting if not isinstance(draft.steps[step].op, Assign))
        for position in draft.steps[stuck].op.destroyed_inputs():  # two destroyers wait for each other
            draft.copy_before(stuck, position)


def apart(program: Program) -> Program:
    """The program with each output in memory of its own, not a leaf's or another output's.

    What an assignment gives is its target, and stays that.
    """
    first, shared = len(program.leaves), shared_memories(program.instructions, _marks(program))
    instructions, outputs = list(program.instructions), list(program.outputs)
    taken: set[Any] = set()
    for place, value in enumerate(outputs):
        if value >= first and isinstance(instructions[value - first].op, Assign):
            continue
        owners = shared.get(value, frozenset([value]))
        if value < first or owners & taken or not all(_is_made(owner, first) for owner in owners):
            outputs[place] = first + len(instructions)
            instructions.append(_copy_of(value, program.type_of(value)))
        taken |= owners
    return program if outputs == program.outputs else program._replace(instructions=instructions, outputs=outputs)


def _marks(program: Program) -> list[Any]:
    """The mark of each leaf's memory."""
    marks = program.owners or range(len(program.leaves))
    owners = owners_of(program.leaves)
    return [owner if isinstance(owner, Tensor) else mark for owner, mark in zip(owners, marks, strict=True)]


def _is_made(mark: Any, first: int) -> bool:
    """Whether a mark is of memory that an instruction makes, where there are so many leaves."""
    return type(mark) is int and mark >= first


def may_fail(op: Any, node: OpTreeNode) -> bool:
    """Whether a node's op may refuse operands whose types and sizes are right."""
    if not op.can_fail:
        return False
    dtypes = [x.type.dtype for x in node.inputs if hasattr(x.type, "dtype")]
    return len(dtypes) < len(node.inputs) or bool(op.may_fail(*dtypes))


def _copy_of(value: int, type: Any) -> Instruction:
    """An instruction that copies a value."""
    op = OPS["copy"].make()
    return Instruction(op, (value,), applied(op.op_dict(type, None), [Input(type)]))


class _Memory(NamedTuple):
    """Where the values of a draft lie, as far as steps destroy memory.

    Attributes
    ----------
    shared : dict
        The memories of the values that do not lie in memory of their own.
    destroyed : dict
        The memories that each step destroys; steps that destroy none are left out.
    readers : dict
        For each memory that is destroyed the steps that take a value in it, in order.
    place : list of int
        Where each step stands in the order.
    """

    shared: dict[int, frozenset[Any]]
    destroyed: dict[int, frozenset[Any]]
    readers: dict[Any, list[int]]
    place: list[int]

    def of(self, value: int) -> frozenset[Any]:
        """The memories that a value may lie in."""
        return self.shared.get(value) or frozenset([value])


_NOWHERE: frozenset[Any] = frozenset()


class _Draft:
    """A program while copies are put into it.

    Attributes
    ----------
    first : int
        How many leaves there are; the value of a step is its number and this.
    steps : list of Instruction
        Those of the program, and after them the copies.
    order : list of int
        The steps' numbers in an order in which each comes after its inputs.
    """

    def __init__(self, given: Program) -> None:
        self.given, self.first = given, len(given.leaves)
        self._marks = _marks(given)
        self.steps = list(given.instructions)
        self.order = list(range(len(self.steps)))
        self._known: _Memory | None = None

    def memory(self) -> _Memory:
        """Who lies in, reads and destroys what, until a copy changes it."""
        if self._known is None:
            shared = shared_memories(self.steps, self._marks, self.order)
            destroyed = {}
            for step in self.order:
                op, inputs, _ = self.steps[step]
                if op.destroy_map:
                    mine = [inputs[i] for i in op.destroyed_inputs()]
                    destroyed[step] = frozenset().union(*(shared.get(i, (i,)) for i in mine))
            readers: dict[Any, list[int]] = {owner: [] for mine in destroyed.values() for owner in mine}
            place = [0] * len(self.steps)
            for i, step in enumerate(self.order):
                place[step] = i
                for x in self.steps[step].inputs:
                    for owner in shared.get(x, (x,)):
                        if owner in readers and readers[owner][-1:] != [step]:
                            readers[owner].append(step)
            self._known = _Memory(shared, destroyed, readers, place)
        return self._known

    def needs_copy(self, step: int, position: int) -> bool:
        """Whether there is no order in which a step may destroy one of its inputs."""
        memory = self.memory()
        mine = memory.of(self.steps[step].inputs[position])
        if not all(isinstance(owner, Tensor) or _is_made(owner, self.first) for owner in mine):
            return True  # a constant, a number, or what a caller handed in
        after, new = self._after(step)
        if any(memory.of(x) & mine and x not in new for x in self.given.outputs if not self._is_assignment(x)):
            return True
        is_state = all(isinstance(owner, Tensor) for owner in mine)
        for other in self._readers_of(mine, new):
            destroys = memory.destroyed.get(other, _NOWHERE) & mine
            if other == step or (is_state and destroys):  # what destroys a tensor sees it as it is by then
                continue
            if self.first + other in after or (
                destroys and memory.place[step] < memory.place[other]
            ):  # of two, the last goes without
                return True
        return False

    def _is_assignment(self, value: int) -> bool:
        return value >= self.first and isinstance(self.steps[value - self.first].op, Assign)

    def _readers_of(self, mine: frozenset[Any], new: set[int]) -> list[int]:
        """The steps that take a value in these memories which is not among the new ones."""
        memory = self.memory()
        steps = dict.fromkeys(step for owner in mine for step in memory.readers.get(owner, ()))
        return [step for step in steps if any(memory.of(x) & mine and x not in new for x in self.steps[step].inputs)]

    def _after(self, step: int) -> tuple[set[int], set[int]]:
        """The values that need a step's, and those that lie in what it has destroyed, and have seen that."""
        memory, value = self.memory(), self.first + step
        after, new, mine = {value}, {value}, memory.destroyed.get(step, _NOWHERE)
        is_state = all(isinstance(owner, Tensor) for owner in mine)
        for other in self.order[memory.place[step] + 1 :]:
            op, inputs, _ = self.steps[other]
            if is_state and memory.destroyed.get(other, _NOWHERE) & mine:  # runs next, and sees it
                new.add(self.first + other)
            if not after.isdisjoint(inputs):
                after.add(self.first + other)
                if any(inputs[i] in new for i in op.shared_inputs()):
                    new.add(self.first + other)
        return after, new

    def copy_before(self, step: int, position: int) -> None:
        """Let a step destroy a copy of its input."""
        op, inputs, node = self.steps[step]
        value = inputs[position]
        type = self.given.type_of(value) if value < self.first else self.steps[value - self.first].type
        copy = len(self.steps)
        self.steps.append(_copy_of(value, type))
        self.steps[step] = Instruction(op, (*inputs[:position], self.first + copy, *inputs[position + 1 :]), node)
        self.order.insert(self.order.index(step), copy)
        self._known = None

    def possible_order(self) -> list[int]:
        """The steps, each after all that it must come after, and otherwise as they stand; without those that cannot."""
        waits, place = self._waits(), self.memory().place
        if all(place[other] < place[step] for step, others in waits.items() for other in others):
            return self.order
        all_waits = [
            [*(x - self.first for x in instruction.inputs if x >= self.first), *waits.get(step, ())]
            for step, instruction in enumerate(self.steps)
        ]
        return in_order(all_waits, place)

    def _waits(self) -> dict[int, list[int]]:
        """For each step that destroys something, those that must come before it beside its inputs."""
        memory = self.memory()
        failing = [step for step in self.order if may_fail(self.steps[step].op, self.steps[step].node)]
        waits: dict[int, list[int]] = {}
        for step, mine in memory.destroyed.items():
            after, new = self._after(step)
            before = waits[step] = []
            if isinstance(self.steps[step].op, Assign):
                before += [other for other in failing if self.first + other not in after]
            for other in self._readers_of(mine, new):
                later = memory.destroyed.get(other, _NOWHERE) & mine and memory.place[other] > memory.place[step]
                if other != step and not later:
                    before.append(other)
        return waits

    def program(self, order: list[int]) -> Program:
        """The program with the steps in this order."""
        if order == list(range(len(self.given.instructions))):
            return self.given
        numbers = list(range(self.first)) + [0] * len(self.steps)
        for number, step in enumerate(order, self.first):
            numbers[self.first + step] = number
        instructions = [
            Instruction(op, tuple([numbers[x] for x in inputs]), node)
            for op, inputs, node in (self.steps[step] for step in order)
        ]
        return Program(self.given.leaves, instructions, [numbers[x] for x in self.given.outputs])
