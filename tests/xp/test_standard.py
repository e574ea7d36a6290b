"""Every function of the array API standard over its dtypes, against NumPy's, which has the standard's names, too."""

from __future__ import annotations

import math

import numpy as np
import pytest

from backends import gen_backend
from optree.xp import elementwise, namespace

DTYPES = tuple(namespace.DTYPES)
INTEGERS = tuple(name for name in DTYPES if "int" in name)
FLOATS = ("float32", "float64")
NUMBERS = (*INTEGERS, *FLOATS)


@pytest.fixture(scope="module")
def xp():
    return gen_backend("cpu", datatype=np.float64).xp


def sample(dtype, shape=(3, 4), seed=0):
    """Numbers of a dtype: of every sign that it has, with zeros, and small enough for products of a few."""
    rng = np.random.default_rng(seed)
    size = math.prod(shape)
    if dtype == "bool":
        return (rng.random(shape) < 0.5).astype(bool)
    if dtype in FLOATS:
        return (rng.standard_normal(size) * 2).reshape(shape).astype(dtype)
    return rng.integers(0 if dtype.startswith("u") else -4, 5, shape).astype(dtype)


def is_array(x):
    return hasattr(x, "__array_namespace__") or isinstance(x, np.generic)


def check(call, xp, *arrays, rtol=None):
    """A call of NumPy's namespace and of ours, on the same arrays: alike in values, dtypes, shapes and errors."""
    ours = [xp.asarray(x) for x in arrays]
    with np.errstate(all="ignore"):
        try:
            expected = call(np, *arrays)
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            kinds = [kind for kind in (TypeError, ValueError, IndexError, OverflowError) if isinstance(error, kind)]
            with pytest.raises((*kinds, TypeError)):
                call(xp, *ours)
            return
        found = call(xp, *ours)
    compare(found, expected, rtol)
    for array, before in zip(ours, arrays, strict=True):
        np.testing.assert_array_equal(array.get(), before)


def compare(found, expected, rtol=None):
    if isinstance(expected, tuple | list):
        assert isinstance(found, tuple) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            compare(one, other, rtol)
        return
    if not is_array(expected):
        assert found == expected
        return
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if expected.dtype.kind == "f":
        near = float(np.finfo(expected.dtype).eps) * 16 if rtol is None else rtol
        np.testing.assert_allclose(found.get(), expected, rtol=near, atol=near)
    else:
        np.testing.assert_array_equal(found.get(), expected)


@pytest.mark.parametrize("dtype", (*DTYPES, "float16"))
@pytest.mark.parametrize("name", elementwise.UNARY)
def test_functions_of_one_array(xp, name, dtype):
    x = sample(dtype, seed=3) if dtype != "float16" else sample("float32", seed=3).astype("float16")
    check(lambda namespace, x: getattr(namespace, name)(x), xp, x)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", elementwise.UNARY)
def test_special_values(xp, name, dtype):
    info = np.finfo(dtype)
    x = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, np.inf, -np.inf, np.nan, info.tiny, info.max], dtype)
    check(lambda namespace, x: getattr(namespace, name)(x), xp, x)
    if name != "bitwise_invert":
        signs = np.signbit(getattr(xp, name)(xp.asarray(x)).get()) if name not in ("sign",) else None
        with np.errstate(all="ignore"):
            expected = getattr(np, name)(x)
        if signs is not None and expected.dtype.kind == "f":
            zero = expected == 0
            np.testing.assert_array_equal(signs[zero], np.signbit(expected)[zero])


PAIRS = [
    *((dtype, dtype) for dtype in DTYPES),
    *(("int8", "int32"), ("uint8", "int16"), ("float32", "float64"), ("int32", "float32"), ("bool", "int8")),
    *(("uint64", "int64"), ("uint32", "float64")),
]


@pytest.mark.parametrize("pair", PAIRS, ids=" ".join)
@pytest.mark.parametrize("name", elementwise.BINARY)
def test_functions_of_two_arrays(xp, name, pair):
    first, second = pair
    x, y = sample(first, seed=1), sample(second, (4,), seed=2)
    if "shift" in name or name == "pow":  # a negative exponent of integers is an error at run time
        y = np.abs(y) if second != "bool" else y
    check(lambda namespace, x, y: getattr(namespace, name)(x, y), xp, x, y)


NUMBERED = "add subtract multiply divide floor_divide remainder maximum minimum less equal greater_equal pow".split()


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("name", NUMBERED)
def test_a_python_number_takes_the_arrays_dtype(xp, name, dtype):
    x = sample(dtype, seed=5)
    check(lambda namespace, x: getattr(namespace, name)(x, 2), xp, x)
    if name != "pow":
        check(lambda namespace, x: getattr(namespace, name)(3, x), xp, x)
    if dtype in FLOATS:
        check(lambda namespace, x: getattr(namespace, name)(x, 0.5), xp, x)
        assert getattr(xp, name)(xp.asarray(x), 0.5).dtype in (dtype, bool)


#: Of one array of shape (3, 4), and any dtype for which NumPy has the function.
ONE = {
    "clip both": lambda xp, x: xp.clip(x, 1, 3),
    "clip low": lambda xp, x: xp.clip(x, min=2),
    "clip high": lambda xp, x: xp.clip(x, max=2),
    "conj": lambda xp, x: xp.conj(x),
    "real": lambda xp, x: xp.real(x),
    "imag": lambda xp, x: xp.imag(x),
    "sum": lambda xp, x: xp.sum(x),
    "sum axis": lambda xp, x: xp.sum(x, axis=0),
    "sum axes keepdims": lambda xp, x: xp.sum(x, axis=(0, -1), keepdims=True),
    "sum dtype": lambda xp, x: xp.sum(x, axis=1, dtype=xp.float64),
    "prod": lambda xp, x: xp.prod(x),
    "prod axis": lambda xp, x: xp.prod(x, axis=-1, keepdims=True),
    "prod dtype": lambda xp, x: xp.prod(x, dtype=xp.float32),
    "max": lambda xp, x: xp.max(x),
    "max axis": lambda xp, x: xp.max(x, axis=1),
    "min": lambda xp, x: xp.min(x, keepdims=True),
    "min axes": lambda xp, x: xp.min(x, axis=(0, 1)),
    "mean": lambda xp, x: xp.mean(x),
    "mean axis": lambda xp, x: xp.mean(x, axis=0, keepdims=True),
    "var": lambda xp, x: xp.var(x),
    "var correction": lambda xp, x: xp.var(x, axis=0, correction=1),
    "std": lambda xp, x: xp.std(x, axis=-1),
    "std correction": lambda xp, x: xp.std(x, correction=1.0, keepdims=True),
    "all": lambda xp, x: xp.all(x),
    "all axis": lambda xp, x: xp.all(x, axis=0, keepdims=True),
    "any": lambda xp, x: xp.any(x),
    "any axes": lambda xp, x: xp.any(x, axis=(0, 1)),
    "cumulative_sum": lambda xp, x: xp.cumulative_sum(x, axis=1),
    "cumulative_sum first": lambda xp, x: xp.cumulative_sum(x, axis=0, include_initial=True),
    "cumulative_sum dtype": lambda xp, x: xp.cumulative_sum(x, axis=-1, dtype=xp.float32),
    "cumulative_sum of rows": lambda xp, x: xp.cumulative_sum(x[0, :]),
    "cumulative_sum without axis": lambda xp, x: xp.cumulative_sum(x),
    "cumulative_prod": lambda xp, x: xp.cumulative_prod(x, axis=1),
    "cumulative_prod first": lambda xp, x: xp.cumulative_prod(x, axis=0, include_initial=True),
    "diff": lambda xp, x: xp.diff(x),
    "diff axis": lambda xp, x: xp.diff(x, axis=0, n=2),
    "diff around": lambda xp, x: xp.diff(x, prepend=x[:, :1], append=x[:, :2]),
    "argmax": lambda xp, x: xp.argmax(x),
    "argmax axis": lambda xp, x: xp.argmax(x, axis=1, keepdims=True),
    "argmin": lambda xp, x: xp.argmin(x, axis=0),
    "count_nonzero": lambda xp, x: xp.count_nonzero(x, axis=0),
    "count_nonzero keepdims": lambda xp, x: xp.count_nonzero(x, axis=(0, 1), keepdims=True),
    "nonzero": lambda xp, x: xp.nonzero(x),
    "sort": lambda xp, x: xp.sort(x),
    "sort axis": lambda xp, x: xp.sort(x, axis=0),
    "argsort": lambda xp, x: xp.argsort(x, stable=True),
    "argsort axis": lambda xp, x: xp.argsort(x, axis=0, stable=True),
    "unique_all": lambda xp, x: tuple(xp.unique_all(x)),
    "unique_counts": lambda xp, x: tuple(xp.unique_counts(x)),
    "unique_inverse": lambda xp, x: tuple(xp.unique_inverse(x)),
    "unique_values": lambda xp, x: xp.sort(xp.unique_values(x)),
    "concat": lambda xp, x: xp.concat([x, x[:1, :]], axis=0),
    "concat flat": lambda xp, x: xp.concat((x, x), axis=None),
    "stack": lambda xp, x: xp.stack([x, x], axis=-1),
    "unstack": lambda xp, x: xp.unstack(x, axis=1),
    "expand_dims": lambda xp, x: xp.expand_dims(x, axis=1),
    "squeeze": lambda xp, x: xp.squeeze(x[None, :, :, None], axis=(0, -1)),
    "flip": lambda xp, x: xp.flip(x),
    "flip axis": lambda xp, x: xp.flip(x, axis=1),
    "moveaxis": lambda xp, x: xp.moveaxis(x, 0, -1),
    "permute_dims": lambda xp, x: xp.permute_dims(x, (1, 0)),
    "matrix_transpose": lambda xp, x: xp.matrix_transpose(x),
    "reshape": lambda xp, x: xp.reshape(x, (2, -1)),
    "reshape copy": lambda xp, x: xp.reshape(x, (12,), copy=True),
    "repeat": lambda xp, x: xp.repeat(x, 2, axis=1),
    "repeat flat": lambda xp, x: xp.repeat(x, 3),
    "repeat by array": lambda xp, x: xp.repeat(x, xp.asarray([2, 0, 1]), axis=0),
    "roll": lambda xp, x: xp.roll(x, 5),
    "roll axes": lambda xp, x: xp.roll(x, (1, -2), axis=(0, 1)),
    "tile": lambda xp, x: xp.tile(x, (2, 1, 2)),
    "tril": lambda xp, x: xp.tril(x, k=1),
    "triu": lambda xp, x: xp.triu(x),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x, (2, 3, 4)),
    "broadcast_arrays": lambda xp, x: tuple(xp.broadcast_arrays(x, x[:1, :])),
    "meshgrid": lambda xp, x: tuple(xp.meshgrid(x[0, :], x[:, 1], indexing="ij")),
    "meshgrid xy": lambda xp, x: tuple(xp.meshgrid(x[0, :], x[:, 1])),
    "take": lambda xp, x: xp.take(x, xp.asarray([2, 0, 2]), axis=0),
    "take of rows": lambda xp, x: xp.take(x[1, :], xp.asarray([3, -1])),
    "take_along_axis": lambda xp, x: xp.take_along_axis(x, xp.asarray([[0, 1], [1, 0], [3, 3]]), axis=1),
    "searchsorted": lambda xp, x: xp.searchsorted(xp.sort(x[0, :]), x, side="right"),
    "searchsorted sorter": lambda xp, x: xp.searchsorted(x[0, :], x[1, :], sorter=xp.argsort(x[0, :])),
    "where": lambda xp, x: xp.where(x == x[:1, :], x, x[1:2, :]),
    "where number": lambda xp, x: xp.where(x > x[:1, :], x, 0),
    "astype": lambda xp, x: xp.astype(x, xp.float32),
    "astype bool": lambda xp, x: xp.astype(x, xp.bool),
    "zeros_like": lambda xp, x: xp.zeros_like(x),
    "ones_like": lambda xp, x: xp.ones_like(x, dtype=xp.int16),
    "full_like": lambda xp, x: xp.full_like(x, 3),
    "matmul": lambda xp, x: xp.matmul(x, x.T),
    "tensordot": lambda xp, x: xp.tensordot(x, x, axes=((0,), (0,))),
    "tensordot all": lambda xp, x: xp.tensordot(x, x),
    "vecdot": lambda xp, x: xp.vecdot(x, x[:1, :]),
    "linalg.vecdot axis": lambda xp, x: xp.linalg.vecdot(x, x),
    "linalg.outer": lambda xp, x: xp.linalg.outer(x[0, :], x[:, 0]),
    "linalg.cross": lambda xp, x: xp.linalg.cross(x[:, :3], x[::-1, 1:]),
    "linalg.diagonal": lambda xp, x: xp.linalg.diagonal(x, offset=1),
    "linalg.trace": lambda xp, x: xp.linalg.trace(x, offset=-1),
    "linalg.trace dtype": lambda xp, x: xp.linalg.trace(x, dtype=xp.float64),
    "linalg.matrix_norm": lambda xp, x: xp.linalg.matrix_norm(x),
    "linalg.vector_norm": lambda xp, x: xp.linalg.vector_norm(x, axis=1, ord=1, keepdims=True),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ONE)
def test_functions_of_shapes_order_and_sums(xp, name, dtype):
    if dtype == "bool" and name.split()[0] in ("clip", "conj", "imag"):
        pytest.skip("the standard has it of numbers alone")
    rtol = {"float32": 1e-5}.get(dtype, 1e-12)
    check(ONE[name], xp, sample(dtype, seed=7), rtol=rtol)
