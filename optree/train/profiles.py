"""Profiles of functions, by running them."""

from __future__ import annotations

from optree.errors import OperandError, describe
from optree.run.function import Function
from optree.run.profile import Profile, TimedSteps


def profile(step: Function, *args: object, calls: int = 10) -> Profile:
    """Run a function several times and measure each of its kernels and calls.

    Parts run one by one, without CUDA graphs, and a GPU is synchronized after each. The updates are written, as in any
    step. ``optree.function(..., profile=True)`` measures its own calls in the same way.

    Parameters
    ----------
    step : Function
    *args : object
        Its arguments.
    calls : int
        The number of measured calls, after one call to warm up.

    Raises
    ------
    OperandError
        If `step` is no function, or runs on no backend.

    Examples
    --------
    >>> import optree
    >>> w = be.ones((64, 64), name="w")
    >>> found = profile(optree.function([], be.sum(be.dot(w, w)), updates={w: w * 0.5}))
    >>> sorted({part.kind for part in found.parts} | {"call"})[0], found.memory.peak > 0
    ('call', True)
    """
    if not isinstance(step, Function):
        raise OperandError(f"profile: a function is wanted, as optree.function makes it, not {describe(step)}")
    if calls < 1:
        raise OperandError(f"profile: it takes 1 call or more, not {calls}")
    timed = TimedSteps(step.planned(), step.backend)
    leaves = step.leaves_of(*args)
    for _ in range(calls + 1):
        timed.run(leaves, None)
    timed.times.popleft()
    for target, _ in step.updates:
        target.advance(f"{step}, profiled")
    return timed.profile()
