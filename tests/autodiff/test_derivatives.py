"""Products with Jacobians from either side, and matrices of derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.each import for_each
from harness.op_examples import examples_for, has_examples

from optree import Apply, Lop, Op, Rop, TensorType, constant, function, grad, hessian, hessian_vector_product, jacobian
from optree.errors import DefinitionError, DisconnectedError, GradientError, ShapeError
from optree.registry import OPS
from optree.testing.examples import Runner, inputs_for
from optree.tree.variable import Input


def _value(tree: Any) -> np.ndarray:
    return np.asarray(tree.asnumpyarray())


# The directional derivative of every op

DERIVABLE = [name for name, op in OPS.items() if not op.destroy_map and has_examples(name)]


@for_each("name", DERIVABLE, sampled=True)
def test_rop_of_every_op(name: str) -> None:
    """It equals the difference of the op's value along the direction, and the dual of Lop."""
    for example in examples_for(name):
        values = example.draw()
        inputs = inputs_for(values)
        tree = example.tree(inputs)
        moved = [i for i, x in enumerate(inputs) if isinstance(x, Input) and x.dtype.kind == "f"]
        if tree.dtype.kind != "f" or not moved:
            continue
        rng = np.random.RandomState(1)
        directions = {i: rng.uniform(-1, 1, inputs[i].shape) for i in moved}
        wrt = [inputs[i] for i in moved]
        along = Rop(tree, wrt, [constant(np.asarray(directions[i])) for i in moved])
        weights = constant(np.asarray(rng.uniform(-1, 1, tree.shape).astype(tree.dtype)))
        back = Lop(tree, wrt, weights, disconnected_inputs="ignore")
        assert (along.shape, along.dtype) == (tree.shape, tree.dtype)
        got, *adjoints = Runner([along, *back], inputs)(values)
        narrow = tree.dtype != np.float64
        if example.differentiable and not narrow:
            wanted = _difference(tree, inputs, values, directions)
            finite = np.isfinite(wanted)  # the logarithm of no terms is -inf
            np.testing.assert_allclose(got[finite], wanted[finite], rtol=1e-6, atol=1e-8)
        left = np.sum(weights.value * got)
        right = sum(np.sum(a * directions[i]) for i, a in zip(moved, adjoints, strict=True))
        np.testing.assert_allclose(left, right, rtol=1e-3 if narrow else 1e-10, atol=1e-3 if narrow else 1e-12)


def _difference(tree: Any, inputs: Any, values: Any, directions: Any) -> np.ndarray:
    """How the value changes along a direction, to fourth order in the step."""
    run, step = Runner([tree], inputs), 2e-4

    def at(size: float) -> np.ndarray:
        moved = [x + size * directions[i] if i in directions else x for i, x in enumerate(values)]
        return run([np.asarray(x) if i in directions else x for i, x in enumerate(moved)])[0]

    with np.errstate(invalid="ignore"):
        return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)


def test_rop_and_lop_are_dual_through_a_deep_function(be64: Any) -> None:
    x, w = be64.array([0.3, -0.2, 0.5]), be64.array(np.arange(12.0).reshape(4, 3) / 10)
    v, dw, u = be64.array([1.0, 2.0, -1.0]), be64.ones((4, 3)), be64.array([1.0, -1.0, 0.5, 2.0])
    h = be64.tanh(be64.dot(w, x))
    y = h * be64.sum(h * h, keepdims=False) + be64.softmax(h)
    along = Rop(y, [x, w], [v, dw])
    by_x, by_w = Lop(y, [x, w], u)
    left = np.sum(u.get() * along.asnumpyarray())
    right = np.sum(by_x.asnumpyarray() * v.get()) + np.sum(by_w.asnumpyarray() * dw.get())
    np.testing.assert_allclose(left, right, rtol=1e-12)
    alone = [Rop(y, x, v).asnumpyarray(), Rop(y, [x, w], [None, dw]).asnumpyarray()]
    np.testing.assert_allclose(sum(alone), along.asnumpyarray(), rtol=1e-12)


def test_products_of_several_functions(be64: Any) -> None:
    x, v = be64.array([1.0, 2.0]), be64.array([3.0, 4.0])
    square = x * x
    outputs = [square, square * x, square]
    np.testing.assert_array_equal([r.asnumpyarray() for r in Rop(outputs, x, v)], [[6, 16], [9, 48], [6, 16]])
    # One function is an operand of another, and one is there twice: each part of the vector counts.
    np.testing.assert_array_equal(Lop(outputs, x, [v, v, 1.0]).asnumpyarray(), [6 + 9 + 2, 16 + 48 + 4])
    with pytest.raises(ShapeError, match="Lop: 1 eval_points for 3 of f"):
        Lop(outputs, x, v)
    with pytest.raises(ShapeError, match=r"eval_points .*\(3,\)"):
        Rop(square, x, be64.ones(3))


def test_rop_through_views_and_integers(be64: Any) -> None:
    x = be64.array([1.0, 2.0, 3.0], name="x")
    part, v = x[1:], be64.array([10.0, 100.0])
    np.testing.assert_array_equal(Rop(part * part, part, v).asnumpyarray(), [40.0, 600.0])
    np.testing.assert_array_equal(Rop(x * x, part, v).asnumpyarray(), [0.0, 40.0, 600.0])
    np.testing.assert_array_equal(Rop(x[::-1] * 2.0, x, be64.array([1.0, 2.0, 3.0])).asnumpyarray(), [6.0, 4.0, 2.0])
    n = be64.array(np.array([1, 2]), name="n")
    np.testing.assert_array_equal(Rop(n * part, n, 1.0).asnumpyarray(), [2.0, 3.0])
    assert Rop(n * 3, n, 1.0).asnumpyarray().tolist() == [0.0, 0.0]  # a value of integers
    with pytest.raises(GradientError, match="take.* has no derivative by input 1, n"):
        Rop(be64.take(x, n, axis=0), n, 1.0)
    with pytest.raises(DisconnectedError, match="does not contain n"):
        Rop(x * x, n, 1.0)


def test_rop_of_what_only_the_shape_counts_of(be64: Any) -> None:
    x = be64.ones(3)
    np.testing.assert_array_equal(Rop(be64.fill_like(x, 2.0) * x, x, 1.0).asnumpyarray(), [2.0] * 3)
    np.testing.assert_array_equal(Rop(be64.fill_like(x, 2.0), x, 1.0).asnumpyarray(), [0.0] * 3)


def test_sizes_that_are_known_only_when_a_function_is_called(be64: Any) -> None:
    x, n = TensorType("float64", (None,))("x"), TensorType("int64", (None,))("n")
    w = be64.array([1.0, 2.0, 4.0], name="w")
    row = TensorType("float64", (1,))("row")
    trees = [*grad(be64.sum(x * w * n * row), [x, n, row]), Rop(x * w, x, w), Lop(x * w, x, w)]
    by_x, by_n, by_row, along, back = function([x, n, row], trees, on_unused_input="ignore")(
        np.array([1.0, 1.0, 2.0]), np.array([3, 2, 1]), np.array([2.0])
    )
    assert (by_x.get().tolist(), by_n.get().tolist(), by_row.get().tolist()) == ([6, 8, 8], [2, 4, 16], [15])
    assert along.get().tolist() == back.get().tolist() == [1, 4, 16]


def test_a_long_chain_has_a_rop_of_its_own_length(be64: Any) -> None:
    x = be64.array([0.5, 0.25])
    y = x
    for _ in range(3000):
        y = (y + x) * 0.5
    np.testing.assert_allclose(Rop(y, x, 1.0).asnumpyarray(), [1.0, 1.0])


class _Powers(Op):
    """x squared and cubed, with an R_op that a test gives or none."""

    __props__ = ()

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type(), x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0], output_storage[1][0] = inputs[0] ** 2, inputs[0] ** 3

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        (x,), deltas = inputs, output_gradients
        parts = [d * s for d, s in zip(deltas, (2.0 * x, 3.0 * x * x), strict=True) if isinstance(d.type, TensorType)]
        return [sum(parts[1:], parts[0])]


def test_rop_of_an_op_of_several_outputs(be64: Any) -> None:
    x, v = be64.array([1.0, 2.0]), be64.array([1.0, 10.0])

    class WithROp(_Powers):
        def R_op(self, inputs: Any, eval_points: Any) -> Any:
            (x,), (v,) = inputs, eval_points
            return [2.0 * x * v, None]

    square, cube = _Powers()(x)
    assert [r.asnumpyarray().tolist() for r in Rop([square, cube], x, v)] == [[2, 40], [3, 120]]
    square, cube = WithROp()(x)
    assert [r.asnumpyarray().tolist() for r in Rop([square, cube], x, v)] == [[2, 40], [0, 0]]


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (lambda x: [x], DefinitionError, "_Powers.R_op returns a list of 2"),
        (lambda x: [x, 2.0], GradientError, "_Powers: .*floating"),
        (lambda x: [x.astype("int32"), x], GradientError, "_Powers: .*floating.*int32"),
    ],
)
def test_a_wrong_rop_names_its_op(be64: Any, answer: Any, kind: Any, says: str) -> None:
    class Wrong(_Powers):
        def R_op(self, inputs: Any, eval_points: Any) -> Any:
            return answer(inputs[0])

        def __str__(self) -> str:
            return "_Powers"

    x = be64.ones(2)
    with pytest.raises(kind, match=says):
        Rop(Wrong()(x)[0], x, 1.0)


def test_an_op_without_an_r_op_says_what_there_is() -> None:
    with pytest.raises(DefinitionError, match="Rop differentiates its grad"):
        _Powers().R_op([], [])


# Matrices


def test_a_jacobian_of_vectors_matrices_and_scalars(be64: Any) -> None:
    x, w = be64.array([0.3, -0.2, 0.5]), be64.array(np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(jacobian(be64.dot(w, x), x).asnumpyarray(), w.get())
    by_w, by_x = jacobian(be64.dot(w, x), [w, x])
    assert (by_w.shape, by_x.shape) == ((2, 2, 3), (2, 3))
    np.testing.assert_array_equal(by_w.asnumpyarray(), np.einsum("ij,k->ijk", np.eye(2), x.get()))
    np.testing.assert_allclose(jacobian(be64.sum(x * x, keepdims=False), x).asnumpyarray(), 2 * x.get())
    assert jacobian(be64.zeros((0,)) * 2.0, be64.ones(2)).shape == (0, 2)
    tail = Input(TensorType("float64", (None,)), "tail")
    with pytest.raises(ShapeError, match="tail.*Lop and Rop"):
        jacobian(be64.ones(2), tail)
    with pytest.raises(DisconnectedError):
        jacobian(x * 2.0, w)


def test_a_hessian_and_its_products(be64: Any) -> None:
    x, y = be64.array([0.3, -0.2, 0.5]), be64.array([1.0, 2.0, 3.0])
    cost = be64.sum(be64.exp(x) * be64.sum(x * y, keepdims=False), keepdims=False)
    matrix = hessian(cost, x).asnumpyarray()
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-12)
    first = jacobian(grad(cost, x), x).asnumpyarray()
    np.testing.assert_array_equal(matrix, first)
    p, q = be64.array([1.0, -1.0, 2.0]), be64.array([0.5, 0.0, 1.0])
    np.testing.assert_allclose(hessian_vector_product(cost, x, p).asnumpyarray(), matrix @ p.get(), rtol=1e-12)
    np.testing.assert_allclose(Rop(grad(cost, x), x, p).asnumpyarray(), matrix @ p.get(), rtol=1e-12)
    both = hessian_vector_product(cost, [x, y], [p, q])
    mixed = jacobian(grad(cost, x), y).asnumpyarray()
    np.testing.assert_allclose(both[0].asnumpyarray(), matrix @ p.get() + mixed @ q.get(), rtol=1e-12)
    np.testing.assert_allclose(both[1].asnumpyarray(), mixed.T @ p.get(), rtol=1e-12)
    assert [h.shape for h in hessian(cost, [x, y])] == [(3, 3), (3, 3)]


def test_the_hessian_of_what_is_linear_is_zero(be64: Any) -> None:
    x = be64.ones(2)
    assert hessian(be64.sum(x * 3.0), x).asnumpyarray().tolist() == [[0, 0], [0, 0]]
    assert hessian_vector_product(be64.sum(x * 3.0), x, 1.0).asnumpyarray().tolist() == [0, 0]
