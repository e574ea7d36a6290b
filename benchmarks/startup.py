"""Time to a first result, in processes of their own; and the compilations of other batch sizes."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from backends import gen_backend

#: Programs of a first result, in NumPy and in op-tree; each prints the seconds since before its import.
BY_NUMPY = """
import time
start = time.perf_counter()
import numpy as np
a, b, c, d = (np.full(4096, value, np.float32) for value in (1, 2, 3, 4))
z = np.empty(4096, np.float32)
z[:] = a * b + c * np.sin(d)
print(time.perf_counter() - start)
"""

BY_OPTREE = """
import time
start = time.perf_counter()
from backends import gen_backend
be = gen_backend("cpu", jit=%s)
a, b, c, d = (be.full(4096, value) for value in (1, 2, 3, 4))
z = be.empty(4096)
z[:] = a * b + c * be.sin(d)
print(time.perf_counter() - start, be.stats()["kernels"]["seconds"], be.stats()["kernels"]["disk_hits"])
"""

#: A program of the first kernel on a GPU whose driver, context and memory are initialised.
ON_GPU = """
import time
from backends import gen_backend
be = gen_backend("gpu")
a, b, c, d = (be.full(4096, value) for value in (1, 2, 3, 4))
z = be.empty(4096)
be.synchronize()
start = time.perf_counter()
z[:] = a * b + c * be.sin(d)
be.synchronize()
print(time.perf_counter() - start, be.stats()["kernels"]["disk_hits"])
"""

BATCHES = 100


def _process(program: str, modules: str, kernels: str) -> list[float]:
    """The output of a program in a new process, with given folders for bytecode and kernels."""
    paths = [str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment |= {"OPTREE_CACHE_DIR": kernels, "PYTHONPYCACHEPREFIX": modules, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def first_results(rounds: int) -> dict[str, float]:
    """Seconds from import to the first result of `a*b + c*sin(d)`, medians of processes that take turns."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as modules, tempfile.TemporaryDirectory() as warm:
        _process(BY_OPTREE % True, modules, warm)
        for _ in range(rounds):
            times.setdefault("NumPy", []).append(_process(BY_NUMPY, modules, warm)[0])
            times.setdefault("op-tree, jit='auto'", []).append(_process(BY_OPTREE % "'auto'", modules, warm)[0])
            seconds, _, hits = _process(BY_OPTREE % True, modules, warm)
            assert hits, "the kernel was not found on disk"
            times.setdefault("op-tree, jit=True, kernel on disk", []).append(seconds)
            with tempfile.TemporaryDirectory() as cold:
                seconds, compiling, _ = _process(BY_OPTREE % True, modules, cold)
            times.setdefault("op-tree, jit=True, kernel compiled", []).append(seconds)
            times.setdefault("the compilation alone", []).append(compiling)
    return {name: statistics.median(each) for name, each in times.items()}


def first_kernels(rounds: int) -> dict[str, float]:
    """Seconds of the first kernel in a process on a GPU, medians of processes that take turns."""
    times: dict[str, list[float]] = {"compiled by NVRTC": [], "kept on disk": []}
    with tempfile.TemporaryDirectory() as modules:
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as kernels:
                for (name, each), hits in zip(times.items(), (0, 1), strict=True):
                    seconds, found = _process(ON_GPU, modules, kernels)
                    assert found == hits, f"{name}: {found} kernels were found on disk"
                    each.append(seconds)
    return {name: statistics.median(each) for name, each in times.items()}


def compilations() -> dict[str, int]:
    """The number of plans and kernels that a layer of a network takes for a number of batch sizes.

    They begin at 2: an axis of one element is broadcast, and has a plan of its own.
    """
    be = gen_backend("cpu", jit=True)
    w, b = be.array(np.full((20, 10), 0.1)), be.array(np.zeros((1, 10)))

    def count() -> dict[str, int]:
        stats: dict[str, Any] = be.stats()
        kernels = stats["kernels"]
        return {"plans": stats["compiles"], "kernels": kernels["misses"] + kernels["disk_hits"]}

    before = count()
    for batch in range(2, BATCHES + 2):
        x, out = be.array(np.ones((batch, 20))), be.empty((batch, 10))
        out[:] = be.tanh(be.dot(x, w) + b)
        np.testing.assert_allclose(out.get(), np.tanh(2.0), rtol=1e-6)
    return {what: number - before[what] for what, number in count().items()}
