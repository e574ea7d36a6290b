"""Shape inference over programs: sizes of actual arrays, and symbolic dimensions.

Symbolic dimensions are axes of a program that are equal in every call, by unification.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.compile.program import Instruction, Program
from optree.errors import ShapeError, built_at
from optree.tree.node import OpTreeNode
from optree.tree.types import TupleType, Type
from optree.tree.variable import as_variable

#: The dimension of every axis of size 1: sizes of 1 are part of a plan's key.
ONE = -1

#: The dimension of each axis of a value: a number, equal for axes that always have equal sizes.
Dims = tuple[int, ...]


def check_sizes(program: Program, shapes: Sequence[Any]) -> list[Any]:
    """The shapes of a program's outputs from those of its leaves; None for one that only a run determines.

    Raises
    ------
    ShapeError
        If an op cannot be applied to these shapes, or if an axis of size 1 that was not
        known to have size 1 would broadcast.
    """
    found = list(shapes)
    for instruction in program.instructions:
        given = [found[i] for i in instruction.inputs]
        found.append(None if None in given else _checked(instruction, given))
    return [found[i] for i in program.outputs]


def leaf_shape(value: object) -> tuple[int, ...] | None:
    """The shape of a leaf's value: () of a number, None of a value that has none."""
    shape = () if isinstance(value, bool | int | float) else getattr(value, "shape", None)
    return None if shape is None else tuple(shape)


def shapes_of(program: Program, shapes: Sequence[Any]) -> list[Any]:
    """The shapes of all values, from valid ones of the leaves; None for one that only a run determines."""
    found = list(shapes)
    for instruction in program.instructions:
        given = [found[i] for i in instruction.inputs]
        found.append(None if None in given else _inferred(instruction, given))
    return found


def broadcasts(instruction: Instruction) -> bool:
    """Whether operands broadcast: along an axis, sizes are equal or known to be 1."""
    op = instruction.op
    return bool(op.index_map.broadcasts) and not op.defines("infer_shape")


def shapes_told(program: Program) -> list[bool]:
    """For each value, whether its shape follows from those of the leaves."""
    told = [True] * len(program.leaves)
    for op, inputs, _ in program.instructions:
        told.append((op.defines("infer_shape") or op.gives_shape) and all(told[i] for i in inputs))
    return told


def _inferred(instruction: Instruction, given: list[Any]) -> Any:
    """The shape of an instruction's value; a list of shapes for a tuple."""
    op, node = instruction.op, instruction.node
    if op.defines("infer_shape"):
        shapes = op.infer_shape(node.owner, given)
        return list(shapes) if isinstance(node.type, TupleType) else tuple(shapes[0])
    return op.output_shape(*given) if op.gives_shape else None


def _checked(instruction: Instruction, given: list[Any]) -> Any:
    """The same; raises if the sizes are invalid."""
    op, node = instruction.op, instruction.node
    try:
        shape = _inferred(instruction, given)
        if broadcasts(instruction):
            _check_known(node, given)
        return shape
    except ShapeError as error:
        listed = " and ".join(map(str, given))
        raise ShapeError(f"{op} on {listed}{built_at(node.origin)}: {error}") from None


def _check_known(node: OpTreeNode, given: list[Any]) -> None:
    """Refuse to broadcast an axis of size 1 that was not known to be one when the tree was built."""
    ndim = len(node.shape)
    for axis in range(ndim):
        sizes = set()
        for operand, shape in zip(node.inputs, given, strict=True):
            own = axis - ndim + len(shape)
            if own >= 0 and operand.shape[own] != 1:
                sizes.add(shape[own])
        if len(sizes) > 1:
            raise ShapeError(
                f"sizes {sorted(sizes)} meet along axis {axis}; to broadcast, an axis must be known to have size 1"
            )


# Symbolic dimensions


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
        alone = instruction.op.index_map.shape_only
        if not alone:
            return list(instruction.inputs)
        return [i for n, i in enumerate(instruction.inputs) if n not in alone or not self.is_known(i)]


class _Dimensions:
    """A union-find of dimensions."""

    def __init__(self) -> None:
        self.parents: list[int] = []

    def fresh(self, type: Type) -> Dims | None:
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
    """The dimensions of another op's value, by its index map, or by its `output_shape` of distinct sizes."""
    reads = instruction.op.index_map
    if reads.shape_of is not None:
        return given[reads.shape_of]
    if reads.axis_order is not None:
        return tuple([given[0][axis] for axis in reads.axis_order])
    fresh = dimensions.fresh(instruction.type)
    if fresh is None or not instruction.op.gives_shape:
        return fresh
    for pair in reads.equal_axes:
        dimensions.join([given[operand][max(axis, -len(given[operand]))] for operand, axis in pair])
    roots = [tuple(map(dimensions.root, dims)) for dims in given]
    distinct = {dim for dims in roots for dim in dims if dim != ONE}
    found = _placed(instruction, roots, distinct, 1)
    if len(distinct) > 1:  # an axis of the lesser of two sizes, as of singular values, has neither dimension
        again = _placed(instruction, roots, distinct, -1)
        found = tuple([one if one == other else None for one, other in zip(found, again, strict=True)])
    return tuple([own if dim is None else dim for dim, own in zip(found, fresh, strict=True)])


def _placed(instruction: Instruction, given: Sequence[Dims], distinct: set[int], sign: int) -> tuple[int | None, ...]:
    """The dimension of the inputs that each axis of a value has, or None, where later ones are larger, or smaller."""
    sizes = {dim: 10**9 + sign * 7919 * dim for dim in distinct}  # unlikely to equal a sum or difference of others
    known = {size: dim for dim, size in sizes.items()}
    try:
        shape = instruction.op.output_shape(*(tuple([sizes.get(dim, 1) for dim in dims]) for dims in given))
    except ShapeError:
        return (None,) * instruction.type.ndim
    return tuple([known.get(size) for size in shape])
