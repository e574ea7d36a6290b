"""Numbers beside tensors in NumPy's functions: which NumPy makes arrays of, casts, or leaves weak."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("line", range(len(WITH_NUMBERS)))
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
