"""Loops over an axis with carried states: a step is traced once, into trees, and its derivative is a loop too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from optree.arrays import as_array, is_array, portable
from optree.autodiff.reverse import adjoints_of
from optree.dtypes import in_float32, is_inexact, wide_dtype, widens
from optree.errors import OperandError, ShapeError, brief, clock
from optree.op.apply import Apply
from optree.op.batching import batched_trees, first_batch, spread, spread_all
from optree.op.index_map import is_view
from optree.op.traits import ElementwiseOperator, LoopOperator, ReductionOperator
from optree.ops.contraction import Dot, MatMul, ProductOperator, TensorDot
from optree.ops.elementwise import Add, Mul
from optree.ops.loop_operands import check_lengths, check_states, check_step, flat, in_form_of, typed_state
from optree.ops.loop_steps import Argument, Steps, carried_state, new_array
from optree.ops.shape import ExpandDims
from optree.records import NamedTuple
from optree.registry import f
from optree.tree.equality import equal
from optree.tree.gradient_types import is_disconnected, is_null
from optree.tree.node import OpTreeNode, operands_of, post_order, signature_of, variables_of
from optree.tree.substitution import replace
from optree.tree.types import NUMBERS, Shape, TensorType, TupleType, integer_of, normalise_axis
from optree.tree.variable import Input, Variable, as_variable, constant, in_dtype, variable_of


class Body:
    """The step of a loop: trees of inputs. Two are equal if they compute the same of as many inputs.

    Parameters
    ----------
    states, slices, constants : sequence of Input
        The inputs of a step: the states, a slice of each sequence, and the operands that are the same in every step.
    new_states, outputs : sequence of tree
        The states after the step, and what it gives beside.

    Attributes
    ----------
    arguments, results : list of Variable
        All of these.
    products : list of OpTreeNode
        The products of matrices among what the results need: a gradient keeps their values, and computes others again.
    """

    def __init__(
        self,
        states: Sequence[Input],
        slices: Sequence[Input],
        constants: Sequence[Input],
        new_states: Sequence[Variable],
        outputs: Sequence[Variable],
    ) -> None:
        self.states, self.slices, self.constants = list(states), list(slices), list(constants)
        self.new_states, self.outputs = list(new_states), list(outputs)
        self.arguments, self.results = [*states, *slices, *constants], [*new_states, *outputs]
        self.order = [x for x in post_order(self.results, variables_of) if isinstance(x, OpTreeNode)]
        self.products = [x for x in self.order if isinstance(x.op, ProductOperator | TensorDot)]
        self.results += self.products
        key, leaves = signature_of(self.results)
        number_of = {id(x): i for i, x in enumerate(self.arguments)}
        named = [(type(x), repr(x)) if type(x) in NUMBERS else number_of[id(x)] for x in leaves]
        never_fail = (ElementwiseOperator, ReductionOperator)
        ops = [x.op for x in self.order]
        #: Whether a step may raise for values of its arguments.
        self.may_raise = any(op.raises and not isinstance(op, never_fail) and not is_view(op) for op in ops)
        self._key = key, tuple(named), len(states), len(slices), len(constants), len(outputs)
        self._hash = hash(self._key)
        #: The arguments' shapes of the last call of `shapes`, and what it gave.
        self._known: tuple[Sequence[Shape], list[Any]] = [], []

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Body) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return (
            f"<a step of {len(self.order)} operations on {len(self.states)} states, {len(self.slices)} slices and "
            f"{len(self.constants)} constants>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Body, (self.states, self.slices, self.constants, self.new_states, self.outputs)

    def shapes(self, given: Sequence[Shape]) -> list[Shape]:
        """The results' shapes, where the arguments have these."""
        last, found = self._known
        if given == last:
            return found
        known: dict[int, Any] = {id(x): shape for x, shape in zip(self.arguments, given, strict=True)}
        for node in self.order:
            op = node.op
            shapes = [known[id(x)] if isinstance(x, Variable) else () for x in operands_of(node)]
            if not op.defines("infer_shape") and not op.gives_shape:
                known[id(node)] = node.shape
                continue
            made = op.infer_shape(node.owner, shapes)
            known[id(node)] = list(made) if isinstance(node.type, TupleType) else tuple(made[0])
        found = [known[id(x)] for x in self.results]
        self._known = given, found
        return found

    def values(self, arrays: Sequence[Any]) -> list[Any]:
        """The results' values on NumPy arrays, op by op."""
        numbers, calls, results = self._calls
        known = [*arrays, *numbers]
        for call, operands in calls:
            known.append(call(*[known[i] for i in operands]))
        return [known[i] for i in results]

    @cached_property
    def _calls(self) -> tuple[list[Any], list[tuple[Callable[..., Any], list[int]]], list[int]]:
        """Python numbers, and the operations with their operands, as indices into arguments, numbers and values."""
        numbers = [x for node in self.order for x in operands_of(node) if not isinstance(x, Variable)]
        index = {id(x): i for i, x in enumerate((*self.arguments, *numbers, *self.order))}
        calls = [(_performer(node), [index[id(x)] for x in operands_of(node)]) for node in self.order]
        return numbers, calls, [index[id(x)] for x in self.results]


def _performer(node: OpTreeNode) -> Callable[..., Any]:
    """A function of the operands' values to a node's, a tuple for several outputs."""
    op, apply = node.op, node.owner
    if isinstance(node.type, TensorType) and not op.defines("perform"):
        return in_float32(op, node.dtype) if widens(op, node.dtype) else op.value

    def run(*values: object) -> Any:
        cells: list[list[Any]] = [[None] for _ in apply.outputs]
        op.perform(apply, list(values), cells)
        found = tuple(cell[0] for cell in cells)
        return found if isinstance(node.type, TupleType) else found[0]

    return run


class Scan(LoopOperator):
    """A loop over an axis of sequences, with states that each step hands to the next.

    The step is traced once, on inputs, and compiled once, whatever the number of steps. It may use any tensor and
    tree; what of it is the same in every step is computed before the loop. Random numbers that the step draws are drawn
    anew for each step, all of them before the loop; numbers that were drawn before are the same in every step.

    Parameters
    ----------
    step : callable
        Of the states and the slices, each as `initial` and `sequences` are: one operand, or a tuple or list of them.
        Returns the new states, in the same form, and outputs: None, a tree, or a tuple or list of trees.
    initial : operand, or tuple or list of them
        The states before the first step.
    sequences : operand, or tuple or list of them, optional
        They are cut along `axis`.
    length : int, optional
        The number of steps, where there are no sequences.
    reverse : bool
        Whether the last slice comes first. Outputs are joined in the order of the slices.
    axis : int
        The axis of steps in sequences and in joined outputs.
    truncate : int, optional
        The derivative goes through at most this many of the last steps; those before, and what the states begin with,
        have a derivative of zero (truncated backpropagation through time).

    Returns
    -------
    states, outputs
        The states after the last step, and the joined outputs, each in the step's form.

    Notes
    -----
    The op has, beside this function's parameters, the operands that are the same in every step; its outputs are the
    final states and the joined outputs, and for the gradient the states before each step and the products of matrices
    in each. `body` is the step as trees; `axes` and `out_axes` are those of each sequence and each joined output.
    `flag` is the number of a bool among the states and slices: a step for which it is False does not run. The states
    stay as they are, and the step's outputs are zero. After a state is False, no further step runs (`while_loop`).

    Examples
    --------
    >>> total, sums = be.scan(lambda total, x: (total + x, total + x), be.array(0.0), be.array([1.0, 2.0, 3.0]))
    >>> total.item(), sums.asnumpyarray()
    (6.0, array([1., 3., 6.], dtype=float32))
    """

    name = "scan"
    takes_complex = True
    operands = None
    __props__ = ("body", "axes", "out_axes", "reverse", "truncate", "flag")
    body: Any = None
    axes: Any = ()
    out_axes: Any = ()
    reverse: bool = False
    truncate: Any = None
    flag: Any = None

    @classmethod
    def function(  # type: ignore[override]
        cls,
        step: Callable[..., Any],
        initial: Any,
        sequences: Any = None,
        length: int | None = None,
        reverse: bool = False,
        axis: int = 0,
        truncate: int | None = None,
    ) -> Any:
        truncate = None if truncate is None else integer_of(truncate, "scan: truncate, a number of steps or None,", 1)
        if isinstance(step, Variable) or not callable(step):
            raise OperandError(f"scan: step is a function of states and slices of sequences, not {brief(step)}")
        check_step(step)
        begun = [typed_state(x, "scan") for x in flat(initial)]
        given = [variable_of(x, "scan: a sequence") for x in flat(sequences)]
        axes = [normalise_axis(axis, x.ndim, "scan") for x in given]
        cut = [Input(TensorType(x.dtype, (*x.shape[:a], *x.shape[a + 1 :]))) for x, a in zip(given, axes, strict=True)]
        check_lengths(given, axes, length)
        shown = None if sequences is None else in_form_of(sequences, cut)
        if not given:
            given, axes, cut = [constant(np.arange(int(length or 0)))], [0], [Input(TensorType("int64", ()))]
        states = [Input(TensorType(x.dtype, x.shape)) for x in begun]
        clock[0] += 1  # what is built from here on is the step's
        since = clock[0]
        result = step(in_form_of(initial, states), shown)
        if not isinstance(result, tuple | list) or isinstance(result, Variable) or len(result) != 2:
            raise OperandError(f"scan: a step returns its new states and its outputs, not {brief(result)}")
        new = [variable_of(x, "scan: a new state") for x in flat(result[0])]
        check_states(begun, new, "scan")
        made = [variable_of(x, "scan: an output") for x in flat(result[1])]
        joined = [normalise_axis(axis, x.ndim + 1, "scan: an output") for x in made]
        slices = list(zip(cut, given, axes, strict=True))
        new_states, outputs = draw_before(new, made, list(zip(states, begun, strict=True)), slices, since)
        loop = Loop(
            list(zip(states, begun, strict=True)),
            slices,
            new_states,
            list(zip(outputs, joined, strict=True)),
            bool(reverse),
            truncate,
        )
        found, outputs = loop.applied()
        return in_form_of(initial, found), in_form_of(result[1], outputs)

    def parts(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Operands, or an item for each, as states, sequences and constants."""
        first, second = len(self.body.states), len(self.body.states) + len(self.body.slices)
        return list(values[:first]), list(values[first:second]), list(values[second:])

    def make_node(self, *inputs: Any) -> Apply:
        operands = [variable_of(x, "scan") for x in inputs]
        shapes = self.infer_shape(None, [x.shape for x in operands])
        dtypes = [x.dtype for x in self.body.results]
        states = [x.dtype for x in self.body.states]
        return Apply(
            self, operands, [TensorType(d, s)() for d, s in zip(self.joined(dtypes, states), shapes, strict=True)]
        )

    def joined(self, results: Sequence[Any], states: Sequence[Any]) -> list[Any]:
        """Items for the body's results and for its states, in the order of the outputs."""
        count = len(self.body.states) + len(self.body.outputs)
        return [*results[:count], *states, *results[count:]]

    def infer_shape(self, node: Any, shapes: Sequence[Shape]) -> list[Shape]:
        states, sequences, constants = self.parts(shapes)
        length = next((s[a] for s, a in zip(sequences, self.axes, strict=True) if s[a] is not None), None)
        slices = [(*s[:a], *s[a + 1 :]) for s, a in zip(sequences, self.axes, strict=True)]
        results = self.body.shapes([*states, *slices, *constants])
        axes = [*self.out_axes, *[0] * len(self.body.products)]
        count = len(states)
        joined = [(*s[:a], length, *s[a:]) for s, a in zip(results[count:], axes, strict=True)]
        return self.joined([*results[:count], *joined], [(length, *s) for s in states])

    @portable
    def perform(self, node: Any, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        count = len(self.body.arguments)

        def loop(steps: Steps, length: int) -> None:
            for step in range(length):
                arrays = steps(step)
                for target, value in zip(arrays[count:], self.body.values(arrays[:count]), strict=True):
                    target[...] = value

        values = self.run(loop, [True] * len(output_storage), *inputs)
        for cell, value in zip(output_storage, values, strict=True):
            cell[0] = value

    def run(
        self,
        loop: Callable[[Steps, int], Any],
        wanted: Sequence[bool],
        *inputs: Any,
        empty: Callable[[int, Shape, Any], Any] | None = None,
        reads_flag: bool = False,
    ) -> list[Any]:
        """The outputs that are wanted, None for others.

        Parameters
        ----------
        loop : callable
            Of the arrays of all steps, and the number of steps, which it runs in order. The arrays of a step are its
            arguments and, in the order of the outputs but for the states before each step, those of the results that
            are wanted, which it writes.
        wanted : sequence of bool
            For each output. The states after the last step are always wanted.
        empty : callable, optional
            From an output's number, shape and dtype to memory for it.
        reads_flag : bool
            Whether `loop` ends before a step whose flag, a state, is False, and returns the number of steps that ran.
        """
        arrays = [as_array(x, *inputs) for x in inputs]
        states, sequences, constants = self.parts(arrays)
        length = self.length_of(arrays)
        made = self.outputs(arrays, wanted, partial(new_array, arrays[0]) if empty is None else empty)
        if self.flag is not None:  # of steps that do not run
            for x in filter(is_array, made[len(states) :]):
                x[...] = 0
        order, done, begun = self.order(length), 0, states
        flag = self.flag if self.flag is not None and self.flag < len(states) else None
        if self.flag is not None and flag is None:
            runs = sequences[self.flag - len(states)].tolist()
            order = np.array([i for i in order.tolist() if runs[i]], np.int64)
        while count := self._together(len(order), done, begun, reads_flag):
            arguments = self.laid_out([*begun, *sequences, *constants], made, order[done : done + count])
            for x, before in zip(begun, self.befores(made), strict=True):
                if before is not None:
                    before[order[done]] = x
            ran = loop(Steps(arguments, count, flag=flag if reads_flag else None), count)
            done += count if ran is None else ran
            if ran is not None and ran < count:  # the states are where the step that does not run would read them
                for x, target in zip(arguments, made[: len(states)], strict=False):
                    target[...] = x.at(ran, count)
                break
            begun = [x.copy() for x in made[: len(states)]] if done < len(order) else []
        if not done:
            for target, x in zip(made, states, strict=False):
                target[...] = x
        return made

    def outputs(
        self, arrays: Sequence[Any], wanted: Sequence[bool], empty: Callable[[int, Shape, Any], Any]
    ) -> list[Any]:
        """Memory for the outputs that are wanted, of operands; None for others."""
        shapes: Any = self.infer_shape(None, [x.shape for x in arrays])
        dtypes = self.joined([x.dtype for x in self.body.results], [x.dtype for x in self.body.states])
        return [
            empty(n, shape, dtype) if is_wanted else None
            for n, (shape, dtype, is_wanted) in enumerate(zip(shapes, dtypes, wanted, strict=True))
        ]

    def laid_out(self, operands: Sequence[Any], made: Sequence[Any], order: np.ndarray) -> list[Argument]:
        """The arrays of the steps of an order: arguments, then those of `outputs`, which they write."""
        states, sequences, constants = self.parts(operands)
        axes = [*self.out_axes, *[None] * len(states), *[0] * len(self.body.products)]
        joined = [(x, a) for x, a in zip(made[len(states) :], axes, strict=True) if x is not None and a is not None]
        carried = [carried_state(x, y, z, order) for x, y, z in zip(states, self.befores(made), made, strict=False)]
        return [
            *(read for read, _ in carried),
            *(Argument(x, a, order) for x, a in zip(sequences, self.axes, strict=True)),
            *map(Argument, constants),
            *(written for _, written in carried),
            *(Argument(x, a, order) for x, a in joined),
        ]

    def befores(self, made: Sequence[Any]) -> Sequence[Any]:
        """Of the items of `outputs`, those of the states before each step."""
        first = len(self.body.states) + len(self.body.outputs)
        return made[first : first + len(self.body.states)]

    def order(self, length: int) -> np.ndarray:
        """The indices of so many steps in order."""
        return np.arange(length - 1, -1, -1) if self.reverse else np.arange(length)

    def _together(self, steps: int, done: int, states: Sequence[Any], reads_flag: bool) -> int:
        """The number of steps to run before the flag is read again; 0 if none is left."""
        if done == steps or self.flag is None or self.flag >= len(self.body.states):
            return steps - done
        if not states[self.flag]:
            return 0
        if reads_flag:
            return steps - done
        # Steps after the last one change nothing, and take time. They must not fail either.
        return 1 if self.body.may_raise else min(steps - done, 1 + done // 4)

    def length_of(self, operands: Sequence[Any]) -> int:
        """The number of steps; ShapeError if sequences differ."""
        sequences = self.parts(operands)[1]
        lengths = {x.shape[a] for x, a in zip(sequences, self.axes, strict=True)}
        if len(lengths) > 1:
            raise ShapeError(f"scan: its sequences have {_listed(sorted(lengths))} steps; all have the same number")
        return lengths.pop()

    def flops(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        """The operations of a step, times the number of steps."""
        body = self.body
        states, sequences, constants = self.parts(inputs)
        length = sequences[0][self.axes[0]]
        slices = [(*s[:a], *s[a + 1 :]) for s, a in zip(sequences, self.axes, strict=True)]
        known: dict[int, Any] = dict(zip(map(id, body.arguments), [*states, *slices, *constants], strict=True))
        total = 0
        for node in body.order:
            shapes = [known[id(x)] if isinstance(x, Variable) else () for x in operands_of(node)]
            found = node.op.infer_shape(node.owner, shapes)
            known[id(node)] = list(found) if isinstance(node.type, TupleType) else tuple(found[0])
            total += node.op.flops(shapes, found)
        return int(length or 0) * total

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        """A loop whose steps are those of all examples together; with a flag, a loop for each example."""
        if self.flag is not None:
            return self.batch_in_loop(inputs, batched)
        body = self.body
        states = self.parts(spread_all(inputs, batched, len(body.states)))[0]
        _, sequences, constants = self.parts(inputs)
        _, moving, differing = self.parts(batched)
        given = {x: _stand_in(x, y) for x, y in zip(body.states, states, strict=True)}
        axes = [axis + each for axis, each in zip(self.axes, moving, strict=True)]
        slices = []
        for x, sequence, axis, each in zip(body.slices, sequences, axes, moving, strict=True):
            given |= {x: _stand_in(x, sequence, axis)} if each else {}
            slices.append((given.get(x, x), sequence, axis))
        outer = {x: y for x, y, each in zip(body.constants, constants, differing, strict=True) if each}
        same = [(x, y) for x, y, each in zip(body.constants, constants, differing, strict=True) if not each]
        roots = replace([*body.results, *body.states], dict(same))
        found = batched_trees(roots, {**given, **outer})
        batch = first_batch(inputs, batched)
        trees = [x if each else spread(x, batch) for x, each in found]
        count, first = len(states), len(states) + len(body.outputs)
        # The loop gives all that this one does: states before each step and products are outputs of it.
        outputs = [(x, axis + 1) for x, axis in zip(trees[count:first], self.out_axes, strict=True)]
        outputs += [(x, 1) for x in (*trees[len(body.results) :], *trees[first : len(body.results)])]
        loop = Loop(
            list(zip(given.values(), states, strict=False)), slices, trees[:count], outputs, self.reverse, self.truncate
        )
        final, joined = loop.applied()
        return [*final, *joined]

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return _Derivative(self, inputs, output_gradients).gradients()


def _stand_in(x: Input, batch: Variable, axis: int | None = None) -> Input:
    """An input for a batch of what another stands for; `axis` is that of steps in the batch."""
    sizes = [size for i, size in enumerate(batch.shape) if i != axis]
    return Input(TensorType(x.dtype, (sizes[0], *x.shape)))


def _listed(values: Iterable[Any]) -> str:
    return " and ".join(map(str, values))


class Loop(NamedTuple):
    """The parts of a loop, with its step as trees of inputs that stand for states and slices."""

    #: With what they are before the first step.
    states: list[tuple[Input, Any]]
    #: With their sequences, and the axis of steps in these.
    slices: list[tuple[Input, Any, int]]
    new_states: list[Any]
    #: With the axis along which they are joined.
    outputs: list[tuple[Any, int]]
    reverse: bool
    truncate: int | None = None
    #: The state or slice that tells whether a step runs.
    flag: Input | None = None

    def applied(self) -> tuple[list[Variable], list[Variable]]:
        """The states after the last step, and the joined outputs."""
        op, operands = self.scan()
        found = op(*operands)
        found = found if isinstance(found, list) else [found]
        count = len(self.new_states)
        return found[:count], found[count : count + len(self.outputs)]

    def scan(self) -> tuple[Scan, list[Variable]]:
        """The op and its operands; what is the same in every step is computed before, and is an operand."""
        roots = [*self.new_states, *(tree for tree, _ in self.outputs)]
        inner = {id(x) for x, *_ in (*self.states, *self.slices)}
        order = post_order(roots, variables_of)
        for node in order:
            if any(id(x) in inner for x in variables_of(node)):
                inner.add(id(node))
                _check_pure(node)
        used = [x for node in order if id(node) in inner for x in variables_of(node)]
        outer = list({id(x): x for x in (*used, *roots) if id(x) not in inner}.values())
        stand_ins = {x: Input(x.type) for x in outer}
        results = replace(roots, stand_ins)
        count = len(self.new_states)
        body = Body(
            [x for x, _ in self.states],
            [x for x, *_ in self.slices],
            list(stand_ins.values()),
            results[:count],
            results[count:],
        )
        # Not by `make`, which would give an equal one, of other sizes: a derivative is of this body's trees.
        op = Scan(
            body=body,
            axes=tuple(axis for *_, axis in self.slices),
            out_axes=tuple(axis for _, axis in self.outputs),
            reverse=self.reverse,
            truncate=self.truncate,
            flag=None if self.flag is None else [id(x) for x in body.arguments].index(id(self.flag)),
        )
        return op, [*(x for _, x in self.states), *(x for _, x, _ in self.slices), *outer]


def draw_before(
    new_states: Sequence[Any],
    outputs: Sequence[Any],
    states: Sequence[tuple[Input, Any]],
    slices: list[tuple[Input, Any, int]],
    since: int,
) -> tuple[list[Any], list[Any]]:
    """The trees of a step with slices in place of its draws of random numbers, whose sequences are added.

    A draw whose numbers depend on a state or a slice, and not only on its shape, stays where it is.
    """
    roots = [*new_states, *outputs]
    nodes = [x for x in post_order(roots, variables_of) if isinstance(x, OpTreeNode)]
    own = [x for x in nodes if x.op.draws and x.origin[2] >= since]
    if not own:
        return list(new_states), list(outputs)
    steps = f.moveaxis(slices[0][1], slices[0][2], 0)
    alike: dict[Any, Any] = dict(states) | {x: f.sum(y, axis=axis, keepdims=False) for x, y, axis in slices}
    drawn: dict[Any, Any] = {}
    for node in own:
        state, *given = variables_of(node)
        moved = replace(given, alike)
        unread = node.op.index_map.shape_only
        if any(x is not y and i not in unread for i, (x, y) in enumerate(zip(given, moved, strict=True), 1)):
            continue
        numbers = node.op(state, *(spread(x, steps) for x in moved))
        drawn[node] = Input(node.type)
        alike[node] = node.op(state, *moved)
        slices.append((drawn[node], numbers, 0))
    roots = replace(roots, drawn)
    return roots[: len(new_states)], roots[len(new_states) :]


def _check_pure(node: OpTreeNode) -> None:
    """Raise OperandError for an op of a step that overwrites a tensor."""
    if node.op.destroy_map:
        raise OperandError(
            f"scan: {node.op} in a step overwrites one of its operands, as a draw does its generator's state; draw for "
            "all steps before, and give that as a sequence"
        )


class _Derivative:
    """The derivative of a loop: a loop from its other end, whose states are the adjoints of that one's states."""

    def __init__(self, op: Scan, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> None:
        self.op, self.inputs, body = op, inputs, op.body
        self.states, self.sequences, self.constants = op.parts(inputs)
        outputs = op.make_node(*inputs).outputs
        first, second = len(self.states) + len(body.outputs), 2 * len(self.states) + len(body.outputs)
        self.final, given = output_gradients[: len(self.states)], output_gradients[len(self.states) : first]
        self.by_state = output_gradients[first:second]
        #: The slices that a step reads: of sequences, of values stored by the loop, and of gradients.
        self.slices: list[tuple[Input, Any, int]] = []
        for x, y, axis in zip(body.slices, self.sequences, op.axes, strict=True):
            self._read(x, y, axis)
        for x, y in zip(body.states, outputs[first:second], strict=True):
            self._read(x, y, 0)
        self.kept = {x: Input(x.type) for x in body.products}
        for x, y in zip(body.products, outputs[second:], strict=True):
            self._read(self.kept[x], y, 0)
        self.seeds: dict[Variable, Any] = {}
        for x, gradient, axis in zip(body.outputs, given, op.out_axes, strict=True):
            self._seed(x, gradient, axis)
        for x, gradient in zip(body.products, output_gradients[second:], strict=True):
            self._seed(x, gradient, 0)

    def _slice_of(self, x: Variable, gradient: Any, axis: int) -> Any:
        """An input for the slices of a gradient, of the type of what it is the gradient of."""
        found = Input(TensorType(gradient.dtype, x.shape))
        self._read(found, gradient, axis)
        return found

    def _read(self, x: Input, sequence: Any, axis: int) -> None:
        """Read the slices of a sequence, those of the steps that have a derivative."""
        self.slices.append((x, self._steps(sequence, axis, True), axis))

    def _steps(self, x: Any, axis: int, is_last: bool) -> Any:
        """The slices of the last steps that run, as many as have a derivative, or of those before them."""
        count = self.op.truncate
        if count is None:
            return x
        early, late = (
            (slice(count, None), slice(0, count)) if self.op.reverse else (slice(0, -count), slice(-count, None))
        )
        return f.slice(x, (*(slice(None),) * axis, late if is_last else early))

    def _padded(self, gradient: Any, sequence: Any, axis: int) -> Any:
        """The gradient by a sequence, with zeros for the steps that have none."""
        if self.op.truncate is None:
            return gradient
        zeros = f.fill_like(self._steps(in_dtype(sequence, gradient.dtype), axis, False), 0.0)
        return f.concatenate([gradient, zeros] if self.op.reverse else [zeros, gradient], axis=axis)

    def _begun(self, gradient: Any) -> Any:
        """The gradient by what a state begins with: zeros where that is before the steps that have one."""
        if self.op.truncate is None:
            return gradient
        sequence, axis = self.sequences[0], self.op.axes[0]
        steps = f.count(sequence, axis) if sequence.shape[axis] is None else sequence.shape[axis]
        if isinstance(steps, int):
            return gradient if steps <= self.op.truncate else f.fill_like(gradient, 0.0)
        return f.where(steps <= self.op.truncate, gradient, f.fill_like(gradient, 0.0))

    def _seed(self, x: Variable, gradient: Any, axis: int) -> None:
        if not is_disconnected(gradient) and is_inexact(x.dtype):
            self._add(x, self._slice_of(x, gradient, axis))

    def _add(self, x: Variable, delta: Any) -> None:
        self.seeds[x] = self.seeds[x] + delta if x in self.seeds else delta

    def gradients(self) -> list[Any]:
        """The gradients by the operands."""
        body = self.op.body
        moving = [i for i, x in enumerate(body.states) if is_inexact(x.dtype)]
        adjoints = {i: Input(body.states[i].type) for i in moving}
        for i in moving:
            self._add(body.new_states[i], adjoints[i])
        found, trees = self._adjoints()
        broken = [found[i] for i in moving if is_null(found[i])]
        if broken:  # where a state has no derivative, nothing before it has one
            return [broken[0]] * len(found)
        flag = None if self.op.flag is None else body.arguments[self.op.flag]
        loop = Loop([], [], [], [], not self.op.reverse, flag=flag)
        for i in moving:
            zero = f.fill_like(self.states[i], 0.0)
            loop.states.append((adjoints[i], zero if is_disconnected(self.final[i]) else self.final[i]))
            new = trees.get(i, f.fill_like(adjoints[i], 0.0))
            if not is_disconnected(self.by_state[i]):
                new = new + self._slice_of(body.states[i], self.by_state[i], 0)
            loop.new_states.append(new)
        first = len(self.states) + len(self.sequences)
        joined = {
            i: _output(loop, trees[i], axis) for i, axis in enumerate(self.op.axes, len(self.states)) if i in trees
        }
        sums = {i: _Sum.of(loop, trees[i], self.inputs[i], self.slices) for i in trees if i >= first}
        loop.slices.extend(self._needed([*loop.new_states, *(tree for tree, _ in loop.outputs)]))
        states, outputs = loop.applied()
        found[: len(self.states)] = [None] * len(self.states)
        for i, gradient in zip(moving, states, strict=False):
            found[i] = self._begun(gradient)
        for i, index in joined.items():
            found[i] = self._padded(outputs[index], self.inputs[i], self.op.axes[i - len(self.states)])
        for i, total in sums.items():
            found[i] = total.value(states, outputs, self.inputs[i])
        return found

    def _adjoints(self) -> tuple[list[Any], dict[int, Any]]:
        """The adjoint of each of the step's arguments, and those that are trees, of slices and outer operands."""
        body = self.op.body
        wanted = [i for i, x in enumerate(body.arguments) if is_inexact(x.dtype)]
        found: list[Any] = [None] * len(body.arguments)
        if self.seeds:
            by = adjoints_of(self.seeds, [body.arguments[i] for i in wanted], np.dtype("float64"))
            for i, gradient in zip(wanted, by, strict=True):
                found[i] = gradient
        known = [i for i in wanted if not (found[i] is None or is_null(found[i]) or is_disconnected(found[i]))]
        outer = dict(zip(body.constants, self.constants, strict=True))
        trees = replace([found[i] for i in known], {**self.kept, **outer})
        return found, dict(zip(known, trees, strict=True))

    def _needed(self, trees: Sequence[Any]) -> list[tuple[Input, Any, int]]:
        """The slices that trees are made of, and the flag; one at least, for the number of steps."""
        used = {id(x) for x in post_order(trees, variables_of)}
        if self.op.flag is not None:
            used.add(id(self.op.body.arguments[self.op.flag]))
        return [each for each in self.slices if id(each[0]) in used] or self.slices[:1]


def _output(loop: Loop, tree: Any, axis: int) -> int:
    """The number of a tree among a loop's outputs, to which it is added if it is new."""
    for index, (known, along) in enumerate(loop.outputs):
        if along == axis and equal(known, tree):
            return index
    loop.outputs.append((tree, axis))
    return len(loop.outputs) - 1


class _Factor(NamedTuple):
    """A factor of a product of matrices in each step, or of an outer product: its values of all steps."""

    #: An operand, or the number of one of the loop's outputs.
    sequence: Any
    #: The axes to sum over: that of steps, and that of a product of matrices.
    axes: tuple[int, ...]

    @classmethod
    def of(cls, loop: Loop, tree: Any, axes: Sequence[int], slices: Sequence[tuple[Input, Any, int]]) -> _Factor:
        """A factor whose `axes` are summed over, without a transposition."""
        if isinstance(tree, OpTreeNode) and tree.op.index_map.axis_order == (1, 0):
            tree, axes = tree[1], [1 - axis for axis in axes]
        sequence, steps = next(((x, along) for known, x, along in slices if known is tree), (None, 0))
        if sequence is None:
            found = ((n, along) for n, (x, along) in enumerate(loop.outputs) if equal(x, tree))
            sequence, steps = next(found, None) or (_output(loop, tree, 0), 0)
        return cls(sequence, (steps, *(axis + (axis >= steps) for axis in axes)))


def _vectors(product: OpTreeNode) -> list[Any]:
    """The vectors of an outer product, as the gradient of a matrix times a vector has it; empty for other products."""
    found = [x[1] if _has_axis(x, axis) else x for x, axis in zip((product[1], product[2]), (1, 0), strict=True)]
    return found if _has_axis(product[1], 1) and getattr(found[1], "ndim", 0) == 1 else []


def _has_axis(x: Any, axis: int) -> bool:
    """Whether a tree is a vector with a new axis."""
    return isinstance(x, OpTreeNode) and x.ndim == 2 and isinstance(x.op, ExpandDims) and x.op.axis == (axis,)


class _Sum(NamedTuple):
    """A gradient summed over the steps: products of matrices in one product after the loop, others in a state."""

    products: list[tuple[_Factor, _Factor]]
    #: The state that sums up what is no product.
    state: int | None

    @classmethod
    def of(cls, loop: Loop, tree: Any, like: Variable, slices: Sequence[tuple[Input, Any, int]]) -> _Sum:
        """The sum of a tree over the steps of a loop, to which states and outputs are added."""
        pending, rest, products = [tree], [], []
        while pending:
            term = pending.pop()
            kind = type(term.op) if isinstance(term, OpTreeNode) else None
            if kind is Add:
                pending += [as_variable(x) for x in operands_of(term)]
            elif kind in (Dot, MatMul) and term[1].ndim == term[2].ndim == 2:
                products.append((_Factor.of(loop, term[1], [1], slices), _Factor.of(loop, term[2], [0], slices)))
            elif kind is Mul and (vectors := _vectors(term)):
                products.append((_Factor.of(loop, vectors[0], [], slices), _Factor.of(loop, vectors[1], [], slices)))
            else:
                rest.append(term)
        if not rest:
            return cls(products, None)
        dtype = wide_dtype(like.dtype)
        state = Input(TensorType(dtype, like.shape))
        total: Variable = state
        for term in rest:
            total = total + in_dtype(term, dtype)
        loop.states.append((state, f.fill_like(in_dtype(like, dtype), 0.0)))
        loop.new_states.append(total)
        return cls(products, len(loop.states) - 1)

    def value(self, states: Sequence[Variable], outputs: Sequence[Variable], like: Variable) -> Variable:
        """The gradient, after the loop, by an operand."""
        terms = [] if self.state is None else [in_dtype(states[self.state], like.dtype)]
        joined: list[Any] = [[], []]
        for pair in self.products:
            found = [outputs[each.sequence] if isinstance(each.sequence, int) else each.sequence for each in pair]
            if len(pair[0].axes) > 1:
                terms.append(f.tensordot(*found, tuple(each.axes for each in pair)))
                continue
            for x, each, known in zip(found, pair, joined, strict=True):
                known.append(f.moveaxis(x, each.axes[0], 0) if each.axes[0] else x)
        if joined[0]:  # one product takes less time than one for each pair of vectors
            x, y = (f.concatenate(x) if len(x) > 1 else x[0] for x in joined)
            terms.append(f.tensordot(x, y, ((0,), (0,))))
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total
