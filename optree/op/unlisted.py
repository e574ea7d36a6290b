"""Attributes of ops that are not in `__props__`, as counters and caches: Theano and Aesara allow them.

An op's plans are for all ops of equal parameters, so an attribute on which the value depends
must be a parameter. For any other attribute there is a warning, ops that differ in it share no plan, and two of them in
one program are refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from copy import deepcopy
from functools import cached_property
from types import MemberDescriptorType
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from optree.errors import DefinitionError, brief
from optree.locks import Locked
from optree.tree.variable import caller_frame

#: Attributes of every op that are neither parameters nor state.
MARKS = ("applications", "tokens", "is_shared", "is_checked", "unlisted")


class Unlisted:
    """An op's attributes that are not in `__props__`, as they were when it was first used.

    Ops of one class with equal parameters have one object if these are equal, too.
    """

    __slots__ = ("__weakref__", "values")

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values


#: By class, parameters and a count, the objects that there are.
KNOWN: WeakValueDictionary[Any, Unlisted] = WeakValueDictionary()

#: The classes that a warning has named.
_told: WeakSet[type] = WeakSet()

_making = Locked()


def unlisted_of(op: Any) -> Unlisted | None:
    """The unlisted attributes of an op, None if there are none; a warning at a class's first."""
    listed = {*op.__props__, *MARKS}
    names = sorted(name for name in _attributes(op) if name not in listed and not name.startswith("_"))
    if not names:
        return None
    _warn(op, names)
    values, key = {name: _snapshot(getattr(op, name)) for name in names}, op.identity()
    with _making.lock:
        number = 0
        while (found := KNOWN.get((key, number))) is not None:
            if _alike(found.values, values):
                return found
            number += 1
        return KNOWN.setdefault((key, number), Unlisted(values))


def check_unlisted(ops: Iterable[Any]) -> None:
    """Raise DefinitionError for two ops of a program that differ in unlisted attributes alone."""
    first: dict[Any, Any] = {}
    for op in ops:
        if op.unlisted is None:
            continue
        other = first.setdefault(op, op)
        if other.unlisted is op.unlisted:
            continue
        mine, others = op.unlisted.values, other.unlisted.values
        name = next(name for name in (*mine, *others) if not _alike(mine.get(name), others.get(name)))
        raise DefinitionError(
            f"{type(op).__name__}: one program has two of it, of equal __props__, and their attribute {name} differs: "
            f"{brief(others.get(name))} and {brief(mine.get(name))}; {_remedy(op, (name,))}"
        )


def _warn(op: object, names: list[str]) -> None:
    if type(op) in _told:
        return
    _told.add(type(op))
    frame = caller_frame()
    warnings.warn_explicit(
        f"{type(op).__name__}: its attribute {names[0]} is not in __props__, by which ops are told apart: two that "
        f"differ in it are refused in one program; {_remedy(op, names)}",
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
    )


def _remedy(op: Any, names: Iterable[str]) -> str:
    (name, *_) = names
    return (
        f"write __props__ = {(*op.__props__, *names)!r}, or self._{name} if it follows from the parameters or is a "
        "counter or a cache"
    )


def _attributes(op: object) -> set[str]:
    """The names of an op's own attributes and slots, without those of cached properties."""
    names = tuple(vars(op))  # at once: other threads may use the op for the first time meanwhile
    own = {name for name in names if not isinstance(getattr(type(op), name, None), cached_property)}
    members = {name: each for kind in type(op).__mro__ for name, each in tuple(vars(kind).items())}
    return own.union(x for x in members if isinstance(members[x], MemberDescriptorType) and hasattr(op, x))


def _snapshot(value: object) -> Any:
    """A value as it is now: mutable containers and arrays are copied."""
    return deepcopy(value) if isinstance(value, list | dict | set | bytearray | np.ndarray) else value


def _alike(x: Any, y: Any) -> bool:
    """Whether two values are equal for certain."""
    if x is y:
        return True
    if type(x) is not type(y):
        return False
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(_alike(x[name], y[name]) for name in x)
    try:
        return bool(np.array_equal(x, y)) and x.dtype == y.dtype if isinstance(x, np.ndarray) else bool(x == y)
    except Exception:  # such as an operand's, which has no truth value
        return False
