"""Convolutions on a GPU: by cuDNN where it is installed and has a plan, else by implicit matrix products of our own.

Our kernels take arrays of any layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from backends.gpu.codegen.convolution import BY_INPUT, BY_WEIGHTS, FORWARD, THREADS, TILE, Role, source
from backends.gpu.cudnn import problem_of
from backends.gpu.direct import HUGE, type_of
from backends.gpu.launch_config import Launch
from optree.arrays import overlap
from optree.dtypes import FLOAT32
from optree.ops.convolution import MOST, Conv, ConvInput, ConvolutionOperator, ConvTranspose, ConvWeights
from optree.ops.windows import Sliding

#: The blocks that a derivative by weights is split into, for each multiprocessor, and the least depth of a split.
BLOCKS, LEAST_DEPTH = 2, 1024

#: By kernel, the array that it computes.
_COMPUTED = {FORWARD: "windows", BY_INPUT: "images", BY_WEIGHTS: "filters"}

#: By op class the kernel, and which operand, or the value (-1), are images x, weights, and images y.
_ROLES: dict[type, tuple[Role, tuple[int, int, int]]] = {
    Conv: (FORWARD, (0, 1, -1)),
    ConvInput: (BY_INPUT, (-1, 1, 0)),
    ConvTranspose: (BY_INPUT, (-1, 1, 0)),
    ConvWeights: (BY_WEIGHTS, (0, -1, 1)),
}


class Convolution:
    """A convolution, or a derivative of one, on a device's arrays.

    Parameters
    ----------
    device : GPUBackend
    op : ConvolutionOperator
    """

    def __init__(self, device: Any, op: ConvolutionOperator) -> None:
        self.device, self.op = device, op
        self.role, self.places = _ROLES[type(op)]

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        op, cupy = self.op, self.device.cupy
        shape: Any = op.output_shape(*(x.shape for x in arrays))
        dtype = op.resolve_dtypes(*(x.dtype for x in arrays))[-1]
        if not self._fits(arrays, shape):
            return self._by_library(arrays, dtype, out)
        operands = [x.astype(dtype, copy=False) for x in arrays[:2]]
        is_apart = out is not None and out.dtype == dtype and not any(overlap(out, x) for x in operands)
        target = out if is_apart else cupy.empty(shape, dtype)
        if not self._by_cudnn(operands, target):
            if self.device.kernels is None:
                return self._by_library(arrays, dtype, out)
            self._launch(operands, target, dtype)
        if out is None or is_apart:
            return target
        out[...] = target
        return out

    def sources(self, *arrays: Any) -> list[str]:
        """The sources that a call with these operands needs; none if one is unknown, or by cuDNN."""
        if self.device.kernels is None or self.device.cudnn is not None or any(x is None for x in arrays):
            return []
        return [source(self.role, type_of(self.op.resolve_dtypes(*(x.dtype for x in arrays))[-1]))]

    def _by_cudnn(self, operands: Sequence[Any], target: Any) -> bool:
        """Compute a convolution by cuDNN; False where it is not there, or has no plan."""
        library, products = self.device.cudnn, self.device.products
        if library is None:
            return False
        arrays = self._arrays(operands, target)
        problem = problem_of(_COMPUTED[self.role], products.tf32, *arrays, self._slidings(*arrays[:2]))
        plan = None if problem is None else library.plan(problem)
        if plan is None or plan.workspace is None:
            return False
        memory = products.workspace(plan.workspace)
        stream = self.device.cupy.cuda.get_current_stream().ptr
        library.run(plan, [x.data.ptr for x in arrays], 0 if memory is None else memory.data.ptr, stream)
        return True

    def _arrays(self, operands: Sequence[Any], target: Any) -> tuple[Any, Any, Any]:
        """The images, filters and windows, as (N, C, spatial) and (O, I, spatial)."""
        x, w, y = (target if i < 0 else operands[i] for i in self.places)
        return self.op.as_image(x), self.op.as_filters(w), self.op.as_image(y)

    def _slidings(self, images: Any, filters: Any) -> Sequence[Sliding]:
        return self.op.slidings(images.shape[2:], filters.shape[2:])

    def _by_library(self, arrays: Sequence[Any], dtype: np.dtype, out: Any) -> Any:
        """The op's own value, in slices that CuPy multiplies."""
        wide = FLOAT32 if dtype.itemsize == 2 else dtype
        first, second = (x.astype(wide, copy=False) for x in arrays[:2])
        value = self.op.value(first, second, *arrays[2:]).astype(dtype, copy=False)
        if out is None:
            return value
        out[...] = value
        return out

    @staticmethod
    def _fits(arrays: Sequence[Any], shape: Any) -> bool:
        sizes = [prod(shape), *(x.size for x in arrays)]
        return all(0 < size < HUGE for size in sizes)

    def _launch(self, operands: Sequence[Any], target: Any, dtype: np.dtype) -> None:
        kernels, op = self.device.kernels, self.op
        images, filters, windows = self._arrays(operands, target)
        outputs, inputs = filters.shape[0] // op.groups, filters.shape[1]
        places = len(images) * prod(windows.shape[2:])
        rows = inputs if self.role is BY_INPUT else outputs
        columns = {
            FORWARD: places,
            BY_INPUT: len(images) * prod(images.shape[2:]),
            BY_WEIGHTS: inputs * prod(filters.shape[2:]),
        }[self.role]
        blocks = -(-columns // TILE), -(-rows // TILE) * op.groups
        splits = self._splits(prod(blocks), places) if self.role is BY_WEIGHTS else 1
        words = [
            *(op.groups, inputs, outputs, len(images), splits),
            *(number for numbers in self._geometry(images, filters, windows) for number in numbers),
            *(stride for array in (images, windows, filters) for stride in _strides(array)),
        ]
        products, add_splits = kernels.load(source(self.role, type_of(dtype)), ("products", "add_splits"))
        first, second = {
            FORWARD: (filters, images),
            BY_INPUT: (filters, windows),
            BY_WEIGHTS: (windows, images),
        }[self.role]
        # Memory that is freed after the launches is used again in stream order.
        wide = np.dtype("float64") if dtype == np.float64 else FLOAT32
        elements = splits * op.groups * rows * columns if splits > 1 else 1
        sums, _memory = kernels.scratch(elements * wide.itemsize)
        addresses = [first.data.ptr, second.data.ptr, target.data.ptr, sums]
        grid = blocks[0], blocks[1] * splits
        kernels.bound(products, Launch("products", grid, THREADS), [*addresses, *words])()
        if splits > 1:
            count = -(-op.groups * rows * columns // THREADS)
            kernels.bound(add_splits, Launch("add_splits", (count, 1), THREADS), [sums, addresses[2], *words])()

    def _splits(self, blocks: int, depth: int) -> int:
        """The parts of the depth, so that a few weights too occupy the device."""
        wanted = -(-self.device.kernels.device.multiprocessors * BLOCKS // blocks)
        return max(1, min(wanted, depth // LEAST_DEPTH))

    def _geometry(self, images: Any, filters: Any, windows: Any) -> Sequence[Sequence[int]]:
        """Sizes, counts, windows, steps, paddings and dilations along three axes."""
        slidings = self._slidings(images, filters)
        return [
            _three(images.shape[2:], 1),
            _three(windows.shape[2:], 1),
            _three(filters.shape[2:], 1),
            _three([s.stride for s in slidings], 1),
            _three([s.before for s in slidings], 0),
            _three([s.dilation for s in slidings], 1),
        ]


def _three(values: Sequence[int], none: int) -> list[int]:
    return [none] * (MOST - len(values)) + list(values)


def _strides(array: Any) -> list[int]:
    """The strides of the first two axes and of three spatial ones, in elements."""
    outer, channel, *spatial = (stride // array.itemsize for stride in array.strides)
    return [outer, channel, *_three(spatial, 0)]
