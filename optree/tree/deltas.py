"""Deltas, the contributions to an adjoint, and their sums."""

from __future__ import annotations

from typing import Any

from optree.dtypes import is_floating
from optree.errors import GradientError, describe
from optree.registry import f
from optree.tree.gradient_types import is_disconnected, is_null


def sum_of_deltas(earlier: Any, delta: Any) -> Any:
    """The sum of two contributions to one adjoint; the first may be None."""
    if earlier is None or is_disconnected(earlier) or is_null(delta):
        return delta
    return earlier if is_disconnected(delta) or is_null(earlier) else earlier + delta


def zero_gradient(x: Any, dtype: Any) -> Any:
    """A gradient of zeros for a variable, of its own dtype if that is floating, else of the one given."""
    return f.fill_like(x if is_floating(x.dtype) else x.astype(dtype), 0.0)


def sum_to(delta: Any, operand: Any) -> Any:
    """The delta summed over the axes along which the operand was broadcast to its shape."""
    shape, wanted = delta.shape, operand.shape
    lead = len(shape) - len(wanted)
    sizes = list(zip(wanted, shape[max(lead, 0) :], strict=False))
    # An axis of unknown size is not broadcast: a function refuses a size of 1 there.
    if lead < 0 or any(w not in (1, s) and (1 in (w, s) or None not in (w, s)) for w, s in sizes):
        raise GradientError(f"the gradient's shape {shape} is not that of {describe(operand)}")
    if lead:
        delta = f.sum(delta, axis=tuple(range(lead)), keepdims=False)
    axes = tuple(i for i, (w, s) in enumerate(sizes) if w == 1 != s)
    return f.sum(delta, axis=axes, keepdims=True) if axes else delta
