"""What threads share, as C: functions of some places of loops, and the calls that share them out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from backends.execution.printer_common import Lines, braced

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
    """A loop whose places threads share.

    Attributes
    ----------
    name : str
        Of its index.
    places : str
        How many there are.
    """

    name: str
    places: str


#: A declaration of one name with a value.
_DECLARED = re.compile(r"\s*(?:const )?\w+ \*?(?:const )?(\w+) = [^,]*;$")


def needed(lines: Lines) -> Lines:
    """Lines without declarations of what none after them names."""
    named: set[str] = set()
    kept: Lines = []
    for line in reversed(lines):
        declared = _DECLARED.match(line)
        if declared is None or declared[1] in named:
            named.update(re.findall(r"\w+", line))
            kept.append(line)
    return kept[::-1]


def part(name: str, body: Lines) -> Lines:
    """A function of some of the places that threads share, from `begin` to `end`."""
    head = f"static void {name}(const void *state, int64_t begin, int64_t end, int64_t thread)"
    return [head, *braced(needed(["(void)thread;", *body])), ""]


def places_of(loops: Sequence[Loop], body: Lines) -> tuple[str, Lines]:
    """How many places loops have, and the loops from the `begin`-th of them to the `end`-th."""
    counts = [loop.places for loop in loops]
    if len(loops) == 1:
        index = loops[0].name
        return counts[0], [f"for (int64_t {index} = begin; {index} < end; {index}++)", *braced(body)]
    lines, step = [], [f"{loops[0].name}++;"]
    for i, loop in enumerate(loops):
        beyond = " * ".join(counts[i + 1 :])
        inner = {0: "", 1: f" / {beyond}"}.get(len(counts) - i - 1, f" / ({beyond})")
        lines.append(f"int64_t {loop.name} = begin{inner}{f' % {loop.places}' if i else ''};")
    for loop in loops[1:]:
        step = [f"if (++{loop.name} == {loop.places})", *braced([f"{loop.name} = 0;", *step])]
    lines.append("for (int64_t place = begin; place < end; place++)")
    return " * ".join(counts), [*lines, *braced([*braced(body), *step])]
