"""Memory traffic and issued instructions of kernels, without a card: a sample of each launch's blocks is interpreted.

Per element of the loop nest: instructions that threads issue by pipe, as the interpreted PTX becomes machine code, and
bytes of sectors that memory moves. Registers and shared memory are the assembler's, resident warps follow from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from backends.backend import Backend
from backends.gpu.kernel import CudaNest, RecordingHost
from backends.gpu.launch_config import DEVICES, Launch
from backends.gpu.runtime import OPTIONS
from backends.inspection import specialize_all
from harness import ptx
from harness.device import ATTRIBUTES
from harness.nvrtc import compile_cuda
from harness.ptx_memory import SECTOR, Imaginary, Memory
from harness.ptx_parser import parse
from harness.ptx_values import TYPES
from harness.sass import pipes_of
from optree.compile.loopnest import LoopNest

#: Arrays are this far apart, where no memory is, and have values that repeat after so many.
APART, REPEATED = 1 << 40, 3 << 12

#: What PTX instructions become that are neither one machine instruction nor none, by pipe.
_DIVIDED = {"slow": 3, "float": 6, "integer": 12}
_DIVIDED_LONG = {"slow": 4, "float": 40, "integer": 40}
EXPANDED = {
    "div.rn.f32": {"slow": 2, "float": 5, "control": 3},
    "div.approx.ftz.f32": {"slow": 1, "float": 3},
    "div.full.f32": {"slow": 1, "float": 4, "integer": 3},
    "sqrt.approx.f32": {"slow": 1, "float": 2, "integer": 1},
    "rcp.rn.f32": {"slow": 1, "float": 3, "integer": 2, "control": 3},
    "sqrt.rn.f32": {"slow": 1, "float": 5, "integer": 2, "control": 3},
    "div.rn.f64": {"slow": 1, "double": 8, "integer": 4, "control": 3},
    "rcp.rn.f64": {"slow": 1, "double": 5, "integer": 3, "control": 3},
    "sqrt.rn.f64": {"slow": 1, "double": 8, "integer": 4, "control": 3},
    "mul.lo.s64": {"float": 4},
    **{f"{base}.{type}": _DIVIDED for base in ("div", "rem") for type in ("s32", "u32")},
    **{f"{base}.{type}": _DIVIDED_LONG for base in ("div", "rem") for type in ("s64", "u64")},
}

#: Names of registers, which cost nothing; conjunctions of conditions, which comparisons make on their way; and signs
#: and saturation, which are modifiers of the instructions beside them.
FREE = (
    "neg.f32",
    "abs.f32",
    "cvt.sat.f32.f32",
    "and.pred",
    "or.pred",
    "mov",
    "cvta",
    "cvt.u64.u32",
    "cvt.u32.u64",
    "cvt.s64.s32",
    "cvt.u16.u32",
    "cvt.u32.u16",
    "ld.param",
    "ret",
)

#: Threads of a warp that a multiprocessor of compute capability 9.0 serves in a cycle, of 128 in all, by pipe.
THREADS = {"float": 128, "integer": 64, "double": 64, "slow": 16, "memory": 32, "control": 64}

#: A card of compute capability 9.0: multiprocessors times cycles a second, and bytes a second.
CYCLES, BYTES = ATTRIBUTES[16] * 1.755e9, 3.35e12


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of a multiprocessor: warps, blocks, and bytes of shared memory."""

    warps: int
    blocks: int
    shared: int


#: By architecture, of the tables of technical specifications in CUDA's programming guide. Each has 65,536 registers,
#: given to warps in units of 256, and keeps 1 KiB of shared memory for each block.
MULTIPROCESSORS = {
    "sm_75": Multiprocessor(32, 16, 64 << 10),
    "sm_80": Multiprocessor(64, 32, 164 << 10),
    "sm_89": Multiprocessor(48, 24, 100 << 10),
    "sm_90": Multiprocessor(64, 32, 228 << 10),
    "sm_100": Multiprocessor(64, 32, 228 << 10),
}


def resident_warps(arch: str, threads: int, registers: int, shared: int) -> int:
    """The warps of one kernel that a multiprocessor has at a time."""
    limits, warps = MULTIPROCESSORS[arch], threads // 32
    by_registers = 65536 // (-(-registers * 32 // 256) * 256) // 4 * 4 // warps  # each quarter has a quarter of them
    by_shared = limits.shared // (-(-shared // 128) * 128 + (1 << 10 if arch != "sm_75" else 0) or 1)
    return warps * min(limits.warps // warps, limits.blocks, by_registers, by_shared)


def pipes_of_ptx(name: str) -> dict[str, int]:
    """The machine instructions of a PTX instruction, by pipe."""
    if name in EXPANDED:
        return EXPANDED[name]
    if name.startswith(FREE):
        return {}
    base, *mods = name.split(".")
    type = next((mod for mod in reversed(mods) if mod in TYPES), "b32")
    if base in ("ld", "st", "shfl", "red", "atom"):
        return {"memory": 1}
    if base in ("bra", "bar", "call", "exit"):
        return {"control": 1}
    if name == "cvt.f32.f16":
        return {"float": 1}  # an addition of halves
    if base == "cvt":
        return {"slow" if _is_slow(mods) else "integer": 1}
    if "approx" in mods:
        return {"slow": 1}
    if type == "f64":
        return {"integer": 2} if base in ("selp", "abs", "neg", "copysign") else {"double": 1}
    if (type == "f32" and base in ("add", "sub", "mul", "fma")) or base in ("mul", "mad", "madc"):
        return {"float": 1}
    return {"integer": 2 if type in ("s64", "u64", "b64") else 1}


def _is_slow(mods: Sequence[str]) -> bool:
    """Whether a conversion is by the pipe of functions: between integers and floats, and of one number to bfloat16."""
    to, origin = [mod for mod in mods if mod in TYPES]
    if to in ("f16", "f16x2", "bf16x2") or origin in ("f16", "bf16") or "sat" in mods:
        return origin == "f64"
    return to == "bf16" or TYPES[to].kind != "i" or TYPES[origin].kind == "f"


class Counted(NamedTuple):
    """Memory traffic and issued instructions of one launch: see `row`."""

    launch: Launch
    registers: int
    static: int
    warps: int
    code: Counter[str]
    issued: Counter[str]
    loads: int
    stores: int
    least: int
    conflicts: int
    elements: int

    def per_element(self, pipe: str) -> float:
        return self.issued[pipe] * 32 / self.elements

    def busy(self) -> float:
        """The least time of its instructions, as a share of memory's time."""
        pipes = [32 * count / THREADS[pipe] for pipe, count in self.issued.items()]
        return max(*pipes, 32 * self.issued.total() / 128) / CYCLES / (self.moved() / BYTES)

    def moved(self) -> int:
        return SECTOR * (self.loads + self.stores)

    def row(self) -> list[str]:
        """The cells of a table, below `HEAD`."""
        pipes = [f"{self.per_element(pipe):.2f}" for pipe in THREADS]
        total = sum(self.per_element(pipe) for pipe in THREADS)
        x, y = self.launch.grid
        return [
            self.launch.name, f"{x}x{y}" if y > 1 else f"{x}", str(self.launch.block), str(self.launch.shared),
            str(self.static), str(self.registers), str(self.warps), str(self.code.total()), *pipes, f"{total:.1f}",
            f"{self.loads * SECTOR / self.elements:.2f}", f"{self.stores * SECTOR / self.elements:.2f}",
            f"{self.least / self.elements:.2f}", f"{self.conflicts * 1e3 / self.elements:.1f}", f"{self.busy():.2f}",
        ]  # fmt: skip


HEAD = (
    *("kernel", "grid", "block", "dynamic", "static", "registers", "warps", "code"),
    *THREADS,
    *("all", "loaded", "stored", "least", "conflicts", "busy"),
)


class CountingHost(RecordingHost):
    """A host that interprets some blocks of each launch."""

    def __init__(self, arch: str) -> None:
        super().__init__(DEVICES[arch])
        self.arch, self.memory, self.counted = arch, Memory(), list[Counted]()
        self.elements = self.least = 0

    def imagine(self, size: int, dtype: np.dtype) -> int:
        """The address of an array that takes no memory."""
        values = np.random.RandomState(0).uniform(0.5, 2, REPEATED) * (
            1 if dtype.kind in "fc" or dtype.itemsize == 2 else 4
        )
        values = values + 1j * values[::-1] if dtype.kind == "c" else values
        start = APART * (1 + len(self.memory.regions))
        self.memory.add(Imaginary(start, size, values.astype(dtype)))
        return start

    def load(self, source: str, names: Sequence[str]) -> Sequence[Any]:
        super().load(source, names)
        compiled = compile_cuda(source, self.arch, OPTIONS)
        module = parse(compiled.ptx)
        return [(module, name, compiled) for name in names]

    def scratch(self, size: int) -> tuple[int, Any]:
        return self.imagine(size, np.dtype(np.float64)), None

    def launch(self, kernel: Any, launch: Launch, words: Sequence[int]) -> None:
        super().launch(kernel, launch, words)
        module, name, compiled = kernel
        total = prod(launch.grid)
        usual = sorted({0, total // 3}) if total > 1 else []
        whole = Counter[str]()
        issued = Counter[str]()
        for blocks, times in ((usual, (total - 1) / max(1, len(usual))), ([total - 1], 1.0)):
            if blocks:
                found = ptx.Machine(
                    module, name, launch.grid, launch.block, words, self.memory, launch.shared, blocks
                ).run()
                for each, count in found.issued.items():
                    for pipe, slots in pipes_of_ptx(each).items():
                        issued[pipe] += count * slots * times
                for key, count in (*found.sectors.items(), ("conflicts", found.conflicts)):
                    whole[key] += count * times
        usage = compiled.usage[name]
        shared = usage.shared + launch.shared
        warps = resident_warps(self.arch, launch.block, usage.registers, shared)
        self.counted.append(
            Counted(
                launch,
                usage.registers,
                usage.shared,
                warps,
                pipes_of(compiled.cubin)[name],
                issued,
                round(whole["load"]),
                round(whole["store"]),
                self.least,
                round(whole["conflicts"]),
                self.elements,
            )
        )


def counts_of(be: Any, tree: Callable[[Any], Any], arch: str = "sm_90") -> list[Counted]:
    """Memory traffic and issued instructions of each launch of a tree's kernels."""
    host = CountingHost(arch)

    def compile(nest: LoopNest) -> Any:
        inner = CudaNest(nest, host)

        def run(pointers: Sequence[int], numbers: Sequence[int], layout: Any) -> None:
            sizes, flat = layout
            host.memory = Memory()
            found, host.elements, host.least = [], prod(sizes), 0
            for extent, dtype in zip(_extents(nest, sizes, flat), nest.arrays, strict=True):
                host.least += extent * dtype.itemsize
                found.append(host.imagine(extent * dtype.itemsize, dtype) if extent else 0)
            inner.run(found, numbers, layout)

        return run

    specialize_all(_program(be, tree), compile, host)
    return host.counted


def _extents(nest: LoopNest, sizes: Sequence[int], flat: Sequence[int]) -> list[int]:
    """The elements of each array, from its first to the last that a nest accesses; 0 of one without memory."""
    rank, first = nest.rank, len(nest.reads) - len(nest.taps)
    strides = [flat[array * rank : (array + 1) * rank] for array in range(len(nest.arrays))]
    found = [1 + sum(abs(step) * (n - 1) for step, n in zip(steps, sizes, strict=True)) for steps in strides]
    found[first - nest.flat_indices : first] = [0] * nest.flat_indices
    words = flat[len(strides) * rank :]
    offsets, ends = words[: len(nest.taps)], words[len(nest.taps) :]
    for array, (tap, offset) in enumerate(zip(nest.taps, offsets, strict=True), first):
        indices = [range(n) for n in sizes]
        for number in tap.ranges:
            indices[nest.ranges[number]] = range(*ends[2 * number : 2 * number + 2])
        for quotient, is_remainder, _ in tap.spaced:
            loop, spacing, phase = nest.quotients[quotient]
            low, high = ((each + phase) // spacing for each in (indices[loop][0], indices[loop][-1]))
            indices[loop] = range(spacing) if is_remainder else range(low, high + 1)
        last = offset + sum(max(step * i[0], step * i[-1]) for step, i in zip(strides[array], indices, strict=True))
        found[array], found[tap.array] = 0, max(found[tap.array], last + 1)
    return found


def _program(be: Any, tree: Callable[[Any], Any]) -> Any:
    found = tree(be)
    return found.program if hasattr(found, "program") else Backend.program([found])
