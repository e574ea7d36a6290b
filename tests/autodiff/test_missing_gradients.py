"""Gradients that are zero, undefined, disconnected or forgotten; and the ways to ask for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from optree import (
    Apply,
    ComputationOp,
    DisconnectedType,
    NullType,
    Op,
    TensorType,
    Type,
    constant,
    deriv,
    grad,
    grad_not_implemented,
    grad_undefined,
)
from optree.errors import DefinitionError, DisconnectedError, GradientError, OperandError, OptreeError, ShapeError
from optree.op.traits import ElementwiseOperator, UnaryOperator
from optree.registry import f
from optree.tree.gradient_types import is_disconnected


def _value(tree: Any) -> Any:
    return tree.asnumpyarray().tolist()


# The five examples of integers in Theano's document


def test_1_the_dot_product_of_integers_has_gradients_of_zero(be64: Any) -> None:
    x, y = be64.array(np.array([1, 2])), be64.array(np.array([3, 4]))
    product = be64.dot(x, y)
    for cost in (product, product * 0.5):
        gradients = grad(cost, [x, y])
        assert [_value(g) for g in gradients] == [[0, 0], [0, 0]]
        assert all(g.dtype == np.float64 for g in gradients)


def test_2_an_integer_operand_has_the_gradient_of_a_floating_one(be: Any) -> None:
    x, y = be.array([0.5, 1.5]), be.array(np.array([3, 4]))
    by_x, by_y = grad(be.dot(x, y), [x, y])
    assert (_value(by_x), _value(by_y)) == ([3, 4], [0.5, 1.5])
    assert (by_x.dtype, by_y.dtype) == (np.float32, np.float64)  # float32 times int64 is float64
    assert grad(be.sum(be.cast(y, np.float32) * x), y).dtype == np.float32


class _ArgMaxAlong(Op):
    """The place of x's largest element along an axis that is an operand."""

    __props__ = ()

    def make_node(self, x: Any, axis: Any) -> Apply:
        return Apply(self, [x, axis], [TensorType("int64", (None,) * (x.ndim - 1))()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, axis = inputs
        output_storage[0][0] = np.argmax(x, int(axis))

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        x, axis = inputs
        return [f.fill_like(x, 0.0), grad_undefined(self, 1, axis, "no axis lies between two others")]


def test_3_argmax_is_flat_in_x_and_has_no_derivative_by_its_axis(be64: Any) -> None:
    x, axis = be64.array([[1.0, 5.0], [3.0, 2.0]], name="x"), be64.array(np.array(0), name="axis")
    cost = be64.sum(be64.cast(_ArgMaxAlong()(x, axis), np.float64) * 0.5)
    assert _value(grad(cost, x)) == [[0, 0], [0, 0]]
    for costs in (cost, be64.floor(cost)):  # a cost that is flat does not make it defined
        with pytest.raises(
            GradientError, match=r"by axis \(\) int64.*_ArgMaxAlong has no derivative by input 1.*no axis"
        ):
            grad(costs, axis)
    # Made from a float, the axis changes in steps, and almost nowhere at all.
    z = be64.array(0.25, name="z")
    steps = be64.sum(be64.cast(_ArgMaxAlong()(x, be64.cast(z, np.int64)), np.float64))
    assert _value(grad(steps, z)) == 0.0


class _Fill(Op):
    """A vector of so many elements, each of them x."""

    __props__ = ()

    def make_node(self, x: Any, count: Any) -> Apply:
        return Apply(self, [x, count], [TensorType(x.dtype, (None,))()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, count = inputs
        output_storage[0][0] = np.full(int(count), x)

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        return [f.sum(output_gradients[0], keepdims=False), DisconnectedType()()]


class _FillWithPattern(_Fill):
    def connection_pattern(self, node: Any) -> list[list[bool]]:
        assert [x.dtype.kind for x in node.inputs] == ["f", "i"] and len(node.outputs) == 1
        return [[True], [False]]

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        return [*super().grad(inputs, output_gradients)[:1], None]


@pytest.mark.parametrize("op", [_Fill(), _FillWithPattern()])
def test_4_a_fill_is_disconnected_from_its_length(be64: Any, op: Op) -> None:
    x, count = be64.array(2.0, name="x"), be64.array(np.array(3), name="count")
    cost = be64.sum(op(x, count), keepdims=False)
    assert (_value(cost), _value(grad(cost, x))) == (6.0, 3.0)
    with pytest.raises(DisconnectedError, match=r"does not depend on the elements of count \(\) int64"):
        grad(cost, count)
    zero = grad(cost, count, disconnected_inputs="ignore")
    assert (_value(zero), zero.dtype) == (0.0, np.float64)
    # Through another op it counts all the same.
    assert _value(grad(cost + be64.cast(count, np.float64) * 2.0, count)) == 2.0


def test_5_casts_to_and_from_integers(be64: Any) -> None:
    x = be64.array(1.7, name="x")
    y = be64.cast(x, np.int64)
    cost = be64.cast(y, np.float64) * 0.5
    assert [_value(g) for g in grad(cost, [y, x])] == [0.5, 0.0]
    assert _value(deriv(cost, y)) == 0.5


# Disconnected


def test_what_only_the_shape_counts_of_is_disconnected(be64: Any) -> None:
    x = be64.ones((2, 3), name="x")
    for tree in (be64.fill_like(x, 2.0), be64.broadcast_like(be64.array(2.0), x), be64.count(x)):
        with pytest.raises(DisconnectedError, match="the elements of x"):
            grad(be64.sum(tree), x)
    both = be64.sum(be64.broadcast_like(x, x))  # the elements of one, the shape of the other
    assert _value(grad(both, x)) == [[1] * 3] * 2


def test_ways_to_take_what_is_disconnected(be64: Any) -> None:
    x, y = be64.ones(2, name="x"), be64.ones(2, name="y")
    cost = be64.sum(x)
    with pytest.warns(UserWarning, match="does not contain y"):
        assert [_value(g) for g in grad(cost, [x, y], disconnected_inputs="warn")] == [[1, 1], [0, 0]]
    assert grad(cost, y, disconnected_inputs="ignore", return_disconnected="none") is None
    found = grad(cost, y, disconnected_inputs="ignore", return_disconnected="disconnected")
    assert found.type == DisconnectedType()
    with pytest.raises(GradientError, match="disconnected_inputs is one of raise, warn, ignore, not 'pass'"):
        grad(cost, y, disconnected_inputs="pass")
    with pytest.raises(GradientError, match="return_disconnected"):
        grad(cost, y, return_disconnected="nothing")


def test_an_op_of_two_outputs_of_which_one_does_not_see_an_input(be64: Any) -> None:
    class Apart(Op):
        """2 x and 3 y."""

        __props__ = ()

        def make_node(self, x: Any, y: Any) -> Apply:
            return Apply(self, [x, y], [x.type(), y.type()])

        def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            output_storage[0][0], output_storage[1][0] = 2 * inputs[0], 3 * inputs[1]

        def grad(self, inputs: Any, output_gradients: Any) -> Any:
            dx, dy = output_gradients
            return [dx if is_disconnected(dx) else dx * 2.0, dy if is_disconnected(dy) else dy * 3.0]

    class WithPattern(Apart):
        def connection_pattern(self, node: Any) -> list[list[bool]]:
            return [[True, False], [False, True]]

    x, y = be64.ones(2, name="x"), be64.ones(2, name="y")
    for op in (Apart(), WithPattern()):
        left, right = op(x, y)
        assert [_value(g) for g in grad(be64.sum(left * right), [x, y])] == [[6, 6], [6, 6]]
        assert _value(grad(be64.sum(left), x)) == [2, 2]
        with pytest.raises(DisconnectedError, match="elements of y"):
            grad(be64.sum(left), y)
        assert _value(grad(be64.sum(be64.floor(left)), x)) == [0, 0]


def test_a_connection_pattern_that_cannot_be(be64: Any) -> None:
    class Wrong(_Fill):
        def connection_pattern(self, node: Any) -> Any:
            return [[True]]

    class Lying(_Fill):
        def connection_pattern(self, node: Any) -> Any:
            return [[False], [True]]

    x, count = be64.array(2.0, name="x"), be64.array(np.array(3), name="count")
    with pytest.raises(DefinitionError, match="Wrong.connection_pattern returns 2 lists of 1"):
        grad(be64.sum(Wrong()(x, count)), x)
    with pytest.raises(GradientError, match="Lying.*connection_pattern says that x .* has none"):
        grad(be64.sum(Lying()(x, count)) + x, x)


# Undefined and not implemented


class _Twice(UnaryOperator, ElementwiseOperator):
    """2 x, with a gradient that a test gives."""

    numpy = np.positive
    answer: Any = None

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        return [type(self).answer(self, inputs[0], output_gradients[0])]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda op, x, d: None, "_Twice has no derivative by input 0, x"),
        (lambda op, x, d: grad_undefined(op, 0, x, "it jumps"), "_Twice has no derivative by input 0, x.*: it jumps"),
        (lambda op, x, d: grad_not_implemented(op, 0, x), "_Twice does not implement its gradient by input 0"),
        (lambda op, x, d: NullType("for a reason")(), "for a reason"),
    ],
)
def test_a_missing_derivative_is_an_error_where_the_cost_depends_on_it(be64: Any, answer: Any, says: str) -> None:
    class Named(_Twice):
        def __str__(self) -> str:
            return "_Twice"

    Named.answer = staticmethod(answer)
    x, y = be64.ones(2, name="x"), be64.ones(2, name="y")
    tree = Named()(be64.exp(x))
    with pytest.raises(GradientError, match=f"no derivative of sum by x .*{says.replace(', x', '')}"):
        grad(be64.sum(tree * y + x), x)
    assert _value(grad(be64.sum(tree * y), y)) == pytest.approx([np.e] * 2)  # which does not go through it
    with pytest.raises(OptreeError, match="has no values|is an input"):
        NullType()().asnumpyarray()


def test_an_op_whose_grad_was_forgotten_says_so(be64: Any) -> None:
    class Foo(UnaryOperator, ElementwiseOperator):
        numpy = np.positive

    x = be64.ones(2)
    with pytest.raises(DefinitionError, match="Foo: grad was forgotten: write grad"):
        grad(be64.sum(Foo()(x)), x)
    assert _value(grad(be64.sum(Foo()(x) * (y := be64.ones(2))), y)) == [1, 1]


def test_types_that_have_no_values() -> None:
    for kind in (NullType("why"), DisconnectedType()):
        with pytest.raises(DefinitionError, match="has no values"):
            kind.filter(1.0)
    assert DisconnectedType() == DisconnectedType() and NullType() != NullType()
    assert NullType("why").why_null == "why"


# Known gradients, constants, types of a user's own


def test_known_gradients_stand_in_the_place_of_what_would_be_found(be64: Any) -> None:
    x = be64.array([1.0, 2.0], name="x")
    h = x * x
    assert _value(grad(None, x, known_grads={h: be64.array([1.0, 10.0])})) == [2, 40]
    assert _value(grad(None, [h, x], known_grads={h: 1.0})[1]) == [2, 4]
    assert _value(grad(be64.sum(h * h + x), x, known_grads={h: 1.0})) == [3, 5]
    with pytest.raises(GradientError, match="give known_grads"):
        grad(None, x)
    with pytest.raises(ShapeError, match="known_grads"):
        grad(None, x, known_grads={h: be64.ones(3)})
    with pytest.raises(OperandError, match="not 'h'"):
        grad(None, x, known_grads={"h": 1.0})


def test_no_derivative_goes_through_what_is_constant(be64: Any) -> None:
    x = be64.array([1.0, 2.0], name="x")
    h = x * x
    cost = be64.sum(h * x)
    assert _value(grad(cost, x, consider_constant=[h])) == [1, 4]
    assert _value(grad(cost, x, consider_constant=h)) == [1, 4]
    for wrt in (x, h):
        with pytest.raises(DisconnectedError):
            grad(be64.sum(h), wrt, consider_constant=[h])


class _Double(Type):
    def filter(self, value: Any, strict: bool = False, allow_downcast: bool | None = None) -> Any:
        return float(value)


def test_ops_on_a_type_of_a_users_own_have_derivatives() -> None:
    double = _Double()

    class Mul(Op):
        __props__ = ()
        itypes, otypes = (double, double), (double,)

        def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            output_storage[0][0] = inputs[0] * inputs[1]

        def grad(self, inputs: Any, output_gradients: Any) -> Any:
            (x, y), (delta,) = inputs, output_gradients
            return [self(delta, y), self(delta, x)]

    mul, x, y, one = Mul(), double("x"), double("y"), double("one")
    gradient = grad(None, x, known_grads={(z := mul(x, y)): one})
    assert gradient.op is mul and gradient.inputs == [one, y]
    with pytest.raises(GradientError, match="known_grads="):
        grad(z, x)
    with pytest.raises(GradientError, match="known_grads.* is not of the type of Mul"):
        grad(None, x, known_grads={z: constant(np.float64(1.0))})


# Nervana graph's style


class Multiply(ComputationOp):
    """x times y."""

    def transform(self, transformer: Any, x: Any, y: Any) -> Any:
        return transformer.multiply(x, y)

    def generate_adjoints(self, adjoints: Any, delta: Any, x: Any, y: Any) -> None:
        x.generate_add_delta(adjoints, y * delta)
        y.generate_add_delta(adjoints, x * delta)


class Scaled(ComputationOp):
    """x times a factor, without a derivative."""

    def __init__(self, x: Any, factor: float = 2.0) -> None:
        super().__init__(x)
        self.factor = factor

    def transform(self, transformer: Any, x: Any) -> Any:
        return transformer.multiply(x, self.factor)


def test_a_computation_op_is_called_like_a_function(be64: Any) -> None:
    x, y = be64.array([2.0, 3.0], name="x"), be64.array([[5.0], [7.0]], name="y")
    product = Multiply(x, y)
    assert (product.shape, product.label) == ((2, 2), "Multiply")
    assert _value(product) == [[10, 15], [14, 21]] and _value(product + 1.0) == [[11, 16], [15, 22]]
    assert _value(Multiply(x, x)) == [4, 9] and _value(Multiply(x, 3)) == [6, 9]
    by_x, by_y = grad(be64.sum(product * product), [x, y])
    np.testing.assert_allclose(_value(by_x), 2 * np.array([2.0, 3.0]) * (25 + 49))
    np.testing.assert_allclose(_value(by_y), 2 * np.array([[5.0], [7.0]]) * (4 + 9))
    assert _value(deriv(product, x, be64.ones((2, 2)))) == [12, 12]
    assert _value(deriv(be64.sum(x), y)) == [[0], [0]]
    with pytest.raises(GradientError, match="scalar"):
        deriv(product, x)


def test_computation_ops_of_equal_parameters_are_equal(be64: Any) -> None:
    x = be64.array([2.0, 3.0], name="x")
    one, two = Scaled(x, 3.0), Scaled(x, factor=3.0)
    assert one.op == two.op != Scaled(x).op and one.key() == two.key() != Scaled(x).key()
    assert (_value(one), _value(Scaled(x)), _value(one + two)) == ([6, 9], [4, 6], [12, 18])


def test_a_computation_op_without_adjoints_cannot_stand_in_a_derivative(be64: Any) -> None:
    x = be64.ones(2)
    with pytest.raises(DefinitionError, match="Scaled.* has no derivative: write generate_adjoints"):
        grad(be64.sum(Scaled(x)), x)


def test_a_computation_op_that_lacks_a_part_says_which(be64: Any) -> None:
    class NoTransform(ComputationOp):
        pass

    class NoOperands(ComputationOp):
        def __init__(self, x: Any) -> None:
            self.x = x

    class NoTree(ComputationOp):
        def transform(self, transformer: Any, x: Any) -> Any:
            return 3.0

    for kind, says in (
        (NoTransform, "write transform"),
        (NoOperands, r"super\(\).__init__"),
        (NoTree, "returns a tree"),
    ):
        with pytest.raises(DefinitionError, match=f"{kind.__name__}.*{says}"):
            kind(be64.ones(2))
    with pytest.raises(OperandError):
        Multiply(be64.ones(2), "y")


def test_a_grad_that_computes_with_the_gradient_of_an_unused_output_is_told_which_and_what_to_do(be64: Any) -> None:
    class SumAndDifference(Op):
        __props__ = ()

        def make_node(self, x: Any, y: Any) -> Apply:
            return Apply(self, [x, y], [x.type(), y.type()])

        def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            x, y = inputs
            output_storage[0][0], output_storage[1][0] = x + y, x - y

        def grad(self, inputs: Any, output_gradients: Any) -> Any:
            total, difference = output_gradients
            return [total + difference, total - difference]

    class ByShape(SumAndDifference):
        def grad(self, inputs: Any, output_gradients: Any) -> Any:
            total, difference = output_gradients
            return [total, difference if difference.shape else total]

    x, y = be64.array([1.0, 2.0], name="x"), be64.array([3.0, 4.0], name="y")
    for kind in (SumAndDifference, ByShape):
        total, difference = kind()(x, y)
        with pytest.raises(GradientError, match=rf"{kind.__name__}: .*output 1, which the cost does not use") as caught:
            grad(be64.sum(total), y)
        assert "isinstance(gradient.type, optree.DisconnectedType)" in str(caught.value)
        assert grad(be64.sum(total * difference), y).shape == (2,)
