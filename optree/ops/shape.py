"""Shape ops: transpose, reshape, broadcast, slice, flip."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.errors import AxisError, OperandError, ShapeError, brief, describe
from optree.locks import cached_property
from optree.op.batching import aligned, by_axis, example_of, of_batch_shape, shifted, spread_all
from optree.op.examples import Examples
from optree.op.index_map import AFFINE, FLIPPED, LIKE, REPEATED, RESHAPED, SELECTED, IndexMap, per_op, permuted
from optree.op.op import Op
from optree.op.traits import AffineOperator, Along, Choose, CopyOperator, MorphOperator, any_axes, no_props
from optree.registry import NUMPY_FUNCTIONS, OPS, f, function, numpy_function
from optree.tree import indexing as indices
from optree.tree.types import Shape, TensorType, array_of, normalise_axes, normalise_axis
from optree.tree.variable import Operand, Variable, as_operand, as_variable, is_neon, spec_of, variable_of


def sizes_of(shape: object, what: str) -> tuple[int, ...]:
    """A user's shape as a tuple of Python integers; ShapeError if it is none."""
    sizes = shape if isinstance(shape, tuple | list) and not isinstance(shape, Variable) else (shape,)
    try:
        if any(isinstance(n, bool) for n in sizes):
            raise TypeError
        return tuple(map(operator.index, sizes))
    except TypeError:
        remedy = "; -1 is a size that only a call tells" if any(n is None for n in sizes) else ""
        raise ShapeError(f"{what}: a shape is of integers, not {brief(shape)}{remedy}") from None


def broadcasts_to(shape: Shape, wanted: Shape) -> bool:
    """Whether a shape broadcasts to another, as far as the sizes are known."""
    lead = len(wanted) - len(shape)
    return lead >= 0 and all(n in (1, m) or None in (n, m) for n, m in zip(shape, wanted[lead:], strict=True))


def sizes_for_reshape(sizes: Sequence[int | None], x: Variable, what: str) -> tuple[int, ...]:
    """A shape for `reshape`: -1 for an unknown size, of which there is one at most."""
    if sum(n is None for n in sizes) > 1:
        raise ShapeError(f"{what}: of {describe(x)} more than one size is open; a function's input may name the others")
    return tuple(-1 if n is None else n for n in sizes)


def strong(value: object, what: str) -> Variable:
    """A value as a variable whose dtype is not weak: a number or a list is an array, as NumPy's functions have it."""
    return variable_of(value if isinstance(value, Variable) else array_of(value, what), what)


def with_leading_axes(x: Operand, ndim: int) -> Any:
    """An operand with axes of size 1 in front, where it has fewer than `ndim`."""
    missing = ndim - as_variable(x).ndim
    return f.expand_dims(x, tuple(range(missing))) if missing > 0 else x


def slice_along(x: Variable, axis: int, start: int | None, stop: int | None) -> Any:
    """The slice ``start:stop`` along one axis."""
    return f.slice(x, (*(slice(None),) * axis, slice(start, stop)))


def _transpose_props(choose: Choose, x: Variable) -> dict[str, Any]:
    rest, order = list(range(x.ndim)), []
    while rest:
        order.append(rest.pop(choose(range(len(rest)))))
    return {"axes": tuple(order)}


@numpy_function(np.transpose)
class Transpose(MorphOperator):
    """x with its axes in the order `axes`, or reversed.

    Examples
    --------
    >>> be.transpose(be.ones((2, 3, 4)), (1, 0, 2)).shape
    (3, 2, 4)
    """

    name = "transpose"
    __props__ = ("axes",)
    axes: Any = None
    examples = Examples(
        (
            (((3, 4),), {}),
            (((2, 3, 4),), {"axes": (1, 2, 0)}),
            (((2, 3, 4),), {"axes": (-1, 0, 1)}),
            (((5,),), {}),
            (((),), {}),
            (((0, 3),), {}),
        ),
        random_props=_transpose_props,
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        ndim = types[0].ndim
        if self.axes is None:
            return self.make(axes=tuple(reversed(range(ndim))))
        given = self.axes if isinstance(self.axes, tuple | list) else (self.axes,)
        axes = tuple(normalise_axis(axis, ndim, "transpose") for axis in given)
        if sorted(axes) != list(range(ndim)):
            raise AxisError(f"transpose: {tuple(given)} is no order of the {ndim} axes of shape {types[0].shape}")
        return self.make(axes=axes)

    @per_op(permuted(()))
    def index_map(self) -> IndexMap:
        return IndexMap(permuted(self.axes))

    @portable
    def numpy(self, x: Array) -> Any:
        return as_array(x).transpose(self.axes)

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        return f.transpose(inputs[0], (0, *shifted(self.axes)))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [f.transpose(delta, tuple(self.axes.index(axis) for axis in range(len(self.axes))))]


class ReshapeOperator(MorphOperator):
    """A view with its first operand's elements in the same order, in another shape."""

    index_map = IndexMap(RESHAPED)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        x, *shapes = inputs
        return [f.reshape_like(output_gradients[0], x), *[None] * len(shapes)]


class Reshape(ReshapeOperator):
    """x in another shape of equal size, in C order; one size may be -1.

    Examples
    --------
    >>> be.reshape(be.array([1.0, 2.0, 3.0, 4.0]), (2, -1)).get()
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """

    # The bound op still has -1, so that one plan serves every batch size.

    name = "reshape"
    __props__ = ("newshape",)
    newshape: Any = (-1,)
    examples = Examples(
        (
            (((2, 6),), {"newshape": (3, 4)}),
            (((2, 6),), {"newshape": (-1, 3)}),
            (((4,),), {"newshape": (2, 1, -1)}),
            (((1, 1),), {"newshape": ()}),
            (((0, 3),), {"newshape": (3, 0, 2)}),
            (((0, 3),), {"newshape": (-1, 3)}),
        ),
        random_props=lambda choose, x: {
            "newshape": choose([(-1,), x.shape[::-1], (1, -1), (-1, 1), (x.size,), *[()] * (x.size == 1)])
        },
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        wanted = sizes_of(self.newshape, "reshape")
        if is_neon(backend) and len(wanted) < 2:
            wanted = (*wanted, 1, 1)[:2]
        return self.make(newshape=wanted)

    def output_shape(self, *shapes: Shape) -> Shape:
        (shape,), wanted = shapes, self.newshape
        if wanted.count(-1) > 1 or min(wanted, default=0) < -1:
            raise ShapeError(f"the new shape {wanted} has sizes of 0 or more, and -1 at most once")
        known = math.prod(n for n in wanted if n != -1)
        if None in shape:
            return tuple(None if n == -1 else n for n in wanted)
        size = math.prod(shape)  # type: ignore[arg-type]
        if -1 not in wanted and known != size:
            raise ShapeError(f"{size} elements do not fill the new shape {wanted}, which has {known}")
        if -1 in wanted and (known == 0 or size % known):
            raise ShapeError(f"{size} elements do not fill the new shape {wanted} for any size in place of -1")
        return tuple(size // known if n == -1 else n for n in wanted)

    @portable
    def numpy(self, x: Array) -> Any:
        return as_array(x).reshape(self.newshape)

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        (x,) = inputs
        sizes = self.output_shape(tuple(x.shape[1:]))
        count = x.shape[0] if 0 in (x.shape[0], *sizes) else -1
        if None in (count, *sizes):
            return f.reshape_like(x, of_batch_shape(x, self(example_of(x))))
        return f.reshape(x, (count, *sizes))


class ReshapeLike(ReshapeOperator):
    """x in the shape of `like`, whose values are not used."""

    name = "reshape_like"
    index_map = IndexMap(RESHAPED, LIKE)
    operands = ("x", "like")
    examples = Examples(
        (
            (((2, 6), (3, 4)), {}),
            (((6,), (2, 3)), {}),
            (((1, 1), ()), {}),
            (((0, 3), (2, 0)), {}),
        ),
        random_props=no_props,
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        shape, like = shapes
        if None not in (*shape, *like) and math.prod(shape) != math.prod(like):  # type: ignore[arg-type]
            raise ShapeError(f"{math.prod(shape)} elements do not fill {like}")  # type: ignore[arg-type]
        return like

    @portable
    def numpy(self, x: Array, like: Array) -> Any:
        return np.reshape(x, np.shape(like))


class BroadcastTo(MorphOperator):
    """x broadcast to `shape`.

    Examples
    --------
    >>> be.broadcast_to(be.array([1.0, 2.0]), (2, 2)).get()
    array([[1., 2.],
           [1., 2.]], dtype=float32)
    """

    name = "broadcast_to"
    __props__ = ("shape",)
    shape: Any = ()
    index_map = IndexMap(REPEATED)
    numpy = np.broadcast_to
    examples = Examples(
        (
            (((3, 1),), {"shape": (3, 4)}),
            (((4,),), {"shape": (2, 3, 4)}),
            (((),), {"shape": (2,)}),
            (((2, 3),), {"shape": (2, 3)}),
            (((1, 3),), {"shape": (0, 3)}),
        ),
        random_props=lambda choose, x: {"shape": (choose((1, 2)), *x.shape)},
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        return self.make(shape=sizes_of(self.shape, "broadcast_to"))

    def output_shape(self, *shapes: Shape) -> Shape:
        (shape,), wanted = shapes, self.shape
        if min(wanted, default=0) < 0 or not broadcasts_to(shape, wanted):
            raise ShapeError(f"it does not broadcast to {wanted}")
        return wanted

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        (x,) = aligned(inputs, batched, len(self.shape))
        return f.broadcast_like(x, of_batch_shape(x, f.broadcast_to(example_of(inputs[0]), self.shape)))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return list(output_gradients)


@numpy_function(np.expand_dims)
class ExpandDims(ReshapeOperator):
    """x with new axes of size 1 at the positions `axis` of the result.

    Examples
    --------
    >>> be.expand_dims(be.ones(3), 1).shape
    (3, 1)
    """

    name = "expand_dims"
    __props__ = ("axis",)
    axis: Any = 0
    examples = Examples(
        (
            (((3, 4),), {"axis": 0}),
            (((3, 4),), {"axis": -1}),
            (((3, 4),), {"axis": (0, 2)}),
            (((),), {"axis": 0}),
            (((0,),), {"axis": 1}),
        ),
        random_props=lambda choose, x: {"axis": choose(range(-x.ndim - 1, x.ndim + 1))},
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        count = len(self.axis) if isinstance(self.axis, tuple | list) else 1
        axis = self.axis if isinstance(self.axis, tuple | list) else (self.axis,)
        return self.make(axis=normalise_axes(axis, types[0].ndim + count, "expand_dims"))

    def output_shape(self, *shapes: Shape) -> Shape:
        sizes = iter(shapes[0])
        ndim = len(shapes[0]) + len(self.axis)
        return tuple(1 if i in self.axis else next(sizes) for i in range(ndim))

    @cached_property
    def numpy_index(self) -> tuple[Any, ...]:
        """The index that gives the value; NumPy's function takes ten times as long."""
        return (*(None if i in self.axis else slice(None) for i in range(max(self.axis, default=-1) + 1)), Ellipsis)

    @portable
    def numpy(self, x: Array) -> Any:
        return as_array(x)[self.numpy_index]

    batch = by_axis


@numpy_function(np.squeeze)
class Squeeze(ReshapeOperator):
    """x without the axes `axis`, which have size 1; without all such axes if that is None.

    On a backend in neon's mode the result has two dimensions at least.

    Examples
    --------
    >>> be.squeeze(be.ones((1, 3))).shape
    (3,)
    """

    name = "squeeze"
    __props__ = ("axis",)
    axis: Any = None
    examples = Examples(
        (
            (((1, 3, 1),), {}),
            (((1, 3, 1),), {"axis": 0}),
            (((1, 3, 1),), {"axis": (-1, 0)}),
            (((1,),), {}),
            (((2, 3),), {}),
            (((0, 1),), {}),
        ),
        random_props=lambda choose, x: {"axis": choose([None, *(i for i, n in enumerate(x.shape) if n == 1)])},
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        shape = types[0].shape
        if self.axis is None:
            axes = tuple(i for i, size in enumerate(shape) if size == 1)
        else:
            axes = normalise_axes(self.axis, len(shape), "squeeze")
        return self.make(axis=axes[: max(len(shape) - 2, 0)] if is_neon(backend) else axes)

    def output_shape(self, *shapes: Shape) -> Shape:
        (shape,) = shapes
        wrong = [i for i in self.axis if shape[i] not in (1, None)]
        if wrong:
            raise ShapeError(f"axis {wrong[0]} has size {shape[wrong[0]]}; only an axis of size 1 can be squeezed")
        return tuple(size for i, size in enumerate(shape) if i not in self.axis)

    @portable
    def numpy(self, x: Array) -> Any:
        return as_array(x).squeeze(self.axis)

    batch = by_axis


def _slice_props(choose: Choose, x: Variable) -> dict[str, Any]:
    slices = ((None, None, None), (1, None, None), (None, None, -1), (None, None, 2), (-1, None, -2))
    return {"index": tuple(choose((*slices, None, 0, -1)) for _ in range(x.ndim))}


class Slice(MorphOperator):
    """x at a NumPy index of integers, slices, None and an ellipsis: ``slice(x, np.s_[1:3, None, ::-1])``.

    With index arrays in `index`, the function gathers (`gather`).

    Examples
    --------
    >>> be.slice(be.array([[1.0, 2.0], [3.0, 4.0]]), (slice(None), 1)).get()
    array([2., 4.], dtype=float32)
    """

    name = "slice"
    __props__ = ("index",)
    index: Any = ()
    examples = Examples(
        (
            (((5, 4),), {"index": ((1, 3, None), (None, None, -1))}),
            (((5, 4),), {"index": (2,)}),
            (((5, 4),), {"index": ((None, None, 2), -1)}),
            (((5, 4),), {"index": (None, Ellipsis, (3, 0, -2))}),
            (((5,),), {"index": (0,)}),
            (((5,),), {"index": ((2, 2, None),)}),
            (((),), {"index": (None,)}),
            (((0, 3),), {"index": (Ellipsis, 1)}),
        ),
        random_props=_slice_props,
    )

    @classmethod
    def function(cls, x: Operand, index: object = ()) -> Any:  # type: ignore[override]
        return part(x, _as_slices(index), "slice")

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        template = indices.as_template(self.index, types[0].shape, "slice")
        return self.make(index=indices.keep_two_axes(template) if is_neon(backend) else template)

    @per_op(SELECTED)
    def index_map(self) -> IndexMap:
        only_adds_axes = all(entry is None or entry == indices.EVERYTHING for entry in self.index)
        return IndexMap(RESHAPED if only_adds_axes else SELECTED)

    @cached_property
    def numpy_index(self) -> tuple[Any, ...]:
        """The index for NumPy, with an ellipsis, so that a 0-d result is a view too."""
        return (*indices.to_numpy(self.index), Ellipsis)

    def output_shape(self, *shapes: Shape) -> Shape:
        return indices.shape_of(self.index, shapes[0])

    @portable
    def numpy(self, x: Array) -> Any:
        return as_array(x)[self.numpy_index]

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        return self.make(index=(indices.EVERYTHING, *self.index))(*inputs)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [Unslice.make(index=self.index)(delta, x)]


def part(x: Operand, index: object, what: str) -> Any:
    """The elements at a NumPy-style index: a slice, or gathered where there are arrays in it."""
    x = as_operand(x, what)
    spec = spec_of(x)
    known = indices.known_slice(spec, index)
    if known is not None:
        return known.op(x)
    template, arrays = indices.parse(index, as_variable(x).shape, what)
    if arrays:
        return OPS["gather"].make(index=template)(x, *arrays)
    tree = Slice.make(index=template)(x)
    indices.remember_slice(spec, index, tree[0])
    return tree


def _as_slices(index: object) -> Any:
    """A template or NumPy index as a NumPy index."""
    if not isinstance(index, tuple) or isinstance(index, Variable):  # a tree is a tuple
        return index
    return tuple(slice(*e) if isinstance(e, tuple) and _is_template_slice(e) else e for e in index)


def _is_template_slice(entry: tuple[Any, ...]) -> bool:
    # Ops pass templates; a tuple of three integers is taken for a slice, not an index array.
    return len(entry) == 3 and all(part is None or isinstance(part, int) for part in entry)


def aligned_value(value: Variable, ndim: int) -> Variable:
    """A batch of values with `ndim` axes each, those of the elements that they are assigned to."""
    extra = value.ndim - 1 - ndim
    if extra > 0:  # NumPy drops leading axes of size 1 in assignments
        return f.squeeze(value, tuple(range(1, 1 + extra)))
    return aligned([value], [True], ndim)[0]


class Unslice(CopyOperator, MorphOperator, AffineOperator):
    """Zeros of the shape of `like`, with x at a slice: the derivative of `slice`."""

    name = "unslice"
    operands = ("x", "like")
    __props__ = ("index",)
    index: Any = ()
    examples = (
        (((2, 4), (5, 4)), {"index": ((1, 3, None), (None, None, -1))}),
        (((4,), (5, 4)), {"index": (2,)}),
        (((1, 4), (5, 4)), {"index": ((None, None, 2),)}),
        (((), (5,)), {"index": (0,)}),
        (((0,), (5,)), {"index": ((2, 2, None),)}),
    )

    index_map = IndexMap(AFFINE, LIKE)

    def along(self, *shapes: tuple[int, ...]) -> list[Along]:
        x, like = shapes
        axis = len(x) - len(indices.shape_of(self.index, like))  # x broadcasts to the shape of the slice
        sizes, found = iter(like), list[Along]()
        for entry in self.index:
            if isinstance(entry, tuple):
                at = range(*slice(*entry).indices(next(sizes)))
                low, high = (min(at[0], at[-1]), max(at[0], at[-1]) + 1) if at else (0, 0)
                sign = 1 if at.step > 0 else -1
                has = axis >= 0 and x[axis] > 1
                found.append(Along(axis if has else None, sign, -sign * at.start, low, high, abs(at.step)))
            elif entry is not None:
                at = entry % next(sizes)
                found.append(Along(None, 0, 0, at, at + 1))
            axis += not isinstance(entry, int)
        return found

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        template = indices.as_template(self.index, types[1].shape, "unslice")
        return self.make(index=indices.keep_two_axes(template) if is_neon(backend) else template)

    def output_shape(self, *shapes: Shape) -> Shape:
        x, like = shapes
        selected = indices.shape_of(self.index, like)
        if not broadcasts_to(x, selected):
            raise ShapeError(f"{x} does not broadcast to the selected shape {selected}")
        return like

    def copies(self, out: Array, *arrays: Array) -> Iterator[tuple[Any, Any]]:
        yield out, 0
        yield out[(*indices.to_numpy(self.index), Ellipsis)], arrays[0]

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        x, like = spread_all(inputs, batched)
        x = aligned_value(x, len(indices.shape_of(self.index, tuple(like.shape[1:]))))
        return self.make(index=(indices.EVERYTHING, *self.index))(x, like)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [Slice.make(index=self.index)(delta), None]


@numpy_function(np.flip)
class Flip(MorphOperator):
    """x in reverse order along one or several axes, or along all of them.

    Examples
    --------
    >>> be.flip(be.array([1.0, 2.0])).get()
    array([2., 1.], dtype=float32)
    """

    name = "flip"
    __props__ = ("axis",)
    axis: Any = None
    index_map = IndexMap(FLIPPED)
    examples = Examples(
        (
            (((3, 4),), {}),
            (((3, 4),), {"axis": -1}),
            (((2, 3, 2),), {"axis": (0, -1)}),
            (((),), {}),
            (((0, 2),), {"axis": 0}),
        ),
        random_props=any_axes,
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        return self.make(axis=normalise_axes(self.axis, types[0].ndim, "flip"))

    batch = by_axis

    @portable
    def numpy(self, x: Any) -> Any:
        x = as_array(x)
        index = (slice(None, None, -1 if axis in self.axis else 1) for axis in range(x.ndim))
        return x[(*index, Ellipsis)]  # with an ellipsis, so that a 0-d value is a view too: NumPy's is a number

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [f.flip(delta, self.axis)]


# Composed functions, and NumPy's functions whose parameters have other names


@function(numpy=np.matrix_transpose)
def matrix_transpose(x: Operand) -> Any:
    """The operand with its last two axes exchanged.

    Examples
    --------
    >>> be.matrix_transpose(be.ones((5, 2, 3))).shape
    (5, 3, 2)
    """
    return swapaxes(x, -1, -2)


@function(numpy=np.swapaxes)
def swapaxes(x: Operand, axis1: int, axis2: int) -> Any:
    """The operand with two axes exchanged.

    Examples
    --------
    >>> be.swapaxes(be.ones((5, 2, 3)), 0, 2).shape
    (3, 2, 5)
    """
    ndim = as_variable(x).ndim
    order = list(range(ndim))
    i, j = normalise_axis(axis1, ndim, "swapaxes"), normalise_axis(axis2, ndim, "swapaxes")
    order[i], order[j] = j, i
    return f.transpose(x, tuple(order))


@function(numpy=np.moveaxis)
def moveaxis(x: Operand, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """The operand with the axes `source` moved to the positions `destination`, the others in their order.

    Examples
    --------
    >>> be.moveaxis(be.ones((5, 2, 3)), 0, -1).shape
    (2, 3, 5)
    """
    ndim = as_variable(x).ndim
    sources, targets = (
        [normalise_axis(axis, ndim, "moveaxis") for axis in (axes if isinstance(axes, tuple | list) else (axes,))]
        for axes in (source, destination)
    )
    if len(sources) != len(targets) or len(set(sources)) < len(sources) or len(set(targets)) < len(targets):
        raise AxisError(f"moveaxis: {source} to {destination} does not move each axis to a position of its own")
    order = [axis for axis in range(ndim) if axis not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return f.transpose(x, tuple(order))


@function(numpy=np.rollaxis)
def rollaxis(x: Operand, axis: int, start: int = 0) -> Any:
    """The operand with an axis moved back, in front of the axis `start`.

    Examples
    --------
    >>> be.rollaxis(be.ones((5, 2, 3)), 2).shape
    (3, 5, 2)
    """
    ndim = as_variable(x).ndim
    axis, start = normalise_axis(axis, ndim, "rollaxis"), normalise_axis(start, ndim + 1, "rollaxis")
    return moveaxis(x, axis, start - 1 if axis < start else start)


@function(numpy=np.ravel)
def ravel(x: Operand, order: str = "C") -> Any:
    """The operand flattened to 1-D, in C order, or with ``order="F"`` in Fortran's.

    Examples
    --------
    >>> be.ravel(be.array([[1.0, 2.0], [3.0, 4.0]])).get()
    array([1., 2., 3., 4.], dtype=float32)
    """
    return _in_order(x, (-1,), order, "ravel")


def _in_order(x: Operand, shape: int | Sequence[int], order: str, what: str) -> Any:
    """The operand in another shape, its elements read and written in C or Fortran order."""
    if order not in ("C", "F"):
        raise OperandError(f"{what}: order is 'C' or 'F', not {order!r}; trees have no strides")
    if order == "C":
        return f.reshape(x, shape)
    return f.transpose(f.reshape(f.transpose(x), sizes_of(shape, what)[::-1]))


def _at_least(count: int, what: str, operands: Sequence[Any]) -> Any:
    """The operands with axes of size 1, NumPy's, where they have fewer than `count`; alone, or several as a tuple."""
    found = []
    for x in operands:
        x = variable_of(x, what)
        if x.ndim < count:
            first = [*range(min(count, 2) - x.ndim)]
            x = f.expand_dims(x, (*first, *range(max(x.ndim, 2), count)))
        found.append(x)
    return found[0] if len(found) == 1 else tuple(found)


@function()
def atleast_1d(*operands: Operand) -> Any:
    """The operand with an axis at least; of several, a tuple.

    Examples
    --------
    >>> be.atleast_1d(be.array(2.0)).shape
    (1,)
    """
    return _at_least(1, "atleast_1d", operands)


@function()
def atleast_2d(*operands: Operand) -> Any:
    """The operand with two axes at least, those missing in front; of several, a tuple.

    Examples
    --------
    >>> be.atleast_2d(be.ones(3)).shape
    (1, 3)
    """
    return _at_least(2, "atleast_2d", operands)


@function()
def atleast_3d(*operands: Operand) -> Any:
    """The operand with three axes at least, as NumPy's: a vector is the second axis; of several, a tuple.

    Examples
    --------
    >>> be.atleast_3d(be.ones((2, 3))).shape
    (2, 3, 1)
    """
    return _at_least(3, "atleast_3d", operands)


NUMPY_FUNCTIONS[np.shape] = lambda a: a.shape
NUMPY_FUNCTIONS[np.ndim] = lambda a: a.ndim
NUMPY_FUNCTIONS[np.size] = lambda a, axis=None: math.prod(a.shape[i] for i in normalise_axes(axis, a.ndim, "size"))
NUMPY_FUNCTIONS[np.reshape] = lambda x, shape, order="C": _in_order(x, shape, order, "reshape")
NUMPY_FUNCTIONS[np.atleast_1d] = lambda arys: atleast_1d(*arys)
NUMPY_FUNCTIONS[np.atleast_2d] = lambda arys: atleast_2d(*arys)
NUMPY_FUNCTIONS[np.atleast_3d] = lambda arys: atleast_3d(*arys)
NUMPY_FUNCTIONS[np.result_type] = lambda args: np.result_type(
    *(x.dtype if isinstance(x, Variable) else x for x in args)
)
NUMPY_FUNCTIONS[np.iscomplexobj] = lambda x: x.dtype.kind == "c"
NUMPY_FUNCTIONS[np.isrealobj] = lambda x: x.dtype.kind != "c"
