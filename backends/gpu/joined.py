"""Independent small kernels as one launch, whose blocks are divided among them.

The parts of a joined kernel keep their code, grids and blocks, and so their bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from backends.execution.executor import KernelStep
from backends.execution.printer_common import braced
from backends.execution.specialize import collecting
from backends.gpu.codegen.signatures import parameters_of
from backends.gpu.launch_config import DEFAULT_SHARED, MAX_GRID, Launch
from optree.cache import Cache
from optree.records import NamedTuple

#: The maximum bytes that a part reads and writes: a launch takes as long as they do.
SMALL = 1 << 22

#: The maximum parameters of a joined kernel: CUDA 12.0 passes 4 KiB.
MAX_PARAMETERS = 500

#: The maximum threads of a block with a part of fewer threads: registers must suffice for either.
MAX_BLOCK = 256

#: Maximum entries of a step's cache of launches.
CALLS = 64

_KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\(\w+\) (\w+)\(')
_INCLUDE = re.compile(r"^#include .*\n", re.MULTILINE)
_TYPE = re.compile(r"^typedef .*\b(\w+);$", re.MULTILINE)


class Part(NamedTuple):
    """A launch that may be joined with others."""

    source: str
    launch: Launch
    #: The arguments, as of `Host.bound`.
    words: Sequence[int]
    #: The bytes that it reads and writes, and those of its static shared memory.
    bytes: int
    static: int
    #: The function that launches it by itself.
    bound: Callable[[], Callable[[], Any]]

    @property
    def has_barriers(self) -> bool:
        """Whether the threads of a block wait for each other."""
        return "__syncthreads" in self.source

    @property
    def blocks(self) -> int:
        """The number of its blocks."""
        return self.launch.grid[0] * self.launch.grid[1]


def divided(launches: Sequence[Sequence[Part]]) -> Iterator[list[Part]]:
    """The launches of independent nests, each with those that it is joined with, in order.

    `launches`: those of each nest, in order.
    """
    for turn in zip_longest(*launches):
        groups: list[list[Part]] = []
        for part in (part for part in turn if part is not None):
            group = next((group for group in groups if _joins(group, part)), None)
            if group is None:
                groups.append(group := [])
            group.append(part)
        yield from groups


def _joins(group: Sequence[Part], part: Part) -> bool:
    """Whether a part is joined with others."""
    parts = [*group, part]
    block = max(each.launch.block for each in parts)
    return (
        all(each.launch.block == block or (block <= MAX_BLOCK and not each.has_barriers) for each in parts)
        and all(each.bytes <= SMALL and not each.launch.shared for each in parts)
        and sum(len(each.words) + 2 for each in parts) <= MAX_PARAMETERS
        and sum(each.static for each in parts) <= DEFAULT_SHARED
        and sum(each.blocks for each in parts) <= MAX_GRID
    )


def source_of(parts: Sequence[Part]) -> str:
    """The source of a joined kernel: each different source in a namespace, as functions for some of the blocks."""
    if len(parts) == 1:
        return parts[0].source
    threads = max(part.launch.block for part in parts)
    names = {key: f"part{n}" for n, key in enumerate(dict.fromkeys((p.source, p.launch.block) for p in parts))}
    includes = dict.fromkeys(line for source, _ in names for line in _INCLUDE.findall(source))
    lines = ["".join(includes) + "struct Blocks { unsigned int x, y; };"]
    for (source, block), name in names.items():
        inner = _KERNEL.sub(
            r"__device__ __forceinline__ void \1(\n    const Blocks blockIdx,\n    const Blocks gridDim,",
            _INCLUDE.sub("", source).replace("blockDim.x", str(block)),
        )
        lines += [f"namespace {name}", "{", f"{inner}}}"]
    parameters, body = list[str](), ["unsigned int block = blockIdx.x;"]
    for n, part in enumerate(parts):
        name = names[part.source, part.launch.block]
        x, y, given = f"x{n}", f"y{n}", _qualified(part, name)
        parameters += [f"unsigned int {x}", f"unsigned int {y}", *(f"{type}p{n}_{name}" for type, name in given)]
        blocks = [f"Blocks{{block % {x}, block / {x}}}", f"Blocks{{{x}, {y}}}"]
        arguments = ", ".join([*blocks, *(f"p{n}_{name}" for _, name in given)])
        call = f"{name}::{part.launch.name}({arguments});"
        some = [f"if (threadIdx.x < {part.launch.block})"] if part.launch.block < threads else []
        body += [f"if (block < {x} * {y})", *braced([*some, call, "return;"]), f"block -= {x} * {y};"]
    lines += [f'extern "C" __global__ void __launch_bounds__({threads}) kernel(']
    return "\n".join([*lines, ",\n".join(f"    {each}" for each in parameters) + ")", *braced(body), ""])


def _qualified(part: Part, namespace: str) -> list[tuple[str, str]]:
    """The types and names of a part's parameters, outside of the namespace that its own types are defined in."""
    own = "|".join(_TYPE.findall(part.source))
    given = parameters_of(part.source)[part.launch.name]
    return [(re.sub(rf"\b({own})\b", rf"{namespace}::\1", type) if own else type, name) for type, name in given]


def launch_of(parts: Sequence[Part]) -> tuple[Launch, list[int]]:
    """The launch of a joined kernel, and its arguments."""
    words = [word for part in parts for word in (*part.launch.grid, *part.words)]
    return Launch("kernel", (sum(part.blocks for part in parts), 1), max(part.launch.block for part in parts)), words


class Together:
    """Runs the kernels of independent steps, the small ones in one launch."""

    def __init__(self, host: Any) -> None:
        self._host = host
        #: By the launches to join, these and the functions that launch them joined.
        self._known = Cache("launches of joined kernels", CALLS)

    def __call__(self, steps: Sequence[KernelStep], values: list[Any]) -> None:
        with collecting() as found:
            for step in steps:
                step(values)
        self.launch(found)

    def launch(self, found: Sequence[tuple[Any, Any]]) -> None:
        """Launch what has been collected of independent kernels, the small ones together."""
        key = tuple([id(launches) for launches, _ in found])
        _, run = self._known.get(key) or (None, None)
        if run is None:
            run = [self._bound(group) for group in divided([launches for launches, _ in found])]
            if not any(memory for _, memory in found):
                self._known[key] = found, run  # the reference keeps the identities
        for launch in run:
            launch()

    def _bound(self, parts: Sequence[Part]) -> Callable[[], Any]:
        if len(parts) == 1:
            return parts[0].bound()
        launch, words = launch_of(parts)
        (kernel,) = self._host.load(source_of(parts), [launch.name])
        bound: Callable[[], Any] = self._host.bound(kernel, launch, words)
        return bound
