"""Loop nests: a fused kernel's loads, statements, reductions and stores over an index domain, in no language."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.dtypes import wide_dtype
from optree.op.traits import Accumulator
from optree.records import NamedTuple

#: The least cost of recomputing a value at which it is cached for later stages.
CACHE_COST = 4

#: The dtype of indices.
INDEX = np.dtype("int64")

#: The dtypes of products that are added to their sum with one rounding.
FLOATS = (np.dtype("float32"), np.dtype("float64"))

#: The expression of a statement that reads an array at an index: its arguments are the two.
LOOKUP = "lookup"

#: A call of a function but fabs, in a kernel expression.
FUNCTION = re.compile(r"\b(?!fabs\b)[a-z_]+[0-9]*\(")


class Statement(NamedTuple):
    """An assignment ``value = expression(arguments)``."""

    #: The value's number in the nest: arrays that are read come first, then Python numbers, then statements.
    value: int
    #: The op's kernel expression, of ``{0}``, ``{1}``, ...
    expression: str
    #: The numbers of the operands.
    arguments: tuple[int, ...]
    #: The op's loop dtypes, to which the arguments are converted.
    loop: tuple[np.dtype, ...]
    #: The value's dtype.
    dtype: np.dtype
    #: Whether it is computed ``once``, at each index of the ``outer`` loops, or at each element (``inner``).
    level: str = "inner"
    #: The number of stages that come before it.
    stage: int = 0

    @property
    def cost(self) -> int:
        """An estimate of its instruction count."""
        return 1 + 8 * len(FUNCTION.findall(self.expression)) + 3 * self.expression.count("/")


class Reduction(NamedTuple):
    """A reduction of one value over the inner loops."""

    #: The result's number in the nest.
    value: int
    #: The number of the value that is reduced.
    argument: int
    accumulator: Accumulator
    #: The dtype to which elements are converted: the result's, but where that is an index.
    dtype: np.dtype
    #: The number of the stage that accumulates it.
    stage: int = 0

    @property
    def result(self) -> np.dtype:
        """The result's dtype."""
        return INDEX if self.accumulator.replaces else self.dtype


class Quotient(NamedTuple):
    """An integer division of a loop's index: ``(i + phase) / spacing``."""

    loop: int
    spacing: int
    phase: int


class Spaced(NamedTuple):
    """A tap's index along a loop that is a quotient, or the remainder."""

    #: Its number in `LoopNest.quotients`.
    quotient: int
    is_remainder: bool
    #: The tap reads where the remainder is below it.
    cells: int


class Tap(NamedTuple):
    """A read of another read's array from an offset, with strides of its own."""

    #: The number of the array.
    array: int
    #: The element out of bounds, as a constant of C: nests are equal where all nan are, and none where -0.0 meets 0.0.
    outside: str
    #: The number of an earlier tap of the same array, with the same strides and quotients.
    like: int | None = None
    #: Of `LoopNest.ranges`, those within which it reads.
    ranges: tuple[int, ...] = ()
    #: Its indices along loops that are not the loop's.
    spaced: tuple[Spaced, ...] = ()
    #: In a nest of `LoopNest.jammed` rows, an earlier tap, and after how many rows that reads what this one reads.
    shared: tuple[int, int] | None = None
    #: There, an earlier tap, and how many elements after that this one reads.
    beside: tuple[int, int] | None = None
    #: There, whether its stride along the vector loop is 2, which the source states: compilers then shuffle vectors.
    is_of_pairs: bool = False


class LoopNest(NamedTuple):
    """A fused kernel: statements and reductions over nested loops. Equal nests are printed as equal source."""

    #: The dtypes of the arrays that are read. The last of them are `taps`; those before, `flat_indices`, are flat
    #: indices in C order, computed from strides instead of loaded.
    reads: tuple[np.dtype, ...]
    #: The dtypes of the Python numbers: bool, int64, uint64 or float64; in CUDA, also that of all their uses.
    numbers: tuple[np.dtype, ...]
    #: In topological order; their numbers follow those of the arrays and Python numbers.
    statements: tuple[Statement | Reduction, ...]
    #: The numbers of the values that are stored.
    writes: tuple[int, ...]
    #: The dtypes of the arrays that they are stored in.
    stored: tuple[np.dtype, ...]
    #: The number of loops, after axes that are contiguous together are collapsed.
    rank: int
    #: The number of outer loops; the inner ones are reduced. All loops, in a nest without reductions.
    outer: int
    #: For each array, those read and then those written, the loops that it varies along, as a `Statement`'s level;
    #: ``'base'`` of one that taps and lookups alone read.
    levels: tuple[str, ...]
    #: For each array, those read and then those written, the stride in elements along the vector loop if it is 0 or 1;
    #: -1 if it is known at the call.
    vector_strides: tuple[int, ...]
    #: Whether the vector loop is the innermost outer one; it is the innermost inner one otherwise.
    columns: bool = False
    #: Whether the inner loops are split among threads, where the outer ones are too few.
    split: bool = False
    #: Another loop than the innermost, along which some array is contiguous; -1 where there is none, or the nest
    #: reduces.
    across: int = -1
    #: The number of reads that are flat indices.
    flat_indices: int = 0
    #: The reads that have no array of their own.
    taps: tuple[Tap, ...] = ()
    #: The loops of the ranges of indices in which taps read.
    ranges: tuple[int, ...] = ()
    #: Those that are indices of taps.
    quotients: tuple[Quotient, ...] = ()
    #: Whether tiles of columns are accumulated in registers: in a contraction of few elements, which are in the cache.
    registers: bool = False
    #: Whether each array is the same in all rows of such a tile, or of those that are `jammed`: indices of the loop
    #: around the columns, or around the vector loop. Empty where there is one row.
    rows: tuple[bool, ...] = ()
    #: The sizes of the loops within the first, where the source states them, so that a compiler unrolls them.
    stated: tuple[int, ...] = ()
    #: The rows of an elementwise nest that are computed together, so that their taps share loads (unroll-and-jam).
    jammed: int = 1
    #: Whether the sums of a nest that reads taps are accumulated in vectors over all rows.
    lanes: bool = False

    @property
    def cost(self) -> int:
        """An estimate of the instruction count for each element, at least 1: a copy of one element has no statement."""
        computing = sum(s.cost if isinstance(s, Statement) else 1 for s in self.statements)
        return max(1, computing + sum(level == "inner" for level in self.levels))

    @property
    def reductions(self) -> list[Reduction]:
        return [statement for statement in self.statements if isinstance(statement, Reduction)]

    @property
    def vector(self) -> int:
        """The loop that is vectorised, along which elements are contiguous."""
        return self.outer - 1 if self.columns else self.rank - 1

    @property
    def arrays(self) -> list[np.dtype]:
        """The dtypes of the arrays, those read and then those written."""
        return [*self.reads, *self.stored]

    @property
    def without_memory(self) -> int:
        """The number of reads that have strides and no memory of their own: flat indices and taps."""
        return self.flat_indices + len(self.taps)

    def is_flat_index(self, array: int) -> bool:
        """Whether a read is a flat index, with strides and no memory."""
        return len(self.reads) - self.without_memory <= array < len(self.reads) - len(self.taps)

    def tap_of(self, array: int) -> Tap | None:
        """A read as a tap; None if it is none."""
        first = len(self.reads) - len(self.taps)
        return self.taps[array - first] if first <= array < len(self.reads) else None

    def spaced_along(self, array: int, loop: int) -> Spaced | None:
        """The index of a tap along a loop, where it is a quotient or remainder."""
        spaced = (each for each in getattr(self.tap_of(array), "spaced", ()))
        return next((each for each in spaced if self.quotients[each.quotient].loop == loop), None)

    @property
    def bounds(self) -> list[str]:
        """The names of the words that follow a layout's strides.

        They are the taps' offsets, the ends of the ranges, and the sizes of the arrays where elements are looked up.
        """
        first = len(self.reads) - len(self.taps)
        offsets = [f"o{array}" for array in range(first, len(self.reads))]
        ends = (f"{end}{number}" for number in range(len(self.ranges)) for end in ("low", "high"))
        return [*offsets, *ends, *(f"size{array}" for array in self.tables)]

    @property
    def tables(self) -> list[int]:
        """The arrays where elements are looked up."""
        return sorted({s.arguments[0] for s in self.statements if isinstance(s, Statement) and s.expression == LOOKUP})

    def pointers(self, addresses: Sequence[Any]) -> list[Any]:
        """The pointers of all arrays, from the addresses of those with memory, null for others."""
        count = len(self.reads) - self.without_memory
        return [*addresses[:count], *[0] * self.without_memory, *addresses[count:]]

    def dtype_of(self, value: int) -> np.dtype:
        """The dtype of a value by its number."""
        known = (*self.reads, *self.numbers)
        if value < len(known):
            return known[value]
        made = self.statements[value - len(known)]
        return made.dtype if isinstance(made, Statement) else made.result

    def level_of(self, value: int) -> str:
        """The level of a value by its number; that of a reduction is outer."""
        if value < len(self.reads):
            return self.levels[value]
        if value < len(self.reads) + len(self.numbers):
            return "once"
        statement = self.statements[value - len(self.reads) - len(self.numbers)]
        return statement.level if isinstance(statement, Statement) else "outer"

    def writes_at(self, level: str) -> list[tuple[int, int]]:
        """The arrays that are written at a level, by their numbers among all, and the values stored."""
        first = len(self.reads)
        return [(first + i, value) for i, value in enumerate(self.writes) if self.levels[first + i] == level]

    def statements_at(self, level: str, stage: int = 0) -> list[Statement]:
        """The statements of a level; of the outer one, those that follow a number of stages."""
        return [s for s in self.statements if isinstance(s, Statement) and s.level == level and s.stage == stage]


def products_of(nest: LoopNest) -> dict[int, Statement]:
    """The products of two values that a nest only sums up, by the numbers of these sums, if it does nothing else.

    Such a nest is a contraction: its operands have outer axes of their own.
    """
    uses = [i for s in nest.statements for i in (s.arguments if isinstance(s, Statement) else (s.argument,))]
    made = {s.value: s for s in nest.statements if isinstance(s, Statement) and s.level == "inner"}
    products = {r.value: made[r.argument] for r in nest.reductions if r.argument in made}
    is_alone = len(products) == len(nest.reductions) and "inner" not in nest.levels[len(nest.reads) :]
    are_products = all(
        s.expression == "{0} * {1}"
        and uses.count(s.value) == 1
        and s.dtype in FLOATS
        and all(wide_dtype(nest.dtype_of(i)) == s.dtype for i in s.arguments)
        for s in products.values()
    )
    sums = all(r.accumulator.sums and not r.stage for r in nest.reductions)
    return products if is_alone and are_products and sums else {}


def _products_of_taps(nest: LoopNest) -> dict[int, Statement]:
    """The products of floats with taps that are used once."""
    used = Counter(i for s in nest.statements for i in (s.arguments if isinstance(s, Statement) else (s.argument,)))
    used.update(nest.writes)
    return {
        s.value: s
        for s in nest.statements
        if isinstance(s, Statement)
        and (s.expression, used[s.value]) == ("{0} * {1}", 1)
        and {*s.loop, s.dtype} in ({each} for each in FLOATS)
        and any(map(nest.tap_of, s.arguments))
    }


def with_multiply_adds(nest: LoopNest) -> LoopNest:
    """The nest whose products with taps are added to the other term of their only sum with one rounding, if it is."""
    if not nest.taps or len(stages_of(nest)) > 1:  # values that stages cache stay as they are
        return nest
    products, statements = _products_of_taps(nest), list(nest.statements)
    for number, s in enumerate(statements):
        if isinstance(s, Statement) and s.expression == "{0} + {1}":
            at = next((at for at in (1, 0) if s.arguments[at] in products), None)
            product = None if at is None else products[s.arguments[at]]
            if product is not None and at is not None and {*product.loop, *s.loop} == {s.dtype}:
                add = "multiply_add" if s.dtype == np.float32 else "multiply_add_double"
                arguments = (*product.arguments, s.arguments[1 - at])
                statements[number] = s._replace(
                    expression=f"{add}({{0}}, {{1}}, {{2}})", arguments=arguments, loop=(s.dtype,) * 3
                )
    return nest._replace(statements=tuple(statements))


def added_products(nest: LoopNest) -> dict[int, Statement]:
    """The products with taps that are added to a sum with one rounding, by the numbers of the sums."""
    products = _products_of_taps(nest)
    return {r.value: products[r.argument] for r in nest.reductions if r.argument in products}


def strided_reads(nest: LoopNest) -> list[int]:
    """The arrays that an elementwise nest reads strided, where some are contiguous along `across`."""
    if nest.across < 0:
        return []
    inner = [
        array for array in range(len(nest.reads)) if nest.levels[array] == "inner" and nest.vector_strides[array] < 0
    ]
    return [array for array in inner if not nest.is_flat_index(array)]


class Stage:
    """A pass over the inner loops.

    `statements`: those of each element, in topological order.
    `reads`: the arrays that are read at each element.
    `loads`, `stores`: the values that an earlier stage has cached, and those that are cached for later ones.
    `writes`: the arrays that are written at each element, by their numbers among all, and the values.
    `count`: the number of the nest's stages that it is: two that share a traversal, or one.
    """

    def __init__(self, statements: list[Statement | Reduction], count: int = 1) -> None:
        self.statements, self.count = statements, count
        self.reads: list[int] = []
        self.loads: list[int] = []
        self.stores: list[int] = []
        self.writes: list[tuple[int, int]] = []

    @property
    def reductions(self) -> list[Reduction]:
        return [statement for statement in self.statements if isinstance(statement, Reduction)]


def stages_of(nest: LoopNest, cache: bool = True) -> list[Stage]:
    """The stages of a nest, in order.

    `cache`: whether values that are expensive to recompute are cached for later stages.
    """
    first = len(nest.reads) + len(nest.numbers)
    inner = {s.value: s for s in nest.statements if isinstance(s, Statement) and s.level == "inner"}
    writes = nest.writes_at("inner")
    last = max([s.stage for s in nest.statements if isinstance(s, Reduction) or s.level == "inner"], default=0)
    found: list[Stage] = []
    computed_in: dict[int, Stage] = {}
    for number in range(last + 1):
        stage = Stage([r for r in nest.reductions if r.stage == number])
        stage.writes = [(array, v) for array, v in writes if (inner[v].stage if v in inner else 0) == number]
        pending = [*(r.argument for r in stage.reductions), *(v for _, v in stage.writes)]
        needed: set[int] = set()
        while pending:
            value = pending.pop()
            if value in needed or nest.level_of(value) != "inner":
                continue
            needed.add(value)
            if value < first:
                stage.reads.append(value)
            elif cache and value in computed_in and _is_expensive(value, inner):
                stage.loads.append(value)
                if value not in computed_in[value].stores:
                    computed_in[value].stores.append(value)
            else:
                stage.statements.append(inner[value])
                pending += inner[value].arguments
        computed_in = {**{s.value: stage for s in stage.statements}, **computed_in}
        stage.statements.sort(key=lambda statement: statement.value)
        stage.reads.sort()
        found.append(stage)
    return found


class Online(NamedTuple):
    """The outer value that the sums of a nest's second stage are relative to (`Accumulator.rescaled`).

    They may be accumulated in the same traversal as the first stage.
    """

    #: The value.
    value: int
    #: The reduction of the first stage that it is computed from.
    reduction: Reduction
    #: The outer statements between the two.
    statements: list[Statement]
    #: The sums, and the sum of all elements that each is rescaled by, itself where none are left out. One that is
    #: rescaled by another comes before it.
    sums: list[tuple[Reduction, Reduction]]


def online_of(nest: LoopNest) -> Online | None:
    """Stage two's sums relative to a reduction of stage one; None where its elements need stage one at once."""
    if len(stages := stages_of(nest, cache=False)) < 2:
        return None
    first, second = stages[:2]
    sums = _rescaled_sums(second)
    if first.writes or second.writes or not sums or any(r.accumulator.sums for r in first.reductions):
        return None
    outer = {s.value: s for s in nest.statements_at("outer", 1)}
    reduced = {r.value: r for r in first.reductions}
    used = {i for s in second.statements if isinstance(s, Statement) for i in s.arguments} & {*outer, *reduced}
    pending, found = list(used), set(used)
    while pending:
        new = {i for i in getattr(outer.get(pending.pop()), "arguments", ()) if i in outer or i in reduced} - found
        found |= new
        pending += new
    sources = [reduced[i] for i in found if i in reduced]
    if len(used) != 1 or len(sources) != 1:
        return None
    return Online(used.pop(), sources[0], [outer[i] for i in sorted(found) if i in outer], sums)


def _rescaled_sums(stage: Stage) -> list[tuple[Reduction, Reduction]]:
    """The sums of a stage and those that they are rescaled by (`Online.sums`); none, if one cannot be."""
    arguments = {s.value: s.arguments for s in stage.statements if isinstance(s, Statement)}
    apart, whole = list[tuple[Reduction, Reduction]](), list[tuple[Reduction, Reduction]]()
    for r in stage.reductions:
        if not r.accumulator.rescaled:
            return []
        if "{3}" not in r.accumulator.rescaled:
            whole.append((r, r))
            continue
        sums = [other for other in stage.reductions if other.argument in arguments.get(r.argument, ())]
        if not sums:
            return []
        apart.append((r, sums[0]))
    return apart + whole


def _is_expensive(value: int, inner: dict[int, Statement]) -> bool:
    """Whether a value costs more to recompute from the reads than to cache."""
    total, pending, seen = 0, [value], {value}
    while pending and total < CACHE_COST:
        statement = inner[pending.pop()]
        total += statement.cost
        new = {argument for argument in statement.arguments if argument in inner} - seen
        seen |= new
        pending += new
    return total >= CACHE_COST
