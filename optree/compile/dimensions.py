"""Symbolic dimensions: axes of a program that are equal in every call, by unification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.compile.program import Instruction, Program
from optree.compile.shapes import broadcasts
from optree.errors import ShapeError
from optree.tree.variable import as_variable

#: The dimension of every axis of size 1: sizes of 1 are part of a plan's key.
ONE = -1

#: The dimension of each axis of a value: a number, equal for axes that always have equal sizes.
Dims = tuple[int, ...]


def dims_of(program: Program) -> list[Dims | None]:
    """The dimensions of each value; None for values that are no tensors.

    Dimensions are equal only if an op enforces it: two leaves of equal shape may differ in the next call.
    """
    dimensions = _Dimensions()
    found: list[Any] = [dimensions.fresh(as_variable(leaf).type) for leaf in program.leaves]
    for instruction in program.instructions:
        found.append(_dims(instruction, [found[i] for i in instruction.inputs], dimensions))
    return [None if dims is None else tuple(map(dimensions.root, dims)) for dims in found]


class Sizes:
    """A program's dimensions, and the leaves that they can be read from.

    Attributes
    ----------
    dims : list of Dims
        The dimensions of each value, as `dims_of` gives them.
    sources : dict
        For each dimension of a leaf, the leaf's number and the axis.
    """

    def __init__(self, program: Program) -> None:
        self.dims = dims_of(program)
        self.sources: dict[int, tuple[int, int]] = {}
        for leaf in range(len(program.leaves)):
            for axis, dim in enumerate(self.dims[leaf] or ()):
                if dim != ONE:
                    self.sources.setdefault(dim, (leaf, axis))

    def is_known(self, value: int) -> bool:
        """Whether a value's shape follows from those of the leaves."""
        dims = self.dims[value]
        return dims is not None and all(dim == ONE or dim in self.sources for dim in dims)

    def shape_of(self, value: int, values: Sequence[Any]) -> tuple[int, ...]:
        """A known shape, from the leaves' values."""
        found = [1 if dim == ONE else self.sources[dim] for dim in self.dims[value] or ()]
        return tuple(size if isinstance(size, int) else np.shape(values[size[0]])[size[1]] for size in found)

    def waits_for(self, instruction: Instruction) -> list[int]:
        """The inputs that an instruction depends on: without those of which it reads only a known shape."""
        alone = instruction.op.shape_only
        if not alone:
            return list(instruction.inputs)
        return [i for n, i in enumerate(instruction.inputs) if n not in alone or not self.is_known(i)]


class _Dimensions:
    """A union-find of dimensions."""

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
        """Unify the dimensions of axes that are broadcast together; ONE if all are."""
        roots = [self.root(dim) for dim in dims if dim != ONE]
        for root in roots[1:]:
            self.parents[self.root(root)] = self.root(roots[0])
        return self.root(roots[0]) if roots else ONE


def _dims(instruction: Instruction, given: list[Any], dimensions: _Dimensions) -> Dims | None:
    """The dimensions of an instruction's value."""
    type = instruction.type
    if None in given or getattr(type, "shape", None) is None:
        return dimensions.fresh(type)
    if not broadcasts(instruction):
        return _traced(instruction, given, dimensions)
    return _joined(given, len(type.shape), dimensions)


def _joined(given: Sequence[Dims], ndim: int, dimensions: _Dimensions) -> Dims:
    """The dimensions of operands broadcast together."""
    padded = [(ONE,) * (ndim - len(dims)) + dims[max(0, len(dims) - ndim) :] for dims in given]
    return tuple(dimensions.join(dims) for dims in zip(*padded, strict=True))


def _traced(instruction: Instruction, given: Sequence[Dims], dimensions: _Dimensions) -> Dims | None:
    """The dimensions of another op's value: `output_shape` of distinct sizes shows which axis goes where."""
    fresh = dimensions.fresh(instruction.type)
    if fresh is None or not instruction.op.defines("output_shape"):
        return fresh
    for pair in instruction.op.equal_axes(*map(len, given)):
        dimensions.join([given[operand][axis] for operand, axis in pair])
    shapes = [tuple(1 if dim == ONE else _size(dimensions.root(dim)) for dim in dims) for dims in given]
    known = {_size(dimensions.root(dim)): dimensions.root(dim) for dims in given for dim in dims if dim != ONE}
    try:
        sizes = instruction.op.output_shape(*shapes)
    except ShapeError:
        return fresh
    return tuple(known.get(size, dim) for size, dim in zip(sizes, fresh, strict=True))


def _size(dim: int) -> int:
    """A size for a dimension, unlikely to equal a sum or difference of others."""
    return 10**9 + 7919 * dim
