"""The sizes of kernels' parameters, by the kernels' signatures in their source."""

from __future__ import annotations

import re

from backends.gpu.codegen.printer import CUDA
from optree.dtypes import is_complex
from optree.tree.types import DTYPES

_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\w+\) )?(\w+)\(([^)]*)\)')
_TYPEDEF = re.compile(r"^typedef ([\w ]+) (\w+);", re.MULTILINE)

#: The bytes of each type that sources are written in.
SIZES = {CUDA.types[str(dtype)]: dtype.itemsize for dtype in DTYPES if not is_complex(dtype)}


def parameter_sizes(source: str) -> dict[str, tuple[int, ...]]:
    """For each kernel of a source by name, the bytes of each parameter: the first of its argument's 8."""
    types = {name: type for type, name in _TYPEDEF.findall(source)}

    def size(parameter: str) -> int:
        type = parameter.removeprefix("const ").rpartition(" ")[0]
        return 8 if "*" in parameter else SIZES[types.get(type, type)]

    return {
        name: tuple(size(" ".join(parameter.split())) for parameter in parameters.split(","))
        for name, parameters in _KERNEL.findall(source)
    }
