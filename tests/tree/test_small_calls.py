"""Small arrays, where a line costs what Python does around the work: bounds on the Python functions that it enters."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from harness.calls import calls_of
from harness.compiling import needs_compiler

import optree
from backends import Backend, gen_backend
from optree.errors import AxisError, ShapeError
from optree.registry import f

#: Values that a mean of neighbours changes.
SQUARES = np.arange(10.0) ** 2


@pytest.fixture(scope="module")
def be() -> Backend:
    return gen_backend("cpu", jit=True)


def warm(run: Callable[[], Any]) -> list[str]:
    """The functions that a line enters when it has run before."""
    for _ in range(3):
        run()
    return calls_of(run)


def assigned(target: Any, index: Any, value: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        target[index] = value()

    return run


def kept(be: Backend, tree: Any) -> Callable[[], None]:
    return assigned(be.empty(tree.shape), slice(None), lambda: tree)


#: From lines, of a backend, two vectors of ten and a matrix, to the most functions that they enter with Python 3.11,
#: whose comprehensions are functions.
LINES: dict[str, tuple[Callable[..., Callable[[], Any]], int]] = {
    "o[:] = a + 1": (lambda be, a, o, m: assigned(o, slice(None), lambda: a + 1), 13),
    "o[:] = a tree again": (lambda be, a, o, m: assigned(o, slice(None), partial(lambda tree: tree, a + 1)), 10),
    "o[2:5] = a[1:4] + 1": (lambda be, a, o, m: assigned(o, slice(2, 5), lambda: a[1:4] + 1), 29),
    "a[3] = 1.0": (lambda be, a, o, m: assigned(a, 3, lambda: 1.0), 13),
    "a[3]": (lambda be, a, o, m: lambda: a[3], 8),
    "m[:, None]": (lambda be, a, o, m: lambda: m[:, None], 8),
    "(m + m).at[:, 1]": (lambda be, a, o, m: lambda: (m + m).at[:, 1], 17),
    "m.T": (lambda be, a, o, m: lambda: m.T, 8),
    "m.reshape(16)": (lambda be, a, o, m: lambda: m.reshape(16), 14),
    "(a + 1).astensor()": (lambda be, a, o, m: lambda: (a + 1).astensor(), 18),
    "be.sum(m, 1)": (lambda be, a, o, m: lambda: be.sum(m, 1), 4),
    "f.where(m, m, 0.0)": (lambda be, a, o, m: lambda: f.where(m, m, 0.0), 5),
    "np.diagonal(m)": (lambda be, a, o, m: lambda: np.diagonal(m), 54),
    "m[:] = m @ m": (lambda be, a, o, m: assigned(m, slice(None), lambda: m @ m), 14),
    "a kept np.trace(m)": (lambda be, a, o, m: kept(be, np.trace(m)), 10),
    "a kept np.ones_like(m)": (lambda be, a, o, m: kept(be, np.ones_like(m)), 10),
    "a kept np.take(m, rows, 0)": (lambda be, a, o, m: kept(be, np.take(m, [1, 0], axis=0)), 25),
    "a kept np.delete(m, 1, 1)": (lambda be, a, o, m: kept(be, np.delete(m, 1, axis=1)), 26),
    "a kept np.insert(m, 1, 0, 0)": (lambda be, a, o, m: kept(be, np.insert(m, 1, 0, axis=0)), 30),
    "a kept np.append(m, a)": (lambda be, a, o, m: kept(be, np.append(m, a)), 26),
    "xp: x + 1": (lambda be, a, o, m: lazily(be, lambda xp, x: x + 1), 7),
    "xp: (x + 1).tensor": (lambda be, a, o, m: lazily(be, lambda xp, x: (x + 1).tensor), 25),
    "xp: float(xp.sum(x))": (lambda be, a, o, m: lazily(be, lambda xp, x: float(xp.sum(x))), 48),
    "xp: x[:] = x * 0.5": (lambda be, a, o, m: lazily(be, lambda xp, x: x.__setitem__(slice(None), x * 0.5)), 32),
}


def lazily(be: Backend, run: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    x = be.xp.asarray(np.arange(10.0, dtype="float32"))
    return lambda: run(be.xp, x)


@needs_compiler
@pytest.mark.parametrize("line", LINES)
def test_a_small_line_enters_few_functions(line: str, be: Backend) -> None:
    make, most = LINES[line]
    found = warm(make(be, be.ones(10), be.empty(10), be.ones((4, 4))))
    assert len(found) <= most, found


@needs_compiler
def test_a_target_that_overlaps_what_is_read_is_as_quick(be: Backend) -> None:
    u, wanted = be.array(SQUARES), SQUARES.astype("float32")

    def step() -> None:
        u[1:9] = (u[2:] + u[:8]) * 0.5

    for _ in range(3):
        step()
        wanted[1:9] = (wanted[2:] + wanted[:8]) * np.float32(0.5)
    found = calls_of(step)
    assert "specialize" not in found, "it looks at the arrays' layouts again"
    wanted[1:9] = (wanted[2:] + wanted[:8]) * np.float32(0.5)
    np.testing.assert_array_equal(u.get(), wanted)


@needs_compiler
def test_what_has_overlapped_is_computed_in_its_target_where_it_does_not(be: Backend) -> None:
    u, o = be.array(SQUARES), be.zeros(10)
    for target in (u, o, u, o):

        def step(target: Any = target) -> None:
            target[1:9] = (u[2:] + u[:8]) * 0.5

        before = u.get()
        step()
        np.testing.assert_array_equal(target.get()[1:9], (before[2:] + before[:8]) * np.float32(0.5))
        assert ("_has_run_apart" in calls_of(step)) == (target is u), "new memory for the value where it overlaps alone"


@needs_compiler
def test_a_view_that_is_broadcast_over_its_target_alone_asks_for_no_shapes(be: Backend) -> None:
    values = np.arange(16.0, dtype="float32").reshape(4, 4)
    tree = np.diagonal(be.array(values))

    def step(target: Any) -> None:
        target[:] = tree

    for shape in ((2, 4), (3, 4), (4,), (2, 4), (3, 4)):
        target = be.zeros(shape)
        for _ in range(3):
            step(target)
        np.testing.assert_array_equal(target.get(), np.broadcast_to(np.diagonal(values), shape))
        assert "input_shapes" not in calls_of(lambda target=target: step(target))  # type: ignore[misc]


@needs_compiler
def test_an_overlapping_update_of_a_function_is_as_quick(be: Backend) -> None:
    u, wanted = be.array(SQUARES), SQUARES.astype("float32")
    step = optree.function([], updates=[(u[1:9], (u[2:] + u[:8]) * 0.5)])
    for _ in range(4):
        step()
        wanted[1:9] = (wanted[2:] + wanted[:8]) * np.float32(0.5)
    assert not {"specialize"} & set(calls_of(step))
    wanted[1:9] = (wanted[2:] + wanted[:8]) * np.float32(0.5)
    np.testing.assert_array_equal(u.get(), wanted)


def test_parameters_are_told_apart_by_their_classes(be: Backend) -> None:
    m = be.ones((1, 4))
    assert f.reshape(m, (1, 4)).shape == f.reshape(m, (1, -1)).shape == (1, 4)
    with pytest.raises(ShapeError, match="a shape is of integers"):
        f.reshape(m, (True, 4))
    assert f.transpose(m, (1, 0)).shape == (4, 1)
    with pytest.raises(AxisError, match="an axis is an integer"):
        f.transpose(m, (1.0, 0.0))
    assert f.sum(m, 1, True).shape == (1, 1) and f.sum(m, 1, False).shape == (1,)
    assert f.sum(m, 1, 0).shape == (1,) and f.sum(m, axis=1).shape == f.sum(x=m, axis=1).shape


def test_an_index_is_cached_by_what_it_selects(be: Backend) -> None:
    values = np.arange(12.0, dtype="float32").reshape(3, 4)
    x, entries = be.array(values), [0, -1, slice(None), slice(0, 2), slice(None, None, -1), None, Ellipsis]
    indices = [*entries, *((i, j) for i in entries for j in entries if not i is j is Ellipsis)]
    for index in [*indices, *indices]:
        np.testing.assert_array_equal(x[index].get(), values[index])
        np.testing.assert_array_equal((x * 1).at[index].asnumpyarray(), values[index])
    with pytest.raises(AxisError):
        x[0, 0, 0]
    with pytest.raises(AxisError):
        x[0, 0, 0]


@needs_compiler
def test_a_call_of_jit_is_looked_up_by_its_tensors_alone(be: Backend) -> None:
    step = optree.jit(lambda x, y: x @ y + 1)
    arguments = be.ones((4, 4)), be.ones((4, 4), "float64"), be.ones((4, 1))
    for x, y in product(arguments, arguments[:2]):
        if x.shape[1] == y.shape[0]:
            found = warm(lambda x=x, y=y: step(x, y))  # type: ignore[misc]
            assert "bind" not in found and len(found) <= 26, found
            assert step(x, y).dtype == np.result_type(x.dtype, y.dtype)
            np.testing.assert_array_equal(step(x, be.xp.asarray(y)).get(), np.full((4, 4), 5))
    assert len(step.functions) == 4


class _Cycle:
    """A reference cycle, which enters a Python function when the garbage collector frees it."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        pass


def test_functions_that_the_garbage_collector_enters_are_not_counted() -> None:
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        found = calls_of(lambda: any(_Cycle() is None for _ in range(10)))
    finally:
        gc.set_threshold(*threshold)
    assert found.count("__init__") == 10 and "__del__" not in found
