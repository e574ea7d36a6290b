"""Contractions: products of vectors, matrices and stacks of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import NARROW
from optree.errors import AxisError, ShapeError, describe
from optree.op.batching import aligned, example_rank
from optree.op.examples import Examples
from optree.op.index_map import OPAQUE, IndexMap, contracted, per_op
from optree.op.op import Op
from optree.op.traits import BinaryOperator, no_props
from optree.registry import NUMPY_FUNCTIONS, f, function, numpy_function
from optree.tree.types import NUMBERS, Shape, TensorType, broadcast, normalise_axis
from optree.tree.variable import Operand, Variable, is_neon, variable_of


def _times(x: Variable, y: Variable) -> Variable:
    return f.dot(x, y) if max(x.ndim, y.ndim) <= 2 else f.matmul(x, y)


def _contract(x: Variable, y: Variable, x_axes: Sequence[int], y_axes: Sequence[int]) -> Variable:
    return f.tensordot(x, y, (tuple(x_axes), tuple(y_axes)))


#: Subscripts for `einsum`.
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class ProductOperator(BinaryOperator):
    """A product of vectors, matrices or stacks of matrices, contracting x's last axis and y's last but one."""

    widened = NARROW
    raises = False
    numpy = np.matmul
    index_map = IndexMap(contracted(-1), contracted(-2))  # of a vector, its only axis

    def output_shape(self, *shapes: Shape) -> Shape:
        x, y = shapes
        if not x or not y:
            raise ShapeError(f"a number has no axis to contract; * multiplies by numbers, {self.name} does not")
        rows = y[-2] if len(y) > 1 else y[0]
        if None not in (x[-1], rows) and x[-1] != rows:
            raise ShapeError(_misfit(str(self.name), x, y))
        try:
            stack = broadcast(x[:-2], y[:-2])
        except ShapeError:
            raise ShapeError(f"the stacks {x[:-2]} and {y[:-2]} do not broadcast") from None
        return (*stack, *x[-2:-1], *(y[-1:] if len(y) > 1 else ()))

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        x, y = inputs
        ranks = [example_rank(*each) for each in zip(inputs, batched, strict=True)]
        if ranks[0] == 1 and not batched[1] and ranks[1] <= 2:  # one product of matrices
            return f.dot(x, y)
        if ranks[1] == 1 and not batched[0] and ranks[0] <= 2:
            return f.dot(y, x if ranks[0] == 1 else f.matrix_transpose(x))
        if ranks[0] == 2 and ranks[1] == 2 and not batched[1]:
            return _contract(x, y, (2,), (0,))
        rows, columns = (each and rank == 1 for each, rank in zip(batched, ranks, strict=True))
        x, y = f.expand_dims(x, -2) if rows else x, f.expand_dims(y, -1) if columns else y
        found = f.matmul(*aligned([x, y], batched))
        found = f.squeeze(found, -1) if columns else found
        return f.squeeze(found, -1 if columns or ranks[1] == 1 else -2) if rows else found

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        return [self.grad_left(x, y, delta), self.grad_right(x, y, delta)]

    def R_op(self, inputs: Sequence[Any], eval_points: Sequence[Any]) -> Sequence[Any]:
        (x, y), (along_x, along_y) = inputs, eval_points
        from_x = None if along_x is None else self(along_x, y)
        from_y = None if along_y is None else self(x, along_y)
        return [from_x if from_y is None else from_y if from_x is None else from_x + from_y]

    def flops(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
        """Two for each element of the value and index of the contracted axis."""
        return 2 * prod(outputs[0]) * inputs[0][-1]

    def grad_left(self, x: Variable, y: Variable, delta: Variable) -> Variable:
        """The delta of x; stack axes that x does not have are contracted too."""
        if y.ndim == 1:
            return (delta if x.ndim == 1 else f.expand_dims(delta, x.ndim - 1)) * y
        if x.ndim <= 2 < y.ndim:
            stack = range(y.ndim - 2)
            return _contract(delta, y, (*stack, delta.ndim - 1), (*stack, y.ndim - 1))
        return _times(y, delta) if x.ndim == 1 else _times(delta, f.matrix_transpose(y))

    def grad_right(self, x: Variable, y: Variable, delta: Variable) -> Variable:
        """The delta of y; stack axes that y does not have are contracted too."""
        if x.ndim == 1:
            if y.ndim == 1:
                return delta * x
            return f.expand_dims(x, 1) * f.expand_dims(delta, y.ndim - 2)
        if y.ndim <= 2 < x.ndim:
            return _contract(x, delta, range(x.ndim - 1), range(x.ndim - 1))
        return _times(f.matrix_transpose(x), delta)


def _misfit(name: str, x: Shape, y: Shape) -> str:
    """Why two shapes do not fit, and which product of the operands would."""
    columns, rows = "columns" if len(x) > 1 else "elements", "rows" if len(y) > 1 else "elements"
    reason = f"the {x[-1]} {columns} of the first meet the {y[-2:][0]} {rows} of the second"
    if len(x) == len(y) == 2:
        for fits, call in (
            (x[1] == y[1], f"{name}(x, y.T)"),
            (x[0] == y[0], f"{name}(x.T, y)"),
            (y[1] == x[0], f"{name}(y, x)"),
        ):
            if fits:
                return f"{reason}; {call} would fit"
    elif {len(x), len(y)} == {1, 2} and x[0] == y[-1]:
        return f"{reason}; {name}(y, x) would fit"
    return reason


class Dot(ProductOperator):
    """The product of two matrices, of a matrix and a vector, or of two vectors.

    For stacks of matrices there is `matmul`, and `tensordot` for what np.dot makes of more than two dimensions.

    Examples
    --------
    >>> be.dot(be.ones((2, 3)), np.array([1.0, 2.0, 3.0])).get()
    array([6., 6.])
    """

    name = "dot"
    examples = Examples(
        (
            (((3, 4), (4, 2)), {}),
            (((3, 4), (4,)), {}),
            (((3,), (3, 2)), {}),
            (((3,), (3,)), {}),
            (((1, 1), (1, 3)), {}),
            (((3, 1), (1, 2)), {}),
            (((2, 0), (0, 3)), {}),
        ),
        random_props=no_props,
    )

    def output_shape(self, *shapes: Shape) -> Shape:
        if max(map(len, shapes)) > 2:
            raise ShapeError("dot takes vectors and matrices; matmul multiplies stacks of matrices, tensordot any axes")
        return super().output_shape(*shapes)


@numpy_function(np.matmul)
class MatMul(ProductOperator):
    """The matrix product, of stacks broadcast together; a 1-D x is a row, a 1-D y a column.

    Examples
    --------
    >>> be.matmul(be.ones((4, 2, 3)), be.ones((3, 5))).shape
    (4, 2, 5)
    """

    name = "matmul"
    examples = Examples(
        (
            (((3, 4), (4, 2)), {}),
            (((2, 3, 4), (2, 4, 2)), {}),
            (((2, 3, 4), (4, 2)), {}),
            (((3, 4), (2, 4, 2)), {}),
            (((2, 1, 2, 3), (3, 3, 2)), {}),
            (((1, 2, 3), (2, 3, 1)), {}),
            (((2, 3, 4), (4,)), {}),
            (((4,), (2, 4, 3)), {}),
            (((3,), (3,)), {}),
            (((0, 2, 3), (3, 2)), {}),
        ),
        random_props=no_props,
    )


@function()
def batched_dot(x: Operand, y: Operand) -> Any:
    """The matrix products of two stacks of matrices along the first axis.

    Raises
    ------
    ShapeError
        If an operand is not 3-D, or they are not equally many: `matmul`
        broadcasts where this does not.

    Examples
    --------
    >>> be.batched_dot(be.ones((2, 3, 4)), be.ones((2, 4, 5))).shape
    (2, 3, 5)
    """
    left, right = (variable_of(a, "batched_dot") for a in (x, y))
    for operand in (left, right):
        if operand.ndim != 3:
            raise ShapeError(
                f"batched_dot: {describe(operand)} is {operand.ndim}-D; it takes stacks of matrices "
                "(batch, rows, columns), and matmul takes the rest"
            )
    sizes = left.shape[0], right.shape[0]
    if None not in sizes and sizes[0] != sizes[1]:
        raise ShapeError(
            f"batched_dot: {describe(left)} and {describe(right)} are {sizes[0]} and {sizes[1]} matrices; "
            "matmul broadcasts a stack of 1"
        )
    return f.matmul(left, right)


@numpy_function(np.tensordot)
class TensorDot(BinaryOperator):
    """The contraction of pairs of axes; the value has the remaining axes of x, then those of y.

    Attributes
    ----------
    axes : int or pair of tuple of int
        The axes of x and those of y that are contracted; a number n means the last n of x and
        the first n of y.

    Examples
    --------
    >>> be.tensordot(be.ones((2, 3, 4)), be.ones((4, 3)), axes=([1, 2], [1, 0])).get()
    array([12., 12.], dtype=float32)
    """

    name = "tensordot"
    takes_complex = True
    widened = NARROW
    raises = False
    __props__ = ("axes",)
    axes: Any = 2
    examples = (
        (((2, 3, 4), (3, 4, 2)), {}),
        (((3, 4), (4, 2)), {"axes": 1}),
        (((2, 3), (4,)), {"axes": 0}),
        (((2, 3, 4), (4, 5, 2)), {"axes": ((0, 2), (2, 0))}),
        (((2, 3, 4), (4, 3)), {"axes": ((-1, 1), (0, -1))}),
        (((2, 3), (2, 3)), {"axes": 2}),
    )

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        x, y = (t.ndim for t in types)
        given = self.axes
        if isinstance(given, int | np.integer):
            if not 0 <= given <= min(x, y):
                raise AxisError(f"tensordot: there are no {given} axes to pair of {x} and {y} dimensions")
            given = tuple(range(x - given, x)), tuple(range(given))
        try:
            left, right = (axes if isinstance(axes, tuple | list) else (axes,) for axes in given)
        except (TypeError, ValueError):
            raise AxisError(f"tensordot: axes is a number of axes or a pair of tuples, not {given!r}") from None
        pair = tuple(tuple(normalise_axis(a, n, "tensordot") for a in axes) for axes, n in ((left, x), (right, y)))
        if len(pair[0]) != len(pair[1]) or any(len(set(axes)) < len(axes) for axes in pair):
            raise AxisError(f"tensordot: axes {given!r} do not pair each axis with one other")
        ndim = x + y - 2 * len(pair[0])
        if is_neon(backend) and ndim < 2:
            raise ShapeError(
                f"axes {given!r} leave {ndim} dimensions, and in neon's mode there are two at least; "
                "be.dot(x, y) and be.sum(x * y) keep them"
            )
        return self.make(axes=pair)

    @per_op(OPAQUE, OPAQUE)
    def index_map(self) -> IndexMap:
        return IndexMap(*map(contracted, self.axes))

    def output_shape(self, *shapes: Shape) -> Shape:
        x, y = shapes
        for i, j in zip(*self.axes, strict=True):
            if None not in (x[i], y[j]) and x[i] != y[j]:
                raise ShapeError(f"axis {i} of the first, of size {x[i]}, meets axis {j} of the second, of size {y[j]}")
        left, right = self.axes
        return (*(n for i, n in enumerate(x) if i not in left), *(n for j, n in enumerate(y) if j not in right))

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        x, y = inputs
        left, right = self.axes
        if not batched[1]:
            return _contract(x, y, [i + 1 for i in left], right)
        if not batched[0]:
            return f.moveaxis(_contract(x, y, left, [i + 1 for i in right]), x.ndim - len(left), 0)
        if len(left) + x.ndim + y.ndim > 7 and None in (
            *x.shape[1:],
            *y.shape[1:],
        ):  # einsum merges axes by their sizes
            return self.batch_in_loop(inputs, batched)
        letters = iter(LETTERS)
        batch, *of_x = (next(letters) for _ in range(x.ndim))
        of_y = [of_x[left[right.index(j)]] if j in right else next(letters) for j in range(y.ndim - 1)]
        free = [of_x[i] for i in range(len(of_x)) if i not in left] + [
            of_y[j] for j in range(len(of_y)) if j not in right
        ]
        return f.einsum(f"{batch}{''.join(of_x)},{batch}{''.join(of_y)}->{batch}{''.join(free)}", x, y)

    @portable
    def numpy(self, x: Array, y: Array) -> Any:
        return as_array(np.tensordot(as_array(x, y), as_array(y, x), self.axes))

    def flops(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
        """Two for each element of the value and index of the contracted axes."""
        return 2 * prod(outputs[0]) * prod(inputs[0][i] for i in self.axes[0])

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, y), (delta,) = inputs, output_gradients
        left, right = self.axes
        x_free = [i for i in range(x.ndim) if i not in left]
        y_free = [i for i in range(y.ndim) if i not in right]
        from_y = _contract(delta, y, range(len(x_free), delta.ndim), y_free)
        from_x = _contract(x, delta, x_free, range(len(x_free)))
        # The contracted axes of x are in y's order.
        x_order = [*x_free, *(left[right.index(j)] for j in sorted(right))]
        y_order = [*(right[left.index(i)] for i in sorted(left)), *y_free]
        return [_in_order(from_y, x_order), _in_order(from_x, y_order)]


def _in_order(x: Variable, axes: Sequence[int]) -> Variable:
    """The operand with axis i moved to the position ``axes[i]``."""
    order = tuple(int(i) for i in np.argsort(axes))
    return x if order == tuple(range(x.ndim)) else f.transpose(x, order)


@function()
def outer(x: Operand, y: Operand) -> Any:
    """The outer product of x and y, both flattened.

    Examples
    --------
    >>> be.outer(np.array([1.0, 2.0]), be.array([3.0, 4.0])).get()
    array([[3., 4.],
           [6., 8.]])
    """
    column, row = (
        a if type(a) in NUMBERS else f.reshape(variable_of(a, "outer"), shape)
        for a, shape in ((x, (-1, 1)), (y, (1, -1)))
    )
    found = f.mul(column, row)
    return found if found.ndim == 2 else f.reshape(found, (1, 1))  # of two numbers


NUMPY_FUNCTIONS[np.dot] = lambda a, b: f.dot(a, b) if np.ndim(a) and np.ndim(b) else f.multiply(a, b)
NUMPY_FUNCTIONS[np.outer] = lambda a, b: f.outer(*(np.asarray(x) if type(x) in NUMBERS else x for x in (a, b)))
