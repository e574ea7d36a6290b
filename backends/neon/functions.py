"""Elementwise functions, reductions and one-hot codes with neon's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from backends.neon.dense import Dense
from backends.neon.tensor import Deferred
from optree.errors import KindError, ParameterError, ShapeError, SizeError, describe
from optree.registry import FUNCTIONS, f
from optree.tree.numpy_protocol import write_out
from optree.tree.tensor import Tensor
from optree.tree.types import Shape, TensorType
from optree.tree.variable import Operand


class Functions(Dense):
    """Functions of operands on a backend in neon's mode: all with a target as the last argument, and kept axes."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = self._function(name)
        own = list(inspect.signature(FUNCTIONS[name]).parameters.values())
        count = sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in own)
        if count < len(own):  # with parameters of its own, after which no target can stand
            return method

        def function(*args: Any, out: Tensor | None = None, **kwargs: Any) -> Any:
            if len(args) == count + 1:
                *args, out = args  # type: ignore[assignment]
            return method(*args, out=out, **kwargs)

        function.__name__, function.__doc__ = name, method.__doc__
        self.__dict__[name] = function
        return function

    def clip(self, a: Operand, a_min: Operand, a_max: Operand, out: Tensor | None = None) -> Any:
        """``min(max(a, a_min), a_max)``."""
        return self._written(f.clip(self._operand(a), a_min, a_max), out)

    def dot(self, a: Operand, b: Operand, out: Tensor | None = None) -> Any:
        """The matrix product of two matrices.

        Raises
        ------
        SizeError
            If their shapes do not fit, which neon asserts.
        """
        try:
            return self._written(f.dot(self._operand(a), self._operand(b)), out)
        except ShapeError as error:
            raise SizeError(*error.args) from None

    # Reductions, which keep their axis whatever keepdims says

    def sum(self, a: Any, axis: int | None = None, out: Tensor | None = None, keepdims: bool = True) -> Any:
        """The sum of all elements, or along an axis."""
        return self._written(f.sum(self._operand(a), axis=axis), out)

    def max(self, a: Operand, axis: int | None = None, out: Tensor | None = None, keepdims: bool = True) -> Any:
        """The maximum of all elements, or along an axis."""
        return self._written(f.max(self._operand(a), axis=axis), out)

    def min(self, a: Operand, axis: int | None = None, out: Tensor | None = None, keepdims: bool = True) -> Any:
        """The minimum of all elements, or along an axis."""
        return self._written(f.min(self._operand(a), axis=axis), out)

    def argmax(self, a: Operand, axis: int = 1, out: Tensor | None = None, keepdims: bool = True) -> Any:
        """The index of the first maximum along an axis."""
        return self._written(f.argmax(self._operand(a), axis=axis), out)

    def argmin(self, a: Operand, axis: int = 1, out: Tensor | None = None, keepdims: bool = True) -> Any:
        """The index of the first minimum along an axis."""
        return self._written(f.argmin(self._operand(a), axis=axis), out)

    def mean(
        self,
        a: Operand,
        axis: int | None = None,
        partial: object = None,
        out: Tensor | None = None,
        keepdims: bool = True,
    ) -> Any:
        """The mean of all elements, or along an axis."""
        return self._written(f.mean(self._operand(a), axis=axis), out)

    def std(
        self,
        a: Operand,
        axis: int | None = None,
        partial: object = None,
        out: Tensor | None = None,
        keepdims: bool = True,
    ) -> Any:
        """The standard deviation of all elements, or along an axis."""
        return self._written(f.std(self._operand(a), axis=axis), out)

    def var(
        self,
        a: Operand,
        axis: int | None = None,
        partial: object = None,
        out: Tensor | None = None,
        keepdims: bool = True,
        binary: bool = False,
    ) -> Any:
        """The variance of all elements, or along an axis; if `binary`, of squares rounded as by `shift`."""
        a = self._operand(a)
        if not binary:
            return self._written(f.var(a, axis=axis), out)
        centred = a - f.mean(a, axis=axis)
        return self._written(f.mean(f.shift(centred, centred), axis=axis), out)

    # Indices

    def onehot(self, indices: Any, axis: int, out: Tensor | None = None) -> Any:
        """One-hot codes of the destination's shape: (classes, n) for axis 0, (n, classes) for axis 1.

        Raises
        ------
        ParameterError
            For another axis.
        KindError
            If the indices are no int32 or uint32.
        """
        if axis not in (0, 1):
            raise ParameterError(f"onehot: axis is 0 or 1, not {axis!r}")
        if indices.dtype not in (np.int32, np.uint32):
            raise KindError(f"onehot: indices are int32 or uint32, not {describe(indices)}")
        column = f.reshape(indices, (-1, 1))
        codes = self._deferred(lambda target: f.onehot(column, target.shape[axis], axis, target.dtype))
        return self._written(codes, out)

    def take(self, a: Any, indices: Any, axis: Any = None, out: Any = None) -> Any:
        """The elements of a tensor at `indices` along an axis."""
        return a.take(indices, axis, out)

    # Random numbers

    def rand(self, shape: Shape | None = None, dtype: Any = None, out: Any = None) -> Any:
        """Uniform numbers of [0, 1), of a shape, or by default of what they are assigned to."""
        if isinstance(shape, Tensor) and out is None:  # neon's only argument is the target
            shape, out = None, shape
        if shape is None and out is None:
            return self._deferred(lambda target: super(Functions, self).rand(target, self.datatype))
        return super().rand(shape, dtype, out)

    def dropout(self, keep: float = 0.5, out: Tensor | None = None) -> Any:
        """Ones with the probability `keep`, and zeros, of the shape of what they are assigned to."""
        return self._written(f.cast(self.rand() < keep, self.datatype), out)

    def _deferred(self, build: Callable[[Any], Any]) -> Any:
        self.has_deferred = True
        return Deferred(TensorType(self.datatype, (1, 1)), build)

    def _written(self, tree: Any, out: Any) -> Any:
        if out is None:
            return tree
        return out._assign(tree) if self.has_deferred else write_out(tree, out)
