"""Index maps: which elements of its operands an element of an op's value is computed from.

From its index map follow an op's views, moved axes, equal sizes, the operands of which only the shape is used, the
value's shape, and the batching rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from optree.records import NamedTuple
from optree.tree.types import Shape, broadcast


class Read(NamedTuple):
    """The elements of one operand that an element of the value is computed from."""

    kind: str
    #: The axes that the kind is about.
    axes: tuple[int, ...] | None = None


#: Any elements: nothing is known.
OPAQUE = Read("opaque")

#: The element at the same index: operands are broadcast together, with axes aligned from the last.
BROADCAST = Read("broadcast")

#: The same, and the value's element is the operand's. It is repeated in the shape of an operand that is `LIKE`, or in
#: one that the op's parameters name.
REPEATED = Read("repeated")

#: The value is the operand: the op is there for its derivative, or for the order of steps.
SAME = Read("same")

#: The value's elements are the operand's, in the same C order.
RESHAPED = Read("reshaped")

#: Each element of the value is one of the operand's: a view with strides of its own, or of a copy, as shapes decide.
STRIDED = Read("strided")

#: The same, and none is used twice.
SELECTED = Read("selected")

#: As `SELECTED`, and the value has the operand's shape.
FLIPPED = Read("flipped")

#: The leading axes of operands and value are those of a stack; an element is computed from one entry of each stack.
STACKED = Read("stacked")

#: At most one element, at an index that is an affine function of the value's, axis by axis (`AffineOperator`).
AFFINE = Read("affine")

#: At most one element, at an index that is the other operand's value.
LOOKED_UP = Read("looked up")

#: None: the operand's shape alone is read.
SHAPE = Read("shape")

#: None: the operand's shape alone is read, and the value has it.
LIKE = Read("like")


def _axes(axes: int | tuple[int, ...] | None) -> tuple[int, ...] | None:
    return (axes,) if isinstance(axes, int) else axes


def indexed(axes: int | tuple[int, ...] | None = None) -> Read:
    """As `LIKE`; the value is each element's flat index in C order, counted along these axes alone, or along all."""
    return Read("indexed", _axes(axes))


def permuted(axes: tuple[int, ...]) -> Read:
    """The operand with its axes permuted: for each axis of the value, the operand's."""
    return Read("permuted", axes)


def windowed(axes: int | tuple[int, ...] | None = None) -> Read:
    """The elements along these axes, or along all; the value has the operand's shape."""
    return Read("windowed", _axes(axes))


def reduced(axes: int | tuple[int, ...] | None = None) -> Read:
    """The elements along these axes, or along all, which the value has with size 1 or not at all."""
    return Read("reduced", _axes(axes))


def contracted(axes: int | tuple[int, ...]) -> Read:
    """The elements along these axes, whose sizes are those of the other contracted operands' axes."""
    return Read("contracted", _axes(axes))


def _permuted(order: tuple[int, ...], shape: Shape) -> Shape:
    return tuple(shape[axis] for axis in order)


def _shape_of(operand: int, *shapes: Shape) -> Shape:
    return shapes[operand]


_SHAPE_ONLY = ("shape", "like", "indexed")
_IN_SHAPE = ("like", "indexed", "same", "windowed", "flipped")
_REARRANGED = ("permuted", "reshaped", "selected", "flipped")
_VIEWED = (*_REARRANGED, "strided", "repeated", "same")
_STACKS = ({"stacked"}, {"stacked", "same"}, {"same"}, {"reshaped", "like"})


class DerivedMap(dict[int | None, list[int]]):
    """A `view_map` that follows from an index map; one that a class gives is a plain dict."""


class IndexMap:
    """The reads of an op's operands, in order, and what follows from them.

    Parameters
    ----------
    *reads : Read
        One for each operand; further operands of a variadic op are read as the last one is. None: nothing is known.

    Attributes
    ----------
    reads : tuple of Read
    shape_only : tuple of int
        The operands of which only the shape is read.
    shape_of : int or None
        The operand whose shape the value always has; also one that alone is `BROADCAST`, with others `OPAQUE`.
    broadcasts : bool
        Whether operands are broadcast together: sizes along an axis, aligned from the last, are equal or 1.
    repeats : (int or None, int), or None
        For a value that is one operand (the first number) broadcast to the shape of another (the second);
        (None, n) for flat indices of operand n.
    is_flat_index : bool
        Whether the value is each element's flat index, along the axes that `counted_axes` chooses.
    axis_order : tuple of int, or None
        For a permutation of axes, the operand's axis for each of the value's.
    keeps_order : bool
        Whether the value has its first operand's elements in the same C order.
    moves_axes : bool
        Whether kernels read the value as the operand along other axes.
    rearranges : bool
        Whether each element of the value is one of the first operand's, none used twice.
    gives_shape : bool
        Whether the value's shape follows from it.
    value_shape : callable
        From the operands' shapes to the value's.
    equal_axes : tuple of ((int, int), (int, int))
        Pairs of (operand, axis) whose sizes are equal. An axis before an operand's first is its first.
    is_affine : bool
        Whether an element is read where an affine function of the index is in bounds, and is a number elsewhere.
    is_of_each : bool
        Whether an element of the value is computed from that of one operand, and from all elements of others.
    looks_up : bool
        Whether an element is read at an index that is the second operand's value, where that is in bounds.
    is_stacked : bool
        Whether an axis in front of all operands gives the value one: it is that of a stack.
    batches : bool
        Whether a batching rule follows from it (`optree.op.batching.by_index_map`).
    view_map : dict
        The operand that the value is a view of, as in `Op.view_map`.
    is_view : bool
        Whether the value is a view that shapes alone decide.

    Examples
    --------
    >>> IndexMap(RESHAPED, LIKE).shape_only, IndexMap(RESHAPED, LIKE).view_map
    ((1,), {0: [0]})
    >>> IndexMap(contracted(-1), contracted(-2)).equal_axes
    (((0, -1), (1, -2)),)
    """

    def __init__(self, *reads: Read) -> None:
        kinds = [read.kind for read in reads]
        first = reads[0] if reads else OPAQUE
        self.reads = reads
        self.shape_only = tuple(n for n, kind in enumerate(kinds) if kind in _SHAPE_ONLY)
        self.is_of_each = len(kinds) > 1 and sorted(kinds) == ["broadcast", *["opaque"] * (len(kinds) - 1)]
        alone = "broadcast" if self.is_of_each else None
        self.shape_of = next((n for n, kind in enumerate(kinds) if kind in _IN_SHAPE or kind == alone), None)
        likes = [n for n, kind in enumerate(kinds) if kind in ("like", "indexed")]
        repeated = [n for n, kind in enumerate(kinds) if kind == "repeated"]
        known = set(kinds) <= {"broadcast", "repeated", "like", "indexed"}
        self.broadcasts = bool(kinds) and known and bool(likes or not repeated)
        self.is_flat_index = first.kind == "indexed"
        self.repeats = (None, 0) if self.is_flat_index else (repeated[0], likes[0]) if repeated and likes else None
        self.axis_order = first.axes if first.kind == "permuted" else None
        self.keeps_order = first.kind == "reshaped"
        self.moves_axes = first.kind in ("permuted", "reshaped")
        self.rearranges = first.kind in _REARRANGED
        self.is_affine = first.kind == "affine"
        self.looks_up = first.kind == "looked up"
        sums = [(n, read.axes or ()) for n, read in enumerate(reads) if read.kind == "contracted"]
        self.equal_axes = tuple(
            ((sums[0][0], axis), (n, other))
            for n, axes in sums[1:]
            for axis, other in zip(sums[0][1], axes, strict=True)
        )
        self.gives_shape = self.broadcasts or self.shape_of is not None or self.axis_order is not None
        self.value_shape: Callable[..., Shape] = broadcast
        if self.axis_order is not None:
            self.value_shape = partial(_permuted, self.axis_order)
        elif self.shape_of is not None:
            self.value_shape = partial(_shape_of, self.shape_of)
        self.is_stacked = set(kinds) in _STACKS
        reads_shapes = len(self.shape_only) == len(kinds) > 0
        self.batches = self.is_stacked or self.is_of_each or reads_shapes or (self.broadcasts and not self.shape_only)
        viewed = next((n for n, kind in enumerate(kinds) if kind in _VIEWED), None)
        self.view_map = DerivedMap({} if viewed is None else {0: [viewed]})
        others = len(kinds) - len(self.shape_only)
        self.is_view = viewed is not None and (others == 1 or kinds[viewed] == "same")

    def counted_axes(self, axes: Sequence[Any]) -> Sequence[Any]:
        """Those of the value's axes, one entry each, along which flat indices count; along the others they repeat."""
        counted = self.reads[0].axes
        return axes if counted is None else [axes[axis] for axis in counted]

    def __repr__(self) -> str:
        listed = (read.kind.upper() if read.axes is None else f"{read.kind}({read.axes})" for read in self.reads)
        return f"IndexMap({', '.join(listed)})"


def is_view(op: Any) -> bool:
    """Whether an op's value is a view of an operand, or a copy where no strides allow one, as shapes alone decide."""
    return bool(op.view_map) and op.index_map.is_view and not op.destroy_map


class _PerOp:
    """A fact that depends on an op's parameters: computed once for an op, and of its class the general one."""

    def __init__(self, general: IndexMap, method: Callable[[Any], IndexMap]) -> None:
        self.general, self.method = general, method

    def __get__(self, op: object, owner: object = None) -> IndexMap:
        if op is None:
            return self.general
        found: IndexMap | None = op.__dict__.get("_index_map")
        if found is None:
            found = op.__dict__["_index_map"] = self.method(op)
        return found


def per_op(*general: Read) -> Callable[[Callable[[Any], IndexMap]], Any]:
    """A decorator for a method `index_map` of an op whose map depends on its parameters.

    Parameters
    ----------
    *general : Read
        The reads of any op of the class.

    Examples
    --------
    >>> from optree import Op
    >>> class Swapped(Op):
    ...     __props__ = ("axes",)
    ...     axes = (0, 1)
    ...
    ...     @per_op(permuted((0, 1)))
    ...     def index_map(self):
    ...         return IndexMap(permuted(self.axes))
    >>> Swapped(axes=(1, 0)).index_map.axis_order
    (1, 0)
    """
    return lambda method: _PerOp(IndexMap(*general), method)
