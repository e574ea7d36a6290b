"""NumPy's protocols: its functions build trees on tensors, and its arrays and tensors share memory."""

from __future__ import annotations

import numpy as np
import pytest

from backends import gen_backend
from optree import Input, OpTreeNode, Tensor, TensorType
from optree.errors import OperandError, ShapeError
from optree.registry import NUMPY_FUNCTIONS


def grid(*shape, dtype="float64"):
    return np.arange(1, 1 + int(np.prod(shape)), dtype=dtype).reshape(shape)


A, B = grid(3, 4) / 7, grid(4)[::-1] / 3
M = A > 0.9


@pytest.fixture
def operands(be):
    return be.array(A, dtype="float64", name="x"), be.array(B, dtype="float64", name="y"), be.array(M, name="m")


# NumPy's functions


CALLS = [
    lambda x, y, m: np.tanh(x) + np.sum(y, axis=0),
    lambda x, y, m: np.add(x, y),
    lambda x, y, m: np.multiply(2, x),
    lambda x, y, m: np.power(x, 2),
    lambda x, y, m: np.less(x, y),
    lambda x, y, m: np.logical_and(m, x > 1),
    lambda x, y, m: np.isfinite(x),
    lambda x, y, m: np.maximum(x, 0.5),
    lambda x, y, m: np.hypot(x, y),
    lambda x, y, m: np.floor(x * 3),
    lambda x, y, m: np.exp(np.negative(x)),
    lambda x, y, m: np.sum(x),
    lambda x, y, m: np.sum(x, 0),
    lambda x, y, m: np.sum(x, axis=-1, keepdims=True),
    lambda x, y, m: np.sum(x, axis=(0, 1)),
    lambda x, y, m: np.sum(x * x, axis=1, dtype="float32"),
    lambda x, y, m: np.sum(m, axis=0),
    lambda x, y, m: np.sum(m, axis=0, dtype=np.float64),
    lambda x, y, m: np.mean(x, axis=0, keepdims=True),
    lambda x, y, m: np.mean(x),
    lambda x, y, m: np.prod(x, axis=1),
    lambda x, y, m: np.max(x, axis=1, keepdims=True),
    lambda x, y, m: np.amax(x, axis=0),
    lambda x, y, m: np.min(x),
    lambda x, y, m: np.argmax(x, axis=1),
    lambda x, y, m: np.argmin(x),
    lambda x, y, m: np.argmin(x, axis=0, keepdims=True),
    lambda x, y, m: np.var(x, axis=0),
    lambda x, y, m: np.std(x, axis=1, keepdims=True),
    lambda x, y, m: np.var(x, axis=0, ddof=0),
    lambda x, y, m: np.all(m, axis=0),
    lambda x, y, m: np.any(m),
    lambda x, y, m: np.linalg.norm(x, axis=1),
    lambda x, y, m: np.linalg.norm(x),
    lambda x, y, m: np.add.reduce(x),
    lambda x, y, m: np.add.reduce(x, axis=1, keepdims=True),
    lambda x, y, m: np.maximum.reduce(x, axis=None),
    lambda x, y, m: np.logical_or.reduce(m, axis=(0, 1)),
    lambda x, y, m: np.where(m, x, y),
    lambda x, y, m: np.where(m, x, 0),
    lambda x, y, m: np.clip(x, 0.3, 1.2),
    lambda x, y, m: np.dot(x, y),
    lambda x, y, m: np.matmul(x, x.T),
    lambda x, y, m: np.outer(y, y),
    lambda x, y, m: np.transpose(x),
    lambda x, y, m: np.transpose(x, (1, 0)),
    lambda x, y, m: np.reshape(x, (2, 6)),
    lambda x, y, m: np.reshape(x, -1),
    lambda x, y, m: np.ravel(x),
    lambda x, y, m: np.broadcast_to(y, (2, 4)),
    lambda x, y, m: np.expand_dims(x, 1),
    lambda x, y, m: np.squeeze(np.expand_dims(x, (0, 2))),
    lambda x, y, m: np.squeeze(np.expand_dims(x, 0), axis=0),
    lambda x, y, m: np.swapaxes(x, 0, 1),
    lambda x, y, m: np.concatenate((x, x * 2), axis=1),
    lambda x, y, m: np.concatenate([x, A]),
    lambda x, y, m: np.concatenate([x, x], 1),
    lambda x, y, m: np.concatenate([x, x], axis=None),
    lambda x, y, m: np.stack([x, x + 1], axis=-1),
    lambda x, y, m: np.flip(x),
    lambda x, y, m: np.flip(x, axis=1),
    lambda x, y, m: np.pad(x, 1),
    lambda x, y, m: np.pad(x, ((0, 1), (2, 0))),
    lambda x, y, m: np.repeat(x, 2, axis=0),
    lambda x, y, m: np.repeat(x, 2),
    lambda x, y, m: np.take(x, [0, 2], axis=1),
    lambda x, y, m: np.take(x, [0, 11]),
    lambda x, y, m: np.take(x, 1, 0),
    lambda x, y, m: np.take_along_axis(x, np.argmax(x, axis=1, keepdims=True), axis=1),
    lambda x, y, m: A + x,
    lambda x, y, m: A @ x.T,
    lambda x, y, m: np.float64(2) ** x - np.float32(1),
    lambda x, y, m: abs(-x) // 0.25 % 2,
]


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_numpys_functions_build_trees_with_numpys_meaning(operands, call):
    tree, expected = call(*operands), call(A, B, M)
    assert type(tree) is OpTreeNode
    assert tree.shape == np.shape(expected) and tree.dtype == expected.dtype
    np.testing.assert_allclose(tree.asnumpyarray(), expected, rtol=1e-14 if tree.dtype != np.float32 else 1e-6)


def test_they_take_trees_and_inputs_too(operands):
    x, y, _ = operands
    np.testing.assert_allclose(np.sqrt(x + y).asnumpyarray(), np.sqrt(A + B))
    i = Input(TensorType("float32", (None, 3)), "i")
    assert np.sum(np.exp(i), axis=1).shape == (None,)


def test_every_numpy_function_that_is_registered_is_one_of_numpys():
    assert {np.tanh, np.add, np.sum, np.mean, np.concatenate, np.where} <= NUMPY_FUNCTIONS.keys()
    for func in NUMPY_FUNCTIONS:
        assert isinstance(getattr(func, "__self__", func), np.ufunc) or func.__module__.startswith("numpy")


def test_out_is_a_tensor_that_is_written_at_once(be, operands):
    x, y, _ = operands
    out = be.empty((3, 4), dtype="float64")
    row = be.empty((4,), dtype="float64")
    assert np.add(x, y, out=out) is out
    np.testing.assert_array_equal(out.get(), A + B)
    assert np.sum(x, axis=0, out=row) is row
    np.testing.assert_allclose(row.get(), A.sum(axis=0))
    assert np.add.reduce(x, out=row) is row
    assert np.clip(x, 0.3, 0.6, out=out) is out
    np.testing.assert_array_equal(out.get(), A.clip(0.3, 0.6))
    assert np.multiply(A, 3.0, out=out) is out  # the tensor is the only operand of ours
    np.testing.assert_array_equal(out.get(), A * 3)
    for call in (lambda: np.add(x, y, out=np.empty((3, 4))), lambda: np.sum(x, axis=0, out=np.empty(4))):
        with pytest.raises(TypeError, match="out is a tensor"):
            call()


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda x, y, m: np.add(x, y, where=M), "add.*where"),
        (lambda x, y, m: np.add(x, y, dtype="int32"), "add.*float64.*int32"),
        (lambda x, y, m: np.add(x, y, casting="unsafe"), "add.*casting"),
        (lambda x, y, m: np.nansum(x, where=M), "nansum.*where"),
        (lambda x, y, m: np.nanmax(x, initial=5), "nanmax.*initial"),
        (lambda x, y, m: np.quantile(x, 0.5, axis=0, weights=np.ones(3)), "quantile: with weights, .*inverted_cdf"),
        (lambda x, y, m: np.nanquantile(x, 0.5, weights=x, method="inverted_cdf"), "nanquantile.*weights"),
        (lambda x, y, m: np.nan_to_num(x, copy=False), "nan_to_num.*copy"),
        (lambda x, y, m: np.reshape(x, (4, 3), order="A"), "reshape.*order"),
        (lambda x, y, m: np.take(x, [9], mode="near"), "take.*mode"),
        (lambda x, y, m: np.pad(x, 1, mode="edge", reflect_type="odd"), "pad.*reflect_type"),
        (lambda x, y, m: np.pad(x, 1, mode="edge", end_values=1), "pad.*edge.*end_values"),
        (lambda x, y, m: np.pad(x, 1, mode="mirror"), "pad.*mirror"),
        (lambda x, y, m: np.linalg.norm(x, ord=3), "norm.*ord"),
    ],
)
def test_an_argument_without_an_equal_is_refused_by_name(operands, call, argument):
    with pytest.raises((TypeError, ValueError), match=argument):
        call(*operands)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x, y: np.subtract.accumulate(x), "accumulate"),
        (lambda x, y: np.hypot.reduce(x), "reduce"),
        (lambda x, y: np.subtract.reduceat(x, [0]), "reduceat"),
        (lambda x, y: np.spacing(x), "spacing"),
    ],
)
def test_a_function_that_is_not_ours_is_refused_by_name(operands, call, name):
    x, y, _ = operands
    with pytest.raises(TypeError, match=name):
        call(x, y)


def test_numpys_function_checks_its_own_arguments(operands):
    x, *_ = operands
    with pytest.raises(TypeError):
        np.sum(x, axes=0)
    with pytest.raises(TypeError):
        np.sum()


# NumPy arrays in place


def test_an_array_cannot_take_a_trees_value_in_place(operands):
    x, *_ = operands
    array = np.ones((3, 4))
    with pytest.raises(TypeError, match="asnumpyarray"):
        array += x
    array[:] = x + 1
    np.testing.assert_array_equal(array, A + 1)


# Conversion


def test_conversion_to_an_array(operands):
    x, _, m = operands
    for array in (np.asarray(x), np.array(x), np.asarray(x * 1), np.asarray(x, dtype=None)):
        assert type(array) is np.ndarray
        np.testing.assert_array_equal(array, A)
    assert np.asarray(x, dtype="float32").dtype == np.float32
    assert np.asarray(m).dtype == bool
    np.testing.assert_array_equal(np.asarray([x, x]), [A, A])
    np.testing.assert_array_equal(np.ones((3, 4)).__class__((3, 4)).shape, np.asarray(x + 1).shape)
    with pytest.raises(ValueError, match="copy"):
        np.array(x, copy=False)


# DLPack


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_dlpack_of_integers_shares_memory(cpu, dtype):
    x = cpu.array(np.array([[1, 0], [3, 4]]), dtype=dtype)
    array = np.from_dlpack(x)
    assert array.dtype == dtype and np.shares_memory(array, x.raw())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dlpack_shares_memory_both_ways(cpu, dtype):
    x = cpu.array(A, dtype=dtype)
    for view, ours in ((np.from_dlpack(x), x), (np.from_dlpack(x.T), x.T), (np.from_dlpack(x[1:, ::-2]), x[1:, ::-2])):
        np.testing.assert_array_equal(view, ours.get())
        assert np.shares_memory(view, x.raw())
    array = A.astype(dtype)
    t = cpu.from_dlpack(array, name="t")
    assert type(t) is Tensor and t.name == "t" and t.dtype == dtype
    t[:, 0] = -1
    assert (array[:, 0] == -1).all()
    array[0] = 9
    assert (t.get()[0] == 9).all()


def test_dlpack_between_backends(cpu):
    other = gen_backend("cpu")
    x = cpu.zeros((2, 2))
    y = other.from_dlpack(x)
    y[0] = 5
    assert x.get()[0].tolist() == [5, 5] and y.backend is other
    assert x.__dlpack_device__()[0] == 1


def test_dlpack_of_what_tensors_cannot_hold(cpu):
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    with pytest.raises(OperandError, match="read-only; be.array"):
        cpu.from_dlpack(frozen)
    with pytest.raises(OperandError, match=r"speaks DLPack is wanted, not a list of 2"):
        cpu.from_dlpack([1, 2])


def test_a_format_specification_is_for_the_only_element(be):
    x = be.array([[1.25]], name="x")
    assert f"{x:.1f} {x + 1:.3f} {be.sum(x):g}" == "1.2 2.250 1.25"
    assert f"{x}" == str(x) == "[[1.25]]" and f"{x + 1}" == str(x + 1)
    with pytest.raises(ShapeError, match="6 elements"):
        format(be.ones((2, 3)), ".2f")


def test_a_tree_is_an_array_wherever_one_is_asked_for():
    be = gen_backend("cpu")
    x = be.array([1.0, 2.0, 3.0], name="x")
    tree = x * 2
    wanted = [2.0, 4.0, 6.0]
    room = np.zeros(3)
    room[:] = tree
    for got in (
        np.asarray(tree),
        np.asarray(tree, np.float64),
        np.array(tree, dtype=np.float32),
        np.array([tree, tree])[1],
        np.array([tree, wanted])[0],
        np.asanyarray(tree),
        np.ascontiguousarray(tree),
        np.ma.asarray(tree),
        tree.to_numpy(),
        room,
    ):
        assert isinstance(got, np.ndarray) and got.tolist() == wanted
    assert np.ones(3).dot(tree) == 12.0
    np.testing.assert_allclose(tree, wanted)
    assert x.to_numpy().tolist() == [1.0, 2.0, 3.0]
    assert len(tree) == 3 and [type(part).__name__ for part in tree] == ["OpDict", "Tensor", "int"]


def test_trees_and_tensors_are_plotted():
    pytest.importorskip("matplotlib").use("Agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    be = gen_backend("cpu")
    x = be.array([1.0, 2.0, 3.0], name="x")
    tree = x * 2
    figure, axes = plt.subplots()
    for line in (*axes.plot(tree), *axes.plot(x, tree), *axes.step(x, tree)):
        assert np.asarray(line.get_ydata()).tolist() == [2.0, 4.0, 6.0]
    assert axes.scatter(tree, x).get_offsets().tolist() == [[2, 1], [4, 2], [6, 3]]
    axes.fill_between(x, tree)
    assert axes.hist(tree, bins=2)[0].tolist() == [1, 2]
    axes.imshow(be.ones((2, 2)) + 1)
    plt.close(figure)


def test_a_view_as_another_dtype_is_refused_with_what_to_write():
    x = gen_backend("cpu").array([1.0, 2.0], name="x")
    for operand in (x, x[:1], x + 1):
        with pytest.raises(OperandError, match=r"view: the bytes of .* x\.astype\('i4'\).* x\.get\(\)\.view\('i4'\)"):
            operand.view("i4")
