"""Conversions of float16 and bfloat16 in C, by integers: GCC 12 vectorises none of its own, and others have none.

Those of float16 and float32 are instructions of x86 processors (F16C), which GCC does not use in vector loops either.
So they are functions in assembly, with variants on vectors by the names under which GCC calls them, as it does the C
library's; they take and give 32-bit integers, for GCC calls none with operands of several sizes.

Values are rounded as NumPy rounds them: to nearest, ties to even, with
denormals, and beyond the range to infinity. A nan comes out as a nan, of any
payload. Where they are rounded is `backends.execution.rounding`'s.
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


#: The functions by instructions, from float16's bits, to them, and rounded to them: of scalars, and of vectors by the
#: prefixes of their names, which tell the processor and the number of lanes.
_INSTRUCTIONS: dict[str, dict[tuple[str, ...], tuple[str, ...]]] = {
    "half_widened": {
        ("",): ("vmovd %edi, %xmm0", "vcvtph2ps %xmm0, %xmm0"),
        ("_ZGVbN4v_",): ("vpackusdw %xmm0, %xmm0, %xmm0", "vcvtph2ps %xmm0, %xmm0"),
        ("_ZGVcN8v_",): ("vpackusdw %xmm1, %xmm0, %xmm0", "vcvtph2ps %xmm0, %ymm0"),
        ("_ZGVdN8v_",): (
            "vextracti128 $1, %ymm0, %xmm1",
            "vpackusdw %xmm1, %xmm0, %xmm0",
            "vcvtph2ps %xmm0, %ymm0",
        ),
        ("_ZGVeN16v_",): ("vpmovdw %zmm0, %ymm0", "vcvtph2ps %ymm0, %zmm0"),
    },
    "half_narrowed": {
        ("",): ("vcvtps2ph $0, %xmm0, %xmm0", "vmovd %xmm0, %eax", "movzwl %ax, %eax"),
        ("_ZGVbN4v_", "_ZGVcN4v_"): ("vcvtps2ph $0, %xmm0, %xmm0", "vpmovzxwd %xmm0, %xmm0"),
        ("_ZGVdN8v_",): ("vcvtps2ph $0, %ymm0, %xmm0", "vpmovzxwd %xmm0, %ymm0"),
        ("_ZGVeN16v_",): ("vcvtps2ph $0, %zmm0, %ymm0", "vpmovzxwd %ymm0, %zmm0"),
    },
    "half_rounded": {
        ("", "_ZGVbN4v_"): ("vcvtps2ph $0, %xmm0, %xmm0", "vcvtph2ps %xmm0, %xmm0"),
        ("_ZGVcN8v_", "_ZGVdN8v_"): ("vcvtps2ph $0, %ymm0, %xmm0", "vcvtph2ps %xmm0, %ymm0"),
        ("_ZGVeN16v_",): ("vcvtps2ph $0, %zmm0, %ymm0", "vcvtph2ps %ymm0, %zmm0"),
    },
}


def _assembly() -> str:
    """The functions of `_INSTRUCTIONS` as a statement of C, those on 16 lanes for processors that have them."""
    common: list[str] = []
    wide: list[str] = []
    for function, variants in _INSTRUCTIONS.items():
        for prefixes, instructions in variants.items():
            names = [prefix + function for prefix in prefixes]
            lines = [line for name in names for line in (f".hidden {name}", f".globl {name}", f"{name}:")]
            lines += [f"\\t{instruction}" for instruction in (*instructions, "ret")]
            (wide if "_ZGVeN16v_" in prefixes else common).extend(f'    "{line}\\n"' for line in lines)
    first, last = '    ".pushsection .text\\n"', '    ".popsection\\n");'
    return "\n".join(["__asm__(", first, *common, "#ifdef __AVX512F__", *wide, "#endif", last])


#: Conversions by dtype. A number is rounded by adding the power of two whose last bit is the result's; a float to
#: bfloat16, its upper bits, by adding half of the last of these.
CONVERSIONS = {
    "float16": c_text(FOLDER / "float16.h", {}, {"instructions.h": _assembly()}),
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
