"""Estimates of the memory that the plan of a function needs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from optree.compile.aliasing import byte_bounds
from optree.compile.program import Program, Steps, shapes_of
from optree.records import NamedTuple
from optree.tree.printing import as_html, described
from optree.tree.types import TensorType

#: The values that a report lists, at most.
LISTED = 10


class Held(NamedTuple):
    """A value in memory at the peak: its bytes, and what it is."""

    bytes: int
    what: str


class MemoryReport:
    """The memory of one call, printed as a table.

    Attributes
    ----------
    tensors : int
        The bytes of the tensors that the function reads or writes, and of its arguments.
    peak : int
        The most bytes that values on the way, and outputs, take at one time.
    kept : int
        The bytes that the function keeps from call to call, for values on the way; some of the peak's are in it.
    held : list of Held
        The values in memory at the peak, the largest first.
    at : str
        The step at which the peak is.
    """

    def __init__(self, tensors: int, peak: int, kept: int, held: list[Held], at: str) -> None:
        self.tensors, self.peak, self.kept, self.held, self.at = tensors, peak, kept, held, at

    def __repr__(self) -> str:
        return f"MemoryReport(tensors={self.tensors}, peak={self.peak}, kept={self.kept})"

    _repr_html_ = as_html

    def __str__(self) -> str:
        lines = [
            f"{size_text(self.tensors)} in tensors and arguments, {size_text(self.peak)} for values on the way at the "
            f"peak (of which the function keeps {size_text(self.kept)} from call to call); the peak is at {self.at}:"
        ]
        lines += [f"{size_text(held.bytes):>10}  {held.what}" for held in self.held[:LISTED]]
        rest = self.held[LISTED:]
        if rest:
            lines.append(f"{size_text(sum(held.bytes for held in rest)):>10}  in {len(rest)} smaller ones")
        return "\n".join(lines)


def memory_of(plan: Steps, leaves: Sequence[Any]) -> MemoryReport:
    """The report of a plan for leaves with these values; of an argument, an array of its shape and dtype serves."""
    program = plan.program
    sizes = bytes_of(program, shapes_of(program, [getattr(x, "shape", ()) for x in leaves]))
    now: dict[int, int] = {}
    peak, held, at = 0, dict(now), "the first step"
    for step in plan.steps:
        if step.out is not None and step.out in now:
            now[step.defines[-1]] = now.pop(step.out)
        now.update({value: sizes[value] for value in step.makes})
        total = sum(now.values())
        if total > peak:
            peak, held, at = total, dict(now), described(program.instructions[step.numbers[-1]])
        for value in step.dead:
            now.pop(value, None)
    slots: dict[int, int] = {}
    for value, slot in plan.slots(sizes).items():
        slots[slot] = max(slots.get(slot, 0), sizes[value])
    first = len(program.leaves)
    listed = sorted(
        (Held(size, described(program.instructions[value - first])) for value, size in held.items()), reverse=True
    )
    return MemoryReport(_distinct(leaves), peak, sum(slots.values()), listed, at)


def bytes_of(program: Program, shapes: Sequence[Any]) -> list[int]:
    """The bytes of each value, from its shape; 0 where only a run can tell."""
    found = []
    for number, shape in enumerate(shapes):
        type = program.type_of(number)
        is_known = isinstance(type, TensorType) and isinstance(shape, tuple)
        found.append(prod(shape) * type.dtype.itemsize if is_known else 0)
    return found


def _distinct(leaves: Sequence[Any]) -> int:
    """The bytes of arrays, what they share counted once."""
    bounds = sorted({byte_bounds(x) for x in leaves if hasattr(x, "strides") and not isinstance(x, np.generic)})
    total, end = 0, 0
    for low, high in bounds:
        total += max(high - max(low, end), 0)
        end = max(end, high)
    return total


def size_text(size: float) -> str:
    """A number of bytes in the unit that suits it."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
