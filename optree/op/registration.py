"""Registration of op classes: checks, functions, backends' methods and the NumPy protocol."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from optree.cache import Cache
from optree.errors import DefinitionError, OperandError, brief, caller_origin
from optree.instead import instead_of_parameter
from optree.registry import APPLICATIONS, FUNCTIONS, NUMPY_FUNCTIONS, OPS, about_to_define
from optree.tree.node import OpTreeNode
from optree.tree.types import is_huge

#: Maximum operands of a variadic op's kernel.
MOST = 64

#: Maximum entries of the cache from a function's parameters to its op.
ARGUMENTS = 256

#: The classes of parameters that are cached, with dtypes, alone and in tuples; not float, as 0.0 equals -0.0.
EXACT = (int, bool, str, type(None))


def check_and_register(cls: Any, base: Any) -> None:
    """Check an op's definition, and register it if it has a name; `base` is `Op`.

    It raises DefinitionError if the definition is incomplete or wrong, or its name is taken.
    """
    if "kernel" in cls.__dict__:
        _check_kernel(cls)
    if cls.__dict__.get("name") is not None:
        _check_definition(cls, base)
        _register(cls, base)


def _register(cls: Any, base: Any) -> None:
    name = str(cls.name)
    about_to_define(cls.__module__)
    earlier = dict.get(OPS, name)  # as it is so far
    if earlier is not None and (earlier.__module__, earlier.__qualname__) != (cls.__module__, cls.__qualname__):
        raise DefinitionError(f"{cls.__name__}: the name {name!r} is {earlier.__module__}.{earlier.__qualname__}'s")
    OPS[name] = cls
    if name in APPLICATIONS:  # the cache of a Python operator
        APPLICATIONS[name].clear()
        cls.make().__dict__["applications"] = APPLICATIONS[name]
    call = _function_of(cls, base)
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


def _function_of(cls: Any, base: Any) -> Callable[..., Any]:
    """The op's function, with the class's documentation and the signature of its operands and parameters."""
    plain = cls.function.__func__ is base.function.__func__ and cls.__call__ is base.__call__
    call = _application(cls) if plain and cls.operands else _general(cls)
    call.__name__ = call.__qualname__ = str(cls.name)
    call.__doc__ = cls.__doc__
    call.__signature__ = inspect.Signature(cls.parameters())  # type: ignore[attr-defined]
    return call


def _general(cls: Any) -> Callable[..., Any]:
    """`cls.function` as a function of its own."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return cls.function(*args, **kwargs)
        except TypeError as error:
            _check_taken(cls, args, kwargs, error)
            raise

    return call


def _check_taken(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError) -> None:
    """Raise OperandError if an op's function does not take these arguments, which the error may say."""
    try:
        inspect.signature(cls.function).bind(*args, **kwargs)
    except TypeError as refusal:
        raise OperandError(f"{usage(cls)}: {refusal}{instead_of_parameter(kwargs)}") from error


def _application(cls: Any) -> Callable[..., Any]:
    """`cls.function`, with a fast path for cached parameters and operand specs."""
    new, origin, count, known = tuple.__new__, caller_origin, len(cls.operands), Cache("ops by arguments", ARGUMENTS)

    def call(*args: Any, **kwargs: Any) -> Any:
        key: Any = None
        if kwargs or len(args) != count:
            values = (*args[count:], *kwargs.values())
            kinds = (*map(type, values),)  # 1 is not True
            key = values, kinds, *kwargs
            if tuple in kinds:
                key = (*key, *[(*map(type, value),) for value in values if type(value) is tuple])
        try:
            op = known.get(key)
        except TypeError:  # not hashable
            return cls.function(*args, **kwargs)
        if op is None:
            if len(args) < count or kwargs.keys() & set(cls.operands) or not all(map(_is_exact, (key or ((),))[0])):
                return cls.function(*args, **kwargs)
            _, props = sorted_arguments(cls, args, kwargs)
            op = known[key] = cls.make(**props)
        if count == 1:
            x, y = args[0], None
            try:
                op_dict = op.applications.get((getattr(x, "spec", None),))
            except Exception:  # of a foreign object's attribute, which may raise anything
                op_dict = None
        elif count == 2:
            x, y = args[0], args[1]
            try:
                first, second = getattr(x, "spec", x.__class__), getattr(y, "spec", y.__class__)
                op_dict = op.applications.get((first, second))
            except Exception:
                first = second = op_dict = None
            if (first is int and is_huge(x)) or (second is int and is_huge(y)):
                op_dict = None
        else:
            op_dict = None
        if op_dict is None:
            return op(*args[:count])
        node = new(OpTreeNode, (op_dict, x, y))
        node.spec = op_dict.value_spec
        node.origin = origin()
        return node

    return call


def _is_exact(value: object) -> bool:
    """Whether a parameter of a class is only equal to those that mean the same; of a tuple, its elements."""
    kinds = map(type, value) if type(value) is tuple else (type(value),)
    return all(kind in EXACT or issubclass(kind, np.dtype) for kind in kinds)


def sorted_arguments(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Sort an op's arguments into operands, and parameters by name; OperandError if the number is wrong."""
    names = cls.operands
    if names is None:
        raise NotImplementedError(f"{cls.__name__}: an op of any number of operands defines function")
    operands = list(args[: len(names)])
    for name in names[len(operands) :]:
        if name not in kwargs:
            raise OperandError(f"{usage(cls)}: {name} is missing")
        operands.append(kwargs.pop(name))
    extra = dict(zip(cls.prop_names(), args[len(names) :], strict=False))
    if len(extra) < len(args) - len(names):
        raise OperandError(f"{usage(cls)} was given {len(args)} arguments")
    for name in extra.keys() & kwargs.keys():
        raise OperandError(f"{usage(cls)} was given {name} twice")
    return operands, {**extra, **kwargs}


def usage(cls: Any) -> str:
    """The signature of an op's function, for errors: ``sum(x, axis=None, keepdims=True)``."""
    return f"{cls.name or cls.__name__}{inspect.Signature(cls.parameters())}"
