"""What a loop nest means, printed once for all languages.

A nest is, at each outer index, a sequence of stages. Each runs over the inner
domain and ends in accumulators; between stages come their values, and the
statements of the outer level that use them. `Printer` prints all that in the
words of a `Dialect`. A language's own printer says how loops run: who takes
which outer indices, in what steps a stage loads, accumulates and stores
elements, and how the accumulators of several threads are joined.

So a new language needs a `Dialect`, a `Printer` with `array`, `number` and
`traversed` that puts the parts into a function, and what compiles and runs that.
The least that computes everything is tests/harness/plain_c.py; the other hooks
are for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from backends.execution.dialect import Dialect, Lines, braced, initial, packed, unpacked, wide
from optree.compile.loopnest import LoopNest, Reduction, Stage, Statement, stages_of


class Access(NamedTuple):
    """How the values of one element are loaded, accumulated and stored.

    Attributes
    ----------
    load : callable
        From an array that is read, or a value that an earlier stage has cached, to the expression that loads it.
    part : callable
        From a reduction to the name of its accumulator.
    cache : callable
        From a value that later stages need to the statement that caches it.
    target : callable
        From an array that is written to its element.
    """

    load: Callable[[int], str]
    part: Callable[[Reduction], str]
    cache: Callable[[int], str]
    target: Callable[[int], str]


class Printer:
    """A loop nest in the words of a dialect.

    Arrays are called ``a``, the positions of their elements at an outer index ``x`` and in a stage ``y``, the sizes of
    loops ``n``, strides ``s``, values ``v`` and accumulators ``r``, each with its number.

    Parameters
    ----------
    nest : LoopNest
    cache : bool
        Whether what is dear to compute again is cached for later stages.

    Attributes
    ----------
    dialect : Dialect
    stages : list of Stage
    column : str
        The index of the columns that one thread has at an outer index; empty where it has one value of each.
    columns : int
        The most columns that it has.
    """

    dialect: Dialect

    def __init__(self, nest: LoopNest, cache: bool = True, column: str = "", columns: int = 1) -> None:
        self.nest, self.stages = nest, stages_of(nest, cache)
        self.last = nest.rank - 1
        self.column, self.columns = column, columns

    # Hooks of languages

    def array(self, place: int) -> str:
        """A pointer to an array's first element."""
        return f"a{place}"

    def number(self, value: int) -> str:
        """A Python number, as the kernel is given it."""
        return f"({self.type_of(value)})c{value}"

    def column_loop(self) -> Lines:
        """The head of the loop over columns."""
        raise NotImplementedError

    def traversed(self, stage: Stage) -> Lines:
        """The loops of a stage over the inner domain, around `element`."""
        raise NotImplementedError

    def joined(self, stage: Stage) -> Lines:
        """What joins the accumulators of all threads that share a stage."""
        return []

    def leading(self, lines: Lines) -> Lines:
        """Stores at an outer index, by one thread of those that share it."""
        return lines

    # Arrays

    def pointer_type(self, place: int) -> str:
        """The type of a pointer into an array, const where it is only read; of counted positions their own."""
        if self.nest.is_counted(place):
            return f"const {self.dialect.types['int64']} "
        if place >= len(self.nest.reads):
            return f"{self.dialect.types[str(self.nest.arrays[place])]} *"
        return f"const {self.dialect.read_type(self.nest.reads[place])} *"

    def has_stride(self, place: int, axis: int) -> bool:
        """Whether an array's stride along a loop is given: it is not 0 or 1 by the nest, nor without meaning."""
        level = self.nest.levels[place]
        known = axis == self.nest.vector and self.nest.steps[place] >= 0
        return not known and level != "once" and (level == "inner" or axis < self.nest.outer)

    def strides(self) -> Iterator[tuple[int, int]]:
        """The arrays and axes of all strides that are given."""
        pairs = ((place, axis) for place in range(len(self.nest.arrays)) for axis in range(self.nest.rank))
        return (pair for pair in pairs if self.has_stride(*pair))

    def stride(self, place: int, axis: int) -> str:
        return f"{self.dialect.cast}s{place}_{axis}"

    def strided(self, place: int, base: str, axes: Sequence[int]) -> str:
        """A pointer, moved along loops to their indices."""
        axes = [axis for axis in axes if self.has_stride(place, axis)]
        return base + "".join(f" + i{axis} * {self.stride(place, axis)}" for axis in axes)

    def along(self, place: int, index: str) -> str:
        """The offset of an index along the vector loop."""
        grouped = f"({index})" if " " in index else index
        return {0: "0", 1: index}.get(self.nest.steps[place], f"{grouped} * {self.stride(place, self.nest.vector)}")

    def beside(self, place: int) -> str:
        """The offset of a column from the first."""
        return self.along(place, self.column) if self.column else "0"

    def pointers(
        self, axes: Sequence[int], levels: Collection[str], vector: str = "", without: Collection[int] = ()
    ) -> Lines:
        """Pointers into the arrays of some levels, at the indices of some loops and, if given, of the vector loop."""
        lines = []
        for place, level in enumerate(self.nest.levels):
            if level in levels and place not in without:
                pointer = self.strided(place, self.array(place), axes)
                offset = self.along(place, vector) if vector else "0"
                pointer += "" if offset == "0" else f" + {offset}"
                lines.append(f"{self.pointer_type(place)}x{place} = {pointer};")
        return lines

    def stage_pointers(self, stage: Stage, axes: Sequence[int]) -> Lines:
        """Pointers into the arrays that a stage loads and stores, at the indices of some inner loops."""
        places = [*stage.reads, *(place for place, _ in stage.writes)]
        return [f"{self.pointer_type(p)}y{p} = {self.strided(p, f'x{p}', axes)};" for p in places]

    def loaded(self, place: int, pointer: str, offset: str) -> str:
        """An array's element as it is computed with; of counted positions, the one there."""
        if self.nest.is_counted(place):
            return f"{pointer} + {offset}"
        return unpacked(f"{pointer}[{offset}]", self.nest.reads[place])

    # Values

    def type_of(self, value: int) -> str:
        return self.dialect.type_of(self.nest.dtype_of(value))

    def of_column(self, name: str) -> str:
        """A variable, or its element where each column has one."""
        return f"{name}[{self.column}]" if self.column else name

    def has_columns(self, value: int) -> bool:
        """Whether each column of an outer index has such a value."""
        return bool(self.column) and self.nest.level_of(value) == "outer"

    def name(self, value: int) -> str:
        return self.of_column(f"v{value}") if self.has_columns(value) else f"v{value}"

    def declared(self, value: int) -> str:
        """A value where it is assigned; those of columns are declared before."""
        return self.name(value) if self.has_columns(value) else f"const {self.type_of(value)} v{value}"

    def stored(self, value: int) -> str:
        """A value as an array's element."""
        return packed(self.name(value), self.nest.dtype_of(value))

    def statement(self, made: Statement) -> Lines:
        """A value, its arguments first converted to the dtypes that the op computes in."""
        dialect, lines, names = self.dialect, [], []
        for i, (argument, dtype) in enumerate(zip(made.arguments, made.loop, strict=True)):
            found = self.name(argument)
            given = self.nest.dtype_of(argument)
            if given != dtype:
                found = f"(int){found}" if given == np.bool_ else found  # GCC takes no _Bool to vectors
                lines.append(f"const {dialect.type_of(dtype)} v{made.value}_{i} = {dialect.converted(found, dtype)};")
                found = f"v{made.value}_{i}"
            names.append(found)
        expression = made.expression.replace("(T)", f"({dialect.type_of(made.dtype)})").format(*names)
        return [*lines, f"{self.declared(made.value)} = {dialect.converted(f'({expression})', made.dtype)};"]

    # Once

    def numbers(self) -> Lines:
        """The Python numbers."""
        first = len(self.nest.reads)
        values = range(first, first + len(self.nest.numbers))
        return [f"{self.declared(value)} = {self.number(value)};" for value in values]

    def once(self) -> Lines:
        """What does not depend on any index."""
        lines = []
        for place in range(len(self.nest.reads)):
            if self.nest.levels[place] == "once":
                load = unpacked(f"*{self.array(place)}", self.nest.reads[place])
                lines.append(f"{self.declared(place)} = {'0' if self.nest.is_counted(place) else load};")
        return lines + [line for made in self.nest.made("once") for line in self.statement(made)]

    def once_stores(self) -> Lines:
        return [f"*{self.array(place)} = {self.stored(value)};" for place, value in self.nest.writes_at("once")]

    # Elements

    def element(self, stage: Stage, access: Access) -> Lines:
        """What a stage does at one element."""
        values = [*self.element_reads(stage), *stage.loads]
        lines = [f"{self.declared(value)} = {access.load(value)};" for value in values]
        for made in stage.statements:
            if isinstance(made, Reduction):
                lines += self.accumulated(made, access.part(made))
            else:
                lines += self.statement(made)
        lines += [access.cache(value) for value in stage.stores]
        return lines + [f"{access.target(place)} = {self.stored(value)};" for place, value in stage.writes]

    def element_reads(self, stage: Stage) -> list[int]:
        """The arrays that are read at each element."""
        return stage.reads

    def accumulated(self, r: Reduction, part: str) -> Lines:
        """An accumulator with one more element."""
        return [f"{part} = {r.accumulator.combine.format(part, self.taken(r))};"]

    def taken(self, r: Reduction) -> str:
        """An element as a reduction takes it."""
        name = self.name(r.argument)
        return name if self.nest.dtype_of(r.argument) == r.dtype else self.dialect.converted(name, r.dtype)

    # Accumulators

    def accumulators(self, r: Reduction) -> list[tuple[str, str, str]]:
        """The types, names and initial values of what accumulates a reduction."""
        return [(self.dialect.type_of(wide(r)), f"r{r.value}", initial(r))]

    def opened(self, reductions: Sequence[Reduction]) -> Lines:
        """Accumulators before the first element."""
        return [line for r in reductions for line in self.variables(self.accumulators(r))]

    def variables(self, variables: Sequence[tuple[str, str, str]]) -> Lines:
        """Variables by type, name and initial value, one for each column."""
        if not self.column:
            return [f"{type} {name} = {value};" for type, name, value in variables]
        arrays = [f"{type} {name}[{self.columns}];" for type, name, _ in variables]
        return [*arrays, *self.each_column([f"{self.of_column(name)} = {value};" for _, name, value in variables])]

    def each_column(self, lines: Lines) -> Lines:
        """Lines for each column, where there are several."""
        return [*self.column_loop(), *braced(lines)] if self.column and lines else lines

    def total(self, r: Reduction) -> str:
        """An accumulator's value at the end."""
        return self.of_column(f"r{r.value}")

    # Outer indices

    def at_outer_index(self) -> Lines:
        """The stages of an outer index, and what is computed between them."""
        lines: Lines = []
        for number, stage in enumerate(self.stages):
            lines += [*self.outer(number), *self.opened(stage.reductions), *self.traversed(stage), *self.joined(stage)]
        return [*lines, *self.outer(len(self.stages))]

    def outer(self, number: int) -> Lines:
        """What is computed at an outer index when a number of stages are over: what they reduce, and statements."""
        nest = self.nest
        done = self.stages[number - 1].reductions if number else []
        made = nest.made("outer", number)
        stores = nest.writes_at("outer") if number == len(self.stages) else []
        reads = self.outer_reads(number, {i for s in made for i in s.arguments} | {value for _, value in stores})
        lines = [f"{self.declared(p)} = {self.loaded(p, f'x{p}', self.beside(p))};" for p in reads]
        count = " * ".join(f"(double)n{axis}" for axis in range(nest.outer, nest.rank))
        for r in done:
            value = f"({r.accumulator.finish.format(self.total(r), count=f'({count})')})"
            lines.append(f"{self.declared(r.value)} = {self.dialect.converted(value, r.dtype)};")
        lines += [line for each in made for line in self.statement(each)]
        if stores:
            lines += self.leading(
                [f"x{place}[{self.beside(place)}] = {self.stored(value)};" for place, value in stores]
            )
        values = [*reads, *(r.value for r in done), *(each.value for each in made)]
        arrays = [f"{self.type_of(value)} v{value}[{self.columns}];" for value in values if self.has_columns(value)]
        return [*arrays, *self.each_column(lines)]

    def outer_reads(self, number: int, used: Collection[int]) -> list[int]:
        """The arrays that are read at an outer index when a number of stages are over."""
        levels = self.nest.levels[: len(self.nest.reads)]
        return [place for place, level in enumerate(levels) if level == "outer" and number == 0]
