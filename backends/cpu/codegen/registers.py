"""Contractions of few elements, whose tiles of rows and columns are accumulated in registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backends.cpu.codegen.transposes import Loop, tiles_along
from backends.execution.printer_common import Lines, Printer, braced, without_unused
from optree.compile.loopnest import LoopNest, Reduction, Stage, Statement, products_of

#: The columns that are accumulated together: as many as there are, as a sum of these, which the compiler knows.
REGISTER_TILES = (32, 16, 8, 4, 2, 1)

#: The rows of a tile, and of a tile of fewer rows.
ROWS = (4, 1)

#: The elements of the columns of a tile that are packed: those of the longest that are accumulated in registers.
PACKED = 1 << 13


class Tiles(Printer):
    """The part of `TilePrinter` that prints tiles: each outer index is one of 4 rows and 32 columns.

    Without `LoopNest.rows` it has one row.
    """

    #: Those of `CPrinter`.
    arguments: Any
    outer_values: Any
    pointer_to: Any

    def __init__(self, nest: LoopNest) -> None:
        super().__init__(nest)
        self.width, self.row = REGISTER_TILES[0], nest.outer - 2
        self.column, self.columns = ("u", self.width * ROWS[0]) if nest.rows else ("j", self.width)
        reads = [array for array, level in enumerate(nest.levels[: len(nest.reads)]) if level == "inner"]
        #: The arrays whose columns are the same for all rows and not contiguous: they are packed once for all rows.
        self.packed = [
            array for array in reads if any(nest.rows) and nest.rows[array] and nest.vector_strides[array] < 0
        ]
        self.packed = [] if nest.rank - nest.outer > 1 else self.packed
        #: The products by their sums, and by their own numbers; and the functions of a block of them.
        self.products, self._tiles = products_of(nest), Lines()
        self._summed = {product.value for product in self.products.values()}

    def functions(self) -> tuple[Lines, Lines]:
        functions, body = super().functions()  # type: ignore[misc]
        return [*self._tiles, *functions], body

    # Elements

    def each_column(self, lines: Lines) -> Lines:
        if not (self.nest.rows and lines):
            return super().each_column(lines)
        row = super().each_column([f"const int64_t u = r * {self.width} + j;", *lines])
        return ["for (int64_t r = 0; r < rows; r++)", *braced(row)]

    def column_offset(self, array: int) -> str:
        return self.element_offset(array, "j")

    def vector_offset(self, array: int, index: str) -> str:
        return index if array in self.packed else super().vector_offset(array, index)

    def stride(self, array: int, axis: int) -> str:
        return "pitch" if array in self.packed and axis == self.last else super().stride(array, axis)

    def has_stride(self, array: int, axis: int) -> bool:
        is_same = bool(self.nest.rows) and axis == self.row and self.nest.rows[array]
        return not is_same and super().has_stride(array, axis)

    def element_offset(self, array: int, index: str, row: str = "r") -> str:
        offset = self.vector_offset(array, index)
        if not (self.nest.rows and self.has_stride(array, self.row)):
            return offset
        return f"{row} * {self.stride(array, self.row)} + {offset}"

    def assigned(self, statement: Statement) -> Lines:
        return [] if statement.value in self._summed else super().assigned(statement)

    def accumulated(self, r: Reduction, part: str) -> Lines:
        product = self.products[r.value]
        add = "multiply_add" if product.dtype == np.float32 else "multiply_add_double"
        return [f"{part} = {add}({', '.join(map(self.name, product.arguments))}, {part});"]

    def initialised(self, reductions: Sequence[Reduction]) -> Lines:
        return [f"{type} {name}[{self.columns}] = {{0}};" for r in reductions for type, name, _ in self.accumulators(r)]

    # Tiles

    def outer_loops(self) -> list[Loop]:
        """The outer loops, the last two in tiles; tiles of rows that read the same packed columns follow each other."""
        loops = [Loop(f"i{axis}", f"n{axis}") for axis in range(self.nest.outer - 1)]
        if self.nest.rows:
            loops[-1:] = [] if self.packed else [Loop("q", tiles_along(self.row, ROWS[0]))]
        return [*loops, Loop("t", tiles_along(self.nest.vector, self.width))]

    def block_body(self, stage: Stage, body: Lines) -> Lines:
        """The accumulation of a block in a tile: a call of functions that know the sizes of parts of it.

        So compilers have the sums of a part in registers.
        """
        at = f"first * {self.width} + c" if self.nest.rows else "c"
        given = [
            (self.pointer_type(array), self.pointer_to(array, "y"), self.element_offset(array, "c", "first"))
            for array in self.element_reads(stage)
        ]
        given += [(type, name, at) for type, name in self.outer_values(stage)]
        given += [(f"{type} *", name, at) for r in stage.reductions for type, name, _ in self.accumulators(r)]
        lines = [*self.arguments(), *self._pitch(), *(f"{name} += {offset};" for _, name, offset in given)]
        for line in body:
            lines += [*[f"#pragma GCC unroll {ROWS[0]}"] * line.lstrip().startswith("for (int64_t r"), line]
        passed = ", ".join(["a", *(name for _, name, _ in given), "b", "e"])
        calls = ["int64_t first = 0;"]
        for rows in ROWS if self.nest.rows else ROWS[-1:]:
            parts = ["int64_t c = 0;"]
            for columns in REGISTER_TILES:
                is_left = f"if (m {'==' if columns == self.width else '&'} {columns})"
                parts += [is_left, *braced([f"columns({passed}, first, c, {rows}, {columns});", f"c += {columns};"])]
            calls += [f"for (; first + {rows} <= rows; first += {rows})", *braced(parts)]
        head = ", ".join(["const int64_t *const a", *(f"{type}{name}" for type, name, _ in given), "const int64_t b"])
        self._tiles = [
            f"static inline __attribute__((always_inline)) void columns({head}, const int64_t e, "
            "const int64_t first, const int64_t c, const int64_t rows, const int64_t m)",
            *braced(without_unused(lines)),
            *["", f"static void accumulate({head}, const int64_t e, const int64_t rows, const int64_t m)"],
            *[*braced(calls), ""],
        ]
        return [f"accumulate({passed}, {'rows' if self.nest.rows else '1'}, m);"]

    def _pitch(self) -> Lines:
        """The columns of a packed row."""
        n = f"n{self.nest.vector}"
        return [f"const int64_t pitch = {n} < {self.width} ? {n} : {self.width};"] if self.packed else []

    def outer_body(self) -> Lines:
        """Some columns of an outer index: of the rows of a tile, or of all rows where columns are packed."""
        nest, row, height = self.nest, self.row, ROWS[0]
        lines = [f"const int64_t c = t * {self.width}, left = n{nest.vector} - c;"]
        lines += [f"const int64_t m = left < {self.width} ? left : {self.width};", *self._pitch()]
        tile = self.pointers(range(nest.outer - 1), ("outer", "inner"), "c", without=self.packed)
        tile += [f"{self.pointer_type(array)}x{array} = b{array};" for array in self.packed]
        tile += self.at_outer_index()
        if not nest.rows:
            return [*lines, *tile]
        for array in self.packed:
            type, down, along = self.pointer_type(array), f"s{array}_{self.last}", f"s{array}_{nest.vector}"
            start = f"{self.advanced(array, self.start(array), range(row))} + c * {along}"
            copied = [f"b{array}[i * pitch + j] = from[i * {down} + j * {along}];"]
            loop = [f"for (int64_t i = 0; i < n{self.last}; i++)", *braced(copied)]
            lines.append(f"_Alignas(64) {type.removeprefix('const ').removesuffix('*')}b{array}[{PACKED}];")
            lines += braced([f"{type}from = {start};", "for (int64_t j = 0; j < m; j++)", *braced(loop)])
        begin, end = ("0", f"n{row}") if self.packed else (f"q * {height}", f"(q + 1) * {height}")
        tile = [f"const int64_t below = n{row} - i{row}, rows = below < {height} ? below : {height};", *tile]
        return [*lines, f"for (int64_t i{row} = {begin}; i{row} < {end}; i{row} += {height})", *braced(tile)]
