"""Registries of ops and functions, which op definitions fill.

They are at the bottom of the imports, so that operators, gradients and backends
reach an op by name without importing the file that defines it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: name -> Op class, for every op that has a name.
OPS: dict[str, Any] = {}

#: name -> function of operands: one for each op, and the functions composed of ops.
FUNCTIONS: dict[str, Callable[..., Any]] = {}

#: NumPy function or ufunc -> its equivalent here.
NUMPY_FUNCTIONS: dict[Any, Callable[..., Any]] = {}

#: name of an op with a Python operator -> its cache of applications: operand specs -> op_dict.
APPLICATIONS: dict[str, Any] = {}

#: name of a Metadiff method -> its implementation, a function of a variable.
METADIFF: dict[str, Callable[..., Any]] = {}


class FunctionNamespace:
    """`FUNCTIONS` by attribute: ``f.tanh(x)``, as gradients and composed functions write it."""

    def __init__(self) -> None:
        self.__dict__ = FUNCTIONS

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"there is no function {name!r}")


f = FunctionNamespace()


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
        for name in (composed.__name__, *names):
            FUNCTIONS[name] = composed
        if numpy is not None:
            NUMPY_FUNCTIONS[numpy] = composed
        return composed

    return register


def numpy_function(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that registers the equivalent of NumPy functions, with their parameters, and no name of its own."""

    def register(composed: Callable[..., Any]) -> Callable[..., Any]:
        NUMPY_FUNCTIONS.update(dict.fromkeys(functions, composed))
        return composed

    return register
