"""Convolutions on a GPU: by cuDNN if it is installed and has a plan, else by a product for each element of a filter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from backends.execution.convolution import ROLES
from backends.execution.specialize import ExecutableKernel, FusedKernel, layouts_of
from backends.gpu.arrays import DeviceArray
from backends.gpu.cudnn import problem_of
from optree.arrays import overlap, stored
from optree.cache import Cache
from optree.networks.convolution import Conv, ConvInput, ConvolutionOperator, ConvTranspose, ConvWeights
from optree.records import NamedTuple

#: The number of elements from which cuDNN is not asked: its indices have 32 bits.
HUGE = 1 << 31

#: By op class, the array that it computes.
_COMPUTED: dict[type, str] = {Conv: "windows", ConvInput: "images", ConvTranspose: "images", ConvWeights: "filters"}


class Convolution:
    """A convolution, or a derivative of one, on a device's arrays.

    `device`: a `GPUBackend`.
    """

    def __init__(self, device: Any, op: ConvolutionOperator) -> None:
        self.device, self.op = device, op
        self.computed, self.roles = _COMPUTED[type(op)], ROLES[type(op)]

    def __call__(self, *arrays: DeviceArray, out: DeviceArray | None = None) -> Any:
        op, device = self.op, self.device
        dtype = op.resolve_dtypes(*(x.dtype for x in arrays))[-1]
        operands = [x.astype(dtype, copy=False) for x in arrays[:2]]
        if device.cudnn is not None:
            shape: Any = op.output_shape(*(x.shape for x in arrays))
            is_apart = out is not None and out.dtype == dtype and not any(overlap(out, x) for x in operands)
            target: DeviceArray = device.cupy.empty(shape, dtype) if out is None or not is_apart else out
            if self.by_cudnn(operands, target):
                return stored(target, out)
        found = op.by_products(*operands, *arrays[2:], matmul=partial(device.product, is_wide=True))
        return stored(found.astype(dtype, copy=False), out)

    def with_sum(self, kernel: ExecutableKernel, operands: Sequence[int], value: int) -> ExecutableKernel | None:
        """See `Implementation.with_sum`: cuDNN adds an array of the value's shape, and a bias for each channel."""
        if self.device.cudnn is None or not isinstance(kernel, FusedKernel):
            return None
        addends = addends_of(self, kernel, value)
        return None if addends is None else CuDNNKernel(self, kernel, operands, value, addends)

    def by_cudnn(
        self,
        operands: Sequence[DeviceArray],
        target: DeviceArray,
        bias: DeviceArray | None = None,
        addend: DeviceArray | None = None,
    ) -> bool:
        """Compute a convolution by cuDNN, which is installed; False if it has no plan.

        `bias`: a vector to add, with an element for each channel of the value.
        `addend`: an array of the value's shape to add.
        """
        library, products, op = self.device.cudnn, self.device.product, self.op
        if not all(0 < prod(x.shape) < HUGE for x in (*operands, target)):
            return False
        x, w, y = (target if i < 0 else operands[i] for i in self.roles)
        images, filters, windows = op.as_image(x), op.as_filters(w), op.as_image(y)
        whole = None if addend is None else op.as_image(addend)
        slidings = op.slidings(images.shape[2:], filters.shape[2:])
        problem = problem_of(self.computed, products.tf32, images, filters, windows, slidings, bias, whole)
        plan = None if problem is None else library.plan(problem)
        if plan is None or plan.workspace is None:
            return False
        memory = products.workspace(plan.workspace)
        stream = self.device.cupy.cuda.get_current_stream().ptr
        addresses = [x.data.ptr for x in (images, filters, windows, whole, bias) if x is not None]
        library.run(plan, addresses, 0 if memory is None else memory.data.ptr, stream)
        return True


class Addends(NamedTuple):
    """The addends of a convolution, among the values of the program."""

    #: An array of its shape.
    whole: int | None
    #: A vector with an element for each channel.
    bias: int


def addends_of(convolution: Convolution, kernel: FusedKernel, value: int) -> Addends | None:
    """The addends of a kernel that only adds to a convolution's value; None if cuDNN does not add them."""
    axes, others = kernel.axes, [i for i in kernel.reads if i != value]
    channel = axes[value][convolution.op.order[1]]
    if convolution.computed != "windows" or channel is None or axes[kernel.writes[0]] != axes[value]:
        return None
    biases = [i for i in others if [axis for axis in axes[i] if axis is not None] == [channel]]
    wholes = [i for i in others if axes[i] == axes[value]]
    if len(biases) != 1 or len(wholes) > 1 or len(biases) + len(wholes) < len(others):
        return None
    return Addends(next(iter(wholes), None), biases[0])


class CuDNNKernel(ExecutableKernel):
    """A convolution with a bias in one plan of cuDNN's, or the convolution and the kernel that adds the bias.

    `operands`: the convolution's, among the values of the program.
    `value`: the convolution's value.
    """

    def __init__(
        self, convolution: Convolution, kernel: FusedKernel, operands: Sequence[int], value: int, addends: Addends
    ) -> None:
        self.convolution, self.kernel, self.operands = convolution, kernel, operands
        self.value, self.addends = value, addends
        self.rank, self.reduced, self.memory, self.sizes = kernel.rank, kernel.reduced, kernel.memory, kernel.sizes
        self.reads = list(dict.fromkeys([*operands, *(i for i in kernel.reads if i != value)]))
        self.shape_inputs, self.writes = kernel.shape_inputs, kernel.writes
        self.uses = {*self.reads, *self.shape_inputs, *(i for i, _ in kernel.numbers)}
        self.axes = {**dict.fromkeys(operands, ()), **kernel.axes}
        # The convolution's operands are read after elements of the value have been written.
        self.last_read, self.written_in = {**kernel.last_read, **dict.fromkeys(operands, 1)}, {value: 0}
        self.written_in |= kernel.written_in
        version = convolution.device.cudnn.version
        self.label = f" after {convolution.op}, by cuDNN {version} in one plan, or in a plan and a kernel"
        self._calls = Cache("kernels after convolutions by layout", 64)

    def run(self, values: Sequence[Any], targets: Sequence[Any]) -> list[Any] | None:
        convolution, kernel, dtype = self.convolution, self.kernel, self.kernel.dtypes[self.value]
        operands = [values[i].astype(dtype, copy=False) for i in self.operands]
        shape = convolution.op.output_shape(*(x.shape for x in operands))
        target = self.memory.empty(shape, dtype) if targets[0] is None else targets[0]
        bias, whole = values[self.addends.bias], None if self.addends.whole is None else values[self.addends.whole]
        is_apart = not any(x is not None and overlap(target, x) for x in (whole, bias))
        if is_apart and convolution.by_cudnn(operands, target, bias.reshape(-1), whole):
            return [target]
        registers = [*values[: self.value], convolution(*operands), *values[self.value + 1 :], target]
        arrays = [*(registers[i] for i in kernel.reads), target]
        key = layouts_of(arrays, self.memory)
        call = self._calls.get(key)
        if call is None:
            found = kernel.specialize(arrays, kernel.input_shapes(values))
            call = self._calls[key] = None if found is None else kernel.call(found, registers, [len(values)])
        return None if call is None or call(registers) else [target]
