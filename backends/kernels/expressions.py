"""What C and CUDA have in common: values as expressions, and how elements are accumulated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backends.kernels.loopnest import LoopNest, Reduction, Statement

Lines = list[str]

#: From a dtype to the type that values of it are computed in.
Types = Callable[[np.dtype], str]


def statement(nest: LoopNest, made: Statement, type: Types, name: Callable[[int], str], declared: str) -> Lines:
    """A value, its arguments first converted to the dtypes that the op computes in.

    Parameters
    ----------
    name : callable
        From a value's number to what it is called.
    declared : str
        What the value is assigned to.
    """
    lines, names = [], []
    for i, (argument, dtype) in enumerate(zip(made.arguments, made.loop, strict=True)):
        found = name(argument)
        if nest.dtype_of(argument) != dtype:
            lines.append(f"const {type(dtype)} v{made.value}_{i} = {converted(found, dtype, type)};")
            found = f"v{made.value}_{i}"
        names.append(found)
    expression = made.expression.replace("(T)", f"({type(made.dtype)})").format(*names)
    return [*lines, f"{declared} = {converted(f'({expression})', made.dtype, type)};"]


def converted(expression: str, dtype: np.dtype, type: Types) -> str:
    """An expression in a dtype; a float16 is a float that is rounded as one."""
    cast = f"({type(dtype)}){expression}"
    return f"rounded({cast})" if dtype == np.float16 else cast


def wide(reduction: Reduction) -> np.dtype:
    """What parts are accumulated in."""
    sums = reduction.accumulator.sums and reduction.dtype.kind == "f"
    return np.dtype("float64") if sums else reduction.dtype


def initial(reduction: Reduction) -> str:
    """An accumulator's value of nothing."""
    dtype = reduction.dtype
    if dtype.kind == "f":
        lowest, highest = "-INFINITY", "INFINITY"
    elif dtype.kind == "b":
        lowest, highest = "0", "1"
    else:
        limits, suffix = np.iinfo(dtype), {"int64": "LL", "uint64": "ULL"}.get(str(dtype), "")
        lowest = f"(-{limits.max}{suffix} - 1)" if dtype.kind == "i" else "0"
        highest = f"{limits.max}{suffix}"
    return reduction.accumulator.start.format(lowest=lowest, highest=highest)


def element(nest: LoopNest, reduction: Reduction, type: Types) -> str:
    """What a reduction takes of each element."""
    name = f"v{reduction.argument}"
    return name if nest.dtype_of(reduction.argument) == reduction.dtype else converted(name, reduction.dtype, type)


def braced(lines: Lines) -> Lines:
    """A block of lines."""
    return ["{", *(f"    {line}" if line else line for line in lines), "}"]
