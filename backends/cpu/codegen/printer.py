"""Loop nests as C."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from backends.cpu.codegen.accumulators import (
    added_lines,
    closed,
    declarations,
    each_column,
    in_lanes,
    opened_lines,
    part_type,
    settled,
    simd,
    tile_of,
    waits,
)
from backends.cpu.codegen.elements import (
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
from backends.cpu.codegen.halves import narrow_functions
from backends.cpu.codegen.parallel import SHARED, Loop, needed, part, places_of
from backends.cpu.codegen.transposes import PITCH, TILE, turned_reads, turning_functions
from backends.cpu.codegen.vector_math import EXP, VECTOR_MATH
from backends.execution.printer_common import (
    Lines,
    braced,
    computed,
    converted,
    functions_called,
    initial,
    narrow_dtypes,
    unpacked,
    wide,
)
from optree.compile.loopnest import LoopNest, Statement, Walk, walks

#: Less work than this, in elements times what each costs (`LoopNest.cost`), is not worth waking threads for: that
#: takes tens of microseconds, and so does so much work.
PARALLEL = 1 << 20

#: So many elements are accumulated in the dtype itself before they join a sum in float64: of rows, which the lanes
#: of a vector share, and of columns.
BLOCKS = (512, 64)

#: So many elements of reduced loops that are shared out are one thread's part, whatever the number of threads,
#: and so many parts there are at most: of rows, and of columns.
PART = 1 << 16
PARTS = (1024, 64)

NAME = "kernel"

#: One thread has so many elements of a single loop at the least.
PIECE = 1024

HEAD = f"""#include <stdint.h>
{VECTOR_MATH}#include <tgmath.h>
{EXP}{SHARED}"""


def source(nest: LoopNest) -> str:
    """The C source of a nest: a function of one array of 64-bit integers.

    It holds the arrays' addresses, the loops' sizes, each array's steps along the
    loops in elements, the numbers, the addresses of the `scratch` arrays, how many
    bytes lie between those of one thread and the next, how many threads to use,
    and the address of the function that shares work among them.
    """
    functions: Lines = []
    body, writes = _arguments(nest), nest.writes_at("once")
    if nest.split:
        functions, places = _places_in_parts(nest)
        body += places
    elif nest.reductions or nest.writes_at("inner"):
        count, places = (_places if nest.reductions else _elements)(nest)
        if count:
            functions = part("places", ["const int64_t *const a = state;", *_arguments(nest), *places])
            body += [f"shared(places, a, {count}, {_threads(nest)});"]
        else:
            body += places
    body += [f"*({pointer_type(nest, place)})a[{place}] = {written_as(nest, value)};" for place, value in writes]
    functions += [f"void {NAME}(const int64_t *a)", *braced(needed(body))]
    head = HEAD + narrow_functions(narrow_dtypes(nest))
    helpers = [*turning_functions(nest), *functions_called(nest, "static inline"), *declarations(nest)]
    return "\n".join([head, *helpers, *functions, ""])


def _arguments(nest: LoopNest) -> Lines:
    """What `a` holds, by name, and what is made of it alone."""
    first, kept = _first_scratch(nest), scratch_arrays(nest)
    steps = len(nest.arrays) + nest.rank
    numbers = steps + len(nest.arrays) * nest.rank
    lines = _sizes(nest)
    for place in range(len(nest.arrays)):
        named = [axis for axis in range(nest.rank) if has_step(nest, place, axis)]
        lines += [f"const int64_t s{place}_{axis} = a[{steps + place * nest.rank + axis}];" for axis in named]
    for place, dtype in enumerate(nest.numbers):
        type = type_of(dtype)
        lines.append(f"const {type} v{len(nest.reads) + place} = *(const {type} *)(a + {numbers + place});")
    lines += [f"char *const t{i} = (char *)a[{first + i}];" for i in range(len(kept))]
    if kept and not nest.split:
        lines.append(f"const int64_t apart = a[{first + len(kept)}];")
    for place, dtype in enumerate(nest.reads):
        if nest.levels[place] == "once":
            read = "0" if nest.is_counted(place) else unpacked(f"*({pointer_type(nest, place)})a[{place}]", dtype)
            lines.append(f"const {type_of(dtype)} v{place} = {read};")
    return lines + [line for made in nest.made("once") for line in made_of(nest, made)]


def _sizes(nest: LoopNest) -> Lines:
    return [f"const int64_t n{axis} = a[{len(nest.arrays) + axis}];" for axis in range(nest.rank)]


def _first_scratch(nest: LoopNest) -> int:
    """Where the scratch arrays' addresses begin."""
    return len(nest.arrays) * (1 + nest.rank) + nest.rank + len(nest.numbers)


def _threads(nest: LoopNest) -> str:
    """Where it says how many threads to use."""
    return f"a + {_first_scratch(nest) + len(scratch_arrays(nest)) + 1}"


def scratch_arrays(nest: LoopNest) -> list[tuple[str, int, int]]:
    """The arrays that a nest needs beside: letter and value, and the bytes of an element (a tile of it, of columns).

    ``w`` has a value at each place of the reduced loops, kept from walk to walk;
    ``q`` one in each part of loops that are shared out.
    """
    found = [("w", value, computed(nest.dtype_of(value)).itemsize) for walk in walks(nest) for value in walk.stores]
    if nest.split:
        found += [("q", r.value, wide(r).itemsize) for r in nest.reductions]
    tile = tile_of(nest) if nest.columns else 1
    return [(letter, value, size * tile) for letter, value, size in found]


def scratch(nest: LoopNest, sizes: Sequence[int]) -> list[int]:
    """How many bytes each scratch array of one thread has, for loops of these sizes."""
    elements = {"w": prod(sizes[nest.kept :]), "q": PARTS[nest.columns]}
    return [elements[letter] * size for letter, _, size in scratch_arrays(nest)]


# Elementwise nests


def _elements(nest: LoopNest) -> tuple[str, Lines]:
    """How many places threads share, of all loops but the innermost or pieces of a single one, and what they take."""
    last = nest.rank - 1
    (walk,) = walks(nest)
    if nest.across >= 0:
        return _tiled(nest, walk)
    element = braced(at_element(nest, walk, "x", "i"))
    pointers = pointers_of(nest, range(last), ("inner",))
    if not last:
        stop = f"const int64_t stop = end * {PIECE} < n0 ? end * {PIECE} : n0;"
        loop = simd(f"for (int64_t i = begin * {PIECE}; i < stop; i++)")
        return f"(n0 + {PIECE - 1}) / {PIECE}", [*pointers, stop, *loop, *element]
    loops = [Loop(f"i{axis}", f"n{axis}") for axis in range(last)]
    return places_of(loops, [*pointers, *simd(f"for (int64_t i = 0; i < n{last}; i++)"), *element])


def _tiled(nest: LoopNest, walk: Walk) -> tuple[str, Lines]:
    """Two loops in tiles, so that what lies together along either is still in the cache when its turn comes."""
    across, last, turned = nest.across, nest.rank - 1, turned_reads(nest)
    tiles = dict(zip((across, last), TILE, strict=True))
    others = [axis for axis in range(last) if axis != across]
    loops = [Loop(f"i{axis}", f"n{axis}") for axis in others]
    loops += [Loop(f"k{axis}", _tiles(axis, size)) for axis, size in tiles.items()]
    body = [f"const int64_t t{axis} = k{axis} * {size};" for axis, size in tiles.items()]
    body += [f"const int64_t m{x} = n{x} - t{x} < {size} ? n{x} - t{x} : {size};" for x, size in tiles.items()]
    for place in turned:
        dtype, (down, along) = nest.reads[place], (f"s{place}_{axis}" for axis in tiles)
        start = moved_along(nest, place, f"(const bits{dtype.itemsize} *)a[{place}]", others)
        start += f" + t{across} * {down} + t{last} * {along}"
        body.append(f"_Alignas(64) {type_of(dtype)} b{place}[{TILE[0] * PITCH}];")
        taken = f"{start}, {down}, {along}, (bits{dtype.itemsize} *)b{place}, m{across}, m{last}"
        body.append(f"turned{dtype.itemsize}({taken});")
    row = pointers_of(nest, range(last), ("inner",), f"t{last}", without=turned)
    for place in turned:
        row.append(f"{pointer_type(nest, place)}x{place} = b{place} + (i{across} - t{across}) * {PITCH};")
    nest = nest._replace(steps=tuple(1 if place in turned else step for place, step in enumerate(nest.steps)))
    row += [*simd(f"for (int64_t i = 0; i < m{last}; i++)"), *braced(at_element(nest, walk, "x", "i"))]
    rows = f"for (int64_t i{across} = t{across}; i{across} < t{across} + m{across}; i{across}++)"
    return places_of(loops, [*body, rows, *braced(row)])


def _tiles(axis: int, size: int) -> str:
    """How many tiles a loop has."""
    return f"((n{axis} + {size - 1}) / {size})"


# Nests that reduce


def _places(nest: LoopNest) -> tuple[str, Lines]:
    """How many places the kept loops have, and in each of them the walks; "" where there are no such loops."""
    loops, body = _kept(nest), _at_place(nest)
    found = walks(nest)
    for stage, walk in enumerate(found):
        body += [*_outer(nest, stage, found), *opened_lines(nest, walk), *_loops(nest, walk, "0", f"n{nest.kept}")]
    body += _outer(nest, len(found), found)
    if not loops:
        return "", [*_scratch_lines(nest), *body]
    count, lines = places_of(loops, body)
    return count, [*_scratch_lines(nest, " + thread * apart"), *lines]


def _kept(nest: LoopNest) -> list[Loop]:
    """The kept loops, of columns the last of them in tiles."""
    loops = [Loop(f"i{axis}", f"n{axis}") for axis in range(nest.kept - nest.columns)]
    return [*loops, Loop("t", _tiles(nest.vector, tile_of(nest)))] if nest.columns else loops


def _at_place(nest: LoopNest) -> Lines:
    """What is known at a place of the kept loops: where the arrays stand, and the columns of a tile."""
    lines: Lines = []
    if nest.columns:
        tile, n = tile_of(nest), f"n{nest.vector}"
        lines = [f"const int64_t c = t * {tile}, m = {n} - c < {tile} ? {n} - c : {tile};"]
    axes = range(nest.kept - nest.columns)
    return lines + pointers_of(nest, axes, ("outer", "inner"), "c" if nest.columns else "")


def _scratch_lines(nest: LoopNest, thread: str = "") -> Lines:
    """The scratch arrays, each thread's its own or one for all."""
    return [
        f"{_scratch_type(nest, letter, value)} *const {letter}{value} = ({_scratch_type(nest, letter, value)} *)"
        f"(t{i}{thread});"
        for i, (letter, value, _) in enumerate(scratch_arrays(nest))
    ]


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
        finished = r.accumulator.finish.format(closed(nest, r), count=f"({count})")
        lines.append(f"{declaration(nest, r.value)} = {converted(f'({finished})', r.dtype, type_of)};")
    for each in made:
        lines += made_of(nest, each)
    lines += [f"x{place}[{_column(nest, place)}] = {written_as(nest, value)};" for place, value in writes]
    if not nest.columns or not lines:
        return lines
    new = [r.value for r in done] + [s.value for s in made]
    declared = [f"{type_of(nest.dtype_of(value))} v{value}[{tile_of(nest)}];" for value in new]
    return [*declared, *each_column(lines)]


def _column(nest: LoopNest, place: int) -> str:
    return along_vector(nest, place, "j") if nest.columns else "0"


# Nests whose reduced loops are shared out in parts


def _places_in_parts(nest: LoopNest) -> tuple[Lines, Lines]:
    """A function for the parts of each walk, and the kept loops, one place after the other, with the walks."""
    functions: Lines = []
    loops, found = _kept(nest), walks(nest)
    arrays, body = _scratch_lines(nest), [*_at_place(nest), *_parts(nest)]
    known = [*arrays, *body]
    for stage, walk in enumerate(found):
        name, given = f"walk{stage}", [("int64_t ", loop.name) for loop in loops] + _taken(nest, walk)
        members = [f"{type}{member};" for type, member in (("const int64_t *", "a"), *given)]
        functions += [f"struct {name}", *braced(members)[:-1], "};", ""]
        opened = [f"const struct {name} *const given = state;", "const int64_t *const a = given->a;", *_arguments(nest)]
        opened += [f"{type}const {member} = given->{member};" for type, member in given]
        functions += part(name, [*opened, *known, *_part_of_walk(nest, walk)])
        values = ", ".join(["a", *(member for _, member in given)])
        body += [*_outer(nest, stage, found), *opened_lines(nest, walk)]
        body += [
            f"const struct {name} given{stage} = {{{values}}};",
            f"shared({name}, &given{stage}, parts, {_threads(nest)});",
        ]
        body += _parts_together(nest, walk)
    body += _outer(nest, len(found), found)
    for loop in reversed(loops):
        body = [f"for (int64_t {loop.name} = 0; {loop.name} < {loop.places}; {loop.name}++)", *braced(body)]
    return functions, [*arrays, *body]


def _taken(nest: LoopNest, walk: Walk) -> list[tuple[str, str]]:
    """The types and names of what a walk takes of what is known before it at a place of the kept loops."""
    taken = {i for made in walk.statements if isinstance(made, Statement) for i in made.arguments}
    outer = sorted(i for i in taken if nest.level_of(i) == "outer" and not (nest.columns and i < len(nest.reads)))
    return [
        (f"const {type_of(nest.dtype_of(i))} *" if nest.columns else f"{type_of(nest.dtype_of(i))} ", f"v{i}")
        for i in outer
    ]


def _part_of_walk(nest: LoopNest, walk: Walk) -> Lines:
    """Some of the parts of a walk; of what each accumulates, `q` keeps the end."""
    n, index = f"n{nest.kept}", _part_index(nest)
    end = f"const int64_t stop = (k + 1) * size < {n} ? (k + 1) * size : {n};"
    ended = [f"q{r.value}{index} = {closed(nest, r)};" for r in walk.reductions]
    body = [*opened_lines(nest, walk), end, *_loops(nest, walk, "k * size", "stop")]
    body += each_column(ended) if ended and nest.columns else ended
    return ["for (int64_t k = begin; k < end; k++)", *braced(body)]


def _parts_together(nest: LoopNest, walk: Walk) -> Lines:
    added = [line for r in walk.reductions for line in added_lines(nest, r, f"q{r.value}{_part_index(nest)}")]
    body = each_column(added) if nest.columns else added
    return ["for (int64_t k = 0; k < parts; k++)", *braced(body)] if added else []


def _part_index(nest: LoopNest) -> str:
    return f"[k * {tile_of(nest)} + j]" if nest.columns else "[k]"


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
    tiles = f" * {tile_of(nest)}" if nest.columns else ""
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
    lines += [f"{part_type(r)} p{r.value} = {initial(r)};" for r in walk.reductions]
    lines += [f"int f{r.value} = 0;" for r in walk.reductions if r.accumulator.of_numbers]
    joins = [f" reduction({'+' if r.accumulator.sums else f'join{r.value}'} : p{r.value})" for r in walk.reductions]
    joins += [f" reduction(| : f{r.value})" for r in walk.reductions if r.accumulator.of_numbers]
    several = [f"#pragma omp simd{''.join(joins)}", "for (int64_t i = b; i < e; i++)", *body]
    if waits(nest, walk):
        several = [f"if (e - b == {BLOCKS[0]})", *braced(in_lanes(nest, walk)), "else", *braced(several)]
    lines += several
    lines += [line for r in walk.reductions for line in (*settled(nest, r), *added_lines(nest, r, f"p{r.value}"))]
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
        row.append(f"{type_of(nest.dtype_of(value))} *const g{value} = h{value} + i * {tile_of(nest)};")
    row += each_column(at_element(nest, walk, "z", "j"))
    if not walk.reductions:
        return [f"for (int64_t i = {start}; i < {end}; i++)", *braced(row)]
    lines = [_block_end(nest, end)]
    lines += [f"{part_type(r)} p{r.value}[{tile_of(nest)}];" for r in walk.reductions]
    flagged = [r.value for r in walk.reductions if r.accumulator.of_numbers]
    lines += [f"int f{value}[{tile_of(nest)}];" for value in flagged]
    opened = [f"p{r.value}[j] = {initial(r)};" for r in walk.reductions]
    lines += each_column([*opened, *(f"f{value}[j] = 0;" for value in flagged)])
    lines += ["for (int64_t i = b; i < e; i++)", *braced(row)]
    joined = [line for r in walk.reductions for line in (*settled(nest, r), *added_lines(nest, r, f"p{r.value}[j]"))]
    lines += each_column(joined)
    return [f"for (int64_t b = {start}; b < {end}; b += {BLOCKS[nest.columns]})", *braced(lines)]
