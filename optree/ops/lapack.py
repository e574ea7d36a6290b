"""The base of ops on matrices that LAPACK computes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from optree.arrays import as_array, is_any, portable
from optree.dtypes import FLOAT32, is_floating, is_narrow, rounded
from optree.errors import OperandError, ShapeError, describe
from optree.ops.apply import Apply
from optree.ops.arrangement import rows_and_columns
from optree.ops.op import Op
from optree.ops.traits import FloatOperator, UnaryOperator
from optree.registry import f
from optree.tree.types import Shape, TensorType, promote
from optree.tree.variable import Variable, is_neon, variable_of

FLOAT64 = np.dtype("float64")


class LapackOperator(FloatOperator):
    """An op on matrices that LAPACK computes.

    Attributes
    ----------
    work : float
        Its approximate floating-point operations divided by m * n * min(m, n), for profiles.
    """

    calls_lapack: ClassVar[bool] = True
    leads_with_batch: ClassVar[bool] = True
    work: ClassVar[float] = 2.0

    def resolve_dtypes(self, *dtypes: Any) -> tuple[np.dtype, ...]:
        common = promote(*(dtype if is_floating(dtype) else FLOAT64 for dtype in map(promote, dtypes)))
        return (common,) * (len(dtypes) + 1)

    def flops(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
        """The cubic terms."""
        *stack, m, n = inputs[0]
        return int(self.work * prod(stack) * m * n * min(m, n))


class MatrixOperator(LapackOperator, UnaryOperator):
    """An op on matrices with one value, which `compute` returns for an array of float32 or float64."""

    square: ClassVar[bool] = True

    def bind(self, types: Sequence[TensorType], backend: Any) -> Op:
        check_matrices(types[0].shape, self.square)
        check_dimensions(backend, self.output_shape(types[0].shape))
        return self

    @portable
    def value(self, *arrays: Any) -> Any:
        (x,) = arrays
        dtype = self.resolve_dtypes(x.dtype)[-1]
        return rounded(as_array(self.compute(wide(x, dtype)), x), dtype, copy=False)

    def compute(self, x: Any) -> Any:
        """The value on an array of float32 or float64."""
        raise NotImplementedError


class Factorisation(LapackOperator, UnaryOperator):
    """An op on matrices with several values, which `compute` returns for an array of float32 or float64.

    Attributes
    ----------
    result : type
        The named tuple of the values.
    """

    square: ClassVar[bool] = True
    result: ClassVar[Any]

    @classmethod
    def function(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.result(*super().function(*args, **kwargs))

    def make_node(self, *inputs: Any) -> Apply:
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
        dtype = self.resolve_dtypes(x.dtype)[-1]
        return Apply(self, [x], [TensorType(dtype, shape)() for shape in shapes])

    def output_shapes(self, x: Shape) -> list[Shape]:
        """The values' shapes.

        Raises
        ------
        ShapeError
            If the operand's is not one of matrices.
        """
        check_matrices(x, self.square)
        return self.factor_shapes(x[:-2], x[-2], x[-1])

    def factor_shapes(self, stack: Shape, m: int | None, n: int | None) -> list[Shape]:
        """The values' shapes, for a stack of matrices of m rows and n columns."""
        raise NotImplementedError

    def infer_shape(self, node: Any, shapes: Sequence[Any]) -> list[Shape]:
        return self.output_shapes(tuple(shapes[0]))

    @portable
    def perform(self, node: Any, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        (x,), dtype = inputs, node.outputs[0].dtype
        for cell, value in zip(output_storage, self.compute(wide(x, dtype)), strict=True):
            cell[0] = rounded(as_array(value, x), dtype, copy=False)

    def compute(self, x: Any) -> Sequence[Any]:
        """The values on an array of float32 or float64."""
        raise NotImplementedError


def wide(x: Any, dtype: np.dtype) -> Any:
    """An array in the dtype that LAPACK computes in."""
    return as_array(x).astype(FLOAT32 if is_narrow(dtype) else dtype, copy=False)


def iterated(x: Any) -> Any:
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


def on_diagonal(x: Variable) -> Variable:
    """A mask of the matrices' diagonal, in a shape that broadcasts to theirs."""
    rows, columns = rows_and_columns(x)
    return f.eq(rows, columns)
