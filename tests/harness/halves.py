"""Work in narrow dtypes whose values are NumPy's, operation by operation, for the tests of each executor of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from harness.staged import REDUCTIONS, TREES
from optree import function
from optree.dtypes import bfloat16

#: From a backend and a narrow dtype to arrays.
Run = Callable[[Any, np.dtype], Sequence[np.ndarray]]

#: The narrow dtypes, each with the powers of ten from below its least number to beyond its largest.
SIZES = {np.dtype("float16"): (-8, 6), bfloat16(): (-41, 40)}


def every_number(dtype: np.dtype) -> np.ndarray:
    """Every number, infinity and nan that there is."""
    return np.arange(65536, dtype=np.uint16).view(dtype)


def positive_numbers(dtype: np.dtype) -> np.ndarray:
    """All from 0 to the largest finite one, in float64."""
    with np.errstate(invalid="ignore"):  # there are nans that signal
        wide = every_number(dtype)[: 1 << 15].astype(np.float64)
    return wide[np.isfinite(wide)]


def halves(dtype: np.dtype, seed: int, *shape: int, low: float = 0.5, high: float = 2.0) -> np.ndarray:
    return np.random.RandomState(seed).uniform(low, high, shape).astype(dtype)


def wild(dtype: np.dtype, seed: int, *shape: int) -> np.ndarray:
    """Numbers of every size, denormals and infinities among them."""
    chance = np.random.RandomState(seed)
    with np.errstate(over="ignore"):
        return (chance.randn(*shape) * 10.0 ** chance.randint(*SIZES[dtype], shape)).astype(dtype)


def traps(narrow: np.dtype, dtype: Any) -> np.ndarray:
    """Numbers between neighbours, just beside the middle between them, around the largest and the least."""
    positive = positive_numbers(narrow)
    middle = np.append((positive[:-1] + positive[1:]) / 2, positive[-1] + (positive[-1] - positive[-2]) / 2)
    beside = [middle, -middle]
    with np.errstate(over="ignore", under="ignore"):
        for kind in ("f4", "f8"):
            beside += [np.nextafter(middle.astype(kind), np.array(to, kind)).astype("f8") for to in (0, np.inf)]
        least = positive[1]
        more = [positive[-1], positive[-1] * 15, 1e300, np.inf, np.nan, 0, least / 2, least, 3 * least / 2]
        more += [least / 2 * (1 + 2.0**-40), least / 2 * (1 - 2.0**-40), 1e-300, 5e-324]
        return np.concatenate([*beside, more, np.negative(more)]).astype(dtype)


def chains(be: Any, dtype: np.dtype) -> Sequence[np.ndarray]:
    """Runs of operations, each rounded, of numbers of every size."""
    x, y = be.array(wild(dtype, 0, 90, 211), dtype), be.array(wild(dtype, 1, 90, 211), dtype)
    largest = be.maximum(x, y - 0.25)  # of two zeros either may be the larger
    trees = (x * y + x, be.sqrt(be.abs(x)) / y, be.where(x > y, x - y, -x), largest * 0.1, be.rint(x * 7) / 7)
    return [tree.asnumpyarray() for tree in trees]


def every(be: Any, dtype: np.dtype) -> Sequence[np.ndarray]:
    """Every number, as it is, and in other dtypes."""
    every = every_number(dtype)
    x = be.array(every, dtype)
    trees = (x * 1, be.cast(x, "float32"), be.cast(x, "float64"), x == x, be.isnan(x), be.square(x))
    within = be.array(np.trunc(every[np.abs(every) < 2.0**15]), dtype)
    return [tree.asnumpyarray() for tree in (*trees, be.cast(within, "int16"), be.cast(within, "bool"))]


def casts(be: Any, dtype: np.dtype) -> Sequence[np.ndarray]:
    """Other dtypes as a narrow one, each rounded once."""
    found = [be.cast(be.array(traps(dtype, wide), wide), dtype) for wide in ("float32", "float64")]
    found.append(be.cast(be.array(traps(dtype, "float32")) * 2, dtype))
    near = 2049, 65519, 65520, 2**24 + 2**16 + 1, 2**40 + 2**32 + 1
    for kind in ("int8", "uint16", "int32", "int64", "uint64"):
        limits = np.iinfo(kind)
        values = np.array([limits.min, limits.max, 0, 1, 100, *(n for n in near if n <= limits.max)], kind)
        found.append(be.cast(be.array(values, kind), dtype))
    found.append(be.cast(be.array(np.array([True, False])), dtype))
    nans = np.array([0x7F800001, 0x7F80FFFF, 0x7FFFFFFF, 0xFFC00000, 0xFFFFFFFF], np.uint32).view(np.float32)
    found.append(be.cast(be.array(nans), dtype))
    return [tree.asnumpyarray() for tree in found]


def mixed(be: Any, dtype: np.dtype) -> Sequence[np.ndarray]:
    """A narrow dtype with other dtypes, and what integers give."""
    h, f = be.array(wild(dtype, 0, 7, 67), dtype), be.array(wild(dtype, 1, 7, 67).astype(np.float32))
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


def numbers(be: Any, dtype: np.dtype) -> Sequence[np.ndarray]:
    """Python numbers, which are rounded once: to a float first, 1 + 2**-11 + 2**-40 would become 1."""
    x = be.array(halves(dtype, 0, 67), dtype)
    return [
        (x * number).asnumpyarray()
        for number in (1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 + 2.0**-40, 0.1, 1e5, 1e-8, 3, True, float("nan"))
    ]


def layouts(be: Any, dtype: np.dtype) -> Sequence[np.ndarray]:
    """Views of every kind, in targets of both orders, beside elements that keep their values."""
    array, found = halves(dtype, 0, 36, 67), []
    x, row, column = be.array(array, dtype), be.array(array[:1], dtype), be.array(array[:, :1], dtype)
    for view in (x, x[:, 1:], x[:, ::-1], x[::2, 3::5], x[::-1, 8:], x[:, 3:4], x[:0]):
        target = be.full((36, 80), 7, dtype=dtype)[: view.shape[0], 5 : 5 + view.shape[1]]
        target[:] = view * 2 - row[:, : view.shape[1]] * column[: view.shape[0]]
        found.append(target.get())
    turned, y = be.transpose(x), be.array(halves(dtype, 1, 67, 36).astype(np.float32))
    found += [tree.asnumpyarray() for tree in (turned + y, be.sqrt(turned) * turned)]
    for n in (5, 8, 1001):
        for start in (8, 9):
            base = be.full(n + 20, 7, dtype=dtype)
            base[start : start + n] = be.array(halves(dtype, 2, n), dtype) * 3
            found.append(base.get())
    return found


def several(be: Any, dtype: np.dtype) -> Sequence[np.ndarray]:
    """Several outputs, one of them in the place of what is read."""
    x = be.array(halves(dtype, 0, 6, 37), dtype)
    step = function([], [x > 1, be.cast(x, "float32") * 3, be.sum(x, axis=1)], updates={x: x * 0.5 + 1})
    return [value.get() for value in step()] + [x.get()]


def fused(be: Any, dtype: np.dtype) -> Sequence[np.ndarray]:
    """Chains, gradients and rows whose last op alone rounds."""
    x, y = (be.array(halves(dtype, seed, 19, 88), dtype) for seed in (0, 1))
    trees = [
        x * y + y * y - x / 3,
        (x - be.mean(x, axis=1)) / be.sqrt(be.var(x, axis=1) + 0.5),
        x * be.cast(y > 1, dtype),
    ]
    return [tree.asnumpyarray() for tree in [*trees, be.sum(x * y / (x + y), axis=0)]]


def exact_fused(dtype: np.dtype) -> list[np.ndarray]:
    """The reference of `fused`, rounded once from float64."""
    x, y = (halves(dtype, seed, 19, 88).astype(np.float64) for seed in (0, 1))
    var = x.var(axis=1, keepdims=True)
    found = [x * y + y * y - x / 3, (x - x.mean(axis=1, keepdims=True)) / np.sqrt(var + 0.5), x * (y > 1)]
    return [array.astype(dtype) for array in [*found, (x * y / (x + y)).sum(axis=0, keepdims=True)]]


#: Runs whose values are NumPy's to the bit, where each op rounds.
EXACT: dict[str, Run] = {run.__name__: run for run in (chains, every, casts, mixed, numbers, layouts, several)}


def _tree(tree: Any, shape: tuple[int, ...], axis: Any) -> Run:
    return lambda be, dtype: [tree(be, be.array(halves(dtype, 0, *shape), dtype), axis).asnumpyarray()]


def _reduction(tree: Any, shape: tuple[int, int]) -> Run:
    def run(be: Any, dtype: np.dtype) -> Sequence[np.ndarray]:
        x, row = be.array(halves(dtype, 0, *shape), dtype), be.array(halves(dtype, 1, shape[1]), dtype)
        return [tree(be, x, row).asnumpyarray()]

    return run


def _close() -> dict[str, Run]:
    found: dict[str, Run] = {}
    for shape, axis in (((5, 33), 1), ((33, 40), 0), ((3, 1001), 1), ((3, 5000), None), ((2, 20000), 1), ((900, 3), 0)):
        found.update({f"{tree.__name__}-{shape}-{axis}": _tree(tree, shape, axis) for tree in TREES})
    for shape in ((5, 7), (33, 700), (4, 704)):
        found.update({f"{name}-{shape}": _reduction(tree, shape) for name, tree in REDUCTIONS.items()})
    return found


#: Runs whose values are NumPy's but for the order of sums, and what that makes of what follows.
CLOSE = _close()


def sums(be: Any, dtype: np.dtype) -> Sequence[np.ndarray]:
    """Sums and means of 10,000 along every axis."""
    x = be.array(halves(dtype, 0, 10000, 3, high=4), dtype)
    y = be.array(halves(dtype, 1, 3, 10000, high=4), dtype)
    small = be.array(halves(dtype, 2, 10000, low=-1, high=1), dtype)
    trees = (be.sum(x, axis=0), be.sum(y, axis=1), be.sum(x), be.mean(x, axis=0), be.mean(y), be.sum(small))
    return [tree.asnumpyarray() for tree in trees]


def exact_sums(dtype: np.dtype) -> list[np.ndarray]:
    """The reference of `sums`, rounded once from float64."""
    x, y, small = (
        halves(dtype, 0, 10000, 3, high=4),
        halves(dtype, 1, 3, 10000, high=4),
        halves(dtype, 2, 10000, low=-1, high=1),
    )
    x, y, small = (array.astype(np.float64) for array in (x, y, small))
    found = (x.sum(0, keepdims=True), y.sum(1, keepdims=True), x.sum(keepdims=True))
    found += (x.mean(0, keepdims=True), y.mean(keepdims=True), small.sum(keepdims=True))
    with np.errstate(over="ignore"):
        return [array.astype(dtype) for array in found]
