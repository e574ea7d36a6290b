"""Functions of Python as C's: how they are declared, and how they fail."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

#: What C functions take: an address or handle, an integer, an unsigned one, a size.
TYPES = {"P": ctypes.c_size_t, "I": ctypes.c_int, "U": ctypes.c_uint, "Z": ctypes.c_size_t}

Call = TypeVar("Call", bound=Callable[..., Any])


class Refused(Exception):
    """A call that fails with an error of CUDA's."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(f"{status} {text}")
        self.status = status


def call(takes: str = "", any_time: bool = False, result: Any = ctypes.c_int) -> Callable[[Call], Call]:
    """Declare a method as a C function.

    Parameters
    ----------
    takes : str
        A letter of `TYPES` for each parameter.
    any_time : bool
        Whether a thread without a context and a device that has failed answer it, too.
    result : type
        What it gives; of integers, None is 0.
    """

    def declared(function: Call) -> Call:
        function.takes, function.any_time, function.result = takes, any_time, result  # type: ignore[attr-defined]
        return function

    return declared


def entries(of: object, guarded: Callable[[str, Any], Any]) -> dict[str, Any]:
    """The C functions of an object by their names, each as `guarded` makes it of its name and method."""
    found = {}
    for name in dir(type(of)):
        method = getattr(of, name)
        if hasattr(method, "takes"):
            kind = ctypes.CFUNCTYPE(method.result, *(TYPES[each] for each in method.takes))
            found[name] = kind(guarded(name, method))
    return found


def put(kind: Any, to: int, value: Any) -> None:
    """Write a result to where the caller wants it."""
    kind.from_address(to).value = value
