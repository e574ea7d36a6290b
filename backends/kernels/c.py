"""Loop nests as C."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from backends.kernels.c_elements import (
    along_vector,
    at_element,
    declaration,
    has_step,
    made_of,
    moved_along,
    pointer_type,
    pointers_of,
    read_at,
    type_of,
    written_as,
)
from backends.kernels.expressions import (
    Lines,
    braced,
    computed,
    converted,
    has_halves,
    initial,
    random_functions,
    unpacked,
    wide,
)
from backends.kernels.halves import HALVES
from backends.kernels.loopnest import LoopNest, Reduction, Walk, walks
from backends.kernels.vectormath import VECTOR_MATH

#: Less work than this, in elements times what each costs (`LoopNest.cost`), is not worth waking threads for: that
#: takes tens of microseconds, and so much work a few hundred.
PARALLEL = 1 << 24

#: How elements are taken that lie together along different loops: so many places of the other, and of the vector loop.
TILED = (128, 16)

#: So many elements are accumulated in the dtype itself before they join a sum in float64: of rows, which the lanes
#: of a vector share, and of columns.
BLOCKS = (512, 64)

#: So many elements of reduced loops that are shared out are one thread's part, whatever the number of threads,
#: and so many parts there are at most: of rows, and of columns.
PART = 1 << 16
PARTS = (1024, 64)

#: So many columns are reduced together: where rows are walked once, and where a walk finds them in the cache again.
TILES = (512, 64)

NAME = "kernel"

HEAD = f"""#include <stdint.h>
{VECTOR_MATH}#include <tgmath.h>
#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_thread_num() 0
#endif
"""


def source(nest: LoopNest) -> str:
    """The C source of a nest: a function of one array of 64-bit integers.

    It holds the arrays' addresses, the loops' sizes, each array's steps along the
    loops in elements, the numbers, the addresses of the `scratch` arrays, how many
    bytes lie between those of one thread and the next, and how many threads to use.
    """
    arrays, rank = nest.arrays, nest.rank
    steps, kept = len(arrays) + rank, scratch_arrays(nest)
    numbers = steps + len(arrays) * rank
    first = numbers + len(nest.numbers)
    body = [f"const int64_t n{axis} = a[{len(arrays) + axis}];" for axis in range(rank)]
    for place in range(len(arrays)):
        named = [axis for axis in range(rank) if has_step(nest, place, axis)]
        body += [f"const int64_t s{place}_{axis} = a[{steps + place * rank + axis}];" for axis in named]
    for place, dtype in enumerate(nest.numbers):
        type = type_of(dtype)
        body.append(f"const {type} v{len(nest.reads) + place} = *(const {type} *)(a + {numbers + place});")
    body += [f"char *const t{i} = (char *)a[{first + i}];" for i in range(len(kept))]
    if kept and not nest.split:
        body.append(f"const int64_t apart = a[{first + len(kept)}];")
    for place, dtype in enumerate(nest.reads):
        if nest.levels[place] == "once":
            read = "0" if nest.is_counted(place) else unpacked(f"*({pointer_type(nest, place)})a[{place}]", dtype)
            body.append(f"const {type_of(dtype)} v{place} = {read};")
    body += [line for made in nest.made("once") for line in made_of(nest, made)]
    if nest.reductions:
        body += _places(nest)
    elif nest.writes_at("inner"):
        body += _elements(nest)
    writes = nest.writes_at("once")
    body += [f"*({pointer_type(nest, place)})a[{place}] = {written_as(nest, value)};" for place, value in writes]
    functions = [f"void {NAME}(const int64_t *a)", *braced(body)]
    if any("(threads)" in line for line in body):
        threads = f"const int threads = (int)a[{first + len(kept) + 1}];"
        functions = ["static void by_one(const int64_t *a)", *braced(_by_one(body)), ""]
        functions += ["static void by_many(const int64_t *a)", *braced([threads, *body]), ""]
        choice = [threads, "if (threads > 1)", "    by_many(a);", "else", "    by_one(a);"]
        functions += [f"void {NAME}(const int64_t *a)", *braced(choice)]
    head = HEAD + HALVES if has_halves(nest) else HEAD
    return "\n".join([head, *random_functions(nest, "static inline"), *_declarations(nest), *functions, ""])


def _by_one(body: Lines) -> Lines:
    """What one thread does without OpenMP's threads: a region of one costs half a microsecond."""
    both = "#pragma omp parallel for simd"
    lines = [line[: line.index(both)] + "#pragma omp simd" if both in line else line for line in body]
    return [line for line in lines if not line.lstrip().startswith(("#pragma omp parallel", "#pragma omp for"))]


def scratch_arrays(nest: LoopNest) -> list[tuple[str, int, int]]:
    """The arrays that a nest needs beside: letter and value, and the bytes of an element (a tile of it, of columns).

    ``w`` has a value at each place of the reduced loops, kept from walk to walk;
    ``q`` one in each part of loops that are shared out.
    """
    found = [("w", value, computed(nest.dtype_of(value)).itemsize) for walk in walks(nest) for value in walk.stores]
    if nest.split:
        found += [("q", r.value, wide(r).itemsize) for r in nest.reductions]
    tile = _tile(nest) if nest.columns else 1
    return [(letter, value, size * tile) for letter, value, size in found]


def scratch(nest: LoopNest, sizes: Sequence[int]) -> list[int]:
    """How many bytes each scratch array of one thread has, for loops of these sizes."""
    elements = {"w": prod(sizes[nest.kept :]), "q": PARTS[nest.columns]}
    return [elements[letter] * size for letter, _, size in scratch_arrays(nest)]


def _parallel(loops: int) -> str:
    several = f" collapse({loops})" if loops > 1 else ""
    return f"#pragma omp parallel for{several} schedule(static) num_threads(threads)"


# Elementwise nests


def _elements(nest: LoopNest) -> Lines:
    """The loops: all but the innermost share their places out to threads, or a single one its parts."""
    last = nest.rank - 1
    (walk,) = walks(nest)
    threads = "parallel for simd schedule(static) num_threads(threads)"
    lines = [f"#pragma omp {'simd' if last else threads}", f"for (int64_t i = 0; i < n{last}; i++)"]
    lines += braced(at_element(nest, walk, "x", "i"))
    pointers = pointers_of(nest, range(last), ("inner",))
    if not last:
        return [*pointers, *lines]
    if nest.across >= 0:
        return _tiled(nest, [*pointers, lines[0], f"for (int64_t i = t{last}; i < e{last}; i++)", *lines[2:]])
    loops = [f"for (int64_t i{axis} = 0; i{axis} < n{axis}; i{axis}++)" for axis in range(last)]
    return [_parallel(last), *loops, *braced([*pointers, *lines])]


def _tiled(nest: LoopNest, body: Lines) -> Lines:
    """Two loops in tiles, so that what lies together along either is still in the cache when its turn comes."""
    tiles = dict(zip((nest.across, nest.rank - 1), TILED, strict=True))
    others = [axis for axis in range(nest.rank - 1) if axis != nest.across]
    loops = [f"for (int64_t i{axis} = 0; i{axis} < n{axis}; i{axis}++)" for axis in others]
    loops += [f"for (int64_t t{axis} = 0; t{axis} < n{axis}; t{axis} += {size})" for axis, size in tiles.items()]
    ends = [
        f"const int64_t e{axis} = t{axis} + {size} < n{axis} ? t{axis} + {size} : n{axis};"
        for axis, size in tiles.items()
    ]
    inner = f"for (int64_t i{nest.across} = t{nest.across}; i{nest.across} < e{nest.across}; i{nest.across}++)"
    return [_parallel(len(loops)), *loops, *braced([*ends, inner, *braced(body)])]


# Nests that reduce


def _tile(nest: LoopNest) -> int:
    return TILES[len(walks(nest)) > 1]


def _declarations(nest: LoopNest) -> Lines:
    """How OpenMP combines what the lanes of a vector have accumulated."""
    lines = []
    for r in nest.reductions:
        if not r.accumulator.sums and not nest.columns:
            combined = (r.accumulator.of_numbers or r.accumulator.combine).format("omp_out", "omp_in")
            lines.append(
                f"#pragma omp declare reduction(join{r.value} : {type_of(r.dtype)} : omp_out = {combined}) "
                f"initializer(omp_priv = {initial(r)})"
            )
    return lines


def _places(nest: LoopNest) -> Lines:
    """The kept loops, shared out to threads unless the reduced ones are, and in each place the walks."""
    axes = range(nest.kept - nest.columns)
    loops = [f"for (int64_t i{axis} = 0; i{axis} < n{axis}; i{axis}++)" for axis in axes]
    body = pointers_of(nest, axes, ("outer", "inner"), "t" if nest.columns else "")
    if nest.columns:
        tile, n = _tile(nest), f"n{nest.vector}"
        loops.append(f"for (int64_t t = 0; t < {n}; t += {tile})")
        body.insert(0, f"const int64_t m = {n} - t < {tile} ? {n} - t : {tile};")
    body += _parts(nest) if nest.split else []
    found = walks(nest)
    for stage, walk in enumerate(found):
        body += [*_outer(nest, stage, found), *_walk(nest, walk)]
    body += _outer(nest, len(found), found)
    arrays = [
        f"{_scratch_type(nest, letter, value)} *const {letter}{value} = ({_scratch_type(nest, letter, value)} *)"
        + (f"t{i};" if nest.split else f"(t{i} + omp_get_thread_num() * apart);")
        for i, (letter, value, _) in enumerate(scratch_arrays(nest))
    ]
    if not loops:
        return braced([*arrays, *body])
    if nest.split:
        return [*arrays, *loops, *braced(body)]
    if not arrays:
        return [_parallel(len(loops)), *loops, *braced(body)]
    shared = f"#pragma omp for{f' collapse({len(loops)})' if len(loops) > 1 else ''} schedule(static)"
    region = "#pragma omp parallel num_threads(threads)"
    return [region, *braced([*arrays, shared, *loops, *braced(body)])]


def _scratch_type(nest: LoopNest, letter: str, value: int) -> str:
    return type_of(
        nest.dtype_of(value) if letter == "w" else next(wide(r) for r in nest.reductions if r.value == value)
    )


def _outer(nest: LoopNest, stage: int, found: Sequence[Walk]) -> Lines:
    """What happens at a place of the kept loops when so many walks are over."""
    lines, made = [], nest.made("outer", stage)
    done = found[stage - 1].reductions if stage else []
    count = " * ".join(f"(double)n{axis}" for axis in range(nest.kept, nest.rank))
    writes = nest.writes_at("outer") if stage == len(found) else []
    used = {i for s in made for i in s.arguments} | {value for _, value in writes}
    reads = [place for place, level in enumerate(nest.levels[: len(nest.reads)]) if level == "outer"]
    for place in reads:
        if place in used if nest.columns else stage == 0:
            read = read_at(nest, place, f"x{place}", _column(nest, place))
            lines.append(f"const {type_of(nest.reads[place])} v{place} = {read};")
    for r in done:
        finished = r.accumulator.finish.format(_closed(nest, r), count=f"({count})")
        lines.append(f"{declaration(nest, r.value)} = {converted(f'({finished})', r.dtype, type_of)};")
    for each in made:
        lines += made_of(nest, each)
    lines += [f"x{place}[{_column(nest, place)}] = {written_as(nest, value)};" for place, value in writes]
    if not nest.columns or not lines:
        return lines
    new = [r.value for r in done] + [s.value for s in made]
    declared = [f"{type_of(nest.dtype_of(value))} v{value}[{_tile(nest)}];" for value in new]
    return [*declared, *_columns(lines)]


def _column(nest: LoopNest, place: int) -> str:
    return along_vector(nest, place, "j") if nest.columns else "0"


def _columns(lines: Lines) -> Lines:
    """What happens to each column of a tile."""
    return ["#pragma omp simd", "for (int64_t j = 0; j < m; j++)", *braced(lines)]


def _walk(nest: LoopNest, walk: Walk) -> Lines:
    """One walk of the reduced loops, by one thread or in parts that threads share."""
    opened = [line for r in walk.reductions for line in _opened(nest, r)]
    if not nest.split:
        return [*opened, *_loops(nest, walk, "0", f"n{nest.kept}")]
    n = f"n{nest.kept}"
    lines = [_parallel(1), "for (int64_t k = 0; k < parts; k++)"]
    end = f"const int64_t end = (k + 1) * size < {n} ? (k + 1) * size : {n};"
    index = f"[k * {_tile(nest)} + j]" if nest.columns else "[k]"
    ended = [f"q{r.value}{index} = {_closed(nest, r)};" for r in walk.reductions]
    added = [line for r in walk.reductions for line in _added(nest, r, f"q{r.value}{index}")]
    if nest.columns:
        ended, added = (_columns(part) if part else part for part in (ended, added))
    lines += braced([*opened, end, *_loops(nest, walk, "k * size", "end"), *ended])
    if not walk.reductions:
        return lines
    return [*opened, *lines, "for (int64_t k = 0; k < parts; k++)", *braced(added)]


def _parts(nest: LoopNest) -> Lines:
    """How the first reduced loop is shared out: a rule of sizes alone, so that sums come out the same."""
    others = "".join(f" / n{axis}" for axis in range(nest.kept + 1, nest.rank)) + " / m" * nest.columns
    n, most = f"n{nest.kept}", PARTS[nest.columns]
    return [
        f"const int64_t least = ({n} + {most - 1}) / {most}, fair = {PART}{others} + 1;",
        "const int64_t size = least > fair ? least : fair;",
        f"const int64_t parts = ({n} + size - 1) / size;",
    ]


def _loops(nest: LoopNest, walk: Walk, start: str, end: str) -> Lines:
    """The reduced loops, the first of them from a start to an end."""
    last = nest.rank - 1
    axes = range(nest.kept, last)
    bounds = {axis: ("0", f"n{axis}") for axis in range(nest.kept, nest.rank)} | {nest.kept: (start, end)}
    lines = []
    for place, level in enumerate(nest.levels):
        if level == "inner" and (place in walk.reads or place in [p for p, _ in walk.writes]):
            lines.append(f"{pointer_type(nest, place)}y{place} = {moved_along(nest, place, f'x{place}', axes)};")
    before = "0"
    for axis in axes:
        before = f"({before} + i{axis}) * n{axis + 1}" if before != "0" else f"i{axis} * n{axis + 1}"
    tiles = f" * {_tile(nest)}" if nest.columns else ""
    for value in sorted({*walk.loads, *walk.stores}):
        moved = "" if before == "0" else f" + {before}{tiles}"
        letter = "h" if nest.columns else "g"
        lines.append(f"{type_of(nest.dtype_of(value))} *const {letter}{value} = w{value}{moved};")
    lines += (_column_blocks if nest.columns else _row_blocks)(nest, walk, *bounds[last])
    loops = [f"for (int64_t i{x} = {bounds[x][0]}; i{x} < {bounds[x][1]}; i{x}++)" for x in axes]
    return [*loops, *braced(lines)]


def _row_blocks(nest: LoopNest, walk: Walk, start: str, end: str) -> Lines:
    """The innermost reduced loop, which is the vector loop."""
    body = braced(at_element(nest, walk, "y", "i"))
    if not walk.reductions:
        return ["#pragma omp simd", f"for (int64_t i = {start}; i < {end}; i++)", *body]
    lines = [_block_end(nest, end)]
    lines += [f"{type_of(r.dtype)} p{r.value} = {initial(r)};" for r in walk.reductions]
    lines += [f"int f{r.value} = 0;" for r in walk.reductions if r.accumulator.of_numbers]
    joins = [f" reduction({'+' if r.accumulator.sums else f'join{r.value}'} : p{r.value})" for r in walk.reductions]
    joins += [f" reduction(| : f{r.value})" for r in walk.reductions if r.accumulator.of_numbers]
    lines += [f"#pragma omp simd{''.join(joins)}", "for (int64_t i = b; i < e; i++)", *body]
    lines += [line for r in walk.reductions for line in (*_settled(nest, r), *_added(nest, r, f"p{r.value}"))]
    return [f"for (int64_t b = {start}; b < {end}; b += {BLOCKS[nest.columns]})", *braced(lines)]


def _block_end(nest: LoopNest, end: str) -> str:
    block = BLOCKS[nest.columns]
    return f"const int64_t e = b + {block} < {end} ? b + {block} : {end};"


def _column_blocks(nest: LoopNest, walk: Walk, start: str, end: str) -> Lines:
    """The innermost reduced loop, in each place of which the vector loop goes along a tile of columns."""
    last, row = nest.rank - 1, []
    for place in [*walk.reads, *(place for place, _ in walk.writes)]:
        step = f" + i * s{place}_{last}" if has_step(nest, place, last) else ""
        row.append(f"{pointer_type(nest, place)}z{place} = y{place}{step};")
    for value in sorted({*walk.loads, *walk.stores}):
        row.append(f"{type_of(nest.dtype_of(value))} *const g{value} = h{value} + i * {_tile(nest)};")
    row += _columns(at_element(nest, walk, "z", "j"))
    if not walk.reductions:
        return [f"for (int64_t i = {start}; i < {end}; i++)", *braced(row)]
    lines = [_block_end(nest, end)]
    lines += [f"{type_of(r.dtype)} p{r.value}[{_tile(nest)}];" for r in walk.reductions]
    flagged = [r.value for r in walk.reductions if r.accumulator.of_numbers]
    lines += [f"int f{value}[{_tile(nest)}];" for value in flagged]
    opened = [f"p{r.value}[j] = {initial(r)};" for r in walk.reductions]
    lines += _columns([*opened, *(f"f{value}[j] = 0;" for value in flagged)])
    lines += ["for (int64_t i = b; i < e; i++)", *braced(row)]
    joined = [line for r in walk.reductions for line in (*_settled(nest, r), *_added(nest, r, f"p{r.value}[j]"))]
    lines += _columns(joined)
    return [f"for (int64_t b = {start}; b < {end}; b += {BLOCKS[nest.columns]})", *braced(lines)]


def _settled(nest: LoopNest, r: Reduction) -> Lines:
    """What a nan among the elements makes of a part."""
    column = "[j]" if nest.columns else ""
    return [f"p{r.value}{column} = f{r.value}{column} ? NAN : p{r.value}{column};"] if r.accumulator.of_numbers else []


def _is_compensated(reduction: Reduction) -> bool:
    """Whether what rounding takes from a sum is kept beside it: nothing wider is there to add up float64 in."""
    return reduction.accumulator.sums and str(reduction.dtype) == "float64"


def _opened(nest: LoopNest, r: Reduction) -> Lines:
    """An accumulator of nothing."""
    names = [(type_of(wide(r)), f"r{r.value}", initial(r))]
    if _is_compensated(r):
        names.append(("double", f"k{r.value}", "0"))
    if not nest.columns:
        return [f"{type} {name} = {value};" for type, name, value in names]
    declared = [f"{type} {name}[{_tile(nest)}];" for type, name, _ in names]
    return [*declared, *_columns([f"{name}[j] = {value};" for _, name, value in names])]


def _added(nest: LoopNest, reduction: Reduction, part: str) -> Lines:
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


def _closed(nest: LoopNest, reduction: Reduction) -> str:
    """What an accumulator holds at the end; an infinite or nan sum has no compensation."""
    column = "[j]" if nest.columns else ""
    r, k = f"r{reduction.value}{column}", f"k{reduction.value}{column}"
    return f"({k} - {k} == 0 ? {r} + {k} : {r})" if _is_compensated(reduction) else r
