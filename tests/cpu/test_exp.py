"""exp of float32 in C: our own, and its likes that call it."""

from __future__ import annotations

import numpy as np
import pytest
from harness.compiling import needs_compiler

from backends import gen_backend
from optree import function


def units(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """How far values of float32 are from those of float64, in units in the last place."""
    return np.abs(found - exact) / np.spacing(np.abs(exact).astype(np.float32))


@needs_compiler
def test_exp_of_every_size():
    be = gen_backend("cpu", jit=True)
    bits = np.arange(0, 1 << 32, 4093, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([bits.view(np.float32), np.linspace(-105, 89, 300_007, dtype=np.float32)])
    found = function([], be.exp(be.array(x)))().get()
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.float64))
        beyond = exact > np.finfo(np.float32).max
        np.testing.assert_array_equal(np.isnan(found), np.isnan(x))
        np.testing.assert_array_equal(found[beyond], np.inf)
        kept = ~beyond & ~np.isnan(x)
        assert units(found[kept].astype(np.float64), exact[kept]).max() <= 3


@needs_compiler
def test_exp_at_its_ends():
    be = gen_backend("cpu", jit=True)
    x = np.array([-np.inf, -1e30, -104, -103.97, -88, -0.0, 0, 88.72, 88.73, 1e30, np.inf, np.nan] * 3, np.float32)
    with np.errstate(all="ignore"):
        exact = np.exp(x)
    found = function([], be.exp(be.array(x)))().get()
    np.testing.assert_array_max_ulp(found, exact, 3)
    np.testing.assert_array_equal(found[:12], found[24:])  # in vectors and after the last of them


@needs_compiler
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_logaddexp_of_equal_and_infinite_numbers(dtype):
    be = gen_backend("cpu", jit=True)
    numbers = np.array([-np.inf, -1000, -100, -1, -0.0, 0, 1e-3, 1, 100, 1000, np.inf, np.nan], dtype)
    x, y = (np.ascontiguousarray(part) for part in np.broadcast_arrays(numbers[:, None], numbers[None, :]))
    found = function([], be.logaddexp(be.array(x, dtype=dtype), be.array(y, dtype=dtype)))().get()
    with np.errstate(all="ignore"):
        exact = np.logaddexp(x.astype(np.float64), y.astype(np.float64)).astype(dtype)
    np.testing.assert_allclose(found, exact, rtol=4 * np.finfo(dtype).eps)


@needs_compiler
def test_powers_are_rounded_from_float64():
    """Of every magnitude, beside 1 and negative, and of special values in pairs: C's, within one unit."""
    be, rng, count = gen_backend("cpu", jit=True), np.random.default_rng(0), 1 << 16
    ends = [0, 1, 2, 3, 0.5, 1.5, np.inf, np.nan, 1e-45, 1e-38, 3e38, 127, 128, 149, 150, 2**23 + 1, 2**24, 0.99999994]
    pairs = np.meshgrid(*[np.array([*ends, *np.negative(ends)], np.float32)] * 2)
    x = [np.exp(rng.uniform(-88, 88, count)), rng.uniform(0.9, 1.1, count), rng.uniform(-50, 50, count)]
    y = [rng.uniform(-3, 3, count), rng.uniform(-800, 800, count), rng.integers(-30, 30, count)]
    x, y = (
        np.concatenate([pair.ravel(), *drawn]).astype(np.float32) for pair, drawn in zip(pairs, (x, y), strict=True)
    )
    found = function([], be.array(x) ** be.array(y))().get()
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
        wanted = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    ends = ~np.isfinite(wanted) | (wanted == 0)
    np.testing.assert_array_equal(found[ends], wanted[ends])
    np.testing.assert_array_equal(
        np.signbit(found[ends & ~np.isnan(found)]), np.signbit(wanted[ends & ~np.isnan(found)])
    )
    assert units(found[~ends].astype(np.float64), exact[~ends]).max() < 1
