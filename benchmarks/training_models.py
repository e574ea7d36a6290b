"""The networks of `training.py`, each a formula of functions that every library has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from sequences import block_jax, block_operands, block_ours, block_torch

from optree import train


class Model(NamedTuple):
    """A network.

    Attributes
    ----------
    operands : callable
        Gives a batch and the first weights.
    loss : callable
        From a library's functions, a batch and weights to the loss.
    calls : int
        Steps in a row that a measurement takes.
    """

    operands: Callable[[], tuple[list[np.ndarray], list[np.ndarray]]]
    loss: Callable[[Any, Sequence[Any], Sequence[Any]], Any]
    calls: int


def _layers(units: Sequence[int], batch: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    weights = []
    for inputs, outputs in pairwise(units):
        weights += [rng.normal(0, (2 / inputs) ** 0.5, (inputs, outputs)), np.zeros(outputs)]
    images = rng.normal(size=(batch, units[0])).astype("f")
    return [images, rng.integers(units[-1], size=batch)], [w.astype("f") for w in weights]


def _mlp(m: Any, batch: Sequence[Any], weights: Sequence[Any]) -> Any:
    (x, y), (w1, b1, w2, b2) = batch, weights
    return m.cross_entropy(m.relu(x @ w1 + b1) @ w2 + b2, y)


def _images(batch: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    shapes = [(16, 3, 3, 3), (16, 1, 1), (32, 16, 3, 3), (32, 1, 1), (32 * 8 * 8, 10), (10,)]
    weights = [rng.normal(0, np.prod(s[1:] if len(s) > 2 else s[:1]) ** -0.5, s) * (len(s) % 2 == 0) for s in shapes]
    images = rng.normal(size=(batch, 3, 32, 32)).astype("f")
    return [images, rng.integers(10, size=batch)], [w.astype("f") for w in weights]


def _convnet(m: Any, batch: Sequence[Any], weights: Sequence[Any]) -> Any:
    (x, y), (w1, b1, w2, b2, w3, b3) = batch, weights
    x = m.pool(m.relu(m.conv(x, w1) + b1))
    x = m.pool(m.relu(m.conv(x, w2) + b2))
    return m.cross_entropy(m.flat(x) @ w3 + b3, y)


def _transformer_operands() -> tuple[list[np.ndarray], list[np.ndarray]]:
    x, *weights = block_operands()
    return [x], weights


def _transformer(m: Any, batch: Sequence[Any], weights: Sequence[Any]) -> Any:
    return m.mean_square(m.block(batch[0], *weights))


MODELS = {
    "64 x 128 x 10, batch 128": Model(partial(_layers, (64, 128, 10), 128), _mlp, 20),
    "784 x 1024 x 10, batch 256": Model(partial(_layers, (784, 1024, 10), 256), _mlp, 5),
    "convnet of 3 layers, batch 64 x 3 x 32 x 32": Model(partial(_images, 64), _convnet, 2),
    "GPT-2-small's block, 512 tokens": Model(_transformer_operands, _transformer, 1),
}


def of_ours(be: Any) -> SimpleNamespace:
    """The functions on a backend."""
    return SimpleNamespace(
        relu=be.relu,
        conv=lambda x, w: be.conv(x, w, padding=1),
        pool=lambda x: be.max_pool(x, 2, 2),
        flat=lambda x: be.reshape(x, (-1, 32 * 8 * 8)),
        cross_entropy=train.losses.cross_entropy,
        mean_square=lambda x: be.mean(be.square(x), keepdims=False),
        block=block_ours(be),
    )


def of_torch(torch: Any) -> SimpleNamespace:
    """The functions of torch."""
    nn = torch.nn.functional
    return SimpleNamespace(
        relu=torch.relu,
        conv=lambda x, w: nn.conv2d(x, w, padding=1),
        pool=lambda x: nn.max_pool2d(x, 2),
        flat=lambda x: x.flatten(1),
        cross_entropy=nn.cross_entropy,
        mean_square=lambda x: x.square().mean(),
        block=block_torch(torch),
    )


def of_jax(jax: Any) -> SimpleNamespace:
    """The functions of JAX."""
    np_, lax = jax.numpy, jax.lax

    def cross_entropy(scores: Any, y: Any) -> Any:
        return -np_.take_along_axis(jax.nn.log_softmax(scores), y[:, None], 1).mean()

    return SimpleNamespace(
        relu=jax.nn.relu,
        conv=lambda x, w: lax.conv_general_dilated(x, w, (1, 1), ((1, 1), (1, 1))),
        pool=lambda x: lax.reduce_window(x, -np_.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"),
        flat=lambda x: x.reshape(x.shape[0], -1),
        cross_entropy=cross_entropy,
        mean_square=lambda x: (x * x).mean(),
        block=block_jax(jax),
    )
