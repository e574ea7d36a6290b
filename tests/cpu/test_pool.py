"""The pool of threads: an interrupt at any moment leaves no lock taken, and nobody at work."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from harness.compiling import done, python

from backends.execution.thread_pool import share
from optree.settings import override

#: Seven threads that share work all the time, and in the main one Ctrl-C again and again, each at a random moment.
INTERRUPTED = """
import faulthandler, random, signal, threading, time
import numpy as np
from backends.execution.thread_pool import share
from optree import settings

faulthandler.dump_traceback_later(60, exit=True)
main, ended, rounds, inside = threading.get_ident(), threading.Event(), [0] * 7, []

def fill(x, task):
    helps = threading.get_ident() != main
    if helps:
        inside.append(id(x))
    np.add(x[task], 1, out=x[task])
    if helps:
        inside.remove(id(x))

def work(x):
    share(range(len(x)), lambda: lambda task: fill(x, task))

def others(number):
    x = np.zeros((16, 100))
    with settings.override(num_threads=4):
        while not ended.is_set():
            work(x)
            rounds[number] += 1
            assert (x == rounds[number]).all()

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
threads = [threading.Thread(target=others, args=(n,)) for n in range(7)]
for thread in threads:
    thread.start()
random.seed(SEED)
interrupts, end = 0, time.monotonic() + SECONDS
with settings.override(num_threads=4):
    while interrupts <= 10 or time.monotonic() < end:  # however slow a busy machine is
        x = np.zeros((16, 100))
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 3e-3))
            while True:
                work(x)
        except KeyboardInterrupt:
            interrupts += 1
        assert id(x) not in inside
        before = x.copy()
        work(x)
        assert (x == before + 1).all()
before = list(rounds)
limit = time.monotonic() + 30
while any(now <= then for now, then in zip(rounds, before)):
    assert time.monotonic() < limit, (before, rounds)
    time.sleep(0.01)
ended.set()
for thread in threads:
    thread.join(30)
assert not any(thread.is_alive() for thread in threads)
"""


def test_interrupts_at_random_moments_stop_nobody_else(request: Any) -> None:
    """With --all, for four times as long."""
    seconds = "4" if request.config.getoption("all") else "1"
    for seed in range(2):
        code = INTERRUPTED.replace("SEED", str(seed)).replace("SECONDS", seconds)
        done(python(code, OPENBLAS_NUM_THREADS="1"), limit=100)


def test_work_that_nobody_came_for_is_let_go() -> None:
    """Though helpers, all busy, have invitations to it still."""
    busy, go_on = threading.Semaphore(0), threading.Event()

    def wait(task: int) -> None:
        busy.release()
        go_on.wait(30)

    def call() -> None:
        with override(num_threads=3):
            share(range(3), lambda: wait)

    x = np.zeros(10)
    known = weakref.ref(x)
    caller = threading.Thread(target=call)
    caller.start()
    try:
        assert all(busy.acquire(timeout=30) for _ in range(3))
        with override(num_threads=3):
            share(range(5), lambda x=x: lambda task: x.fill(task))
        del x
        gc.collect()
        assert known() is None
    finally:
        go_on.set()
        caller.join(30)


def test_a_task_that_fails_is_told_and_the_others_end():
    with override(num_threads=3):
        seen: list[int] = []

        def work(task: int) -> None:
            if task == 5:
                raise RuntimeError("five")
            seen.append(task)

        with pytest.raises(RuntimeError, match="five"):
            share(range(200), lambda: work)
        share(range(200, 300), lambda: work)
        assert set(range(200, 300)) <= set(seen)


def test_threads_help_each_other():
    """Each of two tasks waits for the other to have begun."""
    barrier = threading.Barrier(2, timeout=60)
    with override(num_threads=2):
        share(range(2), lambda: lambda task: barrier.wait())


def test_numpy_warns_in_no_thread():
    barrier, found = threading.Barrier(3, timeout=60), {}

    def work(task: int) -> None:
        barrier.wait()
        found[threading.get_ident()] = np.geterr()["divide"]

    with override(num_threads=3), np.errstate(all="raise"):
        share(range(3), lambda: work)
    assert found.pop(threading.get_ident()) == "raise"  # of which the backend takes care
    assert [*found.values()] == ["ignore"] * 2


FORKING = """
    import os, sys
    import numpy as np
    from backends import gen_backend

    be = gen_backend("cpu", jit=False)
    x = be.array(np.arange(1 << 20).reshape(16, -1))
    def check():
        assert np.cumsum(x, axis=1).asnumpyarray().max() > (1 << 20) - 1
    check()
    child = os.fork()
    if not child:
        check()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    check()
    import atexit
    atexit.register(check)  # when no thread can begin any more
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_children_have_threads_of_their_own():
    done(python(FORKING, OPTREE_NUM_THREADS=3))
