"""Operators with graphs inside: conditions and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.arrays import Array
from optree.errors import ModelError
from optree.onnx.values import Operators, as_tree, fixed
from optree.registry import f

#: The most steps of a loop that is written out. A longer one is a scan.
UNROLLED = 16

Body = Callable[..., list[Any]]


def _is_known(x: Array) -> bool:
    """Whether a condition does not depend on the model's inputs."""
    try:
        fixed(x, "a condition")
    except ModelError:
        return False
    return True


class Control(Operators):
    """Conditions and loops, whose graphs are functions here."""

    def If(self, condition: Array, then_branch: Body, else_branch: Body) -> list[Any]:
        if _is_known(condition):
            return then_branch() if fixed(condition, "the condition").all() else else_branch()
        pairs = list(zip(then_branch(), else_branch(), strict=True))
        for x, y in pairs:
            if (tuple(x.shape), x.dtype) != (tuple(y.shape), y.dtype):
                raise ModelError("the condition depends on inputs, and the branches have different types")
        return [np.where(np.reshape(condition, ()), x, y) for x, y in pairs]

    def Loop(self, count: Array, condition: Array, *states: Array, body: Body, outputs: int = 0) -> list[Any]:
        steps = None if count is None else int(fixed(count, "the number of steps").item())
        goes_on = condition is None or _is_known(condition)
        if not goes_on:
            return self._while(steps, condition, states, body, outputs)
        runs = condition is None or bool(fixed(condition, "the condition").all())
        if steps is not None and steps > UNROLLED and runs:
            further, *_ = body(np.array(0, np.int64), np.array(True), *states)
            if _is_known(further):
                return self._for(steps, states, body)
            return self._while(steps, np.array(True), states, body, outputs)
        scanned: list[list[Any]] = []
        number = 0
        while runs and (steps is None or number < steps):
            further, *found = body(np.array(number, np.int64), np.array(True), *states)
            if not _is_known(further):
                if scanned or number:
                    raise ModelError("the condition depends on inputs after the first step")
                return self._while(steps, np.array(True), states, body, outputs)
            states, number = tuple(found[: len(states)]), number + 1
            scanned.append(found[len(states) :])
            runs = bool(fixed(further, "the condition").all())
        return [*states, *(np.stack(parts) for parts in zip(*scanned, strict=True))]

    def _for(self, steps: int, states: Sequence[Any], body: Body) -> list[Any]:
        def step(before: Array, number: Array) -> Any:
            further, *found = body(number, np.array(True), *before)
            if not (_is_known(further) and fixed(further, "the condition").all()):
                raise ModelError(f"a loop of more than {UNROLLED} steps has a condition")
            return found[: len(states)], found[len(states) :]

        after, outputs = f.scan(step, [as_tree(x) for x in states], np.arange(steps))
        return [*after, *outputs]

    def _while(self, steps: int | None, condition: Array, states: Sequence[Any], body: Body, outputs: int) -> list[Any]:
        if steps is None or outputs > len(states):
            raise ModelError("a loop with a condition has a most number of steps, and no outputs of each step")

        def step(before: Array) -> Any:
            number, goes_on, *given = before
            further, *found = body(number, goes_on, *given)
            return [number + 1, further, *found]

        first = [as_tree(x) for x in (np.array(0, np.int64), np.reshape(condition, ()), *states)]
        return list(f.while_loop(lambda found: found[1], step, first, limit=steps))[2:]

    def Scan(
        self,
        *given: Array,
        body: Body,
        num_scan_inputs: int,
        scan_input_axes: Sequence[int] = (),
        scan_input_directions: Sequence[int] = (),
        scan_output_axes: Sequence[int] = (),
        scan_output_directions: Sequence[int] = (),
    ) -> list[Any]:
        if self.version < 9:
            raise ModelError("Scan before version 9 is not read")
        states, sequences = given[: len(given) - num_scan_inputs], list(given[len(given) - num_scan_inputs :])
        for i, axis in enumerate(scan_input_axes):
            sequences[i] = np.moveaxis(sequences[i], axis, 0)
        sequences = [_turned(as_tree(x), i, scan_input_directions) for i, x in enumerate(sequences)]

        def step(before: Array, slices: Array) -> Any:
            found = body(*before, *slices)
            return found[: len(states)], found[len(states) :]

        after, outputs = f.scan(step, [as_tree(x) for x in states], sequences)
        outputs = [_turned(x, i, scan_output_directions) for i, x in enumerate(outputs)]
        for i, axis in enumerate(scan_output_axes):
            outputs[i] = np.moveaxis(outputs[i], 0, axis)
        return [*after, *outputs]


def _turned(x: Array, index: int, directions: Sequence[int]) -> Any:
    """A sequence, backwards if its direction is 1."""
    return np.flip(x, 0) if index < len(directions) and directions[index] else x
