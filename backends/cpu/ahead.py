"""Compilation of a plan's kernels before its first run, several at a time: it waits for the slowest, not the sum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from backends.cpu.compiler import concurrently
from backends.execution.ahead import Foresight
from backends.execution.executor import CallStep, KernelStep
from backends.execution.memory import HOST
from backends.execution.specialize import FusedKernel, Variant
from optree import settings
from optree.compile.program import Program
from optree.errors import CompilerError
from optree.settings import thread_count


def compile_ahead(program: Program, steps: Sequence[CallStep | KernelStep], values: list[Any]) -> None:
    """Compile what kernels need for these leaves, in at most `thread_count` processes at a time.

    A failure ends it, and is raised by the kernel when that runs: steps before it run, as without this.

    Parameters
    ----------
    values : list
        The registers before the first step; they change.
    """
    if thread_count() < 2 or "source" in settings.value("show"):  # sources are shown in the order of the steps
        return
    needed = {}
    for kernel, arrays, input_shapes in Foresight(program, steps, values, HOST).run():
        *_, variant = kernel.layout(arrays, input_shapes)
        if variant is not None and not kernel.is_compiled(variant):
            needed[kernel.nest(*variant)] = kernel, variant
    if len(needed) < 2:
        return
    jobs = [settings.carried(partial(_compiled, kernel, variant)) for kernel, variant in needed.values()]
    made = concurrently(jobs, thread_count())
    failed = next((each for each in made if isinstance(each, Exception)), None)
    for (kernel, variant), each in zip(needed.values(), made, strict=True):
        # After the first failure, as without this, nothing is known of the compiler.
        if each is not None and (each is failed or kernel.is_foreign or not isinstance(each, Exception)):
            kernel.add(variant, each)


def _compiled(kernel: FusedKernel, variant: Variant) -> Any:
    """A variant; of an op that is not op-tree's, the error, which says nothing about other kernels."""
    try:
        return kernel.compiled(variant)
    except CompilerError as error:
        if kernel.is_foreign:
            return error
        raise
