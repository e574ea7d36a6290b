"""Alias analysis, of programs by alias sets and of arrays by addresses; liveness; and the order of instructions.

Of a program it is linear in the size, and decides the order.

Ops that run beside others, collective ones, are begun where their operands are there, and awaited where the value is
read. An instruction's level is the number of waits on the longest chain that leads to it. In the order of levels, all
that needs no awaited value runs first: the rest of a backward pass, while the gradients that are there are summed.
What another op can begin with is awaited earlier: a part of the weights is updated, and gathered, during that pass.

An op that destroys an input (Aesara, "Destroyers and viewers") runs after all other readers of that memory. Where no
order allows that, or the memory is not the program's own, it gets a copy. Ops that destroy one tensor, as random ones
do their state, run in program order, each on the result of the one before. Assignments run after all ops that may
fail, so that all are made or none; so do, where nothing is awaited, the elementwise ops that they alone need.

Values are numbered as in `Program`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from math import inf
from operator import or_
from typing import Any

import numpy as np

from optree.arrays import Array, is_array
from optree.compile.program import Instruction, Program
from optree.op.index_map import is_view
from optree.op.op import Op
from optree.op.traits import (
    BeginningOperator,
    DividedOperator,
    ElementwiseOperator,
    ReductionOperator,
    WaitingOperator,
    kernel_of,
)
from optree.ops.assignment import Assign
from optree.ops.structure import Output
from optree.records import NamedTuple
from optree.registry import OPS
from optree.tree.node import OpTreeNode, applied
from optree.tree.tensor import Tensor
from optree.tree.types import Type
from optree.tree.variable import Input, Variable, as_operand


def outlined(program: Program) -> Program:
    """The program with tensors and arrays replaced by inputs, so that a plan keeps no memory alive."""
    leaves = [
        Input(x.type) if isinstance(x, Variable) else x for x in (as_operand(leaf, "a leaf") for leaf in program.leaves)
    ]
    return Program(leaves, program.instructions, program.outputs, memories(program))


def memories(program: Program) -> list[int]:
    """For each leaf the number of the first leaf over the same memory."""
    first: dict[int, int] = {}
    return program.owners or [first.setdefault(id(owner), i) for i, owner in enumerate(owners_of(program.leaves))]


def owners_of(leaves: Sequence[Any]) -> list[Any]:
    """For each leaf the owner of its memory: a tensor's root, the same one for tensors that overlap."""
    roots = list({id(leaf.root): leaf.root for leaf in leaves if isinstance(leaf, Tensor)}.values())
    owner = {id(root): root for root in roots}
    for i, j in overlapping([root.array for root in roots]):  # tensors over one array
        joined, gone = owner[id(roots[i])], owner[id(roots[j])]
        owner = {key: joined if root is gone else root for key, root in owner.items()}
    return [owner[id(leaf.root)] if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def alias_sets(program: Program, names: Sequence[Any] | None = None) -> list[frozenset[Any]]:
    """The alias set of each value: two values can share memory only if their sets intersect.

    A value's memory is its own, named by its number, or that of the inputs that it is a view of or overwrites.

    `names` (sequence, optional): for each leaf the name of its memory; by default the number of the first leaf over the
    same array.
    """
    shared = shared_memories(program.instructions, memories(program) if names is None else names)
    return [shared.get(i) or frozenset((i,)) for i in range(len(program.leaves) + len(program.instructions))]


class Aliases:
    """Which instructions of a program overwrite which of its values.

    `sets`: the alias set of each value (`alias_sets`).
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

    `memories`: for each leaf the name of its memory.
    `order`: a topological order of the instructions, if they are not in one.
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

    `steps`: the instructions of each step. By default each instruction is a step.
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

    `uses`: for each instruction its step, its value, its inputs, and those of them that the value may alias.
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

    `last`: the `last_uses` of the program's instructions.
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


def _shared(op: Op, inputs: Sequence[Any]) -> Sequence[Any]:
    """The inputs that an op's value may alias."""
    return [inputs[n] for n in op.shared_inputs()] if op.view_map or op.destroy_map else ()


# Instruction order


def schedule(program: Program) -> Program:
    """The program with its instructions ordered, and inputs copied, so that none is read after it was destroyed."""
    destroyers = [index for index, instruction in enumerate(program.instructions) if instruction.op.destroy_map]
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
            return program if order == list(range(len(program.instructions))) else _ordered(program, draft.steps, order)
        ran = set(order)
        waiting = [step for step in draft.order if step not in ran and draft.steps[step].op.destroy_map]
        stuck = next(step for step in waiting if not isinstance(draft.steps[step].op, Assign))
        for position in draft.steps[stuck].op.destroyed_inputs():  # a cycle of two destroyers
            draft.copy_before(stuck, position)


# Ops that run beside others


def overlapped(program: Program) -> Program:
    """The program with each op that has `halves` in two, and its instructions in the order of their moments."""
    if not any(map(_halves, program.instructions)):
        return program
    first = len(program.leaves)
    number = list(range(first))  # of each value, in the new program
    made: list[Instruction] = []
    for instruction in program.instructions:
        op, inputs, node = instruction
        operands, halves = tuple([number[i] for i in inputs]), _halves(instruction)
        if halves is None:
            made.append(Instruction(op, operands, node))
        else:
            begun = first + len(made)
            given = Program(program.leaves, made, [])
            made += [_applied(halves[0], operands, given, node)]
            made += [_applied(halves[1], (begun, *operands[1:]), given, node)]
        number.append(first + len(made) - 1)
    split = Program(program.leaves, made, [number[i] for i in program.outputs], program.owners)
    return _in_order_of_moments(split)


def _halves(instruction: Instruction) -> Any:
    """The two ops that an instruction's op is divided into, or None."""
    return instruction.op.halves() if isinstance(instruction.op, DividedOperator) else None


class Moment(NamedTuple):
    """When an instruction runs, for the order of a program."""

    #: The number of ops of level 0 that have begun before; an infinity for what runs after all of them.
    begun: float
    level: float


#: The moment of what runs after all other instructions, assignments aside.
LATE = Moment(inf, inf)


def moments(program: Program) -> list[Moment]:
    """The moment of each instruction.

    A value that other ops wait for to begin is awaited after one more op has begun than the one that gives it: it has
    the time of as much work. All other values are awaited at the end.

    What destroys an operand, such as an assignment, runs no earlier than those before it, so that they stay in order.
    Beginnings are in order by their group's turn, and each write to a buffer that has no other readers is by itself.
    """
    first, instructions, begun = len(program.leaves), program.instructions, 0
    if not any(isinstance(instruction.op, WaitingOperator) for instruction in instructions):
        late = _after_failing(program)
        return [LATE if index in late else Moment(0, 0) for index in range(len(instructions))]
    found, last, is_needed = list[Moment](), Moment(0, 0), _needed_to_begin(program)
    for (op, inputs, _), is_early in zip(instructions, is_needed, strict=True):
        given = [found[i - first] for i in inputs if i >= first]
        begins, waits = isinstance(op, BeginningOperator), isinstance(op, WaitingOperator)
        level = max((each.level for each in given), default=0) + waits
        is_ordered = op.destroy_map and not (begins or (isinstance(op, Assign) and op.owns_target))
        level = max(level, last.level) if is_ordered else level
        if level == 0:
            found.append(Moment(begun, 0))
            begun += begins
            continue
        after = max((each.begun for each in given), default=0) + waits if is_early else inf
        found.append(Moment(max(after, last.begun) if is_ordered else after, level))
        last = found[-1] if is_ordered else last
    return found


def _after_failing(program: Program) -> set[int]:
    """The instructions, elementwise and for assignments alone, that would precede one that may fail.

    If they run after it, they write to the targets; before it, to new memory, and each value would be copied. They
    would precede it in the program, or in a kernel that computes an operand of both.
    """
    first, instructions = len(program.leaves), program.instructions
    fails = {index: 1 << n for n, index in enumerate(failing(instructions))}
    if not fails or not any(is_assignment(instruction.op) for instruction in instructions):
        return set()
    # Bit sets of those that may fail, by value: those that depend on it, those that it depends on, and those that share
    # an operand with it.
    leads, follows, shares = [0] * (first + len(instructions)), [0] * first, [0] * first
    for index in range(len(instructions) - 1, -1, -1):
        for i in instructions[index].inputs:
            leads[i] |= leads[first + index] | fails.get(index, 0)
    for index, (_, inputs, _) in enumerate(instructions):
        follows.append(reduce(or_, [follows[i] for i in inputs], fails.get(index, 0)))
        shares.append(reduce(or_, [shares[i] | leads[i] for i in inputs if i >= first], 0))
    needed, found, later = {*program.outputs}, set[int](), 0
    for index in range(len(instructions) - 1, -1, -1):
        (op, inputs, _), value = instructions[index], first + index
        if is_assignment(op):
            needed.add(inputs[0])
        elif isinstance(op, ElementwiseOperator) and value not in needed and (later | shares[value]) & ~follows[value]:
            found.add(index)
        else:
            needed.update(inputs)
        later |= fails.get(index, 0)
    return found


def _needed_to_begin(program: Program) -> list[bool]:
    """For each instruction, whether an op that begins what runs beside others depends on it."""
    first, needed = len(program.leaves), set[int]()
    for index in range(len(program.instructions) - 1, -1, -1):
        op, inputs, _ = program.instructions[index]
        if isinstance(op, BeginningOperator) or first + index in needed:
            needed.update(inputs)
    begins = [isinstance(instruction.op, BeginningOperator) for instruction in program.instructions]
    return [each or first + index in needed for index, each in enumerate(begins)]


def _in_order_of_moments(program: Program) -> Program:
    moment = moments(program)
    order = sorted(range(len(moment)), key=moment.__getitem__)  # stable
    return _ordered(program, program.instructions, order)


def _ordered(program: Program, steps: Sequence[Instruction], order: Sequence[int]) -> Program:
    """A program with the steps in this order; the value of step n is the number of leaves + n."""
    first = len(program.leaves)
    number = list(range(first)) + [0] * len(steps)
    for position, step in enumerate(order, first):
        number[first + step] = position
    instructions = [
        Instruction(op, tuple([number[i] for i in inputs]), node) for op, inputs, node in map(steps.__getitem__, order)
    ]
    return program._replace(instructions=instructions, outputs=[number[i] for i in program.outputs])


def _applied(op: object, inputs: tuple[int, ...], program: Program, like: object) -> Instruction:
    node = op(*[Input(program.type_of(i)) for i in inputs])  # type: ignore[operator]
    node.origin = like.origin  # type: ignore[attr-defined]
    return Instruction(op, inputs, node)


# Copies


def unalias_outputs(program: Program) -> Program:
    """The program with a copy of each output that may alias a leaf or another output.

    An assignment's output is its target, and is not copied.
    """
    first, instructions, outputs = len(program.leaves), list(program.instructions), list(program.outputs)
    read = [
        (i, value)
        for i, value in enumerate(outputs)
        if value < first or not isinstance(instructions[value - first].op, Assign)
    ]
    if not read:
        return program
    shared = shared_memories(program.instructions, _memory_keys(program))
    taken: set[Any] = set()
    for i, value in read:
        owners = shared.get(value, frozenset([value]))
        if value < first or owners & taken or not all(_is_allocated(owner, first) for owner in owners):
            outputs[i] = first + len(instructions)
            instructions.append(_copy_of(value, program.type_of(value)))
        taken |= owners
    return program if outputs == program.outputs else program._replace(instructions=instructions, outputs=outputs)


def _memory_keys(program: Program) -> list[Any]:
    """For each leaf a key of its memory: the tensor, or a number."""
    keys = program.owners or range(len(program.leaves))
    owners = owners_of(program.leaves)
    return [owner if isinstance(owner, Tensor) else key for owner, key in zip(owners, keys, strict=True)]


def _is_allocated(key: object, first: int) -> bool:
    """Whether an instruction allocates the memory with a key, in a program of `first` leaves."""
    return type(key) is int and key >= first


def may_fail(op: Op, node: OpTreeNode) -> bool:
    """Whether a node's op may raise on operands of valid types and sizes."""
    if not op.raises:
        return False
    inputs = node.inputs
    dtypes = [x.type.dtype for x in inputs if hasattr(x.type, "dtype")]
    if len(dtypes) == len(inputs):  # kernels do not raise
        if isinstance(op, ReductionOperator) and op.accumulator_for(dtypes[0]) is not None:
            return False
        if isinstance(op, ElementwiseOperator) and kernel_of(op, dtypes) is not None:
            return False
    return not is_view(op)


def is_assignment(op: Op) -> bool:
    """Whether an op writes a tensor that others see, which it does after all that may fail."""
    return isinstance(op, Assign) and not op.owns_target


def failing(instructions: Sequence[Instruction]) -> list[int]:
    """The indices of the instructions that may fail."""
    known: dict[int, bool] = {}  # by node: applications of one type from one line share theirs
    found = []
    for index, (op, _, node) in enumerate(instructions):
        fails = known.get(id(node))
        if fails is None:
            fails = known[id(node)] = may_fail(op, node)
        if fails:
            found.append(index)
    return found


def _copy_of(value: int, type: Type) -> Instruction:
    """An instruction that copies a value."""
    op = OPS["copy"].make()
    return Instruction(op, (value,), applied(op.op_dict(type, None), [Input(type)]))


_NOWHERE: frozenset[Any] = frozenset()


class _Draft:
    """A program under construction: its instructions and the copies added so far.

    `first`: the number of leaves; the value of step n is `first` + n.
    `steps`: the program's instructions, then the copies.
    `order`: the steps in topological order.
    `rank`: each step's index in the order.
    `shared`: the alias sets of the values that do not have memory of their own.
    `destroyed`: the alias set that each destroying step overwrites.
    `readers`: for each memory that is destroyed, the steps that read it, in order.
    """

    def __init__(self, given: Program) -> None:
        self.given, self.first = given, len(given.leaves)
        self._memory_keys = _memory_keys(given)
        self.steps = list(given.instructions)
        self.order = list(range(len(self.steps)))
        assigned = {value for value, each in enumerate(self.steps, self.first) if isinstance(each.op, Assign)}
        self._returned = [value for value in given.outputs if value not in assigned]
        self._analyse()

    def _analyse(self) -> None:
        """Set the rank and the aliasing of the steps."""
        self.rank = [0] * len(self.steps)
        for i, step in enumerate(self.order):
            self.rank[step] = i
        shared = self.shared = shared_memories(self.steps, self._memory_keys, self.order)
        self.destroyed: dict[int, frozenset[Any]] = {}
        for step in self.order:
            op, inputs, _ = self.steps[step]
            if op.destroy_map:
                mine = [inputs[i] for i in op.destroyed_inputs()]
                self.destroyed[step] = frozenset().union(*(shared.get(i, (i,)) for i in mine))
        self.readers: dict[Any, list[int]] = {owner: [] for mine in self.destroyed.values() for owner in mine}
        for step in self.order:
            for x in self.steps[step].inputs:
                for owner in shared.get(x, (x,)):
                    if owner in self.readers and self.readers[owner][-1:] != [step]:
                        self.readers[owner].append(step)

    def memory_of(self, value: int) -> frozenset[Any]:
        """A value's alias set."""
        return self.shared.get(value) or frozenset([value])

    def needs_copy(self, step: int, position: int) -> bool:
        """Whether no order allows a step to destroy one of its inputs."""
        mine = self.memory_of(self.steps[step].inputs[position])
        if not all(isinstance(owner, Tensor) or _is_allocated(owner, self.first) for owner in mine):
            return True  # a constant, a number, or a caller's array
        after, new = self._after(step)
        if any(self.memory_of(x) & mine and x not in new for x in self._returned):
            return True
        is_state = all(isinstance(owner, Tensor) for owner in mine)
        for other in self._readers_of(mine, new):
            destroys = self.destroyed.get(other, _NOWHERE) & mine
            if other == step or (is_state and destroys):  # updates of a tensor run in program order
                continue
            # Of two destroyers, the last needs no copy.
            if self.first + other in after or (destroys and self.rank[step] < self.rank[other]):
                return True
        return False

    def _readers_of(self, mine: frozenset[Any], new: set[int]) -> list[int]:
        """The steps that read these memories through a value that is not in `new`."""
        steps = dict.fromkeys(step for owner in mine for step in self.readers.get(owner, ()))
        return [
            step for step in steps if any(self.memory_of(x) & mine and x not in new for x in self.steps[step].inputs)
        ]

    def _after(self, step: int) -> tuple[set[int], set[int]]:
        """The values that depend on a step's, and those in the memory it destroyed, as they are after it."""
        value = self.first + step
        after, new, mine = {value}, {value}, self.destroyed.get(step, _NOWHERE)
        is_state = all(isinstance(owner, Tensor) for owner in mine)
        for other in self.order[self.rank[step] + 1 :]:
            op, inputs, _ = self.steps[other]
            if is_state and self.destroyed.get(other, _NOWHERE) & mine:  # the next update of the tensor
                new.add(self.first + other)
            if not after.isdisjoint(inputs):
                after.add(self.first + other)
                if any(inputs[i] in new for i in op.shared_inputs()):
                    new.add(self.first + other)
        return after, new

    def copy_before(self, step: int, position: int) -> None:
        """Replace a destroyed input of a step by a copy."""
        op, inputs, node = self.steps[step]
        value = inputs[position]
        type = self.given.type_of(value) if value < self.first else self.steps[value - self.first].type
        copy = len(self.steps)
        self.steps.append(_copy_of(value, type))
        self.steps[step] = Instruction(op, (*inputs[:position], self.first + copy, *inputs[position + 1 :]), node)
        self.order.insert(self.order.index(step), copy)
        self._analyse()

    def possible_order(self) -> list[int]:
        """The steps in topological order, ties broken by the present one, without those in cycles."""
        waits, rank = self._waits(), self.rank
        if all(rank[other] < rank[step] for step, others in waits.items() for other in others):
            return self.order
        all_waits = [
            [*(x - self.first for x in instruction.inputs if x >= self.first), *waits.get(step, ())]
            for step, instruction in enumerate(self.steps)
        ]
        return in_order(all_waits, rank)

    def _waits(self) -> dict[int, list[int]]:
        """For each destroying step, those that must precede it besides its inputs."""
        may_fail_first = failing(self.steps)
        waits: dict[int, list[int]] = {}
        for step, mine in self.destroyed.items():
            after, new = self._after(step)
            before = waits[step] = []
            if is_assignment(self.steps[step].op):
                before += [other for other in may_fail_first if self.first + other not in after]
            for other in self._readers_of(mine, new):
                later = self.destroyed.get(other, _NOWHERE) & mine and self.rank[other] > self.rank[step]
                if other != step and not later:
                    before.append(other)
        return waits


def in_order(waits: Sequence[Iterable[int]], ranks: Sequence[Any]) -> list[int]:
    """Numbers in topological order, each after those that it waits for, ties broken by rank.

    Cycles, and what depends on them, are left out.
    """
    followers: list[list[int]] = [[] for _ in waits]
    left = []
    for number, others in enumerate(map(set, waits)):
        left.append(len(others))
        for other in others:
            followers[other].append(number)
    ready = [(ranks[number], number) for number, count in enumerate(left) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for follower in followers[number]:
            left[follower] -= 1
            if not left[follower]:
                heapq.heappush(ready, (ranks[follower], follower))
    return order


# Addresses


def address(array: np.ndarray) -> int:
    """The address of a NumPy array's first element."""
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def byte_bounds(array: Any) -> tuple[int, int]:
    """The addresses of an array's first byte and of the one after its last, for any strides."""
    low = address(array) if isinstance(array, np.ndarray) else array.data.ptr
    if array.flags.c_contiguous:  # as arguments mostly are, whose bounds are compared at each call
        return low, low + array.nbytes
    first, end = byte_span(array)
    return low + first, low + end


def byte_span(array: Any) -> tuple[int, int]:
    """The offsets of an array's first byte and of the one after its last from its first element."""
    if not array.size:
        return 0, 0
    steps = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + array.itemsize


def overlapping(arrays: Sequence[Any], exactly: bool = False) -> Iterator[tuple[int, int]]:
    """The pairs of arrays, by index, whose bounds overlap, or which with `exactly` share an element.

    Where the exact test takes too long, they count as overlapping.
    """
    bounds = [byte_bounds(array) for array in arrays]
    before: list[int] = []
    for i in sorted(range(len(arrays)), key=bounds.__getitem__):
        low, high = bounds[i]
        before = [j for j in before if bounds[j][1] > low]
        for j in before if low < high else ():
            if not exactly or _share_an_element(arrays[i], arrays[j]):
                yield min(i, j), max(i, j)
        before.append(i)


#: The limit on the work of NumPy's exact overlap test (`max_work`).
OVERLAP_STEPS = 1 << 16


def _share_an_element(x: Array, y: Array) -> bool:
    try:
        return bool(np.shares_memory(_on_host(x), _on_host(y), max_work=OVERLAP_STEPS))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


class _Layout:
    """The array interface of a device array: its address and strides."""

    def __init__(self, array: Any) -> None:
        interface = {"shape": array.shape, "strides": array.strides, "typestr": f"|V{array.itemsize}", "version": 3}
        self.__array_interface__ = {**interface, "data": (array.data.ptr, True)}


def _on_host(array: Array) -> np.ndarray:
    """An array whose addresses NumPy can compare; nothing is read from it."""
    return array if isinstance(array, np.ndarray) else np.asarray(_Layout(array))


class Region:
    """The memory of several arrays, for fast overlap tests at each call of a function.

    `arrays` (sequence of array): they are referenced, so that their memory is not reused.
    """

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._arrays = list(arrays)
        owners = [_owner(array) for array in arrays]
        #: An owner's memory overlaps no other's; where another library owns it, addresses decide.
        self._owners = None if any(owner is None for owner in owners) else set(map(id, owners))
        self._lows: list[int] = []
        self._highs: list[int] = []
        for low, high in sorted(map(byte_bounds, arrays)):
            if self._highs and low < self._highs[-1]:
                self._highs[-1] = max(high, self._highs[-1])
            elif low < high:
                self._lows.append(low)
                self._highs.append(high)

    def touches(self, value: object) -> bool:
        """Whether a value is an array whose bounds overlap the region."""
        if value.__class__ is np.ndarray:
            owner = value if value.base is None else value.base
            if self._owners is not None and id(owner) not in self._owners and _owns(owner):
                return False
        elif not is_array(value) or isinstance(value, np.generic):
            return False
        low, high = byte_bounds(value)
        i = bisect_left(self._lows, high) - 1
        return i >= 0 and self._highs[i] > low


def _owns(array: object) -> bool:
    return array.__class__ is np.ndarray and array.base is None


def _owner(array: object) -> Any:
    """The NumPy array that owns an array's memory; None if another library owns it."""
    if array.__class__ is not np.ndarray:
        return None
    owner = array if array.base is None else array.base
    return owner if _owns(owner) else None
