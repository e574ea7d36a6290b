"""Convolutions, what both backends know of them: the roles of operands, and their spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from optree.networks.convolution import MOST, Conv, ConvInput, ConvTranspose, ConvWeights

T = TypeVar("T")

#: By op class, which operand, or the value (-1), are images x, weights, and images y.
ROLES: dict[type, tuple[int, int, int]] = {
    Conv: (0, 1, -1),
    ConvInput: (-1, 1, 0),
    ConvTranspose: (-1, 1, 0),
    ConvWeights: (0, -1, 1),
}


def three(values: Sequence[T], none: T) -> list[T]:
    """Values of spatial axes, after those of axes that are not there."""
    return [none] * (MOST - len(values)) + list(values)
