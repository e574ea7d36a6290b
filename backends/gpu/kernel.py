"""Loop nests compiled and launched on a CUDA device, through any host that loads kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Protocol
from weakref import ref

import numpy as np

from backends.execution.memory import Memory
from backends.execution.printer_common import accumulator_dtype
from backends.execution.specialize import COLLECTED, CheckedCall, Layout, Operands, Run
from backends.gpu.codegen import printer as cuda
from backends.gpu.codegen.variant import Variant, kernel_names, static_bytes
from backends.gpu.joined import Part
from backends.gpu.launch_config import DeviceLimits, Launch, LaunchConfig, configure
from optree.cache import Cache
from optree.compile.loopnest import LoopNest, Statement
from optree.compile.pipeline import Options
from optree.dtypes import FLOAT32, rounded, wide_dtype
from optree.records import NamedTuple

#: Lowering for kernels in CUDA.
CUDA = Options(further=True, windows=True)

#: Maximum entries of a nest's cache of variants.
VARIANTS = 256

#: Maximum entries of the cache of a kernel's calls.
CALLS = 64

#: The alignment up to which the addresses of arrays are part of a layout.
ALIGNMENT = 256


class Host(Protocol):
    """The interface that compiles, loads and launches kernels."""

    device: DeviceLimits

    def load(self, source: str, names: Sequence[str]) -> Sequence[Any]:
        """The kernels of a source, by their names."""

    def bound(self, kernel: object, launch: Launch, words: Sequence[int]) -> Callable[[], Any]:
        """A function that launches a kernel in stream order.

        `words`: for each parameter 8 bytes as a signed integer, of which the first are its own.
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

    def bound(self, kernel: object, launch: Launch, words: Sequence[int]) -> Callable[[], Any]:
        return partial(self.launch, kernel, launch, words)

    def launch(self, kernel: object, launch: Launch, words: Sequence[int]) -> None:
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


def rounded_numbers(nest: LoopNest) -> LoopNest:
    """The nest with each Python float in the dtype in which all statements use it, if that is float32 or narrower.

    The host rounds it then, instead of each thread.
    """
    loops: dict[int, set[np.dtype]] = {}
    for statement in nest.statements:
        if isinstance(statement, Statement):
            for value, dtype in zip(statement.arguments, statement.loop, strict=True):
                loops.setdefault(value, set()).add(dtype)
    numbers = list(nest.numbers)
    for i, dtype in enumerate(nest.numbers):
        used = loops.get(len(nest.reads) + i, set())
        if dtype.kind == "f" and len(used) == 1 and wide_dtype(*used) == FLOAT32:
            numbers[i] = used.pop()
    return nest._replace(numbers=tuple(numbers))


def _rounded(word: int, dtype: np.dtype) -> int:
    """The word of a float of 8 bytes as that of a float32, rounded to a dtype."""
    with np.errstate(over="ignore"):
        return int(rounded(np.int64(word).view(np.float64), dtype).astype(FLOAT32).view(np.int32))


class CudaNest:
    """A nest on a device, whose variants are compiled when they are first needed."""

    def __init__(self, nest: LoopNest, host: Host) -> None:
        self.nest, self.host = rounded_numbers(nest), host
        self._printed = Cache("variants of CUDA kernels", VARIANTS)

    def call(self, operands: Operands, memory: Memory) -> Run:
        """See `backends.execution.specialize.CompiledNest`."""
        addresses = [memory.address(x) for x in (*operands.reads.values(), *operands.writes.values())]
        specialized = self._specialized(self.nest.pointers(addresses), operands.layout)
        return LaunchCall(operands, memory, specialized)

    def run(self, pointers: Sequence[int], numbers: Sequence[int], layout: Layout) -> None:
        """Launch it on arrays at some addresses, or collect its launches."""
        self._specialized(pointers, layout).launched(pointers, numbers)

    def parts(self, pointers: Sequence[int], layout: Layout) -> list[Part]:
        """Its launches on arrays at these addresses, without arguments."""
        return self._specialized(pointers, layout).parts()

    def _specialized(self, pointers: Sequence[int], layout: Layout) -> _Specialized:
        sizes, flat = layout
        rank = self.nest.rank
        strides = [flat[index * rank : (index + 1) * rank] for index in range(len(self.nest.arrays))]
        config = configure(self.nest, sizes, strides, pointers, self.host.device)
        printed = self._printed.get(config.variant)
        if printed is None:
            printed = self._printed[config.variant] = _Printed(self.nest, config.variant)
        return _Specialized(self.nest, self.host, config, layout, printed)


def launched_by(host: Host) -> Callable[[LoopNest], Callable[..., None]]:
    """A function that compiles a nest for a host, and gives the function that launches it (`CudaNest.run`)."""
    return lambda nest: CudaNest(nest, host).run


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
    """A nest's kernels, specialised to one layout; they are loaded when they are first bound."""

    def __init__(self, nest: LoopNest, host: Host, config: LaunchConfig, layout: Layout, printed: _Printed) -> None:
        (sizes, flat), names = layout, printed.parameters
        given: dict[str, Any] = {f"n{axis}": size for axis, size in enumerate(sizes)}
        given.update({f"s{index // nest.rank}_{index % nest.rank}": stride for index, stride in enumerate(flat)})
        given.update(zip(nest.bounds, flat[nest.rank * len(nest.arrays) :], strict=True))
        along, chunks = nest.vector, config.variant.chunks
        accesses = (chunks(size) if axis == along else size for axis, size in enumerate(sizes))
        given.update((m, divisor(size)) for axis, size in enumerate(accesses) if (m := f"m{axis}") in names)
        given.update(part=config.part, parts=config.parts, held=config.cached_accesses)
        self.printed, self.nest, self._host, self._launches = printed, nest, host, config.launches
        arrays, count = range(len(nest.arrays)), len(nest.reads)
        self._pointers = [names.index(f"a{index}") for index in arrays]
        self._numbers = [names.index(f"c{count + i}") for i in range(len(nest.numbers))]
        self._rounded = [
            (names.index(f"c{i}"), d) for i, d in enumerate(nest.numbers, count) if wide_dtype(d) == FLOAT32
        ]
        split = nest.reductions if config.variant.split else []
        self._scratch = [(names.index(f"q{r.value}"), config.entries * accumulator_dtype(r).itemsize) for r in split]
        unbound = {*self._pointers, *self._numbers, *(index for index, _ in self._scratch)}
        strides = [flat[index * nest.rank : (index + 1) * nest.rank] for index in arrays]
        #: The bytes that it reads and writes, and those of its static shared memory, as of `Part`.
        self._bytes = sum(
            prod(size for size, stride in zip(sizes, own, strict=True) if stride) * dtype.itemsize
            for own, dtype in zip(strides, nest.arrays, strict=True)
        )
        self._static = static_bytes(nest, config.variant.team, config.variant.threads)
        self._words = [0 if index in unbound else given[name] for index, name in enumerate(names)]

    def parts(self, words: Sequence[int] | None = None) -> list[Part]:
        """The launches of its kernels on some arguments."""
        given = self._words if words is None else words

        def bound(number: int) -> Callable[[], Any]:
            return self._host.bound(self.printed.loaded(self._host)[number], self._launches[number], given)

        source, launches = self.printed.source, enumerate(self._launches)
        return [Part(source, launch, given, self._bytes, self._static, partial(bound, n)) for n, launch in launches]

    def launched(self, pointers: Sequence[int], numbers: Sequence[int]) -> tuple[list[Any], list[Any]]:
        """Launch its kernels, or collect their launches; these, and the scratch memory that they use."""
        words, memories = self._words.copy(), []
        for index, word in zip((*self._pointers, *self._numbers), (*pointers, *numbers), strict=True):
            words[index] = word
        for index, dtype in self._rounded:
            words[index] = _rounded(words[index], dtype)
        for index, size in self._scratch:
            words[index], memory = self._host.scratch(size)
            memories.append(memory)
        launches: list[Any] = self.parts(words)
        if COLLECTED.launches is not None:
            COLLECTED.launches.append((launches, memories))
            return launches, memories
        launches = [part.bound() for part in launches]
        # The scratch memory outlives the launches: memory freed then is reused in stream order.
        for launch in launches:
            launch()
        return launches, memories


class _BoundCall(NamedTuple):
    """The arguments of a call, and its launches."""

    #: Each with its index in the list of values.
    arrays: list[tuple[int, Any]]
    #: The addresses of the arrays.
    pointers: list[int]
    #: Each with its index in the list of values.
    numbers: list[tuple[int, Any]]
    #: The bound launches, or the parts that were collected; none if they need new scratch memory each time.
    launches: list[Any]

    def matches(self, values: list[Any]) -> bool:
        """Whether the arrays among these values are the same objects."""
        for i, array in self.arrays:  # noqa: SIM110 `all` takes twice the time
            if values[i] is not array():
                return False
        return True


class LaunchCall(CheckedCall):
    """The launches of a nest on arrays of one layout.

    Where a call's arrays and numbers are the same objects as in an earlier call, its arguments are reused unchecked.

    `operands`, `memory`: as of `CheckedCall`.
    """

    def __init__(self, operands: Operands, memory: Memory, specialized: _Specialized) -> None:
        super().__init__(operands, memory)
        self._specialized = specialized
        #: Calls by the identities of their arrays, and the last.
        self._calls = Cache("launches of kernels", CALLS)
        self._last: _BoundCall | None = None

    def __call__(self, values: list[Any]) -> int:
        call = self._last
        if call is None or not call.matches(values):
            call = self._calls.get(tuple([id(values[i]) for i in self.indices]))
            if call is None or not call.matches(values):
                addresses = self.addresses(values)
                if isinstance(addresses, int):
                    return addresses
                arrays = [(i, ref(values[i])) for i in self.indices]
                call = _BoundCall(arrays, self._specialized.nest.pointers(addresses), [], [])
        launches, collected = call.launches, COLLECTED.launches
        is_same = bool(launches) and isinstance(launches[0], Part) is (collected is not None)
        for i, number in call.numbers:
            is_same = is_same and values[i] is number
        if not is_same:
            return self._launched(call, values)
        self._last = call
        if collected is not None:
            collected.append((launches, []))
            return 0
        for launch in launches:
            launch()
        return 0

    def _launched(self, call: _BoundCall, values: list[Any]) -> int:
        """Launch, with arguments that are bound now and cached."""
        launches, memory = self._specialized.launched(call.pointers, self.words(values))
        numbers = [(i, values[i]) for i, _ in self.numbers]
        self._last = _BoundCall(call.arrays, call.pointers, numbers, [] if memory else launches)
        self._calls[tuple([id(values[i]) for i in self.indices])] = self._last
        return 0
