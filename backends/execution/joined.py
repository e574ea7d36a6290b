"""Independent kernels of a plan as one step, in whose run they may be one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from backends.execution.executor import KernelStep, Step
from optree.compile.aliasing import Aliases
from optree.compile.program import Program, RegisterCall

#: The steps beyond a kernel in which others that may run with it are looked for.
AHEAD = 24


class JoinedStep(Step):
    """Independent kernels, which may run together.

    `run`: runs them on a program's values.
    """

    kind = "kernel"

    def __init__(self, steps: Sequence[KernelStep], run: Callable[[Sequence[KernelStep], list[Any]], None]) -> None:
        self._steps, self._run, self.index = steps, run, steps[-1].index
        for name in ("numbers", "uses", "defines", "makes", "plannable"):
            setattr(self, name, [i for step in steps for i in getattr(step, name)])

    @property
    def members(self) -> Sequence[Step]:
        return self._steps

    def runnable(self) -> RegisterCall:
        return RegisterCall(partial(self._run, self._steps), None, -1, None, self.dead, self.index)

    def __str__(self) -> str:
        return "\n    and ".join(map(str, self._steps))


def joined(
    together: Callable[[], Callable[[Sequence[KernelStep], list[Any]], None]],
    program: Program,
    steps: list[Step],
    groups: list[Sequence[int]],
) -> tuple[list[Step], list[Sequence[int]]]:
    """Steps of which independent kernels are joined, and the instructions of each.

    `together`: makes the function that runs kernels' steps on a program's values.
    """
    if sum(map(_is_joinable, steps)) < 2:
        return steps, groups
    order = _in_order(program, steps, groups)
    members: list[list[Any]] = [[steps[n] for n in each] for each in order]
    found = [JoinedStep(each, together()) if len(each) > 1 else each[0] for each in members]
    return found, [[index for n in each for index in groups[n]] for each in order]


def _is_joinable(step: Step) -> bool:
    """Whether a step is a kernel that can run with others; one that may not compile is named by its error."""
    return isinstance(step, KernelStep) and not step.kernel.is_foreign


def _in_order(program: Program, steps: Sequence[Step], groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """The steps by number, in an order in which independent kernels follow each other, those of each in one list.

    A kernel waits for others until a step depends on one of them. Calls keep their order.
    """
    aliases, none = Aliases(program), frozenset[Any]()
    uses, makes = [{*step.uses} for step in steps], [{*step.defines} for step in steps]
    read = [none.union(*(aliases.sets[i] for i in step.uses)) for step in steps]
    targets = [[step.out] if step.out is not None else [*getattr(step, "target_of", {}).values()] for step in steps]
    written = [
        none.union(*map(aliases.overwritten, group), *(aliases.sets[i] for i in own))
        for group, own in zip(groups, targets, strict=True)
    ]

    def depends(n: int, earlier: Sequence[int]) -> bool:
        mine = read[n] | written[n]
        return any(uses[n] & makes[m] or written[m] & mine or written[n] & read[m] for m in earlier)

    found, waiting, rest = list[list[int]](), list[int](), list(range(len(steps)))
    while rest:
        if depends(rest[0], waiting):
            before = [*waiting, rest[0]]
            for n in rest[1:AHEAD]:
                if _is_joinable(steps[n]) and not written[n] and not depends(n, before):
                    waiting.append(n)
                    rest.remove(n)
                before.append(n)
            found.append(waiting)
            waiting = []
        elif _is_joinable(steps[rest[0]]):
            waiting.append(rest.pop(0))
        else:
            found.append([rest.pop(0)])
    return [*found, waiting] if waiting else found
