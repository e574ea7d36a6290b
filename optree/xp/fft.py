"""The standard's Fourier transforms: this project's, by NumPy's functions of those names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.dtypes import is_complex
from optree.errors import DTypeError, OperandError
from optree.registry import NUMPY_FUNCTIONS
from optree.tree.types import Axis, DType, as_dtype, integer_of
from optree.xp.array import Array, built, of
from optree.xp.creation import asarray
from optree.xp.devices import backend_of


def _ours(name: str, x: Array, *args: Any, **options: Any) -> Any:
    return built(NUMPY_FUNCTIONS[getattr(np.fft, name)](of(x, f"fft.{name}").tree, *args, **options))


def _along(name: str, summary: str) -> Callable[..., Any]:
    def transform(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
        return _ours(name, x, n, axis, norm)

    return _named(transform, name, summary)


def _along_several(name: str, summary: str) -> Callable[..., Any]:
    def transform(
        x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
    ) -> Any:
        return _ours(name, x, s, axes, norm)

    return _named(transform, name, summary)


def _named(transform: Callable[..., Any], name: str, summary: str) -> Callable[..., Any]:
    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = summary
    return transform


fft = _along("fft", "The discrete Fourier transform along an axis, padded with zeros or cut to `n`.")
ifft = _along("ifft", "The inverse of `fft`.")
rfft = _along("rfft", "The first half of the transform of real numbers, with the middle.")
irfft = _along("irfft", "The inverse of `rfft`; `n` is the size of the value.")
hfft = _along("hfft", "The real transform of the first half of a Hermitian signal; `n` is the size of the value.")
ihfft = _along("ihfft", "The inverse of `hfft`.")
fftn = _along_several("fftn", "The discrete Fourier transform along axes, padded with zeros or cut to the sizes `s`.")
ifftn = _along_several("ifftn", "The inverse of `fftn`.")
rfftn = _along_several("rfftn", "The transform of real numbers along axes, of which the last is halved.")
irfftn = _along_several("irfftn", "The inverse of `rfftn`; `s` is the sizes of the value.")


def fftfreq(n: int, /, *, d: float = 1.0, dtype: DType = None, device: object = None) -> Array:
    """The frequencies of the elements of `fft`, for `n` samples with a spacing of `d`."""
    return _frequencies(np.fft.fftfreq, n, d, dtype, device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: DType = None, device: object = None) -> Array:
    """The frequencies of the elements of `rfft`, for `n` samples with a spacing of `d`."""
    return _frequencies(np.fft.rfftfreq, n, d, dtype, device)


def _frequencies(theirs: Callable[..., Any], n: int, d: float, dtype: DType, device: object) -> Array:
    what = theirs.__name__
    if not d:
        raise OperandError(f"{what}: the spacing d is not 0")
    wanted = backend_of(device).datatype if dtype is None else as_dtype(dtype)
    if is_complex(wanted) or wanted.kind in "biu":
        raise DTypeError(f"{what}: dtype is floating, not {wanted}")
    return asarray(theirs(integer_of(n, f"{what}: n", 1), d), dtype=wanted, device=device)


def fftshift(x: Array, /, *, axes: Axis = None) -> Array:
    """The elements rolled along axes, by default all, so that frequency 0 is in the middle."""
    return _ours("fftshift", x, axes)


def ifftshift(x: Array, /, *, axes: Axis = None) -> Array:
    """The inverse of `fftshift`."""
    return _ours("ifftshift", x, axes)
