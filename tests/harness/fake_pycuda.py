"""A stand-in for `pycuda.driver`, which notes what the launcher asks of it; `make test-rig` has the real one."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np


class FakePyCUDA:
    """`pycuda.driver`, as far as the launcher uses it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.depth = 0
        context = SimpleNamespace(push=lambda: self._move(1), pop=lambda: self._move(-1))
        self.module: Any = ModuleType("pycuda.driver")
        self.module.init = lambda: self.calls.append("init")
        self.module.Device = lambda number: SimpleNamespace(retain_primary_context=lambda: context)
        self.module.module_from_buffer = self._load
        self.module.function_attribute = SimpleNamespace(
            MAX_DYNAMIC_SHARED_SIZE_BYTES=8, PREFERRED_SHARED_MEMORY_CARVEOUT=9
        )
        self.module.Error = type("Error", (Exception,), {})
        self.module.MemoryError = type("MemoryError", (self.module.Error,), {})
        self.failing: Any = None

    @property
    def modules(self) -> dict[str, Any]:
        """The modules that are imported."""
        return {"pycuda": ModuleType("pycuda"), "pycuda.driver": self.module}

    def _move(self, by: int) -> None:
        self.depth += by

    def _load(self, cubin: bytes) -> Any:
        assert self.depth == 1
        self.calls.append("load")
        if self.failing is not None:
            raise self.failing
        return SimpleNamespace(get_function=lambda name: _Function(self, name))


class _Function:
    """A kernel, which may have 48 KiB of dynamic shared memory, less what is static, until more is asked for."""

    def __init__(self, of: FakePyCUDA, name: str) -> None:
        self.of, self.name, self.most = of, name, (48 << 10) - 384

    def set_attribute(self, attribute: int, value: int) -> None:
        assert self.of.depth == 1 and attribute in (8, 9)
        if attribute == 8:
            self.most = value

    def __call__(self, *args: Any, grid: Any, block: Any, shared: int) -> None:
        assert self.of.depth == 1 and shared <= self.most
        assert all(isinstance(arg, np.number) for arg in args), "PyCUDA refuses arguments that tell no size"
        if self.of.failing is not None:
            raise self.of.failing
        self.of.calls.append((self.name, args, {"grid": grid, "block": block, "shared": shared}))
