"""Whether sizes fit a program, before anything of it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optree.errors import ShapeError, line_of
from optree.program import Instruction, Program
from optree.traits import ElementwiseOperator
from optree.types import TupleType


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
        found.append(None if None in given else _shape(instruction, given))
    return [found[i] for i in program.outputs]


def _shape(instruction: Instruction, given: list[Any]) -> Any:
    """The shape of an instruction's value; a list of them for a tuple."""
    op, node = instruction.op, instruction.node
    if op.name == "output":
        return given[0][op.index]
    try:
        if op.defines("infer_shape"):
            shapes = op.infer_shape(node.owner, given)
            return list(shapes) if isinstance(node.type, TupleType) else tuple(shapes[0])
        if not op.defines("output_shape"):
            return None
        shape = op.output_shape(*given)
        if isinstance(op, ElementwiseOperator):
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
