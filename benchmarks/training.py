"""Steps of training beside torch and JAX, by AdamW: networks, the first step, a checkpoint, and two processes.

Libraries that are not installed are left out. The steps take turns in one process; each first step has a process of its
own, with empty kernel caches. A checkpoint is compared with a plain write of as many bytes to the same disk. Two
processes take half of the batch each.
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
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from timing import rounds_of
from training_models import MODELS, of_jax, of_ours, of_torch

import optree
from backends import gen_backend
from optree import TensorType, distributed, train

RATE, DECAY = 1e-3, 1e-2

#: The network of the first step and of two processes, and the factor by which their batch is larger.
FIRST, TIMES = "784 x 1024 x 10, batch 256", 4

Step = Callable[[], float]


def ours(model: str, packs: bool = True, over: distributed.Group | None = None) -> Step:
    """A step as one function; with `packs`, the weights share one vector."""
    be = gen_backend("cpu", jit="always") if over is None else over.backend
    batch, first = MODELS[model].operands()
    if over is not None:  # a part of a larger batch
        size = len(batch[0]) * TIMES // over.size
        batch = [np.concatenate([x] * TIMES)[over.rank * size :][:size] for x in batch]
    weights: Any = [be.array(w, name=f"w{i}") for i, w in enumerate(first)]
    if packs:
        weights = train.packed(weights, 1 << 40)
    inputs = [TensorType(str(x.dtype), (None if model == FIRST else len(x), *x.shape[1:]))() for x in batch]
    loss = MODELS[model].loss(of_ours(be), inputs, weights)
    updates = train.AdamW(weights, RATE, weight_decay=DECAY).updates(loss, over=over)
    step = optree.function(inputs, loss if over is None else over.mean(loss), updates=updates)
    given = [be.array(x) for x in batch]
    return lambda: step(*given).item()


def in_torch(model: str, compiles: bool) -> Step:
    """A step of torch, eager with its fused optimizer, or compiled whole."""
    torch: Any = __import__("torch")
    batch, first = MODELS[model].operands()
    functions, formula = of_torch(torch), MODELS[model].loss
    weights = [torch.tensor(w, requires_grad=True) for w in first]
    given = [torch.tensor(x) for x in batch]
    options = {"capturable": False, "foreach": True} if compiles else {"fused": True}
    opt = torch.optim.AdamW(weights, RATE, weight_decay=DECAY, **options)

    def step() -> Any:
        opt.zero_grad()
        loss = formula(functions, given, weights)
        loss.backward()
        opt.step()
        return loss

    run = torch.compile(step) if compiles else step
    return lambda: float(run().item())


def in_jax(model: str) -> Step:
    """A step of JAX, jitted, with donated buffers; AdamW is written out."""
    jax: Any = __import__("jax")
    np_ = jax.numpy
    batch, first = MODELS[model].operands()
    functions, formula = of_jax(jax), MODELS[model].loss

    def step(state: Any, *given: Any) -> Any:
        weights, means, squares, count = state
        loss, slopes = jax.value_and_grad(lambda w: formula(functions, given, w))(weights)
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
    given = [np_.asarray(x) for x in batch]

    def once() -> float:
        nonlocal state
        state, loss = run(state, *given)
        return float(loss)

    return once


#: The ways to take a step, with the package that each needs.
WAYS: dict[str, tuple[str, Callable[[str], Step]]] = {
    "op-tree": ("optree", ours),
    "op-tree, not packed": ("optree", lambda model: ours(model, False)),
    "torch": ("torch", lambda model: in_torch(model, False)),
    "torch.compile": ("torch", lambda model: in_torch(model, True)),
    "JAX": ("jax", in_jax),
}


def present() -> dict[str, Callable[[str], Step]]:
    """The ways whose packages are installed."""
    return {name: make for name, (package, make) in WAYS.items() if find_spec(package) is not None}


def compare_steps(rounds: int, calls: int | None, only: str) -> None:
    """Compare the times of a step; the losses of the first steps must be equal."""
    for model in [name for name in MODELS if only in name]:
        steps = {name: make(model) for name, make in present().items()}
        losses = {name: [step() for _ in range(5)] for name, step in steps.items()}
        for name, found in losses.items():
            np.testing.assert_allclose(found, losses["op-tree"], rtol=2e-3, err_msg=name)
        times = rounds_of(list(steps.values()), rounds, calls or MODELS[model].calls, pause=0.01)
        seconds = [median(each) for each in times]
        others = [time for name, time in zip(steps, seconds, strict=True) if not name.startswith("op-tree")]
        best = min(others, default=seconds[0])
        print(f"a step of {model}: ratio to the fastest other, and of the least times")
        least = [min(each) for each in times]
        others = [time for name, time in zip(steps, least, strict=True) if not name.startswith("op-tree")]
        quickest = min(others, default=least[0])
        for name, typical, short in zip(steps, seconds, least, strict=True):
            print(f"  {name:20} {typical * 1e6:10.0f} us {typical / best:6.2f} {short / quickest:6.2f}")


def first_steps() -> None:
    """The time from a process's start to its first step, with empty caches."""
    print(f"from the start of a process to the end of its first step, {FIRST}")
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


def compare_processes(rounds: int) -> None:
    """Compare a step of one process with that of two, which take half of the batch each."""
    launcher = Path(sys.executable).parent / "mpiexec"
    if find_spec("mpi4py") is None or not launcher.exists():
        print("two processes: mpi4py and mpiexec are not installed")
        return
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    found = {1: list[float](), 2: list[float]()}
    for _ in range(rounds):
        for ranks, seconds in found.items():
            command = [str(launcher), "-n", str(ranks), sys.executable, __file__, "--rank"]
            made = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
            seconds.append(float(made.stdout))
    one, two = (median(seconds) for seconds in found.values())
    print(f"two processes, a batch of {256 * TIMES}: {one / two:.2f} times as fast as one ({two * 1e3:.1f} ms a step)")


def step_of_rank() -> None:
    """Print the seconds of a step of this process and the others."""
    group = distributed.init(gen_backend("cpu", jit="always"))
    if hasattr(os, "sched_setaffinity"):  # a core for each
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, [cores[group.rank % len(cores)]])
    step = ours(FIRST, over=group)
    for _ in range(5):
        step()
    (times,) = rounds_of([step], 7, 5)
    if group.rank == 0:
        print(median(times))


def main(arguments: list[str] | None = None) -> None:
    """Measure all, or take one first step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each comparison (15)")
    parser.add_argument("--calls", type=int, help="calls of each step in a round (each network has its own)")
    parser.add_argument(
        "--only",
        default="",
        help="networks whose names have this, 'first', 'checkpoint' or 'processes'",
    )
    parser.add_argument("--megabytes", type=int, default=1024, help="the size of the checkpoint (1024)")
    parser.add_argument("--first", help=argparse.SUPPRESS)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.first:
        WAYS[options.first][1](FIRST)()
    elif options.rank:
        step_of_rank()
    else:
        compare_steps(options.rounds, options.calls, options.only)
        parts = {
            "first": first_steps,
            "checkpoint": lambda: compare_checkpoint(options.megabytes, min(options.rounds, 5)),
            "processes": lambda: compare_processes(min(options.rounds, 3)),
        }
        for name, part in parts.items():
            if options.only in name:
                part()


if __name__ == "__main__":
    main()
