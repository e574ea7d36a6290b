"""Which sizes in a program are the same in every call, whatever they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optree.errors import ShapeError
from optree.program import Instruction, Program
from optree.traits import ElementwiseOperator
from optree.variable import as_variable

#: The dimension of every axis of size 1: sizes of 1 are part of a plan's key.
ONE = -1

#: For each axis of a value a number, the same for axes that always have the same size.
Dims = tuple[int, ...]


def dims_of(program: Program) -> list[Dims | None]:
    """The dimensions of each value; None for values that are no tensors.

    Axes get the same number only where an op makes sure that their sizes are
    equal: two leaves of equal shape may differ in the next call.
    """
    same = _Same()
    found: list[Any] = [same.fresh(as_variable(leaf).type) for leaf in program.leaves]
    for instruction in program.instructions:
        found.append(_dims(instruction, [found[i] for i in instruction.inputs], same))
    return [None if dims is None else tuple(map(same.root, dims)) for dims in found]


class _Same:
    """Numbers that are found to be the same, as a forest."""

    def __init__(self) -> None:
        self.parents: list[int] = []

    def fresh(self, type: Any) -> Dims | None:
        """New dimensions for a value of a type."""
        shape = getattr(type, "shape", None)
        return None if shape is None else tuple(ONE if size == 1 else self._new() for size in shape)

    def _new(self) -> int:
        self.parents.append(len(self.parents))
        return self.parents[-1]

    def root(self, dim: int) -> int:
        if dim == ONE:
            return ONE
        while self.parents[dim] != dim:
            self.parents[dim] = self.parents[self.parents[dim]]
            dim = self.parents[dim]
        return dim

    def join(self, dims: Sequence[int]) -> int:
        """The one dimension of axes that are broadcast together; ONE if all are."""
        roots = [self.root(dim) for dim in dims if dim != ONE]
        for root in roots[1:]:
            self.parents[self.root(root)] = self.root(roots[0])
        return self.root(roots[0]) if roots else ONE


def _dims(instruction: Instruction, given: list[Any], same: _Same) -> Dims | None:
    """The dimensions of an instruction's value."""
    op, type = instruction.op, instruction.type
    if None in given or getattr(type, "shape", None) is None:
        return same.fresh(type)
    if isinstance(op, ElementwiseOperator) or op.name == "broadcast_like":
        return _joined(given, len(type.shape), same)
    if op.name == "assign":
        target, value = given
        _joined([target, value[max(0, len(value) - len(target)) :]], len(target), same)
        return target
    return _traced(instruction, given, same)


def _joined(given: Sequence[Dims], ndim: int, same: _Same) -> Dims:
    """The dimensions of operands broadcast together."""
    padded = [(ONE,) * (ndim - len(dims)) + dims for dims in given]
    return tuple(same.join(dims) for dims in zip(*padded, strict=True))


def _traced(instruction: Instruction, given: Sequence[Dims], same: _Same) -> Dims | None:
    """The dimensions of any other op's value, found by asking for its shape on sizes that tell axes apart."""
    fresh = same.fresh(instruction.type)
    if fresh is None or not instruction.op.defines("output_shape"):
        return fresh
    shapes = [tuple(1 if dim == ONE else _size(same.root(dim)) for dim in dims) for dims in given]
    known = {_size(same.root(dim)): same.root(dim) for dims in given for dim in dims if dim != ONE}
    try:
        sizes = instruction.op.output_shape(*shapes)
    except ShapeError:
        return fresh
    return tuple(known.get(size, dim) for size, dim in zip(sizes, fresh, strict=True))


def _size(dim: int) -> int:
    """A size that no sum or difference of a few others is likely to be."""
    return 10**9 + 7919 * dim
