"""Products on a GPU: of all layouts, and with what is computed along with them; on the rig by cuBLASLt's stand-in."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from harness.fake_cublaslt import FakeCuBLASLt
from harness.homes import home
from harness.rig.install import Rig, rig, why_no_rig
from hypothesis import given
from hypothesis import strategies as st

from backends import gen_backend, launches, source
from backends.gpu import cublaslt
from backends.gpu import matmul as products
from backends.gpu.matmul import Products
from optree import function, grad
from optree.errors import BackendError
from optree.tree.types import as_dtype


@pytest.fixture
def multiplier(simulated: Rig) -> tuple[Products, FakeCuBLASLt]:
    """Products on the rig, and their library."""
    made, library = Products(simulated.cupy, False), FakeCuBLASLt(simulated.desk)
    simulated.desk.products.clear()
    made.library = cublaslt.CuBLASLt(library)
    return made, library


def on_device(x: np.ndarray) -> Any:
    """An array of the rig's CuPy."""
    return rig().cupy.asarray(x)


def lying(cupy: Any, x: np.ndarray) -> Any:
    """An array on a device that lies there as this one does here."""
    first, end = np.lib.array_utils.byte_bounds(x)
    memory = cupy.asarray(np.frombuffer(ctypes.string_at(first, max(end - first, 1)), np.uint8).copy())
    return cupy.ndarray(x.shape, x.dtype, memory.data + (x.ctypes.data - first), strides=x.strides)


def exact(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers whose products and sums of some hundred all dtypes hold."""
    return np.random.RandomState(seed).randint(-2, 3, shape).astype(np.float32)


#: How an operand may lie: from an array to one of the same values elsewhere.
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as it is": lambda x: x.copy(),
    "transposed": lambda x: x.copy() if x.ndim < 2 else np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "a part": lambda x: np.pad(x, [(1, 2)] * x.ndim)[tuple(slice(1, n + 1) for n in x.shape)],
    "every other": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    "stack last": lambda x: np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0),
}

SHAPES = [
    ((5, 7), (7, 3)),
    ((7,), (7, 3)),
    ((5, 7), (7,)),
    ((7,), (7,)),
    ((1, 7), (7, 1)),
    ((5, 1), (1, 3)),
    ((2, 5, 7), (7, 3)),
    ((5, 7), (2, 7, 3)),
    ((2, 3, 5, 7), (2, 3, 7, 4)),
    ((2, 1, 5, 7), (3, 7, 4)),
    ((2, 5, 7), (7,)),
    ((7,), (2, 7, 3)),
    ((1, 5, 7), (4, 7, 3)),
    ((0, 7), (7, 3)),
    ((5, 0), (0, 3)),
    ((2, 5, 300), (2, 300, 3)),
]


def shape_of(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
    return np.matmul(np.zeros(x), np.zeros(y)).shape


@pytest.fixture(scope="module")
def multiplies(device_kind: str) -> Any:
    """A function that returns the products and their CuPy: the rig is on in a test, but not yet for this fixture."""

    @cache
    def made() -> tuple[Any, Any]:
        be = home(device_kind)
        return be.product, be.cupy

    return made


@given(
    shapes=st.sampled_from(SHAPES),
    layouts=st.tuples(*[st.sampled_from(sorted(LAYOUTS))] * 4),
    dtype=st.sampled_from(["float32", "float64", "float16", "bfloat16"]),
    alpha=st.sampled_from([1.0, -2.0, 0.5, 0.0]),
    beta=st.sampled_from([None, 1.0, -0.5, 0.0]),
    bias=st.booleans(),
    out=st.sampled_from(["new", "given", "the addend"]),
)
def test_products_of_any_layout(
    multiplies: Any, shapes: Any, layouts: Any, dtype: str, alpha: float, beta: float | None, bias: bool, out: str
) -> None:
    multiply, cupy = multiplies()
    made = shape_of(*shapes)
    wanted = as_dtype(dtype)
    arrays = [exact(*shape, seed=seed) for seed, shape in enumerate((*shapes, made, made[-1:]))]
    ways = [LAYOUTS[way if array.ndim else "as it is"] for way, array in zip(layouts, arrays, strict=True)]
    x, y, addend, vector = (lying(cupy, way(a.astype(wanted))) for way, a in zip(ways, arrays, strict=True))
    expected = alpha * np.matmul(*arrays[:2])
    expected = expected if beta is None else expected + beta * arrays[2]
    bias = bias and len(shapes[1]) > 1
    expected = expected + arrays[3] if bias else expected
    target = None if out == "new" else addend if out == "the addend" else lying(cupy, np.full(made, 9).astype(wanted))
    found = multiply(
        x, y, alpha, None if beta is None else addend, 1.0 if beta is None else beta, vector if bias else None, target
    )
    assert found.dtype == wanted and found.shape == made and (target is None or found is target)
    digits = 2.0**-8 if dtype == "bfloat16" else 0
    np.testing.assert_allclose(found.get().astype(np.float64), expected, rtol=digits, atol=digits)


def test_a_handle_goes_with_the_backend(simulated: Rig) -> None:
    multiply, library = Products(simulated.cupy, False), FakeCuBLASLt(simulated.desk)
    multiply.library = cublaslt.CuBLASLt(library)
    multiply(on_device(exact(4, 4)), on_device(exact(4, 4)))
    assert library.living
    del multiply
    gc.collect()
    assert not library.living


def test_what_is_not_read_may_be_no_number(multiplier: Any) -> None:
    multiply, _ = multiplier
    nan, one = on_device(np.full((2, 2), np.nan)), on_device(np.ones((2, 2)))
    assert np.isnan(multiply(one, one, 1.0, nan, 0.0).get()).all()
    assert np.isnan(multiply(nan, one, 0.0, one).get()).all()
    assert multiply(one, one, out=nan).get().tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize("layout", ["as it is", "transposed"])
def test_products_that_are_alike_are_computed_alike(layout: str, multiplier: Any) -> None:
    multiply, library = multiplier
    x, y, z = (on_device(exact(4, 4, seed=seed)) for seed in range(3))
    out, other = (lying(rig().cupy, LAYOUTS[layout](np.zeros((4, 4), np.float32))) for _ in range(2))
    for alpha, a, b, to in ((1.0, x, y, out), (2.0, y, x, other), (0.0, y, x, other), (3.0, x, z, out), (1.0, x, y, x)):
        expected = alpha * (a.get() @ b.get())
        assert multiply(a, b, alpha, out=to) is to
        np.testing.assert_array_equal(to.get(), expected)
    assert [each["alpha"] for each in library.machine.products] == [1, 2, 1, 3, 1]
    ways = len(library.living)
    multiply(x, z, out=out)
    assert len(library.living) == ways, "one that is alike needs nothing new"


@pytest.mark.parametrize("dtypes", [("float16", "float32"), ("float64", "float32"), ("int8", "float16")])
def test_products_of_mixed_dtypes_stay_right(dtypes: tuple[str, str], multiplier: Any) -> None:
    multiply, _ = multiplier
    x, y = (on_device(exact(4, 4, seed=seed).astype(dtype)) for seed, dtype in enumerate(dtypes))
    for a, b in ((x, y), (y, x)):
        out = on_device(np.zeros((4, 4), np.promote_types(*dtypes)))
        for _ in range(3):
            a += a.dtype.type(1)
            multiply(a, b, out=out)
            np.testing.assert_array_equal(out.get(), a.get() @ b.get())


def test_a_bias_may_lie_in_what_is_written(multiplier: Any) -> None:
    multiply, _ = multiplier
    x, y, out = (on_device(exact(4, 4, seed=seed)) for seed in range(3))
    for row in range(4):
        expected = x.get() @ y.get() + out.get()[row]
        multiply(x, y, bias=out[row], out=out)
        np.testing.assert_array_equal(out.get(), expected)


def test_a_missing_library_and_a_missing_way_are_told(multiplier: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    be = home("gpu")
    be.product.__dict__.pop("library", None)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    with pytest.raises(
        BackendError, match=r"cuBLASLt, which does not load .*pip install 'cupy-cuda13x\[ctk\]'"
    ) as found:
        be.dot(be.ones((2, 3)), be.ones((3, 2))).asnumpyarray()
    assert "while running dot" in found.value.__notes__[0]
    multiply, _ = multiplier
    monkeypatch.setattr(products.Algorithm, "__init__", lambda self, *given: setattr(self, "choice", None))
    with pytest.raises(BackendError, match=r"no algorithm to multiply \(2, 3\) by \(3, 2\) of float64"):
        multiply(on_device(np.ones((2, 3))), on_device(np.ones((3, 2))))


# What plans make of trees


@pytest.fixture
def be(device_kind: str, folder: Any) -> Any:  # kernels are kept in a folder of the test's own
    return home(device_kind)


def ran(be: Any, call: Callable[[], Any]) -> tuple[list[tuple[float, float, bool]], int] | None:
    """The alpha, beta and bias of the products that a call computes, and how many kernels it launches.

    On a real device nobody counts.
    """
    launches = be.kernels.counts.launches
    if not is_simulated():
        call()
        return None
    rig().desk.products.clear()
    call()
    products = [(each["alpha"], each["beta"], each["bias"]) for each in rig().desk.products]
    return products, be.kernels.counts.launches - launches


def is_simulated() -> bool:
    """Whether devices are simulated now."""
    return why_no_rig() is None and rig().machine.is_on


X, Y, Z, V = exact(6, 8), exact(8, 5, seed=1), exact(6, 5, seed=2), exact(5, seed=3)

#: From x, y, z, v to a tree, its value by NumPy, and what computes it: products, and kernels.
TREES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[float, float, bool]], int]] = {
    "twice": (lambda be, x, y, z, v: 2 * be.dot(x, y), lambda x, y, z, v: 2 * (x @ y), [(2, 0, False)], 0),
    "minus": (lambda be, x, y, z, v: -be.dot(x, y), lambda x, y, z, v: -(x @ y), [(-1, 0, False)], 0),
    "plus": (lambda be, x, y, z, v: z + be.dot(x, y), lambda x, y, z, v: z + x @ y, [(1, 1, False)], 0),
    "step": (
        lambda be, x, y, z, v: z - 0.5 * be.dot(x, y),
        lambda x, y, z, v: z - 0.5 * (x @ y),
        [(-0.5, 1, False)],
        0,
    ),
    "both": (
        lambda be, x, y, z, v: be.dot(x, y) * 4 - z * 3,
        lambda x, y, z, v: 4 * (x @ y) - 3 * z,
        [(4, -3, False)],
        0,
    ),
    "bias": (lambda be, x, y, z, v: be.dot(x, y) + v, lambda x, y, z, v: x @ y + v, [(1, 0, True)], 0),
    "all": (
        lambda be, x, y, z, v: v + (2 * be.dot(x, y) - z),
        lambda x, y, z, v: 2 * (x @ y) - z + v,
        [(2, -1, True)],
        0,
    ),
    "sum of products": (
        lambda be, x, y, z, v: be.dot(x, y) + be.dot(z, be.dot(z.T, z)),
        lambda x, y, z, v: x @ y + z @ (z.T @ z),
        [(1, 0, False), (1, 0, False), (1, 1, False)],
        0,
    ),
    "more than that": (
        lambda be, x, y, z, v: be.maximum(be.dot(x, y) + v, 0),
        lambda x, y, z, v: np.maximum(x @ y + v, 0),
        [(1, 0, False)],
        1,
    ),
    "scaled bias": (lambda be, x, y, z, v: be.dot(x, y) + 2 * v, lambda x, y, z, v: x @ y + 2 * v, [(1, 0, True)], 1),
    "a column": (
        lambda be, x, y, z, v: be.dot(x, y) + z[:, :1],
        lambda x, y, z, v: x @ y + z[:, :1],
        [(1, 0, False)],
        1,
    ),
    "used twice": (
        lambda be, x, y, z, v: (d := be.dot(x, y)) + z * be.sum(d, axis=1),
        lambda x, y, z, v: (d := x @ y) + z * d.sum(1, keepdims=True),
        [(1, 0, False)],
        1,
    ),
    "times an array": (lambda be, x, y, z, v: be.dot(x, y) * z, lambda x, y, z, v: (x @ y) * z, [(1, 0, False)], 1),
    "times two numbers": (
        lambda be, x, y, z, v: be.dot(x, y) * 3 * 2 + 1,
        lambda x, y, z, v: (x @ y) * 6 + 1,
        [(1, 0, False)],
        1,
    ),
    "of another dtype": (
        lambda be, x, y, z, v: be.dot(x, y) + be.cast(z, "float64" if z.dtype == "float32" else "float32"),
        lambda x, y, z, v: x @ y + z,
        [(1, 0, False)],
        1,
    ),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_what_products_take_along(be: Any, name: str, dtype: str) -> None:
    build, expected, asked, kernels = TREES[name]
    x, y, z, v = (be.array(a, dtype) for a in (X, Y, Z, V))
    if dtype == "float64" and any(bias for *_, bias in asked):  # of which BLAS adds none
        asked, kernels = [(1, 0, False)], kernels + 1
    tree = build(be, x, y, z, v)
    target = be.zeros((6, 5), tree.dtype)
    for number in range(3):
        found = ran(be, lambda: target.__setitem__(np.s_[:], tree))
        np.testing.assert_array_equal(target.get(), expected(X, Y, Z, V), err_msg=f"run {number}")
        assert found in (None, (asked, kernels))


def test_a_product_whose_shape_others_read_takes_a_bias_also_of_one_batch(be: Any) -> None:
    x, y, z, v = (be.array(a) for a in (X, Y, Z, V))
    product, values = be.expand_dims(x, 0) @ y, list[Any]()
    found = ran(be, lambda: values.extend(be.evaluate([product + v, be.reshape_like(z, product) @ z.T])))
    np.testing.assert_array_equal(values[0].get(), (X @ Y + V)[None])
    np.testing.assert_array_equal(values[1].get(), (Z @ Z.T)[None])
    assert found is None or (sorted(found[0]) == [(1, 0, False), (1, 0, True)] and not found[1])


def test_a_step_of_gradient_descent_is_its_products(be: Any) -> None:
    """The weights' update is computed along with their gradient, in the weights' own memory."""
    x, w, t = be.array(X), be.array(Y), be.array(Z)
    loss = be.sum(be.square(be.dot(x, w) - t)) * 0.5
    step = function([], updates={w: w - 0.125 * grad(loss, w)})
    expected, before = Y, 0
    for _ in range(4):
        before = rig().allocations if is_simulated() else 0
        found = ran(be, step)
        expected = expected - 0.125 * (X.T @ (X @ expected - Z))
        np.testing.assert_allclose(w.get(), expected, rtol=1e-5)
    assert be.stats()["graphs"]["captures"] == 1 and found in (None, ([], 0)), "all of it is a graph"
    assert not is_simulated() or rig().allocations == before


def test_a_product_does_not_wait_for_what_overwrites_its_operands(be: Any) -> None:
    x, y, z = be.array(exact(4, 4)), be.array(exact(4, 4, seed=1)), be.array(exact(4, 4, seed=2))
    a, b, c = x.get(), y.get(), z.get()
    step = function([], updates={x: be.dot(x, y) + z, z: z - be.dot(x, x), y: y + be.dot(y, x)})
    for _ in range(3):
        step()
        a, b, c = a @ b + c, b + b @ a, c - a @ a
        for tensor, expected in ((x, a), (y, b), (z, c)):
            np.testing.assert_array_equal(tensor.get(), expected)


def test_numbers_count_as_they_are_at_the_call(be: Any) -> None:
    x, y, z = (be.array(a) for a in (X, Y, Z))
    target = be.zeros((6, 5))
    for rate in (0.5, 2, 0.0):
        target[:] = z - rate * be.dot(x, y)
        np.testing.assert_array_equal(target.get(), Z - rate * (X @ Y))
    nan = be.array(np.full((6, 5), np.nan))
    target[:] = nan * 0 + be.dot(x, y)
    assert np.isnan(target.get()).all()


def test_what_is_shown_is_what_runs() -> None:
    """Kernels that products compute along are neither printed nor launched."""
    cpu = gen_backend("cpu")
    x, y, z, v = (cpu.array(a) for a in (X, Y, Z, V))
    for build, _, _, kernels in TREES.values():
        tree = build(cpu, x, y, z, v)
        assert len(source(tree, target="cuda")) == len(launches(tree)) == kernels


#: Products with vectors, from a matrix, a vector of its rows' length and one of its columns' to a tree and its value.
VECTORS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "matrix and vector": (lambda be, x, v, w: be.dot(x, v), lambda x, v, w: x @ v),
    "vector and matrix": (lambda be, x, v, w: be.dot(w, x), lambda x, v, w: w @ x),
    "two vectors": (lambda be, x, v, w: be.dot(v, v), lambda x, v, w: v @ v),
    "a stack": (
        lambda be, x, v, w: be.matmul(be.expand_dims(x, 0) * 2, v),
        lambda x, v, w: np.matmul(2 * x[None], v),
    ),
    "of a stack": (lambda be, x, v, w: be.matmul(w, be.expand_dims(x, 0)), lambda x, v, w: np.matmul(w, x[None])),
    "before and after": (
        lambda be, x, v, w: be.tanh(be.dot(be.square(x), v) / 64 + w),
        lambda x, v, w: np.tanh(np.square(x) @ v / 64 + w),
    ),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_product_with_a_vector_is_a_kernel(be: Any, name: str, dtype: str) -> None:
    build, expected = VECTORS[name]
    arrays = exact(40, 70), exact(70, seed=1), exact(40, seed=2)
    tree = build(be, *(be.array(a, dtype) for a in arrays))
    found: list[np.ndarray] = []
    counted = ran(be, lambda: found.append(tree.asnumpyarray()))
    assert (counted is None or not counted[0]) and be.stats()["kernels"]["launches"] and found[0].dtype == dtype
    np.testing.assert_allclose(found[0], expected(*arrays), rtol=2e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("dtypes", [("float32", "float16"), ("float16", "float64"), ("int32", "float32")])
def test_a_product_with_a_vector_of_another_dtype_is_a_kernel(be: Any, dtypes: tuple[str, str]) -> None:
    x, v, b = exact(2, 4, 5), exact(5, seed=1), exact(4, seed=2)
    tree = be.matmul(be.array(x, dtypes[0]), be.array(v, dtypes[1])) * 2 + be.array(b, np.promote_types(*dtypes))
    found: list[np.ndarray] = []
    counted = ran(be, lambda: found.append(tree.asnumpyarray()))
    assert (counted is None or not counted[0]) and found[0].dtype == np.promote_types(*dtypes)
    np.testing.assert_array_equal(found[0], x @ v * 2 + b)


def test_logistic_regression_is_kernels_alone(be: Any) -> None:
    x, w, t = be.array(exact(64, 20)), be.array(exact(20, seed=1)), be.array(exact(64, seed=2) > 0)
    loss = be.mean(be.softplus(be.dot(x, w)) - t * be.dot(x, w))
    step = function([], loss, updates={w: w - 0.5 * grad(loss, w)})
    a, b, c = x.get().astype(np.float64), w.get().astype(np.float64), t.get()
    for _ in range(3):
        losses: list[Any] = []
        counted = ran(be, lambda into=losses: into.append(step().get()))  # type: ignore[misc]
        assert counted is None or not counted[0]
        np.testing.assert_allclose(losses[0], _loss(a, b, c), rtol=1e-5)
        b = b - 0.5 * (a.T @ (1 / (1 + np.exp(-a @ b)) - c)) / len(c)
        np.testing.assert_allclose(w.get(), b, rtol=1e-4, atol=1e-6)


def _loss(x: np.ndarray, w: np.ndarray, t: np.ndarray) -> Any:
    return np.mean(np.logaddexp(0, x @ w) - t * (x @ w))


# What cuBLASLt is told


def _asked(library: FakeCuBLASLt) -> dict[str, Any]:
    """The descriptors that the last product used: alignments, batches, and the bias as the heuristics saw it."""
    kinds: dict[str, list[Any]] = {}
    for made in library.living.values():
        kinds.setdefault(made["kind"], []).append(made)
    layouts, preference = kinds["MatrixLayout"][-4:], kinds["MatmulPreference"][-1]
    return {
        "aligned": [preference[place] for place in range(5, 9)],
        "batches": [(layout[5], layout[6]) for layout in layouts],
        "bias": kinds["MatmulDesc"][-1][8],
    }


@pytest.mark.parametrize("offset", [0, 1, 2, 4, 64])
def test_alignments_are_those_of_the_addresses(offset: int, multiplier: Any) -> None:
    multiply, library = multiplier
    memory = on_device(np.zeros(1 << 10, np.float32))
    first = -memory.data.ptr // 4 % 64  # an address that 256 divides
    x, y, out = (memory[start : start + 16].reshape(4, 4) for start in (first + offset, first + 128, first + 192))
    multiply(x, y, out=out)
    bytes_ = 4 * offset & -(4 * offset) if offset % 64 else 256
    assert _asked(library)["aligned"] == [256, bytes_, 256, 256], "y is a, and x is b"


@pytest.mark.parametrize("shapes", [((3, 4, 5), (5, 6)), ((4, 5), (3, 5, 6)), ((3, 4, 5), (1, 5, 6))])
def test_a_matrix_for_a_whole_batch_has_stride_0(shapes: Any, multiplier: Any) -> None:
    multiply, library = multiplier
    x, y = (on_device(exact(*shape, seed=seed)) for seed, shape in enumerate(shapes))
    x = x[:, ::-1][:, ::-1] if x.ndim == 2 else lying(rig().cupy, LAYOUTS["transposed"](x.get()))  # never one product
    np.testing.assert_array_equal(multiply(x, y).get(), x.get() @ y.get())
    a, b, c, d = _asked(library)["batches"]
    assert a == (3, 30 if len(shapes[1]) == 3 and shapes[1][0] == 3 else 0)
    assert b == (3, 20 if len(shapes[0]) == 3 else 0)
    assert c == d == (3, 24), "each product is written somewhere of its own"


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_a_bias_says_its_alignment_first_and_its_address_at_each_call(offset: int, multiplier: Any) -> None:
    multiply, library = multiplier
    memory = on_device(np.zeros(256, np.float32))
    first = -memory.data.ptr // 4 % 64
    bias, x = memory[first + offset : first + offset + 4], on_device(exact(4, 4))
    seen, find = [], library._heuristic

    def heuristic(handle: int, operation: int, *rest: Any) -> int:
        seen.append(library.living[operation][8])
        return find(handle, operation, *rest)

    kind = type(library.cublasLtMatmulAlgoGetHeuristic)
    multiply.library._functions["MatmulAlgoGetHeuristic"] = kind(heuristic)
    multiply(x, x, bias=bias)
    assert seen == [4 * offset or 256], "a number that is aligned as the bias is, and no address"
    assert _asked(library)["bias"] == bias.data.ptr
