"""Debug mode: deliberately broken ops, one for each clause of the contract, each convicted by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends import gen_backend
from optree import Apply, Op, TensorType, function
from optree.errors import ContractError, DefinitionError, NotFiniteError
from optree.registry import OPS

VECTOR = TensorType("float64", (None,))


class Sound(Op):
    """x + y, and nothing else."""

    __props__ = ()

    def make_node(self, x: Any, y: Any) -> Apply:
        return Apply(self, [x, y], [x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, y = inputs
        output_storage[0][0] = x + y


class EmptyCell(Sound):
    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        pass


class ResizedCell(Sound):
    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0].append(inputs[0])


class WrongDtype(Sound):
    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = (inputs[0] + inputs[1]).astype(np.float32)


class WrongRank(Sound):
    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = np.outer(*inputs)


class ChangesAnInput(Sound):
    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, y = inputs
        y *= 2
        output_storage[0][0] = x + y


class ReturnsAnInput(Sound):
    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[1]


class ReturnsAView(Sound):
    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0][::-1]


class ChangesAnOutput(Sound):
    """Adds to what its cell holds."""

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        (z,) = output_storage
        z[0] = inputs[0] + (0 if z[0] is None else z[0])


class Counts(Sound):
    """Gives another value at each call."""

    calls = 0

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        Counts.calls += 1
        output_storage[0][0] = inputs[0] + Counts.calls


class WrongShape(Sound):
    def infer_shape(self, node: Any, shapes: Any) -> Any:
        return [(shapes[0][0] + 1,)]


class MakesNan(Sound):
    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = np.where(inputs[0] > 1, np.nan, inputs[1])


@pytest.fixture
def be() -> Any:
    return gen_backend("cpu", rng_seed=0, datatype=np.float64)


def run(op: Op) -> Any:
    x, y = VECTOR("x"), VECTOR("y")
    f = function([x, y], op(x, y) * 2, mode="debug", on_unused_input="ignore")
    return f([1.0, 2.0], [3.0, 4.0])


BROKEN = {
    EmptyCell: (DefinitionError, "left the cell of output 0 empty"),
    ResizedCell: (DefinitionError, "resized the cell of output 0"),
    WrongDtype: (DefinitionError, "float32 does not go into float64"),
    WrongRank: (DefinitionError, r"1 dimensions are wanted"),
    ChangesAnInput: (ContractError, r"changed input 1.*destroy_map = \{0: \[1\]\}"),
    ReturnsAnInput: (ContractError, r"memory of input 1.*view_map = \{0: \[1\]\}"),
    ReturnsAView: (ContractError, r"memory of input 0.*view_map = \{0: \[0\]\}"),
    ChangesAnOutput: (ContractError, "in cells that held the values of the call before"),
    Counts: (ContractError, "other outputs"),
    WrongShape: (Exception, r"\(3,\)"),
    MakesNan: (NotFiniteError, r"output 0 is nan at \(1,\), of finite inputs"),
}


def test_a_sound_op_passes():
    assert np.asarray(run(Sound())).tolist() == [8.0, 12.0]


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_op_is_convicted_by_name(kind):
    error, message = BROKEN[kind]
    with pytest.raises(error, match=f"(?s){kind.__name__}.*{message}") as caught:
        run(kind())
    if error is not DefinitionError:
        assert "test_debug.py" in str(caught.value)


def test_declared_views_and_destroyers_pass(be):
    class Flipped(ReturnsAView):
        view_map = {0: [0]}

    class Added(ChangesAnInput):
        destroy_map = {None: [1]}

    for op in (Flipped(), Added()):
        run(op)


def test_a_debug_perform_stands_in(be):
    class Noisy(Counts):
        def debug_perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            output_storage[0][0] = inputs[0] * 0

    assert np.asarray(run(Noisy())).tolist() == [0.0, 0.0]


def test_the_projects_own_ops_pass(be):
    x, w = TensorType("float64", (None, 3))("x"), be.ones((3, 2), name="w")
    tree = be.log_softmax(be.dot(x * be.dropout_mask(x, 0.5), w), axis=1) + be.max(x, axis=1)
    values = np.linspace(1, 2, 12).reshape(4, 3)
    results = []
    for mode in ("default", "debug"):
        be.gen_rng(1)
        f = function([x], tree, updates={w: w - 0.1}, mode=mode)
        results.append([f(values).get(), f(values).get(), w.get()])
        w[:] = 1
    for normal, checked in zip(*results, strict=True):
        np.testing.assert_allclose(normal, checked, rtol=1e-12)
    assert "dot" in OPS


def test_an_infinity_that_was_there_is_no_fault(be):
    x = VECTOR("x")
    f = function([x], be.exp(x), mode="debug")
    assert f([np.inf]).get() == [np.inf]
    with pytest.raises(NotFiniteError, match=r"exp.*inf at \(0,\)"):
        f([1000.0])
