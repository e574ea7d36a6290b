"""Trees as text. A node is told from a leaf by being a tuple."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from optree.errors import line_of

#: A printed tree longer than this many nodes ends in an ellipsis.
PRINTED_NODES = 1000


def text(root: Any) -> str:
    """A tree as nested tuples, as a node prints."""
    parts: list[str] = []
    pending: list[Any] = [root]
    printed = 0
    while pending:
        entry = pending.pop()
        if not isinstance(entry, tuple):
            parts.append(_leaf(entry))
        elif printed == PRINTED_NODES:
            parts.append("...")
        else:
            printed += 1
            op_dict, left, right = entry
            parts.append(f"({dict(op_dict)}, ")
            pending.extend((_Text(")"), right, _Text(", "), left))
    return "".join(parts)


def lines(root: Any) -> str:
    """A tree, a line a node, operands indented below; a shared subtree is written once."""
    found: list[str] = []
    numbers: dict[int, int] = {}
    pending: list[tuple[Any, int]] = [(root, 0)]
    while pending:
        entry, depth = pending.pop()
        indent = "  " * min(depth, 40)
        if not isinstance(entry, tuple):
            found.append(f"{indent}{_leaf(entry)}")
        elif id(entry) in numbers:
            found.append(f"{indent}{entry.label} (see line {numbers[id(entry)]})")  # type: ignore[attr-defined]
        else:
            numbers[id(entry)] = len(found) + 1
            found.append(f"{indent}{_head(entry)}")
            pending.extend((child, depth + 1) for child in reversed(entry.inputs))  # type: ignore[attr-defined]
    return "\n".join(found)


class _Text(str):
    """Text on a printer's stack, told apart from operands."""


def _leaf(entry: Any) -> str:
    """What stands in a tree for a leaf: its name, and never its values."""
    return getattr(entry, "label", None) or str(entry)


def _head(node: Any) -> str:
    props = "".join(f" {key}={value!r}" for key, value in node[0].items() if key not in ("op", "shape"))
    return f"{node.label}{props} {node.type}"


def instruction_text(program: Any, place: int) -> str:
    """An instruction of a program: its value's number, op, inputs and type."""
    op, inputs, node = program.instructions[place]
    numbers = ", ".join(f"%{number}" for number in inputs)
    return f"%{len(program.leaves) + place} = {op}({numbers})  {node.type}"


def listing(program: Any, remark: Callable[[Any], str] = lambda instruction: "") -> str:
    """A program, a line a step: its number, op, inputs, type, a remark, and the line that built it."""
    found = [f"%{i} = {_leaf(leaf)}" for i, leaf in enumerate(program.leaves)]
    for i, instruction in enumerate(program.instructions, len(program.leaves)):
        line = line_of(instruction.node.origin)
        said = [instruction_text(program, i - len(program.leaves)), remark(instruction), f"built at {line}" if line else ""]
        found.append(", ".join(filter(None, said)))
    outputs = ", ".join(f"%{number}" for number in program.outputs)
    return "\n".join([*found, f"return {outputs}"])
