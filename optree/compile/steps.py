"""Steps, and the one loop that runs them: whatever computes them, on whatever device, observed or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from time import perf_counter
from typing import Any, NamedTuple


class Step(NamedTuple):
    """A call on numbered registers, which hold the values of a program.

    Attributes
    ----------
    call : callable
        Of operands; or where `take` is None, of the registers, in which it sets what it computes.
    take : callable or None
        Takes the operands from the registers, and as the last of them an array that the value is written into, if
        the call is given one.
    output : int
        The register of the call's value.
    dead : sequence of int
        The registers that nothing needs after this step.
    number : int
        The number of its instruction, of several the last, for errors and observers.
    fallback : callable or None
        Of the registers; runs where a call of the registers has not, and gives something true to say so.
    """

    call: Callable[..., Any]
    take: Callable[[list[Any]], Sequence[Any]] | None
    output: int
    dead: Sequence[int]
    number: int
    fallback: Callable[[list[Any]], Any] | None = None


#: Adds to an error of the instruction of this number what it was doing, for the trees that ran.
Note = Callable[[Exception, int, Any], None]

#: Called after a step with the number of its instruction, the seconds that it took, its operands and its value.
Observer = Callable[[int, float, Sequence[Any], Any], None]


def run_steps(
    steps: Iterable[Step],
    rest: list[Any],
    outputs: Callable[[list[Any]], Sequence[Any]],
    note: Note,
    values: list[Any],
    roots: Any = None,
) -> Sequence[Any]:
    """Run steps in order; their outputs.

    Parameters
    ----------
    rest : list
        What the registers have after `values` before anything is computed. If nothing, `values` are the registers.
    outputs : callable
        Takes the outputs from the registers.
    note : callable
    values : list
        Those of the leaves.
    roots : object
        The trees that run, for `note`.
    """
    registers = values + rest if rest else values
    index = 0
    try:
        for call, take, output, dead, index, fallback in steps:  # noqa: B007 the failing step's
            if take is None:
                if call(registers) and fallback is not None:
                    fallback(registers)
            else:
                registers[output] = call(*take(registers))
            if dead:
                for i in dead:
                    registers[i] = None
        return outputs(registers)
    except Exception as error:
        note(error, index, roots)
        raise


def taker(numbers: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function that takes these registers from a list, in C."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return itemgetter(slice(numbers[0], numbers[0] + 1)) if numbers else itemgetter(slice(0, 0))


def observed(step: Step, count: int, observe: Observer, wait: Callable[[], None] | None = None) -> Step:
    """A step that reports what it took.

    Parameters
    ----------
    count : int
        Of its operands.
    wait : callable, optional
        Waits until the device has nothing else to do.
    """
    call, index = step.call, step.number

    def run(*operands: Any) -> Any:
        if wait is not None:
            wait()
        start = perf_counter()
        value = call(*operands)
        if wait is not None:
            wait()
        observe(index, perf_counter() - start, operands[:count], value)
        return value

    return step._replace(call=run)
