"""Vectorised C sources, with generated in-register transposes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from backends.cpu.compiler import c_text

FOLDER = Path(__file__).parent


@cache
def vector_source(name: str, number: str, /, generated: tuple[tuple[str, str], ...] = (), **defined: object) -> str:
    """The text of a C file of this folder that includes vectors.h, for ``"float"`` or ``"double"``."""
    size = {"float": 4, "double": 8}[number]
    texts = {"turn.h": _turn(size), **dict(generated)}
    return c_text(FOLDER / name, {"DOUBLE": int(size == 8), **defined}, texts)


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
