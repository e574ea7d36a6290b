"""The clauses of the Op contract, one function each, checked at a user's inputs.

The op may be in any style: `make_node`, `itypes` and `otypes`, traits, or a
`ComputationOp`; with several outputs, and on the user's own types. `promises` checks
registered ops more closely, on examples that it knows how to vary.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import product
from typing import Any

import numpy as np

from optree.autodiff.jacobians import Rop
from optree.autodiff.reverse import adjoints_of
from optree.compat.nervana_graph import ComputationOp
from optree.compile import reference
from optree.compile.pipeline import Options, lower
from optree.dtypes import finfo, is_floating
from optree.errors import ContractError, NotFiniteError, OperandError, describe
from optree.ops.apply import Apply
from optree.ops.op import Op
from optree.ops.traits import ElementwiseOperator, NonDifferentiableOperator, ReductionOperator
from optree.run import debug
from optree.run.function import function, last_backend, running_on
from optree.testing.promises import STEP, central_difference, is_tolerated, where_off
from optree.tree.gradient_types import is_disconnected, is_null
from optree.tree.node import find_op
from optree.tree.tensor import Tensor
from optree.tree.types import TensorType
from optree.tree.variable import Constant, Variable, check_same_backend


class Subject:
    """An op applied to inputs that have values.

    Attributes
    ----------
    inputs : list
        The op's arguments: an Input for each value; numbers unchanged.
    values : dict
        From each Input to its value.
    apply : Apply
    """

    def __init__(self, op: Any, given: Sequence[Any]) -> None:
        self.values: dict[Variable, Any] = {}
        self.inputs = [self._input(op.itypes, i, x) for i, x in enumerate(given)]
        if isinstance(op, type):
            op = op(*self.inputs).op if issubclass(op, ComputationOp) else op.make()  # type: ignore[attr-defined]
        self.op = op
        missing = [name for name in op.prop_names() if not hasattr(op, name)]
        if missing:
            raise ContractError(
                f"{type(op).__name__}: __props__ lists {', '.join(missing)}, which are no attributes of it"
            )
        self.apply = op.make_node(*self.inputs)
        self.expect(isinstance(self.apply, Apply), f"make_node returns an Apply, not {describe(self.apply)}")
        self.expect(type(self.apply.op) is type(op), f"make_node gives an Apply of {self.apply.op}")
        self.op = self.apply.op  # its parameters are normalised for these inputs

    def _input(self, types: Any, index: int, given: Any) -> Any:
        if types is not None and index < len(types) and not isinstance(given, Constant | Tensor):
            kind, value = types[index], types[index].filter(given)
        elif isinstance(given, Tensor | np.ndarray | np.generic):
            value = given.get() if isinstance(given, Tensor) else np.asarray(given)
            kind = TensorType(value.dtype, value.shape)
        elif isinstance(given, Constant) and not given.is_weak:
            kind, value = given.type, given.value
        elif isinstance(given, Variable):
            raise OperandError(f"check_op: input {index} needs a value, which {describe(given)} does not have")
        else:
            return given  # `make_node` converts it
        variable = kind(f"x{index}")
        self.values[variable] = value
        return variable

    def expect(self, holds: Any, message: str) -> None:
        """Raise unless a clause of the contract holds."""
        if not holds:
            raise ContractError(f"{self.op}: {message}")

    def run(self, trees: Sequence[Any], moved: Any = None, evaluate: Any = reference.evaluate) -> list[Any]:
        """The values of trees, computed on copies of the inputs' values, which an op may destroy.

        Parameters
        ----------
        moved : dict, optional
            Other values for some inputs.
        """
        program = lower(trees, Options(rewrites=False))
        known = {**self.values, **(moved or {})}
        return evaluate(program, deepcopy([known.get(x, reference.value_of(x)) for x in program.leaves]))

    def same(self, got: Sequence[Any], wanted: Sequence[Any]) -> bool:
        """Whether outputs are equal up to rounding and the tolerance."""
        return all(
            x.type.values_eq_approx(a, b) or is_tolerated(a, b)
            for x, a, b in zip(self.apply.outputs, got, wanted, strict=True)
        )


# The clauses


def check_identity(subject: Subject) -> None:
    """Ops with equal parameters are equal, have equal hashes and texts, and are merged on equal inputs."""
    op = subject.op
    subject.expect(op == op and hash(op) == hash(op), "it is not equal to itself, or its hash changes")
    twin = _twin(op)
    if op.__props__ is None and op != twin:
        return
    subject.expect(
        twin == op and hash(twin) == hash(op), "an op with equal __props__ is not equal, or has another hash"
    )
    subject.expect(str(twin) == str(op), "an op with equal __props__ prints differently")
    variables = all(isinstance(x, Variable) for x in subject.inputs)
    if variables and not op.destroy_map:
        one, other = subject.apply.node, twin.make_node(*subject.apply.inputs).node
        merged = lower([one, other], last="program").outputs
        subject.expect(len(set(merged)) == 1, "equal ops on equal inputs run twice")


def check_make_node(subject: Subject) -> None:
    """`make_node` on an application's inputs gives an equivalent one."""
    first = subject.apply
    subject.expect(first.outputs, "make_node gives an Apply without outputs")
    again = first.op.make_node(*first.inputs)
    for what, mine, others in (("inputs", first.inputs, again.inputs), ("outputs", first.outputs, again.outputs)):
        kinds = [[x.type for x in variables] for variables in (mine, others)]
        subject.expect(kinds[0] == kinds[1], f"make_node on its own inputs gives {what} {kinds[1]}, not {kinds[0]}")
    subject.expect(
        all(x is y or isinstance(x, Constant) for x, y in zip(first.inputs, again.inputs, strict=True)),
        "make_node on its own inputs replaces them",
    )
    index = subject.op.default_output
    subject.expect(
        index is None or -len(first.outputs) <= index < len(first.outputs),
        f"default_output is {index}, of {len(first.outputs)} outputs",
    )


def check_maps(subject: Subject) -> None:
    """`destroy_map` and `view_map` map existing outputs, or None, to existing inputs."""
    for name in ("destroy_map", "view_map"):
        for output, inputs in getattr(subject.op, name).items():
            right = output is None or output in range(len(subject.apply.outputs))
            subject.expect(right, f"{name} names output {output}, of {len(subject.apply.outputs)}")
            wrong = [i for i in inputs if i not in range(len(subject.apply.inputs))]
            subject.expect(not wrong, f"{name} names inputs {wrong}, of {len(subject.apply.inputs)}")


def check_perform(subject: Subject) -> None:
    """The checks of debug mode: cells, types, memory, `infer_shape`, equal outputs for equal inputs."""
    with suppress(NotFiniteError):  # correct, at these inputs
        subject.run(subject.apply.outputs, evaluate=debug.evaluate)


def check_answers(subject: Subject) -> None:
    """`connection_pattern`, `do_constant_folding` and `flops` return values of the right form."""
    op, apply = subject.op, subject.apply
    pattern = op.connection_pattern(apply)
    shape = (len(apply.inputs), len(apply.outputs))
    right = np.shape(pattern) == shape and all(isinstance(x, bool | np.bool_) for row in pattern for x in row)
    subject.expect(right, f"connection_pattern is a list of {shape[0]} lists of {shape[1]} bools, not {pattern!r}")
    folds = op.do_constant_folding(apply)
    subject.expect(isinstance(folds, bool), f"do_constant_folding gives a bool, not {folds!r}")
    shapes = [np.shape(subject.values.get(x, ())) for x in apply.inputs]
    flops = op.flops(shapes, [np.shape(x) for x in subject.run(apply.outputs)])
    subject.expect(isinstance(flops, int | float | np.number) and flops >= 0, f"flops gives a count, not {flops!r}")


def check_function(subject: Subject) -> None:
    """A function of it returns the values of `perform` in repeated calls, and does not modify its arguments."""
    wanted = subject.run(subject.apply.outputs)
    for mode in ("default", "reference"):
        run = function(list(subject.values), subject.apply.outputs, mode=mode, on_unused_input="ignore")
        given = deepcopy(list(subject.values.values()))
        for _ in range(2):
            got = [x.get() if isinstance(x, Tensor) else x for x in run(*given)]
            gives = f"it gives {got!r:.60}, and perform {wanted!r:.60}"
            subject.expect(subject.same(got, wanted), f"in a function of mode {mode!r} {gives}")
        intact = all(x.type.values_eq(a, b) for (x, a), b in zip(subject.values.items(), given, strict=True))
        subject.expect(intact, f"a function of mode {mode!r} changed its arguments")


def check_kernel(subject: Subject) -> None:
    """The compiled kernel returns the values of `perform`."""
    home = last_backend()
    compiled = None if home is None else home.compiling()
    if compiled is None or not isinstance(subject.op, ElementwiseOperator | ReductionOperator):
        return
    wanted = subject.run(subject.apply.outputs)
    with running_on(compiled):
        run = function(list(subject.values), subject.apply.outputs, on_unused_input="ignore")
        got = [x.get() if isinstance(x, Tensor) else x for x in run(*deepcopy(list(subject.values.values())))]
    subject.expect(subject.same(got, wanted), f"its kernel gives {got!r:.60}, and perform {wanted!r:.60}")


def check_pickling(subject: Subject) -> None:
    """It pickles, where its parameters do, to an op with the same values."""
    try:
        pickled = pickle.dumps(subject.op)
    except (pickle.PicklingError, AttributeError, TypeError):  # a local class or a lambda, say
        return
    again = pickle.loads(pickled)
    subject.expect(type(again) is type(subject.op), f"it is {describe(again)} when it has been pickled")
    if subject.op.__props__ is not None:
        subject.expect(again == subject.op, "it is not equal to itself when it has been pickled")
    outputs = again.make_node(*subject.apply.inputs).outputs
    same = subject.same(subject.run(outputs), subject.run(subject.apply.outputs))
    subject.expect(same, "it gives other values when it has been pickled")


def check_connection(subject: Subject) -> None:
    """No output changes with an input that is not connected to it in `connection_pattern`."""
    pattern, outputs = subject.op.connection_pattern(subject.apply), subject.run(subject.apply.outputs)
    for (index, x), (i, y) in product(enumerate(subject.apply.inputs), enumerate(subject.apply.outputs)):
        if pattern[index][i] or not _moves(subject, x) or _unit(y, outputs[i]) is None:
            continue
        changes = _difference(subject, x, {y: _like(y, outputs[i], i)}, STEP)
        says = f"connection_pattern says that output {i} does not depend on input {index}"
        subject.expect(not changes.any(), f"{says}, and it does")


def check_gradient(subject: Subject) -> None:
    """Its gradient equals central differences, for each element of each input."""
    op = subject.op
    if isinstance(op, NonDifferentiableOperator) or not (op.defines("grad") or op.defines("generate_adjoints")):
        return
    pattern, outputs = op.connection_pattern(subject.apply), subject.run(subject.apply.outputs)
    real = [i for i, y in enumerate(subject.apply.outputs) if _unit(y, outputs[i]) is not None]
    for index, x in enumerate(subject.apply.inputs):
        connected = [i for i in real if pattern[index][i]]
        if not connected or not _moves(subject, x):
            continue
        seeds = {subject.apply.outputs[i]: _like(subject.apply.outputs[i], outputs[i], i) for i in connected}
        (tree,) = adjoints_of(seeds, [x], np.dtype("float64"))
        if is_null(tree):  # declared as undefined
            continue
        gradient = np.zeros(np.shape(subject.values[x])) if is_disconnected(tree) else subject.run([tree])[0]
        step, allowed = _precision([x, *seeds], [subject.values[x], *(outputs[i] for i in connected)])
        wanted = _difference(subject, x, seeds, step)
        subject.expect(np.shape(gradient) == wanted.shape, f"the gradient by {x.label} has shape {np.shape(gradient)}")
        wrong = where_off(np.asarray(gradient), wanted, allowed, allowed)
        subject.expect(wrong is None, f"the gradient by {x.label} is wrong {wrong}")


def check_directional(subject: Subject) -> None:
    """Its `R_op` equals central differences along each input."""
    if not subject.op.defines("R_op"):
        return
    outputs = subject.run(subject.apply.outputs)
    for x, (y, value) in product(subject.apply.inputs, zip(subject.apply.outputs, outputs, strict=True)):
        if not _moves(subject, x) or _unit(y, value) is None:
            continue
        direction = _like(x, subject.values[x], 1)
        (found,) = subject.run([Rop(y, x, direction)])
        step, allowed = _precision([x, y], [subject.values[x], value])
        ends = []
        for steps in (1, -1, 2, -2):
            moved = subject.values[x] + steps * step * direction.value
            ends.append(np.asarray(subject.run([y], {x: _as_value(x, moved)})[0], float))
        wanted = (8 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / (12 * step)
        wrong = where_off(np.asarray(found), wanted, allowed, allowed)
        subject.expect(wrong is None, f"R_op of {y.label} along {x.label} is wrong {wrong}")


CLAUSES = (
    check_make_node,
    check_identity,
    check_maps,
    check_perform,
    check_answers,
    check_function,
    check_kernel,
    check_pickling,
    check_connection,
    check_gradient,
    check_directional,
)


def check_on(op: Any, inputs: Sequence[Any]) -> None:
    """Check each clause of the contract on an op, its class or its name, at inputs; see `check_op`."""
    backend = check_same_backend("check_op", inputs)
    subject = Subject(find_op(op) if isinstance(op, str) else op, inputs)
    with running_on(backend):  # the clauses' functions have inputs without a backend
        for clause in CLAUSES:
            try:
                clause(subject)
            except Exception as error:
                error.add_note(f"found by check_op, which checks: {clause.__doc__}")
                raise


# Helpers


def _twin(op: Op) -> Any:
    """Another object with the op's attributes."""
    twin = type(op).__new__(type(op))
    for name, value in op.state().items():
        setattr(twin, name, value)
    return twin


def _unit(x: Variable, value: Any) -> float | None:
    """The machine epsilon of a variable's values; None where it is not floating."""
    if not isinstance(x.type, TensorType):
        return float(np.finfo(float).eps) if type(value) is float else None
    return float(finfo(x.dtype).eps) if is_floating(x.dtype) else None


def _precision(variables: Sequence[Variable], values: Sequence[Any]) -> tuple[float, float]:
    """The step of central differences, and their tolerance."""
    unit = max(_unit(x, value) or 0.0 for x, value in zip(variables, values, strict=True))
    step = max(STEP, 4 * unit**0.5)
    return step, max(1e-6, 16 * unit / step)


def _moves(subject: Subject, x: Variable) -> bool:
    return x in subject.values and _unit(x, subject.values[x]) is not None


def _as_value(x: Variable, moved: Any) -> Any:
    """A perturbed value, converted to a variable's type."""
    return np.asarray(moved, x.dtype) if isinstance(x.type, TensorType) else x.type.filter(float(moved))


def _like(x: Variable, value: Any, seed: int) -> Constant:
    """A constant of a variable's type and a value's shape, with distinct elements."""
    weights = np.random.RandomState(seed).uniform(0.5, 1.5, np.shape(value))
    if isinstance(x.type, TensorType):
        return Constant(TensorType(x.dtype, np.shape(value)), np.asarray(weights, x.dtype))
    return Constant(x.type, float(weights))


def _difference(subject: Subject, x: Any, seeds: dict[Any, Constant], step: float) -> np.ndarray:
    """The central difference of the weighted sum of outputs by each element of an input."""

    def cost(moved: list[Any]) -> float:
        found = subject.run(list(seeds), {x: _as_value(x, moved[0])})
        return float(sum(np.sum(w.value * np.asarray(y, float)) for y, w in zip(found, seeds.values(), strict=True)))

    return central_difference(cost, [np.asarray(subject.values[x])], 0, step)
