"""A program as steps: fused kernels where an executor runs them, and calls of its instructions' implementations.

Without an executor all steps are calls. Either way `optree.compile.steps.run_steps` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from backends.execution.epilogues import ProductWithEpilogue, places, with_epilogues
from backends.execution.errstate import quietly
from backends.execution.memory import HOST, Memory
from backends.execution.routines import Implementation, ImplementationOf
from backends.execution.runner import FastCall
from backends.execution.specialize import LAST
from optree.arrays import is_array, overlap
from optree.cache import Cache
from optree.compile.aliasing import alias_sets, dead_after, last_uses
from optree.compile.dimensions import Sizes
from optree.compile.fusion import Axes, Call, Kernel
from optree.compile.pipeline import lower
from optree.compile.program import Program
from optree.compile.schedule import may_fail
from optree.compile.steps import Observer, Step, observed, run_steps, taker
from optree.ops.assignment import Assign
from optree.tree.types import TensorType

#: The most combinations of shapes that a step remembers, and the most layouts of each.
SHAPES, ENTRIES = 256, 4


class Runnable(Protocol):
    """A kernel as an executor runs it.

    Attributes
    ----------
    reads, writes : list of int
        The values of the program that it takes as arrays, and those that it makes.
    takes : set of int
        All values that it takes from outside.
    axes : dict
        The axes of the kernel's domain that each value runs along.
    last_read, written_in : dict
        The last walk that reads each array, and the one that writes each; those of no walk are left out.
    memory : Memory
        Of the arrays.
    """

    reads: list[int]
    writes: list[int]
    takes: set[int]
    axes: dict[int, Axes]
    last_read: dict[int, int]
    written_in: dict[int, int]
    memory: Memory

    def run(self, values: Sequence[Any], targets: Sequence[Any]) -> list[Any] | None:
        """The values that it makes, in the targets that are given or in new arrays; None if NumPy is to make them."""

    def shapes_like(self, values: Sequence[Any]) -> list[tuple[int, ...]]:
        """The shapes of what it takes for its shape alone."""

    def entry(self, values: Sequence[Any], places: Sequence[int]) -> FastCall | None:
        """The fast call for values that are laid out as these are, and are written in these places, if there is one."""


#: From a program, a kernel of it, the program's sizes and its instructions' implementations to what runs the kernel;
#: None if the executor does not.
Executor = Callable[[Program, Kernel, Sizes, ImplementationOf], Runnable | None]


def steps_of(
    program: Program, implementation_of: ImplementationOf, executor: Executor | None = None, memory: Memory = HOST
) -> list[CallStep | KernelStep]:
    """The steps of a program, with their liveness; values that are only assigned are computed in their targets.

    Parameters
    ----------
    executor : callable, optional
        Runs kernels. Without it, and where it declines, each instruction is a call.
    memory : Memory
        Of the arrays.
    """
    implementations = [implementation_of(index) for index in range(len(program.instructions))]
    if executor is None:
        calls = {index: CallStep(program, index, each) for index, each in enumerate(implementations)}
        return _live(program, [[index] for index in calls], {}, calls, _of_one_type(program))
    _, sizes, steps = lower(program, first="fusion", last="fusion")
    takers = [index for index, each in enumerate(implementations) if each.takes_epilogue]
    fused, epilogues = with_epilogues(program, steps, takers)
    calls = {index: CallStep(program, index, each, sizes, memory) for index, each in enumerate(implementations)}
    for index, epilogue in epilogues.items():
        call = ProductWithEpilogue(implementations[epilogue.product].call, epilogue)
        along = implementations[epilogue.product]._replace(call=call, into=call)
        calls[index] = CallStep(program, index, along, sizes, memory, epilogue.inputs)
    parts: list[Sequence[int]] = []
    kernels: dict[int, Runnable] = {}
    for step in fused:
        kernel = executor(program, step, sizes, implementations.__getitem__) if isinstance(step, Kernel) else None
        if kernel is not None:
            kernels[len(parts)] = kernel
        whole = kernel is not None or isinstance(step, Call)
        parts += [places(step)] if whole else [[index] for index in places(step)]
    return _live(program, parts, kernels, calls, lambda value, target: sizes.dims[value] == sizes.dims[target])


def _live(
    program: Program,
    steps: Sequence[Sequence[int]],
    kernels: Mapping[int, Runnable],
    calls: Mapping[int, CallStep],
    fits: Callable[[int, int], bool],
) -> list[CallStep | KernelStep]:
    """The steps of these instructions: by kernels, which have the steps' numbers, or else by calls."""
    first = len(program.leaves)
    targets = _targets(program, steps, kernels, calls, fits)
    assigned = {assign for _, assign in targets.values()}
    left = [n for n, step in enumerate(steps) if n in kernels or step[-1] not in assigned]
    run = [steps[n] for n in left]
    found: list[CallStep | KernelStep] = []
    for n, dead in zip(left, dead_after(program, last_uses(program, run), len(run)), strict=True):
        index = steps[n][-1]
        if n in kernels:
            made: CallStep | KernelStep = KernelStep(kernels[n], targets, first, [calls[i] for i in steps[n]])
        else:
            made = calls[index]
            if first + index in targets:
                target, assignment = targets[first + index]
                made.assign_to(target, first + assignment)
            elif made.implementation.in_place and not made.sizes:
                made.out = next((i for i in dead if i in made.inputs and _is_writable(program, calls, i, index)), None)
        made.dead = dead
        found.append(made)
    return found


def runnable(
    steps: Sequence[CallStep | KernelStep], observe: Observer | None = None, wait: Callable[[], None] | None = None
) -> list[Step]:
    """The steps as the loop runs them; after the last one all values go.

    Parameters
    ----------
    observe, wait : callable, optional
        Those of `observed`, for calls.
    """
    found = [step.step() for step in steps]
    if observe is not None:
        found = [observed(step, observe, wait) for step in found]
    return [*found[:-1], *(step._replace(dead=()) for step in found[-1:])]


class CallStep:
    """The step of an instruction's implementation; an operand of which it takes a known shape alone need not be there.

    Attributes
    ----------
    inputs : sequence of int
        The values that the call takes.
    makes : list of int
        The values that it can write into memory that is there.
    persistent : set of int
        Those for which the registers have memory that stays from run to run.
    takes, gives : list of int
        The values that it works on, and those that it sets.
    target : int or None
        The tensor in which it computes what is assigned to that alone.
    dead : list of int
        The values that nothing needs after it.
    """

    def __init__(
        self,
        program: Program,
        index: int,
        implementation: Implementation,
        sizes: Sizes | None = None,
        memory: Memory = HOST,
        inputs: Sequence[int] | None = None,
    ) -> None:
        instruction = program.instructions[index]
        self.op, self.index, self.implementation, self.sizes = instruction.op, index, implementation, sizes
        self.inputs = instruction.inputs if inputs is None else inputs
        self.output = len(program.leaves) + index
        self.out: int | None = None
        self.target: int | None = None
        #: The dtypes of the operands that need not be there, for their known shape is all that counts.
        self.shaped: dict[int, np.dtype] = {}
        if sizes is not None and self.op.shape_only:
            alone = [n for n in self.op.shape_only if sizes.is_known(self.inputs[n])]
            self.shaped = {n: program.type_of(self.inputs[n]).dtype for n in alone}
        # Kernels are handed over arrays; a library's function of arrays without axes may give a scalar.
        is_scalar = sizes is not None and isinstance(instruction.type, TensorType) and not instruction.type.ndim
        self._call = partial(_as_array, implementation.call) if is_scalar else implementation.call
        self._memory = memory
        self.makes = [] if implementation.into is None else [self.output]
        self.takes, self.gives = [*self.inputs], [self.output]
        self.persistent: set[int] = set()
        self.dead: Sequence[int] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether its value depends on sizes alone."""
        return len(self.shaped) == len(self.inputs) > 0

    def assign_to(self, target: int, assignment: int) -> None:
        """Let the value be computed in the target that it is assigned to alone."""
        self.target, self.output, self.makes, self.gives = target, assignment, [], [assignment]
        if self.implementation.update is not None:  # it is the target's own value, of which parts change
            self._call = self.implementation.update
        else:
            self.takes.append(target)
            self.out = target

    def step(self) -> Step:
        """The step as the loop runs it."""
        take = self._taken if self.shaped else taker(self.inputs)
        out = self.output if self.persistent else self.out
        call = self._call if out is None else self.implementation.into
        assert call is not None
        return Step(call, take, self.output, out, self.dead, self.index)

    def _taken(self, values: list[Any]) -> list[Any]:
        assert self.sizes is not None
        found = [values[i] for i in self.inputs]
        for n, dtype in self.shaped.items():
            found[n] = self._memory.shaped(self.sizes.shape_of(self.inputs[n], values), dtype)
        return found

    def bind(self, values: list[Any], fixed: set[int]) -> Step | None:
        """See `KernelStep.bind`."""
        shares = self.target if self.target is not None else self.inputs[0] if isinstance(self.op, Assign) else None
        is_view = len(self.inputs) == 1 and bool(self.op.view_map) and not self.op.destroy_map
        is_view = is_view and self.inputs[0] in fixed and _is_view(values[self.output], values[self.inputs[0]])
        if self.is_fixed or is_view or self.persistent or shares in fixed:
            fixed.add(self.output)
        if self.is_fixed or is_view:
            return None
        step = self.step()
        if step.out not in fixed or not fixed.issuperset(self.inputs):
            return step
        call = partial(step.call, *[values[i] for i in self.inputs], out=values[step.out])
        return step._replace(call=call, take=taker(()), out=None)


def _as_array(call: Callable[..., Any], *operands: Any) -> Any:
    value = call(*operands)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _is_view(x: Any, of: Any) -> bool:
    """Whether an array looks into the memory of another."""
    return is_array(x) and is_array(of) and overlap(x, of)


#: A fast call, with the shapes and dtypes of what it makes anew, and the shapes of what is like it.
_Entry = tuple[FastCall, list[Any], Any]


class KernelStep:
    """A kernel's step: what is only assigned goes into its target, where that overlaps nothing that is read.

    What the kernel leaves to NumPy goes through the calls of its instructions.
    Arrays that are laid out as some were before are handed over as they are (`backends.cpu.entry`).

    Attributes
    ----------
    makes : list of int
        The values that it can write into memory that is there.
    persistent : set of int
        Those for which the registers have memory that stays from run to run.
    takes, gives : list of int
        The values that it works on, and those that it sets.
    dead : list of int
        The values that nothing needs after it.
    numbers : list of int
        Its instructions, by their numbers.
    index : int
        The last of them.
    """

    def __init__(
        self, kernel: Runnable, targets: Mapping[int, tuple[int, int]], first: int, calls: Sequence[CallStep]
    ) -> None:
        self.kernel, self.index, self.numbers = kernel, calls[-1].index, [call.index for call in calls]
        self._calls = [call.step() for call in calls]
        #: The numbers of what is assigned, of its target and of the assignment.
        self.assigned = [(i, targets[i][0], first + targets[i][1]) for i in kernel.writes if i in targets]
        self.target_of = {i: target for i, target, _ in self.assigned}
        self.makes = [i for i in kernel.writes if i not in self.target_of]
        self.persistent: set[int] = set()
        self.dead: Sequence[int] = ()
        self.takes = [*kernel.takes, *self.target_of.values()]
        self.gives = [*kernel.writes, *(assignment for *_, assignment in self.assigned)]
        #: Fast calls for arrays that are laid out as some were, by the shapes of those that are there before; the last.
        self._entries: Cache = Cache("fast calls of kernels", SHAPES)
        self._last: list[_Entry] = []

    def step(self) -> Step:
        """The step as the loop runs it."""
        return Step(self, None, -1, None, self.dead, self.index)

    def __call__(self, values: list[Any]) -> FastCall | None:
        """Run; the fast call for arrays that are laid out as these are, if there is one."""
        return (
            self._entered(self._last, values)
            or self._entered(self._entries.get(self._shapes(values), ()), values)
            or quietly(self.run, values)
        )

    def _entered(self, entries: Sequence[_Entry], values: list[Any]) -> FastCall | None:
        """Run by one of some fast calls, if one is for arrays that are laid out as these are."""
        for known in entries:
            entry, made, likes = known
            if likes and likes != self.kernel.shapes_like(values):
                continue
            for i, shape, dtype in made:
                values[i] = self.kernel.memory.empty(shape, dtype)
            if not entry.run(values):
                for i, target, assignment in self.assigned:
                    values[i] = values[assignment] = values[target]
                if entries is not self._last:
                    self._last = [known]
                return entry
        return None

    def _shapes(self, values: list[Any]) -> tuple[Any, ...]:
        """The shapes of the arrays that are there before."""
        return tuple([values[i].shape for i in (*self.kernel.reads, *self.target_of.values())])

    def bind(self, values: list[Any], fixed: set[int], fast: FastCall | None) -> Step | None:
        """The step for these registers after it has run on them; of a call, None if there is nothing to run again.

        Parameters
        ----------
        values : list
        fixed : set of int
            The values that stay the same objects; those that this step makes so are added.
        fast : FastCall or None
            What it has given.
        """
        fixed |= self.persistent
        fixed.update(i for written, target, assign in self.assigned if target in fixed for i in (written, assign))
        is_fixed = fixed.issuperset(self.takes) and self.persistent.issuperset(self.makes)
        if fast is None or not is_fixed:
            return self.step()
        return Step(fast.bind(values), None, -1, None, self.dead, self.index, self)

    def run(self, values: list[Any]) -> FastCall | None:
        """Run on any arrays."""
        kernel, memory = self.kernel, self.kernel.memory
        places = [self.target_of.get(i, i if i in self.persistent else None) for i in kernel.writes]
        there = [None if place is None else values[place] for place in places]
        reads = [(values[i], kernel.axes[i], kernel.last_read.get(i, 0)) for i in kernel.reads]
        direct = [
            x if x is not None and _is_apart(x, kernel.axes[i], kernel.written_in.get(i, LAST), reads, memory) else None
            for i, x in zip(kernel.writes, there, strict=True)
        ]
        outputs = kernel.run(values, direct)
        ran = outputs is not None
        if outputs is None:
            outputs = list(run_steps(self._calls, [], taker(kernel.writes), _unnoted, values))
        for i, output, x in zip(kernel.writes, outputs, there, strict=True):
            if x is not None and output is not x:
                x[...] = output
            values[i] = output if x is None else x
        for i, _, assignment in self.assigned:
            values[assignment] = values[i]
        is_direct = all(x is y for x, y in zip(direct, there, strict=True))
        return self.remember(values) if ran and is_direct else None

    def remember(self, values: list[Any]) -> FastCall | None:
        """Let arrays that are laid out as these are be handed over as they are."""
        entry = self.kernel.entry(values, [self.target_of.get(i, i) for i in self.kernel.writes])
        if entry is not None:
            made = [(i, values[i].shape, values[i].dtype) for i in self.makes if i not in self.persistent]
            shapes, known = self._shapes(values), (entry, made, self.kernel.shapes_like(values))
            # A new list, for another thread may go through the old one.
            self._entries[shapes] = [known, *self._entries.get(shapes, [])[: ENTRIES - 1]]
            self._last = [known]
        return entry


def _is_apart(target: Any, axes: Axes, walk: float, reads: Sequence[tuple[Any, Axes, int]], memory: Memory) -> bool:
    """Whether a kernel that writes an array in a walk reads nothing there but, up to then, what it writes there."""
    for x, along, last in reads:
        if is_array(x) and overlap(x, target):
            here = memory.address(x) == memory.address(target)
            same = here and along == axes and x.shape == target.shape and x.strides == target.strides
            if not same or last > walk:
                return False
    return True


def _unnoted(error: Exception, index: int, roots: Any) -> None:
    """Leave it to the loop around this one to say what failed."""


def _targets(
    program: Program,
    steps: Sequence[Sequence[int]],
    kernels: Mapping[int, Runnable],
    calls: Mapping[int, CallStep],
    fits: Callable[[int, int], bool],
) -> dict[int, tuple[int, int]]:
    """For each value that its step may compute in the tensor that it is assigned to: the tensor, and the assignment.

    Nothing outside the step needs the value. What reads the tensor's memory runs no later than the step, and what may
    fail earlier: it is a kernel, which cannot, or a call that writes into memory of any layout.

    Parameters
    ----------
    fits : callable
        Whether a value and a target always have the same size.
    """
    first, instructions = len(program.leaves), program.instructions
    assigned = [index for step in steps for index in step if isinstance(instructions[index].op, Assign)]
    if not assigned:
        return {}
    memories = alias_sets(program)
    step_of = {index: n for n, step in enumerate(steps) for index in step}
    failing = max([n for i, n in step_of.items() if may_fail(instructions[i].op, instructions[i].node)], default=-1)
    readers: dict[int, list[int]] = {instructions[index].inputs[1]: [] for index in assigned}
    # The last two that read each memory: one of them is perhaps the assignment itself.
    latest: dict[Any, list[int]] = {x: [] for index in assigned for x in memories[instructions[index].inputs[0]]}
    for index in step_of:
        for i in instructions[index].inputs:
            if i in readers:
                readers[i].append(index)
            for memory in memories[i] & latest.keys():
                if index not in latest[memory]:
                    latest[memory] = [*latest[memory][-1:], index]
    found: dict[int, tuple[int, int]] = {}
    outputs = set(program.outputs)
    for index in assigned:
        target, value = instructions[index].inputs
        if value < first or value in outputs or value - first not in step_of:
            continue
        made, n = instructions[value - first], step_of[value - first]
        how = calls[value - first].implementation
        fills = n in kernels or (how.into is not None and how.is_strided)
        fills = fills and made.type.dtype == program.type_of(target).dtype and fits(value, target)
        changes = n not in kernels and how.update is not None and made.inputs[0] == target
        if not (fills or changes):
            continue
        is_alone = all(reader == index or step_of[reader] == n for reader in readers[value])
        others = [step_of[reader] for memory in memories[target] for reader in latest[memory] if reader != index]
        others = [] if instructions[index].op.owns_target else others
        is_there = target < first or step_of[target - first] < n
        if is_alone and is_there and all(other <= n for other in others) and failing < n + changes:
            found[value] = (target, index)
    return found


def _of_one_type(program: Program) -> Callable[[int, int], bool]:
    return lambda value, target: program.type_of(value) is program.type_of(target)


def _is_writable(program: Program, calls: Mapping[int, CallStep], operand: int, index: int) -> bool:
    """Whether a value may be written over an operand, which nothing else needs: a call has made it, in new memory."""
    made = operand - len(program.leaves)
    type = program.instructions[index].type
    return calls[made].implementation.into is not None and program.instructions[made].type is type and bool(type.shape)
