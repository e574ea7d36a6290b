"""Memory planning for functions: values of disjoint lifetimes share memory, and steps are bound to it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from backends.execution.executor import KernelCall, KernelStep, Step
from backends.execution.memory import empty_array
from optree.cache import Cache
from optree.compile.program import (
    Note,
    Program,
    RegisterCall,
    Steps,
    leaf_shape,
    outputs_of,
    plain,
    run_steps,
    shapes_of,
    shapes_told,
)
from optree.tree.types import TensorType

#: Maximum combinations of its arguments' sizes for which a function holds memory.
COMBINATIONS = 4


class BoundSteps:
    """A program's steps, for one caller at a time, bound to the leaves that are the same in each call and to memory.

    `arguments`: the leaves that differ from call to call.
    `open`: the registers that follow the leaves at the start of a call.
    """

    def __init__(
        self,
        program: Program,
        steps: list[Step],
        arguments: list[int],
        open: list[Any],
        note: Note,
    ) -> None:
        self.program, self.steps, self.arguments = program, steps, arguments
        self.open, self.note, self.outputs = open, note, outputs_of(program)
        self.slots = slots_of(program, steps)
        for step in steps:
            step.persistent = set(step.plannable) & self.slots.keys()
        #: By the arguments' sizes, the function that runs the steps bound for them.
        self.runs: Cache = Cache("memory of functions", COMBINATIONS)

    def run(self, values: list[Any], roots: object) -> Sequence[Any]:
        """The outputs, for the values of the leaves."""
        sizes = tuple([getattr(values[i], "shape", None) for i in self.arguments]) if self.arguments else ()
        run = self.runs.get(sizes)
        return self._first(sizes, values, roots) if run is None else run(values, roots)

    def _first(self, sizes: object, values: list[Any], roots: object) -> Sequence[Any]:
        """The first run for arguments of some sizes, which binds the steps."""
        registers, bound = values + self.open, list[RegisterCall]()
        for i, array in planned(self.program, self.steps, self.slots, registers, empty_array).items():
            registers[i] = array
        fixed = set(range(len(self.program.leaves))).difference(self.arguments)
        outputs = run_steps(self._binding(registers, fixed, bound), [], self.outputs, self.note, registers, roots)
        rest = [x if i in fixed else None for i, x in enumerate(registers) if i >= len(values)]
        self.runs[sizes] = partial(run_steps, plain(bound), rest, self.outputs, self.note)
        return outputs

    def _binding(self, registers: list[Any], fixed: set[int], bound: list[RegisterCall]) -> Iterator[RegisterCall]:
        """The steps, each bound after it has run; registers that hold the same object in each call are fixed."""
        for step in self.steps:
            known = list[KernelCall | None]()
            call = step.runnable()._replace(dead=())
            yield call._replace(call=partial(_run_kernel, step, known)) if isinstance(step, KernelStep) else call
            again = step.bind(registers, fixed, known[0] if known else None)
            dead = [i for i in step.dead if i not in fixed and registers[i] is not None]
            for i in dead:
                registers[i] = None
            if again is not None:
                bound.append(again._replace(dead=dead))


def _run_kernel(step: KernelStep, known: list[KernelCall | None], registers: list[Any]) -> None:
    """Run a kernel's step, and append the call by which it has run."""
    known.append(step(registers))


def planned_steps(program: Program, steps: Sequence[Step], constants: Sequence[object]) -> Steps:
    """The steps of a program, for reports."""
    return Steps(program, steps, partial(slots_of, program, steps), constants)


def slots_of(program: Program, steps: Sequence[Step], sizes: Any = None) -> dict[int, int]:
    """Register allocation by lifetimes: a slot of memory for each value that is temporary and of a known shape.

    The largest values are given slots first, so that small ones share those in the meantime, and not the reverse.

    `sizes` (sequence or dict of int, optional): the bytes of each value.
    """
    is_known = shapes_told(program)
    end = {i: n for n, step in enumerate(steps) for i in step.dead}
    plannable = [(i, n) for n, step in enumerate(steps) for i in step.plannable]
    start = {i: n for i, n in plannable if i in end and is_known[i] and isinstance(program.type_of(i), TensorType)}
    slots: dict[int, int] = {}
    used: list[list[tuple[int, int]]] = []  # the lifetimes in each slot, in order
    for i in sorted(start, key=lambda i: (-(0 if sizes is None else sizes[i]), start[i])):
        lifetime = start[i], end[i]
        slot = next((n for n, others in enumerate(used) if _is_free(others, lifetime)), len(used))
        if slot == len(used):
            used.append([])
        insort(used[slot], lifetime)
        slots[i] = slot
    return slots


def _is_free(others: list[tuple[int, int]], lifetime: tuple[int, int]) -> bool:
    """Whether none of some lifetimes, in order, shares a step with another one."""
    index = bisect_left(others, lifetime)
    before, after = others[index - 1 : index] if index else [], others[index : index + 1]
    return all(last < lifetime[0] for _, last in before) and all(first > lifetime[1] for first, _ in after)


def planned(
    program: Program,
    steps: Sequence[Step],
    slots: dict[int, int],
    values: Sequence[Any],
    empty: Callable[..., Any],
) -> dict[int, Any]:
    """An array for each value that has a slot, in the same memory where that fits lifetimes and sizes.

    `slots`: the result of `slots_of`.
    `values`: the leaves' values, and others.
    `empty`: from a size and a dtype to a new array.
    """
    shapes = shapes_of(program, [leaf_shape(x) for x in values[: len(program.leaves)]])
    bytes_of = {i: int(np.prod(shapes[i])) * program.type_of(i).dtype.itemsize for i in slots}
    slots = slots_of(program, steps, bytes_of)
    sizes: dict[int, int] = {}
    for i, slot in slots.items():
        sizes[slot] = max(sizes.get(slot, 0), bytes_of[i])
    raw = {slot: empty((size,), np.uint8) for slot, size in sizes.items()}
    return {i: raw[slot][: bytes_of[i]].view(program.type_of(i).dtype).reshape(shapes[i]) for i, slot in slots.items()}
