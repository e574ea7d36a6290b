"""Weights packed into one vector, which an optimizer updates by one kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import prod
from typing import Any

from numpy.typing import DTypeLike

from optree.errors import OperandError, describe
from optree.ops.assignment import Joined, Store
from optree.tree.tensor import Tensor, part_of
from optree.tree.variable import Variable, check_same_backend

#: Weights of more elements are not packed: the time of a launch is negligible beside their update.
LARGEST = 1 << 18

#: The alignment of a weight in its vector, in elements: whole cache lines, for fast products. It is the same for all
#: dtypes, so that narrow weights and their float32 master weights have the same offsets.
ALIGNMENT = 64


class Arena:
    """A vector in which several tensors are stored.

    `flat`: the vector; the gaps between tensors are zeros.
    `shapes`: list of tuple.
    `starts`: the index of each tensor's first element.
    """

    def __init__(self, be: Any, shapes: Sequence[tuple[int, ...]], dtype: DTypeLike, name: str) -> None:
        self.backend, self.shapes = be, list(shapes)
        counts = [prod(shape) for shape in shapes]
        ends = list(accumulate((count + -count % ALIGNMENT for count in counts), initial=0))
        self.starts, self.size = ends[:-1], ends[-1]
        self.flat: Tensor = be.zeros(self.size, dtype, name)

    def tensors(self, names: Sequence[str | None]) -> list[Tensor]:
        """A tensor for each part, as a view of the vector."""
        parts = zip(self.starts, self.shapes, names, strict=True)
        return [part_of(self.flat, start, shape, name) for start, shape, name in parts]

    def joined(self, trees: Sequence[Variable], parts: Sequence[Tensor]) -> Variable:
        """A tree of the vector, which writes a tree into each part.

        Kernels and products write into the parts directly. Nothing else may read or write the parts.
        """
        stores = [Store.make()(part, tree) for part, tree in zip(parts, trees, strict=True)]
        return Joined(size=self.size, count=len(stores))(*stores)


class Packed(list[Tensor]):
    """A list of weights whose small ones are stored in vectors, as returned by `packed`.

    `arenas`: each vector, and the indices of the weights in it.
    """

    def __init__(self, weights: Iterable[Tensor], arenas: list[tuple[Arena, list[int]]]) -> None:
        super().__init__(weights)
        self.arenas = arenas


def packed(weights: Sequence[Tensor], largest: int = LARGEST) -> Packed:
    """Pack the small weights of each dtype into one vector, so that one kernel updates them all.

    Returns new tensors of the same values and names; build the network from these. Their gradients are computed into
    one vector too, and each slot of an optimizer, such as its means, is one vector.

    Parameters
    ----------
    weights : sequence of Tensor
    largest : int
        Weights of more elements are not packed.

    Raises
    ------
    OperandError
        If a weight is no tensor.
    BackendError
        If they are on several backends.

    Examples
    --------
    >>> w, b = packed([be.ones((3, 2), name="w"), be.zeros(2, name="b")])
    >>> w.get().sum(), b.name
    (np.float32(6.0), 'b')
    """
    for weight in weights:
        if not isinstance(weight, Tensor):
            raise OperandError(f"packed: a weight is a tensor, not {describe(weight)}")
    check_same_backend("packed", weights)
    found, arenas = list(weights), []
    kinds: dict[Any, list[int]] = {}
    for number, weight in enumerate(weights):
        if 0 < weight.size <= largest:
            kinds.setdefault(weight.dtype, []).append(number)
    for dtype, numbers in kinds.items():
        if len(numbers) < 2:
            continue
        members = [weights[number] for number in numbers]
        arena = Arena(members[0].backend, [x.shape for x in members], dtype, "packed")
        for number, tensor in zip(numbers, arena.tensors([x.name for x in members]), strict=True):
            tensor[...] = weights[number]
            found[number] = tensor
        arenas.append((arena, numbers))
    return Packed(found, arenas)
