"""Values of PTX instructions, as functions of NumPy arrays with an element for each thread.

Arithmetic is IEEE 754's as PTX defines it: fused multiply-adds round once, directed roundings are directed, ``.ftz``
flushes subnormal numbers. Approximations (``ex2.approx`` and the like) are off by as much as the instruction set's
manual allows, one way or the other by the bits of the operand: what only a better approximation makes right is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from optree.dtypes import bfloat16

Array = Any

#: PTX types whose values NumPy has; those of half precision are bits of 16 until they are converted.
TYPES = {
    **{f"{kind}{bits}": np.dtype(f"{name}{bits}") for kind, name in (("s", "int"), ("u", "uint"), ("b", "uint"))
       for bits in (8, 16, 32, 64)},
    **{name: np.dtype(np.uint16) for name in ("f16", "bf16")},
    **{name: np.dtype(np.uint32) for name in ("f16x2", "bf16x2")},
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "pred": np.dtype(np.bool_),
}  # fmt: skip

#: A table's seeds of the errors of approximations: the most that the manual says, relative to the result, and of a
#: logarithm between 1/2 and 2 as it is.
APPROXIMATE = {
    "ex2": (np.exp2, 2.0**-22),
    "lg2": (np.log2, 2.0**-22),
    "rcp": (np.reciprocal, 2.0**-23),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2.0**-22.9),
    "sqrt": (np.sqrt, 2.0**-23),
    "sin": (np.sin, 2.0**-20.9),
    "cos": (np.cos, 2.0**-20.9),
    "tanh": (np.tanh, 2.0**-11),
}


class UnknownInstruction(Exception):
    """An instruction that is not interpreted."""


# Rounding


def _odd(x: Array, error: Array) -> Array:
    """A sum of float64 and the error of its rounding, rounded to odd: what is narrower rounds it as the exact sum."""
    bits = np.asarray(x).view(np.int64)
    toward = np.where(np.signbit(error) != np.signbit(x), -1, 1)  # in the magnitude, which the bits count
    inexact = (error != 0) & np.isfinite(x) & np.isfinite(error) & (bits & 1 == 0)
    return (bits + np.where(inexact, toward, 0)).view(np.float64)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """A sum of float64 and the error of its rounding."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    product = a * b
    high_a, low_a = _halves(a)
    high_b, low_b = _halves(b)
    return product, ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b


def _halves(a: Array) -> tuple[Array, Array]:
    far = a * 134217729.0
    high = far - (far - a)
    return high, a - high


def _directed(exact: Array, mode: str) -> Array:
    """A float64, rounded to odd, as float32 in a direction."""
    near = exact.astype(np.float32)
    if mode == "rn":
        return near
    back = near.astype(np.float64)
    below, above = np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))
    too_large, too_small = back > exact, back < exact
    if mode == "rz":
        too_large, too_small = too_large & (exact > 0), too_small & (exact < 0)
    return np.where(
        too_large & (mode in ("rm", "rz")), below, np.where(too_small & (mode in ("rp", "rz")), above, near)
    )


def _rounding(mods: tuple[str, ...]) -> str:
    return next((mod for mod in mods if mod in ("rn", "rz", "rm", "rp")), "rn")


def flushed(x: Array) -> Array:
    """Subnormal float32 as zeros of their signs; values of other dtypes as they are."""
    if x.dtype != np.float32:
        return x
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def fma32(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """A product and a sum of float32, rounded once."""
    exact = np.asarray(a, np.float64) * np.asarray(b, np.float64)  # 48 bits
    return _directed(_odd(*two_sum(exact, np.asarray(c, np.float64))), mode)


def fma64(a: Array, b: Array, c: Array) -> Array:
    """The same of float64 (Boldo and Melquiond's), and exactly in fractions where it would over- or underflow."""
    a, b, c = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in (a, b, c)))
    product, low = _two_product(a, b)
    middle, rest = two_sum(c, low)
    high, error = two_sum(product, middle)
    found = np.array(high + _odd(*two_sum(rest, error)))
    sizes = np.frexp(a)[1] + np.frexp(b)[1]
    special = ~np.isfinite(a) | ~np.isfinite(b) | ~np.isfinite(c) | (a == 0) | (b == 0)
    found[special] = (a * b + c)[special]
    # Far from both ends each product of halves is exact; Veltkamp's factor is 2^27.
    far = (np.abs(sizes) > 900) | (np.abs(np.frexp(a)[1]) > 900) | (np.abs(np.frexp(b)[1]) > 900)
    far |= np.abs(np.frexp(c)[1]) > 900
    for index in np.argwhere(far & ~special):
        x, y, z = (Fraction(float(each[tuple(index)])) for each in (a, b, c))
        total = x * y + z
        try:
            found[tuple(index)] = float(total) if total else 0.0
        except OverflowError:
            found[tuple(index)] = np.inf if total > 0 else -np.inf
    return found


def _approximate(base: str, x: Array, dtype: np.dtype) -> Array:
    function, error = APPROXIMATE[base]
    exact = np.asarray(function(np.asarray(x, np.float64)))
    sign = np.where(np.asarray(x).view(f"u{dtype.itemsize}") * 0x9E3779B1 >> 7 & 1, 1.0, -1.0)
    simple = np.frexp(exact)[0] == 0.5  # a power of two, as of exp2(0), is exact
    off = exact * (1 + sign * error * 0.99)
    if base == "lg2":
        off = np.where(np.abs(exact) < 1, exact + sign * error * 0.99, off)
    moved = np.where(simple | ~np.isfinite(exact), exact, off)
    found = moved.astype(dtype)
    # Of float64 there is the upper half.
    return found if dtype != np.float64 else (found.view(np.uint64) & np.uint64(0xFFFFFFFF << 32)).view(dtype)


# Integers


def _unsigned(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"u{dtype.itemsize}")


def _wide(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")


def _shifted(a: Array, by: Array, dtype: np.dtype, left: bool) -> Array:
    bits = 8 * dtype.itemsize
    count = np.minimum(by, bits - 1).astype(dtype)
    found = np.left_shift(a, count) if left else np.right_shift(a, count)
    out = np.where(a < 0, -1, 0).astype(dtype) if dtype.kind == "i" and not left else dtype.type(0)
    return np.where(by >= bits, out, found)


def _high(a: Array, b: Array, dtype: np.dtype) -> Array:
    """The upper half of a product."""
    if dtype.itemsize < 8:
        wide = _wide(dtype)
        return (a.astype(wide) * b.astype(wide) >> 8 * dtype.itemsize).astype(dtype)
    parts = [(int(x) * int(y)) >> 64 for x, y in np.broadcast(a, b)]
    return np.array([part % 2**64 for part in parts], np.uint64).view(dtype).reshape(np.broadcast(a, b).shape)


def _quotient(a: Array, b: Array) -> Array:
    """A quotient rounded to zero; -1 in all bits where the divisor is 0."""
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    if a.dtype.kind == "u":
        return np.where(b == 0, np.iinfo(a.dtype).max, a // safe)
    found = np.floor_divide(a, safe)
    found = found + ((found * safe != a) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, -1, found)


def _leading_zeros(x: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    found = np.full(np.shape(x), bits, np.uint32)
    for place in range(bits):
        found = np.where(x >> x.dtype.type(place) != 0, bits - 1 - place, found)
    return found.astype(np.uint32)


def _inserted(a: Array, b: Array, start: Array, length: Array, dtype: np.dtype) -> Array:
    mask = _shifted(_shifted(dtype.type(1), length, dtype, True) - dtype.type(1), start, dtype, True)
    return (_shifted(a, start, dtype, True) & mask) | (b & ~mask)


def _permuted(a: Array, b: Array, choice: Array) -> Array:
    whole = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    found = np.uint32(0)
    for place in range(4):
        pick = (choice >> np.uint32(4 * place)) & np.uint32(15)
        byte = whole >> (pick & 7).astype(np.uint64) * np.uint64(8) & np.uint64(0xFF)
        byte = np.where(pick & 8, np.where(byte & 0x80, np.uint64(0xFF), np.uint64(0)), byte)
        found = found | byte.astype(np.uint32) << np.uint32(8 * place)
    return found


# Conversions

_NARROW = {"f16": np.dtype(np.float16), "bf16": bfloat16()}


def _to_integer(x: Array, dtype: np.dtype, mode: str) -> Array:
    """A real number as an integer, at the nearest end where it has none; nan as 0, or the lowest of 64 bits."""
    whole = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](np.asarray(x, np.float64))
    info = np.iinfo(dtype)
    inside = (whole >= float(info.min)) & (whole < float(info.max) + (dtype.itemsize < 8))
    found = np.where(inside, whole, 0).astype(dtype)
    found = np.where(whole < float(info.min), info.min, np.where(~inside & (whole > 0), info.max, found))
    nan = 0 if dtype.itemsize < 8 else (info.min if dtype.kind == "i" else 1 << 63)
    return np.where(np.isnan(x), np.array(nan, dtype), found).astype(dtype)


def _narrowed(x: Array, to: str) -> Array:
    """Bits of half precision of float32 or float64, rounded once."""
    wide = np.asarray(x)
    if wide.dtype == np.float64 and to == "bf16":  # ml_dtypes goes by float32
        single = wide.astype(np.float32)
        wide = _odd_single(single, wide)
    return wide.astype(_NARROW[to]).view(np.uint16)


def _odd_single(near: Array, exact: Array) -> Array:
    """A float32 rounded to odd."""
    bits, error = near.view(np.int32), exact - near.astype(np.float64)
    toward = np.where(np.signbit(error) != np.signbit(near), -1, 1).astype(np.int32)
    move = (error != 0) & np.isfinite(near) & np.isfinite(exact) & (bits & 1 == 0)
    return (bits + np.where(move, toward, np.int32(0))).view(np.float32)


def _converted(mods: tuple[str, ...], to: str, origin: str) -> Callable[..., Array]:
    target = TYPES[to]
    mode = next((mod for mod in mods if mod in ("rni", "rzi", "rmi", "rpi")), "")
    if to in ("f16x2", "bf16x2"):
        narrow = to[:-2]

        def packed(high: Array, low: Array) -> Array:
            upper, lower = (_narrowed(each, narrow).astype(np.uint32) for each in (high, low))
            return upper << np.uint32(16) | lower

        return packed
    if to in _NARROW:
        return lambda x: _narrowed(x, to)
    if origin in _NARROW:
        return lambda x: np.asarray(x).view(_NARROW[origin]).astype(target)
    if target.kind in "iu" and TYPES[origin].kind == "f":
        return lambda x: _to_integer(x, target, mode)
    if mode:
        whole = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode]
        return lambda x: whole(x).astype(target)
    if "sat" in mods:
        return lambda x: np.where(np.isnan(x), 0, np.clip(x, 0, 1)).astype(target)
    if target == np.float32 and _rounding(mods) != "rn":
        return lambda x: _directed(np.asarray(x, np.float64), _rounding(mods))
    return lambda x: np.asarray(x).astype(target)


# Comparisons

_ORDERED = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def _compared(comparison: str, dtype: np.dtype) -> Callable[[Array, Array], Array]:
    if comparison == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    if comparison == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if comparison in _ORDERED:
        if comparison == "ne" and dtype.kind == "f":
            return lambda a, b: (a != b) & ~np.isnan(a) & ~np.isnan(b)
        return _ORDERED[comparison]
    ordered = _ORDERED[comparison[:-1]]  # equ and the like: or not ordered
    return lambda a, b: ordered(a, b) | np.isnan(a) | np.isnan(b)


# Tensor cores

#: The operands of products, by their type and the depth of a product: the dtype, and the elements of a register.
TENSOR_CORES = {
    ("f16", 8): (_NARROW["f16"], 2),
    ("f16", 16): (_NARROW["f16"], 2),
    ("bf16", 8): (_NARROW["bf16"], 2),
    ("bf16", 16): (_NARROW["bf16"], 2),
    ("tf32", 8): (np.dtype(np.float32), 1),
}


def product_of_warps(left: Array, right: Array, added: Array, kind: str) -> list[Array]:
    """The registers of products of warps' registers, each (warps, lanes, registers), added to others.

    They are rounded towards zero: a product that only a better rounding makes right is wrong.
    """
    dtype, pack = TENSOR_CORES[kind, 8]
    left, right = (x & np.uint32(0xFFFFE000) if kind == "tf32" else x for x in (left, right))

    def of_lanes(x: Array) -> Array:
        """The elements (warps, place, lane // 4, lane % 4, element of a register), by registers."""
        values = np.ascontiguousarray(x).view(dtype).astype(np.float64)
        return values.reshape(len(x), 8, 4, x.shape[2], pack)

    a, b = of_lanes(left), of_lanes(right)
    depth = 4 * pack * b.shape[3]
    rows = a.reshape(*a.shape[:3], -1, 2, pack).transpose(0, 4, 1, 3, 2, 5).reshape(len(a), 16, depth)
    columns = b.transpose(0, 1, 3, 2, 4).reshape(len(b), 8, depth)
    sums = np.einsum("wik,wjk->wij", rows, columns).reshape(-1, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4)
    sums = sums.reshape(added.shape) + added.astype(np.float64)
    return [_directed(sums[..., i], "rz") for i in range(4)]


# Instructions


def _arithmetic(base: str, mods: tuple[str, ...], dtype: np.dtype) -> Callable[..., Array] | None:
    """Functions of operands of one dtype."""
    single, mode = dtype == np.float32, _rounding(mods)
    if base in ("add", "sub", "mul") and single and mode != "rn":

        def directed(a: Array, b: Array) -> Array:
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            return _directed(a * b if base == "mul" else _odd(*two_sum(a, b if base == "add" else -b)), mode)

        return directed
    if base == "mul" and "hi" in mods:
        return lambda a, b: _high(a, b, dtype)
    if base == "mul" and "wide" in mods:
        return lambda a, b: a.astype(_wide(dtype)) * b.astype(_wide(dtype))
    if base == "mad":
        if "wide" in mods:
            return lambda a, b, c: a.astype(_wide(dtype)) * b.astype(_wide(dtype)) + c
        return (lambda a, b, c: _high(a, b, dtype) + c) if "hi" in mods else (lambda a, b, c: a * b + c)
    if base == "fma":
        if mode != "rn" and not single:
            return None
        return (lambda a, b, c: fma32(a, b, c, mode)) if single else fma64
    if base in ("div", "rem") and dtype.kind in "iu":
        return _quotient if base == "div" else (lambda a, b: np.where(b == 0, a, a - _quotient(a, b) * b))
    if base in ("min", "max"):
        if "NaN" in mods:
            return np.minimum if base == "min" else np.maximum
        return np.fmin if base == "min" else np.fmax
    simple = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "abs": np.abs,
        "sqrt": np.sqrt, "rcp": np.reciprocal, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
        "not": np.invert, "mov": lambda x: x, "copysign": lambda sign, x: np.copysign(x, sign),
    }  # fmt: skip
    return simple.get(base)


@cache
def function_of(base: str, mods: tuple[str, ...]) -> tuple[Callable[..., Array], list[np.dtype | None]]:
    """The function of an instruction without memory access, and its operands' dtypes, of which the last repeats."""
    types = [mod for mod in mods if mod in TYPES]
    dtype = TYPES[types[-1]]
    word = TYPES["u32"]
    flushes = "ftz" in mods
    if base == "cvt":
        return (_ftz(_converted(mods, *types[:2])) if flushes else _converted(mods, *types[:2])), [dtype]
    if base == "setp":
        return (_ftz(_compared(mods[0], dtype)) if flushes else _compared(mods[0], dtype)), [dtype]
    if base in ("shl", "shr"):
        return lambda a, by: _shifted(a, by, dtype, base == "shl"), [dtype, word]
    if base == "selp":
        return lambda a, b, chosen: np.where(chosen, a, b), [dtype, dtype, TYPES["pred"]]
    if base == "bfi":
        return lambda a, b, start, length: _inserted(a, b, start, length, dtype), [dtype, dtype, word, word]
    if base == "prmt":
        return _permuted, [word]
    if base == "clz":
        return _leading_zeros, [_unsigned(dtype)]
    if base == "shf":
        return _funnel(mods), [word]
    if base == "mad" and "wide" in mods:
        return _checked(_arithmetic(base, mods, dtype), base, mods), [dtype, dtype, _wide(dtype)]
    if "approx" in mods and base == "div":
        return lambda a, b: _ftz(np.divide)(a, b) * np.float32(1 + 2.0**-23), [dtype]
    if "full" in mods and base == "div":
        return lambda a, b: np.divide(a, b) * np.float32(1 + 2.0**-22), [dtype]
    if "approx" in mods and base in APPROXIMATE:
        found: Any = lambda x: _approximate(base, x, dtype)  # noqa: E731
    else:
        found = _checked(_arithmetic(base, mods, dtype), base, mods)
    return (_ftz(found) if flushes else found), [dtype]


def _funnel(mods: tuple[str, ...]) -> Callable[..., Array]:
    left, wraps = "l" in mods, "wrap" in mods

    def shifted(low: Array, high: Array, by: Array) -> Array:
        count = (by & np.uint32(31) if wraps else np.minimum(by, 32)).astype(np.uint64)
        whole = high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)
        found = whole << count >> np.uint64(32) if left else whole >> count
        return (found & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    return shifted


def _checked(found: Any, base: str, mods: tuple[str, ...]) -> Callable[..., Array]:
    if found is None:
        raise UnknownInstruction(".".join((base, *mods)))
    return found


def _ftz(function: Callable[..., Array]) -> Callable[..., Array]:
    """An instruction's function with ``.ftz``: subnormal operands and results of float32 are zeros."""
    return lambda *operands: flushed(function(*map(flushed, operands)))
