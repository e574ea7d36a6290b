"""Loops that end when a condition on their states is false."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt, prod
from typing import Any

import numpy as np

from optree.errors import DTypeError, OperandError, ShapeError, brief, clock, describe
from optree.ops.loop_operands import check_states, flat, in_form_of, typed_state
from optree.ops.loops import Loop, draw_before
from optree.registry import f, function
from optree.tree.types import TensorType, integer_of
from optree.tree.variable import Input, Variable, constant, variable_of

#: The bytes of states that a loop stores for its derivative by default without checkpoints.
STORED = 1 << 20


@function()
def while_loop(
    condition: Callable[..., Any],
    step: Callable[..., Any],
    initial: Any,
    limit: int,
    checkpoints: int | None = None,
) -> Any:
    """A loop with states, which ends before the first step for which a condition on them is false.

    As in `scan`, the step is traced once, on inputs, and compiled once. Compiled C reads the condition's value after
    each step. A GPU's host reads it after each step if the step may fail, and otherwise after some more: at most a
    quarter more steps run than have an effect.

    The derivative runs the same steps in reverse order. It stores the states before some of the steps, the checkpoints,
    and computes those between two of them again: n checkpoints take the memory of n + limit / n states.

    Parameters
    ----------
    condition : callable
        Of the states, as `initial` is. Returns a bool tree of one element.
    step : callable
        Of the states. Returns the new states in the same form.
    initial : operand, or tuple or list of them
        The states before the first step.
    limit : int
        Maximum number of steps.
    checkpoints : int, optional
        The number of states that are stored for the derivative, at most `limit`, which computes no step twice. By
        default that, where as many states take at most 1 MiB, and otherwise about its square root.

    Returns
    -------
    states
        The first states for which the condition is false, or those after `limit` steps.

    Raises
    ------
    OperandError, DTypeError, ShapeError
        If the condition is no bool of one element, or a new state is of another type than the one before.

    Examples
    --------
    >>> import optree
    >>> x = be.array(2.0)
    >>> root = be.while_loop(lambda y: be.absolute(y * y - x) > 1e-6, lambda y: (y + x / y) / 2, x, limit=50)
    >>> root.item(), optree.grad(root, x).item()
    (1.4142135381698608, 0.3535533845424652)
    """
    for name, given in (("condition", condition), ("step", step)):
        if isinstance(given, Variable) or not callable(given):
            raise OperandError(f"while_loop: {name} is a function of the states, not {brief(given)}")
    limit = integer_of(limit, "while_loop: limit, the maximum number of steps,", 0)
    if checkpoints is not None:
        checkpoints = integer_of(checkpoints, "while_loop: checkpoints, a number of states or None,", 1)
    loop = _traced(condition, step, initial, limit)
    length = _segment(limit, [x for _, x in loop.states[:-1]], checkpoints)
    if length > 1 and all(None not in x.shape for x, *_ in loop.slices):
        loop = _in_segments(loop, limit, length)
    found, _ = loop.applied()
    return in_form_of(initial, found[:-1])


def _traced(condition: Callable[..., Any], step: Callable[..., Any], initial: Any, limit: int) -> Loop:
    """The loop of at most `limit` steps; its first slice is the step's number, its last state whether it goes on."""
    begun = [typed_state(x, "while_loop") for x in flat(initial)]
    first = _checked(condition(in_form_of(initial, begun)))
    states = [Input(TensorType(x.dtype, x.shape)) for x in begun]
    runs, number = Input(TensorType("bool", ())), Input(TensorType("int64", ()))
    clock[0] += 1  # what is built from here on is the step's
    since = clock[0]
    new = [variable_of(x, "while_loop: a new state") for x in flat(step(in_form_of(initial, states)))]
    check_states(begun, new, "while_loop")
    goes_on = runs & _checked(condition(in_form_of(initial, new)))
    slices = [(number, constant(np.arange(limit)), 0)]
    carried = [*zip(states, begun, strict=True), (runs, first)]
    new, _ = draw_before([*new, goes_on], [], carried, slices, since)
    new[:-1] = [f.where(runs, x, before) for x, before in zip(new[:-1], states, strict=True)]
    return Loop(carried, slices, new, [], False, flag=runs)


def _segment(limit: int, begun: Sequence[Variable], checkpoints: int | None) -> int:
    """The number of steps from one checkpoint to the next."""
    if checkpoints is None:
        are_small = all(None not in x.shape for x in begun)
        if are_small and limit * sum(prod(x.shape) * x.dtype.itemsize for x in begun) <= STORED:
            return 1
        checkpoints = isqrt(limit)
    return -(-limit // max(1, checkpoints))


def _in_segments(loop: Loop, limit: int, length: int) -> Loop:
    """The loop of loops of `length` steps, whose derivative stores the states before each, and runs it again."""
    count = -(-limit // length)
    loop.new_states[-1] &= loop.slices[0][0] < limit - 1  # the last segment may end beyond the limit
    states = [(Input(x.type), begun) for x, begun in loop.states]
    slices, inner = [], []
    for x, sequence, _ in loop.slices:
        missing = count * length - limit
        whole = f.pad(sequence, ((0, missing), *((0, 0),) * x.ndim)) if missing else sequence
        segment = Input(TensorType(x.dtype, (length, *x.shape)))
        slices.append((segment, f.reshape(whole, (count, length, *x.shape)), 0))
        inner.append((x, segment, 0))
    carried = [(x, outer) for (x, _), (outer, _) in zip(loop.states, states, strict=True)]
    new, _ = loop._replace(states=carried, slices=inner).applied()
    return Loop(states, slices, new, [], False, flag=states[-1][0])


def _checked(condition: Any) -> Variable:
    """A condition as a bool tree without axes."""
    found = variable_of(condition, "while_loop: the condition")
    if found.dtype != np.bool_:
        raise DTypeError(f"while_loop: the condition is a bool, not {describe(found)}; a comparison makes one")
    if any(size != 1 for size in found.shape):
        raise ShapeError(f"while_loop: the condition is one bool, not {describe(found)}; be.any or be.all makes one")
    return found if found.shape == () else f.reshape(found, ())
