"""Region pooling on a GPU, by generated kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backends.execution.specialize import as_int64
from backends.gpu.arrays import DeviceArray
from backends.gpu.codegen.vision import argmax_roi_source
from backends.gpu.direct import DirectKernels, type_of
from backends.gpu.kernel import divisor
from optree.arrays import is_any
from optree.networks.vision import ArgmaxRoi, image_numbers, wrong_boxes

FLOAT64 = np.dtype("float64")


class Regions(DirectKernels):
    """The indices of the maxima of boxes of images."""

    op: ArgmaxRoi

    def source(self, arrays: Sequence[Any]) -> str:
        letters = iter("HW")
        layout = "".join(letter if letter in "NC" else next(letters) for letter in self.op.layout)
        return argmax_roi_source(type_of(arrays[0].dtype), layout)

    def run(self, arrays: Sequence[DeviceArray], target: DeviceArray) -> None:
        op, cupy, kernels = self.op, self.device.cupy, self.device.kernels
        images, boxes = arrays[op.images].shape, cupy.ascontiguousarray(arrays[1].astype(FLOAT64))
        n, c, h, w = (images[axis] for axis in op.order)
        if len(boxes) and is_any(wrong_boxes(boxes, n)):
            image_numbers(self.device.to_host(boxes), n, "roi_pool")
        rows, columns = op.size
        count = len(boxes)
        words = [count, n, c, h, w, rows, columns, *map(divisor, target.shape[1:]), as_int64(op.scale, FLOAT64)]
        x = cupy.ascontiguousarray(arrays[0])
        tables, _memory = kernels.scratch(max(1, count * (1 + 2 * (rows + columns))) * 4)
        addresses = [x.data.ptr, target.data.ptr, tables]
        launches = {
            "bins": (count, [boxes.data.ptr, tables, count, *words]),
            "regions": (target.size, [*addresses, target.size, *words]),
        }
        self.launch(self.source(arrays), launches)
