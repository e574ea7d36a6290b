"""Whose memory a value lies in: a plan overwrites none that somebody still needs, whatever an op does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends import gen_backend
from optree import Apply, Op
from optree.errors import DefinitionError
from optree.op.traits import ElementwiseOperator, NonDifferentiableOperator, UnaryOperator
from optree.tree.types import TensorType


class _Plain(NonDifferentiableOperator, UnaryOperator, ElementwiseOperator):
    """An op that declares nothing about memory."""


class Ident(_Plain):
    def numpy(self, *arrays: Any) -> Any:
        return arrays[0]


class WideCopy(_Plain):
    def numpy(self, *arrays: Any) -> Any:
        return np.asarray(arrays[0]).astype(np.float32, copy=False)


class View(_Plain):
    def numpy(self, *arrays: Any) -> Any:
        return arrays[0][...]


class Performed(_Plain):
    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0][...]


class Thunk(_Plain):
    def make_thunk(self, node: Any, storage_map: Any, compute_map: Any, no_recycling: Any, impl: Any = None) -> Any:
        (x,), (y,) = node.inputs, node.outputs
        return lambda: storage_map[y].__setitem__(0, storage_map[x][0])


class Pair(Op):
    """Its operand, twice."""

    __props__ = ()

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type(), x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = output_storage[1][0] = inputs[0]


ALIASES = {op.__name__: op() for op in (Ident, WideCopy, View, Performed, Thunk)}
ALIASES["Pair"] = lambda x: Pair()(x)[0]


@pytest.fixture(params=ALIASES)
def ident(request: pytest.FixtureRequest) -> Any:
    """An op that gives its operand back, and does not say so."""
    return ALIASES[request.param]


def test_a_tensor_is_not_written_through_an_alias(be: Any, ident: Any) -> None:
    x = be.array([1.0, 2.0])
    assert ((ident(x) + 1.0) * 2.0).asnumpyarray().tolist() == [4.0, 6.0]
    assert be.exp(ident(x) * 0.0).asnumpyarray().tolist() == [1.0, 1.0]
    assert x.get().tolist() == [1.0, 2.0]


def test_a_value_is_not_written_while_an_alias_is_needed(be: Any, ident: Any) -> None:
    x = be.array([1.0, 2.0])
    w = x * 2
    assert ((ident(w) + 1) * w).asnumpyarray().tolist() == [6.0, 20.0]
    alias = ident(w)
    assert ((w + 1) * alias).asnumpyarray().tolist() == [6.0, 20.0]
    assert (alias + (w + 1)).asnumpyarray().tolist() == [5.0, 9.0]


def test_a_new_tensor_is_no_alias(be: Any, ident: Any) -> None:
    x = be.array([1.0, 2.0])
    for tree in (ident(x), be.transpose(ident(x)), ident(be.transpose(x))):
        y = tree.astensor()
        y += 1
    w = x * 2
    first, second = be.evaluate([w, ident(w)])
    first += 1
    assert x.get().tolist() == [1.0, 2.0] and second.get().tolist() == [2.0, 4.0]


def test_memory_that_an_op_keeps_is_not_written(be: Any) -> None:
    table = np.array([1.0, 2.0], np.float32)

    class Table(_Plain):
        def numpy(self, *arrays: Any) -> Any:
            return table

    for _ in range(2):
        assert ((Table()(be.ones(2)) + 1.0) * 2.0).asnumpyarray().tolist() == [4.0, 6.0]
    assert table.tolist() == [1.0, 2.0]


# What an op gives is checked on every backend


class WrongDtype(_Plain):
    def numpy(self, *arrays: Any) -> Any:
        return np.asarray(arrays[0], np.float64)


class WrongShape(_Plain):
    def numpy(self, *arrays: Any) -> Any:
        return np.ones((3,), np.float32) if np.shape(arrays[0]) != (2,) else arrays[0]


class NoArray(_Plain):
    def numpy(self, *arrays: Any) -> Any:
        return [1.0, 2.0]


@pytest.mark.parametrize(
    ("op", "says"), [(WrongDtype, "float64"), (WrongShape, r"\(3,\)"), (NoArray, "list"), (lambda: Ident(), None)]
)
def test_a_value_that_breaks_its_promise_is_named(be: Any, op: Any, says: str | None) -> None:
    op = op()
    for x in (be.ones((4,)), be.ones((5,))):  # the second by a known plan
        tree = op(x) + 1
        if says is None:
            assert tree.asnumpyarray().shape == x.shape
            continue
        with pytest.raises(DefinitionError, match=f"{op}: numpy gave output 0 a value.*{says}") as error:
            tree.asnumpyarray()
        assert "test_memory.py:" in error.value.__notes__[0]


def test_a_wrong_shape_is_found_after_right_ones(be: Any) -> None:
    op = WrongShape()
    assert (op(be.ones((2,))) + 1).asnumpyarray().tolist() == [2.0, 2.0]
    with pytest.raises(DefinitionError, match=r"WrongShape: numpy.*\(3,\)"):
        (op(be.ones((4,))) + 1).asnumpyarray()


def test_a_value_of_any_type_may_be_defined(be: Any) -> None:
    class Scaled(Op):
        __props__ = ()
        itypes = otypes = (TensorType("float32", (None,)),)

        def numpy(self, *arrays: Any) -> Any:
            return arrays[0] * np.float32(3)

    assert Scaled()(be.ones(2)).asnumpyarray().tolist() == [3.0, 3.0]


# What a plan reuses


def test_memory_of_elementwise_values_is_reused() -> None:
    be = gen_backend("cpu")
    x = be.ones((4,))
    seen = []

    class Spy(_Plain):
        def numpy(self, *arrays: Any) -> Any:
            seen.append(arrays[0].__array_interface__["data"][0])
            return arrays[0].copy()

    w = x * 2.0
    tree = Spy()(w) + Spy()(be.sin(w) + 1.0)
    tree.asnumpyarray()
    assert len(set(seen)) == 1
