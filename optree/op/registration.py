"""Registration of op classes: checks, functions, backends' methods and the NumPy protocol."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from optree.errors import DefinitionError, brief
from optree.registry import APPLICATIONS, FUNCTIONS, NUMPY_FUNCTIONS, OPS, about_to_define

#: Maximum operands of a variadic op's kernel.
MOST = 64


def check_and_register(cls: Any, base: Any, function_of: Callable[[Any], Callable[..., Any]]) -> None:
    """Check an op's definition, and register it if it has a name.

    `cls`, `base` (type): the op, and `Op`.
    `function_of`: makes the op's function.

    Raises DefinitionError if the definition is incomplete or wrong, or its name is taken.
    """
    if "kernel" in cls.__dict__:
        _check_kernel(cls)
    if cls.__dict__.get("name") is not None:
        _check_definition(cls, base)
        _register(cls, function_of)


def _register(cls: Any, function_of: Callable[[Any], Callable[..., Any]]) -> None:
    name = str(cls.name)
    about_to_define(cls.__module__)
    earlier = dict.get(OPS, name)  # as it is so far
    if earlier is not None and (earlier.__module__, earlier.__qualname__) != (cls.__module__, cls.__qualname__):
        raise DefinitionError(f"{cls.__name__}: the name {name!r} is {earlier.__module__}.{earlier.__qualname__}'s")
    OPS[name] = cls
    if name in APPLICATIONS:  # the cache of a Python operator
        APPLICATIONS[name].clear()
        cls.make().__dict__["applications"] = APPLICATIONS[name]
    call = function_of(cls)
    FUNCTIONS[name] = call
    is_numpys = isinstance(cls.numpy, np.ufunc) or str(getattr(cls.numpy, "__module__", None)).startswith("numpy")
    if "numpy" in vars(cls) and is_numpys:  # an inherited one builds the op that it is inherited from
        NUMPY_FUNCTIONS[cls.numpy] = call


def _check_definition(cls: Any, base: Any) -> None:
    if cls.grad is base.grad and cls.generate_adjoints is base.generate_adjoints:
        raise DefinitionError(f"{cls.__name__}: write grad, or be a NonDifferentiableOperator")
    if cls.numpy is None and cls.fill is None and cls.perform is base.perform:
        raise DefinitionError(f"{cls.__name__}: write numpy, fill or perform")
    if cls.__props__ is None:
        raise DefinitionError(f"{cls.__name__}: list its parameters in __props__, or take () from a trait")
    missing = [prop for prop in cls.__props__ if not hasattr(cls, prop)]
    if missing:
        raise DefinitionError(f"{cls.__name__}: give {', '.join(missing)} a default as a class attribute")


def _check_kernel(cls: Any) -> None:
    """Check that a kernel, unless it is a method or property, is a format string of the operands."""
    kernel, operands = cls.kernel, cls.operands
    if kernel is None or inspect.isfunction(kernel) or isinstance(kernel, property):
        return
    if not isinstance(kernel, str):
        raise DefinitionError(
            f"{cls.__name__}: kernel is a C expression such as '{{0}} * {{0}}', or a method kernel(self, *dtypes) that "
            f"returns one, not {brief(kernel)}"
        )
    try:
        kernel.format(*(operands or ["x"] * MOST))
    except (AttributeError, IndexError, KeyError, ValueError) as error:
        known = ", ".join(f"{{{i}}} is {x}" for i, x in enumerate(operands or ())) or "they are {0}, {1}, ..."
        raise DefinitionError(
            f"{cls.__name__}: kernel {kernel!r} does not take its operands: {known}, and C's own braces are doubled "
            f"({type(error).__name__}: {error})"
        ) from None
