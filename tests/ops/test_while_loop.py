"""Loops that end when a condition is false, against Python's own loop over the same steps."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from harness.homes import home

import optree
from optree.errors import DTypeError, OperandError, ShapeError
from optree.registry import f


@pytest.fixture
def be(home_kind: str) -> Any:
    return home(home_kind, datatype=np.float64)


def grown(state: Any, w: Any) -> Any:
    """A step of two states: a counter, and a vector that each step multiplies."""
    count, x = state
    return count + 1, f.tanh(f.dot(w, x)) + x * 1.2


@pytest.mark.parametrize("steps", [0, 1, 9])
def test_values_and_derivatives_are_those_of_the_steps_that_ran(be: Any, steps: int) -> None:
    rng = np.random.RandomState(0)
    w, x = be.array(rng.normal(size=(3, 3)) * 0.2, name="w"), be.array(rng.normal(size=3), name="x")
    count = be.array(np.int64(0))
    ran, last = be.while_loop(lambda s: s[0] < steps, lambda s: grown(s, w), (count, x), limit=40)
    state = (count, x)
    for _ in range(steps):
        state = grown(state, w)
    assert ran.item() == steps
    np.testing.assert_allclose(last.asnumpyarray(), (state[1] * 1.0).asnumpyarray(), rtol=1e-12)
    ours, theirs = (optree.grad(f.sum(f.square(y)), [x, w], disconnected_inputs="ignore") for y in (last, state[1]))
    for found, wanted in zip(be.evaluate(ours), be.evaluate(theirs), strict=True):
        np.testing.assert_allclose(found.get(), wanted.get(), rtol=1e-9)


def test_the_second_derivative_of_a_root(be: Any) -> None:
    x = be.array(2.0, name="x")
    root = be.while_loop(lambda y: f.absolute(y * y - x) > 1e-12, lambda y: (y + x / y) / 2, x, limit=100)
    slope = optree.grad(root, x)
    np.testing.assert_allclose(root.item(), np.sqrt(2), rtol=1e-12)
    np.testing.assert_allclose(slope.item(), 2**-1.5, rtol=1e-9)
    np.testing.assert_allclose(optree.grad(slope, x).item(), -0.25 * 2**-1.5, rtol=1e-6)


def test_the_limit_ends_it(be: Any) -> None:
    x = be.array(1.0)
    assert be.while_loop(lambda y: y > 0, lambda y: y + 1, x, limit=5).item() == 6
    assert be.while_loop(lambda y: y > 0, lambda y: y + 1, x, limit=0).item() == 1


def test_a_function_runs_other_numbers_of_steps_without_a_compilation(be: Any) -> None:
    x = optree.Input(optree.TensorType("float64", ()), "x")
    run = optree.function([x], be.while_loop(lambda y: y < 100.0, lambda y: y * 2.0, x, limit=50))
    assert run(3.0).item() == 192
    compiled = be.stats()["compiles"]
    assert [run(each).item() for each in (1.0, 99.0, 100.0)] == [128, 198, 100]
    assert be.stats()["compiles"] == compiled


def test_no_step_runs_after_the_last_one(be: Any) -> None:
    """One that looks up an element fails there; and a step beyond the last would give nan a derivative."""
    x = be.array([3.0, 4.0, 5.0], name="x")
    first = be.array(np.int64(0)), be.array(0.0)
    taken = lambda s: (s[0] + 1, s[1] + f.take(x, s[0], 0))  # noqa: E731
    _, total = be.while_loop(lambda s: s[0] < 3, taken, first, limit=10)
    assert total.item() == 12
    np.testing.assert_array_equal(optree.grad(total, x).asnumpyarray(), [1, 1, 1])
    y = be.array(16.0, name="y")  # the square root's slope at 0 is infinite
    last = be.while_loop(lambda s: s > 0, lambda s: f.sqrt(s - 1) - f.sqrt(f.square(f.sqrt(s - 1))), y, limit=9)
    assert last.item() == 0 and np.isfinite(optree.grad(last, y).item())


def test_each_example_of_a_batch_ends_by_itself(be: Any) -> None:
    double = optree.vmap(lambda x: be.while_loop(lambda y: y < 10, lambda y: y * 2, x, limit=20))
    np.testing.assert_array_equal(double(be.array([1.0, 3.0, 20.0])).asnumpyarray(), [16, 12, 20])


def test_random_numbers_are_others_in_each_step(be: Any) -> None:
    step = lambda s: (s[0] + 1, s[1] + be.rand(s[1]))  # noqa: E731
    first = be.array(np.int64(0)), be.zeros(1000)
    _, total = be.while_loop(lambda s: s[0] < 12, step, first, limit=15)
    values = total.asnumpyarray()
    assert abs(values.mean() - 6) < 0.2 and 0.7 < values.std() < 1.3  # of 12 equal draws: 3.5


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("steps", [4, 17])
def test_checkpoints_change_no_bit_of_a_loop_and_its_derivatives(be: Any, steps: int) -> None:
    """Of a state; those of other operands are sums over the steps, which segments add in another order."""
    x = be.array(np.linspace(0.1, 0.9, 6), name="x")

    def step(s: Any) -> Any:
        noise = be.rand(s[1])
        return s[0] + 1, s[1] * (1.3 - 0.2 * s[1]) + noise * x * 0.1

    found = []
    for checkpoints in (17, 5, 1):
        be.rng_reset()
        begun = be.array(np.int64(0)), x * 1.0
        _, last = be.while_loop(lambda s: s[0] < steps, step, begun, limit=17, checkpoints=checkpoints)
        slope = optree.grad(f.sum(f.square(last)), begun[1])
        twice = optree.grad(f.sum(f.square(slope)), [begun[1], x])
        found.append([y.get() for y in be.evaluate([last, slope, *twice])])
    for each in found[1:]:
        np.testing.assert_array_equal(each[0], found[0][0])
        for ours, wanted in zip(each, found[0], strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-12)


@pytest.mark.matrix(least=1)
def test_checkpoints_save_memory(cpu: Any) -> None:
    """100 states of 8 KB are all stored; of 80 KB, those before each 10th step, and those of one segment."""

    def peak(size: int, checkpoints: int | None = None) -> float:
        x = cpu.zeros(size, name="x")
        last = cpu.while_loop(lambda y: f.any(y < 1), lambda y: f.tanh(y) + 0.01, x, limit=100, checkpoints=checkpoints)
        run = optree.function([], optree.grad(f.sum(last), x))
        tracemalloc.start()
        run()
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used / x.nbytes

    assert peak(1000) > 100 and peak(10_000) < 60 and peak(1000, 10) < 60


def test_what_does_not_fit_is_named(be: Any) -> None:
    x = be.ones(3, name="x")
    for wrong in (-1, True, 2.0, None):
        with pytest.raises(OperandError, match="while_loop: limit, the maximum .* is an integer of 0 or more"):
            be.while_loop(lambda y: f.any(y > 0), lambda y: y, x, limit=wrong)
    with pytest.raises(OperandError, match="while_loop: checkpoints, .* is an integer of 1 or more, not 0"):
        be.while_loop(lambda y: f.any(y > 0), lambda y: y, x, limit=3, checkpoints=0)
    with pytest.raises(OperandError, match="while_loop: condition is a function of the states, not"):
        be.while_loop(x > 0, lambda y: y, x, limit=3)
    with pytest.raises(ShapeError, match=r"while_loop: the condition is one bool, not .*be\.any or be\.all makes one"):
        be.while_loop(lambda y: y > 0, lambda y: y, x, limit=3)
    with pytest.raises(DTypeError, match="while_loop: the condition is a bool, not .*a comparison makes one"):
        be.while_loop(lambda y: f.sum(y), lambda y: y, x, limit=3)
    with pytest.raises(DTypeError, match="while_loop: the step makes bool of state 0, x"):
        be.while_loop(lambda y: f.any(y > 0), lambda y: y > 0, x, limit=3)
    with pytest.raises(OperandError, match="while_loop: a state is the number 1"):
        be.while_loop(lambda y: y > 0, lambda y: y, 1, limit=3)


@pytest.mark.parametrize("checkpoints", [None, 1, 3])
def test_complex_roots_have_the_derivative_of_the_implicit_function(checkpoints: Any) -> None:
    be = home("cpu", datatype=np.float64)
    c = be.array([1 + 2j, -2 + 0.5j], "complex128")
    root = be.while_loop(
        lambda y: be.max(be.absolute(y**3 - c)) > 1e-12,
        lambda y: y - (y**3 - c) / (3 * y * y),
        be.array([1 + 1j, 0.5 + 1j], "complex128"),
        20,
        checkpoints,
    )
    y, weights = root.get(), np.array([1.0, 2.0])
    np.testing.assert_allclose(y**3, c.get(), rtol=1e-12)
    gradient = optree.grad(be.sum(be.absolute(root) ** 2 * weights), c)
    np.testing.assert_allclose(gradient.get(), 2 * y * weights / np.conj(3 * y**2), rtol=1e-8)
