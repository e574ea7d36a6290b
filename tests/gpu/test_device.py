"""The needs of a GPU backend: what is missing for it, its options, and the launcher of its kernels."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from unittest.mock import patch

import pytest
from harness.fake_cuda import CUDARuntimeError
from harness.fake_cupy import fake_cupy
from harness.fake_pycuda import FakePyCUDA
from harness.homes import stand_in
from harness.messages import message_of

from backends import gen_backend
from backends.gpu import cupy_device as device
from backends.gpu.launchers import LAUNCHERS, ImageError
from optree.errors import BackendError, DeviceMemoryError


@pytest.fixture
def cupy() -> Any:
    return fake_cupy(devices=2)


@pytest.fixture
def gpu(cupy: Any) -> Any:
    return stand_in(cupy)


# What is missing


class Absent:
    """A CuPy of which one thing fails."""

    def __init__(self, **broken: Any) -> None:
        self.cupy = fake_cupy()
        for name, call in broken.items():
            setattr(self.cupy.cuda.runtime, name, call)

    def message(self) -> str:
        return message_of(BackendError, lambda: stand_in(self.cupy))


def _raising(error: Exception) -> Any:
    def call(*args: Any) -> Any:
        raise error

    return call


@pytest.fixture
def with_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_driver_refusals", list)


def test_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    with patch.dict(sys.modules, cupy=None):  # which is how an import is made to fail
        said = message_of(BackendError, lambda: gen_backend("gpu"))
    assert (
        "CuPy is not installed" in said and "pip install 'cupy-cuda13x[ctk]'" in said and "gen_backend('cpu')" in said
    )


def test_a_cupy_that_does_not_load(monkeypatch: pytest.MonkeyPatch, with_driver: None) -> None:
    monkeypatch.setattr(device, "import_module", _raising(ImportError("libcudart.so.11.0: cannot open")))
    monkeypatch.setattr(device, "find_spec", lambda name: object())
    assert "libcudart.so.11.0" in message_of(BackendError, lambda: gen_backend("gpu"))


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.ctypes, "CDLL", _raising(OSError("no such file")))
    absent = Absent(getDeviceCount=_raising(CUDARuntimeError(35, "cudaErrorInsufficientDriver")))
    assert "no driver is installed" in absent.message()


def test_no_device(with_driver: None) -> None:
    assert "finds no device" in Absent(getDeviceCount=lambda: 0).message()
    broken = Absent(getDeviceCount=_raising(CUDARuntimeError(999, "cudaErrorUnknown: unknown error")))
    assert "cudaErrorUnknown" in broken.message()


def test_a_cupy_for_a_newer_cuda_than_the_drivers(with_driver: None) -> None:
    error = CUDARuntimeError(35, "cudaErrorInsufficientDriver")
    said = Absent(getDeviceCount=_raising(error), driverGetVersion=lambda: 11040).message()
    for part in ("built for CUDA 12.9", "11.4", "cupy-cuda11x"):
        assert part in said

    said = Absent(getDeviceCount=_raising(error), driverGetVersion=lambda: 12020).message()
    assert "12.2" in said and "pip install 'cupy-cuda12x[ctk]'" in said


def test_an_nvrtc_for_a_newer_cuda_than_the_drivers() -> None:
    absent = Absent(driverGetVersion=lambda: 12040)
    absent.cupy.cuda.nvrtc.getVersion = lambda: (13, 5)
    said = absent.message()
    for part in ("NVRTC 13.5", "CUDA 12.4", "pip install 'cupy-cuda12x[ctk]'"):
        assert part in said


def test_a_cupy_for_other_devices() -> None:
    absent = Absent()
    absent.cupy.cuda.runtime.is_hip = True
    assert "ROCm" in absent.message()


def test_no_nvrtc() -> None:
    absent = Absent()
    absent.cupy.cuda.nvrtc.getVersion = _raising(RuntimeError('Failure finding "libnvrtc.so.12"'))
    said = absent.message()
    assert "NVRTC" in said and "libnvrtc.so.12" in said and "pip install" in said


def test_options_are_the_backends_own(cupy: Any) -> None:
    assert "jit is True or False" in message_of(BackendError, lambda: stand_in(cupy, jit="auto"))
    assert "no option 'launcher'" in message_of(BackendError, lambda: gen_backend("cpu", launcher="cupy"))
    assert "cupy, pycuda" in message_of(BackendError, lambda: stand_in(cupy, launcher="hip"))
    assert "'pool' or 'async'" in message_of(BackendError, lambda: stand_in(cupy, allocator="managed"))


def test_info_names_the_device(gpu: Any) -> None:
    for part in ("stand-in", "9.0", "CuPy", "pool"):
        assert part in gpu.info()


@pytest.mark.matrix(least=0)
def test_tests_on_a_gpu_that_is_not_there_are_an_error() -> None:
    try:
        gen_backend("gpu")
    except BackendError as error:
        missing = str(error)
    else:
        pytest.skip("there is a GPU")
    command = [sys.executable, "-m", "pytest", "--home", "gpu", "--collect-only", __file__]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR and missing in run.stderr


# Launchers


def test_pycudas_launcher(cupy: Any) -> None:
    pycuda = FakePyCUDA()
    with patch.dict(sys.modules, pycuda.modules):
        launcher = LAUNCHERS["pycuda"](cupy)
    source = 'extern "C" __global__ void twice(float *x)\nextern "C" __global__ void thrice(int n)'
    kernel, _ = launcher.load(b"cubin", ["twice", "thrice"], source)
    launcher.bound(kernel, (2, 1, 1), (32, 1, 1), [16], shared=48 << 10)()
    how = {"grid": (2, 1, 1), "block": (32, 1, 1), "shared": 48 << 10}
    assert pycuda.calls == ["init", "load", ("twice", (16,), how)]
    with cupy.cuda.Stream() as stream:  # the default stream, on which PyCUDA launches, waits for it, and it for that
        launcher.bound(kernel, (1, 1, 1), (1, 1, 1), [0])()
    assert stream.waited == [cupy.cuda.Stream.null] and cupy.cuda.Stream.null.waited[-1] is stream
    assert pycuda.depth == 0
    pycuda.failing = pycuda.module.MemoryError("out of memory")
    for fails in (
        lambda: launcher.load(b"cubin", ["twice"], source),
        launcher.bound(kernel, (1, 1, 1), (1, 1, 1), [0]),
    ):
        assert "PyCUDA" in message_of(DeviceMemoryError, fails)
    pycuda.failing = pycuda.module.Error("device kernel image is invalid")
    assert "image" in message_of(ImageError, lambda: launcher.load(b"cubin", ["twice"], source))
    assert pycuda.depth == 0


def test_pycuda_is_imported_only_when_asked_for(cupy: Any) -> None:
    with patch.dict(sys.modules, {"pycuda": None, "pycuda.driver": None}):
        stand_in(cupy)
        said = message_of(BackendError, lambda: stand_in(cupy, launcher="pycuda", jit=True))
    assert "pip install pycuda" in said and "nvcc" in said
    assert set(LAUNCHERS) == {"cupy", "pycuda"}
