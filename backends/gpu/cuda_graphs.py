"""Functions on a GPU as CUDA graphs: sequences of steps are captured once and replayed on the same memory.

Steps that cannot be captured (ops on the host, calls that synchronize, CuPy's composite functions) run between the
graphs. Steps that check indices are captured: they write a flag to memory where one is out of range, and steps that
write to tensors run only after the host has read the flags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any
from weakref import proxy

import numpy as np

from backends.execution.executor import CallStep, KernelStep, Step
from backends.execution.memory_planner import COMBINATIONS, lifetimes_of, planned
from backends.gpu.arrays import DeviceArray
from backends.gpu.capture import CHECKED, is_among
from backends.gpu.cupy_device import FAULTS, InFlight, InOrder, is_want_of_memory, status_of
from backends.gpu.workspace import Workspace
from optree.arrays import deferring_checks, is_portable
from optree.cache import Cache
from optree.compile.aliasing import alias_sets
from optree.compile.program import Note, Program, RegisterCall, run_steps, shapes_told, taker
from optree.errors import BackendError
from optree.op.traits import BeginningOperator
from optree.records import NamedTuple

#: The maximum repetitions of a failed capture: the uncaptured run in between loads modules, which a capture cannot.
RETRIES = 1

#: After out-of-memory errors a capture is repeated after 1, 2, 4, ... calls, at most this number.
LONGEST_PAUSE = 1024


@dataclass
class Counts:
    """The number of captures, and of replays of graphs."""

    captures: int = 0
    replays: int = 0


class Part(NamedTuple):
    """Consecutive steps, captured as one graph or run uncaptured."""

    steps: list[Step]
    is_graph: bool
    #: Whether they run only after the host has checked the indices of all earlier steps.
    waits: bool = False
    #: The steps as `run_steps` takes them.
    ready: Sequence[RegisterCall] = ()


class Graphs:
    """The steps of a function, captured as CUDA graphs; for one caller at a time.

    The first call with given argument sizes runs step by step, which compiles the kernels. The second captures the
    graphs, and later calls replay them. Arrays that a graph reads and writes must not change their addresses. Tensors
    and planned memory do not, and outputs are copied out. An argument whose address changes is copied into a buffer of
    the function from then on; that call also runs step by step.

    `parts`: list of Part.
    `refusal`: the error of a refused capture; steps run uncaptured from then on.
    """

    def __init__(
        self,
        in_flight: InFlight,
        program: Program,
        steps: list[Step],
        arguments: Sequence[int],
        open: list[Any],
        on_device: Callable[[Any], Any],
        device: Any,
    ) -> None:
        self.cupy, self.in_flight = in_flight.cupy, in_flight
        self.program, self.on_device, self.device, self.counts = program, on_device, device, device.graphs
        self.steps, self.lifetimes, self.given, self.open = steps, lifetimes_of(program, steps), arguments, open
        #: Steps that depend on sizes alone: they run once for each combination of these.
        self.constant = [step for step in steps if isinstance(step, CallStep) and step.is_fixed]
        for member in (member for step in steps for member in step.members):
            member.persistent = set(member.plannable) & self.lifetimes.keys()
        parts = _parts(program, [step for step in steps if step not in self.constant])
        self.parts, self.refusal = [part._replace(ready=[step.runnable() for step in part.steps]) for part in parts], ""
        self._failures = 0
        origins = alias_sets(program, range(len(program.leaves)))
        needed = {i for part in self.parts if part.is_graph for step in part.steps for i in step.uses}
        needed = needed.union(*(origins[i] for i in needed))
        made = {i for part in self.parts if part.is_graph for step in part.steps for i in step.defines}
        #: The arguments that graphs read, and the values of uncaptured steps that are copied to a buffer for them.
        self.arguments = [i for i in arguments if i in needed]
        resident = made.union(self.lifetimes, range(len(program.leaves)), *(step.defines for step in self.constant))
        first = len(program.leaves)
        # What has begun is not there yet, and cannot be copied.
        begun = {
            first + n
            for n, instruction in enumerate(program.instructions)
            if isinstance(instruction.op, BeginningOperator)
        }
        self.buffered = {i for i in needed - resident - begun if origins[i] == {i}}
        #: Views that uncaptured steps make for graphs: a graph is valid only while their addresses stay the same.
        #: No step makes one of which the shape alone is used.
        stepped = {i for step in steps for i in step.defines}
        self.views = {i for i in (needed - made) & stepped if origins[i] != {i}}
        own = made.union(self.buffered, self.arguments, *(step.defines for step in self.constant))
        self.outputs = [(i, bool(origins[i] & own)) for i in program.outputs]
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.workspace = Workspace(partial(_empty, self.cupy, self.stream))
        self.order, self.draws = InOrder(self.cupy), any(step.op.draws for step in _calls(steps))
        # The graphs of evicted memory may still be running.
        current = self.cupy.cuda.get_current_stream
        self._memories = Cache("memory of graphs", COMBINATIONS, lambda gone: in_flight.keep(current().record(), gone))

    @property
    def remark(self) -> str:
        """The text that `debugprint` prints."""
        graphs = [part for part in self.parts if part.is_graph]
        others = [step for part in self.parts if not part.is_graph for step in part.steps]
        named = [_named(step) for step in _calls(others) if not _is_capturable(step) or _is_checked(step)]
        uncaptured = ", ".join(dict.fromkeys(named))
        if self.refusal:
            return f"not captured: {self.refusal}"
        if not graphs:
            return f"not captured as a CUDA graph: {uncaptured or 'nothing runs as a kernel'}"
        steps = sum(len(part.steps) for part in graphs)
        many = "a CUDA graph" if len(graphs) == 1 else f"{len(graphs)} CUDA graphs"
        between = f"; uncaptured between them: {uncaptured}" if uncaptured else ""
        return f"captured as {many} of {steps} steps{between}"

    def run(self, values: list[Any], note: Note) -> list[Any]:
        """The outputs, for the leaves' values."""
        with self.order, self.device.draws if self.draws else nullcontext():
            return self._run(values, note)

    def _run(self, values: list[Any], note: Note) -> list[Any]:
        sizes = tuple([getattr(values[i], "shape", None) for i in self.given])
        memory = self._memories.get(sizes)
        if memory is None:
            memory = self._memories[sizes] = _Memory(self, values + self.open)
        return memory.run(self, values, note)

    def failed(self, error: Exception) -> None:
        """Record a failed capture."""
        self._failures += 1
        if self._failures > RETRIES:
            self.refusal = f"{type(error).__name__}: {error}"

    def copy(self, array: DeviceArray, target: DeviceArray | None = None) -> Any:
        """A copy of an array in C order, in an array if one is given."""
        return self.write(self.cupy.ndarray(array.shape, array.dtype) if target is None else target, array)

    @staticmethod
    def write(target: DeviceArray, array: DeviceArray) -> Any:
        """Copy an array into one in C order, and return that."""
        if array.shape == target.shape and array.flags.c_contiguous:  # an assignment takes a microsecond more
            target.data.copy_from_device_async(array.data, array.nbytes)
        else:
            target[...] = array
        return target


class _Captured(NamedTuple):
    """A captured part."""

    #: A `cupy.cuda.Graph`.
    graph: Any
    #: The addresses and strides of views at its capture.
    views: dict[int, Any]
    #: The bools on the device, in one array, that it sets where an index is out of range.
    flags: DeviceArray | None
    #: References to its memory, which must not be reused, and its kernels, which must not be unloaded.
    held: list[Any]


class _Memory:
    """Memory for arguments of one combination of sizes, and the graphs on it."""

    def __init__(self, of: Graphs, registers: list[Any]) -> None:
        self.of = proxy(of)  # a weak reference: the memory is freed with the function
        self._malloc = of.cupy.get_default_memory_pool().malloc
        #: The registers that are the same in each call: leaves, planned memory, and values that depend on sizes alone.
        self._fixed = registers.copy()
        for i in of.given:
            self._fixed[i] = None
        for i, array in planned(of.program, of.lifetimes, registers, self._empty).items():
            self._fixed[i] = array
        for step in of.constant:
            (value,) = run_steps([step.runnable()], [], taker([step.output]), _unnoted, registers.copy())
            self._fixed[step.output] = of.on_device(value)
        #: The buffers in which graphs read the values of uncaptured steps, by value and output.
        self._copies: dict[tuple[int, int], Any] = {}
        #: The arrays in which graphs read arguments, and those of them that are buffers.
        self._sources: dict[int, Any] = {}
        self._buffers: set[int] = set()
        #: The calls until the next capture after an out-of-memory error, and their number the last time.
        self._pause = self._paused = 0
        self._discard()

    def _discard(self) -> None:
        """Discard the graphs; the next call runs uncaptured, and the one after it captures them again."""
        self._graphs: dict[int, _Captured] = {}
        #: The registers at the start of a call: the fixed ones, and the values of graphs.
        self._registers = self._fixed.copy()
        self._is_new = True

    def run(self, of: Graphs, values: list[Any], note: Note) -> list[Any]:
        """Run all steps on the values of the leaves; the outputs."""
        for i in of.arguments:
            if values[i] is not self._sources.get(i):
                self._set_argument(i, of.on_device(values[i]))
        registers = self._initial(of, values)
        if self._is_new:
            of.device.compile_ahead(of.program, [step for part in of.parts for step in part.steps], registers.copy())
        flags: list[tuple[Any, np.ndarray]] = []
        uses_graphs = not self._is_new and not of.refusal
        self._pause = max(0, self._pause - 1)
        copies: list[Any] | None = None
        for number, part in enumerate(of.parts):
            captured = self._graph(number, part, registers) if part.is_graph and uses_graphs else None
            # A graph captured after it would read its values at the addresses of this call.
            uses_graphs = uses_graphs and (captured is not None or not part.is_graph)
            if flags and (part.waits or captured is None):
                self._check(flags, values, note)
                flags = []
            if part.waits and copies is None:
                copies = self._reserved(registers, number)
            if captured is None:
                self._uncaptured(part, registers, note)
            else:
                captured.graph.launch()
                of.counts.replays += 1
                if captured.flags is not None:
                    flags.append(of.in_flight.sent(captured.flags))
        if flags:
            self._check(flags, values, note)
        self._is_new = False
        found = zip(of.outputs, copies or [None] * len(of.outputs), strict=True)
        return [of.copy(registers[i], copy) if is_own else registers[i] for (i, is_own), copy in found]

    def _reserved(self, registers: list[Any], number: int) -> list[Any]:
        """The arrays for outputs that are copied, after the code of later parts is loaded: a part writes to tensors.

        So a call that runs out of memory leaves tensors as they were. None stands for outputs without an array yet.
        """
        of = self.of
        if self._is_new:
            later = [step for part in of.parts[number:] for step in part.steps]
            of.device.load_ahead(of.program, later, registers.copy())
        known = [registers[i] if is_own else None for i, is_own in of.outputs]
        return [None if x is None else of.cupy.ndarray(x.shape, x.dtype) for x in known]

    def _initial(self, of: Graphs, values: list[Any]) -> list[Any]:
        """The registers at the start of a call: resident values, and the arguments."""
        registers = self._registers.copy()
        for i in of.given:
            registers[i] = self._sources.get(i, values[i])
        return registers

    def _check(self, flags: Sequence[tuple[Any, np.ndarray]], values: list[Any], note: Note) -> None:
        """Wait for the flags of graphs; if one is set, run step by step to raise its error."""
        for event, wrong in flags:
            event.synchronize()
            if wrong.any():
                registers = self._initial(self.of, values)
                for part in self.of.parts:
                    if not part.waits:
                        self._uncaptured(part, registers, note)
                raise BackendError("an index was out of range, and no longer is: something else writes there meanwhile")

    def _uncaptured(self, part: Part, registers: list[Any], note: Note) -> None:
        """Run steps uncaptured."""
        with self.of.workspace.shared():
            run_steps(self._buffering(part, registers), [], None, note, registers)

    def _buffering(self, part: Part, registers: list[Any]) -> Iterator[RegisterCall]:
        """The steps of a part; after each, its values that graphs read are copied to their buffers."""
        for step, ready in zip(part.steps, part.ready, strict=True):
            buffered = self.of.buffered.intersection(step.defines)
            if not buffered:
                yield ready
                continue
            yield ready._replace(dead=())
            for i in buffered:
                self._buffer(i, registers)
            for i in step.dead:
                registers[i] = None

    def _graph(self, number: int, part: Part, registers: list[Any]) -> _Captured | None:
        """The graph of a part, captured if necessary; None if captures fail or are postponed for lack of memory."""
        captured = self._graphs.get(number)
        if captured is None:
            if self._pause:
                return None
            captured = self._capture(part, registers)
            if captured is None:
                return None
            self._graphs[number] = captured
        elif captured.views and any(_location(registers[i]) != known for i, known in captured.views.items()):
            self.of.refusal = "a view that a graph reads changes its address from call to call"
            return None
        return captured

    def _capture(self, part: Part, registers: list[Any]) -> _Captured | None:
        """Capture a part; None if that fails. The steps do not run."""
        of, found, graph = self.of, registers.copy(), None
        held: list[Any] = []
        errors: list[Exception] = []
        views = {i: _location(registers[i]) for i in of.views if i in _used(part)}
        allocated = of.cupy.cuda.using_allocator(partial(self._hold, held))
        kernels = nullcontext() if of.device.kernels is None else of.device.kernels.holding(held)
        with of.stream, allocated, kernels, deferring_checks() as flags, of.workspace.shared(held), _collected(errors):
            of.stream.begin_capture()
            try:
                with _collected(errors):
                    run_steps(part.ready, [], None, _unnoted, found)
                    joined = self._joined(flags)
            finally:
                graph = of.stream.end_capture()
        if errors:  # the first is the cause of the others
            self._postpone(errors[0])
            return None
        of.counts.captures += 1
        for i, x in enumerate(found):
            if x is not None and x is not registers[i]:
                self._registers[i] = registers[i] = x
        return _Captured(graph, views, joined, held)

    def _joined(self, flags: Sequence[Any]) -> Any:
        """Flags in one array, for one copy to the host; None if there are none. No kernel is loaded in a capture."""
        if len(flags) < 2:
            return flags[0] if flags else None
        joined = self.of.cupy.empty(len(flags), np.bool_)
        for n, flag in enumerate(flags):
            self.of.write(joined[n : n + 1], flag.reshape(1))
        return joined

    def _postpone(self, error: Exception) -> None:
        """Postpone the capture after an error, or give up."""
        if status_of(self.of.cupy.cuda, error) in FAULTS:
            raise error
        if is_want_of_memory(self.of.cupy.cuda, error):
            self._pause = self._paused = min(2 * self._paused or 1, LONGEST_PAUSE)
        else:
            self.of.failed(error)

    def _hold(self, held: list[Any], size: int) -> Any:
        """Allocate memory for a graph."""
        memory = self._malloc(size)
        held.append(memory)
        return memory

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return _empty(self.of.cupy, self.of.stream, shape, dtype)

    def _set_argument(self, i: int, value: Any) -> None:
        """Set the array in which graphs read an argument: the first call's, or a buffer once its address changes."""
        if i not in self._sources:
            self._sources[i] = value
        elif i not in self._buffers:
            if _location(value) == _location(self._sources[i]):
                return
            self._buffers.add(i)
            self._sources[i] = self._empty(value.shape, value.dtype)
            self._discard()  # kernels may depend on the alignment, and none is compiled in a capture
        if i in self._buffers:
            self.of.write(self._sources[i], value)

    def _buffer(self, i: int, registers: list[Any]) -> None:
        """Copy the value of an uncaptured step, or each of its several, to the buffer in which graphs read it."""
        value = registers[i]
        if isinstance(value, tuple):  # a loop's are None where nothing uses them
            found = [None if x is None else self._buffered((i, n), x) for n, x in enumerate(value)]
            registers[i] = tuple(found)
        else:
            registers[i] = self._buffered((i, 0), value)

    def _buffered(self, key: tuple[int, int], value: Any) -> Any:
        """A copy of an array in the buffer of a key."""
        array = self.of.on_device(value)
        if key not in self._copies:
            self._copies[key] = self._empty(array.shape, array.dtype)
        return self.of.write(self._copies[key], array)


def _unnoted(error: Exception, index: int, roots: object) -> None:
    """Add no note."""


@contextmanager
def _collected(errors: list[Exception]) -> Iterator[None]:
    """A block whose exception is appended to a list."""
    try:
        yield
    except Exception as error:
        errors.append(error)


def _empty(cupy: ModuleType, stream: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """An array in memory that only this function uses."""
    # On the capturing stream, so that the pool reuses the memory for this function's graphs alone.
    with stream, cupy.cuda.using_allocator(cupy.get_default_memory_pool().malloc):
        return cupy.empty(shape, dtype)


def _parts(program: Program, steps: list[Step]) -> list[Part]:
    """The steps in order, in the fewest parts; a graph has a kernel or a library routine.

    A part ends after the last step that checks indices, and another before the first that writes to tensors: the steps
    in between keep the device busy while the host waits for the flags. A step that checks indices after a write, also
    to a generator's state, is not captured: where an index is out of range, the steps of earlier graphs run again.
    """
    is_known = shapes_told(program)
    parts: list[Part] = []
    writes = next((n for n, step in enumerate(steps) if _writes(step)), len(steps))
    checking = [n for n, step in enumerate(steps[:writes]) if _is_checked(step)]
    ends = (checking[-1] + 1, writes) if checking else ()
    for n, step in enumerate(steps):
        fits = _is_capturable(step) and all(is_known[i] for i in step.uses) and not (n > writes and _is_checked(step))
        if not parts or parts[-1].is_graph is not fits or n in ends:
            parts.append(Part([], fits, n >= writes))
        parts[-1].steps.append(step)
    found: list[Part] = []
    for part in parts:
        is_graph = part.is_graph and any(_computes(step) for step in part.steps)
        if found and not is_graph and not found[-1].is_graph and found[-1].waits is part.waits:
            found[-1].steps.extend(part.steps)
        else:
            found.append(part._replace(is_graph=is_graph))
    return found


def _calls(steps: Iterable[Step]) -> Iterator[CallStep]:
    return (step for step in steps if isinstance(step, CallStep))


def _computes(step: Step) -> bool:
    return not isinstance(step, CallStep) or step.implementation.is_routine or _is_checked(step)


def _is_capturable(step: Step) -> bool:
    return not isinstance(step, CallStep) or step.implementation.is_captured


def is_capturable(step: Step) -> bool:
    """Whether a graph can capture a step that another step runs: it tells of no wrong indices."""
    return _is_capturable(step) and not _is_checked(step)


def _is_checked(step: Step) -> bool:
    return isinstance(step, CallStep) and is_among(step.op, CHECKED) and _is_capturable(step)


def _writes(step: Step) -> bool:
    """Whether a step writes to tensors."""
    if isinstance(step, CallStep):
        return step.target is not None or bool(step.op.destroy_map)
    return any(isinstance(each, KernelStep) and bool(each.assigned) for each in step.members)


def _used(part: Part) -> set[int]:
    """The values of other parts that a part uses."""
    made = {i for step in part.steps for i in step.defines}
    return {i for step in part.steps for i in step.uses} - made


def _location(array: DeviceArray) -> tuple[int, tuple[int, ...]]:
    """The address and strides of an array."""
    return array.data.ptr, array.strides


def _named(step: CallStep) -> str:
    is_here = is_portable(step.op) or step.implementation.is_routine
    name = step.op.name or type(step.op).__name__
    return name if is_here else f"{name} runs on the host"
