"""Ops that no kernel computes: in blocks, on several threads, into their targets."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from harness.counting import allocated

from backends import gen_backend
from backends.cpu.in_blocks import BYTES, BYTES_OF_CALLS
from optree import grad
from optree.ops.bits import Gcd
from optree.ops.interpolation import Interpolate
from optree.ops.ordering import ArgSort
from optree.ops.scan import CumSum
from optree.settings import override
from optree.tree.node import OpTreeNode

ROWS = 1 << 9


@pytest.fixture
def be() -> Any:
    return gen_backend("cpu", rng_seed=0)


def _drawn(dtype: str, shape: tuple[int, ...] = (ROWS, 1 << 10), special: bool = False) -> np.ndarray:
    rng = np.random.default_rng(1)
    x = (rng.normal(size=shape) * 20).astype(dtype)
    if special and x.dtype.kind == "f":
        for value, share in (
            (-0.0, 0.2),
            (0.0, 0.2),
            (np.nan, 0.005),
            (-np.nan, 0.005),
            (np.inf, 0.01),
            (-np.inf, 0.01),
        ):
            x[rng.random(shape) < share] = value
    return x


LINES: dict[str, Any] = {
    "cumsum": lambda x: np.cumsum(x, axis=1),
    "cumprod": lambda x: np.cumprod(x, axis=0),
    "sort": lambda x: np.sort(x, axis=1),
    "sort of columns": lambda x: np.sort(x, axis=0),
    "argsort": lambda x: np.argsort(x, axis=1, kind="stable"),
    "searchsorted": lambda x: np.searchsorted(np.linspace(-20, 20, 9).astype(x.dtype), x),
    "argmin": lambda x: np.argmin(x, axis=0),
    "interp": lambda x: np.interp(x, [-9.0, 0.0, 7.0], [1.0, 3.0, -2.0]),
    "nextafter": lambda x: np.nextafter(x, x.dtype.type(3)),
}


@pytest.mark.parametrize("dtype", ["float64", "float16", "uint8"])
@pytest.mark.parametrize("name", LINES)
def test_values_in_blocks_are_numpys(be: Any, name: str, dtype: str) -> None:
    array = _drawn(dtype, special=name != "cumprod")
    is_wide = dtype == "float16" and name not in ("searchsorted", "interp", "nextafter")
    with np.errstate(all="ignore"):  # NumPy sums float16 in float16, and where there is AVX-512 sorts it wrongly
        wanted = LINES[name](array.astype("float32") if is_wide else array)
        wanted = wanted.astype(dtype) if is_wide and wanted.dtype.kind == "f" else wanted
    for threads in (1, 2):
        with override(num_threads=threads):
            found = LINES[name](be.array(array, dtype)).asnumpyarray()
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("name", "cls", "size"), [("argsort", ArgSort, BYTES), ("interp", Interpolate, BYTES_OF_CALLS)]
)
def test_a_large_value_is_made_of_blocks_by_several_threads(
    name: str, cls: Any, size: int, be: Any, monkeypatch: Any
) -> None:
    seen: list[tuple[int, int]] = []
    whole, both = cls.numpy, threading.Barrier(2, timeout=60)

    def value(op: Any, *arrays: Any) -> Any:
        is_first = threading.get_ident() not in {thread for _, thread in seen}
        seen.append((arrays[0].size, threading.get_ident()))
        if is_first:
            both.wait()  # until the other thread has a block, too
        return whole(op, *arrays)

    monkeypatch.setattr(cls, "numpy", value)
    x = be.array(_drawn("float64", (ROWS, 1 << 11)), "float64")
    with override(num_threads=2):
        LINES[name](x).asnumpyarray()
    assert len(seen) == 2 * x.array.nbytes // size and sum(count for count, _ in seen) == x.array.size
    assert len({thread for _, thread in seen}) == 2


@pytest.mark.parametrize(("shape", "count"), [((2048, 512), 4), ((2048, 32, 16), 16), ((1023, 1024), 0)])
def test_blocks_of_an_accumulation_have_rows_for_which_numpy_frees_the_interpreter(
    shape: tuple[int, ...], count: int, be: Any, monkeypatch: Any
) -> None:
    seen: list[int] = []
    whole, array = CumSum.fill, _drawn("float64", shape)
    monkeypatch.setattr(CumSum, "fill", lambda op, out, *arrays: seen.append(out.size) or whole(op, out, *arrays))
    found = np.cumsum(be.array(array, "float64"), axis=1).asnumpyarray()
    np.testing.assert_array_equal(found, np.cumsum(array, axis=1))
    assert len(seen) == count and all(size // shape[1] > 500 for size in seen)


def test_a_ufunc_without_a_kernel_runs_in_blocks(be: Any, monkeypatch: Any) -> None:
    seen: list[int] = []
    whole, array = Gcd.fill, _drawn("int64")
    monkeypatch.setattr(Gcd, "fill", lambda op, out, *arrays: seen.append(out.size) or whole(op, out, *arrays))
    np.testing.assert_array_equal(np.gcd(be.array(array, "int64"), 6).asnumpyarray(), np.gcd(array, 6))
    assert len(seen) == 2 * array.nbytes // BYTES and sum(seen) == array.size


def test_a_small_value_is_made_at_once(be: Any, monkeypatch: Any) -> None:
    seen: list[tuple[int, ...]] = []
    whole = ArgSort.numpy
    monkeypatch.setattr(ArgSort, "numpy", lambda op, *arrays: seen.append(arrays[0].shape) or whole(op, *arrays))
    np.argsort(be.array(_drawn("float64", (64, 64)), "float64"), axis=1).asnumpyarray()
    assert seen == [(64, 64)]


@pytest.mark.parametrize("name", ["cumsum", "sort", "sort of columns"])
def test_a_value_is_written_into_its_target(be: Any, name: str) -> None:
    array = _drawn("float64")
    x, wanted = be.array(array, "float64"), LINES[name](array)
    z = be.empty(wanted.shape, wanted.dtype)

    def run() -> None:
        z[:] = LINES[name](x)

    with override(num_threads=1):
        assert allocated(run) < 2 * BYTES < 2 * array.nbytes
    np.testing.assert_array_equal(z.get(), wanted)


@pytest.mark.parametrize("target", ["x", "x.T", "part"])
def test_a_target_that_the_operand_shares_memory_with(be: Any, target: str) -> None:
    array = _drawn("float64", (ROWS + 1, ROWS))
    x = be.array(array, "float64")
    read, written = {"x": (x[:-1], x[:-1]), "x.T": (x[:-1], x[:-1].T), "part": (x[:-1], x[1:])}[target]
    wanted = np.sort(array[:-1], axis=1)
    written[:] = np.sort(read, axis=1)
    np.testing.assert_array_equal(written.get(), wanted)


@pytest.mark.parametrize("function", [np.argmin, np.argmax])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "uint8", "bool"])
def test_indices_of_extremes_are_the_first(be: Any, function: Any, dtype: str) -> None:
    array = _drawn(dtype, (90, 80), special=True)
    x = be.array(array, dtype)
    for axis in (None, 0, 1):
        for keepdims in (False, True):
            wanted = function(array, axis=axis, keepdims=keepdims)
            found = function(x, axis=axis, keepdims=keepdims).asnumpyarray()
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "uint8"])
def test_a_partition_has_its_places_in_order_and_smaller_elements_before_them(be: Any, dtype: str) -> None:
    array = _drawn(dtype, (30, 200), special=True)
    wanted = np.sort(array.astype("float64"), axis=1)
    for kth in (0, 100, -1, (3, 150)):
        found = np.partition(be.array(array, dtype), kth, axis=1).asnumpyarray().astype("float64")
        np.testing.assert_array_equal(np.sort(found, axis=1), wanted)
        for place in np.atleast_1d(kth) % 200:
            np.testing.assert_array_equal(found[:, place], wanted[:, place])
            np.testing.assert_array_equal(np.sort(found[:, :place], axis=1), wanted[:, :place])


def test_the_gradient_of_a_partition_goes_to_where_its_elements_come_from(be: Any) -> None:
    array, weights = _drawn("float64", (3, 4000)), _drawn("float64", (3, 4000)) ** 2
    x = be.array(array, "float64")
    tree = np.partition(x, 2000, axis=1)
    value = tree.asnumpyarray()
    assert (value != np.sort(array, axis=1)).any()  # it is no sort
    gradient = grad(np.sum(tree * be.array(weights, "float64")), x).asnumpyarray()
    for row, made, weight, got in zip(array, value, weights, gradient, strict=True):
        assert dict(zip(made, weight, strict=True)) == dict(zip(row, got, strict=True))


@pytest.mark.parametrize("shape", [(3, 400), (400, 3), (5, 7, 90), (0, 5), (6, 0), (70,)])
def test_an_operand_joined_with_itself(be: Any, shape: tuple[int, ...]) -> None:
    array = _drawn("float64", shape)
    x = be.array(array, "float64")
    for axis in range(len(shape)):
        wanted = np.concatenate([array] * 3, axis)
        for z in (be.empty(wanted.shape, "float64"), be.empty(wanted.shape[::-1], "float64").T):
            z[:] = np.concatenate([x] * 3, axis)
            np.testing.assert_array_equal(z.get(), wanted)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_a_correlation_of_long_vectors_of_integers(be: Any, dtype: str, mode: str) -> None:
    x, weights = (_drawn(dtype, (size,)) for size in (70_000, 31))
    found = np.convolve(be.array(x, dtype), be.array(weights, dtype), mode).asnumpyarray()
    np.testing.assert_array_equal(found, np.convolve(x, weights, mode))


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_product_of_vectors_is_one_kernel(be: Any, dtype: str) -> None:
    compiled = gen_backend("cpu", jit=True)
    x = compiled.array(_drawn(dtype, (64, 64)), dtype)
    z = compiled.empty((64,), dtype)
    plan = compiled.show(compiled.program([OpTreeNode.build("assign", z, np.vecdot(x, x))]), "plan")
    assert plan.count("kernel(") == 1 and "matmul" not in plan
