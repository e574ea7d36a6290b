"""Compiled kernels are unloaded when nothing can run them, and never before."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest
from harness.compiling import added, adder, done, needs_compiler, python
from harness.threads import in_threads

from backends import backend, gen_backend
from backends.cpu import compiler
from backends.cpu.compiler import compile_source
from optree import TensorType, function

pytestmark = [
    needs_compiler,
    pytest.mark.usefixtures("folder"),
    pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="this system does not say what is mapped"),
]


def loaded() -> int:
    """How many kernels are mapped."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        return len({line.split()[4] for line in maps if "memfd:optree" in line})


@pytest.fixture
def few(monkeypatch: Any) -> int:
    """At most three kernels stay that nothing uses."""
    gen_backend("cpu", jit=True).ones(2).get()
    compiler._loaded.forget()
    monkeypatch.setattr(compiler, "RECENT", 3)
    return loaded()


def test_what_nobody_uses_is_unloaded(few: int) -> None:
    for _ in range(8):
        source, number = adder()
        assert added(compile_source(source, "add")) == number
    assert loaded() == few + 3


def test_a_function_that_is_kept_stays_loaded(few: int) -> None:
    found = [(compile_source(source, "add"), number) for source, number in (adder() for _ in range(8))]
    assert loaded() == few + 8
    assert all(added(call) == number for call, number in found)
    del found
    assert loaded() == few + 3


def test_a_kernel_in_use_is_found_though_many_were_loaded_since(few: int, counted: Any) -> None:
    source, number = adder()
    call = compile_source(source, "add")
    for other, _ in (adder() for _ in range(5)):
        compile_source(other, "add")
    again = compile_source(source, "add")
    assert added(call) == added(again) == number
    assert counted()["hits"] == 1


def chain(be: Any, x: Any, places: int) -> Any:
    """A tree of a kernel of its own."""
    for bit in range(5):
        x = x + 1 if places >> bit & 1 else be.maximum(x * 2, 3)
    return x


def value_of(x: float, places: int) -> float:
    for bit in range(5):
        x = x + 1 if places >> bit & 1 else max(x * 2, 3)
    return x


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("size", [3, 1 << 18])
def test_plans_that_are_forgotten_let_go_of_their_kernels(few: int, monkeypatch: Any, size: int) -> None:
    monkeypatch.setattr(backend, "PLANS", 4)
    be = gen_backend("cpu", jit=True)
    x, z = be.ones(size), be.empty(size)
    for number in range(12):
        for _ in range(3):
            z[:] = chain(be, x, number)
        assert (z.get() == value_of(1, number)).all()
    assert loaded() <= few + 4 + 3 + 2
    first = be.exp(x) * 2
    for number in range(12):  # all of them once more, from disk
        z[:] = chain(be, x, number)
        assert (z.get() == value_of(1, number)).all()
    np.testing.assert_allclose(first.asnumpyarray(), 2 * np.e, rtol=1e-6)


def test_functions_keep_their_kernels_and_let_go_of_them(few: int) -> None:
    be = gen_backend("cpu", jit=True)
    x, z = TensorType("float32", (None,))("x"), be.zeros(3)
    steps = [function([x], chain(be, x, number), updates={z: z + 1}) for number in range(8)]
    for _ in range(3):
        for number, step in enumerate(steps):
            assert step([1, 1, 1]).get().tolist() == [value_of(1, number)] * 3
    many = loaded()
    assert many >= few + 8
    del steps, step
    assert loaded() <= few + 3 + 2


def test_where_kernels_are_too_many_backends_forget_plans(few: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(compiler, "CROWDED", 8)
    monkeypatch.setattr(compiler._loaded, "crowded", 8)
    be = gen_backend("cpu", jit=True)
    x, z = be.ones(3), be.empty(3)
    for number in range(24):
        z[:] = chain(be, x, number)
        assert z.get().tolist() == [value_of(1, number)] * 3
    assert loaded() <= few + 8 + 3 + 3
    assert be.stats()["plans"] < 24


def test_kernels_run_while_others_are_unloaded(few: int, monkeypatch: Any, sample: Any) -> None:
    """Plans are forgotten and compiled anew by six threads at once, each of which runs the others' kernels too."""
    monkeypatch.setattr(backend, "PLANS", 3)
    monkeypatch.setattr(compiler, "RECENT", 1)
    be, count = gen_backend("cpu", jit=True), len(sample(list(range(150)), least=25))

    def work(seed: int) -> None:
        x, order = be.ones(5000), np.random.RandomState(seed)
        for number in order.randint(8, size=count):
            value = be.evaluate([chain(be, x, int(number))])[0].get()
            assert (value == value_of(1, number)).all()

    in_threads(work, 6)


def test_a_process_ends_while_a_thread_runs_kernels(folder: Any) -> None:
    code = """
    import threading
    from backends import gen_backend
    be = gen_backend("cpu", jit=True)
    x, z, begun = be.ones(1 << 20), be.empty(1 << 20), threading.Event()
    def work():
        while True:
            z[:] = be.exp(x) * 2 + be.sin(x)
            begun.set()
    threading.Thread(target=work, daemon=True).start()
    assert begun.wait(50)
    """
    done(python(code, OPTREE_CACHE_DIR=folder))
