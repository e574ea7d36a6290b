"""The tables that op definitions fill and everything else reads.

They stand at the bottom of the imports and know nothing of what they hold, so
that an operator, an op's gradient and a backend can all reach an op by name
without importing the file that defines it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: name -> Op class, for every op that has a name.
OPS: dict[str, Any] = {}

#: name -> function of operands: one for each op, and the functions composed of ops.
FUNCTIONS: dict[str, Callable[..., Any]] = {}

#: NumPy function or ufunc -> the function here that means the same.
NUMPY_FUNCTIONS: dict[Any, Callable[..., Any]] = {}

#: name of an op with an operator -> its `applications` without parameters: operand specs -> op_dict.
APPLICATIONS: dict[str, Any] = {}

#: name of a method of Metadiff's -> the function of a variable that answers it.
METADIFF: dict[str, Callable[..., Any]] = {}


class FunctionNamespace:
    """`FUNCTIONS` by attribute: ``f.tanh(x)``, as gradients and composed functions write it."""

    def __init__(self) -> None:
        self.__dict__ = FUNCTIONS

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"there is no function {name!r}")


f = FunctionNamespace()


def function(
    *,
    numpy: Any = None,
    names: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that offers a function composed of ops wherever an op is offered.

    Parameters
    ----------
    numpy : callable, optional
        The NumPy function that means the same; called on a tensor, it builds
        this function's tree.
    names : tuple of str
        Further names that the function goes by.
    """

    def register(composed: Callable[..., Any]) -> Callable[..., Any]:
        for name in (composed.__name__, *names):
            FUNCTIONS[name] = composed
        if numpy is not None:
            NUMPY_FUNCTIONS[numpy] = composed
        return composed

    return register
