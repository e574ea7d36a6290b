"""Threads of Python's that share work: NumPy lets them run side by side.

Not a `concurrent.futures.ThreadPoolExecutor`: work that a busy machine's
threads come too late for would wait in its queue, with the arrays that it is
about, long after the caller has done it alone.

An interrupt (Ctrl-C) may come between any two lines of the main thread's. So
threads wait for each other by nothing but `with lock` and `SimpleQueue`, each
one step of the interpreter's: `threading.Condition` is written in Python, and
interrupted in it, a thread keeps the lock that all others wait for.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Lock
from typing import TypeVar

import numpy as np

from backends.cpu.threads import thread_count

Task = TypeVar("Task")


class _Job:
    """Work that threads may join until it is withdrawn.

    Attributes
    ----------
    work : callable or None
        Does tasks until there are none; None once nobody may join any more.
    running : int
        How many have joined and not ended.
    ended : SimpleQueue
        One entry for each that has ended.
    errors : list of BaseException
        What stopped them.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.work: Callable[[], None] | None = work
        self.running = 0
        self.ended: SimpleQueue[None] = SimpleQueue()
        self.errors: list[BaseException] = []


class _Pool:
    """The process's helpers, begun when they are first needed, and the invitations to join jobs."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.invitations: SimpleQueue[_Job] = SimpleQueue()
        self.threads = 0

    def offer(self, job: _Job, places: int) -> None:
        """Let so many helpers join a job."""
        with self.lock:
            try:
                while self.threads < places:
                    _thread.start_new_thread(self._help, ())  # unlike Thread.start, it waits for nothing
                    self.threads += 1
            except RuntimeError:  # no thread can begin where there are too many, or Python is about to end
                pass
        for _ in range(places):
            self.invitations.put(job)

    def withdraw(self, job: _Job) -> None:
        """Let no more helpers join a job, and wait for those that have; it may be called again."""
        with self.lock:
            job.work = None
        while job.running:  # each that runs has yet to make its entry
            job.ended.get()

    def _help(self) -> None:
        np.seterr(all="ignore")  # for this thread alone
        while True:
            self._join(self.invitations.get())

    def _join(self, job: _Job) -> None:
        """Take part in a job, if it is still to be joined."""
        with self.lock:
            work = job.work
            if work is None:
                return
            job.running += 1
        try:
            work()
        except BaseException as error:
            job.errors.append(error)
        finally:
            del work  # with the arrays that it is about
            with self.lock:
                job.running -= 1
            job.ended.put(None)


_pools: list[_Pool] = [_Pool()]


def share(tasks: Sequence[Task], worker: Callable[[], Callable[[Task], None]]) -> None:
    """Do tasks in this thread, and in as many others as a kernel may use.

    Parameters
    ----------
    tasks : sequence
    worker : callable
        Called in each thread; gives what does a task there.
    """
    rest, lock = iter(tasks), Lock()
    is_stopped: list[bool] = []

    def work() -> None:
        do = worker()
        while not is_stopped:
            with lock:
                task = next(rest, None)
            if task is None:
                return
            do(task)

    count = min(thread_count(), len(tasks))
    if count <= 1:
        return work()
    pool, job = _pools[0], _Job(work)
    try:
        pool.offer(job, count - 1)
        work()
        pool.withdraw(job)
    except BaseException:
        # Nobody may write into arrays after this call; an interrupt may have come while the job was withdrawn.
        is_stopped.append(True)
        pool.withdraw(job)
        raise
    if job.errors:
        raise job.errors[0]


def _after_fork() -> None:
    _pools[0] = _Pool()  # the child has none of its parent's threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
