"""The sizes of kernels' parameters, by the kernels' signatures in their source."""

from __future__ import annotations

import re

from backends.gpu.codegen.printer import CUDA
from optree.dtypes import is_complex
from optree.tree.types import DTYPES

_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\w+\) )?(\w+)\(([^)]*)\)')
_DECLARED = re.compile(r"\s*(.*\W)(\w+)\s*$", re.DOTALL)
_TYPEDEF = re.compile(r"^typedef ([\w ]+) (\w+);", re.MULTILINE)

#: The bytes of each type that sources are written in.
SIZES = {CUDA.types[str(dtype)]: dtype.itemsize for dtype in DTYPES if not is_complex(dtype)}


def parameters_of(source: str) -> dict[str, list[tuple[str, str]]]:
    """For each kernel of a source by name, the declaration of each parameter in two: its type and its name.

    Examples
    --------
    >>> parameters_of('extern "C" __global__ void kernel(const float *a0, int n)')
    {'kernel': [('const float *', 'a0'), ('int ', 'n')]}
    """
    return {name: [_DECLARED.findall(each)[0] for each in found.split(",")] for name, found in _KERNEL.findall(source)}


def parameter_sizes(source: str) -> dict[str, tuple[int, ...]]:
    """For each kernel of a source by name, the bytes of each parameter: the first of its argument's 8."""
    types = {name: type for type, name in _TYPEDEF.findall(source)}

    def size(type: str) -> int:
        type = type.removeprefix("const ").rstrip()
        return 8 if "*" in type else SIZES[types.get(type, type)]

    return {name: tuple(size(type) for type, _ in found) for name, found in parameters_of(source).items()}
