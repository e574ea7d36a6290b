"""Overhead of trees beyond their NumPy work: building a node, and running an assignment again.

Every figure is a ratio of times measured side by side in one process (`timing`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from timing import options_of, report, rounds_of

import optree
from backends import gen_backend
from backends.cpu.backend import CALL, WORK

ELEMENTS = 1024


class Node(tuple):
    """The minimal node: a tuple of a dictionary and two operands."""


def build(be: Any, rounds: int, calls: int) -> None:
    """Build one node, compared with building its tuple and dictionary alone."""
    x, y = be.ones(ELEMENTS, name="x"), be.ones(ELEMENTS, name="y")
    new, make, shape = tuple.__new__, optree.OpTreeNode.build, x.shape

    def bare() -> Any:
        return new(Node, ({"shape": shape, "op": "add"}, x, y))

    assert (x + y)[0] == bare()[0]
    ways = [bare, lambda: x + y, lambda: x + 2.0, lambda: be.sin(x), lambda: make("add", x, y)]
    names = ["tuple.__new__ and a dict", "x + y", "x + 2.0", "be.sin(x)", 'OpTreeNode.build("add", x, y)']
    report("Building one node", names, rounds_of(ways, rounds, calls))


def chain(m: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Four operations on four arrays; `m` has the functions."""
    return a * b + c * m.sin(d)


def activations(m: Any, x: Any) -> Any:
    """A GELU and a softplus: 16 operations on one array."""
    gelu = 0.5 * x * (1.0 + m.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
    return gelu + m.log1p(m.exp(-abs(x))) + m.maximum(x, 0.0)


def assign(be: Any, title: str, expression: Any, count: int, elements: int, options: Any) -> None:
    """Run an assignment repeatedly, compared with the same expression in NumPy."""
    rng = np.random.RandomState(0)
    arrays = [rng.normal(size=elements).astype(np.float32) for _ in range(count)]
    tensors = [be.array(values) for values in arrays]
    z, out = be.empty(elements, name="z"), np.empty(elements, np.float32)
    kept = expression(be, *tensors)
    whole = optree.OpTreeNode.build("assign", z, kept)
    whole_function = optree.function([], updates={z: kept})

    def eager() -> None:
        out[:] = expression(np, *arrays)

    def rebuilt() -> None:
        z[:] = expression(be, *tensors)

    def kept_tree() -> None:
        z[:] = kept

    ways = [eager, rebuilt, kept_tree, whole.execute, whole_function]
    for way in ways:
        for _ in range(WORK // (4 * max(elements, CALL)) + 2):  # until kernels have been compiled
            way()
        if way is not eager:
            np.testing.assert_allclose(z.get(), out, rtol=1e-5, atol=1e-6)
            z.fill(0)
    compiled = be.stats()["compiles"], be.stats()["kernels"]["misses"]
    calls = max(1, options.calls * ELEMENTS // elements)
    times = rounds_of(ways, options.rounds, calls)
    assert (be.stats()["compiles"], be.stats()["kernels"]["misses"]) == compiled, "an assignment compiled anew"
    names = ["NumPy", "z[:] = the expression, built anew", "z[:] = kept tree", "kept assignment .execute()", "function"]
    report(f"z[:] = {title} with {elements:,} float32 elements", names, times)


def main(arguments: list[str] | None = None) -> None:
    """Print the ratios."""
    options = options_of(__doc__, rounds=400, calls=50, arguments=arguments)
    be = gen_backend("cpu")
    build(be, options.rounds, options.calls)
    for elements in (ELEMENTS, 64 * ELEMENTS):
        assign(be, "a*b + c*sin(d)", chain, 4, elements, options)
        assign(be, "GELU + softplus", activations, 1, elements, options)


if __name__ == "__main__":
    main()
