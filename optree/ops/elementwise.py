"""Elementwise ops: arithmetic, powers, comparisons, logic, and what chooses between values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.registry import f
from optree.traits import BinaryOperator, ElementwiseOperator, FloatOperator, LogicalOperator, NonDifferentiableOperator, UnaryOperator
from optree.types import promote


class Add(BinaryOperator, ElementwiseOperator):
    """x + y."""

    name = "add"
    numpy = np.add
    kernel = "{0} + {1}"
    operator = ("__add__", "__radd__")

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [delta, delta]


class Mul(BinaryOperator, ElementwiseOperator):
    """x * y."""

    name = "mul"
    numpy = np.multiply
    kernel = "{0} * {1}"
    aliases = ("multiply",)
    operator = ("__mul__", "__rmul__")

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        return [delta * y, delta * x]


class Sin(UnaryOperator, ElementwiseOperator, FloatOperator):
    """Sine."""

    name = "sin"
    numpy = np.sin
    kernel = "sin({0})"

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta * f.cos(x)]
