"""Profiles of functions: the time and memory of each kernel and call, relative to the machine's peaks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from optree.cache import Cache
from optree.compile.program import Instruction, Plan, Steps, run_steps, shapes_of, taker
from optree.records import NamedTuple
from optree.registry import f
from optree.run.memory import MemoryReport, bytes_of, memory_of
from optree.tree.printing import as_html, described
from optree.tree.variable import Variable

#: The bytes of the array that is copied, and the rows of the matrices that are multiplied, to measure a machine.
COPIED, MULTIPLIED, TRIALS = 1 << 27, 1024, 5

#: The calls of a function whose times are kept: the last ones.
KEPT = 1000

_limits: Cache = Cache("measured limits of backends", 8)


class Limits(NamedTuple):
    """The measured peaks of a machine per second: bytes of memory traffic, and flops of float32 products."""

    bytes: float
    flops: float


class Part(NamedTuple):
    """A kernel or call of a step: its median time, memory traffic and flops.

    Attributes
    ----------
    what : str
        Its op (for a kernel, the last one), its type, and the line that built it.
    kind : {'kernel', 'call'}
    seconds : float
    bytes : int
        The size of the arrays that it reads and writes.
    flops : int
        The sum of the ops' `flops`.
    """

    what: str
    kind: str
    seconds: float
    bytes: int
    flops: int

    def share(self, limits: Limits) -> float:
        """The minimum time under the limits, divided by the measured time."""
        least = max(self.bytes / limits.bytes, self.flops / limits.flops)
        return least / self.seconds if self.seconds else 0.0


class Profile:
    """The profile of a function. It prints as a table, most expensive part first; `optree.train.roofline` plots it.

    Attributes
    ----------
    parts : list of Part
        In the order in which they ran.
    limits : Limits
    memory : MemoryReport
    """

    def __init__(self, parts: list[Part], limits: Limits, memory: MemoryReport) -> None:
        self.parts, self.limits, self.memory = parts, limits, memory

    def __repr__(self) -> str:
        return f"Profile of {len(self.parts)} parts, {sum(part.seconds for part in self.parts) * 1e6:.0f} us"

    _repr_html_ = as_html

    def __str__(self) -> str:
        total = sum(part.seconds for part in self.parts) or 1.0
        lines = [
            f"{total * 1e6:.0f} us in {len(self.parts)} parts; this machine copies "
            f"{self.limits.bytes / 1e9:.3g} GB/s and multiplies {self.limits.flops / 1e9:.3g} Gflop/s",
            f"{'us':>9} {'share':>6} {'GB/s':>7} {'Gflop/s':>8} {'of limit':>8}  part",
        ]
        for part in sorted(self.parts, key=lambda part: -part.seconds):
            seconds = part.seconds or 1.0
            lines.append(
                f"{part.seconds * 1e6:9.1f} {part.seconds / total:6.1%} {part.bytes / seconds / 1e9:7.2f} "
                f"{part.flops / seconds / 1e9:8.2f} {part.share(self.limits):8.0%}  {part.kind} {part.what}"
            )
        return "\n".join([*lines, str(self.memory)])


class TimedSteps(Plan):
    """A plan whose steps run one by one, and whose times are kept. On a GPU, each is waited for."""

    def __init__(self, steps: Steps, be: Any) -> None:
        super().__init__(self._timed, lambda: "its steps run one by one, and are timed")
        self.steps, self.backend = steps, be
        #: The seconds of each step, by call.
        self.times: deque[list[float]] = deque(maxlen=KEPT)
        self._outputs, self._note = taker(steps.program.outputs), be.noting(steps.program)
        self._latest: Sequence[Any] = ()

    def _timed(self, values: Sequence[Any], roots: object) -> Sequence[Any]:
        be = self.backend
        self._latest = [*values, *self.steps.constants]
        registers = [*self._latest, *[None] * len(self.steps.program.instructions)]
        found = []
        with be.active(), np.errstate(all="ignore"):
            for each in self.steps.steps:
                be.synchronize()
                start = perf_counter()
                run_steps([each.runnable()], [], None, self._note, registers)
                be.synchronize()
                found.append(perf_counter() - start)
        self.times.append(found)
        return self._outputs(registers)

    def profile(self) -> Profile:
        """The median times of the calls, and the work of the latest one."""
        steps, program = self.steps, self.steps.program
        parts = [
            Part(described(program.instructions[each.numbers[-1]]), each.kind, float(np.median(seconds)), *work)
            for each, work, seconds in zip(
                steps.steps, _work_of(steps, self._latest), np.transpose(self.times), strict=True
            )
        ]
        return Profile(parts, limits_of(self.backend), memory_of(steps, self._latest))


def limits_of(be: Any) -> Limits:
    """The peaks of a backend's machine, measured once in a process by a copy and a matrix product."""
    found = _limits.get(id(be))
    if found is None:
        x, y = be.zeros(COPIED // 4, "float32"), be.empty(COPIED // 4, "float32")
        a = be.ones((MULTIPLIED, MULTIPLIED), "float32")
        b = be.empty((MULTIPLIED, MULTIPLIED), "float32")
        copy, product = _fastest(be, y, f.copy(x)), _fastest(be, b, f.dot(a, a))
        found = _limits[id(be)] = Limits(2 * COPIED / copy, 2 * MULTIPLIED**3 / product)
    return found


def _fastest(be: Any, target: Any, tree: Variable) -> float:
    """The minimum time of several runs of an assignment."""
    times = []
    for _ in range(TRIALS + 1):
        start = perf_counter()
        target[...] = tree
        be.synchronize()
        times.append(perf_counter() - start)
    return min(times[1:])


def _work_of(plan: Steps, leaves: Sequence[Any]) -> list[tuple[int, int]]:
    """The bytes and the flops of each part."""
    program = plan.program
    shapes = shapes_of(program, [getattr(x, "shape", ()) for x in leaves])
    sizes, first = bytes_of(program, shapes), len(program.leaves)
    found = []
    for each in plan.steps:
        flops = sum(_flops_of(program.instructions[n], shapes, first + n) for n in each.numbers)
        is_view = all(program.instructions[n].op.view_map for n in each.numbers)
        found.append((0 if is_view else sum(sizes[i] for i in {*each.uses, *each.defines}), flops))
    return found


def _flops_of(instruction: Instruction, shapes: Sequence[Any], value: int) -> int:
    """The flops of an instruction; 0 if they depend on values."""
    found = [*(shapes[i] for i in instruction.inputs), shapes[value]]
    if not all(isinstance(shape, tuple) for shape in found):
        return 0
    return int(instruction.op.flops(found[:-1], found[-1:]))
