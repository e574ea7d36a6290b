"""A plan's steps as text: what each reads, the memory that it writes, and what nothing needs after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backends.execution.executor import CallStep, KernelStep
from optree.compile.program import Program


def steps_text(program: Program, steps: Sequence[CallStep | KernelStep]) -> str:
    """The steps of a program, in order, a line each; values have their numbers in the program."""
    arrays, lines = {value for step in steps for value in step.gives}, []
    for step in steps:
        text = _kernel(step) if isinstance(step, KernelStep) else _call(step)
        freed = [value for value in step.dead if value in arrays and step is not steps[-1]]  # all are, after the last
        lines.append(f"{text}, frees {_numbers(freed)}" if freed else text)
    return "\n".join([*lines, f"return {_numbers(program.outputs)}"])


def _kernel(step: KernelStep) -> str:
    written = [
        f"%{value} in the memory of %{step.target_of[value]}" if value in step.target_of else f"%{value} in new memory"
        for value in step.kernel.writes
    ]
    return f"kernel({_numbers(sorted(step.kernel.takes))}) writes {' and '.join(written)}"


def _call(step: CallStep) -> str:
    by = f" by {step.implementation.label}" if step.implementation.label else ""
    made = f"call {step.op}({_numbers(step.inputs)}){by} gives %{step.output}"
    if step.target is not None or step.out is not None:
        return f"{made} in the memory of %{step.out if step.target is None else step.target}"
    viewed = sorted(step.op.shared_inputs())
    return f"{made} in the memory of {_numbers(step.inputs[i] for i in viewed)}" if viewed else f"{made} in new memory"


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(f"%{value}" for value in values)
