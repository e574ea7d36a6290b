"""jit: when a Python function is compiled, what its arguments and values may be, and what it says of others."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from harness.homes import home

import optree
from optree import TensorType, function, grad, jit, value_and_grad
from optree.errors import BackendError, DTypeError, GradientError, OperandError, ShapeError
from optree.tree.tensor import Tensor


class Called:
    """A function that counts its calls."""

    def __init__(self, function: Any) -> None:
        self.count, self._function = 0, function
        self.__name__, self.__wrapped__ = function.__name__, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return self._function(*args, **kwargs)


def counted(function: Any, **options: Any) -> Any:
    called = Called(function)
    return called, jit(called, **options)


def test_it_is_compiled_once_for_each_set_of_dtypes_and_ranks(be: Any) -> None:
    called, f = counted(lambda x, y: np.tanh(x) * y + 1)
    a = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    for rows in (2, 5, 7):
        x, y = np.ones((rows, 3), np.float32), np.full((rows, 3), 2.0, np.float32)
        found = f(be.array(x), be.array(y))
        assert isinstance(found, Tensor)
        np.testing.assert_allclose(found.get(), np.tanh(x) * y + 1, rtol=1e-6)
    assert called.count == len(f.functions) == 1
    f(be.array(a, "float64"), be.array(a))
    assert called.count == 2
    f(be.array(a[0]), be.array(a[0]))
    assert called.count == 3
    f(be.array(a), be.array(a))
    assert called.count == 3


def test_a_size_of_1_broadcasts_as_in_numpy(be: Any) -> None:
    called, f = counted(lambda x, y: x - y)
    for shape in ((1, 3), (4, 1), (4, 3), (1, 1)):
        x, y = np.ones((4, 3), np.float32), np.full(shape, 2.0, np.float32)
        np.testing.assert_array_equal(f(be.array(x), be.array(y)).get(), x - y)
    assert called.count == 4
    with pytest.raises(ShapeError):
        f(be.ones((4, 3)), be.ones((5, 3)))


def test_arrays_scalars_trees_and_tensors_are_arguments(be: Any) -> None:
    called, f = counted(lambda x, rate: x * rate)
    x = be.array([1.0, 2.0])
    for rate in (np.float32(3.0), np.float32(4.0), np.array(5.0, np.float32)):
        np.testing.assert_array_equal(f(x, rate).get(), [rate, 2 * rate])
    assert f(x, np.float32(3.0)).dtype == np.float32
    np.testing.assert_array_equal(f(x + 1, x * 2).get(), [4.0, 12.0])
    assert called.count == 2


def test_python_numbers_are_part_of_the_program(be: Any) -> None:
    called, f = counted(lambda x, n=2, keep=None: be.sum(x**n, axis=0) if keep is None else x)
    x = be.array([1.0, 3.0])
    assert (f(x).item(), f(x, 2).item(), f(x, n=3).item()) == (10.0, 10.0, 28.0)
    assert f(x, 2).dtype == np.float32
    assert called.count == 2
    assert (f(x, 1.0).item(), f(x, True).item(), f(x, 1).item()) == (4.0, 4.0, 4.0)
    assert called.count == 5, "1, 1.0 and True are equal, and build other trees"


def test_many_numbers_are_warned_of(be: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("optree.run.jit.MANY", 3)
    f = jit(lambda x, rate: x * rate)
    with pytest.warns(UserWarning, match=r"3 sets of arguments.*np\.float32\(x\)"):
        for rate in (0.1, 0.2, 0.3):
            f(be.ones(2), rate)


def test_static_arguments_by_name(be: Any) -> None:
    @jit(static_argnames=("activation", "axes"))
    def layer(x: Any, activation: Any, *, axes: Any = (0,)) -> Any:
        return be.sum(activation(x), axis=axes)

    x = np.ones((2, 3), np.float32)
    assert layer(x, np.exp).shape == (1, 3)
    assert layer(x, np.tanh, axes=(0, 1)).shape == (1, 1)
    assert layer(x, activation=np.exp).shape == (1, 3)
    assert len(layer.functions) == 2
    with pytest.raises(OperandError, match="layer: the static argument axes is to be hashable, and .*list"):
        layer(x, np.exp, axes=[0])


class Moments(NamedTuple):
    mean: Any
    square: Any


def test_nested_arguments_and_values(be: Any) -> None:
    @jit
    def step(params: Any, x: Any) -> Any:
        hidden = x
        for w, b in params["layers"]:
            hidden = be.dot(hidden, w) + b
        return {"out": hidden, "moments": Moments(be.mean(hidden), be.mean(hidden**2)), "none": None, "list": [x, 1.5]}

    params = {"layers": [(be.full((3, 3), 1.0), be.ones(3)), (be.full((3, 2), 2.0), be.zeros(2))]}
    found = step(params, be.ones((4, 3)))
    np.testing.assert_array_equal(found["out"].get(), np.full((4, 2), 24.0))
    assert (found["moments"].mean.item(), found["moments"].square.item()) == (24.0, 576.0)
    assert found["none"] is None
    np.testing.assert_array_equal(found["list"][0].get(), np.ones((4, 3)))
    assert float(found["list"][1]) == 1.5
    step({"layers": params["layers"][:1]}, be.ones((4, 3)))
    assert len(step.functions) == 2


def test_a_training_step_in_one_program(be: Any) -> None:
    @jit
    def step(params: Any, x: Any, y: Any, rate: Any) -> Any:
        w, b = params
        loss, (of_w, of_b) = value_and_grad(be.mean(be.square(be.dot(x, w) + b - y), keepdims=False), [w, b])
        return loss, [w - rate * of_w, b - rate * of_b]

    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 3)).astype(np.float32)
    y = x @ np.array([[1.0], [2.0], [3.0]], np.float32) + 0.5
    params = [be.zeros((3, 1)), be.zeros((1, 1))]
    losses = []
    for _ in range(200):
        loss, params = step(params, x, y, np.float32(0.1))
        losses.append(loss.item())
    assert losses[-1] < 1e-4 < losses[0]
    np.testing.assert_allclose(params[0].get().ravel(), [1.0, 2.0, 3.0], atol=1e-2)
    assert len(step.functions) == 1


def test_tensors_that_are_no_arguments_are_read_in_each_call(be: Any) -> None:
    w = be.array([1.0, 2.0], name="w")
    f = jit(lambda x: x * w)
    np.testing.assert_array_equal(f(np.float32([1.0, 1.0])).get(), [1.0, 2.0])
    w[...] = 5.0
    np.testing.assert_array_equal(f(np.float32([1.0, 1.0])).get(), [5.0, 5.0])


def test_on_inputs_and_trees_of_them_it_is_the_function_itself(be: Any) -> None:
    called, inner = counted(lambda x: x * x)
    outer = jit(lambda x: grad(be.sum(inner(x) * 3.0), x) + inner(x + 1))
    np.testing.assert_array_equal(outer(be.array([1.0, 2.0])).get(), [10.0, 21.0])
    assert called.count == 2
    assert not inner.functions
    x = TensorType("float32", (None,))("x")
    assert function([x], inner(x))([3.0]).get().tolist() == [9.0]


def test_methods_name_self_as_static() -> None:
    be = home("cpu")

    class Model:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        @jit(static_argnames="self")
        def __call__(self, x: Any) -> Any:
            """Scaled."""
            return x * self.scale

    assert Model(2.0)(be.ones(2)).get().tolist() == [2.0, 2.0]
    assert Model(3.0)(be.ones(2)).get().tolist() == [3.0, 3.0]
    assert Model.__call__.__doc__ == "Scaled."


def test_it_runs_on_the_backend_of_its_arguments() -> None:
    first, second = home("cpu"), home("cpu")
    f = jit(lambda x, y: np.exp(x) + y)
    assert f(first.ones(2), first.ones(2)).backend is first
    assert f(second.ones(2), np.ones(2, np.float32)).backend is second
    with pytest.raises(BackendError):
        f(first.ones(2), second.ones(2))


def test_what_cannot_be_an_argument_or_a_value_is_said_early(be: Any) -> None:
    with pytest.raises(OperandError, match="jit of scale: it has no parameter 'axis' to be static; it has x, by"):

        @jit(static_argnames="axis")
        def scale(x: Any, by: Any) -> Any:
            return x * by

    with pytest.raises(OperandError, match="jit: a function is wanted, not"):
        jit(3)
    f = jit(lambda x, config=None: x)
    with pytest.raises(OperandError, match=r"the argument config is .*object.*static_argnames=\('config',\)"):
        f(be.ones(2), config=object())
    with pytest.raises(DTypeError, match="the argument x: dtype object is not supported"):
        f(np.array([1.0, None]))
    with pytest.raises(OperandError, match="the argument config holds .*set"):
        f(be.ones(2), config=[{1}])
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        f()
    with pytest.raises(OperandError, match="it returns 'text'.*jit takes trees"):
        jit(lambda x: "text")(be.ones(2))
    with pytest.raises(BackendError, match="only a function can give it a value"):
        jit(lambda x: float(be.sum(x)))(be.ones(2))


def test_the_mode_is_the_functions(be: Any) -> None:
    f = jit(lambda x: x + 1, mode="debug")
    assert f(be.ones(2)).get().tolist() == [2.0, 2.0]
    assert f.functions[0].mode.kind == "debug"


def test_value_and_grad_is_a_pair_of_trees(be: Any) -> None:
    w, b = be.array([1.0, 2.0]), be.array([3.0, 4.0])
    cost = be.sum(w * w * b, keepdims=False)
    value, gradient = value_and_grad(cost, w)
    assert value is cost
    assert [x.get().tolist() for x in be.evaluate([value, gradient])] == [19.0, [6.0, 16.0]]
    _, (of_w, of_b) = value_and_grad(cost, [w, b])
    assert (of_w.get().tolist(), of_b.get().tolist()) == ([6.0, 16.0], [1.0, 4.0])
    _, none = value_and_grad(be.sum(w), b, disconnected_inputs="ignore", return_disconnected="none")
    assert none is None
    with pytest.raises(GradientError, match=r"the cost is a tree, and .* is a function: optree\.grad\(cost\(x\), x\)"):
        value_and_grad(lambda w: w, w)
    assert {"jit", "value_and_grad"} <= set(dir(optree))


def test_a_function_that_asks_for_sizes_is_compiled_for_each_set_of_shapes(be: Any) -> None:
    def row_sums(x: Any) -> Any:
        total = x[0]
        for i in range(1, x.shape[0]):
            total = total + x[i]
        return np.reshape(total, (x.shape[1], 1)) / x.shape[0]

    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    with pytest.raises(TypeError) as raised:
        jit(row_sums)(be.array(x))
    (note,) = raised.value.__notes__
    assert "row_sums" in note and "static_shapes=True" in note

    called, f = counted(row_sums, static_shapes=True)
    for rows in (x, x[::-1].copy(), np.vstack([x, x])):
        np.testing.assert_allclose(f(be.array(rows)).get(), rows.mean(axis=0)[:, None], rtol=1e-6)
    assert called.count == 2
