"""Caches of ops' applications, from which Python's operators make nodes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from optree.cache import Cache
from optree.errors import clock
from optree.registry import APPLICATIONS
from optree.tree.types import HUGE

#: `OpTreeNode`. `optree.tree.node` sets it, which would be a circular import here: nodes are variables.
Node: Any = None

#: Maximum entries of an op's cache of applications.
INFERENCES = 4096

Operator = TypeVar("Operator", bound=Callable[..., Any])


def new_cache() -> Cache:
    """A new cache of an op's applications: operand specs -> op_dict."""
    return Cache("types of ops' values", INFERENCES)


def binary(name: str, depth: int = 1) -> Callable[[Operator], Operator]:
    """A decorator that caches a binary operator's applications, by its op's name and its operands' specs.

    The decorated function is the slow path. It runs where the op has not been applied to
    operands of these types before; most nodes are made here, without a call.

    Parameters
    ----------
    depth : int
        The frames between this function and the user's line.
    """
    applications, new, frame_at = APPLICATIONS.setdefault(name, new_cache()), tuple.__new__, sys._getframe
    now = clock
    least, most = -HUGE, HUGE

    def decorate(written: Operator) -> Operator:
        @wraps(written)
        def method(self: Any, other: Any) -> Any:
            try:
                spec = getattr(other, "spec", None)
                if spec is None:
                    spec = other.__class__
                    if spec is int and not least < other < most:
                        return written(self, other)
                op_dict = applications.get((self.spec, spec))
            except Exception:  # of a foreign object's attribute, which may raise anything
                op_dict = None
            if op_dict is None:
                return written(self, other)
            node = new(Node, (op_dict, self, other))
            node.spec = op_dict.value_spec
            frame = frame_at(depth)
            node.origin = (frame.f_code, frame.f_lasti, now[0])
            return node

        return cast(Operator, method)

    return decorate


def unary(name: str, depth: int = 1) -> Callable[[Operator], Operator]:
    """The same for a unary operator."""
    applications, new, frame_at = APPLICATIONS.setdefault(name, new_cache()), tuple.__new__, sys._getframe
    now = clock

    def decorate(written: Operator) -> Operator:
        @wraps(written)
        def method(self: Any) -> Any:
            op_dict = applications.get((self.spec,))
            if op_dict is None:
                return written(self)
            node = new(Node, (op_dict, self, None))
            node.spec = op_dict.value_spec
            frame = frame_at(depth)
            node.origin = (frame.f_code, frame.f_lasti, now[0])
            return node

        return cast(Operator, method)

    return decorate


def reflected(name: str, depth: int = 1) -> Callable[[Operator], Operator]:
    """The same for a reflected operator, whose left operand is a number."""
    applications, new, frame_at = APPLICATIONS.setdefault(name, new_cache()), tuple.__new__, sys._getframe
    now = clock
    least, most = -HUGE, HUGE

    def decorate(written: Operator) -> Operator:
        @wraps(written)
        def method(self: Any, other: Any) -> Any:
            kind = other.__class__
            op_dict = applications.get((kind, self.spec))
            if op_dict is None or (kind is int and not least < other < most):
                return written(self, other)
            node = new(Node, (op_dict, other, self))
            node.spec = op_dict.value_spec
            frame = frame_at(depth)
            node.origin = (frame.f_code, frame.f_lasti, now[0])
            return node

        return cast(Operator, method)

    return decorate
