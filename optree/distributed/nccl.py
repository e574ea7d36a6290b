"""NCCL through CuPy's binding, for arrays on GPUs, one for each process.

Operations run in order on CuPy's current stream, while the host goes on. Where MPI has launched the processes, they
compare on the host what they are about to do (`optree.distributed.mpi`). Elsewhere they compare it on the device, by
an operation of 16 bytes. A thread watches: what has not ended in time, or differs, ends the process with an error,
because a host that waits for a device cannot be interrupted otherwise.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from hashlib import blake2b
from importlib import import_module
from threading import Thread
from typing import Any

import numpy as np

from optree.distributed.engine import Engine, as_bytes, contiguous, narrowed, wide
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
        self._count = 0
        self._watch = Watch(self)

    def agree(self, words: str) -> None:
        if self._control is not None:
            self._control.timeout = self.timeout
            self._control.agree(words)
        self._count += 1
        words = f"{words} (operation {self._count})"
        largest = None
        if self._control is None:
            said = int.from_bytes(blake2b(words.encode(), digest_size=7).digest(), "big")
            given = self.cupy.array([said, -said], np.int64)
            largest = self.cupy.empty_like(given)
            self._comm.all_reduce(given, largest, "max")
        self._watch.expect(words, largest)

    def all_reduce(self, x: Any, kind: str) -> Any:
        self.agree(f"all_reduce, {kind} of {_spec(x)}")
        given = _reducible(x)
        made = self.cupy.empty_like(given)
        if x.size:
            self._comm.all_reduce(given, made, kind if kind in ("max", "min") else "sum")
        self._watch.follow()
        if kind == "mean":
            made = made / made.dtype.type(self.size)
        return narrowed(made, x)

    def all_gather(self, x: Any) -> Any:
        self.agree(f"all_gather of {_spec(x)}")
        made = self.cupy.empty((self.size, *x.shape), x.dtype)
        if x.size:
            self._comm.all_gather(as_bytes(x), as_bytes(made), x.nbytes)
        self._watch.follow()
        return made

    def reduce_scatter(self, parts: Any) -> Any:
        self.agree(f"reduce_scatter of {_spec(parts)}, the parts of all ranks")
        given = _reducible(parts)
        made = self.cupy.empty(given.shape[1:], given.dtype)
        if made.size:
            self._comm.reduce_scatter(given, made, made.size, "sum")
        self._watch.follow()
        return narrowed(made, parts)

    def broadcast(self, x: Any, root: int) -> Any:
        self.agree(f"broadcast of rank {root}'s {_spec(x)}")
        made = x.copy(order="C")
        if x.size:
            self._comm.broadcast(as_bytes(made), root)
        self._watch.follow()
        return made

    def reduce(self, x: Any, root: int) -> Any:
        self.agree(f"reduce, sum of {_spec(x)} to rank {root}")
        given = _reducible(x)
        made = self.cupy.zeros_like(given)
        if x.size:
            self._comm.reduce(given, made, root, "sum")
        self._watch.follow()
        return narrowed(made, x)

    def all_to_all(self, parts: Any) -> Any:
        self.agree(f"all_to_all of {_spec(parts)}, the parts for all ranks")
        made = self.cupy.empty(parts.shape, parts.dtype)
        if parts.size:
            rows = (self.size, parts.nbytes // self.size)
            self._comm.all_to_all(as_bytes(parts).reshape(rows), as_bytes(made).reshape(rows))
        self._watch.follow()
        return made

    def exchange(self, x: Any, to: int | None, source: int | None) -> Any:
        ends = [f"to rank {to}"] * (to is not None) + [f"from rank {source}"] * (source is not None)
        self._watch.expect(f"send or recv of {_spec(x)} {' and '.join(ends)}", None)
        made = self.cupy.zeros(x.shape, x.dtype)
        given = as_bytes(x)
        if x.size:
            self._nccl.groupStart()  # both at once: two that send to each other do not wait for ever
            if to is not None:
                self._comm.send(given, to)
            if source is not None:
                self._comm.recv(as_bytes(made), source)
            self._nccl.groupEnd()
        self._watch.follow()
        return made

    def split(self, color: int) -> Engine:
        raise DistributedError("NCCL through CuPy's binding has groups of all ranks alone; MPI has others")


class _Expected(NamedTuple):
    """An operation that the device has not ended.

    Attributes
    ----------
    words : str
    until : float
        The time at which it is too late.
    largest : array or None
        Of what the ranks have said.
    event : Event
    """

    words: str
    until: float
    largest: Any
    event: Any


class Watch:
    """A thread that ends the process when an operation has not ended in time, or is not the other ranks'."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._words, self._largest = "", None
        self._running: deque[_Expected] = deque()
        Thread(target=self._look, name="optree-nccl-watch", daemon=True).start()

    def expect(self, words: str, largest: Any) -> None:
        """An operation begins."""
        self._words, self._largest = words, largest

    def follow(self) -> None:
        """The operation that has begun has been launched."""
        event = self._engine.cupy.cuda.get_current_stream().record()
        self._running.append(_Expected(self._words, time.monotonic() + self._engine.timeout, self._largest, event))

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


def _spec(x: Any) -> str:
    return f"{x.dtype} {x.shape}"


def _reducible(x: Any) -> Any:
    """A contiguous array of a dtype that NCCL reduces."""
    return contiguous(x.astype(WIDER[x.dtype])) if x.dtype in WIDER else wide(x)
