"""Convolutions with epilogues on a GPU: what follows one element by element is computed before its value is stored.

The rule: a kernel without reductions continues with a convolution, or a derivative of one, whose elements are those
of its domain. Kernels of ours print it into their store; after sums that are split, into that of the parts' sums.
cuDNN adds a bias for each channel to a convolution, and before that an array of its shape, where that is all that a
kernel does, and it has a plan for both; where not, and after everything else by cuDNN, the kernel runs on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backends.execution.executor import ExecutableKernel
from backends.execution.memory import HOST
from backends.execution.specialize import FusedKernel, as_int64
from backends.gpu.codegen.convolution import FORWARD, Epilogue, epilogue_names, source
from backends.gpu.direct import type_of
from optree.arrays import overlap
from optree.cache import Cache
from optree.errors import CompilerError
from optree.ops.convolution import MOST
from optree.records import NamedTuple

#: The axes of a convolution's value in kernels: two, and three spatial ones.
AXES = 2 + MOST


class ConvolutionKernel(ExecutableKernel):
    """A convolution and the kernel that continues with it.

    Parameters
    ----------
    convolution : Convolution
    kernel : FusedKernel
    operands : sequence of int
        The convolution's, among the values of the program.
    value : int
        The convolution's value.
    is_stored : bool
        Whether other steps need the value.
    """

    def __init__(
        self, convolution: Any, kernel: FusedKernel, operands: Sequence[int], value: int, is_stored: bool
    ) -> None:
        self.convolution, self.kernel, self.operands, self.value = convolution, kernel, operands, value
        self.rank, self.reduced, self.memory, self.sizes = kernel.rank, kernel.reduced, kernel.memory, kernel.sizes
        self.label = f" after {convolution.op}, by CUDA kernels"
        self.reads = list(dict.fromkeys([*operands[:2], *(i for i in kernel.reads if i != value)]))
        self.shape_inputs = list(dict.fromkeys([*operands[2:], *kernel.shape_inputs]))
        self.uses = {*self.reads, *self.shape_inputs, *(i for i, _ in kernel.numbers)}
        self.writes = [*kernel.writes, *[value] * is_stored]
        self.axes = {**dict.fromkeys(operands, ()), **kernel.axes}
        # Blocks read the convolution's operands after others have written.
        self.last_read = {**kernel.last_read, **dict.fromkeys(operands[:2], 1)}
        self.written_in = {**kernel.written_in, value: 0}
        arrays = len(kernel.reads) + len(kernel.flat_indices) + len(kernel.writes)
        nest = kernel.nest(AXES, AXES, (-1,) * arrays)
        epilogue = Epilogue(nest, kernel.reads.index(value), is_stored)
        self.source = source(convolution.role, type_of(kernel.dtypes[value]), epilogue)
        self._names = epilogue_names(epilogue)
        # The nest's arrays are those that are read, flat indices, and those that are written; numbers follow reads.
        given = [n for n in range(arrays) if n != epilogue.value and not nest.is_flat_index(n)]
        self._addresses = [self._names.index(f"a{n}") for n in given]
        self._numbers = [self._names.index(f"c{len(nest.reads) + n}") for n in range(len(kernel.numbers))]
        self._layouts = Cache("convolutions with epilogues by layout", 64)

    def run(self, values: Sequence[Any], targets: Sequence[Any]) -> list[Any] | None:
        """See `ExecutableKernel.run`; None where one of the two has no kernel for the arrays."""
        convolution, kernel, dtype = self.convolution, self.kernel, self.kernel.dtypes[self.value]
        operands = [values[i].astype(dtype, copy=False) for i in self.operands[:2]]
        known = dict(zip(self.shape_inputs, self.input_shapes(values), strict=True))
        shapes = [*(x.shape for x in operands), *(known[i] for i in self.operands[2:])]
        shape = convolution.op.output_shape(*shapes)
        if not convolution.fits(shapes, shape):
            return None
        sizes = {axis: size for axis, size in zip(self.axes[self.value], shape, strict=True) if axis is not None}
        outputs = [
            self.memory.empty(tuple(1 if axis is None else sizes[axis] for axis in self.axes[i]), kernel.dtypes[i])
            if target is None
            else target
            for i, target in zip(self.writes, targets, strict=True)
        ]
        stored = outputs[len(kernel.writes) :]
        read = [None if i == self.value else self.memory.array(values[i]) for i in kernel.reads]
        arrays = [*read, *outputs[: len(kernel.writes)]]
        if not kernel.takes(arrays):
            return None
        words = self._words(arrays, [sizes[axis] for axis in range(self.rank)])
        for place, x in zip(self._addresses, [*(x for x in arrays if x is not None)], strict=True):
            words[place] = self.memory.address(x)
        for place, (i, number) in zip(self._numbers, kernel.numbers, strict=True):
            words[place] = as_int64(values[i], number)
        try:
            target = stored[0] if stored else HOST.shaped(shape, dtype)
            convolution.launch(operands, target, self.source, words, bool(stored))
        except CompilerError as error:
            kernel.explain(error)
            raise
        return outputs

    def _words(self, arrays: Sequence[Any], sizes: Sequence[int]) -> list[int]:
        """The arguments of the epilogue's parameters: the strides, and 0 for addresses and numbers."""
        key = tuple([None if x is None else (x.shape, x.strides) for x in arrays])
        words: list[int] | None = self._layouts.get(key)
        if words is None:
            along = [self.axes[self.value][axis] for axis in self.convolution.order]
            along[2:2] = [None] * (AXES - len(along))
            strides = {
                f"s{n}_{axis}": 0 if of is None else steps[of]
                for n, steps in enumerate(self.kernel.strides(arrays, sizes))
                for axis, of in enumerate(along)
            }
            words = self._layouts[key] = [strides.get(name, 0) for name in self._names]
        return words.copy()

    def sources(self) -> list[str]:
        """The sources that a run needs."""
        return [self.source]


class Addends(NamedTuple):
    """What is added to a convolution, among the values of the program.

    Attributes
    ----------
    whole : int or None
        An array of its shape.
    bias : int
        A vector with an element for each channel.
    """

    whole: int | None
    bias: int


def addends_of(convolution: Any, kernel: FusedKernel, value: int) -> Addends | None:
    """What a kernel adds to a convolution's value, where it only adds; None if cuDNN does not add it."""
    axes, others = kernel.axes, [i for i in kernel.reads if i != value]
    channel = axes[value][convolution.order[1]]
    if convolution.role is not FORWARD or channel is None or axes[kernel.writes[0]] != axes[value]:
        return None
    biases = [i for i in others if [axis for axis in axes[i] if axis is not None] == [channel]]
    wholes = [i for i in others if axes[i] == axes[value]]
    if len(biases) != 1 or len(wholes) > 1 or len(biases) + len(wholes) < len(others):
        return None
    return Addends(next(iter(wholes), None), biases[0])


class CuDNNKernel(ConvolutionKernel):
    """A convolution with a bias, and the kernel that adds it where cuDNN does not.

    Parameters
    ----------
    convolution, kernel, operands, value
        As of `ConvolutionKernel`.
    addends : Addends
    """

    def __init__(
        self, convolution: Any, kernel: FusedKernel, operands: Sequence[int], value: int, addends: Addends
    ) -> None:
        super().__init__(convolution, kernel, operands, value, False)
        version = convolution.device.cudnn.version
        self.addends = addends
        self.label = f" after {convolution.op}, by cuDNN {version} in one plan, or in a plan and a kernel"

    def run(self, values: Sequence[Any], targets: Sequence[Any]) -> list[Any] | None:
        convolution, kernel, dtype = self.convolution, self.kernel, self.kernel.dtypes[self.value]
        operands = [values[i].astype(dtype, copy=False) for i in self.operands]
        shapes = [x.shape for x in operands]
        shape = convolution.op.output_shape(*shapes)
        if not convolution.fits(shapes, shape):
            return None
        target = self.memory.empty(shape, dtype) if targets[0] is None else targets[0]
        bias, whole = values[self.addends.bias], None if self.addends.whole is None else values[self.addends.whole]
        is_apart = not any(x is not None and overlap(target, x) for x in (whole, bias))
        if is_apart and convolution.by_cudnn(operands, target, bias.reshape(-1), whole):
            return [target]
        made = self.memory.empty(shape, dtype)
        if not convolution.by_cudnn(operands, made):
            return super().run(values, targets)
        return kernel.run([*values[: self.value], made, *values[self.value + 1 :]], targets)

    def sources(self) -> list[str]:
        return []
