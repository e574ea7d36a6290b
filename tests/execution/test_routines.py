"""Steps: routines of libraries by a table, and calls that write into targets and dead operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.counting import allocated

import backends.cpu.calls
from backends import gen_backend
from backends.execution.executor import CallStep, steps_of
from backends.execution.routines import Routine, routine_of
from backends.gpu import calls as gpu
from optree import function
from optree.compile.program import flatten
from optree.op.traits import ElementwiseOperator, NonDifferentiableOperator, UnaryOperator
from optree.ops.contraction import Dot, MatMul
from optree.tree.node import OpTreeNode


@pytest.fixture
def be() -> Any:
    return gen_backend("cpu", jit=False, rng_seed=0)


def _calls(be: Any, *roots: Any) -> list[CallStep]:
    program = be.program(roots)
    return [step for step in steps_of(program, be._implementations(program, False)) if isinstance(step, CallStep)]


def _assigned(target: Any, value: Any) -> Any:
    return OpTreeNode.build("assign", target, value)


@pytest.mark.parametrize("table", [backends.cpu.calls.ROUTINES, gpu.ROUTINES], ids=["cpu", "gpu"])
def test_routines_are_of_op_classes(table: Any) -> None:
    assert {Dot, MatMul} <= table.keys() and all(isinstance(routine, Routine) for routine in table.values())


def test_a_row_is_all_that_a_routine_takes(be: Any, monkeypatch: Any) -> None:
    """It says itself what it can do: this one takes matrices of some size, and writes where it is told to."""
    seen: list[Any] = []

    def bind(backend: Any, op: Any) -> Any:
        def call(x: Any, y: Any, out: Any = None) -> Any:
            seen.append(out)
            return np.matmul(x, y, out=out)

        return call

    row = Routine(bind, lambda program, index: program.instructions[index].node.shape == (3, 3), writes_out=True)
    monkeypatch.setitem(backends.cpu.calls.ROUTINES, MatMul, row)
    x, z = be.array(np.arange(9.0).reshape(3, 3)), be.zeros((3, 3))
    z[:] = be.matmul(x, x)
    np.testing.assert_array_equal(z.get(), x.get() @ x.get())
    assert len(seen) == 1 and np.shares_memory(seen[0], z.array)
    be.matmul(x[:2], x).asnumpyarray()
    assert len(seen) == 1, "what it does not take goes its usual way"


def test_a_subclass_of_an_op_needs_a_row_of_its_own(be: Any) -> None:
    class Other(MatMul):
        name = "other_matmul"

    x = be.ones((2, 2))
    assert np.matmul(x, x).op.name == "matmul", "a subclass does not take NumPy's function over"
    for op, has in ((MatMul(), True), (Other(), False)):
        program = flatten([op(x, x)])
        for table in (backends.cpu.calls.ROUTINES, gpu.ROUTINES):
            assert (routine_of(table, program, 0) is not None) is has


def test_on_a_gpu_products_of_integers_are_no_routines(be: Any) -> None:
    for dtype, has in (("float32", True), ("int32", False)):
        x = be.array(np.ones((2, 2)), dtype=dtype)
        assert (routine_of(gpu.ROUTINES, flatten([be.dot(x, x)]), 0) is not None) is has


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_a_value_is_computed_in_its_target_wherever_its_assignment_stands(be: Any, dtype: str) -> None:
    x = be.array(np.ones((4, 4)), dtype=dtype)
    y, z = be.empty((4, 4), dtype=dtype), be.empty((4, 4), dtype=dtype)
    calls = _calls(
        be, _assigned(y, x | x if dtype == "bool" else x + x), _assigned(z, x & x if dtype == "bool" else x * x)
    )
    assert len(calls) == 2 and all(call.target is not None for call in calls)


@pytest.mark.parametrize(
    "roots",
    [
        lambda be, x, z: [_assigned(z, x + x), be.sum(z * 2.0)],  # z is read as it was before
        lambda be, x, z: [_assigned(z, x + x), (x + x) * 2.0],  # the value is needed besides
        lambda be, x, z: [_assigned(z, be.array(np.ones((4, 4)), dtype="float64") + 1.0)],  # it is cast
        lambda be, x, z: [_assigned(z, x[:1] + 1.0)],  # it is broadcast
    ],
)
def test_a_value_is_computed_elsewhere_where_its_target_cannot_take_it(be: Any, roots: Any) -> None:
    x, z = be.array(np.ones((4, 4))), be.array(np.full((4, 4), 3.0))
    trees = roots(be, x, z)
    names = [(call.op.name, call.target is None) for call in _calls(be, *trees)]
    assert ("assign", True) in names


def test_what_may_fail_comes_before_anything_is_written(be: Any) -> None:
    x, z, places = be.ones((4,)), be.zeros((4,)), be.array([9], dtype="int64")
    step = function([], be.take(x, places), updates={z: x + 1.0})
    with pytest.raises(IndexError):
        step()
    assert not z.get().any()


@pytest.mark.parametrize("jit", [False, "auto"])
def test_elements_are_written_into_a_tensor_without_a_copy_of_it(jit: Any) -> None:
    be = gen_backend("cpu", jit=jit, rng_seed=0)
    z, places = be.zeros((1 << 18,)), be.array([3, 5], dtype="int64")

    def write() -> None:
        z[places] = 1.0

    assert allocated(write) < 1 << 16
    assert z.get().sum() == 2.0


def test_a_chain_of_calls_takes_one_array(be: Any) -> None:
    x = be.ones((1 << 10, 1 << 6))
    tree = be.tanh(be.exp(x * 0.5) + 1.0) * x
    assert [call.out is not None for call in _calls(be, tree)] == [False, True, True, True, True]
    y = be.empty(x.shape)

    def run() -> None:
        y[:] = tree

    assert allocated(run) < 2 * x.array.nbytes


def test_the_same_op_on_the_same_types_shares_its_checked_function(be: Any) -> None:
    """The gradient of a long chain has thousands of one op, such as tanh's slope, which is no ufunc."""
    x = be.ones(8)
    tree = x
    for _ in range(5):
        tree = be.sech2(tree)
    calls = _calls(be, tree)
    assert len(calls) == 5 and len({id(step.implementation) for step in calls}) == 1


def test_each_application_of_an_op_that_reuses_its_cells_has_its_own(be: Any) -> None:
    class Doubled(UnaryOperator, ElementwiseOperator, NonDifferentiableOperator):
        def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            (cell,) = output_storage
            cell[0] = np.multiply(inputs[0], 2, out=cell[0])

    x, double = be.ones(8), Doubled()
    once, twice = (double(y) for y in (x, x + 1))
    assert [value.tolist() for value in function([], [once, twice])()] == [[2.0] * 8, [4.0] * 8]
    program = be.program([once, twice])
    made = be._implementations(program, True)
    indices = [i for i, instruction in enumerate(program.instructions) if instruction.op is double]
    assert len({made(i).call for i in indices}) == 2
