"""Profiles of functions: the cost of each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.compile.program import Instruction, Program
from optree.tree.printing import as_html, described


class Cost:
    """The cost of one step, over all calls.

    Attributes
    ----------
    instruction : Instruction
    calls : int
    seconds : float
    flops : int
        By the op's own count (`Op.flops`).
    bytes : int
        The size of the arrays read and written.
    """

    def __init__(self, instruction: Instruction) -> None:
        self.instruction, self.calls, self.seconds, self.flops, self.bytes = instruction, 0, 0.0, 0, 0


class Profile:
    """The cost of each step of a function, printed as a table, the most expensive first.

    Attributes
    ----------
    costs : list of Cost
        In execution order.
    """

    def __init__(self, program: Program) -> None:
        self.costs = [Cost(instruction) for instruction in program.instructions]

    def __repr__(self) -> str:
        return f"Profile of {len(self.costs)} steps, {sum(cost.seconds for cost in self.costs):.3g} s"

    _repr_html_ = as_html

    def observe(self, index: int, seconds: float, inputs: Sequence[Any], value: object) -> None:
        """Count one run of a step."""
        cost = self.costs[index]
        outputs = value if isinstance(value, tuple) else (value,)
        cost.calls += 1
        cost.seconds += seconds
        cost.flops += cost.instruction.op.flops([np.shape(x) for x in inputs], [np.shape(x) for x in outputs])
        cost.bytes += sum(getattr(x, "nbytes", 0) for x in (*inputs, *outputs))

    def __str__(self) -> str:
        total = sum(cost.seconds for cost in self.costs) or 1.0
        lines = [f"{'calls':>8} {'seconds':>10} {'share':>6} {'Gflop/s':>8} {'GB/s':>8}  step"]
        for cost in sorted(self.costs, key=lambda cost: -cost.seconds):
            seconds = cost.seconds or 1.0
            lines.append(
                f"{cost.calls:8d} {cost.seconds:10.6f} {cost.seconds / total:6.1%} {cost.flops / seconds / 1e9:8.3f} "
                f"{cost.bytes / seconds / 1e9:8.3f}  {described(cost.instruction)}"
            )
        return "\n".join(lines)
