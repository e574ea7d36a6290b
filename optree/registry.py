"""Registries of ops and functions, which op definitions fill.

They are at the bottom of the imports, so that operators, gradients and backends
reach an op by name without importing the file that defines it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from optree.locks import import_later

#: The module that defines the ops which few programs need, and sets `is_complete` when it has.
REST = "optree.rest"
is_complete = False

#: The packages that define op-tree's own functions.
OWN = ("optree.ops.", "optree.numpy.", "optree.networks.")


def complete() -> None:
    """Define all ops; if another thread is about to, wait for it."""
    if not is_complete:
        import_later(REST)


class Registry(dict[Any, Any]):
    """A registry that is completed when an entry that it does not have is asked for, or all are."""

    def __missing__(self, key: object) -> Any:
        if key in self:
            return dict.__getitem__(self, key)
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self, key) or dict.__contains__(self._completed(), key)

    def get(self, key: Any, default: Any = None) -> Any:
        found = dict.get(self, key)
        if found is not None:
            return found
        return dict.__getitem__(self, key) if key in self else default

    def __len__(self) -> int:
        return dict.__len__(self._completed())

    def __iter__(self) -> Iterator[Any]:
        return dict.__iter__(self._completed())

    def keys(self) -> Any:
        return dict.keys(self._completed())

    def values(self) -> Any:
        return dict.values(self._completed())

    def items(self) -> Any:
        return dict.items(self._completed())

    def known(self) -> dict[Any, Any]:
        """The entries so far, which those of any tree's ops are among."""
        return dict(dict.items(self))

    def _completed(self) -> Registry:
        complete()
        return self


#: name -> Op class, for every op that has a name.
OPS: Registry = Registry()

#: name -> function of operands: one for each op, and the functions composed of ops.
FUNCTIONS: Registry = Registry()

#: NumPy function or ufunc -> its equivalent here.
NUMPY_FUNCTIONS: Registry = Registry()

#: name of an op with a Python operator -> its cache of applications: operand specs -> op_dict.
APPLICATIONS: dict[str, Any] = {}

#: name of a Metadiff method -> its implementation, a function of a variable.
METADIFF: dict[str, Callable[..., Any]] = {}


#: Classes of ops whose operands may be regrouped, for symbolic equality, and for the classes derived from them.
ASSOCIATIVE: set[type] = set()

_Class = TypeVar("_Class", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def associative(cls: _Class) -> _Class:
    """A decorator for a class of ops whose operands may be regrouped."""
    ASSOCIATIVE.add(cls)
    return cls


def alias(*names: str) -> Callable[[_Class], _Class]:
    """A decorator for a class of ops whose function has other names, too, such as NumPy's or neon's."""

    def register(cls: _Class) -> _Class:
        FUNCTIONS.update(dict.fromkeys(names, dict.__getitem__(FUNCTIONS, cls.name)))  # type: ignore[attr-defined]
        return cls

    return register


class FunctionNamespace:
    """`FUNCTIONS` by attribute: ``f.tanh(x)``, as gradients and composed functions write it."""

    def __init__(self) -> None:
        self.__dict__ = FUNCTIONS

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in FUNCTIONS:  # now
            return FUNCTIONS[name]  # type: ignore[no-any-return]
        raise AttributeError(f"there is no function {name!r}")


f = FunctionNamespace()


def about_to_define(module: str) -> None:
    """Define all of op-tree's ops before another module defines one, which must find their names taken."""
    if not module.startswith(OWN):
        complete()


def function(*, numpy: Any = None, names: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that registers a function composed of ops, as an op is registered.

    Parameters
    ----------
    numpy : callable, optional
        The equivalent NumPy function; called on a tensor, it builds this function's tree.
    names : tuple of str
        Aliases.
    """

    def register(composed: Callable[..., Any]) -> Callable[..., Any]:
        about_to_define(composed.__module__)
        for name in (composed.__name__, *names):
            FUNCTIONS[name] = composed
        if numpy is not None:
            NUMPY_FUNCTIONS[numpy] = composed
        return composed

    return register


def numpy_function(*functions: object) -> Callable[[_Function], _Function]:
    """A decorator for the equivalent of NumPy functions: a class of ops, or a function with their parameters."""

    def register(composed: _Function) -> _Function:
        about_to_define(composed.__module__)
        call = dict.__getitem__(FUNCTIONS, composed.name) if isinstance(composed, type) else composed  # type: ignore[attr-defined]
        NUMPY_FUNCTIONS.update(dict.fromkeys(functions, call))
        return composed

    return register
