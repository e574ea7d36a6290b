"""Calls of the array API standard on arrays of `optree.xp`, compared with NumPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from optree.xp import namespace

DTYPES = tuple(namespace.DTYPES)
INTEGERS = tuple(name for name in DTYPES if "int" in name)
FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
NUMBERS = (*INTEGERS, *FLOATS)

#: Relative and absolute tolerances by the dtype in which a value is computed, which is its own: of sums, products and
#: functions, and of linear algebra.
NEAR = {"float32": 1e-5, "float64": 1e-12, "complex64": 1e-5, "complex128": 1e-12}
NEAR_IN_LINALG = {"float32": 2e-4, "float64": 1e-10, "complex64": 2e-4, "complex128": 1e-10}

#: The functions that order complex values in NumPy, and not in the standard.
ORDERING = """
argmax argmin clip greater greater_equal less less_equal max maximum min minimum __lt__ __le__ __gt__ __ge__
""".split()


def sample(dtype, shape=(3, 4), seed=0):
    """Numbers of a dtype: of every sign that it has, with zeros, and small enough for products of a few."""
    rng = np.random.default_rng(seed)
    size = math.prod(shape)
    if dtype == "bool":
        return (rng.random(shape) < 0.5).astype(bool)
    if dtype in COMPLEX:
        return (sample("float64", shape, seed) + 1j * sample("float64", shape, seed + 100)).astype(dtype)
    if dtype in FLOATS:
        return (rng.standard_normal(size) * 2).reshape(shape).astype(dtype)
    return rng.integers(0 if dtype.startswith("u") else -4, 5, shape).astype(dtype)


def is_array(x):
    return hasattr(x, "__array_namespace__") or isinstance(x, np.generic)


def check(call, xp, *arrays, near=None, refuses=False):
    """A call of NumPy's namespace and of ours, on the same arrays: alike in values, dtypes, shapes and errors.

    One that `refuses` complex values is an error of ours alone.
    """
    ours = [xp.asarray(x) for x in arrays]
    if refuses and any(x.dtype.kind == "c" for x in arrays):
        with pytest.raises(TypeError, match="complex"):
            call(xp, *ours)
        return
    with np.errstate(all="ignore"):
        try:
            expected = call(np, *arrays)
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            kinds = [kind for kind in (TypeError, ValueError, IndexError, OverflowError) if isinstance(error, kind)]
            with pytest.raises((*kinds, TypeError)):
                call(xp, *ours)
            return
        found = call(xp, *ours)
    compare(found, expected, near)
    for array, before in zip(ours, arrays, strict=True):
        np.testing.assert_array_equal(array.get(), before)


def compare(found, expected, near=None):
    """Values within 16 units in the last place, or within the tolerances by dtype that are given."""
    if isinstance(expected, tuple | list):
        assert isinstance(found, tuple) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            compare(one, other, near)
        return
    if not is_array(expected):
        assert found == expected
        return
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if expected.dtype.kind in "fc":
        allowed = float(np.finfo(expected.dtype).eps) * 16 if near is None else near[expected.dtype.name]
        np.testing.assert_allclose(found.get(), expected, rtol=allowed, atol=allowed)
    else:
        np.testing.assert_array_equal(found.get(), expected)
