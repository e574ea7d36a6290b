"""Iterative traversals and orders, as recursion would overflow on deep trees; and the garbage collector's pause."""

from __future__ import annotations

import gc
import heapq
import os
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


def uncollected(function: _Function) -> _Function:
    """A decorator for what builds from large trees: the garbage collector is paused meanwhile.

    What is built lives on. The collector would find no garbage, and visit every node and instruction again and again:
    half of the time of lowering a long tree.
    """

    @wraps(function)
    def paused(*args: Any, **kwargs: Any) -> Any:
        global _is_paused
        if not gc.isenabled():
            return function(*args, **kwargs)
        try:
            _is_paused = True
            gc.disable()
            return function(*args, **kwargs)
        finally:
            gc.enable()
            _is_paused = False

    return cast(_Function, paused)


_is_paused = False


def _resume() -> None:
    """Let the collector run in a child that was forked while another thread had paused it."""
    if _is_paused:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume)


#: The parts of a node, its op_dict, left and right operand: what iterating over it gives, which warns users.
parts_of = tuple.__iter__

#: On a traversal's stack, the mark of a node below it whose operands have been visited.
FINISHED = object()


def post_order(roots: Iterable[Any], inputs_of: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """Every distinct object reached from the roots, by identity, each after its inputs."""
    order: list[Any] = []
    done: set[int] = set()
    pending: list[Any] = list(reversed(list(roots)))
    while pending:
        entry = pending.pop()
        if entry is FINISHED:
            order.append(pending.pop())
        elif id(entry) not in done:
            done.add(id(entry))
            inputs = list(inputs_of(entry))
            if inputs:
                pending += (entry, FINISHED, *reversed(inputs))
            else:
                order.append(entry)
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
