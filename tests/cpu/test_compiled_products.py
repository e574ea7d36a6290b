"""Products in compiled C: values of every shape, layout and stack, and what BLAS multiplies."""

from __future__ import annotations

from array import array
from itertools import product as pairs
from typing import Any

import numpy as np
import pytest
from harness.compiling import needs_compiler

from backends import gen_backend
from backends.cpu import openblas
from backends.cpu.openblas import threads
from backends.cpu.routines import products
from backends.cpu.routines.products import MIN_ROWS, MIN_SIDE, ROW_BYTES, ROWS, SHARED, Products
from backends.cpu.routines.vectors import vector_source
from backends.cpu.runtime import share_address
from optree import settings
from optree.registry import f

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(threads() is None, reason="another BLAS than OpenBLAS multiplies"),
]

LAYOUTS: dict[str, Any] = {
    "in C order": lambda x: x,
    "transposed": lambda x: np.asfortranarray(x),
    "part of the columns": lambda x: np.repeat(x, 2, axis=1)[:, : x.shape[1]],
    "strided both ways": lambda x: np.repeat(np.repeat(x, 2, axis=1), 2, axis=0)[::2, ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "one row": lambda x: np.broadcast_to(x[:1], x.shape),
}

#: Few rows; more, of a part and of several; sums in parts; columns of one panel, of many, and of less than one.
SIZES = ((4, 700, 190), (33, 1025, 300), (65, 130, 101), (600, 67, 31), (31, 130, 1601), (500, 400, 8), (64, 1024, 64))


@pytest.fixture(scope="module")
def be() -> Any:
    return gen_backend("cpu", jit=True)


@pytest.fixture(autouse=True, params=[1, 2, 5])
def several(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Threads, of which some products have fewer parts; and one multiplies what several would."""
    monkeypatch.setattr(products, "SMALL", SHARED)
    with settings.override(num_threads=request.param):
        yield request.param


@pytest.fixture
def multiply(be: Any) -> Products:
    """Products that BLAS refuses."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("BLAS multiplies")

    found = Products(be)
    found.blas = refused
    return found


def drawn(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def check(found: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    wide = [np.asarray(z, "float64") for z in (x, y)]
    bound = np.abs(wide[0]) @ np.abs(wide[1]) * (np.finfo(x.dtype).eps * np.sqrt(x.shape[-1]))
    assert found.dtype == x.dtype
    assert (np.abs(found - wide[0] @ wide[1]) <= bound).all()


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("second", LAYOUTS)
@pytest.mark.parametrize("first", LAYOUTS)
def test_layouts(multiply: Any, first: str, second: str, dtype: str) -> None:
    for rows, inner, columns in SIZES:
        x, y = LAYOUTS[first](drawn(rows, inner, dtype=dtype)), LAYOUTS[second](drawn(inner, columns, dtype=dtype))
        check(multiply(x, y), x, y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [*range(4, 30), 69, 70, 71, 141])
def test_every_number_of_rows(multiply: Any, rows: int, dtype: str) -> None:
    inner = -(-(1 << 20) // (rows * 250))
    x, y = drawn(rows, inner, dtype=dtype), drawn(inner, 250, dtype=dtype)
    check(multiply(x, y), x, y)


@pytest.mark.parametrize("size", SIZES)
def test_a_result_of_any_layout_which_may_overlap_the_operands(multiply: Any, size: tuple[int, int, int]) -> None:
    rows, inner, columns = size
    x, y = drawn(rows, inner), drawn(inner, columns)
    memory = np.full((2 * rows, 2 * columns), np.nan, "float32")
    turned = np.full((columns, 2 * rows), np.nan, "float32")
    for out in (memory[:rows, :columns], memory[::2, ::2], memory[rows - 1 :: -1, columns - 1 :: -1], turned.T[::2]):
        assert multiply(x, y, out=out) is out
        check(out, x, y)
        assert (~np.isnan(memory)).sum() + (~np.isnan(turned)).sum() == out.size
        memory[...], turned[...] = np.nan, np.nan
    square = drawn(128, 128)
    wanted = multiply(square, square)
    np.testing.assert_array_equal(multiply(square, square, out=square), wanted)


@pytest.mark.parametrize("rows", [32, 200])
def test_not_a_numbers_and_infinities_stay(multiply: Any, rows: int) -> None:
    x, y = drawn(rows, 256), drawn(256, 500)
    x[3, 5], y[7, 490] = np.nan, np.inf
    found = multiply(x, y)
    assert np.isnan(found[3]).all()
    assert np.isinf(np.delete(found[:, 490], 3)).all()
    assert np.isfinite(np.delete(np.delete(found, 3, 0), 490, 1)).all()


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 100, 120), (3, 120, 130)),
        ((3, 1, 100, 120), (2, 120, 130)),
        ((100, 120), (7, 120, 90)),
        ((2, 3, 600, 130), (1, 130, 9)),
    ],
)
def test_stacks(multiply: Any, shapes: Any) -> None:
    x, y = (drawn(*shape) for shape in shapes)
    check(multiply(x, y), x, y)
    swapped = np.swapaxes(y, -1, -2).copy().swapaxes(-1, -2)
    every_second = np.repeat(np.repeat(x, 2, axis=0), 2, axis=-1)[::2, ..., ::2]
    out = np.repeat(np.zeros_like(x @ y), 2, axis=0)[::2]
    assert multiply(every_second, swapped, out=out) is out
    np.testing.assert_array_equal(out, multiply(x, y))


@pytest.mark.parametrize(
    "x, y",
    [
        (drawn(16, SHARED // 16 // 16), drawn(SHARED // 16 // 16, 16)),
        (drawn(MIN_ROWS - 1, 512), drawn(512, 1024)),
        (drawn(512, MIN_SIDE - 1), drawn(MIN_SIDE - 1, 1024)),
        (drawn(512, 1024), drawn(1024, MIN_SIDE - 1)),
        (drawn(128, 128), drawn(128, 128, dtype="float64")),
        (drawn(128, 128).astype("int32"), drawn(128, 128).astype("int32")),
        (drawn(0, 128), drawn(128, 128)),
        (drawn(128, 0), drawn(0, 128)),
        (drawn(1 << 20), drawn(1 << 20)),
        (drawn(0, 128, 128), drawn(128, 128)),
    ],
)
def test_blas_multiplies_the_rest(be: Any, x: Any, y: Any) -> None:
    asked = []

    def by_blas(*arrays: Any, out: Any) -> Any:
        asked.append(arrays)
        return np.matmul(*arrays, out=out)

    multiply = Products(be)
    multiply.blas = by_blas
    np.testing.assert_array_equal(multiply(x, y), np.matmul(x, y))
    assert asked


def test_another_blas_multiplies_all_but_few_rows_times_what_the_cache_holds(be: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(openblas, "threads", lambda: None)
    multiply = Products(be)
    x, y = drawn(ROWS, 256), drawn(256, ROW_BYTES // 4)
    assert multiply.supports(x, y)
    wide = drawn(256, ROW_BYTES // 4 + 1)
    for others in ((drawn(ROWS + 1, 256), y), (x, wide), (x, y.T.copy().T), (drawn(2, ROWS, 256), y)):
        assert not multiply.supports(*others)


def test_without_a_compiler_blas_multiplies() -> None:
    be = gen_backend("cpu", jit=False)
    x, y = drawn(512, 512), drawn(512, 512)
    np.testing.assert_array_equal(be.product(x, y), np.matmul(x, y))


def test_a_part_for_each_thread_packs_the_least(be: Any, several: int) -> None:
    divide = be.c_functions(vector_source("products.c", "float"), ("divide",))["divide"]

    def parts(rows: int, inner: int, columns: int, threads: int = several, count: int = 1) -> tuple[int, int]:
        words = array("q", [0, threads, 0, 0, 0, count, rows, inner, columns, inner, 1, columns, 1, columns, 1, 0, 0])
        divide(words.buffer_info()[0])
        return words[-2], words[-1]

    assert parts(5000, 512, 512) == (several, 1)
    assert parts(512, 512, 5000) == (1, several)
    assert parts(1000, 512, 1000, threads=4) == (2, 2)
    assert parts(5000, 512, 512, count=8) == (1, 1)
    assert parts(1000, 512, 1000, threads=4, count=3) in ((1, 2), (2, 1))
    assert parts(64, 64, 64) == (1, 1)
    assert parts(5, 1 << 20, 8, threads=7) == (1, 1)  # no part is less than a tile


@pytest.mark.parametrize(
    ("size", "dtype", "length"),
    [(200, "float32", "short"), (160, "float64", "short"), (210, "float32", "long"), (170, "float64", "long")],
)
def test_small_products_wake_no_thread(
    multiply: Any, size: int, dtype: str, length: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(products, "share_address", lambda known: asked.append(known) or share_address(known))
    x = drawn(size, size, dtype=dtype)
    check(multiply(x, x), x, x)
    assert asked == [length]


def test_neither_threads_nor_layouts_change_a_bit(multiply: Any) -> None:
    for rows, inner, columns in SIZES:
        x, y = drawn(rows, inner), drawn(inner, columns)
        with settings.override(num_threads=1):
            wanted = multiply(x, y)
        for first, second in pairs(("in C order", "transposed", "reversed"), repeat=2):
            for out in (None, np.empty((columns, rows), "float32").T):
                np.testing.assert_array_equal(multiply(LAYOUTS[first](x), LAYOUTS[second](y), out=out), wanted)


def test_scratch_memory_is_used_again(multiply: Any) -> None:
    x, y = drawn(300, 512), drawn(512, 512)
    multiply(x, y)
    (before,) = multiply._scratch._free
    multiply(x[:, ::-1], y[::-1])
    multiply(x, y[:, :100])
    (after,) = multiply._scratch._free
    assert after is before


def test_a_backends_products_and_contractions(be: Any, multiply: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(be, "product", multiply)
    x, y = drawn(600, 80), drawn(80, 90)
    check(be.dot(be.array(x), be.array(y)).asnumpyarray(), x, y)
    stacks = drawn(2, 80, 600), drawn(2, 80, 90)
    tree = f.tensordot(*(be.array(z) for z in stacks), axes=((0, 1), (0, 1)))
    np.testing.assert_allclose(tree.asnumpyarray(), np.einsum("nij,nik->jk", *stacks), rtol=1e-4, atol=1e-4)
    heads = drawn(4, 100, 64), drawn(4, 64, 100)
    check(be.matmul(*map(be.array, heads)).asnumpyarray(), *heads)


def test_a_loops_products_are_by_compiled_c(be: Any, multiply: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(be, "product", multiply)
    x, u = be.array(drawn(12, 32, 128)), be.array(drawn(128, 256))
    states, _ = be.scan(lambda h, part: (be.tanh(be.dot(h, u).at[:, :128] + part), None), be.zeros((32, 128)), x)
    assert states.asnumpyarray().shape == (32, 128)


def test_a_backend_says_so(be: Any) -> None:
    assert "large ones by compiled C" in be.info()
    assert "large ones" not in gen_backend("cpu", jit=False).info()
