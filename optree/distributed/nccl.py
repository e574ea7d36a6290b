"""NCCL through CuPy's binding, for arrays on GPUs, one for each process.

Operations run in order on a stream of their own, while the host goes on: after what CuPy's current stream has been
given before, and beside what it is given until the value is awaited. Where MPI has launched the processes, they
compare on the host what they are about to do (`optree.distributed.mpi`). Elsewhere they compare it on the device, by
an operation of 16 bytes. A thread watches: what has not ended in time, or differs, ends the process with an error,
because a host that waits for a device cannot be interrupted otherwise.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from importlib import import_module
from threading import Thread
from typing import Any

import numpy as np

from optree.distributed.engine import Engine, as_bytes, contiguous, exchange_of, narrowed, spec_of, wide
from optree.distributed.errors import DistributedError
from optree.distributed.launch import Launch
from optree.records import NamedTuple

#: The seconds between two looks at what runs.
PAUSE = 0.05

#: Integers that NCCL does not reduce, and those that it does in their place.
WIDER = {np.dtype(np.int16): np.dtype(np.int32), np.dtype(np.uint16): np.dtype(np.uint32)}


class NCCLEngine(Engine):
    """The operations of the processes of a launch."""

    name = "nccl"

    def __init__(self, be: Any, launch: Launch, timeout: float) -> None:
        self.rank, self.size, self.timeout = launch.rank, launch.size, timeout
        self.cupy, self._nccl = be.cupy, import_module("cupy.cuda.nccl")
        by_mpi = launch.by == "mpi"
        self._control = import_module("optree.distributed.mpi").started(be, launch, timeout) if by_mpi else None
        options = {"use_mpi": True} if by_mpi else {"host": launch.host, "port": launch.port}
        with be.active():
            self._comm = import_module("cupyx.distributed").NCCLBackend(launch.size, launch.rank, **options)
            self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.overlaps = self.size > 1
        self._count = 0
        self._watch = Watch(self)

    def begin(self, method: str, x: Any, *args: Any, out: Any = None) -> tuple[Any, Callable[[], None]]:
        begin: Callable[..., tuple[Any, Callable[[], None]]] = getattr(self, f"_begin_{method}")
        return begin(x, *args, out=out)

    def _launch(self, operation: Callable[..., None], *args: Any) -> Callable[[], None]:
        """Launch an operation on the stream; what lets the current stream wait for its end.

        Memory is allocated for the current stream; the caller has it until that waits, so that nothing else gets it.
        """
        if args:
            self.stream.wait_event(self.cupy.cuda.get_current_stream().record())
            operation(*args, self.stream)
        event = self.stream.record()
        self._watch.follow(event)
        return lambda: self.cupy.cuda.get_current_stream().wait_event(event)

    def agree(self, words: str) -> None:
        if self._control is not None:
            self._control.timeout = self.timeout
            self._control.agree(words)
        self._count += 1
        words = f"{words} (operation {self._count})"
        given = largest = None
        if self._control is None:
            said = int.from_bytes(blake2b(words.encode(), digest_size=7).digest(), "big")
            given = self.cupy.array([said, -said], np.int64)
            largest = self.cupy.empty_like(given)
            self.stream.wait_event(self.cupy.cuda.get_current_stream().record())
            self._comm.all_reduce(given, largest, "max", self.stream)
        self._watch.expect(words, given, largest)

    def _memory(self, shape: Any, dtype: np.dtype, out: Any) -> Any:
        """The array that an operation writes: the one given, if it is of the dtype."""
        return out if out is not None and out.dtype == dtype else self.cupy.empty(shape, dtype)

    def _begun(
        self, wait: Callable[[], None], given: Any, made: Any, dtype: np.dtype, out: Any, divisor: int = 1
    ) -> tuple[Any, Callable[[], None]]:
        value = made if made.dtype == dtype else self._memory(made.shape, dtype, out)
        return value, _Begun(wait, given, made, value, divisor).finish

    def all_reduce(self, x: Any, kind: str) -> Any:
        return _awaited(self._begin_all_reduce(x, kind))

    def _begin_all_reduce(self, x: Any, kind: str, out: Any = None) -> tuple[Any, Callable[[], None]]:
        self.agree(f"all_reduce, {kind} of {spec_of(x)}")
        given = _reducible(x)
        made = self._memory(given.shape, given.dtype, out)
        op = kind if kind in ("max", "min") else "sum"
        wait = self._launch(self._comm.all_reduce, *([given, made, op] if x.size else []))
        return self._begun(wait, given, made, x.dtype, out, self.size if kind == "mean" else 1)

    def all_gather(self, x: Any) -> Any:
        return _awaited(self._begin_all_gather(x))

    def _begin_all_gather(self, x: Any, out: Any = None) -> tuple[Any, Callable[[], None]]:
        self.agree(f"all_gather of {spec_of(x)}")
        made, given = self._memory((self.size, *x.shape), x.dtype, out), as_bytes(x)
        wait = self._launch(self._comm.all_gather, *([given, as_bytes(made), x.nbytes] if x.size else []))
        return self._begun(wait, given, made, x.dtype, out)

    def reduce_scatter(self, parts: Any) -> Any:
        return _awaited(self._begin_reduce_scatter(parts))

    def _begin_reduce_scatter(self, parts: Any, out: Any = None) -> tuple[Any, Callable[[], None]]:
        self.agree(f"reduce_scatter of {spec_of(parts)}, the parts of all ranks")
        given = _reducible(parts)
        made = self._memory(given.shape[1:], given.dtype, out)
        wait = self._launch(self._comm.reduce_scatter, *([given, made, made.size, "sum"] if made.size else []))
        return self._begun(wait, given, made, parts.dtype, out)

    def broadcast(self, x: Any, root: int) -> Any:
        self.agree(f"broadcast of rank {root}'s {spec_of(x)}")
        made = x.copy(order="C")
        self._launch(self._comm.broadcast, *([as_bytes(made), root] if x.size else []))()
        return made

    def reduce(self, x: Any, root: int) -> Any:
        self.agree(f"reduce, sum of {spec_of(x)} to rank {root}")
        given = _reducible(x)
        made = self.cupy.zeros_like(given)
        self._launch(self._comm.reduce, *([given, made, root, "sum"] if x.size else []))()
        return narrowed(made, x)

    def all_to_all(self, parts: Any) -> Any:
        self.agree(f"all_to_all of {spec_of(parts)}, the parts for all ranks")
        made = self.cupy.empty(parts.shape, parts.dtype)
        rows = (self.size, parts.nbytes // self.size)
        given = [as_bytes(parts).reshape(rows), as_bytes(made).reshape(rows)] if parts.size else []
        self._launch(self._comm.all_to_all, *given)()
        return made

    def exchange(self, x: Any, to: int | None, source: int | None) -> Any:
        self._watch.expect(exchange_of(x, to, source))
        made = self.cupy.zeros(x.shape, x.dtype)
        self._launch(*([self._exchange, as_bytes(x), as_bytes(made), to, source] if x.size else [self._exchange]))()
        return made

    def _exchange(self, given: Any, made: Any, to: int | None, source: int | None, stream: Any) -> None:
        self._nccl.groupStart()  # both at once: two that send to each other do not wait for ever
        if to is not None:
            self._comm.send(given, to, stream)
        if source is not None:
            self._comm.recv(made, source, stream)
        self._nccl.groupEnd()

    def split(self, color: int) -> Engine:
        raise DistributedError("NCCL through CuPy's binding has groups of all ranks alone; MPI has others")


class _Begun(NamedTuple):
    """An operation that has begun.

    Attributes
    ----------
    wait : callable
        It lets the current stream wait for its end.
    given : array
        What it reads, which is in memory until then.
    made : array
        What it writes.
    value : array
        Of the operand's dtype; the same array if it is of that.
    divisor : int
        Of a mean.
    """

    wait: Callable[[], None]
    given: Any
    made: Any
    value: Any
    divisor: int

    def finish(self) -> None:
        """Let the current stream wait, and fill the value."""
        self.wait()
        if self.divisor > 1:
            self.made[...] = self.made / self.made.dtype.type(self.divisor)
        if self.value is not self.made:
            self.value[...] = narrowed(self.made, self.value)


class _Expected(NamedTuple):
    """An operation that the device has not ended.

    Attributes
    ----------
    words : str
    until : float
        The time at which it is too late.
    given, largest : array or None
        What this rank has said, in memory until the operation has ended, and the largest of what all have.
    event : Event
    """

    words: str
    until: float
    given: Any
    largest: Any
    event: Any


class Watch:
    """A thread that ends the process when an operation has not ended in time, or is not the other ranks'."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._words, self._given, self._largest = "", None, None
        self._running: deque[_Expected] = deque()
        Thread(target=self._look, name="optree-nccl-watch", daemon=True).start()

    def expect(self, words: str, given: Any = None, largest: Any = None) -> None:
        """An operation begins."""
        self._words, self._given, self._largest = words, given, largest

    def follow(self, event: Any) -> None:
        """The operation that has begun has been launched, and ends with an event."""
        until = time.monotonic() + self._engine.timeout
        self._running.append(_Expected(self._words, until, self._given, self._largest, event))

    def _look(self) -> None:
        while True:
            time.sleep(PAUSE)
            self._look_once()

    def _look_once(self) -> None:
        while self._running and self._running[0].event.done:
            expected = self._running.popleft()
            if expected.largest is not None:
                self._compare(expected)
        if self._running and time.monotonic() > self._running[0].until:
            self._end(
                f"has waited {self._engine.timeout:g} seconds at {self._running[0].words}: another rank has not "
                "come, or ended, or is at another operation"
            )

    def _compare(self, expected: _Expected) -> None:
        with self._engine.cupy.cuda.Stream(non_blocking=True):
            first, second = (int(x) for x in expected.largest.get())
        if first != -second:
            self._end(f"is at {expected.words}, and another rank is not")

    def _end(self, message: str) -> None:
        end_process(f"rank {self._engine.rank} of {self._engine.size} {message}")


def end_process(message: str) -> None:
    """Say why, and end the process at once."""
    print(f"DistributedError: {message}", file=sys.stderr, flush=True)
    os._exit(1)


def started(be: Any, launch: Launch, timeout: float) -> NCCLEngine:
    """The engine of the processes of a launch."""
    return NCCLEngine(be, launch, timeout)


def _awaited(begun: tuple[Any, Callable[[], None]]) -> Any:
    """The value of what has begun, for the current stream."""
    value, finish = begun
    finish()
    return value


def _reducible(x: Any) -> Any:
    """A contiguous array of a dtype that NCCL reduces."""
    return contiguous(x.astype(WIDER[x.dtype])) if x.dtype in WIDER else wide(x)
