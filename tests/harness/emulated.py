"""The CUDA kernels of assignments, run on the CPU in the place of C's, or only collected."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from backends import gen_backend
from backends.cpu.backend import When
from backends.execution.memory import HOST, Memory
from backends.execution.specialize import FusedKernel
from backends.gpu.codegen.signatures import parameter_sizes
from backends.gpu.kernel import ALIGNMENT, CudaNest, RecordingHost
from backends.gpu.launch_config import DEVICES, DeviceLimits, Launch
from harness import cuda
from harness.arrays import comparable
from optree.compile.loopnest import LoopNest
from optree.compile.pipeline import Options


class Collector(RecordingHost):
    """A host that notes sources, launches and arrays, and runs nothing."""

    def __init__(self, device: DeviceLimits = DEVICES["sm_90"]) -> None:
        super().__init__(device)
        #: The arrays that kernels are run on, by their addresses: sanitizers look at where they end.
        self.arrays: WeakValueDictionary[int, np.ndarray] = WeakValueDictionary()
        self.memory = Memory(np.ndarray, HOST.array, HOST.empty, self.address, alignment=ALIGNMENT)

    def address(self, array: np.ndarray) -> int:
        """Where an array lies, which is noted."""
        found = HOST.address(array)
        self.arrays[found] = array
        return found

    def compiled(self, nest: LoopNest) -> Any:
        return CudaNest(nest, self)

    def backend(self, **options: Any) -> Any:
        """A CPU backend whose kernels this host runs, all that there are."""
        be = gen_backend("cpu", rng_seed=0, jit=False, **options)
        executor = partial(FusedKernel, compile=self.compiled, memory=self.memory)
        be.when = When(executor, Options(windows=True), 0)
        return be


class Emulator(Collector):
    """A host that runs kernels on the CPU.

    Parameters
    ----------
    sources : sequence of str
        What it will be asked for, to be compiled together; others are compiled one by one.
    order : str
        In which order threads and blocks have their turns.
    sanitize : str, optional
        ``'address'`` or ``'thread'``.

    Attributes
    ----------
    noted : list of str, optional
        While it is a list, the sources of launches are added to it, and no kernel runs.
    """

    def __init__(
        self,
        sources: Sequence[str] = (),
        order: str = "forward",
        seed: int = 0,
        device: DeviceLimits = DEVICES["sm_90"],
        sanitize: str | None = None,
    ) -> None:
        super().__init__(device)
        self.order, self.seed, self.sanitize = order, seed, sanitize
        self.modules: dict[str, cuda.Module] = {}
        self.noted: list[str] | None = None
        self.compile(sources)

    def compile(self, sources: Iterable[str]) -> None:
        """Compile sources together, but for those that are compiled."""
        new = [source for source in dict.fromkeys(sources) if source not in self.modules]
        self.modules.update(zip(new, loaded(new, self.sanitize), strict=True))

    def load(self, source: str, names: Sequence[str]) -> Sequence[Any]:
        super().load(source, names)
        return [(source, name) for name in names]

    def launch(self, kernel: Any, launch: Launch, words: Sequence[int]) -> None:
        super().launch(kernel, launch, words)
        source, name = kernel
        if self.noted is not None:
            self.noted.append(source)
            return
        if source not in self.modules:
            self.compile([source])
        order = self.order, self.seed
        launch_at(self.modules[source], name, launch.grid, launch.block, words, launch.shared, *order, self.arrays)

    def scratch(self, size: int) -> tuple[int, Any]:
        memory = np.full(size + 256, 0xA5, np.uint8)
        start = -memory.ctypes.data % 256
        memory = memory[start : start + size]
        return self.address(memory), memory


def loaded(sources: Sequence[str], sanitize: str | None = None) -> list[cuda.Module]:
    """Sources compiled for the CPU, where the compiler's sizes of all parameters are those that launchers know."""
    modules = cuda.load(sources, sanitize)
    for source, module in zip(sources, modules, strict=True):
        found = parameter_sizes(source)
        for name, kernel in module.kernels.items():
            assert found[name] == tuple(8 if to.kind == "p" else to.size for to in kernel.arguments), source
    return modules


def launch_at(
    module: cuda.Module,
    name: str,
    grid: Any,
    block: Any,
    words: Sequence[int],
    shared: int = 0,
    order: str = "forward",
    seed: int = 0,
    arrays: Mapping[int, np.ndarray] | None = None,
    check: Callable[[int], None] | None = None,
) -> None:
    """Run a kernel as a driver does: its arguments are bytes, of which each parameter takes as many as it has.

    Parameters
    ----------
    words : sequence of int
        8 bytes for each, as a signed integer.
    arrays : mapping, optional
        The arrays at some addresses, so that sanitizers know where they end.
    check : callable, optional
        Is called for each address.
    """
    given: list[Any] = []
    for word, to in zip(words, module.kernels[name].arguments, strict=True):
        if to.kind == "p":
            if check is not None:
                check(word)
            given.append(_at(word, to.pointee, arrays or {}))
        else:
            given.append(np.frombuffer(int(word).to_bytes(8, "little", signed=True), f"<{to.kind}{to.size}")[0])
    module.launch(name, grid, block, given, shared, order, seed)


def _at(address: int, itemsize: int, arrays: Mapping[int, np.ndarray]) -> np.ndarray:
    """The array that lies at an address; where none is known, one of one element."""
    array = arrays.get(address)
    if array is not None:
        return array if array.itemsize == itemsize else array.view(f"V{itemsize}")
    return np.frombuffer((ctypes.c_char * itemsize).from_address(address), f"V{itemsize}")


@cache
def module_of(source: str) -> cuda.Module:
    """The kernels of a source, compiled for the CPU."""
    return loaded([source])[0]


class Trial(NamedTuple):
    """A computation on a backend, and the check of its results.

    Attributes
    ----------
    run : callable
        From a backend to arrays.
    check : callable
        Raises unless the arrays are right.
    """

    run: Callable[[Any], Sequence[np.ndarray]]
    check: Callable[[Sequence[np.ndarray]], None]


#: What kernels have whose threads share memory or registers.
COOPERATION = ("__shared__", "__shfl", "__sync", "__threadfence", "atomic")


class Trials:
    """Trials whose kernels are compiled together.

    Parameters
    ----------
    trials : dict of str to Trial
    device : DeviceLimits
    options
        The backend's.

    Attributes
    ----------
    launches : list of Launch
        All so far, in order.
    """

    def __init__(self, trials: dict[str, Trial], device: DeviceLimits = DEVICES["sm_90"], **options: Any) -> None:
        self.trials = trials
        self._found = dict[str, list[str]]()
        self.emulator = Emulator(device=device)
        self.launches = self.emulator.launches
        self.be = self.emulator.backend(**options)

    def sources(self, names: Iterable[str] | None = None) -> list[str]:
        """The sources of some trials, or of all, each once."""
        found = map(self._sources_of, self.trials if names is None else names)
        return list(dict.fromkeys(chain.from_iterable(found)))

    def _sources_of(self, name: str) -> list[str]:
        """The sources that a trial launches, found when they are first asked for."""
        if name not in self._found:
            self.emulator.noted = launched = list[str]()
            try:
                self.trials[name].run(self.be)  # on memory that nobody has written: what comes of it means nothing
            finally:
                self.emulator.noted = None
            self._found[name] = launched
        return self._found[name]

    def check(self, name: str, others: Iterable[str]) -> None:
        """Run a trial in every order of threads, which all give the same bits.

        Where threads share nothing, one order does. A trial's kernels are compiled together with the other trials'.
        """
        needed = self.sources(each for each in self.trials if each == name or each in others)
        self.emulator.compile(needed)
        count = len(self.emulator.modules)
        trial = self.trials[name]
        is_shared = any(word in source for source in self._sources_of(name) for word in COOPERATION)
        found = []
        for order in cuda.ORDERS if is_shared else ("shuffled",):
            self.emulator.order, self.emulator.seed = order, 7
            found.append(trial.run(self.be))
        trial.check(found[0])
        for got in found[1:]:
            for one, other in zip(got, found[0], strict=True):
                np.testing.assert_array_equal(comparable(one), comparable(other))
        assert len(self.emulator.modules) == count
