"""Plans that run kernels where they pay, and NumPy calls where they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from backends import lazy
from backends.cpu.runtime import CompiledNest
from backends.execution.executor import CallStep, Executor, KernelStep, Step, quietly, runnable, steps_of, with_views
from backends.execution.memory_planner import BoundSteps
from backends.execution.routines import ImplementationOf
from backends.execution.specialize import ExecutableKernel, FusedKernel, Specialized
from optree.compile.fusion import Kernel
from optree.compile.loopnest import LoopNest
from optree.compile.pipeline import Options
from optree.compile.program import Program
from optree.compile.shapes import Sizes, shapes_of
from optree.compile.steps import Note, Plan, outputs_of, run_steps
from optree.errors import CompilerError
from optree.records import NamedTuple

#: The work of a plan after which its kernels are compiled, in elements times instructions.
WORK = 1 << 25

#: The overhead of a NumPy call, in elements.
CALL = 1 << 10

#: With fewer elements than this in every value, NumPy's calls on whole arrays are as quick as blocks.
SMALL_FOR_BLOCKS = 1 << 20


class When(NamedTuple):
    """The executor of kernels, how programs are lowered for it, and the thresholds below which NumPy runs a plan.

    Attributes
    ----------
    executor : Executor
    options : Options
    small : int
        Elements of the largest value.
    work : int
        Work of the plan so far, in elements times instructions.
    """

    executor: Executor
    options: Options
    small: int
    work: int


def compiled_kernel(program: Program, kernel: Kernel, sizes: Sizes, implementation_of: ImplementationOf) -> FusedKernel:
    """A kernel specialised and compiled as C."""
    return FusedKernel(program, kernel, sizes, CompiledNest)


class WhileItCompiles:
    """An executor of compiled kernels that compiles no more once the compiler has failed.

    NumPy runs what is not compiled by then. Where an op's own kernel expression does not compile, that is true of
    its kernel alone.

    Attributes
    ----------
    failure : CompilerError or None
        The compiler's failure.
    """

    def __init__(self) -> None:
        self.failure: CompilerError | None = None

    def __call__(
        self, program: Program, kernel: Kernel, sizes: Sizes, implementation_of: ImplementationOf
    ) -> FusedKernel:
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


def numpy_kernel(
    program: Program, kernel: Kernel, sizes: Sizes, implementation_of: ImplementationOf
) -> ExecutableKernel | None:
    """A kernel run by NumPy in blocks; None if one of its ops cannot be."""
    return lazy.numpy_blocks.block_kernel(program, kernel, sizes, implementation_of)


#: Lowering for kernels compiled as C.
C = Options(indices=True, windows=True)

#: Compiled kernels from the first call on.
ALWAYS = When(compiled_kernel, C, 0, 0)

#: NumPy in blocks, without a compiler. NumPy draws numbers faster in blocks than one by one.
BLOCKS = When(numpy_kernel, Options(draws=False), SMALL_FOR_BLOCKS, 0)


def compiled_steps(
    program: Program, implementation_of: ImplementationOf, when: When, values: Sequence[Any]
) -> list[Step]:
    """The steps of a program, whose kernels are compiled together for the layouts that follow from the leaves' values.

    Parameters
    ----------
    values : sequence
        The values of the leaves, then anything.
    """
    steps = steps_of(program, implementation_of, when.executor, when.options._replace(shown=True))
    if sum(map(_is_compiled, steps)) > 1:
        lazy.ahead.compile_ahead(program, steps, values)
    return steps


class KernelPlan(Plan):
    """The plan of a program, by kernels where they pay, and by NumPy calls where they do not.

    Parameters
    ----------
    program : Program
        Its outline, which holds no tensors.
    constants : list
        The values of its last leaves, which the plan is not given.
    by_numpy : callable
        It makes the function that runs the program by NumPy calls, when that is first needed.
    implementation_of : callable
        From the index of an instruction that no kernel runs to its implementation.
    note : callable
    when : When
    arguments : list of int, optional
        The leaves that differ from call to call, in a plan for one caller at a time.
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
    ) -> None:
        self.program, self.by_numpy, self.implementation_of = program, by_numpy, implementation_of
        self.note, self.when, self.arguments = note, when, arguments
        self.count = len(program.instructions)
        #: The registers that follow the leaves at the start of a call.
        self.open = [*constants, *[None] * self.count]
        self.work = 0
        #: The shapes of the last call, and its largest value's elements.
        self._known: tuple[Any, int] = (None, 0)
        super().__init__(self._choose)
        self._calls: Any = None
        self._kernels: Any = None
        #: The steps by kernels, once there are kernels.
        self.steps: list[Step] | None = None
        self._is_quiet = False
        self.bound: BoundSteps | None = None

    def _choose(self, values: list[Any], roots: Sequence[Any] | None) -> Sequence[Any]:
        """Run by NumPy calls below the thresholds of `when`, and by kernels above."""
        # Hot: every assignment that is not compiled comes through here.
        shapes = [x.shape if x.__class__ is np.ndarray else None for x in values]
        known, size = self._known
        if shapes != known:
            size = self._largest(values)
            self._known = shapes, size
        self.work += self.count * size
        if size < self.when.small or self.work < self.when.work:
            if self._calls is None:
                self._calls = self.by_numpy()
            return self._calls(values, roots)
        if self._kernels is None:
            self._kernels = self._fused(values)
        found = self._kernels(values, roots)
        if not self.when.small:  # later calls do not choose
            self.run = self._kernels
            if self.bound is not None and not self.arguments:  # the steps are bound for all calls
                self.run = self._quiet(self.bound.runs[()])
        return found

    @property
    def is_by_numpy(self) -> bool:
        """Whether NumPy runs the plan, always or so far."""
        return bool(self.when.small) or self.work < self.when.work

    def _made_steps(self, values: list[Any]) -> list[Step]:
        """The steps by kernels, compiled at once for the layouts that follow from the leaves; others when they run."""
        if self.steps is None:
            self.steps = compiled_steps(self.program, self.implementation_of, self.when, values + self.open)
        return self.steps

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

    def _largest(self, values: Sequence[Any]) -> int:
        """The elements of the largest value, intermediate ones included."""
        leaves = [getattr(value, "shape", ()) for value in (*values, *self.open[: len(self.open) - self.count])]
        found = [shape for shape in shapes_of(self.program, leaves) if isinstance(shape, tuple)]
        return max([CALL, *map(prod, found)])


def _is_compiled(step: Step) -> bool:
    """Whether a step may call compiled C."""
    return isinstance(step, KernelStep) or (isinstance(step, CallStep) and hasattr(step.implementation.call, "sources"))
