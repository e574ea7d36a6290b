"""Kernels written by hand in CuPy: ElementwiseKernel and ReductionKernel, for the workloads that fit them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from reductions import EPSILON, LayerNorm, Softmax, SquaredError
from rows import Sum
from workloads import (
    INNER,
    INTEREST,
    MEAN,
    OUTER,
    RATE,
    SQUARE,
    TINY,
    VOLATILITY,
    Activations,
    Adam,
    BlackScholes,
    Chain,
    Copy,
    TransposedAdd,
    Workload,
)

#: The initial value of a maximum: less than every operand, and valid in every compiler.
LEAST = "-3e38"


class Elementwise(NamedTuple):
    """The source of an ElementwiseKernel: operands, results, and the code of one element."""

    operands: str
    results: str
    body: str


ELEMENTWISE: dict[type[Workload], Elementwise] = {
    Copy: Elementwise("T x", "T z", "z = x"),
    Chain: Elementwise("T a, T b, T c, T d", "T z", "z = a * b + c * sin(d)"),
    Activations: Elementwise(
        "T x",
        "T z",
        f"z = T(0.5) * x * (T(1) + tanh(T({OUTER}) * (x + T({INNER}) * x * x * x)))"
        " + log1p(exp(-abs(x))) + max(x, T(0))",
    ),
    BlackScholes: Elementwise(
        "T price, T strike, T time",
        "T call, T put",
        f"""
        const T deviation = T({VOLATILITY}) * sqrt(time);
        const T first = (log(price / strike) + T({INTEREST + 0.5 * VOLATILITY**2}) * time) / deviation;
        const T later = strike * exp(T({-INTEREST}) * time);
        const T now = price * (T(0.5) + T(0.5) * erf(first * T({math.sqrt(0.5)})));
        call = now - later * (T(0.5) + T(0.5) * erf((first - deviation) * T({math.sqrt(0.5)})));
        put = call - price + later;
        """,
    ),
    Adam: Elementwise(
        "T g",
        "T w, T m, T v",
        f"""
        m = T({MEAN}) * m + T({1 - MEAN}) * g;
        v = T({SQUARE}) * v + T({1 - SQUARE}) * g * g;
        w = w - T({RATE}) * m / (sqrt(v) + T({TINY}));
        """,
    ),
    TransposedAdd: Elementwise("T x, T y", "T z", "z = x + y"),
}


class Kernels:
    """CuPy's kernels for workloads; those without any raise `NotImplementedError`."""

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy

    def way(self, workload: Workload, operands: list[Any], outs: list[Any]) -> Callable[[], Any]:
        """A function that computes a workload into existing results."""
        if workload.dtype.itemsize < 4:
            raise NotImplementedError("written for float32 and float64")
        for cls, text in ELEMENTWISE.items():
            if isinstance(workload, cls):
                kernel = self.cupy.ElementwiseKernel(*text, f"by_hand_{cls.__name__.lower()}")
                return partial(kernel, *_arguments(workload, operands, outs))
        if isinstance(workload, SquaredError):
            return self._squared_error(*operands, *outs)
        if isinstance(workload, Sum):
            total = self._reduction("T x", "x", "a + b", "0")
            return lambda: total(*operands, *outs, axis=workload.axis, keepdims=True)
        if isinstance(workload, Softmax):
            return self._softmax(*operands, *outs)
        if isinstance(workload, LayerNorm) and workload.axis == 1:
            return self._layer_norm(*operands, *outs)
        raise NotImplementedError("no kernel is written for it")

    def _reduction(self, operands: str, each: str, both: str, start: str, after: str = "z = a") -> Any:
        return self.cupy.ReductionKernel(operands, "T z", each, both, after, start, "by_hand_reduction")

    def _squared_error(self, x: Any, y: Any, out: Any) -> Callable[[], Any]:
        kernel = self._reduction("T x, T y", "(x - y) * (x - y)", "a + b", "0", f"z = a / T({x.size})")
        return lambda: kernel(x, y, out)

    def _softmax(self, x: Any, out: Any) -> Callable[[], Any]:
        largest, total = (self.cupy.empty((len(x), 1), x.dtype) for _ in range(2))
        find = self._reduction("T x", "x", "max(a, b)", LEAST)
        add = self._reduction("T x, T m", "exp(x - m)", "a + b", "0")
        divide = self.cupy.ElementwiseKernel("T x, T m, T s", "T z", "z = exp(x - m) / s", "by_hand_softmax")

        def run() -> None:
            find(x, largest, axis=1, keepdims=True)
            add(x, largest, total, axis=1, keepdims=True)
            divide(x, largest, total, out)

        return run

    def _layer_norm(self, x: Any, gain: Any, bias: Any, out: Any) -> Callable[[], Any]:
        mean, variance = (self.cupy.empty((len(x), 1), x.dtype) for _ in range(2))
        after = f"z = a / T({x.shape[1]})"
        average = self._reduction("T x", "x", "a + b", "0", after)
        spread = self._reduction("T x, T m", "(x - m) * (x - m)", "a + b", "0", after)
        body = f"z = (x - m) / sqrt(v + T({EPSILON})) * gain + bias"
        move = self.cupy.ElementwiseKernel("T x, T m, T v, T gain, T bias", "T z", body, "by_hand_layer_norm")

        def run() -> None:
            average(x, mean, axis=1, keepdims=True)
            spread(x, mean, variance, axis=1, keepdims=True)
            move(x, mean, variance, gain, bias, out)

        return run


def _arguments(workload: Workload, operands: list[Any], outs: list[Any]) -> list[Any]:
    if isinstance(workload, TransposedAdd):
        return [operands[0].T, operands[1], *outs]
    return [*operands[workload.in_place :], *outs]
