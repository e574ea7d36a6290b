"""NumPy's functions that write into an array, ufuncs that write where a mask is true, and the `at` of ufuncs."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from backends import gen_backend
from optree.errors import AxisError, DTypeError, OperandError, ShapeError
from optree.registry import NUMPY_FUNCTIONS

#: In each row the places of four elements.
ORDER = np.array([[2, 0, 1, 3], [0, 3, 2, 1], [3, 2, 1, 0]])

#: The NumPy functions that write into their first argument, an array of three rows of four.
WRITERS = {
    np.copyto: [
        lambda x: np.copyto(x, x * 2),
        lambda x: np.copyto(x, 5),
        lambda x: np.copyto(x, np.arange(4), where=[True, False, True, False]),
        lambda x: np.copyto(x, x.astype("float32"), casting="safe", where=x > 3),
    ],
    np.putmask: [
        lambda x: np.putmask(x, x > 3, x * 2),
        lambda x: np.putmask(x, x > 3, [1, 2, 3]),
        lambda x: np.putmask(x, ORDER > 1, 9.0),
    ],
    np.place: [lambda x: np.place(x, x > 3, [1, 2, 3]), lambda x: np.place(x, x < 0, 7.0)],
    np.put: [
        lambda x: np.put(x, [0, -1, 5], [1, 2]),
        lambda x: np.put(x, [[3]], 7.0),
        lambda x: np.put(x, [100, -30], x[0], mode="wrap"),
        lambda x: np.put(x, [100, -30], [7.0, 8, 9, 10], mode="clip"),
    ],
    np.fill_diagonal: [
        lambda x: np.fill_diagonal(x, 3),
        lambda x: np.fill_diagonal(x, [1, 2]),
        lambda x: np.fill_diagonal(x.T, x[0]),
        lambda x: np.fill_diagonal(x[:, :2], 8, wrap=True),
        lambda x: np.fill_diagonal(x[None, :1, :1], 8),
    ],
    np.put_along_axis: [
        lambda x: np.put_along_axis(x, ORDER, np.arange(4.0), 1),
        lambda x: np.put_along_axis(x, ORDER[:, :1], 99, axis=-1),
        lambda x: np.put_along_axis(x, np.array([1, 2]), 99, axis=None),
        lambda x: np.put_along_axis(x, np.argmax(x, axis=1, keepdims=True), 99, axis=1),
    ],
}


@pytest.fixture(scope="module")
def cpu() -> Any:
    """A backend of float64."""
    return gen_backend("cpu", datatype=np.float64)


def test_every_function_that_writes_is_called_here() -> None:
    assert {function for function, ours in NUMPY_FUNCTIONS.items() if hasattr(ours, "writes")} == WRITERS.keys()


@pytest.mark.parametrize("function", WRITERS, ids=lambda function: f"{function.__name__}")
def test_functions_that_write_into_an_array_write_into_tensors_and_lazy_arrays(function: Any, cpu: Any) -> None:
    values = np.arange(12.0).reshape(3, 4)
    for call in WRITERS[function]:
        text, wanted = inspect.getsource(call).strip(), values.copy()
        call(wanted)
        tensor, lazy = cpu.array(values), cpu.xp.asarray(values)
        before = lazy * 1
        assert call(tensor) is None and call(lazy) is None, text
        np.testing.assert_array_equal(tensor.get(), wanted, text)
        np.testing.assert_array_equal(lazy.get(), wanted, text)
        np.testing.assert_array_equal(before.get(), values, "what was read before stays")
    with pytest.raises(OperandError, match="writes into a tensor"):
        WRITERS[function][0](cpu.array(values) * 1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, i: np.copyto(i, x), DTypeError, "np.copyto: x .* is not cast to int64"),
        (lambda x, i: np.put(i, 0, 2.5), DTypeError, "np.put: 2.5 .* is not cast to int64"),
        (lambda x, i: np.put(x, 6, 1.0), AxisError, "index 6 is out of range"),
        (lambda x, i: np.place(x, x > 1, []), ShapeError, "np.place: .* no element"),
        (lambda x, i: np.putmask(x, [True], 1), ShapeError, r"np.putmask: the mask .* not of the shape \(2, 3\)"),
        (lambda x, i: np.fill_diagonal(i, 1), ShapeError, "np.fill_diagonal: a matrix is wanted"),
        (lambda x, i: np.put_along_axis(x, np.array([0]), 1, axis=1), ShapeError, "np.put_along_axis: .* dimensions"),
        (lambda x, i: np.copyto(np.ones((2, 3)), x), OperandError, "np.copyto writes into a tensor, and a ndarray"),
    ],
)
def test_what_is_not_written_is_refused_with_a_reason(call: Any, error: Any, message: str, cpu: Any) -> None:
    x, i = cpu.array(np.ones((2, 3)), name="x"), cpu.array(np.array([0]), "int64", name="i")
    with pytest.raises(error, match=message):
        call(x, i)
    assert x.tolist() == np.ones((2, 3)).tolist() and i.tolist() == [0]


MASK = np.array([[True, False, True], [False, False, True]])


def test_a_ufunc_of_some_elements_leaves_the_others_of_out_as_they_are(cpu: Any) -> None:
    over, under = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), np.array([0.0, 2.0, 0.0])
    out, x, y = cpu.array(over * 10), cpu.array(over), cpu.array(under)
    assert np.divide(x, y, out=out, where=y != 0) is out
    np.testing.assert_array_equal(out.get(), np.divide(over, under, out=over * 10, where=under != 0))
    outs = cpu.ones((2, 3)), cpu.ones((2, 3))
    np.divmod(x, 2.0, out=outs, where=MASK)
    wanted = np.divmod(over, 2.0, out=(np.ones((2, 3)), np.ones((2, 3))), where=MASK)
    assert [each.tolist() for each in outs] == [each.tolist() for each in wanted]
    with pytest.raises(TypeError, match=r"np\.sqrt: with where=.*np\.where\(mask, np\.sqrt"):
        np.sqrt(x, where=MASK)


def test_subtract_at_takes_repeated_indices_away(cpu: Any) -> None:
    for dtype in ("float64", "uint8"):
        x, values = cpu.array(np.array([5, 6, 7], dtype), dtype), np.array([5, 6, 7], dtype)
        np.subtract.at(x, [0, 2, 0], np.array([1, 2, 3], dtype))
        np.subtract.at(values, [0, 2, 0], np.array([1, 2, 3], dtype))
        assert x.get().tolist() == values.tolist()
