"""Trains a network on the handwritten digits that scikit-learn ships.

There are no layers here, only expressions: the weights are tensors, the loss is
an op-tree, its gradients are op-trees, and a step of training is one function,
which updates the weights.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from command_line import parser_of, whole
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits
from tqdm import tqdm

import optree
from backends import gen_backend
from optree.errors import BackendError
from optree.pictures import draw

PIXELS, HIDDEN, CLASSES = 8 * 8, 128, 10
TEST_IMAGES = 360
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.3, 0.9, 1e-3


class Data(NamedTuple):
    """Images with a row of 64 pixels from 0 to 1 each, and the digits that they show."""

    images: Any
    digits: Any


class Network:
    """Pixels, a layer of hidden units, and a score for each digit.

    Attributes
    ----------
    weights : list of Tensor
    step : optree.Function
        Of images, digits and a rate: moves the weights against the gradient, with
        momentum, and returns the loss and the accuracy before.
    """

    def __init__(self, be: Any) -> None:
        self.be = be
        self.w1 = be.array(be.rng.normal(0, np.sqrt(2 / PIXELS), (PIXELS, HIDDEN)), name="w1")
        self.b1 = be.zeros(HIDDEN, name="b1")
        self.w2 = be.array(be.rng.normal(0, np.sqrt(1 / HIDDEN), (HIDDEN, CLASSES)), name="w2")
        self.b2 = be.zeros(CLASSES, name="b2")
        self.weights = [self.w1, self.b1, self.w2, self.b2]
        self.step = self._step()

    def scores(self, images: Any) -> Any:
        """The score of each digit for each image, as a tree."""
        be = self.be
        hidden = be.relu(be.dot(images, self.w1) + self.b1)
        return be.dot(hidden, self.w2) + self.b2

    def loss(self, batch: Data) -> Any:
        """The cross entropy of the softmax of the scores, and a little of the weights' squares, as a tree."""
        be = self.be
        scores = self.scores(batch.images)
        right = be.sum(scores * be.onehot(batch.digits, CLASSES), axis=1)
        entropy = be.mean(be.logsumexp(scores, axis=1) - right)
        squares = be.sum(be.square(self.w1)) + be.sum(be.square(self.w2))
        return entropy + WEIGHT_DECAY / 2 * squares

    def accuracy(self, data: Data) -> Any:
        """The share of the images whose highest score is the right digit's, as a tree."""
        be = self.be
        guesses = be.argmax(self.scores(data.images), axis=1, keepdims=False)
        return be.mean(be.equal(guesses, data.digits))

    def _step(self) -> Any:
        """A step of training, as a function of batches of any size."""
        be, images, digits = self.be, (None, PIXELS), (None,)
        batch = Data(optree.TensorType(be.datatype, images)("images"), optree.TensorType("int64", digits)("digits"))
        rate = optree.TensorType(be.datatype, ())("rate")
        loss, updates = self.loss(batch), {}
        for weight, gradient in zip(self.weights, optree.grad(loss, self.weights), strict=True):
            velocity = be.zeros_like(weight, name=f"v_{weight.name}")  # the running mean of its steps
            updates[velocity] = MOMENTUM * velocity - rate * gradient
            updates[weight] = weight + updates[velocity]
        return optree.function([*batch, rate], [loss, self.accuracy(batch)], updates=updates)


def load(be: Any) -> tuple[Data, Data]:
    """The training and the test data, the same split each time."""
    digits = load_digits()
    parts = train_test_split(
        digits.data / 16, digits.target, test_size=TEST_IMAGES, random_state=0, stratify=digits.target
    )
    images, test_images, labels, test_labels = (be.array(part) for part in parts)
    return Data(images, labels), Data(test_images, test_labels)


def train(network: Network, data: Data, epochs: int, batch_size: int) -> list[float]:
    """Trains the network, with a progress bar on a terminal; returns the loss of each step."""
    be, count = network.be, len(data.images)
    starts = range(0, count, batch_size)
    shuffled = Data(*map(be.empty_like, data))
    losses: list[float] = []
    plans = steps = 0
    total = epochs * len(starts)
    with tqdm(total=total, unit="step", disable=None) as bar:
        for epoch in range(1, epochs + 1):
            order = be.rng.permutation(count)
            for buffer, values in zip(shuffled, data, strict=True):
                buffer[:] = values[order]
            made = []  # kept as tensors meanwhile: to look at each would let a GPU wait for the host
            for start in starts:
                batch = Data(*(values[start : start + batch_size] for values in shuffled))
                made.append((network.step(*batch, LEARNING_RATE * (1 - steps / total)), len(batch.images)))
                steps += 1
                bar.update()
                plans = plans or be.stats()["compiles"]
            losses += [loss.item() for (loss, _), _ in made]
            right = sum(accuracy.item() * size for (_, accuracy), size in made)
            figures = {"epoch": epoch, "loss": f"{losses[-1]:.3f}", "accuracy": f"{right / count:.3f}"}
            bar.set_postfix(figures)
            if bar.disable:  # no terminal, but a log: a line for each epoch
                print(", ".join(f"{name}={figure}" for name, figure in figures.items()), file=sys.stderr)
    print(f"{plans} plans compiled up to the end of the first step, {be.stats()['compiles'] - plans} after it")
    return losses


def draw_losses(losses: list[float], steps: int, path: Path) -> None:
    """Writes a picture of the loss of each step, and of its mean over each epoch of so many steps."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(np.arange(len(losses)) / steps, losses, color="#9ecae1", linewidth=0.8, label="each step")
    means = np.reshape(losses, (-1, steps)).mean(axis=1)
    axes.plot(np.arange(len(means)) + 0.5, means, color="#08519c", label="mean of each epoch")
    axes.set(xlabel="epoch", ylabel="loss", yscale="log", title="Training loss on handwritten digits")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def parse(arguments: list[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The command line's options, and the parser that reports what is wrong with them."""
    parser = parser_of(__doc__)
    parser.add_argument("--epochs", type=whole(1), default=40, help="how many times to go through the training data")
    parser.add_argument("--batch-size", type=whole(1), default=64, help="images in one step")
    parser.add_argument("--output", type=Path, default=Path("output"), help="the folder for the pictures")
    return parser, parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Trains, says how well, and writes two pictures."""
    parser, options = parse(arguments)
    try:
        be = gen_backend(options.backend, rng_seed=options.seed)
        options.output.mkdir(parents=True, exist_ok=True)
    except (BackendError, OSError) as error:
        parser.error(str(error))
    training, test = load(be)
    count = len(training.images)
    if options.batch_size > count:
        parser.error(f"argument --batch-size: {options.batch_size} is more than the {count} images to train on")

    network = Network(be)
    # The matrices are small: on a busy machine, BLAS's threads would wait for each other longer than they work.
    with threadpool_limits(1):
        losses = train(network, training, options.epochs, options.batch_size)
    share = network.accuracy(test).astensor().item()
    print(f"test accuracy {share:.4f} on {len(test.images)} images that were not trained on")

    curve, tree = options.output / "loss.png", options.output / "loss_tree.svg"
    draw_losses(losses, len(losses) // options.epochs, curve)
    batch = Data(*(values[: options.batch_size].copy(name) for name, values in training._asdict().items()))
    draw(network.loss(batch), title="The loss of one batch").save(tree)
    print(f"the loss as it fell: {curve}\nthe loss as a tree: {tree}")


if __name__ == "__main__":
    main()
