"""Trains a network to write Python's reference: the text that ships with Python, one character after the other.

Each character is guessed from those before it. All of a step is one function:
the loss, its gradients, and Adam's updates of weights and means.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import numpy as np
from command_line import parser_of, whole
from threadpoolctl import threadpool_limits

import optree
from backends import gen_backend
from optree.errors import BackendError

#: Numbers for each character; what keeps a row's divisor from zero.
EMBEDDING, EPSILON = 16, 1e-5
LEARNING_RATE, MEAN, SQUARE, TINY = 3e-3, 0.9, 0.99, 1e-8
#: The share of the text that is kept for the test, how many windows of it are looked at, and lines of the curve.
TEST_SHARE, TEST_WINDOWS, LINES = 0.1, 4096, 20
#: How many characters are written at the end, and how boldly: below 1, the probable is more probable.
WRITTEN, TEMPERATURE = 400, 0.7
#: From so many hidden units on, products are large enough for BLAS's threads.
WIDE = 1024


class Text(NamedTuple):
    """A text as numbers of its characters, split in two."""

    characters: str
    training: np.ndarray
    test: np.ndarray


class Network:
    """The characters before, two layers of hidden units, and a score for each character.

    Attributes
    ----------
    weights : list of Tensor
    """

    def __init__(self, be: Any, characters: int, context: int, width: int) -> None:
        self.be, self.characters, self.context = be, characters, context
        self.table = self._normal("table", characters, EMBEDDING, deviation=1.0)
        self.w1, self.w2 = self._normal("w1", context * EMBEDDING, width), self._normal("w2", width, width)
        self.w3 = self._normal("w3", width, characters)
        self.gain1, self.gain2 = be.ones(width, name="gain1"), be.ones(width, name="gain2")
        self.b1, self.b2 = be.zeros(width, name="b1"), be.zeros(width, name="b2")
        self.b3 = be.zeros(characters, name="b3")
        layers = [self.w1, self.gain1, self.b1], [self.w2, self.gain2, self.b2], [self.w3, self.b3]
        self.weights = [self.table, *(weight for layer in layers for weight in layer)]

    def _normal(self, name: str, rows: int, columns: int, deviation: float = 0.0) -> Any:
        values = self.be.rng.normal(0, deviation or np.sqrt(1 / rows), (rows, columns))
        return self.be.array(values, name=name)

    def scores(self, windows: Any) -> Any:
        """The score of each character after each window, a row of characters' numbers, as a tree."""
        be = self.be
        shown = be.take(self.table, windows, axis=0)
        rows = be.reshape(shown, (-1, self.context * EMBEDDING))
        hidden = be.relu(self._normalised(be.dot(rows, self.w1), self.gain1) + self.b1)
        hidden = hidden + be.relu(self._normalised(be.dot(hidden, self.w2), self.gain2) + self.b2)
        return be.dot(hidden, self.w3) + self.b3

    def _normalised(self, x: Any, gain: Any) -> Any:
        """Rows of mean 0 and variance 1, scaled."""
        be = self.be
        return (x - be.mean(x, axis=1)) / be.sqrt(be.var(x, axis=1) + EPSILON) * gain

    def loss(self, text: Any, starts: Any) -> Any:
        """The cross entropy, in bits a character, of those after the windows that start there in a text, as a tree."""
        be = self.be
        windows = be.take(text, be.expand_dims(starts, 1) + np.arange(self.context))
        truth = be.onehot(be.take(text, starts + self.context), self.characters)
        scores = self.scores(windows)
        return be.mean(be.logsumexp(scores, axis=1) - be.sum(scores * truth, axis=1)) / np.log(2.0).item()


def load() -> Text:
    """Python's reference, as its ``help()`` shows it."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    characters = "".join(sorted(set(text)))
    numbers = np.array([characters.index(character) for character in text])
    end = len(numbers) - int(len(numbers) * TEST_SHARE)
    return Text(characters, numbers[:end], numbers[end:])


def by_frequency(text: Text) -> float:
    """The bits a character of the test's text for who knows only how frequent each is in training."""
    counts = np.bincount(text.training, minlength=len(text.characters)) + 1.0
    return float(-np.log2(counts / counts.sum())[text.test].mean())


def train(
    network: Network, text: Text, steps: int, batch: int, folder: Path | None = None, resume: bool = False
) -> list[float]:
    """Trains the network, and prints the loss as it falls; returns the loss of each step.

    With each line of the curve the run is saved in a folder, for another one to go on from there.
    """
    be = network.be
    starts = optree.TensorType("int64", (None,))("starts")
    loss = network.loss(be.array(text.training), starts)
    rate = optree.train.schedules.linear(LEARNING_RATE, steps)
    opt = optree.train.Adam(network.weights, rate, MEAN, SQUARE, TINY)
    step = optree.function([starts], loss, updates=opt.updates(loss))
    state = {"weights": network.weights, "optimizer": opt, "random": be}
    bounds = np.linspace(0, steps, min(steps, LINES) + 1).astype(int)
    losses: list[float] = []
    if folder is not None and resume and optree.train.saved(folder):
        losses += optree.train.load(folder, {**state, "losses": losses})["losses"]
    for first, last in pairwise(bounds[np.searchsorted(bounds, len(losses)) :]):
        # Kept as tensors meanwhile: to look at each would let a GPU wait for the host.
        made = [step(be.rng.randint(len(text.training) - network.context, size=batch)) for _ in range(first, last)]
        losses += [value.item() for value in made]
        mean = float(np.mean(losses[first:last]))
        print(f"steps {first + 1:>6} to {last:>6}: {mean:.3f} bits a character {'#' * round(10 * mean)}", flush=True)
        if folder is not None:
            optree.train.save(folder, {**state, "losses": losses}, step=int(last), keep=2)
    return losses


def tested(network: Network, text: Text) -> float:
    """The bits a character of the text that was not trained on."""
    starts = np.linspace(0, len(text.test) - network.context - 1, TEST_WINDOWS).astype(np.int64)
    return network.loss(network.be.array(text.test), network.be.array(starts)).astensor().item()


def written(network: Network, text: Text) -> str:
    """What the network goes on with after the beginning of the test's text."""
    be, found = network.be, list(text.test[: network.context])
    window = optree.TensorType("int64", (1, network.context))("window")
    guess = optree.function([window], be.softmax(network.scores(window) / TEMPERATURE, axis=1))
    for _ in range(WRITTEN):
        chances = guess(np.array([found[-network.context :]])).get()[0].astype(np.float64)
        found.append(be.rng.choice(len(chances), p=chances / chances.sum()))
    return "".join(text.characters[number] for number in found)


def parse(arguments: list[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The command line's options, and the parser that reports what is wrong with them."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=whole(1), default=5000, help="how many steps to train for")
    parser.add_argument("--batch-size", type=whole(1), default=256, help="characters to guess in one step")
    parser.add_argument("--context", type=whole(1), default=16, help="how many characters each is guessed from")
    parser.add_argument("--width", type=whole(1), default=256, help="hidden units in a layer")
    parser.add_argument("--save", type=Path, help="a folder for checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in that folder")
    return parser, parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Trains, says how well, and writes some text."""
    parser, options = parse(arguments)
    if options.resume and options.save is None:
        parser.error("argument --resume: --save names the folder to go on from")
    try:
        # Kernels from the first step on, as in the steps before a run was stopped: each has last bits of its own.
        jit: dict[str, Any] = {"jit": "always"} if options.backend == "cpu" else {}
        be = gen_backend(options.backend, rng_seed=options.seed, **jit)
    except BackendError as error:
        parser.error(str(error))
    text = load()
    if options.context >= len(text.test):
        parser.error(f"argument --context: {options.context} is as much as the test's {len(text.test)} characters")
    network = Network(be, len(text.characters), options.context, options.width)
    print(f"{len(text.training)} characters to train on, {len(text.characters)} different ones; {be.info()}")
    # Of small matrices, BLAS's threads would on a busy machine wait for each other longer than they work.
    with threadpool_limits(1 if options.width < WIDE else None):
        try:
            train(network, text, options.steps, options.batch_size, options.save, options.resume)
        except optree.train.CheckpointError as error:
            parser.error(f"argument --resume: {error}")
        print(f"\n{tested(network, text):.3f} bits a character on text that was not trained on", end="")
        print(f", {by_frequency(text):.3f} by the frequency of each character alone\n")
        print(written(network, text))


if __name__ == "__main__":
    main()
