"""`argsort` is stable, by sorts of keys with indices that need not be."""

from __future__ import annotations

import numpy as np
import pytest

from backends import gen_backend
from optree.ops.ordering import LEAST


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int16", "int32", "uint32", "int64", "uint64", "bool"]
)
@pytest.mark.parametrize("shape", [(8, 200), (2 * LEAST,), (16, LEAST // 8)], ids=str)
def test_argsort_is_numpys_stable_one(dtype: str, shape: tuple[int, ...]) -> None:
    """With ties, nans of both signs, infinities, both zeros and the largest numbers."""
    rng, be = np.random.default_rng(0), gen_backend("cpu", jit=False)
    for few in (True, False):
        if dtype[0] == "f":
            x = (rng.integers(-9, 9, shape) / 4 if few else rng.standard_normal(shape)).astype(dtype)
            flat = x.reshape(-1)
            for value, step in ((np.nan, 7), (-np.nan, 11), (np.inf, 13), (-np.inf, 17), (-0.0, 5), (0.0, 19)):
                flat[::step] = value
        elif dtype == "bool":
            x = rng.random(shape) < 0.5
        else:
            limits = np.iinfo(dtype)
            low, high = (0, 5) if few else (limits.min, limits.max)
            x = rng.integers(low, high, shape, dtype, endpoint=True)
            x.reshape(-1)[::50], x.reshape(-1)[::70] = limits.max, limits.min
        for array, axis in ((x, -1), (x[..., ::2], -1), (x.T, 0)):
            ours = be.argsort(be.array(array, dtype), axis=axis).asnumpyarray()
            np.testing.assert_array_equal(ours, np.argsort(array, axis=axis, kind="stable"))
