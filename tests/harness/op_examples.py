"""The examples of ops and functions, wherever they are written."""

from __future__ import annotations

from harness.composed import COMPOSED, composed_examples
from harness.linalg_cases import LINALG, linalg_examples
from optree.op.examples import examples_in
from optree.op.op import Op
from optree.op.traits import ElementwiseOperator
from optree.registry import OPS
from optree.testing.examples import Example, examples_of


def has_own_examples(op: type[Op]) -> bool:
    """Whether an op has examples in its class; those of linear algebra, attention and loops are their functions'."""
    return bool(examples_in(op).cases) or issubclass(op, ElementwiseOperator)


def has_examples(name: str) -> bool:
    """Whether `examples_for` has any of an op."""
    return name in LINALG or has_own_examples(OPS[name])


def examples_for(name: str) -> list[Example]:
    """The examples of an op or a composed function: its own, or those on matrices that it has a value for."""
    cases = linalg_examples(name) if name in LINALG else composed_examples(name) if name in COMPOSED else None
    return examples_of(OPS[name]) if cases is None else [example for example, _ in cases]
