"""CUDA of derivatives of pools: each thread sums the windows that contain its element, in a fixed order.

So results are deterministic, without atomic operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from backends.execution.dialect import grouped
from backends.execution.pooling import Kind
from backends.gpu.codegen.device_functions import QUOTIENT, TYPES, grid_stride_kernel, indices_of, offset_of
from optree.records import NamedTuple

#: The maximum elements of windows whose loops are unrolled.
UNROLLED = 32


class Pooled(NamedTuple):
    """An axis along which windows slide."""

    window: int
    stride: int


#: For each axis its windows, or None where none slide.
Axes = Sequence[Pooled | None]

#: The axes that have windows, each with these.
PooledAxes = Sequence[tuple[int, Pooled]]

_HEAD = f"""#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
{QUOTIENT.strip()}
"""


def parameter_names(axes: Axes) -> list[str]:
    """The names of a kernel's parameters after its arrays, of x, y and z.

    Of each axis ``size`` is the number of elements, ``count`` that of windows, ``before`` the padding, and ``m`` the
    divisor by what is written.
    """
    sizes = [f"{name}{axis}" for axis in range(len(axes)) for name in ("size", "count", "before")]
    return ["total", *sizes, *(f"m{axis}" for axis in range(1, len(axes)))]


def source(kind: Kind, type: str, axes: Axes, counts_padding: bool = False) -> str:
    """The CUDA source of a pool of elements of a type along axes of C-contiguous arrays.

    Parameters
    ----------
    counts_padding : bool
        Whether the cells of a window are all of its elements, or those inside.
    """
    headers, wide = TYPES[type]
    types = dict.fromkeys("xy", type) | {"z": "int"}
    arrays = [f"{'' if name == 'x' else 'const '}{types[name]} *__restrict__ {name}s" for name in kind.arrays]
    parameters = [*arrays, *(f"const long long {name}" for name in parameter_names(axes))]
    lines = indices_of([f"size{axis}" for axis in range(len(axes))])
    pooled = [(axis, along) for axis, along in enumerate(axes) if along is not None]
    lines += _by_element(kind, type, wide, axes, pooled, counts_padding)
    return headers + _HEAD + grid_stride_kernel("pooled", parameters, lines)


def _offset(axes: Axes, size: str, index: str) -> str:
    """The offset of an index in an array of some sizes; ``index`` is the prefix of pooled axes' indices."""
    names = [f"{'i' if pooled is None else index}{axis}" for axis, pooled in enumerate(axes)]
    return offset_of(names, [f"{size}{axis}" for axis in range(len(axes))])


def _inside(axis: int, pooled: Pooled, window: str) -> list[str]:
    """The first and the last element, and one more, of a window that are inside the axis."""
    return [
        f"const int begin{axis} = {window} * {pooled.stride} - (int)before{axis};",
        f"const int first{axis} = begin{axis} < 0 ? -begin{axis} : 0;",
        f"const int room{axis} = (int)size{axis} - begin{axis};",
        f"const int until{axis} = room{axis} < {pooled.window} ? room{axis} : {pooled.window};",
    ]


def _with_cells(statement: str, wide: str, pooled: PooledAxes, counts_padding: bool) -> list[str]:
    """A statement on a window's ``cells``: a constant where all are inside, by which a division is short."""
    whole = prod(along.window for _, along in pooled)
    constant = [f"const {wide} cells = {whole};", statement]
    if counts_padding:
        return ["{", *constant, "}"]
    is_whole = " && ".join(f"until{axis} - first{axis} == {along.window}" for axis, along in pooled)
    inside = " * ".join(f"(until{axis} - first{axis})" for axis, _ in pooled)
    return [f"if ({is_whole}) {{", *constant, "} else {", f"const {wide} cells = ({wide})({inside});", statement, "}"]


def _by_element(kind: Kind, type: str, wide: str, axes: Axes, pooled: PooledAxes, counts_padding: bool) -> list[str]:
    """An element's sum over the windows that it is in, those first of which it is an early element."""
    lines = [f"{wide} x = 0;"]
    for axis, along in pooled:
        lines += [
            f"const int end{axis} = i{axis} + (int)before{axis};",
            f"const int newest{axis} = (int)((unsigned int)end{axis} / {along.stride}u);",
            f"const int last{axis} = newest{axis} < (int)count{axis} ? newest{axis} : (int)count{axis} - 1;",
        ]
    counts = [-(-along.window // along.stride) for _, along in pooled]
    unrolled = prod(counts) <= UNROLLED
    number = "0"
    for depth, ((axis, along), count) in enumerate(zip(pooled, counts, strict=True)):
        room = "    " * depth
        number = f"{grouped(number)} * {along.window} + e{axis}" if depth else f"e{axis}"
        lines += [
            f"{room}#pragma unroll{'' if unrolled else ' 1'}",
            f"{room}for (int k{axis} = 0; k{axis} < {count}; k{axis}++) {{",
            f"{room}    const int w{axis} = last{axis} - k{axis}, e{axis} = end{axis} - w{axis} * {along.stride};",
            f"{room}    if (w{axis} < 0 || e{axis} >= {along.window})",
            f"{room}        continue;",
        ]
        if not kind.is_by_index and not counts_padding:
            lines += [f"{room}    {line}" for line in _inside(axis, along, f"w{axis}")]
    room = "    " * len(pooled)
    met = [f"const int window = {_offset(axes, 'count', 'w')};"]
    if kind.is_by_index:
        met += [f"if (zs[window] == {number}) {{", f"    const {wide} y = ({wide})ys[window];"]
        met += [f"    {kind.meet}", "}"]
    else:
        met += [f"const {wide} y = ({wide})ys[window];", f"{wide} t;"]
        met += [*_with_cells(kind.begin, wide, pooled, counts_padding), kind.meet]
    lines += [f"{room}{line}" for line in met]
    lines += ["    " * depth + "}" for depth in reversed(range(len(pooled)))]
    return [*lines, f"xs[at] = ({type})x;"]
