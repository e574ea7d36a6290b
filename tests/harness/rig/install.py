"""Installation of the rig in place of CUDA's libraries, once in a process; switching it on and off."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from backends.gpu import cupy_device
from harness.fake_cublaslt import FakeCuBLASLt
from harness.rig.compiler import Compiler
from harness.rig.driver import Driver
from harness.rig.libraries import CuBLAS, CuFFT, Desk, Thrust
from harness.rig.machine import Machine, Stream
from harness.rig.redirect import SUPPORTED, redirect, serve, stub
from harness.rig.solver import Solver
from optree.settings import override

#: Where `harness.rig.build_pycuda` has built PyCUDA, if it has (make test-rig).
PYCUDA = Path(sys.prefix) / "pycuda"


class Rig:
    """CuPy, and the machine that it runs on.

    Attributes
    ----------
    cupy : module
    machine : Machine
    driver : Driver
    compiler : Compiler
    allocations : int
        The arrays that CuPy's pools have given memory.
    missing : set of str
        Functions that CuPy's modules do not have.
    folder : Path
        Where kernels are cached, CuPy's and ours: images that nothing else can load.
    """

    def __init__(self) -> None:
        self.machine, self.allocations = Machine(), 0
        self.driver, self.compiler = Driver(self.machine), Compiler(lambda: self.machine.is_on)
        self.folder = Path(tempfile.mkdtemp(prefix="optree-rig-")).resolve()
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        atexit.register(setattr, self.machine, "has_ended", True)
        os.environ["CUPY_CACHE_DIR"] = str(self.folder / "cupy")
        os.environ["CUPY_ACCELERATORS"] = ""  # CUB's headers are for NVIDIA's compilers alone
        functions, compiler = self.driver.entries(), self.compiler.entries()
        self.desk = Desk(self.machine, lambda: self.cupy.cuda.get_current_stream())
        self.cublaslt = FakeCuBLASLt(self.desk)
        served = {
            "cuda": SimpleNamespace(**functions),
            "nvrtc": SimpleNamespace(**compiler, _handle=1),
            "cublasLt": self.cublaslt,
            "cublas": SimpleNamespace(),
            "cusolver": SimpleNamespace(),
            "cufft": SimpleNamespace(),
        }
        serve(served, lambda: self.machine.is_on)
        thrust, solver = Thrust(self.machine).entries(), Solver(self.machine)
        cublas, cusolver = {**CuBLAS().entries(), **solver.entries("cublas")}, solver.entries("cusolver")
        runtime = {name: entry for name, entry in functions.items() if name.startswith("cuda")}
        for library, file in (("cublas", "libcublas.so.13"), ("cusolver", "libcusolver.so.12")):
            stub(_file(f"cupy_backends.cuda.libs.{library}"), file, library, self.folder)
        stub(_file("cupy.cuda.cufft"), "libcufft.so.12", "cufft", self.folder)
        cufft = CuFFT(self.machine).entries()
        self.missing = (
            redirect(_loaded("cupy_backends.cuda.api.runtime"), runtime)
            | redirect(_loaded("cupy.cuda.thrust"), thrust)
            | redirect(self.folder / "libcublas.so.13", cublas)
            | redirect(self.folder / "libcusolver.so.12", cusolver)
            | redirect(self.folder / "libcufft.so.12", cufft)
        )
        if PYCUDA.exists():
            sys.path.append(str(PYCUDA))
            # NVRTC, too, calls the driver that it finds, and would call this function without it being there.
            stub(_file("pycuda._driver"), "libcuda.so.1", "cu", self.folder, "cuGetExportTable")
            redirect(self.folder / "libcuda.so.1", functions)
        # What CuPy drops when Python ends comes to these functions still.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object([functions, compiler, thrust, cublas, cusolver, cufft, self]))
        self.cupy: Any = import_module("cupy")
        self.driver.meets = _poisoning(self)
        self.machine.is_on = True
        self.cupy.cuda.runtime.setDevice(0)
        self.cupy.cuda.driver.ctxGetCurrent()  # CuPy looks for the driver and the compiler once
        self.cupy.cuda.nvrtc.getVersion()
        self.machine.is_on = False

    @contextmanager
    def on(self, seed: int = 0) -> Iterator[Rig]:
        """Within it there are devices; without it, there is no driver.

        Parameters
        ----------
        seed : int
            What the order of work is drawn by.
        """
        self.machine.random.seed(seed)
        self.machine.is_on = True
        try:
            self.cupy.cuda.runtime.setDevice(0)  # not the one that an earlier test left current
            with override(cache_dir=self.folder / "optree"):
                yield self
        finally:
            self.machine.is_on = False

    def recovered(self) -> list[str]:
        """The faults since the last call; all devices are reset."""
        machine = self.machine
        cupy_device.faults.clear()
        with machine.lock:
            faults, machine.faults = machine.faults, []
            for device in machine.devices:
                device.broken = 0
                machine.finish_device(device)
        return faults


@contextmanager
def refusing(on: Rig, refuses: Callable[[str], int]) -> Iterator[None]:
    """Let calls of CUDA's fail: from a function's name to an error, or 0."""
    on.driver.refuses = refuses
    try:
        yield
    finally:
        on.driver.refuses = lambda name: 0


def _file(module: str) -> Path:
    """The file of an extension module."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).resolve()


def _loaded(module: str) -> Path:
    """The file of an extension module, which is loaded now."""
    import_module(module)
    return _file(module)


def _poisoning(rig: Rig) -> Callable[[], None]:
    """Hooks by which CuPy's pools give this thread memory full of NaNs, and fill with others what it gives back.

    CuPy's hooks are those of a thread. Memory belongs to the stream that was current when it was given.
    """

    class Hook(rig.cupy.cuda.MemoryHook):  # type: ignore[misc, name-defined]
        name = "Poison"

        def __init__(self) -> None:
            self._streams: dict[int, Stream] = {}

        def malloc_postprocess(self, **given: Any) -> None:
            address, size = given["mem_ptr"], given["mem_size"]
            if rig.machine.is_on and address:
                rig.allocations += 1
                self._streams[address] = rig.machine.stream(rig.cupy.cuda.get_current_stream().ptr)
                rig.machine.poison(self._streams[address], address, size, is_new=True)

        def free_preprocess(self, **given: Any) -> None:
            address, size = given["mem_ptr"], given["mem_size"]
            stream = self._streams.pop(address, None)
            if rig.machine.is_on and stream is not None:
                rig.machine.poison(stream, address, size, is_new=False)

    return Hook().__enter__


@cache
def rig() -> Rig:
    """The rig of this process."""
    return Rig()


@cache
def why_no_rig() -> str | None:
    """Why there can be none here; None where there can."""
    if not SUPPORTED or shutil.which("g++") is None:
        return "CuPy runs on simulated devices under Linux on x86-64, by g++"
    if find_spec("cupy") is None:
        return "CuPy is not installed: pip install -e '.[cuda-on-cpu]'"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return "there is a driver: make test-gpu runs on a real device"
