"""Numbers that do not fit the dtype that they meet: an error at that line, and nothing changed."""

from __future__ import annotations

import numpy as np
import pytest
from harness.messages import message_of

from optree import OpTreeNode
from optree.errors import NumberOverflowError


@pytest.fixture
def x(be):
    return be.ones((2, 3), name="x")


@pytest.mark.parametrize(
    "make",
    [
        lambda be, n: n + 300,
        lambda be, n: 300 + n,
        lambda be, n: n * -129,
        lambda be, n: be.maximum(n, 128),
        lambda be, n: n.__setitem__(slice(None), 300),
        lambda be, n: n.__setitem__(0, -129),
        lambda be, n: n.__setitem__(slice(None), np.int64(300)),
        lambda be, n: n.__setitem__(slice(None), [1, 300]),
        lambda be, n: n.__setitem__([0], 300),
        lambda be, n: n.__setitem__(n > 0, 300),
        lambda be, n: n.__iadd__(300),
        lambda be, n: n.fill(300),
        lambda be, n: n.set([1, 300]),
        lambda be, n: be.array([1, 300], dtype="int8"),
        lambda be, n: be.array(2**80, dtype="int8"),
        lambda be, n: be.full((2,), 300, dtype="int8"),
        lambda be, n: OpTreeNode.build("add", n, 300),
        lambda be, n: be.arange(129, dtype="int8"),
    ],
)
def test_integer_overflow_of_a_number_into_a_dtype(be, make):
    n = be.array([1, 2], dtype="int8", name="n")
    message = message_of(NumberOverflowError, lambda: make(be, n))
    assert "does not fit int8" in message
    assert issubclass(NumberOverflowError, OverflowError)
    assert n.get().tolist() == [1, 2]


def test_a_negative_number_does_not_fit_an_unsigned_dtype(be):
    n = be.array([1, 2], dtype="uint8")
    assert "-1 does not fit uint8 (0 to 255)" in message_of(NumberOverflowError, lambda: n + -1)


@pytest.mark.parametrize("value", [300.0, -1.0, float("nan"), float("inf"), -1e300, np.float32(256)], ids=str)
@pytest.mark.parametrize(
    "write",
    [
        lambda be, n, v: n.__setitem__(slice(None), v),
        lambda be, n, v: n.__setitem__([0], v),
        lambda be, n, v: n.__setitem__(n > 0, v),
        lambda be, n, v: n.set([1.0, float(v)]),
        lambda be, n, v: be.full(2, v, "uint8"),
        lambda be, n, v: be.array(float(v), "uint8"),
        lambda be, n, v: OpTreeNode.build("assign", n, float(v)),
    ],
)
def test_a_float_whose_whole_part_an_integer_dtype_cannot_hold(be, write, value):
    n = be.array([1, 2], dtype="uint8", name="n")
    assert "does not fit uint8 (0 to 255)" in message_of(NumberOverflowError, lambda: write(be, n, value))
    assert n.get().tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_a_float_at_the_edge_of_an_integer_dtype(be, dtype):
    n, limits = be.zeros(1, dtype), np.iinfo(dtype)
    n[:] = float(limits.min)
    assert n.item() == limits.min
    message_of(NumberOverflowError, lambda: n.fill(float(limits.max)))  # rounded up, to one too many
    n[:] = -0.75
    assert n.item() == 0


def test_an_integer_beyond_every_float(be, x):
    huge = 10**400
    for make in (
        lambda: x + huge,
        lambda: huge - x,
        lambda: be.maximum(x, -huge),
        lambda: x > huge,
        lambda: x.fill(huge),
        lambda: be.array([1, huge]),
        lambda: OpTreeNode.build("mul", x, huge),
    ):
        x + 1, x - 1, x > 1, be.maximum(x, 1), x * 2  # what is known of another integer does not help
        message = message_of(NumberOverflowError, make)
        assert "an integer of 1329 bits does not fit float32" in message and len(message) < 200
    largest = int(np.finfo(np.float64).max)
    assert (x.astype(float) * 0 + largest).asnumpyarray().max() == largest
