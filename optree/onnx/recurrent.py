"""Recurrent networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.arrays import Array
from optree.errors import ModelError
from optree.onnx.values import Operators, as_tree, known_size, part
from optree.registry import f


class Recurrent(Operators):
    """Recurrent networks."""

    def LSTM(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        lengths: Array | None = None,
        state: Array | None = None,
        cell: Array | None = None,
        peepholes: Array | None = None,
        hidden_size: int = 0,
        direction: str = "forward",
        input_forget: int = 0,
        layout: int = 0,
    ) -> list[Any]:
        if peepholes is not None or input_forget:
            raise ModelError("peepholes, and coupled gates, are not computed")

        def run(n: int, options: dict[str, Any], x: Array, *states: Array) -> Any:
            inner, outer, bias = (_gates(None if y is None else part(y, n), (0, 2, 3, 1)) for y in (w, r, b))
            return f.lstm(x, inner, outer, bias, *states, **options)

        return _directions(run, direction, layout, lengths, x, [state, cell])

    def GRU(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        lengths: Array | None = None,
        state: Array | None = None,
        hidden_size: int = 0,
        direction: str = "forward",
        layout: int = 0,
        linear_before_reset: int = 0,
    ) -> list[Any]:
        def run(n: int, options: dict[str, Any], x: Array, first: Array) -> Any:
            inner, outer = (_gates(part(y, n), (1, 0, 2)) for y in (w, r))
            units = outer.shape[0]
            own = np.reshape(np.zeros(6 * units, x.dtype) if b is None else part(b, n), (2, 3, -1))
            z, reset, new = (part(own, (slice(None), i)) for i in range(3))
            bias = np.concatenate([np.sum(reset, axis=0), np.sum(z, axis=0), part(new, 0)])
            if linear_before_reset:
                return f.gru(x, inner, outer, bias, part(new, 1), first, **options)
            return _reset_first(x, inner, outer, bias, part(new, 1), first, **options)

        return _directions(run, direction, layout, lengths, x, [state])

    def RNN(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        lengths: Array | None = None,
        state: Array | None = None,
        activations: Sequence[bytes] = (),
        hidden_size: int = 0,
        direction: str = "forward",
        layout: int = 0,
    ) -> list[Any]:
        names = [name.decode().lower() for name in activations] or ["tanh"] * 2

        def run(n: int, options: dict[str, Any], x: Array, first: Array) -> Any:
            inner, outer, bias = (_gates(None if y is None else part(y, n), (0,)) for y in (w, r, b))
            return f.rnn(x, inner, outer, bias, first, activation=names[n], **options)

        return _directions(run, direction, layout, lengths, x, [state])


def _reset_first(
    x: Array, w: Array, u: Array, b: Array, late: Array, state: Array, mask: Array | None = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Gated recurrent units, reset before the product."""
    units = u.shape[0]
    gates, new = part(u, (slice(None), slice(0, 2 * units))), part(u, (slice(None), slice(2 * units, None)))

    def step(before: Array, given: Array) -> Any:
        now, inside = given if mask is not None else (given, None)
        both = f.sig(part(now, (slice(None), slice(0, 2 * units))) + np.matmul(before, gates))
        reset, z = part(both, (slice(None), slice(0, units))), part(both, (slice(None), slice(units, None)))
        changed = np.tanh(part(now, (slice(None), slice(2 * units, None))) + np.matmul(reset * before, new) + late)
        after = z * before + (1 - z) * changed
        after = after if inside is None else np.where(np.expand_dims(inside, 1), after, before)
        return after, after

    inputs = np.matmul(x, w) + b
    first = as_tree(np.zeros((known_size(x, 1), units), x.dtype)) if state is None else state
    last, outputs = f.scan(step, first, inputs if mask is None else [inputs, mask], reverse=reverse)
    return outputs, last


def _gates(x: Array | None, order: Sequence[int]) -> Any:
    """The weights of gates in another order, as columns; both biases are added."""
    if x is None:
        return None
    if len(x.shape) == 1:
        x = np.sum(np.reshape(x, (2, -1)), axis=0)
    parts = np.split(x, len(order), 0)
    return np.transpose(np.concatenate([parts[i] for i in order]))


def _directions(
    run: Callable[..., Any], direction: str, layout: int, lengths: Array | None, x: Array, states: Sequence[Any]
) -> list[Any]:
    """The outputs and last states of a recurrent network, of each direction."""
    if layout:  # the batch is the first axis
        x, states = np.swapaxes(x, 0, 1), [None if y is None else np.swapaxes(y, 0, 1) for y in states]
    mask = None if lengths is None else np.less(np.arange(known_size(x, 0))[:, None], lengths)
    found = []
    for n, reverse in enumerate({"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]):
        options = {"mask": None if mask is None else as_tree(mask), "reverse": reverse}
        outputs, *last = run(n, options, as_tree(x), *(None if y is None else part(y, n) for y in states))
        outputs = outputs if mask is None else np.where(np.expand_dims(mask, 2), outputs, 0)
        found.append([outputs, *last])
    outputs, *last = zip(*found, strict=True)
    if layout:
        return [np.stack([np.swapaxes(y, 0, 1) for y in outputs], 2), *(np.stack(parts, 1) for parts in last)]
    return [np.stack(outputs, 1), *(np.stack(parts, 0) for parts in last)]
