"""Vectorised C sources, with generated in-register transposes; and the structs of words that C functions take."""

from __future__ import annotations

import re
from array import array
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from backends.cpu.compiler import c_text

FOLDER = Path(__file__).parent


@cache
def vector_source(name: str, number: str, /, generated: tuple[tuple[str, str], ...] = (), **defined: object) -> str:
    """The text of a C file of this folder that includes vectors.h, for ``"float"`` or ``"double"``."""
    size = {"float": 4, "double": 8}[number]
    texts = {"turn.h": _turn(size), **dict(generated)}
    return c_text(FOLDER / name, {"DOUBLE": int(size == 8), **defined}, texts)


class Struct:
    """A C struct of 64-bit words, as a C file of this folder declares it."""

    def __init__(self, file: str, name: str) -> None:
        self.name, text = name, re.sub(r"/\*.*?\*/", "", (FOLDER / file).read_text(), flags=re.DOTALL)
        (declared,) = re.findall(rf"typedef struct {{([^}}]*)}} {name};", text)
        #: The fields in order, and whether each is an array.
        self.fields = {field: bool(size) for field, size in re.findall(r"(\w+)(\[\w*\])?(?=[,;])", declared)}
        self._index = {field: i for i, field in enumerate(self.fields)}
        self._dtype = np.dtype([(field, np.int64) for field in self.fields])

    def words(self, **values: Any) -> array[int]:
        """The words of one, from the values of all fields; of an array's, a sequence."""
        if values.keys() != self.fields.keys():
            raise TypeError(f"{self.name} has the fields {list(self.fields)}, not {list(values)}")
        found = array("q")
        for field, is_array in self.fields.items():
            found.extend(values[field]) if is_array else found.append(values[field])
        return found

    def table(self, count: int) -> np.ndarray:
        """So many of them, of a struct without arrays: zeros."""
        return np.zeros(count, self._dtype)

    def set(self, struct: array[int], /, **values: int) -> None:
        """Set fields that precede all arrays."""
        for field, value in values.items():
            struct[self._index[field]] = value


@cache
def struct(file: str, name: str) -> Struct:
    """The struct of a name that a C file declares."""
    return Struct(file, name)


def _turn(size: int) -> str:
    """A C function that transposes a square block of vectors; each round shuffles half of their lanes."""
    lines = []
    for width in (64, 32, 16):
        lines += [f"#if BYTES_OF_VECTORS == {width}", *_turn_lanes(width // size), "#endif"]
    return "\n".join(lines)


def _turn_lanes(lanes: int) -> list[str]:
    lines, half, rows = (
        ["static inline __attribute__((always_inline)) void turn(vector *v)", "{"],
        lanes // 2,
        range(lanes),
    )
    while half:
        low = ", ".join(str(lanes + lane - half if lane & half else lane) for lane in rows)
        high = ", ".join(str(lanes + lane if lane & half else lane + half) for lane in rows)
        for i in rows:
            if not i & half:
                lines += [
                    f"    const vector a{half}_{i} = __builtin_shufflevector(v[{i}], v[{i + half}], {low});",
                    f"    v[{i + half}] = __builtin_shufflevector(v[{i}], v[{i + half}], {high});",
                    f"    v[{i}] = a{half}_{i};",
                ]
        half //= 2
    return [*lines, "}"]
