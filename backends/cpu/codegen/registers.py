"""Contractions of few elements, whose tiles of rows and columns are accumulated in registers."""

from __future__ import annotations

from typing import Any

from backends.execution.printer_common import Lines, braced, without_unused
from optree.compile.loopnest import LoopNest, Stage

#: The columns that are accumulated together: as many as there are, as a sum of these, which the compiler knows.
REGISTER_TILES = (32, 16, 8, 4, 2, 1)

#: The rows of a tile, and of a tile of fewer rows.
ROWS = (4, 1)

#: The elements of the columns of a tile that are packed: those of the longest that are accumulated in registers.
PACKED = 1 << 13


def packed_reads(nest: LoopNest) -> list[int]:
    """The arrays whose columns are the same for all rows and not contiguous: they are packed once for all rows."""
    if not nest.rows or nest.rank - nest.outer > 1:
        return []
    reads = [array for array, level in enumerate(nest.levels[: len(nest.reads)]) if level == "inner"]
    return [array for array in reads if nest.rows[array] and nest.vector_strides[array] < 0]


def in_tiles(printer: Any, stage: Stage, body: Lines) -> tuple[Lines, Lines]:
    """The accumulation of a block of elements in a tile: its call, and functions that know the sizes of parts of it.

    So compilers have the sums of a part in registers.
    """
    nest, width = printer.nest, REGISTER_TILES[0]
    at = f"first * {width} + c" if nest.rows else "c"
    given = [
        (printer.pointer_type(array), printer.pointer_to(array, "y"), printer.element_offset(array, "c", "first"))
        for array in printer.element_reads(stage)
    ]
    given += [(type, name, at) for type, name in printer.outer_values(stage)]
    given += [(f"{type} *", name, at) for r in stage.reductions for type, name, _ in printer.accumulators(r)]
    lines = [*printer.arguments(), *([_pitch(nest)] if printer.packed else [])]
    lines += [f"{name} += {offset};" for _, name, offset in given]
    for line in body:
        lines += [*[f"#pragma GCC unroll {ROWS[0]}"] * line.lstrip().startswith("for (int64_t r"), line]
    passed = ", ".join(["a", *(name for _, name, _ in given), "b", "e"])
    calls = ["int64_t first = 0;"]
    for rows in ROWS if nest.rows else ROWS[-1:]:
        parts = ["int64_t c = 0;"]
        for columns in REGISTER_TILES:
            is_left = f"if (m {'==' if columns == width else '&'} {columns})"
            parts += [is_left, *braced([f"columns({passed}, first, c, {rows}, {columns});", f"c += {columns};"])]
        calls += [f"for (; first + {rows} <= rows; first += {rows})", *braced(parts)]
    head = ", ".join(["const int64_t *const a", *(f"{type}{name}" for type, name, _ in given), "const int64_t b"])
    functions = [
        f"static inline __attribute__((always_inline)) void columns({head}, const int64_t e, "
        "const int64_t first, const int64_t c, const int64_t rows, const int64_t m)",
        *braced(without_unused(lines)),
        *["", f"static void accumulate({head}, const int64_t e, const int64_t rows, const int64_t m)"],
        *[*braced(calls), ""],
    ]
    return [f"accumulate({passed}, {'rows' if nest.rows else '1'}, m);"], functions


def _pitch(nest: LoopNest) -> str:
    """The columns of a packed row."""
    return f"const int64_t pitch = n{nest.vector} < {REGISTER_TILES[0]} ? n{nest.vector} : {REGISTER_TILES[0]};"


def by_rows(printer: Any) -> Lines:
    """Some columns of an outer index: of the rows of a tile, or of all rows where columns are packed."""
    nest, packed = printer.nest, printer.packed
    row, last, width, height = nest.outer - 2, nest.rank - 1, REGISTER_TILES[0], ROWS[0]
    lines = [f"const int64_t c = t * {width}, left = n{nest.vector} - c, m = left < {width} ? left : {width};"]
    tile = printer.pointers(range(nest.outer - 1), ("outer", "inner"), "c", without=packed)
    tile += [f"{printer.pointer_type(array)}x{array} = b{array};" for array in packed]
    tile += printer.at_outer_index()
    if not nest.rows:
        return [*lines, *tile]
    if packed:
        lines.append(_pitch(nest))
    for array in packed:
        type, down, along = printer.pointer_type(array), f"s{array}_{last}", f"s{array}_{nest.vector}"
        start = f"{printer.advanced(array, printer.start(array), range(row))} + c * {along}"
        copied = [f"b{array}[i * pitch + j] = from[i * {down} + j * {along}];"]
        loop = [f"for (int64_t i = 0; i < n{last}; i++)", *braced(copied)]
        lines.append(f"_Alignas(64) {type.removeprefix('const ').removesuffix('*')}b{array}[{PACKED}];")
        lines += braced([f"{type}from = {start};", "for (int64_t j = 0; j < m; j++)", *braced(loop)])
    begin, end = ("0", f"n{row}") if packed else (f"q * {height}", f"(q + 1) * {height}")
    tile = [f"const int64_t below = n{row} - i{row}, rows = below < {height} ? below : {height};", *tile]
    return [*lines, f"for (int64_t i{row} = {begin}; i{row} < {end}; i{row} += {height})", *braced(tile)]
