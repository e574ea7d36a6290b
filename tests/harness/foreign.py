"""Objects of other libraries, as they come as arguments: arrays by DLPack alone, and objects of odd attributes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


class ByDLPack:
    """An array that is read by DLPack alone, with attributes of its own library's kinds, as torch's tensors have."""

    class DType:
        def __repr__(self) -> str:
            return "theirs.float32"

    def __init__(self, array: Any) -> None:
        self._array = np.array(array)
        self.dtype, self.shape, self.label = self.DType(), self._array.shape, None

    def type(self) -> str:
        return "theirs.Tensor"

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class ByArray:
    """An array that is read by ``__array__`` alone, as a series of pandas is."""

    def __init__(self, array: Any) -> None:
        self._array = np.array(array)
        self.dtype, self.shape, self.size, self.ndim = "theirs", self._array.shape, None, "two"

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._array.astype(dtype) if dtype is not None else self._array


class Refusing(ByArray):
    """An array that its library does not give, as torch's that record gradients."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("call theirs.detach() first")

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("call theirs.detach() first")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class Odd(Exception):
    """The error of odd objects."""


#: The attributes by which operands, arrays and NumPy's protocols are told.
ATTRIBUTES = (
    *("label", "type", "shape", "dtype", "name", "origin", "base", "ndim", "size", "spec", "backend", "array", "T"),
    *("op", "owner", "index", "tensor", "tree", "value", "item", "get", "strides", "flags", "data", "home", "weights"),
)

#: The same of the language's own, which only `describe` and `brief` meet.
SPECIAL = (
    *("__repr__", "__str__", "__len__", "__iter__", "__getitem__", "__eq__", "__bool__", "__format__", "__class__"),
    *("__name__", "__module__", "__dict__", "__hash__", "__doc__", "__contains__", "__getattribute__", "bit_length"),
)

BASES = (object, object, object, int, str, list, tuple, dict, float, Exception, np.ndarray, type)


def odd_object(draw: random.Random, names: tuple[str, ...] = ATTRIBUTES, bases: Any = BASES) -> Any:
    """An object some of whose attributes raise, or are of odd values."""
    body = {name: _odd_value(draw, name) for name in names if draw.random() < 0.4}
    if draw.random() < 0.3:
        body["__getattr__"] = _raising
    base = draw.choice(bases)
    meta = _odd_metaclass(draw) if names is not ATTRIBUTES and base is object and draw.random() < 0.5 else type(base)
    kind = meta("Tensor", (base,), body)
    if base is type:
        return type.__call__(kind, "Odd", (), {}) if "__init__" not in body else kind
    return _instance(kind, base, draw)


def _instance(kind: Any, base: Any, draw: random.Random) -> Any:
    if base is np.ndarray:
        return np.ndarray.__new__(kind, (2,))
    if base in (list, tuple, dict, str):
        given = {list: [1, "a"], tuple: (1,), dict: {1: 2}, str: "odd"}[base]
        return base.__new__(kind, given) if base in (tuple, str) else base.__new__(kind)
    return base.__new__(kind, draw.choice((0, 3, 10**400))) if base is int else base.__new__(kind)


def _raising(self: Any, *args: Any, **options: Any) -> Any:
    raise Odd("odd")


def _odd_value(draw: random.Random, name: str) -> Any:
    if name == "__module__":
        return draw.choice((None, 3, "theirs.inner", property(_raising)))
    if name.startswith("__") and name not in ("__class__", "__name__", "__dict__", "__doc__"):
        return draw.choice((_raising, lambda self, *args: 3, lambda self, *args: self))
    return draw.choice(
        (
            property(_raising),
            property(lambda self: self),
            None,
            -3,
            float("nan"),
            "text" * 99,
            [[]],
            (None, "a"),
            {},
            Odd,
        )
    )


def _odd_metaclass(draw: random.Random) -> Any:
    names = ("__name__", "__mro__", "__getattribute__", "__instancecheck__", "__subclasscheck__", "__repr__", "__eq__")
    body = {name: _odd_value(draw, name) for name in names if draw.random() < 0.5}
    body["__hash__"] = type.__hash__
    return type("Meta", (type,), body)
