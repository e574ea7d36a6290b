"""Loop nests as C."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from backends.cpu.codegen.halves import narrow_functions
from backends.cpu.codegen.parallel import SHARED, Loop, collapsed, part
from backends.cpu.codegen.transposes import PITCH, TILE, turned_reads, turning_functions
from backends.cpu.codegen.vector_math import EXP, VECTOR_MATH
from backends.execution.dialect import (
    Dialect,
    Lines,
    braced,
    computed,
    functions_called,
    initial,
    narrow_dtypes,
    needed,
    wide,
)
from backends.execution.printer_common import Access, Printer
from optree.compile.loopnest import LoopNest, Reduction, Stage, Statement, stages_of

#: The least work, in elements times what each costs (`LoopNest.cost`), that is worth waking threads for: that takes
#: tens of microseconds, and so does so much work.
PARALLEL = 1 << 20

#: The elements that are accumulated in the dtype itself before they join a sum in float64: of rows, which the lanes
#: of a vector share, and of columns.
BLOCKS = (512, 64)

#: The elements of inner loops that are one thread's part where they are shared out, whatever the number of threads,
#: and the most parts: of rows, and of columns.
PART = 1 << 16
PARTS = (1024, 64)

#: The most sums and instructions (a function is 8) of a stage that adds up blocks in lanes, and the lanes' bytes.
LIGHT, LANES = (3, 7), 128

#: The columns that are reduced together: where a nest has one stage, and where a stage finds rows in the cache again.
TILES = (512, 64)

NAME = "kernel"

#: The least elements of a single loop for one thread.
PIECE = 1024

HEAD = f"""#include <stdint.h>
{VECTOR_MATH}#include <tgmath.h>
{EXP}{SHARED}"""

#: Compilers vectorise no loop over bools, but over bytes, which NumPy's are.
C = Dialect(
    {
        "bool": "_Bool",
        "int8": "int8_t",
        "int16": "int16_t",
        "int32": "int32_t",
        "int64": "int64_t",
        "uint8": "uint8_t",
        "uint16": "uint16_t",
        "uint32": "uint32_t",
        "uint64": "uint64_t",
        "float16": "half",
        "bfloat16": "bfloat",
        "float32": "float",
        "float64": "double",
    },
    byte="uint8_t",
    inline="static inline",
)


def source(nest: LoopNest) -> str:
    """The C source of a nest: a function of one array of 64-bit integers.

    It holds the arrays' addresses, the loops' sizes, each array's strides along the
    loops in elements, the numbers, the addresses of the `scratch` arrays, how many
    bytes lie between those of one thread and the next, how many threads to use,
    and the address of the function that shares work among them.
    """
    printer = _Printer(nest)
    functions, body = printer.functions()
    functions += [f"void {NAME}(const int64_t *a)", *braced(needed(body))]
    head = HEAD + narrow_functions(narrow_dtypes(nest))
    helpers = [*turning_functions(nest), *functions_called(nest, C), *printer.joins()]
    return "\n".join([head, *helpers, *functions, ""])


def scratch_arrays(nest: LoopNest) -> list[tuple[str, int, int]]:
    """The arrays that a nest needs beside: letter and value, and the bytes of an element (a tile of it, of columns).

    ``w`` caches a value at each inner index from stage to stage; ``q`` has an
    accumulator of each part of loops that are shared out.
    """
    found = [
        ("w", value, computed(nest.dtype_of(value)).itemsize) for stage in stages_of(nest) for value in stage.stores
    ]
    if nest.split:
        found += [("q", r.value, wide(r).itemsize) for r in nest.reductions]
    tile = tile_of(nest) if nest.columns else 1
    return [(letter, value, size * tile) for letter, value, size in found]


def scratch(nest: LoopNest, sizes: Sequence[int]) -> list[int]:
    """How many bytes each scratch array of one thread has, for loops of these sizes."""
    elements = {"w": prod(sizes[nest.outer :]), "q": PARTS[nest.columns]}
    return [elements[letter] * size for letter, _, size in scratch_arrays(nest)]


def tile_of(nest: LoopNest) -> int:
    """The number of columns that are reduced together."""
    return TILES[len(stages_of(nest)) > 1]


def _simd(loop: str) -> Lines:
    """The head of a loop that compilers vectorise."""
    return ["#pragma omp simd", loop]


def _tiles(axis: int, size: int) -> str:
    """The number of tiles of a loop."""
    return f"((n{axis} + {size - 1}) / {size})"


class _Printer(Printer):
    """A nest in C: threads share the outer loops, and the vector loop is one of SIMD."""

    dialect = C

    def __init__(self, nest: LoopNest) -> None:
        column, columns = ("j", tile_of(nest)) if nest.columns else ("", 1)
        super().__init__(nest, column=column, columns=columns)
        self.tile = f" * {self.columns}" if nest.columns else ""
        self.scratch = scratch_arrays(nest)
        self.first_scratch = len(nest.arrays) * (1 + nest.rank) + nest.rank + len(nest.numbers)

    def functions(self) -> tuple[Lines, Lines]:
        """The functions that threads share, and the kernel's body."""
        nest, functions, body = self.nest, Lines(), self.arguments()
        if nest.split:
            functions, places = self.in_parts()
            body += places
        elif nest.reductions or nest.writes_at("inner"):
            count, places = self.reduced() if nest.reductions else self.elementwise()
            if count:
                functions = part("places", ["const int64_t *const a = state;", *self.arguments(), *places])
                body.append(f"shared(places, a, {count}, {self.threads()});")
            else:
                body += places
        return functions, [*body, *self.once_stores()]

    # What `a` holds

    def arguments(self) -> Lines:
        """The sizes, strides, numbers and scratch arrays by name, and values of them alone."""
        nest = self.nest
        steps = len(nest.arrays) + nest.rank
        lines = [f"const int64_t n{axis} = a[{len(nest.arrays) + axis}];" for axis in range(nest.rank)]
        lines += [f"const int64_t s{p}_{axis} = a[{steps + p * nest.rank + axis}];" for p, axis in self.strides()]
        lines += self.numbers()
        lines += [f"char *const t{i} = (char *)a[{self.first_scratch + i}];" for i in range(len(self.scratch))]
        if self.scratch and not nest.split:
            lines.append(f"const int64_t apart = a[{self.first_scratch + len(self.scratch)}];")
        return lines + self.once()

    def array(self, place: int) -> str:
        return f"({self.pointer_type(place)})a[{place}]"

    def number(self, value: int) -> str:
        first = self.first_scratch - len(self.nest.numbers) - len(self.nest.reads)
        return f"*(const {self.type_of(value)} *)(a + {first + value})"

    def threads(self) -> str:
        """The address of the number of threads to use."""
        return f"a + {self.first_scratch + len(self.scratch) + 1}"

    def scratch_pointers(self, thread: str = "") -> Lines:
        """The scratch arrays, each thread's its own or one for all."""
        wides = {r.value: self.dialect.type_of(wide(r)) for r in self.nest.reductions}
        lines = []
        for i, (letter, value, _) in enumerate(self.scratch):
            type = wides[value] if letter == "q" else self.type_of(value)
            lines.append(f"{type} *const {letter}{value} = ({type} *)(t{i}{thread});")
        return lines

    # Columns

    def column_loop(self) -> Lines:
        return _simd("for (int64_t j = 0; j < m; j++)")

    def has_columns(self, value: int) -> bool:
        return super().has_columns(value) and value >= len(self.nest.reads)

    def outer_reads(self, number: int, used: Collection[int]) -> list[int]:
        if not self.column:
            return super().outer_reads(number, used)
        return [place for place in range(len(self.nest.reads)) if self._is_outer(place) and place in used]

    def element_reads(self, stage: Stage) -> list[int]:
        if not self.column:
            return stage.reads
        used = {i for s in stage.statements if isinstance(s, Statement) for i in s.arguments}
        return sorted({*stage.reads, *(i for i in used if i < len(self.nest.reads) and self._is_outer(i))})

    def _is_outer(self, place: int) -> bool:
        return self.nest.levels[place] == "outer"

    # Elements and accumulators

    def access(self, letter: str, index: str, part: str) -> Access:
        """An element at an index of the vector loop, where pointers begin with a letter."""

        def pointer(place: int) -> str:
            return f"x{place}" if self._is_outer(place) else f"{letter}{place}"

        def load(value: int) -> str:
            if value >= len(self.nest.reads):
                return f"g{value}[{index}]"
            return self.loaded(value, pointer(value), self.along(value, index))

        return Access(
            load,
            lambda r: part.format(r.value),
            lambda value: f"g{value}[{index}] = v{value};",
            lambda place: f"{pointer(place)}[{self.along(place, index)}]",
        )

    def at_element(self, stage: Stage, letter: str, index: str) -> Lines:
        return self.element(stage, self.access(letter, index, self.of_column("p{}")))

    def accumulated(self, r: Reduction, part: str) -> Lines:
        if not r.accumulator.of_numbers:
            return super().accumulated(r, part)
        taken = self.taken(r)
        flag = self.of_column(f"f{r.value}")
        return [f"{part} = {r.accumulator.of_numbers.format(part, taken)};", f"{flag} |= {taken} != {taken};"]

    def parts(self, stage: Stage) -> Lines:
        """Accumulators of a block; where numbers alone are compared, with a flag for a nan."""
        found = [(self.dialect.part_type(r), f"p{r.value}", initial(r)) for r in stage.reductions]
        flags = [("int", f"f{r.value}", "0") for r in stage.reductions if r.accumulator.of_numbers]
        return self.variables([*found, *flags])

    def accumulators(self, r: Reduction) -> list[tuple[str, str, str]]:
        compensation = [("double", f"k{r.value}", "0")] if self._is_compensated(r) else []
        return [*super().accumulators(r), *compensation]

    def added(self, r: Reduction, part: str) -> Lines:
        """An accumulator with one more part (Neumaier's sum, where it is compensated)."""
        total, k, u = self.of_column(f"r{r.value}"), self.of_column(f"k{r.value}"), f"u{r.value}"
        combined = r.accumulator.combine.format(total, part)
        if not self._is_compensated(r):
            return [f"{total} = {combined};"]
        return [
            f"const double {u} = {combined};",
            f"{k} += fabs({total}) >= fabs({part}) ? ({total} - {u}) + {part} : ({part} - {u}) + {total};",
            f"{total} = {u};",
        ]

    def total(self, r: Reduction) -> str:
        """An accumulator's value at the end; an infinite or nan sum has no compensation."""
        total, k = self.of_column(f"r{r.value}"), self.of_column(f"k{r.value}")
        return f"({k} - {k} == 0 ? {total} + {k} : {total})" if self._is_compensated(r) else total

    @staticmethod
    def _is_compensated(r: Reduction) -> bool:
        """Whether what rounding takes from a sum is kept beside it: nothing wider is there to add up float64 in."""
        return r.accumulator.sums and str(r.dtype) == "float64"

    def joins(self) -> Lines:
        """OpenMP reductions, which join the accumulators of a vector's lanes."""
        lines = []
        for r in self.nest.reductions:
            if not r.accumulator.sums and not self.column:
                combined = (r.accumulator.of_numbers or r.accumulator.combine).format("omp_out", "omp_in")
                lines.append(
                    f"#pragma omp declare reduction(join{r.value} : {self.dialect.part_type(r)} : omp_out = {combined})"
                    f" initializer(omp_priv = {initial(r)})"
                )
        return lines

    # Elementwise nests

    def elementwise(self) -> tuple[str, Lines]:
        """The number of indices that threads share, of all loops but the innermost or pieces of one, and their work."""
        last, (stage,) = self.last, self.stages
        if self.nest.across >= 0:
            return self.tiled()
        element = braced(self.at_element(stage, "x", "i"))
        pointers = self.pointers(range(last), ("inner",))
        if not last:
            stop = f"const int64_t stop = end * {PIECE} < n0 ? end * {PIECE} : n0;"
            loop = _simd(f"for (int64_t i = begin * {PIECE}; i < stop; i++)")
            return f"(n0 + {PIECE - 1}) / {PIECE}", [*pointers, stop, *loop, *element]
        loops = [Loop(f"i{axis}", f"n{axis}") for axis in range(last)]
        return collapsed(loops, [*pointers, *_simd(f"for (int64_t i = 0; i < n{last}; i++)"), *element])

    def tiled(self) -> tuple[str, Lines]:
        """Two loops in tiles, so that rows along either are still in the cache when their turn comes."""
        nest, across, last, turned = self.nest, self.nest.across, self.last, turned_reads(self.nest)
        tiles = dict(zip((across, last), TILE, strict=True))
        others = [axis for axis in range(last) if axis != across]
        loops = [Loop(f"i{axis}", f"n{axis}") for axis in others]
        loops += [Loop(f"k{axis}", _tiles(axis, size)) for axis, size in tiles.items()]
        body = [f"const int64_t t{axis} = k{axis} * {size};" for axis, size in tiles.items()]
        body += [f"const int64_t m{x} = n{x} - t{x} < {size} ? n{x} - t{x} : {size};" for x, size in tiles.items()]
        for place in turned:
            dtype, (down, along) = nest.reads[place], (self.stride(place, axis) for axis in tiles)
            start = self.strided(place, f"(const bits{dtype.itemsize} *)a[{place}]", others)
            start += f" + t{across} * {down} + t{last} * {along}"
            body.append(f"_Alignas(64) {self.type_of(place)} b{place}[{TILE[0] * PITCH}];")
            taken = f"{start}, {down}, {along}, (bits{dtype.itemsize} *)b{place}, m{across}, m{last}"
            body.append(f"turned{dtype.itemsize}({taken});")
        row = self.pointers(range(last), ("inner",), f"t{last}", without=turned)
        for place in turned:
            row.append(f"{self.pointer_type(place)}x{place} = b{place} + (i{across} - t{across}) * {PITCH};")
        steps = tuple(1 if place in turned else step for place, step in enumerate(nest.steps))
        element = _Printer(nest._replace(steps=steps)).at_element(self.stages[0], "x", "i")
        row += [*_simd(f"for (int64_t i = 0; i < m{last}; i++)"), *braced(element)]
        rows = f"for (int64_t i{across} = t{across}; i{across} < t{across} + m{across}; i{across}++)"
        return collapsed(loops, [*body, rows, *braced(row)])

    # Nests that reduce

    def reduced(self) -> tuple[str, Lines]:
        """The number of outer indices, and the stages at each; "" where there are no outer loops."""
        loops, body = self.outer_loops(), [*self.outer_pointers(), *self.at_outer_index()]
        if not loops:
            return "", [*self.scratch_pointers(), *body]
        count, lines = collapsed(loops, body)
        return count, [*self.scratch_pointers(" + thread * apart"), *lines]

    def outer_loops(self) -> list[Loop]:
        """The outer loops, of columns the last of them in tiles."""
        loops = [Loop(f"i{axis}", f"n{axis}") for axis in range(self.nest.outer - self.nest.columns)]
        return [*loops, Loop("t", _tiles(self.nest.vector, self.columns))] if self.column else loops

    def outer_pointers(self) -> Lines:
        """Pointers into the arrays at an outer index, and the columns of a tile."""
        lines: Lines = []
        if self.column:
            tile, n = self.columns, f"n{self.nest.vector}"
            lines = [f"const int64_t c = t * {tile}, m = {n} - c < {tile} ? {n} - c : {tile};"]
        axes = range(self.nest.outer - self.nest.columns)
        return lines + self.pointers(axes, ("outer", "inner"), "c" if self.column else "")

    def traversed(self, stage: Stage) -> Lines:
        return self.loops(stage, "0", f"n{self.nest.outer}")

    def loops(self, stage: Stage, start: str, end: str) -> Lines:
        """The inner loops, the first of them from a start to an end."""
        nest, last = self.nest, self.last
        axes = range(nest.outer, last)
        bounds = {axis: ("0", f"n{axis}") for axis in range(nest.outer, nest.rank)} | {nest.outer: (start, end)}
        lines, before = self.stage_pointers(stage, axes), "0"
        for axis in axes:
            before = f"({before} + i{axis}) * n{axis + 1}" if before != "0" else f"i{axis} * n{axis + 1}"
        for value in sorted({*stage.loads, *stage.stores}):
            moved = "" if before == "0" else f" + {before}{self.tile}"
            lines.append(f"{self.type_of(value)} *const {'h' if self.column else 'g'}{value} = w{value}{moved};")
        lines += (self.column_blocks if self.column else self.row_blocks)(stage, *bounds[last])
        loops = [f"for (int64_t i{x} = {bounds[x][0]}; i{x} < {bounds[x][1]}; i{x}++)" for x in axes]
        return [*loops, *braced(lines)]

    def blocks(self, stage: Stage, start: str, end: str, lines: Lines) -> Lines:
        """The last inner loop in blocks, whose parts join the accumulators."""
        block, part = BLOCKS[self.nest.columns], self.of_column("p{}")
        joined = [line for r in stage.reductions for line in (*self.settled(r), *self.added(r, part.format(r.value)))]
        first = f"const int64_t e = b + {block} < {end} ? b + {block} : {end};"
        body = [first, *self.parts(stage), *lines, *self.each_column(joined)]
        if decided := self.decided(stage):
            body += [f"if ({decided})", "    break;"]
        return [f"for (int64_t b = {start}; b < {end}; b += {block})", *braced(body)]

    def decided(self, stage: Stage) -> str:
        """Whether no further element changes what a stage accumulates; empty where that is never known."""
        ends = [f"r{r.value} == {r.accumulator.absorbing}" for r in stage.reductions if r.accumulator.absorbing]
        alone = len(ends) == len(stage.reductions) and not (stage.stores or stage.writes or self.column)
        return " && ".join(ends) if alone else ""

    def settled(self, r: Reduction) -> Lines:
        """A part, if nan was among its elements."""
        part, flag = self.of_column(f"p{r.value}"), self.of_column(f"f{r.value}")
        return [f"{part} = {flag} ? NAN : {part};"] if r.accumulator.of_numbers else []

    def row_blocks(self, stage: Stage, start: str, end: str) -> Lines:
        """The last inner loop, which is the vector loop."""
        body = braced(self.at_element(stage, "y", "i"))
        if not stage.reductions:
            return [*_simd(f"for (int64_t i = {start}; i < {end}; i++)"), *body]
        names = [(r, "+" if r.accumulator.sums else f"join{r.value}") for r in stage.reductions]
        joins = [f" reduction({join} : p{r.value})" for r, join in names]
        joins += [f" reduction(| : f{r.value})" for r in stage.reductions if r.accumulator.of_numbers]
        lines = [f"#pragma omp simd{''.join(joins)}", "for (int64_t i = b; i < e; i++)", *body]
        if self.is_light(stage):
            lines = [f"if (e - b == {BLOCKS[0]})", *braced(self.in_lanes(stage)), "else", *braced(lines)]
        return self.blocks(stage, start, end, lines)

    def column_blocks(self, stage: Stage, start: str, end: str) -> Lines:
        """The last inner loop, at each index of which the vector loop goes along a tile of columns."""
        last, row = self.last, []
        for place in [*stage.reads, *(place for place, _ in stage.writes)]:
            step = f" + i * {self.stride(place, last)}" if self.has_stride(place, last) else ""
            row.append(f"{self.pointer_type(place)}z{place} = y{place}{step};")
        for value in sorted({*stage.loads, *stage.stores}):
            row.append(f"{self.type_of(value)} *const g{value} = h{value} + i{self.tile};")
        row += self.each_column(self.at_element(stage, "z", "j"))
        if not stage.reductions:
            return [f"for (int64_t i = {start}; i < {end}; i++)", *braced(row)]
        return self.blocks(stage, start, end, ["for (int64_t i = b; i < e; i++)", *braced(row)])

    # Sums in lanes

    def is_light(self, stage: Stage) -> bool:
        """Whether a stage waits for its sums: it takes little at each element, and caches hold what it reads."""
        costs = [made.cost for made in stage.statements if isinstance(made, Statement)]
        sums = all(r.accumulator.sums for r in stage.reductions)
        few = sums and len(stage.reductions) <= LIGHT[0] and sum(costs) <= LIGHT[1]
        return few and self.nest.outer > 0 and not self.nest.split

    def in_lanes(self, stage: Stage) -> Lines:
        """A whole block's sums, in so many lanes that no addition waits for the one before; then joined by halves."""
        lanes, names = LANES // max(r.dtype.itemsize for r in stage.reductions), [r.value for r in stage.reductions]
        lines = [f"{self.type_of(name)} l{name}[{lanes}];" for name in names]
        loop = _simd(f"for (int64_t j = 0; j < {lanes}; j++)")
        lines += [*loop, *braced([f"l{name}[j] = 0;" for name in names])]
        body = ["const int64_t i = c + j;", *self.element(stage, self.access("y", "i", "l{}[j]"))]
        lines += [f"for (int64_t c = b; c < e; c += {lanes})", *braced([*loop, *braced(body)])]
        while lanes > 1:
            lanes //= 2
            joined = [f"l{name}[j] += l{name}[j + {lanes}];" for name in names]
            lines += [*_simd(f"for (int64_t j = 0; j < {lanes}; j++)"), *braced(joined)]
        return lines + [f"p{name} = l{name}[0];" for name in names]

    # Nests whose inner loops are shared out in parts

    def in_parts(self) -> tuple[Lines, Lines]:
        """A function for the parts of each stage, and the outer loops, one index after the other, with the stages."""
        functions: Lines = []
        loops = self.outer_loops()
        arrays, body = self.scratch_pointers(), [*self.outer_pointers(), *self.shares()]
        known = [*arrays, *body]
        for number, stage in enumerate(self.stages):
            name, given = f"walk{number}", [("int64_t ", loop.name) for loop in loops] + self.given(stage)
            members = [f"{type}{member};" for type, member in (("const int64_t *", "a"), *given)]
            functions += [f"struct {name}", *braced(members)[:-1], "};", ""]
            opened = [f"const struct {name} *const given = state;", "const int64_t *const a = given->a;"]
            opened += self.arguments()
            opened += [f"{type}const {member} = given->{member};" for type, member in given]
            functions += part(name, [*opened, *known, *self.part_of(stage)])
            values = ", ".join(["a", *(member for _, member in given)])
            body += [*self.outer(number), *self.opened(stage.reductions)]
            body += [
                f"const struct {name} given{number} = {{{values}}};",
                f"shared({name}, &given{number}, parts, {self.threads()});",
            ]
            added = [line for r in stage.reductions for line in self.added(r, f"q{r.value}{self.part_index()}")]
            body += ["for (int64_t k = 0; k < parts; k++)", *braced(self.each_column(added))] if added else []
        body += self.outer(len(self.stages))
        for loop in reversed(loops):
            body = [f"for (int64_t {loop.name} = 0; {loop.name} < {loop.size}; {loop.name}++)", *braced(body)]
        return functions, [*arrays, *body]

    def given(self, stage: Stage) -> list[tuple[str, str]]:
        """The types and names of the outer index's values that a stage uses."""
        used = {i for made in stage.statements if isinstance(made, Statement) for i in made.arguments}
        if self.column:
            return [(f"const {self.type_of(i)} *", f"v{i}") for i in sorted(used) if self.has_columns(i)]
        return [(f"{self.type_of(i)} ", f"v{i}") for i in sorted(used) if self.nest.level_of(i) == "outer"]

    def part_of(self, stage: Stage) -> Lines:
        """Some of the parts of a stage, whose accumulators `q` takes at the end."""
        n = f"n{self.nest.outer}"
        end = f"const int64_t stop = (k + 1) * size < {n} ? (k + 1) * size : {n};"
        ended = [f"q{r.value}{self.part_index()} = {self.total(r)};" for r in stage.reductions]
        body = [*self.opened(stage.reductions), end, *self.loops(stage, "k * size", "stop"), *self.each_column(ended)]
        if decided := self.decided(stage):  # so are the parts that follow
            body += [f"if ({decided})", "    while (++k < end)"]
            body += [f"    {line}" for line in braced([f"q{r.value}[k] = r{r.value};" for r in stage.reductions])]
        return ["for (int64_t k = begin; k < end; k++)", *braced(body)]

    def part_index(self) -> str:
        return f"[k{self.tile} + j]" if self.column else "[k]"

    def shares(self) -> Lines:
        """How the first inner loop is shared out: a rule of sizes alone, so that sums come out the same."""
        nest = self.nest
        others = "".join(f" / n{axis}" for axis in range(nest.outer + 1, nest.rank)) + " / m" * nest.columns
        n, most = f"n{nest.outer}", PARTS[nest.columns]
        return [
            f"const int64_t least = ({n} + {most - 1}) / {most}, fair = {PART}{others} + 1;",
            "const int64_t size = least > fair ? least : fair;",
            f"const int64_t parts = ({n} + size - 1) / size;",
        ]
