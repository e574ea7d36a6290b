"""Where arrays begin."""

from __future__ import annotations

import numpy as np
import pytest
from harness.compiling import needs_compiler

from backends import gen_backend
from backends.execution.memory import LINE, SMALL, empty_array
from optree import function


def begin(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0] % LINE


@pytest.mark.parametrize("dtype", ["bool", "int16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7, 5), (SMALL + 1,), (300, 301)])
def test_new_arrays_are_what_numpys_are(shape, dtype):
    ours, numpys = empty_array(shape, dtype), np.empty(shape, dtype)
    assert (ours.shape, ours.dtype, ours.strides) == (numpys.shape, numpys.dtype, numpys.strides)
    assert ours.flags.writeable and ours.flags.c_contiguous
    assert numpys.nbytes < SMALL or begin(ours) == 0


def test_large_tensors_begin_with_a_line_of_the_cache(cpu):
    values = np.arange(90_000, dtype=np.float32)[::-1].reshape(300, 300)
    tensors = [cpu.array(values), cpu.empty((300, 300)), cpu.zeros((300, 300))]
    assert [begin(x.array) for x in tensors] == [0] * 3
    np.testing.assert_array_equal(tensors[0].get(), values)


@needs_compiler
def test_what_kernels_make_begins_so_too():
    be = gen_backend("cpu", jit=True)
    x = be.array(np.ones((300, 300), np.float32))
    assert begin(function([], be.exp(x))().array) == 0
