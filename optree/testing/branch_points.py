"""Derivatives at ties, zeros, ones, equal rows and branch points, where random operands never are.

A rule that selects by a comparison may have a wrong derivative, often 0, where its branches meet. A function that is
differentiable there has one-sided differences that agree: with these its derivatives of the first three orders are
compared. Kinks have none that agree, and so are left out without a list of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from optree.autodiff.api import grad
from optree.dtypes import is_floating
from optree.op.traits import ElementwiseOperator
from optree.ops.logic import Comparison
from optree.testing.comparison import expect, is_near, nodes_of, weighted_sum
from optree.testing.examples import Example, Runner, inputs_for
from optree.tree.variable import Variable

#: The step of differences, and how many of them a function is evaluated away.
STEP, STEPS = 2.0**-12, (-2, -1, 1, 2)

#: The default number of orders of derivatives that are compared.
ORDERS = 3

#: The tolerances of one-sided differences to each other, and of derivatives, relative to the largest value.
AGREE, NEAR = 1e-4, 1e-5

#: Maximum operands that move in each draw.
OPERANDS = 2

#: Bisections to a branch point: of float64.
BISECTIONS = 52


def check_branch_points(example: Example, backend: object = None, orders: int = ORDERS) -> None:
    """Derivatives are right at ties, zeros, ones, equal rows and branch points, if one-sided differences agree."""
    values = example.draw()
    moved = [i for i, x in enumerate(example.operands) if isinstance(x, tuple) and values[i].size]
    inputs = inputs_for(values)
    tree = example.tree(inputs)
    if not moved or not is_floating(tree.dtype) or not tree.size or not example.differentiable:
        return
    if isinstance(example.op, ElementwiseOperator) and len({values[i].shape for i in moved}) > 1:
        return  # broadcasting is the gradient's promise
    probe = _Probe(example, tree, inputs, moved, orders)
    if any(is_floating(node.dtype) and node.dtype.itemsize < 8 for node in nodes_of(probe.costs)):
        return  # narrower values change in steps, which third differences magnify
    for what, draw in (*special_draws(values, moved), *probe.branch_points(values)):
        for count in range(orders, 0, -1):
            # Beyond the sample, an op may refuse its operands, or have fewer derivatives: those of singular matrices.
            with np.errstate(all="ignore"), suppress(ValueError, ArithmeticError):
                probe.check(what, draw, count)
                break


def special_draws(values: Sequence[Any], moved: Sequence[int]) -> Iterator[tuple[str, list[Any]]]:
    """Values at which the operands that move are 0, 1, -1, equal in rows or to each other, and what they are."""
    rng = np.random.RandomState(len(moved))
    first = values[moved[0]]

    def each(change: Any) -> list[Any]:
        return [np.asarray(change(x)) if i in moved else x for i, x in enumerate(values)]

    def mixed(x: np.ndarray) -> np.ndarray:
        options = [x, np.resize(first, x.shape), np.zeros_like(x), np.ones_like(x), -np.ones_like(x)]
        return np.choose(rng.randint(len(options), size=x.shape), options)

    for number in (0.0, 1.0, -1.0, float(first.flat[0])):
        yield f"{number:.3g} everywhere", each(lambda x, number=number: np.full_like(x, number))
    yield "equal rows", each(lambda x: np.broadcast_to(x[:1], x.shape) if x.ndim else x)
    if len(moved) > 1:
        yield "equal operands", each(lambda x: np.resize(first, x.shape))
    yield "numbers among 0, 1, -1 and equal ones", each(mixed)


class _Probe:
    """The derivatives of an example of each order, and the scalars whose derivatives they are."""

    def __init__(
        self, example: Example, tree: Variable, inputs: Sequence[Any], moved: Sequence[int], orders: int
    ) -> None:
        self.costs, self.gradients = _derivatives(tree, [inputs[i] for i in moved], orders)
        self.example, self.inputs, self.moved = example, inputs, moved
        self.random = np.random.RandomState(len(self.gradients))
        self.runs = cache(self._runs)  # those of fewer orders are seldom needed

    def _runs(self, orders: int) -> tuple[Runner, Runner]:
        """The scalars of the first orders, and their derivatives."""
        costs, gradients = self.costs[:orders], self.gradients[: orders * len(self.moved)]
        return Runner(costs, self.inputs), Runner(gradients, self.inputs)

    def branch_points(self, values: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
        """Values between these and the same in another order, at which a comparison of the derivatives changes."""
        pool = self.random.permutation(np.concatenate([values[i].reshape(-1) for i in self.moved]))
        parts = np.split(pool, np.cumsum([values[i].size for i in self.moved]))
        others = {i: part.reshape(values[i].shape) for i, part in zip(self.moved, parts, strict=False)}

        def between(share: float) -> list[Any]:
            return [x + share * (others[i] - x) if i in others else x for i, x in enumerate(values)]

        comparisons = [node for node in nodes_of(self.costs) if isinstance(node.op, Comparison)]
        ends = [Runner(comparisons, self.inputs)(between(share)) for share in (0.0, 1.0)]
        changes = [(i, at) for i, (x, y) in enumerate(zip(*ends, strict=True)) for at in np.argwhere(x != y)]
        if changes:
            chosen, at = changes[self.random.randint(len(changes))]
            run = Runner([comparisons[chosen]], self.inputs)
            low, high = 0.0, 1.0
            for _ in range(BISECTIONS):
                middle = (low + high) / 2
                is_before = np.asarray(run(between(middle))[0])[tuple(at)] == np.asarray(ends[0][chosen])[tuple(at)]
                low, high = (middle, high) if is_before else (low, middle)
            yield f"where {comparisons[chosen].label} changes", between(high)

    def check(self, what: str, values: Sequence[Any], orders: int) -> None:
        """Raise unless the derivatives by one element of an operand or two equal their differences."""
        cost, gradient = self.runs(orders)
        middle, found = np.array(cost(values), float), gradient(values)
        for position in self.random.permutation(len(self.moved))[:OPERANDS]:
            index = self.moved[position]
            shape = values[index].shape
            at = tuple(map(int, np.unravel_index(self.random.randint(values[index].size), shape)))
            direction = np.zeros(shape)
            direction[at] = 1.0
            for order, (wanted, agrees) in enumerate(_differences(cost, values, middle, {index: direction})):
                got = float(found[order * len(self.moved) + position][at])
                near = abs(got - wanted) <= NEAR * max(1.0, abs(wanted), abs(middle[order])) or is_near(got, wanted)
                if near or not agrees:
                    continue
                expect(
                    not self._is_smooth(cost, values, middle, order),
                    self.example,
                    f"with {what}, the derivative of order {order + 1} by element {at} of operand {index} is {got!r}, "
                    f"and differences from either side give {wanted!r}; operands: {values}",
                )

    def _is_smooth(self, cost: Runner, values: Sequence[Any], middle: np.ndarray, order: int) -> bool:
        """Whether one-sided differences agree along directions through all operands too, and are linear in these."""
        one, other = ({i: self.random.uniform(-1.0, 1.0, values[i].shape) for i in self.moved} for _ in range(2))
        both = {i: one[i] + other[i] for i in self.moved}
        found = [_differences(cost, values, middle, direction)[order] for direction in (one, other, both)]
        first, second, total = (difference for difference, _ in found)
        is_linear = abs(first + second - total) <= AGREE * max(1.0, abs(first), abs(second), abs(middle[order]))
        return is_linear and all(agrees for _, agrees in found)


def _differences(
    cost: Runner, values: Sequence[Any], middle: np.ndarray, direction: dict[int, np.ndarray]
) -> list[tuple[float, bool]]:
    """The scalars' derivatives along a direction by differences of fourth order, and whether both sides agree."""
    below2, below, above, above2 = (
        np.array(cost([x + step * STEP * direction[i] if i in direction else x for i, x in enumerate(values)]), float)
        for step in STEPS
    )
    central = (8 * (above - below) - (above2 - below2)) / (12 * STEP)
    left, right = ((3 * middle - 4 * near + far) / (2 * STEP) for near, far in ((below, below2), (above, above2)))
    allowed = AGREE * np.maximum(1.0, np.maximum(np.abs(central), np.abs(middle)))
    agrees = (np.abs(left + right) <= allowed) & np.isfinite(middle)
    for near, far in ((below, below2), (above, above2)):
        agrees &= np.abs(2 * near - far - middle) <= allowed * STEP  # continuous
    return list(zip(central.tolist(), agrees.tolist(), strict=True))


def _derivatives(tree: Variable, operands: Sequence[Variable], orders: int) -> tuple[list[Variable], list[Variable]]:
    """Scalars, each a weighted sum of the derivatives of the one before, and the derivatives of each by operands."""
    costs, gradients = [weighted_sum(tree)], []
    while True:
        found = grad(costs[-1], list(operands), disconnected_inputs="ignore")
        gradients += found
        if len(costs) == orders:
            return costs, gradients
        total = weighted_sum(found[0], seed=len(costs))
        for i, part in enumerate(found[1:]):
            total = total + weighted_sum(part, seed=len(costs) + i + 1)
        costs.append(total)
