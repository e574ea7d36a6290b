"""Kernels specialised to the layouts of their arrays: printed and compiled once for each kind of layout."""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from math import inf, prod
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from backends.execution.memory import HOST, Memory, Overlaps
from backends.execution.printer_common import literal
from backends.execution.rounding import rounded_when_stored
from backends.execution.taps import Reach, reach, rows_together
from optree import settings
from optree.cache import Cache
from optree.compile.fusion import Kernel, loop_dtypes
from optree.compile.loopnest import (
    FUNCTION,
    LOOKUP,
    LoopNest,
    Quotient,
    Reduction,
    Spaced,
    Statement,
    Tap,
    products_of,
    stages_of,
)
from optree.compile.program import Program, Sizes
from optree.dtypes import is_complex, is_floating, is_narrow
from optree.errors import CompilerError, ShapeError, names
from optree.op.traits import NumberOperator, ReductionOperator, kernel_of
from optree.records import NamedTuple

#: Maximum entries of a kernel's cache of compiled nests.
NESTS = 256

#: The inner loops are split among threads where the outer ones have at most `MAX_SPLIT` indices (of columns, tiles of
#: `TILE`), each with at least `LARGE` elements.
MAX_SPLIT, LARGE, TILE = 64, 1 << 17, 512

#: The maximum elements of the columns that a contraction accumulates in registers: they stay in the first cache.
MAX_IN_REGISTERS = 1 << 13

#: The maximum elements of the rows of a contraction that are columns to it, though not contiguous: a vector's lanes
#: would have few elements of such a row each.
SHORT_ROW = 64

#: The source of a contraction states the sizes of all loops but the first, where that has at least this size, and the
#: others have at most `MAX_STATED` elements: up to `MAX_SHAPES` times for each kernel.
MIN_STACK, MAX_STATED, MAX_SHAPES = 64, 1 << 9, 4

#: The least rows for which columns that are not contiguous are packed, rather than reduced each by itself.
PACKED_ROWS = 4

#: Where the innermost loop is shorter than this, and the one around it is not, a kernel with taps exchanges the two.
SHORT_LOOP = 8

#: The least size of two loops that are tiled.
MIN_TILED = 16

#: The statuses of a call that has not run, because an array has another layout, a number is out of range, or a write
#: would overlap a read; and because there is no memory for scratch arrays.
OTHER_LAYOUT, OVERLAPS, NO_MEMORY = 1, 2, 3

#: For each array, its stride in elements along each axis of a domain.
Strides = list[list[int]]

_SIGNED, _UNSIGNED, _FLOAT = struct.Struct("q"), struct.Struct("Q"), struct.Struct("d")


#: Arrays that are no views of others.
NO_BASES: Mapping[int, int] = MappingProxyType({})

#: The stage of a store that follows all stages.
AFTER_STAGES = inf

#: The name of a function in an error that says that it is not declared, or not defined.
_UNKNOWN = re.compile(
    r"(?:undefined (?:symbol|reference)|implicit declaration of function|undeclared function)\W*(\w+)"
)


#: A call of a kernel for arrays of one layout, which it checks: a function of a program's values to its status, 0 if it
#: has run.
Run = Callable[[list[Any]], int]

#: The sizes of the loops of a nest, and for each array its strides along them, in elements.
Layout = tuple[Sequence[int], Sequence[int]]


class _Collected(threading.local):
    """For each thread the launches that `collecting` collects, and the memory that they use; None outside of it."""

    launches: list[tuple[Any, Any]] | None = None


COLLECTED = _Collected()


@contextmanager
def collecting() -> Iterator[list[tuple[Any, Any]]]:
    """A block in which calls of kernels are collected instead of launched."""
    COLLECTED.launches = found = list[tuple[Any, Any]]()
    try:
        yield found
    finally:
        COLLECTED.launches = None


def at_once(call: Callable[..., Any], *args: Any) -> Any:
    """Call a function whose kernels are launched, also where others are collected."""
    before, COLLECTED.launches = COLLECTED.launches, None
    try:
        return call(*args)
    finally:
        COLLECTED.launches = before


class Specialized(NamedTuple):
    """A kernel's loop nest for arrays of one layout."""

    #: Of the stored values.
    shapes: list[tuple[int, ...]]
    #: None where there are no elements.
    nest: LoopNest | None
    #: The arrays' layout along its loops.
    layout: Layout


class Operands(NamedTuple):
    """The arrays and numbers of a kernel's call, each under its index in the list of values."""

    reads: dict[int, Any]
    writes: dict[int, Any]
    #: For each write and, within it, each read, whether the two may begin at the same address.
    in_place: Sequence[bool]
    #: With the dtypes that they are converted to.
    numbers: Sequence[tuple[int, np.dtype]]
    layout: Layout
    #: For each array of `reads` that is not in the list of values, but a view of one that is, that one's index and
    #: itself.
    bases: Mapping[int, tuple[int, Any]]


class CompiledNest(Protocol):
    """A compiled loop nest."""

    def call(self, operands: Operands, memory: Memory) -> Run:
        """The function that runs it on arrays of the layout of these."""


class CheckedCall:
    """A call of a compiled nest that checks the layout of its arrays in Python.

    `memory`: the memory of the arrays.
    `launch`: runs the nest: from the addresses of its arrays and the numbers, 8 bytes each as integers. None if there
    are no elements.
    """

    def __init__(
        self, operands: Operands, memory: Memory, launch: Callable[[list[int], list[int]], Any] | None = None
    ) -> None:
        arrays = [*operands.reads.items(), *operands.writes.items()]
        given = [operands.bases.get(i, (i, x)) for i, x in arrays]
        self.indices, self.numbers = [i for i, _ in given], operands.numbers
        self._layouts = layouts_of([x for _, x in given], memory)
        address = memory.address
        self._offsets = [address(x) - address(base) for (_, x), (_, base) in zip(arrays, given, strict=True)]
        self._alignments = [x.dtype.alignment for _, x in arrays]
        self._overlaps = Overlaps([*operands.reads.values()], [*operands.writes.values()], operands.in_place)
        self._memory, self._launch = memory, launch

    def __call__(self, values: list[Any]) -> int:
        """Run the nest on the arrays and numbers among these values; the status of a `Run`."""
        addresses = self.addresses(values)
        if isinstance(addresses, int):
            return addresses
        if self._launch is not None:
            self._launch(addresses, self.words(values))
        return 0

    def addresses(self, values: Sequence[Any]) -> list[int] | int:
        """The addresses of the arrays; a status if they have another layout, or a write overlaps a read."""
        arrays = [values[i] for i in self.indices]
        if layouts_of(arrays, self._memory) != self._layouts:
            return OTHER_LAYOUT
        found = [self._memory.address(x) + offset for x, offset in zip(arrays, self._offsets, strict=True)]
        if any(address % alignment for address, alignment in zip(found, self._alignments, strict=True)):
            return OTHER_LAYOUT
        return OVERLAPS if self._overlaps.at(found) else found

    def words(self, values: Sequence[Any]) -> list[int]:
        """The numbers among the values."""
        return [as_int64(values[i], dtype) for i, dtype in self.numbers]


class FusedKernel:
    """A kernel of a program, specialised and compiled at its first run for each kind of layout.

    `sizes`: the program's.
    `compile`: from a `LoopNest` to its `CompiledNest`.
    `memory`: the memory of the arrays.

    `reads`, `writes`: the values of the program that it loads and stores.
    `windowed`: the values that it reads at other indices than it stores.
    `numbers`: the values that it takes as Python numbers, once for each dtype in which they are passed.
    `shape_inputs`: the values of which it uses the shape alone.
    `uses`: all values that it uses from outside.
    `flat_indices`: the values that it computes as an element's index in C order.
    `axes`: the axes of the kernel's domain that each value runs along.
    `dtypes`: the dtypes of the loaded and stored values.
    """

    def __init__(
        self,
        program: Program,
        kernel: Kernel,
        sizes: Sizes,
        compile: Callable[[LoopNest], Any],
        memory: Memory = HOST,
    ) -> None:
        self.rank, self.reduced, self.writes = len(kernel.domain), kernel.reduced, kernel.writes
        self.windowed: Set[int] = kernel.windowed
        self.memory, self.sizes, self._compile = memory, sizes, compile
        #: The last stage that loads each array, and the stage that stores each; without those outside of stages.
        self.last_read, self.written_in = dict[int, int](), dict[int, int]()
        #: The compiled nests, and the errors of those that were compiled ahead, which are raised when they are needed.
        self._nests = Cache("nests of kernels", NESTS)
        self.reads, self.numbers, self.shape_inputs = _operands(program, kernel)
        first = len(program.leaves)
        maps = {i: program.instructions[i].op.index_map for i in kernel.instructions}
        indices = [i for i in kernel.instructions if maps[i].is_flat_index]
        self.flat_indices = [first + i for i in indices]
        #: For each of these, the axes of the domain that it counts along.
        self._counted = [maps[i].counted_axes(kernel.axes[first + i]) for i in indices]
        #: The values that are read of another array, and their ops: `AffineOperator`.
        self.taps = {first + i: program.instructions[i] for i in kernel.instructions if maps[i].is_affine}
        #: The values where elements are looked up.
        self.tables = {program.instructions[i].inputs[0] for i in kernel.instructions if maps[i].looks_up}
        self.axes = {i: (None,) * program.type_of(i).ndim for i in self.windowed} | kernel.axes
        read = [*self.reads, *self.flat_indices, *self.taps]
        self.uses = {*self.reads, *self.shape_inputs, *(i for i, _ in self.numbers)}
        self.dtypes = {i: program.type_of(i).dtype for i in (*self.reads, *self.writes)}
        self._levels = tuple(kernel.level(i) if i in kernel.axes else "base" for i in (*read, *self.writes))
        statements, numbering = _statements(program, kernel, [*read, *self.numbers])
        written = [numbering[i] for i in self.writes]
        if settings.value("rounding") == "store" and any(is_narrow(made.dtype) for made in statements):
            dtypes = [*(program.type_of(i).dtype for i in read), *(dtype for _, dtype in self.numbers)]
            levels = [*self._levels[: len(read)], *["once"] * len(self.numbers)]
            statements, numbers = rounded_when_stored(statements, dtypes, levels)
            written = [numbers[i] for i in written]
        self._statements, self._written = tuple(statements), tuple(written)
        #: Whether its reductions' order is that of the axes: an index is the result of one.
        self._is_ordered = any(isinstance(s, Reduction) and s.accumulator.replaces for s in self._statements)
        computed = [program.instructions[index] for index in kernel.instructions]
        #: The ops that are not op-tree's, with their kernel expressions.
        self._foreign = {
            type(x.op).__qualname__: str(kernel_of(x.op, loop_dtypes(program, x)))
            for x in computed
            if not type(x.op).__module__.startswith("optree.")
        }
        self._set_stages()
        #: The sizes that sources of it state.
        self._stated_sizes: set[tuple[int, ...]] = set()
        made = [s.expression for s in self._statements if isinstance(s, Statement)]
        #: Whether nearly all that it computes are sums and products, quicker than the loads of their operands.
        self._is_bound_by_loads = 4 * sum("?" in each or bool(FUNCTION.search(each)) for each in made) <= len(made)
        self._is_contraction = bool(self.reduced and not self.taps and products_of(self.nest(1, 0, ())))

    def specialize(self, arrays: Sequence[Any], input_shapes: Sequence[tuple[int, ...]]) -> Specialized | None:
        """The loop nest for arrays of the layout of these; None if its domain is empty, or an array is unaligned.

        `arrays`: those that are loaded, then those that are stored, None for a new one in C order.
        """
        sizes = self.domain_sizes(arrays, input_shapes)
        shapes = [tuple(1 if axis is None else sizes[axis] for axis in self.axes[i]) for i in self.writes]
        tables = [arrays[self.reads.index(i)] for i in sorted(self.tables, key=self.reads.index)]
        if not self.takes(arrays) or any(x.strides != (x.itemsize,) for x in tables):
            return None
        if not all(sizes):  # calls store what has elements, and raise the errors of reductions of none
            return None if self.reduced or any(map(all, shapes)) else Specialized(shapes, None, ([], []))
        strides, taps = self.strides(arrays, sizes), self._reaches(arrays, input_shapes, sizes)
        first = len(self.reads) + len(self.flat_indices)
        strides[first:first] = [tap.strides for tap in taps]
        # Beside the arrays, each axis with bounds as one that varies along it alone: so it is a loop of its own.
        count, bounded = len(strides), sorted({axis for tap in taps for axis in (*tap.bounds, *tap.spaced)})
        strides += [[int(axis == each) for axis in range(self.rank)] for each in bounded]
        outer = self._collapsed([axis for axis in range(self.rank) if axis not in self.reduced], sizes, strides)
        inner = self._collapsed(sorted(self.reduced), sizes, strides) if self.reduced else None
        columns = inner is not None and outer is not None and not _are_rows(outer[1], inner[1], self._levels)
        rows = inner if self.reduced else outer
        if taps and rows is not None and not (columns or self._is_ordered):
            with_long_rows(*rows, least=-len(rows[0]) if self.reduced else -2)  # in place
        loops = [domain for domain in (outer, inner) if domain is not None]
        loop_sizes = [size for domain in loops for size in domain[0]]
        loop_strides = [[step for domain in loops for step in domain[1][array]] for array in range(len(strides))]
        loop_of = {axis: steps.index(max(steps)) for axis, steps in zip(bounded, loop_strides[count:], strict=True)}
        del loop_strides[count:]
        if inner is not None and outer is not None and self._is_contraction:
            has_rows = len(outer[0]) > 1 and outer[0][-2] >= PACKED_ROWS
            is_packed = has_rows and prod(inner[0]) * outer[0][-1] <= MAX_IN_REGISTERS
            columns = columns or is_packed or prod(inner[0]) <= SHORT_ROW
        nest = self._nest_for(loop_sizes, loop_strides, 0 if outer is None else len(outer[0]), columns)
        words = [step for steps in loop_strides for step in steps]
        if taps:
            ranges = list(dict.fromkeys((loop_of[x], *ends) for tap in taps for x, ends in tap.bounds.items()))
            words += [*(tap.offset for tap in taps), *(end for _, *ends in ranges for end in ends)]
            known, quotients = dict[Any, int](), dict[Quotient, int]()
            made = []
            for number, (each, tap) in enumerate(zip(nest.taps, taps, strict=True), first):
                spaced = []
                for x, (spacing, phase, is_remainder, cells) in tap.spaced.items():
                    quotient = quotients.setdefault(Quotient(loop_of[x], spacing, phase), len(quotients))
                    spaced.append(Spaced(quotient, is_remainder, cells))
                like = known.setdefault((each.array, *loop_strides[number], *[x[:2] for x in spaced]), number)
                within = tuple([ranges.index((loop_of[x], *ends)) for x, ends in tap.bounds.items()])
                made.append(each._replace(like=None if like == number else like, ranges=within, spaced=tuple(spaced)))
            nest = nest._replace(
                taps=tuple(made), ranges=tuple([loop for loop, *_ in ranges]), quotients=tuple(quotients)
            )
            if not quotients and nest.rank > 1 and self._is_bound_by_loads:
                bounds = [{loop_of[x]: ends for x, ends in tap.bounds.items()} for tap in taps]
                nest = rows_together(nest, loop_sizes, loop_strides, [tap.offset for tap in taps], bounds)
        words += [x.size for x in tables]
        return Specialized(shapes, nest, (loop_sizes, words))

    def in_place(self, reads: Sequence[Any], writes: Sequence[Any]) -> list[bool]:
        """For each stored array and, within it, each loaded one, whether the two may begin at the same address.

        Each element is then loaded for itself alone, and not after it has been stored.
        """
        return [
            self.axes[i] == self.axes[j]
            and j not in self.windowed
            and (x.shape, x.strides) == (y.shape, y.strides)
            and self.last_read.get(j, 0) <= self.written_in.get(i, AFTER_STAGES)
            for i, x in zip(self.writes, writes, strict=True)
            if x is not None
            for j, y in zip(self.reads, reads, strict=True)
        ]

    def overlaps(self, reads: Sequence[Any], writes: Sequence[Any]) -> bool:
        """Whether it would store a value, where an array is given for that, over one that it loads."""
        in_place = self.in_place(reads, writes)
        stored = [x for x in writes if x is not None]
        return Overlaps(reads, stored, in_place).at([self.memory.address(x) for x in (*reads, *stored)])

    def input_shapes(self, values: Sequence[Any]) -> list[tuple[int, ...]]:
        """The shapes of `shape_inputs`."""
        known = self.sizes
        return [known.shape_of(i, values) if known.is_known(i) else np.shape(values[i]) for i in self.shape_inputs]

    def domain_sizes(self, arrays: Sequence[Any], input_shapes: Sequence[tuple[int, ...]]) -> list[int]:
        """The size of each axis of the domain; `arrays` and `input_shapes` as of `specialize`.

        Raises ShapeError if arrays differ in one: an op gave another size than it had promised.
        """
        known = dict[int, int]()
        shapes = [None if x is None else x.shape for x in arrays]
        values = (*self.reads, *self.writes, *self.shape_inputs)
        for value, shape in zip(values, (*shapes, *input_shapes), strict=True):
            for axis, size in zip(self.axes[value], shape or (), strict=shape is not None):
                if axis is not None and known.setdefault(axis, size) != size:
                    raise ShapeError(
                        f"an op gave a value of another size than its type says: sizes {known[axis]} and {size} meet"
                    )
        sizes = [known.get(axis, 1) for axis in range(self.rank)]
        for value, (op, inputs, _) in self.taps.items():
            shape = op.output_shape(*self._shapes(inputs, arrays, input_shapes, sizes))
            for axis, size in zip(self.axes[value], shape, strict=True):
                if axis is not None:
                    sizes[axis] = size
        return sizes

    def _shapes(
        self, values: Sequence[int], arrays: Sequence[Any], input_shapes: Sequence[Any], sizes: Sequence[int]
    ) -> list[tuple[int, ...]]:
        """The shapes of a tap's operands; of those that the kernel computes, by the sizes of the domain."""
        known = {i: x.shape for i, x in zip(self.reads, arrays, strict=False)}
        known |= zip(self.shape_inputs, input_shapes, strict=True)
        return [known.get(i) or tuple(1 if axis is None else sizes[axis] for axis in self.axes[i]) for i in values]

    def _reaches(
        self, arrays: Sequence[Any], input_shapes: Sequence[tuple[int, ...]], sizes: Sequence[int]
    ) -> list[Reach]:
        """The elements that each tap reads."""
        found = []
        for value, (op, inputs, _) in self.taps.items():
            indices = op.along(*self._shapes(inputs, arrays, input_shapes, sizes))
            found.append(reach(arrays[self.reads.index(inputs[0])], indices, self.axes[value], sizes))
        return found

    def call(
        self, found: Specialized, values: Sequence[Any], written: Sequence[int], bases: Mapping[int, int] = NO_BASES
    ) -> Run:
        """The call for arrays of the same layout as these.

        `written`: the index among `values` of the array that each value is stored in.
        `bases`: for each loaded array that is a view by ops that shapes and strides alone decide, the array of which it
        is one: the call finds the view's elements from that, and needs no view.
        """
        reads, writes = ({i: values[i] for i in numbers} for numbers in (self.reads, written))
        viewed = {i: (base, values[base]) for i, base in bases.items()}
        in_place = self.in_place([*reads.values()], [*writes.values()])
        operands = Operands(reads, writes, in_place, self.numbers, found.layout, viewed)
        if found.nest is None:
            return CheckedCall(operands, self.memory)
        run: Run = self.compiled(found.nest).call(operands, self.memory)
        return run

    def takes(self, arrays: Sequence[Any]) -> bool:
        """Whether its kernels take arrays, None for a new one: aligned, with strides that are whole elements."""
        given = [x for x in arrays if x is not None]
        is_fractional = any(
            step % x.itemsize for x in given for step, size in zip(x.strides, x.shape, strict=True) if size > 1
        )
        pairs = self.memory.alignment > 1  # complex numbers are accessed whole
        alignments = [x.itemsize if pairs and is_complex(x.dtype) else x.dtype.alignment for x in given]
        addresses = map(self.memory.address, given)
        return not is_fractional and not any(at % size for at, size in zip(addresses, alignments, strict=True))

    def strides(self, arrays: Sequence[Any], sizes: Sequence[int]) -> Strides:
        """For each array of its nests the strides in elements along the domain's axes; C order for None, a new one."""
        count = len(self.reads)
        found = [
            c_order_strides(self.axes[i], sizes) if x is None else strides_along(x, self.axes[i], self.rank)
            for i, x in zip((*self.reads, *self.writes), arrays, strict=True)
        ]
        return [*found[:count], *(c_order_strides(counted, sizes) for counted in self._counted), *found[count:]]

    def _collapsed(self, axes: list[int], sizes: Sequence[int], strides: Strides) -> tuple[list[int], Strides] | None:
        """The loops over some axes, those of the longest strides outermost; None for outer axes of size 1."""
        inner = [x for x, level in zip(strides, self._levels, strict=False) if level == "inner"]
        first = max(inner, key=np.count_nonzero, default=strides[-1])  # the first that varies along most axes
        lead = strides[len(self._levels) - 1] if not self.reduced else first
        is_fixed = self._is_ordered and self.reduced.issuperset(axes)
        order = axes if is_fixed else sorted(axes, key=lambda axis: -abs(lead[axis]))
        if self.reduced and all(sizes[axis] == 1 for axis in order) and not set(order) & self.reduced:
            return None
        return collapsed_axes([sizes[axis] for axis in order], [[steps[axis] for axis in order] for steps in strides])

    def _nest_for(self, sizes: Sequence[int], strides: Strides, outer: int, columns: bool) -> LoopNest:
        vector = outer - 1 if columns else len(sizes) - 1
        vector_strides = tuple(steps[vector] if steps[vector] in (0, 1) else -1 for steps in strides)
        split = bool(self.reduced) and is_split(sizes, outer, columns)
        across = -1 if self.reduced or self.taps else _across(sizes, strides)
        nest = self.nest(len(sizes), outer, vector_strides, columns, split, across)
        is_small = prod(sizes[outer:]) <= SHORT_ROW or prod(sizes[outer - 1 :]) <= MAX_IN_REGISTERS
        if not (columns and self._is_contraction and is_small):
            return nest
        same = tuple([outer > 1 and not steps[outer - 2] for steps in strides])
        registers = (0, "inner") in zip(vector_strides, self._levels, strict=True)
        rows = same if registers and any(same) else ()
        return nest._replace(registers=registers, rows=rows, stated=self._stated(sizes))

    def _stated(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The sizes that the source of a contraction states (`LoopNest.stated`)."""
        rest, known = tuple(sizes[1:]), self._stated_sizes
        if sizes[0] < MIN_STACK or prod(rest) > MAX_STATED or len({*known, rest}) > MAX_SHAPES:
            return ()
        known.add(rest)
        return rest

    def by_rows(self, found: Specialized) -> LoopNest:
        """The nest whose reductions are along rows, without tiles: for few elements, whose number a compiler knows."""
        nest, (sizes, strides) = found.nest, found.layout
        assert nest is not None
        if not nest.columns or nest.taps:
            return nest
        steps = [list(strides[i * nest.rank : (i + 1) * nest.rank]) for i in range(len(nest.arrays))]
        return self._nest_for(sizes, steps, nest.outer, False)

    def compiled(self, nest: LoopNest) -> Any:
        """A nest of this kernel, compiled once; CompilerError if it does not compile."""
        found = self._nests.get(nest)
        if isinstance(found, Exception):
            self._nests.pop(nest, None)
            raise found
        if found is None:
            found = self._nests[nest] = self.compile(nest)
        return found

    def compile(self, nest: LoopNest) -> Any:
        """A nest of this kernel, compiled now; CompilerError if it does not compile."""
        try:
            return self._compile(nest)
        except CompilerError as error:
            self.explain(error)
            raise

    def fail(self, error: CompilerError) -> None:
        """Raise the error of a nest that does not compile."""
        raise error

    def is_compiled(self, nest: LoopNest) -> bool:
        """Whether a nest has been compiled."""
        return nest in self._nests

    def explain(self, error: CompilerError) -> None:
        """Note in an error the kernel's ops that are not op-tree's."""
        if self._foreign:
            self._name_symbol(error)
            foreign = f"the kernel has expressions of ops that are not op-tree's: {names(self._foreign)}"
            error.__notes__ = [foreign, *getattr(error, "__notes__", ())]  # before the notes of any failure

    def add(self, nest: LoopNest, made: object) -> None:
        """Add a nest that was compiled ahead, or the error to raise when it is needed."""
        self._nests[nest] = made

    @property
    def is_foreign(self) -> bool:
        """Whether it has expressions of ops that are not op-tree's."""
        return bool(self._foreign)

    def _name_symbol(self, error: CompilerError) -> None:
        """Begin an error that names an unknown function with the op whose expression has it."""
        missing = _UNKNOWN.search(str(error))
        users = [op for op, written in self._foreign.items() if missing and re.search(rf"\b{missing[1]}\b", written)]
        if missing and users:
            error.args = (f"{names(users)}: there is no {missing[1]} in C, which its kernel expression has: {error}",)

    def nest(
        self,
        rank: int,
        outer: int,
        vector_strides: tuple[int, ...],
        columns: bool = False,
        split: bool = False,
        across: int = -1,
    ) -> LoopNest:
        """The loop nest for arrays of one kind of layout; the parameters are attributes of `LoopNest`."""
        return LoopNest(
            (
                *(self.dtypes[i] for i in self.reads),
                *[np.dtype("int64")] * len(self.flat_indices),
                *(each.type.dtype for each in self.taps.values()),
            ),
            tuple(dtype for _, dtype in self.numbers),
            self._statements,
            self._written,
            tuple([self.dtypes[i] for i in self.writes]),
            rank,
            outer,
            self._levels,
            vector_strides,
            columns,
            split,
            across,
            len(self.flat_indices),
            tuple(
                [
                    Tap(self.reads.index(each.inputs[0]), literal(each.op.outside, each.type.dtype))
                    for each in self.taps.values()
                ]
            ),
        )

    def _set_stages(self) -> None:
        """Set `last_read` and `written_in`."""
        count = len(self.reads)
        for number, stage in enumerate(stages_of(self.nest(1, 0 if self.reduced else 1, ()))):
            self.last_read.update((self.reads[array], number) for array in stage.reads if array < count)
            first = count + len(self.flat_indices) + len(self.taps)
            self.written_in.update((self.writes[array - first], number) for array, _ in stage.writes)


def _operands(program: Program, kernel: Kernel) -> tuple[list[int], list[tuple[int, np.dtype]], list[int]]:
    """The values from outside that a kernel uses: as arrays, as Python numbers, and for their shape alone."""
    first = len(program.leaves)
    made = {first + index for index in kernel.instructions}
    reads: dict[int, None] = {}
    numbers: dict[tuple[int, np.dtype], None] = {}
    shape_inputs: dict[int, None] = {}
    for index in kernel.instructions:
        instruction = program.instructions[index]
        index_map = instruction.op.index_map
        _, shaped = index_map.repeats or (None, None)
        for position, i in enumerate(instruction.inputs[:1] if index_map.moves_axes else instruction.inputs):
            if position == shaped or (index_map.is_affine and position):
                shape_inputs[i] = None
            elif program.is_number(i):
                numbers[i, _passed(loop_dtypes(program, instruction)[position])] = None
            elif i not in made:
                reads[i] = None
    return list(reads), list(numbers), [i for i in shape_inputs if i not in reads and i not in made]


def _passed(dtype: np.dtype) -> np.dtype:
    """The dtype, of 8 bytes or bool, in which a number is passed."""
    return np.dtype("float64" if is_floating(dtype) else {"u": "uint64", "i": "int64"}.get(dtype.kind, "bool"))


def as_int64(number: Any, dtype: np.dtype) -> int:
    """The 8 bytes of a Python number in a dtype, as a signed integer."""
    if dtype.kind == "f":
        return _SIGNED.unpack(_FLOAT.pack(number))[0]
    if dtype.kind == "u":
        return _SIGNED.unpack(_UNSIGNED.pack(number))[0]
    return int(number) if dtype.kind == "i" else int(bool(number))


# Layouts


def layouts_of(arrays: Iterable[Any], memory: Memory) -> tuple[Any, ...]:
    """The layouts of arrays: a key of the calls for them. A value that is no array has its type."""
    kind, alignment = memory.kind, memory.alignment
    if alignment == 1:
        return tuple([(x.shape, x.strides) if x.__class__ is kind else x.__class__ for x in arrays])
    address = memory.address
    return tuple([(x.shape, x.strides, address(x) % alignment) if isinstance(x, kind) else x.__class__ for x in arrays])


def collapsed_axes(sizes: Sequence[int], strides: Strides) -> tuple[list[int], Strides]:
    """The domain without axes of size 1, and with axes that are contiguous together in all arrays collapsed.

    Examples
    --------
    >>> collapsed_axes([2, 3, 4], [[12, 4, 1], [12, 4, 1]])
    ([24], [[1], [1]])
    >>> collapsed_axes([2, 3], [[3, 1], [0, 1]])
    ([2, 3], [[3, 1], [0, 1]])
    """
    axes = [axis for axis, size in enumerate(sizes) if size != 1]
    found_sizes: list[int] = []
    found: Strides = [[] for _ in strides]
    for axis in axes:
        is_contiguous = bool(found_sizes) and all(
            own[-1] == given[axis] * sizes[axis] for own, given in zip(found, strides, strict=True)
        )
        if is_contiguous:
            found_sizes[-1] *= sizes[axis]
            for own, given in zip(found, strides, strict=True):
                own[-1] = given[axis]
        else:
            found_sizes.append(sizes[axis])
            for own, given in zip(found, strides, strict=True):
                own.append(given[axis])
    if not found_sizes:
        return [1], [[0] for _ in strides]
    return found_sizes, found


def with_long_rows(sizes: list[int], strides: Strides, least: int = -2) -> tuple[list[int], Strides]:
    """Loops of which the last, if it is short, is exchanged with the next that is not: a row costs as some elements do.

    `least`: the first loop that it is exchanged with.

    Examples
    --------
    >>> with_long_rows([8, 32, 3], [[96, 3, 1]])
    ([8, 3, 32], [[96, 1, 3]])
    """
    long = [loop for loop in range(least, -1) if len(sizes) + loop >= 0 and sizes[loop] >= SHORT_LOOP]
    if long and sizes[-1] < SHORT_LOOP:
        for loops in sizes, *strides:
            loops[long[-1]], loops[-1] = loops[-1], loops[long[-1]]
    return sizes, strides


def strides_along(array: np.ndarray, axes: Sequence[int | None], rank: int) -> list[int]:
    """An array's stride in elements along each axis of a domain."""
    found = [0] * rank
    for axis, size, stride in zip(axes, array.shape, array.strides, strict=True):
        if axis is not None and size != 1:
            found[axis] = stride // array.itemsize
    return found


def c_order_strides(axes: Sequence[int | None], sizes: Sequence[int]) -> list[int]:
    """The strides in elements of an array in C order with some axes of the domain, and so those of its flat index."""
    found, stride = [0] * len(sizes), 1
    for axis in reversed(axes):
        if axis is not None and sizes[axis] != 1:
            found[axis] = stride
            stride *= sizes[axis]
    return found


def _are_rows(outer: Strides, inner: Strides, levels: Sequence[str]) -> bool:
    """Whether the elements that are reduced together are closer together than those that are not."""
    steps = [
        (abs(within[-1]), min((abs(step) for step in between if step), default=0))
        for within, between, level in zip(inner, outer, levels, strict=False)  # after the arrays, loops with bounds
        if level == "inner"
    ]
    return all(within < between or not between for within, between in steps)


def _across(sizes: Sequence[int], strides: Strides) -> int:
    """The loop along which an array is contiguous that is strided along the vector loop (`LoopNest.across`)."""
    for steps in strides:
        if abs(steps[-1]) > 1 and 1 in steps:
            loop = list(steps).index(1)
            return loop if min(sizes[loop], sizes[-1]) >= MIN_TILED else -1
    return -1


def is_split(sizes: Sequence[int], outer: int, columns: bool) -> bool:
    """Whether the inner loops are split among threads, because the outer ones are too few; by sizes alone."""
    count = prod(sizes[: outer - columns]) * (-(-sizes[outer - 1] // TILE) if columns else 1)
    return prod(sizes) >= LARGE * count if count <= MAX_SPLIT else False


def _statements(
    program: Program, kernel: Kernel, operands: Sequence[Any]
) -> tuple[list[Statement | Reduction], dict[Any, int]]:
    """A kernel's instructions as statements, and the number in the nest of each value."""
    first = len(program.leaves)
    numbering = {value: i for i, value in enumerate(operands)}
    statements: list[Statement | Reduction] = []
    for index in kernel.instructions:
        instruction, number = program.instructions[index], len(numbering)
        if first + index in numbering:  # a flat index, among the reads
            continue
        op, dtype, inputs = instruction.op, instruction.type.dtype, list(instruction.inputs)
        numbering[first + index] = number
        if isinstance(op, ReductionOperator):
            given, stage = program.type_of(inputs[0]).dtype, kernel.stages.get(inputs[0], 0)
            if accumulator := op.accumulator_for(given):
                of = given if accumulator.replaces else dtype
                statements.append(Reduction(number, numbering[inputs[0]], accumulator, of, stage))
                continue
        level, stage = kernel.level(first + index), kernel.stages[first + index]
        if op.index_map.moves_axes:
            statements.append(Statement(number, "{0}", (numbering[inputs[0]],), (dtype,), dtype, level, stage))
            continue
        if op.index_map.looks_up:
            arguments = tuple(numbering[i] for i in inputs)
            found = tuple(program.type_of(i).dtype for i in inputs)
            statements.append(Statement(number, LOOKUP, arguments, found, dtype, level, stage))
            continue
        loop = loop_dtypes(program, instruction)
        repeats = op.index_map.repeats
        if repeats is not None and repeats[0] is not None:  # of the other operand only the shape counts
            inputs[repeats[1]], loop[repeats[1]] = inputs[repeats[0]], loop[repeats[0]]
        passed = [(i, _passed(dtype)) if program.is_number(i) else i for i, dtype in zip(inputs, loop, strict=True)]
        arguments = tuple(numbering[i] for i in passed)
        by_number = isinstance(op, NumberOperator) and program.is_number(inputs[-1])
        expression: Any = op.kernel_by_number(*loop) if by_number else kernel_of(op, loop)
        statements.append(Statement(number, expression, arguments, tuple(loop), dtype, level, stage))
    return statements, numbering
