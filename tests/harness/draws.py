"""Draws of random numbers by a backend, and the same from Philox's numbers by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from optree import grad, vmap
from optree.dtypes import bfloat16
from optree.ops import philox
from optree.ops.random import round_by_chance
from optree.registry import f

SINGLE, DOUBLE = np.dtype("float32"), np.dtype("float64")

#: The dtypes of draws.
FLOATS = [DOUBLE, SINGLE, np.dtype("float16"), bfloat16()]

#: States that draws begin at: a seed and a counter, which overflows there at 32 and at 64 bits.
STATES = [(seed, counter) for seed in (0, 7, 2**32 - 1) for counter in (0, 5, 2**32 - 3, 2**64 - 2)]


class Generator:
    """Numbers from a state on, which each draw advances."""

    def __init__(self, seed: int, counter: int) -> None:
        self.seed, self.counter = seed, counter

    def take(self, blocks: int) -> tuple[int, int]:
        counter, self.counter = self.counter, (self.counter + blocks) % 2**64
        return self.seed, counter

    def uniform(self, shape: Any, dtype: Any = DOUBLE) -> Any:
        return philox.uniform(*self.take(philox.count_blocks(int(np.prod(shape)), dtype)), shape, dtype)

    def normal(self, shape: Any, dtype: Any = DOUBLE) -> Any:
        return philox.normal(*self.take(philox.count_blocks(int(np.prod(shape)), dtype)), shape, dtype)

    def gamma(self, alpha: Any) -> Any:
        return philox.gamma(*self.take(philox.count_gamma_blocks(alpha.size)), alpha)


class Draw(NamedTuple):
    """A distribution, or what depends on one: a tree, its value by NumPy, and where its numbers are.

    Attributes
    ----------
    tree, value : callable
        Of a backend or a generator, a shape and a dtype.
    low, high, mean, deviation : float
        The interval of the numbers, their mean, and their standard deviation.
    """

    tree: Callable[..., Any]
    value: Callable[..., Any]
    low: float
    high: float
    mean: float
    deviation: float

    def check_moments(self, numbers: np.ndarray) -> None:
        """Raise AssertionError for numbers out of the interval, or with another mean."""
        wide = numbers.astype(np.float64)
        assert np.all((wide >= self.low) & (wide <= self.high)), "numbers are out of the distribution's interval"
        allowed = 6 * self.deviation / max(wide.size, 1) ** 0.5 + 0.01  # and the narrow dtypes' rounding
        assert not wide.size or abs(wide.mean() - self.mean) < allowed, f"the mean is {wide.mean()}, not {self.mean}"


def _ramp(shape: Any, dtype: Any) -> Any:
    """Numbers from -1 to 1."""
    return np.linspace(-1, 1, int(np.prod(shape))).reshape(shape).astype(dtype)


def _by_scale(be: Any, shape: Any, dtype: Any) -> Any:
    scale = be.array(np.ones(shape), dtype)
    return grad(np.sum(be.normal(0.5, scale)), scale)


def _dropped(be: Any, shape: Any, dtype: Any) -> Any:
    x = be.array(_ramp(shape, dtype), dtype)
    return grad(np.sum(x * be.dropout_mask(x, 0.5)), x)


CHANCES = np.array([0.5, 0.0, 0.25, 0.25])

DRAWS = {
    "rand": Draw(lambda be, s, d: be.rand(s, d), lambda g, s, d: g.uniform(s, d), 0, 1, 0.5, 0.29),
    "uniform": Draw(
        lambda be, s, d: be.uniform(-1.0, 3.0, s, d),
        lambda g, s, d: (g.uniform(s, d) * d.type(4) - d.type(1)).astype(d),
        -1,
        3,
        1,
        1.16,
    ),
    "standard_normal": Draw(lambda be, s, d: be.standard_normal(s, d), lambda g, s, d: g.normal(s, d), -9, 9, 0, 1),
    "normal": Draw(
        lambda be, s, d: be.normal(be.array(np.full(s, 3.0), d), 0.5),
        lambda g, s, d: (g.normal(s, d).astype(DOUBLE) * 0.5 + 3).astype(d),
        -2,
        8,
        3,
        0.5,
    ),
    "derivative of normal by scale": Draw(_by_scale, lambda g, s, d: g.normal(s, d), -9, 9, 0, 1),
    "exponential": Draw(
        lambda be, s, d: be.exponential(2.0, s, d),
        lambda g, s, d: (-2 * np.log1p(-g.uniform(s, d).astype(DOUBLE))).astype(d),
        0,
        80,
        2,
        2,
    ),
    "gamma": Draw(
        lambda be, s, d: be.gamma(0.75, 2.0, s, d),
        lambda g, s, d: (g.gamma(np.full(s, 0.75)).astype(d) * d.type(2)).astype(d),
        0,
        80,
        1.5,
        1.74,
    ),
    "randint": Draw(
        lambda be, s, d: be.randint(-2, 5, s), lambda g, s, d: np.floor(g.uniform(s) * 7).astype(int) - 2, -2, 4, 1, 2
    ),
    "permutation": Draw(
        lambda be, s, d: be.permutation(be.array(_ramp(s[:1] or 1, d), d)),
        lambda g, s, d: _ramp(s[:1] or 1, d)[np.argsort(g.uniform(s[:1] or (1,)), kind="stable")],
        -1,
        1,
        0,
        1,
    ),
    "choice": Draw(
        lambda be, s, d: be.choice(4, s, p=CHANCES),
        lambda g, s, d: np.searchsorted(np.cumsum(CHANCES), g.uniform(s), "right"),
        0,
        3,
        1.25,
        1.3,
    ),
    "choice without replacement": Draw(
        lambda be, s, d: be.choice(9, 5, replace=False),
        lambda g, s, d: np.argsort(g.uniform(9), kind="stable")[:5],
        0,
        8,
        4,
        2.6,
    ),
    "dropout_mask": Draw(
        lambda be, s, d: be.dropout_mask(s, 0.75, d),
        lambda g, s, d: ((g.uniform(s, SINGLE) < 0.75) * (1 / 0.75)).astype(d),
        0,
        1.34,
        1,
        0.6,
    ),
    "derivative of dropout": Draw(_dropped, lambda g, s, d: ((g.uniform(s, SINGLE) < 0.5) * 2.0).astype(d), 0, 2, 1, 1),
    "binarize": Draw(
        lambda be, s, d: be.binarize(be.array(np.zeros(s), d)),
        lambda g, s, d: np.where(g.uniform(s, DOUBLE if d == DOUBLE else SINGLE) < 0.5, 1, -1).astype(d),
        -1,
        1,
        0,
        1,
    ),
    "stochastic_cast": Draw(
        lambda be, s, d: be.stochastic_cast(be.array(np.full(s, 0.3), d), np.float16, bits=2),
        lambda g, s, d: round_by_chance(
            np.full(s, 0.3).astype(d).astype(DOUBLE), g.uniform(s), np.dtype(np.float16), 2
        ),
        0.25,
        0.375,
        0.3,
        0.07,
    ),
    "rand of each example": Draw(
        lambda be, s, d: vmap(lambda x: be.rand(x, d))(be.zeros((2, *s), d)),
        lambda g, s, d: g.uniform((2, *s), d),
        0,
        1,
        0.5,
        0.29,
    ),
    "rand of each step": Draw(
        lambda be, s, d: be.scan(lambda total, _: (total, be.rand(s, d)), be.array(0.0), length=3)[1],
        lambda g, s, d: g.uniform((3, *s), d),
        0,
        1,
        0.5,
        0.29,
    ),
    "normal amid a tree": Draw(
        lambda be, s, d: f.transpose(np.flip(f.tanh(be.standard_normal(s, d)))),
        lambda g, s, d: np.transpose(np.flip(np.tanh(g.normal(s, d).astype(DOUBLE)))).astype(d),
        -1,
        1,
        0,
        1,
    ),
}
