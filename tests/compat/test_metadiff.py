"""Metadiff's "A guide to operators": what every node answers, by its traits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.each import for_each
from harness.op_examples import has_own_examples
from harness.ops import DoubleOp, double

from optree import Input, Op, OpTreeNode, TensorType, constant, grad
from optree.compat.metadiff import operator_of
from optree.errors import GradientError
from optree.op import (
    traits,
)
from optree.registry import OPS, f
from optree.testing.examples import examples_of, inputs_for
from optree.tree.variable import as_variable

METHODS = (
    "is_input_dependent is_differentiable get_data_type get_shape get_parents get_arguments get_ancestors "
    "get_parent_grad send_grad_message generate_gradients get_grad_level equals copy_to"
).split()

TRAITS = (
    "NonDifferentiableOperator OrphanOperator InputOperator ConstantOperator LogicalOperator IntegerOperator "
    "FloatOperator ElementwiseOperator UnaryOperator BinaryOperator AssociativeOperator MorphOperator ReductionOperator"
).split()

MATRIX = TensorType("float32", (2, 3))


def same(found: Any, wanted: Any) -> bool:
    return len(found) == len(wanted) and all(a is b for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_every_kind_of_operand_answers(be: Any, name: str) -> None:
    for x in (be.ones(2), be.ones(2) + 1, MATRIX("x"), constant(2.0), constant(np.ones(2))):
        assert callable(getattr(x, name))


@pytest.mark.parametrize("name", TRAITS)
def test_every_trait_is_an_operator(name: str) -> None:
    assert issubclass(getattr(traits, name), Op)


def test_input_dependence(be: Any) -> None:
    x, c = MATRIX("x"), constant(np.ones(3, np.float32))
    assert x.is_input_dependent() and be.ones(2).is_input_dependent()
    assert not c.is_input_dependent() and not constant(1).is_input_dependent()
    assert not f.exp(c * 2.0).is_input_dependent()
    assert (f.exp(c) + x).is_input_dependent()
    assert f.where(x > 0, c, 1.0).is_input_dependent()


def test_differentiability(be: Any) -> None:
    x, c = MATRIX("x"), constant(np.ones(3, np.float32))
    assert x.is_differentiable() and be.ones(2).is_differentiable()
    assert not c.is_differentiable()
    assert (x * c).is_differentiable() and not (c * 2.0).is_differentiable()
    assert not (x > 0).is_differentiable() and not f.floor(x).is_differentiable()
    assert not f.argmax(x, axis=0).is_differentiable()
    assert not f.where(x > 0, c, 1.0).is_differentiable()
    assert f.where(x > 0, x, 1.0).is_differentiable()
    assert not f.exp(f.floor(x)).is_differentiable()


def test_parents_and_arguments(be: Any) -> None:
    x, y, i = be.ones((2, 3)), be.ones((2, 3)), be.array([0, 1], np.int32)
    for node, parents, arguments in (
        (f.exp(x), [x], []),
        (x * y, [x, y], []),
        (x * x, [x, x], []),
        (f.concatenate([x, y, x], axis=0), [x, y, x], []),
        (f.sum(x, axis=1), [x], []),
        (x > y, [x, y], []),
        (f.take(x, i, axis=1), [x], [i]),
        (f.where(i, x[:, :2], y[:, :2]), None, [i]),
        (f.reshape_like(x, y), [x], [y]),
        (f.fill_like(x, 2.0), None, [x]),
    ):
        assert parents is None or same(node.get_parents(), parents)
        assert same(node.get_arguments(), arguments)
        assert same(node.get_ancestors(), node.inputs) or any(type(z) is float for z in node.inputs)
    assert x.get_parents() == x.get_arguments() == x.get_ancestors() == []


WITH_EXAMPLES = [name for name, op in OPS.items() if has_own_examples(op) and not op.destroy_map]


@for_each("name", WITH_EXAMPLES)
def test_the_answers_of_every_op(name: str) -> None:
    for node in _nodes(name):
        parents, arguments, ancestors = node.get_parents(), node.get_arguments(), node.get_ancestors()
        assert [x.label for x in ancestors] == [as_variable(x).label for x in node.inputs]
        assert sorted(x.label for x in [*parents, *arguments]) == sorted(x.label for x in ancestors)
        assert (node.get_data_type(), node.get_shape()) == (node.dtype, node.shape)
        assert node.get_grad_level() == 0
        assert node.is_input_dependent() == any(isinstance(x, Input) for x in ancestors)
        flat = isinstance(node.op, traits.NonDifferentiableOperator)
        assert node.is_differentiable() == (not flat and any(x.is_differentiable() for x in parents))
        if not node.op.destroy_map:
            copied = node.copy_to(ancestors)
            assert copied is not node
            assert copied.equals(node)


def _nodes(name: str) -> list[Any]:
    found = [
        example.tree(inputs_for(example.draw(np.float32 if example.takes_floats else None)))
        for example in examples_of(OPS[name])
    ]
    return [node for node in found if isinstance(node, OpTreeNode) and isinstance(node.type, TensorType)]


def test_gradients_of_parents(be: Any) -> None:
    x, y = be.array([[1.0, 2.0, 3.0]], name="x"), be.array([[4.0], [5.0]], name="y")
    node, my_grad = x / y, be.array([[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]])
    wanted = [g.asnumpyarray() for g in grad(f.sum(node * my_grad), [x, y])]
    found = [node.get_parent_grad(my_grad, i).asnumpyarray() for i in (0, 1)]
    messages = node.generate_gradients(my_grad)
    for parent, one, two in zip((x, y), wanted, found, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-6)
        np.testing.assert_allclose(messages[parent].asnumpyarray(), one, rtol=1e-6)
    again = node.generate_gradients(my_grad, messages)
    np.testing.assert_allclose(again[x].asnumpyarray(), 2 * wanted[0], rtol=1e-6)


def test_a_parent_in_two_places_has_a_gradient_for_each(be: Any) -> None:
    x, one = be.array([3.0]), be.ones(1)
    node = x / (x * 1.0)
    node = f.div(x, x)
    assert [node.get_parent_grad(one, i).asnumpyarray().item() for i in (0, 1)] == pytest.approx([1 / 3, -1 / 3])
    assert node.generate_gradients(one)[x].asnumpyarray().item() == pytest.approx(0.0)


def test_messages(be: Any) -> None:
    x, y, messages = be.ones(2), be.ones(2), {}
    node = x * y
    node.send_grad_message(x, y, messages)
    assert messages[x] is y
    node.send_grad_message(x, y, messages)
    assert messages[x].asnumpyarray().tolist() == [2.0, 2.0]
    with pytest.raises(GradientError, match="is no parent of"):
        node.send_grad_message(be.ones(2), y, messages)


@pytest.mark.parametrize("make", [lambda x: x > 0, lambda x: x, lambda x: f.logical_not(x)])
def test_what_has_no_gradient_for_its_parents(be: Any, make: Any) -> None:
    with pytest.raises(GradientError):
        make(be.ones(2)).get_parent_grad(be.ones(2), 0)
    with pytest.raises(GradientError, match="has 2 parents; there is none at 2"):
        (be.ones(2) + be.ones(2)).get_parent_grad(be.ones(2), 2)


def test_grad_levels(be: Any) -> None:
    x = be.array([1.0, 2.0])
    cost = f.sum(x * x * x)
    first = grad(cost, x)
    second = grad(f.sum(first * first), x)
    assert [z.get_grad_level() for z in (x, cost, first, f.exp(first) + x, second)] == [0, 0, 1, 1, 2]


def test_leaves_answer_as_operators(be: Any) -> None:
    assert type(operator_of(be.ones(2))) is type(operator_of(MATRIX("x"))) is traits.InputOperator
    half = operator_of(constant(np.float16(0.5)))
    assert (type(half), half.dtype) == (traits.ConstantOperator, np.float16)
    assert constant(np.float16(0.5)).get_data_type() == np.float16
    assert MATRIX("x").get_shape() == (2, 3)


def test_what_a_users_op_without_a_gradient_answers() -> None:
    x = double("x")
    node = DoubleOp("twice", lambda x: x + x, 1)(x)
    assert (node.get_parents(), node.get_arguments()) == ([], [x])
    assert node.is_input_dependent() and not node.is_differentiable()
    assert node.get_data_type() is double


def test_copies(be: Any) -> None:
    x, y = be.ones((2, 3), name="x"), be.ones((2, 3), name="y")
    assert str(f.where(x > 0, x, 1.0).copy_to([x, y, y])).endswith(", x, ({'op': 'args'}, y, y))")
    assert f.sum(x, axis=0).copy_to([y]).inputs == [y]
    assert x.copy_to() is x
    with pytest.raises(GradientError, match="has 2 ancestors, not 1"):
        (x + y).copy_to([x])


# Symbolic equality


def test_equality_up_to_grouping_and_order(be: Any) -> None:
    a, b, c = (be.ones((2, 2), name=name) for name in "abc")
    for one, two in (
        (a * b * c, c * (b * a)),
        (a + 2 + b, b + (2 + a)),
        (f.maximum(a, f.maximum(b, c)), f.maximum(f.maximum(c, a), b)),
        (f.exp(a + b) * c, c * f.exp(b + a)),
        (f.eq(a, b), f.eq(b, a)),
        (f.hypot(a, b), f.hypot(b, a)),
        (f.concatenate([f.concatenate([a, b]), c]), f.concatenate([a, b, c])),
        (f.concatenate([a, f.concatenate([b, c])]), f.concatenate([f.concatenate([a, b]), c])),
        (a[0] + b, b + a[0]),
        (a, a),
        (f.sum(a, axis=-1), f.sum(a, axis=1)),
    ):
        assert one.equals(two) and two.equals(one), (one, two)


def test_what_is_not_equal(be: Any) -> None:
    a, b, c = (be.ones((2, 2), name=name) for name in "abc")
    for one, two in (
        (a - b, b - a),
        (a / b, b / a),
        (a * b, a + b),
        (a + b, a + b + a),
        (a + a, a),
        (f.dot(a, b), f.dot(b, a)),
        (a + 2, a + 2.0),
        (a + 0.0, a + -0.0),
        (a + 1, a + True),
        (a * 2, a * np.float32(2)),
        (f.sum(a, axis=0), f.sum(a, axis=1)),
        (a[0] + b, a[1] + b),
        (f.eq(f.eq(a, b), c), f.eq(a, f.eq(b, c))),
        (f.concatenate([a, b]), f.concatenate([b, a])),
        (a + (b + c.astype("float64")), (a + b) + c.astype("float64")),
        (be.ones((2, 2)), be.ones((2, 2))),
        (be.rand((2, 2)), be.rand((2, 2))),
        (a, 1.0),
    ):
        assert not one.equals(two), (one, two)
    draw = be.rand((2, 2))
    assert draw.equals(draw)
    assert constant(2.0).equals(2.0) and not constant(2.0).equals(2)


def test_equality_of_long_chains_and_deep_diamonds(be: Any) -> None:
    leaves = [be.ones(2) for _ in range(5000)]
    there = back = None
    for x in leaves:
        there = x if there is None else there + x
    for x in reversed(leaves):
        back = x if back is None else x + back
    assert there.equals(back) and not there.equals(there + leaves[0])
    a = b = leaves[0]
    for _ in range(64):
        a, b = a + a, b + b
    assert a.equals(b) and not a.equals(b + leaves[0])
    assert a.get_grad_level() == 0 and a.is_differentiable() and there.is_input_dependent()
    assert as_variable(3).equals(3)
