"""Every function of the array API standard over its dtypes, against NumPy's, which has the standard's names, too."""

from __future__ import annotations

import copy
import importlib
import math
import pickle
from itertools import product

import numpy as np
import pytest
from harness.each import for_each
from harness.homes import home
from harness.standard import (
    COMPLEX,
    DTYPES,
    FLOATS,
    INTEGERS,
    NEAR,
    NEAR_IN_LINALG,
    NUMBERS,
    ORDERING,
    check,
    compare,
    sample,
)

from backends import gen_backend
from optree.xp import elementwise, namespace


@pytest.fixture(scope="module")
def xp(home_kind):
    return home(home_kind, datatype=np.float64).xp


@for_each(("name", "dtype"), product(elementwise.UNARY, (*DTYPES, "float16")), sampled=True)
def test_functions_of_one_array(xp, name, dtype):
    x = sample(dtype, seed=3) if dtype != "float16" else sample("float32", seed=3).astype("float16")
    check(lambda namespace, x: getattr(namespace, name)(x), xp, x)


@for_each(("name", "dtype"), product(elementwise.UNARY, FLOATS))
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


@for_each(("name", "pair"), product(elementwise.BINARY, PAIRS), sampled=True)
def test_functions_of_two_arrays(xp, name, pair):
    first, second = pair
    x, y = sample(first, seed=1), sample(second, (4,), seed=2)
    if "shift" in name or name == "pow":  # a negative exponent of integers is an error at run time
        y = np.abs(y) if second != "bool" else y
    check(lambda namespace, x, y: getattr(namespace, name)(x, y), xp, x, y, refuses=name in ORDERING)


NUMBERED = "add subtract multiply divide floor_divide remainder maximum minimum less equal greater_equal pow".split()


@for_each(("name", "dtype"), product(NUMBERED, (*NUMBERS, *COMPLEX)), sampled=True)
def test_a_python_number_takes_the_arrays_dtype(xp, name, dtype):
    x, refuses = sample(dtype, seed=5), name in ORDERING
    check(lambda namespace, x: getattr(namespace, name)(x, 2), xp, x, refuses=refuses)
    if name != "pow":
        check(lambda namespace, x: getattr(namespace, name)(3, x), xp, x, refuses=refuses)
    if dtype in (*FLOATS, *COMPLEX):
        check(lambda namespace, x: getattr(namespace, name)(x, 0.5), xp, x, refuses=refuses)
        check(lambda namespace, x: getattr(namespace, name)(x, 0.5 + 1j), xp, x + 0j, refuses=refuses)
    if dtype in FLOATS:
        assert getattr(xp, name)(xp.asarray(x), 0.5).dtype in (dtype, bool)
        if name in ("add", "divide", "pow"):  # complex64 for float32
            check(lambda namespace, x: getattr(namespace, name)(x, 2j), xp, x, near=NEAR)


#: Of one array of shape (3, 4), and any dtype for which NumPy has the function.
ONE = {
    "clip both": lambda xp, x: xp.clip(x, 1, 3),
    "clip low": lambda xp, x: xp.clip(x, min=2),
    "clip high": lambda xp, x: xp.clip(x, max=2),
    "clip float": lambda xp, x: xp.clip(x, 0.5, 1.5),
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


#: Those in a real dtype, for which NumPy drops imaginary parts.
CASTING = ("sum dtype", "prod dtype", "cumulative_sum dtype", "linalg.trace dtype", "astype")


@for_each(("name", "dtype"), product(ONE, DTYPES), sampled=True)
def test_functions_of_shapes_order_and_sums(xp, name, dtype):
    if dtype == "bool" and name.split()[0] in ("clip", "conj", "imag"):
        pytest.skip("the standard has it of numbers alone")
    refuses = name.split()[0] in ORDERING or name == "where number" or name in CASTING
    check(ONE[name], xp, sample(dtype, seed=7), near=NEAR, refuses=refuses)


#: Of one stack of square matrices, floating.
LINALG = {
    "cholesky": lambda xp, x: xp.linalg.cholesky(positive(xp, x)),
    "cholesky upper": lambda xp, x: xp.linalg.cholesky(positive(xp, x), upper=True),
    "det": lambda xp, x: xp.linalg.det(x),
    "eigh": lambda xp, x: tuple(abs(part) for part in xp.linalg.eigh(positive(xp, x))),
    "eigvalsh": lambda xp, x: xp.linalg.eigvalsh(positive(xp, x)),
    "inv": lambda xp, x: xp.linalg.inv(x),
    "matrix_norm nuclear": lambda xp, x: xp.linalg.matrix_norm(x, ord="nuc", keepdims=True),
    "matrix_norm inf": lambda xp, x: xp.linalg.matrix_norm(x, ord=xp.inf),
    "matrix_power": lambda xp, x: xp.linalg.matrix_power(x, -2),
    "matrix_rank": lambda xp, x: xp.linalg.matrix_rank(x[..., :2, :]),
    "matrix_rank of rtol": lambda xp, x: xp.linalg.matrix_rank(x, rtol=0.5),
    "matrix_transpose": lambda xp, x: xp.linalg.matrix_transpose(x),
    "pinv": lambda xp, x: xp.linalg.pinv(x[..., :2]),
    "pinv rtol": lambda xp, x: xp.linalg.pinv(x, rtol=0.01),
    "pinv rtols": lambda xp, x: xp.linalg.pinv(x, rtol=xp.asarray([0.99, 1e-3])),
    "qr": lambda xp, x: tuple(abs(part) for part in xp.linalg.qr(x[..., :2])),
    "qr complete": lambda xp, x: tuple(abs(part) for part in xp.linalg.qr(x, mode="complete")),
    "slogdet": lambda xp, x: tuple(xp.linalg.slogdet(x)),
    "solve": lambda xp, x: xp.linalg.solve(x, x[..., :2]),
    "solve vector": lambda xp, x: xp.linalg.solve(x, x[0, 0, :]),
    "svd": lambda xp, x: tuple(abs(part) for part in xp.linalg.svd(x)),
    "svd thin": lambda xp, x: tuple(abs(part) for part in xp.linalg.svd(x[..., :2], full_matrices=False)),
    "svdvals": lambda xp, x: xp.linalg.svdvals(x[..., :2]),
    "vector_norm": lambda xp, x: xp.linalg.vector_norm(x),
    "vector_norm axes": lambda xp, x: xp.linalg.vector_norm(x, axis=(0, 2), ord=3),
}


def positive(xp, x):
    return xp.matmul(x, xp.conj(xp.matrix_transpose(x))) + xp.eye(3, dtype=x.dtype)


@for_each(("name", "dtype"), product(LINALG, (*FLOATS, *COMPLEX)))
def test_linear_algebra(xp, name, dtype):
    x = sample(dtype, (2, 3, 3), seed=11) + 2 * np.eye(3, dtype=dtype)
    check(LINALG[name], xp, x, near=NEAR_IN_LINALG)


def test_several_arrays_are_in_a_list_or_a_tuple_as_the_standard_says(xp):
    x = xp.asarray([[2.0, 1.0], [1.0, 3.0]])
    assert type(xp.broadcast_arrays(x, x[0, :])) is type(xp.meshgrid(x[0, :], x[0, :])) is list
    assert type(xp.unstack(x)) is type(xp.nonzero(x)) is tuple
    assert type(xp.__array_namespace_info__().devices()) is tuple


def test_results_of_several_parts_have_the_standards_names(xp):
    x = xp.asarray([[2.0, 1.0], [1.0, 3.0]])
    found = {
        "eig": ("eigenvalues", "eigenvectors"),
        "eigh": ("eigenvalues", "eigenvectors"),
        "qr": ("Q", "R"),
        "slogdet": ("sign", "logabsdet"),
        "svd": ("U", "S", "Vh"),
    }
    for name, fields in found.items():
        assert getattr(xp.linalg, name)(x)._fields == fields
    assert xp.unique_all(x)._fields == ("values", "indices", "inverse_indices", "counts")
    assert xp.unique_counts(x)._fields == ("values", "counts")
    assert xp.unique_inverse(x)._fields == ("values", "inverse_indices")


MAKE = {
    "arange": lambda xp: xp.arange(5),
    "arange step": lambda xp: xp.arange(1.0, 2.0, 0.25),
    "arange down": lambda xp: xp.arange(5, -3, -2, dtype=xp.int32),
    "arange of nothing": lambda xp: xp.arange(3, 1),
    "asarray int": lambda xp: xp.asarray([[1, 2], [3, 4]]),
    "asarray float": lambda xp: xp.asarray([1.0, 2]),
    "asarray complex": lambda xp: xp.asarray([1j, 2.0, 3]),
    "asarray bool": lambda xp: xp.asarray([True, False]),
    "asarray number": lambda xp: xp.asarray(3),
    "asarray dtype": lambda xp: xp.asarray([1, 2], dtype=xp.uint8),
    "asarray of arrays": lambda xp: xp.asarray([xp.asarray(1.0), xp.asarray(2.0)]),
    "asarray of nothing": lambda xp: xp.asarray([], dtype=xp.float64),
    "eye": lambda xp: xp.eye(3),
    "eye k": lambda xp: xp.eye(2, 4, k=1, dtype=xp.int64),
    "full": lambda xp: xp.full((2, 3), 7),
    "full float": lambda xp: xp.full(3, 0.5),
    "full complex": lambda xp: xp.full(3, 1j),
    "full bool": lambda xp: xp.full((), True),
    "linspace": lambda xp: xp.linspace(0.0, 1.0, 5),
    "linspace complex": lambda xp: xp.linspace(0, 1j, 5),
    "linspace without the end": lambda xp: xp.linspace(1, 3, 4, endpoint=False),
    "ones": lambda xp: xp.ones((2, 2)),
    "ones dtype": lambda xp: xp.ones(3, dtype=xp.uint16),
    "zeros": lambda xp: xp.zeros(()),
    "zeros dtype": lambda xp: xp.zeros((0, 3), dtype=xp.bool),
}


@pytest.mark.parametrize("name", MAKE)
def test_new_arrays(xp, name):
    check(lambda namespace: MAKE[name](namespace), xp)


def test_uninitialised_arrays_have_their_shape_and_dtype(xp):
    x = xp.empty((2, 3), dtype=xp.int8)
    assert (x.shape, x.dtype) == ((2, 3), xp.int8)
    assert xp.empty_like(x, dtype=xp.float32).dtype == xp.float32
    assert xp.empty(4).dtype == xp.float64


def test_numbers_that_do_not_fit_are_refused(xp):
    for call in (
        lambda: xp.asarray([300], dtype=xp.int8),
        lambda: xp.asarray(2**70),
        lambda: xp.full(3, -1, dtype=xp.uint8),
        lambda: xp.ones(2, dtype=xp.uint8) + 300,
    ):
        with pytest.raises((OverflowError, TypeError)):
            call()
    for value in ("text", None, [1, "text"]):
        with pytest.raises((TypeError, ValueError)):
            xp.asarray(value)


def test_dtypes_and_what_is_known_of_them(xp):
    float32, int8 = xp.float32, xp.int8
    x = xp.ones(3, dtype=float32)
    assert xp.result_type(float32, xp.float64) == xp.float64 == xp.result_type(x, xp.asarray(1.0, dtype=xp.float64))
    assert xp.result_type(x, 1.0) == float32 and xp.result_type(int8, 1) == int8
    assert xp.result_type(xp.uint8, int8) == xp.int16 and xp.result_type(xp.bool, True) == xp.bool
    assert xp.can_cast(float32, xp.float64) and not xp.can_cast(xp.float64, float32) and xp.can_cast(x, xp.float64)
    info = xp.finfo(x)
    assert (info.bits, info.dtype) == (32, float32) and all(type(part) is float for part in info[1:5])
    assert info.eps == 2.0**-23 and info.smallest_normal == 2.0**-126 and info.max == -info.min
    assert tuple(xp.iinfo(xp.int16)) == (16, 32767, -32768, xp.int16)
    kinds = ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric")
    for name, dtype in namespace.DTYPES.items():
        assert [xp.isdtype(dtype, kind) for kind in kinds] == [np.isdtype(dtype, kind) for kind in kinds]
        assert xp.isdtype(dtype, (dtype, "bool")) and xp.isdtype(dtype, getattr(xp, name))
    for wrong in (lambda: xp.isdtype(float32, "float"), lambda: xp.finfo(xp.int8), lambda: xp.iinfo(xp.float32)):
        with pytest.raises(TypeError):
            wrong()
    assert (xp.e, xp.pi, xp.inf, xp.newaxis) == (math.e, math.pi, math.inf, None) and math.isnan(xp.nan)
    same = xp.astype(x, float32, copy=False)
    assert same is x and xp.astype(x, float32) is not x
    assert xp.broadcast_arrays(xp.ones((2, 1)), x)[0].shape == (2, 3)


def test_what_the_namespace_tells_of_itself(xp):
    be = xp.__array_namespace_info__().default_device()
    info = xp.__array_namespace_info__()
    assert info.capabilities() == {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}
    assert be in info.devices() and be.xp is xp
    assert info.default_dtypes() == {
        "real floating": xp.float64,
        "complex floating": xp.complex128,
        "integral": xp.int64,
        "indexing": xp.int64,
    }
    assert info.dtypes() == namespace.DTYPES
    assert list(info.dtypes(kind=("bool", "real floating"))) == ["bool", "float32", "float64"]
    assert list(info.dtypes(kind="complex floating")) == ["complex64", "complex128"]
    assert xp.__array_api_version__ == "2025.12"
    x = xp.ones(2)
    assert x.__array_namespace__() is xp is x.__array_namespace__(api_version="2024.12")
    with pytest.raises(ValueError, match="2019"):
        x.__array_namespace__(api_version="2019.01")
    missing = sorted(name for name in STANDARD.split() if not hasattr(xp, name))
    assert not missing
    assert not [name for name in STANDARD_LINALG.split() if not hasattr(xp.linalg, name)]
    assert not [name for name in STANDARD_ARRAY.split() if not hasattr(xp.ones((2, 2)), name)]
    assert set(STANDARD.split()) <= set(dir(xp))


STANDARD = """
__array_api_version__ __array_namespace_info__ e inf nan newaxis pi
bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128
arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones ones_like tril triu zeros
zeros_like astype can_cast finfo iinfo isdtype result_type
abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert bitwise_or
bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1 floor floor_divide greater
greater_equal hypot imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and logical_not
logical_or logical_xor maximum minimum multiply negative nextafter not_equal positive pow real reciprocal remainder
round sign signbit sin sinh square sqrt subtract tan tanh trunc
take take_along_axis matmul matrix_transpose tensordot vecdot
broadcast_arrays broadcast_shapes broadcast_to concat expand_dims flip moveaxis permute_dims repeat reshape roll squeeze
stack tile unstack argmax argmin count_nonzero nonzero searchsorted where
isin unique_all unique_counts unique_inverse unique_values
argsort sort cumulative_prod cumulative_sum max mean min prod std sum var all any diff
"""

STANDARD_LINALG = """
cholesky cross det diagonal eig eigh eigvals eigvalsh inv matmul matrix_norm matrix_power matrix_rank matrix_transpose
outer pinv qr slogdet solve svd svdvals tensordot trace vecdot vector_norm
"""

STANDARD_ARRAY = """
T mT device dtype ndim shape size to_device __abs__ __add__ __and__ __array_namespace__ __bool__ __complex__ __dlpack__
__dlpack_device__ __eq__ __float__ __floordiv__ __ge__ __getitem__ __gt__ __index__ __int__ __invert__ __le__ __lshift__
__lt__ __matmul__ __mod__ __mul__ __ne__ __neg__ __or__ __pos__ __pow__ __rshift__ __setitem__ __sub__ __truediv__
__xor__ __radd__ __rsub__ __rmul__ __rtruediv__ __rfloordiv__ __rmod__ __rpow__ __rmatmul__ __rand__ __ror__ __rxor__
__rlshift__ __rrshift__ __iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __imatmul__ __iand__
__ior__ __ixor__ __ilshift__ __irshift__
"""

INDICES = [
    np.s_[0],
    np.s_[-1, 2],
    np.s_[...],
    np.s_[()],
    np.s_[:, None, 1],
    np.s_[1:3, ::-1],
    np.s_[..., -2:],
    np.s_[5:, :],
    np.s_[::2, 3:0:-2],
    np.s_[[0, 2, 2]],
    np.s_[[0, 1], [3, 0]],
    np.s_[:, [1, 3]],
    np.s_[[[0], [2]], [1, 2]],
    np.s_[True],
    np.s_[False],
]


def as_index(xp, index):
    """An index with arrays for its lists."""
    entries = index if isinstance(index, tuple) else (index,)
    found = tuple(xp.asarray(x) if isinstance(x, list) else x for x in entries)
    return found if isinstance(index, tuple) else found[0]


@for_each(("index", "is_lazy"), product(INDICES, (False, True)))
def test_elements_by_index(xp, index, is_lazy):
    values = np.arange(12.0).reshape(3, 4)
    x = xp.asarray(values) * 1 if is_lazy else xp.asarray(values)
    compare(x[as_index(xp, index)], np.asarray(values[index]))
    for value in (-1.0, xp.asarray(-2.0), xp.asarray(values)[as_index(xp, index)] * 2):
        ours, numpys = xp.asarray(values) * 1, values.copy()
        ours[as_index(xp, index)] = value
        numpys[index] = np.asarray(value)
        np.testing.assert_array_equal(ours.get(), numpys)


def test_elements_by_mask(xp):
    values = np.arange(12.0).reshape(3, 4)
    x = xp.asarray(values)
    compare(x[x > 4], values[values > 4])
    compare(x[xp.asarray([True, False, True])], values[[True, False, True]])
    compare(x[1, x[1, :] > 5], values[1, values[1] > 5])
    x[x > 4] = 0.5
    values[values > 4] = 0.5
    compare(x, values)
    x[xp.asarray([True, False, True]), 1:] = xp.asarray([[1.0, 2.0, 3.0]] * 2)
    values[[True, False, True], 1:] = [[1.0, 2.0, 3.0]] * 2
    compare(x, values)
    x[x == 0.5] = xp.arange(7.0)[: int(xp.count_nonzero(x == 0.5))]
    values[values == 0.5] = np.arange(7.0)[: (values == 0.5).sum()]
    compare(x, values)
    zero = xp.asarray(3.0)
    assert zero[zero > 2].shape == (1,) and zero[zero > 5].shape == (0,)
    zero[zero > 2] = 7.0
    zero[zero < 2] = 9.0
    assert float(zero) == 7.0


def test_an_index_that_is_none_is_told(xp):
    x = xp.ones((2, 3))
    for wrong, kind in ((5, IndexError), ((0, 0, 0), IndexError), ("a", TypeError), (1.0, TypeError)):
        with pytest.raises(kind):
            x[wrong]
    with pytest.raises(IndexError):
        x[xp.asarray([True, False, True])]


OPERATORS = {
    **{f"__{name}__": "number" for name in "add sub mul truediv floordiv mod pow".split()},
    **{f"__{name}__": "integer" for name in "and or xor lshift rshift".split()},
    **{f"__{name}__": "compare" for name in "eq ne lt le gt ge".split()},
    "__matmul__": "number",
}


@for_each(("name", "dtype"), product(OPERATORS, DTYPES), sampled=True)
def test_operators_are_functions_reflected_and_in_place(xp, name, dtype):
    kind = OPERATORS[name]
    if dtype == "bool" and name not in ("__and__", "__or__", "__xor__", "__eq__", "__ne__"):
        pytest.skip("of numbers")
    if kind == "integer" and dtype in (*FLOATS, *COMPLEX):
        with pytest.raises(TypeError):
            getattr(xp.asarray(sample(dtype)), name)(xp.asarray(sample(dtype)))
        return
    shape = (4, 4)
    x, y = sample(dtype, shape, 1), sample(dtype, shape, 2)
    if name in ("__pow__", "__lshift__", "__rshift__"):
        y = np.abs(y)
    check(lambda _, x, y: getattr(x, name)(y), xp, x, y, near=NEAR, refuses=name in ORDERING)
    if kind == "compare":
        return
    reflected, in_place = name.replace("__", "__r", 1), name.replace("__", "__i", 1)
    check(lambda _, x, y: getattr(y, reflected)(x), xp, x, y, near=NEAR)
    if dtype in (COMPLEX if name in ("__floordiv__", "__mod__") else INTEGERS if name == "__truediv__" else ()):
        return
    for is_lazy in (False, True):
        ours, theirs = xp.asarray(xp.asarray(x), copy=is_lazy), xp.asarray(y)
        expected = x.copy()
        with np.errstate(all="ignore"):
            expected = getattr(expected, in_place)(y)
        found = getattr(ours, in_place)(theirs)
        assert found is ours
        compare(found, expected, NEAR)
    if name != "__matmul__" and dtype != "bool":
        check(lambda _, x: getattr(x, name)(2), xp, x, near=NEAR)
        if name not in ("__rpow__", "__pow__", "__lshift__"):
            check(lambda _, x: getattr(x, reflected)(2), xp, x, near=NEAR)


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_of_one_array(xp, dtype):
    x = sample(dtype)
    if dtype != "bool":
        check(lambda _, x: -x, xp, x)
        check(lambda _, x: +x, xp, x)
    check(lambda _, x: abs(x), xp, x)
    check(lambda _, x: ~x, xp, x)


def test_numbers_of_arrays(xp):
    assert (bool(xp.asarray(3)), int(xp.asarray(3.7)), float(xp.asarray(2)), complex(xp.asarray(1.5))) == (
        True,
        3,
        2.0,
        1.5 + 0j,
    )
    assert [10, 20, 30][xp.asarray(1)] == 20 and range(5)[xp.asarray(2, dtype=xp.uint8)] == 2
    for call, kind in (
        (lambda: bool(xp.ones(2)), ValueError),
        (lambda: float(xp.ones(2)), TypeError),
        (lambda: [1][xp.asarray(0.0)], TypeError),
        (lambda: [1][xp.asarray([0])], TypeError),
        (lambda: len(xp.asarray(1)), TypeError),
        (lambda: hash(xp.ones(1)), TypeError),
        (lambda: xp.ones(1) + "a", TypeError),
        (lambda: float(xp.asarray(1j)), TypeError),
        (lambda: xp.astype(xp.asarray([1j]), xp.float64), TypeError),
        (lambda: xp.sum([1.0]), TypeError),
        (lambda: xp.add(1, 2), TypeError),
    ):
        with pytest.raises(kind):
            call()
    assert (xp.ones(2) == None) is False  # noqa: E711
    assert 1.0 in xp.ones(2) and 2.0 not in xp.ones(2)


def test_numpy_takes_arrays(xp):
    x = xp.asarray([1.0, 4.0])
    assert type(np.sqrt(x)) is type(x) and np.sqrt(x).tolist() == [1.0, 2.0]
    assert type(np.ones(2) * x) is type(x) and (np.ones(2) - x).tolist() == [0.0, -3.0]
    assert np.concatenate([x, np.ones(1)]).tolist() == [1.0, 4.0, 1.0] and float(np.max(x)) == 4.0
    assert (x.sum().item(), x.mean(axis=0).item(), x.reshape(2, 1).shape, x.astype("int8").dtype) == (
        5,
        2.5,
        (2, 1),
        "i1",
    )
    assert np.add(x, 1, out=x) is x and x.tolist() == [2.0, 5.0]
    assert np.shape(x) == (2,) and np.unique(x).tolist() == [2.0, 5.0] and np.allclose(x, np.array([2, 5]))
    (rows,) = np.where(x > 3)  # as np.nonzero
    assert rows.tolist() == [1] and x[rows].tolist() == [5.0]
    array = np.asarray(x)
    assert type(array) is np.ndarray and np.asarray(x, dtype="float32").dtype == "float32"
    with pytest.raises(ValueError):
        np.asarray(x, copy=False)
    array[:] = 0
    assert x.tolist() == [2.0, 5.0]
    assert repr(x) == "Array([2., 5.], dtype=float64)" and str(x * 2) == "[ 4. 10.]" and f"{x[0]:.1f}" == "2.0"


def test_copies_and_views_of_other_memory():
    xp = gen_backend("cpu", datatype=np.float64).xp
    theirs = np.arange(3.0)
    copied, shared = xp.asarray(theirs), xp.asarray(theirs, copy=False)
    theirs[0] = 9
    assert copied.tolist() == [0.0, 1.0, 2.0] and shared.tolist() == [9.0, 1.0, 2.0]
    x = xp.asarray([1.0, 2.0])
    assert xp.asarray(x) is x and xp.asarray(x, copy=False) is x
    y = xp.asarray(x, copy=True)
    x[0] = 5
    assert y.tolist() == [1.0, 2.0]
    for call in (
        lambda: xp.asarray([1.0], copy=False),
        lambda: xp.asarray(x, dtype=xp.float32, copy=False),
        lambda: xp.asarray(theirs, dtype=xp.float32, copy=False),
        lambda: xp.reshape(xp.ones((2, 3)).T, (6,), copy=False),
    ):
        with pytest.raises(ValueError):
            call()
    assert np.from_dlpack(x).tolist() == [5.0, 2.0] and x.__dlpack_device__() == (1, 0)
    for options in ({"stream": None}, {"stream": -1}, {"max_version": (1, 0)}, {"dl_device": (1, 0)}, {"copy": True}):
        assert type(x.__dlpack__(**options)).__name__ == "PyCapsule"
    with pytest.raises(BufferError, match="has no stream 1"):
        x.__dlpack__(stream=1)
    with pytest.raises(TypeError):
        x.__dlpack__(strem=None)
    assert xp.from_dlpack(np.ones(2), copy=True).tolist() == [1.0, 1.0]
    frozen = np.ones(2)
    frozen.flags.writeable = False
    assert xp.from_dlpack(frozen).tolist() == [1.0, 1.0]
    with pytest.raises(BufferError):
        xp.from_dlpack(frozen, copy=False)
    with pytest.raises(AttributeError):
        xp.from_dlpack([1.0])


def test_arrays_are_copied_and_pickled(xp):
    x = xp.asarray([1.0, 2.0]) * 2
    copies = [copy.copy(x), copy.deepcopy(x)]
    be = gen_backend("cpu")
    copies.append(pickle.loads(pickle.dumps(x)))
    x[0] = 7.0
    assert [y.tolist() for y in copies] == [[2.0, 4.0]] * 3
    assert copies[-1].device is be and copies[0].device is x.device


def test_devices_are_backends(xp):
    other = gen_backend("cpu")
    x = xp.asarray([1.0, 2.0])
    y = x.to_device(other)
    assert x.to_device(x.device) is x and y.device is other and y.tolist() == [1.0, 2.0] and y.dtype == xp.float64
    assert xp.zeros(2, device=other).device is other and xp.zeros_like(y).device is other
    assert other.xp.zeros(2).dtype == xp.float32 and other.xp.ones(2, device="cpu").device is other
    assert xp.asarray(y, device=x.device).device is x.device and xp.asarray(y).device is other
    with pytest.raises(RuntimeError, match="copy one over"):
        x + y
    with pytest.raises(RuntimeError, match="a device is a backend"):
        xp.zeros(2, device="tpu")
    with pytest.raises(ValueError, match="stream"):
        x.to_device(other, stream=1)
    with pytest.raises(RuntimeError, match="neon"):
        _ = gen_backend("cpu", compat_mode="neon").xp


def test_the_module_has_the_namespace_of_the_current_backend(xp):
    from_optree = importlib.import_module("optree.xp")
    with pytest.raises(RuntimeError, match="gen_backend"):
        from_optree.zeros(2)
    one = gen_backend("cpu")
    assert from_optree.zeros(2).device is one
    two = gen_backend("cpu")
    assert from_optree.zeros(2).device is two and from_optree.ones(2, device=one).device is one
    assert sorted(dir(from_optree)) == sorted(dir(xp))
    assert from_optree.__array_namespace_info__().default_device() is two
    assert from_optree.fft.fftfreq(2).device is two and one.xp.fft.fftfreq(2).device is one
    with pytest.raises(AttributeError, match="no 'median'"):
        _ = from_optree.median


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 3)])
def test_arrays_of_nothing(xp, shape):
    x = np.zeros(shape)
    for call in (
        lambda xp, x: xp.sum(x),
        lambda xp, x: xp.sin(x) + x,
        lambda xp, x: xp.concat([x, x]),
        lambda xp, x: xp.any(x > 0),
        lambda xp, x: xp.unique_values(x),
        lambda xp, x: xp.nonzero(x),
        lambda xp, x: xp.sort(x),
        lambda xp, x: x[x > 0],
        lambda xp, x: xp.prod(x, axis=0),
    ):
        check(call, xp, x)
    with pytest.raises(ValueError):
        xp.max(xp.asarray(x))


def test_nans_are_distinct(xp):
    x = xp.asarray([xp.nan, 1.0, xp.nan, 1.0])
    found = xp.unique_all(x)
    assert found.counts.tolist() == [2, 1, 1] and found.indices.tolist() == [1, 0, 2]
    assert found.inverse_indices.shape == x.shape


def test_descending_sorts_are_stable(xp):
    x = xp.asarray([2.0, 1.0, 2.0, 3.0])
    assert xp.sort(x, descending=True).tolist() == [3.0, 2.0, 2.0, 1.0]
    assert xp.argsort(x, descending=True).tolist() == [3, 0, 2, 1]
    assert xp.argsort(xp.stack([x, -x], axis=1), axis=0, descending=True).T.tolist() == [[3, 0, 2, 1], [1, 0, 2, 3]]


def test_a_ufunc_writes_where_a_mask_is_true(xp):
    x, y = xp.asarray([1.0, 4.0, 9.0]), xp.asarray([0.0, 2.0, 0.0])
    found = np.divide(x, y, out=np.zeros_like(x), where=y != 0)
    assert found.tolist() == [0.0, 2.0, 0.0]
    out = xp.ones(3)
    assert np.sqrt(x, out=out, where=np.array([True, False, True])) is out and out.tolist() == [1.0, 1.0, 3.0]
    assert np.maximum.accumulate(x - y).tolist() == [1.0, 2.0, 9.0]
