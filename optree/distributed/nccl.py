"""NCCL through CuPy's binding, for arrays on GPUs, one GPU for each process.

Operations run in order on a separate stream, asynchronously to the host. An operation waits for the work queued on
CuPy's current stream before it, and overlaps with later work until its value is awaited. If MPI has launched the
processes, they compare the descriptions of operations on the host (`optree.distributed.mpi`), otherwise on the device
by an all-reduce of 16 bytes. A watchdog thread ends the process with an error if an operation times out or differs,
because a host that waits for a device cannot be interrupted.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partialmethod
from hashlib import blake2b
from importlib import import_module
from threading import Thread
from typing import Any

import numpy as np

from optree.arrays import Array
from optree.distributed.engine import Engine, as_bytes, contiguous, exchange_of, narrowed, spec_of, wide
from optree.distributed.errors import DistributedError
from optree.distributed.launch import Launch
from optree.records import NamedTuple
from optree.tree.types import Shape

#: The seconds between two checks of the watchdog.
PAUSE = 0.05

#: The integer dtypes that NCCL does not reduce, and the dtypes used instead.
WIDER = {np.dtype(np.int16): np.dtype(np.int32), np.dtype(np.uint16): np.dtype(np.uint32)}


class NCCLEngine(Engine):
    """The collective operations of the processes of a launch, by NCCL."""

    name = "nccl"

    def __init__(self, be: Any, launch: Launch, timeout: float) -> None:
        self.rank, self.size, self.timeout = launch.rank, launch.size, timeout
        self.cupy, self._nccl = be.cupy, import_module("cupy.cuda.nccl")
        if not self._nccl.available:  # else CuPy's class raises a NameError
            raise ImportError("libnccl.so.2 is not found")
        by_mpi = launch.by == "mpi"
        self._control = import_module("optree.distributed.mpi").started(be, launch, timeout) if by_mpi else None
        options = {"use_mpi": True} if by_mpi else {"host": launch.host, "port": launch.port}
        with be.active():
            self._comm = import_module("cupyx.distributed").NCCLBackend(launch.size, launch.rank, **options)
            self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.overlaps = self.size > 1
        self._count = 0
        self._watch = Watch(self)

    def begin(self, method: str, x: Array, *args: Any, out: Array | None = None) -> tuple[Any, Callable[[], None]]:
        begin: Callable[..., tuple[Any, Callable[[], None]]] = getattr(self, f"_begin_{method}")
        return begin(x, *args, out=out)

    def _awaited(self, method: str, *args: Any) -> Any:
        """The value of an operation, for which the current stream waits."""
        value, finish = self.begin(method, *args)
        finish()
        return value

    all_reduce = partialmethod(_awaited, "all_reduce")
    all_gather = partialmethod(_awaited, "all_gather")
    reduce_scatter = partialmethod(_awaited, "reduce_scatter")

    def _launch(self, operation: Callable[..., None], *args: Any) -> Callable[[], None]:
        """Launch an operation on the engine's stream; returns a function that makes the current stream wait for it.

        Memory is allocated on the current stream. The caller must reference it until that stream waits, so that it is
        not reused.
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

    def _memory(self, shape: Shape, dtype: np.dtype, out: Array | None) -> Any:
        """The array that an operation writes: the one given, if it is of the dtype."""
        return out if out is not None and out.dtype == dtype else self.cupy.empty(shape, dtype)

    def _begun(
        self, wait: Callable[[], None], given: Array, made: Array, dtype: np.dtype, out: Array | None, divisor: int = 1
    ) -> tuple[Any, Callable[[], None]]:
        value = made if made.dtype == dtype else self._memory(made.shape, dtype, out)
        return value, _Begun(wait, given, made, value, divisor).finish

    def _begin_all_reduce(self, x: Array, kind: str, out: Array | None = None) -> tuple[Any, Callable[[], None]]:
        self.agree(f"all_reduce, {kind} of {spec_of(x)}")
        given = _reducible(x)
        made = self._memory(given.shape, given.dtype, out)
        op = kind if kind in ("max", "min") else "sum"
        wait = self._launch(self._comm.all_reduce, *([given, made, op] if x.size else []))
        return self._begun(wait, given, made, x.dtype, out, self.size if kind == "mean" else 1)

    def _begin_all_gather(self, x: Array, out: Array | None = None) -> tuple[Any, Callable[[], None]]:
        self.agree(f"all_gather of {spec_of(x)}")
        made, given = self._memory((self.size, *x.shape), x.dtype, out), as_bytes(x)
        wait = self._launch(self._comm.all_gather, *([given, as_bytes(made), x.nbytes] if x.size else []))
        return self._begun(wait, given, made, x.dtype, out)

    def _begin_reduce_scatter(self, parts: Array, out: Array | None = None) -> tuple[Any, Callable[[], None]]:
        self.agree(f"reduce_scatter of {spec_of(parts)}, the parts of all ranks")
        given = _reducible(parts)
        made = self._memory(given.shape[1:], given.dtype, out)
        wait = self._launch(self._comm.reduce_scatter, *([given, made, made.size, "sum"] if made.size else []))
        return self._begun(wait, given, made, parts.dtype, out)

    def broadcast(self, x: Array, root: int) -> Any:
        self.agree(f"broadcast of rank {root}'s {spec_of(x)}")
        made = x.copy(order="C")
        self._launch(self._comm.broadcast, *([as_bytes(made), root] if x.size else []))()
        return made

    def reduce(self, x: Array, root: int) -> Any:
        self.agree(f"reduce, sum of {spec_of(x)} to rank {root}")
        given = _reducible(x)
        made = self.cupy.zeros_like(given)
        self._launch(self._comm.reduce, *([given, made, root, "sum"] if x.size else []))()
        return narrowed(made, x)

    def all_to_all(self, parts: Array) -> Any:
        self.agree(f"all_to_all of {spec_of(parts)}, the parts for all ranks")
        made = self.cupy.empty(parts.shape, parts.dtype)
        rows = (self.size, parts.nbytes // self.size)
        given = [as_bytes(parts).reshape(rows), as_bytes(made).reshape(rows)] if parts.size else []
        self._launch(self._comm.all_to_all, *given)()
        return made

    def exchange(self, x: Array, to: int | None, source: int | None) -> Any:
        self._watch.expect(exchange_of(x, to, source))
        made = self.cupy.zeros(x.shape, x.dtype)
        self._launch(*([self._exchange, as_bytes(x), as_bytes(made), to, source] if x.size else [self._exchange]))()
        return made

    def _exchange(self, given: Array, made: Array, to: int | None, source: int | None, stream: Any) -> None:
        self._nccl.groupStart()  # both at once: two that send to each other do not wait for ever
        if to is not None:
            self._comm.send(given, to, stream)
        if source is not None:
            self._comm.recv(made, source, stream)
        self._nccl.groupEnd()

    def split(self, color: int) -> Engine:
        raise DistributedError("NCCL through CuPy's binding has groups of all ranks alone; MPI has others")


class _Begun(NamedTuple):
    """An operation that was launched."""

    #: Makes the current stream wait for the end of the operation.
    wait: Callable[[], None]
    #: The input, referenced until the end.
    given: Array
    #: The output.
    made: Array
    #: The output in the operand's dtype; `made` itself if that has it.
    value: Array
    #: The divisor of a mean, else 1.
    divisor: int

    def finish(self) -> None:
        """Make the current stream wait for the operation, and compute the value."""
        self.wait()
        if self.divisor > 1:
            self.made[...] = self.made / self.made.dtype.type(self.divisor)
        if self.value is not self.made:
            self.value[...] = narrowed(self.made, self.value)


class _Expected(NamedTuple):
    """An operation that the device has not completed."""

    words: str
    #: The time at which it times out.
    until: float
    #: The hash of this rank's description and the maximum over all ranks, for the comparison on the device.
    given: Any
    largest: Any
    #: A CUDA event.
    event: Any


class Watch:
    """A watchdog thread, which ends the process if an operation times out or differs from the other ranks'."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._words, self._given, self._largest = "", None, None
        self._running: deque[_Expected] = deque()
        Thread(target=self._look, name="optree-nccl-watch", daemon=True).start()

    def expect(self, words: str, given: Any = None, largest: Any = None) -> None:
        """Record the description of the next operation."""
        self._words, self._given, self._largest = words, given, largest

    def follow(self, event: Any) -> None:
        """Watch the operation, now launched, until its event is done."""
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
    """Print an error and end the process immediately."""
    print(f"DistributedError: {message}", file=sys.stderr, flush=True)
    os._exit(1)


def started(be: Any, launch: Launch, timeout: float) -> NCCLEngine:
    """The engine of the processes of a launch."""
    return NCCLEngine(be, launch, timeout)


def _reducible(x: Array) -> Any:
    """A contiguous array of a dtype that NCCL reduces."""
    return contiguous(x.astype(WIDER[x.dtype])) if x.dtype in WIDER else wide(x)
