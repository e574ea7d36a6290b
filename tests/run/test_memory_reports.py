"""Reports of memory: what a plan needs, before it runs, and what recomputation saves of it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import optree
from backends import gen_backend
from backends.execution.memory_planner import slots_of
from optree import TensorType, checkpoint
from optree.errors import OperandError

ROWS, UNITS = 2048, 64
ONE = ROWS * UNITS * 4  # the bytes of one value


def step(be: Any, recomputes: bool, **options: Any) -> Any:
    """The gradient of 16 layers, of which each keeps its value; in parts of 4, if they are recomputed."""
    w, x = be.ones((UNITS, UNITS), name="w"), TensorType("float32", (None, UNITS))("x")

    def part(y: Any) -> Any:
        for _ in range(4):
            y = be.tanh(be.dot(y, w))
        return y

    y = x
    for _ in range(4):
        y = (checkpoint(part) if recomputes else part)(y)
    return optree.function([x], optree.grad(be.sum(be.square(y)), w), name="step", **options)


@pytest.mark.parametrize("jit", [True, False])
def test_the_report_says_what_a_call_takes(jit: bool, capsys: Any) -> None:
    be = gen_backend("cpu", jit=jit)
    found = {}
    for recomputes in (False, True):
        run = step(be, recomputes)
        report = run.memory(np.ones((ROWS, UNITS), "f"))
        found[recomputes] = report
        assert 0 <= report.tensors - (ONE + UNITS * UNITS * 4) < 64  # numbers, beside the two
        assert sum(held.bytes for held in report.held) == report.peak
        tracemalloc.start()
        run(be.ones((ROWS, UNITS)))
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert report.peak <= used * 1.05
        if jit:
            assert used <= report.kept * 1.1 + 4 * ONE
    assert found[True].peak < 0.6 * found[False].peak and found[True].kept < 0.7 * found[False].kept
    assert "tanh (None, 64) float32, built at test_memory_reports.py" in str(found[False])


def test_a_function_reports_for_each_set_of_sizes_once(capsys: Any) -> None:
    be = gen_backend("cpu")
    run = step(be, False, memory="report")
    assert not capsys.readouterr().out
    for rows in (8, 8, 16):
        run(np.ones((rows, UNITS), "f"))
    assert capsys.readouterr().out.count("step: ") == 2
    w = be.ones((8, 8))
    optree.function([], w * 2 + 1, memory="report")
    assert "256 bytes in tensors and arguments, 256 bytes" in capsys.readouterr().out


def test_where_there_are_no_steps_of_a_backend_there_is_no_report() -> None:
    be = gen_backend("cpu")
    with pytest.raises(OperandError, match="in the default mode"):
        optree.function([], be.ones(2) + 1, mode="reference").memory()
    with pytest.raises(OperandError, match="memory is 'report'"):
        optree.function([], be.ones(2) + 1, memory="all")


def test_values_take_the_memory_that_fits_them() -> None:
    be = gen_backend("cpu", jit=True)
    small, large = be.ones(8), be.ones(4096)
    tree = be.sum(be.exp(small)) + be.sum(be.exp(large)) + be.sum(be.sin(small)) + be.sum(be.sin(large))
    plan = optree.function([], be.sort(large * 2) * be.sum(be.sort(small * 2)) + tree).planned()
    sizes = [1] * (len(plan.program.leaves) + len(plan.program.instructions))
    assert set(plan.slots(sizes)) == set(plan.slots([0] * len(sizes)))
    assert slots_of is plan.slots.func  # type: ignore[attr-defined]
