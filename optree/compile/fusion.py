"""A program as steps: kernels, each one pass over a domain, and calls.

A kernel's domain is a tuple of dimensions (`optree.compile.dimensions`), some of them
reduced. A value in a kernel runs along some of its axes: along a reduced one,
it is an inner value, made for each element of the domain; along none, an outer
one, made once for each place of the kept axes. At each place of the kept axes
a kernel walks the reduced ones once for each stage: what needs a reduction's
value at each element is made in the next walk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from optree.compile.aliasing import alias_sets
from optree.compile.dimensions import ONE, Dims, Sizes
from optree.compile.program import Instruction, Program
from optree.compile.schedule import may_fail
from optree.ops.assignment import Assign
from optree.ops.traits import ElementwiseOperator, ReductionOperator
from optree.tree.traversal import in_order
from optree.tree.types import weak_dtype
from optree.tree.variable import spec_of

#: The axis of the domain that each axis of a value runs along; None for an axis of size 1.
Axes = tuple[int | None, ...]

#: A program of more instructions than this is not fused: which step needs which would take too long to keep.
LONGEST = 2000

#: A kernel has at most so many instructions, for a compiler's sake.
LARGEST = 200

#: An instruction may join one of so many of the latest steps, though it shares nothing with them.
NEIGHBOURS = 8


class Call(NamedTuple):
    """An instruction that runs as one library routine, with others that are fused into it as its epilogue.

    Attributes
    ----------
    instruction : int
        Its index in the program.
    fused : tuple of int
        The indices of those that the routine computes too, whose values nothing else needs.
    """

    instruction: int
    fused: tuple[int, ...] = ()

    @property
    def instructions(self) -> tuple[int, ...]:
        """The indices of all of its instructions."""
        return (*self.fused, self.instruction)


@dataclass
class Kernel:
    """Instructions that run together in one pass.

    Attributes
    ----------
    domain : tuple of int
        The dimensions that it runs over.
    reduced : frozenset of int
        The axes of the domain that its reductions reduce.
    instructions : list of int
        The indices of its instructions in the program, in order.
    axes : dict
        For each value that it reads or makes, the axes that the value runs along.
    stages : dict
        For each value that it makes, how many walks of the reduced axes must be over before it is known.
    writes : list of int
        The values that are needed outside.
    """

    domain: Dims
    reduced: frozenset[int] = frozenset()
    instructions: list[int] = field(default_factory=list)
    axes: dict[int, Axes] = field(default_factory=dict)
    stages: dict[int, int] = field(default_factory=dict)
    writes: list[int] = field(default_factory=list)

    def level(self, value: int) -> str:
        """Where a value is made: 'once', at each place of the kept axes ('outer') or at each element ('inner')."""
        along = {axis for axis in self.axes[value] if axis is not None}
        if not along and not self.stages.get(value):
            return "once"
        return "inner" if not self.reduced or along & self.reduced else "outer"


def fuse(program: Program, sizes: Sizes) -> list[Kernel | Call]:
    """The steps that run a program, in order; together they run each instruction that is needed once."""
    return _Fusion(program, sizes).run()


class _Fusion:
    """Steps while they grow: each instruction joins the latest kernel that it may."""

    def __init__(self, program: Program, sizes: Sizes) -> None:
        self.program, self.dims = program, sizes.dims
        self.first = len(program.leaves)
        self.waits = [sizes.waits_for(instruction) for instruction in program.instructions]
        self.needed = _needed(program, self.waits)
        self.made_in: dict[int, int] = {}  # the step that makes each value
        self.steps: list[Kernel | Call] = []
        self.memories = alias_sets(program)
        self.destroyed: dict[int, frozenset[Any]] = {}  # by the instruction that overwrites it
        self.readers: dict[int, list[Instruction]] = {}
        for place in self.needed:
            for i in self.waits[place]:
                self.readers.setdefault(i, []).append(program.instructions[place])
        self.failing = [i for i in self.needed if may_fail(program.instructions[i].op, program.instructions[i].node)]
        self.needs: list[int] = []  # for each step, a bit for each step that it needs, by others too, and its own

    def run(self) -> list[Kernel | Call]:
        for place in self.needed:
            instruction = self.program.instructions[place]
            step = self._place(place, instruction)
            needs = 1 << step
            for i in self.waits[place]:
                if i in self.made_in:
                    needs |= self.needs[self.made_in[i]]
            for earlier in self._conflicts(place, instruction):
                needs |= self.needs[earlier]
            self.needs = [old | needs if old >> step & 1 else old for old in self.needs]
            self.made_in[self.first + place] = step
        gone = {step for step in range(len(self.steps)) if self._is_absorbed(step)}
        self._mark_writes()
        return [self.steps[step] for step in self._order() if step not in gone]

    def _order(self) -> list[int]:
        """The steps, each after those it needs, and otherwise by their last instructions."""
        last = [max(step.instructions) if isinstance(step, Kernel) else step.instruction for step in self.steps]
        waits = [
            [i for i in range(len(self.steps)) if needs >> i & 1 and i != step] for step, needs in enumerate(self.needs)
        ]
        return in_order(waits, last)

    def _is_absorbed(self, step: int) -> bool:
        """Whether a kernel without reductions becomes part of the one kernel that needs its values."""
        small = self.steps[step]
        if not isinstance(small, Kernel) or small.reduced:
            return False
        made = {self.first + place for place in small.instructions}
        users = {self.made_in[self.first + place] for place in self.needed if made.intersection(self.waits[place])} - {
            step
        }
        taker = next(iter(users), step)
        kernel = self.steps[taker]
        if (
            len(users) != 1
            or not isinstance(kernel, Kernel)
            or len(small.instructions) + len(kernel.instructions) > LARGEST
        ):
            return False
        waiting = [i for i, needs in enumerate(self.needs) if needs >> step & 1 and i not in (step, taker)]
        if any(not self.needs[i] >> taker & 1 for i in waiting):
            return False  # what overwrites an operand of the small one's might have to come before the other
        axes = _moved_along(small, kernel)
        if axes is None or any(kernel.axes.get(value, along) != along for value, along in axes.items()):
            return False
        everywhere = frozenset(range(len(kernel.domain)))
        found = {frozenset(axis for axis in axes[value] if axis is not None) for value in made}
        if not found <= {frozenset(), everywhere, everywhere - kernel.reduced}:
            return False
        kernel.instructions = sorted([*small.instructions, *kernel.instructions])
        kernel.axes = {**axes, **kernel.axes}
        kernel.stages = {**small.stages, **kernel.stages}
        self.made_in.update(dict.fromkeys(made, taker))
        return True

    def _conflicts(self, place: int, instruction: Instruction) -> set[int]:
        """The steps that must come first: one of the two overwrites what the other reads, or they may fail."""
        found = self._overwriters(instruction)
        if isinstance(instruction.op, Assign):
            found |= {self.made_in[self.first + earlier] for earlier in self.failing if earlier < place}
        positions = instruction.op.destroyed_inputs()
        if positions:
            mine = frozenset().union(*(self.memories[instruction.inputs[i]] for i in positions))
            self.destroyed[place] = mine
            for earlier in self.needed:
                if earlier < place and any(self.memories[i] & mine for i in self.program.instructions[earlier].inputs):
                    found.add(self.made_in[self.first + earlier])
        return found

    def _overwriters(self, instruction: Instruction) -> set[int]:
        """The steps so far that overwrite what an instruction takes."""
        takes = [self.memories[i] for i in instruction.inputs]
        return {
            self.made_in[self.first + place]
            for place, destroyed in self.destroyed.items()
            if any(destroyed & memory for memory in takes)
        }

    def _place(self, place: int, instruction: Instruction) -> int:
        """The step that an instruction becomes part of."""
        moved = moved_axes(instruction, [self.dims[i] for i in (*instruction.inputs[:1], self.first + place)])
        if moved is not None:
            maker = self.made_in.get(instruction.inputs[0], -1)
            free = maker >= 0 and self._is_free(maker, place)
            if free and self._joins_moved(self.steps[maker], place, instruction, moved):
                return maker
        elif is_fusable(self.program, instruction):
            for step in self._candidates(place):
                if self._is_free(step, place) and self._joins(self.steps[step], place, instruction):
                    return step
            kernel = Kernel(self._domain(place, instruction))
            if self._joins(kernel, place, instruction):
                return self._new(kernel)
        return self._new(Call(place))

    def _new(self, step: Kernel | Call) -> int:
        self.steps.append(step)
        self.needs.append(1 << len(self.needs))
        return len(self.steps) - 1

    def _candidates(self, place: int) -> list[int]:
        """The kernels that an instruction may join: those that make its inputs, and the latest."""
        makers = {self.made_in[i] for i in self.waits[place] if i in self.made_in}
        latest = range(max(0, len(self.steps) - NEIGHBOURS), len(self.steps))
        domains = {i: step.domain for i in makers.union(latest) if isinstance(step := self.steps[i], Kernel)}
        kernels = set(domains)
        if all(dim == ONE for dim in self.dims[self.first + place] or ()):  # what has no axes waits for nothing more
            kernels = {i for i in kernels if i in makers or not domains[i]}
        # Of the makers the latest, for it may need the others; of the rest the first, which the fewest steps wait for.
        # Those of more axes come before both, for the others may become part of them.
        found = [*sorted(kernels & makers, reverse=True), *sorted(kernels - makers)]
        return sorted(found, key=lambda i: -len(domains[i]))

    def _is_free(self, step: int, place: int) -> bool:
        """Whether nothing that the instruction needs waits for the step, other than from within it."""
        makers = {self.made_in[i] for i in self.waits[place] if i in self.made_in} - {step}
        makers |= self._overwriters(self.program.instructions[place])
        return not any(self.needs[maker] >> step & 1 for maker in makers)

    def _domain(self, place: int, instruction: Instruction) -> Dims:
        """The domain of a kernel that begins with an instruction."""
        reduces = isinstance(instruction.op, ReductionOperator)
        dims = self.dims[instruction.inputs[0] if reduces else self.first + place]
        return tuple(dim for dim in dims or () if dim != ONE)

    def _joins(self, kernel: Any, place: int, instruction: Instruction) -> bool:
        """Put an instruction into a kernel if its operands and value run along the kernel's axes."""
        if len(kernel.instructions) >= LARGEST:
            return False
        op, value = instruction.op, self.first + place
        if isinstance(op, ReductionOperator):
            return self._joins_reduction(kernel, place, instruction)
        operands = list(instruction.inputs)
        axes = self._aligned(kernel, self.dims[value], instruction.inputs)
        if axes is None:
            return False
        found = {i: self._axes_of(kernel, i, axes) for i in operands}
        if any(known is None for known in found.values()):
            return False
        along = {axis for axis in axes if axis is not None}
        everywhere = set(range(len(kernel.domain)))
        if along not in (everywhere, everywhere - kernel.reduced):
            return False  # it would be made once for each place of the axes that it does not run along
        kernel.axes.update({i: known for i, known in found.items() if known is not None})
        kernel.axes[value] = axes
        kernel.stages[value] = max((kernel.stages.get(i, 0) for i in operands), default=0)
        kernel.instructions.append(place)
        return True

    def _joins_moved(self, kernel: Any, place: int, instruction: Instruction, moved: Sequence[int | None]) -> bool:
        """Put a value into the kernel that makes its operand, of which only the axes stand otherwise."""
        operand, value = instruction.inputs[0], self.first + place
        if not isinstance(kernel, Kernel) or len(kernel.instructions) >= LARGEST or value in self.program.outputs:
            return False
        if not all(is_fusable(self.program, reader) for reader in self.readers.get(value, ())):
            return False  # a view costs those that take arrays less
        kernel.axes[value] = tuple(None if axis is None else kernel.axes[operand][axis] for axis in moved)
        kernel.stages[value] = kernel.stages[operand]
        kernel.instructions.append(place)
        return True

    def _joins_reduction(self, kernel: Kernel, place: int, instruction: Instruction) -> bool:
        (operand,), op = instruction.inputs, instruction.op
        dims = self.dims[operand] or ()
        axes = self._aligned(kernel, dims, (operand,))
        if axes is None or {axis for axis in axes if axis is not None} != set(range(len(kernel.domain))):
            return False
        reduced = frozenset(axis for i, axis in enumerate(axes) if i in op.axes(len(dims)) and axis is not None)
        if not reduced or (kernel.reduced and kernel.reduced != reduced):
            return False
        kept = [None if i in op.axes(len(dims)) else axis for i, axis in enumerate(axes)]
        if not op.keepdims:
            kept = [axis for i, axis in enumerate(kept) if i not in op.axes(len(dims))]
        value = self.first + place
        kernel.reduced = reduced
        kernel.axes[operand] = axes
        kernel.axes[value] = tuple(kept)
        kernel.stages[value] = kernel.stages.get(operand, 0) + 1
        kernel.instructions.append(place)
        return True

    def _aligned(self, kernel: Kernel, dims: Dims | None, operands: Sequence[int]) -> Axes | None:
        """The axes that a value of these dimensions runs along, as its operands in the kernel do; None if it cannot."""
        found: list[int | None] = []
        for place, dim in enumerate(dims or ()):
            back = place - len(dims or ())
            along = {kernel.axes[i][back] for i in operands if i in kernel.axes and -back <= len(kernel.axes[i])} - {
                None
            }
            if len(along) > 1 or (dim == ONE and along):
                return None
            axis = along.pop() if along else None if dim == ONE else self._free_axis(kernel, dim, back, found)
            if dim != ONE and (axis is None or axis in found or kernel.domain[axis] != dim):
                return None
            found.append(axis)
        return tuple(found)

    def _free_axis(self, kernel: Kernel, dim: int, back: int, taken: Sequence[int | None]) -> int | None:
        """An axis of the domain for a dimension: the one that stands where it does, or else any other."""
        places = [len(kernel.domain) + back, *range(len(kernel.domain))]
        return next((i for i in places if i >= 0 and kernel.domain[i] == dim and i not in taken), None)

    def _axes_of(self, kernel: Kernel, operand: int, axes: Axes) -> Axes | None:
        """The axes of an operand that is broadcast to a value with these axes."""
        dims = self.dims[operand] or ()
        given = axes[len(axes) - len(dims) :] if dims else ()
        found = tuple(None if dim == ONE else axis for dim, axis in zip(dims, given, strict=True))
        known = kernel.axes.get(operand, found)
        return found if known == found else None

    def _mark_writes(self) -> None:
        """Tell each kernel which of its values others need."""
        outside = set(self.program.outputs)
        for place in self.needed:
            here = self.made_in[self.first + place]
            outside.update(i for i in self.waits[place] if self.made_in.get(i, here) != here)
        for step in self.steps:
            if isinstance(step, Kernel):
                step.writes = [self.first + place for place in step.instructions if self.first + place in outside]


def _needed(program: Program, waits: Sequence[Sequence[int]]) -> list[int]:
    """The places of the instructions whose values something waits for, or that destroy something; in order.

    A value of which all that is taken is its shape, which is known, is not made.
    """
    first, wanted, found = len(program.leaves), set(program.outputs), []
    for place in range(len(program.instructions) - 1, -1, -1):
        if first + place in wanted or program.instructions[place].op.destroy_map:
            wanted.update(waits[place])
            found.append(place)
    return found[::-1]


def _moved_along(small: Kernel, kernel: Kernel) -> dict[int, Axes] | None:
    """The axes of a kernel's values in another that reads some of them; None where those do not tell all."""
    place_of: dict[int | None, int | None] = {None: None}
    for value in small.stages:
        for axis, other in zip(small.axes[value], kernel.axes.get(value, ()), strict=False):
            if place_of.setdefault(axis, other) != other:
                return None
    if len(place_of) <= len(small.domain) or len(set(place_of.values())) < len(place_of):
        return None
    return {value: tuple(place_of[axis] for axis in axes) for value, axes in small.axes.items()}


def moved_axes(instruction: Instruction, dims: Sequence[Dims | None]) -> list[int | None] | None:
    """For each axis of a value the axis of the operand that it is, where an op does nothing but move axes.

    None for an axis of size 1; in all, None where an op does more.

    Parameters
    ----------
    dims : sequence of Dims
        The operand's dimensions, and the value's.
    """
    if len(dims) < 2 or dims[0] is None or dims[1] is None:
        return None
    op, given, made = instruction.op, dims[0], dims[1]
    if op.axis_order is not None:
        return list(op.axis_order)
    if not op.keeps_order or [dim for dim in given if dim != ONE] != [dim for dim in made if dim != ONE]:
        return None
    axes = iter([axis for axis, dim in enumerate(given) if dim != ONE])
    return [None if dim == ONE else next(axes) for dim in made]


def is_fusable(program: Program, instruction: Instruction) -> bool:
    """Whether an instruction may be part of a kernel: by a kernel expression, or as a reduction with accumulators."""
    op, node = instruction.op, instruction.node
    dtypes = [x.type.dtype for x in node.inputs if hasattr(x.type, "dtype")]
    if len(dtypes) < len(instruction.inputs) or not hasattr(node.type, "dtype"):
        return False
    if isinstance(op, ReductionOperator):
        return op.accumulator_for(dtypes[0]) is not None
    if op.is_flat_index:
        return True
    if not (isinstance(op, ElementwiseOperator) or op.broadcasts is not None):
        return False
    loop = loop_dtypes(program, instruction)
    for i, dtype in zip(instruction.inputs, loop, strict=True):
        if not op.bounds_numbers and dtype.kind in "iu" and i < len(program.leaves) and type(program.leaves[i]) is int:
            return False  # a number that the dtype need not hold
    return not op.destroy_map and op.kernel_for(*loop) is not None


def loop_dtypes(program: Program, instruction: Instruction) -> list[np.dtype]:
    """The dtypes that an instruction's operands are computed in; a Python number is weak."""
    given = [
        weak_dtype(spec_of(program.leaves[i])) if i < len(program.leaves) else program.type_of(i).dtype
        for i in instruction.inputs
    ]
    *operands, _ = instruction.op.resolve_dtypes(*given)
    return list(operands)
