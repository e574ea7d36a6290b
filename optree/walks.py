"""Walks over trees with a stack of their own: depth is data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Finished:
    """A node on a walk's stack whose operands have been visited."""

    def __init__(self, node: Any) -> None:
        self.node = node


def post_order(roots: Iterable[Any], inputs_of: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """Every distinct object reached from the roots, each after its inputs.

    Objects are distinct by identity. The walk is iterative and visits each once.
    """
    order: list[Any] = []
    done: set[int] = set()
    pending: list[Any] = list(reversed(list(roots)))
    while pending:
        entry = pending.pop()
        if isinstance(entry, Finished):
            order.append(entry.node)
        elif id(entry) not in done:
            done.add(id(entry))
            pending.append(Finished(entry))
            pending.extend(reversed(list(inputs_of(entry))))
    return order
