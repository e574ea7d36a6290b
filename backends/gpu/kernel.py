"""Loop nests as functions of arrays on a CUDA device, whatever loads and launches kernels there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol
from weakref import ref

import numpy as np

from backends.execution.dialect import accumulator_dtype
from backends.execution.memory import Memory
from backends.execution.runner import Layout, bits
from backends.gpu.codegen import printer as cuda
from backends.gpu.codegen.variant import Variant
from backends.gpu.launch_config import Device, Geometry, Launch, geometry_of
from optree.compile.loopnest import LoopNest

#: A nest remembers so many ways in which it has been laid out.
GEOMETRIES = 256

#: And a way into a kernel the arguments of so many calls.
CALLS = 64

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

    def bound(self, kernel: Any, launch: Launch, words: Sequence[int]) -> Callable[[], Any]:
        """What lets a kernel run, after those before it, each time it is called.

        Parameters
        ----------
        words : sequence of int
            For each parameter its 8 bytes as a signed integer, or if it has others, a NumPy scalar of its size.
        """

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

    def bound(self, kernel: Any, launch: Launch, words: Sequence[int]) -> Callable[[], Any]:
        return partial(self.launch, kernel, launch, words)

    def launch(self, kernel: Any, launch: Launch, words: Sequence[int]) -> None:
        """Note it."""
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


class Launched:
    """What runs a nest on a device; each variant is compiled when it is first needed."""

    def __init__(self, nest: LoopNest, host: Host) -> None:
        self.nest, self.host = nest, host
        self._kernels: dict[Variant, tuple[Sequence[Any], list[str]]] = {}
        self._known: dict[Any, _LaidOut] = {}

    def __call__(self, pointers: Sequence[int], numbers: Sequence[int], layout: Layout) -> None:
        # The memory is kept until the kernels are on their way: what is freed then is used after them.
        launches, _memory = self._laid_out(pointers, layout).bound(pointers, numbers)
        for launch in launches:
            launch()

    def entry(
        self,
        reads: dict[int, Any],
        writes: dict[int, Any],
        in_place: Sequence[bool],
        numbers: Sequence[tuple[int, np.dtype]],
        layout: Layout,
        memory: Memory,
    ) -> LaunchEntry:
        """The quickest way to run the nest on arrays that lie as these do."""
        here, there = ([memory.address(x) for x in arrays.values()] for arrays in (reads, writes))
        laid_out = self._laid_out([*here, *[0] * self.nest.flat_indices, *there], layout)
        return LaunchEntry(laid_out, reads, writes, in_place, numbers, memory)

    def _laid_out(self, pointers: Sequence[int], layout: Layout) -> _LaidOut:
        sizes, flat = layout
        key = tuple(sizes), tuple(flat), tuple(address % ALIGNED for address in pointers)
        found = self._known.get(key)
        if found is None:
            rank = self.nest.rank
            steps = [flat[place * rank : (place + 1) * rank] for place in range(len(self.nest.arrays))]
            geometry = geometry_of(self.nest, sizes, steps, pointers, self.host.device)
            variant = geometry.variant
            if variant not in self._kernels:
                kernels = self.host.load(cuda.source(self.nest, variant), cuda.kernel_names(self.nest, variant.split))
                self._kernels[variant] = kernels, cuda.parameter_names(self.nest, variant)
            if len(self._known) >= GEOMETRIES:
                self._known.clear()
            found = self._known[key] = _LaidOut(self.nest, self.host, geometry, layout, *self._kernels[variant])
        return found


class _LaidOut:
    """A nest's kernels for arrays of one layout.

    Attributes
    ----------
    counted : list of int
        What stands for the addresses of what is read and no array.
    """

    def __init__(
        self, nest: LoopNest, host: Host, geometry: Geometry, layout: Layout, kernels: Sequence[Any], names: list[str]
    ) -> None:
        sizes, flat = layout
        given: dict[str, Any] = {f"n{axis}": size for axis, size in enumerate(sizes)}
        given.update({f"s{place // nest.rank}_{place % nest.rank}": step for place, step in enumerate(flat)})
        along, chunks = nest.vector, geometry.variant.chunks
        accesses = (chunks(size) if axis == along else size for axis, size in enumerate(sizes))
        given.update((m, divisor(size)) for axis, size in enumerate(accesses) if (m := f"m{axis}") in names)
        given.update(part=geometry.part, parts=np.int32(geometry.parts), held=geometry.held)
        self._host, self._launches = host, list(zip(kernels, geometry.launches, strict=True))
        arrays, count = range(len(nest.arrays)), len(nest.reads)
        self._pointers = [names.index(f"a{place}") for place in arrays]
        self._numbers = [names.index(f"c{count + i}") for i in range(len(nest.numbers))]
        split = nest.reductions if geometry.variant.split else []
        self._scratch = [(names.index(f"q{r.value}"), geometry.entries * accumulator_dtype(r).itemsize) for r in split]
        open_ = {*self._pointers, *self._numbers, *(place for place, _ in self._scratch)}
        self._words = [0 if place in open_ else given[name] for place, name in enumerate(names)]
        self.flat_indices = [0] * nest.flat_indices

    def bound(self, pointers: Sequence[int], numbers: Sequence[int]) -> tuple[list[Callable[[], Any]], list[Any]]:
        """What launches each kernel on these addresses and numbers, and the memory that they need until they are."""
        words, memories = self._words.copy(), []
        for place, word in zip((*self._pointers, *self._numbers), (*pointers, *numbers), strict=True):
            words[place] = word
        for place, size in self._scratch:
            words[place], memory = self._host.scratch(size)
            memories.append(memory)
        return [self._host.bound(kernel, launch, words) for kernel, launch in self._launches], memories


class _Call(NamedTuple):
    """What a kernel was launched on.

    Attributes
    ----------
    arrays : list of (int, weakref.ref)
        Each with its place among the values.
    pointers : list of int
        Their addresses.
    numbers : list of (int, object)
        Each with its place.
    launches : list of callable
        What launches it on them again; none if it needs scratch memory for that.
    """

    arrays: list[tuple[int, Any]]
    pointers: list[int]
    numbers: list[tuple[int, Any]]
    launches: list[Callable[[], Any]]

    def is_of(self, values: list[Any]) -> bool:
        """Whether the arrays are these."""
        for i, array in self.arrays:  # noqa: SIM110 `all` takes twice the time
            if values[i] is not array():
                return False
        return True


class LaunchEntry:
    """A kernel, with arrays of one layout among the values of a program (`backends.cpu.entry.Entry`).

    Where a call's arrays and numbers are the very objects of one before, nothing is looked at again.

    Parameters
    ----------
    laid_out : _LaidOut
    reads, writes : dict
        Arrays of the layout, each under its place in the list of values.
    in_place : sequence of bool
        For each write and, within it, each read, whether the write may be at exactly the read's place.
    numbers : sequence of (int, numpy.dtype)
        The places of the numbers, and the dtypes that they are taken in.
    memory : Memory
        Of the arrays.
    """

    def __init__(
        self,
        laid_out: _LaidOut,
        reads: dict[int, Any],
        writes: dict[int, Any],
        in_place: Sequence[bool],
        numbers: Sequence[tuple[int, np.dtype]],
        memory: Memory,
    ) -> None:
        arrays = [*reads.values(), *writes.values()]
        self._laid_out, self._memory, self._numbers = laid_out, memory, numbers
        self._places, self._reads = [*reads, *writes], len(reads)
        self._lies = [(x.shape, x.strides, memory.address(x) % ALIGNED) for x in arrays]
        pairs = [(len(reads) + n, m) for n in range(len(writes)) for m in range(len(reads))]
        self._pairs = [(*pair, may) for pair, may in zip(pairs, in_place, strict=True)]
        self._spans = [_span(x) for x in arrays]
        #: Calls by the identities of their arrays, and the last.
        self._calls: dict[tuple[int, ...], _Call] = {}
        self._last: _Call | None = None

    def run(self, values: list[Any]) -> int:
        """0 if the arrays among these values lie as they must, and the kernel has been launched on them."""
        call = self._last
        if call is None or not call.is_of(values):
            call = self._calls.get(tuple([id(values[i]) for i in self._places]))
            if call is None or not call.is_of(values):
                found = self._looked_at(values)
                if isinstance(found, int):
                    return found
                call = found
        is_same = bool(call.launches)
        for i, number in call.numbers:
            is_same = is_same and values[i] is number
        if not is_same:
            return self._launched(call, values)
        self._last = call
        for launch in call.launches:
            launch()
        return 0

    def again(self, values: list[Any]) -> Callable[[], int]:
        """`run` on this list."""
        return partial(self.run, values)

    def _looked_at(self, values: list[Any]) -> _Call | int:
        """What is to be launched; 1 if an array does not lie as it must, 2 if what is read would be overwritten."""
        arrays: list[Any] = [values[i] for i in self._places]
        memory, addresses = self._memory, []
        for x, (shape, strides, residue) in zip(arrays, self._lies, strict=True):
            if not isinstance(x, memory.kind) or x.shape != shape or x.strides != strides:
                return 1
            address = memory.address(x)
            if address % ALIGNED != residue:
                return 1
            addresses.append(address)
        for write, read, may in self._pairs:
            there, here = addresses[write], addresses[read]
            (low, high), (start, end) = self._spans[write], self._spans[read]
            if not (may and there == here) and there + low < here + end and here + start < there + high:
                return 2
        pointers = [*addresses[: self._reads], *self._laid_out.flat_indices, *addresses[self._reads :]]
        return _Call([(i, ref(x)) for i, x in zip(self._places, arrays, strict=True)], pointers, [], [])

    def _launched(self, call: _Call, values: list[Any]) -> int:
        """`run`, with arguments that are made ready now, and kept."""
        words = [bits(values[i], dtype) for i, dtype in self._numbers]
        launches, memory = self._laid_out.bound(call.pointers, words)
        for launch in launches:
            launch()
        numbers = [(i, values[i]) for i, _ in self._numbers]
        self._last = _Call(call.arrays, call.pointers, numbers, [] if memory else launches)
        if len(self._calls) >= CALLS:
            self._calls.clear()
        self._calls[tuple([id(values[i]) for i in self._places])] = self._last
        return 0


def _span(array: Any) -> tuple[int, int]:
    """Where an array's bytes begin and end, from its first element."""
    ends = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
    low, high = (sum(pick(end, 0) for end in ends) for pick in (min, max))
    return low, high + array.itemsize
