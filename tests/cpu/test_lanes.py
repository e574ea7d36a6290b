"""Sums of rows that are added up in lanes."""

from __future__ import annotations

import numpy as np
import pytest
from harness.compiling import needs_compiler

from backends import gen_backend
from optree import function


@needs_compiler
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64"])
@pytest.mark.parametrize("columns", [511, 512, 513, 1024, 1500])
def test_sums_of_rows_of_whole_blocks_and_more(dtype, columns):
    be = gen_backend("cpu", jit=True)
    values = np.random.default_rng(0).integers(-3, 4, (5, columns * 2)).astype(dtype)
    for seen in (lambda x: x[:, :columns], lambda x: x[:, ::2], lambda x: x[:, ::-1][:, :columns]):
        x, exact = seen(be.array(values, dtype=dtype)), seen(values).astype(np.float64)
        sums = function([], [be.sum(x, axis=1), be.sum(x * x, axis=1), be.sum(x * 2 + 1, axis=1)])()
        for found, right in zip(sums, (exact, exact * exact, exact * 2 + 1), strict=True):
            np.testing.assert_array_equal(found.get()[:, 0], right.sum(1).astype(found.dtype))
