"""Sums of windows' elements, accumulated in vectors over all rows, several of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backends.cpu.codegen.bounded import ZeroRows, in_two
from backends.execution.printer_common import Lines, braced, unconditional
from optree.compile.loopnest import LoopNest, Reduction, Stage, Statement, added_products

#: The sums that a loop accumulates, and the elements after which their lanes are joined in float64.
SUMS, JOINED = 12, 4096

#: The lanes of a vector of elements of some bytes.
LANES = """#ifdef __AVX512F__
enum {{ LANES = 64 / {0} }};
#else
enum {{ LANES = 32 / {0} }};
#endif
"""


class Lanes(ZeroRows):
    """The part of `LanesPrinter` that prints sums: each is a vector, ``l5``, which rows accumulate."""

    #: Those of `CPrinter`.
    condition: Callable[[int], str]
    access: Any
    part_type: Callable[[Reduction], str]
    part_dtype: Callable[[Reduction], Any]
    accumulated_part: Any
    simd: Callable[[str], Lines]

    def __init__(self, nest: LoopNest) -> None:
        super().__init__(nest)
        self._products, self._is_edge, self._stop = added_products(self.nest), False, ""

    def functions(self) -> tuple[Lines, Lines]:
        functions, body = super().functions()
        size = max(self.part_dtype(r).itemsize for r in self.nest.reductions)
        return [*LANES.format(size).splitlines(), *functions], body

    def initialised(self, reductions: Sequence[Reduction]) -> Lines:
        lanes = [f"{self.part_type(r)} l{r.value}[LANES] = {{0}};" for r in reductions]
        return [*super().initialised(reductions), *lanes, "int64_t filled = 0;"]

    def loops(self, stage: Stage, start: str, end: str) -> Lines:
        self._stop = end
        return super().loops(stage, start, end)  # type: ignore[misc, no-any-return]

    def row_blocks(self, stage: Stage, start: str, end: str) -> Lines:
        """The sums of a row, some at a time, which then is in the cache."""
        nest, last = self.nest, self.last
        lines = [*self.row_flags(), *self._pointers(stage), "int64_t from = b, to = e;"]
        for n in (n for n, loop in enumerate(nest.ranges) if loop == last):
            lines.append(f"from = from > low{n} ? from : low{n}, to = to < high{n} ? to : high{n};")
        lines += ["from = b + (from - b + LANES - 1) / LANES * LANES;", "to = from + (to - from) / LANES * LANES;"]
        lines += ["if (to <= from)", "    from = to = b;"]
        count = -(-len(stage.reductions) // SUMS)
        for number in range(count):
            lines += self._accumulated(self._part_of(stage, stage.reductions[number::count]))
        others = [
            f"i{axis} + 1 == {self._stop if axis == nest.outer else f'n{axis}'}" for axis in range(nest.outer, last)
        ]
        is_last = " && ".join([f"e == {end}", *others])
        joined = [line for r in stage.reductions for line in self._joined(r)]
        lines += ["filled += e - b;", f"if (filled >= {JOINED} || ({is_last}))", *braced(["filled = 0;", *joined])]
        head = f"for (int64_t b = {start}; b < {end}; b += {JOINED})"
        return [head, *braced([f"const int64_t e = b + {JOINED} < {end} ? b + {JOINED} : {end};", *lines])]

    def _pointers(self, stage: Stage) -> Lines:
        """Pointers into a row, or into zeros."""
        lines, made = Lines(), dict[int, str]()
        for array in stage.reads:
            pointer = self.in_row(array, f"y{array}", made.get)
            made[array] = f"z{array}"
            lines.append(f"{self.pointer_type(array)}{made[array]} = {pointer};")
        return lines

    def _part_of(self, stage: Stage, reductions: Sequence[Reduction]) -> Stage:
        """Some of a stage's sums, with what they need."""
        found, made = Stage([]), {s.value: s for s in stage.statements if isinstance(s, Statement)}
        pending, needed = [r.argument for r in reductions], set[int]()
        while pending:
            if (value := pending.pop()) not in needed:
                needed.add(value)
                pending += made[value].arguments if value in made else ()
        found.statements = [*(s for s in stage.statements if s.value in needed), *reductions]
        found.reads = [array for array in stage.reads if array in needed]
        return found

    def _accumulated(self, stage: Stage) -> Lines:
        """The vectors of a row where all taps read, whose loop has sums in registers; and the others."""
        element, loop = self.access("z", "(c + j)", "l{}[j]"), self.simd("for (int j = 0; j < LANES; j++)")
        whole = ["for (int64_t c = from; c < to; c += LANES)", *braced([*loop, *braced(self.element(stage, element))])]
        edge = ["const int left = upper - c < LANES ? upper - c : LANES;"]
        for n in (n for n, loop in enumerate(self.nest.ranges) if loop == self.last):
            edge.append(f"const int first{n} = low{n} - c, final{n} = high{n} - c < left ? high{n} - c : left;")
        self.condition, self._is_edge = self._within, True
        edge += [*loop, *braced(self.element(stage, element))]
        self.condition, self._is_edge = unconditional, False
        rest = ["for (int64_t c = lower; c < upper; c += LANES)", *braced(edge)]
        return [*whole, *in_two(rest, ("b", "from"), ("to", "e"))]

    def _within(self, array: int) -> str:
        """The condition that an array is read at a lane."""
        tap = self.nest.tap_of(array)
        numbers = [n for n in tap.ranges if self.nest.ranges[n] == self.last] if tap else []
        return " & ".join(f"(j >= first{n}) & (j < final{n})" for n in numbers) or "(j < left)"

    def outside(self, array: int) -> str:
        return super().outside(array) if self.nest.tap_of(array) else "0"

    def assigned(self, statement: Statement) -> Lines:
        is_product = statement.value in {product.value for product in self._products.values()}
        return [] if is_product else super().assigned(statement)

    def accumulated(self, r: Reduction, part: str) -> Lines:
        product = self._products.get(r.value)
        if product is None:
            return [f"{part} = {self.combine(r).format(part, self._in_row(r.argument, self.reduced_element(r)))};"]
        add = "multiply_add" if product.dtype.itemsize == 4 else "multiply_add_double"
        factors = [self._in_row(i, self.name(i)) for i in product.arguments]
        return [f"{part} = {add}({', '.join(factors)}, {part});"]

    def _in_row(self, value: int, name: str) -> str:
        """A value that is added, which is 0 at lanes beyond a row: as arrays are read."""
        return f"(j < left ? {name} : 0)" if self._is_edge and value >= len(self.nest.reads) else name

    def _joined(self, r: Reduction) -> Lines:
        part, loop = f"p{r.value}", "for (int j = 0; j < LANES; j++)"
        lines = [f"{self.part_type(r)} {part} = 0;", f"#pragma omp simd reduction(+ : {part})", loop]
        lines += [f"    {part} += l{r.value}[j];", *self.accumulated_part(r, part)]
        return [*lines, *self.simd(loop), f"    l{r.value}[j] = 0;"]
