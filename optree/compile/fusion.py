"""A program as steps: kernels, each one pass over a domain, and calls.

A kernel's domain is a tuple of dimensions (`optree.compile.program`), of outer axes and
inner ones, which its reductions reduce. A value with an inner axis is computed for each element
of the domain, an outer value once for each index of the outer axes. Each stage traverses the
inner axes once: elements that need a reduction's value are computed in the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.compile.aliasing import LATE, Aliases, Moment, failing, in_order, is_assignment, moments
from optree.compile.program import ONE, Dims, Instruction, Program, Sizes
from optree.dtypes import is_complex, is_narrow
from optree.op.traits import ElementwiseOperator, PartOperator, ReductionOperator, kernel_of
from optree.records import NamedTuple
from optree.tree.types import weak_dtype
from optree.tree.variable import spec_of

#: The axis of the domain that each axis of a value runs along; None for an axis of size 1.
Axes = tuple[int | None, ...]

#: Maximum instructions of a program that is fused: the bit sets of dependencies take quadratic memory. A training step
#: of GPT-2 has 250 for each of its 12 to 48 blocks.
LONGEST = 12_000

#: Maximum instructions of a kernel; a compiler's time grows faster than the kernel.
LARGEST = 200

#: The latest steps that an instruction may join without sharing a value with them.
NEIGHBOURS = 8


class Call(NamedTuple):
    """An instruction that runs as one library routine, with others that are fused into it as its epilogue."""

    #: Its index in the program.
    instruction: int
    #: The indices of those that the routine computes too, whose values nothing else needs.
    fused: tuple[int, ...] = ()

    @property
    def instructions(self) -> tuple[int, ...]:
        """The indices of all of its instructions."""
        return (*self.fused, self.instruction)


class Kernel:
    """Instructions that are fused into one kernel."""

    def __init__(self, domain: Dims) -> None:
        #: The dimensions of its iteration space.
        self.domain = domain
        #: The inner axes of the domain, which its reductions reduce.
        self.reduced: frozenset[int] = frozenset()
        #: The indices of its instructions in the program, in order.
        self.instructions: list[int] = []
        #: For each value that it reads or computes, the axis of the domain for each of the value's axes.
        self.axes: dict[int, Axes] = {}
        #: For each value that it computes, the number of stages that are complete before.
        self.stages: dict[int, int] = {}
        #: The values that are stored, because other steps need them.
        self.writes: list[int] = []
        #: The values that it reads elsewhere: at affine indices, or at indices that are values.
        self.windowed: set[int] = set()

    def is_whole(self, value: int) -> bool:
        """Whether a value has an element for each of the domain."""
        return {axis for axis in self.axes[value] if axis is not None} == set(range(len(self.domain)))

    def level(self, value: int) -> str:
        """The loop level of a value: 'once', 'outer' (each index of the outer axes) or 'inner' (each element)."""
        along = {axis for axis in self.axes[value] if axis is not None}
        if not along and not self.stages.get(value):
            return "once"
        return "inner" if not self.reduced or along & self.reduced else "outer"


def fuse(program: Program, sizes: Sizes, indices: bool = False, windows: bool = False) -> list[Kernel | Call]:
    """The steps that run a program, in topological order.

    `indices`: whether kernels find the indices of extremes.
    `windows`: whether kernels read operands at affine indices.
    """
    return _Fusion(program, sizes, indices, windows).run()


class _Fusion:
    """Greedy fusion: each instruction joins the latest kernel that it may, or starts a step."""

    def __init__(self, program: Program, sizes: Sizes, indices: bool, windows: bool) -> None:
        self.program, self.dims, self.indices, self.windows = program, sizes.dims, indices, windows
        self.first = len(program.leaves)
        self.waits = [sizes.waits_for(instruction) for instruction in program.instructions]
        self.needed = _needed(program, self.waits)
        #: The parts of complex values, by their numbers, which each kernel loads for itself.
        self.parts = {
            self.first + index: program.instructions[index].inputs[0]
            for index in self.needed
            if isinstance(program.instructions[index].op, PartOperator)
            and is_fusable(program, program.instructions[index])
        }
        self.made_in: dict[int, int] = {}  # value -> the step that computes it
        self.steps: list[Kernel | Call] = []
        self.aliases = Aliases(program)
        #: For each memory, the instructions so far that read it, and those that overwrite it.
        self.readers_of: dict[Any, list[int]] = defaultdict(list)
        self.destroyers_of: dict[Any, list[int]] = defaultdict(list)
        self.readers: dict[int, list[Instruction]] = {}
        for index in self.needed:
            for i in self.waits[index]:
                self.readers.setdefault(i, []).append(program.instructions[index])
        for index in self.needed if self.parts else ():
            self.waits[index] = [*self.waits[index], *(self.parts[i] for i in self.waits[index] if i in self.parts)]
        self.failing = sorted({*self.needed}.intersection(failing(program.instructions)))
        #: The axes that each kernel reduces, or will.
        self.reduced: dict[Kernel, frozenset[int | None]] = {}
        self.moments = moments(program)
        self.moment_of: list[Moment] = []  # for each step
        self.needs: list[int] = []  # for each step, the bit set of the steps that it depends on, itself included
        self.waits_for: list[set[int]] = []  # for each step, the steps that it depends on directly

    def run(self) -> list[Kernel | Call]:
        for index in self.needed:
            if self.first + index not in self.parts or self.first + index in self.program.outputs:
                self._add(index)
        gone = {step for step in range(len(self.steps)) if self._is_absorbed(step)}
        self._mark_writes()
        return [self.steps[step] for step in self._order() if step not in gone]

    def _add(self, index: int) -> None:
        """Add an instruction to a step."""
        instruction = self.program.instructions[index]
        step = self._step_of(index, instruction)
        self.moment_of[len(self.moment_of) :] = [self.moments[index]] * (step == len(self.moment_of))
        for part in instruction.inputs if self.parts and isinstance(self.steps[step], Call) else ():
            if part in self.parts and part not in self.made_in:
                self._add(part - self.first)
        before = {self.made_in[i] for i in self.waits[index] if i in self.made_in}
        before = (before | self._conflicts(index, instruction)) - {step}
        needs = self.needs[step]
        for earlier in before:
            needs |= self.needs[earlier]
        if needs != self.needs[step]:
            self.needs = [old | needs if old >> step & 1 else old for old in self.needs]
        self.waits_for[step] |= before
        self.made_in[self.first + index] = step

    def _order(self) -> list[int]:
        """The steps in topological order, the late ones last, ties broken by their last instructions."""
        last = [(self.moment_of[n] == LATE, max(step.instructions)) for n, step in enumerate(self.steps)]
        return in_order(self.waits_for, last)

    def _is_absorbed(self, step: int) -> bool:
        """Merge a kernel without reductions into the only kernel that needs its values; whether it did."""
        small = self.steps[step]
        if not isinstance(small, Kernel) or small.reduced:
            return False
        made = {self.first + index for index in small.instructions}.difference(self.parts)
        needing = (self.first + index for index in self.needed if made.intersection(self.waits[index]))
        users = {self.made_in[value] for value in needing if value in self.made_in} - {step}
        taker = next(iter(users), step)
        kernel = self.steps[taker]
        if (
            len(users) != 1
            or not isinstance(kernel, Kernel)
            or made & kernel.windowed
            or len(small.instructions) + len(kernel.instructions) > LARGEST
        ):
            return False
        waiting = [i for i, needs in enumerate(self.needs) if needs >> step & 1 and i not in (step, taker)]
        if any(not self.needs[i] >> taker & 1 for i in waiting):
            return False  # a step that overwrites an operand of the small one may have to precede the other
        axes = _moved_along(small, kernel)
        if axes is None or any(kernel.axes.get(value, along) != along for value, along in axes.items()):
            return False
        everywhere = frozenset(range(len(kernel.domain)))
        found = {frozenset(axis for axis in axes[value] if axis is not None) for value in made}
        if not found <= {frozenset(), everywhere, everywhere - kernel.reduced}:
            return False
        is_affine = any(self.program.instructions[i].op.index_map.is_affine for i in small.instructions)
        if is_affine and kernel.reduced and everywhere - kernel.reduced in found:
            return False  # kernels read at affine indices in the inner loops alone
        kernel.instructions = sorted({*small.instructions, *kernel.instructions})
        kernel.axes = {**axes, **kernel.axes}
        kernel.stages = {**small.stages, **kernel.stages}
        kernel.windowed |= small.windowed
        self.made_in.update(dict.fromkeys(made, taker))
        return True

    def _conflicts(self, index: int, instruction: Instruction) -> set[int]:
        """The steps that must precede it: it overwrites what they read, they what it reads, or they may fail."""
        found = self._overwriters(instruction)
        if is_assignment(instruction.op):
            found |= {self.made_in[self.first + earlier] for earlier in self.failing if earlier < index}
        for memory in self.aliases.overwritten(index):
            found |= {self.made_in[self.first + earlier] for earlier in self.readers_of[memory]}
            self.destroyers_of[memory].append(index)
        for memory in self._memories(instruction):
            self.readers_of[memory].append(index)
        return found

    def _overwriters(self, instruction: Instruction) -> set[int]:
        """The steps so far that overwrite an instruction's inputs."""
        memories = self._memories(instruction)
        return {self.made_in[self.first + index] for memory in memories for index in self.destroyers_of[memory]}

    def _memories(self, instruction: Instruction) -> frozenset[Any]:
        """The memories that an instruction's inputs may be in."""
        return frozenset().union(*(self.aliases.sets[i] for i in instruction.inputs))

    def _step_of(self, index: int, instruction: Instruction) -> int:
        """The step that an instruction joins, or starts."""
        if self.first + index in self.parts:
            return self._new(Call(index))
        moved = moved_axes(instruction, [self.dims[i] for i in (*instruction.inputs[:1], self.first + index)])
        if moved is not None:
            maker = self.made_in.get(instruction.inputs[0], -1)
            free = maker >= 0 and self._is_free(maker, index)
            if free and self._joins_moved(self.steps[maker], index, instruction, moved):
                return maker
        elif is_fusable(self.program, instruction) or self._reads_windows(index, instruction):
            for step in self._candidates(index):
                if self._is_free(step, index) and self._joins(self.steps[step], index, instruction):
                    return step
            reduces = isinstance(instruction.op, ReductionOperator)
            dims = self.dims[instruction.inputs[0] if reduces else self.first + index]
            kernel = Kernel(tuple(dim for dim in dims or () if dim != ONE))
            if self._joins(kernel, index, instruction):
                return self._new(kernel)
        return self._new(Call(index))

    def _new(self, step: Kernel | Call) -> int:
        self.steps.append(step)
        self.needs.append(1 << len(self.needs))
        self.waits_for.append(set())
        return len(self.steps) - 1

    def _candidates(self, index: int) -> list[int]:
        """The kernels that an instruction may join: those that compute its inputs, and the latest."""
        makers = {self.made_in[i] for i in self.waits[index] if i in self.made_in}
        now = self.moments[index]
        latest: Sequence[int] = range(max(0, len(self.steps) - NEIGHBOURS), len(self.steps))
        for value in (self.parts[i] for i in self.waits[index] if i in self.parts):  # kernels that load the other part
            makers |= {n for n in latest if isinstance(step := self.steps[n], Kernel) and value in step.axes}
        is_scalar = all(dim == ONE for dim in self.dims[self.first + index] or ())
        if is_scalar:
            latest = [step for step, each in enumerate(self.steps) if isinstance(each, Kernel) and not each.domain]
        elif now == LATE:  # the updates of all tensors of equal sizes are one kernel
            latest = [step for step, moment in enumerate(self.moment_of) if moment == LATE]
        domains = {i: step.domain for i in makers.union(latest) if isinstance(step := self.steps[i], Kernel)}
        # A kernel that waited for what only a part of it needs would keep the rest from running meanwhile.
        kernels = {i for i in domains if self.moment_of[i] == now or self.moment_of[i].level == now.level == 0}
        if is_scalar:  # it waits for no further step
            kernels = {i for i in kernels if i in makers or not domains[i]}
        # Of the makers the latest, which may depend on the others; of the rest the first, on which fewest steps depend.
        # Larger domains come before both: the others may be merged into them.
        found = [*sorted(kernels & makers, reverse=True), *sorted(kernels - makers)]
        return sorted(found, key=lambda i: -len(domains[i]))

    def _is_free(self, step: int, index: int) -> bool:
        """Whether joining the step makes no cycle: nothing outside it that the instruction needs depends on it."""
        makers = {self.made_in[i] for i in self.waits[index] if i in self.made_in} - {step}
        makers |= self._overwriters(self.program.instructions[index])
        return not any(self.needs[maker] >> step & 1 for maker in makers)

    def _joins(self, kernel: Any, index: int, instruction: Instruction) -> bool:
        """Add an instruction to a kernel if the axes of its operands and value match the domain; whether it did."""
        if len(kernel.instructions) >= LARGEST:
            return False
        op, value = instruction.op, self.first + index
        if isinstance(op, ReductionOperator):
            return self._joins_reduction(kernel, index, instruction)
        operands = list(instruction.inputs)
        reads_elsewhere = op.index_map.is_affine or op.index_map.looks_up
        if reads_elsewhere:
            made_in = self.made_in.get(operands[0])
            is_own = made_in is not None and kernel is self.steps[made_in]
            if is_own or not kernel.domain:
                return False
            del operands[0]
        parts = [i for i in operands if i in self.parts and i in self.waits[index]]
        operands += [self.parts[i] for i in parts]
        axes = self._aligned(kernel, self.dims[value], operands)
        if axes is None:
            return False
        found = {i: self._axes_of(kernel, i, axes) for i in operands}
        if any(known is None for known in found.values()):
            return False
        along = {axis for axis in axes if axis is not None}
        everywhere = set(range(len(kernel.domain)))
        if along not in (everywhere, everywhere - kernel.reduced):
            return False  # it would be recomputed along the axes that it does not have
        if op.index_map.is_affine and along != everywhere:
            return False  # kernels read at affine indices in the inner loops alone
        reduced = self._reduced_along(value, axes) if along == everywhere else frozenset()
        is_for_others = bool(reduced) and self.reduced.setdefault(kernel, kernel.reduced or reduced) != reduced
        if is_for_others and not any(i in kernel.stages and kernel.level(i) == "inner" for i in operands):
            return False  # it would be stored, to be reduced by another kernel, which may as well compute it
        if reads_elsewhere:
            kernel.windowed.add(instruction.inputs[0])
        kernel.axes.update({i: known for i, known in found.items() if known is not None})
        kernel.axes[value] = axes
        self._load_parts(kernel, parts)
        kernel.stages[value] = max((kernel.stages.get(i, 0) for i in operands), default=0)
        kernel.instructions.append(index)
        return True

    def _load_parts(self, kernel: Kernel, parts: Sequence[int]) -> None:
        """Add parts of complex values to a kernel that reads or computes these."""
        for i in parts:
            if i not in kernel.stages:
                kernel.stages[i] = kernel.stages.get(self.parts[i], 0)
                kernel.instructions.append(i - self.first)

    def _reads_windows(self, index: int, instruction: Instruction) -> bool:
        """Whether kernels read an operand elsewhere, at affine indices or at a value."""
        op, value, program = instruction.op, self.first + index, self.program
        if op.index_map.looks_up:
            is_real = not is_complex(instruction.type.dtype)
            return is_real and self.windows and not any(map(program.is_number, instruction.inputs))
        if not self.windows or not op.index_map.is_affine or program.is_number(instruction.inputs[0]):
            return False
        given, made = program.type_of(instruction.inputs[0]), instruction.type
        is_same = getattr(given, "dtype", None) == made.dtype and not (is_narrow(made.dtype) or is_complex(made.dtype))
        readers = self.readers.get(value, ())
        are_fusable = all(is_fusable(program, x) for x in readers)
        return is_same and are_fusable and bool(readers) and value not in program.outputs

    def _reduced_along(self, value: int, axes: Axes) -> frozenset[int | None]:
        """The axes of the domain that all readers of a value reduce; none, where these differ or a reader does not."""
        readers = self.readers.get(value, ())
        if value in self.program.outputs or not all(isinstance(each.op, ReductionOperator) for each in readers):
            return frozenset()
        found = {frozenset(axes[i] for i in each.op.axes(len(axes))) for each in readers}
        return found.pop() if len(found) == 1 else frozenset()

    def _joins_moved(
        self, kernel: Kernel | Call, index: int, instruction: Instruction, moved: Sequence[int | None]
    ) -> bool:
        """Add an instruction that only moves axes to the kernel that computes its operand; whether it did."""
        operand, value = instruction.inputs[0], self.first + index
        if not isinstance(kernel, Kernel) or len(kernel.instructions) >= LARGEST or value in self.program.outputs:
            return False
        if not all(is_fusable(self.program, reader) for reader in self.readers.get(value, ())):
            return False  # for a call a view is cheaper
        kernel.axes[value] = tuple(None if axis is None else kernel.axes[operand][axis] for axis in moved)
        kernel.stages[value] = kernel.stages[operand]
        kernel.instructions.append(index)
        return True

    def _joins_reduction(self, kernel: Kernel, index: int, instruction: Instruction) -> bool:
        (operand,), op = instruction.inputs, instruction.op
        dims = self.dims[operand] or ()
        parts = [operand] if operand in self.parts else []
        operands = [operand, *(self.parts[i] for i in parts)]
        axes = self._aligned(kernel, dims, operands)
        if axes is None or {axis for axis in axes if axis is not None} != set(range(len(kernel.domain))):
            return False
        ordered = [axis for i, axis in enumerate(axes) if i in op.axes(len(dims)) and axis is not None]
        reduced = frozenset(ordered)
        if not reduced or (kernel.reduced and kernel.reduced != reduced):
            return False
        accumulator = op.accumulator_for(self.program.type_of(operand).dtype)
        finds_index = accumulator is not None and bool(accumulator.replaces)
        if finds_index and (not self.indices or ordered != sorted(ordered)):  # it is flat along the domain's axes
            return False
        outer = [None if i in op.axes(len(dims)) else axis for i, axis in enumerate(axes)]
        if not op.keepdims:
            outer = [axis for i, axis in enumerate(outer) if i not in op.axes(len(dims))]
        value = self.first + index
        if any(kernel.axes.get(i, axes) != axes for i in operands[1:]):
            return False
        kernel.reduced = reduced
        kernel.axes.update(dict.fromkeys(operands, axes))
        self._load_parts(kernel, parts)
        kernel.axes[value] = tuple(outer)
        kernel.stages[value] = kernel.stages.get(operand, 0) + 1
        kernel.instructions.append(index)
        return True

    def _aligned(self, kernel: Kernel, dims: Dims | None, operands: Sequence[int]) -> Axes | None:
        """The domain's axes for a value of these dimensions, those of its operands; None if they do not match."""
        found: list[int | None] = []
        for back, dim in enumerate(dims or (), -len(dims or ())):
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
        """An axis of the domain of this dimension: the one at the same position from the last, or else any other."""
        candidates = [len(kernel.domain) + back, *range(len(kernel.domain))]
        return next((i for i in candidates if i >= 0 and kernel.domain[i] == dim and i not in taken), None)

    def _axes_of(self, kernel: Kernel, operand: int, axes: Axes) -> Axes | None:
        """The domain's axes for an operand that is broadcast to a value with these axes."""
        dims = self.dims[operand] or ()
        given = axes[len(axes) - len(dims) :] if dims else ()
        found = tuple(None if dim == ONE else axis for dim, axis in zip(dims, given, strict=True))
        known = kernel.axes.get(operand, found)
        return found if known == found else None

    def _mark_writes(self) -> None:
        """Set the values that each kernel stores: outputs, and inputs of other steps."""
        outside = set(self.program.outputs)
        for index in self.needed:
            if (here := self.made_in.get(self.first + index)) is not None:
                outside.update(i for i in self.waits[index] if self.made_in.get(i, here) != here)
        outside.difference_update(self.parts)
        for step in self.steps:
            if isinstance(step, Kernel):
                step.writes = [self.first + index for index in step.instructions if self.first + index in outside]


def _needed(program: Program, waits: Sequence[Sequence[int]]) -> list[int]:
    """The indices of the live instructions, in order: those that destroy an input, or whose values are needed.

    A value is not needed where only its shape is read, and that is known.
    """
    first, wanted, found = len(program.leaves), set(program.outputs), []
    for index in range(len(program.instructions) - 1, -1, -1):
        if first + index in wanted or program.instructions[index].op.destroy_map:
            wanted.update(waits[index])
            found.append(index)
    return found[::-1]


def _moved_along(small: Kernel, kernel: Kernel) -> dict[int, Axes] | None:
    """The axes of a kernel's values in the domain of another that reads some of them; None if undetermined."""
    axis_of: dict[int | None, int | None] = {None: None}
    for value in small.stages:
        for axis, other in zip(small.axes[value], kernel.axes.get(value, ()), strict=False):
            if axis_of.setdefault(axis, other) != other:
                return None
    if len(axis_of) <= len(small.domain) or len(set(axis_of.values())) < len(axis_of):
        return None
    return {value: tuple(axis_of[axis] for axis in axes) for value, axes in small.axes.items()}


def moved_axes(instruction: Instruction, dims: Sequence[Dims | None]) -> list[int | None] | None:
    """The operand's axis for each axis of the value, None for one of size 1; None for an op that does more.

    `dims`: the operand's dimensions, and the value's.
    """
    if len(dims) < 2 or dims[0] is None or dims[1] is None:
        return None
    op, given, made = instruction.op, dims[0], dims[1]
    if op.index_map.axis_order is not None:
        return list(op.index_map.axis_order)
    if not op.index_map.keeps_order or [dim for dim in given if dim != ONE] != [dim for dim in made if dim != ONE]:
        return None
    axes = iter([axis for axis, dim in enumerate(given) if dim != ONE])
    return [None if dim == ONE else next(axes) for dim in made]


def is_fusable(program: Program, instruction: Instruction) -> bool:
    """Whether a kernel can compute an instruction: by a kernel expression, or as a reduction with an accumulator."""
    op, node = instruction.op, instruction.node
    dtypes = [x.type.dtype for x in node.inputs if hasattr(x.type, "dtype")]
    if len(dtypes) < len(instruction.inputs) or not hasattr(node.type, "dtype"):
        return False
    if isinstance(op, ReductionOperator):
        return op.accumulator_for(dtypes[0]) is not None and not is_complex(dtypes[0])
    if op.index_map.is_flat_index:
        return True
    if isinstance(op, PartOperator):
        return not program.is_number(instruction.inputs[0])
    if not (isinstance(op, ElementwiseOperator) or op.index_map.repeats is not None):
        return False
    return not op.destroy_map and kernel_of(op, loop_dtypes(program, instruction)) is not None


def loop_dtypes(program: Program, instruction: Instruction) -> list[np.dtype]:
    """The dtypes that an instruction computes its operands in; a Python number is weak."""
    given = [
        weak_dtype(spec_of(program.leaves[i])) if i < len(program.leaves) else program.type_of(i).dtype
        for i in instruction.inputs
    ]
    *operands, _ = instruction.op.resolve_dtypes(*given)
    return list(operands)
