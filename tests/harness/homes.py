"""The kinds of backend that tests run on.

Three doubles stand in for a GPU, by one description of an H100 (`harness.device`):

- The rig (`harness.rig`): real CuPy on simulated devices, with kernels compiled by g++. Streams, graphs, memory.
- The stand-in (`harness.fake_cupy`): CuPy's functions by NumPy, with counts that CuPy does not give. It runs the whole
  registry without kernels of ours in a minute; the rig takes half an hour, for it compiles each of CuPy's own kernels.
- The interpreter of PTX (`harness.ptx`): instructions and bytes of compiled kernels, counted.
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
    """A backend: ``'cpu'``, ``'gpu'`` on a real device, or ``'stand-in'``, the GPU's code without a GPU.

    Where there is no real device, the test is skipped.
    """
    if kind == "stand-in":
        return stand_in(fake_cupy(memory=1 << 27), **options)
    try:
        return gen_backend(kind, **options)
    except BackendError as error:
        pytest.skip(str(error))


def stand_in(cupy: Any, jit: bool = False, cudnn: Any = False, **options: Any) -> Any:
    """A GPU backend on a stand-in for CuPy, and for cuDNN's front end if one is given.

    Its kernels run only where the stand-in for CuPy has an emulator.
    """
    with patch.dict(sys.modules, cupy=cupy, cupyx=cupy.linalg.cupyx, cudnn=cudnn or None):
        be = gen_backend("gpu", jit=jit, cudnn=bool(cudnn), **options)
    be.product.library = CuBLASLt(FakeCuBLASLt(cupy.machine))
    return be
