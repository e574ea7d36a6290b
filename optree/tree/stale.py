"""Detection of stale trees: trees that first run after one of their tensors was written, and read the new value.

A tree reads its tensors when it runs, not when it is built, as neon's do. That is
intended where a tree runs repeatedly, and a trap in code ported line by line from
NumPy. So the first run of a tree checks the nodes that were built before the last
write, and warns where a tensor under one has been written since. Nodes that the same
line has run before are not checked: a loop may build an expression anew around a
gradient that was built once.

Nothing is checked when a tree runs again, nor in a tree built since the last write.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import CodeType
from typing import Any

from optree.errors import Origin, StaleTreeError, StaleTreeWarning, caller_frame, clock, describe, line_of
from optree.tree.node import OpTreeNode, post_order, signature_of
from optree.tree.substitution import children_of
from optree.tree.telling import tell
from optree.tree.tensor import Tensor

#: The bounds of the tables of lines: all, and those of one tensor.
LINES, LINES_OF_TENSOR = 4096, 256

#: Line -> its code object, referenced so that its id is not reused, and when it last ran a tree without a target.
_runs: dict[tuple[int, int], tuple[CodeType, int]] = {}

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
    if view is not None:  # one line may assign to several views of a tensor
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


def signature_of_evaluated(tree: OpTreeNode) -> Signature:
    """The signature of a tree that runs alone, for the first time.

    It raises StaleTreeError, as `signature_of_assigned` does.
    """
    old: list[OpTreeNode] = []
    found = signature_of([tree], None if tree.ran_beside else old)
    code, offset, built = tree.origin
    line, now = (id(code), offset), clock[0]
    before = _runs.get(line)
    if old:
        # One that was built before the last write has not run, even if its line has.
        since = before[1] if before is not None and built == now else -1
        old = [node for node in old if node.origin[2] > since]
        if old:
            _look(old, found[1])
    if before is None and len(_runs) >= LINES:
        _runs.clear()
    _runs[line] = code, now
    return found


def signature_of_together(roots: Sequence[Any]) -> Signature:
    """The signature of operands that run together.

    It raises StaleTreeError, as `signature_of_assigned` does.
    """
    nodes = [root for root in roots if root.__class__ is OpTreeNode]
    new = [node for node in nodes if node.ran is None and not node.ran_beside]
    if not new:
        return signature_of(roots)
    code, offset, _ = new[0].origin
    line, now = (id(code), offset), clock[0]
    old: list[OpTreeNode] = []
    before = _runs.get(line)
    found = signature_of(roots, old, before[1] if before is not None else -1)
    if old:
        _look(old if len(new) == len(nodes) else _beside(old, set(map(id, nodes)) - set(map(id, new))), found[1])
    if before is None and len(_runs) >= LINES:
        _runs.clear()
    _runs[line] = code, now
    if len(nodes) > 1:
        for node in new:
            node.ran_beside = True
    return found


def _beside(old: list[OpTreeNode], known: set[int]) -> list[OpTreeNode]:
    """The nodes that are not under those with known ids, which have run before."""
    under = {id(x) for x in post_order([node for node in old if id(node) in known], children_of)}
    return [node for node in old if id(node) not in under]


def _look(old: list[OpTreeNode], leaves: Sequence[Any]) -> None:
    """Warn if one of these nodes was built before a tensor under it was written."""
    stale = _first_stale(old, leaves)
    if stale is not None:  # once for each line that runs one
        tell("stale_trees", StaleTreeWarning, StaleTreeError, caller_frame(), partial(_message, *stale))


def _first_stale(old: list[OpTreeNode], leaves: Sequence[Any]) -> tuple[OpTreeNode, Tensor] | None:
    """A node that was built before a tensor under it was written, and the tensor."""
    newest = max((leaf.version for leaf in leaves if isinstance(leaf, Tensor)), default=0)
    suspects = [node for node in old if node.origin[2] < newest]
    known = {id(node) for node in old}
    hidden = False
    for node in suspects:  # the common case: the tensor is its operand
        for operand in children_of(node):
            if not isinstance(operand, Tensor):
                hidden = hidden or id(operand) not in known
            elif operand.version > node.origin[2]:
                return _named(node, suspects), operand
    return _stale_above(suspects) if hidden else None


def _stale_above(suspects: list[OpTreeNode]) -> tuple[OpTreeNode, Tensor] | None:
    """The same where the tensor may be under nodes that are not suspects."""
    newest: dict[int, Tensor] = {}
    for entry in post_order(suspects, children_of):
        if isinstance(entry, Tensor):
            newest[id(entry)] = entry
            continue
        found = [newest[id(x)] for x in children_of(entry) if id(x) in newest]
        if found:
            newest[id(entry)] = max(found, key=lambda tensor: tensor.version)
    for node in suspects:
        tensor = newest.get(id(node))
        if tensor is not None and tensor.version > node.origin[2]:
            return _named(node, suspects), tensor
    return None


def _named(node: OpTreeNode, suspects: list[OpTreeNode]) -> OpTreeNode:
    """The node, or if its line is inside op-tree, as a gradient's is, one above it with a user's line."""
    return next((x for x in (node, *suspects) if line_of(x.origin) is not None), node)


def _message(node: OpTreeNode, tensor: Tensor) -> str:
    writer = tensor.root.writer
    by = writer if isinstance(writer, str) else line_of(writer)
    made = line_of(node.origin)
    return (
        f"{describe(tensor)} was written{f' by {by}' if by else ''} after the tree of {node.label}"
        f"{f' at {made}' if made else ''} was built, and before it ran: a tree reads its tensors when it runs, so it "
        "takes the new values. For the old ones, run the tree before the write, be.evaluate([tree]), or let it read a "
        "copy, x.copy(); several tensors are written together by be.update, or by the updates of an optree.function. "
        "OPTREE_STALE_TREES=error raises this, and =ignore says nothing"
    )
