"""Trains a network on the handwritten digits that scikit-learn ships.

There are no layers here, only expressions: the weights are tensors, the loss is
an op-tree, its gradients are op-trees, and a step of training is one function,
which updates the weights. A run that was stopped goes on with --resume. Several
processes share each batch: mpiexec -n 4 python examples/digits.py --distributed
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from command_line import parser_of, whole
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

import optree
from backends import gen_backend
from optree import distributed, train
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
    optimizer : optree.train.Optimizer
    step : optree.Function
        Of images and digits: moves the weights against the gradient, with momentum, and
        returns the loss and the accuracy before.
    group : optree.distributed.Group
        The processes that have a part of each batch.
    """

    def __init__(self, be: Any, steps: int, group: distributed.Group | None = None) -> None:
        self.be = be
        self.group = group = group or distributed.init(be, "alone")
        first = train.initializers
        given = [
            first.kaiming_normal(be, (PIXELS, HIDDEN), name="w1"),
            first.zeros(be, HIDDEN, name="b1"),
            first.lecun_normal(be, (HIDDEN, CLASSES), name="w2"),
            first.zeros(be, CLASSES, name="b2"),
        ]
        self.weights = train.packed(given)
        self.w1, self.b1, self.w2, self.b2 = self.weights
        rate = train.schedules.linear(LEARNING_RATE, steps)
        self.optimizer = train.SGD(self.weights, rate, MOMENTUM, weight_decay=WEIGHT_DECAY)
        images, digits = optree.TensorType(be.datatype, (None, PIXELS)), optree.TensorType("int64", (None,))
        batch = Data(images("images"), digits("digits"))
        loss, count = self.loss(batch), group.count(batch.digits)
        means = group.averaged([loss, self.accuracy(batch)], count)
        self.step = optree.function([*batch], means, updates=self.optimizer.updates(loss, over=group, count=count))

    def scores(self, images: Any) -> Any:
        """The score of each digit for each image, as a tree."""
        be = self.be
        hidden = be.relu(be.dot(images, self.w1) + self.b1)
        return be.dot(hidden, self.w2) + self.b2

    def loss(self, batch: Data) -> Any:
        """The cross entropy of the softmax of the scores, as a tree."""
        return train.losses.cross_entropy(self.scores(batch.images), batch.digits)

    def accuracy(self, data: Data) -> Any:
        """The share of the images whose highest score is the right digit's, as a tree."""
        be = self.be
        guesses = be.argmax(self.scores(data.images), axis=1, keepdims=False)
        return be.mean(be.equal(guesses, data.digits))


def load(be: Any) -> tuple[Data, Data]:
    """The training and the test data, the same split each time."""
    digits = load_digits()
    parts = train_test_split(
        digits.data / 16, digits.target, test_size=TEST_IMAGES, random_state=0, stratify=digits.target
    )
    images, test_images, labels, test_labels = (be.array(part) for part in parts)
    return Data(images, labels), Data(test_images, test_labels)


def fit(network: Network, data: Data, epochs: int, batch_size: int, folder: Path, resume: bool = False) -> list[float]:
    """Trains the network, with a progress bar on a terminal; returns the loss of each step.

    After each epoch all of the run is saved, for another one to go on from there.
    """
    be, group = network.be, network.group
    shares: dict[str, Any] = {"rank": group.rank, "ranks": group.size}
    batches = train.Batches(*data, size=batch_size, seed=be.rng.randint(2**31), to=be, **shares)
    losses: list[float] = []
    state = {"weights": network.weights, "optimizer": network.optimizer, "random": be, "batches": batches}
    if resume and train.saved(folder):
        losses += train.load(folder, {**state, "losses": losses})["losses"]
    plans = 0
    hidden = {"disable": True} if group.rank else {}
    with train.Bar(epochs * len(batches), len(losses), **hidden) as bar:
        while batches.epoch < epochs:
            made: list[Any] = []  # kept as tensors meanwhile: to look at each would let a GPU wait for the host
            for batch in batches:
                size = min(batch_size, batches.count - len(made) * batch_size)  # of all processes together
                made.append((*network.step(*batch), size))
                bar(loss=made[-1][0], epoch=batches.epoch, examples=size)
                plans = plans or be.stats()["compiles"]
            losses += [loss.item() for loss, _, _ in made]
            right = sum(accuracy.item() * size for _, accuracy, size in made) / len(data.images)
            if not bar.is_drawn and group.rank == 0:  # no terminal, but a log: a line for each epoch
                bar.line(f"epoch={batches.epoch}, loss={losses[-1]:.3f}, accuracy={right:.3f}")
            train.save(folder, {**state, "losses": losses}, step=batches.epoch, keep=2, over=group)
    if group.rank == 0:
        print(f"{plans} plans compiled up to the end of the first step, {be.stats()['compiles'] - plans} after it")
    return losses


def draw_losses(losses: list[float], steps: int, path: Path) -> None:
    """Write a picture of the loss of each step, and of its mean over each epoch."""
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
    parser.add_argument("--output", type=Path, default=Path("output"), help="the folder for pictures and checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in that folder")
    parser.add_argument("--distributed", action="store_true", help="one of the processes that mpiexec has started")
    return parser, parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Trains, says how well, and writes two pictures."""
    parser, options = parse(arguments)
    try:
        # Kernels from the first step on, as in the steps before a run was stopped: each has last bits of its own.
        own: dict[str, Any] = {"jit": "always"}
        if options.backend == "gpu":
            own = {"device_id": distributed.launched().local_rank} if options.distributed else {}
        be = gen_backend(options.backend, rng_seed=options.seed, **own)
        group = distributed.init(be, None if options.distributed else "alone")
        options.output.mkdir(parents=True, exist_ok=True)
    except (BackendError, OSError) as error:
        parser.error(str(error))
    training, test = load(be)
    count = len(training.images)
    if options.batch_size > count:
        parser.error(f"argument --batch-size: {options.batch_size} is more than the {count} images to train on")

    network = Network(be, options.epochs * -(-count // options.batch_size), group)
    # The matrices are small: on a busy machine, BLAS's threads would wait for each other longer than they work.
    with threadpool_limits(1):
        try:
            folder = options.output / "checkpoints"
            losses = fit(network, training, options.epochs, options.batch_size, folder, options.resume)
        except train.CheckpointError as error:
            parser.error(f"argument --resume: {error}")
    share = network.accuracy(test).astensor().item()
    if group.rank:
        return
    print(f"test accuracy {share:.4f} on {len(test.images)} images that were not trained on")

    curve, tree = options.output / "loss.png", options.output / "loss_tree.svg"
    draw_losses(losses, len(losses) // options.epochs, curve)
    batch = Data(*(values[: options.batch_size].copy(name) for name, values in training._asdict().items()))
    draw(network.loss(batch), title="The loss of one batch").save(tree)
    print(f"the loss as it fell: {curve}\nthe loss as a tree: {tree}")


if __name__ == "__main__":
    main()
