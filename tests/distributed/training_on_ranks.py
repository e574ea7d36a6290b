"""Checks of training on several processes: joint batches, batch norm, sharded optimizers, buckets, first weights."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from mpi4py import MPI
from ranks import check, every, got, is_brief, tensor, values

import optree
from backends import gen_backend
from optree import TensorType, train
from optree.compile.pipeline import lower
from optree.distributed import DistributedError, Group
from optree.errors import OperandError
from optree.ops.collectives import Await, Half


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
def complex_weights_train_as_on_one_process(group: Group) -> None:
    """By averaged gradients, clipped by their norm over all ranks, with the state whole and in parts."""
    be, rng = group.backend, np.random.default_rng(0)
    start, goals = (rng.normal(size=(2, *shape)) for shape in ((5,), (group.size, 5)))
    goals = goals[0] + 1j * goals[1]
    found = []
    for over, shard in ((None, None), (group, None), (group, group)):
        w = be.array(start[0] + 1j * start[1], "complex128", name="w")
        mine = be.array(goals if over is None else goals[group.rank : group.rank + 1], "complex128")
        opt = train.Adam([w], 0.05, clip_global_norm=0.5, shard=shard)
        loss = be.mean(be.abs(w * w - mine) ** 2)
        step = optree.function([], loss, updates=opt.updates(loss, over=over))
        for _ in range(4):
            step()
        found.append(w.get())
    assert np.abs(found[0] - start[0] - 1j * start[1]).max() > 0.1
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-10)


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
