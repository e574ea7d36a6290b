"""Values of a model that is read: trees, arrays that are known, and sizes that are open."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike

from optree.arrays import Array
from optree.compile.program import flatten
from optree.dtypes import is_floating
from optree.errors import ModelError
from optree.registry import f
from optree.tree.tensor import Tensor
from optree.tree.types import TupleType
from optree.tree.variable import Input, Variable, constant

#: The most elements of a constant that a model computes from its own constants.
LARGEST = 1 << 24


class OpenSize:
    """An open size among the sizes that a model computes with.

    `x`: a tree that has the size along `axis`; None for one that was computed.
    """

    def __init__(self, x: Any = None, axis: int = 0, made: tuple[Any, ...] = ()) -> None:
        self.x, self.axis, self._made = x, axis, made

    def tree(self) -> Any:
        """The size as a tree of int64."""
        if self.x is not None:  # the count of integers is in float64
            return f.cast(f.count(f.flat_indices(self.x), self.axis), "int64")
        function, *given = self._made
        return function(*(n.tree() if isinstance(n, OpenSize) else np.int64(n) for n in given))

    def __int__(self) -> int:
        raise ModelError("a size is open, and must be known here; sizes={...} fixes it")

    __index__ = __float__ = __int__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int | np.integer) and other < 0:
            return False
        return self is other or bool(int(self))

    def __hash__(self) -> int:
        return id(self)

    def __add__(self, other: object) -> OpenSize:
        return self._computed(np.add, self, other, 0)

    def __radd__(self, other: object) -> OpenSize:
        return self._computed(np.add, other, self, 0)

    def __sub__(self, other: object) -> OpenSize:
        return self._computed(np.subtract, self, other, 0)

    def __rsub__(self, other: object) -> OpenSize:
        return self._computed(np.subtract, other, self)

    def __mul__(self, other: object) -> OpenSize:
        return self._computed(np.multiply, self, other, 1)

    def __rmul__(self, other: object) -> OpenSize:
        return self._computed(np.multiply, other, self, 1)

    def __floordiv__(self, other: object) -> OpenSize:
        return self._computed(np.floor_divide, self, other, 1)

    def _computed(self, function: Callable[..., Any], x: object, y: object, neutral: int | None = None) -> OpenSize:
        other = y if x is self else x
        if not isinstance(other, OpenSize) and other == neutral:
            return self
        return OpenSize(made=(function, x, y))


def as_values(x: Array | None) -> Any:
    """Sizes, of which some are open, as a tree; any other value unchanged."""
    if x is None or x.dtype.kind != "O":
        return x
    parts = [n.tree() if isinstance(n, OpenSize) else constant(np.int64(n)) for n in x.flat]
    return parts[0] if x.ndim == 0 else np.reshape(np.stack(parts), x.shape)


def known_array(x: object) -> np.ndarray:
    """An array; of integers, if none of its sizes is open."""
    found = np.asarray(x)
    is_open = found.dtype != object or any(isinstance(n, OpenSize) for n in found.flat)
    return found if is_open else found.astype(np.int64)


def size_of(x: Array, axis: int) -> Any:
    """A size, or an `OpenSize`."""
    return OpenSize(x, axis) if x.shape[axis] is None else x.shape[axis]


def known_size(x: Array, axis: int) -> int:
    """A size that must be known."""
    return int(size_of(x, axis))


def check_size(size: int) -> None:
    """Raise an error for a constant that would take too much memory."""
    if size > LARGEST:
        raise ModelError(f"a constant would have {size} elements, and {LARGEST} are the most")


def fixed(x: Array | None, what: str) -> np.ndarray:
    """The value of an operand that decides shapes.

    Raises ModelError if it depends on the model's inputs, or takes too much memory.
    """
    if isinstance(x, Tensor):
        return x.get()
    if not isinstance(x, Variable):
        return np.asarray(x)
    program = flatten([x])
    if any(isinstance(leaf, Input) for leaf in program.leaves):
        raise ModelError(
            f"{what} is computed when the model runs, and must be a constant; constants={{...}} makes an input one"
        )
    check_size(
        sum(map(_elements, (program.type_of(i) for i in range(len(program.leaves) + len(program.instructions)))))
    )
    return np.asarray(x.asnumpyarray())


def _elements(type: Any) -> int:
    return sum(map(_elements, type.types)) if isinstance(type, TupleType) else prod(n or 0 for n in type.shape)


def integers(x: Array, what: str) -> tuple[int, ...]:
    """The values of a vector that decides shapes."""
    return tuple(int(n) for n in fixed(x, what).reshape(-1))


def sizes(x: Array, what: str) -> list[Any]:
    """The values of a shape: integers, and open sizes."""
    return [n if isinstance(n, OpenSize) else int(n) for n in fixed(x, what).reshape(-1)]


def of_shape(wanted: list[Any]) -> Any:
    """A tree of a shape with open sizes, whose values are not used."""
    parts: list[Any] = [np.zeros([1 if isinstance(n, OpenSize) else n for n in wanted], np.int8)]
    for i, n in enumerate(wanted):
        if isinstance(n, OpenSize):
            if n.x is None:
                int(n)
            along = f.flat_indices(n.x, n.axis)
            index = tuple(slice(None) if axis == n.axis else slice(0, 1) for axis in range(n.x.ndim))
            line = np.reshape(along if n.x.ndim == 1 else along.at[index], (-1, *[1] * (len(wanted) - 1 - i)))
            parts.append(line)
    return reduce(np.add, parts)


def part(x: Array, index: Any) -> Any:
    """A part of a tree or an array, by NumPy's index."""
    return f.gather(x, index) if isinstance(x, Variable) else x[index]  # an index of a tensor is a view


def cast(x: Array, dtype: DTypeLike) -> Any:
    """Values in another dtype; floats are rounded towards zero to integers."""
    x = np.array(x, object) if isinstance(x, OpenSize) else x
    if x.dtype == object:
        if np.dtype(dtype).kind in "iuO":
            return x
        x = as_values(x)
    if x.dtype == dtype:
        return x
    if not isinstance(x, Variable):
        with np.errstate(invalid="ignore", over="ignore"):
            return x.astype(dtype)
    if is_floating(x.dtype) and np.dtype(dtype).kind in "iu":
        x = np.trunc(x)
    return f.cast(x, dtype)


def dtype_of(number: int) -> np.dtype:
    """The dtype of ONNX's number for it."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))


def as_tree(x: object) -> Any:
    """An operand of a function that makes trees."""
    return x if isinstance(x, Variable) else constant(np.asarray(x))


class Operators:
    """A family of operators: methods of their names, which take their inputs and, by name, attributes.

    `version`: the version of the operators that a node is written for.
    """

    def __init__(self, version: int) -> None:
        self.version = version
