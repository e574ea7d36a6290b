"""The CUDA kernels of assignments, compiled to PTX by NVRTC and run by an interpreter in the place of C's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from backends.gpu.launch_config import DEVICES, DeviceLimits, Launch
from backends.gpu.runtime import OPTIONS
from harness import ptx
from harness.emulated import Collector
from harness.nvrtc import ptx_of
from harness.ptx_memory import Memory


@cache
def module_of(source: str, arch: str) -> ptx.Module:
    """What NVRTC makes of a source, with the options that kernels are compiled with."""
    return ptx.parse(ptx_of(source, arch, OPTIONS))


class Interpreter(Collector):
    """A host that interprets what NVRTC makes of kernels.

    Parameters
    ----------
    arch : str
        What kernels are compiled for.
    device : DeviceLimits, optional
        What they are laid out for.
    """

    def __init__(self, arch: str = "sm_90", device: DeviceLimits | None = None) -> None:
        super().__init__(device or DEVICES[arch])
        self.arch = arch

    def load(self, source: str, names: Sequence[str]) -> Sequence[Any]:
        super().load(source, names)
        module = module_of(source, self.arch)
        return [(module, name) for name in names]

    def launch(self, kernel: Any, launch: Launch, words: Sequence[int]) -> None:
        super().launch(kernel, launch, words)
        module, name = kernel
        memory = Memory()
        for word in words:
            if word in self.arrays:
                memory.address(self.arrays[word])
        ptx.Machine(module, name, launch.grid, launch.block, words, memory, launch.shared).run()

    def scratch(self, size: int) -> tuple[int, Any]:
        memory = np.full(size + 256, 0xFF, np.uint8)  # of nans
        start = -memory.ctypes.data % 256
        memory = memory[start : start + size]
        return self.address(memory), memory
