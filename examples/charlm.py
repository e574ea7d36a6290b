"""Trains a character-level language model on Python's reference, the text that ships with Python.

The model is two dense layers over a window of characters (`--model window`), an LSTM (`lstm`), or a small transformer.
A training step is one function: the loss, its gradients, and Adam's updates.
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
#: A transformer's blocks and heads, and how many times wider its layers within a block are.
BLOCKS, HEADS, WIDER = 2, 4, 4
LEARNING_RATE, MEAN, SQUARE, TINY = 3e-3, 0.9, 0.99, 1e-8
#: The share of the text that is kept for the test, how many windows of it are looked at, and lines of the curve.
TEST_SHARE, TEST_WINDOWS, LINES = 0.1, 4096, 20
#: In how many parts the windows of the test are looked at.
TEST_PARTS = 16
#: The number of characters written at the end, and the temperature: below 1, the probable is more probable.
WRITTEN, TEMPERATURE = 400, 0.7
#: The number of hidden units from which products are large enough for BLAS's threads.
WIDE = 1024


class Text(NamedTuple):
    """A text as numbers of its characters, split in two."""

    characters: str
    training: np.ndarray
    test: np.ndarray


class Model:
    """A model of characters: its weights, by name, and the scores that they give windows.

    Attributes
    ----------
    weights : list of Tensor
    """

    def __init__(self, be: Any, characters: int, context: int) -> None:
        self.be, self.characters, self.context = be, characters, context
        self.weights: list[Any] = []

    def _normal(self, name: str, rows: int, columns: int, deviation: float = 0.0) -> Any:
        values = self.be.rng.normal(0, deviation or np.sqrt(1 / rows), (rows, columns))
        self.weights.append(self.be.array(values, name=name))
        return self.weights[-1]

    def _full(self, name: str, size: int, value: float) -> Any:
        self.weights.append(self.be.full(size, value, name=name))
        return self.weights[-1]

    def scores(self, windows: Any) -> Any:
        """The score of each character after each window, a row of characters' numbers, as a tree."""
        raise NotImplementedError

    def loss(self, text: Any, starts: Any) -> Any:
        """The cross entropy, in bits a character, of those guessed in windows that start there in a text, as a tree."""
        raise NotImplementedError

    def _entropy(self, scores: Any, truth: Any) -> Any:
        """The mean of the bits that characters, by their numbers, have by scores along the last axis."""
        be = self.be
        chances = be.logsumexp(scores, axis=-1) - be.sum(scores * be.onehot(truth, self.characters), axis=-1)
        return be.mean(chances) / np.log(2.0).item()


class Network(Model):
    """The characters before, two layers of hidden units, and a score for each character."""

    def __init__(self, be: Any, characters: int, context: int, width: int) -> None:
        super().__init__(be, characters, context)
        self.table = self._normal("table", characters, EMBEDDING, deviation=1.0)
        self.w1, self.gain1 = self._normal("w1", context * EMBEDDING, width), self._full("gain1", width, 1)
        self.b1 = self._full("b1", width, 0)
        self.w2, self.gain2 = self._normal("w2", width, width), self._full("gain2", width, 1)
        self.b2 = self._full("b2", width, 0)
        self.w3, self.b3 = self._normal("w3", width, characters), self._full("b3", characters, 0)

    def scores(self, windows: Any) -> Any:
        be = self.be
        rows = be.reshape(be.embedding(self.table, windows), (-1, self.context * EMBEDDING))
        hidden = be.relu(be.layer_norm(be.dot(rows, self.w1), self.gain1, self.b1, epsilon=EPSILON))
        hidden = hidden + be.relu(be.layer_norm(be.dot(hidden, self.w2), self.gain2, self.b2, epsilon=EPSILON))
        return be.dot(hidden, self.w3) + self.b3

    def loss(self, text: Any, starts: Any) -> Any:
        be = self.be
        windows = be.take(text, be.expand_dims(starts, 1) + np.arange(self.context))
        return self._entropy(self.scores(windows), be.take(text, starts + self.context))


class Sequence(Model):
    """A model that guesses every character of a window from those before it there."""

    def all_scores(self, windows: Any) -> Any:
        """The score of each character after each place of each window, as a tree."""
        raise NotImplementedError

    def scores(self, windows: Any) -> Any:
        return self.be.slice(self.all_scores(windows), (slice(None), -1))

    def loss(self, text: Any, starts: Any) -> Any:
        be = self.be
        places = be.expand_dims(starts, 1) + np.arange(self.context)
        return self._entropy(self.all_scores(be.take(text, places)), be.take(text, places + 1))


class Memory(Sequence):
    """Long short-term memory, and a score for each character."""

    def __init__(self, be: Any, characters: int, context: int, width: int) -> None:
        super().__init__(be, characters, context)
        self.table = self._normal("table", characters, EMBEDDING, deviation=1.0)
        self.w, self.u = self._normal("w", EMBEDDING, 4 * width), self._normal("u", width, 4 * width)
        self.b = self._full("b", 4 * width, 0)
        self.b[width : 2 * width] = 1  # cells keep what they have, to begin with
        self.w_out, self.b_out = self._normal("w_out", width, characters), self._full("b_out", characters, 0)

    def all_scores(self, windows: Any) -> Any:
        be = self.be
        found = be.lstm(be.embedding(self.table, windows), self.w, self.u, self.b, batch_first=True)
        return be.matmul(found.outputs, self.w_out) + self.b_out


class Block:
    """A transformer's block: attention, then two layers, each added to what comes in."""

    def __init__(self, model: Any, width: int, name: str) -> None:
        self.be, self.width = model.be, width
        normal, full = model._normal, model._full
        self.gain1, self.gain2 = full(f"{name}_gain1", width, 1), full(f"{name}_gain2", width, 1)
        self.w_in, self.w_out = normal(f"{name}_w_in", width, 3 * width), normal(f"{name}_w_out", width, width)
        self.w1, self.b1 = normal(f"{name}_w1", width, WIDER * width), full(f"{name}_b1", WIDER * width, 0)
        self.w2, self.b2 = normal(f"{name}_w2", WIDER * width, width), full(f"{name}_b2", width, 0)

    def __call__(self, x: Any, context: int) -> Any:
        """The block's value for rows of a context, as a tree."""
        be = self.be
        parts = be.matmul(be.layer_norm(x, self.gain1), self.w_in)
        heads = be.transpose(be.reshape(parts, (-1, context, 3, HEADS, self.width // HEADS)), (2, 0, 3, 1, 4))
        found = be.attention(*(be.slice(heads, i) for i in range(3)), causal=True)
        rows = be.reshape(be.transpose(found, (0, 2, 1, 3)), (-1, context, self.width))
        x = x + be.matmul(rows, self.w_out)
        inner = be.relu(be.matmul(be.layer_norm(x, self.gain2), self.w1) + self.b1)
        return x + be.matmul(inner, self.w2) + self.b2


class Transformer(Sequence):
    """Blocks of causal attention and two layers, and a score for each character."""

    def __init__(self, be: Any, characters: int, context: int, width: int) -> None:
        super().__init__(be, characters, context)
        width = -(-width // HEADS) * HEADS
        self.table = self._normal("table", characters, width, deviation=1.0)
        self.places = self._normal("places", context, width, deviation=1.0)
        self.blocks = [Block(self, width, f"block{i}") for i in range(BLOCKS)]
        self.gain = self._full("gain", width, 1)
        self.w_out, self.b_out = self._normal("w_out", width, characters), self._full("b_out", characters, 0)

    def all_scores(self, windows: Any) -> Any:
        be = self.be
        x = be.embedding(self.table, windows) + self.places
        for block in self.blocks:
            x = block(x, self.context)
        return be.matmul(be.layer_norm(x, self.gain), self.w_out) + self.b_out


#: The models by the names that `--model` takes.
MODELS = {"window": Network, "lstm": Memory, "transformer": Transformer}


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
    network: Model, text: Text, steps: int, batch: int, folder: Path | None = None, resume: bool = False
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
    for first, last in pairwise([len(losses), *bounds[bounds > len(losses)]]):
        # Kept as tensors meanwhile: to look at each would let a GPU wait for the host.
        made = [step(be.rng.randint(len(text.training) - network.context, size=batch)) for _ in range(first, last)]
        losses += [value.item() for value in made]
        mean = float(np.mean(losses[first:last]))
        print(f"steps {first + 1:>6} to {last:>6}: {mean:.3f} bits a character {'#' * round(10 * mean)}", flush=True)
        if folder is not None:
            optree.train.save(folder, {**state, "losses": losses}, step=int(last), keep=2)
    return losses


def tested(network: Model, text: Text) -> float:
    """The bits a character of the text that was not trained on."""
    starts = optree.TensorType("int64", (None,))("starts")
    loss = optree.function([starts], network.loss(network.be.array(text.test), starts))
    whole = np.linspace(0, len(text.test) - network.context - 1, TEST_WINDOWS).astype(np.int64)
    return float(np.mean([loss(part).item() for part in np.split(whole, TEST_PARTS)]))


def written(network: Model, text: Text) -> str:
    """The network's continuation of the beginning of the test's text."""
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
    parser.add_argument("--model", choices=MODELS, default="window", help="what guesses")
    parser.add_argument("--steps", type=whole(1), default=5000, help="how many steps to train for")
    parser.add_argument("--batch-size", type=whole(1), default=256, help="windows to guess from in one step")
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
    network = MODELS[options.model](be, len(text.characters), options.context, options.width)
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
