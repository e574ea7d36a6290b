"""How the rig is put in the place of CUDA: once in a process, before CuPy is imported."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from harness.rig.compiler import Compiler
from harness.rig.driver import Driver
from harness.rig.machine import Machine
from harness.rig.redirect import redirect, serve


class Rig:
    """CuPy, and the machine that it runs on."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.driver, self.compiler = Driver(self.machine), Compiler()
        self.folder = tempfile.mkdtemp(prefix="optree-rig-")
        os.environ["CUPY_CACHE_DIR"] = self.folder
        os.environ.setdefault("CUPY_ACCELERATORS", "")
        entries = self.driver.entries()
        self._alive = [entries, self.compiler.entries()]
        driver = {name: entry for name, entry in entries.items() if name.startswith("cu") and name[2].isupper()}
        runtime = {name: entry for name, entry in entries.items() if name.startswith("cuda")}
        serve({"cuda": SimpleNamespace(**driver), "nvrtc": SimpleNamespace(**self.compiler.entries(), _handle=1)})
        self.missing = redirect("cupy_backends.cuda.api.runtime", runtime)
        self.cupy: Any = import_module("cupy")


@cache
def rig() -> Rig:
    """The rig of this process."""
    return Rig()
