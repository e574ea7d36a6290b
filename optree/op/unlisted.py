"""Attributes of ops that are not in `__props__`, as counters and caches: Theano and Aesara allow them.

The value may depend on any of them. So an op that has one shares no plan with equal ops, and a warning says so.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from types import MemberDescriptorType
from typing import Any
from weakref import WeakSet

from optree.tree.variable import caller_frame

#: Attributes of every op that are neither parameters nor state.
MARKS = ("applications", "tokens", "is_shared", "is_checked", "alone")

#: The classes that a warning has named.
_told: WeakSet[type] = WeakSet()


def has_unlisted(op: Any) -> bool:
    """Whether an op has unlisted attributes; a warning at a class's first."""
    own, props = tuple(vars(op)), op.__props__
    members = {name: each for kind in type(op).__mro__ for name, each in tuple(vars(kind).items())}
    found = {name for name in own if not isinstance(members.get(name), cached_property)}
    found.update(x for x in members if isinstance(members[x], MemberDescriptorType) and hasattr(op, x))
    names = sorted(name for name in found if not (name in MARKS or name[0] == "_" or name in props))
    if names and type(op) not in _told:
        _told.add(type(op))
        frame = caller_frame()
        warnings.warn_explicit(
            f"{type(op).__name__}: its attribute {names[0]} is not in __props__, so that each such op is compiled "
            f"by itself; write __props__ = {(*props, *names)!r}, or self._{names[0]} if "
            "it follows from the parameters or is a counter or a cache",
            UserWarning,
            frame.f_code.co_filename,
            frame.f_lineno,
        )
    return bool(names)
