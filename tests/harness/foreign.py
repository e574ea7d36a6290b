"""Objects of other libraries, as they come as arguments: arrays by DLPack alone, and objects of odd attributes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from optree import function, grad, jit
from optree.errors import OptreeError, describe


class ForeignArray:
    """The base of other libraries' arrays, over one of NumPy's."""

    def __init__(self, array: Any) -> None:
        self.array = np.array(array)


class ByDLPack(ForeignArray):
    """An array that is read by DLPack alone, with attributes of its own library's kinds, as torch's tensors have."""

    class DType:
        def __repr__(self) -> str:
            return "theirs.float32"

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self.dtype, self.shape, self.label = self.DType(), self.array.shape, None

    def type(self) -> str:
        return "theirs.Tensor"

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class ByArray(ForeignArray):
    """An array that is read by ``__array__`` alone, as a series of pandas is."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self.dtype, self.shape, self.size, self.ndim = "theirs", self.array.shape, None, "two"

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array.astype(dtype) if dtype is not None else self.array


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

#: Those of objects that are no values of any kind.
UNREADABLE = (object, Exception, type)


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


#: Lines that take something else than an array; each refuses odd objects by an error of its own.
REFUSING: dict[str, Callable[[Any, Any, Any], Any]] = {
    "operand": lambda be, t, y: t + y,
    "function's operand": lambda be, t, y: be.maximum(t, y),
    "only operand": lambda be, t, y: be.exp(y),
    "operand of NumPy's": lambda be, t, y: np.add(t, y),
    "operand of an array of the standard": lambda be, t, y: np.add(be.xp.asarray([1.0, 2.0]), y),
    "array": lambda be, t, y: be.array(y),
    "from_dlpack": lambda be, t, y: be.from_dlpack(y),
    "adopt": lambda be, t, y: be.adopt(y),
    "assigned": lambda be, t, y: t.__setitem__(slice(None), y),
    "assigned to integers": lambda be, t, y: be.ones(2, "int32").__setitem__(slice(None), y),
    "set": lambda be, t, y: t.set(y),
    "argument": lambda be, t, y: function([t], t * 2)(y),
    "argument of jit": lambda be, t, y: jit(lambda x: x)(y),
    "index": lambda be, t, y: t[y],
    "axis": lambda be, t, y: be.sum(t, axis=y),
    "shape": lambda be, t, y: be.zeros(y),
    "dtype": lambda be, t, y: be.zeros(2, dtype=y),
    "reshape": lambda be, t, y: be.reshape(t, y),
    "wrt": lambda be, t, y: grad(be.sum(t), y),
    "cost": lambda be, t, y: grad(y, t),
    "inputs": lambda be, t, y: function([y], t),
    "output": lambda be, t, y: function([], y),
    "updates": lambda be, t, y: function([], None, updates=[(y, t)]),
    "update": lambda be, t, y: function([], None, updates=[(t, y)]),
    "concatenate": lambda be, t, y: be.concatenate([t, y]),
    "evaluate": lambda be, t, y: be.evaluate([y]),
}


def assert_refused(be: Any, t: Any, draw: random.Random, said: list[str]) -> None:
    """Check that a line refuses an odd object by an error of op-tree's own; the line is appended to `said`."""
    line, odd = draw.choice(sorted(REFUSING)), odd_object(draw, bases=UNREADABLE)
    said.append(f"{line} of {describe(odd)}")
    try:
        REFUSING[line](be, t, odd)
    except OptreeError as error:
        assert str(error)
    else:
        raise AssertionError(f"{line}: {describe(odd)} was taken")
