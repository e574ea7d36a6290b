"""The CPU backend: NumPy memory, and assignments run by NumPy's own loops."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import itemgetter
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from backends import lazy
from backends.backend import Backend, Observer, Plan
from backends.cpu.compiler import compile_counts, compile_source, find_compiler, requested_compiler, when_crowded
from backends.cpu.entry import SOURCE as ENTER
from backends.cpu.mkl import described, matrix_product
from backends.cpu.plan import ALWAYS, BLOCKS, KernelPlan, WhileItCompiles, where_it_pays
from backends.execution.errstate import quietly
from backends.execution.memory import empty_array
from optree.arrays import check_unmasked
from optree.compile.passes import decompose
from optree.compile.program import Instruction, Program
from optree.compile.reference import checked, is_widened, performer
from optree.errors import BackendError, OperandError, brief, describe
from optree.ops.assignment import Assign
from optree.ops.scattering import Scatter
from optree.ops.traits import ElementwiseOperator
from optree.tree.node import OpTreeNode
from optree.tree.tensor import Tensor
from optree.tree.types import TensorType
from optree.tree.variable import Input


class CPUBackend(Backend):
    """Tensors in NumPy arrays."""

    name = "cpu"
    internal = Backend.internal | {"product", "when"}

    def __init__(self, *args: Any, jit: str | bool = "auto") -> None:
        super().__init__(*args)
        if jit not in ("auto", True, False):
            raise BackendError(f"jit is 'auto', True or False, not {brief(jit)}")
        self.jit = jit
        self.compiler = find_compiler() if jit else None
        if jit is True and self.compiler is None:
            raise BackendError("jit=True needs a C compiler: install gcc or clang, or name one in CC")
        self.product = matrix_product()
        if self.compiler is not None and (jit is True or requested_compiler()):
            # One that is asked for and does not work says so at once, not in the middle of a training. All kernels
            # need what it makes here, and the cache folder has it but for the first time.
            compile_source(ENTER, "builtin", compiler=self.compiler)
        if self.compiler is not None:
            when_crowded(self.forget_plans)
        self._optional = WhileItCompiles()
        self.when = BLOCKS if self.compiler is None else ALWAYS if jit is True else where_it_pays(self._optional)
        if "logging" in sys.modules:  # nobody listens else
            _say_once(self.info())

    def info(self) -> str:
        """What runs assignments here, and what would make them quicker."""
        if self.compiler is None:
            why = "there is no C compiler" if self.jit else "jit=False asks for no compiler"
            faster = "install gcc or clang" if self.jit else "leave jit=False out, with gcc or clang installed"
            runs = f"NumPy, large work in blocks on several threads, for {why}; to run kernels compiled to C, {faster}"
        else:
            when = "always" if self.jit is True else "where they pay"
            if self._optional.failure is not None:
                when = "before it failed, and are not any more"
            runs = f"fused kernels compiled by {self.compiler}, {when}, and NumPy"
        return f"{runs}; {described(self.product)}"

    def compiling(self) -> CPUBackend | None:
        if self.compiler is None or self.jit is True:
            return None
        return CPUBackend(None, self.datatype, self.batch_size, self.stochastic_round, 0, self.compat_mode, jit=True)

    def stats(self) -> dict[str, Any]:
        """Counts since the backend was made, and as ``kernels`` those of the process's compiled kernels."""
        return {**super().stats(), "kernels": compile_counts()}

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return empty_array(shape, dtype)

    def from_host(self, array: np.ndarray) -> np.ndarray:
        found = empty_array(array.shape, array.dtype)
        found[...] = array
        return found

    def owned(self, value: Any, dtype: np.dtype | None = None) -> np.ndarray:
        return np.asarray(value, dtype, order="C")

    def borrowed(self, array: np.ndarray) -> np.ndarray:
        return array

    def to_host(self, array: np.ndarray, blocking: bool = True) -> np.ndarray:
        return array.copy(order="C")

    def adopt(self, array: Any, name: str | None = None) -> Tensor:
        """A tensor over a NumPy array, not a copy; over a memory map, as long as it may be written to."""
        check_unmasked(array, "adopt")
        if not isinstance(array, np.ndarray):
            raise OperandError(
                f"adopt: a NumPy array is wanted, not {describe(array)}; be.array(...) copies its values"
            )
        return super().adopt(array if type(array) is np.ndarray else array.view(np.ndarray), name)

    def check_adopted(self, array: np.ndarray) -> None:
        super().check_adopted(array)
        for is_fault, fault in (
            (not array.flags.writeable, "read-only, and tensors are written to"),
            (not array.flags.aligned, "unaligned, and kernels take its elements as aligned"),
        ):
            if is_fault:
                raise OperandError(
                    f"adopt: the memory of the array of shape {array.shape} is {fault}; be.array copies it"
                )

    def from_dlpack(self, source: Any, name: str | None = None) -> Tensor:
        check_unmasked(source, "from_dlpack")
        try:
            array = np.from_dlpack(source)
        except (AttributeError, BufferError, TypeError, RuntimeError, ValueError) as error:
            raise OperandError(
                f"from_dlpack: an array in the CPU's memory that speaks DLPack is wanted, not {describe(source)} "
                f"({error}); be.array copies lists and NumPy arrays"
            ) from error
        if not array.flags.writeable:
            raise OperandError(f"from_dlpack: the memory of {describe(source)} is read-only; be.array(...) copies it")
        return self.adopt(array, name)

    def _simple(self, program: Program) -> Program:
        """The program as kernels take it; NumPy draws numbers quicker by whole blocks than place by place."""
        return decompose(program, draws=self.compiler is not None)

    def compile(self, program: Program, keep: bool = False, observe: Observer | None = None) -> Plan:
        calls = partial(_call_of, product=self.product, keep=keep)
        steps = _steps(program, partial(calls, program))
        if observe is not None:
            steps = [step._replace(call=_observed(step, observe)) for step in steps]
        outputs, instructions = program.outputs, program.instructions
        open_registers = [None] * len(instructions)

        def run(values: list[Any], roots: Sequence[Any] | None) -> list[Any]:
            registers = [*values, *open_registers]
            step = None
            try:
                for step in steps:
                    call, take, output, buffer, dead, *_ = step
                    if buffer is None:
                        registers[output] = call(*take(registers))
                    else:
                        registers[output] = call(*take(registers), out=registers[buffer])
                    for i in dead:
                        registers[i] = None
            except Exception as error:
                if step is not None:
                    _note(error, step.place, instructions if roots is None else self.program(roots).instructions)
                raise
            return [registers[i] for i in outputs]

        if observe is not None:
            return partial(quietly, run)
        simple = self._simple(program)
        constants = [self.value_of(leaf) for leaf in simple.leaves[len(program.leaves) :]]
        outline = simple.outline()

        def note(error: Exception, place: int, roots: Sequence[Any] | None) -> None:
            _note(error, place, (outline if roots is None else self._simple(self.program(roots))).instructions)

        arguments = [i for i, leaf in enumerate(program.leaves) if isinstance(leaf, Input)] if keep else None
        return KernelPlan(
            outline, constants, partial(quietly, run), partial(calls, outline), note, self.when, arguments
        )


@cache
def _say_once(info: str) -> None:
    """Log what runs assignments, once in a process."""
    lazy.logging.getLogger(__name__).info("assignments run by %s", info)


def _note(error: Exception, place: int, ran: Sequence[Instruction]) -> None:
    """Say what failed, by the node of the trees that ran, not of those that were compiled."""
    error.add_note(f"while running {describe(ran[place].node)}")


class Step(NamedTuple):
    """One call of a plan, on numbered registers.

    Attributes
    ----------
    call : callable
    take : callable
        Takes the call's arguments from the registers.
    output : int
    buffer : int or None
        The register whose memory the value is written into.
    dead : tuple of int
        Registers that nothing needs after this step.
    place : int
        Of the instruction that it computes.
    node : OpTreeNode
        The instruction's.
    """

    call: Callable[..., Any]
    take: Callable[[list[Any]], Sequence[Any]]
    output: int
    buffer: int | None
    dead: tuple[int, ...]
    place: int
    node: OpTreeNode


def _steps(program: Program, call_of: Callable[[int], Callable[..., Any]]) -> list[Step]:
    """A program's steps: elementwise values go into memory that is done with, what is assigned into its target."""
    first, last = len(program.leaves), program.last_uses()
    steps: list[Step] = []
    for place, instruction in enumerate(program.instructions):
        dead = tuple(i for i in dict.fromkeys(instruction.inputs) if last[i] == place and i >= first)
        sole = place > 0 and last[first + place - 1] == place  # nothing else needs the value just computed
        if sole and _writes_target(steps, instruction, first + place - 1):
            producer = steps.pop()
            steps.append(producer._replace(buffer=instruction.inputs[0], output=first + place))
            continue
        if sole and _writes_part(program, place):
            steps[-1] = steps[-1]._replace(call=steps[-1].node.op.write, output=first + place)
            continue
        buffer = next((i for i in dead if _is_reusable(program, i - first, instruction)), None)
        call, take = call_of(place), _taker(instruction.inputs)
        steps.append(Step(call, take, first + place, buffer, dead, place, instruction.node))
    return steps


def _observed(step: Step, observe: Observer) -> Callable[..., Any]:
    """A step's call that reports what it took."""
    call, place = step.call, step.place

    def observed(*values: Any, **out: Any) -> Any:
        start = perf_counter()
        value = call(*values, **out)
        observe(place, perf_counter() - start, values, value)
        return value

    return observed


def _taker(numbers: tuple[int, ...]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function that takes these registers from a list, as a tuple."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return itemgetter(slice(numbers[0], numbers[0] + 1)) if numbers else itemgetter(slice(0, 0))


def _call_of(program: Program, place: int, product: Callable[..., Any], keep: bool) -> Callable[..., Any]:
    """The function of arrays that computes an instruction."""
    instruction = program.instructions[place]
    op = instruction.op
    if op.defines("perform") or op.defines("make_thunk") or not isinstance(instruction.type, TensorType):
        return performer(instruction, program.given_away(place) if keep else None)
    if not _is_ufunc(instruction.node):
        return checked(instruction)
    return product if op.numpy is np.matmul else op.numpy


def _is_ufunc(node: Any) -> bool:
    """Whether the value of a node is that of a ufunc, called as it is."""
    op = node.op
    plain = isinstance(op.numpy, np.ufunc) and not op.defines("value") and not op.props
    return plain and not is_widened(node)


def _is_reusable(program: Program, producer: int, instruction: Instruction) -> bool:
    """Whether an elementwise ufunc may write over an operand that it is the last to need.

    A ufunc made that operand, too: only of a ufunc's value is it certain that nobody else holds its memory.
    """
    op = instruction.op
    if producer < 0 or not isinstance(op, ElementwiseOperator) or not _is_ufunc(instruction.node):
        return False
    made = program.instructions[producer]
    return _is_ufunc(made.node) and made.type is instruction.type and bool(made.type.shape)


def _writes_target(steps: list[Step], assign: Instruction, before: int) -> bool:
    """Whether the value that an assignment copies can be computed in its target at once.

    Only ufuncs that cannot fail half-way: an integer power can.
    """
    if not isinstance(assign.op, Assign) or not steps:
        return False
    producer = steps[-1]
    return (
        producer.output == before == assign.inputs[1]
        and _is_ufunc(producer.node)
        and producer.node.op.writes_strided
        and producer.node.type is assign.type
        and assign.type.dtype.kind in "fb"
    )


def _writes_part(program: Program, place: int) -> bool:
    """Whether an instruction assigns to a tensor what scatter makes of it: ``target[indices] = value``."""
    assign, producer = program.instructions[place], program.instructions[place - 1]
    return (
        isinstance(assign.op, Assign)
        and isinstance(producer.op, Scatter)
        and assign.inputs == (producer.inputs[0], len(program.leaves) + place - 1)
    )
