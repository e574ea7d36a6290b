"""Loops in C: the steps of a loop whose step is kernels, views and copies alone, in one call.

A step's kernels and copies are recorded once for the layouts of its arrays, as the functions' addresses and packed
arguments. Python takes longer to enter a small kernel than the kernel to run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from backends.cpu.plan import KernelPlan
from backends.execution.executor import CallStep, KernelStep
from backends.execution.memory import HOST, LINE
from backends.execution.specialize import FusedKernel, as_int64, collapsed_axes
from optree.arrays import address, overlap
from optree.cache import Cache
from optree.errors import CompilerError
from optree.ops.assignment import Assign
from optree.records import NamedTuple
from optree.settings import thread_count
from optree.tree.types import TensorType

#: The least steps of a loop that run in C; and the most of one call, between which Python handles signals: an even
#: number, as the addresses of even steps and of odd ones are counted apart.
LEAST, MOST = 8, 1 << 8

#: The steps whose addresses tell those of all: one even and one odd, and the next after them.
FEWEST = 3

#: The functions of the source.
NAMES = ("run_steps", "copy_array")

#: The bytes of the elements that are copied.
ITEMS = (1, 2, 4, 8)

#: Maximum entries of a loop's cache of recorded steps.
LAYOUTS = 16

SOURCE = """#include <stdint.h>
#include <string.h>

/* A command is a function, the number of its packed arguments, these, the number of addresses among them, and for each
   the argument's index, the array's number and an offset in bytes. The addresses of even and of odd steps each move by
   the same bytes from one to the next. */
enum { COMMANDS, END, ROWS, MOVES, ARRAYS, STEPS };

int64_t run_steps(const int64_t *given)
{
    int64_t *const rows = (int64_t *)given[ROWS];
    const int64_t *const moves = (const int64_t *)given[MOVES];
    for (int64_t step = 0; step < given[STEPS]; step++) {
        int64_t *const addresses = rows + step % 2 * given[ARRAYS];
        for (int64_t *next = (int64_t *)given[COMMANDS]; next < (int64_t *)given[END];) {
            int64_t *const arguments = next + 2;
            const int64_t *patch = arguments + next[1] + 1, *const end = patch + 3 * patch[-1];
            for (; patch < end; patch += 3)
                arguments[patch[0]] = addresses[patch[1]] + patch[2];
            ((void (*)(const int64_t *))next[0])(arguments);
            next = (int64_t *)end;
        }
        for (int64_t array = 0; array < given[ARRAYS]; array++)
            addresses[array] += moves[array];
    }
    return 0;
}

enum { TARGET, SOURCE, ITEM, RANK, SIZES };

/* Copy an array to another of its sizes, of any strides in bytes; 0 strides repeat an element. */
void copy_array(const int64_t *given)
{
    const int64_t rank = given[RANK], *const sizes = given + SIZES, item = given[ITEM], last = rank - 1;
    const int64_t *const to = sizes + rank, *const from = to + rank, count = sizes[last];
    char *target = (char *)given[TARGET];
    const char *source = (const char *)given[SOURCE];
    int64_t index[rank];
    memset(index, 0, sizeof index);
    for (;;) {
        if (to[last] == item && from[last] == item)
            memcpy(target, source, count * item);
        else
#define COPY(type) \\
            for (int64_t i = 0; i < count; i++) \\
                *(type *)(target + i * to[last]) = *(const type *)(source + i * from[last])
            switch (item) {
            case 1: COPY(uint8_t); break;
            case 2: COPY(uint16_t); break;
            case 4: COPY(uint32_t); break;
            default: COPY(uint64_t);
            }
        int64_t axis = last - 1;
        for (; axis >= 0; axis--) {
            target += to[axis], source += from[axis];
            if (++index[axis] < sizes[axis])
                break;
            target -= to[axis] * sizes[axis], source -= from[axis] * sizes[axis], index[axis] = 0;
        }
        if (axis < 0)
            return;
    }
}
"""


class Recorded(NamedTuple):
    """A step's commands, for arrays of some layouts.

    Attributes
    ----------
    commands : numpy.ndarray
        As the C takes them.
    sizes : list of int
        The bytes of each array that the step makes.
    held : list
        The functions and constants to which the commands have addresses.
    """

    commands: np.ndarray
    sizes: list[int]
    held: list[Any]


class LoopInC:
    """Runs the steps of a loop: in C where the step is of kernels, views and copies, else one by one.

    `backends.cpu.row_loops` runs those with products, and those whose rows threads share.

    Parameters
    ----------
    plan : KernelPlan
        The step's.
    functions : callable
        From C source and names to the functions; None without a compiler.
    """

    def __init__(self, plan: KernelPlan, functions: Callable[..., dict[str, Any] | None]) -> None:
        self._plan, self._c_functions = plan, functions
        self._recorded = Cache("recorded steps of loops", LAYOUTS)

    def __call__(self, values_of: Callable[[int], list[Any]], length: int) -> None:
        """Run all steps; see `backends.backend.Within.loop`."""
        end, step, is_tried = length - 1, 0, False
        while step < length:
            if step and not is_tried and end - step >= LEAST and self._plan.steps is not None:
                is_tried = True
                if self._in_c(values_of, step, end):
                    step = end
            self._plan.run(values_of(step), None)
            step += 1

    @cached_property
    def _functions(self) -> dict[str, Any] | None:
        return self._c_functions(SOURCE, NAMES, shares=False)

    def _in_c(self, values_of: Callable[[int], list[Any]], start: int, end: int) -> bool:
        """Run some steps in C; whether that could be."""
        functions = self._functions
        if functions is None:
            return False
        given = [values_of(start + i) for i in range(FEWEST)]
        layouts = [_layouts(values) for values in given]
        key = thread_count(), *layouts[0]
        if key not in self._recorded:
            self._recorded[key] = recorded(self._plan, given[0], functions)
        known: Recorded | None = self._recorded[key]
        if known is None or any(layout != layouts[0] for layout in layouts):
            return False
        scratch = np.empty(sum(known.sizes) + LINE, np.uint8)
        first = address(scratch) + -address(scratch) % LINE
        made = [first + offset for offset in accumulate(known.sizes, initial=0)]
        rows = np.array([[*map(_start, values), *made] for values in given])
        moves = rows[2] - rows[0]
        commands = known.commands.copy()  # C writes addresses into them, and other threads may run the same loop
        begin = address(commands)
        packed = [begin, begin + commands.nbytes, address(rows), address(moves), rows.shape[1]]
        for step in range(start, end, MOST):
            words = np.array([*packed, min(MOST, end - step)])
            functions["run_steps"](address(words))
        return True


def _layouts(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([(x.shape, x.strides, address(x) % x.itemsize) for x in values if x.__class__ is np.ndarray])


def _start(x: Any) -> int:
    return address(x) if x.__class__ is np.ndarray else 0


class _Unrecorded(Exception):  # it is raised and caught here
    """A step of a plan that is not recorded."""


class _Place(NamedTuple):
    """The array in whose memory a register's array is, and the address at which that begins.

    Attributes
    ----------
    array : int or None
        A leaf, or after them an array that the step makes; None for one that is the same in all steps.
    begin : int
    """

    array: int | None
    begin: int


def recorded(plan: KernelPlan, values: list[Any], functions: dict[str, Any]) -> Recorded | None:
    """The steps of a plan, for leaves of the layouts of these; None if one of them cannot be recorded."""
    recorder = _Recorder(plan, values, functions["copy_array"])
    try:
        for step in plan.steps or ():
            recorder.add(step)
    except _Unrecorded:
        return None
    return Recorded(np.array(recorder.commands, np.int64), recorder.sizes, recorder.held)


class _Recorder:
    """Commands for steps, in the order in which they are added.

    Attributes
    ----------
    commands, sizes, held
        As of `Recorded`.
    """

    def __init__(self, plan: KernelPlan, values: list[Any], copy: Any) -> None:
        self._values, self._count, self._instructions = [*values, *plan.open], len(values), plan.program.instructions
        self._copy_address = ctypes.cast(copy, ctypes.c_void_p).value or 0
        self._places = {i: _Place(i, address(x)) for i, x in enumerate(values) if isinstance(x, np.ndarray)}
        self.commands, self.sizes = list[int](), list[int]()
        self.held: list[Any] = [copy]

    def add(self, step: CallStep | KernelStep) -> None:
        """Record a step; `_Unrecorded` if it cannot be."""
        if isinstance(step, KernelStep):
            self._add_kernel(step)
        else:
            self._add_call(step)

    def _add_kernel(self, step: KernelStep) -> None:
        kernel, values = step.kernel, self._values
        if not isinstance(kernel, FusedKernel):
            raise _Unrecorded
        given, targets = step.targets(values)
        moving = [*enumerate(map(self._place_of, kernel.reads))]
        reads = [values[i] for i in kernel.reads]
        input_shapes = kernel.input_shapes(values)
        shapes, layout, _ = kernel.layout([*reads, *targets], input_shapes)
        if layout is None:
            raise _Unrecorded
        outputs, places = list[Any](), list[_Place]()
        for i, shape, target in zip(kernel.writes, shapes, targets, strict=True):
            made, place = self._made(shape, kernel.dtypes[i]) if target is None else (target, self._target(step, i))
            outputs.append(made)
            places.append(place)
        try:
            found = kernel.runner_of([*reads, *outputs], input_shapes)
        except CompilerError as error:
            kernel.fail(error)
            raise _Unrecorded from None
        if found is not None:  # else there are no elements
            runner, pointers, layout = found
            numbers = [as_int64(values[i], dtype) for i, dtype in kernel.numbers]
            threads, (*offsets, stride) = runner.threads(layout), runner.scratch(layout)
            memory, at = self._made((runner.scratch_bytes(stride, threads),), np.dtype(np.uint8))
            scratch = [*(address(memory) + offset for offset in offsets), stride]
            words = runner.words(pointers, numbers, layout, threads, scratch)
            count = len(pointers)
            moving += [*enumerate(places, count - len(places))]
            moving += [(i, at) for i in range(len(words) - 4 - len(offsets), len(words) - 4)]
            self.held.append(runner)
            self._command(words[0], words[1:], moving)
        for i, output, place, x in zip(kernel.writes, outputs, places, given, strict=True):
            if x is not None and x is not output:
                target = self._target(step, i)
                self._copy(x, target, output, place)
                output, place = x, target
            values[i], self._places[i] = output, place
        for i, _, assignment in step.assigned:
            values[assignment], self._places[assignment] = values[i], self._places[i]

    def _target(self, step: KernelStep, value: int) -> _Place:
        """The place of the target that a value is stored in."""
        return self._places[step.target_of[value]]

    def _place_of(self, register: int) -> _Place:
        """The place of a register's array; a number becomes an array."""
        if register not in self._places:
            self._values[register], self._places[register] = self._constant(self._values[register])
        return self._places[register]

    def _constant(self, value: Any) -> tuple[np.ndarray, _Place]:
        """An array that is the same in all steps, and its place."""
        array = np.asarray(value)
        self.held.append(array)
        return array, _Place(None, address(array))

    def _made(self, shape: Sequence[int], dtype: np.dtype) -> tuple[np.ndarray, _Place]:
        """A new array, in memory of all steps, and its place."""
        made = HOST.empty(tuple(shape), dtype)
        self.sizes.append(made.nbytes + -made.nbytes % LINE)
        return made, _Place(self._count + len(self.sizes) - 1, address(made))

    def _add_call(self, step: CallStep) -> None:
        op, values, call, type = step.op, self._values, step.step(), self._instructions[step.index].type
        operands = call.take(values) if call.take is not None else ()
        if isinstance(op, Assign):
            value, place = operands[0], self._place_of(step.inputs[0])
            self._copy(value, place, *self._source(operands, step, operands[1]))
        elif call.out is None and step.is_fixed:
            value, place = self._constant(call.call(*operands))
        elif call.out is None and op.view_map == {0: [0]} and op.is_captured and not op.destroy_map:
            value, place = call.call(*operands), self._place_of(step.inputs[0])
            if not overlap(value, values[step.inputs[0]]):
                raise _Unrecorded
        elif op.copies is not None and (call.out is not None or step.target is None) and isinstance(type, TensorType):
            if call.out is None:
                value, place = self._made(op.output_shape(*map(np.shape, operands)), type.dtype)
            else:
                value, place = values[call.out], self._place_of(call.out)
            for target, source in op.copies(value, *operands):
                self._copy(target, place, *self._source(operands, step, source))
        else:
            raise _Unrecorded
        values[step.output], self._places[step.output] = value, place

    def _source(self, operands: Sequence[Any], step: CallStep, source: Any) -> tuple[np.ndarray, _Place]:
        """The source of a copy, an operand or a number, and its place."""
        register = next((i for i, x in zip(step.inputs, operands, strict=True) if x is source), None)
        if register is None:
            return self._constant(source)
        place = self._place_of(register)
        return self._values[register], place

    def _copy(self, target: np.ndarray, to: _Place, source: np.ndarray, place: _Place) -> None:
        """Record a copy of an array to another, to which it is broadcast."""
        if place.array is None and not source.ndim:
            source, place = self._constant(source.astype(target.dtype))
        if source.dtype != target.dtype or target.itemsize not in ITEMS:
            raise _Unrecorded
        source = np.broadcast_to(source, target.shape)
        if overlap(source, target):
            if address(source) != address(target) or source.strides != target.strides:
                raise _Unrecorded
        elif target.size:
            sizes, steps = collapsed_axes(target.shape, [[*target.strides], [*source.strides]])
            words = [address(target), address(source), target.itemsize, len(sizes), *sizes, *steps[0], *steps[1]]
            self._command(self._copy_address, words, [(0, to), (1, place)])

    def _command(self, function: int, words: list[int], places: Sequence[tuple[int, _Place]]) -> None:
        """Record a call, of arguments with addresses in some places."""
        moving = [(i, place.array, words[i] - place.begin) for i, place in places if place.array is not None]
        self.commands += [function, len(words), *words, len(moving), *(x for each in moving for x in each)]
