"""Schedules: the same numbers on the host and in a tree, at the points that their definitions say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import optree
from backends import gen_backend
from optree.errors import ParameterError
from optree.train import schedules

ALL = {
    "constant": schedules.constant(0.1),
    "step": schedules.step(0.1, 10, 0.5),
    "exponential": schedules.exponential(0.1, 0.9, 3),
    "linear": schedules.linear(0.1, 20, 0.01),
    "cosine": schedules.cosine(0.1, 20, 0.01),
    "warm-up": schedules.warmup(schedules.cosine(0.1, 20), 5, 0.1),
    "warm-up of a number": schedules.warmup(0.1, 5),
    "one cycle": schedules.one_cycle(0.1, 25),
    "table": schedules.table({0: 0.1, 7: 0.05, 20: 0.001}),
}


@pytest.mark.parametrize("name", ALL)
def test_a_tree_gives_what_the_host_does(name: str) -> None:
    be = gen_backend("cpu")
    counter = be.zeros((), dtype="float64", name="counter")
    value = ALL[name](counter)
    run = optree.function([], value if isinstance(value, optree.Variable) else be.ones(()) * value)
    for now in range(30):
        counter.fill(now)
        assert run().item() == pytest.approx(ALL[name](now), rel=1e-7, abs=1e-12)


def test_the_values_are_those_of_the_definitions() -> None:
    def of(name: str, *steps: int) -> Any:
        return pytest.approx([ALL[name](now) for now in steps], abs=1e-12)

    assert of("step", 0, 9, 10, 29) == [0.1, 0.1, 0.05, 0.025]
    assert of("exponential", 0, 3, 1) == [0.1, 0.09, 0.1 * 0.9 ** (1 / 3)]
    assert of("linear", 0, 10, 20, 99) == [0.1, 0.055, 0.01, 0.01]
    assert of("cosine", 0, 10, 20, 99) == [0.1, 0.055, 0.01, 0.01]
    assert of("warm-up", 0, 3, 5, 15, 25) == [0.01, 0.1 * (0.1 + 0.9 * 3 / 5), 0.1, 0.05, 0.0]
    assert of("warm-up of a number", 0, 2, 5, 50) == [0.0, 0.04, 0.1, 0.1]
    assert of("one cycle", 0, 25, 60) == [0.004, 0.1 * 4e-6, 0.1 * 4e-6]
    assert max(ALL["one cycle"](now) for now in np.linspace(0, 25, 1001)) == pytest.approx(0.1, rel=1e-4)
    assert ALL["one cycle"](7.5) == pytest.approx(0.1)
    assert of("table", 0, 6, 7, 19, 20) == [0.1, 0.1, 0.05, 0.05, 0.001]
    assert math.isclose(schedules.cosine(1.0, 4)(1), (1 + math.cos(math.pi / 4)) / 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: schedules.step(0.1, 0),
        lambda: schedules.exponential(0.1, 0.9, -1),
        lambda: schedules.cosine(0.1, 2.5),  # type: ignore[arg-type]
        lambda: schedules.warmup(0.1, True),
        lambda: schedules.one_cycle(0.1, 1),
        lambda: schedules.one_cycle(0.1, 10, rise=1.0),
        lambda: schedules.table({5: 0.1}),
        lambda: schedules.step(0.1, 5, factor=0.0),  # of which the logarithm is taken on the device
        lambda: schedules.exponential(0.1, -0.5),
        lambda: schedules.exponential(0.1, "half"),  # type: ignore[arg-type]
        lambda: schedules.cosine("0.1", 10),  # type: ignore[arg-type]
        lambda: schedules.linear(0.1, 10, None),  # type: ignore[arg-type]
        lambda: schedules.warmup("0.1", 10),
        lambda: schedules.one_cycle("0.1", 10),  # type: ignore[arg-type]
        lambda: schedules.table({0: "0.1"}),  # type: ignore[dict-item]
        lambda: schedules.constant([0.1]),
    ],
)
def test_impossible_ones_are_refused(make: Any) -> None:
    with pytest.raises(ParameterError):
        make()
