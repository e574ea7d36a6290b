"""First weights: their moments and bounds, their seeds, and what is orthogonal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends import gen_backend
from optree.errors import OperandError, ParameterError
from optree.train import initializers as init

SHAPE = (300, 200)

#: The deviation that each is to have.
DEVIATIONS = {
    "uniform": 0.1 / np.sqrt(12),
    "normal": 0.05,
    "truncated_normal": 0.05 * init.TRUNCATED,
    "glorot_uniform": np.sqrt(2 / 500),
    "glorot_normal": np.sqrt(2 / 500),
    "kaiming_uniform": np.sqrt(2 / 300),
    "kaiming_normal": np.sqrt(2 / 300),
    "lecun_normal": np.sqrt(1 / 300),
    "orthogonal": np.sqrt(1 / 300),
}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_moments_and_seeds(name: str) -> None:
    draws = []
    for seed in (0, 0, 1):
        w = getattr(init, name)(gen_backend("cpu", rng_seed=seed), SHAPE, name="w")
        assert w.shape == SHAPE and w.dtype == np.float32 and w.name == "w"
        draws.append(w.get())
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    values = draws[0].astype(np.float64)
    assert abs(values.mean()) < 5 * DEVIATIONS[name] / np.sqrt(values.size)
    assert values.std() == pytest.approx(DEVIATIONS[name], rel=0.02)


def test_bounds() -> None:
    be = gen_backend("cpu", rng_seed=0)
    assert np.abs(init.glorot_uniform(be, SHAPE).get()).max() <= np.sqrt(6 / 500) * (1 + 1e-6)
    for bound in (0.5, 2.0):
        values = init.truncated_normal(be, (100_000,), 1.0, 0.1, bound).get()
        assert 0.099 * bound < np.abs(values - 1).max() <= 0.1 * bound + 1e-6
    for shape, layout in (((3, 3, 64, 32), "HWIO"), ((32, 64, 3, 3), "OIHW")):
        kernel = init.kaiming_normal(be, shape, fan="outputs", layout=layout).get()
        assert kernel.std() == pytest.approx(np.sqrt(2 / (9 * 32)), rel=0.03)
    assert init.kaiming_normal(be, SHAPE, "tanh").get().std() == pytest.approx(5 / 3 / np.sqrt(300), rel=0.02)
    assert init.zeros(be, 3).get().tolist() == [0, 0, 0] and init.ones(be, 2, "float16").dtype == np.float16


@pytest.mark.parametrize(
    ("shape", "layout"), [((6, 4), None), ((4, 6), None), ((5, 5), None), ((2, 3, 4), "WIO"), ((4, 3, 2, 2), "OIHW")]
)
def test_rows_or_columns_are_orthonormal(shape: tuple[int, ...], layout: str | None) -> None:
    be = gen_backend("cpu", rng_seed=0)
    w = init.orthogonal(be, shape, gain=2.0, dtype="float64", layout=layout).get()
    assert w.shape == shape
    w = np.moveaxis(w, (layout or "IO").index("O"), -1)
    w = w.reshape(-1, w.shape[-1])
    product = w.T @ w if w.shape[0] >= w.shape[1] else w @ w.T
    np.testing.assert_allclose(product, 4 * np.eye(min(w.shape)), atol=1e-12)
    assert init.orthogonal(be, (4, 4), dtype="float16").dtype == np.float16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda be: init.glorot_normal(be, (3,)), "two axes or more"),
        (lambda be: init.orthogonal(be, (3,)), "two axes or more"),
        (
            lambda be: init.kaiming_normal(be, (8, 3, 5, 5)),
            r"which axes of \(8, 3, 5, 5\).*'OIHW' for weights of be.conv",
        ),
        (lambda be: init.orthogonal(be, (8, 3, 5)), "layout names them I and O"),
        (lambda be: init.kaiming_normal(be, SHAPE, "swish"), "one of linear, sigmoid"),
        (lambda be: init.kaiming_normal(be, SHAPE, fan="both"), "'inputs' or 'outputs'"),
        (lambda be: init.truncated_normal(be, SHAPE, bound=0), "0.1 deviations or more"),
    ],
)
def test_impossible_ones_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make(gen_backend("cpu"))


def test_weights_without_a_backend_are_refused() -> None:
    with pytest.raises(OperandError, match="of a backend, from gen_backend, not of None"):
        init.zeros(None, SHAPE)
