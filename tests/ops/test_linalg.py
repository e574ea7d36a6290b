"""Linear algebra: the promises of every op, NumPy's values, derivatives, shapes that do not fit, singular matrices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import product
from typing import Any

import numpy as np
import pytest
from harness.each import for_each
from harness.homes import home
from harness.linalg_cases import LINALG, linalg_examples, wide
from harness.op_examples import examples_for

from backends import gen_backend
from optree import TensorType, check_grad, function, grad, vmap
from optree.dtypes import bfloat16, is_inexact, real_dtype, wide_dtype
from optree.errors import DisconnectedError, GradientError, OperandError, OptreeError, ShapeError
from optree.registry import NUMPY_FUNCTIONS, OPS, f
from optree.testing.comparison import tolerating
from optree.testing.conformance import LAYOUTS, MIXED, PROMISES, check_backend

L = np.linalg


#: Functions with complex values of real operands, too.
OF_COMPLEX = ("eig", "eigvals")


@pytest.fixture(scope="module")
def cpu(home_kind: str) -> Any:
    """One backend for all that only reads from it."""
    return home(home_kind, datatype=np.float64)


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


# What each op promises


#: The promises of functions; the others are of ops alone.
OF_FUNCTIONS = [p for p in PROMISES if p not in ("backend", "clauses", "identity", "facts", "weak_numbers")]


@for_each(("name", "promise"), product(LINALG, OF_FUNCTIONS), sampled=True)
def test_promise(name: str, promise: str) -> None:
    for example, _ in linalg_examples(name):
        with suppress(L.LinAlgError) if promise == "leaks" else nullcontext():  # of a matrix that is not finite
            PROMISES[promise](example, None)


#: The relative and absolute difference in float64 of a device's LAPACK, whose algorithms are others than NumPy's, and
#: which factorises transposed matrices. On simulated devices, where NumPy factorises these, elements differ by up to
#: 1.4e-14 of themselves, and by 1e-15 of a value's largest; cuSOLVER's own algorithms are left a few times that.
ON_DEVICE = 1e-13, 1e-14


@pytest.mark.matrix
@pytest.mark.parametrize("name", LINALG)
def test_a_backend_gives_what_the_reference_gives(name: str, cpu: Any, home_kind: str) -> None:
    examples = examples_for(name)
    for number, example in enumerate(examples):
        with tolerating(*ON_DEVICE) if home_kind == "gpu" else nullcontext():
            check_backend(example, cpu, number if len(examples) >= len(LAYOUTS) else None)


@for_each(("name", "dtype"), product(LINALG, [*MIXED, "complex64", "complex128", bfloat16()]), sampled=True)
def test_value(name: str, dtype: Any, cpu: Any) -> None:
    for example, meaning in linalg_examples(name):
        values = example.draw(dtype)
        tree = example.tree([cpu.array(x, x.dtype) for x in values])
        wanted = meaning(*values)
        if tree.dtype.kind == "i":
            assert np.array_equal(tree.asnumpyarray(), wanted.astype(tree.dtype)), str(example)
            continue
        given = np.dtype(dtype) if is_inexact(np.dtype(dtype)) else np.dtype(np.float64)
        given = wide_dtype(given) if name in OF_COMPLEX else given
        assert tree.dtype in (given, real_dtype(given)) and tree.dtype.kind in ("c", wanted.dtype.kind, "V")
        got = wide(tree.asnumpyarray())
        assert got.shape == wanted.shape, str(example)
        near = 64 * {2: 2e-3, 4: 1e-7, 8: 2e-16}[real_dtype(given).itemsize] * (4 if dtype == bfloat16() else 1)
        error = np.max(np.abs(got - wanted), initial=0.0)
        assert error <= near * np.max(np.abs(wanted), initial=1.0), f"{example} of {dtype} is off by {error}"


def test_the_meanings_of_all_ops_of_this_file_are_tested() -> None:
    mine = {name for name, op in OPS.items() if op.__module__ in ("optree.ops.linalg", "optree.ops.factorisation")}
    assert mine <= set(LINALG)
    assert {"solve", "inv", "det", "cofactors", "slogdet", "cholesky", "qr", "eigvalsh", "eigh"} <= mine
    assert {"svdvals", "svd", "pinv", "eig", "eigvals"} <= mine


# NumPy's functions

CALLS: list[Callable[..., Any]] = [
    lambda x: L.norm(x),
    *(lambda x, o=o: L.norm(x, o, axis=(-1, 0)) for o in (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)),
    *(lambda x, o=o: L.norm(x, o, (1, 2), True) for o in ("fro", "nuc", 1, -2, np.inf)),
    *(lambda x, o=o: L.norm(x, o, axis=1) for o in (None, 0, 1, 2, 3, 0.5, -1, -2.5, np.inf, -np.inf)),
    *(lambda x, o=o: L.norm(x[0], ord=o) for o in ("nuc", 1, 2, np.inf)),
    lambda x: L.norm(x[0, 0], 3),
    lambda x: L.norm(x, ord=2, axis=-1, keepdims=True),
    lambda x: L.vector_norm(x),
    lambda x: L.vector_norm(x, axis=(0, 2), ord=3, keepdims=True),
    lambda x: L.vector_norm(x, axis=1, ord=1),
    lambda x: L.matrix_norm(x),
    lambda x: L.matrix_norm(x, ord="nuc", keepdims=True),
    lambda x: L.solve(x, np.ones(3)),
    lambda x: L.inv(x),
    lambda x: L.det(x),
    lambda x: L.slogdet(x).logabsdet,
    lambda x: L.slogdet(x).sign,
    lambda x: L.cholesky(x @ np.matrix_transpose(x) + np.eye(3)),
    lambda x: L.cholesky(x @ np.matrix_transpose(x) + np.eye(3), upper=True),
    lambda x: L.qr(x).Q,
    lambda x: L.qr(x[:, :, :2], mode="complete")[0].shape[-1] + x,
    lambda x: L.qr(x, "r"),
    lambda x: L.eigh(x + np.matrix_transpose(x)).eigenvalues,
    lambda x: abs(L.eigh(x, UPLO="u").eigenvectors),
    lambda x: L.eigvalsh(x, "U"),
    lambda x: L.eig(x + 0j).eigenvectors,
    lambda x: L.eigvals(x * 1j),
    lambda x: L.svd(x[:, :2]).U ** 2,
    lambda x: L.svd(x[:, :2]).Vh.shape[-2] + L.svd(x[:, :2]).S,
    lambda x: L.svd(x, compute_uv=False),
    lambda x: L.svdvals(x),
    lambda x: L.pinv(x[:, :2]),
    lambda x: L.pinv(x, rcond=0.1),
    lambda x: L.pinv(x, rtol=0.1),
    lambda x: L.lstsq(x[0, :, :2], x[1])[0],
    lambda x: L.lstsq(x[0, :, :2], x[1])[1],
    lambda x: L.lstsq(x[0], x[1])[1],
    lambda x: L.lstsq(x[0, :, :2], x[1], rcond=-1)[2] + 0.0,
    lambda x: L.lstsq(x[0, :, :2], x[1, 0])[1],
    lambda x: L.lstsq(x[0], x[1, 0], rcond=0.5)[0],
    lambda x: L.lstsq(x[0], x[1])[3],
    lambda x: L.cond(x),
    lambda x: L.cond(x, "fro"),
    lambda x: L.multi_dot([x[0], x[1] + 1, x[0]]),
    lambda x: L.matrix_rank(x * 0 + 1),
    lambda x: L.matrix_rank(x, tol=0.5),
    lambda x: L.matrix_rank(x, rtol=0.3),
    lambda x: L.matrix_rank(x[0, 0]),
    lambda x: L.matrix_power(x, 5),
    lambda x: L.matrix_power(x, -3),
    lambda x: L.matmul(x, x),
    lambda x: L.outer(x[0, 0], x[0, 1]),
    lambda x: L.tensordot(x, x, axes=((1,), (2,))),
    lambda x: L.matrix_transpose(x),
    lambda x: L.diagonal(x, offset=1),
    lambda x: L.trace(x),
    lambda x: L.cross(x[0], x[1]),
    lambda x: L.cross(x, x[::-1], axis=1),
    lambda x: L.vecdot(x, x[0]),
    lambda x: L.vecdot(x, x, axis=0),
]


@for_each("place", range(len(CALLS)))
def test_numpys_function_means_what_numpys_does(place: int, cpu: Any) -> None:
    values = drawn(2, 3, 3) + 2 * np.eye(3)
    tree, wanted = CALLS[place](cpu.array(values, name="x")), np.asarray(CALLS[place](values))
    got = tree.asnumpyarray()
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=1e-11, atol=1e-13)


def test_all_of_numpys_functions_are_called_here() -> None:
    called = {name for call in CALLS for name in call.__code__.co_names}
    offered = {function.__name__ for function in NUMPY_FUNCTIONS if function.__module__ == "numpy.linalg"}
    assert offered <= called


def test_several_values_are_named_as_numpys_are(cpu: Any) -> None:
    x = cpu.array(drawn(3, 3))
    for name in ("svd", "qr", "eigh", "slogdet"):
        assert getattr(L, name)(x)._fields == getattr(L, name)(np.eye(3))._fields
        assert getattr(cpu, name)(x)._fields == getattr(L, name)(x)._fields


def test_a_backend_has_them_by_name_and_as_numpys_namespace(cpu: Any) -> None:
    a, b = drawn(3, 3), drawn(3, seed=1)
    x = cpu.array(a)
    np.testing.assert_allclose(cpu.solve(x, b).asnumpyarray(), L.solve(a, b))
    np.testing.assert_allclose(cpu.linalg.solve(a, b).asnumpyarray(), L.solve(a, b))
    np.testing.assert_allclose(cpu.linalg.norm(x, "nuc").asnumpyarray(), L.norm(a, "nuc"))
    assert cpu.linalg.norm(x, axis=1).shape == (3,)
    assert cpu.norm(x, axis=1).shape == (3, 1)
    assert {"solve", "svd", "norm", "lstsq"} <= set(dir(cpu.linalg))
    out = cpu.zeros((3, 3))
    assert cpu.inv(x, out=out) is out
    np.testing.assert_allclose(out.get(), L.inv(a))
    with pytest.raises(AttributeError, match=r"be\.linalg has no function 'expm'; it has .*solve"):
        cpu.linalg.expm  # noqa: B018
    targets = cpu.zeros((3, 3)), cpu.zeros((3, 3))
    found = cpu.qr(x, out=targets)
    assert found.Q is targets[0]
    np.testing.assert_allclose(found.Q.get() @ found.R.get(), a)
    with pytest.raises(OperandError, match="svd: out is a tensor for each of 3 values"):
        cpu.svd(x, out=out)
    with pytest.raises(OptreeError, match=r"linalg\.qr: .* is of .*, not of"):
        home("cpu").linalg.qr(x)


def test_what_is_common_is_computed_once(cpu: Any) -> None:
    x = cpu.array(drawn(3, 3), name="x")
    u, s, v = L.svd(x)
    found = [each.get() for each in cpu.evaluate([u, s, v])]
    np.testing.assert_allclose((found[0] * found[1]) @ found[2], x.get())


# Derivatives that are not smooth everywhere


def test_the_derivative_of_the_determinant_of_a_singular_matrix(cpu: Any) -> None:
    for values, wanted in (
        ([[1.0, 2.0], [2.0, 4.0]], [[4.0, -2.0], [-2.0, 1.0]]),
        (np.zeros((3, 3)), np.zeros((3, 3))),
        (np.diag([2.0, 3.0, 0.0]), np.diag([0.0, 0.0, 6.0])),
    ):
        x = cpu.array(values)
        np.testing.assert_allclose(grad(L.det(x), x).asnumpyarray(), wanted, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_second_derivative_of_the_determinant_of_singular_matrices(size: int, cpu: Any) -> None:
    rows, step = drawn(size, size), 1e-3
    for values in (np.zeros((size, size)), np.ones((size, size)), rows[[0] * 2 + [*range(2, size)]][:size], rows):
        x, along = cpu.array(np.stack([values, rows])), cpu.array(drawn(2, size, size, seed=3))
        first = grad(np.sum(L.det(x)), x)
        found = grad(np.sum(first * along), x).asnumpyarray()

        def cofactors(t: float, x: Any = x, along: Any = along) -> Any:
            return f.cofactors(cpu.array(x.get() + t * step * along.get())).asnumpyarray()

        # Of a polynomial, differences of eighth order are exact but for rounding.
        weights = {1: 4 / 5, 2: -1 / 5, 3: 4 / 105, 4: -1 / 280}
        wanted = sum(w * (cofactors(t) - cofactors(-t)) for t, w in weights.items()) / step
        np.testing.assert_allclose(found, wanted, atol=1e-10)
    assert np.isnan(grad(np.sum(grad(np.sum(L.det(x * np.nan)), x)), x).asnumpyarray()).all()


def test_a_matrix_that_is_not_finite_has_determinants_of_nan(cpu: Any) -> None:
    x = cpu.array([[[1.0, np.nan], [2.0, 3.0]], [[1.0, 2.0], [5.0, 3.0]]])
    found = grad(np.sum(L.det(x)), x).asnumpyarray()
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1], [[3.0, -5.0], [-2.0, 1.0]])


def test_what_asks_for_no_vectors_has_derivatives_where_values_are_equal(cpu: Any) -> None:
    x = cpu.array(2 * np.eye(3))
    for tree in (L.norm(x, "nuc"), np.sum(L.svd(x).S), np.sum(L.eigvalsh(x)), np.sum(L.eigh(x).eigenvalues)):
        np.testing.assert_allclose(grad(tree, x).asnumpyarray(), np.eye(3), atol=1e-12)
    np.testing.assert_allclose(grad(np.sum(L.pinv(x)), x).asnumpyarray(), np.full((3, 3), -0.25))


@pytest.mark.parametrize("shape", [(2, 4, 3), (3, 5)])
def test_the_derivative_of_least_squares(shape: tuple[int, ...], be64: Any) -> None:
    a, b = be64.array(drawn(*shape)), be64.array(drawn(*shape[:-1], 2, seed=1))
    weights = drawn(*shape[:-2], shape[-1], 2, seed=2)
    check_grad(lambda a, b: np.sum(L.lstsq(a, b)[0] * weights), [a, b])
    check_grad(lambda a, b: np.sum(grad(np.sum(L.lstsq(a, b)[0] * weights), a) ** 2), [a, b])


def test_gradients_of_symmetric_matrices_are_symmetric(cpu: Any) -> None:
    x = cpu.array(np.diag([1.0, 2.0, 4.0]) + 0.1)
    for tree in (np.sum(L.cholesky(x)), np.sum(L.eigh(x).eigenvectors), np.sum(L.eigvalsh(x))):
        found = grad(tree, x).asnumpyarray()
        np.testing.assert_allclose(found, found.T, atol=1e-14)


def test_the_derivative_of_a_complex_sign_and_logarithm(be64: Any) -> None:
    x = be64.array(drawn(3, 3) + 1j * drawn(3, 3, seed=1), "complex128")
    for cost in (
        lambda x: np.sum(np.real(L.slogdet(x).sign * (2 + 1j))),
        lambda x: np.sum(np.imag(L.slogdet(x).sign) * L.slogdet(x).logabsdet),
        lambda x: np.real(L.svd(x).U.at[0, 1] * L.svd(x).Vh.at[1, 2]),
        lambda x: np.abs(L.eig(x).eigenvectors.at[0, 1]) + np.real(L.eigvals(x).at[2] ** 2),
    ):
        check_grad(cost, [x])


def test_vectors_that_are_arbitrary_have_no_derivative_and_say_so(cpu: Any) -> None:
    x = cpu.array(drawn(4, 2), name="x")
    with pytest.raises(GradientError, match=r"svd: .*x \(4, 2\).*full_matrices=False leaves them out"):
        grad(np.sum(L.svd(x).U), x)
    assert grad(np.sum(L.svd(x).S), x).shape == (4, 2)
    with pytest.raises(GradientError, match="qr: .*mode='reduced' leaves them out"):
        grad(np.sum(L.qr(x, "complete").Q), x)
    with pytest.raises(DisconnectedError):
        grad(np.sum(L.svd(x).S), cpu.ones(2))
    assert not grad(np.sum(L.slogdet(x[:2]).sign), x).asnumpyarray().any()


# Sizes that are known when a function is called


def test_sizes_may_be_open(cpu: Any) -> None:
    x, y = TensorType("float64", (None, None))("x"), TensorType("float64", (None,))("y")
    spd = np.matmul(x, np.transpose(x)) + L.matrix_power(x, 0)
    outputs = [
        *(L.solve(x, y), L.inv(x), L.det(x), L.slogdet(x)[1], L.cholesky(spd), L.eigvalsh(spd), L.svdvals(x)),
        *(L.pinv(x), L.lstsq(x, y)[0], L.matrix_rank(x), L.norm(x, "nuc"), L.qr(x).R, L.svd(x, False).S),
    ]
    gradients = [
        grad(np.sum(tree), x)
        for tree in (L.solve(x, y), L.inv(x), L.det(x), L.slogdet(x)[1], L.cholesky(spd), L.eigvalsh(spd), L.pinv(x))
    ]
    call = function([x, y], [*outputs, *gradients])
    for n in (2, 3):
        a, b = drawn(n, n), drawn(n, seed=1)
        found = [each.get() if hasattr(each, "get") else each for each in call(a, b)]
        np.testing.assert_allclose(found[0], L.solve(a, b))
        np.testing.assert_allclose(found[4], L.cholesky(a @ a.T + np.eye(n)))
        np.testing.assert_allclose(found[8], L.lstsq(a, b)[0])
        np.testing.assert_allclose(found[len(outputs) + 2], L.det(a) * L.inv(a).T)
    with pytest.raises(ShapeError, match=r"\(2, 3\)"):
        call(drawn(2, 3), drawn(2))


def test_a_pseudo_inverse_has_a_tolerance_for_each_matrix(cpu: Any):
    values = np.random.RandomState(0).normal(size=(2, 3, 4))
    x, rtol = cpu.array(values, name="x"), cpu.array(np.array([0.9, 1e-6]))
    wanted = np.linalg.pinv(values, rtol=rtol.get())
    assert L.pinv(x, rtol=rtol).op.name == "pinv_by_tolerances"
    for given in (rtol, rtol.get(), rtol[:1]):
        expected = np.linalg.pinv(values, rtol=given if isinstance(given, np.ndarray) else given.get())
        np.testing.assert_allclose(L.pinv(x, rtol=given).asnumpyarray(), expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(L.pinv(x, rcond=rtol * 1).asnumpyarray(), wanted, rtol=1e-12, atol=1e-14)
    each = vmap(lambda x, rtol: L.pinv(x, rtol=rtol))
    np.testing.assert_allclose(each(x, rtol).asnumpyarray(), wanted, rtol=1e-12, atol=1e-14)
    alone = vmap(lambda x: L.pinv(x, rtol=rtol[0]))(x)
    np.testing.assert_allclose(alone.asnumpyarray(), np.linalg.pinv(values, rtol=0.9), rtol=1e-12, atol=1e-14)
    check_grad(lambda x: L.pinv(x, rtol=cpu.array(np.array([1e-3, 1e-6]))) ** 2, [x])
    with pytest.raises(
        ShapeError, match=r"tolerances of shape \(3,\) are not one for each matrix of a stack of \(2,\)"
    ):
        L.pinv(x, rtol=np.ones(3))
    assert L.pinv(cpu.zeros((2, 0, 3)), rtol=rtol).asnumpyarray().shape == (2, 3, 0)


# What cannot be


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, v: L.inv(x), r"inv: x \(2, 3\) float64.*: a square matrix is wanted, not 2 rows of 3 columns"),
        (lambda x, v: L.det(v), r"det: v \(3,\) float64.*: matrices have two dimensions at least, and this has 1"),
        (lambda x, v: L.slogdet(x), r"slogdet: x \(2, 3\) float64.*: a square matrix"),
        (lambda x, v: L.eigh(v), r"eigh: v \(3,\) float64.*: matrices have two"),
        (lambda x, v: L.svd(v), r"svd: v \(3,\) float64.*: matrices have two"),
        (lambda x, v: L.svdvals(v), r"svdvals: v \(3,\) float64.*: matrices have two"),
        (lambda x, v: L.solve(x, v), r"solve: x \(2, 3\) float64.* and v \(3,\) float64.*: a square matrix"),
        (lambda x, v: L.solve(x[:, :2], v), r"solve: .* and v \(3,\) float64.*: the 2 equations .* 3 elements"),
        (lambda x, v: L.solve(x[:, :2], L.matrix_transpose(x)), r"solve: .*: the 2 equations .* 3 rows"),
        (lambda x, v: L.lstsq(x, v), r"lstsq: x \(2, 3\) float64.* and v \(3,\) float64.*: the 2 rows"),
        (lambda x, v: L.matrix_power(x, 2), r"matrix_power: x \(2, 3\) float64.*: a square matrix"),
        (lambda x, v: L.norm(np.ones((1, 1, 1)) * v, 2), r"norm: with ord=2, .* of 3 dimensions needs an axis"),
        (lambda x, v: L.norm(v[:0], -np.inf), r"norm: .*there are no elements"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_names(call: Any, message: str, cpu: Any) -> None:
    with pytest.raises(ShapeError, match=message):
        call(cpu.array(drawn(2, 3), name="x"), cpu.array(drawn(3), name="v"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: L.matrix_power(x, 1.5), "matrix_power: n is an integer, not 1.5"),
        (lambda x: L.qr(x, "raw"), "qr: mode is 'reduced', 'complete' or 'r', not 'raw'"),
        (lambda x: L.eigh(x, "X"), "eigh: UPLO is 'L' or 'U', not 'X'"),
        (lambda x: L.norm(x, "two"), "norm: of matrices ord is .*, not 'two'"),
        (lambda x: L.norm(x, 3), "norm: of matrices ord is .*, not 3"),
        (lambda x: L.norm(x, "nuc", axis=0), "norm: ord='nuc' is of matrices, along two axes"),
        (lambda x: L.pinv(x, rtol="small"), "pinv: rtol is a number, not"),
        (lambda x: L.svd(x, hermitian=True), "does not take hermitian"),
        (lambda x: f.norm(x, axis=(0, 1), ord=1), r"be\.linalg\.norm has norms of matrices"),
    ],
)
def test_parameters_that_there_are_not_are_refused(call: Any, message: str, cpu: Any) -> None:
    with pytest.raises(TypeError, match=message):
        call(cpu.array(drawn(3, 3), name="x"))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: L.inv(x), "inv"),
        (lambda x: L.solve(x, np.ones(2)), "solve"),
        (lambda x: L.solve(np.stack([x, x]), np.ones(2)), "solve"),
        (lambda x: L.cholesky(x - np.eye(2)), "cholesky"),
        (lambda x: L.svd(x / np.zeros((2, 2))).S, "svd"),  # on which LAPACK may never end
        (lambda x: L.svdvals(x * np.nan), "svdvals"),
        (lambda x: L.eigvalsh(x * np.inf), "eigvalsh"),
        (lambda x: L.eigh(x * np.inf)[1], "eigh"),
        (lambda x: L.pinv(x * np.inf), "pinv"),
    ],
)
def test_a_matrix_without_a_value_raises_numpys_error_when_it_runs(call: Any, name: str, cpu: Any) -> None:
    x = cpu.array(np.ones((2, 2)), name="x")
    target = cpu.full(call(x).shape, 5.0)
    with pytest.raises(L.LinAlgError) as caught:
        target[...] = call(x)
    assert f"while running {name}" in "".join(caught.value.__notes__)
    assert (target.get() == 5.0).all(), "an assignment that fails leaves its target as it was"


def test_on_a_device_they_run_there() -> None:
    be = home("stand-in")
    x = be.array(drawn(2, 3, 3) + 3 * np.eye(3))
    trees = [
        *(L.solve(x, np.ones((3, 1), np.float32)), L.inv(x), L.det(x), f.cofactors(x), L.slogdet(x)[1]),
        *(L.cholesky(x @ np.matrix_transpose(x)), L.qr(x).R, L.eigh(x)[1], L.eigvalsh(x), L.svd(x).U, L.svdvals(x)),
        L.pinv(x),
    ]
    be.evaluate(trees)
    assert be.host_calls == 0


def test_in_neons_mode_values_of_fewer_dimensions_are_refused(cpu: Any) -> None:
    neon = home("cpu", compat_mode="neon")
    x = neon.array(drawn(3, 3))
    assert neon.inv(x).shape == neon.cholesky(x).shape == (3, 3)
    for call in (neon.det, neon.slogdet, neon.svdvals, neon.eigh):
        with pytest.raises(ShapeError, match="in neon's mode there are two at least"):
            call(x)


@pytest.mark.parametrize("name", [n for n in LINALG if n in OPS])
def test_a_slightly_wrong_gradient_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = OPS[name]
    right = op.grad

    def wrong(self: Any, inputs: Any, deltas: Any) -> list[Any]:
        return [None if g is None else g * 1.01 for g in right(self, inputs, deltas)]

    monkeypatch.setattr(op, "grad", wrong)
    with pytest.raises(AssertionError, match="gradient"):
        for example, _ in linalg_examples(name):
            PROMISES["gradient"](example, None)


def test_vecdot_of_halves_rounds_no_product():
    """As NumPy's does not: products that are beyond float16, or whose last bits are, cancel."""
    x = np.array([[300, -300], [1 + 2.0**-10, -1 - 2.0**-9]], "float16")
    y = np.array([[300, 300], [1 + 2.0**-10, 1]], "float16")
    be = gen_backend("cpu")
    found = np.vecdot(be.array(x, dtype="float16"), be.array(y, dtype="float16")).asnumpyarray()
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, np.vecdot(x, y))
    np.testing.assert_array_equal(found, [0, 2.0**-20])
