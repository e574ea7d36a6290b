"""A plan that runs by kernels where they pay, and by NumPy where not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backends.kernels.launch import runner_of
from backends.kernels.steps import FusedStep, fused_steps
from optree.fusion import LONGEST
from optree.program import Program

#: With fewer elements than this in every operand, NumPy's calls are as quick as a kernel's.
SMALL = 1 << 15

#: What a plan does by NumPy before kernels are compiled for it, in elements times instructions.
WORK = 1 << 25


class KernelPlan:
    """A program's kernels, compiled when that has paid; a plan as backends run them.

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
    always : bool
        Whether kernels run whatever there is to do, from the first call on.
    """

    def __init__(
        self,
        program: Program,
        constants: Sequence[Any],
        by_numpy: Callable[[list[Any], Any], list[Any]],
        call_of: Callable[[int], Callable[..., Any]],
        note: Callable[[Exception, int, Any], None],
        always: bool,
    ) -> None:
        self.program, self.constants, self.by_numpy, self.call_of = program, constants, by_numpy, call_of
        self.note, self.always = note, always
        self.count = len(program.instructions)
        self.work = 0
        self._steps: list[tuple[FusedStep, list[int], int]] | None = None

    def __call__(self, values: list[Any], roots: Sequence[Any] | None) -> list[Any]:
        if not self.always:
            for value in values:
                if value.__class__ is np.ndarray and value.size >= SMALL:
                    break
            else:
                return self.by_numpy(values, roots)
        if self.count > LONGEST or not self._has_paid(values):
            return self.by_numpy(values, roots)
        registers = [*values, *self.constants, *[None] * self.count]
        for step, dead, place in self.steps():
            try:
                step(registers)
            except Exception as error:
                self.note(error, place, roots)
                raise
            for i in dead:
                registers[i] = None
        return [registers[i] for i in self.program.outputs]

    def _has_paid(self, values: Sequence[Any]) -> bool:
        """Whether compiling is worth it, by how much has been done without."""
        if self.always or self.work >= WORK:
            return True
        self.work += self.count * max(value.size for value in values if isinstance(value, np.ndarray))
        return self.work >= WORK

    def steps(self) -> list[tuple[FusedStep, list[int], int]]:
        """The steps, fused at the first call; each kernel is compiled when it first runs."""
        if self._steps is None:
            self._steps = fused_steps(self.program, runner_of, self.call_of)
        return self._steps
