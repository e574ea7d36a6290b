"""Registries of ops and functions, which op definitions fill.

They are at the bottom of the imports, so that operators, gradients and backends
reach an op by name without importing the file that defines it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, TypeVar

from optree.errors import OptreeError
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


# The function that user's code called, for errors

#: Code -> the functions that have it, of closures several, with their names; and how many the registries had for it.
_functions: list[Any] = [{}, 0]


def _functions_by_code() -> dict[CodeType, list[tuple[Any, str]]]:
    size = dict.__len__(FUNCTIONS) + dict.__len__(NUMPY_FUNCTIONS)
    if size != _functions[1]:
        named = {ours: getattr(theirs, "__name__", "") for theirs, ours in NUMPY_FUNCTIONS.known().items()}
        named |= {ours: ours.__name__ for ours in FUNCTIONS.known().values()}
        found: dict[CodeType, list[tuple[Any, str]]] = {}
        for function, name in named.items():
            if hasattr(function, "__code__"):
                found.setdefault(function.__code__, []).append((function, name))
        _functions[:] = [found, size]
    return _functions[0]  # type: ignore[no-any-return]


def called() -> str:
    """The name of the outermost function of the registries on the stack up to user's code; "" if there is none."""
    functions, found, frame = _functions_by_code(), "", sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("optree", "backends"):
        for function, name in functions.get(frame.f_code, ()):
            cells = zip(frame.f_code.co_freevars, function.__closure__ or (), strict=True)
            if all(frame.f_locals.get(variable) is cell.cell_contents for variable, cell in cells):
                found = name
        frame = frame.f_back  # type: ignore[assignment]
    return found


OptreeError.called = staticmethod(called)
