"""How rules rewrite a program: one walk, in which each rule sees a value and what it is computed from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from optree.compile.program import Builder, Instruction, Program
from optree.dtypes import is_floating
from optree.errors import OptreeError, line_of
from optree.registry import OPS
from optree.tree.equality import bits_of
from optree.tree.node import OpTreeNode, applied
from optree.tree.tensor import Tensor
from optree.tree.types import NUMBERS, TensorType
from optree.tree.variable import Constant, Input, as_variable

#: Constants of more elements than this are not compared.
COMPARED = 64


def on(*ops: str, of: Sequence[str] = (), fixed: bool = False) -> Callable[[Any], Any]:
    """A decorator for a rule, which sees a `Value` and gives a tree over `Value.operand`s for it, or None.

    The tree has the value's type, and stands for it everywhere. The names are
    those of the ops whose values the rule may replace, none for all of them.

    Parameters
    ----------
    of : sequence of str
        The names of the ops one of which, at the least, computes an input.
    fixed : bool
        Whether the rule works only where the program's numbers and constants
        cannot change.
    """

    def mark(rule: Any) -> Any:
        rule.ops, rule.of, rule.fixed = ops, frozenset(of), fixed
        return rule

    return mark


class Change(NamedTuple):
    """One value that a rule has replaced.

    Attributes
    ----------
    rule : str
    before, after : OpTreeNode or leaf
        What computed it, and what does now.
    """

    rule: str
    before: Any
    after: Any

    def __str__(self) -> str:
        line = line_of(self.before.origin)
        now = self.after.op if type(self.after) is OpTreeNode else getattr(self.after, "label", self.after)
        at = f", built at {line}" if line else ""
        return f"{self.rule}: {self.before.op} becomes {now}  {self.before.type}{at}"


def apply_rules(
    program: Program,
    table: Mapping[str | None, list[Any]],
    fixed: bool,
    given: int,
    changes: list[Change] | None = None,
) -> Program:
    """The program, rewritten by rules where they apply, the first first; itself where none does.

    Values that an op destroys stay as they are, and the ops that destroy them unless a rule is for them.

    Parameters
    ----------
    table : dict
        The rules by the names of the ops that they are for; under None those
        for all.
    fixed : bool
        Whether the values of numbers and constants may be looked at.
    given : int
        How many of the leaves come from the trees; those after them were put in
        by rules.
    changes : list, optional
        Where to put what is changed.
    """
    if None not in table and not _may_apply(program, table):
        return program
    walk = _Walk(program, table, fixed, given)
    outputs = walk.run(program)
    if changes is not None:
        changes += walk.changes
    return (
        _without_dead(walk.program(outputs), given, {~number for number in walk.replaced}) if walk.replaced else program
    )


def _may_apply(program: Program, table: Mapping[str | None, list[Any]]) -> bool:
    """Whether any rule finds the ops that it is for: a quick look, for most passes find nothing."""
    first, instructions = len(program.leaves), program.instructions
    for op, inputs, _ in instructions:
        for rule in table.get(op.name, ()):
            if not rule.of or any(i >= first and instructions[i - first].op.name in rule.of for i in inputs):
                return True
    return False


class Value:
    """A value of a program that is being rewritten, as rules see it."""

    __slots__ = ("_walk", "number")

    def __init__(self, walk: Any, number: int) -> None:
        self._walk, self.number = walk, number

    @property
    def _leaf(self) -> Any:
        return self._walk.leaves[self.number]

    @property
    def is_leaf(self) -> bool:
        return self.number >= 0

    @property
    def instruction(self) -> Instruction:
        """The instruction that computes it."""
        return Instruction(self.op, self._walk.inputs[~self.number], self.node)

    @property
    def node(self) -> OpTreeNode:
        """The instruction's node."""
        return self._walk.nodes[~self.number]

    @property
    def op(self) -> Any:
        """The op that computes it; None for a leaf."""
        return None if self.is_leaf else self.node.op

    def is_a(self, *names: str) -> bool:
        """Whether an op of one of these names, and no other class, computes it."""
        op = self.op
        return op is not None and op.name in names and type(op) is OPS[op.name]

    @property
    def inputs(self) -> list[Value]:
        """The values that it is computed from."""
        return [] if self.is_leaf else [Value(self._walk, i) for i in self._walk.inputs[~self.number]]

    @property
    def type(self) -> Any:
        return as_variable(self._leaf).type if self.is_leaf else self.node.type

    @property
    def dtype(self) -> np.dtype:
        return self.type.dtype

    @property
    def is_float(self) -> bool:
        return is_floating(self.dtype)

    @property
    def is_weak(self) -> bool:
        """Whether it is a Python number, which takes the dtype of what it meets."""
        return self.is_leaf and type(self._leaf) in NUMBERS

    @property
    def constant(self) -> Any:
        """The Python number or `Constant` that it is, where that is fixed."""
        if not self.is_leaf or not (self._walk.fixed or self.number >= self._walk.given):
            return None
        return self._leaf if type(self._leaf) in NUMBERS or isinstance(self._leaf, Constant) else None

    @property
    def literal(self) -> Any:
        """The number that it is, where that is fixed: a Python number, or a 0-d constant's as one."""
        leaf = self.constant
        if not isinstance(leaf, Constant):
            return leaf
        return leaf.value.item() if isinstance(leaf.value, np.ndarray) and leaf.value.shape == () else None

    @property
    def used_once(self) -> bool:
        """Whether one place alone is known to need it."""
        return self._walk.uses.get(self.number) == 1

    @property
    def operand(self) -> Input:
        """The operand that represents it in a replacement."""
        return self._walk.stand_in(self.number)

    @property
    def first_equal(self) -> Value:
        """The first leaf that is the same constant; the value itself if it is none."""
        leaf = self.constant
        key = None if leaf is None else _bits(leaf)
        return self if key is None else Value(self._walk, self._walk.constants.setdefault(key, self.number))

    def on(self, inputs: Sequence[Value]) -> OpTreeNode:
        """The same op on other values, each of the type of the one that it stands for."""
        return applied(self.node[0], [x.operand for x in inputs])


class _Walk(Builder):
    """A program that grows by another's instructions, each replaced as the rules say."""

    def __init__(self, program: Program, table: Mapping[str | None, list[Any]], fixed: bool, given: int) -> None:
        super().__init__()
        self.leaves = list(program.leaves)
        self.table, self.fixed, self.given = table, fixed, given
        self.always = table.get(None, [])
        self.uses: dict[int, int] = {}
        self.replaced: dict[int, int] = {}
        self.changes: list[Change] = []
        self.constants: dict[Any, int] = {}
        self._stand_ins: dict[int, Input] = {}
        self._trees: list[Any] = []  # kept, for `numbers` tells them by id
        self._origin: Any = None
        self._stays_apart = False

    def run(self, program: Program) -> list[int]:
        """Take the instructions over, in their order; the numbers of the outputs."""
        first, uses = len(program.leaves), _uses(program)
        frozen, apart = _at_destroyers(program)
        numbers = list(range(first))
        for place, (op, inputs, node) in enumerate(program.instructions, first):
            taken = tuple([numbers[i] for i in inputs])
            self._origin, self._stays_apart = node.origin, place in apart
            changes = op.name in self.table or (self.always and not op.destroy_map)
            if place in frozen or not changes:
                number = super().instruction(node, taken, outlined=True)
            else:
                number = self.instruction(node, taken, outlined=True)
            self.uses[number] = self.uses.get(number, 0) + uses[place]
            numbers.append(number)
        return [numbers[i] for i in program.outputs]

    def instruction(self, node: OpTreeNode, inputs: tuple[int, ...], outlined: bool = False) -> int:
        if not outlined:
            node.origin = self._origin
        number = super().instruction(node, inputs, outlined)
        if not outlined:
            self.uses[number] = self.uses.get(number, 0) + 1
        if number in self.replaced:
            return self.replaced[number]
        rules = self.table.get(node.op.name)
        if rules or self.always:
            for rule in (*(rules or ()), *self.always):
                found = self._replacement(rule, Value(self, number))
                if found is not None:
                    self.replaced[number] = found
                    after = self.leaves[found] if found >= 0 else self.nodes[~found]
                    self.changes.append(Change(rule.__name__, self.nodes[~number], after))
                    return found
        return number

    def _replacement(self, rule: Any, value: Value) -> int | None:
        """The number of what a rule puts in a value's place."""
        if rule.ops and not value.is_a(*rule.ops):
            return None
        if rule.of and not any(x.is_a(*rule.of) for x in value.inputs):
            return None
        try:
            tree = rule(value)
        except OptreeError:  # what cannot be built, such as a number that overflows, is no replacement
            return None
        if tree is None or tree.type != value.type:
            return None
        self._trees.append(tree)
        number = self.add(tree)
        if number < 0 and type(tree) is OpTreeNode:
            self.uses[number] -= 1  # what needs it is counted by `run`
        # A Python number would be weak where the value was not.
        if Value(self, number).is_weak or (self._stays_apart and self._looks_into_tensor(number)):
            return None
        return number

    def _looks_into_tensor(self, number: int) -> bool:
        pending = [number]
        while pending:
            number = pending.pop()
            if number >= 0:
                if isinstance(self.leaves[number], Tensor):
                    return True
            else:
                inputs = self.inputs[~number]
                pending += [inputs[i] for i in self.nodes[~number].op.shared_inputs()]
        return False

    def stand_in(self, number: int) -> Input:
        """The input that stands for a value in a replacement."""
        found = self._stand_ins.get(number)
        if found is None:
            found = self._stand_ins[number] = Input(Value(self, number).type)
            self.numbers[id(found)] = number
        return found

    def leaf(self, entry: Any) -> int:
        """The number of a constant that a rule puts in, each once."""
        key = _bits(entry)
        number = None if key is None else self.constants.get(key)
        if number is None:
            number = super().leaf(entry)
            if key is not None:
                self.constants[key] = number
        return number


def _bits(leaf: Any) -> Any:
    comparable = type(leaf) in NUMBERS or (isinstance(leaf.type, TensorType) and leaf.size <= COMPARED)
    return bits_of(leaf) if comparable else None


def _at_destroyers(program: Program) -> tuple[set[int], set[int]]:
    """The numbers of the values whose memory an op destroys; and where there are several such ops, of all they read.

    What one reads may not come to lie in a tensor that another destroys: no
    order would do for both.
    """
    destroyed: set[int] = set()
    read: set[int] = set()
    destroyers = 0
    for place in range(len(program.instructions) - 1, -1, -1):
        op, inputs, _ = program.instructions[place]
        if op.destroy_map:
            destroyers += 1
            destroyed |= {inputs[i] for i in op.destroyed_inputs()}
            read |= set(inputs)
        elif op.view_map:
            for found in (destroyed, read):
                if len(program.leaves) + place in found:
                    found |= {inputs[i] for i in op.shared_inputs()}
    return destroyed, read if destroyers > 1 else set()


def _uses(program: Program) -> list[int]:
    """How many places need each value."""
    uses = [0] * (len(program.leaves) + len(program.instructions))
    for instruction in program.instructions:
        for i in instruction.inputs:
            uses[i] += 1
    for i in program.outputs:
        uses[i] += 1
    return uses


def _without_dead(program: Program, given: int, replaced: set[int]) -> Program:
    """The program without instructions, and leaves that rules put in, that nothing needs.

    An op that destroys an input is needed, unless another has been put in its place.
    """
    first = len(program.leaves)
    needed = set(program.outputs)
    for place in range(len(program.instructions) - 1, -1, -1):
        op, inputs, _ = program.instructions[place]
        if first + place in needed or (op.destroy_map and place not in replaced):
            needed.update((first + place, *inputs))
    kept = [i for i in range(first) if i < given or i in needed]
    kept += [first + place for place in range(len(program.instructions)) if first + place in needed]
    numbers = {old: new for new, old in enumerate(kept)}
    instructions = [
        Instruction(op, tuple([numbers[x] for x in inputs]), node)
        for op, inputs, node in (program.instructions[i - first] for i in kept if i >= first)
    ]
    leaves = [program.leaves[i] for i in kept if i < first]
    return Program(leaves, instructions, [numbers[i] for i in program.outputs])
