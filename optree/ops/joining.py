"""Ops that join or enlarge arrays: concatenate, stack, pad, repeat, tile, roll."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from optree.arrays import Array, portable
from optree.errors import DTypeError, OperandError, ShapeError, brief, describe
from optree.op.batching import by_axis
from optree.op.examples import Examples
from optree.op.index_map import AFFINE, SELECTED, SHAPE, IndexMap
from optree.op.op import Op
from optree.op.traits import (
    AffineOperator,
    Along,
    AssociativeOperator,
    AxisOperator,
    BlockOperator,
    Blocks,
    CopyOperator,
    MorphOperator,
    blocks_along,
    one_axis,
)
from optree.ops.shape import sizes_for_reshape, sizes_of, slice_along, strong, with_leading_axes
from optree.registry import f, function, numpy_function
from optree.tree.types import Axis, Shape, TensorType, check_fits, integer_of, normalise_axis, promote
from optree.tree.variable import Operand, Variable, as_operand, as_variable, in_dtype, variable_of

#: The maximum number of copies that are written one after the other.
FEW = 16

#: The least bytes that are copied at once, in the order of memory.
LONG = 256


@numpy_function(np.concatenate)
class Concatenate(AxisOperator, CopyOperator, AssociativeOperator):
    """Operands joined along an axis; flattened first, if that is None.

    Examples
    --------
    >>> be.concatenate([be.ones((1, 2)), be.zeros((2, 2))], axis=0).get()
    array([[1., 1.],
           [0., 0.],
           [0., 0.]], dtype=float32)
    """

    name = "concatenate"
    raises = False
    index_map = IndexMap()
    axis: Any = 0
    examples = Examples(
        (
            (((2, 3), (4, 3)), {}),
            (((2, 3), (2, 1), (2, 2)), {"axis": -1}),
            (((2, 0), (2, 3)), {"axis": 1}),
            (((2,), (3,), (1,), (2,)), {"axis": 0}),
        ),
        random_props=one_axis,
    )

    @classmethod
    def function(cls, operands: object, axis: Axis = 0) -> Any:  # type: ignore[override]
        if is_one(operands):
            return _rows_joined(operands, axis, "concatenate")
        return cls.make(axis=axis)(*_listed(operands, "concatenate"))

    def __call__(self, *inputs: Operand) -> Any:
        if self.axis is None:
            return self.make(axis=0)(*(f.reshape(x, (-1,)) for x in inputs))
        if len(inputs) == 1:  # a node, not the operand itself
            x = variable_of(inputs[0], "concatenate")
            normalise_axis(self.axis, x.ndim, "concatenate")
            return f.slice(x, Ellipsis)
        return super().__call__(*inputs)

    def output_shape(self, *shapes: Shape) -> Shape:
        total: int | None = 0
        sizes = list(shapes[0])
        for shape in shapes:
            if len(shape) != len(sizes):
                raise ShapeError("operands of one number of dimensions are joined; np.expand_dims adds one")
            for i, size in enumerate(shape):
                if i != self.axis and None not in (size, sizes[i]) and size != sizes[i]:
                    raise ShapeError(f"beside axis {self.axis} the sizes must be equal; along axis {i} they are not")
                sizes[i] = size if sizes[i] is None else sizes[i]
            more = shape[self.axis]
            total = None if total is None or more is None else total + more
        sizes[self.axis] = total
        return tuple(sizes)

    @portable
    def fill(self, out: Array, *arrays: Array) -> None:
        # A CUDA graph cannot capture CuPy's function, which copies pointers from the host.
        if isinstance(out, np.ndarray) and not self._repeats(arrays):
            np.concatenate(arrays, self.axis, out=out, casting="unsafe")  # all have one dtype; to ask takes 3 us
        else:
            super().fill(out, *arrays)

    def _repeats(self, arrays: Sequence[Any]) -> bool:
        """Whether they are one array, long enough to be written run by run, in the order of memory."""
        first = arrays[0]
        return len(set(map(id, arrays))) == 1 and prod(first.shape[self.axis :]) * first.itemsize >= LONG

    def copies(self, out: Array, *arrays: Array) -> Iterator[tuple[Any, Any]]:
        if self._repeats(arrays):
            yield _runs(out, self.axis, len(arrays)), arrays[0]
            return
        begin = 0
        for part in arrays:
            end = begin + part.shape[self.axis]
            yield out[(slice(None),) * self.axis + (slice(begin, end),)], part
            begin = end

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        # Views, each relative to the one before, so that the tree contains no sizes.
        (rest,) = output_gradients
        gradients = []
        for x in inputs:
            gradients.append(HeadLike.make(axis=self.axis)(rest, x))
            rest = TailLike.make(axis=self.axis)(rest, x)
        return gradients


class HeadLike(AxisOperator, MorphOperator):
    """The first elements of x along an axis, as many as `like` has."""

    name = "head_like"
    index_map = IndexMap(SELECTED, SHAPE)
    operands = ("x", "like")
    axis: int = 0
    examples = (
        (((5, 3), (2, 3)), {}),
        (((2, 4), (2, 1)), {"axis": -1}),
        (((4,), (0,)), {"axis": 0}),
        (((4,), (4,)), {"axis": 0}),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        x, like = shapes
        return (*x[: self.axis], self._sizes(x, like)[0], *x[self.axis + 1 :])

    def _sizes(self, x: Shape, like: Shape) -> tuple[int | None, int | None]:
        """The sizes of head and tail along the axis."""
        if len(like) != len(x):
            raise ShapeError("they have different numbers of dimensions")
        whole, front = x[self.axis], like[self.axis]
        if whole is None or front is None:
            return front, None
        if front > whole:
            raise ShapeError(f"along axis {self.axis}, {front} is more than the {whole} of the first")
        return front, whole - front

    @portable
    def numpy(self, x: Array, like: Array) -> Any:
        return x[(slice(None),) * self.axis + (slice(None, np.shape(like)[self.axis]),)]

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, like), (delta,) = inputs, output_gradients
        rest = TailLike.make(axis=self.axis)(x, like)
        return [f.concatenate([delta, f.fill_like(in_dtype(rest, delta.dtype), 0)], self.axis), None]


class TailLike(HeadLike):
    """The elements of x after those of `head_like`."""

    name = "tail_like"

    def output_shape(self, *shapes: Shape) -> Shape:
        x, like = shapes
        return (*x[: self.axis], self._sizes(x, like)[1], *x[self.axis + 1 :])

    @portable
    def numpy(self, x: Array, like: Array) -> Any:
        return x[(slice(None),) * self.axis + (slice(np.shape(like)[self.axis], None),)]

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, like), (delta,) = inputs, output_gradients
        front = HeadLike.make(axis=self.axis)(x, like)
        return [f.concatenate([f.fill_like(in_dtype(front, delta.dtype), 0), delta], self.axis), None]


def _runs(x: Any, axis: int, count: int) -> Any:
    """A view of an array with an axis divided into `count` parts; the first axis of the view counts them."""
    shape = (*x.shape[:axis], count, x.shape[axis] // count, *x.shape[axis + 1 :])
    return x.reshape(shape).transpose(axis, *range(axis), *range(axis + 1, len(shape)))


class Pad(CopyOperator, MorphOperator, AffineOperator):
    """x with a number around it: `pad_width` is (before, after) for each axis, one such pair, or one size.

    Another `mode` of `numpy.pad` is `pad_by`.

    Examples
    --------
    >>> be.pad(be.array([1.0, 2.0]), 1).get()
    array([0., 1., 2., 0.], dtype=float32)
    """

    name = "pad"
    __props__ = ("pad_width", "constant_values")
    index_map = IndexMap(AFFINE)
    pad_width: Any = 0
    constant_values: Any = 0
    examples = Examples(
        (
            (((2, 3),), {"pad_width": 1}),
            (((2, 3),), {"pad_width": ((0, 1), (2, 0)), "constant_values": 2}),
            (((3,),), {"pad_width": (2, 1), "constant_values": 1}),
            (((2, 3),), {"pad_width": ((0, 0), (0, 0))}),
            (((0, 2),), {"pad_width": ((1, 1), (0, 1))}),
            (((),), {"pad_width": 1}),
        ),
        random_props=lambda choose, x: {"pad_width": choose((0, 1, (1, 0)))},
    )

    @classmethod
    def function(  # type: ignore[override]
        cls, x: Operand, pad_width: Any = 0, constant_values: Any = 0, mode: str = "constant", **options: Any
    ) -> Any:
        if mode == "constant" and not np.ndim(constant_values) and not options and not isinstance(pad_width, dict):
            return super().function(x, pad_width, constant_values)
        if mode == "constant":
            options["constant_values"] = constant_values
        return f.pad_by(x, pad_width, mode, **options)

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        x = types[0]
        number = _number_of(self.constant_values, x.dtype)
        return self.make(pad_width=widths_of(self.pad_width, x.ndim), constant_values=number)

    def output_shape(self, *shapes: Shape) -> Shape:
        pairs = zip(shapes[0], self.pad_width, strict=True)
        return tuple(None if size is None else before + size + after for size, (before, after) in pairs)

    @property
    def outside(self) -> Any:
        return self.constant_values

    def along(self, *shapes: tuple[int, ...]) -> list[Along]:
        pairs = enumerate(zip(shapes[0], self.pad_width, strict=True))
        return [Along(axis, 1, -before, before, before + size) for axis, (size, (before, _)) in pairs]

    def copies(self, out: Array, *arrays: Array) -> Iterator[tuple[Any, Any]]:
        inner = out
        for axis, (before, after) in enumerate(
            self.pad_width
        ):  # each axis is padded inside the padding of earlier ones
            along = (slice(None),) * axis
            yield inner[(*along, slice(0, before))], self.constant_values
            yield inner[(*along, slice(inner.shape[axis] - after, None))], self.constant_values
            inner = inner[(*along, slice(before, inner.shape[axis] - after))]
        yield inner[...], arrays[0]

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        return f.pad(*inputs, ((0, 0), *self.pad_width), self.constant_values)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [f.slice(delta, tuple((before, -after or None, None) for before, after in self.pad_width))]


def widths_of(pad_width: object, ndim: int) -> tuple[tuple[int, int], ...]:
    """A NumPy pad width as (before, after) for each axis."""
    if ndim == 0:
        return ()
    try:
        array = np.asarray(pad_width)
        pairs = np.broadcast_to(array, (ndim, 2))
    except ValueError:
        raise ShapeError(f"pad: pad_width {pad_width!r} is no (before, after) for each of {ndim} axes") from None
    if array.dtype.kind not in "iu" or (array < 0).any():
        raise ShapeError(f"pad: pad_width is of integers of 0 or more, not {pad_width!r}")
    return tuple((int(before), int(after)) for before, after in pairs)


def _number_of(value: Array, dtype: np.dtype) -> Any:
    """A fill value as a Python number that the dtype represents."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "biufc":
        raise OperandError(f"pad: constant_values is one number, not {value!r}")
    number = array.item()
    if dtype.kind in "iu" and array.dtype.kind == "f":
        raise DTypeError(f"pad: {number} does not go into {dtype}")
    check_fits(number, dtype, "pad")
    return number


@numpy_function(np.repeat)
class Repeat(CopyOperator, MorphOperator, BlockOperator):
    """x with each element repeated along an axis; flattened first, if that is None.

    Its function takes a count for each element too: numbers, which the shape depends on.

    Examples
    --------
    >>> be.repeat(be.array([1.0, 2.0]), 2, axis=0).get()
    array([1., 1., 2., 2.], dtype=float32)
    """

    name = "repeat"
    raises = False
    __props__ = ("repeats", "axis")
    repeats: Any = 1
    axis: Any = None
    examples = Examples(
        (
            (((2, 3),), {"repeats": 2, "axis": 0}),
            (((2, 3),), {"repeats": 3, "axis": -1}),
            (((4,),), {"repeats": 1, "axis": 0}),
            (((2, 3),), {"repeats": 0, "axis": 1}),
            (((0, 3),), {"repeats": 2, "axis": 1}),
        ),
        random_props=lambda choose, x: {"repeats": choose((1, 2)), **one_axis(choose, x)},
    )

    @classmethod
    def function(cls, x: Operand, repeats: Any = 1, axis: Axis = None) -> Any:  # type: ignore[override]
        if isinstance(repeats, Variable):
            raise OperandError(
                f"repeat: the shape depends on {describe(repeats)}; give numbers, or with {repeats.label}.get() its own"
            )
        counts = np.asarray(repeats)
        if counts.size == 1:  # as in NumPy, also of one element
            return cls.make(repeats=counts.item(), axis=axis)(x)
        x = variable_of(x, "repeat")
        x, axis = (f.reshape(x, (-1,)), 0) if axis is None else (x, normalise_axis(axis, x.ndim, "repeat"))
        if (counts.dtype.kind not in "iub" and counts.size) or (counts < 0).any():
            raise OperandError(f"repeat: repeats are integers of 0 or more, not {brief(repeats)}")
        if x.shape[axis] is None or counts.shape != (x.shape[axis],):
            raise ShapeError(f"repeat: {counts.shape} repeats for axis {axis} of {describe(x)}")
        return f.take(x, np.repeat(np.arange(counts.size), counts.astype(np.int64)), axis)

    def __call__(self, *inputs: Operand) -> Any:
        if self.axis is None and len(inputs) == 1:
            return self.make(repeats=self.repeats, axis=0)(f.reshape(inputs[0], (-1,)))
        return super().__call__(*inputs)

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        repeats = integer_of(self.repeats, "repeat: repeats", 0)
        return self.make(repeats=repeats, axis=normalise_axis(self.axis, types[0].ndim, "repeat"))

    def output_shape(self, *shapes: Shape) -> Shape:
        shape, axis = shapes[0], self.axis
        size = shape[axis]
        return (*shape[:axis], None if size is None else size * self.repeats, *shape[axis + 1 :])

    def blocks(self, *shapes: tuple[int, ...]) -> Blocks | None:
        return blocks_along(shapes[0][: self.axis])

    def copies(self, out: Array, *arrays: Array) -> Iterator[tuple[Any, Any]]:
        (x,), after = arrays, self.axis + 1
        runs = out.reshape(*x.shape[:after], self.repeats, *x.shape[after:])
        before = (slice(None),) * after
        if self.repeats > FEW or prod(x.shape[after:]) * x.itemsize >= LONG:
            yield runs, x[(*before, None)]
            return
        for i in range(self.repeats):  # each a loop over many elements, where the other would have many short ones
            yield runs[(*before, i, ...)], x

    batch = by_axis

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        after = self.axis + 1
        runs = f.reshape_like(delta, f.repeat(f.expand_dims(x, after), self.repeats, after))
        return [f.reshape_like(f.sum(runs, axis=after), x)]  # in neon's mode sums keep their axes


# Composed functions


def is_one(operands: object) -> bool:
    """Whether the argument of a joining function is one array, whose first axis counts the operands, as in NumPy."""
    return isinstance(operands, Variable | np.ndarray) and variable_of(operands, "operands").ndim > 0


def _rows_joined(operands: object, axis: Axis, what: str) -> Any:
    """The parts of an array along its first axis, concatenated along another."""
    x = variable_of(operands, what)
    if axis is None:
        return f.reshape(x, (-1,))
    if x.ndim < 2:
        raise ShapeError(
            f"{what}: numbers without axes are not joined, and {describe(x)} is a sequence of them; stack is"
        )
    axis = normalise_axis(axis, x.ndim - 1, what)
    moved = f.moveaxis(x, 0, axis)
    pair, sizes = moved.shape[axis : axis + 2], list(moved.shape)
    sizes[axis : axis + 2] = [None if None in pair else pair[0] * pair[1]]  # type: ignore[operator]
    return f.reshape(moved, sizes_for_reshape(sizes, x, what))


def _listed(operands: object, what: str) -> list[Any]:
    """A non-empty list of operands."""
    if not isinstance(operands, list | tuple) or isinstance(operands, Variable):
        raise OperandError(f"{what}: operands come in a list or tuple, not {describe(operands)}")
    if not operands:
        raise OperandError(f"{what}: the list holds no operand")
    return [as_operand(x, what) for x in operands]


@function(numpy=np.stack)
def stack(operands: Sequence[Operand], axis: int = 0) -> Any:
    """Operands of one shape, joined along a new axis of the result.

    Examples
    --------
    >>> be.stack([be.ones(2), be.zeros(2)]).get()
    array([[1., 1.],
           [0., 0.]], dtype=float32)
    """
    if is_one(operands):
        x = variable_of(operands, "stack")
        return f.moveaxis(x, 0, normalise_axis(axis, x.ndim, "stack"))
    listed = _listed(operands, "stack")
    first = as_variable(listed[0])
    axis = normalise_axis(axis, first.ndim + 1, "stack")
    for x in map(as_variable, listed):
        if x.shape != first.shape:
            raise ShapeError(f"stack: {describe(x)} is not of the shape {first.shape} of {describe(first)}")
    return f.concatenate([f.expand_dims(x, axis) for x in listed], axis)


@function(numpy=np.vstack)
def vstack(operands: Sequence[Operand]) -> Any:
    """Operands stacked vertically, along the first axis; 1-D ones are rows.

    Examples
    --------
    >>> be.vstack([be.zeros(2), be.ones(2)]).get()
    array([[0., 0.],
           [1., 1.]], dtype=float32)
    """
    if is_one(operands):
        ndim = as_variable(operands).ndim - 1
        return f.expand_dims(operands, 1) if ndim < 1 else stack(operands) if ndim == 1 else f.concatenate(operands, 0)
    return f.concatenate([f.atleast_2d(x) for x in _listed(operands, "vstack")], 0)


@function(numpy=np.hstack)
def hstack(operands: Sequence[Operand]) -> Any:
    """Operands stacked horizontally, along the second axis; 1-D and 0-d ones along their only one.

    Examples
    --------
    >>> be.hstack([be.zeros(2), be.ones(2)]).get()
    array([0., 0., 1., 1.], dtype=float32)
    """
    if is_one(operands):
        ndim = as_variable(operands).ndim - 1
        return stack(operands) if ndim < 1 else f.concatenate(operands, 0 if ndim == 1 else 1)
    listed = [f.atleast_1d(x) for x in _listed(operands, "hstack")]
    return f.concatenate(listed, 0 if listed[0].ndim < 2 else 1)


@function(numpy=np.dstack)
def dstack(operands: Sequence[Operand]) -> Any:
    """Operands stacked in depth, along the third axis.

    Examples
    --------
    >>> be.dstack([be.zeros(2), be.ones(2)]).shape
    (1, 2, 2)
    """
    if is_one(operands):
        x = variable_of(operands, "dstack")
        if x.ndim < 3:
            return f.expand_dims(f.transpose(x), tuple(range(3 - x.ndim)))
        return f.moveaxis(x, 0, 2) if x.ndim == 3 else f.concatenate(x, 2)
    return f.concatenate([f.atleast_3d(x) for x in _listed(operands, "dstack")], 2)


@function(numpy=np.column_stack)
def column_stack(operands: Sequence[Operand]) -> Any:
    """Operands stacked horizontally, 1-D and 0-d ones as columns.

    Examples
    --------
    >>> be.column_stack([be.zeros(2), be.ones(2)]).get()
    array([[0., 1.],
           [0., 1.]], dtype=float32)
    """
    if is_one(operands):
        x = variable_of(operands, "column_stack")
        return f.expand_dims(x, 0) if x.ndim == 1 else f.transpose(x) if x.ndim == 2 else f.concatenate(x, 1)
    listed = _listed(operands, "column_stack")
    return f.concatenate([x if as_variable(x).ndim > 1 else f.transpose(f.atleast_2d(x)) for x in listed], 1)


@function(numpy=np.block)
def block(arrays: Sequence[Operand]) -> Any:
    """Nested lists of operands joined: the innermost along the last axis, those around them along the one before.

    Examples
    --------
    >>> be.block([[be.ones((1, 1)), be.zeros((1, 2))], [be.zeros((1, 3))]]).get()
    array([[1., 0., 0.],
           [0., 0., 0.]], dtype=float32)
    """
    depth, inner = 0, arrays
    while isinstance(inner, list):
        if not inner:
            raise OperandError("block: a list holds no operand")
        depth, inner = depth + 1, inner[0]
    blocks = _blocks(arrays, depth)
    ndim = max(depth, *(x.ndim for _, x in blocks))
    rows = [(place, with_leading_axes(x, ndim)) for place, x in blocks]
    for axis in range(ndim - 1, ndim - 1 - depth, -1):
        groups: dict[tuple[int, ...], list[Any]] = {}
        for place, x in rows:
            groups.setdefault(place[:-1], []).append(x)
        rows = [(place, f.concatenate(parts, axis)) for place, parts in groups.items()]
    return rows[0][1] if depth else f.copy(rows[0][1])


def _blocks(arrays: object, depth: int) -> list[tuple[tuple[int, ...], Variable]]:
    """The operands in lists of so many levels, in one dtype, each with its indices in the lists."""
    found: list[tuple[tuple[int, ...], Any]] = [((), arrays)]
    for _ in range(depth):
        if not all(isinstance(part, list) for _, part in found):
            raise OperandError("block: operands are in lists of one depth, and some here are in fewer")
        found = [((*place, i), part) for place, parts in found for i, part in enumerate(parts)]
    # A number is not weak here, as in NumPy.
    operands = [strong(x, "block") for _, x in found]
    dtype = promote(*(x.dtype for x in operands))
    return [(place, in_dtype(x, dtype)) for (place, _), x in zip(found, operands, strict=True)]


@function(numpy=np.append)
def append(x: Operand, values: Operand, axis: int | None = None) -> Any:
    """The operand with values appended along an axis; both flattened, if that is None.

    Examples
    --------
    >>> be.append(be.array([1.0, 2.0]), be.array([3.0])).get()
    array([1., 2., 3.], dtype=float32)
    """
    operands = [variable_of(operand, "append") for operand in (x, values)]
    dtype = promote(*(operand.dtype for operand in operands))  # a number is not weak here, as in NumPy
    # Cast first: the gradient would stop at an integer.
    return f.concatenate([in_dtype(operand, dtype) for operand in operands], axis)


@function(numpy=np.tile)
def tile(x: Any, reps: int | Sequence[int]) -> Any:
    """The operand tiled `reps` times along each axis; further axes are new leading ones.

    Examples
    --------
    >>> be.tile(be.array([1.0, 2.0]), 2).get()
    array([1., 2., 1., 2.], dtype=float32)
    """
    x = variable_of(x, "tile")
    counts = sizes_of(reps, "tile")
    if min(counts, default=0) < 0:
        raise ShapeError(f"tile: reps are 0 or more, not {counts}")
    x = with_leading_axes(x, len(counts))
    counts = (1,) * (x.ndim - len(counts)) + counts
    many = [i for i, count in enumerate(counts) if count != 1]
    if not many:
        return f.copy(x)
    products = [None if n is None else n * count for n, count in zip(x.shape, counts, strict=True)]
    sizes = sizes_for_reshape(products, x, "tile")
    if 0 in sizes and -1 in sizes:  # an empty reshape cannot infer the -1
        for i in many:
            x = f.concatenate([x] * counts[i], i) if counts[i] else slice_along(x, i, None, 0)
        return x
    if len(many) == 1 and 1 < counts[many[0]] <= FEW:
        return f.concatenate([x] * counts[many[0]], many[0])
    blocks = f.expand_dims(x, tuple(2 * i for i in range(x.ndim)))  # an axis of size 1 before each, to repeat
    for i in many:
        blocks = f.repeat(blocks, counts[i], 2 * i)
    return f.reshape(blocks, sizes)


@numpy_function(np.resize)
def _numpy_resize(a: Operand, new_shape: int | Sequence[int]) -> Any:
    """The elements repeated, or cut, to fill another shape."""
    x, shape = f.ravel(variable_of(a, "resize")), sizes_of(new_shape, "resize")
    (size,), wanted = x.shape, prod(shape)
    if size is None or (wanted and not size):
        raise ShapeError(f"resize: {describe(x)} has no elements, or an open number, to fill {shape} with")
    return f.reshape(slice_along(tile(x, -(-wanted // size) if size else 1), 0, 0, wanted), shape)


@function(numpy=np.roll)
def roll(x: Any, shift: int | Sequence[int], axis: Axis = None) -> Any:
    """The operand shifted cyclically along axes; flattened for it, if the axis is None.

    Examples
    --------
    >>> be.roll(be.array([1.0, 2.0, 3.0]), 1).get()
    array([3., 1., 2.], dtype=float32)
    """
    x = variable_of(x, "roll")
    if axis is None:
        return f.reshape_like(roll(f.reshape(x, (-1,)), shift, 0), x)
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    axes = [normalise_axis(each, x.ndim, "roll") for each in axes]
    given = shift if isinstance(shift, tuple | list) and not isinstance(shift, Variable) else (shift,)
    shifts = [integer_of(by, "roll: a shift") for by in given]
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    if len(shifts) != len(axes):
        raise ShapeError(f"roll: {len(shifts)} shifts are given for {len(axes)} axes")
    for i, by in zip(axes, shifts, strict=True):
        size = x.shape[i]
        if size is None:
            raise ShapeError(f"roll: the size of axis {i} of {describe(x)} is open; only a known one can be rolled")
        split = (size - by % size) if size else 0
        x = f.concatenate([slice_along(x, i, split, None), slice_along(x, i, None, split)], i)
    return x
