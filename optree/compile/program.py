"""Programs: trees flattened in topological order, with common subexpressions merged."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from optree.arrays import overlapping
from optree.op.unlisted import KNOWN, check_unlisted
from optree.records import NamedTuple
from optree.tree.node import OpTreeNode, applied, operands_of, parts_of
from optree.tree.tensor import Tensor
from optree.tree.types import NUMBERS, TensorType
from optree.tree.variable import Input, Variable, as_operand, as_variable, spec_of


class Instruction(NamedTuple):
    """One application of an op.

    Attributes
    ----------
    op : Op
    inputs : tuple of int
        The numbers of its operands' values.
    node : OpTreeNode
        The op, its types and its origin. The operands are inputs of the same types, so
        that a plan keeps no tensor alive. Sizes are those of the first tree: a plan serves others too.
    """

    op: Any
    inputs: tuple[int, ...]
    node: OpTreeNode

    @property
    def type(self) -> TensorType:
        return self.node.type


class Program(NamedTuple):
    """Instructions in topological order.

    Values are numbered: first the leaves, then the instructions in order. Each occurrence of a
    Python number is a separate leaf, since a plan serves trees with other numbers too.

    Attributes
    ----------
    leaves : list
        Tensors, inputs, constants and Python numbers, in the order of `node.signature`.
    instructions : list of Instruction
    outputs : list of int
        The numbers of the roots' values.
    owners : list of int, optional
        The result of `memories`, for an outline, whose leaves have no memory.
    """

    leaves: list[Any]
    instructions: list[Instruction]
    outputs: list[int]
    owners: list[int] | None = None

    def type_of(self, number: int) -> Any:
        """The type of a value."""
        first = len(self.leaves)
        return as_variable(self.leaves[number]).type if number < first else self.instructions[number - first].type

    def is_number(self, value: int) -> bool:
        """Whether a value is a Python number."""
        return value < len(self.leaves) and isinstance(self.leaves[value], NUMBERS)

    def outline(self) -> Program:
        """The program with tensors and arrays replaced by inputs, so that a plan keeps no memory alive."""
        leaves = [
            Input(x.type) if isinstance(x, Variable) else x
            for x in (as_operand(leaf, "a leaf") for leaf in self.leaves)
        ]
        return Program(leaves, self.instructions, self.outputs, self.memories())

    def memories(self) -> list[int]:
        """For each leaf the number of the first leaf over the same memory."""
        first: dict[int, int] = {}
        return self.owners or [first.setdefault(id(owner), i) for i, owner in enumerate(owners_of(self.leaves))]


def flatten(roots: Sequence[Any]) -> Program:
    """Flatten trees into a program, with common subexpressions merged (value numbering).

    Ops that destroy an input, as random ones do their state, are never merged.
    """
    builder = Builder()
    outputs = [builder.add(root) for root in roots]
    if KNOWN:
        check_unlisted(builder.ops)
    return builder.program(outputs)


def owners_of(leaves: Sequence[Any]) -> list[Any]:
    """For each leaf the owner of its memory: a tensor's root, the same one for tensors that overlap."""
    roots = list({id(leaf.root): leaf.root for leaf in leaves if isinstance(leaf, Tensor)}.values())
    owner = {id(root): root for root in roots}
    for i, j in overlapping([root.array for root in roots]):  # tensors over one array
        joined, gone = owner[id(roots[i])], owner[id(roots[j])]
        owner = {key: joined if root is gone else root for key, root in owner.items()}
    return [owner[id(leaf.root)] if isinstance(leaf, Tensor) else leaf for leaf in leaves]


class Builder:
    """Value numbering during a traversal: leaves from 0 up, instructions from -1 down.

    Attributes
    ----------
    ops, nodes, inputs : list
        The instructions' ops and nodes, and the numbers of their operands.
    """

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self.ops: list[Any] = []
        self.nodes: list[OpTreeNode] = []
        self.inputs: list[tuple[int, ...]] = []
        self.numbers: dict[int, int] = {}
        self.merged: dict[tuple[Any, tuple[int, ...]], int] = {}
        self._outlines: dict[tuple[Any, ...], OpTreeNode] = {}

    def add(self, root: object) -> int:
        """Add a tree; the number of its value. Leaves are met in the order of `node.signature`."""
        found: list[int] = []  # a stack of values not yet taken by an instruction
        pending: list[Any] = [root]
        while pending:
            entry = pending.pop()
            kind = entry.__class__
            if kind is tuple:  # a node and its operands, whose values are on the stack
                node, operands = entry
                taken = len(found) - len(operands)
                number = self.numbers[id(node)] = self.instruction(node, tuple(found[taken:]), operands)
                found[taken:] = [number]
            elif kind is not OpTreeNode and not isinstance(entry, Variable):
                found.append(self.leaf(entry))
            elif id(entry) in self.numbers:
                found.append(self.numbers[id(entry)])
            elif kind is OpTreeNode:
                operands = operands_of(entry)
                pending.append((entry, operands))
                pending += reversed(operands)
            else:
                found.append(self.leaf(entry))
        return found[0]

    def leaf(self, entry: object) -> int:
        """The number of a new leaf."""
        self.leaves.append(entry)
        number = len(self.leaves) - 1
        if isinstance(entry, Variable):  # each occurrence of a Python number is a leaf
            self.numbers[id(entry)] = number
        return number

    def instruction(self, node: OpTreeNode, inputs: tuple[int, ...], operands: list[Any] | None) -> int:
        """Add a node's op on these inputs, whatever the node's operands; the number of its value.

        Parameters
        ----------
        operands : list or None
            The node's operands; None if it is an outline, of an instruction.
        """
        op_dict, _, _ = parts_of(node)
        op, key = op_dict.op, (op_dict.token, inputs)
        number = self.merged.get(key)
        if number is None and op.commutative:
            number = self.merged.get((op_dict.token, inputs[::-1]))
        if number is None:
            self.ops.append(op)
            self.nodes.append(node if operands is None else self._outline(node, operands))
            self.inputs.append(inputs)
            number = -len(self.ops)
            if not op.destroy_map:
                self.merged[key] = number
        return number

    def _outline(self, node: OpTreeNode, operands: list[Any]) -> OpTreeNode:
        """The node with inputs for operands, shared by nodes of equal types from the same line."""
        op_dict, _, _ = parts_of(node)
        code, offset, _ = node.origin
        key = (op_dict, id(code), offset, *map(spec_of, operands))
        outline = self._outlines.get(key)
        if outline is None:
            outline = self._outlines[key] = applied(op_dict, [Input(as_variable(x).type) for x in operands])
            outline.origin = node.origin
        return outline

    def program(self, outputs: Sequence[int], given: int | None = None, replaced: Collection[int] = ()) -> Program:
        """The program with these outputs, without dead code.

        An op that destroys an input is live, unless it was replaced.

        Parameters
        ----------
        given : int, optional
            The number of leaves that are live, used or not; by default all.
        replaced : collection of int
        """
        first, count = len(self.leaves), len(self.ops)
        # By number: those of instructions are from -1 down, and so index a list from its end.
        is_live = [given is None or number < given for number in range(first)] + [False] * count
        for number in outputs:
            is_live[number] = True
        for number in range(-count, 0):  # from the last instruction to the first
            if is_live[number] or (self.ops[~number].destroy_map and number not in replaced):
                is_live[number] = True
                for i in self.inputs[~number]:
                    is_live[i] = True
        live = [number for number in (*range(first), *range(-1, ~count, -1)) if is_live[number]]
        numbers = [0] * len(is_live)
        for new, old in enumerate(live):
            numbers[old] = new
        instructions = [
            Instruction(self.ops[~i], tuple([numbers[x] for x in self.inputs[~i]]), self.nodes[~i])
            for i in live
            if i < 0
        ]
        return Program([self.leaves[i] for i in live if i >= 0], instructions, [numbers[i] for i in outputs])
