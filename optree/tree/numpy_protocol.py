"""NumPy's functions and ufuncs on op-tree operands, which build trees (NEP 13 and NEP 18).

Arguments have NumPy's meanings and defaults: a reduction drops its axis unless
``keepdims=True``. An argument without an equivalent here is refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from optree.dtypes import by_float16, can_cast
from optree.errors import DTypeError, OperandError, ShapeError
from optree.instead import instead_of_parameter
from optree.records import NamedTuple
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
    """The tree of a ufunc's call or of one of its methods; with ``out``, that tensor, written."""
    outs = kwargs.pop("out", (None,))
    out = outs[0]
    if method == "reduce" and ufunc in REDUCTIONS:
        return call_function(REDUCTIONS[ufunc], inputs, {"axis": 0, "out": out, **kwargs})
    if method in ("reduce", "accumulate", "reduceat"):
        return call_function(getattr(ufunc, method), inputs, {"axis": 0, "out": out, **kwargs})
    if method == "at" and ufunc in (np.add, np.subtract) and hasattr(inputs[0], "copy_from"):
        target, index, value = inputs
        if ufunc is np.add:
            target._in_place(lambda x, value: f.scatter_add(x, index, value), value)
        else:
            target._in_place(lambda x, value: x - f.scatter_add(f.fill_like(x, 0), index, value), value)
        return None
    ours = NUMPY_FUNCTIONS.get(ufunc)
    if method not in ("__call__", "outer") or ours is None:
        return NotImplemented
    dtype = kwargs.pop("dtype", None)
    casting = "same_kind" if dtype is None else kwargs.pop("casting", "same_kind")
    where = kwargs.pop("where", True)
    axis = {"axis": kwargs.pop("axis")} if "axis" in kwargs and "axis" in _parameters_of(ours)[1] else {}
    if kwargs:
        raise _refusal(ufunc, kwargs)
    if where is not True and out is None:
        raise TypeError(
            f"np.{ufunc.__name__}: with where=, elements are left as they are in out, a tensor, and none is given; "
            f"np.where(mask, np.{ufunc.__name__}(...), other) is a tree"
        )
    if method == "outer":
        x, y = inputs
        inputs = _with_axes(x, np.ndim(y)), y
    if dtype is not None:
        inputs = _in_loop(ufunc, inputs, as_dtype(dtype), casting)
    trees = ours(*inputs, **axis)
    if ufunc.nout > 1:
        targets = outs if len(outs) > 1 else (None,) * ufunc.nout
        return tuple(write_outs(trees, targets, where))
    return write_out(trees, out, where)


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


#: Parameters of NumPy's functions that choose an algorithm: the value is the same.
ALGORITHMS = ("kind", "stable", "assume_unique")


def _with_axes(x: Any, count: int) -> Any:
    """An operand with `count` axes of size 1 appended."""
    ndim = np.ndim(x)
    return f.expand_dims(x, tuple(range(ndim, ndim + count))) if count and ndim else x


class _Roles(NamedTuple):
    """The roles of a NumPy function's arguments in ours, by their indices among the values given."""

    operands: list[int]
    #: The optional parameters of ours that are given.
    options: list[tuple[str, int]]
    #: Those that ours does not have, with NumPy's defaults.
    others: list[tuple[str, int, Any]]
    out: int | None
    dtype: int | None
    #: NumPy's defaults of our optional parameters.
    defaults: dict[str, Any]


def call_function(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tree of a NumPy function's call; with ``out``, that tensor, written. An argument not taken is refused."""
    ours = NUMPY_FUNCTIONS.get(func)
    if ours is None:
        return NotImplemented
    values: Sequence[Any] = (*args, *kwargs.values())
    roles = _roles(func, ours, len(args), tuple(kwargs))
    if roles is None:
        given = _bound(func, args, kwargs)
        values, roles = list(given.values()), _roles_of(func, ours, {name: at for at, name in enumerate(given)})
    operands, options = [values[at] for at in roles.operands], roles.defaults.copy()
    for name, at in roles.options:
        if values[at] is not np._NoValue:
            options[name] = values[at]
    if roles.others:
        _check_others(func, roles, values)
    out = None if roles.out is None else values[roles.out]
    dtype = None if roles.dtype is None else values[roles.dtype]
    if dtype is not None:
        operands[0] = _cast(operands[0], np.dtype(dtype))
    tree = ours(*operands, **options)
    return write_out(tree if dtype is None else tree.astype(dtype), out)


def place_of_out(func: Callable[..., Any]) -> int | None:
    """The position of a NumPy function's parameter `out`; None if it has none, or by name alone."""
    return _signature_of(func).place_of_out


def _cast(operand: object, dtype: np.dtype) -> Any:
    """An operand of a function, or several in a list or tuple, in the dtype that it computes in."""
    if hasattr(operand, "astype"):
        return f.cast(operand, dtype)
    return [_cast(x, dtype) for x in operand] if isinstance(operand, list | tuple) else operand


def write_out(tree: Any, out: Any, where: Any = True) -> Any:
    """The tree; or, where `out` is a tensor, run it, and return the tensor with its value, where a mask is true.

    Raises TypeError if `out` is neither a tensor nor None, or the value cannot be cast to its dtype.
    Raises ShapeError if the value has more axes than `out`.
    """
    if out is not None:
        _check_out(tree, out)
        out[...] = tree if where is True else f.where(where, tree, out)
    return tree if out is None else out


def write_outs(trees: Sequence[Any], outs: Sequence[Any], where: Any = True) -> list[Any]:
    """`write_out` of several trees, whose values are all computed before one is written, as a target may be read."""
    if all(out is None for out in outs):
        return list(trees)
    for tree, out in zip(trees, outs, strict=True):
        if out is not None:
            _check_out(tree, out)
    values = trees[0].backend.evaluate(list(trees))
    return [write_out(*pair, where) for pair in zip(values, outs, strict=True)]


def _check_out(tree: Any, out: Any) -> None:
    """Raise an error if an `out` cannot be written with a tree's value."""
    if not hasattr(out, "copy_from"):
        raise TypeError(
            f"out is a tensor where an operand is one, not {type(out).__name__}; for an array, take x.asnumpyarray()"
        )
    if hasattr(tree, "dtype") and not can_cast(tree.dtype, out.dtype, "same_kind"):
        name = getattr(out, "label", "out")
        raise DTypeError(f"out is of {out.dtype}, into which NumPy casts no {tree.dtype}; {name}[:] = ... does")
    if len(getattr(tree, "shape", ())) > len(out.shape):  # an assignment drops leading axes of size 1, NumPy does not
        raise ShapeError(f"out is of shape {out.shape}, which is no place for a value of shape {tree.shape}")


_UNKNOWN = "how many elements it gives is known only when it has run"

#: Why functions of NumPy's have no equal, by their names.
REASONS = {
    **dict.fromkeys(("argwhere", "compress", "extract", "trim_zeros"), _UNKNOWN),
    **dict.fromkeys(("union1d", "intersect1d", "setdiff1d", "setxor1d"), _UNKNOWN),
    **dict.fromkeys(("unique_all", "unique_counts", "unique_inverse", "unique_values"), _UNKNOWN),
}

#: Equivalents of functions of NumPy's that have no equal.
INSTEAD = {
    "compress": "be.where(condition, x, other) is a tree",
    "extract": "be.where(condition, x, other) is a tree",
    "piecewise": "np.select(conditions, choices) is a tree, of choices that are computed everywhere",
    "choose": "np.select or np.take_along_axis is a tree",
    "polymul": "np.convolve is a tree",
    "apply_over_axes": "a reduction takes several axes",
    "geomspace": "np.exp(np.linspace(np.log(start), np.log(stop), num)) is a tree",
}


def no_equal(func: Callable[..., Any], backend: Any = None) -> TypeError:
    """The error for a NumPy function without an equivalent here, on operands of a backend."""
    owner = getattr(func, "__self__", None)  # of a ufunc's method, the ufunc
    module = (getattr(func, "__module__", None) or "numpy").replace("numpy", "np", 1)
    name = f"np.{owner.__name__}.{func.__name__}" if isinstance(owner, np.ufunc) else f"{module}.{func.__name__}"
    ours = None if func.__name__ in OPS else FUNCTIONS.get(func.__name__)  # the op resize is not np.resize
    sized = ours is not None and "size" in inspect.signature(ours).parameters
    remedy = f"; with its size given, be.{func.__name__}(x, size=...) is a tree" if sized else ""
    if hasattr(type(backend), func.__name__) and not sized:
        remedy = f"; be.{func.__name__} makes a tensor"
    known = "" if isinstance(owner, np.ufunc) else func.__name__
    reason = REASONS.get(known)
    why = f": {reason}" if reason else ""
    remedy += f"; {INSTEAD[known]}" if known in INSTEAD else ""
    return TypeError(f"{name} has no equal here{why}; {name}(x.asnumpyarray(), ...) runs it on the host{remedy}")


def _parameters_of(ours: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a function's required parameters and of the others."""
    found = inspect.signature(ours).parameters.values()
    required = tuple(p.name for p in found if p.default is p.empty and p.kind is not p.KEYWORD_ONLY)
    return required, tuple(p.name for p in found if p.name not in required)


class _Signature(NamedTuple):
    """A NumPy function's signature, its defaults, the name of its ``**kwargs``, and the position of its `out`."""

    signature: inspect.Signature | None = None
    defaults: Mapping[str, Any] = {}
    further: str | None = None
    place_of_out: int | None = None


@lru_cache(maxsize=512)
def _signature_of(func: Callable[..., Any]) -> _Signature:
    try:
        signature = inspect.signature(func)
    except ValueError:  # a C function without a signature
        return _Signature()
    parameters = list(signature.parameters.values())
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    further = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
    places = (at for at, p in enumerate(parameters) if p.name == "out" and p.kind is p.POSITIONAL_OR_KEYWORD)
    return _Signature(signature, defaults, further, next(places, None))


@lru_cache(maxsize=512)
def _roles(func: Callable[..., Any], ours: Callable[..., Any], count: int, given: tuple[str, ...]) -> _Roles | None:
    """The roles of arguments by position, so many, and then by these names.

    None where a parameter takes several arguments, or NumPy refuses the call.
    """
    signature = _signature_of(func).signature
    by_name = {name: count + i for i, name in enumerate(given)}
    if signature is None:  # such functions have our parameters' order
        required, optional = _parameters_of(ours)
        return _roles_of(func, ours, {**dict(zip((*required, *optional), range(count), strict=False)), **by_name})
    try:
        found = signature.bind(*range(count), **by_name).arguments
    except TypeError:
        return None
    return None if any(at.__class__ in (tuple, dict) for at in found.values()) else _roles_of(func, ours, found)


def _roles_of(func: Callable[..., Any], ours: Callable[..., Any], given: Mapping[str, int]) -> _Roles:
    """The roles of arguments, from NumPy's names in NumPy's order to their indices."""
    required, optional = _parameters_of(ours)
    defaults = _signature_of(func).defaults
    operands, rest = list(given.values())[: len(required)], dict(list(given.items())[len(required) :])
    out, dtype = rest.pop("out", None), None if "dtype" in optional else rest.pop("dtype", None)
    options = [(name, at) for name, at in rest.items() if name in optional]
    others = [(name, at, defaults.get(name)) for name, at in rest.items() if name not in (*optional, *ALGORITHMS)]
    known = {name: defaults[name] for name in optional if defaults.get(name, np._NoValue) is not np._NoValue}
    if "keepdims" in optional:
        known.setdefault("keepdims", False)
    return _Roles(operands, options, others, out, dtype, known)


def _bound(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name in NumPy's order; OperandError where NumPy refuses the call."""
    signature, _, further, _ = _signature_of(func)
    assert signature is not None
    try:
        given = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise OperandError(f"{func.__name__}() {error}{instead_of_parameter(kwargs)}") from None
    if further is not None:
        given.update(given.pop(further, {}))
    return given


def _check_others(func: Callable[..., Any], roles: _Roles, values: Sequence[Any]) -> None:
    """Refuse arguments for parameters that ours does not have, but for NumPy's defaults."""
    wrong = [
        name
        for name, at, default in roles.others
        if values[at] is not None and values[at] is not np._NoValue and values[at] is not default
    ]
    if wrong:
        raise _refusal(func, wrong)


def _refusal(func: Callable[..., Any], given: Iterable[str]) -> TypeError:
    names = ", ".join(sorted(given))
    return TypeError(f"np.{func.__name__} on op-tree operands does not take {names}")
