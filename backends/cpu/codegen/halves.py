"""Conversions of float16 and bfloat16 in C, by integers: GCC 12 vectorises none of its own, and others have none.

Those of float16 and float32 are instructions of x86 processors (F16C), which GCC does not use in vector loops either.
So they are functions in assembly, with variants on vectors by the names under which GCC calls them, as it does the C
library's; they take and give 32-bit integers, for GCC calls none with operands of several sizes.

Values are rounded as NumPy rounds them: to nearest, ties to even, with denormals, and beyond the range to infinity. A
nan comes out as a nan, of any payload. Where they are rounded is `backends.execution.rounding`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from backends.cpu.compiler import c_text
from optree.compile.loopnest import LoopNest

FOLDER = Path(__file__).parent

#: Bit casts of float32.
BITS = c_text(FOLDER / "bits.h", {})


#: Conversions by dtype. A number is rounded by adding the power of two whose last bit is the result's; a float to
#: bfloat16, its upper bits, by adding half of the last of these.
CONVERSIONS = {
    "float16": c_text(FOLDER / "float16.h", {}),
    "bfloat16": c_text(FOLDER / "bfloat16.h", {}),
}


def narrow_functions(dtypes: Sequence[str]) -> str:
    """The conversions of some narrow dtypes; they use `<math.h>` and `<stdint.h>`."""
    return "".join([BITS, *(CONVERSIONS[dtype] for dtype in dtypes)])


def contiguous_halves(nest: LoopNest) -> list[int]:
    """The arrays of float16 of an elementwise nest, if all are contiguous along the vector loop; else none.

    Nor where a constant is stored, which is rounded once.
    """
    if nest.reductions or nest.across >= 0 or "inner" not in nest.levels[: len(nest.reads)]:
        return []
    inner = [i for i, dtype in enumerate(nest.arrays) if dtype == np.float16 and nest.levels[i] == "inner"]
    varying = [i for i in inner if nest.vector_strides[i] != 0]
    are_stored = all(i in varying for i in inner if i >= len(nest.reads))
    return varying if are_stored and all(nest.vector_strides[i] == 1 for i in varying) else []
