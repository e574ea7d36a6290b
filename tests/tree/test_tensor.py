"""Tensors from a user's view: what they tell, their values and their views."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends import gen_backend
from optree import OpTreeNode, Tensor, debugprint
from optree.errors import AxisError, OperandError, ShapeError


def of(be, value, name=None, dtype="float64"):
    return be.array(np.asarray(value), dtype=dtype, name=name)


def grid(*shape, dtype="float64"):
    return np.arange(1, 1 + int(np.prod(shape)), dtype=dtype).reshape(shape)


# What a tensor tells


def test_attributes(be):
    x = be.zeros((2, 3, 4), dtype="float16", name="x")
    assert (x.name, x.shape, x.dtype, x.ndim, x.size, x.nbytes) == ("x", (2, 3, 4), np.float16, 3, 24, 48)
    assert x.backend is be and x.is_contiguous and len(x) == 2
    assert not x.T.is_contiguous and not x[:, ::2].is_contiguous and x[1].is_contiguous
    assert be.zeros((2,)).name is None


def test_str_and_repr_show_the_values(be):
    x = be.array([[1.0, 2.5], [3.0, 4.0]], name="x")
    assert str(x) == f"{x}" == "[[1.  2.5]\n [3.  4. ]]"
    written = "Tensor([[1. , 2.5],\n        [3. , 4. ]], name='x', shape=(2, 2), dtype=float32"
    assert repr(x) == f"{written}, backend={be.name})"
    y = be.ones(())
    assert str(y) == "1.0" and repr(y).startswith("Tensor(1., shape=(), dtype=float32")
    assert str([y]) == f"[{y!r}]"


@pytest.mark.parametrize("shape", [(2000,), (60, 30), (6, 300), (2, 3000), (7, 7, 30), (11, 10, 11), (2,) * 11, (0, 3)])
def test_many_values_are_shown_as_numpy_shows_them(be, shape, monkeypatch):
    a = np.random.RandomState(0).normal(size=shape).astype("float32")
    x, copied, to_host = be.array(a), [], be.to_host
    monkeypatch.setattr(be, "to_host", lambda array, *args: copied.append(array.size) or to_host(array, *args))
    assert str(x) == str(a) and str(x.T) == str(a.T)
    with np.printoptions(edgeitems=1, threshold=10, precision=2):
        assert str(x) == str(a)
    assert repr(x).endswith(f", shape={shape}, dtype=float32, backend={be.name})")
    assert max(copied) <= 2048, "what is not shown is not copied"


def test_errors_and_trees_name_tensors_and_show_no_values(be):
    x = be.array([[1.25, 2.0], [3.0, 4.0]], name="x")
    assert str(x + 1) == "({'shape': (2, 2), 'op': 'add'}, x, 1)" and "1.25" not in (x + 1).pp()
    ran = be.stats()["executions"]
    assert "1.25" not in str(x + 1) + repr(x * 2) + debugprint(x + 1, file="str") and be.stats()["executions"] == ran
    for wrong in (lambda: x + be.ones(3), lambda: (x + 1)[x], lambda: be.zeros(x), lambda: x.sum(axis=x)):
        with pytest.raises((TypeError, ValueError)) as caught:
            wrong()
        message = str(caught.value)
        assert "x" in message and "1.25" not in message and "\n" not in message, message


def test_a_name_may_be_given_later(be):
    x = be.zeros((2,))
    x.name = "w"
    assert str(x + 1).endswith("w, 1)")


def test_length_and_iteration(be):
    a = grid(3, 2)
    x = of(be, a)
    assert len(x) == 3
    assert [row.get().tolist() for row in x] == a.tolist()
    for row in x:
        row[:] = 0
    assert not x.get().any()
    for use in (len, iter):
        with pytest.raises(TypeError, match="no dimensions"):
            use(be.zeros(()))


# Values in and out


def test_get_and_asnumpyarray_copy_and_raw_does_not(be):
    x = of(be, [1.0, 2.0])
    for array in (x.get(), x.asnumpyarray(), np.array(x)):
        array[:] = 9
    np.testing.assert_array_equal(x.get(), [1.0, 2.0])
    x.raw()[0] = 5
    np.testing.assert_array_equal(x.get(), [5.0, 2.0])
    assert x.T.get().flags.c_contiguous and of(be, grid(2, 3)).T.get().flags.c_contiguous


def test_set_takes_an_array_of_the_same_shape(be):
    x = be.zeros((2, 2), name="x")
    assert x.set(grid(2, 2)) is x
    np.testing.assert_array_equal(x.get(), grid(2, 2))
    x.set([[1, 2], [3, 5]])
    assert x.get()[1, 1] == 5
    with pytest.raises(ShapeError, match=r"\(2,\).*\(2, 2\) of x"):
        x.set([1, 2])


def test_fill_copy_copy_from_and_item(be):
    x = be.empty((2, 2)).fill(3)
    assert x.get().tolist() == [[3.0, 3.0], [3.0, 3.0]]
    y = x.copy(name="y")
    x.fill(0)
    assert y.get()[0, 0] == 3.0 and y.name == "y"
    assert x.copy_from(y) is x and x.get()[0, 0] == 3.0
    x.copy_from(y * 2)
    assert x.get()[0, 0] == 6.0
    x.copy_from(np.ones((2, 2)))
    assert x.get()[0, 0] == 1.0
    other = gen_backend("cpu").full((2, 2), 8)
    assert x.copy_from(other).get()[0, 0] == 8.0
    assert be.full((1, 1), 2.5).item() == 2.5 and type(be.full((), 2.5).item()) is float
    for wrong in (be.ones((2,)), be.ones((2,)) + 1, np.ones(2)):
        with pytest.raises(ShapeError, match=r"\(2,\)"):
            x.copy_from(wrong)
    with pytest.raises(ShapeError, match="4 elements"):
        x.item()


def test_numbers_of_one_element(be):
    assert float(be.full((1,), 2.5)) == 2.5 and int(be.full((), 2)) == 2
    assert [10, 20, 30][be.array(1, dtype="int32")] == 20
    with pytest.raises(TypeError, match="no index"):
        [10][be.zeros(())]


def test_astype_and_take_are_trees(be):
    x = of(be, [1.7, -2.7])
    assert type(x.astype("int32")) is OpTreeNode
    np.testing.assert_array_equal(x.astype("int32").asnumpyarray(), np.array([1, -2], dtype="int32"), strict=True)
    a = grid(3, 4)
    t, out = of(be, a), be.empty((3, 2))
    np.testing.assert_array_equal(t.take([2, 0], axis=1).asnumpyarray(), a.take([2, 0], axis=1))
    np.testing.assert_array_equal(t.take(np.array([11, 0])).asnumpyarray(), a.take([11, 0]))
    assert t.take([2, 0], 1, out) is out
    np.testing.assert_array_equal(out.get(), a.take([2, 0], axis=1))


# Views


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        np.int64(1),
        slice(1, 3),
        slice(None, None, -1),
        slice(3, 0, -2),
        slice(5, 9),
        ...,
        None,
        (1, 2),
        (slice(None), 3),
        (..., 0),
        (slice(None), None, slice(None, None, 2)),
        (np.uint8(2), ..., -1),
        (),
    ],
    ids=repr,
)
def test_integers_and_slices_are_views(be, index):
    a = grid(4, 5)
    x = of(be, a, "x")
    view = x[index]
    assert type(view) is Tensor
    np.testing.assert_array_equal(view.get(), a[index], strict=True)
    x[:] = x * 10
    np.testing.assert_array_equal(view.get(), a[index] * 10, strict=True)
    view[...] = -1
    a[index] = -0.1
    np.testing.assert_array_equal(x.get(), a * 10)


def test_transposes_and_reshapes_are_views(be):
    a = grid(2, 3, 4)
    x = of(be, a)
    for view, expected in [
        (x.T, a.T),
        (x.transpose(), a.T),
        (x.transpose(None), a.T),
        (x.transpose(1, 0, 2), a.transpose(1, 0, 2)),
        (x.transpose((2, 0, 1)), a.transpose(2, 0, 1)),
        (x.transpose([0, -1, 1]), a.transpose(0, -1, 1)),
        (x.reshape(6, 4), a.reshape(6, 4)),
        (x.reshape((4, -1)), a.reshape(4, -1)),
        (x.reshape(-1), a.reshape(-1)),
        (x.reshape(np.int64(24)), a.reshape(24)),
        (x[1].T, a[1].T),
        (x[:, 1:].reshape(2, 2, 2, 2)[0], a[:, 1:].reshape(2, 2, 2, 2)[0]),
    ]:
        np.testing.assert_array_equal(view.get(), expected, strict=True)
        assert np.shares_memory(view.raw(), x.raw())
    one = be.ones((1,)).reshape(())
    assert one.shape == () and be.ones(()).reshape(1, 1).shape == (1, 1)


def test_a_reshape_that_must_copy_is_refused_with_the_way_out(be):
    x = of(be, grid(2, 3), "x")
    with pytest.raises(ShapeError, match=r"be\.reshape"):
        x.T.reshape(6)
    np.testing.assert_array_equal(be.reshape(x.T, (6,)).asnumpyarray(), grid(2, 3).T.reshape(6))
    with pytest.raises(ShapeError, match=r"x.*\(4, 2\)"):
        x.reshape(4, 2)


def test_an_index_that_a_tensor_has_had_means_the_same_again_and_only_there(be: Any) -> None:
    values = np.arange(12.0).reshape(3, 4)
    x, small = be.array(values), be.array(values[:2, :2])
    indices = [
        1,
        -1,
        slice(1, 3),
        slice(None, None, -1),
        (1, slice(2)),
        (slice(1, 3), 1),
        (1, 3),
        slice(1, 3, 1),
        (),
        ((1),),
    ]
    for index in indices * 2:
        assert x[index].get().tolist() == values[index].tolist(), index
        x[index] = 7.0
        assert (x[index].get() == 7).all(), index
        x[...] = values
    for wrong in (2, (1, 3), (0, 0, 0)):
        with pytest.raises(AxisError):
            small[wrong]
    for refused in (True, (1, True), 1.0, (1.0, 0)):
        with pytest.raises(OperandError):
            x[refused]
    assert x[np.int64(1)].get().tolist() == x[1].get().tolist() == values[1].tolist()
    assert x[1].view_op is x[1].view_op and x[1].base is x
