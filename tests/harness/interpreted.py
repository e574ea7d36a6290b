"""The CUDA kernels of assignments, compiled to PTX by NVRTC and run by an interpreter in the place of C's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from backends.gpu.launch_config import DEVICES, DeviceLimits, Launch
from backends.gpu.runtime import OPTIONS
from harness import ptx
from harness.emulated import Collector
from harness.nvrtc import TOGETHER, ptx_of, together
from harness.ptx_memory import Memory
from harness.ptx_parser import Module, parse


@cache
def module_of(source: str, arch: str) -> Module:
    """A source compiled by NVRTC with the backend's options."""
    return parse(ptx_of(source, arch, OPTIONS))


def modules_of(sources: Sequence[str], arch: str) -> dict[str, tuple[Module, str]]:
    """The same of many sources, a few dozens at a time; each with what the names of its kernels end with."""

    def compiled(start: int) -> Module:
        return parse(ptx_of(together(sources[start : start + TOGETHER]), arch, OPTIONS))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        modules = list(pool.map(compiled, range(0, len(sources), TOGETHER)))
    places = ((source, *divmod(number, TOGETHER)) for number, source in enumerate(sources))
    return {source: (modules[part], f"_of_{number}") for source, part, number in places}


class Interpreter(Collector):
    """A host that interprets what NVRTC makes of kernels.

    Parameters
    ----------
    arch : str
        What kernels are compiled for.
    sources : sequence of str
        What it will be asked for, to be compiled together; others are compiled one by one.
    device : DeviceLimits, optional
        What they are laid out for.
    """

    def __init__(self, arch: str = "sm_90", sources: Sequence[str] = (), device: DeviceLimits | None = None) -> None:
        super().__init__(device or DEVICES[arch])
        self.arch, self.modules = arch, modules_of(sources, arch)

    def load(self, source: str, names: Sequence[str]) -> Sequence[Any]:
        super().load(source, names)
        module, end = self.modules.get(source) or (module_of(source, self.arch), "")
        return [(module, name + end) for name in names]

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
