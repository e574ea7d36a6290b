"""Fourier transforms: NumPy's functions, their sizes, norms and refusals, and derivatives.

The ops are tested by `tests/ops/test_registry.py`, their gradients by differences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.each import for_each
from harness.homes import home

import optree
from backends import gen_backend
from backends.cpu.routines import convolution, fourier
from optree.errors import DTypeError, OperandError, OptreeError, ShapeError
from optree.testing import check_grad

ONE = {"fft": 6, "ifft": 6, "rfft": 6, "irfft": 6, "hfft": 6, "ihfft": 6}
SEVERAL = ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn")
REAL = ("rfft", "ihfft", "rfft2", "rfftn")


@pytest.fixture(scope="module")
def be(home_kind: str) -> Any:
    return home(home_kind)


def given(name: str, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 4, 5))
    return (x if name in REAL else x + 1j * rng.normal(size=x.shape)).astype(dtype)


@for_each("name", [*ONE, *SEVERAL])
def test_transforms_are_numpys(name: str, be: Any) -> None:
    calls: list[dict[str, Any]] = [{}, {"norm": "ortho"}, {"norm": "forward"}]
    if name in ONE:
        calls += [{"n": n, "axis": axis} for n in (3, 4, 7) for axis in (0, -2)]
    else:
        calls += [
            {"s": (2, 7), "axes": (0, 2)},
            {"s": (4, 3), "axes": (0, 1)},
            {"axes": (1,)},
            {"axes": (2, 0), "norm": "ortho"},
            {"s": (7, -1), "axes": (2, 1)},
            {"axes": (1, 1)},
        ]
    for dtype in ("float32", "float64") if name in REAL else ("complex64", "complex128"):
        x = given(name, dtype)
        for options in calls:
            wanted = getattr(np.fft, name)(x, **options)
            for got in (getattr(np.fft, name)(be.array(x, dtype), **options), getattr(be.fft, name)(x, **options)):
                assert got.dtype == wanted.dtype, (name, options)
                rough = 1e-5 if dtype in ("float32", "complex64") else 1e-12
                np.testing.assert_allclose(got.get(), wanted, rtol=rough, atol=rough * np.abs(wanted).max())


@for_each("name", [*ONE, *SEVERAL])
def test_derivatives_of_transforms_are_right(name: str) -> None:
    """Of real operands, by differences; those of complex ones are the registry's."""
    be = gen_backend("cpu")
    x = be.array(given(name, "float32" if name in REAL else "complex64").real[:2, :2], "float64")
    options: list[dict[str, Any]] = [{"n": 4}, {"axis": 0, "n": 3}] if name in ONE else [{"s": (3, 4), "axes": (0, 1)}]
    for each in options:
        check_grad(lambda y: getattr(np.fft, name)(y * y, **each), x)  # noqa: B023


def test_a_filter_in_frequencies_has_its_adjoint(be: Any) -> None:
    rng = np.random.default_rng(1)
    x, h = (be.array(rng.normal(size=(8, 8)) + 1j * rng.normal(size=(8, 8)), "complex128") for _ in range(2))
    cost = be.sum(be.abs(np.fft.ifft2(np.fft.fft2(x) * h)) ** 2)
    spectrum = np.fft.fft2(x.get()) * np.abs(h.get()) ** 2
    np.testing.assert_allclose(optree.grad(cost, x).get(), 2 * np.fft.ifft2(spectrum), rtol=1e-10)


def test_many_rows_are_divided_among_threads(be: Any) -> None:
    x = np.random.default_rng(2).normal(size=(2048, 512))
    np.testing.assert_allclose(np.fft.rfft(be.array(x, "float64")).get(), np.fft.rfft(x), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.fft.fft2(be.array(x, "float64")).get(), np.fft.fft2(x), rtol=1e-9, atol=1e-8)


def test_what_transforms_refuse(be: Any) -> None:
    x, z = be.ones((3, 4)), be.array([1j, 2.0])
    open_size = optree.TensorType("float32", (None,))("x")
    for line, kind, words in (
        (lambda: np.fft.rfft(z), DTypeError, r"rfft: .* is not real; np\.fft\.fft takes complex"),
        (lambda: np.fft.fft(be.ones((2, 0))), ShapeError, "fft: axis 1 of .* is empty.* n or s pads"),
        (lambda: np.fft.fft(x, norm="whole"), OperandError, "fft: norm is"),
        (lambda: np.fft.ihfft(x, norm=""), OperandError, "ihfft: norm is"),
        (lambda: be.fft.fftfreq(0), OptreeError, "fftfreq: n is an integer of 1 or more"),
        (lambda: np.fft.fft(x, 0), OptreeError, "n is an integer of 1 or more"),
        (lambda: np.fft.fft(x, axis=2), OptreeError, "axis 2 is out of range"),
        (lambda: np.fft.fftn(x, s=(2,), axes=(0, 1)), ShapeError, "1 sizes for 2 axes"),
        (lambda: np.fft.irfft(be.ones(1)), ShapeError, "give n"),
    ):
        with pytest.raises(kind, match=words):
            line()
    assert optree.function([open_size], np.fft.fft(open_size))(np.ones(3, "float32")).tolist() == [3, 0, 0]
    with pytest.raises(AttributeError, match="be.fft has no function 'dct'"):
        be.fft.dct  # noqa: B018


@for_each("name", ["fft", "rfft", "irfft", "hfft", "ifft2", "rfft2", "irfft2"])
def test_one_compilation_transforms_open_sizes_with_derivatives(name: str, be: Any) -> None:
    function = getattr(np.fft, name)
    for options in ({}, {"s": (5, 3)} if name.endswith("2") else {"n": 5, "axis": 0}):

        def both(x: Any) -> Any:
            value = function(x, **options)  # noqa: B023
            return value, optree.grad(be.sum(be.abs(value) ** 2), x)

        compiled = optree.jit(both)
        for size in (3, 4, 7):
            z = given("rfft" if name in REAL else "fft", "float64" if name in REAL else "complex128")[0]
            z = be.array(np.resize(z, (size, 4)), z.dtype)
            for got, wanted in zip(compiled(z), both(z), strict=True):
                np.testing.assert_allclose(got.get(), wanted.get(), rtol=1e-9, atol=1e-9)


def test_transforms_without_scipy_and_frequencies_are_numpys(be: Any, monkeypatch: Any) -> None:
    z = given("fft", "complex128")
    for by_scipy in (True, False):
        monkeypatch.setattr(fourier, "has_scipy", lambda by_scipy=by_scipy: by_scipy)
        fresh = gen_backend("cpu")
        np.testing.assert_allclose(
            np.fft.irfft2(np.fft.fft(fresh.array(z, z.dtype))).get(), np.fft.irfft2(np.fft.fft(z))
        )
    assert be.fft.rfftfreq(4).dtype == np.float32 and {"fftfreq", "rfftfreq"} <= set(dir(be.fft))
    np.testing.assert_allclose(be.fft.fftfreq(5, d=0.5).get(), np.fft.fftfreq(5, d=0.5), rtol=1e-6)


@for_each("function", [np.convolve, np.correlate])
def test_convolutions_of_long_vectors_are_products_of_transforms(function: Any) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=300), rng.normal(size=200)
    for mode in ("full", "same", "valid"):
        found, sizes = [], []
        for most in (1, 1 << 40):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(fourier, "MULTIPLICATIONS", most)
                patch.setattr(convolution, "convolved", lambda x, y, n: sizes.append(n) or fourier.convolved(x, y, n))  # noqa: B023
                be = gen_backend("cpu", datatype=np.float64)
                a, b = be.array(x), be.array(w)
                value = function(a, b, mode)
                found.append([value.get(), *(y.get() for y in optree.grad(be.sum(value**3), [a, b]))])
                a[0] = np.inf
                np.testing.assert_array_equal(np.isfinite(value.get()), np.isfinite(function(a.get(), w, mode)))
        assert len(sizes) == 6  # each gradient is evaluated with the value
        np.testing.assert_allclose(found[0][0], function(x, w, mode), rtol=1e-9, atol=1e-9)
        for got, wanted in zip(*found, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9 * np.abs(wanted).max())


def test_a_convolution_of_float32_by_transforms_keeps_its_small_elements() -> None:
    rng, be = np.random.default_rng(3), gen_backend("cpu")
    x, w = (10 ** rng.uniform(*ends) for ends in ((-6, 0, 4000), (0, 1, 2000)))
    x[2000:] *= 1e2
    assert fourier.transform_size(x.size + w.size - 1, x.size * w.size) is not None
    found = np.convolve(be.array(x), be.array(w)).get()
    np.testing.assert_allclose(found, np.convolve(x, w), rtol=1e-6)


def test_transforms_are_products_with_their_matrices(be: Any) -> None:
    """Of random sizes, axes and norms, by the definition and no library."""
    rng, scales = np.random.default_rng(4), {"backward": (0, 1), "ortho": (0.5, 0.5), "forward": (1, 0)}
    for _ in range(20):
        shape = rng.integers(1, 12, size=rng.integers(1, 4))
        axis, norm = int(rng.integers(-len(shape), len(shape))), str(rng.choice([*scales]))
        size = int(shape[axis])
        z = rng.normal(size=shape) + 1j * rng.normal(size=shape)
        angles = np.outer(np.arange(size), np.arange(size)) * (2 * np.pi / size)
        x, options = be.array(z, "complex128"), {"axis": axis, "norm": norm}
        for name, sign, power in (("fft", -1, scales[norm][0]), ("ifft", 1, scales[norm][1])):
            wanted = np.moveaxis(np.moveaxis(z, axis, -1) @ np.exp(sign * 1j * angles), -1, axis) / size**power
            np.testing.assert_allclose(getattr(np.fft, name)(x, **options).get(), wanted, atol=1e-11)
        wanted = np.moveaxis(np.moveaxis(z.real, axis, -1) @ np.exp(-1j * angles), -1, axis) / size ** scales[norm][0]
        half = np.fft.rfft(be.array(z.real, "float64"), **options)
        kept = (slice(None),) * (axis % z.ndim) + (slice(size // 2 + 1),)
        np.testing.assert_allclose(half.get(), wanted[kept], atol=1e-11)
        np.testing.assert_allclose(np.fft.irfft(half, size, **options).get(), z.real, atol=1e-11)
