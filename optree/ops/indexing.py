"""Gather ops: indexing by integer arrays, whose values are known when the tree runs.

Negative indices count from the end; an index out of range is an error before anything is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, is_any, is_array, portable, stored
from optree.errors import AxisError, DTypeError, OperandError, ShapeError, describe
from optree.op.batching import aligned, numbers_of
from optree.op.index_map import BROADCAST, LOOKED_UP, IndexMap
from optree.op.op import Op
from optree.op.traits import FirstDtypeOperator
from optree.ops.labels import first_outside
from optree.ops.shape import Slice, part, sizes_of, strong
from optree.records import NamedTuple
from optree.registry import NUMPY_FUNCTIONS, f, function, numpy_function
from optree.tree import indexing as indices
from optree.tree.types import Axis, DType, Shape, TensorType, as_dtype, broadcast, integer_of, normalise_axis, promote
from optree.tree.variable import Operand, Variable, as_operand, as_variable, in_dtype, is_neon, variable_of


def check_indices(types: Sequence[TensorType], what: str) -> None:
    """Raise DTypeError unless index arrays are of integers."""
    for type in types:
        if type.dtype.kind not in "iu":
            raise DTypeError(f"{what}: indices are integers, not {type}; x.astype('int64') makes them so")


def as_positions(array: Array) -> Any:
    """Index values as ``intp``."""
    array = as_array(array)
    if array.dtype == np.uint64 and is_any(array > np.iinfo(np.intp).max):
        raise AxisError(f"index {array.max()} is out of range for any axis")
    return array.astype(np.intp, copy=False)


class BatchedIndexing(NamedTuple):
    """An indexing op for a batch, its index arrays, and the axes of its value in the order of a batch of values."""

    op: Op
    arrays: list[Variable]
    order: tuple[int, ...] | None


def batched_template(
    template: indices.Template, x: Variable, arrays: Sequence[Variable], batched: Sequence[bool]
) -> tuple[indices.Template, list[Variable], tuple[int, ...] | None]:
    """A template for a batch of x, its index arrays, and the axes of its value in the order of a batch of values."""
    ranks = [a.ndim - each for a, each in zip(arrays, batched, strict=True)]
    if not any(batched) and (indices.are_adjacent(template) or not arrays):
        return (indices.EVERYTHING, *template), list(arrays), None
    ndim = max(ranks, default=0)
    numbers = numbers_of(x)
    rows = f.expand_dims(numbers, tuple(range(1, ndim + 1))) if ndim else numbers
    first = indices.axis_of_arrays(template)
    order = (0, *range(1 + ndim, 1 + ndim + first), *range(1, 1 + ndim))
    others = sum(not isinstance(entry, int | str) for entry in template) - first
    order += tuple(range(len(order), len(order) + others))
    in_order = order == tuple(range(len(order)))
    return (indices.ARRAY, *template), [rows, *aligned(arrays, batched)], None if in_order else order


class ArraysOperator(Op):
    """An op whose last operands are index arrays, which may be lists."""

    operands: ClassVar[tuple[str, ...] | None] = None
    __props__: ClassVar[tuple[str, ...] | None] = ()
    #: The number of operands before the index arrays.
    leading: ClassVar[int] = 1

    def __call__(self, *inputs: object) -> Any:
        arrays = (indices.as_array(x, str(self.name)) for x in inputs[self.leading :])
        return super().__call__(*inputs[: self.leading], *arrays)


class TemplateOperator(ArraysOperator):
    """An op on the elements of its first operand at a NumPy index.

    Its function takes a NumPy index. The op's own `index` is a template
    (`optree.tree.indexing`), with placeholders for the arrays, which are its last operands.
    """

    __props__: ClassVar[tuple[str, ...] | None] = ("index",)
    index: Any = (indices.ARRAY,)

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        x, arrays, what = types[0], types[self.leading :], str(self.name)
        check_indices(arrays, what)
        template = indices.as_template(self.index, x.shape, what)
        wanted = template.count(indices.ARRAY)
        if wanted != len(arrays):
            raise OperandError(f"{what}: the template {template} takes {wanted} index arrays, not {len(arrays)}")
        if is_neon(backend):
            template = indices.keep_axes(template)
            ndim = len(indices.shape_of(template, x.shape, [a.shape for a in arrays]))
            template += (None,) * (2 - ndim)
        return self.make(index=template)


class Indexing(FirstDtypeOperator, ArraysOperator):
    """Base of ops that gather elements of x by index arrays; `index_of` returns the NumPy index."""

    takes_complex = True

    def index_of(self, shape: tuple[int, ...], arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
        """The NumPy index, an entry for each axis of an operand of this shape."""
        raise NotImplementedError

    def in_rows(self, shape: tuple[int, ...], *arrays: Any) -> tuple[int, Any]:
        """The number of leading axes along which the index is the same, and the flat indices that it selects in a row.

        It raises AxisError if an index is out of range.
        """
        return 0, flat_positions(shape, self.index_of(shape, arrays), str(self.name))

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, *rest = (as_array(a, *arrays) for a in arrays)
        index = self.index_of(x.shape, [as_positions(a) for a in rest])
        picked = checked_pick(str(self.name), x, index, lambda: x[index])
        # 0-d index arrays give a view, which this op does not declare.
        return picked if any(a.ndim for a in rest) else picked.copy()

    def batched(self, x: Variable, arrays: Sequence[Variable], batched: Sequence[bool]) -> BatchedIndexing:
        """The indexing of a batch of x, each example of which has its own index arrays where these are batched."""
        raise NotImplementedError

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        x, *arrays = map(as_variable, inputs)
        if not batched[0]:
            return self.batch_of_arrays(x, arrays, batched[1:])
        op, given, order = self.batched(x, arrays, batched[1:])
        found = op(x, *given)
        return found if order is None else f.transpose(found, order)

    def batch_of_arrays(self, x: Variable, arrays: Sequence[Variable], batched: Sequence[bool]) -> Any:
        """The elements of one operand at a batch of index arrays."""
        raise NotImplementedError

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, *arrays), (delta,) = inputs, output_gradients
        return [f.index_add(delta, x, *arrays, indexing=self)] + [None] * len(arrays)


def checked_pick(what: str, x: Array, index: tuple[Any, ...], pick: Callable[[], Any]) -> Any:
    """The elements at an index; AxisError if a value in it is out of range."""
    if not isinstance(x, np.ndarray):  # CuPy does not
        check_bounds(what, x.shape, index)
    try:
        return pick()
    except IndexError as error:
        raise out_of_range(what, x.shape, index, error) from None


def check_bounds(what: str, shape: tuple[int, ...], index: tuple[Any, ...]) -> None:
    """Raise AxisError, which names the first value of a NumPy index that is out of range."""
    axis = 0
    for entry in index:
        if isinstance(entry, int) or is_array(entry):
            indices.check_range(entry, shape[axis], axis, what)
        axis += entry is not None


def out_of_range(what: str, shape: tuple[int, ...], index: tuple[Any, ...], error: IndexError) -> Exception:
    """The AxisError of `check_bounds`, or NumPy's own error if no value is out of range."""
    try:
        check_bounds(what, shape, index)
    except AxisError as found:
        return found
    return error


def flat_positions(shape: tuple[int, ...], index: tuple[Any, ...], what: str) -> np.ndarray:
    """The flat index of each element that a NumPy index selects in an array of this shape.

    It raises AxisError if a value in the index is out of range; `what` names the op.
    """
    if all(isinstance(entry, np.ndarray | np.generic) for entry in index):
        return _of_arrays(shape, index, what)
    whole = taken_whole(index)  # computed without indexing, which is faster
    outer, inner = shape[: len(shape) - whole], shape[len(shape) - whole :]
    step = width = math.prod(inner)
    total: Any = None
    array = next((entry for entry in index if hasattr(entry, "dtype")), np.intp(0))
    if not isinstance(array, np.ndarray | np.generic):
        check_bounds(what, shape, index)  # CuPy does not
    for axis in reversed(range(len(outer))):
        numbers = _arange(outer[axis], array)  # each operation is a kernel on a GPU
        steps = (numbers if step == 1 else numbers * step).reshape(-1, *(1,) * (len(outer) - axis - 1))
        try:
            part = np.broadcast_to(steps, outer)[index[: len(index) - whole]]
        except IndexError as error:
            raise out_of_range(what, shape, index, error) from None
        total = part if total is None else total + part
        step *= outer[axis]
    total = as_array(np.intp(0) if total is None else total)
    return (total[..., None] + _arange(width, array)).reshape((*total.shape, *inner)) if inner else total


def _of_arrays(shape: tuple[int, ...], index: tuple[Any, ...], what: str) -> Any:
    """`flat_positions` of an index of NumPy arrays alone, without an array of all flat indices to choose from."""
    check_bounds(what, shape, index)
    parts = []
    for axis, (entry, size) in enumerate(zip(index, shape, strict=True)):
        part = np.where(entry < 0, entry + size, entry) if is_any(entry < 0) else entry
        step = math.prod(shape[axis + 1 :])
        parts.append(part if step == 1 else part * step)
    return as_array(sum(parts[1:], parts[0]))


def taken_whole(index: tuple[Any, ...]) -> int:
    """The number of trailing axes that an index selects as ``:``."""
    parts = [isinstance(entry, slice) and entry == slice(None) for entry in reversed(index)]
    return (*parts, False).index(False)


def _arange(count: int, like: Any) -> Any:
    """The numbers below a count, in an array of another's library."""
    return np.arange(count) if isinstance(like, np.generic) else np.arange(count, like=like)


def parsed(x: Operand, index: object, what: str) -> tuple[Any, indices.Template, list[Any]]:
    """An operand, and the template and arrays of a NumPy-style index of it."""
    x = as_operand(x, what)
    return x, *indices.parse(index, as_variable(x).shape, what)


def pick(x: Operand, template: indices.Template, arrays: Sequence[Any]) -> Any:
    """The elements of x at a template and its arrays; a slice where there are no arrays."""
    return Gather.make(index=template)(x, *arrays) if arrays else Slice.make(index=template)(x)


class Gather(TemplateOperator, Indexing):
    """x at a NumPy index: the value of ``x[index]`` in NumPy.

    The function takes an integer, a slice, None, an ellipsis, an array or tensor of integers,
    a NumPy mask, or a tuple of them. The op's own `index` is a template
    (`optree.tree.indexing`), with placeholders for the arrays, its operands after x.

    Examples
    --------
    >>> x = be.array([[1, 2], [3, 4], [5, 6]])
    >>> be.gather(x, ([0, 2, 2], 1)).asnumpyarray()
    array([2., 6., 6.], dtype=float32)
    """

    name = "gather"
    examples = (
        (((5, 3), [2, 0, 2]), {}),
        (((5, 3), [[0, -1], [4, 4]]), {}),
        (((4, 3), [3, 0, 3], [1, 1, 1]), {"index": ("array", "array")}),
        (((2, 3, 4), [1, 0], [[3], [2]]), {"index": ("array", (None, None, -1), "array")}),
        (((2, 3, 4), [1, -1]), {"index": (0, (1, None, None), "array")}),
        (((4, 3), [0, 2]), {"index": (None, (None, None, 2), "array", None)}),
        (((4, 3), 2), {}),
    )

    @classmethod
    def function(cls, x: Operand, index: object) -> Any:  # type: ignore[override]
        return part(x, index, "gather")

    def output_shape(self, *shapes: Shape) -> Shape:
        x, *rest = shapes
        return indices.shape_of(self.index, x, rest)

    def index_of(self, shape: tuple[int, ...], arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
        return indices.to_numpy(self.index, arrays)

    def fill(self, out: Array, *arrays: Array) -> None:
        x, *rest = (as_array(a) for a in arrays)
        index = self.index_of(x.shape, [as_positions(a) for a in rest])
        check_bounds("gather", x.shape, index)
        others = [axis for axis, entry in enumerate(index) if not (isinstance(entry, slice) and entry == slice(None))]
        if len(others) == len(rest) == 1:
            x.take(index[others[0]], others[0], out=out, mode="wrap")  # in range: only negative ones are wrapped
        else:
            out[...] = x[index]

    def batched(self, x: Variable, arrays: Sequence[Variable], batched: Sequence[bool]) -> BatchedIndexing:
        template, given, order = batched_template(self.index, x, arrays, batched)
        return BatchedIndexing(self.make(index=template), given, order)

    def batch_of_arrays(self, x: Variable, arrays: Sequence[Variable], batched: Sequence[bool]) -> Any:
        found = self(x, *aligned(arrays, batched))
        return f.moveaxis(found, indices.axis_of_arrays(self.index), 0)


class Take(Indexing):
    """The elements of x at `indices` along an axis; of x flattened, if the axis is None.

    On a backend in neon's mode, a row or column of indices counts as 1-D.

    Parameters
    ----------
    x : operand
    indices : operand
        Integers from -size to size - 1 of the axis, of any shape, which takes the axis's place. Others raise an
        IndexError on the CPU, as NumPy's do.
    axis : int, optional
    flat : bool
        Whether the indices are of the flattened operand, the axis being None.

    Examples
    --------
    >>> table = be.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> be.take(table, [2, 0], axis=0).get()
    array([[5., 6.],
           [1., 2.]], dtype=float32)
    """

    name = "take"
    operands = ("x", "indices")
    __props__ = ("axis", "flat")
    axis: Any = None
    flat: bool = False
    examples: ClassVar[tuple[Any, ...]] = (
        (((5, 3), [2, 0, 2]), {"axis": 0}),
        (((5, 3), [[0, -1], [2, 2]]), {"axis": -1}),
        (((4,), 2), {"axis": 0}),
        (((2, 3, 2), [1]), {"axis": 1}),
    )

    def __call__(self, *inputs: Any) -> Any:
        if self.axis is None and len(inputs) == 2:
            return self.make(axis=0, flat=self.flat)(f.reshape(inputs[0], (-1,)), inputs[1])
        return super().__call__(*inputs)

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        x, rest = types
        check_indices([rest], "take")
        return self.make(
            axis=normalise_axis(self.axis, x.ndim, "take"),
            flat=bool(self.flat or (is_neon(backend) and is_list(rest.shape))),
        )

    def output_shape(self, *shapes: Shape) -> Shape:
        x, rest = shapes
        return (*x[: self.axis], *(flattened(rest) if self.flat else rest), *x[self.axis + 1 :])

    def index_of(self, shape: tuple[int, ...], arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
        (positions,) = arrays
        index: list[Any] = [slice(None)] * len(shape)
        index[self.axis] = positions.reshape(-1) if self.flat else positions
        return tuple(index)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, positions = as_array(*arrays), as_positions(as_array(*arrays[::-1]))
        index = self.index_of(x.shape, [positions])
        return checked_pick("take", x, index, lambda: x.take(index[self.axis], self.axis))

    def fill(self, out: Array, *arrays: Array) -> None:
        x, positions = arrays
        index = self.index_of(x.shape, [as_positions(positions)])[self.axis]
        indices.check_range(index, x.shape[self.axis], self.axis, str(self.name))
        x.take(index, self.axis, out=out, mode="wrap")  # in range: only negative ones are wrapped

    def batched(self, x: Variable, arrays: Sequence[Variable], batched: Sequence[bool]) -> BatchedIndexing:
        if not any(batched):
            return BatchedIndexing(self.make(axis=self.axis + 1, flat=self.flat), list(arrays), None)
        whole = [indices.EVERYTHING] * (x.ndim - 1)
        return Gather.make(index=(*whole[: self.axis], indices.ARRAY, *whole[self.axis + 1 :])).batched(
            x, arrays, batched
        )

    def batch_of_arrays(self, x: Variable, arrays: Sequence[Variable], batched: Sequence[bool]) -> Any:
        return f.moveaxis(self(x, *arrays), self.axis, 0)


class Lookup(Op):
    """The elements of a vector at indices; 0 where an index is not from 0 up, below its size.

    Unlike `take`, it never fails, so that kernels look elements up as they read others: at indices that they compute.

    Examples
    --------
    >>> be.lookup(be.array([5.0, 6.0, 7.0]), np.array([2, -1, 0, 3])).asnumpyarray()
    array([7., 0., 5., 0.], dtype=float32)
    """

    name = "lookup"
    __props__ = ()
    operands = ("x", "indices")
    raises = False
    index_map = IndexMap(LOOKED_UP, BROADCAST)
    batch = Op.batch_in_loop
    examples: ClassVar[tuple[Any, ...]] = (
        (((4,), [[2, 0], [-1, 3]]), {}),
        (((1,), [0, 1, -5]), {}),
        (((3,), 2), {}),
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        x, rest = shapes
        if len(x) != 1:
            raise ShapeError(f"elements of a vector are looked up, and this has {len(x)} axes; reshape(x, -1) is one")
        return rest

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        x, rest = map(promote, dtypes)
        if rest.kind not in "iu":
            raise DTypeError(f"lookup: indices are integers, not {rest}")
        return x, rest, x

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, rest = (as_array(a, *arrays) for a in arrays)
        if not x.shape[0]:
            return np.zeros(rest.shape, x.dtype, like=x)
        is_inside = (rest >= 0) & (rest < x.shape[0])
        return np.where(is_inside, x[np.where(is_inside, rest, 0)], x.dtype.type(0))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, rest), (delta,) = inputs, output_gradients
        like = in_dtype(x, delta.dtype)
        is_inside = f.ne(self(f.fill_like(like, 1), rest), 0)
        return [f.scatter_add(f.fill_like(like, 0), f.where(is_inside, rest, 0), f.where(is_inside, delta, 0)), None]

    def R_op(self, inputs: Sequence[Any], eval_points: Sequence[Any]) -> Sequence[Any]:
        return [None if eval_points[0] is None else self(eval_points[0], inputs[1])]


class Embedding(Take):
    """The rows of a table at `ids`, integers from 0 up; its gradient adds up the deltas of equal ids, in order.

    Unlike `take`, it refuses negative ids, as it does those beyond the table. On a backend in neon's mode, ids in one
    row or column count as a list of them.

    Examples
    --------
    >>> be.embedding(be.eye(3), np.array([2, 0])).get()
    array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """

    name = "embedding"
    operands = ("table", "ids")
    axis: Any = 0
    examples: ClassVar[tuple[Any, ...]] = (
        (((5, 3), [2, 0, 2]), {}),
        (((5, 3), [[0, 1], [4, 4]]), {}),
        (((4,), 2), {}),
        (((2, 3, 2), [1, 0, 1]), {}),
        (((3, 2), []), {}),
    )

    @classmethod
    def function(cls, table: Operand, ids: Operand) -> Any:  # type: ignore[override]
        return cls.make()(table, ids)

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        table, ids = types
        if not table.ndim:
            raise ShapeError("the table has no rows; it has a row for each id, as (ids, features)")
        if ids.dtype.kind not in "iu":
            raise DTypeError(f"embedding: ids are integers, not {ids}; ids.astype('int64') makes them so")
        return super().bind(types, backend)

    def index_of(self, shape: tuple[int, ...], arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
        (ids,) = arrays
        count = shape[self.axis]  # not the first of a batch of tables
        found = first_outside(ids, count)
        if found is not None:
            wrong, place = found
            raise AxisError(
                f"embedding: the id {wrong}{place} is outside the vocabulary: ids of a table of shape {shape} are 0 to "
                f"{count - 1}"
            )
        return super().index_of(shape, arrays)

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        # Of a table for each example, ids are checked in a loop.
        return self.batch_in_loop(inputs, batched) if all(batched) else super().batch(inputs, batched)


def is_list(shape: Shape) -> bool:
    """Whether neon takes a tensor of this shape for 1-D: it is a row or a column."""
    return len(shape) < 2 or (len(shape) == 2 and 1 in shape)


def flattened(shape: Shape) -> Shape:
    """The shape of all elements in one row."""
    return (None,) if None in shape else (math.prod(shape),)  # type: ignore[arg-type]


@numpy_function(np.take_along_axis)
class TakeAlongAxis(Indexing):
    """The elements of x at `indices` along an axis, as from ``np.argsort`` or ``np.argmax``.

    The other axes of x and of `indices` broadcast. If the axis is None, x is flattened and
    `indices` are 1-D.

    Examples
    --------
    >>> be.take_along_axis(be.array([[3.0, 1.0]]), np.array([[1, 0]]), axis=1).get()
    array([[1., 3.]], dtype=float32)
    """

    name = "take_along_axis"
    operands = ("x", "indices")
    __props__ = ("axis",)
    axis: Any = -1
    examples = (
        (((2, 3), [[2, 0, 2, 1], [0, 0, -1, 1]]), {"axis": 1}),
        (((3, 2), [[2, 0]]), {"axis": 0}),
        (((2, 3), [[1]]), {}),
        (((1, 3), [[1], [2]]), {"axis": -1}),
        (((4,), [3, 3, -1]), {"axis": 0}),
        (((3, 2, 4), [[[2, 0, -1], [0, 0, 3]]]), {}),
    )

    def __call__(self, *inputs: Any) -> Any:
        if self.axis is None and len(inputs) == 2:
            flat, rest = f.reshape(inputs[0], (-1,)), indices.as_array(inputs[1], "take_along_axis")
            # In neon's mode the flattened operand is a column, and so are the indices then.
            if flat.ndim == 2 and is_list(as_variable(rest).shape):
                rest = f.reshape(rest, (-1, 1))
            return self.make(axis=0)(flat, rest)
        return super().__call__(*inputs)

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        x, rest = types
        check_indices([rest], "take_along_axis")
        return self.make(axis=normalise_axis(self.axis, x.ndim, "take_along_axis"))

    def output_shape(self, *shapes: Shape) -> Shape:
        x, rest = shapes
        if len(x) != len(rest):
            raise ShapeError("they have different numbers of dimensions")
        others = [(*s[: self.axis], 1, *s[self.axis + 1 :]) for s in shapes]
        found = broadcast(*others)
        return (*found[: self.axis], rest[self.axis], *found[self.axis + 1 :])

    def index_of(self, shape: tuple[int, ...], arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
        (positions,) = arrays
        last = len(shape) - 1
        index = [np.arange(n, like=positions).reshape(-1, *(1,) * (last - i)) for i, n in enumerate(shape)]
        index[self.axis] = positions
        return tuple(index)

    def in_rows(self, shape: tuple[int, ...], *arrays: Any) -> tuple[int, Any]:
        (positions,) = arrays
        rows = next((i for i in range(self.axis) if positions.shape[i] != 1), self.axis)
        rest = self.make(axis=self.axis - rows)
        index = rest.index_of(shape[rows:], [positions.reshape(positions.shape[rows:])])
        return rows, flat_positions(shape[rows:], index, str(self.name))

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, positions = as_array(*arrays), as_positions(as_array(*arrays[::-1]))
        if not isinstance(x, np.ndarray):
            return super().numpy(*arrays)
        rows, flat = self.in_rows(x.shape, positions)
        found = _rows_of(x, rows).take(flat, 1)
        return found.reshape((*x.shape[:rows], *flat.shape))

    def fill(self, out: Array, *arrays: Array) -> None:
        x, positions = as_array(*arrays), as_positions(as_array(*arrays[::-1]))
        if isinstance(out, np.ndarray) and out.flags.c_contiguous:
            rows, flat = self.in_rows(x.shape, positions)
            target = out.reshape((math.prod(x.shape[:rows]), *flat.shape))
            _rows_of(x, rows).take(flat, 1, out=target, mode="clip")  # all are in range
        else:
            out[...] = self.value(*arrays)

    def batched(self, x: Variable, arrays: Sequence[Variable], batched: Sequence[bool]) -> BatchedIndexing:
        given = [a if each else f.expand_dims(a, 0) for a, each in zip(arrays, batched, strict=True)]
        return BatchedIndexing(self.make(axis=self.axis + 1), given, None)

    def batch_of_arrays(self, x: Variable, arrays: Sequence[Variable], batched: Sequence[bool]) -> Any:
        return self.make(axis=self.axis + 1)(f.expand_dims(x, 0), *arrays)


@numpy_function(np.take)
def _numpy_take(a: Operand, where: Operand, axis: Axis = None, mode: str = "raise") -> Any:
    """`take` with NumPy's parameters: indices out of range are refused, wrapped, or clipped."""
    if mode == "raise":
        return f.take(a, where, axis)
    if mode not in ("wrap", "clip"):
        raise OperandError(f"take: mode is 'raise', 'wrap' or 'clip', not {mode!r}")
    x, positions = variable_of(a, "take"), variable_of(indices.as_array(where, "take"), "take")
    check_indices([positions.type], "take")
    sizes = x.shape if axis is None else (x.shape[normalise_axis(axis, x.ndim, "take")],)
    if None in sizes:
        raise ShapeError(f"take: the size of {describe(x)} must be known to {mode} indices")
    size, positions = math.prod(sizes), in_dtype(positions, np.dtype("int64"))
    within = f.mod(positions, size) if mode == "wrap" else f.minimum(f.maximum(positions, 0), size - 1)
    return f.take(x, within, axis)


@function(names=("one_hot",))
def onehot(indices: Operand, n: Any = None, axis: int = -1, dtype: DType = None, out: Any = None) -> Any:
    """One-hot encoding of `indices`, 0 to n - 1, along a new axis of size `n`.

    A negative index is an error, not a class counted from the end. The new axis is the axis `axis` of the result. By
    default the function's `dtype` is that of new tensors on the backend. With `out`, its size and dtype are taken, and
    the value is written there at once. On a backend in neon's mode, a row or column of indices counts as 1-D.

    Examples
    --------
    >>> be.onehot(np.array([0, 2]), 3).get()
    array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    x = variable_of(indices, "onehot")
    check_indices([x.type], "onehot")
    if out is not None:
        n = out.shape[normalise_axis(axis, out.ndim, "onehot")] if n is None else n
        dtype = dtype or out.dtype
    n = integer_of(n, "onehot: n, the number of classes,", 0)
    is_flat = is_neon(x.backend) and is_list(x.shape)
    axis = normalise_axis(axis, 2 if is_flat else x.ndim + 1, "onehot")
    dtype = as_dtype(dtype or (np.float32 if x.backend is None else x.backend.datatype))
    # Compared in 32 bits where they suffice, which is twice as quick.
    narrow = np.dtype("int32" if n < 2**31 else "int64")
    known = in_dtype(f.check_labels(x, classes=n, what="onehot: the index"), narrow)
    known = f.reshape(known, (-1, 1) if axis else (1, -1)) if is_flat else f.expand_dims(known, axis)
    classes = np.arange(n, dtype=narrow).reshape([-1 if i == axis else 1 for i in range(known.ndim)])
    return stored(f.cast(f.eq(known, classes), dtype), out)


def _rows_of(x: Any, rows: int) -> Any:
    """An array as a matrix, with its first axes as one."""
    return x.reshape(math.prod(x.shape[:rows]), math.prod(x.shape[rows:]))


# NumPy's functions of indices


@numpy_function(np.unravel_index)
def _unravel_index(indices: Operand, shape: int | Sequence[int], order: str = "C") -> tuple[Any, ...]:
    """The indices along each axis of flat ones; negative ones count from the end."""
    flat, sizes = variable_of(indices, "unravel_index"), sizes_of(shape, "unravel_index")
    check_indices([flat.type], "unravel_index")
    flat, found = in_dtype(flat, np.dtype("int64")), []
    for size in sizes[:0:-1] if order == "C" else sizes[:-1]:
        found.append(f.mod(flat, size))
        flat = f.floor_divide(flat, size)
    found.append(_in_range(flat, sizes[0 if order == "C" else -1]) if sizes else flat)
    return tuple(found[::-1] if order == "C" else found)


@numpy_function(np.ravel_multi_index)
def _ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: str = "C") -> Any:
    """The flat indices of those along each axis; out of range, they are refused, wrapped or clipped."""
    sizes = sizes_of(dims, "ravel_multi_index")
    given = f.unstack(multi_index) if isinstance(multi_index, Variable) else multi_index
    modes = mode if isinstance(mode, tuple) else (mode,) * len(sizes)
    if not len(given) == len(sizes) == len(modes) or not set(modes) <= {"raise", "wrap", "clip"}:
        raise OperandError(f"ravel_multi_index: {len(given)} indices for the sizes {sizes}, with mode={mode!r}")
    found: Any = 0
    parts = list(zip(given, sizes, modes, strict=True))
    for index, size, how in parts if order == "C" else parts[::-1]:
        x = strong(index, "ravel_multi_index")
        check_indices([x.type], "ravel_multi_index")
        x = in_dtype(x, np.dtype("int64"))
        within = f.mod(x, size) if how == "wrap" else f.clip(x, 0, size - 1) if how == "clip" else _in_range(x, size)
        found = found * size + within
    return found


def _in_range(x: Operand, size: int) -> Any:
    """Indices along an axis, from 0 on; AxisError when it runs if one is out of range."""
    return f.take(np.arange(size), x)


@numpy_function(np.ix_)
def _ix(args: Any) -> Any:
    """Vectors of indices as an open mesh, one for each axis."""
    found = list(np.ix_(*(np.arange(1) if isinstance(x, Variable) else x for x in args)))
    for i, x in enumerate(args):
        if isinstance(x, Variable):
            if x.dtype.kind == "b":
                return NotImplemented  # how many elements a mask selects is known only when it has run
            if x.ndim != 1:
                raise ShapeError(f"ix_: a vector is wanted, not {describe(x)}")
            found[i] = f.expand_dims(x, tuple(j for j in range(len(args)) if j != i)) if len(args) > 1 else f.copy(x)
    return tuple(found)


def _indices_from(numpy: Any) -> Any:
    """Known indices of a matrix by its shape, as NumPy's arrays."""

    def ours(arr: Operand, k: int = 0) -> Any:
        shape = as_variable(arr).shape
        if None in shape or len(shape) != 2:
            raise ShapeError(
                f"{numpy.__name__}_from: a matrix of known size is wanted, not {describe(as_variable(arr))}"
            )
        return numpy(shape[0], k, shape[1])

    return ours


NUMPY_FUNCTIONS[np.tril_indices_from] = _indices_from(np.tril_indices)
NUMPY_FUNCTIONS[np.triu_indices_from] = _indices_from(np.triu_indices)


@numpy_function(np.diag_indices_from)
def _diag_indices_from(arr: Operand) -> Any:
    shape = as_variable(arr).shape
    if None in shape or len(shape) < 2 or len(set(shape)) > 1:
        raise ShapeError(f"diag_indices_from: equal axes, two at least, are wanted, not {describe(as_variable(arr))}")
    return np.diag_indices(shape[0], len(shape))


def rows_and_columns(x: Variable) -> tuple[Variable, Variable]:
    """The row and column index of each element of matrices, in shapes that broadcast to theirs."""
    lead = (slice(0, 1),) * (x.ndim - 2)
    row, column = f.slice(x, (*lead, slice(0, 1))), f.slice(x, (*lead, slice(None), slice(0, 1)))
    if None in x.shape:  # the size of a slice of an unknown size is unknown, not 1
        others = tuple(range(x.ndim - 2))
        row, column = (f.any(x, axis=(*others, axis), keepdims=True) for axis in (x.ndim - 2, x.ndim - 1))
    return f.flat_indices(column), f.flat_indices(row)
