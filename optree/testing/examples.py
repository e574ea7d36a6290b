"""Examples: ops with the operands on which their promises are checked."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from optree.compile.program import flatten
from optree.compile.reference import prepared, value_of
from optree.dtypes import is_floating
from optree.errors import DefinitionError
from optree.op.examples import examples_in
from optree.op.op import Op
from optree.op.traits import ElementwiseOperator, NonDifferentiableOperator
from optree.records import NamedTuple
from optree.tree.types import DType, TensorType, as_dtype
from optree.tree.variable import Input, Variable

#: Number of operands -> the operand shapes of an elementwise op's examples: every broadcast pattern.
SHAPES: dict[int, tuple[tuple[tuple[int, ...], ...], ...]] = {
    1: (((2, 3),), ((),), ((4,),), ((0,),), ((2, 1, 3),)),
    2: (
        ((2, 3), (2, 3)),
        ((2, 3), (3,)),
        ((2, 1), (2, 3)),
        ((2, 1), (1, 3)),
        ((), (2, 2)),
        ((3,), ()),
        ((), ()),
        ((1, 3), (0, 3)),
        ((2, 1, 2), (3, 1)),
    ),
    3: (
        ((2, 3), (2, 3), (2, 3)),
        ((2, 3), (3,), ()),
        ((), (2, 1), (1, 3)),
        ((3,), (), (2, 3)),
        ((), (), ()),
        ((2, 0), (1, 1), (2, 1)),
    ),
}


class Example(NamedTuple):
    """An op, or a function composed of ops, with operands.

    Attributes
    ----------
    build : callable
        Makes the tree from the operands.
    operands : tuple
        A tuple is the shape of a floating operand, a list holds the values of
        an integer or boolean one, a number is itself.
    sample : tuple of float
        The bounds between which floating operands are drawn.
    label : str
    """

    build: Callable[..., Any]
    operands: tuple[Any, ...]
    sample: tuple[float, float]
    label: str

    def __str__(self) -> str:
        listed = ", ".join("array" if isinstance(x, np.ndarray) else repr(x) for x in self.operands)
        return f"{self.label}({listed})"

    @property
    def op(self) -> Any:
        """The op, None for a composed function."""
        return self.build if isinstance(self.build, Op) else None

    @property
    def differentiable(self) -> bool:
        return not isinstance(self.build, NonDifferentiableOperator)

    @property
    def takes_floats(self) -> bool:
        return self.op is None or examples_in(type(self.op)).takes_floats

    def draw(self, dtype: DType = None) -> list[Any]:
        """The operands' values: distinct numbers, spread over the sample, reproducible.

        They are float64 unless another dtype is given, or int64 for an op that takes no floats. Those of
        an integer dtype are not negative, as powers of integers require. Complex ones have such numbers as parts.
        """
        dtype = dtype or (np.float64 if self.takes_floats else np.int64)
        shaped = [i for i, x in enumerate(self.operands) if isinstance(x, tuple)]
        sizes = [prod(self.operands[i]) for i in shaped]
        if np.dtype(dtype).kind == "c":
            parts = zip(self.draw(), self._replace(label=f"{self.label}, imag").draw(), strict=True)
            return [np.asarray(x + y * 1j, dtype) if i in shaped else x for i, (x, y) in enumerate(parts)]
        numbers = _numbers(str(self), self.sample, max(sum(sizes), 1))
        pool = np.split(numbers if is_floating(as_dtype(dtype)) else np.abs(numbers), np.cumsum(sizes))
        drawn = [np.array(x, None if np.size(x) else np.int64) if isinstance(x, list) else x for x in self.operands]
        for i, values in zip(shaped, pool, strict=False):
            drawn[i] = values.reshape(self.operands[i]).astype(dtype)
        return drawn

    def tree(self, operands: Sequence[Any]) -> Any:
        """The tree on these operands."""
        return self.build(*operands)


@lru_cache(maxsize=256)  # a promise draws an example once for each dtype
def _numbers(label: str, sample: tuple[float, float], count: int) -> np.ndarray:
    """Distinct numbers, spread over a sample."""
    rng = np.random.RandomState(zlib.crc32(label.encode()))
    low, high = sample
    grid = (np.arange(count) + 0.5 + rng.uniform(-0.3, 0.3, count)) / count
    numbers: np.ndarray = low + (high - low) * rng.permutation(grid)
    return numbers


def examples_of(op: type[Op], given: Op | None = None) -> list[Example]:
    """An op's own examples; for an elementwise op, also one for each broadcast pattern.

    `given`: one with parameters of its own, for the broadcast patterns.

    Raises
    ------
    DefinitionError
        If it has none.
    """
    drawn = examples_in(op)
    found = [_example(op, operands, props) for operands, props in drawn.cases]
    if issubclass(op, ElementwiseOperator) and not (given is None and op.prop_names() and drawn.cases):
        counts = (2, 3) if op.operands is None else (len(op.operands),)
        made = op.make() if given is None else given
        found += [Example(made, shapes, drawn.sample, str(made)) for count in counts for shapes in SHAPES[count]]
    if not found:
        raise DefinitionError(f"{op.__name__}: give it examples, so that its promises can be checked")
    return found


def _example(op: type[Op], operands: tuple[Any, ...], props: dict[str, Any]) -> Example:
    made = op.make(**props)
    return Example(made, operands, examples_in(op).sample, str(made))


def inputs_for(values: Sequence[Any]) -> list[Any]:
    """An input for each array, named by its index; numbers unchanged."""
    return [
        Input(TensorType(x.dtype, x.shape), f"x{i}") if isinstance(x, np.ndarray) else x for i, x in enumerate(values)
    ]


class Runner:
    """Trees compiled to a program, run by the reference or another `evaluate` for given values of their inputs."""

    def __init__(
        self, trees: Sequence[Any], inputs: Sequence[Any], evaluate: Callable[..., list[Any]] | None = None
    ) -> None:
        self.program = flatten(trees)
        self.evaluate = prepared(self.program) if evaluate is None else partial(evaluate, self.program)
        indices = {id(x): i for i, x in enumerate(inputs) if isinstance(x, Variable)}
        self.sources = [(indices.get(id(leaf)), leaf) for leaf in self.program.leaves]

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """The trees' values."""
        leaves = [value_of(leaf) if i is None else values[i] for i, leaf in self.sources]
        return self.evaluate(leaves)
