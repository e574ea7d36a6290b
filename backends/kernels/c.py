"""Loop nests as C."""

from __future__ import annotations

import numpy as np

from backends.kernels.loopnest import LoopNest, Statement
from backends.kernels.vectormath import VECTOR_MATH

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
    "float32": "float",
    "float64": "double",
}

#: Fewer elements than this are not worth waking threads for.
PARALLEL = 1 << 16

NAME = "kernel"

HEAD = f"""#include <stdint.h>
{VECTOR_MATH}#include <tgmath.h>
"""


def source(nest: LoopNest) -> str:
    """The C source of a nest: a function of one array of 64-bit integers.

    It holds the arrays' addresses, the loops' sizes, each array's steps along the
    loops in elements, the numbers, and how many threads to use.
    """
    arrays = [*nest.reads, *(nest.dtype_of(value) for value in nest.writes)]
    steps = len(arrays) + nest.rank
    numbers = steps + len(arrays) * nest.rank
    lines = [HEAD, f"void {NAME}(const int64_t *a)", "{"]
    lines += [f"    const int64_t n{axis} = a[{len(arrays) + axis}];" for axis in range(nest.rank)]
    for place in range(len(arrays)):
        lines += [
            f"    const int64_t s{place}_{axis} = a[{steps + place * nest.rank + axis}];"
            for axis in range(nest.rank - (nest.steps[place] >= 0))
        ]
    for place, dtype in enumerate(nest.numbers):
        lines.append(f"    const {_type(dtype)} c{place} = *(const {_type(dtype)} *)(a + {numbers + place});")
    lines.append(f"    const int threads = (int)a[{numbers + len(nest.numbers)}];")
    lines += _loops(nest, arrays)
    return "\n".join([*lines, "}", ""])


def _type(dtype: np.dtype) -> str:
    return TYPES[str(dtype)]


def _loops(nest: LoopNest, arrays: list[np.dtype]) -> list[str]:
    """The loops: all but the innermost share their places out to threads, or a single one its parts."""
    last = nest.rank - 1
    lines = []
    if nest.rank > 1:
        outer = f" collapse({last})" if last > 1 else ""
        lines.append(f"    #pragma omp parallel for{outer} schedule(static) num_threads(threads) if (threads > 1)")
    for axis in range(last):
        lines.append(f"{'    ' * (axis + 1)}for (int64_t i{axis} = 0; i{axis} < n{axis}; i{axis}++)")
    pad = "    " * nest.rank
    if nest.rank > 1:
        lines.append(f"{'    ' * last}{{")
    for place, dtype in enumerate(arrays):
        qualifier = "const " if place < len(nest.reads) else ""
        offset = "".join(f" + i{axis} * s{place}_{axis}" for axis in range(last))
        lines.append(f"{pad}{qualifier}{_type(dtype)} *x{place} = ({qualifier}{_type(dtype)} *)a[{place}]{offset};")
    threads = "parallel for simd schedule(static) num_threads(threads) if (parallel: threads > 1)"
    lines.append(f"{pad}#pragma omp {threads if nest.rank == 1 else 'simd'}")
    lines.append(f"{pad}for (int64_t i = 0; i < n{last}; i++) {{")
    lines += [f"{pad}    {line}" for line in _body(nest, arrays, last)]
    lines.append(f"{pad}}}")
    if nest.rank > 1:
        lines.append(f"{'    ' * last}}}")
    return lines


def _index(nest: LoopNest, place: int, last: int) -> str:
    step = nest.steps[place]
    return {0: "0", 1: "i"}.get(step, f"i * s{place}_{last}")


def _body(nest: LoopNest, arrays: list[np.dtype], last: int) -> list[str]:
    """What happens at one place."""
    lines = [
        f"const {_type(dtype)} v{place} = x{place}[{_index(nest, place, last)}];"
        for place, dtype in enumerate(nest.reads)
    ]
    lines += [f"const {_type(dtype)} v{len(nest.reads) + i} = c{i};" for i, dtype in enumerate(nest.numbers)]
    for statement in nest.statements:
        lines += _statement(nest, statement)
    for i, value in enumerate(nest.writes):
        lines.append(f"x{len(nest.reads) + i}[{_index(nest, len(nest.reads) + i, last)}] = v{value};")
    return lines


def _statement(nest: LoopNest, statement: Statement) -> list[str]:
    """A value, its arguments first converted to the dtypes that the op computes in."""
    lines, names = [], []
    for i, (argument, dtype) in enumerate(zip(statement.arguments, statement.loop, strict=True)):
        name = f"v{argument}"
        if nest.dtype_of(argument) != dtype:
            lines.append(f"const {_type(dtype)} v{statement.value}_{i} = ({_type(dtype)})v{argument};")
            name = f"v{statement.value}_{i}"
        names.append(name)
    target = _type(statement.dtype)
    expression = statement.expression.replace("(T)", f"({target})").format(*names)
    return [*lines, f"const {target} v{statement.value} = ({target})({expression});"]
