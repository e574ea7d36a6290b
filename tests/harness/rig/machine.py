"""Simulated CUDA devices: memory, and work that runs late, in any order that streams, events and graphs allow.

Nothing runs when it is asked for. Work runs when the host waits for some of it, and then in an order drawn by a
seed: what the work waited for depends on, and of the rest whatever the draw takes. Memory is filled with NaNs when it
is given. When it is taken back, its addresses become inaccessible, and are never given again.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import random
import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from harness.device import PIECE
from harness.rig.entry import Refused

#: The bytes of new memory, a NaN in every dtype, signalling in float64; and of memory that a pool has taken back.
NEW, FREED = 0x7FF4, 0xFFF2

#: Handles of the legacy and the per-thread default stream.
LEGACY, PER_THREAD = (0, 1), 2

#: As long as more works than this are still to be done, the host waits when it asks for one: queues are not endless.
QUEUE = 1024

PAGE = mmap.PAGESIZE

#: The addresses of a region, and flags of `mmap` and `madvise` that Python does not name.
_REACH, _NO_RESERVE, _NOT_NEEDED = 1 << 40, 0x4000, 4


class Work:
    """Work of a device: what it does, what it waits for, and what waits for it."""

    __slots__ = ("before", "done", "next", "run", "waits", "what")

    def __init__(self, run: Callable[[], None] | None, what: str, after: Iterable[Work]) -> None:
        self.run, self.what, self.done = run, what, False
        self.next: list[Work] = []
        self.before = [each for each in dict.fromkeys(after) if not each.done]
        self.waits = len(self.before)
        for each in self.before:
            each.next.append(self)


@dataclass
class Node:
    """A node of a graph: what it does, and the numbers of the nodes before it."""

    run: Callable[[], None]
    what: str
    after: frozenset[int]


@dataclass(eq=False)
class Capture:
    """A stream's work, recorded as a graph."""

    origin: int
    mode: int
    thread: int
    nodes: list[Node] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    invalid: bool = False


@dataclass(eq=False)
class Stream:
    """An order of work."""

    device: int
    blocking: bool
    last: Work | None = None
    waits: list[Work] = field(default_factory=list)
    capture: Capture | None = None
    heads: frozenset[int] = frozenset()


@dataclass(eq=False)
class Event:
    """A place in a stream's work."""

    device: int
    timed: bool
    work: Work | None = None
    captured: tuple[Capture, frozenset[int]] | None = None
    recorded: float = 0.0


@dataclass(eq=False)
class Graph:
    """A graph; as an executable one, with the work that its last launch ends with."""

    device: int
    nodes: list[Node]
    last: Work | None = None


class Region:
    """Addresses for the memory of one device, or of the host's pinned memory, of at most a size in bytes."""

    def __init__(self, size: int) -> None:
        libc = self._libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.mprotect.argtypes = libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.size, self.used = size, 0
        self.start = libc.mmap(None, _REACH, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE, -1, 0)
        self._next = self.start
        #: What is allocated: the bytes at each address.
        self.live: dict[int, int] = {}
        self._starts: list[int] = []

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.start + _REACH

    def allocate(self, size: int) -> int:
        """New memory, full of NaNs, that ends where nothing can be accessed."""
        size = -(-size // PIECE) * PIECE
        if self.used + size > self.size:
            raise Refused(2)
        span = -(-size // PAGE) * PAGE
        if self._libc.mprotect(self._next, span, mmap.PROT_READ | mmap.PROT_WRITE):
            raise Refused(2, "the system maps no more pieces of memory")
        address = self._next + span - size
        self._next += span + PAGE
        self.live[address] = size
        insort(self._starts, address)
        self.used += size
        fill(address, size, NEW)
        return address

    def free(self, address: int) -> None:
        """Take memory back: nothing is there from now on."""
        size = self.live.pop(address)
        self._starts.remove(address)
        self.used -= size
        first = address // PAGE * PAGE
        self._libc.madvise(first, address + size - first, _NOT_NEEDED)
        self._libc.mprotect(first, address + size - first, 0)

    def holds(self, address: int, size: int = 1) -> bool:
        """Whether some bytes lie within one allocation."""
        place = bisect_right(self._starts, address) - 1
        return place >= 0 and address + size <= self._starts[place] + self.live[self._starts[place]]


def fill(address: int, size: int, pattern: int) -> None:
    """Fill memory with 2 bytes again and again."""
    np.frombuffer((ctypes.c_char * size).from_address(address), np.uint16, size // 2)[:] = pattern


class Device:
    """A device: its memory, its streams, and the error that it fails with from a kernel's fault on."""

    def __init__(self, number: int, memory: int) -> None:
        self.number, self.memory = number, Region(memory)
        self.legacy = Stream(number, True)
        self.streams: list[Stream] = []
        self.of_threads: dict[int, Stream] = {}
        self.detached: list[Work] = []
        self.broken = 0


class Alone:
    """A lock, within which no garbage is collected: CuPy's would come back here in the midst of a change."""

    def __init__(self) -> None:
        self._lock, self._depth, self._collects = threading.RLock(), 0, False

    def __enter__(self) -> None:
        self._lock.acquire()
        if not self._depth:
            self._collects = gc.isenabled()
            gc.disable()
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth and self._collects:
            gc.enable()
        self._lock.release()


class Machine:
    """Devices, and the work that they have still to do.

    Attributes
    ----------
    devices : list of Device
    pinned : Region
        The host's memory that devices copy from and to by themselves.
    handles : dict
        What there is, by the handles that were given out; none is given out twice.
    faults : list of str
        What kernels did that none may, and what CUDA leaves undefined.
    random : random.Random
        What the order of work is drawn by.
    is_on : bool
        Whether there is a driver.
    has_ended : bool
        Whether Python ends, and nothing is done any more.
    """

    def __init__(self, devices: int = 2, memory: int = 1 << 29) -> None:
        self.devices = [Device(number, memory) for number in range(devices)]
        self.pinned = Region(1 << 32)
        self.lock = Alone()
        self.is_on = self.has_ended = False
        self.handles: dict[int, Any] = {}
        self.faults: list[str] = []
        self.captures: list[Capture] = []
        self.ready: list[Work] = []
        self._open = 0
        self.random = random.Random(0)
        self._local = threading.local()
        self._numbers = count(0x5A0000, 16)
        self._clock = count(1)

    # Handles, threads

    def handle(self, made: Any) -> int:
        """A new handle."""
        number = next(self._numbers)
        self.handles[number] = made
        return number

    def found(self, handle: int, kind: type, status: int = 400) -> Any:
        """The object of a handle."""
        made = self.handles.get(handle)
        if not isinstance(made, kind):
            raise Refused(status, f"{handle:#x} is no {kind.__name__}, or one that was destroyed")
        return made

    @property
    def current(self) -> int:
        """The number of this thread's current device."""
        return getattr(self._local, "device", 0)

    @current.setter
    def current(self, number: int) -> None:
        self._local.device = number

    @property
    def context(self) -> int | None:
        """The device whose context this thread has; None before its first call of the runtime."""
        return getattr(self._local, "context", None)

    @context.setter
    def context(self, number: int | None) -> None:
        self._local.context = number

    def push(self, number: int) -> None:
        """Make a device's context this thread's, above the one that it has."""
        self._local.below = [*getattr(self._local, "below", ()), self.context]
        self.current = self.context = number

    def pop(self) -> int:
        """Give this thread the context below its own again; the device of its own."""
        number = self.context
        if number is None:
            raise Refused(201, "a thread without a context gives one up")
        *self._local.below, self.context = getattr(self._local, "below", ()) or [None]
        self.current = number if self.context is None else self.context
        return number

    @property
    def device(self) -> Device:
        """This thread's current device."""
        return self.devices[self.current]

    def device_at(self, address: int) -> Device | None:
        """The device whose memory an address is in; None for the host's."""
        return next((each for each in self.devices if address in each.memory), None)

    def stream(self, handle: int) -> Stream:
        """The stream of a handle, the default ones' among them."""
        device = self.device
        if handle in LEGACY:
            return device.legacy
        if handle == PER_THREAD:
            return device.of_threads.setdefault(threading.get_ident(), Stream(device.number, True))
        stream: Stream = self.found(handle, Stream)
        return stream

    # Work

    def submit(self, stream: Stream, run: Callable[[], None] | None, what: str) -> Work | None:
        """Let a stream do something, some time; where it is captured, as a node of its graph."""
        if stream.capture is not None:
            self.check_valid(stream.capture)
            stream.capture.nodes.append(Node(run or _nothing, what, stream.heads))
            stream.heads = frozenset([len(stream.capture.nodes) - 1])
            return None
        return self._put(stream, self._guarded(stream.device, run), what, self.before(stream))

    def _put(self, stream: Stream, run: Callable[[], None] | None, what: str, after: Iterable[Work]) -> Work:
        work = stream.last = Work(run, what, after)
        self._open += 1
        if not work.waits:
            self.ready.append(work)
        while self._open > QUEUE:
            self._run(self.ready[self.random.randrange(len(self.ready))])
        return work

    def before(self, stream: Stream) -> list[Work]:
        """The dependencies of a stream's next work; the legacy stream and blocking streams wait for each other."""
        device = self.devices[stream.device]
        after = [stream.last, *stream.waits]
        stream.waits = []
        if stream is device.legacy:
            self.check_implicit()
            others = [each for each in (*device.streams, *device.of_threads.values()) if each.blocking]
            after += [work for each in others for work in (each.last, *each.waits)]
            after += device.detached
            device.detached = []
        elif stream.blocking:
            after += [device.legacy.last, *device.legacy.waits]
        return [work for work in after if work is not None and not work.done]

    def check_implicit(self) -> None:
        """The legacy stream is not to be used while a blocking stream is captured: it would depend on that."""
        for device in self.devices:
            for stream in (*device.streams, *device.of_threads.values()):
                if stream.blocking and stream.capture is not None:
                    stream.capture.invalid = True
                    raise Refused(906, "the legacy stream, while a blocking stream is captured")

    def _guarded(self, number: int, run: Callable[[], None] | None) -> Callable[[], None] | None:
        device = self.devices[number]

        def guarded() -> None:
            if not device.broken and run is not None:
                run()

        return guarded

    def fail(self, number: int, status: int, text: str) -> None:
        """Let a device fail from now on."""
        self.devices[number].broken = status
        self.faults.append(text)

    def launch_graph(self, stream: Stream, graph: Graph) -> None:
        """Let a stream run a graph, after the graph's last run."""
        if stream.capture is not None:
            self.check_valid(stream.capture)
            nodes, heads = stream.capture.nodes, stream.heads
            first, used = len(nodes), frozenset[int]()
            for node in graph.nodes:
                after = frozenset(first + i for i in node.after) or heads
                used |= after
                nodes.append(Node(node.run, node.what, after))
            stream.heads = (frozenset(range(first, len(nodes))) | heads) - used or heads
            return
        entry = self.before(stream) + ([graph.last] if graph.last is not None else [])
        made: list[Work] = []
        for node in graph.nodes:
            run = self._guarded(graph.device, node.run)
            made.append(self._put(stream, run, node.what, [made[i] for i in node.after] or entry))
        graph.last = self._put(stream, None, "the end of a graph", [*made, *entry])

    def poison(self, stream: Stream, address: int, size: int, is_new: bool) -> None:
        """Fill memory that a pool gives or takes back, on the stream that it belongs to.

        A stream that has run nothing is one that is captured alone: its memory is used on others, and has their order.
        That of a stream that was destroyed is given to nobody.
        """
        with self.lock:
            device = self.device_at(address)
            if device is None or stream.capture is not None or stream.last is None:
                return
            if stream not in (device.legacy, *device.streams, *device.of_threads.values()):
                return

            def work() -> None:
                if device.memory.holds(address, size):
                    fill(address, size, NEW if is_new else FREED)

            self.submit(stream, work, "memory is given" if is_new else "memory is taken back")

    def finish(self, works: Iterable[Work | None]) -> None:
        """Run until some work is done: what it depends on, or whatever there is, as the draw has it."""
        wanted = [work for work in works if work is not None and not work.done]
        if not wanted:
            return
        only = _ancestors(wanted) if self.random.random() < 0.5 else None
        while not all(work.done for work in wanted):
            choice = self.ready if only is None else [work for work in self.ready if work in only]
            self._run(choice[self.random.randrange(len(choice))])

    def go_on(self, most: int) -> None:
        """Run some of what there is to do."""
        for _ in range(self.random.randint(0, most)):
            if self.ready:
                self._run(self.ready[self.random.randrange(len(self.ready))])

    def _run(self, work: Work) -> None:
        self.ready.remove(work)
        if work.run is not None:
            work.run()
        self._open -= 1
        work.done, work.before, work.run = True, [], None
        for each in work.next:
            each.waits -= 1
            if not each.waits:
                self.ready.append(each)
        work.next = []

    def between(self, run: Callable[[], None], devices: Sequence[Device]) -> None:
        """A copy between devices on the legacy stream: after all that either was asked, and before what either will."""
        after = [work for device in devices for work in self.before(device.legacy)]
        work = self._put(devices[0].legacy, self._guarded(devices[0].number, run), "a copy between devices", after)
        for device in devices:
            device.legacy.last = work

    def finish_device(self, device: Device) -> None:
        """Run all that a device was asked for."""
        streams = [device.legacy, *device.streams, *device.of_threads.values()]
        self.finish([work for stream in streams for work in (stream.last, *stream.waits)] + device.detached)

    # Events

    def record(self, event: Event, stream: Stream) -> None:
        """Put an event behind a stream's work."""
        if event.device != stream.device:
            raise Refused(400, "an event of another device than the stream's")
        event.captured = event.work = None
        if stream.capture is not None:
            event.captured = stream.capture, stream.heads
        else:
            event.work = self.submit(stream, lambda: setattr(event, "recorded", float(next(self._clock))), "an event")

    def wait(self, stream: Stream, event: Event) -> None:
        """Let a stream wait for an event; for one of a captured stream, it takes part in the capture."""
        if event.captured is not None:
            capture, heads = event.captured
            if stream.capture not in (None, capture):
                raise Refused(902, "a stream of one capture waits for another capture")
            stream.heads = (stream.heads if stream.capture else frozenset()) | heads
            stream.capture = capture
            if stream not in capture.streams:
                capture.streams.append(stream)
        elif stream.capture is not None:
            stream.capture.invalid = True
            raise Refused(905, "a captured stream waits for work that is not captured")
        elif event.work is not None and not event.work.done:
            stream.waits.append(event.work)

    # Captures

    def check_valid(self, capture: Capture) -> None:
        """Refuse what goes on with a capture that has come to nothing."""
        if capture.invalid:
            raise Refused(901, "the capture was invalidated")

    def check_unsafe(self, what: str) -> None:
        """Refuse calls that may synchronize, while a capture forbids them."""
        for capture in self.captures:
            if capture.mode == 0 or (capture.mode == 1 and capture.thread == threading.get_ident()):
                capture.invalid = True
                raise Refused(900, f"{what} during a capture")

    def check_waits(self, stream: Stream) -> None:
        """Refuse to wait for a stream that is captured."""
        if stream.capture is not None:
            stream.capture.invalid = True
            raise Refused(900, "the host waits for a captured stream")

    def begin(self, handle: int, mode: int) -> None:
        """Begin to capture a stream."""
        stream = self.stream(handle)
        if handle in LEGACY:
            raise Refused(900, "the legacy stream cannot be captured")
        if stream.capture is not None:
            raise Refused(401, "the stream is captured")
        stream.capture, stream.heads = Capture(handle, mode, threading.get_ident(), streams=[stream]), frozenset()
        self.captures.append(stream.capture)

    def end(self, handle: int) -> Graph:
        """The graph of a stream's capture."""
        stream, capture = self.stream(handle), self.stream(handle).capture
        if capture is None:
            raise Refused(401, "the stream is not captured")
        if capture.origin != handle:
            raise Refused(903, "the capture began in another stream")
        if capture.mode != 2 and capture.thread != threading.get_ident():
            raise Refused(908, "the capture began in another thread")
        behind = _ancestors_of(capture.nodes, stream.heads)
        heads = [each.heads - behind for each in capture.streams]
        self.captures.remove(capture)
        for each in capture.streams:
            each.capture, each.heads = None, frozenset()
        self.check_valid(capture)
        if any(heads):
            raise Refused(904, "a stream that takes part in the capture is not joined to its origin")
        return Graph(stream.device, capture.nodes)


def _ancestors(works: Sequence[Work]) -> set[Work]:
    """Work with all that it waits for."""
    found, open_ = set(works), list(works)
    while open_:
        for each in open_.pop().before:
            if not each.done and each not in found:
                found.add(each)
                open_.append(each)
    return found


def _ancestors_of(nodes: Sequence[Node], heads: Iterable[int]) -> set[int]:
    found, open_ = set(heads), list(heads)
    while open_:
        new = nodes[open_.pop()].after - found
        found |= new
        open_ += new
    return found


def _nothing() -> None:
    """The work of a node without any."""
