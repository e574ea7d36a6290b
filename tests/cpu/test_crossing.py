"""Tiles of arrays that lie across the vector loop, in C."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.compiling import needs_compiler

from backends import gen_backend, source
from backends.cpu.codegen.transposes import MAX_TILE_BYTES, TILE
from optree import TensorType

SHAPES = [(16, 16), (64, 128), (65, 129), (63, 300), (200, 71), (130, 19)]


@pytest.fixture
def compiled() -> Any:
    return gen_backend("cpu", jit=True)


def drawn(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Numbers that no rounding changes."""
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype)


@needs_compiler
@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "float16", "int32", "float32", "uint64", "float64"])
def test_tiles_of_every_size(compiled, dtype):
    for rows, columns in SHAPES:
        x, y = drawn((columns, rows), dtype), drawn((rows, columns), dtype)
        z = compiled.empty((rows, columns), dtype)
        z[:] = compiled.where(compiled.array(y) == compiled.array(x).T, compiled.array(x).T, compiled.array(y))
        np.testing.assert_array_equal(z.get(), np.where(y == x.T, x.T, y))
        z[:] = compiled.array(x).T + z
        np.testing.assert_array_equal(z.get(), x.T + np.where(y == x.T, x.T, y))


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_tiles_of_every_layout(compiled, dtype):
    x, y = drawn((150, 3, 170), dtype), drawn((85, 3, 75), dtype)
    a, b = compiled.array(x), compiled.array(y)
    views = [lambda x: x[::2, :, ::2], lambda x: x[149:0:-2, :, ::-2], lambda x: x[:75, ::-1, :85]]
    for view in views:
        for order in ((2, 1, 0), (2, 0, 1), (1, 2, 0), (0, 2, 1)):
            seen, other = view(x).transpose(2, 1, 0).transpose(order), y.transpose(order)
            found = compiled.empty(other.shape, dtype)
            found[:] = view(a).transpose((2, 1, 0)).transpose(order) * 2 + b.transpose(order)
            np.testing.assert_array_equal(found.get(), seen * 2 + other)


@needs_compiler
def test_more_arrays_than_there_is_room_for(compiled):
    bytes_ = 8 * TILE[0] * TILE[1]
    arrays = [drawn((90, 140), "float64") + i for i in range(MAX_TILE_BYTES // bytes_ + 2)]
    y = drawn((140, 90), "float64")
    tree, expected = compiled.array(y), y
    for x in arrays:
        tree, expected = tree + compiled.array(x).T, expected + x.T
    target = compiled.empty(y.shape, "float64")
    target[:] = tree
    np.testing.assert_array_equal(target.get(), expected)
    x, y = (TensorType("float64", shape) for shape in ((90, 140), (140, 90)))
    (kernel,) = source(sum(((x(f"x{i}") * 2).T for i in range(len(arrays))), y("y")))
    assert 0 < kernel.count("_Alignas") < len(arrays)
