"""Test cases of CUDA kernels: every op, reductions of every shape, layouts, targets and random trees."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count
from typing import Any

import numpy as np

from backends import gen_backend
from harness import halves
from harness.arrays import comparable
from harness.emulated import Trial
from harness.expressions import CASES, Case, compare, operands_for
from harness.halves import CLOSE, EXACT, exact_sums, sums
from harness.staged import REDUCTIONS, SPECIAL, TREES
from harness.trees import SHAPES, USABLE, Exactness, assert_alike, leaves_of, run_by_numpy
from optree import OpTreeNode, function, grad, settings
from optree.dtypes import bfloat16, finfo, is_complex, is_floating
from optree.op.traits import ReductionOperator
from optree.registry import OPS
from optree.testing.random_trees import random_tree
from optree.tree.types import DTYPES, TensorType

#: From a backend to arrays.
Run = Callable[[Any], Sequence[np.ndarray]]


@cache
def plain(datatype: Any = np.float32) -> Any:
    """A backend that runs NumPy, op by op."""
    return gen_backend("cpu", rng_seed=0, jit=False, datatype=datatype)


def alike(run: Run, rtol: float, atol: float = 0.0, wanted: Run | None = None) -> Trial:
    """A trial that is to give what NumPy gives."""

    def check(got: Sequence[np.ndarray]) -> None:
        for ours, numpys in zip(got, (wanted or run)(plain()), strict=True):
            assert ours.shape == numpys.shape and (wanted is not None or ours.dtype == numpys.dtype)
            np.testing.assert_allclose(comparable(ours), comparable(numpys), rtol=rtol, atol=atol)

    return Trial(run, check)


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.RandomState(seed).uniform(0.5, 2, shape).astype(np.float32)


# Ops


#: So many ops are outputs of one kernel: a kernel of each takes compilers several times longer.
AT_ONCE = 12


def _ops(cases: Sequence[Case]) -> Trial:
    """Ops as outputs of a function: those that take the same arrays are one kernel."""
    given = [operands_for(case) for case in cases]
    for case, arrays in zip(cases, given, strict=True):
        if case.op.name == "fill_like":  # which takes one value for all elements
            arrays[1] = np.full_like(arrays[1], arrays[1][-1])

    def run(be: Any) -> Sequence[np.ndarray]:
        tensors: dict[tuple[np.dtype, bytes], Any] = {}
        outputs = []
        for case, arrays in zip(cases, given, strict=True):
            taken = [arrays[0], arrays[1][:1]] if case.op.name == "fill_like" else arrays
            operands = [
                tensors.setdefault((array.dtype, array.tobytes()), be.array(array, array.dtype)) for array in taken
            ]
            outputs.append(case.op(*operands))
        return [value.get() for value in function([], outputs)()]

    def check(got: Sequence[np.ndarray]) -> None:
        for case, arrays, values in zip(cases, given, got, strict=True):
            compare(case, arrays, values)

    return Trial(run, check)


def ops() -> dict[str, Trial]:
    """Every op that has a kernel expression, on every dtype that it computes in."""
    by_dtypes: dict[str, list[Case]] = {}
    for case in CASES:
        by_dtypes.setdefault(" ".join(map(str, case.operands)), []).append(case)
    return {
        f"{dtypes} {start // AT_ONCE}": _ops(cases[start : start + AT_ONCE])
        for dtypes, cases in by_dtypes.items()
        for start in range(0, len(cases), AT_ONCE)
    }


def reductions() -> dict[str, Trial]:
    """Every reduction that a kernel accumulates, of every dtype."""
    found = {}
    for name, cls in OPS.items():
        if name is None or not issubclass(cls, ReductionOperator) or not cls.__module__.startswith("optree."):
            continue
        for dtype in (*(dtype for dtype in DTYPES if dtype.kind != "c"), bfloat16()):
            try:
                if is_complex(dtype) or cls.make().accumulator_for(dtype) is None:
                    continue
            except NotImplementedError:
                continue
            most = 2 if dtype == np.bool_ else dtype.itemsize if is_floating(dtype) else 100  # products stay finite
            values = np.random.RandomState(3).randint(0, most, (6, 9)).astype(dtype)

            def run(be: Any, cls: Any = cls, values: np.ndarray = values) -> Sequence[np.ndarray]:
                x = be.array(values, values.dtype)
                return [cls.make(axis=axis)(x).asnumpyarray() for axis in (0, 1, None)]

            found[f"{name}_{dtype}"] = alike(run, 1e-6 if dtype == np.float32 else 1e-13)
    return found


# Reductions in one stage and in several

#: Rows of so many elements, and columns: all of float32, and some of another dtype, whose vectors alone differ.
LENGTHS = (1, 3, 31, 32, 33, 257, 1000, 5000, 70000)


def _staged(tree: Callable[..., Any], array: np.ndarray, axis: Any) -> Trial:
    """A tree in an array's own dtype beside one in float64."""
    exact = array.astype(np.float64)
    close = (2e-4, 1e-6) if array.dtype == np.float32 else (1e-11, 1e-13)

    def run(be: Any, array: np.ndarray = array) -> Sequence[np.ndarray]:
        x = be.adopt(array) if array.flags.writeable else be.array(array, array.dtype)
        return [tree(be, x, axis).asnumpyarray()]

    return alike(run, *close, wanted=lambda be: run(be, exact))


def _alternately(number: int) -> Sequence[Callable[..., Any]]:
    """Every second of the trees: layouts that are alike, numbered one after the other, have all of them together."""
    return TREES[number % 2 :: 2]


def staged(lengths: Sequence[int] = LENGTHS, dtypes: Sequence[str] = ("float32", "float64")) -> dict[str, Trial]:
    """Trees of several stages, by rows, by columns few and many, and over everything."""
    found, number = dict[str, Trial](), count()
    for dtype in dtypes:
        for n in lengths if dtype == dtypes[0] else lengths[::2]:
            shapes = [((3, n), 1), ((n, 3), 0), ((3, n), None)]
            shapes += [((n, 40), 0), ((300, n), 1)] if n <= 257 else []
            for shape, axis in shapes:
                array = drawn(0, *shape).astype(dtype)
                for tree in _alternately(next(number)):
                    found[f"{tree.__name__}-{dtype}-{shape}-{axis}"] = _staged(tree, array, axis)
    return found


def columns() -> dict[str, Trial]:
    """Trees of several stages by columns, of which a device with 20 KiB of shared memory keeps the most."""
    shapes = ((450, 40), "float32"), ((450, 36), "float32"), ((300, 19), "float32"), ((220, 22), "float64")
    return {
        f"{tree.__name__}-{dtype}-{shape}": _staged(tree, drawn(0, *shape).astype(dtype), 0)
        for number, (shape, dtype) in enumerate(shapes)
        for tree in _alternately(number)
    } | softmaxes((450,), ("float32",))


#: Labels of `_rows_of_kinds`: the least class, the last one and beyond it, and none.
LABELS = (0, -1, 5, 3, 4, 2**32 + 3, 10**6, 7, 8)


def _rows_of_kinds(n: int) -> np.ndarray:
    """Rows whose maximum grows throughout, or never; is late, infinite or nan; or that have none."""
    normal = np.random.RandomState(5).randn(9, n) * 3
    normal[1], normal[2] = np.sort(normal[1] * 4), np.sort(normal[2] * 4)[::-1]
    normal[3], normal[4, : n // 2], normal[5, n - 2], normal[6, n // 3] = -np.inf, -np.inf, np.inf, np.nan
    normal[7], normal[8] = -9.25, normal[8] * 1e3
    return normal


def softmaxes(lengths: Sequence[int], dtypes: Sequence[Any] = ("float32", "float64", "float16")) -> dict[str, Trial]:
    """Softmaxes and their logarithms, of rows and columns of every kind, and cross entropies with their gradients."""
    found = {}
    for dtype in map(np.dtype, dtypes):
        for n in lengths:
            rows = _rows_of_kinds(n).astype(dtype)

            def run(be: Any, rows: np.ndarray = rows) -> Sequence[np.ndarray]:
                x, labels = be.array(rows, rows.dtype), be.array(np.array(LABELS), np.int64)
                losses = be.cross_entropy(x, labels)
                fused = function([], [losses + 1, grad(be.sum(losses), x)])()  # small losses are of one digit
                columns = be.array(np.tile(rows, (2, 1)).T.copy(), rows.dtype)
                along = [f(y, axis) for y, axis in ((x, 1), (columns, 0)) for f in (be.softmax, be.log_softmax)]
                sums = [be.logsumexp(x, axis=1), be.logsumexp(columns, axis=0)]
                return [y.asnumpyarray() for y in (*along, *sums, *fused)]

            unit = float(finfo(dtype).eps)
            found[f"softmax-{dtype}-{n}"] = alike(
                run, 24 * unit if dtype.itemsize > 2 else unit, unit * 1e-3, partial(run, rows=rows.astype(np.float64))
            )
    return found


def views() -> dict[str, Trial]:
    """The same of arrays that lie otherwise."""
    array = drawn(1, 5, 70, 9)
    long = drawn(2, 4, 1001)
    found, number = dict[str, Trial](), count()
    for name, x, axes in [
        ("three axes", array, (0, 1, -1, (0, 2), (0, 1))),
        ("short columns of many planes", drawn(3, 300, 2, 3).astype(np.float64), (1,)),
        ("Fortran's order", np.asfortranarray(array), (0, 1, 2)),
        ("flipped, in steps", array[::-1, ::2, ::-1], (0, 1, (1, 2), None)),
        ("turned", array.transpose(2, 0, 1)[:, :, :1], (0, 1)),
        ("beside a boundary", long[:, 1:], (0, 1, None)),
        ("in odd steps", long[:, ::3], (0, 1)),
        ("backward", long[:, ::-1], (1,)),
    ]:
        for axis in axes:
            for tree in _alternately(next(number)):
                found[f"{tree.__name__}-{name}-{axis}"] = _staged(tree, x, axis)
    for name in ("softmax", "log_softmax", "logsumexp", "norm", "max", "min", "prod", "any", "all"):
        for kind, x in (("rows", SPECIAL), ("turned", SPECIAL.T), ("float64", SPECIAL.astype(np.float64))):

            def run(be: Any, name: str = name, x: np.ndarray = x) -> Sequence[np.ndarray]:
                return [getattr(be, name)(be.array(x, x.dtype), axis=axis).asnumpyarray() for axis in (0, 1)]

            found[f"{name}-special-{kind}"] = alike(run, 2e-6)
    for name, tree in REDUCTIONS.items():
        for shape in ((5, 7), (1, 9), (9, 1), (33, 700), (3, 0)):
            if 0 not in shape or name not in ("several", "softmax"):  # the maximum of nothing is refused

                def reduce(be: Any, tree: Any = tree, shape: Any = shape) -> Sequence[np.ndarray]:
                    return [tree(be, be.array(drawn(0, *shape)), be.array(drawn(1, shape[1]))).asnumpyarray()]

                found[f"{name}-{shape}"] = alike(reduce, 3e-6)
    return found


# Elementwise work


def _layouts(be: Any) -> Sequence[np.ndarray]:
    """A value of every kind of view, in targets of both orders."""
    array, found = drawn(0, 12, 21), []
    x, row, column = be.array(array), be.array(array[0]), be.array(array[:, :1])
    views = (x, x[::-1, ::-1], x[::2, 1::3], x.T, x[:, 3:4], x[:0], x[:, 1:], x[1:, :8], x[:, ::-1], x[:, -2::-5])
    for view in views:
        broadcast = (row[: view.shape[1]], column[: view.shape[0]]) if view is not views[3] else (row[:1], column[:1])
        for target in (be.empty(view.shape), be.empty(view.shape[::-1]).T, be.empty((view.shape[0], 60))[:, 1::2]):
            target = target[:, : view.shape[1]]
            target[:] = view * 2 - broadcast[0] * be.sqrt(broadcast[1])
            found.append(target.get())
    return found


def _ends(be: Any) -> Sequence[np.ndarray]:
    """Ends that no whole access covers, beside elements that keep their values."""
    found = []
    for n in (5, 1001):
        x, far = be.array(drawn(0, n)), be.array(drawn(1, 3 * n))[::3]
        for where in (slice(8, 8 + n), slice(9, 9 + n), slice(1, 1 + 2 * n, 2), slice(2 * n, n, -1)):
            base = be.array(np.full(3 * n + 64, 7, np.float32))
            base[where] = x * 2 + far
            found.append(base.get())
    return found


def _many(be: Any) -> Sequence[np.ndarray]:
    """Arrays of which a thread of a small device has several accesses, whole and partial, in one loop and in two."""
    row = be.array(drawn(0, 68))
    found = [be.sqrt(be.array(drawn(1, n))).asnumpyarray() for n in (2048, 2050, 2111)]
    return found + [tree.asnumpyarray() for n in (9, 60) for tree in (be.array(drawn(2, n, 68)) * row, row + 1)]


def _loops(be: Any) -> Sequence[np.ndarray]:
    x, y, z = (be.array(drawn(i, *shape)) for i, shape in enumerate([(3, 1, 5), (3, 4, 1), (1, 4, 5)]))
    one = be.array(drawn(3, 1, 1, 1))
    scalar = be.array(drawn(4)[()])
    return [tree.asnumpyarray() for tree in (be.maximum(x, y) / z, x * one + scalar, scalar * 2, be.tanh(x) * y)]


def _several(be: Any) -> Sequence[np.ndarray]:
    """Several outputs, of several dtypes, levels and stages."""
    x = be.array(drawn(0, 6, 37))
    centred = x - be.mean(x, axis=1)
    square, norm = be.square(centred), be.sum(be.square(centred), axis=1)
    outputs = [centred, square, norm, square / norm, centred > 0, be.cast(x * 4, "int32"), be.cast(norm, "float64")]
    return [value.get() for value in function([], outputs)()]


def _in_place(be: Any) -> Sequence[np.ndarray]:
    x = be.array(np.random.RandomState(4).randn(6, 9).astype(np.float32))
    x[:] = be.softmax(x, axis=1)
    x[:] = x - be.mean(x, axis=0)
    x[1:] = x[:-1] * 2
    x[:, 1:] = x[:, 1:] + x[:, :1]
    y = be.array(drawn(1, 7, 7))
    y[:] = y.T + y
    doubled = x * 2
    total = function([], be.sum(doubled * be.max(doubled, axis=1), axis=1), updates={x: doubled})()
    return [x.get(), y.get(), total.get()]


def _within(be: Any) -> Sequence[np.ndarray]:
    """Views that begin within an access, all alike, in the place of what is read: rows, several loops, parts."""
    found = []
    for dtype in ("float32", "float64"):
        line, rows, planes = (
            be.array(drawn(i, *shape), dtype) for i, shape in enumerate([(999,), (7, 333), (3, 4, 105)])
        )
        line[3:] = be.sqrt(line[3:]) * 2
        line[1:998] = line[1:998] - be.mean(line[1:998])
        rows[1:, 5:] = be.softmax(rows[1:, 5:], axis=1) + be.flat_indices(rows[1:, 5:])
        rows[:, 1:300] = rows[:, 1:300] * 2
        planes[:, :, 2:] = planes[:, :, 2:] - be.mean(planes[:, :, 2:], axis=(0, 2))
        planes[:, 1:, 1:] = planes[:, 1:, 1:] * be.max(planes[:, 1:, 1:], axis=(1, 2))
        few = be.array(drawn(3, 2, 20001), dtype)
        few[:, 1:] = be.softmax(few[:, 1:], axis=1)
        found += [x.get() for x in (line, rows, planes, few)]
    return found


def _unaligned(be: Any) -> Sequence[np.ndarray]:
    """Rows of odd lengths beside vectors and views that begin elsewhere within an access: whole, short, in parts."""
    found = []
    for n in (70, 333, 5001, 40001):
        rows, other, gain = (be.array(drawn(i, *shape)) for i, shape in enumerate([(5, n), (5, n + 2), (n + 1,)]))
        found.append((rows * gain[1:] + other[:, 2:] * gain[:n]).asnumpyarray())
        centred = rows - be.mean(rows, axis=1)
        scaled = centred / be.sqrt(be.mean(be.square(centred), axis=1)) * gain[:n] + gain[1:]
        found += [scaled.asnumpyarray(), be.sum(other[:, 1:-1] * gain[1:], axis=1).asnumpyarray()]
        found.append((be.array(drawn(3, 5, n), "float16") * be.array(drawn(4, n + 1), "float16")[1:]).asnumpyarray())
    return found


def _updates(be: Any) -> Sequence[np.ndarray]:
    """Adam, twice: three outputs, each in the place of what is read."""
    w, m, v = be.array(drawn(0, 67)), be.zeros(67), be.zeros(67)
    g, rate = TensorType("float32", (None,))("g"), TensorType("float32", ())("rate")
    mean, square = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = function([g, rate], updates={m: mean, v: square, w: w - rate * mean / (be.sqrt(square) + 1e-8)})
    for size in (0.1, 0.01):
        step(drawn(1, 67), np.float32(size))
    return [x.get() for x in (w, m, v)]


def _numbers(be: Any) -> Sequence[np.ndarray]:
    """Python numbers of every kind and size, and scalars that no element changes."""
    small, wide = np.array([0, 44, 255], np.uint8), np.array([0, 2**63 + 5], np.uint64)
    flags, v = be.array(np.array([True, False])), be.array(drawn(0, 2))
    trees = [
        be.array(small) == 300,
        be.array(small) > -1,
        be.array(small) + 200,
        be.array(wide, np.uint64) + (2**63 - 1),
        be.array(small, np.float64) * 10**30,
        be.where(be.array(small) > 1, True, False),
        be.logical_and(flags, 0.5),
        be.logical_and(v, float("nan")),
        v * (1 - 0.9 ** be.array(np.float32(3))),
    ]
    return [tree.asnumpyarray() for tree in trees]


def _turned(be: Any) -> Sequence[np.ndarray]:
    """Operands that are contiguous along another axis than the target: whole and partial tiles."""
    found = []
    for shape in ((64, 33), (40, 100), (17, 16), (3, 40, 35)):
        x = be.array(drawn(0, *shape))
        turned = be.transpose(x, (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
        y = be.array(drawn(1, *turned.shape), "float64")
        trees = (turned + y, be.sqrt(turned) * be.transpose(be.flat_indices(x)) if len(shape) == 2 else turned - 1)
        found += [tree.asnumpyarray() for tree in trees]
        y[:] = y * 2 + turned
        found.append(y.get())
    return found


def _draws(be: Any) -> Sequence[np.ndarray]:
    """Random numbers of every kind, some of them reduced at once."""
    be.rng_reset()
    x, y = be.array(drawn(0, 33, 70)), be.array(drawn(1, 9, 5), "float64")
    trees = (x * be.dropout_mask(x, 0.7), be.sum(be.rand(x), axis=1), be.sum(be.rand(x), axis=0), be.rand(y))
    return [tree.asnumpyarray() for tree in (*trees, be.standard_normal(x), be.standard_normal(y))]


def elementwise() -> dict[str, Trial]:
    """Layouts, loops, several outputs, targets and numbers."""
    runs = (
        _layouts,
        _ends,
        _many,
        _loops,
        _several,
        _in_place,
        _within,
        _unaligned,
        _updates,
        _numbers,
        _turned,
        _draws,
    )
    return {run.__name__.strip("_"): alike(run, 1e-5, 1e-6) for run in runs}


# Narrow dtypes


def narrow(dtype: np.dtype) -> dict[str, Trial]:
    """A narrow dtype with the values of NumPy, where each op rounds, and rounded once by kernels and in sums."""
    unit = float(finfo(dtype).eps)

    def by_each_op(be: Any, run: halves.Run) -> Sequence[np.ndarray]:
        with settings.override(rounding="each"):
            return run(be, dtype)

    found = {name: alike(partial(by_each_op, run=run), 0) for name, run in EXACT.items()}
    fused = partial(halves.fused, dtype=dtype)
    found["fused"] = alike(fused, unit, unit / 100, wanted=lambda be: halves.exact_fused(dtype))
    found.update((name, alike(partial(run, dtype=dtype), 4 * unit, 2 * unit)) for name, run in CLOSE.items())
    found["sums"] = alike(partial(sums, dtype=dtype), unit, wanted=lambda be: exact_sums(dtype))
    return found


# Random trees

LEAVES = ("float64", "float32", "int32", "bool", "int64", "uint8")


def _random(seed: int, size: int = 10) -> Trial:
    def tree_of(be: Any) -> tuple[Any, bool]:
        chance, exactness = random.Random(seed), Exactness()
        leaves = leaves_of(be, chance.choices(LEAVES, k=len(SHAPES)))
        tree = random_tree(chance.choice, leaves, size, USABLE, exactness.accepts)
        return tree, not exactness.is_rounded(tree)

    def run(be: Any) -> Sequence[np.ndarray]:
        tree, _ = tree_of(be)
        target = be.empty(tree.shape[::-1], tree.dtype).T
        target[...] = tree
        return [tree.asnumpyarray(), target.get()]

    def check(got: Sequence[np.ndarray]) -> None:
        found, exact = tree_of(plain(np.float64))
        if not isinstance(found, OpTreeNode):
            return
        wanted, largest = run_by_numpy(found)
        for array in got:
            assert_alike(array, wanted, found, largest, exact, 4 * size)

    return Trial(run, check)


def random_trees(most: int = 100) -> dict[str, Trial]:
    """Trees of fixed seeds."""
    return {str(seed): _random(seed) for seed in range(most)}
