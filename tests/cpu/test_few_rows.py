"""Products of few rows in compiled C: values of every shape and layout, and what BLAS multiplies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends import gen_backend
from backends.cpu.products import ROW_BYTES, ROWS, SMALL, FewRows
from optree import settings

LAYOUTS: dict[str, Any] = {
    "in C order": lambda x: x,
    "transposed": lambda x: np.asfortranarray(x),
    "every second row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
}


@pytest.fixture(scope="module")
def be() -> Any:
    return gen_backend("cpu", jit=True)


@pytest.fixture
def by_blas(be: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what BLAS has multiplied by."""
    shapes: list[tuple[int, ...]] = []

    def multiply(x: Any, y: Any, out: Any = None) -> Any:
        shapes.append(y.shape)
        return np.matmul(x, y, out=out)

    monkeypatch.setattr(be, "product", multiply)
    return shapes


def drawn(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def check(found: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    wide = [np.asarray(z, "float64") for z in (x, y)]
    bound = np.abs(wide[0]) @ np.abs(wide[1]) * (np.finfo(x.dtype).eps * np.sqrt(x.shape[1]))
    assert found.dtype == x.dtype
    assert (np.abs(found - wide[0] @ wide[1]) <= bound).all()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [*range(4, 30), 69, 70, 71, 141])
def test_every_number_of_rows(be: Any, by_blas: Any, rows: int, dtype: str, threads: int) -> None:
    inner = -(-SMALL // (rows * 256))
    x, y = drawn(rows, inner, dtype=dtype), drawn(inner, 256, dtype=dtype)
    check(FewRows(be, lambda: threads)(x, y), x, y)
    assert not by_blas


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("inner", [256, 511, 512, 513, 1024, 1500])
def test_layouts_and_sums_in_parts(be: Any, by_blas: Any, inner: int, layout: str) -> None:
    x, y = LAYOUTS[layout](drawn(33, inner)), drawn(inner, 2 * 300)[:, :300]
    check(FewRows(be)(x, y), x, y)
    assert all(columns < 64 for _, columns in by_blas)  # what is left of a panel


def test_a_result_of_any_layout_which_may_overlap_the_operands(be: Any) -> None:
    multiply = FewRows(be)
    x, y = drawn(128, 128), drawn(128, 128)
    product = x @ y
    for out in (np.empty((128, 128), "float32"), np.empty((128, 256), "float32")[:, :128], product.T.copy().T):
        assert multiply(x, y, out=out) is out
        check(out, x, y)
    given = x.copy()
    multiply(given, y, out=given)
    check(given, x, y)


def test_not_a_numbers_and_infinities_stay(be: Any) -> None:
    x, y = drawn(32, 256), drawn(256, 512)
    x[3, 5], y[7, 40] = np.nan, np.inf
    found = FewRows(be)(x, y)
    assert np.isnan(found[3]).all()
    assert np.isinf(np.delete(found[:, 40], 3)).all()
    assert np.isfinite(np.delete(np.delete(found, 3, 0), 40, 1)).all()


@pytest.mark.parametrize(
    "x, y",
    [
        (drawn(ROWS[0] - 1, 512), drawn(512, 512)),
        (drawn(ROWS[-1] + 1, 64), drawn(64, 64)),
        (drawn(16, 64), drawn(64, 64)),
        (drawn(32, 256), drawn(256, ROW_BYTES // 4 + 1)),
        (drawn(32, 256), drawn(512, 256).T),
        (drawn(32, 256), drawn(256, 256, dtype="float64")),
        (drawn(32, 256).astype("int32"), drawn(256, 256).astype("int32")),
        (drawn(2, 32, 256), drawn(256, 256)),
    ],
)
def test_blas_multiplies_the_rest(be: Any, by_blas: Any, x: Any, y: Any) -> None:
    np.testing.assert_array_equal(FewRows(be)(x, y), np.matmul(x, y))
    assert by_blas == [y.shape]


def test_the_number_of_threads_changes_no_bit(be: Any) -> None:
    x, y = drawn(37, 700), drawn(700, 1000)
    found = []
    for threads in (1, 2, 5):
        with settings.override(num_threads=threads):
            found.append(be.dot(be.array(x), be.array(y)).asnumpyarray())
    assert all((each == found[0]).all() for each in found)


def test_a_loops_products_are_by_compiled_c(be: Any, by_blas: Any) -> None:
    x, u = be.array(drawn(12, 32, 128)), be.array(drawn(128, 256))
    states, _ = be.scan(lambda h, part: (be.tanh(be.dot(h, u).at[:, :128] + part), None), be.zeros((32, 128)), x)
    assert states.asnumpyarray().shape == (32, 128)
    assert not by_blas
