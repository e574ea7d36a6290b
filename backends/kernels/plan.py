"""A plan that runs by kernels where they pay, and by NumPy call by call where not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from backends.kernels.blocks import block_kernel
from backends.kernels.fused import FusedKernel
from backends.kernels.launch import Compiled
from backends.kernels.quiet import quietly
from backends.kernels.steps import CallOf, Executor, FusedStep, KernelStep, fused_steps
from optree.dims import Sizes
from optree.fusion import LONGEST, Kernel
from optree.program import Program

#: With fewer elements than this in every operand, NumPy's calls are as quick as a kernel's.
SMALL = 1 << 15

#: What a plan does by NumPy before kernels are compiled for it, in elements times instructions.
WORK = 1 << 25

#: With fewer elements than this in every operand, NumPy's calls on whole arrays are as quick as blocks.
SMALL_FOR_BLOCKS = 1 << 18


class When(NamedTuple):
    """What runs kernels, and from when on.

    Attributes
    ----------
    executor : callable
    small : int
        With fewer elements than this in every operand, NumPy runs the plan.
    work : int
        As long as it has done less, in elements times instructions, NumPy runs the plan.
    """

    executor: Executor
    small: int
    work: int


def compiled_kernel(program: Program, kernel: Kernel, sizes: Sizes, call_of: CallOf) -> FusedKernel:
    """What runs a kernel through a C compiler."""
    return FusedKernel(program, kernel, sizes, Compiled)


#: By a C compiler from the first call on.
ALWAYS = When(compiled_kernel, 0, 0)

#: By a C compiler where that pays.
WHERE_IT_PAYS = When(compiled_kernel, SMALL, WORK)

#: By NumPy in blocks, without a compiler.
BLOCKS = When(block_kernel, SMALL_FOR_BLOCKS, 0)


class KernelPlan:
    """A program's kernels, run where that pays; a plan as backends run them.

    Parameters
    ----------
    program : Program
        Its outline, so that the plan keeps no tensor alive.
    constants : list
        The values of its last leaves, which the plan is not given.
    by_numpy : callable
        The plan that runs the program by NumPy.
    call_of : callable
        From an instruction's place to its function of values, for those that no kernel runs.
    note : callable
        Adds to an error what an instruction, by its place, was doing for the trees that ran.
    when : When
    """

    def __init__(
        self,
        program: Program,
        constants: Sequence[Any],
        by_numpy: Callable[[list[Any], Any], list[Any]],
        call_of: Callable[[int], Callable[..., Any]],
        note: Callable[[Exception, int, Any], None],
        when: When,
    ) -> None:
        self.program, self.by_numpy, self.call_of = program, by_numpy, call_of
        self.note, self.when = note, when
        self.count = len(program.instructions)
        #: What follows the leaves' values before anything has been computed.
        self.open = [*constants, *[None] * self.count]
        self.work = 0
        self.alone = False
        self._steps: list[tuple[FusedStep, list[int], int]] | None = None

    def __call__(self, values: list[Any], roots: Sequence[Any] | None) -> list[Any]:
        if small := self.when.small:
            for value in values:
                if value.__class__ is np.ndarray and value.size >= small:
                    break
            else:
                return self.by_numpy(values, roots)
        if self.count > LONGEST or not self._has_paid(values):
            return self.by_numpy(values, roots)
        steps = self.steps()
        # Kernels alone give no warnings, and a step asks for quiet where NumPy runs it after all.
        return self._run(values, roots, steps) if self.alone else quietly(self._run, values, roots, steps)

    def _run(self, values: list[Any], roots: Sequence[Any] | None, steps: Sequence[Any]) -> list[Any]:
        registers = values + self.open
        place = 0
        try:
            for step, dead, place in steps:  # noqa: B007 the failing step's place
                step(registers)
                for i in dead:
                    registers[i] = None
        except Exception as error:
            self.note(error, place, roots)
            raise
        return [registers[i] for i in self.program.outputs]

    def _has_paid(self, values: Sequence[Any]) -> bool:
        """Whether kernels are worth it, by how much has been done without."""
        wanted = self.when.work
        if self.work >= wanted:
            return True
        self.work += self.count * max(value.size for value in values if isinstance(value, np.ndarray))
        return self.work >= wanted

    def steps(self) -> list[tuple[FusedStep, list[int], int]]:
        """The steps, fused at the first call; a kernel that is compiled is when it first runs."""
        if self._steps is None:
            self._steps = fused_steps(self.program, self.when.executor, self.call_of)
            self.alone = all(isinstance(step, KernelStep) for step, *_ in self._steps)
        return self._steps
