"""Kernels without a compiler: their instructions by NumPy calls, block by block, on several threads.

A block is a tile of a kernel's domain whose temporaries fit in a processor's cache. All instructions run on one block,
into scratch memory that the next block reuses, before any of them runs on another.

Every array is viewed here with one axis for each axis of the domain, the outermost in memory first, of size 1 where it
is broadcast. So NumPy's broadcasting aligns operands, and ops that only move axes do nothing. The tiling, and so the
result, depends on sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from backends.execution.memory import HOST
from backends.execution.routines import Implementation, ImplementationOf
from backends.execution.specialize import ExecutableKernel
from backends.execution.thread_pool import share
from optree import settings
from optree.compile.aliasing import extend
from optree.compile.fusion import Axes, Kernel
from optree.compile.program import Program, Sizes
from optree.dtypes import in_float32, is_floating, rounded, wide_dtype
from optree.op.op import Op
from optree.op.traits import ElementwiseOperator, PartOperator, ReductionOperator
from optree.ops.reduction import Mean, Sum, UfuncReduction
from optree.ops.summation import accurate_sum
from optree.records import NamedTuple
from optree.registry import OWN


class _Part(NamedTuple):
    """One instruction of a kernel."""

    value: int
    #: An `Op`.
    op: Any
    #: Those that are read; others are used for their shape alone.
    inputs: tuple[int, ...]
    dtype: np.dtype
    #: Its function of arrays, and of `out`, an array for its value, or None.
    call: Callable[..., Any]
    #: The scratch memory for its value.
    slot: int | None

    @property
    def reduces(self) -> bool:
        """Whether it is a reduction."""
        return isinstance(self.op, ReductionOperator)


class BlockKernel(ExecutableKernel):
    """A kernel of a program, run by NumPy; its instructions stand for stages."""

    def __init__(self, program: Program, kernel: Kernel, sizes: Sizes, implementation_of: ImplementationOf) -> None:
        super().__init__(kernel, sizes, HOST)
        self.parts, self.slots = _parts(program, kernel, implementation_of)
        made = {part.value for part in self.parts}
        used = dict.fromkeys(i for part in self.parts for i in part.inputs if i not in made)
        self.reads = [i for i in used if not program.is_number(i)]
        self.numbers = [i for i in used if i not in self.reads]
        self.shape_inputs = [i for i in _shape_inputs(program, kernel) if i not in made]
        self.uses = {*used, *self.shape_inputs}
        self.dtypes = {part.value: part.dtype for part in self.parts}
        self.full = {i for i in (*self.reads, *made) if kernel.is_whole(i)}
        streams = [program.type_of(i).dtype for i in (*self.reads, *self.writes) if i in self.full]
        #: The bytes for each element of a block.
        self.width = max(1, sum(self.slots) + sum(dtype.itemsize for dtype in streams))
        #: Whether elements need a reduced value, so that a block must have whole rows.
        self.staged = any(kernel.stages[i] and kernel.reduced.intersection(self.axes[i]) for i in made)
        self.staged = self.staged or max(kernel.stages.values(), default=0) > 1
        self.last_read = _last_uses(self.parts)
        # A value of fewer elements than the domain is computed again in other blocks.
        self.written_in = {part.value: n if part.value in self.full else -1 for n, part in enumerate(self.parts)}

    def run(self, values: Sequence[Any], targets: Sequence[np.ndarray | None]) -> list[Any] | None:
        """The values that it stores; None if there are no elements."""
        arrays = {i: values[i] if values[i].__class__ is np.ndarray else np.asarray(values[i]) for i in self.reads}
        sizes = self.domain_sizes([*arrays.values(), *targets], self.input_shapes(values))
        if not all(sizes):
            return None
        outputs = [
            np.empty([1 if axis is None else sizes[axis] for axis in self.axes[i]], self.dtypes[i])
            if target is None
            else target
            for i, target in zip(self.writes, targets, strict=True)
        ]
        order = self._order(arrays, targets)
        reduced = [position for position, axis in enumerate(order) if axis in self.reduced]
        elements = settings.value("block_bytes") // self.width
        tiling = Tiling([sizes[axis] for axis in order], reduced, elements, self.staged)
        known = {i: aligned(x, self.axes[i], order) for i, x in arrays.items()}
        known.update((i, values[i]) for i in self.numbers)
        written = {i: aligned(x, self.axes[i], order) for i, x in zip(self.writes, outputs, strict=True)}
        _Run(self, tiling, known, written).run()
        return outputs

    def _order(self, arrays: dict[int, np.ndarray], targets: Sequence[np.ndarray | None]) -> list[int]:
        """The axes of the domain, those of the longest strides first; of equal ones, the reduced last."""
        steps = [0] * self.rank
        for i, x in (*arrays.items(), *zip(self.writes, targets, strict=True)):
            if x is not None:
                for axis, step in zip(self.axes[i], x.strides, strict=True):
                    if axis is not None:
                        steps[axis] = max(steps[axis], abs(step))
        return sorted(range(self.rank), key=lambda axis: (-steps[axis], axis in self.reduced))


class _Run:
    """One run of a kernel: its values so far, and the arrays that it stores them in."""

    def __init__(
        self, kernel: BlockKernel, tiling: Tiling, known: dict[int, Any], written: dict[int, np.ndarray]
    ) -> None:
        self.kernel, self.tiling, self.known, self.written = kernel, tiling, known, written
        self.partial: dict[int, np.ndarray] = {}

    def run(self) -> None:
        """Run the blocks, then the instructions that need the results of all of them."""
        inside, after = self._phases()
        reductions = [part for part in inside if part.reduces and self.tiling.cuts_reduced]
        self.partial = {part.value: np.empty(self.tiling.parts, _wide(part)) for part in reductions}
        share(self.tiling.tiles(), lambda: self._work(inside, {}))
        for part in reductions:
            self.known[part.value] = self._combined(part)
        if after:
            self._work(after, self.known)(self.tiling.domain)

    def _phases(self) -> tuple[list[_Part], list[_Part]]:
        """The instructions that run block by block, and those that need the reductions of all blocks."""
        inside: list[_Part] = []
        after: list[_Part] = []
        late: set[int] = set()
        for part in self.kernel.parts:
            waits = not late.isdisjoint(part.inputs)
            (after if waits else inside).append(part)
            if waits or (part.reduces and self.tiling.cuts_reduced):
                late.add(part.value)
        needed = {i for part in after for i in part.inputs} - late
        again = []  # of few elements: computed in every block, and once more after them
        for part in reversed(inside):
            if part.value in needed:
                again.append(part)
                needed.update(part.inputs)
        return inside, again[::-1] + after

    def _work(self, parts: Sequence[_Part], values: dict[int, Any]) -> Callable[[Tile], None]:
        """A function that runs instructions on a tile, and leaves their values in `values`."""
        tiling, scratch = self.tiling, _Scratch(parts, self.tiling.largest)
        made = {part.value for part in parts}
        used = {i: self.known[i] for part in parts for i in part.inputs if i not in made}
        values.update(used)
        arrays = [(i, x) for i, x in used.items() if isinstance(x, np.ndarray)]
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
        """An instruction's function of arrays with the domain's axes."""
        if not part.reduces:
            return part.call
        if part.value in self.partial and not isinstance(part.op, UfuncReduction):
            dtype = wide_dtype(part.dtype)
            return _into(lambda x: accurate_sum(x.astype(dtype, copy=False), self.tiling.reduced, True, dtype))
        return _into(in_float32(self._reduction(part), part.dtype))

    def _reduction(self, part: _Part) -> Any:
        """A reduction over the domain's axes."""
        return part.op.make(**{**part.op.props, "axis": self.tiling.reduced, "keepdims": True})

    def _combined(self, part: _Part) -> np.ndarray:
        """The value of a reduction, from the partial ones of the blocks; a mean's are sums."""
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
    """Memory for instructions' values on a block, reused by the next."""

    def __init__(self, parts: Sequence[_Part], largest: int) -> None:
        self.parts = [part for part in parts if part.slot is not None]
        self.memory = {part.slot: np.empty(largest * part.dtype.itemsize, np.uint8) for part in self.parts}
        self.arrays: dict[tuple[int, ...], dict[int, np.ndarray]] = {}

    def of(self, shape: tuple[int, ...]) -> dict[int, np.ndarray]:
        """For each value in scratch memory, an array of a block's shape."""
        if shape not in self.arrays:
            count = prod(shape)
            self.arrays[shape] = {
                part.value: self.memory[part.slot][: count * part.dtype.itemsize].view(part.dtype).reshape(shape)
                for part in self.parts
            }
        return dict(self.arrays[shape])


def _wide(part: _Part) -> np.dtype:
    """The dtype of partial reductions."""
    adds = is_floating(part.dtype) and not isinstance(part.op, UfuncReduction)
    return np.dtype("float64") if adds else part.dtype


def block_kernel(
    program: Program, kernel: Kernel, sizes: Sizes, implementation_of: ImplementationOf
) -> BlockKernel | None:
    """A kernel run by NumPy in blocks; None if one of its ops cannot be.

    A user's op may fail or have state: without a ufunc, it is called once, on whole arrays.
    """
    for index in kernel.instructions:
        op = program.instructions[index].op
        own = type(op).__module__.startswith(OWN)
        if op.defines("perform") or op.defines("make_thunk"):
            return None
        if op.index_map.is_flat_index:  # of a block, it would begin at 0
            return None
        if isinstance(op, ReductionOperator) and not (own and isinstance(op, Sum | Mean | UfuncReduction)):
            return None
        if not own and implementation_of(index).into is None:
            return None
    return BlockKernel(program, kernel, sizes, implementation_of)


def aligned(array: np.ndarray, axes: Axes, order: Sequence[int]) -> np.ndarray:
    """A view of an array with an axis for each of the domain's, in this order.

    Examples
    --------
    >>> aligned(np.zeros((2, 3)), (2, 0), (0, 1, 2)).shape
    (3, 1, 2)
    """
    found = array[(*[0 if axis is None else slice(None) for axis in axes], ...)]
    mine = [axis for axis in axes if axis is not None]
    found = found.transpose([mine.index(axis) for axis in order if axis in mine])
    return found[(*[slice(None) if axis in mine else None for axis in order], ...)]


def _shape_inputs(program: Program, kernel: Kernel) -> list[int]:
    """The values that are used for their shape alone."""
    found = [program.instructions[index] for index in kernel.instructions]
    repeats = [(x.inputs, x.op.index_map.repeats) for x in found]
    return [inputs[each[1]] for inputs, each in repeats if each is not None]


def _parts(program: Program, kernel: Kernel, implementation_of: ImplementationOf) -> tuple[list[_Part], list[int]]:
    """A kernel's instructions, and the bytes of one element in each of the scratch memories that they need."""
    parts = []
    for index in kernel.instructions:
        op, inputs, node = program.instructions[index]
        if op.index_map.repeats is not None:
            inputs = (inputs[op.index_map.repeats[0] or 0],)
        elif op.index_map.moves_axes:
            inputs = inputs[:1]
        value, dtype = len(program.leaves) + index, node.type.dtype
        parts.append(_Part(value, op, inputs, dtype, _call(op, dtype, implementation_of(index)), None))
    last = _last_uses(parts)
    slots: list[int] = []
    live: dict[int, int] = {}  # the slot of each live value
    for n, part in enumerate(parts):
        if not isinstance(part.call, np.ufunc) or part.value in kernel.writes or not kernel.is_whole(part.value):
            continue
        ends = {i for i in live if last[i] < n or (last[i] == n and _is_overwritable(parts, i, part))}
        live = {i: slot for i, slot in live.items() if i not in ends}
        free = [i for i in range(len(slots)) if i not in live.values() and slots[i] == part.dtype.itemsize]
        slot = free[0] if free else len(slots)
        slots += [] if free else [part.dtype.itemsize]
        live[part.value] = slot
        parts[n] = part._replace(slot=slot)
    return parts, slots


def _call(op: Op, dtype: np.dtype, implementation: Implementation) -> Callable[..., Any]:
    """An op's function of arrays with the domain's axes."""
    if implementation.into is not None and implementation.is_strided:
        return implementation.into
    if op.index_map.repeats is not None:  # its users broadcast its value
        return _into(lambda x: rounded(np.asarray(x), dtype, copy=False))
    return _into(implementation.call if isinstance(op, ElementwiseOperator | PartOperator) else lambda x: x)


def _into(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays with a parameter `out`, as ufuncs have it."""

    def into(*operands: np.ndarray, out: np.ndarray | None = None) -> Any:
        result = call(*operands)
        if out is not None:
            out[...] = result
        return result

    return into


def _is_overwritable(parts: Sequence[_Part], value: int, part: _Part) -> bool:
    """Whether a ufunc may write over an operand; NumPy would first copy one of another dtype."""
    return value in part.inputs and next(p.dtype for p in parts if p.value == value) == part.dtype


def _last_uses(parts: Sequence[_Part]) -> dict[int, int]:
    """The last use of each value, also through a view of it."""
    last = dict.fromkeys((i for part in parts for i in part.inputs), -1) | {x.value: n for n, x in enumerate(parts)}
    views = [() if part.reduces or isinstance(part.op, ElementwiseOperator) else part.inputs for part in parts]
    extend(last, ((n, parts[n].value, parts[n].inputs, views[n]) for n in range(len(parts) - 1, -1, -1)))
    return last


# Tiling

#: A tile: for each axis, its range.
Tile = tuple[slice, ...]

#: The least elements of a tile's rows, where the domain has as many: NumPy is slow on shorter ones.
MIN_ROW = 512

#: The least rows of a tile where a reduction spans several tiles.
MIN_ROWS = 8


class Tiling:
    """A domain, cut into tiles.

    `sizes`: the sizes of the axes, the outermost in memory first.
    `reduced`: the axes that are reduced.
    `elements`: the target size of a tile in elements.
    `whole`: whether reduced axes must not be cut.
    """

    def __init__(self, sizes: Sequence[int], reduced: Sequence[int], elements: int, whole: bool) -> None:
        self.sizes, self.reduced = tuple(sizes), tuple(reduced)
        largest = _tile_sizes(sizes, self.reduced, max(1, elements), whole)
        # Of equal sizes: a last tile of a few elements would cost as many calls as the others.
        counts = [-(-size // tile) for size, tile in zip(sizes, largest, strict=True)]
        #: The size of a tile along each axis.
        self.tile_sizes = [-(-size // count) for size, count in zip(sizes, counts, strict=True)]
        #: The axes that are cut.
        self.cut_axes = {axis for axis, size in enumerate(sizes) if self.tile_sizes[axis] < size}

    @property
    def domain(self) -> Tile:
        """The whole domain, as one tile."""
        return tuple(slice(0, size) for size in self.sizes)

    @property
    def cuts_reduced(self) -> bool:
        """Whether a reduction spans several tiles."""
        return not self.cut_axes.isdisjoint(self.reduced)

    @property
    def count(self) -> int:
        """The number of elements that are reduced to one."""
        return prod(self.sizes[axis] for axis in self.reduced)

    @property
    def largest(self) -> int:
        """The elements of the largest tile."""
        return prod(self.tile_sizes)

    def tiles(self) -> list[Tile]:
        """All tiles, in order."""
        ranges = [
            [slice(start, min(start + tile, size)) for start in range(0, size, tile)]
            for size, tile in zip(self.sizes, self.tile_sizes, strict=True)
        ]
        return list(product(*ranges))

    @staticmethod
    def shape(tile: Tile) -> tuple[int, ...]:
        """The shape of a tile."""
        return tuple([part.stop - part.start for part in tile])

    def cut(self, array: np.ndarray, tile: Tile) -> np.ndarray:
        """The part of an array in a tile, whole along axes of size 1."""
        if not self.cut_axes:
            return array
        if array.shape == self.sizes:
            return array[tile]
        return array[tuple([part if size != 1 else slice(None) for part, size in zip(tile, array.shape, strict=True)])]

    @property
    def parts(self) -> tuple[int, ...]:
        """The shape of the partial results of all tiles: along a reduced axis, one for each tile."""
        return tuple(
            -(-size // tile) if axis in self.reduced else size
            for axis, (size, tile) in enumerate(zip(self.sizes, self.tile_sizes, strict=True))
        )

    def part(self, tile: Tile) -> Tile:
        """The indices of a tile's partial results."""
        return tuple(
            slice(part.start // size, part.start // size + 1) if axis in self.reduced else part
            for axis, (part, size) in enumerate(zip(tile, self.tile_sizes, strict=True))
        )


def _tile_sizes(sizes: Sequence[int], reduced: Sequence[int], elements: int, whole: bool) -> list[int]:
    """The maximum size of a tile along each axis.

    Reduced axes are whole if they must not be cut, or fit in a tile with rows that
    are long enough. Otherwise tiles have contiguous elements first, in at least
    `MIN_ROWS` rows.
    """
    tile = [1] * len(sizes)
    inner = len(sizes)  # the first of the innermost axes that are not reduced
    while inner and inner - 1 not in reduced:
        inner -= 1
    row = min(MIN_ROW, elements, prod(sizes[inner:]))
    together = prod(sizes[axis] for axis in reduced)
    if whole or together * row <= elements:
        for axis in reduced:
            tile[axis] = sizes[axis]
        outer = [axis for axis in range(len(sizes)) if axis not in reduced]
        _extend(tile, sizes, outer, max(elements // together, row))
    else:
        rows = min(MIN_ROWS, elements) if inner < len(sizes) else 1
        _extend(tile, sizes, range(inner, len(sizes)), elements // rows)
        _extend(tile, sizes, range(inner), elements // prod(tile[inner:]))
    return tile


def _extend(tile: list[int], sizes: Sequence[int], axes: Sequence[int], elements: int) -> None:
    """Extend a tile along axes, the innermost first, up to a number of elements."""
    for axis in reversed(axes):
        tile[axis] = min(sizes[axis], max(1, elements))
        elements //= tile[axis]
