"""Shape and joining ops against NumPy on shapes that Hypothesis draws, and what the registry's examples do not show."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from backends import gen_backend
from optree import Input, OpTreeNode, TensorType, grad
from optree.errors import AxisError, DTypeError, NumberOverflowError, OperandError, ShapeError
from optree.registry import OPS, f

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
CPU = gen_backend("cpu", datatype=np.float64)


def array_of(shape: Any) -> np.ndarray:
    return np.arange(1.0, 1.0 + math.prod(shape)).reshape(shape)


def check(tree: Any, wanted: np.ndarray) -> None:
    """The tree's promise, and its value, are the array's shape, dtype and elements."""
    assert tree.shape == wanted.shape and tree.dtype == wanted.dtype
    np.testing.assert_array_equal(tree.asnumpyarray(), wanted)


def draw_axes(data: Any, ndim: int, most: int | None = None) -> tuple[int, ...]:
    """Different axes, some of them counted from the end."""
    axes = data.draw(st.lists(st.integers(0, ndim - 1), unique=True, max_size=most or ndim) if ndim else st.just([]))
    return tuple(axis - ndim if data.draw(st.booleans()) else axis for axis in axes)


# Against NumPy


@given(SHAPES, st.data())
def test_transposes(shape: Any, data: Any) -> None:
    a = array_of(shape)
    order = data.draw(st.permutations(range(a.ndim)))
    axes = tuple(axis - a.ndim if data.draw(st.booleans()) else axis for axis in order)
    x = CPU.array(a)
    check(CPU.transpose(x, axes), a.transpose(axes))
    check(np.transpose(x), a.T)
    check((x + 0).transpose(*axes), a.transpose(axes))
    if a.ndim > 1:
        i, j = data.draw(st.integers(-a.ndim, a.ndim - 1)), data.draw(st.integers(-a.ndim, a.ndim - 1))
        check(np.swapaxes(x, i, j), np.swapaxes(a, i, j))
        check(np.moveaxis(x, i, j), np.moveaxis(a, i, j))
        check(CPU.matrix_transpose(x), np.matrix_transpose(a))


@given(SHAPES, st.data())
def test_reshapes(shape: Any, data: Any) -> None:
    a = array_of(shape)
    wanted = list(data.draw(st.permutations(shape)))
    if wanted and data.draw(st.booleans()):
        wanted[0:2] = [math.prod(wanted[0:2])]
    if wanted and math.prod(wanted):
        wanted[data.draw(st.integers(0, len(wanted) - 1))] = -1
    x = CPU.array(a)
    check(CPU.reshape(x, wanted), a.reshape(wanted))
    check(np.reshape(x, tuple(wanted)), a.reshape(wanted))
    check(CPU.reshape_like(x, CPU.array(a.reshape(wanted))), a.reshape(wanted))
    check(np.ravel(x), a.ravel())


@given(SHAPES, st.data())
def test_axes_of_size_one(shape: Any, data: Any) -> None:
    a = array_of(shape)
    x = CPU.array(a)
    axes = draw_axes(data, a.ndim + 2, 2)
    count = len(axes)
    new = tuple(axis % (a.ndim + count) for axis in axes)
    if len(set(new)) == count:
        spread = np.expand_dims(a, new)
        check(CPU.expand_dims(x, new), spread)
        check(np.squeeze(CPU.expand_dims(x, new), axis=new), a)
        check(CPU.squeeze(CPU.array(spread)), np.squeeze(spread))


@given(hnp.mutually_broadcastable_shapes(num_shapes=1, min_dims=0, max_dims=3, min_side=0))
def test_broadcast_to(shapes: Any) -> None:
    (shape,) = shapes.input_shapes
    wanted = np.broadcast_shapes(shapes.result_shape, shape)
    a = array_of(shape)
    check(CPU.broadcast_to(CPU.array(a), wanted), np.broadcast_to(a, wanted))


@given(SHAPES, st.data())
def test_slices(shape: Any, data: Any) -> None:
    a = array_of(shape)
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True, max_dims=6))
    wanted = np.asarray(a[index])
    x = CPU.array(a)
    check(CPU.slice(x, index), wanted)
    check(CPU.slice(x + 0, index), wanted)
    view = x[index]
    check(view, wanted)
    assert np.shares_memory(view.raw(), x.raw()) or not wanted.size
    (gradient,) = grad(CPU.sum(CPU.slice(x, index) * 2), [x])
    expected = np.zeros_like(a)
    expected[index] = 2
    check(gradient, expected)


@given(SHAPES, st.data())
def test_flips_pads_and_repeats(shape: Any, data: Any) -> None:
    a = array_of(shape)
    x = CPU.array(a)
    axes = draw_axes(data, a.ndim)
    if len({axis % a.ndim for axis in axes}) == len(axes):
        check(CPU.flip(x, axes), np.flip(a, axes))
    widths = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=a.ndim, max_size=a.ndim))
    if a.ndim:
        check(CPU.pad(x, widths, 7), np.pad(a, widths, constant_values=7))
        check(np.pad(x, widths[0]), np.pad(a, widths[0]))
        axis = data.draw(st.integers(-a.ndim, a.ndim - 1))
        repeats = data.draw(st.integers(0, 3))
        check(CPU.repeat(x, repeats, axis), np.repeat(a, repeats, axis))
    check(np.repeat(x, 2), np.repeat(a, 2))


@given(SHAPES, st.data())
def test_joins(shape: Any, data: Any) -> None:
    count = data.draw(st.integers(1, 4))
    parts = [array_of(shape) + 10 * i for i in range(count)]
    new = data.draw(st.integers(-len(shape) - 1, len(shape)))
    check(CPU.stack([CPU.array(p) for p in parts], new), np.stack(parts, new))
    check(CPU.concatenate([CPU.array(p) for p in parts], None), np.concatenate(parts, None))
    if not shape:
        return
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes = [data.draw(st.integers(0, 3)) for _ in parts]
    parts = [array_of((*shape[: axis % len(shape)], n, *shape[axis % len(shape) + 1 :])) for n in sizes]
    check(CPU.concatenate([CPU.array(p) for p in parts], axis), np.concatenate(parts, axis))
    check(np.concatenate([CPU.array(p) for p in parts], axis), np.concatenate(parts, axis))


@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=3), st.integers(1, 5), st.data())
def test_the_gradient_of_a_join_is_cut_up_again(shape: Any, count: int, data: Any) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = [data.draw(st.integers(0, 3)) for _ in range(count)]
    parts = [CPU.array(array_of((*shape[:axis], n, *shape[axis + 1 :]))) for n in sizes]
    joined = CPU.concatenate(parts, axis)
    weights = array_of(joined.shape)
    gradients = grad(CPU.sum(joined * weights), parts)
    for gradient, wanted in zip(gradients, np.split(weights, np.cumsum(sizes)[:-1], axis), strict=True):
        check(gradient, wanted)


def test_many_operands_join_in_few_nodes() -> None:
    parts = [CPU.array(np.full((2, 1), float(i))) for i in range(300)]
    gradients = grad(CPU.sum(CPU.square(CPU.concatenate(parts, axis=1))), parts)
    check(gradients[299], np.full((2, 1), 598.0))
    assert len(gradients[299].traverse()) < 5000


def test_vstack_and_hstack() -> None:
    rows, columns = np.arange(3.0), np.ones((2, 2))
    for function, arrays in ((np.vstack, (rows, rows)), (np.hstack, (rows, rows)), (np.hstack, (columns, columns))):
        check(function([CPU.array(a) for a in arrays]), function(arrays))


def test_joining_promotes_as_numpy_does() -> None:
    x = CPU.array(np.ones(2, np.int32))
    assert CPU.concatenate([x, CPU.array(np.ones(2, np.float32), "float32")]).dtype == np.float64
    assert CPU.stack([x, np.ones(2, np.int8)]).dtype == np.int32


def test_one_operand_gives_a_tree_too() -> None:
    x = CPU.array(array_of((2, 3)), name="x")
    joined = CPU.concatenate([x], axis=1)
    assert isinstance(joined, OpTreeNode)
    check(joined, x.get())
    check(CPU.stack([x], axis=1), x.get()[:, None])
    check(grad(CPU.sum(joined * joined), [x])[0], 2 * x.get())


# Sizes that are known at the call only


def test_shapes_of_unknown_size() -> None:
    x = Input(TensorType("float64", (None, 6)), "x")
    assert f.transpose(x).shape == (6, None)
    assert f.reshape(x, (-1, 2, 3)).shape == (None, 2, 3)
    assert f.slice(x, np.s_[::2, 1:3]).shape == (None, 2)
    assert f.slice(x, np.s_[-1, None]).shape == (1, 6)
    assert f.pad(x, ((0, 0), (1, 1))).shape == (None, 8)
    assert f.repeat(x, 2, axis=0).shape == (None, 6)
    assert f.concatenate([x, x], 0).shape == (None, 6) and f.concatenate([x, x], 1).shape == (None, 12)
    assert f.expand_dims(x, 0).shape == (1, None, 6) and f.flip(x).shape == (None, 6)
    assert f.reshape_like(x, x).shape == (None, 6)


def test_a_new_batch_size_compiles_nothing() -> None:
    be = gen_backend("cpu")

    def step(n: int) -> Any:
        x = be.array(array_of((n, 6)))
        y = be.concatenate([be.flip(be.reshape(x, (-1, 3, 2)), 1), be.ones((n, 1, 2))], axis=1)
        picked = be.take(be.pad(y, ((0, 0), (1, 0), (0, 0))), np.array([1, 2, 2]), axis=1)
        (gradient,) = grad(be.sum(picked * picked), [x])
        return gradient.asnumpyarray()

    step(4)
    before = be.stats()["compiles"]
    assert step(5).shape == (5, 6) and step(7).shape == (7, 6)
    assert be.stats()["compiles"] == before


# What bad input gets

X = CPU.array(array_of((2, 3)), name="x")
Y = CPU.array(array_of((4, 3)), name="y")

WRONG = [
    (lambda: X.transpose(0, 0), AxisError, r"transpose: .*\(0, 0\).*2 axes"),
    (lambda: CPU.transpose(X, (0, 2)), AxisError, "transpose.*axis 2"),
    (lambda: CPU.reshape(X, (4, 2)), ShapeError, r"reshape: x \(2, 3\).*6 elements.*\(4, 2\)"),
    (lambda: CPU.reshape(X, (-1, 4)), ShapeError, "reshape: x .*6 elements"),
    (lambda: CPU.reshape(X, (-1, -1)), ShapeError, "-1 at most once"),
    (lambda: CPU.reshape(X, (-2, 3)), ShapeError, "0 or more"),
    (lambda: CPU.reshape(X, 2.0), ShapeError, "integers, not 2.0"),
    (lambda: CPU.reshape_like(X, Y), ShapeError, r"reshape_like: x .* and y .*6 elements"),
    (lambda: CPU.broadcast_to(X, (3, 3)), ShapeError, r"broadcast_to: x \(2, 3\)"),
    (lambda: CPU.broadcast_to(X, (3,)), ShapeError, "broadcast_to: x"),
    (lambda: CPU.expand_dims(X, 4), AxisError, "expand_dims: axis 4"),
    (lambda: CPU.expand_dims(X, (0, 0)), AxisError, "expand_dims.*twice"),
    (lambda: CPU.squeeze(X, 1), ShapeError, "squeeze: x .*axis 1 has size 3"),
    (lambda: CPU.squeeze(X, 2), AxisError, "squeeze: axis 2"),
    (lambda: CPU.slice(X, 2), AxisError, "slice: index 2 .* axis 0 of size 2"),
    (lambda: CPU.slice(X, (0, 0, 0)), AxisError, "slice: 3 indices for 2 dimensions"),
    (lambda: CPU.slice(X, 1.5), OperandError, "slice: an index is an integer.* not 1.5"),
    (lambda: CPU.slice(X, np.s_[::0]), OperandError, "step cannot be 0"),
    (lambda: CPU.slice("x", 0), OperandError, "slice: an operand is"),
    (lambda: X[..., 0, ...], AxisError, "one ellipsis"),
    (lambda: CPU.flip(X, 2), AxisError, "flip: axis 2"),
    (lambda: CPU.pad(X, -1), ShapeError, "pad: pad_width"),
    (lambda: CPU.pad(X, ((1, 1, 1),)), ShapeError, "pad: pad_width"),
    (lambda: CPU.pad(X, 1, "text"), OperandError, "pad: constant_values"),
    (lambda: CPU.pad(CPU.array(np.ones(2, np.uint8)), 1, 300), NumberOverflowError, "pad: 300 does not fit uint8"),
    (lambda: CPU.pad(CPU.array(np.ones(2, np.int8)), 1, 0.5), DTypeError, "pad: 0.5 .*int8"),
    (lambda: np.pad(X, 1, mode="mirror"), TypeError, "mirror"),
    (lambda: CPU.repeat(X, -1, 0), OperandError, "repeat: repeats"),
    (lambda: CPU.repeat(X, [1, 2, 3], 0), ShapeError, r"repeat: \(3,\) repeats for axis 0 of x"),
    (lambda: CPU.repeat(X, [1, -2], 0), OperandError, "repeat: repeats are integers of 0 or more"),
    (lambda: CPU.repeat(X, 2, 5), AxisError, "repeat: axis 5"),
    (lambda: CPU.concatenate([X, CPU.ones((2, 4))]), ShapeError, r"concatenate: x \(2, 3\).* axis 1"),
    (lambda: CPU.concatenate([X, CPU.ones((2,))]), ShapeError, "concatenate: x .*dimensions"),
    (lambda: CPU.concatenate([X, Y], axis=2), AxisError, "concatenate: axis 2"),
    (lambda: CPU.concatenate([]), OperandError, "concatenate: the list holds no operand"),
    (lambda: CPU.concatenate(3.0), OperandError, "concatenate: operands come in a list"),
    (lambda: CPU.concatenate([X, None]), OperandError, "concatenate.*None"),
    (lambda: CPU.stack([X, Y]), ShapeError, r"stack: y \(4, 3\).*\(2, 3\) of x"),
    (lambda: CPU.stack([X], 3), AxisError, "stack: axis 3"),
    (lambda: CPU.swapaxes(X, 0, 2), AxisError, "swapaxes: axis 2"),
    (lambda: CPU.moveaxis(X, (0, 0), (0, 1)), AxisError, "moveaxis"),
]


@pytest.mark.parametrize("wrong, error, message", WRONG)
def test_what_bad_input_gets(wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wrong()


# Neon's two dimensions


def test_in_neons_mode_two_dimensions_stay() -> None:
    be = gen_backend("cpu", compat_mode="neon")
    a = array_of((3, 4))
    x = be.array(a)
    assert (x[1].shape, x[1, 2].shape, x[:, -1].shape, x[1:2].shape) == ((1, 4), (1, 1), (3, 1), (1, 4))
    np.testing.assert_array_equal(x[-1].get(), a[-1:])
    assert be.slice(x + 1, np.s_[0]).shape == (1, 4)
    assert (x.reshape(-1).shape, be.ravel(x).shape, be.reshape(x, 12).shape) == ((12, 1),) * 3
    assert be.reshape(x[0:1, 0:1], ()).shape == (1, 1)
    assert be.squeeze(x[0]).shape == (1, 4) and be.squeeze(be.expand_dims(x, 0)).shape == (3, 4)
    assert be.repeat(x, 2).shape == (24, 1) and be.concatenate([x, x], axis=None).shape == (24, 1)
    (gradient,) = grad(be.sum(be.slice(x, 1) * 3), [x])
    np.testing.assert_array_equal(gradient.asnumpyarray(), np.array([[0.0], [3.0], [0.0]]) * np.ones((3, 4)))


def test_view_ops_make_numpy_views() -> None:
    a = array_of((2, 3))
    for op in (OPS["slice"].make(index=(0, 1)), OPS["transpose"].make(), OPS["reshape"].make(newshape=(3, 2))):
        assert np.shares_memory(op.bind([TensorType("float64", a.shape)], None).value(a), a)


@pytest.mark.parametrize("shape", [(3, 70), (2, 3, 5), (200,), (2, 8, 9), (4, 0)])
@pytest.mark.parametrize("copies", [2, 3, 20])
@pytest.mark.parametrize("strided", [False, True])
def test_copies_of_one_array_in_their_target(shape, copies, strided):
    values = array_of(shape)
    for axis in range(values.ndim):
        x = CPU.array(values)
        reps = [copies if each == axis else 1 for each in range(values.ndim)]
        for tree, wanted in (
            (np.tile(x, reps), np.tile(values, reps)),
            (f.concatenate([x] * copies, axis), np.concatenate([values] * copies, axis)),
            (np.repeat(x, copies, axis), np.repeat(values, copies, axis)),
        ):
            size = wanted.shape[-1]
            z = CPU.zeros((*wanted.shape[:-1], 2 * size))[..., ::2] if strided else CPU.empty(wanted.shape)
            z[:] = tree
            np.testing.assert_array_equal(z.get(), wanted)


def test_long_copies_of_one_array_are_written_at_once(monkeypatch):
    """Run by run: one array after the other would be read from memory again for each copy."""
    calls = []
    whole = np.concatenate
    monkeypatch.setattr(np, "concatenate", lambda *given, **options: calls.append(1) or whole(*given, **options))
    x, z = CPU.array(array_of((8, 512))), CPU.empty((8, 1024))
    z[:] = np.tile(x, 2)
    assert not calls
    np.testing.assert_array_equal(z.get()[:, 512:], x.get())
    y = CPU.array(-array_of((8, 512)))
    z[:] = f.concatenate([x, y], 1)
    assert calls
