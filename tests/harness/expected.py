"""What each op means, told without op-tree: NumPy's function of that name, or a formula in double precision.

An op's own `numpy` and `value` are not used here, so that a mistake in them
shows. An op that is missing from `MEANINGS` fails `test_every_op_has_a_meaning`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

#: Ops that go by another name in NumPy.
NUMPY_NAMES = {
    "neg": "negative",
    "sgn": "sign",
    "abs": "absolute",
    "finite": "isfinite",
    "sub": "subtract",
    "mul": "multiply",
    "div": "true_divide",
    "pow": "power",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}

NUMPY_ELEMENTWISE = (
    "neg abs sgn sqrt square reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan "
    "sinh cosh tanh arcsinh arccosh arctanh floor ceil trunc rint finite isnan isinf logical_not add sub mul div "
    "floor_divide mod pow arctan2 hypot maximum minimum eq ne lt le gt ge logical_and logical_or logical_xor"
)

Meaning = Callable[..., Any]


def _numpy(name: str) -> Meaning:
    return getattr(np, NUMPY_NAMES.get(name, name))


def _in_double(function: Meaning) -> Meaning:
    """The function in float64, in the dtype that NumPy's own floating functions of such operands have."""

    def meaning(*arrays: Any, **props: Any) -> np.ndarray:
        dtype = np.exp.resolve_dtypes((np.result_type(*arrays), None))[-1]
        values = function(*(np.asarray(a, np.float64) for a in arrays), **props)
        return np.asarray(values).astype(dtype)

    return meaning


def _like_operand(function: Meaning) -> Meaning:
    """The function's value in the first operand's dtype."""

    def meaning(x: Any, *rest: Any, **props: Any) -> np.ndarray:
        return np.asarray(function(x, *rest, **props)).astype(np.asarray(x).dtype)

    return meaning


def _where(condition: Any, x: Any, y: Any) -> Any:
    return np.where(np.asarray(condition).astype(bool), x, y)


def _reduction(name: str) -> Meaning:
    function = getattr(np, name)

    def meaning(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
        return function(x, axis=axis, keepdims=keepdims)

    return meaning


def _arg(name: str) -> Meaning:
    """argmax and argmin, over several axes too: the place in C order among them."""
    function = getattr(np, name)

    def meaning(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
        if not isinstance(axis, tuple):
            return function(x, axis=axis, keepdims=keepdims)
        kept = [i for i in range(x.ndim) if i not in axis]
        flat = np.transpose(x, (*kept, *axis)).reshape(*(x.shape[i] for i in kept), -1)
        found = function(flat, axis=-1)
        return np.expand_dims(found, axis) if keepdims else found

    return meaning


def _sum_of_squares_root(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
    return np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims))


def _logsumexp(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
    with np.errstate(all="ignore"):
        return special.logsumexp(x, axis=axis, keepdims=keepdims)


def _to_index(template: tuple[Any, ...], arrays: Any) -> tuple[Any, ...]:
    rest = iter(arrays)
    parts = []
    for entry in template:
        if entry == "array":
            parts.append(next(rest))
        elif isinstance(entry, tuple):
            parts.append(slice(*entry))
        else:
            parts.append(entry)
    return tuple(parts)


def _scattered(x: Any, value: Any, arrays: Any, index: Any, add: bool) -> Any:
    result = np.array(x)
    where = _to_index(index, arrays)
    if add:
        np.add.at(result, where, value)
    else:
        result[where] = value
    return result


def _onehot(indices: Any, n: int, axis: int = -1, **rest: Any) -> Any:
    hot = np.asarray(indices)[..., None] == np.arange(n)
    return np.moveaxis(hot, -1, axis)


MEANINGS: dict[str, Meaning] = {
    **{name: _numpy(name) for name in NUMPY_ELEMENTWISE.split()},
    "erf": _in_double(special.erf),
    "sig": _in_double(special.expit),
    "sig2": _in_double(lambda x: 1 / (1 + np.exp2(-x))),
    "tanh2": _in_double(lambda x: np.tanh(x * np.log(2))),
    "safelog": _in_double(lambda x: np.log(np.maximum(x, np.exp(-50.0)))),
    "relu": _like_operand(lambda x: np.maximum(x, np.zeros((), np.asarray(x).dtype))),
    "where": _where,
    "clip": np.clip,
    "cast": lambda x, dtype: np.asarray(x).astype(dtype),
    "fill_like": _like_operand(lambda x, value: np.full(np.shape(x), value)),
    "broadcast_like": lambda x, like: np.broadcast_to(x, np.shape(like)),
    **{name: _reduction(name) for name in ("sum", "prod", "max", "min", "mean", "all", "any")},
    **{name: _arg(name) for name in ("argmax", "argmin")},
    "logsumexp": _in_double(_logsumexp),
    "norm": _in_double(_sum_of_squares_root),
    "dot": np.dot,
    "matmul": np.matmul,
    "outer": np.outer,
    "matrix_transpose": lambda x: np.swapaxes(x, -1, -2),
    "transpose": lambda x, axes=None: np.transpose(x, axes),
    "reshape": lambda x, newshape: np.reshape(x, newshape),
    "reshape_like": lambda x, like: np.reshape(x, np.shape(like)),
    "broadcast_to": lambda x, shape: np.broadcast_to(x, shape),
    "expand_dims": lambda x, axis: np.expand_dims(x, axis),
    "squeeze": lambda x, axis=None: np.squeeze(x, axis),
    "slice": lambda x, index: x[_to_index(index, ())],
    "concatenate": lambda *arrays, axis=0: np.concatenate(arrays, axis=axis),
    "stack": lambda *arrays, axis=0: np.stack(arrays, axis=axis),
    "flip": lambda x, axis=None: np.flip(x, axis),
    "pad": lambda x, pad_width: np.pad(x, pad_width),
    "repeat": lambda x, repeats, axis=None: np.repeat(x, repeats, axis=axis),
    "take": lambda x, indices, axis=None: np.take(x, indices, axis=axis),
    "take_along_axis": lambda x, indices, axis=-1: np.take_along_axis(x, indices, axis=axis),
    "gather": lambda x, *arrays, index: x[_to_index(index, arrays)],
    "scatter": lambda x, value, *arrays, index: _scattered(x, value, arrays, index, add=False),
    "scatter_add": lambda x, value, *arrays, index: _scattered(x, value, arrays, index, add=True),
    "onehot": _onehot,
}
