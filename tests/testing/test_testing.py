"""Faults of the kinds that real projects have shipped: each promise convicts the op that breaks it.

A test suite that passes says little until it has been seen to fail.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from harness.op_examples import has_own_examples

from backends import gen_backend
from optree import OpTreeNode, check_grad, grad
from optree.errors import DefinitionError, GradientError, OptreeError
from optree.op.examples import Examples
from optree.op.traits import (
    BinaryOperator,
    ElementwiseOperator,
    FloatOperator,
    NonDifferentiableOperator,
    UnaryOperator,
)
from optree.ops.factorisation import LapackOperator
from optree.registry import OPS, f
from optree.run.function import last_backend
from optree.testing import check_op, random_tree
from optree.testing.comparison import compare
from optree.testing.conformance import PROMISES
from optree.testing.examples import Example, examples_of, inputs_for
from optree.tree.variable import Input, as_variable


class _Unary(UnaryOperator, ElementwiseOperator, FloatOperator):
    """tanh, right in all; without a name it is not registered."""

    numpy = np.tanh

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [output_gradients[0] * (1.0 - f.square(f.tanh(inputs[0])))]


class _Binary(BinaryOperator, ElementwiseOperator):
    """x * y, right in all."""

    numpy = np.multiply

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        return [delta * y, delta * x]


class _WrongDerivative(_Unary):
    """tanh with the derivative 1 - tanh."""

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [output_gradients[0] * (1.0 - f.tanh(inputs[0]))]


class _WrongByElement(_Binary):
    """Right in the sum over the gradient's elements, wrong in each."""

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        return [f.broadcast_like(f.mean(delta * y, keepdims=False), delta), delta * x]


class _MissingDelta(_Binary):
    """x * y that sends nothing to y."""

    def generate_adjoints(self, adjoints: Any, delta: Any, *args: Any) -> None:
        x, y = args
        x.generate_add_delta(adjoints, delta * y)


class _RightOnceOnly(_Unary):
    """A gradient that is right in value and is no expression of x: its own derivative is lost."""

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta * (1.0 - f.square(_Frozen()(x)))]


class _Frozen(NonDifferentiableOperator, _Unary):
    """tanh that claims to have no derivative."""


class _CutAtTies(BinaryOperator, ElementwiseOperator, FloatOperator):
    """logaddexp with a gradient that is right at ties in value, and there a constant."""

    numpy = np.logaddexp

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        ahead = f.where(f.eq(x, y), 0, x - y)
        return [delta * f.sig(ahead), delta * f.sig(-ahead)]


class _CutInTheThird(_Unary):
    """x ** 3 with a second derivative that is right at 0 in value, and there a constant."""

    def numpy(self, *arrays: Any) -> Any:
        return np.asarray(arrays[0]) ** 3

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [delta * 3 * f.abs(x) * x * f.sgn(x)]


class _Wide(_Unary):
    """A constant that makes a float64 of a float32."""

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [output_gradients[0] * (np.float64(1) - f.square(f.tanh(inputs[0])))]


class _TimesZero(BinaryOperator, ElementwiseOperator):
    """x + y that takes a shape by multiplying with zero."""

    numpy = np.add

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, _), (delta,) = inputs, output_gradients
        spread = f.sum(x * 0.0, keepdims=False)
        return [delta + spread, delta]


class _WrongShape(_Unary):
    """A value without its first axis."""

    def numpy(self, *arrays: Any) -> Any:
        return np.tanh(arrays[0]).ravel()


class _WrongDtype(_Unary):
    """A value in float64 always."""

    def numpy(self, *arrays: Any) -> Any:
        return np.tanh(np.asarray(arrays[0], np.float64))


class _Layout(_Unary):
    """Right for memory in order only."""

    def numpy(self, *arrays: Any) -> Any:
        array = np.asarray(arrays[0])
        return np.tanh(array if array.flags.c_contiguous else array + 1)


class _StrongNumbers(_Binary):
    """A number that is no longer weak."""

    def resolve_dtypes(self, *dtypes: Any) -> tuple[np.dtype, ...]:
        return (np.result_type(*dtypes),) * 3


class _Unprintable(_Unary):
    """Text that does not show its parameter."""

    __props__ = ("factor",)
    factor: float = 1.0
    examples = ((((2, 3),), {"factor": 2.0}),)

    def numpy(self, *arrays: Any) -> Any:
        return np.tanh(arrays[0])

    def __str__(self) -> str:
        return "one"


class _Alias(_Unary):
    """An operand given back as it came."""

    def numpy(self, *arrays: Any) -> Any:
        return arrays[0]


class _AliasSometimes(_Unary):
    """A copy only where the dtype changes."""

    def numpy(self, *arrays: Any) -> Any:
        return np.asarray(arrays[0]).astype(np.float32, copy=False)

    def resolve_dtypes(self, *dtypes: Any) -> tuple[np.dtype, ...]:
        return np.dtype("float32"), np.dtype("float32")


class _InPlace(_Unary):
    """An operand that is overwritten."""

    def numpy(self, *arrays: Any) -> Any:
        x = arrays[0]
        x *= 2
        return x


class _SameMemory(_Unary):
    """A buffer of the op's own, given away in each call."""

    def numpy(self, *arrays: Any) -> Any:
        x = np.asarray(arrays[0])
        return np.tanh(x, out=self.__dict__.setdefault(f"{x.shape} {x.dtype}", np.empty(x.shape, x.dtype)))


class _Miscounted(_Unary):
    """An op that claims negative work."""

    def flops(self, inputs: Any, outputs: Any) -> Any:
        return -1


class _TakesNothing(_Unary):
    """An op that refuses every dtype."""

    def resolve_dtypes(self, *dtypes: Any) -> tuple[np.dtype, ...]:
        raise TypeError("none")


FAULTS = [
    (_Alias, "perform", "output 0 aliases input 0.*view_map = {0: .0.}"),
    (_AliasSometimes, "perform", "output 0 aliases input 0"),
    (_InPlace, "perform", "changed input 0; declare it, as in destroy_map = {0: .0.}"),
    (_SameMemory, "perform", "output 0 is the same memory in each call"),
    (_TakesNothing, "type", "refuses operands of every dtype"),
    (_WrongDerivative, "gradient", "the gradient in float64 by x0"),
    (_WrongByElement, "gradient", "the gradient in float64 by x0"),
    (_MissingDelta, "gradient", "the gradient in float64 by x1"),
    (_MissingDelta, "shared_operand", "shared operand"),
    (_Frozen, "gradient", "the gradient in float64 by x0"),
    (_RightOnceOnly, "second_gradient", "the second gradient by x0"),
    (_CutAtTies, "branch_points", "the derivative of order 2 .* is -?0.0, and differences from either side"),
    (_CutInTheThird, "branch_points", "the derivative of order [23] .* is -?0.0, and differences from either side"),
    (_Wide, "adjoints", "float64"),
    (_TimesZero, "leaks", "reaches the gradient of other elements"),
    (_WrongShape, "type", "numpy gave"),
    (_WrongDtype, "type", "numpy gave"),
    (_Layout, "backend", "transposed|reversed"),
    (_StrongNumbers, "weak_numbers", "with 1 among float32"),
    (_Unprintable, "identity", "prints differently"),
    (_Miscounted, "clauses", "flops gives a count"),
]


@pytest.mark.parametrize(("op", "promise", "says"), FAULTS, ids=lambda x: getattr(x, "__name__", None))
def test_a_broken_promise_is_found(op: Any, promise: str, says: str) -> None:
    backend = gen_backend("cpu", datatype=np.float64)
    with pytest.raises((AssertionError, OptreeError), match=says):
        for example in examples_of(op):
            PROMISES[promise](example, backend)
    with pytest.raises((AssertionError, OptreeError), match=says if promise == "perform" else None):
        check_op(op)


class _Kinked(_Binary):
    """The maximum of x and y, right where it has a derivative."""

    numpy = np.maximum
    takes_complex = False

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        return [f.where(f.ge(x, y), delta, 0), f.where(f.ge(x, y), 0, delta)]


@pytest.mark.parametrize("op", [_Unary, _Binary, _Kinked])
def test_kept_promises_pass(op: Any) -> None:
    backend = gen_backend("cpu")  # which lives while it is kept
    check_op(op)
    assert backend.stats()["executions"] > 0


def test_differences_that_narrow_values_blur_convict_nothing() -> None:
    def narrow(x: Any) -> Any:
        return f.logaddexp2(f.cast(x, "float32"), f.slice(x, 0))

    for size in (2, 3, 4):
        PROMISES["branch_points"](Example(narrow, ((size, 3),), (0.5, 4.5), "numpy.logaddexp2#1"), None)


def test_an_op_that_cannot_be_checked_is_refused() -> None:
    class Unexemplified(UnaryOperator):
        numpy = np.sort

    with pytest.raises(DefinitionError, match="Unexemplified: give it examples"):
        check_op(Unexemplified)


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (np.float64(0.0), np.float64(-0.0)),
        (np.float64(np.nan), np.float64(1.0)),
        (np.float64(1.0), np.float64(np.nan)),
        (np.float64(np.inf), np.float64(-np.inf)),
        (np.float64(1e308), np.float64(np.inf)),
        (np.float64(1.0), np.float64(1.0 + 1e-14)),
        (np.float32(1.0), np.float64(1.0)),
        (np.int64(1), np.int32(1)),
        (np.ones(2), np.ones((2, 1))),
    ],
)
def test_compare_tells_apart(got: Any, wanted: Any) -> None:
    compare(wanted, wanted, "it", "itself")
    with pytest.raises(AssertionError, match="it: here"):
        compare(got, wanted, "it", "here")


def test_random_tree_shares_and_is_bounded() -> None:
    be = gen_backend("cpu")
    leaves = [be.ones((2, 3), name="x"), be.ones((3,), name="y")]
    shared = 0
    for seed in range(20):
        tree = random_tree(random.Random(seed).choice, leaves, size=12)
        assert tree.size <= 256
        shared += isinstance(tree, OpTreeNode) and "see line" in tree.pp()
    assert shared > 5
    assert random_tree(random.Random(0).choice, leaves, size=5, ops=["add"]).asnumpyarray().shape in ((2, 3), (3,))


DIFFERENTIABLE = [
    op
    for op in OPS.values()
    if not issubclass(op, NonDifferentiableOperator)
    and not op.destroy_map
    and op.name != "output"
    and not issubclass(op, LapackOperator)
    and has_own_examples(op)
]


@pytest.mark.matrix
@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
def test_a_slightly_wrong_gradient_of_any_op_is_found(op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gradient that an op sends is off by a hundredth in its turn."""
    right = op.grad
    sent = {i for example in examples_of(op) for i in _sent(example)}
    assert sent, f"{op.name} sends no gradient in any example"
    for place in sent:

        def wrong(self: Any, inputs: Any, deltas: Any, place: int = place) -> list[Any]:
            gradients = list(right(self, inputs, deltas))
            if place < len(gradients) and gradients[place] is not None:
                gradients[place] = gradients[place] * 1.01
            return gradients

        monkeypatch.setattr(op, "grad", wrong)
        with pytest.raises(AssertionError, match="gradient"):
            for example in examples_of(op):
                PROMISES["gradient"](example, None)
        monkeypatch.setattr(op, "grad", right)


def _sent(example: Any) -> list[int]:
    """The operands that an op sends a gradient to."""
    inputs = inputs_for(example.draw())
    tree = example.tree(inputs)
    if tree.dtype.kind not in "fc" or tree.op.name != example.op.name:
        return []
    variables = [as_variable(x) for x in tree.inputs]
    gradients = tree.op.grad(variables, [Input(tree.type)])
    moved = [i for i, x in enumerate(variables) if _moves(x)]
    # A gradient of zero stays zero, whatever it is multiplied by.
    return [i for i in moved if gradients[i] is not None and getattr(gradients[i], "label", "") != "fill_like"]


def _moves(x: Any) -> bool:
    return isinstance(x, Input) and x.dtype.kind == "f" and x.size > 0


def test_check_grad_wants_something_to_compare() -> None:
    be = gen_backend("cpu")
    with pytest.raises(GradientError, match=r"no input is floating: n \(2,\) int64"):
        check_grad(lambda n: n * 2.0, be.array(np.array([1, 2]), name="n"))
    with pytest.raises(GradientError, match="draws random numbers"):
        check_grad(lambda x: x * be.rand((2,)), be.ones(2))
    check_grad(lambda x: grad(be.sum(x * 3.0), x), be.ones(2))  # which does not hold x


class _Approximate(_Unary):
    """tanh, two percent off in its kernel, as a table would be."""

    kernel = "1.002 * tanh({0})"
    examples = Examples(sample=(0.5, 2.0))


class _LooseDerivative(_Unary):
    """tanh with a derivative that is a thousandth off."""

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [output_gradients[0] * (1.001 * (1.0 - f.square(f.tanh(inputs[0]))))]


@pytest.mark.parametrize(("kind", "inputs"), [(_Approximate, None), (_LooseDerivative, [np.array([0.5, 1.0])])])
def test_check_op_allows_what_it_is_told_to(kind, inputs):
    backend = gen_backend("cpu", jit=True)  # check_op runs on the last backend that lives
    with pytest.raises((AssertionError, OptreeError)):
        check_op(kind, inputs)
    with pytest.raises((AssertionError, OptreeError)):
        check_op(kind, inputs, rtol=1e-5)
    check_op(kind, inputs, rtol=1e-2, atol=1e-3)
    with pytest.raises((AssertionError, OptreeError)):
        check_op(kind, inputs)
    assert last_backend() is backend
