"""Reductions against NumPy and SciPy: values, dtypes, special values, accuracy, errors."""

from __future__ import annotations

import inspect
import math
import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from harness.each import for_each
from harness.homes import home
from scipy import special

from backends import gen_backend, source
from optree import function, registry
from optree.autodiff.api import grad as optree_grad
from optree.errors import AxisError, DTypeError, OperandError, ShapeError
from optree.numpy import (
    statistics,
)
from optree.ops.summation import accurate_sum
from optree.registry import f
from optree.tree.node import OpTreeNode
from optree.tree.types import TensorType

NAN, INF = np.nan, np.inf

#: Name, NumPy's function of it, and whether it has a value for nothing.
NUMPYS = [
    ("sum", np.sum, True),
    ("prod", np.prod, True),
    ("max", np.max, False),
    ("min", np.min, False),
    ("mean", np.mean, True),
    ("var", np.var, True),
    ("std", np.std, True),
    ("all", np.all, True),
    ("any", np.any, True),
    ("norm", np.linalg.norm, True),
    ("argmax", np.argmax, False),
    ("argmin", np.argmin, False),
]
FUNCTIONS = {name: function for name, function, _ in NUMPYS}
NAMES = [name for name, _, _ in NUMPYS]
AXES = [None, 0, 1, 2, -1, -3, (0, 1), (2, 0), (-1, 1), (0, 1, 2), ()]


def value(tree: Any) -> np.ndarray:
    """A tree's value, checked against the type that it promised."""
    array = tree.asnumpyarray()
    assert array.shape == tree.shape
    assert array.dtype == tree.dtype
    return array


def close(got: np.ndarray, wanted: Any, ulps: float = 8) -> None:
    """Equal in shape and dtype, and in value within some units in the last place of the largest."""
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    if wanted.dtype.kind != "f":
        np.testing.assert_array_equal(got, wanted)
        return
    eps = float(np.finfo(wanted.dtype).eps)
    np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=ulps * eps, atol=ulps * eps / 8)


# Values


def numpy_takes(name: str, axis: Any) -> bool:
    return not isinstance(axis, tuple) or not (name.startswith("arg") or (name == "norm" and len(axis) != 2))


@for_each(
    ("name", "numpy", "axis"),
    [(name, numpy, axis) for name, numpy, _ in NUMPYS for axis in AXES if numpy_takes(name, axis)],
)
def test_axes_and_keepdims_are_numpys(be64: Any, name: str, numpy: Any, axis: Any) -> None:
    array = np.random.RandomState(0).normal(size=(3, 4, 5))
    x = be64.array(array)
    for keepdims in (True, False):
        wanted = numpy(array, axis=axis, keepdims=keepdims)
        close(value(getattr(be64, name)(x, axis=axis, keepdims=keepdims)), wanted)
        close(value(numpy(x, axis=axis, keepdims=keepdims)), wanted)
    assert getattr(be64, name)(x, axis=axis).shape == numpy(array, axis=axis, keepdims=True).shape
    close(value(numpy(x, axis=axis)), numpy(array, axis=axis))


@for_each(
    ("name", "dtype"),
    product(NAMES, ["bool", "int8", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64"]),
)
def test_dtypes_are_numpys(be: Any, name: str, dtype: str) -> None:
    numpy = FUNCTIONS[name]
    array = np.array([[3, 1, 0], [2, 7, 1]]).astype(dtype)
    x = be.array(array, dtype)
    wanted = numpy(array.astype(float), axis=1, keepdims=True)
    assert numpy(x, axis=1).dtype == numpy(array, axis=1).dtype
    close(value(getattr(be, name)(x, axis=1)), wanted.astype(numpy(array, axis=1).dtype))


def test_sums_and_products_of_integers_wrap_as_numpys(be: Any) -> None:
    array = np.array([2**62, 2**62, 5], np.int64)
    close(value(be.sum(be.array(array), keepdims=False)), np.sum(array))
    close(value(be.prod(be.array(array), keepdims=False)), np.prod(array))
    small = np.full(300, 200, np.uint8)
    close(value(be.sum(be.array(small), keepdims=False)), np.uint64(60000))


@for_each(
    ("name", "row"),
    product(
        NAMES,
        [
            [1, NAN, 3],
            [NAN, NAN, 1],
            [INF, -INF, 1],
            [INF, 2, INF],
            [-INF, -INF, -INF],
            [-0.0, -0.0, -0.0],
            [0.0, -0.0, 1],
        ],
    ),
)
def test_special_values_are_numpys(be64: Any, name: str, row: list[float]) -> None:
    numpy = FUNCTIONS[name]
    array = np.array([row, [1.0, 2.0, 3.0]])
    with np.errstate(all="ignore"):
        wanted = numpy(array, axis=1)
    got = value(numpy(be64.array(array), axis=1))
    close(got, wanted)
    # Which of 0.0 and -0.0 is the least is nobody's to say: on a GPU, either comes out.
    is_told = be64.name == "cpu" or not {"0.0", "-0.0"} <= set(map(str, row))
    if is_told and wanted.dtype.kind == "f" and not np.isnan(wanted).any():
        np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))


def test_the_first_of_ties_and_of_nans_is_the_place(home_kind: str) -> None:
    be = home(home_kind)
    x = be.array([[1, 5, 5, 0, 0], [2, NAN, 9, NAN, -9]])
    np.testing.assert_array_equal(value(be.argmax(x, axis=1)), [[1], [1]])
    np.testing.assert_array_equal(value(be.argmin(x, axis=1)), [[3], [1]])
    assert value(be.argmax(x)) == [[6]]
    assert value(np.argmax(x)) == 6
    cube = be.array([[[1, 2], [7, 0]], [[3, 3], [7, 1]]])
    np.testing.assert_array_equal(value(be.argmax(cube, axis=(0, 2), keepdims=False)), [2, 0])
    np.testing.assert_array_equal(value(be.argmin(cube, axis=(1, 2))), [[[3]], [[3]]])
    np.testing.assert_array_equal(value(be.argmin(cube, axis=())), np.zeros((2, 2, 2)))


def test_more_numpy_names_reach_the_reductions(be: Any) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = be.array(array)
    for mine, wanted in (
        (np.amax(x, 1), array.max(1)),
        (np.amin(x, 1), array.min(1)),
        (np.add.reduce(x), array.sum(0)),
        (np.multiply.reduce(x, axis=1), array.prod(1)),
        (np.maximum.reduce(x, axis=None), array.max()),
        (np.logical_or.reduce(x, axis=1), np.logical_or.reduce(array, axis=1)),
        (np.linalg.norm(x, 1, 0), np.linalg.norm(array, 1, 0)),
        (np.linalg.norm(x, INF, axis=1), np.linalg.norm(array, INF, axis=1)),
        (np.linalg.norm(x), np.linalg.norm(array)),
        (np.var(x, 0, ddof=1), np.var(array, 0, ddof=1)),
    ):
        close(value(mine), wanted)


def test_numbers_and_scalars_reduce(be: Any) -> None:
    assert value(be.sum(be.array(3.0), keepdims=False)) == 3
    assert value(be.max(2.5)) == 2.5
    assert value(be.argmax(be.array(3.0))) == 0
    assert value(be.logsumexp(be.array(3.0))) == 3


def test_neon_keeps_two_dimensions() -> None:
    be = gen_backend("cpu", compat_mode="neon")
    x = be.array(np.arange(6).reshape(2, 3).astype(np.float32))
    for name in [*NAMES, "logsumexp"]:
        assert getattr(be, name)(x, axis=0).shape == (1, 3)
        assert getattr(be, name)(x, axis=1, keepdims=False).shape == (2, 1)
        # neon's argmax and argmin are along axis 1 by default.
        assert getattr(be, name)(x).shape == ((2, 1) if name.startswith("arg") else (1, 1))
    np.testing.assert_array_equal(value(be.argmax(x, axis=1)), [[2], [2]])
    close(value(be.var(x, axis=1)), np.full((2, 1), 2 / 3, np.float32))


def test_ddof_is_numpys(be64: Any) -> None:
    array = np.random.RandomState(1).normal(size=(4, 3))
    x = be64.array(array)
    for ddof in (0, 1, 1.5):
        close(value(be64.var(x, 0, ddof)), np.var(array, 0, ddof=ddof, keepdims=True))
        close(value(be64.std(x, axis=0, ddof=ddof, keepdims=False)), np.std(array, 0, ddof=ddof))
    assert value(be64.var(x, axis=0, ddof=5))[0, 0] == INF  # as NumPy's: over no freedom


def test_count_is_of_what_is_reduced(be: Any) -> None:
    x = be.ones((3, 4, 5))
    assert value(be.count(x)) == 60
    assert value(be.count(x, axis=(0, -1))) == 15
    assert be.count(x).dtype == np.float32
    assert be.count(be.ones((2,), dtype=np.int8)).dtype == np.float64


# Accuracy


def layouts() -> list[tuple[str, np.ndarray, Any]]:
    """Arrays of a million elements and more, and the axes to sum them over."""
    rng = np.random.default_rng(7)
    tall = rng.random((400_000, 5), dtype=np.float32)
    wide = rng.random((3000, 700), dtype=np.float32)
    cube = rng.random((50, 300, 100), dtype=np.float32)
    return [
        ("rows, few columns", tall, 0),
        ("columns of a transposed", tall.T, 1),
        ("rows, many columns", wide, 0),
        ("Fortran order", np.asfortranarray(wide), 1),
        ("along rows", wide, 1),
        ("all", tall, None),
        ("all of a slice", tall[:, :3], None),
        ("every other row backwards", tall[::-2], 0),
        ("outer and inner", cube, (0, 2)),
        ("outer two", cube, (0, 1)),
        ("outer two, axes mixed", cube.transpose(2, 0, 1), (1, 2)),
        ("broadcast", np.broadcast_to(tall[:, :1], (400_000, 4)), 0),
        ("one number often", np.broadcast_to(np.float32(0.1), (1_000_000, 2)), 0),
    ]


@pytest.mark.parametrize(("_", "array", "axis"), layouts(), ids=[name for name, _, _ in layouts()])
def test_sums_are_accurate_over_every_axis(be: Any, _: str, array: np.ndarray, axis: Any) -> None:
    """Against float64, at most what a pairwise sum may be off: here half a unit a level of its tree."""
    exact = np.sum(array, axis=axis, dtype=np.longdouble)
    count = array.size // exact.size
    bound = np.finfo(np.float32).eps / 2 * math.log2(count)
    for got in (
        np.sum(be.from_dlpack(array) if be.name == "cpu" and array.flags.writeable else be.array(array), axis=axis),
        np.mean(be.array(array), axis=axis) * count,
    ):
        error = np.abs(value(got) - exact) / exact
        assert error.max() < bound


def test_sums_are_no_worse_than_a_pairwise_sum() -> None:
    """The root mean square error over many columns is that of NumPy's sum over contiguous rows, or less."""
    rng = np.random.default_rng(3)
    for dtype in (np.float32, np.float64):
        for rows in (9, 16, 64, 100, 1000, 5000):
            array = rng.random((rows, 400)).astype(dtype)
            exact = array.sum(axis=0, dtype=np.longdouble)

            def error(sums: np.ndarray, exact: np.ndarray = exact) -> float:
                return float(np.sqrt(np.mean(((sums - exact) / exact) ** 2)))

            ours = error(accurate_sum(array, (0,), False, array.dtype))
            pairwise = error(np.ascontiguousarray(array.T).sum(axis=1))
            assert ours < 1.5 * pairwise + 1e-3 * np.finfo(dtype).eps, rows


def test_every_layout_sums_to_the_same_as_numpys() -> None:
    rng = np.random.RandomState(5)
    whole = rng.normal(size=(12, 1, 40, 18))
    for array in (whole, whole[::-1, :, ::3], whole.transpose(2, 3, 0, 1), whole[:, :, :, ::-2], whole[:, :, :0]):
        for axes in ((), (0,), (1,), (2,), (3,), (0, 1), (0, 2), (1, 2), (1, 3), (0, 2, 3), (0, 1, 2, 3)):
            for keepdims in (True, False):
                close(
                    np.asarray(accurate_sum(array, axes, keepdims, array.dtype)),
                    array.sum(axis=axes, keepdims=keepdims),
                    ulps=200,
                )


def test_float16_is_added_up_in_float32(be: Any) -> None:
    x = be.array(np.full((5000, 3), 0.1), dtype=np.float16)
    np.testing.assert_array_equal(value(np.sum(x, axis=0)), np.float16(5000 * float(np.float16(0.1))))
    big = be.full((200_000,), 2, dtype=np.float16)
    assert value(be.mean(big, keepdims=False)) == 2
    assert value(be.var(big, keepdims=False)) == 0
    assert value(be.norm(be.full((16,), 300, dtype=np.float16), keepdims=False)) == 1200


def test_variance_is_stable_far_from_zero(be: Any) -> None:
    array = (1e4 + np.random.RandomState(2).normal(size=100_000)).astype(np.float32)
    wanted = np.var(array.astype(float))
    assert abs(value(be.var(be.array(array), keepdims=False)) / wanted - 1) < 1e-5


# Softmax and its kin

ROWS = np.array(
    [[1.0, 2, 3], [1000, 1001, 1002], [-1000, -1001, -1002], [0, -INF, 1], [-INF, -INF, 3], [1e-300, 0, -1e-300]]
)


def test_softmax_and_kin_are_scipys(be64: Any) -> None:
    x = be64.array(ROWS)
    assert value(be64.softmax(be64.array(7.0))) == 1
    assert value(be64.log_softmax(x[:, :1], axis=1)).tolist() == [[0], [0], [0], [0], [-INF], [0]]
    for axis in (1, -1, (0, 1), None):
        if axis is not None:
            close(value(be64.softmax(x, axis=axis)), special.softmax(ROWS, axis=axis))
            close(value(be64.log_softmax(x, axis=axis)), special.log_softmax(ROWS, axis=axis))
        wanted = special.logsumexp(ROWS, axis=axis, keepdims=True)
        close(value(be64.logsumexp(x, axis=axis)), wanted)
        close(value(be64.logsumexp(x, axis=axis, keepdims=False)), special.logsumexp(ROWS, axis=axis))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "standardize"])
def test_a_matrix_has_no_default_axis_where_the_shape_would_not_tell(name: str) -> None:
    """Others' defaults are the first axis, the last, and all."""
    be, neon = gen_backend("cpu"), gen_backend("cpu", compat_mode="neon")
    along, rows = getattr(be, name), np.array([[0.0, 1.0, 2.0], [4.0, 2.0, 0.0]])
    x = be.array(rows, name="x")
    for wrong in (x, x + 1, be.ones((2, 3, 4), name="x")):
        with pytest.raises(AxisError, match=rf"^{name}: which of the .* axes of x .*axis=-1 for the last.*for all"):
            along(wrong)
        with pytest.raises(AxisError):
            along(wrong, axis=None)
    with pytest.raises(AxisError):
        getattr(f, name)(TensorType("float32", (None, 3))("x"))
    np.testing.assert_allclose(value(along(x[0])), value(along(x, axis=1))[0], 1e-6)
    np.testing.assert_allclose(value(along(x, axis=(0, 1))).ravel(), value(along(x.reshape(-1))), 1e-6)
    np.testing.assert_allclose(value(getattr(neon, name)(neon.array(rows))), value(along(x, axis=0)), 1e-6)
    for axis in (1, (0, 1)):
        assert grad_of(f.square(along(x, axis=axis)), x).shape == x.shape
    assert grad_of(be.logsumexp(x), x).shape == x.shape


def test_every_reduction_drops_its_axes_on_request_and_its_help_says_so() -> None:
    be = gen_backend("cpu")
    x = be.array(np.arange(12.0).reshape(3, 4) % 5, name="x")
    found = [name for name, function in registry.FUNCTIONS.items() if _keeps(function)]
    assert {"sum", "mean", "argmax", "argmin", "max", "any", "std", "norm", "logsumexp", "median", "ptp"} <= {*found}
    for name in found:
        more = (0.5,) if name in ("quantile", "nanquantile", "percentile", "nanpercentile") else ()
        assert getattr(be, name)(x, *more, axis=1).shape == (3, 1), name
        assert getattr(be, name)(x, *more, axis=1, keepdims=False).shape == (3,), name
        assert getattr(be, name)(x, *more, keepdims=False).shape == (), name
        (_, second, *_) = getattr(be, name).__doc__.split("\n\n")
        assert "keepdims=False" in second and "be.argmax(scores, axis=1) == labels" in second, name
    labels = be.array(np.array([4, 3, 2]))
    assert (be.argmax(x, axis=1) == labels).shape == (3, 3)
    assert (be.argmax(x, axis=1, keepdims=False) == labels).shape == (3,)


def _keeps(function: Any) -> bool:
    keepdims = inspect.signature(function).parameters.get("keepdims")
    return keepdims is not None and keepdims.default is True


def test_infinite_rows(be64: Any) -> None:
    x = be64.array([[-INF, -INF], [INF, 1], [INF, INF], [NAN, 1], [NAN, INF], [INF, -INF]])
    np.testing.assert_array_equal(
        value(be64.softmax(x, axis=1)), [[0, 0], [1, 0], [0.5, 0.5], [NAN, NAN], [NAN, NAN], [1, 0]]
    )
    np.testing.assert_array_equal(value(be64.logsumexp(x, axis=1))[:, 0], [-INF, INF, INF, NAN, NAN, INF])
    got = value(be64.log_softmax(x, axis=1))
    np.testing.assert_array_equal(got, [[-INF, -INF], [0, -INF], [-np.log(2)] * 2, [NAN, NAN], [NAN, NAN], [0, -INF]])


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "norm"])
def test_dtypes_of_softmax_and_kin(be: Any, name: str) -> None:
    for given, wanted in (("float16", "float16"), ("float32", "float32"), ("int8", "float64"), ("bool", "float64")):
        array = np.array([[1, 0, 1], [0, 1, 1]]).astype(given)
        got = getattr(be, name)(be.array(array, given), axis=1)
        exact = getattr(be, name)(be.array(array, "float64"), axis=1)
        close(value(got), value(exact).astype(wanted))


# Nothing to reduce


@pytest.mark.parametrize("name", [name for name, _, identity in NUMPYS if not identity])
def test_nothing_without_identity_is_an_error_where_it_is_built(be: Any, name: str) -> None:
    x = be.zeros((0, 3), name="x")
    with pytest.raises(ShapeError, match=rf"{name}: x \(0, 3\) .*no identity"):
        getattr(be, name)(x, axis=0)
    assert value(getattr(be, name)(x, axis=1)).shape == (0, 1)


def test_nothing_reduces_to_the_identity(be: Any, recwarn: Any) -> None:
    x = be.zeros((0, 3))
    for name, wanted in (("sum", 0), ("prod", 1), ("all", True), ("any", False), ("norm", 0), ("logsumexp", -INF)):
        np.testing.assert_array_equal(value(getattr(be, name)(x, axis=0)), [[wanted] * 3])
    for name in ("mean", "var", "std"):
        np.testing.assert_array_equal(value(getattr(be, name)(x, axis=0)), [[NAN] * 3])
    assert value(be.norm(x, axis=0, ord=INF)).tolist() == [[0, 0, 0]]
    assert value(be.softmax(x, axis=0)).shape == (0, 3)
    assert not recwarn.list


# Errors


def test_axes_that_are_not_there(be: Any) -> None:
    x = be.ones((2, 3), name="x")
    for name in [*NAMES, "softmax", "log_softmax", "logsumexp", "count", "exclusive_prod"]:
        for axis in (2, -3):
            with pytest.raises(AxisError, match=f"axis {axis} is out of range for 2 dimensions"):
                getattr(be, name)(x, axis=axis)
        with pytest.raises(AxisError, match="an axis is an integer"):
            getattr(be, name)(x, axis="rows")
    with pytest.raises(AxisError, match="names an axis twice"):
        be.sum(x, axis=(1, -1))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_squares_of_a_norm_neither_overflow_nor_underflow(be64: Any, axis: Any) -> None:
    """For numbers of all magnitudes, and many of one magnitude whose sum of squares overflows though no square does."""
    numbers = np.random.default_rng(3).uniform(1, 2, (40, 30))
    for power in (-1060, -700, -540, -511, -450, -401, -399, -350, 0, 399, 401, 450, 500, 508, 511, 700, 1000):
        wanted = np.ldexp(np.linalg.norm(numbers, axis=axis), power)
        got = value(be64.linalg.norm(be64.array(np.ldexp(numbers, power)), axis=axis))
        np.testing.assert_allclose(got, wanted, rtol=1e-14, atol=2**6 * 5e-324)
    mixed = np.array([[1e200, 3.0, 1e-200], [1e-200, -4.0, NAN], [1e200, 1e-300, INF]])
    wanted = {None: NAN, 0: [2**0.5 * 1e200, 5, NAN], 1: [1e200, NAN, INF]}
    np.testing.assert_allclose(value(be64.linalg.norm(be64.array(mixed), axis=axis)), wanted[axis], rtol=1e-14)


def test_norms_that_are_not_there(be: Any) -> None:
    x = be.ones((2, 3))
    with pytest.raises(OperandError, match="ord is None or a number, not 'fro'; be.linalg.norm"):
        be.norm(x, axis=0, ord="fro")
    with pytest.raises(OperandError, match="of matrices ord is .*, not 3"):
        np.linalg.norm(x, 3)
    with pytest.raises(ShapeError, match="of 3 dimensions needs an axis"):
        np.linalg.norm(be.ones((2, 3, 4), name="y"), 2)


def test_a_parameter_that_is_not_there(be: Any) -> None:
    with pytest.raises(TypeError, match="no parameter 'axes'"):
        be.sum(be.ones((2, 3)), axes=0)
    with pytest.raises(TypeError, match="where"):
        be.sum(be.ones((2, 3)), where=True)


def test_a_reduction_prints_its_axis(be: Any) -> None:
    x = be.ones((2, 3), name="x")
    assert str(OpTreeNode.build("sum", x, axis=-1)) == (
        "({'shape': (2, 1), 'op': 'sum', 'axis': 1, 'keepdims': True}, x, None)"
    )
    assert be.sum(x, axis=-1).key() == be.sum(x, axis=1).key()


# Derivatives at the places that the promises' random draws do not reach


def grad_of(cost: Any, x: Any) -> np.ndarray:
    return value(optree_grad(f.sum(cost, keepdims=False), x))


@pytest.mark.parametrize("name", ["max", "min"])
def test_ties_share_evenly_and_in_full_for_neon(name: str) -> None:
    array = np.array([[1.0, 3, 3], [2, 2, 2], [-1, 0, 1]]) * (1 if name == "max" else -1)
    for mode, shares in ((None, [[0, 0.5, 0.5], [1 / 3] * 3, [0, 0, 1]]), ("neon", [[0, 1, 1], [1, 1, 1], [0, 0, 1]])):
        be = gen_backend("cpu", compat_mode=mode, datatype=np.float64)
        x = be.array(array)
        close(grad_of(getattr(be, name)(x, axis=1), x), np.array(shares, float))


def test_the_gradient_of_a_nan_extreme_goes_to_the_nans(be64: Any) -> None:
    x = be64.array([[1, NAN, 3, NAN], [INF, 0, 1, INF]])
    np.testing.assert_array_equal(grad_of(be64.max(x, axis=1), x), [[0, 0.5, 0, 0.5], [0.5, 0, 0, 0.5]])


def test_the_gradient_of_a_product_with_zeros(be64: Any) -> None:
    array = np.array([[2.0, 0, 3, 4], [0, 5, 0, 6], [1, 2, 3, 4], [0, 0, 0, 2]])
    x = be64.array(array)
    wanted = [[0, 24, 0, 0], [0, 0, 0, 0], [24, 12, 8, 6], [0, 0, 0, 0]]
    np.testing.assert_array_equal(grad_of(be64.prod(x, axis=1), x), wanted)
    first = optree_grad(f.sum(be64.prod(x, axis=1), keepdims=False), x)
    second = value(optree_grad(f.sum(first, keepdims=False), x))
    np.testing.assert_array_equal(second, _sums_of_products(array, 2))
    third = optree_grad(f.sum(optree_grad(f.sum(first, keepdims=False), x), keepdims=False), x)
    np.testing.assert_array_equal(value(third), _sums_of_products(array, 3))


def _sums_of_products(array: np.ndarray, order: int) -> np.ndarray:
    """At (i, j), how the sum of all derivatives of one order less of the product of row i changes with x[i, j]."""
    found = np.zeros_like(array)
    for i, row in enumerate(array):
        for places in np.ndindex(*(len(row),) * order):
            if len(set(places)) == order:
                found[i, places[0]] += np.prod([x for k, x in enumerate(row) if k not in places])
    return found


def test_an_inf_elsewhere_does_not_reach_the_exclusive_product(be: Any) -> None:
    np.testing.assert_array_equal(value(be.exclusive_prod(be.array([INF, 0, 2]))), [0, INF, NAN])
    np.testing.assert_array_equal(value(be.exclusive_prod(be.array([NAN, 3, 2]))), [6, NAN, NAN])


def test_gradients_at_zero_and_of_equal_elements_are_zero(be64: Any) -> None:
    x = be64.array([[0, 0], [3, 4]])
    close(grad_of(be64.norm(x, axis=1), x), np.array([[0, 0], [0.6, 0.8]]))
    close(grad_of(be64.norm(x, axis=1, ord=1), x), np.array([[0.0, 0], [1, 1]]))
    close(grad_of(be64.norm(x, axis=1, ord=INF), x), np.array([[0.0, 0], [0, 1]]))
    close(grad_of(be64.std(be64.full((1, 5), 2.0) + 0 * x[:, :1], axis=1), x), np.zeros((2, 2)))


def test_gradients_with_infinite_operands_are_no_nan(be64: Any) -> None:
    x = be64.array([[-INF, -INF], [INF, 1], [-INF, 1]])
    np.testing.assert_array_equal(grad_of(be64.logsumexp(x, axis=1), x), [[0, 0], [1, 0], [0, 1]])
    for name in ("sum", "mean"):
        assert np.isfinite(grad_of(getattr(be64, name)(x, axis=1), x)).all()
    assert np.isfinite(grad_of(be64.softmax(x, axis=1), x)).all()


def test_gradients_keep_narrow_dtypes() -> None:
    for dtype in (np.float16, np.float32):
        be = gen_backend("cpu", datatype=dtype)
        x = be.array(np.random.RandomState(0).normal(size=(3, 4)))
        for name in ("sum", "mean", "prod", "max", "var", "std", "norm", "logsumexp", "softmax", "log_softmax"):
            tree = getattr(be, name)(x, axis=0)
            assert tree.dtype == dtype
            assert grad_of(f.square(tree), x).dtype == dtype


def test_a_new_size_compiles_nothing(be: Any) -> None:
    w, target = be.array(np.random.RandomState(0).rand(5, 3)), be.empty((5, 3))
    compiles = []
    for rows in (7, 9, 300):
        h = be.array(np.random.RandomState(rows).rand(rows, 5)) @ w
        kept = [be.log_softmax(h, axis=1), be.softmax(h, axis=0), be.outer(h, h), be.exclusive_prod(h, axis=1)]
        reduced = [getattr(be, name)(h, axis=0) for name in ("sum", "mean", "max", "var", "std", "norm", "logsumexp")]
        cost = sum(be.sum(tree, keepdims=False) for tree in (*kept, *reduced))
        target[:] = optree_grad(cost, w)
        assert np.isfinite(target.get()).all()
        compiles.append(be.compiles)
    assert compiles[0] == compiles[-1]


def test_the_mean_of_more_than_float16_counts_has_a_gradient() -> None:
    be = gen_backend("cpu", datatype=np.float16)
    x = be.ones((70_000,))
    np.testing.assert_array_equal(grad_of(be.mean(x), x), np.full(70_000, np.float16(1 / 70_000)))


@pytest.mark.parametrize("size", [2, 511, 512, 513, 70_000, 300_000])
@pytest.mark.parametrize("name", ["any", "all"])
def test_any_and_all_stop_in_compiled_kernels_at_what_decides(name: str, size: int) -> None:
    be = gen_backend("cpu", jit=True)
    function, common = getattr(np, name), name == "all"
    for where in sorted({0, size // 2, size - 1}):
        x = np.full(size, common)
        x[where] = not common
        assert be.evaluate([function(be.array(x, bool))])[0].get() == (not common)
        rows = np.full((3, size), common)
        rows[1, where] = not common
        got = be.evaluate([function(be.array(rows, bool), axis=1)])[0].get()
        np.testing.assert_array_equal(got, function(rows, axis=1))
    assert be.evaluate([function(be.array(np.full(size, common), bool))])[0].get() == common
    (kernel,) = source(function(be.array(np.full(size, common), bool)))
    assert "break;" in kernel
    assert "break;" not in source(np.sum(be.ones((4,))))[0]


# Cross entropy


def test_cross_entropy_with_its_gradient_is_one_kernel(be):
    x, labels = TensorType("float32", (64, 1000))("x"), TensorType("int32", (64,))("labels")
    losses = be.cross_entropy(x, labels)
    (kernel,) = source(function([x, labels], [losses, optree_grad(be.mean(losses), x)]), "cuda")
    assert len(re.findall(r"loaded<4>\(y\d+ \+ i\)", kernel)) == 1


def test_cross_entropy_of_labels_that_are_no_classes(be):
    x = be.array(np.random.RandomState(0).randn(4, 3))
    for labels in (np.array([3, -1, 2, 100]), np.array([[3], [-1], [2], [100]], np.int8)):
        losses = be.cross_entropy(x, labels)
        assert np.isnan(losses.asnumpyarray()).ravel().tolist() == [True, True, False, True]
        for cost in (losses, losses * np.zeros(labels.shape, np.float32)):
            slopes = optree_grad(be.sum(cost), x).asnumpyarray()
            assert np.isnan(slopes).tolist() == [[True] * 3, [True] * 3, [False] * 3, [True] * 3]


def test_cross_entropy_of_far_and_infinite_logits(be):
    x = be.array([[1e4, 1e4 + 1, -np.inf], [-np.inf, 0, 5]])
    found = be.cross_entropy(x, np.array([0, 0])).asnumpyarray()
    np.testing.assert_allclose(found, [np.log1p(np.e), np.inf], rtol=1e-6)


def test_cross_entropy_refuses_other_labels(be):
    x = be.ones((4, 3))
    with pytest.raises(DTypeError, match=r"labels are integers, not .*astype\('int64'\)"):
        be.cross_entropy(x, be.ones((4,)))
    with pytest.raises(ShapeError, match=r"of shape \(4,\) or \(4, 1\), not \(3,\)"):
        be.cross_entropy(x, np.array([0, 1, 2]))


def test_quantiles_by_every_method_of_numpy_of_every_count(cpu: Any) -> None:
    methods = [*statistics.METHODS, *statistics.TAKING, *statistics.AVERAGING]
    q = np.arange(25) / 24
    for count in range(1, 8):
        x = np.random.default_rng(count).normal(size=(2, count))
        holed = np.concatenate([x, np.full((2, 1), np.nan)], axis=1)
        t, with_nans = cpu.array(x, np.float64), cpu.array(holed, np.float64)
        trees = [f.quantile(t, q, axis=1, method=m, keepdims=False) for m in methods]
        trees += [f.quantile(t, cpu.array(q, np.float64), axis=1, method=m, keepdims=False) for m in methods]
        trees += [f.nanquantile(with_nans, q, axis=1, method=m, keepdims=False) for m in methods]
        for found, method in zip(cpu.evaluate(trees), methods * 3, strict=True):
            wanted = np.quantile(x, q, axis=1, method=method)  # type: ignore[call-overload]
            np.testing.assert_allclose(found.get(), wanted, rtol=1e-13, atol=1e-15, err_msg=f"{method} of {count}")


PARTS = [0.3, 1, [0.25, 0.5], [0, 1], np.float64(0.3), np.float32(0.3), np.array([0.1, 1], np.float32), np.float16(0.5)]


def test_quantiles_over_no_elements_are_refused(cpu: Any) -> None:
    x = cpu.zeros((3, 0))
    for name, q in (("median", ()), ("nanmedian", ()), ("quantile", (0.5,)), ("nanpercentile", (50,))):
        with pytest.raises(ShapeError, match=f"{name}: the reduced axes are empty"):
            getattr(f, name)(x, *q, axis=1)


@pytest.mark.matrix(least=4)
@pytest.mark.parametrize("name", ["quantile", "nanquantile", "percentile", "nanpercentile"])
@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float32", "float64"])
def test_dtypes_of_quantiles_are_numpys(cpu: Any, dtype: str, name: str) -> None:
    """An array or list of parts is promoted with what is interpolated, a Python number is not."""
    x = (np.random.default_rng(0).normal(size=(2, 11)) * 5).astype(dtype)
    ours, numpys = cpu.array(x, dtype), getattr(np, name)
    methods = ["linear", "median_unbiased", "midpoint", "higher"]
    for q, method in zip(PARTS, methods[x.itemsize // 2 % 4 :] + 3 * methods, strict=False):
        if name.endswith("percentile"):
            q = [part * 100 for part in q] if isinstance(q, list) else q * 100
        wanted = numpys(x, q, axis=1, method=method)
        as_tensor = [cpu.array(q, q.dtype)] if isinstance(q, np.ndarray) else []
        for given in (q, *as_tensor):
            found = numpys(ours, given, axis=1, method=method)
            assert found.dtype == found.asnumpyarray().dtype == wanted.dtype, (q, method)
            unit = max(float(np.finfo(each).eps) for each in (wanted.dtype, "float32") if np.dtype(each).kind == "f")
            np.testing.assert_allclose(found.asnumpyarray(), wanted, rtol=4 * unit, atol=4 * unit)
