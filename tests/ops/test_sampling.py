"""Random integers, choices, permutations, and the exponential and gamma distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy

from backends import gen_backend
from optree import grad
from optree.errors import GradientError, OperandError, ParameterError, ShapeError
from optree.ops import philox
from optree.registry import f

FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]


@pytest.fixture
def be() -> Any:
    return gen_backend("cpu", rng_seed=7, datatype=np.float64)


def again(be: Any, draw: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A tree's value, its next one, and the first one again from the seed."""
    tree = draw()
    first, second = tree.asnumpyarray(), tree.asnumpyarray()
    be.rng_reset()
    return first, second, tree.asnumpyarray()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_exponential_is_exponential(be: Any, dtype: np.dtype) -> None:
    numbers = be.exponential(2.0, 100_000, dtype).asnumpyarray()
    assert numbers.dtype == dtype and (numbers >= 0).all() and np.isfinite(numbers).all()
    if dtype != np.float16:
        assert scipy.stats.kstest(numbers.astype(np.float64) / 2, "expon").pvalue > 0.01
    assert abs(numbers.astype(np.float64).mean() - 2) < 0.05


@pytest.mark.parametrize("shape", [0.05, 0.3, 1.0, 2.5, 40.0])
def test_standard_gamma_is_gamma(be: Any, shape: float) -> None:
    numbers = be.standard_gamma(shape, 50_000).asnumpyarray()
    assert numbers.dtype == np.float64 and (numbers >= 0).all()
    assert scipy.stats.kstest(numbers, "gamma", args=(shape,)).pvalue > 0.01


def test_standard_gamma_of_each_parameter_depends_on_it_and_its_place_alone(be: Any) -> None:
    alone = f.standard_gamma(be.rng_state, be.array([0.5, 2.0, 9.0])).asnumpyarray()
    be.rng_reset()
    beside = f.standard_gamma(be.rng_state, be.array([70.0, 2.0, 0.1])).asnumpyarray()
    assert alone[1] == beside[1] and alone[0] != beside[0]
    assert int(be.rng_state.get()[1]) == philox.count_gamma_blocks(3)
    assert np.isnan(f.standard_gamma(be.rng_state, be.array([-1.0, np.nan])).asnumpyarray()).all()
    assert f.standard_gamma(be.rng_state, be.array([0.0])).asnumpyarray().tolist() == [0.0]


def test_draws_repeat_from_the_seed(be: Any) -> None:
    draws = (
        lambda: be.gamma(2.0, 3.0, size=5),
        lambda: be.exponential(size=5),
        lambda: be.randint(1000, size=5),
        lambda: be.permutation(50),
        lambda: be.choice(1000, 5, replace=False),
    )
    for draw in draws:
        be.rng_reset()
        first, second, repeated = again(be, draw)
        assert first.tolist() == repeated.tolist() != second.tolist()


def test_scales_are_differentiable_and_shape_parameters_say_that_they_are_not(be: Any) -> None:
    scale = be.array([1.5, 2.0])
    for draw in (be.exponential(scale), be.gamma(2.0, scale)):
        (slopes,) = be.evaluate([grad(draw.sum(), scale)])
        assert (slopes.get() > 0).all()
    with pytest.raises(GradientError, match="shape parameter; its scale has a derivative"):
        grad(be.gamma(scale).sum(), scale)


def test_randint_is_uniform_and_of_any_integer_dtype(be: Any) -> None:
    numbers = be.randint(-2, 5, size=(1000, 70), dtype="int8").asnumpyarray()
    assert numbers.dtype == np.int8 and numbers.shape == (1000, 70)
    counts = np.bincount(numbers.ravel() + 2)
    assert counts.shape == (7,) and scipy.stats.chisquare(counts).pvalue > 0.01
    assert set(be.randint(3, size=100).asnumpyarray().tolist()) == {0, 1, 2}
    out = be.zeros(4, "int32")
    assert be.randint(5, 6, out=out) is out and out.get().tolist() == [5] * 4


def test_permutation_keeps_rows_and_takes_every_order_as_often(be: Any) -> None:
    x = be.array(np.arange(12.0).reshape(4, 3))
    moved = be.permutation(x).asnumpyarray()
    assert sorted(moved.tolist()) == x.get().tolist()
    columns = be.permutation(x, axis=-1).asnumpyarray()
    assert sorted(columns.T.tolist()) == x.get().T.tolist()
    tree = be.permutation(3)
    orders = [tuple(tree.asnumpyarray().tolist()) for _ in range(1200)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6 and scipy.stats.chisquare(counts).pvalue > 0.01


def test_choice_takes_its_probabilities(be: Any) -> None:
    counts = np.bincount(be.choice(4, 20_000, p=[0.2, 0.0, 0.5, 0.3]).asnumpyarray(), minlength=4)
    assert counts[1] == 0 and scipy.stats.chisquare(counts[[0, 2, 3]], [4000, 10_000, 6000]).pvalue > 0.01
    rows = be.array(np.arange(6.0).reshape(3, 2))
    picked = be.choice(rows, (2, 5)).asnumpyarray()
    assert picked.shape == (2, 5, 2) and all(row in rows.get().tolist() for row in picked.reshape(-1, 2).tolist())
    assert be.choice(np.array([7, 9]), 8).asnumpyarray().dtype == np.int64


def test_choice_without_replacement_takes_none_twice(be: Any) -> None:
    assert sorted(be.choice(6, (2, 3), replace=False).asnumpyarray().ravel().tolist()) == list(range(6))
    tree = be.choice(3, 2, replace=False, p=[0.5, 0.5, 0.0])
    assert {tuple(sorted(tree.asnumpyarray().tolist())) for _ in range(20)} == {(0, 1)}
    first = np.array([be.choice(3, 1, False, [0.6, 0.3, 0.1]).asnumpyarray()[0] for _ in range(600)])
    assert scipy.stats.chisquare(np.bincount(first), [360, 180, 60]).pvalue > 0.01


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (lambda be: be.gamma(-1.0, size=2), ParameterError, "gamma: a shape parameter is 0 or more, not -1.0"),
        (lambda be: be.gamma(1.0, -2.0, size=2), ParameterError, "gamma: a scale is 0 or more, not -2.0"),
        (lambda be: be.exponential(-1.0, 2), ParameterError, "exponential: a mean is 0 or more"),
        (lambda be: be.randint(3, 3, size=2), ParameterError, r"randint: \[3, 3\) has no integers"),
        (lambda be: be.randint(2.5, size=2), OperandError, "randint: an integer is wanted, not 2.5"),
        (lambda be: be.choice(3, 4, replace=False), ShapeError, "without replacement there are at most 3"),
        (lambda be: be.choice(3, 4, p=[1.0, 2.0]), ShapeError, "is no probability for each of 3"),
        (lambda be: be.choice(0, 4), ShapeError, "choice: .*1 or more, not 0"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(be: Any, draw: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        draw(be)
