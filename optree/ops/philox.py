"""Random numbers by counter, on NumPy arrays: Philox4x32-10.

The generator is the one of Salmon, Moraes, Dror and Shaw, "Parallel random
numbers: as easy as 1, 2, 3" (SC 2011): a keyed bijection of 128-bit counters,
so the block of four 32-bit words at any counter is had without those before it.

A draw begins at a counter of 64 bits under a seed of 64 bits. What element `i`
of it is made of depends on these and on `i`, in C order, and on nothing else:

=======  ===========================  ==============================  ==============
dtype    block (counter of the draw)  uniform in [0, 1)               normal (pair)
=======  ===========================  ==============================  ==============
float16  counter + i // 4             word i % 4, its upper 11 bits   as float32's
bfloat16 counter + i // 4             word i % 4, its upper 8 bits    as float32's
float32  counter + i // 4             word i % 4, its upper 24 bits   words 0, 1 / 2, 3
float64  counter + i // 2             words 2 (i % 2) (the low half)  words 0, 1 and
                                      and 2 (i % 2) + 1, upper 53     2, 3
=======  ===========================  ==============================  ==============

The block's counter is the sum's lower half, its upper half, 0, 0; the key is
the seed's lower half and its upper half. Normals come in pairs by Box and
Muller: the first number of a pair gives the radius, the second the angle, and
the pair is the point's two coordinates. Uniform numbers are the same to the
bit on every machine; normals are as near to each other as its log, sin and cos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

LOW = 0xFFFFFFFF

#: Blocks computed at a time: what is worked on stays in a core's second cache.
CHUNK = 8192

#: The bits of a uniform number's word that a narrow dtype holds, by its name.
BITS = {"float16": 11, "bfloat16": 8}


def philox4x32(counters: Any, key: tuple[int, int]) -> np.ndarray:
    """The words at counters: of shape (4, n) both, a column a block, as uint64.

    Examples
    --------
    >>> [hex(word) for (word,) in philox4x32([[0], [0], [0], [0]], (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    words = np.array(counters, np.uint64)
    _encrypt(words, _round_keys(key), np.empty((2, words.shape[1]), np.uint64))
    return words


def _round_keys(key: tuple[int, int]) -> np.ndarray:
    """The key of each round, of shape (ROUNDS, 2, 1)."""
    rounds = [[[(half + n * step) & LOW] for half, step in zip(key, WEYL, strict=True)] for n in range(ROUNDS)]
    return np.array(rounds, np.uint64)


def _encrypt(words: np.ndarray, round_keys: np.ndarray, products: np.ndarray) -> None:
    """Put the words in the counters' place; `products` is memory for half of them."""
    # Words 0 and 2, which are multiplied, are the rows of `even`; 1 and 3 those of `odd`.
    even, odd = words[0::2], words[1::2]
    swapped = products[::-1]
    low, shift = np.uint64(LOW), np.uint64(32)
    for round_key in round_keys:
        np.multiply(even, MULTIPLIERS, out=products)
        np.right_shift(swapped, shift, out=even)
        even ^= odd
        even ^= round_key
        np.bitwise_and(swapped, low, out=odd)


def count_blocks(size: int, dtype: np.dtype) -> int:
    """How many blocks a draw of so many elements takes."""
    return -(-size // elements_per_block(dtype))


def elements_per_block(dtype: np.dtype) -> int:
    """How many elements a block of four words makes."""
    return 2 if dtype == np.float64 else 4


def chunks(seed: int, counter: int, blocks: int) -> Iterator[tuple[int, np.ndarray]]:
    """The words of consecutive blocks: the place of a chunk's first, and the chunk, of shape (4, n).

    A chunk is good until the next is asked for, and may be written over.
    """
    round_keys = _round_keys((seed & LOW, seed >> 32))
    length = min(CHUNK, blocks)
    memory, products = np.empty((4, length), np.uint64), np.empty((2, length), np.uint64)
    for first in range(0, blocks, CHUNK):
        length = min(CHUNK, blocks - first)
        words = memory[:, :length]
        start = (counter + first) & 0xFFFFFFFFFFFFFFFF
        places = np.arange(length, dtype=np.uint64) + np.uint64(start)  # wraps, as counters do
        np.bitwise_and(places, np.uint64(LOW), out=words[0])
        np.right_shift(places, np.uint64(32), out=words[1])
        words[2:] = 0
        _encrypt(words, round_keys, products[:, :length])
        yield first, words


def uniform(seed: int, counter: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Numbers of [0, 1), each as probable: multiples of 2**-11 (bfloat16: 2**-8), 2**-24 or 2**-53 by dtype."""
    return _draw(_uniform64 if dtype == np.float64 else _uniform32, seed, counter, shape, dtype)


def normal(seed: int, counter: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Numbers of the normal distribution of mean 0 and deviation 1; all are finite, below 7 (float64: 9)."""
    return _draw(_normal64 if dtype == np.float64 else _normal32, seed, counter, shape, dtype)


def numbers_at(seed: int, counters: np.ndarray, places: np.ndarray, is_normal: bool, dtype: np.dtype) -> np.ndarray:
    """The numbers of `uniform` and `normal` at flat indices of draws that begin at counters."""
    lanes = elements_per_block(dtype)
    blocks = counters.astype(np.uint64) + (places // lanes).astype(np.uint64)
    zeros = np.zeros_like(blocks)
    words = philox4x32([blocks & np.uint64(LOW), blocks >> np.uint64(32), zeros, zeros], (seed & LOW, seed >> 32))
    fills = (_normal32, _normal64) if is_normal else (_uniform32, _uniform64)
    drawn = np.empty((lanes, len(places)), dtype)
    fills[dtype == np.float64](words, drawn)
    return drawn[places % lanes, np.arange(len(places))]


#: How often a number of the gamma distribution is tried for at the most: each attempt misses by less than 1 in 20.
ATTEMPTS = 32


def gamma(seed: int, counter: int, shape: np.ndarray) -> np.ndarray:
    """Numbers of the gamma distribution of scale 1 for shape parameters, in float64; nan for one that is negative.

    By G. Marsaglia and W. W. Tsang, "A simple method for generating gamma
    variables", ACM Trans. Math. Softw. 26 (2000). The draw takes
    `count_gamma_blocks`; element `i` depends on its own parameter alone, and on `i`.
    """
    alpha, dtype = shape.reshape(-1).astype(np.float64), np.dtype("float64")
    blocks = count_blocks(alpha.size, dtype)

    def drawn(step: int, places: np.ndarray, is_normal: bool) -> np.ndarray:
        begin = np.full(places.size, (counter + step * blocks) & 0xFFFFFFFFFFFFFFFF, np.uint64)
        return numbers_at(seed, begin, places, is_normal, dtype)

    with np.errstate(all="ignore"):
        small = alpha < 1  # the number for alpha + 1, times a power of a uniform one
        d = np.where(small, alpha + 1, alpha) - 1 / 3
        found, left = np.full(alpha.size, np.nan), np.flatnonzero(alpha >= 0)
        for attempt in range(ATTEMPTS):
            if not left.size:
                break
            x, chance = drawn(2 * attempt + 1, left, True), 1 - drawn(2 * attempt + 2, left, False)
            mine = d[left]
            v = (1 + x / np.sqrt(9 * mine)) ** 3
            taken = (v > 0) & (np.log(chance) < 0.5 * x * x + mine * (1 - v + np.log(v)))
            found[left[taken]] = (mine * v)[taken]
            left = left[~taken]
        lifted = np.flatnonzero(small)
        found[lifted] *= (1 - drawn(0, lifted, False)) ** (1 / alpha[lifted])
    return found.reshape(shape.shape)


def count_gamma_blocks(size: int) -> int:
    """How many blocks a draw of so many elements of the gamma distribution takes."""
    return (2 * ATTEMPTS + 1) * count_blocks(size, np.dtype("float64"))


def _draw(
    fill: Callable[[np.ndarray, np.ndarray], None], seed: int, counter: int, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """An array that `fill` has written, a chunk at a time."""
    size, lanes = int(np.prod(shape, dtype=np.int64)), elements_per_block(dtype)
    blocks = count_blocks(size, dtype)
    drawn = np.empty((blocks, lanes), dtype)
    for first, words in chunks(seed, counter, blocks):
        fill(words, drawn[first : first + words.shape[1]].T)
    return drawn.reshape(-1)[:size].reshape(shape)


def _uniform32(words: np.ndarray, out: np.ndarray) -> None:
    bits = BITS.get(str(out.dtype), 24)
    words >>= np.uint64(32 - bits)
    numbers = words.view(np.int64).astype(np.float32)  # signed ones are converted faster
    np.multiply(numbers, np.float32(2.0**-bits), out=out, casting="same_kind")


def _uniform64(words: np.ndarray, out: np.ndarray) -> None:
    np.multiply(_pairs(words).view(np.int64), 2.0**-53, out=out)


def _pairs(words: np.ndarray) -> np.ndarray:
    """53 bits from words 0 and 1, and from words 2 and 3."""
    halves = words[1::2]
    halves <<= np.uint64(32)
    halves |= words[0::2]
    halves >>= np.uint64(11)
    return halves


def _normal32(words: np.ndarray, out: np.ndarray) -> None:
    # The middles of the 2**32 parts of [0, 1]: never 0, whose logarithm is infinite.
    radius = words[0::2].view(np.int64).astype(np.float32)
    radius *= np.float32(2.0**-32)
    radius += np.float32(2.0**-33)
    # A half turn either way: the angle is as exact near 0 as a float32 can be.
    angle = words[1::2].astype(np.uint32).view(np.int32).astype(np.float32)
    angle *= np.float32(np.pi * 2.0**-31)
    _box_muller(radius, angle, out)


def _normal64(words: np.ndarray, out: np.ndarray) -> None:
    numbers = _pairs(words).view(np.int64).astype(np.float64)
    radius, angle = numbers
    radius += 1.0
    radius *= 2.0**-53
    angle *= np.pi * 2.0**-52
    angle -= np.pi
    _box_muller(radius[None], angle[None], out)


def _box_muller(radius: np.ndarray, angle: np.ndarray, out: np.ndarray) -> None:
    """Normals in pairs from uniform numbers of (0, 1] and angles; both are written over."""
    np.log(radius, out=radius)
    radius *= -2
    np.sqrt(radius, out=radius)
    np.multiply(radius, np.cos(angle), out=out[0::2], casting="same_kind")
    np.multiply(radius, np.sin(angle, out=angle), out=out[1::2], casting="same_kind")
