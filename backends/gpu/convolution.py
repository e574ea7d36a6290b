"""Convolutions on a GPU by kernels of our own: implicit matrix products, on arrays of any layout."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from backends.gpu.codegen.convolution import BY_INPUT, BY_WEIGHTS, FORWARD, THREADS, TILE, Role, source
from backends.gpu.launch_config import Launch
from optree.arrays import overlap
from optree.dtypes import FLOAT32, is_bfloat16
from optree.ops.convolution import MOST, Conv, ConvInput, ConvolutionOperator, ConvTranspose, ConvWeights

#: The blocks that a derivative by weights is split into, for each multiprocessor, and the least depth of a split.
BLOCKS, LEAST_DEPTH = 2, 1024

#: Numbers from here on do not fit the kernels' indices.
HUGE = 1 << 31

_TYPES = {np.dtype("float32"): "float", np.dtype("float64"): "double", np.dtype("float16"): "__half"}

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
        if self.device.kernels is None or not self._fits(arrays, shape):
            return self._by_library(arrays, dtype, out)
        first, second = (x.astype(dtype, copy=False) for x in arrays[:2])
        is_apart = out is not None and out.dtype == dtype and not any(overlap(out, x) for x in (first, second))
        target = out if is_apart else cupy.empty(shape, dtype)
        self._launch([first, second], target, dtype)
        if out is None or is_apart:
            return target
        out[...] = target
        return out

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
        x, w, y = (target if i < 0 else operands[i] for i in self.places)
        images, filters, windows = op.as_image(x), op.as_filters(w), op.as_image(y)
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
        type = "__nv_bfloat16" if is_bfloat16(dtype) else _TYPES[dtype]
        products, add_splits = kernels.load(source(self.role, type), ("products", "add_splits"))
        first, second = {FORWARD: (w, x), BY_INPUT: (w, y), BY_WEIGHTS: (y, x)}[self.role]
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
        op = self.op
        slidings = op.slidings(images.shape[2:], filters.shape[2:])
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
