"""Compilation of a plan's kernels before its first run, several at a time: it waits for the slowest, not the sum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from backends.cpu.compiler import concurrently
from backends.execution.ahead import Foresight
from backends.execution.executor import Step
from backends.execution.memory import HOST
from backends.execution.specialize import FusedKernel
from optree import settings
from optree.compile.loopnest import LoopNest
from optree.compile.program import Program
from optree.errors import CompilerError
from optree.settings import thread_count


def compile_ahead(program: Program, steps: Sequence[Step], values: list[Any]) -> None:
    """Compile what kernels need for these leaves, in at most `thread_count` processes at a time.

    A failure ends it, and is raised by the kernel when that runs: steps before it run, as without this.

    Parameters
    ----------
    values : list
        The registers before the first step; they change.
    """
    if thread_count() < 2 or "source" in settings.value("show"):  # sources are shown in the order of the steps
        return
    needed: dict[LoopNest, FusedKernel] = {}
    for kernel, arrays, input_shapes in Foresight(program, steps, values, HOST).run():
        found = kernel.specialize(arrays, input_shapes)
        if found is not None and found.nest is not None and not kernel.is_compiled(found.nest):
            needed[found.nest] = kernel
    if len(needed) < 2:
        return
    jobs = [settings.carried(partial(_compiled, kernel, nest)) for nest, kernel in needed.items()]
    made = concurrently(jobs, thread_count())
    failed = next((each for each in made if isinstance(each, Exception)), None)
    for (nest, kernel), each in zip(needed.items(), made, strict=True):
        # After the first failure, as without this, nothing is known of the compiler.
        if each is not None and (each is failed or kernel.is_foreign or not isinstance(each, Exception)):
            kernel.add(nest, each)


def _compiled(kernel: FusedKernel, nest: LoopNest) -> Any:
    """A compiled nest; of an op that is not op-tree's, the error, which says nothing about other kernels."""
    try:
        return kernel.compile(nest)
    except CompilerError as error:
        if kernel.is_foreign:
            return error
        raise
