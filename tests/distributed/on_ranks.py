"""The checks that `test_mpi.py` runs on several processes, each on all ranks; the outcomes are printed."""

from __future__ import annotations

import io
import json
import runpy
import sys
import tempfile
import traceback
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from harness.fake_cupy import fake_cupy
from harness.fake_nccl import modules
from harness.homes import stand_in
from mpi4py import MPI

import optree
from backends import gen_backend
from backends.cpu import compiler
from optree import TensorType, train
from optree.compile.pipeline import lower
from optree.distributed import DistributedError, Group, init
from optree.errors import DTypeError, OperandError, ShapeError
from optree.ops.collectives import Await, Half

CHECKS: dict[str, Any] = {}

ROOT = Path(__file__).resolve().parent.parent.parent

#: Checks of the examples, which one number of processes makes.
EXAMPLES = ("the_example_of_divided_products_equals_one_process", "the_digits_are_learned_as_by_one_process")

#: Checks of CPUs, or of what NCCL has not.
HOST_ONLY = (
    *EXAMPLES,
    "operations_that_differ_are_named",
    "a_rank_goes_on_while_its_operation_waits_for_the_others",
    "the_debug_mode_runs_operations",
    "draws_agree_and_differ",
    "draws_go_on_as_in_a_run_that_was_not_stopped",
    "groups_of_some_ranks",
    "bits",
)

DTYPES = ("bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64")


def check(function: Any) -> Any:
    CHECKS[function.__name__] = function
    return function


def values(rank: int, shape: Any = (4, 3), dtype: str = "float64") -> np.ndarray:
    """The array of one rank; any other can make it too."""
    found = np.random.default_rng(rank).normal(size=shape) * 5
    return (found > 0) if dtype == "bool" else np.abs(found).astype(dtype) if dtype[0] == "u" else found.astype(dtype)


def every(group: Group, shape: Any = (4, 3), dtype: str = "float64") -> np.ndarray:
    return np.stack([values(rank, shape, dtype) for rank in range(group.size)])


def tensor(group: Group, shape: Any = (4, 3), dtype: str = "float64") -> Any:
    return group.backend.array(values(group.rank, shape, dtype), dtype=dtype, name="x")


def is_brief(group: Group) -> bool:
    """Whether a check makes one case of its options: they do not depend on the ranks, and three processes make all."""
    return group.engine.name != "mpi" or group.size != 3


def got(tree: Any) -> np.ndarray:
    return tree.astensor().get()


@check
def every_operation_in_every_dtype(group: Group) -> None:
    for dtype in DTYPES:
        for shape in [(4, 3), (), (0, 2)]:
            x, all_x = tensor(group, shape, dtype), every(group, shape, dtype)
            if dtype != "bool":
                wide = np.float32 if dtype == "float16" else dtype
                expected = all_x.sum(0, dtype=wide).astype(dtype)
                np.testing.assert_allclose(
                    got(group.all_reduce(x)), expected, rtol=2e-3 if dtype == "float16" else 1e-6
                )
            np.testing.assert_array_equal(got(group.all_reduce(x, "max")), all_x.max(0))
            np.testing.assert_array_equal(got(group.all_reduce(x, "min")), all_x.min(0))
            for root in range(group.size):
                np.testing.assert_array_equal(got(group.broadcast(x, root)), all_x[root])
            if shape:
                np.testing.assert_array_equal(got(group.all_gather(x)), np.concatenate(all_x))
            found = got(group.exchange(x, (group.rank + 1) % group.size, (group.rank - 1) % group.size))
            np.testing.assert_array_equal(found, all_x[group.rank - 1])
            assert found.dtype == dtype


@check
def parts_along_axes(group: Group) -> None:
    n, rank = group.size, group.rank
    shape = (2 * n, 3 * n)
    x, all_x = tensor(group, shape), every(group, shape)
    for axis in (0, 1, -1):
        np.testing.assert_array_equal(got(group.all_gather(x, axis)), np.concatenate(all_x, axis))
        expected = np.split(all_x.sum(0), n, axis)[rank]
        np.testing.assert_allclose(got(group.reduce_scatter(x, axis)), expected, rtol=1e-13)
        for join in (0, 1):
            expected = np.concatenate([np.split(other, n, axis)[rank] for other in all_x], join)
            np.testing.assert_array_equal(got(group.all_to_all(x, axis, join)), expected)
    wide = tensor(group, (300, 200))  # more bytes than one rank sums for all
    np.testing.assert_allclose(got(group.all_reduce(wide)), every(group, (300, 200)).sum(0), rtol=1e-12, atol=1e-12)


@check
def gradients_are_those_of_the_sum_of_costs(group: Group) -> None:
    """The reference: all ranks' costs as one function, of all ranks' values, by central differences."""
    n = group.size
    shape = (2 * n, 2)
    weights = [np.cos(np.arange(200.0) + rank) for rank in range(n)]

    def cost(made: Any, rank: int, be: Any) -> Any:
        return be.sum(be.square(made) * weights[rank][: made.size].reshape(made.shape), keepdims=False)

    def split(all_x: Any, i: int) -> Any:
        return np.concatenate([np.split(x, n)[i] for x in all_x], 1)

    cases: Any = {
        "sum": (lambda x: group.all_reduce(x), lambda all_x, i: sum(all_x)),
        "mean": (lambda x: group.all_reduce(x, "mean"), lambda all_x, i: sum(all_x) / n),
        "max": (lambda x: group.all_reduce(x, "max"), lambda all_x, i: np.max(all_x, 0)),
        "min": (lambda x: group.all_reduce(x, "min"), lambda all_x, i: np.min(all_x, 0)),
        "gather": (lambda x: group.all_gather(x, 1), lambda all_x, i: np.concatenate(all_x, 1)),
        "scatter": (lambda x: group.reduce_scatter(x), lambda all_x, i: np.split(sum(all_x), n)[i]),
        "broadcast": (lambda x: group.broadcast(x, n - 1), lambda all_x, i: all_x[n - 1]),
        "reduce": (lambda x: group.reduce(x, n - 1), lambda all_x, i: sum(all_x) * (i == n - 1)),
        "all_to_all": (lambda x: group.all_to_all(x, 0, 1), split),
        "exchange": (
            lambda x: group.exchange(x, (group.rank + 1) % n, (group.rank - 1) % n),
            lambda all_x, i: all_x[i - 1],
        ),
    }
    for name, (tree, reference) in cases.items():
        x, all_x = tensor(group, shape), [*every(group, shape)]
        found = got(optree.grad(cost(tree(x), group.rank, group.backend), [x])[0])

        def total(given: Any, reference: Any = reference) -> float:
            made = [reference(given, i) for i in range(n)]
            return float(sum((m**2 * weights[i][: m.size].reshape(m.shape)).sum() for i, m in enumerate(made)))

        expected, step = np.zeros(shape), 1e-5
        for index in np.ndindex(*shape):
            ends = []
            for sign in (1, -1):
                moved = [v.copy() for v in all_x]
                moved[group.rank][index] += sign * step
                ends.append(total(moved))
            expected[index] = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7, err_msg=name)


@check
def equal_extremes_share_the_gradient(group: Group) -> None:
    x = group.backend.array([1.0, 2.0], dtype="float64")
    cost = group.backend.sum(group.all_reduce(x, "max"), keepdims=False)
    np.testing.assert_allclose(got(optree.grad(cost, [x])[0]), 1.0)  # n costs, shared by n


@check
def the_debug_mode_runs_operations(group: Group) -> None:
    x = tensor(group, (2 * group.size, 3))
    trees = [group.all_reduce(x, "max"), group.all_gather(x), group.reduce_scatter(x), group.broadcast(x)]
    for found, expected in zip(optree.function([], trees, mode="debug")(), trees, strict=True):
        np.testing.assert_array_equal(found.get(), got(expected))


@check
def send_and_recv(group: Group) -> None:
    be, last = group.backend, group.size - 1
    x = tensor(group)
    if last == 0:
        return
    if group.rank == 0:
        sent = group.send(x, last)
        cost = be.sum(sent, keepdims=False)
        np.testing.assert_array_equal(got(sent), 0)
        np.testing.assert_allclose(got(optree.grad(cost, [x])[0]), 2 * values(0), rtol=1e-13)
    elif group.rank == last:
        like = be.zeros((4, 3), "float64")
        received = group.recv(like, 0)
        np.testing.assert_array_equal(got(received), values(0))
        got(optree.grad(be.sum(be.square(group.recv(like, 0)), keepdims=False), [like])[0])
    if group.engine.name != "mpi":  # NCCL's wait for a receiver
        return
    wide = be.zeros(1 << 18, "float64")  # more than MPI sends without a receiver: all send before they receive
    group.send(wide, (group.rank + 1) % group.size).astensor()
    group.recv(wide, (group.rank - 1) % group.size).astensor()


@check
def neither_merged_nor_left_out_nor_in_another_order(group: Group) -> None:
    """The operations that ranks run, in order, are those of the trees, in functions and in assignments."""
    if group.size == 1:  # alone, none is run
        return
    said: list[str] = []
    engine = group.engine
    plain = engine.agree
    engine.agree = lambda words: (said.append(words.split(" of ")[0]), plain(words))  # type: ignore[assignment,func-returns-value]
    try:
        x = tensor(group)
        twice = optree.function([], [group.all_reduce(x), group.all_reduce(x), group.all_gather(x)])
        twice()
        assert said == ["all_reduce, sum", "all_reduce, sum", "all_gather"], said
        said.clear()
        y = group.backend.zeros((4, 3), "float64")
        y[:] = group.all_reduce(x, "max") * 0 + group.all_reduce(x, "min") * 0
        assert said == ["all_reduce, max", "all_reduce, min"], said
    finally:
        del engine.agree


@check
def operations_that_differ_are_named(group: Group) -> None:
    """The error is every rank's. It would end the program; here it is caught, and the engine goes on."""
    x, others = tensor(group), "all_reduce, sum of float64 (4, 3)"
    cases: Any = (
        (lambda: group.all_reduce(group.backend.zeros((2, 2), "float64")), group.all_reduce, "float64 (2, 2)", others),
        (lambda: group.all_reduce(group.backend.zeros((4, 3), "int64")), group.all_reduce, "int64 (4, 3)", others),
        (lambda: group.all_gather(x), group.all_reduce, "all_gather of float64 (4, 3)", others),
        (lambda: group.broadcast(x, 1), lambda x: group.broadcast(x, 0), "rank 1's float64", "rank 0's float64"),
    )
    for last, other, *said in cases if group.size > 1 else ():
        try:
            got(last() if group.rank == group.size - 1 else other(x))
        except DistributedError as error:
            assert all(words in str(error) for words in said), error
        else:
            raise AssertionError(said)
        group.engine._failed = ""  # type: ignore[attr-defined]


@check
def arguments_are_checked_where_they_are_given(group: Group) -> None:
    x = tensor(group)
    for call, error in (
        (lambda: group.all_reduce(x, "median"), OperandError),
        (lambda: group.all_reduce(x, "max", replicated=True), OperandError),
        (lambda: group.all_reduce(tensor(group, (3,), "int64"), "mean"), DTypeError),
        (lambda: group.mean(tensor(group, (3,), "int64"), 2.0), DTypeError),
        (lambda: group.broadcast(x, group.size), OperandError),
        (lambda: group.send(x, -1), OperandError),
        (lambda: group.reduce_scatter(group.backend.zeros(group.size + 1)), ShapeError if group.size > 1 else None),
    ):
        try:
            call()
        except Exception as caught:
            assert error is not None and isinstance(caught, error), caught
        else:
            assert error is None


def network(be: Any, packs: bool, dtype: str) -> tuple[list[Any], Any, Any, Any]:
    """Weights, two inputs, and the mean loss of a batch."""
    rng = np.random.default_rng(0)
    shapes = [(6, 8), (8,), (8, 3), (3,)]
    weights: Any = [be.array(rng.normal(size=s) / 2, dtype=dtype, name=f"w{i}") for i, s in enumerate(shapes)]
    weights = train.packed(weights) if packs else weights
    w1, b1, w2, b2 = weights
    x, y = TensorType("float64", (None, 6))("x"), TensorType("int64", (None,))("y")
    hidden = be.tanh(be.dot(be.cast(x, dtype) if dtype != "float64" else x, w1) + b1)
    return weights, x, y, train.losses.cross_entropy(be.dot(hidden, w2) + b2, y)


def trained(
    be: Any,
    group: Group | None,
    packs: bool,
    dtype: str = "float64",
    size: int = 7,
    kind: Any = train.AdamW,
    turns: int = 3,
    **options: Any,
) -> Any:
    """The weights and losses after some steps: on the whole batches, or on a part of each."""
    rng = np.random.default_rng(1)
    data = rng.normal(size=(40, 6)), rng.integers(0, 3, 40)
    weights, x, y, loss = network(be, packs, dtype)
    if group is not None and group.rank:  # it begins with rank 0's
        weights[0][0] = 9.0
    opt = kind(weights, 0.01, **options)
    if group is None:
        step = optree.function([x, y], loss, updates=opt.updates(loss))
        batches = train.Batches(*data, size=size, seed=3, ahead=0)
    else:
        count = group.count(y)
        step = optree.function([x, y], group.mean(loss, count), updates=opt.updates(loss, over=group, count=count))
        batches = train.Batches(*data, size=size, seed=3, ahead=0, rank=group.rank, ranks=group.size)
    losses = [step(*batch).item() for _ in range(turns) for batch in batches]
    return weights, losses, opt


class Alone(NamedTuple):
    """Weights, losses, state and averages of one process that has trained on the whole batches."""

    weights: list[np.ndarray]
    losses: list[float]
    state: dict[str, np.ndarray]
    averages: list[np.ndarray]


def alone(group: Group, *args: Any, **options: Any) -> Alone:
    """The result of one process: rank 0 trains, and the others get a copy."""

    def made() -> Alone:
        weights, losses, opt = trained(group.backend, None, *args, **options)
        averages = [got(tree) for tree in opt.averages.values()] if "average" in options else []
        return Alone([w.get() for w in weights], losses, {name: x.get() for name, x in opt.state.items()}, averages)

    return MPI.COMM_WORLD.bcast(group.once(made))


@check
def training_equals_one_process_with_the_whole_batch(group: Group) -> None:
    """Seven examples on two or three ranks, and an uneven last batch of five."""
    cases: Any = ({}, {"clip_global_norm": 0.1}, {"accumulate": 2}, {"check_finite": True, "average": 0.9})
    for options in cases[1:2] if is_brief(group) else cases:
        expected = alone(group, True, **options)
        for packs in (True,) if is_brief(group) else (False, True):
            weights, losses, opt = trained(group.backend, group, packs, **options)
            np.testing.assert_allclose(losses, expected.losses, rtol=1e-11)
            for w, e in zip(weights, expected.weights, strict=True):
                np.testing.assert_allclose(w.get(), e, rtol=1e-10, atol=1e-12)
            group.check_equal([*weights, *opt.state.values()])


@check
def joint_batch_norm_equals_one_process_with_the_whole_batch(group: Group) -> None:
    """Values, gradients of a sum of costs, and running statistics; also of unlike or empty parts."""
    be, rng = group.backend, np.random.default_rng(3)
    ranks = range(group.size)
    for sizes in ([3 for _ in ranks], [2 + rank for rank in ranks], [4 * (rank == 0) for rank in ranks]):
        end = sum(sizes[: group.rank + 1])
        own = slice(end - sizes[group.rank], end)
        count = sum(sizes)
        batch, factor = rng.normal(size=(count, 3, 5)) * 4 + 2, rng.normal(size=(count, 3, 5))
        parameters = [rng.uniform(0.5, 2, 3) for _ in range(4)]

        def made(examples: slice, over: Any, batch: Any = batch, factor: Any = factor, given: Any = parameters) -> Any:
            x = be.array(batch[examples], "float64", "x")
            gain, bias, mean, variance = (be.array(y, "float64") for y in given)
            found = be.batch_norm(x, gain, bias, mean, variance, momentum=0.3, over=over)
            cost = be.sum(be.tanh(found.value) * be.array(factor[examples], "float64"))
            trees = [*found, *optree.grad(cost, [x, gain, bias])]
            return [y.get() for y in optree.function([], trees)()]

        value, mean, variance, dx, dgain, dbias = made(own, group)
        whole = made(slice(None), None)
        np.testing.assert_allclose(value, whole[0][own], rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose([mean, variance], whole[1:3], rtol=1e-11)
        np.testing.assert_allclose(dx, whole[3][own], rtol=1e-9, atol=1e-11)
        both = [got(group.all_reduce(be.array(y, "float64"))) for y in (dgain, dbias)]
        np.testing.assert_allclose(both, whole[4:], rtol=1e-9, atol=1e-11)
        group.check_equal([be.array(mean, "float64"), be.array(variance, "float64")])


#: Options of optimizers whose results must not depend on who has which part of the state.
OPTIONS: Any = (
    (train.SGD, {"momentum": 0.9, "nesterov": True, "clip_norm": 0.05}),
    (train.RMSProp, {"centered": True, "clip_value": 0.01}),
    (train.Adagrad, {"initial_sum": 0.1}),
    (train.Adadelta, {"clip_global_norm": 0.05}),
    (train.Adam, {"accumulate": 2, "weight_decay": 0.1}),
    (train.AdamW, {"check_finite": True, "average": 0.9}),
    (train.Adamax, {"epsilon": 0.0}),
    (train.LAMB, {"clip_norm": 0.05}),
    (train.LARS, {}),
    (train.Lion, {"loss_scale": train.LossScale(8.0, every=3)}),
)


#: Letters of what `order_of_step` lists: an operation's beginning, and the wait for its value.
LETTERS = {"AllReduce": "sS", "ReduceScatter": "sS", "AllGather": "gG"}


def order_of_step(group: Group, embeds: bool, counts: bool, layers: int, **options: Any) -> set[str]:
    """The order of a step's products, sums and gathers, in its program, and on rank 0 in its fused steps.

    There are four layers of a weight and a bias. A product is ``p``, and the gradient of an embedding ``e``.

    Parameters
    ----------
    layers : int
        The number of layers of which gradients are summed together.
    """
    be, rng = group.backend, np.random.default_rng(0)
    names = ["table"] * embeds + [f"{kind}{i}" for i in range(4) for kind in "wb"]
    weights = [be.array(rng.normal(size=6 if name[0] == "b" else (6, 6)), name=name) for name in names]
    x = TensorType("int64", (None,))("ids") if embeds else TensorType("float32", (None, 6))("x")
    hidden, own = (be.embedding(weights[0], x), weights[1:]) if embeds else (x, weights)
    for w, b in zip(own[::2], own[1::2], strict=True):
        hidden = be.tanh(be.dot(hidden, w) + b)
    loss, count = be.mean(be.square(hidden), keepdims=False), group.count(x) if counts else None
    bucket = layers * 4 * 42
    small = {
        name: partial(getattr(group, name), bucket=bucket) for name in ("averaged", "averaged_shards", "unsharded")
    }
    with patch.multiple(group, **small):
        updates = train.AdamW(weights, 0.01, **options).updates(loss, over=group, count=count)
    step = optree.function([x], group.mean(loss, count), updates=updates)
    listed = [step.program.instructions]
    if group.rank == 0:  # fusion is the same on all ranks, and takes as long as the rest
        fused = lower(step.program, first="parts", last="fusion")
        listed.append([fused.program.instructions[i] for each in fused.steps for i in each.instructions])
    step([1, 2, 1] if embeds else np.ones((3, 6), "f"))
    group.check_equal(weights)
    return {"".join(map(_letter, each)) for each in listed}


def _letter(instruction: Any) -> str:
    op = instruction.op
    if isinstance(op, Half):
        return (
            str(LETTERS[type(op.whole).__name__][isinstance(op, Await)]) if instruction.type.shape else ""
        )  # scalars aside
    return {"dot": "p", "index_add": "e"}.get(op.name, "")


@check
def sums_run_beside_the_rest_of_the_backward_pass(group: Group) -> None:
    """Each is begun when its gradients are there, before the next layer's products, and awaited after the last one.

    So it is where ranks have other numbers of examples, where buckets have several weights, whatever is done with the
    sums, and with an op, the embedding's, after which assignments have to wait.
    """
    if group.size == 1:
        assert order_of_step(group, False, False, 1) == {"ppppppppppp"}
        return
    cases: Any = ({}, {"clip_global_norm": 1.0, "average": 0.9}, {"accumulate": 2, "loss_scale": "dynamic"})
    cases = ((False, {}), (True, {"check_finite": True}), *((True, options) for options in cases))
    for counts, options in cases[-1:] if is_brief(group) else cases:
        assert order_of_step(group, False, counts, 1, **options) == {"pppppsppsppsppsSSSS"}, options
        assert order_of_step(group, False, counts, 2, **options) == {"pppppppsppppsSS"}, options
    if is_brief(group):
        return
    assert order_of_step(group, True, True, 1) == {"pppppsppsppsppspesSSSSS"}
    assert order_of_step(group, True, True, 2) == {"pppppppsppppspesSSS"}


@check
def new_weights_are_gathered_beside_the_rest_of_the_backward_pass(group: Group) -> None:
    """A part is updated, and its gather begun, when the next sum has begun, and all gathers are awaited at the end.

    What needs all gradients, such as their norm, is updated after the backward pass.
    """
    if group.size == 1:
        return
    cases: Any = ((False, {}), (True, {}), (True, {"average": 0.9, "weight_decay": 0.1}))
    for counts, options in cases[-1:] if is_brief(group) else cases:
        order = order_of_step(group, False, counts, 1, shard=group, **options)
        assert order == {"pppppsppsSgppsSgppsSgSgGGGG"}, (order, options)
        order = order_of_step(group, False, counts, 2, shard=group, **options)
        assert order == {"pppppppsppppsSgSgGG"}, (order, options)
    if is_brief(group):
        return
    order = order_of_step(group, True, False, 1, shard=group)
    assert order == {"pppppsppsSgppsSgppsSgpesSgSgGGGGG"}, order
    order = order_of_step(group, False, False, 1, shard=group, check_finite=True)
    assert order == {"pppppsppsSgppsSgppsSgSgsGGGGS"}, order
    order = order_of_step(group, False, True, 1, shard=group, clip_global_norm=1.0)
    assert order == {"pppppsppsSppsSppsSSggggGGGG"}, order


@check
def a_rank_goes_on_while_its_operation_waits_for_the_others(group: Group) -> None:
    if group.size == 1:
        return
    engine, x = group.engine, values(group.rank)
    if group.rank == 0:  # the others come when this has gone on
        made, finish = engine.begin("all_reduce", x, "sum")
        again, finish_again = engine.begin("all_gather", x)
    for rank in range(1, group.size):
        mark = np.zeros(1)
        if group.rank == 0:
            MPI.COMM_WORLD.Send(mark, rank)
        elif group.rank == rank:
            MPI.COMM_WORLD.Recv(mark, 0)
    if group.rank:
        made, finish = engine.begin("all_reduce", x, "sum")
        again, finish_again = engine.begin("all_gather", x)
    finish()
    finish_again()
    np.testing.assert_allclose(made, every(group).sum(0), rtol=1e-13)
    np.testing.assert_array_equal(again, every(group))


@check
def tensor_parallel_products_equal_whole_ones(group: Group) -> None:
    """The columns of one product and the rows of the next on each rank: the value, and gradients by all operands."""
    be, n = group.backend, group.size
    rng = np.random.default_rng(2)
    x, w, v = (be.array(rng.normal(size=size), dtype="float64") for size in ((5, 4), (4, 3 * n), (3 * n, 2)))
    mine = slice(3 * group.rank, 3 * group.rank + 3)
    part_w, part_v = be.array(w.get()[:, mine], dtype="float64"), be.array(v.get()[mine], dtype="float64")

    def cost(x: Any) -> Any:
        return be.sum(be.square(x), keepdims=False)

    whole = cost(be.dot(be.tanh(be.dot(be.tanh(x), w)), v))
    hidden = be.tanh(be.dot(group.replicated(be.tanh(x)), part_w))
    parts = cost(group.all_reduce(be.dot(hidden, part_v), replicated=True))
    expected = be.evaluate([whole, *optree.grad(whole, [x, w, v])])
    found = be.evaluate([parts, *optree.grad(parts, [x, part_w, part_v])])
    np.testing.assert_allclose(found[0].get(), expected[0].get(), rtol=1e-12)
    np.testing.assert_allclose(found[1].get(), expected[1].get(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found[2].get(), expected[2].get()[:, mine], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found[3].get(), expected[3].get()[mine], rtol=1e-10, atol=1e-12)
    group.check_equal(found[:2])


@check
def sharded_optimizers_equal_whole_ones(group: Group) -> None:
    """In all formulas and options, with a part of the state on each rank; weights have one of no rank's size."""
    cases = OPTIONS[5:8:2] if is_brief(group) else OPTIONS
    for number, (kind, options) in enumerate(cases):
        packs = number % 2 == 1
        weights, losses, opt = trained(group.backend, group, packs, kind=kind, turns=1, shard=group, **options)
        expected = alone(group, packs, kind=kind, turns=1, **options)
        np.testing.assert_allclose(losses, expected.losses, rtol=1e-10, err_msg=kind.__name__)
        state = opt.whole_state()
        assert [*state] == [*expected.state]
        for name, e in expected.state.items():
            np.testing.assert_allclose(state[name], e, rtol=1e-9, atol=1e-12, err_msg=f"{kind.__name__} {name}")
        for w, e in zip(weights, expected.weights, strict=True):
            np.testing.assert_allclose(w.get(), e, rtol=1e-10, atol=1e-12, err_msg=kind.__name__)
        group.check_equal([*weights, *(x for name, x in opt.state.items() if name not in opt.shards)])
        if "average" in options:
            assert len(opt.averages) == len(weights)
            for (w, tree), e in zip(opt.averages.items(), expected.averages, strict=True):
                np.testing.assert_allclose(got(tree), e, rtol=1e-10)
                assert tree.shape == w.shape
    assert (
        len({kind for kind, _ in OPTIONS})
        == len([x for x in vars(train).values() if isinstance(x, type) and issubclass(x, train.Optimizer)]) - 1
    )


@check
def a_rank_has_its_part_of_the_state(group: Group) -> None:
    be = group.backend
    for packs in (False, True):
        weights, *_ = network(be, packs, "float32")
        opt = train.AdamW(weights, 0.01, shard=group, average=0.9)
        elements = sum(x.size for x in weights)
        own = sum(x.nbytes for name, x in opt.state.items() if name in opt.shards)
        assert sum(got(group.all_gather(be.array([own], dtype="int64")))) == 3 * 4 * elements
        vectors = [vector for unit in opt._units for vector in unit.slots.values()]
        assert len(vectors) == (3 if packs else 12)
        # Gaps between packed weights are part of their vector, and each rank's part is of one length.
        most = sum(unit.target.size for unit in opt._units) / group.size + len(opt._units)
        assert sum(x.nbytes for x in vectors) <= 3 * 4 * most


@check
def what_cannot_be_sharded_is_refused(group: Group) -> None:
    be = group.backend

    class Centred(train.Optimizer):
        is_elementwise = False

        def formula(self, w: Any, g: Any, s: dict[str, Any], n: Any) -> tuple[Any, dict[str, Any]]:
            return w - n.rate * (g - be.mean(g, keepdims=False)), {}

    weights, _, _, loss = network(be, False, "float64")
    others = Group(gen_backend("cpu", jit=False), group.engine)
    opt = train.Adam(weights, 0.1, shard=group)
    for call, said in (
        (lambda: Centred(weights, 0.1, shard=group), "needs whole weights"),
        (lambda: opt.updates(loss, over=others), "sharded by another group"),
        (lambda: train.Adam(weights, 0.1, shard=others), "the weights are on"),
        (lambda: train.save("no such folder", {"optimizer": opt}), "save(..., over=group)"),
    ):
        try:
            call()
        except OperandError as error:
            assert said in str(error), error
        else:
            raise AssertionError(said)


@check
def narrow_weights_and_dynamic_scales_are_equal_on_all_ranks(group: Group) -> None:
    scale = train.LossScale(1024.0, every=4)
    expected = alone(group, True, "float16", loss_scale=scale)
    for options in ({}, {"shard": group}):
        weights, losses, opt = trained(group.backend, group, True, "float16", loss_scale=scale, **options)
        np.testing.assert_allclose(losses, expected.losses, rtol=0.02)
        group.check_equal([*weights, *(x for name, x in opt.state.items() if name not in opt.shards)])


@check
def a_rank_without_examples_counts_for_nothing(group: Group) -> None:
    be = group.backend
    x = TensorType("float64", (None,))("x")
    mean = optree.function([x], group.mean(be.mean(x, keepdims=False), group.count(x)))
    with np.errstate(all="ignore"):
        found = mean([1.0, 2.0, 6.0] if group.rank == 0 else []).item()
    assert found == 3.0, found


@check
def buckets_of_any_size_give_the_same_means(group: Group) -> None:
    xs = [tensor(group, shape) for shape in ((4, 3), (), (5,), (2, 2, 2))]
    xs.append(tensor(group, (3,), "float32"))
    for bucket in (1, 64, 1 << 20):
        for x, found in zip(xs, group.averaged(xs, bucket=bucket), strict=True):
            dtype = str(x.dtype)
            np.testing.assert_allclose(got(found), every(group, x.shape, dtype).mean(0), rtol=1e-5)
            assert found.shape == x.shape and found.dtype == x.dtype


@check
def weights_begin_as_those_of_rank_0(group: Group) -> None:
    w = tensor(group)
    group.equalize([w])
    np.testing.assert_array_equal(w.get(), values(0))
    group.check_equal([w])
    if group.rank == group.size - 1:
        w[0, 0] = 99.0
    try:
        group.check_equal([tensor(group, (2,)) * 0, w][1:])
    except DistributedError as error:
        assert group.size > 1 and f"ranks {group.size - 1}" in str(error) and "x" in str(error), error
    else:
        assert group.size == 1


@check
def draws_agree_and_differ(group: Group) -> None:
    be = gen_backend("cpu", jit=False)  # of a seed of its own on each rank
    own = Group(be, group.engine)
    own.same_draws()
    own.check_equal([be.array(be.rng.rand(3)), numbers(be)])
    own.own_draws()
    drawn = got(own.all_gather(numbers(be)[None]))
    assert len({row.tobytes() for row in drawn}) == group.size
    own.check_equal([be.array(be.rng.rand(3))])


def numbers(be: Any) -> Any:
    return be.standard_normal((6,), np.dtype("float64")).astensor()


def common_folder(group: Group) -> Path:
    """A folder that rank 0 has made."""
    paths = np.zeros(200, np.uint8)
    if group.rank == 0:
        data = tempfile.mkdtemp().encode()
        paths[: len(data)] = np.frombuffer(data, np.uint8)
    return Path(got(group.broadcast(group.backend.array(paths, dtype="uint8"))).tobytes().rstrip(b"\0").decode())


@check
def checkpoints_are_written_once_and_read_by_all(group: Group) -> None:
    """Of whole and of sharded optimizers; by whole ones and sharded ones, on other numbers of ranks too."""
    for shards in (False, True):
        folder = common_folder(group)
        packs = not shards
        weights, _, opt = trained(group.backend, group, packs, turns=1, shard=group if shards else None)
        batches = train.Batches(np.arange(40), size=7, seed=3, ahead=0, rank=group.rank, ranks=group.size)
        next(iter(batches))
        made = train.save(folder, {"weights": weights, "optimizer": opt, "batches": batches}, step=1, over=group)
        assert (made is not None) == (group.rank == 0)
        expected = opt.whole_state()
        # What NCCL has not are groups of some ranks.
        readers = [None, group, *([] if group.engine.name == "nccl" else [group.split(group.rank % 2)])]
        for reader in readers:
            again, _, _, _ = network(group.backend, not packs, "float64")
            other = train.AdamW(again, 0.01, shard=reader)
            rank, ranks = (0, 1) if reader is None else (reader.rank, reader.size)
            rest = train.Batches(np.arange(40), size=9, seed=3, ahead=0, rank=rank, ranks=ranks, resize=True)
            train.load(folder, {"weights": again, "optimizer": other, "batches": rest})
            (share,) = next(iter(rest))
            order = batches._order()
            assert order is not None
            np.testing.assert_array_equal(share, order[7 + 9 * rank // ranks : 7 + 9 * (rank + 1) // ranks])
            for w, e in zip(again, weights, strict=True):
                np.testing.assert_array_equal(w.get(), e.get())
            for name, found in other.whole_state().items():
                found = found if isinstance(found, np.ndarray) else found.get()
                e = expected[name] if isinstance(expected[name], np.ndarray) else expected[name].get()
                np.testing.assert_array_equal(found, e, err_msg=name)


@check
def draws_go_on_as_in_a_run_that_was_not_stopped(group: Group) -> None:
    """Each rank has drawn its own amount, as for an uneven batch."""
    be, folder = gen_backend("cpu", jit=False, rng_seed=3), common_folder(group)
    own = Group(be, group.engine)
    for _ in range(2):
        own.own_draws()
        be.rand((3 + 4 * group.rank,)).astensor()
        train.save(folder, {"random": be}, step=1, over=own)
        expected = numbers(be).get()
        again = gen_backend("cpu", jit=False, rng_seed=4)
        train.load(folder, {"random": again})
        Group(again, group.engine).own_draws()
        np.testing.assert_array_equal(numbers(again).get(), expected)


@check
def one_rank_runs_a_function_and_its_errors_are_all_ranks(group: Group) -> None:
    calls: list[int] = []

    def once() -> int:
        calls.append(group.rank)
        return 3

    made = group.once(once)
    assert (calls == [0] and made == 3) if group.rank == 0 else (not calls and made is None)
    try:
        group.once(int, "no number")
    except ValueError:
        assert group.rank == 0
    except DistributedError as error:
        assert group.rank > 0 and "int has failed on rank 0" in str(error)
    else:
        raise AssertionError("an error was lost")
    group.barrier()


@check
def groups_of_some_ranks(group: Group) -> None:
    part = group.split(group.rank % 2)
    mine = [rank for rank in range(group.size) if rank % 2 == group.rank % 2]
    assert part.size == len(mine) and mine[part.rank] == group.rank
    x = tensor(group)
    np.testing.assert_allclose(got(part.all_reduce(x)), sum(values(rank) for rank in mine), rtol=1e-13)


@check
def bits(group: Group) -> str:
    """The bits of weights after training, for runs to be compared; by kernels where there is a compiler."""
    be = gen_backend("cpu", jit="always", rng_seed=1)
    own = Group(be, group.engine)
    found = ""
    for packs, options in ((True, {}), (False, {"shard": own})):  # the parts of these are in several buckets
        small = {name: partial(getattr(own, name), bucket=100) for name in ("averaged_shards", "unsharded")}
        with patch.multiple(own, **small):
            weights, losses, _ = trained(be, own, packs, "float32", **options)
        own.check_equal(weights)
        found += "".join(w.get().tobytes().hex() for w in weights) + str(losses)
    return found


@check
def the_example_of_divided_products_equals_one_process(group: Group) -> None:
    example, printed = runpy.run_path(str(ROOT / "examples" / "tensor_parallel.py")), io.StringIO()
    be = gen_backend("cpu", rng_seed=0, jit="always")
    losses = group.once(lambda: example["trained"](be, init(be, "alone")))
    with redirect_stdout(printed):
        example["main"]()
    if group.rank == 0:
        said, _, numbers = printed.getvalue().partition(":")
        assert said == f"{group.size} processes, {96 // group.size} hidden units each"
        np.testing.assert_allclose([float(x) for x in numbers.split()], losses[::13], atol=2e-4)


@check
def the_digits_are_learned_as_by_one_process(group: Group) -> None:
    sys.path.insert(0, str(ROOT / "examples"))
    folder, main = common_folder(group), import_module("digits").main

    def made(*options: str) -> list[str]:
        """What a run prints, and reports of its epochs."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            main(["--epochs", "1", "--batch-size", "100", *options])
        return [*out.getvalue().splitlines()[:2], *err.getvalue().splitlines()]

    one = group.once(lambda: made("--output", str(folder / "1")))
    all_ranks = made("--distributed", "--output", str(folder / "all"))
    if group.rank == 0:
        assert "0 after it" in all_ranks[0] and all_ranks[1:] == one[1:] and len(one) > 2, (all_ranks, one)
        expected, found = (train.read(folder / name / "checkpoints") for name in ("1", "all"))
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
        # What several processes have written, one reads.
        assert made("--output", str(folder / "all"), "--resume")[1] == one[1]


def device_group() -> Group:
    """The group of a GPU's backend, on stand-ins for CuPy and its NCCL."""
    cupy = fake_cupy()
    with patch.dict(sys.modules, modules(cupy)):
        return init(stand_in(cupy))


def main() -> None:
    """Make the checks that are named: on_ranks.py [nccl] [check ...]."""
    on_device = "nccl" in sys.argv
    compiler.FLAGS = tuple(flag if flag != "-O3" else "-O1" for flag in compiler.FLAGS)  # kernels are few and small
    host = init(gen_backend("cpu", jit=False))
    group = device_group() if on_device else host
    assert (group.engine.name, host.engine.name) == ("nccl" if on_device else "mpi", "mpi")
    found = {}
    for name in [name for name in CHECKS if name in sys.argv]:  # in one order on all ranks
        try:
            found[name] = CHECKS[name](host if name in HOST_ONLY else group) or "ok"
        except Exception:
            found[name] = f"rank {group.rank}: {traceback.format_exc()}"
            print(found[name], file=sys.stderr, flush=True)
            raise
    outcomes = json.dumps(found)
    if group.rank == 0:
        print(outcomes, flush=True)


if __name__ == "__main__":
    main()
