"""Sums of rows that are added up in lanes."""

from __future__ import annotations

import numpy as np
import pytest
from harness.compiling import needs_compiler

from backends import gen_backend, source
from optree import function


@pytest.mark.matrix
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


@pytest.mark.matrix
@needs_compiler
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int32"])
@pytest.mark.parametrize("columns", [1023, 1024, 1025, 3 << 16])
def test_counts_of_whole_blocks_and_more(dtype, columns):
    be = gen_backend("cpu", jit=True)
    values = np.random.default_rng(0).integers(0, 2, (3, columns * 2)).astype(dtype)
    values[0] = 1  # as many as there can be
    for seen in (lambda x: x[:, :columns], lambda x: x[:, ::2], lambda x: x[:, ::-1][:, :columns]):
        x, exact = seen(be.array(values, dtype=dtype)), seen(values)
        for axis in (None, 0, 1):
            counts = function([], [np.count_nonzero(x, axis=axis), np.mean(x == 0, axis=axis)])()
            np.testing.assert_array_equal(counts[0].get(), np.count_nonzero(exact, axis=axis))
            np.testing.assert_allclose(counts[1].get(), np.mean(exact == 0, axis=axis))


@needs_compiler
def test_what_is_counted_of_bytes_is_added_in_bytes():
    be = gen_backend("cpu", jit=True)
    for dtype, in_bytes in (("bool", True), ("uint8", True), ("int16", True), ("int32", False), ("float32", False)):
        x = be.array(np.ones((3, 5000)), dtype=dtype)
        for tree in (np.count_nonzero(x), np.sum(x == 1, axis=1)):
            assert ("uint8_t l" in "".join(source(tree))) == in_bytes


@needs_compiler
def test_integers_of_up_to_32_bits_are_shifted_in_as_many():
    """In 64 bits, a vector of bytes is widened to eight."""
    be = gen_backend("cpu", jit=True)
    for dtype, is_wide in (("uint8", False), ("int16", False), ("int32", False), ("int64", True)):
        x = be.array(np.ones(5), dtype=dtype)
        assert ("unsigned long long" in source(x << x)[0].split("shared_loop", 1)[1]) == is_wide


@needs_compiler
def test_blocks_that_may_decide_a_result_are_short():
    """A row of bools is read up to the first that decides."""
    be = gen_backend("cpu", jit=True)
    values = np.zeros((4, 1000), bool)
    values[1, 255] = values[2, 256] = values[3, 999] = True
    x = be.array(values, dtype="bool")
    for tree, wanted in (
        (np.any(x, axis=1), values.any(1)),
        (np.all(x == 0, axis=1), ~values.any(1)),
        (np.vecdot(x, x), values.any(1)),
        (np.any(x), np.True_),
    ):
        assert "b + 256 <" in "".join(source(tree))
        np.testing.assert_array_equal(tree.asnumpyarray(), wanted)
    assert "b + 4096 <" in "".join(source(np.max(be.array(values, dtype="int32"), axis=1)))


@needs_compiler
def test_bools_are_added_in_bytes():
    be = gen_backend("cpu", jit=True)
    values = np.array([[False, False, True, True], [False, True, False, True]])
    x, y = (be.array(row, dtype="bool") for row in values)
    (text,) = source(x + y)
    assert "(v0 | v1)" in text
    np.testing.assert_array_equal((x + y).asnumpyarray(), values[0] + values[1])
