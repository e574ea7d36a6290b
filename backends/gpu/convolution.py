"""Convolutions on a GPU: by cuDNN if it is installed and has a plan, else by a product for each element of a filter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from backends.execution.convolution import ROLES
from backends.gpu.arrays import DeviceArray
from backends.gpu.cudnn import problem_of
from optree.arrays import overlap, stored
from optree.networks.convolution import Conv, ConvInput, ConvolutionOperator, ConvTranspose, ConvWeights

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

    def by_cudnn(self, operands: Sequence[DeviceArray], target: DeviceArray) -> bool:
        """Compute a convolution by cuDNN, which is installed; False if it has no plan."""
        library, products, op = self.device.cudnn, self.device.product, self.op
        if not all(0 < prod(x.shape) < HUGE for x in (*operands, target)):
            return False
        x, w, y = (target if i < 0 else operands[i] for i in self.roles)
        images, filters, windows = op.as_image(x), op.as_filters(w), op.as_image(y)
        slidings = op.slidings(images.shape[2:], filters.shape[2:])
        problem = problem_of(self.computed, products.tf32, images, filters, windows, slidings)
        plan = None if problem is None else library.plan(problem)
        if plan is None or plan.workspace is None:
            return False
        memory = products.workspace(plan.workspace)
        stream = self.device.cupy.cuda.get_current_stream().ptr
        addresses = [x.data.ptr for x in (images, filters, windows)]
        library.run(plan, addresses, 0 if memory is None else memory.data.ptr, stream)
        return True
