"""Static shared memory of the kernels of a source, from its text."""

from __future__ import annotations

import re
from functools import cache
from math import prod

import numpy as np

from backends.gpu.codegen.printer import CUDA

_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(")
_SIZES = {type: 2 if name == "bfloat16" else np.dtype(name).itemsize for name, type in CUDA.types.items()}
_ARRAY = re.compile(rf"^\s*__shared__ ({'|'.join(_SIZES)}) \w+((?:\[\d+\])+);", re.MULTILINE)


@cache
def static_shared(source: str) -> dict[str, int]:
    """Bytes of static shared memory of a block, for each kernel: of arrays as our kernels declare them."""
    starts = [*_KERNEL.finditer(source)]
    ends = [*(found.start() for found in starts), len(source)][1:]
    bodies = {found[1]: source[found.end() : end] for found, end in zip(starts, ends, strict=True)}
    return {
        name: sum(_SIZES[type] * prod(map(int, re.findall(r"\d+", sizes))) for type, sizes in _ARRAY.findall(body))
        for name, body in bodies.items()
    }
