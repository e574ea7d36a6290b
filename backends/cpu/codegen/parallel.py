"""Work sharing among threads, in C: loops as functions of a range of their flat index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backends.execution.dialect import Lines, braced, without_unused

SHARED = """
typedef void part(const void *state, int64_t begin, int64_t end, int64_t thread);

/* Given are how many threads to use, and the function that shares work among them (backends/cpu/workers.py). */
static inline void shared(part *run, const void *state, int64_t count, const int64_t *threads)
{
    if (threads[0] > 1)
        ((void (*)(part *, const void *, int64_t, int64_t))threads[1])(run, state, count, threads[0]);
    else
        run(state, 0, count, 0);
}
"""


class Loop(NamedTuple):
    """A loop's index and size, by their names in C."""

    name: str
    size: str


def part(name: str, body: Lines) -> Lines:
    """A function of a flat index's range from `begin` to `end`."""
    head = f"static void {name}(const void *state, int64_t begin, int64_t end, int64_t thread)"
    return [head, *braced(without_unused(["(void)thread;", *body])), ""]


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
    lines.append("for (int64_t place = begin; place < end; place++)")
    return " * ".join(counts), [*lines, *braced([*braced(body), *step])]
