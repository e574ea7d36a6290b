"""The rewriting passes: algebraic simplification, numerical stabilisation and constant folding.

A pass visits the instructions once, in topological order, so it is linear in the program's
length. A replacement keeps the origin of the node that it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from optree.compile import rules
from optree.compile.program import Program
from optree.compile.rewriter import Change, Having, Value, apply_rules, on
from optree.errors import OperandError, names
from optree.op.traits import CompositeOperator
from optree.records import NamedTuple
from optree.registry import OPS


class Pass(NamedTuple):
    """Rules that are tried together on each value, in order."""

    name: str
    rules: tuple[Any, ...]


#: All passes, in order.
PASSES = (
    # First: later passes see each value once, with all its uses.
    Pass("merge", (rules.equal_constants,)),
    # Before passes that count uses.
    Pass("shapes", (rules.shapes_of_operands,)),
    # While log(1 + x) still shows its 1, and before folding could round it.
    Pass(
        "stabilise",
        (
            rules.log_of_softmax,
            rules.log_of_sum_of_exp,
            rules.log_of_sigmoid,
            rules.log_of_one_plus,
            rules.log1p_of_exp,
            rules.log_of_one_minus_sigmoid,
            rules.one_minus_tanh_squared,
        ),
    ),
    # Before cancel: casts and signs that moved outward become adjacent and cancel.
    Pass(
        "outward",
        (
            rules.casts_outward,
            rules.sort_of_integers,
            rules.scalars_outward,
            rules.sign_into_number,
            rules.sign_of_product,
            rules.scalars_together,
        ),
    ),
    Pass(
        "cancel",
        (
            rules.double_negation,
            rules.negated_terms,
            rules.transposes,
            rules.reshape_of_reshape,
            rules.cast_to_own_dtype,
            rules.cast_of_cast,
            rules.copies,
            rules.times_one,
            rules.plus_zero,
        ),
    ),
    # Last: folding hides what the rules above look for.
    Pass("fold", (rules.fold_constants,)),
)


def rewrite(program: Program, fixed: bool = False, without: Sequence[str] = ()) -> Program:
    """An equivalent program that does less work or keeps more digits.

    Its leaves are the given program's, followed by the constants that rules add.

    Parameters
    ----------
    program : Program
    fixed : bool
        Whether the program's numbers and constants cannot change, so that rules may read
        them. They can in a plan that serves other trees too.
    without : sequence of str
        Names of passes, or of single rules, to leave out.

    Raises
    ------
    OperandError
        If there is no pass or rule of such a name.
    """
    for _, rewritten, _ in each_pass(program, fixed, without):
        program = rewritten
    return program


def each_pass(
    program: Program, fixed: bool = False, without: Sequence[str] = ()
) -> Iterator[tuple[str, Program, list[Change]]]:
    """Each pass's name, the program after it, and its replacements."""
    given = len(program.leaves)
    ops = {instruction.op.name for instruction in program.instructions}
    for name, table in _tables(fixed, tuple(without), dict.__len__(OPS)):
        changes: list[Change] = []
        if None in table or not ops.isdisjoint(table):  # most passes have no rule for any op of the program
            program = apply_rules(program, table, fixed, given, changes)
            if changes:
                ops = {instruction.op.name for instruction in program.instructions}
        yield name, program, changes


@lru_cache
def _tables(fixed: bool, without: tuple[str, ...], known: int) -> list[tuple[str, dict[str | None, list[Any]]]]:
    """The name and the rules, by op name, of each pass that runs; the number of known ops tells later tables apart."""
    passes, rules_ = {each.name for each in PASSES}, {rule.__name__ for each in PASSES for rule in each.rules}
    if unknown := set(without) - passes - rules_:
        raise OperandError(
            f"there is no rewrite {names(unknown)}; there are the passes {names(passes)} and the rules {names(rules_)}"
        )
    tables = []
    for each in PASSES:
        chosen = [rule for rule in each.rules if rule.__name__ not in without and (fixed or not rule.fixed)]
        if chosen and each.name not in without:
            ops = {name for rule in chosen for name in rule.ops or (None,)}
            tables.append((each.name, {op: [r for r in chosen if op in (r.ops or (None,))] for op in ops}))
    return tables


def decompose(program: Program, draws: bool = True, further: bool = False) -> Program:
    """The program for kernels: each `CompositeOperator` decomposed, nested reductions split, copies and casts fusable.

    Parameters
    ----------
    draws : bool
        Whether random draws are decomposed too.
    further : bool
        Whether products with vectors are, which a CPU leaves to BLAS, and argmax and argmin, which it leaves to NumPy.
    """
    table = _kernel_rules(draws, further, dict.__len__(OPS))
    return apply_rules(program, table, False, len(program.leaves))


@lru_cache
def _kernel_rules(draws: bool, further: bool, known: int) -> dict[str | None, list[Any]]:
    """The rules of `decompose` by op name; the number of known ops tells later tables apart."""
    applied: list[Any] = [_decomposed if draws else _decomposed_not_drawn]
    applied += [rules.reduced_in_two, rules.assigned_by_a_kernel]
    applied += [rules.product_with_a_vector, rules.argument_of_extreme] * further
    return {name: [rule] for rule in applied for name in rule.ops}


@on(having=Having(lambda op: issubclass(op, CompositeOperator)))
def _decomposed(value: Value) -> Any:
    """A composite op's value as a tree of simpler ones."""
    return value.op.decompose(*(x.operand for x in value.inputs))


@on(having=Having(lambda op: issubclass(op, CompositeOperator) and not op.destroy_map))
def _decomposed_not_drawn(value: Value) -> Any:
    return _decomposed(value)
