"""Batches of examples: seeded shuffling, sharding among processes, prefetching, and resumption.

The order of an epoch depends only on the seed and the epoch's number. So a position is a few numbers, and a resumed run
gets the same batches after it, on any number of ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from optree.errors import OperandError, ParameterError, ShapeError, brief, describe
from optree.tree.printing import as_html
from optree.tree.tensor import Tensor


def arrays(path: str | Path) -> Any:
    """Open a ``.npy`` file as a memory-mapped array, or a ``.npz`` file as a dict of arrays.

    Parameters
    ----------
    path : str or Path

    Raises
    ------
    ParameterError
        If the file is neither.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/x.npy"
    >>> np.save(path, np.arange(3))
    >>> np.asarray(optree.train.arrays(path))
    array([0, 1, 2])
    """
    path = Path(path)
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r", allow_pickle=False)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as found:
            return dict(found)
    raise ParameterError(f"arrays: {path} is no .npy or .npz file; np.memmap maps others")


class Batches:
    """An iterable over batches of examples, an epoch at a time.

    Parameters
    ----------
    *sources : array, Tensor, path of a .npy file, or sequence
        All sources have the same number of examples. An array has them along its first axis. A sequence, such as
        `optree.train.images.ImageFolder`, returns an array or a number for each index.
    size : int
        The number of examples in a batch, over all ranks.
    shuffle : bool
    seed : int
        The seed of the order and of the generators passed to `transform`.
    drop_last : bool
        Whether a last batch of fewer examples is dropped.
    rank, ranks : int
        The number of this process, and the number of processes. The parts of a batch are of nearly equal size.
    transform : callable, optional
        A function of a `numpy.random.Generator`, a new one for each batch, and the batch's arrays. It returns the
        arrays to use instead. A transform that can be written as a tree runs faster as one, on the device.
    ahead : int
        The number of batches that are prepared in the background; with 0, none.
    threads : int
        The number of threads that prepare them.
    to : Backend, optional
        The backend of the batches' tensors. A GPU copies them from pinned memory on a stream of their own, while steps
        run. Without it, batches are NumPy arrays.
    resize : bool
        Whether a state of another batch size is accepted. The epoch then continues from its next example, in batches
        of `size`; a checkpoint of one size is otherwise refused by another.

    Attributes
    ----------
    epoch, position : int
        The number of the epoch, and the index of the next batch in it.
    start : int
        The number of the epoch's examples before batch 0; 0, unless another size was resumed in this epoch.
    count : int
        The number of examples.

    Examples
    --------
    >>> batches = Batches(np.arange(5), np.arange(5) ** 2, size=2, seed=1, ahead=0)
    >>> len(batches), batches.epoch, [len(x) for x, y in batches], batches.epoch
    (3, 0, [2, 2, 1], 1)

    Continue after the first two examples, in batches of 3:

    >>> taken = next(iter(batches))
    >>> larger = Batches(np.arange(5), np.arange(5) ** 2, size=3, seed=1, ahead=0, resize=True)
    >>> larger.set_state(batches.get_state())
    >>> print(larger)
    Batches of 3 of 5 examples, at batch 0 of epoch 1, after example 2
    """

    def __init__(
        self,
        *sources: object,
        size: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        ranks: int = 1,
        transform: Callable[..., Any] | None = None,
        ahead: int = 2,
        threads: int = 1,
        to: object = None,
        resize: bool = False,
    ) -> None:
        for name, value, least in (
            ("size", size, 1),
            ("ranks", ranks, 1),
            ("ahead", ahead, 0),
            ("threads", threads, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ParameterError(f"Batches: {name} is an integer of {least} or more, not {value!r}")
        if not 0 <= rank < ranks:
            raise ParameterError(f"Batches: of {ranks} ranks, rank is from 0 to {ranks - 1}, not {rank}")
        if size < ranks:
            raise ParameterError(
                f"Batches: {ranks} ranks do not share a batch of {size}; size is of all ranks together"
            )
        if to is not None and not hasattr(to, "uploads"):
            raise OperandError(f"Batches: to is a backend, from gen_backend, not {describe(to)}")
        self._sources = [_source(x) for x in sources]
        counts = [len(x) for x in self._sources]
        if not counts or min(counts) != max(counts) or not counts[0]:
            raise ShapeError(f"Batches: sources have one number of examples, above 0, not {counts}")
        self.count, self.size, self.seed = counts[0], size, seed
        self.epoch = self.position = self.start = 0
        self._shuffle, self._drop_last, self._rank, self._ranks = shuffle, drop_last, rank, ranks
        self._transform, self._ahead, self._threads, self._backend = transform, ahead, threads, to
        self._resize = resize
        if not len(self):
            raise ParameterError(
                f"Batches: {self.count} examples make no batch of {size}, and smaller ones are dropped"
            )

    def __repr__(self) -> str:
        after = f", after example {self.start}" if self.start else ""
        return f"Batches of {self.size} of {self.count} examples, at batch {self.position} of epoch {self.epoch}{after}"

    _repr_html_ = as_html

    def __len__(self) -> int:
        """The number of batches of a whole epoch."""
        return self._number(0, self.size)

    def _number(self, start: int, size: int) -> int:
        """The number of batches of a size from an example to the end of an epoch."""
        return (self.count - start) // size if self._drop_last else -(-(self.count - start) // size)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rest of the epoch. Yielding a batch advances the position; the last begins a new epoch."""
        send = None if self._backend is None else self._backend.uploads()
        order, epoch, start = self._order(), self.epoch, self.start
        left = range(self.position, self._number(start, self.size))
        if not self._ahead:
            for number in left:
                yield self._taken(number, self._sent(send, order, epoch, start, number))
            return
        waiting: deque[Future[Any]] = deque()
        pool = ThreadPoolExecutor(self._threads, "optree-batches")
        try:
            numbers = iter(left)
            for number in left:
                for following in numbers:
                    waiting.append(pool.submit(self._sent, send, order, epoch, start, following))
                    if len(waiting) > self._ahead:
                        break
                yield self._taken(number, waiting.popleft().result())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def get_state(self) -> dict[str, Any]:
        """The position, with the parameters on which its meaning depends."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "start": self.start,
            "seed": self.seed,
            "count": self.count,
            "size": self.size,
            "shuffle": self._shuffle,
            "drop_last": self._drop_last,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a position that `get_state` returned.

        Raises
        ------
        ParameterError
            If the data, batches or seed differ, or the position is beyond an epoch. Nothing has changed then.
        """
        if not isinstance(state, dict):
            raise ParameterError(f"Batches: a state is a dict that get_state gives, not {brief(state)}")
        own = self.get_state()
        for name in ("seed", "count", "shuffle", "drop_last", *(() if self._resize else ("size",))):
            if state.get(name) != own[name]:
                remedy = "; resize=True continues from the next example" * (name == "size")
                raise ParameterError(
                    f"Batches: {name} is {own[name]}, and was {state.get(name)} where the state is from{remedy}"
                )
        start, size = (_within(state, *bounds) for bounds in (("start", 0, self.count), ("size", 1, 1 << 64)))
        epoch = _within(state, "epoch", 0, 1 << 64)
        position = _within(state, "position", 0, self._number(start, size))
        if size != self.size:
            start, position = start + position * size, 0
            if not self._number(start, self.size):  # the rest is less than a batch, and dropped
                epoch, start = epoch + 1, 0
        self.epoch, self.position, self.start = epoch, position, start

    def _order(self) -> np.ndarray | None:
        """The indices of the examples in the order of this epoch; None if they are not shuffled."""
        return self._generator(self.epoch, 0).permutation(self.count) if self._shuffle else None

    def _generator(self, epoch: int, number: int) -> np.random.Generator:
        """The random generator of an epoch's order (number 0) or of one of its batches."""
        return np.random.Generator(np.random.Philox(key=[self.seed, epoch], counter=[0, 0, 0, number]))

    def _prepared(self, order: np.ndarray | None, epoch: int, start: int, number: int) -> list[np.ndarray]:
        """The arrays of the rank's part of a batch."""
        first, last = start + number * self.size, min(start + (number + 1) * self.size, self.count)
        share = [first + (last - first) * i // self._ranks for i in (self._rank, self._rank + 1)]
        indices = slice(*share) if order is None else order[slice(*share)]
        found = [_examples(source, indices) for source in self._sources]
        if self._transform is None:
            return found
        # There are at most `start` batches before: no two batches of an epoch have one generator.
        changed = self._transform(self._generator(epoch, start + number + 1), *found)
        return [np.asarray(x) for x in (changed if isinstance(changed, tuple | list) else (changed,))]

    def _sent(
        self, send: Any, order: np.ndarray | None, epoch: int, start: int, number: int
    ) -> Callable[[], tuple[Any, ...]]:
        """Start the transfer of a batch; a function that returns its arrays, or the backend's tensors."""
        given = self._prepared(order, epoch, start, number)
        if send is None:
            return lambda: tuple(given)
        sent = [send(x) for x in given]
        return lambda: tuple([arrive() for arrive in sent])

    def _taken(self, number: int, arrive: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        batch = arrive()
        self.position = number + 1
        if self.position == self._number(self.start, self.size):
            self.epoch, self.position, self.start = self.epoch + 1, 0, 0
        return batch


def _within(state: dict[str, Any], name: str, least: int, end: int) -> int:
    """An integer of a state, in a range; of older states, which have no start, 0."""
    value = state.get(name, 0 if name == "start" else None)
    if type(value) is not int or not least <= value < end:
        raise ParameterError(f"Batches: {name} is an integer from {least} to {end - 1}, not {brief(value)}")
    return value


def _source(given: object) -> Any:
    if isinstance(given, str | Path):
        given = arrays(given)
    if isinstance(given, Tensor):
        return given.get()
    if isinstance(given, np.ndarray):
        if not given.ndim:
            raise ShapeError("Batches: an array has examples along its first axis, and this one has no axis")
        return given
    if not isinstance(given, Sequence) and not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        raise OperandError(f"Batches: a source is an array, a tensor or a sequence, not {describe(given)}")
    if isinstance(given, dict):
        raise OperandError(f"Batches: a source is an array or a sequence, not {brief(given)}; give its values")
    return given


def _examples(source: Any, indices: Any) -> np.ndarray:
    """Examples of a source, copied into a new array."""
    if isinstance(source, np.ndarray):
        return np.array(source[indices])
    numbers = range(*indices.indices(len(source))) if isinstance(indices, slice) else indices.tolist()
    if not len(numbers):  # a rank's part of a small last batch
        first = np.asarray(source[0])
        return np.empty((0, *first.shape), first.dtype)
    return np.stack([np.asarray(source[i]) for i in numbers])
