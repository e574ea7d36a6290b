"""The CPU backend: tensors in NumPy arrays, and plans that run C kernels where they pay and NumPy calls elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from ctypes import c_int64
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from backends import lazy
from backends.backend import Backend, Within
from backends.cpu.calls import implementation
from backends.cpu.compiler import compile_counts, compile_source, find_compiler, requested_compiler, when_crowded
from backends.cpu.routines.products import Products, small_products
from backends.cpu.runtime import C, CompiledNest, entry_source, share_address
from backends.execution.executor import (
    CallStep,
    Executor,
    KernelStep,
    Step,
    quietly,
    runnable,
    steps_of,
    steps_text,
    with_views,
)
from backends.execution.memory import empty_array
from backends.execution.memory_planner import BoundSteps, planned_steps
from backends.execution.routines import ImplementationOf
from backends.execution.specialize import FusedKernel, Specialized
from optree.arrays import GIVEN, check_unmasked
from optree.compile.aliasing import last_uses, outlined
from optree.compile.fusion import LONGEST, Kernel
from optree.compile.loopnest import LoopNest
from optree.compile.pipeline import Options, contracted
from optree.compile.program import Instruction, Note, Plan, Program, Sizes, Steps, outputs_of, run_steps, shapes_of
from optree.dtypes import is_bfloat16
from optree.errors import BackendError, CompilerError, OperandError, brief, describe
from optree.ops.contraction import ProductOperator, TensorDot
from optree.records import NamedTuple
from optree.tree.lazy import lazy_values, settle
from optree.tree.tensor import Tensor
from optree.tree.variable import Input, caller_origin

#: The work of a plan after which its kernels are compiled, in elements times instructions.
WORK = 1 << 25

#: The calls of a plan after which its small products are compiled as loop nests, if later calls may change bits: fewer
#: calls of larger values.
REPEATED = 1 << 12

#: The overhead of a NumPy call, in elements.
CALL = 1 << 10


class When(NamedTuple):
    """The executor of kernels, how programs are lowered for it, and the threshold below which NumPy runs a plan."""

    executor: Executor
    options: Options
    #: Work of the plan so far, in elements times instructions.
    work: int


class WhileItCompiles:
    """An executor of compiled kernels that compiles no more once the compiler has failed.

    NumPy runs what is not compiled by then. Where an op's own kernel expression does not compile, that is true of
    its kernel alone.
    """

    def __init__(self) -> None:
        #: The compiler's failure.
        self.failure: CompilerError | None = None

    def __call__(self, program: Program, kernel: Kernel, sizes: Sizes) -> FusedKernel:
        return _OptionalKernel(program, kernel, sizes, self)

    def compiled(self, nest: LoopNest) -> CompiledNest:
        """Compile a nest; CompilerError if it does not compile, or the compiler has failed before."""
        if self.failure is not None:
            raise CompilerError(str(self.failure))
        return CompiledNest(nest)

    def give_up(self, error: CompilerError, is_foreign: bool) -> None:
        """Log, once, that NumPy runs what is not compiled from now on: everything, or a kernel of a user's op."""
        if self.failure is not None:
            return
        if not is_foreign:
            self.failure = error
        what = "a kernel of an op that is not op-tree's" if is_foreign else "all that is not compiled yet"
        notes = getattr(error, "__notes__", ())
        lazy.logging.getLogger(__name__).warning(
            "from now on NumPy runs %s, for the C compiler failed (jit=True makes that an error): %s",
            what,
            "; ".join([str(error), *notes]),
        )


class _OptionalKernel(FusedKernel):
    """A compiled kernel that is replaced by NumPy calls once its compilation has failed for a layout."""

    def __init__(self, program: Program, kernel: Kernel, sizes: Sizes, executor: WhileItCompiles) -> None:
        super().__init__(program, kernel, sizes, executor.compiled)
        self._executor, self._by_numpy = executor, False

    def specialize(self, arrays: Sequence[Any], input_shapes: Sequence[tuple[int, ...]]) -> Specialized | None:
        found = None if self._by_numpy else super().specialize(arrays, input_shapes)
        if found is None or found.nest is None:
            return found
        try:
            self.compiled(found.nest)
        except CompilerError as error:
            self.fail(error)
            return None
        return found

    def fail(self, error: CompilerError) -> None:
        self._by_numpy = True
        self._executor.give_up(error, self.is_foreign)


#: Compiled kernels from the first call on.
ALWAYS = When(partial(FusedKernel, compile=CompiledNest), C, 0)


class KernelPlan(Plan):
    """The plan of a program, by kernels where they pay, and by NumPy calls where they do not.

    `program`: its outline, which holds no tensors.
    `constants`: the values of its last leaves, which the plan is not given.
    `by_numpy`: it makes the function that runs the program by NumPy calls, when that is first needed.
    `implementation_of`: from the index of an instruction that no kernel runs to its implementation.
    `arguments`: the leaves that differ from call to call, in a plan for one caller at a time; None in others, whose
    calls are too short to choose a plan for products that are no stacks.
    `contracted`: from a plan and a program in which some of its products are sums of products to the plan of that.
    """

    def __init__(
        self,
        program: Program,
        constants: Sequence[Any],
        by_numpy: Callable[[], Callable[[list[Any], Any], Sequence[Any]]],
        implementation_of: ImplementationOf,
        note: Note,
        when: When,
        arguments: list[int] | None = None,
        contracted: Callable[[KernelPlan, Program], KernelPlan] | None = None,
    ) -> None:
        self.program, self.by_numpy, self.implementation_of = program, by_numpy, implementation_of
        self.note, self.when, self.arguments = note, when, arguments
        self.count = len(program.instructions)
        #: The registers that follow the leaves at the start of a call.
        self.open = [*constants, *[None] * self.count]
        self.work = 0
        #: The shapes of the last call, its largest value's elements, and its small products.
        self._known: tuple[Any, int, frozenset[int]] = (None, 0, frozenset())
        #: The calls until small products are loop nests: where NumPy runs the first calls, later ones may change bits.
        self._until_nests, self._contracted = (REPEATED if when.work else 0), contracted
        #: The plans in which small products are loop nests, by these products.
        self.by_products: dict[frozenset[int], KernelPlan] = {}
        super().__init__(self._choose)
        self._calls: Any = None
        self._kernels: Any = None
        #: The steps by kernels, once there are kernels.
        self.steps: list[Step] | None = None
        self._is_quiet = False
        self.bound: BoundSteps | None = None

    def _choose(self, values: list[Any], roots: Sequence[Any] | None) -> Sequence[Any]:
        """Run by NumPy calls below the threshold of `when`, and by kernels above."""
        # Hot: every assignment that is not compiled comes through here.
        shapes = [x.shape if x.__class__ is np.ndarray else None for x in values]
        known, size, small = self._known
        if shapes != known:
            size, small = self._measured(values)
            self._known = shapes, size, small
        self.work += self.count * size
        if self.work < self.when.work:
            if self._calls is None:
                self._calls = self.by_numpy()
            return self._calls(values, roots)
        if small and (plan := self._by_nests(small, size)) is not None:
            found = plan.run(values, roots)
            if self.arguments == []:
                self.run = plan.run
            return found
        if self._kernels is None:
            self._kernels = self._fused(values)
        found = self._kernels(values, roots)
        if not small:  # later calls do not choose
            self.run = self._kernels
            if self.bound is not None and not self.arguments:  # the steps are bound for all calls
                self.run = self._quiet(self.bound.runs[()])
        return found

    def _by_nests(self, small: frozenset[int], size: int) -> KernelPlan | None:
        """The plan in which small products are loop nests; None until calls have repeated, if that may change bits."""
        if self._contracted is None:
            return None
        if self._until_nests > 0:
            self._until_nests -= size // CALL
            return None
        if small not in self.by_products:
            self.by_products[small] = self._contracted(self, contracted(self.program, small))
        return self.by_products[small]

    @property
    def is_by_numpy(self) -> bool:
        """Whether NumPy runs the plan so far."""
        return self.work < self.when.work

    def _made_steps(self, values: list[Any]) -> list[Step]:
        """The steps by kernels, compiled at once for the layouts that follow from the leaves; others when they run."""
        if self.steps is None:
            self.steps = self.compiled(self.program, self.implementation_of, values + self.open)
        return self.steps

    def compiled(self, program: Program, implementation_of: ImplementationOf, values: Sequence[Any]) -> list[Step]:
        """The steps of a program, whose kernels are compiled together for the layouts that follow from the leaves.

        `values`: the values of the leaves, then anything.
        """
        steps = steps_of(program, implementation_of, self.when.executor, self.when.options._replace(shown=True))
        if sum(map(_is_compiled, steps)) > 1:
            lazy.ahead.compile_ahead(program, steps, values)
        return steps

    def _fused(self, values: list[Any]) -> Any:
        """The plan by kernels."""
        steps = with_views(self.program, self._made_steps(values))
        self._is_quiet = all(isinstance(step, KernelStep) for step in steps)
        if self.arguments is None:
            run = partial(run_steps, runnable(steps), self.open, outputs_of(self.program), self.note)
            return self._quiet(run)
        self.bound = BoundSteps(self.program, steps, self.arguments, self.open, self.note)
        return self._quiet(self.bound.run)

    def _quiet(self, run: Any) -> Any:
        """The same without NumPy's warnings; kernels give none, and `KernelStep` turns off those of its calls."""
        return run if self._is_quiet else partial(quietly, run)

    @property
    def constants(self) -> list[Any]:
        """The values of its last leaves."""
        return self.open[: len(self.open) - self.count]

    def _measured(self, values: Sequence[Any]) -> tuple[int, frozenset[int]]:
        """The elements of the largest value, intermediate ones included; and the products of few multiplications."""
        leaves = [getattr(value, "shape", ()) for value in (*values, *self.constants)]
        shapes = shapes_of(self.program, leaves)
        is_fixed = self._contracted is None
        small = frozenset[int]() if is_fixed else small_products(self.program, shapes, self.arguments is None)
        return max([CALL, *(prod(shape) for shape in shapes if isinstance(shape, tuple))]), small


def _is_compiled(step: Step) -> bool:
    """Whether a step may call compiled C."""
    return isinstance(step, KernelStep) or (isinstance(step, CallStep) and hasattr(step.implementation.call, "sources"))


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
            compile_source(entry_source(), "builtin", compiler=self.compiler)
        if self.compiler is not None:
            when_crowded(self.forget_plans)
        self._optional = WhileItCompiles()
        self._functions: dict[tuple[str, Sequence[str]], dict[str, Any]] = {}
        optional = When(self._optional, C, 0 if jit == "always" else WORK)
        #: None without a compiler: NumPy runs all plans.
        self.when = None if self.compiler is None else ALWAYS if jit is True else optional
        if "logging" in sys.modules:  # else there is no handler
            _log_once(self.info())

    def info(self) -> str:
        """The executor of assignments, and how to get a faster one.

        Examples
        --------
        >>> isinstance(be.info(), str)
        True
        """
        if self.compiler is None:
            why = "there is no C compiler" if self.jit else "jit=False asks for no compiler"
            faster = "install gcc or clang" if self.jit else "leave jit=False out, with gcc or clang installed"
            runs = f"NumPy, for {why}; to run kernels compiled to C, {faster}"
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
        """Counts since the backend was made, and as ``kernels`` those of the process's compiled kernels.

        Examples
        --------
        >>> be.stats()["compiles"] >= 0
        True
        """
        return {**super().stats(), "kernels": compile_counts()}

    def remark(self, instruction: Instruction) -> str:
        """For a loop that has run, how its steps run, and which op leaves compiled C, if any does."""
        loop = "loop", getattr(instruction.op, "body", None)
        plans = [x.loop for key, x in self.plans.items() if key[0] == "within" and key[1][:2] == loop]
        return next(filter(None, (getattr(steps, "remark", "") for steps in plans)), "")

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return empty_array(shape, dtype)

    def from_host(self, array: np.ndarray) -> np.ndarray:
        found = empty_array(array.shape, array.dtype)
        found[...] = array
        return found

    def owned(self, value: object, dtype: np.dtype | None = None) -> np.ndarray:
        array = np.asarray(value, dtype, order="C")
        return array if array.flags.writeable else array.copy()  # NumPy broadcasts to read-only arrays

    def borrowed(self, array: np.ndarray) -> np.ndarray:
        return array

    def to_host(self, array: np.ndarray, blocking: bool = True) -> np.ndarray:
        return array.copy(order="C")

    def adopt(self, array: np.ndarray, name: str | None = None) -> Tensor:
        """A tensor over a NumPy array or a writable memory map, without a copy.

        Parameters
        ----------
        array : numpy.ndarray
        name : str, optional
            For errors and printing.

        Examples
        --------
        >>> values = np.zeros(2)
        >>> x = be.adopt(values)
        >>> x[:] = 3
        >>> values
        array([3., 3.])
        """
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
        return Options() if self.when is None else self.when.options

    def compile(self, program: Program, reuse: bool = False) -> Plan:
        by_numpy = partial(self._by_numpy, outlined(program), reuse)
        found = self._for_kernels(program, shown=True)
        if found is None:
            return Plan(by_numpy())
        lowered, when = found
        constants = [self.value_of(leaf) for leaf in lowered.leaves[len(program.leaves) :]]
        outline = outlined(lowered)
        arguments = [i for i, leaf in enumerate(program.leaves) if isinstance(leaf, Input)] if reuse else None

        def plan(outline: Program, constants: Sequence[Any], when: When, by_nests: Any = None) -> KernelPlan:
            implementations, note = self._implementations(outline, reuse), self.noting(outline)
            return KernelPlan(outline, constants, by_numpy, implementations, note, when, arguments, by_nests)

        def by_nests(of: KernelPlan, outline: Program) -> KernelPlan:
            added = [self.value_of(leaf) for leaf in outline.leaves[len(of.program.leaves) :]]
            return plan(outline, [*of.constants, *added], of.when._replace(work=0))

        multiplies = any(isinstance(each.op, ProductOperator | TensorDot) for each in lowered.instructions)
        return plan(outline, constants, when, by_nests if multiplies and self.compiler is not None else None)

    def compile_within(self, program: Program) -> Within:
        plan = self.compile(program)
        once = Within.of(lambda values: plan.run(values, None))
        if not isinstance(plan, KernelPlan):
            return once
        return once._replace(loop=lazy.loops_in_c.LoopInC(self, plan), reads_flag=True)

    def _by_numpy(self, program: Program, reuse: bool) -> Callable[..., Sequence[Any]]:
        """A function that runs a program by NumPy calls."""
        options = Options(shown=True)
        steps = runnable(steps_of(program, self._implementations(program, reuse), options=options))
        registers, note = [None] * len(program.instructions), self.noting(program, is_lowered=False)
        return partial(quietly, run_steps, steps, registers, outputs_of(program), note)

    def planned(self, program: Program) -> Steps:
        lowered, when = self._for_kernels(program) or (program, None)
        executor = None if when is None else when.executor
        constants = [self.value_of(leaf) for leaf in lowered.leaves[len(program.leaves) :]]
        return planned_steps(
            lowered, steps_of(lowered, self._implementations(lowered, True), executor, self.lowering), constants
        )

    def show(self, program: Program, stage: str, is_function: bool = False) -> str:
        if stage == "source":
            return "\n".join(self.sources(program, "c"))
        found, calls = self._for_kernels(program), steps_of(program, self._implementations(program, False))
        if found is None:
            return steps_text(program, calls)
        lowered, when = found
        kernels = steps_text(
            lowered, steps_of(lowered, self._implementations(lowered, False), when.executor, when.options)
        )
        if not when.work:
            return kernels
        return f"by NumPy:\n{steps_text(program, calls)}\n\nby kernels, where they pay:\n{kernels}"

    def _for_kernels(self, program: Program, shown: bool = False) -> tuple[Program, When] | None:
        """The program, lowered, and its executor; None if NumPy runs it, because it is too long to be fused."""
        if self.when is None or len(program.instructions) > LONGEST:
            return None
        lowered = self.lowered(program, shown)
        return (lowered, self.when) if len(lowered.instructions) <= LONGEST else None

    def _implementations(self, program: Program, reuse: bool) -> ImplementationOf:
        """The implementations of a program's instructions."""
        return partial(implementation, self, program, last_uses(program) if reuse else None, {})


@cache
def _log_once(info: str) -> None:
    """Log the executor of assignments, once in a process."""
    lazy.logging.getLogger(__name__).info("assignments run by %s", info)
