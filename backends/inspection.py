"""The source of a program's kernels, on any machine: nothing is compiled or run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from backends.cpu.codegen import printer as c
from backends.cpu.runtime import C
from backends.execution.executor import KernelStep, steps_of
from backends.execution.joined import joined
from backends.execution.memory import Memory, unallocated_array
from backends.execution.routines import Implementation, routine_of
from backends.execution.specialize import FusedKernel, collecting
from backends.gpu.calls import ROUTINES
from backends.gpu.joined import Together
from backends.gpu.kernel import CUDA, Host, RecordingHost, launched_by
from backends.gpu.launch_config import DeviceLimits, Launch, limits_of
from optree.compile.loopnest import LoopNest
from optree.compile.pipeline import lower
from optree.compile.program import ONE, Dims, Program, Sizes
from optree.errors import BackendError, names

#: The languages that kernels are printed in.
TARGETS = ("c", "cuda")

#: The assumed size of an axis whose size is known only at the call.
UNKNOWN = 64

#: The memory of arrays that are never accessed, aligned as on a device.
UNUSED = Memory(np.ndarray, np.asarray, np.empty, lambda array: 0)


def sources(program: Program, target: str, arch: str | DeviceLimits = "sm_90") -> list[str]:
    """The source of each kernel of a program, in order, for arrays in C order.

    `arch` may be the limits of a device instead. It raises BackendError if there is no such target or architecture.
    """
    if target not in TARGETS:
        raise BackendError(f"source: there is no target {target!r}; there are {names(TARGETS)}")
    if target == "cuda":
        return _recorded(program, arch).sources
    found: list[str] = []

    def record(nest: LoopNest) -> Any:
        found.append(c.source(nest))
        return lambda pointers, numbers, layout: None

    specialize_all(program, record)
    return found


def launched(program: Program, target: str, arch: str) -> list[Launch]:
    """The launches of a program's kernels, in order, for arrays in C order.

    It raises BackendError if the target has no launches, or there is no such architecture.
    """
    if target != "cuda":
        raise BackendError(f"launches: the target is 'cuda', not {target!r}: nothing else is launched in blocks")
    return _recorded(program, arch).launches


def _recorded(program: Program, arch: str | DeviceLimits) -> RecordingHost:
    """A host with the sources and launches of a program on an architecture."""
    host = RecordingHost(limits_of(arch) if isinstance(arch, str) else arch)
    specialize_all(program, launched_by(host), host)
    return host


def specialize_all(program: Program, compile: Callable[[LoopNest], Any], host: Host | None = None) -> None:
    """Specialize each kernel of a program to arrays in C order.

    Parameters
    ----------
    compile : callable
        From a loop nest to a function that runs it: of its arrays' addresses, its numbers, and the arrays' layout.
    host : Host, optional
        The host of kernels on a GPU, if they are for one.
    """
    options = C if host is None else CUDA
    program = lower(program, options, "parts", "parts")

    def implementation_of(index: int) -> Implementation:
        routine = None if host is None else routine_of(ROUTINES, program, index)
        takes_epilogue = routine is not None and routine.takes_epilogue
        return Implementation(program.instructions[index].op.value, takes_epilogue=takes_epilogue)

    executor = partial(FusedKernel, compile=compile, memory=UNUSED)
    join, sizes = None if host is None else partial(joined, partial(Together, host)), dict[int, int]()
    for step in steps_of(program, implementation_of, executor, options, UNUSED, join=join):
        with collecting() as found:
            for each in step.members:
                if isinstance(each, KernelStep):
                    sizes = sizes or _sizes(program, each.kernel.sizes.dims)  # the same for all kernels
                    _specialize(each.kernel, program, each.kernel.sizes, sizes)
        Together(host).launch(found)


def _sizes(program: Program, dims: list[Dims | None]) -> dict[int, int]:
    """The sizes of the dimensions that are known from values' types."""
    found = {ONE: 1}
    for value, own in enumerate(dims):
        if own is not None:
            known = zip(own, program.type_of(value).shape, strict=True)
            found.update({dim: size for dim, size in known if size is not None and dim != ONE})
    return found


def _specialize(kernel: FusedKernel, program: Program, known: Sizes, sizes: dict[int, int]) -> None:
    """Specialize a kernel to arrays in C order, of which only one element is allocated."""

    def array(value: int) -> np.ndarray:
        shape = tuple(sizes.get(dim, UNKNOWN) for dim in known.dims[value] or ())
        return unallocated_array(shape, program.type_of(value).dtype)

    values = [*program.leaves, *[None] * len(program.instructions)]
    for i in (*kernel.reads, *kernel.shape_inputs, *(leaf for leaf, _ in known.sources.values())):
        values[i] = array(i)
    arrays = [array(i) for i in (*kernel.reads, *kernel.writes)]
    found = kernel.specialize(arrays, kernel.input_shapes(values))
    if found is not None and found.nest is not None:
        run = kernel.compile(found.nest)
        run([0] * len(found.nest.arrays), [0] * len(kernel.numbers), found.layout)
