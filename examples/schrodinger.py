"""Sends a quantum wave packet through a double slit, by the split-step Fourier method.

Half a step in the potential is a phase at each point, a step of the motion is one at each frequency, and between them
are Fourier transforms. Each factor has an absolute value of 1, so that the norm is conserved to rounding errors; the
energy is conserved up to the square of the time step. Both are checked at the end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from command_line import parser_of, whole
from matplotlib.figure import Figure

import optree
from backends import gen_backend
from optree.errors import BackendError, OptreeError

#: Of the box, in units where Planck's constant over 2 pi and the mass are 1.
SIDE, MOMENTUM, WIDTH, BARRIER, TIME = 20.0, 6.0, 1.2, 60.0, 1.6
MOST_NORM, MOST_ENERGY = 1e-9, 1e-2


class Wave:
    """A wave function on a periodic grid.

    Attributes
    ----------
    psi : Tensor
    potential : numpy.ndarray
    step : optree.Function
        Moves the wave function on by a step of time.
    totals : optree.Function
        Returns the norm and the energy.
    """

    def __init__(self, be: Any, size: int, steps: int) -> None:
        dt, cell = TIME / steps, SIDE / size
        x, y = np.meshgrid(*[(np.arange(size) - size // 2) * cell] * 2, indexing="ij")
        packet = np.exp(-((x + 4) ** 2 + y**2) / (2 * WIDTH**2) + 1j * MOMENTUM * x)
        slits = sum(np.exp(-(((y - at) / 0.6) ** 4)) for at in (-1.5, 1.5))
        self.potential = BARRIER * np.exp(-((x / 0.4) ** 2)) * (1 - slits)
        self.psi = be.array(packet / np.sqrt(np.sum(np.abs(packet) ** 2) * cell**2), name="psi")
        k = 2 * np.pi * np.fft.fftfreq(size, cell)
        kinetic = be.array((k[:, None] ** 2 + k**2) / 2)
        potential = be.array(self.potential)
        half, whole_step = be.array(np.exp(-0.5j * dt * self.potential)), be.exp(-1j * dt * kinetic)
        moved = half * np.fft.ifft2(whole_step * np.fft.fft2(half * self.psi))
        self.step = optree.function([], updates=[(self.psi, moved)])
        density, spectrum = np.abs(self.psi) ** 2, np.abs(np.fft.fft2(self.psi, norm="ortho")) ** 2
        energy = (np.sum(density * potential) + np.sum(spectrum * kinetic)) * cell**2
        self.totals = optree.function([], [np.sum(density) * cell**2, energy])


def draw(pictures: list[np.ndarray], wave: Wave, path: Path) -> None:
    """Writes the strip of pictures: the probability at equal distances of time, and the barrier."""
    figure = Figure(figsize=(3 * len(pictures), 3.3), layout="constrained")
    for number, (axes, picture) in enumerate(zip(figure.subplots(1, len(pictures)), pictures, strict=True)):
        axes.imshow(np.sqrt(picture.T), cmap="magma", origin="lower")
        axes.contour(wave.potential.T, [BARRIER / 2], colors="white", linewidths=0.7)
        axes.set_title(f"t = {TIME * number / (len(pictures) - 1):.2f}")
        axes.axis("off")
    figure.savefig(path, dpi=100)


def main(arguments: list[str] | None = None) -> None:
    """Moves the wave, checks what is conserved, and writes the pictures."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=whole(20), default=800, help="of time")
    parser.add_argument("--size", type=whole(32), default=256, help="rows and columns of the grid")
    parser.add_argument("--pictures", type=whole(2), default=5, help="in the strip")
    parser.add_argument("--output", type=Path, default=Path("schrodinger.png"), help="where the strip goes")
    options = parser.parse_args(arguments)
    try:
        be = gen_backend(options.backend, datatype=np.float64)
        wave = Wave(be, options.size, options.steps)
    except (BackendError, OptreeError) as error:
        parser.error(str(error))
    before = np.array([float(x) for x in wave.totals()])
    pictures, at = [np.abs(wave.psi.get()) ** 2], np.linspace(0, options.steps, options.pictures).astype(int)
    for number in range(1, options.steps + 1):
        wave.step()
        if number in at:
            pictures.append(np.abs(wave.psi.get()) ** 2)
    norm, energy = np.abs(np.array([float(x) for x in wave.totals()]) / before - 1)
    draw(pictures, wave, options.output)
    print(f"the norm changed by {norm:.1e}, the energy {before[1]:.3f} by {energy:.1e} of it")
    print(f"pictures: {options.output}")
    if norm > MOST_NORM or energy > MOST_ENERGY:
        raise SystemExit("the norm or the energy is not conserved: take more steps")


if __name__ == "__main__":
    main()
