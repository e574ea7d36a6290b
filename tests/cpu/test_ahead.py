"""Kernels of a plan, compiled before its first run and several at a time; no time is measured."""

from __future__ import annotations

import logging
import re
import signal
import time
from typing import Any

import numpy as np
import pytest

from backends import gen_backend
from backends.cpu import ahead, compiler
from backends.cpu.compiler import find_compiler
from backends.cpu.runtime import builtin
from backends.execution import compilations
from backends.execution.ahead import Foresight
from optree import function, grad
from optree.autodiff.recompute import checkpoint
from optree.compile import reference
from optree.errors import CompilerError
from optree.op.traits import ElementwiseOperator, NonDifferentiableOperator, UnaryOperator
from optree.settings import override
from tests.harness.compiling import adder, appears, done, forget, needs_compiler, private, program, python

pytestmark = [needs_compiler, pytest.mark.usefixtures("folder")]


#: The kernels of `several`: the first tree and the last run along the same elements.
KERNELS = 3


def several(be, number=0.0):
    """Trees of several kernels, and what they are in NumPy."""
    x = be.array(np.linspace(0.1, 1.0, 60).reshape(6, 10), name="x")
    y = x.get().astype(np.float64)
    trees = [be.exp(x) + number, be.sum(x * 3, axis=1), be.max(x - 2, axis=0), be.mean(be.sqrt(x + 0.5))]
    wanted = [np.exp(y) + number, (y * 3).sum(1, keepdims=True), (y - 2).max(0, keepdims=True), np.sqrt(y + 0.5).mean()]
    return trees, wanted


def by_way_of(monkeypatch, tmp_path, first):
    """Let CC be a program that runs a compiler after something else."""
    real = find_compiler().command[0]
    monkeypatch.setenv("CC", str(program(tmp_path / "mine", f'{first}\nexec {real} "$@"')))


def most_at_once(log):
    """How many compilers ran at a time, from the lines that each wrote as it began and as it ended."""
    running = most = 0
    for line in log.read_text().split():
        running += 1 if line == "begin" else -1
        most = max(most, running)
    assert running == 0
    return most


@pytest.mark.parametrize("threads, jit", [(1, True), (2, True), (3, True), (2, "always")])
def test_so_many_compilers_run_at_once(monkeypatch, tmp_path, threads, jit, counted):
    """Each compiler waits until as many have begun as may run at a time; with one alone it would wait for a minute."""
    log, real = tmp_path / "log", find_compiler().command[0]
    waits = f"""
        echo begin >> {log}
        while [ $(grep -c begin {log}) -lt {threads} ]; do sleep 0.02; done
        {real} "$@"; status=$?
        echo end >> {log}
        exit $status
    """
    be = gen_backend("cpu", jit=jit)
    assert builtin() is not None  # its source is compiled alone
    with override(num_threads=threads, compile_seconds=60):
        trees, wanted = several(be)
        before = counted()["misses"]
        monkeypatch.setenv("CC", str(program(tmp_path / "mine", waits)))
        for found, expected in zip(function([], trees)(), wanted, strict=True):
            np.testing.assert_allclose(np.squeeze(found.get()), np.squeeze(expected), rtol=1e-5)
    assert most_at_once(log) == threads
    assert counted()["misses"] - before == KERNELS


def layers(be):
    x, w = be.array(np.linspace(-1, 1, 320).reshape(32, 10), name="x"), be.array(np.ones((10, 8)) / 8, name="w")
    hidden = be.tanh(be.dot(x, w)) * 2
    loss = be.mean(be.square(be.softmax(hidden, axis=1) - 0.1))
    return function([], loss, updates=[(w, w - 0.1 * grad(loss, w))])


def heads(be):
    x = be.array(np.linspace(-1, 1, 960).reshape(2, 4, 120), name="x")
    parts = be.transpose(be.reshape(x, (2, 4, 3, 2, 20)), (2, 0, 3, 1, 4))
    query, key, value = (be.slice(parts, i) for i in range(3))
    found = be.attention(be.tanh(query), key * 2, value + 1, causal=True)
    return function([], be.exp(be.reshape(be.transpose(found, (0, 2, 1, 3)), (2, 4, 40))) + x[:, :, :40])


def strided(be):
    x = be.array(np.linspace(0.1, 1, 480).reshape(20, 24), name="x")
    columns, turned = be.sum(be.log(x), axis=0), be.exp(x.T) * 2
    drawn = be.dot(x * be.dropout_mask(x, 0.9), be.exp(x.T)) + 1
    return function([], [columns, turned, be.sqrt(x[::2, 1::3]), turned + be.cumsum(x, axis=1).T, drawn])


PROGRAMS = {each.__name__: each for each in (layers, heads, strided)}


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("build", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_compiled_ahead_is_what_runs(build, counted, monkeypatch, tmp_path):
    """As many are compiled as one after the other, and the kernels of the plan together."""
    together = []
    whole = compiler._from_compiler

    def spy(*given):
        together.append(compilations.running_compilers() is not None)
        return whole(*given)

    monkeypatch.setattr(compiler, "_from_compiler", spy)
    assert builtin() is not None  # once for a process: not of what is counted
    counts, values = [], []
    for threads in (1, 2):
        together.clear()
        with override(num_threads=threads, cache_dir=tmp_path / str(threads)):
            forget()
            be = gen_backend("cpu", rng_seed=0, jit=True)
            run = build(be)
            before = counted()
            found = [run(), run()]
        counts.append({name: number - before[name] for name, number in counted().items()})
        values.append([x.get() for each in found for x in (each if isinstance(each, list | tuple) else [each])])
    assert counts[0] == counts[1] and counts[1]["misses"] > 1
    assert together.count(True) > 1
    for one, two in zip(*values, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_failure_is_raised_by_the_kernel_that_fails_and_others_are_not_begun(monkeypatch, tmp_path):
    calls, broken = tmp_path / "calls", tmp_path / "broken"
    by_way_of(monkeypatch, tmp_path, f"echo >> {calls}; if [ -e {broken} ]; then echo no licence; exit 3; fi")
    with override(num_threads=2):
        be = gen_backend("cpu", jit=True)
        trees, wanted = several(be)
        run = function([], trees)
        broken.touch()
        calls.unlink()
        with pytest.raises(CompilerError, match="no licence"):
            run()
        # Each of two threads has tried one kernel, with its flags and then without.
        assert len(calls.read_text()) <= 4
        broken.unlink()
        np.testing.assert_allclose(run()[0].get(), wanted[0], rtol=1e-6)


def test_auto_goes_on_by_numpy_where_compilers_fail_together(monkeypatch, tmp_path, caplog):
    broken = tmp_path / "broken"
    by_way_of(monkeypatch, tmp_path, f"if [ -e {broken} ]; then echo no licence; exit 3; fi")
    with override(num_threads=2), caplog.at_level(logging.WARNING):
        be = gen_backend("cpu", rng_seed=0)
        be.when = be.when._replace(work=0)
        broken.touch()
        trees, wanted = several(be)
        run = function([], trees)
        for _ in range(3):
            for found, expected in zip(run(), wanted, strict=True):
                np.testing.assert_allclose(np.squeeze(found.get()), np.squeeze(expected), rtol=1e-5)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "no licence" in line and "all that is not compiled yet" in line


def test_an_op_whose_expression_does_not_compile_stops_no_other_kernel(counted, caplog):
    class Misspelt(NonDifferentiableOperator, UnaryOperator, ElementwiseOperator):
        numpy = np.tanh
        kernel = "no_such_function_at_all({0})"

    with override(num_threads=2):
        be = gen_backend("cpu", jit="always")
        trees, _ = several(be, float(adder()[1]))
        found = function([], [Misspelt()(trees[1]) + 1, *trees])()
    np.testing.assert_allclose(found[0].get(), np.tanh(trees[1].asnumpyarray()) + 1, rtol=1e-6)
    assert any("Misspelt" in record.getMessage() for record in caplog.records)
    assert counted()["misses"] >= KERNELS - 1


SEVERAL = """
import pathlib, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from backends import gen_backend
from optree import function
from tests.cpu.test_ahead import several
be = gen_backend("cpu", jit=True)
run = function([], several(be)[0])
pathlib.Path({slow!r}).touch()
"""


def test_an_interrupt_stops_all_compilers(monkeypatch, folder, tmp_path):
    slow, pids = tmp_path / "slow", tmp_path / "pids"
    by_way_of(monkeypatch, tmp_path, f"if [ -e {slow} ]; then echo $$ >> {pids}; sleep 60; fi")
    code = (
        SEVERAL.format(slow=str(slow))
        + f"""
try:
    run()
except KeyboardInterrupt:
    pathlib.Path({str(slow)!r}).unlink()
    print(run()[1].get().sum())
"""
    )
    process = python(code, OPTREE_CACHE_DIR=folder, OPTREE_NUM_THREADS=2)
    assert appears(pids)
    for _ in range(3000):
        if len(pids.read_text().split()) == 2:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert float(done(process)) == pytest.approx(several(gen_backend("cpu"))[1][1].sum(), rel=1e-5)
    assert len(pids.read_text().split()) == 2
    assert not [file for file in private(folder).iterdir() if file.name.startswith("tmp-")]


def test_a_child_forked_meanwhile_can_compile(monkeypatch, folder, tmp_path):
    slow, begun = tmp_path / "slow", tmp_path / "begun"
    by_way_of(monkeypatch, tmp_path, f"if [ -e {slow} ]; then touch {begun}; sleep 0.5; fi")
    code = (
        SEVERAL.format(slow=str(slow))
        + f"""
import os, threading
from tests.harness.compiling import appears
thread = threading.Thread(target=run)
thread.start()
assert appears(pathlib.Path({str(begun)!r}))
if (child := os.fork()) == 0:
    signal.alarm(40)
    function([], several(be)[0])()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""
    )
    done(python(code, OPTREE_CACHE_DIR=folder, OPTREE_NUM_THREADS=2))


def test_a_terminal_is_told_how_many_there_are_and_how_many_are_to_come(monkeypatch, capsys, folder):
    monkeypatch.setattr(compilations, "PATIENCE", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    be = gen_backend("cpu", jit=True)
    forget()
    monkeypatch.setattr(compiler._loaded, "announced", False)
    capsys.readouterr()
    with override(num_threads=2):
        function([], several(be, float(adder()[1]))[0])()
    told = capsys.readouterr().err
    (line,) = told.splitlines()
    assert re.search(r"compiling kernels: \d+ in \d+\.\d s so far, [12] to come; .*cached in", line)
    assert str(folder) in line


@pytest.mark.matrix(least=0)
def test_routines_compile_together_with_kernels(monkeypatch, counted):
    """After the joint compilation the first run compiles nothing: convolutions, pools, attention and products."""
    be, rng = gen_backend("cpu", jit=True), np.random.default_rng(0)
    shapes = (2, 3, 16, 16), (12, 3, 3, 3), (40, 12, 3, 3), (1, 2, 64, 32), (256, 256)
    x, narrow, wide, heads, square = (be.array(rng.normal(size=shape).astype("float32")) for shape in shapes)
    y = be.max_pool(be.relu(be.conv(be.relu(be.conv(x, narrow, padding=1)), wide, padding=1)), 2)
    trees = [*grad(be.sum(y * y), [narrow, wide]), be.attention(heads, heads, heads) * 2, be.dot(square, square) + 1]
    concurrently, after = ahead.concurrently, []

    def recorded(jobs):
        found = concurrently(jobs)
        after.append(counted()["misses"])
        return found

    monkeypatch.setattr(ahead, "concurrently", recorded)
    with override(num_threads=2):
        results = function([], trees)()
    assert after == [counted()["misses"]] and len(results) == len(trees)


def test_views_that_are_foreseen_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have memory of one element, and seem to overlap: a copy would read beyond it."""
    copied, foreseen = list[Any](), list[int]()
    whole, own = Foresight.run, reference._own

    def watched(foresight: Foresight) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(reference, "_own", lambda value, others: (copied.append(value), own(value, []))[1])
            found = whole(foresight)
        foreseen.append(len(found))
        return found

    monkeypatch.setattr(Foresight, "run", watched)
    be = gen_backend("cpu", jit=True)
    w = be.array(np.full((8, 8), 0.25), name="w")
    y = checkpoint(lambda x: be.tanh(be.dot(x, w)))(be.ones((16, 8)))
    with override(num_threads=2):
        function([], grad(be.sum(be.square(y)), w))()
    assert sum(foreseen) and not copied
