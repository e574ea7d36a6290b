"""The functions that CUDA kernels call, in CUDA C++: files of the folder `functions`."""

from __future__ import annotations

from pathlib import Path

#: The text of each file.
DEVICE_FUNCTIONS = {path.stem: path.read_text() for path in (Path(__file__).parent / "functions").glob("*.cuh")}

#: The function of an extreme, by the value that its reduction starts with.
EXTREME_OF = {"{lowest}": "largest({0}, {1})", "{highest}": "smallest({0}, {1})"}

#: The files of reductions across a team. No thread overwrites shared memory before all have read it: where two arrays
#: alternate (`part_arrays`), the reduction in between has a barrier; a block has one before its next outer index; and
#: columns are reduced one after the other.
TEAM_REDUCTIONS = {"warp": ("over_lanes",), "block": ("over_lanes", "over_block"), "columns": ("over_column",)}
