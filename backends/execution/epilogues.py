"""Kernels that only scale a product and add to it, as the product's own epilogues: BLAS computes that along with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from optree.compile.aliasing import alias_sets
from optree.compile.fusion import Call, Kernel
from optree.compile.program import Program
from optree.ops.elementwise import Mul


class Factor(NamedTuple):
    """A sign, times a number among a program's values, if there is one."""

    sign: int = 1
    number: int | None = None

    def of(self, values: dict[int, Any]) -> float:
        """Its value, where the number has one."""
        return self.sign * (1.0 if self.number is None else float(values[self.number]))


#: The factor of what is not multiplied.
ONCE = Factor()


class Epilogue(NamedTuple):
    """The epilogue of a product: ``alpha * (x @ y) + beta * addend + bias``.

    Attributes
    ----------
    product : int
        The place of the product's instruction.
    inputs : tuple of int
        The values of the program that all works on, those of x and y first.
    alpha, beta : Factor
    addend, bias : int or None
        Which of them these are.
    """

    product: int
    inputs: tuple[int, ...]
    alpha: Factor
    addend: int | None = None
    beta: Factor = ONCE
    bias: int | None = None


class ProductWithEpilogue:
    """A function of an epilogue's inputs.

    Parameters
    ----------
    product : callable
        Takes x, y, alpha, the addend, beta, the bias, and as `out` where to write.
    epilogue : Epilogue
    """

    def __init__(self, product: Callable[..., Any], epilogue: Epilogue) -> None:
        self._product, self.epilogue = product, epilogue

    def __call__(self, x: Any, y: Any, *others: Any, out: Any = None) -> Any:
        along = self.epilogue
        given: dict[Any, Any] = dict(zip(along.inputs[2:], others, strict=True))
        addend, bias = given.get(along.addend), given.get(along.bias)
        return self._product(x, y, along.alpha.of(given), addend, along.beta.of(given), bias, out=out)


def with_epilogues(
    program: Program, steps: Sequence[Kernel | Call], products: Collection[int]
) -> tuple[list[Kernel | Call], dict[int, Epilogue]]:
    """The steps without the kernels that do to a product what its epilogue can; and by their places those products.

    Parameters
    ----------
    products : collection of int
        The places of the products that can have epilogues.
    """
    first = len(program.leaves)
    made_by = {
        first + step.instruction: n
        for n, step in enumerate(steps)
        if isinstance(step, Call) and step.instruction in products
    }
    found: dict[int, Epilogue] = {}
    kept = dict(enumerate(steps))
    memories = alias_sets(program) if made_by else []
    for n, step in enumerate(steps) if made_by else ():
        if not isinstance(step, Kernel):
            continue
        product = max(made_by.keys() & step.axes.keys(), key=made_by.__getitem__, default=None)
        if product is None or not _may_wait(program, memories, product, steps[made_by[product] : n], step.instructions):
            continue
        epilogue = _epilogue(program, step, product)
        if epilogue is not None:
            place = step.instructions[-1]
            found[place], kept[n] = epilogue, Call(place, (product - first, *step.instructions[:-1]))
            del kept[made_by[product]]
    return list(kept.values()), found


def _may_wait(
    program: Program,
    memories: Sequence[frozenset[int]],
    product: int,
    between: Sequence[Kernel | Call],
    users: Sequence[int],
) -> bool:
    """Whether only these instructions need a product, and none before them overwrites its operands."""
    first = len(program.leaves)
    reading = {place for place, instruction in enumerate(program.instructions) if product in instruction.inputs}
    if product in program.outputs or not reading.issubset(users):
        return False
    operands = frozenset().union(*(memories[i] for i in program.instructions[product - first].inputs))
    passed = [program.instructions[place] for step in between for place in places(step)]
    return not any(memories[each.inputs[i]] & operands for each in passed for i in each.op.destroyed_inputs())


def _epilogue(program: Program, kernel: Kernel, product: int) -> Epilogue | None:
    """A product with what a kernel does to it; None if that is more than an epilogue computes."""
    first = len(program.leaves)
    value = first + kernel.instructions[-1]
    terms = _terms(program, kernel, program.type_of(product).dtype)
    if kernel.reduced or kernel.writes != [value] or terms is None or product not in terms:
        return None
    alpha, along = terms.pop(product), kernel.axes[product]
    if along != kernel.axes[value] or None in along:
        return None
    addends = {i: factor for i, factor in terms.items() if kernel.axes[i] == along}
    biases = [i for i, factor in terms.items() if i not in addends and factor == ONCE]
    if len(addends) > 1 or len(biases) > 1 or len(addends) + len(biases) < len(terms):
        return None
    if biases and (kernel.axes[biases[0]] != along[-1:] or program.type_of(product).dtype == np.float64):
        return None  # in float64, BLAS adds no bias
    addend, beta = next(iter(addends.items()), (None, ONCE))
    others = [i for i in (alpha.number, addend, beta.number, *biases) if i is not None]
    inputs = (*program.instructions[product - first].inputs, *dict.fromkeys(others))
    return Epilogue(product - first, inputs, alpha, addend, beta, next(iter(biases), None))


def _terms(program: Program, kernel: Kernel, dtype: np.dtype) -> dict[int, Factor] | None:
    """The terms of a kernel's last value, each an outside value with its factor; None if it is no such sum."""
    first = len(program.leaves)
    sums: dict[int, dict[int, Factor]] = {}
    for place in kernel.instructions:
        op, inputs, _ = program.instructions[place]
        numbers = [i for i in inputs if i < first and type(program.leaves[i]) in (int, float)]
        arrays = [sums.get(i, {i: ONCE}) for i in inputs if i not in numbers]
        outside = [i for i in inputs if i not in numbers and i not in sums]
        if not arrays or any(program.type_of(i).dtype != dtype for i in (*outside, first + place)):
            return None
        found = _combined(op, arrays, numbers)
        if found is None:
            return None
        sums[first + place] = found
    return sums[first + kernel.instructions[-1]]


def _combined(op: Any, terms: Sequence[dict[int, Factor]], numbers: Sequence[int]) -> dict[int, Factor] | None:
    """The sum that an op makes of sums."""
    if type(op) is Mul and len(numbers) == 1 and all(factor.number is None for factor in terms[0].values()):
        return {i: Factor(factor.sign, numbers[0]) for i, factor in terms[0].items()}
    coefficients = vars(type(op)).get("coefficients")  # its own: a subclass may compute something else
    if coefficients is None or numbers or len({*chain(*terms)}) < sum(map(len, terms)):
        return None
    signed = zip(coefficients, terms, strict=True)
    return {i: Factor(sign * x.sign, x.number) for sign, factors in signed for i, x in factors.items()}


def places(step: Kernel | Call) -> Sequence[int]:
    """The instructions of a step."""
    return step.instructions if isinstance(step, Kernel) else (*step.fused, step.instruction)
