"""Writes backends/functions.pyi: the types of every function of operands as a method of backends.

``make functions`` runs it, and a test compares the file with `text`.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from backends.backend import Backend
from optree.op.examples import examples_in
from optree.op.traits import ElementwiseOperator
from optree.registry import FUNCTIONS, OPS
from optree.testing.examples import examples_of, inputs_for
from optree.tree.variable import Variable

PATH = Path(__file__).parent.parent / "backends" / "functions.pyi"

HEAD = '''"""The types of backends' methods. Made by `make functions` from the registry."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from numpy.typing import DTypeLike

from optree.tree.tensor import Tensor
from optree.tree.types import Axis, ShapeLike
from optree.tree.variable import Operand, Variable

Out: TypeAlias = Tensor | Sequence[Tensor] | None

class Functions:
'''

#: The annotations of composed functions that mean the same here.
KNOWN = (
    *("bool", "int", "float", "str", "int | None", "float | None", "Operand", "Operand | None", "Axis"),
    *("tuple[Any, ...]", "tuple[Any, Any]", "list[Any]"),
)

#: The types of further parameters by their names; any others take an object.
NAMED = {
    **dict.fromkeys(("x", "y", "u", "w", "query", "key", "value"), "Operand"),
    "axis": "Axis",
    "dtype": "DTypeLike",
    "layout": "str | None",
    "mask": "Operand | None",
    **dict.fromkeys(("window", "stride", "dilation"), "ShapeLike | None"),
}

OUT = "out: Out = ..."


def text() -> str:
    """The file."""
    own = {name for base in Backend.__mro__ for name in vars(base)}
    ours = (name for name in sorted(FUNCTIONS) if _module(name).startswith("optree."))  # tests register ops, too
    return HEAD + "\n".join(_method(name) for name in ours if name not in own) + "\n"


def _module(name: str) -> str:
    """The module that defines a function."""
    return OPS[name].__module__ if name in OPS else FUNCTIONS[name].__module__


def _method(name: str) -> str:
    """A method's line."""
    given = inspect.signature(FUNCTIONS[name]).parameters.values()
    operands = OPS[name].operands or () if name in OPS else ()
    texts = ["self", *(_text(parameter, parameter.name in operands) for parameter in given)]
    if not any(parameter.name == "out" for parameter in given):
        is_keyword = any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY) for parameter in given)
        at = len(texts) - texts[-1].startswith("**")
        texts[at:at] = [OUT] if is_keyword else ["*", OUT]
    return f"    def {name}({', '.join(texts)}) -> {_returned(name)}: ..."


def _text(parameter: inspect.Parameter, is_operand: bool) -> str:
    """A parameter, with its type and whether it has a default."""
    annotation, default = NAMED.get(parameter.name, "object"), parameter.default
    if parameter.annotation in KNOWN:
        annotation = parameter.annotation
    elif is_operand:
        annotation = "Operand" if default is parameter.empty else "Operand | None"
    elif isinstance(default, bool):
        annotation = "bool"
    stars = "*" * (parameter.kind is parameter.VAR_POSITIONAL) + "**" * (parameter.kind is parameter.VAR_KEYWORD)
    return f"{stars}{parameter.name}: {annotation}{'' if stars or default is parameter.empty else ' = ...'}"


def _returned(name: str) -> str:
    """The type of a function's value: a variable, if the op's examples say so."""
    if name in OPS and (examples_in(OPS[name]).cases or issubclass(OPS[name], ElementwiseOperator)):
        example = examples_of(OPS[name])[0]
        return "Variable" if isinstance(example.tree(inputs_for(example.draw())), Variable) else "Any"
    annotation = inspect.signature(FUNCTIONS[name]).return_annotation
    return annotation if annotation in KNOWN else "Any"


if __name__ == "__main__":
    PATH.write_text(text())
