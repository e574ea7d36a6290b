"""The digits' network as it is deployed: bytes, and the time of a call as C, in Python, by ONNX and by NumPy.

Each way runs in turns, in one process; the figure is the least of the rounds. ``OPENBLAS_NUM_THREADS=1`` leaves one
thread to all.
"""

from __future__ import annotations

import ctypes
import pickle
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import optree
from backends import gen_backend
from backends.cpu.compiler import FLAGS, OPTIONAL_FLAGS

SIZES, ROUNDS, CALLS = (1, 64, 1024), 300, {1: 100, 64: 10, 1024: 2}

#: Calls of the library, timed in C.
TIMED = """
#include <time.h>
#include "digits.h"
double timed(int64_t n, const float *x, float *out, void *scratch, int64_t size, int calls)
{
    static digits_tensors tensors;
    struct timespec start, end;
    digits_weights(&tensors);
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < calls; i++)
        digits(&tensors, n, x, out, scratch, size);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - start.tv_sec + 1e-9 * (end.tv_nsec - start.tv_nsec)) / calls;
}
"""

#: From images and a number of calls to the seconds of one.
Timed = Callable[[np.ndarray, int], float]


def network() -> tuple[Any, list[np.ndarray]]:
    """The function, and its weights."""
    be, rng = gen_backend("cpu"), np.random.default_rng(0)
    arrays = [0.1 * rng.standard_normal(shape).astype("float32") for shape in ((64, 64), (64,), (64, 10), (10,))]
    w1, b1, w2, b2 = (be.array(x, name=name) for x, name in zip(arrays, ("w1", "b1", "w2", "b2"), strict=True))
    x = optree.TensorType("float32", (None, 64))("x")
    hidden = be.relu(be.dot(x, w1) + b1)
    return optree.function([x], be.softmax(be.dot(hidden, w2) + b2, axis=1), name="digits"), arrays


def in_python(call: Callable[[np.ndarray], object]) -> Timed:
    """The calls of a function, timed in Python."""

    def timed(images: np.ndarray, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            call(images)
        return (time.perf_counter() - start) / calls

    return timed


def in_c(folder: Path, *flags: str) -> tuple[int, Timed]:
    """The bytes of the stripped library, and its calls, timed in C."""
    sources = [folder / "digits.c", folder / "digits_products_float32.c"]
    portable = [choice[0] for choice in OPTIONAL_FLAGS if "native" not in choice[0]]
    command = ["gcc", "-std=gnu99", *FLAGS, *portable, *flags]
    subprocess.run([*command, *sources, "-s", "-o", folder / "library.so", "-lm"], check=True)
    (folder / "timed.c").write_text(TIMED)
    subprocess.run([*command, *sources, folder / "timed.c", "-o", folder / f"timed{len(flags)}.so", "-lm"], check=True)
    library = ctypes.CDLL(str(folder / f"timed{len(flags)}.so"))
    library.timed.restype, library.digits_scratch.restype = ctypes.c_double, ctypes.c_int64

    def timed(images: np.ndarray, calls: int) -> float:
        n = ctypes.c_int64(len(images))
        size = library.digits_scratch(n)
        out, scratch = np.empty((len(images), 10), "float32"), np.empty(size, np.uint8)
        pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (images, out, scratch)]
        found: float = library.timed(n, *pointers, ctypes.c_int64(size), calls)
        return found

    return (folder / "library.so").stat().st_size, timed


def by_numpy(w1: np.ndarray, b1: np.ndarray, w2: np.ndarray, b2: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The same function, written in NumPy."""

    def call(x: np.ndarray) -> np.ndarray:
        z = np.maximum(x @ w1 + b1, 0) @ w2 + b2
        e = np.exp(z - z.max(axis=1, keepdims=True))
        found: np.ndarray = e / e.sum(axis=1, keepdims=True)
        return found

    return call


def main() -> None:
    """Print the table."""
    f, arrays = network()
    folder = Path(tempfile.mkdtemp())
    made = optree.export(f, folder / "digits")
    ways = {"C library, -march=native": in_c(made, "-march=native"), "C library, any processor": in_c(made)}
    ways["function in Python"] = len(pickle.dumps(f)), in_python(f)
    if find_spec("onnxruntime") is not None:
        onnxruntime = import_module("onnxruntime")
        optree.onnx.save(f, folder / "digits.onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(folder / "digits.onnx", options)
        size = (folder / "digits.onnx").stat().st_size
        ways["ONNX, by onnxruntime"] = size, in_python(lambda x: session.run(None, {"x": x}))
    ways["NumPy by hand"] = sum(x.nbytes for x in arrays), in_python(by_numpy(*arrays))
    print("| | bytes |" + "".join(f" {n} images |" for n in SIZES) + "\n|---|" + "---|" * (1 + len(SIZES)))
    times: dict[tuple[str, int], list[float]] = {(name, n): [] for name in ways for n in SIZES}
    batches = {n: np.random.default_rng(0).standard_normal((n, 64)).astype("float32") for n in SIZES}
    for _ in range(ROUNDS):
        for (name, n), found in times.items():
            found.append(ways[name][1](batches[n], CALLS[n]))
    for name, (size, _) in ways.items():
        least = (1e6 * min(times[name, n]) for n in SIZES)
        print(f"| {name} | {size:,} |" + "".join(f" {x:,.1f} µs |" for x in least))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
