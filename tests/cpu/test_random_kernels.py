"""Random numbers drawn inside kernels: the same as NumPy's whole draws."""

from __future__ import annotations

import numpy as np
import pytest
from harness.compiling import needs_compiler

from backends import gen_backend, source

FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]


@pytest.mark.matrix
@needs_compiler
@pytest.mark.parametrize("shape", [(7,), (5, 9), (3, 1, 4), (33, 100), (0, 3)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_kernels_draw_the_same_numbers(shape: tuple[int, ...], dtype: np.dtype) -> None:
    drawn = []
    for jit in (True, False):
        be = gen_backend("cpu", rng_seed=11, jit=jit)
        be.rng_state[1:] = np.array([2**64 - 3], np.uint64)  # so that the counter wraps
        x = be.array(np.arange(np.prod(shape)).reshape(shape), dtype)
        trees = [
            be.rand(shape, dtype=dtype),
            be.transpose(be.rand(shape, dtype=dtype)) * 2,
            x * be.dropout_mask(x, 0.7),
            be.sum(be.rand(x), axis=0),
        ]
        normals = be.standard_normal(shape, dtype=dtype).asnumpyarray()
        drawn.append([tree.asnumpyarray() for tree in trees] + [normals, be.rng_state.get()])
    *ours, sums, normals, state = drawn[0]
    *theirs, other_sums, other_normals, other_state = drawn[1]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)  # to the bit
    np.testing.assert_allclose(sums, other_sums, rtol=1e-3 if dtype == np.float16 else 1e-6)
    np.testing.assert_allclose(normals, other_normals, rtol=0, atol=1e-13 if dtype == np.float64 else 2e-6)
    np.testing.assert_array_equal(state, other_state)


@needs_compiler
def test_a_draw_and_what_is_done_with_it_are_one_kernel() -> None:
    be = gen_backend("cpu", jit=True)
    x = be.ones((40, 50))
    (text,) = source(be.sum(be.square(x * be.dropout_mask(x, 0.5)), axis=1))
    assert "philox_uniform32" in text
