"""Compilation of a plan's kernels before its first run, several at a time: it waits for the slowest, not for their sum.

A kernel is compiled for the layouts of its arrays, and most of those do not exist
yet. They follow from the leaves: the steps are passed over with arrays that have a
shape and strides, and memory for one element. A kernel whose operands do not follow
is compiled when it runs, as is one for another layout than was foreseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from backends.cpu.compiler import concurrently
from backends.cpu.thread_pool import thread_count
from backends.execution.executor import CallStep, KernelStep
from backends.execution.specialize import FusedKernel, Variant
from optree import settings
from optree.compile.program import Program
from optree.compile.shapes import shapes_of
from optree.errors import CompilerError
from optree.ops.structure import Output
from optree.ops.traits import ViewOperator


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
    needed = {kernel.nest(*variant): (kernel, variant) for kernel, variant in _Foresight(program, steps, values).run()}
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


class _Foresight:
    """Steps passed over with arrays in place of those that they would compute."""

    def __init__(self, program: Program, steps: Sequence[CallStep | KernelStep], values: list[Any]) -> None:
        self.program, self.steps, self.values = program, steps, values
        known = [getattr(x, "shape", ()) for x in values[: len(program.leaves)]]
        self.shapes = shapes_of(program, known)
        self.found: list[tuple[FusedKernel, Variant]] = []

    def run(self) -> list[tuple[FusedKernel, Variant]]:
        """The kernels and variants that will run, and have not been compiled."""
        for step in self.steps:
            if isinstance(step, KernelStep):
                self._kernel(step)
            elif step.target is not None:
                self.values[step.output] = self.values[step.target]
            else:
                self.values[step.output] = self._value(step)
        return self.found

    def _kernel(self, step: KernelStep) -> None:
        kernel, values = step.kernel, self.values
        if isinstance(kernel, FusedKernel):
            arrays = [None if values[i] is None else kernel.memory.array(values[i]) for i in kernel.reads]
            input_shapes = [self.shapes[i] for i in kernel.shape_inputs]
            if not any(x is None for x in (*arrays, *input_shapes)):
                *_, variant = kernel.layout([*arrays, *step.targets(values)[1]], input_shapes)
                if variant is not None and not kernel.is_compiled(variant):
                    self.found.append((kernel, variant))
        for i in kernel.writes:
            if i in step.target_of:
                values[i] = values[step.target_of[i]]
            elif values[i] is None:
                values[i] = self._new(i)
        for i, _, assignment in step.assigned:
            values[assignment] = values[i]

    def _value(self, step: CallStep) -> Any:
        """The value of a call: a view, the array that it overwrites, or a new array in C order."""
        op, inputs = step.op, [self._new(i) if n in step.shaped else self.values[i] for n, i in enumerate(step.inputs)]
        if any(x is None for x in inputs):
            return None
        if 0 in op.destroy_map:
            return inputs[op.destroy_map[0][0]]
        if not op.shared_inputs():
            call = step.implementation.call
            if isinstance(call, np.ufunc) and call.signature is None:  # its value's axes are in its operands' order
                in_order = all(x.flags.c_contiguous for x in inputs if isinstance(x, np.ndarray))
                return self._new(step.output) if in_order else None
            return self._new(step.output)
        if op.keeps_order:
            return self._reshaped(inputs[0], step.output)
        if isinstance(inputs[0], tuple) or type(op).__module__.startswith("optree."):
            return step.implementation.call(*inputs) if isinstance(op, ViewOperator | Output) else None
        return None  # an op that is not op-tree's may read elements, of which there are none

    def _reshaped(self, x: np.ndarray, value: int) -> Any:
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
            return tuple(map(_array, shape, [each.dtype for each in type.types]))
        return None if shape is None else _array(shape, type.dtype)


def _array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array in C order, with memory for one element."""
    strides = [dtype.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return as_strided(np.empty(1, dtype), shape, strides)
