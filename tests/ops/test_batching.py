"""Batching rules: of every op and composed function, `vmap` is the stack of its values on each example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from harness.each import for_each
from harness.homes import home
from harness.linalg_cases import LINALG
from harness.op_examples import examples_for, has_examples

from optree import Apply, Op, checkpoint, grad, jit, value_and_grad, vmap
from optree.errors import AxisError, BatchingError, DefinitionError, OperandError, ShapeError
from optree.registry import OPS, f
from optree.testing.conformance import check_batches, has_rule


@pytest.fixture(scope="module")
def cpu(home_kind: str) -> Any:
    """A backend for all that only reads from it."""
    return home(home_kind)


@pytest.fixture(scope="module")
def neon(home_kind: str) -> Any:
    """A backend in neon's mode."""
    return home(home_kind, compat_mode="neon")


#: The examples of linear algebra are made of known sizes.
OPEN = [name for name in sorted(OPS) if has_examples(name) and name not in LINALG]


@for_each("name", OPEN, sampled=True)
def test_of_every_op_a_batch_of_open_sizes_is_the_stack_of_its_values(name: str) -> None:
    """Of known sizes, that is a promise (tests/ops/test_registry.py)."""
    for example in examples_for(name):
        check_batches(example, is_open=True)


def test_an_op_that_writes_over_an_operand_has_no_rule_and_others_have_one() -> None:
    for name, op in OPS.items():
        assert has_rule(op.make()) is not bool(op.destroy_map.get(0)), f"{name}: write batch"


def _mlp(weights: Sequence[Any], x: Any, label: Any) -> Any:
    w, b, v = weights
    hidden = f.tanh(f.dot(x, w) + b)
    return f.cross_entropy(f.dot(hidden, v), label)


def test_gradients_of_each_example_of_a_network_are_those_of_a_loop(cpu: Any) -> None:
    rng = np.random.default_rng(3)
    weights = [cpu.array(rng.normal(size=size), np.float64) for size in ((4, 5), (5,), (5, 3))]
    x, labels = cpu.array(rng.normal(size=(6, 4)), np.float64), cpu.array(rng.integers(0, 3, 6), "int64")

    def gradients(weights: Any, x: Any, label: Any) -> Any:
        return value_and_grad(_mlp(weights, x, label), weights)

    value, found = vmap(gradients, (None, 0, 0))(weights, x, labels)
    value, *found = cpu.evaluate([value, *found])
    for i in range(6):
        alone, slopes = gradients(weights, x[i], labels[i])
        alone, *slopes = cpu.evaluate([alone, *slopes])
        np.testing.assert_allclose(value.get()[i], alone.get(), rtol=1e-12)
        for each, slope in zip(found, slopes, strict=True):
            np.testing.assert_allclose(each.get()[i], slope.get(), rtol=1e-12, atol=1e-14)


def test_a_gradient_of_a_batch_is_that_of_the_sum_of_a_loop(cpu: Any) -> None:
    rng = np.random.default_rng(4)
    weights = [cpu.array(rng.normal(size=size), np.float64) for size in ((4, 5), (5,), (5, 3))]
    x, labels = cpu.array(rng.normal(size=(6, 4)), np.float64), cpu.array(rng.integers(0, 3, 6), "int64")
    whole = grad(f.sum(vmap(_mlp, (None, 0, 0))(weights, x, labels)), weights)
    parts = [_mlp(weights, x[i], labels[i]) for i in range(6)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    for one, other in zip(cpu.evaluate(whole), cpu.evaluate(grad(total, weights)), strict=True):
        np.testing.assert_allclose(one.get(), other.get(), rtol=1e-12, atol=1e-14)


def test_a_product_with_weights_of_all_examples_is_one_product_of_matrices(cpu: Any) -> None:
    x, w = cpu.ones((6, 4)), cpu.ones((4, 3))
    assert vmap(lambda row: f.dot(row, w))(x).op.name == "dot"
    assert "scan" not in str(vmap(lambda row: f.matmul(f.expand_dims(row, 0), w))(x))


def test_batches_nest_and_axes_are_where_they_are_said_to_be(cpu: Any) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(3, 5, 2)), rng.normal(size=(4, 2))
    x, y = cpu.array(a, np.float64), cpu.array(b, np.float64)
    pairs = vmap(lambda v: vmap(lambda w: f.dot(v, w), out_axes=0)(y), in_axes=0, out_axes=-1)
    np.testing.assert_allclose(pairs(x[1]).asnumpyarray(), b @ a[1].T, rtol=1e-12)
    columns = vmap(vmap(f.dot, (1, 1)), (0, None), out_axes=1)(x, cpu.array(b.repeat(2, 0)[:5], np.float64))
    wanted = np.einsum("nik,ik->kn", a, b.repeat(2, 0)[:5])
    np.testing.assert_allclose(columns.asnumpyarray(), wanted, rtol=1e-12)
    nested = vmap(
        lambda given, scale: {"sum": given["a"] + given["b"][0], "twice": [scale * 2, None]},
        ({"a": 1, "b": (None,)}, None),
    )
    found = nested({"a": y, "b": (cpu.ones(4, np.float64),)}, 3.0)
    np.testing.assert_allclose(found["sum"].asnumpyarray(), b.T + 1)
    assert found["twice"][1] is None and found["twice"][0].asnumpyarray().tolist() == [6.0, 6.0]


def test_each_example_draws_numbers_of_its_own_and_shares_those_drawn_before(cpu: Any) -> None:
    x = cpu.zeros((5, 3))
    own = vmap(lambda row: row + cpu.rand((3,)))(x).asnumpyarray()
    assert len(np.unique(own)) == own.size
    before = cpu.rand((3,))
    shared = vmap(lambda row: row + before)(x).asnumpyarray()
    assert len(np.unique(shared)) == 3 and (shared == shared[0]).all()
    twice = vmap(vmap(lambda value: value + cpu.rand(())))(x).asnumpyarray()
    assert len(np.unique(twice)) == twice.size


def test_in_functions_and_jit_one_program_serves_all_sizes(cpu: Any) -> None:
    w = cpu.array([[1.0, 2.0], [3.0, 4.0]], np.float64)

    @jit
    def slopes(x: Any) -> Any:
        return vmap(lambda row: grad(f.sum(f.tanh(f.dot(row, w))), row))(x)

    for count in (3, 7):
        x = np.arange(count * 2.0).reshape(count, 2) / 10
        t = 1 - np.tanh(x @ w.get()) ** 2
        np.testing.assert_allclose(slopes(x).get(), t @ w.get().T, rtol=1e-12)
    assert len(slopes.functions) == 1


def test_a_loop_of_each_example_and_its_derivative(cpu: Any) -> None:
    rng = np.random.default_rng(6)
    x, w = cpu.array(rng.normal(size=(4, 6, 2)), np.float64), cpu.array(rng.normal(size=(2, 2)), np.float64)
    first = cpu.array(rng.normal(size=(4, 2)), np.float64)

    def last(rows: Any, h: Any, w: Any) -> Any:
        h, outputs = f.scan(lambda h, row: (f.tanh(f.dot(h, w) + row), h * 2), h, rows)
        return f.sum(h) + f.sum(f.square(outputs))

    def slope(rows: Any, h: Any, w: Any) -> Any:
        return grad(last(rows, h, w), [rows, h, w])

    for axes in ((0, 0, None), (None, 0, None), (0, None, None)):
        given = [x if axes[0] == 0 else x[0], first if axes[1] == 0 else first[0], w]
        found = cpu.evaluate(vmap(slope, axes)(*given))
        for i in range(4):
            alone = cpu.evaluate(slope(x[i] if axes[0] == 0 else x[0], first[i] if axes[1] == 0 else first[0], w))
            for one, other in zip(found, alone, strict=True):
                np.testing.assert_allclose(one.get()[i], other.get(), rtol=1e-11, atol=1e-13)


def test_gradients_of_each_example_through_recomputation(cpu: Any) -> None:
    x, w = cpu.array([[1.0, 2.0], [0.5, -1.0]], np.float64), cpu.array([0.3, 0.7], np.float64)
    layer = checkpoint(lambda row: f.tanh(row * w))

    def slope(row: Any) -> Any:
        return grad(f.sum(layer(layer(row))), w)

    found = vmap(slope)(x).asnumpyarray()
    for i in range(2):
        np.testing.assert_allclose(found[i], slope(x[i]).asnumpyarray(), rtol=1e-12)


def test_second_derivatives_and_attention(cpu: Any) -> None:
    rng = np.random.default_rng(7)
    q, k = cpu.array(rng.normal(size=(3, 4, 2)), np.float64), cpu.array(rng.normal(size=(5, 2)), np.float64)

    def slope(q: Any, k: Any) -> Any:
        return grad(f.sum(f.square(f.attention(q, k, k))), k)

    found = vmap(slope, (0, None))(q, k).asnumpyarray()
    x = cpu.array(rng.normal(size=(3, 2)), np.float64)
    curved = vmap(lambda x: grad(f.sum(grad(f.sum(x * x * x), x)), x))(x).asnumpyarray()
    np.testing.assert_allclose(curved, 6 * x.get(), rtol=1e-12)
    for i in range(3):
        np.testing.assert_allclose(found[i], slope(q[i], k).asnumpyarray(), rtol=1e-11, atol=1e-13)


def test_a_value_of_no_example_is_repeated_or_given_once(cpu: Any) -> None:
    x, w = cpu.ones((3, 2)), cpu.array([1.0, 2.0])
    repeated, once = vmap(lambda row: (w * 2, w * 3), out_axes=(0, None))(x)
    assert repeated.asnumpyarray().tolist() == [[2.0, 4.0]] * 3 and once.asnumpyarray().tolist() == [3.0, 6.0]
    with pytest.raises(BatchingError, match="out_axes is None for a value that is different"):
        vmap(lambda row: row, out_axes=None)(x)


def test_errors_name_the_argument_and_the_axis(cpu: Any, neon: Any) -> None:
    x, y = cpu.array(np.ones((3, 2)), name="x"), cpu.array(np.ones((2, 4)), name="y")
    with pytest.raises(
        ShapeError, match=r"argument 1, y .*4 examples along axis 1, and argument 0, x .* has 3 along axis 0"
    ):
        vmap(f.add, (0, 1))(x, y)
    with pytest.raises(OperandError, match="no argument has an axis of examples"):
        vmap(f.add, None)(x, y)
    with pytest.raises(ShapeError, match=r"argument 0, .*has no axis of examples"):
        vmap(f.exp)(cpu.array(1.0))
    with pytest.raises(AxisError, match="argument 0"):
        vmap(f.exp, 2)(x)
    with pytest.raises(OperandError, match="in_axes has 3 axes for 2 positional"):
        vmap(f.add, (0, 0, 0))(x, y)
    with pytest.raises(OperandError, match="not nested as the value"):
        vmap(lambda pair: pair[0], ((0, 0, 0),))([x, x])
    with pytest.raises(OperandError, match="it returns .*object"):
        vmap(lambda row: object())(x)
    with pytest.raises(BatchingError, match="neon"):
        vmap(f.exp)(neon.ones((2, 2)))


class Reversal(Op):
    """An op of a user's, without a batching rule."""

    __props__ = ()

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0][::-1]

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        return [self(output_gradients[0])]


class Looped(Reversal):
    """One with the rule that serves any."""

    batch = Op.batch_in_loop


class Wrong(Reversal):
    """One with a rule that is wrong."""

    def batch(self, inputs: Any, batched: Any) -> Any:
        return f.sum(inputs[0], axis=0, keepdims=False)


def test_an_op_of_a_users_says_what_it_lacks(cpu: Any) -> None:
    x = cpu.array([[1.0, 2.0], [3.0, 5.0]])
    with pytest.raises(
        BatchingError, match=r"Reversal.* has no batching rule; .*in Reversal, or batch = Op.batch_in_loop"
    ):
        vmap(Reversal())(x)
    assert vmap(Looped())(x).asnumpyarray().tolist() == [[2.0, 1.0], [5.0, 3.0]]
    slopes = vmap(lambda row: grad(f.sum(Looped()(row) * f.flat_indices(row)), row))(x)
    assert slopes.asnumpyarray().tolist() == [[1.0, 0.0]] * 2
    with pytest.raises(DefinitionError, match="Wrong.*with the axis of examples in front"):
        vmap(Wrong())(x)


def test_a_truncated_loop_stays_truncated(cpu: Any) -> None:
    def last(x: Any, w: Any) -> Any:
        (state,), _ = cpu.scan(
            lambda states, slices: ((states[0] * w + slices[0],), ()), (cpu.array(0.0, "float64"),), (x,), truncate=2
        )
        return state

    x, w = cpu.array(np.arange(12.0).reshape(3, 4), "float64"), cpu.array(0.5, "float64")
    derivatives = vmap(lambda row, w: grad(last(row, w), row), in_axes=(0, None))(x, w)
    np.testing.assert_array_equal(derivatives.asnumpyarray(), [[0, 0, 0.5, 1]] * 3)
    np.testing.assert_array_equal(
        grad(cpu.sum(vmap(last, in_axes=(0, None))(x, w)), x).asnumpyarray(), [[0, 0, 0.5, 1]] * 3
    )
