"""Functions on a GPU as CUDA graphs: runs of kernels are captured once, and launched again on the same memory.

What cannot be captured (ops on the host, calls that wait for the device, what
CuPy computes by functions of its own) runs between the graphs. What looks
through indices is captured: it says in memory whether one is out of range, and
what writes to tensors waits until the host has seen that none is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import proxy

import numpy as np

from backends.execution.executor import CallStep, KernelStep
from backends.execution.memory_planner import COMBINATIONS, planned, slots_of
from backends.gpu.cupy_device import InFlight, is_want_of_memory
from backends.gpu.matmul import Workspace
from optree.arrays import is_portable, putting_off
from optree.cache import Cache
from optree.compile.aliasing import alias_sets
from optree.compile.program import Program
from optree.compile.shapes import shapes_told
from optree.compile.steps import Note, Step, run_steps, taker
from optree.errors import BackendError

#: The default stream that each thread has of its own is called the same in all of them (`cudaStreamPerThread`).
PER_THREAD = 2

#: A capture that comes to nothing is tried again so often: the run in between has loaded what a capture cannot load.
RETRIES = 1

#: Where memory was wanting, after 1, 2, 4 calls and so on, and at most so many.
LONGEST_PAUSE = 1024


@dataclass
class Counts:
    """How often a run of steps was captured, and a graph launched."""

    captures: int = 0
    replays: int = 0


class Part(NamedTuple):
    """Steps that follow each other: all of them in one graph, or none.

    Attributes
    ----------
    steps : list of CallStep and KernelStep
    is_graph : bool
    waits : bool
        Whether they may only run when all that was to be looked through before them is known to be right.
    ready : list of Step
        The steps as the loop runs them.
    """

    steps: list[CallStep | KernelStep]
    is_graph: bool
    waits: bool = False
    ready: Sequence[Step] = ()


class Graphs:
    """A function's steps, for one caller at a time.

    The first call with arguments of some sizes runs step by step, which compiles
    the kernels; the second captures each run of kernels, and later ones launch the
    graphs. What a graph reads and writes stays at its address: tensors and
    intermediate values do, outputs are copied out, and an argument that comes at
    another address than before is copied into memory of the function's own from
    then on; the call that finds that out runs step by step, too.

    Attributes
    ----------
    parts : list of Part
    refusal : str
        Why CUDA or CuPy has refused to capture steps; those run uncaptured from then on.
    """

    def __init__(
        self,
        in_flight: InFlight,
        program: Program,
        steps: list[CallStep | KernelStep],
        arguments: Sequence[int],
        open: list[Any],
        on_device: Callable[[Any], Any],
        counts: Counts,
    ) -> None:
        self.cupy, self.in_flight = in_flight.cupy, in_flight
        self.program, self.on_device, self.counts = program, on_device, counts
        self.steps, self.slots, self.given, self.open = steps, slots_of(program, steps), arguments, open
        #: Steps that look at sizes alone: they run once for each combination of them.
        self.constant = [step for step in steps if isinstance(step, CallStep) and step.is_fixed]
        for step in steps:
            step.persistent = set(step.makes) & self.slots.keys()
        parts = _parts(program, [step for step in steps if step not in self.constant])
        self.parts, self.refusal = [part._replace(ready=[step.step() for step in part.steps]) for part in parts], ""
        self._failures = 0
        origins = alias_sets(program, range(len(program.leaves)))
        needed = {i for part in self.parts if part.is_graph for step in part.steps for i in step.takes}
        needed = needed.union(*(origins[i] for i in needed))
        made = {i for part in self.parts if part.is_graph for step in part.steps for i in step.gives}
        #: The arguments that graphs read, and what other steps make for them in memory that is nobody's yet.
        self.arguments = [i for i in arguments if i in needed]
        there = made.union(self.slots, range(len(program.leaves)), *(step.gives for step in self.constant))
        self.settled = {i for i in needed - there if origins[i] == {i}}
        #: Views that other steps make for graphs: a graph is right only while they stay where they were.
        self.views = {i for i in needed - made if origins[i] != {i}}
        own = made.union(self.settled, self.arguments, *(step.gives for step in self.constant))
        self.outputs = [(i, bool(origins[i] & own)) for i in program.outputs]
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.workspace = Workspace(partial(_empty, self.cupy, self.stream))
        #: The stream that was the last one, and, if that was a thread's own, the event of what it was asked for.
        self._last: Any = None
        self._done: Any = None
        # The graphs of one that is dropped may be still running.
        current = self.cupy.cuda.get_current_stream
        self._memories = Cache("memory of graphs", COMBINATIONS, lambda gone: in_flight.keep(current().record(), gone))

    @property
    def remark(self) -> str:
        """The remark that `debugprint` prints."""
        graphs = [part for part in self.parts if part.is_graph]
        others = [step for part in self.parts if not part.is_graph for step in part.steps]
        calls = [step for step in others if isinstance(step, CallStep)]
        named = [_named(step.op) for step in calls if not _is_capturable(step) or _is_checked(step)]
        apart = ", ".join(dict.fromkeys(named))
        if self.refusal:
            return f"not captured: {self.refusal}"
        if not graphs:
            return f"not captured as a CUDA graph: {apart or 'nothing runs as a kernel'}"
        steps = sum(len(part.steps) for part in graphs)
        many = "a CUDA graph" if len(graphs) == 1 else f"{len(graphs)} CUDA graphs"
        return f"captured as {many} of {steps} steps" + (f"; uncaptured between them: {apart}" if apart else "")

    def run(self, values: list[Any], note: Note) -> list[Any]:
        """The outputs, for the leaves' values."""
        stream = self.cupy.cuda.get_current_stream()
        self._wait(stream)
        try:
            return self._run(stream, values, note)
        finally:
            if stream.ptr == PER_THREAD:  # which only this thread can ask how far it is
                self._done = stream.record()

    def _wait(self, stream: Any) -> None:
        """Let a stream wait for what there is still to do on another one: the memory is the same on every stream."""
        if self._done is not None:
            stream.wait_event(self._done)
            self._done = None
        elif self._last is not None and self._last is not stream and self._last != stream:
            stream.wait_event(self._last.record())
        self._last = stream

    def _run(self, stream: Any, values: list[Any], note: Note) -> list[Any]:
        sizes = tuple([getattr(values[i], "shape", None) for i in self.given])
        memory = self._memories.get(sizes)
        if memory is None:
            memory = self._memories[sizes] = _Memory(self, values + self.open)
        registers = memory.run(self, values, note)
        return [self.copy(registers[i]) if is_own else registers[i] for i, is_own in self.outputs]

    def failed(self, error: Exception) -> None:
        """Note why a capture has come to nothing."""
        self._failures += 1
        if self._failures > RETRIES:
            self.refusal = f"{type(error).__name__}: {error}"

    def copy(self, array: Any) -> Any:
        """A copy of an array, in C order."""
        return self.write(self.cupy.ndarray(array.shape, array.dtype), array)

    @staticmethod
    def write(target: Any, array: Any) -> Any:
        """Copy an array into one in C order, and give that."""
        if array.shape == target.shape and array.flags.c_contiguous:  # what assignment takes a microsecond to find out
            target.data.copy_from_device_async(array.data, array.nbytes)
        else:
            target[...] = array
        return target


class _Captured(NamedTuple):
    """A captured part.

    Attributes
    ----------
    graph : cupy.cuda.Graph
    views : dict
        Where views lay when it was captured.
    wrong : list
        The bools on the device by which it tells of wrong indices.
    held : list
        The memory that it works on, which nobody else gets while it lives.
    """

    graph: Any
    views: dict[int, Any]
    wrong: list[Any]
    held: list[Any]


class _Memory:
    """Memory for arguments of one combination of sizes, and the graphs on it."""

    def __init__(self, of: Graphs, registers: list[Any]) -> None:
        self.of = proxy(of)  # so that the memory goes with the function at once
        self._malloc = of.cupy.get_default_memory_pool().malloc
        #: The values that stay from call to call: those of leaves, planned memory, what is known by sizes alone.
        self._fixed = registers.copy()
        for i in of.given:
            self._fixed[i] = None
        for i, array in planned(of.program, of.steps, of.slots, registers, self._empty).items():
            self._fixed[i] = array
        for step in of.constant:
            (value,) = run_steps([step.step()], [], taker([step.output]), _unnoted, registers.copy())
            self._fixed[step.output] = of.on_device(value)
        #: Where graphs find what others make, arguments among it, and which of that is the function's own memory.
        self._found: dict[int, Any] = {}
        self._own: set[int] = set()
        #: For how many calls nothing is captured, because memory was wanting; and for how many the last time.
        self._pause = self._paused = 0
        self._renew()

    def _renew(self) -> None:
        """Forget the graphs; the next call runs uncaptured, and the one after it captures them anew."""
        self._graphs: dict[int, _Captured] = {}
        #: What a call begins with: what is fixed, and what graphs make.
        self._registers = self._fixed.copy()
        self._is_new = True

    def run(self, of: Graphs, values: list[Any], note: Note) -> list[Any]:
        """Run all steps on the leaves' values; all values."""
        for i in of.arguments:
            if values[i] is not self._found.get(i):
                self._find(i, of.on_device(values[i]))
        registers = self._begun(of, values)
        told: list[tuple[Any, np.ndarray]] = []
        uses_graphs = not self._is_new and not of.refusal
        self._pause = max(0, self._pause - 1)
        for number, part in enumerate(of.parts):
            captured = self._graph(number, part, registers) if part.is_graph and uses_graphs else None
            # What is captured after it would look for its values where they lie in this call alone.
            uses_graphs = uses_graphs and (captured is not None or not part.is_graph)
            if told and (part.waits or captured is None):
                self._look(told, values, note)
                told = []
            if captured is None:
                self._uncaptured(part, registers, note)
            else:
                captured.graph.launch()
                of.counts.replays += 1
                told += [of.in_flight.sent(wrong) for wrong in captured.wrong]
        if told:
            self._look(told, values, note)
        self._is_new = False
        return registers

    def _begun(self, of: Graphs, values: list[Any]) -> list[Any]:
        """The registers at the begin of a call: resident values, and the arguments."""
        registers = self._registers.copy()
        for i in of.given:
            registers[i] = self._found.get(i, values[i])
        return registers

    def _look(self, told: Sequence[tuple[Any, np.ndarray]], values: list[Any], note: Note) -> None:
        """Wait for what graphs say of indices; where one is out of range, raise what running step by step raises."""
        for event, wrong in told:
            event.synchronize()
            if wrong:
                registers = self._begun(self.of, values)
                for part in self.of.parts:
                    if not part.waits:
                        self._uncaptured(part, registers, note)
                raise BackendError("an index was out of range, and no longer is: something else writes there meanwhile")

    def _uncaptured(self, part: Part, registers: list[Any], note: Note) -> None:
        """Run steps uncaptured."""
        with self.of.workspace.shared():
            run_steps(self._settling(part, registers), [], None, note, registers)

    def _settling(self, part: Part, registers: list[Any]) -> Iterator[Step]:
        """The steps of a part; what each makes for graphs goes to where they find it."""
        for step, ready in zip(part.steps, part.ready, strict=True):
            settled = self.of.settled.intersection(step.gives)
            if not settled:
                yield ready
                continue
            yield ready._replace(dead=())
            for i in settled:
                self._settle(i, registers)
            for i in step.dead:
                registers[i] = None

    def _graph(self, number: int, part: Part, registers: list[Any]) -> _Captured | None:
        """Steps as a graph, captured if they are not yet; None if they are refused, or memory was wanting lately."""
        captured = self._graphs.get(number)
        if captured is None:
            if self._pause:
                return None
            captured = self._capture(part, registers)
            if captured is None:
                return None
            self._graphs[number] = captured
        elif captured.views and any(_place(registers[i]) != where for i, where in captured.views.items()):
            self.of.refusal = "a view that a graph reads lies elsewhere from call to call"
            return None
        return captured

    def _capture(self, part: Part, registers: list[Any]) -> _Captured | None:
        """Steps as a graph; None if that comes to nothing. Nothing of them has run then."""
        of, found, graph = self.of, registers.copy(), None
        held: list[Any] = []
        errors: list[Exception] = []
        views = {i: _place(registers[i]) for i in of.views if i in _taken(part)}
        allocated = of.cupy.cuda.using_allocator(partial(self._hold, held))
        with of.stream, allocated, putting_off() as wrong, of.workspace.shared(), _collected(errors):
            of.stream.begin_capture()
            try:
                with _collected(errors):
                    run_steps(part.ready, [], None, _unnoted, found)
            finally:
                graph = of.stream.end_capture()
        if errors:  # the first is the reason of the others
            self._put_off(errors[0])
            return None
        of.counts.captures += 1
        for i, x in enumerate(found):
            if x is not None and x is not registers[i]:
                self._registers[i] = registers[i] = x
        return _Captured(graph, views, wrong, held)

    def _put_off(self, error: Exception) -> None:
        """Capture later, or not at all, after an error."""
        if is_want_of_memory(self.of.cupy.cuda, error):
            self._pause = self._paused = min(2 * self._paused or 1, LONGEST_PAUSE)
        else:
            self.of.failed(error)

    def _hold(self, held: list[Any], size: int) -> Any:
        """Memory for a graph."""
        memory = self._malloc(size)
        held.append(memory)
        return memory

    def _empty(self, shape: Any, dtype: Any) -> Any:
        return _empty(self.of.cupy, self.of.stream, shape, dtype)

    def _find(self, i: int, value: Any) -> None:
        """Let graphs find an argument: it stays where it was first, or else is copied from then on."""
        if i not in self._found:
            self._found[i] = value
        elif i not in self._own:
            if _place(value) == _place(self._found[i]):
                return
            self._own.add(i)
            self._found[i] = self._empty(value.shape, value.dtype)
            self._renew()  # kernels may depend on how addresses are aligned, and none is compiled in a capture
        if i in self._own:
            self.of.write(self._found[i], value)

    def _settle(self, i: int, registers: list[Any]) -> None:
        """Copy what a step has made to where graphs find it."""
        value = self.of.on_device(registers[i])
        if i not in self._found:
            self._found[i] = self._empty(value.shape, value.dtype)
        registers[i] = self.of.write(self._found[i], value)


def _unnoted(error: Exception, index: int, roots: Any) -> None:
    """Leave an error as it is."""


@contextmanager
def _collected(errors: list[Exception]) -> Iterator[None]:
    """Within it, the first exception ends the block, and goes into a list."""
    try:
        yield
    except Exception as error:
        errors.append(error)


def _empty(cupy: Any, stream: Any, shape: Any, dtype: Any) -> Any:
    """An array in the function's own memory."""
    # On the capturing stream, so that the pool gives the memory back to nothing but this function's graphs.
    with stream, cupy.cuda.using_allocator(cupy.get_default_memory_pool().malloc):
        return cupy.empty(shape, dtype)


def _parts(program: Program, steps: list[CallStep | KernelStep]) -> list[Part]:
    """The steps in order, as few parts as can be; a graph has a kernel or a product.

    After the last step that looks through indices, and before the first that writes to tensors, a part ends: what is
    between keeps the device busy while the host is told what was found. What looks through indices after something has
    been written, a generator's state among it, is not captured: where one is wrong, what a graph has run runs again.
    """
    told = shapes_told(program)
    parts: list[Part] = []
    writes = next((n for n, step in enumerate(steps) if _writes(step)), len(steps))
    checking = [n for n, step in enumerate(steps[:writes]) if _is_checked(step)]
    ends = (checking[-1] + 1, writes) if checking else ()
    for n, step in enumerate(steps):
        fits = _is_capturable(step) and all(told[i] for i in step.takes) and not (n > writes and _is_checked(step))
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


def _computes(step: KernelStep | CallStep) -> bool:
    return isinstance(step, KernelStep) or step.implementation.is_routine or _is_checked(step)


def _is_capturable(step: KernelStep | CallStep) -> bool:
    return isinstance(step, KernelStep) or step.implementation.is_captured


def _is_checked(step: KernelStep | CallStep) -> bool:
    return isinstance(step, CallStep) and step.op.checks_indices and _is_capturable(step)


def _writes(step: KernelStep | CallStep) -> bool:
    """Whether a step writes to tensors."""
    if isinstance(step, KernelStep):
        return bool(step.assigned)
    return step.target is not None or bool(step.op.destroy_map)


def _taken(part: Part) -> set[int]:
    """The values that a part takes from others."""
    made = {i for step in part.steps for i in step.gives}
    return {i for step in part.steps for i in step.takes} - made


def _place(array: Any) -> tuple[int, tuple[int, ...]]:
    """Where an array lies, and how."""
    return array.data.ptr, array.strides


def _named(op: Any) -> str:
    return str(op.name) if is_portable(op) else f"{op.name} runs on the host"
