"""Every op, one class each, in a file a family. Importing this fills the registry."""

from optree.ops import (
    assignment,
    choice,
    contraction,
    elementwise,
    indexing,
    joining,
    logic,
    normalization,
    output,
    random,
    reduction,
    scattering,
    shape,
    transcendental,
)

__all__ = [
    "assignment",
    "choice",
    "contraction",
    "elementwise",
    "indexing",
    "joining",
    "logic",
    "normalization",
    "output",
    "random",
    "reduction",
    "scattering",
    "shape",
    "transcendental",
]
