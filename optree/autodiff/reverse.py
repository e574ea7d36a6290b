"""Reverse-mode differentiation: adjoints propagate from the cost to the leaves.

As in Nervana graph ("Computing Derivatives"), each op sends its operands their deltas, and the sum of the deltas from
all uses of an operand is its adjoint. Null gradients propagate too, and a value of integers sends zeros.

The adjoint of a complex operand x + iy is d(cost)/dx - i d(cost)/dy here, so that the ``grad`` of an op that is complex
differentiable is written as for real numbers. The gradients that users give and get are its conjugates
(`optree.autodiff.api`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import DTypeLike

from optree.errors import DefinitionError, GradientError, describe
from optree.op.op import Op
from optree.registry import f
from optree.tree.gradient_types import (
    DisconnectedType,
    NoValueType,
    is_disconnected,
    is_discrete,
    is_null,
    zero_gradient,
)
from optree.tree.node import operands_of, post_order, uncollected, variables_of
from optree.tree.tensor import Tensor
from optree.tree.types import TensorType, TupleType
from optree.tree.variable import Variable, as_operand, as_variable


@uncollected
def adjoints_of(
    seeds: dict[Variable, Any],
    operands: Sequence[Variable],
    dtype: DTypeLike,
    known: dict[Variable, Any] | None = None,
    constants: Iterable[Variable] = (),
) -> list[Any]:
    """The adjoints of operands, given the adjoints of some variables.

    `seeds`: from variables to the initial contribution to their adjoints.
    `dtype`: the floating dtype of gradients by operands of integers.
    `known` (dict, optional): from variables to their complete adjoints; deltas sent to them are ignored.
    `constants`: variables through which no adjoint propagates.

    Returns
    -------
    list
        For each operand a tree, or a variable of `NullType` or `DisconnectedType`.
    """
    backward = _Backward(seeds, known or {}, constants, dtype)
    targets = [target_of(operand, backward.order) for operand in operands]
    adjoints = backward.run({id(target) for target in targets})
    found: list[Any] = []
    for operand, target in zip(operands, targets, strict=True):
        adjoint = adjoints.get(target)
        if id(target) not in backward.connected:
            found.append(DisconnectedType()())
        elif adjoint is None:
            found.append(backward.zero(operand))
        elif is_null(adjoint):
            found.append(adjoint)
        else:
            gradient = _view_of(adjoint, operand, target)
            found.append(gradient.astype(dtype) if is_discrete(operand) and gradient.dtype != dtype else gradient)
    return found


def deltas_of(variable: Variable, delta: Variable | list[Any], dtype: DTypeLike) -> dict[Variable, Any]:
    """The deltas that a node or view sends its operands for its own delta, a list for several outputs."""
    backward = _Backward({}, {}, (), dtype)
    backward.dependent.update(map(id, application_of(variable)[1]))
    backward.send(variable, delta)
    return backward.adjoints


class _Backward:
    """The backward pass: in reverse topological order, each variable sends its operands their deltas."""

    def __init__(
        self, seeds: dict[Variable, Any], known: dict[Variable, Any], constants: Any, dtype: DTypeLike
    ) -> None:
        self.known, self.dtype = known, dtype
        self.constants = {id(as_operand(x, "consider_constant")) for x in constants}
        #: The ids of the inputs of each variable, by its own.
        self.inputs: dict[int, list[int]] = {}
        roots = [*seeds, *known]
        #: The variables that the cost depends on, in topological order.
        self.order = post_order(roots, self._inputs)
        #: The ids of the variables whose adjoints are wanted, or lead to one that is.
        self.dependent: set[int] = set()
        #: The ids of the variables reached so far on whose elements the cost depends.
        self.connected = {id(x) for x in roots}
        #: By variable, absent where zero; a list for the tuple of several outputs.
        self.adjoints: dict[Variable, Any] = dict(seeds)

    def _inputs(self, variable: Variable) -> list[Any]:
        found = [x for x in inputs_of(variable) if id(x) not in self.constants]
        self.inputs[id(variable)] = [id(x) for x in found]
        return found

    def zero(self, variable: Variable) -> Any:
        """A gradient of zero."""
        if not isinstance(variable.type, TensorType):
            raise GradientError(f"the gradient by {describe(variable)} is zero, and its type has no zero")
        return zero_gradient(variable, self.dtype)

    def run(self, wanted: set[int]) -> dict[Variable, Any]:
        """The adjoints, including those of the variables with these ids."""
        dependent, adjoints = self.dependent, self.adjoints
        for variable in self.order:
            if id(variable) in wanted or not dependent.isdisjoint(self.inputs[id(variable)]):
                dependent.add(id(variable))
        for variable in reversed(self.order):
            key = id(variable)
            if key not in dependent or key not in self.connected:
                continue
            if variable in self.known:
                adjoints[variable] = self.known[variable]
            delta = adjoints.get(variable) if key in wanted else adjoints.pop(variable, None)
            if not dependent.isdisjoint(self.inputs[key]):
                self.send(variable, delta)
        return adjoints

    def send(self, variable: Any, delta: Any) -> None:
        """Send the operands of a node, or the base of a view, their deltas."""
        op, operands = application_of(variable)
        try:
            linked = linked_of(variable, op, operands, delta)
            if isinstance(variable.type, TupleType):
                self._send_all(variable, op, operands, linked, delta)
            elif isinstance(operands[0].type, TupleType):  # an explicit zero marks the output as used
                flat = delta is None or is_discrete(variable)
                self._collect(op, operands, linked, self.zero(variable) if flat else delta)
            elif delta is None or is_discrete(variable):
                self._probe(variable, op, operands, linked)
            elif is_null(delta):
                self._spread(linked, delta)
            else:
                self._collect(op, operands, linked, delta)
        except GradientError as error:
            raise GradientError(f"{op}: its derivative is wrong at {describe(variable)}: {error}") from error
        except Exception as error:
            error.add_note(f"in the derivative of {describe(variable)}")
            raise

    def _send_all(self, variable: Any, op: Any, operands: list[Any], linked: list[Any], deltas: list[Any]) -> None:
        """Send the deltas of an op with several outputs; a null output makes the operands it depends on null."""
        nulls = [delta if is_null(delta) else DisconnectedType()() for delta in deltas]
        outputs = variable.owner.outputs
        known = [self.zero(out) if is_null(delta) else delta for delta, out in zip(deltas, outputs, strict=True)]
        try:
            self._collect(op, operands, linked, known)
        except (AttributeError, TypeError) as error:  # an OperandError is a TypeError
            unused = [i for i, delta in enumerate(known) if is_disconnected(delta)]
            if not unused or DisconnectedType.__name__ not in str(error):
                raise
            raise GradientError(
                f"grad computes with the gradient of output {unused[0]}, which the cost does not use, and which is a "
                "variable of DisconnectedType: leave it out where isinstance(gradient.type, optree.DisconnectedType)"
            ) from error
        for null in filter(is_null, nulls):
            self._spread(linked_of(variable, op, operands, nulls), null)

    def _collect(self, op: Op, operands: list[Any], linked: list[Any], delta: Variable | list[Any]) -> None:
        """Call the op's `generate_adjoints`, and check it against its connection_pattern."""
        adjoints = self.adjoints
        others = set(operands).difference(linked) if len(linked) < len(operands) else ()
        before = {x: adjoints.get(x) for x in others}
        op.generate_adjoints(adjoints, delta, *operands)
        for x in others:
            now = adjoints.get(x)
            if now is not before[x]:
                if not isinstance(getattr(now, "type", None), NoValueType):
                    raise GradientError(f"its connection_pattern says that {describe(x)} has none, and it gives one")
                adjoints[x] = before[x]
        for x in linked:
            if id(x) not in self.dependent or is_disconnected(adjoints.get(x)):
                adjoints.pop(x, None)
            else:
                self._connect(x)

    def _probe(self, variable: Variable, op: Op, operands: list[Any], linked: list[Any]) -> None:
        """For a value with zero derivative, send only the null gradients: the other deltas are zero."""
        sent: dict[Variable, Any] = {}
        if isinstance(variable.type, TensorType):
            op.generate_adjoints(sent, self.zero(variable), *operands)
        for x in linked:
            if not is_disconnected(sent.get(x)):
                self._connect(x)
                if is_null(sent.get(x)):
                    x.generate_add_delta(self.adjoints, sent[x])

    def _spread(self, linked: list[Any], null: object) -> None:
        """Send a null gradient on to the operands that have a derivative."""
        for x in linked:
            self._connect(x)
            x.generate_add_delta(self.adjoints, null)

    def _connect(self, variable: Variable) -> None:
        if id(variable) not in self.constants:
            self.connected.add(id(variable))


def application_of(variable: Any) -> tuple[Any, list[Any]]:
    """The op of a node or of a view, and its operands."""
    if isinstance(variable, Tensor):
        return variable.view_op, [variable.base]
    return variable.op, [as_variable(x) for x in operands_of(variable)]


def linked_of(variable: Variable, op: Op, operands: Sequence[Any], delta: Variable | list[Any]) -> list[Any]:
    """The operands on whose elements those of an output depend that the cost uses."""
    if not op.defines("connection_pattern"):
        unread = op.index_map.shape_only
        return [x for i, x in enumerate(operands) if i not in unread] if unread else list(operands)
    used = [not is_disconnected(x) for x in (delta if isinstance(delta, list) else [delta])]
    pattern = op.connection_pattern(variable.owner)
    if len(pattern) != len(operands) or any(len(row) != len(used) for row in pattern):
        raise DefinitionError(
            f"{op}.connection_pattern returns {len(operands)} lists of {len(used)} bools, not {pattern!r}"
        )
    rows = zip(operands, pattern, strict=True)
    return [x for x, row in rows if any(a and b for a, b in zip(row, used, strict=True))]


def inputs_of(variable: Variable) -> list[Any]:
    """A node's operands, or a view's base."""
    if isinstance(variable, Tensor):
        return [] if variable.base is None else [variable.base]
    return variables_of(variable)


def target_of(operand: Variable, order: Iterable[Variable]) -> Variable:
    """The variable whose adjoint gives an operand's: itself, or its root tensor if other views may overlap it."""
    if not isinstance(operand, Tensor) or operand.base is None:
        return operand
    root = operand.root
    read = {id(x): x for node in order for x in variables_of(node) if isinstance(x, Tensor) and x.root is root}
    return operand if read and all(_looks_into(x, operand) for x in read.values()) else root


def _looks_into(tensor: Tensor | None, other: Tensor) -> bool:
    """Whether a tensor is the other, or a view of it."""
    while tensor is not None and tensor is not other:
        tensor = tensor.base
    return tensor is other


def _view_of(adjoint: object, operand: Variable, target: Variable) -> Any:
    """A target's adjoint, seen through the views from it to an operand."""
    if operand is not target and target.dtype.kind == "c" != operand.dtype.kind:
        adjoint = f.conjugate(adjoint)  # whose parts are the derivatives by the parts
    views = []
    while operand is not target:
        views.append(operand.view_op)  # type: ignore[attr-defined]
        operand = operand.base  # type: ignore[attr-defined]
    for view in reversed(views):
        adjoint = view(adjoint)
    return adjoint
