"""Empty operands: every function beside a scalar that the same kernels store, in every executor."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest
from fuzz import SETTINGS, WAYS
from harness.compiling import needs_compiler
from harness.drawn import Call, calls
from harness.each import for_each

from optree import TensorType, function
from optree.errors import OptreeError
from optree.registry import f
from optree.testing.comparison import compare, scale_of
from optree.testing.examples import Example
from optree.tree.variable import Input

#: The fuzzer's executors, without those that repeat another on empty arrays, or that are slow.
EXECUTORS = [
    pytest.param("kernels", marks=needs_compiler),
    pytest.param("numpy"),
    pytest.param("stand-in"),
]

#: Those that are no kernels.
IN_TURN = ("numpy", "stand-in")

_backend = cache(lambda way: WAYS[way]())


def running(way: str) -> AbstractContextManager[Any]:
    """The settings of an executor."""
    return SETTINGS.get(way, nullcontext)()


def emptied(example: Example) -> Iterator[Example]:
    """An example with each of its operands empty along each axis: alone, and all axes of that size together."""
    found = {}
    for i, shape in enumerate(example.operands):
        for axis, size in enumerate(shape) if isinstance(shape, tuple) else ():
            alone = list(example.operands)
            alone[i] = (*shape[:axis], 0, *shape[axis + 1 :])
            together = [
                tuple(0 if n == size else n for n in x) if isinstance(x, tuple) else x for x in example.operands
            ]
            found.update((str(each), each) for each in (alone, together))
    for operands in found.values():
        yield example._replace(operands=tuple(operands))


def value_of(call: Call, example: Example, values: list[Any]) -> np.ndarray | None:
    """The value of a function on empty operands; None where NumPy or the op refuses them."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            return np.asarray(call.meaning(*values))
        except (ValueError, IndexError, TypeError, RuntimeError, ArithmeticError):
            return None


def check_beside_a_scalar(be: Any, call: Call, example: Example, by_function: bool) -> bool:
    """Compare a function of empty operands, and the scalars beside it; False where NumPy or the op refuses them."""
    values = example.draw(None if example.takes_floats else np.int64)
    wanted = value_of(call, example, values)
    if wanted is None:
        return False
    scalar = be.array(np.array(3.0)) * be.array(np.array(5.0))
    one = scalar - 14.0
    operands = [be.array(x, x.dtype) if isinstance(x, np.ndarray) else x for x in values]
    try:
        made = example.tree([x * one if getattr(x, "dtype", None) == np.float64 else x for x in operands])
        trees = [scalar, made, f.add(made, scalar), one]
        got = function([], trees)() if by_function else be.evaluate(trees)
    except OptreeError:
        return False
    compare(got[0].get(), np.float64(15.0), example, "the scalar beside it")
    compare(got[1].get(), wanted, example, "its value", ulps=call.ulps, scale=scale_of(example, values))
    compare(got[2].get(), wanted + np.float64(15.0), example, "its sum", ulps=call.ulps, scale=15.0)
    compare(got[3].get(), np.float64(1.0), example, "the factor beside it")
    return True


@pytest.mark.parametrize("way", EXECUTORS)
@for_each("name", sorted(calls()), sampled=True)
def test_a_scalar_beside_empty_operands(name: str, way: str) -> None:
    """Each case by kernels, and by one other executor in turn; by `evaluate` and by a function in turn."""
    cases = [(call, example) for call in calls()[name] for example in emptied(call.example)]
    if way in IN_TURN:
        cases = cases[IN_TURN.index(way) :: len(IN_TURN)]
    with running(way):
        for number, (call, example) in enumerate(cases):
            check_beside_a_scalar(_backend(way), call, example, number % 2 == 1)


@pytest.mark.parametrize("way", [*EXECUTORS, pytest.param("gpu", marks=pytest.mark.on_the_rig)])
@pytest.mark.parametrize("shape", [(2, 0), (0,), (0, 3)])
def test_a_scalar_that_an_empty_array_is_computed_with(shape: tuple[int, ...], way: str) -> None:
    """The scalar is stored, not left as the memory was: by `evaluate`, a function, arrays, and beside a reduction."""
    be = _backend(way)
    with running(way):
        scalar = be.array(np.array(3.0)) * be.array(np.array(5.0))
        empty = be.zeros(shape)
        for made in (empty - scalar, f.sum(empty, axis=0) * scalar, f.sum(empty - scalar, axis=-1)):
            got, _ = be.evaluate([scalar, made])
            assert got.get() == 15.0
        x = Input(TensorType(np.float64, (None,) * len(shape)), "x")
        step = function([x], [scalar, x - scalar])
        for values in (np.ones([max(n, 1) for n in shape]), np.zeros(shape), np.ones([n + 2 for n in shape])):
            one, rest = step(be.array(values, np.float64))
            assert one.get() == 15.0
            np.testing.assert_array_equal(rest.get(), values - 15.0)
        a = be.xp.asarray(3.0) * be.xp.asarray(5.0)
        b = be.xp.zeros(shape) - a
        assert np.asarray(b).shape == shape
        assert float(a) == 15.0
