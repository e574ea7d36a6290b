"""Arrays without dimensions: a lazy one means what a stored one means, in every function and when it is written after.

So is what a function makes of one.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from harness.each import for_each
from harness.homes import home

from optree.errors import OptreeError
from optree.registry import NUMPY_FUNCTIONS
from optree.xp import linalg
from optree.xp.array import Array
from optree.xp.namespace import FUNCTIONS

#: The standard's functions, and NumPy's. The values of some are arbitrary.
OURS = {name: x for name, x in FUNCTIONS.items() if inspect.isfunction(x) and not name.startswith("empty")}
OURS |= {f"linalg.{name}": x for name, x in vars(linalg).items() if inspect.isfunction(x) and not name.startswith("_")}
NUMPYS = {
    f"np.{getattr(getattr(x, '__self__', None), '__name__', '')}.{x.__name__}": x
    for x in NUMPY_FUNCTIONS
    if x is not np.empty_like
}

#: The arguments of calls, of which a function takes some.
ARGUMENTS: tuple[Callable[[Any, Any], tuple[Any, ...]], ...] = (
    lambda x, y: (x,),
    lambda x, y: (x, y),
    lambda x, y: (x, y, y),
    lambda x, y: ([x, y],),
    lambda x, y: (x, 0),
    lambda x, y: (x, ()),
    lambda x, y: (x, (1,)),
    lambda x, y: (x, (y,)),
    lambda x, y: (x, 1, 1),
)

#: Writes into an operand or a result.
WRITES: dict[str, Callable[[Any], Any]] = {
    "=": lambda x: x.__setitem__(Ellipsis, 1),
    "*=": lambda x: x.__imul__(x.dtype.type(0)),
}


@pytest.fixture(scope="module")
def xp(home_kind: str) -> Any:
    return home(home_kind, datatype=np.float64).xp


def arrays_in(found: Any) -> Iterator[Any]:
    for each in found if isinstance(found, list | tuple) else [found]:
        yield from arrays_in(each) if isinstance(each, list | tuple) else [each] * isinstance(each, Array)


def operands(xp: Any, dtype: str, is_lazy: bool) -> tuple[Any, Any]:
    """6 and 2, read from memory or computed when a value is asked for."""
    if not is_lazy:
        return xp.asarray(np.array(6, dtype)), xp.asarray(np.array(2, dtype))
    one, other = xp.asarray(np.array(3, dtype)), xp.asarray(np.array(2, dtype))
    found = one * other, one - xp.asarray(np.array(1, dtype))
    assert found[0].is_lazy and found[1].is_lazy
    return found


def called(xp: Any, function: Any, arguments: Any, dtype: str, is_lazy: bool) -> list[Any]:
    """The operands, and what the function gives of them."""
    x, y = operands(xp, dtype, is_lazy)
    return [x, y, *arrays_in(function(*arguments(x, y)))]


def value(*call: Any) -> list[np.ndarray] | None:
    """The values after a call; None where the function refuses its arguments."""
    try:
        return [np.asarray(each) for each in called(*call)[2:]]  # an index out of range is refused when it runs
    except (OptreeError, TypeError, ValueError, AttributeError, IndexError):
        return None


def written(place: str, write: Any, *call: Any) -> list[np.ndarray]:
    """The values after a call and a write."""
    arrays = called(*call)
    for each in arrays[:1] if place == "operand" else arrays[2:3]:
        write(each)
    return [np.asarray(each) for each in arrays]


def check(xp: Any, function: Any, is_taken: Callable[[Any, str], bool]) -> None:
    """With each kind of arguments; each dtype has half of the writes, and on a stand-in half of the arguments."""
    for (number, arguments), dtype in product(enumerate(ARGUMENTS), ("float64", "int64")):
        turn = dtype == "int64"
        if (xp.backend_of(None).name == "gpu" and (number + turn) % 2) or not is_taken(arguments, dtype):
            continue
        what = f"with arguments {number} of {dtype}"
        calls = [(xp, function, arguments, dtype, is_lazy) for is_lazy in (False, True)]
        stored, lazy = (value(*call) for call in calls)
        assert (stored is None) == (lazy is None), f"{what}: one of both is refused"
        if stored is None or lazy is None:
            continue
        _equal(stored, lazy, what)
        for place, (name, write) in zip(("operand", "result"), [*WRITES.items()][:: -1 if turn else 1], strict=True):
            _equal(*(written(place, write, *call) for call in calls), f"{what}, {place} {name}")


def _equal(stored: list[np.ndarray], lazy: list[np.ndarray], what: str) -> None:
    for one, other in zip(stored, lazy, strict=True):
        assert one.dtype == other.dtype, what
        np.testing.assert_array_equal(one, other, what)


@for_each("name", OURS, sampled=True)
def test_a_lazy_array_without_dimensions_in_functions_of_the_standard(name: str, xp: Any) -> None:
    check(xp, OURS[name], lambda arguments, dtype: True)


@pytest.mark.filterwarnings("ignore")
@for_each("name", NUMPYS, sampled=True)
def test_a_lazy_array_without_dimensions_in_functions_of_numpys(name: str, xp: Any) -> None:
    def is_taken(arguments: Any, dtype: str) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                NUMPYS[name](*arguments(np.array(6, dtype), np.array(2, dtype)))
            except (TypeError, ValueError, IndexError, AttributeError, np.linalg.LinAlgError):
                return False
        return True

    check(xp, NUMPYS[name], is_taken)


def test_a_number_is_written_where_an_array_without_dimensions_is_flipped(xp: Any) -> None:
    """Of such an array, the value of `numpy.flip` is a number: what was made of it had no memory."""
    x = xp.asarray(3.0) * 2.0
    y = xp.flip(x)
    y[...] = 5.0
    assert float(x) == 5.0
    x += 1.0
    assert float(y) == 6.0
    stored = xp.asarray(3.0)
    xp.flip(stored)[...] = 4.0
    assert float(stored) == 4.0


def test_ufuncs_write_one_of_two_values(xp: Any) -> None:
    x, whole = xp.asarray([1.5, 2.25]), xp.zeros(2)
    fraction, other = np.modf(x, None, whole)
    assert isinstance(fraction, Array) and other is whole
    assert (fraction.tolist(), whole.tolist()) == ([0.5, 0.25], [1.0, 2.0])


def test_values_are_written_where_out_is_a_lazy_array(xp: Any) -> None:
    x, out = xp.asarray([1.0, 2.0]), xp.asarray(0.0) * 1
    assert np.sum(x * 2, 0, None, out) is out
    assert float(out) == 6.0
    assert np.round(x * 0.25, 1, x) is x and x.tolist() == [0.2, 0.5]


def test_lazy_integers_are_sizes_and_counts(xp: Any) -> None:
    x, two = xp.asarray([1.0, 2.0, 3.0]), xp.asarray(1) * 2
    assert np.roll(x, two).tolist() == np.roll(x.get(), 2).tolist()
    assert np.tile(x, two).shape == (6,)
    assert np.reshape(xp.zeros(4), (two, two)).shape == (2, 2)


def test_numbers_beside_arrays_are_arrays(xp: Any) -> None:
    x, one = np.atleast_1d(xp.asarray(6.0), 1)
    assert isinstance(one, Array) and one.device is x.device
    assert (x.tolist(), one.tolist()) == ([6.0], [1])
