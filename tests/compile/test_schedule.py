"""Ops that destroy their inputs: they run after what reads that memory, on copies where they must."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import gen_backend
from optree import Apply, Op, constant, function
from optree.compile.aliasing import schedule, unalias_outputs
from optree.compile.program import flatten
from optree.ops.random import STATE, RandomOperator
from optree.registry import f
from optree.tree.types import TensorType
from optree.tree.variable import Input

FOUR = TensorType("float64", (4,))


class _Destroyer(Op):
    __props__ = ()

    def make_node(self, x: Any, y: Any) -> Apply:
        x, y = (v if hasattr(v, "type") else constant(np.full(4, float(v))) for v in (x, y))
        return Apply(self, [x, y], [FOUR()])


class AddTo(_Destroyer):
    """x + y, in x's memory."""

    destroy_map = {0: [0]}

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, y = inputs
        x += y
        output_storage[0][0] = x


class AddOnto(_Destroyer):
    """x + y, in y's memory."""

    destroy_map = {0: [1]}

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, y = inputs
        y += x
        output_storage[0][0] = y


class Scratch(_Destroyer):
    """x + y, in memory of its own, after which nobody should read x."""

    destroy_map = {None: [0]}

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, y = inputs
        output_storage[0][0] = x + y
        x[...] = np.nan


class Both(_Destroyer):
    """x + y in x's memory, and x - y."""

    destroy_map = {0: [0]}

    def make_node(self, x: Any, y: Any) -> Apply:
        return Apply(self, [x, y], [FOUR(), FOUR()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, y = inputs
        output_storage[1][0] = x - y
        x += y
        output_storage[0][0] = x


add_to, add_onto, scratch, both = AddTo(), AddOnto(), Scratch(), Both()

A, B = np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 20.0, 30.0, 40.0])


def ops_of(trees: list[Any]) -> list[str]:
    """The steps that run for trees, in order."""
    return [i.op.name or str(i.op) for i in schedule(unalias_outputs(flatten(trees))).instructions]


def check(inputs: list[Input], trees: list[Any], wanted: list[Any]) -> None:
    """Raise unless trees of two inputs give these values, by a plan and by the reference, and change no argument."""
    be = gen_backend("cpu")
    for mode in (None, "reference"):
        run = function(inputs, trees, on_unused_input="ignore", mode=mode)
        assert run.backend is be
        for _ in range(2):
            arguments = [A.copy(), B.copy()]
            for got, right in zip(run(*arguments), wanted, strict=True):
                np.testing.assert_array_equal(np.asarray(got), right)
            np.testing.assert_array_equal(arguments, [A, B])


@pytest.fixture
def x() -> Input:
    return FOUR("x")


@pytest.fixture
def y() -> Input:
    return FOUR("y")


# In an order, or on a copy


def test_a_destroyer_runs_after_the_other_readers(x, y):
    w = x * 2.0
    trees = [add_to(w, y), w * w, w + 1.0]
    assert ops_of(trees) == ["mul", "mul", "add", "AddTo"]
    check([x, y], trees, [2 * A + B, 4 * A * A, 2 * A + 1])


def test_a_destroyer_whose_value_a_reader_needs_gets_a_copy(x, y):
    w = x * 2.0
    trees = [add_to(w, y) * w]
    assert ops_of(trees) == ["mul", "copy", "AddTo", "mul"]
    check([x, y], trees, [(2 * A + B) * 2 * A])


def test_a_destroyer_of_an_output_gets_a_copy(x, y):
    w = x * 2.0
    check([x, y], [w, add_to(w, y)], [2 * A, 2 * A + B])


def test_two_destroyers_of_one_value(x, y):
    w = x * 2.0
    trees = [add_to(w, y), add_to(w, 1.0), add_onto(y, w)]
    check([x, y], trees, [2 * A + B, 2 * A + 1, 2 * A + B])


def test_a_destroyer_of_a_destroyers_value_needs_no_copy(x, y):
    trees = [add_to(add_to(add_to(x * 2.0, y), y), 1.0)]
    assert "copy" not in ops_of(trees)
    check([x, y], trees, [2 * A + 2 * B + 1])


def test_two_destroyers_that_wait_for_each_other(x, y):
    v, w = x * 2.0, y * 2.0
    check([x, y], [add_to(v, w), add_to(w, v)], [2 * A + 2 * B] * 2)


def test_constants_numbers_and_inputs_are_not_destroyed(x, y):
    kept = constant(A.copy())
    for _ in range(2):
        check([x, y], [add_to(x, y), add_to(kept, y), add_to(3.0, y)], [A + B, A + B, 3 + B])
    np.testing.assert_array_equal(kept.value, A)


def test_memory_that_is_destroyed_and_not_given_is_not_read_after(x, y):
    w = x * 2.0
    check([x, y], [scratch(w, y), w + 1.0, scratch(w, w)], [2 * A + B, 2 * A + 1, 4 * A])
    check([x, y], [scratch(w, y) + w], [4 * A + B])


def test_one_of_several_outputs_in_destroyed_memory(x, y):
    w = x * 2.0
    total, difference = both(w, y)
    check([x, y], [total, difference, w], [2 * A + B, 2 * A - B, 2 * A])
    assert "copy" not in ops_of([total * difference])
    more = add_to(total, 1.0)
    check([x, y], [more, difference], [2 * A + B + 1, 2 * A - B])


# Through views


def flipped(tree: Any) -> Any:
    return f.slice(tree, np.s_[::-1])


def test_views_of_what_is_destroyed_are_read_before(x, y):
    w = x * 2.0
    trees = [add_to(w, y), flipped(w) + 1.0]
    assert ops_of(trees) == ["mul", "slice", "add", "AddTo"]
    check([x, y], trees, [2 * A + B, (2 * A)[::-1] + 1])
    check([x, y], [add_to(w, y), flipped(w)], [2 * A + B, (2 * A)[::-1]])


def test_a_destroyed_view_destroys_what_it_looks_into(x, y):
    w = x * 2.0
    trees = [add_to(flipped(w), y), w + 1.0]
    assert ops_of(trees) == ["mul", "slice", "add", "AddTo"]
    check([x, y], trees, [(2 * A)[::-1] + B, 2 * A + 1])
    check([x, y], [add_to(flipped(x), y), x + 1.0], [A[::-1] + B, A + 1])
    check([x, y], [add_to(flipped(w), w)], [(2 * A)[::-1] + 2 * A])


# Outputs lie apart


def test_outputs_share_no_memory(x, y):
    w = x * 2.0
    trees = [x, w, w, flipped(w), flipped(flipped(w)), add_to(w, y), flipped(x)]
    wanted = [A, 2 * A, 2 * A, (2 * A)[::-1], 2 * A, 2 * A + B, A[::-1]]
    check([x, y], trees, wanted)
    be = gen_backend("cpu", datatype=np.float64)
    s = be.array(A)
    tensors = be.evaluate([s, s * 2.0, be.transpose(s), s[::-1], flipped(s * 2.0)])
    arrays = [s.raw(), *(t.raw() for t in tensors)]
    assert not any(np.may_share_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


def test_what_needs_no_copy_gets_none(x, y):
    w = x * 2.0
    assert ops_of([w, flipped(y * 2.0), w + 1.0]) == ["mul", "mul", "slice", "add"]
    program = flatten([w + y])
    assert schedule(program) is program


# Tensors are state


def test_a_tensor_that_is_destroyed_is_changed_in_the_order_of_the_program(be64):
    s = be64.array(A)
    first, second = be64.evaluate([add_to(s, 1.0), add_to(s, 10.0)])
    np.testing.assert_array_equal(first.get(), A + 1)
    np.testing.assert_array_equal(second.get(), A + 11)
    np.testing.assert_array_equal(s.get(), A + 11)


def test_draws_follow_each_other(be64):
    class Counter(RandomOperator):
        """How often it has been asked, and the one before."""

        operands = ("state", "like")

        def numpy(self, state: Any, like: Any) -> Any:
            state[1] += np.uint64(1)
            return np.full(np.shape(like), state[1], self.dtype)

    s = be64.array(np.zeros(2, np.uint64), np.uint64)
    assert s.type is STATE
    draws = [Counter()(s, np.zeros(1)) for _ in range(4)]
    trees = [draws[2] * 1.0, draws[0] + draws[0], draws[1], draws[3]]
    assert [t.get().item() for t in be64.evaluate(trees)] == [1.0, 4.0, 3.0, 4.0]
    assert be64.evaluate([draws[0] * 100.0 + draws[1]])[0].get().item() == 506.0
    assert s.get()[1] == 6


# Cells that an op keeps


class Growing(Op):
    """The sum so far, and a hidden buffer of what was added; it may give the buffer away as well."""

    __props__ = ()

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [FOUR(), TensorType("float64", (None,))()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        (x,), (total, buffer) = inputs, output_storage
        self.__dict__.setdefault("met", []).append(buffer[0] is not None)
        if buffer[0] is None:
            buffer[0] = np.zeros(8)
        buffer[0][:4] = x
        total[0] = buffer[0][:4]


def test_a_hidden_output_stays_in_its_cell_and_a_given_one_is_not_overwritten(x):
    be = gen_backend("cpu")
    hidden = Growing()
    run = function([x], hidden(x)[0])
    first, second = run(A), run(B)
    np.testing.assert_array_equal([first.get(), second.get()], [A, B])  # though each lay in the buffer that is kept
    assert hidden.met == [False, True]
    given_away = Growing()
    run_both = function([x], given_away(x))
    (total, buffer), (_, other) = run_both(A), run_both(B)
    np.testing.assert_array_equal(total.get(), A)
    np.testing.assert_array_equal(buffer[:4].get(), A)
    np.testing.assert_array_equal(other[:4].get(), B)
    assert not any(np.may_share_memory(total.raw(), t.raw()) for t in (buffer, other))
    assert run.backend is be


# Any program


STEPS = {
    "add_to": (add_to, np.add),
    "add_onto": (add_onto, np.add),
    "scratch": (scratch, np.add),
    "both": (lambda x, y: both(x, y)[0], np.add),
    "less": (lambda x, y: both(x, y)[1], np.subtract),
    "sub": (lambda x, y: x - y, np.subtract),
    "flip": (lambda x, y: flipped(x), lambda x, y: x[::-1]),
}


@given(
    steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 99), st.integers(0, 99)), max_size=12),
    outputs=st.lists(st.integers(0, 99), min_size=1, max_size=3),
)
def test_a_program_of_destroyers_and_views_gives_what_the_pure_one_gives(steps, outputs):
    x, y = FOUR("x"), FOUR("y")
    trees, wanted = [x, y, constant(A + B)], [A, B, A + B]
    for name, i, j in steps:
        ours, pure = STEPS[name]
        i, j = i % len(trees), j % len(trees)
        trees.append(ours(trees[i], trees[j]))
        wanted.append(pure(wanted[i], wanted[j]))
    chosen = [i % len(trees) for i in outputs]
    check([x, y], [trees[i] for i in chosen], [wanted[i] for i in chosen])
    np.testing.assert_array_equal(trees[2].value, A + B)
