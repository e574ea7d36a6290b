"""Schedules: numbers as functions of the step, on the host or in a tree.

A schedule is a function of the number of steps taken so far. It maps a Python integer to a float, and a tree, such as
an optimizer's counter, to a tree. So a rate that changes with each step is computed on the device. A number of steps
below 1 raises ParameterError.

>>> rate = warmup(cosine(0.1, 1000), 100)
>>> rate(0), rate(50), rate(100), round(rate(600), 3), rate(1100)
(0.0, 0.05, 0.1, 0.05, 0.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any

from optree.errors import ParameterError, describe
from optree.op.parameters import complete
from optree.registry import f
from optree.tree.variable import Operand, Variable

#: A function of a step. It maps a number to a number and a tree to a tree.
Schedule = Callable[[Any], Any]


def constant(rate: object) -> Schedule:
    """A constant number.

    Examples
    --------
    >>> optree.train.schedules.constant(0.1)(7)
    0.1
    """
    _check_numbers("constant", rate)
    return partial(_constant, rate)


def step(rate: float, every: int, factor: float = 0.1) -> Schedule:
    """Step decay: the number is multiplied by `factor` after every `every` steps.

    Parameters
    ----------
    every : int
        The number of steps between changes.

    Examples
    --------
    >>> rate = optree.train.schedules.step(0.5, every=10)
    >>> rate(9), rate(10)
    (0.5, 0.05)
    """
    _check_steps("step", every)
    _check_numbers("step", rate)
    _check_factor("step", factor)
    return partial(_step, rate, every, factor)


def exponential(rate: float, factor: float, every: int = 1) -> Schedule:
    """Exponential decay by `factor` in `every` steps, continuous in the step.

    Parameters
    ----------
    every : int
        The number of steps in which it is multiplied by `factor` once.

    Examples
    --------
    >>> rate = optree.train.schedules.exponential(1.0, 0.25, every=2)
    >>> rate(1), rate(2)
    (0.5, 0.25)
    """
    _check_steps("exponential", every)
    _check_numbers("exponential", rate)
    _check_factor("exponential", factor)
    return partial(_exponential, rate, every, factor)


def linear(rate: float, steps: int, end: float = 0.0) -> Schedule:
    """Linear interpolation from `rate` to `end` over `steps`, then `end`.

    Examples
    --------
    >>> rate = optree.train.schedules.linear(1.0, 4)
    >>> rate(1), rate(9)
    (0.75, 0.0)
    """
    _check_steps("linear", steps)
    _check_numbers("linear", rate, end)
    return partial(_linear, rate, steps, end)


def cosine(rate: float, steps: int, end: float = 0.0) -> Schedule:
    """Cosine annealing from `rate` to `end` over `steps`, then `end`.

    Examples
    --------
    >>> rate = optree.train.schedules.cosine(1.0, 4)
    >>> rate(0), rate(4)
    (1.0, 0.0)
    """
    _check_steps("cosine", steps)
    _check_numbers("cosine", rate, end)
    return partial(_cosine, rate, steps, end)


def warmup(schedule: object, steps: int, start: float = 0.0) -> Schedule:
    """Linear warmup from `start` times the first value of a schedule or number, over `steps`.

    The schedule's own step 0 is the first step after the warmup.

    Parameters
    ----------
    schedule : schedule or number
        What follows the warmup.
    steps : int
        The number of steps of the warmup.
    start : float
        The factor at its start.

    Examples
    --------
    >>> rate = optree.train.schedules.warmup(optree.train.schedules.linear(1.0, 10), 4)
    >>> rate(0), rate(2), rate(4)
    (0.0, 0.5, 1.0)
    """
    _check_steps("warmup", steps)
    _check_numbers("warmup", start, *([] if callable(schedule) else [schedule]))
    then = schedule if callable(schedule) else constant(schedule)
    return partial(_warmup, then, steps, start)


def one_cycle(peak: float, steps: int, rise: float = 0.3, first: float = 0.04, last: float = 4e-6) -> Schedule:
    """The one-cycle schedule ("super-convergence"): half a cosine up to `peak`, then half a cosine down.

    Parameters
    ----------
    rise : float
        The fraction of the steps in which the value rises.
    first, last : float
        The first and the last value, as fractions of `peak`.

    Raises
    ------
    ParameterError
        If `steps` is less than 2, or `rise` is not between 0 and 1.
    """
    if not 0 < rise < 1:
        raise ParameterError(f"one_cycle: rise is a share between 0 and 1, not {rise}")
    _check_steps("one_cycle", steps, least=2)
    _check_numbers("one_cycle", peak, first, last)
    top = rise * steps
    up, down = cosine(peak * first, 1, peak), cosine(peak, 1, peak * last)
    return partial(_one_cycle, up, down, top, steps)


def table(rates: Mapping[int, float]) -> Schedule:
    """A piecewise constant schedule; each key is the first step of its number: ``{0: 0.1, 1000: 0.01}``.

    Parameters
    ----------
    rates : dict
        From the first step of a number to the number; it has 0.

    Raises
    ------
    ParameterError
        If there is no number for step 0.

    Examples
    --------
    >>> rate = table({0: 0.1, 1000: 0.01})
    >>> rate(999), rate(1000)
    (0.1, 0.01)
    """
    if 0 not in rates:
        raise ParameterError(f"table: a number holds from step 0 on, and the steps are {', '.join(map(str, rates))}")
    _check_numbers("table", *rates.values())
    return partial(_table, sorted(rates.items()))


# The schedules' values at a step: functions of the module, so that schedules pickle.


def _constant(rate: object, now: object) -> Any:
    return rate


def _step(rate: float, every: int, factor: float, now: Any) -> Any:
    return rate * _power(factor, now // every)


def _exponential(rate: float, every: int, factor: float, now: Any) -> Any:
    return rate * _power(factor, now / every)


def _linear(rate: float, steps: int, end: float, now: object) -> Any:
    return rate + (end - rate) * _share(now, steps)


def _cosine(rate: float, steps: int, end: float, now: object) -> Any:
    angle = math.pi * _share(now, steps)
    return end + (rate - end) * (1 + (f.cos(angle) if isinstance(angle, Variable) else math.cos(angle))) / 2


def _warmup(then: Schedule, steps: int, start: float, now: Any) -> Any:
    rising = then(0) * (start + (1 - start) * _share(now, steps))
    return _where(now < steps, rising, then(_maximum(now - steps, 0)))


def _one_cycle(up: Schedule, down: Schedule, top: float, steps: int, now: Any) -> Any:
    return _where(now < top, up(now / top), down(_maximum(now - top, 0) / (steps - top)))


def _table(ordered: Sequence[tuple[int, float]], now: Any) -> Any:
    value: Any = ordered[0][1]
    for first, rate in ordered[1:]:
        value = _where(now >= first, rate, value)
    return value


def _check_steps(what: str, steps: object, least: int = 1) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < least:
        raise ParameterError(f"{what}: a number of steps is an integer of {least} or more, not {steps!r}")


def _check_numbers(what: str, *values: object) -> None:
    for value in values:
        if not isinstance(value, Real | Variable):
            raise ParameterError(f"{what}: a number is wanted, not {describe(value)}")


def _check_factor(what: str, factor: Any) -> None:
    _check_numbers(what, factor)
    if not factor > 0:
        raise ParameterError(f"{what}: a factor is above 0, not {factor!r}")


def _share(now: Any, steps: int) -> Any:
    """The fraction of the steps that is over, at most 1."""
    share = now / steps
    return f.minimum(share, 1.0) if isinstance(share, Variable) else min(share, 1.0)


def _maximum(x: Any, y: object) -> Any:
    return f.maximum(x, y) if isinstance(x, Variable) else max(x, y)


def _where(condition: Operand, x: Operand, y: Operand) -> Any:
    if isinstance(condition, Variable):
        return f.where(condition, x, y)
    return x if condition else y


def _power(base: float, exponent: Any) -> Any:
    return f.exp(exponent * math.log(base)) if isinstance(exponent, Variable) else base**exponent


complete("schedules", __name__, globals())
