"""Trains a convolutional network on handwritten digits, or on images of your own.

Two blocks of convolutions with batch norm, each followed by a pool, then
dropout and a layer of scores. All of it is expressions: batch norm is a mean
and a variance, its running statistics are updates of the step, and dropout is a
random mask.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from command_line import parser_of, whole
from matplotlib.figure import Figure
from matplotlib.image import imread
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits
from tqdm import tqdm

import optree
from backends import gen_backend
from optree.errors import BackendError

WIDTH, DROPOUT = 32, 0.5
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 5e-4
RUNNING, EPSILON = 0.9, 1e-5
TEST_SHARE, MOST_PICTURES = 0.2, 24
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


class Data(NamedTuple):
    """Images as (count, channels, rows, columns), of numbers from 0 to 1, and the numbers of their classes."""

    images: np.ndarray
    labels: np.ndarray


class Dataset(NamedTuple):
    """Data to train on and to test with, and the names of the classes."""

    training: Data
    test: Data
    names: list[str]


class Network:
    """Convolutions, pools and a score for each class.

    Attributes
    ----------
    weights : list of Tensor
    running : dict
        The running mean and variance of each batch norm, by the name of its convolution.
    step : optree.Function
        Of a batch of images, their labels and a rate: moves the weights, and returns the loss and the accuracy before.
    scores : optree.Function
        Of any number of images.
    """

    def __init__(self, be: Any, shape: tuple[int, int, int], classes: int, batch: int) -> None:
        self.be, self.shape, self.batch = be, shape, batch
        channels, rows, columns = shape
        self.filters = [
            self._filters(f"conv{i}", outputs, inputs)
            for i, (inputs, outputs) in enumerate(
                ((channels, WIDTH), (WIDTH, WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH, 2 * WIDTH)), 1
            )
        ]
        features = 2 * WIDTH * -(-rows // 4) * -(-columns // 4)
        self.w = be.array(be.rng.normal(0, np.sqrt(1 / features), (features, classes)), name="w")
        self.b = be.zeros(classes, name="b")
        self.weights = [*(x for filters in self.filters for x in filters.values()), self.w, self.b]
        self.running = {
            filters["w"].name: (be.zeros((1, filters["w"].shape[0], 1, 1)), be.ones((1, filters["w"].shape[0], 1, 1)))
            for filters in self.filters
        }
        self.step, self.scores = self._step(classes), self._scores()

    def _filters(self, name: str, outputs: int, inputs: int) -> dict[str, Any]:
        """A convolution's weights, and the scale and shift of its batch norm."""
        be = self.be
        values = be.rng.normal(0, np.sqrt(2 / (9 * inputs)), (outputs, inputs, 3, 3))
        return {
            "w": be.array(values, name=name),
            "scale": be.ones((1, outputs, 1, 1), name=f"{name}_scale"),
            "shift": be.zeros((1, outputs, 1, 1), name=f"{name}_shift"),
        }

    def forward(self, x: Any, updates: dict[Any, Any] | None = None) -> Any:
        """The scores of images, as a tree.

        Parameters
        ----------
        updates : dict, optional
            In training: gets the new running statistics. Without it, these are what norms take.
        """
        be = self.be
        for i, filters in enumerate(self.filters):
            y = be.conv(x, filters["w"], padding="same")
            mean, variance = self.running[filters["w"].name]
            if updates is not None:
                now = be.mean(y, axis=(0, 2, 3)), be.var(y, axis=(0, 2, 3))
                for old, new in zip((mean, variance), now, strict=True):
                    updates[old] = RUNNING * old + (1 - RUNNING) * new
                mean, variance = now
            x = be.relu((y - mean) / be.sqrt(variance + EPSILON) * filters["scale"] + filters["shift"])
            if i % 2:
                x = be.max_pool(x, 2, ceil=True)
        x = be.reshape(x, (-1, self.w.shape[0]))
        if updates is not None:
            x = x * (be.rand((self.batch, self.w.shape[0])) >= DROPOUT) / (1 - DROPOUT)
        return be.dot(x, self.w) + self.b

    def _step(self, classes: int) -> Any:
        be, updates = self.be, dict[Any, Any]()
        images = optree.TensorType(be.datatype, (self.batch, *self.shape))("images")
        labels = optree.TensorType("int64", (self.batch,))("labels")
        rate = optree.TensorType(be.datatype, ())("rate")
        scores = self.forward(images, updates)
        right = be.sum(scores * be.onehot(labels, classes), axis=1)
        loss = be.mean(be.logsumexp(scores, axis=1) - right)
        accuracy = be.mean(be.equal(be.argmax(scores, axis=1, keepdims=False), labels))
        for weight, gradient in zip(self.weights, optree.grad(loss, self.weights), strict=True):
            velocity = be.zeros_like(weight, name=f"v_{weight.name}")
            decay = WEIGHT_DECAY * weight if weight.name in (*self.running, "w") else 0.0
            updates[velocity] = MOMENTUM * velocity - rate * (gradient + decay)
            updates[weight] = weight + updates[velocity]
        return optree.function([images, labels, rate], [loss, accuracy], updates=updates)

    def _scores(self) -> Any:
        images = optree.TensorType(self.be.datatype, (None, *self.shape))("images")
        return optree.function([images], self.forward(images))

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
    be = gen_backend("cpu")
    names = sorted(folder.name for folder in path.iterdir() if folder.is_dir())
    images, labels = [], []
    for label, name in enumerate(names):
        for file in sorted(each for each in (path / name).iterdir() if each.suffix.lower() in SUFFIXES):
            pixels = np.asarray(imread(file), "float32")
            pixels = pixels / 255 if pixels.max(initial=0) > 1 else pixels
            pixels = np.repeat(pixels[:, :, None], 3, axis=2) if pixels.ndim == 2 else pixels[:, :, :3]
            resized = be.resize(be.array(pixels[None]), (size, size), layout="NHWC").asnumpyarray()
            images.append(resized[0].transpose(2, 0, 1))
            labels.append(label)
    if len(set(labels)) < 2:
        raise ValueError(f"{path}: a folder of images for each of two classes or more is wanted")
    return np.stack(images), np.array(labels), names


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


def shifted(images: np.ndarray, most: int, rng: Any) -> np.ndarray:
    """Images, each moved by a few pixels at random: augmentation."""
    rows, columns = images.shape[2:]
    padded = np.pad(images, ((0, 0), (0, 0), (most, most), (most, most)))
    moves = rng.randint(0, 2 * most + 1, (len(images), 2))
    return np.stack([x[:, i : i + rows, j : j + columns] for x, (i, j) in zip(padded, moves, strict=True)])


# Training


def train(network: Network, data: Data, epochs: int, shift: int = 0) -> list[float]:
    """Trains the network, with a progress bar on a terminal; returns the loss of each step."""
    rng, batch = network.be.rng, network.batch
    per_epoch = len(data.images) // batch
    total, losses = epochs * per_epoch, []
    with tqdm(total=total, unit="step", disable=None) as bar:
        for epoch in range(1, epochs + 1):
            order, made = rng.permutation(len(data.images)), []
            for i in range(per_epoch):
                chosen = order[i * batch : (i + 1) * batch]
                done = (epoch - 1) * per_epoch + i
                rate = LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * done / total))
                images = shifted(data.images[chosen], shift, rng) if shift else data.images[chosen]
                made.append(network.step(images, data.labels[chosen], float(rate)))
                bar.update()
            losses += [loss.item() for loss, _ in made]
            accuracy = np.mean([each.item() for _, each in made])
            bar.set_postfix(epoch=epoch, loss=f"{losses[-1]:.3f}", accuracy=f"{accuracy:.3f}")
            if bar.disable:  # no terminal, but a log: a line for each epoch
                print(f"epoch={epoch}, loss={losses[-1]:.3f}, accuracy={accuracy:.3f}", file=sys.stderr)
    return losses


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
    values = network.filters[0]["w"].get()
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
    parser.add_argument("--output", type=Path, default=Path("output"), help="the folder for the pictures")
    return parser, parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Trains, says how well, and writes two pictures."""
    parser, options = parse(arguments)
    try:
        be = gen_backend(options.backend, rng_seed=options.seed)
        options.output.mkdir(parents=True, exist_ok=True)
        dataset = load(options.dataset, options.size)
    except (BackendError, OSError, ValueError) as error:
        parser.error(str(error))
    count = len(dataset.training.images)
    if options.batch_size > count:
        parser.error(f"argument --batch-size: {options.batch_size} is more than the {count} images to train on")

    network = Network(be, dataset.training.images.shape[1:], len(dataset.names), options.batch_size)
    with threadpool_limits(1):
        train(network, dataset.training, options.epochs, options.shift)
    guesses = network.guesses(dataset.test.images)
    share = float(np.mean(guesses == dataset.test.labels))
    print(f"test accuracy {share:.4f} on {len(guesses)} images that were not trained on")
    filters, errors = draw(network, dataset, guesses, options.output)
    print(f"the first filters: {filters}\nwhat it takes for something else: {errors}")


if __name__ == "__main__":
    main()
