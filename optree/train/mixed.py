"""Mixed precision: products of trees in float16 or bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from optree.dtypes import is_narrow
from optree.errors import DTypeError, OperandError, describe
from optree.networks.attention import AttentionOperator
from optree.networks.convolution import ConvolutionOperator
from optree.ops.contraction import ProductOperator, TensorDot
from optree.ops.loops import Loop, Scan
from optree.tree.node import OpTreeNode, post_order
from optree.tree.substitution import replace
from optree.tree.types import TensorType, as_dtype
from optree.tree.variable import Variable, in_dtype

#: The ops whose operands are cast.
PRODUCTS = (ProductOperator, TensorDot, ConvolutionOperator, AttentionOperator)


def autocast(trees: Any, dtype: Any = "bfloat16") -> Any:
    """Trees with float32 operands of matrix products, convolutions and attention cast, and their values cast back.

    Everything else stays in float32: the weights, which are the master copies, other ops, and gradients by weights.
    Take the gradients of the returned trees; their products are cast, too, also in the steps of loops such as those of
    `be.lstm`. For float16, pass ``loss_scale="dynamic"`` to the optimizer.

    Parameters
    ----------
    trees : Variable, or list, tuple or dict of these
        For example a loss, or ``(loss, phase.updates)``. Trees that share parts, such as a draw of dropout, are given
        together: the returned ones share the cast parts.
    dtype : dtype
        bfloat16 or float16.

    Raises
    ------
    OperandError, DTypeError
        If there is something else than trees, or no such dtype.

    Examples
    --------
    >>> x, w = be.array([[1.001953125]]), be.array([[3.0]], name="w")
    >>> autocast(be.dot(x, w)).get(), be.dot(x, w).get()
    (array([[3.]], dtype=float32), array([[3.0058594]], dtype=float32))
    """
    narrow = as_dtype(dtype)
    if not is_narrow(narrow):
        raise DTypeError(f"autocast: the dtype is bfloat16 or float16, not {narrow}")
    made: dict[int, Any] = {}
    for node in post_order(_trees(trees), lambda x: [y for y in getattr(x, "inputs", ()) if isinstance(y, OpTreeNode)]):
        if isinstance(node, OpTreeNode):
            made[id(node)] = _cast(node, [made.get(id(x), x) for x in node.inputs], narrow)
    return _replaced(trees, made)


def _trees(given: Any) -> list[Variable]:
    """The trees in lists, tuples and dicts."""
    if isinstance(given, Variable):
        return [given]
    if isinstance(given, list | tuple | Mapping):
        return [x for each in (given.values() if isinstance(given, Mapping) else given) for x in _trees(each)]
    raise OperandError(f"autocast: an op-tree is wanted, or a list, tuple or dict of these, not {describe(given)}")


def _replaced(given: Any, made: dict[int, Any]) -> Any:
    """The same structure with other trees."""
    if isinstance(given, Variable):
        return made.get(id(given), given)
    if isinstance(given, Mapping):
        return {key: _replaced(each, made) for key, each in given.items()}
    found = [_replaced(each, made) for each in given]
    return type(given)(*found) if hasattr(given, "_make") else type(given)(found)  # a named tuple, as of batch_norm


def _cast(node: OpTreeNode, operands: list[Any], narrow: np.dtype) -> Any:
    """A node of other operands, and of a product's in another dtype; its value has the dtype of before."""
    if isinstance(node.op, Scan):
        node, operands = _cast_steps(node, operands, narrow)
    if isinstance(node.op, PRODUCTS):
        operands = [in_dtype(x, narrow) if getattr(x, "dtype", None) == np.float32 else x for x in operands]
    if all(x is y for x, y in zip(operands, node.inputs, strict=True)):
        return node
    found = node.op.node_of(*operands)
    return in_dtype(found, node.dtype) if isinstance(node.type, TensorType) else found


def _cast_steps(node: OpTreeNode, operands: list[Any], narrow: np.dtype) -> tuple[OpTreeNode, list[Any]]:
    """A loop with cast steps, and its operands: a weight that is the same in every step is cast before the loop."""
    op, body = node.op, node.op.body
    before = [*body.new_states, *body.outputs]
    after = autocast(before, narrow)
    if all(x is y for x, y in zip(before, after, strict=True)):
        return node, operands
    states, sequences, constants = op.parts(operands)
    roots = replace(after, dict(zip(body.constants, constants, strict=True)))
    loop = Loop(
        list(zip(body.states, states, strict=True)),
        list(zip(body.slices, sequences, op.axes, strict=True)),
        roots[: len(states)],
        list(zip(roots[len(states) :], op.out_axes, strict=True)),
        op.reverse,
        op.truncate,
        None if op.flag is None else body.arguments[op.flag],
    )
    cast, given = loop.scan()
    return cast.node_of(*given), given
