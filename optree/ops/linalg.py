"""Linear algebra: systems of equations, inverses, determinants, least squares, ranks and norms.

The last two axes are matrices; axes before them are stacks, and broadcast. NumPy calls LAPACK; on a GPU CuPy calls
cuSOLVER and cuBLAS. Integers become float64; float16 and bfloat16 are computed in float32 and rounded. NumPy's
LinAlgError is raised when the tree runs.

The derivatives are those of M. B. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008), unless another source is named. They are trees of the same ops, and differentiable. The
transposes in them are not conjugated where an op is complex differentiable (`optree.autodiff.reverse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import finfo, rounded, wide_dtype
from optree.errors import OperandError, ShapeError, describe
from optree.op.batching import aligned, example_rank
from optree.op.traits import BinaryOperator
from optree.ops.factorisation import (
    Factorisation,
    LapackFunction,
    LapackOperator,
    MatrixOperator,
    check_matrices,
    conjugate_transposed,
    iterated,
    on_diagonal,
    transposed,
    wide,
)
from optree.ops.reduction import squares
from optree.ops.shape import broadcasts_to, sizes_for_reshape, strong, with_leading_axes
from optree.records import NamedTuple
from optree.registry import NUMPY_FUNCTIONS, f, function, numpy_function
from optree.tree.gradient_types import is_disconnected
from optree.tree.types import Axis, Shape, broadcast, integer_of, normalise_axis, promote
from optree.tree.variable import Operand, Variable, conjugated, in_dtype, variable_of


class SlogdetResult(NamedTuple):
    """The sign of a determinant, and the logarithm of its absolute value."""

    sign: Any
    logabsdet: Any


@numpy_function(np.linalg.solve)
class Solve(LapackFunction, BinaryOperator):
    """Solve a @ x = b for square matrices a; b is a vector if it is 1-D, and else matrices of columns.

    Examples
    --------
    >>> be.solve(be.array([[2.0, 0.0], [0.0, 4.0]]), np.array([2.0, 4.0])).get()
    array([1., 1.])
    """

    name = "solve"
    operands = ("a", "b")
    work = 2 / 3

    def output_shape(self, *shapes: Shape) -> Shape:
        a, b = shapes
        check_matrices(a, square=True)
        if not b:
            raise ShapeError("the right side is a vector or matrices of columns, not a number")
        rows = b[-2:][0]
        if None not in (a[-1], rows) and a[-1] != rows:
            kind = "elements" if len(b) == 1 else "rows"
            raise ShapeError(f"the {a[-1]} equations of the first have a right side of {rows} {kind}")
        if len(b) == 1:
            return (*a[:-2], a[-1])
        try:
            return (*broadcast(a[:-2], b[:-2]), a[-1], b[-1])
        except ShapeError:
            raise ShapeError(f"the stacks {a[:-2]} and {b[:-2]} do not broadcast") from None

    def compute(self, a: Array, b: Array) -> Any:
        columns = b[:, None] if b.ndim == 1 else b
        stack: Any = broadcast(a.shape[:-2], columns.shape[:-2])
        # CuPy needs equal stacks, and no empty ones.
        a, columns = (np.broadcast_to(x, (*stack, *x.shape[-2:])) for x in (a, columns))
        found = np.linalg.solve(a, columns) if columns.size else columns.copy()
        return found[..., 0] if b.ndim == 1 else found

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        a, b = inputs
        if example_rank(b, batched[1]) > 1:
            return self(*aligned(inputs, batched))
        columns = f.expand_dims(b, -1)
        a, columns = aligned([a, columns], batched)
        return f.squeeze(self(a, columns), -1)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (a, b), (delta,) = inputs, output_gradients
        x = self(a, b)
        if b.ndim == 1:
            x, delta = f.expand_dims(x, -1), f.expand_dims(delta, -1)
        sent = self(transposed(a), delta)
        return [f.negative(f.matmul(sent, transposed(x))), f.squeeze(sent, -1) if b.ndim == 1 else sent]


@numpy_function(np.linalg.inv)
class Inverse(MatrixOperator):
    """The inverses of square matrices; for a product with one, `solve` is more accurate.

    Examples
    --------
    >>> be.inv(be.array([[2.0, 0.0], [0.0, 4.0]])).get()
    array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """

    name = "inv"

    def compute(self, x: Array) -> Any:
        return np.linalg.inv(x) if x.size else x.copy()

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        turned = transposed(self(x))
        return [f.negative(f.matmul(f.matmul(turned, delta), turned))]


@numpy_function(np.linalg.det)
class Determinant(MatrixOperator):
    """The determinants of square matrices, which may overflow where `slogdet` does not.

    The derivative is the matrix of cofactors, which singular matrices have too.

    Examples
    --------
    >>> be.det(be.array([[2.0, 0.0], [0.0, 4.0]])).item()
    8.0
    """

    name = "det"
    work = 2 / 3

    def output_shape(self, *shapes: Shape) -> Shape:
        return super().output_shape(*shapes)[:-2]

    def compute(self, x: Array) -> Any:
        return np.linalg.det(x)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [_columns(delta) * Cofactors.make()(x)]


class Cofactors(MatrixOperator):
    """The matrices of cofactors: det(x) * inv(x).T, but also for singular matrices.

    With x = u s v it is det(u) det(v) u p v, u and v conjugated; p are the products of all singular values but one.

    Examples
    --------
    >>> be.cofactors(be.array([[1.0, 2.0], [3.0, 4.0]])).get().round(3)
    array([[ 4., -3.],
           [-2.,  1.]], dtype=float32)
    """

    name = "cofactors"
    work = 22.0

    def compute(self, x: Array) -> Any:
        if not x.size or x.shape[-1] == 1:
            return np.ones_like(x)
        u, s, v, sign = _signed_svd(x)
        found = sign * np.matmul(u.conj() * _products_of_others(s)[..., None, :], v.conj())
        return found.astype(x.dtype, copy=False)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        return [CofactorsAlong.make()(x, delta)]


class CofactorsAlong(LapackFunction, BinaryOperator):
    """The derivative of `cofactors` at x along a direction, for singular matrices too; without a name, for trees here.

    Its derivative by x is that of an expression with inv(x), which singular matrices do not have.
    """

    operands = ("x", "direction")
    work = 22.0

    def output_shape(self, *shapes: Shape) -> Shape:
        return broadcast(*shapes)

    def compute(self, x: Array, direction: Array) -> Any:
        x, direction = np.broadcast_arrays(x, direction)
        if not x.size or x.shape[-1] == 1:
            return np.zeros_like(x)
        u, s, v, sign = _signed_svd(x)
        u, v = u.conj(), v.conj()
        turned = np.matmul(np.matmul(np.swapaxes(u, -2, -1), direction), np.swapaxes(v, -2, -1))
        # For each pair of singular values, the product of all others: those of a row without the row's own value.
        row = np.arange(s.shape[-1], like=s)
        is_own = row[:, None] == row
        others = np.where(is_own, 0, _products_of_others(np.where(is_own, 1, s[..., None, :])))
        trace = np.matmul(others, np.diagonal(turned, axis1=-2, axis2=-1)[..., None])
        inner = np.where(is_own, trace, -np.swapaxes(turned, -2, -1) * others)
        return sign * np.matmul(np.matmul(u, inner), v)

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        return self(*aligned(inputs, batched))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, direction), (delta,) = inputs, output_gradients
        turned = transposed(f.inv(x))
        first, second = (f.matmul(f.matmul(turned, transposed(y)), turned) for y in (direction, delta))
        one, other = (f.sum(y * turned, axis=(-2, -1), keepdims=True) for y in (direction, delta))
        both = one * other - f.sum(delta * first, axis=(-2, -1), keepdims=True)
        crossed = f.matmul(f.matmul(first, transposed(delta)), turned)
        crossed = crossed + f.matmul(f.matmul(second, transposed(direction)), turned)
        by_x = _columns(f.det(x)) * (turned * both - first * other - second * one + crossed)
        return [by_x, self(x, delta)]


def _signed_svd(x: Array) -> tuple[Any, Any, Any, Any]:
    """The singular value decomposition of square matrices, nan for those that are not finite, and det(u) * det(v)."""
    finite = np.isfinite(x).all(axis=(-2, -1))[..., None, None]
    u, s, v = np.linalg.svd(np.where(finite, x, 0))
    sign = (np.linalg.det(u) * np.linalg.det(v))[..., None, None]
    return u, s, v, np.where(finite, sign, np.nan)


def _products_of_others(x: Array) -> Any:
    """For each element along the last axis, the product of all others, without division."""
    ones = np.ones_like(x[..., :1])
    before = np.cumprod(np.concatenate([ones, x[..., :-1]], axis=-1), axis=-1)
    after = np.cumprod(np.concatenate([ones, x[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
    return before * after


@numpy_function(np.linalg.slogdet)
class LogDeterminant(Factorisation):
    """The signs of the determinants of square matrices, and the logarithms of their absolute values.

    The sign of a complex number is the number divided by its absolute value.
    They are 0 and -inf for singular matrices, without a derivative.

    Examples
    --------
    >>> sign, logarithm = be.slogdet(be.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> sign.item(), logarithm.item()
    (-1.0, 0.0)
    """

    name = "slogdet"
    result = SlogdetResult
    real_values = (1,)
    work = 2 / 3

    def factor_shapes(self, stack: Shape, m: int | None, n: int | None) -> list[Shape]:
        return [stack, stack]

    def compute(self, x: Array) -> Sequence[Any]:
        return tuple(np.linalg.slogdet(x))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (of_sign, delta) = inputs, output_gradients
        if x.dtype.kind == "c" and not is_disconnected(of_sign):
            turned = f.imag(of_sign * self(x)[0])
            delta = turned * 1j if is_disconnected(delta) else f.complex(delta, turned)
        if is_disconnected(delta):  # only the sign of real numbers, which is constant
            return [f.fill_like(x, 0.0)]
        return [_columns(delta) * transposed(f.inv(x))]


@numpy_function(np.linalg.pinv)
class PseudoInverse(MatrixOperator):
    """The pseudo-inverses of matrices; singular values up to `rtol` times the largest count as 0.

    The derivative is that at constant rank, without division by differences of singular values (G. H. Golub
    and V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems
    whose variables separate", 1973).

    Attributes
    ----------
    rtol : float or None
        None for the larger of the sizes times the dtype's epsilon.

    Examples
    --------
    >>> be.pinv(be.array([[2.0, 0.0], [0.0, 0.0]])).get()
    array([[0.5, 0. ],
           [0. , 0. ]], dtype=float32)
    """

    name = "pinv"
    __props__: ClassVar[tuple[str, ...] | None] = ("rtol",)
    rtol: Any = None
    square = False
    work = 24.0

    @classmethod
    def function(cls, x: Operand, rcond: object = None, rtol: object = None) -> Any:  # type: ignore[override]
        if rcond is not None and rtol is not None:
            raise OperandError("pinv: rcond and rtol are two names of one parameter; give one of them")
        given = rcond if rtol is None else rtol
        if isinstance(given, Variable | np.ndarray):
            return PseudoInverseByTolerances.make()(x, given)
        return cls.make(rtol=_tolerance("pinv: rtol", given))(x)

    def output_shape(self, *shapes: Shape) -> Shape:
        *stack, m, n = super().output_shape(*shapes)
        return (*stack, n, m)

    def compute(self, x: Array) -> Any:
        if not x.size:
            return np.swapaxes(x, -2, -1).conj()
        return self._within(x, max(x.shape[-2:]) * np.finfo(x.dtype).eps if self.rtol is None else self.rtol)

    def _within(self, x: Array, rtol: Array) -> Any:
        """The value for a tolerance, or for an array of them with an axis of size 1 at the end."""
        u, s, v = np.linalg.svd(iterated(x), full_matrices=False)
        counts = s > rtol * s[..., :1]
        inverse = np.where(counts, 1 / np.where(counts, s, 1), 0).astype(s.dtype, copy=False)
        return np.matmul(np.swapaxes(v, -2, -1).conj(), inverse[..., None] * np.swapaxes(u, -2, -1).conj())

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x, *tolerances), (delta,) = inputs, output_gradients
        x, found = conjugated(x), conjugated(self(*inputs))
        turned, of = conjugate_transposed(found), conjugate_transposed(delta)
        first = f.matmul(f.matmul(turned, delta), turned)
        outside = f.matmul(_less_from_identity(f.matmul(x, found)), f.matmul(of, f.matmul(found, turned)))
        within = f.matmul(f.matmul(f.matmul(turned, found), of), _less_from_identity(f.matmul(found, x)))
        return [outside + within - first] + [None] * len(tolerances)


class PseudoInverseByTolerances(PseudoInverse):
    """The pseudo-inverses of matrices, with a tolerance for each: `rtol` broadcasts to the stack of matrices.

    Examples
    --------
    >>> be.pinv_by_tolerances(be.array([[2.0, 0.0], [0.0, 0.1]]), be.array(0.5)).get()
    array([[0.5, 0. ],
           [0. , 0. ]], dtype=float32)
    """

    name = "pinv_by_tolerances"
    operands = ("x", "rtol")
    __props__: ClassVar[tuple[str, ...] | None] = ()

    @classmethod
    def function(cls, x: Operand, rtol: object) -> Any:  # type: ignore[override]
        return cls.make()(x, rtol)

    def output_shape(self, *shapes: Shape) -> Shape:
        x, rtol = shapes
        found = super().output_shape(x)
        if not broadcasts_to(rtol, x[:-2]):
            raise ShapeError(f"tolerances of shape {rtol} are not one for each matrix of a stack of {x[:-2]}")
        return found

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        x, rtol = dtypes
        return (*super().resolve_dtypes(x)[:1], promote(rtol), super().resolve_dtypes(x)[-1])

    @portable
    def numpy(self, *arrays: Array) -> Any:
        x, rtol = (as_array(a, *arrays) for a in arrays)
        dtype = self.resolve_dtypes(x.dtype, rtol.dtype)[-1]
        given = wide(x, dtype)
        return rounded(as_array(self._within(given, rtol[..., None]) if x.size else self.compute(given), x), dtype)

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        return self.batch_in_loop(inputs, batched) if batched[1] else self(*inputs)


def _columns(x: Variable) -> Variable:
    """Numbers, one for each matrix of a stack, with axes to broadcast over the matrices."""
    return f.expand_dims(f.expand_dims(x, -1), -1)


def _less_from_identity(x: Variable) -> Variable:
    """The identity minus square matrices."""
    return in_dtype(on_diagonal(x), x.dtype) - x


def _square(x: Operand, what: str) -> Variable:
    """An operand of square matrices; ShapeError if it is none."""
    x = variable_of(x, what)
    try:
        check_matrices(x.shape, square=True)
    except ShapeError as error:
        raise ShapeError(f"{what}: {describe(x)}: {error}") from None
    return x


def _tolerance(what: str, given: object) -> float | None:
    if given is None or isinstance(given, int | float | np.generic):
        return None if given is None else float(given)
    raise OperandError(f"{what} is a number, not {describe(given)}")


# Composed functions


@function(numpy=np.linalg.lstsq)
def lstsq(a: Operand, b: Operand, rcond: float | None = None) -> tuple[Any, Any, Any, Any]:
    """Least squares: the shortest x that minimises the norm of b - a @ x, the residuals, rank and singular values.

    b is a vector if it is 1-D, and else matrices of columns. There are residuals for rank-deficient
    matrices too, where NumPy's are empty: a tree's shape does not depend on values. The rank is an
    int64, as that of `matrix_rank`; NumPy's is an integer of its LAPACK's size.

    Parameters
    ----------
    a, b : operand
    rcond : float, optional
        Singular values up to this part of the largest count as 0; by default
        the larger of a's sizes times the dtype's epsilon, if negative the epsilon.

    Examples
    --------
    >>> x, residuals, rank, values = be.lstsq(be.array([[1.0], [1.0]]), be.array([1.0, 3.0]))
    >>> x.get().round(3), rank.item()
    (array([2.], dtype=float32), 1)
    """
    a, b = (variable_of(x, "lstsq") for x in (a, b))
    try:
        check_matrices(a.shape, square=False)
        if b.ndim == 0 or (None not in (a.shape[-2], b.shape[-2:][0]) and a.shape[-2] != b.shape[-2:][0]):
            raise ShapeError(f"the {a.shape[-2]} rows of the first have a right side of shape {b.shape}")
    except ShapeError as error:
        raise ShapeError(f"lstsq: {describe(a)} and {describe(b)}: {error}") from None
    dtype = LapackOperator.resolve_dtypes(PseudoInverse.make(), a.dtype, b.dtype)[-1]
    a, b = in_dtype(a, dtype), in_dtype(b, dtype)
    rtol = _tolerance("lstsq: rcond", rcond)
    if rtol is not None and rtol < 0:
        rtol = float(finfo(wide_dtype(dtype)).eps)
    columns = f.expand_dims(b, -1) if b.ndim == 1 else b
    x = f.matmul(f.pinv(a, rtol), columns)
    residuals = f.sum(squares(columns - f.matmul(a, x)), axis=-2, keepdims=False)
    m, n = a.shape[-2:]
    if None not in (m, n) and m <= n:
        residuals = f.slice(residuals, (slice(0, 0),))
    return f.squeeze(x, -1) if b.ndim == 1 else x, residuals, matrix_rank(a, rtol=rtol), f.svdvals(a)


@function(numpy=np.linalg.matrix_rank)
def matrix_rank(x: Operand, tol: Operand | None = None, rtol: float | None = None) -> Any:
    """The number of singular values above `tol`, or above `rtol` times the largest; 0 or 1 for 1-D operands.

    By default `rtol` is the larger of a matrix's sizes times the dtype's epsilon.

    Examples
    --------
    >>> be.matrix_rank(be.array([[1.0, 2.0], [2.0, 4.0]])).item()
    1
    """
    x = variable_of(x, "matrix_rank")
    if x.ndim < 2:
        return f.cast(f.any(f.ne(x, 0), axis=None, keepdims=False), "int64")
    if tol is not None and rtol is not None:
        raise OperandError("matrix_rank: give tol or rtol, not both")
    values = f.svdvals(x)
    if tol is None:
        if rtol is None:
            size: Any = max(x.shape[-2:]) if None not in x.shape[-2:] else f.maximum(f.count(x, -2), f.count(x, -1))
            rtol = size * float(finfo(wide_dtype(values.dtype)).eps)
        if not isinstance(rtol, Variable):
            rtol = _tolerance("matrix_rank: rtol", rtol)
        tol = f.norm(values, axis=-1, keepdims=True, ord=np.inf) * rtol
    return f.sum(f.gt(values, tol), axis=-1, keepdims=False)


@function(numpy=np.linalg.matrix_power)
def matrix_power(x: Operand, n: int) -> Any:
    """Integer powers of square matrices, by repeated squaring; for negative ones of the inverses.

    Examples
    --------
    >>> be.matrix_power(be.array([[1.0, 1.0], [0.0, 1.0]]), 3).get()
    array([[1., 3.],
           [0., 1.]], dtype=float32)
    """
    x, n = _square(x, "matrix_power"), integer_of(n, "matrix_power: n")
    if n == 0:
        return f.broadcast_like(f.cast(on_diagonal(x), x.dtype), x)
    power, left, found = f.inv(x) if n < 0 else x, abs(n), None
    while left:
        if left & 1:
            found = power if found is None else f.matmul(found, power)
        left >>= 1
        power = f.matmul(power, power) if left else power
    return f.copy(x) if n == 1 else found


@function()
def cross(a: Operand, b: Operand, axis: int = -1) -> Any:
    """The cross products of vectors of three elements along an axis.

    Examples
    --------
    >>> be.cross(be.array([1.0, 0.0, 0.0]), be.array([0.0, 1.0, 0.0])).get()
    array([0., 0., 1.], dtype=float32)
    """
    a, b = (variable_of(x, "cross") for x in (a, b))
    axes = [normalise_axis(axis, x.ndim, "cross") for x in (a, b)]
    for x, of in zip((a, b), axes, strict=True):
        if x.shape[of] not in (3, None):
            raise ShapeError(f"cross: vectors of three elements are wanted, and axis {axis} of {describe(x)} has not")
    a, b = (f.moveaxis(x, of, -1) for x, of in zip((a, b), axes, strict=True))
    (a0, a1, a2), (b0, b1, b2) = ([f.slice(x, (Ellipsis, i)) for i in range(3)] for x in (a, b))
    return f.moveaxis(f.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], -1), -1, axis)


@numpy_function(np.cross)
def _numpy_cross(
    a: Operand, b: Operand, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Any:
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    a, b = f.moveaxis(variable_of(a, "cross"), axisa, -1), f.moveaxis(variable_of(b, "cross"), axisb, -1)
    return f.moveaxis(cross(a, b), -1, axisc)


@function()
def inner(x: Operand, y: Operand) -> Any:
    """The sums of products over the last axes of both; of a number, the product.

    Examples
    --------
    >>> be.inner(be.array([1.0, 2.0]), be.array([3.0, 4.0])).item()
    11.0
    """
    x, y = (variable_of(given, "inner") for given in (x, y))
    return f.tensordot(x, y, axes=((-1,), (-1,))) if x.ndim and y.ndim else x * y


@function(numpy=np.vdot)
def vdot(x: Operand, y: Operand) -> Any:
    """The dot product of two operands, flattened, the first conjugated where it is complex.

    Examples
    --------
    >>> be.vdot(be.array([[1.0, 2.0]]), be.array([[3.0, 4.0]])).item()
    11.0
    """
    return f.dot(f.ravel(conjugated(variable_of(x, "vdot"))), f.ravel(variable_of(y, "vdot")))


@function(numpy=np.kron)
def kron(x: Any, y: Any) -> Any:
    """The Kronecker product: blocks of the second operand, scaled by each element of the first.

    Examples
    --------
    >>> be.kron(be.array([1.0, 2.0]), be.array([1.0, 10.0])).get()
    array([ 1., 10.,  2., 20.], dtype=float32)
    """
    x, y = (variable_of(given, "kron") for given in (x, y))
    dtype = promote(x.dtype, y.dtype)
    x, y = (in_dtype(given, dtype) for given in (x, y))  # first: integers have no derivative
    ndim = max(x.ndim, y.ndim)
    x, y = (with_leading_axes(given, ndim) for given in (x, y))
    if not ndim:
        return x * y
    sizes = [None if None in pair else pair[0] * pair[1] for pair in zip(x.shape, y.shape, strict=True)]
    blocks = f.expand_dims(x, tuple(range(1, 2 * ndim, 2))) * f.expand_dims(y, tuple(range(0, 2 * ndim, 2)))
    return f.reshape(blocks, sizes_for_reshape(sizes, x, "kron"))


@function(numpy=np.vecdot)
def vecdot(x: Any, y: Any, axis: int = -1) -> Any:
    """The sums of products of two vectors along an axis, the others broadcast, the first conjugated where complex.

    Examples
    --------
    >>> be.vecdot(be.array([[1.0, 2.0], [3.0, 4.0]]), be.array([1.0, 1.0])).get()
    array([3., 7.], dtype=float32)
    """
    x, y = (variable_of(given, "vecdot") for given in (x, y))
    sizes = [given.shape[normalise_axis(axis, given.ndim, "vecdot")] for given in (x, y)]
    if None not in sizes and sizes[0] != sizes[1]:
        raise ShapeError(f"vecdot: axis {axis} of {describe(x)} and of {describe(y)} differ")
    x, y = (f.moveaxis(given, axis, -1) for given in (x, y))
    if promote(x.dtype, y.dtype).kind == "b":
        return f.any(f.logical_and(x, y), axis=-1, keepdims=False)
    return f.einsum("...i,...i->...", conjugated(x), y)


@function(numpy=np.matvec)
def matvec(x: Operand, y: Operand) -> Any:
    """The products of matrices with vectors, stacks of them broadcast.

    Examples
    --------
    >>> be.matvec(be.array([[1.0, 2.0], [3.0, 4.0]]), be.array([1.0, 1.0])).get()
    array([3., 7.], dtype=float32)
    """
    x, y = (variable_of(given, "matvec") for given in (x, y))
    return f.squeeze(f.matmul(x, f.expand_dims(y, -1)), -1)


@function(numpy=np.vecmat)
def vecmat(x: Operand, y: Operand) -> Any:
    """The products of vectors, conjugated where they are complex, with matrices, stacks of them broadcast.

    Examples
    --------
    >>> be.vecmat(be.array([1.0, 1.0]), be.array([[1.0, 2.0], [3.0, 4.0]])).get()
    array([4., 6.], dtype=float32)
    """
    x, y = (variable_of(given, "vecmat") for given in (x, y))
    return f.squeeze(f.matmul(f.expand_dims(conjugated(x), -2), y), -2)


def norm(x: Operand, ord: object = None, axis: Axis = None, keepdims: bool = False) -> Any:
    """``numpy.linalg.norm``: of vectors along one axis, of matrices along two, without `ord` of all elements.

    Parameters
    ----------
    x : operand
    ord : number or {'fro', 'nuc'}, optional
        For vectors any number, also inf and -inf; for matrices also 'fro', the
        Frobenius norm, and 'nuc', the sum of singular values.
    axis : int or pair of int, optional
    keepdims : bool
    """
    x = variable_of(x, "norm")
    if axis is None:
        if ord is None or (ord == "fro" and x.ndim == 2):
            return f.norm(x, None, keepdims)
        if x.ndim not in (1, 2):
            raise ShapeError(
                f"norm: with ord={ord!r}, {describe(x)} of {x.ndim} dimensions needs an axis: one for norms of "
                "vectors, two for norms of matrices"
            )
        axis = tuple(range(x.ndim))
    axes = [normalise_axis(a, x.ndim, "norm") for a in (axis if isinstance(axis, tuple | list) else (axis,))]
    if len(axes) == 1:
        if isinstance(ord, str):
            raise OperandError(f"norm: ord={ord!r} is of matrices, along two axes, and not along {axis!r}")
        return f.norm(x, axes[0], keepdims, ord)
    if len(axes) != 2 or axes[0] == axes[1]:
        raise OperandError(f"norm: axis is one axis or two, not {axis!r}")
    return _matrix_norm(x, ord, axes[0], axes[1], keepdims)


#: Matrix norms that are vector norms of the singular values.
BY_SINGULAR_VALUES = {2: np.inf, -2: -np.inf, "nuc": 1}


def _matrix_norm(x: Variable, ord: object, rows: int, columns: int, keepdims: bool) -> Any:
    if ord in (None, "fro"):
        return f.norm(x, (rows, columns), keepdims)
    if ord in BY_SINGULAR_VALUES:
        values = f.svdvals(f.moveaxis(x, (rows, columns), (-2, -1)))
        found = f.norm(values, -1, False, BY_SINGULAR_VALUES[ord])
    elif ord in (1, -1, np.inf, -np.inf):
        summed, other = (rows, columns) if abs(ord) == 1 else (columns, rows)
        sums = f.norm(x, summed, False, 1)
        found = f.norm(sums, other - (other > summed), False, np.inf if ord > 0 else -np.inf)
    else:
        raise OperandError(f"norm: of matrices ord is None, 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, not {ord!r}")
    return f.expand_dims(found, tuple(sorted((rows, columns)))) if keepdims else found


@function(numpy=np.linalg.cond)
def cond(x: Operand, p: float | None = None) -> Any:
    """The condition numbers of matrices: the ratio of the extreme singular values, or by a norm p with the inverse.

    Unlike NumPy's, those by a norm raise LinAlgError for singular matrices, as `inv` does.

    Examples
    --------
    >>> be.cond(be.array([[2.0, 0.0], [0.0, 4.0]])).item()
    2.0
    """
    x = variable_of(x, "cond")
    if p in (None, 2, -2):
        values = f.svdvals(x)
        largest, smallest = f.slice(values, (Ellipsis, 0)), f.slice(values, (Ellipsis, -1))
        ratio = smallest / largest if p == -2 else largest / smallest
        return f.where(f.eq(largest, 0), np.inf, ratio)  # NumPy's answer for zero matrices
    inverse = f.inv(_square(x, "cond"))
    return matrix_norm(in_dtype(x, inverse.dtype), ord=p) * matrix_norm(inverse, ord=p)


@function()
def multi_dot(operands: Sequence[Any]) -> Any:
    """The product of several matrices, in the order of multiplications that has the fewest operations.

    The first may be a row vector, and the last a column vector. Where sizes are open, they count as equal.

    Examples
    --------
    >>> be.multi_dot([be.ones((2, 3)), be.ones((3, 4)), be.ones((4, 1))]).get()
    array([[12.],
           [12.]], dtype=float32)
    """
    if isinstance(operands, Variable) or len(operands) < 2:
        raise OperandError("multi_dot: two operands at least are wanted, in a list or tuple")
    found = [variable_of(x, "multi_dot") for x in operands]
    for i, x in enumerate(found):
        if x.ndim != 2 and not (x.ndim == 1 and i in (0, len(found) - 1)):
            raise ShapeError(f"multi_dot: {describe(x)} is no matrix; only the first and the last may be vectors")
    rows = [1 if x.ndim == 1 and i == 0 else x.shape[0] for i, x in enumerate(found)]
    last = found[-1]
    sizes = [1 if size is None else size for size in (*rows, 1 if last.ndim == 1 else last.shape[1])]
    return _product_of(found, _splits(sizes))


def _splits(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """The optimal split of each run of matrices of these rows and columns: that of the fewest multiplications."""
    count = len(sizes) - 1
    costs = {(i, i + 1): 0 for i in range(count)}
    splits = {}
    for length in range(2, count + 1):
        for i in range(count - length + 1):
            j = i + length
            options = [(costs[i, k] + costs[k, j] + sizes[i] * sizes[k] * sizes[j], k) for k in range(i + 1, j)]
            costs[i, j], splits[i, j] = min(options)
    return splits


def _product_of(matrices: Sequence[Variable], splits: dict[tuple[int, int], int]) -> Any:
    """The product of matrices, split so; shorter runs first."""
    made: dict[tuple[int, int], Any] = {(i, i + 1): x for i, x in enumerate(matrices)}
    wanted = [(0, len(matrices))]
    for i, j in wanted:
        if (i, j) in splits:
            wanted += [(i, splits[i, j]), (splits[i, j], j)]
    for i, j in reversed(wanted):
        if (i, j) in splits:
            made[i, j] = f.matmul(made[i, splits[i, j]], made[splits[i, j], j])
    return made[0, len(matrices)]


def vector_norm(x: Operand, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Any:
    """The norm of the vectors along axes, or of all elements, as in the array API standard."""
    x = variable_of(x, "vector_norm")
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple | list) else (axis,)
    axes = tuple(normalise_axis(a, x.ndim, "vector_norm") for a in axes)
    others = tuple(i for i in range(x.ndim) if i not in axes)
    flat = f.reshape(f.transpose(x, (*others, *axes)), (*(x.shape[i] for i in others), -1)) if len(axes) != 1 else x
    found = f.norm(flat, axes[0] if len(axes) == 1 else -1, False, ord)
    return f.expand_dims(found, tuple(sorted(axes))) if keepdims else found


def matrix_norm(x: Operand, keepdims: bool = False, ord: object = "fro") -> Any:
    """The norm of the matrices in the last two axes, as in the array API standard."""
    return norm(x, ord, (-2, -1), keepdims)


NUMPY_FUNCTIONS.update(
    {
        np.linalg.norm: norm,
        np.linalg.vector_norm: vector_norm,
        np.linalg.matrix_norm: matrix_norm,
        np.linalg.matmul: f.matmul,
        np.linalg.multi_dot: lambda arrays: multi_dot(arrays),
        np.inner: lambda a, b: inner(strong(a, "inner"), strong(b, "inner")),  # to NumPy, numbers are arrays
        np.linalg.outer: f.outer,
        np.linalg.cross: f.cross,
        np.linalg.vecdot: f.vecdot,
        np.linalg.diagonal: lambda x, offset=0: f.diagonal(x, offset, -2, -1),
        np.linalg.trace: lambda x, offset=0: f.trace(x, offset, -2, -1),
        np.linalg.tensordot: f.tensordot,
        np.linalg.matrix_transpose: f.matrix_transpose,
    }
)
