"""The code generator of loop nests, common to all languages.

A nest has a sequence of stages at each outer index. Each stage traverses the inner domain and ends in accumulators;
between stages come the reduced values, and the statements of the outer level that use them. `Printer` prints these in a
`Dialect`. A language's own printer schedules the loops: it assigns outer indices to threads, says how a stage loads,
accumulates and stores elements, and joins the accumulators of several threads.

So a new language needs a `Dialect`, a `Printer` with `base_pointer`, `number` and
`stage_loops` that assembles a function, and a runtime that compiles and launches it.
tests/harness/plain_c.py is a minimal one; the other hooks are for speed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from optree.compile.loopnest import LOOKUP, LoopNest, Reduction, Spaced, Stage, Statement, stages_of
from optree.dtypes import is_complex, is_floating, is_narrow, name_of, real_dtype, wide_dtype
from optree.records import NamedTuple

Lines = list[str]

#: The names of narrow dtypes, which are computed in float32, in sources: ``from_half``, ``to_half``, ``rounded_half``.
NARROW_NAMES = {"float16": "half", "bfloat16": "bfloat"}


class Dialect(NamedTuple):
    """The types and qualifiers of a C-like language."""

    #: From a dtype's name to the type of an array's elements.
    types: Mapping[str, str]
    #: The type in which bools are read from arrays and accumulated.
    byte: str
    #: The qualifiers of a helper function.
    inline: str
    #: The cast to the type of indices, where sizes and strides have another.
    cast: str = ""
    #: The attribute of a type that is aligned to a number of bytes.
    aligned: str = ""
    #: The function of the upper half of a product of 32 bits, where that is quicker than a product of 64.
    upper_product: str = ""

    def type_of(self, dtype: np.dtype) -> str:
        """The type in which values of a dtype are computed."""
        return self.types[name_of(wide_dtype(dtype))]

    def read_type(self, dtype: np.dtype) -> str:
        """The type in which an array's elements are read."""
        return self.byte if dtype == np.bool_ else self.types[name_of(dtype)]

    def part_type(self, reduction: Reduction) -> str:
        """The type of a partial accumulator."""
        return self.read_type(wide_dtype(reduction.dtype))

    def accumulator_type(self, reduction: Reduction) -> str:
        """The type of an accumulator."""
        return self.read_type(accumulator_dtype(reduction))

    def converted(self, expression: str, dtype: np.dtype) -> str:
        """An expression, converted to a dtype; for a narrow one, a float rounded to its precision at once."""
        if is_complex(dtype):  # it has that dtype
            return expression
        if is_narrow(dtype):
            return f"rounded_{NARROW_NAMES[str(dtype)]}({expression})"
        return f"({self.type_of(dtype)}){expression}"


def unpacked(expression: str, dtype: np.dtype) -> str:
    """An array's element, converted to its compute dtype."""
    return f"from_{NARROW_NAMES[str(dtype)]}({expression})" if is_narrow(dtype) else expression


def packed(expression: str, dtype: np.dtype) -> str:
    """A float, rounded to an array's element."""
    return f"to_{NARROW_NAMES[str(dtype)]}({expression})" if is_narrow(dtype) else expression


def narrow_dtypes(nest: LoopNest) -> list[str]:
    """The names of the narrow dtypes of a nest's values."""
    arguments = [dtype for s in nest.statements if isinstance(s, Statement) for dtype in s.loop]
    found = {name_of(dtype) for dtype in (*nest.arrays, *arguments, *(s.dtype for s in nest.statements))}
    return [name for name in NARROW_NAMES if name in found]


def complex_types(nests: Sequence[LoopNest], dialect: Dialect) -> Lines:
    """The types of complex numbers that nests use, and the functions that make them."""
    made = {s.dtype for nest in nests for s in nest.statements}
    used = made.union(*(nest.arrays for nest in nests))
    found = (complex_type(dtype, dialect, dtype in made) for dtype in sorted(filter(is_complex, used), key=str))
    return [line for lines in found for line in lines]


def complex_type(dtype: np.dtype, dialect: Dialect, is_made: bool = True) -> Lines:
    """The type of complex numbers, pairs which compilers keep in registers, and the function of their parts."""
    name, part = dialect.types[str(dtype)], dialect.types[str(real_dtype(dtype))]
    lines = [f"typedef struct {dialect.aligned.format(dtype.itemsize)}{{ {part} re, im; }} {name};", ""]
    function = [f"{dialect.inline} {name} {name}_of({part} re, {part} im)"]
    function += [*braced([f"const {name} z = {{re, im}};", "return z;"]), ""]
    return [*lines, *function * is_made]


def accumulator_dtype(reduction: Reduction) -> np.dtype:
    """The dtype of a reduction's accumulator: float64 for sums of floats."""
    sums = reduction.accumulator.sums and is_floating(reduction.dtype)
    return np.dtype("float64") if sums else wide_dtype(reduction.dtype)


def initial_value(reduction: Reduction) -> str:
    """An accumulator's initial value."""
    dtype = reduction.dtype
    if is_floating(dtype):
        lowest, highest = "-INFINITY", "INFINITY"
    elif dtype.kind == "b":
        lowest, highest = "0", "1"
    else:
        limits, suffix = np.iinfo(dtype), {"int64": "LL", "uint64": "ULL"}.get(str(dtype), "")
        lowest = f"(-{limits.max}{suffix} - 1)" if dtype.kind == "i" else "0"
        highest = f"{limits.max}{suffix}"
    return reduction.accumulator.start.format(lowest=lowest, highest=highest)


def literal(number: Any, dtype: np.dtype) -> str:
    """A Python number as a constant of a dtype that has it, but for narrow floats."""
    if is_floating(dtype):
        if number != number:
            return "(INFINITY - INFINITY)"
        if abs(number) == np.inf:
            return "INFINITY" if number > 0 else "-INFINITY"
        return repr(float(dtype.type(number))) + "f" * (dtype == np.float32)
    if dtype.kind == "b":
        return str(int(bool(number)))
    suffix = {"int64": "LL", "uint64": "ULL"}.get(str(dtype), "u" * (dtype == np.uint32))
    return f"({number + 1}{suffix} - 1)" if number == np.iinfo(dtype).min and number else f"{int(number)}{suffix}"


def unconditional(array: int) -> str:
    """No condition: an array is read at all indices."""
    return ""


def grouped(expression: str) -> str:
    """An expression as a factor."""
    return f"({expression})" if " " in expression else expression


def braced(lines: Lines) -> Lines:
    """Lines, indented in braces."""
    return ["{", *(f"    {line}" if line else line for line in lines), "}"]


_DECLARATION = re.compile(r"\s*(?:const )?(?:(?:unsigned|signed|long) )*\w+(?:<[^>]*>)? \*?(?:const )?\w+ = [^;]*;")

#: The declaration of an array of columns' values, or an assignment to it.
_OF_COLUMNS = re.compile(r"\s*[\w ]+ (v\d+)\[\d+\];|\s*(v\d+)\[\w\] = .*;")

#: The head of a loop or branch, and a pragma that belongs to it.
_HEAD, _PRAGMA = re.compile(r"\s*(for|if) "), re.compile(r"\s*#pragma (unroll|GCC unroll|omp simd)")


def without_unused(lines: Lines) -> Lines:
    """Dead-code elimination: lines without unused declarations and assignments, and without empty loops."""
    named: set[str] = set()
    live: Lines = []
    for line in reversed(lines):
        is_needed = True
        if line.endswith(";"):
            if _DECLARATION.fullmatch(line):
                is_needed = not named.isdisjoint(re.findall(r"(\w+) = ", line))
            elif found := _OF_COLUMNS.fullmatch(line):
                is_needed = (found[1] or found[2]) in named
        elif _HEAD.match(line) and [each.strip() for each in live[-2:]] == ["}", "{"]:
            is_needed = False
            del live[-2:]
        elif _PRAGMA.match(line):
            is_needed = bool(_HEAD.match(live[-1]))
        if is_needed:
            named.update(re.findall(r"\w+", line))
            live.append(line)
    return live[::-1]


# Functions that kernel expressions call, beside those of <math.h>


def functions_called(nest: LoopNest, dialect: Dialect) -> Lines:
    """The functions that a nest's expressions call."""
    return [*integer_functions(nest, dialect), *random_functions(nest, dialect)]


def _functions(file: str, inline: str) -> str:
    """The functions of a file, with a language's qualifiers."""
    return (Path(__file__).parent / "functions" / file).read_text().replace("INLINE", inline)


def quotients(inline: str) -> str:
    """The quotients of 64-bit integers, rounded down, and 0 for a divisor of 0.

    The product with the divisor's reciprocal is at most 2 too small. Compilers hoist the reciprocal out of a loop with
    one divisor, and vectorise the rest.
    """
    return f"\n{_functions('quotients.h', inline)}"


def integer_functions(nest: LoopNest, dialect: Dialect) -> Lines:
    """The functions of integers that a nest calls."""
    called = any("quotient_of_" in s.expression for s in nest.statements if isinstance(s, Statement))
    return quotients(dialect.inline).splitlines() if called else []


# Random numbers

#: The type of products in a round of Philox, and the round: by products of 64 bits, and by the halves of those of 32.
_ROUND = """unsigned long long p, q
    p = 0xD2511F53ULL * a, q = 0xCD9E8D57ULL * c;
    a = (unsigned int)(q >> 32) ^ b ^ k, b = (unsigned int)q;
    c = (unsigned int)(p >> 32) ^ d ^ l, d = (unsigned int)p;
    k += 0x9E3779B9U, l += 0xBB67AE85U;
"""
_ROUND_BY_HALVES = """unsigned int p, q, r
    p = {upper}(0xD2511F53U, a), q = {upper}(0xCD9E8D57U, c), r = 0xD2511F53U * a;
    a = q ^ b ^ k, b = 0xCD9E8D57U * c;
    c = p ^ d ^ l, d = r;
    k += 0x9E3779B9U, l += 0xBB67AE85U;
"""


def random_functions(nest: LoopNest, dialect: Dialect) -> Lines:
    """The Philox functions that a nest calls, of a draw's seed and counter and a flat index."""
    expressions = (s.expression for s in nest.statements if isinstance(s, Statement))
    called = {name for expression in expressions for name in re.findall(r"philox_\w+", expression)}
    if not called:
        return []
    pair, *draws = _functions("philox.h", dialect.inline).split("\n\n")
    upper = dialect.upper_product
    numbers, _, step = (_ROUND_BY_HALVES.format(upper=upper) if upper else _ROUND).partition("\n")
    pair = pair.replace("NUMBERS", numbers).replace("    ROUNDS\n", step * 10)
    wanted = [text for text in draws if not called.isdisjoint(re.findall(r"philox_\w+", text))]
    return [line for text in (pair, *wanted) for line in (*text.splitlines(), "")]


class Access(NamedTuple):
    """The expressions by which one element is loaded, accumulated and stored."""

    #: From an array that is read, or a value that an earlier stage has cached, to the expression that loads it.
    load: Callable[[int], str]
    #: From a reduction to the name of its partial accumulator.
    part: Callable[[Reduction], str]
    #: From a value that later stages need to the statement that caches it.
    cache: Callable[[int], str]
    #: From an array that is written and its value to the statement that stores an element.
    store: Callable[[int, int], str]


class Printer:
    """The source of a loop nest in a dialect.

    Arrays are called ``a``, pointers to their elements at an outer index ``x`` and in a stage ``y``, the sizes of
    loops ``n``, strides ``s``, values ``v`` and accumulators ``r``, each with its number.

    `cache`: whether values that are expensive to recompute are cached for later stages.

    `stages`: list of Stage.
    `traversals`: the same, but for those that share a traversal.
    `last`: the innermost loop.
    `column`: the index among the columns that a thread computes together; empty where there is one.
    `columns`: the maximum number of these columns.
    `first_column`: the index of the first of these columns.
    """

    dialect: Dialect
    first_column = ""

    def __init__(self, nest: LoopNest, cache: bool = True, column: str = "", columns: int = 1) -> None:
        self.nest, self.stages = nest, stages_of(nest, cache)
        self.traversals = self.stages
        self.last = nest.rank - 1
        self.column, self.columns = column, columns
        #: Of rows that are computed together, the one that is printed; and the condition that there are all of them.
        self.row, self.all_rows = 0, list[str]()

    # Hooks of languages

    def base_pointer(self, array: int) -> str:
        """The pointer to an array's first element."""
        return f"a{array}"

    def number(self, value: int) -> str:
        """The expression of a Python number among the kernel's arguments."""
        return f"({self.type_of(value)})c{value}"

    def start(self, array: int) -> str:
        """The pointer to an array's element at index 0; of a tap, into the array that it is of."""
        tap = self.nest.tap_of(array)
        return (
            self.base_pointer(array) if tap is None else f"{self.base_pointer(tap.array)} + {self.dialect.cast}o{array}"
        )

    def column_loop(self) -> Lines:
        """The head of the loop over columns."""
        raise NotImplementedError

    def stage_loops(self, stage: Stage) -> Lines:
        """The inner loops of a stage, around `element`."""
        raise NotImplementedError

    def joined(self, stage: Stage) -> Lines:
        """The reduction across the threads that share a stage."""
        return []

    def by_one_thread(self, lines: Lines) -> Lines:
        """Stores at an outer index, executed by one of the threads that share it."""
        return lines

    # Arrays

    def pointer_type(self, array: int) -> str:
        """The type of a pointer into an array, const where it is only read; of flat indices, that of an offset."""
        if self.nest.is_flat_index(array):
            return f"const {self.dialect.types['int64']} "
        if array >= len(self.nest.reads):
            return f"{self.dialect.types[name_of(self.nest.arrays[array])]} *"
        return f"const {self.dialect.read_type(self.nest.reads[array])} *"

    def has_stride(self, array: int, axis: int) -> bool:
        """Whether an array's stride along a loop is an argument: neither 0 by its level nor known by the nest."""
        level = self.nest.levels[array]
        known = axis == self.nest.vector and self.nest.vector_strides[array] >= 0
        return not known and level not in ("once", "base") and (level == "inner" or axis < self.nest.outer)

    def strides(self) -> Iterator[tuple[int, int]]:
        """The arrays and axes of all strides that are arguments."""
        pairs = ((array, axis) for array in range(len(self.nest.arrays)) for axis in range(self.nest.rank))
        likes = [array for array in range(len(self.nest.reads)) if getattr(self.nest.tap_of(array), "like", None)]
        return (pair for pair in pairs if pair[0] not in likes and self.has_stride(*pair))

    def stride(self, array: int, axis: int) -> str:
        tap = self.nest.tap_of(array)
        return f"{self.dialect.cast}s{array if tap is None or tap.like is None else tap.like}_{axis}"

    def advanced(self, array: int, base: str, axes: Sequence[int]) -> str:
        """A pointer, offset by the indices of some loops."""
        axes = [axis for axis in axes if self.has_stride(array, axis)]
        return base + "".join(f" + {self.index(array, axis)} * {self.stride(array, axis)}" for axis in axes)

    def index(self, array: int, axis: int) -> str:
        """An array's index along an outer loop: the loop's, or a quotient or remainder (`quotients`)."""
        spaced = self.nest.spaced_along(array, axis)
        return f"i{axis}" if spaced is None else f"{'rest' if spaced.is_remainder else 'quotient'}{spaced.quotient}"

    def quotients(self, axes: Sequence[int]) -> Lines:
        """The quotients and remainders of some loops' indices."""
        return [
            f"const {self.loop_type} {name}{n} = (i{loop} + {phase}) {sign} {spacing};"
            for n, (loop, spacing, phase) in enumerate(self.nest.quotients)
            for name, sign in (("quotient", "/"), ("rest", "%"))
            if loop in axes
        ]

    def vector_offset(self, array: int, index: str) -> str:
        """The offset of an index along the vector loop."""
        index = self.vector_index(array, index)
        strided = f"{grouped(index)} * {self.stride(array, self.nest.vector)}"
        return {0: "0", 1: index}.get(self.nest.vector_strides[array], strided)

    def vector_index(self, array: int, index: str) -> str:
        """An array's index along the vector loop, of the loop's."""
        spaced = self.nest.spaced_along(array, self.nest.vector)
        return index if spaced is None else self.divided(spaced, index, "%" if spaced.is_remainder else "/")

    def divided(self, spaced: Spaced, index: str, sign: str = "%") -> str:
        """The quotient or remainder of an index."""
        _, spacing, phase = self.nest.quotients[spaced.quotient]
        return f"({index} + {phase}) {sign} {spacing}"

    def column_offset(self, array: int) -> str:
        """The offset of a column from the first; where the index is a quotient, from the array's first element."""
        if self.column and self.nest.spaced_along(array, self.nest.vector):
            return self.vector_offset(array, f"({self.first_column} + {self.column})")
        return self.vector_offset(array, self.column) if self.column else "0"

    def pointers(
        self, axes: Sequence[int], levels: Collection[str], vector: str = "", without: Collection[int] = ()
    ) -> Lines:
        """Pointers into the arrays of some levels, at the indices of some loops and, if given, of the vector loop."""
        lines = self.quotients(axes)
        for array, level in enumerate(self.nest.levels):
            if level in levels and array not in without:
                tap = self.nest.tap_of(array)
                if tap is not None and tap.like is not None:
                    cast = self.dialect.cast
                    beside, ahead = tap.beside or (tap.like, f"({cast}o{array} - {cast}o{tap.like})")
                    pointer = f"x{beside} + {ahead}"
                    lines.append(f"{self.pointer_type(array)}x{array} = {pointer};")
                    continue
                pointer = self.advanced(array, self.start(array), axes)
                is_later = not vector or (self.column and self.nest.spaced_along(array, self.nest.vector))
                offset = "0" if is_later else self.vector_offset(array, vector)
                pointer += "" if offset == "0" else f" + {offset}"
                lines.append(f"{self.pointer_type(array)}x{array} = {pointer};")
        return lines

    def row_pointers(self) -> Lines:
        """Pointers into the arrays at an index of the loops around the vector loop."""
        return self.pointers(range(self.last), ("inner",))

    def stage_pointers(self, stage: Stage, axes: Sequence[int]) -> Lines:
        """Pointers into the arrays that a stage reads and writes, at the indices of some inner loops."""
        arrays = [*stage.reads, *(array for array, _ in stage.writes)]
        pointers = [f"{self.pointer_type(p)}y{p} = {self.advanced(p, f'x{p}', axes)};" for p in arrays]
        return [*self.quotients(axes), *pointers]

    def loaded(self, array: int, pointer: str, offset: str) -> str:
        """An array's element, converted to its compute dtype; of flat indices, the index itself."""
        if self.nest.is_flat_index(array):
            return f"{pointer} + {offset}"
        return unpacked(f"{pointer}[{offset}]", self.nest.reads[array])

    def within(self, array: int, loops: Collection[int], index: Callable[[int], str | None]) -> str:
        """The condition along some loops that a tap reads; empty if it always does.

        `index`: from a loop to its index; None where the condition along it is a flag (`flags`).
        """
        nest, tap = self.nest, self.nest.tap_of(array)
        if tap is None:
            return ""
        conditions = [self.in_range(n, index(nest.ranges[n])) for n in tap.ranges if nest.ranges[n] in loops]
        for spaced in tap.spaced:
            loop, spacing, _ = nest.quotients[spaced.quotient]
            if spaced.cells < spacing and loop in loops:
                conditions.append(self.in_cells(spaced, index(loop)))
        return " & ".join(conditions)

    def in_cells(self, spaced: Spaced, index: str | None) -> str:
        """The condition that a remainder is below a tap's cells."""
        return f"({f'rest{spaced.quotient}' if index is None else self.divided(spaced, index)} < {spaced.cells})"

    def in_range(self, number: int, index: str | None) -> str:
        """The condition that an index is in a range; the name of its flag without one."""
        cast = self.dialect.cast
        return f"is_in{number}" if index is None else f"({index} >= {cast}low{number}) & ({index} < {cast}high{number})"

    def taps(self) -> list[tuple[int, int]]:
        """The taps that are loaded, and the row of each."""
        return [(array, 0) for array in range(len(self.nest.reads) - len(self.nest.taps), len(self.nest.reads))]

    def flags(self) -> Lines:
        """The flags of ranges of all loops but the vector loop."""
        outer = ((number, loop) for number, loop in enumerate(self.nest.ranges) if loop != self.nest.vector)
        return [f"const int is_in{number} = {self.in_range(number, f'i{loop}')};" for number, loop in outer]

    def outside(self, array: int) -> str:
        """A tap's element out of bounds."""
        tap = self.nest.tap_of(array)
        assert tap is not None
        return tap.outside

    # Values

    @property
    def loop_type(self) -> str:
        """The type of indices."""
        return self.dialect.cast.strip("()") or self.dialect.types["int64"]

    def type_of(self, value: int) -> str:
        return self.dialect.type_of(self.nest.dtype_of(value))

    def of_column(self, name: str) -> str:
        """A variable, or its element where each column has one."""
        return f"{name}[{self.column}]" if self.column else name

    def has_columns(self, value: int) -> bool:
        """Whether each column of an outer index has such a value."""
        return bool(self.column) and self.nest.level_of(value) == "outer"

    def column_arrays(self, values: Sequence[int]) -> Lines:
        """The declarations of those values that each column has."""
        return [f"{self.type_of(value)} v{value}[{self.columns}];" for value in values if self.has_columns(value)]

    def name(self, value: int) -> str:
        return self.of_column(f"v{value}") if self.has_columns(value) else f"v{value}"

    def declared(self, value: int) -> str:
        """The left side of a value's assignment; those of columns are declared before."""
        return self.name(value) if self.has_columns(value) else f"const {self.type_of(value)} v{value}"

    def stored(self, array: int, value: int) -> str:
        """A value, converted to an array's element."""
        return packed(self.name(value), self.nest.arrays[array])

    def assigned(self, statement: Statement) -> Lines:
        """A statement, its arguments first converted to the op's loop dtypes."""
        if statement.expression == LOOKUP:
            table, index = statement.arguments[0], self.name(statement.arguments[1])
            found = f"{index} >= 0 && {index} < size{table} ? {self.loaded(table, f'k{table}', index)} : 0"
            return [f"{self.declared(statement.value)} = {found};"]
        dialect, lines, names = self.dialect, [], []
        for i, (argument, dtype) in enumerate(zip(statement.arguments, statement.loop, strict=True)):
            found = self.name(argument)
            given = self.nest.dtype_of(argument)
            if dtype not in (given, wide_dtype(given)):
                found = f"(int){found}" if given == np.bool_ else found  # GCC does not vectorise _Bool
                lines.append(
                    f"const {dialect.type_of(dtype)} v{statement.value}_{i} = {dialect.converted(found, dtype)};"
                )
                found = f"v{statement.value}_{i}"
            names.append(found)
        expression = statement.expression.replace("(T)", f"({dialect.type_of(statement.dtype)})").format(*names)
        found = dialect.converted(f"({expression})", statement.dtype)
        return [*lines, f"{self.declared(statement.value)} = {found};"]

    # Loop invariants

    def numbers(self) -> Lines:
        """The declarations of Python numbers."""
        first = len(self.nest.reads)
        values = range(first, first + len(self.nest.numbers))
        return [f"{self.declared(value)} = {self.number(value)};" for value in values]

    def once(self) -> Lines:
        """The loop invariants: reads and statements that depend on no index, and the arrays of lookups."""
        lines = [
            f"{self.pointer_type(array)}const k{array} = {self.base_pointer(array)};" for array in self.nest.tables
        ]
        for array in range(len(self.nest.reads)):
            if self.nest.levels[array] == "once":
                load = unpacked(f"*{self.base_pointer(array)}", self.nest.reads[array])
                lines.append(f"{self.declared(array)} = {'0' if self.nest.is_flat_index(array) else load};")
        return lines + [line for statement in self.nest.statements_at("once") for line in self.assigned(statement)]

    def once_stores(self) -> Lines:
        return [
            f"*{self.base_pointer(array)} = {self.stored(array, value)};"
            for array, value in self.nest.writes_at("once")
        ]

    # Elements

    def element(self, stage: Stage, access: Access) -> Lines:
        """The body of a stage: loads, statements, accumulation and stores of one element."""
        values = [*self.element_reads(stage), *stage.loads]
        lines = [f"{self.declared(value)} = {access.load(value)};" for value in values]
        for statement in stage.statements:
            if isinstance(statement, Reduction):
                lines += self.accumulated(statement, access.part(statement))
            else:
                lines += self.assigned(statement)
        lines += [access.cache(value) for value in stage.stores]
        return lines + [access.store(array, value) for array, value in stage.writes]

    def element_reads(self, stage: Stage) -> list[int]:
        """The arrays that are read at each element."""
        return stage.reads

    def combine(self, r: Reduction) -> str:
        """The expression that combines two parts of a reduction."""
        return r.accumulator.combine

    def accumulated(self, r: Reduction, part: str) -> Lines:
        """The update of an accumulator by one element."""
        if r.accumulator.replaces:
            position = f"{self.elements_before()} + i{self.last}"
            return self.replaced(r, (part, f"index{r.value}"), (self.reduced_element(r), position))
        return [f"{part} = {self.combine(r).format(part, self.reduced_element(r))};"]

    def replaced(self, r: Reduction, old: tuple[str, str], new: tuple[str, str]) -> Lines:
        """The update of an extreme and its index by a later one's, without a branch."""
        known, later = f"o{r.value}", f"is_later{r.value}"
        lines = [f"const {self.dialect.part_type(r)} {known} = {old[0]};"]
        lines.append(f"const int {later} = {r.accumulator.replaces.format(known, new[0])};")
        lines.append(f"{old[0]} = {later} ? {new[0]} : {known};")
        return [*lines, f"{old[1]} = {later} ? {new[1]} : {old[1]};"]

    def elements_before(self) -> str:
        """The number of elements that precede those of the last inner loop, in C order."""
        before = "0"
        for axis in range(self.nest.outer, self.last):
            before = f"({before} + i{axis}) * n{axis + 1}" if before != "0" else f"i{axis} * n{axis + 1}"
        return before

    def reduced_element(self, r: Reduction) -> str:
        """An element, converted to the dtype that a reduction accumulates."""
        name, dtype = self.name(r.argument), r.dtype
        return name if self.nest.dtype_of(r.argument) == dtype else self.dialect.converted(name, dtype)

    # Accumulators

    def accumulators(self, r: Reduction) -> list[tuple[str, str, str]]:
        """The types, names and initial values of a reduction's accumulators."""
        index = (self.dialect.types["int64"], f"index{r.value}", "0")
        extreme = (self.dialect.accumulator_type(r), f"r{r.value}", initial_value(r))
        return [extreme, index] if r.accumulator.replaces else [extreme]

    def initialised(self, reductions: Sequence[Reduction]) -> Lines:
        """The accumulators' declarations and initial values."""
        return [line for r in reductions for line in self.variables(self.accumulators(r))]

    def variables(self, variables: Sequence[tuple[str, str, str]]) -> Lines:
        """Declarations of variables by type, name and initial value, one for each column."""
        if not self.column:
            return [f"{type} {name} = {value};" for type, name, value in variables]
        arrays = [f"{type} {name}[{self.columns}];" for type, name, _ in variables]
        return [*arrays, *self.each_column([f"{self.of_column(name)} = {value};" for _, name, value in variables])]

    def each_column(self, lines: Lines) -> Lines:
        """Lines for each column, where there are several."""
        return [*self.column_loop(), *braced(lines)] if self.column and lines else lines

    def total(self, r: Reduction) -> str:
        """An accumulator's final value."""
        return self.of_column(f"{'index' if r.accumulator.replaces else 'r'}{r.value}")

    # Outer indices

    def at_outer_index(self) -> Lines:
        """The stages of an outer index, and the statements between them."""
        lines = self.outer(0)
        for stage in self.traversals:
            lines += [*self.initialised(stage.reductions), *self.stage_loops(stage)]
            for number in self.completed(stage):
                lines += [*self.joined(self.stages[number - 1]), *self.outer(number)]
        return lines

    def completed(self, stage: Stage) -> range:
        """The numbers of stages that are complete, one after the other, when a traversal is."""
        before = sum(each.count for each in self.traversals[: self.traversals.index(stage)])
        return range(before + 1, before + 1 + stage.count)

    def outer(self, number: int) -> Lines:
        """The reduced values and statements of an outer index that follow a number of stages."""
        nest = self.nest
        done = self.stages[number - 1].reductions if number else []
        statements = nest.statements_at("outer", number)
        stores = nest.writes_at("outer") if number == len(self.stages) else []
        reads = self.outer_reads(number, {i for s in statements for i in s.arguments} | {value for _, value in stores})
        lines = [f"{self.declared(p)} = {self.loaded(p, f'x{p}', self.column_offset(p))};" for p in reads]
        for r in done:
            real = "float" if self.accumulators(r)[0][0] == "float" else "double"
            count = " * ".join(f"({real})n{axis}" for axis in range(nest.outer, nest.rank))
            value = f"({r.accumulator.finish.format(self.total(r), count=f'({count})')})"
            lines.append(f"{self.declared(r.value)} = {self.dialect.converted(value, r.result)};")
        lines += [line for statement in statements for line in self.assigned(statement)]
        if stores:
            lines += self.by_one_thread(
                [f"x{array}[{self.column_offset(array)}] = {self.stored(array, value)};" for array, value in stores]
            )
        values = [*reads, *(r.value for r in done), *(s.value for s in statements)]
        return [*self.column_arrays(values), *self.each_column(lines)]

    def outer_reads(self, number: int, used: Collection[int]) -> list[int]:
        """The arrays that are read at an outer index after a number of stages."""
        levels = self.nest.levels[: len(self.nest.reads)]
        return [array for array, level in enumerate(levels) if level == "outer" and number == 0]
