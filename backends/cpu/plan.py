"""A plan that runs by kernels where they pay, and by NumPy call by call where not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from backends import lazy
from backends.cpu.runtime import Compiled
from backends.execution.errstate import quietly
from backends.execution.executor import Executor, KernelStep, Runnable, runnable, steps_of
from backends.execution.memory_planner import BoundSteps
from backends.execution.routines import ImplementationOf
from backends.execution.runner import FastCall
from backends.execution.specialize import FusedKernel
from optree.compile.dimensions import Sizes
from optree.compile.fusion import LONGEST, Kernel
from optree.compile.loopnest import LoopNest
from optree.compile.program import Program
from optree.compile.shapes import shapes_of
from optree.compile.steps import Note, Plan, run_steps, taker
from optree.errors import CompilerError

#: What a plan does by NumPy before kernels are compiled for it, in elements times instructions.
WORK = 1 << 25

#: A call of NumPy's takes as long as so many elements do.
CALL = 1 << 10

#: With fewer elements than this in every value, NumPy's calls on whole arrays are as quick as blocks.
SMALL_FOR_BLOCKS = 1 << 20


class When(NamedTuple):
    """The executor of kernels, and the work from which on it is used.

    Attributes
    ----------
    executor : callable
    small : int
        With fewer elements than this in every value, NumPy runs the plan.
    work : int
        As long as it has done less, in elements times instructions, NumPy runs the plan.
    """

    executor: Executor
    small: int
    work: int


def compiled_kernel(program: Program, kernel: Kernel, sizes: Sizes, implementation_of: ImplementationOf) -> FusedKernel:
    """A kernel specialised and compiled as C."""
    return FusedKernel(program, kernel, sizes, Compiled)


class WhileItCompiles:
    """An executor of compiled kernels that hands over to NumPy, for good, when the compiler fails.

    Kernels that were compiled before go on. That another op's own expression does not compile is its fault alone.

    Attributes
    ----------
    failure : CompilerError or None
        Why nothing more is compiled.
    """

    def __init__(self) -> None:
        self.failure: CompilerError | None = None

    def __call__(
        self, program: Program, kernel: Kernel, sizes: Sizes, implementation_of: ImplementationOf
    ) -> FusedKernel:
        return _OptionalKernel(program, kernel, sizes, self)

    def compiled(self, nest: LoopNest) -> Compiled:
        """A nest, compiled.

        Raises
        ------
        CompilerError
            If it does not compile, or the compiler has failed before.
        """
        if self.failure is not None:
            raise CompilerError(str(self.failure))
        return Compiled(nest)

    def give_up(self, error: CompilerError, is_foreign: bool) -> None:
        """Log, once, that NumPy runs from now on what is not compiled: all of it, or a kernel of a user's own op."""
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
    """A compiled kernel whose work NumPy does, call by call, once it could not be compiled for some layout."""

    def __init__(self, program: Program, kernel: Kernel, sizes: Sizes, executor: WhileItCompiles) -> None:
        super().__init__(program, kernel, sizes, executor.compiled)
        self._executor, self._by_numpy = executor, False

    def run(self, values: Sequence[Any], targets: Sequence[np.ndarray | None]) -> list[Any] | None:
        if self._by_numpy:
            return None
        try:
            return super().run(values, targets)
        except CompilerError as error:
            self._give_up(error)
            return None

    def entry(self, values: Sequence[Any], places: Sequence[int]) -> FastCall | None:
        try:
            return super().entry(values, places)
        except CompilerError as error:
            self._give_up(error)
            return None

    def _give_up(self, error: CompilerError) -> None:
        self._by_numpy = True
        self._executor.give_up(error, self.is_foreign)


def numpy_kernel(
    program: Program, kernel: Kernel, sizes: Sizes, implementation_of: ImplementationOf
) -> Runnable | None:
    """A kernel run by NumPy in blocks; None if it cannot be."""
    return lazy.numpy_blocks.block_kernel(program, kernel, sizes, implementation_of)


#: By a C compiler from the first call on.
ALWAYS = When(compiled_kernel, 0, 0)


#: By NumPy in blocks, without a compiler.
BLOCKS = When(numpy_kernel, SMALL_FOR_BLOCKS, 0)


def where_it_pays(executor: WhileItCompiles) -> When:
    """By a C compiler where that pays, and as long as it works."""
    return When(executor, 0, WORK)


class KernelPlan(Plan):
    """A program's kernels, run where that pays; a plan as backends run them.

    Parameters
    ----------
    program : Program
        Its outline, so that the plan keeps no tensor alive.
    constants : list
        The values of its last leaves, which the plan is not given.
    by_numpy : callable
        The plan that runs the program by NumPy.
    implementation_of : callable
        For instructions that no kernel runs.
    note : callable
    when : When
    arguments : list of int, optional
        The leaves that are given anew at each call: the plan has one caller at a
        time then, and the other leaves stay.
    """

    def __init__(
        self,
        program: Program,
        constants: Sequence[Any],
        by_numpy: Callable[[list[Any], Any], Sequence[Any]],
        implementation_of: ImplementationOf,
        note: Note,
        when: When,
        arguments: list[int] | None = None,
    ) -> None:
        self.program, self.by_numpy, self.implementation_of = program, by_numpy, implementation_of
        self.note, self.when, self.arguments = note, when, arguments
        self.count = len(program.instructions)
        #: What follows the leaves' values before anything has been computed.
        self.open = [*constants, *[None] * self.count]
        self.work = 0
        self._known: tuple[Any, int] = (None, 0)
        super().__init__(self._weigh)
        self._kernels: Any = None
        self._is_quiet = False
        self.bound: BoundSteps | None = None

    def _weigh(self, values: list[Any], roots: Sequence[Any] | None) -> Sequence[Any]:
        """Run by NumPy where that is as quick, and until so much has been done that kernels would have paid."""
        if self.count > LONGEST or not self._has_paid(values):
            return self.by_numpy(values, roots)
        if self._kernels is None:
            self._kernels = self._fused()
        found = self._kernels(values, roots)
        if not self.when.small:  # from now on
            self.run = self._kernels
            if self.bound is not None and not self.arguments:  # the first call has bound the steps for all calls
                self.run = self._quiet(self.bound.runs[()])
        return found

    def _fused(self) -> Any:
        """The program's steps, bound; kernels are compiled when they first run."""
        steps = steps_of(self.program, self.implementation_of, self.when.executor)
        self._is_quiet = all(isinstance(step, KernelStep) for step in steps)
        if self.arguments is None:
            run = partial(run_steps, runnable(steps), self.open, taker(self.program.outputs), self.note)
            return self._quiet(run)
        self.bound = BoundSteps(self.program, steps, self.arguments, self.open, self.note)
        return self._quiet(self.bound.run)

    def _quiet(self, run: Any) -> Any:
        """The same without warnings: kernels alone give none, and their step asks for quiet where NumPy runs it."""
        return run if self._is_quiet else partial(quietly, run)

    def _has_paid(self, values: Sequence[Any]) -> bool:
        """Whether kernels are worth it, by how much there is to do and has been done without."""
        size = self._largest(values)
        self.work += self.count * size
        return size >= self.when.small and self.work >= self.when.work

    def _largest(self, values: Sequence[Any]) -> int:
        """How many elements the largest of all values has, those on the way too: pairs of a few can be many."""
        shapes = tuple([value.shape if value.__class__ is np.ndarray else None for value in values])
        if shapes != self._known[0]:
            leaves = [getattr(value, "shape", ()) for value in (*values, *self.open[: len(self.open) - self.count])]
            found = [shape for shape in shapes_of(self.program, leaves) if isinstance(shape, tuple)]
            self._known = shapes, max([CALL, *map(prod, found)])
        return self._known[1]
