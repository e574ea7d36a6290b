"""Remainders and floor divisions of floats in vectors have every bit of NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends import gen_backend

COUNT = 20_003

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 3.0, 0.1, -0.3, 1 / 3, 2.0**24, 2.0**24 - 1, 2.0**53, 2.0**60]


def _bits(rng: Any, word: str) -> np.ndarray:
    return rng.integers(0, np.iinfo(word).max, COUNT, dtype=word)


def _pairs(dtype: str, word: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng, whole = np.random.default_rng(1), {"float32": 24, "float64": 53}[dtype]
    info = np.finfo(dtype)
    special = np.array([*SPECIAL, info.tiny, info.smallest_subnormal, info.max], dtype)
    y = rng.normal(size=COUNT).astype(dtype)
    products = (y * rng.integers(-(2 ** (whole - 4)), 2 ** (whole - 4), COUNT)).astype(dtype)
    return {
        "any bits": (_bits(rng, word).view(dtype), _bits(rng, word).view(dtype)),
        "usual": ((rng.normal(size=COUNT) * 100).astype(dtype), y),
        "special": tuple(x.ravel().repeat(5) for x in np.meshgrid(special, special)),  # type: ignore[dict-item]
        "rounded products": (products, y),
        "just below products": (np.nextafter(products, 0), y),
        "just beyond what is exact": ((y * rng.integers(2 ** (whole - 1), 2 ** (whole + 1), COUNT)).astype(dtype), y),
    }


@pytest.mark.parametrize("function", [np.fmod, np.remainder, np.floor_divide])
@pytest.mark.parametrize(("dtype", "word"), [("float32", "uint32"), ("float64", "uint64")])
def test_every_bit_is_numpys(function: Any, dtype: str, word: str) -> None:
    be = gen_backend("cpu", jit=True)
    for name, (x, y) in _pairs(dtype, word).items():
        for divisor in (y, np.dtype(dtype).type(0.75)):
            with np.errstate(all="ignore"):
                wanted = function(x, divisor)
            operand = be.array(y, dtype) if divisor is y else float(divisor)
            found = function(be.array(x, dtype), operand).asnumpyarray()
            is_same = (found.view(word) == wanted.view(word)) | (np.isnan(found) & np.isnan(wanted))
            assert is_same.all(), f"{name}: {x[~is_same][:3]}, {y[~is_same][:3]}"
