"""Symbolic equality of trees, up to associativity and commutativity."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from optree.registry import ASSOCIATIVE
from optree.tree.node import OpTreeNode, operands_of, post_order
from optree.tree.substitution import inputs_of
from optree.tree.tensor import Tensor
from optree.tree.types import NUMBERS
from optree.tree.variable import Constant, as_operand

#: The bytes of a token, a random number that stands for an expression.
TOKEN_BYTES = 32


def equal(x: object, y: object) -> bool:
    """Whether two operands are symbolically equal, up to associativity and commutativity.

    Tensors and inputs are equal by identity, views of one tensor if they select the
    same elements, numbers and constants by type and bits. A random draw equals itself alone.

    The time is linear in the number of distinct nodes: each gets a token, and a nested
    sum the sum of its terms' tokens. The probability of a collision is below 2**-200.

    Examples
    --------
    >>> a, b, c = be.ones(2), be.ones(2), be.ones(2)
    >>> equal(a * b * c, c * (b * a)), equal(a - b, b - a), equal(a + b, a + b + 0)
    (True, False, False)
    """
    roots = [as_operand(x, "equals"), as_operand(y, "equals")]
    tokens = _Tokens()
    for entry in post_order(roots, inputs_of):
        tokens.add(entry)
    return tokens.of[id(roots[0])] == tokens.of[id(roots[1])]


def bits_of(leaf: Any) -> Any:
    """The type and bits of a number or constant array; None for other leaves."""
    if type(leaf) in NUMBERS:
        return type(leaf), leaf.hex() if type(leaf) is float else repr(leaf)
    value = leaf.value if isinstance(leaf, Constant) else None
    return (leaf.type, value.tobytes()) if isinstance(value, np.ndarray) else None


class _Tokens:
    """One token for each expression."""

    def __init__(self) -> None:
        #: From an operand's id to its token.
        self.of: dict[int, int] = {}
        self._known: dict[Any, int] = {}
        self._parts: dict[int, tuple[Any, int, int]] = {}

    def add(self, entry: object) -> None:
        """Compute an operand's token from those of its own operands."""
        if isinstance(entry, OpTreeNode):
            key = self._key(entry)
        elif isinstance(entry, Tensor) and entry.base is not None:
            key = entry.view_op, self.of[id(entry.base)]
        else:
            key = bits_of(entry) or id(entry)
        token = self._known.get(key)
        if token is None:
            token = self._known[key] = int.from_bytes(os.urandom(TOKEN_BYTES), "little")
        self.of[id(entry)] = token

    def _key(self, node: OpTreeNode) -> Any:
        op, tokens = node.op, [self.of[id(x)] for x in operands_of(node)]
        if op.destroy_map:
            return id(node)
        if not ASSOCIATIVE.isdisjoint(type(op).__mro__):
            return self._part(node)
        return (op, node.type, *(sorted(tokens) if op.commutative else tokens))

    def _part(self, node: OpTreeNode) -> Any:
        """The key of an associative op: the sum of its terms' tokens; where their order counts, a polynomial."""
        kind = node.op, getattr(node.type, "dtype", node.type)  # another dtype rounds elsewhere
        total, length = 0, 0
        for x in operands_of(node):
            inner, value, count = self._parts.get(id(x), (None, self.of[id(x)], 1))
            if inner != kind:
                value, count = self.of[id(x)], 1
            if not node.op.commutative:
                total = total * pow(_BASE, count, _PRIME)
            total, length = (total + value) % _PRIME, length + count
        self._parts[id(node)] = kind, total, length
        return (node.op, node.type, total, length)


#: Arithmetic of tokens is modulo a prime above all of them; powers of the base encode order.
_PRIME = 2**521 - 1
_BASE = 3**150
