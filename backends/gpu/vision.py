"""Region pooling on a GPU, by generated kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backends.execution.specialize import as_int64
from backends.gpu.arrays import DeviceArray
from backends.gpu.codegen.vision import align_source, argmax_roi_source
from backends.gpu.direct import DirectKernels, type_of
from backends.gpu.kernel import divisor
from optree.arrays import is_any
from optree.networks.vision import (
    AlignOperator,
    RegionOperator,
    RoiAlignInput,
    image_numbers,
    wrong_boxes,
)
from optree.networks.windows import spatial_of

FLOAT64 = np.dtype("float64")


class Regions(DirectKernels):
    """An op on boxes of images, or its derivative."""

    op: RegionOperator

    def source(self, arrays: Sequence[Any]) -> str:
        op, dtype = self.op, type_of(arrays[0].dtype)
        layout = "".join(
            letter if letter in "NC" else "HW"[spatial_of(op.layout).index(letter)] for letter in op.layout
        )
        if isinstance(op, AlignOperator):
            return align_source(dtype, layout, op.samples, op.aligned, isinstance(op, RoiAlignInput))
        return argmax_roi_source(dtype, layout)

    def run(self, arrays: Sequence[DeviceArray], target: DeviceArray) -> None:
        op, cupy, kernels = self.op, self.device.cupy, self.device.kernels
        images, boxes = arrays[op.images].shape, cupy.ascontiguousarray(arrays[1].astype(FLOAT64))
        n, c, h, w = (images[axis] for axis in op.order)
        if len(boxes) and is_any(wrong_boxes(boxes, n)):
            image_numbers(self.device.to_host(boxes), n, "roi_align" if isinstance(op, AlignOperator) else "roi_pool")
        rows, columns = op.size
        count = len(boxes)
        words = [count, n, c, h, w, rows, columns, *map(divisor, target.shape[1:]), as_int64(op.scale, FLOAT64)]
        x = cupy.ascontiguousarray(arrays[0])
        if isinstance(op, AlignOperator):
            points = op.samples * (rows + columns)
            tables, _memory = kernels.scratch(max(1, count * (5 + points)) * 4)
            weights, _weights = kernels.scratch(max(1, count * points) * max(4, x.dtype.itemsize))
            prepared, found = "points", [tables, weights]
        else:
            tables, _memory = kernels.scratch(max(1, count * (1 + 2 * (rows + columns))) * 4)
            prepared, found = "bins", [tables]
        addresses = [x.data.ptr, target.data.ptr, *found]
        launches = {prepared: (count, [boxes.data.ptr, *found, count, *words]), "regions": (0, [])}
        launches["regions"] = target.size, [*addresses, target.size, *words]
        if not count:  # a derivative by no box
            target[...] = 0
            return
        self.launch(self.source(arrays), launches)
