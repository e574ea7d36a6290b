"""What functions keep from call to call: memory for values, planned over their lifetimes, and steps bound to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backends.execution.executor import PlacedStep
from backends.execution.memory import empty_array
from optree.compile.program import Program
from optree.compile.shapes import shapes_of, tells_shape
from optree.tree.types import TensorType

#: A function keeps memory for so many combinations of its arguments' sizes.
COMBINATIONS = 4


class KeptSteps:
    """A program's steps, for one caller at a time, whose leaves other than the arguments stay the same.

    Parameters
    ----------
    program : Program
    steps : list of PlacedStep
    arguments : list of int
        The leaves that are given anew at each call.
    open : list
        What follows the leaves' values before anything has been computed.
    note : callable
        Takes the error of a step, its place, and what `run` was given as roots.
    """

    def __init__(
        self,
        program: Program,
        steps: list[PlacedStep],
        arguments: list[int],
        open: list[Any],
        note: Callable[..., None],
    ) -> None:
        self.program, self.steps, self.arguments = program, steps, arguments
        self.open, self.note = open, note
        self.slots = slots_of(program, steps)
        for step, *_ in steps:
            step.kept = set(step.makes) & self.slots.keys()
        self._memories: dict[Any, _Memory] = {}

    def run(self, values: list[Any], roots: Any) -> list[Any]:
        """The outputs, for the values of the leaves."""
        return self.memory(values).run(values, roots)

    def memory(self, values: list[Any]) -> _Memory:
        """The list of values for the arguments' sizes."""
        sizes = tuple([getattr(values[i], "shape", None) for i in self.arguments]) if self.arguments else ()
        memory = self._memories.get(sizes)
        if memory is None:
            if len(self._memories) >= COMBINATIONS:
                self._memories.pop(next(iter(self._memories)))
            memory = self._memories[sizes] = _Memory(self, values + self.open)
        return memory


class _Memory:
    """The list of values for arguments of one combination of sizes, and the steps on it."""

    def __init__(self, kept: KeptSteps, registers: list[Any]) -> None:
        self.kept, self.registers = kept, registers
        found = planned(kept.program, kept.slots, registers, empty_array)
        for i, array in found.items():
            self.registers[i] = array
        #: The values that stay from call to call, before it is known what steps make of them.
        self._lasting = set(range(len(kept.program.leaves))).difference(kept.arguments) | found.keys()
        self._steps: list[tuple[Callable[[], Any] | None, Callable[[list[Any]], Any], int]] = []
        self._transient: list[int] = []
        self._outputs: list[Any] = []

    def run(self, given: Sequence[Any], roots: Any) -> list[Any]:
        registers, place = self.registers, 0
        for i in self.kept.arguments:
            registers[i] = given[i]
        if not self._steps:
            return self._first(roots)
        try:
            for again, step, place in self._steps:  # noqa: B007 the failing step's place
                if again is None or again():
                    step(registers)
            return self._outputs or [registers[i] for i in self.kept.program.outputs]
        except Exception as error:
            self.kept.note(error, place, roots)
            raise
        finally:
            if self._transient:
                for i in self._transient:
                    registers[i] = None

    def _first(self, roots: Any) -> list[Any]:
        """The first run, which finds out what stays the same."""
        kept, registers, found = self.kept, self.registers, []
        first = len(kept.program.leaves)
        steady = set(range(first)).difference(kept.arguments)
        for step, dead, place in kept.steps:
            try:
                again = step.again(registers, steady)
            except BaseException as error:  # an interrupt too
                if isinstance(error, Exception):
                    kept.note(error, place, roots)
                for i in range(len(registers)):
                    if i not in self._lasting:
                        registers[i] = None
                raise
            unsteady = [i for i in dead if i not in steady and registers[i] is not None]
            found.append((again, _freeing(step, unsteady) if unsteady else step, place))
            for i in unsteady:
                registers[i] = None
        outputs = [registers[i] for i in kept.program.outputs]
        self._outputs = outputs if steady.issuperset(kept.program.outputs) else []
        self._transient = [i for i, value in enumerate(registers) if i not in steady and value is not None]
        self._steps = found
        for i in self._transient:
            registers[i] = None
        return outputs


def _freeing(step: Callable[[list[Any]], Any], dead: Sequence[int]) -> Callable[[list[Any]], None]:
    """A step that lets go of values that nothing needs after it."""

    def run(values: list[Any]) -> None:
        step(values)
        for i in dead:
            values[i] = None

    return run


def _shape_of(value: Any) -> Any:
    return () if isinstance(value, bool | int | float) else getattr(value, "shape", None)


def slots_of(program: Program, steps: list[PlacedStep]) -> dict[int, int]:
    """For each value that can have memory of its own the number of that memory; values of different times share one."""
    last, end, told = program.last_uses(), len(program.instructions), [True] * len(program.leaves)
    for instruction in program.instructions:
        told.append(tells_shape(instruction) and all(told[i] for i in instruction.inputs))
    slots: dict[int, int] = {}
    free: list[int] = []
    count = 0
    for step, dead, _ in steps:
        for i in step.makes:
            if last[i] < end and told[i] and isinstance(program.type_of(i), TensorType):
                if not free:
                    free.append(count)
                    count += 1
                slots[i] = free.pop()
        free += [slots[i] for i in dead if i in slots]
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
