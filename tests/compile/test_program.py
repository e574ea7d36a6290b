"""Programs: what is merged, how long memory is needed, and what of it is given away."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest

from backends import gen_backend
from optree import Input, Op, TensorType, grad
from optree.compile.aliasing import given_away, last_uses
from optree.compile.fusion import fuse
from optree.compile.pipeline import lower
from optree.compile.program import Sizes, dims_of, flatten
from optree.compile.reference import evaluate, prepared
from optree.errors import OperandError
from optree.op.apply import Apply
from optree.registry import OPS, f
from optree.tree.node import signature, uncollected


def grid(be: Any) -> Any:
    return be.array(np.arange(4.0).reshape(2, 2))


# How long memory is needed


VIEWS = {
    "transpose": (lambda be, a: be.transpose(a), lambda a: a.T),
    "slice": (lambda be, a: be.slice(a, np.s_[::-1]), lambda a: a[::-1]),
    "reshape": (lambda be, a: be.reshape(a, (4, 1)), lambda a: a.reshape(4, 1)),
    "broadcast_to": (lambda be, a: be.broadcast_to(a, (3, 2, 2)), lambda a: a),
    "flip of transpose": (lambda be, a: be.flip(be.transpose(a)), lambda a: np.flip(a.T)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_what_a_view_looks_into_is_not_written_while_the_view_is_needed(be: Any, name: str) -> None:
    view, meaning = VIEWS[name]
    a = np.arange(4.0).reshape(2, 2) * 2
    for tree, wanted in (
        (lambda w: view(be, w) * be.sum(w + 1.0), lambda w: meaning(w) * np.sum(w + 1.0)),
        (lambda w: be.sum(w + 1.0) - view(be, w), lambda w: np.sum(w + 1.0) - meaning(w)),
        (lambda w: view(be, w) * be.sum(be.sqrt(w) * w), lambda w: meaning(w) * np.sum(np.sqrt(w) * w)),
    ):
        got = tree(grid(be) * 2.0).asnumpyarray()
        np.testing.assert_allclose(got, np.broadcast_to(wanted(a), got.shape), rtol=1e-6)


def test_a_transposed_value_meets_the_sum_that_could_be_written_over_it(be: Any) -> None:
    w = grid(be) * 2.0
    assert (be.transpose(w) * (w + 1.0)).asnumpyarray().tolist() == [[0.0, 12.0], [10.0, 42.0]]
    y = be.empty((2, 2))
    y[:] = be.transpose(w) * (w + 1.0)
    assert y.get().tolist() == [[0.0, 12.0], [10.0, 42.0]]


def test_last_uses(be: Any) -> None:
    x = grid(be)
    w = x * 2.0
    view = be.transpose(w)
    program = flatten([be.sum(view) + (w + 1.0)])  # 0 mul, 1 transpose, 2 sum, 3 add, 4 add
    assert [i.op.name for i in program.instructions] == ["mul", "transpose", "sum", "add", "add"]
    last = last_uses(program)
    assert last[len(program.leaves) :] == [3, 2, 4, 4, 5]
    assert last[:2] == [0, 0]  # x and 2.0
    kept = flatten([view, w + 1.0])
    assert last_uses(kept)[len(kept.leaves)] == len(kept.instructions)  # seen through an output
    unused = flatten([x])
    assert last_uses(unused) == [0]


# What is merged


def test_equal_work_is_merged_and_numbers_are_not(be: Any) -> None:
    x = grid(be)
    assert len(flatten([be.sin(x) + be.sin(x)]).instructions) == 2
    assert len(flatten([be.sin(x), be.sin(x) * x]).instructions) == 2
    assert len(flatten([be.sum(x, axis=0), be.sum(x, axis=1)]).instructions) == 2
    assert len(flatten([x + 1.0, x + 1.0]).instructions) == 2


@pytest.mark.parametrize(
    "draw",
    [
        lambda be, y: be.rand(y),
        lambda be, y: be.normal(0, 1, y),
        lambda be, y: be.rand(y.shape),
        lambda be, y: be.rand(y) * 1.0,
    ],
)
def test_two_draws_are_never_merged(draw: Any) -> None:
    be = gen_backend("cpu", rng_seed=3)
    y = be.ones((8,))
    assert len(set((draw(be, y) - draw(be, y)).asnumpyarray().tolist()) - {0.0}) > 4
    one = draw(be, y)
    assert not (one - one).asnumpyarray().any()
    first, second = be.evaluate([draw(be, y), draw(be, y)])
    assert (first.get() != second.get()).all()


# What is given away


class Two(Op):
    """Two outputs."""

    __props__ = ()

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [TensorType("float32", (None,))() for _ in range(2)])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0], output_storage[1][0] = inputs[0] + 1, inputs[0] + 2


def test_output_picks_one_of_several(be: Any) -> None:
    one, two = Two()(be.array([1.0, 2.0]))
    pick = OPS["output"].make(index=1)
    assert (one.op, two.op) == (OPS["output"].make(index=0), pick) and two.key() == pick(two[1]).key()
    assert (one.asnumpyarray().tolist(), pick(two[1]).asnumpyarray().tolist()) == ([2.0, 3.0], [3.0, 4.0])
    (reference,) = evaluate(flatten([two]), [np.ones(4, np.float32)])
    assert reference.tolist() == [3.0] * 4
    with pytest.raises(OperandError, match="output: .* has no outputs to pick from"):
        pick(be.ones(2))


def test_given_away(be: Any) -> None:
    x = be.ones((4,))
    one, two = Two()(x)
    for outputs, wanted in (
        ([one], (True, False)),
        ([two], (False, True)),
        ([two, one], (True, True)),
        ([one * two], (False, False)),
        ([be.slice(two, np.s_[1:]), one + 1.0], (False, True)),
    ):
        program = flatten(outputs)
        assert given_away(program, 0, last_uses(program)) == wanted
    program = flatten([be.transpose(x * 2.0), x * 2.0 + 1.0])
    last = last_uses(program)
    assert [given_away(program, i, last)[0] for i in range(len(program.instructions))] == [True, True, False, True]


# Order


def test_leaves_stand_in_the_order_of_the_signature(be: Any) -> None:
    x, y = be.ones((2,), name="x"), be.ones((2,), name="y")
    tree = be.where(y > 1.0, x * 2.0, y) + x
    _, leaves = signature(tree)
    assert [str(leaf) for leaf in flatten([tree]).leaves] == [str(leaf) for leaf in leaves]


def test_what_only_its_shape_is_taken_of_is_not_made() -> None:
    be = gen_backend("cpu", jit=True)
    x, y = be.array([1.0, 2.0, 3.0, 4.0]), be.array([[5.0, 6.0], [7.0, 8.0]])
    tree = be.reshape_like(x, be.exp(y) * 2)
    program = flatten([tree])
    assert len(program.instructions) == 3 and len(fuse(program, Sizes(program))) == 1
    assert tree.asnumpyarray().tolist() == [[1, 2], [3, 4]]
    x[:2] = be.reshape_like(y[0], be.sum(y, axis=0, keepdims=False)) + x[2:]
    assert x.get().tolist() == [8, 10, 3, 4]


def test_a_product_has_its_operands_axes(be):
    x, y, v = be.ones((5, 7)), be.ones((7, 3)), be.ones((7,))
    program = flatten([be.dot(x, y), be.dot(x, v), be.dot(v, y)])
    (rows, inner), (same, columns), only = dims_of(program)[:3]
    assert inner == same and only == (inner,)
    assert [dims_of(program)[i] for i in program.outputs] == [(rows, columns), (rows,), (columns,)]


def test_the_collector_is_paused_while_a_long_tree_is_lowered_and_runs_again_after_it(be: Any) -> None:
    x, collections = be.ones(3, name="x"), []
    tree = x
    for _ in range(5000):
        tree = be.tanh(tree) * x
    gc.callbacks.append(lambda phase, info: collections.append(phase))
    try:
        gradient = grad(be.sum(tree), x)
        lower([gradient])
    finally:
        gc.callbacks.pop()
    assert collections.count("start") <= 2  # those of the calls around
    assert gc.isenabled()
    with pytest.raises(TypeError):
        lower(None)
    assert gc.isenabled()
    gc.disable()
    try:
        be.evaluate([x + 17])
        assert not gc.isenabled()  # as the user has it
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_the_collector_runs_in_a_child_that_is_forked_while_it_is_paused() -> None:
    @uncollected
    def forked() -> int:
        assert not gc.isenabled()
        child = os.fork()
        if child == 0:
            os._exit(int(not gc.isenabled()))
        return os.waitpid(child, 0)[1]

    assert forked() == 0 and gc.isenabled()


def test_a_prepared_program_takes_arrays_of_other_sizes() -> None:
    x = Input(TensorType("float64", (None,)), "x")
    run = prepared(flatten([f.tanh(x) + x[:1], f.sum(x)]))
    for size in (3, 5, 5, 3, 1):
        values = np.arange(float(size))
        found, total = run([values])
        np.testing.assert_array_equal(found, np.tanh(values) + values[:1])
        assert total == values.sum()
