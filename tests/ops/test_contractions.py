"""Products of vectors, matrices and stacks against NumPy: values, dtypes, layouts, gradients, errors."""

from __future__ import annotations

from timeit import timeit
from typing import Any

import numpy as np
import pytest
from harness.compiling import needs_compiler

from backends import gen_backend, source
from optree.autodiff.api import grad
from optree.dtypes import finfo, is_floating
from optree.errors import AxisError, BackendError, DTypeError, OperandError, ShapeError
from optree.registry import f
from optree.testing import check_grad
from optree.tree.node import OpTreeNode, post_order
from optree.tree.types import TensorType
from optree.tree.variable import Input

DOTS = [
    ((3, 4), (4, 2)),
    ((3, 4), (4,)),
    ((4,), (4, 2)),
    ((4,), (4,)),
    ((1, 1), (1, 1)),
    ((2, 0), (0, 3)),
    ((0, 2), (2, 3)),
]
STACKS = [
    *DOTS,
    ((5, 3, 4), (5, 4, 2)),
    ((5, 3, 4), (4, 2)),
    ((3, 4), (5, 4, 2)),
    ((5, 1, 3, 4), (6, 4, 2)),
    ((1, 3, 4), (5, 4, 2)),
    ((5, 3, 4), (4,)),
    ((4,), (5, 4, 2)),
    ((2, 5, 3, 4), (4,)),
    ((0, 3, 4), (4, 2)),
]


def draw(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.RandomState(len(shapes) + sum(map(sum, shapes)))
    return [rng.normal(size=shape) for shape in shapes]


def value(tree: Any) -> np.ndarray:
    """A tree's value, checked against the type that it promised."""
    array = tree.asnumpyarray()
    assert array.shape == tree.shape
    assert array.dtype == tree.dtype
    return array


def close(got: np.ndarray, wanted: Any) -> None:
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    near = 1e-12 if got.dtype == np.float64 or not is_floating(got.dtype) else 4 * float(finfo(got.dtype).eps)
    np.testing.assert_allclose(got, wanted, rtol=near, atol=near)


# Values


@pytest.mark.parametrize(("left", "right"), DOTS)
def test_dot_is_numpys(be64: Any, left: Any, right: Any) -> None:
    a, b = draw(left, right)
    x, y = be64.array(a), be64.array(b)
    close(value(be64.dot(x, y)), np.dot(a, b))
    close(value(np.dot(x, b)), np.dot(a, b))


@pytest.mark.parametrize(("left", "right"), STACKS)
def test_matmul_is_numpys(be64: Any, left: Any, right: Any) -> None:
    a, b = draw(left, right)
    x, y = be64.array(a), be64.array(b)
    for tree in (be64.matmul(x, y), x @ y, a @ y, x @ b, np.matmul(x, y)):
        close(value(tree), a @ b)


def test_batched_dot_multiplies_matrix_by_matrix(be64: Any) -> None:
    a, b = draw((5, 3, 4), (5, 4, 2))
    close(value(be64.batched_dot(be64.array(a), be64.array(b))), np.stack([p @ q for p, q in zip(a, b, strict=True)]))


@pytest.mark.parametrize(("left", "right"), [((3,), (4,)), ((2, 3), (4,)), ((), (3,)), ((2, 1), (1, 2)), ((0,), (3,))])
def test_outer_is_numpys(be64: Any, left: Any, right: Any) -> None:
    a, b = draw(left, right)
    x, y = be64.array(a), be64.array(b)
    close(value(be64.outer(x, y)), np.outer(a, b))
    close(value(np.outer(x, b)), np.outer(a, b))


def test_outer_takes_numbers_weakly(be: Any) -> None:
    x = be.array([1, 2, 3], dtype=np.float16)
    assert value(be.outer(x, 2.5)).tolist() == [[2.5], [5], [7.5]]
    assert value(be.outer(2, x)).tolist() == [[2, 4, 6]]
    assert be.outer(x, 2.5).dtype == np.float16


@pytest.mark.parametrize(
    ("left", "right", "axes"),
    [
        ((2, 3, 4), (3, 4, 5), 2),
        ((2, 3), (4, 5), 0),
        ((2, 3, 4), (4, 5, 2), ((0, 2), (2, 0))),
        ((2, 3, 4), (4, 5, 3), ((-1, 1), (0, -1))),
        ((2, 3, 4), (2, 3, 4), 3),
        ((3, 2), (3, 4), (0, 0)),
    ],
)
def test_tensordot_is_numpys(be64: Any, left: Any, right: Any, axes: Any) -> None:
    a, b = draw(left, right)
    x, y = be64.array(a), be64.array(b)
    close(value(be64.tensordot(x, y, axes=axes)), np.tensordot(a, b, axes))
    close(value(np.tensordot(x, y, axes)), np.tensordot(a, b, axes))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "uint64", "float16", "float32", "float64"])
def test_dtypes_are_numpys(be: Any, dtype: str) -> None:
    """Small integers wrap, and bools are or'ed, as in NumPy."""
    a = np.array([[100, 7, 0], [1, 0, 3]]).astype(dtype)
    b = np.array([[2, 0], [1, 1], [0, 5]]).astype(dtype)
    x, y = be.array(a, dtype), be.array(b, dtype)
    for mine, numpys in ((be.dot, np.dot), (be.matmul, np.matmul), (be.outer, np.outer)):
        close(value(mine(x, y)), numpys(a, b))
    close(value(be.tensordot(x, y, axes=1)), np.tensordot(a, b, 1))


def test_mixed_dtypes_promote_as_numpys(be: Any) -> None:
    a, b = np.ones((2, 3), np.int32), np.ones((3, 2), np.float32)
    for tree in (be.dot(be.array(a, "int32"), be.array(b)), be.outer(be.array(a, "int32"), be.array(b))):
        assert value(tree).dtype == np.float64


def test_every_layout_multiplies(be64: Any) -> None:
    whole = np.random.RandomState(0).normal(size=(8, 8))
    x = be64.array(whole)
    for name, a, b in (
        ("transposed", (x.T, whole.T), (x, whole)),
        ("both transposed", (x.T, whole.T), (x.T, whole.T)),
        ("with itself", (x, whole), (x.T, whole.T)),
        ("sliced", (x[1:4, ::2], whole[1:4, ::2]), (x[4:, 2:5], whole[4:, 2:5])),
        ("backwards", (x[::-1, ::-3], whole[::-1, ::-3]), (x[:3, ::-2], whole[:3, ::-2])),
        ("one row", (x[2:3], whole[2:3]), (x[:, 1:2], whole[:, 1:2])),
    ):
        close(value(be64.dot(a[0], b[0])), np.array(a[1]) @ np.array(b[1])), name


def test_a_product_may_be_assigned_to_its_own_operand(be64: Any) -> None:
    a, b = draw((6, 6), (6, 6))
    x, y = be64.array(a), be64.array(b)
    x[:] = x @ y
    close(x.get(), a @ b)
    x[:] = be64.dot(x.T, x)
    close(x.get(), (a @ b).T @ (a @ b))
    x @= y
    close(x.get(), (a @ b).T @ (a @ b) @ b)


def test_special_values_are_numpys(be64: Any) -> None:
    a = np.array([[np.inf, 0.0], [np.nan, 1.0], [-0.0, 0.0]])
    b = np.array([[0.0, 1.0], [1.0, 2.0]])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(value(be64.dot(be64.array(a), be64.array(b))), a @ b)


def test_neon_multiplies_columns() -> None:
    be = gen_backend("cpu", compat_mode="neon")
    x, w = be.array([1.0, 2, 3]), be.array(np.ones((2, 3)))
    assert value(be.dot(w, x)).tolist() == [[6], [6]]
    assert value(be.dot(x.T, x)).tolist() == [[14]]
    assert value(be.outer(x, x)).shape == (3, 3)


# Derivatives


def tensors(be: Any, *shapes: tuple[int, ...]) -> list[Any]:
    return [be.array(array) for array in draw(*shapes)]


@pytest.mark.parametrize(("left", "right"), STACKS)
def test_gradients_of_matmul(be64: Any, left: Any, right: Any) -> None:
    operands = tensors(be64, left, right)
    check_grad(be64.matmul, operands)
    if max(len(left), len(right)) <= 2:
        check_grad(be64.dot, operands)


def test_gradients_of_the_others(be64: Any) -> None:
    check_grad(be64.batched_dot, tensors(be64, (2, 3, 4), (2, 4, 2)))
    check_grad(be64.outer, tensors(be64, (2, 2), (3,)))
    check_grad(lambda x, y: be64.tensordot(x, y, axes=((2, 0), (0, 2))), tensors(be64, (2, 3, 4), (4, 3, 2)))
    check_grad(lambda x: be64.dot(x, x.T), tensors(be64, (3, 4)))


def test_the_gradient_of_shared_weights_sums_the_stack_in_the_product(be: Any) -> None:
    """No array of a matrix for each sample is made on the way."""
    x, w = be.ones((50, 3, 4)), be.ones((4, 2))
    gradient = grad(be.sum(x @ w, keepdims=False), w)
    nodes = post_order([gradient], lambda x: x.inputs if isinstance(x, OpTreeNode) else ())
    sizes = [node.size for node in nodes if isinstance(node, OpTreeNode)]
    assert max(sizes) <= 50 * 3 * 4
    np.testing.assert_array_equal(value(gradient), np.full((4, 2), 150))


def test_sizes_known_at_the_call_only() -> None:
    x, w = Input(TensorType("float32", (None, 4)), "x"), Input(TensorType("float32", (4, 3)), "w")
    assert f.dot(x, w).shape == (None, 3)
    assert f.matmul(Input(TensorType("float32", (None, None, 4))), w).shape == (None, None, 3)
    assert f.outer(x, w).shape == (None, 12)
    gradient = grad(f.sum(f.dot(x, w), keepdims=False), w)
    assert gradient.shape == (4, 3)


# Errors


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (
            (3, 4),
            (5, 4),
            r"dot: x \(3, 4\) float32.* and y \(5, 4\).*: the 4 columns of the first meet the 5 rows of the "
            r"second; dot\(x, y.T\) would fit",
        ),
        ((3, 4), (3, 5), r"dot\(x.T, y\) would fit"),
        ((3, 4), (5, 3), r"dot\(y, x\) would fit"),
        ((3, 4), (3,), r"the 4 columns of the first meet the 3 elements of the second; dot\(y, x\) would fit"),
        ((4,), (3, 4), r"the 4 elements of the first meet the 3 rows of the second; dot\(y, x\) would fit"),
        ((3,), (4,), r"the 3 elements of the first meet the 4 elements of the second$"),
        ((2, 3), (4, 5), r"the 3 columns of the first meet the 4 rows of the second$"),
        ((2, 3, 4), (4, 5), "dot takes vectors and matrices; matmul multiplies stacks"),
        ((), (4, 5), "a number has no axis to contract"),
    ],
)
def test_shapes_that_do_not_fit(be: Any, left: Any, right: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        be.dot(be.ones(left, name="x"), be.ones(right, name="y"))


def test_stacks_that_do_not_fit(be: Any) -> None:
    with pytest.raises(ShapeError, match=r"matmul: .*the stacks \(2,\) and \(3,\) do not broadcast"):
        be.ones((2, 3, 4)) @ be.ones((3, 4, 5))
    with pytest.raises(ShapeError, match=r"the 4 columns of the first meet the 3 rows of the second$"):
        be.ones((2, 5, 4)) @ be.ones((3, 5))
    with pytest.raises(ShapeError, match="a number has no axis"):
        be.ones((2, 3)) @ 2.0
    with pytest.raises(ShapeError, match=r"batched_dot: x \(3, 4\) .* is 2-D"):
        be.batched_dot(be.ones((3, 4), name="x"), be.ones((3, 4, 2)))
    with pytest.raises(ShapeError, match="are 1 and 3 matrices"):
        be.batched_dot(be.ones((1, 2, 4)), be.ones((3, 4, 2)))


def test_axes_that_do_not_pair(be: Any) -> None:
    x, y = be.ones((2, 3)), be.ones((3, 4))
    for axes, message in (
        (3, "no 3 axes to pair"),
        (((0, 1), (0,)), "do not pair"),
        (((0, 0), (0, 1)), "do not pair"),
        ((2, 0), "axis 2 is out of range"),
        ("rows", "a number of axes or a pair of tuples"),
    ):
        with pytest.raises(AxisError, match=message):
            be.tensordot(x, y, axes=axes)
    with pytest.raises(ShapeError, match="axis 0 of the first, of size 2, meets axis 0 of the second, of size 3"):
        be.tensordot(x, y, axes=(0, 0))


def test_operands_that_do_not_belong(be: Any) -> None:
    with pytest.raises(OperandError, match="list"):
        be.dot(be.ones((2, 3)), [1, 2, 3])
    with pytest.raises(BackendError):
        be.dot(be.ones((2, 3)), gen_backend("cpu").ones((3, 2)))
    with pytest.raises((DTypeError, OperandError)):
        be.dot(be.ones((2, 3)), np.ones((3, 2), object))


def test_in_neons_mode_tensordot_leaves_two_dimensions_at_least() -> None:
    neon = gen_backend("cpu", compat_mode="neon")
    x = neon.ones((2, 3), name="x")
    assert neon.tensordot(x, neon.ones((3, 2)), 1).shape == (2, 2)
    with pytest.raises(ShapeError, match=r"tensordot: x \(2, 3\).* leave 0 dimensions.*be.sum"):
        neon.tensordot(x, x, 2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_products_accumulate_in_float32(dtype: str) -> None:
    be = gen_backend("cpu")
    x = be.array(np.random.RandomState(0).rand(300, 300), dtype)
    exact = x.get().astype(np.float64) @ x.get().astype(np.float64)
    for product in (be.dot(x, x), be.tensordot(x, x, 1)):
        found = product.asnumpyarray()
        assert found.dtype == x.dtype
        np.testing.assert_allclose(found.astype(np.float64), exact, rtol=0.51 * float(finfo(x.dtype).eps))


@pytest.mark.parametrize("product", [lambda x: f.dot(x, x), lambda x: f.tensordot(x, x, 1)], ids=["dot", "tensordot"])
def test_products_of_float16_are_quicker_than_numpys_own(product: Any) -> None:
    x = gen_backend("cpu").ones((300, 300), "float16")
    array = x.get()
    ours = min(timeit(lambda: product(x).asnumpyarray(), number=1) for _ in range(3))
    assert ours < timeit(lambda: array @ array, number=1) / 3


@needs_compiler
@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "float32"])
def test_an_outer_product_fuses_with_its_use(dtype: str) -> None:
    be = gen_backend("cpu", jit=True)
    x, y = np.arange(3).astype(dtype), np.ones((2, 2), dtype)
    tree = np.outer(be.array(x, dtype), be.array(y, dtype)) + 1
    assert len(source(tree)) == 1
    (found,) = be.evaluate([tree])
    np.testing.assert_array_equal(found.get(), np.outer(x, y) + 1)
