"""Fused kernels ready to run: bound to arrays, printed and compiled for each layout that they meet."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any

import numpy as np

from backends.execution.axes import c_order_strides, collapsed_axes, strides_along
from backends.execution.memory import HOST, Memory
from backends.execution.runner import FastCall, Runner, as_int64
from optree.cache import Cache
from optree.compile.dimensions import Sizes
from optree.compile.fusion import Kernel, loop_dtypes
from optree.compile.loopnest import LoopNest, Reduction, Statement, stages_of
from optree.compile.program import Program
from optree.dtypes import is_floating
from optree.errors import CompilerError, names
from optree.ops.traits import ReductionOperator

#: The most combinations of its arrays' shapes and strides that a kernel remembers, and the most variants for them.
LAYOUTS = 256

#: The reduced loops are shared out to threads where the kept ones have at most so many places (columns in tiles of
#: `TILE` count as one), each with so many elements at least.
PLACES, LARGE, TILE = 64, 1 << 17, 512

#: The stage in which a kernel writes what is known only after all of them.
LAST = inf

#: Loops of fewer places are not taken in tiles.
APART = 16


class FusedKernel:
    """One kernel of a program.

    Parameters
    ----------
    program : Program
    kernel : Kernel
    sizes : Sizes
        The program's.
    compile : callable
        From a `LoopNest` to what runs it; called once for each layout.
    memory : Memory
        Of the arrays.

    Attributes
    ----------
    reads, likes, writes : list of int
        The values of the program that it takes as arrays, those that it takes for
        their shapes, and those that it makes.
    takes : set of int
        All that it takes from outside.
    numbers : list of (int, numpy.dtype)
        Those that it takes as Python numbers, once for each dtype that they are passed in.
    axes : dict
        The axes of the domain that each value runs along.
    """

    def __init__(
        self,
        program: Program,
        kernel: Kernel,
        sizes: Sizes,
        compile: Callable[[LoopNest], Runner],
        memory: Memory = HOST,
    ) -> None:
        self._compile, self._known, self.memory = compile, sizes, memory
        self._runners = Cache("variants of kernels", LAYOUTS)
        self._layouts = Cache("layouts of kernels", LAYOUTS)
        self.rank = len(kernel.domain)
        self.reads, self.numbers, self.likes = _operands(program, kernel)
        first = len(program.leaves)
        self._counted = [first + p for p in kernel.instructions if program.instructions[p].op.is_flat_index]
        read = [*self.reads, *self._counted]
        self.takes = {*self.reads, *self.likes, *(i for i, _ in self.numbers)}
        self.writes = kernel.writes
        self.dtypes = {i: program.type_of(i).dtype for i in (*self.reads, *self.writes)}
        self.axes = kernel.axes
        self._axes = [kernel.axes[i] for i in (*self.reads, *self.writes)]
        self._counted_axes = [kernel.axes[i] for i in self._counted]
        self._likes = [kernel.axes[i] for i in self.likes]
        self._reduced = kernel.reduced
        self._levels = tuple(kernel.level(i) for i in (*read, *self.writes))
        self._statements, places = _statements(program, kernel, [*read, *self.numbers])
        self._written = tuple(places[i] for i in self.writes)
        ops = (type(program.instructions[place].op) for place in kernel.instructions)
        foreign = [op for op in dict.fromkeys(ops) if not op.__module__.startswith("optree.")]
        #: The ops that are not op-tree's, with their kernel expressions.
        self._foreign = {op.__qualname__: str(op.kernel) for op in foreign}
        self.last_read, self.written_in = self._last_stages()

    def run(self, values: Sequence[Any], targets: Sequence[np.ndarray | None]) -> list[Any] | None:
        """The values that it makes, in the targets that are given and in new arrays for the rest.

        None if it reduces nothing, which NumPy does.

        Parameters
        ----------
        values : sequence
            Those of all leaves and instructions of the program, None where there is none.
        """
        inputs = [self.memory.array(values[i]) for i in self.reads]
        likes = self.shapes_like(values)
        address, count = self.memory.address, len(inputs)
        places = [None if x is None else address(x) for x in (*inputs, *targets)]
        lies = [
            None if place is None else (x.shape, x.strides, place % x.dtype.alignment)
            for x, place in zip((*inputs, *targets), places, strict=True)
        ]
        key = tuple(lies), *likes
        known = self._layouts.get(key)
        if known is None:
            known = self._layout(inputs, targets, likes)
            self._layouts[key] = known
        shapes, layout, runner = known
        outputs = [
            self.memory.empty(shape, self.dtypes[i]) if target is None else target
            for i, shape, target in zip(self.writes, shapes, targets, strict=True)
        ]
        if layout is None:
            return None
        if runner is not None:
            written = [address(x) if place is None else place for x, place in zip(outputs, places[count:], strict=True)]
            pointers = [*places[:count], *[0] * len(self._counted), *written]
            runner(pointers, [as_int64(values[i], dtype) for i, dtype in self.numbers], layout)
        return outputs

    def shapes_like(self, values: Sequence[Any]) -> list[tuple[int, ...]]:
        """The shapes of what it takes for its shape alone."""
        return [self._known.shape_of(i, values) if self._known.is_known(i) else np.shape(values[i]) for i in self.likes]

    def entry(self, values: Sequence[Any], places: Sequence[int]) -> FastCall | None:
        """The fast call for values that are laid out as these are, and are written in these places.

        None where there is none.
        """
        reads, writes = ({i: values[i] for i in numbers} for numbers in (self.reads, places))
        if any(type(x) is not self.memory.kind for x in (*reads.values(), *writes.values())):
            return None
        _, layout, runner = self._layout([*reads.values()], [*writes.values()], self.shapes_like(values))
        if runner is None:
            return None
        in_place = [
            self.axes[i] == self.axes[j]
            and (x.shape, x.strides) == (y.shape, y.strides)
            and self.last_read.get(j, 0) <= self.written_in.get(i, LAST)
            for i, x in zip(self.writes, writes.values(), strict=True)
            for j, y in reads.items()
        ]
        return runner.entry(reads, writes, in_place, self.numbers, layout, self.memory)

    def _layout(
        self, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray | None], likes: Sequence[tuple[int, ...]]
    ) -> Any:
        """The shapes of the outputs, the layout, and what runs the nest for it; None if there is nothing to do."""
        sizes = self._sizes([*inputs, *targets], likes)
        everything = [x for x in (*inputs, *targets) if x is not None]
        odd = any(
            step % x.itemsize for x in everything for step, size in zip(x.strides, x.shape, strict=True) if size > 1
        )
        written = self._axes[len(inputs) :]
        shapes = [tuple(1 if axis is None else sizes[axis] for axis in axes) for axes in written]
        if odd or any(self.memory.address(x) % x.dtype.alignment for x in everything):
            return shapes, None, None  # elements that lie as no C array's do
        strides = [strides_along(x, axes, self.rank) for x, axes in zip(inputs, self._axes, strict=False)]
        strides += [c_order_strides(axes, sizes) for axes in self._counted_axes]
        strides += [
            c_order_strides(axes, sizes) if x is None else strides_along(x, axes, self.rank)
            for x, axes in zip(targets, written, strict=True)
        ]
        kept = self._joined([axis for axis in range(self.rank) if axis not in self._reduced], sizes, strides)
        reduced = self._joined(sorted(self._reduced), sizes, strides) if self._reduced else None
        if self._reduced and not all(sizes):
            return shapes, None, None
        loops = [part for part in (kept, reduced) if part is not None]
        found_sizes = [size for part in loops for size in part[0]]
        found = [[step for part in loops for step in part[1][place]] for place in range(len(strides))]
        if not all(found_sizes):
            return shapes, (found_sizes, []), None
        columns = reduced is not None and kept is not None and not _are_rows(kept, reduced, self._levels)
        runner = self._runner(found_sizes, found, 0 if kept is None else len(kept[0]), columns)
        return shapes, (found_sizes, [step for steps in found for step in steps]), runner

    def _joined(self, axes: list[int], sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> Any:
        """The loops along some axes, the longest steps first; None if there is none to make, but for all axes."""
        first = next((x for x, level in zip(strides, self._levels, strict=True) if level == "inner"), strides[-1])
        lead = strides[-1] if not self._reduced else first
        order = sorted(axes, key=lambda axis: -abs(lead[axis]))
        if self._reduced and all(sizes[axis] == 1 for axis in order) and not set(order) & self._reduced:
            return None
        return collapsed_axes([sizes[axis] for axis in order], [[steps[axis] for axis in order] for steps in strides])

    def _runner(self, sizes: Sequence[int], strides: Sequence[Sequence[int]], kept: int, columns: bool) -> Runner:
        vector = kept - 1 if columns else len(sizes) - 1
        steps = tuple(each[vector] if each[vector] in (0, 1) else -1 for each in strides)
        split = bool(self._reduced) and is_split(sizes, kept, columns)
        key = len(sizes), kept, steps, columns, split, -1 if self._reduced else _across(sizes, strides)
        runner: Runner | None = self._runners.get(key)
        if runner is None:
            try:
                runner = self._runners[key] = self._compile(self.nest(*key))
            except CompilerError as error:
                if self._foreign:
                    self._name_symbol(error)
                    foreign = f"the kernel has expressions of ops that are not op-tree's: {names(self._foreign)}"
                    error.__notes__ = [foreign, *getattr(error, "__notes__", ())]  # before what is said of any failure
                raise
        return runner

    @property
    def is_foreign(self) -> bool:
        """Whether it has expressions of ops that are not op-tree's."""
        return bool(self._foreign)

    def _name_symbol(self, error: CompilerError) -> None:
        """Begin a linker's or loader's error for what is not defined with the op whose expression has it."""
        missing = re.search(r"undefined (?:symbol|reference)[^\w]*(\w+)", str(error))
        users = [op for op, written in self._foreign.items() if missing and re.search(rf"\b{missing[1]}\b", written)]
        if missing and users:
            error.args = (f"{names(users)}: there is no {missing[1]} in C, which its kernel expression has: {error}",)

    def nest(
        self, rank: int, kept: int, steps: tuple[int, ...], columns: bool = False, split: bool = False, across: int = -1
    ) -> LoopNest:
        """The loop nest for arrays that need so many loops, so many kept, with these steps along the vector loop."""
        return LoopNest(
            (*(self.dtypes[i] for i in self.reads), *[np.dtype("int64")] * len(self._counted)),
            tuple(dtype for _, dtype in self.numbers),
            self._statements,
            self._written,
            rank,
            kept,
            self._levels,
            steps,
            columns,
            split,
            across,
            len(self._counted),
        )

    def _last_stages(self) -> tuple[dict[int, int], dict[int, int]]:
        """The last stage that reads each array, and the one that writes each; those of no stage are left out."""
        reads: dict[int, int] = {}
        writes: dict[int, int] = {}
        for number, stage in enumerate(stages_of(self.nest(1, 0 if self._reduced else 1, ()))):
            arrays = [place for place in stage.reads if place < len(self.reads)]
            reads.update(dict.fromkeys([self.reads[place] for place in arrays], number))
            first = len(self.reads) + len(self._counted)
            writes.update({self.writes[place - first]: number for place, _ in stage.writes})
        return reads, writes

    def _sizes(self, arrays: Sequence[np.ndarray | None], likes: Sequence[tuple[int, ...]]) -> list[int]:
        """The size of each axis of the domain."""
        sizes = [1] * self.rank
        shapes = [None if x is None else x.shape for x in arrays]
        for shape, axes in zip((*shapes, *likes), (*self._axes, *self._likes), strict=True):
            if shape is not None:
                for axis, size in zip(axes, shape, strict=True):
                    if axis is not None:
                        sizes[axis] = size
        return sizes


def _operands(program: Program, kernel: Kernel) -> tuple[list[int], list[tuple[int, np.dtype]], list[int]]:
    """The values that a kernel takes from outside: arrays, Python numbers, and what only has a shape."""
    first = len(program.leaves)
    made = {first + place for place in kernel.instructions}
    reads: dict[int, None] = {}
    numbers: dict[tuple[int, np.dtype], None] = {}
    likes: dict[int, None] = {}
    for place in kernel.instructions:
        instruction = program.instructions[place]
        _, like = instruction.op.broadcasts or (None, None)
        for position, i in enumerate(instruction.inputs[:1] if instruction.op.moves_axes else instruction.inputs):
            if position == like:
                likes[i] = None
            elif _is_number(program, i):
                numbers[i, _passed(loop_dtypes(program, instruction)[position])] = None
            elif i not in made:
                reads[i] = None
    return list(reads), list(numbers), [i for i in likes if i not in reads and i not in made]


def _is_number(program: Program, value: int) -> bool:
    return value < len(program.leaves) and isinstance(program.leaves[value], bool | int | float)


def _passed(dtype: np.dtype) -> np.dtype:
    """The dtype of 8 bytes, or bool, that a number is passed in to be computed in another."""
    return np.dtype("float64" if is_floating(dtype) else {"u": "uint64", "i": "int64"}.get(dtype.kind, "bool"))


def _are_rows(kept: Any, reduced: Any, levels: Sequence[str]) -> bool:
    """Whether the elements that are reduced together lie together."""
    steps = [
        (abs(along[-1]), min((abs(step) for step in across if step), default=0))
        for along, across, level in zip(reduced[1], kept[1], levels, strict=True)
        if level == "inner"
    ]
    return all(along <= across or not across for along, across in steps)


def _across(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> int:
    """The loop along which elements of some array lie together, where the vector loop takes them far apart."""
    for steps in strides:
        if abs(steps[-1]) > 1 and 1 in steps:
            loop = list(steps).index(1)
            return loop if min(sizes[loop], sizes[-1]) >= APART else -1
    return -1


def is_split(sizes: Sequence[int], kept: int, columns: bool) -> bool:
    """Whether the reduced loops are shared out to threads, for the kept ones are too few: a rule of sizes alone."""
    places = prod(sizes[: kept - columns]) * (-(-sizes[kept - 1] // TILE) if columns else 1)
    return prod(sizes) >= LARGE * places if places <= PLACES else False


def _statements(
    program: Program, kernel: Kernel, operands: Sequence[Any]
) -> tuple[tuple[Statement | Reduction, ...], dict[Any, int]]:
    """A kernel's instructions as statements, and each value's number in the nest."""
    first = len(program.leaves)
    places = {value: i for i, value in enumerate(operands)}
    statements: list[Statement | Reduction] = []
    for place in kernel.instructions:
        instruction, number = program.instructions[place], len(places)
        if first + place in places:  # places, which are read
            continue
        op, dtype, inputs = instruction.op, instruction.type.dtype, list(instruction.inputs)
        places[first + place] = number
        accumulator = op.accumulator_for(dtype) if isinstance(op, ReductionOperator) else None
        if accumulator is not None:
            stage = kernel.stages.get(inputs[0], 0)
            statements.append(Reduction(number, places[inputs[0]], accumulator, dtype, stage))
            continue
        level, stage = kernel.level(first + place), kernel.stages[first + place]
        if op.moves_axes:
            statements.append(Statement(number, "{0}", (places[inputs[0]],), (dtype,), dtype, level, stage))
            continue
        loop = loop_dtypes(program, instruction)
        spread = op.broadcasts
        if spread is not None and spread[0] is not None:  # the other operand is only there for its shape
            inputs[spread[1]], loop[spread[1]] = inputs[spread[0]], loop[spread[0]]
        named = [(i, _passed(dtype)) if _is_number(program, i) else i for i, dtype in zip(inputs, loop, strict=True)]
        arguments = tuple(places[i] for i in named)
        statements.append(Statement(number, op.kernel_for(*loop), arguments, tuple(loop), dtype, level, stage))
    return tuple(statements), places
