"""Elementwise ops where the promises made of every op do not reach: kinks, ends, operators, names, refusals."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from harness.homes import home

from backends import gen_backend
from backends.cpu.compiler import find_compiler
from optree.autodiff.api import grad
from optree.errors import DTypeError, NumberOverflowError, OperandError, ShapeError
from optree.registry import f

INF, NAN = np.inf, np.nan


def derivatives(be: Any, function: Any, *values: Any, order: int = 1) -> list[list[float]]:
    """The derivatives of a sum of function values, by each of its operands, `order` times by the first."""
    operands = [be.array(value) for value in values]
    tree = f.sum(function(*operands))
    for _ in range(order - 1):
        tree = f.sum(grad(tree, operands[0], disconnected_inputs="ignore"))
    return [x.asnumpyarray().tolist() for x in grad(tree, operands, disconnected_inputs="ignore")]


# Derivatives at kinks and ends

KINKS = {
    "abs": (lambda x: abs(x), [-2.0, 0.0, 3.0, -INF], [-1, 0, 1, -1]),
    "relu": (f.relu, [-1.0, 0.0, 2.0, INF, -INF, NAN], [0, 0, 1, 1, 0, 0]),
    "sqrt": (f.sqrt, [0.0, 4.0, INF], [INF, 0.25, 0]),
    "clip": (lambda x: f.clip(x, 0, 1), [-1.0, 0.0, 0.5, 1.0, 2.0, -INF, INF], [0, 0.5, 1, 0.5, 0, 0, 0]),
    "safelog": (f.safelog, [-1.0, 0.0, 1e-30, 2.0, INF], [0, 0, 0, 0.5, 0]),
    "sig": (f.sig, [-1000.0, 0.0, 1000.0, INF, -INF], [0, 0.25, 0, 0, 0]),
    "sig2": (f.sig2, [-2000.0, 2000.0, INF, -INF], [0, 0, 0, 0]),
    "tanh": (f.tanh, [-1000.0, 1000.0, INF, -INF], [0, 0, 0, 0]),
    "tanh2": (f.tanh2, [-1000.0, 1000.0, INF, -INF], [0, 0, 0, 0]),
    "erf": (f.erf, [-100.0, 100.0, INF, -INF], [0, 0, 0, 0]),
    "arctan": (f.arctan, [1e200, INF, -INF], [0, 0, 0]),
    "where": (lambda x: f.where(x > 0, f.log(f.where(x > 0, x, 1)), 0), [-1.0, 0.0, 2.0], [0, 0, 0.5]),
    "x ** 0": (lambda x: x**0, [-1.0, 0.0, 2.0, INF], [0, 0, 0, 0]),
    "x ** 1": (lambda x: x**1, [-1.0, 0.0, 2.0, INF], [1, 1, 1, 1]),
    "x ** 2": (lambda x: x**2, [-1.0, 0.0, 2.0, INF], [-2, 0, 4, INF]),
    "x ** 3.0": (lambda x: x**3.0, [-2.0, 0.0, 2.0], [12, 0, 12]),
    "x ** -1": (lambda x: x**-1, [-2.0, 0.0, 2.0], [-0.25, -INF, -0.25]),
    "x ** 0.5": (lambda x: x**0.5, [0.0, 4.0], [INF, 0.25]),
    "2 ** x": (lambda x: 2**x, [0.0, -INF], [np.log(2), 0]),
    "0 ** x": (lambda x: 0**x, [-1.0, 0.0, 2.0], [-INF, 0, 0]),
    "0.0 ** x": (lambda x: 0.0**x, [0.0, 2.0], [0, 0]),
    "mod": (lambda x: x % 3, [-4.0, 3.0, 4.0], [1, 1, 1]),
    "3 mod x": (lambda x: 5.0 % x, [2.0, -2.0], [-2, 3]),
    "floor": (f.floor, [0.5], [0]),
}


@pytest.mark.parametrize("name", KINKS)
def test_derivatives_at_kinks_and_ends(name: str, be64: Any) -> None:
    function, places, wanted = KINKS[name]
    (got,) = derivatives(be64, function, np.array(places))
    np.testing.assert_allclose(got, wanted, rtol=1e-15)


POWERS = [  # x, y, d/dx, d/dy
    (0.0, 0.0, 0.0, 0.0),
    (0.0, 1.0, 1.0, 0.0),
    (0.0, 2.0, 0.0, 0.0),
    (0.0, 0.5, INF, 0.0),
    (0.0, -1.0, -INF, -INF),
    (2.0, 0.0, 0.0, np.log(2)),
    (-2.0, 0.0, 0.0, NAN),
    (-2.0, 2.0, -4.0, NAN),
    (-2.0, 3.0, 12.0, NAN),
    (1.0, 5.0, 5.0, 0.0),
    (INF, 0.0, 0.0, INF),
]


def test_the_derivatives_of_a_power_are_finite_where_they_exist(be64: Any) -> None:
    x, y, by_x, by_y = np.array(POWERS).T
    got = derivatives(be64, f.pow, x, y)
    np.testing.assert_allclose(got, [by_x, by_y], rtol=1e-15)


@pytest.mark.parametrize(("exponent", "wanted"), [(0, 0), (1, 0), (2, 2), (3, 0), (4.0, 0)])
def test_the_second_derivative_of_a_power_at_zero(exponent: Any, wanted: float, be64: Any) -> None:
    zero = np.array([0.0])
    assert derivatives(be64, lambda x: x**exponent, zero, order=2) == [[wanted]]
    by_tensor = derivatives(be64, f.pow, zero, np.array([float(exponent)]), order=2)
    assert by_tensor[0] == [wanted]


@pytest.mark.parametrize(
    ("function", "places", "wanted"),
    [
        (f.relu, [-1.0, 0.0, 2.0], [0, 0, 0]),
        (f.safelog, [0.0, 2.0], [0, -0.25]),
        (abs, [0.0, 1.0], [0, 0]),
        (lambda x: f.maximum(x, 0.0), [0.0, 1.0], [0, 0]),
        (lambda x: f.hypot(x, 0.0), [0.0, 2.0], [1, 0]),
        (lambda x: f.arctan2(x, 0.0), [0.0, 2.0], [0, 0]),
    ],
)
def test_no_second_derivative_at_a_kink_is_nan(function: Any, places: Any, wanted: Any, be64: Any) -> None:
    np.testing.assert_allclose(derivatives(be64, function, np.array(places), order=2), [wanted], atol=1e-15)


def test_lengths_and_angles_at_the_origin_have_derivatives_of_zero(be64: Any) -> None:
    zero = np.zeros(1)
    assert derivatives(be64, f.hypot, zero, zero) == [[0.0], [0.0]]
    assert np.abs(derivatives(be64, f.arctan2, zero, zero)).tolist() == [[0.0], [0.0]]


def test_lengths_and_angles_do_not_overflow_on_the_way(be64: Any) -> None:
    huge = np.array([3e200]), np.array([4e200])
    np.testing.assert_allclose(derivatives(be64, f.hypot, *huge), [[0.6], [0.8]])
    np.testing.assert_allclose(derivatives(be64, f.arctan2, *huge), [[0.8 / 5e200], [-0.6 / 5e200]])
    np.testing.assert_allclose(derivatives(be64, f.arcsinh, np.array([1e200])), [[1e-200]])
    np.testing.assert_allclose(derivatives(be64, f.arccosh, np.array([1e200])), [[1e-200]])
    np.testing.assert_allclose(derivatives(be64, lambda x, y: x / y, *huge), [[0.25e-200], [-0.1875e-200]])


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_ties_share_the_gradient_and_in_neon_each_has_all_of_it(name: str) -> None:
    function = getattr(f, name)
    x, y = np.array([[1.0, 2.0, 3.0, INF]]), np.array([[1.0, 5.0, -3.0, INF]])
    wins = np.array([[0, 0, 1, 0]]) if name == "maximum" else np.array([[0, 1, 0, 0]])
    ties = np.array([[1, 0, 0, 1]])
    for mode, part in ((None, 0.5), ("neon", 1.0)):
        be = gen_backend("cpu", compat_mode=mode)
        by_x, by_y = derivatives(be, function, x, y)
        np.testing.assert_array_equal(by_x, wins + part * ties)
        np.testing.assert_array_equal(by_y, 1 - wins - ties + part * ties)


def test_an_inf_in_what_is_filled_or_chosen_away_makes_no_nan(be64: Any) -> None:
    x, value = np.array([INF, NAN, 1.0]), np.array(2.0)
    by_value = derivatives(be64, lambda v, x: f.fill_like(x, v) + 0 * f.where(True, v, x), value, x)
    assert by_value == [3.0, [0.0, 0.0, 0.0]]


# Values


def test_erf_is_accurate_to_a_few_units_in_the_last_place() -> None:
    erf = np.vectorize(lambda x: float(mpmath.erf(float(x))))
    x = np.concatenate([np.linspace(-6.5, 6.5, 2001), 10.0 ** np.linspace(-320, 1, 400), [0.46875, 4.0, 0.5]])
    wanted, got = erf(x), f.erf(x).op.value(x)
    assert np.max(np.abs(got - wanted) / np.spacing(np.abs(wanted))) <= 2
    narrow = x.astype(np.float32)
    wanted, got = erf(narrow).astype(np.float32), f.erf(narrow).op.value(narrow)
    assert got.dtype == np.float32
    assert np.max(np.abs(got - wanted) / np.spacing(np.abs(wanted))) <= 1


def test_erf_of_special_values() -> None:
    x = np.array([0.0, -0.0, INF, -INF, NAN, 1e300, -5e-324])
    got = f.erf(x).op.value(x)
    np.testing.assert_array_equal(got, [0.0, -0.0, 1, -1, NAN, 1, -5e-324])
    assert np.signbit(got[:2]).tolist() == [False, True]


def test_sig_keeps_its_digits_at_both_ends() -> None:
    x = np.array([-744.0, -700.0, -40.0, 0.0, 40.0, 800.0, -INF, INF])
    wanted = [float(1 / (1 + mpmath.exp(-mpmath.mpf(v)))) for v in x]
    np.testing.assert_allclose(f.sig(x).op.value(x), wanted, rtol=1e-15)
    narrow = np.array([-95.0], np.float32)
    assert 0 < f.sig(narrow).op.value(narrow)[0] < 1e-40


def test_safelog_ends_at_minus_50(be: Any) -> None:
    x = np.array([0.0, -3.0, 1e-30, 1.0, np.nan])
    np.testing.assert_allclose(be.safelog(be.array(x)).asnumpyarray(), [-50, -50, -50, 0, NAN], rtol=1e-6)
    half = be.array(x, dtype=np.float16)
    np.testing.assert_allclose(be.safelog(half).asnumpyarray(), [-50, -50, -50, 0, NAN])


def test_shift_takes_a_factor_to_a_power_of_two_or_an_exponent(be: Any) -> None:
    a, b = be.array([1.0, 3.0, 5.0, 7.0]), be.array([3.0, -0.3, 0.0, 4.0])
    assert be.shift(a, b).asnumpyarray().tolist() == [4.0, -0.75, 0.0, 28.0]
    assert be.shift(a, b, value=False).asnumpyarray().tolist() == [8.0, 3 * np.float32(2**-0.3), 5.0, 112.0]
    assert be.shift(a, -3).asnumpyarray().tolist() == [-4.0, -12.0, -20.0, -28.0]
    assert be.shift(a, 0).asnumpyarray().tolist() == [0.0] * 4
    assert be.shift(a, 2, value=False).asnumpyarray().tolist() == [4.0, 12.0, 20.0, 28.0]
    for tree in (be.shift(a, b), be.shift(a, 3), be.shift(a, 2, value=False)):
        assert tree.dtype == np.float32


def test_clip_is_numpys(be: Any) -> None:
    x = np.array([-2.0, 0.5, 3.0, NAN], np.float32)
    t = be.array(x)
    for bounds in ((0, 1), (None, 1), (0, None), (2, 1), (np.array([0, 1, 2, 3], np.float32), 2.5)):
        np.testing.assert_array_equal(be.clip(t, *bounds).asnumpyarray(), np.clip(x, *bounds))
        np.testing.assert_array_equal(np.clip(t, *bounds).asnumpyarray(), np.clip(x, *bounds))
    np.testing.assert_array_equal(np.clip(t, max=1).asnumpyarray(), np.clip(x, None, 1))
    assert be.clip(be.array(np.array([5, 200], np.uint8)), -1, 300).asnumpyarray().tolist() == [5, 200]
    assert be.clip(t, None, None) is t


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float16", "float32", "float64"])
def test_the_dtype_of_clip_is_numpys(be: Any, dtype: str) -> None:
    """A number takes the dtype of the other two: 0.5 between int8 and float32 is no float64."""
    x = np.ones(2, dtype)
    for other in ("bool", "int8", "uint8", "int64", "float16", "float32", "float64"):
        bound = np.zeros(2, other)
        for bounds in ((0.5, bound), (bound, 0.5), (0, bound), (bound, 2), (bound, bound), (bound, None), (0.0, 1)):
            ours = [be.array(b, other) if b is bound else b for b in bounds]
            wanted = np.clip(x, *bounds)
            found = np.clip(be.array(x, dtype), *ours)
            assert found.dtype == wanted.dtype, bounds
            np.testing.assert_array_equal(found.asnumpyarray(), wanted)
    assert np.clip(2, be.zeros(3, "int8"), be.ones(3, "float32")).dtype == np.float64  # NumPy makes an array of 2


def test_a_cast_names_its_dtype(be: Any) -> None:
    x = be.array([1.5, -2.5, 0.0])
    for dtype in ("float64", np.int8, bool, np.dtype("float16")):
        wanted = x.get().astype(dtype)
        for tree in (be.cast(x, dtype), x.astype(dtype)):
            assert tree.dtype == wanted.dtype
            assert tree.asnumpyarray().tolist() == wanted.tolist()
    assert be.cast(x, "float64").op == be.cast(x, np.float64).op
    with pytest.raises(DTypeError, match="give the dtype"):
        be.cast(x)
    with pytest.raises(DTypeError, match="longdouble|float128"):
        be.cast(x, np.longdouble)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("given", ["float16", "float32", "float64"])
def test_negative_floats_wrap_in_unsigned_dtypes_in_kernels_too(given: str, dtype: str) -> None:
    """Which C leaves open: a value must not change when a kernel takes over."""
    values = np.array([-50.0, -1.0, -0.5, 3.0, 65504.0 if dtype != "uint8" else 200.0], given)
    wide = dtype == "uint64" and given != "float16"
    values = np.append(values, np.array([2.0**63, 2.0**63 + 2.0**41, -(2.0**62)] if wide else [], given))
    wanted = [int(v) % (1 << 8 * np.dtype(dtype).itemsize) for v in values]
    for jit in ("auto", True) if find_compiler() else ("auto",):
        be = gen_backend("cpu", jit=jit)
        x, target = be.array(values), be.zeros(len(values), dtype)
        tree = be.cast(x * 1.0, dtype)
        for _ in range(3):
            assert tree.asnumpyarray().tolist() == wanted
        be.assign(target, be.cast(x, dtype)).execute()
        assert target.get().tolist() == wanted


def test_fill_like_takes_one_value_that_fits(be: Any) -> None:
    x, whole = be.ones((2, 3)), be.array(np.array([1, 2]))
    assert be.fill_like(x, be.array(np.float32(3))).asnumpyarray().tolist() == [[3] * 3] * 2
    assert be.fill_like(whole, 7).dtype == np.int64
    with pytest.raises(DTypeError, match="fill_like"):
        be.fill_like(whole, 0.5)
    with pytest.raises(ShapeError, match="one element is wanted"):
        be.fill_like(x, x)
    with pytest.raises(NumberOverflowError):
        be.fill_like(be.array(np.array([1], np.int8)), 1000)


def test_broadcast_like_refuses_what_does_not_broadcast(be: Any) -> None:
    x = be.ones((2, 3))
    for like in (be.ones((3,)), be.ones((2, 1)), be.ones((2, 4))):
        with pytest.raises(ShapeError, match="broadcast"):
            be.broadcast_like(x, like)


def test_where_takes_any_condition_for_its_truth(be: Any) -> None:
    x = be.array([1.0, 2.0, 3.0])
    for condition in ([0.0, NAN, -1.0], np.array([0, 2, -1]), np.array([False, True, True])):
        assert be.where(be.array(condition), x, 0).asnumpyarray().tolist() == [0, 2, 3]
    assert be.where(True, x, 0).asnumpyarray().tolist() == [1, 2, 3]
    assert be.where(x > 1, 1, 2.5).dtype == np.float64
    assert be.where(x > 1, x, 2.5).dtype == np.float32


# Operators


def test_operators_are_numpys(be: Any) -> None:
    a, b = np.array([5.0, -7.0, 0.5], np.float32), np.array([2.0, 3.0, -4.0], np.float32)
    x, y = be.array(a), be.array(b)
    pairs = [
        (lambda p, q: p - q),
        (lambda p, q: p / q),
        (lambda p, q: p // q),
        (lambda p, q: p % q),
        (lambda p, q: abs(p) ** q),
        (lambda p, q: (p < q) | (p >= 5)),
        (lambda p, q: (p != q) & (q <= 3)),
        (lambda p, q: (p > 0) ^ (q > 0)),
        (lambda p, q: ~(p == q)),
        (lambda p, q: -p + (3 - q)),
        (lambda p, q: 3 // p + 3 % q),
        (lambda p, q: (2 < p) & (2 >= q)),  # noqa: SIM300
        (lambda p, q: True & (p > 0)),
        (lambda p, q: np.array([True, False, True]) | (p > q)),
        (lambda p, q: np.logical_not(p) ^ np.isnan(q)),
        (lambda p, q: 2.0**p),
        (lambda p, q: 6 / q),
    ]
    for function in pairs:
        wanted, got = function(a, b), function(x, y).asnumpyarray()
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


def test_conditions_are_joined_only_where_they_are_conditions(be: Any) -> None:
    x = be.array([1.0, 0.0])
    for wrong in (lambda: x & (x > 0), lambda: (x > 0) | 1, lambda: x > 0 & (x < 1), lambda: ~x, lambda: 1.0 ^ (x > 0)):
        with pytest.raises(DTypeError, match=r"is not bool.*in brackets.*logical_"):
            wrong()
    with pytest.raises(OperandError, match="an operand is"):
        (x > 0) & [True, False]


def test_a_comparison_of_integers_of_both_signs_is_right(be: Any) -> None:
    signed, unsigned = np.array([-1, 3], np.int64), np.array([2**64 - 1, 3], np.uint64)
    x, y = be.array(signed), be.array(unsigned)
    assert (x < y).asnumpyarray().tolist() == [True, False]
    assert (x == y).asnumpyarray().tolist() == [False, True]


def test_an_integer_divided_by_zero_is_zero(be: Any) -> None:
    x = be.array(np.array([7, -7, -(2**31)], np.int32))
    zero, minus = be.array(np.array([0], np.int32)), be.array(np.array([-1], np.int32))
    assert (x // zero).asnumpyarray().tolist() == (x % zero).asnumpyarray().tolist() == [0, 0, 0]
    assert (x // minus).asnumpyarray().tolist() == [-7, 7, -(2**31)]
    assert (x % minus).asnumpyarray().tolist() == [0, 0, 0]


def test_an_integer_to_a_negative_power_is_refused_and_changes_nothing(home_kind: str) -> None:
    be = home(home_kind)
    x, target = be.array(np.array([2, 3])), be.array(np.array([5, 5]))
    for exponent in (be.array(np.array([1, -1])), -1):
        with pytest.raises(ValueError, match="negative integer powers"):
            target[:] = x**exponent
    assert target.get().tolist() == [5, 5]
    target[:] = x ** be.array(np.array([3, 0], np.uint8))
    assert target.get().tolist() == [8, 1]


# Names


NAMES = """subtract multiply divide true_divide power negative absolute fabs equal not_equal less less_equal greater
    greater_equal sign isfinite remainder"""


@pytest.mark.parametrize("name", NAMES.split())
def test_numpys_and_neons_names_stand_too(name: str, be: Any) -> None:
    function = getattr(np, name)
    values = [np.array([1.5, -2.0, 0.0], np.float32), np.array([2.0, 2.0, -1.0], np.float32)][: function.nin]
    operands = [be.array(x) for x in values]
    with np.errstate(all="ignore"):
        wanted = function(*values)
    for got in (getattr(be, name)(*operands).asnumpyarray(), function(*operands).asnumpyarray()):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


def test_neons_sgn_is_there(be: Any) -> None:
    assert be.sgn(be.array([-2.0, 0.0, 3.0])).asnumpyarray().tolist() == [-1, 0, 1]


def test_numpy_functions_that_are_composed_or_renamed(be: Any) -> None:
    a = np.array([-1.5, 0.0, 2.5], np.float32)
    x = be.array(a)
    whole = np.array([-3, 4], np.int8)
    for function in (np.fabs, np.fix, np.zeros_like, np.ones_like, lambda t: np.where(t > 0, t, 1)):
        for values, operand in ((a, x), (whole, be.array(whole))):
            wanted, got = function(values), function(operand).asnumpyarray()
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)
    assert np.zeros_like(x > 0).dtype == np.ones_like(x > 0).dtype == bool


def test_a_condition_of_floats_is_sent_nothing(be64: Any) -> None:
    with np.errstate(divide="ignore"):
        assert derivatives(be64, lambda x: f.where(1 / x, x * 3.0, x), [0.0, 2.0])[0] == [3.0, 3.0]
    assert derivatives(be64, lambda c: f.where(c, 2.0, 1.0), [0.0, 2.0])[0] == [0.0, 0.0]


def test_a_branch_that_is_not_taken_is_chosen_before_to_have_no_nan(be64: Any) -> None:
    """As in autograd and JAX, and as the tour says."""
    with np.errstate(all="ignore"):
        plain = derivatives(be64, lambda v: f.where(v, v / v, v), [0.0, 2.0])[0]
        chosen = derivatives(be64, lambda v: f.where(v, v / f.where(v, v, 1), v), [0.0, 2.0])[0]
    assert np.isnan(plain[0]) and plain[1] == 0.0 and chosen == [1.0, 0.0]
