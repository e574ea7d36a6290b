"""Loops with products and rows in one call of C: against NumPy's steps; in how many parts, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness.compiling import needs_compiler

import optree
from backends import gen_backend
from backends.cpu import backend
from backends.cpu.routines import loops
from backends.cpu.routines.loop_trace import ROWS
from backends.cpu.routines.loops import BoundLoop
from backends.cpu.row_axes import Mixed, RowAxes
from optree.registry import f
from optree.settings import override

pytestmark = needs_compiler

GATES = {"rnn": 1, "lstm": 4, "gru": 3}

Step = Callable[[Any, Any], Any]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of few rows, however few elements these have."""
    monkeypatch.setattr(loops, "LEAST", 1)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The parts and threads of each loop that runs in one call."""
    found: list[tuple[int, int]] = []
    run = BoundLoop.run

    def counted(self: BoundLoop, *args: Any) -> Any:
        found.append((self.loop.parts, self.threads))
        return run(self, *args)

    monkeypatch.setattr(BoundLoop, "run", counted)
    return found


def drawn(kind: str, steps: int, batch: int, features: int, units: int, dtype: str) -> list[np.ndarray]:
    rng, wide = np.random.RandomState(0), GATES[kind] * units
    shapes = ((steps, batch, features), (features, wide), (units, wide), (wide,))
    return [(rng.normal(size=shape) * 0.5).astype(dtype) for shape in shapes]


def network(jit: bool | str, kind: str, arrays: list[np.ndarray], **options: Any) -> list[np.ndarray]:
    """The outputs of a recurrent network, and the derivatives by its operands."""
    be = gen_backend("cpu", jit=jit, datatype=arrays[0].dtype)
    operands = [be.array(x) for x in arrays]
    found = getattr(be, kind)(
        *operands, **{k: be.array(v, dtype=v.dtype) if k == "mask" else v for k, v in options.items()}
    )
    cost = sum(be.sum(be.square(x)) for x in found)
    gradients = optree.grad(cost, operands)
    return [x.asnumpyarray() for x in optree.function([], [*found, *gradients])()]


def close(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for x, y in zip(found, wanted, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=0, atol=(1e-5 if x.dtype == np.float32 else 1e-12) * max(1, abs(y).max()))


@pytest.mark.matrix
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(("batch", "units"), [(1, 5), (2 * ROWS - 1, 8), (2 * ROWS, 33), (41, 20), (32, 64)])
def test_networks_are_those_step_by_step(kind: str, batch: int, units: int, runs: list[tuple[int, int]]) -> None:
    arrays = drawn(kind, 3, batch, 6, units, "float64")
    with override(num_threads=3):
        close(network(True, kind, arrays), network(False, kind, arrays))
    parts = max(1, batch // ROWS)
    assert runs == [(parts, min(parts, 3))] * 2  # forward and backward


@pytest.mark.matrix
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("options", [{"reverse": True}, {"batch_first": True}, {"truncate": 2}, {}], ids=str)
def test_masks_and_orders(kind: str, options: dict[str, Any], runs: list[tuple[int, int]]) -> None:
    arrays = drawn(kind, 5, 19, 6, 7, "float64")
    mask = np.arange(5)[:, None] < 1 + np.arange(19) % 5
    if "batch_first" in options:
        arrays[0], mask = arrays[0].swapaxes(0, 1).copy(), mask.T.copy()
    close(network(True, kind, arrays, mask=mask, **options), network(False, kind, arrays, mask=mask, **options))
    assert [parts for parts, _ in runs] == [2, 2]


@pytest.mark.parametrize(("steps", "batch", "units"), [(1, 16, 4), (2, 16, 4), (9, 24, 600), (3, 80, 130)])
def test_steps_and_sizes_beyond_a_block_of_a_product(
    steps: int, batch: int, units: int, runs: list[tuple[int, int]]
) -> None:
    arrays = drawn("rnn", steps, batch, 4, units, "float32")
    arrays[2] *= 0.1
    close(network(True, "rnn", arrays), network(False, "rnn", arrays))
    assert len(runs) == 2


def test_bits_do_not_depend_on_the_number_of_threads(runs: list[tuple[int, int]]) -> None:
    arrays = drawn("lstm", 4, 41, 6, 13, "float32")  # rows of no whole vectors
    found = []
    for threads in (1, 2, 7):
        with override(num_threads=threads):
            found.append(network(True, "lstm", arrays))
    for other in found[1:]:
        assert all((x == y).all() for x, y in zip(found[0], other, strict=True))
    assert [threads for _, threads in runs] == [1, 1, 2, 2, 5, 5]


def test_rows_of_few_elements_are_in_few_parts(runs: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LEAST", 100)
    be = gen_backend("cpu", jit=True)
    state, _ = be.scan(lambda x, _: (x * 0.5 + 1, None), be.zeros((1000,)), None, length=3)
    assert (optree.function([], state)().get() == 1.75).all()
    assert [parts for parts, _ in runs] == [10]


def looped(jit: bool | str, step: Step, batch: int = 32, units: int = 12, steps: int = 4) -> list[np.ndarray]:
    """The value of a loop with one state, a sequence of its shape and small square weights, and its derivatives."""
    be = gen_backend("cpu", jit=jit, datatype=np.float64)
    rng = np.random.RandomState(0)
    shapes = ((batch, units), (steps, batch, units), (12, 12))
    h, x, w = (be.array(rng.normal(size=shape) * 0.4) for shape in shapes)
    state, outputs = be.scan(lambda h, x: step(h, (x, w)), h, x)
    cost = be.sum(be.square(state)) + be.sum(be.square(outputs))
    gradients = optree.grad(cost, [h, x, w], disconnected_inputs="ignore")
    return [y.asnumpyarray() for y in optree.function([], [state, outputs, *gradients])()]


def rows_kept(h: Any, given: Any) -> Any:
    """Softmax over units, slices and joins along units, and a product: rows stay apart."""
    x, w = given
    left, right = f.slice(h, (slice(None), slice(0, 6))), f.slice(x, (slice(None), slice(6, None)))
    product = f.dot(f.slice(f.softmax(h, axis=1), (slice(None), slice(0, 12))), w)
    h = f.tanh(f.concatenate([left, right], axis=1) + f.sum(product, axis=1, keepdims=True))
    return h, h * x


def padded(h: Any, given: Any) -> Any:
    """Pads by numbers, and joins: rows stay apart."""
    before = f.pad(f.slice(h, (slice(None), slice(0, -1))), ((0, 0), (1, 0)), -2.0)
    h = f.tanh(f.concatenate([f.slice(x, (slice(None), slice(0, 6))) for x in (before, h)], axis=1) + given[0])
    return h, before


def filled(h: Any, given: Any) -> Any:
    """Values of the shapes of others, which are not computed."""
    h = f.tanh(h + f.fill_like(f.dot(h, given[1]), 0.5) + given[0])
    return h, h * f.fill_like(f.exp(h), 1.0)


def mean_of_rows(h: Any, given: Any) -> Any:
    h = f.tanh(h + given[0] - f.mean(h, axis=0, keepdims=True))
    return h, h


def turned(h: Any, given: Any) -> Any:
    h = f.tanh(f.slice(h, slice(None, None, -1)) + given[0])
    return h, h


def rolled(h: Any, given: Any) -> Any:
    h = f.tanh(f.concatenate([f.slice(h, slice(1, None)), f.slice(h, slice(0, 1))], axis=0) + given[0])
    return h, h


def halves(h: Any, given: Any) -> Any:
    """The first half of the rows is added to both."""
    half = f.slice(h, slice(0, 16))
    h = f.tanh(f.concatenate([half, half], axis=0) + given[0])
    return h, h


def transposed(h: Any, given: Any) -> Any:
    h = f.tanh(h + f.transpose(h) + given[0])
    return h, h


def first_row(h: Any, given: Any) -> Any:
    h = f.tanh(f.slice(h, slice(0, 1)) * h + given[0])
    return h, h


def between_rows(h: Any, given: Any) -> Any:
    h = f.tanh(f.dot(f.dot(h, f.transpose(h)), given[0]) * 0.01)
    return h, h


def total(h: Any, given: Any) -> Any:
    h = f.tanh(h + given[0])
    return h, f.sum(h, axis=0, keepdims=False)


def beside_each_other(h: Any, given: Any) -> Any:
    """Joined along units while these are the first axis: rows stay apart, and in memory they do not."""
    columns = [f.tanh(f.transpose(h)), f.transpose(given[0])]
    joined = f.transpose(f.concatenate(columns, axis=0))
    h = f.tanh(f.slice(joined, (slice(None), slice(5, 17))))
    return h, h


def numbered(h: Any, given: Any) -> Any:
    h = f.tanh(h + 1e-3 * f.flat_indices(h).astype("float64") + given[0])
    return h, h


@pytest.mark.parametrize("step", [rows_kept, padded, filled])
def test_a_body_of_rows_apart_is_divided(step: Step, runs: list[tuple[int, int]]) -> None:
    close(looped(True, step), looped(False, step))
    assert [parts for parts, _ in runs][:1] == [4]


MIXED = [mean_of_rows, turned, rolled, halves, first_row, between_rows, beside_each_other, numbered]


@pytest.mark.matrix(least=3)
@pytest.mark.parametrize("step", MIXED, ids=lambda step: step.__name__)
def test_a_body_that_mixes_rows_is_not_divided(step: Step, runs: list[tuple[int, int]]) -> None:
    with override(num_threads=4):
        close(looped(True, step), looped(False, step))
    assert all(parts == 1 for parts, _ in runs)


def test_sums_of_rows_are_not_divided_and_their_derivative_is(runs: list[tuple[int, int]]) -> None:
    close(looped(True, total), looped(False, total))
    assert [parts for parts, _ in runs] == [1, 4]


@pytest.mark.parametrize("step", [transposed, rows_kept])
def test_as_many_rows_as_units(step: Step, runs: list[tuple[int, int]]) -> None:
    close(looped(True, step, 32, 32), looped(False, step, 32, 32))
    assert [parts for parts, _ in runs][:1] == [1 if step is transposed else 4]


def test_two_states_of_which_one_has_no_rows(runs: list[tuple[int, int]]) -> None:
    values = []
    for jit in (True, False):
        be = gen_backend("cpu", jit=jit, datatype=np.float64)
        h, n = be.zeros((32, 4)), be.zeros(())
        x = be.array(np.random.RandomState(0).normal(size=(5, 32, 4)))
        (h, n), out = be.scan(lambda s, x: ((f.tanh(s[0] + x), s[1] + 1.0), s[0] * s[1]), (h, n), x)
        values.append([y.asnumpyarray() for y in optree.function([], [h, n, out])()])
    close(*values)
    assert [parts for parts, _ in runs] == [1]


def test_an_output_that_has_no_rows(runs: list[tuple[int, int]]) -> None:
    values = []
    rng = np.random.RandomState(0)
    arrays = [rng.normal(size=shape) for shape in ((32, 4), (5, 32, 4), (5, 3))]
    for jit in (True, False):
        be = gen_backend("cpu", jit=jit, datatype=np.float64)
        h, x, z = map(be.array, arrays)
        h, out = be.scan(lambda h, s: (f.tanh(h + s[0]), f.exp(s[1])), h, (x, z))
        values.append([y.asnumpyarray() for y in optree.function([], [h, out])()])
    close(*values)
    assert [parts for parts, _ in runs] == [1]


def test_views_across_rows_of_a_sequence_whose_rows_are_its_last_axis(runs: list[tuple[int, int]]) -> None:
    values = []
    rng = np.random.RandomState(0)
    x, h = rng.normal(size=(5, 4, 32)).swapaxes(1, 2), rng.normal(size=(32, 4))

    def step(h: Any, x: Any) -> Any:
        flat = f.reshape(f.transpose(x), (-1,))  # a view, as x is laid out
        h = f.tanh(h + f.expand_dims(f.slice(flat, slice(3, 35)), 1))
        return h, h

    for jit in (True, False):
        be = gen_backend("cpu", jit=jit, datatype=np.float64)
        values.append([y.asnumpyarray() for y in optree.function([], list(be.scan(step, be.array(h), be.adopt(x))))()])
    close(*values)
    assert all(parts == 1 for parts, _ in runs)


def test_views_with_the_strides_of_rows_are_not_taken_for_rows() -> None:
    x = np.zeros((4, 32)).T
    axes = RowAxes([x, x.T.reshape(-1)[3:35]])
    axes.add(axes.view, 1, 0)
    with pytest.raises(Mixed):
        axes.solved([0])


def test_rows_of_values_that_are_broadcast() -> None:
    target = np.zeros((32, 4))
    values = [np.zeros(shape) for shape in ((32, 1), (1, 4), (4,), (), (32, 4))]
    axes = RowAxes([target, *values])
    for i in range(len(values)):
        axes.add(axes.broadcast, i + 1, 0)
    assert axes.solved([0]) == [0, 0, None, None, None, 0]
    square = RowAxes([np.zeros((32, 32)), np.zeros(32)])
    square.add(square.broadcast, 1, 0)
    assert square.solved([1]) == [1, 0]
    with pytest.raises(Mixed):
        square.solved([0, 1])


def test_first_states_of_any_layout(runs: list[tuple[int, int]]) -> None:
    rng = np.random.RandomState(0)
    x, w, u, b = drawn("lstm", 3, 20, 5, 6, "float64")
    state = np.asfortranarray(rng.normal(size=(20, 6)))
    values = []
    for jit in (True, False):
        be = gen_backend("cpu", jit=jit, datatype=np.float64)
        h = be.adopt(np.repeat(state, 2, axis=0)[::2])
        outputs = be.lstm(x, w, u, b, state=h, cell=be.adopt(state)).outputs
        values.append([optree.function([], outputs)().asnumpyarray()])
    close(*values)
    assert [parts for parts, _ in runs] == [2]


def test_long_loops_are_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python handles signals after each."""
    called: list[Any] = []
    begin = BoundLoop.__init__

    def noted(self: Any, *args: Any) -> None:
        begin(self, *args)
        call = self.call
        self.call = lambda words: (called.append(words), call(words))

    monkeypatch.setattr(BoundLoop, "__init__", noted)
    monkeypatch.setattr(loops, "CALL", 1)
    arrays = drawn("rnn", 7, 16, 3, 20, "float64")
    close(network(True, "rnn", arrays), network(False, "rnn", arrays))
    assert len(called) == 2 * 7


def test_an_error_in_a_step_is_that_of_the_op(runs: list[tuple[int, int]]) -> None:
    be = gen_backend("cpu", jit=True, datatype=np.float64)
    table = be.array(np.arange(12.0).reshape(4, 3))
    ids = be.array(np.array([[0, 1] * 16, [2, 9] * 16]), dtype="int64")
    h = be.zeros((32, 3))
    outputs = be.scan(lambda h, i: (be.tanh(h + be.take(table, i, axis=0)), h), h, ids)[1]
    target = be.zeros((2, 32, 3))
    with pytest.raises(IndexError, match="9"):
        target[:] = outputs
    assert not target.asnumpyarray().any()
    assert not runs


def softmax_of_rows(h: Any, given: Any) -> Any:
    h = f.softmax(h + given[0], axis=1)
    return h, h


@pytest.mark.parametrize(("threads", "parts"), [(2, 2), (8, 1)])
def test_work_for_more_threads_than_parts_is_shared_in_each_kernel(
    threads: int, parts: int, runs: list[tuple[int, int]]
) -> None:
    with override(num_threads=threads):
        close(looped(True, softmax_of_rows, 16, 20_000, 2), looped(False, softmax_of_rows, 16, 20_000, 2))
    assert set(runs) == {(parts, parts)}


@pytest.mark.parametrize("threads", [1, 4])
def test_threads_share_each_large_product_where_there_are_more_than_parts(
    threads: int, runs: list[tuple[int, int]]
) -> None:
    arrays = drawn("rnn", 2, 15, 4, 1000, "float32")
    arrays[2] *= 0.1
    with override(num_threads=threads):
        close(network(True, "rnn", arrays), network(False, "rnn", arrays))
    assert runs == [(1, 1), (1, 1)]


def test_numpy_runs_loops_until_kernels_pay(runs: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "WORK", 100_000)  # reached within the first loop
    be = gen_backend("cpu", jit="auto", datatype=np.float64)
    arrays = drawn("rnn", 40, 16, 3, 4, "float64")
    run = optree.function([], be.rnn(*[be.array(x) for x in arrays]).outputs)
    first = run().asnumpyarray()
    assert not runs
    close([run().asnumpyarray()], [first])
    assert len(runs) == 1
