"""Alias sets and liveness of programs, over instructions and over fused steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends import gen_backend
from optree.compile.aliasing import alias_sets, dead_after, last_uses, outlined
from optree.compile.program import Program, flatten
from optree.tree.node import OpTreeNode


@pytest.fixture
def be() -> Any:
    return gen_backend("cpu", datatype="float64", rng_seed=0)


def _names(program: Program) -> list[str]:
    return [instruction.op.name for instruction in program.instructions]


def test_a_view_is_in_its_operands_memory_and_a_new_value_in_its_own(be: Any) -> None:
    x = be.ones((2, 3))
    w = x * 2.0
    program = flatten([be.transpose(w) + be.transpose(be.transpose(w)).T])
    assert _names(program) == ["mul", "transpose", "transpose", "transpose", "add"]
    first, sets = len(program.leaves), alias_sets(program)
    mul, turned, back, again, add = sets[first:]
    assert mul == turned == back == again == {first} and add == {first + 4}


def test_leaves_over_one_array_are_in_one_memory(be: Any) -> None:
    x = be.ones((4,))
    y, z = x[:2], be.ones((2,))
    program = flatten([y + x[1:3] + z])
    memories = {id(leaf): found for leaf, found in zip(program.leaves, alias_sets(program), strict=False)}
    (one, two), other = [memories[id(leaf)] for leaf in program.leaves if leaf is not z], memories[id(z)]
    assert one == two and not one & other
    apart = alias_sets(program, range(len(program.leaves)))
    assert len(set(apart[: len(program.leaves)])) == 3, "named one by one, each leaf has its own"
    assert alias_sets(outlined(program)) == alias_sets(program), "a plan's outline knows it without the tensors"


def test_an_assignment_is_in_its_targets_memory(be: Any) -> None:
    z = be.zeros((3,))
    program = flatten([OpTreeNode.build("assign", z, z * 2.0)])
    (target,) = {i for i, leaf in enumerate(program.leaves) if leaf is z}
    assert alias_sets(program)[-1] == alias_sets(program)[target]


def test_liveness_over_steps_counts_steps(be: Any) -> None:
    x = be.ones((2, 3))
    w = x * 2.0
    program = flatten([be.sum(be.transpose(w)) + (w + 1.0)])
    assert _names(program) == ["mul", "transpose", "sum", "add", "add"]
    first = len(program.leaves)
    assert last_uses(program)[first:] == [3, 2, 4, 4, 5]
    steps = [[0, 1, 2], [3, 4]]
    last = last_uses(program, steps)
    assert last[first:] == [1, 0, 1, 1, 2]
    assert dead_after(program, last, 2) == [[first + 1], [first, first + 2, first + 3]]
    assert last_uses(program, [[0, 1, 2]])[first + 3] == -1, "what no step needs lives through none"


def test_a_view_keeps_alive_what_it_looks_into_and_what_is_written_over_it_does_not(be: Any) -> None:
    x, z = be.ones((2, 2)), be.zeros((2, 2))
    w = x * 2.0
    program = flatten([be.sum(be.transpose(w)), OpTreeNode.build("assign", z, w + 1.0)])
    assert _names(program) == ["mul", "transpose", "sum", "add", "assign"]
    last = last_uses(program)
    value = len(program.leaves) + 3
    assert last[value] == 4, "an assignment copies its value: only its target is needed to the end"
    (target,) = (i for i, leaf in enumerate(program.leaves) if leaf is z)
    assert last[target] == len(program.instructions)


@pytest.mark.parametrize("is_view", [True, False])
def test_both_are_linear_in_the_program(be: Any, is_view: bool) -> None:
    tree = be.ones((1, 1))
    for _ in range(20_000):
        tree = be.transpose(tree) if is_view else tree * np.float64(2)
    program = flatten([tree])
    sets, last = alias_sets(program), last_uses(program)
    assert len(sets) == len(last) == len(program.leaves) + len(program.instructions)
    assert len(set(sets[len(program.leaves) :])) == (1 if is_view else len(program.instructions))
