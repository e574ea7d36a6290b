"""Loops on a backend: a loop's step is a program of its own, compiled once, and run on parts of the arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backends.backend import Backend, Within
from backends.execution.routines import Implementation
from optree.compile.program import Program
from optree.ops.loops import Scan
from optree.ops.structure import Output
from optree.run.updates import assignments
from optree.tree.types import Shape


class LoopCall:
    """Runs a loop, of its operands: those outputs that are wanted, by a compiled step.

    Attributes
    ----------
    is_single : bool
        Whether the loop has one output, which is no tuple.
    bound : tuple
        The layouts of the last call's operands, and what a backend that runs all steps in one call bound to them.
    """

    def __init__(
        self, op: Scan, wanted: Sequence[bool], within: Within, empty: Callable[[int, Shape, Any], Any] | None
    ) -> None:
        self.op, self.wanted, self.within, self.empty = op, wanted, within, empty
        self.is_single = len(wanted) == 1
        self.bound: tuple[Any, Any] = None, None
        self._in_one_call = getattr(within.loop, "in_one_call", None)

    def __call__(self, *inputs: object) -> Any:
        found = None if self._in_one_call is None else self._in_one_call(self, inputs)
        if found is None:
            op, within = self.op, self.within
            found = op.run(within.loop, self.wanted, *inputs, empty=self.empty, reads_flag=within.reads_flag)
        return found[0] if self.is_single else tuple(found)


def loop(
    backend: Any, program: Program, index: int, empty: Callable[[int, Shape, Any], Any] | None = None
) -> Implementation:
    """The implementation of a loop, whose step leaves out what nothing needs of the outputs; `empty` is as for it."""
    op: Scan = program.instructions[index].op
    wanted = wanted_of(program, index)
    within = backend.within(("loop", op.body, *wanted), lambda: _step(backend, op, wanted))

    is_captured = within.is_captured and op.flag is None  # a flag is read by the host between steps
    run: Any = LoopCall(op, wanted, within, empty)
    return Implementation(run, is_captured=is_captured, is_routine=is_captured)


def wanted_of(program: Program, index: int) -> tuple[bool, ...]:
    """Whether the program needs each output of a loop; the states after the last step are always there."""
    value, op = len(program.leaves) + index, program.instructions[index].op
    used = {each.op.index for each in program.instructions if isinstance(each.op, Output) and value in each.inputs}
    count = len(program.instructions[index].node.owner.outputs)
    return tuple(i < len(op.body.states) or i in used or count == 1 for i in range(count))


def _step(backend: Backend, op: Scan, wanted: Sequence[bool]) -> tuple[list[Any], list[Any]]:
    """A step's arguments followed by targets for what is wanted of it, and the assignments to these."""
    body = op.body
    results = op.joined(body.results, [None] * len(body.states))
    made = [x for x, is_wanted in zip(results, wanted, strict=True) if is_wanted and x is not None]
    targets = [backend.target(x.type) for x in made]
    return [*body.arguments, *targets], assignments(list(zip(targets, made, strict=True)))
