"""Overhead of a whole training step over the same step in plain NumPy.

A network of 64, 128 and 10 units, a batch of 128, cross entropy, and Adam, in
float32: many operations on small arrays, where a tree's own cost shows most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits
from timing import options_of, report, rounds_of

import optree
from backends import gen_backend
from optree import TensorType
from optree.settings import override

UNITS, BATCH = (64, 128, 10), 128
RATE, DECAY, SQUARED_DECAY, EPSILON = 1e-4, 0.9, 0.999, 1e-8

Step = Callable[[], Any]


def start() -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """A batch of images, their classes as rows of zeros and a one, and the first weights."""
    rng = np.random.RandomState(0)
    shapes = [(UNITS[0], UNITS[1]), (UNITS[1],), (UNITS[1], UNITS[2]), (UNITS[2],)]
    images = rng.uniform(size=(BATCH, UNITS[0])).astype(np.float32)
    classes = np.eye(UNITS[2], dtype=np.float32)[rng.randint(UNITS[2], size=BATCH)]
    weights = [rng.normal(0, 0.1, shape).astype(np.float32) for shape in shapes]
    return images, classes, weights


def rates() -> Iterator[float]:
    """Adam's rate at each step, corrected for the means' start at zero."""
    first = second = 1.0
    while True:
        first, second = first * DECAY, second * SQUARED_DECAY
        yield RATE * (1 - second) ** 0.5 / (1 - first)


def in_numpy() -> tuple[Step, list[np.ndarray]]:
    """The step as one writes it in NumPy, its derivatives by hand."""
    images, classes, weights = start()
    means, squares = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    w1, b1, w2, b2 = weights
    rate = rates()

    def step() -> None:
        before = images @ w1 + b1
        hidden = np.maximum(before, 0)
        scores = hidden @ w2 + b2
        scores -= scores.max(axis=1, keepdims=True)
        powers = np.exp(scores)
        error = (powers / powers.sum(axis=1, keepdims=True) - classes) / BATCH
        below = (error @ w2.T) * (before > 0)
        gradients = images.T @ below, below.sum(axis=0), hidden.T @ error, error.sum(axis=0)
        now = next(rate)
        for w, m, v, g in zip(weights, means, squares, gradients, strict=True):
            m[:] = mean_after(m, g)
            v[:] = square_after(v, g)
            w -= now * m / (np.sqrt(v) + EPSILON)

    return step, weights


def mean_after(m: Any, g: Any) -> Any:
    """The running mean of the gradients, updated."""
    return DECAY * m + (1 - DECAY) * g


def square_after(v: Any, g: Any) -> Any:
    """The running mean of the gradients' squares, updated."""
    return SQUARED_DECAY * v + (1 - SQUARED_DECAY) * g * g


class Trees:
    """The same network on a backend; its methods are ways to take the step."""

    def __init__(self, be: Any) -> None:
        self.be = be
        images, classes, weights = start()
        self.images, self.classes = be.array(images, name="images"), be.array(classes, name="classes")
        self.weights = [be.array(w, name=name) for w, name in zip(weights, ("w1", "b1", "w2", "b2"), strict=True)]
        self.means = [be.zeros_like(w) for w in self.weights]
        self.squares = [be.zeros_like(w) for w in self.weights]
        self.rates = rates()

    def loss(self) -> Any:
        """The cross entropy of the batch, as a tree."""
        be, (w1, b1, w2, b2) = self.be, self.weights
        scores = be.dot(be.relu(be.dot(self.images, w1) + b1), w2) + b2
        return be.mean(be.logsumexp(scores, axis=1) - be.sum(scores * self.classes, axis=1))

    def gradients(self) -> list[Any]:
        """The derivatives of the loss, as trees."""
        return optree.grad(self.loss(), self.weights)

    def rebuilt(self) -> Step:
        """Build all trees in each step, and run the gradients one by one into buffers."""
        buffers = [self.be.empty_like(w) for w in self.weights]

        def step() -> None:
            for buffer, gradient in zip(buffers, self.gradients(), strict=True):
                buffer[:] = gradient
            self.move(buffers)

        return step

    def move(self, gradients: list[Any]) -> None:
        """Adam's assignments, their trees built anew."""
        rate = next(self.rates)
        for w, m, v, g in zip(self.weights, self.means, self.squares, gradients, strict=True):
            m[:] = mean_after(m, g)
            v[:] = square_after(v, g)
            w[:] = self.weight_after(w, m, v, rate)

    def weight_after(self, w: Any, m: Any, v: Any, rate: Any) -> Any:
        """A weight moved by Adam's means, as a tree."""
        return w - rate * m / (self.be.sqrt(v) + EPSILON)

    def kept(self) -> Step:
        """Build all trees once, and run them in each step; the rate is a tensor."""
        buffers, rate = [self.be.empty_like(w) for w in self.weights], self.be.zeros(())
        assignments = list(zip(buffers, self.gradients(), strict=True))
        for w, m, v, g in zip(self.weights, self.means, self.squares, buffers, strict=True):
            assignments += [(m, mean_after(m, g)), (v, square_after(v, g)), (w, self.weight_after(w, m, v, rate))]

        def step() -> None:
            rate.fill(next(self.rates))
            for target, value in assignments:
                target[:] = value

        return step

    def together(self) -> Step:
        """Build the gradients' trees once and run them together; build Adam's in each step."""
        trees = self.gradients()
        return lambda: self.move(self.be.evaluate(trees))

    def compiled(self) -> Step:
        """The whole step is one function."""
        rate = TensorType("float32", ())("rate")
        updates: dict[Any, Any] = {}
        for w, m, v, g in zip(self.weights, self.means, self.squares, self.gradients(), strict=True):
            updates[m], updates[v] = mean_after(m, g), square_after(v, g)
            updates[w] = self.weight_after(w, updates[m], updates[v], rate)
        run = optree.function([rate], updates=updates)
        return lambda: run(next(self.rates))


#: A name for each way that trees can take the step, and the method that makes it.
WAYS = {
    "trees built anew in each step": Trees.rebuilt,
    "trees kept": Trees.kept,
    "gradients kept, and evaluated together": Trees.together,
    "one function": Trees.compiled,
}


def gradients_alone(be: Any) -> tuple[list[str], list[Step]]:
    """The four gradients and nothing else, from kept trees: one by one, and together."""
    network = Trees(be)
    trees = network.gradients()
    whole = optree.function([], trees)
    names = ["one by one", "be.evaluate(gradients)", "one function"]
    return names, [lambda: [tree.astensor() for tree in trees], lambda: be.evaluate(trees), whole]


def main(arguments: list[str] | None = None) -> None:
    """Print the ratios."""
    options = options_of(__doc__, rounds=600, calls=1, arguments=arguments)
    be = gen_backend("cpu")
    step, weights = in_numpy()
    networks = [Trees(be) for _ in WAYS]
    steps = [step, *(way(network) for way, network in zip(WAYS.values(), networks, strict=True))]
    with threadpool_limits(1), override(stale_trees="ignore"):  # the kept trees read these tensors
        for _ in range(5):
            for step in steps:
                step()
        for network in networks:
            for w, wanted in zip(network.weights, weights, strict=True):
                np.testing.assert_allclose(w.get(), wanted, rtol=1e-4, atol=1e-5)
        for _ in range(100):  # until kernels have been compiled
            for step in steps:
                step()
        compiled = be.stats()["compiles"]
        report("A training step", ["NumPy", *WAYS], rounds_of(steps, options.rounds, options.calls))
        assert be.stats()["compiles"] == compiled, "a step compiled anew"
        names, ways = gradients_alone(be)
        report("The gradients alone", names, rounds_of(ways, options.rounds, options.calls))


if __name__ == "__main__":
    main()
