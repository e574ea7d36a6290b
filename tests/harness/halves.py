"""float16 work whose values are NumPy's, operation by operation, for the tests of every executor of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from harness.staged import REDUCTIONS, TREES
from optree import function

#: From a backend to arrays.
Run = Callable[[Any], Sequence[np.ndarray]]

#: Every float16 there is.
EVERY = np.arange(65536, dtype=np.uint16).view(np.float16)


def halves(seed: int, *shape: int, low: float = 0.5, high: float = 2.0) -> np.ndarray:
    return np.random.RandomState(seed).uniform(low, high, shape).astype(np.float16)


def wild(seed: int, *shape: int) -> np.ndarray:
    """float16 of every size, denormals and infinities among them."""
    chance = np.random.RandomState(seed)
    with np.errstate(over="ignore"):
        return (chance.randn(*shape) * 10.0 ** chance.randint(-8, 6, shape)).astype(np.float16)


def traps(dtype: Any) -> np.ndarray:
    """Numbers between neighbours, just beside the middle between them, around the largest and the least."""
    positive = EVERY[:0x7C00].astype(np.float64)
    middle = (positive[:-1] + positive[1:]) / 2
    beside = [middle, -middle, *(np.nextafter(middle, to, dtype=kind) for to in (0, 1e9) for kind in ("f4", "f8"))]
    more = [65504.0, 65519.99, 65520, 65520.01, 1e6, 1e300, np.inf, np.nan, 0, 2.0**-25, 2.0**-24, 3 * 2.0**-25]
    more += [2.0**-25 * (1 + 2.0**-40), 2.0**-25 * (1 - 2.0**-40), 1e-300, 5e-324]
    found = np.concatenate([*beside, more, np.negative(more)])
    with np.errstate(over="ignore"):
        return found.astype(dtype)


def chains(be: Any) -> Sequence[np.ndarray]:
    """Runs of operations, each rounded, of numbers of every size."""
    x, y = be.array(wild(0, 90, 211), np.float16), be.array(wild(1, 90, 211), np.float16)
    trees = (x * y + x, be.sqrt(be.abs(x)) / y, be.where(x > y, x - y, -x), be.maximum(x, y) * 0.1, be.rint(x * 7) / 7)
    return [tree.asnumpyarray() for tree in trees]


def every(be: Any) -> Sequence[np.ndarray]:
    """Every float16, as it is, and in other dtypes."""
    x = be.array(EVERY, np.float16)
    trees = (x * 1, be.cast(x, "float32"), be.cast(x, "float64"), x == x, be.isnan(x), be.square(x))
    within = be.array(np.trunc(EVERY[np.abs(EVERY) < 2.0**15]), np.float16)
    return [tree.asnumpyarray() for tree in (*trees, be.cast(within, "int16"), be.cast(within, "bool"))]


def casts(be: Any) -> Sequence[np.ndarray]:
    """Other dtypes as float16, each rounded once."""
    found = [be.cast(be.array(traps(dtype), dtype), "float16") for dtype in ("float32", "float64")]
    found.append(be.cast(be.array(traps("float32")) * 2, "float16"))
    for dtype in ("int8", "uint16", "int32", "int64", "uint64"):
        limits = np.iinfo(dtype)
        values = np.array(
            [limits.min, limits.max, 0, 1, 100, *(n for n in (2049, 65519, 65520) if n <= limits.max)], dtype
        )
        found.append(be.cast(be.array(values, dtype), "float16"))
    found.append(be.cast(be.array(np.array([True, False])), "float16"))
    return [tree.asnumpyarray() for tree in found]


def mixed(be: Any) -> Sequence[np.ndarray]:
    """float16 with other dtypes, and what is float16 of integers."""
    h, f = be.array(wild(0, 7, 67), np.float16), be.array(wild(1, 7, 67).astype(np.float32))
    small = be.array(np.arange(-9, 58, dtype=np.int8), np.int8)
    trees = (
        h * f,
        h + be.cast(f, "float64"),
        h * small,
        h + be.cast(small, "int16"),
        small / small,
        h > f,
        h * (h > 0),
    )
    return [tree.asnumpyarray() for tree in trees]


def numbers(be: Any) -> Sequence[np.ndarray]:
    """Python numbers, which are rounded once: to a float first, 1 + 2**-11 + 2**-40 would become 1."""
    x = be.array(halves(0, 67), np.float16)
    return [(x * number).asnumpyarray() for number in (1 + 2.0**-11 + 2.0**-40, 0.1, 1e5, 1e-8, 3, True, float("nan"))]


def layouts(be: Any) -> Sequence[np.ndarray]:
    """Views of every kind, in targets of both orders, beside elements that keep their values."""
    array, found = halves(0, 36, 67), []
    x, row, column = be.array(array, np.float16), be.array(array[:1], np.float16), be.array(array[:, :1], np.float16)
    for view in (x, x[:, 1:], x[:, ::-1], x[::2, 3::5], x[::-1, 8:], x[:, 3:4], x[:0]):
        target = be.full((36, 80), 7, dtype=np.float16)[: view.shape[0], 5 : 5 + view.shape[1]]
        target[:] = view * 2 - row[:, : view.shape[1]] * column[: view.shape[0]]
        found.append(target.get())
    turned, y = be.transpose(x), be.array(halves(1, 67, 36).astype(np.float32))
    found += [tree.asnumpyarray() for tree in (turned + y, be.sqrt(turned) * turned)]
    for n in (5, 8, 1001):
        for start in (8, 9):
            base = be.full(n + 20, 7, dtype=np.float16)
            base[start : start + n] = be.array(halves(2, n), np.float16) * 3
            found.append(base.get())
    return found


def several(be: Any) -> Sequence[np.ndarray]:
    """Several outputs, one of them in the place of what is read."""
    x = be.array(halves(0, 6, 37), np.float16)
    step = function([], [x > 1, be.cast(x, "float32") * 3, be.sum(x, axis=1)], updates={x: x * 0.5 + 1})
    return [value.get() for value in step()] + [x.get()]


#: Runs whose values are NumPy's to the bit.
EXACT: dict[str, Run] = {run.__name__: run for run in (chains, every, casts, mixed, numbers, layouts, several)}


def _tree(tree: Any, shape: tuple[int, ...], axis: Any) -> Run:
    return lambda be: [tree(be, be.array(halves(0, *shape), np.float16), axis).asnumpyarray()]


def _reduction(tree: Any, shape: tuple[int, int]) -> Run:
    x, row = halves(0, *shape), halves(1, shape[1])
    return lambda be: [tree(be, be.array(x, np.float16), be.array(row, np.float16)).asnumpyarray()]


def _close() -> dict[str, Run]:
    found: dict[str, Run] = {}
    for shape, axis in (((5, 33), 1), ((33, 40), 0), ((3, 1001), 1), ((3, 5000), None), ((2, 20000), 1), ((900, 3), 0)):
        found.update({f"{tree.__name__}-{shape}-{axis}": _tree(tree, shape, axis) for tree in TREES})
    for shape in ((5, 7), (33, 700), (4, 704)):
        found.update({f"{name}-{shape}": _reduction(tree, shape) for name, tree in REDUCTIONS.items()})
    return found


#: Runs whose values are NumPy's but for the order of sums, and what that makes of what follows.
CLOSE = _close()


def sums(be: Any) -> Sequence[np.ndarray]:
    """Sums and means of 10,000 along every axis, in float16."""
    x = be.array(halves(0, 10000, 3, high=4), np.float16)
    y = be.array(halves(1, 3, 10000, high=4), np.float16)
    small = be.array(halves(2, 10000, low=-1, high=1), np.float16)
    trees = (be.sum(x, axis=0), be.sum(y, axis=1), be.sum(x), be.mean(x, axis=0), be.mean(y), be.sum(small))
    return [tree.asnumpyarray() for tree in trees]


def exact_sums() -> list[np.ndarray]:
    """What `sums` are, rounded once from float64."""
    x, y, small = (halves(0, 10000, 3, high=4), halves(1, 3, 10000, high=4), halves(2, 10000, low=-1, high=1))
    x, y, small = (array.astype(np.float64) for array in (x, y, small))
    found = (x.sum(0, keepdims=True), y.sum(1, keepdims=True), x.sum(keepdims=True))
    found += (x.mean(0, keepdims=True), y.mean(keepdims=True), small.sum(keepdims=True))
    with np.errstate(over="ignore"):
        return [array.astype(np.float16) for array in found]
