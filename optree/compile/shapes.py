"""Shape inference over programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optree.compile.program import Instruction, Program
from optree.errors import ShapeError, line_of
from optree.tree.types import TupleType


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
    return bool(op.broadcasts_operands) and not op.defines("infer_shape")


def tells_shape(instruction: Instruction) -> bool:
    """Whether the shape of an instruction's value follows from the shapes of its inputs."""
    op = instruction.op
    return bool(op.defines("infer_shape")) or op.defines("output_shape")


def shapes_told(program: Program) -> list[bool]:
    """For each value, whether its shape follows from those of the leaves."""
    told = [True] * len(program.leaves)
    for instruction in program.instructions:
        told.append(tells_shape(instruction) and all(told[i] for i in instruction.inputs))
    return told


def _inferred(instruction: Instruction, given: list[Any]) -> Any:
    """The shape of an instruction's value; a list of shapes for a tuple."""
    op, node = instruction.op, instruction.node
    if op.defines("infer_shape"):
        shapes = op.infer_shape(node.owner, given)
        return list(shapes) if isinstance(node.type, TupleType) else tuple(shapes[0])
    return op.output_shape(*given) if op.defines("output_shape") else None


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
        line = line_of(node.origin)
        raise ShapeError(f"{op} on {listed}{f', built at {line}' if line else ''}: {error}") from None


def _check_known(node: Any, given: list[Any]) -> None:
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
