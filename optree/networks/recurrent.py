"""Recurrent networks over sequences, composed of a loop and of products of matrices.

The weights of all gates are concatenated in the order of cuDNN and torch, so that a step has one product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from optree.arrays import portable
from optree.errors import DTypeError, OperandError, ShapeError, describe
from optree.op.apply import Apply
from optree.op.index_map import STACKED, IndexMap
from optree.op.op import Op
from optree.records import NamedTuple
from optree.registry import f, function
from optree.tree.gradient_types import or_zeros
from optree.tree.types import Shape, TensorType, integer_of, may_equal
from optree.tree.variable import Operand, Variable, as_variable, variable_of


class Recurrent(NamedTuple):
    """The outputs of all steps, joined, and the state after the last one."""

    outputs: Any
    state: Any


class RecurrentWithCell(NamedTuple):
    """The same, with the state of the cells."""

    outputs: Any
    state: Any
    cell: Any


#: The functions that a plain recurrent network may have.
ACTIVATIONS = ("tanh", "relu", "sig")


@function()
def rnn(
    x: Operand,
    w: Operand,
    u: Operand,
    b: Operand | None = None,
    state: Operand | None = None,
    mask: Operand | None = None,
    activation: str = "tanh",
    reverse: bool = False,
    batch_first: bool = False,
    truncate: int | None = None,
) -> Any:
    """A plain recurrent network over a sequence: h = activation(x w + h u + b) in each step.

    Parameters
    ----------
    w, u, b : operand
        Weights of shape (features, units) and (units, units), and a bias of shape (units,), or None.
    state : operand, optional
        The initial h, of shape (batch, units); zeros by default.
    activation : {'tanh', 'relu', 'sig'}

    Returns
    -------
    outputs, state : tree
        Of shape (steps, batch, units), or as x has its axes, and (batch, units).

    Examples
    --------
    >>> x, w, u = be.ones((5, 1, 2)), be.ones((2, 3)), be.zeros((3, 3))
    >>> outputs, last = be.rnn(x, w, u)
    >>> outputs.shape, last.shape
    ((5, 1, 3), (1, 3))
    """
    if activation not in ACTIVATIONS:
        raise OperandError(f"rnn: activation is one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    given = _Given("rnn", 1, x, w, u, b, mask, batch_first)

    def step(states: Sequence[Any], inputs: Operand) -> list[Any]:
        (h,) = states
        return [getattr(f, activation)(inputs + f.dot(h, given.u))]

    outputs, states = given.run(step, [given.begun(state, "state")], reverse, truncate)
    return Recurrent(outputs, *states)


@function()
def lstm(
    x: Operand,
    w: Operand,
    u: Operand,
    b: Operand | None = None,
    state: Operand | None = None,
    cell: Operand | None = None,
    mask: Operand | None = None,
    reverse: bool = False,
    batch_first: bool = False,
    truncate: int | None = None,
) -> Any:
    """Long short-term memory over a sequence (S. Hochreiter and J. Schmidhuber, 1997; with forget gates).

    Parameters
    ----------
    w, u, b : operand
        Weights of shape (features, 4 * units) and (units, 4 * units), and a bias of shape (4 * units,), or None: of the
        gates of input and forgetting, the new cell, and the gate of output, as torch's (whose weights are transposed).
    state, cell : operand, optional
        The initial state and cell, of shape (batch, units); zeros by default.

    Returns
    -------
    outputs, state, cell : tree
        Of shape (steps, batch, units), or as x has its axes; and the last state and cell, of shape (batch, units).

    Examples
    --------
    >>> x, w, u = be.ones((5, 2, 3)), be.ones((3, 16)) * 0.1, be.ones((4, 16)) * 0.1
    >>> outputs, state, cell = be.lstm(x, w, u)
    >>> outputs.shape, state.shape, bool((outputs.get()[-1] == state.get()).all())
    ((5, 2, 4), (2, 4), True)
    """
    given = _Given("lstm", 4, x, w, u, b, mask, batch_first)

    def step(states: Sequence[Any], inputs: Variable) -> list[Any]:
        h, c = states
        # Parts first, sums after: so they are of the gates' kernel, and no pass of their own.
        parts = zip(given.gates_of(inputs), given.gates_of(f.dot(h, given.u)), strict=True)
        enters, stays, new, leaves = (x + y for x, y in parts)
        c = f.sig(stays) * c + f.sig(enters) * f.tanh(new)
        return [f.sig(leaves) * f.tanh(c), c]

    outputs, states = given.run(step, [given.begun(state, "state"), given.begun(cell, "cell")], reverse, truncate)
    return RecurrentWithCell(outputs, *states)


@function()
def gru(
    x: Operand,
    w: Operand,
    u: Operand,
    b: Operand | None = None,
    recurrent_bias: Operand | None = None,
    state: Operand | None = None,
    mask: Operand | None = None,
    reverse: bool = False,
    batch_first: bool = False,
    truncate: int | None = None,
) -> Any:
    """Gated recurrent units over a sequence (K. Cho et al., 2014), reset after the product, as cuDNN's are.

    Parameters
    ----------
    w, u, b : operand
        Weights of shape (features, 3 * units) and (units, 3 * units), and a bias of shape (3 * units,), or None: of the
        gates of resetting and of staying, and of the new state, as torch's (whose weights are transposed).
    recurrent_bias : operand, optional
        Of shape (units,): added to the product of the new state that is reset.
    state : operand, optional
        The initial state, of shape (batch, units); zeros by default.

    Returns
    -------
    outputs, state : tree
        Of shape (steps, batch, units), or as x has its axes; and the last state, of shape (batch, units).

    Examples
    --------
    >>> outputs, state = be.gru(be.ones((5, 2, 3)), be.ones((3, 12)) * 0.1, be.ones((4, 12)) * 0.1)
    >>> outputs.shape, state.shape
    ((5, 2, 4), (2, 4))
    """
    given = _Given("gru", 3, x, w, u, b, mask, batch_first)
    extra = None if recurrent_bias is None else given.row(recurrent_bias, "recurrent_bias")

    def step(states: Sequence[Any], inputs: Variable) -> list[Any]:
        (h,) = states
        enters, kept = given.gates_of(inputs), given.gates_of(f.dot(h, given.u))
        reset, stay = (f.sig(x + y) for x, y in zip(enters[:2], kept[:2], strict=True))
        new = f.tanh(enters[2] + reset * (kept[2] if extra is None else kept[2] + extra))
        return [new + stay * (h - new)]

    outputs, states = given.run(step, [given.begun(state, "state")], reverse, truncate)
    return Recurrent(outputs, *states)


class Parts(Op):
    """Equal parts along the last axis, as views; without a name of its own, for trees here alone.

    Its gradient joins those of the parts at once, where that of slices would add up whole arrays of mostly zeros.
    """

    __props__ = ("count",)
    count: int = 2
    index_map = IndexMap(STACKED)
    raises = False

    @property
    def view_map(self) -> dict[int | None, list[int]]:  # type: ignore[override]
        return {i: [0] for i in range(self.count)}

    def make_node(self, *inputs: Operand) -> Apply:
        (x,) = map(as_variable, inputs)
        return Apply(self, [x], [TensorType(x.dtype, shape)() for shape in self.infer_shape(None, [x.shape])])

    def infer_shape(self, node: Any, shapes: Sequence[Shape]) -> list[Shape]:
        (*lead, size) = shapes[0]
        return [(*lead, None if size is None else size // self.count)] * self.count

    @portable
    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        for cell, part in zip(output_storage, self.views(*inputs), strict=True):
            cell[0] = part

    def views(self, x: Any) -> tuple[Any, ...]:
        """The parts of an array."""
        size = x.shape[-1] // self.count
        return tuple([x[..., i * size : (i + 1) * size] for i in range(self.count)])

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        like = self(*inputs)[0]
        return [f.concatenate([or_zeros(x, like) for x in output_gradients], axis=-1)]


class _Given:
    """The operands of a recurrent network, checked, with the products that need no state.

    `gates`: the number of gates: the weights have as many rows for each unit.
    """

    def __init__(
        self,
        what: str,
        gates: int,
        x: Operand,
        w: Operand,
        u: Operand,
        b: Operand | None,
        mask: Operand | None,
        batch_first: bool,
    ) -> None:
        self.what, self.gates, self.axis = what, gates, int(bool(batch_first))
        self.x, self.w, self.u = (self._operand(y, name) for y, name in ((x, "x"), (w, "w"), (u, "u")))
        layout = "(batch, steps, features)" if batch_first else "(steps, batch, features)"
        if self.x.ndim != 3:
            raise ShapeError(f"{what}: {describe(self.x)} is no sequence of shape {layout}")
        if self.u.ndim != 2 or self.u.shape[0] is None:
            raise ShapeError(f"{what}: u is {describe(self.u)}; it has the shape (units, {gates} * units), all known")
        self.units = self.u.shape[0]
        for name, y, wanted in (("w", self.w, (self.x.shape[2], gates * self.units)), ("u", self.u, None)):
            self._check(name, y, wanted or (self.units, gates * self.units))
        self.b = None if b is None else self._operand(b, "b")
        if self.b is not None:
            self._check("b", self.b, (gates * self.units,))
        self.mask = None if mask is None else self._operand(mask, "mask")
        if self.mask is not None:
            if self.mask.dtype.kind != "b":
                raise DTypeError(f"{what}: the mask {describe(self.mask)} is no condition; `mask > 0` makes it one")
            self._check("the mask", self.mask, self.x.shape[:2])

    def _operand(self, value: Operand, name: str) -> Variable:
        found = variable_of(value, f"{self.what}: {name}")
        if not isinstance(found.type, TensorType):
            raise OperandError(f"{self.what}: {name} is a tensor, not {describe(found)}")
        return found

    def _check(self, name: str, y: Variable, wanted: Sequence[int | None]) -> None:
        if not may_equal(y.shape, tuple(wanted)):
            raise ShapeError(
                f"{self.what}: {name} is {describe(y)}; for the sequence {describe(self.x)} and {self.units} units it "
                f"has the shape {tuple(wanted)}"
            )

    def gates_of(self, y: Variable) -> list[Variable]:
        """The parts of a value that are the gates'."""
        return [y] if self.gates == 1 else Parts.make(count=self.gates)(y)

    def row(self, value: Operand, name: str) -> Variable:
        """An operand with an element for each unit."""
        found = self._operand(value, name)
        self._check(name, found, (self.units,))
        return found

    def begun(self, value: Operand | None, name: str) -> Variable:
        """A state before the first step."""
        batch = self.x.shape[1 - self.axis]
        if value is None:  # of sizes that may be open: those of sums, which are not computed
            rows = f.sum(self.x, axis=(self.axis, 2), keepdims=False)
            return f.fill_like(f.expand_dims(rows, 1) + f.sum(self.u, axis=1, keepdims=False), 0.0)
        found = self._operand(value, name)
        self._check(name, found, (batch, self.units))
        return found

    def run(
        self,
        step: Callable[[Sequence[Any], Any], list[Any]],
        states: list[Variable],
        reverse: bool,
        truncate: int | None,
    ) -> tuple[Variable, list[Variable]]:
        """The joined outputs, and the states after the last step, of a step of states and of the input's products."""
        truncate = None if truncate is None else integer_of(truncate, f"{self.what}: truncate", 1)
        inputs = f.matmul(self.x, self.w)
        inputs = inputs if self.b is None else inputs + self.b

        def masked(before: Any, given: Any) -> Any:
            after = step(before, given[0])
            if self.mask is not None:
                chosen = f.expand_dims(given[1], 1)
                after = [f.where(chosen, new, old) for new, old in zip(after, before, strict=True)]
            return after, after[0]

        sequences = [inputs] if self.mask is None else [inputs, self.mask]
        found, outputs = f.scan(masked, states, sequences, reverse=reverse, axis=self.axis, truncate=truncate)
        return outputs, found
