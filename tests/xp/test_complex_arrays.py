"""Complex arrays of the array API standard and its Fourier transforms, against NumPy's."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from harness.each import for_each
from harness.homes import home
from harness.standard import COMPLEX, FLOATS, NEAR, check, compare, sample

from optree.xp import elementwise


@pytest.fixture(scope="module")
def xp(home_kind):
    return home(home_kind, datatype=np.float64).xp


@for_each(("name", "dtype"), product(elementwise.UNARY, COMPLEX))
def test_special_values_of_complex_numbers(xp, name, dtype):
    parts = np.array([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan])
    x = np.empty((7, 7), dtype)
    x.real, x.imag = parts[:, None], parts
    check(lambda namespace, x: getattr(namespace, name)(x), xp, x)


#: Of one array of shape (3, 4), of real numbers where it is named so.
TRANSFORMS = {
    **{
        name: (lambda xp, x, name=name: getattr(xp.fft, name)(x))
        for name in "fft ifft fftn ifftn rfft irfft rfftn irfftn hfft ihfft".split()
    },
    "fft n": lambda xp, x: xp.fft.fft(x, n=6, axis=0, norm="ortho"),
    "ifft n": lambda xp, x: xp.fft.ifft(x, n=2, norm="forward"),
    "fftn s": lambda xp, x: xp.fft.fftn(x, s=(2, 5), axes=(1, 0), norm="ortho"),
    "ifftn axes": lambda xp, x: xp.fft.ifftn(x, axes=(0,)),
    "rfft n": lambda xp, x: xp.fft.rfft(x, n=5, norm="forward"),
    "irfft n": lambda xp, x: xp.fft.irfft(x, n=5, axis=0),
    "rfftn s": lambda xp, x: xp.fft.rfftn(x, s=(3, 3), axes=(0, 1)),
    "irfftn s": lambda xp, x: xp.fft.irfftn(x, s=(3, 3), axes=(0, 1), norm="ortho"),
    "hfft n": lambda xp, x: xp.fft.hfft(x, n=4, norm="forward"),
    "fftshift": lambda xp, x: xp.fft.fftshift(x),
    "ifftshift axes": lambda xp, x: xp.fft.ifftshift(x, axes=(0,)),
}


@for_each(("name", "dtype"), product(TRANSFORMS, (*FLOATS, *COMPLEX)))
def test_fourier_transforms(xp, name, dtype):
    refuses = name.startswith(("rfft", "ihfft"))
    check(TRANSFORMS[name], xp, sample(dtype, seed=13), near=NEAR, refuses=refuses)


def test_frequencies(xp):
    for name, n in product(("fftfreq", "rfftfreq"), (4, 5)):
        check(lambda xp: getattr(xp.fft, name)(n), xp)  # noqa: B023
        found = getattr(xp.fft, name)(n, d=0.5, dtype=xp.float32)
        compare(found, getattr(np.fft, name)(n, d=0.5).astype("float32"))
        for wrong in ({"d": 0}, {"dtype": xp.complex64}, {"dtype": xp.int64}):
            with pytest.raises(TypeError, match=name):
                getattr(xp.fft, name)(n, **wrong)


def test_parts_of_complex_arrays_are_views(xp):
    for z in (xp.asarray([1j, 2 + 1j]), xp.asarray([1j, 2 + 1j]) * 1):
        z.real[:] = 5.0
        z.imag[0] += 6.0
        assert (
            z.tolist() == [5 + 7j, 5 + 1j]
            and complex(z[0]) == 5 + 7j
            and float(abs(z[1])) == pytest.approx(abs(5 + 1j))
        )
        parts = xp.real(z), xp.imag(z), xp.conj(z)
        z[:] = 0
        assert [part.tolist() for part in parts] == [[5, 5], [7, 1], [5 - 7j, 5 - 1j]]
    x = xp.ones(2)
    assert x.real is x and x.imag.tolist() == [0.0, 0.0]
    with pytest.raises(TypeError, match="astype"):
        x += 1j
