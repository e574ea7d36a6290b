"""Python's operators and NumPy's array methods, as `Variable` writes them out; type checkers read this file too."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any, assert_type

import numpy as np
import pytest
from harness.calls import calls_of

from backends import Backend, gen_backend
from optree import Op, Tensor, TensorType, Variable
from optree.errors import DTypeError, line_of
from optree.op.op import function_of
from optree.op.registration import check_and_register
from optree.registry import APPLICATIONS, OPS

#: Each operator's op, by the method's name without its underscores.
ARITHMETIC = {name: name for name in ("add", "sub", "mul", "mod", "pow", "matmul")}
ARITHMETIC |= {"truediv": "div", "floordiv": "floor_divide"}
COMPARISONS = {name: name for name in ("eq", "ne", "lt", "le", "gt", "ge")}
CONDITIONS = {"and": "logical_and", "or": "logical_or", "xor": "logical_xor"}
UNARY = {"neg": "neg", "abs": "abs", "invert": "logical_not"}


@pytest.fixture(scope="module")
def cpu() -> Backend:
    return gen_backend("cpu", datatype=np.float64)


def method(name: str) -> Callable[..., Any]:
    return getattr(operator, f"__{name}__")


@pytest.mark.parametrize(("name", "op"), [*ARITHMETIC.items(), *COMPARISONS.items(), *CONDITIONS.items()])
def test_a_binary_operator_builds_its_op_the_first_time_and_the_next(name: str, op: str, cpu: Backend) -> None:
    x = cpu.array(np.array([[True, False]] * 2)) if name in CONDITIONS else cpu.array([[1.5, 2.0], [3.0, 0.5]])
    y = ~x if name in CONDITIONS else x * 1
    APPLICATIONS.get(op, {}).clear()
    for _ in range(2):
        tree = method(name)(x, y)
        assert tree.op == OPS[op].make() and tree[1] is x and tree[2] is y


@pytest.mark.parametrize(("name", "op"), [*ARITHMETIC.items(), *CONDITIONS.items()])
def test_a_number_or_an_array_on_the_left_is_the_left_operand(name: str, op: str, cpu: Backend) -> None:
    x = cpu.array(np.array([[True, False]] * 2)) if name in CONDITIONS else cpu.array([[1.5, 2.0], [3.0, 0.5]])
    left: Any = True if name in CONDITIONS else np.ones((2, 2)) if name == "matmul" else 2.0
    for _ in range(2):
        tree = method(name)(left, x)
        assert tree.op == OPS[op].make() and tree[2] is x


@pytest.mark.parametrize(("name", "op"), UNARY.items())
def test_a_unary_operator_builds_its_op_the_first_time_and_the_next(name: str, op: str, cpu: Backend) -> None:
    x = cpu.array(np.array([[True, False]])) if name == "invert" else cpu.array([[1.5, -2.0]])
    APPLICATIONS.get(op, {}).clear()
    for _ in range(2):
        tree = method(name)(x)
        assert tree.op == OPS[op].make() and tree[1] is x and tree[2] is None


BITS = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift"}


@pytest.mark.parametrize(("name", "op"), BITS.items())
def test_an_operator_on_integers_is_of_their_bits(name: str, op: str, cpu: Backend) -> None:
    values = np.array([6, -5, 3, 70])
    x = cpu.array(values, "int64")
    assert method(name)(x, 2).op == method(name)(2, x).op == method(name)(x, x).op == OPS[op].make()
    for got, wanted in ((method(name)(x, 2), method(name)(values, 2)), (method(name)(2, x), method(name)(2, values))):
        assert got.asnumpyarray().tolist() == wanted.tolist()
    in_place: Callable[..., Any] = getattr(operator, f"__i{name}__")
    assert in_place(x, 3) is x and x.get().tolist() == method(name)(values, 3).tolist()


def test_an_operator_of_bits_takes_no_floats_and_says_what_does(cpu: Backend) -> None:
    x = cpu.array([1.5])
    with pytest.raises(DTypeError, match=r"bitwise_and: .*float64.* is not bool.*in brackets: \(x > 0\) & \(y > 0\)"):
        x & 1
    with pytest.raises(DTypeError, match=r"left_shift: .*float64.* is no integer; multiply by 2.0 \*\* n"):
        x << 1


def test_plus_and_divmod_are_pythons(cpu: Backend) -> None:
    x = cpu.array([7.5, -2.0])
    assert (+x).asnumpyarray().tolist() == [7.5, -2.0]
    with pytest.raises(DTypeError, match="positive: .*bool, and has no sign"):
        operator.pos(x > 0)
    for got, wanted in ((divmod(x, 2), divmod(x.get(), 2)), (divmod(2, x), divmod(2, x.get()))):
        assert [tree.asnumpyarray().tolist() for tree in got] == [value.tolist() for value in wanted]


@pytest.mark.parametrize(
    "run", [lambda x: x + x, lambda x: x * 2.0, lambda x: 2 - x, lambda x: x < x, lambda x: -x, lambda x: x @ x]
)
def test_an_operator_on_operands_of_known_types_is_one_call(run: Callable[[Any], Any], cpu: Backend) -> None:
    x = cpu.ones((2, 2))
    run(x)
    assert len(calls_of(lambda: run(x))) == 2, "the lambda's, and the operator's"


def test_a_node_has_the_line_of_its_operator(cpu: Backend) -> None:
    x = cpu.ones((2, 2))
    for _ in range(2):
        trees = [x + x, -x, x <= x, 2 - x]
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        assert {line_of(tree.origin) for tree in trees} == {f"test_operators.py:{line}"}


def test_an_op_that_is_defined_again_is_what_its_operator_builds(cpu: Backend) -> None:
    x: Any = cpu.ones(2)
    earlier = OPS["sub"]
    namespace = {name: vars(earlier)[name] for name in vars(earlier) if name not in ("__dict__", "__weakref__")}
    try:
        again = type(earlier)("Sub", earlier.__bases__, {**namespace, "__qualname__": earlier.__qualname__})
        assert type((x - x).op) is again and type((x - x).op) is again
    finally:
        check_and_register(earlier, Op, function_of)
    assert type((x - x).op) is earlier


def test_type_checkers_know_operators_and_methods(cpu: Backend) -> None:
    """`assert_type` is for mypy, which reads this file."""
    t, x = cpu.ones((2, 2)), TensorType("float32", (2, 2))("x")
    assert_type(t, Tensor)
    for tree in (assert_type(t + 1, Variable), assert_type(2 - t * t, Variable), assert_type(-t @ t, Variable)):
        assert tree.execute().shape == tree.astensor().shape == tree.get().shape == (2, 2)
    assert_type(t < t, Variable)
    assert_type(t == t, Variable)
    assert_type((t > 0) & ~(t > 1), Variable)
    assert_type(abs(t).shape, tuple[int, ...])
    assert t.sum(axis=0).mean(keepdims=True).shape == (1,) and (t + 1).clip(0, 1).std(ddof=1).shape == ()
    with pytest.raises(TypeError):
        t << 1  # type: ignore[operator]
    with pytest.raises(TypeError):
        t.cumsum(axes=0)  # type: ignore[call-arg]
    assert list(inspect.signature(type(t).__add__).parameters) == ["self", "other"]
    assert x.sum.__doc__ == "``np.sum`` of this operand."
