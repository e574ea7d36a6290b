"""Groups of processes: collective operations in trees, and data parallel training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np

from optree.distributed.engine import Engine
from optree.distributed.errors import DistributedError
from optree.dtypes import is_inexact, wide_dtype
from optree.errors import DTypeError, OperandError, describe
from optree.ops.assignment import Joined, Store
from optree.ops.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Exchange,
    Reduce,
    ReduceScatter,
    Replicated,
)
from optree.registry import f
from optree.tree.tensor import Tensor
from optree.tree.variable import Operand, Variable, in_dtype, variable_of

#: The maximum bytes of a bucket of gradients for few ranks, unless one gradient has more. Latency grows with the number
#: of ranks, and so does the bucket, up to a maximum and a part of all bytes (benchmarks/scaling.py).
BUCKET, FEW, LARGEST_BUCKET, PARTS = 1 << 22, 8, 1 << 25, 12

#: The maximum seconds of a function that one rank runs while the others wait.
ONCE = 3600.0

#: The difference between the seeds of two ranks: an odd number with high and low bits set.
APART = 0x9E3779B97F4A7C15


class Group:
    """A group of processes, as returned by `optree.distributed.init`.

    The methods named after collective operations return trees. All ranks must build the same trees and run them in the
    same order; a tree or function has a fixed order of its own. Derivatives are of the sum of all ranks' costs, or with
    `replicated`, of the one cost that all ranks compute.

    Attributes
    ----------
    rank, size : int
        The rank of this process, and the number of processes.
    backend : Backend
    engine : Engine
    turn : Tensor
        A tensor that collective operations overwrite, which orders them.

    Examples
    --------
    >>> from backends import gen_backend
    >>> from optree.distributed import init
    >>> be = gen_backend("cpu", jit=False)
    >>> group = init(be)
    >>> group.rank, group.size, group.all_reduce(be.array([1.0, 2.0]), "mean").get()
    (0, 1, array([1., 2.], dtype=float32))
    """

    def __init__(self, backend: Any, engine: Engine) -> None:
        self.backend, self.engine = backend, engine
        self.rank, self.size = engine.rank, engine.size
        self.turn: Tensor = backend.zeros(1, "uint64", "turn")
        #: Operations that have begun, by the identity of the array that the value will be in: that, and what waits.
        self.begun: dict[int, tuple[Any, Callable[[], None]]] = {}
        #: The last tree of a number of examples, in float64, and of all ranks' numbers: a step has it in several means.
        self._counted: tuple[Any, Any, Any] = None, None, None

    def __repr__(self) -> str:
        return f"rank {self.rank} of {self.size} ({self.engine.name})"

    # Operations, as trees

    def all_reduce(self, x: Operand, kind: str = "sum", replicated: bool = False) -> Any:
        """The elementwise sum, mean, max or min of all ranks' values.

        Parameters
        ----------
        x : Variable
        kind : {'sum', 'mean', 'max', 'min'}
        replicated : bool
            For a sum, whether all ranks compute the same cost from it, as for tensor parallel products. The derivative
            is then that of this one cost.
        """
        return AllReduce.make(group=self, kind=kind, replicated=replicated)(self.turn, x)

    def replicated(self, x: Operand) -> Any:
        """A value that is equal on all ranks, each of which computes a part of one cost: its deltas are summed."""
        return Replicated.make(group=self)(x)

    def all_gather(self, x: Variable, axis: int = 0) -> Any:
        """The values of all ranks, of equal shapes, concatenated along an axis."""
        return AllGather.make(group=self, axis=axis)(self.turn, x)

    def reduce_scatter(self, x: Operand, axis: int = 0) -> Any:
        """The part for this rank, along an axis, of the sum of all ranks' values."""
        return ReduceScatter.make(group=self, axis=axis)(self.turn, x)

    def broadcast(self, x: Variable, root: int = 0) -> Any:
        """The value of the rank `root`."""
        return Broadcast.make(group=self, root=self._rank(root))(self.turn, x)

    def reduce(self, x: Variable, root: int = 0) -> Any:
        """The sum of all ranks' values on the rank `root`, zeros on the others."""
        return Reduce.make(group=self, root=self._rank(root))(self.turn, x)

    def all_to_all(self, x: Variable, split: int = 0, join: int = 0) -> Any:
        """Split all ranks' values along one axis, and concatenate the parts for this rank along another."""
        return AllToAll.make(group=self, split=split, join=join)(self.turn, x)

    def exchange(self, x: object, to: int | None = None, source: int | None = None) -> Any:
        """Send `x` to the rank `to`; the value is that of the rank `source`, of the shape and dtype of `x`.

        Without a source the value is zeros. The derivative sends deltas back.
        """
        ends = {name: None if rank is None else self._rank(rank) for name, rank in (("to", to), ("source", source))}
        return Exchange.make(group=self, **ends)(self.turn, x)

    def send(self, x: Operand, to: int) -> Any:
        """Send a value to a rank, which receives it by `recv`. The value of the tree is zeros of its shape.

        To receive the derivative by `x` from that rank, add this tree of zeros to the cost.
        """
        return self.exchange(x, to=to)

    def recv(self, like: Operand, source: int) -> Any:
        """Receive a value that a rank sends by `send`, of the shape and dtype of `like`.

        The derivative by `like` sends the delta back.
        """
        return self.exchange(like, source=source)

    def _rank(self, rank: int) -> int:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.size:
            raise OperandError(f"of {self.size} ranks, one is from 0 to {self.size - 1}, not {rank!r}")
        return rank

    # Data parallel

    def mean(self, x: Operand, count: object = None) -> Any:
        """The mean of all ranks' values of a tree, such as a loss, weighted by their numbers of examples.

        Parameters
        ----------
        x : Variable
        count : number or tree of one element, optional
            The number of examples of this rank; by default equal on all ranks.
        """
        (found,) = self.averaged([x], count)
        return found

    def averaged(self, trees: Sequence[Any], count: object = None, bucket: int | None = None) -> list[Any]:
        """The mean over all ranks of each tree, such as gradients; trees are summed in buckets, one operation each.

        Parameters
        ----------
        trees : sequence of Variable
            Trees of known sizes.
        count : number or tree of one element, optional
            See `mean`. Values of a rank without examples are ignored, even nan.
        bucket : int, optional
            The maximum bytes of a bucket; by default `bucket_of` the number of ranks.
        """
        given, total = self._weighted([variable_of(x, "averaged") for x in trees], count)
        if self.size == 1:
            return given
        found: list[Any] = [None] * len(given)
        kind = "mean" if total is None else "sum"
        for numbers in self._buckets(given, [x.shape for x in given], bucket):
            if len(numbers) == 1:
                found[numbers[0]] = self.all_reduce(given[numbers[0]], kind)
                continue
            whole = self.all_reduce(self._vector([given[i] for i in numbers]), kind)
            for i, part in zip(numbers, _split(whole, [given[i].size for i in numbers]), strict=True):
                found[i] = f.reshape(part, given[i].shape)
        return found if total is None else [_quotient(x, total, like) for x, like in zip(found, trees, strict=True)]

    # Sharded vectors

    def shard_range(self, size: int) -> tuple[int, int]:
        """The begin and end of this rank's part of a vector; all parts but the last ones have equal lengths."""
        length = -(-size // self.size)
        return min(self.rank * length, size), min((self.rank + 1) * length, size)

    def shard(self, x: Variable) -> Any:
        """The part of a value's elements for this rank, as a vector padded with zeros to equal length on all ranks."""
        begin, end = self.shard_range(x.size)
        part = f.slice(_flat(x), (slice(begin, end),))
        length = -(-x.size // self.size)
        return part if part.size == length else f.pad(part, (0, length - part.size))

    def averaged_shards(
        self, trees: Sequence[Any], count: Operand | None = None, bucket: int | None = None
    ) -> list[Any]:
        """The shard for this rank of each mean of `averaged`; each rank receives its own part only."""
        given, total = self._weighted([variable_of(x, "averaged_shards") for x in trees], count)
        found: list[Any] = [None] * len(given)
        for numbers in self._buckets(given, [x.shape for x in given], bucket):
            rows = [self._rows(given[i]) for i in numbers]
            mine = _flat(self.reduce_scatter(rows[0] if len(rows) == 1 else f.concatenate(rows, 1)))
            for i, part in zip(numbers, _split(mine, [x.shape[1] for x in rows]), strict=True):
                found[i] = part / self.size if total is None else _quotient(part, total, trees[i])
        return found

    def _rows(self, x: Variable) -> Any:
        """The elements of a value as a matrix with a row for each rank."""
        short = -x.size % self.size
        flat = f.pad(_flat(x), (0, short)) if short else x
        return f.reshape(flat, (self.size, (x.size + short) // self.size))

    def unsharded(self, shards: Sequence[Any], shapes: Sequence[Any], bucket: int | None = None) -> list[Any]:
        """Gather whole values of given shapes from all ranks' shards; bitwise equal on all ranks."""
        given: list[Any] = [variable_of(x, "unsharded") for x in shards]
        found: list[Any] = [None] * len(given)
        for numbers in self._buckets(given, shapes, bucket):
            vector = self._vector([given[i] for i in numbers]) if len(numbers) > 1 else given[numbers[0]]
            whole = self.all_gather(f.reshape(vector, (1, vector.size)))
            start = 0
            for i in numbers:
                flat = _flat(f.slice(whole, (slice(None), slice(start, start + given[i].size))))
                size = prod(shapes[i])
                found[i] = f.reshape(f.slice(flat, (slice(size),)) if size < flat.size else flat, shapes[i])
                start += given[i].size
        return found

    def _buckets(self, trees: Sequence[Any], shapes: Sequence[Any], most: int | None) -> list[list[int]]:
        """The indices of the trees of each bucket: neighbours of one dtype, from the last, which is computed first.

        `shapes` (sequence of tuple of int): the shapes of their values over all ranks.
        `most`: the maximum bytes of a bucket; by default `bucket_of` the number of ranks.
        """
        sizes = [prod(shape) * x.dtype.itemsize for x, shape in zip(trees, shapes, strict=True)]
        most, found = most or bucket_of(self.size, sum(sizes)), list[list[int]]()
        room, last = 0, None
        for i in reversed(range(len(trees))):
            if trees[i].dtype != last or sizes[i] > room:
                found.append([])
                room, last = most, trees[i].dtype
            found[-1].append(i)
            room -= sizes[i]
        return found

    def _vector(self, trees: Sequence[Any]) -> Any:
        """The elements of trees as one vector, into which kernels and products write directly."""
        ends = list(accumulate([x.size for x in trees], initial=0))
        flat = self.backend.zeros(ends[-1], trees[0].dtype, "bucket").array
        stores = []
        for x, (begin, end) in zip(trees, pairwise(ends), strict=True):
            stores.append(Store.make()(self.backend.over(flat[begin:end].reshape(x.shape), "part"), x))
        return Joined(size=ends[-1], count=len(stores))(*stores)

    def _weighted(self, trees: list[Any], count: Any) -> tuple[list[Any], Any]:
        """The weighted trees to sum, and the divisor of the sums; None if that is the number of ranks.

        A weighted tree depends on this rank alone, so that sums can begin before the total of examples is known.
        """
        for x in trees:
            if not is_inexact(x.dtype):
                raise DTypeError(f"mean: there is none of {describe(x)}; cast it to a floating dtype before")
        if count is None or self.size == 1:
            return trees, None
        if self._counted[0] is not count:
            is_tree, wide = isinstance(count, Variable), np.dtype(np.float64)
            tree = count if is_tree else variable_of(np.float64(count), "count")
            mine = f.cast(f.reshape(tree, ()) if tree.ndim else tree, wide)
            self._counted = count if is_tree else None, mine, self.all_reduce(mine)
        _, mine, total = self._counted
        none, found = f.eq(mine, 0), []
        for x in trees:
            x = in_dtype(x, wide_dtype(x.dtype))  # in which it is summed anyway
            found.append(f.where(none, f.fill_like(x, 0), x * f.cast(mine, x.dtype)))
        return found, total

    def count(self, x: Operand) -> Any:
        """The number of examples of a batch, the size of its first axis, as a tree."""
        x = variable_of(x, "count")
        if not x.ndim:
            raise OperandError(f"count: examples are along the first axis, which {describe(x)} has not")
        first = f.slice(x, (slice(None), *(slice(0, 1) for _ in range(x.ndim - 1)))) if x.ndim > 1 else x
        return f.sum(f.fill_like(f.cast(first, np.dtype(np.float64)), 1), keepdims=False)

    def equalize(self, tensors: Sequence[Tensor], root: int = 0) -> None:
        """Set tensors on all ranks to their values on the rank `root`."""
        for tensor in tensors if self.size > 1 else ():
            tensor[...] = self.broadcast(tensor, root)

    def check_equal(self, tensors: Sequence[Tensor]) -> None:
        """Raise an error on all ranks unless tensors are bitwise equal on all of them.

        Raises
        ------
        DistributedError
            Names the first tensor that differs, and the ranks that differ from rank 0.
        """
        contents = (np.ascontiguousarray(x.get()).tobytes() for x in tensors)
        sums = [int.from_bytes(blake2b(x, digest_size=8).digest(), "big") for x in contents]
        mine = self.backend.array(np.array([sums], np.uint64), dtype="uint64")
        found = self.all_gather(mine).astensor().get()
        wrong = np.argwhere((found != found[0]).T)
        if len(wrong):
            ranks = ", ".join(str(rank) for i, rank in wrong if i == wrong[0][0])
            raise DistributedError(f"{describe(tensors[wrong[0][0]])} has other bits than rank 0's on ranks {ranks}")

    # Random numbers

    def same_draws(self) -> None:
        """Set all ranks' random states to rank 0's, so that they draw equal numbers, such as initial weights."""
        state = self.backend.rng_get_state()
        name, words, *rest = state["rng"]
        flat = np.concatenate(
            [
                np.asarray(words, np.uint64),
                np.array(rest[:2], np.uint64),
                np.array(rest[2:], np.float64).view(np.uint64),
                np.asarray(state["rng_state"], np.uint64),
            ]
        )
        shared = self.broadcast(self.backend.array(flat, dtype="uint64")).astensor().get()
        count = len(words)
        numbers = int(shared[count]), int(shared[count + 1]), float(shared[count + 2 : count + 3].view(np.float64)[0])
        words = shared[:count].astype(np.uint32)
        self.backend.rng_set_state({"rng": (name, words, *numbers), "rng_state": shared[-2:]})

    def own_draws(self) -> None:
        """Give each rank different draws on the device, such as dropout masks: rank 0's state, with another seed.

        A checkpoint restores rank 0's state, so call this again after loading. Draws on the host (``be.rng``) stay
        equal.
        """
        self.same_draws()
        state = self.backend.rng_get_state()
        seed, counter = (int(x) for x in state["rng_state"])
        seed = (seed + self.rank * APART) % 2**64
        self.backend.rng_set_state({**state, "rng_state": np.array([seed, counter], np.uint64)})

    def same_counter(self, backend: Any) -> None:
        """Set all ranks' counters of device draws to the largest. They differ if the ranks' batches differ.

        `optree.train.save` does it, so that a resumed run draws the same numbers as one that was not stopped.
        """
        if self.size == 1:
            return
        state = backend.rng_get_state()
        seed, counter = (int(x) for x in state["rng_state"])
        largest = self._largest(counter)
        backend.rng_set_state({**state, "rng_state": np.array([seed, largest], np.uint64)})

    # Synchronization

    def barrier(self) -> None:
        """Wait until all ranks have called it."""
        self._any(False)

    def once(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function, such as `optree.train.save`, on rank 0 only, while the other ranks wait for its end.

        Returns
        -------
        object
            Its result on rank 0, None on the others.

        Raises
        ------
        Exception
            Its error on rank 0, and a DistributedError on the others.
        """
        found, error = None, None
        if self.rank == 0:
            try:
                found = function(*args, **kwargs)
            except Exception as caught:
                error = caught
        with self._patient():
            failed = self._any(error is not None)
        if error is not None:
            raise error
        if failed:
            raise DistributedError(f"{getattr(function, '__name__', function)} has failed on rank 0")
        return found

    def _any(self, flag: bool) -> bool:
        """Whether a flag is set on any rank."""
        return flag if self.size == 1 else bool(self._largest(flag))

    def _largest(self, number: int) -> int:
        """The largest of all ranks' numbers."""
        mine = self.backend.array(np.array([number], np.int64), dtype="int64")
        return int(self.all_reduce(mine, "max").astensor().get()[0])

    @contextmanager
    def _patient(self) -> Iterator[None]:
        """A block in which the timeout is longer."""
        before = self.engine.timeout
        self.engine.timeout = max(before, ONCE)
        try:
            yield
        finally:
            self.engine.timeout = before

    def split(self, color: int) -> Group:
        """The group of the ranks that pass the same color, in the order of their ranks; a collective call."""
        return Group(self.backend, self.engine.split(color))


def bucket_of(ranks: int, total: int) -> int:
    """The maximum bytes of a bucket of gradients, for a number of ranks and the total bytes.

    Examples
    --------
    >>> [bucket_of(ranks, 1 << 30) >> 20 for ranks in (2, 16, 1024)], bucket_of(1024, 1 << 20) >> 20
    ([4, 8, 32], 4)
    """
    return min(LARGEST_BUCKET, max(BUCKET, min(BUCKET * ranks // FEW, total // PARTS)))


def _quotient(x: Variable, total: Variable, like: Variable) -> Any:
    """A sum divided by the number of examples, in the dtype of `like`."""
    return in_dtype(x / f.cast(total, x.dtype), like.dtype)


def _flat(x: Variable) -> Any:
    return x if x.ndim == 1 else f.reshape(x, (-1,))


def _split(vector: Operand, sizes: Sequence[int]) -> list[Any]:
    """The parts of a vector, of these sizes."""
    if len(sizes) == 1:
        return [vector]
    ends = list(accumulate(sizes, initial=0))
    return [f.slice(vector, (slice(begin, end),)) for begin, end in pairwise(ends)]
