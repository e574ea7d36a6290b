"""Softmax and normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np

from optree.onnx.arrangement import Arrangement
from optree.onnx.values import Operators, cast, known_size
from optree.registry import f


class Normalisation(Operators):
    """Operators that normalise along axes."""

    def _over(self, function: Any, x: Any, axis: int | None) -> Any:
        """A function over an axis; before version 13, over all axes from the given one on."""
        axis = (-1 if self.version >= 13 else 1) if axis is None else axis
        if self.version >= 13 or axis % len(x.shape) == len(x.shape) - 1:
            return function(x, axis)
        return f.reshape_like(function(Arrangement(self.version).Flatten(x, axis), 1), x)

    def Softmax(self, x: Any, axis: int | None = None) -> Any:
        return self._over(f.softmax, x, axis)

    def LogSoftmax(self, x: Any, axis: int | None = None) -> Any:
        return self._over(f.log_softmax, x, axis)

    def Hardmax(self, x: Any, axis: int | None = None) -> Any:
        return self._over(_hardmax, x, axis)

    def BatchNormalization(
        self,
        x: Any,
        scale: Any,
        bias: Any,
        mean: Any,
        variance: Any,
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

    def InstanceNormalization(self, x: Any, scale: Any, bias: Any, epsilon: float = 1e-5) -> Any:
        return f.instance_norm(x, scale, bias, epsilon=epsilon)

    def LayerNormalization(
        self, x: Any, scale: Any, bias: Any = None, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
    ) -> list[Any]:
        axes = tuple(range(axis % len(x.shape), len(x.shape)))
        inverse = 1 / np.sqrt(np.var(x, axis=axes, keepdims=True) + epsilon)
        return [f.layer_norm(x, scale, bias, axes, epsilon), np.mean(x, axis=axes, keepdims=True), inverse]

    def RMSNormalization(self, x: Any, scale: Any, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
        return f.rms_norm(x, scale, tuple(range(axis % len(x.shape), len(x.shape))), epsilon)

    def GroupNormalization(
        self, x: Any, scale: Any, bias: Any, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
    ) -> Any:
        return f.group_norm(x, num_groups, scale, bias, epsilon=epsilon)

    def LRN(self, x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
        return f.lrn(x, size, alpha, beta, bias)

    def LpNormalization(self, x: Any, axis: int = -1, p: int = 2) -> Any:
        norm = np.sum(np.abs(x), axis, keepdims=True) if p == 1 else np.sqrt(np.sum(np.square(x), axis, keepdims=True))
        return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm))

    def MeanVarianceNormalization(self, x: Any, axes: Any = (0, 2, 3)) -> Any:
        centred = x - np.mean(x, axis=tuple(axes), keepdims=True)
        return centred / (np.sqrt(np.mean(np.square(centred), axis=tuple(axes), keepdims=True)) + 1e-9)


def _hardmax(x: Any, axis: int) -> Any:
    """1 for the first maximum along an axis, and 0 for others."""
    each = np.arange(known_size(x, axis)).reshape(-1, *[1] * (len(x.shape) - 1 - axis % len(x.shape)))
    return cast(np.equal(np.argmax(x, axis, keepdims=True), each), x.dtype)
