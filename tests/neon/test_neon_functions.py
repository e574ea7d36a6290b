"""neon's functions, products and the binary family, against the rows of its specification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

VALUES = np.array([[0.5, -1.25, 2.0], [3.0, 0.0, -0.75]])
POSITIVE = np.abs(VALUES) + 0.25

UNARY = {
    "reciprocal": lambda x: 1 / x,
    "negative": lambda x: -x,
    "sgn": np.sign,
    "absolute": np.abs,
    "fabs": np.abs,
    "sqrt": np.sqrt,
    "square": np.square,
    "exp": np.exp,
    "exp2": np.exp2,
    "safelog": lambda x: np.log(np.maximum(x, np.exp(-50.0))),
    "log": np.log,
    "log2": np.log2,
    "sig": lambda x: 1 / (1 + np.exp(-x)),
    "sig2": lambda x: 1 / (1 + 2**-x),
    "tanh": np.tanh,
    "tanh2": lambda x: (2 ** (2 * x) - 1) / (2 ** (2 * x) + 1),
    "finite": np.isfinite,
    "rint": np.rint,
}
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "true_divide": np.divide,
    "power": np.power,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


def near(found: Any, expected: Any, rtol: float = 2e-5) -> None:
    np.testing.assert_allclose(np.asarray(found.get(), np.float64), expected, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_operand(ne: Any, name: str) -> None:
    x, out = ne.array(POSITIVE), ne.empty((2, 3))
    expected = UNARY[name](POSITIVE)
    near(getattr(ne, name)(x), expected)
    assert getattr(ne, name)(x, out=out) is out and getattr(ne, name)(x, out) is out
    near(out, expected)


def test_counts_are_columns(ne: Any) -> None:
    ids = ne.array(np.array([[1, 2], [2, 5]]), dtype="int32")
    near(ne.bincount(ids, size=7), np.bincount([1, 2, 2, 5], minlength=7)[:, None])
    weights = ne.array(np.array([[1.0, 2.0], [3.0, 4.0]]))
    near(ne.bincount(ids, weights=weights, size=6), np.bincount([1, 2, 2, 5], [1, 2, 3, 4])[:, None])
    near(ne.histogram(weights, 3)[0], np.histogram([1, 2, 3, 4], 3)[0][:, None])


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_operands(ne: Any, name: str) -> None:
    x, y, out = ne.array(POSITIVE), ne.array(POSITIVE[:1]), ne.empty((2, 3))
    expected = BINARY[name](POSITIVE, POSITIVE[:1])
    near(getattr(ne, name)(x, y), expected)
    assert getattr(ne, name)(x, y, out) is out
    near(out, expected)
    near(getattr(ne, name)(0.75, x), BINARY[name](0.75, POSITIVE))
    near(getattr(ne, name)(x, 0.75, out=out), BINARY[name](POSITIVE, 0.75))


def test_comparisons_enter_arithmetic(ne: Any) -> None:
    x = ne.array(VALUES)
    near(5 - ne.sum(x > 0, axis=0), 5 - (VALUES > 0).sum(0, keepdims=True))
    near(0.5 * (x < 1) + (x >= 1), 0.5 * (VALUES < 1) + (VALUES >= 1))


def test_clip_and_safelog(ne: Any) -> None:
    x = ne.array(VALUES)
    assert ne.clip(x, -1, 1, x) is x
    near(x, np.clip(VALUES, -1, 1))
    near(ne.safelog(ne.array([[0.0, 1.0]])), [[-50, 0]])
    near(ne.rint(ne.array([[0.5, 1.5, -2.5]])), [[0, 2, -2]])


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", ["sum", "max", "min", "mean", "std", "var"])
def test_reductions(ne: Any, name: str, axis: Any) -> None:
    x, expected = ne.array(VALUES), getattr(np, name)(VALUES, axis=axis, keepdims=True)
    expected = np.reshape(expected, getattr(ne, name)(x, axis).shape)
    near(getattr(ne, name)(x, axis=axis, keepdims=False), expected)
    out = ne.empty(expected.shape)
    assert getattr(ne, name)(x, axis=axis, out=out) is out
    near(out, expected)
    assert getattr(ne, name)(x, axis=axis).shape == {None: (1, 1), 0: (1, 3), 1: (2, 1)}[axis]


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_indices_of_extremes(ne: Any, name: str, dtype: Any) -> None:
    values = np.array([[1.0, 3, 3, 1], [0, 0, 2, 2]])
    x, function = ne.array(values), getattr(np, name)
    for axis in (0, 1):
        out = ne.empty(function(values, axis, keepdims=True).shape, dtype)
        assert getattr(ne, name)(x, axis, out) is out
        near(out, function(values, axis, keepdims=True))
    near(getattr(ne, name)(x), function(values, 1, keepdims=True))
    assert getattr(ne, name)(x, axis=None).shape == (1, 1)


def power_of_two(x: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.where(x == 0, 0, np.sign(x) * 2.0 ** np.rint(np.log2(np.abs(x))))


def test_binary_variance(ne: Any) -> None:
    centred = VALUES - VALUES.mean(1, keepdims=True)
    expected = (centred * power_of_two(centred)).mean(1, keepdims=True)
    near(ne.var(ne.array(VALUES), axis=1, binary=True), expected)


def test_dot_and_trees(ne: Any) -> None:
    a, b = ne.array(VALUES), ne.array(VALUES.T)
    near(ne.dot(a, b), VALUES @ VALUES.T)
    tree = a + 1
    near(tree.T, VALUES.T + 1)
    out = ne.empty((3, 2))
    assert tree.shape == (2, 3) and tree.astensor().shape == (2, 3) and tree.pp()
    assert ne.dot(a.T, a, out=ne.empty((3, 3))).shape == (3, 3) and ne.transpose(tree, out=out) is out
    near(out, VALUES.T + 1)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16])
def test_onehot(ne: Any, dtype: Any) -> None:
    ids = np.array([0, 2, 1, 2])
    for indices in (ne.array(ids, np.int32), ne.array(ids[None], np.int32), ne.array(ids.reshape(2, 2), np.uint32)):
        rows, columns = ne.ones((4, 3), dtype), ne.ones((3, 6), dtype)
        rows[:] = ne.onehot(indices, axis=1)
        columns[:, 1:5] = ne.onehot(indices, axis=0)
        near(rows, np.eye(3)[ids])
        near(columns, np.pad(np.eye(3)[ids].T, ((0, 0), (1, 1)), constant_values=1))
        out = ne.ones((3, 4))
        assert ne.onehot(indices, 0, out=out) is out
        near(out, np.eye(3)[ids].T)


def test_onehot_refuses(ne: Any) -> None:
    with pytest.raises(ValueError):
        ne.onehot(ne.array([1], np.int32), axis=2)
    with pytest.raises(AssertionError):
        ne.onehot(ne.array([1]), axis=0)
    with pytest.raises(IndexError):
        ne.zeros((3, 1))[:] = ne.onehot(ne.array([3], np.int32), axis=0)


# Products


@pytest.mark.parametrize("beta", [0, 1, 0.5])
@pytest.mark.parametrize("alpha", [1.0, 2])
@pytest.mark.parametrize("relu", [False, True])
def test_compound_dot(ne: Any, alpha: Any, beta: Any, relu: bool) -> None:
    rng = np.random.default_rng(1)
    a, b, c = rng.normal(size=(3, 4)), rng.normal(size=(5, 4)), rng.normal(size=(3, 5))
    product = alpha * (a @ b.T)
    expected = (np.maximum(product, 0) if relu else product) + beta * c
    out, sums = ne.array(np.zeros((3, 9))), ne.empty((3, 1))
    out[:, 2:7] = c
    for _ in range(2):  # recorded, and replayed
        out[:, 2:7] = c
        view = out[:, 2:7]
        assert ne.compound_dot(ne.array(a), ne.array(b).T, view, alpha, beta, relu, bsum=sums) is view
        near(view, expected)
        near(sums, expected.sum(1, keepdims=True), rtol=1e-4)
    assert not out.get()[:, :2].any() and not out.get()[:, 7:].any()


def test_replay_tells_operands_apart(ne: Any) -> None:
    x, y = ne.array(VALUES[:, :2]), ne.array(VALUES[:, 1:])
    for a, b in ((x, x), (x, y), (y, x), (y, y)):
        c = ne.empty((2, 2))
        near(ne.compound_dot(a, b, c, alpha=0.5, beta=0.5), 0.5 * a.get() @ b.get())
    expected = x.get() @ x.get() + 0.25 * x.get()
    near(ne.compound_dot(x, x, x, 1, 0.25), expected)


def test_dot(ne: Any) -> None:
    x, y, out = ne.array(VALUES), ne.array(POSITIVE.T), ne.empty((2, 2))
    near(ne.dot(x, y), VALUES @ POSITIVE.T)
    assert ne.dot(x, y, out=out) is out
    near(out, VALUES @ POSITIVE.T)
    with pytest.raises(AssertionError, match="dot"):
        ne.dot(x, x)


def test_compound_dot_refuses(ne: Any) -> None:
    a = ne.ones((2, 3))
    for b, c in ((ne.ones((2, 2)), ne.ones((2, 2))), (ne.ones((3, 2)), ne.ones((3, 2)))):
        with pytest.raises(AssertionError):
            ne.compound_dot(a, b, c)
    with pytest.raises(AssertionError):
        ne.compound_dot(a, ne.ones((3, 2), np.float16), ne.ones((2, 2)))


BATCHED = {
    "matrix first": ((4, 3), (2, 3, 5), (2, 4, 5)),
    "matrix last": ((2, 4, 3), (3, 5), (2, 4, 5)),
    "all": ((2, 4, 3), (2, 3, 5), (2, 4, 5)),
    "summed": ((2, 4, 3), (2, 3, 5), (4, 5)),
    "summed with a matrix": ((4, 3), (2, 3, 5), (4, 5)),
}


@pytest.mark.parametrize("case", BATCHED)
@pytest.mark.parametrize(("alpha", "beta", "relu"), [(1.0, 0.0, False), (0.5, 2.0, True)])
def test_batched_dot(ne: Any, case: str, alpha: Any, beta: Any, relu: bool) -> None:
    rng = np.random.default_rng(2)
    a, b, c = (rng.normal(size=shape) for shape in BATCHED[case])
    product = alpha * (np.matmul(a, b).sum(0) if c.ndim == 2 else np.matmul(a, b))
    out = ne.array(c)
    assert ne.batched_dot(ne.array(a), ne.array(b), out, alpha, beta, relu, size=32) is out
    near(out, (np.maximum(product, 0) if relu else product) + beta * c, rtol=1e-4)


def test_batched_dot_by_transposes(ne: Any) -> None:
    rng = np.random.default_rng(3)
    x, w, e = rng.normal(size=(2, 3, 5)), rng.normal(size=(4, 3)), rng.normal(size=(2, 4, 5))
    update = ne.batched_dot(ne.array(e), ne.array(x).T, ne.empty((4, 3)))
    near(update, np.matmul(e, x.swapaxes(1, 2)).sum(0), rtol=1e-4)
    near(ne.batched_dot(ne.array(w).T, ne.array(e), ne.empty((2, 3, 5))), np.matmul(w.T, e), rtol=1e-4)
    with pytest.raises(AssertionError):
        ne.batched_dot(ne.array(w), ne.array(w.T), ne.empty((4, 4)))
    with pytest.raises(AssertionError):
        ne.batched_dot(ne.array(w), ne.array(x), ne.empty((2, 5, 4)))


def test_biases_of_products(ne: Any) -> None:
    x, out = ne.array(VALUES), ne.empty((2, 1))
    ne.update_fc_bias(x, out)
    near(out, VALUES.sum(1, keepdims=True))
    ne.add_fc_bias(x, out)
    near(x, VALUES + VALUES.sum(1, keepdims=True))


# The binary family


@pytest.mark.parametrize("shape", [(2, 3), (2, 1), (1, 3), (1, 1)])
@pytest.mark.parametrize("by_value", [True, False])
def test_shift(ne: Any, shape: Any, by_value: bool) -> None:
    by = np.array([3.0, 6.0, 2.5, 0.7, -5, 0])[: int(np.prod(shape))].reshape(shape)
    by = by if by_value else np.rint(by)
    expected = VALUES * (power_of_two(by) if by_value else 2.0**by)
    x, out = ne.array(VALUES), ne.empty((2, 3))
    near(ne.shift(x, ne.array(by), value=by_value), expected)
    assert ne.shift(x + 0, ne.array(by) + 0, by_value, out) is out
    near(out, expected)
    assert ne.shift(0.5, -2, value=False).get().tolist() == [[0.125]]
    assert [ne.shift(1.0, s).get().item() for s in (3.0, 6.0, 2.5, 0.7)] == [4, 8, 2, 0.5]


def test_binarize(ne: Any) -> None:
    x, out = ne.array([[-0.5, 0.0, 2.0]]), ne.empty((1, 3))
    assert ne.binarize(x, out, stochastic=False) is out and out.get().tolist() == [[-1, 1, 1]]
    many = ne.array(np.full((40, 50), 0.5))
    assert ne.binarize(many, many) is many and set(np.unique(many.get())) == {-1, 1}
    assert abs(many.get().mean() - 0.5) < 0.1


def test_xnor_products(ne: Any) -> None:
    rng = np.random.default_rng(4)
    a, b = np.sign(rng.normal(size=(3, 64))), np.sign(rng.normal(size=(64, 2)))
    out, sums = ne.empty((3, 2)), ne.empty((3, 1))
    assert ne.xnor_compound_dot(ne.array(a), ne.array(b), out, beta=0.0, bsum=sums) is out
    near(out, a @ b)
    near(sums, (a @ b).sum(1, keepdims=True))


@pytest.mark.parametrize(
    ("shape", "axes"), [((3, 4), None), ((2, 3, 4), (1, 0, 2)), ((2, 3, 4), None), ((2, 1, 3, 2, 2), (4, 2, 0, 3, 1))]
)
def test_copy_transpose(ne: Any, shape: Any, axes: Any) -> None:
    values = np.random.default_rng(5).normal(size=shape)
    expected = np.transpose(values, axes)
    out = ne.empty(expected.shape)
    assert ne.copy_transpose(ne.array(values), out, axes=axes, repeat=2) is None
    near(out, expected)
    block, rows = ne.zeros((4, 6)), ne.array(np.arange(20).reshape(5, 4))
    ne.copy_transpose(rows[1:4], block[:, 2:5])
    near(block, np.pad(rows.get()[1:4].T, ((0, 0), (2, 1))))
