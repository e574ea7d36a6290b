"""A kernel as a loop nest, in no language: what is read, computed and written at each place of a domain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optree.traits import Accumulator


@dataclass(frozen=True)
class Statement:
    """One value of an inner loop: ``value = expression(arguments)``.

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
    level : {'before', 'inner', 'after'}
        Whether it is made at each element, or once for each place of the kept
        loops: before the reduced ones or after them.
    """

    value: int
    expression: str
    arguments: tuple[int, ...]
    loop: tuple[np.dtype, ...]
    dtype: np.dtype
    level: str = "inner"


@dataclass(frozen=True)
class Reduction:
    """One value that is accumulated over the reduced loops.

    Attributes
    ----------
    value : int
        Its number in the nest.
    argument : int
        The number of the value whose elements it takes.
    accumulator : Accumulator
    dtype : numpy.dtype
    """

    value: int
    argument: int
    accumulator: Accumulator
    dtype: np.dtype


@dataclass(frozen=True)
class LoopNest:
    """Statements over a domain. Equal nests are printed as equal source.

    Attributes
    ----------
    reads : tuple of numpy.dtype
        Of the arrays that are read.
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
    inner : tuple of bool
        For each array, those read and then those written, whether it has an
        element for each of the reduced loops' places.
    steps : tuple of int
        For each array, those read and then those written, the step in elements
        along the innermost loop if it is 0 or 1; -1 if it is known when it runs.
    """

    reads: tuple[np.dtype, ...]
    numbers: tuple[np.dtype, ...]
    statements: tuple[Statement | Reduction, ...]
    writes: tuple[int, ...]
    rank: int
    kept: int
    inner: tuple[bool, ...]
    steps: tuple[int, ...]

    def dtype_of(self, value: int) -> np.dtype:
        """The dtype of a value by its number."""
        known = (*self.reads, *self.numbers)
        return known[value] if value < len(known) else self.statements[value - len(known)].dtype
