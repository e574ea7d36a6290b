"""Loop nests as C."""

from __future__ import annotations

import numpy as np

from backends.kernels.loopnest import LoopNest, Reduction, Statement
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

#: Fewer elements than this are not worth waking threads for: it takes tens of microseconds, and where other
#: processes keep the processors busy, a slice of their time.
PARALLEL = 1 << 19

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
    lines = [HEAD, *_declarations(nest), f"void {NAME}(const int64_t *a)", "{"]
    lines += [f"    const int64_t n{axis} = a[{len(arrays) + axis}];" for axis in range(nest.rank)]
    for place in range(len(arrays)):
        lines += [
            f"    const int64_t s{place}_{axis} = a[{steps + place * nest.rank + axis}];"
            for axis in range(nest.rank - (nest.steps[place] >= 0))
        ]
    for place, dtype in enumerate(nest.numbers):
        lines.append(f"    const {_type(dtype)} c{place} = *(const {_type(dtype)} *)(a + {numbers + place});")
    lines.append(f"    const int threads = (int)a[{numbers + len(nest.numbers)}];")
    lines += _reduction_loops(nest, arrays) if _reductions(nest) else _loops(nest, arrays)
    return "\n".join([*lines, "}", ""])


def _type(dtype: np.dtype) -> str:
    return TYPES[str(dtype)]


def _loops(nest: LoopNest, arrays: list[np.dtype]) -> list[str]:
    """The loops: all but the innermost share their places out to threads, or a single one its parts."""
    last = nest.rank - 1
    lines = _kept_loops(nest, arrays, last)
    pad = "    " * nest.rank
    threads = "parallel for simd schedule(static) num_threads(threads) if (parallel: threads > 1)"
    lines.append(f"{pad}#pragma omp {threads if nest.rank == 1 else 'simd'}")
    lines.append(f"{pad}for (int64_t i = 0; i < n{last}; i++) {{")
    lines += [f"{pad}    {line}" for line in _body(nest, arrays, last)]
    lines.append(f"{pad}}}")
    return [*lines, f"{'    ' * last}}}"] if last else lines


def _kept_loops(nest: LoopNest, arrays: list[np.dtype], count: int) -> list[str]:
    """So many loops, the body of the last opened, and where each array stands in it."""
    lines = []
    if count:
        several = f" collapse({count})" if count > 1 else ""
        lines.append(f"    #pragma omp parallel for{several} schedule(static) num_threads(threads) if (threads > 1)")
    for axis in range(count):
        lines.append(f"{'    ' * (axis + 1)}for (int64_t i{axis} = 0; i{axis} < n{axis}; i{axis}++)")
    if count:
        lines.append(f"{'    ' * count}{{")
    for place, dtype in enumerate(arrays):
        type = _pointer(nest, place, dtype)
        offset = "".join(f" + i{axis} * s{place}_{axis}" for axis in range(count) if _has_step(nest, place, axis))
        lines.append(f"{'    ' * (count + 1)}{type}x{place} = ({type})a[{place}]{offset};")
    return lines


def _pointer(nest: LoopNest, place: int, dtype: np.dtype) -> str:
    """The type of a pointer into an array, which those that are only read are not written through."""
    return f"{'const ' if place < len(nest.reads) else ''}{_type(dtype)} *"


def _has_step(nest: LoopNest, place: int, axis: int) -> bool:
    """Whether an array's step along a loop has a name, and is not 0 or 1 by the nest."""
    return axis < nest.rank - 1 or nest.steps[place] < 0


def _index(nest: LoopNest, place: int, last: int) -> str:
    step = nest.steps[place]
    return {0: "0", 1: "i"}.get(step, f"i * s{place}_{last}")


def _body(nest: LoopNest, arrays: list[np.dtype], last: int) -> list[str]:
    """What happens at one place."""
    lines = [
        f"const {_type(dtype)} v{place} = x{place}[{_index(nest, place, last)}];"
        for place, dtype in enumerate(nest.reads)
    ]
    lines += _numbers(nest)
    for statement in nest.statements:
        lines += _statement(nest, statement)
    for i, value in enumerate(nest.writes):
        lines.append(f"x{len(nest.reads) + i}[{_index(nest, len(nest.reads) + i, last)}] = v{value};")
    return lines


def _numbers(nest: LoopNest) -> list[str]:
    return [f"const {_type(dtype)} v{len(nest.reads) + i} = c{i};" for i, dtype in enumerate(nest.numbers)]


def _statement(nest: LoopNest, statement: Statement | Reduction) -> list[str]:
    """A value, its arguments first converted to the dtypes that the op computes in."""
    if isinstance(statement, Reduction):
        return []
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


# Reductions

#: So many elements are accumulated in the dtype itself before they join a sum in float64.
BLOCK = 512

#: So many elements of a single long reduction are one thread's part, whatever the number of threads.
PART = 1 << 16


def _reductions(nest: LoopNest) -> list[Reduction]:
    return [statement for statement in nest.statements if isinstance(statement, Reduction)]


def _wide(reduction: Reduction) -> str:
    """The type that parts are accumulated in."""
    return "double" if reduction.accumulator.sums else _type(reduction.dtype)


def _join(reduction: Reduction) -> str:
    """What OpenMP calls the combination of two parts."""
    return "+" if reduction.accumulator.sums else f"join{reduction.value}"


def _declarations(nest: LoopNest) -> list[str]:
    """How OpenMP combines what the lanes of a vector have accumulated."""
    lines = []
    for reduction in _reductions(nest):
        if reduction.accumulator.sums:
            continue
        combined = reduction.accumulator.combine.format("omp_out", "omp_in")
        lines.append(
            f"#pragma omp declare reduction(join{reduction.value} : {_type(reduction.dtype)} : omp_out = {combined}) "
            f"initializer(omp_priv = {reduction.accumulator.start})"
        )
    return lines


def _reduction_loops(nest: LoopNest, arrays: list[np.dtype]) -> list[str]:
    """The kept loops, share out to threads, and in each place the reduced loops; a single one in parts."""
    alone = nest.kept == 0 and nest.rank == 1
    lines = _kept_loops(nest, arrays, nest.kept)
    pad = "    " * (nest.kept + 1)
    body = _read_once(nest) + _made(nest, "before")
    count = " * ".join(f"(double)n{axis}" for axis in range(nest.kept, nest.rank))
    for r in _reductions(nest):
        body += _opened(r)
    body += _in_parts(nest, arrays) if alone else _all_places(nest, arrays)
    for r in _reductions(nest):
        finished = r.accumulator.finish.format(_closed(r), count=f"({count})")
        body.append(f"const {_type(r.dtype)} v{r.value} = ({_type(r.dtype)})({finished});")
    body += _made(nest, "after")
    for i, value in enumerate(nest.writes):
        if not nest.inner[len(nest.reads) + i]:
            body.append(f"x{len(nest.reads) + i}[0] = v{value};")
    lines += [pad + line for line in body]
    return [*lines, f"{'    ' * nest.kept}}}"] if nest.kept else lines


def _read_once(nest: LoopNest) -> list[str]:
    """What is read once for each place of the kept loops, ahead of the reduced ones."""
    reads = [(place, _type(dtype)) for place, dtype in enumerate(nest.reads) if not nest.inner[place]]
    return [f"const {type} v{place} = x{place}[0];" for place, type in reads] + _numbers(nest)


def _made(nest: LoopNest, level: str) -> list[str]:
    """What is made once for each place of the kept loops, before the reduced ones or after."""
    made = [s for s in nest.statements if isinstance(s, Statement) and s.level == level]
    return [line for statement in made for line in _statement(nest, statement)]


def _all_places(nest: LoopNest, arrays: list[np.dtype]) -> list[str]:
    """The reduced loops, the innermost in blocks."""
    last = nest.rank - 1
    lines = [f"for (int64_t i{axis} = 0; i{axis} < n{axis}; i{axis}++)" for axis in range(nest.kept, last)]
    lines.append("{")
    for place, dtype in enumerate(arrays):
        if nest.inner[place]:
            type = _pointer(nest, place, dtype)
            offset = "".join(f" + i{axis} * s{place}_{axis}" for axis in range(nest.kept, last))
            lines.append(f"    {type}y{place} = x{place}{offset};")
    lines += [f"    {line}" for line in _blocks(nest, last, "0", f"n{last}")]
    return [*lines, "}"]


def _in_parts(nest: LoopNest, arrays: list[np.dtype]) -> list[str]:
    """A single reduced loop, in parts that threads share; the parts are the same for any number of threads."""
    lines = ["enum { PARTS = 1024 };", "const int64_t least = (n0 + PARTS - 1) / PARTS;"]
    lines.append(f"const int64_t size = least > {PART} ? least : {PART};")
    lines.append("const int64_t parts = (n0 + size - 1) / size;")
    for r in _reductions(nest):
        lines.append(f"{_wide(r)} q{r.value}[PARTS];")
    lines.append("#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    lines.append("for (int64_t k = 0; k < parts; k++) {")
    for place, dtype in enumerate(arrays):
        if nest.inner[place]:
            type = _pointer(nest, place, dtype)
            lines.append(f"    {type}y{place} = x{place};")
    lines += [f"    {line}" for r in _reductions(nest) for line in _opened(r)]
    lines.append("    const int64_t end = (k + 1) * size < n0 ? (k + 1) * size : n0;")
    lines += [f"    {line}" for line in _blocks(nest, 0, "k * size", "end")]
    lines += [f"    q{r.value}[k] = {_closed(r)};" for r in _reductions(nest)]
    lines.append("}")
    lines.append("for (int64_t k = 0; k < parts; k++) {")
    lines += [f"    {line}" for r in _reductions(nest) for line in _added(r, f"q{r.value}[k]")]
    return [*lines, "}"]


def _blocks(nest: LoopNest, last: int, start: str, end: str) -> list[str]:
    """The innermost reduced loop."""
    lines = [f"for (int64_t b = {start}; b < {end}; b += {BLOCK}) {{"]
    lines.append(f"    const int64_t e = b + {BLOCK} < {end} ? b + {BLOCK} : {end};")
    for r in _reductions(nest):
        lines.append(f"    {_type(r.dtype)} p{r.value} = {r.accumulator.start};")
    joins = "".join(f" reduction({_join(r)} : p{r.value})" for r in _reductions(nest))
    lines.append(f"    #pragma omp simd{joins}")
    lines.append("    for (int64_t i = b; i < e; i++) {")
    body = [
        f"const {_type(dtype)} v{place} = y{place}[{_index(nest, place, last)}];"
        for place, dtype in enumerate(nest.reads)
        if nest.inner[place]
    ]
    for statement in nest.statements:
        if isinstance(statement, Reduction):
            name = f"p{statement.value}"
            body.append(f"{name} = {statement.accumulator.combine.format(name, f'v{statement.argument}')};")
        elif statement.level == "inner":
            body += _statement(nest, statement)
    for i, value in enumerate(nest.writes):
        place = len(nest.reads) + i
        if nest.inner[place]:
            body.append(f"y{place}[{_index(nest, place, last)}] = v{value};")
    lines += [f"        {line}" for line in body]
    lines.append("    }")
    for r in _reductions(nest):
        lines += [f"    {line}" for line in _added(r, f"p{r.value}")]
    return [*lines, "}"]


def _is_compensated(reduction: Reduction) -> bool:
    """Whether what rounding takes from a sum is kept beside it: nothing wider is there to add up float64 in."""
    return reduction.accumulator.sums and str(reduction.dtype) == "float64"


def _opened(reduction: Reduction) -> list[str]:
    """An accumulator of nothing."""
    lines = [f"{_wide(reduction)} r{reduction.value} = {reduction.accumulator.start};"]
    return [*lines, f"double k{reduction.value} = 0;"] if _is_compensated(reduction) else lines


def _added(reduction: Reduction, part: str) -> list[str]:
    """An accumulator with one more part (Neumaier's sum, where it is compensated)."""
    r, k, u = (f"{letter}{reduction.value}" for letter in "rku")
    combined = reduction.accumulator.combine.format(r, part)
    if not _is_compensated(reduction):
        return [f"{r} = {combined};"]
    return [
        f"const double {u} = {combined};",
        f"{k} += fabs({r}) >= fabs({part}) ? ({r} - {u}) + {part} : ({part} - {u}) + {r};",
        f"{r} = {u};",
    ]


def _closed(reduction: Reduction) -> str:
    """What an accumulator holds at the end; an infinite or nan sum has no compensation."""
    r, k = f"r{reduction.value}", f"k{reduction.value}"
    return f"({k} - {k} == 0 ? {r} + {k} : {r})" if _is_compensated(reduction) else r
