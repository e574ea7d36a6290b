"""Threads that share a kernel's places: each is taken once, whoever calls, sleeps, is busy or has been forked away."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from harness.compiling import done, in_children, program, python
from harness.threads import in_threads

from backends import gen_backend
from backends.cpu.compiler import compile_source, find_compiler
from backends.cpu.runtime import Length, share_address
from optree.settings import override

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")

PART = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
SHARE = ctypes.CFUNCTYPE(None, PART, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def shared(run, count: int, threads: int, length: Length = "long") -> None:
    """Let threads share the numbers up to a count."""
    SHARE(share_address(length))(PART(run), None, count, threads)


@pytest.mark.matrix(least=8)
@pytest.mark.parametrize("length", ["long", "unknown", "short"])
@pytest.mark.parametrize("threads", [1, 2, 3, 8, 300])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 16, 1000])
def test_each_place_is_taken_once(count, threads, length):
    times = np.zeros(count, int)
    numbers = set()

    def run(state, begin, end, thread):
        times[begin:end] += 1
        numbers.add(thread)

    for _ in range(20):
        shared(run, count, threads, length)
    assert (times == 20).all()
    assert numbers <= set(range(threads))


def test_whoever_is_done_takes_what_others_have_not_begun():
    """The thread that calls would take half of the places, if each kept to its own."""
    mine, caller, told = [], threading.get_ident(), threading.Event()

    def run(state, begin, end, thread):
        if threading.get_ident() == caller:
            mine.extend(range(begin, end))
            if len(mine) >= 150:
                told.set()
        else:
            told.wait(10)  # as one that has no processor

    for _ in range(3):
        mine.clear()
        told.clear()
        shared(run, 200, 2)
        assert len(mine) >= 150


#: A part that takes as many rounds for each number as the state says.
ROUNDS = """
#include <stdint.h>

void rounds(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    for (volatile int64_t i = (end - begin) * *(const int64_t *)state; i > 0; i--)
        ;
}
"""


def _sleeps():
    """How often the other threads of this process have gone to sleep, once they all sleep."""
    before = -1
    while True:
        count = 0
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
                if task.name != str(threading.get_native_id()):
                    status = (task / "status").read_text()
                    count += int(re.search(r"\nvoluntary_ctxt_switches:\s*(\d+)", status)[1])
        if count == before:
            return count
        before = count
        time.sleep(0.01)


@pytest.mark.matrix(least=2)
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads Linux's counts of context switches")
@pytest.mark.parametrize(
    ("length", "count", "rounds", "in_a_row", "wakes"),
    [
        ("unknown", 1000, 1, 1, False),
        ("unknown", 1000, 20000, 1, True),
        ("unknown", 1000, 10, 30, True),
        ("short", 2, 20000, 1, False),
        ("short", 2, 20000, 30, True),
        ("long", 2, 20000, 1, True),
    ],
    ids=["short", "long", "short, but many in a row", "known", "known, but many in a row", "known as long"],
)
def test_threads_that_sleep_are_woken_for_long_work_alone(length, count, rounds, in_a_row, wakes):
    part = ctypes.cast(compile_source(ROUNDS, "rounds", (ctypes.c_void_p,) + (ctypes.c_int64,) * 3), PART)
    share, state = SHARE(share_address(length)), ctypes.byref(ctypes.c_int64(rounds))
    shared(lambda state, begin, end, thread: None, 2, 2)  # starts a thread
    woken, times = 0, 10
    for _ in range(times):
        before = _sleeps()
        for _ in range(in_a_row):
            share(part, state, count, 2)
        woken += _sleeps() > before
    assert woken > times / 2 if wakes else woken < times / 2


#: Programs whose threads nobody else may have begun.
PROGRAMS = {
    # Linux's scheduler often wakes threads there, though other processors are idle.
    "the caller's processor is left to it": """
import os
def processor():
    return int(open("/proc/thread-self/stat").read().rpartition(") ")[2].split()[36])
be = gen_backend("cpu", jit=True)
x = be.array(np.arange(1 << 20, dtype="float32"))
y = be.empty(x.shape)
def told():
    while True:  # until it runs on the same processor before and after
        before = processor()
        y[:] = x * 2 + 1
        if processor() == before:
            break
    workers = [int(task) for task in os.listdir("/proc/self/task") if int(task) != os.getpid()]
    assert len(workers) == threads - 1
    return all(os.sched_getaffinity(worker) == os.sched_getaffinity(0) - {before} for worker in workers)
for threads in (2, 3):
    with override(num_threads=threads):
        assert any(told() for _ in range(3))  # not where it left for a moment
if not os.fork():
    with override(num_threads=3):
        os._exit(not any(told() for _ in range(3)))
assert os.wait()[1] == 0
""",
    "a forked child has threads of its own": """
import os, signal, threading
def run():
    be = gen_backend("cpu", jit=True)
    x = be.array(np.arange(1 << 20, dtype="float32"))
    return (x * 2 + 1).asnumpyarray().tolist()[-1], len(os.listdir("/proc/self/task"))
with override(num_threads=3):
    (value, parents), wanted = run(), 2.0 * ((1 << 20) - 1) + 1
    assert value == wanted
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        assert len(os.listdir("/proc/self/task")) == 1
        os._exit(run() != (wanted, 3))
    assert os.waitpid(child, 0)[1] == 0
    assert run() == (wanted, parents)
""",
    # The program's own may block them, and wait for them.
    "the threads take no signals": """
import os, signal, time
x = gen_backend("cpu", jit=True).array(np.arange(1 << 20, dtype="float32"))
with override(num_threads=3):
    (x * 2 + 1).asnumpyarray()
assert len(os.listdir("/proc/self/task")) == 3
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
time.sleep(0.2)
assert signal.sigtimedwait({signal.SIGUSR1}, 10).si_signo == signal.SIGUSR1
""",
    "a million bytes are reduced without threads": """
import os
be = gen_backend("cpu", jit=True)
x, y = be.array(np.ones((1024, 1024)), dtype="bool"), be.array(np.ones((1024, 1024)), dtype="uint8")
with override(num_threads=3):
    for tree in (np.any(x), np.all(x), np.max(y), np.min(y, axis=1)):
        assert tree.asnumpyarray().all()
    assert len(os.listdir("/proc/self/task")) == 1
    assert (x + y).asnumpyarray().all()
    assert len(os.listdir("/proc/self/task")) == 3
""",
    "there is room for tiles where the system gives little": """
import ctypes
c, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(256)
c.pthread_attr_init(attributes)
c.pthread_attr_setstacksize(attributes, ctypes.c_size_t(128 << 10))
assert c.pthread_setattr_default_np(attributes) == 0
be = gen_backend("cpu", jit=True)
square = np.arange(1 << 20, dtype="float64").reshape(1024, 1024)
x, y, z = (be.array(square, dtype="float64") for _ in range(3))
with override(num_threads=4):
    for _ in range(5):
        z[:] = x.T + y.T * 2
assert (z.get() == 3 * square.T).all()
""",
}

#: What a program needs.
NEEDS = {
    "the caller's processor is left to it": Path("/proc/self/task").is_dir() and len(os.sched_getaffinity(0)) > 1,
    "there is room for tiles where the system gives little": hasattr(ctypes.CDLL(None), "pthread_setattr_default_np"),
}


def test_threads_of_whole_programs(folder):
    head = "import numpy as np; from backends import gen_backend; from optree.settings import override"
    programs = {name: code for name, code in PROGRAMS.items() if NEEDS.get(name, True)}
    in_children(head, programs, OPTREE_CACHE_DIR=folder, OPENBLAS_NUM_THREADS="1")


def test_several_callers_at_once():
    """One has the threads, and the others work alone."""

    def call(_):
        for count in range(1, 200):
            taken = []
            shared(lambda state, begin, end, thread: taken.append(end - begin), count, 3)  # noqa: B023 done by then
            assert sum(taken) == count

    in_threads(call, 6)


def test_numpy_goes_on_where_the_sharing_function_alone_does_not_compile(folder, tmp_path):
    text = f'grep -q "void share(" kernel.c && exit 3; exec {find_compiler()} "$@"'
    code = """
    import numpy as np
    from backends import gen_backend
    from optree.settings import override
    def values(jit):
        be = gen_backend("cpu", jit=jit, datatype="float64")
        x = be.array(np.random.default_rng(0).normal(size=(512, 1024)))
        w = be.array(np.eye(16))
        parts = be.array(np.ones((9, 32, 16)))
        loop = be.scan(lambda h, part: (be.tanh(be.dot(h, w) + part), None), be.zeros((32, 16)), parts)
        heads = be.array(np.random.default_rng(0).normal(size=(1, 2, 128, 64)))
        images = be.array(np.random.default_rng(0).normal(size=(8, 8, 32, 32)))
        filters = be.array(np.random.default_rng(0).normal(size=(8, 8, 3, 3)))
        trees = be.dot(x, x.T), be.softmax(x, axis=1), loop[0], be.attention(heads, heads, heads)
        trees = *trees, be.conv(images, filters), be.sum(x * x)
        return [tree.asnumpyarray() for tree in trees]
    with override(num_threads=3):
        for found, wanted in zip(values("always"), values(False), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    """
    done(python(code, OPTREE_CACHE_DIR=folder, OPENBLAS_NUM_THREADS="1", CC=program(tmp_path / "mine", text)))


def test_more_threads_than_there_can_be(folder):
    """No memory is asked for them."""
    be = gen_backend("cpu", jit=True)
    x, z = be.array(np.random.default_rng(0).standard_normal((1000, 3000))), be.empty((1000, 3000))
    z[:] = be.softmax(x, axis=1)
    wanted = z.asnumpyarray()
    with override(num_threads=10**12):
        for _ in range(2):
            z[:] = be.softmax(x, axis=1)
            np.testing.assert_array_equal(z.get(), wanted)


def test_results_do_not_depend_on_the_number_of_threads():
    be = gen_backend("cpu", rng_seed=0, jit=True)
    x = be.array(np.random.default_rng(0).standard_normal((300, 2000)))
    trees = [
        be.softmax(x, axis=1),
        be.sum(x * x),
        be.sum(x, axis=0),
        be.softmax(x, axis=(0, 1)),
        x + be.sum(x, axis=1),
        x.T + 1,
    ]
    found = []
    for threads in (1, 2, 5):
        with override(num_threads=threads):
            found.append([tree.asnumpyarray() for tree in trees])
    for alone, *others in zip(*found, strict=True):
        for other in others:
            np.testing.assert_array_equal(other, alone)
