"""Ops in Nervana graph's style: classes that are called like functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from optree.compile.program import flatten
from optree.compile.reference import evaluate, value_of
from optree.errors import DefinitionError, describe
from optree.op.apply import Apply
from optree.op.op import Op
from optree.registry import f
from optree.tree.types import TensorType
from optree.tree.variable import Input, Operand, Variable, as_variable, variable_of


class _CalledLikeAFunction(type):
    """The metaclass of `ComputationOp`: calling a class builds a node."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        op: Any = cls.__new__(cls)  # type: ignore[call-overload]
        op.__init__(*args, **kwargs)
        operands = op.__dict__.pop("args", None)
        if operands is None:
            raise DefinitionError(f"{cls.__name__}: its __init__ passes the operands on: super().__init__(x, y)")
        return _with_props(op)(*operands)


class ComputationOp(Op, metaclass=_CalledLikeAFunction):
    """An op as Nervana graph's "Computation Ops" describes them.

    A subclass defines `transform`, and `generate_adjoints` if it is differentiated. Calling the class builds a node.
    Its `__init__`, if it has parameters beside operands, stores them as attributes and passes the operands to
    ``super().__init__``. Ops with equal attributes are equal.

    Examples
    --------
    >>> from backends import gen_backend
    >>> from optree import deriv
    >>> class Multiply(ComputationOp):
    ...     def transform(self, transformer, x, y):
    ...         return transformer.multiply(x, y)
    ...     def generate_adjoints(self, adjoints, delta, x, y):
    ...         x.generate_add_delta(adjoints, y * delta)
    ...         y.generate_add_delta(adjoints, x * delta)
    >>> be = gen_backend("cpu")
    >>> x, y = be.array([2.0, 3.0], name="x"), be.array([5.0, 7.0], name="y")
    >>> product = Multiply(x, y)
    >>> (product + 1).asnumpyarray(), deriv(be.sum(product), x).asnumpyarray()
    (array([11., 22.], dtype=float32), array([5., 7.], dtype=float32))
    """

    def __init__(self, *args: Any) -> None:
        self.args = args

    def transform(self, transformer: object, *args: Variable) -> Any:
        """The value as a tree, built by the transformer's functions.

        Parameters
        ----------
        transformer : object
            A namespace of every function that a backend has; each builds a tree.
        *args : Variable
            The operands.
        """
        raise DefinitionError(f"{type(self).__name__}: write transform(self, transformer, *args)")

    def generate_adjoints(self, adjoints: dict[Variable, Any], delta: Any, *args: Variable) -> None:
        """Send each operand its delta, ``x.generate_add_delta(adjoints, a * delta)`` where df = a dx + ..."""
        if not self.defines("grad"):
            raise DefinitionError(
                f"{self}: it has no derivative: write generate_adjoints(self, adjoints, delta, *args)"
            )
        super().generate_adjoints(adjoints, delta, *args)

    def make_node(self, *inputs: Operand) -> Apply:
        """The op applied to operands; the type is that of `transform`'s tree."""
        operands = [variable_of(x, str(self)) for x in inputs]
        return Apply(self, operands, [self._tree(operands).type()])

    def _tree(self, operands: list[Any]) -> Any:
        tree = self.transform(f, *operands)
        if not isinstance(tree, Variable):
            raise DefinitionError(f"{self}.transform returns a tree, as its transformer does, not {describe(tree)}")
        return tree

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        """Run `transform`'s tree by the reference."""
        operands = [
            Input(TensorType(v.dtype, v.shape)) if isinstance(v, np.ndarray | np.generic) else as_variable(v)
            for v in inputs
        ]
        values = {id(x): v for x, v in zip(operands, inputs, strict=True)}
        program = flatten([self._tree(operands)])
        leaves = [values[id(leaf)] if id(leaf) in values else value_of(leaf) for leaf in program.leaves]
        (value,) = evaluate(program, leaves)
        aliased = any(isinstance(v, np.ndarray) and np.may_share_memory(v, value) for v in inputs)
        output_storage[0][0] = np.array(value) if aliased else value

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.props if self.__props__ is not None else {})


def _with_props(op: Any) -> Any:
    """Set an op's `__props__` to its attributes; to None, equality by identity, if one is not hashable."""
    op.__props__ = tuple(sorted(name for name in vars(op) if name != "applications"))
    try:
        hash(op)
    except TypeError:
        op.__props__ = None
    return op


def _again(cls: Any, props: dict[str, Any]) -> Any:
    """An op, unpickled."""
    op = cls.__new__(cls)
    vars(op).update(props)
    return _with_props(op)
