"""Loop nests as functions of arrays on a CUDA device, whatever loads and launches kernels there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from backends.kernels import cuda
from backends.kernels.cuda_elements import Variant
from backends.kernels.expressions import wide
from backends.kernels.geometry import Device, Geometry, Launch, geometry_of
from backends.kernels.launch import Layout, Runner
from backends.kernels.loopnest import LoopNest

#: A nest remembers so many ways in which it has been laid out.
GEOMETRIES = 256

#: And the arguments of so many calls, for loops run on the same arrays again and again.
RECENT = 8

#: What kernels' addresses are aligned to where their last bits do not matter.
ALIGNED = 256


class Host(Protocol):
    """What compiles, loads and launches kernels.

    Attributes
    ----------
    device : Device
    """

    device: Device

    def load(self, source: str, names: Sequence[str]) -> Sequence[Any]:
        """The kernels of a source, by their names."""

    def launch(self, kernel: Any, launch: Launch, args: Sequence[Any]) -> None:
        """Let a kernel run on NumPy scalars, after those before it."""

    def scratch(self, size: int) -> tuple[int, Any]:
        """The address of so many bytes, aligned as any array, and what keeps them."""


class Notes:
    """A host that notes sources and launches, and runs nothing.

    Attributes
    ----------
    device : Device
    sources : list of str
    launches : list of Launch
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.sources: list[str] = []
        self.launches: list[Launch] = []

    def load(self, source: str, names: Sequence[str]) -> Sequence[Any]:
        self.sources.append(source)
        return names

    def launch(self, kernel: Any, launch: Launch, args: Sequence[Any]) -> None:
        self.launches.append(launch)

    def scratch(self, size: int) -> tuple[int, Any]:
        return 0, None


def divisor(number: int) -> int:
    """What kernels divide by a number with (`cuda.QUOTIENT`): a factor of 32 bits, and above it a shift.

    The factor is 2^(31 + shift) / number, rounded up, with the least shift for which 2^shift is not below the number:
    so the quotient of numbers below 2^31 is too large by less than what it lacks of the next whole one.
    """
    shift = (number - 1).bit_length()
    return -(-(1 << 31 + shift) // number) | shift << 32


def runner_of(nest: LoopNest, host: Host) -> Runner:
    """What runs a nest on a device; each variant is compiled when it is first needed."""
    loaded: dict[Variant, tuple[Sequence[Any], list[str]]] = {}
    known: dict[Any, Geometry] = {}
    recent: dict[Any, list[tuple[Any, Launch, list[Any]]]] = {}
    arrays, rank = nest.arrays, nest.rank

    def laid_out(pointers: Sequence[int], sizes: Sequence[int], flat: Sequence[int]) -> Geometry:
        key = tuple(sizes), tuple(flat), tuple(address % ALIGNED for address in pointers)
        geometry = known.get(key)
        if geometry is None:
            steps = [flat[place * rank : (place + 1) * rank] for place in range(len(arrays))]
            if len(known) >= GEOMETRIES:
                known.clear()
            geometry = known[key] = geometry_of(nest, sizes, steps, pointers, host.device)
        return geometry

    def arguments(
        geometry: Geometry, names: Sequence[str], pointers: Sequence[int], numbers: Sequence[int], layout: Layout
    ) -> tuple[list[Any], list[Any]]:
        """What every kernel takes, and the scratch memory among it."""
        sizes, flat = layout
        given: dict[str, Any] = {f"a{place}": np.uint64(address) for place, address in enumerate(pointers)}
        given.update({f"n{axis}": np.int64(size) for axis, size in enumerate(sizes)})
        given.update({f"s{place // rank}_{place % rank}": np.int64(step) for place, step in enumerate(flat)})
        accesses = *sizes[:-1], -(-sizes[-1] // geometry.variant.vector)
        given.update((m, np.int64(divisor(size))) for axis, size in enumerate(accesses) if (m := f"m{axis}") in names)
        for i, (dtype, bits) in enumerate(zip(nest.numbers, numbers, strict=True), len(nest.reads)):
            given[f"c{i}"] = np.int64(bits).view("int64" if dtype.kind == "b" else dtype)
        given.update(part=np.int64(geometry.part), parts=np.int32(geometry.parts), held=np.int64(geometry.held))
        memories = []
        for r in nest.reductions if geometry.variant.split else []:
            address, memory = host.scratch(geometry.entries * wide(r).itemsize)
            given[f"q{r.value}"] = np.uint64(address)
            memories.append(memory)
        return [given[name] for name in names], memories

    def run(pointers: Sequence[int], numbers: Sequence[int], layout: Layout) -> None:
        call = *pointers, *numbers, *layout[0], *layout[1]
        launches = recent.get(call)
        if launches is None:
            geometry = laid_out(pointers, *layout)
            variant = geometry.variant
            if variant not in loaded:
                kernels = host.load(cuda.source(nest, variant), cuda.kernel_names(nest, variant.split))
                loaded[variant] = kernels, cuda.parameter_names(nest, variant)
            kernels, names = loaded[variant]
            # The memories are kept until the kernels are on their way: what is freed then is used after them.
            args, memories = arguments(geometry, names, pointers, numbers, layout)
            launches = [(kernel, launch, args) for kernel, launch in zip(kernels, geometry.launches, strict=True)]
            if not memories:
                if len(recent) >= RECENT:
                    recent.clear()
                recent[call] = launches
        for kernel, launch, args in launches:
            host.launch(kernel, launch, args)

    return run
