"""A program as steps: fused kernels where an executor runs them, and calls of its instructions' implementations.

Without an executor all steps are calls. Either way `optree.compile.program.run_steps` runs them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from copy import copy
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from backends.execution.epilogues import Epilogue, ProductWithEpilogue, with_epilogues
from backends.execution.memory import HOST, Memory
from backends.execution.routines import Implementation, ImplementationOf
from backends.execution.specialize import (
    NO_BASES,
    NO_MEMORY,
    OTHER_LAYOUT,
    OVERLAPS,
    FusedKernel,
    Run,
    at_once,
    layouts_of,
)
from optree.arrays import is_array, overlap
from optree.cache import Cache
from optree.compile.aliasing import Aliases, dead_after, failing, is_assignment, last_uses
from optree.compile.fusion import Call, Kernel
from optree.compile.pipeline import Options, lower, show
from optree.compile.program import ONE, Program, RegisterCall, Sizes, plain, run_steps, taker
from optree.op.index_map import is_view
from optree.ops.assignment import Assign
from optree.records import NamedTuple
from optree.tree.types import TensorType

#: Maximum entries of a step's table of calls.
CALLS = 256

#: An executor of kernels: from a program, a kernel, and the program's sizes to what runs the kernel.
Executor = Callable[[Program, Kernel, Sizes], FusedKernel]

#: From a program, its steps and the instructions of each to steps of which some are joined, in another order.
Join = Callable[[Program, list["Step"], list[Sequence[int]]], tuple[list["Step"], list[Sequence[int]]]]


class KernelCall(NamedTuple):
    """A kernel's call for arrays of one layout."""

    run: Run
    #: The values that are stored in new arrays, and the functions that make these.
    makes: list[tuple[int, Callable[[], Any]]]
    #: The kernel's `input_shapes`, if they do not follow from the layouts that the call checks.
    input_shapes: list[Any]


class _Quiet(threading.local):
    """A context of each thread with NumPy's warnings off, entered in a tenth of np.errstate's time."""

    def __init__(self) -> None:
        self.context = copy_context()
        self.context.run(np.seterr, all="ignore")
        self.context.run(_is_quiet.set, True)


_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)
_quiet = _Quiet()


def quietly(run: Callable[..., Any], *args: object) -> Any:
    """Call a function with NumPy's floating-point warnings off; calls may be nested."""
    return run(*args) if _is_quiet.get() else _quiet.context.run(run, *args)


class OnDemand(dict[int, Any]):
    """A dictionary of values that are made when they are first asked for: most instructions are in kernels alone."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: int) -> Any:
        value = self[key] = self._make(key)
        return value


class Draft:
    """A program on its way to steps; `TRANSFORMATIONS` fill in what its parameters do not give.

    `implementations`, `calls`: for each instruction its implementation, and its own step, on demand.
    `fused`: list of Kernel or Call.
    `epilogues`: products' epilogues, by their last instructions.
    `groups`: the instructions of each step.
    `kernels`: of the groups that have one.
    `targets`: for each value that is computed in the tensor that it is assigned to: the tensor, and the assignment.
    """

    sizes: Sizes | None = None
    calls: dict[int, CallStep]

    def __init__(
        self,
        program: Program,
        implementation_of: ImplementationOf,
        executor: Executor | None,
        options: Options,
        memory: Memory,
        is_atomic: bool,
        join: Join | None,
    ) -> None:
        self.program, self.executor, self.options = program, executor, options
        self.memory, self.is_atomic = memory, is_atomic
        self.implementations: dict[int, Implementation] = OnDemand(implementation_of)
        self.fused: list[Kernel | Call] = []
        self.epilogues: dict[int, Epilogue] = {}
        self.groups: list[Sequence[int]] = []
        self.kernels: dict[int, FusedKernel] = {}
        self.targets: dict[int, tuple[int, int]] = {}
        self.steps: list[Step] = []
        self.join = join

    def having(self, capability: str) -> list[int]:
        """The calls, other than assignments, whose implementations have a capability."""
        calls = [step.instruction for step in self.fused if isinstance(step, Call)]
        calls = [index for index in calls if not isinstance(self.program.instructions[index].op, Assign)]
        return [index for index in calls if getattr(self.implementations[index], capability)]

    def fits(self, value: int, target: int) -> bool:
        """Whether a value and a target always have the same size."""
        if self.sizes is None:
            return self.program.type_of(value) is self.program.type_of(target)
        return bool(self.sizes.dims[value] == self.sizes.dims[target])


def _fuse(draft: Draft) -> None:
    if draft.executor is not None:
        _, draft.sizes, draft.fused = lower(draft.program, draft.options, first="fusion", last="fusion")


def _add_epilogues(draft: Draft) -> None:
    if draft.sizes is not None and (products := draft.having("takes_epilogue")):
        draft.fused, draft.epilogues = with_epilogues(draft.program, draft.sizes, draft.fused, products)


def _make_calls(draft: Draft) -> None:
    make = partial(_call_step, draft.program, draft.implementations, draft.epilogues, draft.sizes, draft.memory)
    draft.calls = OnDemand(make)
    if draft.executor is None:  # all are needed
        draft.calls.update(enumerate(map(make, range(len(draft.program.instructions)))))


def _call_step(
    program: Program,
    implementations: Mapping[int, Implementation],
    epilogues: Mapping[int, Epilogue],
    sizes: Sizes | None,
    memory: Memory,
    index: int,
) -> CallStep:
    """The step of an instruction, or of a product and its epilogue."""
    if index not in epilogues:
        return CallStep(program, index, implementations[index], sizes, memory)
    epilogue = epilogues[index]
    product = implementations[epilogue.product]
    call = ProductWithEpilogue(product.call, epilogue)
    return CallStep(program, index, product._replace(call=call, into=call), sizes, memory, epilogue.inputs)


def _make_kernels(draft: Draft) -> None:
    groups = draft.groups
    if draft.executor is None:
        groups += [(index,) for index in range(len(draft.program.instructions))]
        return
    for step in draft.fused:
        if isinstance(step, Kernel):
            assert draft.sizes is not None
            draft.kernels[len(groups)] = draft.executor(draft.program, step, draft.sizes)
        groups.append(step.instructions)


def _find_targets(draft: Draft) -> None:
    """Find each value that its step may compute in the tensor that it is assigned to: that tensor, and the assignment.

    No later step reads the tensor's memory before, and none from this one on may fail: it is a kernel, which cannot, or
    a call that writes into memory of any layout. Later steps that need the value read it from the tensor, if it is
    a leaf that nothing else writes to.
    """
    program, steps, kernels, calls = draft.program, draft.groups, draft.kernels, draft.calls
    first, instructions = len(program.leaves), program.instructions
    assigned = [index for step in steps for index in step if isinstance(instructions[index].op, Assign)]
    if not assigned:
        return
    known = Aliases(program)
    aliases = known.sets
    step_of = {index: n for n, step in enumerate(steps) for index in step}
    fails = [step_of[i] for i in failing(instructions) if i in step_of] if draft.is_atomic else []
    last_failing = max(fails, default=-1)
    readers: dict[int, list[int]] = {instructions[index].inputs[1]: [] for index in assigned}
    # The last two readers of each memory: one of them may be the assignment itself.
    latest: dict[Any, list[int]] = {x: [] for index in assigned for x in aliases[instructions[index].inputs[0]]}
    for index in step_of:
        for i in instructions[index].inputs:
            if i in readers:
                readers[i].append(index)
            for memory in aliases[i] & latest.keys():
                if index not in latest[memory]:
                    latest[memory] = [*latest[memory][-1:], index]
    found, outputs = draft.targets, set(program.outputs)
    for index in assigned:
        target, value = instructions[index].inputs
        if value < first or value in outputs or value in found or value - first not in step_of:
            continue
        made, n = instructions[value - first], step_of[value - first]
        by = None if n in kernels else calls[value - first].implementation
        fills = by is None or (by.into is not None and by.is_strided)
        fills = fills and made.type.dtype == program.type_of(target).dtype and draft.fits(value, target)
        updates = by is not None and by.update is not None and made.inputs[0] == target
        if not (fills or updates):
            continue
        is_only_use = all(reader == index or step_of[reader] == n for reader in readers[value])
        is_only_use = is_only_use or (fills and _is_readable(program, known, value, target, index))
        others = [step_of[reader] for memory in aliases[target] for reader in latest[memory] if reader != index]
        is_safe = last_failing < n + (updates or (by is not None and by.is_atomic))
        if not is_assignment(instructions[index].op):  # a buffer that nothing else reads
            others, is_safe = [], True
        is_available = target < first or step_of[target - first] < n
        if is_only_use and is_available and all(other <= n for other in others) and is_safe:
            found[value] = (target, index)


def _is_readable(program: Program, aliases: Aliases, value: int, target: int, assignment: int) -> bool:
    """Whether later steps may read a value from its target: a leaf, whose memory nothing else writes or gives away."""
    sets = aliases.sets
    if target >= len(program.leaves) or any(sets[i] & sets[value] for i in program.outputs):
        return False
    others = (n for n in range(len(program.instructions)) if n != assignment)
    return not any(aliases.overwrites(n, (target, value)) for n in others)


def _make_steps(draft: Draft) -> None:
    program, groups, kernels, targets = draft.program, draft.groups, draft.kernels, draft.targets
    first = len(program.leaves)
    assigned = {assign for _, assign in targets.values()}
    #: Values of calls that other steps read, too: their assignments remain, with nothing to copy.
    made_by_calls = {first + group[-1] for n, group in enumerate(groups) if n not in kernels} & targets.keys()
    uses = Counter(i for each in program.instructions for i in set(each.inputs)) if made_by_calls else Counter[int]()
    shared = {i for i in made_by_calls if uses[i] > 1}
    assigned -= {targets[i][1] for i in shared}
    remaining = [n for n, group in enumerate(groups) if n in kernels or group[-1] not in assigned]
    for n in remaining:
        if n in kernels:
            step: Step = KernelStep(kernels[n], targets, first, groups[n], draft.calls)
        else:
            step = call = draft.calls[groups[n][-1]]
            if call.output in shared:
                call.write_to(targets[call.output][0])
            elif call.output in targets:
                target, assignment = targets[call.output]
                call.assign_to(target, first + assignment)
        draft.steps.append(step)
    draft.groups = [groups[n] for n in remaining]


def _join_kernels(draft: Draft) -> None:
    if draft.join is not None:
        draft.steps, draft.groups = draft.join(draft.program, draft.steps, draft.groups)


def _set_dead(draft: Draft) -> None:
    dead = dead_after(draft.program, last_uses(draft.program, draft.groups), len(draft.groups))
    for step, own in zip(draft.steps, dead, strict=True):
        step.dead = own


def _overwrite_operands(draft: Draft) -> None:
    calls, targets, first, made = draft.calls, draft.targets, len(draft.program.leaves), draft.program.instructions
    for step in draft.steps if draft.executor is None else ():  # hot, of long programs
        if not isinstance(step, CallStep) or not step.implementation.in_place or step.out is not None:
            continue
        type = made[step.index].type
        for i in step.dead if step.target is None and type.shape else ():
            # A call has allocated the operand, of the same type, and it has no other use.
            is_free = i in step.inputs and i not in targets and made[i - first].type is type
            if is_free and calls[i - first].implementation.into is not None:
                step.out = i
                break


class Transformation(NamedTuple):
    """A transformation of a draft, with the reason for its position."""

    run: Callable[[Draft], None]
    reason: str


#: From a program to its steps, in order.
TRANSFORMATIONS = (
    Transformation(_fuse, "first: kernels and calls, which the others change"),
    Transformation(_add_epilogues, "before kernels are made: a product with its epilogue is a call"),
    Transformation(_make_calls, "of the program as it is now; kernels that do not run are replaced by these"),
    Transformation(_make_kernels, "by the executor"),
    Transformation(_find_targets, "of kernels, which cannot fail, and of calls that write in any layout"),
    Transformation(_make_steps, "without assignments of what is computed in its target"),
    Transformation(_join_kernels, "of steps whose targets are known; those of independent kernels"),
    Transformation(_set_dead, "liveness, in the order of the steps"),
    Transformation(_overwrite_operands, "last: by liveness, calls compute in operands that are not used again"),
)


def steps_of(
    program: Program,
    implementation_of: ImplementationOf,
    executor: Executor | None = None,
    options: Options = Options(),  # noqa: B008
    memory: Memory = HOST,
    is_atomic: bool = True,
    join: Join | None = None,
) -> list[Step]:
    """The steps of a program, with their liveness; values that are only assigned are computed in their targets.

    `executor`: without it each instruction is a call.
    `options`: the backend's, of lowering: the stage of fusion is run by them.
    `memory`: the memory of the arrays.
    `is_atomic`: whether targets are as they were if a later step fails.
    `join`: joins the steps of independent kernels.
    """
    draft = Draft(program, implementation_of, executor, options, memory, is_atomic, join)
    for transformation in TRANSFORMATIONS:
        transformation.run(draft)
    if options.shown:
        show("plan", partial(steps_text, draft.program, draft.steps))
    return draft.steps


def runnable(steps: Sequence[Step]) -> list[tuple[Any, ...]]:
    """The steps as `run_steps` takes them; the last frees nothing, as the registers are freed after it."""
    found = [step.runnable() for step in steps]
    return plain([*found[:-1], *(step._replace(dead=()) for step in found[-1:])])


def with_views(program: Program, steps: Sequence[Step]) -> list[Step]:
    """The steps, in which kernels make the views that they alone read: their calls read the arrays in their place."""
    readers = Counter(i for step in steps for i in {*step.uses})
    kernels = [step for step in steps if isinstance(step, KernelStep)]
    others = {*program.outputs}.union(*((*step.kernel.shape_inputs, *step.target_of.values()) for step in kernels))
    views = {
        step.output: step
        for step in steps
        if isinstance(step, CallStep) and step.is_view and readers[step.output] == 1 and step.output not in others
    }
    found = [step.reading(views) if isinstance(step, KernelStep) else step for step in steps]
    within = {id(view) for step in found if isinstance(step, KernelStep) for view in step.views}
    return [step for step in found if id(step) not in within]


class Step:
    """One step of a plan: a kernel (`KernelStep`), or a call of an instruction's implementation (`CallStep`)."""

    #: ``'kernel'`` or ``'call'``.
    kind: str
    #: The indices of its instructions.
    numbers: Sequence[int]
    #: The last of them.
    index: int
    #: The registers that it reads, and those that it sets.
    uses: Sequence[int]
    defines: Sequence[int]
    #: Those of them that are in new memory.
    makes: Sequence[int]
    #: The values that it can write into preallocated memory.
    plannable: Sequence[int]
    #: Those of them whose memory stays in the registers from run to run.
    persistent: frozenset[int] | set[int] = frozenset()
    #: The register of an operand, or of a tensor, in whose memory a call's value is.
    out: int | None = None
    #: The values whose last use it is.
    dead: Sequence[int] = ()

    @property
    def members(self) -> Sequence[Step]:
        """The steps that it joins; by default itself."""
        return (self,)

    def runnable(self) -> RegisterCall:
        """The step as `run_steps` takes it."""
        raise NotImplementedError

    def bind(self, values: list[Any], fixed: set[int], known: KernelCall | None) -> RegisterCall | None:
        """The step, bound to registers on which it has run; None if it need not run again.

        `fixed`: the registers that hold the same objects in each run; those that this step fixes are added.
        `known`: the call by which a kernel has run.
        """
        raise NotImplementedError


class CallStep(Step):
    """The step of an instruction's implementation; it needs no operand of which it uses a known shape alone."""

    kind = "call"
    #: The tensor that its value is assigned to and computed in.
    target: int | None = None
    #: The dtypes of the operands of which it uses a shape that is known without them.
    shaped: Mapping[int, np.dtype] = MappingProxyType({})

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
        #: The call's operands.
        self.inputs = instruction.inputs if inputs is None else inputs
        self.output = len(program.leaves) + index
        unread = self.op.index_map.shape_only
        if sizes is not None and unread:
            known = [n for n in unread if sizes.is_known(self.inputs[n])]
            self.shaped = {n: program.type_of(self.inputs[n]).dtype for n in known}
        # Kernels take arrays; a library's function of arrays without axes may return a scalar.
        is_scalar = sizes is not None and isinstance(instruction.type, TensorType) and not instruction.type.ndim
        self._call = partial(_as_array, implementation.call) if is_scalar else implementation.call
        self._memory = memory
        self.numbers, self.uses, self.defines = (index,), self.inputs, (self.output,)
        self.plannable = () if implementation.into is None else self.defines

    @property
    def is_fixed(self) -> bool:
        """Whether its value depends on sizes alone."""
        return len(self.shaped) == len(self.inputs) > 0

    @property
    def is_view(self) -> bool:
        """Whether its value is a view of its only operand, or a copy, as that one's shape and strides decide."""
        return is_view(self.op) and len(self.inputs) == 1

    @property
    def makes(self) -> Sequence[int]:  # type: ignore[override]
        is_new = self.target is None and self.out is None and not self.op.shared_inputs()
        return (self.output,) if is_new else ()

    def run(self, values: list[Any]) -> None:
        """Compute the value in new memory, or as a view."""
        values[self.output] = self._call(*[values[i] for i in self.inputs])

    def assign_to(self, target: int, assignment: int) -> None:
        """Compute the value in the target of its only assignment."""
        self.target, self.output, self.plannable, self.defines = target, assignment, (), (assignment,)
        if self.implementation.update is not None and self.inputs[0] == target:
            self._call = self.implementation.update
        else:
            self.uses = (*self.inputs, target)
            self.out = target

    def write_to(self, target: int) -> None:
        """Compute the value in the target of an assignment, which remains."""
        self.plannable, self.uses, self.out = (), (*self.inputs, target), target

    def runnable(self) -> RegisterCall:
        take = self._operands if self.shaped else taker(self.inputs)
        out = self.output if self.persistent else self.out
        call = self._call if out is None else self.implementation.into
        assert call is not None
        return RegisterCall(call, take, self.output, out, self.dead, self.index)

    def _operands(self, values: list[Any]) -> list[Any]:
        assert self.sizes is not None
        found = [values[i] for i in self.inputs]
        for n, dtype in self.shaped.items():
            found[n] = self._memory.shaped(self.sizes.shape_of(self.inputs[n], values), dtype)
        return found

    def bind(self, values: list[Any], fixed: set[int], known: KernelCall | None) -> RegisterCall | None:
        shares = self.target if self.target is not None else self.inputs[0] if isinstance(self.op, Assign) else None
        is_view = len(self.inputs) == 1 and bool(self.op.view_map) and not self.op.destroy_map
        is_view = is_view and self.inputs[0] in fixed and _is_view(values[self.output], values[self.inputs[0]])
        if self.is_fixed or is_view or self.persistent or shares in fixed:
            fixed.add(self.output)
        if self.is_fixed or is_view:
            return None
        step = self.runnable()
        if step.out not in fixed or not fixed.issuperset(self.inputs):
            return step
        call = partial(step.call, *[values[i] for i in self.inputs], out=values[step.out])
        return step._replace(call=call, take=taker(()), out=None)

    def __str__(self) -> str:
        by = f" by {self.implementation.label}" if self.implementation.label else ""
        made = f"call {self.op}({_numbered(self.inputs)}){by} gives %{self.output}"
        out = self.out if self.target is None else self.target
        memory = sorted(self.inputs[i] for i in self.op.shared_inputs()) if out is None else [out]
        return f"{made} in the memory of {_numbered(memory)}" if memory else f"{made} in new memory"


def _as_array(call: Callable[..., Any], *operands: np.ndarray) -> Any:
    value = call(*operands)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _is_view(x: object, of: object) -> bool:
    """Whether an array is a view of another."""
    return is_array(x) and is_array(of) and overlap(x, of)


class KernelStep(Step):
    """A kernel's step; a value that is only assigned is stored in its target, where that overlaps nothing it loads.

    It runs by a call for the layout of its arrays. A kernel that has none is replaced by the calls of its instructions.
    """

    kind = "kernel"
    #: The views that it makes before it runs, which nothing else reads.
    views: Sequence[CallStep] = ()
    #: For each loaded value among them, the one whose memory it is in.
    bases: Mapping[int, int] = NO_BASES

    def __init__(
        self,
        kernel: FusedKernel,
        targets: Mapping[int, tuple[int, int]],
        first: int,
        instructions: Sequence[int],
        calls: Mapping[int, CallStep],
    ) -> None:
        self.kernel, self.index, self.numbers, self._instruction_calls = kernel, instructions[-1], instructions, calls
        #: The values that are computed in their targets, with the target and the assignment of each.
        self.assigned = [(i, targets[i][0], first + targets[i][1]) for i in kernel.writes if i in targets]
        self.target_of = {i: target for i, target, _ in self.assigned}
        dims = kernel.sizes.dims
        checked = {ONE}.union(*(dims[i] or () for i in (*kernel.reads, *self.target_of.values())))
        wanted = [dims[i] for i in kernel.shape_inputs]
        #: Whether it uses sizes that do not follow from those of the arrays whose layouts its calls check.
        self._uses_shapes = any(each is None or not checked.issuperset(each) for each in wanted)
        self.plannable = self.makes = [i for i in kernel.writes if i not in self.target_of]
        self.uses = [*kernel.uses, *self.target_of.values()]
        self.defines = [*kernel.writes, *(assignment for *_, assignment in self.assigned)]
        self._forget()

    def _forget(self) -> None:
        #: The values whose arrays exist before the step.
        self._present = [*(self.bases.get(i, i) for i in self.kernel.reads), *self.target_of.values()]
        #: The table of calls, by the layouts of these; the last call, and the last that stored all in new arrays.
        self._calls: Cache = Cache("calls of kernels", CALLS)
        self._last: KernelCall | None = None
        self._apart: KernelCall | None = None

    def reading(self, views: Mapping[int, CallStep]) -> KernelStep:
        """The step that makes those of some views itself that it loads, and those of which they are views."""
        bases, made = dict[int, int](), list[CallStep]()
        for i in self.kernel.reads:
            base, chain = i, list[CallStep]()
            while base in views:
                chain.append(views[base])
                base = views[base].inputs[0]
            if chain:
                bases[i] = base
                made += reversed(chain)
        if not made:
            return self
        step = copy(self)
        step.views, step.bases = made, bases
        step.uses = [bases.get(i, i) for i in self.uses]
        step.dead = [i for dead in (*(view.dead for view in made), self.dead) for i in dead]
        step._forget()
        return step

    def runnable(self) -> RegisterCall:
        return RegisterCall(self.__call__, None, -1, None, self.dead, self.index)

    def __call__(self, values: list[Any]) -> KernelCall | None:
        """Run the kernel; the call by which it has run, if that has stored all values where they belong."""
        known = self._last
        status = OTHER_LAYOUT if known is None else self._status(known, values)
        if status == OTHER_LAYOUT:
            known = self._calls.get(self._key(values))
            status = OTHER_LAYOUT if known is None else self._status(known, values)
            if not status:
                self._last = known
        if not status or (status == OVERLAPS and self._has_run_apart(self._apart, values)):
            return None if status else known
        return quietly(self._run, values, status)

    def _status(self, known: KernelCall, values: list[Any]) -> int:
        """Run by a call, if the arrays have its layout; its status."""
        run, makes, input_shapes = known
        if input_shapes and input_shapes != self.kernel.input_shapes(values):
            return OTHER_LAYOUT
        for i, make in makes:
            values[i] = make()
        status = run(values)
        if not status:
            for i, target, assignment in self.assigned:
                values[i] = values[assignment] = values[target]
        return status

    def _key(self, values: list[Any], is_apart: bool = False) -> Any:
        """The layouts of the arrays that exist before the step, and the shapes that do not follow from them."""
        layouts = layouts_of([values[i] for i in self._present], self.kernel.memory)
        return layouts, tuple(self.kernel.input_shapes(values)) if self._uses_shapes else (), is_apart

    def _run(self, values: list[Any], status: int) -> KernelCall | None:
        """Run the kernel where no call has: for arrays of another layout, or where it would write over its reads."""
        for view in self.views:
            view.run(values)
        for i in self.kernel.reads:
            values[i] = self.kernel.memory.array(values[i])
        known = None
        if status == OTHER_LAYOUT:
            known = self._specialized(values)
            status = OTHER_LAYOUT if known is None else known.run(values)
        if status == NO_MEMORY:
            raise MemoryError(f"{self}: there is no memory for its scratch arrays")
        apart = self._calls.get(self._key(values, True)) if status == OVERLAPS else None
        has_run = not status or self._has_run_apart(apart, values)
        if not has_run and status == OVERLAPS:
            has_run = self._has_run_apart(self._specialized(values, True), values, True)
        if not has_run:
            at_once(self._run_otherwise, values)
        for i, target, assignment in self.assigned:
            values[i] = values[assignment] = values[target]
        self._last = self._last if status else known
        return None if status else known

    def _has_run_apart(self, known: KernelCall | None, values: list[Any], is_new: bool = False) -> bool:
        """Whether a call has stored all values in new arrays, which are copied to their targets then."""
        if known is None or (known.input_shapes and known.input_shapes != self.kernel.input_shapes(values)):
            return False
        for i, make in () if is_new else known.makes:
            values[i] = make()
        if at_once(known.run, values):
            return False
        for i, target, assignment in self.assigned:
            values[target][...] = values[i]
            values[i] = values[assignment] = values[target]
        self._apart = known
        return True

    def _specialized(self, values: list[Any], is_apart: bool = False) -> KernelCall | None:
        """The call for arrays of this layout, now in the table, with its new arrays among the values; None without any.

        `is_apart`: whether values are stored in new arrays instead of in their targets.
        """
        kernel, memory, given = self.kernel, self.kernel.memory, self.given(values, is_apart)
        input_shapes = kernel.input_shapes(values)
        found = kernel.specialize([*(values[i] for i in kernel.reads), *given], input_shapes)
        if found is None:
            return None
        stored = zip(kernel.writes, found.shapes, given, strict=True)
        makes = [(i, memory.maker(shape, kernel.dtypes[i])) for i, shape, x in stored if x is None]
        for i, make in makes:
            values[i] = make()
        written = [i if is_apart else self.target_of.get(i, i) for i in kernel.writes]
        are_views = all(_is_view(values[i], values[base]) for i, base in self.bases.items())
        run = kernel.call(found, values, written, self.bases if are_views else NO_BASES)
        if not are_views:
            run = partial(_after_views, self.views, run)
        known = KernelCall(run, makes, input_shapes if self._uses_shapes else [])
        self._calls[self._key(values, is_apart)] = known
        return known

    def given(self, values: Sequence[Any], is_apart: bool = False) -> list[Any]:
        """For each value that it stores an array that is there for it, or None."""
        targets = {} if is_apart else self.target_of
        registers = [targets.get(i, i if i in self.persistent else None) for i in self.kernel.writes]
        return [None if register is None else values[register] for register in registers]

    def _run_otherwise(self, values: list[Any]) -> None:
        """Run the kernel by its instructions' implementations."""
        given, writes = self.given(values), self.kernel.writes
        outputs = run_steps(self._fallback, [], taker(writes), _unnoted, values)
        for i, output, x in zip(writes, outputs, given, strict=True):
            if x is not None and output is not x:
                x[...] = output
            values[i] = output if x is None else x

    @cached_property
    def _fallback(self) -> list[RegisterCall]:
        """The calls of its instructions, made when the kernel first does not run."""
        return [self._instruction_calls[index].runnable() for index in self.numbers]

    def bind(self, values: list[Any], fixed: set[int], known: KernelCall | None) -> RegisterCall | None:
        fixed |= self.persistent
        fixed.update(i for written, target, assign in self.assigned if target in fixed for i in (written, assign))
        is_fixed = fixed.issuperset(self.uses) and self.persistent.issuperset(self.plannable)
        if known is None or not is_fixed:
            return self.runnable()
        return RegisterCall(known.run, None, -1, None, self.dead, self.index, self)

    def __str__(self) -> str:
        written = [
            f"%{value} in the memory of %{self.target_of[value]}"
            if value in self.target_of
            else f"%{value} in new memory"
            for value in self.kernel.writes
        ]
        uses = _numbered(sorted(self.kernel.uses))
        return f"kernel({uses}) writes {' and '.join(written)}"


def _after_views(views: Sequence[CallStep], run: Run, values: list[Any]) -> int:
    """A call after the views that it reads have been made, because they are copies."""
    for view in views:
        view.run(values)
    return run(values)


def steps_text(program: Program, steps: Sequence[Step]) -> str:
    """The steps of a program, a line each: what each reads, the memory that it writes, and what it frees."""
    defined, lines = {value for step in steps for value in step.defines}, []
    for step in steps:
        freed = [value for value in step.dead if value in defined and step is not steps[-1]]  # all are, after the last
        lines.append(f"{step}, frees {_numbered(freed)}" if freed else str(step))
    return "\n".join([*lines, f"return {_numbered(program.outputs)}"])


def _numbered(values: Iterable[int]) -> str:
    return ", ".join(f"%{value}" for value in values)


def _unnoted(error: Exception, index: int, roots: object) -> None:
    """Add no note: the caller's loop does."""
