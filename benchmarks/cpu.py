"""How fast kernels on the CPU are, beside NumPy and what else is installed (`pip install .[bench]`).

Three workloads of float32, each checked against float64 first. The ways take
turns in one process; a figure is the median of its rounds. What a way needs to
be at its best is done before: it is compiled, and gives its result into memory
that is there where it can.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from timing import rounds_of

import optree
from backends import gen_backend

#: For each way, in the order of the columns, what it is imported as; those that are not there are left out.
PEERS = {"numexpr": "numexpr", "numba": "numba", "jax": "jax", "torch": "torch"}

#: Numba uses threads from so many elements on: below, they cost more than they bring.
PARALLEL = 1 << 15

SIZES = (1 << 10, 1 << 18, 1 << 22)

#: What is timed: it computes all results and waits for them; and a function that gives them.
Way = tuple[Callable[[], Any], Callable[[], list[np.ndarray]]]

RATE, MEAN, SQUARE, TINY = 0.001, 0.9, 0.999, 1e-8


class Workload:
    """One expression, its operands, and each way to compute it: a method of the way's name."""

    title = ""
    operands = 0

    def __init__(self, elements: int) -> None:
        rng = np.random.RandomState(0)
        self.elements = elements
        self.arrays = [rng.uniform(0.1, 2.0, elements).astype(np.float32) for _ in range(self.operands)]

    def expected(self) -> list[np.ndarray]:
        """The results in float64."""
        raise NotImplementedError


class Chain(Workload):
    """Memory and one sine."""

    title = "a*b + c*sin(d)"
    operands = 4

    def expected(self) -> list[np.ndarray]:
        a, b, c, d = (x.astype(np.float64) for x in self.arrays)
        return [a * b + c * np.sin(d)]

    def numpy(self) -> Way:
        a, b, c, d = self.arrays
        out, part = np.empty_like(a), np.empty_like(a)

        def run() -> None:
            np.sin(d, out=part)
            np.multiply(c, part, out=part)
            np.multiply(a, b, out=out)
            np.add(out, part, out=out)

        return run, lambda: [out]

    def optree(self, be: Any) -> Way:
        a, b, c, d = map(be.array, self.arrays)
        out = be.empty(self.elements)
        step = optree.function([], updates={out: a * b + c * be.sin(d)})
        return step, lambda: [out.get()]

    def numexpr(self, numexpr: Any) -> Way:
        names = dict(zip("abcd", self.arrays, strict=True))
        out = np.empty_like(self.arrays[0])
        numexpr.validate("a*b + c*sin(d)", names)
        return lambda: numexpr.evaluate("a*b + c*sin(d)", names, out=out), lambda: [out]

    def numba(self, numba: Any) -> Way:
        out = np.empty_like(self.arrays[0])

        @numba.njit(parallel=self.elements >= PARALLEL)
        def loop(a: Any, b: Any, c: Any, d: Any, out: Any) -> None:
            for i in numba.prange(a.size):
                out[i] = a[i] * b[i] + c[i] * math.sin(d[i])

        return lambda: loop(*self.arrays, out), lambda: [out]

    def jax(self, jax: Any) -> Way:
        return _jitted(jax, lambda a, b, c, d: [a * b + c * jax.numpy.sin(d)], self.arrays)

    def torch(self, torch: Any) -> Way:
        return _torched(torch, lambda a, b, c, d: [a * b + c * torch.sin(d)], self.arrays)


class Activations(Workload):
    """Many operations on one array, three of them transcendental."""

    title = "GELU + softplus"
    operands = 1

    @staticmethod
    def _of(x: Any, m: Any) -> Any:
        gelu = 0.5 * x * (1.0 + m.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
        return gelu + m.log1p(m.exp(-abs(x))) + m.maximum(x, 0.0)

    def expected(self) -> list[np.ndarray]:
        return [self._of(self.arrays[0].astype(np.float64), np)]

    def numpy(self) -> Way:
        (x,) = self.arrays
        out, part = np.empty_like(x), np.empty_like(x)

        def run() -> None:
            np.multiply(x, x, out=part)
            np.multiply(part, x, out=part)
            np.multiply(part, np.float32(0.044715), out=part)
            np.add(part, x, out=part)
            np.multiply(part, np.float32(0.7978845608), out=part)
            np.tanh(part, out=part)
            np.add(part, np.float32(1), out=part)
            np.multiply(x, np.float32(0.5), out=out)
            np.multiply(out, part, out=out)
            np.abs(x, out=part)
            np.negative(part, out=part)
            np.exp(part, out=part)
            np.log1p(part, out=part)
            np.add(out, part, out=out)
            np.maximum(x, np.float32(0), out=part)
            np.add(out, part, out=out)

        return run, lambda: [out]

    def optree(self, be: Any) -> Way:
        x, out = be.array(self.arrays[0]), be.empty(self.elements)
        step = optree.function([], updates={out: self._of(x, be)})
        return step, lambda: [out.get()]

    def numexpr(self, numexpr: Any) -> Way:
        half, one, a, b, zero = map(np.float32, (0.5, 1, 0.7978845608, 0.044715, 0))
        names = {"x": self.arrays[0], "h": half, "o": one, "a": a, "b": b, "z": zero}
        text = "h*x*(o + tanh(a*(x + b*x*x*x))) + log1p(exp(-abs(x))) + where(x > z, x, z)"
        out = np.empty_like(self.arrays[0])
        return lambda: numexpr.evaluate(text, names, out=out), lambda: [out]

    def numba(self, numba: Any) -> Way:
        out = np.empty_like(self.arrays[0])
        half, one, a, b, zero = map(np.float32, (0.5, 1, 0.7978845608, 0.044715, 0))

        @numba.njit(parallel=self.elements >= PARALLEL)
        def loop(x: Any, out: Any) -> None:
            for i in numba.prange(x.size):
                v = x[i]
                gelu = half * v * (one + math.tanh(a * (v + b * v * v * v)))
                out[i] = gelu + math.log1p(math.exp(-abs(v))) + max(v, zero)

        return lambda: loop(self.arrays[0], out), lambda: [out]

    def jax(self, jax: Any) -> Way:
        return _jitted(jax, lambda x: [self._of(x, jax.numpy)], self.arrays)

    def torch(self, torch: Any) -> Way:
        def value(x: Any) -> Any:
            gelu = 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
            return [gelu + torch.log1p(torch.exp(-torch.abs(x))) + torch.relu(x)]

        return _torched(torch, value, self.arrays)


class Adam(Workload):
    """A step of Adam without its correction of the first steps: weights, means and squares, each written in place."""

    title = "Adam, three results"
    operands = 4

    @staticmethod
    def _of(w: Any, m: Any, v: Any, g: Any, root: Any) -> list[Any]:
        mean, square = MEAN * m + (1 - MEAN) * g, SQUARE * v + (1 - SQUARE) * g * g
        return [w - RATE * mean / (root(square) + TINY), mean, square]

    def expected(self) -> list[np.ndarray]:
        w, m, v, g = (x.astype(np.float64) for x in self.arrays)
        return self._of(w, m, v, g, np.sqrt)

    def numpy(self) -> Way:
        (w, m, v), g = (x.copy() for x in self.arrays[:3]), self.arrays[3]
        part = np.empty_like(w)

        def run() -> None:
            np.multiply(m, np.float32(MEAN), out=m)
            np.multiply(g, np.float32(1 - MEAN), out=part)
            np.add(m, part, out=m)
            np.multiply(v, np.float32(SQUARE), out=v)
            np.multiply(g, g, out=part)
            np.multiply(part, np.float32(1 - SQUARE), out=part)
            np.add(v, part, out=v)
            np.sqrt(v, out=part)
            np.add(part, np.float32(TINY), out=part)
            np.divide(m, part, out=part)
            np.multiply(part, np.float32(RATE), out=part)
            np.subtract(w, part, out=w)

        return run, lambda: [w, m, v]

    def optree(self, be: Any) -> Way:
        w, m, v, g = map(be.array, self.arrays)
        step = optree.function([], updates=dict(zip((w, m, v), self._of(w, m, v, g, be.sqrt), strict=True)))
        return step, lambda: [w.get(), m.get(), v.get()]

    def numba(self, numba: Any) -> Way:
        (w, m, v), g = (x.copy() for x in self.arrays[:3]), self.arrays[3]
        mean, rest, square, other, rate, tiny = map(np.float32, (MEAN, 1 - MEAN, SQUARE, 1 - SQUARE, RATE, TINY))

        @numba.njit(parallel=self.elements >= PARALLEL)
        def loop(w: Any, m: Any, v: Any, g: Any) -> None:
            for i in numba.prange(w.size):
                m[i] = mean * m[i] + rest * g[i]
                v[i] = square * v[i] + other * g[i] * g[i]
                w[i] = w[i] - rate * m[i] / (math.sqrt(v[i]) + tiny)

        return lambda: loop(w, m, v, g), lambda: [w, m, v]

    def jax(self, jax: Any) -> Way:
        step = jax.jit(lambda w, m, v, g: self._of(w, m, v, g, jax.numpy.sqrt), donate_argnums=(0, 1, 2))
        g = jax.numpy.asarray(self.arrays[3])
        kept = [[jax.numpy.array(x) for x in self.arrays[:3]]]

        def run() -> None:
            kept[0] = jax.block_until_ready(step(*kept[0], g))

        return run, lambda: [np.asarray(x) for x in kept[0]]

    def torch(self, torch: Any) -> Way:
        w, m, v = (torch.from_numpy(x.copy()) for x in self.arrays[:3])
        g = torch.from_numpy(self.arrays[3])

        def step(w: Any, m: Any, v: Any, g: Any) -> None:
            for old, new in zip((w, m, v), self._of(w, m, v, g, torch.sqrt), strict=True):
                old.copy_(new)

        compiled = torch.compile(step)
        return lambda: compiled(w, m, v, g), lambda: [w.numpy(), m.numpy(), v.numpy()]


WORKLOADS = (Chain, Activations, Adam)


def _jitted(jax: Any, function: Callable[..., list[Any]], arrays: list[np.ndarray]) -> Way:
    compiled, operands = jax.jit(function), [jax.numpy.asarray(x) for x in arrays]
    found: list[Any] = []

    def run() -> None:
        found[:] = jax.block_until_ready(compiled(*operands))

    return run, lambda: [np.asarray(x) for x in found]


def _torched(torch: Any, function: Callable[..., list[Any]], arrays: list[np.ndarray]) -> Way:
    compiled, operands = torch.compile(function), [torch.from_numpy(x) for x in arrays]
    found: list[Any] = []

    def run() -> None:
        found[:] = compiled(*operands)

    return run, lambda: [x.numpy() for x in found]


def peers() -> Iterator[tuple[str, Any]]:
    """The peers that are installed."""
    for name, module in PEERS.items():
        try:
            yield name, importlib.import_module(module)
        except ImportError:
            print(f"{name}: not installed, left out (pip install .[bench])")


def measured(workload: Workload, libraries: dict[str, Any], rounds: int) -> dict[str, float]:
    """The median seconds of each way that this workload has, its results checked before."""
    names, functions = [], []
    for name, library in libraries.items():
        make = getattr(workload, name, None)
        if make is None:
            continue
        run, results = make(*([library] if library is not np else []))
        run()
        for got, wanted in zip(results(), workload.expected(), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6, err_msg=f"{workload.title} by {name}")
        names.append(name)
        functions.append(run)
    calls = max(1, (1 << 17) // workload.elements)
    times = rounds_of(functions, rounds, calls)
    return dict(zip(names, map(statistics.median, times), strict=True))


def main(arguments: list[str] | None = None) -> None:
    """Print the times, and the ratios of ours to the fastest of the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31, help="rounds of each comparison (31)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of elements")
    options = parser.parse_args(arguments)
    be = gen_backend("cpu", jit=True)
    print(f"NumPy {np.__version__}; op-tree: {be.info()}; medians of {options.rounds} rounds, in microseconds")
    libraries = {"numpy": np, "optree": be, **dict(peers())}
    print(f"{'':<20}{'elements':>10}" + "".join(f"{name:>11}" for name in libraries) + f"{'ours/fastest':>14}")
    for cls in WORKLOADS:
        for elements in options.sizes:
            found = measured(cls(elements), libraries, options.rounds)
            fastest = min(seconds for name, seconds in found.items() if name != "optree")
            cells = (f"{found[name] * 1e6:>11.1f}" if name in found else f"{'-':>11}" for name in libraries)
            print(f"{cls.title:<20}{elements:>10,}{''.join(cells)}{found['optree'] / fastest:>14.2f}", flush=True)


if __name__ == "__main__":
    main()
