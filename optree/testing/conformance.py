"""Conformance of ops: the clauses of the Op contract at any inputs, and the promises of ops with examples.

A clause is a method of `Subject`: the op may be in any style (`make_node`, `itypes` and `otypes`, traits, or a
`ComputationOp`), with several outputs, and on the user's own types. A promise is a function of an `Example`, whose
dtypes, layouts and values it varies. Every clause is a part of a promise: of the one with its name, or of "clauses".
The tests check each promise on every registered op.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from optree.arrays import Array
from optree.autodiff.api import grad
from optree.autodiff.jacobians import Rop
from optree.autodiff.reverse import adjoints_of
from optree.compat.nervana_graph import ComputationOp
from optree.compile import reference
from optree.compile.aliasing import may_fail
from optree.compile.pipeline import Options, lower
from optree.compile.program import flatten
from optree.dtypes import finfo, is_floating, is_inexact
from optree.errors import BatchingError, ContractError, DTypeError, NotFiniteError, OperandError, OptreeError, describe
from optree.op.apply import Apply
from optree.op.op import Op
from optree.op.traits import (
    BlockOperator,
    ElementwiseOperator,
    NonDifferentiableOperator,
    ReductionOperator,
    UpdateOperator,
)
from optree.run import debug
from optree.run.function import function, last_backend, running_on
from optree.run.vmap import vmap
from optree.testing.branch_points import check_branch_points
from optree.testing.comparison import (
    STEP,
    central_difference,
    compare,
    difference_along,
    expect,
    is_tolerated,
    nodes_of,
    precision,
    scale_of,
    sum_weights,
    weighted_sum,
    where_off,
)
from optree.testing.examples import Example, Runner, inputs_for
from optree.testing.index_maps import check_index_map
from optree.tree.gradient_types import is_disconnected, is_null
from optree.tree.node import OpTreeNode, find_op
from optree.tree.tensor import Tensor
from optree.tree.types import DTYPES, TensorType
from optree.tree.variable import Constant, Input, Operand, Variable, as_variable, check_same_backend

#: One dtype of each relevant kind and size, the widest first.
MIXED = (np.float64, np.float32, np.float16, np.int32, np.bool_)


# The contract, at any inputs


class Subject:
    """An op applied to inputs that have values.

    `inputs`: the op's arguments: an Input for each value; numbers unchanged.
    `values`: from each Input to its value.
    `apply`: Apply.
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

    def _input(self, types: Array, index: int, given: Array) -> Any:
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

    def expect(self, holds: object, message: str) -> None:
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

    def check_make_node(self) -> None:
        """`make_node` on an application's inputs gives an equivalent one."""
        first = self.apply
        self.expect(first.outputs, "make_node gives an Apply without outputs")
        again = first.op.make_node(*first.inputs)
        for what, mine, others in (("inputs", first.inputs, again.inputs), ("outputs", first.outputs, again.outputs)):
            kinds = [[x.type for x in variables] for variables in (mine, others)]
            self.expect(kinds[0] == kinds[1], f"make_node on its own inputs gives {what} {kinds[1]}, not {kinds[0]}")
        self.expect(
            all(x is y or isinstance(x, Constant) for x, y in zip(first.inputs, again.inputs, strict=True)),
            "make_node on its own inputs replaces them",
        )
        index = self.op.default_output
        self.expect(
            index is None or -len(first.outputs) <= index < len(first.outputs),
            f"default_output is {index}, of {len(first.outputs)} outputs",
        )

    def check_identity(self) -> None:
        """Ops with equal parameters are equal, have equal hashes and texts, and are merged on equal inputs."""
        op = self.op
        self.expect(op == op and hash(op) == hash(op), "it is not equal to itself, or its hash changes")
        twin = _twin(op)
        if op.__props__ is None and op != twin:
            return
        self.expect(
            twin == op and hash(twin) == hash(op), "an op with equal __props__ is not equal, or has another hash"
        )
        self.expect(str(twin) == str(op), "an op with equal __props__ prints differently")
        variables = all(isinstance(x, Variable) for x in self.inputs)
        if variables and not op.destroy_map:
            one, other = self.apply.node, twin.make_node(*self.apply.inputs).node
            merged = lower([one, other], last="program").outputs
            self.expect(op.is_alone or len(set(merged)) == 1, "equal ops on equal inputs run twice")

    def check_maps(self) -> None:
        """`destroy_map` and `view_map` map existing outputs, or None, to existing inputs."""
        for name in ("destroy_map", "view_map"):
            for output, inputs in getattr(self.op, name).items():
                right = output is None or output in range(len(self.apply.outputs))
                self.expect(right, f"{name} names output {output}, of {len(self.apply.outputs)}")
                wrong = [i for i in inputs if i not in range(len(self.apply.inputs))]
                self.expect(not wrong, f"{name} names inputs {wrong}, of {len(self.apply.inputs)}")

    def check_perform(self) -> None:
        """The checks of debug mode: cells, types, memory, `infer_shape`, equal outputs for equal inputs."""
        with suppress(NotFiniteError):  # correct, at these inputs
            self.run(self.apply.outputs, evaluate=debug.evaluate)

    def check_answers(self) -> None:
        """`connection_pattern`, `do_constant_folding` and `flops` return values of the right form."""
        op, apply = self.op, self.apply
        pattern = op.connection_pattern(apply)
        shape = (len(apply.inputs), len(apply.outputs))
        right = np.shape(pattern) == shape and all(isinstance(x, bool | np.bool_) for row in pattern for x in row)
        self.expect(right, f"connection_pattern is a list of {shape[0]} lists of {shape[1]} bools, not {pattern!r}")
        folds = op.do_constant_folding(apply)
        self.expect(isinstance(folds, bool), f"do_constant_folding gives a bool, not {folds!r}")
        shapes = [np.shape(self.values.get(x, ())) for x in apply.inputs]
        flops = op.flops(shapes, [np.shape(x) for x in self.run(apply.outputs)])
        self.expect(isinstance(flops, int | float | np.number) and flops >= 0, f"flops gives a count, not {flops!r}")

    def check_function(self) -> None:
        """A function of it returns the values of `perform` in repeated calls, and does not modify its arguments."""
        wanted = self.run(self.apply.outputs)
        for mode in ("default", "reference"):
            run = function(list(self.values), self.apply.outputs, mode=mode, on_unused_input="ignore")
            given = deepcopy(list(self.values.values()))
            for _ in range(2):
                got = [x.get() if isinstance(x, Tensor) else x for x in run(*given)]
                gives = f"it gives {got!r:.60}, and perform {wanted!r:.60}"
                self.expect(self.same(got, wanted), f"in a function of mode {mode!r} {gives}")
            intact = all(x.type.values_eq(a, b) for (x, a), b in zip(self.values.items(), given, strict=True))
            self.expect(intact, f"a function of mode {mode!r} changed its arguments")

    def check_kernel(self) -> None:
        """The compiled kernel returns the values of `perform`."""
        home = last_backend()
        compiled = None if home is None else home.compiling()
        if compiled is None or not isinstance(self.op, ElementwiseOperator | ReductionOperator):
            return
        wanted = self.run(self.apply.outputs)
        with running_on(compiled):
            run = function(list(self.values), self.apply.outputs, on_unused_input="ignore")
            got = [x.get() if isinstance(x, Tensor) else x for x in run(*deepcopy(list(self.values.values())))]
        self.expect(self.same(got, wanted), f"its kernel gives {got!r:.60}, and perform {wanted!r:.60}")

    def check_pickling(self) -> None:
        """It pickles, where its parameters do, to an op with the same values."""
        try:
            pickled = pickle.dumps(self.op)
        except (pickle.PicklingError, AttributeError, TypeError):  # a local class or a lambda, say
            return
        again = pickle.loads(pickled)
        self.expect(type(again) is type(self.op), f"it is {describe(again)} when it has been pickled")
        if self.op.__props__ is not None:
            self.expect(again == self.op, "it is not equal to itself when it has been pickled")
        outputs = again.make_node(*self.apply.inputs).outputs
        same = self.same(self.run(outputs), self.run(self.apply.outputs))
        self.expect(same, "it gives other values when it has been pickled")

    def check_connection(self) -> None:
        """No output changes with an input that is not connected to it in `connection_pattern`."""
        pattern, outputs = self.op.connection_pattern(self.apply), self.run(self.apply.outputs)
        for (index, x), (i, y) in product(enumerate(self.apply.inputs), enumerate(self.apply.outputs)):
            if pattern[index][i] or not _moves(self, x) or _unit(y, outputs[i]) is None:
                continue
            changes = _difference(self, x, {y: _like(y, outputs[i], i)}, STEP)
            says = f"connection_pattern says that output {i} does not depend on input {index}"
            self.expect(not changes.any(), f"{says}, and it does")

    def check_gradient(self) -> None:
        """Its gradient equals central differences, for each element of each input."""
        op = self.op
        if isinstance(op, NonDifferentiableOperator) or not (op.defines("grad") or op.defines("generate_adjoints")):
            return
        pattern, outputs = op.connection_pattern(self.apply), self.run(self.apply.outputs)
        real = [i for i, y in enumerate(self.apply.outputs) if _unit(y, outputs[i]) is not None]
        for index, x in enumerate(self.apply.inputs):
            connected = [i for i in real if pattern[index][i]]
            if not connected or not _moves(self, x):
                continue
            seeds = {self.apply.outputs[i]: _like(self.apply.outputs[i], outputs[i], i) for i in connected}
            (tree,) = adjoints_of(seeds, [x], np.dtype("float64"))
            if is_null(tree):  # declared as undefined
                continue
            gradient = np.zeros(np.shape(self.values[x])) if is_disconnected(tree) else self.run([tree])[0]
            step, allowed = _precision([x, *seeds], [self.values[x], *(outputs[i] for i in connected)])
            wanted = _difference(self, x, seeds, step)
            self.expect(np.shape(gradient) == wanted.shape, f"the gradient by {x.label} has shape {np.shape(gradient)}")
            wrong = where_off(np.asarray(gradient), wanted, allowed, allowed)
            self.expect(wrong is None, f"the gradient by {x.label} is wrong {wrong}")

    def check_directional(self) -> None:
        """Its `R_op` equals central differences along each input."""
        if not self.op.defines("R_op"):
            return
        outputs = self.run(self.apply.outputs)
        for x, (y, value) in product(self.apply.inputs, zip(self.apply.outputs, outputs, strict=True)):
            if not _moves(self, x) or _unit(y, value) is None:
                continue
            direction = _like(x, self.values[x], 1)
            (found,) = self.run([Rop(y, x, direction)])
            step, allowed = _precision([x, y], [self.values[x], value])
            ends = []
            for steps in (1, -1, 2, -2):
                moved = self.values[x] + steps * step * direction.value
                ends.append(np.asarray(self.run([y], {x: _as_value(x, moved)})[0], float))
            wanted = (8 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / (12 * step)
            wrong = where_off(np.asarray(found), wanted, allowed, allowed)
            self.expect(wrong is None, f"R_op of {y.label} along {x.label} is wrong {wrong}")


CLAUSES: dict[str, Callable[[Subject], None]] = {
    name.removeprefix("check_"): clause for name, clause in vars(Subject).items() if name.startswith("check_")
}


def check_on(op: Any, inputs: Sequence[Any]) -> None:
    """Check each clause of the contract on an op, its class or its name, at inputs; see `check_op`."""
    backend = check_same_backend("check_op", inputs)
    subject = Subject(find_op(op) if isinstance(op, str) else op, inputs)
    with running_on(backend):  # the clauses' functions have inputs without a backend
        _check_clauses(subject, CLAUSES)


def _check_clauses(subject: Subject, names: Iterable[str]) -> None:
    for name in names:
        try:
            CLAUSES[name](subject)
        except Exception as error:
            error.add_note(f"found by check_op, which checks: {CLAUSES[name].__doc__}")
            raise


# The promises


def check_clauses(example: Example, backend: object = None) -> None:
    """The clauses of the contract that no other promise includes."""
    if example.op is not None:
        _check_clauses(Subject(example.op, example.draw()), [name for name in CLAUSES if name not in PROMISES])


def check_identity(example: Example, backend: object = None) -> None:
    """The clause, and an op is equal to one made of its parameters, which its text shows; equal trees have one key."""
    op = example.op
    if op is None:
        return
    op.check_parameters()
    Subject(op, example.draw()).check_identity()
    twin = op if op.is_alone else type(op)(**op.props)
    expect(twin == op, example, "an op that is made of its parameters is not equal")
    expect(str(twin) == str(op) == repr(op), example, "an op with equal parameters prints differently")
    if not op.is_alone:
        expect(type(op).make(**op.props) is type(op).make(**op.props), example, "make gives two objects for one op")
    for name, value in op.props.items():
        expect(value == value and (name + "=") in str(op), example, f"its text does not show {name}")
    operands = inputs_for(example.draw())
    one = example.tree(operands)
    expect(one.key() == twin(*operands).key(), example, "equal trees have different keys")
    expect(one.label in str(one) and one.pp().startswith(one.label), example, f"{one} does not name the op")
    if op.name is None:  # cannot be found by name
        return
    rebuilt = OpTreeNode.from_stack(one.traverse())
    nested = OpTreeNode.list_to_optree(OpTreeNode.optree_to_list(one))
    for other in (rebuilt, nested):
        expect(other.op == one.op and other.type is one.type, example, f"it is {other} when rebuilt from its list")


def check_perform(example: Example, backend: object = None) -> None:
    """The clause, in every dtype and memory order: the checks of debug mode, above all on memory.

    The value aliases operands only as view_map says, destroys them only as destroy_map
    says, and is new memory in each call.
    """
    for dtype, order in product(MIXED, "CF"):
        values = [np.asarray(x, order=order) if isinstance(x, np.ndarray) else x for x in example.draw(dtype)]  # type: ignore[call-overload]
        inputs = inputs_for(values)
        try:
            Runner([example.tree(inputs)], inputs, debug.evaluate)(values)
        except (DTypeError, NotFiniteError):
            continue


def check_facts(example: Example, backend: object = None) -> None:
    """The op behaves as its facts tell compilers: index_map, raises and the others."""
    if example.op is None:
        return
    values = example.draw()
    inputs = inputs_for(values)
    tree = example.tree(inputs)
    if tree.op.name != example.op.name:  # composed of other ops
        return
    op, arrays = tree.op, [np.asarray(x) for x in values]
    (value,) = Runner([tree], inputs)(values)
    check_index_map(example, op, arrays, value)
    if isinstance(op, UpdateOperator):
        written = arrays[0].copy()
        in_place = op.update(written, *arrays[1:]) is written and np.array_equal(written, value, equal_nan=True)
        expect(in_place, example, "update does not write the value over the first operand")
    if op.fill is not None:
        for filled in (np.empty_like(value), np.empty(value.shape[::-1], value.dtype).T):
            op.fill(filled, *arrays)
            expect(np.array_equal(filled, value, equal_nan=True), example, "fill does not write the value")
    if isinstance(op, BlockOperator) and (divided := op.blocks(*(x.shape for x in arrays))) is not None:
        axis, axes, _ = divided
        for block in (slice(0, 1), slice(1, None)):
            parts = [x if i is None else x[(*[slice(None)] * i, block)] for x, i in zip(arrays, axes, strict=True)]
            wanted = value[(*[slice(None)] * axis, block)]
            is_block = not wanted.size or np.array_equal(op.value(*parts), wanted, equal_nan=value.dtype.kind == "f")
            expect(is_block, example, "a block of the value is not that of its blocks")
    _check_that_it_runs(example)


def _check_that_it_runs(example: Example) -> None:
    """An op whose `raises` is False does not raise on special values."""
    for dtype in MIXED:
        special = (
            [np.nan, np.inf, -np.inf, 0.0, -1.0] if np.dtype(dtype).kind == "f" else [0, 1, -1, -(2**31), 2**31 - 1]
        )
        values = example.draw(dtype)
        for i, x in enumerate(example.operands):
            if isinstance(x, tuple):
                pool = np.array(special).astype(dtype)
                values[i] = pool[np.arange(values[i].size) % pool.size].reshape(values[i].shape)
        inputs = inputs_for(values)
        try:
            tree = example.tree(inputs)
        except DTypeError:
            continue
        instruction = flatten([tree]).instructions[-1]
        if may_fail(instruction.op, instruction.node):
            continue
        try:
            Runner([tree], inputs)(values)
        except Exception as error:
            expect(False, example, f"may_fail is False, and on {values} it raises {error!r}")


def check_type(example: Example, backend: object = None) -> None:
    """The value has the node's shape and dtype, for every dtype that the op accepts."""
    floats = [i for i, x in enumerate(example.operands) if isinstance(x, tuple)]
    scalars = all(example.operands[i] == () for i in floats)
    mixed = product(DTYPES, repeat=len(floats)) if scalars and len(floats) < 3 else None
    taken = 0
    for dtypes in mixed or [(dtype,) * len(floats) for dtype in DTYPES]:
        values = example.draw()
        for i, dtype in zip(floats, dtypes, strict=True):
            values[i] = example.draw(dtype)[i]
        inputs = inputs_for(values)
        try:
            tree = example.tree(inputs)
        except DTypeError:
            continue
        Runner([tree], inputs)(values)  # the reference checks each value's type
        taken += 1
    expect(taken, example, "it refuses operands of every dtype; let resolve_dtypes take one")


def check_backend(example: Example, backend: Any, first: int | None = None, dtypes: Sequence[Any] = MIXED) -> None:
    """A backend's values equal the reference's, in every dtype, from and into every layout.

    With `first`, each dtype in one: the first dtype in the layout of this number, the next in the next one.
    """
    for number, dtype in enumerate(dtypes):
        values = example.draw(dtype)
        inputs = inputs_for(values)
        try:
            (wanted,) = Runner([example.tree(inputs)], inputs)(values)
        except DTypeError:
            continue
        for layout in LAYOUTS if first is None else [LAYOUTS[(first + number) % len(LAYOUTS)]]:
            operands = [layout(backend, x) if isinstance(x, np.ndarray) else x for x in values]
            tree = example.tree(operands)
            target = layout(backend, np.zeros(tree.shape, tree.dtype))
            target[...] = tree
            for got in (target.get(), *([tree.asnumpyarray()] if not number else ())):
                note = f"{layout.__name__.strip('_')} {np.dtype(dtype)} operands on {backend.name}"
                compare(got, wanted, example, note, ulps=8, scale=scale_of(example, values))


def check_gradient(example: Example, backend: object = None) -> None:
    """The gradient equals central differences in float64 and complex128, for each element of each operand."""
    for values, inputs, tree in _drawn(example):
        if is_inexact(tree.dtype) and (example.differentiable or tree.dtype.kind != "c"):
            _compare_gradients(example, weighted_sum(tree), inputs, values, f"the gradient in {tree.dtype}")


def _drawn(example: Example) -> Iterator[tuple[list[Any], Any, Any]]:
    """An example's values in float64, its inputs and its tree; and those in complex128, where it takes them."""
    for dtype in (None, np.complex128) if example.takes_floats else (None,):
        values = example.draw(dtype)
        inputs = inputs_for(values)
        try:
            yield values, inputs, example.tree(inputs)
        except DTypeError:
            if dtype is None:
                raise


def check_second_gradient(example: Example, backend: object = None) -> None:
    """The gradient of the gradient equals the central differences of the gradient.

    Hessians are symmetric: the gradient of w * g is the derivative of g along w, for all elements at once.
    """
    for values, inputs, tree in _drawn(example):
        floating = [x for x in inputs if _is_floating(x)]
        if not is_inexact(tree.dtype) or not example.differentiable or not floating:
            continue
        first = _gradients(weighted_sum(tree), floating)
        parts = [weighted_sum(gradient, seed=i + 1) for i, gradient in enumerate(first)]
        cost = sum(parts[1:], parts[0])
        step, allowed = _precision_of(cost)
        weights = iter([sum_weights(gradient, seed=i + 1) for i, gradient in enumerate(first)])
        moves = [step * next(weights) if _is_floating(x) else None for x in inputs]
        wanted = difference_along(Runner(first, inputs), values, moves, step)
        found = Runner(_gradients(cost, floating), inputs)(values)
        if any(
            np.shape(got) != x.shape or where_off(got, x, allowed, allowed)
            for got, x in zip(found, wanted, strict=True)
        ):  # by elements it says which is wrong; a gradient that no function has is compared as it is
            _compare_gradients(example, cost, inputs, values, "the second gradient")


def check_shared_operand(example: Example, backend: object = None) -> None:
    """An operand that is used twice receives both deltas."""
    shapes = {x for x in example.operands if isinstance(x, tuple)}
    if sum(isinstance(x, tuple) for x in example.operands) < 2 or len(shapes) > 1 or not example.differentiable:
        return
    values = example.draw()
    inputs = inputs_for(values)
    floating = [i for i, x in enumerate(inputs) if _is_floating(x)]
    shared = [inputs[floating[0]] if i in floating else x for i, x in enumerate(inputs)]
    tree = example.tree(shared)
    if is_inexact(tree.dtype):
        _compare_gradients(example, weighted_sum(tree), inputs, values, "the gradient of a shared operand")


def check_adjoints(example: Example, backend: object = None) -> None:
    """Each adjoint has its operand's dtype, and no intermediate value is wider."""
    for dtype in (np.dtype("float32"), np.dtype("float16")) if example.takes_floats else ():
        inputs = inputs_for(example.draw(dtype))
        tree = example.tree(inputs)
        operands = [x for x in inputs if _is_floating(x)]
        if not is_floating(tree.dtype) or tree.dtype.itemsize > dtype.itemsize:
            continue
        for node in nodes_of([tree, *_gradients(weighted_sum(tree), operands)]):
            wide = is_floating(node.dtype) and node.dtype.itemsize > 4  # a count may overflow float16
            expect(not wide, example, f"{node.label} computes in {node.dtype} where the operands are {dtype}")
        if not example.differentiable or example.op is None:
            continue
        # From the op itself, because `generate_add_delta` casts.
        variables = [as_variable(x) for x in inputs]
        gradients = tree.op.grad(variables, [Input(tree.type, "delta")])
        for x, gradient in zip(variables, gradients, strict=True):
            same = gradient is None or gradient.dtype == x.dtype or not any(x is y for y in operands)
            expect(same, example, f"its gradient for {x.label} {x.dtype} is {getattr(gradient, 'dtype', gradient)}")


def check_leaks(example: Example, backend: object = None) -> None:
    """An inf or nan in one element causes no nan in the gradients of others.

    For an elementwise op, the others are those that are not combined with it; for a
    linear op, all gradients stay unchanged.
    """
    values = example.draw()
    inputs = inputs_for(values)
    tree = example.tree(inputs)
    operands = [x for x in inputs if _is_floating(x)]
    if not is_floating(tree.dtype) or not example.differentiable or not operands:
        return
    run = Runner(_gradients(weighted_sum(tree), operands), inputs)
    before = run(values)
    elementwise = isinstance(example.op, ElementwiseOperator)
    rolled = [np.roll(x, 1) * (0.9 - 0.1 * i) if _is_floating(inputs[i]) else x for i, x in enumerate(values)]
    negated = [-x if _is_floating(i) else x for x, i in zip(values, inputs, strict=True)]
    linear = all(np.array_equal(a, b) for other in (rolled, negated) for a, b in zip(before, run(other), strict=True))
    for index, x in enumerate(inputs):
        if not _is_floating(x) or not x.size or not (linear or elementwise):
            continue
        for poison in (np.inf, -np.inf, np.nan):
            poisoned = list(values)
            poisoned[index] = values[index].copy()
            poisoned[index].flat[0] = poison
            met = [_meets(y, x, tree.shape) if elementwise else np.zeros(y.shape, bool) for y in operands]
            for operand, was, now, mask in zip(operands, before, run(poisoned), met, strict=True):
                same = np.array_equal(was[~mask], now[~mask], equal_nan=True)
                reaches = f"reaches the gradient of other elements of {operand.label}: {now}"
                expect(same, example, f"{poison} in {x.label} {reaches}")


def check_weak_numbers(example: Example, backend: object = None) -> None:
    """A Python number is promoted to the other operands' dtype."""
    floating = [i for i, x in enumerate(example.operands) if isinstance(x, tuple)]
    if not isinstance(example.op, ElementwiseOperator) or len(floating) < 2 or not example.takes_floats:
        return
    for dtype in (np.float32, np.float16):
        whole = inputs_for(example.draw(dtype))
        wanted = example.tree(whole).dtype
        for index in floating:
            for number in (1, 1.0):
                operands = [number if i == index else x for i, x in enumerate(whole)]
                tree = example.tree(operands)
                note = f"with {number!r} among {np.dtype(dtype)} operands it is {tree.dtype}"
                expect(tree.dtype == wanted, example, note)


# Helpers


def _contiguous(backend: Any, array: np.ndarray) -> Any:
    return backend.array(array, array.dtype)


def _transposed(backend: Any, array: np.ndarray) -> Any:
    return backend.array(array.T, array.dtype).T


def _reversed(backend: Any, array: np.ndarray) -> Any:
    """A view with steps of -2."""
    if array.ndim == 0:
        return _contiguous(backend, array)
    room = backend.zeros(tuple(2 * n for n in array.shape), array.dtype)
    return room[(slice(None, None, -2),) * array.ndim].set(array)


LAYOUTS = (_contiguous, _transposed, _reversed)


def _is_floating(x: Operand) -> bool:
    return isinstance(x, Variable) and is_inexact(x.dtype)


def _gradients(cost: Variable, operands: Sequence[Variable]) -> list[Any]:
    """The derivatives by operands, zero by one that the cost does not contain."""
    return grad(cost, list(operands), disconnected_inputs="ignore")


def _compare_gradients(
    example: Example, cost: Variable, inputs: Sequence[Any], values: Sequence[Any], what: str
) -> None:
    """Raise unless the derivatives of a cost by its floating inputs equal its central differences."""
    floating = [i for i, x in enumerate(inputs) if _is_floating(x)]
    gradients = Runner(_gradients(cost, [inputs[i] for i in floating]), inputs)(values)
    run = Runner([cost], inputs)
    step, allowed = _precision_of(cost)
    for i, gradient in zip(floating, gradients, strict=True):
        x = inputs[i]
        expect(np.shape(gradient) == x.shape, example, f"{what} by {x.label} has shape {np.shape(gradient)}")
        differences = partial(central_difference, lambda moved: float(run(moved)[0]), values, i)
        wrong = where_off(gradient, differences(step, order=2), allowed, allowed)
        # Seldom needed: fourth order takes twice as long, and near a pole only a smaller step is accurate.
        wrong = wrong and where_off(gradient, differences(step), allowed, allowed)
        wrong = wrong and where_off(gradient, differences(step / 8), allowed, allowed)
        expect(wrong is None, example, f"{what} by {x.label} is wrong {wrong}")


def _precision_of(cost: Variable) -> tuple[float, float]:
    """The step of a cost's central differences, and their tolerance."""
    units = (finfo(node.dtype).eps for node in nodes_of([cost]) if is_inexact(node.dtype))
    return precision(float(max(units, default=0.0)))


def _meets(operand: Variable, other: Variable, shape: int | Sequence[int]) -> np.ndarray:
    """The mask of an operand's elements that an elementwise op combines with the first of another."""
    first = np.zeros(other.shape, bool)
    first.flat[0] = True
    indices = np.broadcast_to(np.arange(operand.size).reshape(operand.shape), shape)
    mask = np.zeros(operand.size, bool)
    mask[indices[np.broadcast_to(first, shape)]] = True
    return mask.reshape(operand.shape)


def _twin(op: Op) -> Any:
    """Another object with the op's attributes."""
    twin = type(op).__new__(type(op))
    for name, value in op.state().items():
        setattr(twin, name, value)
    return twin


def _unit(x: Variable, value: Array) -> float | None:
    """The machine epsilon of a variable's values; None where it is not floating."""
    if not isinstance(x.type, TensorType):
        return float(np.finfo(float).eps) if type(value) is float else None
    return float(finfo(x.dtype).eps) if is_floating(x.dtype) else None


def _precision(variables: Sequence[Variable], values: Sequence[Any]) -> tuple[float, float]:
    """The step of central differences, and their tolerance."""
    return precision(max(_unit(x, value) or 0.0 for x, value in zip(variables, values, strict=True)))


def _moves(subject: Subject, x: Variable) -> bool:
    return x in subject.values and _unit(x, subject.values[x]) is not None


def _as_value(x: Variable, moved: Array) -> Any:
    """A perturbed value, converted to a variable's type."""
    return np.asarray(moved, x.dtype) if isinstance(x.type, TensorType) else x.type.filter(float(moved))


def _like(x: Variable, value: Any, seed: int) -> Constant:
    """A constant of a variable's type and a value's shape, with distinct elements."""
    weights = np.random.RandomState(seed).uniform(0.5, 1.5, np.shape(value))
    if isinstance(x.type, TensorType):
        return Constant(TensorType(x.dtype, np.shape(value)), np.asarray(weights, x.dtype))
    return Constant(x.type, float(weights))


def _difference(subject: Subject, x: Variable, seeds: dict[Any, Constant], step: float) -> np.ndarray:
    """The central difference of the weighted sum of outputs by each element of an input."""

    def cost(moved: list[Any]) -> float:
        found = subject.run(list(seeds), {x: _as_value(x, moved[0])})
        return float(sum(np.sum(w.value * np.asarray(y, float)) for y, w in zip(found, seeds.values(), strict=True)))

    return central_difference(cost, [np.asarray(subject.values[x])], 0, step)


#: The examples in a batch.
BATCH = 3


def check_batches(example: Example, backend: object = None, is_open: bool = False) -> None:
    """The value of a batch is the stack of those of its examples, whichever operands differ: the batching rule.

    An op without a rule promises nothing. With `is_open`, the operands' sizes are unknown.
    """
    drawn = example.draw()
    for pattern in _patterns(drawn):
        values = [_shuffled(x) if each else x for x, each in zip(drawn, pattern, strict=True)]
        single = _inputs([x[0] if each else x for x, each in zip(values, pattern, strict=True)], is_open)
        try:
            alone = Runner(_listed(example.tree(single)), single)
        except OptreeError:  # operands whose values, or sizes, are to be known
            continue
        inputs, axes = _inputs(values, is_open), tuple(0 if each else None for each in pattern)
        try:
            batch = Runner(_listed(vmap(example.build, axes)(*inputs)), inputs)
        except BatchingError:
            expect(example.op is None or not has_rule(example.op), example, f"its batching rule fails for {pattern}")
            return
        with np.errstate(all="ignore"):
            wanted = [
                alone([x[i] if each else x for x, each in zip(values, pattern, strict=True)]) for i in range(BATCH)
            ]
            found = batch(values)
        for got, *rows in zip(found, *wanted, strict=True):
            stack = np.stack([np.asarray(x) for x in rows])
            finite = np.abs(stack[np.isfinite(stack)]) if is_floating(stack.dtype) else np.zeros(0)
            scale = 1e3 * max(1.0, float(finite.max(initial=0.0)))
            compare(got, stack, example, f"a batch with {pattern} batched", scale=scale)


def has_rule(op: Any) -> bool:
    """Whether an op has a batching rule."""
    return op.defines("batch") or (op.index_map.batches and not op.destroy_map)


def _patterns(values: Sequence[Any]) -> Iterator[list[bool]]:
    """The masks of operands that differ between the examples of a batch: each alone, and all."""
    arrays = [isinstance(x, np.ndarray) for x in values]
    for i, is_array in enumerate(arrays):
        if is_array and sum(arrays) > 1:
            yield [j == i for j in range(len(values))]
    if any(arrays):
        yield arrays


def _shuffled(x: np.ndarray) -> np.ndarray:
    """A batch of an operand: its elements in other orders, so that all are where the op takes them."""
    if not is_floating(x.dtype) and x.ndim > 1 and len(x) > 1:  # boxes, say, whose columns have each a meaning
        return np.stack([np.roll(x, i, axis=0) for i in range(BATCH)])
    flat = x.reshape(-1)
    return np.stack([np.roll(flat, i * (flat.size // 2 + 1)).reshape(x.shape) for i in range(BATCH)])


def _inputs(values: Sequence[Any], is_open: bool) -> list[Any]:
    inputs = inputs_for(values)
    return [Input(x.type.any_size) if is_open and isinstance(x, Input) else x for x in inputs]


def _listed(trees: object) -> list[Any]:
    return list(trees) if isinstance(trees, list | tuple) and not isinstance(trees, Variable) else [trees]


PROMISES: dict[str, Callable[..., None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_perform,
        check_identity,
        check_clauses,
        check_facts,
        check_type,
        check_backend,
        check_gradient,
        check_second_gradient,
        check_branch_points,
        check_shared_operand,
        check_adjoints,
        check_leaks,
        check_weak_numbers,
        check_batches,
    )
}
