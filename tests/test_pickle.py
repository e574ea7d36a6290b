"""Pickles and deep copies: tensors, trees, functions, schedules and backends by value, also in another process."""

import copy
import gc
import pickle
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import optree
from backends import gen_backend
from optree import TensorType, train
from optree.run import function as functions

TESTS = Path(__file__).resolve().parent


@pytest.fixture
def be():
    return gen_backend("cpu")


def again(x):
    return pickle.loads(pickle.dumps(x))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "uint64", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_a_tensor_pickles_by_value(be, dtype, shape):
    x = be.array(np.arange(int(np.prod(shape))).reshape(shape) % 2, dtype=dtype, name="x")
    y = again(x)
    assert (y.name, y.dtype, y.shape) == ("x", x.dtype, shape)
    assert y.get().tobytes() == x.get().tobytes()
    y[...] = 1
    assert not np.shares_memory(x.raw(), y.raw())


def test_a_tensor_arrives_on_the_current_backend(be):
    sent = pickle.dumps(be.ones(3))
    other = gen_backend("cpu", datatype="float64")
    x = pickle.loads(sent)
    assert x.backend is other and x.dtype == np.float32
    with functions.running_on(be):
        assert pickle.loads(sent).backend is be
        assert again(other) is be


def test_a_backend_is_made_where_there_is_none(be, monkeypatch):
    sent = pickle.dumps(gen_backend("cpu", datatype="float64", batch_size=7))
    monkeypatch.setattr(functions, "_backends", [])
    made = pickle.loads(sent)
    assert (made.name, made.datatype, made.bsz) == ("cpu", np.float64, 7)
    assert pickle.loads(sent) is made
    del made
    gc.collect()
    assert functions.last_backend() is not None, "the tensors of later pickles come to the same one"


@pytest.mark.parametrize("copied", [again, copy.deepcopy])
def test_views_and_shared_tensors_stay_so(be, copied):
    x = be.array(np.arange(12.0).reshape(3, 4), name="x")
    model = copied({"x": x, "same": x, "row": x[1], "column": x.T[2], "part": x[1:, ::2]})
    assert model["x"] is model["same"] and model["x"] is not x
    model["x"][...] = 7
    for name in ("row", "column", "part"):
        assert (model[name].get() == 7).all() and model[name].base is not None
    model["row"][:] = 1
    assert model["x"].get()[1].tolist() == [1, 1, 1, 1] and x.get()[1].tolist() == [4, 5, 6, 7]


def test_a_tree_pickles_with_its_tensors(be):
    x = be.array([1.0, 2.0], name="x")
    y = x * x
    tree = again(y + be.exp(y))
    assert str(tree) == str(y + be.exp(y))
    np.testing.assert_array_equal(tree.get(), (y + be.exp(y)).get())
    loss = again(be.sum(y * 3.0))
    (leaf,) = {
        id(leaf): leaf for leaf in functions.lower([loss], last="program").leaves if isinstance(leaf, optree.Tensor)
    }.values()
    np.testing.assert_array_equal(optree.grad(loss, leaf).get(), 6 * x.get())


def step_of(be):
    """A training step with two weights, its optimizer's schedule written out."""
    x = TensorType("float32", (None, 2))("x")
    w, count = be.array([[0.5], [-0.5]], name="w"), be.zeros((), name="count")
    loss = be.mean((be.dot(x, w) - 1) ** 2)
    rate = train.schedules.warmup(train.schedules.cosine(0.1, 100), 3)(count)
    return optree.function([x], loss, updates={w: w - rate * optree.grad(loss, w), count: count + 1}, name="step")


def test_a_function_pickles_with_its_weights(be):
    step, batch = step_of(be), np.ones((4, 2), np.float32)
    step(batch)
    other = again(step)
    assert str(other) == "step" and [target.name for target, _ in other.updates] == ["w", "count"]
    for _ in range(3):
        assert step(batch).item() == other(batch).item()
    for (mine, _), (theirs, _) in zip(step.updates, other.updates, strict=True):
        assert mine.get().tobytes() == theirs.get().tobytes() and mine is not theirs


def test_a_functions_outputs_share_their_draws(be):
    noise = be.rand((100,))
    one, double = again(optree.function([], [noise, noise * 2]))()
    np.testing.assert_array_equal(one.get() * 2, double.get())


def test_givens_and_options_pickle(be):
    x, y = TensorType("float64", (None,))("x"), TensorType("float64", (None,))("y")
    f = again(optree.function([y], [x * x], givens={x: y + 1}, name="f", allow_input_downcast=True))
    assert [r.get().tolist() for r in f([1.0])] == [[4.0]]


@pytest.mark.parametrize(
    "schedule",
    [
        train.schedules.constant(0.1),
        train.schedules.step(0.1, 10),
        train.schedules.exponential(0.1, 0.9),
        train.schedules.linear(0.1, 10),
        train.schedules.cosine(0.1, 10),
        train.schedules.warmup(train.schedules.cosine(0.1, 10), 5),
        train.schedules.one_cycle(0.1, 20),
        train.schedules.table({0: 0.1, 5: 0.01}),
    ],
)
def test_schedules_pickle(schedule):
    other = again(schedule)
    assert [schedule(n) for n in range(20)] == [other(n) for n in range(20)]


def test_large_values_go_and_come_without_a_copy(be):
    x = be.ones((1000, 1000), name="x")
    buffers: list[pickle.PickleBuffer] = []
    sent = pickle.dumps(x, protocol=5, buffer_callback=buffers.append)
    assert len(sent) < 1000 and sum(memoryview(each).nbytes for each in buffers) == x.nbytes
    received = bytearray(buffers[0])
    y = pickle.loads(sent, buffers=[received])
    assert np.shares_memory(y.raw(), np.frombuffer(received, np.uint8))
    y[...] = 2  # memory that can be written is used as it is; other memory is copied
    z = pickle.loads(sent, buffers=[bytes(received)])
    z[...] = 3
    assert y.get()[0, 0] == 2 and x.get()[0, 0] == 1


def test_arrays_of_the_standard_pickle(be):
    x = optree.xp.asarray([1.0, 2.0])
    assert np.asarray(again(x + 1)).tolist() == [2.0, 3.0]


def called(args):
    f, x = args
    return f(x).get()


def test_a_pool_of_spawned_processes_runs_a_function(be):
    x = TensorType("float32", (None,))("x")
    w = be.array([1.0, 2.0, 3.0], name="w")
    f = optree.function([x], be.tanh(x * w))
    parts = [np.full(3, i, np.float32) for i in range(4)]
    with get_context("spawn").Pool(2) as pool:
        found = pool.map(called, [(f, part) for part in parts])
    for part, value in zip(parts, found, strict=True):
        np.testing.assert_allclose(value, np.tanh(part * w.get()), rtol=1e-6)


OUT_OF_CORE = """
import sys
import dask.array as da, numpy as np
import optree
from backends import gen_backend
from harness.memory import limit_memory
be = gen_backend("cpu")
x = optree.TensorType("float32", (None, 64))("x")
f = optree.function([x], be.sum(be.dot(x, be.ones((64, 4))), axis=1))
limit_memory(0.25)
images = da.ones((1 << 22, 64), dtype="float32", chunks=(1 << 16, 64))
assert images.nbytes == 4 * 2**28, "four times the memory that is allowed"
sums = da.map_blocks(lambda block: f(block).get(), images, dtype="float32", chunks=(images.chunks[0], (1,)))
print(sums.shape, *map(float, da.compute(sums.min(), sums.max(), num_workers=2)))
"""


def test_dask_maps_a_function_over_more_than_memory():
    pytest.importorskip("dask.array")
    done = subprocess.run([sys.executable, "-c", OUT_OF_CORE], capture_output=True, text=True, cwd=TESTS)
    assert done.stdout == f"({1 << 22}, 1) 256.0 256.0\n", done.stderr


def test_what_dask_and_ray_send_is_a_function_with_its_weights(be):
    cloudpickle = pytest.importorskip("cloudpickle")
    x = TensorType("float32", (None, 3))("x")
    f = optree.function([x], be.dot(x, be.array([[1.0], [2.0], [3.0]], name="w")))
    sent = cloudpickle.dumps(lambda block: f(block).get())
    assert pickle.loads(sent)(np.ones((2, 3), np.float32)).tolist() == [[6.0], [6.0]]


def test_an_untouched_process_loads_a_function(be, tmp_path):
    path = tmp_path / "step.pickle"
    path.write_bytes(pickle.dumps(step_of(be)))
    code = f"import pickle; print(pickle.load(open({str(path)!r}, 'rb'))([[1, 1]]).item())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and float(done.stdout) == 1.0, done.stderr


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("copied", [again, copy.deepcopy])
def test_a_training_state_goes_on_by_itself(be, copied, is_packed):
    weights = [be.array([[0.5], [0.2]], name="w"), be.zeros((1, 1), name="b")]
    weights = train.packed(weights) if is_packed else weights
    opt = train.Adam(weights, 0.1)
    x = TensorType("float32", (None, 2))("x")
    loss = be.mean((be.dot(x, weights[0]) + weights[1] - 1) ** 2)
    step, batch = optree.function([x], loss, updates=opt.updates(loss)), np.ones((3, 2), np.float32)
    step(batch)
    other_weights, other_opt, other_step = copied((weights, opt, step))
    alone = copied(step)
    losses = [step(batch).item() for _ in range(3)]
    assert [other_step(batch).item() for _ in range(3)] == losses == [alone(batch).item() for _ in range(3)]
    assert other_opt.step.item() == opt.step.item() == 4
    for mine, theirs in zip([*weights, *opt.state.values()], [*other_weights, *other_opt.state.values()], strict=True):
        assert mine.get().tobytes() == theirs.get().tobytes()
