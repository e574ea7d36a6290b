"""Powers by numbers: products, reciprocals and roots where NumPy's values allow it."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from harness.each import for_each
from harness.expressions import special_values, ulps_between

from backends import gen_backend, source
from optree import grad

#: The exponents that are made simpler, and by how many units in the last place the value may differ from NumPy's.
SIMPLER = {-2: 3, -1.5: 2, -1: 0, -0.5: 2, 0.5: 0, 1.5: 2, 2: 0, 2.5: 3, 3: 3, 4: 3}


def _values(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(5)
    with np.errstate(over="ignore"):
        wide = (rng.standard_normal(5000) * 2.0 ** rng.integers(-200, 200, 5000)).astype(dtype)
    return np.concatenate([special_values(np.dtype(dtype)), wide, rng.uniform(-8, 8, 5000).astype(dtype)])


@pytest.mark.parametrize("jit", [True, False], ids=["compiled", "NumPy"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_powers_by_numbers_are_numpys(dtype: str, jit: bool) -> None:
    x = _values(dtype)
    be = gen_backend("cpu", jit=jit)
    tensor = be.array(x, dtype)
    found = be.evaluate([tensor**exponent for exponent in SIMPLER])  # in one kernel
    for exponent, got in zip(SIMPLER, found, strict=True):
        with np.errstate(all="ignore"):
            wanted = x**exponent
        assert got.dtype == wanted.dtype
        assert ulps_between(got.get(), wanted).max() <= SIMPLER[exponent], exponent
        zeros = wanted == 0
        np.testing.assert_array_equal(np.signbit(got.get()[zeros]), np.signbit(wanted[zeros]), str(exponent))


@for_each(
    ("exponent", "dtype", "power"),
    product(
        [2, 3, 4, 2.0, 3.0, -1.0, -0.5, 0.5, 1.5, 2.5],
        ["bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64"],
        [lambda x, y: x**y, np.power],
    ),
)
def test_a_power_of_integers_is_numpys_and_wraps_as_there(exponent: float, dtype: str, power: Any, be: Any) -> None:
    high = 2 if dtype == "bool" else np.iinfo(dtype).max
    x = np.random.default_rng(5).integers(1, min(high, 2**62), 500).astype(dtype)
    got, wanted = be.evaluate([power(be.array(x, dtype), exponent)])[0], power(x, exponent)
    assert got.dtype == wanted.dtype
    if wanted.dtype.kind == "f":
        assert ulps_between(got.get(), wanted).max() <= 3
    else:
        np.testing.assert_array_equal(got.get(), wanted)


@pytest.mark.parametrize("exponent", [-3.5, -1, 0.5, 2.5, float("inf"), float("-inf"), float("nan"), 0, 0.0, 2, 5])
def test_a_power_of_bools_is_numpys(exponent: float, be: Any) -> None:
    x = np.array([True, False, True])
    if exponent == -1:
        with pytest.raises(ValueError, match="negative integer powers"):
            be.evaluate([be.array(x, "bool") ** exponent])
        return
    (got,) = be.evaluate([be.array(x, "bool") ** exponent])
    with np.errstate(divide="ignore"):
        wanted = x**exponent
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got.get(), wanted)


@pytest.mark.parametrize("exponent", SIMPLER)
def test_no_kernel_of_such_a_power_calls_pow(exponent: float, be: Any) -> None:
    x = be.ones((8,))
    trees = [x**exponent, np.power(x, exponent)]
    if exponent != -1.5:  # whose derivative is a power by -2.5
        trees.append(grad(np.sum(x**exponent), x))
    for tree in trees:
        assert "pow(v" not in "".join(source(tree))


def test_other_exponents_compile_nothing_and_each_that_is_simpler_one_plan() -> None:
    be = gen_backend("cpu", jit=False)
    x, out = be.array([1.0, 2.0, 3.0]), be.empty((3,))
    out[:] = x**1.25
    before = be.stats()["compiles"]
    for exponent in (1.625, 1.75, 5.0, -0.25):
        out[:] = x**exponent
    assert be.stats()["compiles"] == before
    for exponent in (2, 2.0, 3, 2, 3.0):
        out[:] = x**exponent
    assert be.stats()["compiles"] == before + 2
    np.testing.assert_array_equal(out.get(), [1, 8, 27])


def test_a_negative_power_of_integers_is_refused(be: Any) -> None:
    with pytest.raises(ValueError, match="negative integer powers"):
        be.evaluate([be.array(np.array([1, 2])) ** -1])


@pytest.mark.parametrize("exponent", SIMPLER)
@pytest.mark.parametrize("order", [1, 2])
def test_its_derivatives_are_those_of_the_power(exponent: float, order: int, be64: Any) -> None:
    x = be64.array([0.25, 1.0, 3.0])
    tree, factor = x**exponent, 1.0
    for i in range(order):
        tree, factor = grad(np.sum(tree), x), factor * (exponent - i)
    np.testing.assert_allclose(be64.evaluate([tree])[0].get(), factor * x.get() ** (exponent - order), rtol=1e-14)
