"""Kernels without a compiler: their instructions by NumPy, block by block, on several threads.

A block is a part of a kernel's domain, so small that what is made of it stays
in a processor's cache. All instructions run on one block, into scratch memory
that serves the next block again, before any of them runs on another.

In here every array is seen with one axis for each axis of the domain, the
outermost in memory first, of size 1 where its value does not run along it: so
NumPy's broadcasting aligns operands, and to move axes is to do nothing. How
the domain is cut depends on sizes alone, and so do the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from backends.cpu.blocking import Tile, Tiling
from backends.cpu.thread_pool import share
from backends.execution.memory import HOST
from backends.execution.routines import Implementation, ImplementationOf
from optree import settings
from optree.compile.aliasing import extend
from optree.compile.dimensions import Sizes
from optree.compile.fusion import Axes, Kernel
from optree.compile.program import Program
from optree.dtypes import in_float32, is_floating, rounded
from optree.ops.reduction import Mean, Sum, UfuncReduction, wide_dtype
from optree.ops.summation import accurate_sum
from optree.ops.traits import ElementwiseOperator, ReductionOperator


class _Part(NamedTuple):
    """One instruction of a kernel.

    Attributes
    ----------
    value : int
    op : Op
    inputs : tuple of int
        Without those of which only the shape counts.
    dtype : numpy.dtype
    call : callable
        Its function of arrays, and of `out`, where it is to be written, or None.
    slot : int or None
        The scratch memory for its value.
    """

    value: int
    op: Any
    inputs: tuple[int, ...]
    dtype: np.dtype
    call: Callable[..., Any]
    slot: int | None

    @property
    def reduces(self) -> bool:
        """Whether it is a reduction."""
        return isinstance(self.op, ReductionOperator)


class BlockKernel:
    """One kernel of a program, run by NumPy.

    Attributes
    ----------
    reads, writes : list of int
        The values of the program that it takes as arrays, and those that it makes.
    axes : dict
        The axes of the domain that each value runs along.
    """

    def __init__(self, program: Program, kernel: Kernel, known: Sizes, implementation_of: ImplementationOf) -> None:
        self._known, self.memory = known, HOST
        self.last_read: dict[int, int] = {}  # it has no walks: `_may_write` tells what may be written over
        self.written_in: dict[int, int] = {}
        self.rank, self.reduced, self.axes, self.writes = len(kernel.domain), kernel.reduced, kernel.axes, kernel.writes
        self.parts, self.slots = _parts(program, kernel, implementation_of)
        made = {part.value for part in self.parts}
        taken = dict.fromkeys(i for part in self.parts for i in part.inputs if i not in made)
        self.reads = [i for i in taken if i >= len(program.leaves) or not _is_number(program.leaves[i])]
        self.numbers = [i for i in taken if i not in self.reads]
        self.likes = [i for i in _likes(program, kernel) if i not in made]
        self.takes = {*taken, *self.likes}
        self.dtypes = {part.value: part.dtype for part in self.parts}
        self.full = {i for i in (*self.reads, *made) if _is_full(kernel, i)}
        streams = [program.type_of(i).dtype for i in (*self.reads, *self.writes) if i in self.full]
        #: The bytes for each element of a block.
        self.width = max(1, sum(self.slots) + sum(dtype.itemsize for dtype in streams))
        #: Whether a reduction's value is needed at each element, so that rows must be whole.
        self.staged = any(kernel.stages[i] and kernel.reduced.intersection(self.axes[i]) for i in made)
        self.staged = self.staged or max(kernel.stages.values(), default=0) > 1
        self._last = _last_uses(self.parts)

    def run(self, values: Sequence[Any], targets: Sequence[np.ndarray | None]) -> list[Any] | None:
        """The values that it makes, in the targets where that is safe and in new arrays for the rest.

        None if there are no elements.

        Parameters
        ----------
        values : sequence
            Those of all leaves and instructions of the program, None where there is none.
        targets : sequence
            For each value that it writes an array that it may write into, or None.
        """
        arrays = {i: values[i] if values[i].__class__ is np.ndarray else np.asarray(values[i]) for i in self.reads}
        sizes = self._sizes(values, targets)
        if not all(sizes):
            return None
        outputs = [
            np.empty([1 if axis is None else sizes[axis] for axis in self.axes[i]], self.dtypes[i])
            if target is None or not self._may_write(i, target, arrays)
            else target
            for i, target in zip(self.writes, targets, strict=True)
        ]
        order = self._order(arrays, targets)
        reduced = [place for place, axis in enumerate(order) if axis in self.reduced]
        room = settings.value("block_bytes") // self.width
        tiling = Tiling([sizes[axis] for axis in order], reduced, room, self.staged)
        known = {i: aligned(x, self.axes[i], order) for i, x in arrays.items()}
        known.update((i, values[i]) for i in self.numbers)
        written = {i: aligned(x, self.axes[i], order) for i, x in zip(self.writes, outputs, strict=True)}
        _Run(self, tiling, known, written).run()
        return outputs

    def shapes_like(self, values: Sequence[Any]) -> list[tuple[int, ...]]:
        """The shapes of what it takes for its shape alone."""
        return [self._known.shape_of(i, values) if self._known.is_known(i) else np.shape(values[i]) for i in self.likes]

    def entry(self, values: Sequence[Any], places: Sequence[int]) -> None:
        """No quicker way than `run`."""

    def _sizes(self, values: Sequence[Any], targets: Sequence[np.ndarray | None]) -> list[int]:
        """The size of each axis of the domain."""
        sizes = [1] * self.rank
        shapes = [
            *((i, np.shape(values[i])) for i in self.reads),
            *zip(self.likes, self.shapes_like(values), strict=True),
            *((i, x.shape) for i, x in zip(self.writes, targets, strict=True) if x is not None),
        ]
        for i, shape in shapes:
            for axis, size in zip(self.axes[i], shape, strict=True):
                if axis is not None:
                    sizes[axis] = size
        return sizes

    def _order(self, arrays: dict[int, np.ndarray], targets: Sequence[np.ndarray | None]) -> list[int]:
        """The axes of the domain, those with the longest steps first, and what is reduced last of equal ones."""
        steps = [0] * self.rank
        for i, x in (*arrays.items(), *zip(self.writes, targets, strict=True)):
            if x is not None:
                for axis, step in zip(self.axes[i], x.strides, strict=True):
                    if axis is not None:
                        steps[axis] = max(steps[axis], abs(step))
        return sorted(range(self.rank), key=lambda axis: (-steps[axis], axis in self.reduced))

    def _may_write(self, value: int, target: np.ndarray, arrays: dict[int, np.ndarray]) -> bool:
        """Whether nothing that is made after a value reads what lies in its target's memory."""
        overlapping = [i for i, x in arrays.items() if np.may_share_memory(x, target)]
        made = next(place for place, part in enumerate(self.parts) if part.value == value)
        return not overlapping or (value in self.full and all(self._last[i] <= made for i in overlapping))


class _Run:
    """One run of a kernel: what is known of its values, and where they go."""

    def __init__(
        self, kernel: BlockKernel, tiling: Tiling, known: dict[int, Any], written: dict[int, np.ndarray]
    ) -> None:
        self.kernel, self.tiling, self.known, self.written = kernel, tiling, known, written
        self.partial: dict[int, np.ndarray] = {}

    def run(self) -> None:
        """Run the blocks, and what needs all of them."""
        inside, after = self._phases()
        reductions = [part for part in inside if part.reduces and self.tiling.cuts_reduced]
        self.partial = {part.value: np.empty(self.tiling.parts, _wide(part)) for part in reductions}
        share(self.tiling.tiles(), lambda: self._work(inside, {}))
        for part in reductions:
            self.known[part.value] = self._combined(part)
        if after:
            self._work(after, self.known)(self.tiling.domain)

    def _phases(self) -> tuple[list[_Part], list[_Part]]:
        """The instructions that run within blocks, and those that need what all blocks have reduced."""
        inside: list[_Part] = []
        after: list[_Part] = []
        late: set[int] = set()
        for part in self.kernel.parts:
            waits = not late.isdisjoint(part.inputs)
            (after if waits else inside).append(part)
            if waits or (part.reduces and self.tiling.cuts_reduced):
                late.add(part.value)
        needed = {i for part in after for i in part.inputs} - late
        again = []  # what is made of few elements in every block, and is needed once more
        for part in reversed(inside):
            if part.value in needed:
                again.append(part)
                needed.update(part.inputs)
        return inside, again[::-1] + after

    def _work(self, parts: Sequence[_Part], values: dict[int, Any]) -> Callable[[Tile], None]:
        """A function that runs instructions tile by tile; `values` has those of the last."""
        tiling, scratch = self.tiling, _Scratch(parts, self.tiling.largest)
        made = {part.value for part in parts}
        taken = {i: self.known[i] for part in parts for i in part.inputs if i not in made}
        values.update(taken)
        arrays = [(i, x) for i, x in taken.items() if isinstance(x, np.ndarray)]
        targets = [(i, x) for i, x in self.written.items() if i in made and i not in self.partial]
        partial = [(i, x) for i, x in self.partial.items() if i in made]
        calls = [(self._call(part), part.inputs, part.value, part.reduces) for part in parts]

        def work(block: Tile) -> None:
            shape = tiling.shape(block)
            outs = scratch.of(shape)
            for i, x in targets:
                outs[i] = tiling.cut(x, block)
            for i, x in partial:
                outs[i] = x[tiling.part(block)]
            for i, x in arrays:
                values[i] = tiling.cut(x, block)
            for call, inputs, value, reduces in calls:
                operands = [values[i] for i in inputs]
                if reduces and operands[0].shape != shape:
                    operands = [np.broadcast_to(operands[0], shape)]
                values[value] = call(*operands, out=outs.get(value))

        return work

    def _call(self, part: _Part) -> Callable[..., Any]:
        """An instruction's function of arrays as they stand here."""
        if not part.reduces:
            return part.call
        if part.value in self.partial and not isinstance(part.op, UfuncReduction):
            dtype = wide_dtype(part.dtype)
            return _into(lambda x: accurate_sum(x.astype(dtype, copy=False), self.tiling.reduced, True, dtype))
        return _into(in_float32(self._reduction(part), part.dtype))

    def _reduction(self, part: _Part) -> Any:
        """A reduction over the axes as they stand here."""
        return part.op.make(**{**part.op.props, "axis": self.tiling.reduced, "keepdims": True})

    def _combined(self, part: _Part) -> np.ndarray:
        """The value of a reduction of which each block has made a part; a mean's are sums."""
        found, axes = self.partial[part.value], self.tiling.reduced
        if isinstance(part.op, UfuncReduction):
            total = in_float32(self._reduction(part), part.dtype)(found)
        else:
            total = accurate_sum(found, axes, True, found.dtype)
            total = rounded(total / self.tiling.count if isinstance(part.op, Mean) else total, part.dtype, copy=False)
        if part.value in self.written:
            self.written[part.value][...] = total
        return total


class _Scratch:
    """Memory for instructions' values on a block, which serves each block again."""

    def __init__(self, parts: Sequence[_Part], largest: int) -> None:
        self.parts = [part for part in parts if part.slot is not None]
        self.memory = {part.slot: np.empty(largest * part.dtype.itemsize, np.uint8) for part in self.parts}
        self.arrays: dict[tuple[int, ...], dict[int, np.ndarray]] = {}

    def of(self, shape: tuple[int, ...]) -> dict[int, np.ndarray]:
        """For each instruction's value that has a place here, an array of a block's shape."""
        if shape not in self.arrays:
            count = prod(shape)
            self.arrays[shape] = {
                part.value: self.memory[part.slot][: count * part.dtype.itemsize].view(part.dtype).reshape(shape)
                for part in self.parts
            }
        return dict(self.arrays[shape])


def _wide(part: _Part) -> np.dtype:
    """The dtype of what blocks have reduced."""
    adds = is_floating(part.dtype) and not isinstance(part.op, UfuncReduction)
    return np.dtype("float64") if adds else part.dtype


def block_kernel(
    program: Program, kernel: Kernel, sizes: Sizes, implementation_of: ImplementationOf
) -> BlockKernel | None:
    """A kernel run by NumPy in blocks; None if one of its ops cannot be.

    An op of a user's can fail, or keep something from call to call: if it has
    no ufunc, it is called once, on whole arrays.
    """
    for place in kernel.instructions:
        op = program.instructions[place].op
        own = type(op).__module__.startswith("optree.ops.")
        if op.defines("perform") or op.defines("make_thunk") or op.is_flat_index:  # which a block counts from 0
            return None
        if isinstance(op, ReductionOperator) and not (own and isinstance(op, Sum | Mean | UfuncReduction)):
            return None
        if not own and implementation_of(place).into is None:
            return None
    return BlockKernel(program, kernel, sizes, implementation_of)


def aligned(array: np.ndarray, axes: Axes, order: Sequence[int]) -> np.ndarray:
    """An array seen with an axis for each of the domain's, in this order.

    Examples
    --------
    >>> aligned(np.zeros((2, 3)), (2, 0), (0, 1, 2)).shape
    (3, 1, 2)
    """
    found = array[(*[0 if axis is None else slice(None) for axis in axes], ...)]
    mine = [axis for axis in axes if axis is not None]
    found = found.transpose([mine.index(axis) for axis in order if axis in mine])
    return found[(*[slice(None) if axis in mine else None for axis in order], ...)]


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float)


def _is_full(kernel: Kernel, value: int) -> bool:
    """Whether a value runs along every axis of the domain."""
    return {axis for axis in kernel.axes[value] if axis is not None} == set(range(len(kernel.domain)))


def _likes(program: Program, kernel: Kernel) -> list[int]:
    """The values of which only the shape counts."""
    found = [program.instructions[place] for place in kernel.instructions]
    return [x.inputs[x.op.broadcasts[1]] for x in found if x.op.broadcasts is not None]


def _parts(program: Program, kernel: Kernel, implementation_of: ImplementationOf) -> tuple[list[_Part], list[int]]:
    """A kernel's instructions, and the bytes of one element in each of the scratch memories that they need."""
    parts = []
    for place in kernel.instructions:
        op, inputs, node = program.instructions[place]
        if op.broadcasts is not None:
            inputs = (inputs[op.broadcasts[0] or 0],)
        elif op.moves_axes:
            inputs = inputs[:1]
        value, dtype = len(program.leaves) + place, node.type.dtype
        parts.append(_Part(value, op, inputs, dtype, _call(op, dtype, implementation_of(place)), None))
    last = _last_uses(parts)
    slots: list[int] = []
    taken: dict[int, int] = {}  # by the value that is there
    for place, part in enumerate(parts):
        if not isinstance(part.call, np.ufunc) or part.value in kernel.writes or not _is_full(kernel, part.value):
            continue
        ends = {i for i in taken if last[i] < place or (last[i] == place and _same(parts, i, part))}
        taken = {i: slot for i, slot in taken.items() if i not in ends}
        free = [i for i in range(len(slots)) if i not in taken.values() and slots[i] == part.dtype.itemsize]
        slot = free[0] if free else len(slots)
        slots += [] if free else [part.dtype.itemsize]
        taken[part.value] = slot
        parts[place] = part._replace(slot=slot)
    return parts, slots


def _call(op: Any, dtype: np.dtype, how: Implementation) -> Callable[..., Any]:
    """An op's function of arrays that stand as all do here."""
    if how.into is not None and how.is_strided:
        return how.into
    if op.broadcasts is not None:  # what takes the value spreads it
        return _into(lambda x: rounded(np.asarray(x), dtype, copy=False))
    return _into(how.call if isinstance(op, ElementwiseOperator) else lambda x: x)


def _into(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays as one that writes its value where it is wanted, as ufuncs do."""

    def into(*operands: Any, out: np.ndarray | None = None) -> Any:
        result = call(*operands)
        if out is not None:
            out[...] = result
        return result

    return into


def _same(parts: Sequence[_Part], value: int, part: _Part) -> bool:
    """Whether a ufunc may write over an operand: NumPy would copy one of another dtype first."""
    return value in part.inputs and next(p.dtype for p in parts if p.value == value) == part.dtype


def _last_uses(parts: Sequence[_Part]) -> dict[int, int]:
    """For each value the number of the last instruction that needs its memory, also through a view of it."""
    last = dict.fromkeys((i for part in parts for i in part.inputs), -1) | {x.value: n for n, x in enumerate(parts)}
    views = [() if part.reduces or isinstance(part.op, ElementwiseOperator) else part.inputs for part in parts]
    extend(last, ((n, parts[n].value, parts[n].inputs, views[n]) for n in range(len(parts) - 1, -1, -1)))
    return last
