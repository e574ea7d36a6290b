"""Substitution of operands in trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optree.tree.node import OpTreeNode, operands_of
from optree.tree.tensor import Tensor
from optree.tree.traversal import post_order


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
    for entry in post_order(roots, lambda entry: () if id(entry) in made else inputs_of(entry)):
        if id(entry) in made:
            continue
        operands = inputs_of(entry)
        new = [made.get(id(x), x) for x in operands]
        if all(a is b for a, b in zip(operands, new, strict=True)):
            made[id(entry)] = entry
        elif isinstance(entry, Tensor):
            made[id(entry)] = entry.view_op(*new)
        else:
            made[id(entry)] = entry.op.node_of(*new)
    return [made.get(id(root), root) for root in roots]


def inputs_of(entry: Any) -> list[Any]:
    """A node's operands, numbers too, or the base of a view."""
    if isinstance(entry, OpTreeNode):
        return operands_of(entry)
    return [entry.base] if isinstance(entry, Tensor) and entry.base is not None else []
