"""The standard's linear algebra: this project's, by NumPy's functions of those names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from optree.errors import OperandError
from optree.registry import NUMPY_FUNCTIONS, f
from optree.tree.types import Axis, DType, as_dtype
from optree.tree.variable import in_dtype
from optree.xp.array import Array, built, of, operand
from optree.xp.manipulation import matrix_transpose as matrix_transpose

if TYPE_CHECKING:
    from optree.ops.factorisation import EighResult, EigResult, QRResult, SVDResult
    from optree.ops.linalg import SlogdetResult


def _ours(name: str, *operands: object, **options: Any) -> Any:
    """The array, or arrays, of the function that NumPy's linear algebra has by a name."""
    trees = [of(x, name).tree for x in operands]
    return built(NUMPY_FUNCTIONS[getattr(np.linalg, name)](*trees, **options))


def cholesky(x: Array, /, *, upper: bool = False) -> Array:
    """The Cholesky factors of symmetric or Hermitian positive definite matrices, lower or upper triangles."""
    return _ours("cholesky", x, upper=upper)


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The cross products of vectors of three elements along an axis."""
    return built(f.cross(of(x1, "cross").tree, of(x2, "cross").tree, axis))


def det(x: Array, /) -> Array:
    """The determinants of square matrices."""
    return _ours("det", x)


def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    """The diagonals of matrices."""
    return _ours("diagonal", x, offset=offset)


def eig(x: Array, /) -> EigResult:
    """The eigenvalues and eigenvectors of square matrices, complex and in no order."""
    return _ours("eig", x)


def eigh(x: Array, /) -> EighResult:
    """The eigenvalues and eigenvectors of symmetric or Hermitian matrices."""
    return _ours("eigh", x)


def eigvals(x: Array, /) -> Array:
    """The eigenvalues of square matrices, complex and in no order."""
    return _ours("eigvals", x)


def eigvalsh(x: Array, /) -> Array:
    """The eigenvalues of symmetric or Hermitian matrices."""
    return _ours("eigvalsh", x)


def inv(x: Array, /) -> Array:
    """The inverses of square matrices."""
    return _ours("inv", x)


def matmul(x1: Array, x2: Array, /) -> Array:
    """Matrix products, of stacks of matrices too; a vector is a row left and a column right."""
    return built(f.matmul(of(x1, "matmul").tree, of(x2, "matmul").tree))


def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: object = "fro") -> Array:
    """Matrix norms over the last two axes."""
    return _ours("matrix_norm", x, keepdims=keepdims, ord=ord)


def matrix_power(x: Array, n: int, /) -> Array:
    """Integer powers of square matrices."""
    return built(f.matrix_power(of(x, "matrix_power").tree, n))


def matrix_rank(x: Array, /, *, rtol: object = None) -> Array:
    """The numbers of singular values above `rtol`, a number or one for each matrix, times the largest."""
    if of(x, "matrix_rank").ndim < 2:
        raise ValueError(f"matrix_rank: matrices are wanted, not an array of shape {x.shape}")
    given = operand(rtol)
    rtol = f.expand_dims(given, -1) if isinstance(rtol, Array) and rtol.ndim else given
    return built(f.matrix_rank(x.tree, rtol=rtol))


def outer(x1: Array, x2: Array, /) -> Array:
    """The outer product of two vectors."""
    for x in (x1, x2):
        if of(x, "outer").ndim != 1:
            raise ValueError(f"outer: vectors are wanted, not an array of shape {x.shape}")
    return _ours("outer", x1, x2)


def pinv(x: Array, /, *, rtol: object = None) -> Array:
    """The pseudo-inverses of matrices; of singular values up to `rtol`, or one for each matrix, times the largest."""
    return _ours("pinv", x, rtol=operand(rtol))


def qr(x: Array, /, *, mode: str = "reduced") -> QRResult:
    """The QR decompositions of matrices."""
    if mode not in ("reduced", "complete"):
        raise OperandError(f"qr: mode is 'reduced' or 'complete', not {mode!r}")
    return _ours("qr", x, mode=mode)


def slogdet(x: Array, /) -> SlogdetResult:
    """The signs of determinants, and the logarithms of their absolute values."""
    return _ours("slogdet", x)


def solve(x1: Array, x2: Array, /) -> Array:
    """The solutions of systems of linear equations; the right side is a vector if it is 1-D."""
    return _ours("solve", x1, x2)


def svd(x: Array, /, *, full_matrices: bool = True) -> SVDResult:
    """The singular value decompositions of matrices."""
    return _ours("svd", x, full_matrices=full_matrices)


def svdvals(x: Array, /) -> Array:
    """The singular values of matrices, in descending order."""
    return _ours("svdvals", x)


def tensordot(x1: Array, x2: Array, /, *, axes: Any = 2) -> Array:
    """Tensor contractions over pairs of axes."""
    return built(f.tensordot(of(x1, "tensordot").tree, of(x2, "tensordot").tree, axes))


def trace(x: Array, /, *, offset: int = 0, dtype: DType = None) -> Array:
    """The sums of diagonals of matrices; small integers accumulate in 64 bits."""
    given = of(x, "trace").tree if dtype is None else in_dtype(x.tree, as_dtype(dtype), f"trace in {dtype}")
    found = NUMPY_FUNCTIONS[np.linalg.trace](given, offset)
    return built(found if dtype is None or found.dtype == as_dtype(dtype) else f.cast(found, as_dtype(dtype)))


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The dot products of vectors along an axis."""
    return built(f.vecdot(of(x1, "vecdot").tree, of(x2, "vecdot").tree, axis))


def vector_norm(x: Array, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Array:
    """Vector norms over axes, or over all elements."""
    return _ours("vector_norm", x, axis=axis, keepdims=keepdims, ord=ord)
