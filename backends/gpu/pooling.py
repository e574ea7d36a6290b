"""Pooling on a GPU: a generated kernel for each kind of pooling and for its derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backends.execution.pooling import ROLES
from backends.gpu.arrays import DeviceArray
from backends.gpu.codegen.pooling import Pooled, parameter_names, source
from backends.gpu.direct import DirectKernels, type_of
from backends.gpu.kernel import divisor
from optree.networks.pooling import INT32, MeanOperator, PoolOperator


class Pool(DirectKernels):
    """A pooling op, or the derivative of one."""

    op: PoolOperator

    def source(self, arrays: Sequence[Any]) -> str:
        kind, _ = ROLES[type(self.op)]
        axes, _ = self._axes(arrays)
        counts_padding = isinstance(self.op, MeanOperator) and self.op.count_padding
        return source(kind, type_of(arrays[0].dtype), axes, counts_padding)

    def run(self, arrays: Sequence[DeviceArray], target: DeviceArray) -> None:
        cupy, (kind, roles) = self.device.cupy, ROLES[type(self.op)]
        axes, sizes = self._axes(arrays)
        given = [None if role is None else target if role < 0 else arrays[role] for role in roles]
        if given[2] is not None:
            given[2] = given[2].astype(INT32, copy=False)
        given = [None if x is None else cupy.ascontiguousarray(x) for x in given]
        written = [size if kind.writes == "x" else count for size, count, _ in sizes]
        divisors = [divisor(size) for size in written[1:]]
        words = [target.size, *(number for each in sizes for number in each), *divisors]
        assert len(words) == len(parameter_names(axes))
        addresses = [x.data.ptr for x in given if x is not None]
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
