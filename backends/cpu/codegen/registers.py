"""Contractions of few elements, whose columns are accumulated in registers."""

from __future__ import annotations

from backends.execution.printer_common import Lines, braced, without_unused
from optree.compile.loopnest import LoopNest

#: The columns that are accumulated together: as many as there are, as a sum of these, which the compiler knows.
REGISTER_TILES = (32, 16, 8, 4, 2, 1)


def columns_function(nest: LoopNest, body: Lines) -> Lines:
    """The function that computes a number of columns that the compiler knows, so that it has them in registers."""
    indices = "".join(f", const int64_t i{axis}" for axis in range(nest.outer - 1))
    head = f"static inline __attribute__((always_inline)) void columns(const int64_t *const a{indices}, "
    return [f"{head}const int64_t c, const int64_t m)", *braced(without_unused(body)), ""]


def by_columns(nest: LoopNest) -> Lines:
    """A tile of columns, by calls of `columns_function`."""
    first, *rest = REGISTER_TILES
    n, indices = f"n{nest.vector}", "".join(f", i{axis}" for axis in range(nest.outer - 1))
    lines = [f"int64_t c = t * {first};", f"const int64_t m = {n} - c < {first} ? {n} - c : {first};"]
    lines += [f"if (m == {first})", f"    columns(a{indices}, c, {first});"]
    for width in rest:
        calls = [f"columns(a{indices}, c, {width});", f"c += {width};"]
        lines += [f"if (m & {width})", *braced(calls)]
    return lines
