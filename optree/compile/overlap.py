"""Ops that run beside others, collective ones: begun where their operands are there, awaited where the value is read.

An instruction's level is the number of waits on the longest chain that leads to it. In the order of levels, all that
needs no awaited value runs first: the rest of a backward pass, while the gradients that are there are summed.
"""

from __future__ import annotations

from optree.compile.program import Instruction, Program
from optree.tree.variable import Input


def overlapped(program: Program) -> Program:
    """The program with each op that has `halves` in two, and its instructions in the order of their levels."""
    if not any(instruction.op.halves() for instruction in program.instructions):
        return program
    first = len(program.leaves)
    number = list(range(first))  # of each value, in the new program
    made: list[Instruction] = []
    for op, inputs, node in program.instructions:
        operands, halves = tuple([number[i] for i in inputs]), op.halves()
        if halves is None:
            made.append(Instruction(op, operands, node))
        else:
            begun = first + len(made)
            given = Program(program.leaves, made, [])
            made += [_applied(halves[0], operands, given, node)]
            made += [_applied(halves[1], (begun, *operands[1:]), given, node)]
        number.append(first + len(made) - 1)
    split = Program(program.leaves, made, [number[i] for i in program.outputs], program.owners)
    return _in_order_of_levels(split)


def levels(program: Program) -> list[int]:
    """The level of each instruction.

    What destroys an operand, such as an assignment, is of no lower level than those before it, so that they stay in
    order. Beginnings are among themselves, on their group's turn: they are all of the order of levels.
    """
    first, found, last = len(program.leaves), list[int](), 0
    for op, inputs, _ in program.instructions:
        level = max((found[i - first] for i in inputs if i >= first), default=0) + op.waits
        if op.destroy_map and not op.begins:
            level = last = max(level, last)
        found.append(level)
    return found


def _in_order_of_levels(program: Program) -> Program:
    level, first = levels(program), len(program.leaves)
    order = sorted(range(len(level)), key=level.__getitem__)  # stable
    number = list(range(first)) + [0] * len(order)
    for position, index in enumerate(order, first):
        number[first + index] = position
    instructions = [program.instructions[index] for index in order]
    moved = [Instruction(op, tuple([number[i] for i in inputs]), node) for op, inputs, node in instructions]
    return program._replace(instructions=moved, outputs=[number[i] for i in program.outputs])


def _applied(op: object, inputs: tuple[int, ...], program: Program, like: object) -> Instruction:
    node = op(*[Input(program.type_of(i)) for i in inputs])  # type: ignore[operator]
    node.origin = like.origin  # type: ignore[attr-defined]
    return Instruction(op, inputs, node)
