"""What a tree costs beyond its NumPy work: building a node, and running an assignment again.

Every figure is a ratio of times measured side by side in one process (`timing`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from timing import options_of, report, rounds_of

import optree
from backends import gen_backend

ELEMENTS = 1024


class Node(tuple):
    """What a node is at the least: a tuple of a dictionary and two operands."""


def build(be: Any, rounds: int, calls: int) -> None:
    """One node, against the tuple and the dictionary that it cannot do without."""
    x, y = be.ones(ELEMENTS, name="x"), be.ones(ELEMENTS, name="y")
    new, make, shape = tuple.__new__, optree.OpTreeNode.build, x.shape

    def bare() -> Any:
        return new(Node, ({"shape": shape, "op": "add"}, x, y))

    assert (x + y)[0] == bare()[0]
    ways = [bare, lambda: x + y, lambda: x + 2.0, lambda: be.sin(x), lambda: make("add", x, y)]
    names = ["tuple.__new__ and a dict", "x + y", "x + 2.0", "be.sin(x)", 'OpTreeNode.build("add", x, y)']
    report("Building one node", names, rounds_of(ways, rounds, calls))


def assign(be: Any, elements: int, rounds: int, calls: int) -> None:
    """The same assignment again and again, against the same expression in plain NumPy."""
    rng = np.random.RandomState(0)
    arrays = [rng.normal(size=elements).astype(np.float32) for _ in range(4)]
    a, b, c, d = (be.array(values, name=name) for values, name in zip(arrays, "abcd", strict=True))
    p, q, r, s = arrays
    z, out = be.empty(elements, name="z"), np.empty(elements, np.float32)
    product, sine = np.empty(elements, np.float32), np.empty(elements, np.float32)
    kept = a * b + c * be.sin(d)
    whole = optree.OpTreeNode.build("assign", z, kept)

    def eager() -> None:
        out[:] = p * q + r * np.sin(s)

    def buffered() -> None:
        np.multiply(p, q, out=product)
        np.sin(s, out=sine)
        np.multiply(r, sine, out=sine)
        np.add(product, sine, out=out)

    def rebuilt() -> None:
        z[:] = a * b + c * be.sin(d)

    def kept_tree() -> None:
        z[:] = kept

    ways = [eager, buffered, rebuilt, kept_tree, whole.execute]
    for way in ways:
        z.fill(0)
        way()
        if way not in (eager, buffered):
            np.testing.assert_array_equal(z.get(), out)
    compiled = be.stats()["compiles"]
    times = rounds_of(ways, rounds, calls)
    assert be.stats()["compiles"] == compiled, "an assignment compiled anew"
    names = [
        "NumPy: out[:] = p * q + r * np.sin(s)",
        "NumPy with out= everywhere",
        "z[:] = a * b + c * be.sin(d)",
        "z[:] = kept tree",
        "kept assignment .execute()",
    ]
    report(f"z[:] = a*b + c*sin(d) with {elements:,} float32 elements", names, times)


def main(arguments: list[str] | None = None) -> None:
    """Print the ratios."""
    options = options_of(__doc__, rounds=400, calls=50, arguments=arguments)
    be = gen_backend("cpu")
    build(be, options.rounds, options.calls)
    for elements in (ELEMENTS, 64 * ELEMENTS):
        assign(be, elements, options.rounds, max(1, options.calls * ELEMENTS // elements))


if __name__ == "__main__":
    main()
