"""Region pooling on a GPU, by a kernel of its own."""

from __future__ import annotations

from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from backends.execution.specialize import as_int64
from backends.gpu.arrays import DeviceArray
from backends.gpu.codegen.printer import CUDA
from backends.gpu.launch_config import INT32_LIMIT, MAX_GRID, Launch
from optree.arrays import is_any, stored
from optree.dtypes import is_narrow, wide_dtype
from optree.networks.vision import ArgmaxRoi, image_numbers, wrong_boxes

FLOAT64 = np.dtype("float64")

#: The threads of a block.
THREADS = 256


class Regions:
    """The indices of the maxima of boxes of images, into a new array or a given one.

    `device`: a `GPUBackend`.
    """

    def __init__(self, device: Any, op: ArgmaxRoi) -> None:
        self.device, self.op = device, op

    def __call__(self, images: DeviceArray, boxes: DeviceArray, out: DeviceArray | None = None) -> Any:
        op, cupy, kernels = self.op, self.device.cupy, self.device.kernels
        target = cupy.empty(op.output_shape(images.shape, boxes.shape), np.int64)
        count = images.shape[op.order[0]]
        x, boxes = cupy.ascontiguousarray(images), cupy.ascontiguousarray(boxes.astype(FLOAT64))
        if len(boxes) and is_any(wrong_boxes(boxes, count)):
            image_numbers(self.device.to_host(boxes), count, "roi_pool")
        if target.size:
            words = [x.data.ptr, boxes.data.ptr, target.data.ptr, target.size, len(boxes)]
            words += [*(x.shape[i] for i in op.order), *op.size]
            words += [each.strides[i] // each.itemsize for each in (x, target) for i in op.order]
            (kernel,) = kernels.load(self._source(x, target.size), ("regions",))
            launch = Launch("regions", (min(MAX_GRID, -(-target.size // THREADS)), 1), THREADS)
            kernels.bound(kernel, launch, [*words, as_int64(op.scale, FLOAT64)])()
        return stored(target, out)

    def sources(self, images: Any, boxes: Any) -> list[str]:
        """The sources that a call with these operands compiles; none if it launches no kernel or one is unknown."""
        if images is None or boxes is None:
            return []
        shape: Any = self.op.output_shape(images.shape, boxes.shape)
        size = prod(shape)
        return [self._source(images, size)] if size else []

    @staticmethod
    def _source(images: Any, size: int) -> str:
        return regions_source(images.dtype, "int" if max(images.size, size) < INT32_LIMIT else "long long")


@cache
def regions_source(dtype: np.dtype, index: str) -> str:
    """The source of the kernel for a dtype of images, and a type of indices."""
    type = CUDA.types[str(dtype)]
    header = f"#include <cuda_{'fp16' if type == '__half' else 'bf16'}.h>\n" if is_narrow(dtype) else ""
    types = {"T": type, "A": CUDA.type_of(wide_dtype(dtype)), "Index": index}
    named = "".join(f"typedef {type} {name};\n" for name, type in types.items())
    return f"{header}{named}\n{(Path(__file__).parent / 'regions.cu').read_text()}"
