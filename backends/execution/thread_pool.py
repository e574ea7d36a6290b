"""A pool of Python threads for NumPy calls and compilers, which release the GIL.

Not a `concurrent.futures.ThreadPoolExecutor`: jobs that the caller has finished
alone, on a busy machine, would stay in its queue and hold their arrays.

An interrupt (Ctrl-C) may come between any two lines of the main thread. So threads wait for each other only by `with
lock` and `SimpleQueue`, which are atomic in the interpreter: `threading.Condition` is written in Python, and a thread
interrupted in it keeps the lock that all others wait for.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Lock
from typing import TypeVar

import numpy as np

from optree.settings import thread_count

Task = TypeVar("Task")


class _Job:
    """Work that threads may join until it is withdrawn."""

    def __init__(self, work: Callable[[], None]) -> None:
        #: Runs tasks until none is left; None once the job is withdrawn.
        self.work: Callable[[], None] | None = work
        #: The number of threads that have joined and not ended.
        self.running = 0
        #: One entry for each thread that has ended.
        self.ended: SimpleQueue[None] = SimpleQueue()
        #: The exceptions that ended threads.
        self.errors: list[BaseException] = []


class _Pool:
    """The worker threads of the process, started when they are first needed, and the queue of jobs."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.threads = 0

    def offer(self, job: _Job, count: int) -> None:
        """Let at most `count` workers join a job."""
        with self.lock:
            try:
                while self.threads < count:
                    _thread.start_new_thread(self._help, ())  # unlike Thread.start, it waits for nothing
                    self.threads += 1
            except RuntimeError:  # no thread can begin where there are too many, or Python is about to end
                pass
        for _ in range(count):
            self.jobs.put(job)

    def withdraw(self, job: _Job) -> None:
        """Close a job to workers, and wait for those that have joined; it may be called twice."""
        with self.lock:
            job.work = None
        while job.running:  # each that runs has yet to make its entry
            job.ended.get()

    def _help(self) -> None:
        np.seterr(all="ignore")  # for this thread alone
        while True:
            self._join(self.jobs.get())

    def _join(self, job: _Job) -> None:
        """Work on a job, if it has not been withdrawn."""
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
            del work  # frees the arrays of its tasks
            with self.lock:
                job.running -= 1
            job.ended.put(None)


_pools: list[_Pool] = [_Pool()]


def share(
    tasks: Sequence[Task], worker: Callable[[], Callable[[Task], None]], stop: Callable[[], None] | None = None
) -> None:
    """Run tasks in this thread and in others, up to `thread_count`.

    `worker`: called in each thread; returns the function that runs a task there.
    `stop`: called where an error or interrupt ends it, so that tasks of other threads end early.
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
        # No thread may write into arrays after this call; the interrupt may have come while the job was withdrawn.
        is_stopped.append(True)
        if stop is not None:
            stop()
        pool.withdraw(job)
        raise
    if job.errors:
        raise job.errors[0]


def _after_fork() -> None:
    _pools[0] = _Pool()  # the child has none of its parent's threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
