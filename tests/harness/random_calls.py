"""Calls of random sizes and options, with NumPy's values: products, windows, attention, recurrent networks, loops.

Functions whose computation depends on sizes (tiles, panels, parts for threads) or on programs of their own, so that a
few examples say little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from random import Random
from typing import Any, NamedTuple

import numpy as np

from harness.drawn import ALL_DTYPES, Call
from harness.narrow import of_any_dtype
from harness.networks import recurrent
from harness.trees import SMOOTH, run_by_numpy
from optree.registry import f
from optree.testing.examples import Example
from optree.testing.random_trees import random_tree
from optree.tree.variable import constant, in_dtype

FLOATS = [name for name in ALL_DTYPES if "float" in name]

#: What follows a product, a convolution or attention, alike in both libraries' names.
EPILOGUES: tuple[Callable[..., Any], ...] = (
    lambda y, x: y,
    lambda y, x: y + x,
    lambda y, x: np.maximum(y * 2 + x, 0),
    lambda y, x: np.tanh(y) * x,
    lambda y, x: np.sum(y * x, axis=-1),
    lambda y, x: np.transpose(y - x),
    lambda y, x: y - np.max(y, axis=-1, keepdims=True) + x,
)


#: Those that have kinks.
KINKED = (2, 6)


def _call(
    label: str,
    operands: Sequence[Any],
    build: Callable[..., Any],
    meaning: Callable[..., Any],
    dtypes: Sequence[str] = FLOATS,
    terms: int = 1,
    is_smooth: bool = True,
) -> Call:
    """A call whose meaning is computed in float64 where it takes floats; `terms` are those of its longest sum."""

    def meant(*values: Any) -> Any:
        dtype = np.result_type(*(x for x in values if getattr(x, "dtype", np.dtype(bool)).kind != "b"))
        wide = [x.astype(np.float64) if getattr(x, "dtype", dtype).kind == "f" else x for x in values]
        found = np.asarray(meaning(*wide))
        return found.astype(dtype) if dtype.kind == "f" else found

    example = Example(build, tuple(operands), (-1.0, 1.0), label)
    return Call(example, of_any_dtype(meant), dtypes, 32.0 + terms, is_smooth)


def product(chance: Random, is_small: bool) -> Call:
    """A product of matrices, of stacks of them or of vectors, transposed or not, with what follows it."""
    sizes = (1, 2, 3, 5) if is_small else (1, 2, 3, 4, 7, 8, 16, 17, 33, 64, 100, 130, 257)
    m, k, n = (chance.choice(sizes) for _ in range(3))
    lead = chance.choice(((), (), (), (2,), (3, 1)))
    first, second = chance.choice(((), lead)), chance.choice(((), (), lead))
    turns = [chance.random() < 0.4 for _ in range(2)]
    shapes = [(*first, m, k), (*second, k, n)]
    stored = [(*s[:-2], s[-1], s[-2]) if turn else s for s, turn in zip(shapes, turns, strict=True)]
    out = (*np.broadcast_shapes(first, second), m, n)
    more = chance.choice((out, out[-1:], (m, 1), ()))
    which = chance.randrange(len(EPILOGUES))

    def by(multiply: Callable[..., Any], swap: Callable[..., Any]) -> Callable[..., Any]:
        def call(x: Any, y: Any, z: Any) -> Any:
            x, y = (swap(a, -1, -2) if turn else a for a, turn in zip((x, y), turns, strict=True))
            return EPILOGUES[which](multiply(x, y), z)

        return call

    label = f"product, transposed {turns}, with epilogue {which}, of "
    return _call(
        label,
        [*stored, more],
        by(f.matmul, f.swapaxes),
        by(np.matmul, np.swapaxes),
        terms=k,
        is_smooth=which not in KINKED,
    )


def convolved(x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """A convolution of images (batch, channels, rows, columns), by products of windows with the filters."""
    x = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)))
    window = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:], strict=True)]
    views = np.lib.stride_tricks.sliding_window_view(x, window, (2, 3))
    views = views[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    parts = [
        np.einsum("bchwij,ocij->bohw", *each)
        for each in zip(np.split(views, groups, 1), np.split(w, groups, 0), strict=True)
    ]
    return np.concatenate(parts, 1)


def convolution(chance: Random, is_small: bool) -> Call:
    """A convolution in either layout, with what follows it."""
    groups = chance.choice((1, 1, 1, 2))
    channels, filters = (groups * chance.choice((1, 2) if is_small else (1, 3, 4, 8, 17, 33)) for _ in range(2))
    window = [chance.choice((1, 2, 3)) for _ in range(2)]
    sizes = [chance.choice((3, 4) if is_small else (5, 7, 8, 13, 28)) + 2 for _ in range(2)]
    stride, dilation = ([chance.choice((1, 1, 2)) for _ in range(2)] for _ in range(2))
    padding = [chance.choice((0, 1, k // 2)) for k in window]
    batch, last = chance.choice((1, 2, 5)), chance.random() < 0.4
    count = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(sizes, padding, dilation, window, stride, strict=True)
    ]
    to_last = (0, 2, 3, 1)
    shape, value = (batch, channels, *sizes), (batch, filters, *count)
    if last:
        shape, value = (tuple(each[i] for i in to_last) for each in (shape, value))
    more = chance.choice((value, (filters,) if last else (filters, 1, 1), ()))
    which = chance.randrange(len(EPILOGUES))
    props = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation), "groups": groups}

    def build(x: Any, w: Any, z: Any) -> Any:
        layout = {"layout": "NHWC", "weights_layout": "OIHW"} if last else {}
        return EPILOGUES[which](f.conv(x, w, **props, **layout), z)

    def meaning(x: Any, w: Any, z: Any) -> Any:
        found = convolved(np.transpose(x, (0, 3, 1, 2)) if last else x, w, **props)
        return EPILOGUES[which](np.transpose(found, to_last) if last else found, z)

    operands = [shape, (filters, channels // groups, *window), more]
    label = f"convolution with {props}, channels last {last}, epilogue {which}, of "
    return _call(
        label, operands, build, meaning, terms=channels // groups * prod(window), is_smooth=which not in KINKED
    )


def attended(query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: Any) -> Any:
    """Attention by the whole matrix of scores; of queries that have no key, zeros."""
    scores = query @ np.swapaxes(key, -1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype.kind == "b" else scores + mask
    if causal:
        scores = np.where(np.arange(scores.shape[-2])[:, None] >= np.arange(scores.shape[-1]), scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = np.sum(weights, axis=-1, keepdims=True)
    return weights @ value / np.where(total == 0, 1, total)


def attention(chance: Random, is_small: bool) -> Call:
    """Attention of several heads or one, with a mask of either kind or none, causal or not."""
    counts = (0, 1, 2, 3) if is_small else (0, 1, 7, 8, 9, 17, 33, 64, 130, 259)
    features = (1, 2, 3) if is_small else (1, 3, 8, 16, 20, 33, 64)
    queries, keys, size, width = (chance.choice(x) for x in (counts, counts, features, features))
    lead = chance.choice(((), (2,), (2, 3)))
    leads = [tuple(chance.choice((n, n, n, 1)) for n in lead) for _ in range(3)]
    lead = np.broadcast_shapes(*leads)
    causal, scale = chance.random() < 0.4, chance.choice((None, None, 0.5))
    operands: list[Any] = [(*leads[0], queries, size), (*leads[1], keys, size), (*leads[2], keys, width)]
    scores = (*lead, queries, keys)
    shape = chance.choice((scores, scores[-2:], (queries, 1), (1, keys)))
    kind = chance.choice(("none", "bools", "floats"))
    if kind != "none":
        chosen = np.random.RandomState(chance.randrange(1 << 30)).uniform(size=shape) < 0.7
        operands.append(chosen if kind == "bools" else shape)
    operands.append((*lead, queries, width))
    which = chance.randrange(len(EPILOGUES))

    def by(attend: Callable[..., Any]) -> Callable[..., Any]:
        def call(*xs: Any) -> Any:
            *given, z = xs
            return EPILOGUES[which](attend(*given[:3], given[3] if len(given) > 3 else None, causal, scale), z)

        return call

    label = f"attention with a mask of {kind} {shape}, causal {causal}, scale {scale}, epilogue {which}, of "
    return _call(label, operands, by(f.attention), by(attended), terms=4, is_smooth=which not in KINKED)


def network(chance: Random, is_small: bool) -> Call:
    """A recurrent network: its outputs, and the states after the last step."""
    kind, gates = chance.choice((("rnn", 1), ("lstm", 4), ("gru", 3)))
    sizes = (1, 2, 3) if is_small else (1, 3, 8, 17, 32)
    steps, batch = chance.choice((0, 1, 2, 3) if is_small else (0, 1, 3, 10)), chance.choice((1, 2, 5))
    features, units = (chance.choice(sizes) for _ in range(2))
    options: dict[str, Any] = {"reverse": chance.random() < 0.5, "batch_first": chance.random() < 0.5}
    if kind == "rnn":
        options["activation"] = chance.choice(("tanh", "sig"))
    lead = (batch, steps) if options["batch_first"] else (steps, batch)
    operands: list[Any] = [(*lead, features), (features, gates * units), (units, gates * units)]
    names = {"b": (gates * units,), "state": (batch, units)}
    names |= {"lstm": {"cell": (batch, units)}, "gru": {"recurrent_bias": (units,)}, "rnn": {}}[kind]
    names = {name: shape for name, shape in names.items() if chance.random() < 0.5}
    operands += names.values()
    if chance.random() < 0.4:
        names["mask"] = lead
        operands.append(np.random.RandomState(chance.randrange(1 << 30)).uniform(size=lead) < 0.7)

    def by(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*xs: Any) -> Any:
            x, w, u, *rest = xs
            # A quarter: with more, states would be chaotic, and enlarge what is rounded from step to step.
            found = function(x, w, u * 0.25, **dict(zip(names, rest, strict=True)), **options)
            return np.concatenate([np.reshape(y, (-1,)) for y in found])

        return call

    label = f"{kind} with {list(names)}, {options}, of "
    return _call(
        label, operands, by(getattr(f, kind)), by(lambda *xs, **named: recurrent(kind, *xs, **named)), terms=32
    )


def unrolled(step: Any, initial: Any, sequences: Any, reverse: bool = False, axis: int = 0, length: Any = None) -> Any:
    """A loop as a tree of all its steps."""
    count = sequences[0].shape[axis] if sequences else length
    states, made = initial, []
    for t in range(count)[:: -1 if reverse else 1]:
        slices = [f.slice(x, (slice(None),) * axis + (t,)) for x in sequences]
        states, outputs = step(states, slices if sequences else None)
        made.append(outputs)
    if not count:
        zeros = [constant(np.zeros((*x.shape[:axis], *x.shape[axis + 1 :]), x.dtype)) for x in sequences]
        _, outputs = step(initial, zeros if sequences else None)
        none = [np.zeros((*x.shape[:axis], 0, *x.shape[axis:]), x.dtype) for x in outputs]
        return states, [constant(x) for x in none]
    joined = zip(*made[:: -1 if reverse else 1], strict=True)
    return states, [f.stack(list(parts), axis=axis) for parts in joined]


#: Ops of a loop's step on integers.
OF_INTEGERS = "add sub mul maximum minimum neg abs sum max transpose flip concatenate".split()


class Step(NamedTuple):
    """A random step of a loop, the same each time: of states and slices, and of what is the same in every step.

    Attributes
    ----------
    key : int
        The seed of its trees.
    is_floating, is_masked, is_nested : bool
        Whether it computes with floats, leaves the states as they are in some steps, and has a loop of its own.
    axis : int
        The axis along which the loop joins outputs.
    """

    key: int
    is_floating: bool
    is_masked: bool
    is_nested: bool
    axis: int

    def __call__(self, scan: Callable[..., Any], constants: Sequence[Any], states: Any, slices: Any) -> Any:
        choose = Random(self.key).choice
        leaves = [*states, *(slices or []), *constants]
        rows = next((x for x in leaves if x.ndim), None)
        if self.is_nested and rows is not None:
            inner = partial(self.of_row, np.sum(choose(leaves)))
            (last,), (seen,) = scan(inner, [np.sum(rows, axis=0)], [rows])
            leaves += [last, seen]
        names = SMOOTH if self.is_floating else OF_INTEGERS
        trees = [random_tree(choose, leaves, choose((1, 3, 6)), names, elements=64) for _ in [*states, None]]
        after = [self.fitted(x, y) for x, y in zip(trees, states, strict=False)]
        if self.is_masked and slices:
            chosen = np.max(slices[0]) > 0
            after = [f.where(chosen, x, y) for x, y in zip(after, states, strict=True)]
        return after, [trees[-1] if trees[-1].ndim >= self.axis else states[-1], states[0]]

    def of_row(self, factor: Any, states: Any, slices: Any) -> Any:
        """The step of the loop within."""
        ((state,), (row,)) = states, slices
        return [self.fitted(state * factor + row, state)], [state * row]

    def fitted(self, x: Any, state: Any) -> Any:
        """A tree as a new state: of its shape and dtype; a quarter of floats, so that what is rounded fades away."""
        x = x if x.shape == state.shape else state + np.sum(x)
        return in_dtype(f.tanh(x * 0.25) if self.is_floating else x, state.dtype)


def loop(chance: Random, is_small: bool) -> Call:
    """A loop with a random step, of several states and outputs, with masks, products and loops within it."""
    axis, steps = chance.choice((0, 0, 1)), chance.choice((0, 1, 2, 3, 9, 12) if is_small else (0, 1, 3, 12, 13, 40))
    is_floating, is_masked, is_nested = (chance.random() < p for p in (0.8, 0.3, 0.3))
    one = Step(chance.randrange(1 << 30), is_floating, is_masked, is_nested, axis)
    shapes = ((3,), (2, 3), (3, 3)) if axis else ((), (3,), (2, 3), (3, 3))
    states, slices, outer = (chance.choices(shapes, k=chance.randint(low, 2)) for low in (1, 0, 0))
    first, second, part = len(states), len(states) + len(slices), chance.choice((1, 1, 2, -1))
    options = {"reverse": chance.random() < 0.5, "axis": axis} | ({} if slices else {"length": steps})

    def by(scan: Callable[..., Any]) -> Callable[..., Any]:
        def call(*xs: Any) -> Any:
            step = partial(one, scan, xs[second:])
            last, joined = scan(step, list(xs[:first]), list(xs[first:second]), **options)
            return f.concatenate([f.reshape(x, (-1,)) for x in [*last, *joined][::part]], axis=0)

        return call

    def meaning(*values: Any) -> Any:
        return run_by_numpy(by(unrolled)(*map(constant, values)))[0]

    operands = [*states, *((*s[:axis], steps, *s[axis:]) for s in slices), *outer]
    label = f"loop of {first} states, {len(slices)} slices, {options}, {one}, part {part}, on "
    dtypes = FLOATS if is_floating else [x for x in ALL_DTYPES if "int" in x]
    return _call(label, operands, by(f.scan), meaning, dtypes, 100)


def windows(chance: Random, is_small: bool) -> Call:
    """Products, sums and maxima of shifted slices of several arrays, which may be values, with what follows them."""
    rank, count = chance.choice((1, 2, 2)), chance.randint(2, 4)
    spans = [(chance.choice((1, 2, 3, 4)), chance.choice((1, 1, 1, 2, 3))) for _ in range(rank)]
    value = tuple(chance.choice((0, 1, 2, 3) if is_small else (0, 1, 2, 5, 9, 19, 40, 67)) for _ in range(rank))
    shape = tuple(max(n - 1, 0) * s + w for n, (w, s) in zip(value, spans, strict=True))
    by = [np.add, np.subtract, np.multiply, *((np.maximum, np.minimum) if chance.random() < 0.4 else ())]
    terms = [
        (chance.randrange(count), [chance.randrange(w) for w, _ in spans], chance.choice(by))
        for _ in range(chance.randint(2, 9))
    ]
    added = [chance.choice((0, 1)) for _ in range(count)]
    which = chance.randrange(len(EPILOGUES) if all(value) else 6)  # there is no maximum of nothing

    def meaning(*xs: Any) -> Any:
        wholes, found = [x + n if n else x for x, n in zip(xs, added, strict=False)], xs[-1]
        for i, starts, combined in terms:
            steps = zip(value, starts, spans, strict=True)
            part = tuple(slice(a, a + max(n - 1, 0) * s + min(n, 1), s) for n, a, (_, s) in steps)
            whole = wholes[i]
            found = combined(found, whole[part] if isinstance(whole, np.ndarray) else f.slice(whole, part))
        return EPILOGUES[which](found, xs[-1])

    is_smooth = which not in KINKED and len(by) == 3
    label = f"windows {terms}, strides {[s for _, s in spans]}, values {added}, epilogue {which}, of "
    return _call(label, [shape] * count + [value], meaning, meaning, terms=100, is_smooth=is_smooth)


#: All of them.
RANDOM = (product, convolution, windows, attention, network, loop)
