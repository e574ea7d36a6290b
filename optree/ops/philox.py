"""Random numbers by counter, on NumPy arrays: Philox4x32-10.

The generator is the one of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): a
keyed bijection of 128-bit counters, so the block of four 32-bit words at a counter does not depend on earlier ones.

A draw begins at a 64-bit counter with a 64-bit seed. Element `i`, in C order, is a function of these and of `i`:

=======  ===========================  ==============================  ==============
dtype    block (counter of the draw)  uniform in [0, 1)               normal (pair)
=======  ===========================  ==============================  ==============
float16  counter + i // 4             word i % 4, its upper 11 bits   as float32's
bfloat16 counter + i // 4             word i % 4, its upper 8 bits    as float32's
float32  counter + i // 4             word i % 4, its upper 24 bits   words 0, 1 / 2, 3
float64  counter + i // 2             words 2 (i % 2) (the low half)  words 0, 1 and
                                      and 2 (i % 2) + 1, upper 53     2, 3
=======  ===========================  ==============================  ==============

The block's counter is the sum's lower half, its upper half, 0, 0; the key is the seed's lower half and its upper half.
Normals come in pairs by Box and Muller: the first uniform number determines the radius, the second the angle, and the
normals are the point's coordinates. Uniform numbers are bitwise equal on every machine; normals differ as log, sin and
cos do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

LOW = 0xFFFFFFFF

#: Blocks computed at a time, which fit a core's L2 cache.
CHUNK = 8192

#: The random bits of a uniform number, by narrow dtype.
BITS = {"float16": 11, "bfloat16": 8}


def philox4x32(counters: object, key: tuple[int, int]) -> np.ndarray:
    """The words at counters, both of shape (4, n), a column for each block, as uint64.

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
    """Encrypt counters in place; `products` is scratch memory for half of them."""
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
    """The number of blocks of a draw."""
    return -(-size // elements_per_block(dtype))


def elements_per_block(dtype: np.dtype) -> int:
    """The number of elements from a block of four words."""
    return 2 if dtype == np.float64 else 4


def chunks(seed: int, counter: int, blocks: int) -> Iterator[tuple[int, np.ndarray]]:
    """The words of consecutive blocks, by chunks: the index of the first block, and words of shape (4, n).

    A chunk is valid until the next one, and may be overwritten.
    """
    round_keys = _round_keys((seed & LOW, seed >> 32))
    length = min(CHUNK, blocks)
    memory, products = np.empty((4, length), np.uint64), np.empty((2, length), np.uint64)
    for first in range(0, blocks, CHUNK):
        length = min(CHUNK, blocks - first)
        words = memory[:, :length]
        start = (counter + first) & 0xFFFFFFFFFFFFFFFF
        counters = np.arange(length, dtype=np.uint64) + np.uint64(start)  # modulo 2**64
        np.bitwise_and(counters, np.uint64(LOW), out=words[0])
        np.right_shift(counters, np.uint64(32), out=words[1])
        words[2:] = 0
        _encrypt(words, round_keys, products[:, :length])
        yield first, words


def uniform(seed: int, counter: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Uniform numbers in [0, 1): multiples of 2**-11 (float16), 2**-8 (bfloat16), 2**-24 or 2**-53."""
    return _draw(_uniform64 if dtype == np.float64 else _uniform32, seed, counter, shape, dtype)


def normal(seed: int, counter: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Standard normal numbers; all are finite, below 7 in magnitude (float64: 9)."""
    return _draw(_normal64 if dtype == np.float64 else _normal32, seed, counter, shape, dtype)


def numbers_at(seed: int, counters: np.ndarray, indices: np.ndarray, is_normal: bool, dtype: np.dtype) -> np.ndarray:
    """The numbers of `uniform` and `normal` at flat indices of draws that begin at counters."""
    lanes = elements_per_block(dtype)
    blocks = counters.astype(np.uint64) + (indices // lanes).astype(np.uint64)
    zeros = np.zeros_like(blocks)
    words = philox4x32([blocks & np.uint64(LOW), blocks >> np.uint64(32), zeros, zeros], (seed & LOW, seed >> 32))
    fills = (_normal32, _normal64) if is_normal else (_uniform32, _uniform64)
    drawn = np.empty((lanes, len(indices)), dtype)
    fills[dtype == np.float64](words, drawn)
    return drawn[indices % lanes, np.arange(len(indices))]


#: Maximum attempts of rejection sampling; each rejects with a probability below 1 in 20.
ATTEMPTS = 32


def gamma(seed: int, counter: int, shape: np.ndarray) -> np.ndarray:
    """Numbers of the gamma distribution of scale 1 for shape parameters, in float64; nan for one that is negative.

    By G. Marsaglia and W. W. Tsang, "A simple method for generating gamma
    variables", ACM Trans. Math. Softw. 26 (2000). The draw takes
    `count_gamma_blocks`; element `i` depends on its own parameter alone, and on `i`.
    """
    alpha, dtype = shape.reshape(-1).astype(np.float64), np.dtype("float64")
    blocks = count_blocks(alpha.size, dtype)

    def drawn(step: int, indices: np.ndarray, is_normal: bool) -> np.ndarray:
        begin = np.full(indices.size, (counter + step * blocks) & 0xFFFFFFFFFFFFFFFF, np.uint64)
        return numbers_at(seed, begin, indices, is_normal, dtype)

    with np.errstate(all="ignore"):
        small = alpha < 1  # sampled for alpha + 1 and multiplied by a power of a uniform number
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
    """The number of blocks of a draw from the gamma distribution."""
    return (2 * ATTEMPTS + 1) * count_blocks(size, np.dtype("float64"))


def _draw(
    fill: Callable[[np.ndarray, np.ndarray], None], seed: int, counter: int, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """An array filled chunk by chunk."""
    size, lanes = int(np.prod(shape, dtype=np.int64)), elements_per_block(dtype)
    blocks = count_blocks(size, dtype)
    drawn = np.empty((blocks, lanes), dtype)
    for first, words in chunks(seed, counter, blocks):
        fill(words, drawn[first : first + words.shape[1]].T)
    return drawn.reshape(-1)[:size].reshape(shape)


def _uniform32(words: np.ndarray, out: np.ndarray) -> None:
    bits = BITS.get(str(out.dtype), 24)
    words >>= np.uint64(32 - bits)
    numbers = words.view(np.int64).astype(np.float32)  # signed integers convert faster
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
    # Midpoints of 2**32 intervals of [0, 1]: never 0, whose logarithm is infinite.
    radius = words[0::2].view(np.int64).astype(np.float32)
    radius *= np.float32(2.0**-32)
    radius += np.float32(2.0**-33)
    # From -pi to pi, for float32's accuracy near 0.
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
    """Pairs of normals from uniform numbers in (0, 1] and angles, which are overwritten."""
    np.log(radius, out=radius)
    radius *= -2
    np.sqrt(radius, out=radius)
    np.multiply(radius, np.cos(angle), out=out[0::2], casting="same_kind")
    np.multiply(radius, np.sin(angle, out=angle), out=out[1::2], casting="same_kind")
