"""The generator of random numbers: published values, and what each element is made of."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from optree.ops import philox
from optree.ops.random import take_blocks

FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]
BITS = dict(zip(FLOATS, (11, 24, 53), strict=True))


@pytest.mark.parametrize(
    "counters, key, words",
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_published_known_answers(counters: Any, key: Any, words: Any) -> None:
    columns = np.array(counters, np.uint64)[:, None].repeat(3, axis=1)
    np.testing.assert_array_equal(philox.philox4x32(columns, key), np.array(words)[:, None].repeat(3, axis=1))


def block(seed: int, at: int) -> list[int]:
    """The four words of a block, one by one."""
    at %= 2**64
    words = philox.philox4x32([[at % 2**32], [at >> 32], [0], [0]], (seed % 2**32, seed >> 32))
    return [int(word) for word in words[:, 0]]


def element(seed: int, at: int, i: int, dtype: np.dtype) -> float:
    """Element `i` of a uniform draw, as the table in `optree.ops.philox` says."""
    if dtype == np.float64:
        words, first = block(seed, at + i // 2), 2 * (i % 2)
        return ((words[first] + (words[first + 1] << 32)) >> 11) / 2**53
    return (block(seed, at + i // 4)[i % 4] >> (32 - BITS[dtype])) / 2 ** BITS[dtype]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_element_depends_on_seed_counter_and_place_alone(dtype: np.dtype) -> None:
    seed, at = 0x123456789ABCDEF0, 2**32 - 1000
    longest = philox.uniform(seed, at, (4 * philox.CHUNK + 7,), dtype)
    for i in (0, 1, 2, 3, 4, 1001, 4007, philox.CHUNK * 2 + 1, 4 * philox.CHUNK + 6):
        assert longest[i] == element(seed, at, i, dtype)
    for size in (1, 2, 5, philox.CHUNK + 1):
        np.testing.assert_array_equal(philox.uniform(seed, at, (size,), dtype), longest[:size])
    np.testing.assert_array_equal(philox.uniform(seed, at, (3, 5), dtype).ravel(), longest[:15])


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normals_are_box_and_muller_of_the_words(dtype: np.dtype) -> None:
    got = philox.normal(5, 9, (20_001,), dtype)
    if dtype == np.float64:
        pairs = philox.uniform(5, 9, (20_002,), dtype).reshape(-1, 2)
        radius, turn = pairs[:, 0] + 2.0**-53, pairs[:, 1] - 0.5
    else:
        words = np.array([block(5, 9 + i) for i in range(5001)], np.float64).reshape(-1, 2)
        radius, turn = (words[:, 0] + 0.5) * 2.0**-32, words[:, 1] * 2.0**-32
    length = np.sqrt(-2 * np.log(radius))
    wanted = np.stack([length * np.cos(2 * np.pi * turn), length * np.sin(2 * np.pi * turn)], 1).ravel()[: len(got)]
    # Near the origin, the radius shows that a number near 1 was rounded before its logarithm was taken.
    bound = 32 * np.finfo(dtype).eps + 2.0**-24 / length.repeat(2)[: len(got)] * (dtype != np.float64)
    assert (abs(got - wanted) < bound).all()


def test_the_counter_wraps_where_64_bits_end() -> None:
    at = 2**64 - 2
    got = philox.uniform(3, at, (16,), np.dtype("float32"))
    assert list(got) == [element(3, at, i, np.dtype("float32")) for i in range(16)]
    state = np.array([3, at], np.uint64)
    assert take_blocks(state, 5) == (3, at)
    assert list(state) == [3, 3]


def test_no_words_make_a_normal_infinite() -> None:
    corners = [0, 1, 2**31, 2**32 - 2, 2**32 - 1]
    words = np.array([[a, b, a, b] for a in corners for b in corners], np.uint64).T
    for fill, dtypes in ((philox._normal32, FLOATS[:2]), (philox._normal64, FLOATS[2:])):
        for dtype in dtypes:
            out = np.empty((philox.elements_per_block(dtype), words.shape[1]), dtype)
            fill(words.copy(), out)
            assert np.isfinite(out).all()
            assert abs(out).max() < 9


def test_threads_get_different_blocks() -> None:
    state = np.array([1, 0], np.uint64)
    with ThreadPoolExecutor(8) as pool:
        begun = list(pool.map(lambda _: take_blocks(state, 3)[1], range(4000)))
    assert sorted(begun) == list(range(0, 12_000, 3))
