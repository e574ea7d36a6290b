"""What one thread of a CUDA kernel does with some elements that lie together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from backends.execution.printer_common import Lines, braced, computed, element, packed, statement, unpacked, wide
from optree.compile.loopnest import LoopNest, Reduction, Statement, Walk, walks

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
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
}


#: A thread has so many bytes of loads under way before it uses the first, where it has so many to load.
FLIGHT = 64


@dataclass(frozen=True)
class Variant:
    """How a nest is printed: what depends on more than its types, and is part of a compiled kernel's key.

    Attributes
    ----------
    vector : int
        How many elements a thread accesses at once; in a team of columns, so many columns are a thread's.
    wide : bool
        Whether indices have 64 bits.
    team : {'', 'tiles', 'warp', 'block', 'columns'}
        Who reduces; in a nest without reductions nobody, or blocks hand over tiles.
    kept : {'', 'shared', 'part', 'registers'}
        Where what several walks need of a row stays. In registers each thread has all of its part of a row at once;
        'part' is shared memory that holds the row's first accesses, of what is read alone.
    split : bool
        Whether the reduced loops are shared out to blocks.
    accesses : int
        How many accesses a thread loads before it uses the first; where registers keep rows, how many of one it has.
    whole : bool
        Whether each access has all of its elements; otherwise the last of a row may have fewer.
    shifted : bool
        Whether rows may begin within an access, at the same place in all arrays: the first, too, may have fewer.
    threads : int
        A block has so many threads; at most, where a team is a block.
    width : int
        The lanes of a team that is a part of a warp; the threads of a block of columns that stand side by side.
    """

    vector: int = 1
    wide: bool = False
    team: str = ""
    kept: str = ""
    split: bool = False
    accesses: int = 1
    whole: bool = True
    shifted: bool = False
    threads: int = 256
    width: int = 1

    @property
    def rest(self) -> int:
        """What is added to the size of a row before it is divided by that of an access."""
        return (self.vector - 1) * (1 + self.shifted)

    def chunks(self, size: int) -> int:
        """How many accesses a row of some size takes at most."""
        return (size + self.rest) // self.vector


def type_of(dtype: np.dtype) -> str:
    """What values are computed in."""
    return TYPES[str(computed(dtype))]


def slot_bytes(nest: LoopNest, keep: bool = True) -> list[int]:
    """How many bytes an element has in each of the rows in which a nest keeps what several walks need.

    Parameters
    ----------
    keep : bool
        Whether what is dear to make again is among it, or only what is read.
    """
    return [size for _, size in sorted(set(_slots(nest, walks(nest, keep)).values()))]


def held_bytes(nest: LoopNest) -> int:
    """How many bytes of each element a nest needs at most from one walk to the next."""
    spans, count = _spans(nest, walks(nest)), len(walks(nest))
    return max(sum(span.size for span in spans if span.first <= walk < span.last) for walk in range(count))


def loaded_bytes(nest: LoopNest) -> list[int]:
    """How many bytes of each element walks load, those that load any."""
    reads = ([place for place in walk.reads if not nest.is_counted(place)] for walk in walks(nest))
    return [found for places in reads if (found := sum(nest.reads[place].itemsize for place in places))] or [0]


def along(nest: LoopNest) -> list[int]:
    """The arrays whose elements lie together along the vector loop."""
    found = (place for place, step in enumerate(nest.steps) if step == 1 and nest.levels[place] == "inner")
    return [place for place in found if not nest.is_counted(place)]


class ElementPrinter:
    """A nest in a variant, and the names of its parts."""

    def __init__(self, nest: LoopNest, variant: Variant) -> None:
        self.nest, self.variant = nest, variant
        self.walks = walks(nest, keep=variant.kept in ("shared", "registers"))
        self.slots = _slots(nest, self.walks) if variant.kept else {}
        self.last = nest.rank - 1  # the loop along which a thread's elements lie
        self.several = nest.columns and variant.vector > 1  # whether a thread has several columns

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
        found += [(f"long long m{axis}", f"m{axis}") for axis in self.divisors()]
        if variant.kept == "part":
            found.append(("long long held", "held"))
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
        def lines(declared: str) -> Lines:
            return statement(self.nest, made, type_of, self.value, declared)

        return self.placed(made.value, lines) if made.level == "outer" else lines(self.declared(made.value))

    def declared(self, value: int) -> str:
        """A value that is made once, declared."""
        return f"const {type_of(self.nest.dtype_of(value))} v{value}"

    def value(self, value: int) -> str:
        """What a value is called: where a thread has several columns, what is made at a place has one for each."""
        return f"v{value}[e]" if self.several and self.nest.level_of(value) == "outer" else f"v{value}"

    def placed(self, value: int, lines: Callable[[str], Lines]) -> Lines:
        """A value at a place of the kept loops, by the lines that assign it to what is given."""
        if not self.several:
            return lines(self.declared(value))
        array = f"{type_of(self.nest.dtype_of(value))} v{value}[{self.variant.vector}];"
        return [array, *self.unrolled(lines(f"v{value}[e]"))]

    def beside(self, place: int) -> str:
        """How far an array's element of a thread's column ``e`` is from that of its first."""
        step = self.nest.steps[place] if self.several else 0
        return {0: "0", 1: "e"}.get(step, f"e * (Index)s{place}_{self.nest.vector}")

    def read(self, place: int, expression: str) -> str:
        """What is read from an array, as it is computed with."""
        return unpacked(expression, self.nest.arrays[place])

    def written(self, value: int) -> str:
        """A value as an array holds it."""
        return packed(self.value(value), self.nest.dtype_of(value))

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
        several = f" * {self.variant.vector}" if self.several else ""
        if len(axes) == 1:
            return [f"const Index i{axes[0]} = {number}{several if axes[0] == self.nest.vector else ''};"]
        lines, rest = [], number
        for axis in reversed(axes[1:]):
            lines.append(f"const Index over{axis} = {self.quotient(rest, axis)};")
            place = f"{rest} - over{axis} * {self.size(axis)}"
            lines.append(f"const Index i{axis} = {f'({place}){several}' if axis == self.nest.vector else place};")
            rest = f"over{axis}"
        return [*lines, f"const Index i{axes[0]} = {rest};"]

    def size(self, axis: int) -> str:
        """How many places a loop has; that of columns, how many threads."""
        several = self.several and axis == self.nest.vector
        return f"(Index)(n{axis} / {self.variant.vector})" if several else f"(Index)n{axis}"

    def chunks(self) -> str:
        """How many accesses a row has."""
        if self.nest.columns:
            return f"const Index chunks = (Index)n{self.last};"
        return f"const Index chunks = ((Index)n{self.last} + {self.variant.rest}) / {self.variant.vector};"

    def shift(self) -> Lines:
        """How many elements before a row its first access begins, where rows begin within an access."""
        if not self.variant.shifted:
            return []
        place, size = next((place, self.nest.arrays[place].itemsize) for place in along(self.nest))
        return [f"const int shift = (int)((unsigned long long)x{place} / {size} % {self.variant.vector});"]

    def located(self, axes: Sequence[int], pointers: Lines) -> Lines:
        """Where the access ``k`` is, along some loops and the last, along which its elements lie."""
        lines, number = [], "k"
        if axes:
            lines = [f"const Index before = {self.quotient('k', self.last)};", *self.decoded("before", axes)]
            number = "(k - before * chunks)"
        if self.nest.columns:
            return [*lines, *pointers, f"const Index i = {number};"]
        shift = " - shift" if self.variant.shifted else ""
        return [*lines, *pointers, f"const Index i = {number} * {self.variant.vector}{shift};"]

    def quotient(self, number: str, axis: int) -> str:
        """A number by the size of a loop; of the last, by its accesses."""
        if self.variant.wide:
            return f"{number} / {'chunks' if axis == self.last else self.size(axis)}"
        return f"quotient({number}, m{axis})"

    def divisors(self) -> list[int]:
        """The loops by whose sizes kernels divide, where they do it by multiplying."""
        kept, reduced = range(self.nest.kept), range(self.nest.kept, self.last)
        if self.variant.wide:
            return []
        if not self.nest.reductions:
            inner = [axis for axis in range(self.last) if self.variant.team != "tiles" or axis != self.nest.across]
            return [*inner[1:], *([self.last] if inner and self.variant.team != "tiles" else [])]
        return [*kept[1:], *reduced[1:], *([self.last] if reduced else [])]

    def unrolled(self, lines: Lines) -> Lines:
        return ["#pragma unroll", f"for (int e = 0; e < {self.variant.vector}; e++)", *braced(lines)]

    def in_flight(self, walk: Walk) -> int:
        """How many accesses a thread loads before it uses the first: of several arrays fewer than of one."""
        variant, held = self.variant, self.variant.accesses
        kept = self.slots if variant.kept == "registers" else ()
        bytes_ = sum(self.nest.reads[place].itemsize for place in self.loaded(walk) if place not in kept)
        flight = FLIGHT // variant.vector if variant.kept == "registers" else held * min(loaded_bytes(self.nest))
        most = max(1, flight // bytes_) if bytes_ else held
        return max(n for n in range(1, held + 1) if held % n == 0 and n <= most)

    def loaded(self, walk: Walk) -> list[int]:
        """The arrays that a walk is the first to load."""
        arrays = [place for place in walk.reads if not self.nest.is_counted(place)]
        earlier = self.walks[: self.walks.index(walk)]
        return [place for place in arrays if place not in self.slots or not any(place in w.reads for w in earlier)]

    def turn(self, walk: Walk, letter: str, index: Lines, until: str) -> Lines:
        """What a thread does with its next accesses, at ``k``: it loads all of them before it uses the first.

        Parameters
        ----------
        letter : str
            What the names of pointers begin with.
        index : lines
            Where the access ``u`` of them is: ``k``, ``i`` and the pointers.
        until : str
            There are accesses at ``k`` below.
        """
        count = self.in_flight(walk)
        steps = self.variant.kept == "registers" and count < self.variant.accesses
        if self.variant.vector > 1 and not self.variant.whole:
            vector = self.variant.vector
            rest = f"(Index)n{self.last} - i"
            index = [*index, f"const int count = {rest} < {vector} ? (int)({rest}) : {vector};"]
            index += ["const int first = i < 0 ? (int)-i : 0;"] if self.variant.shifted else []
        lines, loads = self.loads(walk, letter)
        for part in (loads, self.used(walk, letter)):
            if part:
                body = needed([*index, f"if (k < {until})", *braced(part)])
                each = f"for (int u = t; u < t + {count}; u++)" if steps else f"for (int u = 0; u < {count}; u++)"
                lines += ["#pragma unroll", each, *braced(body)]
        if steps:
            lines = ["#pragma unroll", f"for (int t = 0; t < {self.variant.accesses}; t += {count})", *braced(lines)]
        return lines

    def loads(self, walk: Walk, letter: str) -> tuple[Lines, Lines]:
        """What holds the accesses that a walk loads, and how one of each is loaded."""
        vector, kept = self.variant.vector, self.variant.kept
        count = self.variant.accesses if kept == "registers" else self.in_flight(walk)
        first, declared, lines = self.loaded(walk), [], []
        for value in [*(place for place in walk.reads if not self.nest.is_counted(place)), *walk.loads]:
            if value in self.slots and kept == "registers":
                lines += self.access(value, letter) if value in first else []
                continue
            declared.append(f"Vector<{self.held(value)}, {vector}> b{value}[{count}];")
            access = self.access(value, letter) if value in walk.reads else []
            lines += access if value in first else self.if_held([f"b{value}[u] = {self.kept(value)};"], access)
        return declared, lines

    def if_held(self, lines: Lines, others: Lines) -> Lines:
        """What is done with an access that is kept, and with others, where a row is kept in part."""
        if self.variant.kept != "part":
            return lines
        return ["if (k < (Index)held)", *braced(lines), *(["else", *braced(others)] if others else [])]

    def used(self, walk: Walk, letter: str) -> Lines:
        """What is made of one access, once it is loaded."""
        nest, vector = self.nest, self.variant.vector
        lines: Lines = []
        body: Lines = []
        after: Lines = []
        keeping = [f"{self.kept(place)} = b{place}[u];" for place in self.loaded(walk) if place in self.slots]
        if keeping and self.variant.kept != "registers":
            lines += self.if_held(keeping, [])
        for value in [*walk.reads, *walk.loads]:
            is_place = value < len(nest.reads) and nest.is_counted(value)
            found = f"{letter}{value} + {self.along(value)}" if is_place else f"{self.name(value)}.at[e]"
            found = found if is_place else unpacked(found, nest.dtype_of(value))
            body.append(f"const {type_of(nest.dtype_of(value))} v{value} = {found};")
        for made in walk.statements:
            if isinstance(made, Reduction):
                name = f"p{made.value}[e]"
                combined = (
                    f"{name} = {made.accumulator.combine.format(name, element(nest, made, type_of, self.value))};"
                )
                body += [combined if self.variant.whole or vector == 1 else f"if ({self.within}) {combined}"]
            else:
                body += self.statement(made)
        for value in walk.stores:
            if self.variant.kept == "registers":
                body.append(f"{self.kept(value)}.at[e] = {self.written(value)};")
                continue
            lines.append(f"Vector<{self.held(value)}, {vector}> o{value};")
            body.append(f"o{value}.at[e] = {self.written(value)};")
            after.append(f"{self.kept(value)} = o{value};")
        for place, value in walk.writes:
            lines.append(f"Vector<{TYPES[str(nest.arrays[place])]}, {vector}> w{place};")
            body.append(f"w{place}.at[e] = {self.written(value)};")
            after += self.stored(place, f"{letter}{place}")
        return [*lines, *self.unrolled(body), *after]

    def held(self, value: int) -> str:
        """The type in which elements of a value are loaded and kept: narrow ones, which are rounded, as such."""
        return TYPES[str(self.nest.dtype_of(value))]

    def name(self, value: int) -> str:
        """An access of a value that is loaded."""
        return self.kept(value) if value in self.slots and self.variant.kept == "registers" else f"b{value}[u]"

    def kept(self, value: int) -> str:
        """An access of what several walks need, where it stays."""
        if self.variant.kept == "registers":
            return f"g{value}[u]"
        width = self.variant.width
        index = f"k * {width} + threadIdx.x % {width}" if self.nest.columns else f"k * {self.variant.vector}"
        return f"*(Vector<{self.held(value)}, {self.variant.vector}> *)(g{value} + {index})"

    @property
    def within(self) -> str:
        """Whether an access has its element ``e``."""
        return "e >= first && e < count" if self.variant.shifted else "e < count"

    @property
    def ends(self) -> str:
        """Which elements an access has, where it may not have all, for `loaded` and `store`."""
        if self.variant.whole:
            return ""
        return ", first, count" if self.variant.shifted else ", 0, count"

    def along(self, place: int) -> str:
        """How far an access's element ``e`` is from where an array stands."""
        if self.nest.columns:
            steps = [f"i * (Index)s{place}_{self.last}"] if self.has_step(place, self.last) else []
            return " + ".join([*steps, *([self.beside(place)] if self.several else [])]) or "0"
        index = "i + e" if self.variant.vector > 1 else "i"
        return {0: "0", 1: index}.get(self.nest.steps[place], f"({index}) * (Index)s{place}_{self.last}")

    def first(self, place: int, pointer: str) -> str:
        """Where the elements of an access are that lie together."""
        return f"{pointer} + " + (f"i * (Index)s{place}_{self.last}" if self.nest.columns else "i")

    def access(self, place: int, letter: str) -> Lines:
        """An access to an array."""
        vector, pointer, name = self.variant.vector, f"{letter}{place}", self.name(place)
        index = self.along(place)
        if vector == 1:
            return [f"{name}.at[0] = {pointer}[{index}];"]
        if self.nest.steps[place] == 1:
            return [f"{name} = loaded<{vector}>({self.first(place, pointer)}{self.ends});"]
        return self.unrolled(
            [f"{name}.at[e] = {pointer}[{index if self.variant.whole else f'{self.within} ? {index} : 0'}];"]
        )

    def stored(self, place: int, pointer: str) -> Lines:
        """Some elements into an array."""
        if self.variant.vector == 1:
            return [f"{pointer}[{self.along(place)}] = w{place}.at[0];"]
        if self.nest.steps[place] == 1:
            return [f"store({self.first(place, pointer)}, w{place}{self.ends});"]
        guard = "" if self.variant.whole else f"if ({self.within}) "
        return self.unrolled([f"{guard}{pointer}[{self.along(place)}] = w{place}.at[e];"])


_DECLARATION = re.compile(r"\s*(?:const )?(?:(?:unsigned|signed|long) )*\w+(?:<[^>]*>)? \*?(?:const )?(\w+) = [^;]*;")


#: What `ElementPrinter.placed` makes of a value that a thread has for each of its columns: then comes what assigns it.
_COLUMNS = re.compile(r"(\s*)[\w ]+ (v\d+)\[\d+\];")


def needed(lines: Lines) -> Lines:
    """Lines without declarations of what nothing needs."""
    while True:
        uses = Counter(re.findall(r"\w+", "\n".join(lines)))
        kept, after = [], 0
        for number, line in enumerate(lines):
            if number < after or ((found := _DECLARATION.fullmatch(line)) and uses[found[1]] == 1):
                continue
            if (found := _COLUMNS.fullmatch(line)) and uses[found[2]] == 2:
                after = lines.index(f"{found[1]}}}", number) + 1
                continue
            kept.append(line)
        if len(kept) == len(lines):
            return lines
        lines = kept


class Span(NamedTuple):
    """A value that several walks need: from the first of them to the last, and how many bytes an element of it has."""

    first: int
    last: int
    value: int
    size: int


def _spans(nest: LoopNest, found: Sequence[Walk]) -> list[Span]:
    """What several walks need, in the order in which it is first needed."""
    needed: dict[int, tuple[int, int]] = {}
    for number, walk in enumerate(found):
        arrays = {place for place in walk.reads if not nest.is_counted(place)}
        for value in {*arrays, *walk.loads, *walk.stores}:
            needed[value] = needed.get(value, (number, number))[0], number
    spans = (Span(first, last, value, nest.dtype_of(value).itemsize) for value, (first, last) in needed.items())
    return sorted(span for span in spans if span.last > span.first)


def _slots(nest: LoopNest, found: Sequence[Walk]) -> dict[int, tuple[int, int]]:
    """For each value that several walks need, the row of shared memory that it is kept in, and its element's size.

    A value that a walk makes may take the row of one that no later walk needs.
    """
    rows: list[tuple[int, int]] = []  # until which walk each is taken, and its element's size
    slots: dict[int, tuple[int, int]] = {}
    for first, last, value, size in _spans(nest, found):
        is_read = value < len(nest.reads)
        reusable = (i for i, (until, other) in enumerate(rows) if until <= first and other == size and not is_read)
        row = next(reusable, len(rows))
        rows[row : row + 1] = [(last, size)]
        slots[value] = row, size
    return slots
