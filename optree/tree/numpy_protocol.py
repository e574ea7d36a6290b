"""NumPy's functions and ufuncs on op-tree operands, which build trees (NEP 13 and NEP 18).

Arguments have NumPy's meanings and defaults: a reduction drops its axis unless
``keepdims=True``. An argument without an equivalent here is refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from optree.dtypes import by_float16, can_cast
from optree.errors import DTypeError
from optree.registry import FUNCTIONS, NUMPY_FUNCTIONS, OPS, f
from optree.tree.types import NUMBERS, as_dtype

#: The NumPy function of each ufunc's ``reduce``.
REDUCTIONS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: np.sum,
    np.multiply: np.prod,
    np.maximum: np.max,
    np.minimum: np.min,
    np.logical_and: np.all,
    np.logical_or: np.any,
}


def call_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tree of a ufunc's call or of its ``reduce``; with ``out``, that tensor, written."""
    outs = kwargs.pop("out", (None,))
    out = outs[0]
    if method == "reduce" and ufunc in REDUCTIONS:
        return call_function(REDUCTIONS[ufunc], inputs, {"axis": 0, "out": out, **kwargs})
    if method == "at" and ufunc is np.add and hasattr(inputs[0], "copy_from"):
        target, index, value = inputs
        target._in_place(lambda x, value: f.scatter_add(x, index, value), value)
        return None
    ours = NUMPY_FUNCTIONS.get(ufunc)
    if method not in ("__call__", "outer") or ours is None:
        return NotImplemented
    dtype = kwargs.pop("dtype", None)
    casting = "same_kind" if dtype is None else kwargs.pop("casting", "same_kind")
    if kwargs:
        raise _refusal(ufunc, kwargs)
    if method == "outer":
        x, y = inputs
        inputs = _with_axes(x, np.ndim(y)), y
    if dtype is not None:
        inputs = _in_loop(ufunc, inputs, as_dtype(dtype), casting)
    trees = ours(*inputs)
    if ufunc.nout > 1:
        return tuple(
            write_out(*pair) for pair in zip(trees, outs if len(outs) > 1 else (None,) * ufunc.nout, strict=True)
        )
    return write_out(trees, out)


def _in_loop(ufunc: np.ufunc, inputs: tuple[Any, ...], dtype: np.dtype, casting: Any) -> tuple[Any, ...]:
    """The operands cast to the dtypes of the ufunc's loop with outputs of a dtype; NumPy's error where it has none."""
    values = [x if type(x) in NUMBERS or hasattr(x, "dtype") else np.asarray(x) for x in inputs]
    given = [getattr(x, "dtype", np.dtype(bool) if type(x) is bool else type(x)) for x in values]
    count = ufunc.nin

    def rule(known: Any) -> Any:
        signature = (*(None,) * count, *known[count:])
        return ufunc.resolve_dtypes((*known[:count], *(None,) * ufunc.nout), signature=signature, casting=casting)

    wanted = by_float16(rule, [*given, *(dtype,) * ufunc.nout])
    return tuple(
        np.asarray(x).astype(to).item()  # a number stays weak
        if type(x) in NUMBERS
        else (x if x.dtype == to else x.astype(to))
        for x, to in zip(values, wanted[:count], strict=True)
    )


def _with_axes(x: Any, count: int) -> Any:
    """An operand with `count` axes of size 1 appended."""
    ndim = np.ndim(x)
    return f.expand_dims(x, tuple(range(ndim, ndim + count))) if count and ndim else x


def call_function(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tree of a NumPy function's call; with ``out``, that tensor, written."""
    ours = NUMPY_FUNCTIONS.get(func)
    if ours is None:
        return NotImplemented
    given, defaults = _bind(func, ours, args, kwargs)
    return _apply(func, ours, given, defaults)


def call_method(func: Callable[..., Any], operand: Any, **given: Any) -> Any:
    """The tree of a NumPy function's call on an operand, its other arguments given by NumPy's names."""
    return _apply(func, NUMPY_FUNCTIONS[func], {"a": operand, **given}, _signature_of(func)[1])


def _apply(
    func: Callable[..., Any], ours: Callable[..., Any], given: dict[str, Any], defaults: Mapping[str, Any]
) -> Any:
    """The tree of our function for NumPy's arguments; one that it does not take is refused."""
    required, optional = _parameters_of(ours)
    operands = [given.pop(next(iter(given))) for _ in required if given]
    out, dtype = given.pop("out", None), given.pop("dtype", None)
    options = dict(_defaults_of(func, ours))
    unknown = {}
    for name, value in given.items():
        if name in optional:
            options[name] = value
        elif value is not None and value is not np._NoValue and value is not defaults.get(name):
            unknown[name] = value
    if unknown:
        raise _refusal(func, unknown)
    for name in given:
        if options.get(name) is np._NoValue:
            del options[name]
    if "keepdims" in optional:
        options.setdefault("keepdims", False)
    if dtype is not None and hasattr(operands[0], "astype"):  # accumulate in that dtype
        operands[0] = f.cast(operands[0], np.dtype(dtype))
    tree = ours(*operands, **options)
    return write_out(tree if dtype is None else tree.astype(dtype), out)


def write_out(tree: Any, out: Any) -> Any:
    """The tree; or, where `out` is a tensor, run it, and return the tensor with its value.

    Raises
    ------
    TypeError
        If `out` is neither a tensor nor None, or the value cannot be cast to its dtype.
    """
    if out is None:
        return tree
    if not hasattr(out, "copy_from"):
        raise TypeError(
            f"out is a tensor where an operand is one, not {type(out).__name__}; for an array, take x.asnumpyarray()"
        )
    if hasattr(tree, "dtype") and not can_cast(tree.dtype, out.dtype, "same_kind"):
        raise DTypeError(f"out is of {out.dtype}, into which NumPy casts no {tree.dtype}; {out.label}[:] = ... does")
    out[...] = tree
    return out


def no_equal(func: Callable[..., Any]) -> TypeError:
    """The error for a NumPy function without an equivalent here."""
    owner = getattr(func, "__self__", None)  # of a ufunc's method, the ufunc
    module = (getattr(func, "__module__", None) or "numpy").replace("numpy", "np", 1)
    name = f"np.{owner.__name__}.{func.__name__}" if isinstance(owner, np.ufunc) else f"{module}.{func.__name__}"
    ours = None if func.__name__ in OPS else FUNCTIONS.get(func.__name__)  # the op resize is not np.resize
    sized = ours is not None and "size" in inspect.signature(ours).parameters
    remedy = f"; with its size given, be.{func.__name__}(x, size=...) is a tree" if sized else ""
    return TypeError(f"{name} has no equal here; {name}(x.asnumpyarray(), ...) runs it on the host{remedy}")


@lru_cache(maxsize=512)
def _parameters_of(ours: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a function's required parameters and of the others."""
    found = inspect.signature(ours).parameters.values()
    required = tuple(p.name for p in found if p.default is p.empty and p.kind is not p.KEYWORD_ONLY)
    return required, tuple(p.name for p in found if p.name not in required)


@lru_cache(maxsize=512)
def _signature_of(func: Callable[..., Any]) -> tuple[inspect.Signature | None, dict[str, Any], str | None]:
    """A NumPy function's signature, its defaults, and the name of its ``**kwargs``."""
    try:
        signature = inspect.signature(func)
    except ValueError:  # a C function without a signature
        return None, {}, None
    parameters = signature.parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return signature, defaults, next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)


@lru_cache(maxsize=512)
def _defaults_of(func: Callable[..., Any], ours: Callable[..., Any]) -> dict[str, Any]:
    """NumPy's defaults of our function's optional parameters."""
    _, defaults, _ = _signature_of(func)
    _, optional = _parameters_of(ours)
    found = {name: defaults[name] for name in optional if name in defaults}
    return {name: value for name, value in found.items() if value is not np._NoValue}


def _bind(
    func: Callable[..., Any], ours: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The arguments by name in NumPy's order, and NumPy's defaults."""
    signature, defaults, further = _signature_of(func)
    if signature is None:  # such functions have our parameters' order
        required, optional = _parameters_of(ours)
        return {**dict(zip((*required, *optional), args, strict=False)), **kwargs}, {}
    order = _order(func, len(args), tuple(kwargs))
    if order is not None:
        return {name: args[at] if at.__class__ is int else kwargs[at] for name, at in order}, defaults
    given = dict(signature.bind(*args, **kwargs).arguments)
    if further is not None:
        given.update(given.pop(further, {}))
    return given, defaults


@lru_cache(maxsize=512)
def _order(func: Callable[..., Any], count: int, given: tuple[str, ...]) -> list[tuple[str, Any]] | None:
    """Parameters, each with its argument's index or name, for a call with arguments by position and by these names.

    None where a parameter takes several arguments, or NumPy refuses the call.
    """
    signature, _, _ = _signature_of(func)
    assert signature is not None
    try:
        found = signature.bind(*range(count), **{name: name for name in given}).arguments
    except TypeError:
        return None
    return None if any(at.__class__ in (tuple, dict) for at in found.values()) else list(found.items())


def _refusal(func: Callable[..., Any], given: Mapping[str, Any]) -> TypeError:
    names = ", ".join(sorted(given))
    return TypeError(f"np.{func.__name__} on op-tree operands does not take {names}")
