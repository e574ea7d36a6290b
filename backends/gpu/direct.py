"""The base class of ops whose GPU kernels are not loop nests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from backends.gpu.arrays import DeviceArray
from backends.gpu.codegen.device_functions import THREADS
from backends.gpu.launch_config import MAX_GRID, Launch
from optree.arrays import is_portable, overlap, stored
from optree.dtypes import is_bfloat16

#: The number of elements from which the kernels' indices overflow.
HUGE = 1 << 31

_TYPES = {np.dtype("float32"): "float", np.dtype("float64"): "double", np.dtype("float16"): "__half"}


def type_of(dtype: np.dtype) -> str:
    """The CUDA type of a floating dtype."""
    return "__nv_bfloat16" if is_bfloat16(dtype) else _TYPES[dtype]


class DirectKernels:
    """An op computed by its own kernels on device arrays, into a new array or a given one.

    Parameters
    ----------
    device : GPUBackend
    op : Op
    """

    def __init__(self, device: Any, op: Any) -> None:
        self.device, self.op = device, op

    def __call__(self, *arrays: DeviceArray, out: DeviceArray | None = None) -> Any:
        op, cupy = self.op, self.device.cupy
        shape: Any = op.output_shape(*(x.shape for x in arrays))
        dtype = op.resolve_dtypes(*(x.dtype for x in arrays))[-1]
        if not self.takes(arrays, shape):
            return stored(self.by_value(arrays, dtype), out)
        read = [x for i, x in enumerate(arrays) if i not in op.index_map.shape_only]
        fits = out is not None and out.dtype == dtype and out.flags.c_contiguous
        is_apart = fits and not any(overlap(out, x) for x in read)
        target: DeviceArray = cupy.empty(shape, dtype) if out is None or not is_apart else out
        if target.size:
            self.run(arrays, target)
        return stored(target, out)

    def takes(self, arrays: Sequence[DeviceArray], shape: Sequence[int]) -> bool:
        """Whether the kernels support these operands and a value of this shape."""
        return self.device.kernels is not None and max(prod(shape), *(x.size for x in arrays)) < HUGE

    def sources(self, *arrays: Any) -> list[str]:
        """The sources that a call with these operands compiles; none if it launches no kernel or one is unknown."""
        if any(x is None for x in arrays):
            return []
        shape: Any = self.op.output_shape(*(x.shape for x in arrays))
        return [self.source(arrays)] if self.takes(arrays, shape) and prod(shape) > 0 else []

    def source(self, arrays: Sequence[DeviceArray]) -> str:
        """The source of the kernels for operands of these shapes and dtypes."""
        raise NotImplementedError

    def run(self, arrays: Sequence[DeviceArray], target: DeviceArray) -> None:
        """Launch the kernels that write the target."""
        raise NotImplementedError

    def launch(self, source: str, launches: Mapping[str, tuple[int, Sequence[Any]]]) -> None:
        """Launch the kernels of a source in order, each with its number of threads and its arguments."""
        kernels = self.device.kernels
        for kernel, (name, (threads, words)) in zip(
            kernels.load(source, tuple(launches)), launches.items(), strict=True
        ):
            grid = min(MAX_GRID, -(-threads // THREADS)), 1
            kernels.bound(kernel, Launch(name, grid, THREADS), words)()

    def by_value(self, arrays: Sequence[DeviceArray], dtype: np.dtype) -> Any:
        """The op's own value, by the device's library if it is portable, else on the host."""
        op, device = self.op, self.device
        if is_portable(op):
            return op.value(*arrays).astype(dtype, copy=False)
        device.host_calls += 1
        return device.owned(op.value(*map(device.to_host, arrays)), dtype)
