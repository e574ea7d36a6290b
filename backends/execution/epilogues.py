"""Epilogues of matrix products: kernels that scale a product and add to it, which BLAS computes along with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np

from optree.compile.aliasing import Aliases
from optree.compile.fusion import Call, Kernel
from optree.compile.program import Program, Sizes
from optree.op.op import Op
from optree.ops.elementwise import Add, Mul, Neg, Sub
from optree.records import NamedTuple


class Factor(NamedTuple):
    """A sign, times a number among a program's values, if there is one."""

    sign: int = 1
    number: int | None = None

    def of(self, values: dict[int, Any]) -> float:
        """Its value for the program's values."""
        return self.sign * (1.0 if self.number is None else float(values[self.number]))


#: The ops that are linear combinations of their operands, with the coefficient of each.
COEFFICIENTS: Mapping[type, tuple[int, ...]] = MappingProxyType({Add: (1, 1), Sub: (1, -1), Neg: (-1,)})

#: The factor of a term without one.
ONE = Factor()


class Epilogue(NamedTuple):
    """The epilogue of a product: ``alpha * (x @ y) + beta * addend + bias``.

    `product`: the index of the product's instruction.
    `inputs`: the operands among the program's values, x and y first.
    `addend`, `bias`: the addend and the bias among the inputs.
    """

    product: int
    inputs: tuple[int, ...]
    alpha: Factor
    addend: int | None = None
    beta: Factor = ONE
    bias: int | None = None


class ProductWithEpilogue:
    """A function of an epilogue's inputs.

    `product`: of x, y, alpha, the addend, beta, the bias, and `out`.
    """

    def __init__(self, product: Callable[..., Any], epilogue: Epilogue) -> None:
        self._product, self.epilogue = product, epilogue

    def __call__(self, x: Any, y: Any, *others: Any, out: Any = None) -> Any:
        epilogue = self.epilogue
        values: dict[Any, Any] = dict(zip(epilogue.inputs[2:], others, strict=True))
        addend, bias = values.get(epilogue.addend), values.get(epilogue.bias)
        return self._product(x, y, epilogue.alpha.of(values), addend, epilogue.beta.of(values), bias, out=out)


def with_epilogues(
    program: Program, sizes: Sizes, steps: Sequence[Kernel | Call], products: Collection[int]
) -> tuple[list[Kernel | Call], dict[int, Epilogue]]:
    """The steps, with kernels fused into products as their epilogues; and the epilogues by their last instructions.

    `products`: the indices of the products that take epilogues.
    """
    first = len(program.leaves)
    made_by = {
        first + step.instruction: n
        for n, step in enumerate(steps)
        if isinstance(step, Call) and step.instruction in products
    }
    if not made_by:
        return list(steps), {}
    found: dict[int, Epilogue] = {}
    remaining, aliases = dict(enumerate(steps)), Aliases(program)
    for n, step in enumerate(steps):
        if not isinstance(step, Kernel):
            continue
        product = max(made_by.keys() & step.axes.keys(), key=made_by.__getitem__, default=None)
        if product is None or not _may_wait(
            program, sizes, aliases, product, steps[made_by[product] : n], step.instructions
        ):
            continue
        epilogue = _epilogue(program, step, product)
        if epilogue is not None:
            *others, last = step.instructions
            found[last], remaining[n] = epilogue, Call(last, (product - first, *others))
            del remaining[made_by[product]]
    return list(remaining.values()), found


def _may_wait(
    program: Program,
    sizes: Sizes,
    aliases: Aliases,
    product: int,
    between: Sequence[Kernel | Call],
    users: Sequence[int],
) -> bool:
    """Whether a product may run later: only these instructions use it, and no step in between destroys its operands.

    Others may use its shape, where that is known.
    """
    instructions = enumerate(program.instructions)
    readers = {index for index, each in instructions if product in each.inputs and product in sizes.waits_for(each)}
    if product in program.outputs or not readers.issubset(users):
        return False
    operands = program.instructions[product - len(program.leaves)].inputs
    return not any(aliases.overwrites(index, operands) for step in between for index in step.instructions)


def _epilogue(program: Program, kernel: Kernel, product: int) -> Epilogue | None:
    """A kernel as a product's epilogue; None if it computes anything else."""
    first = len(program.leaves)
    value = first + kernel.instructions[-1]
    terms = _terms(program, kernel, program.type_of(product).dtype)
    if kernel.reduced or kernel.writes != [value] or terms is None or product not in terms:
        return None
    alpha, axes = terms.pop(product), kernel.axes[product]
    if axes != kernel.axes[value]:
        return None
    addends = {i: factor for i, factor in terms.items() if kernel.axes[i] == axes}
    biases = [i for i, factor in terms.items() if i not in addends and factor == ONE]
    if len(addends) > 1 or len(biases) > 1 or len(addends) + len(biases) < len(terms):
        return None
    if biases and (kernel.axes[biases[0]] != axes[-1:] or program.type_of(product).dtype == np.float64):
        return None  # in float64, BLAS adds no bias
    addend, beta = next(iter(addends.items()), (None, ONE))
    others = [i for i in (alpha.number, addend, beta.number, *biases) if i is not None]
    inputs = (*program.instructions[product - first].inputs, *dict.fromkeys(others))
    return Epilogue(product - first, inputs, alpha, addend, beta, next(iter(biases), None))


def _terms(program: Program, kernel: Kernel, dtype: np.dtype) -> dict[int, Factor] | None:
    """A kernel's last value as a linear combination of its operands, the factor of each; None if it is none."""
    first = len(program.leaves)
    sums: dict[int, dict[int, Factor]] = {}
    for index in kernel.instructions:
        op, inputs, _ = program.instructions[index]
        numbers = [i for i in inputs if i < first and type(program.leaves[i]) in (int, float)]
        arrays = [sums.get(i, {i: ONE}) for i in inputs if i not in numbers]
        outside = [i for i in inputs if i not in numbers and i not in sums]
        if not arrays or any(program.type_of(i).dtype != dtype for i in (*outside, first + index)):
            return None
        found = _combined(op, arrays, numbers)
        if found is None:
            return None
        sums[first + index] = found
    return sums[first + kernel.instructions[-1]]


def _combined(op: Op, terms: Sequence[dict[int, Factor]], numbers: Sequence[int]) -> dict[int, Factor] | None:
    """An op's value as a linear combination, from those of its operands; None if it is none."""
    if type(op) is Mul and len(numbers) == 1 and all(factor.number is None for factor in terms[0].values()):
        return {i: Factor(factor.sign, numbers[0]) for i, factor in terms[0].items()}
    coefficients = COEFFICIENTS.get(type(op))  # a subclass may compute something else
    if coefficients is None or numbers or len({*chain(*terms)}) < sum(map(len, terms)):
        return None
    signed = zip(coefficients, terms, strict=True)
    return {i: Factor(sign * x.sign, x.number) for sign, factors in signed for i, x in factors.items()}
