"""The functions of neural networks that are composed of ops: normalisations and recurrences, as cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.cases import Case, floating, in_double_of_all, mean_floats, wide
from optree.registry import f


def standard(x: Any, axis: Any) -> Any:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-5)


def _batch(pick: int, *names: str, **options: Any) -> Callable[..., Any]:
    """One of the outputs of `batch_norm` of an operand and of others under these names; variances are squares."""

    def call(x: Any, *rest: Any) -> Any:
        given = {n: f.square(y * 1.0) + 1.0 if n == "variance" else y for n, y in zip(names, rest, strict=True)}
        return f.batch_norm(x, **given, **options)[pick]

    return call


NORMALISATION = {
    "batch_norm": [
        Case(
            ((4, 3), (3,), (3,)),
            _batch(0, "gain", "bias"),
            mean_floats(lambda x, g, b: standard(x, 0) * g + b),
        ),
        Case(
            ((2, 2, 3, 2), (2,)),
            _batch(0, "gain"),
            mean_floats(lambda x, g: standard(x, (0, 2, 3)) * g.reshape(2, 1, 1)),
        ),
        Case(
            ((2, 4, 3), (3,), (3,)),
            _batch(1, "mean", "variance", axis=-1),
            lambda x, m, v: (0.9 * wide(m) + 0.1 * wide(x).mean((0, 1))).astype(m.dtype),
        ),
        Case(
            ((4, 3), (3,), (3,)),
            lambda x, m, v: f.batch_norm(x, mean=m, variance=v, momentum=0.25)[2],
            lambda x, m, v: (0.75 * wide(v) + 0.25 * wide(x).var(0, ddof=1)).astype(v.dtype),
        ),
        Case(((4, 3),), _batch(1), mean_floats(lambda x: x.mean(0))),
        Case(((4, 3),), _batch(2), mean_floats(lambda x: x.var(0))),
        Case(
            ((4, 3), (3,), (3,), (3,)),
            _batch(0, "bias", "mean", "variance", training=False),
            in_double_of_all(lambda x, b, m, v: (x - m) / np.sqrt(v * v + 1 + 1e-5) + b),
        ),
    ],
    "layer_norm": [
        Case(((3, 4),), lambda x: f.layer_norm(x), mean_floats(lambda x: standard(x, -1))),
        Case(
            ((2, 3, 4), (4,), (4,)),
            lambda x, g, b: f.layer_norm(x, g, b),
            mean_floats(lambda x, g, b: standard(x, -1) * g + b),
        ),
        Case(
            ((2, 3, 4), (2, 4)),
            lambda x, g: f.layer_norm(x, g, axis=(0, 2)),
            mean_floats(lambda x, g: standard(x, (0, 2)) * g[:, None]),
        ),
    ],
    "rms_norm": [
        Case(
            ((3, 4), (4,)),
            lambda x, g: f.rms_norm(x, g),
            mean_floats(lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g),
        ),
        Case(
            ((3, 4),),
            lambda x: f.rms_norm(x, axis=0, epsilon=1.0),
            mean_floats(lambda x: x / np.sqrt((x * x).mean(0, keepdims=True) + 1)),
        ),
    ],
    "instance_norm": [
        Case(
            ((2, 3, 4), (3,), (3,)),
            lambda x, g, b: f.instance_norm(x, g, b),
            mean_floats(lambda x, g, b: standard(x, 2) * g[:, None] + b[:, None]),
        ),
        Case(((2, 2, 2, 3),), lambda x: f.instance_norm(x, axis=-1), mean_floats(lambda x: standard(x, (1, 2)))),
    ],
    "group_norm": [
        Case(
            ((2, 4, 3), (4,), (4,)),
            lambda x, g, b: f.group_norm(x, 2, g, b),
            mean_floats(
                lambda x, g, b: standard(x.reshape(2, 2, 2, 3), (2, 3)).reshape(x.shape) * g[:, None] + b[:, None]
            ),
        ),
        Case(
            ((2, 3, 6),),
            lambda x: f.group_norm(x, 3, axis=-1),
            mean_floats(lambda x: standard(x.reshape(2, 3, 3, 2), (1, 3)).reshape(x.shape)),
        ),
    ],
}


def _sig(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def recurrent(
    kind: str,
    x: Any,
    w: Any,
    u: Any,
    b: Any = 0.0,
    state: Any = None,
    cell: Any = None,
    mask: Any = None,
    recurrent_bias: Any = 0.0,
    activation: str = "tanh",
    reverse: bool = False,
    batch_first: bool = False,
) -> list[Any]:
    """The outputs of a recurrent network, and its states after the last step, one step after the other."""
    x, mask = (y.swapaxes(0, 1) if batch_first and y is not None else y for y in (x, mask))
    h, c = (np.zeros((x.shape[1], len(u))) if y is None else y for y in (state, cell))
    out = np.zeros((*x.shape[:2], len(u)))
    for t in range(len(x))[:: -1 if reverse else 1]:
        before = h, c
        enters, kept = (np.split(y, u.shape[1] // len(u), axis=1) for y in (x[t] @ w + b, h @ u))
        if kind == "rnn":
            h = {"tanh": np.tanh, "sig": _sig}[activation](enters[0] + kept[0])
        elif kind == "lstm":
            i, g, n, o = (p + q for p, q in zip(enters, kept, strict=True))
            c = _sig(g) * c + _sig(i) * np.tanh(n)
            h = _sig(o) * np.tanh(c)
        else:
            r, z = (_sig(p + q) for p, q in zip(enters[:2], kept[:2], strict=True))
            h = (1 - z) * np.tanh(enters[2] + r * (kept[2] + recurrent_bias)) + z * h
        if mask is not None:
            h, c = (np.where(mask[t][:, None], new, old) for new, old in zip((h, c), before, strict=True))
        out[t] = h
    return [out.swapaxes(0, 1) if batch_first else out, h, *([c] if kind == "lstm" else [])]


def _outputs(kind: str, mask: Any = None, reverse: bool = False, batch_first: bool = False) -> Callable[..., Any]:
    """The outputs of a recurrent network, computed in float64."""

    def meaning(*operands: Any) -> Any:
        dtype = np.result_type(*operands, np.float16)
        wide = [np.asarray(y, np.float64) for y in operands]
        return recurrent(kind, *wide, mask=mask, reverse=reverse, batch_first=batch_first)[0].astype(dtype)

    return meaning


RECURRENT = {
    kind: [
        Case(
            ((3, 2, 2), (2, 2 * gates), (2, 2 * gates), (2 * gates,)),
            lambda *xs, kind=kind: getattr(f, kind)(*(x * 0.5 for x in xs)).outputs,
            lambda *xs, kind=kind: _outputs(kind)(*(x * np.asarray(0.5, floating(x)) for x in xs)),
        ),
        Case(
            ((2, 3, 2), (2, 2 * gates), (2, 2 * gates)),
            lambda *xs, kind=kind: (
                getattr(f, kind)(
                    *(x * 0.5 for x in xs), mask=np.array([[1, 1, 0], [0, 1, 1]], bool), reverse=True, batch_first=True
                ).outputs
            ),
            lambda *xs, kind=kind: _outputs(kind, np.array([[1, 1, 0], [0, 1, 1]], bool), True, True)(
                *(x * np.asarray(0.5, floating(x)) for x in xs)
            ),
        ),
    ]
    for kind, gates in (("rnn", 1), ("lstm", 4), ("gru", 3))
}
