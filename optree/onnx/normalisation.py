"""Softmax and normalisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from optree.arrays import Array
from optree.onnx.arrangement import Arrangement
from optree.onnx.values import Operators, cast, known_size
from optree.registry import f


class Normalisation(Operators):
    """Operators that normalise along axes."""

    def _over(self, function: Callable[..., Any], x: Array, axis: int | None) -> Any:
        """A function over an axis; before version 13, over all axes from the given one on."""
        axis = (-1 if self.version >= 13 else 1) if axis is None else axis
        if self.version >= 13 or axis % len(x.shape) == len(x.shape) - 1:
            return function(x, axis)
        return f.reshape_like(function(Arrangement(self.version).Flatten(x, axis), 1), x)

    def Softmax(self, x: Array, axis: int | None = None) -> Any:
        return self._over(f.softmax, x, axis)

    def LogSoftmax(self, x: Array, axis: int | None = None) -> Any:
        return self._over(f.log_softmax, x, axis)

    def Hardmax(self, x: Array, axis: int | None = None) -> Any:
        return self._over(_hardmax, x, axis)

    def BatchNormalization(
        self,
        x: Array,
        scale: Array,
        bias: Array,
        mean: Array,
        variance: Array,
        epsilon: float = 1e-5,
        momentum: float = 0.9,
        training_mode: int = 0,
    ) -> Any:
        if not training_mode:
            return f.batch_norm(x, scale, bias, mean, variance, epsilon=epsilon, training=False).value
        axes = (0, *range(2, len(x.shape)))
        own = [np.mean(x, axis=axes), np.var(x, axis=axes)]
        value = f.batch_norm(x, scale, bias, *own, epsilon=epsilon, training=False).value
        return [value, *(old * momentum + new * (1 - momentum) for old, new in zip((mean, variance), own, strict=True))]

    def LayerNormalization(
        self,
        x: Array,
        scale: Array,
        bias: Array | None = None,
        axis: int = -1,
        epsilon: float = 1e-5,
        stash_type: int = 1,
    ) -> list[Any]:
        axes = tuple(range(axis % len(x.shape), len(x.shape)))
        inverse = 1 / np.sqrt(np.var(x, axis=axes, keepdims=True) + epsilon)
        return [f.layer_norm(x, scale, bias, axes, epsilon), np.mean(x, axis=axes, keepdims=True), inverse]

    def RMSNormalization(
        self, x: Array, scale: Array, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
    ) -> Any:
        return f.rms_norm(x, scale, tuple(range(axis % len(x.shape), len(x.shape))), epsilon)


def _hardmax(x: Array, axis: int) -> Any:
    """1 for the first maximum along an axis, and 0 for others."""
    each = np.arange(known_size(x, axis)).reshape(-1, *[1] * (len(x.shape) - 1 - axis % len(x.shape)))
    return cast(np.equal(np.argmax(x, axis, keepdims=True), each), x.dtype)
