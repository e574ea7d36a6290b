"""Memory that functions reuse from call to call: they allocate their outputs alone, and never return that memory."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import numpy as np
import pytest
from harness.counting import allocated
from harness.threads import in_threads

from backends import gen_backend
from backends.cpu.backend import CALL, WORK
from backends.cpu.compiler import find_compiler
from backends.cpu.runtime import builtin
from backends.execution.memory_planner import slots_of
from optree import TensorType, function, grad
from optree.errors import OptreeError
from optree.op.traits import NonDifferentiableOperator, UnaryOperator
from optree.registry import f

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")

MATRIX = TensorType("float32", (None, None))


@pytest.fixture
def be() -> Any:
    return gen_backend("cpu", rng_seed=0, jit=True)


class Network:
    """A network of two layers, cross entropy and momentum: products, reductions, broadcasting, views."""

    def __init__(self, be: Any) -> None:
        rng = np.random.RandomState(0)
        self.be, self.x = be, MATRIX("x")
        self.w = [be.array(rng.normal(size=s).astype(np.float32) * 0.1) for s in ((20, 300), (300, 10))]
        self.m = [be.zeros_like(w) for w in self.w]
        self.classes = be.array(np.eye(10, dtype=np.float32)[rng.randint(10, size=200)])

    def loss(self, x: Any) -> Any:
        be, (v, w) = self.be, self.w
        scores = be.dot(be.tanh(be.dot(x, v)), w)
        return be.mean(be.logsumexp(scores, axis=1) - be.sum(scores * self.classes, axis=1))

    def updates(self, x: Any) -> dict[Any, Any]:
        found = {}
        for w, m, g in zip(self.w, self.m, grad(self.loss(x), self.w), strict=True):
            found[m] = 0.9 * m + g
            found[w] = w - 0.1 * found[m]
        return found


def test_a_training_step_allocates_nothing(be):
    network = Network(be)
    images = be.array(np.random.RandomState(1).uniform(size=(200, 20)).astype(np.float32))
    step = function([], updates=network.updates(images))
    assert allocated(step) < 4096  # its values are of up to 240,000 bytes


def test_a_training_step_on_a_batch_allocates_nothing_but_its_loss(be):
    network = Network(be)
    batch = np.random.RandomState(1).uniform(size=(200, 20)).astype(np.float32)
    step = function([network.x], network.loss(network.x), updates=network.updates(network.x))
    assert allocated(lambda: step(batch)) < 8192


def test_a_loop_writes_what_no_caller_gets_where_it_did_before(be):
    """Of 20 steps: the states before each, and the products, for its derivative."""
    x, w, u = (be.array(np.random.RandomState(0).normal(size=s) * 0.1) for s in ((20, 16, 64), (64, 256), (64, 256)))
    outputs = be.lstm(x, w, u).outputs
    step = function([], updates={u: u - 0.1 * grad(be.sum(outputs * outputs), [u])[0]})
    assert allocated(step) < 20 * 16 * 64 * 4 + 3 * u.nbytes  # products without targets are new


@pytest.mark.parametrize(
    "given",
    [
        lambda state, outputs: outputs,
        lambda state, outputs: f.transpose(outputs, (1, 0, 2)),
        lambda state, outputs: f.slice(outputs, 2),
        lambda state, outputs: f.transpose(state),
    ],
)
def test_what_a_loop_gives_to_a_caller_stays(be, given):
    x = TensorType("float32", (6, 4, 3))("x")
    state, outputs = be.scan(lambda h, x: (f.tanh(h + x),) * 2, be.zeros((4, 3)), x)
    run = function([x], [given(state, outputs), f.sum(outputs)])
    values = np.random.RandomState(0).normal(size=(2, 6, 4, 3)).astype(np.float32)
    first = run(values[0])[0]
    before = first.get().copy()
    assert not np.array_equal(run(values[1])[0].get(), before)
    assert np.array_equal(first.get(), before)


def test_steps_that_reuse_memory_are_right(be):
    """Sizes that change, and come again, and more of them than memory is kept for; against NumPy's executor."""
    plain = gen_backend("cpu", rng_seed=0, jit=False)
    x = MATRIX("x")

    def made(be: Any) -> Any:
        w, total = be.array(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)), be.zeros((4,))
        y = be.tanh(be.dot(x, w))
        outputs = [be.sum(y * y, axis=1), be.dot(y.T, y), be.flip(y, 0), be.softmax(y, axis=1)]
        return function([x], outputs, updates={total: total + be.sum(y, axis=0, keepdims=False)}), total

    (ours, total), (theirs, wanted) = made(be), made(plain)
    results = []
    for call, rows in enumerate((2, 5, 2, 1, 7, 8, 9, 10, 2, 2, 0, 5)):
        given = np.random.RandomState(call).normal(size=(3, rows)).astype(np.float32).T
        results.append((ours(given), theirs(given)))
        np.testing.assert_allclose(total.get(), wanted.get(), rtol=1e-5, atol=1e-6)
    for got, expected in results:  # what was given is nobody's to write to
        for y, z in zip(got, expected, strict=True):
            np.testing.assert_allclose(y.get(), z.get(), rtol=1e-5, atol=1e-6)


def test_values_of_disjoint_lifetimes_share_memory(be):
    x = be.array(np.eye(64))
    y = x
    for _ in range(20):
        y = be.dot(y, x)  # each needs the one before, and no earlier one
    step = function([], updates={x: y})
    step()
    bound = step._plan.bound
    slots = slots_of(bound.lifetimes, dict.fromkeys(bound.lifetimes, 64 * 64 * 4))
    assert len(slots) >= 19 and len(set(slots.values())) == 2
    assert (x.get() == np.eye(64)).all()


def test_an_argument_may_have_another_layout_each_time(be):
    x, w = MATRIX("x"), be.ones((4, 3))
    f = function([x], be.sum(be.dot(x * 2, w), keepdims=False))
    base = np.arange(16.0, dtype=np.float32).reshape(4, 4)
    for given in (base, base.T, base[::-1], base[:, ::-1], np.asfortranarray(base)):
        assert f(given).item() == given.sum() * 6
    wide = np.zeros((4, 8), np.float32)
    wide[:, ::2] = base
    assert f(wide[:, ::2]).item() == base.sum() * 6


def test_after_an_error_a_function_goes_on(be):
    x, places = be.array(np.arange(4.0)), TensorType("int64", (None,))("places")
    total = be.zeros(())
    f = function([places], be.take(x * 2, places) * 1, updates={total: total + be.sum(x, keepdims=False)})
    for bad in (False, True, False, True, False):
        if bad:
            with pytest.raises(OptreeError):
                f([9])
        else:
            assert f([3]).get().tolist() == [6.0]
    assert total.item() == 18.0


def test_updates_read_before_they_are_written(be):
    a, b = be.array([1.0, 2.0]), be.array([3.0, 5.0])
    swap = function([], be.dot(a, b), updates={a: b * 1, b: a * 1})
    products = [swap().item() for _ in range(5)]
    assert products == [13.0] * 5
    assert (a.get().tolist(), b.get().tolist()) == ([3.0, 5.0], [1.0, 2.0])


def test_a_function_that_several_threads_call(be):
    x, w = MATRIX("x"), be.array(np.eye(8))
    f = function([x], be.dot(be.dot(x, w) * 2, w) + 1)

    def work(number: int) -> None:
        given = np.full((number + 1, 8), number, np.float32)
        assert all((f(given).get() == 2 * number + 1).all() for _ in range(100))

    in_threads(work, 6)


def test_repeated_small_work_gets_a_kernel_too():
    be = gen_backend("cpu")
    builtin()  # which counts as well, where it is compiled
    x, z = be.ones(8), be.empty(8)
    before = sum(be.stats()["kernels"][name] for name in ("misses", "disk_hits", "hits"))
    for _ in range(WORK // (4 * CALL) + 2):
        z[:] = be.square(x) * 3 + 1
    assert sum(be.stats()["kernels"][name] for name in ("misses", "disk_hits", "hits")) == before + 1
    assert z.get().tolist() == [4.0] * 8


class Failing(NonDifferentiableOperator, UnaryOperator):
    """x + 1, unless it fails."""

    error: Any = None

    def numpy(self, *arrays: Any) -> Any:
        if Failing.error is not None:
            raise Failing.error()
        return arrays[0] + 1

    def output_shape(self, *shapes: Any) -> Any:
        return shapes[0]


@pytest.mark.parametrize("jit", [True, "auto", False])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_a_call_that_fails_holds_no_argument(monkeypatch, jit, error, first):
    be, x = gen_backend("cpu", jit=jit), TensorType("float32", (None,))("x")
    step = function([x], be.exp(Failing()(be.exp(x))) * x)
    if not first:
        step(np.ones(1 << 21, np.float32))
    monkeypatch.setattr(Failing, "error", error)
    for make in (be.array, np.copy):
        given = make(np.ones(1 << 21, np.float32))
        array = ref(given if isinstance(given, np.ndarray) else given.raw())
        try:  # pytest.raises would keep the traceback, and what its frames hold
            step(given)
        except error:
            pass
        else:
            pytest.fail("it did not fail")
        del given
        gc.collect()
        assert array() is None
    monkeypatch.setattr(Failing, "error", None)
    np.testing.assert_allclose(step(np.zeros(1 << 21, np.float32)).get(), 0)
