"""Iterative traversals and topological orders; recursion would overflow on deep trees."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class Finished:
    """A node on a traversal's stack whose operands have been visited."""

    def __init__(self, node: Any) -> None:
        self.node = node


def post_order(roots: Iterable[Any], inputs_of: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """Every distinct object reached from the roots, by identity, each after its inputs."""
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


def in_order(waits: Sequence[Iterable[int]], ranks: Sequence[int]) -> list[int]:
    """Numbers in topological order, each after those that it waits for, ties broken by rank.

    Cycles, and what depends on them, are left out.
    """
    followers: list[list[int]] = [[] for _ in waits]
    left = []
    for number, others in enumerate(map(set, waits)):
        left.append(len(others))
        for other in others:
            followers[other].append(number)
    ready = [(ranks[number], number) for number, count in enumerate(left) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for follower in followers[number]:
            left[follower] -= 1
            if not left[follower]:
                heapq.heappush(ready, (ranks[follower], follower))
    return order
