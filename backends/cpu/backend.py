"""The CPU backend: tensors in NumPy arrays, and plans of C kernels and NumPy calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from ctypes import c_int64
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from backends import lazy
from backends.backend import Backend, Within
from backends.cpu.calls import implementation
from backends.cpu.compiler import compile_counts, compile_source, find_compiler, requested_compiler, when_crowded
from backends.cpu.plan import ALWAYS, BLOCKS, WORK, C, KernelPlan, When, WhileItCompiles
from backends.cpu.routines.products import Products
from backends.cpu.runtime import SOURCE as ENTER
from backends.cpu.runtime import share_address
from backends.execution.executor import quietly, runnable, steps_of, steps_text
from backends.execution.memory import empty_array
from backends.execution.memory_planner import planned_steps
from backends.execution.routines import ImplementationOf
from optree.arrays import GIVEN, check_unmasked
from optree.compile.aliasing import last_uses
from optree.compile.fusion import LONGEST
from optree.compile.pipeline import Options
from optree.compile.program import Program
from optree.compile.steps import Observer, Plan, Steps, outputs_of, run_steps
from optree.dtypes import is_bfloat16
from optree.errors import BackendError, CompilerError, OperandError, brief, caller_origin, describe
from optree.tree.lazy import lazy_values, settle
from optree.tree.tensor import Tensor
from optree.tree.variable import Input

if TYPE_CHECKING:
    from optree.run.function import Function


class CPUBackend(Backend):
    """Tensors in NumPy arrays."""

    name = "cpu"
    internal = Backend.internal | {"product", "when", "c_functions", "windows_by", "has_compiler", "compiles_at_once"}

    def __init__(self, *args: Any, jit: str | bool = "auto") -> None:
        super().__init__(*args)
        if jit not in ("auto", "always", True, False):
            raise BackendError(f"jit is 'auto', 'always', True or False, not {brief(jit)}")
        self.jit, self.compiles_at_once = jit, jit in (True, "always")
        self.compiler = find_compiler() if jit else None
        if jit is True and self.compiler is None:
            raise BackendError("jit=True needs a C compiler: install gcc or clang, or name one in CC")
        self.product = Products(self)
        if self.compiler is not None and (jit is True or requested_compiler()):
            # A requested compiler that does not work is an error now, not in the middle of a training. All kernels
            # need this library, which is cached on disk.
            compile_source(ENTER, "builtin", compiler=self.compiler)
        if self.compiler is not None:
            when_crowded(self.forget_plans)
        self._optional = WhileItCompiles()
        self._functions: dict[tuple[str, Sequence[str]], dict[str, Any]] = {}
        optional = When(self._optional, C, 0, 0 if jit == "always" else WORK)
        self.when = BLOCKS if self.compiler is None else ALWAYS if jit is True else optional
        if "logging" in sys.modules:  # else there is no handler
            _log_once(self.info())

    def info(self) -> str:
        """The executor of assignments, and how to get a faster one."""
        if self.compiler is None:
            why = "there is no C compiler" if self.jit else "jit=False asks for no compiler"
            faster = "install gcc or clang" if self.jit else "leave jit=False out, with gcc or clang installed"
            runs = f"NumPy, large work in blocks on several threads, for {why}; to run kernels compiled to C, {faster}"
        else:
            when = "where they pay" if self.jit == "auto" else "always"
            if self._optional.failure is not None:
                when = "before it failed, and are not any more"
            runs = f"fused kernels compiled by {self.compiler}, {when}, and NumPy"
        return f"{runs}; {self.product.info()}; convolutions and attention by {self.windows_by()}"

    def windows_by(self) -> str:
        """The implementation of convolutions and attention, for printouts."""
        if not self.has_compiler:
            return "NumPy"
        return "compiled C" if self.compiles_at_once else "compiled C where it pays"

    @property
    def has_compiler(self) -> bool:
        """Whether there is a compiler, which has not failed."""
        return self.compiler is not None and self._optional.failure is None

    def compiling(self) -> CPUBackend | None:
        if self.compiler is None or self.jit is True:
            return None
        return type(self)(None, self.datatype, self.batch_size, self.stochastic_round, 0, self.modes[0], jit=True)

    def c_functions(self, source: str, names: Sequence[str]) -> dict[str, Any] | None:
        """Functions of C source that take one address, made once; None without a compiler, or once it has failed."""
        found = self._functions.get((source, names))
        if found is not None or not self.has_compiler:
            return found
        try:
            share_address()  # an argument of theirs: where it does not compile, neither do they run
            found = {name: compile_source(source, name, restype=c_int64, compiler=self.compiler) for name in names}
        except CompilerError as error:
            if self.jit is True:
                raise
            self._optional.give_up(error, False)
            return None
        self._functions[source, names] = found
        return found

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
        array = np.asarray(value, dtype, order="C")
        return array if array.flags.writeable else array.copy()  # NumPy broadcasts to read-only arrays

    def borrowed(self, array: np.ndarray) -> np.ndarray:
        return array

    def to_host(self, array: np.ndarray, blocking: bool = True) -> np.ndarray:
        return array.copy(order="C")

    def adopt(self, array: np.ndarray, name: str | None = None) -> Tensor:
        """A tensor over a NumPy array or a writable memory map, without a copy."""
        check_unmasked(array, "adopt")
        if not isinstance(array, np.ndarray):
            raise OperandError(
                f"adopt: a NumPy array is wanted, not {describe(array)}; be.array(...) copies its values, and "
                "be.from_dlpack(...) shares another library's memory"
            )
        return super().adopt(array if type(array) is np.ndarray else array.view(np.ndarray), name)

    def put(self, target: Tensor, part: Any, number: Any) -> None:
        # NumPy writes an element in a tenth of the time that its view and a plan take.
        if target.rounding or is_bfloat16(target.dtype):
            super().put(target, part, number)
            return
        if lazy_values:
            settle([target])
        self.executions += 1
        quietly(target.array.__setitem__, part.op.numpy_index, number)
        target.advance(caller_origin())

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
        except Exception as error:  # it is the other library's, of any class
            raise OperandError(
                f"from_dlpack: an array in the CPU's memory that speaks DLPack is wanted, not {describe(source)} "
                f"({error}); be.array copies lists, NumPy arrays and {GIVEN}"
            ) from error
        if not array.flags.writeable:
            raise OperandError(f"from_dlpack: the memory of {describe(source)} is read-only; be.array(...) copies it")
        return self.adopt(array, name)

    @property
    def lowering(self) -> Options:
        return self.when.options

    def compile(self, program: Program, reuse: bool = False, observe: Observer | None = None) -> Plan:
        by_numpy = partial(self._by_numpy, program.outline(), reuse, observe)
        lowered = None if observe is not None else self._for_kernels(program, shown=True)
        if lowered is None:
            return Plan(by_numpy())
        constants = [self.value_of(leaf) for leaf in lowered.leaves[len(program.leaves) :]]
        outline = lowered.outline()
        arguments = [i for i, leaf in enumerate(program.leaves) if isinstance(leaf, Input)] if reuse else None
        implementations = self._implementations(outline, reuse)
        return KernelPlan(outline, constants, by_numpy, implementations, self.noting(outline), self.when, arguments)

    def exported(self, f: Function, name: str, weights: str, example: Sequence[Any] | None) -> dict[str, bytes]:
        return lazy.export.exported(f, name, weights, example)  # type: ignore[no-any-return]

    def compile_within(self, program: Program) -> Within:
        plan = self.compile(program)
        once = Within.of(lambda values: plan.run(values, None))
        if not isinstance(plan, KernelPlan):
            return once
        return once._replace(loop=lazy.loops_in_c.LoopInC(self, plan))

    def _by_numpy(self, program: Program, reuse: bool, observe: Observer | None) -> Callable[..., Sequence[Any]]:
        """A function that runs a program by NumPy calls."""
        options = Options(shown=True)
        steps = runnable(steps_of(program, self._implementations(program, reuse), options=options), observe)
        registers, note = [None] * len(program.instructions), self.noting(program, is_lowered=False)
        return partial(quietly, run_steps, steps, registers, outputs_of(program), note)

    def planned(self, program: Program) -> Steps:
        fusable = self._for_kernels(program)
        lowered, executor = (program, None) if fusable is None else (fusable, self.when.executor)
        constants = [self.value_of(leaf) for leaf in lowered.leaves[len(program.leaves) :]]
        return planned_steps(
            lowered, steps_of(lowered, self._implementations(lowered, True), executor, self.lowering), constants
        )

    def show(self, program: Program, stage: str) -> str:
        if stage == "source":
            return "\n".join(self.sources(program, "c"))
        lowered, calls = self._for_kernels(program), steps_of(program, self._implementations(program, False))
        if lowered is None:
            return steps_text(program, calls)
        kernels = steps_text(
            lowered, steps_of(lowered, self._implementations(lowered, False), self.when.executor, self.lowering)
        )
        if not self.when.work and not self.when.small:
            return kernels
        return f"by NumPy:\n{steps_text(program, calls)}\n\nby kernels, where they pay:\n{kernels}"

    def _for_kernels(self, program: Program, shown: bool = False) -> Program | None:
        """The program, lowered; None if it is too long to be fused."""
        lowered = self.lowered(program, shown) if len(program.instructions) <= LONGEST else program
        return lowered if len(lowered.instructions) <= LONGEST else None

    def _implementations(self, program: Program, reuse: bool) -> ImplementationOf:
        """The implementations of a program's instructions."""
        return partial(implementation, self, program, last_uses(program) if reuse else None, {})


@cache
def _log_once(info: str) -> None:
    """Log the executor of assignments, once in a process."""
    lazy.logging.getLogger(__name__).info("assignments run by %s", info)
