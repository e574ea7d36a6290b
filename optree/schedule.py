"""The order in which a program may run where ops destroy their inputs (Aesara, "Destroyers and viewers").

An op that destroys an input runs after all else that reads that memory; where
there is no such order, or the memory is not the program's to destroy, it gets
a copy. A tensor is state: ops that destroy one, such as random ones their
state, do so one after another, each for all to see.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from optree.node import applied
from optree.program import Instruction, Program
from optree.registry import OPS
from optree.variable import Input, Variable


def schedule(program: Program) -> Program:
    """The program in an order in which nothing is read after it has been destroyed, with the copies that takes."""
    if not any(instruction.op.destroy_map for instruction in program.instructions):
        return program
    program = _with_copies(program)
    return _in_order(program, _waits(program))


def memories(program: Program) -> list[frozenset[Any]]:
    """For each value, the memories that it may lie in: its own, or that of what it is a view of or written over.

    A tensor's memory is named by the tensor that owns it, any other by a number.
    """
    found: list[frozenset[Any]] = []
    for number, leaf in enumerate(program.leaves):
        found.append(frozenset([leaf.root if hasattr(leaf, "root") else number]))
    for number, instruction in enumerate(program.instructions, len(program.leaves)):
        maps = (instruction.op.view_map, instruction.op.destroy_map)
        shared = {i for each in maps for positions in each.values() for i in positions}
        found.append(frozenset([number]).union(*(found[instruction.inputs[i]] for i in shared)))
    return found
