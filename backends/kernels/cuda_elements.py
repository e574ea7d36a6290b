"""What one thread of a CUDA kernel does with some elements that lie together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backends.kernels.expressions import Lines, braced, computed, element, packed, statement, unpacked, wide
from backends.kernels.loopnest import LoopNest, Reduction, Statement, Walk, walks

#: What arrays hold.
TYPES = {
    "bool": "bool",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "float16": "__half",
    "float32": "float",
    "float64": "double",
}


@dataclass(frozen=True)
class Variant:
    """How a nest is printed: what depends on more than its types, and is part of a compiled kernel's key.

    Attributes
    ----------
    vector : int
        How many elements a thread accesses at once.
    wide : bool
        Whether indices have 64 bits.
    team : {'', 'tiles', 'warp', 'block', 'columns'}
        Who reduces; in a nest without reductions nobody, or blocks hand over tiles.
    cached : bool
        Whether what several walks need of a row stays in shared memory.
    split : bool
        Whether the reduced loops are shared out to blocks.
    """

    vector: int = 1
    wide: bool = False
    team: str = ""
    cached: bool = False
    split: bool = False


def type_of(dtype: np.dtype) -> str:
    """What values are computed in."""
    return TYPES[str(computed(dtype))]


class ElementPrinter:
    """A nest in a variant, and the names of its parts."""

    def __init__(self, nest: LoopNest, variant: Variant) -> None:
        self.nest, self.variant = nest, variant
        self.walks = walks(nest, keep=variant.cached)
        self.slots = _slots(nest, self.walks) if variant.cached else {}
        self.last = nest.rank - 1  # the loop along which a thread's elements lie

    # Parameters

    def parameters(self) -> list[tuple[str, str]]:
        """What a kernel takes: its declaration and name, the sizes and steps that it does not need left out."""
        nest, variant = self.nest, self.variant
        found = []
        for place in range(len(nest.arrays)):
            found.append((f"{self.pointer(place)}a{place}", f"a{place}"))
        if variant.split:
            found += [(f"{type_of(wide(r))} *q{r.value}", f"q{r.value}") for r in nest.reductions]
        found += [(f"long long n{axis}", f"n{axis}") for axis in range(nest.rank)]
        for place in range(len(nest.arrays)):
            axes = [axis for axis in range(nest.rank) if self.has_step(place, axis)]
            found += [(f"long long s{place}_{axis}", f"s{place}_{axis}") for axis in axes]
        for i, dtype in enumerate(nest.numbers):
            type = "long long" if dtype.kind == "b" else type_of(dtype)
            found.append((f"{type} c{len(nest.reads) + i}", f"c{len(nest.reads) + i}"))
        if variant.team in ("warp", "columns"):
            found.append(("int width", "width"))
        if variant.split:
            found += [("long long part", "part"), ("int parts", "parts")]
        return found

    def has_step(self, place: int, axis: int) -> bool:
        """Whether an array's step along a loop is a parameter: it is not 0 or 1 by the nest, nor without meaning."""
        level = self.nest.levels[place]
        known = axis == self.nest.vector and self.nest.steps[place] >= 0
        return not known and level != "once" and (level == "inner" or axis < self.nest.kept)

    # Values

    def pointer(self, place: int) -> str:
        """The type of a pointer into an array; of a place, its own."""
        if self.nest.is_counted(place):
            return "long long "
        return f"{'const ' if place < len(self.nest.reads) else ''}{TYPES[str(self.nest.arrays[place])]} *"

    def statement(self, made: Statement) -> Lines:
        declared = f"const {type_of(made.dtype)} v{made.value}"
        return statement(self.nest, made, type_of, lambda value: f"v{value}", declared)

    def read(self, place: int, expression: str) -> str:
        """What is read from an array, as it is computed with."""
        return unpacked(expression, self.nest.arrays[place])

    def written(self, value: int) -> str:
        """A value as an array holds it."""
        return packed(f"v{value}", self.nest.dtype_of(value))

    # Elements

    def pointers(self, axes: Sequence[int], levels: Sequence[str]) -> Lines:
        """Where each array of some levels stands at a place of some loops."""
        lines = []
        for place, level in enumerate(self.nest.levels):
            if level not in levels:
                continue
            steps = "".join(f" + i{axis} * (Index)s{place}_{axis}" for axis in axes if self.has_step(place, axis))
            if self.nest.columns and self.nest.steps[place] == 1:
                steps += f" + i{self.nest.vector}"
            lines.append(f"{self.pointer(place)}x{place} = a{place}{steps};")
        return lines

    def decoded(self, number: str, axes: Sequence[int]) -> Lines:
        """The places along loops that a number counts, the last loop the quickest."""
        if not axes:
            return []
        if len(axes) == 1:
            return [f"const Index i{axes[0]} = {number};"]
        lines, rest = [], number
        for axis in reversed(axes[1:]):
            lines.append(f"const Index i{axis} = {rest} % (Index)n{axis};")
            lines.append(f"const Index over{axis} = {rest} / (Index)n{axis};")
            rest = f"over{axis}"
        return [*lines, f"const Index i{axes[0]} = {rest};"]

    def unrolled(self, lines: Lines) -> Lines:
        return ["#pragma unroll", f"for (int e = 0; e < {self.variant.vector}; e++)", *braced(lines)]

    def chunk(self, walk: Walk, letter: str) -> Lines:
        """What a thread does with some elements that lie together, from ``i`` on."""
        nest, vector = self.nest, self.variant.vector
        lines = [f"const int count = (Index)n{self.last} - i < {vector} ? (int)((Index)n{self.last} - i) : {vector};"]
        if vector == 1:
            lines = []
        slot_index = "c * width + threadIdx.x % width" if nest.columns else f"c * {vector}"
        body: Lines = []
        for place in walk.reads:
            lines += self.access(place, f"{letter}{place}", walk, slot_index)
            body.append(f"const {type_of(nest.reads[place])} v{place} = {self.read(place, f'b{place}.at[e]')};")
        for value in walk.loads:
            type = type_of(nest.dtype_of(value))
            lines.append(f"const Vector<{type}, {vector}> b{value} = {self.kept(value, slot_index)};")
            body.append(f"const {type} v{value} = b{value}.at[e];")
        for made in walk.statements:
            if isinstance(made, Reduction):
                name = f"p{made.value}[e]"
                combined = f"{name} = {made.accumulator.combine.format(name, element(nest, made, type_of))};"
                body += [f"if (e < count) {combined}" if vector > 1 else combined]
            else:
                body += self.statement(made)
        after: Lines = []
        for value in walk.stores:
            type = f"Vector<{type_of(nest.dtype_of(value))}, {vector}>"
            lines.append(f"{type} o{value};")
            body.append(f"o{value}.at[e] = v{value};")
            after.append(f"{self.kept(value, slot_index)} = o{value};")
        for place, value in walk.writes:
            lines.append(f"Vector<{TYPES[str(nest.arrays[place])]}, {vector}> w{place};")
            body.append(f"w{place}.at[e] = {self.written(value)};")
            after += self.stored(place, f"{letter}{place}")
        return [*lines, *self.unrolled(body), *after]

    def kept(self, value: int, index: str) -> str:
        """Some elements in a row of shared memory."""
        dtype = self.nest.dtype_of(value)
        type = TYPES[str(dtype)] if value < len(self.nest.reads) else type_of(dtype)
        return f"*(Vector<{type}, {self.variant.vector}> *)(g{value} + {index})"

    def along(self, place: int, index: str) -> str:
        """The index of an array along the loop on which a thread's elements lie."""
        if self.nest.columns:
            return f"({index}) * (Index)s{place}_{self.last}" if self.has_step(place, self.last) else "0"
        return {0: "0", 1: index}.get(self.nest.steps[place], f"({index}) * (Index)s{place}_{self.last}")

    def access(self, place: int, pointer: str, walk: Walk, slot_index: str) -> Lines:
        """Some elements of an array, from the array or from where an earlier walk has kept them."""
        vector, stored = self.variant.vector, TYPES[str(self.nest.reads[place])]
        type = f"Vector<{stored}, {vector}>"
        kept = [w for w in self.walks if place in w.reads] if place in self.slots else [walk]
        if kept[0] is not walk:
            return [f"const {type} b{place} = {self.kept(place, slot_index)};"]
        if self.nest.is_counted(place):
            return [
                f"{type} b{place};",
                *self.unrolled([f"b{place}.at[e] = {pointer} + {self.along(place, 'i + e')};"]),
            ]
        if vector > 1 and self.nest.steps[place] == 1:
            lines = [f"const {type} b{place} = loaded<{vector}>({pointer} + i, count);"]
        elif vector > 1:
            index = self.along(place, "i + e")
            lines = [f"{type} b{place};", *self.unrolled([f"b{place}.at[e] = {pointer}[e < count ? {index} : 0];"])]
        else:
            lines = [f"const {type} b{place} = {{{{{pointer}[{self.along(place, 'i')}]}}}};"]
        return [*lines, f"{self.kept(place, slot_index)} = b{place};"] if place in self.slots else lines

    def stored(self, place: int, pointer: str) -> Lines:
        """Some elements into an array."""
        if self.variant.vector > 1 and self.nest.steps[place] == 1:
            return [f"store({pointer} + i, w{place}, count);"]
        if self.variant.vector > 1:
            return self.unrolled([f"if (e < count) {pointer}[{self.along(place, 'i + e')}] = w{place}.at[e];"])
        return [f"{pointer}[{self.along(place, 'i')}] = w{place}.at[0];"]


def _slots(nest: LoopNest, found: Sequence[Walk]) -> dict[int, tuple[int, int]]:
    """For each value that several walks need, the row of shared memory that it is kept in, and its element's size.

    A value that a walk makes may take the row of one that no later walk needs.
    """
    needed: dict[int, tuple[int, int]] = {}
    for number, walk in enumerate(found):
        arrays = {place for place in walk.reads if not nest.is_counted(place)}
        for value in {*arrays, *walk.loads, *walk.stores}:
            needed[value] = needed.get(value, (number, number))[0], number
    several = sorted((first, last, value) for value, (first, last) in needed.items() if last > first)
    rows: list[tuple[int, int]] = []  # until which walk each is taken, and its element's size
    slots: dict[int, tuple[int, int]] = {}
    for first, last, value in several:
        is_read = value < len(nest.reads)
        dtype = nest.dtype_of(value)
        size = (dtype if is_read else computed(dtype)).itemsize
        reusable = (i for i, (until, other) in enumerate(rows) if until <= first and other == size and not is_read)
        row = next(reusable, len(rows))
        rows[row : row + 1] = [(last, size)]
        slots[value] = row, size
    return slots
