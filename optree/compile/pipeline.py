"""The pipeline from trees to kernels and calls: every stage in order, with its reason and its printout.

A backend goes on from there: it prints, compiles and runs kernels, and plans memory (`Backend.compile`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from optree import settings
from optree.compile.aliasing import overlapped, schedule, unalias_outputs
from optree.compile.fusion import LONGEST, Call, Kernel, fuse
from optree.compile.passes import decompose, each_pass, rewrite
from optree.compile.program import Program, flatten
from optree.compile.shapes import Sizes
from optree.errors import BackendError, OperandError
from optree.op.traits import ReductionOperator
from optree.records import NamedTuple
from optree.tree.node import uncollected
from optree.tree.printing import instruction_text, listing


class Options(NamedTuple):
    """Options of the stages.

    Attributes
    ----------
    fixed : bool
        Whether numbers and constants cannot change, as in a function, so that rules may read them.
    rewrites : bool
        Whether passes run at all.
    without : tuple of str
        Names of passes and rules to leave out.
    draws, further : bool
        A backend's choice of what `decompose` expands.
    indices : bool
        Whether a backend's kernels find the indices of extremes.
    windows : bool
        Whether a backend's kernels read operands at affine indices.
    shown : bool
        Whether the stages that ``OPTREE_SHOW`` names are printed as they run.
    """

    fixed: bool = False
    rewrites: bool = True
    without: tuple[str, ...] = ()
    draws: bool = True
    further: bool = False
    indices: bool = False
    windows: bool = False
    shown: bool = False


class Fused(NamedTuple):
    """A program and its steps.

    Attributes
    ----------
    program : Program
    sizes : Sizes
        Its symbolic dimensions.
    steps : list of Kernel or Call
    """

    program: Program
    sizes: Sizes
    steps: list[Kernel | Call]


class Stage(NamedTuple):
    """One stage.

    Attributes
    ----------
    name : str
    reason : str
        The reason for its position.
    run : callable
        From the result of the stage before, and `Options`, to its own.
    text : callable
        The printout of its result, from the result of the stage before, its own, and `Options`.
    """

    name: str
    reason: str
    run: Callable[[Any, Options], Any]
    text: Callable[[Any, Any, Options], str]


def _rewritten(program: Program, options: Options) -> Program:
    return rewrite(program, options.fixed, options.without) if options.rewrites else program


def _fused(program: Program, options: Options) -> Fused:
    """A program as kernels and calls; longer than `LONGEST`, as calls alone."""
    sizes = Sizes(program)
    if len(program.instructions) > LONGEST:
        return Fused(program, sizes, [Call(index) for index in range(len(program.instructions))])
    return Fused(program, sizes, fuse(program, sizes, options.indices, options.windows))


def _listing(given: object, made: Program, options: Options) -> str:
    return listing(made)


def _changes(given: Program, made: Program, options: Options) -> str:
    """The replacements of each pass, and the rewritten program."""
    lines = []
    for name, _, changes in each_pass(given, options.fixed, options.without) if options.rewrites else ():
        lines += [f"{name}, {change}" for change in changes]
    return "\n".join([*lines, listing(made)]) if lines else "nothing to rewrite"


def _steps(given: object, made: Fused, options: Options) -> str:
    """Kernels, with their domains and the instructions of each stage, and calls."""
    lines: list[str] = []
    for step in made.steps:
        if isinstance(step, Call):
            lines.append(f"call {instruction_text(made.program, step.instruction)}")
        else:
            lines += _kernel(made, step)
    return "\n".join(lines)


def _kernel(fused: Fused, kernel: Kernel) -> list[str]:
    program, first = fused.program, len(fused.program.leaves)
    size_of: dict[int, Any] = {}
    for value, axes in kernel.axes.items():
        for axis, size in zip(axes, program.type_of(value).shape, strict=True):
            if axis is not None:
                size_of[axis] = size
    outer, inner = (
        [size_of[axis] for axis in range(len(kernel.domain)) if (axis in kernel.reduced) is is_inner]
        for is_inner in (False, True)
    )
    lines = [f"kernel, outer axes {_sizes(outer)}, inner axes {_sizes(inner)}"]
    # A kernel counts a reduction's value to the stage after the one that accumulates it.
    stage_of = {
        index: kernel.stages[first + index] - isinstance(program.instructions[index].op, ReductionOperator)
        for index in kernel.instructions
    }
    for stage in sorted(set(stage_of.values())):
        lines.append(f"  stage {stage}")
        for index in [index for index in kernel.instructions if stage_of[index] == stage]:
            lines.append(f"    {kernel.level(first + index):5}  {instruction_text(program, index)}")
    return [*lines, f"  writes {', '.join(f'%{value}' for value in kernel.writes)}"]


def _sizes(sizes: Sequence[Any]) -> str:
    return f"({', '.join('?' if size is None else str(size) for size in sizes)})"


#: From trees to steps, in order.
STAGES = (
    Stage(
        "program",
        "first: the other stages are loops over a list in topological order, with each common subexpression once",
        lambda roots, options: flatten(roots),
        _listing,
    ),
    Stage(
        "passes",
        "while ops are the user's, and no copy hides that two values are one",
        _rewritten,
        _changes,
    ),
    Stage(
        "copies",
        "after the passes, which may make one value of two outputs: a caller owns the memory of each",
        lambda program, options: unalias_outputs(program),
        _listing,
    ),
    Stage(
        "order",
        "after the copies, which read too: nothing is read after it was overwritten; what may fail runs first; "
        "what runs beside the rest is begun early and awaited late",
        lambda program, options: schedule(overlapped(program)),
        _listing,
    ),
    Stage(
        "parts",
        "after the program that NumPy runs, because only kernels need it: composite ops as simpler ones, which fuse",
        lambda program, options: decompose(program, options.draws, options.further, options.windows),
        _listing,
    ),
    Stage(
        "fusion",
        "last: which axes are equal, and what may share a kernel, depends on every instruction",
        _fused,
        _steps,
    ),
)

_NAMES = [stage.name for stage in STAGES]

#: The stages of a backend: the source of its kernels, and its plan.
OF_BACKENDS = ("source", "plan")


@uncollected
def lower(
    given: object,
    options: Options = Options(),  # noqa: B008
    first: str = "program",
    last: str = "order",
) -> Any:
    """Lower trees, or the result of a stage, through the stages that follow.

    Parameters
    ----------
    given : sequence of trees, or Program
        Trees, or the result of the stage before `first`.
    options : Options
    first, last : str
        The first and last stage to run. Up to ``'parts'`` the result is a program; after ``'fusion'``, `Fused`.
    """
    for stage in STAGES[_NAMES.index(first) : _NAMES.index(last) + 1]:
        made = stage.run(given, options)
        if options.shown:
            show(stage.name, partial(stage.text, given, made, options))
        given = made
    return given


def show(name: str, text: Callable[[], str]) -> None:
    """Print a stage to the standard error stream, if ``OPTREE_SHOW`` names it."""
    if name in settings.value("show"):
        reason = next((f" ({stage.reason})" for stage in STAGES if stage.name == name), "")
        print(f"{name}{reason}:\n{text()}\n", file=sys.stderr)


def stage_text(given: Any, name: str, options: Options, backend: Any = None, is_flat: bool = False) -> str:
    """The printout of a stage.

    Parameters
    ----------
    given : sequence of trees, or Program
    name : str
    options : Options
    backend : Backend, optional
        Prints the stages that follow fusion.
    is_flat : bool
        Whether `given` is a program.

    Raises
    ------
    OperandError
        If there is no such stage.
    BackendError
        If the stage is a backend's, and none was given.
    """
    if name not in settings.STAGES:
        raise OperandError(f"there is no stage {name!r}; there are {', '.join(settings.STAGES)}")
    if name in OF_BACKENDS and backend is None:
        raise BackendError(f"the stage {name!r} is a backend's, and there is none; gen_backend makes one")
    begin = int(is_flat)
    if name in OF_BACKENDS:
        return str(backend.show(lower(given, options, _NAMES[begin]), name))
    end = _NAMES.index(name)
    if end > begin:
        given = lower(given, options, _NAMES[begin], _NAMES[end - 1])
    made = given if end < begin else STAGES[end].run(given, options)
    return STAGES[end].text(given, made, options)
