"""Every op, one class each, in a file a family. Importing this fills the registry."""

from optree.ops import (
    assignment,
    choice,
    contraction,
    elementwise,
    indexing,
    joining,
    logic,
    network,
    normalization,
    random,
    reduction,
    scattering,
    shape,
    structure,
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
    "network",
    "normalization",
    "random",
    "reduction",
    "scattering",
    "shape",
    "structure",
    "transcendental",
]
