"""Convolution epilogues on the CPU: an elementwise kernel runs on each block of the value while it is in the cache.

An epilogue is a kernel without reductions whose domain is the convolution's value. It must not compute with element
indices, as random draws do. Derivatives by images have epilogues if their stride is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from backends.execution.convolution_kernel import ConvolutionKernel
from backends.execution.memory import empty_array
from backends.execution.specialize import FusedKernel, Layout, as_int64, strides_along
from optree.arrays import overlap
from optree.errors import CompilerError
from optree.records import NamedTuple
from optree.settings import thread_count

#: The variants of an epilogue: a block is whole or cut off along each of four axes and along channels.
VARIANTS = 32


class _Variant(NamedTuple):
    """The kernel for blocks cut off along some axes: the bit mask of the axes, a compiled nest, and its layout."""

    bits: int
    nest: Any
    layout: Layout


class _Plan(NamedTuple):
    """The plan of a convolution and its epilogue, for one set of array layouts.

    Attributes
    ----------
    convolution : object
        The plan of the convolution.
    block : list of int
        The sizes of a block along the four axes of positions, and of channels.
    variants : list of _Variant
    steps : list of int
        For each array of the kernel, the byte strides along the same axes.
    """

    convolution: Any
    block: Sequence[int]
    variants: Sequence[_Variant]
    steps: Sequence[int]

    def words(self, addresses: Sequence[int], numbers: Sequence[int]) -> list[int]:
        """The epilogue as words for C."""
        first = 1 + len(self.block) + VARIANTS + len(self.steps)
        offsets, found = [0] * VARIANTS, list[int]()
        for bits, nest, layout in self.variants:
            offsets[bits] = first + len(found)
            words = nest.words(addresses, numbers, layout)
            found += [words[0], len(words) - 1, *words[1:]]
        return [len(addresses), *self.block, *offsets, *self.steps, *found]


class BlockedConvolutionKernel(ConvolutionKernel):
    """A convolution and its epilogue kernel, run block by block."""

    def __init__(
        self, convolution: Any, kernel: FusedKernel, operands: Sequence[int], value: int, is_stored: bool
    ) -> None:
        super().__init__(convolution, kernel, operands, value, is_stored)
        self.label = f" after {convolution.op} in blocks, by {convolution.backend.windows_by()}"

    def run(self, values: Sequence[Any], targets: Sequence[np.ndarray | None]) -> list[Any] | None:
        """See `ExecutableKernel.run`; None unless both the convolution and the kernel run in C."""
        convolution, kernel, dtype = self.convolution, self.kernel, self.kernel.dtypes[self.value]
        first, second = (values[i] for i in self.operands[:2])
        known, shapes, shape, sizes = self.shapes(values)
        functions = convolution.functions_for(dtype, shapes, shape) if first.dtype == second.dtype == dtype else None
        if functions is None:
            return None
        outputs = self.outputs(sizes, targets)
        made = self._memory(values, outputs, shape)
        read = [made if i == self.value else kernel.memory.array(values[i]) for i in kernel.reads]
        arrays = [*read, *outputs[: len(kernel.writes)]]
        layouts = [(x.shape, x.strides, x.ctypes.data % x.itemsize) for x in (first, second, made, *arrays)]
        key = *layouts, *known.values(), thread_count()
        plan: _Plan | None = self.layouts.get(key)
        if plan is None:
            conv = convolution.plan(functions, first, second, made)
            plan = self._planned(conv, arrays, [known[i] for i in kernel.shape_inputs])
            if plan is None:
                return None
            self.layouts[key] = plan
        numbers = [as_int64(values[i], dtype) for i, dtype in kernel.numbers]
        plan.convolution.run(first, second, made, plan.words([x.ctypes.data for x in arrays], numbers))
        return outputs

    def _memory(self, values: Sequence[Any], outputs: Sequence[np.ndarray], shape: Any) -> np.ndarray:
        """The memory of the convolution's value: an output's, unless that is aliased to an operand."""
        axes, dtype = self.axes[self.value], self.kernel.dtypes[self.value]
        if len(outputs) > len(self.kernel.writes):
            return outputs[-1]
        for i, x in zip(self.writes, outputs, strict=True):
            is_free = not any(overlap(x, values[j]) for j in self.reads)
            if self.axes[i] == axes and x.dtype == dtype and is_free:
                return x
        return empty_array(shape, dtype)

    def _planned(self, conv: Any, arrays: Sequence[np.ndarray], input_shapes: Sequence[Any]) -> _Plan | None:
        """The plan of the convolution and its epilogue; None if they cannot run together in C."""
        kernel, axes = self.kernel, conv.image_axes()
        along = [None if axis is None else self.axes[self.value][axis] for axis in axes]
        values = (*kernel.reads, *kernel.writes)
        strides = [
            [n * x.itemsize for n in strides_along(x, self.axes[i], self.rank)]
            for i, x in zip(values, arrays, strict=True)
        ]
        steps = [0 if axis is None else steps[axis] for steps in strides for axis in along]
        variants = []
        block = conv.finished_block()
        choices = [sorted({0, all % each and 1}) for all, each in zip(conv.finished_sizes(), block, strict=True)]
        for cut in product(*choices):
            counts = [a % b if c else b for a, b, c in zip(conv.finished_sizes(), block, cut, strict=True)]
            sizes = [1] * self.rank
            for axis, count in zip(along, counts, strict=True):
                if axis is not None:
                    sizes[axis] = count
            parts = [_part(x, self.axes[i], sizes) for i, x in zip(values, arrays, strict=True)]
            shapes = [_cut(s, self.axes[i], sizes) for i, s in zip(kernel.shape_inputs, input_shapes, strict=True)]
            found = kernel.specialize(parts, shapes)
            if found is None or found.nest is None:
                return None
            try:
                nest = kernel.compiled(found.nest)
            except CompilerError as error:
                kernel.fail(error)
                return None
            variants.append(_Variant(sum(c << i for i, c in enumerate(cut)), nest, found.layout))
        return _Plan(conv, block, variants, steps)


def _cut(shape: Sequence[int], axes: Sequence[int | None], sizes: Sequence[int]) -> tuple[int, ...]:
    """A shape within a block of the domain."""
    return tuple(n if axis is None else min(n, sizes[axis]) for n, axis in zip(shape, axes, strict=True))


def _part(x: np.ndarray, axes: Sequence[int | None], sizes: Sequence[int]) -> np.ndarray:
    """An array within the first block of the domain."""
    return x[tuple(map(slice, _cut(x.shape, axes, sizes)))]
