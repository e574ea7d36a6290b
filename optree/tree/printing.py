"""Trees as text. A node is told from a leaf by being a tuple."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from optree.errors import built_at
from optree.locks import import_later

#: A printed tree longer than this many nodes ends in an ellipsis.
PRINTED_NODES = 1000


def as_html(x: object) -> str:
    """The HTML that a notebook displays, as the method ``_repr_html_`` of a class in `optree.html.CARDS`."""
    return import_later("optree.html").html(x)  # type: ignore[no-any-return]


def text(root: object) -> str:
    """A tree as nested tuples, the text of a node's ``str``."""
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
            op_dict, left, right = tuple.__iter__(entry)
            parts.append(f"({dict(op_dict)}, ")
            pending.extend((_Text(")"), right, _Text(", "), left))
    return "".join(parts)


def lines(root: object) -> str:
    """A tree with one line for each node, operands indented below; a shared subtree is printed once."""
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
    """Text on the printer's stack, distinct from operands."""


def _leaf(entry: object) -> str:
    """A leaf's label; a tensor's values are never printed."""
    return getattr(entry, "label", None) or str(entry)


def _head(node: Any) -> str:
    props = "".join(f" {key}={value!r}" for key, value in node[0].items() if key not in ("op", "shape"))
    return f"{node.label}{props} {node.type}"


def described(instruction: Any) -> str:
    """An instruction in a line: its op, type, and the line that built it."""
    return f"{instruction.op} {instruction.type}{built_at(instruction.node.origin)}"


def instruction_text(program: Any, index: int) -> str:
    """An instruction of a program: its value's number, op, inputs and type."""
    op, inputs, node = program.instructions[index]
    numbers = ", ".join(f"%{number}" for number in inputs)
    return f"%{len(program.leaves) + index} = {op}({numbers})  {node.type}"


def listing(program: Any, remark: Callable[[Any], str] = lambda instruction: "") -> str:
    """A program with one line for each step: number, op, inputs, type, a remark, and the line that built it."""
    found = [f"%{i} = {_leaf(leaf)}" for i, leaf in enumerate(program.leaves)]
    for i, instruction in enumerate(program.instructions, len(program.leaves)):
        said = filter(None, [instruction_text(program, i - len(program.leaves)), remark(instruction)])
        found.append(", ".join(said) + built_at(instruction.node.origin))
    outputs = ", ".join(f"%{number}" for number in program.outputs)
    return "\n".join([*found, f"return {outputs}"])
