"""The kinds of backend that tests run on.

Two simulators of a GPU share one description of an H100 (`harness.device`):

- The rig (`harness.rig`): real CuPy on simulated devices, with kernels compiled by g++. Streams, graphs, memory.
- The interpreter of PTX (`harness.ptx`): instructions and bytes of compiled kernels, counted.

The stand-in for CuPy (`harness.fake_cupy`) is no device: it has CuPy's functions by NumPy, and runs no kernel of ours.
It runs the whole registry in a minute, and where CuPy has no wheel; the rig compiles each of CuPy's own kernels.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import pytest

from backends import gen_backend
from backends.gpu.cublaslt import CuBLASLt
from harness.fake_cublaslt import FakeCuBLASLt
from harness.fake_cupy import fake_cupy
from optree.errors import BackendError


def home(kind: str, **options: Any) -> Any:
    """A backend: ``'cpu'``, ``'gpu'`` on a device, real or simulated, or ``'stand-in'``, the GPU's code on NumPy.

    Where there is no real device, the test is skipped.
    """
    if kind == "stand-in":
        return stand_in(fake_cupy(memory=1 << 27), **options)
    try:
        return gen_backend(kind, **options)
    except BackendError as error:
        pytest.skip(str(error))


def stand_in(cupy: Any, jit: bool = False, **options: Any) -> Any:
    """A GPU backend on a stand-in for CuPy, which runs operations one by one."""
    with patch.dict(sys.modules, cupy=cupy, cupyx=cupy.linalg.cupyx, cudnn=None):
        be = gen_backend("gpu", jit=jit, cudnn=False, **options)
    be.product.library = CuBLASLt(FakeCuBLASLt(cupy.machine))
    return be
