"""Functions captured as CUDA graphs: when, what they read and write, and what a failed capture leaves."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from types import ModuleType
from typing import Any, ClassVar
from weakref import ref

import numpy as np
import pytest
from harness.homes import home
from harness.rig.install import Rig, refusing

import optree
from backends import gen_backend
from backends.execution.memory_planner import COMBINATIONS
from backends.gpu.cublaslt import WORKSPACE
from backends.gpu.cuda_graphs import Graphs
from backends.gpu.cupy_device import InFlight
from backends.gpu.workspace import Workspace
from optree import Input, Op, TensorType, debugprint, function
from optree.arrays import portable
from optree.errors import AxisError, BackendError, DeviceMemoryError
from optree.op.apply import Apply
from optree.registry import OPS, f
from optree.run.function import running_on

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("folder")]

MATRIX, VECTOR = TensorType("float32", (None, None)), TensorType("float32", (None,))


@pytest.fixture
def cpu() -> Any:
    return gen_backend("cpu", rng_seed=0, jit=False)


def counts(be: Any) -> tuple[int, int]:
    found = be.stats()["graphs"]
    return found["captures"], found["replays"]


def training(be: Any) -> tuple[Any, list[Any]]:
    """A training step of a small network, which gives its loss, and the network's parameters."""
    random = np.random.RandomState(0)
    first, second = be.array(random.randn(12, 9) * 0.3), be.array(random.randn(9, 4) * 0.3)
    bias = be.zeros((9,))
    x, y = Input(MATRIX, "x"), Input(MATRIX, "y")
    logits = be.dot(be.tanh(be.dot(x, first) + bias), second)
    loss = -be.mean(be.sum(y * be.log_softmax(logits, axis=1), axis=1), keepdims=False)
    parameters = [first, second, bias]
    updates = [(p, p - 0.5 * d) for p, d in zip(parameters, optree.grad(loss, parameters), strict=True)]
    return function([x, y], loss, updates), parameters


def batches(sizes: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.RandomState(1)
    return [
        (random.randn(n, 12).astype(np.float32), np.eye(4, dtype=np.float32)[random.randint(0, 4, n)]) for n in sizes
    ]


def compare(gpu: Any, cpu: Any, sizes: list[int], put: Any = lambda be, x: be.array(x)) -> Any:
    """Train on both, step by step with the same losses, and give the GPU's function."""
    (ours, mine), (theirs, others) = training(gpu), training(cpu)
    for number, batch in enumerate(batches(sizes)):
        losses = [step(*(put(be, x) for x in batch)).get() for be, step in ((gpu, ours), (cpu, theirs))]
        np.testing.assert_allclose(*losses, rtol=2e-5, atol=1e-6, err_msg=f"step {number}")
    for p, q in zip(mine, others, strict=True):
        np.testing.assert_allclose(p.get(), q.get(), rtol=2e-5, atol=1e-6)
    return ours


def test_a_training_step_is_replayed(gpu: Any, cpu: Any) -> None:
    step = compare(gpu, cpu, [8] * 12)
    captures, replays = counts(gpu)
    assert (captures, replays) == (1, 10), "one graph for each step"
    assert debugprint(step, file="str").splitlines()[-1].startswith("captured as a CUDA graph of ")


def test_a_replay_launches_no_kernel_by_itself_and_allocates_its_output_alone(simulated: Rig, gpu: Any) -> None:
    step, _ = training(gpu)
    batch = [gpu.array(x) for x in batches([8])[0]]
    for _ in range(4):
        loss = step(*batch)
    calls, allocations = simulated.driver.calls.copy(), simulated.allocations
    loss = step(*batch)
    calls = simulated.driver.calls - calls
    assert not calls["cuLaunchKernel"] and calls["cudaGraphLaunch"]
    assert simulated.allocations == allocations + 1 and loss.shape == ()


def test_sizes_change_and_come_back(gpu: Any, cpu: Any) -> None:
    compare(gpu, cpu, [8, 8, 8, 8, 5, 5, 5, 5, 8, 5, 8, 3, 8, 3, 3, 3])
    few, _ = counts(gpu)
    compare(gpu, cpu, [*range(1, COMBINATIONS + 3)] * 4)
    assert few % 3 == 0, "each of three sizes was captured once"


def test_sizes_of_what_no_graph_reads_count_too(gpu: Any) -> None:
    w = gpu.array(np.eye(3))
    product = function([x := Input(MATRIX, "x")], gpu.sum(gpu.tanh(gpu.dot(x, w)), axis=1))
    for n in (2, 4, 2, 4, 4, 2, 1):
        np.testing.assert_allclose(product(np.ones((n, 3), np.float32)).get(), np.full((n, 1), 3 * np.tanh(1)), 1e-6)


def test_arguments_that_stay_are_read_where_they_are(gpu: Any) -> None:
    x = gpu.array(np.arange(4.0))
    twice = function([a := Input(VECTOR, "a")], a * 2 + 1)
    for n in range(5):
        x[:] = np.arange(4.0) + n
        assert twice(x).get().tolist() == (2 * (np.arange(4.0) + n) + 1).tolist()
    assert counts(gpu) == (1, 4)
    other = gpu.array(np.arange(4.0) * 10)
    for array in (other, x, other, gpu.array(np.ones(4)), x):  # each of them copied from now on
        assert twice(array).get().tolist() == (array.get() * 2 + 1).tolist()
    assert counts(gpu) == (2, 8)
    assert other.get().tolist() == [0, 10, 20, 30], "an argument is never written to"


def test_what_kernels_hand_over_in_memory_of_their_own_is_kept(gpu: Any) -> None:
    total = function([x := Input(VECTOR, "x")], gpu.sum(x, keepdims=False))
    values = np.ones(1 << 20, np.float32)
    assert [total(values * n).item() for n in range(5)] == [n << 20 for n in range(5)]
    assert gpu.stats()["kernels"]["launches"] % 2 == 0, "a row shared out to blocks takes two kernels"
    assert counts(gpu) == (1, 3)


def test_outputs_are_the_callers(gpu: Any) -> None:
    twice = function([a := Input(VECTOR, "a")], [a * 2, gpu.reshape(a * 3, (2, 2))])
    given = [twice(np.full(4, n, np.float32)) for n in range(6)]
    assert [[x.get().ravel().tolist() for x in pair] for pair in given] == [
        [[2 * n] * 4, [3 * n] * 4] for n in range(6)
    ]


def test_a_tensor_may_be_its_own_functions_argument(gpu: Any, cpu: Any) -> None:
    results = []
    for be in (gpu, cpu):
        w = be.array(np.arange(6.0))
        step = function([a := Input(VECTOR, "a")], be.sum(a, keepdims=False), updates={w: w + 2 * a})
        totals = [step(x).item() for x in (w, w, w, be.ones(6), w, w, be.ones(6), w, w)]
        results.append([*totals, *w.get().tolist()])
    assert results[0] == results[1]


def test_what_is_no_kernel_runs_between_graphs(gpu: Any, cpu: Any) -> None:
    results = []
    for be in (gpu, cpu):
        x = Input(VECTOR, "x")
        i = be.array(np.array([3, 0, 0]), dtype=np.int64)
        taken = function([x], be.exp(be.take(be.sqrt(x) + 1, i, axis=0)) * 2)
        results.append([taken(np.full(5, n, np.float32)).get() for n in range(6)])
    np.testing.assert_allclose(*results, rtol=1e-6)
    assert counts(gpu)[0] >= 1
    with pytest.raises(optree.errors.OptreeError):
        taken(np.ones(2, np.float32))


#: Of a tree of several outputs, which no graph computes: one of them.
SEVERAL = {
    "qr": lambda x: np.linalg.qr(f.outer(x, x) + np.eye(3, dtype=np.float32))[1],
    "svd": lambda x: np.linalg.svd(f.outer(x, np.ones(5, np.float32)), full_matrices=False)[1].at[:1],
    "scan": lambda x: f.scan(lambda s, _: ([np.sort(s[0] * x)], [s[0]]), [x], length=4)[1][0],
}


@pytest.mark.parametrize("name", SEVERAL)
def test_graphs_read_outputs_of_what_runs_between_them(gpu: Any, cpu: Any, name: str) -> None:
    """The tuple's arrays are copied to buffers, one by one."""
    results = []
    for be in (gpu, cpu):
        x = Input(TensorType("float32", (3,)), "x")
        with running_on(be):
            run = function([x], be.exp(SEVERAL[name](x)))
        results.append([run(np.full(3, n / 4, np.float32)).get() for n in range(1, 5)])
    np.testing.assert_allclose(*results, rtol=1e-5)
    assert counts(gpu)[1] >= 1


def test_graphs_read_the_shape_alone_of_a_view_that_nothing_computes(gpu: Any) -> None:
    """A permutation draws a number for each row of its operand."""
    run = function([], gpu.permutation(gpu.array(np.arange(5, dtype=np.float32))) * 2)
    for _ in range(4):
        assert sorted(run().get()) == [0, 2, 4, 6, 8]
    assert counts(gpu)[1] >= 1


#: From a table, index arrays and a vector of classes to a tree that looks through indices.
LOOKS = {
    "take": lambda be, table, rows, classes: be.take(table, rows, axis=0),
    "gather": lambda be, table, rows, classes: table[rows, classes],
    "take_along_axis": lambda be, table, rows, classes: be.take_along_axis(table, be.expand_dims(classes, 1), axis=1),
    "onehot": lambda be, table, rows, classes: be.onehot(classes, 3) * table[rows],
}


@pytest.mark.parametrize("name", LOOKS)
def test_indices_are_looked_through_in_the_graph(gpu: Any, name: str) -> None:
    """One that is out of range is the error that it is without a graph, and nothing has been written."""
    rows, classes = (Input(TensorType("int64", (None,)), n) for n in ("rows", "classes"))
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    table, total = gpu.array(values, name="table"), gpu.zeros((), name="total")
    picked = LOOKS[name](gpu, table, rows, classes)
    step = function([rows, classes], gpu.sum(picked), {total: total + 1, table: table + 1}, on_unused_input="ignore")
    first = 0 if name == "onehot" else -3  # its classes do not count from the end
    right, wrong = ([3, -4, 0, 2], [2, 0, first, 1]), ([3, -4, 4, 2], [2, 0, -4, 1])
    messages = {"onehot": "onehot: the index -4 at row 2 is none of the 3 classes"}
    message = messages.get(name, rf"{name}: index (-)?4 is out of range for axis [01] of size [34]")
    picks = {
        "take": lambda x: x[right[0]],
        "gather": lambda x: x[right],
        "take_along_axis": lambda x: np.take_along_axis(x, np.array(right[1])[:, None], 1),
        "onehot": lambda x: np.eye(3)[right[1]] * x[right[0]],
    }
    for number in range(9):
        if number % 4 == 3:
            with pytest.raises(AxisError, match=message) as found:
                step(*map(np.array, wrong))
            assert "while running" in found.value.__notes__[0] and "test_graphs.py" in found.value.__notes__[0]
        else:
            assert step(*map(np.array, right)).item() == picks[name](table.get() - 1).sum()
    assert total.item() == 7 and table.get()[0, 0] == 7
    assert counts(gpu)[1] and "uncaptured" not in debugprint(step, file="str").splitlines()[-1]


@pytest.mark.parametrize("name", LOOKS)
def test_indices_may_be_others_at_each_call(gpu: Any, cpu: Any, name: str) -> None:
    results = []
    for be in (gpu, cpu):
        rows, classes = (Input(TensorType("int64", (None,)), n) for n in ("rows", "classes"))
        table = be.array(np.arange(12, dtype=np.float32).reshape(4, 3))
        tree = be.exp(LOOKS[name](be, table, rows, classes) * 0.1)
        picked = function([rows, classes], tree, on_unused_input="ignore")
        results.append([picked(np.arange(4) * n % 4, np.arange(4) * n % 3).get() for n in range(6)])
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_an_error_of_what_was_drawn_leaves_the_generator_as_without_a_graph(gpu: Any, cpu: Any) -> None:
    results = []
    for be in (gpu, cpu):
        table, total = be.array(np.arange(8.0)), be.zeros((), name="total")
        far = Input(TensorType("int64", (None,)), "far")
        places = far + be.cast(be.rand(4) * 8, "int64")
        picked = function([far], be.take(table, places, axis=0), {total: total + 1})
        found: list[Any] = []
        for n in range(9):
            try:
                found.append(picked(np.full(4, 4 * (n in (3, 4, 7)))).get().tolist())
            except AxisError as error:
                found.append(str(error))
        results.append([*found, total.item()])
    assert results[0] == results[1]
    assert sum(isinstance(x, str) for x in results[0]) > 1


def test_the_host_waits_for_nothing_but_what_was_found_of_indices(simulated: Rig, gpu: Any) -> None:
    x, y = Input(MATRIX, "x"), Input(TensorType("int64", (None,)), "y")
    w = gpu.array(np.random.RandomState(0).randn(6, 3), name="w")
    scores = gpu.dot(x, w)
    loss = gpu.mean(gpu.logsumexp(scores, axis=1) - gpu.sum(scores * gpu.onehot(y, 3), axis=1))
    right = gpu.mean(gpu.equal(gpu.argmax(scores, axis=1, keepdims=False), y))
    step = function([x, y], [loss, right], {w: w - 0.1 * optree.grad(loss, w)})
    batch = gpu.ones((4, 6)), gpu.array(np.array([0, 1, 2, 1]))
    for _ in range(4):
        step(*batch)
    driver, (captures, replays) = simulated.driver, counts(gpu)
    copies, graphs = driver.to_host, driver.calls["cudaGraphLaunch"]
    step(*batch)
    assert driver.to_host == copies + 1
    assert driver.calls["cudaGraphLaunch"] == graphs + 3, "up to the check, on, and what is written"
    assert counts(gpu) == (captures, replays + 3)


def test_random_numbers_go_on_from_replay_to_replay(gpu: Any, cpu: Any) -> None:
    results = []
    for be in (gpu, cpu):
        x = Input(VECTOR, "x")
        draw = function([x], be.rand(7) * be.sum(x))
        results.append([draw(np.ones(3, np.float32)).get() for n in range(6)])
    np.testing.assert_allclose(*results, rtol=1e-6)
    assert len({tuple(x) for x in results[0]}) == 6


def test_streams_take_turns(gpu: Any) -> None:
    """They share the graph's memory."""
    add, start = function([a := Input(VECTOR, "a")], a + 1), gpu.zeros(3)
    one, two = (gpu.cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    gpu.synchronize()
    found = []
    for n in range(24):
        with one if n % 3 else two:
            found.append((start + n).astensor())
            found[-1] = add(found[-1])
    gpu.synchronize()
    assert [x.get().tolist() for x in found] == [[n + 1] * 3 for n in range(24)]
    assert counts(gpu) == (1, 22)


def test_memory_stays_the_same(gpu: Any) -> None:
    step, _ = training(gpu)
    used = []
    for x, y in batches([8] * 3 + [5] * 5 + [8] * 30):
        step(x, y)
        gc.collect()
        used.append(gpu.stats()["memory"]["used"])
    assert len(set(used[10:])) == 1
    del step
    assert gpu.stats()["memory"]["used"] < used[-1], "it goes at once, without the garbage collector"


def test_arrays_without_elements(gpu: Any) -> None:
    twice = function([a := Input(VECTOR, "a")], [a * 2, gpu.sum(a, keepdims=False)])
    for n in (0, 3, 0, 0, 3, 3, 0, 3, 0):
        doubled, total = twice(np.ones(n, np.float32))
        assert doubled.get().tolist() == [2] * n and total.item() == n


def test_draws_are_captured_with_the_kernels_around_them(gpu: Any, cpu: Any) -> None:
    """Dropout: each replay goes on where the last has left the random state, for other sizes too."""
    found = []
    for be in (gpu, cpu):
        be.rng_reset()
        x = Input(MATRIX, "x")
        masked = function([x], be.exp(x * be.dropout_mask(x, 0.7)) + be.rand(x))
        values = [masked(np.full((n, 5), 0.5, np.float32)).get() for n in (3, 3, 3, 8, 8, 3, 8)]
        found.append((*values, be.rng_state.get()))
        if be is gpu:
            assert debugprint(masked, file="str").endswith("captured as a CUDA graph of 7 steps") and counts(gpu)[1] > 0
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_what_is_refused_runs_uncaptured(simulated: Rig, gpu: Any) -> None:
    add = function([a := Input(VECTOR, "a")], a + 1)
    with failing(simulated, "cudaStreamEndCapture", 100):
        for n in range(5):
            assert add(np.full(3, n, np.float32)).get().tolist() == [n + 1] * 3
    assert counts(gpu) == (0, 0)
    assert "not captured" in debugprint(add, file="str") and "StreamCaptureInvalidated" in debugprint(add, file="str")


class Window(Op):
    """A user's op: a view of the array, at another place each time."""

    __props__ = ()
    view_map: ClassVar = {0: [0]}
    starts: ClassVar[Iterator[int]]

    def make_node(self, *inputs: Any) -> Apply:
        return Apply(self, list(inputs), [VECTOR()])

    def infer_shape(self, node: Any, shapes: Any) -> Any:
        return [(2,)]

    @portable
    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        start = next(self.starts)
        output_storage[0][0] = inputs[0][start : start + 2]


def test_a_view_that_moves_ends_the_capturing(gpu: Any) -> None:
    starts = (0, 0, 0, 2, 4, 0, 1)
    Window.starts = iter(starts)
    x, w = Input(VECTOR, "x"), gpu.array(np.arange(6.0))
    moved, ones = function([x], f.exp(Window.make()(w)) * x), gpu.ones(2)
    for start in starts:
        np.testing.assert_allclose(moved(ones).get(), np.exp(start + np.arange(2.0)), 1e-6)
    assert counts(gpu) == (1, 2) and "changes its address" in debugprint(moved, file="str")


#: Trees of one operand through an op that is captured where no kernel computes it.
BETWEEN_KERNELS = {
    "flip": lambda x: f.flip(x, 0),
    "slice": lambda x: x.at[::-1],
    "broadcast_to": lambda x: f.broadcast_to(x, (3, 6)),
    "transpose": lambda x: f.transpose(f.reshape(x, (2, 3))),
    "head_like": lambda x: OPS["head_like"].make(axis=0)(x, np.ones(4, np.float32)),
    "tail_like": lambda x: OPS["tail_like"].make(axis=0)(x, np.ones(4, np.float32)),
    "unslice": lambda x: OPS["unslice"].make(index=((None, None, -2),))(x, np.ones(12, np.float32)),
}


@pytest.mark.parametrize("name", BETWEEN_KERNELS)
def test_what_is_between_kernels_is_in_their_graph(gpu: Any, name: str) -> None:
    x, value = Input(TensorType("float32", (6,)), "x"), np.linspace(-1, 1, 6, dtype=np.float32)
    tree = gpu.sum(f.tanh(BETWEEN_KERNELS[name](f.exp(x))), keepdims=False)
    step = function([x], tree)
    for _ in range(4):
        wanted = function([x], tree, mode="reference")(value).get()
        np.testing.assert_allclose(step(value).get(), wanted, rtol=1e-6)
    assert counts(gpu) == (1, 2)


def test_a_step_through_concatenates_gradient_is_one_graph(gpu: Any) -> None:
    w, v = gpu.array(np.ones((3, 4))), gpu.array(np.full((2, 4), 2.0))
    x = Input(MATRIX, "x")
    loss = gpu.sum(f.tanh(f.concatenate([f.exp(w), v * 2], 0)) * x, keepdims=False)
    step = function([x], loss, [(p, p - 0.1 * d) for p, d in zip((w, v), optree.grad(loss, [w, v]), strict=True)])
    for _ in range(4):
        step(np.ones((5, 4), np.float32))
    captures, replays = counts(gpu)
    assert (captures, replays) == (1, 2), debugprint(step, file="str")


def test_why_a_function_is_not_captured(simulated: Rig) -> None:
    be, graphs = home("gpu", graphs=False), simulated.driver.calls["cudaGraphLaunch"]
    x = Input(VECTOR, "x")
    plain = function([x], x + 1)
    for n in range(4):
        assert plain(np.full(2, n, np.float32)).get().tolist() == [n + 1] * 2
    assert simulated.driver.calls["cudaGraphLaunch"] == graphs
    assert "not captured as a CUDA graph: graphs=False" in debugprint(plain, file="str")
    be = home("gpu")
    assert "are timed" in debugprint(function([x], x + 1, profile=True), file="str")
    for mode in ("reference", "debug"):
        slow = function([x], x + 1, mode=mode)
        assert "not captured as a CUDA graph: its mode runs it op by op on the host" in debugprint(slow, file="str")
        assert slow(np.ones(2, np.float32)).get().tolist() == [2] * 2
    assert "not captured as a CUDA graph: stochastic_cast runs on the host" in debugprint(
        function([], f.stochastic_cast(be.rng_state, be.ones(3))), file="str"
    )
    with pytest.raises(BackendError, match="graphs is True or False"):
        gen_backend("gpu", graphs=1)


# What captures have to do with memory, streams and errors


def of_products(be: Any) -> tuple[Any, Any]:
    """A function of products that each need a workspace, and what it gives for an array by NumPy."""
    weights = [np.random.RandomState(n).rand(300, 300).astype(np.float32) / 150 for n in range(3)]
    x = Input(MATRIX, "x")
    found: Any = x
    for w in weights:
        found = be.tanh(be.dot(found, be.array(w)))

    def wanted(values: np.ndarray) -> np.ndarray:
        for w in weights:
            values = np.tanh(values @ w)
        return values

    return function([x], found), wanted


def test_products_of_a_function_share_a_workspace(simulated: Rig, gpu: Any) -> None:
    step, wanted = of_products(gpu)
    simulated.desk.products.clear()
    for n in (8, 5, 3, 2) * 4:
        values = np.random.RandomState(n).rand(n, 300).astype(np.float32)
        np.testing.assert_allclose(step(values).get(), wanted(values), rtol=1e-5)
    assert counts(gpu)[0] >= 4
    workspaces = {each["workspace"] for each in simulated.desk.products}
    assert len(workspaces) == 1 and workspaces != {0}


def test_a_workspace_grows_and_graphs_keep_theirs(gpu: Any) -> None:
    workspace = Workspace(gpu.cupy.empty)
    first = workspace.of(600)
    assert workspace.of(100) is first and workspace.of(600) is first
    second = workspace.of(700)
    assert second.nbytes == 1200 and workspace.of(1200) is second
    assert workspace.of(WORKSPACE).nbytes == WORKSPACE, "and no more than products ask for"
    assert first.nbytes == 600


@contextmanager
def failing(on: Rig, name: str, count: int = 1) -> Iterator[list[int]]:
    """Let captures that begin or end with a call of CUDA's come to nothing so often; the calls are counted."""
    calls: list[int] = []

    def refuses(called: str) -> int:
        if called != name:
            return 0
        calls.append(1)
        if len(calls) > count:
            return 0
        for capture in on.machine.captures:
            capture.invalid = True
        return 900 if name == "cudaStreamBeginCapture" else 0

    with refusing(on, refuses):
        yield calls


@pytest.mark.parametrize("name", ["cudaStreamBeginCapture", "cudaStreamEndCapture"])
def test_a_capture_that_fails_once_is_tried_again(simulated: Rig, gpu: Any, name: str) -> None:
    add = function([a := Input(VECTOR, "a")], a + 1)
    with failing(simulated, name) as calls:
        for n in range(5):
            assert add(np.full(3, n, np.float32)).get().tolist() == [n + 1] * 3
    assert len(calls) == 2 and counts(gpu) == (1, 2)
    assert gpu.cupy.cuda.get_current_stream() == gpu.cupy.cuda.Stream.null


def test_a_capture_that_does_not_begin_is_refused(simulated: Rig, gpu: Any) -> None:
    add = function([a := Input(VECTOR, "a")], a + 1)
    with failing(simulated, "cudaStreamBeginCapture", 100) as calls:
        for n in range(6):
            assert add(np.full(3, n, np.float32)).get().tolist() == [n + 1] * 3
    assert len(calls) == 2 and "StreamCaptureUnsupported" in debugprint(add, file="str")


def test_want_of_memory_in_a_capture_puts_it_off(simulated: Rig, gpu: Any) -> None:
    x = Input(VECTOR, "x")
    total = function([x], gpu.sum(x, keepdims=False))  # its kernels hand over in memory that a capture allocates
    values, attempts = np.ones(1 << 20, np.float32), list[int]()
    out_of_memory = gpu.cupy.cuda.memory.OutOfMemoryError

    class Hook(gpu.cupy.cuda.MemoryHook):  # type: ignore[misc, name-defined]
        name = "Wanting"

        def malloc_preprocess(self, **given: Any) -> None:
            if number < 12 and simulated.machine.captures:
                raise out_of_memory(given["size"], 0)

    with Hook(), refusing(simulated, lambda name: attempts.append(number) or 0 if "BeginCapture" in name else 0):
        for number in range(20):
            assert total(values * number).item() == number << 20
    assert attempts == [2, 3, 5, 9, 17], "at ever longer intervals"
    assert counts(gpu) == (1, 3) and "captured as a CUDA graph" in debugprint(total, file="str")


def test_an_algorithm_that_a_capture_would_load_is_loaded_and_the_capture_tried_again(gpu: Any, simulated: Rig) -> None:
    step, wanted = of_products(gpu)
    values = np.random.RandomState(0).rand(4, 300).astype(np.float32)
    for number in range(5):
        np.testing.assert_allclose(step(values).get(), wanted(values), rtol=1e-5)
        if number == 1:
            gpu.product._algorithms.clear()
            gpu.product._known.clear()
            simulated.cublaslt.loaded.clear()
    assert counts(gpu) == (1, 2)


def test_what_cublaslt_has_no_memory_for_is_told_as_such(gpu: Any) -> None:
    step, _ = of_products(gpu)
    gpu.product.library._functions["Matmul"], matmul = lambda *args: 3, gpu.product.library._functions["Matmul"]
    with pytest.raises(DeviceMemoryError, match="ALLOC_FAILED"):
        step(np.ones((4, 300), np.float32))
    gpu.product.library._functions["Matmul"] = matmul
    step(np.ones((4, 300), np.float32))


def test_a_graph_after_one_that_was_not_captured_is_not_captured_either(simulated: Rig, gpu: Any, cpu: Any) -> None:
    """It would look for values where they lay in that call alone."""
    results = []
    for be in (gpu, cpu):
        x = Input(MATRIX, "x")
        y = be.tanh(x) * be.array(np.arange(3.0))
        between = be.sort(y, axis=1)
        run = function([x], [be.exp(y) + be.sum(between, axis=1), y])
        found = []
        with failing(simulated, "cudaStreamEndCapture"):
            for n in range(6):
                values = np.random.RandomState(n).rand(4, 3).astype(np.float32)
                found += [z.get() for z in run(values)]
                be.zeros(12)
        results.append(found)
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert counts(gpu) == (2, 6)


def test_threads_on_their_own_default_streams_wait_for_each_other(gpu: Any) -> None:
    """All of them are one object, which says of no other thread's how far it is."""
    add, given = function([a := Input(VECTOR, "a")], a + 1), [gpu.zeros(3) for _ in range(17)]
    gpu.synchronize()
    found: list[Any] = []

    def call(n: int) -> None:
        with gpu.cupy.cuda.Stream.ptds:
            given[n] += n
            found.append(add(given[n]))

    for n in range(16):
        thread = Thread(target=call, args=(n,))
        thread.start()
        thread.join()
    given[16] += 16
    found.append(add(given[16]))
    gpu.synchronize()
    assert [x.get().tolist() for x in found] == [[n + 1] * 3 for n in range(17)]


def test_a_graph_that_is_forgotten_while_it_runs_is_kept_until_it_is_over(
    simulated: Rig, gpu: Any, monkeypatch: Any
) -> None:
    add = function([a := Input(VECTOR, "a")], a + 1)
    monkeypatch.setattr(simulated.machine, "go_on", lambda most: None)  # the device waits until it is waited for
    stream = gpu.cupy.cuda.Stream(non_blocking=True)
    with stream:
        for n in range(1, COMBINATIONS + 1):
            for _ in range(3):
                add(gpu.ones(n))
        stream.synchronize()
        graphs = next(cell for cell in _graphs_of(add))
        first = ref(next(iter(graphs._memories.values())))
        add(gpu.ones(COMBINATIONS + 1))
        assert first() is not None and len(gpu._in_flight) == 1
        stream.synchronize()
        gpu.ones(2).get(blocking=False)
    assert first() is None


def _graphs_of(step: Any) -> list[Graphs]:
    """A function's graphs."""
    return [x for x in gc.get_objects() if isinstance(x, Graphs) and x.counts is step.backend.graphs]


def test_an_error_drops_no_memory_that_is_still_copied_into(gpu: Any, simulated: Rig, monkeypatch: Any) -> None:
    x, y = Input(TensorType("float32", (None, None)), "x"), gpu.zeros((2, 3))
    take = function([x], updates={y: gpu.take(x, gpu.array(np.array([0, 1])), axis=0) + 1})
    values = gpu.ones((4, 3))
    for _ in range(3):
        take(values)
    gpu.synchronize()
    monkeypatch.setattr(simulated.machine, "go_on", lambda most: None)
    refused = refusing(simulated, lambda name: name == "cudaEventSynchronize")
    with refused, pytest.raises(RuntimeError, match="InvalidValue"):
        take(values)
    assert any(not event.done for event, _ in gpu._in_flight._pending), "the copy, which nobody has waited for"


def test_all_flags_of_a_run_are_one_copy_with_one_event(gpu: Any, simulated: Rig) -> None:
    x, i = Input(MATRIX, "x"), Input(TensorType("int64", (None,)), "i")
    pick = function([x, i], gpu.take(x, i, axis=0) + gpu.take(x * 2, i, axis=0) + gpu.sum(gpu.onehot(i, 4)))
    values, places = np.random.RandomState(0).rand(4, 3).astype(np.float32), np.array([3, 0])
    for _ in range(3):
        pick(values, places)
    before, kept = simulated.driver.to_host, gpu._in_flight.keep
    seen: list[Any] = []
    gpu._in_flight.keep = lambda event, used: seen.append(used) or kept(event, used)
    np.testing.assert_allclose(pick(values, places).get(), 3 * values[places] + 2, rtol=1e-6)
    assert [used.shape for used in seen] == [(3,)]
    assert simulated.driver.to_host == before + 2, "the flags, and the value"
    with pytest.raises(AxisError, match="index 4"):
        pick(values, np.array([0, 4]))


def test_what_is_kept_is_asked_for_once() -> None:
    asked: list[int] = []

    class Event:
        def __init__(self, number: int) -> None:
            self.number = number

        @property
        def done(self) -> bool:
            asked.append(self.number)
            return self.number < 500

    held = InFlight(ModuleType("cupy"))
    for number in range(1000):
        held.keep(Event(number), None)
    assert len(held) == 500 and len(asked) <= 2000, "not each of them with each new one"


def test_an_output_that_is_asked_for_twice_is_two_arrays(gpu: Any) -> None:
    x = gpu.ones((3,))
    twice = function([], [y := x + 1, y, x], updates={x: x * 2})
    for n in range(4):
        first, second, third = twice()
        first += 1
        assert second.get().tolist() == [2**n + 1] * 3 and third is not first
