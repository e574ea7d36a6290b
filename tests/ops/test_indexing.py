"""Indexing by arrays: reading, writing and adding, against NumPy on indices that Hypothesis draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.arrays import array_of, check
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from backends import gen_backend
from optree import Input, OpTreeNode, TensorType, check_grad, function, grad
from optree.errors import AxisError, DTypeError, NumberOverflowError, OperandError, ShapeError
from optree.registry import OPS, f
from optree.settings import override
from optree.tree import indexing as indices

CPU = gen_backend("cpu", datatype=np.float64)
SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4)


@st.composite
def indexed(draw: Any) -> tuple[np.ndarray, tuple[Any, ...]]:
    """An array and an index of it that mixes arrays with integers, slices and new axes."""
    a = array_of(draw(SHAPES))
    lead = draw(hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=3))
    entries: list[Any] = []
    for size in a.shape:
        within = st.integers(-size, size - 1)
        kind = draw(st.sampled_from(["array", "array", "int", "slice", "all", "new"]))
        if kind == "new":
            entries.append(None)
        if kind in ("array", "new"):
            broadcast = tuple(n if draw(st.booleans()) else 1 for n in lead) if draw(st.booleans()) else lead
            entries.append(draw(hnp.arrays(np.int64, broadcast, elements=within)))
        elif kind == "int":
            entries.append(draw(within))
        else:
            entries.append(draw(st.slices(size)) if kind == "slice" else slice(None))
    if not any(isinstance(entry, np.ndarray) for entry in entries):
        size = a.shape[0]
        entries[0 if entries[0] is not None else 1] = np.array([size - 1, 0, -1])
    if draw(st.booleans()):
        while isinstance(entries[-1], slice) and entries[-1] == slice(None):
            entries.pop()
    return a, tuple(entries)


def on_device(index: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(CPU.array(entry) if isinstance(entry, np.ndarray) else entry for entry in index)


# Reading


@given(indexed())
def test_an_index_with_arrays_reads_what_numpy_reads(drawn: Any) -> None:
    a, index = drawn
    x = CPU.array(a)
    for given_index in (index, on_device(index)):
        tree = x[given_index]
        assert isinstance(tree, OpTreeNode)
        check(tree, a[index])
        check(CPU.slice(x + 0, given_index), a[index])
    template, arrays = indices.parse(index, a.shape, "test")  # the shape is known without making the value
    shapes = [entry.shape for entry in arrays]
    assert indices.shape_of(template, a.shape, shapes) == a[index].shape
    unknown = indices.shape_of(template, (None,) * a.ndim, shapes)
    assert all(n in (None, m) for n, m in zip(unknown, a[index].shape, strict=True))


@given(SHAPES, st.data())
def test_a_mask_reads_what_numpy_reads(shape: Any, data: Any) -> None:
    a = array_of(shape)
    mask = data.draw(hnp.arrays(bool, shape[: data.draw(st.integers(1, len(shape)))]))
    check(CPU.array(a)[mask], a[mask])


@given(SHAPES, st.data())
def test_take_reads_what_numpy_reads(shape: Any, data: Any) -> None:
    a = array_of(shape)
    axis = data.draw(st.none() | st.integers(-a.ndim, a.ndim - 1))
    size = a.size if axis is None else shape[axis]
    dtype = data.draw(st.sampled_from(["int8", "uint8", "int64", "uint64"]))
    low = 0 if dtype.startswith("u") else -size
    wanted = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)
    places = data.draw(hnp.arrays(dtype, wanted, elements=st.integers(low, size - 1)))
    x, expected = CPU.array(a), np.take(a, places.astype(np.int64), axis)
    check(CPU.take(x, places, axis), expected)
    check(np.take(x, CPU.array(places), axis=axis), expected)
    if places.size:
        check(x.take(places.tolist(), axis), expected)


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, min_dims=1, max_dims=3, max_side=3), st.data())
def test_take_along_axis_reads_what_numpy_reads(shapes: Any, data: Any) -> None:
    ndim = len(shapes.result_shape)
    shape, other = ((1,) * (ndim - len(s)) + s for s in shapes.input_shapes)
    axis = data.draw(st.integers(-ndim, ndim - 1))
    other = list(other)
    other[axis] = data.draw(st.integers(0, 3))
    a = array_of(shape)
    places = data.draw(hnp.arrays(np.int64, tuple(other), elements=st.integers(-shape[axis], shape[axis] - 1)))
    check(CPU.take_along_axis(CPU.array(a), places, axis), np.take_along_axis(a, places, axis))


def test_take_along_axis_fits_argsort_and_a_flat_operand() -> None:
    a = np.array([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
    x = CPU.array(a)
    check(np.take_along_axis(x, np.argsort(a, axis=1), axis=1), np.sort(a, axis=1))
    check(CPU.take_along_axis(x, CPU.argmax(x, axis=1)), a.max(axis=1, keepdims=True))
    check(np.take_along_axis(x, np.array([5, 0]), axis=None), np.array([4.0, 3.0]))


def test_no_indices_and_indices_without_dimensions() -> None:
    a = array_of((3, 2))
    x = CPU.array(a)
    check(x[[]], a[[]])
    check(x[[[], []]], a[np.zeros((2, 0), int)])
    check(CPU.take(x, [], axis=1), np.take(a, np.zeros(0, int), 1))
    check(x[CPU.argmax(CPU.array([1.0, 5.0, 2.0]), keepdims=False)], a[1])
    check(CPU.take(x, 2, axis=0), a[2])
    check(CPU.zeros((0, 3))[np.zeros(0, int)], np.zeros((0, 3)))
    check(CPU.array(3.0)[None], np.array([3.0]))
    check(CPU.array(3.0)[...], np.array(3.0))


def test_a_value_picked_by_an_index_without_dimensions_is_no_view() -> None:
    x = CPU.array(array_of((3, 2)), name="x")
    place = CPU.array(np.array(0))
    x[...] = x[place] + x * 10  # reads row 0 while row 0 is written
    np.testing.assert_array_equal(x.get(), array_of((3, 2)) * 10 + [1.0, 2.0])


def test_an_index_on_the_backend_is_read_when_the_tree_runs() -> None:
    x, places = CPU.array(array_of((4, 2))), CPU.array(np.array([0, 1]))
    tree = x[places]
    places[:] = np.array([3, 3])
    with override(stale_trees="ignore"):
        check(tree, array_of((4, 2))[[3, 3]])


# Writing


@given(indexed(), st.data())
def test_an_index_with_arrays_writes_what_numpy_writes(drawn: Any, data: Any) -> None:
    a, index = drawn
    place = a[index].shape
    shape = data.draw(st.sampled_from([place, place[1:], (), (1, *place)]))
    value = -array_of(shape)
    for given_index in (index, on_device(index)):
        x = CPU.array(a)
        x[given_index] = CPU.array(value) + 0
        wanted = a.copy()
        wanted[tuple(np.ascontiguousarray(e) if isinstance(e, np.ndarray) else e for e in index)] = value
        np.testing.assert_array_equal(x.get(), wanted)


@pytest.mark.parametrize("order", ["C", "F", "reversed", "broadcast"])
def test_where_an_element_is_named_again_the_last_value_stays(order: str) -> None:
    rng = np.random.RandomState(3)
    rows, columns = rng.randint(0, 3, (2, 20, 30))
    value = rng.rand(20, 30)
    wanted = np.zeros((3, 3))
    for i, j, v in zip(rows.flat, columns.flat, value.flat, strict=True):
        wanted[i, j] = v
    if order == "F":
        rows, columns, value = map(np.asfortranarray, (rows, columns, value))
    elif order == "reversed":
        rows, columns, value = (a[::-1, ::-1].copy()[::-1, ::-1] for a in (rows, columns, value))
    x = CPU.zeros((3, 3))
    x[rows, columns] = value
    if order == "broadcast":
        x[...] = 0
        x[np.zeros((20, 30), int), CPU.array(np.zeros((1, 30), int))] = CPU.array(value)
        wanted = np.zeros((3, 3))
        wanted[0, 0] = value[-1, -1]
    np.testing.assert_array_equal(x.get(), wanted)


ASSIGNMENTS = [
    np.s_[2:5],
    np.s_[:, 3],
    np.s_[-1],
    np.s_[::-2, 1:],
    np.s_[..., 0],
    [0, 2],
    [2, 0, 2],
    (slice(1, 4), [3, 0]),
    ([5, 1], [0, 3]),
    np.array([True, False, True, False, False, True]),
    np.arange(24).reshape(6, 4) % 3 == 0,
    np.zeros((6, 4), bool),
    (slice(None), np.array([True, False, True, False])),
]


@pytest.mark.parametrize("index", ASSIGNMENTS, ids=str)
def test_assignment_to_a_part(index: Any) -> None:
    a = array_of((6, 4))
    place = a[index].shape
    for value in (2.5, -array_of(place), array_of(place) + 100):
        x, wanted = CPU.array(a), a.copy()
        x[index] = CPU.array(value) * 1 if isinstance(value, np.ndarray) else value
        wanted[index] = value
        np.testing.assert_array_equal(x.get(), wanted)
        x[index] += 1
        wanted[index] += 1
        np.testing.assert_array_equal(x.get(), wanted)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_tensors_of_no_dimensions_or_no_elements(shape: Any) -> None:
    a = np.full(shape, 4.0)
    x = CPU.array(a)
    x[...] = 5
    x[x > 4] = 6
    np.testing.assert_array_equal(x.get(), np.full(shape, 6.0))
    check(x[None], np.full((1, *shape), 6.0))
    check(x.T, x.get().T)
    x[None] += 1
    x[()] += 1
    np.testing.assert_array_equal(x.get(), np.full(shape, 8.0))


@given(indexed())
def test_scatter_add_adds_what_numpy_adds(drawn: Any) -> None:
    a, index = drawn
    value = array_of(a[index].shape)
    wanted = a.copy()
    np.add.at(wanted, index, value)
    check(f.scatter_add(CPU.array(a), index, CPU.array(value)), wanted)
    x = CPU.array(a)
    np.add.at(x, index, value)
    np.testing.assert_array_equal(x.get(), wanted)


def test_scatter_add_of_integers_is_exact() -> None:
    x = CPU.array(np.array([2**60, 0]))
    check(f.scatter_add(x, [0, 1, 1], 1), np.array([2**60 + 1, 2]))


def test_sums_are_accurate_and_the_same_each_time() -> None:
    rng = np.random.RandomState(0)
    value = rng.rand(200_000).astype(np.float32)
    x, y = (CPU.array(array, "float32") for array in (np.zeros(2), value))
    places = np.zeros(value.size, int)
    tree = f.scatter_add(x, places, y)
    first = tree.asnumpyarray()
    assert abs(first[0] - value.sum(dtype=np.float64)) <= 0.5 * np.spacing(first[0])
    np.testing.assert_array_equal(tree.asnumpyarray(), first)


def test_written_in_place_a_value_may_lie_in_the_same_memory() -> None:
    a = np.arange(6.0)
    op = OPS["scatter"].make()
    assert op.update(a, a[1:4], np.array([0, 0, 5])) is a
    np.testing.assert_array_equal(a, [2, 1, 2, 3, 4, 3])
    with pytest.raises(AxisError, match="scatter: index 6 .* size 6"):
        op.update(a, a[:2] + 9, np.array([0, 6]))
    np.testing.assert_array_equal(a, [2, 1, 2, 3, 4, 3])
    whole = np.array([1, 2, 0])
    np.testing.assert_array_equal(op.update(whole, np.array([5, 6, 7]), whole), [7, 5, 6])


# Derivatives


@given(indexed())
def test_repeated_places_add_up_in_the_gradient(drawn: Any) -> None:
    a, index = drawn
    x = CPU.array(a)
    weights = array_of(a[index].shape)
    (gradient,) = grad(CPU.sum(x[index] * weights), [x])
    wanted = np.zeros_like(a)
    np.add.at(wanted, index, weights)
    check(gradient, wanted)


@given(indexed())
def test_what_is_written_over_has_no_gradient(drawn: Any) -> None:
    a, index = drawn
    value = array_of(a[index].shape)
    x, y = CPU.array(a), CPU.array(value)
    written = f.scatter(x, index, y)
    to_x, to_y = grad(CPU.sum(written * array_of(a.shape)), [x, y])
    kept = array_of(a.shape)
    kept[index] = 0
    check(to_x, kept)
    owner = np.full(a.shape, -1)
    owner[index] = np.arange(value.size).reshape(value.shape)
    wanted = np.zeros(value.size)
    wanted[owner[owner >= 0]] = array_of(a.shape)[owner >= 0]
    check(to_y, wanted.reshape(value.shape))


def test_differences_agree_through_every_kind_of_index() -> None:
    x, y = CPU.array(np.linspace(-1, 1, 12).reshape(4, 3), name="x"), CPU.array(np.linspace(0.5, 2, 6).reshape(2, 3))
    places = CPU.array(np.array([2, 0, 2, -1]))
    trees = (
        lambda x, y: f.tanh(x[places]) * x,
        lambda x, y: f.take(x * x, np.array([1, 1]), axis=1),
        lambda x, y: f.take(f.sin(x), np.array([[0, 11], [0, -1]])),
        lambda x, y: f.take_along_axis(x * x, np.array([[2, 2], [0, 1], [1, 1], [0, -1]]), axis=1),
        lambda x, y: f.square(f.scatter(x, [3, 3], y)),
        lambda x, y: f.square(f.scatter_add(x, [3, 3], y)),
        lambda x, y: f.square(x[1:, [0, 0]]) * x[0, 0],
    )
    for tree in trees:
        check_grad(lambda x, y, tree=tree: f.sum(tree(x, y)) + f.sum(y), [x, y])


def test_the_gradient_of_a_tensor_through_its_views_and_gathers() -> None:
    a = array_of((4, 3))
    x = CPU.array(a, name="x")
    cost = CPU.sum(x.T[1] * x[:, 2]) + CPU.sum(x[[0, 0]]) + CPU.sum(x.reshape(-1)[CPU.array(np.array([11]))])
    wanted = np.zeros((4, 3))
    wanted[:, 1], wanted[:, 2] = a[:, 2], a[:, 1]
    wanted[0] += 2
    wanted[3, 2] += 1
    check(grad(cost, [x])[0], wanted)


# One-hot


def test_onehot() -> None:
    labels = np.array([2, 0, 1])
    y = CPU.array(labels)
    check(CPU.onehot(y, 3), np.eye(3)[labels])
    check(CPU.onehot(y, 3, axis=0), np.eye(3)[labels].T)
    check(CPU.onehot(y, 3, dtype="int8"), np.eye(3, dtype=np.int8)[labels])
    check(CPU.onehot(CPU.array(labels[None]), 4, axis=1), np.moveaxis(np.eye(4)[[[2, 0, 1]]], -1, 1))
    assert gen_backend("cpu").onehot(y.get(), 3).dtype == np.float32
    assert f.onehot(Input(TensorType("int64", (None,))), 3).shape == (None, 3)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_onehot_refuses_an_index_that_is_no_class(wrong: int) -> None:
    """A label of -1 often marks a missing one; it is not the last class."""
    with pytest.raises(AxisError, match=f"onehot: the index {wrong} at row 1 is none of the 3 classes, 0 to 2"):
        CPU.onehot(CPU.array(np.array([0, wrong])), 3).get()


def test_onehot_into_a_tensor_takes_its_size() -> None:
    out = CPU.zeros((3, 4))
    assert f.onehot(CPU.array(np.array([3, 0, 1])), axis=1, out=out) is out
    np.testing.assert_array_equal(out.get(), np.eye(4)[[3, 0, 1]])


# What bad input gets

X = CPU.array(array_of((2, 3)), name="x")
LABELS = CPU.array(np.array([0, 3]))


def assign(index: Any, value: Any) -> None:
    X[index] = value


BUILD = [
    (lambda: X[[0, 2]], AxisError, "index of x: index 2 .* axis 0 of size 2"),
    (lambda: X[:, [-4]], AxisError, "index of x: index -4 .* axis 1 of size 3"),
    (lambda: X[2], AxisError, "index of x: index 2 .* axis 0 of size 2"),
    (lambda: X[[0.5]], DTypeError, "index of x: .* float64"),
    (lambda: X[CPU.ones((2,))], DTypeError, "index of x: .* float64"),
    (lambda: X[X > 1], OperandError, "be.where"),
    (lambda: X["a"], OperandError, "index of x: an index is an integer"),
    (lambda: X[True], OperandError, "index of x: a mask has a dimension"),
    (lambda: X[np.array(True)], OperandError, "be.where"),
    (lambda: CPU.take(X, True, 0), OperandError, "take: a mask has a dimension"),
    (lambda: X[[[0], [0, 1]]], OperandError, "index of x"),
    (lambda: X[np.ones(3, bool)], AxisError, "mask of size 3 .* axis 0 of size 2"),
    (lambda: X[np.ones((2, 2), bool)], AxisError, "mask of size 2 .* axis 1 of size 3"),
    (lambda: X[np.ones((2, 3, 1), bool)], AxisError, "3 indices for 2 dimensions"),
    (lambda: CPU.gather(X, 2), AxisError, "gather: index 2 .* axis 0 of size 2"),
    (lambda: CPU.gather(X, 1.5), OperandError, "gather: an index is an integer"),
    (lambda: CPU.gather(X, CPU.ones(2)), DTypeError, r"gather: .*not float64; x.astype\('int64'\)"),
    (lambda: CPU.scatter(X, 0, CPU.ones(2)), ShapeError, r"scatter: x \(2, 3\).* \(3,\), the value .*\(2,\)"),
    (lambda: CPU.scatter_add(X, (0, 0, 0), 1), AxisError, "scatter_add: 3 indices for 2 dimensions"),
    (lambda: CPU.scatter_add(X, 0, "text"), OperandError, "scatter_add: .*str"),
    (lambda: X[[0, 1], [0, 1, 2]], ShapeError, r"gather: x \(2, 3\)"),
    (lambda: CPU.take(X, CPU.ones((2,)), 0), DTypeError, "take: indices are integers, not .* float64"),
    (lambda: CPU.take(X, 0.0, 0), DTypeError, "take: indices are integers"),
    (lambda: CPU.take(X, np.array([True]), 0), DTypeError, "take: indices are integers, not .* bool"),
    (lambda: CPU.take(X, LABELS, 2), AxisError, "take: axis 2"),
    (lambda: CPU.take_along_axis(X, LABELS, 1), ShapeError, r"take_along_axis: x \(2, 3\)"),
    (lambda: OPS["gather"].make(index=("array", "array"))(X, LABELS), OperandError, "takes 2 index arrays, not 1"),
    (lambda: CPU.onehot(LABELS), OperandError, "onehot: n, the number of classes, is an integer of 0"),
    (lambda: CPU.onehot(CPU.ones((2,)), 3), DTypeError, "onehot: indices are integers"),
    (lambda: CPU.onehot(LABELS, 3, axis=3), AxisError, "onehot: axis 3"),
    (lambda: assign([0, 1], CPU.ones((3, 3))), ShapeError, r"scatter: x \(2, 3\).*selects 6 elements.* value has 9"),
    (lambda: assign(np.ones((2, 3), bool), np.ones(5)), ShapeError, r"scatter: x .*\(6,\)"),
    (lambda: assign((0, 3), 1.0), AxisError, "index 3 .* axis 1 of size 3"),
    (lambda: assign([0, 2], 1.0), AxisError, "index 2 .* axis 0 of size 2"),
    (lambda: assign(slice(0, 1), np.ones((2, 2))), ShapeError, "assign"),
    (lambda: assign(np.s_[:, :, 0], 1.0), AxisError, "3 indices for 2 dimensions"),
]


@pytest.mark.parametrize("wrong, error, message", BUILD)
def test_what_bad_input_gets_where_it_is_written(wrong: Any, error: type[Exception], message: str) -> None:
    before = X.get()
    with pytest.raises(error, match=message):
        wrong()
    np.testing.assert_array_equal(X.get(), before)


RUN = [
    (lambda: X[LABELS], "gather: index 3 .* axis 0 of size 2"),
    (lambda: X[0, LABELS], "gather: index 3 .* axis 1 of size 3"),
    (lambda: CPU.take(X, LABELS, 1), "take: index 3 .* axis 1 of size 3"),
    (lambda: CPU.take(X, LABELS * 2), "take: index 6 .* axis 0 of size 6"),
    (lambda: CPU.take(X, np.array([2**64 - 1], np.uint64), 0), "18446744073709551615 is out of range"),
    (lambda: CPU.take_along_axis(X, CPU.array(np.array([[-4], [0]])), 1), "take_along_axis: index -4 .* axis 1 of si"),
    (lambda: f.scatter(X, LABELS, 1.0), "scatter: index 3 .* axis 0 of size 2"),
    (lambda: f.scatter_add(X, LABELS, 1.0), "gather: index 3 .* axis 0 of size 2"),
    (lambda: CPU.onehot(LABELS, 3), "onehot: the index 3 .* of the 3 classes"),
]


@pytest.mark.parametrize("tree, message", RUN)
def test_an_index_out_of_range_when_it_runs(tree: Any, message: str) -> None:
    built = tree()
    target = CPU.ones(built.shape, dtype=built.dtype)
    with pytest.raises(AxisError, match=message):
        target[...] = built
    np.testing.assert_array_equal(target.get(), np.ones(built.shape))


def test_a_failed_assignment_by_index_writes_nothing() -> None:
    x = CPU.ones((2, 3))
    with pytest.raises(AxisError, match="scatter: index 3 .* axis 0 of size 2"):
        x[LABELS] = 5.0
    np.testing.assert_array_equal(x.get(), np.ones((2, 3)))
    small = CPU.array(np.zeros(3, np.int8))
    with pytest.raises(NumberOverflowError, match="300"):
        small[[0, 1]] = 300
    np.testing.assert_array_equal(small.get(), np.zeros(3))


# Neon's two dimensions


def test_in_neons_mode_indices_in_a_row_or_column_are_a_list() -> None:
    be = gen_backend("cpu", compat_mode="neon")
    a = array_of((3, 4))
    x, places = be.array(a), be.array([0, 2], "int64")
    assert places.shape == (2, 1)
    np.testing.assert_array_equal(be.take(x, places, axis=0).asnumpyarray(), a[[0, 2]])
    np.testing.assert_array_equal(be.take(x, places.T, axis=1).asnumpyarray(), a[:, [0, 2]])
    assert be.take(x, places).shape == (2, 1) and be.take(x, 1, axis=0).shape == (1, 4)
    assert (x[[0, 2]].shape, x[0, [1, 2]].shape, x[[0, 2], [1, 1]].shape) == ((2, 4), (1, 2), (2, 1))
    for chosen in (places, places.T, np.array([0, 2]), [0, 2]):
        got = be.take_along_axis(x, chosen, axis=None).asnumpyarray()
        np.testing.assert_array_equal(got, np.take_along_axis(a, np.array([0, 2]), axis=None)[:, None])
    for axis, wanted in ((0, np.eye(4)[[0, 2]].T), (1, np.eye(4)[[0, 2]])):
        codes = be.onehot(be.array([0, 2], "int32"), axis, be.empty(wanted.shape))
        np.testing.assert_array_equal(codes.asnumpyarray(), wanted)
    x[[0, 2], [1, 1]] = [8, 9]
    np.testing.assert_array_equal(x.get()[[0, 2], 1], [8, 9])
    (gradient,) = grad(be.sum(be.take(x, places, axis=0) * 2), [x])
    np.testing.assert_array_equal(gradient.asnumpyarray(), np.array([[2.0], [0], [2]]) * np.ones((3, 4)))


@given(indexed())
def test_a_trees_value_is_indexed_by_at(given_: Any) -> None:
    a, index = given_
    tree = CPU.array(a) + 1.0
    check(tree.at[index], a[index] + 1.0)
    check(CPU.array(a).at[index], a[index])


def test_elements_of_trees_inputs_and_tensors() -> None:
    a, v = array_of((3, 4)), TensorType("float64", (None, 4))("v")
    x = CPU.array(a, name="x")
    np.testing.assert_array_equal(function([v], v[0] + v.at[:, 1:].at[-1, 0])(a), a[0] + a[-1, 1])
    np.testing.assert_array_equal(grad((x * 2.0).at[1, 2], x).asnumpyarray(), 2.0 * (np.arange(12) == 6).reshape(3, 4))
    assert x.at is x and (x + 1)[1] is x, "a node's own elements are the tuple's"
    assert (x * (x + 1)).shape == (3, 4)  # which the operator remembers of their types
    for wrong, said in (
        (lambda: (x + 1)[1:], r"takes 0, 1 or 2 as index, not slice\(1, None, None\); tree\.at\[\.\.\.\]"),
        (lambda: (x + 1)[3], r"takes 0, 1 or 2 as index, not 3; tree\.at"),
        (lambda: x * (x + 1)[0], r"not OpDict .*; a tree's \[0\] is its op_dict, and tree\.at\[0\]"),
        (lambda: (x + 1).at[x > 1], r"known only when it has run; use be\.where"),
        (lambda: CPU.slice(x, x > 1), r"known only when it has run; use be\.where"),
        (lambda: list(v), "not iterable"),
        (lambda: list((x + 1).at), "not iterable"),
    ):
        with pytest.raises((TypeError, IndexError), match=said):
            wrong()
