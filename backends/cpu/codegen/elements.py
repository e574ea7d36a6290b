"""What C does at one element of a loop nest: how values are named, read, computed, accumulated and written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backends.execution.printer_common import Lines, computed, element, packed, statement, unpacked
from optree.compile.loopnest import LoopNest, Reduction, Statement, Walk

#: What arrays hold.
TYPES = {
    "bool": "_Bool",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
    "float16": "half",
    "bfloat16": "bfloat",
    "float32": "float",
    "float64": "double",
}


def type_of(dtype: np.dtype) -> str:
    """What values are computed in."""
    return TYPES[str(computed(dtype))]


def has_step(nest: LoopNest, place: int, axis: int) -> bool:
    """Whether an array's step along a loop has a name: it is not 0 or 1 by the nest, and the array goes that far."""
    level = nest.levels[place]
    known = axis == nest.vector and nest.steps[place] >= 0
    return not known and level != "once" and (level == "inner" or axis < nest.kept)


def pointer_type(nest: LoopNest, place: int) -> str:
    """The type of a pointer into an array, const where it is only read; of a place, its own."""
    if nest.is_counted(place):
        return "const int64_t "
    if place >= len(nest.reads):
        return f"{TYPES[str(nest.arrays[place])]} *"
    # Compilers take no bools from memory into vectors, but bytes, which NumPy's are.
    return "const uint8_t *" if nest.reads[place] == np.bool_ else f"const {TYPES[str(nest.reads[place])]} *"


def moved_along(nest: LoopNest, place: int, base: str, axes: Sequence[int]) -> str:
    """A pointer moved on along loops."""
    return base + "".join(f" + i{axis} * s{place}_{axis}" for axis in axes if has_step(nest, place, axis))


def read_at(nest: LoopNest, place: int, pointer: str, index: str) -> str:
    """What is read somewhere on from a pointer, or the place there."""
    return f"{pointer} + {index}" if nest.is_counted(place) else unpacked(f"{pointer}[{index}]", nest.reads[place])


def along_vector(nest: LoopNest, place: int, index: str) -> str:
    """The index along the vector loop."""
    return {0: "0", 1: index}.get(nest.steps[place], f"{index} * s{place}_{nest.vector}")


def name_of(nest: LoopNest, value: int) -> str:
    """What a value is called: of columns, there is one of each for each column of a tile."""
    tiled = nest.columns and value >= len(nest.reads) and nest.level_of(value) == "outer"
    return f"v{value}[j]" if tiled else f"v{value}"


def written_as(nest: LoopNest, value: int) -> str:
    """A value as its array holds it."""
    return packed(name_of(nest, value), nest.dtype_of(value))


def made_of(nest: LoopNest, made: Statement) -> Lines:
    """A statement's lines."""
    return statement(nest, made, type_of, lambda value: name_of(nest, value), declaration(nest, made.value))


def declaration(nest: LoopNest, value: int) -> str:
    """A value's name where it gets its value; those of columns are declared before."""
    name = name_of(nest, value)
    return name if name.endswith("]") else f"const {type_of(nest.dtype_of(value))} {name}"


def pointers_of(
    nest: LoopNest, axes: Sequence[int], levels: Sequence[str], tile: str = "", without: Sequence[int] = ()
) -> Lines:
    """Where each array of some levels, without a few, stands at a place of the kept loops."""
    lines = []
    for place, level in enumerate(nest.levels):
        if level in levels and place not in without:
            type = pointer_type(nest, place)
            base = moved_along(nest, place, f"({type})a[{place}]", axes)
            step = along_vector(nest, place, tile) if tile else "0"
            lines.append(f"{type}x{place} = {base}{'' if step == '0' else f' + {step}'};")
    return lines


def at_element(nest: LoopNest, walk: Walk, letter: str, index: str, lane: str = "") -> Lines:
    """What a walk does at one element, its arrays' pointers and the vector loop's index being called so.

    Sums are added to numbers; with a `lane`, to that place of arrays.
    """
    lines = []
    outer = {i for s in walk.statements if isinstance(s, Statement) for i in s.arguments} if nest.columns else set()
    for place in sorted({*walk.reads, *(i for i in outer if i < len(nest.reads) and nest.levels[i] == "outer")}):
        pointer = letter if nest.levels[place] == "inner" else "x"
        read = read_at(nest, place, f"{pointer}{place}", along_vector(nest, place, index))
        lines.append(f"{declaration(nest, place)} = {read};")
    lines += [f"{declaration(nest, value)} = g{value}[{index}];" for value in walk.loads]
    for made in walk.statements:
        lines += accumulated(nest, made, lane) if isinstance(made, Reduction) else made_of(nest, made)
    lines += [f"g{value}[{index}] = v{value};" for value in walk.stores]
    places = [(f"{letter}{place}[{along_vector(nest, place, index)}]", value) for place, value in walk.writes]
    return lines + [f"{place} = {written_as(nest, value)};" for place, value in places]


def accumulated(nest: LoopNest, r: Reduction, lane: str = "") -> Lines:
    """An accumulator with one more element."""
    column, taken = "[j]" if nest.columns else "", element(nest, r, type_of)
    name, flag = f"l{r.value}{lane}" if lane else f"p{r.value}{column}", f"f{r.value}{column}"
    if r.accumulator.of_numbers:
        combined = r.accumulator.of_numbers.format(name, taken)
        return [f"{name} = {combined};", f"{flag} |= {taken} != {taken};"]
    return [f"{name} = {r.accumulator.combine.format(name, taken)};"]
