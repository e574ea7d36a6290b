"""Loop nests compiled as C and run on arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod

import numpy as np

from backends.cpu.codegen import printer as c
from backends.cpu.compiler import call_packed, compile_source
from backends.cpu.entry import KernelEntry, enter
from backends.cpu.workers import Length, share_address
from backends.execution.memory import LINE, Memory
from backends.execution.specialize import Layout
from optree.compile.loopnest import LoopNest
from optree.settings import thread_count


class CompiledNest:
    """A loop nest, compiled as C; CompilerError if there is no compiler, or it fails."""

    def __init__(self, nest: LoopNest) -> None:
        self._function = compile_source(c.source(nest), c.NAME)
        self._nest, self._needs_scratch = nest, bool(c.scratch_arrays(nest))

    def __call__(self, pointers: Sequence[int], numbers: Sequence[int], layout: Layout) -> None:
        threads, (*offsets, stride) = self.threads(layout), self.scratch(layout)
        size = self.scratch_bytes(stride, threads)
        scratch = np.empty(size + LINE if size else 0, np.uint8)
        start = scratch.ctypes.data + -scratch.ctypes.data % LINE if size else 0
        addresses = [start + offset for offset in offsets]
        call_packed(self._function, self.words(pointers, numbers, layout, threads, (*addresses, stride))[1:])

    def threads(self, layout: Layout) -> int:
        """The number of threads for arrays of a layout."""
        return thread_count() if is_parallel(self._nest, layout[0]) else 1

    def scratch(self, layout: Layout) -> list[int]:
        """The offset of each scratch array of a thread, and the stride between those of two threads, in bytes."""
        return scratch_offsets(c.scratch(self._nest, layout[0]) if self._needs_scratch else ())

    def scratch_bytes(self, stride: int, threads: int) -> int:
        """The bytes of the scratch arrays of all threads."""
        return stride * (1 if self._nest.split else threads)

    def words(
        self,
        addresses: Sequence[int],
        numbers: Sequence[int],
        layout: Layout,
        threads: int = 1,
        scratch: Sequence[int] = (0,),
    ) -> list[int]:
        """The function's address and its arguments.

        Parameters
        ----------
        scratch : sequence of int
            The addresses of the first thread's scratch arrays, and the stride between those of two threads.
        """
        sizes, strides = layout
        function = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        sharing = share_address(length_of(self._nest, sizes)) if threads > 1 else 0
        return [function, *addresses, *sizes, *strides, *numbers, *scratch, threads, sharing]

    def work(self, layout: Layout) -> int:
        """An estimate of the number of instructions."""
        return prod(layout[0]) * self._nest.cost

    def entry(
        self,
        reads: dict[int, np.ndarray],
        writes: dict[int, np.ndarray],
        in_place: Sequence[bool],
        numbers: Sequence[tuple[int, np.dtype]],
        layout: Layout,
        memory: Memory,
        bases: Mapping[int, tuple[int, np.ndarray]],
    ) -> KernelEntry | None:
        if enter() is None:
            return None
        sizes, strides = layout
        words, offsets, split, sharing = (*sizes, *strides), self.scratch(layout), self._nest.split, 0
        if is_parallel(self._nest, sizes):
            sharing = share_address(length_of(self._nest, sizes))
        flat = self._nest.flat_indices
        return KernelEntry(
            self._function, reads, writes, in_place, flat, words, numbers, offsets, split, sharing, bases
        )


def is_parallel(nest: LoopNest, sizes: Sequence[int]) -> bool:
    """Whether loops of these sizes are worth waking threads for.

    A vector has four times as many bytes as other numbers. Elementwise loops are limited by memory, and gain nothing.
    """
    values = (*nest.reads, *(statement.dtype for statement in nest.statements))
    of_bytes = bool(nest.reductions) and all(dtype.itemsize == 1 for dtype in values)
    return prod(sizes) * nest.cost >= c.PARALLEL_WORK << 2 * of_bytes


def length_of(nest: LoopNest, sizes: Sequence[int]) -> Length:
    """Whether loops of these sizes surely take longer than to wake threads."""
    return "long" if prod(sizes) * nest.cost >= c.LONG_WORK else "unknown"


def scratch_offsets(sizes: Sequence[int]) -> list[int]:
    """The offset of each scratch array of a thread, and the stride between those of two threads, in bytes."""
    return list(accumulate(sizes, lambda offset, size: offset + size + -size % LINE, initial=0))
