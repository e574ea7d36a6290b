"""Memory planning for functions: values share memory over their lifetimes, and steps are bound to it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from backends.execution.executor import CallStep, KernelStep
from backends.execution.memory import empty_array
from optree.cache import Cache
from optree.compile.program import Program
from optree.compile.shapes import shapes_of, shapes_told
from optree.compile.steps import Note, Step, outputs_of, run_steps
from optree.tree.types import TensorType

#: The most combinations of its arguments' sizes for which a function has memory.
COMBINATIONS = 4


class BoundSteps:
    """A program's steps, for one caller at a time, whose leaves other than the arguments stay the same.

    Parameters
    ----------
    program : Program
    steps : list of CallStep and KernelStep
    arguments : list of int
        The leaves that are given anew at each call.
    open : list
        What follows the leaves' values before anything has been computed.
    note : callable
    """

    def __init__(
        self,
        program: Program,
        steps: list[CallStep | KernelStep],
        arguments: list[int],
        open: list[Any],
        note: Note,
    ) -> None:
        self.program, self.steps, self.arguments = program, steps, arguments
        self.open, self.note, self.outputs = open, note, outputs_of(program)
        self.slots = slots_of(program, steps)
        for step in steps:
            step.persistent = set(step.makes) & self.slots.keys()
        #: By the arguments' sizes what runs the steps that are bound for them.
        self.runs: Cache = Cache("memory of functions", COMBINATIONS)

    def run(self, values: list[Any], roots: Any) -> Sequence[Any]:
        """The outputs, for the values of the leaves."""
        sizes = tuple([getattr(values[i], "shape", None) for i in self.arguments]) if self.arguments else ()
        run = self.runs.get(sizes)
        return self._first(sizes, values, roots) if run is None else run(values, roots)

    def _first(self, sizes: Any, values: list[Any], roots: Any) -> Sequence[Any]:
        """The first run for arguments of some sizes, which finds out what stays the same."""
        registers, bound = values + self.open, list[Step]()
        for i, array in planned(self.program, self.steps, self.slots, registers, empty_array).items():
            registers[i] = array
        fixed = set(range(len(self.program.leaves))).difference(self.arguments)
        found = run_steps(self._binding(registers, fixed, bound), [], self.outputs, self.note, registers, roots)
        rest = [x if i in fixed else None for i, x in enumerate(registers) if i >= len(values)]
        self.runs[sizes] = partial(run_steps, bound, rest, self.outputs, self.note)
        return found

    def _binding(self, registers: list[Any], fixed: set[int], bound: list[Step]) -> Iterator[Step]:
        """The steps, each bound after it has run; the values that stay the same are added to the fixed ones."""
        for step in self.steps:
            fast: list[Any] = []
            if isinstance(step, KernelStep):
                yield step.step()._replace(call=partial(_noting, fast, step), dead=())
                again = step.bind(registers, fixed, *fast)
            else:
                yield step.step()._replace(dead=())
                again = step.bind(registers, fixed)
            dead = [i for i in step.dead if i not in fixed and registers[i] is not None]
            for i in dead:
                registers[i] = None
            if again is not None:
                bound.append(again._replace(dead=dead))


def _noting(fast: list[Any], step: KernelStep, registers: list[Any]) -> None:
    """Run a step, and note what it gives."""
    fast.append(step(registers))


def _shape_of(value: Any) -> Any:
    return () if isinstance(value, bool | int | float) else getattr(value, "shape", None)


def slots_of(program: Program, steps: Sequence[CallStep | KernelStep], sizes: Any = None) -> dict[int, int]:
    """For each value that can have memory of its own the number of that memory; values of different times share one.

    The largest values are given theirs first, so that small ones share it in the meantime, and not it theirs.

    Parameters
    ----------
    sizes : sequence or dict of int, optional
        The bytes of each value.
    """
    told = shapes_told(program)
    end = {i: n for n, step in enumerate(steps) for i in step.dead}
    makes = [(i, n) for n, step in enumerate(steps) for i in step.makes]
    start = {i: n for i, n in makes if i in end and told[i] and isinstance(program.type_of(i), TensorType)}
    slots: dict[int, int] = {}
    used: list[list[tuple[int, int]]] = []  # for each slot the times at which it is taken, in order
    for i in sorted(start, key=lambda i: (-(0 if sizes is None else sizes[i]), start[i])):
        time = start[i], end[i]
        slot = next((n for n, times in enumerate(used) if _is_free(times, time)), len(used))
        if slot == len(used):
            used.append([])
        insort(used[slot], time)
        slots[i] = slot
    return slots


def _is_free(times: list[tuple[int, int]], time: tuple[int, int]) -> bool:
    """Whether something is not taken at a time, its first and its last step among it."""
    place = bisect_left(times, time)
    before, after = times[place - 1 : place] if place else [], times[place : place + 1]
    return all(last < time[0] for _, last in before) and all(first > time[1] for first, _ in after)


def planned(
    program: Program,
    steps: Sequence[CallStep | KernelStep],
    slots: dict[int, int],
    values: Sequence[Any],
    empty: Callable[..., Any],
) -> dict[int, Any]:
    """Arrays for the values that have a slot, in the same memory where that fits their lifetimes.

    Parameters
    ----------
    slots : dict
        What `slots_of` gives; its keys are the values.
    values : sequence
        The leaves' values come first.
    empty : callable
        From a size and a dtype to a new array.
    """
    shapes = shapes_of(program, [_shape_of(x) for x in values[: len(program.leaves)]])
    bytes_of = {i: int(np.prod(shapes[i])) * program.type_of(i).dtype.itemsize for i in slots}
    fitted = slots_of(program, steps, bytes_of)
    sizes: dict[int, int] = {}
    for i, slot in fitted.items():
        sizes[slot] = max(sizes.get(slot, 0), bytes_of[i])
    raw = {slot: empty((size,), np.uint8) for slot, size in sizes.items()}
    return {i: raw[slot][: bytes_of[i]].view(program.type_of(i).dtype).reshape(shapes[i]) for i, slot in fitted.items()}
