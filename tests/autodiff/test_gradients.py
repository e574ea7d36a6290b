"""Derivatives as a framework: how adjoints travel, and what is refused. The ops' own are in test_registry.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from backends import gen_backend
from optree import Autodiff, Input, OpTreeNode, TensorType, check_grad, constant, grad
from optree.errors import (
    BackendError,
    DisconnectedError,
    DTypeError,
    GradientError,
    OperandError,
    OptreeError,
    ShapeError,
)
from optree.op.traits import BinaryOperator, ElementwiseOperator, FloatOperator, UnaryOperator
from optree.registry import f
from optree.settings import override
from optree.tree import variable
from optree.tree.node import post_order


def _value(tree: Any) -> np.ndarray:
    return tree.asnumpyarray()


def _nodes(*trees: Any) -> int:
    """How many distinct nodes trees have."""
    found = post_order(trees, lambda x: x.inputs if isinstance(x, OpTreeNode) else ())
    return sum(isinstance(x, OpTreeNode) for x in found)


def _ramp(be: Any, *shape: int, name: str | None = None) -> Any:
    return be.array(np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape) / 4, name=name)


# Of one operand and several


def test_one_operand_gives_a_tree_and_a_list_gives_a_list(be64: Any) -> None:
    x, y = _ramp(be64, 3), _ramp(be64, 3)
    cost = be64.sum(x * y)
    assert isinstance(grad(cost, x), OpTreeNode)
    by_list = grad(cost, [x, y])
    assert isinstance(by_list, list)
    np.testing.assert_array_equal(_value(by_list[0]), y.get())
    np.testing.assert_array_equal(_value(by_list[1]), x.get())
    assert len(grad(cost, (x,))) == 1


def test_a_node_can_be_what_one_derives_by(be64: Any) -> None:
    x = _ramp(be64, 3)
    h = be64.tanh(x)
    np.testing.assert_allclose(_value(grad(be64.sum(h * h), h)), 2 * np.tanh(x.get()))


def test_the_cost_by_itself_is_one(be64: Any) -> None:
    cost = be64.sum(_ramp(be64, 3))
    assert _value(grad(cost, cost)).item() == 1.0


def test_an_operand_that_stands_between_gets_all_its_deltas_first(be64: Any) -> None:
    # h feeds the cost directly and through k: an order by depth alone would send h's adjoint too early.
    x = _ramp(be64, 3)
    h = x * 2
    k = be64.exp(h)
    got = grad(be64.sum(h * 3 + k + k * h), [x, h])
    v = 2 * x.get()
    wanted = 3 + np.exp(v) + np.exp(v) * v + np.exp(v)
    np.testing.assert_allclose(_value(got[1]), wanted)
    np.testing.assert_allclose(_value(got[0]), 2 * wanted)


def test_a_broadcast_operand_gets_its_gradient_summed_back(be64: Any) -> None:
    x, row, column, point = _ramp(be64, 2, 3), _ramp(be64, 3), _ramp(be64, 2, 1), be64.array(2.0)
    cost = be64.sum(x * row * column * point)
    got = [_value(g) for g in grad(cost, [row, column, point])]
    product = x.get() * row.get() * column.get() * 2.0
    np.testing.assert_allclose(got[0], product.sum(0) / row.get())
    np.testing.assert_allclose(got[1], product.sum(1, keepdims=True) / column.get())
    np.testing.assert_allclose(got[2], product.sum() / 2.0)
    assert [g.shape for g in got] == [(3,), (2, 1), ()]


def test_second_and_third_derivatives(be64: Any) -> None:
    x = be64.array([0.3, -0.7, 1.1])
    first = grad(be64.sum(be64.sin(x) * x), x)
    second = grad(be64.sum(first), x)
    third = grad(be64.sum(second), x)
    v = x.get()
    np.testing.assert_allclose(_value(first), np.sin(v) + v * np.cos(v))
    np.testing.assert_allclose(_value(second), 2 * np.cos(v) - v * np.sin(v))
    np.testing.assert_allclose(_value(third), -3 * np.sin(v) - v * np.cos(v))


def test_a_gradient_is_an_expression_that_follows_its_tensors(be64: Any) -> None:
    x = _ramp(be64, 3)
    derivative = grad(be64.sum(x * x), x)
    x[:] = 5.0
    with override(stale_trees="ignore"):
        np.testing.assert_array_equal(_value(derivative), [10.0] * 3)


def test_inputs_have_derivatives(be64: Any) -> None:
    x = Input(TensorType("float64", (3,)), "x")
    derivative = grad(f.sum(x * x), x)
    assert derivative.shape == (3,)
    assert derivative.dtype == np.float64


def test_what_passes_through_integers_has_a_zero_derivative(be64: Any) -> None:
    x = _ramp(be64, 3)
    cost = be64.sum(be64.cast(x > 0.5, np.float64) * 3.0)
    np.testing.assert_array_equal(_value(grad(cost, x)), np.zeros(3))


# Through views


def test_through_a_transposed_view(be64: Any) -> None:
    x = _ramp(be64, 2, 3)
    weights = _ramp(be64, 3, 2)
    np.testing.assert_array_equal(_value(grad(be64.sum(x.T * weights), x)), weights.get().T)
    both = grad(be64.sum(x.T * weights) + be64.sum(x * x), x)
    np.testing.assert_array_equal(_value(both), weights.get().T + 2 * x.get())


def test_through_a_reshaped_view(be64: Any) -> None:
    x = _ramp(be64, 2, 3)
    weights = _ramp(be64, 6)
    np.testing.assert_array_equal(_value(grad(be64.sum(x.reshape(6) * weights), x)), weights.get().reshape(2, 3))


def test_through_views_of_views(be64: Any) -> None:
    x = _ramp(be64, 4, 3)
    view = x.reshape(2, 6)[:, ::-2].T[1:]
    weights = _ramp(be64, *view.shape)
    got = _value(grad(be64.sum(view * weights), x))
    places = np.arange(12).reshape(4, 3).reshape(2, 6)[:, ::-2].T[1:]
    wanted = np.zeros(12)
    wanted[places] = weights.get()
    np.testing.assert_array_equal(got, wanted.reshape(4, 3))


def test_two_different_slices_of_one_tensor_add_up(be64: Any) -> None:
    x = _ramp(be64, 4)
    got = _value(grad(be64.sum(x[:3] * x[1:]), x))
    v = x.get()
    wanted = np.zeros(4)
    wanted[:3] += v[1:]
    wanted[1:] += v[:3]
    np.testing.assert_allclose(got, wanted)


def test_two_views_that_are_alike_are_the_same_place(be64: Any) -> None:
    x = _ramp(be64, 4)
    np.testing.assert_array_equal(_value(grad(be64.sum(x[1:3] * x[1:3]), x)), [0, 2 * 0.5, 2 * 0.75, 0])


def test_a_slice_is_what_one_derives_by(be64: Any) -> None:
    x = _ramp(be64, 4)
    part = x[1:3]
    np.testing.assert_array_equal(_value(grad(be64.sum(part * part), part)), 2 * part.get())
    # Used through its base and through another slice that overlaps it, it changes the cost all the same.
    cost = be64.sum(x * x) + be64.sum(x[2:] * 3.0)
    np.testing.assert_array_equal(_value(grad(cost, part)), 2 * part.get() + [0.0, 3.0])


def test_a_slice_that_is_made_anew_is_the_same_slice(be64: Any) -> None:
    x = _ramp(be64, 4)
    np.testing.assert_array_equal(_value(grad(be64.sum(x[1:3] * 2.0), x[1:3])), [2.0, 2.0])


def test_a_view_and_its_base_at_once(be64: Any) -> None:
    x = _ramp(be64, 2, 2)
    row = x[0]
    by_x, by_row = grad(be64.sum(x * x) + be64.sum(row * 5.0), [x, row])
    np.testing.assert_array_equal(_value(by_x), 2 * x.get() + [[5.0], [0.0]])
    np.testing.assert_array_equal(_value(by_row), 2 * x.get()[0] + 5.0)


def test_second_derivatives_through_views(be64: Any) -> None:
    x = _ramp(be64, 2, 3)
    first = grad(be64.sum(x.T * x.T * x[:, :1].T), x)
    check_grad(lambda x: grad(be64.sum(x.T * x.T * x[:, :1].T), x), x)
    assert first.shape == (2, 3)


# Scale


def _diamond(x: Any, levels: int) -> Any:
    y = x
    for _ in range(levels):
        y = y * y + y
    return y


def test_a_diamond_of_64_levels(be64: Any) -> None:
    x = be64.array([0.0, -1.0])  # y * y + y keeps 0 at 0 and takes -1 there, so the derivatives are 1 and -1
    cost = be64.sum(_diamond(x, 64))
    derivative = grad(cost, x)
    assert _nodes(cost) < 200
    assert _nodes(derivative) < 1000
    np.testing.assert_array_equal(_value(derivative), [1.0, -1.0])


@pytest.mark.parametrize("build", [lambda y, x: y + x, lambda y, x: y * x, lambda y, x: f.sin(y)])
def test_nodes_of_a_gradient_grow_with_those_of_the_cost(be64: Any, build: Any) -> None:
    def count(length: int) -> int:
        x = be64.array([0.5, 0.25])
        y = x
        for _ in range(length):
            y = build(y, x)
        return _nodes(grad(be64.sum(y), x))

    small, middle, large = count(100), count(200), count(400)
    assert large - middle == 2 * (middle - small), "the gradient does not grow linearly"
    assert large < 400 * 8


def test_a_long_chain_of_ops(be64: Any) -> None:
    n = 10_000
    x = be64.array([0.5, 0.25])
    y = x
    for _ in range(n // 2):
        y = (y + x) * 0.5
    derivative = grad(be64.sum(y), x)
    assert _nodes(derivative) < 8 * n
    np.testing.assert_allclose(_value(derivative), [1.0, 1.0], rtol=1e-12)


# Nothing is multiplied by zero


def test_an_infinite_input_makes_no_nan(be64: Any) -> None:
    x = be64.array([np.inf, 1.0])
    np.testing.assert_array_equal(_value(grad(be64.sum(x) * 2.0, x)), [2.0, 2.0])
    np.testing.assert_array_equal(_value(grad(be64.sum(x + x), x)), [2.0, 2.0])
    np.testing.assert_array_equal(_value(grad(be64.sum(x[1:] * 3.0), x)), [0.0, 3.0])
    np.testing.assert_array_equal(_value(grad(be64.sum(be64.floor(x)), x)), [0.0, 0.0])


# dtypes


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_gradient_has_its_operands_dtype(be: Any, dtype: Any) -> None:
    x = be.array([1.0, 2.0], dtype)
    derivative = grad(be.sum(be.tanh(x * 2.0) / 3), x)
    assert derivative.dtype == dtype
    assert derivative.asnumpyarray().dtype == dtype


def test_operands_of_two_dtypes_each_get_their_own(be: Any) -> None:
    x, y = be.array([1.0, 2.0], np.float32), be.array([3.0, 4.0], np.float64)
    by_x, by_y = grad(be.sum(x * y), [x, y])
    assert (by_x.dtype, by_y.dtype) == (np.float32, np.float64)


def test_an_integer_factor_sends_nothing_on(be: Any) -> None:
    n, x = be.array(np.array([1, 2])), be.array([3.0, 4.0], np.float64)
    np.testing.assert_array_equal(_value(grad(be.sum(n * x), x)), [1.0, 2.0])


# What is refused


def test_a_cost_that_is_no_scalar(be: Any) -> None:
    x = be.ones((2, 3), name="x")
    with pytest.raises(GradientError, match=r"mul.*\(2, 3\).*be\.sum.*next_error"):
        grad(x * x, x)


def test_a_cost_that_is_no_tree(be: Any) -> None:
    with pytest.raises(GradientError, match="floating"):
        grad(3.0, be.ones(2))


def test_an_operand_that_the_cost_does_not_hold(be: Any) -> None:
    x, other = be.ones((2, 3), name="x"), be.ones((2, 3), name="other")
    with pytest.raises(DisconnectedError, match="does not contain other"):
        grad(be.sum(x * x), other)
    with pytest.raises(DisconnectedError, match="mul"):
        grad(be.sum(x * x), x * x)  # an equal tree, but not the very one
    with pytest.raises(OperandError):
        grad(be.sum(x * x), "x")


# User-defined ops that break the contract. Without a name they are not registered.


class _Broken(UnaryOperator, ElementwiseOperator, FloatOperator):
    """x, with a gradient that a test gives."""

    numpy = np.positive
    answer: Any = None

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Any:
        return type(self).answer(inputs, output_gradients)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda xs, ds: [ds[0], ds[0]], r"_Broken.*1 gradient"),
        (lambda xs, ds: [], r"_Broken.*1 gradient"),
        (lambda xs, ds: ds[0], r"_Broken.*1 gradient"),
        (lambda xs, ds: None, r"_Broken.*1 gradient"),
        (lambda xs, ds: [f.sum(ds[0], axis=1, keepdims=False)], r"_Broken.*\(2,\).*weights \(2, 3\)"),
        (lambda xs, ds: [f.transpose(ds[0])], r"_Broken.*\(3, 2\).*weights \(2, 3\)"),
        (lambda xs, ds: [1.0], r"_Broken.*floating.*1\.0"),
        (lambda xs, ds: [np.ones((2, 3))], r"_Broken.*floating"),
        (lambda xs, ds: [f.cast(ds[0], np.int32)], r"_Broken.*floating.*int32"),
    ],
)
def test_a_gradient_of_a_wrong_kind_names_its_op(be: Any, answer: Any, says: str) -> None:
    x = be.ones((2, 3), name="weights")

    class Named(_Broken):
        pass

    Named.answer = staticmethod(answer)
    Named.__name__ = "_Broken"
    with pytest.raises(OptreeError, match=says):
        grad(be.sum(Named()(x)), x)


def test_an_error_inside_a_gradient_tells_where(be: Any) -> None:
    x = be.ones((2, 3), name="weights")

    class Raises(_Broken):
        def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Any:
            raise KeyError("missing")

    with pytest.raises(KeyError, match="missing") as caught:
        grad(be.sum(Raises()(x)), x)
    assert any("Raises" in note for note in caught.value.__notes__)


# check_grad


def test_check_grad_accepts_what_is_right(be: Any) -> None:
    x, y = be.array([[0.5, -1.5], [0.25, 2.0]], name="x"), be.array([1.0, 3.0], name="y")
    check_grad(lambda x, y: be.tanh(x * y) / (y + 2.0), [x, y])
    np.testing.assert_array_equal(x.get(), np.array([[0.5, -1.5], [0.25, 2.0]], np.float32))


def test_check_grad_says_which_element_of_which_input_is_off(be: Any) -> None:
    class WrongAtOne(BinaryOperator, ElementwiseOperator):
        """x * y, with a gradient for y that is wrong where y is above 5."""

        numpy = np.multiply

        def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
            (x, y), (delta,) = inputs, output_gradients
            return [delta * y, delta * f.where(y > 5.0, x * 1.5, x)]

    x = be.ones((2, 3), name="x")
    y = be.array([[1.0, 2.0, 3.0], [4.0, 9.0, 5.0]], name="speeds")
    with pytest.raises(GradientError, match=r"input 1 \(speeds\).*\(1, 1\).*1 of 6"):
        check_grad(lambda x, y: WrongAtOne()(x, y), [x, y])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda delta, x: delta * f.cos(x) * 1.001,
        lambda delta, x: -delta * f.cos(x),
        lambda delta, x: delta * np.nan,
        lambda delta, x: f.broadcast_like(f.sum(delta * f.cos(x)) / 4.0, x),  # right on the whole, not by element
    ],
)
def test_check_grad_finds_a_wrong_gradient(be: Any, wrong: Any) -> None:
    class Wrong(UnaryOperator, ElementwiseOperator, FloatOperator):
        """sin(x) with a wrong gradient."""

        numpy = np.sin

        def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
            return [wrong(output_gradients[0], inputs[0])]

    with pytest.raises(GradientError, match="wrong for input 0"):
        check_grad(lambda x: Wrong()(x), be.array([0.1, 0.4, 0.9, 1.4]))


def test_check_grad_wants_tensors_and_a_tree(be: Any) -> None:
    with pytest.raises(OperandError, match="tensor"):
        check_grad(lambda x: x, [1.0])
    with pytest.raises(OperandError, match="tree"):
        check_grad(lambda x: 3.0, be.ones(2))


# neon's Autodiff


@pytest.fixture
def neon() -> Any:
    """A backend in neon's mode."""
    return gen_backend("cpu", compat_mode="neon")


def test_autodiff_takes_parentheses_lists_and_single_tensors(neon: Any) -> None:
    x0, x1 = neon.array(np.full((2, 2), 3.0), name="x0"), neon.array(np.full((2, 2), 5.0), name="x1")
    ad = Autodiff(x0 * x1 + x0 * x0, neon)
    wanted0, wanted1 = np.full((2, 2), 11.0), np.full((2, 2), 3.0)
    by_list = ad.get_grad_asnumpyarray([x0, x1])
    by_tuple = ad.get_grad_asnumpyarray((x0, x1))
    np.testing.assert_array_equal(by_list, [wanted0, wanted1])
    np.testing.assert_array_equal(by_tuple, [wanted0, wanted1])
    np.testing.assert_array_equal(ad.get_grad_asnumpyarray((x1)), wanted1)  # noqa: UP034
    np.testing.assert_array_equal(ad.get_grad_asnumpyarray([x1])[0], wanted1)


def test_autodiff_gives_trees_tensors_and_arrays(be: Any) -> None:
    x = be.array([[1.0, 2.0]], name="x")
    ad = Autodiff(be.sum(x * x), be)
    (tree,) = ad.get_grad_op_tree([x])
    (tensor,) = ad.get_grad_tensor([x])
    (array,) = ad.get_grad_asnumpyarray([x])
    assert isinstance(tree, OpTreeNode)
    assert tensor.backend is be
    assert type(array) is np.ndarray
    for value in (tree.asnumpyarray(), tensor.get(), array):
        np.testing.assert_array_equal(value, [[2.0, 4.0]])


def test_autodiff_writes_into_buffers(be: Any) -> None:
    x, y = be.array([[1.0, 2.0]], name="x"), be.array([[3.0, 4.0]], name="y")
    by_x, by_y = be.zeros((1, 2)), be.zeros((1, 2))
    ad = Autodiff(be.sum(x * y), be)
    ad.back_prop_grad([x, y], [by_x, by_y])
    np.testing.assert_array_equal(by_x.get(), y.get())
    np.testing.assert_array_equal(by_y.get(), x.get())
    ad.back_prop_grad(x, by_y)
    np.testing.assert_array_equal(by_y.get(), y.get())


def test_autodiff_writes_into_buffers_that_it_reads(be: Any) -> None:
    x, y = be.array([[1.0, 2.0]]), be.array([[3.0, 4.0]])
    Autodiff(be.sum(x * y), be).back_prop_grad([x, y], [x, y])
    np.testing.assert_array_equal(x.get(), [[3.0, 4.0]])
    np.testing.assert_array_equal(y.get(), [[1.0, 2.0]])


def test_autodiff_takes_the_error_of_what_comes_after(be: Any) -> None:
    x = be.array([[1.0, 2.0]], name="x")
    error = be.array([[10.0, 100.0]], name="error")
    (got,) = Autodiff(x * x, be, next_error=error).get_grad_asnumpyarray([x])
    np.testing.assert_array_equal(got, [[20.0, 400.0]])
    (got,) = Autodiff(x * x, be, next_error=error * 2.0).get_grad_asnumpyarray([x])
    np.testing.assert_array_equal(got, [[40.0, 800.0]])
    with pytest.raises(ShapeError, match="next_error"):
        Autodiff(x * x, be, next_error=be.ones((2, 1)))


def test_autodiff_seeds_ones_in_neons_mode_only(be: Any, neon: Any) -> None:
    x = neon.array([[1.0, 2.0]])
    np.testing.assert_array_equal(Autodiff(x * x, neon).get_grad_asnumpyarray(x), [[2.0, 4.0]])
    y = be.array([[1.0, 2.0]])
    with pytest.raises(GradientError, match="scalar"):
        Autodiff(y * y, be)


def test_autodiff_gives_ties_in_full_in_neons_mode(be: Any, neon: Any) -> None:
    for backend, share in ((be, 0.5), (neon, 1.0)):
        x, y = backend.ones((2, 2)), backend.ones((2, 2))
        ad = Autodiff(backend.sum(backend.maximum(x, y)), backend)
        np.testing.assert_array_equal(ad.get_grad_asnumpyarray([x, y]), np.full((2, 2, 2), share))


def test_autodiff_refuses_what_does_not_fit(be: Any) -> None:
    x, y = be.ones((2, 2), name="x"), be.ones((2, 2), name="y")
    ad = Autodiff(be.sum(x * y), be)
    buffer = be.full((2, 2), 7.0)
    with pytest.raises(ShapeError, match="2 tensors and 1"):
        ad.back_prop_grad([x, y], [buffer])
    with pytest.raises(ShapeError, match=r"\(3, 2\)"):
        ad.back_prop_grad([x, y], [buffer, be.zeros((3, 2))])
    integers = be.full((2, 2), 7, np.int32, name="counts")
    with pytest.raises(DTypeError, match=r"counts \(2, 2\) int32"):
        ad.back_prop_grad([x, y], [buffer, integers])
    np.testing.assert_array_equal(buffer.get(), np.full((2, 2), 7.0))
    with pytest.raises(DisconnectedError):
        ad.get_grad_tensor([be.ones((2, 2))])
    with pytest.raises(BackendError):
        Autodiff(be.sum(x), gen_backend("cpu"))


def test_a_constant_has_a_derivative(be64: Any) -> None:
    c = constant(np.array([1.0, 2.0]))
    x = _ramp(be64, 2)
    np.testing.assert_array_equal(_value(grad(be64.sum(c * x), c)), x.get())


def test_contributions_to_an_operand_are_summed_only_where_its_gradient_is_asked_for(
    be64: Any, monkeypatch: Any
) -> None:
    summed, sum_of_deltas = [], variable.sum_of_deltas

    def counted(earlier: Any, delta: Any) -> Any:
        summed.append(earlier is not None)
        return sum_of_deltas(earlier, delta)

    monkeypatch.setattr(variable, "sum_of_deltas", counted)
    x, y = _ramp(be64, 2), _ramp(be64, 2)
    tree = x
    for _ in range(5):
        tree = tree * y
    by_x = grad(be64.sum(tree), x)
    assert not any(summed)
    np.testing.assert_allclose(_value(by_x), y.get() ** 5)
    grad(be64.sum(tree), [x, y])
    assert sum(summed) == 4
