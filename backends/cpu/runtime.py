"""Loop nests as functions of arrays, through C."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from math import prod

import numpy as np

from backends.cpu.codegen import printer as c
from backends.cpu.compiler import compile_source
from backends.cpu.entry import Entry, enter
from backends.cpu.threads import thread_count
from backends.cpu.workers import share
from backends.execution.memory import LINE, Memory
from backends.execution.runner import Layout
from optree.compile.loopnest import LoopNest


class Compiled:
    """What runs a nest, compiled.

    Raises
    ------
    CompilerError
        If there is no compiler, or it fails.
    """

    def __init__(self, nest: LoopNest) -> None:
        self._function = compile_source(c.source(nest), c.NAME)
        self._nest, self._needs_scratch = nest, bool(c.scratch_arrays(nest))

    def __call__(self, pointers: Sequence[int], numbers: Sequence[int], layout: Layout) -> None:
        sizes, steps = layout
        threads = thread_count() if is_parallel(self._nest, sizes) else 1
        *places, apart = scratch_places(self._scratch(sizes))
        scratch = np.empty(apart * (1 if self._nest.split else threads) + LINE if places else 0, np.uint8)
        start = scratch.ctypes.data + -scratch.ctypes.data % LINE if places else 0
        starts = [start + place for place in places]
        packed = array(
            "q", [*pointers, *sizes, *steps, *numbers, *starts, apart, threads, share() if threads > 1 else 0]
        )
        self._function(packed.buffer_info()[0])

    def _scratch(self, sizes: Sequence[int]) -> Sequence[int]:
        return c.scratch(self._nest, sizes) if self._needs_scratch else ()

    def entry(
        self,
        reads: dict[int, np.ndarray],
        writes: dict[int, np.ndarray],
        in_place: Sequence[bool],
        numbers: Sequence[tuple[int, np.dtype]],
        layout: Layout,
        memory: Memory,
    ) -> Entry | None:
        if enter() is None:
            return None
        sizes, steps = layout
        places = scratch_places(self._scratch(sizes))
        words, split, parallel = (*sizes, *steps), self._nest.split, is_parallel(self._nest, sizes)
        return Entry(
            self._function, reads, writes, in_place, self._nest.flat_indices, words, numbers, places, split, parallel
        )


def is_parallel(nest: LoopNest, sizes: Sequence[int]) -> bool:
    """Whether loops of these sizes are worth waking threads for."""
    return prod(sizes) * nest.cost >= c.PARALLEL_WORK


def scratch_places(scratch: Sequence[int]) -> list[int]:
    """Where each scratch array of a thread begins, in bytes, and how far the next thread's lie apart from them."""
    return list(accumulate(scratch, lambda place, size: place + size + -size % LINE, initial=0))
