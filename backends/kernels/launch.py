"""Loop nests as functions of arrays, through C."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod

import numpy as np

from backends.kernels import c
from backends.kernels.compiler import CompilerError, compile_source
from backends.kernels.loopnest import LoopNest
from backends.kernels.threads import thread_count

#: Runs a nest: takes the arrays' addresses, the numbers, 8 bytes each as integers, and the layout.
Runner = Callable[[Sequence[int], Sequence[int], "Layout"], None]

#: Scratch arrays begin at multiples of so many bytes, so that no two threads' share a line of the cache.
LINE = 64

#: The sizes of the loops, and for each array its steps along them, in elements.
Layout = tuple[Sequence[int], Sequence[int]]


def runner_of(nest: LoopNest) -> Runner:
    """What runs a nest, compiled.

    Raises
    ------
    CompilerError
        If there is no compiler, or it fails.
    """
    try:
        function = compile_source(c.source(nest), c.NAME)
    except CompilerError as error:
        error.add_note("gen_backend('cpu', jit=False) runs without a compiler")
        raise

    needs_scratch = bool(c.scratch_arrays(nest))

    def run(pointers: Sequence[int], numbers: Sequence[int], layout: Layout) -> None:
        sizes, steps = layout
        threads = thread_count() if prod(sizes) >= c.PARALLEL else 1
        if not needs_scratch:
            packed = array("q", [*pointers, *sizes, *steps, *numbers, 0, threads])
            function(packed.buffer_info()[0])
            return
        *places, apart = accumulate(c.scratch(nest, sizes), lambda place, size: place + size + -size % LINE, initial=0)
        scratch = np.empty(apart * (1 if nest.split else threads) + LINE, np.uint8)
        start = scratch.ctypes.data + -scratch.ctypes.data % LINE
        packed = array("q", [*pointers, *sizes, *steps, *numbers, *(start + place for place in places), apart, threads])
        function(packed.buffer_info()[0])

    return run
