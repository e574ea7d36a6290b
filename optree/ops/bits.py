"""Ops on integers alone: bitwise ones, which on bools are the logical ones, and common factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.dtypes import is_floating, ufunc_dtypes
from optree.errors import DTypeError, describe
from optree.op.examples import Examples
from optree.op.traits import (
    BinaryOperator,
    BlockOperator,
    ElementwiseOperator,
    NonDifferentiableOperator,
    UnaryOperator,
    blocks_of_equal_shapes,
)
from optree.registry import FUNCTIONS, alias, associative, numpy_function
from optree.tree.types import promote
from optree.tree.variable import Operand


class BitOperator(ElementwiseOperator, NonDifferentiableOperator):
    """A bitwise op, which refuses floating operands."""

    examples = Examples(sample=(0.0, 7.0), takes_floats=False)
    #: Python's operator.
    symbol: ClassVar[str]
    #: The equivalent op for bool operands.
    logical: ClassVar[str | None] = None

    def __call__(self, *inputs: Operand) -> Any:
        if self.logical is not None and inputs and all(map(_is_condition, inputs)):
            return FUNCTIONS[self.logical](*inputs)
        try:
            return super().__call__(*inputs)
        except DTypeError:
            for x in inputs:
                if _is_real(x):
                    raise DTypeError(self._refusal(x)) from None
            raise

    @classmethod
    def function(cls, *args: Any, **kwargs: Any) -> Any:
        # Python parses x > 0 & (y > 0) as x > (0 & (y > 0)): refuse a number with a condition.
        if cls.logical is not None and any(map(_is_condition, args)):
            for x in args:
                if type(x) is int:
                    raise DTypeError(cls.make()._refusal(x))
        return super().function(*args, **kwargs)

    def _refusal(self, x: object) -> str:
        if self.logical is None:
            return f"{self.name}: {describe(x)} is no integer; multiply by 2.0 ** n, or take x.astype('int64')"
        example = "~(x > 0)" if self.symbol == "~" else f"(x > 0) {self.symbol} (y > 0)"
        return (
            f"{self.name}: {describe(x)} is not bool. {self.symbol} joins conditions, each in brackets: {example}, "
            f"and the bits of integers; {self.logical} takes all numbers, for their truth"
        )


def _is_condition(x: Operand) -> bool:
    """Whether an operand is bool. The op refuses foreign types."""
    return isinstance(x, bool) or getattr(getattr(x, "dtype", None), "kind", "") == "b"


def _is_real(x: Any) -> bool:
    return isinstance(x, float) or (isinstance(getattr(x, "dtype", None), np.dtype) and is_floating(x.dtype))


@associative
class BitwiseAnd(BitOperator, BinaryOperator):
    """Bitwise AND of x and y; for bools, logical AND."""

    name = "bitwise_and"
    commutative = True
    numpy = np.bitwise_and
    kernel = "{0} & {1}"
    symbol = "&"
    logical = "logical_and"


@associative
class BitwiseOr(BitOperator, BinaryOperator):
    """Bitwise OR of x and y; for bools, logical OR."""

    name = "bitwise_or"
    commutative = True
    numpy = np.bitwise_or
    kernel = "{0} | {1}"
    symbol = "|"
    logical = "logical_or"


@associative
class BitwiseXor(BitOperator, BinaryOperator):
    """Bitwise XOR of x and y; for bools, logical XOR."""

    name = "bitwise_xor"
    commutative = True
    numpy = np.bitwise_xor
    kernel = "{0} ^ {1}"
    symbol = "^"
    logical = "logical_xor"


@alias("bitwise_not")
class Invert(BitOperator, UnaryOperator):
    """Bitwise NOT of x; for bools, logical NOT."""

    name = "invert"
    numpy = np.invert
    symbol = "~"
    logical = "logical_not"

    def kernel(self, *dtypes: np.dtype) -> str | None:
        return "{0} == 0" if dtypes[0].kind == "b" else "~{0}"  # in C, ~true is true


class Shift(BitOperator, BinaryOperator):
    """A bitwise shift. By a negative number, or the integer's width or more, all bits are shifted out."""

    ufunc: ClassVar[np.ufunc]

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return ufunc_dtypes(self.ufunc, dtypes)

    @portable
    def numpy(self, *arrays: Array) -> Any:
        if any(isinstance(x, np.ndarray | np.generic) for x in arrays) or not any(hasattr(x, "dtype") for x in arrays):
            return self.ufunc(*arrays)
        dtype = promote(*(x.dtype if hasattr(x, "dtype") else type(x) for x in arrays), *self._least(arrays))
        x, y = (as_array(a, *arrays).astype(dtype) for a in arrays)
        inside = (y >= 0) & (y < 8 * dtype.itemsize)
        return np.where(inside, self.ufunc(x, np.where(inside, y, dtype.type(0))), self._outside(x))

    def _least(self, arrays: Sequence[Any]) -> list[Any]:
        """NumPy shifts bools as int8."""
        return [np.dtype("int8")] if all(_is_condition(x) for x in arrays) else []

    def _outside(self, x: Any) -> Any:
        return x.dtype.type(0)

    def kernel(self, *dtypes: np.dtype) -> str | None:
        bits = 8 * dtypes[0].itemsize
        inside = f"{{1}} < {bits}" if dtypes[0].kind == "u" else f"({{1}} >= 0 && {{1}} < {bits})"
        return f"{inside} ? {self._inside(dtypes[0])} : {self._beyond(dtypes[0])}"

    def _inside(self, dtype: np.dtype) -> str:
        raise NotImplementedError

    def _beyond(self, dtype: np.dtype) -> str:
        return "(T)0"


@numpy_function(np.left_shift)
class LeftShift(Shift):
    """x shifted left by y bits, x * 2 ** y if that fits; 0 for its width or more.

    Examples
    --------
    >>> be.left_shift(np.array([1, 2]), 2).get()
    array([4, 8])
    """

    name = "left_shift"
    ufunc = np.left_shift
    symbol = "<<"

    def _inside(self, dtype: np.dtype) -> str:
        wide = "unsigned long long" if dtype.itemsize == 8 else "unsigned int"  # two of four vectors for 32 bits
        return f"(T)(({wide}){{0}} << {{1}})"  # undefined in C for negative signed integers


@numpy_function(np.right_shift)
class RightShift(Shift):
    """x shifted right by y bits, floor(x / 2 ** y); 0 or -1 for its width or more.

    Examples
    --------
    >>> be.right_shift(np.array([4, 9]), 1).get()
    array([2, 4])
    """

    name = "right_shift"
    ufunc = np.right_shift
    symbol = ">>"

    def _inside(self, dtype: np.dtype) -> str:
        return "{0} >> {1}"

    def _beyond(self, dtype: np.dtype) -> str:
        return "(T)0" if dtype.kind == "u" else "{0} < 0 ? (T)-1 : (T)0"

    def _outside(self, x: Array) -> Any:
        return np.where(x < 0, x.dtype.type(-1), x.dtype.type(0)) if x.dtype.kind == "i" else x.dtype.type(0)


class CommonFactor(NonDifferentiableOperator, ElementwiseOperator, BinaryOperator, BlockOperator):
    """An op on the common factors of integers. It has no kernel: NumPy's runs in blocks, shared among threads."""

    commutative = True
    blocks = blocks_of_equal_shapes
    examples = Examples(sample=(0.0, 12.0), takes_floats=False)

    @portable
    def fill(self, out: Array, *arrays: Array) -> None:
        self.numpy(*arrays, out=out)


class Gcd(CommonFactor):
    """The greatest common divisor of the sizes of two integers; of 0 and x the size of x."""

    name = "gcd"
    numpy = np.gcd


class Lcm(CommonFactor):
    """The least common multiple of the sizes of two integers; of 0 and x it is 0."""

    name = "lcm"
    numpy = np.lcm
