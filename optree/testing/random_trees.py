"""Random trees, for property-based tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from optree.errors import OptreeError
from optree.op.examples import examples_in
from optree.op.op import Op
from optree.op.traits import AssociativeOperator, Choose, ElementwiseOperator
from optree.registry import OPS
from optree.tree.variable import Variable

#: The default maximum of a node's elements: trees run quickly.
ELEMENTS = 256


def random_tree(
    choose: Choose,
    leaves: Sequence[Variable],
    size: int = 10,
    ops: Sequence[str] | None = None,
    accepts: Callable[[Op, list[Any]], bool] | None = None,
    elements: int = ELEMENTS,
) -> Any:
    """A tree of random ops over leaves, with shared subtrees.

    Parameters
    ----------
    choose : callable
        Picks one of a sequence, and is the only source of randomness:
        ``random.Random(seed).choice``, or in a Hypothesis test
        ``lambda options: data.draw(st.sampled_from(options))``. The simplest
        options come first.
    leaves : sequence of Variable
        The leaves; at least one.
    size : int
        The maximum number of ops: one that refuses its operands is left out.
    ops : sequence of str, optional
        The names to choose from; by default `usable_ops`.
    accepts : callable, optional
        Called with an op and its operands; whether to apply it.
    elements : int
        The maximum number of elements of a node.

    Returns
    -------
    Variable
        The last node built; each has the node before it as an operand.

    Examples
    --------
    >>> import random
    >>> tree = random_tree(random.Random(1).choice, [be.ones((2, 3))], size=3)
    """
    names = list(usable_ops() if ops is None else ops)
    made: list[Any] = list(leaves)
    last = choose(made)
    for _ in range(size):
        cls = OPS[choose(names)]
        operands = _operands(choose, cls, last, made)
        op = cls.make(**_props(choose, cls, last))
        if accepts is not None and not accepts(op, operands):
            continue
        try:
            node = op(*operands)
        except OptreeError:
            continue
        if node.size <= elements:
            last = node
            made.append(node)
    return last


def usable_ops() -> list[str]:
    """The ops that `random_tree` can apply: elementwise ones of floats without parameters, or with `random_props`."""
    return [
        name
        for name, cls in OPS.items()
        if not cls.destroy_map
        and examples_in(cls).takes_floats
        and (examples_in(cls).random_props or (issubclass(cls, ElementwiseOperator) and not cls.prop_names()))
    ]


def _operands(choose: Choose, cls: type[Op], last: object, made: Sequence[Any]) -> list[Any]:
    """Operands: the previous node, at a random position, and others."""
    count = choose((2, 3)) if issubclass(cls, AssociativeOperator) else len(cls.operands or "xy")
    operands = [last] + [choose([last, *made]) for _ in range(count - 1)]
    i = choose(range(count))
    operands[0], operands[i] = operands[i], operands[0]
    return operands


def _props(choose: Choose, cls: type[Op], x: Variable) -> dict[str, Any]:
    """Parameters that mostly fit an operand; if the op refuses them, it is left out."""
    random_props = examples_in(cls).random_props
    return random_props(choose, x) if random_props else {}
