"""Derivatives of pools on a GPU: a generated kernel for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backends.execution.pooling import KINDS
from backends.gpu.arrays import DeviceArray
from backends.gpu.codegen.pooling import Pooled, parameter_names, source
from backends.gpu.direct import DirectKernels, type_of
from backends.gpu.kernel import divisor
from optree.networks.pooling import INT32, MeanOperator, PoolOperator


class Pool(DirectKernels):
    """The derivative of a pool."""

    op: PoolOperator

    def source(self, arrays: Sequence[Any]) -> str:
        axes, _ = self._axes(arrays)
        counts_padding = isinstance(self.op, MeanOperator) and self.op.count_padding
        return source(KINDS[type(self.op)], type_of(arrays[0].dtype), axes, counts_padding)

    def run(self, arrays: Sequence[DeviceArray], target: DeviceArray) -> None:
        cupy, (delta, *others) = self.device.cupy, arrays
        axes, sizes = self._axes(arrays)
        indices = [others[0].astype(INT32, copy=False)] if KINDS[type(self.op)].is_by_index else []
        given = [target, *map(cupy.ascontiguousarray, (delta, *indices))]
        divisors = [divisor(size) for size, *_ in sizes[1:]]
        words = [target.size, *(number for each in sizes for number in each), *divisors]
        assert len(words) == len(parameter_names(axes))
        addresses = [x.data.ptr for x in given]
        self.launch(self.source(arrays), {"pooled": (target.size, [*addresses, *words])})

    def _axes(self, arrays: Sequence[Any]) -> tuple[list[Pooled | None], list[list[int]]]:
        """The axes of a kernel, and for each its elements, its windows, and the padding before them."""
        op = self.op
        images = arrays[op.images].shape
        windows = dict(zip(op.axes, op.slidings(images), strict=True))
        axes: list[Pooled | None] = []
        sizes: list[list[int]] = []
        for axis, size in enumerate(images):
            along = windows.get(axis)
            if along is not None:
                axes.append(Pooled(along.window, along.stride))
                sizes.append([size, along.positions, along.before])
            elif axes and axes[-1] is None:  # adjacent axes without windows are merged
                sizes[-1] = [sizes[-1][0] * size, sizes[-1][1] * size, 0]
            else:
                axes.append(None)
                sizes.append([size, size, 0])
        return axes, sizes
