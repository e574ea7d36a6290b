"""Threads of Python's that share work: NumPy lets them run side by side.

Not a `concurrent.futures.ThreadPoolExecutor`: work that a busy machine's
threads come too late for would wait in its queue, with the arrays that it is
about, long after the caller has done it alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import Condition, Lock, Thread
from typing import TypeVar

import numpy as np

from backends.cpu.threads import thread_count

Task = TypeVar("Task")


class _Job:
    """Work that threads may join until it is withdrawn.

    Attributes
    ----------
    work : callable
        Does tasks until there are none.
    places : int
        How many threads may still join.
    running : int
        How many have joined and not ended.
    errors : list of BaseException
        What stopped them.
    """

    def __init__(self, work: Callable[[], None], places: int) -> None:
        self.work, self.places, self.running = work, places, 0
        self.errors: list[BaseException] = []


class _Pool:
    """The process's helpers, begun when they are first needed, and the jobs that wait for them."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.jobs: list[_Job] = []
        self.threads = 0

    def offer(self, job: _Job) -> None:
        """Let helpers join a job."""
        with self.changed:
            self.jobs.append(job)
            self.changed.notify(job.places)
            try:
                while self.threads < job.places:
                    Thread(target=self._help, name="optree", daemon=True).start()
                    self.threads += 1
            except RuntimeError:  # no thread can begin where there are too many, or Python is about to end
                pass

    def withdraw(self, job: _Job) -> None:
        """Let no more helpers join a job, and wait for those that have."""
        with self.changed:
            if job in self.jobs:
                self.jobs.remove(job)
            while job.running:
                self.changed.wait()

    def _help(self) -> None:
        np.seterr(all="ignore")  # for this thread alone
        while True:
            self._join()

    def _join(self) -> None:
        """Wait for a job and take part in it."""
        with self.changed:
            while not self.jobs:
                self.changed.wait()
            job = self.jobs[0]
            job.places -= 1
            job.running += 1
            if not job.places:
                self.jobs.remove(job)
        try:
            job.work()
        except BaseException as error:
            job.errors.append(error)
        finally:
            with self.changed:
                job.running -= 1
                self.changed.notify_all()


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

    def work() -> None:
        do = worker()
        while True:
            with lock:
                task = next(rest, None)
            if task is None:
                return
            do(task)

    count = min(thread_count(), len(tasks))
    if count <= 1:
        return work()
    pool, job = _pools[0], _Job(work, count - 1)
    pool.offer(job)
    try:
        work()
    finally:
        pool.withdraw(job)
    if job.errors:
        raise job.errors[0]


def _after_fork() -> None:
    _pools[0] = _Pool()  # the child has none of its parent's threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
