"""gather, scatter and scatter_add as users call them: by NumPy's indices."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from harness.arrays import array_of, check
from harness.counting import allocated

import optree
from backends import gen_backend
from optree import check_grad, grad
from optree.errors import AxisError, OperandError
from optree.ops.indexing import TakeAlongAxis
from optree.registry import f

CPU = gen_backend("cpu", datatype=np.float64)

INDICES = [
    0,
    slice(1, None, 2),
    (..., -1),
    (slice(None), None, 1),
    [2, 0, 2],
    ([0, 2, 2], [1, 1, 0]),
    (slice(1, 3), [0, 0]),
    np.array([True, False, True, True]),
    np.array([[1, 1], [0, -1]]),
    (1, np.array(2)),
]


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_gather_scatter_and_scatter_add_are_numpys(index: Any) -> None:
    a = array_of((4, 3))
    value = array_of(a[index].shape) / 8
    x, y = CPU.array(a, name="x"), CPU.array(value, name="y")
    check(CPU.gather(x, index), a[index])
    written, added = a.copy(), a.copy()
    written[index] = value
    check(CPU.scatter(x, index, y), written)
    np.add.at(added, index, value)
    check(CPU.scatter_add(x, index, y), added)
    np.testing.assert_array_equal(x.get(), a)
    for function in (CPU.scatter, CPU.scatter_add):
        check_grad(lambda x, y, function=function: f.sum(f.square(function(x, index, y))), [x, y])
    check_grad(lambda x: f.sum(f.square(f.gather(x, index))), [x])


def test_scatter_writes_into_another_target_whole_or_not_at_all() -> None:
    a = array_of((4, 3))
    x, out = CPU.array(a, name="x"), CPU.zeros((4, 3))
    for index in INDICES:
        written = a.copy()
        written[index] = 7
        out[:] = CPU.scatter(x, index, 7)
        np.testing.assert_array_equal(out.get(), written)
    with pytest.raises(AxisError, match="scatter: .*4 is out of range"):
        out[:] = CPU.scatter(x, CPU.array(np.array([0, 4])), 8)
    np.testing.assert_array_equal(out.get(), written)


def test_scatter_into_another_target_allocates_no_array() -> None:
    x, out = CPU.zeros(1 << 17), CPU.empty(1 << 17)
    assignment = f.assign(out, CPU.scatter(x, [3, 5], 1.0))
    CPU.execute(assignment)
    tracemalloc.start()
    try:
        CPU.execute(assignment)
        assert tracemalloc.get_traced_memory()[1] < 1 << 17
    finally:
        tracemalloc.stop()


def test_scatter_add_takes_index_tensors_and_numbers() -> None:
    places = CPU.array(np.array([0, 2, 2]))
    check(CPU.scatter_add(CPU.zeros(3), places, CPU.ones(3)), np.array([1.0, 0, 2]))
    check(CPU.scatter_add(CPU.array(np.array([1, 1, 1])), places, 0.5), np.array([1.5, 1, 2]))


def test_add_at_of_a_tensor_is_in_place() -> None:
    x = CPU.zeros((3, 2), name="x")
    assert np.add.at(x, [0, 2, 2], 1.0) is None
    np.testing.assert_array_equal(x.get(), [[1, 1], [0, 0], [2, 2]])
    whole = CPU.array(np.zeros(3, int), name="whole")
    with pytest.raises(OperandError, match="float64, which does not go into whole of int64"):
        np.add.at(whole, [0], 1.5)
    with pytest.raises(TypeError, match="multiply"):
        np.multiply.at(x, [0], 1.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [4, 20000])  # dense and sparse
@pytest.mark.parametrize(
    "pick",
    [
        lambda x, places: f.gather(x, places),
        lambda x, places: f.take(x, places, axis=0),
        lambda x, places: f.take_along_axis(x, places, axis=0),
        lambda x, places: f.scatter_add(f.fill_like(x, 0), places, f.gather(x, places)),
    ],
    ids=["gather", "take", "take_along_axis", "scatter_add"],
)
def test_deltas_of_halves_add_up_in_float32(pick: Any, size: int, dtype: str) -> None:
    x = CPU.zeros(size, dtype)
    gradient = grad(f.sum(pick(x, CPU.array(np.ones(3000, int), "int64"))), x)
    assert gradient.dtype == x.dtype
    assert float(gradient.asnumpyarray()[1]) == float(np.float32(3000).astype(x.dtype))


@pytest.mark.parametrize("axis", [0, 1])
def test_deltas_of_what_is_repeated_add_up_in_float32(axis: int) -> None:
    x = CPU.zeros((2, 2), "float16")
    gradient = grad(f.sum(f.repeat(x, 3000, axis)), x)
    assert (gradient.asnumpyarray() == 3000).all()


def test_indices_that_are_the_same_in_all_rows_are_not_repeated() -> None:
    be = gen_backend("cpu", jit=False)
    x, index = be.zeros((8000, 8, 5)), np.arange(56).reshape(1, 8, 7) % 5
    factor = be.array(np.random.default_rng(0).normal(size=(8000, 8, 7)))
    picked = optree.function([], f.take_along_axis(x, index, axis=2))
    slope = optree.function([], f.index_add(factor, x, be.array(index, "int64"), indexing=TakeAlongAxis.make(axis=2)))
    every = 8000 * 8 * 7 * 8  # the bytes of an index of each element
    assert allocated(picked) < every
    assert allocated(slope) < every
    wanted = np.zeros(x.shape)
    np.add.at(wanted, (np.arange(8000)[:, None, None], np.arange(8)[:, None], index), factor.get())
    np.testing.assert_allclose(slope().get(), wanted, rtol=1e-5, atol=1e-6)


def test_sums_at_indices_in_range_copy_neither_the_indices_nor_what_is_counted() -> None:
    be = gen_backend("cpu", jit=False)
    numbers, weights = np.arange(1 << 17) % 40, np.ones(1 << 17)
    counts = optree.function([], f.bincount(be.array(numbers), size=40))
    sums = optree.function([], f.bincount(be.array(numbers), be.array(weights, "float64"), size=40))
    assert allocated(counts) < numbers.nbytes / 4
    assert allocated(sums) < numbers.nbytes / 4
    assert (counts().get() == np.bincount(numbers)).all()
    assert (sums().get() == np.bincount(numbers, weights)).all()


@pytest.mark.parametrize("largest", [1 << 40, (1 << 62) + 1])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "uint64"])
def test_sums_of_integers_at_indices_wrap_and_lose_no_digit(dtype: str, largest: int) -> None:
    places = np.arange(900) % 3
    values = (np.arange(900) * 7 + largest).astype(dtype)
    if dtype != "uint64":
        values[::2] = -values[::2]
    wanted = np.zeros(3, dtype)
    np.add.at(wanted, places, values)
    found = f.scatter_add(CPU.zeros(3, dtype), places, CPU.array(values)).get()
    assert found.dtype == dtype and (found == wanted).all()
    many = f.scatter_add(CPU.zeros(3, dtype), places, values[0]).get()  # one number at all of them
    assert (many == np.bincount(places).astype(dtype) * values[0]).all()


@pytest.mark.parametrize("wrong", [-1, 3])
def test_what_is_in_no_bin_is_refused(wrong: int) -> None:
    for weights in (None, np.ones(2)):
        with pytest.raises(AxisError, match=f"the id {wrong} at row 1 is out"):
            f.bincount(CPU.array(np.array([1, wrong])), weights, size=3).get()
