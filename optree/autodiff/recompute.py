"""`checkpoint`: functions whose inner values are computed again in the backward pass, and not kept for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from optree.arrays import portable
from optree.autodiff.reverse import adjoints_of
from optree.errors import OperandError, describe
from optree.op.apply import Apply
from optree.op.index_map import OPAQUE, SAME, STACKED, IndexMap
from optree.op.op import Op
from optree.tree.gradient_types import DisconnectedType, is_disconnected
from optree.tree.node import OpTreeNode, operands_of, post_order, variables_of
from optree.tree.substitution import replace
from optree.tree.types import Shape, Spec
from optree.tree.variable import Input, Variable, as_operand


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of trees, recomputed in the backward pass: less memory for more time.

    Of what the function computes on the way to its value nothing is kept for the derivatives; once the value's own
    adjoint is there, it is computed again from the arguments, which are kept. Random draws are not drawn again.

    Parameters
    ----------
    function : callable
        Of operands, and of what else it takes, to a tree.

    Returns
    -------
    callable

    Raises
    ------
    OperandError
        By its call, if `function` returns no tree, or more than one.

    Examples
    --------
    >>> from backends import gen_backend
    >>> from optree.autodiff.api import grad
    >>> be = gen_backend("cpu")
    >>> w = be.array([0.5, -1.0], name="w")
    >>> layer = checkpoint(lambda x: be.tanh(x * w))
    >>> print(grad(be.sum(layer(layer(be.ones(2)))), w).asnumpyarray().round(3))
    [ 0.811 -0.695]
    """

    @wraps(function)
    def checkpointed(*args: object, **kwargs: object) -> Any:
        value = function(*args, **kwargs)
        if not isinstance(value, OpTreeNode):
            raise OperandError(
                f"checkpoint: {getattr(function, '__name__', 'the function')} is to return a tree, not "
                f"{describe(value)}; a function of several checkpoints each, or joins them"
            )
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Variable)]
        inputs = _frontier(value, [as_operand(x, "checkpoint") for x in given])
        body = _Body(value, inputs)
        return Checkpointed(body)(value, *inputs)

    return checkpointed


class _Body:
    """A tree on inputs of its own, which stand for the operands that it is recomputed from."""

    def __init__(self, tree: Variable, inputs: Sequence[Variable]) -> None:
        self.inputs = [_stand_in(x) for x in inputs]
        (self.tree,) = replace([tree], dict(zip(inputs, self.inputs, strict=True)))

    def gradients(self, inputs: Sequence[Variable], delta: Variable) -> list[Any]:
        """The derivatives by the inputs, on values that are computed once the delta is there."""
        given = _stand_in(delta)
        found = adjoints_of({self.tree: given}, self.inputs, self.tree.dtype)
        after = [Afterwards()(x, delta) for x in inputs]
        known = [x for x in found if not is_disconnected(x)]
        trees = iter(replace(known, {**dict(zip(self.inputs, after, strict=True)), given: delta}))
        return [DisconnectedType()() if is_disconnected(x) else next(trees) for x in found]


class _FirstOperand(Op):
    """An op whose value is its first operand, which it is a view of."""

    index_map = IndexMap(SAME, OPAQUE)
    raises = False

    def make_node(self, *inputs: Variable) -> Apply:
        return Apply(self, inputs, [inputs[0].type()])

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        return [shapes[0]]

    @portable
    def numpy(self, *arrays: Any) -> Any:
        return arrays[0]


class Checkpointed(_FirstOperand):
    """The first operand, whose derivatives are those of a body recomputed from the others."""

    __props__ = ("body",)
    body: Any = None

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[i > 0] for i in range(len(node.inputs))]

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        return Checkpointed(_Body(inputs[0], inputs[1:]))(*inputs)

    def grad(self, inputs: Sequence[Variable], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [DisconnectedType()(), *self.body.gradients(inputs[1:], output_gradients[0])]


class Afterwards(_FirstOperand):
    """The first operand, but not before the second has been computed: no value that needs it is an earlier one."""

    __props__ = ()
    index_map = IndexMap(SAME, STACKED)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [False]]

    def grad(self, inputs: Sequence[Variable], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [output_gradients[0], DisconnectedType()()]


def _frontier(tree: Variable, args: Sequence[Variable]) -> list[Variable]:
    """The operands that a tree is recomputed from: arguments, leaves, and what draws random numbers."""
    stops = {id(x) for x in args}

    def inputs_of(entry: object) -> list[Any]:
        is_end = id(entry) in stops or not isinstance(entry, OpTreeNode) or bool(entry.op.destroy_map)
        return [] if is_end else variables_of(entry)

    ends = [x for x in post_order([tree], inputs_of) if x is not tree and not inputs_of(x)]
    return [x for x in ends if not isinstance(x, OpTreeNode) or operands_of(x)]


def _stand_in(x: Variable) -> Input:
    found = Input(x.type, x.label)
    found.spec = Spec(x.type, x.backend)
    return found
