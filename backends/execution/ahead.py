"""The kernels that a plan will run, and the arrays that each will run on, before anything has run.

A kernel is compiled for the layouts of its arrays, and most of those do not exist yet. They follow from the leaves: the
steps are passed over with arrays that have a shape and strides, and memory for one element. A kernel whose operands do
not follow is compiled when it runs, as is one for another layout than was foreseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backends.execution.executor import CallStep, KernelStep, Step
from backends.execution.memory import Memory
from backends.execution.specialize import FusedKernel
from optree.compile.program import Program, shapes_of
from optree.op.index_map import is_view
from optree.ops.structure import Output
from optree.records import NamedTuple


class Foreseen(NamedTuple):
    """A kernel's run."""

    kernel: FusedKernel
    #: Those that it loads, then those that it stores, None for a new one.
    arrays: list[Any]
    #: Tuples of int.
    input_shapes: list[Any]
    #: The number of the step in which it runs.
    group: int


class Foresight:
    """Steps passed over with arrays in place of those that they would compute.

    `values`: the registers before the first step; they change.
    `memory`: the memory of the arrays.
    """

    def __init__(self, program: Program, steps: Sequence[Step], values: list[Any], memory: Memory) -> None:
        self.program, self.steps, self.values, self._memory = program, steps, values, memory
        known = [getattr(x, "shape", ()) for x in values[: len(program.leaves)]]
        self.shapes = shapes_of(program, known)
        self.found: list[Foreseen] = []
        self._group = 0
        #: The calls, with their operands; None for one that does not follow.
        self.calls: list[tuple[CallStep, list[Any]]] = []

    def run(self) -> list[Foreseen]:
        """The runs of kernels, in order, whose operands follow from the leaves."""
        for step in self.steps:
            self._group += 1
            for member in step.members:
                if isinstance(member, KernelStep):
                    self._kernel(member)
                elif isinstance(member, CallStep):
                    self._call(member)
        return self.found

    def _call(self, step: CallStep) -> None:
        inputs = [self._new(i) if n in step.shaped else self.values[i] for n, i in enumerate(step.inputs)]
        self.calls.append((step, inputs))
        if step.target is not None:
            self.values[step.output] = self.values[step.target]
        elif step.output not in step.persistent:
            self.values[step.output] = self._value(step, inputs)

    def _kernel(self, step: KernelStep) -> None:
        kernel, values = step.kernel, self.values
        arrays = [None if values[i] is None else kernel.memory.array(values[i]) for i in kernel.reads]
        input_shapes = [self.shapes[i] for i in kernel.shape_inputs]
        if not any(x is None for x in (*arrays, *input_shapes)):
            targets = [values[step.target_of[i]] if i in step.target_of else None for i in kernel.writes]
            stored = [None] * len(targets) if kernel.overlaps(arrays, targets) else targets
            self.found.append(Foreseen(kernel, [*arrays, *stored], input_shapes, self._group))
        for i in kernel.writes:
            if i in step.target_of:
                values[i] = values[step.target_of[i]]
            elif values[i] is None:
                values[i] = self._new(i)
        for i, _, assignment in step.assigned:
            values[assignment] = values[i]

    def _value(self, step: CallStep, inputs: list[Any]) -> Any:
        """The value of a call: a view, the array that it overwrites, or a new array in C order."""
        op = step.op
        if any(x is None for x in inputs):
            return None
        if 0 in op.destroy_map:
            return inputs[op.destroy_map[0][0]]
        if not op.shared_inputs():
            call = step.implementation.call
            if isinstance(call, np.ufunc) and call.signature is None:  # its value's axes are in its operands' order
                in_order = all(x.flags.c_contiguous for x in inputs if isinstance(x, self._memory.kind))
                return self._new(step.output) if in_order else None
            return self._new(step.output)
        if op.index_map.keeps_order:
            return self._reshaped(inputs[0], step.output)
        if isinstance(inputs[0], tuple) or type(op).__module__.startswith("optree."):
            # Not by `step.implementation`: that copies what overlaps other operands, and these have no memory to read.
            return op.value(*inputs) if is_view(op) or isinstance(op, Output) else None
        return None  # an op that is not op-tree's may read elements, of which there are none

    def _reshaped(self, x: Any, value: int) -> Any:
        """A view of an array in another shape, or a new array where no strides allow one."""
        if self.shapes[value] is None:
            return None
        try:
            return np.reshape(x, self.shapes[value], copy=False)
        except ValueError:
            return self._new(value)

    def _new(self, value: int) -> Any:
        """An array in C order of a value's shape and dtype, or a tuple of them; None where the shape is not known."""
        shape, type = self.shapes[value], self.program.type_of(value)
        if isinstance(shape, list):
            return tuple(map(self._memory.unallocated, shape, [each.dtype for each in type.types]))
        return None if shape is None else self._memory.unallocated(shape, type.dtype)
