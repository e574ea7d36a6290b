"""Stale trees: trees that first run after a tensor under them was written, and read its new value.

A tree reads its tensors when it runs, not when it is built, as neon's do. That is
meant where a tree is kept and runs again and again, and a trap where it is code of
NumPy's that was taken over line by line. So the first run of a tree looks at the
nodes that were built before the last write, and where a tensor under one has been
written since, it says so. It takes for kept, and leaves alone, what the same line
ran before: a line that runs an expression anew around a gradient that is built once.

Nothing is looked at when a tree runs again, nor in a tree built since the last write.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import CodeType
from typing import Any

from optree import settings
from optree.clock import clock
from optree.errors import Origin, StaleTreeError, StaleTreeWarning, caller_frame, describe, line_of
from optree.tree.node import OpTreeNode, signature_of
from optree.tree.tensor import Tensor
from optree.tree.traversal import post_order

#: Lines that are remembered, and for each tensor those that run trees into it.
LINES, LINES_OF_TENSOR = 4096, 256

#: The lines that have run trees into no tensor, each with its code, which so keeps its id, and when it last did.
_runs: dict[tuple[int, int], tuple[CodeType, int]] = {}

#: The lines that have been told.
_told: dict[tuple[CodeType, int], None] = {}

Signature = tuple[tuple[Any, ...], list[Any]]


def signature_of_assigned(value: OpTreeNode, target: Tensor, origin: Origin) -> Signature:
    """The signature of a tree that runs for the first time, into a tensor, by an assignment built at `origin`.

    Raises
    ------
    StaleTreeError
        If it is stale, and OPTREE_STALE_TREES says ``error``; with ``warn`` it is a warning.
    """
    line: Any = origin[1]
    view, root = target.view_op, target
    if value.ran_beside:
        return signature_of([value])
    if view is not None:  # one line may run through the parts of a tensor, each of which is a target of its own
        line, root = (line, id(view)), target.root
    runs = root.runs
    if runs is None:
        runs = root.runs = {}
    old: list[OpTreeNode] = []
    before = runs.get(line)
    since = before[2] if before is not None and before[0] is origin[0] else -1
    found = signature_of([value], old, since)
    if old:
        _look(old, found[1])
    if before is None and len(runs) >= LINES_OF_TENSOR:
        runs.clear()
    runs[line] = origin
    return found


def signature_of_evaluated(roots: Sequence[Any]) -> Signature:
    """The signature of trees that run together; of a single one, for the first time.

    Raises
    ------
    StaleTreeError
        As `signature_of_assigned` does.
    """
    nodes = [root for root in roots if root.__class__ is OpTreeNode]
    new = [node for node in nodes if node.ran is None and not node.ran_beside]
    if not new:
        return signature_of(roots)
    code, offset, built = new[0].origin
    line, now = (id(code), offset), clock[0]
    old: list[OpTreeNode] = []
    before = _runs.get(line)
    # A single one that was built long ago has not run before, whatever its line has.
    since = before[1] if before is not None and (built == now or len(nodes) > 1) else -1
    found = signature_of(roots, old, since)
    if old:
        _look(old if len(new) == len(nodes) else _beside(old, set(map(id, nodes)) - set(map(id, new))), found[1])
    if before is None and len(_runs) >= LINES:
        _runs.clear()
    _runs[line] = code, now
    if len(nodes) > 1:
        for node in new:
            node.ran_beside = True
    return found


def _beside(old: list[OpTreeNode], kept: set[int]) -> list[OpTreeNode]:
    """The nodes that are not under those kept, by their ids."""
    under = {id(x) for x in post_order([node for node in old if id(node) in kept], _operands)}
    return [node for node in old if id(node) not in under]


def _look(old: list[OpTreeNode], leaves: Sequence[Any]) -> None:
    """Say so if one of these nodes was built before a tensor under it was written."""
    stale = _first_stale(old, leaves)
    if stale is not None:
        _tell(*stale)


def _first_stale(old: list[OpTreeNode], leaves: Sequence[Any]) -> tuple[OpTreeNode, Tensor] | None:
    """A node among the old ones that was built before a tensor under it was written, and the tensor."""
    newest = max((leaf.version for leaf in leaves if leaf.__class__ is Tensor), default=0)
    suspects = [node for node in old if node.origin[2] < newest]
    known = {id(node) for node in old}
    hidden = False
    for node in suspects:  # mostly it is the node that takes the tensor
        for operand in _operands(node):
            if operand.__class__ is not Tensor:
                hidden = hidden or id(operand) not in known
            elif operand.version > node.origin[2]:
                return _named(node, suspects), operand
    return _stale_above(suspects) if hidden else None


def _stale_above(suspects: list[OpTreeNode]) -> tuple[OpTreeNode, Tensor] | None:
    """The same where the tensor may be under nodes that are kept."""
    newest: dict[int, Tensor] = {}
    for entry in post_order(suspects, _operands):
        if entry.__class__ is Tensor:
            newest[id(entry)] = entry
            continue
        found = [newest[id(x)] for x in _operands(entry) if id(x) in newest]
        if found:
            newest[id(entry)] = max(found, key=lambda tensor: tensor.version)
    for node in suspects:
        tensor = newest.get(id(node))
        if tensor is not None and tensor.version > node.origin[2]:
            return _named(node, suspects), tensor
    return None


def _operands(node: Any) -> list[Any]:
    """The nodes and tensors that a node takes."""
    if node.__class__ is not OpTreeNode:
        return []
    _, left, right = node
    return [x for x in (left, right) if x.__class__ is OpTreeNode or x.__class__ is Tensor]


def _named(node: OpTreeNode, suspects: list[OpTreeNode]) -> OpTreeNode:
    """The node, or where its line is op-tree's own, as in a gradient, one around it whose line is the user's."""
    return next((x for x in (node, *suspects) if line_of(x.origin) is not None), node)


def _tell(node: OpTreeNode, tensor: Tensor) -> None:
    """Warn of a stale tree, once for each line that runs one, or raise."""
    answer = settings.value("stale_trees")
    if answer == "ignore":
        return
    frame = caller_frame()
    line = frame.f_code, frame.f_lineno
    if answer == "warn" and line in _told:
        return
    writer = tensor.root.writer
    by = writer if isinstance(writer, str) else line_of(writer)
    made = line_of(node.origin)
    message = (
        f"{describe(tensor)} was written{f' by {by}' if by else ''} after the tree of {node.label}"
        f"{f' at {made}' if made else ''} was built, and before it ran: a tree reads its tensors when it runs, so it "
        "takes the new values. For the old ones, run the tree before the write, be.evaluate([tree]), or let it read a "
        "copy, x.copy(); several tensors are written together by be.update, or by the updates of an optree.function. "
        "OPTREE_STALE_TREES=error raises this, and =ignore says nothing"
    )
    if answer == "error":
        raise StaleTreeError(message)
    module = frame.f_globals.get("__name__", "<unknown>")
    warnings.warn_explicit(message, StaleTreeWarning, frame.f_code.co_filename, frame.f_lineno, module)
    if len(_told) >= LINES:
        _told.clear()
    _told[line] = None
