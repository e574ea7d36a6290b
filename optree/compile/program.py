"""A tree as a program: the list that compilers and executors see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from optree.arrays import overlapping
from optree.tree.node import ARGS, OpTreeNode, operands_of
from optree.tree.tensor import Tensor
from optree.tree.types import TensorType
from optree.tree.variable import Input, Variable, as_operand, as_variable


class Instruction(NamedTuple):
    """One application of an op.

    Attributes
    ----------
    op : Op
    inputs : tuple of int
        The numbers of the values that it takes.
    node : OpTreeNode
        What it computes: the op, the types, and the line that made it. Its
        operands are inputs of the same types, so a plan keeps no tensor alive.
        Sizes are those of the tree that was flattened; a plan serves others too.
    """

    op: Any
    inputs: tuple[int, ...]
    node: OpTreeNode

    @property
    def type(self) -> TensorType:
        return self.node.type


class Program(NamedTuple):
    """Trees flattened in post-order, equal operations on equal values once.

    A Python number is a value of its own in each place: a plan serves others too.
    Values are numbered: first the leaves, then the instructions in order.

    Attributes
    ----------
    leaves : list
        Tensors, inputs, constants and Python numbers, in the order in which
        `node.signature` lists them.
    instructions : list of Instruction
    outputs : list of int
        The numbers of the roots' values.
    owners : list of int, optional
        What `memories` gives, where the leaves themselves no longer tell.
    """

    leaves: list[Any]
    instructions: list[Instruction]
    outputs: list[int]
    owners: list[int] | None = None

    def type_of(self, number: int) -> Any:
        """The type of a value."""
        first = len(self.leaves)
        return as_variable(self.leaves[number]).type if number < first else self.instructions[number - first].type

    def outline(self) -> Program:
        """The program without tensors and arrays, for a plan to keep: inputs of their types stand in their places."""
        leaves = [
            Input(x.type) if isinstance(x, Variable) else x
            for x in (as_operand(leaf, "a leaf") for leaf in self.leaves)
        ]
        return Program(leaves, self.instructions, self.outputs, self.memories())

    def memories(self) -> list[int]:
        """For each leaf the name of its memory: the number of the first leaf over the same array."""
        first: dict[int, int] = {}
        return self.owners or [first.setdefault(id(owner), i) for i, owner in enumerate(owners_of(self.leaves))]


def flatten(roots: Sequence[Any]) -> Program:
    """The program that computes trees, equal operations on equal values once.

    An op that destroys an input, such as a random one that advances its
    state, is never merged with another.
    """
    builder = Builder()
    return builder.program([builder.add(root) for root in roots])


def owners_of(leaves: Sequence[Any]) -> list[Any]:
    """For each leaf what stands for its memory: of a tensor the root of its views, of all that lie there the same."""
    roots = list({id(leaf.root): leaf.root for leaf in leaves if isinstance(leaf, Tensor)}.values())
    owner = {id(root): root for root in roots}
    for i, j in overlapping([root.array for root in roots]):  # tensors that were made over one array
        joined, gone = owner[id(roots[i])], owner[id(roots[j])]
        owner = {key: joined if root is gone else root for key, root in owner.items()}
    return [owner[id(leaf.root)] if isinstance(leaf, Tensor) else leaf for leaf in leaves]


class Builder:
    """Numbers values as a walk meets them: leaves from 0 up, instructions from -1 down."""

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self.instructions: list[Instruction] = []
        self.numbers: dict[int, int] = {}
        self.merged: dict[tuple[Any, tuple[int, ...]], int] = {}

    def add(self, root: Any) -> int:
        """The number of a tree's value, its leaves met in the order of `node.signature`."""
        found: list[int] = []
        pending: list[tuple[Any, list[int], list[int] | None]] = [(root, found, None)]
        while pending:
            entry, consumer, inputs = pending.pop()
            if inputs is not None:
                self.numbers[id(entry)] = self.instruction(entry, tuple(inputs))
                consumer.append(self.numbers[id(entry)])
            elif isinstance(entry, Variable) and id(entry) in self.numbers:
                consumer.append(self.numbers[id(entry)])
            elif type(entry) is OpTreeNode:
                operands: list[int] = []
                pending.append((entry, consumer, operands))
                pending.extend((operand, operands, None) for operand in reversed(operands_of(entry)))
            else:
                consumer.append(self.leaf(entry))
        return found[0]

    def leaf(self, entry: Any) -> int:
        """The number of a new leaf."""
        self.leaves.append(entry)
        number = len(self.leaves) - 1
        if isinstance(entry, Variable):  # a Python number is a leaf of its own at each place
            self.numbers[id(entry)] = number
        return number

    def instruction(self, node: OpTreeNode, inputs: tuple[int, ...], outlined: bool = False) -> int:
        """The number of the value of a node's op on these inputs; the node's own operands are not looked at.

        Parameters
        ----------
        outlined : bool
            Whether the node is an instruction's already.
        """
        key = node.op, inputs
        number = self.merged.get(key)
        if number is None and node.op.commutative:
            number = self.merged.get((node.op, inputs[::-1]))
        if number is None:
            number = ~len(self.instructions)
            self.instructions.append(Instruction(node.op, inputs, node if outlined else _outline(node)))
            if not node.op.destroy_map:
                self.merged[key] = number
        return number

    def program(self, outputs: Sequence[int]) -> Program:
        """The program that gives these values."""
        first = len(self.leaves)

        def final(number: int) -> int:
            return number if number >= 0 else first + ~number

        instructions = [Instruction(op, tuple(map(final, inputs)), node) for op, inputs, node in self.instructions]
        return Program(self.leaves, instructions, [final(number) for number in outputs])


def _outline(node: OpTreeNode) -> OpTreeNode:
    """The node with inputs of the same types in the place of its operands."""
    stand_ins: list[Any] = [Input(as_variable(operand).type) for operand in operands_of(node)]
    left, right = (*stand_ins[:1], None)[0], (None, *stand_ins[1:])[-1]
    for operand in reversed(stand_ins[1:-1]):
        right = OpTreeNode(ARGS, operand, right)
    outline = OpTreeNode(node[0], left, right)
    outline.origin = node.origin
    return outline
