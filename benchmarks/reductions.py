"""Workloads of reductions: sums, normalisations, and a training step (`workloads`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from workloads import Loop, Square, Workload, adam, adam_by_numpy

#: The epsilon added to a variance before the division.
EPSILON = 1e-5


class SquaredError(Workload):
    """One number from two arrays."""

    title = "mean((x - y)**2)"
    operands = 2
    moved = 2
    numexpr_writes = False

    def formula(self, m: Any, *operands: Any) -> list[Any]:
        x, y = operands
        return [m.mean((x - y) * (x - y))]

    def numpy(self, xp: Any, *operands: Any) -> Any:
        x, y = operands
        part, out = xp.empty_like(x), xp.empty((), self.dtype)

        def run() -> None:
            xp.subtract(x, y, out=part)
            xp.multiply(part, part, out=part)
            xp.mean(part, out=out)

        return run, lambda: [out]

    def numexpr(self, *operands: Any) -> Any:
        x, y = operands
        # The factor makes float64 of it: numexpr adds one by one, and float32 would lose digits.
        return "sum((x - y)*(x - y)*s)", {"x": x, "y": y, "s": np.float64(1 / x.size)}

    def numba(self, prange: Any, number: Any) -> Loop:
        def loop(x: Any, y: Any, out: Any) -> None:
            total = number(0)
            for i in prange(x.size):
                total += (x[i] - y[i]) * (x[i] - y[i])
            out[()] = total / x.size

        return loop


class Softmax(Square):
    """The softmax of each row."""

    title = "softmax of rows"
    has_halves = True
    moved = 2

    def formula(self, m: Any, *operands: Any) -> list[Any]:
        (x,) = operands
        return [m.softmax(x, axis=1)]

    def numpy(self, xp: Any, *operands: Any) -> Any:
        (x,) = operands
        out, row = xp.empty_like(x), xp.empty((len(x), 1), self.dtype)

        def run() -> None:
            xp.max(x, axis=1, keepdims=True, out=row)
            xp.subtract(x, row, out=out)
            xp.exp(out, out=out)
            xp.sum(out, axis=1, keepdims=True, out=row)
            xp.divide(out, row, out=out)

        return run, lambda: [out]

    def numba(self, prange: Any, number: Any) -> Loop:
        def loop(x: Any, out: Any) -> None:
            rows, columns = x.shape
            for i in prange(rows):
                largest, total = x[i, 0], number(0)
                for j in range(columns):
                    largest = max(largest, x[i, j])
                for j in range(columns):
                    out[i, j] = math.exp(x[i, j] - largest)
                    total += out[i, j]
                for j in range(columns):
                    out[i, j] /= total

        return loop


class CrossEntropy(Square):
    """The mean cross entropy of the rows' log-softmax with their classes, and its gradient."""

    title = "cross entropy, gradient"
    operands = 2
    moved = 3

    def fill(self, rng: np.random.Generator) -> list[np.ndarray]:
        rows, classes = self.shape
        return [rng.normal(size=self.shape), np.eye(classes)[rng.integers(classes, size=rows)]]

    def formula(self, m: Any, *operands: Any) -> list[Any]:
        x, truth = operands
        loss, (gradient,) = m.value_and_grad(lambda xs: cross_entropy(m, xs[0], truth), [x])
        return [loss, gradient]

    def numpy(self, xp: Any, *operands: Any) -> Any:
        x, truth = operands
        out, part, row, loss = xp.empty_like(x), xp.empty_like(x), xp.empty((len(x), 1), self.dtype), [0.0]

        def run() -> None:
            loss[0] = cross_entropy_by_numpy(xp, x, truth, out, part, row)

        return run, lambda: [xp.asarray(loss[0]), out]

    def numba(self, prange: Any, number: Any) -> Loop:
        def loop(x: Any, truth: Any, loss: Any, out: Any) -> None:
            rows, columns = x.shape
            total = number(0)
            for i in prange(rows):
                largest, powers, score, ones = x[i, 0], number(0), number(0), number(0)
                for j in range(columns):
                    largest = max(largest, x[i, j])
                for j in range(columns):
                    out[i, j] = math.exp(x[i, j] - largest)
                    powers += out[i, j]
                    score += truth[i, j] * (x[i, j] - largest)
                    ones += truth[i, j]
                total += ones * math.log(powers) - score
                for j in range(columns):
                    out[i, j] = (ones * out[i, j] / powers - truth[i, j]) / number(rows)
            loss[()] = total / number(rows)

        return loop


def cross_entropy(m: Any, x: Any, truth: Any) -> Any:
    """The mean over rows of the cross entropy, as a formula."""
    return -m.mean(m.sum(truth * m.log_softmax(x, axis=1), 1))


def cross_entropy_by_numpy(
    xp: Any, x: np.ndarray, truth: np.ndarray, out: np.ndarray, part: np.ndarray, row: np.ndarray
) -> Any:
    """The same for classes that are rows of zeros and a one; its gradient is written to `out`."""
    xp.max(x, axis=1, keepdims=True, out=row)
    xp.subtract(x, row, out=out)
    xp.multiply(truth, out, out=part)
    score = part.sum()
    xp.exp(out, out=out)
    xp.sum(out, axis=1, keepdims=True, out=row)
    xp.divide(out, row, out=out)
    xp.log(row, out=row)
    xp.subtract(out, truth, out=out)
    xp.divide(out, len(x), out=out)
    return (row.sum() - score) / len(x)


class LayerNorm(Square):
    """Rows of mean 0 and variance 1, scaled and shifted."""

    title = "layer norm"
    has_halves = True
    axis = 1
    moved = 2

    def fill(self, rng: np.random.Generator) -> list[np.ndarray]:
        rows, columns = self.shape
        return [rng.uniform(0.1, 2.0, shape) for shape in ((rows, columns), (1, columns), (1, columns))]

    def formula(self, m: Any, *operands: Any) -> list[Any]:
        x, gain, bias = operands
        centred = x - m.mean(x, self.axis)
        scale = 1 / m.sqrt(m.mean(centred * centred, self.axis) + EPSILON)
        return [centred * scale * gain + bias]

    def numpy(self, xp: Any, *operands: Any) -> Any:
        x, gain, bias = operands
        out, part, axis = xp.empty_like(x), xp.empty_like(x), self.axis
        row = xp.empty_like(x.sum(axis=axis, keepdims=True))

        def run() -> None:
            xp.mean(x, axis=axis, keepdims=True, out=row)
            xp.subtract(x, row, out=out)
            xp.multiply(out, out, out=part)
            xp.mean(part, axis=axis, keepdims=True, out=row)
            xp.add(row, EPSILON, out=row)
            xp.sqrt(row, out=row)
            xp.divide(1, row, out=row)
            xp.multiply(out, row, out=out)
            xp.multiply(out, gain, out=out)
            xp.add(out, bias, out=out)

        return run, lambda: [out]

    def numba(self, prange: Any, number: Any) -> Loop:
        epsilon = number(EPSILON)

        def loop(x: Any, gain: Any, bias: Any, out: Any) -> None:
            rows, columns = x.shape
            for i in prange(rows):
                mean, square = number(0), number(0)
                for j in range(columns):
                    mean += x[i, j]
                mean /= number(columns)
                for j in range(columns):
                    square += (x[i, j] - mean) * (x[i, j] - mean)
                scale = number(1) / math.sqrt(square / number(columns) + epsilon)
                for j in range(columns):
                    out[i, j] = (x[i, j] - mean) * scale * gain[0, j] + bias[0, j]

        return loop


class BatchNorm(LayerNorm):
    """Columns of mean 0 and variance 1, scaled and shifted; the operand is read twice."""

    title = "batch norm over rows"
    has_halves = False  # a column's sum of squares overflows float16
    axis = 0
    moved = 3

    def numba(self, prange: Any, number: Any) -> Loop:
        epsilon = number(EPSILON)

        def loop(x: Any, gain: Any, bias: Any, out: Any) -> None:
            rows, columns = x.shape
            for block in prange((columns + 63) // 64):
                first, last = block * 64, min(block * 64 + 64, columns)
                mean, scale = np.zeros(last - first, x.dtype), np.zeros(last - first, x.dtype)
                for i in range(rows):
                    for j in range(first, last):
                        mean[j - first] += x[i, j]
                for j in range(last - first):
                    mean[j] /= number(rows)
                for i in range(rows):
                    for j in range(first, last):
                        scale[j - first] += (x[i, j] - mean[j - first]) * (x[i, j] - mean[j - first])
                for j in range(last - first):
                    scale[j] = gain[0, j + first] / math.sqrt(scale[j] / number(rows) + epsilon)
                for i in range(rows):
                    for j in range(first, last):
                        out[i, j] = (x[i, j] - mean[j - first]) * scale[j - first] + bias[0, j]

        return loop


class Gaussian(Workload):
    """The sum of the Gaussians of all pairwise distances, without the matrix of distances."""

    title = "pairwise Gaussian sum"
    operands = 2

    @classmethod
    def sizes(cls, usual: Sequence[int]) -> Sequence[int]:
        return [4 * elements for elements in usual]  # the pairs: up to 8,192 times 8,192

    @property
    def shape(self) -> tuple[int, ...]:
        return (math.isqrt(self.elements),)

    def formula(self, m: Any, *operands: Any) -> list[Any]:
        x, y = operands
        difference = x[:, None] - y[None, :]
        return [m.sum(m.exp(-(difference * difference)), 1)]

    def numpy(self, xp: Any, *operands: Any) -> Any:
        x, y = operands
        part, out = xp.empty((x.size, y.size), self.dtype), xp.empty((x.size, 1), self.dtype)

        def run() -> None:
            xp.subtract(x[:, None], y[None, :], out=part)
            xp.multiply(part, part, out=part)
            xp.negative(part, out=part)
            xp.exp(part, out=part)
            xp.sum(part, axis=1, keepdims=True, out=out)

        return run, lambda: [out]

    def numba(self, prange: Any, number: Any) -> Loop:
        def loop(x: Any, y: Any, out: Any) -> None:
            for i in prange(x.size):
                total = number(0)
                for j in range(y.size):
                    total += math.exp(-(x[i] - y[j]) * (x[i] - y[j]))
                out[i, 0] = total

        return loop


class Training(Workload):
    """A step of a network of 784, 512, 512 and 10 units: forward, backward, Adam."""

    title = "training step"
    batch, units = 128, (784, 512, 512, 10)
    in_place = 18
    without = ("pytensor",)  # as pip installs it, it has no BLAS

    @classmethod
    def sizes(cls, usual: Sequence[int]) -> Sequence[int]:
        return [sum((a + 1) * b for a, b in zip(cls.units[:-1], cls.units[1:], strict=True))]  # the weights

    def fill(self, rng: np.random.Generator) -> list[np.ndarray]:
        pairs = list(zip(self.units[:-1], self.units[1:], strict=True))
        shapes = [*pairs, *((1, b) for _, b in pairs)]
        weights = [rng.normal(0, 0.05, shape) for shape in shapes]
        # Adam's means of a run in progress: from zero, the first step depends on the gradients' signs alone.
        means, squares = [rng.normal(0, 0.01, s) for s in shapes], [rng.uniform(0.01, 0.1, s) for s in shapes]
        classes = np.eye(self.units[-1])[rng.integers(self.units[-1], size=self.batch)]
        return [*weights, *means, *squares, rng.uniform(size=(self.batch, self.units[0])), classes]

    def formula(self, m: Any, *operands: Any) -> list[Any]:
        weights, means, squares, (x, truth) = operands[:6], operands[6:12], operands[12:18], operands[18:]

        def loss(weights: Any) -> Any:
            w1, w2, w3, b1, b2, b3 = weights
            hidden = m.relu(m.relu(x @ w1 + b1) @ w2 + b2)
            return cross_entropy(m, hidden @ w3 + b3, truth)

        _, gradients = m.value_and_grad(loss, list(weights))
        moved = [adam(m, *each) for each in zip(weights, means, squares, gradients, strict=True)]
        return [each[k] for k in range(3) for each in moved]

    def numpy(self, xp: Any, *operands: Any) -> Any:
        weights, means, squares, (x, truth) = operands[:6], operands[6:12], operands[12:18], operands[18:]
        w1, w2, w3, b1, b2, b3 = weights
        gradients, parts = [xp.empty_like(w) for w in weights], [xp.empty_like(w) for w in weights]
        first, second, scores = (xp.empty((self.batch, n), self.dtype) for n in self.units[1:])
        above, below = xp.empty_like(second), xp.empty_like(first)
        error, part, row = xp.empty_like(scores), xp.empty_like(scores), xp.empty((self.batch, 1), self.dtype)

        def layer(x: np.ndarray, w: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
            xp.matmul(x, w, out=out)
            xp.add(out, b, out=out)

        def back(x: np.ndarray, delta: np.ndarray, number: int) -> None:
            xp.matmul(x.T, delta, out=gradients[number])
            xp.sum(delta, axis=0, keepdims=True, out=gradients[number + 3])

        def run() -> None:
            layer(x, w1, b1, first)
            xp.maximum(first, 0, out=first)
            layer(first, w2, b2, second)
            xp.maximum(second, 0, out=second)
            layer(second, w3, b3, scores)
            cross_entropy_by_numpy(xp, scores, truth, error, part, row)
            back(second, error, 2)
            xp.matmul(error, w3.T, out=above)
            xp.multiply(above, second > 0, out=above)
            back(first, above, 1)
            xp.matmul(above, w2.T, out=below)
            xp.multiply(below, first > 0, out=below)
            back(x, below, 0)
            for each in zip(weights, means, squares, gradients, parts, strict=True):
                adam_by_numpy(xp, *each)

        return run, lambda: list(operands[:18])


#: A description of each, in the order of the tables.
REDUCTIONS = (SquaredError, Softmax, CrossEntropy, LayerNorm, BatchNorm, Gaussian, Training)
