"""How the rig is put in the place of CUDA: once in a process, before CuPy is imported."""

from __future__ import annotations

import ctypes
import os
import tempfile
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from harness.fake_cublaslt import FakeCuBLASLt
from harness.rig.compiler import Compiler
from harness.rig.driver import Driver
from harness.rig.libraries import Desk, Thrust
from harness.rig.machine import Machine
from harness.rig.redirect import redirect, serve


class Rig:
    """CuPy, and the machine that it runs on."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.driver, self.compiler = Driver(self.machine), Compiler()
        self.folder = tempfile.mkdtemp(prefix="optree-rig-")
        os.environ["CUPY_CACHE_DIR"] = os.environ["OPTREE_CACHE_DIR"] = self.folder
        os.environ.setdefault("CUPY_ACCELERATORS", "")
        entries = self.driver.entries()
        driver = {name: entry for name, entry in entries.items() if name.startswith("cu") and name[2].isupper()}
        runtime = {name: entry for name, entry in entries.items() if name.startswith("cuda")}
        self.desk = Desk(self.machine, lambda: self.cupy.cuda.get_current_stream())
        self.products = FakeCuBLASLt(self.desk)
        compiler = SimpleNamespace(**self.compiler.entries(), _handle=1)
        serve({"cuda": SimpleNamespace(**driver), "nvrtc": compiler, "cublasLt": self.products})
        self.missing = redirect("cupy_backends.cuda.api.runtime", runtime)
        thrust = Thrust(self.machine).entries()
        self.missing |= redirect("cupy.cuda.thrust", thrust)
        # What CuPy drops when Python ends comes to these functions still.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object([entries, compiler, thrust, self]))
        self.cupy: Any = import_module("cupy")

    def recovered(self) -> list[str]:
        """What has gone wrong since, after which all devices work again."""
        faults, self.machine.faults = self.machine.faults, []
        for device in self.machine.devices:
            device.broken = 0
        return faults


@cache
def rig() -> Rig:
    """The rig of this process."""
    return Rig()
