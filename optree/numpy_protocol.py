"""NumPy's functions and ufuncs on op-tree operands: they build trees.

The arguments mean what NumPy says they mean (a reduction drops its axis unless
``keepdims=True``); one that op-tree has no equal for is refused by name.
NEP 13 (``__array_ufunc__``) and NEP 18 (``__array_function__``) describe the protocols.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from optree.registry import NUMPY_FUNCTIONS


def call_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tree of a ufunc's call or of its ``reduce``."""
    out = kwargs.pop("out", (None,))[0]
    if method == "reduce":
        ours = _reduction_of(ufunc)
        kwargs.setdefault("axis", 0)
        kwargs.setdefault("keepdims", False)
        _refuse(f"np.{ufunc.__name__}.reduce", kwargs, {"axis", "keepdims"})
    elif method == "__call__" and ufunc in NUMPY_FUNCTIONS:
        ours = NUMPY_FUNCTIONS[ufunc]
        _refuse(f"np.{ufunc.__name__}", kwargs, set())
    else:
        return NotImplemented
    return ours(*inputs, **kwargs) if out is None else _write(ours(*inputs, **kwargs), out)


def call_function(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tree of a NumPy function's call."""
    ours = NUMPY_FUNCTIONS.get(func)
    if ours is None:
        return NotImplemented
    name = f"np.{func.__name__}"
    parameters = inspect.signature(ours).parameters
    operands = [p for p in parameters.values() if p.kind is not p.KEYWORD_ONLY and p.default is p.empty]
    arguments = _bind(func, args, kwargs)
    given = [arguments.pop(next(iter(arguments))) for _ in operands if arguments]
    arguments = {key: value for key, value in arguments.items() if value is not None and value is not np._NoValue}
    out = arguments.pop("out", None)
    dtype = arguments.pop("dtype", None)
    _refuse(name, arguments, set(parameters))
    if "keepdims" in parameters:
        arguments.setdefault("keepdims", False)
    tree = ours(*given, **arguments)
    if dtype is not None:
        tree = tree.astype(dtype)
    return tree if out is None else _write(tree, out)


def _bind(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by the names that NumPy gives them, in its order."""
    try:
        return dict(inspect.signature(func).bind(*args, **kwargs).arguments)
    except ValueError:  # a C function that does not say its signature
        return {**{f"argument {i}": arg for i, arg in enumerate(args)}, **kwargs}


def _reduction_of(ufunc: np.ufunc) -> Callable[..., Any]:
    reductions = {
        np.add: np.sum,
        np.multiply: np.prod,
        np.maximum: np.max,
        np.minimum: np.min,
        np.logical_and: np.all,
        np.logical_or: np.any,
    }
    if ufunc not in reductions:
        raise TypeError(f"np.{ufunc.__name__}.reduce has no equal among op-tree's reductions")
    return NUMPY_FUNCTIONS[reductions[ufunc]]


def _refuse(name: str, given: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise TypeError(f"{name} on op-tree operands does not take {', '.join(unknown)}")


def _write(tree: Any, out: Any) -> Any:
    if not hasattr(out, "copy_from"):
        raise TypeError(f"out must be a tensor when an operand is one, not {type(out).__name__}")
    out[...] = tree
    return out
