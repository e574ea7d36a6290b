"""Index maps: what follows from one, and that the registry's check convicts a wrong one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from optree import Input, Op, function, grad
from optree.compile.program import dims_of, flatten
from optree.op.index_map import (
    BROADCAST,
    FLIPPED,
    LIKE,
    OPAQUE,
    REPEATED,
    RESHAPED,
    SAME,
    SELECTED,
    SHAPE,
    STACKED,
    IndexMap,
    contracted,
    indexed,
    permuted,
    reduced,
    windowed,
)
from optree.op.traits import NonDifferentiableOperator, UnaryOperator
from optree.registry import OPS, f
from optree.run.vmap import vmap
from optree.testing.conformance import check_facts
from optree.testing.examples import examples_of
from optree.tree.types import TensorType

MATRIX = TensorType("float64", (None, None))


def _op(value: Any, shape: Any, *reads: Any, operands: tuple[str, ...] = ("x",), examples: Any = None) -> Any:
    """An op of a value, a shape and an index map."""
    body = {
        "operands": operands,
        "index_map": IndexMap(*reads),
        "numpy": lambda *arrays: np.array(value(*arrays)),
        "output_shape": lambda self, *shapes: shape(*shapes),
        "examples": examples or (((*[(3, 4)] * len(operands),), {}),),
    }
    return type("Given", (UnaryOperator, NonDifferentiableOperator), body)


def _same(x: Any, *others: Any) -> Any:
    return x


#: A wrong index map for each kind of read: the value, its shape, and the reads.
WRONG = {
    "broadcast": (lambda x: x - x.mean(), _same, BROADCAST),
    "windowed": (lambda x: x - x.sum(0), _same, windowed(1)),
    "reduced": (lambda x: x.sum(0), lambda x: x[1:], reduced(1)),
    "same": (lambda x: -x, _same, SAME),
    "reshaped": (lambda x: x.T, lambda x: x[::-1], RESHAPED),
    "permuted": (lambda x: x.T.reshape(x.shape), _same, permuted((1, 0))),
    "selected": (lambda x: x[:, [0, 0]], lambda x: (x[0], 2), SELECTED),
    "flipped": (lambda x: x[:2], lambda x: (2, x[1]), FLIPPED),
    "like": (lambda x: np.zeros(len(x)), lambda x: x[:1], LIKE),
    "shape": (lambda x: x[0], lambda x: x[1:], SHAPE),
    "indexed": (lambda x: np.arange(12.0).reshape(4, 3).T, _same, indexed()),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_index_map_is_found(kind: str) -> None:
    op = _op(*WRONG[kind])
    with pytest.raises((AssertionError, ValueError), match=f"{kind}|shape|index map|axes"):
        for example in examples_of(op):
            check_facts(example)


def test_a_wrong_index_map_of_two_operands_is_found() -> None:
    for reads in ((REPEATED, LIKE), (contracted(0), contracted(1)), (BROADCAST, OPAQUE)):
        given = _op(lambda x, y: x[::-1] + y.sum(), _same, *reads, operands=("x", "y"))
        with pytest.raises(AssertionError, match="operand|repeats|contracts"):
            check_facts(examples_of(given)[0])


def test_a_right_index_map_passes() -> None:
    for given in (
        _op(lambda x: x * 2, _same, BROADCAST),
        _op(lambda x: x - x.sum(0), _same, windowed(0)),
        _op(lambda x: x.sum(0), lambda x: x[1:], reduced(0)),
        _op(lambda x, y: np.zeros(y.shape), lambda x, y: y, SHAPE, LIKE, operands=("x", "y")),
    ):
        check_facts(examples_of(given)[0])


def test_a_batching_rule_follows_from_an_index_map() -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    for given in (
        _op(lambda x: x * 2, _same, BROADCAST),
        _op(lambda x: np.cumsum(x, -1), _same, STACKED),
        _op(lambda x: np.arange(float(x.size)).reshape(x.shape), _same, LIKE),
    ):
        alone = [function([], given.make()(each))() for each in x]
        found = function([], vmap(given.make())(x))()
        np.testing.assert_array_equal(found, np.stack(alone))


def test_symbolic_sizes_follow_from_an_index_map() -> None:
    given = _op(lambda x, y: np.zeros(y.shape), lambda x, y: y, OPAQUE, LIKE, operands=("x", "y"))
    x, y = Input(MATRIX, "x"), Input(MATRIX, "y")
    program = flatten([given.make()(x, y)])
    dims = dims_of(program)
    assert dims[-1] == dims[next(n for n, leaf in enumerate(program.leaves) if leaf is y)]


def test_a_view_and_the_inputs_used_for_their_shape_follow_from_an_index_map() -> None:
    op = OPS["reshape_like"].make()
    assert op.view_map == {0: [0]} and op.index_map.shape_only == (1,)
    assert OPS["fill_like"].make().view_map == {}
    y = Input(MATRIX, "y")
    with pytest.raises(ValueError, match="disconnected|does not depend"):
        grad(f.sum(f.fill_like(y, 2.0)), [y])


def test_an_ops_own_view_map_is_kept() -> None:
    own = type("Own", (Op,), {"__props__": (), "view_map": {0: [1]}, "index_map": IndexMap(RESHAPED, OPAQUE)})
    assert own().view_map == {0: [1]}
    assert type("Derived", (own,), {"index_map": IndexMap(STACKED)})().view_map == {0: [1]}
    copied = type("Copied", (type(OPS["reshape"].make()),), {"name": None, "index_map": IndexMap(OPAQUE)})
    assert copied().view_map == {}
