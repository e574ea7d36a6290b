"""What functions keep from call to call: memory for values, planned over their lifetimes, and steps bound to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from backends.execution.executor import CallStep, KernelStep
from backends.execution.memory import empty_array
from optree.cache import Cache
from optree.compile.program import Program
from optree.compile.shapes import shapes_of, shapes_told
from optree.compile.steps import Note, Step, run_steps, taker
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
        self.open, self.note, self.outputs = open, note, taker(program.outputs)
        self.execute = run_steps  # no global: as the interpreter ends, modules have let go of theirs
        self.slots = slots_of(program, steps)
        for step in steps:
            step.persistent = set(step.makes) & self.slots.keys()
        self._bound: Cache = Cache("memory of functions", COMBINATIONS)

    def run(self, values: list[Any], roots: Any) -> Sequence[Any]:
        """The outputs, for the values of the leaves."""
        return self.of_sizes(values).run(values, roots)

    def of_sizes(self, values: list[Any]) -> _OfSizes:
        """The steps for the arguments' sizes."""
        sizes = tuple([getattr(values[i], "shape", None) for i in self.arguments]) if self.arguments else ()
        found = self._bound.get(sizes)
        if found is None:
            found = self._bound[sizes] = _OfSizes(self, values + self.open)
        return found


class _OfSizes:
    """The registers for arguments of one combination of sizes, and the steps on them."""

    def __init__(self, of: BoundSteps, registers: list[Any]) -> None:
        self.of, self._registers = of, registers
        for i, array in planned(of.program, of.slots, registers, empty_array).items():
            registers[i] = array
        for i in of.arguments:
            registers[i] = None
        self._steps: list[Step] | None = None
        self._transient: list[int] = []

    def run(self, given: Sequence[Any], roots: Any) -> Sequence[Any]:
        """The outputs, for the values of the leaves."""
        of, registers = self.of, self._registers
        if self._steps is None:
            return self._first(given, roots)
        for i in of.arguments:
            registers[i] = given[i]
        try:
            return of.execute(self._steps, registers, of.outputs, of.note, roots)
        finally:
            for i in self._transient:
                registers[i] = None

    def _first(self, given: Sequence[Any], roots: Any) -> Sequence[Any]:
        """The first run, which finds out what stays the same."""
        of, registers = self.of, self._registers.copy()
        bound: list[Step] = []
        for i in of.arguments:
            registers[i] = given[i]
        fixed = set(range(len(of.program.leaves))).difference(of.arguments)
        found = of.execute(self._binding(registers, fixed, bound), registers, of.outputs, of.note, roots)
        self._registers = [x if i in fixed else None for i, x in enumerate(registers)]
        self._transient = [i for i, x in enumerate(registers) if i not in fixed and x is not None]
        self._steps = bound
        return found

    def _binding(self, registers: list[Any], fixed: set[int], bound: list[Step]) -> Iterator[Step]:
        """The steps, each bound after it has run; the values that stay the same are added to the fixed ones."""
        for step in self.of.steps:
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


def slots_of(program: Program, steps: Sequence[CallStep | KernelStep]) -> dict[int, int]:
    """For each value that can have memory of its own the number of that memory; values of different times share one."""
    told = shapes_told(program)
    goes = {i for step in steps for i in step.dead}
    slots: dict[int, int] = {}
    free: list[int] = []
    count = 0
    for step in steps:
        for i in step.makes:
            if i in goes and told[i] and isinstance(program.type_of(i), TensorType):
                if not free:
                    free.append(count)
                    count += 1
                slots[i] = free.pop()
        free += [slots[i] for i in step.dead if i in slots]
    return slots


def planned(
    program: Program, slots: dict[int, int], values: Sequence[Any], empty: Callable[..., Any]
) -> dict[int, Any]:
    """Arrays for the values that have a slot, those of one slot in the same memory.

    Parameters
    ----------
    slots : dict
        What `slots_of` gives.
    values : sequence
        The leaves' values come first.
    empty : callable
        From a size and a dtype to a new array.
    """
    shapes = shapes_of(program, [_shape_of(x) for x in values[: len(program.leaves)]])
    bytes_of = {i: int(np.prod(shapes[i])) * program.type_of(i).dtype.itemsize for i in slots}
    sizes: dict[int, int] = {}
    for i, slot in slots.items():
        sizes[slot] = max(sizes.get(slot, 0), bytes_of[i])
    raw = {slot: empty((size,), np.uint8) for slot, size in sizes.items()}
    return {i: raw[slot][: bytes_of[i]].view(program.type_of(i).dtype).reshape(shapes[i]) for i, slot in slots.items()}
