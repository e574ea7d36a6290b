"""C functions that find the first extreme among elements of which it is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from backends.cpu.compiler import c_text
from backends.execution.printer_common import Lines
from optree.dtypes import is_floating

FOLDER = Path(__file__).parent

#: The elements that are searched at once, as an index of 8 bits counts.
SEARCHED = 256

#: The first element that equals another. Indices have the size of elements, so that vectors have as many of both.
FIRST = c_text(FOLDER / "first.h", {}).replace("SEARCHED", str(SEARCHED))

#: The first of bools that is true, or false; `n` if none is. Any byte but 0 is true, as of a mask of 255s.
FIRST_OF_BOOLS = c_text(FOLDER / "first_of_bools.h", {})


def first_function(dtype: np.dtype, type: str) -> Lines:
    """The functions that find an element of a dtype in an array of a C type, by the dtype's name; or a nan."""
    bits = 8 * dtype.itemsize
    counter = "int64_t" if bits == 64 else "int32_t"
    conditions = {str(dtype): "(y[j] != 0) == value" if dtype == np.bool_ else "y[j] == value"}
    if is_floating(dtype):
        conditions[f"nan_of_{dtype}"] = "y[j] != y[j]"
    lines: Lines = []
    for name, is_found in conditions.items():
        text, given = FIRST, {"INDEX": f"uint{bits}_t", "COUNTER": counter, "NAME": name, "IS_FOUND": is_found}
        for word, meaning in {**given, "TYPE": type}.items():
            text = text.replace(word, meaning)
        lines += ["", *text.splitlines()]
    return lines
