"""Trains a convolutional network on handwritten digits, or on images of your own.

Two blocks of convolutions with batch norm, each followed by a pool, then
dropout and a layer of scores. All of it is expressions: the running statistics
of batch norm are updates of the step, and dropout is a random mask. A run that
was stopped goes on with --resume.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import chain
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
from optree import train
from optree.errors import BackendError, OptreeError

WIDTH, DROPOUT = 32, 0.5
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 5e-4
TEST_SHARE, MOST_PICTURES = 0.2, 24


class Data(NamedTuple):
    """Images as (count, channels, rows, columns), of numbers from 0 to 1, and the numbers of their classes."""

    images: np.ndarray
    labels: np.ndarray


class Dataset(NamedTuple):
    """Data to train on and to test with, and the names of the classes."""

    training: Data
    test: Data
    names: list[str]


class Layer:
    """A convolution and its batch norm: weights, gain and bias, and the running mean and variance."""

    def __init__(self, be: Any, name: str, outputs: int, inputs: int) -> None:
        self.w = train.initializers.kaiming_normal(be, (3, 3, inputs, outputs), name=name, layout="HWIO")
        self.gain, self.bias = be.ones(outputs, name=f"{name}_gain"), be.zeros(outputs, name=f"{name}_bias")
        self.running = [be.zeros(outputs, name=f"{name}_mean"), be.ones(outputs, name=f"{name}_variance")]

    def __call__(self, be: Any, x: Any, updates: dict[Any, Any] | None) -> Any:
        """The rectified value of images, as a tree; in training, `updates` gets the new running statistics."""
        y = be.conv(x, self.w, padding="same", weights_layout="HWIO")
        y, *new = be.batch_norm(y, self.gain, self.bias, *self.running, training=updates is not None)
        if updates is not None:
            updates.update(zip(self.running, new, strict=True))
        return be.relu(y)


class Network:
    """Convolutions, pools and a score for each class.

    Attributes
    ----------
    layers : list of Layer
    optimizer : optree.train.Optimizer
    state : dict
        All that a checkpoint holds of the network.
    step : optree.Function
        Of a batch of images and their labels: moves the weights, and returns the loss and the accuracy before.
    scores : optree.Function
        Of any number of images.
    """

    def __init__(self, be: Any, shape: tuple[int, ...], classes: int, batch: int, steps: int) -> None:
        self.be, self.batch = be, batch
        channels, rows, columns = shape
        sizes = [channels, WIDTH, WIDTH, 2 * WIDTH, 2 * WIDTH]
        self.layers = [Layer(be, f"conv{i}", sizes[i], sizes[i - 1]) for i in range(1, len(sizes))]
        features = sizes[-1] * -(-rows // 4) * -(-columns // 4)
        self.w = train.initializers.lecun_normal(be, (features, classes), name="w")
        self.b = be.zeros(classes, name="b")
        decaying = [*(layer.w for layer in self.layers), self.w]
        others = [*chain(*((layer.gain, layer.bias) for layer in self.layers)), self.b]
        rate = train.schedules.cosine(LEARNING_RATE, steps)
        groups = [{"weights": decaying}, {"weights": others, "weight_decay": 0.0}]
        self.optimizer = train.SGD(groups, rate, MOMENTUM, weight_decay=WEIGHT_DECAY)
        running = list(chain(*(layer.running for layer in self.layers)))
        self.state = {"weights": [*decaying, *others], "running": running, "optimizer": self.optimizer}
        images, labels = optree.TensorType(be.datatype, (batch, *shape)), optree.TensorType("int64", (batch,))
        self.step = self._step(images("images"), labels("labels"))
        any_images = optree.TensorType(be.datatype, (None, *shape))("images")
        self.scores = optree.function([any_images], self.forward(any_images))

    def forward(self, x: Any, updates: dict[Any, Any] | None = None) -> Any:
        """The scores of images, as a tree.

        Parameters
        ----------
        updates : dict, optional
            In training: gets the new running statistics. Without it, these are what norms take.
        """
        be = self.be
        for i, layer in enumerate(self.layers):
            x = layer(be, x, updates)
            if i % 2:
                x = be.max_pool(x, 2, ceil=True)
        x = be.reshape(x, (-1, self.w.shape[0]))
        if updates is not None:
            x = x * (be.rand((self.batch, self.w.shape[0])) >= DROPOUT) / (1 - DROPOUT)
        return be.dot(x, self.w) + self.b

    def _step(self, images: Any, labels: Any) -> Any:
        be, updates = self.be, dict[Any, Any]()
        scores = self.forward(images, updates)
        loss = train.losses.cross_entropy(scores, labels)
        accuracy = be.mean(be.equal(be.argmax(scores, axis=1, keepdims=False), labels))
        updates.update(self.optimizer.updates(loss))
        return optree.function([images, labels], [loss, accuracy], updates=updates)

    def guesses(self, images: np.ndarray, batch: int = 256) -> np.ndarray:
        """The class of the highest score, for each image."""
        parts = [images[i : i + batch] for i in range(0, len(images), batch)]
        return np.concatenate([self.scores(part).get().argmax(axis=1) for part in parts])


# Data


def load(path: Path | None, size: int | None) -> Dataset:
    """The digits that scikit-learn ships, or what a path has.

    Raises
    ------
    ValueError
        If there is no dataset at the path.
    """
    if path is None:
        digits = load_digits()
        images, labels = digits.images[:, None] / 16, digits.target
        names = [str(name) for name in digits.target_names]
    elif path.is_dir():
        images, labels, names = _folder(path, size or 32)
    else:
        images, labels, names = _arrays(path)
    if size is not None and images.shape[2:] != (size, size):
        be = gen_backend("cpu")
        images = be.resize(be.array(images), (size, size)).asnumpyarray()
    parts = train_test_split(
        images.astype("float32"), labels.astype("int64"), test_size=TEST_SHARE, random_state=0, stratify=labels
    )
    return Dataset(Data(parts[0], parts[2]), Data(parts[1], parts[3]), names)


def _folder(path: Path, size: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Images in a folder for each class, all resized to one size, in three channels."""
    found = train.ImageFolder(path, (size, size))
    if len(set(found.labels.tolist())) < 2:
        raise ValueError(f"{path}: a folder of images for each of two classes or more is wanted")
    return np.stack(list(found)).transpose(0, 3, 1, 2) / 255, found.labels, found.classes


def _arrays(path: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The arrays of an .npz file: images of 3 or 4 dimensions, the channels last or second, and labels."""
    try:
        with np.load(path) as file:
            arrays = list(file.values())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: no folder and no .npz file ({error})") from None
    images = next((x for x in arrays if x.ndim in (3, 4)), None)
    labels = next((x.ravel() for x in arrays if images is not None and x.size == len(images)), None)
    if images is None or labels is None:
        raise ValueError(f"{path}: images of 3 or 4 dimensions and as many labels are wanted")
    if images.ndim == 3:
        images = images[:, None]
    elif images.shape[-1] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    values, labels = np.unique(labels, return_inverse=True)
    return images / max(float(images.max()), 1.0), labels, [str(x) for x in values]


def shifted(generator: Any, images: np.ndarray, labels: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Images, each moved by a few pixels at random: augmentation."""
    rows, columns = images.shape[2:]
    padded = np.pad(images, ((0, 0), (0, 0), (most, most), (most, most)))
    moves = generator.integers(0, 2 * most + 1, (len(images), 2))
    moved = [x[:, i : i + rows, j : j + columns] for x, (i, j) in zip(padded, moves, strict=True)]
    return np.stack(moved), labels


# Training


def fit(network: Network, batches: train.Batches, epochs: int, folder: Path, resume: bool = False) -> None:
    """Trains the network, with a progress bar on a terminal and a log of each step.

    After each epoch all of the run is saved, for another one to go on from there.
    """
    be, checkpoints, path = network.be, folder / "checkpoints", folder / "log.csv"
    state = {**network.state, "random": be, "batches": batches}
    if resume and train.saved(checkpoints):
        train.load(checkpoints, state)
    else:
        path.unlink(missing_ok=True)
    done = batches.epoch * len(batches)
    with train.Bar(epochs * len(batches), done) as bar, train.Log(path, done=done) as log:
        while batches.epoch < epochs:
            right: list[Any] = []  # kept as tensors meanwhile: to look at each would let a GPU wait for the host
            for batch in batches:
                loss, accuracy = network.step(*batch)
                right.append(accuracy)
                done += 1
                log(done, loss=loss, accuracy=accuracy)
                bar(loss=loss, epoch=batches.epoch, examples=network.batch)
            if not bar.is_drawn:  # no terminal, but a log: a line for each epoch
                mean = np.mean([each.item() for each in right])
                bar.line(f"epoch={batches.epoch}, loss={loss.item():.3f}, accuracy={mean:.3f}")
            log.flush()
            train.save(checkpoints, state, step=batches.epoch, keep=2)


def _pictures(images: np.ndarray, titles: list[str], path: Path, title: str) -> None:
    """Writes a picture of small images, (channels, rows, columns) each."""
    columns = 8
    figure = Figure(figsize=(8, 1 + 1.1 * max(1, -(-len(images) // columns))), layout="constrained")
    figure.suptitle(title)
    for i, (image, text) in enumerate(zip(images, titles, strict=True)):
        axes = figure.add_subplot(-(-len(images) // columns), columns, i + 1)
        low, high = float(image.min()), float(image.max())
        pixels = ((image - low) / (high - low or 1)).transpose(1, 2, 0)
        axes.imshow(pixels if pixels.shape[2] == 3 else pixels[:, :, 0], cmap="gray")
        axes.set_title(text, fontsize=8)
        axes.axis("off")
    figure.savefig(path, dpi=120)


def draw(network: Network, dataset: Dataset, guesses: np.ndarray, folder: Path) -> tuple[Path, Path]:
    """Writes pictures of the first filters, and of images that the network takes for something else."""
    filters, errors = folder / "filters.png", folder / "errors.png"
    values = network.layers[0].w.get().transpose(3, 2, 0, 1)
    values = values if values.shape[1] == 3 else values[:, :1]
    _pictures(values, [""] * len(values), filters, "The filters of the first convolution")
    wrong = np.flatnonzero(guesses != dataset.test.labels)[:MOST_PICTURES]
    titles = [f"{dataset.names[guesses[i]]}, not {dataset.names[dataset.test.labels[i]]}" for i in wrong]
    _pictures(dataset.test.images[wrong], titles, errors, f"{len(wrong)} errors")
    return filters, errors


def parse(arguments: list[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The command line's options, and the parser that reports what is wrong with them."""
    parser = parser_of(__doc__)
    parser.add_argument("--epochs", type=whole(1), default=20, help="how many times to go through the training data")
    parser.add_argument("--batch-size", type=whole(1), default=64, help="images in one step")
    parser.add_argument("--dataset", type=Path, help="a folder with a folder of images for each class, or an .npz file")
    parser.add_argument("--size", type=whole(4), help="rows and columns that images are resized to")
    parser.add_argument("--shift", type=whole(0), default=0, help="pixels that images are moved by, at random")
    parser.add_argument("--output", type=Path, default=Path("output"), help="the folder for pictures and checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in that folder")
    return parser, parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Trains, says how well, and writes two pictures."""
    parser, options = parse(arguments)
    try:
        # Kernels from the first step on, as in the steps before a run was stopped: each has last bits of its own.
        jit: dict[str, Any] = {"jit": "always"} if options.backend == "cpu" else {}
        be = gen_backend(options.backend, rng_seed=options.seed, **jit)
        options.output.mkdir(parents=True, exist_ok=True)
        dataset = load(options.dataset, options.size)
    except (BackendError, OptreeError, OSError, ValueError) as error:
        parser.error(str(error))
    count = len(dataset.training.images)
    if options.batch_size > count:
        parser.error(f"argument --batch-size: {options.batch_size} is more than the {count} images to train on")

    options_of_batches: dict[str, Any] = {"seed": options.seed, "drop_last": True, "to": be}
    if options.shift:
        options_of_batches["transform"] = partial(shifted, most=options.shift)
    batches = train.Batches(*dataset.training, size=options.batch_size, **options_of_batches)
    shape, steps = dataset.training.images.shape[1:], options.epochs * len(batches)
    network = Network(be, shape, len(dataset.names), options.batch_size, steps)
    # The matrices are small: on a busy machine, BLAS's threads would wait for each other longer than they work.
    with threadpool_limits(1):
        try:
            fit(network, batches, options.epochs, options.output, options.resume)
        except train.CheckpointError as error:
            parser.error(f"argument --resume: {error}")
    guesses = network.guesses(dataset.test.images)
    share = float(np.mean(guesses == dataset.test.labels))
    print(f"test accuracy {share:.4f} on {len(guesses)} images that were not trained on")
    filters, errors = draw(network, dataset, guesses, options.output)
    print(f"the first filters: {filters}\nwhat it takes for something else: {errors}")


if __name__ == "__main__":
    main()
