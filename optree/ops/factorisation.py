"""Factorisations of matrices, eigenvalues and singular values.

The bases of all ops that LAPACK computes are here. The rules of `optree.ops.linalg` for stacks, dtypes and errors hold
here, too.

The derivatives are those of M. B. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008), where no other source is named. They are trees of the same ops, and so have derivatives. Of
complex matrices they have conjugate transposes, of factors that are conjugated, as the adjoints of the reverse pass are
(`optree.autodiff.reverse`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, is_any, portable
from optree.dtypes import complex_dtype, is_inexact, real_dtype, rounded, wide_dtype
from optree.errors import GradientError, OperandError, ShapeError, describe
from optree.op.apply import Apply
from optree.op.index_map import STACKED, IndexMap
from optree.op.op import Op
from optree.op.traits import FloatOperator, UnaryOperator
from optree.ops.indexing import rows_and_columns
from optree.records import NamedTuple
from optree.registry import f, numpy_function
from optree.tree.gradient_types import is_disconnected, or_zeros
from optree.tree.types import Shape, TensorType, promote
from optree.tree.variable import Operand, Variable, conjugated, is_neon, variable_of

FLOAT64 = np.dtype("float64")


class LapackOperator(FloatOperator):
    """An op on matrices that LAPACK computes."""

    index_map = IndexMap(STACKED)
    takes_complex = True
    #: The indices of the values that are real for complex operands, too.
    real_values: ClassVar[tuple[int, ...]] = ()
    #: Its approximate floating-point operations divided by m * n * min(m, n), for profiles.
    work: ClassVar[float] = 2.0

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        common = promote(*(dtype if is_inexact(dtype) else FLOAT64 for dtype in map(promote, dtypes)))
        return *(common,) * len(dtypes), self.value_dtype(common)

    def value_dtype(self, dtype: np.dtype, index: int = 0) -> np.dtype:
        """The dtype of a value for operands of a dtype."""
        return real_dtype(dtype) if index in self.real_values else dtype

    def flops(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
        """The cubic terms."""
        *stack, m, n = inputs[0]
        return int(self.work * prod(stack) * m * n * min(m, n))


class LapackFunction(LapackOperator):
    """An op on matrices with one value, which its method `compute` gives for arrays of a dtype that LAPACK has."""

    compute: Callable[..., Any]

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        check_dimensions(backend, self.output_shape(*(t.shape for t in types)))
        return self

    @portable
    def numpy(self, *arrays: Array) -> Any:
        given, *_, dtype = self.resolve_dtypes(*(x.dtype for x in arrays))
        found = self.compute(*(wide(as_array(x, *arrays), given) for x in arrays))
        return rounded(as_array(found, *arrays), dtype, copy=False)


class MatrixOperator(LapackFunction, UnaryOperator):
    """An op on matrices with one value, by default of their shape."""

    square: ClassVar[bool] = True

    def output_shape(self, *shapes: Shape) -> Shape:
        check_matrices(shapes[0], self.square)
        return shapes[0]


class Factorisation(LapackOperator, UnaryOperator):
    """An op on matrices with several values, which `compute` returns for an array of a dtype that LAPACK has."""

    square: ClassVar[bool] = True
    #: The named tuple of the values.
    result: ClassVar[Any]

    @classmethod
    def function(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.result(*super().function(*args, **kwargs))

    def make_node(self, *inputs: Operand) -> Apply:
        self._check_count(inputs)
        x = variable_of(inputs[0], str(self))
        if not isinstance(x.type, TensorType):
            raise OperandError(f"{self}: it is for tensors, which {describe(x)} is not")
        try:
            shapes = self.output_shapes(x.shape)
            for shape in shapes:
                check_dimensions(x.backend, shape)
        except ShapeError as error:
            raise ShapeError(f"{self.name}: {describe(x)}: {error}") from None
        given = self.resolve_dtypes(x.dtype)[0]
        dtypes = [self.value_dtype(given, i) for i in range(len(shapes))]
        return Apply(self, [x], [TensorType(*each)() for each in zip(dtypes, shapes, strict=True)])

    def output_shapes(self, x: Shape) -> list[Shape]:
        """The values' shapes; ShapeError if the operand's is not one of matrices."""
        check_matrices(x, self.square)
        return self.factor_shapes(x[:-2], x[-2], x[-1])

    def factor_shapes(self, stack: Shape, m: int | None, n: int | None) -> list[Shape]:
        """The values' shapes, for a stack of matrices of m rows and n columns."""
        raise NotImplementedError

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Shape]:
        return self.output_shapes(tuple(shapes[0]))

    @portable
    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        (x,) = inputs
        values = self.compute(wide(x, self.resolve_dtypes(x.dtype)[0]))
        for cell, value, out in zip(output_storage, values, node.outputs, strict=True):
            cell[0] = rounded(as_array(value, x), out.dtype, copy=False)

    def compute(self, x: Array) -> Sequence[Any]:
        """The values on an array of a dtype that LAPACK has."""
        raise NotImplementedError


def wide(x: object, dtype: np.dtype) -> Any:
    """An array in the dtype that LAPACK computes in."""
    return as_array(x).astype(wide_dtype(dtype), copy=False)


def iterated(x: Array) -> Any:
    """An array for an iterative routine; LinAlgError if it is not finite, for which some never end."""
    if is_any(~np.isfinite(x)):
        raise np.linalg.LinAlgError("a matrix has infinite or nan elements")
    return x


def check_matrices(shape: Shape, square: bool) -> None:
    """Raise ShapeError unless a shape is of matrices, or of square ones."""
    if len(shape) < 2:
        raise ShapeError(f"matrices have two dimensions at least, and this has {len(shape)}")
    if square and None not in shape[-2:] and shape[-2] != shape[-1]:
        raise ShapeError(f"a square matrix is wanted, not {shape[-2]} rows of {shape[-1]} columns")


def check_dimensions(backend: Any, shape: Shape) -> None:
    """Raise ShapeError for a value of less than two dimensions in neon's mode."""
    if is_neon(backend) and len(shape) < 2:
        raise ShapeError(
            f"a value would have {len(shape)} dimensions, and in neon's mode there are two at least; "
            "a backend without compat_mode has it"
        )


def least(m: int | None, n: int | None) -> int | None:
    """The lesser of two sizes; None if one is unknown."""
    return None if m is None or n is None else min(m, n)


def transposed(x: Variable) -> Variable:
    """The matrices transposed."""
    return f.matrix_transpose(x)


def conjugate_transposed(x: Variable) -> Variable:
    """The matrices transposed, and conjugated where they are complex."""
    return transposed(conjugated(x))


def on_diagonal(x: Variable) -> Variable:
    """A mask of the matrices' diagonal, in a shape that broadcasts to theirs."""
    rows, columns = rows_and_columns(x)
    return f.eq(rows, columns)


class QRResult(NamedTuple):
    """Orthonormal columns and an upper triangle, whose product is the matrix."""

    Q: Any
    R: Any


class EigResult(NamedTuple):
    """Eigenvalues, and the eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class EighResult(NamedTuple):
    """Eigenvalues in ascending order, and the eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class SVDResult(NamedTuple):
    """Left singular vectors as columns, singular values in descending order, right singular vectors as rows."""

    U: Any
    S: Any
    Vh: Any


@numpy_function(np.linalg.cholesky)
class Cholesky(MatrixOperator):
    """The Cholesky factors l, lower triangular with l @ l.T = x, of positive definite matrices; reads the lower half.

    With `upper`, the upper triangles u of u.T @ u = x, and the upper half is read. Complex matrices are Hermitian, with
    conjugate transposes in the place of transposes.
    The gradient is symmetric, as JAX's and autograd's are: that of half the matrix counts for both halves (I. Murray,
    "Differentiation of the Cholesky decomposition", 2016).

    Examples
    --------
    >>> be.cholesky(be.array([[4.0, 2.0], [2.0, 5.0]])).get()
    array([[2., 0.],
           [1., 2.]], dtype=float32)
    """

    name = "cholesky"
    work = 1 / 3

    @classmethod
    def function(cls, x: Operand, upper: bool = False) -> Any:  # type: ignore[override]
        op = cls.make()
        return conjugate_transposed(op(conjugate_transposed(variable_of(x, "cholesky")))) if upper else op(x)

    def compute(self, x: Array) -> Any:
        return np.linalg.cholesky(x) if x.size else x.copy()

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        turned = transposed(self(x))
        left = f.solve(turned, _half_triangle(f.matmul(turned, delta)))
        return [_symmetric(conjugate_transposed(f.solve(turned, conjugate_transposed(left))))]


def _half_triangle(x: Variable) -> Variable:
    """The lower triangles of square matrices, the diagonal halved."""
    return f.tril(x, -1) + f.where(on_diagonal(x), x * 0.5, 0)


@numpy_function(np.linalg.qr)
class QR(Factorisation):
    """The QR factorisation: orthonormal columns q and upper triangular r.

    The derivative is for matrices of full rank; if there are more rows than columns, with
    `mode` 'reduced' (S. F. Walter, L. Lehmann and R. Lamour, "On evaluating
    higher-order derivatives of the QR decomposition of tall matrices with full
    column rank", 2012).

    Attributes
    ----------
    mode : {'reduced', 'complete', 'r'}
        'reduced' for q with the lesser of the sizes as columns, 'complete' for a square q, 'r' for r only.

    Examples
    --------
    >>> q, r = be.qr(be.array([[3.0, 1.0], [4.0, 2.0]]))
    >>> np.allclose((be.dot(q, r)).get(), [[3, 1], [4, 2]], atol=1e-5), q.shape, r.shape
    (True, (2, 2), (2, 2))
    """

    name = "qr"
    __props__ = ("mode",)
    mode: Any = "reduced"
    square = False
    result = QRResult

    @classmethod
    def function(cls, x: Operand, mode: str = "reduced") -> Any:  # type: ignore[override]
        if mode not in ("reduced", "complete", "r"):
            raise OperandError(f"qr: mode is 'reduced', 'complete' or 'r', not {mode!r}")
        found = QRResult(*cls.make(mode="complete" if mode == "complete" else "reduced")(x))
        return found.R if mode == "r" else found

    def factor_shapes(self, stack: Shape, m: int | None, n: int | None) -> list[Shape]:
        k = m if self.mode == "complete" else least(m, n)
        return [(*stack, m, k), (*stack, k, n)]

    def compute(self, x: Array) -> Sequence[Any]:
        return tuple(np.linalg.qr(x, mode=self.mode))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (of_q, of_r) = inputs, output_gradients
        m, n = x.shape[-2:]
        if None in (m, n) and m != n:
            raise GradientError(
                f"qr: whether {describe(x)} has more rows than columns is to be known for its derivative"
            )
        if self.mode == "complete" and m > n:
            raise GradientError(
                "qr: of mode='complete' and more rows than columns the new columns are arbitrary, and "
                "have no derivative; mode='reduced' leaves them out"
            )
        q, r = map(conjugated, self(x))
        of_q, of_r = or_zeros(of_q, q), or_zeros(of_r, r)
        if m is None or m >= n:
            return [_grad_of_qr(q, r, of_q, of_r)]
        # More columns than rows: r is a triangle, for the first columns, and a rectangle beside it.
        first, others = (..., slice(None, m)), (..., slice(m, None))
        beside = f.slice(of_r, others)
        from_others = f.matmul(conjugated(f.slice(x, others)), conjugate_transposed(beside))
        head = _grad_of_qr(q, f.slice(r, first), of_q + from_others, f.slice(of_r, first))
        return [f.concatenate([head, f.matmul(q, beside)], axis=-1)]


def _grad_of_qr(q: Variable, r: Variable, of_q: Variable, of_r: Variable) -> Variable:
    """The gradient of the matrix q @ r, r square and with a real diagonal."""
    half = _half_triangle(f.matmul(r, conjugate_transposed(of_r)) - f.matmul(conjugate_transposed(of_q), q))
    both = half + conjugate_transposed(half)
    return conjugate_transposed(f.solve(r, conjugate_transposed(of_q + f.matmul(q, both))))


@numpy_function(np.linalg.eigvalsh)
class EigenvaluesOfSymmetric(MatrixOperator):
    """The eigenvalues of symmetric or Hermitian matrices, real and in ascending order; one half is read.

    The second derivative is that of the gradient's eigenvectors: nan or infinite where two eigenvalues are equal.

    Attributes
    ----------
    UPLO : {'L', 'U'}
        The half that is read, lower or upper.

    Examples
    --------
    >>> be.eigvalsh(be.array([[2.0, 1.0], [1.0, 2.0]])).get().round(3)
    array([1., 3.], dtype=float32)
    """

    name = "eigvalsh"
    __props__ = ("UPLO",)
    UPLO: Any = "L"
    real_values = (0,)
    work = 4 / 3

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        super().bind(types, backend)
        return self.make(UPLO=_half("eigvalsh", self.UPLO))

    def output_shape(self, *shapes: Shape) -> Shape:
        return super().output_shape(*shapes)[:-1]

    def compute(self, x: Array) -> Any:
        return np.linalg.eigvalsh(iterated(x), UPLO=self.UPLO)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        vectors = conjugated(Eigh.make(UPLO=self.UPLO)(x)[1])
        return [f.matmul(vectors * f.expand_dims(delta, -2), conjugate_transposed(vectors))]


@numpy_function(np.linalg.eigh)
class Eigh(Factorisation):
    """The eigenvalues of symmetric or Hermitian matrices, ascending, and the eigenvectors as columns; one half is read.

    The gradient is symmetric, as JAX's and autograd's are. That of eigenvectors divides by differences of eigenvalues:
    it is nan or infinite where two are equal, and valid for functions that do not depend on the eigenvectors' signs, or
    phases where they are complex. No error says that a function does.

    Attributes
    ----------
    UPLO : {'L', 'U'}
        The half that is read, lower or upper.

    Examples
    --------
    >>> values, vectors = be.eigh(be.array([[2.0, 0.0], [0.0, 3.0]]))
    >>> values.get(), vectors.shape
    (array([2., 3.], dtype=float32), (2, 2))
    """

    name = "eigh"
    __props__ = ("UPLO",)
    UPLO: Any = "L"
    result = EighResult
    real_values = (0,)
    work = 9.0

    def make_node(self, *inputs: Operand) -> Apply:
        half = _half("eigh", self.UPLO)
        return super().make_node(*inputs) if half == self.UPLO else self.make(UPLO=half).make_node(*inputs)

    def factor_shapes(self, stack: Shape, m: int | None, n: int | None) -> list[Shape]:
        return [(*stack, n), (*stack, n, n)]

    def compute(self, x: Array) -> Sequence[Any]:
        return tuple(np.linalg.eigh(iterated(x), UPLO=self.UPLO))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (of_values, of_vectors) = inputs, output_gradients
        values, vectors = self(x)
        vectors = conjugated(vectors)
        turned = conjugate_transposed(vectors)
        if is_disconnected(of_vectors):
            return [f.matmul(vectors * f.expand_dims(of_values, -2), turned)]
        inner = _over_differences(f.matmul(turned, of_vectors), values)
        if not is_disconnected(of_values):
            inner = inner + _diagonal(of_values)
        return [_symmetric(f.matmul(f.matmul(vectors, inner), turned))]


@numpy_function(np.linalg.eigvals)
class Eigenvalues(MatrixOperator):
    """The eigenvalues of square matrices, in no order, and complex: NumPy's are real where all imaginary parts are 0.

    The derivative is that where all eigenvalues differ.

    Examples
    --------
    >>> be.eigvals(be.array([[0.0, 4.0], [-1.0, 0.0]])).get().imag
    array([ 2., -2.], dtype=float32)
    """

    name = "eigvals"
    work = 10.0

    def output_shape(self, *shapes: Shape) -> Shape:
        return super().output_shape(*shapes)[:-1]

    def value_dtype(self, dtype: np.dtype, index: int = 0) -> np.dtype:
        return complex_dtype(dtype)

    def compute(self, x: Array) -> Any:
        return np.linalg.eigvals(iterated(x))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        turned = transposed(Eig.make()(x)[1])
        return [f.solve(turned, f.expand_dims(delta, -1) * turned)]


@numpy_function(np.linalg.eig)
class Eig(Factorisation):
    """The eigenvalues of square matrices, in no order, and the eigenvectors as columns of norm 1; both are complex.

    NumPy's are real where all imaginary parts are 0. The gradient of eigenvectors divides by differences of
    eigenvalues: it is nan or infinite where two are equal, and valid for functions that do not depend on the
    eigenvectors' phases. No error says that a function does.

    Examples
    --------
    >>> values, vectors = be.eig(be.array([[0.0, 4.0], [-1.0, 0.0]]))
    >>> values.get().imag, vectors.shape
    (array([ 2., -2.], dtype=float32), (2, 2))
    """

    name = "eig"
    result = EigResult
    work = 25.0
    value_dtype = Eigenvalues.value_dtype

    def factor_shapes(self, stack: Shape, m: int | None, n: int | None) -> list[Shape]:
        return [(*stack, n), (*stack, n, n)]

    def compute(self, x: Array) -> Sequence[Any]:
        return tuple(np.linalg.eig(iterated(x)))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (of_values, of_vectors) = inputs, output_gradients
        values, vectors = self(x)
        turned, inner = transposed(vectors), None if is_disconnected(of_values) else _diagonal(of_values)
        if not is_disconnected(of_vectors):
            moved = f.matmul(turned, of_vectors)
            along = f.sum(f.where(on_diagonal(moved), f.real(moved), 0), axis=-2, keepdims=True)
            moved = moved - f.matmul(turned, conjugated(vectors)) * along  # the norms stay 1
            inner = _plus(inner, _over_differences(moved, values))
        return [f.solve(turned, f.matmul(inner, turned))]


@numpy_function(np.linalg.svdvals)
class SingularValues(MatrixOperator):
    """The singular values of matrices, in descending order.

    The second derivative is that of the gradient's vectors: nan or infinite where two singular values are equal.

    Examples
    --------
    >>> be.svdvals(be.array([[3.0, 0.0], [0.0, 4.0]])).get()
    array([4., 3.], dtype=float32)
    """

    name = "svdvals"
    square = False
    real_values = (0,)
    work = 8 / 3

    def output_shape(self, *shapes: Shape) -> Shape:
        *stack, m, n = super().output_shape(*shapes)
        return (*stack, least(m, n))

    def compute(self, x: Array) -> Any:
        return np.linalg.svd(iterated(x), compute_uv=False)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        u, _, v = map(conjugated, SVD.make(full_matrices=False)(x))
        return [f.matmul(u * f.expand_dims(delta, -2), v)]


@numpy_function(np.linalg.svd)
class SVD(Factorisation):
    """The singular value decomposition u @ diag(s) @ vh, singular values in descending order.

    The gradient of singular vectors (J. Townsend, "Differentiating the singular
    value decomposition", 2016) divides by the differences of singular values: it is
    nan or infinite where two are equal or, for matrices that are not square, where one is
    0. It is valid for functions that do not depend on the vectors' signs, or on the phases that a left and a right
    vector share where they are complex. No error says that a function does.

    Attributes
    ----------
    full_matrices : bool
        Whether u and vh are square. With `compute_uv=False`, `svd` is `svdvals`.

    Examples
    --------
    >>> u, s, vh = be.svd(be.array([[3.0, 0.0], [0.0, 4.0]]))
    >>> s.get(), u.shape, vh.shape
    (array([4., 3.], dtype=float32), (2, 2), (2, 2))
    """

    name = "svd"
    __props__ = ("full_matrices",)
    full_matrices: Any = True
    square = False
    result = SVDResult
    real_values = (1,)
    work = 22.0

    @classmethod
    def function(cls, x: Operand, full_matrices: bool = True, compute_uv: bool = True) -> Any:  # type: ignore[override]
        return SVDResult(*cls.make(full_matrices=bool(full_matrices))(x)) if compute_uv else f.svdvals(x)

    def factor_shapes(self, stack: Shape, m: int | None, n: int | None) -> list[Shape]:
        k = least(m, n)
        rows, columns = (m, n) if self.full_matrices else (k, k)
        return [(*stack, m, rows), (*stack, k), (*stack, columns, n)]

    def compute(self, x: Array) -> Sequence[Any]:
        return tuple(np.linalg.svd(iterated(x), full_matrices=self.full_matrices))

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (of_u, of_s, of_v) = inputs, output_gradients
        m, n = x.shape[-2:]
        u, s, v = map(conjugated, SVD.make(full_matrices=False)(x))
        values_alone = is_disconnected(of_u) and is_disconnected(of_v)
        if self.full_matrices and not values_alone and (m is None or m != n):
            raise GradientError(
                f"svd: the vectors that full_matrices=True adds to those of {describe(x)} are arbitrary, and have no "
                "derivative; full_matrices=False leaves them out"
            )
        inner = None if is_disconnected(of_s) else _diagonal(of_s)
        row, column = f.expand_dims(s, -2), f.expand_dims(s, -1)
        beside = None
        if not is_disconnected(of_u):
            turned = f.matmul(conjugate_transposed(u), of_u)
            inner = _plus(inner, _differences(turned, s) * row)
            if x.dtype.kind == "c":  # the phases of left vectors, those of right ones held
                phases = f.imag(turned) / f.where(f.eq(row, 0), 1, row)
                inner = inner + f.where(on_diagonal(turned), phases, 0) * 1j
            scaled = of_u / row
            within = f.matmul(u, f.matmul(conjugate_transposed(u), scaled))
            beside = f.matmul(scaled - within, v) if m is None or m > n else None
        if not is_disconnected(of_v):
            turned = _differences(f.matmul(v, conjugate_transposed(of_v)), s)
            inner = _plus(inner, column * turned)
            scaled = of_v / column
            outside = scaled - f.matmul(f.matmul(scaled, conjugate_transposed(v)), v)
            beside = _plus(beside, f.matmul(u, outside)) if n is None or m is None or n > m else beside
        return [_plus(f.matmul(f.matmul(u, inner), v), beside)]


def _differences(x: Variable, s: Variable) -> Variable:
    """Square matrices minus their conjugate transposes, each element divided by s[column]**2 - s[row]**2."""
    total = f.expand_dims(s, -2) + f.expand_dims(s, -1)
    return _over_differences((x - conjugate_transposed(x)) / f.where(f.eq(total, 0), 1, total), s)


def _plus(x: Any, y: Any) -> Any:
    """The sum of two trees, either of which may be None."""
    return y if x is None else x if y is None else x + y


def _half(what: str, UPLO: object) -> str:
    half = UPLO.upper() if isinstance(UPLO, str) else UPLO
    if half not in ("L", "U"):
        raise OperandError(f"{what}: UPLO is 'L' or 'U', not {UPLO!r}")
    return half


def _diagonal(x: Variable) -> Variable:
    """Vectors as diagonal matrices."""
    square = f.broadcast_like(f.expand_dims(x, -1), f.expand_dims(x, -1) * f.expand_dims(x, -2))
    return f.where(on_diagonal(square), square, 0)


def _symmetric(x: Variable) -> Variable:
    return (x + conjugate_transposed(x)) * 0.5


def _over_differences(x: Variable, values: Variable) -> Variable:
    """Square matrices, each element divided by values[column] - values[row]; 0 on the diagonal."""
    difference = f.expand_dims(values, -2) - f.expand_dims(values, -1)
    diagonal = on_diagonal(difference)
    return f.where(diagonal, 0, x / f.where(diagonal, 1, difference))
