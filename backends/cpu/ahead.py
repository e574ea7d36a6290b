"""Compilation of all that a plan's first run calls, several files at a time: it waits for the slowest, not the sum."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from backends.cpu.compiler import Source, compile_source, concurrently, is_loaded
from backends.cpu.runtime import sharing_source
from backends.execution.ahead import Foresight
from backends.execution.executor import CallStep, Step
from backends.execution.memory import HOST
from backends.execution.specialize import FusedKernel
from optree import settings
from optree.compile.loopnest import LoopNest
from optree.compile.program import Program
from optree.errors import CompilerError
from optree.settings import thread_count


def compile_ahead(program: Program, steps: Sequence[Step], values: list[Any]) -> None:
    """Compile what kernels and routines need for these leaves, in at most `thread_count` processes at a time.

    A failure of a kernel ends it, and is raised by the kernel when that runs: steps before it run, as without this.

    `values`: the registers before the first step; they change.
    """
    if thread_count() < 2 or "source" in settings.value("show"):  # sources are shown in the order of the steps
        return
    foresight = Foresight(program, steps, values, HOST)
    needed: dict[LoopNest, list[FusedKernel]] = {}
    for kernel, arrays, input_shapes, _ in foresight.run():
        found = FusedKernel.specialize(kernel, arrays, input_shapes)  # its own may compile
        if found is not None and found.nest is not None and not kernel.is_compiled(found.nest):
            needed.setdefault(found.nest, []).append(kernel)
    routines = dict.fromkeys(source for step, inputs in foresight.calls for source in _sources(step, inputs))
    if routines:
        routines[sharing_source(), ("share",)] = None  # an argument of theirs
    loads = [partial(_load, *source) for source in routines if not is_loaded(source[0])]
    jobs: list[Any] = [*loads]  # first, as they take the longest
    # The kernel that runs first raises a failure; of the others the longest first, so that threads end together.
    nests = [*needed][:1] + sorted([*needed][1:], key=lambda nest: -nest.cost)
    jobs += [partial(_compiled, needed[nest][0], nest) for nest in nests]
    if len(jobs) < 2:
        return
    made = concurrently(list(map(settings.carried, jobs)))[len(loads) :]
    failed = next((each for each in made if isinstance(each, Exception)), None)
    for nest, each in zip(nests, made, strict=True):
        kernels = needed[nest]
        # After the first failure, as without this, nothing is known of the compiler.
        if each is not None and (each is failed or kernels[0].is_foreign or not isinstance(each, Exception)):
            for kernel in kernels:
                kernel.add(nest, each)


def _sources(step: CallStep, inputs: list[Any]) -> list[Source]:
    """The C functions that a call of a routine needs; none where its operands do not follow."""
    call: Any = step.implementation.call
    return call.sources(*inputs) if hasattr(call, "sources") and not any(x is None for x in inputs) else []


def _load(source: str, names: Sequence[str]) -> None:
    """Compile the C functions of a routine, which finds them in memory when it runs, or then raises what failed."""
    with suppress(CompilerError):
        compile_source(source, names[0])


def _compiled(kernel: FusedKernel, nest: LoopNest) -> Any:
    """A compiled nest; of an op that is not op-tree's, the error, which says nothing about other kernels."""
    try:
        return kernel.compile(nest)
    except CompilerError as error:
        if kernel.is_foreign:
            return error
        raise
