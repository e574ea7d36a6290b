"""Steps, and the loop that runs them, for every executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from time import perf_counter
from typing import Any

from optree.compile.program import Program
from optree.ops.assignment import Assign
from optree.records import NamedTuple


class RegisterCall(NamedTuple):
    """A call on numbered registers, which hold the values of a program.

    Attributes
    ----------
    call : callable
        A function of operands; if `take` is None, of the registers, which it updates.
    take : callable or None
        A function of the registers to the operands.
    output : int
        The register of the call's value.
    out : int or None
        The register of an array that the value is written into.
    dead : sequence of int
        The registers whose last use is this step.
    number : int
        The index of its last instruction, for errors and observers.
    fallback : callable or None
        A function of the registers, called if `call` returns true, because it could not run.
    """

    call: Callable[..., Any]
    take: Callable[[list[Any]], Sequence[Any]] | None
    output: int
    out: int | None
    dead: Sequence[int]
    number: int
    fallback: Callable[[list[Any]], Any] | None = None


class Steps(NamedTuple):
    """A plan's steps in order.

    Attributes
    ----------
    program : Program
        The program whose instructions and values they name.
    steps : list of backends.execution.executor.Step
    slots : callable
        From the bytes of each value to the number of the memory of those that a function keeps from call to call.
    constants : sequence
        The values of the leaves that the program has beyond those that it was lowered from.
    """

    program: Program
    steps: Sequence[Any]
    slots: Callable[[Sequence[int]], dict[int, int]]
    constants: Sequence[Any]


class Plan:
    """A compiled program.

    Attributes
    ----------
    run : callable
        A function of the leaves' values to those of the outputs. Its second argument is the trees that run, for the
        origins in errors; None for those that were compiled.
    remark : callable or None
        A line for `debugprint`.
    """

    def __init__(self, run: Callable[[list[Any], Any], Sequence[Any]], remark: Callable[[], str] | None = None) -> None:
        self.run, self.remark = run, remark


#: Adds a note to an error: its instruction, by index, in the trees that ran.
Note = Callable[[Exception, int, Any], None]

#: Called after a step with the index of its instruction, its seconds, its operands and its value.
Observer = Callable[[int, float, Sequence[Any], Any], None]


def run_steps(
    steps: Iterable[tuple[Any, ...]],
    rest: list[Any],
    outputs: Callable[[list[Any]], Sequence[Any]] | None,
    note: Note,
    values: list[Any],
    roots: object = None,
) -> Sequence[Any]:
    """Run steps in order; their outputs.

    Parameters
    ----------
    steps : iterable of RegisterCall
        Of steps that run often, as plain tuples (`plain`).
    rest : list
        The initial registers after `values`. If empty, `values` are the registers.
    outputs : callable or None
        A function of the registers to the outputs (`outputs_of`).
    note : callable
    values : list
        The leaves' values.
    roots : object
        The trees that run, for `note`.
    """
    registers = values + rest if rest else values
    index = 0
    try:
        for call, take, output, out, dead, index, fallback in steps:  # noqa: B007 the except clause uses it
            if take is None:
                if call(registers) and fallback is not None:
                    fallback(registers)
            elif out is None:
                registers[output] = call(*take(registers))
            else:
                registers[output] = call(*take(registers), out=registers[out])
            if dead:
                for i in dead:
                    registers[i] = None
        return () if outputs is None else outputs(registers)
    except Exception as error:
        note(error, index, roots)
        raise


def plain(steps: Iterable[RegisterCall]) -> list[tuple[Any, ...]]:
    """Calls as plain tuples, which Python unpacks in two thirds of the time."""
    return [tuple(step) for step in steps]


def outputs_of(program: Program) -> Callable[[list[Any]], Sequence[Any]] | None:
    """A function of the registers to a program's outputs; None if all are assignments."""
    made = (program.instructions[i - len(program.leaves)].op for i in program.outputs if i >= len(program.leaves))
    is_read = any(i < len(program.leaves) for i in program.outputs) or not all(isinstance(op, Assign) for op in made)
    return taker(program.outputs) if is_read else None


def taker(numbers: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function of the registers to those with these numbers."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return itemgetter(slice(numbers[0], numbers[0] + 1)) if numbers else itemgetter(slice(0, 0))


def observed(step: RegisterCall, observe: Observer, wait: Callable[[], None] | None = None) -> RegisterCall:
    """A step that reports to an observer.

    Parameters
    ----------
    wait : callable, optional
        Synchronises the device.
    """
    call, index = step.call, step.number

    def run(*operands: object, **out: object) -> Any:
        if wait is not None:
            wait()
        start = perf_counter()
        value = call(*operands, **out)
        if wait is not None:
            wait()
        observe(index, perf_counter() - start, operands, value)
        return value

    return step._replace(call=run)
