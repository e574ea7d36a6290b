"""Lifetimes of a plan's values: what each step computes, the memory that it takes, and the memory that it frees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from backends.execution.executor import CallStep, KernelStep
from backends.execution.memory_planner import slots_of
from optree.compile.program import Program
from optree.compile.steps import PlannedStep, Steps


def planned_steps(program: Program, steps: Sequence[CallStep | KernelStep], constants: Sequence[object]) -> Steps:
    """The steps of a program, each with the lifetimes of what it makes."""
    slots = partial(slots_of, program, steps)
    return Steps(program, [_kernel(x) if isinstance(x, KernelStep) else _call(x) for x in steps], slots, constants)


def _kernel(step: KernelStep) -> PlannedStep:
    takes = [*step.kernel.uses, *step.target_of.values()]
    return PlannedStep(step.step(), "kernel", step.numbers, takes, step.defines, step.plannable, None, step.dead)


def _call(step: CallStep) -> PlannedStep:
    is_new = step.target is None and step.out is None and not step.op.shared_inputs()
    made = [step.output] if is_new else []
    return PlannedStep(step.step(), "call", [step.index], step.uses, step.defines, made, step.out, step.dead)
