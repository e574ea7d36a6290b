"""Computes a hologram: the phases of a light wave that a lens turns into a photograph.

A modulator changes the phase of a laser beam at each pixel, and not its brightness. In the focal plane of a lens the
field is the Fourier transform of the beam. The phases descend along the gradient of the difference between its
amplitude and the photograph's, through the transform and exp(1j * phase).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from command_line import parser_of, whole
from matplotlib.figure import Figure
from sklearn.datasets import load_sample_image

import optree
from backends import gen_backend
from optree import train
from optree.errors import BackendError, OptreeError

LEARNING_RATE = 0.2


def photograph(size: int) -> np.ndarray:
    """The middle of a photograph that scikit-learn ships, in grey, with a mean of 1."""
    grey = load_sample_image("china.jpg").mean(axis=2)
    side = min(grey.shape) // size * size
    top, left = ((n - side) // 2 for n in grey.shape)
    cut = grey[top : top + side, left : left + side]
    blocks = cut.reshape(size, side // size, size, side // size).mean(axis=(1, 3))
    return np.asarray(blocks / blocks.mean())


class Hologram:
    """The phases of a beam, and the image behind the lens.

    Attributes
    ----------
    phase : Tensor
    image : optree.Function
        Returns the brightness in the focal plane.
    step : optree.Function
        Moves the phases against the gradient, and returns the error before.
    """

    def __init__(self, be: Any, wanted: np.ndarray, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.phase = be.array(rng.uniform(0, 2 * np.pi, wanted.shape), name="phase")
        field = np.fft.fft2(np.exp(1j * self.phase), norm="ortho")
        self.image = optree.function([], np.abs(field) ** 2)
        amplitude = be.array(np.fft.ifftshift(np.sqrt(wanted)))
        error = be.mean((np.abs(field) - amplitude) ** 2, keepdims=False)
        self.step = optree.function([], error, updates=train.Adam([self.phase], LEARNING_RATE).updates(error))

    def picture(self) -> np.ndarray:
        """The image with its centre in the middle."""
        return np.fft.fftshift(self.image().get())


def draw(hologram: Hologram, wanted: np.ndarray, path: Path) -> None:
    """Writes the photograph, the phases and the image side by side."""
    figure = Figure(figsize=(12, 4.4), layout="constrained")
    phases = np.mod(hologram.phase.get(), 2 * np.pi)
    pictures = {"the photograph": wanted, "the hologram: phases": phases, "behind the lens": hologram.picture()}
    for axes, (title, picture) in zip(figure.subplots(1, 3), pictures.items(), strict=True):
        axes.imshow(picture, cmap="twilight" if picture is phases else "gray", vmax=np.quantile(picture, 0.995))
        axes.set_title(title)
        axes.axis("off")
    figure.savefig(path, dpi=100)


def main(arguments: list[str] | None = None) -> None:
    """Descends, says how like the photograph the image is, and writes three pictures."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=whole(1), default=200, help="how often the phases are moved")
    parser.add_argument("--size", type=whole(8, 427), default=256, help="rows and columns of the modulator")
    parser.add_argument("--output", type=Path, default=Path("hologram.png"), help="where the pictures go")
    options = parser.parse_args(arguments)
    try:
        be = gen_backend(options.backend, rng_seed=options.seed)
        wanted = photograph(options.size)
        hologram = Hologram(be, wanted, options.seed)
    except (BackendError, OptreeError) as error:
        parser.error(str(error))
    for step in range(options.steps):
        difference = float(hologram.step())
        if step % 20 == 0 or step == options.steps - 1:
            print(f"step {step + 1:4}: error {difference:.5f}")
    likeness = np.corrcoef(hologram.picture().ravel(), wanted.ravel())[0, 1]
    draw(hologram, wanted, options.output)
    print(f"correlation with the photograph {likeness:.4f}\npictures: {options.output}")


if __name__ == "__main__":
    main()
