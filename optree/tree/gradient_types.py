"""Deltas, the contributions to gradients, and the types of undefined and disconnected ones.

An op's `grad` returns a variable of such a type for an operand that has no gradient. The
names are Theano's: disconnected, where the outputs' elements do not depend on the
operand's; null, where they do and there is no derivative.
"""

from __future__ import annotations

from typing import Any

from optree.dtypes import is_inexact
from optree.errors import DefinitionError, GradientError, Labelled, describe
from optree.registry import f
from optree.tree.types import TensorType, Type


class NoValueType(Type):
    """A type without values, for the gradients that do not exist."""

    @property
    def plan_key(self) -> Any:
        return type(self)

    def filter(self, value: object, strict: bool = False, allow_downcast: bool | None = None) -> Any:
        """Raises, for nothing is of this type."""
        raise DefinitionError(f"{self!r} has no values: it stands for a gradient that is missing")


class DisconnectedType(NoValueType):
    """The type of a gradient by an operand whose elements the outputs do not depend on.

    Among an op's output gradients it marks an output that the cost does not use.

    Examples
    --------
    >>> DisconnectedType()()
    Input(DisconnectedType, None)
    >>> DisconnectedType() == DisconnectedType()
    True
    """

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(DisconnectedType)


class NullType(NoValueType):
    """The type of a gradient that does not exist, or is not implemented.

    Parameters
    ----------
    why_null : str
        The reason, for the error that asking for the gradient raises.
    """

    __slots__ = ("why_null",)

    def __init__(self, why_null: str = "no reason is given") -> None:
        self.why_null = why_null

    def __repr__(self) -> str:
        return f"NullType({self.why_null!r})"


def is_discrete(variable: Any) -> bool:
    """Whether a variable's value is of integers or bools, and so has no derivative."""
    return isinstance(variable.type, TensorType) and not is_inexact(variable.dtype)


def is_disconnected(gradient: object) -> bool:
    """Whether a gradient is of `DisconnectedType`."""
    return isinstance(getattr(gradient, "type", None), DisconnectedType)


def is_null(gradient: object) -> bool:
    """Whether a gradient is of `NullType`."""
    return isinstance(getattr(gradient, "type", None), NullType)


def grad_undefined(op: object, index: int, input: object, comment: str = "") -> Any:
    """A gradient of `NullType`, for `grad` to return where the op has no derivative by an input.

    Parameters
    ----------
    op : Op
    index : int
        The input's index.
    input : Variable
    comment : str
        The reason.

    Examples
    --------
    >>> from optree.tree.types import TensorType
    >>> axis = TensorType("int64", ())("axis")
    >>> grad_undefined("argmax", 1, axis, "an axis is whole").type
    NullType('argmax has no derivative by input 1, axis () int64: an axis is whole')
    """
    return _null(f"{op} has no derivative by input {index}, {describe(input)}", comment)


def grad_not_implemented(op: object, index: int, input: object, comment: str = "") -> Any:
    """The same where the derivative exists, but is not implemented."""
    return _null(f"{op} does not implement its gradient by input {index}, {describe(input)}", comment)


def _null(what: str, comment: str) -> Any:
    return NullType(what + (f": {comment}" if comment else ""))()


# Deltas


def contribution_to(operand: Any, delta: Any) -> Any:
    """A delta as an addend of an operand's adjoint: summed over broadcast axes, in its dtype if that is floating.

    Of a complex delta of a real operand it is the real part.

    Raises
    ------
    GradientError
        If its type is no gradient's of the operand.
    """
    kind, given = operand.type, delta.type if isinstance(delta, Labelled) else None
    if isinstance(given, NoValueType):
        return delta
    if given is not None and not isinstance(kind, TensorType):
        if not kind.holds(given):
            raise GradientError(f"the gradient {describe(delta)} is not of the type of {describe(operand)}")
        return delta
    if not isinstance(given, TensorType) or not is_inexact(given.dtype):
        raise GradientError(f"a gradient is a tree of a floating dtype, not {describe(delta)}")
    if given.dtype.kind == "c" != kind.dtype.kind:
        delta = f.real(delta)
    if given.shape != kind.shape:
        delta = sum_to(delta, operand)
    return delta.astype(kind.dtype) if delta.dtype != kind.dtype and is_inexact(kind.dtype) else delta


def sum_of_deltas(earlier: Any, delta: Any) -> Any:
    """The sum of two contributions to one adjoint; the first may be None."""
    if earlier is None or is_disconnected(earlier) or is_null(delta):
        return delta
    return earlier if is_disconnected(delta) or is_null(earlier) else earlier + delta


def zero_gradient(x: Any, dtype: Any) -> Any:
    """A gradient of zeros for a variable, of its own dtype if that is floating, else of the one given."""
    return f.fill_like(x if is_inexact(x.dtype) else x.astype(dtype), 0.0)


def or_zeros(gradient: object, x: object) -> Any:
    """A gradient, or zeros of a floating operand's shape where it is disconnected."""
    return f.fill_like(x, 0.0) if is_disconnected(gradient) else gradient


def sum_to(delta: Any, operand: Any) -> Any:
    """The delta summed over the axes along which the operand was broadcast to its shape."""
    shape, wanted = delta.shape, operand.shape
    lead = len(shape) - len(wanted)
    sizes = list(zip(wanted, shape[max(lead, 0) :], strict=False))
    # An axis of unknown size is not broadcast: a function refuses a size of 1 there.
    if lead < 0 or any(w not in (1, s) and (1 in (w, s) or None not in (w, s)) for w, s in sizes):
        raise GradientError(f"the gradient's shape {shape} is not that of {describe(operand)}")
    if lead:
        delta = f.sum(delta, axis=tuple(range(lead)), keepdims=False)
    axes = tuple(i for i, (w, s) in enumerate(sizes) if w == 1 != s)
    return f.sum(delta, axis=axes, keepdims=True) if axes else delta
