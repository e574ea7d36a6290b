"""The functions that CUDA kernels call, in CUDA C++: files of the folder `functions`."""

from __future__ import annotations

import re
from pathlib import Path

#: The text of each file.
DEVICE_FUNCTIONS = {path.stem: path.read_text() for path in (Path(__file__).parent / "functions").glob("*.cuh")}

#: The function of an extreme, by the value that its reduction starts with.
EXTREME_OF = {"{lowest}": "largest({0}, {1})", "{highest}": "smallest({0}, {1})"}

#: The files of reductions across a team. No thread overwrites shared memory before all have read it: where two arrays
#: alternate (`part_arrays`), the reduction in between has a barrier; a block has one before its next outer index; and
#: columns are reduced one after the other.
TEAM_REDUCTIONS = {"warp": ("over_lanes",), "block": ("over_lanes", "over_block"), "columns": ("over_column",)}

#: Calls of functions that have a quicker variant for results that are rounded to narrow dtypes.
_NEAR = re.compile(r"\b(exp|log1p|sqrt|tanh)\(")

#: A test for operands of log1p that are slow on a CPU alone.
_DENORMAL = re.compile(r"(exp\(.*?\)) < \(T\)1e-18 \? \1 : log1p\(\1 \+ \(T\)1e-37\)")


def for_device(expression: str, is_narrow: bool) -> str:
    """An op's kernel expression, by the functions of `near.cuh` where its value is rounded to a narrow dtype."""
    expression = _DENORMAL.sub(r"log1p(\1)", expression)
    if not is_narrow:
        return expression
    return "near_quotient({0}, {1})" if expression == "{0} / {1}" else _NEAR.sub(r"near_\1(", expression)
