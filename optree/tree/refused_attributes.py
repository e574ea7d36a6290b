"""Attributes of NumPy's arrays that operands do not have, whose errors say what to do instead."""

from __future__ import annotations

from typing import Any, NoReturn

#: The attributes of an array in memory, and methods that give what is no operand.
ON_THE_HOST = """
byteswap choose compress ctypes data dump dumps flags getfield itemsize nbytes nonzero strides tobytes tofile
""".split()

#: What to do instead of the other attributes.
OTHERS = """
_set_dtype: x.astype(dtype) is a tree
_set_shape: x.reshape(shape) is a view of a tensor, and a tree of a tree
base: only a tensor is a view of another
device: x.backend is where it is
fill: x[...] = value writes a tensor, and np.full_like(x, value) is a tree
flat: x.ravel() has its elements in C order
partition: np.partition(x, kth) is a tree, and x[...] = np.partition(x, kth) writes a tensor
put: np.put(x, indices, values) writes a tensor, and be.scatter(x, indices, values) is a tree
resize: np.resize(x, shape) is a tree
setfield: x[...] = ... writes a tensor or a part of one
setflags: x is always writeable if it is a tensor
sort: np.sort(x) is a tree, and x[...] = np.sort(x) writes a tensor
tostring: x.get().tobytes() has the bytes of its value
to_device: be.array(x.get()) copies it to another backend
"""

#: The name of each attribute, and what to do instead.
REMEDIES = {
    **dict.fromkeys(ON_THE_HOST, "x.get().{} is that of its value as a NumPy array"),
    **dict(line.split(": ", 1) for line in OTHERS.strip().splitlines()),
}


class RefusedAttribute:
    """An attribute that raises AttributeError with the way out."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, operand: Any, owner: Any = None) -> NoReturn:
        kind = (type(operand) if owner is None else owner).__name__
        remedy = REMEDIES[self._name].format(self._name)
        raise AttributeError(f"{kind!r} object has no attribute {self._name!r}: {remedy}")


def refuse_attributes(cls: Any) -> None:
    """Add the attributes of `REMEDIES` that a class does not have."""
    for name in REMEDIES:
        if name not in dir(cls):
            setattr(cls, name, RefusedAttribute(name))
