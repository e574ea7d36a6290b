"""Whether sizes fit a program, before anything of it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optree.compile.program import Instruction, Program
from optree.errors import ShapeError, line_of
from optree.tree.types import TupleType


def check_sizes(program: Program, shapes: Sequence[Any]) -> list[Any]:
    """The shapes of a program's outputs, where its leaves have these; None where only a run can tell.

    Raises
    ------
    ShapeError
        If an op cannot be applied to what has these shapes, or if an axis that
        was not known to have size 1, and has it now, would broadcast.
    """
    found = list(shapes)
    for instruction in program.instructions:
        given = [found[i] for i in instruction.inputs]
        found.append(None if None in given else _checked(instruction, given))
    return [found[i] for i in program.outputs]


def shapes_of(program: Program, shapes: Sequence[Any]) -> list[Any]:
    """The shapes of all values of a program whose leaves have these, which fit; None where only a run can tell."""
    found = list(shapes)
    for instruction in program.instructions:
        given = [found[i] for i in instruction.inputs]
        found.append(None if None in given else _inferred(instruction, given))
    return found


def broadcasts(instruction: Instruction) -> bool:
    """Whether sizes that meet along an axis are the same, but for those that are known to be 1."""
    op = instruction.op
    return bool(op.broadcasts_operands) and not op.defines("infer_shape")


def tells_shape(instruction: Instruction) -> bool:
    """Whether the shape of an instruction's value follows from those of its inputs."""
    op = instruction.op
    return bool(op.defines("infer_shape")) or op.defines("output_shape")


def shapes_told(program: Program) -> list[bool]:
    """For each value whether its shape follows from those of the leaves."""
    told = [True] * len(program.leaves)
    for instruction in program.instructions:
        told.append(tells_shape(instruction) and all(told[i] for i in instruction.inputs))
    return told


def _inferred(instruction: Instruction, given: list[Any]) -> Any:
    """The shape of an instruction's value; a list of them for a tuple."""
    op, node = instruction.op, instruction.node
    if op.defines("infer_shape"):
        shapes = op.infer_shape(node.owner, given)
        return list(shapes) if isinstance(node.type, TupleType) else tuple(shapes[0])
    return op.output_shape(*given) if op.defines("output_shape") else None


def _checked(instruction: Instruction, given: list[Any]) -> Any:
    """The same, where the sizes fit."""
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
            place = axis - ndim + len(shape)
            if place >= 0 and operand.shape[place] != 1:
                sizes.add(shape[place])
        if len(sizes) > 1:
            raise ShapeError(
                f"sizes {sorted(sizes)} meet along axis {axis}; to broadcast, an axis must be known to have size 1"
            )
