"""Scans and sorting: zeros, ties and nan, sizes that a call tells, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from harness.homes import home

from optree import TensorType, function, grad
from optree.errors import AxisError, DTypeError, OperandError, ShapeError
from optree.registry import f


@pytest.mark.parametrize("zeros", [(), (0,), (2,), (1, 3), (4,)])
def test_products_so_far_have_a_gradient_at_zeros(be64, zeros):
    values = np.array([1.5, -2.0, 0.5, 3.0, -1.0])
    values[list(zeros)] = 0.0
    x, weights = be64.array(values), np.array([1.0, 2.0, -1.0, 0.5, 3.0])
    wanted = np.zeros(5)
    for i in range(5):
        moved = values.copy()
        moved[i] = 1.0  # the product is linear in each element
        wanted[i] = weights @ np.where(np.arange(5) >= i, np.cumprod(moved), 0.0)
    np.testing.assert_allclose(grad(be64.sum(be64.cumprod(x, axis=0) * weights), x).asnumpyarray(), wanted, atol=1e-12)


def test_a_long_recurrence_is_the_loops(be64):
    a, b = np.random.RandomState(0).uniform(-1, 1, (2, 1000))
    wanted = b.copy()
    for i in range(1, 1000):
        wanted[i] += a[i] * wanted[i - 1]
    np.testing.assert_allclose(be64.recurrence(be64.array(a), b).asnumpyarray(), wanted, atol=1e-13)
    average = be64.recurrence(0.9, be64.array(b) * 0.1)  # an exponential average: a number for each factor
    assert average.asnumpyarray()[1] == pytest.approx(0.09 * b[0] + 0.1 * b[1])


def test_many_float16_are_added_up_in_float32(be):
    x = be.full(3000, 1.0, "float16")
    assert be.cumsum(x, axis=0).dtype == np.float16 and be.cumsum(x, axis=0).asnumpyarray()[-1] == 3000


def test_nan_is_sorted_to_the_end_and_ties_keep_their_order(be):
    x = be.array([2.0, np.nan, 1.0, 2.0, -np.inf])
    assert be.sort(x).asnumpyarray()[:4].tolist() == [-np.inf, 1.0, 2.0, 2.0]
    assert be.argsort(x).asnumpyarray().tolist() == [4, 2, 0, 3, 1]


def test_a_sorted_elements_gradient_goes_where_it_came_from(be64):
    x = be64.array([[3.0, 1.0, 2.0], [5.0, 5.0, 4.0]])
    delta = np.array([[10.0, 20.0, 30.0], [1.0, 2.0, 3.0]])
    got = grad(be64.sum(be64.sort(x) * delta), x).asnumpyarray()
    assert got.tolist() == [[30.0, 10.0, 20.0], [2.0, 3.0, 1.0]]


@pytest.mark.parametrize(
    "build",
    [
        lambda m, x: m.cumsum(x, axis=0),
        lambda m, x: m.cumprod(x, axis=0),
        lambda m, x: m.sort(x, axis=0),
        lambda m, x: m.argsort(x, axis=0),
        lambda m, x: m.diff(x, axis=0),
        lambda m, x: m.tile(x, (2, 3)),
        lambda m, x: m.roll(x, 2, axis=1),
        lambda m, x: m.round(x, 1),
        lambda m, x: m.isclose(x, x),
    ],
)
def test_a_call_tells_sizes_that_are_open(be64, build):
    v = TensorType("float64", (None, 3))("v")
    tree = build(f, v)
    outputs = [tree] if tree.dtype.kind != "f" else [tree, grad(f.sum(tree * tree), v, disconnected_inputs="ignore")]
    run = function([v], outputs)
    for rows in (1, 4, 0):
        values = np.random.RandomState(rows).normal(size=(rows, 3))
        found, *slope = run(values)
        np.testing.assert_allclose(found.get(), build(np, values), rtol=1e-12)
        assert all(each.shape == values.shape for each in slope)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: np.quantile(x, [0.2, 0.9], axis=0),
        lambda x: np.percentile(x, [10, 50]),
        lambda x: np.quantile(x, [0.2, 0.9], axis=0, weights=x * x + 1, method="inverted_cdf"),
        lambda x: np.pad(x, 2, mode="linear_ramp", end_values=(1, 2)),
    ],
)
def test_several_quantiles_and_ramps_along_open_axes(be64, build):
    v = TensorType("float64", (None, 3))("v")
    run = function([v], build(v))
    for rows in (1, 4):
        values = np.random.RandomState(rows).normal(size=(rows, 3))
        np.testing.assert_allclose(run(values).get(), build(values), rtol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (lambda x: f.cumsum(x, axis=2), AxisError, "cumsum: axis 2 is out of range.* x"),
        (lambda x: f.diff(x, n=-1), OperandError, "diff: n is an integer of 0 or more, not -1"),
        (lambda x: f.round(x, 0.5), OperandError, "round: decimals is an integer, not 0.5"),
        (lambda x: f.round(x > 0, 2), DTypeError, "round: .* is bool, and has no decimals"),
        (lambda x: f.tile(x, -1), ShapeError, "tile: reps are 0 or more, not .*-1"),
        (lambda x: f.roll(x, (1, 2, 3), axis=(0, 1)), ShapeError, "roll: 3 shifts are given for 2 axes"),
        (lambda x: f.tile(TensorType("float32", (None, None))("v"), 2), ShapeError, "tile: of v .* size is open"),
        (lambda x: f.roll(TensorType("float32", (None,))("v"), 2, axis=0), ShapeError, "roll: the size of axis 0 of v"),
        (lambda x: f.recurrence(x, x, axis=3), AxisError, "recurrence: axis 3 is out of range"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_why(be, wrong, error, said):
    with pytest.raises(error, match=said):
        wrong(be.ones((2, 3), name="x"))


@pytest.mark.parametrize(("shape", "sizes"), [((None, 0), (3, 0)), ((0, None), (0, 2)), ((None, 3), (2, 3))])
@pytest.mark.parametrize("reps", [(2, 3), (2, 0), (0, 2), (1, 2), (2, 1), (3,), (2, 1, 2)])
def test_an_open_size_is_tiled_where_there_are_no_elements(be64, shape, sizes, reps):
    v, values = TensorType("float64", shape)("v"), np.arange(float(np.prod(sizes))).reshape(sizes)
    found = function([v], f.tile(v, reps))(values).get()
    assert np.array_equal(found, np.tile(values, reps)) and found.shape == np.tile(values, reps).shape


@pytest.mark.parametrize("columns", [(), (2,), (40,)])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("link", [1e200, 1e-200, 0.0])
def test_products_of_a_recurrences_links_may_leave_the_floats(home_kind, link, reverse, columns):
    a, b = np.full((9, *columns), link), np.zeros((9, *columns))
    a[4], b[7 if reverse else 1] = (1e300 if link == 1e-200 else 1e-300), (1e300 if link == 1e-200 else 1e-300)
    a[2 if reverse else 6] = 1e-250
    wanted, rows = b.copy(), list(range(9))[:: -1 if reverse else 1]
    for last, i in pairwise(rows):
        wanted[i] += a[last if reverse else i] * wanted[last]
    assert np.isfinite(wanted).all() and (link == 0 or wanted[4].all())
    be = home(home_kind, datatype=np.float64)
    tree = f.recurrence(be.array(a), be.array(b), axis=0, reverse=reverse)
    np.testing.assert_allclose(tree.asnumpyarray(), wanted, rtol=1e-12)


def test_what_no_cost_reads_of_a_product_may_overflow(be64):
    for values, cost in (
        (np.full(6, 1e200), lambda x: be64.sum(be64.cumprod(x, axis=0).at[:1])),
        (np.full(6, 1e-200), lambda x: be64.sum(be64.cumprod(x, axis=0).at[:1])),
        (np.full(6, 1e200), lambda x: be64.sum(be64.recurrence(x, np.array([0, 0, 0, 0, 0, 1.0])))),
        (np.full(6, 1e200), lambda x: be64.sum(be64.recurrence(x, np.ones(6)).at[:1])),
    ):
        x = be64.array(values)
        gradient = grad(cost(x), x).asnumpyarray()
        assert np.isfinite(gradient).all()
    x = be64.array(np.full(6, 1e200))
    assert grad(be64.sum(be64.cumprod(x, axis=0).at[:1]), x).tolist() == [1, 0, 0, 0, 0, 0]


def test_the_gradient_of_an_extreme_so_far_is_the_latest_equals(be64):
    x = be64.array([1.0, 3.0, 3.0, 2.0, 5.0])
    weights = np.array([1.0, 10.0, 100.0, 1000.0, 1e4])
    assert grad(be64.sum(be64.cummax(x, axis=0) * weights), x).tolist() == [1, 10, 1100, 0, 1e4]
    assert grad(be64.sum(be64.cummin(-x, axis=0) * weights), x).tolist() == [-1, -10, -1100, 0, -1e4]
