"""Names that users of torch, JAX, NumPy and Theano reach for, and what to write instead: one table, for all errors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from optree.arrays import is_array
from optree.errors import Labelled

#: Attributes of a NumPy array in memory, and methods that give what is no operand.
ON_THE_HOST = """
byteswap choose compress ctypes data dump dumps flags getfield itemsize nbytes nonzero strides tobytes tofile
""".split()

#: Methods of torch's tensors that are functions of the backend.
FUNCTIONS = """
abs ceil cos cosh diff erf exp expm1 flip floor isfinite isinf isnan log log10 log1p log2 logsumexp matmul
maximum minimum norm relu roll sign sin sinh softmax sqrt square tan tanh tile topk tril triu unique where
""".split()

#: By holder and name, what to write instead. ``x`` is an operand, ``be`` a backend, ``opt`` an optimizer.
INSTEAD: dict[str, dict[str, str]] = {}
for _section in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split("\n\n"):
    _holder, *_lines = _section.splitlines()
    INSTEAD[_holder.strip("[]")] = dict(line.split(": ", 1) for line in _lines)
INSTEAD["operand"] |= {name: f"x.get().{name} is that of its value as a NumPy array" for name in ON_THE_HOST}
INSTEAD["operand"] |= {name: f"be.{name}(x) is a tree" for name in FUNCTIONS if name not in INSTEAD["operand"]}


def instead(holder: str, name: str) -> str:
    """The end of an error for a name that its holder does not have: what to write instead, if the table has it."""
    remedy = INSTEAD[holder].get(name)
    return "" if remedy is None else f"; instead: {remedy}"


def instead_of_parameter(given: Iterable[str]) -> str:
    """The same for the names of a call's arguments: of the first that the table has."""
    return next((instead("parameter", name) for name in given if name in INSTEAD["parameter"]), "")


class RefusedAttribute:
    """An attribute that raises AttributeError with the way out."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, operand: Any, owner: Any = None) -> NoReturn:
        kind = (type(operand) if owner is None else owner).__name__
        raise AttributeError(f"{kind!r} object has no attribute {self._name!r}: {INSTEAD['operand'][self._name]}")


def refuse_attributes(cls: object) -> None:
    """Add the attributes of operands in the table that a class does not have."""
    for name in INSTEAD["operand"]:
        if name not in dir(cls):
            setattr(cls, name, RefusedAttribute(name))


def remedy_for(value: object) -> str:
    """How a value is made an operand, or why it has come as one."""
    if isinstance(value, list | tuple):
        if any(isinstance(x, Labelled) for x in value):
            return "; be.stack(...) is one operand of them, and another library, as Matplotlib, takes x.get()"
        return "; np.asarray makes an operand of it"
    if value is None:
        return (
            "; be.count(x, axis) is the size of an axis where x.shape has None, a function without a return statement "
            "gives None, and Matplotlib's bar takes x.get()"
        )
    if isinstance(value, dict) and "op" in value:
        return "; a tree's [0] is its op_dict, and tree.at[0] the first element of its value"
    return "; a GPU backend's be.adopt makes a tensor of it" if is_array(value) else ""
