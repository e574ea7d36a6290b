"""Implementations of instructions, and the tables by which a backend's libraries provide them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from backends.backend import Backend
from optree.compile.program import Program
from optree.compile.reference import is_widened
from optree.dtypes import is_floating, is_inexact
from optree.op.op import Op
from optree.records import NamedTuple


class Implementation(NamedTuple):
    """A function of arrays that computes an instruction, and what it can do."""

    #: Of the operands.
    call: Callable[..., Any]
    #: The same with `out`, an array that the value is written into; it may overlap the operands. Where there is such a
    #: function, `call` gives a new array.
    into: Callable[..., Any] | None = None
    #: Whether `out` may be of any layout.
    is_strided: bool = True
    #: Whether `out` may as well be an operand of the value's own type.
    in_place: bool = False
    #: Of the operands; writes the value, of which it changes parts, over the first of them, and gives that. If it
    #: raises, nothing is written.
    update: Callable[..., Any] | None = None
    #: Whether `into` writes nothing if it raises.
    is_atomic: bool = False
    #: Whether it computes what an `Epilogue` says along with a product.
    takes_epilogue: bool = False
    #: Whether a CUDA graph can capture it.
    is_captured: bool = False
    #: Whether it is a library's, for which a CUDA graph pays.
    is_routine: bool = False
    #: Its name in listings, if that is not the op's alone.
    label: str = ""


#: From the number of an instruction to what computes it.
ImplementationOf = Callable[[int], Implementation]


class Routine(NamedTuple):
    """A library's routine for an op: a row of a backend's table, from op classes to these."""

    #: From the backend and the op to the function of arrays.
    bind: Callable[[Any, Any], Callable[..., Any]]
    #: From a program and the number of an instruction of that class, whether the routine computes that.
    takes: Callable[[Program, int], bool]
    #: Whether the function takes `out`, as `Implementation.into` does.
    writes_out: bool = False
    #: Further capabilities (`Implementation`).
    takes_epilogue: bool = False
    is_captured: bool = False
    #: Whether it does more than to make views.
    computes: bool = True
    #: From the backend to its name in listings.
    label: Callable[[Any], str] | None = None

    def implementation(self, backend: Backend, op: Op) -> Implementation:
        """The routine for an op."""
        call = self.bind(backend, op)
        return Implementation(
            call,
            call if self.writes_out else None,
            takes_epilogue=self.takes_epilogue,
            is_captured=self.is_captured,
            is_routine=self.computes,
            label="" if self.label is None else self.label(backend),
        )


def routine_of(table: Mapping[type, Routine], program: Program, index: int) -> Routine | None:
    """The routine that computes an instruction; None if there is none.

    A subclass of an op may compute something else: it needs a row of its own.
    """
    routine = table.get(type(program.instructions[index].op))
    return routine if routine is not None and routine.takes(program, index) else None


def takes_floats(program: Program, index: int) -> bool:
    """Whether an instruction gives floats, of arrays alone."""
    return is_floating(program.instructions[index].type.dtype) and not _has_numbers(program, index)


def takes_inexact(program: Program, index: int) -> bool:
    """Whether an instruction gives floats or complex numbers, of arrays alone."""
    return is_inexact(program.instructions[index].type.dtype) and not _has_numbers(program, index)


def takes_floats_first(program: Program, index: int) -> bool:
    """Whether an instruction's first operand is an array of floats, and none is a number."""
    first = program.instructions[index].inputs[0]
    return is_floating(program.type_of(first).dtype) and not _has_numbers(program, index)


def _has_numbers(program: Program, index: int) -> bool:
    return any(map(program.is_number, program.instructions[index].inputs))


def is_a_ufuncs(program: Program, index: int) -> bool:
    """Whether an instruction's value is that of a ufunc, called as it is."""
    node = program.instructions[index].node
    op = node.op
    return isinstance(op.numpy, np.ufunc) and not op.props and not is_widened(node)


def product(backend: Any, op: Any) -> Callable[..., Any]:
    """`Routine.bind` of a product of matrices."""
    return backend.product  # type: ignore[no-any-return]


def contraction(backend: Any, op: Any) -> Callable[..., Any]:
    """`Routine.bind` of a contraction, as a product of matrices."""
    left, right = op.axes

    def contract(x: Any, y: Any) -> Any:
        x_free, y_free = ([i for i in range(z.ndim) if i not in axes] for z, axes in ((x, left), (y, right)))
        shape = (*(x.shape[i] for i in x_free), *(y.shape[j] for j in y_free))
        inner = prod(x.shape[i] for i in left)
        rows = x.transpose(*x_free, *left).reshape(prod(x.shape[i] for i in x_free), inner)
        columns = y.transpose(*right, *y_free).reshape(inner, prod(y.shape[j] for j in y_free))
        return backend.product(rows, columns).reshape(shape)

    return contract


def views(backend: Backend, op: Any) -> Callable[..., Any]:
    """`Routine.bind` of an op's views, which need no check."""
    return op.views  # type: ignore[no-any-return]


def _into(backend: Backend, op: Any) -> Callable[..., Any]:
    return op.into  # type: ignore[no-any-return]


def always(program: Program, index: int) -> bool:
    """`Routine.takes` of any operands."""
    return True


#: What begins an operation beside others, into memory that a function keeps from call to call.
BEGINNING = Routine(_into, always, writes_out=True, computes=False)
