"""Convolution epilogues on a GPU: elementwise work on a convolution's value, computed before the value is stored.

An epilogue is a kernel without reductions whose domain is the value of a convolution or of a derivative of one. The
generated kernels print it into their store; if sums are split, into the store of the parts' sums. cuDNN adds an array
of the value's shape and a bias for each channel to a convolution, if the kernel does only that and cuDNN has a plan
for both. In all other cases with cuDNN, the kernel runs separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backends.execution.memory import HOST
from backends.execution.specialize import ExecutableKernel, FusedKernel, as_int64, layouts_of
from backends.gpu.codegen.convolution import FORWARD, Epilogue, epilogue_names, source
from backends.gpu.direct import type_of
from optree.arrays import overlap
from optree.cache import Cache
from optree.errors import CompilerError
from optree.networks.convolution import MOST
from optree.records import NamedTuple

#: The axes of a convolution's value in kernels: two, and three spatial ones.
AXES = 2 + MOST


class Shapes(NamedTuple):
    """Those of one run of a convolution with an epilogue.

    Attributes
    ----------
    known : dict
        Of the values that it uses for their shapes alone.
    operands : list of tuple
        Of the convolution's operands.
    value : tuple of int
        Of its value.
    sizes : dict
        Of the kernel's domain, by axis.
    """

    known: dict[int, tuple[int, ...]]
    operands: list[tuple[int, ...]]
    value: tuple[int, ...]
    sizes: dict[int, int]


class CudaConvolutionKernel(ExecutableKernel):
    """A convolution and its epilogue kernel, printed into its store.

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
        self.reads = list(dict.fromkeys([*operands[:2], *(i for i in kernel.reads if i != value)]))
        self.shape_inputs = list(dict.fromkeys([*operands[2:], *kernel.shape_inputs]))
        self.uses = {*self.reads, *self.shape_inputs, *(i for i, _ in kernel.numbers)}
        self.writes = [*kernel.writes, *[value] * is_stored]
        self.axes = {**dict.fromkeys(operands, ()), **kernel.axes}
        # Blocks read the convolution's operands after others have written.
        self.last_read = {**kernel.last_read, **dict.fromkeys(operands[:2], 1)}
        self.written_in = {**kernel.written_in, value: 0}
        self.layouts = Cache("convolutions with epilogues by layout", 64)
        self.label = f" after {convolution.op}, by CUDA kernels"
        arrays = len(kernel.reads) + len(kernel.flat_indices) + len(kernel.writes)
        nest = kernel.nest(AXES, AXES, (-1,) * arrays)
        epilogue = Epilogue(nest, kernel.reads.index(value), is_stored)
        self.source = source(convolution.role, type_of(kernel.dtypes[value]), epilogue)
        self._names = epilogue_names(epilogue)
        # The nest's arrays are those that are read, flat indices, and those that are written; numbers follow reads.
        given = [n for n in range(arrays) if n != epilogue.value and not nest.is_flat_index(n)]
        self._addresses = [self._names.index(f"a{n}") for n in given]
        self._numbers = [self._names.index(f"c{len(nest.reads) + n}") for n in range(len(kernel.numbers))]

    def run(self, values: Sequence[Any], targets: Sequence[Any]) -> list[Any] | None:
        """See `ExecutableKernel.run`; None unless both have a kernel for these arrays."""
        convolution, kernel, dtype = self.convolution, self.kernel, self.kernel.dtypes[self.value]
        _, shapes, shape, sizes = self.shapes(values)
        if not convolution.fits(shapes, shape):
            return None
        operands = [values[i].astype(dtype, copy=False) for i in self.operands[:2]]
        outputs = self.outputs(sizes, targets)
        stored = outputs[len(kernel.writes) :]
        read = [None if i == self.value else self.memory.array(values[i]) for i in kernel.reads]
        arrays = [*read, *outputs[: len(kernel.writes)]]
        if not kernel.takes(arrays):
            return None
        words = self._words(arrays, [sizes[axis] for axis in range(self.rank)])
        for index, x in zip(self._addresses, [*(x for x in arrays if x is not None)], strict=True):
            words[index] = self.memory.address(x)
        for index, (i, number) in zip(self._numbers, kernel.numbers, strict=True):
            words[index] = as_int64(values[i], number)
        try:
            target = stored[0] if stored else HOST.shaped(shape, dtype)
            convolution.launch(operands, target, self.source, words, bool(stored))
        except CompilerError as error:
            kernel.explain(error)
            raise
        return outputs

    def shapes(self, values: Sequence[Any]) -> Shapes:
        """The shapes of a run on the program's values."""
        known = dict(zip(self.shape_inputs, self.input_shapes(values), strict=True))
        operands = [*(values[i].shape for i in self.operands[:2]), *(known[i] for i in self.operands[2:])]
        shape = self.convolution.op.output_shape(*operands)
        along = zip(self.axes[self.value], shape, strict=True)
        return Shapes(known, operands, shape, {axis: size for axis, size in along if axis is not None})

    def outputs(self, sizes: dict[int, int], targets: Sequence[Any]) -> list[Any]:
        """The arrays to write: the targets, and new ones where there are none."""
        dtypes = self.kernel.dtypes
        return [
            self.memory.empty(tuple(1 if axis is None else sizes[axis] for axis in self.axes[i]), dtypes[i])
            if target is None
            else target
            for i, target in zip(self.writes, targets, strict=True)
        ]

    def _words(self, arrays: Sequence[Any], sizes: Sequence[int]) -> list[int]:
        """The arguments of the epilogue's parameters: the strides, and 0 for addresses and numbers."""
        key = tuple([None if x is None else (x.shape, x.strides) for x in arrays])
        words: list[int] | None = self.layouts.get(key)
        if words is None:
            along = [self.axes[self.value][axis] for axis in self.convolution.order]
            along[2:2] = [None] * (AXES - len(along))
            strides = {
                f"s{n}_{axis}": 0 if of is None else steps[of]
                for n, steps in enumerate(self.kernel.strides(arrays, sizes))
                for axis, of in enumerate(along)
            }
            words = self.layouts[key] = [strides.get(name, 0) for name in self._names]
        return words.copy()

    def sources(self) -> list[str]:
        """The sources that a run needs."""
        return [self.source]


class Addends(NamedTuple):
    """The addends of a convolution, among the values of the program.

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
    """The addends of a kernel that only adds to a convolution's value; None if cuDNN does not add them."""
    axes, others = kernel.axes, [i for i in kernel.reads if i != value]
    channel = axes[value][convolution.order[1]]
    if convolution.role is not FORWARD or channel is None or axes[kernel.writes[0]] != axes[value]:
        return None
    biases = [i for i in others if [axis for axis in axes[i] if axis is not None] == [channel]]
    wholes = [i for i in others if axes[i] == axes[value]]
    if len(biases) != 1 or len(wholes) > 1 or len(biases) + len(wholes) < len(others):
        return None
    return Addends(next(iter(wholes), None), biases[0])


class CuDNNKernel(CudaConvolutionKernel):
    """A convolution with a bias, and the kernel that adds the bias if cuDNN does not.

    Parameters
    ----------
    convolution, kernel, operands, value
        As of `CudaConvolutionKernel`.
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
        registers = [*values[: self.value], made, *values[self.value + 1 :], target]
        key = kernel, layouts_of([*(registers[i] for i in kernel.reads), target], self.memory)
        run = self.layouts.get(key)
        if run is None:
            found = kernel.specialize([*(registers[i] for i in kernel.reads), target], kernel.input_shapes(values))
            run = self.layouts[key] = None if found is None else kernel.call(found, registers, [len(values)])
        return None if run is None or run(registers) else [target]

    def sources(self) -> list[str]:
        return []
