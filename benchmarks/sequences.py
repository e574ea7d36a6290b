"""Networks over sequences: an LSTM, a transformer's block, and attention alone, in op-tree, torch and JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import optree

#: A function from the operands, as a library's arrays, to the value.
Formula = Callable[..., Any]


class Row(NamedTuple):
    """A network, measured forward and in a training step (the value with the derivatives of all operands).

    Attributes
    ----------
    name : str
    operands : callable
        Makes the operands, as NumPy arrays.
    ours : callable
        From a backend to the formula.
    peers : dict
        From a library's name to a function from its module to the formula.
    """

    name: str
    operands: Callable[[], list[np.ndarray]]
    ours: Callable[[Any], Formula]
    peers: dict[str, Callable[[Any], Formula]]


def drawn(*shapes: tuple[int, ...], scale: float = 0.05) -> list[np.ndarray]:
    """Normal numbers of some shapes."""
    rng = np.random.RandomState(0)
    return [(rng.normal(size=shape) * scale).astype(np.float32) for shape in shapes]


# An LSTM of 256 units over 64 steps, of 32 sequences

STEPS, BATCH, UNITS = 64, 32, 256


def lstm_operands() -> list[np.ndarray]:
    """A sequence, the weights of its slices and of the state, and a bias."""
    return drawn((STEPS, BATCH, UNITS), (UNITS, 4 * UNITS), (UNITS, 4 * UNITS), (4 * UNITS,))


def lstm_ours(be: Any) -> Formula:
    """One op-tree function."""
    return lambda x, w, u, b: be.lstm(x, w, u, b).outputs


def lstm_torch(torch: Any) -> Formula:
    """The library's own function, which oneDNN or native code computes."""

    def formula(x: Any, w: Any, u: Any, b: Any) -> Any:
        zeros = torch.zeros(1, BATCH, UNITS)
        weights = [w.T.contiguous(), u.T.contiguous(), b, torch.zeros_like(b)]
        return torch.lstm(x, (zeros, zeros), weights, True, 1, 0.0, False, False, False)[0]

    return formula


def lstm_jax(jax: Any) -> Formula:
    """A scan."""
    np_ = jax.numpy

    def formula(x: Any, w: Any, u: Any, b: Any) -> Any:
        def step(states: Any, pre: Any) -> Any:
            h, c = states
            enters, stays, new, leaves = np_.split(pre + h @ u, 4, axis=1)
            c = jax.nn.sigmoid(stays) * c + jax.nn.sigmoid(enters) * np_.tanh(new)
            h = jax.nn.sigmoid(leaves) * np_.tanh(c)
            return (h, c), h

        zeros = np_.zeros((BATCH, UNITS), np_.float32)
        return jax.lax.scan(step, (zeros, zeros), x @ w + b)[1]

    return formula


# Attention of 12 heads of 64 features over some tokens, causal

HEADS, FEATURES = 12, 64


def attention_operands(tokens: int) -> list[np.ndarray]:
    """Queries, keys and values."""
    return drawn(*[(1, HEADS, tokens, FEATURES)] * 3, scale=1.0)


def attention_ours(be: Any) -> Formula:
    """One op-tree function."""
    return lambda q, k, v: be.attention(q, k, v, causal=True)


def attention_torch(torch: Any) -> Formula:
    """One op-tree function."""
    return lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_jax(jax: Any) -> Formula:
    """One function, with heads after the tokens."""

    def formula(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        return jax.nn.dot_product_attention(q, k, v, is_causal=True).swapaxes(1, 2)

    return formula


# GPT-2-small's block at 512 tokens

TOKENS, WIDTH = 512, HEADS * FEATURES


def block_operands() -> list[np.ndarray]:
    """Rows, and the block's weights: each layer's with its bias, each normalisation's gain with its bias."""
    shapes: list[tuple[int, ...]] = [(1, TOKENS, WIDTH)]
    for rows, columns in ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)):
        shapes += [(rows, columns), (columns,)]
    return drawn(*shapes, *[(WIDTH,)] * 4, scale=0.02)


def _block(x: Any, weights: Sequence[Any], norm: Formula, gelu: Formula, attend: Formula) -> Any:
    """The block, by a library's normalisation, activation and attention of joined queries, keys and values."""
    w1, b1, w2, b2, w3, b3, w4, b4, gain1, bias1, gain2, bias2 = weights
    x = x + (attend(norm(x, gain1, bias1) @ w1 + b1) @ w2 + b2)
    return x + (gelu(norm(x, gain2, bias2) @ w3 + b3) @ w4 + b4)


def block_ours(be: Any) -> Formula:
    """The block on a backend."""

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1 + be.tanh(np.sqrt(2 / np.pi).item() * (x + 0.044715 * x * x * x)))

    def attend(joined: Any) -> Any:
        heads = be.transpose(be.reshape(joined, (1, TOKENS, 3, HEADS, FEATURES)), (2, 0, 3, 1, 4))
        found = be.attention(*(be.slice(heads, i) for i in range(3)), causal=True)
        return be.reshape(be.transpose(found, (0, 2, 1, 3)), (1, TOKENS, WIDTH))

    return lambda x, *weights: _block(x, weights, be.layer_norm, gelu, attend)


def block_torch(torch: Any) -> Formula:
    """The block in torch."""
    functional = torch.nn.functional

    def attend(joined: Any) -> Any:
        heads = joined.reshape(1, TOKENS, 3, HEADS, FEATURES).permute(2, 0, 3, 1, 4)
        return attention_torch(torch)(*heads).permute(0, 2, 1, 3).reshape(1, TOKENS, WIDTH)

    def norm(x: Any, gain: Any, bias: Any) -> Any:
        return functional.layer_norm(x, (WIDTH,), gain, bias)

    return lambda x, *weights: _block(x, weights, norm, partial(functional.gelu, approximate="tanh"), attend)


def block_jax(jax: Any) -> Formula:
    """The block in JAX."""
    np_ = jax.numpy

    def attend(joined: Any) -> Any:
        heads = joined.reshape(1, TOKENS, 3, HEADS, FEATURES).transpose(2, 0, 1, 3, 4)
        return jax.nn.dot_product_attention(*heads, is_causal=True).reshape(1, TOKENS, WIDTH)

    def norm(x: Any, gain: Any, bias: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np_.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * gain + bias

    return lambda x, *weights: _block(x, weights, norm, jax.nn.gelu, attend)


ROWS = (
    Row(
        "LSTM, 256 units, 64 steps, 32 sequences",
        lstm_operands,
        lstm_ours,
        {"torch": lstm_torch, "jax": lstm_jax},
    ),
    *(
        Row(
            f"attention, 12 heads, {tokens} tokens, causal",
            partial(attention_operands, tokens),
            attention_ours,
            {"torch": attention_torch, "jax": attention_jax},
        )
        for tokens in (512, 2048)
    ),
    Row("GPT-2-small's block, 512 tokens", block_operands, block_ours, {"torch": block_torch, "jax": block_jax}),
)


def ours_of(row: Row, be: Any) -> tuple[Callable[[], Any], Callable[[], list[Any]]]:
    """The value of a row on a backend, and the value with its derivatives, each one function."""
    operands = [be.array(x) for x in row.operands()]
    value = row.ours(be)(*operands)
    gradients = optree.grad(be.mean(be.square(value)), operands)
    return optree.function([], value), optree.function([], [value, *gradients])
