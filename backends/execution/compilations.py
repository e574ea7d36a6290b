"""Compilations of kernels: each source once, several at a time, counted, and told of on a terminal."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from backends import lazy

#: Seconds of compiling after which a message appears on a terminal.
PATIENCE = 1.0


class Compilations:
    """The compilations of a process, or for a device.

    Attributes
    ----------
    hits, disk_hits, misses : int
        The number of sources found in memory, found on disk, and compiled.
    seconds : float
        The seconds in which at least one compiler ran.
    waiting : int
        The number of sources that `concurrently` has yet to compile.
    announced : bool
        Whether the message on compiling has appeared.
    """

    def __init__(self) -> None:
        self.hits = self.disk_hits = self.misses = 0
        self.seconds = 0.0
        self.announced = False
        self.begin()

    def begin(self) -> None:
        """In a new process: renew the locks, and forget the compilations of other threads."""
        self.lock = threading.Lock()
        self._compiling: dict[Any, threading.Lock] = {}
        self._running, self._since = 0, 0.0
        self.waiting = 0

    def counts(self) -> dict[str, Any]:
        """The counts and the seconds."""
        return {"hits": self.hits, "disk_hits": self.disk_hits, "misses": self.misses, "seconds": self.seconds}

    def count(self, name: str) -> None:
        """Add 1 to one of the counts."""
        with self.lock:
            setattr(self, name, getattr(self, name) + 1)

    @contextmanager
    def once(self, key: Any) -> Iterator[None]:
        """A block that one thread at a time runs for a key: those that wait find what it has compiled."""
        with self.lock:
            lock = self._compiling.setdefault(key, threading.Lock())
        try:
            with lock:
                yield
        finally:
            self._compiling.pop(key, None)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of a block, those of several threads at once only once."""
        with self.lock:
            self._since = time.perf_counter() if not self._running else self._since
            self._running += 1
        try:
            yield
        finally:
            with self.lock:
                now = time.perf_counter()
                self.seconds += now - self._since
                self._since, self._running = now, self._running - 1

    def announce(self, folder: Path | None) -> None:
        """Print a message on the terminal, once, when compiling has taken `PATIENCE`."""
        with self.lock:
            if self.announced or self.seconds < PATIENCE or sys.stderr is None or not sys.stderr.isatty():
                return
            self.announced = True
        more = f", {self.waiting} to come" if self.waiting else ""
        cached = f"; they are cached in {folder} for later runs" if folder else ""
        print(
            f"op-tree is compiling kernels: {self.misses} in {self.seconds:.1f} s so far{more}{cached}",
            file=sys.stderr,
            flush=True,
        )

    def concurrently(self, jobs: Sequence[Callable[[], Any]], count: int) -> list[Any]:
        """The results of jobs that compile, run by at most `count` threads.

        An error ends it: it is the result of its job, and None that of those that have not begun. An interrupt stops
        the compilers that run.
        """
        work = Work(self, jobs)
        begun = ended = 0
        try:
            with suppress(RuntimeError):  # no thread can begin where there are too many, or Python is about to end
                while begun < min(count, len(jobs)):
                    _thread.start_new_thread(work.run, ())  # unlike Thread.start, it waits for nothing
                    begun += 1
            while ended < begun:
                # An interrupted Thread.join takes a thread that runs for one that has ended; and an interrupt just
                # before a wait would not end it.
                with suppress(Empty):
                    work.ended.get(timeout=0.1)
                    ended += 1
        except BaseException:
            work.stop()
            raise
        finally:
            self.waiting = 0
        return work.results


class Work:
    """Jobs of `Compilations.concurrently`, with the compilers that they run.

    Attributes
    ----------
    results : list
    ended : SimpleQueue
        One entry for each thread that has ended.
    running : set of int
        The threads that have begun, and not ended.
    processes : set of subprocess.Popen
    is_stopped : bool
        Whether no more compilers are run.
    """

    def __init__(self, compilations: Compilations, jobs: Sequence[Callable[[], Any]]) -> None:
        self.results: list[Any] = [None] * len(jobs)
        self.ended: SimpleQueue[None] = SimpleQueue()
        self.running: set[int] = set()
        self.processes: set[Any] = set()
        self.is_stopped = False
        self._compilations, self._rest = compilations, deque(enumerate(jobs))

    def run(self) -> None:
        """Run jobs until none is left."""
        _local.work = self
        self.running.add(_thread.get_ident())
        try:
            while not self.is_stopped:
                index, job = self._rest.popleft()
                self._compilations.waiting = len(self._rest)
                try:
                    self.results[index] = job()
                except Exception as error:
                    self.results[index] = error
                    self._rest.clear()
        except IndexError:  # none is left
            pass
        finally:
            self.running.discard(_thread.get_ident())
            self.ended.put(None)

    def stop(self) -> None:
        """Kill the compilers, and wait for the threads that run; one may be about to start a compiler.

        It does not count what has ended: the interrupt may have come after an entry was taken, and before its count.
        """
        self.is_stopped = True
        while self.running:
            for process in list(self.processes):
                with suppress(OSError):
                    if process.returncode is None:
                        os.killpg(process.pid, lazy.signal.SIGKILL)
            time.sleep(0.01)


#: `_local.work`: the work of a thread of `Compilations.concurrently`.
_local = threading.local()


def current_work() -> Work | None:
    """The work that this thread takes part in; None in other threads."""
    return getattr(_local, "work", None)
