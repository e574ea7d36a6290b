"""The exception classes, and how an error describes an operand.

Every exception is also the built-in one that NumPy would raise, so code that
catches ``ValueError`` for a shape goes on working.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar

#: The logical time, which advances with each write to a tensor; nodes and tensors keep it, for `optree.tree.tensor`. A
#: list, which operators read without a call. It is advanced without a call in between, and so without a thread switch.
clock: list[int] = [0]

#: Where and when a node was built: the code object, the bytecode offset in it, and the time of `clock`.
Origin = tuple[CodeType, int, int]

#: The characters of a value that an error shows, at most.
BRIEF = 100


_OWN_DIRECTORIES = frozenset((Path(__file__).parent, Path(__file__).parent.parent / "backends"))


class Labelled:
    """The base of operands, which errors describe by their `label`, `type` and `origin`; of no other object's."""

    __slots__ = ()

    label: Any
    type: Any


class OptreeError(Exception):
    """The base of every error that op-tree raises on purpose.

    That of an op inside a composed function, ``op: reason``, begins with the function: ``function: op: reason``.
    """

    #: The name of op-tree's function that user's code called, which `optree.registry` finds on the stack.
    called: ClassVar[Any] = staticmethod(lambda: "")

    def __init__(self, *args: Any, **options: Any) -> None:
        inner = args[0].partition(":")[0] if args and isinstance(args[0], str) else ""
        function = self.called() if inner.isidentifier() else ""
        if function and function != inner:
            args = (f"{function}: {args[0]}", *args[1:])
        super().__init__(*args, **options)


class ShapeError(OptreeError, ValueError):
    """Shapes that do not fit together."""


class SizeError(ShapeError, AssertionError):
    """A tensor of a wrong shape or size, where neon asserts it."""


class AxisError(OptreeError, ValueError, IndexError):
    """An axis that the operand does not have, or has twice."""


class DTypeError(OptreeError, TypeError):
    """A dtype that an op does not take."""


class KindError(DTypeError, AssertionError):
    """A tensor of a wrong dtype, where neon asserts it."""


class NumberOverflowError(OptreeError, OverflowError):
    """A number out of range of the dtype that it is converted to."""


class ParameterError(OptreeError, ValueError):
    """A number outside the range that a parameter has."""


class OperandError(OptreeError, TypeError):
    """An operand of a type that a tree cannot hold."""


class UntypedOperandError(OperandError, AttributeError):
    """An operand of `make_node` that has no type to ask for; Theano's and Aesara's error is an AttributeError."""


class UnknownOpError(OptreeError, LookupError):
    """A name that no op has."""


class DefinitionError(OptreeError, TypeError):
    """An op class that lacks a part, or breaks its contract."""


class ContractError(DefinitionError):
    """An op that breaks its contract while it runs, found in debug mode."""


class NotFiniteError(OptreeError, FloatingPointError):
    """A nan or an infinity made of finite numbers, found in debug mode."""


class BackendError(OptreeError, RuntimeError):
    """A backend that is unknown or missing, or operands of two backends."""


class BackendArgumentError(BackendError, ParameterError):
    """An argument of `gen_backend` that is none of those there are."""


class ExportError(OptreeError, ValueError):
    """A function that cannot be written as a program of another language."""


class ModelError(OptreeError, ValueError):
    """A file of a model that is malformed, or has an operator that no op computes."""


class CompilerError(BackendError):
    """A compiler that is missing, fails or does not end."""


class DeviceMemoryError(OptreeError, MemoryError):
    """More memory than a device has free."""


class DeviceFault(OptreeError, RuntimeError):
    """A device that failed in a kernel or was lost: nothing in this process can use it any more."""


class ReentryError(OptreeError, RuntimeError):
    """A call of a function from inside itself, while the outer call is using its memory."""


class StaleTreeWarning(UserWarning):
    """A tree that first runs after a tensor under it was written: it reads the new values."""


class StaleTreeError(OptreeError, RuntimeError):
    """A `StaleTreeWarning` raised as an error, where OPTREE_STALE_TREES is ``error``."""


class TupleAccessWarning(UserWarning):
    """A line outside op-tree that iterates over a tree, which gives its op_dict and operands and not its values."""


class TupleAccessError(OptreeError, TypeError):
    """A `TupleAccessWarning` raised as an error, where OPTREE_TUPLE_ACCESS is ``error``."""


class GradientError(OptreeError, ValueError):
    """A derivative that does not exist or was defined wrongly."""


class BatchingError(OptreeError, NotImplementedError):
    """An op without a batching rule, or one that its operands do not allow."""


class DisconnectedError(GradientError):
    """A derivative with respect to something that the cost does not contain."""


def brief(value: object, text: Callable[[Any], str] = repr) -> str:
    """A value in one line of at most `BRIEF` characters; an operand by its label and type.

    It raises nothing, whatever a foreign object's attributes raise or are.
    """
    try:
        return _shown(value, text)
    except Exception as error:
        return f"<{class_of(value)} that raises {class_of(error)} when it is printed>"


def _shown(value: Any, text: Callable[[Any], str]) -> str:
    if _is_operand(value):
        return f"{value.label} {value.type}"
    if isinstance(value, int):
        bits = int.bit_length(value)
        return text(value) if bits < 256 else f"an integer of {bits} bits"
    shown = " ".join(line.strip() for line in text(value).splitlines())
    return shown if len(shown) <= BRIEF else f"{shown[:BRIEF]}..."


def class_of(value: object) -> str:
    """The name of a value's class, with the library's if another one defines it: ``torch.Tensor``."""
    kind = type(value)  # not value.__class__, nor a metaclass's __name__, which may be anything
    name = type.__dict__["__name__"].__get__(kind)
    try:
        module = type.__dict__["__module__"].__get__(kind)
    except AttributeError:  # it has been deleted
        module = None
    library = module.partition(".")[0] if isinstance(module, str) else ""
    return name if library in _PLAIN_MODULES else f"{library}.{name}"


#: The modules whose classes are named alone.
_PLAIN_MODULES = frozenset(("", "builtins", "__main__", "optree", "backends", "numpy"))


def _is_operand(value: object) -> bool:
    # By the class alone: a foreign object may have any attribute, and isinstance asks for its __class__.
    return issubclass(type(value), Labelled)


def built_at(origin: Origin | None) -> str:
    """The end of a line about a node: ``, built at file.py:12``; nothing where the line is not known."""
    line = line_of(origin)
    return f", built at {line}" if line else ""


def line_of(origin: Origin | None) -> str | None:
    """An origin as ``file.py:12``; None where it is not known or is inside op-tree."""
    if origin is None:
        return None
    code, offset, _ = origin
    file = Path(code.co_filename)
    if not _OWN_DIRECTORIES.isdisjoint(file.parents):  # operators record only their caller
        return None
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= offset < end and number is not None:
            line = number
    return f"{file.name}:{line}"


def describe(operand: object) -> str:
    """An operand's label, base, shape, dtype and the line that made it; another object in brief, with its class.

    It raises nothing, as `brief`.
    """
    try:
        return _described(operand)
    except Exception:
        return f"{brief(operand)} ({class_of(operand)})"


def _described(operand: Any) -> str:
    if not _is_operand(operand):
        return _listed(operand) if isinstance(operand, list | tuple) else f"{brief(operand)} ({class_of(operand)})"
    line = line_of(getattr(operand, "origin", None))
    made = f", made at {line}" if line else ""
    base = getattr(operand, "base", None)
    view = f", a view of {base.label}" if base is not None and not operand.name else ""
    return f"{operand.label} {operand.type}{view}{made}"


def _listed(given: Any) -> str:
    """The first elements of a list or tuple; nested ones in brief, because a list may hold itself."""
    first = [brief(x) if isinstance(x, list | tuple) and not _is_operand(x) else describe(x) for x in given[:3]]
    return f"a {class_of(given)} of {len(given)}: {', '.join(first)}" if first else f"an empty {class_of(given)}"


def names(available: Any) -> str:
    """The available names, sorted, for an error."""
    return ", ".join(sorted(available))
