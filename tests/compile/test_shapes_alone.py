"""A value that is used for its shape alone is not computed: a gradient taken alone leaves the cost out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.composed import COMPOSED
from harness.each import for_each
from harness.op_examples import examples_for, has_examples

from backends import gen_backend, source
from optree import grad
from optree.compile.fusion import Call, fuse
from optree.compile.pipeline import rewrite
from optree.compile.program import ONE, Program, Sizes, dims_of, flatten, shapes_of
from optree.op.traits import NonDifferentiableOperator
from optree.registry import OPS
from optree.testing.examples import inputs_for

#: The ops that destroy nothing and have examples.
PURE = {name: op for name, op in sorted(OPS.items()) if not op.destroy_map and op.operands != () and has_examples(name)}


def _steps_of(program: Program) -> set[int]:
    """The places of the instructions that some step runs."""
    return {
        place
        for step in fuse(program, Sizes(program))
        for place in ([step.instruction] if isinstance(step, Call) else step.instructions)
    }


def _wanted(program: Program) -> set[int]:
    """The places of the instructions whose elements, and not only their shapes, the outputs are made from."""
    first, known, wanted, found = len(program.leaves), Sizes(program), set(program.outputs), set()
    for place in range(len(program.instructions) - 1, -1, -1):
        instruction = program.instructions[place]
        if first + place in wanted:
            found.add(place)
            alone = instruction.op.index_map.shape_only
            wanted.update(x for i, x in enumerate(instruction.inputs) if i not in alone or not known.is_known(x))
    return found


@for_each("name", [n for n, op in PURE.items() if not issubclass(op, NonDifferentiableOperator)], sampled=True)
def test_a_gradient_alone_computes_nothing_of_which_it_takes_the_shape(name: str) -> None:
    for example in examples_for(name):
        values = example.draw()
        inputs = inputs_for(values)
        tree = example.tree(inputs)
        floats = [x for x, v in zip(inputs, values, strict=True) if isinstance(v, np.ndarray) and v.dtype.kind == "f"]
        if tree.dtype.kind != "f" or not floats:
            continue
        found = grad(np.sum(tree), floats, disconnected_inputs="ignore")
        program = rewrite(flatten([x for x in found if hasattr(x, "op")]))
        assert _steps_of(program) == _wanted(program)


#: Functions, and what their gradients are without.
COSTS: dict[str, tuple[Any, str]] = {
    "sin": (np.sin, "sin sum"),
    "log": (np.log, "log sum"),
    "clip": (lambda x: np.clip(x, -1.0, 1.0), "minimum sum"),
    "square": (lambda x: x**2, "square sum"),
    "mean": (lambda x: np.mean(x * x, axis=1), "mean sum"),
}


@pytest.mark.parametrize("name", COSTS)
def test_the_gradient_of_a_sum_has_no_sum(name: str, be: Any) -> None:
    function, without = COSTS[name]
    x = be.ones((6, 5))
    program = rewrite(flatten([grad(np.sum(function(x)), x)]))
    made = {program.instructions[place].op.name for place in _steps_of(program)}
    assert made.isdisjoint(without.split())
    assert all("reduction(" not in kernel for kernel in source(grad(np.sum(function(x)), x)))


def test_a_greek_costs_about_a_price() -> None:
    """Of Black and Scholes's formula: its gradient by one number, in instructions."""
    be = gen_backend("cpu", jit=False)
    s, k, t, v = (be.full((64,), x) for x in (100.0, 95.0, 0.5, 0.2))

    def price() -> Any:
        d1 = (np.log(s / k) + (0.01 + v * v / 2) * t) / (v * np.sqrt(t))
        return s * normal(d1) - k * np.exp(t * -0.01) * normal(d1 - v * np.sqrt(t))

    def normal(x: Any) -> Any:
        return (1 + be.erf(x / np.sqrt(2.0).item())) / 2

    cost = price()
    delta, vega = (grad(np.sum(cost), x) for x in (s, v))
    of_price = len(rewrite(flatten([cost])).instructions)
    for greek in (delta, vega):
        program = rewrite(flatten([greek]))
        together = rewrite(flatten([cost, greek]))
        assert len(program.instructions) < 3 * of_price
        assert len(program.instructions) < len(together.instructions)
        assert "erf" not in [each.op.name for each in program.instructions if each.type.ndim == 0]


def test_a_size_that_only_a_value_tells_is_still_found(be: Any) -> None:
    """Of a concatenation, whose length is no leaf's."""
    x, y = be.array([1.0, 2.0]), be.array([3.0])
    joined = np.concatenate([x * 2, y * 3])
    np.testing.assert_array_equal(be.evaluate([np.ones_like(joined)])[0].get(), np.ones(3))
    (gx,) = be.evaluate([grad(np.sum(joined**2), x)])
    np.testing.assert_array_equal(gx.get(), [8.0, 16.0])


def test_random_numbers_are_drawn_though_only_their_shape_is_asked_for() -> None:
    first, second = (gen_backend("cpu", rng_seed=1) for _ in range(2))
    first.evaluate([np.ones_like(first.rand((4,)))])
    second.evaluate([second.rand((4,))])
    following = [be.evaluate([be.rand((4,))])[0].get() for be in (first, second)]
    np.testing.assert_array_equal(*following)


@for_each("name", [*PURE, *COMPOSED], sampled=True)
def test_equal_dimensions_have_equal_sizes(name: str) -> None:
    """Those of an op's own value, and of all that a function is composed of."""
    for example in examples_for(name):
        program = flatten([example.tree(inputs_for(example.draw()))])
        known: dict[int, int] = {ONE: 1}
        for shape, dims in zip(
            shapes_of(program, [getattr(x, "shape", ()) for x in program.leaves]), dims_of(program), strict=True
        ):
            for size, dim in zip(shape or (), dims or (), strict=bool(shape and dims)):
                assert known.setdefault(dim, size) == size, f"{example}: {dims} of {shape}"


@pytest.mark.parametrize("shape", [(3, 2), (2, 3)])
def test_the_number_of_singular_values_is_that_of_rows_or_of_columns(shape: tuple[int, int]) -> None:
    be = gen_backend("cpu", datatype=np.float64, jit=True)
    x = be.array(np.arange(6.0).reshape(shape))
    np.testing.assert_array_equal((np.ones_like(np.linalg.svdvals(x)) * 2).asnumpyarray(), [2.0, 2.0])
