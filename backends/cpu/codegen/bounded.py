"""C of rows where taps read within bounds, or at quotients of the vector loop's index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from backends.execution.printer_common import Lines, Printer, braced, unconditional
from backends.execution.taps import MOST_ZEROS
from optree.compile.loopnest import Quotient
from optree.records import NamedTuple

#: The maximum remainders of the vector loop's index that are statements of their own.
MOST_RESIDUES = 4

#: The least elements between a row's bounds that have a loop without conditions; the elements of the longest vectors.
SHORT, LONGEST_VECTOR = 8, 16


def bounded_loop(printer: Any, element: Callable[[], Lines], start: str, end: str) -> Lines:
    """A loop without conditions, where all taps read; and one with conditions before and after it, or in its place.

    `printer`: a `CPrinter`.
    `element`: the body at an index, `i`.
    """
    nest, last = printer.nest, printer.last
    along = [n for n, loop in enumerate(nest.ranges) if loop == last]
    lines, rest = printer.flags(), Lines()

    def whole(array: int) -> str:
        within: str = printer.within(array, range(nest.rank), lambda loop: "i" if loop == last else None)
        return within

    schedule = _Spacing.of([each for each in nest.quotients if each.loop == last])
    if schedule is None:
        return [*lines, *_elements(printer, element, (start, end), whole)]
    if schedule.spacing > 1:  # whole multiples of it, and the elements before and after
        lines += [f"int64_t first = {schedule.up(start)}, final = {schedule.down(end)};"]
        lines += ["if (final < first)", f"    first = final = {start};"]
        rest = in_two(_elements(printer, element, ("lower", "upper"), whole), (start, "first"), ("final", end))
        start, end = "first", "final"
    tests = _Tests(printer, along, end)
    rows = [*tests.rows, *printer.all_rows]
    if not rows and not along:
        return [*lines, *_elements(printer, element, (start, end), unconditional, schedule), *rest]
    lines.append(f"int64_t from = {start}, to = {end};")
    for n in along:
        lines.append(f"from = from > low{n} ? from : low{n}, to = to < high{n} ? to : high{n};")
    if schedule.spacing > 1:
        lines.append(f"from = {schedule.up('from')}, to = {schedule.down('to')};")
    size = LONGEST_VECTOR if printer.all_rows and not any(tap.is_of_pairs for tap in nest.taps) else 1
    if size > 1:  # whole vectors: the loop is printed and compiled without those before and after
        lines += [f"from = (from + {size - 1}) / {size} * {size};", f"to = from + (to - from) / {size} * {size};"]
    refusals = [f"to - from < {SHORT * bool(along)}", *(f"!({each})" for each in rows)]
    lines += [f"if ({' || '.join(refusals)})", f"    from = to = {start};"]
    free = _elements(printer, element, ("c", f"c + {size}") if size > 1 else ("from", "to"), unconditional, schedule)
    free = [f"for (int64_t c = from; c < to; c += {size})", *braced(free)] if size > 1 else free
    tested = _elements(printer, element, ("lower", "upper"), tests.condition, schedule)
    return [*lines, *tests.limits(), *free, *in_two(tested, (start, "from"), ("to", end)), *rest]


def bounded_columns(printer: Any, loop: Callable[[], Lines]) -> Lines:
    """A loop over columns; the conditions of taps along other loops are limits of its index, as of `_Tests`."""
    nest, first = printer.nest, len(printer.nest.reads) - len(printer.nest.taps)
    others = [n for n in range(nest.rank) if n != nest.vector]
    rows = {array: printer.within(array, others, lambda loop: None) for array in range(first, len(nest.reads))}
    limits = sorted({*rows.values()} - {""})

    def condition(array: int) -> str:
        row = rows.get(array, "")
        along = printer.within(array, [nest.vector], lambda loop: "(c + j)") if array in rows else ""
        return " & ".join(filter(None, [f"(j < limit{limits.index(row)})" if row else "", along]))

    before, printer.condition = printer.condition, condition
    lines = [*(f"const int64_t limit{n} = {row} ? m : 0;" for n, row in enumerate(limits)), *loop()]
    printer.condition = before
    return lines


def in_two(loop: Lines, before: tuple[str, str], after: tuple[str, str]) -> Lines:
    """A loop from `lower` to `upper`, over two ranges."""
    lower, upper = (f"side ? {later} : {earlier}" for earlier, later in zip(before, after, strict=True))
    bounds = f"const int64_t lower = {lower}, upper = {upper};"
    return ["for (int side = 0; side < 2; side++)", *braced([bounds, *loop])]


class ZeroRows(Printer):
    """The part of a printer whose pointers of taps into rows out of bounds are into zeros."""

    def functions(self) -> tuple[Lines, Lines]:
        functions, body = super().functions()  # type: ignore[misc]
        return [f"static char zeros[{2 * MOST_ZEROS}];", "", *functions], body

    def flags(self) -> Lines:
        return []

    def row_flags(self) -> Lines:
        """The flags of ranges, before the pointers."""
        return super().flags()

    def within(self, array: int, loops: Collection[int], index: Callable[[int], str | None]) -> str:
        return super().within(array, [loop for loop in loops if loop == self.last], index)

    def row_of(self, array: int) -> str:
        """The condition that a tap's row is within bounds."""
        return super().within(array, range(self.last), lambda loop: None)

    def in_row(self, array: int, pointer: str, known: Callable[[int], str | None]) -> str:
        """A pointer into a row, or into zeros; in the row of a tap beside it, by the pointer that is known of that."""
        beside, ahead = getattr(self.nest.tap_of(array), "beside", None) or (-1, 0)
        row, other = self.row_of(array), known(beside)
        if other is not None and row == self.row_of(beside):
            return f"{other} + {ahead}"
        return f"{row} ? {pointer} : ({self.pointer_type(array)})(zeros + {MOST_ZEROS})" if row else pointer


class _Spacing(NamedTuple):
    """The schedule of a vector loop whose quotients have a spacing, for whole multiples of it.

    Each of a few remainders is a statement of its own, so the elements that a tap reads are next to each other, and
    those at which it reads none are known. Many are the vector loop, in which the quotient is constant.
    """

    spacing: int
    phase: int
    is_along: bool

    @classmethod
    def of(cls, quotients: Sequence[Quotient]) -> _Spacing | None:
        """The schedule for the quotients of a loop's index; None if none serves these."""
        spacings, phases = {each.spacing for each in quotients} or {1}, {each.phase for each in quotients} or {0}
        spacing, phase, is_along = max(spacings), max(phases), max(spacings) > MOST_RESIDUES
        if len(spacings) > 1 or (is_along and len(phases) > 1):
            return None
        return cls(spacing, phase * is_along, is_along)

    def up(self, index: str) -> str:
        """The first multiple from an index on."""
        return f"({index} + {self.phase + self.spacing - 1}) / {self.spacing} * {self.spacing} - {self.phase}"

    def down(self, index: str) -> str:
        """The last multiple up to an index."""
        return f"({index} + {self.phase}) / {self.spacing} * {self.spacing} - {self.phase}"

    def loop(self, printer: Any, element: Callable[[], Lines], start: str, end: str) -> Lines:
        """The loop over whole multiples."""
        s, phase = self.spacing, self.phase
        loop = f"for (int64_t c = ({start} + {phase}) / {s}; c < ({end} + {phase}) / {s}; c++)"
        body: Lines = []
        for printer.residue in ["r"] if self.is_along else map(str, range(s)):
            body += braced([f"const int64_t i = c * {s} + {printer.residue} - {phase};", *element()])
        printer.residue = ""
        if self.is_along:
            return [loop, *braced([*printer.simd(f"for (int64_t r = 0; r < {s}; r++)"), *body])]
        return [*printer.simd(loop), *braced(body)]


class _Tests:
    """Conditions of taps as limits of the vector loop's index: GCC vectorises no load whose condition is constant."""

    def __init__(self, printer: Any, along: Sequence[int], end: str) -> None:
        self._end, self._printer = end, printer
        #: By tap and row, of `Printer.row`: the condition along outer loops, and the range along the vector loop.
        self._of: dict[tuple[int, int], tuple[str, int | None]] = {}
        for array, number in printer.taps():
            printer.row = number
            row = printer.within(array, range(printer.last), lambda loop: None)
            ranges = printer.nest.tap_of(array).ranges
            self._of[array, number] = row, next((n for n in along if n in ranges), None)
        #: The conditions along outer loops.
        self.rows = sorted({row for row, _ in self._of.values()} - {""})
        self._limits = list(dict.fromkeys(each for each in self._of.values() if each != ("", None)))

    def condition(self, array: int) -> str:
        """The condition that an array is read at `i`."""
        found = self._of.get((array, self._printer.row), ("", None))
        if found not in self._limits:
            return ""
        _, number = found
        below = f"i < limit{self._limits.index(found)}"
        return below if number is None else f"(i >= low{number}) & ({below})"

    def limits(self) -> Lines:
        """The limits of a row."""
        lines = []
        for n, (row, number) in enumerate(self._limits):
            high = self._end if number is None else f"high{number}"
            lines.append(f"const int64_t limit{n} = {f'{row} ? {high} : 0' if row else high};")
        return lines


def _elements(
    printer: Any,
    element: Callable[[], Lines],
    ends: tuple[str, str],
    condition: Callable[[int], str],
    schedule: _Spacing | None = None,
) -> Lines:
    """A vectorised loop over elements, in which loads of taps test a condition."""
    start, end = ends
    before, printer.condition = printer.condition, condition
    if schedule is not None and schedule.spacing > 1:
        lines = schedule.loop(printer, element, start, end)
    else:
        lines = [*printer.simd(f"for (int64_t i = {start}; i < {end}; i++)"), *braced(element())]
    printer.condition = before
    return lines
