"""Replay: assignments are lowered once for given operand specs, and run on other operands of the same specs.

A call of neon's backend is eager and builds the same trees each time. The first call
builds them over operands with strides of 0, which hold no memory, and plans them. Later
calls look the plans up by the operands' specs and run them, without building a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.cache import Cache
from optree.registry import OPS
from optree.run.updates import assignments
from optree.tree.node import signature_of
from optree.tree.tensor import Tensor
from optree.tree.variable import Variable

#: Maximum entries of the cache of calls.
CALLS = 4096

#: From a key and operands to targets and their values: pairs are written one after the other, those of a dict together.
Trees = Callable[..., Sequence[tuple[Any, Any]] | dict[Any, Any]]


class Key(tuple[Any, ...]):
    """A tuple that is hashed once: a layer's key, which each of its calls looks up."""

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash: int = super().__hash__()
            return self._hash


class Replay:
    """The recorded calls of one backend.

    `backend`: a `Backend`.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.calls = Cache("calls of neon's backend", CALLS)

    def __call__(self, name: str, trees: Trees, key: object, *operands: object) -> None:
        """Run the assignments of ``trees(key, *operands)``: pairs one after the other, those of a dict in one plan.

        `name`: the function's name, which records of writes name.
        `trees`: from the key and operands to pairs of a target and its value, or to a dict of them, whose values are
        all computed before one is written. Numbers go into trees as they come.
        `key` (hashable): all that the trees depend on besides the operands' types, which of them are the same or None,
        and which numbers are 0 or 1.
        `*operands`: tensors, floats or None.
        """
        called = [key, trees]
        for x in operands:
            if isinstance(x, Tensor):
                called.append(x.spec)
            else:
                called.append(x if x is None or x == 0 or x == 1 else float)
        same = [id(x) for x in operands if isinstance(x, Tensor)]
        if len(set(same)) < len(same):
            called.append(tuple([same.index(each) for each in same]))
        where = tuple(called)
        found = self.calls.get(where)
        if found is None:
            found = self.calls[where] = self._recorded(trees, key, operands)
        backend, (is_together, steps) = self.backend, found
        if is_together and len({id(x.root) for x in operands if isinstance(x, Tensor)}) < len(set(same)):
            backend.update(trees(key, *operands))  # in what order they are written depends on what shares memory
            return
        arrays = [x.array if isinstance(x, Tensor) else x for x in operands]
        for plan_key, order, rest, roots, targets in steps:
            plan = backend.plans.get(plan_key) or backend._plan(plan_key, roots, len(order))
            values = [arrays[i] if i is not None else backend.value_of(x) for i, x in zip(order, rest, strict=True)]
            plan.run(values, roots)
            backend.executions += 1
            for target in targets:
                operands[target].advance(name)

    def _recorded(self, trees: Trees, key: Any, operands: Sequence[Any]) -> tuple[bool, list[tuple[Any, ...]]]:
        """Whether all is one plan; and of each its key, its leaves among the operands, other trees and targets."""
        made: dict[int, Any] = {id(x): self._bare(x) for x in operands if isinstance(x, Tensor)}
        bare = [made[id(x)] if isinstance(x, Tensor) else _fresh(x) for x in operands]
        indices = {id(x): i for i, x in enumerate(bare) if x is not None}
        found = trees(key, *bare)
        is_together = isinstance(found, dict)
        groups = [list(found.items())] if isinstance(found, dict) else [[pair] for pair in found]
        steps = []
        for group in groups:
            roots = assignments(group) if is_together else [OPS["assign"].function(*group[0])]
            plan_key, leaves = signature_of(roots)
            order = [indices.get(id(leaf)) for leaf in leaves]
            rest = [leaf if i is None else None for leaf, i in zip(leaves, order, strict=True)]
            plan_key = ("replay", plan_key) if is_together else plan_key
            steps.append((plan_key, order, rest, tuple(roots), [indices[id(target)] for target, _ in group]))
        return is_together, steps

    def _bare(self, x: Tensor) -> Tensor:
        """A tensor of the same spec, whose memory is one element."""
        with self.backend.active():
            return type(x)(self.backend, np.broadcast_to(self.backend.allocate((), x.dtype), x.shape))


def _fresh(x: Variable) -> Any:
    """A copy of a number as a distinct object, so that its identity tells which operand a leaf is."""
    return x if x is None or x == 0 or x == 1 else float(str(float(x)))
