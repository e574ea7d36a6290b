"""Collective operations as ops: every rank of a group runs them, in one order.

Each overwrites its first operand, the group's turn, a tensor that is written by nothing else. So, as draws from a
random state, they are neither merged nor left out, and run in the program's order, which is that of the tree and the
same on all ranks. Their derivatives are those of the sum of all ranks' costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, portable
from optree.dtypes import is_inexact, wide_dtype
from optree.errors import DTypeError, OperandError, ShapeError
from optree.op.apply import Apply
from optree.op.index_map import SAME, IndexMap
from optree.op.op import Op
from optree.op.traits import (
    BeginningOperator,
    DividedOperator,
    FirstDtypeOperator,
    NonDifferentiableOperator,
    WaitingOperator,
)
from optree.registry import f
from optree.tree.types import Shape, TensorType, normalise_axis, promote
from optree.tree.variable import Operand

#: The kinds of `AllReduce`.
KINDS = ("sum", "mean", "max", "min")


class Collective(DividedOperator):
    """An op that all ranks of a group run on their values of one operand.

    Attributes
    ----------
    group : Group
    """

    operands = ("turn", "x")
    __props__: ClassVar[tuple[str, ...] | None] = ("group",)
    group: Any = None
    takes_complex = True
    destroy_map = {None: [0]}
    # Who fails here ends the run of all ranks, so that assignments need not wait: buckets of gradients are stored
    # before one, and after another.
    raises = False

    def output_shape(self, *shapes: Shape) -> Shape:
        return shapes[1]

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return np.dtype("uint64"), promote(dtypes[1]), promote(dtypes[1])

    @portable
    def numpy(self, *arrays: Array) -> Any:
        return self.compute(arrays[1])

    def compute(self, x: Array) -> Any:
        """The value on this rank's array."""
        raise NotImplementedError

    def adjoint(self) -> Collective:
        """The collective that takes deltas back: all but extremes are linear, and this is the transpose."""
        raise NotImplementedError

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [None, self.adjoint()(self.group.turn, delta)]

    def begin(self, x: Array, out: Array) -> tuple[Any, Callable[[], None]]:
        """The array that will have the value, `out` if that is one, and a function that waits for it."""
        raise NotImplementedError

    def halves(self) -> tuple[Op, Op] | None:
        begins = type(self).begin is not Collective.begin and self._is_in_place()
        if not (begins and self.group.engine.overlaps):
            return None
        return Begin.make(whole=self), Await.make(whole=self)

    def _is_in_place(self) -> bool:
        """Whether the engine's value is this op's, as it is in memory."""
        return True


class Half(NonDifferentiableOperator):
    """A part of a collective, in programs alone.

    Attributes
    ----------
    whole : Collective
    """

    __props__: ClassVar[tuple[str, ...] | None] = ("whole",)
    whole: Any = None
    takes_complex = True
    raises = False


class Begin(Half, BeginningOperator):
    """The start of a collective: its value is the memory that has the result once it is awaited."""

    operands = ("turn", "x")
    destroy_map = {None: [0]}

    def output_shape(self, *shapes: Shape) -> Shape:
        return self.whole.output_shape(*shapes)  # type: ignore[no-any-return]

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return self.whole.resolve_dtypes(*dtypes)  # type: ignore[no-any-return]

    @portable
    def numpy(self, *arrays: Array) -> Any:
        return self.into(*arrays)

    def into(self, turn: object, x: Operand, out: object = None) -> Any:
        """The value, in an array if one is given."""
        made, finish = self.whole.begin(x, out)
        self.whole.group.begun[id(made)] = made, finish
        return made

    def debug_perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """The whole operation: the debug mode runs each op three times, and looks at each value."""
        output_storage[0][0] = self.whole.compute(inputs[1])


class Await(FirstDtypeOperator, Half, WaitingOperator):
    """The value of a collective that has begun. It takes the operand too, which is so not overwritten before."""

    operands = ("begun", "x")
    view_map = {0: [0]}

    def output_shape(self, *shapes: Shape) -> Shape:
        return shapes[0]

    @portable
    def numpy(self, begun: Array, x: Array) -> Any:
        made, finish = self.whole.group.begun.pop(id(begun))
        finish()
        return made

    def debug_perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """The value, which is there."""
        output_storage[0][0] = inputs[0]


class RootCollective(Collective):
    """A collective in which one rank differs from the others."""

    __props__ = ("group", "root")
    root: int = 0


class AxisCollective(Collective):
    """A collective of parts along one axis, one for each rank."""

    __props__ = ("group", "axis")
    axis: int = 0
    method: ClassVar[str]

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        return self.make(group=self.group, axis=normalise_axis(self.axis, types[1].ndim, self.method))


class AllReduce(Collective):
    """The sum, mean, maximum or minimum of all ranks' values, element by element.

    Attributes
    ----------
    kind : {'sum', 'mean', 'max', 'min'}
    replicated : bool
        Whether all ranks' costs are one and the same, computed on each: then the derivative is the delta itself.
    """

    __props__ = ("group", "kind", "replicated")
    kind: str = "sum"
    replicated: bool = False

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        return self(*inputs)

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        if self.kind not in KINDS:
            raise OperandError(f"all_reduce: the kind is {', '.join(KINDS)}, not {self.kind!r}")
        dtype = types[1].dtype
        if (self.kind == "sum" and dtype.kind == "b") or (self.kind == "mean" and not is_inexact(dtype)):
            raise DTypeError(f"all_reduce: there is no {self.kind} of {dtype}; cast it before")
        if self.kind in ("max", "min") and dtype.kind == "c":
            raise DTypeError(f"all_reduce: there is no {self.kind} of {dtype}; z.real, z.imag and be.abs(z) are real")
        if self.replicated and self.kind != "sum":
            raise OperandError(f"all_reduce: replicated=True is for a sum, not for {self.kind!r}")
        return self

    def compute(self, x: Array) -> Any:
        return self.group.engine.all_reduce(x, self.kind)

    def begin(self, x: Array, out: Any) -> tuple[Any, Callable[[], None]]:
        return self.group.engine.begin("all_reduce", x, self.kind, out=out)  # type: ignore[no-any-return]

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (turn, x), (delta,) = inputs, output_gradients
        if self.replicated:
            return [None, delta]
        if self.kind in ("sum", "mean"):
            return [None, self(turn, delta)]
        # Equal extremes share the delta.
        is_extreme = f.cast(f.eq(x, self(turn, x)), wide_dtype(delta.dtype))
        summed = self.make(group=self.group, kind="sum")
        return [None, f.cast(is_extreme / summed(turn, is_extreme), delta.dtype) * summed(turn, delta)]


class Replicated(Op):
    """A value that all ranks have, for parts of one cost: its derivative is the sum of theirs.

    Attributes
    ----------
    group : Group
    """

    operands = ("x",)
    __props__: ClassVar[tuple[str, ...] | None] = ("group",)
    group: Any = None
    takes_complex = True
    index_map = IndexMap(SAME)
    raises = False

    @portable
    def numpy(self, x: Array) -> Any:
        return x

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [AllReduce.make(group=self.group, replicated=True)(self.group.turn, delta)]


class Broadcast(RootCollective):
    """The value of one rank, on all."""

    def compute(self, x: Array) -> Any:
        return self.group.engine.broadcast(x, self.root)

    def adjoint(self) -> Collective:
        return Reduce.make(**self.props)


class Reduce(RootCollective):
    """The sum of all ranks' values on one rank, and zeros on the others."""

    def compute(self, x: Array) -> Any:
        return self.group.engine.reduce(x, self.root)

    def adjoint(self) -> Collective:
        return Broadcast.make(**self.props)


class AllToAll(Collective):
    """The value's parts along one axis, one for each rank; of all ranks' parts for this one, joined along another.

    Attributes
    ----------
    split, join : int
        The axes.
    """

    __props__ = ("group", "split", "join")
    split: int = 0
    join: int = 0

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        split, join = (normalise_axis(axis, types[1].ndim, "all_to_all") for axis in (self.split, self.join))
        return self.make(group=self.group, split=split, join=join)

    def output_shape(self, *shapes: Shape) -> Shape:
        return _gathered(_scattered(shapes[1], self.split, self.group), self.join, self.group)

    def compute(self, x: Array) -> Any:
        return _joined(self.group.engine.all_to_all(_parts(x, self.split, self.group)), self.join)

    def adjoint(self) -> Collective:
        return self.make(group=self.group, split=self.join, join=self.split)


class AllGather(AxisCollective):
    """All ranks' values, of one shape, joined along an axis."""

    method = "all_gather"

    def output_shape(self, *shapes: Shape) -> Shape:
        return _gathered(shapes[1], self.axis, self.group)

    def compute(self, x: Array) -> Any:
        return _joined(self.group.engine.all_gather(x), self.axis)

    def begin(self, x: Array, out: Any) -> tuple[Any, Callable[[], None]]:
        whole = None if out is None else out.reshape(self.group.size, *x.shape)
        stacked, finish = self.group.engine.begin("all_gather", x, out=whole)
        return _joined(stacked, self.axis) if out is None else out, finish

    def _is_in_place(self) -> bool:
        return self.axis == 0

    def adjoint(self) -> Collective:
        return ReduceScatter.make(**self.props)


class ReduceScatter(AxisCollective):
    """The part for each rank, along an axis, of the sum of all ranks' values."""

    method = "reduce_scatter"

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        if types[1].dtype.kind == "b":
            raise DTypeError("reduce_scatter: there is no sum of bool; cast it before")
        return super().bind(types, backend)

    def output_shape(self, *shapes: Shape) -> Shape:
        return _scattered(shapes[1], self.axis, self.group)

    def compute(self, x: Array) -> Any:
        return self.group.engine.reduce_scatter(_parts(x, self.axis, self.group))

    def begin(self, x: Array, out: Any) -> tuple[Any, Callable[[], None]]:
        parts = _parts(x, self.axis, self.group)
        return self.group.engine.begin("reduce_scatter", parts, out=out)  # type: ignore[no-any-return]

    def adjoint(self) -> Collective:
        return AllGather.make(**self.props)


class Exchange(Collective):
    """The value of one rank, while this one's is sent to another; zeros where it receives none.

    Attributes
    ----------
    to, source : int or None
        The ranks that this one sends to, and receives from.
    """

    __props__ = ("group", "to", "source")
    to: Any = None
    source: Any = None

    def compute(self, x: Array) -> Any:
        return self.group.engine.exchange(x, self.to, self.source)

    def adjoint(self) -> Collective:
        return self.make(group=self.group, to=self.source, source=self.to)


def _gathered(shape: Shape, axis: int, group: Any) -> Shape:
    """The shape of all ranks' values joined along an axis."""
    size = shape[axis]
    return (*shape[:axis], None if size is None else size * group.size, *shape[axis + 1 :])


def _scattered(shape: Shape, axis: int, group: Any) -> Shape:
    """The shape of one rank's part along an axis."""
    size = shape[axis]
    if size is not None and size % group.size:
        raise ShapeError(f"along axis {axis}, {size} do not divide into parts for {group.size} ranks")
    return (*shape[:axis], None if size is None else size // group.size, *shape[axis + 1 :])


def _parts(x: Any, axis: int, group: Any) -> Any:
    """The parts along an axis for each rank, stacked."""
    size = _scattered(x.shape, axis, group)[axis]
    split = x.reshape(*x.shape[:axis], group.size, size, *x.shape[axis + 1 :])
    return np.moveaxis(split, axis, 0)


def _joined(stacked: Array, axis: int) -> Any:
    """Stacked parts, joined along an axis."""
    count, *shape = stacked.shape
    shape[axis] *= count
    return np.moveaxis(stacked, 0, axis).reshape(shape)
