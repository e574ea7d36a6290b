"""Programs: trees flattened in topological order with common subexpressions merged, their steps, and their sizes.

Symbolic dimensions are axes of a program that are equal in every call, by unification.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from optree.errors import ShapeError, built_at
from optree.ops.assignment import Assign
from optree.records import NamedTuple
from optree.tree.node import OpTreeNode, applied, operands_of, parts_of
from optree.tree.types import NUMBERS, TensorType, TupleType, Type
from optree.tree.variable import Input, Variable, as_variable, spec_of


class Instruction(NamedTuple):
    """One application of an op."""

    #: An `Op`.
    op: Any
    #: The numbers of its operands' values.
    inputs: tuple[int, ...]
    #: The op, its types and its origin. The operands are inputs of the same types, so that a plan keeps no tensor
    #: alive. Sizes are those of the first tree: a plan serves others too.
    node: OpTreeNode

    @property
    def type(self) -> TensorType:
        return self.node.type


class Program(NamedTuple):
    """Instructions in topological order.

    Values are numbered: first the leaves, then the instructions in order. Each occurrence of a
    Python number is a separate leaf, since a plan serves trees with other numbers too.
    """

    #: Tensors, inputs, constants and Python numbers, in the order of `node.signature`.
    leaves: list[Any]
    instructions: list[Instruction]
    #: The numbers of the roots' values.
    outputs: list[int]
    #: The result of `memories`, for an outline, whose leaves have no memory.
    owners: list[int] | None = None

    def type_of(self, number: int) -> Any:
        """The type of a value."""
        first = len(self.leaves)
        return as_variable(self.leaves[number]).type if number < first else self.instructions[number - first].type

    def is_number(self, value: int) -> bool:
        """Whether a value is a Python number."""
        return value < len(self.leaves) and isinstance(self.leaves[value], NUMBERS)


def flatten(roots: Sequence[Any]) -> Program:
    """Flatten trees into a program, with common subexpressions merged (value numbering).

    Ops that destroy an input, as random ones do their state, are never merged.
    """
    builder = Builder()
    outputs = [builder.add(root) for root in roots]
    return builder.program(outputs)


class Builder:
    """Value numbering during a traversal: leaves from 0 up, instructions from -1 down.

    `ops`, `nodes`, `inputs`: the instructions' ops and nodes, and the numbers of their operands.
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

        `operands` (list or None): the node's operands; None if it is an outline, of an instruction.
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

        `given`: the number of leaves that are live, used or not; by default all.
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


# Steps


class RegisterCall(NamedTuple):
    """A call on numbered registers, which hold the values of a program."""

    #: A function of operands; if `take` is None, of the registers, which it updates.
    call: Callable[..., Any]
    #: A function of the registers to the operands.
    take: Callable[[list[Any]], Sequence[Any]] | None
    #: The register of the call's value.
    output: int
    #: The register of an array that the value is written into.
    out: int | None
    #: The registers whose last use is this step.
    dead: Sequence[int]
    #: The index of its last instruction, for errors.
    number: int
    #: A function of the registers, called if `call` returns true, because it could not run.
    fallback: Callable[[list[Any]], Any] | None = None


class Steps(NamedTuple):
    """A plan's steps in order."""

    #: The program whose instructions and values they name.
    program: Program
    #: Each a `backends.execution.executor.Step`.
    steps: Sequence[Any]
    #: From the bytes of each value to the number of the memory of those that a function keeps from call to call.
    slots: Callable[[Sequence[int]], dict[int, int]]
    #: The values of the leaves that the program has beyond those that it was lowered from.
    constants: Sequence[Any]


class Plan:
    """A compiled program.

    `run`: a function of the leaves' values to those of the outputs. Its second argument is the trees that run, for the
    origins in errors; None for those that were compiled.
    `remark`: a line for `debugprint`.
    """

    def __init__(self, run: Callable[[list[Any], Any], Sequence[Any]], remark: Callable[[], str] | None = None) -> None:
        self.run, self.remark = run, remark


#: Adds a note to an error: its instruction, by index, in the trees that ran.
Note = Callable[[Exception, int, Any], None]


def run_steps(
    steps: Iterable[tuple[Any, ...]],
    rest: list[Any],
    outputs: Callable[[list[Any]], Sequence[Any]] | None,
    note: Note,
    values: list[Any],
    roots: object = None,
) -> Sequence[Any]:
    """Run steps in order; their outputs.

    `steps` (iterable of RegisterCall): of steps that run often, as plain tuples (`plain`).
    `rest`: the initial registers after `values`. If empty, `values` are the registers.
    `outputs`: a function of the registers to the outputs (`outputs_of`).
    `values`: the leaves' values.
    `roots`: the trees that run, for `note`.
    """
    registers = values + rest if rest else values
    index = 0
    try:
        for call, take, output, out, dead, index, fallback in steps:  # noqa: B007 the except clause uses it
            if take is None:
                if call(registers) and fallback is not None:
                    fallback(registers)
            elif out is None:
                registers[output] = call(*take(registers))
            else:
                registers[output] = call(*take(registers), out=registers[out])
            if dead:
                for i in dead:
                    registers[i] = None
        return () if outputs is None else outputs(registers)
    except Exception as error:
        note(error, index, roots)
        raise


def plain(steps: Iterable[RegisterCall]) -> list[tuple[Any, ...]]:
    """Calls as plain tuples, which Python unpacks in two thirds of the time."""
    return [tuple(step) for step in steps]


def outputs_of(program: Program) -> Callable[[list[Any]], Sequence[Any]] | None:
    """A function of the registers to a program's outputs; None if all are assignments."""
    made = (program.instructions[i - len(program.leaves)].op for i in program.outputs if i >= len(program.leaves))
    is_read = any(i < len(program.leaves) for i in program.outputs) or not all(isinstance(op, Assign) for op in made)
    return taker(program.outputs) if is_read else None


def taker(numbers: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function of the registers to those with these numbers."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return itemgetter(slice(numbers[0], numbers[0] + 1)) if numbers else itemgetter(slice(0, 0))


# Sizes

#: The dimension of every axis of size 1: sizes of 1 are part of a plan's key.
ONE = -1

#: The dimension of each axis of a value: a number, equal for axes that always have equal sizes.
Dims = tuple[int, ...]


def check_sizes(program: Program, shapes: Sequence[Any]) -> list[Any]:
    """The shapes of a program's outputs from those of its leaves; None for one that only a run determines.

    Raises ShapeError if an op cannot be applied to these shapes, or if an axis of size 1 that was not known to have
    size 1 would broadcast.
    """
    found = list(shapes)
    for instruction in program.instructions:
        given = [found[i] for i in instruction.inputs]
        found.append(None if None in given else _checked(instruction, given))
    return [found[i] for i in program.outputs]


def leaf_shape(value: object) -> tuple[int, ...] | None:
    """The shape of a leaf's value: () of a number, None of a value that has none."""
    shape = () if isinstance(value, bool | int | float | complex) else getattr(value, "shape", None)
    return None if shape is None else tuple(shape)


def shapes_of(program: Program, shapes: Sequence[Any]) -> list[Any]:
    """The shapes of all values, from valid ones of the leaves; None for one that only a run determines."""
    found = list(shapes)
    for instruction in program.instructions:
        given = [found[i] for i in instruction.inputs]
        found.append(None if None in given else _inferred(instruction, given))
    return found


def broadcasts(instruction: Instruction) -> bool:
    """Whether operands broadcast: along an axis, sizes are equal or known to be 1."""
    op = instruction.op
    return bool(op.index_map.broadcasts) and not op.defines("infer_shape")


def shapes_told(program: Program) -> list[bool]:
    """For each value, whether its shape follows from those of the leaves."""
    told = [True] * len(program.leaves)
    for op, inputs, _ in program.instructions:
        told.append((op.defines("infer_shape") or op.gives_shape) and all(told[i] for i in inputs))
    return told


def _inferred(instruction: Instruction, given: list[Any]) -> Any:
    """The shape of an instruction's value; a list of shapes for a tuple."""
    op, node = instruction.op, instruction.node
    if op.defines("infer_shape"):
        shapes = op.infer_shape(node.owner, given)
        return list(shapes) if isinstance(node.type, TupleType) else tuple(shapes[0])
    return op.output_shape(*given) if op.gives_shape else None


def _checked(instruction: Instruction, given: list[Any]) -> Any:
    """The same; raises if the sizes are invalid."""
    op, node = instruction.op, instruction.node
    try:
        shape = _inferred(instruction, given)
        if broadcasts(instruction):
            _check_known(node, given)
        return shape
    except ShapeError as error:
        listed = " and ".join(map(str, given))
        raise ShapeError(f"{op} on {listed}{built_at(node.origin)}: {error}") from None


def _check_known(node: OpTreeNode, given: list[Any]) -> None:
    """Refuse to broadcast an axis of size 1 that was not known to be one when the tree was built."""
    ndim = len(node.shape)
    for axis in range(ndim):
        sizes = set()
        for operand, shape in zip(node.inputs, given, strict=True):
            own = axis - ndim + len(shape)
            if own >= 0 and operand.shape[own] != 1:
                sizes.add(shape[own])
        if len(sizes) > 1:
            raise ShapeError(
                f"sizes {sorted(sizes)} meet along axis {axis}; to broadcast, an axis must be known to have size 1"
            )


# Symbolic dimensions


def dims_of(program: Program, fixed: Collection[int] = ()) -> list[Dims | None]:
    """The dimensions of each value; None for values that are no tensors.

    Dimensions are equal only if an op enforces it: two leaves of equal shape may differ in the next call.

    `fixed`: the leaves whose shapes cannot change; those of equal shape have equal dimensions.
    """
    dimensions = _Dimensions()
    found: list[Any] = [dimensions.fresh(as_variable(leaf).type) for leaf in program.leaves]
    first: dict[tuple[int | None, ...], Dims] = {}
    for leaf in fixed:
        equal = first.setdefault(as_variable(program.leaves[leaf]).type.shape, found[leaf])
        for pair in zip(equal, found[leaf], strict=True):
            dimensions.join(pair)
    for instruction in program.instructions:
        found.append(_dims(instruction, [found[i] for i in instruction.inputs], dimensions))
    return [None if dims is None else tuple(map(dimensions.root, dims)) for dims in found]


class Sizes:
    """A program's dimensions, and the leaves that they can be read from.

    `fixed`: see `dims_of`.
    """

    def __init__(self, program: Program, fixed: Collection[int] = ()) -> None:
        #: The dimensions of each value, as `dims_of` gives them.
        self.dims = dims_of(program, fixed)
        #: For each dimension of a leaf, the leaf's number and the axis.
        self.sources: dict[int, tuple[int, int]] = {}
        for leaf in range(len(program.leaves)):
            for axis, dim in enumerate(self.dims[leaf] or ()):
                if dim != ONE:
                    self.sources.setdefault(dim, (leaf, axis))

    def is_known(self, value: int) -> bool:
        """Whether a value's shape follows from those of the leaves."""
        dims = self.dims[value]
        return dims is not None and all(dim == ONE or dim in self.sources for dim in dims)

    def shape_of(self, value: int, values: Sequence[Any]) -> tuple[int, ...]:
        """A known shape, from the leaves' values."""
        found = [1 if dim == ONE else self.sources[dim] for dim in self.dims[value] or ()]
        return tuple(size if isinstance(size, int) else np.shape(values[size[0]])[size[1]] for size in found)

    def waits_for(self, instruction: Instruction) -> list[int]:
        """The inputs that an instruction depends on: without those of which it reads only a known shape."""
        alone = instruction.op.index_map.shape_only
        if not alone:
            return list(instruction.inputs)
        return [i for n, i in enumerate(instruction.inputs) if n not in alone or not self.is_known(i)]


class _Dimensions:
    """A union-find of dimensions."""

    def __init__(self) -> None:
        self.parents: list[int] = []

    def fresh(self, type: Type) -> Dims | None:
        """New dimensions for a value of a type."""
        shape = getattr(type, "shape", None)
        return None if shape is None else tuple(ONE if size == 1 else self._new() for size in shape)

    def _new(self) -> int:
        self.parents.append(len(self.parents))
        return self.parents[-1]

    def root(self, dim: int) -> int:
        if dim == ONE:
            return ONE
        while self.parents[dim] != dim:
            self.parents[dim] = self.parents[self.parents[dim]]
            dim = self.parents[dim]
        return dim

    def join(self, dims: Sequence[int]) -> int:
        """Unify the dimensions of axes that are broadcast together; ONE if all are."""
        roots = [self.root(dim) for dim in dims if dim != ONE]
        for root in roots[1:]:
            self.parents[self.root(root)] = self.root(roots[0])
        return self.root(roots[0]) if roots else ONE


def _dims(instruction: Instruction, given: list[Any], dimensions: _Dimensions) -> Dims | None:
    """The dimensions of an instruction's value."""
    type = instruction.type
    if None in given or getattr(type, "shape", None) is None:
        return dimensions.fresh(type)
    if not broadcasts(instruction):
        return _traced(instruction, given, dimensions)
    return _joined(given, len(type.shape), dimensions)


def _joined(given: Sequence[Dims], ndim: int, dimensions: _Dimensions) -> Dims:
    """The dimensions of operands broadcast together."""
    padded = [(ONE,) * (ndim - len(dims)) + dims[max(0, len(dims) - ndim) :] for dims in given]
    return tuple(dimensions.join(dims) for dims in zip(*padded, strict=True))


def _traced(instruction: Instruction, given: Sequence[Dims], dimensions: _Dimensions) -> Dims | None:
    """The dimensions of another op's value, by its index map, or by its `output_shape` of distinct sizes."""
    reads = instruction.op.index_map
    if reads.shape_of is not None:
        return given[reads.shape_of]
    if reads.axis_order is not None:
        return tuple([given[0][axis] for axis in reads.axis_order])
    fresh = dimensions.fresh(instruction.type)
    if fresh is None or not instruction.op.gives_shape:
        return fresh
    for pair in reads.equal_axes:
        dimensions.join([given[operand][max(axis, -len(given[operand]))] for operand, axis in pair])
    roots = [tuple(map(dimensions.root, dims)) for dims in given]
    distinct = {dim for dims in roots for dim in dims if dim != ONE}
    found = _placed(instruction, roots, distinct, 1)
    if len(distinct) > 1:  # an axis of the lesser of two sizes, as of singular values, has neither dimension
        again = _placed(instruction, roots, distinct, -1)
        found = tuple([one if one == other else None for one, other in zip(found, again, strict=True)])
    return tuple([own if dim is None else dim for dim, own in zip(found, fresh, strict=True)])


def _placed(instruction: Instruction, given: Sequence[Dims], distinct: set[int], sign: int) -> tuple[int | None, ...]:
    """The dimension of the inputs that each axis of a value has, or None, where later ones are larger, or smaller."""
    sizes = {dim: 10**9 + sign * 7919 * dim for dim in distinct}  # unlikely to equal a sum or difference of others
    known = {size: dim for dim, size in sizes.items()}
    try:
        shape = instruction.op.output_shape(*(tuple([sizes.get(dim, 1) for dim in dims]) for dims in given))
    except ShapeError:
        return (None,) * instruction.type.ndim
    return tuple([known.get(size) for size in shape])
