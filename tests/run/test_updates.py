"""A function's updates: all of them or none, from values of before, however the function runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from harness.blocks import in_blocks

from backends import gen_backend
from backends.cpu.compiler import find_compiler
from optree import function
from optree.errors import OptreeError

WAYS = ("kernels", "blocks", "NumPy", "reference", "debug")


@pytest.fixture(params=WAYS)
def way(request: Any) -> str:
    if request.param == "kernels" and find_compiler() is None:
        pytest.skip("no C compiler")
    return str(request.param)


@pytest.fixture
def be(way: str) -> Iterator[Any]:
    if way == "blocks":
        with in_blocks() as backend:
            yield backend
    else:
        yield gen_backend("cpu", jit=way == "kernels")


@pytest.fixture
def updating(way: str) -> Any:
    mode = way if way in ("reference", "debug") else None
    return lambda outputs, updates: function([], outputs, updates, mode=mode)


def test_they_are_made_together(be, updating):
    a, b = be.array([1.0, 2.0], name="a"), be.array([3.0, 5.0], name="b")
    step = updating(a + b, {a: b * 2, b: a * 3})
    np.testing.assert_array_equal(step().get(), [4, 7])
    np.testing.assert_array_equal(a.get(), [6, 10])
    np.testing.assert_array_equal(b.get(), [3, 6])


def test_integers_wrap_around_whatever_their_rank(be, updating):
    """NumPy's own scalars are refused where its arrays are not."""
    for shape in ((), (3,)):
        x = be.array(np.full(shape, 126), dtype="uint8", name="x")
        total, small = be.zeros(shape, name="total"), be.zeros(shape, dtype="int8", name="small")
        updating(None, {total: total + 1, small: x + x})()
        assert (small.get() == -4).all()
        assert (total.get() == 1).all()
        small[...] = x + x + 1
        assert (small.get() == -3).all()


def failing(be: Any, name: str) -> tuple[Any, Any]:
    """An update whose value refuses what it is given."""
    if name == "a negative power":
        counts = be.array(np.array([2, 3]), name="counts")
        return counts, counts ** be.array(np.array([1, -1]), name="powers")
    row = be.zeros(1, name="row")
    return row, be.take(be.exp(be.zeros(4, name="x")), be.array(np.array([9]), name="places"))


@pytest.mark.parametrize("name", ["a negative power", "an index outside"])
@pytest.mark.parametrize("last", [True, False])
def test_one_that_fails_leaves_the_others_undone(be, updating, name, last):
    x, total = be.zeros(4, name="x"), be.zeros(1, name="total")
    sure = [(x, be.exp(x)), (total, be.sum(be.exp(x)) + total)]
    step = updating(None, [*sure, failing(be, name)] if last else [failing(be, name), *sure])
    with pytest.raises((ValueError, IndexError, OptreeError)):
        step()
    assert not x.get().any()
    assert not total.get().any()


def test_an_output_that_fails_leaves_them_undone(be, updating):
    a = be.zeros(4, name="a")
    step = updating(be.take(a, be.array(np.array([9]), name="places")), {a: a + 1})
    with pytest.raises(OptreeError):
        step()
    assert not a.get().any()


def test_one_that_could_run_before_what_fails_waits_for_it(be, updating):
    x, w, product, logs = be.ones(4, name="x"), be.ones((2, 2), name="w"), be.zeros((2, 2)), be.zeros(4)
    fails = be.take(be.exp(x), be.array(np.array([9]), name="places"))
    step = updating(fails, {product: be.dot(w, w), logs: be.log(x) + 1})  # fused, exp and log come after the product
    with pytest.raises(OptreeError):
        step()
    assert not product.get().any()
    assert not logs.get().any()
