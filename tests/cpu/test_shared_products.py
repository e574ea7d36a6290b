"""Products by OpenBLAS in parts: values of every layout, what np.matmul computes, and OpenBLAS's own threads."""

from __future__ import annotations

import os
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from harness.compiling import needs_compiler

from backends import gen_backend
from backends.cpu import shared_products
from backends.cpu.openblas import one_thread, products, threads
from backends.cpu.shared_products import MIN_SIDE, SMALL, SharedProduct
from optree.registry import f

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(not products(), reason="NumPy has another BLAS"),
]

LAYOUTS: dict[str, Any] = {
    "in C order": lambda x: x,
    "transposed": lambda x: np.asfortranarray(x),
    "part of the columns": lambda x: np.repeat(x, 2, axis=1)[:, : x.shape[1]],
    "strided both ways": lambda x: np.repeat(np.repeat(x, 2, axis=1), 2, axis=0)[::2, ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
}


@pytest.fixture(scope="module")
def be() -> Any:
    return gen_backend("cpu", jit=True)


@pytest.fixture(autouse=True, params=[2, 3])
def several(request: pytest.FixtureRequest, monkeypatch: Any) -> Any:
    """That many threads, whatever OpenBLAS may use."""
    monkeypatch.setattr(shared_products, "_threads", lambda: request.param)
    monkeypatch.setattr(shared_products, "PART", 1 << 16)
    return request.param


@pytest.fixture
def calls(monkeypatch: Any) -> list[int]:
    """The numbers of threads that OpenBLAS has in each shared product."""
    found: list[int] = []
    control = threads()
    assert control is not None
    one_thread = shared_products.one_thread

    class Recorded:
        def __enter__(self) -> None:
            self.within = one_thread()
            self.within.__enter__()
            found.append(control.get())

        def __exit__(self, *error: Any) -> None:
            self.within.__exit__(*error)

    monkeypatch.setattr(shared_products, "one_thread", Recorded)
    return found


def drawn(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("second", LAYOUTS)
@pytest.mark.parametrize("first", LAYOUTS)
def test_layouts(be: Any, calls: Any, first: str, second: str, dtype: str) -> None:
    multiply, bound = SharedProduct(be), 100 * np.finfo(dtype).eps
    for rows, inner, columns in ((600, 67, 31), (31, 130, 601), (64, 64, 64)):
        x, y = LAYOUTS[first](drawn(rows, inner, dtype=dtype)), LAYOUTS[second](drawn(inner, columns, dtype=dtype))
        wanted = x.astype("float64") @ y.astype("float64")
        for out in (None, np.empty((rows, columns), dtype), np.empty((columns, rows), dtype).T):
            found = multiply(x, y, out=out)
            assert found.dtype == dtype and (out is None or found is out)
            np.testing.assert_allclose(found, wanted, rtol=bound, atol=bound * inner)
    assert calls == [1] * 9


def test_a_result_may_overlap_the_operands(be: Any, calls: Any) -> None:
    x = drawn(128, 128)
    wanted = x @ x
    SharedProduct(be)(x, x, out=x)
    np.testing.assert_allclose(x, wanted, rtol=1e-4, atol=1e-4)
    assert calls == [1]


@pytest.mark.parametrize(
    "x, y",
    [
        (drawn(16, SMALL // 16 // 16 - 1), drawn(SMALL // 16 // 16 - 1, 16)),
        (drawn(MIN_SIDE - 1, 512), drawn(512, 512)),
        (drawn(3, 64, 64), drawn(64, 64)),
        (drawn(128, 128), drawn(128, 128, dtype="float64")),
        (drawn(128, 128).astype("int32"), drawn(128, 128).astype("int32")),
    ],
)
def test_np_matmul_computes_the_rest(be: Any, calls: Any, x: Any, y: Any) -> None:
    np.testing.assert_array_equal(SharedProduct(be)(x, y), np.matmul(x, y))
    assert not calls


def test_what_a_backend_multiplies_is_shared(be: Any, calls: Any) -> None:
    """Products of matrices, and contractions, which the derivatives of stacks are."""
    if not isinstance(be.product, SharedProduct):
        pytest.skip("MKL multiplies")
    x, y = drawn(600, 80), drawn(80, 90)
    np.testing.assert_allclose(be.dot(be.array(x), be.array(y)).asnumpyarray(), x @ y, rtol=1e-4, atol=1e-4)
    assert len(calls) == 1
    stacks = drawn(2, 80, 600), drawn(2, 80, 90)
    tree = f.tensordot(*(be.array(z) for z in stacks), axes=((0, 1), (0, 1)))
    np.testing.assert_allclose(tree.asnumpyarray(), np.einsum("nij,nik->jk", *stacks), rtol=1e-4, atol=1e-4)
    assert len(calls) == 2


def test_it_has_no_more_threads_than_openblas(monkeypatch: Any) -> None:
    monkeypatch.undo()
    found: Any = threads()
    before = found.get()
    try:
        found.set(1)
        assert shared_products._threads() == 1
    finally:
        found.set(before)


def test_a_child_forked_during_a_product_has_openblas_threads() -> None:
    control = threads()
    assert control is not None
    before, begun, forked = control.get(), Event(), Event()

    def multiply() -> None:
        with one_thread():
            begun.set()
            forked.wait()

    control.set(2)
    thread = Thread(target=multiply)
    thread.start()
    try:
        begun.wait()
        child = os.fork()
        if not child:
            os._exit(control.get())
        _, status = os.waitpid(child, 0)
    finally:
        forked.set()
        thread.join()
        found = control.get()
        control.set(before)
    assert (os.waitstatus_to_exitcode(status), found) == (2, 2)
