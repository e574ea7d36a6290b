"""The indices of extremes, which kernels find while they compare: argmax, argmin, and what is fused with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.compiling import needs_compiler

from backends import gen_backend, source
from backends.cpu import runtime
from backends.cpu.codegen import printer
from backends.cpu.codegen.searches import SEARCHED
from optree.errors import ShapeError
from optree.settings import override
from optree.tree.types import TensorType

pytestmark = needs_compiler

FLOATS = ("float16", "float32", "float64")
DTYPES = (*FLOATS, "bool", "uint8", "int8", "uint16", "int32", "int64", "uint64")

#: Sizes of rows around the ends of words, of what is searched at once, and of blocks; and of what is split.
BLOCKS = (SEARCHED, printer.SUM_BLOCKS[0], printer.EXTREMES_BLOCK)
SIZES = (1, 2, 7, 8, 63, 64, 65, 72, *(size + more for size in BLOCKS for more in (-1, 0, 1)), 2 * SEARCHED + 9)
LARGE = 2 * runtime.c.PART_SIZE + 5


@pytest.fixture
def be() -> Any:
    return gen_backend("cpu", jit=True)


def lowest(dtype: str) -> Any:
    return False if dtype == "bool" else -np.inf if dtype in FLOATS else np.iinfo(dtype).min


def highest(dtype: str) -> Any:
    return True if dtype == "bool" else np.inf if dtype in FLOATS else np.iinfo(dtype).max


def drawn(dtype: str, shape: Any) -> dict[str, np.ndarray]:
    """Arrays of numbers, of ties, and of nothing but the extremes."""
    rng = np.random.default_rng(0)
    if dtype == "bool":
        found = {"numbers": rng.random(shape) < 0.5, "few true": rng.random(shape) < 0.002}
        found["few false"] = ~found["few true"]
    elif dtype in FLOATS:
        found = {"numbers": rng.normal(size=shape).astype(dtype)}
        found["zeros"] = np.where(rng.random(shape) < 0.5, 0.0, -0.0).astype(dtype)
        for name, before in (("few nan", found["numbers"]), ("few nan among infinities", -np.inf)):
            nans = rng.random(shape) < 0.002
            found[name] = np.where(nans, np.copysign(np.nan, rng.normal(size=shape)), before).astype(dtype)
        found["nan alone"] = np.full(shape, np.nan, dtype)
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        found = {"numbers": rng.integers(low, high, shape, dtype, endpoint=True)}
        found["ties"] = (found["numbers"] % 3).astype(dtype)
    return {**found, "lowest": np.full(shape, lowest(dtype), dtype), "highest": np.full(shape, highest(dtype), dtype)}


def check(be: Any, dtype: str, shape: Any) -> None:
    for kind, x in drawn(dtype, shape).items():
        tensor = be.array(x, dtype)
        for function in (np.argmax, np.argmin):
            for axis in (None, *range(len(shape))):
                found = function(tensor, axis=axis).asnumpyarray()
                wanted = np.asarray(function(x, axis=axis))
                assert found.dtype == wanted.dtype and found.shape == wanted.shape
                np.testing.assert_array_equal(found, wanted, f"{function.__name__} of {kind} along {axis}")


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_indices_are_numpys_at_the_ends_of_blocks(be: Any, dtype: str) -> None:
    for size in SIZES:
        check(be, dtype, (size,))
    ends = [(41, printer.SHORT_ROW + more) for more in (0, 1)]
    for shape in ((3, SEARCHED + 1), (SEARCHED + 1, 3), (70, 1030), (2, 3, 65), (40, 5, 3), *ends):
        check(be, dtype, shape)


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bool", "uint8", "int64"])
def test_indices_are_numpys_where_threads_share_the_work(be: Any, dtype: str, threads: int) -> None:
    with override(num_threads=threads):
        for shape in ((2 * LARGE,), (2, LARGE), (LARGE, 2), (LARGE, 1)):
            check(be, dtype, shape)


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_extreme_is_found_wherever_it_is(be: Any, dtype: str) -> None:
    for size in (*SIZES, LARGE):
        for place in {0, size // 2, size - 1}:
            for function, ends in ((np.argmax, (lowest, highest)), (np.argmin, (highest, lowest))):
                x = np.full(size, ends[0](dtype), dtype)
                x[place:] = ends[1](dtype)
                assert function(be.array(x, dtype)).asnumpyarray() == place
                if dtype in FLOATS:
                    x[: max(place, 1)] = ends[1](dtype)
                    x[place] = np.nan
                    assert function(be.array(x, dtype)).asnumpyarray() == place


@pytest.mark.parametrize("shape", [(40_000,), (300, 500), (2, LARGE)])
def test_any_byte_of_a_bool_but_0_is_true(be: Any, shape: Any) -> None:
    for true in (2, 255):
        ones = np.random.default_rng(5).random(shape) < 0.99
        for is_true in (ones, ~ones):
            t = be.adopt((is_true * np.uint8(true)).view(np.bool_))
            for axis in (None, 0, len(shape) - 1):
                for function in (np.argmax, np.argmin):
                    wanted = function(is_true, axis=axis)
                    np.testing.assert_array_equal(function(t, axis=axis).asnumpyarray(), wanted)
                    beside = function(t, axis=axis) + np.max(t, axis=axis)  # the search is not all of its stage
                    np.testing.assert_array_equal(beside.asnumpyarray(), wanted + np.max(is_true, axis=axis))


VIEWS = {
    "transposed": lambda x: x.transpose(2, 1, 0),
    "flipped": lambda x: x[::-1, :, ::-1],
    "strided": lambda x: x[:, ::2, 1::3],
    "moved": lambda x: x.transpose(1, 0, 2),
}


@pytest.mark.matrix
@pytest.mark.parametrize("axis", [None, 0, 1, 2, (0, 1), (0, 2), (1, 2), ()])
@pytest.mark.parametrize("view", VIEWS)
def test_indices_are_in_c_order_in_any_layout(be: Any, view: str, axis: Any) -> None:
    whole = np.random.default_rng(1).integers(0, 9, (14, 20, 33)).astype(np.float32)
    x, tensor = (VIEWS[view](a) for a in (whole, be.array(whole)))
    reduced = tuple(range(3)) if axis is None else np.atleast_1d(np.asarray(axis, int)).tolist()
    kept = [i for i in range(3) if i not in reduced]
    flat = x.transpose(*kept, *reduced).reshape(*[x.shape[i] for i in kept], -1)
    for function in (be.argmax, be.argmin):
        wanted = getattr(np, function.__name__)(flat, axis=-1)
        for operand in (tensor, tensor + 0):
            np.testing.assert_array_equal(function(operand, axis=axis, keepdims=False).asnumpyarray(), wanted)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_compared_is_computed_in_the_same_kernel(be: Any, dtype: str, axis: Any) -> None:
    x, y = (np.random.default_rng(i).normal(size=(90, 700)).astype(dtype) for i in range(2))
    t, u = be.array(x, dtype), be.array(y, dtype)
    trees = {
        "functions": (np.argmax(np.exp(t) * u, axis=axis), np.exp(x) * y),
        "bools": (np.argmax(np.sin(t) > 0.999, axis=axis), np.sin(x) > 0.999),
        "bytes": (np.argmax(np.rint(t * 9).astype("int8"), axis=axis), np.rint(x * 9).astype("int8")),
        "ignoring nan": (np.nanargmax(np.where(t > 1, np.nan, t), axis=axis), np.where(x > 1, -np.inf, x)),
    }
    for name, (tree, value) in trees.items():
        assert len(source(tree)) == 1
        found = tree.asnumpyarray()
        if name == "functions":  # the vector functions' values are not NumPy's in each bit
            at = np.take_along_axis(value, np.expand_dims(found, axis), axis) if axis is not None else value.flat[found]
            np.testing.assert_allclose(np.ravel(at), np.ravel(np.max(value, axis=axis)), rtol=1e-5)
        else:
            np.testing.assert_array_equal(found, np.argmax(value, axis=axis))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_indices_beside_sums_and_extremes(be: Any, axis: Any) -> None:
    x = np.random.default_rng(2).normal(size=(300, 1100)).astype(np.float32)
    t = be.array(x)
    size = np.rint(np.sum(t * 0 + 1, axis=axis) + np.max(t * 0, axis=axis))
    tree = np.argmax(t, axis=axis) * 2 + np.argmin(t, axis=axis) - size
    assert len(source(tree)) == 1 + (axis is None)  # numbers alone are a kernel of their own
    wanted = np.argmax(x, axis=axis) * 2 + np.argmin(x, axis=axis) - (x.size if axis is None else x.shape[axis])
    np.testing.assert_array_equal(tree.asnumpyarray(), wanted)


def test_an_index_is_used_in_the_stage_that_follows(be: Any) -> None:
    x = np.random.default_rng(3).normal(size=(60, 513)).astype(np.float32)
    t = be.array(x)
    after = np.sum(np.where(np.arange(513) > np.argmax(t, axis=1, keepdims=True), t, 0), axis=1)
    wanted = np.where(np.arange(513) > np.argmax(x, axis=1, keepdims=True), x, 0).sum(1)
    np.testing.assert_allclose(after.asnumpyarray(), wanted, rtol=1e-4, atol=1e-4)


def test_extremes_of_nothing_are_refused(be: Any) -> None:
    x = be.array(np.zeros((0, 3), np.float32))
    for function in (np.argmax, np.argmin):
        with pytest.raises(ShapeError, match="no identity"):
            function(x, axis=0)
        assert function(x, axis=1).asnumpyarray().shape == (0,)


def test_a_million_bools_are_not_shared() -> None:
    nests: list[Any] = []

    def kept(nest: Any) -> str:
        nests.append(nest)
        return whole(nest)

    whole = printer.source
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printer, "source", kept)
        for dtype in ("bool", "float32"):
            (text,) = source(np.argmax(TensorType(dtype, (1024, 1024))("x")))
            assert ("first_of_bools" in text) == (dtype == "bool")
    assert [runtime.is_parallel(nest, (1 << 20,)) for nest in nests] == [False, True]
