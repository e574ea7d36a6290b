"""The CUDA kernels of assignments, run on the CPU in the place of C's, or only collected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backends.kernels.cuda_launch import runner_of
from backends.kernels.geometry import DEVICES, Device, Launch
from backends.kernels.loopnest import LoopNest
from harness import cuda


class Collector:
    """A host that notes sources and launches, and runs nothing."""

    def __init__(self, device: Device = DEVICES["sm_90"]) -> None:
        self.device = device
        self.sources: dict[str, None] = {}
        self.launches: list[Launch] = []

    def load(self, source: str, names: Sequence[str]) -> Sequence[Any]:
        self.sources[source] = None
        return names

    def launch(self, kernel: Any, launch: Launch, args: Sequence[Any]) -> None:
        self.launches.append(launch)

    def scratch(self, size: int) -> tuple[int, Any]:
        return 0, None

    def runner_of(self, nest: LoopNest) -> Any:
        return runner_of(nest, self)


class Emulator(Collector):
    """A host that runs kernels on the CPU.

    Parameters
    ----------
    sources : sequence of str
        What it will be asked for, to be compiled together; others are compiled one by one.
    order : str
        In which order threads and blocks have their turns.
    """

    def __init__(
        self, sources: Sequence[str] = (), order: str = "forward", seed: int = 0, device: Device = DEVICES["sm_90"]
    ) -> None:
        super().__init__(device)
        self.order, self.seed = order, seed
        self.modules = dict(zip(sources, cuda.load(list(sources)), strict=True)) if sources else {}

    def load(self, source: str, names: Sequence[str]) -> Sequence[Any]:
        super().load(source, names)
        if source not in self.modules:
            (self.modules[source],) = cuda.load([source])
        return [(self.modules[source], name) for name in names]

    def launch(self, kernel: Any, launch: Launch, args: Sequence[Any]) -> None:
        super().launch(kernel, launch, args)
        module, name = kernel
        cuda.launch_at(module, name, launch.grid, launch.block, args, launch.shared, self.order, self.seed)

    def scratch(self, size: int) -> tuple[int, Any]:
        memory = np.full(size + 256, 0xA5, np.uint8)
        address = memory.ctypes.data
        return address + -address % 256, memory
