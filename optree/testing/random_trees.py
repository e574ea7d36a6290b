"""Random trees: what programs that nobody thought of are tested with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.errors import OptreeError
from optree.ops.op import Op
from optree.ops.traits import AssociativeOperator, ElementwiseOperator, ReductionOperator
from optree.registry import OPS
from optree.tree.variable import Variable

#: Picks one of several: a random generator's choice, or a Hypothesis draw, which can then shrink the tree.
Choose = Callable[[Sequence[Any]], Any]

#: A step whose value has more elements than this is left out, so that trees stay quick to run.
ELEMENTS = 256


def random_tree(
    choose: Choose,
    leaves: Sequence[Variable],
    size: int = 10,
    ops: Sequence[str] | None = None,
    accepts: Callable[[Op, list[Any]], bool] | None = None,
) -> Any:
    """A tree of random ops over leaves, in which subtrees stand in several places.

    Parameters
    ----------
    choose : callable
        Picks one of a sequence. All that is random comes from it:
        ``random.Random(seed).choice``, or in a Hypothesis test
        ``lambda options: data.draw(st.sampled_from(options))``. The simplest
        options come first.
    leaves : sequence of Variable
        What the ops are applied to; at least one.
    size : int
        How many ops, at the most: one that refuses its operands is left out.
    ops : sequence of str, optional
        The names to choose from; by default `usable_ops`.
    accepts : callable, optional
        Told the op and its operands, says whether it may be applied to them.

    Returns
    -------
    Variable
        The last node built; each is applied to the one before it and to others
        or leaves.

    Examples
    --------
    >>> import random
    >>> from backends import gen_backend
    >>> be = gen_backend("cpu")
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
        if node.size <= ELEMENTS:
            last = node
            made.append(node)
    return last


def usable_ops() -> list[str]:
    """The ops that `random_tree` can give operands to: elementwise ones, reductions, and those of shapes."""
    return [
        name
        for name, cls in OPS.items()
        if not cls.destroy_map
        and (name in _PROPS or issubclass(cls, ReductionOperator) or (_is_plain(cls) and not cls.prop_names()))
    ]


def _is_plain(cls: type[Op]) -> bool:
    return issubclass(cls, ElementwiseOperator)


def _operands(choose: Choose, cls: type[Op], last: Any, made: Sequence[Any]) -> list[Any]:
    """The node before, in a place of its own among others."""
    count = choose((2, 3)) if issubclass(cls, AssociativeOperator) else len(cls.operands or "xy")
    operands = [last] + [choose([last, *made]) for _ in range(count - 1)]
    place = choose(range(count))
    operands[0], operands[place] = operands[place], operands[0]
    return operands


def _props(choose: Choose, cls: type[Op], x: Variable) -> dict[str, Any]:
    """Parameters that fit an operand, or nearly: a refusal is a step left out."""
    if cls.name in _PROPS:
        return _PROPS[cls.name](choose, x)
    if issubclass(cls, ReductionOperator):
        return {"axis": choose(_axes(x)), "keepdims": choose((True, False))}
    return {}


def _axes(x: Variable) -> list[Any]:
    """No axis, each, and each pair of two."""
    single = [*range(x.ndim), *range(-x.ndim, 0)]
    return [None, *single, *((i, j) for i in range(x.ndim) for j in range(i + 1, x.ndim))]


def _axis(choose: Choose, x: Variable) -> dict[str, Any]:
    return {"axis": choose(range(-x.ndim, max(x.ndim, 1)))}


def _order(choose: Choose, x: Variable) -> dict[str, Any]:
    rest, order = list(range(x.ndim)), []
    while rest:
        order.append(rest.pop(choose(range(len(rest)))))
    return {"axes": tuple(order)}


def _newshape(choose: Choose, x: Variable) -> dict[str, Any]:
    return {"newshape": choose([(-1,), x.shape[::-1], (1, -1), (-1, 1), (x.size,), *([()] if x.size == 1 else [])])}


def _index(choose: Choose, x: Variable) -> dict[str, Any]:
    entries = (
        slice(None),
        slice(1, None),
        slice(None, None, -1),
        slice(None, None, 2),
        slice(-1, None, -2),
        None,
        0,
        -1,
    )
    chosen = [choose(entries) for _ in range(x.ndim)]
    return {"index": tuple((e.start, e.stop, e.step) if isinstance(e, slice) else e for e in chosen)}


#: For ops whose parameters depend on the operand: how to choose them.
_PROPS: dict[str | None, Callable[[Choose, Variable], dict[str, Any]]] = {
    "transpose": _order,
    "reshape": _newshape,
    "expand_dims": lambda choose, x: {"axis": choose(range(-x.ndim - 1, x.ndim + 1))},
    "squeeze": lambda choose, x: {"axis": choose([None, *(i for i, n in enumerate(x.shape) if n == 1)])},
    "flip": lambda choose, x: {"axis": choose(_axes(x))},
    "broadcast_to": lambda choose, x: {"shape": (choose((1, 2)), *x.shape)},
    "slice": _index,
    "concatenate": _axis,
    "repeat": lambda choose, x: {"repeats": choose((1, 2)), **_axis(choose, x)},
    "pad": lambda choose, x: {"pad_width": choose((0, 1, (1, 0)))},
    "softmax": lambda choose, x: {"axis": choose(_axes(x))},
    "log_softmax": lambda choose, x: {"axis": choose(_axes(x))},
    "cast": lambda choose, x: {"dtype": np.dtype(choose(("float64", "float32")))},
    "matmul": lambda choose, x: {},
    "dot": lambda choose, x: {},
    "outer": lambda choose, x: {},
    "broadcast_like": lambda choose, x: {},
    "reshape_like": lambda choose, x: {},
}
