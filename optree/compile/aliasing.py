"""Alias analysis and liveness, linear in the size of a program. Values are numbered as in `Program`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from optree.compile.program import Instruction, Program
from optree.ops.structure import Output


def alias_sets(program: Program, memories: Sequence[Any] | None = None) -> list[frozenset[Any]]:
    """The alias set of each value: two values can share memory only if their sets intersect.

    A value's memory is its own, named by its number, or that of the inputs that it is a view of or overwrites.

    Parameters
    ----------
    memories : sequence, optional
        For each leaf the name of its memory; by default the number of the first leaf over the same array.
    """
    shared = shared_memories(program.instructions, program.memories() if memories is None else memories)
    return [shared.get(i) or frozenset((i,)) for i in range(len(program.leaves) + len(program.instructions))]


class Aliases:
    """Which instructions of a program overwrite which of its values.

    Attributes
    ----------
    sets : list of frozenset
        The alias set of each value (`alias_sets`).
    """

    def __init__(self, program: Program) -> None:
        self.sets, self._instructions = alias_sets(program), program.instructions
        self._overwritten: dict[int, frozenset[Any]] = {}

    def overwritten(self, index: int) -> frozenset[Any]:
        """The alias set that an instruction overwrites."""
        found = self._overwritten.get(index)
        if found is None:
            op, inputs, _ = self._instructions[index]
            found = frozenset().union(*(self.sets[inputs[i]] for i in op.destroyed_inputs()))
            self._overwritten[index] = found
        return found

    def overwrites(self, index: int, values: Iterable[int]) -> bool:
        """Whether an instruction may overwrite one of some values."""
        mine = self.overwritten(index)
        return bool(mine) and not all(mine.isdisjoint(self.sets[i]) for i in values)


def shared_memories(
    instructions: Sequence[Instruction], memories: Sequence[Any], order: Iterable[int] | None = None
) -> dict[int, frozenset[Any]]:
    """The alias sets of the values that are not in memory of their own.

    Parameters
    ----------
    memories : sequence
        For each leaf the name of its memory.
    order : iterable of int, optional
        A topological order of the instructions, if they are not in one.
    """
    first = len(memories)
    found = {i: frozenset((memory,)) for i, memory in enumerate(memories) if type(memory) is not int or memory != i}
    for index in range(len(instructions)) if order is None else order:
        op, inputs, _ = instructions[index]
        shared = _shared(op, inputs)
        if shared:
            found[first + index] = frozenset().union(*[found.get(i, (i,)) for i in shared])
    return found


def last_uses(program: Program, steps: Sequence[Sequence[int]] | None = None) -> list[int]:
    """Liveness: for each value the last step that uses its memory, also through a view; -1 for none.

    The last use of an output is the number of steps.

    Parameters
    ----------
    steps : sequence of sequences of int, optional
        The instructions of each step. By default each instruction is a step.
    """
    first, instructions = len(program.leaves), program.instructions
    last = [-1] * (first + len(instructions))
    count = len(instructions) if steps is None else len(steps)
    for i in program.outputs:
        last[i] = count
    if steps is None:
        run: Iterable[tuple[int, int]] = ((n, n) for n in range(count - 1, -1, -1))
    else:
        run = ((n, index) for n in range(count - 1, -1, -1) for index in reversed(steps[n]))
    backwards = ((n, first + index, instructions[index]) for n, index in run)
    extend(last, ((n, value, inputs, _shared(op, inputs)) for n, value, (op, inputs, _) in backwards))
    return last


def extend(last: Any, uses: Iterable[tuple[int, int, Sequence[int], Sequence[int]]]) -> None:
    """Update last uses, a list or dict, by instructions from the last to the first.

    Parameters
    ----------
    uses : iterable
        For each instruction its step, its value, its inputs, and those of them that the value may alias.
    """
    for step, value, inputs, shared in uses:
        for i in inputs:
            if last[i] < step:
                last[i] = step
        for i in shared:
            if last[i] < last[value]:
                last[i] = last[value]


def dead_after(program: Program, last: Sequence[int], count: int) -> list[list[int]]:
    """Liveness: for each step, the values other than leaves of which it is the last use."""
    dead: list[list[int]] = [[] for _ in range(count)]
    for value in range(len(program.leaves), len(last)):
        if -1 < last[value] < count:
            dead[last[value]].append(value)
    return dead


def given_away(program: Program, index: int, last: Sequence[int]) -> tuple[bool, ...]:
    """For each output of an instruction, whether an output of the program is the same memory.

    Parameters
    ----------
    last : sequence of int
        The `last_uses` of the program's instructions.
    """
    number, end = len(program.leaves) + index, len(program.instructions)
    count = len(program.instructions[index].node.owner.outputs)
    if count == 1 or number in program.outputs:
        return (last[number] == end,) * count
    given = {
        op.index
        for i, (op, inputs, _) in enumerate(program.instructions, len(program.leaves))
        if inputs == (number,) and isinstance(op, Output) and last[i] == end
    }
    return tuple(n in given for n in range(count))


def _shared(op: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """The inputs that an op's value may alias."""
    return [inputs[n] for n in op.shared_inputs()] if op.view_map or op.destroy_map else ()
