"""C source of loop nests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import prod

import numpy as np

from backends.cpu.codegen.bounded import bounded_columns, bounded_loop
from backends.cpu.codegen.halves import contiguous_halves, narrow_functions
from backends.cpu.codegen.jammed import Jammed
from backends.cpu.codegen.lanes import Lanes
from backends.cpu.codegen.registers import Tiles
from backends.cpu.codegen.searches import FIRST_OF_BOOLS, first_function
from backends.cpu.codegen.transposes import (
    PITCH,
    TILE,
    Loop,
    collapsed,
    tiles_along,
    transpose_functions,
    transposed_reads,
)
from backends.cpu.codegen.vector_math import MATHEMATICS, UNKNOWN, VECTOR_CALL, WIDE_VECTORS, WITH_HEADERS
from backends.cpu.compiler import after_definitions
from backends.execution.printer_common import (
    Access,
    Dialect,
    Lines,
    Printer,
    accumulator_dtype,
    braced,
    complex_types,
    functions_called,
    initial_value,
    narrow_dtypes,
    unconditional,
    without_unused,
)
from optree.compile.loopnest import LoopNest, Reduction, Spaced, Stage, Statement, stages_of, with_multiply_adds
from optree.dtypes import FLOAT16, is_narrow, wide_dtype

#: The least work, in elements times `LoopNest.cost`, that is worth waking threads for, which takes tens of
#: microseconds.
PARALLEL_WORK = 1 << 20

#: The least work that surely takes longer than to wake threads; below, that is measured (`share_short`).
LONG_WORK = 1 << 25

#: The elements that are accumulated in the dtype itself before they join a sum in float64: of rows, whose elements
#: the lanes of a vector share, and of columns.
SUM_BLOCKS = (512, 64)

#: The elements of a block of a row where nothing is summed up, which has no error that grows; and where a block may
#: decide the result, so that the others are not read.
EXTREMES_BLOCK, DECIDING_BLOCK = 4096, 256

#: The elements of a part where the inner loops are split, for any number of threads, and the maximum number of parts:
#: of rows, and of columns.
PART_SIZE = 1 << 16
MAX_PARTS = (1024, 64)

#: The maximum sums and instructions (a function is 8) of a stage that accumulates in several vectors, and their bytes;
#: and the lanes that one expression joins: compilers take a sixth longer for a row's kernel with loops over so few.
LIGHT_STAGE, LANES_BYTES, FEW_LANES = (3, 7), 128, 8

#: The elements of a block in which bools of narrow integers are counted, in bytes: 8 in each lane.
COUNT_BLOCK = 1024

#: The elements of float16 that are converted together, to floats in the cache.
HALVES_BLOCK = 256

#: The columns that are reduced together: in a nest of one stage, whose rows are prefetched in long pieces, and of
#: several, which find rows in the cache again.
COLUMN_TILES = (1024, 64)

NAME = "kernel"

#: The longest row whose extreme's index is found element by element: a search takes longer than so few comparisons.
SHORT_ROW = 32

#: The elements of a single loop that are one index of work sharing.
CHUNK = 1024

#: Work sharing among threads (`backends.cpu.runtime`).
SHARED = """
typedef void part(const void *state, int64_t begin, int64_t end, int64_t thread);

/* `threads` holds their number, and the function that shares work among them (backends/cpu/workers.c). */
static inline void shared(part *run, const void *state, int64_t count, const int64_t *threads)
{
    if (threads[0] > 1)
        ((void (*)(part *, const void *, int64_t, int64_t))threads[1])(run, state, count, threads[0]);
    else
        run(state, 0, count, 0);
}
"""

#: Bools are read as bytes: compilers vectorise no loop over _Bool.
C = Dialect(
    {
        "bool": "_Bool",
        **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
        "float16": "half",
        "bfloat16": "bfloat",
        "float32": "float",
        "float64": "double",
        **{name: name for name in ("complex64", "complex128")},
    },
    byte="uint8_t",
    inline="static inline",
)


def source(nest: LoopNest) -> str:
    """The C source of a nest: a function of one array of 64-bit integers.

    It holds the arrays' addresses, sizes of loops, strides in elements, Python numbers, addresses of scratch arrays,
    the bytes between those of two threads, the number of threads, and the address of the work-sharing function.
    """
    return file_of([nest], parts_of(nest))


def file_of(nests: Sequence[LoopNest], text: str) -> str:
    """A file with the kernels of nests, of which a text is given, after the declarations of what that uses."""
    narrow = list(dict.fromkeys(dtype for nest in nests for dtype in narrow_dtypes(nest)))
    text = "\n".join([f"{SHARED}{narrow_functions(narrow) if narrow else ''}", *complex_types(nests, C), f"{text}\n"])
    made = [each.expression for nest in nests for each in nest.statements if isinstance(each, Statement)]
    text = after_definitions(text, WITH_HEADERS if any(map(UNKNOWN.search, made)) else MATHEMATICS)
    return f"{WIDE_VECTORS * any(map(prefers_wide_vectors, nests))}#include <stdint.h>\n{text}"


def parts_of(nest: LoopNest) -> str:
    """The functions of a nest's kernel, the last of which is the kernel."""
    kind = TilePrinter if nest.registers else LanesPrinter if nest.lanes else CPrinter
    printer = (JammedPrinter if nest.jammed > 1 else kind)(nest)
    functions, body = printer.functions()
    called = transpose_functions(nest) if nest.across >= 0 else []
    called += [*functions_called(nest, C), *printer.searches(), *printer.joins()]
    return "\n".join([*called, *functions, f"void {NAME}(const int64_t *a)", *braced(without_unused(body))])


def prefers_wide_vectors(nest: LoopNest) -> bool:
    """Whether vectors of 512 bits pay: for functions and halves elementwise; for bytes, indices, tiles, reduced."""
    if nest.registers or nest.lanes or nest.jammed > 1:
        return True
    if nest.reductions:
        of_bytes = all(dtype.itemsize == 1 for dtype in nest.reads)
        are_exact = not any(r.accumulator.sums for r in nest.reductions)
        return are_exact and (of_bytes or any(r.accumulator.replaces for r in nest.reductions))
    calls = any(VECTOR_CALL.search(made.expression) for made in nest.statements if isinstance(made, Statement))
    return calls or "float16" in narrow_dtypes(nest)


def scratch_arrays(nest: LoopNest) -> list[tuple[str, int, int]]:
    """The scratch arrays of a nest: letter and value, and the bytes of an element (for columns, of a tile of them).

    ``w`` caches a value at each inner index between stages; ``q`` has an accumulator for each part of a split nest, and
    ``d`` its index, where that is the result.
    """
    found = [
        ("w", value, wide_dtype(nest.dtype_of(value)).itemsize) for stage in stages_of(nest) for value in stage.stores
    ]
    if nest.split:
        found += [("q", r.value, accumulator_dtype(r).itemsize) for r in nest.reductions]
        found += [("d", r.value, r.result.itemsize) for r in nest.reductions if r.accumulator.replaces]
    tile = tile_of(nest) if nest.columns else 1
    return [(letter, value, size * tile) for letter, value, size in found]


def scratch(nest: LoopNest, sizes: Sequence[int]) -> list[int]:
    """The bytes of each scratch array of one thread, for loops of these sizes."""
    parts = MAX_PARTS[nest.columns]
    elements = {"w": prod(sizes[nest.outer :]), "q": parts, "d": parts}
    return [elements[letter] * size for letter, _, size in scratch_arrays(nest)]


def tile_of(nest: LoopNest) -> int:
    """The maximum number of columns that are reduced together."""
    return COLUMN_TILES[len(stages_of(nest)) > 1]


def part(name: str, body: Lines) -> Lines:
    """A function of a flat index's range from `begin` to `end`."""
    head = f"static void {name}(const void *state, int64_t begin, int64_t end, int64_t thread)"
    return [head, *braced(without_unused(["(void)thread;", *body])), ""]


class CPrinter(Printer):
    """A nest in C: threads share the outer loops, and the vector loop is a SIMD loop."""

    dialect = C
    first_column = "c"

    def __init__(self, nest: LoopNest) -> None:
        column, columns = ("j", tile_of(nest)) if nest.columns else ("", 1)
        super().__init__(with_multiply_adds(nest), column=column, columns=columns)
        self.tile = f" * {self.columns}" if nest.columns else ""
        self.scratch = scratch_arrays(nest)
        self.first_scratch = len(nest.arrays) * (1 + nest.rank) + nest.rank + len(nest.bounds) + len(nest.numbers)
        self.is_bounded = bool(nest.ranges or nest.quotients)
        #: The condition that loads of a tap test; and the remainder of the vector loop's index by its taps' spacing, in
        #: the statement that is printed: a number, a variable, or none.
        self.condition: Callable[[int], str] = unconditional
        self.residue = ""
        #: The clauses of the pragmas of loops: their reductions.
        self.clauses = ""
        self.halves = contiguous_halves(nest) if np.dtype("float16") in nest.arrays else []

    def functions(self) -> tuple[Lines, Lines]:
        """The functions of shared work, and the kernel's body."""
        nest, functions, body = self.nest, Lines(), self.arguments()
        if nest.split:
            functions, loops = self.in_parts()
            body += loops
        elif nest.reductions or nest.writes_at("inner"):
            count, loops = self.reduced() if nest.reductions else self.elementwise()
            if count:
                functions += part("shared_loop", ["const int64_t *const a = state;", *self.arguments(), *loops])
                body.append(f"shared(shared_loop, a, {count}, {self.threads()});")
            else:
                body += loops
        return functions, [*body, *self.once_stores()]

    # Arguments

    def arguments(self) -> Lines:
        """The sizes, strides, Python numbers and scratch loops by name, and the loop invariants."""
        nest = self.nest
        steps = len(nest.arrays) + nest.rank
        sizes = [f"a[{len(nest.arrays) + axis}]" for axis in range(nest.rank - len(nest.stated))]
        lines = [f"const int64_t n{axis} = {size};" for axis, size in enumerate([*sizes, *nest.stated])]
        lines += [f"const int64_t s{p}_{axis} = a[{steps + p * nest.rank + axis}];" for p, axis in self.strides()]
        first = steps + len(nest.arrays) * nest.rank
        lines += [f"const int64_t {name} = a[{word}];" for word, name in enumerate(nest.bounds, first)]
        lines += self.numbers()
        lines += [f"char *const t{i} = (char *)a[{self.first_scratch + i}];" for i in range(len(self.scratch))]
        if self.scratch and not nest.split:
            lines.append(f"const int64_t thread_stride = a[{self.first_scratch + len(self.scratch)}];")
        return lines + self.once()

    def base_pointer(self, array: int) -> str:
        return f"({self.pointer_type(array)})a[{array}]"

    def number(self, value: int) -> str:
        first = self.first_scratch - len(self.nest.numbers) - len(self.nest.reads)
        return f"*(const {self.type_of(value)} *)(a + {first + value})"

    def threads(self) -> str:
        """The address of the number of threads and of the work-sharing function."""
        return f"a + {self.first_scratch + len(self.scratch) + 1}"

    def scratch_pointers(self, thread: str = "") -> Lines:
        """The scratch arrays, of each thread or shared."""
        accumulators_types = {r.value: self.dialect.accumulator_type(r) for r in self.nest.reductions}
        lines = []
        for i, (letter, value, _) in enumerate(self.scratch):
            type = accumulators_types[value] if letter == "q" else self.type_of(value)
            lines.append(f"{type} *const {letter}{value} = ({type} *)(t{i}{thread});")
        return lines

    # Columns

    def simd(self, loop: str) -> Lines:
        """The head of a loop that compilers vectorise."""
        return [f"#pragma omp simd{self.clauses}", loop]

    def column_loop(self) -> Lines:
        return self.simd("for (int64_t j = 0; j < m; j++)")

    def element_offset(self, array: int, index: str) -> str:
        """The offset of an element at an index along the vector loop."""
        return self.column_offset(array) if self.column else self.vector_offset(array, index)

    def has_columns(self, value: int) -> bool:
        return super().has_columns(value) and value >= len(self.nest.reads)

    def outer_reads(self, number: int, used: Collection[int]) -> list[int]:
        if not self.column:
            return super().outer_reads(number, used)
        return [array for array in range(len(self.nest.reads)) if self._is_outer(array) and array in used]

    def element_reads(self, stage: Stage) -> list[int]:
        if not self.column:
            return stage.reads
        used = {i for s in stage.statements if isinstance(s, Statement) for i in s.arguments}
        return sorted({*stage.reads, *(i for i in used if i < len(self.nest.reads) and self._is_outer(i))})

    def pointer_to(self, array: int, letter: str) -> str:
        """The pointer into an array at an outer index, or at an inner one, by a letter."""
        return f"x{array}" if self._is_outer(array) else f"{letter}{array}"

    def _is_outer(self, array: int) -> bool:
        return self.nest.levels[array] == "outer"

    # Elements and accumulators

    def access(self, letter: str, index: str, part: str) -> Access:
        """The access to an element at an index of the vector loop, by pointers that begin with a letter."""

        def pointer(array: int) -> str:
            return self.pointer_to(array, letter)

        def load(value: int) -> str:
            if value >= len(self.nest.reads):
                return f"g{value}[{index}]"
            return self.loaded(value, pointer(value), self.element_offset(value, index))

        return Access(
            load,
            lambda r: part.format(r.value),
            lambda value: f"g{value}[{index}] = v{value};",
            lambda array, v: f"{pointer(array)}[{self.element_offset(array, index)}] = {self.stored(array, v)};",
        )

    def at_element(self, stage: Stage, letter: str, index: str) -> Lines:
        return self.element(stage, self.access(letter, index, self.of_column("p{}")))

    def accumulated(self, r: Reduction, part: str) -> Lines:
        if self.column and r.accumulator.replaces:
            new = self.reduced_element(r), f"({self.index_type(r)})(i - b)"
            return self.replaced(r, (part, f"at{r.value}[j]"), new)
        if r.accumulator.replaces and part == f"r{r.value}":  # of a short row
            new = self.reduced_element(r), f"{self.elements_before()} + i"
            return self.replaced(r, (part, f"index{r.value}"), new)
        if self.column and r.accumulator.of_numbers:  # loaded first, or GCC makes a branch of the store
            old = f"o{r.value}"
            combined = self.combine(r).format(old, self.reduced_element(r))
            return [f"const {self.part_type(r)} {old} = {part};", f"{part} = {combined};"]
        element, lines = self.reduced_element(r), Lines()
        if r.accumulator.replaces and not self.is_loaded(r):
            lines.append(f"elements{r.value}[i - b] = {element};")
        if not self.has_flag(r):
            return [*lines, f"{part} = {self.combine(r).format(part, element)};"]
        flag = self.of_column(f"f{r.value}")
        lines.append(f"{part} = {r.accumulator.of_numbers.format(part, element)};")
        return [*lines, f"{flag} |= {element} != {element};"]

    def index_type(self, r: Reduction) -> str:
        """The type of an index within a block, of the size of elements."""
        return f"uint{8 * self.part_dtype(r).itemsize}_t"

    def is_loaded(self, r: Reduction) -> bool:
        """Whether the elements of a row are those of an array, as they are."""
        array, is_read = r.argument, r.argument < len(self.nest.reads) - self.nest.without_memory
        is_row = is_read and not self.column and self.nest.vector_strides[array] == 1
        return is_row and self.nest.levels[array] == "inner" and not is_narrow(self.nest.reads[array])

    def has_flag(self, r: Reduction) -> bool:
        """Whether numbers alone are compared, and a flag says that there is nan: not of columns, each with a flag."""
        return bool(r.accumulator.of_numbers) and not self.column

    def parts(self, stage: Stage) -> Lines:
        """Partial accumulators of a block; for comparisons of numbers alone, with a flag for nan.

        Where an index is the result, also that of each column, or the elements, if they are not an array's.
        """
        found = [(self.part_type(r), f"p{r.value}", initial_value(r)) for r in stage.reductions]
        flags = [("int", f"f{r.value}", "0") for r in stage.reductions if self.has_flag(r)]
        sought = [r for r in stage.reductions if r.accumulator.replaces and not self.is_loaded(r)]
        if self.column:
            return self.variables([*found, *flags, *((self.index_type(r), f"at{r.value}", "0") for r in sought)])
        elements = [f"{self.part_type(r)} elements{r.value}[{self.block(stage)}];" for r in sought]
        return [*self.variables([*found, *flags]), *elements]

    def part_dtype(self, r: Reduction) -> np.dtype:
        """The dtype of a partial accumulator: int32 for a sum of narrow integers, which a block's does not overflow."""
        given = self.nest.dtype_of(r.argument)
        is_small = r.accumulator.sums and given.kind in "biu" and given.itemsize <= 2
        return np.dtype("int32") if is_small else wide_dtype(r.dtype)

    def part_type(self, r: Reduction) -> str:
        return self.dialect.read_type(self.part_dtype(r))

    def reduced_element(self, r: Reduction) -> str:
        name, dtype = self.name(r.argument), self.part_dtype(r)
        if r.accumulator.sums and dtype.kind == "i" and self.nest.dtype_of(r.argument) != dtype:
            return self.dialect.converted(name, dtype)
        return super().reduced_element(r)

    def accumulators(self, r: Reduction) -> list[tuple[str, str, str]]:
        compensation = [("double", f"k{r.value}", "0")] if self._is_compensated(r) else []
        return [*super().accumulators(r), *compensation]

    def accumulated_block(self, r: Reduction) -> Lines:
        """The update of an accumulator by that of a block."""
        part, before = self.of_column(f"p{r.value}"), f"{self.elements_before()} + b"
        if not r.accumulator.replaces or self.column:
            return self.accumulated_part(r, part, f"{before} + at{r.value}[j]")
        total, elements = f"r{r.value}", f"y{r.argument} + b" if self.is_loaded(r) else f"elements{r.value}"
        name = f"{self.part_dtype(r)}({elements}, {part}, e - b)"
        found = f"({part} != {part} ? first_nan_of_{name} : first_{name})" if self.has_flag(r) else f"first_{name}"
        lines = [f"{total} = {part};", f"index{r.value} = {before} + {found};"]
        return [f"if ({r.accumulator.replaces.format(total, part)})", *braced(lines)]

    def accumulated_part(self, r: Reduction, part: str, index: str = "") -> Lines:
        """The update of an accumulator by a partial one, compensated (Neumaier) where it is a sum of float64."""
        total, k, u = self.of_column(f"r{r.value}"), self.of_column(f"k{r.value}"), f"u{r.value}"
        if r.accumulator.replaces:
            return self.replaced(r, (total, self.of_column(f"index{r.value}")), (part, index))
        combined = r.accumulator.combine.format(total, part)
        if not self._is_compensated(r):
            return [f"{total} = {combined};"]
        return [
            f"const double {u} = {combined};",
            f"{k} += fabs({total}) >= fabs({part}) ? ({total} - {u}) + {part} : ({part} - {u}) + {total};",
            f"{total} = {u};",
        ]

    def total(self, r: Reduction) -> str:
        """An accumulator's final value; an infinite or nan sum has no compensation."""
        total, k = super().total(r), self.of_column(f"k{r.value}")
        return f"({k} - {k} == 0 ? {total} + {k} : {total})" if self._is_compensated(r) else total

    @staticmethod
    def _is_compensated(r: Reduction) -> bool:
        """Whether a sum is compensated: of float64, which has no wider accumulator."""
        return r.accumulator.sums and str(r.dtype) == "float64"

    def joins(self) -> Lines:
        """Declarations of OpenMP reductions across a vector's lanes."""
        lines = []
        for r in self.nest.reductions:
            if not r.accumulator.sums and not self.column:
                combined = (r.accumulator.of_numbers or r.accumulator.combine).format("omp_out", "omp_in")
                lines.append(
                    f"#pragma omp declare reduction(join{r.value} : {self.part_type(r)} : omp_out = {combined})"
                    f" initializer(omp_priv = {initial_value(r)})"
                )
        return lines

    def searches(self) -> Lines:
        """The functions that find the index of an extreme in a row."""
        stages = [] if self.column else [stage for stage in self.stages if stage.reductions]
        of_bools = [stage for stage in stages if self.finds_bool(stage)]
        sought = [r for stage in stages if stage not in of_bools for r in stage.reductions if r.accumulator.replaces]
        dtypes = {self.part_dtype(r): self.part_type(r) for r in sought}
        functions = [line for dtype, type in dtypes.items() for line in first_function(dtype, type)]
        return [*functions, *FIRST_OF_BOOLS.splitlines() * bool(of_bools)]

    # Elementwise nests

    def elementwise(self) -> tuple[str, Lines]:
        """The number of indices of work sharing, of all loops but the innermost or chunks of one, and their body."""
        last, (stage,) = self.last, self.stages
        if self.nest.across >= 0:
            return self.tiled()
        pointers = self.row_pointers()
        if not last:
            stop = f"const int64_t stop = end * {CHUNK} < n0 ? end * {CHUNK} : n0;"
            loop = self.vector_loop(stage, f"begin * {CHUNK}", "stop")
            return f"(n0 + {CHUNK - 1}) / {CHUNK}", [*pointers, stop, *loop]
        return collapsed(self.row_loops(), [*pointers, *self.vector_loop(stage, "0", f"n{last}")])

    def row_loops(self) -> list[Loop]:
        """The loops around the vector loop."""
        return [Loop(f"i{axis}", f"n{axis}") for axis in range(self.last)]

    def vector_loop(self, stage: Stage, start: str, end: str) -> Lines:
        """The innermost loop; of float16, in blocks that are converted before and after."""
        if self.is_bounded or not self.halves:
            return self.row_loop(stage, "x", start, end)
        plain, first = self.access("x", "i", ""), len(self.nest.reads)

        def load(value: int) -> str:
            return f"b{value}[j]" if value in self.halves else plain.load(value)

        def store(array: int, value: int) -> str:
            if array not in self.halves:
                return plain.store(array, value)
            is_double = self.nest.dtype_of(value) == np.float64  # a float between would round twice
            found = self.name(value)
            return f"b{array}[j] = {self.dialect.converted(found, FLOAT16) if is_double else found};"

        lines = [f"const int64_t m = {end} - c < {HALVES_BLOCK} ? {end} - c : {HALVES_BLOCK};"]
        lines += [f"float b{array}[{HALVES_BLOCK}];" for array in self.halves]
        lines += [f"widen_halves(x{array} + c, b{array}, m);" for array in self.halves if array < first]
        element = self.element(stage, plain._replace(load=load, store=store))
        lines += [*self.simd("for (int64_t j = 0; j < m; j++)"), *braced(["const int64_t i = c + j;", *element])]
        lines += [f"round_to_halves(b{array}, x{array} + c, m);" for array in self.halves if array >= first]
        return [f"for (int64_t c = {start}; c < {end}; c += {HALVES_BLOCK})", *braced(lines)]

    def row_loop(self, stage: Stage, letter: str, start: str, end: str) -> Lines:
        """The vectorised loop over a row's elements."""
        if self.is_bounded:
            return bounded_loop(self, lambda: self.at_element(stage, letter, "i"), start, end)
        return [*self.simd(f"for (int64_t i = {start}; i < {end}; i++)"), *braced(self.at_element(stage, letter, "i"))]

    def loaded(self, array: int, pointer: str, offset: str) -> str:
        found, spaced, tests = super().loaded(array, pointer, offset), None, [self.condition(array)]
        if self.residue:
            spaced = self.nest.spaced_along(array, self.last)
        if spaced is not None and not spaced.is_remainder:
            remainder, spacing = self.residue_of(spaced)[1], self.nest.quotients[spaced.quotient].spacing
            if remainder.isdecimal() and int(remainder) >= spaced.cells:
                return self.outside(array)
            if not remainder.isdecimal() and spaced.cells < spacing:
                tests.append(f"({remainder} < {spaced.cells})")
        condition = " & ".join(filter(None, tests))
        return f"{condition} ? {found} : {self.outside(array)}" if condition else found

    def vector_index(self, array: int, index: str) -> str:
        spaced = self.nest.spaced_along(array, self.nest.vector)
        if spaced is None or not self.residue:
            return super().vector_index(array, index)
        return self.residue_of(spaced)[spaced.is_remainder]

    def residue_of(self, spaced: Spaced) -> tuple[str, str]:
        """The quotient and the remainder in a statement of one residue."""
        _, spacing, phase = self.nest.quotients[spaced.quotient]
        if not self.residue.isdecimal():
            return "c", self.residue
        quotient, remainder = divmod(int(self.residue) + phase, spacing)
        return f"c + {quotient}", str(remainder)

    def tiled(self) -> tuple[str, Lines]:
        """A nest whose two loops are tiled, so that rows along either stay in the cache."""
        nest, across, last, transposed = self.nest, self.nest.across, self.last, transposed_reads(self.nest)
        tiles = dict(zip((across, last), TILE, strict=True))
        others = [axis for axis in range(last) if axis != across]
        loops = [Loop(f"i{axis}", f"n{axis}") for axis in others]
        loops += [Loop(f"k{axis}", tiles_along(axis, size)) for axis, size in tiles.items()]
        body = [f"const int64_t t{axis} = k{axis} * {size};" for axis, size in tiles.items()]
        body += [f"const int64_t m{x} = n{x} - t{x} < {size} ? n{x} - t{x} : {size};" for x, size in tiles.items()]
        for array in transposed:
            dtype, (down, along) = nest.reads[array], (self.stride(array, axis) for axis in tiles)
            start = self.advanced(array, f"(const bits{dtype.itemsize} *)a[{array}]", others)
            start += f" + t{across} * {down} + t{last} * {along}"
            body.append(f"_Alignas(64) {self.type_of(array)} b{array}[{TILE[0] * PITCH}];")
            tile = f"{start}, {down}, {along}, (bits{dtype.itemsize} *)b{array}, m{across}, m{last}"
            body.append(f"transpose{dtype.itemsize}({tile});")
        row = self.pointers(range(last), ("inner",), f"t{last}", without=transposed)
        for array in transposed:
            row.append(f"{self.pointer_type(array)}x{array} = b{array} + (i{across} - t{across}) * {PITCH};")
        strides = tuple(1 if array in transposed else stride for array, stride in enumerate(nest.vector_strides))
        element = CPrinter(nest._replace(vector_strides=strides)).at_element(self.stages[0], "x", "i")
        row += [*self.simd(f"for (int64_t i = 0; i < m{last}; i++)"), *braced(element)]
        rows = f"for (int64_t i{across} = t{across}; i{across} < t{across} + m{across}; i{across}++)"
        return collapsed(loops, [*body, rows, *braced(row)])

    # Nests that reduce

    def reduced(self) -> tuple[str, Lines]:
        """The number of outer indices, and the loop over them; "" where there are no outer loops."""
        loops = self.outer_loops()
        body = self.outer_body()
        if not loops:
            return "", [*self.scratch_pointers(), *body]
        count, lines = collapsed(loops, body)
        return count, [*self.scratch_pointers(" + thread * thread_stride"), *lines]

    def outer_body(self) -> Lines:
        """The body of the outer loops."""
        return [*self.outer_pointers(), *self.at_outer_index()]

    def outer_loops(self) -> list[Loop]:
        """The outer loops; for columns, the last of them tiled."""
        loops = [Loop(f"i{axis}", f"n{axis}") for axis in range(self.nest.outer - self.nest.columns)]
        return [*loops, Loop("t", tiles_along(self.nest.vector, self.columns))] if self.column else loops

    def outer_pointers(self) -> Lines:
        """Pointers into the arrays at an outer index, and the columns of a tile."""
        lines: Lines = []
        if self.column:
            tile, n = self.columns, f"n{self.nest.vector}"
            lines = [f"const int64_t c = t * {tile}, m = {n} - c < {tile} ? {n} - c : {tile};"]
        axes = range(self.nest.outer - self.nest.columns)
        return lines + self.pointers(axes, ("outer", "inner"), "c" if self.column else "")

    def stage_loops(self, stage: Stage) -> Lines:
        return self.loops(stage, "0", f"n{self.nest.outer}")

    def loops(self, stage: Stage, start: str, end: str) -> Lines:
        """The inner loops, with the bounds of the first of them."""
        nest, last = self.nest, self.last
        axes = range(nest.outer, last)
        bounds = {axis: ("0", f"n{axis}") for axis in range(nest.outer, nest.rank)} | {nest.outer: (start, end)}
        lines, before = self.stage_pointers(stage, axes), self.elements_before()
        for value in sorted({*stage.loads, *stage.stores}):
            moved = "" if before == "0" else f" + {before}{self.tile}"
            lines.append(f"{self.type_of(value)} *const {'h' if self.column else 'g'}{value} = w{value}{moved};")
        lines += (self.column_blocks if self.column else self.row_blocks)(stage, *bounds[last])
        loops = [f"for (int64_t i{x} = {bounds[x][0]}; i{x} < {bounds[x][1]}; i{x}++)" for x in axes]
        return [*loops, *braced(lines)]

    def blocks(self, stage: Stage, start: str, end: str, lines: Lines) -> Lines:
        """The last inner loop in blocks, whose partial accumulators join the others."""
        block = self.block(stage)
        joined = [line for r in stage.reductions for line in (*self.with_nan(r), *self.accumulated_block(r))]
        first = f"const int64_t e = b + {block} < {end} ? b + {block} : {end};"
        body = [first, *self.block_body(stage, [*self.parts(stage), *lines, *self.each_column(joined)])]
        if decided := self.decided(stage):
            body += [f"if ({decided})", "    break;"]
        return [f"for (int64_t b = {start}; b < {end}; b += {block})", *braced(body)]

    def block_body(self, stage: Stage, body: Lines) -> Lines:
        """The accumulation of a block."""
        return body

    def block(self, stage: Stage) -> int:
        """The elements of a block of the last inner loop."""
        if self.counts_bytes(stage):
            return COUNT_BLOCK
        are_cached = any(r.accumulator.replaces and not self.is_loaded(r) for r in stage.reductions)
        if self.nest.columns or are_cached or any(r.accumulator.sums for r in stage.reductions):
            return SUM_BLOCKS[self.nest.columns]
        return DECIDING_BLOCK if self.decided(stage) else EXTREMES_BLOCK

    def decided(self, stage: Stage) -> str:
        """Whether no further element changes what a stage accumulates; empty where that is never known."""
        ends = [f"r{r.value} == {r.accumulator.absorbing}" for r in stage.reductions if r.accumulator.absorbing]
        alone = len(ends) == len(stage.reductions) and not (stage.stores or stage.writes or self.column)
        return " && ".join(ends) if alone else ""

    def with_nan(self, r: Reduction) -> Lines:
        """A partial accumulator, made nan if one of its elements is."""
        part, flag = self.of_column(f"p{r.value}"), self.of_column(f"f{r.value}")
        return [f"{part} = {flag} ? NAN : {part};"] if self.has_flag(r) else []

    def row_blocks(self, stage: Stage, start: str, end: str) -> Lines:
        """The last inner loop, where it is the vector loop."""
        if not stage.reductions:
            return self.row_loop(stage, "y", start, end)
        if self.finds_bool(stage):
            return self.first_bool(stage.reductions[0], start, end)
        names = [(r, "+" if r.accumulator.sums else f"join{r.value}") for r in stage.reductions]
        joins = [f" reduction({join} : p{r.value})" for r, join in names]
        joins += [f" reduction(| : f{r.value})" for r in stage.reductions if r.accumulator.of_numbers]
        self.clauses = "".join(joins)
        lines = self.row_loop(stage, "y", "b", "e")
        self.clauses = ""
        if self.is_light(stage) or self.counts_bytes(stage):
            lines = [f"if (e - b == {self.block(stage)})", *braced(self.in_lanes(stage)), "else", *braced(lines)]
        lines = self.blocks(stage, start, end, lines)
        if self.is_bounded or not all(r.accumulator.replaces for r in stage.reductions):
            return lines
        each = [
            f"for (int64_t i = {start}; i < {end}; i++)",
            *braced(self.element(stage, self.access("y", "i", "r{}"))),
        ]
        return [f"if ({end} - {start} <= {SHORT_ROW})", *braced(each), "else", *braced(lines)]

    def finds_bool(self, stage: Stage) -> bool:
        """Whether all that a stage does is to find the first of an array's bools that is true, or false."""
        (r, *others), writes = stage.reductions, stage.writes or stage.stores
        is_bool = r.accumulator.replaces and self.nest.dtype_of(r.argument) == np.bool_ and self.is_loaded(r)
        return bool(is_bool) and not (others or writes)

    def first_bool(self, r: Reduction, start: str, end: str) -> Lines:
        """The search of a row of bools."""
        sought = r.accumulator.absorbing
        found = f"const int64_t i = {start} + first_of_bools(y{r.argument} + {start}, {end} - {start}, {sought});"
        lines = [f"r{r.value} = {sought};", f"index{r.value} = {self.elements_before()} + i;"]
        return [found, f"if (i < {end} && r{r.value} != {sought})", *braced(lines)]

    def column_blocks(self, stage: Stage, start: str, end: str) -> Lines:
        """The last inner loop, around the vector loop over a tile of columns."""
        last = self.last
        row = [f"const int64_t i{last} = i;", *self.quotients([last]), *self.flags()]
        for array in [*stage.reads, *(array for array, _ in stage.writes)]:
            index = self.index(array, last) if self.nest.spaced_along(array, last) else "i"
            step = f" + {index} * {self.stride(array, last)}" if self.has_stride(array, last) else ""
            row.append(f"{self.pointer_type(array)}z{array} = y{array}{step};")
        for value in sorted({*stage.loads, *stage.stores}):
            row.append(f"{self.type_of(value)} *const g{value} = h{value} + i{self.tile};")
        row += bounded_columns(self, lambda: self.each_column(self.at_element(stage, "z", "j")))
        if not stage.reductions:
            return [f"for (int64_t i = {start}; i < {end}; i++)", *braced(row)]
        return self.blocks(stage, start, end, ["for (int64_t i = b; i < e; i++)", *braced(row)])

    # Sums in lanes

    def is_light(self, stage: Stage) -> bool:
        """Whether the latency of additions bounds a stage: few instructions an element, and rows in the cache.

        Not where bytes are widened: GCC's loop over a few lanes has shuffles for each vector.
        """
        if not self.nest.outer or self.nest.split or self.is_bounded:
            return False
        costs = [made.cost for made in stage.statements if isinstance(made, Statement)]
        sums = all(r.accumulator.sums for r in stage.reductions)
        few = sums and len(stage.reductions) <= LIGHT_STAGE[0] and sum(costs) <= LIGHT_STAGE[1]
        return few and not any(self.is_narrow_integer(value) for value in self.element_reads(stage))

    def is_narrow_integer(self, value: int) -> bool:
        dtype = self.nest.dtype_of(value)
        return dtype.kind in "biu" and dtype.itemsize <= 2

    def counts_bytes(self, stage: Stage) -> bool:
        """Whether all that a stage does is to count bools that it computes from narrow integers."""
        is_narrow = all(self.is_narrow_integer(value) for value in self.element_reads(stage))
        counts = all(r.accumulator.sums and self.nest.dtype_of(r.argument) == np.bool_ for r in stage.reductions)
        are_rows = not (self.is_bounded or self.column)
        return is_narrow and counts and are_rows and not (stage.loads or stage.stores or stage.writes)

    def in_lanes(self, stage: Stage) -> Lines:
        """The sums of a whole block in several vectors, so that additions are independent; then joined."""
        counts, names = self.counts_bytes(stage), [r.value for r in stage.reductions]
        lanes = LANES_BYTES // (1 if counts else max(self.part_dtype(r).itemsize for r in stage.reductions))
        types = ["uint8_t" if counts else self.part_type(r) for r in stage.reductions]
        lines = [f"{type} l{name}[{lanes}];" for type, name in zip(types, names, strict=True)]
        loop = self.simd(f"for (int64_t j = 0; j < {lanes}; j++)")
        lines += [*loop, *braced([f"l{name}[j] = 0;" for name in names])]
        body = ["const int64_t i = c + j;", *self.element(stage, self.access("y", "i", "l{}[j]"))]
        lines += [f"for (int64_t c = b; c < e; c += {lanes})", *braced([*loop, *braced(body)])]
        if counts:
            joins = "".join(f" reduction(+ : p{name})" for name in names)
            joined = [f"p{name} = p{name} + l{name}[j];" for name in names]
            return [*lines, f"#pragma omp simd{joins}", loop[1], *braced(joined)]
        while lanes > FEW_LANES:  # by halves
            lanes //= 2
            joined = [f"l{name}[j] += l{name}[j + {lanes}];" for name in names]
            lines += [*self.simd(f"for (int64_t j = 0; j < {lanes}; j++)"), *braced(joined)]
        sums = {name: [f"l{name}[{j}]" for j in range(lanes)] for name in names}
        while lanes > 1:
            lanes //= 2
            sums = {name: [f"({each[j]} + {each[j + lanes]})" for j in range(lanes)] for name, each in sums.items()}
        return lines + [f"p{name} = {total};" for name, (total,) in sums.items()]

    # Split nests

    def in_parts(self) -> tuple[Lines, Lines]:
        """A function for the parts of each stage, and the sequential outer loops around them."""
        functions: Lines = []
        loops = self.outer_loops()
        arrays, body = self.scratch_pointers(), [*self.outer_pointers(), *self.part_sizes()]
        known = [*arrays, *body]
        for number, stage in enumerate(self.stages):
            name, given = f"stage{number}", [("int64_t ", loop.name) for loop in loops] + self.outer_values(stage)
            members = [f"{type}{member};" for type, member in (("const int64_t *", "a"), *given)]
            functions += [f"struct {name}", *braced(members)[:-1], "};", ""]
            members_read = [f"const struct {name} *const given = state;", "const int64_t *const a = given->a;"]
            members_read += self.arguments()
            members_read += [f"{type}const {member} = given->{member};" for type, member in given]
            functions += part(name, [*members_read, *known, *self.part_of(stage)])
            values = ", ".join(["a", *(member for _, member in given)])
            body += [*self.outer(number), *self.initialised(stage.reductions)]
            body += [
                f"const struct {name} given{number} = {{{values}}};",
                f"shared({name}, &given{number}, parts, {self.threads()});",
            ]
            joined = [
                line
                for r in stage.reductions
                for line in self.accumulated_part(r, f"q{r.value}{self.part_index()}", f"d{r.value}{self.part_index()}")
            ]
            body += ["for (int64_t k = 0; k < parts; k++)", *braced(self.each_column(joined))] if joined else []
        body += self.outer(len(self.stages))
        for loop in reversed(loops):
            body = [f"for (int64_t {loop.name} = 0; {loop.name} < {loop.size}; {loop.name}++)", *braced(body)]
        return functions, [*arrays, *body]

    def outer_values(self, stage: Stage) -> list[tuple[str, str]]:
        """The types and names of the outer values that a stage uses."""
        used = {i for made in stage.statements if isinstance(made, Statement) for i in made.arguments}
        if self.column:
            return [(f"const {self.type_of(i)} *", f"v{i}") for i in sorted(used) if self.has_columns(i)]
        return [(f"{self.type_of(i)} ", f"v{i}") for i in sorted(used) if self.nest.level_of(i) == "outer"]

    def part_of(self, stage: Stage) -> Lines:
        """A range of a stage's parts, whose accumulators are stored in `q`."""
        n = f"n{self.nest.outer}"
        end = f"const int64_t stop = (k + 1) * size < {n} ? (k + 1) * size : {n};"
        at, sought = self.part_index(), [r for r in stage.reductions if r.accumulator.replaces]
        ended = [f"d{r.value}{at} = {self.total(r)};" for r in sought]
        totals = [self.of_column(f"r{r.value}") if r in sought else self.total(r) for r in stage.reductions]
        ended += [f"q{r.value}{at} = {total};" for r, total in zip(stage.reductions, totals, strict=True)]
        loops = self.loops(stage, "k * size", "stop")
        body = [*self.initialised(stage.reductions), end, *loops, *self.each_column(ended)]
        if decided := self.decided(stage):  # so are the parts that follow
            body += [f"if ({decided})", "    while (++k < end)"]
            body += [f"    {line}" for line in braced([f"q{r.value}[k] = r{r.value};" for r in stage.reductions])]
        return ["for (int64_t k = begin; k < end; k++)", *braced(body)]

    def part_index(self) -> str:
        return f"[k{self.tile} + j]" if self.column else "[k]"

    def part_sizes(self) -> Lines:
        """The split of the first inner loop, by sizes alone, so that results do not depend on the number of threads."""
        nest = self.nest
        others = "".join(f" / n{axis}" for axis in range(nest.outer + 1, nest.rank)) + " / m" * nest.columns
        n, most = f"n{nest.outer}", MAX_PARTS[nest.columns]
        return [
            f"const int64_t least = ({n} + {most - 1}) / {most}, fair = {PART_SIZE}{others} + 1;",
            "const int64_t size = least > fair ? least : fair;",
            f"const int64_t parts = ({n} + size - 1) / size;",
        ]


class TilePrinter(Tiles, CPrinter):
    """A contraction in C, whose tiles are accumulated in registers."""


class JammedPrinter(Jammed, CPrinter):
    """An elementwise nest in C, of which several rows are computed together."""


class LanesPrinter(Lanes, CPrinter):
    """Sums of windows' elements in C, which are accumulated in vectors."""
