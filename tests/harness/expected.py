"""Reference of each op, independent of op-tree: NumPy's function of that name, or a formula in double precision.

An op's own `numpy` and `value` are not used here, so that a mistake in them
shows. An op that is missing from `MEANINGS` fails `test_every_op_has_a_meaning`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from harness import windowed
from optree.ops import philox

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
    "copy conjugate floor_divide mod pow arctan2 hypot logaddexp maximum minimum eq ne lt le gt ge "
    "logical_and logical_or logical_xor fmod copysign cbrt signbit nextafter "
    "bitwise_and bitwise_or bitwise_xor invert left_shift right_shift gcd lcm"
)

Meaning = Callable[..., Any]


def _numpy(name: str) -> Meaning:
    return getattr(np, NUMPY_NAMES.get(name, name))


def _single(x: Any) -> Any:
    """Halves as float32, in which NumPy does not round a transform's factor to a half."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _exp_dtype(*arrays: Any) -> np.dtype:
    """The dtype that NumPy's floating functions give: a float that holds the integers of small dtypes."""
    return np.exp.resolve_dtypes((np.result_type(*arrays), None))[-1]


def _mean_dtype(*arrays: Any) -> np.dtype:
    """The dtype that NumPy's mean gives: float64 for all integers."""
    return np.mean(np.ones(1, np.result_type(*arrays))).dtype


def _in_double(function: Meaning, dtype_of: Meaning = _exp_dtype) -> Meaning:
    """The function of float64 values, rounded to another dtype at the end."""

    def meaning(*arrays: Any, **props: Any) -> np.ndarray:
        values = function(*(np.asarray(a, np.result_type(a, np.float64)) for a in arrays), **props)
        return np.asarray(values).astype(dtype_of(*arrays))

    return meaning


def _like_operand(function: Meaning) -> Meaning:
    """The function's value in the first operand's dtype."""

    def meaning(x: Any, *rest: Any, **props: Any) -> np.ndarray:
        return np.asarray(function(x, *rest, **props)).astype(np.asarray(x).dtype)

    return meaning


def _so_far(function: Meaning, dtype_of: Meaning) -> Meaning:
    """A sum or product so far, in higher precision, rounded to NumPy's dtype of whole ones."""

    def meaning(x: Any, axis: Any) -> np.ndarray:
        wide = np.float64 if x.dtype.kind == "f" else None
        return function(x, axis=axis, dtype=wide).astype(dtype_of(x).dtype)

    return meaning


def _segments(x: Any, starts: Any, reduce: str, axis: int) -> np.ndarray:
    parts = [np.take(x, part, axis) for part in _parts(x, starts, axis)]
    wide = np.float64 if x.dtype.kind == "f" else None
    whole = (lambda part: np.sum(part, axis, wide)) if reduce == "sum" else lambda part: getattr(np, reduce)(part, axis)
    found = np.stack([whole(part) for part in parts], axis)
    return found.astype(np.sum(x).dtype if reduce == "sum" else x.dtype)


def _parts(x: Any, starts: Any, axis: int) -> list[np.ndarray]:
    """The indices of each segment."""
    ends = [*starts[1:], x.shape[axis]]
    return [np.arange(i, max(j, i + 1)) for i, j in zip(starts, ends, strict=True)]


def _weights(x: Any, starts: Any, reduce: str, axis: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each segment its indices, and the derivatives of its reduction by its elements, the axis first."""
    found = []
    for part in _parts(x, starts, axis):
        values = np.moveaxis(np.take(x, part, axis), axis, 0).astype(np.float64)
        is_extreme = np.ones(values.shape) if reduce == "sum" else values == getattr(np, reduce)(values, 0)
        found.append((part, is_extreme / (1 if reduce == "sum" else np.maximum(is_extreme.sum(0), 1))))
    return found


def _segment_scatter(x: Any, delta: Any, starts: Any, reduce: str, axis: int) -> np.ndarray:
    found = np.zeros(np.moveaxis(x, axis, 0).shape)
    for (part, weights), given in zip(_weights(x, starts, reduce, axis), np.moveaxis(delta, axis, 0), strict=True):
        found[part] += weights * given
    return np.moveaxis(found, 0, axis).astype(delta.dtype)


def _segment_gather(x: Any, delta: Any, starts: Any, reduce: str, axis: int) -> np.ndarray:
    given = np.moveaxis(delta, axis, 0)
    found = [np.sum(weights * given[part], 0) for part, weights in _weights(x, starts, reduce, axis)]
    return np.stack(found, axis).astype(delta.dtype)


def _size_dtype(*arrays: Any) -> np.dtype:
    """That of the mean's absolute value."""
    return np.zeros(1, _mean_dtype(*arrays)).real.dtype


def _recurrence(a: Any, b: Any, axis: int, reverse: bool) -> np.ndarray:
    dtype = np.result_type(a, b)
    wide = np.result_type(dtype, np.longdouble)
    a, b = (np.moveaxis(x, axis, 0).astype(wide) for x in np.broadcast_arrays(a, b))
    result = np.zeros_like(b)
    last = np.zeros(b.shape[1:])
    for i in range(len(b))[:: -1 if reverse else 1]:
        link = a[i] if not reverse else a[i + 1] if i + 1 < len(a) else 0
        last = result[i] = link * last + b[i]
    return np.moveaxis(result, 0, axis).astype(dtype)


def _where(condition: Any, x: Any, y: Any) -> Any:
    return np.where(np.asarray(condition).astype(bool), x, y)


def _reduction(name: str) -> Meaning:
    function = getattr(np, name)

    def meaning(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
        return function(x, axis=axis, keepdims=keepdims)

    return meaning


def _arg(name: str) -> Meaning:
    """argmax and argmin; over several axes, the place in C order among them."""
    function = getattr(np, name)

    def meaning(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
        axes = list(range(x.ndim)) if axis is None else sorted(a % x.ndim for a in np.atleast_1d(axis))
        kept = [i for i in range(x.ndim) if i not in axes]
        flat = np.transpose(x, kept + axes).reshape(*(x.shape[i] for i in kept), math.prod(x.shape[i] for i in axes))
        found = np.asarray(function(flat, axis=-1))
        return np.expand_dims(found, tuple(axes)) if keepdims else found

    return meaning


def _groups(x: np.ndarray, axis: Any) -> list[list[tuple[int, ...]]]:
    """The places of an array that stand together along axes."""
    axes = range(x.ndim) if axis is None else [a % x.ndim for a in np.atleast_1d(axis)]
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for place in np.ndindex(x.shape):
        found.setdefault(tuple(n for i, n in enumerate(place) if i not in axes), []).append(place)
    return list(found.values())


def _logsumexp(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
    result = np.full(x.shape, -np.inf, np.longdouble)
    for group in _groups(x, axis):
        at = tuple(zip(*group, strict=True)) if x.ndim else ()
        top = np.max(x[at].astype(np.longdouble))
        result[at] = top if np.isinf(top) else top + np.log(np.sum(np.exp(x[at] - top)))
    return np.max(result, axis=axis, keepdims=keepdims, initial=-np.inf)


def _softmax(x: Any, axis: Any = None) -> Any:
    """As its limits are: infs share 1 evenly, and where all is -inf, each has 0."""
    result = np.zeros(x.shape, np.longdouble)
    for group in _groups(x, axis):
        at = tuple(zip(*group, strict=True)) if x.ndim else ()
        part = x[at].astype(np.longdouble)
        top = np.max(part)
        if top != -np.inf:
            powers = np.where(part == np.inf, 1.0, 0.0) if top == np.inf else np.exp(part - top)
            result[at] = powers / np.sum(powers)
    return result


def _cross_entropy(x: Any, labels: Any) -> Any:
    wide = x.astype(np.float64)
    labels = np.asarray(labels)
    found = -np.take_along_axis(_log_softmax(wide, -1), labels.reshape(*x.shape[:-1], 1), -1)
    return found.reshape(labels.shape).astype(_mean_dtype(x.dtype))


def _log_softmax(x: Any, axis: Any = None) -> Any:
    result = np.full(x.shape, -np.inf, np.longdouble)
    for group in _groups(x, axis):
        at = tuple(zip(*group, strict=True)) if x.ndim else ()
        part = x[at].astype(np.longdouble)
        top = np.max(part)
        if top == np.inf:
            part = np.where(part == np.inf, 0.0, -np.inf)
            top = np.longdouble(0.0)
        if top != -np.inf:
            result[at] = part - top - np.log(np.sum(np.exp(part - top)))
    return result


def _norm(x: Any, axis: Any = None, keepdims: bool = True, ord: Any = None) -> Any:
    return np.linalg.norm(x, ord=ord, axis=axis, keepdims=keepdims)


def _exclusive_prod(x: Any, axis: Any = None) -> Any:
    """At each place, the product of x elsewhere."""
    result = np.zeros(x.shape, np.result_type(x, np.longdouble))
    for group in _groups(x, axis):
        for place in group:
            result[place] = np.prod([x[p] for p in group if p != place], dtype=result.dtype)
    return result.astype(np.prod(x).dtype)


def _count(x: Any, axis: Any = None, ndim: int = 0) -> Any:
    sizes = np.sum(np.ones(np.shape(x)), axis=axis).ravel()
    size = sizes[0] if sizes.size else np.prod([np.shape(x)[a] for a in np.atleast_1d(axis)])
    return np.full((1,) * ndim, size, {"float16": "float32"}.get(str(_size_dtype(x)), _size_dtype(x)))


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


def _places(name: str, like: Any, arrays: Any, props: Any) -> np.ndarray:
    """The flat positions that an indexing op picks from."""
    positions = np.arange(np.size(like)).reshape(np.shape(like))
    return np.asarray(MEANINGS[name](positions, *arrays, **props))


def _scatter(x: Any, value: Any, *arrays: Any, index: Any) -> Any:
    result = np.array(x)
    result[_to_index(index, arrays)] = value
    return result


def _index_add(x: Any, like: Any, *arrays: Any, indexing: Any) -> Any:
    places = _places(indexing.name, like, arrays, {k: v for k, v in indexing.props.items() if k != "flat"})
    result = np.zeros(np.size(like), np.asarray(x).dtype)
    for position, value in zip(places.ravel(), np.broadcast_to(x, places.shape).ravel(), strict=True):
        result[position] += value
    return result.reshape(np.shape(like))


def _is_last(x: Any, *arrays: Any, index: Any) -> Any:
    places = _places("gather", x, arrays, {"index": index})
    flat = places.ravel().tolist()
    return np.array([p not in flat[i + 1 :] for i, p in enumerate(flat)], bool).reshape(places.shape)


def _unslice(x: Any, like: Any, index: Any) -> Any:
    result = np.zeros(np.shape(like), np.asarray(x).dtype)
    result[_to_index(index, ())] = x
    return result


def _split_like(x: Any, like: Any, axis: int, tail: bool) -> Any:
    return np.split(x, [np.shape(like)[axis]], axis)[int(tail)]


def _standardize(x: Any, axis: Any, epsilon: float) -> Any:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + epsilon)


def _pad(x: Any, pad_width: Any, constant_values: Any) -> Any:
    return np.pad(x, pad_width, constant_values=constant_values) if np.ndim(x) else x  # NumPy refuses an empty width


def _concatenate(*arrays: Any, axis: Any) -> Any:
    return np.concatenate(arrays, axis=axis)


def _drawn_at(seed: Any, counter: Any, place: Any, normal: bool, dtype: Any) -> Any:
    """Each number by itself, from the whole draw."""
    draw = philox.normal if normal else philox.uniform
    seeds, counters, places = np.broadcast_arrays(seed, counter, place)
    found = np.empty(places.shape, dtype)
    for i in np.ndindex(*places.shape):
        found[i] = draw(int(seeds[i]), int(counters[i]), (int(places[i]) + 1,), np.dtype(dtype))[-1]
    return found


def _count_in_bins(x: Any, y: Any, even: bool) -> Any:
    upper = [y <= high if i == len(x) - 2 else y < high for i, high in enumerate(x[1:])]
    return np.array([np.sum((y >= low) & below) for low, below in zip(x[:-1], upper, strict=True)], np.int64)


def _sort(x: Any, axis: Any) -> Any:
    """By float32 if it is float16: NumPy's own is wrong for repeated negative values where there is AVX-512."""
    return np.sort(x.astype(np.float32) if x.dtype == np.float16 else x, axis).astype(x.dtype)


def _searchsorted(x: Any, y: Any, side: str) -> Any:
    before = np.less if side == "left" else np.less_equal
    return before(x, np.asarray(y)[..., None]).sum(axis=-1, dtype=np.int64)


MEANINGS: dict[str, Meaning] = {
    **{name: _numpy(name) for name in NUMPY_ELEMENTWISE.split()},
    "erf": _in_double(special.erf),
    "sig": _in_double(special.expit),
    "scalb": _in_double(
        lambda x, y: np.where(np.isnan(y), y, np.ldexp(x, np.trunc(np.clip(np.nan_to_num(y), -9999, 9999)).astype(int)))
    ),
    "logb": _in_double(
        lambda x: np.where(np.isfinite(x) & (x != 0), np.frexp(x)[1] - 1, np.log2(np.abs(x)))  # log2 rounds 1024 - eps
    ),
    "sig2": _in_double(lambda x: 1 / (1 + np.exp2(-x))),
    "half_power": _in_double(lambda x, numerator: x ** (numerator / 2)),
    "sech2": _in_double(lambda x: (1 / np.cosh(x)) ** 2),
    "tanh2": _in_double(lambda x: np.tanh(x * np.log(2))),
    "safelog": _in_double(lambda x: np.log(np.maximum(x, np.exp(-50.0)))),
    "relu": _like_operand(lambda x: np.maximum(x, np.zeros((), np.asarray(x).dtype))),
    "where": _where,
    "cast": lambda x, dtype: np.asarray(x).astype(dtype),
    "fill_like": _like_operand(lambda x, value: np.full(np.shape(x), value)),
    "broadcast_like": lambda x, like: np.broadcast_to(x, np.shape(like)),
    **{name: _reduction(name) for name in ("sum", "prod", "max", "min", "mean", "all", "any")},
    **{name: _arg(name) for name in ("argmax", "argmin")},
    "count": _count,
    "cumsum": _so_far(np.cumsum, np.sum),
    "cumprod": _so_far(np.cumprod, np.prod),
    "segment_reduce": _segments,
    "segment_scatter": _segment_scatter,
    "segment_gather": _segment_gather,
    "cummax": lambda x, axis: np.maximum.accumulate(x, axis),
    "cummin": lambda x, axis: np.minimum.accumulate(x, axis),
    "recurrence": _recurrence,
    "dft": lambda x, axis, norm: np.fft.fft(_single(x), axis=axis, norm=norm),
    "idft": lambda x, axis, norm: np.fft.ifft(_single(x), axis=axis, norm=norm),
    "rdft": lambda x, axis, norm: np.fft.rfft(_single(x), axis=axis, norm=norm),
    "irdft": lambda x, axis, norm, size: np.fft.irfft(_single(x), size, axis, norm),
    "sort": _sort,
    "partition": lambda x, kth, axis: np.partition(x, np.array(kth, int), axis),
    "argpartition": lambda x, kth, axis: np.argpartition(x, np.array(kth, int), axis),
    "searchsorted": _searchsorted,
    "isin": lambda x, y: (x[..., None] == np.ravel(y)).any(axis=-1),
    "count_in_bins": _count_in_bins,
    "interpolate": lambda x, xp, fp: np.interp(x, xp, fp),
    "top_indices": lambda x, k, axis: np.take(np.argsort(-x.astype(float), axis, kind="stable"), np.arange(k), axis),
    "argsort": lambda x, axis: np.argsort(x, axis=axis, kind="stable"),
    "exclusive_prod": _exclusive_prod,
    "logsumexp": _in_double(_logsumexp, _mean_dtype),
    "softmax": _in_double(_softmax, _mean_dtype),
    "log_softmax": _in_double(_log_softmax, _mean_dtype),
    "norm": _in_double(_norm, _size_dtype),
    "standardize": _in_double(_standardize, _mean_dtype),
    "dot": np.dot,
    "matmul": np.matmul,
    "tensordot": np.tensordot,
    "transpose": np.transpose,
    "reshape": lambda x, newshape: np.reshape(x, newshape),
    "reshape_like": lambda x, like: np.reshape(x, np.shape(like)),
    "broadcast_to": np.broadcast_to,
    "expand_dims": np.expand_dims,
    "squeeze": np.squeeze,
    "slice": lambda x, index: x[_to_index(index, ())],
    "unslice": _unslice,
    "flip": np.flip,
    "concatenate": _concatenate,
    "head_like": lambda x, like, axis: _split_like(x, like, axis, tail=False),
    "tail_like": lambda x, like, axis: _split_like(x, like, axis, tail=True),
    "pad": _pad,
    "repeat": np.repeat,
    "take": lambda x, indices, axis, flat=False: np.take(x, indices, axis=axis),
    "embedding": lambda table, ids, axis=0, flat=False: np.take(table, ids, axis=0),
    "take_along_axis": np.take_along_axis,
    "cross_entropy": _cross_entropy,
    "check_labels": lambda labels, **options: np.array(labels),
    "gather": lambda x, *arrays, index: x[_to_index(index, arrays)],
    "scatter": _scatter,
    "index_add": _index_add,
    "is_last": _is_last,
    "lookup": lambda x, i: np.vectorize(lambda n: x[n] if 0 <= n < len(x) else 0, otypes=[x.dtype])(i),
    "flat_indices": lambda like, axis=None: (
        np.arange(np.size(like)).reshape(np.shape(like)) if axis is None else np.indices(np.shape(like))[axis]
    ),
    "drawn_at": _drawn_at,
    **windowed.MEANINGS,
}
