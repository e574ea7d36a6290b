"""Memory planning for functions: values of disjoint lifetimes share memory, and steps are bound to it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        self.lifetimes = lifetimes_of(program, steps)
        for step in steps:
            step.persistent = set(step.plannable) & self.lifetimes.keys()
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
        for i, array in planned(self.program, self.lifetimes, registers, empty_array).items():
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
    return Steps(program, steps, partial(slots_of, lifetimes_of(program, steps)), constants)


def lifetimes_of(program: Program, steps: Sequence[Step]) -> dict[int, tuple[int, int]]:
    """For each value that is temporary and of a known shape, the step that computes it and the last that reads it."""
    is_known = shapes_told(program)
    end = {i: n for n, step in enumerate(steps) for i in step.dead}
    start = {i: n for n, step in enumerate(steps) for i in step.plannable if i in end and is_known[i]}
    return {i: (n, end[i]) for i, n in start.items() if isinstance(program.type_of(i), TensorType)}


def slots_of(lifetimes: Mapping[int, tuple[int, int]], sizes: Any) -> dict[int, int]:
    """Register allocation: a slot of memory for each value, by the result of `lifetimes_of`.

    The largest values are given slots first, so that small ones share those in the meantime, and not the reverse.

    `sizes` (sequence or dict of int): the bytes of each value.
    """
    slots: dict[int, int] = {}
    used: list[list[tuple[int, int]]] = []  # the lifetimes in each slot, in order
    for i, lifetime in sorted(lifetimes.items(), key=lambda each: (-sizes[each[0]], each[1][0])):
        slot = next((n for n, others in enumerate(used) if _is_free(others, lifetime)), len(used))
        if slot == len(used):
            used.append([])
        insort(used[slot], lifetime)
        slots[i] = slot
    return slots


def _is_free(others: list[tuple[int, int]], lifetime: tuple[int, int]) -> bool:
    """Whether none of some lifetimes, in order, shares a step with another one."""
    index = bisect_left(others, lifetime)
    is_after = not index or others[index - 1][1] < lifetime[0]
    return is_after and (index == len(others) or others[index][0] > lifetime[1])


def planned(
    program: Program,
    lifetimes: Mapping[int, tuple[int, int]],
    values: Sequence[Any],
    empty: Callable[..., Any],
) -> dict[int, Any]:
    """An array for each value that has a slot, in the same memory where that fits lifetimes and sizes.

    `lifetimes`: the result of `lifetimes_of`.
    `values`: the leaves' values, and others.
    `empty`: from a size and a dtype to a new array.
    """
    shapes = shapes_of(program, [leaf_shape(x) for x in values[: len(program.leaves)]])
    bytes_of = {i: int(np.prod(shapes[i])) * program.type_of(i).dtype.itemsize for i in lifetimes}
    slots = slots_of(lifetimes, bytes_of)
    sizes: dict[int, int] = {}
    for i, slot in slots.items():
        sizes[slot] = max(sizes.get(slot, 0), bytes_of[i])
    raw = {slot: empty((size,), np.uint8) for slot, size in sizes.items()}
    return {i: raw[slot][: bytes_of[i]].view(program.type_of(i).dtype).reshape(shapes[i]) for i, slot in slots.items()}
