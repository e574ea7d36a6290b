"""The GPU backend: not there yet. Until it is, this says what a machine lacks for it."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from typing import NoReturn

from optree.errors import BackendError

REQUIREMENT = "gen_backend('gpu') needs an NVIDIA driver, a device and CuPy"


def gpu_backend(*args: object, **kwargs: object) -> NoReturn:
    """Refuse to make a GPU backend, and never make another kind in its place.

    Raises
    ------
    BackendError
        Says what is missing: the driver, a device, CuPy, or the backend itself.
    """
    raise BackendError(f"{REQUIREMENT}: {_missing()}; gen_backend('cpu') runs the same program on the CPU")


def _missing() -> str:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no driver is installed (libcuda.so.1 is not found)"
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        return f"the driver finds no device (CUDA error {status}, {count.value} devices)"
    if find_spec("cupy") is None:
        return "CuPy is not installed (pip install 'neon-optree[gpu]')"
    return "this machine has all three, but this version of op-tree has no GPU backend yet"
