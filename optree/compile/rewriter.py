"""Rewriting of programs by local rules, in one pass over the instructions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from optree.compile.program import Builder, Instruction, Program
from optree.dtypes import is_floating
from optree.errors import OptreeError, built_at
from optree.op.op import Op
from optree.records import NamedTuple
from optree.registry import OPS
from optree.tree.equality import bits_of
from optree.tree.node import OpTreeNode, applied
from optree.tree.tensor import Tensor
from optree.tree.types import NUMBERS, TensorType
from optree.tree.variable import Constant, Input, as_variable

#: Constants of more elements than this are not compared.
COMPARED = 64


class Having:
    """The names of the ops with a fact: those that are known so far, and a program has no others."""

    def __init__(self, fact: Callable[[Any], bool]) -> None:
        self.fact = fact

    def __iter__(self) -> Iterator[str]:
        return (name for name, op in OPS.known().items() if self.fact(op))

    def __contains__(self, name: object) -> bool:
        op = dict.get(OPS, name)
        return op is not None and self.fact(op)


#: The names of ops.
Names = Collection[str] | Having


#: Whether a rule may apply to an instruction of a program.
Condition = Callable[[Program, Instruction], bool]


def on(
    *ops: str, having: Having | None = None, of: Names = (), fixed: bool = False, when: Condition | None = None
) -> Callable[[Any], Any]:
    """A decorator for a rule: a function from a `Value` to its replacement, a tree over `Value.operand`s, or None.

    A replacement has the value's type.

    `*ops`: the names of the ops whose values the rule may replace; none for all ops.
    `having`: the same by a fact.
    `of`: the rule applies only if an op of one of these names computes an input.
    `fixed`: whether the rule needs a program whose numbers and constants cannot change.
    `when`: whether the rule may apply to an instruction: a fast test, before a program is rewritten.
    """

    def mark(rule: Any) -> Any:
        rule.ops, rule.of, rule.fixed, rule.when = having or ops, of, fixed, when
        return rule

    return mark


class Change(NamedTuple):
    """A replacement of one value by a rule."""

    rule: str
    #: The old and the new node.
    before: Any
    after: Any

    def __str__(self) -> str:
        now = self.after.op if type(self.after) is OpTreeNode else getattr(self.after, "label", self.after)
        return f"{self.rule}: {self.before.op} becomes {now}  {self.before.type}{built_at(self.before.origin)}"


def apply_rules(
    program: Program,
    table: Mapping[str | None, list[Any]],
    fixed: bool,
    given: int,
    changes: list[Change] | None = None,
    only: Collection[int] | None = None,
) -> Program:
    """The program rewritten by the first rule that applies to each value; the same object if none does.

    Values that an op destroys are not replaced, nor ops that destroy an input unless a rule names them.

    `table`: the rules by the names of their ops; under None those for all ops.
    `fixed`: whether rules may read the values of numbers and constants.
    `given`: the number of leaves that come from the trees; rules have added those after them.
    `changes`: replacements are appended to it.
    `only`: the indices of the instructions that may be replaced; None for all.
    """
    rewriter = _Rewriter(program, table, fixed, given)
    outputs = rewriter.run(program, only)
    if changes is not None:
        changes += rewriter.changes
    return rewriter.program(outputs, given, rewriter.replaced) if rewriter.replaced else program


def _name_of(op: Op) -> str | None:
    """An op's name; None if its class is not the one of that name, such as a subclass."""
    return op.name if type(op) is dict.get(OPS, op.name) else None


class Value:
    """A value of a program, as rules see it."""

    __slots__ = ("_rewriter", "number")

    def __init__(self, rewriter: Any, number: int) -> None:
        self._rewriter, self.number = rewriter, number

    @property
    def _leaf(self) -> Any:
        return self._rewriter.leaves[self.number]

    @property
    def is_leaf(self) -> bool:
        return self.number >= 0

    @property
    def instruction(self) -> Instruction:
        """The instruction that computes it."""
        return Instruction(self.op, self._rewriter.inputs[~self.number], self.node)

    @property
    def node(self) -> OpTreeNode:
        """The instruction's node."""
        return self._rewriter.nodes[~self.number]

    @property
    def op(self) -> Any:
        """The op that computes it; None for a leaf."""
        return None if self.number >= 0 else self._rewriter.ops[~self.number]

    def is_a(self, *names: str) -> bool:
        """Whether an op of one of these names computes it, and not of a subclass."""
        return self.is_among(names)

    def is_among(self, names: Names) -> bool:
        """The same of a collection of names."""
        return self.number < 0 and _name_of(self._rewriter.ops[~self.number]) in names

    @property
    def inputs(self) -> list[Value]:
        """The operands of its op."""
        number, rewriter = self.number, self._rewriter
        return [] if number >= 0 else [Value(rewriter, i) for i in rewriter.inputs[~number]]

    @property
    def type(self) -> Any:
        number, rewriter = self.number, self._rewriter
        return rewriter.nodes[~number].type if number < 0 else as_variable(rewriter.leaves[number]).type

    @property
    def dtype(self) -> np.dtype:
        return self.type.dtype

    @property
    def is_float(self) -> bool:
        return is_floating(self.dtype)

    @property
    def is_integral(self) -> bool:
        return self.dtype.kind in "biu"

    @property
    def is_weak(self) -> bool:
        """Whether it is a Python number, whose dtype is weak."""
        return self.is_leaf and type(self._leaf) in NUMBERS

    @property
    def constant(self) -> Any:
        """Its leaf, if that is a fixed Python number or `Constant`."""
        if not self.is_leaf or not (self._rewriter.fixed or self.number >= self._rewriter.given):
            return None
        return self._leaf if type(self._leaf) in NUMBERS or isinstance(self._leaf, Constant) else None

    @property
    def literal(self) -> Any:
        """Its number, if that is a fixed Python number or 0-d constant, and real."""
        leaf = self.constant
        if isinstance(leaf, Constant):
            leaf = leaf.value.item() if isinstance(leaf.value, np.ndarray) and leaf.value.shape == () else None
        return None if leaf.__class__ is complex else leaf

    @property
    def used_once(self) -> bool:
        """Whether it has a single use."""
        return self._rewriter.uses.get(self.number) == 1

    @property
    def operand(self) -> Input:
        """The operand that represents it in a replacement."""
        return self._rewriter.operand_for(self.number)

    @property
    def first_equal(self) -> Value:
        """The first leaf that is the same constant; the value itself if it is no constant."""
        leaf = self.constant
        key = None if leaf is None else _bits(leaf)
        return self if key is None else Value(self._rewriter, self._rewriter.constants.setdefault(key, self.number))

    def on(self, inputs: Sequence[Value]) -> OpTreeNode:
        """The same op on other values of the same types."""
        return applied(self.node[0], [x.operand for x in inputs])


class _Rewriter(Builder):
    """Builds the rewritten program from another's instructions."""

    def __init__(self, program: Program, table: Mapping[str | None, list[Any]], fixed: bool, given: int) -> None:
        super().__init__()
        self.leaves = list(program.leaves)
        self.table, self.fixed, self.given = table, fixed, given
        self._rules: dict[type, list[Any]] = {}
        self.uses: dict[int, int] = {}
        self.replaced: dict[int, int] = {}
        self.changes: list[Change] = []
        self.constants: dict[Any, int] = {}
        self._operands: dict[int, Input] = {}
        self._trees: list[Any] = []  # alive, for the ids in `numbers`
        self._origin: Any = None
        self._must_not_alias = False

    def run(self, program: Program, only: Collection[int] | None = None) -> list[int]:
        """Add a program's instructions in order; the numbers of the outputs."""
        first, uses = len(program.leaves), _uses(program)
        frozen, guarded = _at_destroyers(program)
        numbers = list(range(first))
        add, rules_of = super().instruction, self._rules_of
        for index, (op, inputs, node) in enumerate(program.instructions, first):
            number = add(node, tuple([numbers[i] for i in inputs]), None)
            if rules_of(op) and index not in frozen and (only is None or index - first in only):
                self._origin, self._must_not_alias = node.origin, index in guarded
                number = self._rewritten(number)
            self.uses[number] = self.uses.get(number, 0) + uses[index]
            numbers.append(number)
        return [numbers[i] for i in program.outputs]

    def _rules_of(self, op: Op) -> list[Any]:
        """The rules for an op's values."""
        found = self._rules.get(type(op))
        if found is None:
            always = [] if op.destroy_map else self.table.get(None, [])
            found = self._rules[type(op)] = [*self.table.get(_name_of(op) or "", []), *always]
        return found

    def instruction(self, node: OpTreeNode, inputs: tuple[int, ...], operands: list[Any] | None) -> int:
        node.origin = self._origin
        number = super().instruction(node, inputs, operands)
        self.uses[number] = self.uses.get(number, 0) + 1
        return self._rewritten(number)

    def _rewritten(self, number: int) -> int:
        """The number of the value that replaces an instruction's; its own where no rule applies."""
        if number in self.replaced:
            return self.replaced[number]
        names = [_name_of(self.ops[~i]) for i in self.inputs[~number] if i < 0]
        for rule in self._rules_of(self.ops[~number]):
            if rule.of and not any(name in rule.of for name in names):
                continue
            found = self._replacement(rule, Value(self, number))
            if found is not None:
                self.replaced[number] = found
                after = self.leaves[found] if found >= 0 else self.nodes[~found]
                self.changes.append(Change(rule.__name__, self.nodes[~number], after))
                return found
        return number

    def _replacement(self, rule: Any, value: Value) -> int | None:
        """The number of a rule's replacement for a value; None if it gives none."""
        try:
            tree = rule(value)
        except OptreeError:  # a replacement that cannot be built: a number may overflow
            return None
        if tree is None or tree.type != value.type:
            return None
        self._trees.append(tree)
        number = self.add(tree)
        if number < 0 and type(tree) is OpTreeNode:
            self.uses[number] -= 1  # `run` counts its uses
        # The value was not weak, as a Python number would be.
        if Value(self, number).is_weak or (self._must_not_alias and self._may_alias_tensor(number)):
            return None
        return number

    def _may_alias_tensor(self, number: int) -> bool:
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

    def operand_for(self, number: int) -> Input:
        """The input that represents a value in a replacement."""
        found = self._operands.get(number)
        if found is None:
            found = self._operands[number] = Input(Value(self, number).type)
            self.numbers[id(found)] = number
        return found

    def leaf(self, entry: object) -> int:
        """The number of a rule's constant; equal constants have one number."""
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
    """The values whose memory an op destroys; and if several ops do, the values that these read.

    None of the latter may be replaced by a view of a tensor: if another op destroys that, no order is valid.
    """
    destroyed: set[int] = set()
    read: set[int] = set()
    destroyers = 0
    for index in range(len(program.instructions) - 1, -1, -1):
        op, inputs, _ = program.instructions[index]
        if op.destroy_map:
            destroyers += 1
            destroyed |= {inputs[i] for i in op.destroyed_inputs()}
            read |= set(inputs)
        elif op.view_map:
            for found in (destroyed, read):
                if len(program.leaves) + index in found:
                    found |= {inputs[i] for i in op.shared_inputs()}
    return destroyed, read if destroyers > 1 else set()


def _uses(program: Program) -> list[int]:
    """The number of uses of each value."""
    uses = [0] * (len(program.leaves) + len(program.instructions))
    for instruction in program.instructions:
        for i in instruction.inputs:
            uses[i] += 1
    for i in program.outputs:
        uses[i] += 1
    return uses
