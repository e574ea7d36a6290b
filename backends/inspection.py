"""The source of a program's kernels, on any machine: nothing is compiled or run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from backends.cpu.codegen import printer as c
from backends.execution.epilogues import multiplies_floats, with_epilogues
from backends.execution.memory import Memory
from backends.execution.specialize import FusedKernel
from backends.gpu.kernel import CudaNest, RecordingHost
from backends.gpu.launch_config import DEVICES, Launch
from optree.compile.dimensions import ONE, Dims, Sizes
from optree.compile.fusion import LONGEST, Kernel, fuse
from optree.compile.loopnest import LoopNest
from optree.compile.passes import decompose
from optree.compile.program import Program
from optree.errors import BackendError, names

#: The languages that kernels are printed in.
TARGETS = ("c", "cuda")

#: What stands for the size of an axis that is known only at the call.
UNKNOWN = 64

#: Arrays that nobody reads or writes, aligned as a device's are.
NOWHERE = Memory(np.ndarray, np.asarray, np.empty, lambda array: 0)


def sources(program: Program, target: str, arch: str) -> list[str]:
    """The source of each kernel of a program, in order, for arrays that lie in C order.

    Raises
    ------
    BackendError
        If there is no such target or architecture.
    """
    if target not in TARGETS:
        raise BackendError(f"source: there is no target {target!r}; there are {names(TARGETS)}")
    if target == "cuda":
        return _noted(program, arch).sources
    found: list[str] = []

    def keep(nest: LoopNest) -> Any:
        found.append(c.source(nest))
        return lambda pointers, numbers, layout: None

    _meet_layouts(program, keep)
    return found


def launched(program: Program, target: str, arch: str) -> list[Launch]:
    """The launches of a program's kernels, in order, for arrays that lie in C order.

    Raises
    ------
    BackendError
        If nothing is launched for such a target, or there is no such architecture.
    """
    if target != "cuda":
        raise BackendError(f"launches: the target is 'cuda', not {target!r}: nothing else is launched in blocks")
    return _noted(program, arch).launches


def _noted(program: Program, arch: str) -> RecordingHost:
    """What a program asks of a device of an architecture."""
    if arch not in DEVICES:
        raise BackendError(f"there is no architecture {arch!r}; there are {names(DEVICES)}")
    notes = RecordingHost(DEVICES[arch])
    _meet_layouts(program, partial(CudaNest, host=notes), is_gpu=True)
    return notes


def _meet_layouts(program: Program, compile: Callable[[LoopNest], Any], is_gpu: bool = False) -> None:
    """Let each kernel of a program meet arrays in C order."""
    program = decompose(program, further=is_gpu)
    if len(program.instructions) <= LONGEST:
        known = Sizes(program)
        sizes = _sizes(program, known.dims)
        steps = fuse(program, known)
        for step in with_epilogues(program, steps, _products(program))[0] if is_gpu else steps:
            if isinstance(step, Kernel):
                _meet_layout(FusedKernel(program, step, known, compile, NOWHERE), program, known, sizes)


def _products(program: Program) -> list[int]:
    """The places of the products that have epilogues on a GPU."""
    return [
        place
        for place, instruction in enumerate(program.instructions)
        if instruction.op.numpy is np.matmul and multiplies_floats(program, place)
    ]


def _sizes(program: Program, dims: list[Dims | None]) -> dict[int, int]:
    """The size of each dimension, as far as a value's type tells it."""
    found = {ONE: 1}
    for value, own in enumerate(dims):
        if own is not None:
            known = zip(own, program.type_of(value).shape, strict=True)
            found.update({dim: size for dim, size in known if size is not None and dim != ONE})
    return found


def _meet_layout(kernel: FusedKernel, program: Program, known: Sizes, sizes: dict[int, int]) -> None:
    """Let a kernel find the loop nest for arrays in C order, which have shapes and no memory."""

    def array(value: int) -> np.ndarray:
        dtype = np.dtype(program.type_of(value).dtype)
        shape = tuple(sizes.get(dim, UNKNOWN) for dim in known.dims[value] or ())
        strides = [dtype.itemsize]
        for size in shape[:0:-1]:
            strides.append(strides[-1] * size)
        return as_strided(np.empty(1, dtype), shape, strides[::-1][: len(shape)] if shape else ())

    values = [*program.leaves, *[None] * len(program.instructions)]
    for i in (*kernel.reads, *kernel.likes, *(leaf for leaf, _ in known.sources.values())):
        values[i] = array(i)
    kernel.run(values, [array(i) for i in kernel.writes])
