"""Kernels of a plan on a GPU, compiled before its first run and several at a time; no time is measured."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from harness.homes import home

from backends.execution import compilations
from backends.gpu import joined
from backends.gpu.runtime import KernelHost
from optree import function, grad
from optree.errors import CompilerError
from optree.settings import carried, override
from tests.cpu.test_ahead import KERNELS, several
from tests.cpu.test_ahead import PROGRAMS as ON_CPU

pytestmark = pytest.mark.usefixtures("folder")


def images(be: Any) -> Any:
    x = be.array(np.linspace(-1, 1, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6))
    first, second = (
        be.array(np.ones((4, 3, 3, 3)) / 9, name="first"),
        be.array(np.ones((2, 4, 3, 3)) / 9, name="second"),
    )
    loss = be.mean(be.square(be.conv(be.tanh(be.conv(x, first)), second)))
    return function([], loss, updates=[(w, w - 0.1 * grad(loss, w)) for w in (first, second)])


def regions(be: Any) -> Any:
    x = be.array(np.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8), name="x")
    boxes = be.array([[0, 0, 0, 4, 4], [1, 2, 1, 6, 7]])
    taken = be.roi_align(be.resize(be.max_pool(be.tanh(x), 2), (6, 6)), boxes, (2, 2))
    loss = be.mean(be.square(taken)) + be.sum(be.avg_pool(x * 2, 2))
    return function([], loss, updates=[(x, x - 0.1 * grad(loss, x))])


def loop(be: Any) -> Any:
    x, w = be.array(np.linspace(-1, 1, 96).reshape(6, 4, 4), name="x"), be.array(np.ones((4, 4)) / 5, name="w")

    def step(state: Any, slice: Any) -> Any:
        state = be.softmax(be.dot(be.tanh(state), w) + slice, axis=1)
        return state, be.sum(be.square(state), axis=0)

    _, outputs = be.scan(step, be.zeros((4, 4)), x)
    loss = be.mean(outputs)
    return function([], loss, updates=[(w, w - 0.1 * grad(loss, w))])


PROGRAMS = {**ON_CPU, "images": images, "regions": regions, "loop": loop}

#: The kernels that are alone in the plan of a step of attention's tiles: each is compiled when it runs.
ALONE = {"heads": 3}


@pytest.fixture
def make(device_kind: str) -> Callable[[], Any]:
    """Makes a backend."""
    return lambda: home(device_kind, rng_seed=0)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent kernels have launches of their own, and sources."""
    monkeypatch.setattr(joined, "SMALL", -1)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Of each source that has been compiled, whether together with others."""
    found: list[bool] = []
    whole = KernelHost._compiled

    def spy(host: KernelHost, source: str, options: Sequence[str]) -> bytes:
        found.append(compilations.running_compilers() is not None)
        return whole(host, source, options)

    monkeypatch.setattr(KernelHost, "_compiled", spy)
    return found


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_compiled_ahead_is_what_runs(
    name: str, make: Callable[[], Any], compiled: list[bool], tmp_path: Any
) -> None:
    """As many are compiled as one after the other, and all kernels of the plan ahead."""
    counts, values = [], []
    for threads in (1, 2):
        with override(num_threads=threads, cache_dir=tmp_path / str(threads)):
            be = make()
            run = PROGRAMS[name](be)
            before, _ = be.stats()["kernels"]["misses"], compiled.clear()
            found = [run() for _ in range(3)]
            counts.append(be.stats()["kernels"]["misses"] - before)
            assert be.stats()["graphs"]["captures"]
        values.append([x.get() for each in found for x in (each if isinstance(each, list) else [each])])
    assert counts[0] == counts[1] == len(compiled)
    assert compiled.count(False) == ALONE.get(name, 0) < len(compiled)
    for one, two in zip(*values, strict=True):
        np.testing.assert_array_equal(one, two)


def test_values_that_are_foreseen_share_the_memory_of_one_element(make: Callable[[], Any]) -> None:
    be = make()
    with be.active():
        be.memory.unallocated((2,), np.dtype("float32"))
        before = be.stats()["memory"]["used"]
        found = [be.memory.unallocated((1000, n), np.dtype("float64")) for n in range(100)]
    assert be.stats()["memory"]["used"] == before
    assert [x.shape for x in found] == [(1000, n) for n in range(100)]


@pytest.mark.usefixtures("apart")
def test_so_many_are_compiled_at_once(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three compilations waits until all have begun."""
    together, whole = threading.Barrier(KERNELS, timeout=60), KernelHost._compiled

    def waits(host: KernelHost, *given: Any) -> bytes:
        together.wait()
        return whole(host, *given)

    be = make()
    trees, wanted = several(be)
    run = function([], trees)
    be.synchronize()
    monkeypatch.setattr(KernelHost, "_compiled", waits)
    with override(num_threads=KERNELS):
        found = run()
    assert be.stats()["kernels"]["misses"] >= KERNELS
    for x, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.squeeze(x.get()), np.squeeze(expected), rtol=1e-5)


def test_a_failure_is_raised_by_the_kernel_that_fails_and_the_next_call_compiles_again(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    be = make()
    trees, wanted = several(be)
    run = function([], trees)
    be.synchronize()
    tried: list[str] = []

    def fails(host: KernelHost, source: str, options: Sequence[str]) -> bytes:
        tried.append(source)
        raise CompilerError("no licence")

    with override(num_threads=2):
        with monkeypatch.context() as patch:
            patch.setattr(KernelHost, "_compiled", fails)
            with pytest.raises(CompilerError, match="no licence") as caught:
                run()
        assert "while running" in str(caught.value.__notes__)
        assert len(tried) <= 3, "each of two threads has tried one, and the kernel that runs first"
        np.testing.assert_allclose(run()[0].get(), wanted[0], rtol=1e-6)


@pytest.mark.usefixtures("apart")
def test_two_threads_that_need_a_source_compile_it_once(make: Callable[[], Any], compiled: list[bool]) -> None:
    be = make()
    runs = [function([], several(be)[0]) for _ in range(2)]
    be.synchronize()
    compiled.clear()

    with override(num_threads=2):
        threads = [threading.Thread(target=carried(run)) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(compiled) == KERNELS


@pytest.mark.usefixtures("apart")
def test_a_terminal_is_told_how_many_there_are_and_how_many_are_to_come(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, folder: Any
) -> None:
    be = make()
    run = function([], several(be)[0])
    be.kernels.counts.announced = False
    monkeypatch.setattr(compilations, "PATIENCE", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    capsys.readouterr()
    with override(num_threads=2):
        run()
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"compiling kernels: \d+ in \d+\.\d s so far, [12] to come; .*cached in", line)
    assert str(folder) in line
