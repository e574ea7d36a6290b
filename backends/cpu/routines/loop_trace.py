"""The calls of a loop's step, recorded on arrays with all rows: for `backends.cpu.routines.loops`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backends.cpu.routines.products import TYPES, is_in_elements
from backends.cpu.routines.small_matrices import MATRICES, SIDE, SIDE_OF_COFACTORS
from backends.cpu.row_axes import Mixed, RowAxes
from backends.execution.executor import CallStep, KernelStep, Step
from backends.execution.memory import HOST
from backends.execution.specialize import FusedKernel
from optree.arrays import overlap
from optree.compile.aliasing import byte_bounds
from optree.compile.program import Program
from optree.networks.columns import Windows
from optree.networks.recurrent import Parts
from optree.op.index_map import is_view
from optree.op.traits import CopyOperator
from optree.ops.assignment import Assign, Joined
from optree.ops.contraction import Dot, MatMul
from optree.ops.joining import Concatenate
from optree.ops.linalg import Cofactors, LogDeterminant
from optree.ops.loop_steps import Argument
from optree.ops.loops import Scan
from optree.ops.structure import Output
from optree.records import NamedTuple
from optree.tree.printing import instruction_text
from optree.tree.types import TensorType

#: The minimum number of rows in a part.
ROWS = 8

#: The item sizes that the C copy supports.
ITEMS = (1, 2, 4, 8)

#: The types of a step's numbers.
NUMBER = (bool, int, float, complex)


class NotCompiled(Exception):
    """Raised if a loop body has a step that cannot be compiled."""


class Memory(NamedTuple):
    """A base array of views: an argument, a constant, or scratch memory of one part."""

    #: The array of the first step, with all rows.
    array: np.ndarray
    #: The value that covers the whole array.
    owner: int
    #: Its number, for an argument.
    argument: int | None = None
    #: Whether the array is constant over all steps of all calls.
    is_fixed: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the array is scratch memory of a part."""
        return self.argument is None and not self.is_fixed


class Nested(NamedTuple):
    """A loop in a step."""

    #: A `LoopInC`.
    steps: Any
    arguments: list[Argument]
    #: From the identity of each array of these, as traced, to the value that it is.
    values: dict[int, int]
    length: int
    #: The number of the argument that tells whether a step runs.
    flag: int | None
    states: int
    #: The number of the first state after a step, among the arguments.
    written: int
    #: The states before the first step, of those that are an output before each step.
    begun: list[Any]

    @classmethod
    def of(cls, steps: Any, op: Scan, arrays: Sequence[Any], made: Sequence[Any], values: dict[int, int]) -> Nested:
        """A loop, of its operands and outputs; states are in C order."""
        length, states = op.length_of(arrays), len(op.body.states)
        arguments = op.laid_out(arrays, made, op.order(length))
        begun = [None if before is None else x for x, before in zip(arrays, op.befores(made), strict=False)]
        return cls(steps, arguments, values, length, op.flag, states, len(op.body.arguments), begun)

    @property
    def carried(self) -> list[Argument]:
        """The states before a step, and after it."""
        return [*self.arguments[: self.states], *self.arguments[self.written :][: self.states]]


class Call(NamedTuple):
    """One call: its kind, a method of `CompiledLoop`, its kernel, C function or loop, and the values it accesses."""

    kind: str
    kernel: FusedKernel | None
    reads: Sequence[int]
    writes: Sequence[int]
    function: str = ""
    loop: Nested | None = None

    @property
    def values(self) -> list[int]:
        """The values that are read, then the values that are written."""
        return [*self.reads, *self.writes]


class Trace:
    """The recorded calls of one step, on arrays with all rows.

    `steps`: the steps of the program.
    `arguments`, `values`: the leaves, arguments and numbers, and their values in the first step.

    Raises NotCompiled if a call of the step cannot be compiled.
    """

    def __init__(
        self, program: Program, steps: Sequence[Step], arguments: Sequence[Any], values: Sequence[Any]
    ) -> None:
        self.arguments, self._instructions = arguments, program.instructions
        #: The values, then the parts of joined values.
        self.registers: list[Any] = list(values)
        self.memories = [Memory(x, i, argument=i) for i, x in enumerate(self.registers) if isinstance(x, np.ndarray)]
        #: From each value to the index in `memories` of its base array.
        self.memory = {memory.owner: n for n, memory in enumerate(self.memories)}
        self.leaves, self.calls = len(values), list[Call]()
        self.registers += [None] * len(program.instructions)
        #: The constraints between the row axes of the values.
        self.axes = RowAxes(self.registers)
        #: The values of a loop's outputs, by that of the loop.
        self._outputs: dict[int, dict[int, int]] = {}
        self._joins = {i: step for step in steps if isinstance(step, CallStep) for i in _joined(step)}
        for step in steps:
            try:
                if isinstance(step, KernelStep):
                    self._add_kernel(step)
                elif isinstance(step, CallStep):
                    self._add_call(step)
            except NotCompiled as error:
                raise NotCompiled(f"{instruction_text(program, step.index)}: {error}") from error

    def rows(self) -> list[int | None] | None:
        """The row axis of each value; None if the rows cannot be divided into independent parts."""
        states = [i for i, x in enumerate(self.arguments) if isinstance(x, Argument) and x.is_state]
        shapes = [self.registers[i].shape for i in states]
        if any(call.loop for call in self.calls):
            return None
        if not states or any(not shape or shape[0] != shapes[0][0] for shape in shapes) or shapes[0][0] < 2 * ROWS:
            return None
        try:
            axes = self.axes.solved(states)
        except Mixed:
            return None
        written = {i: self.memories[self.memory[i]] for call in self.calls for i in call.writes}
        is_shared = any(axes[i] is None and memory.argument is not None for i, memory in written.items())
        is_across = any(axes[memory.owner] for memory in self.memories if memory.is_own)
        return None if is_shared or is_across else axes

    def offset(self, value: int) -> int:
        """The byte offset of a value in its base array."""
        return HOST.address(self.registers[value]) - HOST.address(self.memories[self.memory[value]].array)

    def _new(self, value: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Allocate a new base array for a value."""
        self.memory[value] = len(self.memories)
        self.registers[value] = np.empty(shape, dtype)
        self.memories.append(Memory(self.registers[value], value))

    def _constant(self, value: int, x: object) -> None:
        """Set a value to an array or a number that is constant over all steps of all calls."""
        if not isinstance(x, np.ndarray | np.generic | bool | int | float):
            raise NotCompiled("a value is no array")
        self.memory[value] = len(self.memories)
        self.registers[value] = np.asarray(x)
        self.memories.append(Memory(self.registers[value], value, is_fixed=True))

    def _array(self, value: int) -> np.ndarray:
        """The array of a value; a number becomes a constant array."""
        if not isinstance(self.registers[value], np.ndarray):
            self._constant(value, self.registers[value])
        return self.registers[value]

    def _added(self) -> int:
        """The index of a new, empty register."""
        self.registers.append(None)
        return len(self.registers) - 1

    def _share(self, value: int, other: int) -> None:
        """Make a value an alias of another value."""
        self.registers[value], self.memory[value] = self.registers[other], self.memory[other]
        self.axes.add(self.axes.equal, value, other)

    def _is_part(self, x: object, value: int) -> bool:
        """Whether an array has its elements, if any, in the memory of a value."""
        if value not in self.memory or not isinstance(x, np.ndarray):
            return False
        low, high = byte_bounds(self.memories[self.memory[value]].array)
        return not x.size or low <= HOST.address(x) < high

    def _view(self, value: int, of: int, view: object) -> None:
        if not self._is_part(view, of):
            raise NotCompiled("a view is of another array")
        self.registers[value], self.memory[value] = view, self.memory[of]
        self.axes.add(self.axes.view, value, of)

    def _add_kernel(self, step: KernelStep) -> None:
        kernel = step.kernel
        reads = [self._array(i) for i in kernel.reads]
        given = step.given(self.registers)
        found = kernel.specialize([*reads, *given], kernel.input_shapes(self.registers))
        if found is None or kernel.overlaps(reads, given):
            raise NotCompiled("it has no elements, is unaligned or overwrites what it reads")
        targets = [step.target_of.get(i) for i in kernel.writes]
        known = dict(zip(kernel.writes, found.shapes, strict=True))
        for i, target in zip(kernel.writes, targets, strict=True):
            if target is not None:
                self._share(i, target)
            elif not self._is_placed(i, known, kernel.dtypes[i]):
                self._new(i, known[i], kernel.dtypes[i])
        for value, _, assignment in step.assigned:
            self._share(assignment, value)
        self.axes.add(self.axes.kernel, kernel)
        self.calls.append(Call("kernel", kernel, kernel.reads, kernel.writes))

    def _is_placed(self, value: int, known: dict[int, tuple[int, ...]], dtype: np.dtype) -> bool:
        """Make a value a view of its part of the array that it is joined into; whether that is possible."""
        join = self._joins.get(value)
        if join is None or join.out is None or self.registers[join.out].dtype != dtype:
            return False
        shapes = [known.get(i) or np.shape(self.registers[i]) for i in join.inputs]
        before = shapes[: join.inputs.index(value)]
        if not all(before):  # a shape is not known yet: a later step computes it
            return False
        begin = sum(shape[join.op.axis] for shape in before)
        self._view(value, join.out, _part(self.registers[join.out], join.op.axis, begin, known[value]))
        return True

    def _add_call(self, step: CallStep) -> None:
        kind, inputs = type(step.op), step.inputs
        if kind is Assign:
            if not self._is_moved(inputs[1], inputs[0]):
                self._copy(inputs[1], inputs[0])
            self._share(step.output, inputs[0])
        elif step.out is None and self._is_constant(step.op, inputs):
            self._constant(step.output, _called(step, self.registers))
        elif isinstance(step.op, Scan):
            self._add_loop(step)
        elif kind is Output and inputs[0] in self._outputs:
            self._share(step.output, self._outputs[inputs[0]][step.op.index])
        elif kind is Output:
            self._view(step.output, inputs[0], self.registers[inputs[0]][step.op.index])
        elif isinstance(step.op, Windows) and step.op.room(shape := self._array(inputs[0]).shape)[0] != [*shape]:
            self._add_windows(step)
        elif is_view(step.op) or kind in (Parts, Joined):
            self._add_view(step)
        elif kind in (Dot, MatMul):
            self._add_product(step)
        elif kind in MATRICES:
            self._add_matrices(step)
        elif isinstance(step.op, CopyOperator) and (step.out is not None or step.target is None):
            self._add_copies(step)
        else:
            raise NotCompiled("it has no compiled form")

    def _is_constant(self, op: Any, inputs: Sequence[int]) -> bool:
        """Whether a value is of sizes alone, which are the layout's, or of numbers, which are the step's."""
        of_sizes = len(op.index_map.shape_only) == len(inputs) > 0
        return of_sizes or all(isinstance(self.registers[i], NUMBER) for i in inputs)

    def _add_view(self, step: CallStep) -> None:
        found, of = _called(step, self.registers), step.inputs[0]
        if isinstance(found, tuple):
            self.registers[step.output], self.memory[step.output] = found, self.memory[of]
            self.axes.are_views(step.output, of)
        elif not step.op.index_map.keeps_order or self._is_part(found, of):
            self._view(step.output, of, found)
        else:  # no strides allow the shape, or it is a number's
            made = self._added()
            self._new(made, self._array(of).shape, found.dtype)
            self._copy(of, made)
            self._view(step.output, made, self.registers[made].reshape(found.shape))

    def _add_windows(self, step: CallStep) -> None:
        """Record windows as a view of a padded copy."""
        op: Any = step.op
        (of,), made, part, outside = step.inputs, self._added(), self._added(), self._added()
        x, (room, inside) = self._array(of), op.room(self._array(of).shape)
        self._new(made, tuple(room), x.dtype)
        self._constant(outside, np.array(op.outside, x.dtype))
        self._copy(outside, made)
        self._view(part, made, self.registers[made][inside])
        self._copy(of, part)
        self._view(step.output, made, op.of_padded(self.registers[made], x.shape))

    def _written(self, step: CallStep, shape: tuple[int, ...], dtype: np.dtype) -> int:
        """The value that a call writes, with its memory set."""
        if step.out is None:
            self._new(step.output, shape, dtype)
        else:
            self._share(step.output, step.out)
        return step.output

    def _add_product(self, step: CallStep) -> None:
        left, right = step.inputs
        x, y = self.registers[left], self.registers[right]
        if not all(isinstance(z, np.ndarray) and z.ndim > 1 and z.size and is_in_elements(z) for z in (x, y)):
            raise NotCompiled("an operand is no matrix of whole elements")
        if x.dtype != y.dtype or x.dtype not in TYPES:
            raise NotCompiled("its matrices are of another dtype")
        out = self._written(step, step.op.output_shape(x.shape, y.shape), x.dtype)
        target = self.registers[out]
        if target.dtype != x.dtype or not is_in_elements(target):
            raise NotCompiled("its value is of another dtype or layout")
        if target.ndim > 2:
            self.axes.add(self.axes.stacked, dict.fromkeys((left, right, out), 2))
        else:
            self.axes.add(self.axes.product, left, right, out)
        self.calls.append(Call("product", None, [left, right], [out]))

    def _add_loop(self, step: CallStep) -> None:
        """Record a loop: its states between steps and its outputs are in the step's memory."""
        inputs, outputs = step.inputs, dict[int, int]()
        runs: Any = step.implementation.call
        op, arrays = runs.op, [self._array(i) for i in step.inputs]
        states = len(op.body.states)
        if not op.length_of(arrays) or not all(x.size for x in arrays) or not hasattr(runs.within.loop, "nested"):
            raise NotCompiled("it has no steps or no elements")

        def empty(number: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
            outputs[number] = self._added()
            self._new(outputs[number], shape, dtype)
            found: np.ndarray = self.registers[outputs[number]]
            return found

        made, begun = op.outputs(arrays, runs.wanted, empty), list(inputs)
        for i, (x, y) in enumerate(zip(arrays[:states], made, strict=False)):
            if x.strides != y.strides:
                begun[i] = self._added()
                self._new(begun[i], x.shape, x.dtype)
                self._copy(inputs[i], begun[i])
        for number, value in outputs.items() if op.flag is not None else ():
            if number >= states:  # of steps that do not run
                zero = self._added()
                self._constant(zero, np.zeros((), self.registers[value].dtype))
                self._copy(zero, value)
        values = {id(self.registers[i]): i for i in (*begun, *outputs.values())}
        nested = Nested.of(runs.within.loop, op, [self.registers[i] for i in begun], made, values)
        for x in (each.array for each in nested.carried if id(each.array) not in values):
            value = values[id(x)] = self._added()
            self.memory[value], self.registers[value] = len(self.memories), x
            self.memories.append(Memory(x, value))
        self._outputs[step.output] = outputs
        if runs.is_single:
            self._share(step.output, next(iter(outputs.values())))
        self.calls.append(Call("loop", None, [*values.values()], list(outputs.values()), loop=nested))

    def _add_matrices(self, step: CallStep) -> None:
        """Record linear algebra of small matrices; the factors of a stack are its entries in one array."""
        arrays, kind = [self._array(i) for i in step.inputs], type(step.op)
        x, *_ = arrays
        most = SIDE_OF_COFACTORS if kind is Cofactors else SIDE
        if x.dtype not in TYPES or any(y.dtype != x.dtype or not y.size or not is_in_elements(y) for y in arrays):
            raise NotCompiled("it is for float32 and float64 of whole elements")
        if x.shape[-1] > most:
            raise NotCompiled("its matrices are too large")
        stack = x.shape[:-2]
        if kind is LogDeterminant:
            out = self._added()
            self._new(out, (2, *stack), x.dtype)
            pair = self.registers[out]
            self.registers[step.output], self.memory[step.output] = (pair[0, ...], pair[1, ...]), self.memory[out]
            self.axes.are_views(step.output, out)
        else:
            out = self._written(step, step.op.output_shape(*(y.shape for y in arrays)), x.dtype)
        if self.registers[out].dtype != x.dtype or not is_in_elements(self.registers[out]):
            raise NotCompiled("its value is of another dtype or layout")
        ranks = {i: min(y.ndim, 2) for i, y in zip(step.inputs, arrays, strict=True)}
        entries = max(y.ndim - ranks[i] for i, y in zip(step.inputs, arrays, strict=True))
        self.axes.add(
            self.axes.stacked, {**ranks, out: 0 if kind is LogDeterminant else self.registers[out].ndim - entries}
        )
        self.calls.append(Call("matrices", None, list(step.inputs), [out], MATRICES[kind]))

    def _add_copies(self, step: CallStep) -> None:
        type = self._instructions[step.index].type
        if not isinstance(type, TensorType):
            raise NotCompiled("it gives no tensor")
        arrays = step.runnable().take(self.registers)  # type: ignore[misc]
        out = self._written(step, step.op.output_shape(*map(np.shape, arrays)), type.dtype)
        for target, source in step.op.copies(self.registers[out], *arrays):
            if not target.size:
                continue
            value = next((i for i, x in zip(step.inputs, arrays, strict=True) if x is source), None)
            if value is None:
                value = self._added()
                self._constant(value, source)
            part = self._added()
            self._view(part, out, target)
            self._copy(value, part)

    def _is_moved(self, value: int, target: int) -> bool:
        """Make a value of equal layout compute in the target that it is assigned to; whether that is possible."""
        x, y = self._array(value), self._array(target)
        n, to = self.memory[value], self.memory[target]
        is_alone = self.memories[n].is_own and [*self.memory.values()].count(n) == 1
        if not is_alone or (x.shape, x.strides, x.dtype) != (y.shape, y.strides, y.dtype):
            return False
        first = next((i for i, call in enumerate(self.calls) if value in call.writes), len(self.calls))
        if any(self.memory[i] == to for call in self.calls[first:] for i in call.values):
            return False
        self.registers[value], self.memories[n] = y, self.memories[to]
        self.axes.add(self.axes.equal, value, target)
        return True

    def _copy(self, value: int, target: int) -> None:
        """Record a broadcast copy of a value to a target, unless both are the same view."""
        x, y = self._array(value), self._array(target)
        if x.dtype != y.dtype and not x.ndim and self.memories[self.memory[value]].is_fixed:
            value = self._added()
            self._constant(value, x.astype(y.dtype))
            x = self.registers[value]
        if x.dtype != y.dtype or x.itemsize not in ITEMS:
            raise NotCompiled("its dtypes differ or have items of another size")
        self.axes.add(self.axes.broadcast, value, target)
        if HOST.address(x) == HOST.address(y) and x.shape == y.shape and x.strides == y.strides:
            return
        if overlap(x, y):
            raise NotCompiled("it copies between overlapping arrays")
        self.calls.append(Call("copy", None, [value], [target]))


def _called(step: CallStep, registers: list[Any]) -> Any:
    """Run a call without a target and return its value."""
    runs = step.runnable()
    return runs.call(*runs.take(registers))  # type: ignore[misc]


def _joined(step: CallStep) -> Sequence[int]:
    """The operands of a concatenation that occur in it once."""
    return [i for i in step.inputs if step.inputs.count(i) == 1] if isinstance(step.op, Concatenate) else ()


def _part(x: np.ndarray, axis: int, begin: int, shape: tuple[int, ...]) -> np.ndarray:
    """The slice of an array along an axis from `begin`, of the size that `shape` has there."""
    return x[(*(slice(None),) * axis, slice(begin, begin + shape[axis]))]
