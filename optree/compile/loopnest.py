"""A kernel as a loop nest, in no language: what is read, computed and written at each place of a domain."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from optree.ops.traits import Accumulator

#: What a value costs to make again, by its expression: at least so much is kept for the walks that follow.
KEPT = 4

_FUNCTION = re.compile(r"\b(?!fabs\b)[a-z_]+[0-9]*\(")


class Statement(NamedTuple):
    """One value: ``value = expression(arguments)``.

    Attributes
    ----------
    value : int
        Its number in the nest: first the arrays that are read, then the numbers, then the statements.
    expression : str
        The op's kernel expression, of ``{0}``, ``{1}``, ...
    arguments : tuple of int
        The numbers of the values that it takes.
    loop : tuple of numpy.dtype
        The dtypes that the arguments are converted to.
    dtype : numpy.dtype
        Its own.
    level : {'once', 'outer', 'inner'}
        Whether it is made once, at each place of the kept loops, or at each element.
    stage : int
        How many walks of the reduced loops come before it.
    """

    value: int
    expression: str
    arguments: tuple[int, ...]
    loop: tuple[np.dtype, ...]
    dtype: np.dtype
    level: str = "inner"
    stage: int = 0

    @property
    def cost(self) -> int:
        """About how many instructions it is."""
        return 1 + 8 * len(_FUNCTION.findall(self.expression)) + 3 * self.expression.count("/")


class Reduction(NamedTuple):
    """One value that is accumulated over the reduced loops.

    Attributes
    ----------
    value : int
        Its number in the nest.
    argument : int
        The number of the value whose elements it takes.
    accumulator : Accumulator
    dtype : numpy.dtype
        Its own, which elements are converted to.
    stage : int
        The walk that accumulates it: how many come before.
    """

    value: int
    argument: int
    accumulator: Accumulator
    dtype: np.dtype
    stage: int = 0


class LoopNest(NamedTuple):
    """Statements over a domain. Equal nests are printed as equal source.

    Attributes
    ----------
    reads : tuple of numpy.dtype
        Of the arrays that are read. The last may be no arrays, but the places of
        elements in some shape, counted in C order: they have steps, and no memory.
    numbers : tuple of numpy.dtype
        Of the Python numbers: bool, int64, uint64 or float64.
    statements : tuple of Statement or Reduction
        In order; their numbers follow those of the arrays and numbers.
    writes : tuple of int
        The numbers of the values that are written, each to an array of its dtype.
    rank : int
        The number of loops, after axes that are contiguous together are joined.
    kept : int
        How many of them, the outer ones, are kept; the others are reduced. All of
        them, in a nest without reductions.
    levels : tuple of str
        For each array, those read and then those written, whether it has one
        element, one for each place of the kept loops, or one for each of all
        loops' places: as a `Statement`'s level.
    steps : tuple of int
        For each array, those read and then those written, the step in elements
        along the vector loop if it is 0 or 1; -1 if it is known when it runs.
    columns : bool
        Whether the innermost kept loop is the vector loop, along which elements
        lie together; the innermost reduced one otherwise.
    split : bool
        Whether the reduced loops are shared out, for the kept ones are too few.
    across : int
        Another loop than the innermost, along which elements of some array lie
        together; -1 where there is none, or the nest reduces.
    counted : int
        How many of the reads are places.
    """

    reads: tuple[np.dtype, ...]
    numbers: tuple[np.dtype, ...]
    statements: tuple[Statement | Reduction, ...]
    writes: tuple[int, ...]
    rank: int
    kept: int
    levels: tuple[str, ...]
    steps: tuple[int, ...]
    columns: bool = False
    split: bool = False
    across: int = -1
    counted: int = 0

    @property
    def cost(self) -> int:
        """About how many instructions an element takes."""
        made = sum(s.cost if isinstance(s, Statement) else 1 for s in self.statements)
        return made + sum(level == "inner" for level in self.levels)

    @property
    def reductions(self) -> list[Reduction]:
        return [statement for statement in self.statements if isinstance(statement, Reduction)]

    @property
    def vector(self) -> int:
        """The loop along which elements lie together."""
        return self.kept - 1 if self.columns else self.rank - 1

    @property
    def arrays(self) -> list[np.dtype]:
        """The dtypes of the arrays, those read and then those written."""
        return [*self.reads, *(self.dtype_of(value) for value in self.writes)]

    def is_counted(self, place: int) -> bool:
        """Whether what is read is no array, but places."""
        return len(self.reads) - self.counted <= place < len(self.reads)

    def dtype_of(self, value: int) -> np.dtype:
        """The dtype of a value by its number."""
        known = (*self.reads, *self.numbers)
        return known[value] if value < len(known) else self.statements[value - len(known)].dtype

    def level_of(self, value: int) -> str:
        """The level of a value by its number; that of a reduction is outer."""
        if value < len(self.reads):
            return self.levels[value]
        if value < len(self.reads) + len(self.numbers):
            return "once"
        statement = self.statements[value - len(self.reads) - len(self.numbers)]
        return statement.level if isinstance(statement, Statement) else "outer"

    def writes_at(self, level: str) -> list[tuple[int, int]]:
        """The arrays that are written at a level, by their places among all, and the values written."""
        first = len(self.reads)
        return [(first + i, value) for i, value in enumerate(self.writes) if self.levels[first + i] == level]

    def made(self, level: str, stage: int = 0) -> list[Statement]:
        """What is made once, or at each place of the kept loops when so many walks are over."""
        return [s for s in self.statements if isinstance(s, Statement) and s.level == level and s.stage == stage]


def crossing_reads(nest: LoopNest) -> list[int]:
    """The arrays that a nest of elements reads in steps along its vector loop, where some lie along another loop."""
    if nest.across < 0:
        return []
    inner = [place for place in range(len(nest.reads)) if nest.levels[place] == "inner" and nest.steps[place] < 0]
    return [place for place in inner if not nest.is_counted(place)]


@dataclass
class Walk:
    """One walk of the reduced loops.

    Attributes
    ----------
    statements : list of Statement or Reduction
        What is computed at each element, in order.
    reads : list of int
        The arrays read at each element.
    loads, stores : list of int
        The values that an earlier walk has kept, and those kept for later ones.
    writes : list of (int, int)
        The arrays written at each element, by their places among all, and the values.
    """

    statements: list[Statement | Reduction] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)
    writes: list[tuple[int, int]] = field(default_factory=list)

    @property
    def reductions(self) -> list[Reduction]:
        return [statement for statement in self.statements if isinstance(statement, Reduction)]


def walks(nest: LoopNest, keep: bool = True) -> list[Walk]:
    """The walks, in order.

    Parameters
    ----------
    keep : bool
        Whether what is dear to make again is kept for the walks that follow the first that needs it.
    """
    first = len(nest.reads) + len(nest.numbers)
    inner = {s.value: s for s in nest.statements if isinstance(s, Statement) and s.level == "inner"}
    writes = nest.writes_at("inner")
    last = max([s.stage for s in nest.statements if isinstance(s, Reduction) or s.level == "inner"], default=0)
    found: list[Walk] = []
    made_in: dict[int, Walk] = {}
    for stage in range(last + 1):
        walk = Walk([r for r in nest.reductions if r.stage == stage])
        walk.writes = [(place, v) for place, v in writes if (inner[v].stage if v in inner else 0) == stage]
        pending = [*(r.argument for r in walk.reductions), *(v for _, v in walk.writes)]
        needed: set[int] = set()
        while pending:
            value = pending.pop()
            if value in needed or nest.level_of(value) != "inner":
                continue
            needed.add(value)
            if value < first:
                walk.reads.append(value)
            elif keep and value in made_in and _is_dear(value, inner):
                walk.loads.append(value)
                if value not in made_in[value].stores:
                    made_in[value].stores.append(value)
            else:
                walk.statements.append(inner[value])
                pending += inner[value].arguments
        made_in = {**{s.value: walk for s in walk.statements}, **made_in}
        walk.statements.sort(key=lambda statement: statement.value)
        walk.reads.sort()
        found.append(walk)
    return found


def _is_dear(value: int, inner: dict[int, Statement]) -> bool:
    """Whether a value costs more to make again from what is read than to keep."""
    total, pending, seen = 0, [value], {value}
    while pending and total < KEPT:
        statement = inner[pending.pop()]
        total += statement.cost
        new = {argument for argument in statement.arguments if argument in inner} - seen
        seen |= new
        pending += new
    return total >= KEPT
