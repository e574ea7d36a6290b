"""A stand-in for `pycuda.driver`: arguments are packed as PyCUDA packs them, and compared with the kernel's layout."""

from __future__ import annotations

import struct
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from harness.emulated import module_of


class FakePyCUDA:
    """`pycuda.driver`, as far as the launcher uses it.

    Parameters
    ----------
    cupy : module, optional
        A stand-in for CuPy whose emulator runs the kernels; by default, launches are noted alone.
    """

    def __init__(self, cupy: Any = None) -> None:
        self.calls: list[Any] = []
        self.depth = 0
        self.machine = None if cupy is None else cupy.machine
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
        return SimpleNamespace(get_function=lambda name: _Function(self, cubin, name))


class _Function:
    """A kernel, which may have 48 KiB of dynamic shared memory, less what is static, until more is asked for."""

    def __init__(self, of: FakePyCUDA, cubin: bytes, name: str) -> None:
        self.of, self.cubin, self.name, self.most = of, cubin, name, (48 << 10) - 384

    def set_attribute(self, attribute: int, value: int) -> None:
        assert self.of.depth == 1 and attribute in (8, 9)
        if attribute == 8:
            self.most = value

    def __call__(self, *args: Any, grid: Any, block: Any, shared: int) -> None:
        assert self.of.depth == 1 and shared <= self.most
        if self.of.failing is not None:
            raise self.of.failing
        self.of.calls.append((self.name, args, {"grid": grid, "block": block, "shared": shared}))
        machine = self.of.machine
        if machine is not None:
            source = self.cubin.decode()
            words = self._read(source, pack(args))
            machine.do(lambda: machine.emulator(source, self.name, grid, block, words, shared, machine.check_live))

    def _read(self, source: str, packed: bytes) -> list[int]:
        """Each parameter's bytes in what was packed, at the offset where the driver reads it."""
        offset, words = 0, []
        for parameter in module_of(source).kernels[self.name].arguments:
            size = 8 if parameter.kind == "p" else parameter.size
            offset += -offset % size  # a parameter is as large as its alignment
            words.append(int.from_bytes(packed[offset : offset + size].ljust(8, b"\0"), "little", signed=True))
            offset += size
        assert offset == len(packed), f"{self.name}: {len(packed)} bytes were packed for {offset}"
        return words


def pack(args: Any) -> bytes:
    """PyCUDA's `_build_arg_buf`: NumPy's scalars by their type, at its alignment; it takes no Python number."""
    assert all(isinstance(arg, np.number) for arg in args), "PyCUDA refuses arguments that tell no size"
    return struct.pack("".join(arg.dtype.char for arg in args), *args)
