"""Steps of training beside torch and JAX: a network of two layers with AdamW, the first step, and a checkpoint.

What is not installed is left out. The steps take turns in one process; each first step has a process of its own, with
empty caches of kernels. A checkpoint is measured against a plain write of as many bytes to the same disk.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from timing import rounds_of

import optree
from backends import gen_backend
from optree import TensorType, train

#: By name the units of the layers, and the batch.
SIZES = {"small": ((64, 128, 10), 128), "large": ((784, 1024, 10), 256)}

RATE, DECAY = 1e-3, 1e-2

Step = Callable[[], float]


def start(size: str) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """A batch, its classes, and the first weights."""
    units, batch = SIZES[size]
    rng = np.random.default_rng(0)
    weights = []
    for inputs, outputs in pairwise(units):
        weights += [rng.normal(0, (2 / inputs) ** 0.5, (inputs, outputs)), np.zeros(outputs)]
    images = rng.normal(size=(batch, units[0])).astype("f")
    return images, rng.integers(units[-1], size=batch), [w.astype("f") for w in weights]


def ours(size: str, packs: bool = True) -> Step:
    """A step of one function; the weights are one vector, or each has its own memory."""
    be = gen_backend("cpu", jit="always")
    images, classes, first = start(size)
    weights: Any = [be.array(w, name=f"w{i}") for i, w in enumerate(first)]
    if packs:
        weights = train.packed(weights, 1 << 40)
    x, y = TensorType("float32", (None, images.shape[1]))("x"), TensorType("int64", (None,))("y")
    hidden = be.relu(be.dot(x, weights[0]) + weights[1])
    loss = train.losses.cross_entropy(be.dot(hidden, weights[2]) + weights[3], y)
    step = optree.function([x, y], loss, updates=train.AdamW(weights, RATE, weight_decay=DECAY).updates(loss))
    given = be.array(images), be.array(classes)
    return lambda: step(*given).item()


def in_torch(size: str, compiles: bool) -> Step:
    """A step of torch, eager with its fused optimizer, or compiled whole."""
    torch: Any = __import__("torch")
    images, classes, first = start(size)
    weights = [torch.tensor(w, requires_grad=True) for w in first]
    x, y = torch.tensor(images), torch.tensor(classes)
    options = {"capturable": False, "foreach": True} if compiles else {"fused": True}
    opt = torch.optim.AdamW(weights, RATE, weight_decay=DECAY, **options)

    def step() -> Any:
        opt.zero_grad()
        hidden = torch.relu(x @ weights[0] + weights[1])
        loss = torch.nn.functional.cross_entropy(hidden @ weights[2] + weights[3], y)
        loss.backward()
        opt.step()
        return loss

    run = torch.compile(step) if compiles else step
    return lambda: float(run().item())


def in_jax(size: str) -> Step:
    """A step of JAX, jitted, with donated buffers; AdamW is written out."""
    jax: Any = __import__("jax")
    np_ = jax.numpy
    images, classes, first = start(size)

    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        hidden = jax.nn.relu(x @ weights[0] + weights[1])
        scores = jax.nn.log_softmax(hidden @ weights[2] + weights[3])
        return -np_.take_along_axis(scores, y[:, None], 1).mean()

    def step(state: Any, x: Any, y: Any) -> Any:
        weights, means, squares, count = state
        loss, slopes = jax.value_and_grad(loss_of)(weights, x, y)
        count = count + 1
        means = [0.9 * m + 0.1 * g for m, g in zip(means, slopes, strict=True)]
        squares = [0.999 * v + 0.001 * g * g for v, g in zip(squares, slopes, strict=True)]
        fast, slow = 1 - 0.9**count, 1 - 0.999**count
        weights = [
            w * (1 - RATE * DECAY) - RATE / fast * m / (np_.sqrt(v / slow) + 1e-8)
            for w, m, v in zip(weights, means, squares, strict=True)
        ]
        return (weights, means, squares, count), loss

    run = jax.jit(step, donate_argnums=0)
    weights = [np_.asarray(w) for w in first]
    state = weights, [np_.zeros_like(w) for w in weights], [np_.zeros_like(w) for w in weights], 0.0
    x, y = np_.asarray(images), np_.asarray(classes)

    def once() -> float:
        nonlocal state
        state, loss = run(state, x, y)
        return float(loss)

    return once


#: The ways to take a step, with the package that each needs.
WAYS: dict[str, tuple[str, Callable[[str], Step]]] = {
    "op-tree": ("optree", ours),
    "op-tree, not packed": ("optree", lambda size: ours(size, False)),
    "torch": ("torch", lambda size: in_torch(size, False)),
    "torch.compile": ("torch", lambda size: in_torch(size, True)),
    "JAX": ("jax", in_jax),
}


def present() -> dict[str, Callable[[str], Step]]:
    """The ways of what is installed."""
    return {name: make for name, (package, make) in WAYS.items() if find_spec(package) is not None}


def compare_steps(rounds: int, calls: int) -> None:
    """The time of a step, side by side; all must agree on the losses of the first ones."""
    for size, (units, batch) in SIZES.items():
        steps = {name: make(size) for name, make in present().items()}
        losses = {name: [step() for _ in range(5)] for name, step in steps.items()}
        for name, found in losses.items():
            np.testing.assert_allclose(found, losses["op-tree"], rtol=2e-3, err_msg=name)
        times = [median(each) for each in rounds_of(list(steps.values()), rounds, calls, pause=0.01)]
        others = [time for name, time in zip(steps, times, strict=True) if not name.startswith("op-tree")]
        best = min(others, default=times[0])
        print(f"a step of {' x '.join(map(str, units))}, batch {batch}: ratio to the fastest other")
        for name, seconds in zip(steps, times, strict=True):
            print(f"  {name:20} {seconds * 1e6:10.0f} us {seconds / best:6.2f}")


def first_steps() -> None:
    """The time from a process's start to its first step, with empty caches."""
    print("from the start of a process to the end of its first step (large)")
    for name in present():
        with tempfile.TemporaryDirectory() as folder:
            caches = {"OPTREE_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
            begin = time.perf_counter()
            done = subprocess.run(
                [sys.executable, __file__, "--first", name],
                env={**os.environ, **caches},
                capture_output=True,
                text=True,
            )
            seconds = time.perf_counter() - begin
        print(f"  {name:20} {seconds:10.2f} s" if done.returncode == 0 else f"  {name:20} failed: {done.stderr[-200:]}")


def compare_checkpoint(megabytes: int, rounds: int) -> None:
    """The time of a checkpoint beside that of writing as many bytes and flushing them."""
    be = gen_backend("cpu")
    state = {f"w{i}": be.ones((megabytes << 20) // 4 // 8, name=f"w{i}") for i in range(8)}
    total = sum(x.nbytes for x in state.values())
    plain, saved, loaded = [], [], []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        for _ in range(rounds):
            path = Path(folder) / "plain"
            begin = time.perf_counter()
            with path.open("wb") as file:
                for x in state.values():
                    file.write(x.raw())
                file.flush()
                os.fsync(file.fileno())
            plain.append(time.perf_counter() - begin)
            path.unlink()
            begin = time.perf_counter()
            train.save(Path(folder) / "run.safetensors", state)
            saved.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            train.load(Path(folder) / "run.safetensors", state)
            loaded.append(time.perf_counter() - begin)
    speed, ours_ = total / median(plain), total / median(saved)
    print(
        f"a checkpoint of {total / 1e9:.2f} GB: {ours_ / 1e9:.2f} GB/s, ratio {ours_ / speed:.2f} to a plain write",
        end="",
    )
    print(f" of {speed / 1e9:.2f} GB/s; loaded and checked at {total / median(loaded) / 1e9:.2f} GB/s")


def main(arguments: list[str] | None = None) -> None:
    """Measure all, or take one first step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each comparison (15)")
    parser.add_argument("--calls", type=int, default=10, help="calls of each step in a round (10)")
    parser.add_argument("--megabytes", type=int, default=1024, help="the size of the checkpoint (1024)")
    parser.add_argument("--first", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.first:
        WAYS[options.first][1]("large")()
        return
    compare_steps(options.rounds, options.calls)
    first_steps()
    compare_checkpoint(options.megabytes, min(options.rounds, 5))


if __name__ == "__main__":
    main()
