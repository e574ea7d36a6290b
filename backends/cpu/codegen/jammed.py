"""Elementwise nests of which several rows are computed together, so that their taps share loads (unroll-and-jam)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from backends.cpu.codegen.bounded import ZeroRows
from backends.cpu.codegen.transposes import Loop, tiles_along
from backends.execution.printer_common import Lines, grouped, unconditional
from optree.compile.loopnest import LoopNest, Stage

#: A value's name, and what follows in that of a conversion of it.
_VALUE = re.compile(r"\bv(\d+)((?:_\d+)?)\b")


class Jammed(ZeroRows):
    """The part of `JammedPrinter` that prints the statements of several rows.

    A value of row 2 is called ``v5r2``; what is the same in several rows is loaded and computed in the first of them.
    Statements are in the order of the rows that their taps read, so each is used up before the next is loaded.
    A tap's pointer is ``y5r2``.
    """

    #: Those of `CPrinter`.
    condition: Callable[[int], str]
    element_offset: Callable[[int, str], str]

    def __init__(self, nest: LoopNest) -> None:
        super().__init__(nest)
        nest = self.nest
        self.loop, self.is_bounded, self.row, self.all_rows = nest.rank - 2, True, 0, [f"rows == {nest.jammed}"]
        #: From a value and a row to those of its name, and the row that it reads, of the arrays' own.
        self._made: dict[tuple[int, int], tuple[int, int]] = {}
        self._lag: dict[tuple[int, int], int] = {}
        #: The arrays of one element for all of some rows.
        self._invariant = [n for n in self.stages[0].reads if nest.rows[n] and not nest.vector_strides[n]]
        known = dict[tuple[int, int], tuple[int, int]]()
        earliest = min(tap.shared[1] for tap in nest.taps if tap.shared)
        for row in range(nest.jammed):
            for value in range(len(nest.reads) + len(nest.numbers) + len(nest.statements)):
                self._add(value, row, known, earliest)

    def _add(self, value: int, row: int, known: dict[tuple[int, int], tuple[int, int]], earliest: int) -> None:
        nest, found, lag = self.nest, (value, row), 0
        if tap := nest.tap_of(value):
            assert tap.shared is not None
            array, later = tap.shared
            found = known.setdefault((array, later + row), found)
            lag = later + row - earliest
        elif nest.level_of(value) != "inner" or (value < len(nest.reads) and nest.rows[value]):
            found = value, 0
        elif value >= len(nest.reads):
            arguments = nest.statements[value - len(nest.reads) - len(nest.numbers)].arguments  # type: ignore[union-attr]
            if all(self._made[i, row] == self._made[i, 0] for i in arguments):
                found = value, 0
            lag = max((self._lag[i, row] for i in arguments), default=0)
        self._made[value, row], self._lag[value, row] = found, lag

    def taps(self) -> list[tuple[int, int]]:
        return sorted({made for made in self._made.values() if self.nest.tap_of(made[0])})

    def row_flags(self) -> Lines:
        own = [(number, loop) for number, loop in enumerate(self.nest.ranges) if loop == self.loop]
        rows = range(1, self.nest.jammed)
        return super().row_flags() + [
            f"const int is_in{number}_{row} = {super(Jammed, self).in_range(number, f'(i{loop} + after{row})')};"
            for number, loop in own
            for row in rows
        ]

    def in_range(self, number: int, index: str | None) -> str:
        is_own = index is None and self.row and self.nest.ranges[number] == self.loop
        return f"is_in{number}_{self.row}" if is_own else super().in_range(number, index)

    def row_loops(self) -> list[Loop]:
        loops = [Loop(f"i{axis}", f"n{axis}") for axis in range(self.loop)]
        return [*loops, Loop("q", tiles_along(self.loop, self.nest.jammed))]

    def row_pointers(self) -> Lines:
        """Pointers into the arrays at each of some rows: of fewer than all, those that are missing are the last."""
        nest, loop, height, (stage,) = self.nest, self.loop, self.nest.jammed, self.stages
        body = [f"const int64_t i{loop} = q * {height}, below = n{loop} - i{loop};"]
        body += [f"const int64_t rows = below < {height} ? below : {height};", *super().row_pointers()]
        body += [f"const int64_t after{row} = {row} < rows ? {row} : rows - 1;" for row in range(1, height)]
        moved = {made for made in self._made.values() if made[0] < len(nest.reads)}
        moved |= {(array, row) for array, _ in stage.writes for row in range(1, height)}
        body += self.row_flags()

        def known(array: int) -> str | None:
            return self._pointer(array, self.row) if (array, self.row) in moved else None

        for array, self.row in sorted(moved - {(array, 0) for array in range(len(nest.reads) - len(nest.taps))}):
            pointer = f"x{array} + after{self.row} * {self.stride(array, loop)}" if self.row else f"x{array}"
            pointer = self.in_row(array, pointer, known)
            body.append(f"{self.pointer_type(array)}{self._pointer(array, self.row)} = {pointer};")
        body += [f"{self.declared(array)} = {self.loaded(array, f'x{array}', '0')};" for array in self._invariant]
        return body

    def vector_offset(self, array: int, index: str) -> str:
        is_free = self.condition is unconditional  # GCC vectorises no pairs under conditions
        is_of_pairs = is_free and getattr(self.nest.tap_of(array), "is_of_pairs", False)
        return f"2 * {grouped(index)}" if is_of_pairs else super().vector_offset(array, index)

    def at_element(self, stage: Stage, letter: str, index: str) -> Lines:
        nest, lines, loaded = self.nest, Lines(), set[tuple[int, int]]()

        def load(values: Any, row: int) -> None:
            for value in values:
                array, self.row = made = self._made[value, row]
                if array in stage.reads and array not in self._invariant and made not in loaded:
                    loaded.add(made)
                    found = self.loaded(array, self._pointer(array, self.row), self.element_offset(array, index))
                    lines.append(self._of_row(f"{self.declared(array)} = {found};", self.row))

        made = {self._made[s.value, row] for s in stage.statements for row in range(nest.jammed)}
        statements = {s.value: s for s in stage.statements}
        for value, row in sorted(made, key=lambda each: (self._lag[each], *each)):
            load(statements[value].arguments, row)  # type: ignore[union-attr]
            lines += [self._of_row(line, row) for line in self.assigned(statements[value])]  # type: ignore[arg-type]
        for row in range(nest.jammed):
            load([value for _, value in stage.writes], row)
        for row in range(nest.jammed):
            is_there = f"if ({row} < rows) " * (row > 0 and self.condition is not unconditional)
            for array, value in stage.writes:
                target = f"{self._pointer(array, row)}[{self.element_offset(array, index)}]"
                lines.append(f"{is_there}{target} = {self._of_row(self.stored(array, value), row)};")
        return lines

    def _pointer(self, array: int, row: int) -> str:
        name = f"{'y' if self.nest.tap_of(array) else 'x'}{array}"
        return f"{name}r{row}" if row else name

    def _of_row(self, text: str, row: int) -> str:
        """A text with the names that its values have in a row."""

        def named(match: re.Match[str]) -> str:
            value, at = self._made[int(match[1]), row]
            return f"v{value}r{at}{match[2]}" if at else f"v{value}{match[2]}"

        return _VALUE.sub(named, text)
