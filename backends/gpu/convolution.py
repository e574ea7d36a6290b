"""Convolutions on a GPU: by cuDNN if it is installed and has a plan, else by generated implicit matrix products.

The generated kernels support arrays of any layout, and epilogues (`backends.gpu.convolution_epilogues`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from backends.execution.convolution import ROLES, three
from backends.execution.memory import element_strides
from backends.execution.specialize import ExecutableKernel, FusedKernel
from backends.gpu.arrays import DeviceArray
from backends.gpu.codegen.convolution import BY_INPUT, BY_WEIGHTS, FORWARD, THREADS, TILE, Role, kernel_names, source
from backends.gpu.convolution_epilogues import CudaConvolutionKernel, CuDNNKernel, addends_of
from backends.gpu.cudnn import problem_of
from backends.gpu.direct import HUGE, type_of
from backends.gpu.launch_config import Launch
from optree.arrays import overlap, stored
from optree.cache import Cache
from optree.dtypes import FLOAT32
from optree.networks.convolution import Conv, ConvInput, ConvolutionOperator, ConvTranspose, ConvWeights
from optree.networks.windows import Sliding
from optree.records import NamedTuple

#: The number of blocks per multiprocessor that a derivative by weights is split into, and the minimum depth of a split.
BLOCKS, LEAST_DEPTH = 2, 1024

#: By kernel, the array that it computes.
_COMPUTED = {FORWARD: "windows", BY_INPUT: "images", BY_WEIGHTS: "filters"}

#: By op class, the kernel.
_KERNELS: dict[type, Role] = {
    Conv: FORWARD,
    ConvInput: BY_INPUT,
    ConvTranspose: BY_INPUT,
    ConvWeights: BY_WEIGHTS,
}


class Launches(NamedTuple):
    """The launch parameters of a convolution's kernels, for one set of array layouts.

    Attributes
    ----------
    words : list of int
        The numbers that kernels take after the arrays.
    grid : tuple of int
    splits : int
        The number of parts of a sum.
    elements : int
        The elements of the value.
    """

    words: list[int]
    grid: tuple[int, int]
    splits: int
    elements: int


class Convolution:
    """A convolution, or a derivative of one, on a device's arrays.

    Parameters
    ----------
    device : GPUBackend
    op : ConvolutionOperator
    """

    def __init__(self, device: Any, op: ConvolutionOperator) -> None:
        self.device, self.op = device, op
        self.role, self.roles = _KERNELS[type(op)], ROLES[type(op)]
        self._launches = Cache("launches of convolutions", 64)

    def __call__(self, *arrays: DeviceArray, out: DeviceArray | None = None) -> Any:
        op, cupy = self.op, self.device.cupy
        shape: Any = op.output_shape(*(x.shape for x in arrays))
        dtype = op.resolve_dtypes(*(x.dtype for x in arrays))[-1]
        if not self.fits([x.shape for x in arrays], shape):
            return stored(self._by_library(arrays, dtype), out)
        operands = [x.astype(dtype, copy=False) for x in arrays[:2]]
        is_apart = out is not None and out.dtype == dtype and not any(overlap(out, x) for x in operands)
        target: DeviceArray = cupy.empty(shape, dtype) if out is None or not is_apart else out
        if not self.by_cudnn(operands, target):
            if self.device.kernels is None:
                return stored(self._by_library(arrays, dtype), out)
            self.launch(operands, target, source(self.role, type_of(dtype)))
        return stored(target, out)

    def sources(self, *arrays: DeviceArray) -> list[str]:
        """The sources that a call with these operands needs; none if one is unknown, or by cuDNN."""
        if self.device.kernels is None or self.device.cudnn is not None or any(x is None for x in arrays):
            return []
        return [source(self.role, type_of(self.op.resolve_dtypes(*(x.dtype for x in arrays))[-1]))]

    @property
    def order(self) -> tuple[int, ...]:
        """The axes of the value in the order (N, C, spatial) or (O, I, spatial)."""
        return self.op.weights_order if self.role is BY_WEIGHTS else self.op.order

    def with_epilogue(
        self, kernel: ExecutableKernel, operands: Sequence[int], value: int, is_stored: bool, is_sum: bool
    ) -> ExecutableKernel | None:
        """See `Implementation.with_epilogue`; `convolution_epilogues` says when."""
        if self.device.kernels is None or not isinstance(kernel, FusedKernel):
            return None
        if all(axis is None for axis in kernel.axes[value]):
            return None
        if self.device.cudnn is None:
            return CudaConvolutionKernel(self, kernel, operands, value, is_stored)
        addends = addends_of(self, kernel, value) if is_sum and not is_stored else None
        return None if addends is None else CuDNNKernel(self, kernel, operands, value, addends)

    def by_cudnn(
        self,
        operands: Sequence[DeviceArray],
        target: DeviceArray,
        bias: DeviceArray | None = None,
        addend: DeviceArray | None = None,
    ) -> bool:
        """Compute a convolution by cuDNN; False if cuDNN is not installed or has no plan.

        Parameters
        ----------
        bias : array, optional
            A vector to add, with an element for each channel of the value.
        addend : array, optional
            An array of the value's shape to add.
        """
        library, products = self.device.cudnn, self.device.product
        if library is None:
            return False
        arrays = self._arrays(operands, target)
        whole = None if addend is None else self.op.as_image(addend)
        slidings = self._slidings(*arrays[:2])
        problem = problem_of(_COMPUTED[self.role], products.tf32, *arrays, slidings, bias, whole)
        plan = None if problem is None else library.plan(problem)
        if plan is None or plan.workspace is None:
            return False
        memory = products.workspace(plan.workspace)
        stream = self.device.cupy.cuda.get_current_stream().ptr
        addresses = [x.data.ptr for x in (*arrays, whole, bias) if x is not None]
        library.run(plan, addresses, 0 if memory is None else memory.data.ptr, stream)
        return True

    def _arrays(
        self, operands: Sequence[DeviceArray], target: DeviceArray
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """The images, filters and windows, as (N, C, spatial) and (O, I, spatial)."""
        x, w, y = (target if i < 0 else operands[i] for i in self.roles)
        return self.op.as_image(x), self.op.as_filters(w), self.op.as_image(y)

    def _slidings(self, images: DeviceArray, filters: DeviceArray) -> Sequence[Sliding]:
        return self.op.slidings(images.shape[2:], filters.shape[2:])

    def _by_library(self, arrays: Sequence[Any], dtype: np.dtype) -> Any:
        """The op's own value, in slices that CuPy multiplies."""
        wide = FLOAT32 if dtype.itemsize == 2 else dtype
        first, second = (x.astype(wide, copy=False) for x in arrays[:2])
        return self.op.value(first, second, *arrays[2:]).astype(dtype, copy=False)

    @staticmethod
    def fits(shapes: Sequence[Any], shape: Any) -> bool:
        """Whether kernels or cuDNN compute a value of a shape, from operands of some shapes."""
        return all(0 < prod(each) < HUGE for each in (shape, *shapes))

    def launch(
        self,
        operands: Sequence[DeviceArray],
        target: DeviceArray,
        source: str,
        words: Sequence[int] = (),
        is_stored: bool = True,
    ) -> None:
        """Launch the kernels of a source.

        Parameters
        ----------
        operands : sequence of array
        target : array
            The value.
        words : sequence of int
            The arguments of an epilogue.
        is_stored : bool
            Whether the value is stored; otherwise only the layout of the target is used.
        """
        kernels, address, dtype = self.device.kernels, self.device.memory.address, operands[0].dtype
        key = tuple([(x.shape, x.strides) for x in (*operands, target)]), dtype
        launches: Launches | None = self._launches.get(key)
        if launches is None:
            launches = self._launches[key] = self._prepared(*self._arrays(operands, target))
        loaded = kernels.load(source, kernel_names(self.role))
        x, w, y = (None if i < 0 else operands[i] for i in self.roles)
        first, second = {FORWARD: (w, x), BY_INPUT: (w, y), BY_WEIGHTS: (y, x)}[self.role]
        # Memory that is freed after the launches is used again in stream order.
        wide = np.dtype("float64") if dtype == np.float64 else FLOAT32
        elements = launches.splits * launches.elements if launches.splits > 1 else 1
        sums, _memory = kernels.scratch(elements * wide.itemsize)
        out = address(target) if is_stored else sums
        given = [*launches.words, *words]
        addresses = [address(first), address(second), out, sums]
        kernels.bound(loaded[0], Launch("products", launches.grid, THREADS), [*addresses, *given])()
        if launches.splits > 1:
            grid = -(-launches.elements // THREADS), 1
            kernels.bound(loaded[1], Launch("add_splits", grid, THREADS), [sums, out, *given])()

    def _prepared(self, images: DeviceArray, filters: DeviceArray, windows: DeviceArray) -> Launches:
        op = self.op
        outputs, inputs = filters.shape[0] // op.groups, filters.shape[1]
        positions = len(images) * prod(windows.shape[2:])
        rows = inputs if self.role is BY_INPUT else outputs
        columns = {
            FORWARD: positions,
            BY_INPUT: len(images) * prod(images.shape[2:]),
            BY_WEIGHTS: inputs * prod(filters.shape[2:]),
        }[self.role]
        blocks = -(-columns // TILE), -(-rows // TILE) * op.groups
        splits = self._splits(prod(blocks), positions) if self.role is BY_WEIGHTS else 1
        words = [
            *(op.groups, inputs, outputs, len(images), splits),
            *(number for numbers in self._geometry(images, filters, windows) for number in numbers),
            *(stride for array in (images, windows, filters) for stride in _strides(array)),
        ]
        return Launches(words, (blocks[0], blocks[1] * splits), splits, op.groups * rows * columns)

    def _splits(self, blocks: int, depth: int) -> int:
        """The number of parts of the depth, so that a derivative by few weights also occupies the device."""
        wanted = -(-self.device.kernels.device.multiprocessors * BLOCKS // blocks)
        return max(1, min(wanted, depth // LEAST_DEPTH))

    def _geometry(self, images: DeviceArray, filters: DeviceArray, windows: DeviceArray) -> Sequence[Sequence[int]]:
        """Sizes, counts, windows, steps, paddings and dilations along three axes."""
        slidings = self._slidings(images, filters)
        return [
            three(images.shape[2:], 1),
            three(windows.shape[2:], 1),
            three(filters.shape[2:], 1),
            three([s.stride for s in slidings], 1),
            three([s.before for s in slidings], 0),
            three([s.dilation for s in slidings], 1),
        ]


def _strides(array: DeviceArray) -> list[int]:
    """The strides of the first two axes and of three spatial ones, in elements."""
    outer, channel, *spatial = element_strides(array)
    return [outer, channel, *three(spatial, 0)]
