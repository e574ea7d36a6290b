"""A run that is killed and started again: it writes the loss of each step to a file, in hexadecimal.

Dropout draws from the backend's random state, labels are shuffled, the optimizer has means, and batches are prepared
ahead: all of that goes on where it was.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import optree
from backends import gen_backend
from optree import TensorType, train


def main(folder: Path, steps: int, every: int) -> None:
    """Take steps up to a number, from the latest checkpoint if there is one."""
    be = gen_backend("cpu", rng_seed=0, jit=False)
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(70, 8)), rng.integers(4, size=70)
    given = [train.initializers.kaiming_normal(be, (8, 16), name="w1"), be.zeros(16, name="b1")]
    weights = train.packed([*given, train.initializers.glorot_normal(be, (16, 4), name="w2")])
    w1, b1, w2 = weights
    x, y = TensorType("float32", (None, 8))("x"), TensorType("int64", (None,))("y")
    hidden = be.relu(be.dot(x, w1) + b1)
    kept = hidden * (be.uniform(np.zeros_like(hidden), 1.0) < 0.5) * 2
    loss = train.losses.cross_entropy(be.dot(kept, w2), y)
    opt = train.AdamW(weights, train.schedules.cosine(0.01, steps), average=0.9, clip_global_norm=1.0)
    step = optree.function([x, y], loss, updates=opt.updates(loss))
    batches = train.Batches(images, labels, size=16, seed=5, to=be)
    losses: list[float] = []
    state: dict[str, Any] = {"weights": weights, "opt": opt, "random": be, "batches": batches, "losses": losses}
    if train.saved(folder):
        losses += train.load(folder, state)["losses"]
    while len(losses) < steps:
        for batch in batches:
            losses.append(step(*batch).item())
            if len(losses) % every == 0:
                train.save(folder, {**state, "losses": losses}, step=len(losses), keep=2)
            if len(losses) == steps:
                break
    (folder / "losses.txt").write_text("\n".join(x.hex() for x in losses) + f"\n{be.rng.rand()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
