"""Elementwise workloads: expressions, their operands, and how each library writes them.

A workload's `formula` serves all libraries with such functions, which `m` holds (`peers`). NumPy, numexpr and Numba
have a method each; a workload without that method is not run by the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.tree.types import as_dtype

#: Adam's rate, the decays of its means, and its epsilon.
RATE, MEAN, SQUARE, TINY = 0.001, 0.9, 0.999, 1e-8

#: The coefficients of GELU by tanh.
OUTER, INNER = 0.7978845608, 0.044715

#: Interest and volatility.
INTEREST, VOLATILITY = 0.03, 0.3

Loop = Callable[..., None]


class Workload:
    """One expression over random operands of about `elements` elements.

    Attributes
    ----------
    title : str
        How the tables name it.
    operands : int
        The number of operands, each of `shape`, unless `fill` says otherwise.
    in_place : int
        The number of operands, from the first on, that results are written to.
    moved : int
        The minimum number of arrays that a kernel reads and writes; 0 if memory does not limit it.
    without : tuple of str
        Libraries that cannot compute it fairly.
    numexpr_writes : bool
        Whether numexpr can write the result to existing memory.
    has_halves : bool
        Whether float16 and bfloat16 are enough for its numbers.
    """

    title = ""
    operands = 1
    in_place = 0
    moved = 0
    without: tuple[str, ...] = ()
    numexpr_writes = True
    has_halves = False

    def __init__(self, elements: int, dtype: Any) -> None:
        self.elements, self.dtype = elements, as_dtype(dtype)
        # Values of 8 bits, as bfloat16 has, so that all dtypes have the same operands and float64 is the reference.
        arrays = self.fill(np.random.default_rng(0))
        short = [(x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for x in arrays]
        self.arrays = [x.astype(self.dtype) for x in short]

    @classmethod
    def sizes(cls, usual: Sequence[int]) -> Sequence[int]:
        """The sizes in elements, from the default ones."""
        return usual

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the operands."""
        return (self.elements,)

    def fill(self, rng: np.random.Generator) -> list[np.ndarray]:
        """The operands' values."""
        return [rng.uniform(0.1, 2.0, self.shape) for _ in range(self.operands)]

    def copies(self) -> list[np.ndarray]:
        """The operands, with copies of those that are written to."""
        return [x.copy() for x in self.arrays[: self.in_place]] + self.arrays[self.in_place :]

    def formula(self, m: Any, *operands: Any) -> list[Any]:
        """The results."""
        raise NotImplementedError

    def numpy(self, xp: Any, *operands: Any) -> tuple[Callable[[], Any], Callable[[], list[np.ndarray]]]:
        """The function that computes the results, and the one that returns them."""
        raise NotImplementedError

    def numexpr(self, *operands: Any) -> tuple[str, dict[str, Any]]:
        """The expression and its names."""
        raise NotImplementedError

    def numba(self, prange: Any, number: Any) -> Loop:
        """A loop over operands and results; `number` makes a number of the dtype."""
        raise NotImplementedError


class Copy(Workload):
    """A copy: the bound of memory bandwidth."""

    title = "copy"
    has_halves = True
    moved = 2
    without = ("numexpr", "jax", "pytensor", "cupy.fuse", "torch eager")  # no copy, or not to existing memory

    def formula(self, m: Any, *operands: Any) -> list[Any]:
        return list(operands)

    def numpy(self, xp: Any, *operands: Any) -> Any:
        (x,) = operands
        out = xp.empty_like(x)
        return lambda: xp.copyto(out, x), lambda: [out]

    def numba(self, prange: Any, number: Any) -> Loop:
        def loop(x: Any, out: Any) -> None:
            for i in prange(x.size):
                out[i] = x[i]

        return loop


class Chain(Workload):
    """Memory and one sine."""

    title = "a*b + c*sin(d)"
    has_halves = True
    operands = 4
    moved = 5

    def formula(self, m: Any, *operands: Any) -> list[Any]:
        a, b, c, d = operands
        return [a * b + c * m.sin(d)]

    def numpy(self, xp: Any, *operands: Any) -> Any:
        a, b, c, d = operands
        out, part = xp.empty_like(a), xp.empty_like(a)

        def run() -> None:
            xp.sin(d, out=part)
            xp.multiply(c, part, out=part)
            xp.multiply(a, b, out=out)
            xp.add(out, part, out=out)

        return run, lambda: [out]

    def numexpr(self, *operands: Any) -> Any:
        return "a*b + c*sin(d)", dict(zip("abcd", operands, strict=True))

    def numba(self, prange: Any, number: Any) -> Loop:
        def loop(a: Any, b: Any, c: Any, d: Any, out: Any) -> None:
            for i in prange(a.size):
                out[i] = a[i] * b[i] + c[i] * math.sin(d[i])

        return loop


class Activations(Workload):
    """Many operations on one array, three of them transcendental."""

    title = "GELU + softplus"
    has_halves = True

    def formula(self, m: Any, *operands: Any) -> list[Any]:
        (x,) = operands
        gelu = 0.5 * x * (1.0 + m.tanh(OUTER * (x + INNER * x * x * x)))
        return [gelu + m.log1p(m.exp(-abs(x))) + m.relu(x)]

    def numpy(self, xp: Any, *operands: Any) -> Any:
        (x,) = operands
        out, part = xp.empty_like(x), xp.empty_like(x)

        def run() -> None:
            xp.multiply(x, x, out=part)
            xp.multiply(part, x, out=part)
            xp.multiply(part, INNER, out=part)
            xp.add(part, x, out=part)
            xp.multiply(part, OUTER, out=part)
            xp.tanh(part, out=part)
            xp.add(part, 1, out=part)
            xp.multiply(x, 0.5, out=out)
            xp.multiply(out, part, out=out)
            xp.abs(x, out=part)
            xp.negative(part, out=part)
            xp.exp(part, out=part)
            xp.log1p(part, out=part)
            xp.add(out, part, out=out)
            xp.maximum(x, 0, out=part)
            xp.add(out, part, out=out)

        return run, lambda: [out]

    def numexpr(self, *operands: Any) -> Any:
        numbers = dict(zip("hoabz", map(self.dtype.type, (0.5, 1, OUTER, INNER, 0)), strict=True))
        text = "h*x*(o + tanh(a*(x + b*x*x*x))) + log1p(exp(-abs(x))) + where(x > z, x, z)"
        return text, {"x": operands[0], **numbers}

    def numba(self, prange: Any, number: Any) -> Loop:
        half, one, a, b, zero = map(number, (0.5, 1, OUTER, INNER, 0))

        def loop(x: Any, out: Any) -> None:
            for i in prange(x.size):
                v = x[i]
                gelu = half * v * (one + math.tanh(a * (v + b * v * v * v)))
                out[i] = gelu + math.log1p(math.exp(-abs(v))) + max(v, zero)

        return loop


class BlackScholes(Workload):
    """The prices of a call and a put: two results of much arithmetic."""

    title = "Black-Scholes"
    operands = 3

    def formula(self, m: Any, *operands: Any) -> list[Any]:
        price, strike, time = operands
        deviation = VOLATILITY * m.sqrt(time)
        first = (m.log(price / strike) + (INTEREST + 0.5 * VOLATILITY**2) * time) / deviation
        later = strike * m.exp(-INTEREST * time)
        call = price * self._normal(m, first) - later * self._normal(m, first - deviation)
        return [call, call - price + later]

    @staticmethod
    def _normal(m: Any, x: Any) -> Any:
        return 0.5 + 0.5 * m.erf(x * math.sqrt(0.5))

    def numpy(self, xp: Any, *operands: Any) -> Any:
        price, strike, time = operands
        call, put, first, deviation = (xp.empty_like(price) for _ in range(4))

        def normal(x: np.ndarray) -> None:
            xp.multiply(x, math.sqrt(0.5), out=x)
            xp.erf(x, out=x)
            xp.multiply(x, 0.5, out=x)
            xp.add(x, 0.5, out=x)

        def run() -> None:
            xp.sqrt(time, out=deviation)
            xp.multiply(deviation, VOLATILITY, out=deviation)
            xp.divide(price, strike, out=first)
            xp.log(first, out=first)
            xp.multiply(time, INTEREST + 0.5 * VOLATILITY**2, out=put)
            xp.add(first, put, out=first)
            xp.divide(first, deviation, out=first)
            xp.subtract(first, deviation, out=deviation)
            normal(first)
            normal(deviation)
            xp.multiply(time, -INTEREST, out=put)
            xp.exp(put, out=put)
            xp.multiply(strike, put, out=put)
            xp.multiply(price, first, out=call)
            xp.multiply(put, deviation, out=deviation)
            xp.subtract(call, deviation, out=call)
            xp.subtract(put, price, out=put)
            xp.add(call, put, out=put)

        return run, lambda: [call, put]

    def numba(self, prange: Any, number: Any) -> Loop:
        half, rate, volatility, root = map(number, (0.5, INTEREST, VOLATILITY, math.sqrt(0.5)))
        drift = number(INTEREST + 0.5 * VOLATILITY**2)

        def loop(price: Any, strike: Any, time: Any, call: Any, put: Any) -> None:
            for i in prange(price.size):
                deviation = volatility * math.sqrt(time[i])
                first = (math.log(price[i] / strike[i]) + drift * time[i]) / deviation
                later = strike[i] * math.exp(-rate * time[i])
                now = price[i] * (half + half * math.erf(first * root))
                call[i] = now - later * (half + half * math.erf((first - deviation) * root))
                put[i] = call[i] - price[i] + later

        return loop


class Adam(Workload):
    """A step of Adam without bias correction: weights, means and squares are updated in place."""

    title = "Adam, three results"
    operands = 4
    in_place = 3
    moved = 7

    def formula(self, m: Any, *operands: Any) -> list[Any]:
        return adam(m, *operands)

    def numpy(self, xp: Any, *operands: Any) -> Any:
        w, m, v, g = operands
        part = xp.empty_like(w)
        return lambda: adam_by_numpy(xp, w, m, v, g, part), lambda: [w, m, v]

    def numba(self, prange: Any, number: Any) -> Loop:
        mean, rest, square, other = map(number, (MEAN, 1 - MEAN, SQUARE, 1 - SQUARE))
        rate, tiny = number(RATE), number(TINY)

        def loop(w: Any, m: Any, v: Any, g: Any) -> None:
            for i in prange(w.size):
                m[i] = mean * m[i] + rest * g[i]
                v[i] = square * v[i] + other * g[i] * g[i]
                w[i] = w[i] - rate * m[i] / (math.sqrt(v[i]) + tiny)

        return loop


def adam(m: Any, w: Any, mean: Any, square: Any, g: Any) -> list[Any]:
    """Weights, means and squares after a step along a gradient."""
    mean, square = MEAN * mean + (1 - MEAN) * g, SQUARE * square + (1 - SQUARE) * g * g
    return [w - RATE * mean / (m.sqrt(square) + TINY), mean, square]


def adam_by_numpy(xp: Any, w: np.ndarray, m: np.ndarray, v: np.ndarray, g: np.ndarray, part: np.ndarray) -> None:
    """The same step in place, with buffers for intermediate values."""
    xp.multiply(m, MEAN, out=m)
    xp.multiply(g, 1 - MEAN, out=part)
    xp.add(m, part, out=m)
    xp.multiply(v, SQUARE, out=v)
    xp.multiply(g, g, out=part)
    xp.multiply(part, 1 - SQUARE, out=part)
    xp.add(v, part, out=v)
    xp.sqrt(v, out=part)
    xp.add(part, TINY, out=part)
    xp.divide(m, part, out=part)
    xp.multiply(part, RATE, out=part)
    xp.subtract(w, part, out=w)


class Square(Workload):
    """Operands that are square matrices."""

    @property
    def shape(self) -> tuple[int, ...]:
        side = math.isqrt(self.elements)
        return side, side


class TransposedAdd(Square):
    """Two operands with different memory orders."""

    title = "x.T + y"
    has_halves = True
    operands = 2
    moved = 3

    def formula(self, m: Any, *operands: Any) -> list[Any]:
        x, y = operands
        return [x.T + y]

    def numpy(self, xp: Any, *operands: Any) -> Any:
        x, y = operands
        out = xp.empty_like(x)
        return lambda: xp.add(x.T, y, out=out), lambda: [out]

    def numexpr(self, *operands: Any) -> Any:
        x, y = operands
        return "x + y", {"x": x.T, "y": y}

    def numba(self, prange: Any, number: Any) -> Loop:
        def loop(x: Any, y: Any, out: Any) -> None:
            rows, columns = out.shape
            for tile in prange((rows + 127) // 128):  # in tiles, so that each line of x is read from memory once
                for first in range(0, columns, 16):
                    for i in range(tile * 128, min(tile * 128 + 128, rows)):
                        for j in range(first, min(first + 16, columns)):
                            out[i, j] = x[j, i] + y[i, j]

        return loop


#: A description of each, in the order of the tables.
ELEMENTWISE = (Copy, Chain, Activations, BlackScholes, Adam, TransposedAdd)
