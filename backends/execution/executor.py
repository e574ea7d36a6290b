"""A program's fused steps as functions of its registers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from backends.execution.epilogues import ProductWithEpilogue, places, with_epilogues
from backends.execution.errstate import quietly
from backends.execution.memory import HOST, Memory
from backends.execution.runner import Entry
from backends.execution.specialize import LAST
from optree.arrays import is_array, overlap
from optree.compile.dimensions import Dims, Sizes
from optree.compile.fusion import Axes, Call, Kernel, fuse
from optree.compile.program import Program
from optree.compile.schedule import may_fail, memories
from optree.ops.assignment import Assign

#: A step remembers so many combinations of shapes, and so many layouts of each.
SHAPES, ENTRIES = 256, 4


#: From the place of an instruction to its function of values.
CallOf = Callable[[int], Callable[..., Any]]


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

    def entry(self, values: Sequence[Any], places: Sequence[int]) -> Entry | None:
        """The quickest way to run on values that lie as these do, and are written in these places, if there is one."""


#: From a program, a kernel of it, the program's sizes and the calls of its instructions to what runs the kernel;
#: None if the executor does not.
Executor = Callable[[Program, Kernel, Sizes, CallOf], Runnable | None]


def fused_steps(program: Program, executor: Executor, call_of: CallOf, memory: Memory = HOST) -> list[PlacedStep]:
    """The steps, each with the values that nothing needs after it, and the place of its last instruction.

    What the executor does not run is called instruction by instruction.

    Parameters
    ----------
    memory : Memory
        Of the arrays.
    """
    sizes = Sizes(program)
    steps: list[Kernel | Call] = []
    kernels: list[Runnable] = []
    calls_of = {place: call_of(place) for place in range(len(program.instructions))}
    takers = [place for place, call in calls_of.items() if getattr(call, "takes_epilogue", False)]
    fused, epilogues = with_epilogues(program, fuse(program, sizes), takers)
    for place, epilogue in epilogues.items():
        calls_of[place] = ProductWithEpilogue(calls_of[epilogue.product], epilogue)
    for step in fused:
        kernel = executor(program, step, sizes, call_of) if isinstance(step, Kernel) else None
        if kernel is not None:
            kernels.append(kernel)
            steps.append(step)
        else:
            steps += [Call(place) for place in step.places] if isinstance(step, Kernel) else [step]
    calls = {place: CallStep(program, sizes, place, call, memory) for place, call in calls_of.items()}
    products = {place for place, call in calls.items() if call.is_product}
    targets = _targets(program, steps, sizes.dims, products)
    first = len(program.leaves)
    assigned = {assign for _, assign in targets.values()}
    found: list[PlacedStep] = []
    kept = [step for step in steps if isinstance(step, Kernel) or step.place not in assigned]
    dead, ready = _dead(program, kept), iter(kernels)
    for step, free in zip(kept, dead, strict=True):
        if isinstance(step, Kernel):
            within = [calls[place] for place in step.places]
            found.append((KernelStep(next(ready), targets, first, within), free, step.places[-1]))
        else:
            if first + step.place in targets:
                target, assignment = targets[first + step.place]
                calls[step.place].assign_to(target, first + assignment)
            found.append((calls[step.place], free, step.place))
    if found:  # all goes after the last step
        found[-1] = found[-1][0], [], found[-1][2]
    return found


class CallStep:
    """A call's step; an operand of which it takes a known shape alone need not be there.

    What a product makes for an assignment alone goes into its target.

    Attributes
    ----------
    inputs : tuple of int
        The values that the call takes.
    makes : list of int
        The values that it can write into memory that is there: a ufunc's.
    kept : set of int
        Those for which the list of values has memory.
    takes, gives : list of int
        The values that it works on, and those that it sets.
    """

    def __init__(
        self, program: Program, sizes: Sizes, place: int, call: Callable[..., Any], memory: Memory = HOST
    ) -> None:
        self.instruction, self.output, self.call = program.instructions[place], len(program.leaves) + place, call
        self.sizes, self.memory = sizes, memory
        inputs = call.epilogue.inputs if isinstance(call, ProductWithEpilogue) else self.instruction.inputs
        self.inputs = inputs
        alone = self.instruction.op.shape_only
        #: The dtypes of the operands that need not be there, for their known shape is all that counts.
        self.shaped = {n: program.type_of(i).dtype for n, i in enumerate(inputs) if n in alone and sizes.is_known(i)}
        self.makes = [self.output] if isinstance(call, np.ufunc) or self.is_product else []
        self.kept: set[int] = set()
        self.takes, self.gives = [*inputs], [self.output]
        self.target: int | None = None

    @property
    def is_product(self) -> bool:
        """Whether it is a product that can be written into a target of any layout, though it overlaps operands."""
        return self.call is np.matmul or getattr(self.call, "is_product", False)

    def assign_to(self, target: int, assignment: int) -> None:
        """Let the value be made in the target that it is assigned to alone."""
        self.target, self.makes = target, []
        self.takes.append(target)
        self.gives.append(assignment)

    def __call__(self, values: list[Any]) -> None:
        inputs = [values[i] for i in self.inputs]
        for n, dtype in self.shaped.items():
            inputs[n] = self.memory.shaped(self.sizes.shape_of(self.inputs[n], values), dtype)
        if self.target is not None:
            self.call(*inputs, out=values[self.target])
            for i in self.gives:
                values[i] = values[self.target]
        elif self.kept:
            self.call(*inputs, out=values[self.output])
        else:
            value = self.call(*inputs)
            # Kernels are handed over arrays.
            values[self.output] = np.asarray(value) if isinstance(value, np.generic) else value

    def again(self, values: list[Any], steady: set[int]) -> Callable[[], Any] | None:
        """See `KernelStep.again`."""
        self(values)
        inputs, op = self.inputs, self.instruction.op
        if self.target is not None and self.target in steady:
            steady.update(self.gives)
            if not steady.issuperset(inputs):
                return None
            call = partial(self.call, *[values[i] for i in inputs], out=values[self.target])
            return lambda: call() is None
        if steady.issuperset(inputs) and self.kept:
            steady.add(self.output)
            call = partial(self.call, *[values[i] for i in inputs], out=values[self.output])
            return lambda: call() is None
        if steady.issuperset(inputs) and isinstance(op, Assign):
            steady.add(self.output)
            call = partial(self.call, *[values[i] for i in inputs])
            return lambda: call() is None
        is_view = len(inputs) == 1 and op.view_map and not op.destroy_map
        if steady.issuperset(inputs) and is_view and _is_view(values[self.output], values[inputs[0]]):
            steady.add(self.output)
            return _nothing
        if len(self.shaped) == len(inputs) > 0:  # the list of values is for arguments of one combination of sizes
            steady.add(self.output)
            return _nothing
        steady |= self.kept
        return None


def _nothing() -> None:
    return None


def _is_view(x: Any, of: Any) -> bool:
    """Whether an array looks into the memory of another."""
    return is_array(x) and is_array(of) and overlap(x, of)


#: A way into a kernel, with the shapes and dtypes of what it makes anew, and the shapes of what is like it.
_Entry = tuple[Entry, list[Any], Any]


class KernelStep:
    """A kernel's step: what is only assigned goes into its target, where that overlaps nothing that is read.

    What the kernel leaves to NumPy goes through the calls of its instructions.
    Arrays that lie as some did before are handed over as they are (`backends.cpu.entry`).

    Attributes
    ----------
    makes : list of int
        The values that it can write into memory that is there.
    kept : set of int
        Those for which the list of values has memory.
    takes, gives : list of int
        The values that it works on, and those that it sets.
    """

    def __init__(
        self, kernel: Runnable, targets: dict[int, tuple[int, int]], first: int, calls: Sequence[CallStep]
    ) -> None:
        self.kernel, self.calls = kernel, calls
        #: The numbers of what is assigned, of its target and of the assignment.
        self.assigned = [(i, targets[i][0], first + targets[i][1]) for i in kernel.writes if i in targets]
        self.target_of = {i: target for i, target, _ in self.assigned}
        self.makes = [i for i in kernel.writes if i not in self.target_of]
        self.kept: set[int] = set()
        self.takes = [*kernel.takes, *self.target_of.values()]
        self.gives = [*kernel.writes, *(assignment for *_, assignment in self.assigned)]
        #: The ways to run on arrays that lie as some did, by the shapes of those that are there before; and the last.
        self._entries: dict[Any, list[_Entry]] = {}
        self._last: list[_Entry] = []

    def __call__(self, values: list[Any]) -> Entry | None:
        """Run; how it can run again on arrays that lie as these do."""
        return (
            self._entered(self._last, values)
            or self._entered(self._entries.get(self._shapes(values), ()), values)
            or quietly(self.run, values)
        )

    def _entered(self, entries: Sequence[_Entry], values: list[Any]) -> Entry | None:
        """Run by one of some ways, if one is for arrays that lie as these do."""
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

    def again(self, values: list[Any], steady: set[int]) -> Callable[[], Any] | None:
        """Run; if nothing but steady values took part, what does so from now on, unless it gives something true.

        Parameters
        ----------
        values : list
        steady : set of int
            The values that stay the same objects; those that this step makes so are added.
        """
        entry = self(values)
        steady |= self.kept
        steady.update(i for written, target, assign in self.assigned if target in steady for i in (written, assign))
        is_steady = steady.issuperset(self.kernel.takes) and steady.issuperset(self.target_of.values())
        if entry is None or not is_steady or not self.kept.issuperset(self.makes):
            return None
        return entry.bound(values)

    def run(self, values: list[Any]) -> Entry | None:
        """Run on any arrays."""
        kernel, memory = self.kernel, self.kernel.memory
        places = [self.target_of.get(i, i if i in self.kept else None) for i in kernel.writes]
        there = [None if place is None else values[place] for place in places]
        reads = [(values[i], kernel.axes[i], kernel.last_read.get(i, 0)) for i in kernel.reads]
        direct = [
            x if x is not None and _is_apart(x, kernel.axes[i], kernel.written_in.get(i, LAST), reads, memory) else None
            for i, x in zip(kernel.writes, there, strict=True)
        ]
        outputs = kernel.run(values, direct)
        ran = outputs is not None
        if outputs is None:
            for call in self.calls:
                call(values)
            outputs = [values[i] for i in kernel.writes]
        for i, output, x in zip(kernel.writes, outputs, there, strict=True):
            if x is not None and output is not x:
                x[...] = output
            values[i] = output if x is None else x
        for i, _, assignment in self.assigned:
            values[assignment] = values[i]
        is_direct = all(x is y for x, y in zip(direct, there, strict=True))
        return self.remember(values) if ran and is_direct else None

    def remember(self, values: list[Any]) -> Entry | None:
        """Let arrays that lie as these do be handed over as they are."""
        entry = self.kernel.entry(values, [self.target_of.get(i, i) for i in self.kernel.writes])
        if entry is not None:
            made = [(i, values[i].shape, values[i].dtype) for i in self.makes if i not in self.kept]
            shapes, known = self._shapes(values), (entry, made, self.kernel.shapes_like(values))
            if len(self._entries) >= SHAPES:
                self._entries.clear()
            # A new list, for another thread may walk through the old one.
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


def _targets(
    program: Program, steps: Sequence[Any], dims: Sequence[Dims | None], products: Collection[int] = ()
) -> dict[int, tuple[int, int]]:
    """For each value that a step may make in the tensor that it is assigned to: the tensor, and the assignment.

    Nothing outside the step needs the value, and what reads the tensor, or may fail, runs no later than the step.

    Parameters
    ----------
    products : collection of int
        The places of the calls that can write where they are told to.
    """
    first, owned = len(program.leaves), memories(program)
    step_of = {place: n for n, step in enumerate(steps) for place in places(step)}
    run = {place: program.instructions[place] for place in sorted(step_of)}
    failing = [step_of[place] for place, each in run.items() if may_fail(each.op, each.node)]
    readers: dict[int, list[int]] = {}
    for place, instruction in run.items():
        for i in instruction.inputs:
            readers.setdefault(i, []).append(place)
    found: dict[int, tuple[int, int]] = {}
    for place, instruction in run.items():
        if not isinstance(instruction.op, Assign) or instruction.inputs[1] < first:
            continue
        target, value = instruction.inputs
        made = value - first
        same = dims[value] == dims[target] and program.instructions[made].type.dtype == instruction.type.dtype
        alone = value not in program.outputs and all(p == place or step_of[p] == step_of[made] for p in readers[value])
        if not (same and alone and (made in products or isinstance(steps[step_of[made]], Kernel))):
            continue
        overlapping = [p for i, ps in readers.items() if owned[i] & owned[target] for p in ps if p != place]
        if all(step_of[p] <= step_of[made] for p in overlapping) and all(n < step_of[made] for n in failing):
            found[value] = (target, place)
    return found


def _dead(program: Program, steps: Sequence[Any]) -> list[list[int]]:
    """For each step the values, none of them leaves, that no later step and no view needs."""
    first = len(program.leaves)
    last: dict[int, int] = {i: len(steps) for i in program.outputs}
    for number in range(len(steps) - 1, -1, -1):
        for place in reversed(places(steps[number])):
            instruction = program.instructions[place]
            until = max(number, last.get(first + place, -1)) if instruction.op.shared_inputs() else number
            for i in instruction.inputs:
                last[i] = max(last.get(i, -1), until)
    dead: list[list[int]] = [[] for _ in steps]
    for value, number in last.items():
        if value >= first and number < len(steps):
            dead[number].append(value)
    return dead


#: A step, the values that nothing needs after it, and the place of its last instruction.
PlacedStep = tuple[KernelStep | CallStep, list[int], int]


def walk(
    steps: Sequence[tuple[Callable[[list[Any]], Any], Sequence[int], int]],
    open: list[Any],
    outputs: Sequence[int],
    note: Callable[[Exception, int, Any], None],
    values: list[Any],
    roots: Any,
) -> list[Any]:
    """The outputs, step by step.

    Parameters
    ----------
    steps : sequence
        Each with the values that nothing needs after it, and the place of its last instruction.
    open : list
        What follows the leaves' values before anything has been computed.
    note : callable
        Takes the error of a step, its place, and `roots`.
    values : list
        Those of the leaves.
    roots : object
        What runs, for errors.
    """
    registers = values + open
    place = 0
    try:
        for step, dead, place in steps:  # noqa: B007 the failing step's place
            step(registers)
            for i in dead:
                registers[i] = None
    except Exception as error:
        note(error, place, roots)
        raise
    return [registers[i] for i in outputs]
