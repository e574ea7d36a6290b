"""C of the innermost loop where taps read within bounds, or at quotients of its index."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from backends.execution.dialect import Lines, braced

#: The maximum elements that are computed together where taps read at quotients of the vector loop's index.
MOST_RESIDUES = 8


def simd(loop: str) -> Lines:
    """The head of a loop that compilers vectorise."""
    return ["#pragma omp simd", loop]


def bounded_loop(printer: Any, element: Callable[[], Lines], start: str, end: str) -> Lines:
    """The loop where all taps are within their bounds along it, with tests along outer loops or none, then its ends.

    Parameters
    ----------
    printer : CPrinter
    element : callable
        The body at an index, `i`.
    start, end : str
    """
    nest, outer = printer.nest, range(printer.last)
    along = [n for n, loop in enumerate(nest.ranges) if loop == printer.last]
    spacings = {each.spacing for each in nest.quotients if each.loop == printer.last}
    conditions = {printer.within(array, outer, lambda _: None) for array in range(len(nest.reads))} - {""}
    lines, edges = printer.flags(), Lines()
    if len(spacings) > 1 or max(spacings, default=1) > MOST_RESIDUES:
        return [*lines, *_elements(printer, element, start, end, range(nest.rank))]
    (spacing,) = spacings or {1}
    if along or spacing > 1:
        lines.append(f"int64_t from = {start}, to = {end};")
        for n in along:
            lines.append(f"from = from > low{n} ? from : low{n}, to = to < high{n} ? to : high{n};")
        if spacing > 1:
            lines.append(f"from = (from + {spacing - 1}) / {spacing} * {spacing}, to = to / {spacing} * {spacing};")
        lines += ["if (to < from)", f"    from = to = {start};"]
        ends = f"const int64_t first = k ? to : {start}, until = k ? {end} : from;"
        edge = [ends, *_elements(printer, element, "first", "until", range(nest.rank))]
        edges, start, end = ["for (int k = 0; k < 2; k++)", *braced(edge)], "from", "to"
    middle = _elements(printer, element, start, end, (), spacing)
    if conditions:
        tested = _elements(printer, element, start, end, outer, spacing)
        middle = [f"if ({' & '.join(sorted(conditions))})", *braced(middle), "else", *braced(tested)]
    return [*lines, *middle, *edges]


def _elements(
    printer: Any, element: Callable[[], Lines], start: str, end: str, tested: Collection[int], spacing: int = 1
) -> Lines:
    """A vectorised loop over elements, which tests the conditions of taps along some loops.

    With a spacing, it is over that many elements at once: so the elements that a tap reads are next to each other, and
    those at which it reads none are known.
    """
    printer.tested = tested
    if spacing == 1:
        lines = [*simd(f"for (int64_t i = {start}; i < {end}; i++)"), *braced(element())]
    else:
        body: Lines = []
        for printer.residue in range(spacing):
            body += braced([f"const int64_t i = c * {spacing} + {printer.residue};", *element()])
        printer.residue = None
        lines = [*simd(f"for (int64_t c = {start} / {spacing}; c < {end} / {spacing}; c++)"), *braced(body)]
    printer.tested = ()
    return lines
