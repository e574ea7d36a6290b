"""Updates: values that are written into tensors together, after all have been computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from optree.compile.aliasing import overlapping
from optree.dtypes import can_cast, is_floating
from optree.errors import DTypeError, OperandError, ShapeError, describe
from optree.registry import f
from optree.tree.node import OpTreeNode
from optree.tree.tensor import Tensor
from optree.tree.types import may_equal
from optree.tree.variable import Constant, Variable, variable_of


def checked_updates(what: str, updates: object, inputs: Sequence[Variable] = ()) -> list[tuple[Tensor, Variable]]:
    """Updates as pairs of a tensor and a variable.

    `what`: the caller, for errors.
    `updates` (dict or list of pairs): from tensors to operands.
    `inputs`: a function's inputs, which may not be targets.

    Raises OperandError if a target is no tensor, or an input, or two targets share an element.
    Raises ShapeError or DTypeError if a value has another shape than its target, or another kind of dtype. Numbers
    broadcast, and are cast as assignments cast them; float64 is cast to float32.
    """
    found: list[tuple[Tensor, Variable]] = []
    for target, value in pairs_of(updates, what, "updates"):
        if not isinstance(target, Tensor) or any(target.root is x for x in inputs):
            raise OperandError(f"{what}: an update is of a tensor that is no input, not of {describe(target)}")
        tree = variable_of(value, f"{what}: the update of {target.label}")
        _check_type(what, target, tree)
        found.append((target, tree))
    _check_disjoint(what, [target for target, _ in found])
    return found


def _check_type(what: str, target: Tensor, value: Variable) -> None:
    """Refuse a value of another shape or kind of dtype than its target's; a number takes its shape."""
    is_number = isinstance(value, Constant) and value.ndim == 0
    if not is_number and not may_equal(value.shape, target.shape):
        raise ShapeError(
            f"{what}: the update of {describe(target)} is {describe(value)}, of another shape; "
            f"be.broadcast_to(value, {target.shape}) repeats a value, value.reshape(...) or a sum over axes changes one"
        )
    same_kind = is_number or _kind(value.dtype) == _kind(target.dtype)
    if not same_kind or not can_cast(value.dtype, target.dtype, "same_kind"):
        raise DTypeError(
            f"{what}: the update of {describe(target)} is {describe(value)}, of another kind of dtype; "
            f"value.astype({str(target.dtype)!r}) casts it"
        )


def _kind(dtype: np.dtype) -> str:
    """A dtype's kind: b, i or f."""
    return "f" if is_floating(dtype) else dtype.kind.replace("u", "i")


def pairs_of(given: Any, what: str, role: str) -> list[tuple[Any, Any]]:
    """The pairs of a dict or list; OperandError if an item is no pair."""
    is_pairs = isinstance(given, Mapping | list | tuple) and not isinstance(given, Variable)
    pairs = list(given.items() if isinstance(given, Mapping) else given) if is_pairs else [given]
    if any(not isinstance(pair, tuple | list) or isinstance(pair, Variable) or len(pair) != 2 for pair in pairs):
        raise OperandError(f"{what}: {role} are a dict or a list of pairs, not {given!r}")
    return [tuple(pair) for pair in pairs]


def assignments(updates: Sequence[tuple[Tensor, Any]]) -> list[OpTreeNode]:
    """Updates as `assign` nodes of one program; a value that may be a view of another target is copied first."""
    return [
        f.assign(target, value if isinstance(value, OpTreeNode) and not value.op.view_map else f.copy(value))
        for target, value in updates
    ]


def _check_disjoint(what: str, targets: Sequence[Tensor]) -> None:
    """Refuse two targets that share an element, whose final value would be ambiguous."""
    for i, j in overlapping([target.array for target in targets], exactly=True):
        one, other = targets[i], targets[j]
        if one is other:
            raise OperandError(f"{what}: {describe(one)} is updated twice")
        raise OperandError(
            f"{what}: the updates of {describe(one)} and of {describe(other)} write the same memory; "
            "update parts that share no element, or the whole at once"
        )
