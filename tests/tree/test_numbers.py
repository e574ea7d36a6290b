"""Numbers and dtypes beside tensors in NumPy's functions: what NumPy casts, makes arrays of, or leaves weak."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from harness.each import for_each

from optree.errors import DTypeError

#: Lines with numbers.
WITH_NUMBERS = [
    lambda x: np.outer(x, 2),
    lambda x: np.outer(0.5, x),
    lambda x: np.inner(x, 2),
    lambda x: np.sum(x, initial=2.7),
    lambda x: np.sum(x, initial=np.float64(2), axis=0),
    lambda x: np.sum(x, initial=2.7, where=np.array([True, False])),
    lambda x: np.prod(x, initial=3.9),
    lambda x: np.max(x, initial=1.5),
    lambda x: np.max(x, initial=np.float64(9), where=np.array([True, False])),
    lambda x: np.min(x, initial=0.5, axis=1),
    lambda x: np.max(x[:0], initial=1.5),
    lambda x: np.imag(x),
    lambda x: np.nextafter(x, True),
    lambda x: np.pad(x, 1, mode="mean"),
    lambda x: np.pad(x, 1, mode="median"),
    lambda x: np.select([x > 0, x < 1], [x, x > 0], 0),
    lambda x: np.select([x > 0], [x], 0.5),
    lambda x: np.select([x > 0, x < 1], [1, x], 0.5),
    lambda x: np.select([x > 0, x < 1], [1, 2]),
]


@for_each(
    ("line", "dtype"),
    product(range(len(WITH_NUMBERS)), ["bool", "int8", "uint8", "int64", "float16", "float32", "float64"]),
)
def test_dtypes_of_lines_with_numbers_are_numpys(cpu: Any, line: int, dtype: str) -> None:
    x = np.array([[1, 0], [1, 1]], dtype)
    wanted, found = WITH_NUMBERS[line](x), WITH_NUMBERS[line](cpu.array(x, dtype))
    assert found.dtype == found.asnumpyarray().dtype == wanted.dtype
    np.testing.assert_array_equal(found.asnumpyarray(), wanted)


def test_an_initial_value_that_overflows_is_refused_as_by_numpy(cpu: Any) -> None:
    for call in (lambda x: np.max(x, initial=300), lambda x: np.min(x, initial=np.inf)):
        for x in (np.ones(3, np.int8), cpu.ones(3, np.int8)):
            with pytest.raises(OverflowError):
                call(x)


#: Lines with `dtype`, in which NumPy computes: int8 100 times 100 is 10,000 in int64, and three Trues are 3.0.
IN_A_DTYPE = [
    lambda i, b, u: np.einsum("ij->i", b, dtype="f8"),
    lambda i, b, u: np.einsum("ij,ij->i", i, i, dtype="i8"),
    lambda i, b, u: np.concatenate([i.astype("i8") + 2**62, u], dtype="i8"),  # through float64 it would lose bits
    lambda i, b, u: np.stack([i.astype("i8") + 2**62, u], dtype="i8"),
    lambda i, b, u: np.sum(i, dtype="i8"),
    lambda i, b, u: np.matmul(i, i.T, dtype="i8"),
    lambda i, b, u: np.vecdot(i, i, dtype="i8"),
    lambda i, b, u: np.mean(i, dtype="f4"),
    lambda i, b, u: np.full_like(i, 3, dtype="f4"),
    lambda i, b, u: np.unwrap(i[0], period=4),
]


@pytest.mark.parametrize("line", range(len(IN_A_DTYPE)))
def test_what_is_computed_in_a_dtype_is_numpys(cpu: Any, line: int) -> None:
    arrays = np.full((2, 3), 100, np.int8), np.ones((2, 3), bool), np.full((2, 3), 3, np.uint64)
    wanted, found = (IN_A_DTYPE[line](*given) for given in (arrays, [cpu.array(x, x.dtype) for x in arrays]))
    assert found.dtype == found.asnumpyarray().dtype == wanted.dtype
    np.testing.assert_array_equal(found.asnumpyarray(), wanted)


def test_unsigned_angles_are_refused_as_by_numpy(cpu: Any) -> None:
    for x in (np.array([1, 3], np.uint8), cpu.array([1, 3], "uint8")):
        with pytest.raises((OverflowError, DTypeError), match=r"out of bounds for uint8|x\.astype\('int64'\)"):
            np.unwrap(x, period=4)
