"""Every op, one class each, in a file a family; importing this registers those of the families that most programs need.

`optree.rest` has the others, which are imported when one of them is first asked for (`optree.registry`).
"""

from typing import Any

from optree.locks import import_later
from optree.ops import (
    assignment,
    choice,
    contraction,
    elementwise,
    indexing,
    logic,
    reduction,
    shape,
    structure,
    transcendental,
)

__all__ = [
    "activations",
    "assignment",
    "bits",
    "choice",
    "collectives",
    "contraction",
    "einsum",
    "elementwise",
    "factorisation",
    "indexing",
    "interpolation",
    "joining",
    "labels",
    "linalg",
    "logic",
    "loops",
    "ordering",
    "random",
    "reduction",
    "scan",
    "scattering",
    "shape",
    "softmax",
    "structure",
    "transcendental",
    "while_loop",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_later(f"optree.ops.{name}")
    raise AttributeError(f"module 'optree.ops' has no attribute {name!r}")
