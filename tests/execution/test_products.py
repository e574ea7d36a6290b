"""Where products of matrices are written: into what they are assigned to, whatever its layout, unless they read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness.counting import allocated
from harness.rig.install import rig

from backends import gen_backend
from backends.cpu import ahead, backend  # noqa: F401, which functions import at their first call: memory, too
from backends.cpu.compiler import find_compiler
from backends.cpu.routines.products import matmul_by_copy, merging
from backends.execution.specialize import MAX_SHAPES
from optree import TensorType, function


@pytest.fixture(params=["cpu", "no compiler", pytest.param("gpu", marks=pytest.mark.on_the_rig)])
def be(request: pytest.FixtureRequest) -> Any:
    """A backend whose plans run by kernels from the first call on, but for the one that has no compiler."""
    if request.param == "gpu":
        return gen_backend("gpu")
    if request.param == "cpu" and find_compiler() is None:
        pytest.skip("there is no C compiler")
    be = gen_backend("cpu", jit=request.param == "cpu")
    square = values(600, 600)
    be.product(square, square)  # whose scratch memory serves all products
    return be


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(-9, 9, shape).astype(np.float32)


#: From the memory of a (600, 600) target to a view of shape (300, 200) that is written.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda z: z[:300, :200],
    "transposed": lambda z: z[:200, :300].T,
    "every other column": lambda z: z[100:400, ::3],
    "upside down": lambda z: z[:300, :200][::-1],
}

PRODUCTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda be: be.dot(be.array(values(300, 80)), be.array(values(80, 200, seed=1))),
    "transposed views": lambda be: be.dot(be.array(values(80, 300)).T, be.array(values(200, 80, seed=1)).T),
    "parts": lambda be: be.dot(be.array(values(300, 90))[:, 10:], be.array(values(200, 90, seed=1)).T[:80]),
}


def held(be: Any, call: Callable[[], Any], before: int = 4) -> int:
    """The allocations of a call after some calls before: bytes on the CPU, on a device a million for each array."""
    if be.name == "cpu":
        return allocated(call, before)
    for _ in range(before):
        call()
    there = rig().allocations
    call()
    return 1_000_000 * (rig().allocations - there)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_product_is_written_into_its_target(be: Any, product: str, view: str) -> None:
    z, tree = be.zeros((600, 600)), PRODUCTS[product](be)
    target = VIEWS[view](z)

    def assign() -> None:
        target[:] = tree

    is_copied = view in ("every other column", "upside down")  # BLAS writes into no such memory
    if be.name == "gpu":
        assert held(be, assign) == 1_000_000 if is_copied else held(be, assign) < 8192
    else:
        by_numpy = is_copied and be.compiler is None  # which copies, since 2.5 in memory that tracemalloc sees
        assert held(be, assign) < 8192 + by_numpy * 240_000
    expected = np.zeros((600, 600), np.float32)
    VIEWS[view](expected)[:] = tree.asnumpyarray()
    np.testing.assert_array_equal(z.get(), expected)


@pytest.mark.parametrize("view", VIEWS)
def test_a_product_is_copied_where_blas_cannot_write(view: str) -> None:
    x, y, z = values(300, 80), values(80, 200, seed=1), VIEWS[view](np.zeros((600, 600), np.float32))
    assert (allocated(lambda: matmul_by_copy(x, y, out=z)) > 240_000) is (view in ("every other column", "upside down"))
    assert matmul_by_copy(x, y, out=z) is z
    np.testing.assert_array_equal(z, matmul_by_copy(x, y))
    np.testing.assert_array_equal(z, x @ y)


def test_a_stack_of_products_is_written_into_its_target(be: Any) -> None:
    x, y, z = be.array(values(4, 100, 80)), be.array(values(4, 90, 80)), be.empty((4, 100, 90))

    def assign() -> None:
        z[:] = be.matmul(x, be.transpose(y, (0, 2, 1)))

    assert held(be, assign) < 8192
    np.testing.assert_array_equal(z.get(), x.get() @ y.get().transpose(0, 2, 1))


def products(be: Any) -> dict[Any, Any]:
    x, y = be.array(values(300, 80)), be.array(values(200, 80, seed=1))
    trees = be.dot(x, y.T), be.dot(y, x.T), be.dot(y, y.T)
    return {be.zeros(tree.shape): tree for tree in trees}


def test_an_update_by_a_product_takes_no_memory(be: Any) -> None:
    """Not for its first call either, in which functions keep memory for values on the way."""
    target, tree = next(iter(products(be).items()))
    step = function([], updates={target: tree})
    taken = held(be, step, before=0)
    assert taken < 60_000  # what is made of Python objects; the product has 240,000 bytes
    np.testing.assert_array_equal(target.get(), tree.asnumpyarray())


def test_several_updates_by_products_take_no_memory(be: Any) -> None:
    if be.name == "cpu" and be.compiler is None:
        pytest.skip("without a compiler, small work is NumPy's, which keeps none of a function's products apart")
    updates = products(be)
    step = function([], updates=updates)
    assert held(be, step, before=0) < 60_000
    for target, tree in updates.items():
        np.testing.assert_array_equal(target.get(), tree.asnumpyarray())


def test_a_product_that_reads_its_target_is_right(be: Any) -> None:
    start = values(60, 60) / 8
    z, x = be.array(start), be.array(values(60, 60, seed=1))
    for assign, expected in (
        (lambda: z.__setitem__(np.s_[:], be.dot(z, x)), start @ x.get()),
        (lambda: z.__setitem__(np.s_[:], be.dot(x, z.T)), x.get() @ start.T),
        (lambda: z[:30].__setitem__(np.s_[:], be.dot(z[20:50], x)), np.vstack([start[20:50] @ x.get(), start[30:]])),
        (function([], updates={z: be.dot(z, x)}), start @ x.get()),
    ):
        for _ in range(3):
            z[:] = start
            assign()
            np.testing.assert_array_equal(z.get(), expected)


def test_updates_by_products_see_what_was_before(be: Any) -> None:
    start = [values(50, 50) / 8, values(50, 50, seed=1) / 8]
    x, y = map(be.array, start)
    total = be.zeros((50, 50))
    step = function([], be.dot(x, y), updates={x: be.dot(y, x), y: be.dot(x, x), total: total + be.dot(x, y)})
    a, b = start
    for _ in range(2):
        found = step().get()
        np.testing.assert_allclose(found, a @ b, rtol=1e-4, atol=1e-1)
        a, b = b @ a, a @ a
        for tensor, expected in ((x, a), (y, b)):
            np.testing.assert_allclose(tensor.get(), expected, rtol=1e-4, atol=1e-1)


@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("float64", "float32"), ("int32", "int32")])
def test_a_target_of_another_dtype_gets_a_cast_of_the_product(be: Any, dtypes: tuple[str, str]) -> None:
    of, into = dtypes
    x, y = be.array(values(30, 40), of), be.array(values(40, 20, seed=1), of)
    z = be.zeros((30, 20), into)
    z[:] = be.dot(x, y)
    np.testing.assert_array_equal(z.get(), (x.get() @ y.get()).astype(into))
    row, rows = be.ones((40,), of), be.zeros((30, 20), into)
    rows[:] = be.dot(row, y)
    np.testing.assert_array_equal(rows.get(), np.broadcast_to(y.get().sum(0), (30, 20)))


#: From an array of shape (4, 3, 40) to the same values in another layout, and whether its rows are those of a matrix.
LAYOUTS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], bool]] = {
    "as it is": (np.ascontiguousarray, True),
    "part of longer rows": (lambda x: np.concatenate([x, x], axis=2)[..., : x.shape[2]], True),
    "rows last": (lambda x: np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 2, 0)), 0, 2), True),
    "matrices turned": (lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1), False),
    "upside down": (lambda x: np.ascontiguousarray(x[::-1])[::-1], False),
}


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stack_times_a_matrix_is_one_product_where_layouts_allow(layout: str, to: str) -> None:
    calls = list[tuple[int, ...]]()

    def product(x: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        calls.append(x.shape)
        return np.matmul(x, y, out=out)

    (arrange, is_one), (arrange_out, is_one_out) = LAYOUTS[layout], LAYOUTS[to]
    x, y, out = arrange(values(4, 3, 40)), values(40, 30, seed=1), arrange_out(np.zeros((4, 3, 30), np.float32))
    found = merging(product)(x, y, out=out)
    np.testing.assert_array_equal(found, np.matmul(x, y))
    assert found is out and calls == [(12, 40) if is_one and is_one_out else (4, 3, 40)]
    np.testing.assert_array_equal(merging(product)(x, y), found)
    assert calls[1:] == [(12, 40) if is_one else (4, 3, 40)]


@pytest.mark.parametrize("shape", [(0, 3, 40), (5, 0, 40), (5, 3, 0), (2, 5, 1, 40), (1, 1, 40), (3, 40)])
def test_stacks_of_all_sizes_times_a_matrix(shape: tuple[int, ...]) -> None:
    x, y = values(*shape), values(shape[-1], 30, seed=1)
    out = np.ones((*shape[:-1], 30), np.float32)
    np.testing.assert_array_equal(merging(np.matmul)(x, y, out=out), np.matmul(x, y))
    np.testing.assert_array_equal(merging(np.matmul)(x, y), out)


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
@pytest.mark.parametrize("jit", [True, "auto"])
def test_small_products_of_repeated_functions_are_one_kernel_with_what_follows(jit: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(backend, "REPEATED", 2)
    monkeypatch.setattr(backend, "WORK", 1)
    be = gen_backend("cpu", jit=jit)
    for sizes in ((3, 4, 5), (1, 7, 2), (20, 30, 33), (40, 80, 60)):
        a, s, x = (values(*shape) for shape in (sizes[:2], sizes[1:], sizes[::2]))
        out = be.empty(x.shape)
        step = function([], [], updates=[(out, be.tanh(be.dot(be.array(a), be.array(s)) * 0.01 + be.array(x)))])
        for _ in range(4):
            out[:] = 0
            step()
            np.testing.assert_allclose(out.asnumpyarray(), np.tanh(a @ s * 0.01 + x), rtol=1e-5, atol=1e-6)
        plans = step._plan.by_products.values()
        is_small = sizes[0] < 40
        kinds = [each.kind for plan in plans for each in plan.steps if not getattr(each, "is_view", False)]
        assert kinds == ["kernel"] * is_small


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
def test_a_function_of_small_products_multiplies_large_ones_by_calls() -> None:
    be = gen_backend("cpu", jit=True)
    x, y = (TensorType("float32", (None, None))(name) for name in "xy")
    f = function([x, y], be.dot(x, y) + 1)
    for rows, inner, columns in ((3, 3, 3), (2, 5, 4), (2, 5, 4), (90, 80, 70), (4, 4, 4), (0, 3, 2), (3, 0, 2)):
        a, b = values(rows, inner), values(inner, columns)
        np.testing.assert_array_equal(f(a, b), a @ b + 1)


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
def test_small_products_by_random_indices_are_those_of_einsum() -> None:
    """In tiles of rows and columns, and parts of tiles, of operands in any layout, strided columns packed."""
    be, draw = gen_backend("cpu", jit=True, datatype="float64"), np.random.RandomState(0)
    for pattern in ("ij,jk->ik", "ji,kj->ki", "bij,bkj->bik", "ijl,ljk->ik", "bij,jk->bki", "ij,j->i"):
        sizes = dict(zip("bijkl", (3, *draw.choice([5, 8, 9, 37, 70], 3), 2), strict=True))
        x, y = (draw.rand(*(sizes[i] for i in given)) - 0.5 for given in pattern.split("->")[0].split(","))
        found = function([], be.tanh(be.einsum(pattern, be.adopt(x), be.adopt(y))))().asnumpyarray()
        np.testing.assert_allclose(found, np.tanh(np.einsum(pattern, x, y)), rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_stacks_of_small_products_are_kernels_in_assignments_too(dtype: str) -> None:
    be, draw = gen_backend("cpu", jit=True, datatype=dtype), np.random.RandomState(0)
    for rows, inner, columns in (
        (4, 4, 4),
        (2, 3, 5),
        (8, 8, 8),
        (3, 3, 1),
        (4, 7, 3),
        (5, 4, 2),
        (1, 6, 6),
        (3, 2, 7),
    ):
        for count in (64, 200):
            x, y = (draw.rand(count, *shape).astype(dtype) for shape in ((rows, inner), (inner, columns)))
            out = be.empty((count, rows, columns))
            out[:] = be.matmul(be.array(x), be.array(y)) + 1
            expected = np.matmul(x.astype("float64"), y) + 1
            np.testing.assert_allclose(out.get(), expected, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
def test_stacks_of_single_columns_are_kernels_under_functions_if_their_sums_are_short() -> None:
    be, draw = gen_backend("cpu", jit=True, datatype="float64"), np.random.RandomState(0)
    for inner in (3, 16, 17):
        x, y = draw.rand(70, 5, inner), draw.rand(70, inner, 1)
        step = function([], be.tanh(be.matmul(be.array(x), be.array(y))))
        np.testing.assert_allclose(step().get(), np.tanh(np.matmul(x, y)), rtol=1e-14)
        assert bool(step._plan.by_products) == (inner <= 16)


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
def test_stacks_of_small_products_compile_for_few_shapes() -> None:
    be = gen_backend("cpu", jit=True)
    x, y = (TensorType("float32", (None, None, None))(name) for name in "xy")
    step, compiled = function([x, y], be.matmul(x, y) + 1), []
    for rows, columns in ((2, 2), (3, 3), (4, 4), (5, 5), (2, 5), (8, 8), (4, 3)):
        for count in (64, 80):
            a, b = values(count, rows, columns), values(count, columns, columns, seed=1)
            np.testing.assert_array_equal(step(a, b), a @ b + 1)
            (plan,) = step._plan.by_products.values()
            (kernel,) = [each.kernel for each in plan.steps if each.kind == "kernel"]
            compiled.append(len(kernel._nests))
    assert compiled[: 2 * MAX_SHAPES] == [n for n in range(1, MAX_SHAPES + 1) for _ in range(2)]
    assert set(compiled[2 * MAX_SHAPES :]) == {MAX_SHAPES + 1}
