"""Operands of loops: one, or a tuple or list of them, with checks of states and steps."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from optree.errors import DTypeError, OperandError, ShapeError, brief, describe
from optree.tree.types import NUMBERS, may_equal
from optree.tree.variable import Variable, as_operand, as_variable


def flat(given: Any) -> list[Any]:
    """One operand, or those of a tuple or list, or none of None."""
    if given is None:
        return []
    return list(given) if isinstance(given, tuple | list) and not isinstance(given, Variable) else [given]


def in_form_of(given: Any, values: Sequence[Any]) -> Any:
    """Values in the form of what was given."""
    if given is None:
        return None
    if not isinstance(given, tuple | list) or isinstance(given, Variable):
        return values[0]
    return type(given)(*values) if hasattr(given, "_fields") else type(given)(values)


def check_step(step: Any) -> None:
    """Refuse a step that does not take a state and a slice."""
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):  # of a function in C
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise OperandError(
            f"scan: the step is given two arguments, the states and the slices of the sequences (None without them), "
            f"and {brief(step)} takes {signature} ({error}); lambda state, x: (new_state, output) is a step"
        ) from None


def typed_state(x: Any, function: str) -> Variable:
    """A state before the first step; no Python number, whose dtype would be a guess."""
    operand = as_operand(x, f"{function}: a state")
    if type(operand) in NUMBERS:
        raise OperandError(
            f"{function}: a state is the number {operand!r}; np.float32({operand!r}) or a tensor has a dtype"
        )
    return as_variable(operand)


def check_lengths(sequences: Sequence[Variable], axes: Sequence[int], length: Any) -> None:
    """Refuse sequences of different lengths, or none without a length."""
    if not sequences and (isinstance(length, bool) or not hasattr(length, "__index__") or int(length) < 0):
        raise OperandError(f"scan: without sequences, length is the number of steps, not {length!r}")
    sizes = [x.shape[a] for x, a in zip(sequences, axes, strict=True)]
    for x, a, size in zip(sequences, axes, sizes, strict=True):
        for other, n in ((describe(sequences[0]), sizes[0]), ("length", length)):
            if None not in (size, n) and size != n:
                raise ShapeError(f"scan: {describe(x)} has {size} steps along axis {a}, and {other} has {n}")


def check_states(begun: Sequence[Variable], new: Sequence[Variable], function: str) -> None:
    """Refuse new states that are not of the types of those before."""
    if len(begun) != len(new):
        raise OperandError(f"{function}: the step returns {len(new)} new states; it was given {len(begun)}")
    for i, (x, y) in enumerate(zip(begun, new, strict=True)):
        if x.dtype != y.dtype:
            raise DTypeError(
                f"{function}: the step makes {y.dtype} of state {i}, {describe(x)}; .astype({str(x.dtype)!r}) in the "
                f"step, or .astype({str(y.dtype)!r}) of what it begins with, would fit"
            )
        if not may_equal(x.shape, y.shape):
            raise ShapeError(
                f"{function}: the step makes the shape {y.shape} of state {i}, {describe(x)}; it has to stay"
            )
        widened = [axis for axis, (m, n) in enumerate(zip(x.shape, y.shape, strict=True)) if m == 1 and n is None]
        if widened:
            raise ShapeError(
                f"{function}: the step broadcasts axis {widened[0]} of state {i}, {describe(x)}, to a size that only a "
                f"call tells, {y.shape}; begin with a state of that size, such as zeros_like of what has it"
            )
