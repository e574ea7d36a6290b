"""exp, log, tanh and pow in C: our own, and their likes that call them."""

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


def of_every_size(dtype: type, count: int) -> np.ndarray:
    """Numbers by their bits, and small ones."""
    width = 8 * np.dtype(dtype).itemsize
    bits = np.array(range(0, 1 << width, (1 << width) // count), f"uint{width}")
    return np.concatenate([bits.view(dtype), np.linspace(0.4, 2.6, count).astype(dtype)])


#: Each in each place of a vector, and after the last vector.
ENDS = [0, -0.0, np.inf, -np.inf, np.nan, -np.nan, -1, 1, 1e300, -1e300, 5e-324, -5e-324, 2e-308, 1e-45, -1e-45, 1e-38]


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_of_every_size(dtype):
    be = gen_backend("cpu", jit=True)
    with np.errstate(all="ignore"):
        x = np.concatenate([of_every_size(dtype, 200_001), np.repeat(np.array(ENDS, dtype), 17)])
        exact = np.log(x.astype(np.longdouble))
    found = function([], be.log(be.array(x, dtype)))().get()
    finite = np.isfinite(exact) & (exact != 0)
    np.testing.assert_array_equal(found[~finite], exact[~finite].astype(dtype))
    found, exact = found[finite], exact[finite]
    assert np.max(np.abs(found - exact) / np.spacing(np.abs(exact).astype(dtype))) <= 1.5


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tanh_of_every_size(dtype):
    be = gen_backend("cpu", jit=True)
    with np.errstate(all="ignore"):
        ends = np.repeat(np.array([*ENDS, 9, 9.02, 19, 19.1, 20.5], dtype), 17)
        x = np.concatenate([of_every_size(dtype, 200_001), np.linspace(-21, 21, 200_003).astype(dtype), ends])
        exact = np.tanh(x.astype(np.longdouble))
    found = function([], be.tanh(be.array(x, dtype)))().get()
    kept = ~np.isnan(x)
    assert np.isnan(found[~kept]).all() and np.abs(found[kept]).max() == 1
    np.testing.assert_array_equal(np.signbit(found[kept]), np.signbit(x[kept]))
    assert np.max(np.abs(found - exact)[kept] / np.spacing(np.abs(exact[kept]).astype(dtype))) <= 2.2
    np.testing.assert_array_equal(found[-1], found[-17])  # in a vector and after the last of them


@needs_compiler
def test_exp_of_float64_of_every_size():
    be = gen_backend("cpu", jit=True)
    near = [
        *ENDS,
        709.782712893384,
        709.7827128933841,
        -708.3964185322641,
        -708.39641853226,
        -745.133,
        -745.134,
        -746.1,
    ]
    x = np.concatenate([of_every_size(np.float64, 100_001), np.linspace(-747, 710, 400_009), np.repeat(near, 17)])
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.longdouble))
        rounded = exact.astype(np.float64)
    found = function([], be.exp(be.array(x, "float64")))().get()
    kept = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~kept], rounded[~kept])
    assert np.max(np.abs(found[kept] - exact[kept]) / np.spacing(rounded[kept])) <= 1.5


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logaddexp_of_far_numbers_is_their_larger_and_a_denormal(dtype):
    be = gen_backend("cpu", jit=True)
    gaps = np.concatenate([np.linspace(-760, 0, 4001), np.linspace(-110, -40, 4001)]).astype(dtype)
    found = function([], be.logaddexp(be.array(gaps, dtype), be.zeros((), dtype)))().get()
    exact = np.log1p(np.exp(gaps.astype(np.longdouble))).astype(dtype)
    np.testing.assert_allclose(found, exact, rtol=4 * np.finfo(dtype).eps, atol=2 * np.finfo(dtype).smallest_subnormal)


@needs_compiler
def test_exp_at_its_ends():
    be = gen_backend("cpu", jit=True)
    x = np.array(
        [-np.inf, -1e30, -104, -103.97, -88, -87.3366, -87.33655, -87.3365, -0.0, 0, 88.72, 88.73, 1e30, np.inf, np.nan]
        * 3,
        np.float32,
    )
    with np.errstate(all="ignore"):
        exact = np.exp(x)
    found = function([], be.exp(be.array(x)))().get()
    np.testing.assert_array_max_ulp(found, exact, 3)
    np.testing.assert_array_equal(found[:15], found[30:])  # in vectors and after the last of them


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
    """Of every magnitude, beside 1 and negative, and of special values in pairs: C's, within 0.6 units."""
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
    assert units(found[~ends].astype(np.float64), exact[~ends]).max() < 0.6
