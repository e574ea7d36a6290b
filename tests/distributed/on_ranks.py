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
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from harness.fake_cupy import fake_cupy
from harness.fake_nccl import modules
from harness.homes import stand_in
from ranks import CHECKS, check, every, got, tensor, values
from training_on_ranks import network, trained

import optree
from backends import gen_backend
from backends.cpu import compiler
from optree import train
from optree.distributed import DistributedError, Group, init
from optree.errors import DTypeError, OperandError, ShapeError

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

DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)


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
            for kind in ("max", "min") if dtype[0] != "c" else ():
                np.testing.assert_array_equal(got(group.all_reduce(x, kind)), getattr(all_x, kind)(0))
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
        return be.sum(be.square(be.abs(made)) * weights[rank][: made.size].reshape(made.shape), keepdims=False)

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
    for (name, (tree, reference)), dtype in product(cases.items(), ("float64", "complex128")):
        if dtype == "complex128" and name in ("max", "min"):
            continue
        x, all_x = tensor(group, shape, dtype), [*every(group, shape, dtype)]
        found = got(optree.grad(cost(tree(x), group.rank, group.backend), [x])[0])

        def total(given: Any, reference: Any = reference) -> float:
            made = [reference(given, i) for i in range(n)]
            return float(
                sum((np.abs(m) ** 2 * weights[i][: m.size].reshape(m.shape)).sum() for i, m in enumerate(made))
            )

        expected, step = np.zeros(shape, dtype), 1e-5
        for index, part in product(np.ndindex(*shape), (1, 1j) if dtype == "complex128" else (1,)):
            ends = []
            for sign in (1, -1):
                moved = [v.copy() for v in all_x]
                moved[group.rank][index] += sign * step * part
                ends.append(total(moved))
            expected[index] += part * (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7, err_msg=f"{name} of {dtype}")


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
        """The text that a run prints, and its reports of epochs."""
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
    compiler.FLAGS = tuple(flag if flag != "-O2" else "-O1" for flag in compiler.FLAGS)  # kernels are few and small
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
