"""A tree as a program: the list that compilers and executors see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from optree.arrays import overlapping
from optree.tree.node import OpDict, OpTreeNode, applied, operands_of
from optree.tree.tensor import Tensor
from optree.tree.types import TensorType
from optree.tree.variable import Input, Variable, as_operand, as_variable, spec_of


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


class _Kind(NamedTuple):
    """The facts of an op_dict that numbering asks for: equal ops have one `number`."""

    number: int
    is_commutative: bool
    is_merged: bool


class Builder:
    """Numbers values as a traversal meets them: leaves from 0 up, instructions from -1 down.

    Attributes
    ----------
    nodes, inputs : list
        The instructions: what each computes, and the numbers of the values that it takes.
    """

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self.nodes: list[OpTreeNode] = []
        self.inputs: list[tuple[int, ...]] = []
        self.numbers: dict[int, int] = {}
        self.merged: dict[tuple[int, tuple[int, ...]], int] = {}
        # Nodes share op_dicts: an op is hashed, and its operands are outlined, once for each, not for each node.
        self._kinds: dict[OpDict, _Kind] = {}
        self._ops: dict[Any, int] = {}
        self._outlines: dict[tuple[Any, ...], OpTreeNode] = {}

    def add(self, root: Any) -> int:
        """The number of a tree's value, its leaves met in the order of `node.signature`."""
        found: list[int] = []  # a stack of values that no instruction has taken yet
        pending: list[Any] = [root]
        while pending:
            entry = pending.pop()
            kind = entry.__class__
            if kind is tuple:  # a node, and how many operands it has: they are found now
                node, count = entry
                taken = len(found) - count
                number = self.numbers[id(node)] = self.instruction(node, tuple(found[taken:]))
                found[taken:] = [number]
            elif kind is not OpTreeNode and not isinstance(entry, Variable):
                found.append(self.leaf(entry))
            elif id(entry) in self.numbers:
                found.append(self.numbers[id(entry)])
            elif kind is OpTreeNode:
                operands = operands_of(entry)
                pending.append((entry, len(operands)))
                pending += reversed(operands)
            else:
                found.append(self.leaf(entry))
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
        op_dict, _, _ = node
        kind = self._kinds.get(op_dict) or self._kind(op_dict)
        key = kind.number, inputs
        number = self.merged.get(key)
        if number is None and kind.is_commutative:
            number = self.merged.get((kind.number, inputs[::-1]))
        if number is None:
            number = ~len(self.nodes)
            self.nodes.append(node if outlined else self._outline(node))
            self.inputs.append(inputs)
            if kind.is_merged:
                self.merged[key] = number
        return number

    def _kind(self, op_dict: OpDict) -> _Kind:
        op = op_dict.op
        number = self._ops.setdefault(op, len(self._ops))
        kind = self._kinds[op_dict] = _Kind(number, op.commutative, not op.destroy_map)
        return kind

    def _outline(self, node: OpTreeNode) -> OpTreeNode:
        """The node with inputs of the same types in the place of its operands; one for all that were built alike."""
        op_dict, *_ = node
        operands = operands_of(node)
        code, offset, *_ = node.origin
        key = (op_dict, id(code), offset, *map(spec_of, operands))
        outline = self._outlines.get(key)
        if outline is None:
            outline = self._outlines[key] = applied(op_dict, [Input(as_variable(x).type) for x in operands])
            outline.origin = node.origin
        return outline

    def program(self, outputs: Sequence[int]) -> Program:
        """The program that gives these values."""
        first = len(self.leaves)
        instructions = []
        for node, inputs in zip(self.nodes, self.inputs, strict=True):
            numbers = tuple([i if i >= 0 else first + ~i for i in inputs])
            instructions.append(Instruction(node.op, numbers, node))
        return Program(self.leaves, instructions, [i if i >= 0 else first + ~i for i in outputs])
