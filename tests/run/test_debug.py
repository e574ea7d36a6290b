"""Debug mode: deliberately broken ops, one for each clause of the contract, each convicted by name."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from backends import gen_backend
from optree import Apply, Op, TensorType, function
from optree.errors import ContractError, DefinitionError, NotFiniteError, OptreeError
from optree.op.examples import examples_in
from optree.op.traits import ElementwiseOperator
from optree.registry import OPS
from optree.run import debug
from optree.testing.examples import Runner, examples_of, inputs_for

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
    ReturnsAnInput: (ContractError, r"aliases input 1.*view_map = \{0: \[1\]\}"),
    ReturnsAView: (ContractError, r"aliases input 0.*view_map = \{0: \[0\]\}"),
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


@pytest.mark.matrix
@pytest.mark.parametrize("name", sorted(OPS))
def test_no_op_of_the_project_is_accused_for_bfloat16(be, name):
    pytest.importorskip("ml_dtypes")
    op = OPS[name]
    if not (examples_in(op).cases or issubclass(op, ElementwiseOperator)) or op.destroy_map:
        return
    for example in examples_of(op):
        values = example.draw("bfloat16")
        inputs = inputs_for(values)
        try:
            tree = example.tree(inputs)
        except OptreeError:  # it takes no bfloat16
            continue
        (wanted,) = Runner([tree], inputs)(values)
        try:
            (got,) = Runner([tree], inputs, debug.evaluate)(values)
        except NotFiniteError:  # true of these values
            continue
        np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(wanted, np.float64))


def test_debug_mode_computes_bfloat16_as_backends_do(be):
    pytest.importorskip("ml_dtypes")
    values = np.random.RandomState(0).uniform(-3, 3, (5, 40))
    b = be.array(values, dtype="bfloat16", name="b")
    trees = {
        "clip": np.clip(b, 0, 2),
        "where": np.where(b > 1, b, -b),
        "dot": be.dot(b, b.T),
        "hypot": np.hypot(b, b + 1),
        "vstack": np.vstack([b, b]),
        "sort": np.sort(b, axis=1),
    }
    for name, tree in trees.items():
        got = function([], tree, mode="debug")()
        np.testing.assert_array_equal(
            got.get().astype(np.float64), tree.asnumpyarray().astype(np.float64), err_msg=name
        )
    assert (np.diff(function([], trees["sort"], mode="debug")().get().astype(np.float64)) >= 0).all()


def test_one_tensor_as_both_operands_is_no_broken_promise(be):
    b = be.array([1.0, 2.0])
    assert function([], be.broadcast_like(b, b), mode="debug")().get().tolist() == [1.0, 2.0]
    assert function([], be.broadcast_like(b, b[::-1]), mode="debug")().get().tolist() == [1.0, 2.0]


class LooksAtItsAddress(Sound):
    """A sum whose last bits depend on layout and alignment, as a library's may."""

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, _ = inputs
        shift = x.ctypes.data % 64 / 8 + x.strides[0]
        output_storage[0][0] = x + shift


class DiffersInLastBits(Sound):
    calls = 0

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        DiffersInLastBits.calls += 1
        output_storage[0][0] = inputs[0] * (1 + (DiffersInLastBits.calls % 3) * np.finfo(float).eps)


def test_copies_are_laid_out_and_aligned_as_the_originals(be):
    room = np.arange(64.0)
    op = LooksAtItsAddress()
    x, y = VECTOR("x"), VECTOR("y")
    f = Runner([op(x, y)], [x, y], debug.evaluate)
    for start, step in itertools.product(range(5), (1, 3, -2)):
        part = room[start::step] if step > 0 else room[start + 20 :: step]
        (got,) = f([part, room])
        np.testing.assert_array_equal(got, part + (part.ctypes.data % 64 / 8 + part.strides[0]))


def test_the_last_bits_are_no_fault(be):
    run(DiffersInLastBits())
