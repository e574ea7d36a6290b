"""The pipeline from trees to kernels and calls: every stage in order, with its reason and its printout.

Rewriting is by passes: simplification, numerical stabilisation, constant folding (`PASSES`), and `decompose` for
kernels. A pass visits the instructions once, in topological order, so it is linear in the program's length. A
replacement keeps the origin of the node that it replaces.

A backend goes on from there: it prints, compiles and runs kernels, and plans memory (`Backend.compile`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from optree import settings
from optree.compile import rules
from optree.compile.aliasing import LATE, moments, overlapped, schedule, unalias_outputs
from optree.compile.fusion import LONGEST, Call, Kernel, fuse
from optree.compile.program import Instruction, Program, Sizes, flatten
from optree.compile.rewriter import Change, Having, Value, apply_rules, on
from optree.dtypes import is_complex, is_floating, is_narrow, real_dtype, wide_dtype
from optree.errors import BackendError, OperandError, names
from optree.op.traits import (
    CompositeOperator,
    ElementwiseOperator,
    PartOperator,
    ReductionOperator,
)
from optree.records import NamedTuple
from optree.registry import OPS, f
from optree.tree.node import applied, uncollected
from optree.tree.printing import instruction_text, listing
from optree.tree.variable import Variable, in_dtype


class Options(NamedTuple):
    """Options of the stages."""

    #: Whether numbers and constants cannot change, as in a function, so that rules may read them.
    fixed: bool = False
    #: The leaves whose shapes cannot change: a function's tensors. Their late updates of equal shapes are one kernel.
    tensors: tuple[int, ...] = ()
    #: Whether passes run at all.
    rewrites: bool = True
    #: Names of passes and rules to leave out.
    without: tuple[str, ...] = ()
    #: A backend's choice of what `decompose` expands.
    further: bool = False
    #: Whether a backend's kernels find the indices of extremes.
    indices: bool = False
    #: Whether a backend's kernels read operands at affine indices.
    windows: bool = False
    #: Whether the stages that ``OPTREE_SHOW`` names are printed as they run.
    shown: bool = False


class Fused(NamedTuple):
    """A program and its steps."""

    program: Program
    #: Its symbolic dimensions.
    sizes: Sizes
    steps: list[Kernel | Call]


class Stage(NamedTuple):
    """One stage."""

    name: str
    #: The reason for its position.
    reason: str
    #: From the result of the stage before, and `Options`, to its own.
    run: Callable[[Any, Options], Any]
    #: The printout of its result, from the result of the stage before, its own, and `Options`.
    text: Callable[[Any, Any, Options], str]


def _rewritten(program: Program, options: Options) -> Program:
    return rewrite(program, options.fixed, options.without) if options.rewrites else program


def _fused(program: Program, options: Options) -> Fused:
    """A program as kernels and calls; longer than `LONGEST`, as calls alone."""
    # Late updates are next to each other. Where there are none, equal sizes would merge what runs at different times.
    sizes = Sizes(program, options.tensors if options.tensors and LATE in moments(program) else ())
    if len(program.instructions) > LONGEST:
        return Fused(program, sizes, [Call(index) for index in range(len(program.instructions))])
    return Fused(program, sizes, fuse(program, sizes, options.indices, options.windows))


def _listing(given: object, made: Program, options: Options) -> str:
    return listing(made)


def _changes(given: Program, made: Program, options: Options) -> str:
    """The replacements of each pass, and the rewritten program."""
    lines = []
    for name, _, changes in each_pass(given, options.fixed, options.without) if options.rewrites else ():
        lines += [f"{name}, {change}" for change in changes]
    return "\n".join([*lines, listing(made)]) if lines else "nothing to rewrite"


def _steps(given: object, made: Fused, options: Options) -> str:
    """Kernels, with their domains and the instructions of each stage, and calls."""
    lines: list[str] = []
    for step in made.steps:
        if isinstance(step, Call):
            lines.append(f"call {instruction_text(made.program, step.instruction)}")
        else:
            lines += _kernel(made, step)
    return "\n".join(lines)


def _kernel(fused: Fused, kernel: Kernel) -> list[str]:
    program, first = fused.program, len(fused.program.leaves)
    size_of: dict[int, Any] = {}
    for value, axes in kernel.axes.items():
        for axis, size in zip(axes, program.type_of(value).shape, strict=True):
            if axis is not None:
                size_of[axis] = size
    outer, inner = (
        [size_of[axis] for axis in range(len(kernel.domain)) if (axis in kernel.reduced) is is_inner]
        for is_inner in (False, True)
    )
    lines = [f"kernel, outer axes {_sizes(outer)}, inner axes {_sizes(inner)}"]
    # A kernel counts a reduction's value to the stage after the one that accumulates it.
    stage_of = {
        index: kernel.stages[first + index] - isinstance(program.instructions[index].op, ReductionOperator)
        for index in kernel.instructions
    }
    for stage in sorted(set(stage_of.values())):
        lines.append(f"  stage {stage}")
        for index in [index for index in kernel.instructions if stage_of[index] == stage]:
            lines.append(f"    {kernel.level(first + index):5}  {instruction_text(program, index)}")
    return [*lines, f"  writes {', '.join(f'%{value}' for value in kernel.writes)}"]


def _sizes(sizes: Sequence[Any]) -> str:
    return f"({', '.join('?' if size is None else str(size) for size in sizes)})"


#: From trees to steps, in order.
STAGES = (
    Stage(
        "program",
        "first: the other stages are loops over a list in topological order, with each common subexpression once",
        lambda roots, options: flatten(roots),
        _listing,
    ),
    Stage(
        "passes",
        "while ops are the user's, and no copy hides that two values are one",
        _rewritten,
        _changes,
    ),
    Stage(
        "copies",
        "after the passes, which may make one value of two outputs: a caller owns the memory of each",
        lambda program, options: unalias_outputs(program),
        _listing,
    ),
    Stage(
        "order",
        "after the copies, which read too: nothing is read after it was overwritten; what may fail runs first; "
        "what runs beside the rest is begun early and awaited late",
        lambda program, options: schedule(overlapped(program)),
        _listing,
    ),
    Stage(
        "parts",
        "after the program that NumPy runs, because only kernels need it: composite ops as simpler ones, which fuse",
        lambda program, options: decompose(program, options),
        _listing,
    ),
    Stage(
        "fusion",
        "last: which axes are equal, and what may share a kernel, depends on every instruction",
        _fused,
        _steps,
    ),
)

_NAMES = [stage.name for stage in STAGES]

#: The stages of a backend: the source of its kernels, and its plan.
OF_BACKENDS = ("source", "plan")


@uncollected
def lower(
    given: object,
    options: Options = Options(),  # noqa: B008
    first: str = "program",
    last: str = "order",
) -> Any:
    """Lower trees, or the result of a stage, through the stages that follow.

    `given` (sequence of trees, or Program): trees, or the result of the stage before `first`.
    `first`, `last`: the first and last stage to run. Up to ``'parts'`` the result is a program; after ``'fusion'``,
    `Fused`.
    """
    for stage in STAGES[_NAMES.index(first) : _NAMES.index(last) + 1]:
        made = stage.run(given, options)
        if options.shown:
            show(stage.name, partial(stage.text, given, made, options))
        given = made
    return given


def show(name: str, text: Callable[[], str]) -> None:
    """Print a stage to the standard error stream, if ``OPTREE_SHOW`` names it."""
    if name in settings.value("show"):
        reason = next((f" ({stage.reason})" for stage in STAGES if stage.name == name), "")
        print(f"{name}{reason}:\n{text()}\n", file=sys.stderr)


def stage_text(given: Any, name: str, options: Options, backend: Any = None, is_flat: bool = False) -> str:
    """The printout of a stage.

    `backend` (Backend, optional): prints the stages that follow fusion.
    `is_flat`: whether `given` is a program.

    Raises OperandError if there is no such stage.
    Raises BackendError if the stage is a backend's, and none was given.
    """
    if name not in settings.STAGES:
        raise OperandError(f"there is no stage {name!r}; there are {', '.join(settings.STAGES)}")
    if name in OF_BACKENDS and backend is None:
        raise BackendError(f"the stage {name!r} is a backend's, and there is none; gen_backend makes one")
    begin = int(is_flat)
    if name in OF_BACKENDS:
        return str(backend.show(lower(given, options, _NAMES[begin]), name, is_flat))
    end = _NAMES.index(name)
    if end > begin:
        given = lower(given, options, _NAMES[begin], _NAMES[end - 1])
    made = given if end < begin else STAGES[end].run(given, options)
    return STAGES[end].text(given, made, options)


# Passes


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
    # While abs(z) and 1j * x are the user's.
    Pass("complex", (rules.exponential_of_imaginary, rules.square_of_magnitude, rules.magnitude_over_itself)),
    # Before cancel: casts and signs that moved outward become adjacent and cancel.
    Pass(
        "outward",
        (
            rules.casts_outward,
            rules.sort_of_integers,
            rules.pool_of_relu,
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
            rules.zero_magnitude,
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

    `fixed`: whether the program's numbers and constants cannot change, so that rules may read them. They can in a plan
    that serves other trees too.
    `without`: names of passes, or of single rules, to leave out.

    Raises OperandError if there is no pass or rule of such a name.
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
        # Most passes have no rule for any op of the program.
        if None in table or (not ops.isdisjoint(table) and _may_apply(program, table)):
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


# Decompositions for kernels


def decompose(program: Program, options: Options = Options()) -> Program:  # noqa: B008
    """The program for kernels: each `CompositeOperator` decomposed, nested reductions split, copies and casts fusable.

    Of the options, `further`: whether products with vectors are, which a CPU leaves to BLAS, argmax and argmin, which
    it leaves to NumPy, and composite ops for devices.
    `windows`: whether ops of windows are, for kernels that read operands at affine indices.
    """
    table = _kernel_rules(options.further, options.windows, dict.__len__(OPS))
    return apply_rules(program, table, options.fixed, len(program.leaves)) if _may_apply(program, table) else program


def _may_apply(program: Program, table: Mapping[str | None, list[Any]]) -> bool:
    """Whether the program has the ops of any rule; a fast test, as most passes apply to nothing."""
    first, instructions = len(program.leaves), program.instructions
    for instruction in instructions:
        for rule in (*table.get(instruction.op.name, ()), *table.get(None, ())):
            if rule.when is not None and not rule.when(program, instruction):
                continue
            inputs = instruction.inputs if rule.of else ()
            if not rule.of or any(i >= first and instructions[i - first].op.name in rule.of for i in inputs):
                return True
    return False


def contracted(program: Program, products: Collection[int]) -> Program:
    """A program for kernels with some products of matrices, by their indices, as sums of products, which fuse."""
    table: dict[str | None, list[Any]] = {name: [product_as_sum] for name in product_as_sum.ops}
    table["sum"] = [reduced_in_two]
    return apply_rules(program, table, False, len(program.leaves), only=products)


@lru_cache
def _kernel_rules(further: bool, windows: bool, known: int) -> dict[str | None, list[Any]]:
    """The rules of `decompose` by op name; the number of known ops tells later tables apart."""
    applied: list[Any] = [_composites["all"], reduced_in_two, assigned_by_a_kernel]
    applied += [product_with_a_vector, argument_of_extreme, _composites["devices"]] * further
    applied += [_composites["windows"], squares_of_elements] * windows
    applied += [_composites["hosts"]] * (windows and not further)
    table: dict[str | None, list[Any]] = {name: [rule] for rule in applied for name in rule.ops}
    return {**table, None: [by_parts]}


def _decomposed(kernels: str) -> Any:
    """A rule: the value of a composite op for some kernels as a tree of simpler ones."""

    @on(having=Having(lambda op: issubclass(op, CompositeOperator) and op.for_kernels == kernels))
    def decomposed(value: Value) -> Any:
        return value.op.decompose(*(x.operand for x in value.inputs))

    return decomposed


_composites = {kernels: _decomposed(kernels) for kernels in ("all", "windows", "devices", "hosts")}


@on(having=Having(lambda op: op.index_map.is_affine), of=("square",))
def squares_of_elements(value: Value) -> Any:
    """Squares are read at affine indices before they are computed, so that they need not be stored."""
    inner, *like = value.inputs
    if not inner.is_a("square") or not inner.used_once or value.op.outside != 0:
        return None
    return inner.op(value.op(inner.inputs[0].operand, *(x.operand for x in like)))


def of_complex(program: Program, instruction: Instruction) -> bool:
    """Whether an instruction has complex numbers, as operands or values."""
    return any(is_complex(getattr(x.type, "dtype", None)) for x in (instruction.node, *instruction.node.inputs))


#: The weak dtype of a Python number by its kind.
WEAK_OF: dict[str, Any] = {"b": np.dtype(bool), "i": int, "u": int, "f": float, "c": complex}


@on(when=of_complex)
def by_parts(value: Value) -> Any:
    """Ops on complex numbers are ops on their real and imaginary parts, which kernels compute."""
    if isinstance(value.op, PartOperator):
        return _part(value)
    formula = getattr(value.op, "by_parts", None)
    if formula is None or not any(is_complex(getattr(x.type, "dtype", None)) for x in (value, *value.inputs)):
        return None
    given = [WEAK_OF[x.dtype.kind] if x.is_weak else x.dtype for x in value.inputs]
    *loop, _ = value.op.resolve_dtypes(*given)
    with np.errstate(all="ignore"):  # of numbers
        found = formula(*(_parts(x, dtype) for x, dtype in zip(value.inputs, loop, strict=True)))
    return f.complex(*found) if type(found) is tuple else found  # a tree is a tuple too


def _parts(x: Value, dtype: np.dtype) -> tuple[Any, Any]:
    """The real and imaginary parts of an operand that is computed in a dtype; 0.0 for a real operand's."""
    found = [f.real(x.operand), f.imag(x.operand)] if is_complex(x.dtype) else [x.operand]
    if is_complex(dtype) or x.is_weak:
        if isinstance(number := x.constant, int | float | complex):
            found = [real_dtype(dtype).type(each) for each in (number.real, number.imag)[: len(found)]]
        found = [in_dtype(part, real_dtype(dtype)) for part in found]
    return found[0], found[1] if len(found) > 1 else 0.0


def _part(value: Value) -> Any:
    """A part of complex numbers of which both are known, also where their axes were moved since."""
    (made,), moves = value.inputs, list[Value]()
    while not made.is_leaf and made.op.index_map.moves_axes:
        moves.append(made)
        made = made.inputs[0]
    if not made.is_a("complex"):
        return None
    part, other = made.inputs[value.op.part], made.inputs[1 - value.op.part]
    found = f.fill_like(in_dtype(other.operand, value.dtype), part.operand) if part.is_weak else part.operand
    found = in_dtype(found, value.dtype)
    found = found if found.shape == made.type.shape else f.broadcast_like(found, made.operand)
    for move in reversed(moves):
        found = applied(move.node[0], [found, *(x.operand for x in move.inputs[1:])])
    return found


#: Maximum values that the search for a nested reduction visits.
VISITED = 64


@on(having=Having(lambda op: issubclass(op, ReductionOperator) and not issubclass(op, CompositeOperator)))
def reduced_in_two(value: Value) -> Any:
    """A reduction of a value that needs one over fewer axes reduces those first, so that both are one kernel.

    Over axes of size 1, or none, it is the value.
    """
    (x,) = value.inputs
    axes = set(value.op.axes(x.type.ndim))
    accumulator = value.op.accumulator_for(x.dtype)
    if accumulator is not None and accumulator.keeps_one and all(x.type.shape[axis] == 1 for axis in axes):
        # Kernels have no loops over such axes.
        one = f.fill_like(x.operand, 0) if accumulator.replaces else f.copy(x.operand)
        one = in_dtype(one, value.dtype)
        return one if one.shape == value.type.shape else f.squeeze(one, tuple(axes))
    if not value.is_a("sum", "mean", "max", "min"):
        return None
    found: set[frozenset[int]] = set()
    pending: list[Value] = [x]
    seen: set[int] = set()
    while pending and len(seen) < VISITED:
        each = pending.pop()
        if each.number in seen or each.is_leaf or each.type.ndim not in (0, x.type.ndim):
            continue
        seen.add(each.number)
        if isinstance(each.op, ReductionOperator):
            found.add(frozenset(each.op.axes(each.inputs[0].type.ndim)) if each.op.keepdims else frozenset(axes))
        elif isinstance(each.op, ElementwiseOperator):
            pending += each.inputs
    fewer = next(iter(found), frozenset())
    if len(found) != 1 or not fewer < axes or all(x.type.shape[axis] == 1 for axis in fewer):
        return None
    if isinstance(x.op, ReductionOperator) or x.dtype.itemsize < 4:
        return None
    first = value.op.make(axis=tuple(sorted(fewer)), keepdims=True)(x.operand)
    return value.op(first) if first.dtype == value.dtype else None


@on("dot", "matmul")
def product_with_a_vector(value: Value) -> Any:
    """A matrix-vector product is a sum of products, which fuses with its operands and uses."""
    return product_as_sum(value) if 1 in (x.type.ndim for x in value.inputs) else None


@on("dot", "matmul", "tensordot")
def product_as_sum(value: Value) -> Any:
    """A product is a sum of products, a loop nest; for so few elements that a library's call takes longer."""
    if not is_floating(value.dtype):
        return None
    left, right = (in_dtype(x.operand, wide_dtype(value.dtype)) for x in value.inputs)
    left, right, axes = _by_axes(left, right, value.op.axes) if value.is_a("tensordot") else _by_last_axes(left, right)
    return in_dtype(f.sum(left * right, axis=axes, keepdims=False), value.dtype)


def _by_last_axes(left: Variable, right: Variable) -> tuple[Variable, Variable, tuple[int, ...]]:
    """The operands of a product of matrices or vectors, to be broadcast, and the axes to sum over."""
    columns = right.ndim > 1
    if columns:
        left = f.expand_dims(left, -1)
    if left.ndim > 1 + columns and columns:
        right = f.expand_dims(right, -3)
    return left, right, (-1 - columns,)


def _by_axes(left: Variable, right: Variable, axes: Any) -> tuple[Variable, Variable, tuple[int, ...]]:
    """The same of a contraction of pairs of axes."""
    rows, columns = ([i for i in range(x.ndim) if i not in own] for x, own in zip((left, right), axes, strict=True))
    left = f.transpose(left, (*rows, *axes[0]))
    for _ in columns:
        left = f.expand_dims(left, -1)
    count = len(rows)
    return left, f.transpose(right, (*axes[1], *columns)), tuple(range(count, count + len(axes[0])))


@on("argmax", "argmin")
def argument_of_extreme(value: Value) -> Any:
    """``argmax`` is the least index of an element that equals the maximum, or is nan: one kernel."""
    (x,), op = value.inputs, value.op
    axes = op.axes(x.type.ndim)
    if len(axes) not in (1, x.type.ndim) or not axes:
        return None
    operand = x.operand
    extreme = (f.max if value.is_a("argmax") else f.min)(operand, axis=axes, keepdims=True)
    hit = f.equal(operand, extreme)
    if x.is_float:
        hit = f.logical_or(hit, f.isnan(operand))
    indices = f.flat_indices(operand, axis=axes[0] if len(axes) == 1 else None)
    return f.min(f.where(hit, indices, np.iinfo(np.int64).max), axis=axes, keepdims=op.keepdims)


def is_moved_or_cast(program: Program, assignment: Instruction) -> bool:
    """Whether an assigned value is a leaf, or of another dtype than its target, or may be a view."""
    target, x = assignment.inputs
    made = x - len(program.leaves)
    return made < 0 or bool(program.instructions[made].op.view_map) or program.type_of(x) != program.type_of(target)


@on("assign", when=is_moved_or_cast)
def assigned_by_a_kernel(value: Value) -> Any:
    """An assigned leaf is copied or cast by a kernel, which may use several threads.

    NumPy copies float16 faster: a kernel would convert it to float32 and back.
    """
    target, x = value.inputs
    if x.is_weak or x.type.ndim > target.type.ndim:
        return None
    if x.dtype != target.dtype:
        return applied(value.node[0], [target.operand, f.cast(x.operand, target.dtype)])
    if is_narrow(x.dtype):
        return None
    if x.is_leaf or (x.op.view_map and not x.is_a("broadcast_like")):
        return applied(value.node[0], [target.operand, f.broadcast_like(x.operand, target.operand)])
    return None
