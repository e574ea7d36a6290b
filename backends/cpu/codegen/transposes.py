"""In-register transposes, in C, for operands strided along the vectorised loop.

A tile is read in whole cache lines, each of them once: columns with a leading dimension of a power of two map to few
sets of a cache, which evicts a line before its next element is read.
"""

from __future__ import annotations

from collections.abc import Sequence

from backends.execution.printer_common import Lines, braced
from optree.compile.loopnest import LoopNest, strided_reads
from optree.records import NamedTuple

#: A tile's size along the loop in which the arrays are contiguous, and along the vector loop.
TILE = (64, 128)

#: The leading dimension of a transposed tile, padded against conflicts in the cache.
PITCH = TILE[1] + 16

#: The types in which elements are transposed, by their bytes, and the maximum bytes of a kernel's tiles.
ELEMENT_TYPES, MAX_TILE_BYTES = {4: "uint32_t", 8: "uint64_t"}, 256 << 10

_LANES = """
/* Lanes of a vector: __builtin_shufflevector is in GCC since 12, and in Clang. */
#if defined __has_builtin
#if __has_builtin(__builtin_shufflevector)
#ifdef __AVX__
#define VECTOR 32
#else
#define VECTOR 16
#endif
#endif
#endif
"""


class Loop(NamedTuple):
    """A loop's index and size, by their names in C."""

    name: str
    size: str


def collapsed(loops: Sequence[Loop], body: Lines) -> tuple[str, Lines]:
    """The collapsed size of several loops, and the loop over their flat index from `begin` to `end`."""
    counts = [loop.size for loop in loops]
    if len(loops) == 1:
        index = loops[0].name
        return counts[0], [f"for (int64_t {index} = begin; {index} < end; {index}++)", *braced(body)]
    lines, step = [], [f"{loops[0].name}++;"]
    for i, loop in enumerate(loops):
        beyond = " * ".join(counts[i + 1 :])
        inner = {0: "", 1: f" / {beyond}"}.get(len(counts) - i - 1, f" / ({beyond})")
        lines.append(f"int64_t {loop.name} = begin{inner}{f' % {loop.size}' if i else ''};")
    for loop in loops[1:]:
        step = [f"if (++{loop.name} == {loop.size})", *braced([f"{loop.name} = 0;", *step])]
    lines.append("for (int64_t flat = begin; flat < end; flat++)")
    return " * ".join(counts), [*lines, *braced([*braced(body), *step])]


def tiles_along(axis: int, size: int) -> str:
    """The number of tiles of a loop."""
    return f"((n{axis} + {size - 1}) / {size})"


def transposed_reads(nest: LoopNest) -> list[int]:
    """The arrays that are read through transposed tiles: strided ones of 4 or 8 bytes, up to `MAX_TILE_BYTES`."""
    found, free = [], MAX_TILE_BYTES
    for array in strided_reads(nest):
        size = nest.reads[array].itemsize
        free -= size * TILE[0] * PITCH if size in ELEMENT_TYPES else 0
        if size in ELEMENT_TYPES and free >= 0:
            found.append(array)
    return found


def transpose_functions(nest: LoopNest) -> Lines:
    """The functions that transpose tiles of elements of 4 and 8 bytes, `transpose4` and `transpose8`."""
    sizes = sorted({nest.reads[array].itemsize for array in transposed_reads(nest)})
    lines = _LANES.splitlines() if sizes else []
    for size in sizes:
        lines += [f"typedef {ELEMENT_TYPES[size]} bits{size} __attribute__((may_alias));"]
        for bytes_ in (32, 16):
            lines += [f"#if defined VECTOR && VECTOR == {bytes_}", *_block(size, bytes_ // size), "#endif"]
        lines += ["", *_tile(size), ""]
    return lines


def _block(size: int, lanes: int) -> Lines:
    """The transpose of a square block of vectors, by shuffles of half of their lanes in each round."""
    rows = range(lanes)
    lines = [f"const vector{size} a{i} = *(const vector{size} *)(x + {i} * stride);" for i in rows]
    letter, half = "a", lanes // 2
    while half:
        new = chr(ord(letter) + 1)
        for i in rows:
            if not i & half:
                low = [lanes + lane - half if lane & half else lane for lane in rows]
                high = [lanes + lane if lane & half else lane + half for lane in rows]
                for row, order in ((i, low), (i + half, high)):
                    taken = f"{letter}{i}, {letter}{i + half}, {', '.join(map(str, order))}"
                    lines.append(f"const vector{size} {new}{row} = __builtin_shufflevector({taken});")
        letter, half = new, half // 2
    lines += [f"*(vector{size} *)(b + {i} * {PITCH}) = {letter}{i};" for i in rows]
    attributes = f"vector_size({lanes * size}), aligned({size}), may_alias"
    return [
        f"typedef {ELEMENT_TYPES[size]} vector{size} __attribute__(({attributes}));",
        f"static inline void block{size}(const bits{size} *x, int64_t stride, bits{size} *b)",
        *braced(lines),
    ]


def _tile(size: int) -> Lines:
    """The transpose of a tile with strides `down` and `along`, by blocks, and the remainder by elements."""
    lanes = f"VECTOR / {size}"
    blocks = [
        f"m = down == 1 ? rows - rows % ({lanes}) : 0, n = columns - columns % ({lanes});",
        f"for (int64_t j = 0; m && j < n; j += {lanes})",
        f"for (int64_t i = 0; i < m; i += {lanes})",
        f"    block{size}(x + i + j * along, along, b + i * {PITCH} + j);",
    ]
    loops = [
        "for (int64_t j = 0; j < columns; j++)",
        "for (int64_t i = j < n ? m : 0; i < rows; i++)",
        f"    b[i * {PITCH} + j] = x[i * down + j * along];",
    ]
    parameters = f"const bits{size} *x, int64_t down, int64_t along, bits{size} *b, int64_t rows, int64_t columns"
    return [
        f"static inline void transpose{size}({parameters})",
        *braced(["int64_t m = 0, n = 0;", "#ifdef VECTOR", *blocks, "#endif", *loops]),
    ]
