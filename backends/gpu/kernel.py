"""Loop nests compiled and launched on a CUDA device, through any host that loads kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import ref

import numpy as np

from backends.execution.dialect import accumulator_dtype
from backends.execution.memory import Memory
from backends.execution.specialize import Layout, as_int64
from backends.gpu.codegen import printer as cuda
from backends.gpu.codegen.variant import Variant, kernel_names
from backends.gpu.launch_config import DeviceLimits, Launch, LaunchConfig, configure
from optree.arrays import byte_span
from optree.cache import Cache
from optree.compile.loopnest import LoopNest
from optree.records import NamedTuple

#: Maximum entries of a nest's caches of layouts and variants.
LAYOUTS = 256

#: Maximum entries of the cache of a kernel's calls.
CALLS = 64

#: The alignment up to which the addresses of arrays are part of a layout.
ALIGNMENT = 256


class Host(Protocol):
    """The interface that compiles, loads and launches kernels."""

    device: DeviceLimits

    def load(self, source: str, names: Sequence[str]) -> Sequence[Any]:
        """The kernels of a source, by their names."""

    def bound(self, kernel: Any, launch: Launch, words: Sequence[int]) -> Callable[[], Any]:
        """A function that launches a kernel in stream order.

        Parameters
        ----------
        words : sequence of int
            For each parameter its 8 bytes as a signed integer, or if it has others, a NumPy scalar of its size.
        """

    def scratch(self, size: int) -> tuple[int, Any]:
        """The address of aligned scratch memory of a size in bytes, and the object that owns it."""


class RecordingHost:
    """A host that records sources and launches, and runs nothing."""

    def __init__(self, device: DeviceLimits) -> None:
        self.device = device
        self.sources: list[str] = []
        self.launches: list[Launch] = []

    def load(self, source: str, names: Sequence[str]) -> Sequence[Any]:
        self.sources.append(source)
        return names

    def bound(self, kernel: Any, launch: Launch, words: Sequence[int]) -> Callable[[], Any]:
        return partial(self.launch, kernel, launch, words)

    def launch(self, kernel: Any, launch: Launch, words: Sequence[int]) -> None:
        """Record a launch."""
        self.launches.append(launch)

    def scratch(self, size: int) -> tuple[int, Any]:
        return 0, None


def divisor(number: int) -> int:
    """The multiplier for division by an invariant number (`cuda.QUOTIENT`): a factor of 32 bits, and above it a shift.

    The factor is 2^(31 + shift) / number, rounded up, with the least shift for which 2^shift is not below the number:
    the quotient of numbers below 2^31 is exact.
    """
    shift = (number - 1).bit_length()
    return -(-(1 << 31 + shift) // number) | shift << 32


class CudaNest:
    """A nest on a device, whose variants are compiled when they are first needed."""

    def __init__(self, nest: LoopNest, host: Host) -> None:
        self.nest, self.host = nest, host
        self._printed = Cache("variants of CUDA kernels", LAYOUTS)
        self._layouts = Cache("launch configurations", LAYOUTS)

    def __call__(self, pointers: Sequence[int], numbers: Sequence[int], layout: Layout) -> None:
        # The scratch memory outlives the launches: memory freed then is reused in stream order.
        launches, _memory = self._specialized(pointers, layout).bound(pointers, numbers)
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
        bases: Mapping[int, tuple[int, Any]],
    ) -> LaunchEntry | None:
        """The fast call for arrays of the same layout as these; None for views that are not among the values."""
        if bases:  # the CPU backend's steps alone have such views
            return None
        inputs, outputs = ([memory.address(x) for x in arrays.values()] for arrays in (reads, writes))
        specialized = self._specialized([*inputs, *[0] * self.nest.flat_indices, *outputs], layout)
        return LaunchEntry(specialized, reads, writes, in_place, numbers, memory)

    def source(self, pointers: Sequence[int], layout: Layout) -> str | None:
        """The source for arrays at these addresses; None if its kernels are loaded."""
        printed = self._specialized(pointers, layout).printed
        return printed.source if printed.kernels is None else None

    def _specialized(self, pointers: Sequence[int], layout: Layout) -> _Specialized:
        sizes, flat = layout
        key = tuple(sizes), tuple(flat), tuple(address % ALIGNMENT for address in pointers)
        found = self._layouts.get(key)
        if found is None:
            rank = self.nest.rank
            strides = [flat[index * rank : (index + 1) * rank] for index in range(len(self.nest.arrays))]
            config = configure(self.nest, sizes, strides, pointers, self.host.device)
            variant = config.variant
            printed = self._printed.get(variant)
            if printed is None:
                printed = self._printed[variant] = _Printed(self.nest, variant)
            found = self._layouts[key] = _Specialized(self.nest, self.host, config, layout, printed)
        return found


class _Printed:
    """The source of a nest's variant, and once they are loaded, its kernels."""

    def __init__(self, nest: LoopNest, variant: Variant) -> None:
        self.source, self.names = cuda.source(nest, variant), kernel_names(nest, variant)
        self.parameters = cuda.parameter_names(nest, variant)
        self.kernels: Sequence[Any] | None = None

    def loaded(self, host: Host) -> Sequence[Any]:
        """The kernels."""
        if self.kernels is None:
            self.kernels = host.load(self.source, self.names)
        return self.kernels


class _Specialized:
    """A nest's kernels, specialised to one layout; they are loaded when they are first bound.

    Attributes
    ----------
    printed : _Printed
    flat_indices : list of int
        Null pointers, the addresses of flat indices.
    """

    def __init__(self, nest: LoopNest, host: Host, config: LaunchConfig, layout: Layout, printed: _Printed) -> None:
        (sizes, flat), names = layout, printed.parameters
        given: dict[str, Any] = {f"n{axis}": size for axis, size in enumerate(sizes)}
        given.update({f"s{index // nest.rank}_{index % nest.rank}": stride for index, stride in enumerate(flat)})
        along, chunks = nest.vector, config.variant.chunks
        accesses = (chunks(size) if axis == along else size for axis, size in enumerate(sizes))
        given.update((m, divisor(size)) for axis, size in enumerate(accesses) if (m := f"m{axis}") in names)
        given.update(part=config.part, parts=np.int32(config.parts), held=config.cached_accesses)
        self.printed, self._host, self._launches = printed, host, config.launches
        arrays, count = range(len(nest.arrays)), len(nest.reads)
        self._pointers = [names.index(f"a{index}") for index in arrays]
        self._numbers = [names.index(f"c{count + i}") for i in range(len(nest.numbers))]
        split = nest.reductions if config.variant.split else []
        self._scratch = [(names.index(f"q{r.value}"), config.entries * accumulator_dtype(r).itemsize) for r in split]
        unbound = {*self._pointers, *self._numbers, *(index for index, _ in self._scratch)}
        self._words = [0 if index in unbound else given[name] for index, name in enumerate(names)]
        self.flat_indices = [0] * nest.flat_indices

    def bound(self, pointers: Sequence[int], numbers: Sequence[int]) -> tuple[list[Callable[[], Any]], list[Any]]:
        """A function for each kernel that launches it on these arguments, and the scratch memory that they use."""
        words, memories = self._words.copy(), []
        for index, word in zip((*self._pointers, *self._numbers), (*pointers, *numbers), strict=True):
            words[index] = word
        for index, size in self._scratch:
            words[index], memory = self._host.scratch(size)
            memories.append(memory)
        kernels = zip(self.printed.loaded(self._host), self._launches, strict=True)
        return [self._host.bound(kernel, launch, words) for kernel, launch in kernels], memories


class _BoundCall(NamedTuple):
    """The arguments of a call, and its launches.

    Attributes
    ----------
    arrays : list of (int, weakref.ref)
        Each with its index in the list of values.
    pointers : list of int
        The addresses of the arrays.
    numbers : list of (int, object)
        Each with its index in the list of values.
    launches : list of callable
        The bound launches; none if they need new scratch memory each time.
    """

    arrays: list[tuple[int, Any]]
    pointers: list[int]
    numbers: list[tuple[int, Any]]
    launches: list[Callable[[], Any]]

    def matches(self, values: list[Any]) -> bool:
        """Whether the arrays among these values are the same objects."""
        for i, array in self.arrays:  # noqa: SIM110 `all` takes twice the time
            if values[i] is not array():
                return False
        return True


class LaunchEntry:
    """The launches of a nest on arrays of one layout (`backends.execution.executor.FastCall`).

    Where a call's arrays and numbers are the same objects as in an earlier call, its arguments are reused unchecked.

    Parameters
    ----------
    specialized : _Specialized
    reads, writes, in_place, numbers, memory
        As of `backends.execution.specialize.Runner.entry`.
    """

    def __init__(
        self,
        specialized: _Specialized,
        reads: dict[int, Any],
        writes: dict[int, Any],
        in_place: Sequence[bool],
        numbers: Sequence[tuple[int, np.dtype]],
        memory: Memory,
    ) -> None:
        arrays = [*reads.values(), *writes.values()]
        self._specialized, self._memory, self._numbers = specialized, memory, numbers
        self._indices, self._reads = [*reads, *writes], len(reads)
        self._layouts = [(x.shape, x.strides, memory.address(x) % ALIGNMENT) for x in arrays]
        pairs = [(len(reads) + n, m) for n in range(len(writes)) for m in range(len(reads))]
        self._pairs = [(*pair, may_alias) for pair, may_alias in zip(pairs, in_place, strict=True)]
        self._spans = [byte_span(x) for x in arrays]
        #: Calls by the identities of their arrays, and the last.
        self._calls = Cache("calls of kernels", CALLS)
        self._last: _BoundCall | None = None

    def run(self, values: list[Any]) -> int:
        """Launch on the arrays among these values; the status of `backends.execution.executor.FastCall.run`."""
        call = self._last
        if call is None or not call.matches(values):
            call = self._calls.get(tuple([id(values[i]) for i in self._indices]))
            if call is None or not call.matches(values):
                found = self._checked(values)
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

    def _checked(self, values: list[Any]) -> _BoundCall | int:
        """The call on the arrays among these values, or a status other than 0."""
        arrays: list[Any] = [values[i] for i in self._indices]
        memory, addresses = self._memory, []
        for x, (shape, strides, residue) in zip(arrays, self._layouts, strict=True):
            if not isinstance(x, memory.kind) or x.shape != shape or x.strides != strides:
                return 1
            address = memory.address(x)
            if address % ALIGNMENT != residue:
                return 1
            addresses.append(address)
        for write, read, may_alias in self._pairs:
            written, read_from = addresses[write], addresses[read]
            (low, high), (start, end) = self._spans[write], self._spans[read]
            if (
                not (may_alias and written == read_from)
                and written + low < read_from + end
                and read_from + start < written + high
            ):
                return 2
        pointers = [*addresses[: self._reads], *self._specialized.flat_indices, *addresses[self._reads :]]
        return _BoundCall([(i, ref(x)) for i, x in zip(self._indices, arrays, strict=True)], pointers, [], [])

    def _launched(self, call: _BoundCall, values: list[Any]) -> int:
        """`run`, with launches that are bound now and cached."""
        words = [as_int64(values[i], dtype) for i, dtype in self._numbers]
        launches, memory = self._specialized.bound(call.pointers, words)
        for launch in launches:
            launch()
        numbers = [(i, values[i]) for i, _ in self._numbers]
        self._last = _BoundCall(call.arrays, call.pointers, numbers, [] if memory else launches)
        self._calls[tuple([id(values[i]) for i in self._indices])] = self._last
        return 0
