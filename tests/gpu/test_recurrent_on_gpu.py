"""Recurrent layers on a GPU: what each step launches in the CUDA graph of a function, and the values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.rig.install import Rig

from backends import gen_backend
from optree import function, grad

#: Of each layer its gates, and the kernels, products and copies of a step, forward and in training. Its states are
#: copied where they are outputs, too; the gates' derivatives are joined by a copy each.
LAYERS = {
    "rnn": (1, (1, 1, 1), (2, 2, 1)),
    "gru": (3, (1, 1, 1), (2, 2, 7)),
    "lstm": (4, (1, 1, 1), (2, 2, 5)),
}

BATCH, INPUTS, UNITS = 3, 5, 4


def _functions(be: Any, kind: str, length: int) -> list[Any]:
    rng, gates = np.random.RandomState(0), LAYERS[kind][0]
    shapes = (length, BATCH, INPUTS), (INPUTS, gates * UNITS), (UNITS, gates * UNITS), (gates * UNITS,)
    x, *weights = (be.array(rng.normal(size=shape), "float64") for shape in shapes)
    y = getattr(be, kind)(x, *weights)
    y = y[0] if isinstance(y, tuple) else y
    cost = be.sum(y * y)
    return [function([], [be.sum(y)]), function([], [cost, *grad(cost, weights)])]


def _captured(be: Any, run: Any, on: Rig) -> np.ndarray:
    """The kernels, products and other nodes, which are copies, of a function's graph."""
    run()
    kernels, products = be.kernels.counts.launches, len(on.desk.products)
    nodes, end = list[Any](), on.machine.end
    on.machine.end = lambda handle: nodes.extend((graph := end(handle)).nodes) or graph
    run()
    del on.machine.end
    kernels, products = be.kernels.counts.launches - kernels, len(on.desk.products) - products
    return np.array([kernels, products, len(nodes) - kernels - products])


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_step_is_a_product_a_kernel_and_few_copies(kind: str, gpu: Any, simulated: Rig) -> None:
    cpu = gen_backend("cpu", jit=False)
    counts = [[_captured(gpu, run, simulated) for run in _functions(gpu, kind, length)] for length in (4, 8)]
    per_step = [tuple((long - short) / 4) for short, long in zip(*counts, strict=True)]
    assert per_step == list(LAYERS[kind][1:])
    for ours, theirs in zip(_functions(gpu, kind, 5), _functions(cpu, kind, 5), strict=True):
        for _ in range(3):
            for got, wanted in zip(ours(), theirs(), strict=True):
                np.testing.assert_allclose(got.get(), wanted.get(), rtol=1e-9, atol=1e-12)
