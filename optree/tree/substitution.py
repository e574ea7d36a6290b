"""Substitution of operands in trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

from optree.tree.node import OpTreeNode, operands_of, parts_of
from optree.tree.tensor import Tensor


def replace(roots: Sequence[Any], mapping: Mapping[Any, Any]) -> list[Any]:
    """The trees with each key of the mapping, by identity, replaced by its value.

    A view of a replaced tensor becomes the same view of the replacement. A tree without
    replaced operands stays the same object.

    Raises
    ------
    OperandError, ShapeError, DTypeError
        If an op cannot be applied to a replacement.
    """
    made: dict[int, Any] = {id(old): new for old, new in mapping.items()}
    pending = [root for root in roots if has_inputs(root)]
    while pending:
        entry = pending[-1]
        if id(entry) in made:
            pending.pop()
            continue
        operands = inputs_of(entry)
        below = [x for x in operands if id(x) not in made and has_inputs(x)]
        if below:
            pending += below
            continue
        new = [made.get(id(x), x) for x in operands]
        if all(map(is_, operands, new)):
            made[id(entry)] = entry
        elif entry.__class__ is OpTreeNode:
            made[id(entry)] = entry.op.node_of(*new)
        else:
            made[id(entry)] = entry.view_op(*new)
    return [made.get(id(root), root) for root in roots]


def with_values(roots: Sequence[Any], values: Mapping[Any, Tensor]) -> list[Any]:
    """The trees with some nodes replaced by tensors of their own types: nothing is inferred, and lines stay.

    A tree without replaced nodes stays the same object.
    """
    made: dict[int, Any] = {id(old): new for old, new in values.items()}
    pending = [root for root in roots if root.__class__ is OpTreeNode]
    while pending:
        entry = pending[-1]
        key = id(entry)
        if key in made:
            pending.pop()
            continue
        op_dict, left, right = parts_of(entry)
        count = len(pending)
        pending += [x for x in (right, left) if x.__class__ is OpTreeNode and id(x) not in made]
        if len(pending) > count:
            continue
        new_left, new_right = made.get(id(left), left), made.get(id(right), right)
        if new_left is left and new_right is right:
            made[key] = entry
            continue
        made[key] = node = tuple.__new__(OpTreeNode, (op_dict, new_left, new_right))
        node.spec, node.origin = entry.spec, entry.origin
    return [made.get(id(root), root) for root in roots]


def has_inputs(entry: object) -> bool:
    """Whether it is a node, or a view of a tensor."""
    return entry.__class__ is OpTreeNode or (isinstance(entry, Tensor) and entry.base is not None)


def inputs_of(entry: object) -> list[Any]:
    """A node's operands, numbers too, or the base of a view."""
    if isinstance(entry, OpTreeNode):
        return operands_of(entry)
    return [entry.base] if isinstance(entry, Tensor) and entry.base is not None else []
