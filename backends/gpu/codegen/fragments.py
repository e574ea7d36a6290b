"""Loop nests of a tile of scores that a warp holds in registers, as products on tensor cores leave it.

A nest's rows are divided among the lanes of a warp: four lanes share a row, and each has two elements of every eight.
So a row's maximum or sum is a reduction of a lane's own elements, and then over four lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backends.execution.memory import unallocated_array
from backends.execution.printer_common import Access, Lines, accumulator_dtype, braced, initial_value, literal, unpacked
from backends.execution.specialize import FusedKernel
from backends.gpu.codegen.printer import CUDA, CudaPrinter
from backends.gpu.codegen.variant import Variant
from optree.compile.loopnest import LoopNest, Reduction, Stage
from optree.compile.pipeline import Options, lower
from optree.dtypes import FLOAT32, is_floating
from optree.records import NamedTuple
from optree.tree.types import TensorType
from optree.tree.variable import Constant, Input

#: Sizes of a tile that no rule depends on.
ROWS, COLUMNS = 64, 128

UNROLL = "#pragma unroll"

#: The lanes that share a row.
WIDTH = 4


class Held(NamedTuple):
    """Where an operand of a nest is."""

    #: Of an array in registers, or of a pointer.
    name: str
    #: Whether it has an element at each place of the tile, at each of the rows or of the columns, in registers; or is a
    #: matrix in memory, or transposed. ``'once'`` is a constant.
    along: str = "tile"


class Fragments(CudaPrinter):
    """A nest of a tile, as statements in a kernel.

    `places`: of the arrays that it reads and writes.
    `numbers`: the values of its numbers.
    """

    def __init__(self, nest: LoopNest, places: Sequence[Held], numbers: Sequence[float]) -> None:
        super().__init__(nest, Variant(team="warp", width=WIDTH))
        self.places, self._numbers, self.is_narrow = places, numbers, True

    def number(self, value: int) -> str:
        number = literal(self._numbers[value - len(self.nest.reads)], self.nest.dtype_of(value))
        return f"({self.type_of(value)})({number})"

    def accumulators(self, r: Reduction) -> list[tuple[str, str, str]]:
        """In float32: a lane adds few numbers."""
        return [(CUDA.type_of(self.accumulated_in(r)), f"r{r.value}", initial_value(r))]

    @staticmethod
    def accumulated_in(r: Reduction) -> np.dtype:
        return FLOAT32 if is_floating(r.dtype) else accumulator_dtype(r)

    def joins(self) -> Lines:
        """The functions that join two parts of each reduction."""
        lines = []
        for r in self.nest.reductions:
            type, joined = CUDA.type_of(self.accumulated_in(r)), self.combine(r).format("x", "y")
            lines += [
                f"const auto join{r.value} = []({type} x, {type} y) {{ return {joined}; }};",
            ]
        return lines

    def combined(self, r: Reduction) -> Lines:
        return [f"{self.total(r)} = over_lanes({self.total(r)}, join{r.value}, {WIDTH});"]

    def by_one_thread(self, lines: Lines) -> Lines:
        return lines

    def at(self, array: int) -> str:
        """The expression of an array's element."""
        name, along = self.places[array]
        i, j = ("row", "column") if along == "memory" else ("column", "row")
        in_memory = f"{name}[is_inside ? {i} * {name}_rows + {j} * {name}_columns : 0]"
        registers = {"tile": "[m][n][2 * h + e]", "rows": "[m][h]", "columns": "[n][e]"}
        return f"{name}{registers[along]}" if along in registers else in_memory

    def pointer(self, array: int) -> str:
        type = CUDA.types[str(self.nest.arrays[array])]
        return f"{type} *const x{array} = &{self.at(array)};"

    def stage_loops(self, stage: Stage) -> Lines:
        """The loop over a lane's elements of a row."""
        access = Access(
            lambda array: unpacked(self.at(array), self.nest.reads[array]),
            self.total,
            str,
            lambda array, value: f"{self.at(array)} = {self.name(value)};",
        )
        where = [
            "const int row = first + m * 16 + h * 8 + lane / 4, column = start + n * 8 + lane % 4 * 2 + e;",
            "const bool is_inside = row < rows && column < columns;",
        ]
        needs = any(self.places[array].along in ("memory", "transposed") for array in stage.reads)
        body = [*(where if needs else []), *self.element(stage, access)]
        if all(held.along == "rows" for held in self.places):
            return body
        loops = ["for (int n = 0; n < N; n++)", UNROLL, "for (int e = 0; e < 2; e++)"]
        return [UNROLL, *loops, *braced(body)]

    def lines(self) -> Lines:
        """The statements; they use ``lane``, the tile's first row and column, and the ends of both."""
        nest = self.nest
        rows = [array for array, held in enumerate(self.places) if held.along == "rows"]
        outer = [array for array in rows if nest.levels[array] == "outer"]
        body = [*map(self.pointer, outer)]
        body += self.at_outer_index() if nest.reductions else self.stage_loops(self.stages[0])
        loops = [UNROLL, "for (int m = 0; m < M; m++)", UNROLL, "for (int h = 0; h < 2; h++)", *braced(body)]
        constants = [array for array in range(len(nest.reads)) if nest.levels[array] == "once"]
        once = [f"{self.declared(array)} = {self.places[array].name};" for array in constants]
        return braced([*self.joins(), *self.numbers(), *once, *loops])


def statements(
    function: Callable[..., Sequence[Any]],
    operands: Sequence[tuple[Held, np.dtype]],
    writes: Sequence[int],
    columns: str,
) -> Lines:
    """The statements that compute a function of operands that are held in registers, or in memory.

    `function`: from the operands as trees to the new values of some of them.
    `writes`: the operands that are written.
    `columns`: the expression of the number of the tile's columns, over 8.
    """
    shapes = {"rows": (ROWS, 1), "columns": (1, COLUMNS)}
    leaves = [Input(TensorType(dtype, shapes.get(held.along, (ROWS, COLUMNS)))) for held, dtype in operands]
    program, sizes, steps = lower(function(*leaves), Options(further=True), "program", "fusion")
    places = {i: operands[j][0] for i, leaf in enumerate(program.leaves) for j, x in enumerate(leaves) if leaf is x}
    places |= {value: operands[i][0] for value, i in zip(program.outputs, writes, strict=True)}
    for i, leaf in enumerate(program.leaves):
        if isinstance(leaf, Constant):
            places[i] = Held(literal(leaf.value.item(), leaf.dtype), "once")
    lines = [f"constexpr int N = {columns};"]
    for step in steps:
        kernel = FusedKernel(program, step, sizes, lambda nest: nest)
        given = [program.type_of(i) for i in (*kernel.reads, *kernel.writes)]
        found = kernel.specialize(
            [unallocated_array(x.shape, x.dtype) for x in given], kernel.input_shapes(program.leaves)
        )
        for value in set(kernel.writes) - set(places):  # a row's, for the nests that follow
            places[value] = Held(f"between{value}", "rows")
            lines.append(f"{CUDA.type_of(program.type_of(value).dtype)} between{value}[M][2];")
        assert found is not None and found.nest is not None
        held = [places[i] for i in (*kernel.reads, *kernel.writes)]
        lines += Fragments(found.nest, held, [program.leaves[i] for i, _ in kernel.numbers]).lines()
    return braced(lines)
