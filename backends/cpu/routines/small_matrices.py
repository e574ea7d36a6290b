"""Linear algebra of small matrices in C, without LAPACK's overhead in each call: for loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backends.cpu.compiler import c_text
from backends.cpu.routines.vectors import FOLDER
from backends.execution.memory import element_strides
from backends.execution.specialize import collapsed_axes
from optree.ops.factorisation import Cholesky
from optree.ops.linalg import Cofactors, Determinant, Inverse, LogDeterminant, Solve

#: The ops, and the C functions that compute them.
MATRICES: dict[type, str] = {
    Solve: "solve",
    Inverse: "inv",
    Determinant: "det",
    LogDeterminant: "slogdet",
    Cofactors: "cofactors",
    Cholesky: "cholesky",
}

#: The maximum rows of small matrices, and of those of which each element of the value is a determinant.
SIDE, SIDE_OF_COFACTORS = 32, 8


def matrices_source(number: str) -> str:
    """The text of small_matrices.c, for ``"float"`` or ``"double"``."""
    return c_text(FOLDER / "small_matrices.c", {"T": number})


def matrix_words(function: str, arrays: Sequence[np.ndarray], addresses: Sequence[Any]) -> list[Any] | None:
    """The arguments of a function of small_matrices.c; None if its stacks have no common stride.

    `arrays`: the operands, then the values.
    `addresses`: those of the arrays.
    """
    x, *others = arrays
    if function == "solve":
        others = others if others[0].ndim > 1 else [each[..., None] for each in others]
    elif function in ("det", "slogdet"):
        others = [each[..., None, None] for each in others]
    places = (0, 1, 2) if function == "solve" else (0, 2, 3)
    found = {n: (y, address) for n, y, address in zip(places, [x, *others], addresses, strict=False)}
    stack = np.broadcast_shapes(*(each.shape[:-2] for each in (x, *others)))
    strides = {n: element_strides(np.broadcast_to(y, (*stack, *y.shape[-2:]))) for n, (y, _) in found.items()}
    sizes, steps = collapsed_axes(stack, [list(each[:-2]) for each in strides.values()])
    if len(sizes) > 1:
        return None
    words: list[Any] = [0, sizes[0], x.shape[-1], found[2][0].shape[-1], *[0] * 16]
    for (n, own), (step, *_) in zip(strides.items(), steps, strict=True):
        words[4 + 4 * n : 8 + 4 * n] = [found[n][1], step, *own[-2:]]
    return words
