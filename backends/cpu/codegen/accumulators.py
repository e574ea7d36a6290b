"""What C accumulates in: numbers of a row, arrays of lanes or columns, and sums that keep what rounding takes."""

from __future__ import annotations

import numpy as np

from backends.cpu.codegen.elements import at_element, type_of
from backends.execution.printer_common import Lines, braced, initial, wide
from optree.compile.loopnest import LoopNest, Reduction, Statement, Walk, walks

#: Walks of up to so many sums, of so many instructions (a function is 8), add up blocks in so many bytes of lanes.
LIGHT, LANES = (3, 7), 128

#: So many columns are reduced together: where rows are walked once, and where a walk finds them in the cache again.
TILES = (512, 64)


def tile_of(nest: LoopNest) -> int:
    """How many columns are reduced together."""
    return TILES[len(walks(nest)) > 1]


def simd(loop: str) -> Lines:
    """The head of a loop that becomes one of vectors."""
    return ["#pragma omp simd", loop]


def each_column(lines: Lines) -> Lines:
    """What happens to each column of a tile."""
    return ["#pragma omp simd", "for (int64_t j = 0; j < m; j++)", *braced(lines)]


def part_type(r: Reduction) -> str:
    """The type of a part: of bools a byte, for compilers take no bools into vectors."""
    return "uint8_t" if r.dtype == np.bool_ else type_of(r.dtype)


def declarations(nest: LoopNest) -> Lines:
    """How OpenMP combines what the lanes of a vector have accumulated."""
    lines = []
    for r in nest.reductions:
        if not r.accumulator.sums and not nest.columns:
            combined = (r.accumulator.of_numbers or r.accumulator.combine).format("omp_out", "omp_in")
            lines.append(
                f"#pragma omp declare reduction(join{r.value} : {part_type(r)} : omp_out = {combined}) "
                f"initializer(omp_priv = {initial(r)})"
            )
    return lines


def waits(nest: LoopNest, walk: Walk) -> bool:
    """Whether a walk waits for its sums: it takes little at each element, and caches hold what it reads."""
    costs = [made.cost for made in walk.statements if isinstance(made, Statement)]
    sums = all(r.accumulator.sums for r in walk.reductions)
    return nest.kept > 0 and not nest.split and sums and len(walk.reductions) <= LIGHT[0] and sum(costs) <= LIGHT[1]


def in_lanes(nest: LoopNest, walk: Walk) -> Lines:
    """A whole block's sums, in so many places that no addition waits for the one before; then joined by halves."""
    lanes, names = LANES // max(r.dtype.itemsize for r in walk.reductions), [r.value for r in walk.reductions]
    lines = [f"{type_of(r.dtype)} l{r.value}[{lanes}];" for r in walk.reductions]
    loop = simd(f"for (int64_t j = 0; j < {lanes}; j++)")
    lines += [*loop, *braced([f"l{name}[j] = 0;" for name in names])]
    body = ["const int64_t i = c + j;", *at_element(nest, walk, "y", "i", lane="[j]")]
    lines += [f"for (int64_t c = b; c < e; c += {lanes})", *braced([*loop, *braced(body)])]
    while lanes > 1:
        lanes //= 2
        joined = [f"l{name}[j] += l{name}[j + {lanes}];" for name in names]
        lines += [*simd(f"for (int64_t j = 0; j < {lanes}; j++)"), *braced(joined)]
    return lines + [f"p{name} = l{name}[0];" for name in names]


def settled(nest: LoopNest, r: Reduction) -> Lines:
    """What a nan among the elements makes of a part."""
    column = "[j]" if nest.columns else ""
    return [f"p{r.value}{column} = f{r.value}{column} ? NAN : p{r.value}{column};"] if r.accumulator.of_numbers else []


def _is_compensated(reduction: Reduction) -> bool:
    """Whether what rounding takes from a sum is kept beside it: nothing wider is there to add up float64 in."""
    return reduction.accumulator.sums and str(reduction.dtype) == "float64"


def opened_lines(nest: LoopNest, walk: Walk) -> Lines:
    """Accumulators of nothing."""
    return [line for r in walk.reductions for line in _accumulator(nest, r)]


def _accumulator(nest: LoopNest, r: Reduction) -> Lines:
    names = [(type_of(wide(r)), f"r{r.value}", initial(r))]
    if _is_compensated(r):
        names.append(("double", f"k{r.value}", "0"))
    if not nest.columns:
        return [f"{type} {name} = {value};" for type, name, value in names]
    declared = [f"{type} {name}[{tile_of(nest)}];" for type, name, _ in names]
    return [*declared, *each_column([f"{name}[j] = {value};" for _, name, value in names])]


def added_lines(nest: LoopNest, reduction: Reduction, part: str) -> Lines:
    """An accumulator with one more part (Neumaier's sum, where it is compensated)."""
    column = "[j]" if nest.columns else ""
    r, k, u = f"r{reduction.value}{column}", f"k{reduction.value}{column}", f"u{reduction.value}"
    combined = reduction.accumulator.combine.format(r, part)
    if not _is_compensated(reduction):
        return [f"{r} = {combined};"]
    return [
        f"const double {u} = {combined};",
        f"{k} += fabs({r}) >= fabs({part}) ? ({r} - {u}) + {part} : ({part} - {u}) + {r};",
        f"{r} = {u};",
    ]


def closed(nest: LoopNest, reduction: Reduction) -> str:
    """What an accumulator holds at the end; an infinite or nan sum has no compensation."""
    column = "[j]" if nest.columns else ""
    r, k = f"r{reduction.value}{column}", f"k{reduction.value}{column}"
    return f"({k} - {k} == 0 ? {r} + {k} : {r})" if _is_compensated(reduction) else r
