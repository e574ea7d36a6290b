"""Memory that runs out under load, by CuPy on simulated devices: each allocation of a training step fails once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
from harness.rig.install import Rig, refusing, rig

from backends import gen_backend
from optree import Input, TensorType, function, grad
from optree.errors import DeviceMemoryError

VALUES = np.random.RandomState(0).standard_normal((4, 6)).astype(np.float32)
LABELS = np.array([0, 2, 1, 2])


class Step:
    """A step of training: products, an embedding by indices, and updates of four tensors."""

    def __init__(self) -> None:
        be = self.be = gen_backend("gpu", rng_seed=3)
        draw = np.random.RandomState(1).standard_normal
        self.tensors = [be.array(draw(shape).astype(np.float32)) for shape in ((6, 5), (3, 5), (5, 3))]
        self.tensors += [be.zeros((6, 5))]
        w, table, v, velocity = self.tensors
        x, labels = Input(TensorType("float32", (None, None)), "x"), Input(TensorType("int64", (None,)), "labels")
        hidden = be.tanh(be.dot(x, w) + be.take(table, labels, axis=0))
        cost = -be.mean(be.onehot(labels, 3) * be.log(be.softmax(be.dot(hidden, v), axis=1)))
        dw, dtable, dv = grad(cost, [w, table, v])
        moved = velocity * 0.9 - dw * 0.1
        updates = {velocity: moved, w: w + moved, table: table - 0.1 * dtable, v: v - 0.1 * dv}
        self.call = function([x, labels], cost, updates=updates)

    def __call__(self) -> Any:
        return self.call(VALUES, LABELS).get()

    def state(self) -> list[np.ndarray]:
        """The values of all tensors."""
        return [tensor.get() for tensor in self.tensors]


#: Calls of a step in a test: two before one that fails, and one after it.
CALLS = 4

#: The kinds of allocation.
KINDS = ("array", "cudaHostAlloc", "cuModuleLoadData", "cuLaunchKernel", "cudaGraphInstantiate")


@cache
def undisturbed() -> tuple[list[Any], list[list[np.ndarray]], list[Counter[str]]]:
    """The cost of each call of a step, the state after it, and its allocations of each kind."""
    first, step = Step(), Step()
    for _ in range(CALLS):  # loads modules that later steps find loaded
        first()
    costs, states, counts = list[Any](), list[list[np.ndarray]](), list[Counter[str]]()
    for _ in range(CALLS):
        with failing(rig(), "", 0) as seen:
            costs.append(step())
        states.append(step.state())
        counts.append(Counter(seen))
    return costs, states, counts


@contextmanager
def failing(on: Rig, kind: str, number: int) -> Iterator[list[str]]:
    """Let one allocation of a kind fail, by its number; the kinds of all of them so far."""
    seen: list[str] = []

    def counted(name: str) -> bool:
        seen.append(name)
        return name == kind and seen.count(kind) == number + 1

    class Hook(on.cupy.cuda.MemoryHook):  # type: ignore[misc, name-defined]
        name = "Failing"

        def malloc_preprocess(self, **given: Any) -> None:
            if counted("array"):
                raise on.cupy.cuda.memory.OutOfMemoryError(given["size"], 0)

    with refusing(on, lambda name: 2 * counted(name)), Hook():
        yield seen


def check_equal(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.matrix(least=4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [0, 1, 2], ids=["first call", "capture", "replay"])
def test_a_step_that_runs_out_of_memory_leaves_all_as_it_was(on: Rig, kind: str, before: int, sample: Any) -> None:
    costs, states, counts = undisturbed()
    count, failures, halves = counts[before][kind], 0, 0
    is_pooled = kind == "cudaHostAlloc"  # CuPy takes what an earlier step gave back, or asks a second time
    for number in sample(list(range(count)), least=2):
        on.cupy.get_default_memory_pool().free_all_blocks()
        step = Step()
        for _ in range(before):
            step()
        state, is_raised = step.state(), False
        with failing(on, kind, number) as seen:
            try:
                cost = step()
            except DeviceMemoryError as error:
                is_raised = "are free" in str(error)
                assert is_raised, error
        assert seen.count(kind) > number or is_pooled, f"{kind} {number} is not asked for"
        if is_raised:
            failures += 1
            if kind != "cuLaunchKernel":  # whose memory cannot be had before
                check_equal(step.state(), state)
            elif any((x != y).any() for x, y in zip(step.state(), state, strict=True)):
                halves += 1
                step()
                continue
            cost = step()
        for following in range(before, before + 2):
            check_equal([cost, *step.state()], [costs[following], *states[following]])
            cost = step()
    assert failures or before or not count or is_pooled, f"none of {count} allocations was missed"
    assert halves <= 3, "only a launch between two of the updates"
